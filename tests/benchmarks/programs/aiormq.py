"""aiormq: as many coroutines as the window has places, each with one publish on its way."""

from __future__ import annotations

import asyncio
from typing import Any

import aiormq
import uvloop

from tests.benchmarks.programs.clock import Stopwatch, answer


async def publish(job: dict[str, Any]) -> Stopwatch:
    """Publish with at most ``window`` unconfirmed."""
    connection = await aiormq.connect(job["url"])
    channel = await connection.channel(publisher_confirms=True)
    await channel.queue_declare(job["queue"], durable=True)
    body = b"x" * job["size"]
    left = iter(range(job["number"]))

    async def work() -> None:
        for _ in left:
            properties = aiormq.spec.Basic.Properties(content_type="text/plain", delivery_mode=2)
            await channel.basic_publish(body, routing_key=job["queue"], properties=properties, mandatory=True)

    with Stopwatch() as watch:
        await asyncio.gather(*(work() for _ in range(job["window"])))
        await channel.close()
    await connection.close()
    return watch


async def consume(job: dict[str, Any]) -> Stopwatch:
    """Take messages and acknowledge each; as aiormq has it, each in a task of its own."""
    connection = await aiormq.connect(job["url"])
    channel = await connection.channel()
    left = job["number"]
    done = asyncio.get_running_loop().create_future()

    async def received(message: Any) -> None:
        nonlocal left
        await channel.basic_ack(message.delivery.delivery_tag, wait=False)
        left -= 1
        if not left:
            done.set_result(None)

    await channel.basic_qos(prefetch_count=job["window"])
    with Stopwatch() as watch:
        await channel.basic_consume(job["queue"], received)
        await done
        await channel.close()
    await connection.close()
    return watch


async def _run(job: dict[str, Any]) -> dict[str, Any]:
    works = {"publish": publish, "consume": consume}
    return answer({work: (await works[work](job)).result(job["number"]) for work in job["works"]})


def main(job: dict[str, Any]) -> dict[str, Any]:
    """The program."""
    return uvloop.run(_run(job))
