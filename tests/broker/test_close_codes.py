"""What a client does wrong, and the code that it is told: a table for each family of versions.

What breaks the protocol costs the connection; what is only refused costs a channel (0-10: session), and the others
live on (0-9-1 sections 1.2 and 4.2.6 f., 0-10 sections 4.3 and 7.3). Octets are made by hand where a session would
not send them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from gateway.classic import methods as m
from gateway.classic.frames import BASIC, BODY, CONTENT_HEADER, FRAME_HEADER, HEADER, HEARTBEAT, METHOD
from gateway.classic.tables import TableCodec
from gateway.limits import Limits
from gateway.session import Session, Version
from gateway.v010 import commands as c
from gateway.v010 import controls as k
from gateway.v010.assembler import Assembler
from gateway.v010.frames import BODY as BODY10
from gateway.v010.frames import (
    COMMAND,
    CONTROL,
    FIRST_SEGMENT,
    LAST_SEGMENT,
    PROTOCOL_HEADER,
    read_frame,
    write_segment,
)
from gateway.v010.frames import HEADER as HEADER10
from gateway.v010.version import V0_10
from gateway.v08.session import ServerSession as Server08
from gateway.v08.version import V0_8
from gateway.v091.session import ServerSession as Server091
from gateway.v091.version import V0_9_1
from tests.broker.clients import make_broker
from tests.pair import SERVER, server_session
from tests.v010.peer import encode

LIMITS = Limits(channel_max=4, frame_max=4_096, message_max=10_000)
NOW = 1_000.0


class Server:
    """The broker behind one server session that is fed octets."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.broker = make_broker()
        config = replace(
            SERVER,
            limits=LIMITS,
            authenticate=self.broker.authenticate,
            open_virtual_host=self.broker.open_virtual_host,
        )
        self.session: Session = server_session(version, config)
        self.connection = self.broker.connect(self.session, lambda: None)

    def feed(self, octets: bytes) -> bytes:
        """What it answers."""
        self.broker.receive(self.connection, self.session.receive_data(octets, NOW), NOW)
        self.broker.flushed(self.connection)
        return b"".join(self.session.data_to_send())


# ---------------------------------------------------------------------------------------- 0-8 and 0-9-1

CLASSIC = {V0_8: Server08, V0_9_1: Server091}


