"""Sections as text: tables, and bars of blocks, as wide as a terminal is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from gateway.pipeline.reports import Bars, Lines, Numbers, Section, Table
from gateway.terminal import printable, table_lines

BAR: Final = 40
"""Columns of the longest bar."""
ROWS_MAX: Final = 200
"""Most rows of a table that are shown; the page has them all."""


def text_of(title: str, sections: Iterable[Section]) -> str:
    """The whole report."""
    lines = [title, "=" * len(title)]
    for section in sections:
        lines += ["", *_lines_of(section)]
    return "\n".join(lines)


def number(value: Any) -> str:
    """A cell: numbers with commas, and three digits behind the point where they are small."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return printable(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def _lines_of(section: Section) -> Iterator[str]:
    yield section.title
    yield "-" * len(section.title)
    if isinstance(section, Numbers):
        rows = [(each.label, number(each.value), "!" if each.bad else "", each.note) for each in section.numbers]
        yield from table_lines(("", "", "", ""), rows, frozenset({1}))[1:]
    elif isinstance(section, Bars):
        yield from _bars(section)
    elif isinstance(section, Lines):
        heads = ("", *(name for name, _ in section.series))
        cells = [
            (place, *(number(values[at]) for _, values in section.series)) for at, place in enumerate(section.axis)
        ]
        yield from _table(heads, cells, numbers=frozenset(range(1, len(heads))))
    else:
        yield from _table(section.heads, section.rows, numbers=numeric(section))
    if section.note:
        yield section.note


def numeric(table: Table) -> frozenset[int]:
    """The columns of a table that hold numbers only."""
    return frozenset(
        column
        for column in range(len(table.heads))
        if table.rows
        and all(
            row[column] is None or (isinstance(row[column], (int, float)) and not isinstance(row[column], bool))
            for row in table.rows
        )
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]], numbers: frozenset[int]) -> Iterator[str]:
    if not rows:
        yield "none"
        return
    yield from table_lines(heads, ([number(cell) for cell in row] for row in rows[:ROWS_MAX]), numbers)
    if len(rows) > ROWS_MAX:
        yield f"and {len(rows) - ROWS_MAX:,} more"


def _bars(section: Bars) -> Iterator[str]:
    if not section.bars:
        yield "none"
        return
    longest = max((value for _, value in section.bars), default=0.0) or 1.0
    unit = f" {section.unit}" if section.unit else ""
    rows = [
        (label, number(value) + unit, "#" * max(round(value / longest * BAR), 1 if value > 0 else 0))
        for label, value in section.bars
    ]
    yield from table_lines(("", "", ""), rows, frozenset({1}))[1:]
