"""Gateways to attack, each a process of its own in a folder of its own, with a neighbor that measures its waits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests import canary
from tests.attack.client import Client, hang_up
from tests.attack.judge import Bounds, Health, Outcome, Record
from tests.attack.neighbor import QUEUE, Neighbor
from tests.faults.harness import GatewayProcess, _merge
from tests.faults.nursery import Forked
from tests.ledgers import sqlite_ledger
from tests.servers.process import free_port

RECEIVERS: Final = "127.0.0.9"
"""Where endpoints and the issuer of tokens listen: the one address that the gateways may call."""
MIB: Final = 1 << 20
SAMPLE: Final = 0.02
"""How often memory is read, in seconds."""
CALM: Final = 5.0
"""How long the gateway may take to be as it was after an attack, in seconds."""
SLOW: Final = 3.0
"""After how many seconds of silence the gateways close a connection: sooner than by default, to save time."""
ANSWER: Final = "answer"
"""File in the folder of a gateway: silent names are answered from then on."""
BROKER: Final = "local-0-9-1"
OTHER: Final = "local-0-8"
"""A broker that the objects of the attacks are not at."""
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "root": ("admin",),
    "neighbor": (f"publish:{BROKER}/amq.default", f"consume:{BROKER}/{QUEUE}"),
    "publisher": ("publish:*/amq.default",),
    "consumer": (f"consume:{BROKER}/victim",),
    "thief": (f"consume:{BROKER}/thief", f"publish:{BROKER}/thief"),
    "hooks": ("endpoint:hooks",),
    "greedy": ("publish:*/*", "consume:*/*", "subscribe:*/*", "endpoint:*"),
    "modest": ("publish:*/*", "consume:*/*", "subscribe:*/*", "endpoint:*"),
    "other-publish": (f"publish:{OTHER}/ex",),
    "other-route": (f"route:{OTHER}/ex/%23",),
    "other-consume": (f"consume:{OTHER}/orders",),
    "other-subscribe": (f"subscribe:{OTHER}/orders",),
    "other-broker": (f"broker:{OTHER}",),
    "other-endpoint": ("endpoint:else",),
    "other-history": ("history",),
}
"""Client -> its scopes."""


def key_of(client: str) -> str:
    """Return a client's key: each has the planted secret in it, which nothing may show."""
    return f"{client}-{canary.CANARY}"


class Gateway(GatewayProcess):
    """A gateway whose configuration is JSON, with lists of tables."""

    def configure(self, tables: Mapping[str, Any]) -> None:
        self.config = self.folder / "gateway.json"
        tables = _merge({"http": {"port": self.port}, "ops": {"port": self.ops_port}}, tables)
        self.config.write_text(json.dumps(tables), encoding="utf-8")
        self.config.chmod(0o600)


class SilentNames(Gateway):
    """A gateway whose name server says nothing of ``*.silent.example`` as long as there is no file :data:`ANSWER`."""

    module = "tests.budgets.silent"

    def _spawn(self, *arguments: str) -> subprocess.Popen[bytes] | Forked:
        return super()._spawn(str(self.folder / ANSWER), *arguments)


