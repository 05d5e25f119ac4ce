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
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

ERASE = "\r\x1b[K"
"""To the beginning of the line, and clear it."""
WIDTH = 120
"""Columns of a terminal that does not tell."""
BAR = 20
"""Columns of the bar."""
LATELY_SECONDS: Final = 30.0
"""The rate of the last seconds is that of the rest."""
SEEN_SECONDS_MIN: Final = 2.0
"""How long something is watched until its rate is known, in seconds."""
OUTPUTS: Final[Mapping[str, str]] = {
    "table": "for people; on a terminal, long texts are cut and columns left out so that a line fits",
    "wide": "the same, with all columns and whole texts",
    "json": "as the API answers",
    "yaml": "the same as YAML",
    "tsv": "tables with a tab between cells, for cut and awk",
}
"""Name of a form of output -> what it is."""
COLORS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("active", "confirmed", "done", "live", "running", "up", "acknowledged", "sent"), "green"),
    **dict.fromkeys(
        ("blocked", "connecting", "draining", "full", "paused", "pending", "starting", "unverified", "waiting"),
        "yellow",
    ),
    **dict.fromkeys(
        ("dead", "disabled", "down", "error", "expired", "failed", "refused", "revoked", "unroutable"), "red"
    ),
}
"""State -> its color on a terminal. Other states have none."""
CELL_MIN: Final = 8
"""No cell is cut to fewer columns."""
_BELOW_A_SECOND: Final = re.compile(r"(?<=T\d\d:\d\d:\d\d)\.\d+(?=Z$)")
_WHOLE: Final = re.compile(r"-?|yes|no|-?[\d,.]+( ?%|/s| ?[kMGT]i?B| s)?|\d{4}-\d\d-\d\d.*")
"""A number, a time, or nothing."""
_OUTPUT: Final = "gateway.output"
"""Where click's context has the form of output."""
F = TypeVar("F", bound=Callable[..., Any])
_NOT_SHOWN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb]"
)
"""Control characters but tab and line feed, and format characters that reorder text."""


def output_options(function: F) -> F:
    """``--output`` and ``--json``. The verb gets ``as_json``: whether data are asked for, as JSON or as YAML."""
    function = click.option("--json", "as_json", is_flag=True, callback=_is_data, help="The same as --output json.")(
        function
    )
    return click.option(
        "-o", "--output",
        type=click.Choice(tuple(OUTPUTS)),
        expose_value=False,
        is_eager=True,
        callback=_keep_output,
        help="Form of what is printed; wide cuts no cell on a terminal.  [default: table]",
    )(function)  # fmt: skip


def _keep_output(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_OUTPUT] = value


