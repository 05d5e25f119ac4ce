"""Output for terminals: tables, JSON, notes, and a line of progress that is drawn over and over; and how people
write times there.

What was found goes to stdout, what there is to say about it to stderr. Control characters of other people's names are
shown, not sent.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

ERASE = "\r\x1b[K"
"""To the beginning of the line, and clear it."""
WIDTH = 120
"""Columns of a terminal that does not tell."""
BAR = 30
"""Columns of the bar."""
_NOT_SHOWN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb]"
)
"""Control characters but tab and line feed, and format characters that reorder text."""


def print_json(value: Any) -> None:
    """Print an answer as JSON."""
    click.echo(json_text(value, indent=2))


def print_json_line(value: Any) -> None:
    """Print a value as JSON in one line."""
    click.echo(json_text(value))


def json_text(value: Any, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """Return a value as JSON that holds no control character, C1 and bidirectional ones included."""
    return _NOT_SHOWN.sub(_as_json_escape, json.dumps(value, indent=indent, ensure_ascii=False, default=default))


def _as_json_escape(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def escaped(text: str) -> str:
    """Return text with line ends and tabs, and nothing else that a terminal acts upon."""
    return _NOT_SHOWN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Columns, as wide as they need to be. Control characters are shown, not sent to the terminal."""
    for number, line in enumerate(table_lines(heads, rows)):
        click.echo(click.style(line, bold=True) if number == 0 else line)


def table_lines(heads: Sequence[str], rows: Iterable[Sequence[Any]], right: frozenset[int] = frozenset()) -> list[str]:
    """The lines of a table, the heads first; the columns in ``right`` end under each other."""
    lines = [tuple(heads), *(tuple(printable(cell) for cell in row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return [
        "  ".join(
            f"{cell:{'>' if column in right else '<'}{widths[column]}}" for column, cell in enumerate(line)
        ).rstrip()
        for line in lines
    ]


def printable(value: Any) -> str:
    """One cell: nothing that moves the cursor or breaks the line."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))


def note(text: str) -> None:
    """Something to say about the work, on stderr."""
    click.echo(escaped(text), err=True)


class Progress:
    """Where the line goes."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._redraws = not as_json and sys.stderr.isatty()
        self._drawn = False
        self._said = ""

    def show(self, found: Mapping[str, Any], line: str) -> None:
        """How it stands now. On a terminal the line is drawn over and over; elsewhere each that is new is a line on
        stderr; with ``--json`` each is an object on stdout."""
        if self._as_json:
            text = json_text(found)
            if text != self._said:
                click.echo(text)
                sys.stdout.flush()
            self._said = text
        elif self._redraws:
            columns = shutil.get_terminal_size((WIDTH, 24)).columns
            shown = ERASE + printable(line)[: columns - 1]
            click.echo(shown, nl=False, err=True, color=True)  # ERASE is no color, and is kept like one
            self._drawn = True
        elif line != self._said:
            note(line)
            self._said = line

    def close(self) -> None:
        """The last line stays."""
        if self._drawn:
            click.echo(err=True)


def bar(done: int, total: int | None) -> str:
    """``[######----]  60 %``; empty where it is not known how much there is."""
    if not total:
        return ""
    part = min(done / total, 1.0)
    full = int(part * BAR)
    return f"[{'#' * full}{'-' * (BAR - full)}] {part:4.0%}"
