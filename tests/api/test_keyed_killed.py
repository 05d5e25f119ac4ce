"""A gateway that is killed in the middle of a stream of messages with keys, and the stream that is sent again."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.fidelity import annotation
from tests.faults.harness import GatewayProcess
from tests.servers import BrokerJ, RabbitMQ, RabbitMQ310
from tests.taps.test_real_brokers import taken
from tests.translation.live.ends import ENDS, Servers
from tests.translation.live.run import upstream

pytestmark = pytest.mark.broker

LINES = 2_000
KILLS = 3


async def test_a_stream_that_is_sent_again_after_each_kill(
    rabbitmq: RabbitMQ, rabbitmq310: RabbitMQ310, brokerj: BrokerJ, tmp_path: Path, unique_name: Any
) -> None:
    """SIGKILL after some of the results: none is lost, and of what is there twice all but one are marked. What the
    caller was told of stays so: the same id, and nothing is published for it again."""
    servers = Servers(rabbitmq, rabbitmq310, brokerj)
    end = next(end for end in ENDS if end.id == "rabbitmq-0-9-1")
    queue = unique_name("keyed")
    tables = {
        "data_dir": str(tmp_path / "data"),
        "brokers": {"b": {"url": end.url(servers), "reconnect_min": 0.1, "reconnect_max": 0.5}},
    }
    gateway = GatewayProcess(tmp_path, tables)
    lines = [json.dumps({"routing_key": queue, "payload": str(n), "key": f"k{n}"}) for n in range(LINES)]
    told: dict[int, str] = {}
    moments = random.Random(7)
    async with upstream(end, servers) as broker:
        await broker.declare_queue(queue)
        try:
            for _ in range(KILLS):
                await asyncio.to_thread(gateway.start)
                await until_up(gateway)
                until = moments.randint(200, LINES // 2)
                found = await send(gateway, lines, until)
                await asyncio.to_thread(gateway.kill)
                agree(told, found)
            await asyncio.to_thread(gateway.start)
            await until_up(gateway)
            found = await send(gateway, lines)
            async with asyncio.timeout(60):
                while {result["status"] for result in found} != {200}:
                    await asyncio.sleep(0.1)  # some are being sent again at this moment
                    found = await send(gateway, lines)
            agree(told, found)
            assert len(told) == LINES
            again = await send(gateway, lines)
            assert {result["key"] for result in again} == {"repeated"}
            count = (await broker.query_queue(queue)).message_count
            messages = await taken(broker, queue, count)
        finally:
            if gateway.process is not None and gateway.process.poll() is None:
                await asyncio.to_thread(gateway.kill)
            await broker.delete_queue(queue)
    bodies = Counter(int(message.body) for message in messages)
    assert set(bodies) == set(range(LINES)), "nothing is lost"
    plain = Counter(int(each.body) for each in messages if annotation(each.properties, "resent") is None)
    assert set(plain.values()) <= {1}, "of copies all but one are marked"
    ids = {(int(each.body), annotation(each.properties, "id")) for each in messages}
    assert ids == set(told.items()), "and all have the id that was told"


async def until_up(gateway: GatewayProcess) -> None:
    async with httpx.AsyncClient() as client, asyncio.timeout(30):
        while (await client.get(f"http://127.0.0.1:{gateway.port}/v1/brokers/b")).json()["state"] != "up":
            await asyncio.sleep(0.05)


async def send(gateway: GatewayProcess, lines: list[str], until: int = LINES) -> list[dict[str, Any]]:
    """Send them all; the results, or the first so many of them."""
    path = f"http://127.0.0.1:{gateway.port}/v1/brokers/b/exchanges/amq.default:publish"
    headers = {"content-type": "application/x-ndjson"}
    found: list[dict[str, Any]] = []
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", path, content="\n".join(lines), headers=headers) as answer,
    ):
        async for text in answer.aiter_lines():
            found.append(json.loads(text))
            if len(found) >= until:
                break
    return found


def agree(told: dict[int, str], found: list[dict[str, Any]]) -> None:
    """What was told before is told again."""
    for number, result in enumerate(found):
        if result["status"] == 200:
            assert told.setdefault(number, result["id"]) == result["id"]
