"""Publishing: receipts, windows, and every way in which a publish can fail."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import (
    ChannelClosed,
    Confirmed,
    ExchangeFound,
    Failed,
    Flow,
    Operation,
    Publish,
    QueryExchange,
    Refused,
    Returned,
    SelectConfirm,
)
from gateway.errors import (
    AccessRefused,
    BrokerUnavailable,
    EncodeError,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    PublishRefused,
    Unsupported,
)
from gateway.session import Confirms
from gateway.upstreams import PublishReceipt, UpstreamState
from gateway.upstreams.publishing import publisher, waiting
from tests.upstreams.conftest import Start
from tests.upstreams.fake import FakeBroker, FakeSession, Peer, until


class Held:
    """Publishes that the broker keeps to itself until the test answers."""

    def __init__(self, broker: FakeBroker) -> None:
        self.got: list[tuple[Peer, Publish]] = []
        broker.on[Publish] = self.hold

    def hold(self, peer: Peer, operation: Publish) -> bool:
        self.got.append((peer, operation))
        return True

    def bodies(self) -> list[bytes]:
        return [operation.message.body for _, operation in self.got]

    def confirm(self, first: int, last: int) -> None:
        """By position among those held."""
        peer, one = self.got[first]
        peer.send(Confirmed(one.channel, one.serial, self.got[last][1].serial))


async def test_confirmed_and_unroutable(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    await upstream.declare_queue("orders")
    assert await upstream.publish("", "orders", Message(b"x")) == PublishReceipt(True)
    assert await upstream.publish("amq.direct", "nowhere", Message(b"x")) == PublishReceipt(False, 312, "NO_ROUTE")
    assert [entry[0].body for entry in broker.queues["orders"]] == [b"x"]


async def test_every_publish_is_mandatory_on_the_wire(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    await upstream.publish("", "nowhere", Message())
    assert [operation.mandatory for operation in broker.all(Publish)] == [True]


async def test_an_unknown_exchange_costs_no_publishing_channel(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    with pytest.raises(NotFound, match="no exchange 'gone'"):
        await upstream.publish("gone", "k", Message())
    assert broker.all(Publish) == []
    await upstream.declare_exchange("gone")
    assert not (await upstream.publish("gone", "k", Message())).routed


async def test_the_existence_of_an_exchange_is_remembered(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = await start(broker)
    for _ in range(5):
        await upstream.publish("amq.direct", "k", Message())
    assert len(broker.all(QueryExchange)) == 1
    monkeypatch.setattr(publisher, "EXCHANGE_FRESH", -1.0)  # asked again, and nobody waits for it
    await upstream.publish("amq.direct", "k", Message())
    await until(lambda: len(broker.all(QueryExchange)) == 2)
    monkeypatch.setattr(publisher, "EXCHANGE_STALE", -1.0)  # asked again, first
    broker.exchanges.discard("amq.direct")
    with pytest.raises(NotFound):
        await upstream.publish("amq.direct", "k", Message())
    assert len(broker.all(Publish)) == 6


async def test_exchanges_start_over_on_a_new_connection(broker: FakeBroker, start: Start) -> None:
    """The broker may be another one by then, which confirms by transactions: one fills while the other commits."""
    upstream = await start(broker)
    await upstream.publish("amq.direct", "k", Message())
    assert len(upstream._publisher._exchanges["amq.direct"].outlets) == 1
    broker.capabilities = replace(broker.capabilities, confirms=Confirms.TRANSACTION)
    for peer in broker.peers:
        peer.stream.abort()
    await until(lambda: upstream.state is UpstreamState.DOWN)
    await until(lambda: upstream.state is UpstreamState.UP)
    await upstream.publish("amq.direct", "k", Message())
    assert len(upstream._publisher._exchanges["amq.direct"].outlets) == 2


async def test_many_are_in_flight_and_confirmed_in_ranges(broker: FakeBroker, start: Start) -> None:
    upstream, held = await start(broker), Held(broker)
    futures = [upstream.publish_nowait("amq.direct", "k", Message(b"%d" % i)) for i in range(100)]
    await until(lambda: len(held.got) == 100)
    assert held.bodies() == [b"%d" % i for i in range(100)]
    held.confirm(50, 59)  # out of order
    await until(lambda: all(future.done() for future in futures[50:60]))
    assert sum(future.done() for future in futures) == 10
    held.confirm(0, 54)  # over some that have an outcome already
    await until(lambda: all(future.done() for future in futures[:60]))
    assert sum(future.done() for future in futures) == 60
    held.confirm(60, 99)
    assert await asyncio.gather(*futures) == [PublishReceipt(True)] * 100
    assert upstream.status().pending == 0


async def test_outcomes_wake_nobody_where_nobody_waits(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream, held = await start(broker, publish_window=10), Held(broker)
    futures = [upstream.publish_nowait("", "k", Message(b"%d" % i)) for i in range(10)]
    await until(lambda: len(held.got) == 10)
    pumps: list[None] = []
    pump = publisher.Publisher._pump

    def counted(self: publisher.Publisher) -> None:
        pumps.append(None)
        pump(self)

    monkeypatch.setattr(publisher.Publisher, "_pump", counted)
    held.confirm(0, 4)
    await asyncio.gather(*futures[:5])
    assert not pumps
    late = [upstream.publish_nowait("", "k", Message(b"%d" % i)) for i in range(10, 16)]  # one more than has room
    held.confirm(5, 9)
    await asyncio.gather(*futures)
    await until(lambda: len(held.got) == 16)
    assert len(pumps) == 1
    held.confirm(10, 15)
    await asyncio.gather(*late)
    assert len(pumps) == 1


async def test_how_long_an_outcome_took(broker: FakeBroker, start: Start) -> None:
    """One at a time on each channel, and how long the oldest waits meanwhile."""
    upstream, held = await start(broker), Held(broker)
    seen: list[float] = []
    upstream.on_answered.append(seen.append)
    assert upstream.unconfirmed_for == 0
    futures = [upstream.publish_nowait("amq.direct", "k", Message(b"%d" % i)) for i in range(3)]
    await until(lambda: len(held.got) == 3)
    await asyncio.sleep(0.05)
    assert upstream.unconfirmed_for >= 0.04
    held.confirm(1, 1)  # another one than that which is timed
    await until(lambda: futures[1].done())
    assert seen == []
    assert upstream.unconfirmed_for >= 0.04
    held.confirm(0, 0)
    await until(lambda: futures[0].done())
    (took,) = seen
    assert took >= 0.04
    assert upstream.unconfirmed_for < took, "since the window moved"
    later = upstream.publish_nowait("amq.direct", "k", Message(b"3"))
    await until(lambda: len(held.got) == 4)
    held.confirm(2, 3)
    await asyncio.gather(*futures, later)
    assert len(seen) == 2
    assert upstream.unconfirmed_for == 0


async def test_each_gets_its_own_outcome(broker: FakeBroker, start: Start) -> None:
    upstream, held = await start(broker), Held(broker)
    futures = [upstream.publish_nowait("", "k", Message(b"%d" % i)) for i in range(5)]
    await until(lambda: len(held.got) == 5)
    peer, first = held.got[0]
    channel, n = first.channel, first.serial
    peer.send(
        Returned(channel, n + 1, n + 1, 312, "NO_ROUTE"),
        Refused(channel, n + 2, n + 2, 506, "full"),
        Returned(channel, n + 3, n + 3, 312, "not the last word", final=False),
        Failed(channel, n + 4, n + 4, 406, "bad"),
        Confirmed(channel, n, n + 3),
    )
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result) for result in results] == [
        PublishReceipt, PublishReceipt, PublishRefused, PublishReceipt, PreconditionFailed,
    ]  # fmt: skip
    assert [result.routed for result in results if isinstance(result, PublishReceipt)] == [True, False, True]
    assert str(results[2]) == "the broker refused the message: 506 full"


async def test_the_window_in_messages_holds_and_keeps_order(broker: FakeBroker, start: Start) -> None:
    upstream, held = await start(broker, publish_window=3), Held(broker)
    futures = [upstream.publish_nowait("", "k", Message(b"%d" % i)) for i in range(8)]
    await until(lambda: len(held.got) == 3)
    await asyncio.sleep(0.02)
    assert len(held.got) == 3
    assert upstream.status().pending == 8
    futures[3].cancel()  # who leaves the line is not sent
    held.confirm(0, 1)
    await until(lambda: len(held.got) == 5)
    assert held.bodies() == [b"0", b"1", b"2", b"4", b"5"]
    held.confirm(2, 4)
    await until(lambda: len(held.got) == 7)
    held.confirm(5, 6)
    await asyncio.gather(*futures[4:])


async def test_the_window_in_octets_is_over_all_exchanges(broker: FakeBroker, start: Start) -> None:
    upstream, held = await start(broker, publish_window_octets=1 << 16), Held(broker)
    one = upstream.publish_nowait("", "k", Message(bytes(60_000)))
    two = upstream.publish_nowait("amq.direct", "k", Message(bytes(60_000)))
    await until(lambda: len(held.got) == 1)
    await asyncio.sleep(0.02)
    assert len(held.got) == 1
    held.confirm(0, 0)
    await one
    await until(lambda: len(held.got) == 2)
    held.confirm(1, 1)
    await two
    big = upstream.publish_nowait("", "k", Message(bytes(100_000)))  # larger than the window, and alone in it
    await until(lambda: len(held.got) == 3)
    held.confirm(2, 2)
    await big


async def test_the_line_is_bounded(broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAITING_MAX", 2)
    upstream, held = await start(broker, publish_window=1), Held(broker)
    futures = [upstream.publish_nowait("", "k", Message()) for _ in range(2)]
    await until(lambda: len(held.got) == 1)
    futures.append(upstream.publish_nowait("", "k", Message()))
    with pytest.raises(BrokerUnavailable, match="too many"):
        await upstream.publish("", "k", Message())
    for index in range(3):
        await until(lambda at=index: len(held.got) > at)  # type: ignore[misc]
        held.confirm(index, index)
    await asyncio.gather(*futures)


async def test_a_dead_channel_leaves_its_window_unknown_and_the_others_alone(broker: FakeBroker, start: Start) -> None:
    """Where nothing is to be sent again; else see test_isolation."""
    upstream, held = await start(broker, publish_repeat=False), Held(broker)
    doomed = [upstream.publish_nowait("", "k", Message(b"%d" % i)) for i in range(3)]
    await until(lambda: len(held.got) == 3)
    other = upstream.publish_nowait("amq.direct", "k", Message(b"other"))
    await until(lambda: len(held.got) == 4)
    peer, first = held.got[0]
    peer.send(ChannelClosed(first.channel, 406, "PRECONDITION_FAILED - one of them"))
    for result in await asyncio.gather(*doomed, return_exceptions=True):
        assert isinstance(result, OutcomeUnknown)
        assert "one of them" in str(result)
    assert not other.done()
    held.confirm(3, 3)
    await other
    again = upstream.publish_nowait("", "k", Message(b"next"))  # on a new channel
    await until(lambda: len(held.got) == 5)
    held.confirm(4, 4)
    await again
    # The default exchange always exists, and RabbitMQ refuses the question.
    assert not [query for query in broker.all(QueryExchange) if query.exchange == ""]


@pytest.mark.parametrize("copies", ["key", [1], {"a": "b"}])
async def test_copies_that_are_no_array_of_keys(start: Start, copies: object) -> None:
    message = Message(b"", Properties(headers={"CC": copies}))
    with pytest.raises(EncodeError, match=r"headers\.CC"):
        await (await start(FakeBroker(routes_copies=True))).publish("", "k", message)
    assert not (await (await start(FakeBroker())).publish("", "k", message)).routed  # sent, as a header like any other


async def test_rabbitmqs_direct_reply_to(start: Start) -> None:
    """It closes the channel of a publisher that does not consume from it."""
    message = Message(b"", Properties(reply_to="amq.rabbitmq.reply-to"))
    with pytest.raises(EncodeError, match="reply_to"):
        await (await start(FakeBroker(routes_copies=True))).publish("", "k", message)
    assert not (await (await start(FakeBroker())).publish("", "k", message)).routed


async def test_alone_on_its_channel_a_publish_learns_the_reason(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    await upstream.publish("amq.direct", "k", Message())
    broker.exchanges.discard("amq.direct")  # within the seconds for which it is known to exist
    with pytest.raises(NotFound):
        await upstream.publish("amq.direct", "k", Message())


async def test_a_lost_link_leaves_the_window_unknown_and_the_line_unsent(broker: FakeBroker, start: Start) -> None:
    upstream, held = await start(broker, publish_window=2), Held(broker)
    futures = [upstream.publish_nowait("", "k", Message(b"%d" % i)) for i in range(4)]
    await until(lambda: len(held.got) == 2)
    broker.kill()
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result) for result in results] == [
        OutcomeUnknown,
        OutcomeUnknown,
        BrokerUnavailable,
        BrokerUnavailable,
    ]
    assert await upstream.wait_up(30)
    del broker.on[Publish]
    broker.put("k")
    assert (await upstream.publish("", "k", Message())).routed


async def test_a_question_that_outlives_its_link_opens_no_channel(broker: FakeBroker, start: Start) -> None:
    """Its publish has failed with the link: on the next one the channel would be open, and used by nobody."""
    upstream = await start(broker)
    await upstream.publish("", "k", Message())
    (publishing,) = [peer for peer in broker.peers if peer.of(Publish)]
    asked: list[tuple[Peer, QueryExchange]] = []

    def hold(peer: Peer, operation: QueryExchange) -> bool:
        asked.append((peer, operation))
        return True

    broker.on[QueryExchange] = hold
    future = upstream.publish_nowait("amq.direct", "k", Message())
    await until(lambda: asked)
    ((peer, question),) = asked
    assert peer is not publishing
    publishing.hang_up()
    with pytest.raises(BrokerUnavailable):
        await future
    await until(lambda: broker.connections == 4)
    assert await upstream.wait_up(30)
    peer.send(ExchangeFound(question.channel, question.serial, question.serial, question.exchange))
    del broker.on[QueryExchange]
    await upstream.query_exchange("amq.direct")  # answered behind the other
    await upstream.publish("", "k", Message())
    assert len(broker.all(SelectConfirm)) == 1


async def test_without_a_link_nothing_is_sent(broker: FakeBroker, start: Start) -> None:
    broker.down = True
    upstream = await start(broker, wait=False)
    await until(lambda: upstream.state is UpstreamState.DOWN)
    with pytest.raises(BrokerUnavailable, match="connection refused"):
        await upstream.publish("", "k", Message())


async def test_a_late_confirm_is_swallowed(broker: FakeBroker, start: Start) -> None:
    upstream, held = await start(broker), Held(broker)
    late = upstream.publish_nowait("", "k", Message(), timeout=0.03)
    patient = upstream.publish_nowait("", "k", Message())
    with pytest.raises(OutcomeUnknown, match="in time"):
        await late
    assert len(held.got) == 2
    held.confirm(0, 1)
    assert (await patient).routed
    assert upstream.status().pending == 0


async def test_no_room_in_time_is_not_sent(broker: FakeBroker, start: Start) -> None:
    upstream, held = await start(broker, publish_window=1), Held(broker)
    first = upstream.publish_nowait("", "k", Message())
    with pytest.raises(BrokerUnavailable, match="no room"):
        await upstream.publish("", "k", Message(), timeout=0.03)
    assert len(held.got) == 1
    held.confirm(0, 0)
    await first


async def test_what_stands_behind_one_of_its_order_is_not_sent_before_it(broker: FakeBroker, start: Start) -> None:
    """Its own time is not up yet. Another order goes on."""
    upstream, held = await start(broker, publish_window=1), Held(broker)
    first = upstream.publish_nowait("", "k", Message(b"0"))
    others = [
        upstream.publish_nowait("", "k", Message(body), timeout=timeout, order=order)
        for body, timeout, order in ((b"a1", 0.03, "a"), (b"b1", 9, "b"), (b"a2", 9, "a"), (b"c1", 9, None))
    ]
    await until(others[0].done)
    assert [future.done() for future in others] == [True, False, True, False]
    held.confirm(0, 0)
    for index in (1, 2):
        await until(lambda at=index: len(held.got) > at)  # type: ignore[misc]
        held.confirm(index, index)
    await asyncio.gather(first, others[1], others[3])
    assert held.bodies() == [b"0", b"b1", b"c1"]
    for late in (others[0], others[2]):
        assert "no room" in str(late.exception())


async def test_what_would_fit_into_the_line_waits_for_the_one_before_it(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "WAITING_WINDOWS", 1)
    upstream, held = await start(broker, publish_window=1, publish_window_octets=100), Held(broker)
    first = upstream.publish_nowait("", "k", Message(bytes(60)))
    await until(lambda: len(held.got) == 1)
    sizes = ((60, "a"), (60, "a"), (10, "a"), (10, "b"))
    futures = [upstream.publish_nowait("", "k", Message(bytes(size)), order=order) for size, order in sizes]
    assert [future.done() for future in futures] == [False, True, True, False]
    await asyncio.sleep(0)
    again = upstream.publish_nowait("", "k", Message(bytes(10)), order="a")
    for index in range(4):
        await until(lambda at=index: len(held.got) > at)  # type: ignore[misc]
        held.confirm(index, index)
    await asyncio.gather(first, futures[0], futures[3], again)
    for full in futures[1:3]:
        assert "too many" in str(full.exception())


async def test_what_has_room_waits_for_the_one_before_it(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines are full of what goes to another exchange, and what is in flight leaves room for what is small."""
    monkeypatch.setattr(waiting, "WAITING_WINDOWS", 1)
    upstream = await start(broker, publish_window_octets=100)
    for exchange in ("", "amq.direct"):
        await upstream.publish(exchange, "k", Message())
    held = Held(broker)
    others = [upstream.publish_nowait("", "k", Message(bytes(size))) for size in (60, 60, 40)]
    futures = [
        upstream.publish_nowait("amq.direct", "k", Message(bytes(size)), order=order)
        for size, order in ((50, "a"), (10, "a"), (10, "b"))
    ]
    assert [future.done() for future in futures] == [True, True, False]
    for index in range(4):
        await until(lambda at=index: len(held.got) > at)  # type: ignore[misc]
        held.confirm(index, index)
    await asyncio.gather(*others, futures[2])
    for full in futures[:2]:
        assert "too many" in str(full.exception())


