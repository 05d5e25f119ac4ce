"""Conventions of JMS over AMQP 0-x: one message id, one reply-to and one time in every version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.amqp.message import ArrivalTime, Message, Properties, ReplyTo, UuidMessageId
from gateway.fidelity import RESERVED, address_of, binding_url, digest, forward, strip, uuid_of
from tests.translation.ends import ENDS

UUID_TEXT = "12345678-1234-5678-1234-56781234567a"
URL = "direct://amq.direct//answers?routingkey='answers'&durable='true'"
CLASSIC = Properties(
    content_type="text/plain",
    delivery_mode=2,
    priority=4,
    correlation_id="c",
    reply_to=URL,
    message_id=f"ID:{UUID_TEXT}",
    timestamp=1_795_526_004_796,
    headers={"JMSXGroupID": "group", "JMSXGroupSeq": 3, "JMS_QPID_DESTTYPE": 1},
)
"""As Qpid's client writes a JMS message in 0-8 and 0-9-1."""
NATIVE = replace(
    CLASSIC,
    reply_to=ReplyTo("amq.direct", "answers"),
    message_id=UuidMessageId(UUID_TEXT),
    timestamp=ArrivalTime.of(1_795_526_004, 1_795_526_004_796),
    headers={"JMSXGroupID": "group", "JMSXGroupSeq": 3},
)
"""The same of 0-10, as the gateway reads it."""
CLASSICS = [name for name in ENDS if name.startswith(("0-8", "0-9")) and "published" not in name]
NATIVES = [name for name in ENDS if name.startswith("0-10 ") and "transitional" not in name]


def wire(end: str, message: Message) -> Properties:
    """What an application at the end sees."""
    explained = ENDS[end].explain(message)
    assert explained.message is not None
    return explained.message.properties


@pytest.mark.parametrize("native", NATIVES)
@pytest.mark.parametrize("classic", CLASSICS)
def test_from_classic_to_native_and_back(classic: str, native: str) -> None:
    first = ENDS[classic].there_and_back(Message(b"body", CLASSIC))
    sent = forward(first, {"id": "0190"})
    seen = wire(native, sent)
    assert seen.message_id == UUID_TEXT
    assert seen.reply_to == ReplyTo("amq.direct", "answers")
    there = ENDS[native].there_and_back(sent)
    assert digest(there) == digest(first)
    back = strip(ENDS[classic].there_and_back(there))
    assert back.properties == first.properties
    assert first.raw is not None
    again = ENDS[classic].there_and_back(back)
    assert again.raw is not None
    assert again.raw.octets == first.raw.octets


@pytest.mark.parametrize("classic", CLASSICS)
def test_from_native_to_classic_and_back(classic: str) -> None:
    first = ENDS["0-10 qpid"].there_and_back(Message(b"body", NATIVE))
    assert first.properties == NATIVE
    assert type(first.properties.message_id) is UuidMessageId
    sent = forward(first, {"id": "0190"})
    seen = wire(classic, sent)
    assert seen.message_id == f"ID:{UUID_TEXT}"
    assert seen.reply_to == "direct://amq.direct//?routingkey='answers'"
    assert seen.timestamp == CLASSIC.timestamp
    there = ENDS[classic].there_and_back(sent)
    assert digest(there) == digest(first)
    back = ENDS["0-10 qpid"].there_and_back(there)
    assert digest(back) == digest(first)
    assert strip(back).properties == NATIVE


@pytest.mark.parametrize("native", NATIVES)
@pytest.mark.parametrize("classic", CLASSICS)
def test_without_the_reserved_header_the_convention_holds_all_the_same(classic: str, native: str) -> None:
    sent = strip(ENDS[classic].there_and_back(Message(b"body", CLASSIC)))
    there = ENDS[native].there_and_back(sent)
    back = wire(classic, strip(there))
    assert back.message_id == CLASSIC.message_id
    assert back.reply_to == "direct://amq.direct//?routingkey='answers'"
    assert back.timestamp == CLASSIC.timestamp
    assert RESERVED not in (back.headers or {})


@pytest.mark.parametrize(
    "message_id",
    ["m-1", "ID:m-1", "ID:", f"id:{UUID_TEXT}", f"ID: {UUID_TEXT}", f"ID:{UUID_TEXT.upper()}", f"ID:{UUID_TEXT}x", "é"],
)
def test_an_id_that_is_not_of_jms_is_left_as_it_is(message_id: str) -> None:
    assert uuid_of(message_id) is None
    there = ENDS["0-10 qpid"].there_and_back(Message(b"", Properties(message_id=message_id)))
    assert UUID_TEXT not in str(wire("0-10 qpid", Message(b"", Properties(message_id=message_id))).message_id)
    assert ENDS["0-9-1 qpid"].there_and_back(there).properties.message_id == message_id


