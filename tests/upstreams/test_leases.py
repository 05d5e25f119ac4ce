"""Messages on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import (
    Cancel,
    Cancelled,
    Close,
    CloseChannel,
    Closed,
    CloseReason,
    Consume,
    Declared,
    Deliver,
    DeliveryTooLarge,
    Get,
    Got,
    GotNothing,
    OpenChannel,
    Publish,
    QueryQueue,
    Settle,
    Settlement,
)
from gateway.errors import (
    BrokerUnavailable,
    LeaseLost,
    NoDeadLetterDestination,
    NotFound,
    Overloaded,
    StateError,
    Unroutable,
    Unsupported,
)
from gateway.upstreams import Delivery, Oversized
from gateway.upstreams.consuming import leases
from tests.upstreams.conftest import Start
from tests.upstreams.fake import FakeBroker, Peer, until


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.message.body for delivery in deliveries]


async def test_what_is_there_is_leased_and_settled(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", *(b"%d" % index for index in range(30)))
    found = await upstream.fetch("q", 25)
    assert bodies(found) == [b"%d" % index for index in range(25)]
    assert upstream.status().leases == 25
    for delivery in found:
        delivery.settle(Settlement.ACCEPT)
    assert found[0].settled
    assert not found[0].lost
    await until(lambda: broker.all(Settle))
    (settle,) = broker.all(Settle)  # one range for the lot
    assert (settle.first, settle.last, settle.settlement) == (1, 25, Settlement.ACCEPT)
    assert bodies(await upstream.fetch("q", 25)) == [b"25", b"26", b"27", b"28", b"29"]
    assert await upstream.fetch("q", 25) == []
    with pytest.raises(StateError, match="settled before"):
        found[0].settle(Settlement.ACCEPT)


async def test_a_queue_that_had_plenty_is_asked_for_all_at_once(broker: FakeBroker, start: Start) -> None:
    """The first few gets find out whether there is anything; a round trip that is known to be of no use is saved."""
    upstream = await start(broker)
    broker.put("q", *(b"%d" % index for index in range(25)))
    asked = []
    for wanted in (20, 30, 30):
        before = len(broker.all(Get))
        found = await upstream.fetch("q", wanted)
        for delivery in found:
            delivery.settle(Settlement.ACCEPT)
        asked.append((len(found), len(broker.all(Get)) - before))
        await asyncio.sleep(0.01)
    assert asked == [(20, 20), (5, 30), (0, 10)]


async def test_release_comes_back_redelivered(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", b"1")
    (delivery,) = await upstream.fetch("q", 1)
    assert not delivery.redelivered
    delivery.settle(Settlement.RELEASE)
    (again,) = await upstream.fetch("q", 1, 1.0)
    assert again.redelivered


async def test_releases_leave_one_by_one_where_the_broker_needs_that(start: Start) -> None:
    broker = FakeBroker(release_many=False)
    upstream = await start(broker)
    broker.put("q", b"1", b"2", b"3")
    for delivery in await upstream.fetch("q", 3):
        delivery.settle(Settlement.RELEASE)
    await until(lambda: len(broker.all(Settle)) == 3)


async def test_runs_of_different_settlements(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", *(b"%d" % index for index in range(6)))
    found = await upstream.fetch("q", 6)
    for index in (0, 1, 4, 5):
        found[index].settle(Settlement.ACCEPT)
    for index in (2, 3):
        found[index].settle(Settlement.REJECT)
    await until(lambda: len(broker.all(Settle)) == 3)
    assert [(s.settlement, s.first, s.last) for s in broker.all(Settle)] == [
        (Settlement.ACCEPT, 1, 2),
        (Settlement.ACCEPT, 5, 6),
        (Settlement.REJECT, 3, 4),
    ]


async def test_a_missing_queue(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", b"1")
    (delivery,) = await upstream.fetch("q", 1)
    for wait in (0.0, 1.0):
        with pytest.raises(NotFound, match="missing"):
            await upstream.fetch("missing", 10, wait)
    assert not delivery.lost


async def test_waiting_ends_with_the_first_message(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q")
    waiting = asyncio.create_task(upstream.fetch("q", 5, 5.0))
    await until(lambda: broker.all(Consume))
    broker.put("q", b"1", b"2")
    assert bodies(await waiting) == [b"1", b"2"]
    broker.put("q", b"3")  # nobody waits any more
    await asyncio.sleep(0.01)
    assert len(broker.queues["q"]) == 1
    assert upstream.status().leases == 2


async def test_waiting_never_brings_more_than_asked_for(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q")
    waiting = [asyncio.create_task(upstream.fetch("q", 2, 5.0)) for _ in range(3)]
    await until(lambda: len(broker.all(Consume)) == 3)
    broker.put("q", *(b"%d" % index for index in range(10)))
    assert [len(found) for found in await asyncio.gather(*waiting)] == [2, 2, 2]
    assert len(broker.queues["q"]) == 4


async def test_waiting_in_vain(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q")
    assert await upstream.fetch("q", 5, 0.03) == []
    assert len(broker.all(Cancel)) == 1


async def test_who_leaves_gets_nothing_and_keeps_nothing(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q")
    waiting = asyncio.create_task(upstream.fetch("q", 5, 5.0))
    await until(lambda: broker.all(Consume))
    # The message is delivered while the one who asked is leaving.
    broker.on[Cancel] = lambda peer, operation: bool(broker.put("q", b"late"))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until(lambda: broker.all(Settle))
    assert [settle.settlement for settle in broker.all(Settle)] == [Settlement.RELEASE]
    assert broker.queues["q"][0][1]


async def test_the_consumer_of_one_who_waits_is_cancelled(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q")
    waiting = asyncio.create_task(upstream.fetch("q", 5, 5.0))
    await until(lambda: broker.all(Consume))
    for peer in broker.peers:
        for (channel, tag), _ in list(peer.consumers.items()):
            peer.send(Cancelled(channel, tag))
    assert await waiting == []


async def test_the_queue_goes_while_somebody_waits(start: Start) -> None:
    broker = FakeBroker(consumer_cancel_notify=True)
    upstream = await start(broker)
    broker.put("q")
    waiting = [asyncio.create_task(upstream.fetch("q", 5, 5.0)) for _ in range(3)]
    await until(lambda: len(broker.all(Consume)) == 3)
    await upstream.delete_queue("q")
    assert [type(error) for error in await asyncio.gather(*waiting, return_exceptions=True)] == [NotFound] * 3
    with pytest.raises(NotFound):
        await upstream.fetch("q", 5, 5.0)


async def test_the_queue_goes_and_the_broker_says_nothing(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for again and again, once for all who wait, and only while somebody does."""
    monkeypatch.setattr(leases, "LOOK_AGAIN", 0.02)
    upstream = await start(broker)
    broker.put("q")
    assert await upstream.fetch("q", 5) == []
    waiting = [asyncio.create_task(upstream.fetch("q", 5, 5.0)) for _ in range(20)]
    await until(lambda: len(broker.all(Consume)) == 20)
    await until(lambda: len(broker.all(QueryQueue)) > 3)
    del broker.queues["q"]
    assert {type(error) for error in await asyncio.gather(*waiting, return_exceptions=True)} == {NotFound}
    asked = len(broker.all(QueryQueue))
    assert asked < 20
    await asyncio.sleep(0.05)
    assert len(broker.all(QueryQueue)) == asked
    broker.put("q", b"1")
    assert bodies(await upstream.fetch("q", 5, 5.0)) == [b"1"]


