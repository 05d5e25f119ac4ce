"""Types on the wire: every type code there and back, limits before memory."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.amqp.values import DRAFT_STRINGS, TYPES, Timestamp, Typed, type_of
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.limits import Limits
from gateway.v010 import codec, encoders
from gateway.v010.codec import BROKEN_MAX, DECODERS, FIXED_WIDTHS, KEYS_MAX, Reading, read_map
from gateway.v010.encoders import ENCODERS, carries, write_map
from tests.pace import seconds

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
WITHOUT_A_CODE = {"sequence-no", "bin48", *DRAFT_STRINGS}


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
    for depth in (32, 500, 20_000):
        with pytest.raises(FrameSyntaxError, match="too deep"):
            read_map(nested(depth, code), 0)


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
        (struct.pack(">II", 12, 2) + b"\x01a\x08\x01" * 2, "a map of 2 entries has but 1 keys"),
        (struct.pack(">II", 8, 1) + b"\x01a\x03\x00", "unknown type code 0x03"),
        (
            struct.pack(">II", 17, 1) + b"\x01a\xa9\x00\x00\x00\x06\x00\x00\x00\x01\xf0\xf0",
            "the entries of a list end -1",
        ),
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
    for count in (4_097, 1 << 31, 0xFFFFFFFF):
        with pytest.raises(FrameSyntaxError, match=f"{count} entries"):
            read_map(array(code, count, b""), 0)


def test_an_array_of_no_size_is_empty() -> None:
    octets = struct.pack(">II", 11, 1) + b"\x01a\xaa" + bytes(4)
    assert read_map(octets, 0)[0] == {"a": Typed("typed-array", b"")}
    assert write_map({"a": Typed("typed-array", b"")}) == octets


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
    nested_text = {"l": [Typed("string", b"\xff"), "ok", "grüße", "\U0001f4eb"]}
    assert read_map(write_map(nested_text), 0)[0] == nested_text


@pytest.mark.parametrize("octets", [b"\xff", b"\xc3", b"\xed\xb3\xbf", b"\xed\xa0\x80", b"\xc0\x80", b"a\xf5bc"])
def test_what_is_no_utf_8_is_never_taken_for_text(octets: bytes) -> None:
    for table in ({"k": Typed("string", octets)}, {"k": [Typed("string", octets)]}, {"k": Typed("str8", octets)}):
        assert read_map(write_map(table), 0)[0] == table


@given(st.text())
def test_text_of_every_encoding_there_and_back(text: str) -> None:
    latin = text.encode("iso-8859-15", "replace").decode("iso-8859-15")[:200]
    short = text[:60]
    table = {
        "k": text,
        "l": [text, ""],
        "str8": Typed("str8", short),
        "str8-latin": Typed("str8-latin", latin),
        "str8-utf16": Typed("str8-utf16", short),
        "str16-latin": Typed("str16-latin", latin),
        "str16-utf16": Typed("str16-utf16", text),
    }
    assert read_map(write_map(table), 0)[0] == table


def test_every_octet_of_a_type_of_one() -> None:
    for kind in ("bin8", "int8", "uint8", "char"):
        code = ENCODERS[kind](b"0" if kind == "bin8" else "0" if kind == "char" else 0, 1)[0]
        for octet in range(256):
            value, _ = DECODERS[code](bytes((octet,)), 0, Reading(Limits()))
            assert write_map({"k": value}).endswith(bytes((1, 107, code, octet)))


def test_texts_that_are_none_stop_being_tried() -> None:
    """Each costs as much as a hundred that are text. Octets encode to themselves, so nothing is lost."""
    broken = [Typed("str16-utf16", b"\xd8\x00")] * BROKEN_MAX
    table = {"a": [*broken[1:], Typed("str16-utf16", "x")], "b": [broken[0], Typed("str16-utf16", "x")]}
    octets = write_map(table)
    read = read_map(octets, 0)[0]
    assert read == {"a": table["a"], "b": [broken[0], Typed("str16-utf16", b"\x00x")]}
    assert write_map(read) == octets
    assert read_map(write_map({"a": Typed("str16-utf16", "x")}), 0)[0] == {"a": Typed("str16-utf16", "x")}


def test_keys_are_kept_within_bounds() -> None:
    for start in range(0, 4_000, 1_000):
        table = {f"key-{number}": number for number in range(start, start + 1_000)}
        assert read_map(write_map(table), 0)[0] == table
    assert 0 < len(codec._KEYS) <= KEYS_MAX
    assert 0 < len(encoders._NAMES) <= KEYS_MAX
    long = {"k" * 255: 1, "k" * 65: 2, "k" * 64: 3}
    assert read_map(write_map(long), 0)[0] == long
    assert max(map(len, encoders._NAMES)) == 64
    with pytest.raises(FrameSyntaxError, match="a key runs past the end"):
        read_map(struct.pack(">II", 8, 1) + b"\x09key", 0)


# ------------------------------------------------------------------------------------- the worst that is legal


def full(code: int, value: bytes, size: int = 131_072) -> bytes:
    """A map of lists of one value, as many as 128 KiB and the limits allow."""
    lists = []
    left = min(size // (len(value) + 1), 60_000)
    while left > 0:
        count = min(left, 4_096)
        body = (bytes((code,)) + value) * count
        lists.append(b"\x02%02d\xa9" % len(lists) + struct.pack(">II", len(body) + 4, count) + body)
        left -= count
    octets = b"".join(lists)
    return struct.pack(">II", len(octets) + 4, len(lists)) + octets


def full_of_keys(key_size: int) -> bytes:
    """Maps of different keys without a value."""
    maps = []
    left = min(131_072 // (key_size + 2), 60_000)
    while left > 0:
        count = min(left, 4_096)
        body = b"".join([b"%c%0*d\xf0" % (key_size, key_size, number) for number in range(count)])
        maps.append(b"\x02%02d\xa8" % len(maps) + struct.pack(">II", len(body) + 4, count) + body)
        left -= count
    octets = b"".join(maps)
    return struct.pack(">II", len(octets) + 4, len(maps)) + octets


SMALLEST = {code: bytes(FIXED_WIDTHS.get(code, {0x8: 1, 0x9: 2}.get(code >> 4, 4))) for code in DECODERS} | {
    0xAA: b"\x00\x00\x00\x05\xf0\x00\x00\x00\x00"
}
WORST: dict[str, bytes] = {f"0x{code:02x}": full(code, value) for code, value in SMALLEST.items()} | {
    "str8": full(0x85, b"\x01a"),
    "str8, no UTF-8": full(0x85, b"\x01\xff"),
    "string, no UTF-8": full(0x95, b"\x00\x01\xff"),
    "utf-16, half a pair": full(0x86, b"\x02\xd8\x00"),
    "utf-16, half a character": full(0x96, b"\x00\x01a"),
    "utf-32, no character": full(0x27, b"\xff\xff\xff\xff"),
    "decimal, all digits": full(0xC8, b"\xff\x80\x00\x00\x00"),
    "dec64, all digits": full(0xD8, b"\xff\x80" + bytes(7)),
    "keys of 4": full_of_keys(4),
    "keys of 200": full_of_keys(200),
}


@pytest.mark.parametrize("name", WORST)
def test_the_worst_legal_map_is_quick(name: str) -> None:
    octets = WORST[name]
    assert read_map(octets, 0)[1] == len(octets)
    assert seconds(lambda: read_map(octets, 0), enough=0.050) < 0.050


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
        {"k": Typed("nonsense", 1)},
        {"k": Typed(["unhashable"], 1)},
        {"k": Typed("uuid", 5)},
        {"k": Typed("decimal", 5)},
        {"k": Typed("dec64", "x")},
        {"k": Typed("double", "x")},
        {"k": Typed("timestamp", -1)},
        {"k": Typed("bytes", 5)},
        {"k": Typed("bytes", "text")},
        {"k": Typed("vbin16", [1, 2])},
        {"k": Typed("bin8", "x")},
        {"k": Typed("str8", 5)},
        {"k": Typed("str16-latin", "\u20ac\u4e00")},
        {"k": Typed("bool", 1)},
        {"k": Typed("void", 1)},
        {"k": Typed("bit", False)},
        {"k": Typed("table", 5)},
        {"k": Typed("table", [1])},
        {"k": Typed("array", "abc")},
        {"k": Typed("array", 5)},
        {"k": Typed("struct32", "x")},
        {"k": Typed("typed-array", b"\x21")},
        {"k": Typed("typed-array", b"\x03\x00\x00\x00\x00")},
        {"k": Typed("typed-array", b"\x21\x00\x00\x00\x02" + bytes(7))},
        {"k": Typed("typed-array", b"\x85\x00\x00\x00\x01\x05ab")},
        {"k": Typed("typed-array", b"\x85\x00\x00\x00\x01\x01abc")},
        {"k": [None] * 4_097},
        dict.fromkeys(map(str, range(4_097))),
        [1],
        None,
        "text",
        {"k": object()},
        {"k": [1, object()]},
    ],
    ids=lambda table: f"{table!r:.50}",
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
    assert carries("typed-array", Typed("typed-array", b"\x85\x00\x00\x00\x02\x01a\x00"))
    assert not carries("typed-array", Typed("typed-array", b"\x85\x00\x00\x00\x02\x01a"))
