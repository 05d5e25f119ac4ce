"""Sessions that outlive their connection, each end against a scripted other one. That nothing is lost between two real
ends is shown with the broker, in tests/broker/test_resumed.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.amqp import operations as o
from gateway.amqp.message import Message
from gateway.amqp.operations import Settlement
from gateway.errors import StateError
from gateway.limits import Limits
from gateway.v010 import commands as c
from gateway.v010 import controls as k
from gateway.v010 import replay, server_channel
from gateway.v010.translate import write_header
from tests.pair import SERVER
from tests.v010.peer import NOW, ClientPeer, ServerPeer

# --------------------------------------------------------------------------------------------------- client


def attached(granted: int | None = 60, limits: Limits | None = None) -> tuple[ClientPeer, bytes]:
    """A client with a session that is to outlive its connection, and the session's name."""
    peer = ClientPeer(limits=limits).opened()
    peer.session.send(o.OpenChannel(1, 60), NOW)
    (_, attach), timeout, point = peer.sent()
    assert timeout == (0, k.SessionRequestTimeout(60))
    assert point == (0, k.SessionCommandPoint(0))
    assert peer.receive(0, k.SessionAttached(attach.name)) == []
    assert peer.receive(0, k.SessionTimeout(granted)) == [o.Done(1, 1, 1)]
    return peer, attach.name


def publish(peer: ClientPeer, body: bytes = b"body", channel: int = 1) -> int:
    serial: int = peer.session.send(o.Publish(channel, "x", "k", Message(body)), NOW)
    return serial


def lost(peer: ClientPeer) -> o.Detached:
    detached, closed = peer.session.receive_eof(NOW)
    assert isinstance(detached, o.Detached)
    assert isinstance(closed, o.Closed)
    return detached


def again(detached: o.Detached, name: bytes, channel: int = 3) -> tuple[ClientPeer, int]:
    """On a new connection, as far as what we expect; with the serial of that."""
    peer = ClientPeer().opened()
    serial = peer.session.send(o.OpenChannel(channel, state=detached.state), NOW)
    assert peer.sent() == [(channel - 1, k.SessionAttach(name, True))]
    assert peer.receive(channel - 1, k.SessionAttached(name)) == []
    assert peer.sent() == [
        (channel - 1, k.SessionRequestTimeout(60)),
        (channel - 1, k.SessionFlush(expected=True, completed=True)),
    ]
    return peer, serial


def test_either_answer_may_come_first() -> None:
    peer = ClientPeer().opened()
    peer.session.send(o.OpenChannel(1, 60), NOW)
    assert peer.receive(0, k.SessionTimeout(None)) == []
    assert peer.receive(0, k.SessionAttached(b"")) == [o.Done(1, 1, 1)]
    assert peer.receive(0, k.SessionAttached(b""), k.SessionTimeout(30)) == []
    assert lost(peer).timeout == 30


def test_a_broker_that_keeps_nothing() -> None:
    peer = ClientPeer().opened()
    peer.session.send(o.OpenChannel(1, 60), NOW)
    (_, attach), *_ = peer.sent()
    (failed,) = peer.receive(0, k.SessionAttached(attach.name), k.SessionTimeout(0))
    assert isinstance(failed, o.Failed)
    assert failed.code == 540
    assert peer.sent() == [(0, k.SessionRequestTimeout(0)), (0, k.SessionDetach(attach.name))]
    assert peer.receive(0, k.SessionTimeout(0), k.SessionDetached(attach.name, 0)) == [
        o.ChannelClosed(1, 540, failed.text)
    ]


def test_no_timeout_is_asked_for() -> None:
    peer = ClientPeer().opened().attach(1)
    assert peer.receive(0, k.SessionTimeout(0), k.SessionExpected(())) == []
    (closed,) = peer.session.receive_eof(NOW)
    assert isinstance(closed, o.Closed)


