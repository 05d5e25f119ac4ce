"""Every published weakness of an AMQP parser that we know of, as a test that carries its name.

``docs/explanation/hostile-bytes.md`` has the table. Sessions are tested without I/O, brought into a state by a tape of
:mod:`tests.fuzz.states`; what is about sockets, allocation and the life of a broker has the embedded broker or a
:class:`~gateway.link.Link` on real ones.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterable

from gateway.amqp import operations as o
from gateway.amqp.message import Message
from gateway.limits import DEFAULT_LIMITS, Limits
from gateway.session import Role, Session, Version
from gateway.v010.version import V0_10
from gateway.versions import PROTOCOLS
from tests.fuzz.oracle import says_close
from tests.fuzz.states import NOW, bring, make, tape

CLASSIC = tuple(protocol.version for protocol in PROTOCOLS if protocol.is_classic)
ROLES = tuple(Role)


class Victim:
    """A session in a state, and what hostile octets do to it."""

    def __init__(self, version: Version, role: Role, state: str, limits: Limits = DEFAULT_LIMITS) -> None:
        self.version, self.role = version, role
        steps = tape(version, role, state, limits)
        self.session: Session = make(version, role, limits)
        bring(self.session, steps)
        self.session.data_to_send()
        self.said = b""
        self.events: list[o.Operation] = []
        self.peak = 0
        """Octets of memory that the last :meth:`hear` took at most, beside what came."""

    def hear(self, *chunks: bytes) -> list[o.Operation]:
        """Octets come; what the session returns."""
        events: list[o.Operation] = []
        tracemalloc.start()
        try:
            for chunk in chunks:
                events += self.session.receive_data(chunk, NOW)
            self.peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        self.said += b"".join(self.session.data_to_send())
        self.events += events
        return events

    @property
    def closed(self) -> o.Closed | None:
        """How it ended, or will when the peer has read why; None: it goes on."""
        found = [event for event in self.events if isinstance(event, o.Closed)]
        if not found and says_close(self.version, self.said):
            self.events += self.session.handle_timeout(NOW + 1_000)
            found = [event for event in self.events if isinstance(event, o.Closed)]
        assert len(found) <= 1
        return found[0] if found else None

    def refused(self, text: str = "", code: int | None = None) -> o.Closed:
        """It has ended over what came, and said so."""
        closed = self.closed
        assert closed is not None, "it goes on"
        assert closed.reason is o.CloseReason.SYNTAX, closed
        assert says_close(self.version, self.said)
        assert text in closed.text, closed
        if code is not None and self.version is not V0_10:
            assert closed.code == code, closed
        return closed

    def goes_on(self) -> None:
        """It is open and answers."""
        assert self.closed is None, self.closed
        assert not self.session.closed

    def messages(self) -> list[Message]:
        """Of the publishes or deliveries that came."""
        return [event.message for event in self.events if isinstance(event, o.Publish | o.Deliver | o.Got)]


# ---------------------------------------------------------------------------------------------- octets of ours


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """A frame of 0-8 and 0-9-1."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(class_id: int, method_id: int, arguments: bytes = b"", channel: int = 1) -> bytes:
    """A method frame."""
    return frame(1, channel, struct.pack(">HH", class_id, method_id) + arguments)


def short(text: bytes) -> bytes:
    """A short string."""
    return bytes((len(text),)) + text


def long(octets: bytes) -> bytes:
    """A long string, and any table."""
    return struct.pack(">I", len(octets)) + octets


def nested_tables(depth: int) -> bytes:
    """A table within a table, ``depth`` deep, with its length."""
    table = b"\x00\x00\x00\x00"
    for _ in range(depth - 1):
        table = long(b"\x01aF" + table)
    return table


def nested_arrays(depth: int) -> bytes:
    """A table that holds an array within an array, ``depth`` deep altogether."""
    array = b"\x00\x00\x00\x00"
    for _ in range(depth - 2):
        array = long(b"A" + array)
    return long(b"\x01aA" + array)


def content(role: Role, body_size: int, properties: bytes = b"\x00\x00", channel: int | None = None) -> bytes:
    """A method that announces content (of the peer of ``role``), and its header."""
    if role is Role.SERVER:
        channel = 1 if channel is None else channel
        announced = method(60, 40, b"\x00\x00" + short(b"amq.direct") + short(b"k") + b"\x00", channel)
    else:
        channel = 2 if channel is None else channel
        announced = method(60, 60, short(b"tag") + struct.pack(">QB", 1_000, 0) + short(b"e") + short(b"k"), channel)
    return announced + frame(2, channel, struct.pack(">HHQ", 60, 0, body_size) + properties)


def channel_of(role: Role) -> int:
    """The channel on which :func:`content` comes."""
    return 1 if role is Role.SERVER else 2


def frame010(
    payload: bytes,
    kind: int = 1,
    track: int | None = None,
    channel: int = 0,
    flags: int = 0x0F,
    size: int | None = None,
) -> bytes:
    """A frame of 0-10."""
    length = len(payload) + 12 if size is None else size
    return (
        struct.pack(">BBHBBHI", flags, kind, length, 0, min(kind, 1) if track is None else track, channel, 0) + payload
    )


def control(class_code: int, code: int, flags: int = 0, fields: bytes = b"", channel: int = 0) -> bytes:
    """A control in one frame; ``flags`` are its presence bits, the first field being the highest of the first octet's
    lowest bit, as packed."""
    return frame010(bytes((class_code, code)) + flags.to_bytes(2, "big") + fields, 0, 0, channel)


def command(class_code: int, code: int, flags: int = 0, fields: bytes = b"", channel: int = 0) -> bytes:
    """A command without content in one frame."""
    return frame010(bytes((class_code, code, 1, 0)) + flags.to_bytes(2, "big") + fields, 1, 1, channel)


def transfer(role: Role, header: bytes, body: bytes | Iterable[bytes] = b"x", channel: int | None = None) -> bytes:
    """message.transfer with a header and a body segment, the body in as many frames as there are pieces."""
    channel = (0 if role is Role.SERVER else 1) if channel is None else channel
    destination = b"amq.direct" if role is Role.SERVER else b"tag"
    head = frame010(b"\x04\x01\x01\x00\x01\x00" + short(destination), 1, 1, channel, 0x0B)
    pieces = [body] if isinstance(body, bytes) else list(body)
    frames = [head, frame010(header, 2, 1, channel, 0x03)]
    for index, piece in enumerate(pieces):
        flags = 0x04 | (0x02 if index == 0 else 0) | (0x01 if index == len(pieces) - 1 else 0)
        frames.append(frame010(piece, 3, 1, channel, flags))
    return b"".join(frames)


def headers010(map_octets: bytes) -> bytes:
    """A header segment whose message-properties hold only application-headers."""
    fields = b"\x04\x03\x00\x01" + map_octets
    return long(fields)


def map010(count: int, entries: bytes) -> bytes:
    """A map that says it has ``count`` entries."""
    return long(count.to_bytes(4, "big") + entries)


def nested_maps(depth: int) -> bytes:
    """A map within a map, ``depth`` deep."""
    octets = map010(0, b"")
    for _ in range(depth - 1):
        octets = map010(1, b"\x01a\xa8" + octets)
    return octets
