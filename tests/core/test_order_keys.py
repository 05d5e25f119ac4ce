"""What orders the messages of a subscription."""

from __future__ import annotations

import pytest

from gateway.amqp.message import Message, Properties, RawProperties, ReplyTo
from gateway.amqp.values import Typed
from gateway.core.sources.order_keys import KEY_MAX, OrderKey
from gateway.errors import EncodeError, FrameSyntaxError

PROPERTIES = Properties(
    correlation_id=b"\xff", reply_to=ReplyTo("e", "k"), app_id="", headers={"n": 1, "t": Typed("int8", 1)}
)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("", b""),
        ("routing_key", b"=a.b"),
        ("property:correlation_id", b"=\xff"),
        ("property:reply_to", b"=e/k"),
        ("property:app_id", b"="),
        ("property:message_id", b""),
        ("header:n", b"=1"),
        ("header:t", b"=1"),
        ("header:missing", b""),
    ],
)
def test_values(setting: str, expected: bytes) -> None:
    key = OrderKey(setting)
    assert key.of("a.b", Message(b"", PROPERTIES)) == expected
    assert bool(key) is bool(setting)


def test_long_values_fit_into_an_index_and_differ() -> None:
    key = OrderKey("routing_key")
    one, other = (key.of("x" * KEY_MAX + end, Message()) for end in "ab")
    assert one != other
    assert len(one) <= KEY_MAX + 1
    assert key.of("x" * KEY_MAX, Message()) == b"=" + b"x" * KEY_MAX


def test_properties_that_cannot_be_read_and_no_headers() -> None:
    def decode(octets: bytes) -> Properties:
        raise FrameSyntaxError("broken")

    assert OrderKey("header:n").of("", Message(b"", None, RawProperties(b"\xff", "x", decode))) == b""
    assert OrderKey("header:n").of("", Message()) == b""


def test_a_property_that_is_none() -> None:
    with pytest.raises(EncodeError, match="order_key: it names the property 'headers'"):
        OrderKey("property:headers")
