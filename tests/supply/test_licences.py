"""Every locked package has a licence that we take, and the page says which."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from tests.supply.scripts import ROOT, licences
from tests.test_docs import generate

PAGE = (ROOT / "docs" / "project" / "licences.md").read_text(encoding="utf-8")
ROWS = licences.rows()


def test_no_locked_package_is_missing() -> None:
    locked = {package["name"] for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    assert {row.name for row in ROWS} == locked - {"amqp-gateway"}
    for row in ROWS:
        assert f"| `{row.name}` | {row.licence} |" in PAGE, "run: make licences"


def test_the_table_is_as_it_would_be_written_now() -> None:
    assert generate.render(PAGE) == PAGE, "run: make docs"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_its_licence_is_one_that_we_take(row: licences.Row) -> None:  # type: ignore[name-defined]
    assert row.taken, row.licence
    if row.name in licences.TOGETHER:
        assert row.licence == licences.TOGETHER[row.name][0], "the reason is for another licence"


def test_nothing_is_said_of_packages_that_are_not_locked() -> None:
    names = {row.name for row in ROWS}
    for table in (licences.TOGETHER, licences.STATED, licences.BUNDLED):
        assert table.keys() <= names


def test_nobody_gets_what_is_only_taken_for_tests() -> None:
    for row in ROWS:
        if row.name in licences.TOGETHER and "given to nobody" in licences.TOGETHER[row.name][1]:
            assert not row.given, row.name


@pytest.mark.parametrize("name", licences.STATED)
def test_what_is_stated_is_not_what_metadata_deny(name: str) -> None:
    try:
        said = metadata.metadata(name).get("License-Expression")
    except metadata.PackageNotFoundError:
        return  # it is stated because it is not installed everywhere
    assert said is None or set(said.split(" OR ")) == set(licences.STATED[name].split(" OR "))


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("GPL-2.0-only OR MIT AND GPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-only OR Apache-2.0 AND MIT", True),
        ("", False),
    ],
)
def test_what_an_expression_allows(expression: str, allowed: bool) -> None:
    assert licences.allows(expression, licences.TAKEN) is allowed


def test_a_licence_by_name_is_for_that_package_alone() -> None:
    assert licences.Row("certifi", ("1",), "MPL-2.0", ("service",)).taken
    assert not licences.Row("anyio", ("1",), "MPL-2.0", ("service",)).taken
    assert not licences.Row("certifi", ("1",), "GPL-3.0-only", ("service",)).taken


def test_who_uses_a_package() -> None:
    used_by = {row.name: row.used_by for row in ROWS}
    assert used_by["psycopg-binary"] == ("service",), "an extra of a dependency counts"
    assert used_by["markupsafe"] == ("service",), "so does what alembic's mako needs"
    assert set(used_by["pyarrow"]) == {"arrow", "spark"}
    assert used_by["pytest"] == used_by["hatchling"] == ("tests",)


def test_a_package_that_says_nothing_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(licences, "STATED", {})
    with pytest.raises(licences.Unknown, match="py4j says 'BSD License': put it into SPELLED or STATED"):
        licences.licence_of("py4j")
    with pytest.raises(licences.Unknown, match="no-such-package is not installed"):
        licences.licence_of("no-such-package")


def test_the_texts_are_those_of_what_is_given_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert licences.main(["--texts", str(tmp_path / "licences.txt")]) == 0
    text = (tmp_path / "licences.txt").read_text(encoding="utf-8")
    heads = re.findall(r"^=+\n(\S+) \S.*: .*\n=+$", text, re.MULTILINE)
    assert heads == [row.name for row in ROWS if row.given]
    assert "GNU LESSER GENERAL PUBLIC LICENSE" in text
    assert f"{len(ROWS)} packages, 0 refused" in capsys.readouterr().err


def test_a_licence_that_is_not_taken_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(licences, "TOGETHER", {})
    assert licences.main([]) == 1
    assert "psycopg: LGPL-3.0-only is not taken" in capsys.readouterr().err
    monkeypatch.setattr(licences, "STATED", {})
    assert licences.main([]) == 2


def test_the_page_names_every_jar_of_spark() -> None:
    sums = (ROOT / "deploy" / "spark" / "delta" / "SHA256SUMS").read_text(encoding="utf-8")
    for jar in re.findall(r"^[0-9a-f]{64}  (\S+)-[0-9.]+\.jar$", sums, re.MULTILINE):
        assert f"`{jar}`" in PAGE


def test_our_own_licence() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert text.split()[:5] == ["Apache", "License", "Version", "2.0,", "January"]
    assert "END OF TERMS AND CONDITIONS" in text
    assert "http://www.apache.org/licenses/LICENSE-2.0" in text
