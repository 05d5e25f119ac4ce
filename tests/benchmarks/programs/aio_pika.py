"""aio-pika, on top of aiormq: as many coroutines as the window has places, each with one publish on its way."""

from __future__ import annotations

import asyncio
from typing import Any

import aio_pika
import uvloop

from tests.benchmarks.programs.clock import Stopwatch, answer


async def publish(job: dict[str, Any]) -> Stopwatch:
    """Publish with at most ``window`` unconfirmed."""
    connection = await aio_pika.connect(job["url"])
    channel = await connection.channel(publisher_confirms=True)
    await channel.declare_queue(job["queue"], durable=True)
    message = aio_pika.Message(
        b"x" * job["size"], content_type="text/plain", delivery_mode=aio_pika.DeliveryMode.PERSISTENT
    )
    send = channel.default_exchange.publish
    left = iter(range(job["number"]))

    async def work() -> None:
        for _ in left:
            await send(message, job["queue"], mandatory=True)

    with Stopwatch() as watch:
        await asyncio.gather(*(work() for _ in range(job["window"])))
        await channel.close()
    await connection.close()
    return watch


async def consume(job: dict[str, Any]) -> Stopwatch:
    """Take messages and acknowledge each; as aiormq has it, each in a task of its own."""
    connection = await aio_pika.connect(job["url"])
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=job["window"])
    queue = await channel.get_queue(job["queue"])
    left = job["number"]
    done = asyncio.get_running_loop().create_future()

    async def received(message: Any) -> None:
        nonlocal left
        await message.ack()
        left -= 1
        if not left:
            done.set_result(None)

    with Stopwatch() as watch:
        await queue.consume(received)
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
