"""Every limit of :class:`gateway.limits.Limits`: what is just within it is taken, what is one beyond is refused with
value and limit in the text, before memory is spent on it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.amqp import operations as o
from gateway.amqp.message import Message, Properties
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.limits import DEFAULT_LIMITS, LIMIT_NAMES
from gateway.session import Role, Version
from gateway.v010.version import V0_10
from gateway.versions import VERSIONS
from tests.fuzz.states import NOW, make, tape
from tests.hostile import (
    ROLES,
    Victim,
    channel_of,
    content,
    control,
    frame,
    frame010,
    headers010,
    long,
    map010,
    method,
    nested_maps,
    nested_tables,
    short,
    transfer,
)

every = pytest.mark.parametrize(("version", "role"), [(v, r) for v in VERSIONS for r in ROLES])
BOUNDARY: set[str] = set()
"""The limits that have a test here."""


def limit(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """This test goes to the limits of these names, and one beyond."""
    BOUNDARY.update(names)
    return lambda test: test


def taken(victim: Victim) -> list[Message]:
    """What came whole, with headers that can be read."""
    for message in victim.messages():
        _ = message.properties
    return victim.messages()


def with_headers(version: Version, role: Role, headers: bytes) -> bytes:
    """A message with this table or map for headers."""
    if version is V0_10:
        header, channel = headers010(headers), 0 if role is Role.SERVER else 1
        command = transfer(role, b"")[: -12 - 13]
        frames = [
            frame010(header[at : at + 60_000], 2, 1, channel, (0 if at else 0x02) | (at + 60_000 >= len(header)))
            for at in range(0, len(header), 60_000)
        ]
        return command + b"".join(frames) + frame010(b"x", 3, 1, channel, 0x07)
    return content(role, 0, b"\x20\x00" + headers)


@limit("frame_max", "frame_max_floor")
@every
def test_frame_max(version: Version, role: Role) -> None:
    limits = replace(DEFAULT_LIMITS, frame_max=5_000)
    for size in (5_000, 5_001):
        victim = Victim(version, role, "consuming", limits)
        if version is V0_10:
            octets = frame010(b"\xfa\x01\x01\x00".ljust(size - 12, b"\0"), 1)
        else:
            octets = content(role, size - 8) + frame(3, channel_of(role), bytes(size - 8))
        victim.hear(octets)
        if size == 5_000:
            victim.goes_on()
            assert victim.messages() or b"class 250" in victim.said
        else:
            victim.refused("5001")
            victim.refused("5000")
    for offered in (4_096, 4_095):
        victim = Victim(version, role, "started")
        fields = struct.pack(">HH", 9, offered)
        if version is V0_10:
            victim.hear(control(1, 5 if role is Role.CLIENT else 6, 0x0300, fields))
        else:
            victim.hear(method(10, 30 if role is Role.CLIENT else 31, struct.pack(">HIH", 9, offered, 0), 0))
        if offered == 4_096:
            victim.goes_on()
        else:
            victim.refused("4095")
            victim.refused("4096")


@limit("channel_max")
@pytest.mark.parametrize("version", VERSIONS)
def test_channel_max(version: Version) -> None:
    """How many are open at once; their numbers are the client's."""
    limits = replace(DEFAULT_LIMITS, channel_max=5)
    victim = Victim(version, Role.SERVER, "open", limits)
    for number in range(60, 65):
        if version is V0_10:
            victim.hear(control(2, 1, 0x0100, struct.pack(">HH", 2, number), number))
        else:
            victim.hear(method(20, 10, short(b""), number))
    assert [event.channel - (version is V0_10) for event in victim.events] == list(range(60, 65))
    if version is V0_10:  # session.detached with transport-busy
        victim.hear(control(2, 1, 0x0100, b"\x00\x01z", 99))
        assert victim.said.endswith(frame010(b"\x02\x04\x03\x00\x00\x01z\x02", 0, 0, 99))
        victim.goes_on()
    else:
        victim.hear(method(20, 10, short(b""), 99))
        victim.refused("more than 5 channels", 530)