async def test_blocked(broker: FakeBroker, start: Start) -> None:
    upstream, held = await start(broker, publish_window=1), Held(broker)
    pending = upstream.publish_nowait("", "k", Message())
    waiting = upstream.publish_nowait("", "k", Message())
    await until(lambda: len(held.got) == 1)
    broker.block("low on disk")
    with pytest.raises(BrokerUnavailable, match="low on disk"):
        await waiting
    assert upstream.state is UpstreamState.BLOCKED
    assert "low on disk" in upstream.reason
    with pytest.raises(BrokerUnavailable, match="low on disk"):
        await upstream.publish("", "k", Message())
    assert not pending.done()
    broker.unblock()
    await until(lambda: upstream.state is UpstreamState.UP)
    held.confirm(0, 0)
    assert (await pending).routed


async def test_silence_is_blocked_where_there_is_no_word_for_it(
    transacting: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "SILENCE", 0.05)
    monkeypatch.setattr(publisher, "_TICK", 0.02)
    upstream, held = await start(transacting), Held(transacting)
    pending = upstream.publish_nowait("", "k", Message())
    await until(lambda: upstream.state is UpstreamState.BLOCKED)
    with pytest.raises(BrokerUnavailable, match="answered no publish"):
        await upstream.publish("", "k", Message())
    held.confirm(0, 0)
    assert (await pending).routed
    assert upstream.state is UpstreamState.UP


