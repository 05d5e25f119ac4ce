"""Tools that are not ours on workflows, scripts and the SBOM; ``tests/supply/install.sh`` installs them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.helm import TOOLS
from tests.supply.scripts import ROOT, licences, release

WORKFLOWS = sorted(str(path) for path in (ROOT / ".github" / "workflows").glob("*.yml"))
SCRIPTS = sorted(str(path.relative_to(ROOT)) for top in ("deploy", "tests") for path in (ROOT / top).rglob("*.sh"))
SHELLCHECK = str(TOOLS / "bin" / "shellcheck")
SCHEMAS = TOOLS / "schemas" / "bin" / "check-jsonschema"
WRONG = """
on: pull_request
jobs:
  one:
    runs-on: ubuntu-24.04
    steps:
      - uses: actions/checkout@v4
      - run: echo ${{ github.event.pull_request.title }}
"""


def ask(*command: str | Path) -> tuple[int, str]:
    """Status, and all that it says."""
    done = subprocess.run(
        [str(word) for word in command], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_actionlint() -> None:
    assert ask(TOOLS / "bin" / "actionlint", "-shellcheck", SHELLCHECK, *WORKFLOWS) == (0, "")


def test_zizmor() -> None:
    status, said = ask(TOOLS / "zizmor" / "bin" / "zizmor", "--offline", "--quiet", ".github")
    assert status == 0, said


@pytest.mark.parametrize(
    ("schema", "files"), [("github-workflows", WORKFLOWS), ("dependabot", [".github/dependabot.yml"])]
)
def test_schemas(schema: str, files: list[str]) -> None:
    status, said = ask(SCHEMAS, "--builtin-schema", f"vendor.{schema}", *files)
    assert status == 0, said


def test_what_is_wrong_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / ".github" / "workflows" / "wrong.yml"
    path.parent.mkdir(parents=True)
    path.write_text(WRONG, encoding="utf-8")
    status, said = ask(TOOLS / "zizmor" / "bin" / "zizmor", "--offline", "--quiet", tmp_path / ".github")
    assert status != 0
    assert {"template-injection", "unpinned-uses"} <= set(re.findall(r"\w+\[([a-z-]+)\]", said))
    assert ask(TOOLS / "bin" / "actionlint", path)[0] == 1
    path.write_text(WRONG.replace("steps:", "stepps:"), encoding="utf-8")
    assert ask(SCHEMAS, "--builtin-schema", "vendor.github-workflows", path)[0] == 1


@pytest.mark.parametrize("script", SCRIPTS)
def test_shellcheck(script: str) -> None:
    assert ask(SHELLCHECK, "--external-sources", script) == (0, "")


@pytest.fixture(scope="module")
def made() -> Path:
    """The SBOM, made now."""
    status, said = ask(sys.executable, "deploy/supply/release.py", "sbom")
    assert status == 0, said
    path: Path = release.DIST / release.SBOM
    return path


def test_the_sbom_is_what_the_lock_says(made: Path) -> None:
    document = json.loads(made.read_text(encoding="utf-8"))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["component"]["name"] == "amqp-gateway"
    found = {re.sub(r"[-_.]+", "-", each["name"]).lower(): each for each in document["components"]}
    service = licences.parts()["service"]
    assert found.keys() <= service
    assert service - found.keys() <= {"tzdata", "typing-extensions", "colorama"}, "what only other systems need"
    for name, component in found.items():
        assert component["purl"].startswith(f"pkg:pypi/{name}@"), name
        assert component["licenses"] or name in licences.STATED, name
        files = [each for each in component["externalReferences"] if each["type"] == "distribution"]
        assert files, name
    text = made.read_text(encoding="utf-8")
    assert not re.search(r"(file:|/tmp/|/root/|/home/)", text), "nothing of the machine that made it"


def test_the_sbom_is_the_same_each_time(made: Path) -> None:
    before = made.read_bytes()
    assert ask(sys.executable, "deploy/supply/release.py", "sbom")[0] == 0
    assert made.read_bytes() == before
