"""A message as the log keeps it: there and back, exactly."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.amqp.message import (
    ArrivalTime,
    Deadline,
    Message,
    Properties,
    RawProperties,
    ReplyTo,
    UuidMessageId,
)
from gateway.amqp.values import Timestamp
from gateway.errors import FrameSyntaxError
from gateway.fidelity import RESERVED, digest, forward
from gateway.notation.logged import from_json, to_json
from gateway.notation.values import ValueProblem
from tests import golden
from tests.translation.ends import ENDS, PROPERTY_SAMPLES, samples
from tests.translation.test_pairs import same, texts, values

SAMPLES = samples()
UUID_TEXT = "12345678-1234-5678-1234-567812345678"
HEADER = 2
"""The type of a frame (0-10: of a segment) that holds properties."""


def again(message: Message) -> Message:
    return from_json(to_json(message), message.body)


def shown(properties: Properties) -> Any:
    return json.loads(to_json(Message(b"", properties)))


def test_every_property_and_every_type() -> None:
    for properties in SAMPLES:
        found = again(Message(b"body", properties))
        assert same(found.properties, properties), properties
        assert found.relayed
        assert found.body == b"body"


@pytest.mark.parametrize("end", ENDS)
def test_published_from_the_log_it_is_the_same_octets(end: str) -> None:
    """What a broker of each version and dialect delivers, out of the log and published there again."""
    for properties in SAMPLES:
        delivered = ENDS[end].there_and_back(Message(b"body", properties))
        published = ENDS[end].there_and_back(again(delivered))
        assert published.raw is not None
        assert delivered.raw is not None
        assert published.raw.octets == delivered.raw.octets, properties
        assert digest(published) == digest(delivered)


def test_what_a_bridge_has_passed_on_is_kept_as_it_is() -> None:
    sent = Message(b"", Properties(headers={"a": 1, "x-death": [{"queue": "q"}], "CC": ["copy"]}))
    passed = forward(sent, {"id": "0190", "hops": "2"})
    found = again(passed)
    assert found.properties == passed.properties
    assert digest(found) == digest(sent)
    assert json.loads(to_json(passed))["headers"] == {"a": 1}


headers = st.none() | st.dictionaries(texts, values, max_size=4)
any_properties = st.builds(
    Properties,
    **{
        name: st.none() | st.sampled_from(known)
        for name, known in PROPERTY_SAMPLES.items()
        if name not in ("reply_to", "message_id")
    },
    reply_to=st.none() | texts | st.builds(ReplyTo, texts, texts),
    message_id=st.none() | texts,
    user_id=st.none() | texts,
    headers=headers,
)


@given(any_properties)
def test_any_message(properties: Properties) -> None:
    assert same(again(Message(b"", properties)).properties, properties)


def delivered(name: str) -> Iterator[Message]:
    """What a real broker delivered on a connection that was recorded: the properties of its messages."""
    transcript = golden.load(name)
    data = transcript.from_server
    broker = "rabbitmq" if "RabbitMQ" in transcript.broker else "qpid"
    side = ENDS[f"{transcript.version} {broker}"]._side
    at = 8 if data.startswith(b"AMQP") else 0
    while at < len(data):
        if transcript.version == "0-10":  # flags, type of segment, size of the frame, ...
            _, kind, size = struct.unpack_from(">BBH", data, at)
            octets, at = data[at + 12 : at + size], at + size
        else:  # type of frame, channel, size
            kind, _, size = struct.unpack_from(">BHI", data, at)
            octets, at = data[at + 7 + 12 : at + 7 + size], at + size + 8
        if kind == HEADER:
            yield side.received(octets, b"body")


@pytest.mark.parametrize("name", golden.names())
def test_messages_of_real_brokers(name: str) -> None:
    for message in delivered(name):
        found = again(message)
        assert same(found.properties, message.properties)
        assert digest(found) == digest(message)


def test_there_are_such_messages_of_every_version() -> None:
    found = {golden.load(name).version: 0 for name in golden.names()}
    for name in golden.names():
        found[golden.load(name).version] += sum(1 for _ in delivered(name))
    assert min(found.values()) >= 5, found


# --------------------------------------------------------------------------------------------- what is in it


def test_it_is_the_json_of_the_api() -> None:
    properties = Properties(content_type="text/plain", delivery_mode=2, headers={"n": Timestamp(5), "s": "x"})
    assert shown(properties) == {
        "properties": {"content_type": "text/plain", "delivery_mode": 2},
        "headers": {"n": {"type": "timestamp", "value": 5}, "s": "x"},
    }


def test_no_headers_and_an_empty_table_are_two_things() -> None:
    assert shown(Properties()) == {}
    assert shown(Properties(headers={})) == {"headers": {}}


def test_the_gateway_s_own_header_is_beside_the_others() -> None:
    found = shown(Properties(headers={"a": 1, RESERVED: {"id": "0190"}}))
    assert found == {"headers": {"a": 1}, "reserved": {"id": "0190"}}
    odd = Properties(headers={RESERVED: "no table"})
    assert shown(odd)["reserved"] == "no table"
    assert same(again(Message(b"", odd)).properties, odd)


def test_a_broker_s_own_time_is_no_timestamp() -> None:
    assert shown(Properties(timestamp=ArrivalTime(5))) == {"arrived": 5}
    jms = Properties(timestamp=ArrivalTime.of(5, 5_432), message_id=UuidMessageId(UUID_TEXT))
    assert shown(jms) == {
        "properties": {"message_id": UUID_TEXT},
        "message_id_is_uuid": True,
        "arrived": 5,
        "arrived_milliseconds": 5_432,
    }


def test_an_expiration_that_was_an_instant() -> None:
    assert shown(Properties(expiration=Deadline.of(90_000, "60000"))) == {
        "properties": {"expiration": "60000"},
        "deadline": 90_000,
    }


def test_octets_that_are_no_property_list() -> None:
    def broken(_: bytes) -> Properties:
        raise FrameSyntaxError("no property list")

    octets = to_json(Message(b"body", None, RawProperties(b"\xff\x00", "0-9-1", broken)))
    assert json.loads(octets) == {"undecodable_properties": "/wA=", "dialect": "0-9-1"}
    found = from_json(octets, b"body")
    assert found.raw is not None
    assert (found.raw.octets, found.raw.dialect, found.body) == (b"\xff\x00", "0-9-1", b"body")
    with pytest.raises(FrameSyntaxError, match="2 octets"):
        _ = found.properties
    assert to_json(found) == octets


@pytest.mark.parametrize(
    ("text", "pointer", "why"),
    [
        ("[]", "", "not the JSON of a logged message"),
        ('{"propertis": {}}', "", "propertis"),
        ('{"properties": {"tipe": "x"}}', "/properties/tipe", "no such property"),
        ('{"properties": {"priority": 256}}', "/properties/priority", "between 0 and 255"),
        ('{"properties": {"priority": true}}', "/properties/priority", "between 0 and 255"),
        ('{"properties": {"timestamp": -1}}', "/properties/timestamp", "between 0 and 18446744073709551615"),
        ('{"properties": {"message_id": "m"}, "message_id_is_uuid": true}', "/message_id_is_uuid", "not a UUID"),
        ('{"message_id_is_uuid": true}', "/message_id_is_uuid", "not a UUID"),
        ('{"arrived": 5, "arrived_milliseconds": 6000}', "/arrived_milliseconds", "within the second 5"),
        ('{"properties": {"type": 5}}', "/properties/type", "expected a string"),
        ('{"properties": {"type": {"type": "bytes", "value": ""}}}', "/properties/type", "expected a string"),
        ('{"properties": {"user_id": {"type": "bytes", "value": "?"}}}', "/properties/user_id", "not base64"),
        ('{"properties": {"reply_to": {"type": "address", "exchange": 1}}}', "/properties/reply_to", "expected a str"),
        ('{"headers": {"a": {"type": "int8", "value": 300}}}', "/headers/a/value", "between -128 and 127"),
        ('{"headers": 5}', "/headers", "expected an object"),
        ('{"reserved": {"type": "what", "value": 1}}', "/reserved/x-gateway/type", "there is no such type"),
        ('{"arrived": -1}', "/arrived", "between 0"),
        ('{"undecodable_properties": "?"}', "/undecodable_properties", "not base64"),
    ],
)
def test_what_is_no_logged_message(text: str, pointer: str, why: str) -> None:
    with pytest.raises(ValueProblem, match=why) as caught:
        from_json(text, b"")
    assert caught.value.pointer == pointer
