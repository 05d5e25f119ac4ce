"""Messages as requests: nothing is lost, nothing slips into a header, and an event stays the event it was."""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import datetime
from decimal import Decimal
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.amqp.message import ArrivalTime, Deadline, Message, Properties, RawProperties, ReplyTo
from gateway.amqp.values import Timestamp, Typed
from gateway.config import EndpointSettings
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.fidelity import RESERVED
from gateway.notation.values import table_from_json
from gateway.outbound.hosts import split_url
from gateway.outbound.requests import request_line, request_octets
from gateway.webhooks.attempts import forms
from gateway.webhooks.attempts.forms import BATCHED, HEAD_MAX, FormedRequest, PushedMessage, write

FORMATS = ("json", "raw", "cloudevents-binary", "cloudevents-structured", "cloudevents-batch")
ID, MESSAGE = "01a1ffe1-636a-7000-afa0-e29c385ad9de", "01a1ffe1-636a-7000-afa0-000000000001"
REQUIRED = {"specversion": "1.0", "id": "e-1", "source": "/shop", "type": "order.paid"}


def settings(form: str, **more: Any) -> EndpointSettings:
    return EndpointSettings(url="https://shop.example/", format=form, **more)  # type: ignore[arg-type]


def item(body: bytes = b"", routing_key: str = "order.paid", **properties: Any) -> PushedMessage:
    return PushedMessage(
        ID, MESSAGE, "billing", "local", "orders", "shop", routing_key, Message(body, Properties(**properties))
    )


def raw(found: PushedMessage, form: str = "raw", **more: Any) -> tuple[dict[str, str], bytes]:
    written = write(settings(form, **more), [found])
    assert written.undeliverable == {}
    names = [name for name, _ in written.headers]
    assert len(set(names)) == len(names), "each header once"
    return {name.decode(): value.decode("ascii") for name, value in written.headers}, written.body


def event(found: PushedMessage, form: str = "cloudevents-structured", **more: Any) -> dict[str, Any]:
    written = write(settings(form, **more), [found])
    assert dict(written.headers)[b"content-type"].endswith(b"; charset=utf-8")
    decoded: Any = json.loads(written.body)
    return decoded if form == "cloudevents-structured" else decoded[0]  # type: ignore[no-any-return]


def binary_event(body: bytes = b"", content_type: str | None = "application/json", **attributes: Any) -> PushedMessage:
    headers = {f"cloudEvents_{name}": value for name, value in {**REQUIRED, **attributes}.items()}
    return item(body, headers=headers, content_type=content_type)


def structured_event(content_type: str = "application/cloudevents+json", **members: Any) -> PushedMessage:
    return item(json.dumps({**REQUIRED, **members}).encode(), content_type=content_type)


# --------------------------------------------------------------------------------------------------- JSON


def test_json_is_what_pull_answers() -> None:
    found = item(b"hello", message_id="m-1", headers={"n": 1, RESERVED: {"id": "x"}})
    found.attempt, found.redelivered = 3, True
    written = write(settings("json"), [found])
    assert written.id == ID
    assert written.headers == [(b"content-type", b"application/json")]
    assert json.loads(written.body) == {
        "id": ID, "subscription": "billing", "broker": "local", "queue": "orders", "delivery_attempt": 3,
        "broker_delivery_count": None, "redelivered": True, "resent": False,
        "message": {
            "id": MESSAGE, "exchange": "shop", "routing_key": "order.paid", "payload": "hello",
            "payload_encoding": "string", "properties": {"message_id": "m-1"}, "headers": {"n": 1},
        },
    }  # fmt: skip


