"""The files of a release, in ``dist/``: ``python deploy/supply/release.py all``, or some of :data:`STEPS`.

They are made from ``uv.lock`` alone: what is built is built with locked tools by their digests, the requirements carry
the digest of each file, the SBOM lists what an environment holds that was installed from the lock, with these digests.
The same commit makes the same files, octet for octet: times are those of the commit.

``check TAG`` makes nothing: it fails where the tag, the package, the chart, the images and the change log do not name
one version.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
DIST = ROOT / "dist"
UV = Path(sys.executable).with_name("uv")
TOOLS = Path(os.environ.get("GATEWAY_TOOLS") or Path.home() / ".cache" / "gateway-tools")
SBOM = "sbom.cdx.json"
VALIDATES = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
sys.exit(f"the SBOM is not valid: {wrong}" if wrong else 0)
"""

VERSIONED: Mapping[str, str] = {
    "pyproject.toml": r'^version = "([^"]+)"$',
    "gateway/__init__.py": r'^__version__ = "([^"]+)"$',
    "deploy/helm/amqp-gateway/Chart.yaml": r"^(?:version|appVersion): (\S+)$",
    "deploy/compose/compose.yaml": r"^  image: amqp-gateway:(\S+)$",
    "deploy/spark/kubernetes/archive.yaml": r"^  image: amqp-gateway-spark:(\S+)$",
    "CHANGELOG.md": r"\A(?:[^#]|#[^#])*?^## (\d.*)$",
}
"""File -> where it names the version; the change log: in its first heading, with nothing behind it."""


class ReleaseFailed(Exception):
    """What is wrong, in a sentence."""


def run(*command: str | Path, environ: Mapping[str, str] | None = None, said: str | None = None) -> None:
    """Run a command in the root of the project.

    Raises:
        ReleaseFailed: it failed.
    """
    epoch = {"SOURCE_DATE_EPOCH": commit_time(), "UV_SYSTEM_CERTS": "1"}
    words = [str(word) for word in command]
    done = subprocess.run(  # noqa: S603  # our own commands
        words, cwd=ROOT, env={**os.environ, **epoch, **(environ or {})}, input=said, text=True, check=False
    )
    if done.returncode:
        raise ReleaseFailed(f"{' '.join(words[:3])} … ended with {done.returncode}")


def commit_time() -> str:
    """When the commit was made, in seconds since 1970."""
    command = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip() or "946684800"


def export(target: Path, *what: str) -> None:
    """Requirements with digests, as the lock has them."""
    run(UV, "export", "--quiet", "--locked", "--no-emit-project", "--no-header", *what, "--output-file", target)


# ------------------------------------------------------------------------------------------------------- steps


def packages() -> None:
    """Wheel and sources of our own package, and the wheel of its command line alone."""
    with tempfile.TemporaryDirectory() as folder:
        tools = Path(folder) / "build.txt"
        export(tools, "--only-group", "build")
        build = (UV, "build", "--quiet", "--out-dir", DIST, "--build-constraints", tools, "--require-hashes")
        run(*build)
        run(*build, "--wheel", "deploy/cli")
    (DIST / ".gitignore").unlink(missing_ok=True)


def requirements() -> None:
    """What ``pip install --require-hashes`` takes: of the service, and of each extra."""
    export(DIST / "requirements.txt", "--no-dev")
    for extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]:
        export(DIST / f"requirements-{extra}.txt", "--no-dev", "--extra", extra)


def licences() -> None:
    """The licences' texts of all that is given away."""
    run(sys.executable, "deploy/supply/licences.py", "--texts", DIST / "licences.txt")


def sbom() -> None:
    """What the service is made of, as CycloneDX 1.6.

    Raises:
        ReleaseFailed: cyclonedx-bom is not there, or what it wrote is not what the lock says.
    """
    program = TOOLS / "sbom" / "bin" / "cyclonedx-py"
    if not program.exists():
        raise ReleaseFailed(f"there is no {program}: run tests/supply/install.sh sbom")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "service"
        environ = {"UV_PROJECT_ENVIRONMENT": str(place), "UV_PYTHON": sys.executable}
        run(UV, "sync", "--quiet", "--locked", "--no-dev", "--no-install-project", "--no-build", environ=environ)
        made = Path(folder) / SBOM
        run(
            program, "environment", "--pyproject", "pyproject.toml", "--spec-version", "1.6", "--output-reproducible",
            "--output-file", made, place / "bin" / "python",
        )  # fmt: skip
        document = json.loads(made.read_text(encoding="utf-8"))
    add_digests(document)
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    run(program.with_name("python"), "-c", VALIDATES, said=text)
    (DIST / SBOM).write_text(text, encoding="utf-8")


def add_digests(document: dict[str, Any]) -> None:
    """Where each component's files are, and their digests, from the lock.

    Raises:
        ReleaseFailed: a component is not in the lock.
    """
    locked = {
        (package["name"], package["version"]): [*package.get("wheels", ()), *filter(None, [package.get("sdist")])]
        for package in tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    }
    for component in document["components"]:
        name = re.sub(r"[-_.]+", "-", component["name"]).lower()
        if (files := locked.get((name, component["version"]))) is None:
            raise ReleaseFailed(f"{component['name']} {component['version']} is not in uv.lock")
        component["externalReferences"] = [
            *(each for each in component.get("externalReferences", ()) if each["type"] != "distribution"),
            *(
                {
                    "type": "distribution",
                    "url": file["url"],
                    "hashes": [{"alg": "SHA-256", "content": file["hash"].removeprefix("sha256:")}],
                }
                for file in files
            ),
        ]


def digests() -> None:
    """``SHA256SUMS`` over everything else."""
    files = sorted(path for path in DIST.iterdir() if path.is_file() and path.name != "SHA256SUMS")
    lines = (f"{sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (DIST / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


STEPS: Mapping[str, Callable[[], None]] = {
    "packages": packages,
    "requirements": requirements,
    "licences": licences,
    "sbom": sbom,
    "digests": digests,
}
"""Name -> what makes it, in order."""


# ------------------------------------------------------------------------------------------------------ version


def versions() -> Iterator[tuple[str, str]]:
    """File and version, for every place that names one.

    Raises:
        ReleaseFailed: a file names none.
    """
    for name, pattern in VERSIONED.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        found = re.findall(pattern, text, re.MULTILINE)
        if not found:
            raise ReleaseFailed(f"{name} names no version")
        yield from ((name, version) for version in found)


def check(tag: str) -> None:
    """Whether all names one version.

    Raises:
        ReleaseFailed: a file names another one than the tag, which is ``v`` and the version.
    """
    for name, version in versions():
        if f"v{version}" != tag:
            raise ReleaseFailed(f"{name} says {version}, the tag {tag}")


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Make the files of a release.")
    parser.add_argument("steps", nargs="+", metavar="STEP", help=f"all, {', '.join(STEPS)}; or: check TAG")
    words = parser.parse_args(arguments).steps
    if unknown := [word for word in words if word not in STEPS and word != "all" and words[0] != "check"]:
        parser.error(f"there is no step {unknown[0]!r}")
    if words[0] == "check" and len(words) != 2:
        parser.error("check takes a tag")
    try:
        if words[0] == "check":
            check(words[1])
            return 0
        DIST.mkdir(exist_ok=True)
        for step in STEPS if "all" in words else words:
            sys.stderr.write(f"release.py: {step}\n")
            STEPS[step]()
    except ReleaseFailed as error:
        sys.stderr.write(f"release.py: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
