"""Members that are there twice in one object, in every JSON that the API reads."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.api.http.members import repeated
from tests.api.conftest import problem
from tests.core.fakes import FakeUpstream

PATH = "/v1/brokers/fake/exchanges/amq.default:publish"
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("octets", "path"),
    [
        (b'{"a": 1, "b": 2}', None),
        (b"{}", None),
        (b"[1, 2.5, true, null]", None),
        (b'{"a": 1, "a": 1}', ("a",)),
        (b' \n\t{"a": 1, "a": 2}', ("a",)),
        (b'{"a": 1, "\\u0061": 2}', ("a",)),
        (b'{"x": [{}, {"y": {"a": 1, "b": 1, "a": 1}}]}', ("x", 1, "y", "a")),
        (b'{"x": {"a": 1, "a": 1}, "y": 1, "y": 2}', ("y",)),
        (b'{"x": "a\nb", "x": 1}', ("x",)),
        (b'{"a": {"a": {"a": 1}}}', None),
        (b'[{"a": 1}, {"a": 1}]', None),
        (b'{"": 1, "": 2}', ("",)),
        (b'{"\xff": 1, "\xff": 2}', ("\udcff",)),
        (b'{"n": ' + b"9" * 10_000 + b', "n": 1}', ("n",)),
        (b'{"a": 1, "a": 2', ("a",)),
        (b'{"a": 1', None),
        (b"", None),
        (b"[" * 100_000, None),
    ],
)
def test_where_a_member_is_repeated(octets: bytes, path: Any) -> None:
    found = repeated(octets)
    if octets.endswith(b"2") and path:
        assert found is None, "what is no JSON is told by the decoder"
    else:
        assert found == path


def test_how_deep_it_is_looked() -> None:
    octets = b'{"data": {"a": 1, "a": 2}}'
    assert repeated(octets, depth=1) is None
    assert repeated(octets, depth=2) == ("data", "a")
    assert repeated(octets, passes_over=lambda path: path == ("data",)) is None


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ('{"routing_key": "orders", "payload": "x", "payload": "y"}', "/payload"),
        ('{"routing_key": "orders", "routing_key": "other", "payload": "x"}', "/routing_key"),
        ('{"routing_key": "orders", "payload": "x", "headers": {"a": 1, "a": 2}}', "/headers/a"),
        ('{"routing_key": "orders", "headers": {"a": {"b": [{"c": 1, "c": 1}]}}}', "/headers/a/b/0/c"),
        ('{"routing_key": "orders", "properties": {"type": "a", "type": "b"}}', "/properties/type"),
        ('{"routing_key": "orders", "headers": {"a/b": 1, "a/b": 2}}', "/headers/a~1b"),
        ('{"messages": [], "messages": [{"routing_key": "orders", "payload": "x"}]}', "/messages"),
    ],
)
async def test_a_publish(client: httpx.AsyncClient, upstream: FakeUpstream, body: str, pointer: str) -> None:
    said = problem(await client.post(PATH, content=body, headers=JSON), 422, "invalid_request")
    assert said["errors"][0]["pointer"] == pointer
    assert pointer.rsplit("/", 1)[1].replace("~1", "/") in said["detail"]
    assert "twice" in said["detail"]
    assert not upstream.published


async def test_in_a_batch_it_costs_only_its_message(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    body = (
        '{"messages": [{"routing_key": "orders", "payload": "1"}, '
        '{"routing_key": "orders", "payload": "2", "headers": {"a": 1, "a": 2}}, '
        '{"routing_key": "orders", "payload": {"b": 1, "b": 2}}, {"routing_key": "orders", "payload": "4"}]}'
    )
    answer = await client.post(PATH, content=body, headers=JSON)
    results = answer.json()["results"]
    assert [each["status"] for each in results] == [200, 422, 422, 200]
    assert results[1]["problem"]["errors"][0]["pointer"] == "/headers/a"
    assert results[2]["problem"]["errors"][0]["pointer"] == "/payload"
    assert [message.body for _, _, message in upstream.published] == [b"1", b"4"]


async def test_in_a_stream_it_costs_only_its_line(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    lines = '{"routing_key": "orders", "payload": "1"}\n{"routing_key": "orders", "payload": "2", "payload": "3"}\n'
    answer = await client.post(PATH, content=lines, headers={"content-type": "application/x-ndjson"})
    first, second = answer.text.splitlines()
    assert '"status":200' in first
    assert "/payload" in second
    assert [message.body for _, _, message in upstream.published] == [b"1"]


@pytest.mark.parametrize(
    ("method", "path", "body", "kind"),
    [
        ("PUT", "/v1/subscriptions/s", '{"broker": "fake", "queue": "orders", "queue": "other"}', ""),
        ("PUT", "/v1/brokers/fake/queues/q", '{"durable": true, "arguments": {"a": 1, "a": 2}}', ""),
        ("POST", "/v1/keys", '{"client": "k", "scopes": ["history"], "scopes": ["admin"]}', ""),
        ("POST", "/v1/replays", '{"source": {}, "source": {}}', ""),
        ("POST", "/v1/subscriptions/s:pull", '{"max_messages": 1, "max_messages": 1000}', ""),
        ("PATCH", "/v1/subscriptions/s", '{"ack_deadline_seconds": 20, "ack_deadline_seconds": 30}',
         "application/merge-patch+json"),
    ],
)  # fmt: skip
async def test_other_bodies(client: httpx.AsyncClient, method: str, path: str, body: str, kind: str) -> None:
    await client.put("/v1/subscriptions/s", json={"broker": "fake", "queue": "orders"})
    headers = {"content-type": kind or "application/json"}
    answer = await client.request(method, path, content=body, headers=headers)
    assert "twice" in problem(answer, 422, "invalid_request")["detail"]


async def test_a_cloudevent(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    event = '{"specversion": "1.0", "id": "1", "source": "/s", "type": "a", %s}'
    kind = {"content-type": "application/cloudevents+json"}
    path = f"{PATH}?routing_key=orders"
    said = problem(await client.post(path, content=event % '"type": "b"', headers=kind), 422, "invalid_request")
    assert said["errors"][0]["pointer"] == "/type"
    answer = await client.post(path, content=event % '"data": {"x": 1, "x": 2}', headers=kind)
    assert answer.status_code == 200, "the data is the payload's affair"


async def test_headers_and_parameters_that_are_json(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    headers = {"amqp-routing-key": "orders", "amqp-headers": '{"a": 1, "a": 2}'}
    assert (
        "twice" in problem(await client.post(PATH, content=b"x", headers=headers), 422, "invalid_parameter")["detail"]
    )
    assert not upstream.published
    path = '/v1/brokers/fake/bindings?exchange=e&queue=orders&binding_key=k&arguments={"a":1,"a":2}'
    assert "twice" in problem(await client.delete(path), 422, "invalid_parameter")["detail"]


FULL: dict[str, Any] = {
    "routing_key": "orders",
    "payload": "eA==",
    "payload_encoding": "base64",
    "mandatory": True,
    "properties": {
        "content_type": "text/plain", "content_encoding": "gzip", "delivery_mode": 1, "priority": 3,
        "correlation_id": "c", "reply_to": "r", "expiration": "60000", "message_id": "m", "timestamp": 1, "type": "t",
        "user_id": "u", "app_id": "a", "cluster_id": "k",
    },
    "headers": {"a": 1, "b": "x", "c": None},
}  # fmt: skip
"""A message all of whose members say something: no colon is left over."""


@pytest.mark.parametrize("within", ["", "properties", "headers"])
async def test_no_member_hides_among_many(client: httpx.AsyncClient, upstream: FakeUpstream, within: str) -> None:
    assert (await client.post(PATH, json=FULL)).status_code == 200
    assert (await client.post(PATH, json={"messages": [FULL, FULL]})).json()["results"][1]["status"] == 200
    assert len(upstream.published) == 3
    names: dict[str, Any] = FULL[within] if within else FULL
    for name in names:
        whole, part = json.dumps(FULL), json.dumps({name: names[name]})[1:-1]
        twice = whole.replace(part, f"{part}, {part}", 1)
        assert twice != whole
        pointer = f"/{within}/{name}" if within else f"/{name}"
        said = problem(await client.post(PATH, content=twice, headers=JSON), 422, "invalid_request")
        assert said["errors"][0]["pointer"] == pointer
        batch = f'{{"messages": [{whole}, {twice}]}}'
        results = (await client.post(PATH, content=batch, headers=JSON)).json()["results"]
        assert [each["status"] for each in results] == [200, 422]
        lines = {"content-type": "application/x-ndjson"}
        assert pointer in (await client.post(PATH, content=f"{twice}\n", headers=lines)).text
