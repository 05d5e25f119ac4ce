"""The HTTP API's reader of JSON: documents that end anywhere, nest without end, and numbers that are none.

CVE-2026-106121: the JSON reader of RabbitMQ's Java client never came to an end on a document that was cut off.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.api.app import Api
from gateway.config import HttpSettings
from gateway.core import Gateway
from tests.core.conftest import gateway, ledger, upstream
from tests.pace import pace

__all__ = ["gateway", "ledger", "upstream"]

PUBLISH = "/v1/brokers/fake/exchanges/amq.default:publish"
DOCUMENTS: dict[str, tuple[str, str, Any]] = {
    "publish": (
        "POST",
        PUBLISH,
        {
            "routing_key": "orders",
            "payload": "héllo",
            "payload_encoding": "string",
            "mandatory": True,
            "properties": {"content_type": "text/plain", "delivery_mode": 2, "priority": 4, "timestamp": 17},
            "headers": {"n": -1, "f": 1.5e3, "t": True, "x": None, "list": [1, {"deep": ["a"]}]},
        },
    ),
    "batch": ("POST", PUBLISH, {"messages": [{"routing_key": "orders", "payload": "a"}, {"routing_key": "orders"}]}),
    "subscription": ("PUT", "/v1/subscriptions/s", {"broker": "fake", "queue": "orders", "ack_deadline_seconds": 30}),
    "pull": ("POST", "/v1/subscriptions/orders:pull", {"max_messages": 1, "wait": 0}),
    "acknowledge": ("POST", "/v1/subscriptions/orders:acknowledge", {"ack_ids": ["one", "two"]}),
    "modify": ("POST", "/v1/subscriptions/orders:modifyAckDeadline", {"ack_ids": ["one"], "ack_deadline_seconds": 10}),
    "reject": ("POST", "/v1/subscriptions/orders:reject", {"ack_ids": ["one"], "reason": "nonsense"}),
    "queue": ("PUT", "/v1/brokers/fake/queues/new", {"durable": True, "arguments": {"x-max-length": 5}}),
    "exchange": ("PUT", "/v1/brokers/fake/exchanges/new", {"type": "topic", "durable": True}),
}
"""A document of each kind that is sent to the API."""
SECONDS = 1.0
JSON = {"content-type": "application/json"}


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(Api(gateway, HttpSettings(body_max=300_000)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        await client.put("/v1/subscriptions/orders", json={"broker": "fake", "queue": "orders"})
        yield client


async def sent(client: httpx.AsyncClient, name: str, content: bytes) -> httpx.Response:
    """Send octets in place of a document: it takes little time, and is never our fault."""
    verb, path, _ = DOCUMENTS[name]
    began = time.process_time()
    response = await client.request(verb, path, content=content, headers=JSON)
    took = time.process_time() - began
    assert took < SECONDS or took < SECONDS * pace()  # the pace costs more than most documents
    assert response.status_code < 500, response.text
    return response


@pytest.mark.parametrize("name", DOCUMENTS)
async def test_cve_2026_106121_documents_that_are_cut_off(client: httpx.AsyncClient, name: str) -> None:
    document = json.dumps(DOCUMENTS[name][2], ensure_ascii=False).encode()
    whole = await sent(client, name, document)
    assert whole.status_code < 300, whole.text
    for end in range(1, len(document)):
        response = await sent(client, name, document[:end])
        # A value that is wrong is found before the end is missed: 30 cut to 3 is too small.
        assert response.status_code in (400, 422), (document[:end], response.text)
        assert response.json()["code"] in ("malformed_json", "invalid_request")


@pytest.mark.parametrize("name", ["publish", "subscription", "queue"])
@pytest.mark.parametrize("depth", [1_000, 60_000])
@pytest.mark.parametrize(
    ("opening", "closing"), [("[", "]"), ('{"a":', "}"), ("[", "")], ids=["lists", "objects", "cut"]
)
async def test_documents_that_nest_without_end(
    client: httpx.AsyncClient, name: str, depth: int, opening: str, closing: str
) -> None:
    depth = min(depth, 300_000 // (len(opening) + len(closing)) - 10)
    response = await sent(client, name, f"{opening * depth}1{closing * depth}".encode())
    assert response.status_code in (400, 413, 422)


@pytest.mark.parametrize("depth", [20, 64, 65, 500, 20_000])
async def test_headers_that_nest(client: httpx.AsyncClient, depth: int) -> None:
    headers = '{"a":' * depth + "1" + "}" * depth
    response = await sent(client, "publish", f'{{"routing_key": "orders", "headers": {headers}}}'.encode())
    assert response.status_code in ((200,) if depth <= 20 else (200, 400, 422)), response.text
    if depth >= 500:
        assert response.status_code in (400, 422)


NUMBERS = {
    "NaN": 400,
    "Infinity": 400,
    "-Infinity": 400,
    "nan": 400,
    "1e999": None,
    "-1e999": None,
    "1" * 4_300: None,
    "1" * 4_301: None,
    "1" * 100_000: None,
    "-" + "9" * 4_301: None,
    "0." + "1" * 100_000: None,
    "1e" + "9" * 4_301: None,
    "0x10": 400,
    "01": 400,
    "1.": 400,
    "--1": 400,
    "18446744073709551616": None,
    "-9223372036854775809": None,
}


@pytest.mark.parametrize("number", NUMBERS, ids=lambda text: f"{text[:22]} ({len(text)})")
async def test_numbers(client: httpx.AsyncClient, number: str) -> None:
    """Those that JSON has not are refused; one that a header cannot hold is refused or carried whole, never changed
    into another."""
    for place in (
        f'{{"routing_key": "orders", "headers": {{"n": {number}}}}}',
        f'{{"routing_key": "orders", "properties": {{"priority": {number}}}}}',
        f'{{"routing_key": "orders", "properties": {{"timestamp": {number}}}}}',
    ):
        response = await sent(client, "publish", place.encode())
        if NUMBERS[number] is not None:
            assert response.status_code == NUMBERS[number], response.text
        assert response.status_code in (200, 400, 422)
    response = await sent(client, "pull", f'{{"max_messages": {number}, "wait": {number}}}'.encode())
    assert response.status_code in (400, 422), response.text
    assert sys.get_int_max_str_digits() == 4_300


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe", b'{"routing_key": "\xff"}', b'{"routing_key": "\\ud800"}', b'{"routing_key": "\\u0000"}',
        b'\xef\xbb\xbf{"routing_key": "orders"}', b'{"routing_key": "a", "routing_key": "orders"}', b"", b" " * 100_000,
        b"[" * 250_000, b'"' + b"\\" * 99_999, b'{"a"' * 50_000, b"null", b"true", b"5", b'"text"', b"[]", b"\x00",
        b'{"headers": {' + b",".join(b'"%d": 1' % n for n in range(20_000)) + b"}}",
    ],
    ids=lambda content: f"{content[:24]!r} ({len(content)})",
)  # fmt: skip
@pytest.mark.parametrize("name", ["publish", "pull", "subscription"])
async def test_octets_that_are_hardly_json(client: httpx.AsyncClient, name: str, content: bytes) -> None:
    await sent(client, name, content)
