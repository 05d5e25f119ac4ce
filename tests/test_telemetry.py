"""Logs are JSON; metrics belong to one gateway."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from gateway.observing.telemetry import LOGGER, Metrics, log, set_up_logging
from gateway.runtime.tasks import Tasks


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level, own = root.handlers[:], root.level, LOGGER.level
    stream = io.StringIO()
    set_up_logging("info", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    LOGGER.setLevel(own)


def test_an_event_is_one_line(lines: io.StringIO) -> None:
    log("broker.state", broker="b", reason="line\nbreak", odd=object())
    (line,) = lines.getvalue().splitlines()
    found = json.loads(line)
    assert (found["event"], found["level"], found["broker"], found["reason"]) == (
        "broker.state", "info", "b", "line\nbreak",
    )  # fmt: skip
    assert found["at"].endswith("+00:00")


HOSTILE = "<\x1b]0;PWNED\x07\x00\x7f\x85\x9b2J\u061c\u200e\u2028\u2029\u202e\u2066\ufeff\ud800>"


def test_a_line_is_printable_ascii(lines: io.StringIO) -> None:
    """Whatever others have put into a name, a text, an exception or the event itself."""
    log("broker.state", broker=HOSTILE, reason=[HOSTILE], detail={HOSTILE: HOSTILE}, odd=HostileObject())
    log(HOSTILE, logging.ERROR, ValueError(HOSTILE))
    logging.getLogger(HOSTILE).warning(HOSTILE)
    logging.getLogger("asyncio").error("%s", HOSTILE)
    found = lines.getvalue().splitlines()
    assert len(found) == 4
    assert re.fullmatch("[ -~\n]+", lines.getvalue())
    assert json.loads(found[0])["broker"] == HOSTILE


class HostileObject:
    def __str__(self) -> str:
        return HOSTILE


def test_less_severe_lines_are_left_out(lines: io.StringIO) -> None:
    log("detail", logging.DEBUG)
    logging.getLogger("elsewhere").info("chatter")
    logging.getLogger("elsewhere").warning("heard")
    (line,) = lines.getvalue().splitlines()
    assert json.loads(line)["logger"] == "elsewhere"


def test_an_exception_is_part_of_its_line(lines: io.StringIO) -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        log("failed", logging.ERROR, error)
    (line,) = lines.getvalue().splitlines()
    assert "ValueError: why" in json.loads(line)["exception"]


def test_two_gateways_do_not_add_up() -> None:
    first, second = Metrics("1"), Metrics("2")
    first.publishes.labels("b", "confirmed").inc()
    assert b'amqpgw_publishes_total{broker="b",outcome="confirmed"} 1.0' in first.render()
    assert b"amqpgw_publishes_total{" not in second.render()


async def test_a_background_task_that_fails_is_logged_and_counted(lines: io.StringIO) -> None:
    metrics = Metrics("1")
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(metrics.report_failures)

    async def fail() -> None:
        raise ValueError("why")

    tasks = Tasks("replay")
    tasks.start(fail(), "job 7")
    await tasks.join()
    line = json.loads(lines.getvalue())
    assert (line["event"], line["task"], line["name"]) == ("task.failed", "replay", "job 7")
    assert "ValueError: why" in line["exception"]
    assert b'amqpgw_task_failures_total{task="replay"} 1.0' in metrics.render()
    loop.call_exception_handler({"message": "a callback failed"})
    assert json.loads(lines.getvalue().splitlines()[1])["logger"] == "asyncio"
