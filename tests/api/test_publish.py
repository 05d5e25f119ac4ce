"""``:publish``: one message, a batch, a raw body; what is wrong with them; Idempotency-Key."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from typing import Any

import httpx
import pytest

from gateway.amqp.message import Properties, ReplyTo
from gateway.amqp.values import Typed
from gateway.core import Gateway
from gateway.errors import BrokerUnavailable, OutcomeUnknown, PublishRefused
from gateway.ledger import New
from gateway.notation.values import table_to_json
from gateway.upstreams import UpstreamState
from tests.api.conftest import problem
from tests.core.fakes import FakeUpstream

PATH = "/v1/brokers/fake/exchanges/amq.default:publish"


def sent(upstream: FakeUpstream) -> Properties:
    """The properties of the last message, without the gateway's header."""
    properties = upstream.published[-1][2].properties
    headers = {key: value for key, value in (properties.headers or {}).items() if key != "x-gateway"}
    properties.headers = headers or None
    return properties


async def test_one_message(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    body = {
        "routing_key": "orders",
        "payload": "hello",
        "payload_encoding": "string",
        "mandatory": True,
        "properties": {"content_type": "text/plain", "delivery_mode": 2, "message_id": "m-1"},
        "headers": {"n": 1},
    }
    response = await client.post(PATH, json=body)
    assert response.status_code == 200
    answer = response.json()
    assert len(answer.pop("id")) == 36
    assert answer == {"status": "confirmed", "routed": True, "durable": True}
    exchange, key, message = upstream.published[0]
    assert (exchange, key, message.body) == ("", "orders", b"hello")
    assert sent(upstream) == Properties(content_type="text/plain", delivery_mode=2, message_id="m-1", headers={"n": 1})


async def test_a_routing_key_alone_is_an_empty_persistent_message(
    client: httpx.AsyncClient, upstream: FakeUpstream
) -> None:
    response = await client.post(PATH, json={"routing_key": "orders"})
    assert response.json()["routed"] is True
    assert upstream.published[0][2].body == b""
    assert sent(upstream) == Properties(delivery_mode=2)


@pytest.mark.parametrize("body", [{}, {"mandatory": False}, {"headers": {}}, {"not_before": 1}])
async def test_an_empty_message_says_what_is_missing(
    client: httpx.AsyncClient, upstream: FakeUpstream, body: dict[str, Any]
) -> None:
    found = problem(await client.post(PATH, json=body), 422, "invalid_request")
    assert found["detail"] == "the message is empty: give a routing_key, a payload, properties or headers"
    assert [error["pointer"] for error in found["errors"]] == ["/routing_key", "/payload", "/properties", "/headers"]
    batch = (await client.post(PATH, json={"messages": [body]})).json()["results"]
    lines = await client.post(PATH, content=json.dumps(body), headers={"content-type": "application/x-ndjson"})
    assert [batch[0]["status"], lines.json()["status"]] == [422, 422]
    assert not upstream.published


@pytest.mark.parametrize(
    "body",
    [
        {"payload": ""},
        {"routing_key": ""},
        {"headers": {"a": 1}},
        {"properties": {}},
        {"logged": {}},
    ],
)
async def test_one_part_is_enough(client: httpx.AsyncClient, upstream: FakeUpstream, body: dict[str, Any]) -> None:
    problem(await client.post(PATH, json=body), 422, "unroutable")
    assert len(upstream.published) == 1


async def test_every_property(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    properties = {
        "content_type": "a/b",
        "content_encoding": "gzip",
        "delivery_mode": 1,
        "priority": 9,
        "correlation_id": {"type": "binary", "value": "/w=="},
        "reply_to": {"type": "address", "exchange": "ex", "routing_key": "k"},
        "expiration": "60000",
        "message_id": {"type": "binary", "value": "/w=="},
        "timestamp": (1 << 64) - 1,
        "type": "t",
        "user_id": "guest",
        "app_id": {"type": "binary", "value": "YWJj"},
        "cluster_id": "é",
    }
    headers = {"a": {"type": "int8", "value": 3}, "t": {"x": [None, True]}}
    body = {"routing_key": "orders", "payload": "AP8=", "payload_encoding": "base64"}
    body |= {"properties": properties, "headers": headers}
    assert (await client.post(PATH, json=body)).status_code == 200
    assert upstream.published[0][2].body == b"\x00\xff"
    assert sent(upstream) == Properties(
        content_type="a/b",
        content_encoding="gzip",
        delivery_mode=1,
        priority=9,
        correlation_id=b"\xff",
        reply_to=ReplyTo("ex", "k"),
        expiration="60000",
        message_id="\udcff",
        timestamp=(1 << 64) - 1,
        type="t",
        user_id="guest",
        app_id="abc",
        cluster_id="é",
        headers={"a": Typed("int8", 3), "t": {"x": [None, True]}},
    )


@pytest.mark.parametrize(
    ("content", "status", "code", "pointer"),
    [
        (b"", 400, "malformed_json", None),
        (b"{", 400, "malformed_json", None),
        (b'{"payload": "\xff"}', 400, "malformed_json", None),
        (b"[" * 100_001, 413, "body_too_large", None),
        (b"[]", 422, "invalid_request", ""),
        (b'{"payload": "\\ud800"}', 400, "malformed_json", None),
        (b'{"payload": {"a": "\xff"}}', 422, "invalid_value", "/payload"),
        (b'{"payload": ["\\udc00"]}', 400, "malformed_json", None),
        (b'{"payload": {"a": 1, "b": [], "a": 2}}', 422, "invalid_value", "/payload"),
        (b'{"payload": [{"a": 1, "a": 1}]}', 422, "invalid_value", "/payload"),
        (b'{"payload": 5, "payload_encoding": "base64"}', 422, "invalid_value", "/payload"),
        (b'{"payload": {}, "logged": {}}', 422, "invalid_value", "/payload"),
        (b'{"payloads": ""}', 422, "invalid_request", "/payloads"),
        (b'{"properties": {"priority": 256}}', 422, "invalid_request", "/properties/priority"),
        (b'{"properties": {"message-id": ""}}', 422, "invalid_request", "/properties/message-id"),
        (b'{"payload": "?", "payload_encoding": "base64"}', 422, "invalid_value", "/payload"),
        (b'{"payload": "", "payload_encoding": "hex"}', 422, "invalid_request", "/payload_encoding"),
        (b'{"headers": {"a": 18446744073709551616}}', 422, "invalid_value", "/headers/a"),
        (b'{"headers": {"a": {"type": "int8", "value": 200}}}', 422, "invalid_value", "/headers/a/value"),
        (b'{"headers": {"' + b"k" * 256 + b'": 1}}', 422, "invalid_value", "/headers/" + "k" * 256),
        (b'{"headers": {"x-gateway": {}}}', 422, "invalid_header", "/headers/x-gateway"),
        (b'{"properties": {"expiration": "soon"}}', 422, "invalid_value", "/properties/expiration"),
        (b'{"properties": {"expiration": "-1"}}', 422, "invalid_value", "/properties/expiration"),
        (b'{"properties": {"expiration": 5}}', 422, "invalid_request", "/properties/expiration"),
        (b'{"properties": {"timestamp": 18446744073709551616}}', 422, "invalid_value", "/properties/timestamp"),
        (
            b'{"properties": {"app_id": {"type": "binary", "value": "?"}}}',
            422,
            "invalid_value",
            "/properties/app_id/value",
        ),
        (b'{"routing_key": {"type": "binary", "value": "?"}}', 422, "invalid_value", "/routing_key/value"),
        (b'{"messages": []}', 422, "invalid_request", "/messages"),
        (b'{"messages": [{}], "payload": "x"}', 422, "invalid_request", "/messages"),
        (b'{"messages": [' + b"{}," * 100 + b"{}]}", 413, "body_too_large", None),
        (b'{"messages": {}}', 422, "invalid_request", "/messages"),
    ],
    ids=lambda item: repr(item)[:40] if isinstance(item, bytes) else "",
)
async def test_bad_bodies(
    client: httpx.AsyncClient, upstream: FakeUpstream, content: bytes, status: int, code: str, pointer: str | None
) -> None:
    response = await client.post(PATH, content=content, headers={"content-type": "application/json"})
    found = problem(response, status, code)
    if pointer is not None:
        assert found["errors"][0]["pointer"] == pointer
    assert found["instance"] == PATH
    assert not upstream.published


async def test_a_body_nested_by_the_thousand(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    """How deep the parser of JSON goes is Python's affair; what it lets through is over the limit on tables."""
    content = b'{"headers": {"a": ' + b"[" * 9_000 + b"]" * 9_000 + b"}}"
    response = await client.post(PATH, content=content, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["code"]) in {(400, "malformed_json"), (422, "invalid_value")}
    assert not upstream.published


async def test_a_body_over_the_limit_is_not_held(client: httpx.AsyncClient) -> None:
    async def chunks() -> Any:
        for _ in range(200):
            yield b"x" * 1000

    response = await client.post(PATH, content=chunks(), headers={"content-type": "text/plain"})
    problem(response, 413, "body_too_large")


async def test_unknown_broker_and_exchange(client: httpx.AsyncClient) -> None:
    body = {"routing_key": "k"}
    path = "/v1/brokers/missing/exchanges/amq.default:publish"
    problem(await client.post(path, json=body), 404, "broker_not_found")
    found = problem(await client.post("/v1/brokers/fake/exchanges/missing:publish", json=body), 404, "not_found")
    assert found["outcome"] == "refused"
    assert found["id"]


async def test_not_routed(client: httpx.AsyncClient) -> None:
    for mandatory in ({}, {"mandatory": True}):
        found = problem(await client.post(PATH, json={"routing_key": "x", **mandatory}), 422, "unroutable")
        assert (found["outcome"], found["retryable"]) == ("refused", False)
    answer = (await client.post(PATH, json={"routing_key": "x", "mandatory": False})).json()
    assert (answer.pop("id") != "", answer) == (True, {"status": "unroutable", "routed": False, "durable": False})


@pytest.mark.parametrize("kind", ["text/plain", "application/json", "application/cloudevents+json", "binary event"])
async def test_other_bodies_are_mandatory_too(client: httpx.AsyncClient, upstream: FakeUpstream, kind: str) -> None:
    """Unless the query or a header says otherwise."""
    event = {"specversion": "1.0", "id": "1", "source": "/a", "type": "t"}
    headers = {"content-type": kind, "amqp-routing-key": "x"}
    if kind == "binary event":
        headers |= {"content-type": "text/plain", **{f"ce-{name}": value for name, value in event.items()}}
    body = json.dumps(event)
    problem(await client.post(PATH, content=body, headers=headers), 422, "unroutable")
    problem(await client.post(f"{PATH}?mandatory=true", content=body, headers=headers), 422, "unroutable")
    for query, more in (("?mandatory=false", {}), ("", {"amqp-mandatory": "false"})):
        answer = await client.post(PATH + query, content=body, headers=headers | more)
        assert (answer.status_code, answer.json()["status"], answer.json()["routed"]) == (200, "unroutable", False)
    both = {**headers, "amqp-mandatory": "true"}
    problem(await client.post(f"{PATH}?mandatory=false", content=body, headers=both), 422, "invalid_parameter")


async def test_refused_unknown_and_away(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    body = {"routing_key": "orders"}
    upstream.failure = PublishRefused("the queue is full")
    response = await client.post(PATH, json=body)
    problem(response, 503, "publish_refused")
    assert response.headers["retry-after"] == "1"
    upstream.failure = OutcomeUnknown("no confirm came")
    found = problem(await client.post(PATH, json=body), 504, "outcome_unknown")
    assert found["outcome"] == "unknown"
    assert "Idempotency-Key" in found["advice"]
    upstream.failure = BrokerUnavailable("blocked: memory", 7.0)
    response = await client.post(PATH, json=body)
    assert problem(response, 503, "broker_unavailable")["outcome"] == "not_sent"
    assert response.headers["retry-after"] == "7"


async def test_a_batch_has_a_result_for_each(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    messages = [
        {"routing_key": "orders", "payload": "1"},
        {"routing_key": "nowhere"},
        {"payload": "?", "payload_encoding": "base64"},
        {"routing_key": "nowhere", "mandatory": False},
        {"headers": {"x-gateway": 1}},
    ]
    response = await client.post(PATH, json={"messages": messages})
    assert response.status_code == 207
    results = response.json()["results"]
    assert [item["status"] for item in results] == [200, 422, 422, 200, 422]
    assert [item.get("problem", {}).get("code") for item in results] == [
        None, "unroutable", "invalid_value", None, "invalid_header",
    ]  # fmt: skip
    assert [item.get("routed") for item in results] == [True, None, None, False, None]
    assert [item.get("state") for item in results] == ["confirmed", None, None, "unroutable", None]
    assert len(upstream.published) == 3


async def test_a_batch_with_an_item_of_another_shape(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    response = await client.post(PATH, json={"messages": [{"routing_key": "orders"}, {"nonsense": 1}, 5]})
    results = response.json()["results"]
    assert [item["status"] for item in results] == [200, 422, 422]
    assert results[1]["problem"]["code"] == "invalid_request"
    response = await client.post(PATH, json={"messages": [5]})
    assert [item["status"] for item in response.json()["results"]] == [422]


async def test_names_of_all_kinds(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    for name, encoded in [
        ("a/b:c%d é", "a%2Fb%3Ac%25d%20%C3%A9"),
        ("x:publish", "x%3Apublish"),
        ("é" * 127, "%C3%A9" * 127),
        ("\udcff", "%FF"),
    ]:
        upstream.exchanges[name] = "direct"
        body = {"payload": "x", "mandatory": False}
        response = await client.post(f"/v1/brokers/fake/exchanges/{encoded}:publish", json=body)
        assert response.status_code == 200, name
        assert upstream.published[-1][0] == name


# -------------------------------------------------------------------------------------------------- raw bodies


async def test_a_raw_body(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    headers = {
        "content-type": "image/png; x=y",
        "content-encoding": "gzip",
        "amqp-routing-key": "orders",
        "amqp-mandatory": "true",
        "amqp-delivery-mode": "1",
        "amqp-priority": "4",
        "amqp-timestamp": "5",
        "amqp-message-id": "m",
        "amqp-correlation-id": "é".encode(),
        "amqp-reply-to": "r",
        "amqp-expiration": "10",
        "amqp-type": "t",
        "amqp-app-id": "a",
        "amqp-user-id": "u",
        "amqp-cluster-id": "c",
        "amqp-headers": '{"n": {"type": "int16", "value": 1}}',
    }
    response = await client.post(PATH, content=b"\x00\xff", headers=headers)  # type: ignore[arg-type]
    assert response.json()["routed"] is True
    assert upstream.published[0][2].body == b"\x00\xff"
    assert sent(upstream) == Properties(
        content_type="image/png; x=y", content_encoding="gzip", delivery_mode=1, priority=4, timestamp=5,
        message_id="m", correlation_id="é", reply_to="r", expiration="10", type="t", app_id="a", user_id="u",
        cluster_id="c", headers={"n": Typed("int16", 1)},
    )  # fmt: skip


@pytest.mark.parametrize("body", [b'{"my": "json"}', b"{}", b"[1, 2]", b"null", b"no json", b'{"my": "x", "key": 1}'])
async def test_json_that_is_no_message_is_a_raw_body_with_any_amqp_header(
    client: httpx.AsyncClient, upstream: FakeUpstream, body: bytes
) -> None:
    headers = {"content-type": "application/json", "amqp-routing-key": "orders"}
    assert (await client.post(PATH, content=body, headers=headers)).json()["routed"] is True
    assert upstream.published[0][2].body == body
    assert sent(upstream).content_type == "application/json"


@pytest.mark.parametrize(
    "body",
    [
        {"routing_key": "orders", "payload": "x"},
        {"routing_key": "orders", "mandatry": True},
        {"payload": 1, "my": 2},
        {"messages": []},
        {"headers": {"a": 1}, "mandatory": False},
    ],
)
@pytest.mark.parametrize("header", ["amqp-priority", "amqp-routing-key", "amqp-mandatory"])
async def test_a_message_in_json_beside_an_amqp_header_is_refused(
    client: httpx.AsyncClient, upstream: FakeUpstream, body: dict[str, Any], header: str
) -> None:
    found = problem(await client.post(PATH, json=body, headers={header: "1"}), 422, "invalid_parameter")
    assert header in found["detail"]
    assert "raw=true" in found["detail"]
    assert not upstream.published


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
async def test_a_raw_body_that_looks_like_a_message(
    client: httpx.AsyncClient, upstream: FakeUpstream, kind: str
) -> None:
    body = b'{"routing_key": "x", "payload": "y"}'
    path = f"{PATH}?raw=true&routing_key=orders"
    for more in ({}, {"amqp-priority": "4"}):
        response = await client.post(path, content=body, headers={"content-type": kind, **more})
        assert response.json()["routed"] is True
        assert upstream.published[-1][2].body == body
    assert sent(upstream) == Properties(content_type=kind, delivery_mode=2, priority=4)


@pytest.mark.parametrize(
    ("given", "body"),
    [
        ('{"a" : 1,\n "b":\t[1, 2.50, {"c d": "e, f"}] }', b'{"a":1,"b":[1,2.50,{"c d":"e, f"}]}'),
        ("12345678901234567890123", b"12345678901234567890123"),
        ("[1.10, 1e400, -0, 1E5]", b"[1.10,1e400,-0,1E5]"),
        (r'["\u00e9\/\n", " \" \\", "x y"]', '["é/\\n"," \\" \\\\","x y"]'.encode()),
        (r'{"\u0061": {"a": 1}, "b": {"a": 1}}', b'{"a":{"a":1},"b":{"a":1}}'),
        ("null", b"null"),
        (" true ", b"true"),
        ("[ ]", b"[]"),
    ],
)
async def test_a_payload_may_be_any_json(
    client: httpx.AsyncClient, upstream: FakeUpstream, given: str, body: bytes
) -> None:
    content = f'{{"routing_key": "orders", "payload": {given}}}'
    headers = {"content-type": "application/json"}
    assert (await client.post(PATH, content=content, headers=headers)).status_code == 200
    assert upstream.published[0][2].body == body
    assert sent(upstream) == Properties(content_type="application/json", delivery_mode=2)
    batch = f'{{"messages": [{content}, {{"wrong": 1}}]}}'
    assert (await client.post(PATH, content=batch, headers=headers)).json()["results"][0]["status"] == 200
    lines = content.replace("\n", "")
    await client.post(PATH, content=lines, headers={"content-type": "application/x-ndjson"})
    assert [message.body for _, _, message in upstream.published] == [body] * 3


async def test_a_member_that_is_there_twice_is_named(client: httpx.AsyncClient) -> None:
    content = b'{"routing_key": "orders", "payload": [{"a": 1, "b": 2, "a": 3}]}'
    answer = await client.post(PATH, content=content, headers={"content-type": "application/json"})
    found = problem(answer, 422, "invalid_value")
    assert found["errors"] == [{"pointer": "/payload", "detail": "the member 'a' is in one object twice"}]


async def test_the_content_type_of_a_payload(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    for payload, given, expected in [
        ({"a": 1}, {"content_type": "text/x"}, "text/x"),
        ({"a": 1}, {"priority": 1}, "application/json"),
        ("text", {}, None),
    ]:
        body = {"routing_key": "orders", "payload": payload, "properties": given}
        assert (await client.post(PATH, json=body)).status_code == 200
        assert sent(upstream).content_type == expected


async def test_a_number_that_is_too_long_is_published_as_it_is(
    client: httpx.AsyncClient, upstream: FakeUpstream
) -> None:
    content = b'{"routing_key": "orders", "payload": ' + b"9" * 10_000 + b"}"
    await client.post(PATH, content=content, headers={"content-type": "application/json"})
    assert upstream.published[0][2].body == b"9" * 10_000


@pytest.mark.parametrize("query", ["not_before=2099-01-01T00:00:00Z", "mandatory=true", "routing_key=x", "other=1"])
async def test_a_query_beside_json_is_refused(client: httpx.AsyncClient, upstream: FakeUpstream, query: str) -> None:
    response = await client.post(f"{PATH}?{query}", json={"routing_key": "orders", "payload": "x"})
    assert (response.status_code, response.json()["code"]) == (422, "invalid_parameter")
    assert not upstream.published


async def test_the_routing_key_may_be_in_the_query(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    path = f"{PATH}?routing_key=a%2F%C3%A9%FF&mandatory=true"
    problem(await client.post(path, content=b"x", headers={"content-type": "text/plain"}), 422, "unroutable")
    assert upstream.published[0][1] == "a/é\udcff"


@pytest.mark.parametrize(
    ("headers", "query", "status", "code"),
    [
        ({"amqp-priority": "high"}, "", 422, "invalid_parameter"),
        ({"amqp-priority": "256"}, "", 422, "invalid_parameter"),
        ({"amqp-mandatory": "perhaps"}, "", 422, "invalid_parameter"),
        ({"amqp-headers": "[]"}, "", 422, "invalid_parameter"),
        ({"amqp-headers": '{"x-gateway": 1}'}, "", 422, "invalid_header"),
        ({"amqp-headers": '{"a": 18446744073709551616}'}, "", 422, "invalid_value"),
        ({"amqp-expiration": "soon"}, "", 422, "invalid_value"),
        ({"amqp-routing-key": "a"}, "?routing_key=b", 422, "invalid_parameter"),
        ({}, "?mandatory=perhaps", 422, "invalid_parameter"),
        ({}, "?nonsense=1", 422, "invalid_parameter"),
        ({"content-type": "application/x-www-form-urlencoded"}, "", 415, "unsupported_media_type"),
    ],
)
async def test_bad_raw_bodies(
    client: httpx.AsyncClient, upstream: FakeUpstream, headers: dict[str, str], query: str, status: int, code: str
) -> None:
    response = await client.post(PATH + query, content=b"x", headers={"content-type": "text/plain", **headers})
    problem(response, status, code)
    assert not upstream.published


@pytest.mark.parametrize(
    "more",
    [
        [("amqp-message-identifier", "m")],
        [("amqp-content-encoding", "gzip")],
        [("amqp-undecodable-properties", "AQI=")],
        [("amqp-message-id", "m"), ("amqp-message-id", "n")],
        [("content-encoding", "gzip"), ("content-encoding", "x")],
        [("ce-id", "1"), ("ce-id", "1")],
    ],
)
@pytest.mark.parametrize("kind", ["text/plain", "application/json", "application/cloudevents+json"])
async def test_headers_that_would_not_be_heeded(
    client: httpx.AsyncClient, upstream: FakeUpstream, kind: str, more: list[tuple[str, str]]
) -> None:
    headers = [("content-type", kind), *more]
    problem(await client.post(PATH, content=b"{}", headers=headers), 422, "invalid_parameter")
    assert not upstream.published


async def test_headers_of_a_delivery_are_passed_over(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    headers = {"content-type": "text/plain", "amqp-queue": "q", "amqp-delivery-attempt": "2", "amqp-message-id": "m"}
    assert (await client.post(f"{PATH}?routing_key=orders", content=b"x", headers=headers)).status_code == 200
    assert sent(upstream) == Properties(content_type="text/plain", delivery_mode=2, message_id="m")


@pytest.mark.parametrize(
    ("headers", "query"), [({"amqp-priority": "4"}, ""), ({}, "?not_before=2099-01-01T00:00:00Z"), ({}, "?mandatory=1")]
)
async def test_what_a_stream_does_not_heed(
    client: httpx.AsyncClient, upstream: FakeUpstream, headers: dict[str, str], query: str
) -> None:
    headers = {"content-type": "application/x-ndjson", **headers}
    problem(await client.post(PATH + query, content=b'{"payload": "x"}', headers=headers), 422, "invalid_parameter")
    assert not upstream.published


# ------------------------------------------------------------------------------------------- Idempotency-Key


async def test_a_repeat_replays_the_answer(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    headers = {"idempotency-key": '"order-1"'}
    first = await client.post(PATH, json={"routing_key": "orders"}, headers=headers)
    again = await client.post(PATH, json={"routing_key": "orders"}, headers={"idempotency-key": "order-1"})
    assert (again.status_code, again.content) == (200, first.content)
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["content-type"] == "application/json"
    assert len(upstream.published) == 1
    problem(await client.post(PATH, json={"routing_key": "x"}, headers=headers), 422, "idempotency_key_reused")
    other = PATH.replace("amq.default", "other")
    problem(await client.post(other, json={"routing_key": "orders"}, headers=headers), 422, "idempotency_key_reused")


async def test_the_meaning_of_a_request_counts(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    """And not how its JSON is written."""

    async def post(text: str, key: str = "k") -> httpx.Response:
        headers = {"idempotency-key": key, "content-type": "application/json"}
        return await client.post(PATH, content=text, headers=headers)

    first = await post('{"routing_key":"orders","payload":"é","headers":{"a":1,"t":{"x":[{"y":1,"z":2}],"b":null}}}')
    assert first.status_code == 200
    for same in (
        '{"payload": "\\u00e9", "headers":{"t":{"b":null,"x":[{"z":2,"y":1}]},"a":1}, "routing_key": "orders"}',
        '{"mandatory":true,"routing_key":"orders","payload":"w6k=","payload_encoding":"base64",'
        '"properties":{"delivery_mode":2},"headers":{"a":1,"t":{"x":[{"y":1,"z":2}],"b":null}}}',
    ):
        again = await post(same)
        assert (again.status_code, again.content, again.headers["idempotent-replayed"]) == (200, first.content, "true")
    base = '{"routing_key":"orders","payload":"é","headers":{"a":1,"t":{"x":[{"y":1,"z":2}],"b":null}}'
    for other in (
        base + ',"mandatory":false}',
        base + ',"properties":{"priority":1}}',
        base + ',"delay_seconds":0}',
        base.replace("é", "e") + "}",
        base.replace('"a":1', '"a":2') + "}",
        base.replace('"a":1', '"a":1.0') + "}",
        base.replace("orders", "other") + "}",
        '{"messages":[' + base + "}]}",
    ):
        problem(await post(other), 422, "idempotency_key_reused")
    assert len(upstream.published) == 1
    pair = '{{"messages":[{{"routing_key":"orders","payload":"{}"}},{{"payload":"{}","routing_key":"orders"}}]}}'
    assert (await post(pair.format("1", "2"), "batch")).status_code == 207
    assert (await post(pair.format("1", "2") + " ", "batch")).headers["idempotent-replayed"] == "true"
    problem(await post(pair.format("2", "1"), "batch"), 422, "idempotency_key_reused")


async def test_a_delay_is_the_same_later(client: httpx.AsyncClient) -> None:
    body = {"routing_key": "orders", "payload": "x", "delay_seconds": 3600}
    first = await client.post(PATH, json=body, headers={"idempotency-key": "k"})
    again = await client.post(PATH, json=body, headers={"idempotency-key": "k"})
    assert (again.status_code, again.content, again.headers["idempotent-replayed"]) == (202, first.content, "true")
    body["delay_seconds"] = 3601
    problem(await client.post(PATH, json=body, headers={"idempotency-key": "k"}), 422, "idempotency_key_reused")


@pytest.mark.parametrize("body", [b'{"payload":"x", "routing_key":"no"}', b'{"routing_key":"no","mandatory":false}'])
async def test_a_key_of_an_earlier_release(
    client: httpx.AsyncClient, upstream: FakeUpstream, gateway: Gateway, body: bytes
) -> None:
    """It holds a digest of the octets."""
    digest = sha256(body + PATH.encode() + b"\n\ncontent-type:application/json\n").digest()
    assert await gateway.ledger.claim_key("anonymous", "k", digest, []) == New()
    await gateway.ledger.finish_key("anonymous", "k", 200, b'{"old":1}', headers={"content-type": "application/json"})
    headers = {"idempotency-key": "k", "content-type": "application/json"}
    answer = await client.post(PATH, content=body, headers=headers)
    assert (answer.content, answer.headers["idempotent-replayed"]) == (b'{"old":1}', "true")
    problem(await client.post(PATH, content=body + b" ", headers=headers), 422, "idempotency_key_reused")
    assert not upstream.published


async def test_a_problem_is_replayed_too(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    headers = {"idempotency-key": "k"}
    body = {"routing_key": "x", "mandatory": True}
    first = problem(await client.post(PATH, json=body, headers=headers), 422, "unroutable")
    assert problem(await client.post(PATH, json=body, headers=headers), 422, "unroutable") == first
    assert len(upstream.published) == 1


async def test_fifty_in_parallel(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    headers = {"idempotency-key": "k"}
    responses = await asyncio.gather(
        *(client.post(PATH, json={"routing_key": "orders"}, headers=headers) for _ in range(50))
    )
    assert {response.status_code for response in responses} <= {200, 409}
    assert len({response.content for response in responses if response.status_code == 200}) == 1
    assert len(upstream.published) == 1
    assert next(r for r in responses if r.status_code == 409).headers["retry-after"] == "1"


async def test_batches_under_a_key(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    body = {"messages": [{"routing_key": "orders"}, {"headers": {"x-gateway": 1}}]}
    headers = {"idempotency-key": "k"}
    first = await client.post(PATH, json=body, headers=headers)
    again = await client.post(PATH, json=body, headers=headers)
    assert (first.status_code, again.content, len(upstream.published)) == (207, first.content, 1)
    assert [item["status"] for item in first.json()["results"]] == [200, 422]


async def test_an_unknown_outcome_is_not_final(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    headers = {"idempotency-key": "k"}
    upstream.failure = OutcomeUnknown("the channel died")
    first = problem(await client.post(PATH, json={"routing_key": "orders"}, headers=headers), 504, "outcome_unknown")
    upstream.failure = None
    again = await client.post(PATH, json={"routing_key": "orders"}, headers=headers)
    assert again.json() == {
        "id": first["id"], "status": "confirmed", "routed": True, "durable": True, "resent": True,
    }  # fmt: skip


async def test_a_late_confirm(client: httpx.AsyncClient, upstream: FakeUpstream, gateway: Gateway) -> None:
    gateway.confirm_timeout = 1.0  # in which the key is claimed, too
    upstream.held = []
    body = {"routing_key": "orders"}
    problem(await client.post(PATH, json=body, headers={"idempotency-key": "k"}), 504, "outcome_unknown")


async def test_503_frees_the_key(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    upstream.state = UpstreamState.DOWN
    body = {"routing_key": "orders"}
    problem(await client.post(PATH, json=body, headers={"idempotency-key": "k"}), 503, "broker_unavailable")
    upstream.state = UpstreamState.UP
    body["payload"] = "x"
    assert (await client.post(PATH, json=body, headers={"idempotency-key": "k"})).status_code == 200


@pytest.mark.parametrize("key", ["", '""', "x" * 256, "é", "a\tb"])
async def test_bad_keys(client: httpx.AsyncClient, key: str) -> None:
    headers = {"idempotency-key": key.encode()}
    response = await client.post(PATH, json={"routing_key": "orders"}, headers=headers)  # type: ignore[arg-type]
    problem(response, 422, "invalid_parameter")


async def test_a_key_for_a_broker_that_is_missing(client: httpx.AsyncClient) -> None:
    path = "/v1/brokers/missing/exchanges/amq.default:publish"
    headers = {"idempotency-key": "k"}
    problem(await client.post(path, json={"routing_key": "k"}, headers=headers), 404, "broker_not_found")


# ------------------------------------------------------------------------------------ headers as pulls show them


@pytest.mark.parametrize(
    "headers",
    [
        {"type": "order", "value": 3},
        {"type": "table", "value": {"a": 1}},
        {"type": "table", "value": [1]},
        {"caf\udce9": Typed("int8", 3), "b": {"type": "x", "value": None}},
        {"a": {"caf\udce9": "x"}},
    ],
)
async def test_headers_are_published_as_they_are_shown(
    client: httpx.AsyncClient, upstream: FakeUpstream, headers: dict[str, Any]
) -> None:
    shown = table_to_json(headers)
    assert (await client.post(PATH, json={"routing_key": "orders", "headers": shown})).status_code == 200
    assert list((sent(upstream).headers or {}).items()) == list(headers.items())
    raw = {"content-type": "text/plain", "amqp-routing-key": "orders", "amqp-headers": json.dumps(shown)}
    assert (await client.post(PATH, content=b"", headers=raw)).status_code == 200
    assert sent(upstream).headers == headers


async def test_plain_headers_named_type_and_value(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    for plain in ({"type": "order", "value": 3}, {"type": "table", "value": "x"}, {"type": "int8", "value": 3}):
        assert (await client.post(PATH, json={"routing_key": "orders", "headers": plain})).status_code == 200
        assert sent(upstream).headers == plain


@pytest.mark.parametrize(
    "pairs", [{"x-gateway": 1}, [["x-gateway", 1]], [[{"type": "binary", "value": "eC1nYXRld2F5"}, 1]]]
)
async def test_the_reserved_header_in_a_wrapped_table(
    client: httpx.AsyncClient, upstream: FakeUpstream, pairs: Any
) -> None:
    response = await client.post(PATH, json={"headers": {"type": "table", "value": pairs}})
    problem(response, 422, "invalid_header")
    assert not upstream.published


async def test_what_is_wrong_in_a_wrapped_table(client: httpx.AsyncClient) -> None:
    found = await client.post(PATH, json={"headers": {"type": "table", "value": [["a", 1 << 64]]}})
    assert problem(found, 422, "invalid_value")["errors"][0]["pointer"] == "/headers/value/a"


@pytest.mark.parametrize(
    ("headers", "query", "place"),
    [
        ({"amqp-expiration": "soon"}, "", {"header": "Amqp-Expiration"}),
        ({"amqp-headers": '{"a": {"type": "int8", "value": 200}}'}, "", {"header": "Amqp-Headers"}),
        ({"amqp-priority": "256"}, "", {"header": "Amqp-Priority"}),
        ({}, "?not_before=noon", {"parameter": "not_before"}),
    ],
)
async def test_what_is_wrong_beside_a_raw_body_has_its_place(
    client: httpx.AsyncClient, headers: dict[str, str], query: str, place: dict[str, str]
) -> None:
    response = await client.post(f"{PATH}{query}", content=b"x", headers={"content-type": "text/plain", **headers})
    assert response.status_code == 422, response.text
    (error,) = response.json()["errors"]
    assert {name: error[name] for name in ("pointer", "parameter", "header") if name in error} == place
