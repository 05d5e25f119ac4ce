"""A small HTTP/1.1 client on one connection, which says what a failure means: was the request written, or not?

For a publisher that is the whole question. What could not be written was not sent (:class:`NotSent`); what was
written and has no whole answer may have been done or not (:class:`NoAnswer`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests import canary


class NotSent(Exception):
    """Nothing was written: nobody listens."""


class NoAnswer(Exception):
    """The request was written, at least in part, and no whole answer came."""


class Hung(NoAnswer):
    """No answer came in the time in which there must be one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, decoded; an empty object where there is none."""
        return json.loads(self.body) if self.body else {}


class Http:
    """One client of ``127.0.0.1:port``; one request at a time. A lost connection is made anew by the next request."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, within: float = 60.0
    ) -> Answer:
        """Send a request and read its answer.

        Args:
            body: octets as they are, anything else as JSON; None: none.
            within: seconds after which the request counts as hung.

        Raises:
            NotSent, NoAnswer, Hung: see above.
        """
        octets = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", f"Content-Length: {len(octets)}"]
        if body is not None and not isinstance(body, bytes):
            lines.append("Content-Type: application/json")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        request = "\r\n".join(lines).encode() + b"\r\n\r\n" + octets
        try:
            async with asyncio.timeout(within):
                reader, writer = await self._connect()
                try:
                    writer.write(request)
                    await writer.drain()
                    return await self._read(reader)
                except (OSError, EOFError, ValueError) as error:
                    raise NoAnswer(repr(error)) from error
        except TimeoutError:
            raise Hung(f"{method} {path}: no answer in {within:g} s") from None
        finally:
            if self._reader is not None and (self._reader.at_eof() or self._busy):
                self.close()

    _busy = False
    """An answer is not read to its end: nothing else can be asked on this connection."""

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is not None and self._reader.at_eof():
            self.close()
        if self._reader is None or self._writer is None:
            try:
                self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
            except OSError as error:
                raise NotSent(str(error)) from error
        self._busy = True
        return self._reader, self._writer

    async def _read(self, reader: asyncio.StreamReader) -> Answer:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *rest = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in rest:
            name, _, value = line.partition(":")
            if name:
                headers[name.strip().lower()] = value.strip()
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = await self._read_chunks(reader)
        else:
            body = await reader.readexactly(int(headers.get("content-length", 0)))
        self._busy = False
        canary.look(body, "an answer")
        if headers.get("connection", "").lower() == "close":
            self.close()
        return Answer(int(first.split()[1]), headers, body)

    async def _read_chunks(self, reader: asyncio.StreamReader) -> bytes:
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += await reader.readexactly(size)
            if await reader.readexactly(2) != b"\r\n":
                raise ValueError("a chunk is longer than it says")
        if await reader.readuntil(b"\r\n") != b"\r\n":
            raise ValueError("trailers: this client reads none")
        return body

    def reset(self) -> None:
        """Give the connection up as a process does that is killed: what was not read makes it a reset."""
        if self._writer is not None:
            self._writer.transport.abort()
        self.close()

    def close(self) -> None:
        """Give the connection up."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None
        self._busy = False
