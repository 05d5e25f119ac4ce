"""Limits of a request that are not those of a slow caller: head, headers, forms, JSON."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

import httpx
import pytest

from gateway.api.app import HEADERS_MOST, ROUTES, Api
from gateway.api.http.call import DEPTH_MAX, PLAIN_MAX
from gateway.api.http.json_bounds import MESSAGES_LEAST, PER_MESSAGE, PLAIN, check_size, is_deeper
from gateway.api.http.problems import ApiProblem
from gateway.config import HttpSettings
from gateway.core import Gateway
from gateway.core.leasing.ack_ids import LEDGER_LENGTH
from tests.api.conftest import problem
from tests.pace import pace

QUEUE = "/v1/brokers/fake/queues/orders"
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain")


async def test_octets_and_number_of_headers(client: httpx.AsyncClient) -> None:
    problem(await client.get("/v1/brokers", headers={"x": "y" * 17_000}), 431, "headers_too_large")
    problem(await client.get("/v1/brokers/" + "x" * 9_000), 414, "target_too_long")
    problem(await client.get("/v1/messages", params={"cursor": "x" * 9_000}), 414, "target_too_long")
    assert (await client.get("/v1/brokers", headers={"x": "y" * 15_000})).status_code == 200
    many = [(f"x-{number}", "y") for number in range(HEADERS_MOST + 1)]
    found = problem(await client.get("/v1/brokers", headers=many), 431, "headers_too_large")
    assert "the limit is 100" in found["detail"]
    assert (await client.get("/v1/brokers", headers=many[:80])).status_code == 200


@pytest.mark.parametrize("route", [route for route in ROUTES if route.body], ids=lambda route: route.operation)
@pytest.mark.parametrize("form", FORMS)
async def test_no_operation_takes_a_form(client: httpx.AsyncClient, route: Any, form: str) -> None:
    """Only ``:publish`` takes octets of any type, as a body; and a form not even there."""
    names = {"broker": "fake", "exchange": "ex", "queue": "orders"}
    path = route.path.format_map({name: names.get(name, "x") for name in _names(route.path)})
    answer = await client.request(route.method, path, content=b"a=b", headers={"content-type": form})
    if route.operation != "publish" or form == FORMS[0]:
        assert answer.status_code in (404, 415) or answer.json()["code"] == "unsupported", answer.text
    if answer.status_code == 415:
        problem(answer, 415, "unsupported_media_type")


def _names(path: str) -> list[str]:
    return [part.partition("}")[0] for part in path.split("{")[1:]]


def nested(depth: int) -> bytes:
    return b'{"arguments":{"a":' + b"[" * depth + b"]" * depth + b"}}"


@pytest.mark.parametrize("depth", [DEPTH_MAX - 1, 500, 900, 5_000, 40_000])
async def test_deep_json_is_malformed(client: httpx.AsyncClient, depth: int) -> None:
    problem(await client.put(QUEUE, content=nested(depth)), 400, "malformed_json")


async def test_json_that_is_only_long_is_not_deep(client: httpx.AsyncClient) -> None:
    wide = json.dumps({"arguments": {"a": [[] for _ in range(200)], "b": "[" * 200 + '\\"{'}})
    assert "malformed" not in (await client.put(QUEUE, content=wide)).text


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        (b"[" * 65 + b"]" * 65, 65),
        (b"[" + b"[]," * 70 + b"[[]]]", 3),
        (b'["' + b"[" * 70 + b'"]', 1),
        (b'["\\"' + b"{" * 70 + b'\\\\"' + b",{}" * 5 + b"]", 2),
        (b"{}", 1),
    ],
)
def test_nesting(text: bytes, depth: int) -> None:
    text = text[:-1] + b"," + b"[]," * DEPTH_MAX + b"0]"  # so many brackets that they must be looked at
    assert not is_deeper(text, max(depth, 2))
    assert depth <= 2 or is_deeper(text, depth - 1)


@pytest.mark.parametrize("constant", [b"NaN", b"Infinity", b"-Infinity"])
async def test_constants_that_are_no_json(client: httpx.AsyncClient, constant: bytes) -> None:
    problem(await client.put(QUEUE, content=b'{"arguments":{"a":' + constant + b"}}"), 400, "malformed_json")


@pytest.mark.parametrize("digits", [30, 4_300, 4_301, 90_000])
async def test_numbers_without_end(client: httpx.AsyncClient, digits: int) -> None:
    for number in (b"9" * digits, b"-" + b"9" * digits, b"0." + b"9" * digits, b"1e" + b"9" * digits):
        answer = await client.put(QUEUE, content=b'{"arguments":{"a":' + number + b"}}")
        assert answer.status_code in (400, 409, 422), answer.text


MOST = PER_MESSAGE * MESSAGES_LEAST
PUBLISH = "/v1/brokers/fake/exchanges/amq.default:publish"
EXPLAIN = "/v1/translations:explain"
JSON = {"content-type": "application/json"}


@pytest.fixture
async def roomy(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """The API with its own limits."""
    transport = httpx.ASGITransport(Api(gateway, HttpSettings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


FLOODS = {
    "objects": (PUBLISH, b'{"messages":[' + b"{}," * 1_000_000 + b"{}]}", JSON),
    "numbers": (PUBLISH, b'{"messages":[' + b"0," * 1_500_000 + b"0]}", JSON),
    "headers": (PUBLISH, b'{"headers":{"a":[' + b"[]," * 1_000_000 + b"0]}}", JSON),
    "texts": (PUBLISH, b'{"headers":{"a":[' + b'",",' * 1_000_000 + b"0]}}", JSON),
    "explained": (EXPLAIN, b'{"to":"0-10","message":{"headers":{"a":[' + b"[]," * 1_000_000 + b"0]}}}", JSON),
    "events": (PUBLISH, b"[" + b"0," * 1_500_000 + b"0]", {"content-type": "application/cloudevents-batch+json"}),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_more_values_than_messages_have_are_not_decoded(roomy: httpx.AsyncClient, name: str) -> None:
    path, body, headers = FLOODS[name]
    tracemalloc.start()
    began = time.process_time()
    try:
        found = problem(await roomy.post(path, content=body, headers=headers), 413, "body_too_large")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "http.batch_max" in found["detail"]
    assert most < 3 * len(body)
    assert time.process_time() - began < 5 * pace()


async def test_a_line_of_a_stream_has_that_limit(roomy: httpx.AsyncClient) -> None:
    lines = FLOODS["headers"][1] + b'\n{"routing_key":"orders"}\n'
    answer = await roomy.post(PUBLISH, content=lines, headers={"content-type": "application/x-ndjson"})
    first, second = (json.loads(line) for line in answer.text.splitlines())
    assert (first["status"], first["problem"]["code"], second["status"]) == (413, "body_too_large", 200)


@pytest.mark.parametrize(
    ("octets", "fits"),
    [
        (b"[" + b"0," * (MOST - 1) + b"0]", True),
        (b"[" + b"0," * MOST + b"0]", False),
        (b"[" + b'"{",' * (MOST - 1) + b"0]", True),
        (b'["' + b",[{" * MOST + b'"]', True),
        (b'["' + b'\\",[{' * MOST + b'"]', True),
        (b'["' + b"\\\\" * MOST + b'",' + b"[]," * MOST + b"0]", False),
        (b'"' + b",[{" * MOST, True),  # malformed, which the decoder says
        (b'"' + b",[{" * MOST + b"\\", True),
        (b'""' * MOST + b'"' + b"," * MOST + b'"', True),
    ],
    ids=["most", "more", "texts", "text", "escaped", "outside", "open", "cut", "strings"],
)
def test_what_counts(octets: bytes, fits: bool) -> None:
    began = time.process_time()
    with nullcontext() if fits else pytest.raises(ApiProblem, match="arrays, objects and commas"):
        check_size(octets, 1)
    assert time.process_time() - began < 2 * pace()


def test_larger_batches_hold_more() -> None:
    octets = b"[" + b"0," * MOST + b"0]"
    check_size(octets, MESSAGES_LEAST + 1)


async def test_a_whole_batch_with_headers(roomy: httpx.AsyncClient) -> None:
    properties = {"content_type": "application/json", "message_id": "1", "type": "t", "priority": 1}
    headers = {f"h{number}": {"type": "int8", "value": number} for number in range(10)}
    message = {"routing_key": "orders", "payload": '{"a":[1,2,3]}', "properties": properties, "headers": headers}
    answer = await roomy.post(PUBLISH, json={"messages": [message] * 10_000})
    assert answer.status_code == 207
    assert {item["status"] for item in answer.json()["results"]} == {200}


async def test_a_body_that_is_no_message_is_short(roomy: httpx.AsyncClient) -> None:
    path = "/v1/subscriptions/none:acknowledge"
    ids = ["x" * LEDGER_LENGTH] * 10_000  # as many and as long as there are
    assert (await roomy.post(path, json={"ack_ids": ids})).status_code == 404
    found = problem(await roomy.put(QUEUE, content=b" " * (PLAIN_MAX + 1), headers=JSON), 413, "body_too_large")
    assert found["detail"] == f"the body is larger than {PLAIN_MAX} octets (no message is taken here)"
    assert (await roomy.put(QUEUE, content=b"{" + b" " * (PLAIN_MAX - 2) + b"}", headers=JSON)).status_code < 300
    for count, status in ((20_000, 422), (PLAIN // 2, 413)):
        wide = b'{"arguments":{"a":[' + b"[]," * count + b"0]}}"
        assert (await roomy.put(QUEUE, content=wide, headers=JSON)).status_code == status
    large = {"to": "0-9-1", "message": {"payload": "A" * 4 * PLAIN_MAX, "payload_encoding": "base64"}}
    assert (await roomy.post(EXPLAIN, json=large)).status_code == 200
