"""What broke other parsers, by the name under which it was published. See ``docs/explanation/hostile-bytes.md``."""

from __future__ import annotations

import itertools
import struct
import sys
from dataclasses import replace
from typing import Any

import pytest

from gateway.amqp import operations as o
from gateway.amqp.message import Message, Properties
from gateway.classic.methods import ConnectionClose, ConnectionClose08, ConnectionStartOk
from gateway.errors import FrameSyntaxError, LocalError
from gateway.limits import DEFAULT_LIMITS, Limits
from gateway.session import Role, Version
from gateway.v010.controls import CONTROLS
from gateway.v010.version import V0_10
from gateway.v08.version import V0_8
from gateway.versions import VERSIONS
from tests.fuzz.generators import METHODS
from tests.fuzz.states import frame_borders
from tests.hostile import (
    CLASSIC,
    ROLES,
    Victim,
    channel_of,
    command,
    content,
    control,
    frame,
    frame010,
    headers010,
    long,
    map010,
    method,
    nested_arrays,
    nested_maps,
    nested_tables,
    short,
    transfer,
)

every = pytest.mark.parametrize(("version", "role"), [(v, r) for v in VERSIONS for r in ROLES])
classic = pytest.mark.parametrize(("version", "role"), [(v, r) for v in CLASSIC for r in ROLES])
both_roles = pytest.mark.parametrize("role", ROLES)
SMALL = replace(DEFAULT_LIMITS, frame_max=4_096, message_max=10_000, spool_max=20_000, channel_max=16)
KIB = 1_024


def greeting(version: Version, role: Role, properties: bytes, rest: bytes | None = None) -> bytes:
    """What the peer says first, before anybody is authenticated, with these properties (a table or map, length in
    front); ``rest`` is what follows them."""
    if version is V0_10:
        if role is Role.CLIENT:
            return control(1, 1, 0x0100, properties + (rest or b""))
        return control(1, 2, 0x0100 if rest is None else 0x0700, properties + (rest or b""))
    if role is Role.CLIENT:
        major, minor = (8, 0) if version is V0_8 else (0, 9)
        tail = long(b"PLAIN") + long(b"en_US") if rest is None else rest
        return method(10, 10, bytes((major, minor)) + properties + tail, 0)
    tail = short(b"PLAIN") + long(b"\x00guest\x00guest") + short(b"en_US") if rest is None else rest
    return method(10, 11, properties + tail, 0)


EMPTY = {**dict.fromkeys(CLASSIC, long(b"")), V0_10: map010(0, b"")}


@every
@pytest.mark.parametrize("length", [0x7FFFFFFE, 0xFFFFFFFF, 0x80000000])
def test_cve_2026_69219_two_gigabytes_declared_before_authentication(version: Version, role: Role, length: int) -> None:
    """RabbitMQ's Java client allocated what the length said."""
    huge = struct.pack(">I", length) + b"\x00" * 8
    for octets in (greeting(version, role, huge), greeting(version, role, EMPTY[version], short(b"PLAIN") + huge)):
        victim = Victim(version, role, "greeted")
        victim.hear(octets)
        assert len(octets) < 60
        victim.refused()
        assert victim.peak < 64 * KIB


@every
@pytest.mark.parametrize("kind", ["tables", "arrays"])
@pytest.mark.parametrize("depth", [33, 500, 580, 5_000])
def test_cve_2026_69220_nested_tables_before_authentication(
    version: Version, role: Role, depth: int, kind: str
) -> None:
    """A stack overflow in RabbitMQ's Java client, ``RecursionError`` in pamqp, pika, py-amqp and Azure's pyAMQP (PR
    #48802), and in rabbitmq-c before PR #763 (oss-fuzz 56296, 56204)."""
    if version is V0_10:
        octets = nested_maps(depth)
    else:
        octets = nested_tables(depth) if kind == "tables" else nested_arrays(depth)
    victim = Victim(version, role, "greeted")
    victim.hear(greeting(version, role, octets))
    victim.refused("deep")


