"""What is installed is what the lock says, by the digest of each file, from one index; and so is what builds."""

from __future__ import annotations

import re
import subprocess
import tomllib
from typing import Any

import pytest

from tests.supply.scripts import ROOT, audit, licences, release

LOCK: dict[str, Any] = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DOCKERFILES = [ROOT / "deploy" / "Dockerfile", ROOT / "deploy" / "spark" / "Dockerfile"]


def export(*arguments: str) -> str:
    """What uv makes of the lock; it asks nobody."""
    command = [str(release.UV), "export", "--quiet", "--frozen", "--offline", "--no-emit-project", "--no-header"]
    done = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def pinned(requirements: str) -> dict[str, str]:
    """Name -> version of requirements with digests; each must have one."""
    found = {}
    for text in re.split(r"\n(?=\S)", re.sub(r"^\s*#.*\n?", "", requirements, flags=re.MULTILINE).strip()):
        match = re.match(r"([a-z0-9.-]+)==(\S+)", text)
        assert match is not None, text
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", text), text
        found[match[1]] = match[2]
    return found


def test_every_file_has_a_digest_and_comes_from_one_index() -> None:
    for package in LOCK["package"]:
        if package["name"] == "amqp-gateway":
            assert package["source"] == {"editable": "."}
            continue
        assert package["source"] == {"registry": "https://pypi.org/simple"}, package["name"]
        files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else [])]
        assert files, package["name"]
        for file in files:
            assert re.fullmatch(r"sha256:[0-9a-f]{64}", file["hash"]), file["url"]
            assert file["url"].startswith("https://files.pythonhosted.org/packages/"), file["url"]


def test_the_service_is_built_of_wheels() -> None:
    packages = licences.lock()
    for part in ("service", "arrow"):
        assert [name for name in licences.parts()[part] if not all(each.get("wheels") for each in packages[name])] == []


def test_the_hashed_requirements_are_the_whole_of_it() -> None:
    assert pinned(export("--no-dev")).keys() >= licences.parts()["service"] - {"tzdata", "typing-extensions"}
    with_spark = pinned(export("--no-dev", "--extra", "spark"))
    assert {"pyspark", "py4j", "pandas"} <= with_spark.keys()


def test_what_installs_the_rest_is_the_locked_one() -> None:
    written = (ROOT / "deploy" / "uv.txt").read_text(encoding="utf-8")
    assert written == export("--only-group", "bootstrap", "--no-annotate"), "run: make lock"
    assert list(pinned(written)) == ["uv"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "--require-hashes --requirement deploy/uv.txt" in makefile
    for path in DOCKERFILES:
        assert "pip install --no-cache-dir --require-hashes --requirement uv.txt" in path.read_text(encoding="utf-8")


def test_what_builds_is_locked_and_stays_out_of_what_runs() -> None:
    tools = pinned(export("--only-group", "build"))
    constraints = dict(text.split("==") for text in PROJECT["tool"]["uv"]["build-constraint-dependencies"])
    assert constraints == {name: tools[name] for name in constraints}
    assert set(PROJECT["build-system"]["requires"]) <= constraints.keys()
    for part in ("service", "arrow", "spark"):
        assert not tools.keys() & licences.parts()[part], "the image of Spark removes the tools again"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_images_take_nothing_that_is_not_locked(path: Any) -> None:
    text = re.sub(r"^#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    commands = re.findall(r"\b(?:pip install|uv sync|uv export|uv pip install)\b[^&\n\\]*", text)
    assert len(commands) >= 4
    for command in commands:
        assert any(word in command for word in ("--require-hashes", "--locked", "--no-index")), command


# ------------------------------------------------------------------------------------------------------ release


def test_all_names_one_version() -> None:
    found = {version.removesuffix(" (unreleased)") for _, version in release.versions()}
    assert len(found) == 1, dict(release.versions())


def test_a_release_that_is_not_ready_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["check", "v99.0.0"]) == 1
    assert "says" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        release.main(["check"])
    with pytest.raises(SystemExit):
        release.main(["everything"])


def test_a_change_log_without_a_release_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        release, "VERSIONED", {"CHANGELOG.md": r"\A(?:[^#]|#[^#])*?^## (\d.*)$", "Makefile": r"^v(\d)$"}
    )
    with pytest.raises(release.ReleaseFailed, match="Makefile names no version"):
        list(release.versions())


def test_the_sbom_has_the_digests_of_the_lock() -> None:
    (click,) = (package for package in LOCK["package"] if package["name"] == "click")
    document = {"components": [{"name": "Click", "version": click["version"], "externalReferences": [{"type": "vcs"}]}]}
    release.add_digests(document)
    first, *files = document["components"][0]["externalReferences"]
    assert first == {"type": "vcs"}
    assert {file["hashes"][0]["content"] for file in files} == {
        file["hash"].removeprefix("sha256:") for file in (*click["wheels"], click["sdist"])
    }
    with pytest.raises(release.ReleaseFailed, match=r"click 0 is not in uv\.lock"):
        release.add_digests({"components": [{"name": "click", "version": "0"}]})


# -------------------------------------------------------------------------------------------------- weaknesses

WEAK = {
    "name": "starlette",
    "version": "0.36.0",
    "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-2024-47874"], "fix_versions": ["0.40.0"]}],
}


@pytest.mark.parametrize(
    ("known", "locked", "status", "said"),
    [
        ([WEAK], [{"name": "click", "version": "8", "vulns": []}], 0, "1 packages, 0 weaknesses"),
        ([WEAK], [WEAK], 1, "1 packages, 1 weaknesses"),
        ([{"name": "starlette", "version": "0.36.0", "vulns": []}], [], 3, "nothing was learned"),
        ([{"name": "starlette", "skip_reason": "not found"}], [], 3, "nothing was learned"),
    ],
)
def test_an_index_that_knows_of_no_weakness_is_no_good_news(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    known: list[Any],
    locked: list[Any],
    status: int,
    said: str,
) -> None:
    monkeypatch.setattr(audit, "ask", lambda path: known if path.name == "known.txt" else locked)
    assert audit.main() == status
    captured = capsys.readouterr()
    assert said in captured.err
    assert ("CVE-2024-47874, fixed in 0.40.0" in captured.out) is (status == 1)


def test_a_weakness_that_is_harmless_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert audit.weaknesses([WEAK]) == ["starlette 0.36.0: PYSEC-1 CVE-2024-47874, fixed in 0.40.0"]
    monkeypatch.setattr(audit, "HARMLESS", {"CVE-2024-47874": "we read no forms"})
    assert audit.weaknesses([WEAK]) == []


def test_an_audit_that_cannot_ask_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(audit, "TOOLS", tmp_path)
    assert audit.main() == 2
