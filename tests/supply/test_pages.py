"""What the pages for contributors, reporters and releases name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.supply.scripts import ROOT, release

PAGES = [
    ROOT / "SECURITY.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "project" / "release.md",
    ROOT / "docs" / "project" / "licences.md",
]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):.*##", MAKEFILE, re.MULTILINE))


def texts() -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in PAGES}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_its_links_and_files_are_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", text):
        page = path.parent / target if target else path
        assert page.exists(), target
        if anchor:
            heads = {re.sub(r"[^a-z0-9 -]", "", head.lower()).replace(" ", "-")
                     for head in re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)}  # fmt: skip
            assert anchor in heads, f"{target}#{anchor}"
    for name in re.findall(r"`((?:deploy|docs|gateway|tests|\.github)/[A-Za-z0-9_./-]*)`", text):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_its_commands_are_there(path: Path) -> None:
    for words in re.findall(r"`?make ((?:[a-z-]+ ?)+)", path.read_text(encoding="utf-8")):
        (first, *_) = words.split()
        if (
            f"make {first}" in path.read_text(encoding="utf-8").replace("`", " ")
            and f"`make {first}" in path.read_text()
        ):
            assert first in TARGETS, first


def test_every_command_is_phony() -> None:
    phony = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split())  # type: ignore[index]
    assert phony >= TARGETS


def test_a_reporter_gets_an_answer_in_72_hours_and_needs_no_address() -> None:
    text = texts()["SECURITY.md"]
    assert "| within 72 hours |" in text
    assert "Report a vulnerability" in text
    assert not re.search(r"\S+@\S+\.\w+", text), "nobody is named"


def test_the_procedure_names_every_file_with_a_version() -> None:
    text = texts()["release.md"]
    for name in release.VERSIONED:
        assert name in text or str(Path(name).parent) in text, name
    for step in ("packages", "requirements", "licences", "sbom", "digests"):
        assert step in release.STEPS
    assert release.SBOM in text


def test_no_page_names_a_person() -> None:
    for name, text in texts().items():
        assert not re.search(r"[A-Za-z0-9._]+@[A-Za-z0-9-]+\.[a-z]{2,}", text), name
