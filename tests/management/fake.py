"""A management API that answers as a test says, on a port of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Answer = bytes | tuple[int, Any] | None
"""Octets as they go out, a status and a JSON body, or nothing at all."""


class Management:
    """The server. ``answer`` gets the target of each request; what it returns is sent."""

    def __init__(self, answer: Callable[[str], Answer]) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.logins: set[str] = set()
        self.pause = 0.0
        """How long each answer takes, in seconds."""
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                self.logins |= {line.split(" ")[-1] for line in head if line.lower().startswith("authorization:")}
                target = head[0].split(" ")[1]
                self.asked.append(target)
                await asyncio.sleep(self.pause)
                answer = self.answer(target)
                if answer is None:
                    await asyncio.sleep(60)
                elif isinstance(answer, bytes):
                    writer.write(answer)
                    await writer.drain()
                    return
                else:
                    writer.write(octets(*answer))
                    await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            return
        finally:
            writer.close()


def octets(status: int, body: Any, *more: str) -> bytes:
    """An answer with a JSON body."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"HTTP/1.1 {status} X", f"content-length: {len(text)}", "content-type: application/json", *more]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + text


@asynccontextmanager
async def management(answer: Callable[[str], Answer]) -> AsyncIterator[Management]:
    """One that runs as long as the block."""
    found = Management(answer)
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()


def rabbitmq(rows: list[dict[str, Any]], vhost: str = "/") -> Callable[[str], Answer]:
    """What RabbitMQ answers that has these queues."""

    def answer(target: str) -> Answer:
        parts = urlsplit(target)
        if unquote(parts.path) != f"/api/queues/{vhost}":
            return 404, {"error": "Object Not Found", "reason": "Not Found"}
        query = parse_qs(parts.query)
        page, size = int(query["page"][0]), int(query["page_size"][0])
        assert size <= 500, "RabbitMQ refuses larger pages"
        pages = max(1, -(-len(rows) // size))
        if page > pages:
            return 400, {"error": "page_out_of_range", "reason": "Page out of range"}
        items = sorted(rows, key=lambda row: str(row["name"]))[(page - 1) * size : page * size]
        return 200, {"items": items, "page": page, "page_count": pages, "total_count": len(rows)}

    return answer