def test_a_uuid_as_text_stays_one() -> None:
    there = ENDS["0-10 qpid"].there_and_back(Message(b"", Properties(message_id=UUID_TEXT)))
    assert type(there.properties.message_id) is str
    assert wire("0-9-1 rabbitmq", there).message_id == UUID_TEXT


@pytest.mark.parametrize(
    ("reply_to", "address"),
    [
        (URL, ReplyTo("amq.direct", "answers")),
        ("direct://amq.direct//answers", ReplyTo("amq.direct", "answers")),
        ("direct://amq.direct/answers", ReplyTo("amq.direct", "answers")),
        ("direct://amq.direct/a/b?routingkey='k'", ReplyTo("amq.direct", "k")),
        ("direct:////answers?routingkey='answers'", ReplyTo("", "answers")),
        ("topic://amq.topic/news/?clientid='c'", ReplyTo("amq.topic", "news")),
        ("topic://amq.topic//sub?routingkey='a.#',durable='true'", ReplyTo("amq.topic", "a.#")),
        ("direct://orders//?routingkey='a/b?c'", ReplyTo("orders", "a/b?c")),
        ("answers", None),
        ("", None),
        ("http://host/path/x?routingkey='k'", None),
        ("direct://amq.direct//?routingkey=answers", None),
        ("direct://amq.direct//?routingkey=''", None),
        ("direct://amq.direct//", None),
        ("direct://amq.direct", None),
        ("direct://amq.direct//answers?", None),
        ("direct://amq.direct//answers?routingkey='answers'&", None),
        ("direct://amq.direct//answers?routingkey='answers' ", None),
        ("direct://a%b//answers", None),
        ("BURL:direct://amq.direct//answers", None),
    ],
)
def test_binding_urls(reply_to: str, address: ReplyTo | None) -> None:
    assert address_of(reply_to) == address
    becomes = wire("0-10 qpid", Message(b"", Properties(reply_to=reply_to))).reply_to
    if address is None:
        assert becomes == reply_to
    else:
        assert becomes == (address if address.exchange else address.routing_key)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        (ReplyTo("amq.direct", "q"), "direct://amq.direct//?routingkey='q'"),
        (ReplyTo("amq.topic", "news.#"), "topic://amq.topic//?routingkey='news.#'"),
        (ReplyTo("amq.fanout", "q"), "fanout://amq.fanout//?routingkey='q'"),
        (ReplyTo("amq.match", "q"), "headers://amq.match//?routingkey='q'"),
        (ReplyTo("orders", "a/b?c"), "direct://orders//?routingkey='a/b?c'"),
        (ReplyTo("orders", ""), None),
        (ReplyTo("orders", "it's"), None),
        (ReplyTo("a/b", "q"), None),
        (ReplyTo("a?b", "q"), None),
        (ReplyTo("a%b", "q"), None),
        (ReplyTo("orders", "é" * 120), None),
    ],
)
def test_addresses(address: ReplyTo, url: str | None) -> None:
    assert binding_url(address) == url
    assert wire("0-9-1 qpid", Message(b"", Properties(reply_to=address))).reply_to == url


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_url_that_was_made_names_what_it_was_made_from(exchange: str, key: str) -> None:
    url = binding_url(ReplyTo(exchange, key))
    assert url is None or address_of(url) == ReplyTo(exchange, key)


@given(st.text(max_size=80))
def test_any_text_may_be_asked(text: str) -> None:
    address_of("direct://" + text)
    assert uuid_of(text) is None or text == f"ID:{uuid_of(text)}"


@pytest.mark.parametrize(
    ("name", "item"),
    [
        ("message_id", {"uuid": "no-uuid"}),
        ("message_id", {"uuid": UUID_TEXT.upper()}),
        ("message_id", {"uuid": UUID_TEXT, "more": "x"}),
        ("correlation_id", {"uuid": UUID_TEXT}),
        ("timestamp", {"arrived": "5", "milliseconds": "9000"}),
        ("timestamp", {"arrived": "5", "milliseconds": "x"}),
    ],
)
def test_a_note_that_somebody_made_up_changes_nothing(name: str, item: Any) -> None:
    forged = Properties(
        message_id="ID:no-uuid",
        correlation_id=UUID_TEXT,
        timestamp=9_000,
        headers={RESERVED: {"properties": {name: item}}},
    )
    found = ENDS["0-9-1 rabbitmq"].there_and_back(Message(b"", forged)).properties
    assert (found.message_id, found.correlation_id, found.timestamp) == ("ID:no-uuid", UUID_TEXT, 9_000)
    assert type(found.correlation_id) is str
    assert type(found.timestamp) is int


def test_what_is_not_of_jms_keeps_its_time_in_seconds() -> None:
    for properties in (
        replace(NATIVE, content_type="application/json"),
        replace(NATIVE, priority=None),
        replace(NATIVE, delivery_mode=None),
        replace(NATIVE, message_id=None),
    ):
        first = ENDS["0-10 qpid"].there_and_back(Message(b"", properties))
        assert wire("0-9-1 qpid", first).timestamp == 1_795_526_004
