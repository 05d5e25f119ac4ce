"""What is put into the outbox, and how it is looked at, taken back, retried and given another time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import time
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.budgets import ShareHolder
from gateway.core import Gateway, KeyedRequest, Publication, PublishOutcome
from gateway.core.publishing import sending
from gateway.core.publishing.outbox import Outbox, ScheduledPublish, moment
from gateway.errors import (
    CommitUnknown,
    EncodeError,
    EntriesRefused,
    LedgerFull,
    LedgerUnavailable,
    LimitExceeded,
    NoSuchMessage,
    NotFound,
    StateError,
)
from gateway.ledger import EventKind, Ledger, OutboxEntry, parse_id
from gateway.ledger.pending.outbox import OutboxStore
from gateway.upstreams import UpstreamState
from tests.core.fakes import FakeUpstream
from tests.core.test_outbox import bodies, kinds, message, render, row_of, settled, until

REQUEST = KeyedRequest("me", "k", b"f" * 32)
HOUR = 3_600_000_000


@pytest.fixture(autouse=True)
def _rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks without a reason."""
    monkeypatch.setattr(sending, "LOOK_EVERY", 60.0)


@pytest.fixture
async def gateway(gateway: Gateway) -> Gateway:
    """It sends for its broker by now."""
    await until(lambda: gateway.outbox.sender.owns("fake"))
    return gateway


def later() -> int:
    return int(time() * 1e6) + HOUR


async def put(gateway: Gateway, *items: Publication) -> list[PublishOutcome]:
    return await gateway.outbox.put(gateway.broker("fake"), "", items, "me")


def held(gateway: Gateway) -> tuple[float, float]:
    """How many publishes the client has in the ledger, and keys."""
    scheduled, keys = gateway.budgets["scheduled"], gateway.budgets["idempotency_keys"]
    return scheduled.held_by(ShareHolder("me")), keys.held_by(ShareHolder("me"))


def count(gateway: Gateway, outcome: str) -> float:
    labels = {"broker": "fake", "outcome": outcome}
    return gateway.metrics.registry.get_sample_value("amqpgw_publishes_total", labels) or 0.0


# --------------------------------------------------------------------------------------------------------- taking


async def test_an_entry_says_what_was_asked_for(gateway: Gateway) -> None:
    at = later()
    items = [
        message(b"plain", not_before=at),
        message(b"any", not_before=at, mandatory=False),
        message(b"again", not_before=at, resent=True),
    ]
    results = await put(gateway, *items)
    rows = [await row_of(gateway, result, lambda row: True) for result in results]
    time_of = {"not_before": moment(at)}
    assert [row.reason for row in rows] == [time_of, time_of | {"mandatory": False}, time_of | {"resent": True}]
    assert all(at <= row.due_at < at + 60_000_000 for row in rows)
    assert [(row.client, row.routing_key) for row in rows] == [("me", "orders")] * 3
    assert (await gateway.timeline(results[1].id)).events[0].detail == time_of | {"mandatory": False}
    assert held(gateway)[0] == 3
    assert count(gateway, "scheduled") == 3
    for left, result in zip((2, 1, 0), results, strict=True):
        await gateway.outbox.cancel(parse_id(result.id), "me")
        assert held(gateway)[0] == left
    assert count(gateway, "cancelled") == 3


