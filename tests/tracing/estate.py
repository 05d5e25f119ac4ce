"""A whole gateway with a collector and an endpoint beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from gateway.app import App, running
from gateway.config import load
from tests.ledgers import sqlite_ledger
from tests.tracing.collector import Collector, Seen

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "caller=1"}
NOT_SEEN = {"traceparent": f"00-{TRACE}-{SPAN}-00"}


class Hook:
    """An endpoint that takes everything, and remembers it."""

    def __init__(self) -> None:
        self.port = 0
        self.status = 200
        self.got: list[tuple[dict[str, str], bytes]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readline():
                headers: dict[str, str] = {}
                while (line := await reader.readline()) != b"\r\n":
                    name, _, value = line.decode().partition(":")
                    headers[name.lower()] = value.strip()
                self.got.append((headers, await reader.readexactly(int(headers["content-length"]))))
                writer.write(f"HTTP/1.1 {self.status} X\r\ncontent-length: 0\r\n\r\n".encode())
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the gateway is gone
        finally:
            writer.close()


@asynccontextmanager
async def estate(
    path: Path, collector: Collector | None, settings: Mapping[str, Any], brokers: tuple[str, ...] = ()
) -> AsyncIterator[tuple[App, httpx.AsyncClient, Hook]]:
    """A gateway that traces, if there is a collector, with an endpoint ``hook``. Waits for these ``brokers``."""
    hook = Hook()
    server = await asyncio.start_server(hook.serve, "127.0.0.1", 0)
    hook.port = server.sockets[0].getsockname()[1]
    sqlite_ledger(path)
    config = {
        "http.port": 0, "ops.port": 0, "data_dir": str(path), "outbound.allow": ["127.0.0.1/32"],
        "endpoints.hook.url": f"http://127.0.0.1:{hook.port}/in", "endpoints.hook.format": "raw", **settings,
    }  # fmt: skip
    if collector is not None:
        config |= {"tracing.endpoint": collector.url, "tracing.interval": 0.02}
    try:
        async with (
            running(load(None, {}, config)) as app,
            httpx.AsyncClient(base_url=app.url, timeout=30, trust_env=False) as client,
        ):
            for name in brokers:
                assert await app.gateway.brokers[name].wait_up(20)
            yield app, client, hook
    finally:
        server.close()


async def until(condition: Any, within: float = 20.0) -> None:
    """Wait until something holds."""
    deadline = asyncio.get_running_loop().time() + within
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


def only(spans: list[Seen], word: str, **attributes: Any) -> Seen:
    """The one span whose name begins so, and that has these attributes."""
    found = [
        span
        for span in spans
        if span.word == word and all(span.attributes.get(name) == value for name, value in attributes.items())
    ]
    assert len(found) == 1, [(span.name, span.attributes) for span in spans]
    return found[0]


def of(spans: list[Seen], word: str) -> list[Seen]:
    """Those whose names begin so."""
    return [span for span in spans if span.word == word]
