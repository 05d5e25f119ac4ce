"""A gateway as a process, with small totals, and what its clients do."""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.amqp.operations import SelectConfirm
from gateway.config import BrokerSettings
from gateway.link import Channel, Link
from gateway.upstreams.keeper import Dialer
from tests.faults.harness import GatewayProcess
from tests.faults.http import Answer, Http
from tests.faults.nursery import Forked
from tests.faults.proxy import Proxy
from tests.ledgers import sqlite_ledger
from tests.servers.process import free_port

MEBIBYTE = 1 << 20
CLIENTS = ("alice", "bob", "root")
ADMINS = ("root", "alice-admin", "bob-admin")
PREFETCH = 16
"""What the front has the broker send ahead for each consumer."""
SETTINGS: dict[str, Any] = {
    "embedded": {
        "enabled": True, "connections_per_address": 4_096, "connections": 800, "channels": 4_000, "exchanges": 2_000,
        "queues": 2_000, "bindings": 2_000, "consumers": 2_000, "declared_bytes": 4 * MEBIBYTE,
        "queue_memory": 64 * MEBIBYTE,
        "users": [{"name": name, "password": name} for name in ("guest", "alice", "bob", "front")],
    },
    "ledger": {"queue_max": 2_000},
    "http": {
        "concurrency": 200, "connections": 1_000, "leases_max": 400, "leases_bytes_max": 16 * MEBIBYTE,
        "bodies_max": 16 * MEBIBYTE, "body_max": MEBIBYTE, "body_idle": 300.0, "body_rate": 0, "body_timeout": 600.0,
        "idle_timeout": 600.0, "head_timeout": 600.0,
    },
    "outbound": {"allow": ["127.0.0.0/8", "localhost", "*.silent.example"], "plain": True},
    "budgets": {
        "totals": {
            "streams": 100, "outbound_requests": 128, "scheduled": 40_000, "scheduled_bytes": 400 * MEBIBYTE,
            "idempotency_keys": 40_000, "subscriptions": 10_000, "endpoints": 10_000, "front_connections": 400,
            "front_channels": 400, "front_bytes": 16 * MEBIBYTE, "front_deliveries": 4_000, "held_bytes": 16 * MEBIBYTE,
        },
        "shares": {
            "scheduled": 0.0025, "scheduled_bytes": 0.0025, "idempotency_keys": 0.01, "subscriptions": 0.0025,
            "endpoints": 0.0025, "bridges": 0.0025, "taps": 0.0025,
        },
        "clients": {"bob": 0.5, "bob-admin": 0.5, "root": 0.8, "front": 0.5},
    },
}  # fmt: skip
"""Small totals, so that they are quickly in use; and patience, so that what is held stays held."""


@dataclass(frozen=True)
class AmqpPorts:
    """Where AMQP clients of a gateway go."""

    embedded: int
    front: int
    proxy: Proxy
    """Before the broker behind the front's virtual host ``slow``."""


class SlowNames(GatewayProcess):
    """A gateway whose name server says nothing of ``*.silent.example`` as long as there is no file ``answer``."""

    module = "tests.budgets.silent"
    amqp: AmqpPorts

    def configure(self, tables: Mapping[str, Any]) -> None:
        """Write the configuration file."""
        self.config = self.folder / "gateway.json"
        http = {**tables["http"], "port": self.port}
        self.config.write_text(json.dumps({**tables, "http": http, "ops": {"port": self.ops_port}}))

    def _spawn(self, *arguments: str) -> subprocess.Popen[bytes] | Forked:
        return super()._spawn(str(self.folder / "answer"), *arguments)


class Lab:
    """The gateway, its clients, and a server that they have endpoints at."""

    def __init__(self, process: SlowNames, hooks: Hooks) -> None:
        self.process = process
        self.proxy = process.amqp.proxy
        self.hooks = hooks
        self._https = {name: Http(process.port) for name in (*CLIENTS, *ADMINS)}
        self._numbers = iter(range(1, 1 << 30))
        self._links: dict[tuple[str, bool, str], Link] = {}
        self._channels: dict[tuple[str, bool, str], Channel] = {}

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

    async def amqp(self, user: str, *, front: bool = False, host: str = "%2F") -> Link:
        """An AMQP connection of a user to the embedded broker, or to the front. Raises GatewayError."""
        port = self.process.amqp.front if front else self.process.amqp.embedded
        url = f"amqp://{user}:{user}@127.0.0.1:{port}/{host}?version=0-9-1"
        return await Dialer("budgets", BrokerSettings(url=url)).open("budgets")

    async def standing(self, user: str, *, front: bool = False, host: str = "%2F") -> Link:
        """The connection of a user that stays."""
        found = self._links.get((user, front, host))
        if found is None:
            found = self._links[user, front, host] = await self.amqp(user, front=front, host=host)
        return found

    async def standing_channel(self, user: str, *, front: bool = False, host: str = "%2F") -> Channel:
        """A channel with confirms on it."""
        found = self._channels.get((user, front, host))
        if found is None:
            link = await self.standing(user, front=front, host=host)
            found = self._channels[user, front, host] = await channel_of(link, confirms=True)
        return found

    async def prepare(self) -> None:
        """A queue and a subscription for each client, and endpoints."""
        for name in ("alice", "bob"):
            await self.must("root", "PUT", f"/v1/brokers/local-0-9-1/queues/{name}", {"durable": False})
            settings = {"broker": "local-0-9-1", "queue": name, "ack_deadline_seconds": 600}
            await self.must("root", "PUT", f"/v1/subscriptions/{name}", settings)
            await self.must("root", "PUT", f"/v1/endpoints/{name}-quick", {"url": self.hooks.url("quick")})
        await self.must("root", "PUT", "/v1/endpoints/alice-slow", {"url": self.hooks.url("slow"), "deadline": 120})
        await self.must("root", "PUT", "/v1/endpoints/bob-pushed", {"url": self.hooks.url("pushed")})
        for name in ("alice-amqp", "bob-amqp", "alice-pushed", "bob-pushed", "idle", "many", "unanswered"):
            await self.must("root", "PUT", f"/v1/brokers/local-0-9-1/queues/{name}", {"durable": False})
        for name, endpoint in (("alice-pushed", "alice-slow"), ("bob-pushed", "bob-pushed")):
            settings = {"broker": "local-0-9-1", "queue": name, "push": endpoint, "prefetch_octets": 1 << 22}
            await self.must("root", "PUT", f"/v1/subscriptions/{name}", settings)
        many = {"messages": [{"routing_key": "many"}] * 1_000}
        for _ in range(2):
            await self.must("root", "POST", "/v1/brokers/local-0-9-1/exchanges/amq.default:publish", many)

    async def close(self) -> None:
        """End the connections of the clients."""
        for link in self._links.values():
            await link.close()
        for http in self._https.values():
            http.close()


