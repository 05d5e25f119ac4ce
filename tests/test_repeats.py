"""Lines that come again and again do not fill the log, and the last of them is in it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.observing import repeats
from gateway.observing.repeats import BURST, KINDS_MAX, WINDOW, RepeatLines, Repeats
from gateway.observing.telemetry import (
    FOLLOWING,
    LOGGER,
    Following,
    JsonFormatter,
    log,
    set_up_logging,
    settle_lines,
)


class Log:
    """What was logged, under a clock of its own."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._stream = io.StringIO()
        self.handler = RepeatLines(self._stream, Repeats(lambda: self.now))
        self.handler.setFormatter(JsonFormatter())

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._stream.getvalue().splitlines()]


@pytest.fixture
def found() -> Iterator[Log]:
    root = logging.getLogger()
    handlers, level, own = root.handlers[:], root.level, LOGGER.level
    set_up_logging("info")
    found = Log()
    root.handlers[:] = [found.handler]
    yield found
    root.handlers[:] = handlers
    root.setLevel(level)
    LOGGER.setLevel(own)


def test_the_first_ones_are_written_and_the_last_one(found: Log) -> None:
    for number in range(100):
        log("broker.link_down", broker="b", number=number)
    assert [line["number"] for line in found.lines] == list(range(BURST))
    found.now += WINDOW - 0.1
    settle_lines()
    assert len(found.lines) == BURST
    found.now += 0.2
    settle_lines()
    last = found.lines[-1]
    assert (last["number"], last["repeats"]) == (99, 80)
    settle_lines()
    assert len(found.lines) == BURST + 1
    log("broker.link_down", broker="b", number=100)  # a new window
    assert found.lines[-1]["number"] == 100
    assert "repeats" not in found.lines[-1]


def test_what_is_about_something_else_is_another_line(found: Log) -> None:
    for _ in range(2 * BURST):
        log("broker.link_down", broker="a")
        log("broker.link_down", broker="b")
        log("broker.state", broker="a", state="up")
        log("broker.state", broker="a", state="down")
    assert len(found.lines) == 4 * BURST


def test_another_line_brings_what_is_due(found: Log) -> None:
    for number in range(BURST + 1):
        log("broker.link_down", broker="b", number=number)
    found.now += WINDOW
    log("gateway.stopped")
    assert [line["event"] for line in found.lines[BURST:]] == ["broker.link_down", "gateway.stopped"]


def test_nothing_is_withheld_at_the_end(found: Log) -> None:
    for _ in range(BURST + 5):
        log("broker.link_down", broker="b")
    found.handler.close()
    assert found.lines[-1]["repeats"] == 5


def test_there_is_an_end_to_kinds(found: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(KINDS_MAX + 10):
        log("push.dead", subscription=str(number))
    assert len(found.lines) == KINDS_MAX + 10
    found.handler.settle()
    assert len(found.handler._repeats._windows) <= KINDS_MAX


def test_lines_of_others_are_known_by_their_beginning(found: Log) -> None:
    logger = logging.getLogger("elsewhere")
    for number in range(BURST + 10):
        logger.warning("x" * repeats.TEXT_MAX + str(number))
    logger.error("another")
    assert [line["event"][-7:] for line in found.lines[BURST:]] == ["another"]


def test_what_is_bounded_elsewhere_is_not_bounded_here(found: Log) -> None:
    for _ in range(3 * BURST):
        log("http.request", status=200)
    assert len(found.lines) == 3 * BURST


def test_a_line_names_the_trace_until_its_request_is_over(found: Log) -> None:
    following = Following("0af7651916cd43dd8448eb211c80319c")
    token = FOLLOWING.set(following)
    try:
        log("one")
        log("two", trace_id="its own")
        following.trace_id = ""
        log("three")
    finally:
        FOLLOWING.reset(token)
    assert [line.get("trace_id") for line in found.lines] == ["0af7651916cd43dd8448eb211c80319c", "its own", None]
