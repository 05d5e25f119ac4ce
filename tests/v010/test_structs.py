"""The coded structs against octets written out by hand, and there and back."""

from __future__ import annotations

from uuid import UUID

import pytest

from gateway.errors import FrameSyntaxError
from gateway.v010.structs import (
    STRUCTS,
    Acquired,
    DeliveryProperties,
    ExchangeBoundResult,
    FragmentProperties,
    MessageProperties,
    QueueQueryResult,
    ReplyToStruct,
    Struct,
)


@pytest.mark.parametrize(
    ("value", "octets"),
    [
        (Acquired(((1, 1),)), "0404010000080000000100000001"),
        (ExchangeBoundResult(key_not_matched=True), "07020800"),
        (DeliveryProperties(redelivered=True, priority=9, routing_key="k"), "04010c0209016b"),
        (FragmentProperties(True, True), "04020300"),
        (QueueQueryResult("q", message_count=1, subscriber_count=2), "0801c10001710000000100000002"),
        (MessageProperties(5, reply_to=ReplyToStruct("x", "k")), "04030900" + "0000000000000005" + "000603000178016b"),
    ],
    ids=repr,
)
def test_octets(value: Struct, octets: str) -> None:
    assert value.encode().hex() == octets
    assert type(value).decode(bytes.fromhex(octets)) == value


def test_message_properties_there_and_back() -> None:
    value = MessageProperties(
        1, UUID(int=7), b"c", ReplyToStruct(None, "k"), "text/plain", "gzip", b"u", b"a", {"n": 1, "m": {"x": None}}
    )
    assert MessageProperties.decode(value.encode()) == value


def test_nothing_is_a_struct_without_fields() -> None:
    assert QueueQueryResult.decode(None) == QueueQueryResult()
    assert QueueQueryResult.decode(b"") == QueueQueryResult()


@pytest.mark.parametrize("octets", [b"\x08\x01\x00", b"\x07\x01\x00\x00", b"\x08\x01\x00\x00\x00", b"\x08\x01\x01\x00"])
def test_what_is_no_queue_query_result(octets: bytes) -> None:
    with pytest.raises(FrameSyntaxError):
        QueueQueryResult.decode(octets)


def test_codes() -> None:
    assert {code: cls.code for code, cls in STRUCTS.items()} == {code: code for code in STRUCTS}
