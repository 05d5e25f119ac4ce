"""Connections, or channels of one connection, opened up to some number and held: what each more costs in memory, at
this end and at the other."""

from __future__ import annotations

import gc
from typing import Any

import uvloop

from gateway.config import BrokerSettings
from gateway.link import Channel
from gateway.upstreams.keeper import Dialer
from tests.benchmarks.programs.clock import resident


async def _run(job: dict[str, Any]) -> dict[str, Any]:
    dialer = Dialer("bench", BrokerSettings(url=job["url"]))
    first = await dialer.open("bench")
    links, channels = [first], [first.channel(Channel)]
    await channels[0].open()
    found = []
    for count in job["counts"]:
        while len(links if job["kind"] == "connections" else channels) < count:
            if job["kind"] == "connections":
                links.append(await dialer.open("bench"))
            channels.append(links[-1].channel(Channel))
            await channels[-1].open()
        gc.collect()
        found.append({"own": resident(), "server": resident(job["pid"])})
    for link in links:
        await link.close()
    return {"found": found}


def main(job: dict[str, Any]) -> dict[str, Any]:
    """The program."""
    return uvloop.run(_run(job))
