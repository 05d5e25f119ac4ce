"""The content properties of file, stream and tunnel: all, each, none; limits; octets that are no property list."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import EncodeError, FrameSyntaxError
from gateway.v08.properties import (
    PROPERTY_LISTS,
    FileProperties,
    PropertyList,
    StreamProperties,
    TunnelProperties,
)
from tests.classic.values import TABLES, values_of

FULL = (
    (
        FileProperties("text/plain", "gzip", {"a": 1}, 9, "answers", "m-1", "report.txt", 1 << 40, "none"),
        b"\xff\x80" b"\x0atext/plain" b"\x04gzip" b"\x00\x00\x00\x07\x01aI\x00\x00\x00\x01" b"\x09" b"\x07answers"
        b"\x03m-1" b"\x0areport.txt" b"\x00\x00\x01\x00\x00\x00\x00\x00" b"\x04none",
    ),
    (
        StreamProperties("audio/ogg", "", {}, 0, 5),
        b"\xf8\x00" b"\x09audio/ogg" b"\x00" b"\x00\x00\x00\x00" b"\x00" b"\x00\x00\x00\x00\x00\x00\x00\x05",
    ),
    (
        TunnelProperties({}, "proxy", "0-9-1", 1, 2),
        b"\xf8\x00" b"\x00\x00\x00\x00" b"\x05proxy" b"\x050-9-1" b"\x01" b"\x02",
    ),
)  # fmt: skip
EACH = pytest.mark.parametrize(("properties", "octets"), FULL, ids=lambda value: type(value).__name__)


@EACH
def test_all(properties: PropertyList, octets: bytes) -> None:
    assert properties.encode(TABLES) == octets
    assert type(properties).decode(octets, TABLES) == properties


@EACH
def test_cut_and_trailing(properties: PropertyList, octets: bytes) -> None:
    for length in range(len(octets)):
        with pytest.raises(FrameSyntaxError):
            type(properties).decode(octets[:length], TABLES)
    with pytest.raises(FrameSyntaxError, match="ends at octet"):
        type(properties).decode(octets + b"\x00", TABLES)


@EACH
def test_flags_that_the_class_has_not(properties: PropertyList, octets: bytes) -> None:
    kind = type(properties)
    for bit in range(16 - len(kind.layout)):
        with pytest.raises(FrameSyntaxError, match="name a property that the class has not"):
            kind.decode((1 << bit).to_bytes(2, "big"), TABLES)


@pytest.mark.parametrize("kind", PROPERTY_LISTS.values())
def test_any_come_back(kind: type[PropertyList]) -> None:
    @given(st.builds(kind, **{name: st.none() | values_of(type_) for name, type_ in kind.layout}))
    def check(properties: PropertyList) -> None:
        assert kind.decode(properties.encode(TABLES), TABLES) == properties

    check()


@pytest.mark.parametrize("kind", PROPERTY_LISTS.values())
def test_any_octets_are_properties_or_a_syntax_error(kind: type[PropertyList]) -> None:
    @given(st.binary(max_size=60))
    def check(octets: bytes) -> None:
        try:
            properties = kind.decode(octets, TABLES)
        except FrameSyntaxError:
            return
        assert kind.decode(properties.encode(TABLES), TABLES) == properties

    check()


def test_none_and_octets_that_are_no_utf_8() -> None:
    assert StreamProperties().encode(TABLES) == b"\x00\x00"
    octets = b"\x40\x00\x02\xff\xc3"
    properties = StreamProperties.decode(octets, TABLES)
    assert properties == StreamProperties(content_encoding="\udcff\udcc3")
    assert properties.encode(TABLES) == octets


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("filename", "x" * 256, "filename: 256 octets are more than 255"),
        ("reply_to", b"octets", "reply_to: .* is no string"),
        ("message_id", "\ud800", "message_id: .* is no text"),
        ("priority", 256, "priority: 256 is not within 0..255"),
        ("timestamp", -1, "timestamp: -1 is not within"),
        ("headers", 5, "headers: 5 is no table|no table"),
        ("headers", {"k" * 256: 1}, "256 octets are more than 255"),
    ],
)
def test_what_does_not_fit_names_the_property(name: str, value: Any, reason: str) -> None:
    with pytest.raises(EncodeError, match=reason):
        FileProperties(**{name: value}).encode(TABLES)


def test_by_class() -> None:
    assert dict(PROPERTY_LISTS) == {70: FileProperties, 80: StreamProperties, 110: TunnelProperties}