@dataclass
class Target:
    """What an attack sees of a gateway."""

    port: int
    ops_port: int
    amqp_port: int
    folder: Path = Path()
    issuer_port: int = 0
    cluster_port: int = 0
    pid: int = 0
    keyed: bool = True
    full: bool = False
    """Whether this is the full form of a row."""
    log: Callable[[], str] = str

    def client(self, name: str = "", port: int = 0) -> Client:
        """Return a caller of the API, under the key of a client of :data:`KEYS`; empty: without a key."""
        return Client(port or self.port, key_of(name) if name and self.keyed else "")

    def scaled(self, full: int, quick: int) -> int:
        """Return how much is tried, in the full form and in the quick one."""
        return full if self.full else quick

    def some(self, things: Sequence[Any], quick: int) -> list[Any]:
        """Return all of them in the full form, and about ``quick`` of them in the quick one, evenly spread."""
        step = 1 if self.full else max(1, len(things) // quick)
        return list(things)[::step]


Attack = Callable[[Target, Record], Awaitable[None]]


@dataclass(frozen=True)
class Row:
    """One class of attacks."""

    name: str
    attack: Attack
    on: str = "keyed"
    """The gateway: a name of :data:`SETUPS`."""
    bounds: Bounds = field(default_factory=Bounds)
    quick: bool = True
    """Whether it has a quick form."""
    fresh: bool = False
    """Whether it gets a gateway that no other row uses."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings over those of the setup; such a row needs ``fresh``."""
    kind: type[Gateway] = Gateway
    """The program; another one than the gateway's own needs ``fresh``."""


def _common(folder: Path, amqp_port: int) -> dict[str, Any]:
    login = {"name": "guest", "password": "guest"}
    planted = {"name": canary.USER, "password": canary.CANARY}
    own = {"name": "gateway", "password": "gateway"}  # the first: the gateway itself logs in so
    neighbor = {"name": QUEUE, "password": QUEUE}
    return {
        "data_dir": str(folder / "data"),
        "http": {"head_timeout": SLOW, "body_idle": SLOW},
        "embedded": {
            "enabled": True,
            "port": amqp_port,
            "users": [own, login, planted, neighbor],
            "handshake_timeout": SLOW,
        },
        "subscriptions": {QUEUE: {"broker": BROKER, "queue": QUEUE}},
    }


def _keyed(target: Target) -> dict[str, Any]:
    keys = [{"name": name, "key": key_of(name), "scopes": list(scopes)} for name, scopes in KEYS.items()]
    tokens = {
        "issuer": "https://issuer.example",
        "audience": "gateway",
        "jwks_url": f"http://{RECEIVERS}:{target.issuer_port}/keys",
    }
    return {
        **_common(target.folder, target.amqp_port),
        "api_keys": keys,
        "access": {"required": "always", "tokens": tokens},
        "outbound": {"allow": [f"{RECEIVERS}/32"]},
    }


def _keyless(target: Target) -> dict[str, Any]:
    return _common(target.folder, target.amqp_port)


SETUPS: Final[Mapping[str, Callable[[Target], dict[str, Any]]]] = {"keyed": _keyed, "keyless": _keyless}
"""Name -> the configuration: one that asks for keys, and a development tool that asks for none."""


class Running:
    """A gateway, its neighbor, and its memory."""

    def __init__(self, on: str, settings: Mapping[str, Any] | None = None, kind: type[Gateway] = Gateway) -> None:
        shared = Path("/dev/shm")  # a folder with a random name of its own
        place = shared if os.access(shared, os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="gateway-attack-", dir=place))
        sqlite_ledger(self.folder / "data")
        self.target = Target(0, 0, free_port(), self.folder, free_port(), keyed=on != "keyless")
        tables: Mapping[str, Any] = SETUPS[on](self.target)
        for name, value in (settings or {}).items():
            tables = _merge(tables, _nested(name, value))
        self.process = kind(self.folder, tables)
        self.neighbor: Neighbor | None = None
        try:
            self.process.start()
            assert self.process.process is not None
            self.target.port, self.target.ops_port = self.process.port, self.process.ops_port
            self.target.pid = self.process.process.pid
            self.target.log = self.process.log
            self._declare()
            ports = self.target.port, self.target.ops_port, self.target.amqp_port
            self.neighbor = Neighbor(ports, self.target.pid, key_of("neighbor") if self.target.keyed else "")
        except BaseException:
            self.close()
            raise

    def _declare(self) -> None:
        """Declare the neighbor's queue."""

        async def declare() -> None:
            client = self.target.client("root")
            answer = await client.ask("PUT", f"/v1/brokers/{BROKER}/queues/{QUEUE}", {"durable": True})
            client.close()
            assert answer.status in (200, 201), answer

        worker = threading.Thread(target=lambda: asyncio.run(declare()))  # the caller may be in a loop of its own
        worker.start()
        worker.join()

    def memory_mib(self) -> float:
        """Return its resident memory."""
        return resident_mib(self.target.pid)

    def health(self, since: int) -> Health:
        """Return its state; of its log what came after the first ``since`` characters."""
        found = self.process.get_ops("/readyz")
        ready = 0 if found is None else found[0]
        log = self.process.log()[since:]
        canary.look(log, "the log")
        return Health(self.process.running, ready, log, tuple(canary.taken()))

    def close(self) -> None:
        """End it, and what belongs to it."""
        if self.neighbor is not None:
            self.neighbor.close()
        self.process.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _nested(name: str, value: Any) -> dict[str, Any]:
    for part in reversed(name.split(".")):
        value = {part: value}
    return dict(value)


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process; 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


@contextlib.contextmanager
def watched(pid: int) -> Iterator[Callable[[], float]]:
    """Watch a process's memory; what it yields returns the most that it has had, in MiB."""
    most = resident_mib(pid)
    over = threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(SAMPLE):
            most = max(most, resident_mib(pid))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield lambda: max(most, resident_mib(pid))
    finally:
        over.set()
        watcher.join()


async def measure(row: Row, running: Running, full: bool) -> Outcome:
    """Carry out one row against a gateway, and measure."""
    assert running.neighbor is not None
    target = running.target
    target.full = full
    record = Record()
    canary.taken()
    since = len(running.process.log())
    await asyncio.to_thread(running.neighbor.take)
    before = running.memory_mib()
    began = time.monotonic()
    with watched(target.pid) as most:
        try:
            await row.attack(target, record)
        except Exception as error:
            record.blame(f"the attack itself failed: {type(error).__name__}: {error}")
        waits = await asyncio.to_thread(running.neighbor.take)
        peak = most()
    hang_up()
    seconds = time.monotonic() - began
    health = await calm(running, since)
    return Outcome(row.name, row.bounds, record, waits, health, before, peak, running.memory_mib(), seconds)


async def calm(running: Running, since: int) -> Health:
    """Wait until the gateway is ready, for at most :data:`CALM` seconds, and return its state."""
    end = time.monotonic() + CALM
    while True:
        health = await asyncio.to_thread(running.health, since)
        if (health.running and health.ready == 200) or time.monotonic() > end:
            return health
        await asyncio.sleep(0.05)


class Lab:
    """The gateways of a run, started when the first row needs them."""

    def __init__(self) -> None:
        self._running: dict[str, Running] = {}

    async def perform(self, row: Row, full: bool) -> Outcome:
        """Carry out a row on its gateway."""
        if row.fresh:
            running = await asyncio.to_thread(Running, row.on, row.settings, row.kind)
            try:
                return await measure(row, running, full)
            finally:
                running.close()
        if row.on not in self._running or not self._running[row.on].process.running:
            self._end(row.on)
            self._running[row.on] = await asyncio.to_thread(Running, row.on)
        return await measure(row, self._running[row.on], full)

    def _end(self, on: str) -> None:
        if on in self._running:
            self._running.pop(on).close()

    def close(self) -> None:
        """End all gateways."""
        for on in list(self._running):
            self._end(on)
