"""Reports: the same numbers in the terminal and on a page that needs nothing else."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import pytest

from gateway.pipeline.reports import Bars, Lines, Number, Numbers, Section, Table
from gateway.pipeline.reports.page import places_of, report, runs_of, ticks_of
from gateway.pipeline.reports.text import number, text_of

EVIL = "<script>alert('1')</script>\x1b[2J\"&"
SECTIONS: list[Section] = [
    Numbers("At a glance", [Number("accepted", 20_000), Number("lost", 1, "named below", bad=True)]),
    Table("Breaks", ("kind", "route", "n"), [("lost", EVIL, 1), ("late", None, 1_000_000)], note="A note.", bad=True),
    Bars("Per route", [("orders", 8_000), (EVIL, 12), ("x" * 100, 0)], unit="messages"),
    Lines("Latency", ["00:00", "01:00", "02:00"], [("p50", [1.0, None, 3.5]), (EVIL, [2, 2, math.nan])], unit="ms"),
    Table("Nothing", ("a",), []),
    Bars("No bars", []),
    Lines("No lines", ["a"], [("x", [None])]),
]


class Page(HTMLParser):
    """What a page is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "rect", "line", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def page() -> Page:
    parsed = Page()
    parsed.feed(report(f"Report {EVIL}", SECTIONS))
    parsed.close()
    return parsed


def test_the_page_is_whole(page: Page) -> None:
    assert page.open == []
    for section in SECTIONS:
        assert section.title in page.text


def test_it_needs_nothing_from_elsewhere(page: Page) -> None:
    (policy,) = [found["content"] for tag, found in page.seen if found.get("http-equiv") == "Content-Security-Policy"]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    for tag, found in page.seen:
        assert tag not in ("script", "link", "img", "iframe", "object", "embed", "base")
        assert not {"src", "href", "action"} & found.keys()
        assert not [name for name in found if name.startswith("on")]
    assert not re.search(r"url\(|@import|https?:", report("x", SECTIONS))


def test_what_came_from_elsewhere_is_text(page: Page) -> None:
    assert "<script>" not in report(EVIL, SECTIONS)
    assert "<script>alert('1')</script>\\x1b[2J\"&" in page.text
    assert "\x1b" not in page.text


def test_every_number_is_on_the_page_and_in_the_terminal(page: Page) -> None:
    said = text_of("Report", SECTIONS)
    for shown in ("20,000", "named below", "1,000,000", "8,000 messages", "3.5", "A note."):
        assert shown in said, shown
        assert shown in page.text, shown


def test_what_should_not_be_is_marked(page: Page) -> None:
    assert [found for tag, found in page.seen if tag == "div" and found.get("class") == "bad"]
    assert re.search(r"^lost +1 +! +named below$", text_of("Report", SECTIONS), re.MULTILINE)


def test_a_gap_is_a_gap(page: Page) -> None:
    assert len([1 for tag, _ in page.seen if tag == "path"]) == 1, "of the two series one has two points in a row"
    assert runs_of([1, None, 2, 3, math.nan]) == [[(0, 1)], [(2, 2), (3, 3)]]


def test_a_table_that_is_too_long_is_cut_and_says_so() -> None:
    rows = [(at,) for at in range(6_000)]
    assert "and 5,800 more" in text_of("x", [Table("Rows", ("n",), rows)])
    assert "and 1,000 more" in report("x", [Table("Rows", ("n",), rows)])


@pytest.mark.parametrize(
    ("value", "text"),
    [(1_234_567, "1,234,567"), (0.12345, "0.123"), (12_345.6, "12,346"), (True, "yes"), (None, "-"), (math.inf, "-"),
     ("a\n", "a\\n")],
)  # fmt: skip
def test_a_cell(value: object, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (0, 0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (0, 97, [0, 20, 40, 60, 80, 100]),
     (-3, 7, [-4, -2, 0, 2, 4, 6, 8]), (0, 12_000, [0, 2_500, 5_000, 7_500, 10_000, 12_500])],
)  # fmt: skip
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert ticks_of(low, high) == pytest.approx(ticks)


def test_the_ends_of_an_axis_are_named() -> None:
    assert places_of(3) == [0, 1, 2]
    assert places_of(0) == []
    assert places_of(1_000)[0] == 0
    assert places_of(1_000)[-1] == 999
    assert len(places_of(1_000)) == 7
