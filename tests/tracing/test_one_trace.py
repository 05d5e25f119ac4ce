"""One trace over everything: HTTP, 0-8 and 0-9-1 on RabbitMQ, two bridges, 0-10 on Broker-J, a webhook and a pull."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.tracing import names
from gateway.tracing.names import SpanKind
from tests.servers import BrokerJ, RabbitMQ, RabbitMQ310
from tests.tracing.collector import Collector
from tests.tracing.estate import CALLER, SPAN, TRACE, estate, of, only, until

pytestmark = pytest.mark.broker

MESSAGES = 3


async def test_one_trace(
    tmp_path: Path,
    rabbitmq: RabbitMQ,
    rabbitmq310: RabbitMQ310,
    brokerj: BrokerJ,
    unique_name: Callable[[str], str],
    collector: Collector,
) -> None:
    first, second, pushed, pulled, topic = map(unique_name, ("first", "second", "pushed", "pulled", "topic"))
    settings = {
        "brokers.old.url": rabbitmq310.url("0-8"),
        "brokers.shop.url": rabbitmq.url("0-9-1"),
        "brokers.bank.url": brokerj.url("0-10", "memory"),
        "bridges.one.source.broker": "old", "bridges.one.source.queue": first,
        "bridges.one.target.broker": "shop", "bridges.one.target.routing_key": second,
        "bridges.two.source.broker": "shop", "bridges.two.source.queue": second,
        "bridges.two.target.broker": "bank", "bridges.two.target.exchange": "amq.topic",
        "bridges.two.target.routing_key": topic,
        "subscriptions.push.broker": "bank", "subscriptions.push.queue": pushed, "subscriptions.push.push": "hook",
        "subscriptions.pull.broker": "bank", "subscriptions.pull.queue": pulled,
        "subscriptions.pull.lease": "ledger",
    }  # fmt: skip
    queues = {first: "old", second: "shop", pushed: "bank", pulled: "bank"}
    async with estate(tmp_path, collector, settings, ("old", "shop", "bank")) as (_, client, hook):
        try:
            await declare(client, queues, topic, [pushed, pulled])
            ids = [await publish(client, first, number) for number in range(MESSAGES)]
            await until(lambda: len(hook.got) == MESSAGES)
            items: list[dict[str, Any]] = []
            async with asyncio.timeout(20):
                while len(items) < MESSAGES:
                    items += await pull(client)
            body = {"ack_ids": [item["ack_id"] for item in items]}
            (await client.post("/v1/subscriptions/pull:acknowledge", json=body)).raise_for_status()
            spans = await collector.until(
                lambda found: (
                    len(of(found, "ack")) == len(of(found, "process")) == MESSAGES
                    and len(of(found, "forward")) == 2 * MESSAGES
                )
            )
        finally:
            for name, broker in queues.items():
                await client.delete(f"/v1/brokers/{broker}/queues/{name}")
    assert collector.requests
    trace = [span for span in spans if span.trace_id == TRACE]
    words = {span.word for span in trace}
    assert words == {"POST", "publish", "forward", "process", "deliver", "ack"}
    by_id = {span.span_id: span for span in trace}
    for message_id in ids:
        about = [span for span in trace if span.attributes.get(names.MESSAGE_ID) == message_id]
        sent = only(about, "publish", **{names.BROKER: "old"})
        assert (sent.kind, sent.attributes[names.PROTOCOL_VERSION]) == (SpanKind.PRODUCER, "0-8")
        assert sent.attributes[names.SYSTEM] == "rabbitmq"
        # Nobody wrote into the message behind the publish: all hang on its span, whatever is between.
        hops = {span.attributes[names.BRIDGE]: span for span in of(about, "forward")}
        versions = {name: (hop.attributes[names.PROTOCOL_VERSION], hop.parent_id) for name, hop in hops.items()}
        assert versions == {"one": ("0-8", sent.span_id), "two": ("0-9-1", sent.span_id)}
        last = only(about, "publish", **{names.BRIDGE: "two"})
        assert (last.attributes[names.BROKER], last.attributes[names.PROTOCOL_VERSION]) == ("bank", "0-10")
        assert last.attributes[names.SYSTEM] == "amqp"
        attempt, taken = only(about, "process"), only(about, "deliver")
        assert attempt.parent_id == taken.parent_id == sent.span_id
        assert only(about, "ack").parent_id == taken.span_id
        request = by_id[sent.parent_id]
        assert (request.kind, request.parent_id) == (SpanKind.SERVER, SPAN)
    # The endpoint was told, and the message is as it was sent.
    posts = {span.span_id for span in trace if names.ENDPOINT in span.attributes and span.word == "POST"}
    told = {headers["traceparent"] for headers, _ in hook.got}
    assert told == {f"00-{TRACE}-{span_id}-01" for span_id in posts}
    publishes = {span.span_id for span in trace if span.kind is SpanKind.PRODUCER}
    parents = [json.loads(headers["amqp-headers"])["traceparent"] for headers, _ in hook.got]
    parents += [item["message"]["headers"]["traceparent"] for item in items]
    assert sorted(parents) == sorted(f"00-{TRACE}-{span_id}-01" for span_id in publishes for _ in (1, 2))
    for item in items:
        assert item["message"]["headers"].keys() == {"n", "traceparent", "tracestate"}
    assert not any(span.failed for span in trace)


async def declare(client: httpx.AsyncClient, queues: dict[str, str], topic: str, bound: list[str]) -> None:
    for name, broker in queues.items():
        answer = await client.put(f"/v1/brokers/{broker}/queues/{name}", json={"durable": True})
        assert answer.is_success, answer.text
    for name in bound:
        body = {"exchange": "amq.topic", "queue": name, "routing_key": topic}
        answer = await client.post("/v1/brokers/bank/bindings", json=body)
        assert answer.is_success, answer.text


async def publish(client: httpx.AsyncClient, queue: str, number: int) -> str:
    body = {"routing_key": queue, "payload": f"message {number}", "headers": {"n": number}}
    answer = await client.post("/v1/brokers/old/exchanges/amq.default:publish", json=body, headers=CALLER)
    answer.raise_for_status()
    return str(answer.json()["id"])


async def pull(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    answer = await client.post("/v1/subscriptions/pull:pull", json={"max_messages": 10, "wait": 2})
    answer.raise_for_status()
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found
