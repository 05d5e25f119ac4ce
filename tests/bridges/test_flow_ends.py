"""What a bridge's flow has done, what it marks, and what it gives back at its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import Settlement
from gateway.errors import BrokerUnavailable, StateError
from gateway.runtime.clock import clock
from gateway.upstreams import PublishReceipt
from tests.bridges.conftest import until
from tests.bridges.hands import Hand, arrive, given

# ------------------------------------------------------------------------------------------------ its numbers


async def test_a_flow_has_done_what_it_has_acknowledged(hand: Hand) -> None:
    flow = await hand.flow()
    assert (flow.held, flow.octets, flow.taken, flow.done, flow.done_octets, flow.left) == (0, 0, 0, 0, 0, None)
    assert (flow.unheld, flow.idle, flow.waiting) == (False, True, 0)
    deliveries = [given(size) for size in (1, 20, 300)]
    arrive(flow, *deliveries)
    flow.start()
    await until(lambda: flow.idle)
    assert (flow.held, flow.octets, flow.taken, flow.done, flow.done_octets) == (0, 0, 3, 3, 321)
    assert [delivery.told for delivery in deliveries] == [Settlement.ACCEPT] * 3
    assert flow._gate.outstanding == 0
    assert flow._chunks == {}
    counts = flow._counts
    assert (counts.numbers["taken"], counts.numbers["forwarded"]) == (3, 3)
    assert hand.estate.metrics.registry.get_sample_value("amqpgw_bridge_octets_total", {"bridge": "b"}) == 321


async def test_a_limited_number_is_counted_one_by_one(hand: Hand) -> None:
    """What the source was not told of comes again, and counts then."""
    flow = await hand.flow()
    enough: list[int] = []
    flow._on_enough = lambda: enough.append(flow.held)
    deliveries = [given() for _ in range(5)]
    arrive(flow, *deliveries)
    deliveries[1].settle = refused
    flow.start(3)
    await until(lambda: flow.left == 0)
    assert (flow.held, enough) == (1, [1]), "the last one is not taken"
    assert flow._counts.numbers["lease_lost"] == 1
    assert [delivery.told for delivery in deliveries] == [Settlement.ACCEPT, None, *[Settlement.ACCEPT] * 2, None]


def refused(settlement: Settlement) -> None:
    raise StateError("it was settled before")


async def test_a_message_of_a_known_id_is_told_apart_by_its_body(hand: Hand) -> None:
    """However short the time is for which it is remembered."""
    first = await hand.flow(dedupe_seconds=1)
    arrive(first, given(body=b"1", message_id="m"))
    first.start()
    await until(lambda: first.idle)
    second = hand.estate.bridges._here["b"]._make_flow()
    again, other = (given(body=body, message_id="m", redelivered=True) for body in (b"1", b"2"))
    arrive(second, again, other)
    second.start()
    await until(lambda: second.idle)
    assert (again.told, other.told) == (Settlement.ACCEPT, Settlement.ACCEPT)
    assert second._counts.numbers["duplicates_dropped"] == 1
    assert [delivery.message.body for delivery in await hand.estate.take(2)] == [b"1", b"2"]
    await second.stop(0.0)


@pytest.mark.parametrize("acknowledge", ["unsafe-no-ack", "unsafe-on-publish"])
async def test_a_stop_waits_for_what_its_source_has_forgotten(hand: Hand, acknowledge: str) -> None:
    """It would be lost."""
    flow = await hand.flow(acknowledge=acknowledge)
    flow.unheld = acknowledge == "unsafe-no-ack"
    arrive(flow, *(given(settled=flow.unheld) for _ in range(3)))
    flow.start()
    await flow.stop(5.0)
    assert flow.done == 3
    await hand.estate.take(3)


async def test_a_stop_gives_back_what_has_no_outcome_in_time(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What waits for room at the target is not sent any more."""
    futures: list[asyncio.Future[Any]] = []

    def publish(*_: Any, **__: Any) -> Any:
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    monkeypatch.setattr(hand.estate.new, "publish_nowait", publish)
    flow = await hand.flow()
    arrive(flow, given(), given())
    flow.start()
    await until(lambda: len(futures) == 2)
    await flow.stop(0.01)
    assert [future.cancelled() for future in futures] == [True, True]
    assert flow._chunks == {}
    assert [record.getMessage() for record in caplog.records] == ["bridge.not_drained"]
    futures.clear()
    flow = await hand.flow()
    arrive(flow, given())
    flow.start()
    await until(lambda: len(futures) == 1)
    await flow.stop(0.0)
    assert futures[0].cancelled()
    assert len(caplog.records) == 1, "no time was given"