async def test_silence_begins_with_the_publish_however_long_nothing_came_before_it(
    transacting: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "SILENCE", 0.5)
    monkeypatch.setattr(publisher, "_TICK", 0.02)
    upstream, held = await start(transacting), Held(transacting)
    await asyncio.sleep(0.6)
    pending = upstream.publish_nowait("", "k", Message())
    await until(lambda: len(held.got) == 1)
    held.confirm(0, 0)
    await pending
    await asyncio.sleep(0.6)  # nobody has anything to say
    pending = upstream.publish_nowait("", "k", Message())
    await asyncio.sleep(0.1)
    assert upstream.state is UpstreamState.UP
    held.confirm(1, 1)
    assert (await pending).routed


async def test_flow_stops_a_channel(broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = await start(broker)
    broker.put("k")
    await upstream.publish("", "k", Message())
    peer = next(peer for peer in broker.peers if peer.of(Publish))
    channel = peer.of(Publish)[0].channel
    peer.send(Flow(channel, active=False))
    await asyncio.sleep(0.01)
    waiting = upstream.publish_nowait("", "k", Message())
    await asyncio.sleep(0.02)
    assert len(peer.of(Publish)) == 1
    peer.send(Flow(channel, active=True))
    assert (await waiting).routed
    monkeypatch.setattr(publisher, "SILENCE", 0.01)
    monkeypatch.setattr(publisher, "_TICK", 0.01)
    peer.send(Flow(channel, active=False))
    await asyncio.sleep(0.01)
    with pytest.raises(BrokerUnavailable, match="stopped the channel"):
        await upstream.publish("", "k", Message())


async def test_transactions_alternate_and_nothing_follows_a_commit(transacting: FakeBroker, start: Start) -> None:
    upstream, held = await start(transacting), Held(transacting)
    first = [upstream.publish_nowait("", "k", Message(b"a%d" % i)) for i in range(3)]
    await until(lambda: len(held.got) == 3)
    await asyncio.sleep(0)
    second = [upstream.publish_nowait("", "k", Message(b"b%d" % i)) for i in range(3)]
    await until(lambda: len(held.got) == 6)
    third = [upstream.publish_nowait("", "k", Message(b"c%d" % i)) for i in range(2)]  # both are committing
    await asyncio.sleep(0.02)
    assert len(held.got) == 6
    assert len({operation.channel for _, operation in held.got}) == 2
    held.confirm(0, 2)
    await asyncio.gather(*first)
    await until(lambda: len(held.got) >= 7)
    held.confirm(3, 5)
    await asyncio.gather(*second)
    await until(lambda: len(held.got) == 8)
    for index in (6, 7):
        held.confirm(index, index)
    await asyncio.gather(*third)


async def test_one_order_stays_on_one_channel(transacting: FakeBroker, start: Start) -> None:
    upstream = await start(transacting)
    transacting.put("k")
    futures = []
    for index in range(30):
        futures.append(upstream.publish_nowait("", "k", Message(b"%02d" % index), order="one"))
        if index % 7 == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*futures)
    assert len({operation.channel for operation in transacting.all(Publish)}) == 1
    assert [entry[0].body for entry in transacting.queues["k"]] == [b"%02d" % index for index in range(30)]


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        (Message(b"", Properties(expiration="soon")), EncodeError, "expiration"),
        (Message(b"", Properties(expiration="-1")), EncodeError, "expiration"),
        (Message(b"", Properties(expiration=str(1 << 32))), EncodeError, "expiration"),
        (Message(b"", Properties(user_id="mallory")), EncodeError, "user_id"),
        (Message(b"", Properties(delivery_mode=0)), EncodeError, "delivery_mode"),
        (Message(b"", Properties(delivery_mode=3)), EncodeError, "delivery_mode"),
        (Message(bytes(2048)), LimitExceeded, "message_max"),
    ],
)
async def test_what_would_cost_the_channel_is_refused_before_the_wire(
    broker: FakeBroker, start: Start, message: Message, error: type[Exception], text: str
) -> None:
    upstream = await start(broker, message_max=1024)
    with pytest.raises(error, match=text):
        await upstream.publish("", "k", message)
    with pytest.raises(Unsupported):
        await upstream.publish("", "k", Message(), immediate=True)
    assert broker.all(Publish) == []
    assert not (await upstream.publish("", "k", Message(b"", Properties(user_id="guest", expiration="5")))).routed


