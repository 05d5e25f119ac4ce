"""A client of HTTP/1.1 that sends the octets it is given, and reads answers of every kind."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests import canary
from tests.broker.raw import Raw

HOST: Final = "127.0.0.1"
WITHIN: Final = 15.0
"""How long an answer may take, in seconds."""
HEAD_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said; ``status`` 0: it closed the connection without an answer, or gave none in time."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the decoded body, or nothing if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def code(self) -> str:
        """The problem's code, or an empty text."""
        found = self.json()
        return str(found.get("code", "")) if isinstance(found, dict) else ""


NOTHING: Final = Answer(0, {}, b"")


async def read_answer(reader: asyncio.StreamReader, head_only: bool = False) -> Answer:
    """Read one answer, without the body of an event stream.

    Raises:
        EOFError, ValueError: there is no whole answer.
    """
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    status = int(first.split()[1])
    if status < 200:
        return await read_answer(reader, head_only)
    body = b""
    if head_only or status in (204, 304) or "event-stream" in headers.get("content-type", ""):
        pass
    elif headers.get("transfer-encoding") == "chunked":
        pieces = []
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            pieces.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
        body = b"".join(pieces)
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    canary.look(head + body, "an answer")
    return Answer(status, headers, body)


_made: Final[list[Client]] = []


def hang_up() -> None:
    """Close all connections of all clients, also those that an attack left behind when it ended early."""
    while _made:
        _made.pop().close()
    while Raw.made:
        Raw.made.pop().close()


class Client:
    """One caller of one port, on a connection that it keeps while the server does."""

    def __init__(self, port: int, key: str = "", host: str = HOST) -> None:
        self.port, self.key, self.host = port, key, host
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        _made.append(self)

    async def send(self, octets: bytes, within: float = WITHIN, head_only: bool = False) -> Answer:
        """Send octets as they are, and read one answer."""
        for _ in range(2):
            fresh = self._streams is None
            answer = NOTHING
            try:
                async with asyncio.timeout(within):
                    if self._streams is None:
                        self._streams = await asyncio.open_connection(self.host, self.port, limit=HEAD_MAX)
                    reader, writer = self._streams
                    with contextlib.suppress(ConnectionError):  # what it said before it hung up is still there
                        writer.write(octets)
                        await writer.drain()
                    answer = await read_answer(reader, head_only)
            except TimeoutError:
                fresh = True
            except (OSError, EOFError, ValueError, IndexError, asyncio.LimitOverrunError):
                pass
            if not answer.status or "close" in answer.headers.get("connection", "") or (
                "event-stream" in answer.headers.get("content-type", "")
            ):  # fmt: skip
                self.close()
            if answer.status or fresh:
                return answer
        return NOTHING

    async def ask(
        self,
        method: str,
        target: str | bytes,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        within: float = WITHIN,
    ) -> Answer:
        """Send a well-formed request with any target and headers; ``body`` is octets, or becomes JSON."""
        return await self.send(
            request(self.port, method, target, body, headers, self.key), within, head_only=method == "HEAD"
        )

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def request(
    port: int,
    method: str,
    target: str | bytes,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    key: str = "",
) -> bytes:
    """Return the octets of a request. ``headers`` replace those of the same name; ``key`` is a bearer key."""
    octets = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = {"Host": f"{HOST}:{port}"}
    if body is not None:
        lines |= {"Content-Length": str(len(octets)), "Content-Type": "application/json"}
    if key:
        lines["Authorization"] = f"Bearer {key}"
    lines |= headers or {}
    target = target if isinstance(target, bytes) else target.encode("utf-8", "surrogateescape")
    head = b"".join(f"{name}: {value}\r\n".encode("utf-8", "surrogateescape") for name, value in lines.items())
    return method.encode() + b" " + target + b" HTTP/1.1\r\n" + head + b"\r\n" + octets


async def talk(port: int, *chunks: bytes, within: float = 5.0, source: str = HOST) -> bytes:
    """Connect from an address, send octets, and return what the server says until it hangs up or ``within``
    seconds have passed."""
    said = b""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(within):
            reader, writer = await asyncio.open_connection(HOST, port, local_addr=(source, 0))
            for chunk in chunks:
                with contextlib.suppress(ConnectionError):
                    writer.write(chunk)
                    await writer.drain()
            while octets := await reader.read(1 << 16):
                said += octets
    except (OSError, TimeoutError):
        pass
    finally:
        if writer is not None:
            writer.close()
    return said


async def at_once(limit: int, works: Sequence[Awaitable[None]]) -> None:
    """Await all of them, ``limit`` at a time."""
    slots = asyncio.Semaphore(limit)

    async def one(work: Awaitable[None]) -> None:
        async with slots:
            await work

    await asyncio.gather(*(one(work) for work in works))
