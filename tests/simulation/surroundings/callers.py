"""A caller over HTTP on the network in memory, which may hang up at any moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from tests.faults.http import Answer, Hung, NoAnswer, NotSent

WITHIN: Final = 60.0
"""How long any request may take before it counts as hung, in seconds."""


class _Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self) -> None:
        self.octets = bytearray()
        self.answer: asyncio.Future[Answer] | None = None
        self.transport: Any = None
        self.is_lost = False

    def ask(self, request: bytes) -> asyncio.Future[Answer]:
        """Send a request. The future has its answer."""
        self.octets.clear()
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.octets += data
        if self.answer is None or self.answer.done():
            return
        head, found, body = bytes(self.octets).partition(b"\r\n\r\n")
        if not found:
            return
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if len(body) >= int(headers.get("content-length", "0")):
            self.is_lost = self.is_lost or headers.get("connection", "") == "close"
            self.answer.set_result(Answer(int(status.split()[1]), headers, body))

    def eof_received(self) -> bool:
        self.connection_lost(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(NoAnswer("the connection ended"))
            self.answer.exception()


class Caller:
    """A caller that keeps its connection from request to request, while it lasts."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection: _Connection | None = None

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        within: float = WITHIN,
        hang_up: float | None = None,
    ) -> Answer:
        """Send a request, and return the answer. ``hang_up``: after how many seconds the caller goes away.

        Raises:
            NotSent, NoAnswer, Hung: as in :mod:`tests.faults.http`.
        """
        octets = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(octets)}"]
        lines += ["content-type: application/json"] if octets else []
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        connection = self._connection
        if connection is None or connection.is_lost:
            self.close()
            try:
                async with asyncio.timeout(within):
                    _, connection = await asyncio.get_running_loop().create_connection(
                        _Connection, "127.0.0.1", self.port
                    )
            except (OSError, TimeoutError) as error:
                raise NotSent(str(error)) from None
            self._connection = connection
        answer = connection.ask("\r\n".join([*lines, "", ""]).encode() + octets)
        try:
            async with asyncio.timeout(within if hang_up is None else hang_up):
                return await answer
        except TimeoutError:
            self._connection = None
            connection.transport.abort()
            if hang_up is None:
                raise Hung(f"no answer in {within:g} s") from None
            raise NoAnswer("the caller hung up") from None

    def close(self) -> None:
        """Let go of the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.transport.close()
