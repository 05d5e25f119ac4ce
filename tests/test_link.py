"""Links: one session, one stream, the clock."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import replace
from functools import partial

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    Blocked,
    ChannelClosed,
    Close,
    CloseChannel,
    Closed,
    CloseReason,
    Confirmed,
    Deliver,
    Done,
    Failed,
    Flow,
    OpenChannel,
    Opened,
    Operation,
    Publish,
    QueryQueue,
    SelectConfirm,
)
from gateway.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    GatewayError,
    LimitExceeded,
    LoginCut,
    NotFound,
    ProtocolMismatch,
    RemoteError,
    StateError,
)
from gateway.link import Channel, Link, connection_error, describe
from gateway.session import ClientConfig
from gateway.transports import Stream, StreamUser, memory_pair
from gateway.v091.version import V0_9_1
from gateway.versions import client_session
from tests.upstreams.fake import FakeBroker, FakeSession, Peer, until


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


def fake_link(broker: FakeBroker) -> tuple[Link, FakeSession]:
    session = FakeSession(ClientConfig(), V0_9_1, broker)
    return Link(session), session


async def open_link(broker: FakeBroker) -> tuple[Link, Peer]:
    link, _ = fake_link(broker)
    await link.open(broker.dial, 2.0)
    return link, broker.peers[-1]


async def test_a_far_end_that_speaks_before_the_dial_returns() -> None:
    """Over TLS its first octets may come with the end of the handshake."""
    link = Link(client_session(V0_9_1, ClientConfig()))
    far = Stream(Quiet())

    async def dial(user: StreamUser, within: float) -> Stream:
        near = Stream(user)
        memory_pair(near, far)
        near.data_received(b"HTTP/1.1 400 Bad Request")
        return near

    with pytest.raises(ProtocolMismatch, match="no AMQP"):
        await link.open(dial, 2.0)
    await far.gone
    await link.close()


class Quiet:
    """A far end of which nothing is expected."""

    def data_received(self, data: bytes) -> None:
        """The protocol header."""

    def stream_lost(self, error: Exception | None) -> None:
        """As it should be."""

    def data_to_send(self) -> list[bytes]:
        return []

    def writable_again(self) -> None:
        """Nothing was written."""


async def test_open_use_close(broker: FakeBroker) -> None:
    link, peer = await open_link(broker)
    assert link.writable
    ended: list[Closed] = []
    link.on_closed = ended.append
    channel = link.channel(Channel)
    await channel.open()
    assert isinstance(await channel.request(SelectConfirm(channel.number)), Done)
    await channel.close()
    await channel.close()
    assert not channel.usable
    await link.close()
    await link.close()
    assert [closed.reason for closed in ended] == [CloseReason.LOCAL]
    await until(lambda: peer.lost)
    with pytest.raises(BrokerUnavailable):
        link.channel(Channel)
    with pytest.raises(StateError):
        channel.send(QueryQueue(channel.number, "q"))
    with pytest.raises(StateError):
        await channel.request(QueryQueue(channel.number, "q"))


@pytest.mark.parametrize(
    ("closed", "error", "text"),
    [
        (Closed(0, CloseReason.AUTHENTICATION, 403, "no"), AuthenticationFailed, "refused the login 403: no"),
        (
            Closed(0, CloseReason.PROTOCOL_HEADER, 0, "", supported="0-8"),
            ProtocolMismatch,
            "another protocol; it asks for 0-8",
        ),
        (Closed(0, CloseReason.SYNTAX, 501, "garbage"), ProtocolMismatch, "broke the protocol 501: garbage"),
        (Closed(0, CloseReason.TIMEOUT, 0, "late"), ProtocolMismatch, "in time: late"),
        (Closed(0, CloseReason.PEER, 320, "soon"), BrokerUnavailable, "closed the connection 320: soon"),
        (Closed(0, CloseReason.EOF, 0, ""), BrokerUnavailable, "hung up"),
        (Closed(0, CloseReason.LOGIN_CUT, 0, "on us"), LoginCut, "hung up on the login: on us"),
    ],
)
async def test_a_handshake_that_fails(
    broker: FakeBroker, closed: Closed, error: type[BrokerUnavailable], text: str
) -> None:
    def answer(peer: Peer, operation: Opened) -> bool:
        peer.send(closed)
        return True

    broker.on[Opened] = answer
    link, _ = fake_link(broker)
    with pytest.raises(error, match=text) as caught:
        await link.open(broker.dial, 2.0)
    assert type(caught.value) is error
    assert link.ended is not None
    assert link.ended.supported == closed.supported


async def test_a_handshake_that_takes_too_long(broker: FakeBroker) -> None:
    broker.on[Opened] = lambda peer, operation: True
    link, _ = fake_link(broker)
    with pytest.raises(ProtocolMismatch, match="in time"):
        await link.open(broker.dial, 0.03)
    await until(lambda: not broker.peers)


async def test_a_handshake_that_is_given_up(broker: FakeBroker) -> None:
    broker.on[Opened] = lambda peer, operation: True
    link, _ = fake_link(broker)
    task = asyncio.create_task(link.open(broker.dial, 5.0))
    await until(lambda: broker.peers)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not broker.peers)


async def test_outcomes_find_their_requests(broker: FakeBroker) -> None:
    link, peer = await open_link(broker)
    channel = link.channel(Channel)
    await channel.open()
    broker.on[SelectConfirm] = lambda peer, operation: True
    futures = [channel.request(SelectConfirm(channel.number)) for _ in range(4)]
    serials = [2, 3, 4, 5]
    await until(lambda: len(peer.of(SelectConfirm)) == 4)
    futures[1].cancel()
    peer.send(Done(channel.number, serials[0], serials[1]), Failed(channel.number, serials[2], serials[2], 404, "gone"))
    assert (await futures[0]).last == serials[1]
    with pytest.raises(NotFound, match="gone"):
        await futures[2]
    assert not futures[3].done()
    peer.send(ChannelClosed(channel.number, 504, "over"))
    with pytest.raises(RemoteError, match="504 over"):
        await futures[3]
    assert not channel.usable
    await link.close()


async def test_operations_go_to_their_channel(broker: FakeBroker) -> None:
    class Listener(Channel):
        def __init__(self, link: Link, number: int) -> None:
            super().__init__(link, number)
            self.heard: list[Operation] = []

        def handle(self, operation: Operation) -> None:
            self.heard.append(operation)

    link, peer = await open_link(broker)
    one, two = link.channel(Listener), link.channel(Listener)
    for channel in (one, two):
        await channel.open()
    deliver = Deliver(one.number, "tag", 1, False, "", "q", Message(b"x"))
    peer.send(deliver, Flow(two.number, False), Deliver(99, "tag", 1, False, "", "q", Message(b"nobody")))
    await until(lambda: two.heard)
    assert one.heard == [deliver]
    assert two.heard == [Flow(two.number, False)]
    plain = link.channel(Channel)
    await plain.open()
    peer.send(Flow(plain.number, False))  # of no interest
    await link.close()


async def test_channels_are_bounded(broker: FakeBroker) -> None:
    broker.capabilities = replace(broker.capabilities, channel_max=2)
    link, _ = await open_link(broker)
    link.channel(Channel)
    link.channel(Channel)
    with pytest.raises(LimitExceeded, match="all 2 channels"):
        link.channel(Channel)
    await link.close()


async def test_the_end_of_the_link_ends_its_channels(broker: FakeBroker) -> None:
    link, peer = await open_link(broker)
    channel = link.channel(Channel)
    await channel.open()
    broker.on[QueryQueue] = lambda peer, operation: True
    future = channel.request(QueryQueue(channel.number, "q"))
    order: list[str] = []
    future.add_done_callback(lambda future: order.append("channel"))
    link.on_closed = lambda closed: order.append("link")
    peer.hang_up()
    with pytest.raises(BrokerUnavailable, match="hung up"):
        await future
    assert set(order) == {"channel", "link"}
    with pytest.raises(BrokerUnavailable):
        await channel.request(QueryQueue(channel.number, "q"))


async def test_what_is_asked_of_a_lost_link_is_no_fault_if_nobody_waits(broker: FakeBroker) -> None:
    link, peer = await open_link(broker)
    channel = link.channel(Channel)
    await channel.open()
    peer.hang_up()
    await until(lambda: channel.closed is not None)
    faults: list[object] = []
    link.loop.set_exception_handler(lambda loop, context: faults.append(context))
    many = [channel.request(QueryQueue(channel.number, "q")) for _ in range(3)]
    many.append(link.request(QueryQueue(0, "q")))
    with pytest.raises(BrokerUnavailable):
        await many[0]
    many.clear()
    gc.collect()
    await asyncio.sleep(0)
    assert not faults


async def test_a_close_without_an_answer(broker: FakeBroker) -> None:
    link, _ = await open_link(broker)
    broker.on[Close] = lambda peer, operation: True
    await link.close(0.02)
    assert link.ended is not None
    assert link.ended.text == "closed, without an answer"


async def test_a_close_that_is_given_up_cuts_the_stream(broker: FakeBroker) -> None:
    link, peer = await open_link(broker)
    broker.on[Close] = lambda peer, operation: True
    closing = asyncio.create_task(link.close(60))
    await until(lambda: any(isinstance(operation, Close) for operation in peer.received))
    closing.cancel()
    await asyncio.wait([closing])
    assert link.ended is not None
    await until(lambda: peer.lost)


async def test_the_clock(broker: FakeBroker) -> None:
    link, session = fake_link(broker)
    session.timeout_at = 0.0  # it wants to be told the time
    await link.open(broker.dial, 2.0)
    await until(lambda: len(session.timeouts) == 1)
    session.timeout_at = link.loop.time() + 60
    broker.peers[0].send(Opened(0))
    await until(lambda: link._timer is not None)
    session.timeout_at = link.loop.time() + 0.02  # sooner than the timer that is set: noticed with the next octets
    broker.peers[0].send(Opened(0))
    await until(lambda: len(session.timeouts) == 2)
    await link.close()
    assert link._timer is None


async def test_flush_hooks(broker: FakeBroker) -> None:
    link, peer = await open_link(broker)
    channel = link.channel(Channel)
    await channel.open()
    order: list[str] = []

    def before() -> None:
        order.append("before")
        channel.send(Publish(channel.number, "", "q", Message(b"last")))

    link.before_flush(before)
    link.after_flush(lambda: order.append("after"))
    channel.send(Publish(channel.number, "", "q", Message(b"first")))
    await until(lambda: len(peer.of(Publish)) == 2)
    assert [operation.message.body for operation in peer.of(Publish)] == [b"first", b"last"]
    assert order == ["before", "after"]
    link.before_flush(before)
    link.stream_lost(None)
    link.data_to_send()
    assert link.ended is not None
    assert order == ["before", "after"]


async def test_confirms_without_anyone_who_asked(broker: FakeBroker) -> None:
    link, peer = await open_link(broker)
    channel = link.channel(Channel)
    await channel.open()
    peer.send(Confirmed(channel.number, 5, 7))
    await asyncio.sleep(0.02)
    assert channel.closed is None
    assert peer.of(OpenChannel)
    await link.close()


def test_what_the_end_of_a_connection_means() -> None:
    assert isinstance(connection_error(Closed(0, CloseReason.PEER, 530, "not allowed")), RemoteError)
    assert isinstance(connection_error(Closed(0, CloseReason.PEER, 320, "shutdown")), BrokerUnavailable)
    assert isinstance(connection_error(Closed(0, CloseReason.HEARTBEAT, 320, "")), BrokerUnavailable)
    assert describe(Closed(0, CloseReason.HEARTBEAT, 0, "")) == "no heartbeat from the broker"


def _publish(channel: Channel) -> None:
    channel.send(Publish(channel.number, "", "q", Message(b"x")))


async def test_a_callback_that_fails_keeps_nobody_else_from_the_flush(broker: FakeBroker) -> None:
    link, peer = await open_link(broker)
    channel = link.channel(Channel)
    await channel.open()
    faults: list[object] = []
    link.loop.set_exception_handler(lambda loop, context: faults.append(context["exception"]))

    def fail() -> None:
        raise StateError("a fault")

    link.before_flush(fail)
    link.before_flush(partial(_publish, channel))
    link.after_flush(fail)
    last: list[bool] = []
    link.after_flush(lambda: last.append(True))
    await until(lambda: len(peer.of(Publish)) == 1)
    assert [str(fault) for fault in faults] == ["a fault", "a fault"]
    assert last == [True]
    await link.close()


async def test_a_channel_that_fails_over_an_operation_goes_alone(broker: FakeBroker) -> None:
    class Bad(Channel):
        def handle(self, operation: Operation) -> None:
            raise RuntimeError("a fault")

    link, peer = await open_link(broker)
    faults: list[str] = []
    link.loop.set_exception_handler(lambda loop, context: faults.append(context["message"]))
    bad, good = link.channel(Bad), link.channel(Channel)
    await bad.open()
    await good.open()
    for kind in (QueryQueue, SelectConfirm):
        broker.on[kind] = lambda peer, operation: True
    lost, waiting = bad.request(QueryQueue(bad.number, "q")), good.request(SelectConfirm(good.number))
    await until(lambda: peer.of(SelectConfirm))
    peer.send(Deliver(bad.number, "tag", 1, False, "", "q", Message(b"x")), Done(good.number, 2, 2))
    async with asyncio.timeout(30):
        assert await waiting == Done(good.number, 2, 2)
        with pytest.raises(StateError, match="the channel was closed"):
            await lost
    assert faults == ["link: a callback failed over Deliver"]
    assert [operation.channel for operation in peer.of(CloseChannel)] == [bad.number]
    assert good.usable
    assert link.ended is None
    await link.close()


async def test_a_channel_that_fails_while_the_connection_ends(broker: FakeBroker) -> None:
    class Bad(Channel):
        def handle(self, operation: Operation) -> None:
            raise RuntimeError("a fault")

    link, session = fake_link(broker)
    await link.open(broker.dial, 2.0)
    faults: list[object] = []
    link.loop.set_exception_handler(lambda loop, context: faults.append(context["exception"]))
    bad = link.channel(Bad)
    await bad.open()

    def refuse(operation: Operation, now: float) -> int:
        raise StateError("the connection is closing")

    link.on_blocked = lambda: bad.handle(Blocked(0, ""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "send", refuse)
        broker.peers[-1].send(Blocked(0, "memory"), Deliver(bad.number, "tag", 1, False, "", "q", Message(b"x")))
        await until(lambda: len(faults) == 2)
    assert link.blocked == "memory"
    assert link.ended is None
    await link.close()


async def test_an_end_that_fails_in_the_session_is_told(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    link, session = fake_link(broker)
    await link.open(broker.dial, 2.0)
    faults: list[object] = []
    link.loop.set_exception_handler(lambda loop, context: faults.append(context["exception"]))
    channel = link.channel(Channel)
    await channel.open()
    broker.on[QueryQueue] = lambda peer, operation: True
    waiting = channel.request(QueryQueue(channel.number, "q"))

    def fail(*args: object) -> list[Operation]:
        raise RuntimeError("a fault")

    monkeypatch.setattr(session, "receive_eof", fail)
    link.on_closed = fail
    broker.peers[-1].hang_up()
    with pytest.raises(BrokerUnavailable):
        async with asyncio.timeout(30):
            await waiting
    assert [str(fault) for fault in faults] == ["a fault", "a fault"]
    assert link.ended is not None


async def test_a_session_that_fails_before_the_dial_returns(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, session = fake_link(broker)
    link.loop.set_exception_handler(lambda loop, context: None)
    far = Stream(Quiet())

    def fail(*args: object) -> list[Operation]:
        raise RuntimeError("a fault")

    async def dial(user: StreamUser, within: float) -> Stream:
        near = Stream(user)
        memory_pair(near, far)
        near.data_received(b"x")
        return near

    monkeypatch.setattr(session, "receive_data", fail)
    with pytest.raises(BrokerUnavailable, match="a fault"):
        await link.open(dial, 2.0)
    await far.gone
    await link.close()


async def test_what_was_held_back_goes_out_before_the_close(broker: FakeBroker) -> None:
    link, peer = await open_link(broker)
    channel = link.channel(Channel)
    await channel.open()
    link.before_flush(partial(_publish, channel))
    await link.close()
    kinds = [type(operation) for operation in peer.received]
    assert kinds.index(Publish) < kinds.index(Close)


async def test_a_channel_that_ends_badly_keeps_no_other_from_its_end(broker: FakeBroker) -> None:
    class Bad(Channel):
        def lost(self, error: GatewayError) -> None:
            raise RuntimeError("a fault")

    link, peer = await open_link(broker)
    faults: list[object] = []
    link.loop.set_exception_handler(lambda loop, context: faults.append(context["exception"]))
    bad, good = link.channel(Bad), link.channel(Channel)
    await bad.open()
    await good.open()
    broker.on[QueryQueue] = lambda peer, operation: True
    waiting = good.request(QueryQueue(good.number, "q"))
    ended: list[Closed] = []
    link.on_closed = ended.append
    peer.hang_up()
    with pytest.raises(BrokerUnavailable):
        async with asyncio.timeout(30):
            await waiting
    assert len(ended) == 1
    assert [str(fault) for fault in faults] == ["a fault"]


async def test_a_channel_that_was_closed_leaves_nothing_to_the_garbage_collector(broker: FakeBroker) -> None:
    class Watched(Channel):
        __slots__ = ("__weakref__",)

    link, _ = await open_link(broker)
    channel = link.channel(Watched)
    await channel.open()
    seen = weakref.ref(channel)
    gc.disable()
    try:
        await channel.close()
        del channel
        await asyncio.sleep(0)
        assert seen() is None
    finally:
        gc.enable()


async def test_a_number_is_not_used_again_at_once(broker: FakeBroker) -> None:
    """Where both ends close a channel at the same time, the broker's close-ok comes after our channel is over: a new
    channel of that number would take it for a violation, and the whole connection would go."""
    broker.capabilities = replace(broker.capabilities, channel_max=3)
    link, _ = await open_link(broker)
    numbers = []
    for _ in range(5):
        channel = link.channel(Channel)
        await channel.open()
        numbers.append(channel.number)
        await channel.close()
    assert numbers == [1, 2, 3, 1, 2]
    await link.close()


@pytest.mark.parametrize("method", ["data_to_send", "handle_timeout", "receive_data"])
async def test_a_session_that_fails_ends_the_link(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    link, session = fake_link(broker)
    await link.open(broker.dial, 2.0)
    faults: list[object] = []
    link.loop.set_exception_handler(lambda loop, context: faults.append(context["exception"]))
    channel = link.channel(Channel)
    await channel.open()
    broker.on[QueryQueue] = lambda peer, operation: True
    waiting = channel.request(QueryQueue(channel.number, "q"))

    def fail(*args: object) -> list[bytes]:
        raise RuntimeError("a fault")

    monkeypatch.setattr(session, method, fail)
    session.timeout_at = 0.0
    link._set_timer()
    broker.peers[-1].send(Flow(channel.number, False))
    with pytest.raises(BrokerUnavailable):
        async with asyncio.timeout(30):
            await waiting
    assert "a fault" in map(str, faults)
    assert link.ended is not None
