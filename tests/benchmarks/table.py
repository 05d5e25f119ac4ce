"""The table of a run."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks.aims import AIMS, Aim, Verdict, verdicts
from tests.benchmarks.rows import Row, quotient

HEADINGS = ("work", "client", "per second", "CPU µs", "p50 ms", "p99 ms", "memory", "faster", "lighter", "aim", "found")
LEFT = frozenset({"work", "client", "aim", "found"})
LEGEND = """\
per second, CPU µs: of one message, publish, commit or call; CPU of the client's process alone (management: of RabbitMQ)
with the broker's CPU: of the client's process and of RabbitMQ, in which Shovel runs
memory: of the process at its largest, or of one more of what the row counts
faster, lighter: the first client of the same work has so many times its rate, and takes so many times less CPU"""


def table(rows: Sequence[Row], aims: Sequence[Aim] = AIMS) -> str:
    """One line for each row, and one more for each further aim; a blank line between sections."""
    found = verdicts(rows, aims)
    first: dict[str, Row] = {}
    lines: list[tuple[str, ...]] = [HEADINGS]
    section = rows[0].section if rows else ""
    for row in rows:
        if row.section != section:
            section = row.section
            lines.append(())
        if row.error:
            lines.append((f"{row.section}: not measured", row.client, *[""] * 7, "", row.error))
            continue
        judged = found.get((row.work, row.client), [])
        best = first.setdefault(row.work, row)
        lines.append((row.work, row.client, *_measures(row), *_ratios(best, row), *_aim(judged[:1])))
        lines.extend(("", *[""] * 8, *_aim([verdict])) for verdict in judged[1:])
    widths = [max(len(line[at]) for line in lines if line) for at in range(len(HEADINGS))]
    return "\n".join(_line(line, widths) for line in lines)


def _line(line: tuple[str, ...], widths: Sequence[int]) -> str:
    cells = [
        f"{cell:<{width}}" if name in LEFT else f"{cell:>{width}}"
        for cell, width, name in zip(line, widths, HEADINGS, strict=False)
    ]
    return "  ".join(cells).rstrip()


def _measures(row: Row) -> tuple[str, ...]:
    return (
        _number(row.middle("rate"), ",.0f"),
        _number(row.middle("microseconds"), ",.1f"),
        *(_number(None if value is None else value * 1e3, ",.2f") for value in (row.middle("p50"), row.middle("p99"))),
        octets(row.middle("memory")),
    )


def _ratios(best: Row, row: Row) -> tuple[str, str]:
    if row is best:
        return "", ""
    return (
        _number(quotient(best, row, "rate"), ".2f", " ×"),
        _number(quotient(row, best, "microseconds"), ".2f", " ×"),
    )


def _aim(judged: Sequence[Verdict]) -> tuple[str, str]:
    return (judged[0].aim.wanted, str(judged[0])) if judged else ("", "")


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"


def octets(size: float | None) -> str:
    """A size for people."""
    if size is None:
        return ""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(size) >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size:.0f} B"


def summary(rows: Sequence[Row], aims: Sequence[Aim] = AIMS) -> str:
    """How many aims were met, and what could not be measured."""
    judged = [verdict for group in verdicts(rows, aims).values() for verdict in group]
    met = sum(verdict.met for verdict in judged)
    failed = sum(bool(row.error) for row in rows)
    return f"{met} of {len(judged)} aims met" + (f", {failed} rows could not be measured" if failed else "")
