"""What a version cannot carry comes back, and only where it is still true."""

import json
import time
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.amqp.message import Properties, ReplyTo
from gateway.amqp.values import DRAFT_STRINGS, Timestamp, Typed, Value, type_of
from gateway.fidelity import NO_HOME, RESERVED, RESHAPES, Home, annotate, annotation, fit, restore
from tests.pace import pace

NARROW = Home(
    properties={
        "type": lambda value: NO_HOME,
        "timestamp": lambda value: NO_HOME,
        "priority": lambda value: min(value, 9),
        "message_id": lambda value: "mapped:" + value,
        "reply_to": lambda value: value.routing_key if isinstance(value, ReplyTo) else value,
        "correlation_id": lambda value: value if isinstance(value, str) else "",
        "user_id": lambda value: NO_HOME,
    },
    carries=lambda kind, value: kind in {"int32", "table"} or (kind == "string" and isinstance(value, str)),
)
"""Lacks most header types, and every property that it can lack."""

EVERYTHING = Home(properties={}, carries=lambda kind, value: True)

SAMPLES: dict[str, Value] = {
    **{kind: Typed(kind, "é") for kind in DRAFT_STRINGS},
    "uuid": UUID(int=7),
    "uint64": 2**64 - 1,
    "dec64": Typed("dec64", Decimal("1.50")),
    "char": Typed("char", "é"),
    "str8": Typed("str8", "a"),
    "str16-utf16": Typed("str16-utf16", "a"),
    "str8-latin": Typed("str8-latin", "é"),
    "sequence-no": Typed("sequence-no", 9),
    "str8-utf16": Typed("str8-utf16", "a"),
    "str16-latin": Typed("str16-latin", "é"),
    "char-utf32": Typed("char-utf32", "é"),
    "bit": Typed("bit", True),
    "uint8": Typed("uint8", 255),
    "uint16": Typed("uint16", 65535),
    "uint32": Typed("uint32", 5),
    "timestamp": Timestamp(5),
    "decimal": Decimal("1.50"),
    "string": Typed("string", b"\xff\x00"),
    "table": {},
    "bool": True,
    "int8": Typed("int8", -5),
    "int16": Typed("int16", -5),
    "int64": 1 << 40,
    "float": Typed("float", 0.5),
    "double": 0.1,
    "void": None,
    "bytes": b"\xff\x00",
    "array": [1, ["x"]],
} | {
    kind: Typed(kind, b"\x01\x02")
    for kind in RESHAPES
    if kind.startswith(("bin", "vbin")) or kind in {"struct32", "typed-array"}
}


def there_and_back(properties: Properties, home: Home = NARROW) -> Properties:
    return restore(fit(properties, home), home)


def test_what_fits_is_the_same_object() -> None:
    properties = Properties(content_type="text/plain", headers={"a": 1})
    assert fit(properties, NARROW) is properties
    assert restore(properties, NARROW) is properties


@pytest.mark.parametrize(
    "properties",
    [
        Properties(type="t"),
        Properties(timestamp=2**64 - 1),
        Properties(priority=200),
        Properties(message_id="m-1"),
        Properties(reply_to=ReplyTo("ex", "key")),
        Properties(reply_to=ReplyTo("\udcff", "")),
        Properties(correlation_id=b"\xff\x00"),
        Properties(type="\udcff"),
        Properties(type="t", headers={"n": 1}),
    ],
)
def test_properties_without_a_home_come_back(properties: Properties) -> None:
    fitted = fit(properties, NARROW)
    assert fitted != properties
    assert RESERVED in (fitted.headers or {})
    assert restore(fitted, NARROW) == properties


@pytest.mark.parametrize("kind", sorted(SAMPLES))
def test_header_values_without_a_type_come_back(kind: str) -> None:
    value = SAMPLES[kind]
    assert type_of(value) == kind
    properties = Properties(headers={"first": 1, "a": {"b": [True, value]}, "last": value})
    fitted = fit(properties, NARROW)
    assert fitted.headers is not None
    assert NARROW.carries(type_of(fitted.headers["last"]), fitted.headers["last"])
    back = restore(fitted, NARROW)
    assert back == properties
    assert list(back.headers or {}) == ["first", "a", "last"]


def test_every_reshape_has_a_sample() -> None:
    assert SAMPLES.keys() == RESHAPES.keys()


def test_a_type_that_nothing_can_carry_is_an_error_that_names_it() -> None:
    with pytest.raises(TypeError, match=r"headers?.*a/b.*strange"):
        fit(Properties(headers={"a": {"b": Typed("strange", 1)}}), NARROW)
    nothing = replace(NARROW, carries=lambda kind, value: False)
    with pytest.raises(TypeError, match=r"header a: no way to carry a value of type (string|bytes)"):
        fit(Properties(headers={"a": "x"}), nothing)


def test_what_an_application_changed_wins() -> None:
    fitted = fit(Properties(message_id="m-1", priority=200, headers={"u": UUID(int=7)}), NARROW)
    changed = replace(fitted, message_id="mine", headers={**(fitted.headers or {}), "u": 5})
    assert restore(changed, NARROW) == Properties(message_id="mine", priority=200, headers={"u": 5})


def test_user_id_is_never_restored_and_travels_as_a_claim() -> None:
    back = there_and_back(Properties(user_id="root"))
    assert back == Properties(headers={RESERVED: {"user_id": "root"}})
    assert there_and_back(back) == back


