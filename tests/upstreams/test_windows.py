"""What is in flight: exactly as much as the windows allow, and nothing is left when it has its outcome."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    ChannelClosed,
    CloseChannel,
    Closed,
    CloseReason,
    Confirmed,
    Flow,
    Operation,
    Publish,
    QueryExchange,
    SelectConfirm,
)
from gateway.errors import (
    BrokerUnavailable,
    GatewayError,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    RemoteError,
    Unsupported,
)
from gateway.link import Link
from gateway.runtime.clock import clock
from gateway.upstreams import UpstreamState
from gateway.upstreams.publishing import isolation, publisher
from tests.upstreams.conftest import Start
from tests.upstreams.fake import FakeBroker, FakeSession, Peer, bounce, until


class Held:
    """Publishes that the broker keeps to itself until the test answers."""

    def __init__(self, broker: FakeBroker) -> None:
        self.got: list[tuple[Peer, Publish]] = []
        broker.on[Publish] = self.hold

    def hold(self, peer: Peer, operation: Publish) -> bool:
        self.got.append((peer, operation))
        return True

    def confirm(self, *numbers: int) -> None:
        for number in numbers:
            peer, one = self.got[number]
            peer.send(Confirmed(one.channel, one.serial, one.serial))


async def test_the_windows_can_be_filled(broker: FakeBroker, start: Start) -> None:
    upstream, held = (
        await start(broker, publish_window=4, publish_window_octets=1 << 16, message_max=1 << 15),
        Held(broker),
    )
    own = upstream._publisher
    halves = [upstream.publish_nowait("", "k", Message(bytes(1 << 15))) for _ in range(2)]
    await until(lambda: len(held.got) == 2)
    small = [upstream.publish_nowait("", "k", Message(bytes(size))) for size in (0, 1)]
    await until(lambda: len(held.got) == 3)
    assert own.pending_octets == 1 << 16
    held.confirm(0)
    await until(lambda: len(held.got) == 4)
    assert own.pending_octets == (1 << 15) + 1
    held.confirm(1, 2, 3)
    await asyncio.gather(*halves, *small)
    assert (own.pending_octets, own.pending) == (0, 0)
    with pytest.raises(LimitExceeded, match="over message_max"):
        await upstream.publish("", "k", Message(bytes((1 << 15) + 1)))


async def test_a_message_as_large_as_ours_over_the_limit_of_the_broker(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, message_max=5_000)
    text = "PRECONDITION_FAILED - message size 5000 is larger than configured max size 4000"

    def refuse(peer: Peer, operation: Publish) -> bool:
        peer.close_channel(operation.channel, 406, text)
        return True

    broker.on[Publish] = refuse
    with pytest.raises(PreconditionFailed):
        await upstream.publish("", "k", Message(bytes(5_000)))
    with pytest.raises(LimitExceeded, match="the broker's own limit of 4000"):
        await upstream.publish("", "k", Message(bytes(5_000)))
    with pytest.raises(LimitExceeded, match="over message_max = 5000"):
        await upstream.publish("", "k", Message(bytes(5_001)))


async def test_a_lost_channel_leaves_nothing_in_the_windows(broker: FakeBroker, start: Start) -> None:
    upstream, held = await start(broker, publish_repeat=False), Held(broker)
    futures = [upstream.publish_nowait("", "k", Message(bytes(size))) for size in (10, 20, 30)]
    other = upstream.publish_nowait("amq.direct", "k", Message(bytes(5)))
    await until(lambda: len(held.got) == 4)
    held.confirm(1)
    await futures[1]
    peer, one = held.got[0]
    peer.send(ChannelClosed(one.channel, 406, "PRECONDITION_FAILED - one of them"))
    assert [type(each) for each in await asyncio.gather(futures[0], futures[2], return_exceptions=True)] == [
        OutcomeUnknown, OutcomeUnknown,
    ]  # fmt: skip
    assert upstream._publisher.pending_octets == 5
    held.confirm(3)
    await other
    assert upstream._publisher.pending_octets == 0


async def test_a_broker_without_a_limit_of_channels(start: Start) -> None:
    broker = FakeBroker(channel_max=0)
    broker.exchanges |= {f"e{number}" for number in range(5)}
    upstream, held = await start(broker), Held(broker)
    futures = [upstream.publish_nowait(f"e{number}", "k", Message()) for number in range(5)]
    await until(lambda: len(held.got) == 5)
    held.confirm(*range(5))
    await asyncio.gather(*futures)


async def test_all_channels_but_one_of_a_broker_that_allows_few(start: Start) -> None:
    broker = FakeBroker(channel_max=3)
    broker.exchanges |= {"e1", "e2", "e3"}
    upstream, held = await start(broker), Held(broker)
    futures = [upstream.publish_nowait(name, "k", Message()) for name in ("e1", "e2")]
    await until(lambda: len(held.got) == 2)
    with pytest.raises(BrokerUnavailable, match="all 2 publish_channels are in use"):
        await upstream.publish("e3", "k", Message())
    assert broker.all(CloseChannel) == []
    held.confirm(0)
    await futures[0]
    later = upstream.publish_nowait("e3", "k", Message())
    await until(lambda: len(held.got) == 3)
    assert [each.channel for each in broker.all(CloseChannel)] == [held.got[0][1].channel], "it makes room"
    held.confirm(1, 2)
    await asyncio.gather(futures[1], later)


async def test_the_exchange_that_was_idle_longest_makes_room(broker: FakeBroker, start: Start) -> None:
    broker.exchanges |= {"e1", "e2", "e3"}
    upstream = await start(broker, publish_channels=2)
    for name in ("e1", "e2", "e1", "e3"):
        await upstream.publish(name, "k", Message())
    channels = [publish.channel for publish in broker.all(Publish)]
    assert channels[0] == channels[2]
    assert [each.channel for each in broker.all(CloseChannel)] == [channels[1]]


async def test_what_waits_goes_on_when_the_stream_takes_more(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = await start(broker)
    await upstream.publish("", "k", Message())
    is_writable = False
    monkeypatch.setattr(Link, "writable", property(lambda link: is_writable))
    future = upstream.publish_nowait("", "k", Message())
    await asyncio.sleep(0.01)
    assert len(broker.all(Publish)) == 1
    is_writable = True
    link: Any = upstream._publisher._link
    link.writable_again()
    assert not (await asyncio.wait_for(future, 20)).routed


async def test_silence_ends_with_the_link(
    transacting: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "SILENCE", 0.05)
    monkeypatch.setattr(publisher, "_TICK", 0.02)
    upstream, held = await start(transacting), Held(transacting)
    upstream.publish_nowait("", "k", Message()).add_done_callback(lambda future: future.exception())
    await until(lambda: upstream.state is UpstreamState.BLOCKED)
    del transacting.on[Publish]
    await bounce(transacting, upstream)
    assert upstream.state is UpstreamState.UP
    assert not (await upstream.publish("", "k", Message())).routed
    assert len(held.got) == 1


async def test_silence_is_nothing_where_the_broker_has_a_word_for_it(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "SILENCE", 0.03)
    monkeypatch.setattr(publisher, "_TICK", 0.01)
    upstream, held = await start(broker), Held(broker)
    future = upstream.publish_nowait("", "k", Message())
    await until(lambda: len(held.got) == 1)
    await asyncio.sleep(0.08)
    assert upstream.state is UpstreamState.UP
    held.confirm(0)
    assert (await future).routed


async def test_nothing_ticks_when_nothing_is_pending(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_TICK", 0.01)
    upstream, held = await start(broker), Held(broker)
    own = upstream._publisher
    for number in range(2):
        future = upstream.publish_nowait("", "k", Message())
        await until(lambda number=number: len(held.got) == number + 1)  # type: ignore[misc]
        assert own._timer is not None
        held.confirm(number)
        await future
        await until(lambda: own._timer is None)


async def test_every_line_and_window_is_looked_at(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind an exchange that has no channel yet."""
    monkeypatch.setattr(publisher, "_TICK", 0.01)
    upstream = await start(broker)
    broker.on[QueryExchange] = lambda peer, operation: True
    held = Held(broker)
    asked = upstream.publish_nowait("amq.direct", "k", Message(), timeout=9)
    late = upstream.publish_nowait("", "k", Message(), timeout=0.05)
    with pytest.raises(OutcomeUnknown, match="in time"):
        await late
    assert len(held.got) == 1
    assert not asked.done()
    asked.cancel()