def test_a_batch_is_a_list_even_of_one() -> None:
    one, other = item(b"1"), item(b"2")
    other.id = "other"
    for items in ([one], [one, other]):
        found = json.loads(write(settings("json", batch_max=10), items).body)
        assert [each["message"]["payload"] for each in found["messages"]] == ["1", "2"][: len(items)]
    ids = [
        write(settings("json", batch_max=10), items).id for items in ([one], [one, other], [one, other], [other, one])
    ]
    assert ids[0] == ID
    assert ids[1] == ids[2] != ids[3], "the same messages have the same id"
    assert ids[1].startswith("batch-")
    assert "." not in ids[1]


@pytest.mark.parametrize("form", [form for form in FORMATS if form not in BATCHED])
def test_forms_of_one_message(form: str) -> None:
    with pytest.raises(EncodeError, match="carries one message, not 2"):
        write(settings(form), [item(), item()])


def test_a_test_says_so() -> None:
    found = item(b"{}")
    found.test = True
    assert json.loads(write(settings("json"), [found]).body)["test"] is True
    for form in ("raw", "cloudevents-binary"):
        assert raw(found, form)[0]["amqp-test"] == "true"
    assert event(found)["amqptest"] is True
    assert event(found)["source"] == "/test"


# ---------------------------------------------------------------------------------------------------- raw


def test_the_body_as_it_is_and_the_rest_beside_it() -> None:
    found = item(
        b"\x00\xff", content_type="image/png; q=1", content_encoding="gzip", delivery_mode=2, priority=5,
        correlation_id="c-1", reply_to="replies", expiration="60000", message_id="m 1", timestamp=1_700_000_000,
        type="order", user_id="guest", app_id="shop", cluster_id="c", headers={"n": 1, RESERVED: {"id": "x"}},
    )  # fmt: skip
    headers, body = raw(found)
    assert body == b"\x00\xff"
    assert headers == {
        "content-type": "image/png; q=1", "amqp-content-encoding": "gzip", "amqp-delivery-mode": "2",
        "amqp-priority": "5", "amqp-correlation-id": "c-1", "amqp-reply-to": "replies", "amqp-expiration": "60000",
        "amqp-message-id": "m 1", "amqp-timestamp": "1700000000", "amqp-type": "order", "amqp-user-id": "guest",
        "amqp-app-id": "shop", "amqp-cluster-id": "c", "amqp-headers": '{"n":1}', "amqp-gateway-id": MESSAGE,
        "amqp-subscription": "billing", "amqp-broker": "local", "amqp-queue": "orders", "amqp-exchange": "shop",
        "amqp-routing-key": "order.paid", "amqp-delivery-attempt": "1",
    }  # fmt: skip


def test_what_happened_to_it_before() -> None:
    found = item()
    found.attempt, found.redelivered, found.resent = 7, True, True
    headers, _ = raw(found)
    assert (headers["amqp-delivery-attempt"], headers["amqp-redelivered"], headers["amqp-resent"]) == (
        "7", "true", "true",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("plain", "plain"),
        ("with space, 1;2=3", "with space, 1;2=3"),
        ("", '""'),
        (" a", '" a"'),
        ("a ", '"a "'),
        ('"a"', '"\\"a\\""'),
        ("{a}", '"{a}"'),
        ("a\r\nx-admin: 1", '"a\\r\\nx-admin: 1"'),
        ("a\x00b\tc\x7f", '"a\\u0000b\\tc\\u007f"'),
        ("Zürich 🚲", '"Z\\u00fcrich \\ud83d\\udeb2"'),
        ("\udcff", '{"type":"binary","value":"/w=="}'),
        (b"\xff", '{"type":"binary","value":"/w=="}'),
    ],
)
def test_a_value_is_plain_or_json(value: Any, written: str) -> None:
    headers, _ = raw(item(correlation_id=value))
    assert headers["amqp-correlation-id"] == written
    if written[0] in '"{':
        found = json.loads(written)
        assert found == value if isinstance(found, str) else b64decode(found["value"]) == b"\xff"


