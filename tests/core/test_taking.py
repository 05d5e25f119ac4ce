"""A taker of messages: bytes it holds, batches, prefetches, and what it does with faults and at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.operations import Settlement
from gateway.config import SubscriptionSettings
from gateway.core import Gateway
from gateway.core.sources import taking
from gateway.core.sources.arrivals import Origins
from gateway.core.sources.taking import Taker
from gateway.errors import BrokerUnavailable
from gateway.ledger import Ledger, MessageIds
from gateway.observing.repeats import FIELDS
from gateway.upstreams import ConsumerState
from tests.core.fakes import FakeUpstream
from tests.core.test_intake import ours, put, until


class Batch:
    """A batch on its way into a ledger that is away as often as the test says."""

    def __init__(self, taker: Taking) -> None:
        self.taker = taker
        self.dropped = 0

    async def write(self, parts: Any) -> None:
        if self.taker.failures:
            raise self.taker.failures.pop(0)

    def drop_lost(self) -> None:
        self.dropped += 1


class Taking(Taker):
    """One that keeps the bodies of what it takes."""

    def __init__(self, gateway: Gateway, upstream: Any, **settings: Any) -> None:
        given = SubscriptionSettings(**{"broker": "fake", "queue": "orders", **settings})
        origins = Origins("scope", {"queue": "orders"}, "fake", "", MessageIds())
        super().__init__(gateway.parts, "t", given, upstream, origins)
        self.room = 1_000
        self.batches: list[list[bytes]] = []
        self.failures: list[Exception] = []
        self.said: list[str] = []
        self.writes: Batch | None = None
        self.prepared = 0

    async def _room_now(self) -> int:
        return self.room

    async def _prepare(self) -> None:
        self.prepared += 1

    def _before_close(self) -> None:
        self.said.append("closing")

    def _changed(self) -> None:
        self.said.append(self.reason)

    async def _store(self, chunk: Any) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.batches.append([delivery.message.body for delivery in chunk])
        for delivery in chunk:
            delivery.settle(Settlement.ACCEPT)

    @property
    def bodies(self) -> list[bytes]:
        return [body for batch in self.batches for body in batch]


Make = Callable[..., Taking]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("LOOK_EVERY", 0.01), ("PAUSE_MIN", 0.01), ("PAUSE_MAX", 0.01), ("HOLD", 60.0)):
        monkeypatch.setattr(taking, name, seconds)


@pytest.fixture
async def make(gateway: Gateway, upstream: FakeUpstream) -> AsyncIterator[Make]:
    made: list[Taking] = []

    def taker(**settings: Any) -> Taking:
        made.append(Taking(gateway, upstream, **settings))
        return made[-1]

    yield taker
    for each in made:
        await each.stop(1.0)
    assert gateway.parts.byte_budget.held == 0, "bytes that nobody holds would bound all others"


# ---------------------------------------------------------------------------------------------------------- bytes


class Arriving:
    """A delivery of this size."""

    def __init__(self, size: int, channel: object = "one", *, lost: bool = False) -> None:
        self.message = SimpleNamespace(body=bytes(size))
        self.channel = channel
        self.lost = lost
        self.redelivered = False
        self.settled: list[Settlement] = []

    def settle(self, settlement: Settlement) -> None:
        self.settled.append(settlement)


def consumer(prefetch: int, **more: Any) -> Any:
    changes: list[int] = []
    return SimpleNamespace(
        prefetch=prefetch, changing=False, changes=changes, change_prefetch=changes.append, **more
    )  # fmt: skip


def arrive(taker: Taker, *deliveries: Any) -> list[bool]:
    """Whether each is held."""
    for delivery in deliveries:
        taker._arrive(delivery)
    return [not delivery.settled for delivery in deliveries]


async def test_what_is_held_is_bounded_by_twice_the_bytes_and_keeps_its_order(make: Make, gateway: Gateway) -> None:
    taker = make(prefetch_octets=100)
    assert arrive(taker, *(Arriving(50) for _ in range(6))) == [True] * 5 + [False]
    assert arrive(taker, Arriving(0), Arriving(0, "two")) == [False, False]
    assert gateway.parts.byte_budget.held == 250
    assert len(taker._take(10)) == 5
    assert arrive(taker, Arriving(1, "one")) == [True], "the channel of the last one that was too much is the other"
    assert arrive(taker, Arriving(1, "two")) == [False]
    assert gateway.parts.byte_budget.held == 251


@pytest.mark.parametrize(
    ("sizes", "prefetch", "changes"),
    [
        ([50, 50], 20, []),  # just as much as may be
        ([50, 50, 50], 20, [2]),
        ([101], 20, [1]),
        ([10] * 11, 12, [6]),
        ([10] * 11, 30, [10]),
        ([200], 1, []),
        ([200, 50, 1], 1, [1]),  # what goes back makes it smaller in any case
    ],
)
async def test_a_prefetch_becomes_smaller(make: Make, sizes: list[int], prefetch: int, changes: list[int]) -> None:
    taker = make(prefetch_octets=100, prefetch=50)
    found = taker._consumer = consumer(prefetch)
    arrive(taker, *(Arriving(size) for size in sizes))
    taker._consumer = None
    assert found.changes[:1] == changes[:1]
    assert bool(found.changes) is bool(changes)
    if changes:
        assert taker._prefetch == found.changes[-1]


async def test_a_prefetch_under_change_or_without_a_consumer_stays(make: Make) -> None:
    taker = make(prefetch_octets=100, prefetch=50)
    arrive(taker, Arriving(150))
    found = taker._consumer = consumer(20)
    found.changing = True
    arrive(taker, Arriving(10))
    taker._consumer = None
    assert (found.changes, taker._prefetch) == ([], 50)


@pytest.mark.parametrize(
    ("before", "sizes", "after"),
    [
        (2, [1, 1, 1, 1], 50),
        (2, [0, 0, 0, 0], 200),
        (2, [50], 2),
        (60, [1, 1, 1, 1], 60),
        (2, [1] * 10, 50),
        (2, [0] * 100, 1_000),
        (1_000, [0, 0], 1_000),
    ],
)
async def test_a_prefetch_grows_with_smaller_messages(make: Make, before: int, sizes: list[int], after: int) -> None:
    taker = make(prefetch_octets=100, prefetch=1_000)
    taker._prefetch = before
    arrive(taker, *(Arriving(size) for size in sizes))
    taker._take(1_000)
    assert taker._prefetch == after
    taker._part.close()


@pytest.mark.parametrize(
    ("room", "sizes", "taken"),
    [
        (0, [1, 1], 0),
        (1, [1, 1], 1),
        (9, [1, 1], 2),
        (9, [1] * 5, 4),  # of a batch
        (9, [60, 60, 60], 2),
        (9, [50, 50, 50], 2),
        (9, [49, 50, 50], 3),
        (9, [200, 1], 1),
    ],
)
async def test_a_batch_is_bounded(
    make: Make, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, room: int, sizes: list[int], taken: int
) -> None:
    monkeypatch.setattr(taking, "CHUNK", 4)
    monkeypatch.setattr(taking, "CHUNK_OCTETS", 100)
    taker = make()
    arrive(taker, *(Arriving(size) for size in sizes))
    assert len(taker._take(room)) == taken
    assert (taker._storing, taker._octets) == (sum(sizes[:taken]), sum(sizes[taken:]))
    assert gateway.parts.byte_budget.held == sum(sizes)
    taker._part.close()


async def test_what_was_lost_again_is_neither_taken_nor_held(make: Make, gateway: Gateway) -> None:
    taker = make()
    arrive(taker, Arriving(5, lost=True), Arriving(7), Arriving(11, lost=True))
    assert [len(each.message.body) for each in taker._take(10)] == [7]
    assert gateway.parts.byte_budget.held == 7
    taker._part.add(-7)


# -------------------------------------------------------------------------------------------------------- at work


async def test_no_more_is_asked_for_than_there_is_room(make: Make, upstream: FakeUpstream, gateway: Gateway) -> None:
    taker = make(prefetch=10)
    taker.room = 3
    taker.begin()
    taker.begin()
    await until(lambda: bool(upstream.consumers))
    assert [each.prefetch for each in upstream.consumers] == [3]
    assert taker.running
    assert taker.prepared == 1
    put(upstream, *(ours(b"%d" % number) for number in range(3)))
    await until(lambda: len(taker.bodies) == 3)
    assert taker._origins.version == "0-9-1"
    assert gateway.parts.byte_budget.held == 0


@pytest.mark.parametrize(
    ("error", "reason", "line"),
    [
        (BrokerUnavailable("away"), "away", []),
        (ValueError("a fault"), "internal error: ValueError('a fault')", ["subscription.failed"]),
    ],
)
async def test_what_fails_is_given_back_and_tried_again(
    make: Make, upstream: FakeUpstream, caplog: pytest.LogCaptureFixture, error: Exception, reason: str, line: list[str]
) -> None:
    caplog.set_level("INFO", "gateway")
    taker = make()
    taker.failures = [error]
    put(upstream, ours(b"1"))
    taker.begin()
    await until(lambda: taker.bodies == [b"1"])
    assert taker.prepared == 2
    assert (reason in taker.said, taker.reason) == (True, "")
    events = [record.getMessage() for record in caplog.records if record.msg.startswith("subscription")]
    assert events == [*line, "subscription.fault", "subscription.fault_over"]


async def test_what_stands_in_the_way_is_said_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    taker = make()
    for reason in ("a", "a", "b" * 600, "b" * 500):
        taker._trouble(reason)
    assert taker.said == ["a", "b" * 500]
    assert [getattr(each, FIELDS)["reason"][:1] for each in caplog.records] == ["a", "b"]
    assert not taker.running
    taker._clear_trouble()
    taker._clear_trouble()
    assert taker.said == ["a", "b" * 500, ""]


@pytest.mark.parametrize(
    ("state", "reason", "expected", "forgets"),
    [
        (ConsumerState.RUNNING, "", "", False),
        (ConsumerState.DOWN, "the channel died", "the channel died", False),
        (ConsumerState.DOWN, "", "down", False),
        (ConsumerState.CANCELLED, "", "cancelled", True),
        (ConsumerState.CLOSED, "", "before", False),
    ],
)
async def test_a_consumer_that_stands_in_the_way_is_the_reason(
    make: Make, monkeypatch: pytest.MonkeyPatch, state: ConsumerState, reason: str, expected: str, forgets: bool
) -> None:
    taker = make()
    forgotten: list[str] = []
    monkeypatch.setattr(taker._own_queues, "forget", forgotten.append)
    taker.reason = "before"
    taker._wake.clear()
    taker._consumer = consumer(5, state=state, reason=reason)
    taker._consumer_changed(taker._consumer)
    assert taker.reason == expected
    assert forgotten == (["t"] if forgets else [])
    assert taker.said[-1] == expected
    assert taker._wake.is_set()
    taker._consumer = None


@pytest.mark.parametrize("exchange", ["", "news"])
async def test_an_own_queue_is_looked_at_now_and_then(
    make: Make, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, exchange: str
) -> None:
    monkeypatch.setattr(taking, "LOOK_EVERY", 0.002)
    monkeypatch.setattr(taking, "BIND_EVERY", 0.05)
    taker, looks, ensured = make(queue="" if exchange else "orders", exchange=exchange), 0, 0
    await upstream.declare_queue(taker.queue)

    async def ensure(*arguments: Any) -> None:
        nonlocal ensured
        ensured += 1

    async def room() -> int:
        nonlocal looks
        looks += 1
        return 10

    monkeypatch.setattr(taker._own_queues, "ensure", ensure)
    monkeypatch.setattr(taker, "_room_now", room)
    taker.begin()
    if exchange:
        await until(lambda: ensured == 3)
        assert looks > 6
    else:
        await until(lambda: looks > 30)
        assert ensured == 1


async def test_a_full_disk_is_no_reason_any_more_when_there_is_room(
    make: Make, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    taker = make()
    monkeypatch.setattr(type(ledger.disk), "reason", "the disk is full")
    taker.begin()
    await until(lambda: taker.reason == "the disk is full")
    assert taker._consumer is None
    monkeypatch.setattr(type(ledger.disk), "reason", "")
    await until(lambda: taker.reason == "" and taker._consumer is not None)
    taker._trouble("something else")
    await asyncio.sleep(0.03)
    assert taker.reason == "something else"


async def test_a_consumer_that_ended_for_want_of_room_makes_place_for_another(
    make: Make, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has come is stored all the same, after a while; then nothing is held."""
    monkeypatch.setattr(taking, "HOLD", 0.05)
    taker = make(prefetch=4)
    taker.room = 0
    taker.begin()
    await asyncio.sleep(0.02)
    assert not upstream.consumers
    taker.room = 4
    taker.wake()
    await until(lambda: bool(upstream.consumers))
    taker.room = 0
    put(upstream, *(ours(b"%d" % number) for number in range(9)))
    await asyncio.sleep(0.02)
    assert taker.bodies == []
    await until(lambda: not upstream.consumers)
    assert 0 < len(taker.bodies) <= 8
    assert not upstream.out
    taker.room = 100
    await until(lambda: len(taker.bodies) == 9)
