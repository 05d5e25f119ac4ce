"""Settlements of one channel: which leave together, and what is left of a channel that is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import CloseChannel, Deliver, DeliveryTooLarge, Operation, Settle, Settlement
from gateway.errors import BrokerUnavailable, LeaseLost, RemoteError, StateError
from gateway.upstreams import Delivery
from gateway.upstreams.consuming.deliveries import DeliveryChannel, Oversized, stands

ACCEPT, RELEASE, REJECT = Settlement.ACCEPT, Settlement.RELEASE, Settlement.REJECT


class Wire:
    """A link that keeps what is sent."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.now = 5.0
        self.closing = False
        self.ended: object = None
        self.capabilities = SimpleNamespace(release_many=True)
        self.sent: list[Operation] = []
        self.calls: list[Callable[[], None]] = []

    def send(self, operation: Operation) -> int:
        self.sent.append(operation)
        return len(self.sent)

    def before_flush(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def flush(self) -> list[tuple[Settlement, int, int]]:
        """End the turn of the loop. Return the settlements that left with it."""
        calls, self.calls = self.calls, []
        for call in calls:
            call()
        sent, self.sent = self.sent, []
        return [(each.settlement, each.first, each.last) for each in sent if isinstance(each, Settle)]


@pytest.fixture
async def wire() -> Wire:
    return Wire()


@pytest.fixture
async def channel(wire: Wire) -> DeliveryChannel:
    link: Any = wire
    channel = DeliveryChannel(link, 3)
    channel.queue = "q"
    return channel


def came(channel: DeliveryChannel, count: int, **properties: Any) -> list[Delivery]:
    begin = len(channel.deliveries) + 1
    return [
        channel.take(Deliver(3, "t", number, bool(properties), "", "q", Message(b"", Properties(**properties))))
        for number in range(begin, begin + count)
    ]


@pytest.mark.parametrize(
    ("order", "runs"),
    [
        ([(1, ACCEPT), (2, ACCEPT), (3, ACCEPT)], [(ACCEPT, 1, 3)]),
        ([(1, ACCEPT), (3, ACCEPT), (4, ACCEPT)], [(ACCEPT, 1, 1), (ACCEPT, 3, 4)]),
        ([(2, ACCEPT), (1, ACCEPT)], [(ACCEPT, 2, 2), (ACCEPT, 1, 1)]),
        ([(1, ACCEPT), (2, REJECT), (3, REJECT), (4, ACCEPT)], [(ACCEPT, 1, 1), (REJECT, 2, 3), (ACCEPT, 4, 4)]),
        ([(1, RELEASE), (2, RELEASE)], [(RELEASE, 1, 2)]),
        ([(2, ACCEPT), (3, ACCEPT), (5, ACCEPT)], [(ACCEPT, 2, 3), (ACCEPT, 5, 5)]),
    ],
)
async def test_runs_in_order_leave_as_one(
    wire: Wire, channel: DeliveryChannel, order: list[tuple[int, Settlement]], runs: list[tuple[Settlement, int, int]]
) -> None:
    deliveries = came(channel, 5)
    for number, settlement in order:
        deliveries[number - 1].settle(settlement)
    assert len(wire.calls) == 1, "put together once, at the end of the turn"
    assert wire.flush() == runs
    assert wire.flush() == []
    assert set(channel.deliveries) == {1, 2, 3, 4, 5} - {number for number, _ in order}


async def test_each_turn_has_runs_of_its_own(wire: Wire, channel: DeliveryChannel) -> None:
    one, two, three = came(channel, 3)
    one.settle(ACCEPT)
    assert wire.flush() == [(ACCEPT, 1, 1)]
    two.settle(ACCEPT)
    three.settle(ACCEPT)
    assert wire.flush() == [(ACCEPT, 2, 3)]


async def test_releases_leave_one_by_one_where_the_broker_needs_that(wire: Wire, channel: DeliveryChannel) -> None:
    wire.capabilities = SimpleNamespace(release_many=False)
    deliveries = came(channel, 4)
    for delivery in deliveries[:2]:
        delivery.settle(RELEASE)
    for delivery in deliveries[2:]:
        delivery.settle(ACCEPT)
    assert wire.flush() == [(RELEASE, 1, 1), (RELEASE, 2, 2), (ACCEPT, 3, 4)]


async def test_what_was_settled_before_a_close_leaves_before_it(wire: Wire, channel: DeliveryChannel) -> None:
    one, two = came(channel, 2)
    lost: list[Delivery] = []
    for each in (one, two):
        each.on_lost = lost.append
    one.settle(ACCEPT)
    channel.abandon()
    assert [type(operation) for operation in wire.sent] == [Settle, CloseChannel]
    assert (one.settled, one.lost, two.lost, lost) == (True, False, True, [two])
    with pytest.raises(LeaseLost, match="given back"):
        two.settle(ACCEPT)
    channel.abandon()
    assert wire.flush() == [(ACCEPT, 1, 1)]
    assert lost == [two]


async def test_nothing_is_settled_on_a_channel_that_is_over(wire: Wire, channel: DeliveryChannel) -> None:
    one, two = came(channel, 2)
    one.settle(ACCEPT)
    lost: list[Delivery] = []
    two.on_lost = lost.append
    channel.emptied = wire.loop.create_future()
    channel.end(RemoteError(406, "timed out"))
    assert wire.flush() == []
    assert (lost, channel.emptied.done()) == ([two], True), "nobody waits for what will not come"
    with pytest.raises(LeaseLost, match="timed out"):
        two.settle(ACCEPT)
    assert not two.settled
    channel.end(RemoteError(406, "again"))
    assert lost == [two]


async def test_a_delivery_is_settled_once(wire: Wire, channel: DeliveryChannel) -> None:
    (one,) = came(channel, 1)
    one.settle(ACCEPT)
    with pytest.raises(StateError, match="settled before"):
        one.settle(REJECT)
    assert wire.flush() == [(ACCEPT, 1, 1)]
    told = Delivery(channel, "q", Deliver(3, "t", 9, False, "", "q", Message()), settled=True)
    assert (told.settled, told.lost, told.at) == (True, False, 5.0)


async def test_who_waits_for_the_last_hears_of_it(wire: Wire, channel: DeliveryChannel) -> None:
    one, two = came(channel, 2)
    channel.emptied = wire.loop.create_future()
    one.settle(ACCEPT)
    assert not channel.emptied.done()
    two.settle(ACCEPT)
    assert channel.emptied.done()
    (three,) = came(channel, 1)
    three.settle(ACCEPT)  # nobody waits any more


async def test_a_lease_that_ends_tells_its_holder(wire: Wire, channel: DeliveryChannel) -> None:
    one, two = came(channel, 2)
    lost: list[Delivery] = []
    one.on_lost = lost.append
    channel.expire(one)
    channel.expire(two)
    assert wire.flush() == [(RELEASE, 1, 2)]
    assert lost == [one]
    assert one.lost


async def test_what_is_over_a_limit_is_counted_until_it_is_rejected(wire: Wire, channel: DeliveryChannel) -> None:
    told: list[tuple[Oversized, Callable[[], None]]] = []
    channel.on_oversized = lambda oversized, reject: told.append((oversized, reject))
    for number in (1, 2):
        channel.receive(DeliveryTooLarge(3, "t", number, 5000, 1024, False, "e", "k"))
    assert channel.set_aside == 2
    assert [oversized for oversized, _ in told] == [Oversized("q", "e", "k", 5000, 1024)] * 2
    told[1][1]()
    assert channel.set_aside == 1
    assert wire.flush() == [(REJECT, 2, 2)]
    channel.end(BrokerUnavailable("lost"))
    told[0][1]()
    assert (wire.flush(), channel.set_aside) == ([], 1)
    channel.on_oversized = None
    channel.handle(DeliveryTooLarge(3, "t", 3, 5000, 1024))
    assert channel.oversized == 3


class Limits:
    """Every queue has a delivery limit of 8."""

    def __init__(self) -> None:
        self.kept: list[Delivery] = []
        self.on_used_up: Callable[[Delivery], None] | None = self.kept.append

    def of(self, queue: str) -> int:
        return 8


async def test_what_is_used_up_is_kept_once_and_only_when_it_is_given_back(
    wire: Wire, channel: DeliveryChannel
) -> None:
    limits = Limits()
    anything: Any = limits
    channel.limits = anything
    accepted, rejected, released, fresh = [
        *came(channel, 3, headers={"x-delivery-count": 6}),
        *came(channel, 1, headers={"x-delivery-count": 5}),
    ]
    assert [each.is_used_up for each in (accepted, released, fresh)] == [True, True, False]
    lost: list[Delivery] = []
    released.on_lost = lost.append
    wire.now = 99.0
    for each, settlement in ((accepted, ACCEPT), (rejected, REJECT), (released, RELEASE), (fresh, RELEASE)):
        each.settle(settlement)
        assert each.settled
    assert wire.flush() == [(ACCEPT, 1, 1), (REJECT, 2, 2), (RELEASE, 4, 4)]
    (kept,) = limits.kept
    assert (kept.number, kept.is_kept, kept.settled, kept.lost, kept.on_lost) == (3, True, False, False, None)
    channel.expire(kept)  # the part that keeps it decides
    assert lost == []
    assert wire.flush() == [(RELEASE, 3, 3)]
    assert limits.kept == [kept]
    assert not channel.keep(kept)


async def test_nobody_keeps_anything(wire: Wire, channel: DeliveryChannel) -> None:
    limits = Limits()
    limits.on_used_up = None
    anything: Any = limits
    for given in (None, anything):
        channel.limits = given
        (delivery,) = came(channel, 1, headers={"x-delivery-count": 7})
        assert delivery.limit == (0 if given is None else 8)
        assert not channel.keep(delivery)
        delivery.settle(RELEASE)
        assert wire.flush() == [(RELEASE, 1, 1)]


async def test_a_count_matters_only_where_the_broker_says_that_it_came_before(channel: DeliveryChannel) -> None:
    anything: Any = Limits()
    channel.limits = anything
    message = Message(b"", Properties(headers={"x-delivery-count": 6}))
    delivery = channel.take(Deliver(3, "t", 1, False, "", "q", message))
    assert (delivery.returns, delivery.limit) == (0, 0)
    delivery = channel.take(Deliver(3, "t", 2, True, "", "q", Message()))
    assert (delivery.returns, delivery.limit) == (0, 0)


async def test_what_was_accepted_on_a_channel_that_was_cut_off_may_come_again(
    wire: Wire, channel: DeliveryChannel
) -> None:
    assert stands(channel)
    assert not stands(object())
    wire.closing = True
    assert not stands(channel)
    wire.closing, wire.ended = False, object()
    assert not stands(channel)
    wire.ended = None
    for error, is_whole in ((StateError("the channel was closed"), True), (RemoteError(406, "no"), False)):
        other = DeliveryChannel(channel.link, 4)
        other.end(error)
        assert stands(other) is is_whole
