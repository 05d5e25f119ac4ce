"""Field types: what fits, what does not, and how that is said."""

from __future__ import annotations

import pytest

from gateway.errors import EncodeError, FrameSyntaxError
from gateway.wire.declare import Declared, declared
from gateway.wire.emit import Reader, Writer
from gateway.wire.types import (
    Bit,
    FieldTable,
    FieldType,
    Integer,
    Long,
    LongLong,
    LongStr,
    Octet,
    Short,
    ShortStr,
    overrun,
)


@declared(name="sample")
class Sample(Declared):
    octet: Octet = 0
    short: Short = 0
    long: Long = 0
    longlong: LongLong = 0
    bit: Bit = False
    text: ShortStr = ""
    octets: LongStr = b""


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("octet", 256, "256 is not within 0..255"),
        ("short", -1, "-1 is not within 0..65535"),
        ("long", 1 << 32, "4294967296 is not within 0..4294967295"),
        ("longlong", 1 << 64, "is not within 0.."),
        ("octet", "x", "'x' is no integer"),
        ("bit", "x", "'x' is no bool"),
        ("text", "é" * 128, "256 octets are more than 255"),
        ("text", 5, "5 is no string"),
        ("text", "\ud800", "is no text"),
        ("octets", "text", "'text' is no octets"),
    ],
)
def test_what_does_not_fit_names_field_and_limit(field: str, value: object, reason: str) -> None:
    with pytest.raises(EncodeError, match=rf"^sample\.{field}: .*{reason}"):
        Sample(**{field: value}).encode()  # type: ignore[arg-type]


def test_the_largest_that_fit() -> None:
    sample = Sample(255, 65_535, (1 << 32) - 1, (1 << 64) - 1, True, "é" * 127 + "x", b"\x00" * 300)
    octets = sample.encode()
    assert Sample.decode(octets, 0, len(octets)) == sample


def test_octets_that_are_no_utf8_come_back() -> None:
    octets = bytes(15 + 1) + b"\x03\xff\xfea" + bytes(4)
    sample = Sample.decode(octets, 0, len(octets))
    assert sample.text == "\udcff\udcfea"
    assert sample.encode() == octets


def test_a_long_string_is_compared_with_what_is_left() -> None:
    octets = bytes(17) + b"\xff\xff\xff\xff" + b"abc"
    with pytest.raises(FrameSyntaxError, match="a length of 4294967295 octets where 3 are left"):
        Sample.decode(octets, 0, len(octets))
    assert overrun(4, 3).reply_code == 502


def test_signed_integers() -> None:
    assert Integer("b").misfit(-129) == "-129 is not within -128..127"
    assert Integer("q").misfit(-(1 << 63)) is None


def test_a_table_is_the_contexts() -> None:
    @declared()
    class WithTable(Declared):
        before: Bit
        table: FieldTable

    class Codec:
        def encode(self, table: dict[str, int]) -> bytes:
            return bytes((table["length"],))

        def read(self, data: bytes, at: int, end: int) -> tuple[dict[str, int], int]:
            return {"length": data[at]}, at + 1

    octets = WithTable(True, {"length": 9}).encode(Codec())
    assert octets == b"\x01\x09"
    assert WithTable.decode(octets, 0, 2, Codec()) == WithTable(True, {"length": 9})
    with pytest.raises(EncodeError, match="5 is no table"):
        WithTable(True, 5).encode(Codec())  # type: ignore[arg-type]


def test_a_type_without_code_says_so() -> None:
    for ask in (
        lambda: FieldType().emit_read(Reader(), "x"),
        lambda: FieldType().emit_write(Writer(), "x"),
        lambda: FieldType().misfit(1),
    ):
        with pytest.raises(NotImplementedError):
            ask()