@every
@pytest.mark.parametrize("depth", [32, 33, 580, 20_000])
def test_cve_2026_69220_nested_tables_in_a_message(version: Version, role: Role, depth: int) -> None:
    """The message comes, and who looks at its headers is told. Depth 32 is fine."""
    victim = Victim(version, role, "consuming")
    if version is V0_10:
        header = headers010(nested_maps(depth))
        pieces = [header[at : at + 60_000] for at in range(0, len(header), 60_000)]
        channel = 0 if role is Role.SERVER else 1
        whole = transfer(role, b"", b"x")
        border = frame_borders(version, whole)
        frames = [
            frame010(piece, 2, 1, channel, (0x02 if index == 0 else 0) | (0x01 if index == len(pieces) - 1 else 0))
            for index, piece in enumerate(pieces)
        ]
        octets = whole[: border[1]] + b"".join(frames) + whole[border[2] :]
    else:
        table = nested_tables(depth) if depth < 1_000 else nested_arrays(20_000)
        octets = content(role, 1, b"\x20\x00" + table) + frame(3, channel_of(role), b"x")
    victim.hear(octets)
    (message,) = victim.messages()
    if depth <= 32:
        assert message.properties.headers
    else:
        with pytest.raises(FrameSyntaxError, match="deep"):
            _ = message.properties
    victim.goes_on()


@every
def test_cve_2026_75516_negotiating_0_and_0_keeps_our_caps(version: Version, role: Role) -> None:
    """``min(limit, frame_max)`` with frame_max 0 switched the cap off."""
    victim = Victim(version, role, "started")
    if version is V0_10:
        octets = control(1, 5) if role is Role.CLIENT else control(1, 6, 0x0100, b"\x00\x00")
    else:
        octets = method(10, 30 if role is Role.CLIENT else 31, bytes(8), 0)
    victim.hear(octets)
    victim.goes_on()
    limit = 65_535 if version is V0_10 else DEFAULT_LIMITS.frame_max
    assert victim.session.capabilities.frame_max == limit
    assert victim.session.capabilities.channel_max == DEFAULT_LIMITS.channel_max
    if version is not V0_10:  # there the size has no more than 16 bits
        victim.hear(struct.pack(">BHI", 1, 0, limit - 7))
        victim.refused("is over 131072", 501)


@every
@pytest.mark.parametrize("kind", [1, 2, 3])
def test_cve_2026_61634_frames_over_the_negotiated_size(version: Version, role: Role, kind: int) -> None:
    """Also CVE-2026-79921 (GHSA-6c5v-hqjr-5xxp), amqp091-go: body frames. Refused at the frame's header."""
    for excess in (0, 1):
        victim = Victim(version, role, "consuming", SMALL)
        if version is V0_10:
            octets = frame010(b"", kind, 1, 0, 0x0B, size=4_096 + excess)
        else:
            octets = struct.pack(">BHI", kind, 1, 4_088 + excess)
        victim.hear(octets)
        if excess:
            victim.refused("4097")
        else:
            victim.goes_on()


@classic
def test_cve_2026_63335_a_body_longer_than_its_header_says(version: Version, role: Role) -> None:
    victim = Victim(version, role, "consuming")
    victim.hear(content(role, 3) + frame(3, channel_of(role), b"four"))
    victim.refused("1 octets past the 3", 501)
    assert victim.messages() == []


TEXTS = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type", "user_id",
    "app_id", "cluster_id",
)  # fmt: skip
BITS = {
    "content_type": 15, "content_encoding": 14, "correlation_id": 10, "reply_to": 9, "expiration": 8, "message_id": 7,
    "type": 5, "user_id": 4, "app_id": 3, "cluster_id": 2,
}  # fmt: skip
BAD = b"\xff\xfe\xc0\xaf\xed\xa0\x80"
"""Not UTF-8 in any way."""


