"""The connection, for both roles: header, order of the handshake, close, heartbeats, deadlines, broken frames."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.amqp.message import Message
from gateway.amqp.operations import Close, Closed, CloseReason, Opened, Publish
from gateway.limits import Limits
from gateway.session import Role
from gateway.v010 import commands as c
from gateway.v010 import controls as k
from gateway.v010.connection import Phase
from gateway.v010.frames import COMMAND, CONTROL, FRAME_MAX, PROTOCOL_HEADER, WHOLE, pack_head, write_segment
from gateway.v010.version import V0_10
from tests.pair import SessionPair
from tests.v010.peer import NOW, ClientPeer, Peer, ServerPeer, encode

PEERS = [ClientPeer, ServerPeer]


def opened(kind: Any) -> Peer:
    peer: Peer = kind().opened()
    peer.attach(1 if kind is ClientPeer else 0)  # type: ignore[attr-defined]
    return peer


def closed(events: list[Any]) -> Closed:
    (event,) = events
    assert isinstance(event, Closed)
    return event


# ---------------------------------------------------------------------------------------------- the header


@pytest.mark.parametrize("kind", PEERS)
def test_the_header_octet_by_octet(kind: Any) -> None:
    peer = kind()
    for octet in PROTOCOL_HEADER:
        assert peer.session.phase is Phase.HEADER
        assert peer.octets(bytes((octet,))) == []
    assert peer.session.phase is Phase.HANDSHAKE


@pytest.mark.parametrize(
    ("answer", "supported"),
    [
        (b"AMQP\x00\x00\x09\x01", "0-9-1"),
        (b"AMQP\x01\x01\x08\x00more", "0-8"),
        (b"AMQP\x00\x01\x00\x00", None),
        (b"HTTP/1.1 400", None),
        (b"x", None),
    ],
)
def test_a_server_that_speaks_something_else(answer: bytes, supported: str | None) -> None:
    peer = ClientPeer()
    event = closed(peer.octets(answer))
    assert (event.reason, event.supported) == (CloseReason.PROTOCOL_HEADER, supported)
    assert peer.session.closed


def test_a_client_that_speaks_something_else() -> None:
    peer = ServerPeer()
    assert closed(peer.octets(b"GET / HTTP/1.1")).reason is CloseReason.PROTOCOL_HEADER
    assert peer.sent() == [PROTOCOL_HEADER]


@pytest.mark.parametrize("kind", PEERS)
def test_a_stream_that_ends(kind: Any) -> None:
    for peer in (kind(), opened(kind)):
        event = closed(peer.session.receive_eof(NOW))
        assert event.reason is CloseReason.EOF
        assert peer.session.closed
        assert peer.session.receive_eof(NOW) == []
        assert peer.session.receive_data(b"late", NOW) == []
        assert peer.session.handle_timeout(NOW) == []
        assert peer.session.next_timeout() is None


# ------------------------------------------------------------------------------------------ out of order


@pytest.mark.parametrize("kind", PEERS)
@pytest.mark.parametrize(
    "control",
    [
        k.ConnectionStart(),
        k.ConnectionStartOk(),
        k.ConnectionSecure(),
        k.ConnectionSecureOk(),
        k.ConnectionTune(),
        k.ConnectionTuneOk(),
        k.ConnectionOpen(),
        k.ConnectionOpenOk(),
        k.ConnectionRedirect(),
        k.ConnectionCloseOk(),
    ],
    ids=lambda control: control.spelled,
)
def test_a_control_at_the_wrong_time(kind: Any, control: k.Control) -> None:
    peer = opened(kind)
    peer.sent()
    events = peer.receive(0, control)
    assert peer.sent() == [(0, k.ConnectionClose(501, AnyText()))]
    if kind is ServerPeer:
        assert events == []
        events = peer.receive(0, k.ConnectionCloseOk())
    assert closed(events).reason is CloseReason.SYNTAX
    assert peer.session.closed


class AnyText(str):
    """Equal to any text but an empty one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and bool(other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("kind", PEERS)
def test_a_session_before_the_connection_is_open(kind: Any) -> None:
    peer = kind()
    peer.octets(PROTOCOL_HEADER)
    peer.sent()
    peer.receive(0, k.SessionAttach(b"s"))
    assert peer.sent() == [(0, k.ConnectionClose(501, AnyText()))]


# --------------------------------------------------------------------------------------------- the close


@pytest.mark.parametrize("kind", PEERS)
def test_a_close_of_ours(kind: Any) -> None:
    peer = opened(kind)
    peer.session.send(Close(0, 320, "enough"), NOW)
    assert peer.sent() == [(0, k.ConnectionClose(320, "enough"))]
    assert not peer.session.closed
    assert peer.receive(0, k.SessionCompleted(((0, 1),)), c.QueueQuery("late"), k.ConnectionHeartbeat()) == []
    assert peer.receive(0, k.ConnectionTune()) == []
    assert peer.receive(0, k.ConnectionCloseOk()) == [Closed(0, CloseReason.LOCAL, 320, "enough")]
    assert peer.session.closed


@pytest.mark.parametrize("kind", PEERS)
def test_a_close_of_the_peer(kind: Any) -> None:
    peer = opened(kind)
    assert peer.receive(0, k.ConnectionClose(320, "shutting down")) == [
        Closed(0, CloseReason.PEER, 320, "shutting down")
    ]
    assert peer.sent() == [(0, k.ConnectionCloseOk())]
    assert peer.session.closed


@pytest.mark.parametrize("kind", PEERS)
def test_closes_that_cross(kind: Any) -> None:
    peer = opened(kind)
    peer.session.send(Close(0), NOW)
    assert closed(peer.receive(0, k.ConnectionClose(320, "me too"))).reason is CloseReason.LOCAL


@pytest.mark.parametrize("kind", PEERS)
def test_a_close_that_is_not_answered(kind: Any) -> None:
    peer = opened(kind)
    peer.session.send(Close(0), NOW)
    peer.sent()
    assert peer.session.next_timeout() == NOW + Limits().close_timeout
    assert peer.session.handle_timeout(NOW + 4.9) == []
    assert closed(peer.session.handle_timeout(NOW + 5)).reason is CloseReason.LOCAL


@pytest.mark.parametrize("kind", PEERS)
def test_nonsense_instead_of_close_ok(kind: Any) -> None:
    peer = opened(kind)
    peer.session.send(Close(0), NOW)
    assert closed(peer.octets(b"\xff" * 12)).reason is CloseReason.LOCAL


# -------------------------------------------------------------------------------------------------- time


@pytest.mark.parametrize("kind", PEERS)
def test_a_handshake_that_takes_too_long(kind: Any) -> None:
    peer = kind()
    assert peer.session.next_timeout() == 0.0
    assert peer.session.handle_timeout(NOW) == []
    assert peer.session.next_timeout() == NOW + Limits().handshake_timeout
    event = closed(peer.session.handle_timeout(NOW + 10))
    assert event.reason is CloseReason.TIMEOUT
    assert "protocol header" in event.text


def heartbeats(kind: Any) -> Any:
    if kind is ClientPeer:
        return ClientPeer().opened(tune=k.ConnectionTune(10, 65535, 0, 20))
    return ServerPeer().opened(k.ConnectionTuneOk(10, 65535, 20))


@pytest.mark.parametrize("kind", PEERS)
def test_heartbeats(kind: Any) -> None:
    peer = heartbeats(kind)
    session = peer.session
    assert session.capabilities.heartbeat == 20
    assert session.next_timeout() == NOW + 10
    assert session.handle_timeout(NOW + 9) == []
    assert peer.sent() == []
    assert session.handle_timeout(NOW + 10) == []
    assert peer.sent() == [(0, k.ConnectionHeartbeat())]
    assert session.receive_data(encode(0, k.ConnectionHeartbeat()), NOW + 39) == []
    assert session.handle_timeout(NOW + 78) == []
    assert closed(session.handle_timeout(NOW + 79)).reason is CloseReason.HEARTBEAT


@pytest.mark.parametrize("kind", PEERS)
def test_without_heartbeats_time_does_not_matter(kind: Any) -> None:
    tune = k.ConnectionTune(10, 65535, 0, 0)
    peer: Any = ClientPeer().opened(tune=tune) if kind is ClientPeer else ServerPeer().opened()
    assert peer.session.next_timeout() is None
    assert peer.session.handle_timeout(NOW + 1e6) == []


# ------------------------------------------------------------------------------------------ broken frames


BROKEN = {
    "undersized": pack_head(WHOLE, CONTROL, 11, 0, 0, 0, 0),
    "oversized": pack_head(WHOLE, CONTROL, FRAME_MAX, 0, 0, 0, 0)[:4] + bytes(8),
    "another version": pack_head(0x4F, CONTROL, 12, 0, 0, 0, 0),
    "unknown segment type": pack_head(WHOLE, 9, 12, 0, 0, 0, 0),
    "unknown track": pack_head(WHOLE, COMMAND, 12, 0, 2, 0, 0),
    "empty control": pack_head(WHOLE, CONTROL, 12, 0, 0, 0, 0),
    "empty command": pack_head(WHOLE, COMMAND, 12, 0, 1, 0, 0),
    "unknown control": write_segment(b"\x01\x99\x00\x00", CONTROL, CONTROL, 0, 4096)[0],
    "control with unknown fields": write_segment(b"\x01\x0a\xff\xff", CONTROL, CONTROL, 0, 4096)[0],
    "content behind queue.query": write_segment(c.QueueQuery("q").encode(), COMMAND, COMMAND, 0, 4096, 0x08)[0],
    "content behind a control": write_segment(k.ConnectionHeartbeat().encode(), CONTROL, CONTROL, 0, 4096, 0x08)[0],
    "a body first": write_segment(b"body", 3, COMMAND, 0, 4096, 0x04)[0],
    "a sequence-set with a range that ends first": write_segment(
        b"\x02\x0a\x01\x00\x00\x08\x00\x00\x00\x02\x00\x00\x00\x01", CONTROL, CONTROL, 0, 4096
    )[0],
}


@pytest.mark.parametrize("kind", PEERS)
@pytest.mark.parametrize("octets", BROKEN.values(), ids=BROKEN)
def test_broken_frames(kind: Any, octets: bytes) -> None:
    tune = k.ConnectionTune(10, 65000)
    peer: Any = ClientPeer().opened(tune=tune) if kind is ClientPeer else None
    peer = peer or ServerPeer().opened(k.ConnectionTuneOk(10, 65000))
    peer.attach(1 if kind is ClientPeer else 0)
    events = peer.octets(octets)
    (said,) = peer.sent()
    assert said == (0, k.ConnectionClose(501, AnyText()))
    if kind is ServerPeer:
        events = peer.receive(0, k.ConnectionCloseOk())
    event = closed(events)
    assert (event.reason, event.code) == (CloseReason.SYNTAX, 501)


@pytest.mark.parametrize("kind", PEERS)
def test_a_segment_over_the_limit(kind: Any) -> None:
    limits = Limits(header_max=100)
    peer = kind(limits=limits).opened()
    peer.octets(b"".join(write_segment(bytes(200), CONTROL, CONTROL, 0, 60)))
    assert peer.sent() == [(0, k.ConnectionClose(501, AnyText()))]


@pytest.mark.parametrize("kind", PEERS)
def test_only_the_control_track_of_channel_0_is_there_before_the_connection_is_open(kind: Any) -> None:
    for octets in (encode(1, k.ConnectionHeartbeat()), encode(0, c.ExecutionSync())):
        peer = kind()
        peer.octets(PROTOCOL_HEADER)
        peer.sent()
        peer.octets(octets)
        assert peer.sent() == [(0, k.ConnectionClose(501, AnyText()))]


@pytest.mark.parametrize("kind", PEERS)
def test_a_control_of_the_connection_on_another_channel(kind: Any) -> None:
    peer = opened(kind)
    peer.sent()
    peer.receive(1, k.ConnectionHeartbeat())
    assert peer.sent() == [(0, k.ConnectionClose(501, AnyText()))]


@pytest.mark.parametrize("kind", PEERS)
def test_what_is_held_and_what_waits_can_be_seen(kind: Any) -> None:
    peer = opened(kind)
    peer.sent()
    assert (peer.session.pending, peer.session.unfinished) == (0, 0)
    peer.receive(0, k.SessionRequestTimeout(1))
    assert peer.session.pending == 1
    octets = b"".join(write_segment(bytes(90), 1, 1, 0, 52))
    peer.octets(octets[:52] + octets[52:60])
    assert peer.session.unfinished >= 8


@pytest.mark.parametrize("kind", PEERS)
def test_a_control_in_several_frames(kind: Any) -> None:
    peer = opened(kind)
    octets = b"".join(write_segment(k.ConnectionClose(320, "bye").encode(), CONTROL, CONTROL, 0, 15))
    assert peer.octets(octets) == [Closed(0, CloseReason.PEER, 320, "bye")]


@given(data=st.binary(max_size=300), role=st.sampled_from(list(Role)))
def test_any_octets_end_in_operations(data: bytes, role: Role) -> None:
    kind: Any = ClientPeer if role is Role.CLIENT else ServerPeer
    for peer in (opened(kind), kind()):
        peer.octets(data)
        peer.session.data_to_send()


WELL_FORMED: tuple[Any, ...] = (
    k.SessionGap(((0, 0xFFFF),)),
    k.SessionExpected(((0, 0),)),
    k.SessionConfirmed(((0, 5),)),
    k.SessionCompleted(((0, 0x7FFFFFFF),), True),
    k.SessionKnownCompleted(((0, 0x7FFFFFFF),)),
    k.SessionCommandPoint(77),
    k.SessionFlush(True, True, True),
    k.SessionAttach(b"again"),
    k.SessionAttached(b"s"),
    k.SessionDetach(b"s"),
    k.SessionDetached(b"s", 9),
    k.SessionTimeout(1),
    k.SessionRequestTimeout(1),
    *(command() for command in c.COMMANDS.values()),
    c.MessageAccept(((0, 0x7FFFFFFF),)),
    c.MessageReject(((0xFFFFFFF0, 5),)),
    c.ExecutionResult(0, b"\x08\x01\x00\x00"),
    c.ExecutionException(404, 0),
    (c.MessageTransfer("x", 1), b"", b"body"),
    (c.MessageTransfer("x"), b"\x00", b"body"),
)
PIECES = st.sampled_from([encode(0, what) for what in WELL_FORMED])


@given(st.lists(PIECES, max_size=12), st.sampled_from(PEERS))
def test_any_order_of_what_is_well_formed_ends_in_operations(pieces: list[bytes], kind: Any) -> None:
    peer = opened(kind)
    for piece in pieces:
        peer.octets(piece)
        peer.session.data_to_send()
    whole = opened(kind)
    whole.octets(b"".join(pieces))


@pytest.mark.parametrize("kind", PEERS)
def test_whole_octet_by_octet_and_with_trailing_octets(kind: Any) -> None:
    stream = b"".join(
        encode(0, what)
        for what in (
            k.SessionFlush(completed=True),
            c.MessageAccept(((5, 5),)),
            c.ExecutionSync(),
            k.SessionDetach(b"s"),
        )
    )
    whole, pieces = opened(kind), opened(kind)
    expected = whole.octets(stream + encode(0, k.ConnectionHeartbeat())[:7])
    got = [event for octet in stream for event in pieces.octets(bytes((octet,)))]
    assert got == expected
    assert pieces.sent() == whole.sent()


def test_opened_says_who_and_where() -> None:
    peer = ClientPeer().started()
    peer.receive(0, k.ConnectionTune())
    assert peer.receive(0, k.ConnectionOpenOk()) == [Opened(0, "guest", "/")]


def test_nothing_is_sent_when_there_is_nothing_to_say() -> None:
    peer = opened(ClientPeer)
    peer.sent()
    assert peer.session.data_to_send() == []


@pytest.mark.parametrize("closes", [False, True])
def test_what_waits_and_what_is_unfinished(closes: bool) -> None:
    pair = SessionPair(V0_10).open()
    pair.client.send(Publish(1, "", "q", Message(bytes(300_000))), pair.now)
    assert pair.client.pending > 3
    octets = b"".join(pair.client.data_to_send())
    assert (pair.client.pending, pair.server.unfinished) == (0, 0)
    pair.server.receive_data(octets[:200_000], pair.now)
    assert 199_000 < pair.server.unfinished < 200_000
    if closes:
        pair.server.send(Close(0, 320, "enough"), pair.now)
        assert pair.server.unfinished < FRAME_MAX
    else:
        pair.server.receive_data(octets[200_000:], pair.now)
        assert pair.server.unfinished == 0
