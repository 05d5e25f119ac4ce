"""The reserved header is written into an undecoded header segment exactly as if it had been decoded, or not at all."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.amqp.message import Properties
from gateway.amqp.values import Table, Timestamp, Typed
from gateway.errors import FrameSyntaxError
from gateway.fidelity import RESERVED
from gateway.v010 import splice
from gateway.v010.splice import SEAM
from gateway.v010.structs import (
    DeliveryProperties,
    FragmentProperties,
    MessageProperties,
    ReplyToStruct,
)
from gateway.v010.translate import decode

ENTRIES = {"id": "0190", "hops": "1", "long": "é" * 200}
EVERY_WIDTH: Table = {
    "bool": True, "int8": Typed("int8", 1), "int16": Typed("int16", 1), "int32": 1, "int64": 1 << 40,
    "uuid": UUID(int=5), "bin40": Typed("bin40", b"12345"), "bin72": Typed("bin72", b"123456789"),
    "bin256": Typed("bin256", b"1" * 32), "bin512": Typed("bin512", b"1" * 64), "bin1024": Typed("bin1024", b"1" * 128),
    "vbin8": Typed("vbin8", b"x"), "vbin16": Typed("vbin16", b"x"), "bytes": b"x", "str8": Typed("str8", "x"),
    "string": "text", "map": {"inner": {"deep": 1}}, "list": [1, ["x"]], "void": None, "time": Timestamp(5),
    "array": Typed("typed-array", b"\x02\0\0\0\x01\x05"), "struct": Typed("struct32", b"\x04\x01\0\0"),
    "dec32": Decimal("1.5"), "dec64": Typed("dec64", Decimal("1.5")),
}  # fmt: skip
FULL = {
    "content_length": 4, "message_id": UUID(int=7), "correlation_id": b"c", "reply_to": ReplyToStruct("x", "k"),
    "content_type": "t", "content_encoding": "e", "user_id": b"u", "app_id": b"a",
}  # fmt: skip


def segment(*items: Any) -> bytes:
    return b"".join(struct.pack(">I", len(octets)) + octets for octets in (item.encode() for item in items))


def octets_of(headers: Table | None, **others: Any) -> bytes:
    return segment(
        DeliveryProperties(priority=3, routing_key="k"), MessageProperties(application_headers=headers, **others)
    )


def headers_of(octets: bytes | None) -> Table:
    assert octets is not None
    headers = decode(octets, restored=False).headers
    assert headers is not None
    return headers


@pytest.mark.parametrize("others", [{}, FULL, {"content_type": "x"}, {"app_id": b"x"}])
@pytest.mark.parametrize("headers", [None, {"a": 1}, EVERY_WIDTH, {"x-gatewa": 1, "x-gateway2": 2}])
def test_the_header_becomes_the_last_one(headers: Table | None, others: Any) -> None:
    spliced = SEAM.splice(octets_of(headers, **others), ENTRIES)
    assert spliced == octets_of({**(headers or {}), RESERVED: ENTRIES}, **others)
    assert SEAM.read(spliced) == ENTRIES


def test_what_is_around_the_struct_stays() -> None:
    around = FragmentProperties(first=True, fragment_size=7)
    delivery = DeliveryProperties(priority=3)
    before = segment(around, MessageProperties(application_headers={"a": 1}), delivery)
    after = segment(around, MessageProperties(application_headers={"a": 1, RESERVED: ENTRIES}), delivery)
    assert SEAM.splice(before, ENTRIES) == after


def test_a_map_without_headers_stays_one() -> None:
    assert headers_of(SEAM.splice(octets_of({}), ENTRIES)) == {RESERVED: {**ENTRIES, "empty": "1"}}


def test_entries_of_the_same_name_are_replaced_and_others_stay() -> None:
    before = {"hops": "0", "held": {"CC": ["x"]}, "kept": "k", "n": 5, "v": None}
    spliced = headers_of(SEAM.splice(octets_of({"a": 1, RESERVED: before, "z": 2}), ENTRIES))
    assert list(spliced) == ["a", "z", RESERVED]
    assert spliced[RESERVED] == {"held": {"CC": ["x"]}, "kept": "k", "n": 5, "v": None, **ENTRIES}


def test_reading() -> None:
    assert SEAM.read(b"") == {}
    assert SEAM.read(octets_of(None)) == {}
    assert SEAM.read(octets_of({"a": RESERVED})) == {}
    assert SEAM.read(octets_of({RESERVED: "text"})) == {}
    assert SEAM.read(octets_of({RESERVED: {"id": "x", "n": 1, "t": {"id": "inner"}}}, **FULL)) == {"id": "x"}


def properties(flags: bytes, fields: bytes) -> bytes:
    octets = b"\x04\x03" + flags + fields
    return struct.pack(">I", len(octets)) + octets


def table(count: int, entries: bytes) -> bytes:
    return struct.pack(">II", len(entries) + 4, count) + entries


@pytest.mark.parametrize(
    "octets",
    [
        b"\x00",
        b"\x00\x00\x00\x04\x04\x01\x00\x00",
        properties(b"\x00\x00", b"x"),
        properties(b"\x00\x02", b""),
        properties(b"\x04\x00", b"\x00\x05a"),
        properties(b"\x00\x01", b"\x00\x00\x00\x00"),
        properties(b"\x00\x01", b"\x00\x00"),
        properties(b"\x00\x01", table(2, b"\x01a\xf0")),
        properties(b"\x00\x01", table(1, b"\x01a\xf0") + b"x"),
        properties(b"\x00\x01", table(1, b"\x01a\x77")),
        properties(b"\x00\x01", table(1, b"\x01a\x95\x00\x05b")),
        properties(b"\x00\x01", table(1, b"\x01a\xa0\x00\x00\x00\x05b")),
        properties(b"\x00\x01", table(1, b"\x09x-gateway\x95\x00\x01x")),
        properties(b"\x00\x01", table(2, b"\x09x-gateway\xf0\x09x-gateway\xf0")),
        properties(b"\x00\x01", table(1, b"\x09x-gateway\xa8" + table(1, b"\x02\xff\xfe\xf0"))),
        properties(b"\x00\x01", table(1, b"\x09x-gateway\xa8" + table(2, b"\x02id\xf0"))),
    ],
    ids=bytes.hex,
)
def test_what_is_odd_is_left_to_the_decoder(octets: bytes) -> None:
    assert SEAM.splice(octets, ENTRIES) is None
    SEAM.read(octets)


def test_reading_what_is_odd() -> None:
    assert SEAM.read(b"\x00") is None
    assert SEAM.read(properties(b"\x00\x01", table(2, b"\x01a\xf0"))) is None
    assert SEAM.read(properties(b"\x00\x01", table(2, b"\x09x-gateway\xf0\x09x-gateway\xf0"))) is None
    broken = table(1, b"\x02id\x95\x00\x01\xff")
    assert SEAM.read(properties(b"\x00\x01", table(1, b"\x09x-gateway\xa8" + broken))) is None


def test_a_map_at_its_limit_gets_no_more() -> None:
    full = {str(number): None for number in range(4_096)}
    assert SEAM.splice(octets_of(full), ENTRIES) is None
    del full["7"]
    assert len(headers_of(SEAM.splice(octets_of(full), ENTRIES))) == 4_096


def test_names_of_entries_are_kept_in_bounds() -> None:
    for number in range(200):
        assert SEAM.read(SEAM.splice(octets_of(None), {f"name{number}": "x"}) or b"") == {f"name{number}": "x"}
    assert len(splice._HEADS) <= splice._HEADS_MAX


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.none() | st.dictionaries(st.text(max_size=9) | st.just(RESERVED), values, max_size=5),
    st.none() | st.text(max_size=9),
    st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=4),
)
def test_splicing_is_what_decoding_and_encoding_gives(headers: Table | None, kind: str | None, entries: Any) -> None:
    octets = octets_of(headers, content_type=kind)
    spliced = SEAM.splice(octets, entries)
    entry = (headers or {}).get(RESERVED, {})
    if spliced is None:
        assert not isinstance(entry, dict)
        return
    rest = {key: value for key, value in (headers or {}).items() if key != RESERVED}
    empty = {"empty": "1"} if headers == {} else {}
    assert headers_of(spliced) == {**rest, RESERVED: {**entry, **entries, **empty}}
    assert list(headers_of(spliced)) == [*rest, RESERVED]
    assert SEAM.read(octets) == {key: value for key, value in entry.items() if isinstance(value, str)}


@given(st.binary(max_size=40), st.integers(0, 160), st.integers(1, 255))
def test_no_octets_are_made_into_something_else(octets: bytes, at: int, change: int) -> None:
    """Whatever the octets: after a splice they say what they said before, or are as broken as before."""
    whole = bytearray(octets_of({"a": "text", "b": {"c": [1]}, RESERVED: {"id": "x"}}, **FULL))
    whole[at % len(whole)] ^= change
    for candidate in (octets, properties(b"\x00\x01", octets), bytes(whole)):
        SEAM.read(candidate)
        spliced = SEAM.splice(candidate, {"id": "y"})
        if spliced is None:
            continue
        try:
            before = decode(candidate, restored=False)
        except FrameSyntaxError:
            with pytest.raises(FrameSyntaxError):
                decode(spliced, restored=False)
            continue
        after = decode(spliced, restored=False)
        for name in Properties.__dataclass_fields__:
            if name not in ("headers", "timestamp"):
                assert getattr(after, name) == getattr(before, name)
        rest = {key: value for key, value in (before.headers or {}).items() if key != RESERVED}
        assert {key: value for key, value in (after.headers or {}).items() if key != RESERVED} == rest
