"""Clients that connect, publish one message, wait for its confirm and leave, some at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop

from gateway.amqp.message import Message
from gateway.amqp.operations import SelectConfirm
from gateway.config import BrokerSettings
from gateway.upstreams.keeper import Dialer
from tests.benchmarks.programs.clock import Stopwatch
from tests.benchmarks.programs.gateway import MESSAGE, Bench


async def _clients(dialer: Dialer, job: dict[str, Any], left: list[int]) -> None:
    while left:
        left.pop()
        link = await dialer.open("bench")
        channel = link.channel(Bench)
        channel.start([job["queue"]], Message(b"x" * job["size"], MESSAGE), 1)
        await channel.open()
        await channel.request(SelectConfirm(channel.number))
        channel.publish(1)
        await channel.done
        await link.close()


async def _run(job: dict[str, Any]) -> dict[str, Any]:
    dialer = Dialer("bench", BrokerSettings(url=job["url"]))
    left = list(range(job["number"]))
    with Stopwatch() as watch:
        await asyncio.gather(*(_clients(dialer, job, left) for _ in range(job["at_once"])))
    return {"number": job["number"], "seconds": watch.seconds}


def main(job: dict[str, Any]) -> dict[str, Any]:
    """The program."""
    return uvloop.run(_run(job))
