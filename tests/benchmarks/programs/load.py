"""HTTP requests in a loop: raw sockets on uvloop, requests put together beforehand, answers parsed in C (httptools).

Each connection sends a request, waits for the whole answer, looks at it, and sends the next: the load of as many
callers as there are connections. What a request is and what its answer must be, a :class:`Script` says. The clock of
one piece of work runs from its first request to its last answer.
"""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import Callable, Generator, Mapping
from typing import Any

import httptools
import msgspec
import uvloop

from tests.benchmarks.programs.clock import percentile

Exchange = Generator[bytes, tuple[int, bytes], int]
"""One piece of work: yields requests, is sent status and body of each answer, returns how many messages it was;
0: there is no more to do."""


class Wrong(Exception):
    """An answer is not as it must be."""


class Connection(asyncio.Protocol):
    """One connection and the work on it; opened again where the server closes it behind an answer."""

    def __init__(self, port: int, script: Callable[[], Exchange], run: Run) -> None:
        self.port, self.script, self.run = port, script, run
        self.over: asyncio.Future[None] = run.loop.create_future()
        self.opening: asyncio.Task[None] | None = None

    async def open(self, request: bytes | None = None) -> None:
        """Connect and begin, or go on with a request."""
        transport, _ = await self.run.loop.create_connection(lambda: self, "127.0.0.1", self.port)
        self.transport = transport
        if request is None:
            self._begin()
        else:
            self._write(request)

    def _begin(self) -> None:
        """The next piece of work, where there is time for one."""
        self.began = now = time.perf_counter()
        if now >= self.run.until:
            self._end()
            return
        self.exchange = self.script()
        self._send(next(self.exchange))

    def _send(self, request: bytes) -> None:
        if self.transport.is_closing():
            self.opening = self.run.loop.create_task(self.open(request))
        else:
            self._write(request)

    def _write(self, request: bytes) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.body = b""
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(error)

    def on_body(self, body: bytes) -> None:
        """A piece of the answer."""
        self.body += body

    def on_message_complete(self) -> None:
        """The answer is whole. What follows is not done from within the parser."""
        if not self.parser.should_keep_alive():
            self.transport.close()
        self.run.loop.call_soon(self._answered, self.parser.get_status_code(), self.body)

    def _answered(self, status: int, body: bytes) -> None:
        try:
            request = self.exchange.send((status, body))
        except StopIteration as stop:
            if stop.value:
                self.run.done(stop.value, time.perf_counter() - self.began)
                self._begin()
            else:
                self._end()
        except Wrong as error:
            self._end(error)
        else:
            self._send(request)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._end(exc)

    def eof_received(self) -> None:
        if not self.transport.is_closing():
            self._end(ConnectionError("the server hung up in the middle of an answer"))

    def _end(self, error: BaseException | None = None) -> None:
        if self.over.done():
            return
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)
        self.transport.close()


