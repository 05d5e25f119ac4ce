"""The methods that only 0-8 has: there and back, cut, with trailing octets; and what each dialect has of them."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.classic import methods as m
from gateway.v08.dialect import DIALECTS, PUBLISHED, QPID, RABBITMQ
from gateway.v08.methods import DIFFERENT, OF_PRODUCTS, OF_THE_DEFINITION
from gateway.v08.unserved import UNSERVED as TABLE
from tests.classic.values import TABLES, check_cut_and_trailing, check_there_and_back

UNSERVED = TABLE.methods
NAMED = {method.title: method for method in UNSERVED}
EACH = pytest.mark.parametrize("method", [*DIFFERENT, *UNSERVED], ids=lambda method: method.__name__)


def test_they_are_none_of_the_shared_ones() -> None:
    own = (*DIFFERENT, *UNSERVED, *OF_PRODUCTS)
    assert not set(own) & set(m.SHARED)
    assert not {method.key for method in own} & {method.key for method in m.SHARED}
    for dialect in (RABBITMQ, QPID):
        assert all(dialect.methods[method.key] is method for method in own)
    assert all(PUBLISHED.methods[method.key] is method for method in (*DIFFERENT, *UNSERVED, *OF_THE_DEFINITION))
    assert not {method.key for method in OF_PRODUCTS} & PUBLISHED.methods.keys()


def test_the_classes_that_no_session_serves() -> None:
    assert Counter(method.class_id for method in UNSERVED) == {70: 14, 80: 9, 100: 4, 110: 1, 120: 8}
    assert all(dialect.unserved == {method.key for method in UNSERVED} for dialect in DIALECTS.values())
    assert {number: len(names) for number, names in TABLE.properties.items()} == {70: 9, 80: 5, 110: 5}


@EACH
def test_any_arguments_come_back(method: type[m.Method]) -> None:
    check_there_and_back(method)


@EACH
def test_cut_and_trailing(method: type[m.Method]) -> None:
    check_cut_and_trailing(method)


@pytest.mark.parametrize(
    ("message", "octets"),
    [
        (
            NAMED["file.publish"](7, "e", "k", True, True, "i"),
            b"\x00\x46\x00\x3c\x00\x07\x01e\x01k\x03\x01i",
        ),
        (NAMED["file.open"]("i", 1 << 40), b"\x00\x46\x00\x28\x01i\x00\x00\x01\x00\x00\x00\x00\x00"),
        (NAMED["stream.consume"](1, "q", "t", False, True, True), b"\x00\x50\x00\x14\x00\x01\x01q\x01t\x06"),
        (NAMED["stream.qos"](1, 2, 3, True), b"\x00\x50\x00\x0a\x00\x00\x00\x01\x00\x02\x00\x00\x00\x03\x01"),
        (NAMED["dtx.start"]("t"), b"\x00\x64\x00\x14\x01t"),
        (NAMED["tunnel.request"]({}), b"\x00\x6e\x00\x0a\x00\x00\x00\x00"),
        (
            NAMED["test.integer"](1, 2, 3, 4, 5),
            b"\x00\x78\x00\x0a\x01\x00\x02\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x04\x05",
        ),
        (NAMED["test.content-ok"](9), b"\x00\x78\x00\x29\x00\x00\x00\x09"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_octets(message: m.Method, octets: bytes) -> None:
    """Written by hand from the definition, as no library speaks 0-8."""
    assert message.encode(TABLES) == octets


def test_replies_and_content() -> None:
    assert NAMED["file.open-ok"].replies == (NAMED["file.stage"],)
    assert NAMED["stream.qos"].replies == (NAMED["stream.qos-ok"],)
    assert {method.title for method in UNSERVED if method.content} == {
        "file.stage", "file.return", "stream.publish", "stream.return", "stream.deliver", "tunnel.request",
        "test.content", "test.content-ok",
    }  # fmt: skip