@limit("heartbeat", "handshake_timeout", "close_timeout")
@every
def test_times(version: Version, role: Role) -> None:
    limits = replace(DEFAULT_LIMITS, handshake_timeout=3.0, close_timeout=2.0, heartbeat=40.0)
    session = make(version, role, limits)
    assert session.receive_data(b"", NOW) == []
    assert session.handle_timeout(NOW + 2.99) == []
    (closed,) = session.handle_timeout(NOW + 3.0)
    assert isinstance(closed, o.Closed)
    assert closed.reason is o.CloseReason.TIMEOUT
    tape(version, role, "closing", limits)
    victim = Victim(version, role, "closing", limits)
    assert victim.session.handle_timeout(NOW + 1.99) == []
    (closed,) = victim.session.handle_timeout(NOW + 2.0)
    assert isinstance(closed, o.Closed)
    victim = Victim(version, role, "open", limits)
    assert victim.session.capabilities.heartbeat == 40.0
    assert victim.session.handle_timeout(NOW + 79.9) == []
    (closed,) = victim.session.handle_timeout(NOW + 80.0)
    assert isinstance(closed, o.Closed)
    assert closed.reason is o.CloseReason.HEARTBEAT


@limit("message_max")
@every
def test_message_max(version: Version, role: Role) -> None:
    limits = replace(DEFAULT_LIMITS, message_max=9_000)
    for size in (9_000, 9_001):
        victim = Victim(version, role, "consuming", limits)
        if version is V0_10:
            victim.hear(transfer(role, b"", [bytes(size)]))
        else:
            victim.hear(content(role, size), frame(3, channel_of(role), bytes(size)))
        assert [len(message.body) for message in taken(victim)] == ([size] if size == 9_000 else [])
        victim.goes_on()
        if size == 9_001:
            told = repr(victim.events) + repr(victim.said)
            assert "9001" in told
            assert "9000" in told


@limit("header_max")
@every
def test_header_max(version: Version, role: Role) -> None:
    """Over it, a message goes the way of one over ``message_max``."""
    limits = replace(DEFAULT_LIMITS, header_max=3_000)
    for size in (3_000, 3_001):
        victim = Victim(version, role, "consuming", limits)
        if version is V0_10:
            map_size = size - 4 - 4 - 4 - 4
            header = headers010(map010(1, b"\x01a\xa0" + long(b"x" * (map_size - 4 - 3 - 0))))
            header = header if len(header) == size else headers010(map010(1, b"\x01a\xa0" + long(b"x" * (size - 23))))
            assert len(header) == size
            victim.hear(transfer(role, header))
        else:
            properties = b"\x20\x00" + long(b"\x01aS" + long(b"x" * (size - 13)))
            assert len(properties) == size
            victim.hear(content(role, 1, properties) + frame(3, channel_of(role), b"x"))
        assert len(taken(victim)) == (size == 3_000)
        victim.goes_on()
        if size == 3_001:
            told = repr(victim.events) + repr(victim.said)
            assert "3001" in told
            assert "3000" in told


