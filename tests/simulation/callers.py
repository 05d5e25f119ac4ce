"""A caller over HTTP on the network in memory, which may hang up at any moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from tests.faults.http import Answer, Hung, NoAnswer, NotSent


class _Exchange(asyncio.Protocol):
    """One request and its answer."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.octets = bytearray()
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.octets += data
        head, found, body = bytes(self.octets).partition(b"\r\n\r\n")
        if not found or self.answer.done():
            return
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if len(body) >= int(headers.get("content-length", "0")):
            self.answer.set_result(Answer(int(status.split()[1]), headers, body))

    def eof_received(self) -> bool:
        self.connection_lost(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answer.done():
            self.answer.set_exception(NoAnswer("the connection ended"))
            self.answer.exception()


async def request(
    port: int,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    within: float = 60.0,
    hang_up: float | None = None,
) -> Answer:
    """Send a request on a connection of its own, and return the answer. ``hang_up``: after how many seconds the caller
    goes away.

    Raises:
        NotSent, NoAnswer, Hung: as in :mod:`tests.faults.http`.
    """
    octets = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(octets)}"]
    lines += ["content-type: application/json"] if octets else []
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    exchange = _Exchange("\r\n".join([*lines, "", ""]).encode() + octets)
    try:
        async with asyncio.timeout(within):
            transport, _ = await asyncio.get_running_loop().create_connection(lambda: exchange, "127.0.0.1", port)
    except (OSError, TimeoutError) as error:
        raise NotSent(str(error)) from None
    try:
        async with asyncio.timeout(within if hang_up is None else hang_up):
            return await exchange.answer
    except TimeoutError:
        if hang_up is None:
            raise Hung(f"no answer in {within:g} s") from None
        raise NoAnswer("the caller hung up") from None
    finally:
        transport.abort() if hang_up is not None else transport.close()
