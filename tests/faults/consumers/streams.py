"""Consumers that read a stream: messages come as server-sent events or as lines of JSON as long as the connection
lasts, and are settled by requests on the side, as many at once as have come meanwhile. A stream that ends is opened
again. What it brought and nobody has settled goes back with it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

from tests.faults.checker import Reception
from tests.faults.consumers.lanes import SSE
from tests.faults.consumers.pulls import DEADLINE, Consumers
from tests.faults.http import Http
from tests.servers.process import HOST

ACCEPT: Final = {True: "text/event-stream", False: "application/x-ndjson"}
"""Whether it is SSE -> what is asked for."""
_PAUSE: Final = 0.1
_BUFFERED: Final = 2.0
"""How long a message may have been on its way, in seconds: its lease began before it was read."""


class Stream(Consumers):
    """Consumers of which each has a stream."""

    async def consume(self) -> None:
        http = Http(self.port)
        try:
            while not self.stopped:
                await self._read(http)
                await asyncio.sleep(_PAUSE)
        finally:
            http.reset()

    async def _read(self, http: Http) -> None:
        """One stream, from its beginning to its end."""
        brought: list[Reception] = []
        waiting: asyncio.Queue[tuple[str, Reception]] = asyncio.Queue()
        settling = asyncio.create_task(self._settle_on_the_side(http, waiting))
        ended: float | None = None
        try:
            async with aclosing(self._messages()) as messages:
                async for message in messages:
                    [held] = self.received([message], time.monotonic() + DEADLINE - _BUFFERED)
                    brought.append(held[1])
                    waiting.put_nowait(held)
                ended = time.monotonic()  # its leases end with it; settling them may take longer
                await waiting.join()
        finally:
            now = time.monotonic() if ended is None else ended
            for reception in brought:
                reception.ends = min(now, reception.ends or now)
            settling.cancel()
            await asyncio.gather(settling, return_exceptions=True)
            self.open -= waiting.qsize()

    async def _settle_on_the_side(self, http: Http, waiting: asyncio.Queue[tuple[str, Reception]]) -> None:
        while True:
            held = [await waiting.get()]
            while not waiting.empty():
                held.append(waiting.get_nowait())
            try:
                await self.take(http, held)
            except Exception as error:  # said at the end of the run
                self.complaints.append(f"a consumer broke: {error!r}")
            for _ in held:
                waiting.task_done()

    async def _messages(self) -> AsyncIterator[Any]:
        """Those of one connection, until it ends or the consumers are told to."""
        try:
            reader, writer = await asyncio.open_connection(HOST, self.port, limit=4 << 20)
        except OSError:
            return
        waiting = asyncio.create_task(self._stopped.wait())
        try:
            sse = self.lane.way == SSE
            writer.write(
                f"GET {self.path}:stream?max_outstanding=20 HTTP/1.1\r\nHost: {HOST}:{self.port}\r\n"
                f"Accept: {ACCEPT[sse]}\r\n\r\n".encode()
            )
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split()[1])
            self.answers[f"stream {status}"] += 1
            if status != 200:
                if status < 500:
                    self.complaints.append(f"stream: {head!r}")
                return
            lines = _lines(reader)
            while True:
                following = asyncio.ensure_future(anext(lines))
                try:
                    await asyncio.wait([following, waiting], return_when=asyncio.FIRST_COMPLETED)
                    if not following.done():
                        return
                    line = following.result()
                finally:
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
                text = line.removeprefix(b"data:") if sse and line.startswith(b"data:") else b"" if sse else line
                if text.strip():
                    item = json.loads(text)
                    if "message" in item:
                        yield item
        except (OSError, EOFError, StopAsyncIteration):
            self.answers["stream ended"] += 1
        finally:
            waiting.cancel()
            writer.transport.abort()


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a chunked body. Raises EOFError where it is cut off."""
    rest = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        *lines, rest = (rest + (await reader.readexactly(size + 2))[:-2]).split(b"\n")
        for line in lines:
            yield line
