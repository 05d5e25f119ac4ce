"""The language check finds what it is for, in what a change adds, and nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import language
from tests.language import check

LONG = " ".join(["word"] * 40)


def found(file: str, content: str, lines: set[int] | None = None) -> list[tuple[int, str]]:
    every = set(range(1, content.count("\n") + 2))
    return [(each.line, each.what) for each in check(file, content, every if lines is None else lines)]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("The list of publishes of later.", '"of later"'),
        ("It writes the file anew.", '"anew"'),
        ("The host is none.", '"is none"'),
        ("Whoever asks is answered.", '"Whoever"'),
        ("The caller is told why.", '"is told"'),
        ("The behaviour is the same.", '"behaviour"'),
        ("It is looked for once a second.", '"It is looked for"'),
    ],
)
def test_turns(words: str, what: str) -> None:
    assert found("docs/a.md", words) == [(1, what)]
    assert found("gateway/a.py", f'"""{words}"""\n') == [(1, what)]
    assert found("gateway/a.py", f"# {words}\n") == [(1, what)]
    assert found("gateway/a.py", f'raise ValueError("{words}")\n') == [(1, what)]
    assert found("gateway/a.py", f'raise ValueError(f"{{x}} {words}")\n') == [(1, what)]
    assert found("deploy/a.sh", f"#!/bin/sh\n# {words}\n") == [(2, what)]


def test_every_turn_says_what_to_write_instead() -> None:
    assert all(instead for _, instead in language.TURNS)
    (one,) = check("docs/a.md", "It starts anew.", {1})
    assert str(one) == 'docs/a.md:1: "anew": write again'


@pytest.mark.parametrize(
    "words",
    ["The gateway sends it again.", "`of later` is code.", "```\nanew\n```", "    anew", "A value is None."],
)
def test_what_is_fine(words: str) -> None:
    assert found("docs/a.md", words) == []


def test_strings_of_tests_are_data() -> None:
    assert found("tests/test_a.py", 'WORDS = "It starts it anew."\n') == []
    assert found("tests/test_a.py", '"""It starts it anew."""\n') == [(1, '"anew"')]


def test_diagrams_of_docstrings_are_no_prose() -> None:
    text = f'"""The files::\n\n    a.py  it starts anew\n    b.py  {LONG}\n\nIt starts anew."""\n'
    assert found("gateway/a.py", text) == [(6, '"anew"')]


def test_long_sentences() -> None:
    assert found("docs/a.md", f"Short one. {LONG}.\nAnother.") == [(1, "a sentence of 40 words")]
    assert found("docs/a.md", f"{LONG[:80]}.\n{LONG[:80]}.") == []
    assert found("docs/a.md", "* " + "\n* ".join([LONG[:80]] * 3)) == []
    assert found("docs/a.md", f"| {LONG[:120]} | {LONG[:120]} |") == []
    assert found("gateway/a.py", f'"""First.\n\n{LONG[:99]}\n{LONG[:99]}\n"""\n') == [(3, "a sentence of 40 words")]


def test_only_lines_of_the_change_count() -> None:
    content = "It starts anew.\n\nIt stops anew.\n"
    assert found("docs/a.md", content, {3}) == [(3, '"anew"')]
    assert found("docs/a.md", content, {2}) == []


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(language, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    commit(tmp_path, "It was anew here before.\n")
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path, content: str) -> None:
    (folder / "a.md").write_text(content, encoding="utf-8")
    git(folder, "add", "a.md")
    git(folder, "commit", "--quiet", "--message=x")


def test_a_change_is_compared_with_what_was_before(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert language.main([]) == 0
    assert "no earlier commit" in capsys.readouterr().out, "as in a clone of one commit"
    commit(repository, "It was anew here before.\nFine.\n")
    assert language.main([]) == 0
    assert capsys.readouterr().out.startswith("0 findings in 1 changed files since ")
    (repository / "b.md").write_text("It starts anew.\n", encoding="utf-8")
    assert language.main([]) == 1
    assert capsys.readouterr().out.startswith('b.md:1: "anew": write again\n1 findings in 2 changed files since ')
    git(repository, "switch", "--quiet", "--create", "topic")
    commit(repository, "It is whoever.\nFine.\n")
    commit(repository, "It is whoever.\nFine.\nGood.\n")
    (repository / "b.md").unlink()
    assert language.main([]) == 1, "the whole branch counts, not its last commit alone"
    assert 'a.md:1: "whoever"' in capsys.readouterr().out
    assert language.main(["--base", "nothing"]) == 2
    assert "is no commit" in capsys.readouterr().err
