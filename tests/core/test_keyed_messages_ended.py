"""Messages with a key: which of them wait for others, and what ends them when the gateway leaves or is at fault."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core import Gateway
from gateway.core.publishing import keyed_messages as module
from gateway.core.publishing import publisher
from gateway.errors import BrokerUnavailable, LedgerUnavailable, NotRecorded, OutcomeUnknown, Overloaded
from gateway.ledger import Ledger
from gateway.ledger.pending.keyring import Keyring
from gateway.observing.telemetry import Metrics
from gateway.upstreams import PublishReceipt
from tests.core.fakes import FakeUpstream
from tests.core.test_keyed_messages import bodies, errors, message, numbered, publish
from tests.core.test_publishing import message as plain


def tasks() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "keyed messages"]


async def until_published(upstream: FakeUpstream, count: int) -> None:
    async with asyncio.timeout(5):
        while len(upstream.published) < count:
            await asyncio.sleep(0.005)


async def test_as_many_as_may_be_under_way(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNDER_WAY_MAX", 2)
    assert [result.key for result in await publish(gateway, *numbered(2))] == ["done"] * 2
    with pytest.raises(Overloaded):
        await publish(gateway, *numbered(3, 2))
    assert len(upstream.published) == 2


async def test_nothing_is_remembered_of_what_has_ended(gateway: Gateway, upstream: FakeUpstream) -> None:
    """Or memory would grow with each key and each order."""
    keyed = gateway._keyed_messages
    upstream.held = []
    first = asyncio.create_task(publish(gateway, *numbered(2), order="o"))
    await until_published(upstream, 2)
    assert keyed.has([message("k")], None)
    assert not keyed.has([plain()], None)
    assert not keyed.has([plain()], "another")
    upstream.confirm_held()
    await first
    upstream.failure = BrokerUnavailable("away")
    await publish(gateway, *numbered(2, 2), order="o")
    async with asyncio.timeout(5):
        while tasks():
            await asyncio.sleep(0.005)
    assert not keyed.has([plain()], "o")
    assert (keyed._under_way, keyed._tasks) == ({}, set())


async def test_others_have_their_turn_during_a_long_call(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "GROUP", 3)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    made: list[int] = []
    give_ids = gateway._publisher.give_ids

    def counted(items: Any) -> None:
        made.append(turns)
        give_ids(items)

    monkeypatch.setattr(gateway._publisher, "give_ids", counted)
    task = asyncio.create_task(other())
    results = await publish(gateway, *numbered(7))
    task.cancel()
    assert [result.key for result in results] == ["done"] * 7
    assert bodies(upstream) == [b"%d" % number for number in range(7)]
    assert len(made) == 3
    assert made[0] < made[1] < made[2]


async def test_who_joins_has_the_id_and_the_outcome_of_the_first(gateway: Gateway, upstream: FakeUpstream) -> None:
    gateway.confirm_timeout = 0.3
    upstream.held = []
    first, second = await asyncio.gather(publish(gateway, message("k")), publish(gateway, message("k")))
    assert (first[0].id, errors(first), first[0].key) == (second[0].id, [OutcomeUnknown], "")
    assert (errors(second), second[0].key) == ([OutcomeUnknown], "")
    gateway.confirm_timeout = 5.0
    third = asyncio.create_task(publish(gateway, message("k")))
    await asyncio.sleep(0.01)
    upstream.confirm_held()
    (result,) = await third
    assert (result.id, result.key, result.error) == (first[0].id, "repeated", None)


async def test_who_joins_what_is_not_taken_may_send_it_again(gateway: Gateway, upstream: FakeUpstream) -> None:
    """It is no repeat: nothing of the first is kept."""
    upstream.failure = BrokerUnavailable("away")
    first, second = await asyncio.gather(publish(gateway, message("k")), publish(gateway, message("k")))
    assert [first[0].key, second[0].key] == ["", ""]
    assert errors(first) == errors(second) == [BrokerUnavailable]
    upstream.failure = None
    assert (await publish(gateway, message("k")))[0].key == "done"


async def test_a_key_twice_in_one_call_is_published_once(gateway: Gateway, upstream: FakeUpstream) -> None:
    results = await publish(gateway, message("k"), plain(b"x"), message("k"), message("k", b"other"))
    assert [result.key for result in results] == ["done", "", "repeated", ""]
    assert results[0].id == results[2].id
    assert [type(error).__name__ for error in (results[3].error,)] == ["KeyReused"]
    assert bodies(upstream) == [b"hello", b"x"]


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_gateway_that_leaves_tells_all_who_wait(
    gateway: Gateway, upstream: FakeUpstream, is_late: bool
) -> None:
    """Also those who joined. What has no outcome by then is resolved at the next start."""
    gateway.confirm_timeout = 60.0
    upstream.held = []
    first = asyncio.create_task(publish(gateway, *numbered(2), plain(b"x")))
    await until_published(upstream, 3)
    second = asyncio.create_task(publish(gateway, *numbered(1)))
    await asyncio.sleep(0.01)
    if not is_late:
        asyncio.get_running_loop().call_later(0.02, upstream.confirm_held)
    async with asyncio.timeout(5):
        await gateway._keyed_messages.close(0.05 if is_late else 5.0)
        assert not tasks()
        results = [*(await first), *(await second)]
    if is_late:
        assert errors(results) == [OutcomeUnknown] * 4
        assert [result.id for result in results[3:]] == [results[0].id]
    else:
        assert [result.key for result in results] == ["done", "done", "", "repeated"]
    await gateway._keyed_messages.close(1.0)


async def test_a_fault_with_what_is_late_undoes_nothing_that_has_ended(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.confirm_timeout = 0.3
    publish_nowait = upstream.publish_nowait
    held: list[Any] = []

    def hold_the_second(*arguments: Any, **options: Any) -> Any:
        upstream.held = held if arguments[2].body == b"1" else None
        return publish_nowait(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(upstream, "publish_nowait", hold_the_second)
        results = await publish(gateway, *numbered(2))
    assert [result.key for result in results] == ["done", ""]
    ended: list[list[str]] = []
    end = Keyring.end

    async def watched(self: Keyring, client: str, keys: Any) -> Any:
        ended.append([each.key for each in keys])
        return await end(self, client, keys)

    events = gateway._publisher.events

    def fail_once(*arguments: Any) -> Any:
        monkeypatch.setattr(gateway._publisher, "events", events)
        raise ValueError("a fault of ours")

    monkeypatch.setattr(Keyring, "end", watched)
    monkeypatch.setattr(gateway._publisher, "events", fail_once)
    held[0].set_result(PublishReceipt(True))
    async with asyncio.timeout(5):
        while tasks():
            await asyncio.sleep(0.005)
    assert ended == [["k1"]]
    upstream.held = None
    gateway.confirm_timeout = 5.0
    again = await publish(gateway, *numbered(2))
    assert [(result.id, result.key) for result in again] == [(results[0].id, "repeated"), (results[1].id, "done")]
    assert again[1].resent


@pytest.mark.parametrize("always", [False, True])
async def test_messages_without_a_key_hear_of_a_ledger_that_is_away(
    ledger: Ledger, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, always: bool
) -> None:
    """With ``intent = "always"`` they are not sent, and those with a key are."""
    broker: Any = upstream
    gateway = Gateway(ledger, {"fake": broker}, Metrics("test"), ack_key=b"k" * 32, intent_always=always)

    async def away(entries: Any) -> Any:
        raise LedgerUnavailable("away")

    monkeypatch.setattr(ledger, "record", away)
    results = await gateway.publish("fake", "", [message("k"), plain(b"x")], "alice")
    assert [result.key for result in results] == ["done", ""]
    assert type(results[1].error) is (LedgerUnavailable if always else NotRecorded)
    assert not results[1].routed
    assert bodies(upstream) == ([b"hello"] if always else [b"hello", b"x"])
