"""Sections as one page of HTML that needs nothing else: no network, no script, charts as SVG inside.

Everything that comes from a message or a broker is escaped, and the page itself forbids all loading and scripts
(Content-Security-Policy), so a report can be mailed and opened anywhere. Colors follow the reader's light or dark
setting; on paper it is black on white.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any, Final

from gateway.pipeline.reports import Bars, Lines, Numbers, Section, Table
from gateway.pipeline.reports.text import number, numeric
from gateway.terminal import printable

WIDTH: Final = 960
"""Of a chart, in its own units; on the screen it is as wide as the page."""
BAR: Final = 26
"""Height of a bar with the gap below it."""
LABEL_MAX: Final = 36
"""Longest label of a bar, in characters; the whole one is its tooltip."""
PLOT: Final = (72.0, 12.0, 944.0, 248.0)
"""Left, top, right and bottom of the area of a line chart."""
TICKS: Final = 5
"""About how many lines there are across."""
ROWS_MAX: Final = 5_000
"""Most rows of a table; the rest is counted."""
COLOURS: Final = 8
"""How many colors there are for series; then they begin again, dashed."""

STYLE: Final = """
:root { color-scheme: light dark; --back: #f6f7f9; --card: #fff; --text: #1b1f24; --soft: #5a6472; --line: #dde2e8;
  --bad: #b3261e; --bad-back: #fdeceb; --c0: #2f6fd0; --c1: #d9730d; --c2: #22863a; --c3: #8250df; --c4: #b3261e;
  --c5: #0e8a8a; --c6: #a0690b; --c7: #c2347f; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --card: #1d2126; --text: #e6e9ed; --soft: #9aa4b1;
  --line: #343b44; --bad: #ff8a80; --bad-back: #3b2120; --c0: #6ea8ff; --c1: #ffa657; --c2: #56d364; --c3: #c297ff;
  --c4: #ff8a80; --c5: #4fd1d1; --c6: #e3b341; --c7: #ff7eb6; } }
@media print { :root { --back: #fff; --card: #fff; --text: #000; --soft: #444; } section { break-inside: avoid; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 24px 16px 48px; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; }
h1 { font-size: 24px; line-height: 1.25; margin: 0 0 20px; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 12px; overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 16px 20px;
  margin: 0 0 16px; }
section > p { color: var(--soft); margin: 12px 0 0; }
.numbers { display: grid; grid-template-columns: repeat(auto-fill, minmax(180px, 1fr)); gap: 12px; margin: 0; }
.numbers div { border: 1px solid var(--line); border-radius: 6px; padding: 10px 12px; min-width: 0; }
.numbers dt { color: var(--soft); font-size: 13px; }
.numbers dd { margin: 0; font-size: 22px; font-weight: 600; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere; }
.numbers small { color: var(--soft); display: block; font-size: 13px; font-weight: 400; }
.bad { border-color: var(--bad) !important; background: var(--bad-back); }
.bad dd, h2.wrong { color: var(--bad); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td { overflow-wrap: break-word; max-width: 60ch; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--text); font: 13px system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif;
  font-variant-numeric: tabular-nums; }
svg .soft { fill: var(--soft); }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg path { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 8px; padding: 0; list-style: none;
  font-size: 13px; }
.legend i { display: inline-block; width: 18px; height: 3px; margin-right: 6px; vertical-align: middle; }
.legend i.dashed { opacity: .55; }
"""


def report(title: str, sections: Iterable[Section]) -> str:
    """A whole page."""
    inner = "\n".join("\n".join(_section(section)) for section in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{_text(title)}</h1>\n{inner}\n</main>\n</body>\n</html>\n"
    )


def _text(value: Any) -> str:
    """Anything as text of the page."""
    return escape(printable(value))


def _section(section: Section) -> Iterator[str]:
    wrong = isinstance(section, Table) and section.bad and section.rows
    yield f"<section><h2{' class=wrong' if wrong else ''}>{_text(section.title)}</h2>"
    if isinstance(section, Numbers):
        yield from _numbers(section)
    elif isinstance(section, Bars):
        yield from _bars(section)
    elif isinstance(section, Lines):
        yield from _lines(section)
    else:
        yield from _table(section)
    if section.note:
        yield f"<p>{_text(section.note)}</p>"
    yield "</section>"


def _numbers(section: Numbers) -> Iterator[str]:
    yield '<dl class="numbers">'
    for each in section.numbers:
        small = f"<small>{_text(each.note)}</small>" if each.note else ""
        kind = ' class="bad"' if each.bad else ""
        yield f"<div{kind}><dt>{_text(each.label)}</dt><dd>{escape(number(each.value))}{small}</dd></div>"
    yield "</dl>"


def _table(section: Table) -> Iterator[str]:
    if not section.rows:
        yield "<p>none</p>"
        return
    right = numeric(section)
    classes = [' class="n"' if column in right else "" for column in range(len(section.heads))]
    yield '<div class="scroll"><table><thead><tr>'
    yield "".join(f"<th{kind}>{_text(head)}</th>" for kind, head in zip(classes, section.heads, strict=True))
    yield "</tr></thead><tbody>"
    for row in section.rows[:ROWS_MAX]:
        cells = (f"<td{kind}>{escape(number(cell))}</td>" for kind, cell in zip(classes, row, strict=True))
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"
    if len(section.rows) > ROWS_MAX:
        yield f"<p>and {len(section.rows) - ROWS_MAX:,} more</p>"


def _bars(section: Bars) -> Iterator[str]:
    if not section.bars:
        yield "<p>none</p>"
        return
    longest = max(value for _, value in section.bars) or 1.0
    unit = f" {section.unit}" if section.unit else ""
    left, right = 320.0, 130.0
    room = WIDTH - left - right
    yield _svg(len(section.bars) * BAR, section.title)
    for at, (label, value) in enumerate(section.bars):
        y = at * BAR
        length = max(value / longest * room, 0.0)
        said = f"{number(value)}{unit}"
        short = label if len(label) <= LABEL_MAX else label[: LABEL_MAX - 1] + "…"
        yield (
            f"<g><title>{_text(label)}: {escape(said)}</title>"
            f'<text x="{left - 10:g}" y="{y + 17}" text-anchor="end">{_text(short)}</text>'
            f'<rect x="{left:g}" y="{y + 3}" width="{max(length, 1):.1f}" height="{BAR - 8}" rx="3"'
            ' style="fill: var(--c0)"/>'
            f'<text class="soft" x="{left + length + 8:.1f}" y="{y + 17}">{escape(said)}</text></g>'
        )
    yield "</svg>"


def _lines(section: Lines) -> Iterator[str]:
    values = [value for _, series in section.series for value in series if value is not None and math.isfinite(value)]
    if not values:
        yield "<p>none</p>"
        return
    left, top, right, bottom = PLOT
    ticks = ticks_of(min(0.0, *values), max(values))
    low, high = ticks[0], ticks[-1]
    step = (right - left) / max(len(section.axis) - 1, 1)

    def x(at: int) -> float:
        return left + at * step if len(section.axis) > 1 else (left + right) / 2

    def y(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - top)

    yield from _legend([name for name, _ in section.series])
    yield _svg(280, section.title)
    for tick in ticks:
        said = f"{number(tick)}{f' {section.unit}' if section.unit else ''}"
        yield f'<line class="grid" x1="{left:g}" x2="{right:g}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        yield f'<text class="soft" x="{left - 8:g}" y="{y(tick) + 4:.1f}" text-anchor="end">{escape(said)}</text>'
    for at in places_of(len(section.axis)):
        anchor = "start" if at == 0 < len(section.axis) - 1 else "end" if at == len(section.axis) - 1 > 0 else "middle"
        yield (
            f'<text class="soft" x="{x(at):.1f}" y="{bottom + 22:g}" text-anchor="{anchor}">'
            f"{_text(section.axis[at])}</text>"
        )
    for order, (name, series) in enumerate(section.series):
        yield f'<g style="stroke: {_colour(order)}; fill: {_colour(order)}"><title>{_text(name)}</title>'
        dashed = ' stroke-dasharray="7 5"' if order >= COLOURS else ""
        for run in runs_of(series):
            points = [f"{x(at):.1f} {y(value):.1f}" for at, value in run]
            if len(points) > 1:
                yield f'<path d="M{" L".join(points)}"{dashed}/>'
        if len(section.axis) <= 60:
            for run in runs_of(series):
                for at, value in run:
                    said = f"{section.axis[at]}: {name} {number(value)}{f' {section.unit}' if section.unit else ''}"
                    yield f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" r="3"><title>{_text(said)}</title></circle>'
        yield "</g>"
    yield "</svg>"


def _legend(names: Sequence[str]) -> Iterator[str]:
    yield '<ul class="legend">'
    for order, name in enumerate(names):
        dashed = " class=dashed" if order >= COLOURS else ""
        yield f'<li><i{dashed} style="background: {_colour(order)}"></i>{_text(name)}</li>'
    yield "</ul>"


def _svg(height: int, title: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(printable(title), quote=True)}">'


def _colour(order: int) -> str:
    return f"var(--c{order % COLOURS})"


def ticks_of(low: float, high: float) -> list[float]:
    """Round numbers from below ``low`` to above ``high``, about :data:`TICKS` of them."""
    if high <= low:
        high = low + 1.0
    raw = (high - low) / TICKS
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [at * step for at in range(first, last + 1)]


def places_of(count: int) -> list[int]:
    """The places of an axis that are named: the ends, and some between."""
    if count <= 8:
        return list(range(count))
    return sorted({round(part * (count - 1) / 6) for part in range(7)})


def runs_of(series: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """The stretches of a series without gaps, as places and values."""
    found: list[list[tuple[int, float]]] = [[]]
    for at, value in enumerate(series):
        if value is None or not math.isfinite(value):
            found.append([])
        else:
            found[-1].append((at, value))
    return [run for run in found if run]
