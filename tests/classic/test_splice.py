"""The reserved header is written into undecoded properties exactly as if they had been decoded, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.amqp.message import Properties
from gateway.amqp.values import Table, Timestamp, Typed
from gateway.classic import splice
from gateway.classic.properties import decode, encode
from gateway.classic.splice import SEAM
from gateway.classic.tables import QPID_TAGS, TableCodec
from gateway.errors import FrameSyntaxError
from gateway.fidelity import RESERVED

TABLES = TableCodec(QPID_TAGS)
ENTRIES = {"id": "0190", "hops": "1", "long": "é" * 200}
EVERY_TAG: Table = {
    "t": True, "b": Typed("int8", -1), "B": Typed("uint8", 1), "s": Typed("int16", 1), "u": Typed("uint16", 1),
    "I": 5, "i": Typed("uint32", 1), "l": 1 << 40, "f": Typed("float", 0.5), "d": 0.5, "S": "text", "A": [1, ["x"]],
    "T": Timestamp(5), "F": {"inner": {"deep": 1}}, "V": None, "x": b"\x00", "c": Typed("str8-latin", "a"),
    "C": Typed("str16-utf16", "a"), "k": Typed("char", "a"),
}  # fmt: skip
AROUND = {"content_type": "text/plain", "content_encoding": "gzip", "delivery_mode": 2, "cluster_id": "c"}


def octets_of(headers: Table | None, **others: Any) -> bytes:
    return encode(Properties(headers=headers, **others), TABLES)


def headers_of(octets: bytes | None) -> Table:
    assert octets is not None
    headers = decode(octets, TABLES).headers
    assert headers is not None
    return headers


@pytest.mark.parametrize("others", [{}, AROUND, {"content_type": "x"}, {"content_encoding": "x"}])
@pytest.mark.parametrize("headers", [None, {"a": 1}, EVERY_TAG, {"x-gatewa": 1, "x-gateway2": 2}])
def test_the_header_becomes_the_last_one(headers: Table | None, others: Any) -> None:
    spliced = SEAM.splice(octets_of(headers, **others), ENTRIES)
    assert spliced == octets_of({**(headers or {}), RESERVED: ENTRIES}, **others)
    assert SEAM.read(spliced) == ENTRIES


def test_a_table_without_headers_stays_one() -> None:
    assert headers_of(SEAM.splice(octets_of({}), ENTRIES)) == {RESERVED: {**ENTRIES, "empty": "1"}}


def test_entries_of_the_same_name_are_replaced_and_others_stay() -> None:
    before = {"hops": "0", "held": {"CC": ["x"]}, "kept": "k", "n": 5, "v": None}
    spliced = headers_of(SEAM.splice(octets_of({"a": 1, RESERVED: before, "z": 2}), ENTRIES))
    assert list(spliced) == ["a", "z", RESERVED]
    assert spliced[RESERVED] == {"held": {"CC": ["x"]}, "kept": "k", "n": 5, "v": None, **ENTRIES}
    assert list(spliced[RESERVED])[-3:] == list(ENTRIES)


def test_reading() -> None:
    assert SEAM.read(octets_of(None)) == {}
    assert SEAM.read(octets_of({"a": RESERVED})) == {}
    assert SEAM.read(octets_of({RESERVED: "text"})) == {}
    assert SEAM.read(octets_of({RESERVED: {"id": "x", "n": 1, "t": {"id": "inner"}}}, **AROUND)) == {"id": "x"}


TWICE = b"\x20\x00\x00\x00\x00\x2a" + b"\x09x-gatewayS\x00\x00\x00\x06abcdef" + b"\x09x-gatewayS\x00\x00\x00\x06abcdef"


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"\x80",
        b"\x80\x00\x05ab",
        b"\xc0\x00\x01a",
        b"\x20\x00\x00\x00",
        b"\x20\x00\x00\x00\x00\x05",
        b"\x20\x00\x00\x00\x00\x04\x01aV\x00",
        b"\x20\x00\x00\x00\x00\x03\x01a!",
        b"\x20\x00\x00\x00\x00\x08\x01aS\x00\x00\x00\x05b",
        b"\x20\x00\x00\x00\x00\x08\x01aS\x00\x00\x00\x01",
        b"\x20\x00\x00\x00\x00\x10\x09x-gatewayF\x00\x00\x00\x01\x00",
        b"\x20\x00\x00\x00\x00\x14\x09x-gatewayF\x00\x00\x00\x05\x02\xff\xfeV\x01",
        b"\x20\x00\x00\x00\x00\x13\x09x-gatewayF\x00\x00\x00\x04\x02\xff\xfeV",
        b"\x20\x00\x00\x00\x00\x17\x09x-gatewayF\x00\x00\x00\x08\x01aS\x00\x00\x00\x01\xff"[:-1],
        TWICE,
    ],
    ids=bytes.hex,
)
def test_what_is_odd_is_left_to_the_decoder(octets: bytes) -> None:
    assert SEAM.splice(octets, ENTRIES) is None
    if octets[:1] == b"\x20" and b"\xff\xfe" not in octets:
        assert SEAM.read(octets) is None


def test_a_reserved_header_whose_last_entry_is_longer_than_it_is_left_to_the_decoder() -> None:
    inner = b"\x01aS\x00\x00\x00\x10"
    header = b"\x09x-gatewayF" + len(inner).to_bytes(4, "big") + inner
    octets = b"\x20\x00" + len(header).to_bytes(4, "big") + header
    assert SEAM.splice(octets, ENTRIES) is None
    assert SEAM.read(octets) is None


def test_a_header_of_another_shape_is_left_to_the_decoder() -> None:
    assert SEAM.splice(octets_of({RESERVED: "text"}), ENTRIES) is None
    assert SEAM.read(b"\x20\x00\x00\x00\x00\x19\x09x-gatewayF\x00\x00\x00\x09\x02idS\x00\x00\x00\x01\xff") is None


def test_a_table_at_its_limit_gets_no_more() -> None:
    full = {str(number): None for number in range(4_096)}
    assert SEAM.splice(octets_of(full), ENTRIES) is None
    del full["7"]
    assert len(headers_of(SEAM.splice(octets_of(full), ENTRIES))) == 4_096


def test_names_of_entries_are_kept_in_bounds() -> None:
    for number in range(200):
        assert SEAM.read(SEAM.splice(octets_of(None), {f"name{number}": "x"}) or b"") == {f"name{number}": "x"}
    assert len(splice._HEADS) <= splice._HEADS_MAX


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.none() | st.dictionaries(st.text(max_size=9) | st.just(RESERVED), values, max_size=5),
    st.none() | st.text(max_size=9),
    st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=4),
)
def test_splicing_is_what_decoding_and_encoding_gives(headers: Table | None, kind: str | None, entries: Any) -> None:
    octets = octets_of(headers, content_type=kind, type=kind)
    spliced = SEAM.splice(octets, entries)
    entry = (headers or {}).get(RESERVED, {})
    if spliced is None:
        replaced = [value for key, value in entry.items() if key in entries] if isinstance(entry, dict) else [None]
        assert not all(isinstance(value, str) for value in replaced)
        return
    rest = {key: value for key, value in (headers or {}).items() if key != RESERVED}
    empty = {"empty": "1"} if headers == {} else {}
    assert headers_of(spliced) == {**rest, RESERVED: {**entry, **entries, **empty}}
    assert list(headers_of(spliced)) == [*rest, RESERVED]
    assert SEAM.read(octets) == {key: value for key, value in entry.items() if isinstance(value, str)}


@pytest.mark.parametrize("value", [{}, 1, None, [1]])
def test_an_entry_that_is_no_string_is_not_replaced_unseen(value: Any) -> None:
    octets = octets_of({RESERVED: {"id": value, "hops": "1"}})
    assert SEAM.splice(octets, {"id": "y"}) is None
    assert headers_of(SEAM.splice(octets, {"hops": "2"})) == {RESERVED: {"id": value, "hops": "2"}}


@example(b"", 70, ord("S") ^ ord("F"))  # the tag of what is to be replaced: a table now, and a broken one
@given(st.binary(max_size=40), st.integers(0, 120), st.integers(1, 255))
def test_no_octets_are_made_into_something_else(octets: bytes, at: int, change: int) -> None:
    """Whatever the octets: after a splice they say what they said before, or are as broken as before."""
    whole = bytearray(octets_of({"a": "text", "b": {"c": [1]}, RESERVED: {"id": "x"}}, **AROUND))
    whole[at % len(whole)] ^= change
    for candidate in (octets, b"\x20\x00" + octets, bytes(whole)):
        SEAM.read(candidate)
        spliced = SEAM.splice(candidate, {"id": "y"})
        if spliced is None:
            continue
        try:
            before = decode(candidate, TABLES)
        except FrameSyntaxError:
            with pytest.raises(FrameSyntaxError):
                decode(spliced, TABLES)
            continue
        after = decode(spliced, TABLES)
        for name in Properties.__dataclass_fields__:
            if name != "headers":
                assert getattr(after, name) == getattr(before, name)
        rest = {key: value for key, value in (before.headers or {}).items() if key != RESERVED}
        assert {key: value for key, value in (after.headers or {}).items() if key != RESERVED} == rest
