"""AMQP values as JSON, and back."""

from __future__ import annotations

import math
from base64 import b64encode
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import notation
from gateway.amqp.values import TYPES, Timestamp, Typed, type_of, typed
from gateway.notation.values import (
    BASE64_PART,
    WORDS,
    ValueProblem,
    octets_from_json,
    table_from_json,
    table_to_json,
    text_to_json,
    value_from_json,
    value_to_json,
)

PAIRS: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    (3, 3),
    (1 << 40, 1 << 40),
    ((1 << 64) - 1, (1 << 64) - 1),
    (1.5, 1.5),
    (math.inf, {"type": "double", "value": "inf"}),
    (-math.inf, {"type": "double", "value": "-inf"}),
    ("é", "é"),
    (b"\x00\xff", {"type": "bytes", "value": "AP8="}),
    (Decimal("1.50"), {"type": "decimal", "value": "1.50"}),
    (Timestamp(5), {"type": "timestamp", "value": 5}),
    (UUID(int=1), {"type": "uuid", "value": "00000000-0000-0000-0000-000000000001"}),
    ([1, [2]], [1, [2]]),
    ({"a": {"b": 1}}, {"a": {"b": 1}}),
    ({"type": "int8", "value": 3}, {"type": "table", "value": {"type": "int8", "value": 3}}),
    ({"\udcff": 1}, {"type": "table", "value": [[{"type": "binary", "value": "/w=="}, 1]]}),
    (Typed("int8", 3), {"type": "int8", "value": 3}),
    (Typed("uint64", 3), {"type": "uint64", "value": 3}),
    (Typed("float", 1.5), {"type": "float", "value": 1.5}),
    (Typed("float", math.inf), {"type": "float", "value": "inf"}),
    (Typed("string", b"\xff"), {"type": "string", "value": {"type": "binary", "value": "/w=="}}),
    (Typed("str8", "x"), {"type": "str8", "value": "x"}),
    (Typed("vbin8", b"\x01"), {"type": "vbin8", "value": "AQ=="}),
    (Typed("bin16", b"\x01\x02"), {"type": "bin16", "value": "AQI="}),
    (Typed("dec64", Decimal("2.5")), {"type": "dec64", "value": "2.5"}),
    (Typed("char", "é"), {"type": "char", "value": "é"}),
    (Typed("sequence-no", 7), {"type": "sequence-no", "value": 7}),
    (Typed("struct32", b"\x01"), {"type": "struct32", "value": "AQ=="}),
    (Typed("typed-array", b"\x01"), {"type": "typed-array", "value": "AQ=="}),
]


@pytest.mark.parametrize(("value", "json"), PAIRS, ids=lambda item: repr(item)[:40])
def test_there_and_back(value: Any, json: Any) -> None:
    assert value_to_json(value) == json
    found = value_from_json(msgspec.json.decode(msgspec.json.encode(json)))
    assert found == value
    assert type_of(found) == type_of(value)