def test_other_values_of_properties() -> None:
    headers, _ = raw(
        item(reply_to=ReplyTo("x", "k"), timestamp=ArrivalTime(5), expiration=Deadline.of(99, "7"), type="a\nb")
    )
    assert json.loads(headers["amqp-reply-to"]) == {"type": "address", "exchange": "x", "routing_key": "k"}
    assert (headers["amqp-timestamp"], headers["amqp-expiration"], headers["amqp-type"]) == ("5", "7", '"a\\nb"')


@pytest.mark.parametrize("kind", ["a\r\nb", "text", "text/", "téxt/plain", "text/plain\n", "", "\udcff"])
def test_a_content_type_that_is_none(kind: str) -> None:
    headers, _ = raw(item(content_type=kind))
    assert headers["content-type"] == "application/octet-stream"
    assert headers["amqp-content-type"][0] in 't"{'


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("text/plain ", True),
        ("text/plain; ", True),
        ("text/plain;\t", True),
        ("text/plain;", False),
        ("a/b ; c", False),
    ],
)
def test_a_content_type_that_ends_in_white_space_is_told_besides(kind: str, told: bool) -> None:
    for form in ("raw", "cloudevents-binary"):
        headers, _ = raw(item(content_type=kind), form)
        assert headers["content-type"].strip() == kind.strip(), "no more than that comes through HTTP"
        assert headers.get("amqp-content-type") == (json.dumps(kind) if told else None)


def test_octets_that_are_no_properties() -> None:
    def refuse(octets: bytes) -> Properties:
        raise FrameSyntaxError("no")

    found = item(b"body")
    found.message = Message(b"body", raw=RawProperties(b"\x01\x02", "x", refuse))
    for form in ("raw", "cloudevents-binary"):
        headers, body = raw(found, form)
        assert (body, headers["amqp-undecodable-properties"]) == (b"body", "AQI=")
    assert event(found)["amqpundecodableproperties"] == "AQI="
    assert json.loads(write(settings("json"), [found]).body)["message"]["undecodable_properties"] == "AQI="


def size(written: FormedRequest) -> int:
    return sum(len(name) + len(value) + 4 for name, value in written.headers)


@pytest.mark.parametrize("form", ["raw", "cloudevents-binary"])
def test_the_head_is_bounded(form: str) -> None:
    room = HEAD_MAX - size(write(settings(form), [item(headers={"x": ""})]))
    written = write(settings(form), [item(headers={"x": "y" * room})])
    assert (written.undeliverable, size(written)) == ({}, HEAD_MAX)
    over = write(settings(form), [item(headers={"x": "y" * (room + 1)})])
    assert over.undeliverable == {
        0: "head too large: the properties and headers of the message take 16385 octets as headers of HTTP, "
        f"{form} allows 16384; another format has them in its body"
    }
    assert (over.headers, over.body) == ([], b"")
    for other in ("json", "cloudevents-structured"):
        assert write(settings(other), [item(headers={"x": "y" * 100_000})]).undeliverable == {}


# -------------------------------------------------------------------------------------- made CloudEvents


def test_an_event_is_made_of_a_message() -> None:
    found = item(b'{"n": 1}', content_type="application/json", type="order.paid", timestamp=1_700_000_000, priority=4)
    assert event(found) == {
        "specversion": "1.0", "id": ID, "source": "/brokers/local/queues/orders", "type": "order.paid",
        "time": "2023-11-14T22:13:20Z", "subject": "order.paid", "datacontenttype": "application/json",
        "data": {"n": 1}, "amqpexchange": "shop", "amqppriority": "4", "amqptype": "order.paid",
        "amqptimestamp": "1700000000", "amqpgatewayid": MESSAGE,
    }  # fmt: skip
    headers, body = raw(found, "cloudevents-binary")
    assert body == b'{"n": 1}'
    assert {name: value for name, value in headers.items() if name.startswith(("ce-", "content"))} == {
        "ce-specversion": "1.0", "ce-id": ID, "ce-source": "/brokers/local/queues/orders", "ce-type": "order.paid",
        "ce-time": "2023-11-14T22:13:20Z", "ce-subject": "order.paid", "content-type": "application/json",
    }  # fmt: skip
    assert (headers["amqp-priority"], headers["amqp-routing-key"]) == ("4", "order.paid")


