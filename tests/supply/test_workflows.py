"""The workflows: what they may do, what they run, and that nothing in them can be changed by somebody else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.supply.scripts import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
GRANTED = {
    ("release.yml", "files"): {"contents": "read", "id-token": "write", "attestations": "write"},
    ("release.yml", "image"): {
        "contents": "read",
        "packages": "write",
        "id-token": "write",
        "attestations": "write",
    },
    ("release.yml", "publish"): {"contents": "write"},
    ("release.yml", "index"): {"contents": "read", "id-token": "write"},
}
"""Workflow, job -> what it may, where that is more than to read the sources."""
ACTIONS = {
    "actions/attest",
    "actions/checkout",
    "actions/download-artifact",
    "actions/setup-go",
    "actions/setup-python",
    "actions/upload-artifact",
    "anchore/scan-action",
    "sigstore/cosign-installer",
}
"""Whose code runs."""


def read(path: Path) -> dict[str, Any]:
    """A workflow; ``on`` is a boolean to YAML 1.1."""
    found: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    found["on"] = found.pop(True)
    return found


FOUND = {path.name: read(path) for path in WORKFLOWS}


def jobs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, workflow in FOUND.items():
        for job, what in workflow["jobs"].items():
            yield name, job, what


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, job, what in jobs():
        for step in what.get("steps", ()):
            yield f"{name} {job}", step


def test_there_are_two() -> None:
    assert list(FOUND) == ["ci.yml", "release.yml"]


def test_rights_are_given_by_job_and_are_few() -> None:
    for name, workflow in FOUND.items():
        assert workflow["permissions"] == {"contents": "read"}, name
    for name, job, what in jobs():
        assert what.get("permissions", {"contents": "read"}) == GRANTED.get((name, job), {"contents": "read"}), job


def test_actions_are_named_by_their_commit() -> None:
    seen = {}
    for path in WORKFLOWS:
        for line in path.read_text(encoding="utf-8").splitlines():
            if (match := re.search(r"\buses: (\S+)(.*)", line)) is None or match[1].startswith("./"):
                continue
            pinned = re.fullmatch(r"([a-z-]+/[a-z-]+)@([0-9a-f]{40})", match[1])
            assert pinned is not None, line
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", match[2]), line
            assert seen.setdefault(pinned[1], (pinned[2], match[2])) == (pinned[2], match[2]), "one version of each"
    assert seen.keys() == ACTIONS


def test_nothing_of_a_pull_request_is_run_with_rights() -> None:
    assert set(FOUND["ci.yml"]["on"]) == {"push", "pull_request", "schedule", "workflow_call"}
    assert FOUND["release.yml"]["on"] == {"push": {"tags": ["v*"]}}
    for where, step in steps():
        assert "${{" not in step.get("run", ""), f"{where}: an expression in a script is a way in"
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False, where


def test_every_job_ends() -> None:
    for name, job, what in jobs():
        if "uses" not in what:
            assert 0 < what["timeout-minutes"] <= 90, f"{name} {job}"
            assert what["runs-on"] == "ubuntu-24.04"


def test_jobs_wait_for_jobs_that_there_are() -> None:
    for name, job, what in jobs():
        needs = what.get("needs", [])
        for each in [needs] if isinstance(needs, str) else needs:
            assert each in FOUND[name]["jobs"], f"{name} {job}"
    release = FOUND["release.yml"]["jobs"]
    assert release["ci"]["uses"] == "./.github/workflows/ci.yml"
    assert (release["files"]["needs"], release["image"]["needs"]) == ("ci", "files"), (
        "nothing is made before all is checked"
    )
    assert release["publish"]["environment"] == "release"


def test_what_they_run_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", MAKEFILE, re.MULTILINE))
    ran: set[str] = set()
    for where, step in steps():
        script = step.get("run", "")
        for line in re.findall(r"^make (.*)$", script, re.MULTILINE):
            ran |= set(line.split())
        for name in re.findall(r"(?<![\w/.])((?:deploy|tests)/[\w./-]+)", script):
            assert (ROOT / name).exists(), f"{where}: {name}"
    assert ran <= targets
    wanted = {
        "test",
        "test-spark",
        "test-deploy",
        "test-supply",
        "check",
        "licences",
        "sbom",
        "audit",
    }
    assert ran == wanted | {"release-files"}


def test_pythons_are_those_of_the_package() -> None:
    least = re.search(r'^requires-python = ">=([0-9.]+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert least is not None
    assert FOUND["ci.yml"]["jobs"]["test"]["strategy"]["matrix"]["python"][0] == least[1]


def test_every_place_with_versions_is_watched() -> None:
    found = yaml.safe_load((GITHUB / "dependabot.yml").read_text(encoding="utf-8"))
    watched: dict[str, set[str]] = {}
    for each in found["updates"]:
        places = each.get("directories") or [each["directory"]]
        watched.setdefault(each["package-ecosystem"], set()).update(places)
        assert each["schedule"] == {"interval": "weekly"}
        assert each["cooldown"] == {"default-days": 7}
    files = {"docker": "Dockerfile", "maven": "pom.xml", "docker-compose": "compose.yaml", "uv": "uv.lock"}
    for ecosystem, name in files.items():
        there = {
            "/" + str(path.parent.relative_to(ROOT)).removeprefix(".")
            for top in ("deploy", "tests")
            for path in (ROOT / top).rglob(name)
            if "benchmarks" not in path.parts
        }
        assert watched[ecosystem] == (there if ecosystem != "uv" else {"/"}), ecosystem
    assert watched["github-actions"] == {"/"}


@pytest.mark.parametrize("name", ["SECURITY.md", "CONTRIBUTING.md", "LICENSE", "CHANGELOG.md"])
def test_what_visitors_look_for_is_there(name: str) -> None:
    assert (ROOT / name).is_file()
