"""Publishes to many queues in turn, first to rest in them, then through consumers that wait on each of them."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop

from gateway.amqp.message import Message
from gateway.amqp.operations import Consume, DeclareQueue, DeleteQueue
from gateway.config import BrokerSettings
from gateway.upstreams.keeper import Dialer
from tests.benchmarks.programs.clock import cpu_of, largest, resident
from tests.benchmarks.programs.gateway import Bench, consume, consumers, publish

AT_ONCE = 500
"""Requests that are asked before the first is answered."""


async def each(channel: Bench, requests: list[Any]) -> None:
    """Ask all of them."""
    for at in range(0, len(requests), AT_ONCE):
        await asyncio.gather(*map(channel.request, requests[at : at + AT_ONCE]))


async def _run(job: dict[str, Any]) -> dict[str, Any]:
    dialer = Dialer("bench", BrokerSettings(url=job["url"]))
    pid, number = job["pid"], job["number"]
    queues = [f"{job['queue']}-{index}" for index in range(job["queues"])]
    link = await dialer.open("bench")
    channel = link.channel(Bench)
    channel.start(queues, Message(), number)
    await channel.open()
    before = resident(pid)
    await each(channel, [DeclareQueue(channel.number, queue, durable=True) for queue in queues])
    found: dict[str, Any] = {"queue": (resident(pid) - before) / len(queues)}

    spent = cpu_of(pid)
    watch = await publish(dialer, queues, job, declare=False)
    found["publish"] = {**watch.result(number), "server": cpu_of(pid) - spent}
    await consume(dialer, queues, job)

    taking = await consumers(link, queues, job)
    for one in taking:
        await each(one, [Consume(one.number, queue, queue) for queue in one.queues])
    spent = cpu_of(pid)
    watch = await publish(dialer, queues, job, declare=False, until=taking)
    found["through"] = {**watch.result(number), "server": cpu_of(pid) - spent}
    found["memory"] = {"own": largest(), "server": largest(pid)}

    await each(channel, [DeleteQueue(channel.number, queue) for queue in queues])
    await link.close()
    return found


def main(job: dict[str, Any]) -> dict[str, Any]:
    """The program."""
    return uvloop.run(_run(job))