@classic
@pytest.mark.parametrize("name", [*TEXTS, "a header's name", "a header", "exchange", "consumer tag"])
def test_cve_2026_106122_malformed_utf8_does_not_disable_the_connection(
    version: Version, role: Role, name: str
) -> None:
    """RabbitMQ's Java client lost its consumers for good. Here the octets are kept, and the next message comes."""
    victim = Victim(version, role, "consuming")
    properties = b"\x00\x00"
    if name in BITS:
        properties = (1 << BITS[name]).to_bytes(2, "big") + short(BAD)
    elif name == "a header's name":
        properties = b"\x20\x00" + long(short(BAD) + b"t\x01")
    elif name == "a header":
        properties = b"\x20\x00" + long(b"\x01hS" + long(BAD))
    octets = content(role, 1, properties)
    if name == "exchange":
        known = short(b"amq.direct") if role is Role.SERVER else short(b"e")
        octets = octets.replace(known, short((BAD * 2)[: known[0]]), 1)
    elif name == "consumer tag" and role is Role.CLIENT:
        octets = octets.replace(short(b"tag"), short(BAD[:3]), 1)
    body = frame(3, channel_of(role), b"x")
    victim.hear(octets + body)
    (message,) = victim.messages()
    found = message.properties
    if name in BITS:
        assert getattr(found, name).encode("utf-8", "surrogateescape") == BAD
    elif name == "a header's name":
        assert [key.encode("utf-8", "surrogateescape") for key in found.headers or {}] == [BAD]
    victim.hear(content(role, 1).replace(struct.pack(">Q", 1_000), struct.pack(">Q", 1_001)) + body)
    assert len(victim.messages()) == 2
    victim.goes_on()


@both_roles
@pytest.mark.parametrize("name", ["content-type", "content-encoding", "correlation-id", "user-id", "app-id", "header"])
def test_cve_2026_106122_malformed_utf8_in_0_10(role: Role, name: str) -> None:
    flags, wide = {
        "content-type": (0x1000, False), "content-encoding": (0x2000, False), "correlation-id": (0x0400, True),
        "user-id": (0x4000, True), "app-id": (0x8000, True), "header": (0x0001, False),
    }[name]  # fmt: skip
    value = struct.pack(">H", len(BAD)) + BAD if wide else short(BAD)
    if name == "header":
        value = map010(2, short(BAD) + b"\xf0" + b"\x01h\x95" + struct.pack(">H", len(BAD)) + BAD)
    victim = Victim(V0_10, role, "consuming")
    victim.hear(transfer(role, long(b"\x04\x03" + struct.pack(">H", flags) + value)))
    (message,) = victim.messages()
    assert message.properties != Properties()
    victim.hear(transfer(role, b""))
    assert len(victim.messages()) == 2
    victim.goes_on()


@every
def test_cve_2023_46120_messages_over_the_limit(version: Version, role: Role) -> None:
    """RabbitMQ's Java client had no limit. Up to it a message comes, beyond it its body does not, and a client goes
    on: it must settle what the broker holds for it."""
    for size in (SMALL.message_max, SMALL.message_max + 1):
        victim = Victim(version, role, "consuming", SMALL)
        pieces = [bytes(min(4_000, size - at)) for at in range(0, size, 4_000)]
        if version is V0_10:
            octets = transfer(role, b"", pieces)
        else:
            octets = content(role, size) + b"".join(frame(3, channel_of(role), piece) for piece in pieces)
        victim.hear(octets)
        assert victim.closed is None
        if size == SMALL.message_max:
            assert [len(message.body) for message in victim.messages()] == [size]
            continue
        assert victim.messages() == []
        if role is Role.CLIENT:
            (large,) = (event for event in victim.events if isinstance(event, o.DeliveryTooLarge))
            assert (large.size, large.limit) == (size, SMALL.message_max)
            victim.session.send(o.Settle(large.channel, o.Settlement.REJECT, large.delivery, large.delivery), 1_000.0)
        elif version is V0_10:
            assert b"10001 octets is over the limit of 10000" in victim.said
        else:
            (closed,) = (event for event in victim.events if isinstance(event, o.ChannelClosed))
            assert (closed.code, closed.text) == (311, "10001 octets are over the limit of 10000")


@classic
def test_cve_2026_67235_a_gigabyte_behind_a_header_that_says_ten(version: Version, role: Role) -> None:
    """GHSA-q8g2-pc7m-m3jw: RabbitMQ never compared the sum. Here the first octet too many ends it."""
    victim = Victim(version, role, "consuming")
    channel = channel_of(role)
    victim.hear(content(role, 10) + frame(3, channel, bytes(10)))
    assert len(victim.messages()) == 1
    victim.hear(
        content(role, 10).replace(struct.pack(">Q", 1_000), struct.pack(">Q", 1_001)) + frame(3, channel, b"ab")
    )
    victim.hear(*[frame(3, channel, bytes(100_000)) for _ in range(5)])
    victim.refused("octets past the 10 of its header", 501)


