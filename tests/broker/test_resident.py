"""A broker in a process of its own under everything at once: its memory stays bounded, its neighbours are served."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.amqp.operations import Deliver, OpenChannel, QueryQueue, SelectConfirm, Settle, Settlement
from gateway.session import Version
from gateway.v010.version import V0_10
from tests.broker.raw import VERSIONS, Raw, publishing

MIB = 1 << 20
QUEUE_MEMORY = 16 * MIB
PROGRAM = """
import asyncio, sys, uvloop
from gateway.broker.server import EmbeddedBroker
from gateway.config import EmbeddedSettings

async def main():
    broker = EmbeddedBroker(EmbeddedSettings(port=0, queue_memory=int(sys.argv[1])))
    await broker.start()
    print(broker.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await broker.stop()

uvloop.run(main())
"""


@asynccontextmanager
async def process() -> AsyncIterator[tuple[int, int]]:
    """A broker on uvloop, as the gateway runs it: its process id and its port."""
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(QUEUE_MEMORY),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        async with asyncio.timeout(30):
            port = int(await program.stdout.readline())
        yield program.pid, port
    finally:
        while Raw.made:
            Raw.made.pop().close()
        program.stdin.close()
        async with asyncio.timeout(30):
            assert await program.wait() == 0


def resident(pid: int) -> int:
    """Octets of a process in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def round_trips(client: Raw, count: int) -> float:
    """Publish a message and have it delivered, acknowledge it: the median time."""
    times = []
    for _ in range(count):
        began = client.now
        await client.tell(publishing("mine", b"x" * 256))
        delivery = (await client.hear(Deliver)).delivery
        await client.tell(Settle(1, Settlement.ACCEPT, delivery, delivery))
        times.append(client.now - began)
    return statistics.median(times)


async def neighbour(port: int, version: Version) -> Raw:
    """A client that minds its own business."""
    client = await Raw.open(port, version)
    await client.declare("mine", auto_delete=True)
    if version is not V0_10:
        await client.tell(SelectConfirm(1))
    await client.consume("mine")
    await round_trips(client, 20)
    return client


async def asker(port: int, version: Version) -> int:
    """Asks and never reads; how many octets were taken of it."""
    client = await Raw.open(port, version, receive_buffer=4_096)
    await client.declare("long", arguments={"x-dead-letter-exchange": "x" * 255})
    if version is V0_10:
        return await client.stuff(client.octets(QueryQueue(1, "long")) * 300_000)
    publish = publishing("nowhere", bytes(3_000))
    publish.mandatory = True  # type: ignore[misc]  # it comes back
    return await client.stuff(client.octets(publish) * 3_000)


async def hoarder(port: int, version: Version, most: int = MIB) -> int:
    """Publishes to a queue without consumers, and reads nothing."""
    client = await Raw.open(port, version)
    await client.declare("hoard", arguments={"x-max-length-bytes": most})
    headers = {f"{number:x}": True for number in range(500)}
    return await client.stuff(client.octets(publishing("hoard", bytes(1_000), headers=headers)) * 10_000)


async def silent(port: int, version: Version) -> int:
    """Consumes what is hoarded without limit, and reads nothing."""
    client = await Raw.open(port, version, receive_buffer=4_096)
    await client.declare("hoard", arguments={"x-max-length-bytes": MIB})
    await client.consume("hoard", no_ack=True)
    return 0


async def unfinished(port: int, version: Version) -> int:
    """Begins large messages on many channels, and ends none."""
    client = await Raw.open(port, version, channels=8)
    octets = b""
    for number in range(1, 9):
        octets = client.octets(publishing("q", bytes(4 * MIB), number))
        await client.stuff(octets[: 3 * MIB])
    return 0


async def channel_storm(port: int, version: Version) -> int:
    """Opens all channels there are."""
    client = await Raw.open(port, version)
    return await client.stuff(client.octets(*(OpenChannel(number) for number in range(2, 2_000))))


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.value)
async def test_everything_at_once(version: Version) -> None:
    async with process() as (pid, port):
        client = await neighbour(port, version)
        calm = await round_trips(client, 50)
        before = resident(pid)
        floods = (asker, asker, hoarder, hoarder, silent, unfinished, channel_storm)
        tasks = [asyncio.create_task(flood(port, version)) for flood in floods]
        most, times = before, []
        while not all(task.done() for task in tasks):
            times.append(await round_trips(client, 1))
            most = max(most, resident(pid))
        sent = sum(task.result() for task in tasks)
        assert sent > 8 * MIB
        assert most - before < 4 * QUEUE_MEMORY + 24 * MIB, f"{(most - before) / MIB:.1f} MiB more"
        assert statistics.median(times) < max(100 * calm, 0.5)


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.value)
async def test_a_queue_without_consumers(version: Version) -> None:
    """Publishers are stopped or refused when the memory for messages is used up; everything else goes on."""
    async with process() as (pid, port):
        client = await neighbour(port, version)
        before = resident(pid)
        tasks = [asyncio.create_task(hoarder(port, version, 1 << 40)) for _ in range(3)]
        most = before
        while not all(task.done() for task in tasks):
            assert await client.declare("mine", auto_delete=True) == 0
            most = max(most, resident(pid))
        assert sum(task.result() for task in tasks) > QUEUE_MEMORY
        assert most - before < 3 * QUEUE_MEMORY, f"{(most - before) / MIB:.1f} MiB more"
