"""Messages to brokers, and what became of them, in the ledger."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from gateway.amqp.message import Message, Properties
from gateway.core import Gateway, Publication, PublishOutcome
from gateway.core.publishing import publisher
from gateway.core.publishing.publisher import OUTCOMES, Publisher, outcome_of
from gateway.errors import (
    BrokerUnavailable,
    CommitUnknown,
    EncodeError,
    GatewayError,
    LedgerUnavailable,
    NoSuchBroker,
    NotFound,
    NotRecorded,
    OutcomeUnknown,
    PublishRefused,
    Unroutable,
    remote_error,
)
from gateway.fidelity import annotation
from gateway.ledger import EventKind, Ledger, MessageIds, parse_id
from gateway.ledger.db.disk import Disk
from gateway.ledger.pending.outbox import OutboxStore
from gateway.observing.telemetry import Metrics
from gateway.session import Capabilities
from gateway.upstreams import UpstreamState
from tests.core.fakes import FakeUpstream

PERSISTENT = Properties(delivery_mode=2)


def message(body: bytes = b"hello", key: str = "orders", **more: Any) -> Publication:
    return Publication(key, Message(body, Properties(delivery_mode=2)), **more)


async def kinds(gateway: Gateway, result: PublishOutcome) -> list[str]:
    return [event.kind.value for event in (await gateway.timeline(result.id)).events]


async def test_a_confirmed_message_is_in_the_ledger(gateway: Gateway, upstream: FakeUpstream) -> None:
    (result,) = await gateway.publish("fake", "", [message()], "alice")
    assert (result.error, result.routed, result.durable) == (None, True, True)
    timeline = await gateway.timeline(result.id)
    assert [event.kind for event in timeline.events] == [EventKind.ACCEPTED, EventKind.CONFIRMED]
    assert (timeline.message.client, timeline.message.size, timeline.message.version) == ("alice", 5, "0-9-1")


async def test_the_message_carries_our_id(gateway: Gateway, upstream: FakeUpstream) -> None:
    (result,) = await gateway.publish("fake", "", [message()])
    (_, _, sent) = upstream.published[0]
    assert annotation(sent.properties, "id") == result.id


async def test_a_broker_may_be_spared_the_header(ledger: Ledger) -> None:
    upstream = FakeUpstream(annotate=False)
    gateway = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32)  # type: ignore[dict-item]
    await gateway.publish("fake", "", [message()])
    assert upstream.published[0][2].properties.headers is None


async def test_a_batch_keeps_its_order(gateway: Gateway, upstream: FakeUpstream) -> None:
    results = await gateway.publish("fake", "", [message(str(n).encode()) for n in range(100)])
    assert [body for _, _, sent in upstream.published for body in [sent.body]] == [str(n).encode() for n in range(100)]
    assert len({result.id for result in results}) == 100
    assert [result.id for result in results] == sorted(result.id for result in results)


async def test_not_routed(gateway: Gateway) -> None:
    results = await gateway.publish("fake", "", [message(key="nowhere", mandatory=False), message(key="nowhere")])
    assert (results[0].error, results[0].routed, results[0].durable) == (None, False, False)
    assert isinstance(results[1].error, Unroutable)
    assert await kinds(gateway, results[0]) == ["accepted", "unroutable"]
    assert await kinds(gateway, results[1]) == ["accepted", "unroutable"]


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (PublishRefused("full"), "refused"),
        (OutcomeUnknown("the channel died"), "unknown"),
        (EncodeError("message_id is too long"), "not_sent"),
        (BrokerUnavailable("blocked"), "not_sent"),
        (remote_error(403, "ACCESS_REFUSED"), "refused"),
    ],
)
async def test_every_outcome_is_recorded(
    gateway: Gateway, upstream: FakeUpstream, failure: GatewayError, kind: str
) -> None:
    upstream.failure = failure
    (result,) = await gateway.publish("fake", "", [message()])
    assert result.error is failure
    assert await kinds(gateway, result) == ["accepted", kind]


async def test_unknown_exchange_and_broker(gateway: Gateway) -> None:
    (result,) = await gateway.publish("fake", "missing", [message()])
    assert isinstance(result.error, NotFound)
    with pytest.raises(NoSuchBroker):
        await gateway.publish("missing", "", [message()])


async def test_a_broker_that_is_away(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.state = UpstreamState.DOWN
    (result,) = await gateway.publish("fake", "", [message()])
    assert isinstance(result.error, BrokerUnavailable)
    assert result.error.retry_after == 3.0


async def test_the_queues_that_were_seen_last_are_known(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.core.publishing.publisher.KNOWN_QUEUES_MAX", 2)
    publisher = gateway._publisher

    def known(*queues: str) -> list[str]:
        return [queue for queue in queues if not publisher._is_durable("fake", "", message(key=queue))]

    for queue in ("a", "b", "a"):
        publisher.know_queue("fake", queue, durable=False)
    assert known("a", "b") == ["a", "b"]
    publisher.know_queue("fake", "c", durable=False)
    assert known("a", "b", "c") == ["a", "c"]


async def test_durable_needs_mode_queue_and_broker(gateway: Gateway, upstream: FakeUpstream) -> None:
    transient = Publication("orders", Message(b"", Properties(delivery_mode=1)))
    assert [result.durable for result in await gateway.publish("fake", "", [transient, message()])] == [False, True]
    await gateway.topology.declare_queue("fake", "passing", durable=False, auto_delete=False, arguments={}, spec={})
    assert not (await gateway.publish("fake", "", [message(key="passing")]))[0].durable
    upstream.capabilities = Capabilities(durable_storage=False)
    assert not (await gateway.publish("fake", "", [message()]))[0].durable


async def test_a_ledger_that_is_away_refuses_before_anything_is_sent(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ledger, "healthy", property(lambda self: False))
    with pytest.raises(LedgerUnavailable):
        await gateway.publish("fake", "", [message()])
    assert not upstream.published


async def test_a_ledger_that_fails_after_the_confirm_leaves_it_unknown(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def record(self: Ledger, entries: object) -> list[int]:
        raise LedgerUnavailable("full")

    monkeypatch.setattr(Ledger, "record", record)
    with pytest.raises(NotRecorded) as caught:
        await gateway.publish("fake", "", [message()])
    assert caught.value.outcome == "unknown"
    assert len(upstream.published) == 1


async def test_with_intent_always_the_ledger_is_first(ledger: Ledger, upstream: FakeUpstream) -> None:
    gateway = Gateway(
        ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32, intent_always=True  # type: ignore[dict-item]
    )  # fmt: skip
    upstream.held = []
    import asyncio

    task = asyncio.create_task(gateway.publish("fake", "", [message()]))
    while not upstream.held:
        await asyncio.sleep(0.01)
    (stored,), _ = await ledger.messages()
    assert stored.state == "accepted"
    upstream.confirm_held()
    (result,) = await task
    assert parse_id(result.id) == stored.id
    assert await kinds(gateway, result) == ["accepted", "confirmed"]


@pytest.mark.parametrize("always", [False, True])
async def test_what_was_not_sent_is_not_in_doubt(
    ledger: Ledger, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, always: bool
) -> None:
    """Whether or not the ledger knows of it."""
    gateway = Gateway(
        ledger,
        {"fake": upstream},
        Metrics("test"),
        ack_key=b"k" * 32,
        intent_always=always,  # type: ignore[dict-item]
    )
    upstream.failure = BrokerUnavailable("away")

    async def cut_off(entries: Any) -> Any:
        raise CommitUnknown("cut off")

    monkeypatch.setattr(ledger, "record", cut_off)
    with pytest.raises(LedgerUnavailable, match="not sent") as caught:
        await gateway.publish("fake", "", [message()])
    assert caught.value.outcome == "not_sent"
    assert not upstream.published


@pytest.mark.parametrize("away", [False, True])
async def test_with_intent_always_an_outcome_is_recorded_when_the_ledger_is_back(
    ledger: Ledger, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    gateway = Gateway(
        ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32, intent_always=True  # type: ignore[dict-item]
    )  # fmt: skip
    original, calls = OutboxStore.settle_publishes, 0

    async def settle(self: OutboxStore, done: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in (1, 2):
            raise LedgerUnavailable("full")
        return await original(self, done)

    monkeypatch.setattr(OutboxStore, "settle_publishes", settle)
    if away:
        upstream.state = UpstreamState.DOWN
    with pytest.raises(LedgerUnavailable) as caught:
        await gateway.publish("fake", "", [message()])
    assert isinstance(caught.value, NotRecorded) is not away
    (stored,), _ = await ledger.messages()
    assert stored.state == "accepted"
    await gateway._publisher._late.join()
    (stored,), _ = await ledger.messages()
    assert stored.state == ("not_sent" if away else "confirmed")
    assert calls == 3


async def test_an_outcome_that_the_ledger_never_records_holds_up_no_end(
    ledger: Ledger, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Publisher(ledger, MessageIds(), Metrics("test"), True)
    publish = asyncio.create_task(publisher.publish(upstream, "", [message()], "", 5.0))  # type: ignore[arg-type]
    upstream.held = []
    while not upstream.held:
        await asyncio.sleep(0.01)
    monkeypatch.setattr(OutboxStore, "settle_publishes", AsyncMock(side_effect=LedgerUnavailable("full")))
    upstream.confirm_held()
    with pytest.raises(NotRecorded):
        await publish
    await publisher.close(0.0)
    assert not publisher._late


def test_every_error_of_a_publish_has_an_event() -> None:
    for kind in OUTCOMES:
        error = kind.__new__(kind)
        assert outcome_of(PublishOutcome("x", error))[0] is OUTCOMES[kind]


# ---------------------------------------------------------------------------------------------- long calls


async def test_a_long_call_is_recorded_in_parts_and_keeps_its_order(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "GROUP", 3)
    batch = [message(b"%d" % index, "orders" if index != 4 else "nowhere", mandatory=True) for index in range(8)]
    results = await gateway.publish("fake", "", batch)
    assert [sent.body for _, _, sent in upstream.published] == [b"%d" % index for index in range(8)]
    assert [type(result.error) for result in results] == [*[type(None)] * 4, Unroutable, *[type(None)] * 3]
    for item, result in zip(batch, results, strict=True):
        assert result.id == item.text
        assert (await kinds(gateway, result))[0] == "accepted"
    assert await kinds(gateway, results[4]) == ["accepted", "unroutable"]
    assert await kinds(gateway, results[7]) == ["accepted", "confirmed"]


async def test_others_have_their_turn_during_a_long_call(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "GROUP", 3)
    await asyncio.gather(
        gateway.publish("fake", "", [message(b"long") for _ in range(9)]),
        gateway.publish("fake", "", [message(b"short")]),
    )
    bodies = [sent.body for _, _, sent in upstream.published]
    assert 3 <= bodies.index(b"short") < 9


async def test_calls_of_one_order_do_not_mix(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "GROUP", 3)
    calls = [[message(b"%d" % index) for index in range(begin, begin + 5)] for begin in (0, 5)]
    await asyncio.gather(*(gateway.publish("fake", "", call, order="o") for call in calls))
    assert [sent.body for _, _, sent in upstream.published] == [b"%d" % index for index in range(10)]


class Failing:
    """A ledger of which the writes whose number is in ``fail`` go wrong."""

    deliveries = SimpleNamespace(keeps_bodies=False)
    disk = Disk(None, 0)

    def __init__(self, *fail: int) -> None:
        self.healthy = True
        self.calls = 0
        self.fail = fail

    async def record(self, entries: Any) -> list[int]:
        self.calls += 1
        await asyncio.sleep(0)
        if self.calls in self.fail:
            raise LedgerUnavailable("the disk is full")
        return []


@pytest.mark.parametrize(
    ("away", "fail", "error"),
    [
        (False, (2,), NotRecorded),  # all was sent, a part of it is not in the ledger
        (True, (1, 2, 3), LedgerUnavailable),  # nothing was sent
        (True, (2,), NotRecorded),  # a part of it is in the ledger as not sent
    ],
)
async def test_a_long_call_of_which_a_part_is_not_recorded(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, away: bool, fail: tuple[int, ...], error: type[Exception]
) -> None:
    monkeypatch.setattr(publisher, "GROUP", 3)
    failing = Publisher(Failing(*fail), MessageIds(), Metrics("test"), False)  # type: ignore[arg-type]
    if away:
        upstream.failure = BrokerUnavailable("away")
    with pytest.raises(LedgerUnavailable) as caught:
        await failing.publish(upstream, "", [message() for _ in range(9)], "", 5.0)  # type: ignore[arg-type]
    assert type(caught.value) is error


async def test_of_a_call_that_is_given_up_nothing_more_is_sent(gateway: Gateway, upstream: FakeUpstream) -> None:
    """The first is left out, and would come behind the others when it is sent again."""
    upstream.held = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await gateway.publish("fake", "", [message() for _ in range(3)])
    assert [future.cancelled() for future in upstream.held] == [True] * 3


async def test_a_long_call_that_is_given_up_leaves_nothing_behind(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "GROUP", 3)
    upstream.held = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await gateway.publish("fake", "", [message() for _ in range(9)])
    assert len(upstream.held) == 9
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "group"]
