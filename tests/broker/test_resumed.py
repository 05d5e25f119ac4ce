"""Sessions of 0-10 that outlive their connection: detached and attached again, with nothing lost and nothing doubled.

A client session and the broker's core talk over a wire that is cut where the test says; then the same on a new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from gateway.amqp import operations as o
from gateway.amqp.message import Message
from gateway.amqp.operations import Operation, Settlement
from gateway.errors import StateError
from gateway.v010 import commands as c
from gateway.v010 import controls as k
from tests.broker.wire import Host, Wire
from tests.v010.peer import NOW, ServerPeer

TIMEOUT = 60


def state_of(events: list[Operation]) -> Any:
    """What the only session that outlives its connection leaves behind."""
    (detached,) = [event for event in events if isinstance(event, o.Detached)]
    return detached.state


def opened(host: Host, timeout: int = TIMEOUT) -> Wire:
    wire = host.connect()
    assert wire.ask(o.OpenChannel(1, timeout)) == o.Done(1, 1, 1)
    return wire


def publish(body: bytes, queue: str = "q") -> o.Publish:
    return o.Publish(1, "", queue, Message(body))


def outcomes(events: Iterable[Operation]) -> list[int]:
    """The serials that were confirmed."""
    return [
        serial for event in events if isinstance(event, o.Confirmed) for serial in range(event.first, event.last + 1)
    ]


def bodies(wire: Wire, queue: str = "q", channel: int = 2) -> list[bytes]:
    """What is in a queue, taken out by another channel."""
    assert isinstance(wire.ask(o.OpenChannel(channel)), o.Done)
    found = []
    while isinstance(got := wire.ask(o.Get(channel, queue, True)), o.Got):
        found.append(got.message.body)
    return found


def test_a_session_is_detached_and_attached_again_on_the_same_connection() -> None:
    wire = opened(Host())
    wire.ask(o.DeclareQueue(1, "q"))
    wire.ask(o.SelectConfirm(1))
    detached = wire.ask(o.Detach(1))
    assert (type(detached), detached.timeout) == (o.Detached, TIMEOUT)
    with pytest.raises(StateError):
        wire.send(publish(b"1"))
    assert wire.ask(o.OpenChannel(5, state=detached.state)) == o.Done(5, 5, 5)
    wire.send(o.Publish(5, "", "q", Message(b"1")))
    assert wire.take() == [o.Confirmed(5, 6, 6)]
    assert bodies(wire) == [b"1"]


def cuts() -> Iterable[tuple[int | None, int | None]]:
    """Where the wire breaks: towards the server, towards the client."""
    yield from ((octets, None) for octets in range(0, 1_100, 7))
    yield from ((None, octets) for octets in range(0, 160, 3))
    yield from ((octets, 40) for octets in range(0, 1_100, 101))


@pytest.mark.parametrize("server_too", [True, False], ids=["server notices", "server does not"])
def test_publishes_over_a_wire_that_is_cut_anywhere_arrive_once(server_too: bool) -> None:
    confirmed_late = 0
    for to_server, to_client in cuts():
        host = Host()
        wire = opened(host)
        wire.ask(o.DeclareQueue(1, "q"))
        wire.ask(o.SelectConfirm(1))
        wire.to_server, wire.to_client = to_server, to_client
        serials = []
        for number in range(6):
            serials += wire.send(publish(b"%d" % number))
        events = wire.take()
        events += wire.cut(server_too)
        assert isinstance(events[-1], o.Closed)

        again = host.connect()
        again.send(o.OpenChannel(3, state=state_of(events)))
        later = again.take()
        assert o.Done(3, serials[-1] + 1, serials[-1] + 1) in later, (to_server, to_client, later)
        assert sorted(outcomes(events) + outcomes(later)) == serials, (to_server, to_client)
        confirmed_late += len(outcomes(later))
        serials = again.send(o.Publish(3, "", "q", Message(b"6")))
        assert outcomes(again.take()) == serials
        assert bodies(again) == [b"%d" % number for number in range(7)], (to_server, to_client)
    assert confirmed_late > 100


def test_deliveries_over_a_wire_that_is_cut_anywhere_come_once() -> None:
    for octets in range(0, 700, 5):
        host = Host()
        wire = opened(host)
        wire.ask(o.DeclareQueue(1, "q"))
        wire.ask(o.Qos(1, 4))
        assert isinstance(wire.ask(o.Consume(1, "q", "c")), o.Consuming)
        filler = host.connect()
        filler.ask(o.OpenChannel(1))
        wire.to_client = octets
        filler.send(*(publish(b"%d" % number) for number in range(10)))
        wire.pump()
        seen = []
        events = wire.take()
        for event in list(events):
            if isinstance(event, o.Deliver):
                seen.append(event.message.body)
                wire.send(o.Settle(1, Settlement.ACCEPT, event.delivery, event.delivery))
        pending = wire.take() + wire.cut()
        seen += [event.message.body for event in pending if isinstance(event, o.Deliver)]
        out = [event.delivery for event in pending if isinstance(event, o.Deliver)]

        again = host.connect()
        again.send(o.OpenChannel(1, state=state_of(pending)))
        for delivery in out:
            again.send(o.Settle(1, Settlement.ACCEPT, delivery, delivery))
        while delivered := [event for event in again.take() if isinstance(event, o.Deliver)]:
            for event in delivered:
                assert not event.redelivered
                seen.append(event.message.body)
                again.send(o.Settle(1, Settlement.ACCEPT, event.delivery, event.delivery))
        assert seen == [b"%d" % number for number in range(10)], octets
        assert host.depth("q") == 0
        assert isinstance(again.ask(o.CloseChannel(1)), o.ChannelClosed)
        assert host.depth("q") == 0, "something was settled that the broker has not heard of"


def test_answers_are_given_on_the_next_connection() -> None:
    for octets in range(0, 400, 3):
        host = Host()
        wire = opened(host)
        wire.to_client = octets
        asked = wire.send(
            o.DeclareQueue(1, "q"), o.QueryQueue(1, "q"), o.DtxSelect(1), o.DtxRecover(1), o.QueryExchange(1, "none")
        )
        events = wire.take() + wire.cut()
        again = host.connect()
        again.send(o.OpenChannel(1, state=state_of(events)))
        answered = [event.first for event in events + again.take() if isinstance(event, o.Outcome)]
        assert sorted(answered) == [*asked, asked[-1] + 1], octets


def test_a_transaction_goes_on() -> None:
    host = Host()
    wire = opened(host)
    wire.ask(o.DeclareQueue(1, "q"))
    wire.ask(o.TxSelect(1))
    wire.send(publish(b"1"))
    state = state_of(wire.cut())
    assert host.depth("q") == 0
    again = host.connect()
    again.ask(o.OpenChannel(1, state=state))
    again.send(publish(b"2"))
    assert isinstance(again.ask(o.TxCommit(1)), o.Done)
    assert bodies(again) == [b"1", b"2"]


def test_a_session_that_is_away_for_too_long_is_given_up() -> None:
    host = Host()
    wire = opened(host)
    wire.ask(o.DeclareQueue(1, "q"))
    wire.send(publish(b"1"))
    assert isinstance(wire.ask(o.Get(1, "q")), o.Got)
    state = state_of(wire.cut())
    assert (host.depth("q"), host.broker.channels) == (0, 1)
    host.later(TIMEOUT - 1)
    assert (host.depth("q"), host.broker.channels) == (0, 1)
    assert host.broker.next_timeout() == 1_000.0 + TIMEOUT
    host.later(1)
    assert (host.depth("q"), host.broker.channels) == (1, 0)
    again = host.connect()
    again.send(o.OpenChannel(1, state=state))
    text = "not-found: the broker does not know the session any more"
    failed, closed = again.take()
    assert isinstance(failed, o.Failed)
    assert (failed.code, failed.text) == (404, text)
    assert closed == o.ChannelClosed(1, 404, text)
    assert host.broker.channels == 0


def test_what_is_delivered_while_a_session_is_away() -> None:
    host = Host()
    wire = opened(host)
    wire.ask(o.DeclareQueue(1, "q"))
    wire.ask(o.Qos(1, 2))
    wire.ask(o.Consume(1, "q", "c"))
    wire.ask(o.DeclareQueue(1, "gone"))
    wire.ask(o.Consume(1, "gone", "d"))
    state = state_of(wire.cut())
    other = host.connect()
    other.ask(o.OpenChannel(1))
    other.send(publish(b"1"), publish(b"2"), publish(b"3"))
    other.ask(o.DeleteQueue(1, "gone"))
    assert host.depth("q") == 3
    again = host.connect()
    again.send(o.OpenChannel(1, state=state))
    done, *delivered = again.take()
    assert isinstance(done, o.Done)
    assert [event.message.body for event in delivered if isinstance(event, o.Deliver)] == [b"1", b"2"]
    assert isinstance(again.ask(o.Cancel(1, "d")), o.Done)


def test_a_session_belongs_to_its_user_and_is_asked_for_by_its_name() -> None:
    host = Host()
    state = state_of(opened(host).cut())
    stranger = host.connect("mallory")
    stranger.send(o.OpenChannel(1, state=state))
    failed, _ = stranger.take()
    assert isinstance(failed, o.Failed)
    assert failed.code == 404


def test_a_session_is_attached_once() -> None:
    host = Host()
    wire = opened(host)
    state = state_of(wire.cut())
    again = host.connect()
    assert isinstance(again.ask(o.OpenChannel(1, state=state)), o.Done)
    with pytest.raises(StateError, match="no state of a session that is detached"):
        again.send(o.OpenChannel(2, state=state))
    with pytest.raises(StateError, match="no state of a session that is detached"):
        again.send(o.OpenChannel(2, state="anything"))


def test_the_connection_is_cut_while_the_session_is_attached_again() -> None:
    for octets in range(0, 300, 4):
        host = Host()
        wire = opened(host)
        wire.ask(o.DeclareQueue(1, "q"))
        wire.ask(o.SelectConfirm(1))
        wire.to_server = 30
        serials = wire.send(publish(b"1"), publish(b"2"))
        state = state_of(wire.cut())
        for limit in (octets, None):
            again = host.connect()
            again.to_server = limit
            again.send(o.OpenChannel(1, state=state))
            events = again.take()
            if limit is not None:
                events += again.cut()
                serials = [serial for serial in serials if serial not in outcomes(events)]
                state = state_of(events)
        assert outcomes(events) == serials, octets
        assert bodies(again) == [b"1", b"2"], octets


def test_no_timeout_no_second_life() -> None:
    host = Host()
    wire = opened(host, timeout=0)
    with pytest.raises(StateError, match="was opened without a timeout"):
        wire.send(o.Detach(1))
    (closed,) = wire.cut()
    assert isinstance(closed, o.Closed)
    assert host.broker.channels == 0


def test_a_broker_that_keeps_no_sessions_says_so() -> None:
    wire = Host(session_timeout=0).connect()
    wire.send(o.OpenChannel(1, TIMEOUT))
    failed, closed = wire.take()
    text = "not-implemented: session.request-timeout: the broker keeps no session that is detached"
    assert failed == o.Failed(1, 1, 1, 540, text)
    assert closed == o.ChannelClosed(1, 540, text)


def test_a_channel_that_is_closed_is_not_kept() -> None:
    host = Host()
    wire = opened(host)
    assert isinstance(wire.ask(o.CloseChannel(1)), o.ChannelClosed)
    assert host.broker.channels == 0
    wire = opened(host)
    wire.send(o.Close(0))
    assert [type(event) for event in wire.take()] == [o.Closed]
    wire.cut_server()
    assert host.broker.channels == 0


def test_a_timeout_is_not_longer_than_the_broker_allows() -> None:
    host = Host(session_timeout=20)
    wire = opened(host)
    (detached, _) = wire.cut()
    assert isinstance(detached, o.Detached)
    assert detached.timeout == 20


class Attaching:
    """A connection whose client says which session it attaches."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.peer = ServerPeer(host.config)
        self.connection = host.broker.connect(self.peer.session, lambda: None)
        self.peer.opened()
        host.broker.receive(self.connection, [o.Opened(0, "guest", "/")], NOW)

    def __call__(self, channel: int, *sent: k.Control | c.Command) -> list[tuple[int, Any]]:
        """Send controls or commands; what comes back."""
        self.host.broker.receive(self.connection, self.peer.receive(channel, *sent), NOW)
        return self.heard()

    def heard(self) -> list[tuple[int, Any]]:
        self.host.broker.flushed(self.connection)
        return [(each[0], each[1]) for each in self.peer.sent()]