@limit("table_depth", "table_entries", "frame_elements")
@every
@pytest.mark.parametrize("name", ["table_depth", "table_entries", "frame_elements"])
def test_tables(version: Version, role: Role, name: str) -> None:
    # A message of 0-10 is read within the defaults: they are no settings.
    small = replace(DEFAULT_LIMITS, table_depth=5, table_entries=10, frame_elements=30)
    limits = DEFAULT_LIMITS if version is V0_10 else small
    depth, most, values = limits.table_depth, limits.table_entries, limits.frame_elements
    value = b"\xf0" if version is V0_10 else b"V"
    inner = b"\xa8" if version is V0_10 else b"F"

    def table(entries: list[bytes]) -> bytes:
        octets = b"".join(b"%c%x%b" % (len(b"%x" % index), index, entry) for index, entry in enumerate(entries))
        return map010(len(entries), octets) if version is V0_10 else long(octets)

    def tables(count: int) -> bytes:
        """Tables within one, ``count`` values altogether."""
        number = -(-count // (most + 1))
        left, parts = count - number, []
        for _ in range(number):
            parts.append(inner + table([value] * min(left, most)))
            left -= min(left, most)
        return table(parts)

    within, beyond, said = {
        "table_depth": (nested(version, depth), nested(version, depth + 1), "deep"),
        "table_entries": (table([value] * most), table([value] * (most + 1)), f"{most}|{most + 1} entries"),
        "frame_elements": (tables(values), tables(values + 1), f"{values}|too many values"),
    }[name]
    victim = Victim(version, role, "consuming", limits)
    victim.hear(with_headers(version, role, within))
    assert len(taken(victim)) == 1
    victim = Victim(version, role, "consuming", limits)
    victim.hear(with_headers(version, role, beyond))
    with pytest.raises(FrameSyntaxError, match=said):
        taken(victim)
    victim.goes_on()


def nested(version: Version, depth: int) -> bytes:
    return nested_maps(depth) if version is V0_10 else nested_tables(depth)


@limit("short_string")
@every
def test_short_string(version: Version, role: Role) -> None:
    """A length of one octet cannot say more; what we are asked to send can."""
    for size in (255, 256):
        victim = Victim(version, role, "consuming")
        text = "n" * size
        message = Message(b"", Properties(content_type=text))
        operation: o.Operation = o.Publish(1, "amq.direct", "k", message)
        if role is Role.SERVER:
            operation = o.Deliver(2, "tag", 0, False, "e", "k", message)
        if size == 255:
            victim.session.send(operation, NOW)
            continue
        with pytest.raises(EncodeError, match="256 octets"):
            victim.session.send(operation, NOW)


@limit("short_string")
def test_names_of_sessions() -> None:
    victim = Victim(V0_10, Role.SERVER, "open")
    victim.hear(control(2, 1, 0x0100, struct.pack(">H", 255) + bytes(255), 3))
    victim.goes_on()
    victim.hear(control(2, 1, 0x0100, struct.pack(">H", 256) + bytes(256), 4))
    victim.refused("256 octets is over 255")


@limit("spool_max")
@every
def test_spool_max(version: Version, role: Role) -> None:
    """Over all channels: two messages that are not whole. The second is dropped, the first comes."""
    whole = 12_000 + (version is V0_10)  # there the last piece counts, too
    limits = replace(DEFAULT_LIMITS, message_max=10_000, spool_max=whole)
    for size in (6_000, 6_001):
        victim = Victim(version, role, "consuming", limits)
        if version is V0_10:
            channels = (0, 1) if role is Role.SERVER else (1, 0)
            messages = [transfer(role, b"", [bytes(size), b"x"], channel) for channel in channels]
            firsts, lasts = [octets[:-13] for octets in messages], [octets[-13:] for octets in messages]
        else:
            channels = (1, 2) if role is Role.SERVER else (2, 1)
            firsts = [content(role, size + 1, channel=channel) + frame(3, channel, bytes(size)) for channel in channels]
            lasts = [frame(3, channel, b"x") for channel in channels]
        victim.hear(*firsts)
        assert victim.session.unfinished <= whole
        if role is Role.CLIENT and version is V0_10:
            victim.hear(lasts[0])  # on the other channel nothing is subscribed
            assert len(taken(victim)) == 1
            continue
        victim.hear(*lasts)
        assert len(taken(victim)) == (2 if size == 6_000 else 1)
        victim.goes_on()


def test_every_limit_has_a_test() -> None:
    assert set(LIMIT_NAMES) == BOUNDARY