@every
def test_cve_2026_67235_a_message_that_never_ends_is_not_held(version: Version, role: Role) -> None:
    victim = Victim(version, role, "consuming")
    if version is V0_10:
        channel = 0 if role is Role.SERVER else 1
        whole = transfer(role, b"", [b"", b"x"])
        victim.hear(whole[: frame_borders(version, whole)[3]])
        piece = frame010(bytes(60_000), 3, 1, channel, 0x04)
    else:
        victim.hear(content(role, 1 << 40))
        piece = frame(3, channel_of(role), bytes(60_000))
    for _ in range(500):  # 30 MB, the limit is 16 MiB
        victim.session.receive_data(piece, 1_000.0)
    victim.hear(*[piece] * 20)
    assert victim.peak < 300 * KIB
    assert victim.session.unfinished < 17 << 20
    victim.goes_on()


ZERO_WIDTH = 65_000


@every
def test_cve_2026_66079_arrays_of_elements_without_width(version: Version, role: Role) -> None:
    """Also CVE-2026-67414; CVE-2012-4458 for 0-10, in the client's properties: an element costs memory and no octet
    (0-10's typed array of void) or one (arrays and lists of void)."""
    if version is V0_10:
        arrays = [
            map010(1, b"\x01a\xaa" + long(b"\xf0" + struct.pack(">I", count))) for count in (1 << 31, 0xFFFFFFFF, 4_097)
        ]
        arrays += [
            map010(1, b"\x01a\xa9" + long(struct.pack(">I", count) + b"\xf0" * ZERO_WIDTH))
            for count in (ZERO_WIDTH, 1 << 31)
        ]
    else:
        arrays = [long(b"\x01aA" + long(b"V" * ZERO_WIDTH))]
        arrays.append(long(b"\x01aA" + long(b"".join(b"A" + long(b"V" * 4_000) for _ in range(17)))))
    for octets in arrays:
        victim = Victim(version, role, "greeted")
        victim.hear(greeting(version, role, octets))
        victim.refused("entries" if version is V0_10 else "of more than")
        assert victim.peak < 3 * len(octets) + 900 * KIB


@both_roles
def test_cve_2012_4458_client_properties_with_a_large_array(role: Role) -> None:
    """Qpid C++ allocated what the count of an array in start-ok said."""
    victim = Victim(V0_10, role, "greeted")
    victim.hear(greeting(V0_10, role, map010(0x40000000, b"\x01a\xf0")))
    victim.refused("1073741824 entries")
    assert victim.peak < 64 * KIB


@every
def test_cve_2026_67238_names_of_peers_are_not_kept(version: Version, role: Role) -> None:
    """Also CVE-2026-66072 and CVE-2026-66073: RabbitMQ made an atom of each, and atoms are for ever. Whatever a module
    keeps is bounded, however many names come."""

    def kept() -> dict[str, int]:
        return {
            f"{name}.{key}": len(value)
            for name, module in list(sys.modules.items())
            if name.startswith("gateway")
            for key, value in list(vars(module).items())
            if isinstance(value, dict | set | list)
        }

    before = kept()
    victim = Victim(version, role, "consuming")
    for index in range(6_000):
        name = b"name-%d" % index
        if version is V0_10:
            names = b"\x04\x01\x00\x03" + short(name) + short(name)
            octets = transfer(role, long(names) + headers010(map010(1, short(name) + b"\xf0")))
            if role is Role.SERVER:
                octets = octets.replace(short(b"amq.direct"), short((name + b"-" * 10)[:10]))
        else:
            octets = content(role, 1, b"\x20\x00" + long(short(name) + b"t\x01")) + frame(3, channel_of(role), b"x")
            tag = struct.pack(">Q", 1_000)
            octets = octets.replace(tag, struct.pack(">Q", 1_000 + index)).replace(short(b"k"), short(b"%06d" % index))
            length = octets.index(b"\xce\x02") - 7
            octets = octets[:3] + struct.pack(">I", length) + octets[7:]
        for event in victim.session.receive_data(octets, 1_000.0):
            _ = event.message.properties  # type: ignore[attr-defined]
    assert not victim.session.closed
    after = kept()
    assert max(after[name] - before.get(name, 0) for name in after) <= 4_096
    shared = getattr(victim.session, "places", getattr(victim.session, "transfers", {}))
    assert len(shared) <= 256


