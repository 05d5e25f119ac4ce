"""A gateway as a process, with small totals, and what its clients do."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from tests.faults.harness import GatewayProcess
from tests.faults.http import Answer, Http
from tests.ledgers import sqlite_ledger
from tests.servers.process import ROOT, free_port

MEBIBYTE = 1 << 20
CLIENTS = ("alice", "bob", "root")
SETTINGS: dict[str, Any] = {
    "embedded": {"enabled": True, "connections_per_address": 4_096},
    "http": {
        "concurrency": 200, "connections": 1_000, "leases_max": 400, "leases_bytes_max": 16 * MEBIBYTE,
        "bodies_max": 16 * MEBIBYTE, "body_max": MEBIBYTE, "body_idle": 300.0, "body_rate": 0, "body_timeout": 600.0,
        "idle_timeout": 600.0, "head_timeout": 600.0,
    },
    "outbound": {"allow": ["127.0.0.0/8", "localhost", "*.silent.example"], "plain": True},
    "budgets": {
        "totals": {
            "streams": 100, "outbound_requests": 128, "scheduled": 40_000, "scheduled_bytes": 400 * MEBIBYTE,
            "idempotency_keys": 40_000, "subscriptions": 10_000, "endpoints": 10_000,
        },
        "shares": {
            "scheduled": 0.0025, "scheduled_bytes": 0.0025, "idempotency_keys": 0.01, "subscriptions": 0.0025,
            "endpoints": 0.0025,
        },
        "clients": {"bob": 0.5, "root": 0.8},
    },
}  # fmt: skip
"""Small totals, so that they are quickly in use; and patience, so that what is held stays held."""


class SlowNames(GatewayProcess):
    """A gateway whose name server says nothing of ``*.silent.example`` as long as there is no file ``answer``."""

    def configure(self, tables: Mapping[str, Any]) -> None:
        """Write the configuration file."""
        self.config = self.folder / "gateway.json"
        http = {**tables["http"], "port": self.port}
        self.config.write_text(json.dumps({**tables, "http": http, "ops": {"port": self.ops_port}}))

    def _spawn(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.budgets.silent", str(self.folder / "answer"), *arguments]
        command += ["--config", str(self.config)]
        with self._log.open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=self._environ, stdout=log, stderr=log)


class Lab:
    """The gateway, its clients, and a server that they have endpoints at."""

    def __init__(self, process: GatewayProcess, hooks: Hooks) -> None:
        self.process = process
        self.hooks = hooks
        self._https = {name: Http(process.port) for name in CLIENTS}
        self._numbers = iter(range(1, 1 << 30))

    def number(self) -> int:
        """One that was not there before."""
        return next(self._numbers)

    async def ask(
        self, client: str, method: str, path: str, body: Any = None, *, http: Http | None = None, **headers: str
    ) -> Answer:
        """A request of a client, on its own connection or ``http``."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await (http or self._https[client]).request(method, path, body, {"x-api-key": key_of(client), **named})

    async def must(self, client: str, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The JSON of a request that succeeds."""
        answer = await self.ask(client, method, path, body, **headers)
        assert answer.status < 300, (method, path, answer.status, answer.body)
        return answer.json()

    async def budget(self, resource: str) -> Mapping[str, Any]:
        """How a budget stands."""
        found = (await self.must("root", "GET", "/v1/budgets"))["budgets"]
        (budget,) = [each for each in found if each["resource"] == resource]
        return dict(budget)

    @asynccontextmanager
    async def connection(self, data: bytes = b"", port: int = 0) -> AsyncIterator[asyncio.StreamReader]:
        """A connection on which this was sent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port or self.process.port)
        try:
            writer.write(data)
            yield reader
        finally:
            writer.transport.abort()

    async def prepare(self) -> None:
        """A queue and a subscription for each client, and endpoints."""
        for name in ("alice", "bob"):
            await self.must("root", "PUT", f"/v1/brokers/local-0-9-1/queues/{name}", {"durable": False})
            settings = {"broker": "local-0-9-1", "queue": name, "ack_deadline_seconds": 600}
            await self.must("root", "PUT", f"/v1/subscriptions/{name}", settings)
            await self.must("root", "PUT", f"/v1/endpoints/{name}-quick", {"url": self.hooks.url("quick")})
        await self.must("root", "PUT", "/v1/endpoints/alice-slow", {"url": self.hooks.url("slow"), "deadline": 120})

    def close(self) -> None:
        """End the connections of the clients."""
        for http in self._https.values():
            http.close()


def key_of(client: str) -> str:
    """The key of a client."""
    return f"key-of-{client}-{'x' * 24}"


def head(method: str, path: str, client: str, *more: str) -> bytes:
    """The head of a request."""
    lines = (f"{method} {path} HTTP/1.1", "Host: localhost", f"X-Api-Key: {key_of(client)}", *more)
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


class Hooks:
    """Endpoints: ``quick`` answers at once, ``slow`` when it is told to."""

    def __init__(self) -> None:
        self._slow: set[asyncio.StreamWriter] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self.is_slow = True
        self.port = 0

    def url(self, name: str) -> str:
        """Of an endpoint."""
        return f"http://localhost:{self.port}/{name}"

    def release(self) -> None:
        """End all requests to ``slow``, and answer at once those that come again."""
        self.is_slow = False
        for writer in self._slow:
            writer.transport.abort()
        self._slow.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        while True:
            try:
                first = await reader.readuntil(b"\r\n\r\n")
                length = [line for line in first.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                await reader.readexactly(int(length[0].partition(b":")[2]) if length else 0)
            except (asyncio.IncompleteReadError, OSError):
                return
            if b"/slow" in first and self.is_slow:
                self._slow.add(writer)
                return
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve as long as the block."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            self.release()
            server.close()
            for writer in self._open:
                writer.transport.abort()
            await asyncio.sleep(0.05)  # until they are closed


@contextmanager
def gateway(runs: int) -> Iterator[GatewayProcess]:
    """A gateway with keys for the clients, and for as many clients as there are runs."""
    with tempfile.TemporaryDirectory(prefix="gateway-budgets-") as name:
        folder = Path(name)
        sqlite_ledger(folder / "data")
        everything = ["publish:local-0-9-1/*", "consume:local-0-9-1/*", "subscribe:local-0-9-1/*", "endpoint:*"]
        keys = [
            {"name": name, "key": key_of(name), "scopes": ["admin"] if name == "root" else everything}
            for name in (*CLIENTS, *(f"alice-{run}" for run in range(runs)))
        ]
        tables = {**SETTINGS, "data_dir": str(folder / "data"), "api_keys": keys}
        tables["embedded"] = {**SETTINGS["embedded"], "port": free_port()}
        process = SlowNames(folder, tables)
        process.start()
        try:
            yield process
            process.terminate()
        finally:
            process.close()


@asynccontextmanager
async def opened(process: GatewayProcess) -> AsyncIterator[Lab]:
    """The lab around a gateway."""
    hooks = Hooks()
    async with hooks.serving():
        lab = Lab(process, hooks)
        try:
            await lab.prepare()
            yield lab
        finally:
            lab.close()


async def until(condition: Any, within: float = 10.0) -> None:
    """Wait for what an awaitable says."""
    async with asyncio.timeout(within):
        while not await condition():
            await asyncio.sleep(0.02)


async def together(*awaitables: Awaitable[Any]) -> list[Any]:
    """All of their results."""
    return list(await asyncio.gather(*awaitables))
