"""A message that is published once more from the message log equals the one that was logged, in every property, on
every broker and in every version, but for what brokers wrote when it died; and under its key it is published once."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.amqp.message import Message
from gateway.api.app import Api
from gateway.config import HttpSettings, LedgerSettings
from gateway.core import Gateway
from gateway.ledger import Ledger
from gateway.notation.logged import from_json, to_json
from gateway.observing.telemetry import Metrics
from tests.ledgers import sqlite_ledger
from tests.servers import BrokerJ, RabbitMQ, RabbitMQ310
from tests.taps.test_real_brokers import compare, taken
from tests.translation.live.ends import ENDS, End, Servers
from tests.translation.live.messages import messages
from tests.translation.live.run import publish, upstream

pytestmark = pytest.mark.broker

MESSAGES = 250
"""Messages of each end, every second of which holds an edge value."""
DEATH = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count")
NDJSON = {"content-type": "application/x-ndjson"}


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.id)
async def test_what_is_published_again_equals_what_was_logged(
    end: End, rabbitmq: RabbitMQ, rabbitmq310: RabbitMQ310, brokerj: BrokerJ, tmp_path: Path, unique_name: Any
) -> None:
    servers = Servers(rabbitmq, rabbitmq310, brokerj)
    first, second = unique_name("first"), unique_name("second")
    async with upstream(end, servers) as broker, upstream(end, servers, "house") as house:
        await broker.declare_queue(first)
        await broker.declare_queue(second)
        ledger = await Ledger.open(sqlite_ledger(tmp_path), LedgerSettings(), owner="test")
        gateway = Gateway(ledger, {"house": house}, Metrics("test"), ack_key=b"k" * 32)
        try:
            await gateway.start()
            began = time.monotonic()
            refused = await publish(broker, first, messages(end, ENDS.index(end) + 31, MESSAGES))
            archived = await taken(broker, first, MESSAGES - len(refused))
            rows = [(message.body, to_json(message)) for message in archived]
            logged = [alive(from_json(octets, body)) for body, octets in rows]
            lines = b"\n".join(line(number, second, *row) for number, row in enumerate(rows))
            transport = httpx.ASGITransport(Api(gateway, HttpSettings()))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
                for how in ("done", "repeated"):
                    path = "/v1/brokers/house/exchanges/amq.default:publish"
                    answer = await client.post(path, content=lines, headers=NDJSON)
                    results = [json.loads(text) for text in answer.content.splitlines()]
                    assert [(each["status"], each.get("key")) for each in results] == [(200, how)] * len(rows)
            again = await taken(broker, second, len(rows))
            compare(end, logged, again, time.monotonic() - began)
            async with asyncio.timeout(60):  # it counts what is acknowledged for a while; a copy would stay
                while (await broker.query_queue(second)).message_count:
                    await asyncio.sleep(0.1)
        finally:
            await gateway.close(1.0)
            await ledger.close()
            for queue in (first, second):
                await broker.delete_queue(queue)


def alive(message: Message) -> Message:
    """The message without what brokers write when one dies."""
    headers = message.properties.headers
    if not headers:
        return message
    left = {name: value for name, value in headers.items() if not name.startswith(DEATH)}
    return Message(message.body, replace(message.properties, headers=left or None))


def line(number: int, queue: str, body: bytes, octets: bytes) -> bytes:
    """A row of the log as a message that is published."""
    message = {
        "routing_key": queue,
        "payload": b64encode(body).decode(),
        "payload_encoding": "base64",
        "logged": json.loads(octets),
        "mandatory": True,
        "key": f"replay:{number}",
    }
    return json.dumps(message).encode()
