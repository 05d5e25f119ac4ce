"""What RabbitMQ and Broker-J do to messages that are theirs to keep, and how it is got round: seen on live ones
(docs/reference/brokers.md)."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.values import Typed, Value
from gateway.classic import properties as content
from gateway.classic.tables import TableCodec
from gateway.classic.translate import Translator
from gateway.v08.dialect import DIALECTS as DIALECTS_08
from gateway.v091.dialect import DIALECTS as DIALECTS_091

CLASSIC = {
    f"{name} {version}": dialects[name]
    for version, dialects in (("0-8", DIALECTS_08), ("0-9-1", DIALECTS_091))
    for name in ("rabbitmq", "qpid")
}
BROKER_J = [name for name in CLASSIC if "qpid" in name]
RABBITMQ = [name for name in CLASSIC if "rabbitmq" in name]


def classic(name: str, user: str | None = "guest") -> Translator:
    dialect = CLASSIC[name]
    return Translator(dialect, TableCodec(dialect.tags), user, lambda: 1_000.0)


def on_the_wire(translator: Translator, properties: Properties) -> Properties:
    """What somebody reads who knows nothing of the reserved header."""
    return content.decode(translator.encode(Message(b"", properties)), translator._tables)


def there_and_back(translator: Translator, properties: Properties) -> Properties:
    return translator.received(translator.encode(Message(b"", properties)), b"").properties


def octets(value: Any) -> Any:
    """A float as something that can be compared."""
    plain = value.value if isinstance(value, Typed) else value
    return (type(value), struct.pack(">d", plain)) if isinstance(plain, float) else value


# --------------------------------------------------------------------------------------------------- RabbitMQ


@pytest.mark.parametrize("name", RABBITMQ)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_rabbitmq_is_sent_no_float_that_is_no_number(name: str, kind: str, number: float) -> None:
    """It closes the connection with 541."""
    value: Value = Typed("float", number) if kind == "float" else number
    properties = Properties(headers={"a": value, "b": {"c": [value]}})
    headers = on_the_wire(classic(name), properties).headers or {}
    assert not isinstance(headers["a"], float | Typed)
    assert not isinstance(headers["b"]["c"][0], float | Typed)
    back = there_and_back(classic(name), properties).headers or {}
    assert octets(back["a"]) == octets(value) == octets(back["b"]["c"][0])


@pytest.mark.parametrize("name", BROKER_J)
def test_others_are(name: str) -> None:
    headers = on_the_wire(classic(name), Properties(headers={"a": math.inf})).headers
    assert headers == {"a": math.inf}


@pytest.mark.parametrize("name", RABBITMQ)
def test_a_client_of_ours_is_sent_what_another_sent(name: str) -> None:
    """In the server role nobody closes anything over it."""
    assert on_the_wire(classic(name, None), Properties(headers={"a": math.inf})).headers == {"a": math.inf}


# --------------------------------------------------------------------------------------------------- Broker-J


@pytest.mark.parametrize("name", BROKER_J)
def test_broker_j_is_not_told_that_a_body_is_packed(name: str) -> None:
    """It would unpack it."""
    properties = Properties(content_encoding="gzip")
    assert on_the_wire(classic(name), properties).content_encoding == "x-gzip"
    assert there_and_back(classic(name), properties) == properties


@pytest.mark.parametrize("name", RABBITMQ)
def test_rabbitmq_is(name: str) -> None:
    assert on_the_wire(classic(name), Properties(content_encoding="gzip")).content_encoding == "gzip"


@pytest.mark.parametrize("encoding", ["x-gzip", "GZIP", "deflate", ""])
def test_other_encodings_are_left_alone(encoding: str) -> None:
    properties = Properties(content_encoding=encoding)
    assert on_the_wire(classic(BROKER_J[0]), properties) == properties


DROPPED: dict[str, dict[str, Value]] = {
    "a name that is not UTF-8": {"before": 1, "\udcff": 2, "behind": 3},
    "no name": {"before": 1, "": 2, "behind": 3},
    "a name beyond U+FFFF": {"before": 1, "\N{GRINNING FACE}": 2, "behind": 3},
    "an empty table": {"a": {}},
    "a string that is not UTF-8": {"a": Typed("string", b"\xff")},
    "an ASCII string that is none": {"a": Typed("str8-latin", "é")},
    "a decimal with a scale over 127": {"a": Decimal("7E-128")},
    "an array of uint8": {"a": [Typed("uint8", 3)]},
    "an array of uint16": {"a": [1, Typed("uint16", 3)]},
    "an array of uint32": {"a": {"b": [[Typed("uint32", 3)]]}},
    "an array with no octets in it": {"a": [b"", b"x"]},
}
"""What makes Broker-J's housekeeping drop a confirmed message, half a minute later."""


@pytest.mark.parametrize("name", BROKER_J)
@pytest.mark.parametrize("headers", DROPPED.values(), ids=DROPPED)
def test_nothing_is_sent_that_broker_j_drops(name: str, headers: dict[str, Value]) -> None:
    properties = Properties(headers=headers)
    seen = on_the_wire(classic(name), properties).headers
    assert seen is not None
    plain = {key: value for key, value in seen.items() if key != "x-gateway"}
    assert plain != headers
    for dropped in DROPPED.values():
        assert not _holds(plain, dropped)
    back = there_and_back(classic(name), properties)
    assert back == properties
    assert list(back.headers or {}) == list(headers)


def _holds(found: dict[str, Value], dropped: dict[str, Value]) -> bool:
    """Whether anything of the second is in the first as it was."""
    return any(key == "a" and found.get(key) == value for key, value in dropped.items()) or bool(
        (found.keys() & dropped.keys()) - {"before", "behind", "a"}
    )


@pytest.mark.parametrize("name", BROKER_J)
def test_what_it_keeps_is_sent_as_it_is(name: str) -> None:
    headers: dict[str, Value] = {
        "é": Typed("uint8", 3),
        "a": Decimal("7E-127"),
        "b": b"",
        "c": [Typed("int8", 3), b"x", Decimal("1.5"), None],
        "d": {"e": Typed("uint32", 3)},
    }
    assert on_the_wire(classic(name), Properties(headers=headers)).headers == headers