async def test_a_stop_waits_for_outcomes_that_come_in_time(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    sent: list[bytes] = []

    def publish(exchange: str, routing_key: str, message: Message, **options: Any) -> Any:
        sent.append(message.body)
        return future

    monkeypatch.setattr(hand.estate.new, "publish_nowait", publish)
    flow = await hand.flow()
    under_way, more = given(body=b"1"), given(body=b"2")
    arrive(flow, under_way)
    flow.start()
    await until(lambda: sent)
    flow._gate.not_before = clock.monotonic() + 600.0
    arrive(flow, more)
    stopping = asyncio.create_task(flow.stop(10.0))
    await until(lambda: more.settled)
    assert (more.told, stopping.done()) == (Settlement.RELEASE, False)
    future.set_result(PublishReceipt(True))
    await stopping
    assert (under_way.told, sent) == (Settlement.ACCEPT, [b"1"])
    assert caplog.records == [], "and no longer"


async def test_outcomes_that_are_there_are_recorded_before_those_that_hang(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.bridges.flow.WAIT_MIN", 0.005)
    futures: list[asyncio.Future[Any]] = []

    def publish(*_: Any, **__: Any) -> Any:
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    monkeypatch.setattr(hand.estate.new, "publish_nowait", publish)
    flow = await hand.flow()
    deliveries = [given() for _ in range(4)]
    arrive(flow, *deliveries)
    flow.start()
    await until(lambda: len(futures) == 4)
    assert flow._gate.outstanding == 4
    futures[1].set_result(PublishReceipt(True))
    futures[2].set_result(PublishReceipt(True, resent=True))
    await until(lambda: flow.done == 2)
    assert [delivery.told for delivery in deliveries] == [None, Settlement.ACCEPT, Settlement.ACCEPT, None]
    assert (flow._gate.outstanding, flow.held) == (2, 2)
    futures[3].set_result(PublishReceipt(True))
    gone = BrokerUnavailable("it is gone")
    gone.resent = True
    futures[0].set_exception(gone)
    await until(lambda: flow.done == 3)
    assert [item.resent for item in flow._again] == [True]
    assert (flow._gate.outstanding, flow.held, flow.waiting) == (0, 1, 1)
    assert flow._journal.faults.reason == "target: it is gone"


async def test_one_that_another_process_has_lets_its_publishes_go(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the target has not got yet."""
    futures: list[asyncio.Future[Any]] = []

    def publish(*_: Any, **__: Any) -> Any:
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    monkeypatch.setattr(hand.estate.new, "publish_nowait", publish)
    flow = await hand.flow()
    deliveries = [given(), given()]
    arrive(flow, *deliveries)
    flow.start()
    await until(lambda: len(futures) == 2)
    deliveries[1].settled = True  # its source has forgotten it
    flow.abandon()
    assert [future.cancelled() for future in futures] == [True, False]


async def test_the_oldest_is_one_that_has_no_outcome(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.bridges.flow.WAIT_MIN", 0.005)
    futures: list[asyncio.Future[Any]] = []

    def publish(*_: Any, **__: Any) -> Any:
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    monkeypatch.setattr(hand.estate.new, "publish_nowait", publish)
    flow = await hand.flow()
    deliveries = [given(), given()]
    deliveries[0].at -= 600.0
    arrive(flow, *deliveries)
    flow.start()
    await until(lambda: len(futures) == 2)
    assert flow.oldest >= 600.0
    futures[0].set_result(PublishReceipt(True))
    await until(lambda: flow.done == 1)
    await asyncio.sleep(0)
    assert flow.oldest < 300.0
    futures[1].set_result(PublishReceipt(True))
    await until(lambda: flow.idle)
    assert flow.oldest == 0.0


@pytest.mark.parametrize(
    ("redelivered", "first", "doubtful", "unsure", "key", "resent"),
    [
        (False, 0, False, False, "k", False),
        (True, 0, False, False, "k", True),
        (False, 3, False, False, "k", False),
        (False, 0, True, False, "k", False),
        (True, 0, True, None, "k", False),
        (True, 0, True, None, "", True),
        (True, 0, True, True, "k", True),
    ],
)
async def test_what_may_be_at_the_target_already_is_marked(
    hand: Hand, redelivered: bool, first: int, doubtful: bool, unsure: bool | None, key: str, resent: bool
) -> None:
    """``unsure`` None or True: in mode ``dtx``, where a branch in the ledger says what is there."""
    flow = await hand.flow()
    two_phase: Any = None

    class Branches:
        def __init__(self) -> None:
            self.unsure = bool(unsure)

        def check(self, message: Message) -> None:
            """It can be sent."""

    if unsure is not False:
        two_phase = Branches()
    arrive(flow, given(redelivered=redelivered))
    (item,) = flow._look(flow._take(0.0))
    item.first, item.doubtful, item.key = first, doubtful, key
    flow._serial = 5
    ((_, message),) = flow._messages([item], two_phase)
    assert (item.resent, flow._counts.numbers["resent"]) == (resent, int(resent))
    assert (item.sent, item.first) == (6, first or 6)
    note = (message.properties.headers or {})["x-gateway"]
    assert isinstance(note, dict)
    assert ("resent" in note) is resent
    flow._messages([item], two_phase)
    assert (item.sent, item.first, flow._counts.numbers["resent"]) == (7, first or 6, 2 * resent)


# ------------------------------------------------------------------------------------------------- its end


async def test_a_stop_gives_back_what_was_not_published(hand: Hand) -> None:
    flow = await hand.flow()
    deliveries = [given(body=b"%d" % number, message_id=f"m-{number}") for number in range(4)]
    arrive(flow, *deliveries[:2])
    flow._again = flow._look(flow._take(0.0))
    for item in flow._again:
        flow.deduplicator.launched(item)
    arrive(flow, *deliveries[2:])
    flow.start()
    await flow.stop(5.0)
    assert [delivery.told for delivery in deliveries] == [Settlement.RELEASE] * 4
    assert (flow.held, flow.octets, flow.waiting, flow.idle) == (0, 0, 0, True)
    assert not flow.deduplicator


async def test_one_that_another_process_has_settles_nothing_and_publishes_nothing(hand: Hand) -> None:
    flow = await hand.flow()
    deliveries = [given(), given()]
    arrive(flow, deliveries[0])
    flow._again = flow._take(0.0)
    arrive(flow, deliveries[1])
    flow.start()
    flow.abandon()
    flow.hurry()
    assert await flow._tasks.join(5.0), "its tasks have ended"
    assert (flow.waiting, [delivery.told for delivery in deliveries]) == (0, [None, None])
    assert flow._take(0.0) == []
    assert await hand.estate.depth("out", "new") == 0


async def test_the_oldest_is_found_wherever_it_waits(hand: Hand) -> None:
    flow = await hand.flow()
    assert flow.oldest == 0.0
    deliveries = [given(), given(), given()]
    for delivery, seconds in zip(deliveries, (300.0, 200.0, 100.0), strict=True):
        delivery.at -= seconds
    arrive(flow, deliveries[2])
    assert 100.0 <= flow.oldest < 150.0
    arrive(flow, given())
    assert 100.0 <= flow.oldest < 150.0
    arrive(flow, deliveries[1])
    flow._again = flow._take(0.0)[2:]
    assert 200.0 <= flow.oldest < 250.0
    arrive(flow, deliveries[0])
    flow._chunks["mark"] = flow._take(1e9)[1:]
    assert 300.0 <= flow.oldest < 350.0


async def test_the_end_of_a_limited_number_is_told_once_nothing_is_under_way(hand: Hand) -> None:
    flow = await hand.flow()
    flow.left = 2
    enough: list[bool] = []
    flow._on_enough = lambda: enough.append(True)
    arrive(flow, given(), given(), given())
    first, second = flow._take(0.0)
    flow._gone(first.size, settled=True)
    assert enough == []
    flow._gone(second.size, settled=True)
    assert (enough, flow.left) == ([True], 0)
    assert flow._take(0.0) == []


async def test_an_acknowledgement_that_comes_too_late_is_counted(hand: Hand) -> None:
    flow = await hand.flow()
    delivery = given()
    assert flow._settle(delivery, Settlement.ACCEPT)
    assert flow._settle(delivery, Settlement.ACCEPT), "it was told before"
    late = given()
    late.lost = True
    assert not flow._settle(late, Settlement.ACCEPT)
    assert flow._counts.numbers["lease_lost"] == 1