def _is_data(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
    given = ctx.meta.get(_OUTPUT)
    if value and given not in (None, "json"):
        raise click.UsageError(f"--json is --output json, and --output {given} was given, too: give one of them.")
    return value or given in ("json", "yaml")


def output() -> str:
    """The form of output that was asked for: one of :data:`OUTPUTS`."""
    context = click.get_current_context(silent=True)
    return str(context.meta.get(_OUTPUT, "table")) if context is not None else "table"


def print_json(value: Any) -> None:
    """Print an answer as JSON, or as YAML where that was asked for."""
    click.echo(yaml_text(value) if output() == "yaml" else json_text(value, indent=2))


def print_json_line(value: Any) -> None:
    """Print one of several values: as JSON in one line, or as a document of YAML where that was asked for."""
    click.echo(f"---\n{yaml_text(value)}" if output() == "yaml" else json_text(value))


def yaml_text(value: Any) -> str:
    """Return data as YAML that holds no control character, C1 and bidirectional ones included."""
    import yaml  # takes a while, and few ask for it

    text = str(yaml.safe_dump(value, allow_unicode=True, sort_keys=False, width=WIDTH)).rstrip("\n")
    if _NOT_SHOWN.search(text):
        text = str(yaml.safe_dump(value, allow_unicode=False, sort_keys=False, width=WIDTH)).rstrip("\n")
    return text.removesuffix("\n...")


def json_text(value: Any, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """Return a value as JSON that holds no control character, C1 and bidirectional ones included."""
    return _NOT_SHOWN.sub(_as_json_escape, json.dumps(value, indent=indent, ensure_ascii=False, default=default))


def _as_json_escape(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def escaped(text: str) -> str:
    """Return text with line ends and tabs, and nothing else that a terminal acts upon."""
    return _NOT_SHOWN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def print_table(
    heads: Sequence[str], rows: Iterable[Sequence[Any]], *, whole: Collection[str] = (), first_out: Sequence[str] = ()
) -> None:
    """Print rows in columns, or with tabs where that was asked for.

    A column is as wide as it needs to be. On a terminal a table is made to fit (:func:`fitted`); a file or a pipe gets
    all of it. Control characters are shown, not sent to the terminal. ``whole`` and ``first_out``: heads of columns
    that are not cut, and of those that are left out first.
    """
    cells: Sequence[Sequence[str]] = [[printable(cell) for cell in row] for row in rows]
    if output() == "tsv":
        for line in (heads, *cells):
            click.echo("\t".join(line))
        return
    if output() == "table" and sys.stdout.isatty():
        columns = shutil.get_terminal_size((WIDTH, 24)).columns
        shown, cells = fitted(heads, cells, columns, whole=whole, first_out=first_out)
        if left_out := [head for head in heads if head not in shown]:
            note(f"Left out for want of room: {', '.join(left_out)}. --output wide shows all.")
        heads = shown
    state = heads.index("STATE") if "STATE" in heads else None
    at = sum(max(len(row[column]) for row in (heads, *cells)) + 2 for column in range(state or 0))
    for number, line in enumerate(table_lines(heads, cells)):
        if number == 0:
            click.echo(click.style(line, bold=True))
        elif state is not None and (word := cells[number - 1][state]) in COLORS:
            click.echo(line[:at] + click.style(word, fg=COLORS[word]) + line[at + len(word) :])
        else:
            click.echo(line)


def fitted(
    heads: Sequence[str],
    cells: Sequence[Sequence[str]],
    columns: int,
    *,
    whole: Collection[str] = (),
    first_out: Sequence[str] = (),
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return heads and cells of a table whose lines have at most so many columns of the terminal, if they can.

    Times lose the part below a second first. Then text is cut, the widest first, to what its head needs, or
    :data:`CELL_MIN`. At last columns are left out: those of ``first_out`` in their order, then from the right. Names,
    states, times and numbers are never cut: half of them says something else. Nor are the columns of ``whole``.
    """
    widths = _widths(heads, cells)
    if _length(widths) > columns:
        cells = [[_BELOW_A_SECOND.sub("", cell) for cell in line] for line in cells]
        widths = _widths(heads, cells)
    least = [
        width if column == 0 or head in ("STATE", *whole) or all(_WHOLE.fullmatch(line[column]) for line in cells)
        else min(width, max(CELL_MIN, len(head)))
        for column, (head, width) in enumerate(zip(heads, widths, strict=True))
    ]  # fmt: skip
    kept = list(range(len(heads)))
    expendable = [heads.index(head) for head in first_out if head in heads]
    while _length([least[column] for column in kept]) > columns and len(kept) > 1:
        kept.remove(expendable.pop(0) if expendable else kept[-1])
        expendable = [column for column in expendable if column in kept]
    heads = [heads[column] for column in kept]
    cells = [[line[column] for column in kept] for line in cells]
    widths, least = [widths[column] for column in kept], [least[column] for column in kept]
    while _length(widths) > columns and widths != least:
        widths[max(range(len(widths)), key=lambda column: (widths[column] > least[column], widths[column]))] -= 1
    cut = [
        [cell if len(cell) <= width else f"{cell[: width - 1]}…" for cell, width in zip(line, widths, strict=False)]
        for line in cells
    ]
    return heads, cut


def _widths(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(line[column]) for line in (heads, *cells)) for column in range(len(heads))]


def _length(widths: Sequence[int]) -> int:
    """How many columns of the terminal a line has."""
    return sum(widths) + 2 * (len(widths) - 1)


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

    def __init__(self, as_json: bool, *, is_result: bool = False) -> None:
        """``is_result``: the lines are what was asked for. They go to stdout, and each look is one."""
        self._as_json = as_json
        self._is_result = is_result
        self._has_rows = is_result and output() == "tsv"
        self._redraws = not as_json and not self._has_rows and self.is_terminal(is_result)
        self._drawn = ""
        self._said = ""

    @staticmethod
    def is_terminal(is_result: bool) -> bool:
        """Whether somebody looks at where the line goes."""
        return (sys.stdout if is_result else sys.stderr).isatty()

    def show(self, found: Mapping[str, Any], line: str) -> None:
        """How it stands now. On a terminal the line is drawn over and over; elsewhere each that is new is a line on
        stderr, or each on stdout. With ``--json`` each is an object on stdout, with ``--output tsv`` a row."""
        if self._as_json:
            text = json_text(found)
            if self._is_result or text != self._said:
                print_json_line(found)
            self._said = text
        elif self._has_rows:
            cells = {name: value for name, value in found.items() if not isinstance(value, (dict, list))}
            for row in ([*cells.values()],) if self._said else ([*cells], [*cells.values()]):
                click.echo("\t".join(map(printable, row)))
            self._said = line
        elif self._redraws:
            columns = shutil.get_terminal_size((WIDTH, 24)).columns
            self._drawn, self._said = printable(line)[: columns - 1], printable(line)
            # ERASE is no color, and is kept like one
            click.echo(ERASE + self._drawn, nl=False, err=not self._is_result, color=True)
        elif self._is_result:
            click.echo(escaped(line))
        elif line != self._said:
            note(line)
            self._said = line
        sys.stdout.flush()

    def close(self) -> None:
        """The last line stays, as a whole."""
        if self._drawn:
            rest = "" if self._drawn == self._said else ERASE + self._said
            click.echo(rest, err=not self._is_result, color=True)
            self._drawn = ""


class Estimate:
    """Remaining time of something with a known end: what is left, at the rate at which it became less lately."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def text(self, done: int, total: int | None, now: float) -> str:
        """``about 5 min left``; empty where it is not known, or nothing is left.

        Args:
            done: how much is done.
            total: how much there is; None: unknown.
            now: seconds on a clock that never steps back.
        """
        left = 0 if total is None else total - done
        if left <= 0:
            self._seen.clear()
            return ""
        if self._seen and left > self._seen[0][1]:
            self._seen.clear()  # more has come, or another part of the work has begun
        self._seen.append((now, left))
        while now - self._seen[0][0] > LATELY_SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        if now - since < SEEN_SECONDS_MIN or left >= before:
            return ""
        return f"about {duration_text(left * (now - since) / (before - left))} left"


def duration_text(seconds: float) -> str:
    """A time span in the unit, or the two units, that people would use."""
    minutes, hours, days = round(seconds / 60), round(seconds / 3600), round(seconds / 86400)
    if round(seconds) < 60:
        return f"{max(1, round(seconds))} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h" if days < 10 else f"{days:,} d"


def percent(done: int, total: int | None) -> str:
    """``60%``: 100% only when all is done. Empty where it is not known how much there is."""
    return f"{min(100 * done // total, 100)}%" if total else ""


def bar(done: int, total: int | None) -> str:
    """``[######----]  60%``; empty where it is not known how much there is."""
    if not total:
        return ""
    full = min(BAR * done // total, BAR)
    return f"[{'#' * full}{'-' * (BAR - full)}] {percent(done, total):>4}"