async def test_who_waits_survives_a_broker_that_cannot_be_asked_now(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LOOK_AGAIN", 0.02)
    upstream = await start(broker)
    broker.put("q")
    waiting = asyncio.create_task(upstream.fetch("q", 5, 5.0))
    await until(lambda: broker.all(Consume))
    asking = next(peer for peer in broker.peers if peer.of(QueryQueue))
    asking.stream.abort()
    await asyncio.sleep(0.05)
    broker.put("q", b"1")
    assert bodies(await waiting) == [b"1"]


@pytest.mark.parametrize("bound", ["lease_channels", "channel_max"])
async def test_who_finds_no_channel_waits_for_one(start: Start, bound: str) -> None:
    broker = FakeBroker(channel_max=1) if bound == "channel_max" else FakeBroker()
    upstream = await start(broker, **({} if bound == "channel_max" else {"lease_channels": 1}))
    broker.put("q")
    first = asyncio.create_task(upstream.fetch("q", 1, 5.0))
    await until(lambda: broker.all(Consume))
    with pytest.raises(Overloaded, match="channels"):
        await upstream.fetch("q", 1)
    with pytest.raises(Overloaded, match="channels"):
        await upstream.fetch("q", 1, 0.02)
    second = asyncio.create_task(upstream.fetch("q", 1, 5.0))
    await asyncio.sleep(0.01)
    assert not second.done()
    broker.put("q", b"1", b"2")
    assert bodies([*await first, *await second]) == [b"1", b"2"]


async def test_who_waits_is_not_refused_what_another_has_asked(broker: FakeBroker, start: Start) -> None:
    """The broker ends the connection with a code, over a request of somebody else."""
    upstream = await start(broker)
    broker.put("q")
    pull = asyncio.create_task(upstream.fetch("q", 1, 20))
    await until(lambda: any(peer.consumers for peer in broker.peers))
    (peer,) = [peer for peer in broker.peers if peer.consumers]
    peer.send(Closed(0, CloseReason.PEER, 403, "ACCESS_REFUSED - to the queue 'private'"))
    with pytest.raises(BrokerUnavailable, match="private"):
        await pull


async def test_a_lost_link_loses_the_leases_and_says_so(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", b"1", b"2")
    one, two = await upstream.fetch("q", 2)
    told: list[Delivery] = []
    one.on_lost = told.append
    waiting = asyncio.create_task(upstream.fetch("q", 1, 5.0))
    await until(lambda: broker.all(Consume))
    broker.kill()
    with pytest.raises(BrokerUnavailable):
        await waiting
    assert told == [one]
    assert one.lost
    assert two.lost
    with pytest.raises(LeaseLost):
        two.settle(Settlement.ACCEPT)
    assert await upstream.wait_up(30)
    found = await upstream.fetch("q", 5, 1.0)
    assert all(delivery.redelivered for delivery in found)


async def test_a_lost_channel_loses_only_its_own(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", b"1")
    broker.put("r", b"2")
    (one,), (two,) = await upstream.fetch("q", 1), await upstream.fetch("r", 1)
    peer = next(peer for peer in broker.peers if peer.outstanding)
    first, second = list(peer.outstanding)
    peer.close_channel(first, 406, "PRECONDITION_FAILED - delivery acknowledgement timed out")
    await until(lambda: one.lost)
    assert not two.lost
    with pytest.raises(LeaseLost, match="timed out"):
        one.settle(Settlement.ACCEPT)
    two.settle(Settlement.ACCEPT)
    await until(lambda: not peer.outstanding[second])


async def test_channels_hold_a_hundred_each_and_are_bounded(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, lease_channels=2)
    broker.put("q", *(b"%d" % index for index in range(250)))
    found = await upstream.fetch("q", 250)
    assert len(found) == 200
    with pytest.raises(Overloaded, match="lease_channels"):
        await upstream.fetch("q", 1)
    found[0].settle(Settlement.ACCEPT)
    assert bodies(await upstream.fetch("q", 5, 0.1)) == [b"200"]
    held = [len(out) for peer in broker.peers for out in peer.outstanding.values()]
    assert sorted(held) == [100, 100]


async def test_channels_are_short_lived(broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "CHANNEL_AGE", 0.05)
    monkeypatch.setattr(leases, "_SWEEP", 0.02)
    upstream = await start(broker)
    broker.put("q", b"1", b"2")
    (delivery,) = await upstream.fetch("q", 1)
    await asyncio.sleep(0.1)
    (other,) = await upstream.fetch("q", 1)  # on another channel: that one is too old
    assert len({delivery._channel, other._channel}) == 2
    assert not delivery.lost
    delivery.settle(Settlement.ACCEPT)
    other.settle(Settlement.ACCEPT)
    await until(lambda: len(broker.all(CloseChannel)) == 2)


async def test_a_lease_ends_before_the_broker_loses_patience(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_SWEEP", 0.02)
    upstream = await start(broker, lease_max=10.0)
    upstream._leases._lease_max = 0.05
    broker.put("q", b"1")
    (delivery,) = await upstream.fetch("q", 1)
    told: list[Delivery] = []
    delivery.on_lost = told.append
    await until(lambda: told)
    assert delivery.lost
    with pytest.raises(LeaseLost):
        delivery.settle(Settlement.ACCEPT)
    await until(lambda: broker.queues["q"])


def _too_large_at_the_head(broker: FakeBroker) -> None:
    """The next get finds a message over the limit, once."""

    def get(peer: Peer, operation: Get) -> bool:
        del broker.on[Get]
        number = peer.out_on(operation.channel, operation.queue, Message())
        peer.send(
            DeliveryTooLarge(operation.channel, "", number, 5000, 1024, False, "", operation.queue),
            GotNothing(operation.channel, operation.serial, operation.serial),
        )
        return True

    broker.on[Get] = get


async def test_a_message_over_the_limit_is_set_aside_and_no_loop(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_SWEEP", 0.02)
    upstream = await start(broker)
    seen: list[Oversized] = []
    upstream.on_oversized.append(seen.append)
    broker.put("q", b"1", b"2")
    _too_large_at_the_head(broker)
    found = await upstream.fetch("q", 2)
    assert bodies(found) == [b"1", b"2"]
    assert seen == [Oversized("q", "", "q", 5000, 1024)]
    for delivery in found:
        delivery.settle(Settlement.ACCEPT)
    await asyncio.sleep(0.05)
    opened = len(broker.all(OpenChannel))
    assert await upstream.fetch("q", 2, 0.01) == []  # on other channels: that one is in quarantine
    assert len(broker.all(OpenChannel)) > opened
    assert len(seen) == 1
    upstream._leases._lease_max = 0.0
    await until(lambda: broker.all(CloseChannel))  # and then the broker may offer it again


async def test_a_message_over_the_limit_for_one_who_waits(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q")
    seen: list[Oversized] = []
    upstream.on_oversized.append(seen.append)

    def consume(peer: Peer, operation: Consume) -> None:
        del broker.on[Consume]
        asyncio.get_running_loop().call_later(
            0.01, peer.send, DeliveryTooLarge(operation.channel, operation.consumer_tag, 1, 5000, 1024)
        )

    broker.on[Consume] = consume
    waiting = asyncio.create_task(upstream.fetch("q", 1, 5.0))
    await until(lambda: len(broker.all(Consume)) == 2)
    broker.put("q", b"1")
    assert bodies(await waiting) == [b"1"]
    assert len(seen) == 1


async def test_a_silent_broker(broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "ANSWER_TIMEOUT", 0.02)
    upstream = await start(broker)
    for kind, wait in ((Get, 0.0), (Consume, 1.0), (OpenChannel, 0.0)):
        broker.put("q")
        broker.on = {kind: lambda peer, operation: True}
        with pytest.raises(BrokerUnavailable, match="no answer"):
            await upstream.fetch("q", 1, wait)


async def test_reject_by_the_broker(start: Start) -> None:
    """Only where it is stated that the queue dead-letters: nothing else says so of a queue that others declared."""
    broker = FakeBroker(native_dead_letter=True)
    upstream = await start(broker)
    broker.put("q", b"1")
    (delivery,) = await upstream.fetch("q", 1)
    with pytest.raises(NoDeadLetterDestination, match="knows no dead-letter destination of the queue 'q'"):
        await upstream.reject(delivery)
    assert not delivery.settled
    await upstream.reject(delivery, native=True)
    await until(lambda: broker.all(Settle))
    assert broker.all(Settle)[0].settlement is Settlement.REJECT
    assert broker.all(Publish) == []


async def test_reject_by_copy(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.queues.clear()
    broker.put("dead")
    broker.put("q", b"1")
    broker.queues["q"][0] = (Message(b"1", Properties(type="t", expiration="5", user_id="ann")), False)
    (delivery,) = await upstream.fetch("q", 1)
    with pytest.raises(Unsupported):
        await upstream.reject(delivery)
    with pytest.raises(Unroutable):
        await upstream.reject(delivery, ("amq.direct", "nowhere"))
    with pytest.raises(NotFound):
        await upstream.reject(delivery, ("missing", "nowhere"))
    assert not delivery.settled
    await upstream.reject(delivery, ("", "dead"))
    await until(lambda: broker.all(Settle))
    assert broker.all(Settle)[0].settlement is Settlement.ACCEPT
    copy = broker.queues["dead"][0][0]
    assert copy.body == b"1"
    assert copy.properties == Properties(type="t", headers={"x-gateway": {"expiration": "5", "user_id": "ann"}})
    broker.put("q", b"2")
    (other,) = await upstream.fetch("q", 1)
    broker.kill()
    await until(lambda: other.lost)
    with pytest.raises(LeaseLost):
        await upstream.reject(other, ("", "dead"))


def _tells(arguments: dict[str, object]) -> Callable[[Peer, QueryQueue], bool]:
    def answer(peer: Peer, operation: QueryQueue) -> bool:
        n = operation.serial
        peer.send(Declared(operation.channel, n, n, operation.queue, durable=True, arguments=arguments))
        return True

    return answer


async def test_a_queue_that_names_no_place_would_lose_what_is_rejected(start: Start) -> None:
    """Where the version tells a queue's arguments, as 0-10 does."""
    broker = FakeBroker(native_dead_letter=True)
    upstream = await start(broker)
    broker.put("q", b"1")
    broker.put("r", b"2")
    broker.on[QueryQueue] = _tells({})
    (one,) = await upstream.fetch("q", 1)
    for _ in range(2):  # the second time it is remembered
        with pytest.raises(Unsupported):
            await upstream.reject(one)
    broker.exchanges.add("dead")
    broker.on[QueryQueue] = _tells({"alternate-exchange": "dead"})
    (two,) = await upstream.fetch("r", 1)
    await upstream.reject(two)
    await until(lambda: broker.all(Settle))
    assert broker.all(Settle)[0].settlement is Settlement.REJECT
    del broker.on[QueryQueue]
    await upstream.delete_queue("q")


async def test_a_queue_that_was_declared_here_with_a_place(start: Start) -> None:
    broker = FakeBroker(native_dead_letter=True)
    upstream = await start(broker)
    await upstream.declare_queue("q", arguments={"x-dead-letter-exchange": "dead"})
    await upstream.declare_queue("r", arguments={"x-dead-letter-exchange": "missing"})
    await upstream.declare_queue(
        "s", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "no-such-queue"}
    )
    broker.exchanges.add("dead")
    for queue in ("q", "r", "s"):
        broker.put(queue, b"1")
    (delivery,) = await upstream.fetch("q", 1)
    await upstream.reject(delivery)
    assert delivery.settled
    for queue in ("r", "s"):  # the broker would drop it
        (delivery,) = await upstream.fetch(queue, 1)
        with pytest.raises(NoDeadLetterDestination):
            await upstream.reject(delivery)


async def test_an_unchanged_dead_letter_is_the_message_itself(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("dead")
    broker.put("q", b"1")
    (delivery,) = await upstream.fetch("q", 1)
    await upstream.reject(delivery, ("", "dead"))
    assert broker.queues["dead"][0][0].properties == Properties()


async def test_a_login_that_may_not_ask_for_queues_may_still_read(broker: FakeBroker, start: Start) -> None:
    def refuse(peer: Peer, operation: QueryQueue) -> bool:
        peer.close_channel(operation.channel, 403, "ACCESS_REFUSED")
        return True

    broker.on[QueryQueue] = refuse
    upstream = await start(broker)
    broker.put("q", b"1")
    assert bodies(await upstream.fetch("q", 1)) == [b"1"]


async def test_an_answer_that_comes_too_late_stays_with_the_broker(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = await start(broker)
    broker.put("q", b"1", b"2")
    (held,) = await upstream.fetch("q", 1)
    monkeypatch.setattr(leases, "ANSWER_TIMEOUT", 0.02)
    late: list[tuple[Peer, Get]] = []
    broker.on = {
        Get: lambda peer, operation: not late.append((peer, operation)),
        CloseChannel: lambda peer, operation: True,
    }
    with pytest.raises(BrokerUnavailable):
        await upstream.fetch("q", 1)
    assert held.lost  # it was on the channel that is given up
    with pytest.raises(LeaseLost):
        held.settle(Settlement.ACCEPT)
    peer, get = late[0]
    peer.send(Got(get.channel, get.serial, get.serial, 2, False, "", "q", Message(b"2")))
    await asyncio.sleep(0.02)
    assert upstream.status().leases == 0
    assert not broker.all(Settle)


async def test_a_place_that_was_given_is_used_where_nobody_can_say_what_the_queue_does(start: Start) -> None:
    """0-9-1 does not tell whether a queue has a dead-letter exchange; one that has none loses what is rejected."""
    broker = FakeBroker(native_dead_letter=True)
    upstream = await start(broker)
    broker.put("dead")
    broker.put("q", b"1")
    (delivery,) = await upstream.fetch("q", 1)
    await upstream.reject(delivery, ("", "dead"))
    await until(lambda: broker.all(Settle))
    assert broker.all(Settle)[0].settlement is Settlement.ACCEPT
    assert [message.body for message, _ in broker.queues["dead"]] == [b"1"]


async def test_what_comes_after_the_consumer_has_ended_goes_back(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q")
    fetch = asyncio.create_task(upstream.fetch("q", 1, 5.0))
    await until(lambda: broker.all(Consume))
    broker.put("q", b"1")
    (delivery,) = await fetch
    (cancel,) = broker.all(Cancel)
    peer = next(peer for peer in broker.peers if peer.of(Cancel))
    number = peer.out_on(cancel.channel, "q", Message(b"late"))
    peer.send(Deliver(cancel.channel, cancel.consumer_tag, number, False, "", "q", Message(b"late")))
    await until(lambda: broker.all(Settle))
    assert [(one.settlement, one.first, one.last) for one in broker.all(Settle)] == [
        (Settlement.RELEASE, number, number)
    ]
    assert not delivery.lost
    assert upstream.status().leases == 1


async def test_an_answer_to_a_get_that_nobody_waits_for_goes_back(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", b"1")
    (held,) = await upstream.fetch("q", 1)
    (get, *_) = broker.all(Get)
    peer = next(peer for peer in broker.peers if peer.of(Get))
    number = peer.out_on(get.channel, "q", Message(b"2"))
    peer.send(Got(get.channel, get.serial, get.serial, number, False, "", "q", Message(b"2")))
    await until(lambda: broker.all(Settle))
    assert broker.all(Settle)[0].settlement is Settlement.RELEASE
    assert not held.lost


async def test_what_is_settled_while_the_connection_closes_is_lost(broker: FakeBroker, start: Start) -> None:
    """Nothing that is sent behind a close arrives: to say that it was settled would be a lie."""
    upstream = await start(broker)
    broker.put("q", b"1", b"2")
    one, two = await upstream.fetch("q", 2)
    one.settle(Settlement.ACCEPT)
    peer = next(peer for peer in broker.peers if peer.of(Get))
    link = one._channel.link
    closing = asyncio.create_task(link.close())
    await asyncio.sleep(0)
    with pytest.raises(LeaseLost):
        two.settle(Settlement.ACCEPT)
    await closing
    kinds = [type(operation) for operation in peer.received]
    assert kinds.count(Settle) == 1
    assert kinds.index(Settle) < kinds.index(Close)