def test_a_connection_that_is_lost_before_the_session_is_attached() -> None:
    peer = ClientPeer().opened()
    peer.session.send(o.OpenChannel(1, 60), NOW)
    peer.receive(0, k.SessionTimeout(60))
    (closed,) = peer.session.receive_eof(NOW)
    assert isinstance(closed, o.Closed)


def test_what_the_broker_has_not_received_is_sent_again() -> None:
    peer, name = attached()
    peer.session.send(o.SelectConfirm(1), NOW)
    first = publish(peer, b"1")
    publish(peer, b"2")
    publish(peer, b"")
    assert peer.receive(0, k.SessionCompleted(((0, 0),))) == [o.Done(1, 2, 2)]
    peer, serial = again(lost(peer), name)
    before = publish(peer, b"4", 3)  # not sent before the broker has said what it expects
    peer.session.send(o.Qos(3), NOW)
    assert peer.sent() == []
    assert peer.receive(2, k.SessionCompleted(((1, 1),))) == [o.Confirmed(3, first, first)]
    peer.sent()
    (done,) = peer.receive(2, k.SessionExpected(((2, 2),)))
    assert done == o.Done(3, serial, serial)
    point, *transfers, sync, flush = peer.sent()
    assert point == (2, k.SessionCommandPoint(2))
    assert [entry[4] for entry in transfers] == [b"2", b"", b"4"]
    assert sync[1] == c.ExecutionSync()
    assert flush == (2, k.SessionFlush(completed=True))
    assert peer.receive(2, k.SessionCompleted(((1, 5),)))[0] == o.Confirmed(3, first + 1, first + 2)
    assert before == serial + 1


def test_what_the_broker_is_to_be_told_of_deliveries() -> None:
    peer, name = attached()
    peer.session.send(o.Qos(1, 2), NOW)
    peer.session.send(o.Consume(1, "q", "t"), NOW)
    delivered = (c.MessageTransfer("t"), write_header(Message(), "k", 0, "x", None), b"1")
    peer.receive(0, k.SessionCompleted(((0, 4),)), delivered, delivered)
    peer.sent()
    peer.session.send(o.Settle(1, Settlement.ACCEPT, 1, 1), NOW)
    assert peer.sent()[0][1] == c.MessageAccept(((0, 0),))
    peer, _ = again(lost(peer), name)
    peer.receive(2, k.SessionFlush(expected=True))
    assert peer.sent() == [(2, k.SessionExpected(((2, 2),)))]
    peer.session.send(o.Settle(3, Settlement.ACCEPT, 2, 2), NOW)
    assert peer.sent() == []
    peer.receive(2, k.SessionExpected(((5, 5),)))
    commands = [entry[1] for entry in peer.sent()]
    assert [command for command in commands if isinstance(command, c.MessageAccept)] == [
        c.MessageAccept(((0, 0),)),
        c.MessageAccept(((1, 1),)),
    ]
    assert commands[-1] == k.SessionCompleted(((0, 1),))


@pytest.mark.parametrize("controls", [(k.SessionExpected(()),), (k.SessionCommandPoint(9), k.SessionExpected(()))])
def test_a_broker_that_has_forgotten_the_session(controls: tuple[k.Control, ...]) -> None:
    peer, name = attached()
    publish(peer)
    peer, serial = again(lost(peer), name)
    (failed,) = peer.receive(2, *controls)
    text = "not-found: the broker does not know the session any more"
    assert failed == o.Failed(3, serial, serial, 404, text)
    assert peer.sent() == [(2, k.SessionRequestTimeout(0)), (2, k.SessionDetach(name))]
    assert peer.receive(2, k.SessionDetached(name, 0)) == [o.ChannelClosed(3, 404, text)]


@pytest.mark.parametrize("what", [c.ExecutionSync(), (c.MessageTransfer("t"), b"", b"1")])
def test_commands_before_the_broker_knows_what_we_expect(what: Any) -> None:
    peer, name = attached()
    peer, _ = again(lost(peer), name)
    (closed,) = peer.receive(2, what)
    assert isinstance(closed, o.Closed)
    assert "before session.expected" in closed.text


