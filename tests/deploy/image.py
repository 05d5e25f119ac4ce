"""The steps of ``deploy/Dockerfile`` in clean roots, where no image can be built: for want of a registry, say.

    python -m tests.deploy.image [ROOT]

ROOT is a folder with a system, made by debootstrap for example. Without it a small one is made: a shell, the programs
that the steps call, and the libraries that these need. This machine's Python comes into its ``/usr/local``, as that of
the base image has one there. Both stages begin with a copy of the root; RUN is a shell in a chroot, COPY copies, ENV
and WORKDIR hold from there on. Then the result has to say its version, to hold no installer, and to migrate and serve
as user 65532 with nothing writable but ``/data`` and ``/tmp``. Needs root, and a network for the locked packages.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from tests.deploy.helm import ROOT
from tests.deploy.test_files import DOCKERFILE, stages
from tests.servers.process import free_port

AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
CHROOT = shutil.which("chroot", path="/usr/sbin:/usr/bin:/sbin:/bin") or "chroot"
MACHINE = {name: str(AUTHORITIES) for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")}
"""What this machine's network asks for; nothing of the image."""
PROGRAMS = ("sh", "cat", "chmod", "cp", "env", "id", "install", "ln", "ls", "mkdir", "mv", "rm", "ldconfig")
"""What a root of our own has besides Python."""
BESIDE_LIBC = (
    "libnss_dns.so.2", "libnss_files.so.2", "libresolv.so.2", "libm.so.6", "libdl.so.2", "libpthread.so.0",
    "librt.so.1", "libgcc_s.so.1", "libstdc++.so.6",
)  # fmt: skip
"""Libraries of every Debian, which the C library opens when it looks up names, and which programs in wheels need."""
INSIDE = """
mount --rbind /dev "$1/dev"; mount -t proc proc "$1/proc"; exec "$2" --userspec="$3" "$1" /bin/sh -ec "$4"
"""
"""Runs a command in a root, which has devices and processes for as long as it runs."""


class Stage:
    """One stage, as a folder: a root that is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"}
        self.workdir = "/"

    def shell(self, command: str) -> None:
        """RUN."""
        subprocess.run(self.command(command, "0:0"), env={**self.environ, **MACHINE}, check=True)

    def command(self, command: str, user: str = "65532:65532") -> list[str]:
        """The words of a process that runs it in this root."""
        inside = f"cd {shlex.quote(self.workdir)}; {command}"
        unshare = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-ec", INSIDE, "sh"]
        return [*unshare, str(self.folder), CHROOT, user, inside]

    def copy(self, sources: list[Path], target: str) -> None:
        """COPY: a folder's content, or files into a folder."""
        place = self.folder / os.path.join(self.workdir, target).lstrip("/")
        for source in sources:
            if source.is_dir():
                shutil.copytree(
                    source, place, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, place)

    def set(self, text: str) -> None:
        """ENV."""
        for pair in shlex.split(text):
            name, _, value = pair.partition("=")
            self.environ[name] = value


def libraries(*files: Path) -> set[Path]:
    """The shared libraries that programs and modules of this machine need, and its dynamic loader."""
    done = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, check=False)
    return {Path(found) for found in re.findall(r"(/\S+\.so[.\d]*)(?= \(0x)", done.stdout)}