async def channel_of(link: Link, *, confirms: bool = False) -> Channel:
    """An open channel. Raises GatewayError."""
    channel = link.channel(Channel)
    await channel.open()
    if confirms:
        await channel.request(SelectConfirm(channel.number))
    return channel


async def is_held(lab: Lab, resource: str, least: int) -> bool:
    """Whether so much of it is held."""
    return bool((await lab.budget(resource))["held"] >= least)


async def is_held_at_most(lab: Lab, resource: str, most: int) -> bool:
    """Whether no more of it is held."""
    return bool((await lab.budget(resource))["held"] <= most)


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
        self.arrived = 0
        """How many requests to ``pushed`` there were."""
        self._changed = asyncio.Event()

    def url(self, name: str) -> str:
        """Of an endpoint."""
        return f"http://localhost:{self.port}/{name}"

    async def until(self, count: int) -> None:
        """Wait until there were so many."""
        while self.arrived < count:
            self._changed.clear()
            await self._changed.wait()

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
            if b"/pushed" in first:
                self.arrived += 1
                self._changed.set()
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
def gateway(runs: int) -> Iterator[SlowNames]:
    """A gateway with keys for the clients, and for as many clients as there are runs."""
    with tempfile.TemporaryDirectory(prefix="gateway-budgets-") as name:
        folder = Path(name)
        sqlite_ledger(folder / "data")
        everything = ["publish:local-0-9-1/*", "consume:local-0-9-1/*", "subscribe:local-0-9-1/*", "endpoint:*"]
        keys = [
            {"name": name, "key": key_of(name), "scopes": ["admin"] if name in ADMINS else everything}
            for name in (*CLIENTS[:2], *ADMINS, *(f"alice-{run}" for run in range(runs)))
        ]
        tables = {**SETTINGS, "data_dir": str(folder / "data"), "api_keys": keys}
        embedded, front = free_port(), free_port()
        tables["embedded"] = {**SETTINGS["embedded"], "port": embedded}
        with Proxy(embedded) as proxy:
            tables |= behind_a_front(front, {"quick": embedded, "slow": proxy.port})
            process = SlowNames(folder, tables)
            process.amqp = AmqpPorts(embedded, front, proxy)
            process.start()
            try:
                yield process
                process.terminate()
            finally:
                process.close()


def behind_a_front(port: int, brokers: Mapping[str, int]) -> dict[str, Any]:
    """Tables of a front to each of these brokers: its name is the virtual host; the first has ``/``, too."""
    hosts = {name: name for name in brokers}
    return {
        "brokers": {
            name: {"url": f"amqp://front:front@127.0.0.1:{each}/?version=0-9-1"} for name, each in brokers.items()
        },
        "fronts": {
            "test": {
                "port": port, "virtual_hosts": {"/": next(iter(brokers)), **hosts}, "prefetch_max": PREFETCH,
                "users": [{"name": name, "password": name} for name in ("alice", "bob")],
            }
        },
    }  # fmt: skip


@asynccontextmanager
async def opened(process: SlowNames) -> AsyncIterator[Lab]:
    """The lab around a gateway."""
    hooks = Hooks()
    async with hooks.serving():
        lab = Lab(process, hooks)
        try:
            await lab.prepare()
            yield lab
        finally:
            await lab.close()


async def until(condition: Any, within: float = 10.0) -> None:
    """Wait for what an awaitable says."""
    async with asyncio.timeout(within):
        while not await condition():
            await asyncio.sleep(0.02)


async def together(*awaitables: Awaitable[Any]) -> list[Any]:
    """All of their results."""
    return list(await asyncio.gather(*awaitables))
