"""Limits of a request that are not those of a slow caller: head, headers, forms, JSON."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.api.app import HEADERS_MOST, ROUTES
from gateway.api.call import DEPTH_MAX, _nesting
from tests.api.conftest import problem

QUEUE = "/v1/brokers/fake/queues/orders"
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain")


async def test_octets_and_number_of_headers(client: httpx.AsyncClient) -> None:
    problem(await client.get("/v1/brokers", headers={"x": "y" * 17_000}), 431, "headers_too_large")
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
        assert answer.status_code in (404, 415), answer.text
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
    assert _nesting(text) == depth


@pytest.mark.parametrize("constant", [b"NaN", b"Infinity", b"-Infinity"])
async def test_constants_that_are_no_json(client: httpx.AsyncClient, constant: bytes) -> None:
    problem(await client.put(QUEUE, content=b'{"arguments":{"a":' + constant + b"}}"), 400, "malformed_json")


@pytest.mark.parametrize("digits", [30, 4_300, 4_301, 90_000])
async def test_numbers_without_end(client: httpx.AsyncClient, digits: int) -> None:
    for number in (b"9" * digits, b"-" + b"9" * digits, b"0." + b"9" * digits, b"1e" + b"9" * digits):
        answer = await client.put(QUEUE, content=b'{"arguments":{"a":' + number + b"}}")
        assert answer.status_code in (400, 409, 422), answer.text
