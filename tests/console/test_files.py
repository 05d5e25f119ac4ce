"""The files of the console: what is vendored is unchanged and may be given on, and all of it is small."""

from __future__ import annotations

import gzip
import re
import tomllib
from hashlib import sha256

import pytest

from gateway.api.about.console import FOLDER, files
from tests.supply.scripts import licences

VENDORED = tomllib.loads((FOLDER / "vendored.toml").read_text(encoding="utf-8"))["files"]
OWN = sorted(path for path in FOLDER.glob("*.*") if path.suffix in (".js", ".html", ".css"))
SIZE_MAX = 200_000
"""Most bytes of all files together, compressed."""


def test_every_vendored_file_is_listed() -> None:
    there = {path.name for path in (FOLDER / "vendor").iterdir() if not path.name.startswith("LICENSE.")}
    assert there == {each["name"] for each in VENDORED}


@pytest.mark.parametrize("each", VENDORED, ids=lambda each: each["name"])
def test_a_vendored_file_is_unchanged_and_has_a_license(each: dict[str, str]) -> None:
    content = (FOLDER / "vendor" / each["name"]).read_bytes()
    assert sha256(content).hexdigest() == each["sha256"]
    assert licences.allows(each["license"], licences.TAKEN)
    assert (FOLDER / "vendor" / each["license_file"]).read_text(encoding="utf-8").strip()


def test_all_files_together_are_small() -> None:
    sizes = {name: len(gzip.compress(file.content, 9)) for name, file in files().items()}
    assert sum(sizes.values()) <= SIZE_MAX, sizes


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_the_projects_own_files_name_no_host_and_make_no_html(path: object) -> None:
    text = path.read_text(encoding="utf-8")  # type: ignore[attr-defined]
    assert not re.findall(r"https?://(?!www\.w3\.org/)", text)
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "dangerouslySetInnerHTML", "document.write", "eval("):
        assert word not in text


def test_the_page_names_every_file_that_it_needs() -> None:
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    named = set(re.findall(r'"/console/([^"]+)"', page))
    modules = {path.name for path in OWN if path.suffix == ".js"}
    imported = {name for path in OWN for name in re.findall(r'from "\./([^"]+)"', path.read_text(encoding="utf-8"))}
    assert named <= set(files())
    assert imported <= modules
    assert modules == imported | {"console.js"}
    assert modules == set(re.findall(r'rel="modulepreload" href="/console/([^"]+)"', page)), "all are fetched at once"


def test_every_word_of_the_catalog_is_used() -> None:
    catalog = (FOLDER / "text.js").read_text(encoding="utf-8")
    code = "".join(path.read_text(encoding="utf-8") for path in OWN if path.name != "text.js")
    # Names of the first two levels; views look up the others by names of the API.
    for name in re.findall(r"^  (\w+):", catalog, re.MULTILINE):
        assert re.search(rf"text\.{name}\b", code), name