async def test_a_stopped_channel_fails_only_those_who_wait_for_long(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_TICK", 0.01)
    upstream = await start(broker)
    await upstream.publish("", "k", Message())
    (publish,) = broker.all(Publish)
    (peer,) = [peer for peer in broker.peers if peer.of(Publish)]
    (outlet,) = upstream._publisher._exchanges[""].outlets
    peer.send(Flow(publish.channel, active=False))
    await until(lambda: outlet.lane is not None and outlet.lane.stopped_at is not None)
    future = upstream.publish_nowait("", "k", Message())
    other = await upstream.publish("amq.direct", "k", Message())
    await asyncio.sleep(0.05)
    assert not other.routed
    assert not future.done()
    monkeypatch.setattr(publisher, "SILENCE", 0.01)
    with pytest.raises(BrokerUnavailable, match="it stopped the channel for ''"):
        await future
    peer.send(Flow(publish.channel, active=True))
    await until(lambda: outlet.lane is not None and outlet.lane.stopped_at is None)
    assert not (await upstream.publish("", "k", Message())).routed


async def test_a_window_that_is_not_proved_opens_only_after_a_while(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_TICK", 0.01)
    monkeypatch.setattr(isolation, "PATIENCE", 60.0)
    upstream, held = await start(broker, proving=True), Held(broker)
    futures = [upstream.publish_nowait("", "k", Message()) for _ in range(3)]
    await until(lambda: len(held.got) == 1)
    await asyncio.sleep(0.05)
    assert len(held.got) == 1
    held.confirm(0)
    await until(lambda: len(held.got) == 3)
    held.confirm(1, 2)
    await asyncio.gather(*futures)


async def test_a_close_waits_for_those_in_line_too(broker: FakeBroker, start: Start) -> None:
    upstream, held = await start(broker, publish_window=1), Held(broker)
    futures = [upstream.publish_nowait("", "k", Message()) for _ in range(3)]
    await until(lambda: len(held.got) == 1)
    closing = asyncio.create_task(upstream.close(20.0))
    for number in range(3):
        await until(lambda number=number: len(held.got) == number + 1)  # type: ignore[misc]
        await asyncio.sleep(0.01)
        assert not closing.done()
        held.confirm(number)
    await closing
    assert all(each.routed for each in await asyncio.gather(*futures))


async def test_one_answer_is_enough_for_all_who_wait_for_an_exchange(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    asked: list[tuple[Peer, QueryExchange]] = []

    def hold(peer: Peer, operation: QueryExchange) -> bool:
        asked.append((peer, operation))
        return True

    broker.on[QueryExchange] = hold
    futures = [upstream.publish_nowait("amq.direct", "k", Message()) for _ in range(5)]
    await until(lambda: asked)
    await asyncio.sleep(0.01)
    del broker.on[QueryExchange]
    broker.receive(*asked[0])
    assert not any(each.routed for each in await asyncio.gather(*futures))
    assert len(asked) == 1
    assert len(broker.all(SelectConfirm)) == 1


async def test_an_exchange_that_is_gone_is_in_doubt_again(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "EXCHANGE_FRESH", -1.0)
    monkeypatch.setattr(isolation, "REFUSED_FOR", -1.0)
    upstream = await start(broker)
    await upstream.publish("amq.direct", "k", Message())
    broker.exchanges.discard("amq.direct")
    results: list[type[GatewayError] | None] = []
    for _ in range(3):
        try:
            await upstream.publish("amq.direct", "k", Message())
        except GatewayError as error:
            results.append(type(error))
        await asyncio.sleep(0.01)
    assert results[-2:] == [NotFound, NotFound]
    assert len(broker.all(Publish)) <= 2, "nothing is sent once it is known to be gone"


async def test_each_connection_that_dies_over_one_publish_names_it(broker: FakeBroker, start: Start) -> None:
    """What the one before has left says nothing of this one."""
    upstream = await start(broker)
    deaths = 0

    def refuse(peer: Peer, operation: Publish) -> bool:
        nonlocal deaths
        if operation.message.body != b"poison":
            return False
        deaths += 1
        peer.send(Closed(0, CloseReason.PEER, 501, "FRAME_ERROR"))
        return True

    broker.on[Publish] = refuse
    for number in (1, 2, 3):
        connections = broker.connections
        with pytest.raises(RemoteError, match="FRAME_ERROR"):
            await upstream.publish("", "k", Message(b"poison"))
        assert deaths == number
        await until(lambda connections=connections: broker.connections > connections)  # type: ignore[misc]
        assert await upstream.wait_up(30)
    assert not (await upstream.publish("", "k", Message(b"good"))).routed
    assert upstream._publisher.pending_octets == 0


async def test_a_channel_on_which_confirms_cannot_be_asked_for_is_closed(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = await start(broker)
    send, faults = FakeSession.send, [Unsupported("this version has no confirms")]

    def sometimes(self: FakeSession, operation: Operation, now: float) -> int:
        if isinstance(operation, SelectConfirm) and faults:
            raise faults.pop()
        return send(self, operation, now)

    monkeypatch.setattr(FakeSession, "send", sometimes)
    with pytest.raises(BrokerUnavailable, match="no confirms"):
        await upstream.publish("", "k", Message())
    await until(lambda: len(broker.all(CloseChannel)) == 1)
    assert not (await upstream.publish("", "k", Message())).routed
    assert len(broker.all(SelectConfirm)) == 1


async def test_times_are_up_when_they_are_reached(
    transacting: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream, held = await start(transacting, proving=True), Held(transacting)
    own = upstream._publisher
    futures = [upstream.publish_nowait("", "k", Message(), order="a") for _ in range(3)]
    await until(lambda: len(held.got) == 1)
    (outlet,) = [outlet for outlet in own._exchanges[""].outlets if outlet.lane is not None and outlet.lane.window]
    lane = outlet.lane
    assert lane is not None
    now = clock.monotonic()
    with monkeypatch.context() as patched:
        patched.setattr(clock, "monotonic", lambda: now)
        lane.progress = now - isolation.PATIENCE + 0.1
        own._tick()
        assert outlet.limit == 1
        lane.progress = now - isolation.PATIENCE
        own._tick()
        assert outlet.limit == 2
        lane.stopped_at = now - publisher.SILENCE + 0.1
        own._tick()
        assert not any(future.done() for future in futures)
        lane.stopped_at = now - publisher.SILENCE
        own._tick()
        assert [future.done() for future in futures] == [False, True, True]
        lane.progress = now - publisher.SILENCE + 0.1
        own._tick()
        assert upstream.state is UpstreamState.UP
        lane.progress = now - publisher.SILENCE
        own._tick()
        assert own.blocked
    for future in futures[1:]:
        assert isinstance(future.exception(), BrokerUnavailable)
    held.confirm(0)
    assert (await futures[0]).routed
