"""How much is left of a queue's depth, when a tap has reached its end, and how much room the log has for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.core import Gateway
from gateway.errors import BrokerUnavailable, LedgerUnavailable
from gateway.runtime.clock import clock
from gateway.taps import TapState, flow
from gateway.taps.depth import Depth
from gateway.taps.flow import PROGRESS
from gateway.upstreams import Oversized
from tests.core.conftest import gateway, ledger, upstream
from tests.core.fakes import FakeConsumer, FakeDelivery, FakeUpstream
from tests.taps.conftest import House
from tests.taps.tapped import Tapped

__all__ = ["gateway", "ledger", "upstream"]


@pytest.fixture
async def idle(gateway: Gateway, upstream: FakeUpstream) -> AsyncIterator[Tapped]:
    """A flow that has not begun: a test calls its parts."""
    found = Tapped(gateway, upstream, begins=False, until="depth")
    yield found
    await found.flow.stop(0.0)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as its only element."""
    time = [1_000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: time[0])
    return time


async def written(tapped: Tapped) -> Any:
    """What the ledger says of the progress."""
    found = await tapped.gateway.ledger.get_resource(PROGRESS, "t")
    return None if found is None else found.spec


def numbered(count: int) -> list[Message]:
    return [Message(b"%d" % number, Properties(message_id=f"m-{number}")) for number in range(count)]


# ------------------------------------------------------------------------------------------------- progress


async def test_what_is_left_is_written_when_it_changes_and_not_too_often(idle: Tapped, now: list[float]) -> None:
    keep = idle.flow._keep_progress
    await keep(5)
    assert await written(idle) is None, "nothing limits it"
    idle.flow.depth = Depth(10, 10)
    await keep(10, 0.0)
    assert await written(idle) == {"etag": "1", "depth": 10, "left": 10}
    await keep(9, 1.0)
    assert (await written(idle))["left"] == 10
    now[0] += 1.0
    await keep(10, 1.0)
    await keep(8, 1.0)
    assert (await written(idle))["left"] == 8
    await idle.gateway.ledger.delete_resource(PROGRESS, "t", None)
    await keep(8, 0.0)
    assert await written(idle) is None, "it has not changed"


async def test_a_ledger_that_is_away_holds_up_no_progress(idle: Tapped, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any) -> None:
        raise LedgerUnavailable("it is locked")

    idle.flow.depth = Depth(10, 10)
    with monkeypatch.context() as patched:
        patched.setattr(idle.gateway.ledger, "put_resource", away)
        await idle.flow._keep_progress(10, 0.0)
    assert await written(idle) is None


@pytest.mark.parametrize(("etag", "left"), [("1", 3), ("0", 7)])
async def test_the_depth_of_other_settings_is_another_one(idle: Tapped, etag: str, left: int) -> None:
    idle.put(*numbered(7))
    await idle.gateway.ledger.put_resource(PROGRESS, "t", {"etag": etag, "depth": 7, "left": 3}, None)
    await idle.flow._prepare()
    depth = idle.flow.depth
    assert depth is not None
    assert (depth.depth, depth.left) == (7, left)
    assert await written(idle) == {"etag": "1", "depth": 7, "left": left}
    idle.put(*numbered(2))
    await idle.flow._prepare()
    assert idle.flow.depth is depth, "it is looked at once"


async def test_a_tap_without_an_end_has_no_depth(gateway: Gateway, upstream: FakeUpstream) -> None:
    tapped = Tapped(gateway, upstream, begins=False)
    await tapped.flow._prepare()
    assert (tapped.flow.depth, await written(tapped)) == (None, None)


