"""The 14 content properties: all, each, none; limits; octets that are no property list."""

from __future__ import annotations

from typing import Any

import pamqp.commands
import pamqp.header
import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.amqp.message import Properties
from gateway.classic import properties as content
from gateway.classic.tables import TableCodec
from gateway.errors import EncodeError, FrameSyntaxError

TABLES = TableCodec()
ALL: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "headers": {"a": 1, "b": "two"},
    "delivery_mode": 2,
    "priority": 255,
    "correlation_id": "c-1",
    "reply_to": "answers",
    "expiration": "60000",
    "message_id": "m-1",
    "timestamp": 1 << 40,
    "type": "order",
    "user_id": "guest",
    "app_id": "shop",
    "cluster_id": "none",
}
FULL = content.encode(Properties(**ALL), TABLES)


def there_and_back(properties: Properties) -> Properties:
    return content.decode(content.encode(properties, TABLES), TABLES)


def test_all() -> None:
    assert content.decode(FULL, TABLES) == Properties(**ALL)
    assert FULL[:2] == b"\xff\xfc"


@pytest.mark.parametrize("name", ALL)
def test_each(name: str) -> None:
    properties = Properties(**{name: ALL[name]})
    octets = content.encode(properties, TABLES)
    assert int.from_bytes(octets[:2], "big") == content.FLAG[name]
    assert content.decode(octets, TABLES) == properties


def test_none_and_empty_are_different() -> None:
    assert content.encode(Properties(), TABLES) == b"\x00\x00"
    empty = Properties(content_type="", headers={}, delivery_mode=0, priority=0, timestamp=0)
    assert there_and_back(empty) == empty


@pytest.mark.parametrize("name", [name for name, value in ALL.items() if isinstance(value, str)])
def test_octets_that_are_no_utf_8_are_kept(name: str) -> None:
    octets = content.encode(Properties(**{**ALL, name: "x" * 4}), TABLES).replace(b"xxxx", b"\xff\xc3x\x80")
    properties = content.decode(octets, TABLES)
    assert properties == Properties(**{**ALL, name: "\udcff\udcc3x\udc80"})
    assert content.encode(properties, TABLES) == octets
    for length in range(2, len(octets)):
        with pytest.raises(FrameSyntaxError):
            content.decode(octets[:length], TABLES)


def test_cut_and_trailing() -> None:
    for length in range(len(FULL)):
        with pytest.raises(FrameSyntaxError):
            content.decode(FULL[:length], TABLES)
    with pytest.raises(FrameSyntaxError, match="end at octet"):
        content.decode(FULL + b"\x00", TABLES)


@pytest.mark.parametrize("flags", [b"\x00\x01", b"\x00\x02", b"\xff\xff"])
def test_flags_that_basic_has_not(flags: bytes) -> None:
    with pytest.raises(FrameSyntaxError, match="name a property that basic has not"):
        content.decode(flags + bytes(64), TABLES)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("message_id", "x" * 256, "256 octets are more than 255"),
        ("type", "\u00e9" * 128, "256 octets are more than 255"),
        ("correlation_id", b"octets", "is no string"),
        ("app_id", "\ud800", "is no text"),
        ("priority", 256, "256 is not within 0..255"),
        ("delivery_mode", "2", "is no integer"),
        ("timestamp", -1, "-1 is not within"),
        ("headers", 5, "is no table|table"),
        ("headers", {"k" * 256: 1}, "256 octets are more than 255"),
    ],
)
def test_what_does_not_fit_names_the_property(name: str, value: Any, reason: str) -> None:
    with pytest.raises(EncodeError, match=reason) as error:
        content.encode(Properties(**{name: value}), TABLES)
    assert "headers" in name or str(error.value).startswith(f"{name}: ")


def test_an_error_that_no_property_explains() -> None:
    class Text(str):
        asked = 0

        def encode(self, *arguments: str) -> bytes:  # type: ignore[override]
            self.asked += 1
            if self.asked == 1:
                raise TypeError("does not want to")
            return b""

    with pytest.raises(EncodeError, match="properties: does not want to"):
        content.encode(Properties(type=Text("x")), TABLES)


SHORT = st.text(max_size=63)
PROPERTIES = st.builds(
    Properties,
    **{name: st.none() | SHORT for name, value in ALL.items() if isinstance(value, str)},
    headers=st.none() | st.dictionaries(SHORT, st.integers(-(1 << 31), (1 << 31) - 1) | SHORT, max_size=4),
    delivery_mode=st.none() | st.integers(0, 255),
    priority=st.none() | st.integers(0, 255),
    timestamp=st.none() | st.integers(0, (1 << 64) - 1),
)


@given(PROPERTIES)
def test_any_properties_come_back(properties: Properties) -> None:
    assert there_and_back(properties) == properties


@given(st.binary(max_size=120))
def test_any_octets_are_properties_or_a_syntax_error(octets: bytes) -> None:
    try:
        properties = content.decode(octets, TABLES)
    except FrameSyntaxError:
        return
    assert content.encode(properties, TABLES)


def test_other_libraries_agree() -> None:
    values = {name: value for name, value in ALL.items() if name != "timestamp"}
    ours = content.encode(Properties(**values), TABLES)
    theirs = b"".join(pika.BasicProperties(**values).encode())
    assert ours == theirs
    header = pamqp.header.ContentHeader()
    header.unmarshal(b"\x00\x3c\x00\x00" + bytes(8) + ours)
    assert header.properties.message_id == "m-1"
    assert header.properties.headers == {"a": 1, "b": "two"}