async def test_publish_channels_are_bounded_and_the_longest_idle_goes(broker: FakeBroker, start: Start) -> None:
    broker.exchanges |= {"e1", "e2", "e3"}
    upstream = await start(broker, publish_channels=2)
    for name in ("e1", "e2", "e1", "e3", "e1"):
        await upstream.publish(name, "k", Message())
    held = Held(broker)
    futures = [upstream.publish_nowait(name, "k", Message()) for name in ("e1", "e3")]
    await until(lambda: len(held.got) == 2)
    with pytest.raises(BrokerUnavailable, match="publish_channels"):
        await upstream.publish("e2", "k", Message())
    for index in range(2):
        held.confirm(index, index)
    await asyncio.gather(*futures)


async def test_a_broker_that_allows_few_channels_is_no_reason_to_refuse(start: Start) -> None:
    broker = FakeBroker(channel_max=3)
    broker.exchanges |= {f"e{number}" for number in range(6)}
    upstream = await start(broker)
    for number in (0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5):
        assert not (await upstream.publish(f"e{number}", "k", Message())).routed


async def test_nothing_is_published_on_a_link_that_consumes(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("k", b"1")
    (delivery,) = await upstream.fetch("k", 1)
    await upstream.publish("amq.direct", "k", delivery.message)
    publishing = [peer for peer in broker.peers if peer.of(Publish)]
    assert len(publishing) == 1
    assert publishing[0].outstanding == {}
    assert len(broker.peers) == 3


async def test_close_waits_for_what_is_in_flight(broker: FakeBroker, start: Start) -> None:
    upstream, held = await start(broker), Held(broker)
    future = upstream.publish_nowait("", "k", Message())
    await until(lambda: len(held.got) == 1)
    closing = asyncio.create_task(upstream.close(5.0))
    await asyncio.sleep(0.01)
    held.confirm(0, 0)
    await closing
    assert (await future).routed
    assert upstream.state is UpstreamState.CLOSED
    with pytest.raises(BrokerUnavailable):
        await upstream.publish("", "k", Message())


async def test_a_broker_that_gives_no_confirms(broker: FakeBroker, start: Start) -> None:
    def refuse(peer: Peer, operation: SelectConfirm) -> bool:
        peer.close_channel(operation.channel, 403, "ACCESS_REFUSED - no confirms for you")
        return True

    broker.on[SelectConfirm] = refuse
    upstream = await start(broker)
    with pytest.raises(AccessRefused, match="no confirms"):
        await upstream.publish("", "k", Message())
    del broker.on[SelectConfirm]
    assert not (await upstream.publish("", "k", Message())).routed


async def test_without_channels_nothing_is_sent(start: Start) -> None:
    broker = FakeBroker(channel_max=1)
    upstream, held = await start(broker), Held(broker)
    future = upstream.publish_nowait("", "k", Message())
    await until(lambda: len(held.got) == 1)
    with pytest.raises(BrokerUnavailable, match="publish_channels"):
        await upstream.publish("amq.direct", "k", Message())
    held.confirm(0, 0)
    await future


async def test_a_session_that_is_about_to_end_takes_nothing(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    await upstream.publish("", "k", Message())
    for session in broker.sessions:
        session.closed = True
    with pytest.raises(BrokerUnavailable, match="closed"):
        await upstream.publish("", "k", Message())


async def test_late_ones_among_others(broker: FakeBroker, start: Start) -> None:
    upstream, held = await start(broker), Held(broker)
    futures = [upstream.publish_nowait("", "k", Message(), timeout=timeout) for timeout in (0.05, 9, 0.02, 5, 7)]
    await until(lambda: len(held.got) == 5)
    held.confirm(1, 1)
    await until(lambda: futures[0].done() and futures[2].done())
    futures[4].cancel()
    assert [future.done() for future in futures] == [True, True, True, False, True]
    held.confirm(0, 4)
    await futures[3]
    for late in (futures[0], futures[2]):
        assert isinstance(late.exception(), OutcomeUnknown)


async def test_those_who_left_the_line_make_room(broker: FakeBroker, start: Start) -> None:
    upstream, held = await start(broker, publish_window=1), Held(broker)
    first = upstream.publish_nowait("", "k", Message())
    await until(lambda: len(held.got) == 1)
    gone = [upstream.publish_nowait("", "k", Message(), timeout=0.03) for _ in range(3)]
    gone[0].cancel()
    for future in gone[1:]:
        with pytest.raises(BrokerUnavailable):
            await future
    await until(lambda: upstream.status().pending == 1)
    held.confirm(0, 0)
    await first


async def test_a_fault_of_ours_is_heard_of(broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = await start(broker)
    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context["exception"]))

    async def fault(exchange: str) -> None:
        raise ValueError(exchange)

    monkeypatch.setattr(upstream._publisher, "_check_exchange", fault)
    with pytest.raises(BrokerUnavailable):
        await upstream.publish("amq.direct", "k", Message(), timeout=0.02)
    assert any(isinstance(error, ValueError) for error in heard)


async def test_an_exchange_that_was_deleted_here_is_asked_for_again(broker: FakeBroker, start: Start) -> None:
    """Broker-J's 0-10 takes a message for an exchange that is gone, and puts it elsewhere."""
    upstream = await start(broker)
    await upstream.declare_exchange("events")
    await upstream.publish("events", "", Message(b"1"))
    await upstream.delete_exchange("events")
    with pytest.raises(NotFound):
        await upstream.publish("events", "", Message(b"2"))
    assert [operation.message.body for operation in broker.all(Publish)] == [b"1"]


async def test_a_fault_of_ours_costs_only_its_own_message(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = await start(broker)
    broker.put("q")
    await upstream.publish("", "q", Message(b"0"))
    send = FakeSession.send

    def sometimes(self: FakeSession, operation: Operation, now: float) -> int:
        if isinstance(operation, Publish) and operation.message.body == b"bad":
            raise ValueError("a fault of ours")
        return send(self, operation, now)

    monkeypatch.setattr(FakeSession, "send", sometimes)
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context["exception"]))
    futures = [upstream.publish_nowait("", "q", Message(body)) for body in (b"1", b"bad", b"2")]
    one, bad, two = await asyncio.gather(*futures, return_exceptions=True)
    assert one == two == PublishReceipt(True)
    assert isinstance(bad, EncodeError)
    assert [str(fault) for fault in faults] == ["a fault of ours"]
