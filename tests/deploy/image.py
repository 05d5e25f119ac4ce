"""The steps of ``deploy/Dockerfile`` in clean roots, where no image can be built: for want of a registry, say.

    debootstrap --variant=minbase --include=ca-certificates,libssl3,libffi8,libsqlite3-0,zlib1g,libbz2-1.0,\
liblzma5,libreadline8 bookworm /tmp/clean-root
    python -m tests.deploy.image /tmp/clean-root

The root is Debian's, as that of the base image is, with this machine's Python in ``/usr/local``. Both stages begin
with a copy of it; RUN is a shell in a chroot, COPY copies, ENV and WORKDIR hold from there on. Then the result has to
say its version, to hold no installer, and to migrate and serve as user 65532 with nothing writable but ``/data`` and
``/tmp``. Needs root.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
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


class Stage:
    """One stage, as a folder."""

    def __init__(self, base: Path, folder: Path) -> None:
        subprocess.run(["cp", "-a", "--reflink=auto", str(base), str(folder)], check=True)
        self.folder = folder
        self.environ = {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"}
        self.workdir = "/"

    def shell(self, command: str) -> None:
        """RUN."""
        subprocess.run(
            [CHROOT, str(self.folder), "/bin/sh", "-ec", f"cd {shlex.quote(self.workdir)}; {command}"],
            env={**self.environ, **MACHINE},
            check=True,
        )

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


def put_python(base: Path) -> None:
    """This machine's Python into /usr/local, as the base image has one there."""
    if (base / "usr/local/bin/python").exists():
        return
    prefix = Path(sys.base_prefix)
    subprocess.run(["cp", "-a", f"{prefix}/.", str(base / "usr/local")], check=True)
    packages = next((base / "usr/local/lib").glob("python3.*")) / "site-packages"
    for path in packages.iterdir():
        if not re.match(r"(pip|setuptools)\b|_distutils_hack|distutils-precedence", path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for script in (base / "usr/local/bin").glob("pip*"):
        script.write_text(re.sub(r"^#!.*", "#!/usr/local/bin/python3", script.read_text(), count=1))
    for name in ("etc/resolv.conf", str(AUTHORITIES).lstrip("/")):
        shutil.copy(f"/{name}", base / name)
    subprocess.run([CHROOT, str(base), "/sbin/ldconfig"], check=True)


def build(base: Path, folder: Path) -> Stage:
    """Every step of the Dockerfile; the last stage."""
    made: dict[str, Stage] = {}
    stage: Stage | None = None
    for number, steps in enumerate(stages(DOCKERFILE)):
        for word, rest in steps:
            print(f"── {word} {rest[:110]}", flush=True)
            if word == "FROM":
                stage = Stage(base, folder / f"stage-{number}")
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
    inside = [CHROOT, "--userspec=65532:65532", str(stage.folder)]
    said = subprocess.run(
        [*inside, "gateway", "--version"], env=stage.environ, check=True, capture_output=True, text=True
    )
    print(said.stdout.strip())
    for tool in ("uv", "pip", "gcc", "cc", "make"):
        found = subprocess.run([*inside, "/bin/sh", "-c", f"command -v {tool}"], env=stage.environ, check=False)
        assert found.returncode != 0, f"{tool} is in the final stage"
    found = subprocess.run([*inside, "python", "-c", "import pip"], env=stage.environ, check=False, capture_output=True)
    assert found.returncode != 0, "pip is in the final stage"
    ports = {f"GATEWAY_{name}_PORT": str(free_port()) for name in ("HTTP", "OPS", "AMQP")}
    subprocess.run([*inside, "gateway", "migrate"], env=stage.environ, check=True)
    process = subprocess.Popen([*inside, "gateway", "serve"], env={**stage.environ, **ports})
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
    base = Path(sys.argv[1])
    folder = base.with_name(f"{base.name}-stages")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    put_python(base)
    try_it(build(base, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