def test_it_is_the_same_on_every_attempt() -> None:
    first, again = item(b"x"), item(b"x")
    again.attempt = 5
    assert event(first) == event(again)


def test_a_possible_duplicate_is_marked_in_every_form() -> None:
    found = item(b"x")
    found.attempt, found.redelivered, found.resent = 5, True, True
    for form in ("raw", "cloudevents-binary", "cloudevents-structured"):
        headers = dict(write(settings(form), [found]).headers)
        assert (headers[b"amqp-resent"], headers[b"amqp-redelivered"]) == (b"true", b"true")
        assert headers[b"amqp-delivery-attempt"] == b"5"
    for form in ("cloudevents-structured", "cloudevents-batch"):
        assert (event(found, form)["amqpresent"], event(found, form)["amqpredelivered"]) == (True, True)
    envelope = json.loads(write(settings("json"), [found]).body)
    assert (envelope["resent"], envelope["redelivered"], envelope["delivery_attempt"]) == (True, True, 5)


@pytest.mark.parametrize(
    ("text", "is_sound"),
    [
        ("", True), ("plain", True), ("a\u00a0b", True), ("\u2028", True), ("\ue000", True), ("\n", False),
        ("\x7f", False), ("\x9f", False), ("\ufffe", False), ("\U0001ffff", False), ("\udc80", False),
    ],
)  # fmt: skip
def test_what_may_be_an_attribute(text: str, is_sound: bool) -> None:
    assert forms._sound(text) is is_sound


def test_source_and_type_can_be_set() -> None:
    found = event(item(), source="urn:shop", event_type="com.example.order")
    assert (found["source"], found["type"]) == ("urn:shop", "com.example.order")
    assert event(item())["type"] == "amqp.message"
    assert event(item(type="own"), event_type="other")["type"] == "own"
    odd = item()
    odd.broker, odd.queue = "a/b", "q é%\udcff"
    assert event(odd)["source"] == "/brokers/a%2Fb/queues/q%20%C3%A9%25%FF"


@pytest.mark.parametrize("text", ["a\nb", "\x85", "\udcff", "\ufffe", "\U0001ffff"])
def test_what_no_attribute_may_hold(text: str) -> None:
    found = event(item(routing_key=text, type=text))
    assert "subject" not in found
    assert found["type"] == "amqp.message"
    assert json.loads(found["amqproutingkey"]) in (text, {"type": "binary", "value": "/w=="})


def test_times_that_no_calendar_has() -> None:
    assert event(item(timestamp=253_402_300_799))["time"] == "9999-12-31T23:59:59Z"
    assert "time" not in event(item(timestamp=253_402_300_800))
    assert "time" not in event(item(timestamp=2**64 - 1))


@pytest.mark.parametrize(
    ("body", "kind", "data"),
    [
        (b'{"a":1}', "application/json", {"data": {"a": 1}}),
        (b"[1, 2]", "application/problem+json; charset=utf-8", {"data": [1, 2]}),
        (b"{", "application/json", {"data_base64": "ew=="}),
        (b"\xef\xbb\xbf{}", "application/json", {"data_base64": "77u/e30="}),
        (b"[" * 15_000 + b"]" * 15_000, "application/json", None),
        (b"NaN", "application/json", {"data_base64": "TmFO"}),
        (b"hello", "text/plain", {"data": "hello"}),
        ("für".encode(), "text/plain; charset=UTF-8", {"data": "für"}),
        (b"abc", "text/plain; charset=utf-16", {"data_base64": "YWJj"}),
        (b"\xff", "text/plain", {"data_base64": "/w=="}),
        (b"\x00\xff", "image/png", {"data_base64": "AP8="}),
        (b"", "text/plain", {}),
        (b"7", None, {"data": 7}),
        (b"\xff", None, {"data_base64": "/w=="}),
        (b"hello", None, {"data": "hello", "datacontenttype": "text/plain; charset=utf-8"}),
    ],
)
def test_data(body: bytes, kind: str | None, data: dict[str, Any] | None) -> None:
    found = msgspec.json.decode(write(settings("cloudevents-structured"), [item(body, content_type=kind)]).body)
    members = {name: found[name] for name in ("data", "data_base64", "datacontenttype") if name in found}
    if data is None:  # nested by the thousand: whatever becomes of it, it is all there
        assert b64decode(found["data_base64"]) == body if "data_base64" in found else found["data"]
        return
    assert members == ({"datacontenttype": kind} if kind is not None else {}) | data


