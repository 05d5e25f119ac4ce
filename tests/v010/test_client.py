"""The client's handshake, and the channels of its connection."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.amqp.operations import Close, Closed, CloseReason, OpenChannel, QueryQueue
from gateway.errors import StateError, Unsupported
from gateway.limits import Limits
from gateway.session import Confirms, Role
from gateway.v010 import controls as k
from gateway.v010.client import learn
from gateway.v010.frames import PROTOCOL_HEADER
from gateway.v010.version import V0_10
from tests.pair import CLIENT
from tests.v010.peer import NOW, ClientPeer, encode


def started(peer: ClientPeer) -> k.ConnectionStartOk:
    ((_, start_ok),) = peer.sent()
    assert isinstance(start_ok, k.ConnectionStartOk)
    return start_ok


def test_the_handshake() -> None:
    config = replace(CLIENT, connection_name="me", client_properties={"product": "gw", "capabilities": {}})
    peer = ClientPeer(config).started({"product": "Some Broker", "version": "1.0", "platform": "any"})
    assert started(peer) == k.ConnectionStartOk(
        {"product": "gw", "clientName": "me"}, "PLAIN", b"\x00guest\x00guest", "en_US"
    )
    peer.receive(0, k.ConnectionTune(256, 65535, 10, 120))
    assert peer.sent() == [(0, k.ConnectionTuneOk(256, 65535, 60)), (0, k.ConnectionOpen("", None, True))]
    peer.receive(0, k.ConnectionOpenOk())
    capabilities = peer.session.capabilities
    assert (capabilities.channel_max, capabilities.frame_max, capabilities.heartbeat) == (256, 65535, 60)
    assert (capabilities.product, capabilities.product_version, capabilities.platform) == ("Some Broker", "1.0", "any")
    assert (peer.session.version, peer.session.role) == (V0_10, Role.CLIENT)


@pytest.mark.parametrize(
    ("tune", "limits", "heartbeat", "expected"),
    [
        (k.ConnectionTune(), Limits(), None, (2047, 65535, 60)),
        (k.ConnectionTune(5, 4096, 0, 0), Limits(), None, (5, 4096, 0)),
        (k.ConnectionTune(5, 4096, 30, 40), Limits(), 5, (5, 4096, 30)),
        (k.ConnectionTune(5, 8192), Limits(frame_max=5000), 0, (5, 5000, 0)),
    ],
)
def test_what_is_tuned(tune: Any, limits: Limits, heartbeat: Any, expected: tuple[int, int, int]) -> None:
    peer = ClientPeer(replace(CLIENT, heartbeat=heartbeat), limits).started()
    peer.sent()
    peer.receive(0, tune)
    assert peer.sent()[0] == (0, k.ConnectionTuneOk(*expected))


@pytest.mark.parametrize("frame_max", [0, 12, 4095])
def test_frames_that_are_too_small(frame_max: int) -> None:
    (event,) = ClientPeer().started().receive(0, k.ConnectionTune(1, frame_max))
    assert isinstance(event, Closed)
    assert event.reason is CloseReason.SYNTAX


def test_no_mechanism_in_common() -> None:
    peer = ClientPeer(replace(CLIENT, secure=False))
    peer.sent()
    peer.octets(PROTOCOL_HEADER)
    (event,) = peer.receive(0, k.ConnectionStart(None, ("PLAIN", "EXTERNAL")))
    assert isinstance(event, Closed)
    assert event.reason is CloseReason.AUTHENTICATION
    assert "PLAIN, EXTERNAL" in event.text
    ((_, close),) = peer.sent()
    assert isinstance(close, k.ConnectionClose)


def test_challenges() -> None:
    peer = ClientPeer().started(mechanisms=("CRAM-MD5",))
    assert started(peer).mechanism == "CRAM-MD5"
    peer.receive(0, k.ConnectionSecure(b"<challenge>"))
    ((_, secure_ok),) = peer.sent()
    assert secure_ok.response.startswith(b"guest ")


def test_a_challenge_that_is_wrong() -> None:
    peer = ClientPeer().started(mechanisms=("SCRAM-SHA-256",))
    (event,) = peer.receive(0, k.ConnectionSecure(b"nonsense"))
    assert isinstance(event, Closed)
    assert event.reason is CloseReason.AUTHENTICATION


def test_a_server_that_proves_nothing() -> None:
    peer = ClientPeer().started(mechanisms=("SCRAM-SHA-256",))
    (event,) = peer.receive(0, k.ConnectionTune())
    assert isinstance(event, Closed)
    assert event.reason is CloseReason.AUTHENTICATION


def test_a_name_that_no_mechanism_takes() -> None:
    peer = ClientPeer(replace(CLIENT, user="\x07"))
    peer.sent()
    events = peer.octets(PROTOCOL_HEADER) + peer.receive(0, k.ConnectionStart(None, ("SCRAM-SHA-1",)))
    assert [event.reason for event in events if isinstance(event, Closed)] == [CloseReason.AUTHENTICATION]


def test_a_refused_login() -> None:
    (event,) = ClientPeer().started().receive(0, k.ConnectionClose(320, "Authentication failed"))
    assert event == Closed(0, CloseReason.AUTHENTICATION, 320, "Authentication failed")


def test_hanging_up_on_the_login_says_nothing() -> None:
    for awaits, peer in (("tune", ClientPeer().started()), ("open-ok", ClientPeer().started())):
        if awaits == "open-ok":
            peer.receive(0, k.ConnectionTune())
        (event,) = peer.session.receive_eof(0.0)
        assert event == Closed(0, CloseReason.LOGIN_CUT, 0, f"the stream ended, waiting for {awaits}")


@pytest.mark.parametrize(
    ("code", "reason"), [(402, CloseReason.AUTHENTICATION), (320, CloseReason.PEER)], ids=["unknown", "not active"]
)
def test_a_refused_virtual_host(code: int, reason: CloseReason) -> None:
    peer = ClientPeer().started()
    peer.receive(0, k.ConnectionTune())
    assert peer.receive(0, k.ConnectionClose(code, "no")) == [Closed(0, reason, code, "no")]


def test_what_cannot_be_said_in_the_handshake() -> None:
    peer = ClientPeer(replace(CLIENT, client_properties={"a": object()}))
    (event,) = peer.octets(PROTOCOL_HEADER + encode(0, k.ConnectionStart(None, ("PLAIN",), ("en_US",))))
    assert isinstance(event, Closed)
    assert (event.reason, event.text[:19]) == (CloseReason.AUTHENTICATION, "the value of 'a' do")
    peer = ClientPeer(replace(CLIENT, virtual_host="v" * 256)).started()
    (event,) = peer.receive(0, k.ConnectionTune())
    assert isinstance(event, Closed)
    assert (event.reason, event.text[:40]) == (CloseReason.AUTHENTICATION, "connection.open.virtual_host does not fi")


def test_a_heartbeat_of_less_than_a_second_is_one_of_a_second() -> None:
    peer = ClientPeer(replace(CLIENT, heartbeat=0.2)).started()
    peer.sent()
    peer.receive(0, k.ConnectionTune())
    assert peer.sent()[0][1].heartbeat == 1


def test_a_redirect() -> None:
    peer = ClientPeer().started()
    peer.receive(0, k.ConnectionTune())
    (event,) = peer.receive(0, k.ConnectionRedirect("elsewhere:5672"))
    assert isinstance(event, Closed)
    assert event.reason is CloseReason.PEER
    assert "elsewhere:5672" in event.text


def test_what_may_not_be_sent() -> None:
    peer = ClientPeer()
    for operation in (OpenChannel(1), QueryQueue(1, "q"), Close(0)):
        with pytest.raises(StateError):
            peer.session.send(operation, NOW)
    peer = ClientPeer().opened()
    for operation in (QueryQueue(1, "q"), OpenChannel(0), OpenChannel(257)):
        with pytest.raises(StateError):
            peer.session.send(operation, NOW)
    peer.attach(1)
    with pytest.raises(StateError, match="channel 1 is open"):
        peer.session.send(OpenChannel(1), NOW)


def test_a_session_needs_a_name() -> None:
    peer = ClientPeer(replace(CLIENT, random_octets=None)).opened()
    with pytest.raises(Unsupported, match="random_octets"):
        peer.session.send(OpenChannel(1), NOW)


def test_names_are_never_the_same() -> None:
    peer = ClientPeer().opened()
    names = set()
    for channel in (1, 2, 3):
        peer.session.send(OpenChannel(channel), NOW)
        names.add(peer.sent()[0][1].name)
    assert len(names) == 3


def test_what_still_comes_for_a_session_that_is_gone() -> None:
    peer = ClientPeer().opened()
    assert peer.receive(4, k.SessionDetached(b"s"), k.SessionCompleted(((0, 1),))) == []
    assert peer.sent() == []
    assert peer.receive(4, k.SessionDetach(b"s")) == []
    assert peer.sent() == [(4, k.SessionDetached(b"s"))]


def test_what_is_learned() -> None:
    broker_j = learn({"product": "Apache Qpid Broker-J Core", "version": 9}, ("PLAIN",))
    assert broker_j.confirms is Confirms.COMPLETION
    assert (broker_j.unknown_exchange_reported, broker_j.counts_unacked, broker_j.product_version) == (False, True, "")
    assert broker_j.transient_overtakes
    other = learn({"product": "x", "durable_storage": "false"}, ())
    assert not other.transient_overtakes
    assert (other.unknown_exchange_reported, other.counts_unacked, other.durable_storage) == (True, False, False)
