"""The pages of help: each has an example, and each example is a command that there is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gateway.commands import Noun, cli


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Every verb below a command, and its path."""
    if not isinstance(command, click.Group):
        yield context.command_path, command
        return
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        yield from commands(child, click.Context(child, info_name=name, parent=context))


ALL = dict(commands(cli, click.Context(cli, info_name="gateway")))


def examples(command: click.Command) -> list[list[str]]:
    """The arguments of its examples, up to a pipe or a redirection."""
    _, _, text = (command.help or "").partition("Example")
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
    found = [re.split(r" (?:[|><#]|&&) ?", line.partition("gateway ")[2])[0] for line in lines if "gateway " in line]
    return [shlex.split(line) for line in found]


@pytest.mark.parametrize("path", ALL)
def test_every_page_has_an_example_that_parses(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = examples(ALL[path])
    assert found, "add an Example to the help"
    for arguments in found:
        for each in arguments:
            if re.fullmatch(r"[\w-]+\.\w+", each):  # a file that must be there
                Path(each).touch()
        parse(arguments)


def parse(arguments: list[str]) -> None:
    """Read a command line as click does before it runs anything."""
    command: click.Command = cli
    parent = click.Context(cli, info_name="gateway")
    while isinstance(command, click.Group):
        if isinstance(command, Noun):
            arguments = command.with_verb(parent, arguments)
        name, *arguments = arguments
        inner = command.get_command(parent, name)
        assert inner is not None, name
        command = inner
        if isinstance(command, click.Group):
            parent = click.Context(command, info_name=name, parent=parent)
    command.make_context(command.name, arguments, parent=parent)


def test_an_example_that_does_not_parse_is_found() -> None:
    with pytest.raises(click.UsageError):
        parse(["queues", "list", "--no-such-option"])