@pytest.mark.parametrize("size", [0, 1, 2, 3, BASE64_PART // 4 * 3 - 1, BASE64_PART // 4 * 3, BASE64_PART * 2 + 1])
def test_base64_of_any_length(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decode, sizes = notation.values.a2b_base64, []

    def noted(text: str, *, strict_mode: bool) -> bytes:
        sizes.append(len(text))
        return decode(text, strict_mode=strict_mode)

    monkeypatch.setattr(notation.values, "a2b_base64", noted)
    octets = bytes(index * index % 251 for index in range(size))
    assert octets_from_json(b64encode(octets).decode()) == octets
    assert max(sizes) <= BASE64_PART


@pytest.mark.parametrize(
    "text",
    [
        f"{'A' * (BASE64_PART - 4)}AA==AAAA",  # padding where the first part ends
        f"{'A' * (BASE64_PART - 1)}=AAA=",
        f"{'A' * BASE64_PART}=",
        f"{'A' * BASE64_PART}A",
        f"{'A' * BASE64_PART}AAA",
        f"{'A' * BASE64_PART * 2}A!AA",
        f"{'A' * BASE64_PART * 2}AA\n==",
        f"{'A' * BASE64_PART}é===",
    ],
    ids=lambda text: text[-8:],
)
def test_long_base64_is_checked_as_a_whole(text: str) -> None:
    with pytest.raises(ValueProblem, match="not base64"):
        octets_from_json(text)


def test_nan() -> None:
    assert value_to_json(math.nan) == {"type": "double", "value": "nan"}
    assert math.isnan(value_from_json({"type": "double", "value": "nan"}))


def test_an_integer_with_a_wider_type_keeps_it() -> None:
    assert value_from_json({"type": "int64", "value": 3}) == Typed("int64", 3)
    assert value_from_json({"type": "int32", "value": 3}) == 3
    assert value_from_json({"type": "double", "value": 3}) == 3.0
    assert type(value_from_json({"type": "double", "value": 3})) is float


def test_every_type_has_a_json_form() -> None:
    for kind in TYPES - {"table", "array"}:
        with pytest.raises(ValueProblem) as caught:
            value_from_json({"type": kind, "value": {"no": "value"}})
        assert caught.value.pointer.startswith("/value"), kind


@pytest.mark.parametrize(
    ("json", "pointer"),
    [
        (1 << 64, ""),
        (-(1 << 63) - 1, ""),
        ({"a": [1, {"b": 1 << 70}]}, "/a/1/b"),
        ({"a/b": {"~": 1 << 70}}, "/a~1b/~0"),
        ({"type": "int8", "value": 128}, "/value"),
        ({"type": "int8", "value": True}, "/value"),
        ({"type": "int8", "value": 1.0}, "/value"),
        ({"type": "nonsense", "value": 1}, "/type"),
        ({"type": ["int8"], "value": 1}, "/type"),
        ({"type": "bytes", "value": "not base64!"}, "/value"),
        ({"type": "bytes", "value": "AP8"}, "/value"),
        ({"type": "bytes", "value": "é"}, "/value"),
        ({"type": "bin16", "value": "AQ=="}, "/value"),
        ({"type": "float", "value": 1e300}, "/value"),
        ({"type": "double", "value": 10**400}, "/value"),
        ({"type": "decimal", "value": "1,5"}, "/value"),
        ({"type": "decimal", "value": "nan"}, "/value"),
        ({"type": "timestamp", "value": -1}, "/value"),
        ({"type": "uuid", "value": "x"}, "/value"),
        ({"type": "char", "value": "xy"}, "/value"),
        ({"type": "void", "value": 1}, "/value"),
        ({"type": "bool", "value": 1}, "/value"),
        ({"type": "bit", "value": False}, "/value"),
        ({"type": "array", "value": {}}, "/value"),
        ({"type": "table", "value": 1}, "/value"),
        ({"type": "table", "value": [["a"]]}, "/value/0"),
        ({"type": "table", "value": [[1, 2]]}, "/value/0/0"),
        ({"type": "table", "value": [["a", 1], ["a", 2]]}, "/value/1/0"),
        ({"type": "binary", "value": "?"}, "/value"),
        ({"é" * 128: 1}, "/" + "é" * 128),
    ],
)
def test_what_is_no_value_is_pointed_at(json: Any, pointer: str) -> None:
    with pytest.raises(ValueProblem) as caught:
        value_from_json(json)
    assert caught.value.pointer == pointer


def test_keys_of_255_octets_and_nesting_to_the_limit() -> None:
    table_from_json({"x" * 255: 1, "é" * 127: 1})
    deep: Any = 1
    for _ in range(31):
        deep = {"a": deep}
    table_from_json({"a": deep})
    with pytest.raises(ValueProblem, match="nested deeper"):
        table_from_json({"a": {"a": deep}})
    with pytest.raises(ValueProblem, match="nested deeper"):
        value_from_json(_nested_arrays(40))
    with pytest.raises(ValueProblem, match="more than 4096"):
        table_from_json({str(n): n for n in range(4097)})
    with pytest.raises(ValueProblem, match="more than 4096"):
        value_from_json([0] * 4097)


def _nested_arrays(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def test_text() -> None:
    assert text_to_json("a\udcffb") == {"type": "binary", "value": "Yf9i"}
    assert text_to_json("é") == "é"
    assert value_from_json({"type": "binary", "value": "Yf8="}) == Typed("string", b"a\xff")


@pytest.mark.parametrize("octets", ["AAE=", "w6k=", ""])
def test_bytes_that_are_text_are_not_called_binary(octets: str) -> None:
    """They would come back as a string."""
    with pytest.raises(ValueProblem, match="did you mean bytes") as refused:
        value_from_json({"n": [{"type": "binary", "value": octets}]})
    assert refused.value.pointer == "/n/0/type"


@pytest.mark.parametrize(
    ("word", "meant"), [("byte", "bytes"), ("UInt8", "uint8"), ("boolean", "bool"), ("int_64", "int64"), ("quux", "")]
)
def test_a_type_that_there_is_not(word: str, meant: str) -> None:
    with pytest.raises(ValueProblem) as refused:
        value_from_json({"type": word, "value": 1})
    assert refused.value.pointer == "/type"
    assert ("did you mean" in refused.value.detail) is bool(meant)
    assert f"did you mean {meant}?" in refused.value.detail or not meant
    assert "void, bool, int8" in refused.value.detail
    assert set(WORDS) == TYPES | {"binary"}


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.builds(Timestamp, st.integers(0, (1 << 64) - 1))
    | st.uuids()
    | st.builds(Typed, st.just("int8"), st.integers(-128, 127))
)
keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.just("\udcff")
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=10)


@given(st.dictionaries(keys | st.sampled_from(["type", "value"]), values))
def test_any_table_survives(table: dict[str, Any]) -> None:
    json = msgspec.json.decode(msgspec.json.encode(table_to_json(table)))
    assert value_from_json(json) == table


@pytest.mark.parametrize(
    ("kind", "number", "fits"),
    [
        ("double", 1 << 53, True),
        ("double", (1 << 53) + 1, False),
        ("double", 10**300, False),
        ("float", 1 << 24, True),
        ("float", (1 << 24) + 1, False),
        ("float", (1 << 53) + 1, False),
    ],
)
def test_an_integer_is_not_rounded(kind: str, number: int, fits: bool) -> None:
    if fits:
        assert value_from_json({"type": kind, "value": number}) == typed(kind, float(number))
        return
    with pytest.raises(ValueProblem, match="precision"):
        value_from_json({"type": kind, "value": number})
