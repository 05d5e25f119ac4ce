"""Message <-> the arguments of message.transfer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.amqp.message import ArrivalTime, Message, Properties, RawProperties, ReplyTo
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.fidelity import RESERVED, digest
from gateway.v010_draft import methods as t
from gateway.v010_draft.fields import ReferenceTo
from gateway.v010_draft.tables import Tables
from gateway.v010_draft.translate import (
    IMMEDIATE,
    REDELIVERED,
    REJECT_UNROUTABLE,
    by_reference,
    decode,
    inline,
    message_of,
    of_its_own,
    passes,
    read_message,
    read_transfer,
    write_properties,
    write_transfer,
)

TABLES = Tables()
WHOLE = t.MessageTransfer(
    7, "to", True, True, True, 60_000, 4, 1_700_000_000, 2, 5, "exchange", "key", "m-1", "c-1", "reply", "text/plain",
    "utf-8", 4, "type", "user", "app", "", b"", {"a": 1}, b"body",
)  # fmt: skip
"""Every argument, but the two that belong to the draft alone."""
FULL = Properties(
    content_type="text/plain",
    content_encoding="utf-8",
    headers={"a": 1},
    delivery_mode=2,
    priority=4,
    correlation_id="c-1",
    reply_to="reply",
    expiration="60000",
    message_id="m-1",
    timestamp=ArrivalTime(1_700_000_000),
    type="type",
    user_id="user",
    app_id="app",
)


def arguments(method: t.MessageTransfer) -> bytes:
    return method.encode(TABLES)[4:]


def there_and_back(message: Message, login: str | None = "guest") -> Message:
    octets = write_transfer("to", 0, "", "key", write_properties(message, login)) + inline(message.body)
    assert t.MessageTransfer.decode(octets, 4, len(octets), TABLES).encode(TABLES) == octets
    transfer = read_transfer(octets, 4, len(octets))
    return read_message(transfer, transfer.body)


def test_the_arguments_are_those_of_the_declared_class() -> None:
    octets = arguments(WHOLE)
    transfer = read_transfer(b"!" + octets, 1, 1 + len(octets))
    assert transfer[:4] == ("to", REDELIVERED | REJECT_UNROUTABLE | IMMEDIATE, "exchange", "key")
    assert transfer.body == b"body"
    message = read_message(transfer, transfer.body)
    assert message.properties == FULL
    assert type(message.properties.timestamp) is ArrivalTime
    assert passes(message, None)
    assert passes(message, "user")
    assert not passes(message, "guest")
    written = write_transfer("to", 7, "exchange", "key", write_properties(message, None)) + inline(b"body")
    assert t.MessageTransfer.decode(written, 4, len(written), TABLES) == replace(WHOLE, ticket=0)


def test_a_message_of_nothing() -> None:
    message = there_and_back(Message(b""))
    assert message.properties == Properties()
    assert message.raw is not None
    assert not any(message.raw.octets)
    assert passes(message, "guest")


def test_a_reference_in_the_place_of_the_body() -> None:
    octets = arguments(replace(WHOLE, body=ReferenceTo(b"r")))
    transfer = read_transfer(octets, 0, len(octets))
    assert isinstance(transfer.body, ReferenceTo)
    assert octets.endswith(by_reference(b"r"))


OCTETS = arguments(replace(WHOLE, security_token=b"token"))


@pytest.mark.parametrize("size", range(len(OCTETS)))
def test_arguments_that_end_too_early(size: int) -> None:
    with pytest.raises(FrameSyntaxError):
        read_transfer(OCTETS[:size], 0, size)


def test_arguments_with_something_behind_them() -> None:
    with pytest.raises(FrameSyntaxError, match="1 octets that belong to nothing"):
        read_transfer(OCTETS + b"!", 0, len(OCTETS) + 1)


def test_headers_that_are_none_are_found_when_they_are_asked_for() -> None:
    octets = arguments(WHOLE).replace(b"\x01a\x21", b"\x01a\xab")
    transfer = read_transfer(octets, 0, len(octets))
    with pytest.raises(FrameSyntaxError):
        decode(transfer.properties)
    with pytest.raises(EncodeError):
        write_properties(read_message(transfer, b"other"), None)


@pytest.mark.parametrize(
    "properties",
    [
        Properties(priority=0),
        Properties(priority=200),
        Properties(delivery_mode=0),
        Properties(delivery_mode=3),
        Properties(type=""),
        Properties(message_id=""),
        Properties(content_type="x" * 200 + "é" * 20),
        Properties(correlation_id=b"\xff\x00"),
        Properties(correlation_id="é" * 200),
        Properties(app_id=b"\xff"),
        Properties(reply_to=ReplyTo("exchange", "key")),
        Properties(reply_to=""),
        Properties(expiration="0"),
        Properties(expiration="soon"),
        Properties(expiration="00060000"),
        Properties(expiration="18446744073709551616"),
        Properties(timestamp=1_700_000_000),
        Properties(cluster_id="cluster"),
        Properties(headers={"u": "x" * 70_000}),
        Properties(message_id="\udcff"),
    ],
    ids=lambda properties: str(next(v for v in vars_of(properties) if v is not None))[:20],
)
def test_what_the_draft_has_no_place_for_comes_back(properties: Properties) -> None:
    message = Message(b"body", properties)
    back = there_and_back(message)
    assert back.properties == properties
    assert digest(back) == digest(message)


def vars_of(properties: Properties) -> list[Any]:
    return [getattr(properties, name) for name in Properties.__slots__]


def test_what_is_carried_is_in_the_reserved_header_until_it_is_restored() -> None:
    octets = write_properties(Message(b"", Properties(type="")), "guest")
    assert RESERVED in (decode(octets, restored=False).headers or {})
    assert decode(octets).headers is None
    left_out = Message(b"", Properties(type="", priority=1), None, ())
    assert decode(write_properties(left_out, "guest"), restored=False) == Properties(priority=1)


def test_a_user_id_is_the_login_or_a_claim() -> None:
    assert decode(write_properties(Message(b"", Properties(user_id="guest")), "guest")).user_id == "guest"
    assert decode(write_properties(Message(b"", Properties(user_id="ann")), "guest")).user_id is None
    assert decode(write_properties(Message(b"", Properties(user_id="ann")), None)).user_id == "ann"


def test_octets_of_another_dialect_and_of_another_body_do_not_pass() -> None:
    octets = write_properties(Message(b"body", Properties(type="t")), None)
    assert passes(message_of(octets, b"body"), "guest")
    assert not passes(message_of(octets, b"longer"), "guest")
    assert not passes(Message(b"body"), "guest")
    assert not passes(Message(b"body", None, RawProperties(octets, "0-10", decode)), "guest")
    assert write_properties(message_of(octets, b"longer"), None) != octets


@pytest.mark.parametrize(
    "properties",
    [
        Properties(priority="high"),  # type: ignore[arg-type]
        Properties(headers={"a": object()}),
        Properties(headers={"k" * 256: 1}),
    ],
)
def test_properties_that_fit_nowhere(properties: Properties) -> None:
    with pytest.raises(EncodeError):
        write_properties(Message(b"", properties), None)


def test_names_that_do_not_fit() -> None:
    properties = write_properties(Message(b""), None)
    for names in (("x" * 256, "", ""), ("", "x" * 256, ""), ("", "", "x" * 256), ("\ud800", "", ""), (5, "", "")):
        destination, exchange, key = names
        with pytest.raises(EncodeError):
            write_transfer(destination, 0, exchange, key, properties)  # type: ignore[arg-type]


def test_what_the_draft_alone_has() -> None:
    octets = arguments(replace(WHOLE, transaction_id="tx", security_token=b"token"))
    assert of_its_own(read_transfer(octets, 0, len(octets)).properties) == ("transaction_id", "security_token")
    octets = arguments(WHOLE)
    assert of_its_own(read_transfer(octets, 0, len(octets)).properties) == ()
