"""Field tables of the draft."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from gateway.amqp.values import DRAFT_STRINGS, TYPES, Timestamp, Typed
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.limits import Limits
from gateway.v010_draft.tables import DECODERS, ENCODERS, Tables, carries

TABLES = Tables()
VALUES: dict[str, Any] = {
    "void": None,
    "bool": True,
    "int32": 5,
    "int64": 1 << 40,
    "uint64": 1 << 63,
    "double": 1.5,
    "string": "text",
    "bytes": b"\x00\xff",
    "decimal": Decimal("1.50"),
    "timestamp": Timestamp(5),
    "uuid": UUID(int=5),
    "table": {"a": 1, "b": {"c": [1]}},
    "array": [1, "two", [], {"three": None}],
    "int8": Typed("int8", -1),
    "uint8": Typed("uint8", 1),
    "int16": Typed("int16", -1),
    "uint16": Typed("uint16", 1),
    "uint32": Typed("uint32", 1),
    "float": Typed("float", 0.5),
    "dec64": Typed("dec64", Decimal("1.5")),
    "char": Typed("char", "a"),
    "char-utf32": Typed("char-utf32", "☃"),
    "vbin8": Typed("vbin8", b"x"),
    "vbin16": Typed("vbin16", b"x"),
    "typed-array": Typed("typed-array", b"\x01\x00\x00\x00\x01\x05"),
    **{kind: Typed(kind, "aé") for kind in TYPES if kind.startswith("str") and kind not in ("string", "struct32")},
    **{f"bin{bits}": Typed(f"bin{bits}", bytes(bits // 8)) for bits in (8, 16, 32, 40, 64, 72, 128, 256, 512, 1024)},
}


def test_every_type_is_there_but_those_of_the_final_alone() -> None:
    assert set(ENCODERS) == set(VALUES)
    assert TYPES - set(ENCODERS) == {"struct32", "bit", "sequence-no", "bin48"}
    assert len(DECODERS) == 49 - 3
    assert TABLES.has("str32")
    assert not TABLES.has("struct32")


@pytest.mark.parametrize("kind", sorted(VALUES))
def test_every_type_is_written_as_it_is_read(kind: str) -> None:
    table = {"before": 1, "": VALUES[kind], "behind": "x"}
    octets = TABLES.encode(table)
    assert TABLES.read(b"!" + octets + b"!", 1, 1 + len(octets)) == (table, 1 + len(octets))
    assert carries(kind, VALUES[kind] if kind not in ("table", "array") else type(VALUES[kind])())


def test_a_table_has_no_count() -> None:
    assert TABLES.encode({"a": 1}) == b"\x00\x00\x00\x07\x01a\x21\x00\x00\x00\x01"
    assert TABLES.encode({"a": [None]}) == b"\x00\x00\x00\x08\x01a\xa9\x00\x00\x00\x01\xf0"


def test_wide_strings_that_are_no_text_stay_octets() -> None:
    for kind in DRAFT_STRINGS:
        value = Typed(kind, b"\xff\xfe\xff")
        read = TABLES.read(TABLES.encode({"a": value}), 0, len(TABLES.encode({"a": value})))[0]["a"]
        assert TABLES.encode({"a": read}) == TABLES.encode({"a": value})


WHOLE = TABLES.encode(VALUES)


@pytest.mark.parametrize("size", range(0, len(WHOLE), 7))
def test_a_table_that_is_cut_short(size: int) -> None:
    with pytest.raises(FrameSyntaxError):
        TABLES.read(WHOLE[:size], 0, size)


@pytest.mark.parametrize(
    "octets",
    [
        b"\x00\x00\x00\x03\x01a\xf1",
        b"\x00\x00\x00\x03\x01a\xab",
        b"\x00\x00\x00\x02\x01a\x21\x00\x00\x00\x01",
        b"\x00\x00\x00\x07\x01a\xa9\x00\x00\x00\x04\x21\x00\x00\x00\x00",
        b"\x00\x00\x00\x09\x01a\xa9\x00\x00\x00\x02\x11\x00\x00",
    ],
    ids=["bit", "struct32", "runs over", "a sequence that runs over", "a sequence whose value runs over"],
)
def test_octets_that_are_no_table(octets: bytes) -> None:
    with pytest.raises(FrameSyntaxError):
        TABLES.read(octets, 0, len(octets))


def test_a_key_that_is_there_twice() -> None:
    octets = TABLES.encode({"a": True, "b": False})
    with pytest.raises(FrameSyntaxError, match="a table of 2 entries has but 1 keys"):
        TABLES.read(octets.replace(b"\x01b", b"\x01a"), 0, len(octets))


def nested(depth: int) -> Any:
    value: Any = 1
    for index in range(depth):
        value = [value] if index % 2 else {"a": value}
    return value


def test_limits_of_reading() -> None:
    tables = Tables(Limits(table_depth=3, table_entries=4, frame_elements=6))
    fine = TABLES.encode({"a": {"b": {"c": 1}}})
    assert tables.read(fine, 0, len(fine))[0] == {"a": {"b": {"c": 1}}}
    for value in ({"a": {"b": {"c": {}}}}, {"a": [0] * 5}, dict.fromkeys("abcde"), {"a": [0] * 4, "b": [0] * 2}):
        octets = TABLES.encode(value)
        with pytest.raises(FrameSyntaxError):
            tables.read(octets, 0, len(octets))


@pytest.mark.parametrize(
    "table",
    [
        {"a": nested(40)},
        {"a": [nested(40)]},
        {"a" * 256: 1},
        {"\ud800": 1},
        {1: 1},
        {"a": 1 << 70},
        {"a": "x" * 65_536},
        {"a": Typed("array", "text")},
        {"a": Typed("struct32", b"")},
        {"a": Typed("str8-utf32", 5)},
        {"a": Typed("str8-utf32", "x" * 64)},
        dict.fromkeys(map(str, range(4_097))),
        {"a": [0] * 4_097},
    ],
)
def test_what_does_not_fit_is_refused(table: Any) -> None:
    with pytest.raises(EncodeError):
        TABLES.encode(table)


def test_what_is_carried() -> None:
    assert carries("key", "é")
    assert carries("item", 1)
    assert not carries("string", "x" * 65_536)
    assert not carries("bit", Typed("bit", True))


def test_the_response_of_amqplain_has_classic_types() -> None:
    assert TABLES.read_entries(b"\x05LOGINS\x00\x00\x00\x01a\x08PASSWORDS\x00\x00\x00\x01b") == {
        "LOGIN": "a",
        "PASSWORD": "b",
    }
