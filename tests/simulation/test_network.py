"""The simulated network does as a system does."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.simulation.surroundings.loop import Node, SimLoop
from tests.simulation.surroundings.network import Network
from tests.simulation.surroundings.seams import Seams

PORT = 5672


class Noting(asyncio.Protocol):
    """One end, which reads as long as it is to."""

    def __init__(self, reads: bool) -> None:
        self.reads = reads
        self.got = b""
        self.ended = False
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if not self.reads:
            transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self.got += data

    def eof_received(self) -> None:
        self.ended = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


@pytest.mark.parametrize("reads", [True, False])
def test_an_end_is_closed_although_the_other_one_reads_nothing(reads: bool) -> None:
    """The system takes the end, as an idle connection of a pool shows; who reads later still gets it."""
    loop = SimLoop(random.Random(1))
    network = Network(loop, random.Random(2), lambda *_: None)
    far, near = Noting(reads), Noting(True)
    server, client = Node("server"), Node("client")

    async def use() -> None:
        await loop.create_task(network.create_server(lambda: far, "127.0.0.1", PORT), context=server.context)
        transport, _ = await network.create_connection(lambda: near, "127.0.0.1", PORT)
        await asyncio.sleep(1.0)
        transport.close()
        await asyncio.sleep(1.0)
        assert near.is_lost
        assert (far.ended, far.is_lost) == (reads, reads)
        far.transport.resume_reading()
        await asyncio.sleep(1.0)
        assert (far.ended, far.is_lost) == (True, True)
        assert not network.of(client)
        assert not network.of(server)

    with Seams(loop, network, random.Random(3), random.Random(4)).installed():
        loop.run_until_complete(loop.create_task(use(), context=client.context))
    loop.close()
