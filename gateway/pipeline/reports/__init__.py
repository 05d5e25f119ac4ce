"""What a job found, for people: the same sections as a table in the terminal and as one page of HTML.

A section is data, a :class:`Table`, :class:`Bars`, :class:`Lines` or :class:`Numbers`; what it looks like is decided by
:mod:`gateway.pipeline.reports.text` and :mod:`gateway.pipeline.reports.page`. Every number of a chart stands in the
terminal too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under heads. Cells are text, numbers, True, False or None (shown as a dash)."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""
    """A sentence below it."""
    bad: bool = False
    """Whether what it lists should not be: it is marked, where it has any row."""


@dataclass(frozen=True, slots=True)
class Bars:
    """One bar a label."""

    title: str
    bars: Sequence[tuple[str, float]]
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Lines:
    """Values over a common axis: a line a series. None is a gap."""

    title: str
    axis: Sequence[str]
    """What stands at each place of the axis, for example hours."""
    series: Sequence[tuple[str, Sequence[float | None]]]
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Number:
    """One number that matters."""

    label: str
    value: Any
    note: str = ""
    bad: bool = False
    """Whether it should be another one."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers that are read first."""

    title: str
    numbers: Sequence[Number] = field(default_factory=tuple)
    note: str = ""


Section: TypeAlias = Table | Bars | Lines | Numbers
