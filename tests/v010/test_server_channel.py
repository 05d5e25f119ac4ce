"""A server's channel against a scripted client: publishes, subscriptions, credit, settlements, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.amqp import operations as o
from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.amqp.values import Typed
from gateway.errors import EncodeError, LocalError, StateError, Unsupported
from gateway.limits import Limits
from gateway.v010 import commands as c
from gateway.v010 import controls as k
from gateway.v010 import server_channel
from gateway.v010.frames import COMMAND, write_segment
from gateway.v010.structs import Acquired
from gateway.v010.translate import DISCARD_UNROUTABLE, IMMEDIATE, read_delivery, write_header
from tests.v010.peer import NOW, ServerPeer


@pytest.fixture
def peer() -> ServerPeer:
    return ServerPeer().opened().attach()


def send(peer: ServerPeer, operation: Any) -> int:
    number: int = peer.session.send(operation, NOW)
    return number


def transfer(mode: int = c.EXPLICIT, flags: int = 0, body: bytes = b"body") -> tuple[Any, ...]:
    return (c.MessageTransfer("x", mode), write_header(Message(body), "k", flags, None, None), body)


def flushed(peer: ServerPeer) -> Any:
    """What is complete by now."""
    peer.receive(0, k.SessionFlush(completed=True))
    commands = [entry[1].commands for entry in peer.sent() if isinstance(entry[1], k.SessionCompleted)]
    return commands[0] if commands else ()


# ---------------------------------------------------------------------------------------------- publishes


@pytest.mark.parametrize(
    ("flags", "mandatory", "immediate"), [(0, True, False), (DISCARD_UNROUTABLE, False, False), (IMMEDIATE, True, True)]
)
def test_a_publish(peer: ServerPeer, flags: int, mandatory: bool, immediate: bool) -> None:
    (event,) = peer.receive(0, transfer(flags=flags))
    assert event == o.Publish(1, "x", "k", Message(b"body"), mandatory, immediate, serial=2)


def test_completion_is_told_when_it_is_asked_for(peer: ServerPeer) -> None:
    for sync in (False, False, True):
        peer.receive(0, transfer(), sync=sync)
    send(peer, o.Confirmed(1, 2, 3))
    assert peer.sent() == []
    send(peer, o.Confirmed(1, 2, 4))
    assert peer.sent() == [(0, k.SessionCompleted(((0, 2),)))]


def test_completion_is_told_after_many(peer: ServerPeer) -> None:
    for _ in range(256):
        peer.receive(0, transfer())
    send(peer, o.Confirmed(1, 2, 1 << 40))
    assert peer.sent() == [(0, k.SessionCompleted(((0, 255),)))]


def test_a_flush_tells_what_is_complete(peer: ServerPeer) -> None:
    peer.receive(0, *(transfer() for _ in range(4)))
    send(peer, o.Confirmed(1, 3, 3))
    assert flushed(peer) == ((1, 1),)
    peer.receive(0, k.SessionKnownCompleted(((1, 1),)))
    send(peer, o.Confirmed(1, 2, 5))
    assert flushed(peer) == ((0, 0), (2, 3))


def test_a_sync_waits_for_the_publishes(peer: ServerPeer) -> None:
    peer.receive(0, transfer(), c.ExecutionSync())
    assert peer.sent() == []
    send(peer, o.Confirmed(1, 2, 2))
    assert peer.sent() == [(0, k.SessionCompleted(((0, 1),)))]


@pytest.mark.parametrize(("code", "said"), [(312, c.UNROUTABLE), (313, c.IMMEDIATE)])
def test_a_returned_publish(peer: ServerPeer, code: int, said: int) -> None:
    peer.receive(0, transfer(), transfer(), sync=True)
    send(peer, o.Returned(1, 3, 3, code, "no"))
    send(peer, o.Confirmed(1, 2, 3))
    assert peer.sent() == [(0, c.MessageReject(((1, 1),), said, "no"), False), (0, k.SessionCompleted(((0, 1),)))]


def test_a_confirm_of_what_is_confirmed(peer: ServerPeer) -> None:
    peer.receive(0, transfer())
    send(peer, o.Confirmed(1, 2, 2))
    send(peer, o.Confirmed(1, 2, 2))
    assert flushed(peer) == ((0, 0),)


def test_an_outcome_that_does_not_fit_can_be_put_right(peer: ServerPeer) -> None:
    peer.receive(0, c.QueueQuery("q"), c.QueueQuery("r"))
    for wrong in (o.Declared(1, 2, 2, "q" * 256), o.Declared(1, 2, 3, "q", arguments={"a": Typed("uuid", 5)})):
        with pytest.raises(EncodeError):
            send(peer, wrong)
    with pytest.raises(StateError, match="request 4 is not waiting"):
        send(peer, o.Declared(1, 2, 4, "q"))
    assert peer.sent() == []
    send(peer, o.Declared(1, 2, 2, "q"))
    ((_, result, _),) = peer.sent()
    assert result.command_id == 0


def test_a_delivery_that_does_not_fit_leaves_nothing(peer: ServerPeer) -> None:
    peer.receive(0, c.MessageSubscribe("q", "d"))
    send(peer, o.Consuming(1, 2, 2, "d"))
    peer.sent()
    wrong = Message(b"", Properties(headers={"a": Typed("nonsense", 5)}))
    with pytest.raises(EncodeError, match="header a: no way to carry"):
        send(peer, o.Deliver(1, "d", 0, False, "x", "k", wrong))
    assert peer.sent() == []
    assert send(peer, o.Deliver(1, "d", 0, False, "x", "k", Message(b""))) == 1


def test_a_refused_publish(peer: ServerPeer) -> None:
    peer.receive(0, transfer(), sync=True)
    send(peer, o.Refused(1, 2, 2, 506, "é" * 300))
    (_, reject, _), (_, completed) = peer.sent()
    assert reject == c.MessageReject(((0, 0),), c.UNSPECIFIED, "é" * 127)
    assert completed == k.SessionCompleted(((0, 0),))


def test_a_client_that_does_not_want_to_know(peer: ServerPeer) -> None:
    peer.receive(0, transfer(c.NONE), sync=True)
    send(peer, o.Returned(1, 2, 2, 312, "no"))
    send(peer, o.Confirmed(1, 2, 2))
    assert peer.sent() == [(0, k.SessionCompleted(((0, 0),)))]
    peer.receive(0, transfer(c.NONE))
    send(peer, o.Refused(1, 3, 3, 506))
    _, (_, exception, _), (_, detach) = peer.sent()
    assert (exception.error_code, exception.command_id, exception.description) == (506, 1, "refused")
    assert detach == k.SessionDetach(b"s")
    assert peer.session.next_timeout() == NOW
    assert peer.session.handle_timeout(NOW) == [o.ChannelClosed(1, 506, "refused", False)]


def test_an_oversized_publish() -> None:
    peer = ServerPeer(limits=Limits(message_max=3)).opened().attach()
    text = "a message of 4 octets is over the limit of 3"
    assert peer.receive(0, transfer(), sync=True) == []
    assert peer.sent() == [(0, c.MessageReject(((0, 0),), 0, text), False), (0, k.SessionCompleted(((0, 0),)))]
    assert peer.receive(0, transfer(c.NONE)) == [o.ChannelClosed(1, 506, text, False)]


def test_a_bare_transfer(peer: ServerPeer) -> None:
    (event,) = peer.receive(0, c.MessageTransfer("x"))
    assert event == o.Publish(1, "x", "", Message(), serial=2)


def test_a_transaction(peer: ServerPeer) -> None:
    """Publishes are complete at once and may be returned at its end."""
    events = peer.receive(0, c.TxSelect(), transfer(), transfer(c.NONE), c.ExecutionSync())
    send(peer, o.Done(1, 2, 2))
    assert peer.sent() == [(0, k.SessionCompleted(((0, 3),)))]
    assert [event.serial for event in events] == [2, 3, 4]  # type: ignore[attr-defined]
    send(peer, o.Confirmed(1, 3, 4))
    peer.receive(0, c.TxCommit(), sync=True)
    send(peer, o.Returned(1, 3, 3, 312, "no"))
    send(peer, o.Returned(1, 4, 4, 312, "no"))
    send(peer, o.Done(1, 5, 5))
    assert [entry[1] for entry in peer.sent()] == [
        c.MessageReject(((1, 1),), c.UNROUTABLE, "no"),
        k.SessionCompleted(((0, 4),)),
    ]
    assert peer.session.channels[0].transaction == {}


# ------------------------------------------------------------------------------------------ subscriptions


def test_a_publish_that_is_refused_is_no_part_of_its_transaction(peer: ServerPeer) -> None:
    peer.receive(0, c.TxSelect(), transfer())
    (channel,) = peer.session.channels.values()
    assert list(channel.transaction) == [3]
    send(peer, o.Refused(1, 3, 3, 506))
    assert not channel.transaction


def test_subscriptions_that_the_server_ended_are_forgotten_in_the_end(
    peer: ServerPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_channel, "GONE_MAX", 2)
    (channel,) = peer.session.channels.values()
    for name in ("a", "b", "a", "c", "d"):
        peer.receive(0, c.MessageSubscribe("q", name))
        if name != "d":
            send(peer, o.Cancelled(1, name))
    assert list(channel.destinations) == ["b", "a", "c", "d"][1:]
    peer.receive(0, c.MessageSubscribe("q", "a"))
    send(peer, o.Cancelled(1, "d"))
    assert set(channel.destinations) == {"a", "c", "d"}
    send(peer, o.Cancelled(1, "none"))


def subscribed(peer: ServerPeer, accept: int = c.EXPLICIT, mode: int | None = None, flow: int = c.UNLIMITED) -> None:
    """A subscription ``d``: serial 2, and its credit."""
    (event,) = peer.receive(0, c.MessageSubscribe("q", "d", accept))
    assert isinstance(event, o.Consume)
    send(peer, o.Consuming(1, event.serial, event.serial, "d"))
    if mode is not None:
        assert peer.receive(0, c.MessageSetFlowMode("d", mode)) == []
    peer.receive(0, c.MessageFlow("d", c.MESSAGES, flow))
    peer.sent()


def deliver(peer: ServerPeer, body: bytes = b"body", **options: Any) -> int:
    return send(peer, o.Deliver(1, "d", 0, options.get("redelivered", False), "x", "k", Message(body)))


@pytest.mark.parametrize(
    ("command", "consume"),
    [
        (c.MessageSubscribe("q", "d"), o.Consume(1, "q", "d", credit=True, serial=2)),
        (
            c.MessageSubscribe("q", "d", c.NONE, c.NOT_ACQUIRED, True, arguments={"a": 1}),
            o.Consume(
                1, "q", "d", no_ack=True, exclusive=True, arguments={"a": 1}, acquired=False, credit=True, serial=2
            ),
        ),
    ],
)
def test_subscribe(peer: ServerPeer, command: c.Command, consume: o.Operation) -> None:
    assert peer.receive(0, command, sync=True) == [consume]
    send(peer, o.Consuming(1, 2, 2, "d"))
    assert peer.sent() == [(0, k.SessionCompleted(((0, 0),)))]


def test_a_delivery(peer: ServerPeer) -> None:
    subscribed(peer, c.NONE)
    number = deliver(peer, redelivered=True)
    (entry,) = peer.sent()
    channel, command, sync, header, body = entry
    assert (channel, command, sync, body) == (0, c.MessageTransfer("d", c.NONE), False, b"body")
    assert read_delivery(header)[1:] == ("x", "k")
    assert number == 1
    assert deliver(peer) == 2
    with pytest.raises(StateError, match="no subscription 'e'"):
        send(peer, o.Deliver(1, "e", 0, False, "x", "k", Message()))


def test_properties_keep_the_servers_word(peer: ServerPeer) -> None:
    subscribed(peer)
    send(peer, o.Deliver(1, "d", 0, False, "x", "k", Message(b"", Properties(user_id="someone"))))
    assert b"someone" in peer.sent()[0][3]


@pytest.mark.parametrize(
    ("command", "credit"),
    [
        (c.MessageFlow("d", c.MESSAGES, 5), o.Credit(1, "d", 5, 0, True, serial=4)),
        (c.MessageFlow("d", c.OCTETS, 5), o.Credit(1, "d", 0, 5, True, serial=4)),
        (c.MessageFlow("d", c.OCTETS, c.UNLIMITED), o.Credit(1, "d", 0, None, True, serial=4)),
        (c.MessageStop("d"), o.Credit(1, "d", window=True, stopped=True, serial=4)),
        (c.MessageFlush("d"), o.Credit(1, "d", window=True, flush=True, serial=4)),
    ],
)
def test_credit(peer: ServerPeer, command: c.Command, credit: o.Operation) -> None:
    subscribed(peer)
    assert peer.receive(0, command, sync=True) == [credit]
    if isinstance(command, c.MessageFlush):  # complete when the server says so: behind what it brings
        assert peer.sent() == []
        send(peer, o.Done(1, 4, 4))
    assert peer.sent() == [(0, k.SessionCompleted(((0, 2),)))]


@pytest.mark.parametrize("kind", [c.MessageFlow, c.MessageStop, c.MessageFlush, c.MessageSetFlowMode])
def test_credit_for_nobody(peer: ServerPeer, kind: Any) -> None:
    (event,) = peer.receive(0, kind("e"))
    assert isinstance(event, o.ChannelClosed)
    assert event.code == 404


def test_credit_in_window_mode_comes_back_by_completion(peer: ServerPeer) -> None:
    subscribed(peer, mode=c.WINDOW, flow=10)
    for body in (b"1", b"22", b"333"):
        deliver(peer, body)
    assert peer.receive(0, k.SessionCompleted(((0, 1),))) == [o.Credit(1, "d", 2, 3, True, serial=4)]
    assert peer.receive(0, k.SessionCompleted(((0, 0x7FFFFFFF),))) == [o.Credit(1, "d", 1, 3, True, serial=5)]
    assert peer.receive(0, k.SessionCompleted(((0, 9),))) == []


@pytest.mark.parametrize(("mode", "flow"), [(c.CREDIT, 10), (c.WINDOW, c.UNLIMITED)])
def test_credit_that_does_not_come_back(peer: ServerPeer, mode: int, flow: int) -> None:
    subscribed(peer, mode=mode, flow=flow)
    deliver(peer)
    assert peer.receive(0, k.SessionCompleted(((0, 1),))) == []


@pytest.mark.parametrize("command", [c.MessageStop("d"), c.MessageFlush("d"), c.MessageCancel("d")])
def test_a_stop_forgets_the_window(peer: ServerPeer, command: c.Command) -> None:
    subscribed(peer, flow=10)
    deliver(peer)
    peer.receive(0, command)
    assert peer.receive(0, k.SessionCompleted(((0, 1),))) == []


def test_windows_are_bounded(peer: ServerPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_channel, "WINDOW_MAX", 3)
    subscribed(peer, flow=10)
    for _ in range(3):
        deliver(peer)
    with pytest.raises(LocalError, match="3 deliveries are not complete"):
        deliver(peer)


def test_cancel(peer: ServerPeer) -> None:
    """Deliveries go on until its outcome: a message.flush in the same burst still brings its messages."""
    subscribed(peer)
    events = peer.receive(0, c.MessageFlush("d"), c.MessageCancel("d"), sync=True)
    assert [type(event) for event in events] == [o.Credit, o.Cancel]
    deliver(peer)
    send(peer, o.Done(1, 4, 4))
    send(peer, o.Done(1, 5, 5))
    assert [entry[1] for entry in peer.sent()] == [c.MessageTransfer("d"), k.SessionCompleted(((0, 3),))]
    with pytest.raises(StateError):
        deliver(peer)
    (event,) = peer.receive(0, c.MessageCancel("d"))
    assert isinstance(event, o.Cancel)


def test_cancel_and_subscribe_again(peer: ServerPeer) -> None:
    subscribed(peer)
    peer.receive(0, c.MessageCancel("d"), c.MessageSubscribe("q", "d"))
    send(peer, o.Done(1, 4, 4))
    send(peer, o.Consuming(1, 5, 5, "d"))
    deliver(peer)


def test_a_subscription_that_the_server_ended(peer: ServerPeer) -> None:
    subscribed(peer)
    send(peer, o.Cancelled(1, "d"))
    send(peer, o.Cancelled(1, "unknown"))
    with pytest.raises(StateError):
        deliver(peer)
    for command in (c.MessageFlow("d"), c.MessageStop("d"), c.MessageFlush("d"), c.MessageSetFlowMode("d")):
        assert peer.receive(0, command) == []
    assert flushed(peer) == ((0, 5),)
    assert peer.receive(0, c.MessageCancel("d")) == [o.Cancel(1, "d", serial=4)]


@pytest.mark.parametrize(
    ("kind", "settlement"),
    [
        (c.MessageAccept, Settlement.ACCEPT),
        (c.MessageRelease, Settlement.RELEASE),
        (c.MessageReject, Settlement.REJECT),
    ],
)
def test_settlements(peer: ServerPeer, kind: Any, settlement: Settlement) -> None:
    subscribed(peer)
    for _ in range(5):
        deliver(peer)
    assert peer.receive(0, kind(((0, 1), (3, 0x7FFFFFFF), (70, 71), (0xFFFFFFF0, 0xFFFFFFF5)))) == [
        o.Settle(1, settlement, 1, 2, serial=4),
        o.Settle(1, settlement, 4, 5, serial=5),
    ]
    assert flushed(peer) == ((0, 2),)


def test_acquire(peer: ServerPeer) -> None:
    subscribed(peer)
    deliver(peer)
    deliver(peer)
    peer.sent()
    assert peer.receive(0, c.MessageAcquire(((0, 9), (50, 60))), sync=True) == [
        o.Acquire(1, ((1, 2),), serial=4),
    ]
    send(peer, o.Acquired(1, 4, 4, ((2, 2),)))
    (_, result, _), (_, completed) = peer.sent()
    assert result.command_id == 2
    assert Acquired.decode(result.value) == Acquired(((1, 1),))
    assert completed == k.SessionCompleted(((0, 2),))


# ---------------------------------------------------------------------------------------------- the end


def test_detach(peer: ServerPeer) -> None:
    assert peer.receive(0, transfer(), k.SessionDetach(b"s"), sync=True)[-1] == o.CloseChannel(1, serial=3)
    send(peer, o.Confirmed(1, 2, 2))
    send(peer, o.ChannelClosed(1, 200, ""))
    assert peer.sent() == [(0, k.SessionCompleted(((0, 0),))), (0, k.SessionDetached(b"s"))]
    peer.attach()


def test_closed_without_being_asked(peer: ServerPeer) -> None:
    with pytest.raises(StateError, match="not asked"):
        send(peer, o.ChannelClosed(1, 200, ""))


def test_the_server_closes(peer: ServerPeer) -> None:
    send(peer, o.CloseChannel(1))
    assert peer.sent() == [(0, k.SessionDetach(b"s"))]
    with pytest.raises(StateError, match="has failed"):
        deliver(peer)
    assert peer.receive(0, c.QueueQuery("q"), k.SessionDetached(b"s")) == []
    peer.attach()


def test_the_server_closes_with_a_reason(peer: ServerPeer) -> None:
    peer.receive(0, c.QueueQuery("q"))
    send(peer, o.CloseChannel(1, 406, "no", 2))
    (_, exception, _), (_, detach) = peer.sent()
    assert (exception.error_code, exception.command_id, exception.description) == (406, 0, "no")
    assert detach == k.SessionDetach(b"s")
    assert peer.receive(0, k.SessionDetach(b"s")) == []
    assert peer.sent() == [(0, k.SessionDetached(b"s"))]
    peer.attach()


def test_detached_without_being_asked(peer: ServerPeer) -> None:
    assert peer.receive(0, k.SessionDetached(b"s")) == [o.ChannelClosed(1, 200, "detached")]


def test_an_exception_of_the_client(peer: ServerPeer) -> None:
    assert peer.receive(0, c.ExecutionException(404, 0, description="no")) == [o.ChannelClosed(1, 404, "not-found: no")]
    assert peer.sent() == [(0, k.SessionDetach(b"s"))]


def test_a_result_of_the_client_is_passed_over(peer: ServerPeer) -> None:
    assert peer.receive(0, c.ExecutionResult(0)) == []
    assert flushed(peer) == ((0, 0),)


FAILURES = [
    (c.QueueDeclare("q"), 406, 406, 8, 1),
    (transfer(), 403, 403, None, None),
    (c.QueuePurge("q"), 311, 506, 8, 3),
]


@pytest.mark.parametrize(("what", "code", "error", "class_code", "command_code"), FAILURES)
def test_failures(peer: ServerPeer, what: Any, code: int, error: int, class_code: Any, command_code: Any) -> None:
    peer.receive(0, what)
    send(peer, o.Failed(1, 2, 2, code, "text"))
    (_, exception, _), _ = peer.sent()
    assert exception == c.ExecutionException(error, 0, class_code, command_code, description="text")


def test_a_failure_of_what_has_no_outcome(peer: ServerPeer) -> None:
    subscribed(peer)
    peer.receive(0, c.MessageStop("d"))
    send(peer, o.Failed(1, 4, 4, 404, "no"))
    exception = next(entry[1] for entry in peer.sent() if isinstance(entry[1], c.ExecutionException))
    assert (exception.command_id, exception.class_code, exception.command_code) == (2, 4, 0x0C)


def test_a_failure_of_nothing(peer: ServerPeer) -> None:
    send(peer, o.Failed(1, 0, 0, 541, "alas"))
    assert peer.sent()[0][1].command_id is None


def test_memory_for_what_has_no_outcome_is_bounded(peer: ServerPeer) -> None:
    subscribed(peer)
    for _ in range(3_000):
        peer.receive(0, c.MessageFlow("d", c.MESSAGES, 1))
    assert len(peer.session.channels[0]._remembered) <= server_channel.REMEMBERED_MAX


def test_flow(peer: ServerPeer) -> None:
    send(peer, o.Flow(1, active=True))
    assert peer.sent() == []
    send(peer, o.Flow(1, active=False))
    send(peer, o.Flow(1, active=False))
    assert [entry[1] for entry in peer.sent()] == [c.MessageSetFlowMode("", c.CREDIT), c.MessageStop("")]
    send(peer, o.Flow(1, active=True))
    assert [entry[1] for entry in peer.sent()] == [c.MessageFlow("", c.MESSAGES, 0x7FFFFFFF)]


def test_what_a_server_does_not_send(peer: ServerPeer) -> None:
    for operation in (o.GotNothing(1, 1, 1), o.QueryQueue(1, "q")):
        with pytest.raises(Unsupported):
            send(peer, operation)
    with pytest.raises(StateError, match="request 9 is not waiting"):
        send(peer, o.Done(1, 9, 9))


@pytest.mark.parametrize(
    ("segment", "code"),
    [
        ("090101010000", 540),
        ("0a0101010000", 540),
        ("090201010000", 530),
        ("0b0101000000", 503),
        ("0c0101000000", 503),
        ("049901000000", 540),
    ],
)
def test_unknown_commands(peer: ServerPeer, segment: str, code: int) -> None:
    (event,) = peer.octets(b"".join(write_segment(bytes.fromhex(segment), COMMAND, COMMAND, 0, 4096)))
    assert isinstance(event, o.ChannelClosed)
    assert event.code == code
    assert peer.sent()[0][1].error_code == code