ATTACHED, BUSY, NOT_ATTACHED = k.SessionAttached(b"s"), k.SessionDetached(b"s", 1), k.SessionDetached(b"", 3)


@pytest.mark.parametrize("timeout", [0, 60])
def test_a_name_that_is_attached_elsewhere_is_busy(timeout: int) -> None:
    host = Host()
    first, second = Attaching(host), Attaching(host)
    assert first(0, k.SessionAttach(b"s"))[0] == (0, ATTACHED)
    first(0, k.SessionRequestTimeout(timeout))
    assert second(3, k.SessionAttach(b"s")) == [(3, BUSY)]
    assert second(3, k.SessionAttach(b"t"))[0] == (3, k.SessionAttached(b"t"))
    assert first(0, k.SessionFlush(expected=True)) == [(0, k.SessionExpected(()))], "the first one goes on"
    first(0, k.SessionDetach(b"s"))
    assert second(4, k.SessionAttach(b"s"))[0] == (4, ATTACHED)


def test_a_name_may_be_attached_when_its_connection_is_gone() -> None:
    host = Host()
    first, second = Attaching(host), Attaching(host)
    first(0, k.SessionAttach(b"s"))
    host.broker.disconnect(first.connection, NOW)
    assert second(0, k.SessionAttach(b"s"))[0] == (0, ATTACHED)
    assert host.broker.channels == 1


def test_by_force_the_session_ends_where_it_was() -> None:
    """It does not outlive its connection, so there is nothing to go on with: what was out is given back."""
    host = Host()
    wire = opened(host)
    wire.ask(o.DeclareQueue(1, "q"))
    wire.send(publish(b"1"))
    first, second = Attaching(host), Attaching(host)
    first(0, k.SessionAttach(b"s"))
    first(0, c.MessageSubscribe("q", "d"), c.MessageFlow("d", 0, 9), c.MessageFlow("d", 1, 999))
    assert host.depth("q") == 0
    assert second(3, k.SessionAttach(b"s", True))[0] == (3, ATTACHED)
    assert first.heard() == [(0, BUSY)]
    assert host.depth("q") == 1
    assert host.broker.channels == 2
    assert first(0, k.SessionFlush(expected=True)) == [(0, NOT_ATTACHED)]
    first(0, k.SessionDetached(b"s", 0))
    assert second(3, k.SessionFlush(expected=True)) == [(3, k.SessionExpected(()))]
