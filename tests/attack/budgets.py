"""One client takes all that it can of each budget: it is refused by name at its share, and another client goes on.

How long others wait beside such a client, against a control, is measured by ``python -m tests.budgets.measure``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.attack.client import Answer, Client
from tests.attack.judge import Record
from tests.attack.lab import BROKER, RECEIVERS, Target
from tests.attack.outbound import listening
from tests.servers.process import free_port

SETTINGS: Final[dict[str, Any]] = {
    "http.leases_max": 200,
    "http.concurrency": 200,
    "budgets.totals": {
        "streams": 40, "outbound_requests": 16, "scheduled": 80, "scheduled_bytes": 1 << 20, "idempotency_keys": 80,
        "subscriptions": 40, "endpoints": 40,
    },
}  # fmt: skip
"""Small totals, so that a client reaches its share of a quarter soon."""
PUBLISH: Final = f"/v1/brokers/{BROKER}/exchanges/amq.default:publish"
LATER: Final = 86_400
"""In how many seconds a scheduled message is due."""


@dataclass(frozen=True)
class Greed:
    """How a client takes one more of a budget, and how much of it is its share."""

    budget: str
    share: int
    take: Callable[[Target, str, int], Awaitable[Answer]]
    """By target, client and number."""
    waits: bool = False
    """Whether what is taken is a request that stays open; all are sent at once."""


async def _ask(target: Target, client: str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    caller = target.client(client)
    try:
        return await caller.ask(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
    finally:
        caller.close()


async def _stream(target: Target, client: str, number: int) -> Answer:
    return await _ask(target, client, "POST", f"/v1/subscriptions/{client}:pull", {"max_messages": 1, "wait": 1.5})


async def _lease(target: Target, client: str, number: int) -> Answer:
    return await _ask(target, client, "POST", f"/v1/subscriptions/{client}-full:pull", {"max_messages": 5, "wait": 0})


async def _schedule(target: Target, client: str, number: int) -> Answer:
    return await _ask(target, client, "POST", PUBLISH, {"routing_key": client, "payload": "x", "delay_seconds": LATER})


async def _schedule_bytes(target: Target, client: str, number: int) -> Answer:
    body = {"routing_key": client, "payload": "x" * 60_000, "delay_seconds": LATER}
    return await _ask(target, client, "POST", PUBLISH, body)


async def _key(target: Target, client: str, number: int) -> Answer:
    key = f"{client}-{number}-{time.monotonic_ns()}"
    return await _ask(target, client, "POST", PUBLISH, {"routing_key": client, "payload": "x"}, Idempotency_Key=key)


async def _test(target: Target, client: str, number: int) -> Answer:
    return await _ask(target, client, "POST", f"/v1/endpoints/{client}:test", {})


async def _subscription(target: Target, client: str, number: int) -> Answer:
    path = f"/v1/subscriptions/{client}-{number}"
    return await _ask(target, client, "PUT", path, {"broker": BROKER, "queue": f"{client}-{number}"})


async def _endpoint(target: Target, client: str, number: int) -> Answer:
    return await _ask(target, client, "PUT", f"/v1/endpoints/{client}-{number}", {"url": f"http://{RECEIVERS}:1/x"})


GREEDS: Final = (
    Greed("streams", 10, _stream, waits=True),
    Greed("leases", 50, _lease),
    Greed("scheduled_bytes", 5, _schedule_bytes),
    Greed("scheduled", 20, _schedule),
    Greed("idempotency_keys", 20, _key),
    Greed("outbound_requests", 4, _test, waits=True),
    Greed("subscriptions", 10, _subscription),
    Greed("endpoints", 10, _endpoint),
)
GREEDY: Final = "greedy"
MODEST: Final = "modest"


async def _tarpit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(1 << 16):
            pass  # and no answer
    writer.close()


async def attack(target: Target, record: Record) -> None:
    """Take of every budget until the greedy client is refused, then let the modest one take a little."""
    port = free_port()
    async with listening(_tarpit, (RECEIVERS,), port):
        root = target.client("root")
        await _prepare(root, port)
        for greed in GREEDS:
            await _one(target, record, greed)
        answer = await root.ask("GET", "/v1/budgets")
        record.check(answer.status == 200, f"/v1/budgets: {answer.status}")
        root.close()


async def _prepare(root: Client, port: int) -> None:
    for client in (GREEDY, MODEST):
        for queue in (client, f"{client}-full"):
            await root.ask("PUT", f"/v1/brokers/{BROKER}/queues/{queue}", {"durable": True})
            await root.ask("PUT", f"/v1/subscriptions/{queue}", {"broker": BROKER, "queue": queue})
        messages = [{"routing_key": f"{client}-full", "payload": "x"} for _ in range(100)]
        await root.ask("POST", PUBLISH, {"messages": messages})
        url = f"http://{RECEIVERS}:{port}/x"
        await root.ask("PUT", f"/v1/endpoints/{client}", {"url": url, "deadline_seconds": 2})


async def _one(target: Target, record: Record, greed: Greed) -> None:
    wished = 2 * greed.share + 4
    if greed.waits:
        greedy = asyncio.gather(*(greed.take(target, GREEDY, number) for number in range(wished)))
        await asyncio.sleep(0.5)
        modest = await greed.take(target, MODEST, 0)
        answers = await greedy
    else:
        answers = [await greed.take(target, GREEDY, number) for number in range(wished)]
        modest = await greed.take(target, MODEST, 0)
    refused = [answer for answer in answers if answer.status == 429]
    named = all(answer.code == "budget_exceeded" and greed.budget.encode() in answer.body for answer in refused)
    statuses = sorted({answer.status for answer in answers})
    record.check(refused, f"{greed.budget}: {wished} were taken and none was refused: {statuses}")
    record.check(named, f"{greed.budget}: another problem: {refused[0].body[:200]!r}" if refused else greed.budget)
    others = [answer for answer in answers if answer.status not in (200, 201, 202, 429)]
    record.check(not others, f"{greed.budget}: {others[0].status} {others[0].body[:200]!r}" if others else "")
    record.check(modest.status in (200, 201, 202), f"{greed.budget}: the other client: {modest.status} {modest.code}")
    record.notes[greed.budget] = f"{wished - len(refused)} taken, {len(refused)} refused"
