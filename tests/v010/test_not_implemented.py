"""540: what this end does not serve it names, and what the other end does not serve is named to whoever asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.amqp import operations as o
from gateway.amqp.message import Message
from gateway.errors import MethodNotImplemented, remote_error
from gateway.v010 import commands as c
from gateway.v010 import controls as k
from gateway.v010.attached import failure
from gateway.v010.commands import COMMANDS, Command
from tests.v010.peer import ClientPeer, Peer, ServerPeer


def attached(kind: type[Peer]) -> Peer:
    """With a session on wire channel 0."""
    return ClientPeer().opened().attach(1) if kind is ClientPeer else ServerPeer().opened().attach(0)


@pytest.fixture(params=[ClientPeer, ServerPeer])
def peer(request: pytest.FixtureRequest) -> Peer:
    return attached(request.param)


UNSERVED = [kind for code, kind in COMMANDS.items() if code >> 8 in (9, 10)]


@pytest.mark.parametrize("kind", UNSERVED, ids=lambda kind: kind.spelled)
def test_file_and_stream_are_not_implemented(peer: Peer, kind: Callable[[], Command]) -> None:
    command = kind()
    served = peer.session.role in command.to
    for what in (command, (command, b"", b"body")) if command.header else (command,):
        fresh = attached(type(peer))
        events = [event for event in fresh.receive(0, what) if isinstance(event, o.ChannelClosed)]
        sent = [entry[1] for entry in fresh.sent()]
        events += fresh.receive(0, k.SessionDetached(b"s"))
        event = events[0]
        code = 540 if served else 530
        text = f"{command.spelled} is not {'implemented' if served else 'for this end'}"
        assert isinstance(event, o.ChannelClosed)
        assert (event.code, event.text) == (code, text)
        (exception,) = (one for one in sent if isinstance(one, c.ExecutionException))
        assert (exception.error_code, exception.description) == (code, text)
        assert (exception.class_code, exception.command_code) == (command.code >> 8, command.code & 0xFF)
        assert exception.command_id is not None


def test_content_that_is_passed_over_is_counted(peer: Peer) -> None:
    peer.receive(0, (c.UNSERVED["stream.publish"](), b"", b"body"))
    channel = peer.session.channels[0]
    before = channel.received.next
    assert peer.receive(0, (c.UNSERVED["file.stage"](), b"", b"body"), c.UNSERVED["file.qos"]()) == []
    assert channel.received.next == before + 2


@pytest.mark.parametrize(
    ("exception", "sent", "text"),
    [
        (c.ExecutionException(540, 1), c.TRANSFER, "message.transfer: not-implemented"),
        (c.ExecutionException(540, 1, 9, 1), c.TRANSFER, "file.qos: not-implemented"),
        (c.ExecutionException(540, 1, 9), 0x0602, "dtx.start: not-implemented"),
        (c.ExecutionException(540, 1, 6, 2, description="no dtx.start"), 0, "not-implemented: no dtx.start"),
        (c.ExecutionException(540, description="no"), 0, "not-implemented: no"),
    ],
    ids=repr,
)
def test_the_command_that_a_peer_does_not_have_is_named(exception: c.ExecutionException, sent: int, text: str) -> None:
    assert failure(exception, sent) == (540, text)
    error = remote_error(*failure(exception, sent))
    assert isinstance(error, MethodNotImplemented)
    assert text in str(error)


def test_other_failures_are_as_they_are() -> None:
    assert failure(c.ExecutionException(404, 1, description="gone"), 0x0804) == (404, "not-found: gone")


def test_a_request_that_the_broker_does_not_have() -> None:
    peer = attached(ClientPeer)
    serial = peer.session.send(o.QueryQueue(1, "q"), 0.0)
    peer.sent()
    first, *_ = peer.receive(0, c.ExecutionException(540, 0))
    assert first == o.Failed(1, serial, serial, 540, "queue.query: not-implemented")
    assert peer.receive(0, c.ExecutionException(540, 0)) == []


def test_a_publish_that_the_broker_does_not_have() -> None:
    peer = attached(ClientPeer)
    publish = o.Publish(1, "", "q", Message(b"x"))
    serial = peer.session.send(publish, 0.0)
    peer.sent()
    first, *_ = peer.receive(0, c.ExecutionException(540, 0))
    assert first == o.Failed(1, serial, serial, 540, "message.transfer: not-implemented")
