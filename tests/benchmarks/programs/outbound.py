"""Posts bodies to an endpoint, each answered before the next on its connection: our transport, our transport under an
httpx client, or httpx as it comes. All on uvloop, all with as many kept connections as callers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import uvloop

from gateway.app import prepare_interpreter
from gateway.outbound import DEFAULT_OUTBOUND_LIMITS, GuardedTransport, OutboundRules, guarded_client
from tests.benchmarks.programs.clock import Stopwatch, percentile

HEADERS = {
    "content-type": "application/json",
    "webhook-id": "msg_2KWPBgLlAfxdpx2AI54pPJ85f4W",
    "webhook-timestamp": "1674087231",
    "webhook-signature": "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=",
}
Post = Callable[[], Awaitable[int]]
"""One request; its status."""


def guarded(callers: int) -> GuardedTransport:
    """Ours, which may call loopback."""
    return GuardedTransport(
        OutboundRules(allow=["127.0.0.0/8"]), replace(DEFAULT_OUTBOUND_LIMITS, idle_per_site=callers)
    )


def ours(url: str, body: bytes, callers: int) -> Post:
    """The transport itself."""
    transport = guarded(callers)
    headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def post() -> int:
        return (await transport.send("POST", url, headers, body)).status

    return post


def under_httpx(url: str, body: bytes, callers: int) -> Post:
    """An httpx client that uses our transport."""
    client = guarded_client(guarded(callers))

    async def post() -> int:
        return (await client.post(url, headers=HEADERS, content=body)).status_code

    return post


def bare_httpx(url: str, body: bytes, callers: int) -> Post:
    """httpx as it comes."""
    client = httpx.AsyncClient(limits=httpx.Limits(max_connections=callers, max_keepalive_connections=callers))

    async def post() -> int:
        return (await client.post(url, headers=HEADERS, content=body)).status_code

    return post


CLIENTS = {"ours": ours, "under-httpx": under_httpx, "httpx": bare_httpx}


async def _run(job: dict[str, Any]) -> dict[str, Any]:
    body = job["body"].encode() if "body" in job else b"x" * job["size"]
    post = CLIENTS[job["client"]](job["url"], body, job["callers"])
    times: list[float] = []

    async def caller(until: float) -> None:
        while (began := time.perf_counter()) < until:
            if (status := await post()) != 200:
                raise ValueError(f"status {status}")
            times.append(time.perf_counter() - began)

    async def callers(seconds: float) -> None:
        until = time.perf_counter() + seconds
        await asyncio.gather(*(caller(until) for _ in range(job["callers"])))

    await callers(job["seconds"] / 10)  # connections are open, code is warm
    times.clear()
    with Stopwatch() as watch:
        await callers(job["seconds"])
    times.sort()
    return {**watch.result(len(times)), "p50": percentile(times, 0.5), "p99": percentile(times, 0.99)}


def main(job: dict[str, Any]) -> dict[str, Any]:
    """The program."""
    prepare_interpreter()
    return uvloop.run(_run(job))
