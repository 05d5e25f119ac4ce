"""An HTTP server that does as the path says, well or badly, and remembers who came."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
BOMB = gzip.compress(b"\x00" * (4 << 20))
"""4 MiB in 4 kB."""


def plain(status: int, extra: str = "", body: bytes = b"") -> bytes:
    """An answer."""
    return f"HTTP/1.1 {status} x\r\n{extra}Content-Length: {len(body)}\r\n\r\n".encode() + body


ANSWERS: dict[str, bytes] = {
    "/200": OK,
    "/201": plain(201),
    "/204": b"HTTP/1.1 204 No Content\r\n\r\n",
    "/302": plain(302, "Location: /200\r\n"),
    "/404": plain(404, body=b"no such hook"),
    "/410": plain(410),
    "/429": plain(429, "Retry-After: 120\r\n"),
    "/500": plain(500, body=b"oh"),
    "/503": plain(503, "Retry-After: Wed, 21 Oct 2015 07:28:00 GMT\r\n"),
    "/cookie": plain(200, "Set-Cookie: a=b\r\n"),
    "/chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "/interim": b"HTTP/1.1 103 Hints\r\nLink: </x>\r\n\r\n" + OK,
    "/twice": OK + OK,
    "/gzip-bomb": plain(200, "Content-Encoding: gzip\r\n", BOMB),
    "/many-headers": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 100_000 + b"\r\n",
    "/long-header": b"HTTP/1.1 200 OK\r\na: " + b"b" * 1_000_000 + b"\r\n\r\n",
    "/not-http": b"SSH-2.0-OpenSSH_9.9\r\n",
    "/http2": b"HTTP/2 200\r\n\r\n",
    "/upgrade": b"HTTP/1.1 101 x\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
}
"""Answers after which the connection is kept open."""
THEN_CLOSED: dict[str, bytes] = {
    "/until-end": b"HTTP/1.1 200 OK\r\n\r\nok",
    "/half-head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "/half-body": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
    "/hang-up": b"",
    "/close": b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
    "/kept-then-closed": OK,
}
"""Answers after which the server hangs up."""
DRIPS: dict[str, tuple[bytes, bytes]] = {
    "/drip-head": (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    "/drip-body": (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", b"x" * 100),
    "/drip-interim": (b"", b"HTTP/1.1 103 x\r\n\r\n" * 100),
}
"""What is sent at once, and what octet by octet."""


@dataclass
class Request:
    """What came."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int


@dataclass
class Endpoint:
    """The server, and all that it saw."""

    port: int = 0
    connections: int = 0
    sent: int = 0
    """Octets of endless bodies that were taken from it."""
    requests: list[Request] = field(default_factory=list)
    serving: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)

    def url(self, path: str, scheme: str = "http", host: str = "127.0.0.1") -> str:
        """Where it does this."""
        return f"{scheme}://{host}:{self.port}{path}"

    def paths(self) -> list[str]:
        """Paths that were asked for."""
        return [request.line.split()[1] for request in self.requests]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.serving[task] = writer
        number = self.connections
        try:
            while True:
                request = await self._read(reader, number)
                self.requests.append(request)
                if not await self._answer(request, reader, writer):
                    break
            writer.close()
            await writer.wait_closed()
        except (
            ConnectionError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            ssl.SSLError,
            asyncio.CancelledError,
        ):
            writer.transport.abort()
        finally:
            del self.serving[task]

    async def close(self) -> None:
        """End all connections."""
        for task, writer in self.serving.items():
            writer.transport.abort()
            task.cancel()
        if self.serving:
            await asyncio.wait(list(self.serving))
        await asyncio.sleep(0)  # what was aborted is closed

    async def _read(self, reader: asyncio.StreamReader, number: int) -> Request:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *rest = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in rest)}
        length = 0 if line.split()[1] == "/hasty" else int(headers.get("content-length", 0))
        return Request(line, headers, await reader.readexactly(length), number)

    async def _answer(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Do it; True where another request may come."""
        path = request.line.split()[1]
        if path in ANSWERS or path == "/hasty":
            writer.write(ANSWERS.get(path, OK))
            await writer.drain()
        elif path == "/moved":
            writer.write(plain(301, f"Location: {self.url('/inside')}\r\n"))
        elif path in THEN_CLOSED:
            writer.write(THEN_CLOSED[path])
            return False
        elif path in DRIPS:
            first, rest = DRIPS[path]
            writer.write(first)
            for octet in rest:
                await asyncio.sleep(0.02)
                writer.write(bytes([octet]))
                await writer.drain()
        elif path == "/10-gb":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (10 << 30))
            while True:
                writer.write(b"x" * 65_536)
                await writer.drain()
                self.sent += 65_536
        elif path == "/endless":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
                await writer.drain()
                self.sent += 65_536
        elif path == "/never":
            await reader.read()
        elif path == "/later":
            writer.write(OK)
            await asyncio.sleep(0.02)
            writer.write(OK)
        elif path == "/reset":
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return False
        elif path == "/first-only":
            if any(each.connection == request.connection for each in self.requests[:-1]):
                return False
            writer.write(OK)
        else:
            writer.write(plain(404))
        return True


async def until(condition: Callable[[], bool], within: float = 30.0) -> None:
    """Wait until it holds, on however busy a machine."""
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def endpoint(context: ssl.SSLContext | None = None) -> AsyncIterator[Endpoint]:
    """A server on a free port of 127.0.0.1."""
    found = Endpoint()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0, ssl=context)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        await found.close()
