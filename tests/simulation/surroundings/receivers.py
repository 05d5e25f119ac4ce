"""A receiver of webhooks on the network in memory, which refuses, is slow, or does not answer at all."""

from __future__ import annotations

import asyncio
import hmac
import json
import random
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final

from tests.faults.checker import Reception, Settled

ANSWERS: Final = {200: "OK", 429: "Too Many Requests", 500: "Internal Server Error", 503: "Service Unavailable"}


class Receiver:
    """All endpoints of a world, each at a path that is the name of its route."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        chance: random.Random,
        clumsy: float,
        received: Callable[[str, dict[str, Any]], Reception],
        note: Callable[..., None],
    ) -> None:
        self.loop, self.chance, self.clumsy, self.received, self.note = loop, chance, clumsy, received, note
        self.calm = False
        """From now on it takes everything."""
        self.keys: dict[str, list[bytes]] = {}
        """Route -> the keys of which each request has a signature of one at least; of others none is looked at."""
        self.unsigned: list[str] = []
        """``webhook-id`` of requests that had none."""

    def protocol(self) -> asyncio.Protocol:
        """One connection."""
        return _Requests(self)

    def check(self, route: str, headers: dict[str, str], body: bytes) -> None:
        """Look whether a request has a signature that the receiver can verify."""
        if not (keys := self.keys.get(route)):
            return
        id = headers["webhook-id"]
        text = f"{id}.{headers['webhook-timestamp']}.".encode() + body
        given = headers.get("webhook-signature", "").split()
        if all(f"v1,{b64encode(hmac.digest(key, text, 'sha256')).decode()}" not in given for key in keys):
            self.unsigned.append(id)

    def draw(self) -> tuple[int, float]:
        """The next answer, and after how many seconds; 0: it hangs up instead, negative: it stays silent."""
        chance = self.chance
        seconds = chance.choice((0.0, 0.0, 0.01, 0.2))
        if self.calm or chance.random() >= self.clumsy:
            return 200, seconds
        return chance.choice((429, 500, 503, 0, 0, -1)), seconds


class _Requests(asyncio.Protocol):
    """The requests of one connection, one at a time."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.octets = bytearray()
        self.transport: Any = None
        self.timer: asyncio.TimerHandle | None = None
        self.held: Reception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.octets += data
        head, found, body = bytes(self.octets).partition(b"\r\n\r\n")
        if not found:
            return
        line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
        if len(body) < int(headers.get("content-length", "0")):
            return
        self.octets.clear()
        receiver = self.receiver
        route = line.split()[1].removeprefix("/")
        status, seconds = receiver.draw()
        receiver.check(route, headers, body)
        self.held = receiver.received(route, {**json.loads(body), "webhook_id": headers["webhook-id"]})
        if status >= 0:
            self.timer = receiver.loop.call_later(seconds, self._answer, status)

    def _answer(self, status: int) -> None:
        reception, self.held = self.held, None
        assert reception is not None
        if reception.until is None:
            reception.until = self.receiver.loop.time()
        self.receiver.note("answer", reception.id, status or "hangs up")
        if status:
            # A receiver that answers 2xx has the message; the gateway may not get to know.
            reception.settled = Settled.ACKED if status == 200 else Settled.RELEASED
            self.transport.write(f"HTTP/1.1 {status} {ANSWERS[status]}\r\ncontent-length: 0\r\n\r\n".encode())
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.held is not None and self.held.until is None:
            self.held.until = self.receiver.loop.time()
        self.held = None
