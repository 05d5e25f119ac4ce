"""The classic codec beside pamqp: the three frames of a small message, whole, both ways."""

from __future__ import annotations

from collections.abc import Iterator

import pamqp.body
import pamqp.commands
import pamqp.frame
import pamqp.header

from gateway.classic import methods, properties
from gateway.classic.frames import CONTENT_HEADER, FRAME_HEADER, METHOD_KEY, content_frames, method_frame
from gateway.classic.tables import RABBITMQ_TAGS, TableCodec
from gateway.limits import DEFAULT_LIMITS
from gateway.message import Properties
from gateway.v091.dialect import RABBITMQ
from tests.benchmarks.measure import Measured, calls

NUMBER = 20_000
BODY = b"x" * 256
HEADERS = {"customer": "ann", "items": 3, "express": True, "at": 1.5}
PROPERTIES = {"content_type": "text/plain", "delivery_mode": 2, "message_id": "m-1", "headers": HEADERS}
DELIVER = ("consumer-1", 4711, False, "amq.topic", "eu.orders.new")
TABLES = TableCodec(RABBITMQ_TAGS, DEFAULT_LIMITS)


def our_encode() -> bytes:
    """The message of the constants above, as octets."""
    method = method_frame(1, methods.BasicDeliver(*DELIVER).encode())
    octets = properties.encode(Properties(**PROPERTIES), TABLES)
    return b"".join(content_frames(1, method, octets, BODY, 131_072))


def our_decode(data: bytes) -> tuple[object, bytes, bytes]:
    """Method, raw properties and body of three frames."""
    at = FRAME_HEADER.size
    _, _, size = FRAME_HEADER.unpack_from(data)
    end = at + size
    method = RABBITMQ.methods[METHOD_KEY.unpack_from(data, at)[0]].decode(data, at + METHOD_KEY.size, end, None)
    _, _, size = FRAME_HEADER.unpack_from(data, end + 1)
    at = end + 1 + FRAME_HEADER.size
    end = at + size
    CONTENT_HEADER.unpack_from(data, at)
    octets = data[at + CONTENT_HEADER.size : end]
    _, _, size = FRAME_HEADER.unpack_from(data, end + 1)
    at = end + 1 + FRAME_HEADER.size
    return method, octets, data[at : at + size]


def their_encode() -> bytes:
    """The same."""
    method = pamqp.frame.marshal(pamqp.commands.Basic.Deliver(*DELIVER), 1)
    content = pamqp.commands.Basic.Properties(**PROPERTIES)
    header = pamqp.frame.marshal(pamqp.header.ContentHeader(body_size=len(BODY), properties=content), 1)
    return b"".join((method, header, pamqp.frame.marshal(pamqp.body.ContentBody(BODY), 1)))


def their_decode(data: bytes) -> tuple[object, object, object]:
    """The same."""
    first, _, method = pamqp.frame.unmarshal(data)
    second, _, header = pamqp.frame.unmarshal(data[first:])
    _, _, body = pamqp.frame.unmarshal(data[first + second :])
    return method, header, body


def codec() -> Iterator[Measured]:
    """Both ways, after each codec has shown that it reads what the other wrote."""
    data = our_encode()
    method, octets, body = our_decode(their_encode())
    assert method == methods.BasicDeliver(*DELIVER)
    assert properties.decode(octets, TABLES).message_id == PROPERTIES["message_id"]
    assert their_decode(data)[1].properties.headers == HEADERS
    assert body == BODY == their_decode(data)[2].value
    yield calls("codec: encode a message", "gateway", our_encode, NUMBER)
    yield calls("codec: encode a message", "pamqp", their_encode, NUMBER)
    yield calls("codec: decode a message", "gateway", lambda: properties.decode(our_decode(data)[1], TABLES), NUMBER)
    yield calls("codec: decode a message", "pamqp", lambda: their_decode(data), NUMBER)
    yield calls("codec: decode, properties left raw", "gateway", lambda: our_decode(data), NUMBER)
    yield calls("codec: decode, properties left raw", "pamqp", lambda: their_decode(data), NUMBER)
