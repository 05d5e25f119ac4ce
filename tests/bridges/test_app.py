"""Bridges of the configuration file, in a whole gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.app import running
from gateway.config import load


async def test_a_bridge_of_the_file_runs_with_the_gateway(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        f"""
        data_dir = "{tmp_path}/data"
        http.port = 0
        ops.port = 0
        embedded = {{ enabled = true, port = 0 }}

        [bridges.orders]
        source = {{ broker = "local-0-8", exchange = "amq.topic", binding_key = "orders.#" }}
        target = {{ broker = "local-0-10", routing_key = "out" }}
        """
    )
    config = load(file, {})
    async with running(config) as app:
        new = app.gateway.broker("local-0-10")
        await new.declare_queue("out")
        old = app.gateway.broker("local-0-8")
        async with asyncio.timeout(10):
            while not (await old.publish("amq.topic", "orders.eu", Message(b"x", Properties(message_id="m")))).routed:
                await asyncio.sleep(0.05)
        (delivery,) = await new.fetch("out", 1, 10.0)
        assert delivery.message.body == b"x"
        assert delivery.message.properties.message_id == "m"
        delivery.settle(Settlement.ACCEPT)