def test_a_broker_that_expects_nonsense() -> None:
    peer, name = attached()
    peer, _ = again(lost(peer), name)
    (closed,) = peer.receive(2, k.SessionExpected(((3, 3),)))
    assert isinstance(closed, o.Closed)


def test_the_command_point_of_a_session_that_is_known() -> None:
    peer, name = attached()
    peer, _ = again(lost(peer), name)
    assert peer.receive(2, k.SessionCommandPoint(0)) == []


def test_detached_on_purpose() -> None:
    peer, name = attached()
    publish(peer)
    assert peer.session.send(o.Detach(1), NOW) == 3
    *_, transfer, detach = peer.sent()
    assert transfer[2], "the sync bit"
    assert detach == (0, k.SessionDetach(name))
    with pytest.raises(StateError, match="channel 1 is detaching"):
        publish(peer)
    (detached,) = peer.receive(0, k.SessionDetached(name, 0))
    assert detached == o.Detached(1, 60, None)
    assert detached.state.attached is False
    serial = peer.session.send(o.OpenChannel(2, state=detached.state), NOW)
    assert serial == 4
    with pytest.raises(StateError, match="no state of a session"):
        peer.session.send(o.OpenChannel(3, state=detached.state), NOW)
    publish(peer, channel=2)


def test_the_broker_detaches_the_session_for_somebody_else() -> None:
    peer, name = attached()
    (closed,) = peer.receive(0, k.SessionDetached(name, 1))
    assert isinstance(closed, o.ChannelClosed)
    peer, name = attached()
    peer.session.send(o.Detach(1), NOW)
    (closed,) = peer.receive(0, k.SessionDetached(name, 1))
    assert isinstance(closed, o.ChannelClosed)


def test_a_session_without_a_timeout_is_not_detached() -> None:
    peer = ClientPeer().opened().attach(1)
    with pytest.raises(StateError, match="was opened without a timeout"):
        peer.session.send(o.Detach(1), NOW)


def test_a_session_that_is_closed_ends() -> None:
    peer, name = attached()
    peer.session.send(o.CloseChannel(1), NOW)
    assert peer.sent() == [(0, k.SessionRequestTimeout(0)), (0, k.SessionDetach(name))]
    assert peer.receive(0, k.SessionTimeout(0)) == []
    (closed,) = peer.session.receive_eof(NOW)
    assert isinstance(closed, o.Closed)


def test_a_connection_that_we_close_takes_its_sessions_with_it() -> None:
    peer, _ = attached()
    peer.session.send(o.Close(0), NOW)
    assert peer.sent()[0] == (0, k.SessionRequestTimeout(0))


def test_a_session_that_has_failed_is_not_kept() -> None:
    peer, _ = attached()
    peer.receive(0, c.ExecutionException(541))
    (closed,) = peer.session.receive_eof(NOW)
    assert isinstance(closed, o.Closed)


def test_what_is_not_complete_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "COMMANDS_MAX", 4)
    peer, _ = attached()
    peer.sent()
    publish(peer)
    assert len(peer.sent()) == 1
    publish(peer)
    transfer, flush = peer.sent()
    assert transfer[2], "the sync bit"
    assert flush == (0, k.SessionFlush(completed=True))
    publish(peer)
    publish(peer)
    with pytest.raises(StateError, match="channel 1: 4 commands are not complete, of"):
        publish(peer)
    for _ in range(4):
        peer.session.send(o.Qos(1), NOW)
    (closed,) = peer.session.receive_eof(NOW)
    assert isinstance(closed, o.Closed), "more than that is not held: the session ends with its connection"


# --------------------------------------------------------------------------------------------------- server


