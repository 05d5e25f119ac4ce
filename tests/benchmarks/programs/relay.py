"""A plain TCP relay: octets from here to there and back, with a pause where the other side does not read. It runs until
its standard input ends."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import uvloop


class End(asyncio.Protocol):
    """One end of a relayed connection."""

    def __init__(self, port: int = 0) -> None:
        """``port``: where to connect to; 0: this is the far end."""
        self.port = port
        self.other: End | None = None
        self.transport: Any = None
        self.waiting: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        """Connect to the other side."""
        self.transport = transport
        if self.port:
            self.other = far = End()
            far.other = self
            loop = asyncio.get_running_loop()
            self.dialing = loop.create_task(loop.create_connection(lambda: far, "127.0.0.1", self.port))
        elif self.other is not None:
            for data in self.other.waiting:
                transport.write(data)
            self.other.waiting.clear()

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        assert self.other is not None
        if self.other.transport is None:
            self.waiting.append(data)
        else:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        """This side does not read: read nothing from the other."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """It reads again."""
        if self.other is not None and self.other.transport is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the other side, too."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def _run(job: dict[str, Any]) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: End(job["port"]), "127.0.0.1", 0)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


def main(job: dict[str, Any]) -> dict[str, Any]:
    """The program. ``port``: where connections lead to."""
    uvloop.run(_run(job))
    return {}
