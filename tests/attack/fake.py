"""A server that lets everything pass, or fails at everything, to show that each row can fail.

It speaks enough HTTP and AMQP for the attacks: every head gets an answer, also one that is smuggled in; what an
endpoint names is called; a login is always right; and nothing is ever closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.api.app import openapi_octets
from tests.attack.lab import Target
from tests.hostile import frame010, method
from tests.servers.process import free_port

HEAD_END: Final = b"\r\n\r\n"
SAID: Final[dict[str, Any]] = {
    "id": "x",
    "name": "victim",
    "queue": "victim",
    "secret": "x",
    "keys": [],
    "messages": [{"ack_id": f"A{number}", "message": {"payload": "poison"}} for number in range(2)],
    "results": [{"ack_id": "x", "status": "SUCCESS"}],
    "delivered": True,
}
"""The answer to everything."""
TUNED: Final = method(10, 30, struct.pack(">HIH", 0, 131_072, 60), 0) + method(10, 41, b"\x00", 0)
TUNED_010: Final = frame010(bytes((1, 5, 0, 0)), 0, 0)


class Fake:
    """The server; ``status`` is that of all its answers but the document's."""

    def __init__(self, status: int = 200, said: str = "") -> None:
        self.status = status
        self.said = said
        """A text that is in every answer."""
        self.called: list[asyncio.Task[None]] = []
        self.serving: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}

    async def http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer every head, wherever it stands."""
        self._serve(writer)
        with contextlib.suppress(OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            while True:
                head = await reader.readuntil(HEAD_END)
                await self._answer(head, reader, writer)
                await writer.drain()
        with contextlib.suppress(OSError):
            while await reader.read(1 << 16):
                pass

    def _serve(self, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving[task] = writer

    async def close(self) -> None:
        """End all connections."""
        for writer in self.serving.values():
            writer.transport.abort()
        await asyncio.gather(*self.serving, return_exceptions=True)
        await asyncio.sleep(0)  # what was aborted is closed

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = head.split(b" ")[1] if head.count(b" ") > 1 else b""
        length = next(
            (line[15:].strip() for line in head.split(b"\r\n") if line[:15].lower() == b"content-length:"), b"0"
        )
        body = b""
        if length.isdigit() and int(length) < 1 << 16 and b"X-Smuggled" not in head:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    body = await reader.readexactly(int(length))
        for url in _urls(body):
            self.called.append(asyncio.create_task(_call(url)))
        await asyncio.gather(*self.called, return_exceptions=True)
        octets = openapi_octets() if target == b"/openapi.json" else json.dumps({**SAID, "said": self.said}).encode()
        status = 200 if target == b"/openapi.json" else self.status
        first = f"HTTP/1.1 {status} x\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: {len(octets)}\r\n\r\n"
        writer.write(first.encode() + (b"" if head[:5] == b"HEAD " else octets))

    async def amqp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Say that all is well."""
        self._serve(writer)
        with contextlib.suppress(OSError):
            first = await reader.read(1 << 16)
            writer.write(TUNED_010 if first[:6] == b"AMQP\x01\x01" else TUNED)
            while octets := await reader.read(1 << 16):
                writer.write(octets)
                await writer.drain()


def _urls(body: bytes) -> list[str]:
    with contextlib.suppress(ValueError):
        found = json.loads(body)
        if isinstance(found, dict):
            auth = found.get("auth")
            urls = [found.get("url"), auth.get("token_url") if isinstance(auth, dict) else None]
            return [url for url in urls if isinstance(url, str)]
    return []


async def _call(url: str) -> None:
    with contextlib.suppress(OSError, ValueError, TimeoutError):
        parts = urlsplit(url)
        if parts.hostname in ("127.0.0.1", "localhost", "::1", "127.0.0.2") and parts.port:
            async with asyncio.timeout(0.2):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
                writer.close()


@contextlib.asynccontextmanager
async def faked(fake: Fake, folder: Path) -> AsyncIterator[Target]:
    """Serve as long as the block; yields the target of attacks."""
    target = Target(free_port(), free_port(), free_port(), folder, free_port())
    servers = [
        await asyncio.start_server(serve, "127.0.0.1", port, limit=1 << 22)
        for serve, port in ((fake.http, target.port), (fake.http, target.ops_port), (fake.amqp, target.amqp_port))
    ]
    try:
        yield target
    finally:
        for server in servers:
            server.close()
        await fake.close()