def make_root(base: Path) -> None:
    """A system with nothing but what the steps call: no package of this machine's, and nothing of the project."""
    for name in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/local", "etc/ssl/certs", "dev", "proc", "root"):
        (base / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (base / name).symlink_to(f"usr/{name}")
    (base / "tmp").mkdir()
    (base / "tmp").chmod(0o1777)
    (base / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (base / "etc/group").write_text("root:x:0:\n")
    (base / "etc/ld.so.conf").write_text("/usr/local/lib\n")
    found = {name: shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin") for name in PROGRAMS}
    programs = [Path(each) for each in found.values() if each is not None]
    assert len(programs) == len(PROGRAMS), found
    prefix = Path(sys.base_prefix)
    python = [prefix / "bin" / "python3", *prefix.glob("lib/python3.*/lib-dynload/*.so")]
    own = [path for path in libraries(*programs, *python) if not path.is_relative_to(prefix)]
    (libc,) = (path for path in own if path.name == "libc.so.6")
    own += [path for name in BESIDE_LIBC if (path := libc.with_name(name)).exists()]
    for path in (*programs, *own):
        target = base / str(path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path.resolve(), target)


def put_python(base: Path) -> None:
    """This machine's Python into /usr/local, as the base image has one there."""
    if (base / "usr/local/bin/python").exists():
        return
    prefix, place, name = Path(sys.base_prefix), base / "usr/local", f"python3.{sys.version_info.minor}"
    (place / "bin").mkdir(parents=True, exist_ok=True)
    leave = shutil.ignore_patterns("test", "__pycache__", "site-packages", "dist-packages", "config-3*")
    shutil.copytree(prefix / "lib" / name, place / "lib" / name, symlinks=True, ignore=leave)
    for path in [*prefix.glob("lib/libpython3*"), *(prefix / "bin" / each for each in ("python", "python3", name))]:
        shutil.copy2(path, place / path.relative_to(prefix).parent, follow_symlinks=False)
    for name in ("etc/resolv.conf", str(AUTHORITIES).lstrip("/")):
        shutil.copy(f"/{name}", base / name)
    subprocess.run([CHROOT, str(base), "/sbin/ldconfig"], check=True)
    Stage(base).shell("python3 -m ensurepip; ln -s pip3 /usr/local/bin/pip")


def build(base: Path, folder: Path) -> Stage:
    """Every step of the Dockerfile; the last stage."""
    made: dict[str, Stage] = {}
    stage: Stage | None = None
    for number, steps in enumerate(stages(DOCKERFILE)):
        for word, rest in steps:
            print(f"── {word} {rest[:110]}", flush=True)
            if word == "FROM":
                stage = Stage(folder / f"stage-{number}")
                subprocess.run(["cp", "-a", "--reflink=auto", str(base), str(stage.folder)], check=True)
                made[rest.partition(" AS ")[2]] = stage
                continue
            assert stage is not None
            match word:
                case "RUN":
                    stage.shell(rest.replace("${EXTRAS}", ""))
                case "ENV":
                    stage.set(rest)
                case "WORKDIR":
                    stage.workdir = rest
                    (stage.folder / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
                case "COPY":
                    *sources, target = [each for each in rest.split() if not each.startswith("--from=")]
                    origin = re.match(r"--from=(\w+)", rest)
                    root = made[origin[1]].folder if origin else ROOT
                    stage.copy([root / source.lstrip("/") for source in sources], target)
                case "ARG" | "USER" | "VOLUME" | "EXPOSE" | "ENTRYPOINT" | "CMD":
                    pass  # said to who runs the image
                case _:
                    raise AssertionError(f"{word}: not known here")
    assert stage is not None
    return stage


def try_it(stage: Stage) -> None:
    """What a container would do."""
    subprocess.run(stage.command("gateway --version"), env=stage.environ, check=True)
    for tool in ("uv", "pip", "gcc", "cc", "make"):
        found = subprocess.run(stage.command(f"command -v {tool}"), env=stage.environ, check=False)
        assert found.returncode != 0, f"{tool} is in the final stage"
    found = subprocess.run(stage.command("python -c 'import pip'"), env=stage.environ, check=False, capture_output=True)
    assert found.returncode != 0, "pip is in the final stage"
    ports = {f"GATEWAY_{name}_PORT": str(free_port()) for name in ("HTTP", "OPS", "AMQP")}
    subprocess.run(stage.command("gateway migrate"), env=stage.environ, check=True)
    process = subprocess.Popen(stage.command("exec gateway serve"), env={**stage.environ, **ports})
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{ports['GATEWAY_OPS_PORT']}/readyz", timeout=5
                ) as answer:
                    print("ready:", answer.read().decode().strip())
                    break
            except OSError:
                assert time.monotonic() < deadline, "it is not ready"
                time.sleep(0.2)
    finally:
        process.terminate()
        print("ended with", process.wait(timeout=60))
    size = subprocess.run(["du", "-sm", str(stage.folder / "opt/gateway")], check=True, capture_output=True, text=True)
    print("/opt/gateway:", size.stdout.split()[0], "MB")


def main() -> int:
    """The command line."""
    with tempfile.TemporaryDirectory(prefix="gateway-image-") as name:
        folder = Path(name)
        base = Path(sys.argv[1]) if sys.argv[1:] else folder / "root"
        if not sys.argv[1:]:
            make_root(base)
        put_python(base)
        try_it(build(base, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
