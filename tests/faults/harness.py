"""A run: a gateway as a process of its own, its broker behind a proxy, a load, a fault, a verdict.

::

    async with Run(rabbitmq, "0-9-1", "gateway killed", Shape(messages=500), seed=7) as run:
        run.load.begin()                        # producers and consumers over HTTP
        await run.progress(0.3)                 # until so many messages were attempted
        run.gateway.kill(); run.gateway.start() # whatever the row is about
        await run.finish()                      # produce, drain, ask the ledger, check; fails unless valid
        run.row()                               # the line of the table

Parts of it that rows use: ``run.gateway`` (:class:`GatewayProcess`: ``start kill terminate pause resume ask log``),
``run.proxy`` (:class:`~tests.faults.proxy.Proxy`, between gateway and broker), ``run.server`` (the broker itself,
as :mod:`tests.servers` has it), ``run.load`` (what is in flight, open leases, counts of answers), ``run.history``,
``run.note(...)`` (a figure of the row's own), ``run.must(condition, text)`` (a check of the row's own).

The drain is part of the run: producers end, consumers pull until nothing comes, the ledger is read over HTTP, the
gateway is ended by SIGTERM (so that whatever it holds goes back), and a client that is not ours looks into the queue
(pika; Broker-J's own management). What is left there is taken out, counted as received elsewhere, and a problem: the
gateway should have delivered it. A queue that cannot be looked into, or consumers that never come to an end, make the
run an error: :class:`~tests.faults.checker.NotDrained`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import pika

from tests import canary
from tests.faults import checker
from tests.faults.checker import History, NotDrained, Outcome, Reception, Settled, Verdict, digest
from tests.faults.http import Answer, Http, NoAnswer, NotSent
from tests.faults.load import Load, Shape
from tests.faults.nursery import Forked
from tests.faults.proxy import Direction, Proxy, Toxic
from tests.ledgers import sqlite_ledger
from tests.servers import BrokerJ, RabbitMQ
from tests.servers.process import HOST, ROOT, Server, free_port
from tests.traces import QUERY, impossible_traces

GATEWAY_ROOT: Final = Path(os.environ.get("FAULTS_GATEWAY", ROOT))
"""The checkout whose gateway is run: another one than this where the environment says so."""
BROKER: Final = "b"
"""The broker's name in the gateway's configuration."""
START_TIMEOUT: Final = 120.0
STOP_TIMEOUT: Final = 30.0
"""How long the gateway may take to come and to go, in seconds."""
RECORD_TIMEOUT: Final = 5.0
"""How long what was settled while the ledger was away may take to be in it once it is back, in seconds."""
EMPTY_PULLS: Final = 2
"""So many empty pulls of each consumer in a row mean that nothing comes any more."""
SETTINGS: Final[Mapping[str, Any]] = {
    "http.confirm_timeout": 5.0,
    "ledger.shard_lease": 2.0,
    "brokers.b.heartbeat": 2.0,
    "brokers.b.connect_timeout": 3.0,
    "brokers.b.reconnect_min": 0.1,
    "brokers.b.reconnect_max": 1.0,
}
"""Shorter than the defaults, so that faults are noticed and mended in seconds. A row may say otherwise."""


class GatewayFailed(Exception):
    """The gateway process did not do what it must; the text holds the end of its log."""


class GatewayProcess:
    """``gateway serve`` with a configuration file of its own, on fixed ports, started as often as one likes.

    Args:
        folder: where configuration, data and log go.
        tables: the configuration file, as nested tables.
    """

    module = ""
    """The program in place of the gateway's own."""

    def __init__(self, folder: Path, tables: Mapping[str, Any]) -> None:
        self.folder = folder
        self.port = free_port()
        self.ops_port = free_port()
        self.starts = 0
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self.config = folder / "gateway.toml"
        self.configure(tables)
        self._log = folder / "gateway.log"
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
        self._environ["PYTHONPATH"] = str(GATEWAY_ROOT)

    def configure(self, tables: Mapping[str, Any]) -> None:
        """Write the configuration file, for the next start."""
        tables = _merge({"http": {"port": self.port}, "ops": {"port": self.ops_port}}, tables)
        self.config.write_text(_toml(tables), encoding="utf-8")

    def run(self, *arguments: str) -> None:
        """One command of the gateway's, ``migrate`` for instance, with this configuration.

        Raises:
            GatewayFailed: it ended with another status than 0.
        """
        status = self._spawn(*arguments).wait(START_TIMEOUT)
        if status:
            raise GatewayFailed(f"gateway {' '.join(arguments)} ended with {status}: {self.log()[-2000:]}")

    def _spawn(self, *arguments: str) -> subprocess.Popen[bytes] | Forked:
        """The gateway's command line as a process; one of another checkout cannot be forked off what runs here."""
        arguments = (*arguments, "--config", str(self.config))
        if GATEWAY_ROOT == ROOT:
            return Forked(arguments, self.folder, self._environ, self._log, self.module)
        command = [sys.executable, "-m", self.module or "gateway", *arguments]
        with self._log.open("ab") as log:
            return subprocess.Popen(command, cwd=self.folder, env=self._environ, stdout=log, stderr=log)

    def start(self, wait: bool = True) -> None:
        """Start it; with ``wait`` return once it is up.

        Raises:
            GatewayFailed: it does not come up.
        """
        self.starts += 1
        self.process = self._spawn("serve")
        if wait:
            self.wait_live()

    def wait_live(self) -> None:
        """Return once it serves."""
        deadline = time.monotonic() + START_TIMEOUT
        while not self._serves():
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                raise GatewayFailed(f"the gateway did not come up; its log ends:\n{self.log()[-3000:]}")
            time.sleep(0.02)

    def _serves(self) -> bool:
        """Whether it is up: it says so, or it is of a release that opens this port last."""
        answer = self.get_ops("/startupz")
        return answer is not None and answer[0] in (200, 404)

    def get_ops(self, path: str) -> tuple[int, str] | None:
        """Status and text of a page of the operations port (``/readyz``, ``/metrics``); None: nobody answers."""
        connection = HTTPConnection(HOST, self.ops_port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            page = answer.read().decode()
            canary.look(page, f"answer of {path}")
            return answer.status, page
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def terminate(self, within: float = STOP_TIMEOUT) -> float:
        """SIGTERM; how many seconds it took to end with status 0.

        Raises:
            GatewayFailed: it did not end in time, or with another status.
        """
        assert self.process is not None
        began = time.monotonic()
        self.process.terminate()
        try:
            status = self.process.wait(within)
        except subprocess.TimeoutExpired:
            self.kill()
            raise GatewayFailed(f"the gateway did not end within {within:g} s of SIGTERM") from None
        if status:
            raise GatewayFailed(f"the gateway ended with status {status}; its log ends:\n{self.log()[-3000:]}")
        return time.monotonic() - began

    def pause(self) -> None:
        """SIGSTOP."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self.process is not None and self.process.poll() is None

    def close(self) -> None:
        """End it, whatever it does."""
        if self.running:
            self.resume()
            self.kill()
        canary.look_at(self.folder, "*.log")
        canary.look_at(self.folder, "data/*.db*")

    def log(self) -> str:
        """Everything it logged, over all starts."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def events(self, name: str) -> list[dict[str, Any]]:
        """The lines of the log with this event."""
        lines = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    async def ask(self, method: str, path: str, body: Any = None, within: float = 30.0) -> Answer:
        """One request on a connection of its own. Raises NotSent, NoAnswer."""
        http = Http(self.port)
        try:
            return await http.request(method, path, body, {"Connection": "close"}, within)
        finally:
            http.close()

    async def broker(self) -> dict[str, Any]:
        """What ``GET /v1/brokers/b`` says: state, reason, publishing, consuming, pending, leases, …"""
        found: dict[str, Any] = (await self.ask("GET", f"/v1/brokers/{BROKER}")).json()
        return found

    async def wait_broker(self, *states: str, within: float = 30.0) -> float:
        """Wait until the broker is in one of these states; how many seconds that took.

        Raises:
            GatewayFailed: it is not, in time.
        """
        began = time.monotonic()
        found: dict[str, Any] = {}
        while time.monotonic() - began < within:
            try:
                found = await self.broker()
            except (NotSent, NoAnswer):
                found = {"state": "gone"}
            if found.get("state") in states:
                return time.monotonic() - began
            await asyncio.sleep(0.02)
        raise GatewayFailed(f"the broker is not {' or '.join(states)} after {within:g} s, but {found}")

    async def ledger_states(self) -> dict[str, str]:
        """The state of every message in the ledger, by its id."""
        http = Http(self.port)
        states: dict[str, str] = {}
        path = "/v1/messages?limit=1000"
        while path:
            answer = await http.request("GET", path)
            if answer.status != 200:
                raise GatewayFailed(f"the ledger cannot be read: {answer.json()}")
            states |= {message["id"]: message["state"] for message in answer.json()["messages"]}
            link = answer.headers.get("link", "")
            path = link[link.index("<") + 1 : link.index(">")] if 'rel="next"' in link else ""
        http.close()
        return states


class FaultRun:
    """What every run has: a folder, a gateway, and the figures and checks of its row."""

    def __init__(self, name: str, seed: int) -> None:
        """
        Args:
            name: of the row.
            seed: of messages, moments and proxies.
        """
        self.name = name
        self.seed = seed
        self.seconds = 0.0
        self.notes: dict[str, Any] = {}
        """Figures of the row's own, for the line below the table."""
        self.failures: list[str] = []
        """What the row's own checks found."""
        self.folder = Path(tempfile.mkdtemp(prefix="gateway-fault-"))
        self.gateway: GatewayProcess

    @property
    def failure(self) -> str:
        """Why it makes no sense to go on; empty: it does."""
        return ""

    async def until(
        self, condition: Callable[[], bool], within: float = 30.0, what: str = "it did not happen"
    ) -> float:
        """Wait until something is so; how many seconds that took.

        Raises:
            GatewayFailed: it is not so in time, or it makes no sense to go on.
        """
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > within:
                raise GatewayFailed(f"{what} within {within:g} s")
            if failure := self.failure:
                raise GatewayFailed(failure)
            await asyncio.sleep(0.005)
        return time.monotonic() - began

    def note(self, **figures: Any) -> None:
        """A figure of the row's own. Numbers of the same name add up where they are counts (int)."""
        for name, value in figures.items():
            if isinstance(value, int) and not isinstance(value, bool):
                value += self.notes.get(name, 0)
            self.notes[name] = value

    def must(self, condition: bool, text: str) -> None:
        """A check of the row's own: where it does not hold, the run is not valid."""
        if not condition:
            self.failures.append(text)

    def look_at_log(self) -> None:
        """The gateway must have logged no exception."""
        faults = [line for line in self.gateway.log().splitlines() if '"exception"' in line or "Traceback" in line]
        self.must(not faults, f"{len(faults)} exceptions in the gateway's log: {faults[:1]}")

    def explain(self) -> None:
        """Print everything there is to know, for a failure."""
        print(self.summary(), f"\nthe gateway's log ends:\n{self.gateway.log()[-4000:]}", file=sys.stderr)

    def traces_of_file(self) -> list[str]:
        """Impossible transitions in the ledger in the run's folder."""
        with closing(sqlite3.connect(self.folder / "data" / "ledger.db")) as connection:
            return impossible_traces(connection.execute(QUERY))[:5]

    def row(self) -> tuple[str, ...]:
        """The line of the table."""
        raise NotImplementedError

    def rows(self) -> list[tuple[str, ...]]:
        """The lines of the table."""
        return [self.row()]

    def summary(self) -> str:
        """Everything there is to know, for a failure."""
        raise NotImplementedError


class Run(FaultRun):
    """One row, once. Entering it declares the queue, starts proxy and gateway, and makes the subscription."""

    def __init__(
        self,
        server: Server,
        version: str,
        name: str,
        shape: Shape,
        *,
        seed: int = 1,
        settings: Mapping[str, Any] | None = None,
        ledger_url: str = "",
        toxics: Sequence[tuple[Toxic, Direction]] = (),
    ) -> None:
        """
        Args:
            server: RabbitMQ or Broker-J, running; its ``default`` virtual host, which is on disk.
            version: 0-8, 0-9-1 or 0-10.
            name: of the row.
            settings: dotted names of settings (``brokers.b.heartbeat``) over :data:`SETTINGS`.
            ledger_url: a database; empty: SQLite in the run's folder.
            toxics: what is in the proxy before the gateway connects.
        """
        super().__init__(name, seed)
        self.server = server
        self.version = version
        self.history = History()
        self.verdict: Verdict | None = None
        self.queue = f"faults-{uuid4().hex[:12]}"
        self._shape = shape
        self.ledger: Any = None
        """What the row can do to the ledger (:mod:`tests.faults.ledgers`), where it can."""
        self._ledger_url = ledger_url
        self._toxics = toxics
        self._settings = {**SETTINGS, **(settings or {})}
        self.proxy: Proxy
        self.load: Load

    @property
    def broker(self) -> str:
        """Broker and version, for the table."""
        return f"{'RabbitMQ' if isinstance(self.server, RabbitMQ) else 'Broker-J'} {self.version}"

    async def __aenter__(self) -> Run:
        self.proxy = Proxy(self.server.port, self.seed)
        for toxic, direction in self._toxics:
            self.proxy.add(toxic, direction)
        url = url_at(self.server, self.proxy.port, self.version, canary.login(self.server))
        tables: dict[str, Any] = {"data_dir": str(self.folder / "data"), "brokers": {BROKER: {"url": url}}}
        if self._ledger_url:
            tables["ledger"] = {"url": self._ledger_url}
        else:
            sqlite_ledger(self.folder / "data")
        for name, value in self._settings.items():
            table = tables
            *path, last = name.split(".")
            for part in path:
                table = table.setdefault(part, {})
            table[last] = value
        tables["subscriptions"] = {self.queue: {"broker": BROKER, "queue": self.queue, "ack_deadline_seconds": 30}}
        self.gateway = GatewayProcess(self.folder, tables)
        self.load = Load(self.history, self._shape, self.gateway.port, BROKER, self.queue, self.seed)
        try:
            if self._ledger_url.startswith("postgresql"):
                self.gateway.run("migrate")
            self.gateway.start()
            await self.gateway.wait_broker("up")
            await self.declare_queue()
        except BaseException:
            self._close()
            raise
        self._began = time.monotonic()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        await self.load.abandon()
        if kind is not None:
            self.explain()
        self._close()

    def _close(self) -> None:
        self.gateway.close()
        self.proxy.close()
        if self.server.running:
            self.server.resume() if self.server.owned else None
            try:
                self.server.delete_queue(self.queue)  # type: ignore[attr-defined]  # both brokers have it
            except Exception as error:  # the run has its verdict; a queue more or less does no harm
                print(f"queue {self.queue} stays: {error}", file=sys.stderr)
        shutil.rmtree(self.folder, ignore_errors=True)

    # -------------------------------------------------------------------------------------- for the rows

    async def declare_queue(self) -> None:
        """Declare the run's queue, durable, through the gateway."""
        path = f"/v1/brokers/{BROKER}/queues/{self.queue}"
        kind = self._shape.queue_type
        settings = {"durable": True} | ({"arguments": {"x-queue-type": kind}} if kind else {})
        answer = await self.gateway.ask("PUT", path, settings)
        if answer.status not in (200, 201, 204):
            raise GatewayFailed(f"the queue cannot be declared: {answer.json()}")
        if isinstance(self.server, RabbitMQ):  # it forgets a queue that is seconds old when it is killed
            await asyncio.to_thread(self.server.write_tables)

    @property
    def acknowledged(self) -> int:
        """How many publishes were answered 2xx so far."""
        return self.history.count(Outcome.ACKNOWLEDGED)

    async def progress(self, share: float, within: float = 120.0) -> None:
        """Wait until this share of all messages was attempted, or nothing is produced any more."""
        wanted = share * self._shape.messages
        done = lambda: len(self.history.publishes) >= wanted or not self.load.producing  # noqa: E731
        await self.until(done, within, f"not {wanted:.0f} messages were attempted")

    async def settle_down(self, more: int = 20, within: float = 30.0) -> float:
        """Wait until so many more publishes were answered 2xx; how many seconds that took: the recovery."""
        wanted = min(self.acknowledged + more, self._shape.messages)
        return await self.until(
            lambda: self.acknowledged >= wanted or not self.load.producing, within, f"no {more} publishes went through"
        )

    # ------------------------------------------------------------------------------------------- the end

    async def finish(self, drain_within: float = 120.0) -> Verdict:
        """Let producers end, drain, ask the ledger, and check.

        Raises:
            NotDrained: the source was never seen empty.
            AssertionError: the verdict or one of the row's own checks is bad; with everything there is to know.
        """
        await self.load.produced()
        await self._drain(drain_within)
        states = await self._states()
        self.gateway.terminate()
        left = await asyncio.to_thread(self._take_what_is_left)
        self.history.drained = True
        self.seconds = time.monotonic() - self._began
        self.verdict = checker.check(self.history, states)
        self.must(not left, f"{left} messages were left to the broker's own client")
        self.must(not self.load.hung, f"{len(self.load.hung)} requests hung: {self.load.hung[:3]}")
        self.must(not self.load.complaints, f"{len(self.load.complaints)} bad answers: {self.load.complaints[:3]}")
        self.look_at_log()
        if not self._ledger_url:  # one that the row can hurt is looked at by its place
            self.failures += self.traces_of_file()
        self.verdict.problems += self.failures
        assert self.verdict.valid, self.summary()
        return self.verdict

    async def _states(self) -> dict[str, str]:
        """What the ledger says of every message, as soon as that agrees with what was observed: what was settled while
        the ledger was away is kept, and written within moments of its return. Where it does not come to agree in time,
        that is for the checker to tell."""
        deadline = time.monotonic() + RECORD_TIMEOUT
        while True:
            states = await self.gateway.ledger_states()
            if time.monotonic() > deadline or not checker.disagreements(self.history, states):
                return states
            await asyncio.sleep(0.2)

    async def _drain(self, within: float) -> None:
        """Let the consumers go on until nothing comes."""
        deadline = time.monotonic() + within
        self.load.forget_empty_pulls()
        while self.load.empty_pulls < EMPTY_PULLS * self._shape.consumers or self.load.open_leases:
            if time.monotonic() > deadline:
                raise NotDrained(f"messages still come, or none can be had, after {within:g} s\n{self.summary()}")
            await asyncio.sleep(0.02)
        await self.load.stop()

    def _take_what_is_left(self) -> int:
        """Look into the queue with a client that is not ours, and take what is there; how many that were.

        Raises:
            NotDrained: it cannot be looked into.
        """
        try:
            if isinstance(self.server, BrokerJ):
                return self.server.queue_depth(self.queue)
            return self._take_by_pika()
        except Exception as error:
            raise NotDrained(f"the queue cannot be looked into: {error!r}") from error

    def _take_by_pika(self) -> int:
        parameters = pika.URLParameters(self.server.url("").partition("?")[0])
        connection = pika.BlockingConnection(parameters)
        try:
            channel = connection.channel()
            left = 0
            while True:
                method, properties, body = channel.basic_get(self.queue)
                if method is None:
                    return left
                left += 1
                headers = {name: value for name, value in (properties.headers or {}).items() if name != "x-gateway"}
                named = {
                    name: getattr(properties, name)
                    for name in ("message_id", "content_type", "correlation_id", "delivery_mode", "priority")
                }
                reception = Reception(properties.message_id or "", digest(body, named, headers), elsewhere=True)
                reception.gateway_id = (properties.headers or {}).get("x-gateway", {}).get("id", "")
                reception.redelivered = method.redelivered
                reception.settled = Settled.ACKED
                self.history.receive(reception)
                channel.basic_ack(method.delivery_tag)
        finally:
            connection.close()

    def row(self) -> tuple[str, ...]:
        """The line of the table."""
        assert self.verdict is not None
        return checker.row(self.name, self.broker, self.verdict, self.seconds)

    def summary(self) -> str:
        """Everything there is to know, for a failure."""
        lines = [f"{self.name}, {self.broker}, seed {self.seed}"]
        if self.verdict is not None:
            lines += [f"  problem: {problem}" for problem in self.verdict.problems]
            lines.append(checker.table([self.row()]))
        lines.append(f"  {len(self.history.publishes)} attempted, {self.acknowledged} acknowledged, ")
        lines.append(f"  {len(self.history.receptions)} received, in flight {self.load.in_flight}, ")
        lines.append(f"  open leases {self.load.open_leases}, notes {self.notes}")
        lines.append(f"  answers: {dict(self.load.answers)}")
        return "\n".join(lines)


def url_at(server: Server, port: int, version: str, login: Sequence[str]) -> str:
    """The URL of a broker at another port of this machine, for a user and its password."""
    return f"amqp://{':'.join(login)}@{HOST}:{port}/{quote(server.virtual_host, safe='')}?version={version}"


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables, one laid over the other."""
    merged = dict(base)
    for name, value in over.items():
        before = merged.get(name)
        merged[name] = _merge(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return merged


def _toml(tables: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """Nested tables as TOML: values are strings, numbers, booleans and lists of them, which TOML writes as JSON."""
    lines = [f"[{'.'.join(json.dumps(part) for part in path)}]"] if path else []
    lines += [f"{name} = {json.dumps(value)}" for name, value in tables.items() if not isinstance(value, Mapping)]
    text = "\n".join(lines) + "\n"
    return text + "".join(_toml(value, (*path, name)) for name, value in tables.items() if isinstance(value, Mapping))