class Sessions:
    """What stands for a broker: it remembers every session."""

    def __init__(self, timeout: int = 60) -> None:
        self.states: dict[bytes, Any] = {}
        self.busy = False
        self.asked: list[tuple[Any, ...]] = []
        self.config = replace(SERVER, session_timeout=timeout, resume_session=self.resume)

    def resume(self, *asked: Any) -> Any:
        self.asked.append(asked)
        if self.busy:
            raise StateError("busy")
        return self.states.get(asked[2])

    def peer(self) -> ServerPeer:
        return ServerPeer(self.config).opened()


def kept(sessions: Sessions, timeout: int | None = 30) -> ServerPeer:
    peer = sessions.peer().attach()
    peer.receive(0, k.SessionRequestTimeout(timeout))
    assert peer.sent() == [(0, k.SessionTimeout(30 if timeout == 30 else 60))]
    return peer


def gone(peer: ServerPeer, sessions: Sessions) -> o.Detached:
    detached, closed = peer.session.receive_eof(NOW)
    assert isinstance(detached, o.Detached)
    assert isinstance(closed, o.Closed)
    sessions.states[b"s"] = detached.state
    return detached


def test_how_long_a_session_is_kept() -> None:
    for asked, granted in ((None, 60), (30, 30), (90, 60), (0, 0)):
        peer = Sessions().peer().attach()
        peer.receive(0, k.SessionRequestTimeout(asked))
        assert peer.sent() == [(0, k.SessionTimeout(granted))]
    peer = ServerPeer().opened().attach()
    peer.receive(0, k.SessionRequestTimeout(30))
    assert peer.sent() == [(0, k.SessionTimeout(0))]


def test_a_timeout_may_be_taken_back_and_is_asked_for_in_time() -> None:
    peer = kept(Sessions())
    peer.receive(0, k.SessionRequestTimeout(40), k.SessionRequestTimeout(0))
    assert peer.sent() == [(0, k.SessionTimeout(40)), (0, k.SessionTimeout(0))]
    (closed,) = peer.session.receive_eof(NOW)
    assert isinstance(closed, o.Closed)
    peer = Sessions().peer().attach()
    peer.receive(0, c.QueueQuery("q"))
    peer.session.send(o.Declared(1, 2, 2, "q"), NOW)
    peer.receive(0, k.SessionRequestTimeout(30))
    assert peer.sent()[-1] == (0, k.SessionTimeout(0)), "what was sent by then is not held"


def test_few_sessions_of_a_connection_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_channel, "KEPT_MAX", 1)
    peer = kept(Sessions()).attach(1, b"t")
    peer.receive(1, k.SessionRequestTimeout(30))
    assert peer.sent() == [(1, k.SessionTimeout(0))]


def subscribed(peer: ServerPeer) -> None:
    """A subscription to which one message went; serial 2, delivery 1."""
    peer.receive(0, c.MessageSubscribe("q", "d"), c.MessageSetFlowMode("d", c.CREDIT))
    peer.session.send(o.Consuming(1, 2, 2, "d"), NOW)
    assert peer.session.send(o.Deliver(1, "d", 0, False, "x", "k", Message(b"1")), NOW) == 1
    peer.sent()


def test_a_session_comes_back() -> None:
    sessions = Sessions()
    peer = kept(sessions)
    subscribed(peer)
    peer.receive(0, c.QueueQuery("q"), c.QueuePurge("q"))
    assert gone(peer, sessions).timeout == 30
    peer.session.send(o.Declared(1, 3, 3, "q"), NOW)  # which nobody hears now
    other = sessions.peer()
    assert other.receive(4, k.SessionAttach(b"s")) == []
    assert sessions.asked[-1] == ("guest", "/", b"s", False)
    assert other.sent() == [(4, k.SessionAttached(b"s")), (4, k.SessionFlush(expected=True))]
    peer.session.send(o.Removed(1, 4, 4, 0), NOW)
    other.receive(4, k.SessionFlush(expected=True))
    assert other.sent() == [(4, k.SessionExpected(((4, 4),)))]
    (opened,) = other.receive(4, k.SessionExpected(((0, 0),)))
    assert opened == o.OpenChannel(5, resumed=True)
    assert (opened.name, opened.state) == (b"s", sessions.states[b"s"])
    point, transfer, result, flush, completed = other.sent()
    assert point == (4, k.SessionCommandPoint(0))
    assert (transfer[1].destination, transfer[4]) == ("d", b"1")
    assert isinstance(result[1], c.ExecutionResult)
    assert flush == (4, k.SessionFlush(completed=True))
    assert completed == (4, k.SessionCompleted(((0, 3),)))
    assert other.session.send(o.Deliver(5, "d", 0, False, "x", "k", Message(b"2")), NOW) == 3
    ((_, transfer, *_),) = other.sent()
    assert transfer.destination == "d"
    with pytest.raises(StateError):
        peer.session.send(o.Flow(1, False), NOW)


