"""CloudEvents 1.0: binary, structured, batch."""

from __future__ import annotations

import httpx
import msgspec
import pytest

from gateway.amqp.values import Typed
from tests.api.conftest import problem
from tests.api.test_publish import PATH, sent
from tests.core.fakes import FakeUpstream

BINARY = {"ce-id": "1", "ce-source": "/shop", "ce-specversion": "1.0", "ce-type": "order.made"}
EVENT = {"id": "1", "source": "/shop", "specversion": "1.0", "type": "order.made", "data": {"n": 1}}
STRUCTURED = {"content-type": "application/cloudevents+json; charset=utf-8", "amqp-routing-key": "orders"}
BATCH = {"content-type": "application/cloudevents-batch+json", "amqp-routing-key": "orders"}


async def test_binary(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    headers = {**BINARY, "ce-subject": "caf%C3%A9", "content-type": "application/json"}
    response = await client.post(f"{PATH}?routing_key=orders", content=b'{"n": 1}', headers=headers)
    assert response.json()["routed"] is True
    assert upstream.published[0][2].body == b'{"n": 1}'
    properties = sent(upstream)
    assert properties.content_type == "application/json"
    assert properties.headers == {
        "cloudEvents_id": "1",
        "cloudEvents_source": "/shop",
        "cloudEvents_specversion": "1.0",
        "cloudEvents_type": "order.made",
        "cloudEvents_subject": "café",
    }


async def test_structured(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    octets = b' {"type": "x", "id": "1",  "source": "s", "specversion": "1.0"} '
    assert (await client.post(PATH, content=octets, headers=STRUCTURED)).json()["routed"] is True
    assert upstream.published[0][2].body == octets
    assert sent(upstream).content_type == "application/cloudevents+json"


async def test_batch(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    events = [EVENT, {**EVENT, "id": ""}, 5, {**EVENT, "id": "2"}]
    response = await client.post(PATH, content=msgspec.json.encode(events), headers=BATCH)
    assert response.status_code == 207
    assert [item["status"] for item in response.json()["results"]] == [200, 422, 422, 200]
    assert [msgspec.json.decode(message.body)["id"] for _, _, message in upstream.published] == ["1", "2"]


@pytest.mark.parametrize(
    ("headers", "content", "status", "code"),
    [
        ({"ce-specversion": "1.0"}, b"", 422, "invalid_parameter"),
        ({**BINARY, "ce-id": ""}, b"", 422, "invalid_parameter"),
        ({**BINARY, "ce-bad-name": "x"}, b"", 422, "invalid_parameter"),
        ({**BINARY, "ce-subject": "%FF"}, b"", 422, "invalid_parameter"),
        (STRUCTURED, b"{", 400, "malformed_json"),
        (STRUCTURED, b"[,]", 400, "malformed_json"),
        (STRUCTURED, b"[" * 100_000, 400, "malformed_json"),
        (STRUCTURED, b'{"id": 1, "n": -1e400}', 400, "malformed_json"),
        (STRUCTURED, b"{}", 422, "invalid_request"),
        (BATCH, b"{}", 422, "invalid_request"),
        (BATCH, b"[", 400, "malformed_json"),
        (BATCH, b"[]", 422, "invalid_request"),
        (BATCH, b"[" + b"{}," * 100 + b"{}]", 413, "body_too_large"),
    ],
)
async def test_what_is_no_event(
    client: httpx.AsyncClient,
    upstream: FakeUpstream,
    headers: dict[str, str],
    content: bytes,
    status: int,
    code: str,
) -> None:
    problem(await client.post(PATH, content=content, headers=headers), status, code)
    assert not upstream.published


GIVEN = {
    "amqp-message-id": "m",
    "amqp-priority": "4",
    "amqp-timestamp": "5",
    "amqp-headers": '{"n": {"type": "int8", "value": 3}}',
}


async def test_amqp_headers_beside_a_binary_event(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    headers = {
        **BINARY,
        **GIVEN,
        "content-type": "text/plain",
        "content-encoding": "gzip",
        "amqp-routing-key": "orders",
    }
    assert (await client.post(PATH, content=b"\x1f\x8b", headers=headers)).status_code == 200
    properties = sent(upstream)
    assert (properties.content_type, properties.content_encoding) == ("text/plain", "gzip")
    assert (properties.message_id, properties.priority, properties.timestamp) == ("m", 4, 5)
    given = list((properties.headers or {}).items())
    assert given[-2:] == [
        ("cloudEvents_type", "order.made"),
        ("n", Typed("int8", 3)),
    ]


@pytest.mark.parametrize(("kind", "content"), [(STRUCTURED, EVENT), (BATCH, [EVENT, EVENT])])
async def test_amqp_headers_beside_other_events(
    client: httpx.AsyncClient, upstream: FakeUpstream, kind: dict[str, str], content: object
) -> None:
    assert (await client.post(PATH, json=content, headers={**kind, **GIVEN})).is_success
    for _, _, message in upstream.published:
        properties = message.properties
        assert (properties.message_id, properties.priority, properties.timestamp) == ("m", 4, 5)
        assert (properties.headers or {})["n"] == Typed("int8", 3)
        assert properties.content_type == "application/cloudevents+json"


async def test_an_attribute_that_is_given_twice(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    headers = {**BINARY, "amqp-headers": '{"cloudEvents_id": "2"}'}
    problem(await client.post(PATH, content=b"x", headers=headers), 422, "invalid_parameter")
    assert not upstream.published
