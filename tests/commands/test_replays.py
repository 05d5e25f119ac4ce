"""``gateway replays`` and ``gateway dlq``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import Result

from gateway import commands
from gateway.commands.progress import bar, replay_line
from gateway.runtime.clock import clock
from tests.commands.conftest import Canned, Run

Gateway = Callable[..., Result]
JOB: dict[str, Any] = {
    "id": "r1", "state": "done", "reason": "", "asked_at": "2026-11-21T00:00:00Z", "total": 4, "found": 4, "sent": 3,
    "skipped": 1, "refused": {}, "resent": 0,
}  # fmt: skip


@pytest.fixture
def ask(run: Run, gateway: str, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    """A verb on the gateway that runs."""
    monkeypatch.setenv("GATEWAY_URL", gateway)
    return run


@pytest.fixture
def queues(ask: Gateway, unique_name: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """A queue and its dead-letter queue, with five dead messages in it."""
    name = unique_name("orders")
    dead = f"{name}.dead"
    arguments = json.dumps({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-message-ttl": 1})
    assert ask("queues", "declare", "local-0-9-1", dead).exit_code == 0
    assert ask("queues", "declare", "local-0-9-1", name, "--arguments", arguments).exit_code == 0
    for number in range(5):
        assert ask("publish", "local-0-9-1", "amq.default", name, f"m{number}").exit_code == 0
    for _ in range(200):
        if json.loads(ask("queues", "show", "local-0-9-1", dead, "--json").stdout)["messages"] == 5:
            break
    yield name, dead
    for each in (name, dead):
        ask("queues", "delete", "local-0-9-1", each, "--yes")


def test_a_dead_letter_queue_is_shown_and_driven_to_another_queue(
    ask: Gateway, queues: tuple[str, str], unique_name: Callable[[str], str]
) -> None:
    name, dead = queues
    other = unique_name("other")
    assert ask("queues", "declare", "local-0-10", other).exit_code == 0
    where = ("--broker", "local-0-9-1", "--queue", dead)
    listed = ask("dlq", "list", *where)
    assert listed.exit_code == 0, listed.output
    assert f"local-0-9-1: {name}" in listed.stdout
    assert listed.stderr == "5 messages; nothing was sent\n"
    assert "5" in ask("dlq", "show", *where).stdout
    to = ("--to-broker", "local-0-10", "--to-exchange", "amq.default", "--to-routing-key", other)
    redriven = ask("dlq", "redrive", *where, *to, "--id", f"redrive-{dead}")
    assert redriven.exit_code == 0, redriven.output
    assert "done  5 of 5  sent 5" in redriven.stderr.splitlines()[-1]
    assert ask("dlq", "redrive", *where, *to, "--id", f"redrive-{dead}").exit_code == 0  # nothing twice
    pulled = ask("pull", "local-0-10", other, "--max", "20", "--json")
    assert [each["message"]["payload"] for each in json.loads(pulled.stdout)["messages"]] == [f"m{n}" for n in range(5)]
    shown = ask("replays", "show", f"redrive-{dead}", "--json")
    assert json.loads(shown.stdout)["runs"] == 2
    assert f"redrive-{dead}" in ask("replays", "list").stdout
    assert ask("dlq", "purge", *where, "--yes").stderr.startswith("done; 0 messages")


def test_what_is_not_sent_is_named(ask: Gateway, queues: tuple[str, str]) -> None:
    _, dead = queues
    nowhere = ("--to-exchange", "amq.default", "--to-routing-key", "no-such-queue")
    result = ask("replays", "queue", "local-0-9-1", dead, *nowhere, "--id", dead)
    assert result.exit_code == commands.NOT_FOUND
    assert "target.routing_key: the queue 'no-such-queue' is not there" in result.stderr
    to = ("--to-exchange", "amq.direct", "--to-routing-key", "no-such-queue")
    result = ask("replays", "queue", "local-0-9-1", dead, *to, "--id", dead)
    assert result.exit_code == commands.FAILED
    assert "is failed: none of the 5 messages was sent: unroutable 5." in result.stderr
    refused = ask("replays", "show", dead, "--refused")
    assert refused.stdout.count("unroutable") == 5
    assert len(json.loads(ask("replays", "show", dead, "--refused", "--json").stdout)["refused"]) == 5


def test_messages_without_bodies(ask: Gateway, queues: tuple[str, str]) -> None:
    name, _ = queues
    result = ask("replays", "messages", "--broker", "local-0-9-1", "--routing-key", name, "--dry-run")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("the ledger does not keep its body") == 5
    *_, count, advice, last = result.stderr.splitlines()
    assert (count, last) == ("5 cannot be sent: no_body", "0 messages; nothing was sent")
    assert advice.startswith('retention.bodies = "days"')


def test_nothing_of_that_name(ask: Gateway) -> None:
    for verb in ("show", "watch", "pause", "resume", "cancel"):
        assert ask("replays", verb, "none").exit_code == commands.NOT_FOUND
    assert ask("dlq", "show", "none").exit_code == commands.NOT_FOUND
    assert ask("dlq", "list").exit_code == 0
    assert ask("dlq", "redrive").exit_code == 0
    assert ask("dlq", "purge", "--dry-run").stderr == "0 dead messages; nothing was deleted\n"
    assert ask("dlq", "purge", "--yes").stderr == "0 deleted\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("dlq", "list", "--broker", "b"),
        ("dlq", "list", "--queue", "q"),
        ("dlq", "redrive", "--broker", "b", "--queue", "q", "--since", "1h"),
        ("dlq", "redrive", "x", "--broker", "b", "--queue", "q"),
        ("dlq", "show"),
    ],
)
def test_wrong_usage(run: Run, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == commands.USAGE


# --------------------------------------------------------------------------------------------- what is asked


def test_filters_and_target_as_the_api_has_them(run: Run, canned: Canned) -> None:
    canned.answer(201, JOB)
    given = (
        "--exchange",
        "amq.default",
        "--since",
        "2026-01-01T00:00:00Z",
        "--message",
        "a",
        "--rate",
        "5",
        "--detach",
    )
    result = run("replays", "messages", *given, "--to-url", "https://x.example", "--url", canned.url)
    assert (result.exit_code, result.stdout) == (0, "r1\n")
    assert canned.asked[0][3] == {
        "source": {"messages": {"exchange": "amq.default", "since": "2026-01-01T00:00:00Z", "ids": ["a"]}},
        "target": {"url": "https://x.example"},
        "rate": 5.0,
        "dry_run": False,
    }
    run("dlq", "redrive", "a", "b", "--url", canned.url)
    run("dlq", "redrive", "--subscription", "billing", "--url", canned.url)
    sources = [body["source"] for _, _, _, body in canned.asked if body]
    assert sources[1:] == [{"deliveries": {"ids": ["a", "b"]}}, {"deliveries": {"subscription": "billing"}}]


def test_dead_messages_are_counted_and_deleted_by_code(run: Run, canned: Canned) -> None:
    group = {
        "code": "rejected", "meaning": "a consumer rejected it", "subscription": "billing", "endpoint": None,
        "count": 7, "more": True, "first_at": "2026-01-01T00:00:00Z", "last_at": "2026-01-02T00:00:00Z",
        "deliveries": "/v1/deliveries",
    }  # fmt: skip
    canned.answer(200, {"groups": [group], "more": True})
    result = run("dlq", "groups", "--code", "rejected", "--endpoint", "hook", "--url", canned.url)
    assert re.search(r"rejected +billing +- +7\+ .* a consumer rejected it", result.stdout)
    assert "There are more groups" in result.output
    assert canned.asked[-1][1] == "/v1/dead-letters?code=rejected&endpoint=hook"
    assert json.loads(run("dlq", "groups", "--json", "--url", canned.url).stdout) == {"groups": [group], "more": True}
    canned.answer(201, JOB)
    given = ("--code", "rejected", "--endpoint", "hook", "--yes", "--detach")
    result = run("dlq", "purge", *given, "--url", canned.url)
    assert (result.exit_code, result.stdout) == (0, "r1\n")
    source = {"deliveries": {"endpoint": "hook", "code": "rejected"}}
    assert canned.asked[-1][3] == {"source": source, "target": {"purge": True}}
    queue = ("--broker", "shop", "--queue", "dead", "--yes")
    assert run("dlq", "purge", *queue, "--detach", "--url", canned.url).exit_code == 2
    assert "--code" in run("dlq", "list", *queue[:4], "--code", "rejected", "--url", canned.url).output


def test_a_replay_is_watched_to_its_end(run: Run, canned: Canned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.commands.replays.LOOK_EVERY", 0.0)
    states = iter([("running", 1), ("running", 2), ("failed", 2)])

    def body() -> bytes:
        state, found = next(states)
        return json.dumps({**JOB, "state": state, "found": found, "reason": "no such exchange"}).encode()

    canned.body_of = body
    result = run("replays", "watch", "r1", "--url", canned.url, "--json")
    assert result.exit_code == commands.FAILED
    assert [json.loads(line)["found"] for line in result.stdout.splitlines()] == [1, 2, 2]
    assert "is failed: no such exchange" in result.stderr


def test_the_percentage_and_the_remaining_time_of_a_replay(
    run: Run, canned: Canned, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def wait(_: float) -> None:
        nonlocal now
        now += 10.0

    monkeypatch.setattr(clock, "monotonic", lambda: now)
    monkeypatch.setattr(clock, "block", wait)
    states = iter([("running", 0), ("running", 4_000), ("done", 10_000)])

    def body() -> bytes:
        state, found = next(states)
        done = {"state": state, "found": found, "sent": found, "total": 10_000, "skipped": 0}
        return json.dumps({**JOB, **done}).encode()

    canned.body_of = body
    result = run("replays", "watch", "r1", "--url", canned.url)
    assert (result.exit_code, result.stdout) == (0, "")
    lines = result.stderr.splitlines()
    assert lines == [
        "[--------------------]   0%  running  0 of 10,000  sent 0  r1",
        "[########------------]  40%  about 15 s left  running  4,000 of 10,000  sent 4,000  r1",
        "[####################] 100%  done  10,000 of 10,000  sent 10,000  r1",
    ]


def test_ctrl_c_ends_the_watching_alone(run: Run, canned: Canned, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(clock, "block", interrupt)
    canned.answer(200, {**JOB, "state": "running"})
    result = run("replays", "watch", "r1", "--url", canned.url)
    assert result.exit_code == 1
    assert "The replay goes on. Watch it again: gateway replays watch r1" in result.stderr


def test_steering(run: Run, canned: Canned) -> None:
    canned.answer(200, JOB)
    for verb in ("pause", "resume", "cancel"):
        assert run("replays", verb, "a/b", "--url", canned.url).exit_code == 0
        assert canned.asked[-1][:2] == ("POST", f"/v1/replays/a%2Fb:{verb}")


def test_purging_goes_on_until_nothing_is_left(run: Run, canned: Canned) -> None:
    parts = iter([{"count": 2, "more": True, "sample": []}, {"count": 1, "more": False, "sample": []}])
    canned.body_of = lambda: json.dumps(next(parts)).encode()
    result = run("dlq", "purge", "--subscription", "billing", "--yes", "--json", "--url", canned.url)
    assert json.loads(result.stdout) == {"count": 3}
    assert run("dlq", "purge", "--url", canned.url, input="n\n").exit_code == 1


def test_purging_says_how_far_it_is(run: Run, canned: Canned) -> None:
    parts = iter([{"count": 2, "more": True}, {"count": 6}, {"count": 2, "more": True}, {"count": 4, "more": False}])
    canned.body_of = lambda: json.dumps(next(parts)).encode()
    result = run("dlq", "purge", "--subscription", "billing", "--yes", "--url", canned.url)
    assert result.stderr.splitlines() == [
        "[#####---------------]  25%  2 of 8 deleted",
        "[##########----------]  50%  4 of 8 deleted",
        "8 deleted",
    ]


# ------------------------------------------------------------------------------------------------- the line


def test_the_line() -> None:
    line = replay_line({**JOB, "refused": {"no_body": 2}, "resent": 1, "reason": "a\nb"})
    assert line == f"{bar(4, 4)}  done  4 of 4  sent 3  skipped 1  refused 2  resent 1  r1  a\\nb"
    assert replay_line({**JOB, "total": None, "skipped": 0}) == "done  4  sent 3  r1"
