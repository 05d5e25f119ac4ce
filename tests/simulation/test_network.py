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

    def __init__(self, reads: bool, keeps: bool = False) -> None:
        """``keeps``: it goes on writing when the other end writes no more."""
        self.reads, self.keeps = reads, keeps
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

    def eof_received(self) -> bool:
        self.ended = True
        return self.keeps

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


@pytest.mark.parametrize("is_under_way", [True, False])
def test_who_writes_to_a_process_that_died_is_told(is_under_way: bool) -> None:
    """Also where the end has come, and the writer goes on; whether it wrote before the process died, or later."""
    ends = set()
    for seed in range(10):  # half of these processes end with what they had written, the others with a reset
        loop = SimLoop(random.Random(1))
        network = Network(loop, random.Random(seed), lambda *_: None)
        far, near = Noting(False), Noting(True, keeps=True)
        server, client = Node("server"), Node("client")

        async def use(
            loop: SimLoop = loop, network: Network = network, far: Noting = far, near: Noting = near,
            server: Node = server,
        ) -> None:  # fmt: skip
            await loop.create_task(network.create_server(lambda: far, "127.0.0.1", PORT), context=server.context)
            transport, _ = await network.create_connection(lambda: near, "127.0.0.1", PORT)
            await asyncio.sleep(1.0)
            if is_under_way:
                transport.write(b"under way")
            loop.kill(server)
            network.gone(server)
            await asyncio.sleep(1.0)
            if not is_under_way:
                assert near.is_lost is not near.ended
                transport.write(b"later")
                await asyncio.sleep(1.0)
            assert near.is_lost

        with Seams(loop, network, random.Random(3), random.Random(4)).installed():
            loop.run_until_complete(loop.create_task(use(), context=client.context))
        loop.close()
        ends.add(near.ended)
    assert ends == {True, False}
