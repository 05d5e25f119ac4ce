"""The judges: each finds what it is for, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.attack.judge import COLUMNS, Bounds, Health, Outcome, Record, Waits, table


def tried(wrong: int = 0) -> Record:
    record = Record()
    for number in range(10):
        record.check(number >= wrong, f"try {number}")
    return record


GOOD = Outcome("row", Bounds(5.0, 100.0), tried(), Waits(100, 20.0, "GET /livez"), Health(), 90.0, 94.0, 91.0, 1.0)


def test_a_row_that_is_ok() -> None:
    assert GOOD.faults() == []
    assert GOOD.line() == ("row", "10", "0", "90", "94", "91", "20 ms", "ok")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"record": Record()}, "nothing was tried"),
        ({"record": tried(2)}, "wrong: try 0; try 1"),
        ({"record": tried(8)}, "(and 3 more)"),
        ({"most_mib": 95.5}, "memory grew by 6 MiB; the limit is 5 MiB"),
        ({"waits": Waits(100, 101.0, ":pull")}, "the neighbor waited 101 ms for :pull; the limit is 100 ms"),
        ({"waits": Waits(9, 1.0, "x", 5_001.0)}, "the neighbor stood for 5001 ms; the limit is 5000 ms"),
        ({"waits": Waits(0)}, "the neighbor measured nothing"),
        ({"waits": Waits(9, 1.0, "x", 1.0, (":pull: 503",))}, "the neighbor's request failed: :pull: 503"),
        ({"health": Health(running=False)}, "the gateway ended"),
        ({"health": Health(ready=503)}, "/readyz answered 503"),
        ({"health": Health(ready=0)}, "/readyz answered nothing"),
        ({"health": Health(log="x\nTraceback (most recent call last):\n")}, "unhandled error: Traceback"),
        ({"health": Health(log='{"event": "http.failed", "exception": "boom"}')}, "unhandled error"),
        ({"health": Health(seen=("the log: …",))}, "a planted secret was seen: the log"),
    ],
)
def test_each_judge(change: dict[str, Any], fault: str) -> None:
    outcome = replace(GOOD, **change)
    (found,) = outcome.faults()
    assert fault in found
    assert outcome.line()[-1] == "FAILED"


@pytest.mark.parametrize(
    ("change", "slow"),
    [
        ({}, False),
        ({"waits": Waits(100, 101.0, ":pull")}, True),
        ({"waits": Waits(100, 101.0, ":pull"), "most_mib": 95.5}, False),
        ({"waits": Waits(100, 101.0, ":pull", 102.0, (":pull: 503",))}, False),
        ({"health": Health(ready=503)}, False),
    ],
)
def test_what_is_tried_again(change: dict[str, Any], slow: bool) -> None:
    assert replace(GOOD, **change).slow is slow


def test_the_table() -> None:
    header, first = table([GOOD.line()]).splitlines()
    assert header.split() == list(COLUMNS)
    assert first.split() == ["row", "10", "0", "90", "94", "91", "20", "ms", "ok"]