@every
@pytest.mark.parametrize("size", [0xFFFFFFFF, 0xFFFFFFF8, 0xFFFFFFF7, 0x80000000])
def test_cve_2019_18609_frame_sizes_near_the_end_of_32_bits(version: Version, role: Role, size: int) -> None:
    """rabbitmq-c (PR #579) added 8 to it, and it wrapped."""
    victim = Victim(version, role, "consuming")
    if version is V0_10:  # 16 bits; the largest is refused, too, where less was agreed upon
        victim = Victim(version, role, "consuming", SMALL)
        victim.hear(frame010(b"", 1, 1, 0, size=size & 0xFFFF or 0xFFFF))
    else:
        victim.hear(struct.pack(">BHI", 1, 1, size))
    victim.refused()
    assert victim.peak < 16 * KIB


@classic
@pytest.mark.parametrize("kind", [1, 2, 3, 8])
@pytest.mark.parametrize("size", range(12))
def test_cve_2026_44235_undersized_frames(version: Version, role: Role, kind: int, size: int) -> None:
    """GHSA-9mmv-r8g3-qp46, PR #878: rabbitmq-c subtracted the header it expected from the length there was."""
    for state in ("greeted", "consuming", "header", "content"):
        for channel in (0, 1, 2):
            victim = Victim(version, role, state)
            victim.hear(frame(kind, channel, bytes(size)))
            if kind == 8 and not channel and (state != "greeted" or role is Role.SERVER):
                victim.goes_on()
            elif kind != 3 or state != "content":
                assert victim.closed is not None


@both_roles
@pytest.mark.parametrize("size", range(24))
def test_cve_2026_44235_undersized_frames_of_0_10(role: Role, size: int) -> None:
    """Twelve octets are the frame's own."""
    for kind in range(4):
        victim = Victim(V0_10, role, "consuming")
        victim.hear(frame010(bytes(max(size - 12, 0)), kind, size=size))
        if size < 12:
            victim.refused("from 12 to")
        elif kind == 1 and size >= 15:  # class 0, command 0: this costs the session
            assert b"class 0 command 0 does not exist" in victim.said
        else:
            victim.refused()


@every
@pytest.mark.parametrize("frame_max", [0, 1, 7, 8, 11, 12, 255, 2_048, 4_095, 4_096])
def test_cve_2026_44236_frame_max_below_the_floor(version: Version, role: Role, frame_max: int) -> None:
    """GHSA-jh48-qjf5-fx5v, PR #879: rabbitmq-c wrote its login past a buffer of the size that the server asked for. In
    0-8 and 0-9-1, 0 is no limit, and leaves ours."""
    victim = Victim(version, role, "started")
    if version is V0_10:
        fields = struct.pack(">HH", 10, frame_max)
        octets = control(1, 5, 0x0300, fields) if role is Role.CLIENT else control(1, 6, 0x0300, fields)
        fine = frame_max == 4_096 or (frame_max == 0 and role is Role.SERVER)
    else:
        octets = method(10, 30 if role is Role.CLIENT else 31, struct.pack(">HIH", 10, frame_max, 0), 0)
        fine = frame_max in (0, 4_096)
    victim.hear(octets)
    if fine:
        victim.goes_on()
        assert victim.session.capabilities.frame_max >= 4_096
    else:
        victim.refused(str(frame_max))


@every
def test_ghsa_5fp7_memory_does_not_grow_with_channel_numbers(version: Version, role: Role) -> None:
    """GHSA-5fp7-wg2f-hhgp (PR #899): rabbitmq-c kept something for each number it heard. Here a channel that is not
    open costs a close, and in 0-10, where pieces may come ahead of a session, so many pieces and no more."""
    victim = Victim(version, role, "open")
    if version is not V0_10:
        victim.hear(frame(2, 7, struct.pack(">HHQ", 60, 0, 5) + b"\x00\x00"))
        victim.refused("channel 7", 504)
        return
    chunks = [frame010(bytes(100), 0, 0, channel, 0x0E) for channel in range(65_536)]
    victim.hear(*chunks[:6_000])
    victim.refused("unfinished")
    assert victim.peak < 2 << 20
    victim = Victim(version, role, "open")
    victim.hear(frame010(bytes(60_000), 0, 0, 5, 0x0E), *[frame010(bytes(60_000), 0, 0, 5, 0x0C)] * 2)
    victim.hear(*[frame010(bytes(60_000), 1, 1, channel, 0x0E) for channel in range(300)])
    victim.refused("unfinished controls and commands of more than 1048576 octets")
    assert victim.peak < 3 << 20