@pytest.mark.parametrize(
    "entry",
    [
        "text",
        {"properties": "text"},
        {"properties": {"headers": {"value": "x"}}},
        {"properties": {"unknown": {"value": "x"}}},
        {"properties": {"type": ["x"]}},
        {"properties": {"type": "x" * 256}},
        {"properties": {"content_type": "x"}},
        {"properties": {"user_id": "root"}},
        {"properties": {"priority": "200"}},
        {"properties": {"priority": "256"}},
        {"properties": {"message_id": {"octets": "00"}}},
        {"properties": {"timestamp": "99999999999999999999"}},
        {"properties": {"reply_to": {"exchange": "x" * 256, "routing_key": "x"}}},
        {"properties": {"type": {"value": 5}}},
        {"properties": {"type": {"value": {"octets": 5}}}},
        {"properties": {"type": {"value": {"octets": "zz"}}}},
        {"properties": {"type": {"value": {"strange": "zz"}}}},
        {"properties": {"reply_to": {"value": {"exchange": 1, "routing_key": "x"}}}},
        {"properties": {"priority": {"value": "-1"}}},
        {"properties": {"priority": {"value": "9" * 30}}},
        {"types": "no json"},
        {"types": "[" * 100_000},
        {"types": "5"},
        {"types": '[5, [["absent"], "uuid"], [["n"], "strange"], [["n"], "uuid"], [["n", "deeper"], "uuid"]]'},
        {"types": '[[["s"], "uuid"], [["s"], "uint64"], [["s"], "dec64"]]'},
    ],
)
def test_a_forged_or_broken_entry_changes_nothing(entry: Any) -> None:
    properties = Properties(headers={"n": 1, "s": "text", "l": [1]})
    found = restore(replace(properties, headers={**(properties.headers or {}), RESERVED: entry}), NARROW)
    assert {key: value for key, value in (found.headers or {}).items() if key != RESERVED} == properties.headers
    assert replace(found, headers=None) == Properties()


def test_annotations_stay_when_the_rest_is_restored() -> None:
    fitted = fit(annotate(Properties(type="t", headers={"n": 1}), id="0190"), NARROW)
    back = restore(fitted, NARROW)
    assert back == Properties(type="t", headers={"n": 1, RESERVED: {"id": "0190"}})
    assert annotation(back, "id") == "0190"
    assert annotation(back, "absent") is None
    assert annotation(Properties(), "id") is None
    assert annotation(Properties(headers={RESERVED: "text"}), "id") is None


def test_absent_and_empty_headers_are_told_apart() -> None:
    assert there_and_back(Properties(type="t", headers={})) == Properties(type="t", headers={})
    assert there_and_back(Properties(type="t")) == Properties(type="t")


texts = st.text(max_size=20)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | texts
    | st.binary(max_size=9)
    | st.uuids(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
WIDE = replace(NARROW, carries=lambda kind, value: kind not in {"uuid", "uint64", "string"})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("uuid", Typed("string", b"\xff")),
        ("decimal", Typed("string", b"\xff")),
        ("uint64", "9" * 30),
        ("uint16", Typed("int32", [])),
    ],
)
def test_a_forged_type_restores_nothing(kind: str, value: Value) -> None:
    headers = {"a": value, RESERVED: {"types": json.dumps([[["a"], kind]])}}
    assert restore(Properties(headers=headers), NARROW).headers == {"a": value}


@pytest.mark.parametrize("path", [["a", 5], ["a", "x"], ["a", -1], ["b", "c", "d"], ["b", 0], ["x"], ["a", 0, 0]])
def test_a_forged_path_restores_nothing(path: list[Any]) -> None:
    inner: Value = {"a": ["x"], "b": {"c": "y"}}
    headers = {**inner, RESERVED: {"types": json.dumps([[path, "uuid"]])}}
    assert restore(Properties(headers=headers), NARROW).headers == inner


def test_the_headers_that_came_are_not_written_to() -> None:
    inner: Value = {"a": ["00000000-0000-0000-0000-000000000007", {"b": "9"}]}
    entries = [[["a", 0], "uuid"], [["a", 1, "b"], "uint64"], [["a", 1, "b"], "int64"], [["a", 0], "uuid"]]
    headers = {**inner, RESERVED: {"types": json.dumps(entries)}}
    assert restore(Properties(headers=headers), NARROW).headers == {"a": [UUID(int=7), {"b": Typed("uint64", 9)}]}
    assert inner == {"a": ["00000000-0000-0000-0000-000000000007", {"b": "9"}]}


def test_a_forged_list_of_types_is_no_quadratic_work() -> None:
    """Sixty thousand entries, each for a table of twenty thousand: copied for each, that is seconds."""
    table = {str(number): "x" for number in range(20_000)}
    headers = {**table, "a": table, RESERVED: {"types": json.dumps([[["a", "1"], "uuid"], [["1"], "uuid"]] * 30_000)}}
    properties = Properties(headers=headers)
    start = time.process_time()
    restored = restore(properties, NARROW).headers
    assert time.process_time() - start < 6 * pace()
    assert restored == {**table, "a": table}


@given(
    st.builds(
        Properties,
        type=st.none() | texts,
        message_id=st.none() | texts,
        priority=st.none() | st.integers(0, 255),
        timestamp=st.none() | st.integers(0, 2**64 - 1),
        correlation_id=st.none() | texts | st.binary(max_size=9),
        headers=st.none() | st.dictionaries(texts.filter(lambda key: key != RESERVED), plain, max_size=4),
    )
)
def test_there_and_back_is_the_identity(properties: Properties) -> None:
    # correlation ids that are text keep their value, those that are octets become "" and come back
    back = there_and_back(properties, WIDE)
    assert back == properties
    assert list(back.headers or {}) == list(properties.headers or {})
    assert there_and_back(properties, EVERYTHING) is properties