def test_json_data_keeps_its_octets() -> None:
    body = b'{ "b": 1.0, "a": 12345678901234567890123, "a": 2 }'
    written = write(settings("cloudevents-structured"), [item(body, content_type="application/json")])
    assert body in written.body


def test_a_batch_of_events() -> None:
    written = write(settings("cloudevents-batch", batch_max=5), [item(b"1"), binary_event(b"2"), structured_event()])
    assert written.headers == [(b"content-type", b"application/cloudevents-batch+json; charset=utf-8")]
    assert [each["id"] for each in json.loads(written.body)] == [ID, "e-1", "e-1"]


# --------------------------------------------------------------------------------- events that it was before


def test_an_event_in_binary_mode_goes_out_as_it_came() -> None:
    found = binary_event(b'{"n":1}', subject='50 % "ü"', extra="x", n=3, flag=True)
    headers, body = raw(found, "cloudevents-binary")
    assert body == b'{"n":1}'
    attributes = {name[3:]: value for name, value in headers.items() if name.startswith("ce-")}
    assert attributes == {
        **REQUIRED, "subject": "50%20%25%20%22%C3%BC%22", "extra": "x", "n": "3", "flag": "true",
    }  # fmt: skip
    assert unquote(attributes["subject"]) == '50 % "ü"'
    assert "amqp-headers" not in headers, "they are in the ce- headers"
    assert event(found) == {
        **REQUIRED, "subject": '50 % "ü"', "extra": "x", "n": 3, "flag": True, "datacontenttype": "application/json",
        "data": {"n": 1},
    }  # fmt: skip


def test_other_headers_of_an_event_stay_beside_it() -> None:
    found = binary_event()
    assert found.message.properties.headers is not None
    found.message.properties.headers["other"] = 7
    assert raw(found, "cloudevents-binary")[0]["amqp-headers"] == '{"other":7}'
    assert "other" not in event(found), "the event is what it was"


def test_a_header_that_is_no_attribute_is_not_lost() -> None:
    found = binary_event(UPPER="x", empty=None, **{"with-dash": 1})
    headers, _ = raw(found, "cloudevents-binary")
    assert {name[3:] for name in headers if name.startswith("ce-")} == set(REQUIRED)
    assert json.loads(headers["amqp-headers"]) == {
        "cloudEvents_UPPER": "x", "cloudEvents_empty": None, "cloudEvents_with-dash": 1,
    }  # fmt: skip
    assert event(found) == {**REQUIRED, "datacontenttype": "application/json"}


def test_an_event_in_structured_mode_goes_out_octet_for_octet() -> None:
    found = structured_event(data={"n": 1}, subject="x")
    body = found.message.body
    assert write(settings("cloudevents-structured"), [found]).body == body
    assert write(settings("cloudevents-batch"), [found]).body == b"[" + body + b"]"