@both_roles
def test_ghsa_5fp7_nothing_is_kept_before_the_connection_is_open(role: Role) -> None:
    for octets in (frame010(b"x", 0, 0, 1, 0x0E), frame010(b"x", 1, 1, 0, 0x0E), frame010(b"\x02\x01", 0, 0, 0)):
        victim = Victim(V0_10, role, "greeted")
        victim.hear(octets)
        victim.refused()


@every
@pytest.mark.parametrize("kind", [0, 4, 5, 6, 7, 9, 127, 255])
def test_ghsa_5fp7_unknown_frame_types(version: Version, role: Role, kind: int) -> None:
    victim = Victim(version, role, "open")
    if version is V0_10:
        victim.hear(frame010(b"", kind or 4, 0))
    else:
        victim.hear(frame(kind, 0, b""))
    victim.refused("type")


@every
@pytest.mark.parametrize("channel", [1, 2, 0xFFFF])
def test_ghsa_5fp7_heartbeats_on_another_channel(version: Version, role: Role, channel: int) -> None:
    victim = Victim(version, role, "channel")
    victim.hear(control(1, 10, channel=channel) if version is V0_10 else frame(8, channel, b""))
    victim.refused(f"heartbeat on channel {channel}")


@every
@pytest.mark.parametrize("excess", [-20, -13, -12, -11, -1, 0, 1, 8, 4_088, 12_000])
def test_cve_2026_61547_no_frame_of_ours_is_over_frame_max(version: Version, role: Role, excess: int) -> None:
    """GHSA-hfjv-vcp3-39wh (PR #892) and GHSA-jgjf-7fwf-f3c7: rabbitmq-c wrote a body frame larger than agreed, and an
    offset and a length that wrapped."""
    limits = replace(SMALL, message_max=1 << 20)
    victim = Victim(version, role, "consuming", limits)
    message = Message(bytes(4_096 + excess), Properties(headers={"h": "x" * 3_000}))
    if role is Role.CLIENT:
        operation: o.Operation = o.Publish(1, "amq.direct", "k", message)
    else:
        operation = o.Deliver(2, "tag", 0, False, "e", "k", message)
    try:
        victim.session.send(operation, 1_000.0)
    except LocalError:
        return  # refused in words
    octets = b"".join(victim.session.data_to_send())
    borders = frame_borders(version, octets)
    assert borders[-1] == len(octets)
    sizes = [end - start for start, end in itertools.pairwise(borders)]
    assert max(sizes) <= 4_096
    for start, size in zip(borders, sizes, strict=False):
        told = int.from_bytes(octets[start + 2 : start + 4], "big") if version is V0_10 else size
        assert told == size


@both_roles
@pytest.mark.parametrize("code", [0x02, 0x03, 0x04])
def test_cve_2015_0203_a_sequence_set_that_ends_before_it_begins(role: Role, code: int) -> None:
    """Qpid C++ <= 0.30 crashed. Serial numbers wrap, so only half of the circle is a lie."""
    victim = Victim(V0_10, role, "consuming")
    victim.hear(command(4, code, 0x0100, b"\x00\x08" + struct.pack(">II", 5, 4)))
    victim.refused("the range 5 to 4")
    victim = Victim(V0_10, role, "consuming")
    victim.hear(control(2, 10, 0x0100, b"\x00\x08" + struct.pack(">II", 9, 0)))
    victim.refused("the range 9 to 0")


@both_roles
@pytest.mark.parametrize("kind", [2, 3])
def test_cve_2015_0203_content_behind_a_command_that_has_none(role: Role, kind: int) -> None:
    victim = Victim(V0_10, role, "consuming")
    victim.hear(frame010(b"\x03\x01\x01\x00\x00\x00", 1, 1, 0, 0x0B))
    victim.refused("content behind 0301")
    victim = Victim(V0_10, role, "consuming")
    victim.hear(frame010(b"", kind, 1, 0, 0x07))
    victim.refused("at the beginning")