async def test_what_is_due_says_nothing_of_a_time(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.state = UpstreamState.DOWN
    (result,) = await put(gateway, message(b"1"))
    row = await row_of(gateway, result, lambda row: True)
    assert row.reason == {}
    assert row.due_at < time() * 1e6
    assert not (await gateway.timeline(result.id)).events[0].detail
    await gateway.outbox.cancel(parse_id(result.id), "me")


async def test_what_the_ledger_cannot_hold_is_refused_and_the_rest_is_taken(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = OutboxStore.put

    async def some(self: OutboxStore, rows: Sequence[OutboxEntry], entries: Sequence[Any]) -> None:
        await real(self, [rows[0], rows[2]], [entries[0], entries[2]])
        raise EntriesRefused({1: "a bad name"})

    monkeypatch.setattr(OutboxStore, "put", some)
    most = gateway.broker("fake").settings.message_max
    results = await put(
        gateway, message(bytes(most + 1)), *(message(body, not_before=later()) for body in (b"1", b"2", b"3"))
    )
    assert [type(result.error) for result in results] == [LimitExceeded, type(None), EncodeError, type(None)]
    assert "a bad name" in str(results[2].error)
    assert held(gateway)[0] == 2
    assert count(gateway, "scheduled") == 2
    for result in (results[1], results[3]):
        await gateway.outbox.cancel(parse_id(result.id), "me")


@pytest.mark.parametrize("error", [LedgerUnavailable("away"), CommitUnknown("cut off")])
async def test_what_was_not_taken_counts_in_no_share(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, error: LedgerUnavailable
) -> None:
    async def put_nothing(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(OutboxStore, "put", put_nothing)
    if isinstance(error, CommitUnknown):
        (result,) = await put(gateway, message(b"1"))
        assert not result.scheduled
    else:
        with pytest.raises(LedgerUnavailable):
            await put(gateway, message(b"1"))
    assert held(gateway)[0] == 0
    assert count(gateway, "scheduled") == 0


async def test_where_nothing_can_be_taken_the_ledger_is_left_alone(gateway: Gateway, ledger: Ledger) -> None:
    large = bytes(gateway.broker("fake").settings.message_max + 1)
    (result,) = await put(gateway, message(large))
    assert isinstance(result.error, LimitExceeded)
    answer = await gateway.outbox.put_keyed(REQUEST, gateway.broker("fake"), "", [message(large)], render)
    assert not answer.replayed
    assert (await ledger.outbox.page())[0] == []
    assert held(gateway) == (0, 0)


@pytest.mark.parametrize("with_key", [False, True])
async def test_the_disk_must_have_room_for_all_bodies(
    gateway: Gateway, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, with_key: bool
) -> None:
    asked = []

    def check(size: int = 0) -> None:
        asked.append(size)
        raise LedgerFull("the disk is full")

    monkeypatch.setattr(ledger.disk, "check", check)
    items, broker = [message(b"123"), message(b"4567")], gateway.broker("fake")
    with pytest.raises(LedgerFull):
        await (gateway.outbox.put_keyed(REQUEST, broker, "", items, render) if with_key else put(gateway, *items))
    assert asked == [7]
    monkeypatch.undo()
    assert (await ledger.outbox.page())[0] == []


async def test_a_key_and_its_messages_count_once(gateway: Gateway, upstream: FakeUpstream) -> None:
    request, broker, at = REQUEST, gateway.broker("fake"), later()
    items = [message(b"1", not_before=at), message(b"2", not_before=at)]
    answer = await gateway.outbox.put_keyed(request, broker, "", items, render)
    assert held(gateway) == (2, 1)
    assert count(gateway, "scheduled") == 2
    assert (await gateway.outbox.put_keyed(request, broker, "", items, render)).body == answer.body
    assert held(gateway) == (2, 1)
    for identity in answer.body.decode().split(","):
        await gateway.outbox.cancel(parse_id(identity), "me")


async def test_what_is_put_with_a_key_is_sent_at_once(gateway: Gateway, upstream: FakeUpstream) -> None:
    await gateway.outbox.put_keyed(REQUEST, gateway.broker("fake"), "", [message(b"1")], render)
    await until(lambda: bodies(upstream) == [b"1"])


class Sender:
    """A sender that sends for no broker, or for all."""

    def __init__(self, *, is_owner: bool) -> None:
        self.is_owner = is_owner
        self.woken = 0

    def owns(self, broker: str) -> bool:
        return self.is_owner

    def wake(self) -> None:
        self.woken += 1


@pytest.mark.parametrize("is_owner", [False, True])
async def test_who_sends_for_the_broker_hears_of_what_is_due(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, is_owner: bool
) -> None:
    """Not more often than is of use; and not of what is due later."""
    heard: list[str] = []
    sender: Any = Sender(is_owner=is_owner)
    outbox = Outbox(
        gateway.ledger,
        gateway._publisher,
        gateway.brokers,
        gateway.metrics,
        heard.append,
        gateway.ledger_budgets,
        sender,
    )
    now = 1000.0
    monkeypatch.setattr("gateway.core.publishing.outbox.clock.monotonic", lambda: now)

    def tell(*times: int | None) -> None:
        outbox._told("fake", [message(b"x", not_before=at) for at in times])

    tell()
    tell(later(), later())
    assert (sender.woken, heard) == (0, [])
    tell(later(), None)
    tell(int(time() * 1e6))
    assert (sender.woken, heard) == (2, [] if is_owner else ["fake"])
    now += 0.3
    tell(None)
    assert (sender.woken, heard) == (3, [] if is_owner else ["fake", "fake"])


# ------------------------------------------------------------------------------------------------ looking, steering


async def test_only_what_was_scheduled_is_found(gateway: Gateway, upstream: FakeUpstream) -> None:
    (published,) = await gateway.publish("fake", "", [message(b"now")], "me")
    for identity in (parse_id(published.id), gateway.ids()):
        with pytest.raises(NoSuchMessage, match="nothing was scheduled"):
            await gateway.outbox.get(identity)
    (result,) = await put(gateway, message(b"1"))
    await settled(gateway, [result])
    found = await gateway.outbox.get(parse_id(result.id))
    assert (found.row, found.waits_for, found.client) == (None, "", "me")
    assert not found.is_cancelled
    with pytest.raises(StateError):
        await gateway.outbox.cancel(parse_id(result.id), "me")
    with pytest.raises(StateError):
        await gateway.outbox.reschedule(parse_id(result.id), later(), "me")


def event(kind: EventKind, **detail: Any) -> Any:
    return SimpleNamespace(kind=kind, detail=detail)


@pytest.mark.parametrize(
    ("events", "is_cancelled", "is_in_doubt"),
    [
        ([event(EventKind.SCHEDULED)], False, False),
        ([event(EventKind.SCHEDULED), event(EventKind.CANCELLED, client="me")], True, False),
        ([event(EventKind.CANCELLED, code="outcome_unknown")], True, True),
        ([event(EventKind.UNKNOWN, code="outcome_unknown"), event(EventKind.CANCELLED)], True, False),
        ([event(EventKind.UNKNOWN, code="outcome_unknown")], False, False),
        (None, False, False),
    ],
)
def test_what_was_taken_back_may_be_in_doubt(events: Any, is_cancelled: bool, is_in_doubt: bool) -> None:
    timeline: Any = None if events is None else SimpleNamespace(events=events, message=SimpleNamespace(client="me"))
    found = ScheduledPublish(b"m" * 16, None, timeline, "")
    assert (found.is_cancelled, found.is_in_doubt) == (is_cancelled, is_in_doubt)
    assert found.client == ("" if events is None else "me")


async def test_what_it_waits_for(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.failure = NotFound(404, "no exchange")
    (refused,) = await put(gateway, message(b"1"))
    await row_of(gateway, refused, lambda row: row.dead)
    upstream.failure = None
    upstream.state, upstream.reason = UpstreamState.DOWN, "the port is closed"
    waiting, scheduled = await put(gateway, message(b"2"), message(b"3", not_before=later()))

    async def waits(result: PublishOutcome) -> str:
        return (await gateway.outbox.get(parse_id(result.id))).waits_for

    assert await waits(refused) == await waits(scheduled) == ""
    assert await waits(waiting) == "broker fake: down the port is closed"
    del gateway.brokers["fake"]
    assert await waits(waiting) == "no broker 'fake' is configured"
    gateway.brokers["fake"] = upstream  # type: ignore[assignment]
    upstream.state = UpstreamState.UP
    assert await waits(waiting) == ""
    await gateway.outbox.cancel(parse_id(scheduled.id), "me")
    gateway.outbox.sender.wake()
    await settled(gateway, [waiting])


async def test_the_oldest_of_a_client(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.state = UpstreamState.DOWN
    before = time()
    assert await gateway.outbox.oldest("fake", "me") is None
    (result,) = await put(gateway, message(b"1"))
    oldest = await gateway.outbox.oldest("fake", "me")
    assert oldest is not None
    assert before - 1 < oldest < time() + 1
    assert await gateway.outbox.oldest("fake", "you") is None
    await gateway.outbox.cancel(parse_id(result.id), "me")


async def test_two_take_back_the_same(gateway: Gateway) -> None:
    (result,) = await put(gateway, message(b"1", not_before=later()))
    identity = parse_id(result.id)
    await asyncio.gather(*(gateway.outbox.cancel(identity, "me") for _ in range(3)))
    assert await kinds(gateway, result) == [EventKind.SCHEDULED, EventKind.CANCELLED]
    assert held(gateway)[0] == 0
    assert count(gateway, "cancelled") == 1


async def test_what_is_retried_is_sent_at_once(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.failure = NotFound(404, "no exchange")
    (result,) = await put(gateway, message(b"1"))
    await row_of(gateway, result, lambda row: row.dead)
    with pytest.raises(StateError, match="was refused"):
        await gateway.outbox.reschedule(parse_id(result.id), later(), "me")
    upstream.failure = None
    await gateway.outbox.retry(parse_id(result.id))
    await settled(gateway, [result])
    details = [
        event.detail for event in (await gateway.timeline(result.id)).events if event.kind is EventKind.SCHEDULED
    ]
    assert details[-1] == {"retry": True}


async def test_another_time(gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    woken = 0
    wake = gateway.outbox.sender.wake

    def counted() -> None:
        nonlocal woken
        woken += 1
        wake()

    monkeypatch.setattr(gateway.outbox.sender, "wake", counted)
    (result,) = await put(gateway, message(b"1", not_before=later()))
    at = later() + HOUR
    await gateway.outbox.reschedule(parse_id(result.id), at, "me")
    row = await row_of(gateway, result, lambda row: True)
    assert at <= row.due_at < at + 60_000_000
    assert row.reason["not_before"] == moment(at)
    with pytest.raises(StateError, match="kept"):
        await gateway.outbox.retry(parse_id(result.id))
    assert woken == 0
    now = int(time() * 1e6) - 10_000
    await gateway.outbox.reschedule(parse_id(result.id), now, "me")
    await settled(gateway, [result])
    assert bodies(upstream) == [b"1"]
    details = [
        event.detail for event in (await gateway.timeline(result.id)).events if event.kind is EventKind.SCHEDULED
    ]
    assert details[-1] == {"rescheduled": True, "not_before": moment(now), "client": "me"}
