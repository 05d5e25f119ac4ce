"""The wire type that each plain value stands for."""

from decimal import Decimal
from uuid import UUID

import pytest

from gateway.amqp.values import TYPES, Timestamp, Typed, type_of, typed


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "void"),
        (True, "bool"),
        (0, "int32"),
        (-(2**31), "int32"),
        (2**31, "int64"),
        (-(2**63), "int64"),
        (2**63, "uint64"),
        (1.5, "double"),
        ("a", "string"),
        (b"a", "bytes"),
        (Decimal("1.50"), "decimal"),
        (Timestamp(2**40), "timestamp"),
        (UUID(int=1), "uuid"),
        ({"a": 1}, "table"),
        ([1], "array"),
        (Typed("int8", 3), "int8"),
    ],
)
def test_type_of(value: object, kind: str) -> None:
    assert type_of(value) == kind
    assert kind in TYPES


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_integers_wider_than_64_bits_are_refused_by_value(value: int) -> None:
    with pytest.raises(OverflowError, match=str(value)):
        type_of(value)


def test_what_is_no_amqp_value_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="a object is no AMQP value"):
        type_of(object())


def test_typed_is_plain_where_the_plain_value_stands_for_the_type() -> None:
    assert typed("int32", 3) == 3
    assert typed("int64", 3) == Typed("int64", 3)
    assert typed("int64", 2**40) == 2**40
    assert typed("string", b"\xff") == Typed("string", b"\xff")


def test_a_timestamp_is_not_an_integer_of_the_same_value() -> None:
    assert type_of(Timestamp(5)) != type_of(5)
    assert repr(Timestamp(5)) == "Timestamp(5)"
