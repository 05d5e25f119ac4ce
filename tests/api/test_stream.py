"""NDJSON in, NDJSON out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from gateway.api.messages import stream
from gateway.errors import LedgerUnavailable
from gateway.ledger import Ledger
from tests.api.conftest import problem
from tests.core.fakes import FakeUpstream

PATH = "/v1/brokers/fake/exchanges/amq.default:publish"
NDJSON = {"content-type": "application/x-ndjson"}


def line(**message: Any) -> bytes:
    return msgspec.json.encode({"routing_key": "orders", **message}) + b"\n"


async def post(client: httpx.AsyncClient, content: Any) -> list[Any]:
    response = await client.post(PATH, content=content, headers=NDJSON)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/x-ndjson")
    return [msgspec.json.decode(text) for text in response.content.splitlines()]


async def test_a_result_for_each_line_in_order(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    results = await post(client, b"".join(line(payload=str(n)) for n in range(2500)))
    assert [result["status"] for result in results] == [200] * 2500
    assert [sent.body for _, _, sent in upstream.published] == [str(n).encode() for n in range(2500)]


async def test_a_line_for_later_has_no_other_overtake_those_behind_it(
    client: httpx.AsyncClient, upstream: FakeUpstream
) -> None:
    """The ledger is asked for the first group only."""
    first = line(payload="later", delay_seconds=3600)
    results = await post(client, first + b"".join(line(payload=str(n)) for n in range(stream.GROUP_MAX + 10)))
    assert [result["status"] for result in results] == [202] + [200] * (stream.GROUP_MAX + 10)
    assert [sent.body for _, _, sent in upstream.published] == [str(n).encode() for n in range(stream.GROUP_MAX + 10)]


async def test_lines_that_come_in_pieces(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    whole = line(payload="1") + b"\n\r\n" + line(payload="2") + line(payload="3").rstrip()

    async def one_by_one() -> AsyncIterator[bytes]:
        for index in range(len(whole)):
            yield whole[index : index + 1]

    assert [result["status"] for result in await post(client, one_by_one())] == [200, 200, 200]
    assert [sent.body for _, _, sent in upstream.published] == [b"1", b"2", b"3"]


async def test_a_wrong_line_costs_only_itself(client: httpx.AsyncClient) -> None:
    bad = b'{\n{"x": 1}\n' + line(payload="?", payload_encoding="base64") + line(headers={"x-gateway": 1})
    results = await post(client, line() + bad + line(routing_key="nowhere", mandatory=True) + line())
    codes = [result.get("problem", {}).get("code") for result in results]
    assert codes == [
        None, "malformed_json", "invalid_request", "invalid_value", "invalid_header", "unroutable", None,
    ]  # fmt: skip
    assert await post(client, b"{\n") == [results[1]]


async def test_an_empty_stream(client: httpx.AsyncClient) -> None:
    assert await post(client, b"") == []


async def test_a_line_over_the_limit_ends_the_stream(client: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield line()
        for _ in range(200):
            yield b"x" * 1000

    results = await post(client, chunks())
    assert [result["status"] for result in results] == [200, 413]


async def test_a_ledger_that_is_away_is_told_for_each(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def record(self: Ledger, entries: object) -> list[int]:
        raise LedgerUnavailable("full")

    monkeypatch.setattr(Ledger, "record", record)
    results = await post(client, line() + b"{\n" + line())
    assert [result["problem"]["code"] for result in results] == [
        "not_recorded", "malformed_json", "not_recorded",
    ]  # fmt: skip


async def test_what_a_stream_cannot_have(client: httpx.AsyncClient) -> None:
    response = await client.post(PATH, content=line(), headers={**NDJSON, "idempotency-key": "k"})
    problem(response, 422, "invalid_parameter")
    path = "/v1/brokers/missing/exchanges/amq.default:publish"
    problem(await client.post(path, content=line(), headers=NDJSON), 404, "broker_not_found")


async def test_a_stream_that_is_given_up_ends_with_its_queue_full(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error in the first group, while the reader waits for room for more."""

    async def fails(*args: Any) -> Any:
        await asyncio.sleep(0.05)
        raise RuntimeError("unexpected")

    monkeypatch.setattr(stream, "_publish", fails)
    async with asyncio.timeout(30):
        with pytest.raises(RuntimeError, match="unexpected"):
            await post(client, b"".join(line() for _ in range(10 * stream.GROUP_MAX)))