async def test_a_stop_writes_what_is_left(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "PROGRESS_EVERY", 1e9)
    monkeypatch.setattr(flow, "EMPTY_EVERY", 1e9)
    tapped = Tapped(gateway, upstream, begins=False, until="depth", prefetch=2)
    query = upstream.query_queue

    async def deeper(queue: str) -> Any:
        return replace(await query(queue), message_count=9)

    monkeypatch.setattr(upstream, "query_queue", deeper)
    tapped.put(*numbered(6))
    tapped.flow.begin()
    await tapped.until(lambda: len(upstream.settled) == 6)
    assert (await written(tapped))["left"] == 9
    await tapped.flow.stop(1.0)
    assert (await written(tapped))["left"] == 3


async def test_what_was_withheld_is_acknowledged_before_the_rest_is_given_back(idle: Tapped) -> None:
    found: list[Any] = [FakeDelivery(idle.upstream, "orders", (message, "", "k", False)) for message in numbered(3)]
    depth = idle.flow.depth = Depth(3, 3)
    depth.begin(3)
    for delivery in found:
        assert depth.arrive(delivery, 3)
    idle.flow._acknowledge(found)
    assert idle.upstream.settled == [], "a broker may send a prefetch more"
    idle.flow._before_close()
    assert idle.upstream.settled == [(Settlement.ACCEPT, b"%d" % number) for number in range(3)]
    assert depth.left == 0


@pytest.mark.parametrize("is_lost", [False, True])
async def test_one_that_has_ended_hears_of_no_messages(gateway: Gateway, upstream: FakeUpstream, is_lost: bool) -> None:
    before = list(upstream.on_oversized)
    tapped = Tapped(gateway, upstream)
    assert upstream.on_oversized == [*before, tapped.flow._oversized]
    await tapped.until(lambda: bool(upstream.consumers))
    if is_lost:
        tapped.flow.lost()
        await tapped.flow.gone()
    else:
        await tapped.flow.stop(1.0)
    assert upstream.on_oversized == before
    tapped.flow.lost()
    assert upstream.on_oversized == before


# ------------------------------------------------------------------------------------------------- the end


async def test_what_comes_beyond_the_end_goes_back(idle: Tapped) -> None:
    idle.flow.depth = Depth(1, 1)
    wanted, more = (FakeDelivery(idle.upstream, "orders", (message, "", "k", False)) for message in numbered(2))
    wanted.channel = more.channel = "one"
    idle.flow.depth.begin(1)
    idle.flow._arrive(wanted)  # type: ignore[arg-type]  # of its shape
    idle.flow._arrive(more)  # type: ignore[arg-type]
    assert (wanted.settled, more.settled) == (False, True)
    assert [settlement for settlement, _ in idle.upstream.settled] == [Settlement.RELEASE]


async def test_an_end_behind_a_message_that_is_too_large(tmp_path: Any) -> None:
    """Nobody can take it: it stays in the queue, and the tap does not wait for it."""
    house = House(tmp_path, "0-9-1")
    await house.open(message_max=1024)
    try:
        await house.upstream.declare_queue("in")
        await house.fill(2)
        await house.publish_outside(Message(b"y" * 2_000, Properties()))
        await house.fill(2)
        await house.tap(until="depth")
        status = await house.wait_for(state=TapState.STOPPED)
        assert status.reason == "until: 4 of 5 messages are taken; 1 over message_max are left in the queue"
        assert (status.spooled, status.oversized, status.left) == (4, 1, 1)
    finally:
        await house.close()


async def test_a_message_that_is_too_large_for_another_queue_is_nothing_to_it(idle: Tapped) -> None:
    idle.flow.depth = Depth(2, 2)
    idle.flow.depth.begin(2)
    idle.flow._oversized(Oversized("another", "", "k", 2_000, 1_000))
    assert (idle.flow.depth.passed, idle.counts.numbers["oversized"], idle.counts.last_error) == (0, 0, "")
    idle.flow._oversized(Oversized("orders", "", "k", 2_000, 1_000))
    assert (idle.flow.depth.passed, idle.counts.numbers["oversized"]) == (1, 1)
    assert idle.counts.last_error == "a message of 2000 octets is over message_max = 1000: it is not taken"