class Classic:
    """Octets of one classic version."""

    def __init__(self, version: Version) -> None:
        self.dialect = next(iter(CLASSIC[version].dialects.values()))
        self.tables = TableCodec(self.dialect.tags, LIMITS)

    def frame(self, kind: int, channel: int, payload: bytes, end: int = 0xCE) -> bytes:
        return FRAME_HEADER.pack(kind, channel, len(payload)) + payload + bytes([end])

    def method(self, channel: int, method: m.Method) -> bytes:
        return self.frame(METHOD, channel, method.encode(self.tables))

    def header(self, channel: int, size: int, class_id: int = BASIC, properties: bytes = b"\0\0") -> bytes:
        return self.frame(HEADER, channel, CONTENT_HEADER.pack(class_id, 0, size) + properties)

    def body(self, channel: int, octets: bytes) -> bytes:
        return self.frame(BODY, channel, octets)

    def publish(self, channel: int, size: int, *, exchange: str = "", immediate: bool = False) -> bytes:
        return self.method(channel, m.BasicPublish(0, exchange, "q", False, immediate)) + self.header(channel, size)

    def declare(self, channel: int, queue: str = "q", **options: bool) -> bytes:
        flags = {"passive": False, "durable": False, "exclusive": False, "auto_delete": False, "nowait": False}
        return self.method(channel, m.QueueDeclare(0, queue, **{**flags, **options}, arguments={}))

    def consume(self, channel: int, queue: str, tag: str) -> bytes:
        kind: Any = m.BasicConsume08 if self.dialect.bare_consume else m.BasicConsume
        more = () if self.dialect.bare_consume else ({},)
        return self.method(channel, kind(0, queue, tag, False, False, False, False, *more))

    def greeting(self, stop: int = 5, *, channel_max: int = 4, frame_max: int = 4_096, vhost: str = "/") -> bytes:
        """The steps of the handshake, up to ``stop``; the last opens channels 1 and 2."""
        steps = [
            self.dialect.version.header,
            self.method(0, m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest")),
            self.method(0, m.ConnectionTuneOk(channel_max, frame_max, 0)),
            self.method(0, m.ConnectionOpen(vhost)),
            self.method(1, m.ChannelOpen()) + self.method(2, m.ChannelOpen()),
        ]
        return b"".join(steps[:stop])

    def told(self, octets: bytes) -> list[tuple[str, int]]:
        """The closes among the server's frames: what is closed, and the code."""
        found, at = [], 0
        while at < len(octets):
            kind, channel, size = FRAME_HEADER.unpack_from(octets, at)
            payload = octets[at + 7 : at + 7 + size]
            at += size + 8
            if kind != METHOD:
                continue
            (key,) = struct.unpack_from(">I", payload)
            if key == self.dialect.connection_close.key:
                found.append(("connection", int.from_bytes(payload[4:6], "big")))
            elif key == m.ChannelClose.key:
                found.append((f"channel {channel}", int.from_bytes(payload[4:6], "big")))
        return found


Make = Callable[[Classic], bytes]

CLASSIC_ROWS: Mapping[str, tuple[str, int, Make]] = {
    # framing: 501, 502
    "a frame without its end": ("connection", 501, lambda v: v.frame(METHOD, 1, b"\0\x14\0\x0a\0", end=0xCF)),
    "a frame over frame_max": ("connection", 501, lambda v: FRAME_HEADER.pack(METHOD, 1, 4_089)),
    "a frame of 4 GB": ("connection", 501, lambda v: FRAME_HEADER.pack(BODY, 1, 0xFFFFFFFF)),
    "an unknown frame type": ("connection", 501, lambda v: v.frame(9, 1, b"")),
    "a heartbeat on a channel": ("connection", 501, lambda v: v.frame(HEARTBEAT, 1, b"")),
    "a method frame without a method": ("connection", 502, lambda v: v.frame(METHOD, 1, b"\0\x32")),
    "arguments that are cut short": ("connection", 502, lambda v: v.frame(METHOD, 1, b"\0\x32\0\x0a\0\0\x09q")),
    "octets behind the arguments": ("connection", 502, lambda v: v.frame(METHOD, 1, b"\0\x14\0\x14\x01more")),
    "a content header that is cut short": (
        "connection", 502, lambda v: v.publish(1, 0)[:-22] + v.frame(HEADER, 1, b"\0\x3c\0\0"),
    ),
    "an argument table that is none": (
        "connection", 502, lambda v: v.frame(METHOD, 1, v.declare(1)[7:-5] + b"\0\0\0\x03\xff\xff\xff"),
    ),
    # content: 501, 505
    "a body longer than its header says": (
        "connection", 501, lambda v: v.publish(1, 10) + v.body(1, bytes(4_000)) * 250,
    ),
    "a content header of another class": (
        "connection", 501,
        lambda v: v.method(1, m.BasicPublish(0, "", "q", False, False)) + v.header(1, 0, class_id=50),
    ),
    "a content header without a publish": ("connection", 505, lambda v: v.header(1, 5)),
    "a body without a header": ("connection", 505, lambda v: v.body(1, b"x")),
    "a body where the header was due": (
        "connection", 505, lambda v: v.method(1, m.BasicPublish(0, "", "q", False, False)) + v.body(1, b"x"),
    ),
    "a method where a body was due": ("connection", 505, lambda v: v.publish(1, 5) + v.declare(1)),
    "a second header where a body was due": ("connection", 505, lambda v: v.publish(1, 5) + v.header(1, 5)),
    # state: 503, 504
    "a channel's method on channel 0": ("connection", 503, lambda v: v.declare(0)),
    "a channel opened on channel 0": ("connection", 503, lambda v: v.method(0, m.ChannelOpen())),
    "a connection's method on a channel": ("connection", 503, lambda v: v.method(1, m.ConnectionOpen("/"))),
    "a server's method": ("connection", 503, lambda v: v.method(1, m.QueueDeclareOk("q", 0, 0))),
    "open where it is open": ("connection", 503, lambda v: v.method(0, m.ConnectionOpen("/"))),
    "start-ok where it is open": ("connection", 503, lambda v: v.greeting(2)[8:]),
    "a method on a channel that is not open": ("connection", 504, lambda v: v.declare(3)),
    "content on a channel that is not open": ("connection", 504, lambda v: v.body(3, b"x")),
    "a channel opened twice": ("connection", 504, lambda v: v.method(1, m.ChannelOpen())),
    # what there is: 530, 540
    "more channels than were agreed": (
        "connection", 530, lambda v: b"".join(v.method(number, m.ChannelOpen()) for number in (3, 4, 5)),
    ),
    "a consumer tag twice": (
        "connection", 530, lambda v: v.declare(1) + v.consume(1, "q", "t") + v.consume(1, "q", "t"),
    ),
    "an unknown method": ("connection", 540, lambda v: v.frame(METHOD, 1, b"\0\x32\0\x63")),
    "an unknown class": ("connection", 540, lambda v: v.frame(METHOD, 1, b"\x27\x0f\0\x0a")),
    "an unknown type of exchange": (
        "connection", 503,
        lambda v: v.method(1, m.ExchangeDeclare(0, "x", "none", False, False, False, False, False, {})),
    ),
    # a channel's own: 311, 403, 404, 405, 406
    "a body of 2^63 octets": ("channel 1", 311, lambda v: v.publish(1, 1 << 63)),
    "a body over the limit": ("channel 1", 311, lambda v: v.publish(1, 10_001) + v.body(1, bytes(4_000))),
    "a publish to no exchange": ("channel 1", 404, lambda v: v.publish(1, 0, exchange="none")),
    "a queue that is not there": ("channel 1", 404, lambda v: v.declare(1, "none", passive=True)),
    "a name that is reserved": ("channel 1", 403, lambda v: v.declare(1, "amq.mine")),
    "a queue with another durability": ("channel 1", 406, lambda v: v.declare(1) + v.declare(1, durable=True)),
    "an acknowledgement of nothing": ("channel 1", 406, lambda v: v.method(1, m.BasicAck(7, False))),
    "a commit without a transaction": ("channel 1", 406, lambda v: v.method(1, m.TxCommit())),
}  # fmt: skip
"""What a client sends with channels 1 and 2 open -> what is closed, and the code."""


@pytest.fixture(params=CLASSIC, ids=lambda version: version.value)
def version(request: pytest.FixtureRequest) -> Version:
    chosen: Version = request.param
    return chosen


@pytest.mark.parametrize("row", CLASSIC_ROWS)
def test_classic(row: str, version: Version) -> None:
    what, code, make = CLASSIC_ROWS[row]
    classic, server = Classic(version), Server(version)
    assert not classic.told(server.feed(classic.greeting()))
    assert classic.told(server.feed(make(classic))) == [(what, code)]
    if what == "connection":
        assert classic.told(server.feed(classic.declare(2))) == []
        server.broker.receive(server.connection, server.session.receive_eof(NOW), NOW)
        assert not server.broker.connections
    else:
        answer = server.feed(classic.declare(2, "other"))
        assert m.QueueDeclareOk("other", 0, 0).encode(classic.tables) in answer
        closed = classic.method(1, m.ChannelCloseOk()) + classic.method(1, m.ChannelOpen())
        assert server.feed(closed)
        assert m.QueueDeclareOk("more", 0, 0).encode(classic.tables) in server.feed(classic.declare(1, "more"))


def test_immediate_is_not_implemented_by_a_broker_of_0_9_1() -> None:
    for version, told in ((V0_9_1, [("connection", 540)]), (V0_8, [])):
        classic, server = Classic(version), Server(version)
        server.feed(classic.greeting())
        assert classic.told(server.feed(classic.publish(1, 0, immediate=True))) == told


def test_an_exclusive_queue_of_another_client(version: Version) -> None:
    classic, server, other = Classic(version), Server(version), Server(version)
    other.broker = server.broker
    other.connection = server.broker.connect(other.session, lambda: None)
    for each in (server, other):
        each.feed(classic.greeting())
    server.feed(classic.declare(1, exclusive=True))
    assert classic.told(other.feed(classic.declare(1))) == [("channel 1", 405)]


HANDSHAKE_ROWS: Mapping[str, tuple[int, Make]] = {
    "tune-ok before start-ok": (503, lambda v: v.greeting(1) + v.method(0, m.ConnectionTuneOk(1, 4_096, 0))),
    "open before tune-ok": (503, lambda v: v.greeting(2) + v.method(0, m.ConnectionOpen("/"))),
    "a channel before open": (503, lambda v: v.greeting(3) + v.method(1, m.ChannelOpen())),
    "content before open": (504, lambda v: v.greeting(3) + v.header(1, 0)),
    "an unknown mechanism": (503, lambda v: v.greeting(1) + v.method(0, m.ConnectionStartOk({}, "NONE", b""))),
    "a wrong password": (403, lambda v: v.greeting(1) + v.method(0, m.ConnectionStartOk({}, "PLAIN", b"\0guest\0x"))),
    "a channel_max over ours": (530, lambda v: v.greeting(3, channel_max=5)),
    "a frame_max over ours": (530, lambda v: v.greeting(3, frame_max=4_097)),
    "a frame_max that is too small": (530, lambda v: v.greeting(3, frame_max=4_095)),
    "an unknown virtual host": (530, lambda v: v.greeting(4, vhost="none")),
}


@pytest.mark.parametrize("row", HANDSHAKE_ROWS)
def test_classic_handshake(row: str, version: Version) -> None:
    code, make = HANDSHAKE_ROWS[row]
    classic, server = Classic(version), Server(version)
    assert classic.told(server.feed(make(classic))) == [("connection", code)]


def test_what_was_agreed_counts(version: Version) -> None:
    classic, server = Classic(version), Server(version)
    server.feed(classic.greeting(channel_max=2))
    assert classic.told(server.feed(classic.method(3, m.ChannelOpen()))) == [("connection", 530)]


# ------------------------------------------------------------------------------------------------- 0-10


def ten(wire: int, *what: Any) -> bytes:
    return b"".join(encode(wire, each) for each in what)


def greeting10(stop: int = 5, **tune: int) -> bytes:
    """The steps of the handshake; the last attaches sessions to channels 0 and 1."""
    tuned = {"channel_max": 4, "max_frame_size": 4_096, "heartbeat": 0, **tune}
    return b"".join(
        [
            PROTOCOL_HEADER,
            ten(0, k.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US")),
            ten(0, k.ConnectionTuneOk(**tuned)),
            ten(0, k.ConnectionOpen("/")),
            ten(0, k.SessionAttach(b"a")) + ten(1, k.SessionAttach(b"b")),
        ][:stop]
    )


def told10(octets: bytes) -> list[tuple[str, int]]:
    """The closes, exceptions and refused attaches among the server's frames."""
    found: list[tuple[str, int]] = []
    assembler = Assembler(Limits())
    at = 8 if octets.startswith(b"AMQP") else 0
    while (read := read_frame(octets, at, 65_535)) is not None:
        (flags, kind, track, wire, payload), at = read
        segment = assembler.feed(flags, kind, track, wire, payload)
        if not isinstance(segment, bytes):
            continue
        if track == CONTROL:
            control = k.decode_control(segment, Limits())
            if isinstance(control, k.ConnectionClose):
                found.append(("connection", control.reply_code))
            elif isinstance(control, k.SessionDetached):
                found.append((f"detached {wire}", control.code_))
        else:
            command, _ = c.decode_command(segment)
            if isinstance(command, c.ExecutionException):
                found.append((f"session {wire}", command.error_code))
    return found


def declare10(queue: str = "q", **options: Any) -> c.QueueDeclare:
    return c.QueueDeclare(queue, **options)


def raw10(flags: int, kind: int, size: int, track: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BBHBBHI", flags, kind, size, 0, track, channel, 0) + payload


def message10(size: int, mode: int, exchange: str = "") -> bytes:
    """A publish in frames of the size that was agreed."""
    pieces = [
        (c.MessageTransfer(exchange, mode).encode(), COMMAND, FIRST_SEGMENT),
        (b"", HEADER10, 0),
        (bytes(size), BODY10, LAST_SEGMENT),
    ]
    return b"".join(
        frame for octets, kind, flags in pieces for frame in write_segment(octets, kind, COMMAND, 0, 4_096, flags)
    )


TEN_ROWS: Mapping[str, tuple[str, int, bytes]] = {
    # framing-error
    "a frame smaller than its header": ("connection", 501, raw10(0x0F, 1, 11, 1, 0, b"")),
    "a frame over max-frame-size": ("connection", 501, raw10(0x0F, 1, 4_097, 1, 0, b"")),
    "a frame of another version": ("connection", 501, raw10(0x4F, 1, 14, 1, 0, b"\x01\x01")),
    "an unknown segment type": ("connection", 501, raw10(0x0F, 4, 14, 1, 0, b"\x01\x01")),
    "an unknown track": ("connection", 501, raw10(0x0F, 1, 14, 5, 0, b"\x01\x01")),
    "a body first": ("connection", 501, raw10(0x0F, 3, 14, 1, 0, b"\x01\x01")),
    "a segment that begins in the middle": ("connection", 501, raw10(0x0D, 1, 14, 1, 0, b"\x01\x01")),
    "a command where a body was due": (
        "connection", 501, encode(0, (c.MessageTransfer(""), b"", b""))[:-12] + ten(0, c.ExecutionSync()),
    ),
    "an unknown control": ("connection", 501, raw10(0x0F, 0, 16, 0, 0, b"\x01\x63\0\0")),
    "a control that is cut short": ("connection", 501, raw10(0x0F, 0, 16, 0, 0, b"\x02\x01\x01\x00")),
    "open where it is open": ("connection", 501, ten(0, k.ConnectionOpen("/"))),
    "close-ok without a close": ("connection", 501, ten(0, k.ConnectionCloseOk())),
    # not-attached, session-busy, transport-busy
    "a command on a channel without a session": ("detached 3", 3, ten(3, c.ExecutionSync())),
    "a detach on a channel without a session": ("detached 3", 3, ten(3, k.SessionDetach(b"x"))),
    "a name that is attached": ("detached 3", 1, ten(3, k.SessionAttach(b"a"))),
    "a channel that has a session": ("detached 0", 2, ten(0, k.SessionAttach(b"c"))),
    "more sessions than were agreed": (
        "detached 4", 2, b"".join(ten(wire, k.SessionAttach(b"%d" % wire)) for wire in (2, 3, 4)),
    ),
    # execution.exception
    "an unknown class": ("session 0", 503, raw10(0x0F, 1, 16, 1, 0, b"\x63\x01\0\0")),
    "an unknown command": ("session 0", 540, raw10(0x0F, 1, 16, 1, 0, b"\x04\x63\0\0")),
    "a destination that is not there": ("session 0", 404, ten(0, c.MessageResume("d", "r"))),
    "a branch before dtx is selected": ("session 0", 409, ten(0, c.DtxRecover())),
    "a branch that is not there": ("session 0", 404, ten(0, c.DtxSelect(), c.DtxPrepare())),
    "a branch that is not one's own": ("session 0", 409, ten(0, c.DtxSelect(), c.DtxEnd())),
    "a branch that is to be joined": ("session 0", 530, ten(0, c.DtxSelect(), c.DtxStart(join=True))),
    "an exchange that is not there": ("session 0", 404, ten(0, c.ExchangeBind("q", "none", "k"))),
    "a subscription that is not there": ("session 0", 404, ten(0, c.MessageStop("none"))),
    "a name that is reserved": ("session 0", 403, ten(0, declare10("amq.mine"))),
    "a queue with another durability": ("session 0", 406, ten(0, declare10(), declare10(durable=True))),
    "an unknown argument": ("session 0", 406, ten(0, declare10(arguments={"none": 1}))),
    "a commit without a transaction": ("session 0", 409, ten(0, c.TxCommit())),
    "a subscription twice": (
        "session 0", 530, ten(0, declare10(), c.MessageSubscribe("q", "d"), c.MessageSubscribe("q", "d")),
    ),
    "an unknown type of exchange": ("session 0", 503, ten(0, c.ExchangeDeclare("x", "none"))),
    "a message over the limit": ("session 0", 506, message10(10_001, c.NONE)),
    "a message to an exchange that is not there": ("session 0", 404, message10(1, c.EXPLICIT, "none")),
}  # fmt: skip
"""What a client sends with sessions on channels 0 and 1 -> what is closed, and the code."""


@pytest.mark.parametrize("row", TEN_ROWS)
def test_0_10(row: str) -> None:
    what, code, octets = TEN_ROWS[row]
    server = Server(V0_10)
    assert not told10(server.feed(greeting10()))
    assert told10(server.feed(octets)) == [(what, code)]
    if what == "connection":
        assert server.feed(ten(1, declare10("other"))) == b""
        server.broker.receive(server.connection, server.session.receive_eof(NOW), NOW)
        assert not server.broker.connections
    else:
        server.feed(ten(1, declare10("other")))
        assert "other" in server.connection.vhost.queues


HANDSHAKE10_ROWS: Mapping[str, tuple[int, bytes]] = {
    "tune-ok before start-ok": (501, greeting10(1) + ten(0, k.ConnectionTuneOk(4, 4_096, 0))),
    "open before tune-ok": (501, greeting10(2) + ten(0, k.ConnectionOpen("/"))),
    "a session before open": (501, greeting10(3) + ten(0, k.SessionAttach(b"a"))),
    "an unknown mechanism": (320, greeting10(1) + ten(0, k.ConnectionStartOk({}, "NONE", b"", "en_US"))),
    "a wrong password": (320, greeting10(1) + ten(0, k.ConnectionStartOk({}, "PLAIN", b"\0guest\0x", "en_US"))),
    "a channel-max over ours": (501, greeting10(3, channel_max=5)),
    "a max-frame-size over ours": (501, greeting10(3, max_frame_size=4_097)),
    "a max-frame-size that is too small": (501, greeting10(3, max_frame_size=4_095)),
    "an unknown virtual host": (402, greeting10(3) + ten(0, k.ConnectionOpen("none"))),
}


@pytest.mark.parametrize("row", HANDSHAKE10_ROWS)
def test_0_10_handshake(row: str) -> None:
    code, octets = HANDSHAKE10_ROWS[row]
    assert told10(Server(V0_10).feed(octets)) == [("connection", code)]


def test_what_was_agreed_counts_in_0_10() -> None:
    server = Server(V0_10)
    server.feed(greeting10(channel_max=2))
    assert told10(server.feed(ten(3, k.SessionAttach(b"c")))) == [("detached 3", 2)]


def test_a_message_over_the_limit_is_rejected_where_that_can_be_said() -> None:
    """message.reject; the session lives on, and so it does beneath a body that never ends."""
    server = Server(V0_10)
    server.feed(greeting10())
    answer = server.feed(message10(10_001, c.EXPLICIT))
    assert not told10(answer)
    assert c.MessageReject(((0, 0),), 0, "a message of 10001 octets is over the limit of 10000").encode() in answer
    endless = message10(3_000, c.EXPLICIT)[:-3_012]
    piece = raw10(0x04, 3, 4_012, 1, 0, bytes(4_000))
    server.feed(endless + raw10(0x06, 3, 4_012, 1, 0, bytes(4_000)))
    for _ in range(100):
        server.feed(piece * 10)
        assert server.session.unfinished < 20_000
    server.feed(ten(1, declare10("other")))
    assert "other" in server.connection.vhost.queues


def test_sessions_come_and_go_and_come_again() -> None:
    """Attached, detached and attached under the same name, behind each other and without a pause."""
    server = Server(V0_10)
    server.feed(greeting10())
    storm = ten(2, k.SessionAttach(b"s"), declare10("q"), k.SessionDetach(b"s")) * 500
    assert ("detached 2", 0) in told10(server.feed(storm))
    assert len(server.connection.channels) == 2
    assert server.broker.channels == 2