@both_roles
def test_cve_2015_0203_a_gap_in_a_session_that_is_not_attached(role: Role) -> None:
    victim = Victim(V0_10, role, "channel")
    for code in (7, 8, 9, 10, 11, 12, 13):
        victim.hear(control(2, code, 0, channel=33))
    victim.goes_on()
    assert not victim.events
    before = Victim(V0_10, role, "tuned")
    before.hear(control(2, 13, 0x0100, b"\x00\x08" + struct.pack(">II", 0, 9)))
    before.refused("before the connection is open")


@both_roles
def test_gaps_that_leave_holes(role: Role) -> None:
    """Each would be kept until the peer says that it knows, and told again at each flush."""
    victim = Victim(V0_10, role, "channel")
    ranges = [struct.pack(">II", number, number) for number in range(10, 16_000, 2)]
    for at in range(0, len(ranges), 500):
        chunk = b"".join(ranges[at : at + 500])
        victim.hear(control(2, 13, 0x0100, struct.pack(">H", len(chunk)) + chunk))
    victim.refused("session.gap from 10 where 0 comes next")


MALFORMED = {
    "a table that ends early": method(50, 10, b"\x00\x00" + short(b"q") + b"\x00" + struct.pack(">I", 90) + b"\x01a"),
    "a table with an unknown type": method(50, 10, b"\x00\x00" + short(b"q") + b"\x00" + long(b"\x01aZ\x00")),
    "a name that ends early": method(50, 10, b"\x00\x00\xffq"),
    "nothing": method(50, 10),
    "too much": method(50, 10, b"\x00\x00" + short(b"q") + b"\x00" + long(b"") + b"more"),
    "consume without its table": method(60, 20, b"\x00\x00" + short(b"q") + short(b"t") + b"\x00\x00\x00"),
    "publish that ends early": method(60, 40, b"\x00\x00\x05"),
    "ack that ends early": method(60, 80, b"\x00" * 8),
    "qos that goes on": method(60, 10, bytes(8)),
    "a method nobody knows": method(60, 999),
    "a class nobody knows": method(999, 10),
    "a header before its method": frame(2, 1, struct.pack(">HHQ", 60, 0, 5) + b"\x00\x00"),
    "a body before its header": frame(3, 1, b"x"),
    "a header of another class": content(Role.SERVER, 1).replace(
        struct.pack(">HHQ", 60, 0, 1), struct.pack(">HHQ", 90, 0, 1)
    ),
    "a header that ends early": content(Role.SERVER, 0)[:-27] + frame(2, 1, struct.pack(">HHQ", 60, 0, 5)),
    "a method inside content": content(Role.SERVER, 5)
    + method(50, 10, b"\x00\x00" + short(b"q") + b"\x00" + long(b"")),
}


@pytest.mark.parametrize("version", CLASSIC)
@pytest.mark.parametrize("name", MALFORMED)
def test_cve_2019_0200_malformed_commands(version: Version, name: str) -> None:
    """QPID-8273: Broker-J went down over them, unauthenticated. See also ``test_sockets.py``."""
    victim = Victim(version, Role.SERVER, "channel")
    victim.hear(MALFORMED[name])
    victim.refused()
    victim = Victim(version, Role.SERVER, "greeted")
    victim.hear(MALFORMED[name])
    victim.refused()


@pytest.mark.parametrize("code", [0x0301, 0x0401, 0x0407, 0x0701, 0x0801, 0x0402, 0x0503])
@pytest.mark.parametrize("rest", [b"", b"\x00", b"\x01", b"\x01\x00\xff", b"\x01\x00\xff\xff\x05", b"\xff"])
def test_cve_2019_0200_malformed_commands_of_0_10(code: int, rest: bytes) -> None:
    victim = Victim(V0_10, Role.SERVER, "channel")
    victim.hear(frame010(code.to_bytes(2, "big") + rest, 1, 1))
    victim.refused()


