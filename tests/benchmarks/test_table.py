"""The table that a run prints."""

from __future__ import annotations

import pytest

from tests.benchmarks.aims import Aim
from tests.benchmarks.rows import OURS, Row, Sample
from tests.benchmarks.table import HEADINGS, octets, summary, table

ROWS = [
    Row("link", "publish", OURS, [Sample(1_000, 0.5, 0.01, memory=3 << 20)]),
    Row("link", "publish", "peer", [Sample(1_000, 1.0, 0.035, p50=0.002, p99=0.0125)]),
    Row("link", "-", "absent", error="it is not installed"),
    Row("pull", "pull", OURS, [Sample(1_000, 0.5, 0.01)]),
]
AIMS = [Aim("publish", "at most 15 µs", most=15, measure="microseconds"), Aim("publish", "3 × peer", 3, peer="peer")]


def cells(line: str) -> list[str]:
    return [cell for cell in line.split("  ") if cell.strip()]


def test_the_first_client_of_a_work_is_what_the_others_are_compared_with() -> None:
    headings, ours, second_aim, peer, absent, blank, pulled = table(ROWS, AIMS).splitlines()
    assert headings.split("  ")[0].strip() == HEADINGS[0]
    assert [cell.strip() for cell in cells(ours)] == [
        "publish", "gateway", "2,000", "10.0", "3.0 MiB", "at most 15 µs", "met: 10.0 µs",
    ]  # fmt: skip
    assert [cell.strip() for cell in cells(second_aim)] == ["3 × peer", "MISSED: 2.00 ×"]
    assert [cell.strip() for cell in cells(peer)] == [
        "publish", "peer", "1,000", "35.0", "2.00", "12.50", "2.00 ×", "3.50 ×",
    ]  # fmt: skip
    assert [cell.strip() for cell in cells(absent)] == ["link: not measured", "absent", "it is not installed"]
    assert blank == ""
    assert cells(pulled)[0] == "pull"


def test_columns_stand_below_their_headings() -> None:
    headings, ours, second_aim = table(ROWS, AIMS).splitlines()[:3]
    assert headings.index("aim") == ours.index("at most 15 µs") == second_aim.index("3 × peer")
    assert headings.index("CPU µs") + len("CPU µs") == ours.index("10.0") + len("10.0")


def test_a_table_of_nothing() -> None:
    assert table([]).split() == " ".join(HEADINGS).split()


def test_the_last_line_counts() -> None:
    assert summary(ROWS, AIMS) == "1 of 2 aims met, 1 rows could not be measured"
    assert summary(ROWS[:2], AIMS) == "1 of 2 aims met"


@pytest.mark.parametrize(("size", "text"), [(None, ""), (12.0, "12 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB")])
def test_sizes(size: float | None, text: str) -> None:
    assert octets(size) == text