async def asked(idle: Tapped, monkeypatch: pytest.MonkeyPatch, answers: Sequence[int | None]) -> list[int | None]:
    """Have the queue's depth be one of these each time; None: nobody knows."""
    left = list(answers)

    async def query(queue: str) -> Any:
        if (count := left.pop(0)) is None:
            raise BrokerUnavailable("it is gone")
        return SimpleNamespace(message_count=count)

    monkeypatch.setattr(idle.upstream, "query_queue", query)
    idle.flow._consumer = FakeConsumer(idle.upstream, "orders", 10, lambda delivery: None)  # type: ignore[assignment]
    idle.flow._consumer.out = 0  # type: ignore[union-attr,misc]
    return left


async def test_a_queue_is_empty_when_it_says_so_twice(
    idle: Tapped, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = await asked(idle, monkeypatch, [0, 1, 0, None, 0, 0])
    found = []
    for _ in range(6):
        now[0] += flow.EMPTY_EVERY
        found.append(await idle.flow._is_empty())
    assert found == [False, False, False, False, False, True]
    assert left == []


async def test_a_queue_is_not_asked_too_often_nor_while_anything_waits(
    idle: Tapped, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = await asked(idle, monkeypatch, [0, 0])
    assert not await idle.flow._is_empty()
    now[0] += flow.EMPTY_EVERY / 2
    assert not await idle.flow._is_empty()
    now[0] += flow.EMPTY_EVERY / 2
    delivery = FakeDelivery(idle.upstream, "orders", (Message(b"x", Properties()), "", "k", False))
    idle.flow._arrived.append(delivery)  # type: ignore[arg-type]
    assert not await idle.flow._is_empty()
    idle.flow._arrived.clear()
    consumer, idle.flow._consumer = idle.flow._consumer, None
    assert not await idle.flow._is_empty()
    idle.flow._consumer = consumer
    assert len(left) == 1
    assert await idle.flow._is_empty()


async def test_a_queue_that_brought_something_meanwhile_is_asked_again(
    idle: Tapped, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    await asked(idle, monkeypatch, [0, 0, 0])
    found = []
    for came in (3, 4, 4):
        now[0] += flow.EMPTY_EVERY
        idle.flow._came = came
        found.append(await idle.flow._is_empty())
    assert found == [False, False, True]


@pytest.mark.parametrize(("counts", "out", "empty"), [(False, 2, False), (True, 2, True), (True, 1, False)])
async def test_what_waits_for_its_acknowledgement_is_not_in_the_queue(
    idle: Tapped, now: list[float], monkeypatch: pytest.MonkeyPatch, counts: bool, out: int, empty: bool
) -> None:
    """Some brokers count it with what is ready."""
    await asked(idle, monkeypatch, [2, 2])
    assert idle.upstream.capabilities is not None
    idle.upstream.capabilities = replace(idle.upstream.capabilities, counts_unacked=counts)
    idle.flow._consumer.out = out  # type: ignore[union-attr,misc]
    found = []
    for _ in range(2):
        now[0] += flow.EMPTY_EVERY
        found.append(await idle.flow._is_empty())
    assert found == [False, empty]


async def test_one_that_is_done_says_so_again_without_asking(idle: Tapped, monkeypatch: pytest.MonkeyPatch) -> None:
    left = await asked(idle, monkeypatch, [1])
    idle.flow.done = True
    assert await idle.flow._is_empty()
    assert left == [1]


# ------------------------------------------------------------------------------------------------- the room


def holds(idle: Tapped, monkeypatch: pytest.MonkeyPatch, octets: Callable[[], int]) -> list[int]:
    """Have the log hold so many octets; how often it was asked."""
    found: list[int] = []

    async def held() -> Any:
        found.append(octets())
        return SimpleNamespace(octets=found[-1])

    monkeypatch.setattr(idle.gateway.ledger.log, "held", held)
    return found


async def test_the_log_has_room_until_it_holds_what_it_may(
    idle: Tapped, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    octets = 99
    found = holds(idle, monkeypatch, lambda: octets)
    idle.log_octets = 100
    assert await idle.flow._room_now() == idle.flow._settings.prefetch
    assert (idle.flow.full, idle.changes) == ("", 1)
    now[0] += flow.HELD_EVERY / 2
    octets = 100
    assert await idle.flow._room_now() == idle.flow._settings.prefetch
    assert len(found) == 1, "it is not asked all the time"
    now[0] += flow.HELD_EVERY / 2
    assert await idle.flow._room_now() == 0
    assert idle.flow.full == "the message log holds 100 octets that no reader has passed yet, and log_octets is 100"
    assert idle.changes == 2
    now[0] += flow.HELD_EVERY
    octets = 98
    assert await idle.flow._room_now() > 0
    assert (idle.flow.full, idle.changes) == ("", 3)


async def test_what_is_spooled_takes_its_room(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the log is asked again."""
    monkeypatch.setattr(flow, "HELD_EVERY", 1e9)
    tapped = Tapped(gateway, upstream, begins=False)
    tapped.flow._asked = -2e9
    tapped.log_octets = 10_000
    tapped.put(Message(b"x" * 5_000, Properties()))
    tapped.flow.begin()
    await tapped.until(lambda: len(upstream.settled) == 1)
    await tapped.flow.stop(1.0)
    left = tapped.flow._log_left
    (row,) = await tapped.rows()
    assert left == 10_000 - 5_000 - flow.ROW - len(row.properties)
    assert (tapped.flow.stored, tapped.counts.octets) == (1, 5_000)


# ------------------------------------------------------------------------------------------------- the batch


async def test_what_cannot_be_read_goes_back_when_it_stops_meanwhile(
    idle: Tapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = idle.flow._reader.read

    def faulty(delivery: Any) -> Any:
        if delivery.message.body == b"bad":
            raise RuntimeError("cannot")
        return read(delivery)

    async def stopped(*_: Any) -> None:
        return None

    monkeypatch.setattr(idle.flow._reader, "read", faulty)
    monkeypatch.setattr(idle.flow, "_keep", stopped)
    good, bad = (
        FakeDelivery(idle.upstream, "orders", (Message(body, Properties()), "", "k", False)) for body in (b"1", b"bad")
    )
    await idle.flow._store([good, bad])  # type: ignore[list-item]
    assert idle.upstream.settled == [(Settlement.RELEASE, b"bad")]


async def test_an_acknowledgement_that_comes_too_late_leaves_the_depth_as_it_was(idle: Tapped) -> None:
    deliveries: list[Any] = [
        FakeDelivery(idle.upstream, "orders", (message, "", "k", False)) for message in numbered(4)
    ]
    idle.flow.depth = Depth(9, 9)
    idle.flow.depth.begin(2)
    for delivery in deliveries:
        assert idle.flow.depth.arrive(delivery, 2)
    deliveries[1].lost = True
    idle.flow._acknowledge(deliveries)
    assert idle.flow.depth.left == 6
    assert idle.counts.numbers["lease_lost"] == 1
    assert [body for _, body in idle.upstream.settled] == [b"0", b"2", b"3"]


async def test_what_is_withheld_does_not_keep_back_what_is_not(idle: Tapped) -> None:
    found: list[Any] = [FakeDelivery(idle.upstream, "orders", (message, "", "k", False)) for message in numbered(2)]
    one, two = found
    two.channel = "another"
    depth = idle.flow.depth = Depth(1, 1)
    depth.begin(1)
    assert depth.arrive(one, 1)
    idle.flow._acknowledge(found)
    assert idle.upstream.settled == [(Settlement.ACCEPT, b"1")]
    assert depth.release() == [one]
