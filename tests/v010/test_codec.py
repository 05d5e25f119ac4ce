"""Types on the wire: every type code there and back, limits before memory."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import EncodeError, FrameSyntaxError
from gateway.limits import Limits
from gateway.v010.codec import DECODERS, ENCODERS, FIXED_WIDTHS, carries, read_map, write_map
from gateway.values import TYPES, Timestamp, Typed, type_of

EVERY_TYPE: dict[str, Any] = {
    "void": None,
    "bool": True,
    "int8": -3,
    "uint8": 200,
    "int16": -300,
    "uint16": 60_000,
    "int32": -70_000,
    "uint32": 4_000_000_000,
    "int64": 1,
    "uint64": 2,
    "float": 0.5,
    "double": 1.25,
    "decimal": Decimal("-12.345"),
    "dec64": Decimal("1.000000000001"),
    "timestamp": Timestamp(4_986_489_600),
    "char": "€",
    "char-utf32": "\U0001f4eb",
    "uuid": UUID("12345678-1234-5678-1234-567812345678"),
    "string": "grüße",
    "str8": "kurz",
    "str8-latin": "1 €",
    "str8-utf16": "ü",
    "str16-latin": "€",
    "str16-utf16": "\U0001f4eb",
    "bytes": b"\x00\xff",
    "vbin8": b"8",
    "vbin16": b"16",
    "bin8": b"1",
    "bin16": b"12",
    "bin32": b"1234",
    "bin40": b"12345",
    "bin64": b"12345678",
    "bin72": b"123456789",
    "bin128": bytes(16),
    "bin256": bytes(32),
    "bin512": bytes(64),
    "bin1024": bytes(128),
    "bit": True,
    "struct32": b"\x04\x01\x00\x00",
    "table": {"a": {"b": [1, None]}},
    "array": ["x", {"y": 2}],
    "typed-array": struct.pack(">BIhh", 0x11, 2, 1, -1),
}
WITHOUT_A_CODE = {"sequence-no", "bin48"}


def value_of(kind: str) -> Any:
    plain = EVERY_TYPE[kind]
    try:
        return plain if type_of(plain) == kind else Typed(kind, plain)
    except TypeError:
        return Typed(kind, plain)


def test_every_type_is_known_one_way_or_the_other() -> None:
    assert set(ENCODERS) | WITHOUT_A_CODE == TYPES
    assert set(ENCODERS) == set(EVERY_TYPE)


@pytest.mark.parametrize("kind", sorted(EVERY_TYPE))
def test_every_type_there_and_back(kind: str) -> None:
    table = {"before": 1, "k": value_of(kind), "after": "x"}
    octets = write_map(table)
    again, end = read_map(b"##" + octets + b"##", 2)
    assert again == table
    assert type_of(again["k"]) == kind
    assert list(again) == list(table)
    assert end == len(octets) + 2
    assert write_map(again) == octets


def test_every_code_has_the_width_of_its_first_digit() -> None:
    for code, width in FIXED_WIDTHS.items():
        assert len(write_map({"k": DECODERS[code](bytes(range(200)), 0, None)[0]})) == 4 + 4 + 2 + 1 + width  # type: ignore[arg-type]


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=50)
    | st.binary(max_size=50)
    | st.uuids()
    | st.builds(Timestamp, st.integers(0, (1 << 64) - 1))
)
keys = st.text(max_size=20)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4))


@given(st.dictionaries(keys, values, max_size=6))
def test_any_map_there_and_back(table: dict[str, Any]) -> None:
    octets = write_map(table)
    again, end = read_map(octets, 0)
    assert again == table
    assert end == len(octets)


@given(st.binary(max_size=200))
def test_any_octets_are_a_map_or_a_syntax_error(octets: bytes) -> None:
    for data in (octets, struct.pack(">I", len(octets)) + octets, struct.pack(">II", len(octets) + 4, 3) + octets):
        try:
            read_map(data, 0)
        except FrameSyntaxError:
            pass


@given(st.dictionaries(keys, values, max_size=4), st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_octet_is_a_map_or_a_syntax_error(table: dict[str, Any], at: int, change: int) -> None:
    octets = bytearray(write_map(table))
    octets[at % len(octets)] ^= change
    try:
        read_map(bytes(octets), 0)
    except FrameSyntaxError:
        pass


def test_an_empty_size_is_an_empty_map() -> None:
    assert read_map(bytes(4), 0) == ({}, 4)
    assert read_map(write_map({"a": {}, "b": []}), 0)[0] == {"a": {}, "b": []}
    assert read_map(struct.pack(">II", 4 + 3 + 4, 1) + b"\x01a\xa9" + bytes(4), 0)[0] == {"a": []}


def nested(depth: int, code: int) -> bytes:
    body = b"\xf0"
    for _ in range(depth):
        entry = b"\x00" + body if code == 0xA8 else body
        body = bytes((code,)) + struct.pack(">II", len(entry) + 4, 1) + entry
    return struct.pack(">II", len(body) + 5, 1) + b"\x00" + body


@pytest.mark.parametrize("code", [0xA8, 0xA9])
def test_depth_is_limited(code: int) -> None:
    read_map(nested(31, code), 0)
    with pytest.raises(FrameSyntaxError, match="too deep"):
        read_map(nested(32, code), 0)
    with pytest.raises(FrameSyntaxError, match="too deep"):
        read_map(nested(5_000, code), 0)


def test_depth_is_limited_when_writing() -> None:
    maps: dict[str, Any] = {}
    lists: list[Any] = []
    for _ in range(40):
        maps, lists = {"m": maps}, [lists]
    for table in (maps, {"l": lists}):
        with pytest.raises(EncodeError, match="table_depth"):
            write_map(table)


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        (struct.pack(">II", 8, 1_000_000) + bytes(4), "1000000 entries"),
        (struct.pack(">I", 1 << 30) + b"x", "a map of"),
        (write_map({"a": 1})[:-1], "a map of"),
        (struct.pack(">II", 12, 1) + b"\x01a\x21\x00\x00\x00\x01\x00", "-1 octets from its end"),
        (struct.pack(">II", 8, 1) + b"\x01a\x03\x00", "unknown type code 0x03"),
        (struct.pack(">II", 11, 1) + b"\x01a\xa9\xff\xff\xff\xff", "a list of"),
        (struct.pack(">II", 11, 1) + b"\x01a\xaa\xff\xff\xff\xff", "an array of"),
        (struct.pack(">II", 11, 1) + b"\x01a\xab\xff\xff\xff\xff", "a struct of"),
        (struct.pack(">III", 12, 1, 0x0161A800), "broken map|a map of"),
    ],
)
def test_lengths_that_lie(octets: bytes, text: str) -> None:
    with pytest.raises(FrameSyntaxError, match=text):
        read_map(octets, 0)


def array(code: int, count: int, elements: bytes) -> bytes:
    body = b"\x01a\xaa" + struct.pack(">IBI", len(elements) + 5, code, count) + elements
    return struct.pack(">II", len(body) + 4, 1) + body


@pytest.mark.parametrize("code", [0xF0, 0xF1])
def test_elements_without_width_are_counted(code: int) -> None:
    read_map(array(code, 100, b""), 0)
    with pytest.raises(FrameSyntaxError, match="4294967295 entries"):
        read_map(array(code, 0xFFFFFFFF, b""), 0)


def test_arrays_are_checked() -> None:
    with pytest.raises(FrameSyntaxError, match="3 elements of 2 octets"):
        read_map(array(0x11, 3, bytes(8)), 0)
    with pytest.raises(FrameSyntaxError, match="entries"):
        read_map(array(0x11, 3, bytes(5)), 0)
    with pytest.raises(FrameSyntaxError, match="unknown type 0x03"):
        read_map(array(0x03, 1, bytes(1)), 0)


def test_the_number_of_values_is_limited() -> None:
    limits = Limits(table_entries=10, frame_elements=15)
    read_map(write_map({str(n): n for n in range(10)}), 0, limits)
    with pytest.raises(FrameSyntaxError, match="11 entries"):
        read_map(write_map({str(n): n for n in range(11)}), 0, limits)
    with pytest.raises(FrameSyntaxError, match="too many values"):
        read_map(write_map({"a": list(range(8)), "b": list(range(8))}), 0, limits)


def test_text_that_is_none_keeps_its_octets() -> None:
    table = {"\udcff": Typed("string", b"\xff"), "b": Typed("str8", b"\xfe"), "c": Typed("str16-utf16", b"\xd8\x00")}
    assert read_map(write_map(table), 0)[0] == table
    assert read_map(write_map({"c": Typed("char-utf32", b"\xff\xff\xff\xff")}), 0)[0]["c"].value == b"\xff" * 4
    nested_text = {"l": [Typed("string", b"\xff"), "ok"]}
    assert read_map(write_map(nested_text), 0)[0] == nested_text


@pytest.mark.parametrize(
    "table",
    [
        {"k" * 256: 1},
        {"\ud800": 1},
        {1: 1},
        {"k": "\ud800"},
        {"k": 1 << 64},
        {"k": Typed("int8", 200)},
        {"k": Typed("bin16", b"1")},
        {"k": Typed("str8", "x" * 256)},
        {"k": "x" * 65_536},
        {"k": Decimal("1e30")},
        {"k": Decimal("NaN")},
        {"k": Decimal("1e19")},
        {"k": Typed("sequence-no", 1)},
        {"k": Typed("char", "xx")},
        {"k": object()},
        {"k": [1, object()]},
    ],
    ids=repr,
)
def test_what_does_not_fit_is_named(table: Any) -> None:
    with pytest.raises(EncodeError):
        write_map(table)


def test_decimals_with_a_positive_exponent() -> None:
    assert read_map(write_map({"k": Decimal("1E3")}), 0)[0]["k"] == Decimal(1000)
    assert read_map(write_map({"k": Decimal("0.00")}), 0)[0]["k"].as_tuple().exponent == -2


def test_what_0_10_carries() -> None:
    assert carries("string", "x" * 65_535)
    assert not carries("string", "x" * 65_536)
    assert not carries("string", Typed("string", b"\xff"))
    assert not carries("sequence-no", Typed("sequence-no", 1))
    assert carries("uuid", UUID(int=1))