class Run:
    """All connections of one sample."""

    def __init__(self, seconds: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.until = time.perf_counter() + seconds
        self.number = 0
        self.times: list[float] = []

    def done(self, number: int, seconds: float) -> None:
        """A piece of work is done."""
        self.number += number
        self.times.append(seconds)


# --------------------------------------------------------------------------------------------------- scripts


def request(job: Mapping[str, Any], path: str, body: Any) -> bytes:
    """A POST, whole."""
    octets = json.dumps(body).encode()
    login = b64encode(b"guest:guest").decode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{job['port']}\r\nContent-Type: application/json\r\n"
    if job["login"]:
        head += f"Authorization: Basic {login}\r\n"
    return f"{head}Content-Length: {len(octets)}\r\n\r\n".encode() + octets


def once(octets: bytes, status: int, number: int, wanted: bytes) -> Exchange:
    """One request whose answer has this status, and these octets so many times."""
    found, body = yield octets
    if found != status or body.count(wanted) != number:
        # Of a batch, the first result that is not as wanted.
        odd = next((part for part in body.split(b"},{") if wanted not in part), body)
        raise Wrong(f"{number} of {wanted!r} wanted, found status {found}: {odd[:300]!r}")
    return number


def publish(job: Mapping[str, Any]) -> Callable[[], Exchange]:
    """One message, or a batch, to the gateway: confirmed, and in the ledger."""
    message = {"routing_key": job["queue"], "payload": "x" * job["size"], "mandatory": True}
    message["properties"] = {"content_type": "text/plain", "delivery_mode": 2}
    count = job["count"]
    body = message if count == 1 else {"messages": [message] * count}
    octets = request(job, "/v1/brokers/rabbit/exchanges/amq.default:publish", body)
    return lambda: once(octets, 200 if count == 1 else 207, count, b'"routed":true')


def management_publish(job: Mapping[str, Any]) -> Callable[[], Exchange]:
    """One message to the management API, which waits for the broker's confirm as well."""
    body = {
        "routing_key": job["queue"],
        "payload": "x" * job["size"],
        "payload_encoding": "string",
        "properties": {"content_type": "text/plain", "delivery_mode": 2},
    }
    octets = request(job, "/api/exchanges/%2F/amq.default/publish", body)
    return lambda: once(octets, 200, 1, b'"routed":true')


class _Pulled(msgspec.Struct):
    ack_id: str


class _Pull(msgspec.Struct):
    messages: list[_Pulled]


def pull(job: Mapping[str, Any]) -> Callable[[], Exchange]:
    """Pull some messages, then acknowledge all of them in one request."""
    path = f"/v1/subscriptions/{job['queue']}"
    first = request(job, f"{path}:pull", {"max_messages": job["count"], "wait": 0})
    decode = msgspec.json.Decoder(_Pull).decode

    def script() -> Exchange:
        status, body = yield first
        if status != 200:
            raise Wrong(f"pull: status {status}: {body[:300]!r}")
        ids = [message.ack_id for message in decode(body).messages]
        if not ids:
            return 0
        status, body = yield request(job, f"{path}:acknowledge", {"ack_ids": ids})
        if status != 200 or body.count(b'"SUCCESS"') != len(ids):
            raise Wrong(f"acknowledge: status {status}: {body[:300]!r}")
        return len(ids)

    return script


def management_get(job: Mapping[str, Any]) -> Callable[[], Exchange]:
    """Get some messages, acknowledged by the broker as it hands them over."""
    body = {"count": job["count"], "ackmode": "ack_requeue_false", "encoding": "auto"}
    octets = request(job, f"/api/queues/%2F/{job['queue']}/get", body)

    def script() -> Exchange:
        status, found = yield octets
        if status != 200:
            raise Wrong(f"get: status {status}: {found[:300]!r}")
        return found.count(b'"payload_bytes"')

    return script


SCRIPTS: Mapping[str, Callable[[Mapping[str, Any]], Callable[[], Exchange]]] = {
    "publish": publish,
    "management-publish": management_publish,
    "pull": pull,
    "management-get": management_get,
}


async def _run(job: Mapping[str, Any]) -> dict[str, Any]:
    script = SCRIPTS[job["script"]](job)
    began = time.perf_counter()
    run = Run(job["seconds"])
    connections = [Connection(job["port"], script, run) for _ in range(job["connections"])]
    async with asyncio.timeout(job["seconds"] + job["patience"]):
        await asyncio.gather(*(connection.open() for connection in connections))
        await asyncio.gather(*(connection.over for connection in connections))
    seconds = time.perf_counter() - began
    times = sorted(run.times)
    if not times:
        raise Wrong("nothing was done in time")
    return {
        "number": run.number,
        "seconds": seconds,
        "p50": percentile(times, 0.5),
        "p99": percentile(times, 0.99),
    }


def main(job: dict[str, Any]) -> dict[str, Any]:
    """The program."""
    return uvloop.run(_run(job))
