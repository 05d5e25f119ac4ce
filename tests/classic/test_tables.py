"""Field tables: every type there and back with its width, limits, and octets that are no table."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import decode as pamqp_decode
from pamqp import encode as pamqp_encode

from gateway.amqp.values import Table, Timestamp, Typed, typed
from gateway.classic import tables
from gateway.classic.tables import PUBLISHED_TAGS, QPID_TAGS, RABBITMQ_TAGS, TableCodec
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.limits import Limits
from tests.pace import seconds

CODEC = TableCodec()
QPID = TableCodec(QPID_TAGS)


def octets_of(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return len(body).to_bytes(4, "big") + body


def read(octets: bytes, codec: TableCodec = CODEC) -> Table:
    table, at = codec.read(octets, 0, len(octets))
    assert at == len(octets)
    return table


SAMPLES: list[tuple[bytes, Any]] = [
    (b"t\x01", True),
    (b"t\x00", False),
    (b"b\xfd", Typed("int8", -3)),
    (b"B\xfd", Typed("uint8", 253)),
    (b"s\xff\xfe", Typed("int16", -2)),
    (b"u\xff\xfe", Typed("uint16", 65534)),
    (b"I\xff\xff\xff\xff", -1),
    (b"i\xff\xff\xff\xff", Typed("uint32", 4294967295)),
    (b"l\x00\x00\x00\x00\x00\x00\x00\x03", Typed("int64", 3)),
    (b"l\x00\x00\x01\x00\x00\x00\x00\x00", 1 << 40),
    (b"f\x3f\x00\x00\x00", Typed("float", 0.5)),
    (b"d\x3f\xe0\x00\x00\x00\x00\x00\x00", 0.5),
    (b"D\x02\xff\xff\xff\x85", Decimal("-1.23")),
    (b"D\x00\x00\x00\x00\x05", Decimal("5")),
    (b"S\x00\x00\x00\x02\xc3\xa9", "\u00e9"),
    (b"S\x00\x00\x00\x02\xff\xfe", Typed("string", b"\xff\xfe")),
    (b"x\x00\x00\x00\x02\xff\xfe", b"\xff\xfe"),
    (b"T\x00\x00\x00\x01\x00\x00\x00\x00", Timestamp(1 << 32)),
    (b"V", None),
    (b"F\x00\x00\x00\x03\x01kV", {"k": None}),
    (b"F\x00\x00\x00\x00", {}),
    (b"A\x00\x00\x00\x0dI\x00\x00\x00\x01S\x00\x00\x00\x01aVV", [1, "a", None, None]),
    (b"A\x00\x00\x00\x00", []),
]


@pytest.mark.parametrize(("octets", "value"), SAMPLES)
def test_there_and_back(octets: bytes, value: Any) -> None:
    whole = octets_of(b"\x01k", octets)
    table = read(whole)
    assert table == {"k": value}
    assert type(table["k"]) is type(value)
    assert CODEC.encode(table) == whole


@pytest.mark.parametrize(
    ("octets", "value"),
    [
        (b"c\x00\x00\x00\x02a\xff", Typed("str8-latin", "a\xff")),
        (b"C\x00\x00\x00\x02\xc3\xa9", Typed("str16-utf16", "\u00e9")),
        (b"k\x41", Typed("char", "A")),
    ],
)
def test_qpid_has_more(octets: bytes, value: Any) -> None:
    whole = octets_of(b"\x01k", octets)
    assert read(whole, QPID) == {"k": value}
    assert QPID.encode({"k": value}) == whole
    with pytest.raises(FrameSyntaxError, match="no type with the tag"):
        read(whole)


def test_the_published_dialect_has_five() -> None:
    codec = TableCodec(PUBLISHED_TAGS)
    assert read(octets_of(b"\x01kI\x00\x00\x00\x01"), codec) == {"k": 1}
    assert codec.has("int32")
    assert not codec.has("bool")
    with pytest.raises(EncodeError, match="table field 'k': this version has no type bool"):
        codec.encode({"k": True})
    with pytest.raises(FrameSyntaxError):
        read(octets_of(b"\x01kt\x01"), codec)
    with pytest.raises(FrameSyntaxError):
        read(octets_of(b"\x01kL" + bytes(8)), codec)


def test_an_alias_is_read_only() -> None:
    assert read(octets_of(b"\x01kL\x00\x00\x00\x00\x00\x00\x00\x07")) == {"k": Typed("int64", 7)}
    assert b"L" not in CODEC.encode({"k": 1 << 40})


def test_order_is_kept() -> None:
    table = {key: index for index, key in enumerate("zebra")}
    assert list(read(CODEC.encode(table))) == list("zebra")


def test_keys_are_octets() -> None:
    whole = octets_of(b"\x02\xff\xfeV")
    assert list(read(whole)) == ["\udcff\udcfe"]
    assert CODEC.encode(read(whole)) == whole


@pytest.mark.parametrize(("octets", "value"), SAMPLES)
def test_in_an_array(octets: bytes, value: Any) -> None:
    whole = octets_of(b"\x01kA", octets_of(octets, octets))
    table = read(whole)
    assert table == {"k": [value, value]}
    assert [type(item) for item in table["k"]] == [type(value)] * 2
    assert CODEC.encode(table) == whole


@pytest.mark.parametrize("octets", [octets for octets, _ in SAMPLES if len(octets) > 1])
def test_cut_in_an_array(octets: bytes) -> None:
    for length in range(1, len(octets)):
        with pytest.raises(FrameSyntaxError):
            read(octets_of(b"\x01kA", octets_of(octets[:length])))


@pytest.mark.parametrize("tag", ["b", "B", "k"])
def test_all_octets(tag: str) -> None:
    for octet in range(256):
        whole = octets_of(b"\x01k" + tag.encode() + bytes((octet,)))
        (value,) = read(whole, QPID).values()
        number = ord(value.value) if tag == "k" else value.value
        assert number == (octet - 256 if tag == "b" and octet > 127 else octet)
        assert QPID.encode({"k": value}) == whole


@pytest.mark.parametrize("octets", [octets for octets, _ in SAMPLES])
def test_cut_anywhere_is_a_syntax_error(octets: bytes) -> None:
    body = b"\x01k" + octets
    for length in range(1, len(body)):
        for behind in (b"", b"\xce\x01\x00\x01" * 8):
            data = octets_of(body[:length]) + behind
            with pytest.raises(FrameSyntaxError):
                CODEC.read(data, 0, 4 + length)
        with pytest.raises(FrameSyntaxError):  # the length says more than there is
            CODEC.read(octets_of(body)[: 4 + length], 0, 4 + length)


def test_an_unknown_tag_is_named() -> None:
    with pytest.raises(FrameSyntaxError, match="table field 'k': there is no type with the tag '!'"):
        read(octets_of(b"\x01k!"))
    with pytest.raises(FrameSyntaxError, match="array: there is no type with the tag '!'"):
        read(octets_of(b"\x01kA\x00\x00\x00\x01!"))


def test_a_length_of_nothing() -> None:
    for data in (b"", b"\x00\x00", b"\x00\x00\x00\x01"):
        with pytest.raises(FrameSyntaxError):
            CODEC.read(data, 0, len(data))


def nested(depth: int, tag: bytes) -> bytes:
    value = b"V"
    for _ in range(depth):
        body = value if tag == b"A" else b"\x01k" + value
        value = tag + len(body).to_bytes(4, "big") + body
    return octets_of(b"\x01k", value)


@pytest.mark.parametrize("tag", [b"A", b"F"])
def test_depth_has_a_limit(tag: bytes) -> None:
    assert read(nested(31, tag))
    for depth in (32, 5_000):
        with pytest.raises(FrameSyntaxError, match="more than 32 deep"):
            read(nested(depth, tag))


def test_encoding_has_the_same_limits() -> None:
    deep: Any = None
    for _ in range(40):
        deep = [deep]
    with pytest.raises(EncodeError, match="more than 32 deep"):
        CODEC.encode({"k": deep})
    deep = None
    for _ in range(40):
        deep = {"k": deep}
    with pytest.raises(EncodeError, match="more than 32 deep"):
        CODEC.encode({"k": deep})
    with pytest.raises(EncodeError, match="5000 items are over the limit of 4096"):
        CODEC.encode({"k": [None] * 5_000})
    with pytest.raises(EncodeError, match="5000 entries is over the limit of 4096"):
        CODEC.encode({str(index): None for index in range(5_000)})


def test_entries_and_values_have_limits() -> None:
    small = TableCodec(RABBITMQ_TAGS, Limits(table_entries=3, frame_elements=5))
    assert read(octets_of(b"\x01aV\x01bV\x01cV"), small)
    with pytest.raises(FrameSyntaxError, match="more than 3 entries"):
        read(octets_of(b"\x01aV\x01bV\x01cV\x01dV"), small)
    with pytest.raises(FrameSyntaxError, match="array of more than 3 entries"):
        read(octets_of(b"\x01aA\x00\x00\x00\x04VVVV"), small)
    with pytest.raises(FrameSyntaxError, match="more than 5 values"):
        read(octets_of(b"\x01aA\x00\x00\x00\x03VVV\x01bA\x00\x00\x00\x03VVV"), small)
    with pytest.raises(FrameSyntaxError, match="more than 5 values"):
        read(octets_of(b"\x01aA\x00\x00\x00\x03VVV\x01bV\x01cV"), small)


FRAME = 131_072 - 8 - 12 - 2
"""Octets that the property list of one frame of 128 KiB leaves for the headers."""


def full_of(piece: bytes) -> bytes:
    """The largest legal table of tables that hold nothing but this entry, 4,096 times each."""
    tables, left = [], FRAME - 4
    while (number := min(4_096, (left - 10) // len(piece))) > 0:
        tables.append(b"\x04%04dF" % len(tables) + octets_of(piece * number))
        left -= len(tables[-1])
    return octets_of(*tables)


def full_of_arrays(piece: bytes) -> bytes:
    """The same of arrays, with as many values as there may be."""
    arrays, left, values = [], FRAME - 4, 65_536
    while (number := min(4_096, (left - 10) // len(piece), values - 1)) > 0:
        arrays.append(b"\x04%04dA" % len(arrays) + octets_of(piece * number))
        left -= len(arrays[-1])
        values -= number + 1
    return octets_of(*arrays)


def full_of_keys(size: int) -> bytes:
    """The same of keys of so many octets, no two alike."""
    tables, left, names = [], FRAME - 4, iter(range(100_000))
    while (number := min(4_096, (left - 10) // (size + 2))) > 0:
        entries = (bytes((size,)) + b"%0*d" % (size, next(names)) + b"V" for _ in range(number))
        tables.append(b"\x04%04dF" % len(tables) + octets_of(*entries))
        left -= len(tables[-1])
    return octets_of(*tables)


def full_of_depth() -> bytes:
    """The same of tables 31 deep."""
    deep = b"\x01kV"
    for _ in range(30):
        deep = b"\x01kF" + octets_of(deep)
    return octets_of(*[deep] * ((FRAME - 4) // len(deep)))


SMALLEST = (
    b"V",
    b"b\x80",
    b"k\xff",
    b"u\xff\xff",
    b"f\x3f\x00\x00\x00",
    b"D\xff\x80\x00\x00\x00",
    b"c\x00\x00\x00\x00",
    b"x\x00\x00\x00\x00",
    b"F\x00\x00\x00\x00",
    b"A\x00\x00\x00\x00",
    b"S\x00\x00\x00\x01\xff",
)
WORST = {
    **{f"tables of {octets!r}": full_of(b"\x00" + octets) for octets in SMALLEST},
    **{f"arrays of {octets!r}": full_of_arrays(octets) for octets in SMALLEST},
    **{f"keys of {size} octets": full_of_keys(size) for size in (5, 100)},
    "depth": full_of_depth(),
}


@pytest.mark.parametrize("name", WORST)
def test_the_worst_legal_frame_is_quick(name: str) -> None:
    octets = WORST[name]
    assert read(octets, QPID)
    assert seconds(lambda: read(octets, QPID), enough=0.050) < 0.050


def test_what_is_over_the_limit_is_refused_as_quickly() -> None:
    voids = b"\x00A" + octets_of(b"V" * 4_096)
    octets = octets_of(voids * ((FRAME - 4) // len(voids)))

    def refuse() -> None:
        with pytest.raises(FrameSyntaxError, match="more than 65536 values"):
            read(octets)

    assert seconds(refuse, enough=0.050) < 0.050


def test_a_key_that_is_there_twice() -> None:
    """In the headers of a message nobody would see that a value is gone."""
    octets = octets_of(b"\x01kF", octets_of(b"\x01at\x01", b"\x01at\x00"))
    assert read(octets) == {"k": {"a": False}}
    with pytest.raises(FrameSyntaxError, match="a table of 2 entries has but 1 keys"):
        read(octets, CODEC.of_messages())
    assert read(octets_of(b"\x01at\x01", b"\x01bt\x00"), CODEC.of_messages()) == {"a": True, "b": False}


def test_overlapping_ends() -> None:
    with pytest.raises(FrameSyntaxError, match="past its end"):
        read(octets_of(b"\x01kF\x00\x00\x00\x02\x01k") + b"V")
    with pytest.raises(FrameSyntaxError, match="past its end"):
        CODEC.read(octets_of(b"\x01kA\x00\x00\x00\x02I\x00") + b"\x00" * 8, 0, 13)


def test_entries_without_a_length() -> None:
    entries = b"\x05LOGINS\x00\x00\x00\x01a"
    assert CODEC.read_entries(entries) == {"LOGIN": "a"}
    for cut in range(1, len(entries)):
        with pytest.raises(FrameSyntaxError):
            CODEC.read_entries(entries[:cut])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (1 << 64, "more than 64 bits"),
        ((1 << 64) - 1, "no type uint64"),
        (object(), "is no AMQP value"),
        (Typed("int8", 200), "200 does not fit int8"),
        (Typed("uint16", -1), "-1 does not fit uint16"),
        (Typed("int32", "x"), "'x' does not fit int32"),
        (Timestamp(-1), "does not fit timestamp"),
        (Decimal("1e-300"), "a scale of more than 255"),
        (Decimal("12345678901"), "more than 32 bits"),
        (Decimal("1e11"), "more than 32 bits"),
        (Decimal("NaN"), "not a number"),
        ("\ud800", "surrogates not allowed"),
        (Typed("string", 5), "5 does not fit string"),
        ([1, "\ud800"], "surrogates not allowed"),
    ],
)
def test_what_does_not_fit_names_the_field(value: Any, reason: str) -> None:
    with pytest.raises(EncodeError, match=rf"^table field 'key': .*{reason}"):
        CODEC.encode({"key": value})


def test_keys_that_do_not_fit() -> None:
    assert CODEC.encode({"k" * 255: None})
    with pytest.raises(EncodeError, match="256 octets are more than 255"):
        CODEC.encode({"k" * 256: None})
    with pytest.raises(EncodeError, match="table key 5"):
        CODEC.encode({5: None})  # type: ignore[dict-item]


def test_keys_are_kept_but_not_for_ever() -> None:
    rows = [{f"{start}-{index}": index for index in range(700)} for start in "abc"]
    for row in [*rows, *rows]:
        assert read(CODEC.encode(row)) == row
        assert 0 < len(tables._HEADS) <= tables.KEYS_MAX
        assert 0 < len(tables._KEYS) <= tables.KEYS_MAX
    long = {"k" * (tables.KEY_LENGTH + 1): 1}
    octets = CODEC.encode(long)
    assert read(octets) == long
    assert not tables._HEADS.keys() & long
    assert octets[4:-4] not in tables._KEYS


def test_a_key_is_kept_with_its_tag() -> None:
    for value in (1, "a", True, 1):
        assert read(CODEC.encode({"again": value})) == {"again": value}
    assert read(octets_of(b"\x05again", b"V\x05again", b"I\x00\x00\x00\x02")) == {"again": 2}


def test_a_positive_exponent_becomes_digits() -> None:
    assert read(CODEC.encode({"k": Decimal("1e3")})) == {"k": Decimal(1000)}


def integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1) if signed else 0, (1 << (bits - signed)) - 1)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    integers(64, True),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    integers(64, False).map(Timestamp),
    st.builds(
        lambda unscaled, scale: Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale)),
        integers(32, True),
        st.integers(0, 255),
    ),
    st.floats(width=32, allow_nan=False).map(lambda value: Typed("float", value)),
    st.binary().map(lambda value: Typed("string", b"\xff" + value)),
    *(
        integers(bits, signed).map(lambda value, kind=kind: typed(kind, value))
        for kind, bits, signed in (
            ("int8", 8, True),
            ("uint8", 8, False),
            ("int16", 16, True),
            ("uint16", 16, False),
            ("int32", 32, True),
            ("uint32", 32, False),
            ("int64", 64, True),
        )
    ),
)
KEYS = st.text(max_size=60)
TABLES = st.dictionaries(
    KEYS,
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=5),
        max_leaves=15,
    ),
    max_size=8,
)


@given(TABLES)
def test_any_table_comes_back(table: Table) -> None:
    octets = CODEC.encode(table)
    back = read(octets)
    assert back == table
    assert list(back) == list(table)
    assert CODEC.encode(back) == octets


@given(st.binary(max_size=200))
def test_any_octets_are_a_table_or_a_syntax_error(octets: bytes) -> None:
    data = octets_of(octets)
    try:
        CODEC.read(data, 0, len(data))
    except FrameSyntaxError:
        pass


def test_another_library_reads_what_we_write() -> None:
    table = {"a": 1, "b": "two", "c": [1, True, None], "d": {"e": 1 << 40}, "f": b"\xff", "g": 0.5}
    octets = CODEC.encode(table)
    assert pamqp_decode.field_table(octets) == (len(octets), table)
    del table["f"], table["g"]  # of which it cannot write the one, and narrows the other
    assert read(pamqp_encode.field_table(table)) == {
        "a": Typed("int8", 1),
        "b": "two",
        "c": [Typed("int8", 1), True, None],
        "d": {"e": 1 << 40},
    }