@pytest.mark.parametrize(
    ("members", "kind", "data"),
    [
        ({"data": {"n": 1}}, "application/json", b'{"n": 1}'),
        ({"data": "text", "datacontenttype": "text/plain"}, "text/plain", b"text"),
        ({"data": "text"}, "application/json", b'"text"'),
        ({"data_base64": "AP8=", "datacontenttype": "image/png"}, "image/png", b"\x00\xff"),
        ({"data": [1], "datacontenttype": "text/xml"}, "text/xml", b"[1]"),
        ({}, None, b""),
    ],
)
def test_from_structured_to_binary(members: dict[str, Any], kind: str | None, data: bytes) -> None:
    headers, body = raw(structured_event(**members, big=2**40, gone=None), "cloudevents-binary")
    assert (headers.get("content-type"), body) == (kind, data)
    attributes = {name[3:]: value for name, value in headers.items() if name.startswith("ce-")}
    assert attributes == {**REQUIRED, "big": str(2**40)}


@pytest.mark.parametrize(
    "found",
    [
        binary_event(id=""),
        binary_event(source=None),
        binary_event(subject="a\nb"),
        binary_event(subject="\udcff"),
        structured_event(content_type="application/cloudevents"),
        structured_event(id=""),
        structured_event(data=1, data_base64="AA=="),
        structured_event(data_base64="!"),
        structured_event(UPPER=1),
        structured_event(datacontenttype=7),
        item(b"{", content_type="application/cloudevents+json"),
        item(b"[]", content_type="application/cloudevents+json"),
        item(b"[" * 5_000, content_type="application/cloudevents+json"),
    ],
)
def test_what_is_no_event_is_made_one(found: PushedMessage) -> None:
    made = event(found)
    assert (made["id"], made["type"], made["amqpgatewayid"]) == (ID, "amqp.message", MESSAGE)
    assert raw(found, "cloudevents-binary")[1] == found.message.body


def test_types_of_attributes() -> None:
    headers, _ = raw(
        binary_event(
            time=Timestamp(1_700_000_000), octets=b"\x00\xff", uuid=UUID(int=5), dec=Decimal("1.5"), big=2**40,
            small=Typed("int8", 3), late=Timestamp(2**63), table={"a": 1},
        ),
        "cloudevents-binary",
    )  # fmt: skip
    found = {name[3:]: unquote(value) for name, value in headers.items() if name.startswith("ce-")}
    assert {name: found[name] for name in found.keys() - REQUIRED.keys()} == {
        "time": "2023-11-14T22:13:20Z", "octets": "AP8=", "uuid": str(UUID(int=5)), "dec": "1.5", "big": str(2**40),
        "small": "3", "late": str(2**63), "table": '{"a":1}',
    }  # fmt: skip
    datetime.fromisoformat(found["time"])


# ------------------------------------------------------------------------------------------ whatever comes

texts = st.text(max_size=30)
short_strings = texts | st.binary(max_size=30).map(lambda octets: octets.decode("utf-8", "surrogateescape"))
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | texts | st.binary(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(short_strings, inner, max_size=3),
    max_leaves=8,
)
optional = st.none() | short_strings


@given(
    body=st.binary(max_size=50), kind=optional, correlation=optional, key=optional, type=optional,
    headers=st.none() | st.dictionaries(
        st.sampled_from([*(f"cloudEvents_{name}" for name in (*REQUIRED, "time")), "a", "b"]), values, max_size=7
    ),
    timestamp=st.none() | st.integers(0, 2**64 - 1),
)  # fmt: skip
def test_every_message_can_be_written_and_sent(
    body: bytes, kind: Any, correlation: Any, key: Any, type: Any, headers: Any, timestamp: Any
) -> None:
    found = item(
        body, key or "", content_type=kind, correlation_id=correlation, type=type, timestamp=timestamp,
        headers=headers,
    )  # fmt: skip
    site, target = split_url("https://shop.example/")
    for form in FORMATS:
        written = write(settings(form), [found])
        octets = request_octets("POST", request_line(site, target), written.headers, written.body, 65_536)
        head = octets[: len(octets) - len(written.body)]
        assert head.count(b"\r\n") == 6 + len(written.headers), "nothing ends a line but we"
        assert all(0x20 <= octet < 0x7F or octet in b"\r\n" for octet in head)
        if form != "raw" and "binary" not in form:
            msgspec.json.decode(written.body)
        elif form == "raw":
            assert written.body == body