def unauthenticated(version: Version) -> list[bytes]:
    """Every method or control there is, but those that belong first, with no arguments and with zeros."""
    if version is V0_10:
        kinds = [kind.code for kind in CONTROLS.values() if kind.code not in (0x0102, 0x010A, 0x010B)]
        return [frame010(code.to_bytes(2, "big") + rest, 0, 0) for code in kinds for rest in (b"\x00\x00", bytes(12))]
    first = (ConnectionStartOk, ConnectionClose, ConnectionClose08)
    kinds_ = [kind for kind in METHODS[version] if kind not in first]
    return [
        method(kind.class_id, kind.method_id, rest, channel)
        for kind in kinds_
        for rest in (b"", bytes(12))
        for channel in (0, 1)
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("state", ["greeted", "started", "tuned"])
def test_cve_2016_4432_nothing_but_start_ok_before_authentication(version: Version, state: str) -> None:
    """Also CVE-2018-1298 and CVE-2016-3094 (a crash by SASL PLAIN): Qpid's broker let a client go on that had never
    logged in. Whatever comes in place of start-ok (then tune-ok, then open) ends the connection."""
    awaited = {"greeted": 11, "started": 31, "tuned": 40}[state]
    for octets in unauthenticated(version):
        code = octets[13] if version is V0_10 else octets[10]
        if octets[12 if version is V0_10 else 8] in (1, 10) and code in (
            awaited,
            {11: 2, 31: 6, 40: 7}[awaited],
        ):
            continue
        victim = Victim(version, Role.SERVER, state)
        victim.hear(octets)
        assert not [event for event in victim.events if not isinstance(event, o.Closed)], octets
        if octets[7:11] != struct.pack(">HH", 20, 41):  # a close-ok of a channel may always come late
            assert victim.closed is not None, octets


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "response",
    [b"", b"\x00", b"\x00\x00", b"\x00\x00\x00", b"guest", b"guest\x00guest", b"\x00\x00guest", b"\x00" * 50_000,
     b"\x00guest\x00guest\x00", b"other\x00guest\x00guest", b"\xff\x00\xff\x00\xff", b"\x00guest\x00" + b"x" * 50_000],
)  # fmt: skip
def test_cve_2018_1298_plain_responses_that_are_none(version: Version, response: bytes) -> None:
    """Also CVE-2016-3094: an array index out of range in the broker's PLAIN."""
    rest = short(b"PLAIN") + long(response)
    victim = Victim(version, Role.SERVER, "greeted")
    victim.hear(greeting(version, Role.SERVER, EMPTY[version], rest + (b"" if version is V0_10 else short(b"en"))))
    closed = victim.closed
    assert closed is not None
    assert closed.reason is o.CloseReason.AUTHENTICATION, closed
    assert not [event for event in victim.events if isinstance(event, o.Opened)]


@every
def test_py_amqp_417_a_burst_of_closes_does_not_recurse(version: Version, role: Role) -> None:
    """on_close called open, which called drain, which called on_close."""
    victim = Victim(version, role, "channel")
    if version is V0_10:
        octets = control(2, 4, 0x0300, b"\x00\x00\x00") * 3_000
    else:
        octets = method(20, 40, struct.pack(">H", 404) + short(b"gone") + bytes(4)) + method(20, 41) * 3_000
    assert shallow(victim, octets)


@every
def test_node_amqp_429_the_smallest_frames_in_one_read(version: Version, role: Role) -> None:
    """64 kB of frames of 8 octets: node-amqp called itself for each."""
    victim = Victim(version, role, "channel")
    octets = control(1, 10) * 4_681 if version is V0_10 else frame(8, 0, b"") * 8_192
    assert len(octets) >= 65_500
    assert shallow(victim, octets)
    victim.goes_on()


def shallow(victim: Victim, octets: bytes) -> bool:
    """The octets are handled without calls that are nested deeper than the methods of a session are."""
    deepest = 0
    base = depth_of(sys._getframe())

    def look(frame: Any, event: str, argument: Any) -> None:
        nonlocal deepest
        if event == "call":
            deepest = max(deepest, depth_of(frame) - base)

    sys.setprofile(look)
    try:
        victim.session.receive_data(octets, 1_000.0)
    finally:
        sys.setprofile(None)
    return deepest < 15


def depth_of(frame: Any) -> int:
    depth = 0
    while frame is not None:
        frame = frame.f_back
        depth += 1
    return depth


def test_the_limits_of_these_tests_are_those_that_ship() -> None:
    assert Limits() == DEFAULT_LIMITS
