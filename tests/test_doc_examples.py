"""Every command and every example of every page: run by a test, or in the list of those that are not, with the reason.

The list is in ``docs/project/testing.md``. What is not run is read at least: commands of ``gateway`` must parse, and
JSON and YAML must be that.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from gateway.commands import VERBS, Noun, cli
from tests import pages
from tests.test_docs import generate

ROOT = Path(__file__).resolve().parent.parent
NOT_READ = {"CHANGELOG.md", "RELIABILITY.md"}
"""The first has no examples; a program writes the second."""
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "gateway").glob("*.md"), *(ROOT / "docs").rglob("*.md"),
                        *(ROOT / "deploy").rglob("*.md")])
    if path.name not in NOT_READ
}  # fmt: skip
WRITTEN = re.compile(r"<!-- output of make bench -->\n\n```.*?```\n", re.DOTALL)
VERIFIED = re.compile(r"<!-- verify: \w+ -->\n\n```.*?```\n", re.DOTALL)
"""tests/webhooks/test_snippets.py runs those of the page of signatures."""
BLOCK = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(gateway [a-z][^`\n]*)`")
RUN = {"console": "tests/commands/test_pages.py", "toml": "tests/test_docs.py"}
"""Language -> where all blocks of it are run, or read as a configuration."""
GUIDES = {"docs/how-to/rotate.md", "docs/how-to/upgrade.md"}
"""Pages of which tests/commands/test_guides.py runs every block."""
SHOWN = {"text", "json"}
"""Languages of what is a drawing, an output or a body: it cannot be run."""
EXAMPLES = {path.read_text(encoding="utf-8").strip() for path in (ROOT / "docs" / "examples").rglob("*.*")}
"""Programs that tests/examples runs; pages include them from there."""
COMMANDS = re.compile(rf"(gateway ({'|'.join(VERBS)})|curl|make|python|pip|docker|kubectl|helm|\.venv/bin/\w+) ")


def prose(path: Path) -> str:
    """A page without what programs write into it."""
    text = generate.BLOCK.sub("", path.read_text(encoding="utf-8"))
    return VERIFIED.sub("", WRITTEN.sub("", text))


def blocks(name: str) -> list[tuple[str, str]]:
    """Language and text of every block of a page that nothing runs."""
    found = [(language, text) for _, language, text in BLOCK.findall(prose(PAGES[name]))]
    return [(language, text) for language, text in found if language not in RUN and text.strip() not in EXAMPLES]


def words_of(line: str) -> list[str]:
    """A command as a shell reads it, up to a pipe, a redirection or its description."""
    lexer = shlex.shlex(re.split(r" {2,}(?=[^'\"]*$)", line)[0], posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    return words[: next((at for at, word in enumerate(words) if word[0] in "|<>;&"), len(words))]


def commands_of(text: str) -> Iterator[str]:
    """The commands of ``gateway`` in a block."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        for part in line.split(" && "):
            if part.strip().removeprefix("$ ").startswith("gateway "):
                yield part.strip().removeprefix("$ ")


def found_in(name: str) -> list[str]:
    """The commands of ``gateway`` on a page that are not run."""
    return [command for language, text in blocks(name) if language != "text" for command in commands_of(text)]


def verb_of(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """The verb of a command by its present name, its context, and what is left of the words."""
    command: click.Command = cli
    context = click.Context(cli, info_name="gateway")
    while isinstance(command, click.Group):
        if isinstance(command, Noun):
            words = command.with_verb(context, words)
        if not words or not re.fullmatch("[a-z][a-z-]*", words[0]):
            break
        assert words[0] in command.list_commands(context), f"{context.command_path} has no {words[0]!r}"
        inner = command.get_command(context, words[0])
        assert inner is not None
        command, context, words = inner, click.Context(inner, info_name=words[0], parent=context), words[1:]
    return command, context, words


def listed() -> dict[str, int]:
    """The list of what is not run: page -> how many blocks. Each has a reason."""
    text = (ROOT / "docs" / "project" / "testing.md").read_text(encoding="utf-8")
    _, _, section = text.partition("\n## Examples that are not run\n")
    rows = re.findall(r"^\| \[[^]]+\]\(([^)]+)\) \| (\d+) \| (.+) \|$", section, re.MULTILINE)
    folder = ROOT / "docs" / "project"
    assert all(len(reason) > 10 for _, _, reason in rows)
    assert len({page for page, _, _ in rows}) == len(rows)
    return {(folder / page).resolve().relative_to(ROOT).as_posix(): int(count) for page, count, _ in rows}


def test_what_is_not_run_is_listed_with_the_reason() -> None:
    found = {name: sum(language not in SHOWN for language, _ in blocks(name)) for name in PAGES.keys() - GUIDES}
    assert {name: count for name, count in found.items() if count} == listed()


def test_every_page_with_commands_and_outputs_is_run() -> None:
    found = {name for name, path in PAGES.items() if "```console" in prose(path)}
    assert found == set(pages.names())


@pytest.mark.parametrize("name", [name for name in PAGES if blocks(name)])
def test_what_is_not_run_is_what_it_says(name: str) -> None:
    for language, text in blocks(name):
        if language == "json":
            json.loads(text)
        elif language == "yaml":
            yaml.safe_load(text)
        elif language == "text":
            assert not [line for line in text.splitlines() if COMMANDS.match(line)], "mark no commands as text"


@pytest.mark.parametrize("name", PAGES)
def test_no_code_is_indented_in_place_of_a_block(name: str) -> None:
    text = re.sub(r"^```.*?^```", "", PAGES[name].read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert not re.search(r"^    (\$ )?(gateway|curl|make) ", text, re.MULTILINE), "write a block"


@pytest.mark.parametrize("name", [name for name in PAGES if found_in(name)])
def test_commands_that_are_not_run_parse(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for line in found_in(name):
        words = words_of(line)[1:]
        for word in words:
            if re.fullmatch(r"[\w-]+\.(txt|sql|toml)", word):  # a file that must be there
                Path(word).touch()
        command, context, left = verb_of(words)
        assert not isinstance(command, click.Group), line
        command.make_context(command.name, left, parent=context.parent)


@pytest.mark.parametrize("name", PAGES)
def test_commands_in_sentences_have_verbs_and_options_that_there_are(name: str) -> None:
    for code in INLINE.findall(BLOCK.sub("", prose(PAGES[name]))):
        command, _, left = verb_of(code.split()[1:])
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        options = {found[0] for word in left if (found := re.match(r"--[a-z-]+", word.lstrip("[")))}
        assert command is cli or options <= known | {"--help"}, code


def test_a_broken_command_is_found() -> None:
    with pytest.raises(AssertionError, match="gateway has no 'replay'"):
        verb_of(words_of("gateway replay list")[1:])
    assert words_of("""gateway a --b 'x < 1' "c"  > f""") == ["gateway", "a", "--b", "x < 1", "c"]
    assert words_of("gateway a   what it does") == words_of("gateway a | b") == ["gateway", "a"]