@given(st.dictionaries(short_strings, values, max_size=4))
def test_headers_come_back_as_they_were(table: dict[str, Any]) -> None:
    headers, _ = raw(item(headers=table))
    if table:
        found = json.loads(headers["amqp-headers"])
        decoded = table_from_json(found["value"] if set(found) == {"type", "value"} else found)
        assert repr(decoded) == repr(table)


# ------------------------------------------------------------------------------------------------- dead letters

DEATH = {RESERVED: {"reason": "no such customer\r\nx: y", "code": "rejected", "queue": "orders", "exchange": "shop",
                    "routing_key": "eu", "at": "2026-11-24T10:00:05.250Z"}}  # fmt: skip
DIED = {"reason": "no such customer\r\nx: y", "code": "rejected", "exchange": "shop", "routing_key": "eu",
        "queue": "orders", "at": "2026-11-24T10:00:05.250Z"}  # fmt: skip


def test_a_dead_letter_says_so_in_every_form() -> None:
    dead = item(b"x", headers={**DEATH, "n": 1})
    assert json.loads(raw(dead, "json")[1])["message"]["dead_letter"] == DIED
    for form in ("raw", "cloudevents-binary"):
        headers, body = raw(dead, form)
        assert body == b"x"
        assert json.loads(headers["amqp-dead-letter"]) == DIED
        assert json.loads(headers["amqp-headers"]) == {"n": 1}
    for form in ("cloudevents-structured", "cloudevents-batch"):
        assert json.loads(event(dead, form)["amqpdeadletter"]) == DIED


@pytest.mark.parametrize("form", ["cloudevents-structured", "cloudevents-batch"])
def test_an_event_that_is_a_dead_letter_stays_the_event(form: str) -> None:
    """One in binary mode has the extension; one in structured mode the header, and in a batch the extension at its
    end, with all else octet for octet."""
    attributes = {f"cloudEvents_{name}": value for name, value in REQUIRED.items()}
    plain = event(item(b"{}", headers={**DEATH, **attributes}, content_type="application/json"), form)
    assert json.loads(plain.pop("amqpdeadletter")) == DIED
    assert plain == {**REQUIRED, "datacontenttype": "application/json", "data": {}}
    whole = b' {"specversion":"1.0","id":"e-1", "source":"/shop","type":"order.paid","data": 1.0}\n'
    structured = item(whole, headers=DEATH, content_type="application/cloudevents+json")
    written = write(settings(form), [structured])
    if form == "cloudevents-structured":
        assert written.body == whole
        assert json.loads(dict(written.headers)[b"amqp-dead-letter"]) == DIED
    else:
        assert written.body.startswith(b"[" + whole.rstrip()[:-1] + b',"amqpdeadletter":"')
        assert json.loads(json.loads(written.body)[0]["amqpdeadletter"]) == DIED
    taken = whole.replace(b'"data"', b'"amqpdeadletter":"mine","data"')
    assert (
        event(item(taken, headers=DEATH, content_type="application/cloudevents+json"), form)["amqpdeadletter"] == "mine"
    )


def test_a_dead_letter_is_not_too_large_because_it_is_one() -> None:
    """The object is left out where the headers would be too large with it."""
    size = HEAD_MAX - 700
    headers, _ = raw(item(b"x", headers={"n": "x" * size}))
    assert "amqp-dead-letter" not in headers
    headers, _ = raw(item(b"x", headers={**DEATH, "n": "x" * size, RESERVED: {**DEATH[RESERVED], "reason": "é" * 200}}))
    assert "amqp-dead-letter" not in headers
    assert len(headers["amqp-headers"]) > size
