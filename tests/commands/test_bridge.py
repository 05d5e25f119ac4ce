"""``gateway bridge``: the line, and when it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway import commands
from gateway.commands.bridge import line, total_of
from gateway.runtime.clock import clock
from gateway.terminal import ERASE, Progress
from tests.commands.conftest import Canned, Run

IDLE: dict[str, Any] = {
    "name": "orders", "state": "running", "reason": "", "taken": 0, "forwarded": 0, "rate": 0.0, "lag": None,
    "losses": {}, "source_messages": None, "in_flight": 0, "dead_lettered": 0, "duplicates_dropped": 0, "filtered": 0,
    "looped": 0, "resent": 0, "oversized": 0, "settings": {"mode": "move"},
}  # fmt: skip
Watch = Callable[..., Any]


@pytest.fixture
def watch(run: Run, canned: Canned) -> Watch:
    """``watch([state, ...], option, ...)``: the bridge goes through these states; the last one stays."""

    def watch(states: list[dict[str, Any]], *options: str) -> Any:
        left = [json.dumps(IDLE | state).encode() for state in states]
        canned.body_of = lambda: left.pop(0) if len(left) > 1 else left[0]
        return run("bridges", "watch", "orders", "--url", canned.url, "--interval", "0.1", *options)

    return watch


def test_the_line() -> None:
    busy = {
        "state": "error",
        "reason": "target: gone\x1b[2J",
        "forwarded": 1_234_567,
        "rate": 4_321.4,
        "lag": 0.00123,
        "losses": {"a": 1, "b": 1_000},
        "source_messages": 9_876,
        "in_flight": 500,
        "dead_lettered": 1,
        "duplicates_dropped": 2,
        "filtered": 3,
        "looped": 4,
        "resent": 5,
        "oversized": 6,
    }
    assert line(IDLE | busy) == (
        "orders error  done 1,234,567  left 9,876  rate 4,321/s  lag 1.2 ms  losses 1,001  in flight 500  "
        "dead-lettered 1  duplicates dropped 2  filtered 3  looped 4  resent 5  oversized 6  target: gone\\x1b[2J"
    )
    assert line(IDLE) == "orders running  done 0  left -  rate 0/s  lag -  losses 0"


def test_how_much_there_is() -> None:
    busy = IDLE | {"forwarded": 60, "source_messages": 30, "in_flight": 10}
    assert total_of(busy, None) == 100
    assert total_of(busy, 80) == 80
    assert total_of(IDLE, None) is None
    assert total_of(busy | {"settings": {"mode": "mirror"}}, None) is None


def test_the_line_has_percentage_and_remaining_time(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes only while the command waits: ten seconds between two looks."""
    now = 0.0

    def wait(_: float) -> None:
        nonlocal now
        now += 10.0

    monkeypatch.setattr(clock, "monotonic", lambda: now)
    monkeypatch.setattr(clock, "block", wait)
    states = [
        {"forwarded": 7_000, "source_messages": 13_000},
        {"forwarded": 8_000, "source_messages": 11_900, "in_flight": 100, "rate": 100.0, "lag": 0.134},
        {"forwarded": 20_000, "source_messages": 0},
    ]
    first, second, last, same = watch(states, "--until-empty").stdout.splitlines()
    assert first.startswith("orders running  35%  done 7,000")
    assert second.startswith("orders running  40%  about 2 min left  done 8,000  left 11,900  rate 100/s  lag 134.0 ms")
    assert len("orders running  40%  about 2 min left  done 8,000  left 11,900  rate 100/s") < 80
    assert last == same == "orders running  100%  done 20,000  left 0  rate 0/s  lag -  losses 0"
    rows = watch(states, "--until-empty", "--output", "tsv").stdout.splitlines()
    assert [len(row.split("\t")) for row in rows] == [len(IDLE) - 2] * 5
    for form in ("json", "yaml"):
        assert "%" not in watch(states, "--until-empty", "--output", form).stdout


def test_once(watch: Watch, canned: Canned) -> None:
    result = watch([{"forwarded": 3}], "--once")
    assert (result.exit_code, result.stdout) == (0, line(IDLE | {"forwarded": 3}) + "\n")
    assert [path for _, path, _, _ in canned.asked] == ["/v1/bridges/orders"]


def test_json_is_one_object_a_line(watch: Watch) -> None:
    result = watch([{"forwarded": 1}, {"forwarded": 2}], "--json", "--count", "2")
    assert [json.loads(text)["forwarded"] for text in result.stdout.splitlines()] == [1, 2]


def test_until_so_many_are_done(watch: Watch) -> None:
    result = watch([{"forwarded": 1}, {"forwarded": 4}, {"forwarded": 11}, {"forwarded": 12}], "--count", "10")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 3)


def test_until_it_is_empty_twice_with_nothing_taken_in_between(watch: Watch) -> None:
    states = [
        {"source_messages": 5},
        {"source_messages": 0, "in_flight": 5, "taken": 5},
        {"source_messages": 0, "taken": 5},
        {"source_messages": 0, "taken": 6},
        {"source_messages": 3, "taken": 6},
        {"source_messages": 0, "taken": 9},
        {"source_messages": 0, "taken": 9},
        {"source_messages": 0, "taken": 10},
    ]
    result = watch(states, "--until-empty")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 7)


def test_a_bridge_that_has_stopped_is_the_end(watch: Watch) -> None:
    stopped = {"state": "stopped", "reason": "drained", "forwarded": 3}
    assert watch([{}, stopped]).exit_code == 0
    assert watch([{}, stopped], "--until-empty").exit_code == 0
    assert watch([{}, stopped], "--count", "3").exit_code == 0
    early = watch([{}, stopped], "--count", "4")
    assert (early.exit_code, early.stderr) == (commands.FAILED, "gateway: orders has stopped: drained\n")
    closing = watch([{"state": "stopped"}], "--count", "4")
    assert closing.stderr == "gateway: orders has stopped: the gateway is closing\n"


def test_waiting_ends(watch: Watch) -> None:
    result = watch([{"source_messages": 7}], "--until-empty", "--timeout", "0.25")
    assert result.exit_code == commands.FAILED
    assert result.stderr == "gateway: orders: what was waited for did not happen in 0.25 s\n"
    assert set(result.stdout.splitlines()) == {line(IDLE | {"source_messages": 7}, 7)}


def test_no_such_bridge(run: Run, canned: Canned) -> None:
    canned.answer(404, {"code": "no_such_bridge", "detail": "no bridge 'orders'"})
    result = run("bridge", "orders", "--url", canned.url)
    assert (result.exit_code, result.stdout) == (commands.NOT_FOUND, "")


def test_on_a_terminal_the_line_is_drawn_again(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progress, "is_terminal", staticmethod(lambda is_result: True))
    monkeypatch.setenv("COLUMNS", "31")
    states = [{"forwarded": 1}, {"forwarded": 2}]
    result = watch(states, "--count", "2")
    drawn = [line(IDLE | state, 2) for state in states]
    assert result.stdout == f"{ERASE}{drawn[0][:30]}{ERASE}{drawn[1][:30]}{ERASE}{drawn[1]}\n"
    assert "50%" in drawn[0][:30]


def test_ctrl_c_is_the_usual_end_and_none_for_a_script(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gateway.runtime.clock.clock.block", interrupt)
    assert watch([{}]).exit_code == 0
    assert watch([{}], "--until-empty").exit_code == 1
    assert watch([{}], "--count", "1").exit_code == 1
