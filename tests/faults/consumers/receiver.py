"""An endpoint for webhooks: it takes messages as a good receiver does, and fails as its :class:`Temper` says.

It is a server in this process with a port of its own. To kill it is to close that port and to reset every connection,
as the system does for a process that is killed. A request that it cannot answer, because it was killed or because the
gateway hung up, was an attempt without success: the message must come again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any, Final

from tests.faults.checker import History, Reception, Settled
from tests.faults.consumers.lanes import Lane
from tests.faults.consumers.messages import digest_received
from tests.faults.consumers.pulls import Consumers
from tests.servers.process import HOST, free_port

BODY: Final = b'{"taken": true, "by": "a receiver of the tests"}'
HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nServer: tests\r\n"
    + f"Content-Length: {len(BODY)}\r\n\r\n".encode()
)
"""Of an answer that may be cut off anywhere."""
REFUSED: Final = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
DEADLINE: Final = 2.0
"""How long the gateway waits for an answer, as the endpoint is configured."""
ON_THE_WAY: Final = 1.0
"""How much of that may have passed before a request is read here."""
LATE: Final = 1.0
"""How long after that a late receiver answers."""
_NEEDED: Final = ("webhook-id", "webhook-timestamp", "webhook-signature")


class _Link(asyncio.StreamReaderProtocol):
    """A connection that knows when the other side hung up."""

    gone: float | None = None

    def eof_received(self) -> bool | None:
        self.gone = self.gone or time.monotonic()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = self.gone or time.monotonic()
        super().connection_lost(exc)


class Receiver(Consumers):
    """The consumers of a lane that is pushed to."""

    def __init__(self, lane: Lane, history: History, seed: int) -> None:
        super().__init__(lane, history, free_port(), seed)
        self.cut = 0
        """Answers that were cut off."""
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._works: set[asyncio.Task[None]] = set()
        self._seen: set[str] = set()

    @property
    def url(self) -> str:
        """Where the gateway posts to."""
        return f"http://{HOST}:{self.port}/{self.lane.slug}"

    async def begin(self) -> None:
        self._stopped.clear()
        self._server = await asyncio.get_running_loop().create_server(self._link, HOST, self.port)

    def _link(self) -> _Link:
        link: _Link
        reader = asyncio.StreamReader(limit=1 << 20)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._works.add(task)
            self._links.add(link)
            try:
                await self._serve(link, reader, writer)
            except (OSError, EOFError):
                pass  # the gateway hung up between two requests, or in the middle of one
            except asyncio.CancelledError:
                pass  # killed
            except Exception as error:  # said at the end of the run
                self.complaints.append(f"the receiver broke: {error!r}")
            finally:
                writer.transport.abort()
                self._works.discard(task)
                self._links.discard(link)

        link = _Link(reader, serve)
        return link

    async def abandon(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        works = list(self._works)
        for task in works:
            task.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    async def stop(self) -> None:
        """End it. The gateway should have nothing for it any more."""
        self._stopped.set()
        while self.open:
            await asyncio.sleep(0.01)
        await self.abandon()

    # ---------------------------------------------------------------------------------------------- work

    async def _serve(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            headers = _headers(await reader.readuntil(b"\r\n\r\n"))
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            await self._take(link, writer, headers, body)

    async def _take(self, link: _Link, writer: asyncio.StreamWriter, headers: Mapping[str, str], body: bytes) -> None:
        """One request."""
        missing = [name for name in _NEEDED if not headers.get(name)]
        if missing:
            self.complaints.append(f"a request without {', '.join(missing)}")
        envelope = json.loads(body)
        if envelope["id"] != headers.get("webhook-id"):
            self.complaints.append(f"webhook-id {headers.get('webhook-id')} of the delivery {envelope['id']}")
        reception = self._reception(envelope)
        self.open += 1
        try:
            await self._answer(link, writer, reception)
        finally:
            self.open -= 1
            if reception.until is None:
                reception.until = link.gone or time.monotonic()

    def _reception(self, envelope: Mapping[str, Any]) -> Reception:
        message = envelope["message"]
        now = time.monotonic()
        reception = Reception(
            id=message["properties"].get("message_id", ""),
            digest=digest_received(message),
            gateway_id=message["id"],
            redelivered=envelope["redelivered"],
            resent=envelope["resent"],
            attempt=envelope["delivery_attempt"] or 1 + envelope["redelivered"],
            delivery=envelope["id"],
            since=now,
            ends=now + DEADLINE - ON_THE_WAY,
        )
        return self.history.receive(reception)

    async def _answer(self, link: _Link, writer: asyncio.StreamWriter, reception: Reception) -> None:
        rng, temper = self.random, self.temper
        first = reception.id not in self._seen
        self._seen.add(reception.id)
        if temper.late > 0:
            temper.late -= 1
            await asyncio.sleep(DEADLINE + LATE)
        elif temper.cuts:
            octets = (HEAD + BODY)[: temper.cuts.popleft()]
            self.cut += 1
            if len(octets) >= len(HEAD):  # whoever has read that it is a 2xx may be content
                reception.settled = Settled.UNCLEAR
            reception.until = time.monotonic()
            writer.write(octets)
            with contextlib.suppress(OSError):
                await writer.drain()
            if self.cut % 2:
                writer.close()
            else:
                writer.transport.abort()
            raise EOFError
        elif temper.hold:
            await asyncio.sleep(rng.expovariate(0.7 / temper.hold))
        if link.gone is not None:
            self.answers["hung up"] += 1
            raise EOFError
        reception.until = time.monotonic()
        refused = first and rng.random() < temper.refuse
        self.answers["500" if refused else "200"] += 1
        if not refused:
            reception.settled = Settled.ACKED
        writer.write(REFUSED if refused else HEAD + BODY)
        await writer.drain()


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}
