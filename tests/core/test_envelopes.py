"""What was promised is sent again exactly as it was."""

from __future__ import annotations

import math
from decimal import Decimal
from uuid import UUID

import msgspec
import pytest

from gateway.amqp.message import ArrivalTime, Deadline, Message, Properties, ReplyTo, UuidMessageId
from gateway.amqp.values import Timestamp, Typed
from gateway.core.publishing.envelopes import EnvelopeError, decode, encode

EVERYTHING = Properties(
    content_type="text/plain",
    content_encoding="gzip",
    headers={
        "void": None,
        "bool": True,
        "int": -3,
        "uint64": (1 << 64) - 1,
        "double": 1.5,
        "string": "é",
        "not utf-8": "\udcff",
        "\udcfe": "key",
        "bytes": b"\xff\x00",
        "decimal": Decimal("1.50"),
        "timestamp": Timestamp(1 << 40),
        "uuid": UUID(int=7),
        "int8": Typed("int8", 3),
        "table": {"a": [1, {"b": Typed("float", 0.5)}]},
        "array": [["table", "x"], []],
        "looks like a mark": ["typed", "x", 1],
    },
    delivery_mode=2,
    priority=9,
    correlation_id=b"\xff",
    reply_to=ReplyTo("exchange", "key"),
    expiration="60000",
    message_id="m-1",
    timestamp=1,
    type="t",
    user_id="guest",
    app_id="a",
    cluster_id="c",
)


@pytest.mark.parametrize("properties", [EVERYTHING, Properties(), Properties(headers={}), Properties(reply_to="q")])
@pytest.mark.parametrize("body", [b"", b"\x00\xff" * 1000])
def test_there_and_back(properties: Properties, body: bytes) -> None:
    message, mandatory = decode(encode(Message(body, properties), True))
    assert (message.body, message.properties, mandatory) == (body, properties, True)
    for name, value in (properties.headers or {}).items():
        assert message.properties.headers is not None
        assert type(message.properties.headers[name]) is type(value)


def test_nan() -> None:
    message, _ = decode(encode(Message(b"", Properties(headers={"x": math.nan})), False))
    assert message.properties.headers is not None
    assert math.isnan(message.properties.headers["x"])


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([1]),
        msgspec.msgpack.encode([b"", {"nonsense": 1}, False]),
        msgspec.msgpack.encode([b"", {"headers": ["nonsense", 1]}, False]),
        msgspec.msgpack.encode([b"", {"headers": ["table", 1]}, False]),
    ],
)
def test_damaged(octets: bytes) -> None:
    with pytest.raises(EnvelopeError):
        decode(octets)


def test_what_a_broker_said_stays_the_broker_s_word() -> None:
    properties = Properties(timestamp=ArrivalTime(5), expiration=Deadline.of(1_700_000_060_000, "60000"))
    jms = Properties(timestamp=ArrivalTime.of(5, 5_432), message_id=UuidMessageId(str(UUID(int=5))))
    found = decode(encode(Message(b"", jms), False))[0].properties
    assert found == jms
    assert type(found.message_id) is UuidMessageId
    assert type(found.timestamp) is ArrivalTime
    assert found.timestamp.milliseconds == 5_432
    message, _ = decode(encode(Message(b"", properties), True))
    assert message.properties == properties
    assert type(message.properties.timestamp) is ArrivalTime
    assert isinstance(message.properties.expiration, Deadline)
    assert message.properties.expiration.instant == 1_700_000_060_000


@pytest.mark.parametrize("left_out", [None, (), ("CC", "\udcff")])
def test_what_a_broker_had_before_stays_so(left_out: tuple[str, ...] | None) -> None:
    message, mandatory = decode(encode(Message(b"x", EVERYTHING, None, left_out, relayed=True), False))
    assert (message.relayed, message.left_out, message.properties, mandatory) == (True, left_out, EVERYTHING, False)
    assert not decode(encode(Message(b"x"), False))[0].relayed
