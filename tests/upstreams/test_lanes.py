"""A lane's window: which publishes an outcome is for, what it frees, and what it says of the channel."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import Confirmed, Failed, Publish, Refused, Returned
from gateway.errors import BrokerUnavailable, GatewayError, OutcomeUnknown, PreconditionFailed, PublishRefused
from gateway.upstreams.publishing.lanes import NEVER, Lane, Outlet, PublishedExchange, settle
from gateway.upstreams.publishing.receipts import ROUTED, Entry, PublishReceipt


class Owner:
    """Hears what lanes say."""

    def __init__(self) -> None:
        self.octets: list[int] = []
        self.times: list[float] = []
        self.culprits: list[bytes] = []
        self.left: list[bytes] = []

    def freed(self, octets: int) -> None:
        self.octets.append(octets)

    def flow_changed(self, active: bool) -> None:
        """Lanes of these tests are never stopped."""

    def named(self, outlet: Outlet, publish: Publish, error: GatewayError) -> None:
        self.culprits.append(publish.message.body)

    def lane_lost(self, lane: Lane, pending: list[Entry], error: GatewayError) -> None:
        self.left += [entry[3].message.body for entry in pending]

    def answered(self, seconds: float) -> None:
        self.times.append(seconds)


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def outlet(owner: Owner) -> Outlet:
    return PublishedExchange(owner, "e", 1, 100).outlets[0]


BASE = 7
"""Serial of the first publish."""


@pytest.fixture
async def lane(outlet: Outlet) -> Lane:
    """With five publishes without an outcome, of 1 to 5 bytes, the first one of which is timed."""
    link: Any = SimpleNamespace(now=10.0, loop=asyncio.get_running_loop())
    lane = Lane(link, 1)
    lane.outlet, outlet.lane = outlet, lane
    lane.ready = True
    lane.base = lane.measured = BASE
    lane.measured_at = 4.0
    outlet.limit = 5
    for size in range(1, 6):
        future: asyncio.Future[PublishReceipt] = link.loop.create_future()
        lane.window.append((future, size, float(size), Publish(1, "e", "k", Message(b"%d" % size), True, False)))
    return lane


def futures(lane: Lane) -> list[asyncio.Future[PublishReceipt]]:
    return [entry[0] for entry in lane.window if entry is not None]


async def test_an_outcome_is_for_those_that_it_names(lane: Lane, owner: Owner) -> None:
    found = futures(lane)

    def done() -> list[bool]:
        return [future.done() for future in found]

    lane.receive(Confirmed(1, BASE + 1, BASE + 1))
    assert done() == [False, True, False, False, False]
    lane.receive(Confirmed(1, BASE + 3, BASE + 3))
    assert done() == [False, True, False, True, False]
    lane.receive(Confirmed(1, BASE, BASE))
    assert done() == [True, True, False, True, False]
    assert (lane.base, len(lane.window)) == (BASE + 2, 3), "those that have their outcome make room"
    lane.receive(Confirmed(1, BASE, BASE + 4))
    assert done() == [True] * 5
    assert (lane.base, len(lane.window)) == (BASE + 5, 0)
    assert owner.octets == [2, 4, 1, 3 + 5]
    assert lane.progress == 10.0


async def test_a_range_behind_others_frees_each_once(lane: Lane, owner: Owner) -> None:
    found = futures(lane)
    lane.receive(Confirmed(1, BASE + 2, BASE + 3))
    lane.receive(Confirmed(1, BASE + 1, BASE + 9))
    assert [future.done() for future in found] == [False, True, True, True, True]
    assert owner.octets == [3 + 4, 2 + 5]
    lane.receive(Confirmed(1, BASE, BASE))
    assert (owner.octets[-1], len(lane.window), lane.base) == (1, 0, BASE + 5)


async def test_every_outcome_lets_one_more_in(lane: Lane, outlet: Outlet) -> None:
    lane.receive(Confirmed(1, BASE, BASE + 1))
    assert outlet.limit == 7
    outlet.suspects = 1
    lane.receive(Confirmed(1, BASE + 2, BASE + 2))
    assert outlet.limit == 7, "not while one of them is looked for"
    outlet.suspects = 0
    outlet.limit = 99
    lane.receive(Confirmed(1, BASE + 3, BASE + 4))
    assert outlet.limit == 100
    outlet.limit = 0
    outlet.proved(1)
    assert outlet.limit == 0, "nothing of its own beside the suspects of the others"


async def test_one_outcome_at_a_time_is_timed(lane: Lane, owner: Owner) -> None:
    assert lane.waits(9.0) == 5.0
    lane.progress = 8.0
    lane.receive(Confirmed(1, BASE + 1, BASE + 1))
    assert owner.times == []
    lane.receive(Confirmed(1, BASE, BASE))
    assert owner.times == [6.0]
    lane.receive(Confirmed(1, BASE + 2, BASE + 2))
    assert owner.times == [6.0]
    assert lane.waits(12.0) == 2.0, "since the window moved"
    assert lane.waits(9.0) == 0.0
    lane.receive(Confirmed(1, BASE + 3, BASE + 4))
    assert lane.waits(20.0) == 0.0


@pytest.mark.parametrize("serial", [0, 1])
async def test_any_serial_may_be_the_timed_one(lane: Lane, serial: int) -> None:
    lane.progress = 8.0
    lane.measured = serial
    assert lane.waits(9.0) == 5.0


async def test_a_commit_is_over_with_the_last_of_its_outcomes(lane: Lane) -> None:
    sealed = []
    for serial in (None, BASE + 3, BASE + 4, None):
        if serial is None:
            lane.seal()
        else:
            lane.receive(Confirmed(1, lane.base, serial))
        sealed.append(lane.sealed)
    assert sealed == [True, True, False, False], "the second time there is nothing to commit"


@pytest.mark.parametrize("at", range(5))
async def test_the_broker_names_the_culprit(lane: Lane, owner: Owner, at: int) -> None:
    found = futures(lane)
    lane.receive(Failed(1, BASE + at, BASE + at, 406, "bad"))
    assert owner.culprits == [b"%d" % (at + 1)]
    assert lane.named == at
    assert isinstance(found[at].exception(), PreconditionFailed)
    assert sum(future.done() for future in found) == 1


async def test_what_has_its_outcome_is_not_to_blame(lane: Lane, owner: Owner) -> None:
    lane.receive(Confirmed(1, BASE + 1, BASE + 1))
    lane.receive(Failed(1, BASE + 3, BASE + 3, 406, "bad"))
    assert lane.named == 2, "the second has its outcome"
    for serial in (BASE - 1, BASE + 1, BASE + 5):
        lane.receive(Failed(1, serial, serial, 406, "no publish that waits"))
    assert owner.culprits == [b"4"]


async def test_refusals_and_returns(lane: Lane) -> None:
    found = futures(lane)
    lane.receive(Returned(1, BASE, BASE, 312, "NO_ROUTE", final=False))
    assert not found[0].done()
    lane.receive(Returned(1, BASE, BASE, 312, "NO_ROUTE"))
    assert found[0].result() == PublishReceipt(False, 312, "NO_ROUTE")
    for index, (code, text, said) in enumerate(
        ((0, "", "the broker refused the message"), (506, "full", "the broker refused the message: 506 full")), 1
    ):
        lane.receive(Refused(1, BASE + index, BASE + index, code, text))
        error = found[index].exception()
        assert isinstance(error, PublishRefused)
        assert str(error) == said


async def test_whose_time_is_up_stays_in_the_window(lane: Lane, owner: Owner) -> None:
    found = futures(lane)
    found[2].cancel()
    lane.receive(Confirmed(1, BASE + 1, BASE + 1))
    assert lane.time_out(0.9) == 1.0
    assert lane.time_out(1.0) == 4.0
    assert isinstance(found[0].exception(), OutcomeUnknown)
    assert lane.time_out(4.0) == 5.0
    assert lane.time_out(5.0) == NEVER
    assert len(lane.window) == 5
    lane.receive(Confirmed(1, BASE, BASE + 4))  # late
    assert owner.octets == [2, 1 + 3 + 4 + 5]


async def test_what_a_lost_channel_leaves(lane: Lane, owner: Owner, outlet: Outlet) -> None:
    lane.receive(Confirmed(1, BASE + 1, BASE + 1))
    outlet.exchange.known_at = 5.0
    lane.end(BrokerUnavailable("lost"))
    assert owner.left == [b"1", b"3", b"4", b"5"]
    assert not lane.window
    assert outlet.lane is None
    assert outlet.exchange.known_at == -NEVER, "the exchange may be why"


async def test_a_channel_that_was_replaced_before_says_nothing_of_the_next(lane: Lane, outlet: Outlet) -> None:
    other: Any = SimpleNamespace(window=[])
    outlet.lane = other
    outlet.exchange.known_at = 5.0
    lane.end(BrokerUnavailable("lost"))
    assert outlet.lane is other
    assert outlet.exchange.known_at == 5.0


async def test_who_is_busy(lane: Lane, outlet: Outlet) -> None:
    busy = [outlet.busy]
    lane.receive(Confirmed(1, BASE, BASE + 4))
    busy.append(outlet.busy)
    outlet.opening = asyncio.create_task(asyncio.sleep(0))
    busy.append(outlet.busy)
    await outlet.opening
    outlet.opening = outlet.lane = None
    busy.append(outlet.busy)
    future: asyncio.Future[PublishReceipt] = asyncio.get_running_loop().create_future()
    outlet.line.append((future, 1.0, "k", Message(), False, None))
    busy.append(outlet.busy)
    assert busy == [True, False, True, False, True]


def test_of_two_outlets_the_first_that_is_not_committing(owner: Owner) -> None:
    exchange = PublishedExchange(owner, "e", 2, 10)
    one, two = exchange.outlets
    sealed: Any = SimpleNamespace(sealed=True)
    unsealed: Any = SimpleNamespace(sealed=False)
    assert exchange.outlet(None) is one
    one.lane = sealed
    assert exchange.outlet(None) is two
    two.lane = unsealed
    assert exchange.outlet(None) is two
    two.lane = sealed
    one.line.extend([Any, Any])  # type: ignore[list-item]
    two.line.append(Any)  # type: ignore[arg-type]
    assert exchange.outlet(None) is two, "its line is shorter"
    assert len({exchange.outlet("an order") for _ in range(5)}) == 1
    assert {exchange.outlet(str(number)) for number in range(50)} == {one, two}


def test_the_default_exchange_is_never_in_doubt(owner: Owner) -> None:
    assert PublishedExchange(owner, "", 1, 10).known_at == NEVER
    assert PublishedExchange(owner, "e", 1, 10).known_at == -NEVER


async def test_the_first_outcome_is_the_one_that_counts() -> None:
    future: asyncio.Future[PublishReceipt] = asyncio.get_running_loop().create_future()
    settle(future, ROUTED)
    settle(future, PublishRefused("too late"))
    assert future.result() is ROUTED