def test_only_what_is_not_complete_is_sent_again() -> None:
    sessions = Sessions()
    peer = kept(sessions)
    subscribed(peer)
    peer.receive(0, k.SessionCompleted(((0, 0),)))
    gone(peer, sessions)
    other = sessions.peer()
    other.receive(0, k.SessionAttach(b"s"), k.SessionExpected(((1, 1),)))
    assert other.sent()[2:4] == [(0, k.SessionCommandPoint(1)), (0, k.SessionFlush(completed=True))]


def test_the_client_detaches_a_session_that_is_kept() -> None:
    sessions = Sessions()
    peer = kept(sessions)
    (detached,) = peer.receive(0, k.SessionDetach(b"s"))
    assert isinstance(detached, o.Detached)
    assert peer.sent() == [(0, k.SessionDetached(b"s", 0))]
    sessions.states[b"s"] = detached.state
    assert peer.receive(0, k.SessionAttach(b"s")) == []
    assert peer.sent()[0] == (0, k.SessionAttached(b"s"))


def test_a_client_that_has_forgotten_the_session() -> None:
    sessions = Sessions()
    gone(kept(sessions), sessions)
    other = sessions.peer()
    other.receive(0, k.SessionAttach(b"s"), k.SessionExpected(()))
    assert other.sent()[2:] == [(0, k.SessionDetached(b"s", 4))]
    assert other.session.channels == {}


def test_a_session_that_is_attached_to_another_connection() -> None:
    sessions = Sessions()
    sessions.busy = True
    peer = sessions.peer()
    assert peer.receive(0, k.SessionAttach(b"s")) == []
    assert peer.sent() == [(0, k.SessionDetached(b"s", 1))]


def test_a_session_is_taken_by_force() -> None:
    sessions = Sessions()
    peer = kept(sessions)
    state = peer.session.channels[0]
    state.release()
    assert peer.sent() == [(0, k.SessionDetached(b"s", 1))]
    (detached,) = peer.receive(0, k.ConnectionHeartbeat()) or peer.session.receive_data(b"", NOW)
    assert detached.state is state


def test_a_session_that_ends_with_its_channel_is_not_taken_by_force() -> None:
    peer = Sessions().peer().attach()
    assert peer.receive(1, k.SessionAttach(b"s", True)) == []
    assert peer.sent() == [(1, k.SessionDetached(b"s", 1))]


def test_a_session_is_attached_where_it_is() -> None:
    peer = kept(Sessions())
    assert peer.receive(0, k.SessionAttach(b"s")) == []
    assert peer.sent() == [(0, k.SessionAttached(b"s"))]


def test_a_client_that_is_far_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "COMMANDS_MAX", 2)
    peer = kept(Sessions())
    subscribed(peer)
    for _ in range(4):
        peer.session.send(o.Deliver(1, "d", 0, False, "x", "k", Message(b"1")), NOW)
    (closed,) = peer.session.receive_eof(NOW)
    assert isinstance(closed, o.Closed)


def test_a_channel_that_is_forgotten_twice() -> None:
    """The connection may end while one of its sessions is being left."""
    peer = ServerPeer().opened()
    peer.session.detach(7)
    assert not peer.session.channels
