"""The server's handshake, and the sessions of its connection."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.amqp import operations as o
from gateway.amqp.operations import Closed, CloseReason
from gateway.errors import StateError
from gateway.limits import Limits
from gateway.session import Role
from gateway.v010 import commands as c
from gateway.v010 import controls as k
from gateway.v010.frames import PROTOCOL_HEADER
from gateway.v010.version import V0_10
from tests.pair import SERVER
from tests.v010.peer import NOW, ServerPeer


def test_the_handshake() -> None:
    peer = ServerPeer(replace(SERVER, properties={"product": "ours"}))
    peer.octets(PROTOCOL_HEADER)
    assert peer.sent() == [PROTOCOL_HEADER, (0, k.ConnectionStart({"product": "ours"}, ("PLAIN",), ("en_US",)))]
    peer.receive(0, k.ConnectionStartOk({"x": 1}, "PLAIN", b"\x00guest\x00guest"))
    assert peer.sent() == [(0, k.ConnectionTune(2047, 65535, 0, 60))]
    events = peer.receive(0, k.ConnectionTuneOk(5, 5000, 7), k.ConnectionOpen(""))
    assert events == [o.Opened(0, "guest", "")]
    assert peer.sent() == [(0, k.ConnectionOpenOk())]
    capabilities = peer.session.capabilities
    assert (capabilities.channel_max, capabilities.frame_max, capabilities.heartbeat) == (5, 5000, 7)
    assert (peer.session.version, peer.session.role) == (V0_10, Role.SERVER)


def test_absent_is_no_limit() -> None:
    peer = ServerPeer().opened(k.ConnectionTuneOk())
    capabilities = peer.session.capabilities
    assert (capabilities.channel_max, capabilities.frame_max, capabilities.heartbeat) == (2047, 65535, 0)


@pytest.mark.parametrize(
    "tune_ok", [k.ConnectionTuneOk(1, 4095), k.ConnectionTuneOk(1, 5001), k.ConnectionTuneOk(2048, 5000)]
)
def test_what_was_not_offered(tune_ok: k.ConnectionTuneOk) -> None:
    peer = ServerPeer(limits=Limits(frame_max=5000)).tuned()
    peer.sent()
    assert peer.receive(0, tune_ok) == []
    ((_, close),) = peer.sent()
    assert isinstance(close, k.ConnectionClose)
    assert close.reply_code == 501


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [("PLAIN", b"\x00guest\x00wrong"), ("PLAIN", b"nonsense"), ("EXTERNAL", b""), ("", b"")],
)
def test_a_refused_login(mechanism: str, response: bytes) -> None:
    peer = ServerPeer()
    peer.octets(PROTOCOL_HEADER)
    peer.sent()
    assert peer.receive(0, k.ConnectionStartOk(None, mechanism, response)) == []
    assert peer.sent() == [(0, k.ConnectionClose(320, "Authentication failed"))]
    assert not peer.session.closed
    (event,) = peer.receive(0, k.ConnectionCloseOk())
    assert isinstance(event, Closed)
    assert event.reason is CloseReason.AUTHENTICATION


def test_a_refused_virtual_host() -> None:
    peer = ServerPeer().tuned()
    peer.sent()
    peer.receive(0, k.ConnectionTuneOk(1), k.ConnectionOpen("elsewhere"))
    assert peer.sent() == [(0, k.ConnectionClose(402, "Unknown virtual host 'elsewhere'"))]
    (event,) = peer.session.receive_eof(NOW)
    assert event.reason is CloseReason.AUTHENTICATION


def test_attach() -> None:
    peer = ServerPeer().opened()
    assert peer.receive(3, k.SessionAttach(b"s")) == [o.OpenChannel(4, serial=1)]
    assert peer.sent() == []
    peer.session.send(o.Done(4, 1, 1), NOW)
    assert peer.sent() == [(3, k.SessionAttached(b"s")), (3, k.SessionCommandPoint(0, 0))]


def test_attach_again() -> None:
    peer = ServerPeer(limits=Limits(channel_max=2)).opened(k.ConnectionTuneOk(2)).attach(0, b"a").attach(1, b"b")
    assert peer.receive(5, k.SessionAttach(b"a")) == []
    assert peer.sent() == [(5, k.SessionDetached(b"a", 1))]
    assert peer.receive(5, k.SessionAttach(b"c")) == []
    assert peer.sent() == [(5, k.SessionDetached(b"c", 2))]
    assert peer.receive(0, k.SessionAttach(b"d")) == []
    assert peer.sent() == [(0, k.SessionDetached(b"d", 2))]


@pytest.mark.parametrize(
    "what",
    [
        k.SessionGap(((0, 5),)),
        k.SessionFlush(completed=True),
        k.SessionCompleted(),
        c.QueueQuery("q"),
        (c.MessageTransfer("x"), b"", b"b"),
    ],
    ids=lambda what: getattr(what, "spelled", "transfer"),
)
def test_what_comes_before_attach(what: Any) -> None:
    peer = ServerPeer().opened()
    assert peer.receive(7, what) == []
    assert peer.sent() == [(7, k.SessionDetached(b"", 3))]
    peer.attach(7)


def test_a_name_that_is_too_long() -> None:
    peer = ServerPeer().opened()
    (event,) = peer.receive(0, k.SessionAttach(b"n" * 255))
    assert event == o.OpenChannel(1, serial=1)
    peer.receive(1, k.SessionAttach(b"n" * 256))
    (event,) = peer.receive(0, k.ConnectionCloseOk())
    assert isinstance(event, Closed)
    assert event.text == "a session's name of 256 octets is over 255"


def test_detach_without_a_session() -> None:
    peer = ServerPeer().opened()
    assert peer.receive(0, k.SessionDetach(b"s"), k.SessionDetached(b"s")) == []
    assert peer.sent() == [(0, k.SessionDetached(b"s", 3))]


def test_nothing_is_attached_while_closing() -> None:
    peer = ServerPeer().opened()
    peer.session.send(o.Close(0), NOW)
    peer.sent()
    assert peer.receive(0, k.SessionAttach(b"s"), c.QueueQuery("q")) == []
    assert peer.sent() == []


@pytest.mark.parametrize(("code", "said"), [(200, 200), (530, 320), (320, 320)])
def test_close_codes(code: int, said: int) -> None:
    peer = ServerPeer().opened().attach()
    peer.session.send(o.Close(0, code, "x" * 300), NOW)
    assert peer.sent() == [(0, k.ConnectionClose(said, "x" * 255))]
    assert peer.receive(0, k.ConnectionCloseOk()) == [Closed(0, CloseReason.LOCAL, code, "x" * 300)]


def test_what_may_not_be_sent() -> None:
    peer = ServerPeer()
    for operation in (o.Close(0), o.Done(1, 1, 1)):
        with pytest.raises(StateError):
            peer.session.send(operation, NOW)
    peer.opened()
    with pytest.raises(StateError, match="not for channel 0"):
        peer.session.send(o.Done(0, 1, 1), NOW)


def test_blocked_reaches_every_session() -> None:
    peer = ServerPeer().opened().attach(0, b"a").attach(1, b"b")
    peer.receive(1, c.QueueQuery("q"))
    peer.session.send(o.Failed(2, 2, 2, 403, "no"), NOW)
    peer.sent()
    for _ in range(2):
        assert peer.session.send(o.Blocked(0), NOW) == 0
    assert peer.sent() == [(0, c.MessageSetFlowMode("", c.CREDIT), False), (0, c.MessageStop(""), False)]
    peer.session.send(o.Unblocked(0), NOW)
    assert peer.sent() == [(0, c.MessageFlow("", c.MESSAGES, 0x7FFFFFFF), False)]
