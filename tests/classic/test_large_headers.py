"""Content headers in frames over the negotiated ``frame_max``.

RabbitMQ sends one where the header of a message has grown since it was published (``x-death``). A client takes it, for
hanging up would have the same message delivered again and again.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import count

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import Deliver, DeliveryTooLarge
from gateway.limits import DEFAULT_LIMITS
from gateway.session import Role, Version
from gateway.v091.version import V0_9_1
from tests.hostile import CLASSIC, Victim, channel_of, frame, method, short

SMALL = replace(DEFAULT_LIMITS, frame_max=4_096, header_max=20_000, message_max=50_000)
FRAME_MAX = 4_096


TAGS = count(1_000)


def delivery(header: int, body: bytes = b"body", end: bytes = b"\xce", class_id: int = 60) -> bytes:
    """A basic.deliver whose content header holds that many octets of properties."""
    inner = b"\x01hS" + struct.pack(">I", header - 2 - 4 - 7) + bytes(header - 2 - 4 - 7)
    table = struct.pack(">I", len(inner)) + inner
    properties = b"\x20\x00" + table
    assert len(properties) == header
    payload = struct.pack(">HHQ", class_id, 0, len(body)) + properties
    channel = channel_of(Role.CLIENT)
    arguments = short(b"tag") + struct.pack(">QB", next(TAGS), 0) + short(b"e") + short(b"k")
    octets = method(60, 60, arguments, channel) + struct.pack(">BHI", 2, channel, len(payload)) + payload + end
    return octets + (frame(3, channel, body) if body else b"")


def pieces(octets: bytes, size: int) -> list[bytes]:
    return [octets[at : at + size] for at in range(0, len(octets), size)]


@pytest.mark.parametrize("version", CLASSIC)
@pytest.mark.parametrize("size", [1, 7, 1_000, 1 << 20])
@pytest.mark.parametrize("header", [FRAME_MAX, 10_000, 20_000])
def test_a_header_over_frame_max_is_taken(version: Version, size: int, header: int) -> None:
    victim = Victim(version, Role.CLIENT, "consuming", SMALL)
    victim.hear(*pieces(delivery(header) + delivery(100, b"next"), size))
    assert [message.body for message in victim.messages()] == [b"body", b"next"]
    assert len((victim.messages()[0].properties.headers or {})["h"]) == header - 13
    victim.goes_on()


@pytest.mark.parametrize("version", CLASSIC)
@pytest.mark.parametrize("size", [1, 7, 1_000, 1 << 22])
@pytest.mark.parametrize("body", [b"", b"body"])
def test_one_over_header_max_is_passed_over_as_it_comes(version: Version, size: int, body: bytes) -> None:
    header = {1: 20_001, 7: 200_000}.get(size, 2_000_000)
    victim = Victim(version, Role.CLIENT, "consuming", SMALL)
    octets = delivery(header, body)
    victim.hear(*pieces(octets + delivery(100, b"next"), size))
    too_large = [event for event in victim.events if isinstance(event, DeliveryTooLarge)]
    assert [(event.size, event.limit) for event in too_large] == [(header, 20_000)]
    assert [event.message.body for event in victim.events if isinstance(event, Deliver)] == [b"next"]
    if size < 1 << 20:
        assert victim.peak < 100_000
    victim.goes_on()


@pytest.mark.parametrize("version", CLASSIC)
@pytest.mark.parametrize("header", [10_000, 30_000])
def test_its_frame_must_end_as_frames_do(version: Version, header: int) -> None:
    victim = Victim(version, Role.CLIENT, "consuming", SMALL)
    victim.hear(delivery(header, end=b"\x00"))
    victim.refused("a frame ends with 0x00", 501)
    assert victim.messages() == []


@pytest.mark.parametrize("version", CLASSIC)
@pytest.mark.parametrize("header", [10_000, 30_000])
def test_its_class_is_that_of_the_delivery(version: Version, header: int) -> None:
    victim = Victim(version, Role.CLIENT, "consuming", SMALL)
    victim.hear(delivery(header, class_id=90))
    victim.refused("a content header of class 90 after a method of class 60", 501)
    assert victim.messages() == []


@pytest.mark.parametrize("version", CLASSIC)
@pytest.mark.parametrize(
    ("kind", "channel"),
    [(1, None), (2, None), (2, 0), (2, 9), (3, None), (8, None)],
    ids=["method", "header that nobody awaits", "header on 0", "header on no channel", "body", "heartbeat"],
)
def test_no_other_frame_may_be_so_large(version: Version, kind: int, channel: int | None) -> None:
    victim = Victim(version, Role.CLIENT, "consuming", SMALL)
    number = channel_of(Role.CLIENT) if channel is None else channel
    victim.hear(struct.pack(">BHI", kind, number, FRAME_MAX))
    victim.refused(str(FRAME_MAX + 8))


@pytest.mark.parametrize("version", CLASSIC)
def test_a_server_takes_none(version: Version) -> None:
    victim = Victim(version, Role.SERVER, "consuming", SMALL)
    announced = method(60, 40, b"\x00\x00" + short(b"amq.direct") + short(b"k") + b"\x00")
    victim.hear(announced + struct.pack(">BHI", 2, channel_of(Role.SERVER), FRAME_MAX))
    victim.refused(str(FRAME_MAX + 8))


def test_the_message_is_whole() -> None:
    victim = Victim(V0_9_1, Role.CLIENT, "consuming", SMALL)
    body = bytes(range(256)) * 10
    victim.hear(delivery(15_000, body))
    (message,) = victim.messages()
    assert message == Message(body, message.properties)
