"""Dead letters of RabbitMQ and Broker-J: natively, and as copies of the gateway."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.versions import VERSION_NAMES
from tests.servers import BrokerJ, RabbitMQ
from tests.webhooks.test_dead_letters_app import post, publish, pull, put, service

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("kind", ["rabbitmq-3.10", "rabbitmq-4.0"])
async def test_what_rabbitmq_dead_letters_explains_itself(
    request: pytest.FixtureRequest, tmp_path: Path, unique_name: Callable[[str], str], kind: str
) -> None:
    server: RabbitMQ = request.getfixturevalue(kind)
    orders, dead = unique_name("orders"), unique_name("dead")
    async with service(tmp_path, real=server.url("0-9-1")) as client:
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        await put(client, f"/v1/brokers/real/queues/{dead}")
        await put(client, f"/v1/brokers/real/queues/{orders}", arguments=arguments)
        try:
            await put(client, "/v1/subscriptions/orders", broker="real", queue=orders)
            await put(client, "/v1/subscriptions/dead", broker="real", queue=dead)
            await publish(client, "real", orders)
            ack_id = (await pull(client, "orders"))["ack_id"]
            await post(client, "/v1/subscriptions/orders:reject", ack_ids=[ack_id])
            told = (await pull(client, "dead"))["message"]["dead_letter"]
            assert told.pop("at").startswith("20")
            assert told == {
                "reason": "a consumer rejected it", "code": "rejected", "exchange": "", "routing_key": orders,
                "queue": orders,
            }  # fmt: skip
        finally:
            for queue in (orders, dead):
                await client.delete(f"/v1/brokers/real/queues/{queue}")


@pytest.mark.parametrize("version", VERSION_NAMES)
async def test_a_copy_at_broker_j_explains_itself(
    brokerj: BrokerJ, tmp_path: Path, unique_name: Callable[[str], str], version: str
) -> None:
    orders, dead = unique_name("orders"), unique_name("dead")
    async with service(tmp_path, real=brokerj.url(version)) as client:
        for queue in (orders, dead):
            await put(client, f"/v1/brokers/real/queues/{queue}")
        try:
            await put(client, "/v1/subscriptions/orders", broker="real", queue=orders, dead_letter_routing_key=dead)
            await put(client, "/v1/subscriptions/dead", broker="real", queue=dead)
            await publish(client, "real", orders)
            ack_id = (await pull(client, "orders"))["ack_id"]
            await post(client, "/v1/subscriptions/orders:reject", ack_ids=[ack_id], reason="no such customer")
            told = (await pull(client, "dead"))["message"]["dead_letter"]
            assert told.pop("at").startswith("20")
            assert told == {
                "reason": "no such customer", "code": "rejected", "exchange": "", "routing_key": orders,
                "queue": orders,
            }  # fmt: skip
        finally:
            for queue in (orders, dead):
                await client.delete(f"/v1/brokers/real/queues/{queue}")
