"""Declared classes: whole, cut at every octet, with trailing octets, inside a larger buffer."""

from __future__ import annotations

import struct

import pytest

from gateway.errors import EncodeError, FrameSyntaxError
from gateway.wire.declare import Declared, declared
from gateway.wire.types import Bit, LongLong, Octet, ShortStr


@declared(prefix=struct.pack(">HH", 60, 60))
class Delivery(Declared):
    consumer_tag: ShortStr
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr


@declared(prefix=b"\x01\x02\x03")
class OddPrefix(Declared):
    value: Octet = 4


DELIVERY = Delivery("ctag", 7, True, "ex", "rk")
OCTETS = b"\x00\x3c\x00\x3c\x04ctag\x00\x00\x00\x00\x00\x00\x00\x07\x01\x02ex\x02rk"


def test_there_and_back() -> None:
    assert DELIVERY.encode() == OCTETS
    assert Delivery.decode(OCTETS, 4, len(OCTETS)) == DELIVERY


def test_decode_at_an_offset() -> None:
    data = b"before" + OCTETS + b"after"
    assert Delivery.decode(data, 10, 6 + len(OCTETS)) == DELIVERY


@pytest.mark.parametrize("length", range(4, len(OCTETS)))
def test_cut_short_is_a_syntax_error(length: int) -> None:
    for data in (OCTETS[:length], OCTETS):  # nothing behind the cut, and the next frame behind it
        with pytest.raises(FrameSyntaxError) as error:
            Delivery.decode(data, 4, length)
        assert error.value.reply_code == 502


def test_trailing_octets_are_a_syntax_error() -> None:
    with pytest.raises(FrameSyntaxError, match="2 octets that belong to nothing"):
        Delivery.decode(OCTETS + b"xx", 4, len(OCTETS) + 2)


def test_a_string_that_runs_past_its_frame() -> None:
    octets = OCTETS[:4] + b"\xc8ctag" + OCTETS[9:]
    with pytest.raises(FrameSyntaxError):
        Delivery.decode(octets, 4, len(octets))


def test_slots_and_equality() -> None:
    assert not hasattr(DELIVERY, "__dict__")
    assert repr(DELIVERY).startswith("Delivery(consumer_tag='ctag'")
    assert Delivery("ctag", 7, False, "ex", "rk") != DELIVERY


def test_any_prefix() -> None:
    assert OddPrefix().encode() == b"\x01\x02\x03\x04"


def test_a_field_must_have_a_field_type() -> None:
    with pytest.raises(TypeError, match=r"value.*is no field type"):

        @declared()
        class Wrong(Declared):
            value: int


def test_an_error_that_no_field_explains() -> None:
    class Text(str):
        asked = 0

        def encode(self, *arguments: str) -> bytes:  # type: ignore[override]
            self.asked += 1
            if self.asked == 1:
                raise TypeError("does not want to")
            return b""

    with pytest.raises(EncodeError, match="Delivery: does not want to"):
        Delivery(Text("a"), 1, False, "", "").encode()


def test_the_base_has_no_encoding() -> None:
    with pytest.raises(NotImplementedError):
        Declared().encode()
