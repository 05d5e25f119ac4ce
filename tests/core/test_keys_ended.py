"""Requests with a key: what ends them, and what their callers hear when it takes too long or the gateway leaves."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.core import Gateway, KeyedAnswer, KeyedRequest, PublishOutcome
from gateway.core.publishing import keys as module
from gateway.errors import (
    EntriesRefused,
    KeyRunning,
    LedgerUnavailable,
    OutcomeUnknown,
    Overloaded,
    PublishRefused,
)
from gateway.ledger import KeyLost, Ledger, LogEntry, parse_id
from gateway.runtime.backoff import Backoff
from tests.audited import ON_PURPOSE
from tests.core.fakes import FakeUpstream
from tests.core.test_keys import REQUEST, publish
from tests.core.test_publishing import message


def tasks(name: str) -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == name]


async def until_held(upstream: FakeUpstream) -> None:
    async with asyncio.timeout(5):
        while not upstream.held:
            await asyncio.sleep(0.005)


def refusing(monkeypatch: pytest.MonkeyPatch, name: str, *errors: Exception) -> list[int]:
    """The ledger answers the end of a key with errors first. The numbers of events that each call has."""
    real, calls, left = getattr(Ledger, name), [], list(errors)

    async def end(self: Ledger, client: str, key: str, *arguments: Any, **more: Any) -> Any:
        entries: Sequence[LogEntry] = arguments[-1]
        calls.append(len(entries))
        if left:
            raise left.pop(0)
        return await real(self, client, key, *arguments, **more)

    monkeypatch.setattr(Ledger, name, end)
    return calls


async def test_as_many_keys_as_may_be_under_way(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PENDING_MAX", 1)
    upstream.held = []
    first = asyncio.create_task(publish(gateway))
    await until_held(upstream)
    with pytest.raises(Overloaded):
        await publish(gateway, KeyedRequest("alice", "another", b"f" * 32))
    with pytest.raises(KeyRunning):
        await publish(gateway)
    upstream.confirm_held()
    assert (await first).status == 200
    assert (await publish(gateway, KeyedRequest("alice", "another", b"f" * 32))).status == 200


async def test_a_caller_who_is_told_nothing_of_the_outcome_has_the_ids(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.confirm_timeout = 0.3
    monkeypatch.setattr("gateway.core.publishing.keys.LATE_CONFIRM", 100.0)
    upstream.held = []
    told: list[PublishOutcome] = []

    def render(results: list[PublishOutcome]) -> KeyedAnswer:
        told[:] = results
        return KeyedAnswer(504, b"")

    await gateway.publish_keyed(REQUEST, "fake", "", [message(b"1"), message(b"2")], render)
    assert [(type(result.error), result.routed) for result in told] == [(OutcomeUnknown, False)] * 2
    assert len({result.id for result in told}) == 2
    upstream.confirm_held()
    async with asyncio.timeout(5):
        while tasks("keyed publish"):
            await asyncio.sleep(0.005)
    await asyncio.sleep(0)  # its end is noted one turn after it
    assert (await publish(gateway)).replayed


async def test_events_that_cannot_be_stored_keep_no_answer_from_being_kept(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = refusing(monkeypatch, "finish_key", EntriesRefused({0: "a bad row"}))
    answer = await publish(gateway)
    assert (answer.status, len(calls)) == (200, 2)
    assert (await publish(gateway)).body == answer.body
    assert len(upstream.published) == 1
    ON_PURPOSE.add(parse_id(answer.body.decode().split("'")[1]))  # its outcome could not be written


async def test_an_answer_is_kept_after_pauses(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = []

    async def wait(self: Backoff) -> None:
        pauses.append(self.next())

    monkeypatch.setattr(Backoff, "wait", wait)
    refusing(monkeypatch, "finish_key", *[LedgerUnavailable("locked")] * 3)
    assert (await publish(gateway)).status == 200
    assert len(pauses) == 3


async def test_a_failure_of_a_request_that_was_taken_over_is_no_outcome(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that has taken the key over sends the message again."""
    upstream.failure = PublishRefused("full")
    refusing(monkeypatch, "free_key", KeyLost("taken over"))
    answer = await publish(gateway)
    assert b"OutcomeUnknown" in answer.body
    upstream.failure = None


async def test_an_error_that_nobody_waits_for_is_reported_by_nobody(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It belongs to a caller who has left."""
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    upstream.held = []
    first = asyncio.create_task(publish(gateway))
    await until_held(upstream)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    failure = ValueError("a fault of ours")

    def fail(*arguments: Any) -> Any:
        raise failure

    monkeypatch.setattr(gateway._publisher, "events", fail)
    with monkeypatch.context():
        upstream.held[0].set_exception(failure)
        async with asyncio.timeout(5):
            while tasks("keyed publish"):
                await asyncio.sleep(0.005)
    monkeypatch.undo()
    gc.collect()
    await asyncio.sleep(0)
    assert reported == []


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_gateway_that_leaves_gives_its_requests_some_time(
    gateway: Gateway, upstream: FakeUpstream, is_late: bool
) -> None:
    """What has no outcome by then is resolved at the next start."""
    upstream.held = []
    caller = asyncio.create_task(publish(gateway))
    await until_held(upstream)
    if not is_late:
        asyncio.get_running_loop().call_later(0.02, upstream.confirm_held)
    async with asyncio.timeout(5):
        await gateway._keyed.close(0.05 if is_late else 5.0)
    assert not tasks("keyed publish")
    outcome: Any
    (outcome,) = await asyncio.gather(caller, return_exceptions=True)
    assert outcome.status == (504 if is_late else 200)
    await gateway._keyed.close(1.0)
