"""A run: a gateway as a process of its own with one bridge, its brokers behind proxies, a load, a fault, a verdict.

::

    async with BridgeRun(source, target, "gateway killed", Shape(messages=500), seed=7) as run:
        run.load.begin()                  # messages straight to the source broker
        await run.forwards(20)            # until the bridge has forwarded so many more
        await run.kill(); ...             # whatever the row is about
        await run.finish()                # drain, look at both brokers and the ledger, check; fails unless valid
        run.row()                         # the line of the table

Parts of it that rows use: ``run.source`` and ``run.target`` (:class:`Side`: broker, proxy, queue, an upstream of the
run's own that does not pass the proxy), ``run.gateway`` (:class:`~tests.faults.harness.GatewayProcess`), ``run.load``,
``run.accident(...)`` (from now on duplicates are possible), ``run.stuck(...)`` (the bridge waits, says so, and costs
nothing meanwhile), ``run.note(...)``, ``run.must(condition, text)``.

The drain is part of the run: the load ends, the bridge goes on until source and gateway are empty, the gateway is ended
by SIGTERM, a client that is not ours counts what is left in the source (which must be nothing), and the target, the
dead-letter queue and the ledger are read.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from gateway.amqp.operations import Settlement
from gateway.config import BrokerSettings
from gateway.errors import GatewayError, NotFound
from gateway.fidelity import annotation
from gateway.ledger.db.encoding import parse
from gateway.ledger.db.ids import id_text
from gateway.ledger.writing.states import EventKind, state_of
from gateway.upstreams import Delivery, Upstream
from tests.faults import checker as common
from tests.faults.bridges import checker
from tests.faults.bridges.checker import Accident, Copy, Found, Recorded, Verdict
from tests.faults.bridges.load import MESSAGES, digest
from tests.faults.checker import History, NotDrained
from tests.faults.harness import SETTINGS, FaultRun, GatewayFailed, GatewayProcess, url_at
from tests.faults.http import NoAnswer, NotSent
from tests.faults.ledgers import Place
from tests.faults.proxy import Proxy
from tests.faults.source import Load, Shape, left
from tests.servers import BrokerJ
from tests.servers.process import Server

EXCHANGE: Final = "EXCHANGE"
"""In the settings of a bridge: the run's own exchange."""
PREFETCH: Final = 100
"""Of the bridge, so that the bound of the duplicates is a tight one."""
CPU_MAX: Final = 0.25
"""What a gateway that can only wait may use of a core."""
LINES_MAX: Final = 15
"""How many lines a second it may log meanwhile: three links of a broker that is away are tried each second."""
TWICE: Final = 3
"""How many messages are shown that were recorded more than once."""
TICKS: Final = 100
"""Of ``/proc/PID/stat``, in a second."""
_PLAIN: Final = {"heartbeat": 30.0, "reconnect_min": 0.05, "reconnect_max": 0.5, "publish_repeat": False}
"""How the run's own upstreams are set."""


class Side:
    """One end of the bridge: a broker and a version, as the gateway knows them by ``name``."""

    def __init__(self, name: str, server: Server, version: str, queue: str, seed: int) -> None:
        self.name = name
        self.server = server
        self.version = version
        self.queue = queue
        self.login = server.user, server.password
        """The gateway's; that of the run's own upstream is the server's."""
        self.proxy = Proxy(server.port, seed)
        self.upstream = Upstream(f"own-{name}", BrokerSettings(url=server.url(version), **_PLAIN))

    @property
    def url(self) -> str:
        """For the gateway: through the proxy."""
        return url_at(self.server, self.proxy.port, self.version, self.login)

    async def declare(self) -> None:
        """Declare the queue, durable."""
        await self.upstream.declare_queue(self.queue)

    async def ready(self) -> int | None:
        """How many messages are ready in the queue; None: the broker does not say."""
        return (await self.upstream.query_queue(self.queue)).message_count

    async def take_all(self, queue: str, silence: float = 0.3, within: float = 60.0) -> list[Copy]:
        """Everything in a queue, taken out of it.

        Raises:
            NotDrained: nothing came for ``within`` seconds, and there is something left.
        """
        taken: list[Copy] = []
        last = time.monotonic()

        def take(delivery: Delivery) -> None:
            nonlocal last
            last = time.monotonic()
            taken.append(copy_of(delivery))
            delivery.settle(Settlement.ACCEPT)

        consumer = await self.upstream.consume(queue, 500, take)
        while (quiet := time.monotonic() - last) < silence or (await self.upstream.query_queue(queue)).message_count:
            if quiet > within:
                raise NotDrained(f"{queue} is not empty, and nothing came out of it for {within:g} s")
            await asyncio.sleep(0.02)
        await consumer.close()
        return taken

    async def close(self, *queues: str, exchange: str = "") -> None:
        """End proxy and upstream, and delete the queues, and the exchange."""
        self.proxy.close()
        if self.server.running:
            deletions = [self.upstream.delete_queue(queue) for queue in queues]
            if exchange:
                deletions.append(self.upstream.delete_exchange(exchange))
            for deletion in deletions:
                try:
                    await deletion
                except NotFound:
                    continue
                except GatewayError as error:  # the run has its verdict; a queue more or less does no harm
                    print(f"{self.name}: something stays: {error}", file=sys.stderr)
        await self.upstream.close()


def copy_of(delivery: Delivery) -> Copy:
    """What is to be known of a message at the target."""
    message = delivery.message
    properties = message.properties
    return Copy(
        id=properties.message_id or "",
        digest=digest(message),
        gateway_id=annotation(properties, "id") or "",
        origin=annotation(properties, "origin") or "",
        reason=annotation(properties, "reason") or "",
        resent=annotation(properties, "resent") is not None,
    )


class BridgeRun(FaultRun):
    """One row, once. Entering it declares the queues, starts proxies and gateway, and waits for the bridge."""

    def __init__(
        self,
        source: tuple[Server, str],
        target: tuple[Server, str],
        name: str,
        shape: Shape,
        *,
        seed: int = 1,
        settings: Mapping[str, Any] | None = None,
        bridge: Mapping[str, Any] | None = None,
        ledger: Place,
        login: tuple[str, str] | None = None,
    ) -> None:
        """
        Args:
            source: server and version; likewise ``target``.
            settings: of the gateway, by dotted names, over those of all runs.
            bridge: of the bridge, likewise; ``target.exchange`` and so on.
            ledger: where the gateway keeps its ledger.
            login: the gateway's user and password at the target; None: those of everybody.
        """
        super().__init__(name, seed)
        self.random = random.Random(f"{seed} moments")
        self.history = History()
        self.verdict: Verdict | None = None
        self.times = 0
        """How often the fault happened."""
        self.accidents: list[Accident] = []
        self.found: dict[str, Recorded] = {}
        """What the ledger says in the end, by the gateway's id."""
        self.poison: set[str] = set()
        """Ids of messages that must end at the dead-letter place."""
        self.bridge = f"bridge-{uuid4().hex[:12]}"
        """Its name in the configuration."""
        self.dead_queue = f"gateway.dead.{self.bridge}"
        self.target_exchange = f"{self.bridge}.exchange"
        """For rows whose bridge does not publish to the default exchange: ``EXCHANGE`` in their settings."""
        self.taken: list[Copy] = []
        """What a row took out of the target before the end."""
        self.ledger = ledger
        self._shape = shape
        self._ends = {"source": source, "target": target}
        self._settings = settings or {}
        self._bridge = bridge or {}
        self._login = login
        self.source: Side
        self.target: Side
        self.load: Load

    @property
    def direction(self) -> str:
        """For the table."""
        names = [
            f"{'Broker-J' if isinstance(side.server, BrokerJ) else 'RabbitMQ'} {side.version}"
            for side in (self.source, self.target)
        ]
        return " to ".join(names)

    @property
    def sides(self) -> tuple[Side, Side]:
        """Source and target."""
        return self.source, self.target

    async def __aenter__(self) -> BridgeRun:
        self.source, self.target = (
            Side(name, server, version, f"{self.bridge}.{name}", self.seed)
            for name, (server, version) in self._ends.items()
        )
        if self._login is not None:
            self.target.login = self._login
        tables = self._tables()
        self.gateway = GatewayProcess(self.folder, tables)
        self.load = Load(self.history, self._shape, MESSAGES, self.source.upstream, self.source.queue, self.seed)
        try:
            for side in self.sides:
                await side.upstream.start()
                if not await side.upstream.wait_up(30):
                    raise GatewayFailed(f"{side.name}: {side.upstream.reason}")
                await side.declare()
            await asyncio.to_thread(self.gateway.start)
        except BaseException:
            await self._close()
            raise
        self._began = time.monotonic()
        return self

    def _tables(self) -> dict[str, Any]:
        """The configuration file."""
        broker = {name.removeprefix("brokers.b."): value for name, value in SETTINGS.items() if ".b." in name}
        tables: dict[str, Any] = {"data_dir": str(self.folder / "data"), "ledger": {"url": self.ledger.url}}
        tables["brokers"] = {side.name: {"url": side.url, **broker} for side in self.sides}
        bridge: dict[str, Any] = {
            "source": {"broker": "source", "queue": self.source.queue},
            "target": {"broker": "target", "routing_key": self.target.queue},
            "prefetch": PREFETCH,
        }
        tables["bridges"] = {self.bridge: bridge}
        others = {name: value for name, value in SETTINGS.items() if ".b." not in name}
        for place, values in ((tables, {**others, **self._settings}), (bridge, self._bridge)):
            for name, value in values.items():
                table: dict[str, Any] = place
                *path, last = name.split(".")
                for part in path:
                    table = table.setdefault(part, {})
                table[last] = self.target_exchange if value == EXCHANGE else value
        return tables

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Change settings of the gateway, for its next start."""
        self._settings = {**self._settings, **settings}
        self.gateway.configure(self._tables())

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        await self.load.abandon()
        if kind is not None:
            self.explain()
        await self._close()

    async def _close(self) -> None:
        self.gateway.close()
        for side in self.sides:
            if side.server.owned and side.server.running:
                side.server.resume()
        await self.source.close(self.source.queue, self.dead_queue)
        await self.target.close(self.target.queue, exchange=self.target_exchange)
        shutil.rmtree(self.folder, ignore_errors=True)

    # -------------------------------------------------------------------------------------- for the rows

    async def status(self) -> dict[str, Any]:
        """What ``GET /v1/bridges/{name}`` says. Raises NotSent, NoAnswer."""
        answer = await self.gateway.ask("GET", f"/v1/bridges/{self.bridge}")
        found: dict[str, Any] = answer.json()
        if answer.status != 200:
            raise GatewayFailed(f"the bridge cannot be asked for: {answer.status} {found}")
        return found

    async def in_flight(self) -> tuple[int, int]:
        """Deliveries of the source without an acknowledgement, and publishes to the target without a confirm."""
        source, target = await asyncio.gather(
            *(self.gateway.ask("GET", f"/v1/brokers/{side.name}") for side in self.sides)
        )
        return source.json()["leases"], target.json()["pending"]

    async def says(
        self, condition: Callable[[dict[str, Any]], bool], within: float = 30.0, what: str = "it did not happen"
    ) -> float:
        """Wait until something is so of the bridge's status; how many seconds that took.

        Raises:
            GatewayFailed: it is not so in time.
        """
        began = time.monotonic()
        found: dict[str, Any] = {}
        while True:
            try:
                found = await self.status()
                if condition(found):
                    return time.monotonic() - began
            except (NotSent, NoAnswer):
                found = {"state": "gone"}
            if time.monotonic() - began > within:
                raise GatewayFailed(f"{what} within {within:g} s: {found}")
            await asyncio.sleep(0.02)

    async def running(self, within: float = 30.0) -> float:
        """Wait until the bridge is at work; how many seconds that took."""
        return await self.says(lambda found: found["state"] == "running", within, "the bridge is not running")

    async def forwards(self, more: int = 20, within: float = 60.0) -> float:
        """Wait until it has forwarded so many more messages; how many seconds that took: the recovery."""
        began = (await self.status())["forwarded"]
        return await self.says(
            lambda found: found["forwarded"] >= began + more, within, f"no {more} messages were forwarded"
        )

    async def kill(self) -> None:
        """SIGKILL for the gateway, as soon as a publish is unconfirmed and a delivery unacknowledged, and its start."""
        leases = pending = 0
        deadline = time.monotonic() + 30
        while not (leases and pending) and time.monotonic() < deadline:
            leases, pending = await self.in_flight()
        self.gateway.kill()
        self.accident(leases, counts=bool(leases and pending))
        if self.exactly_once:
            await self._look_at_branches()
        self.note(kills=1, unacknowledged=leases, unconfirmed=pending)
        await asyncio.to_thread(self.gateway.start)

    @property
    def exactly_once(self) -> bool:
        """The bridge is one of mode ``dtx``: nothing may come twice."""
        return bool(self._bridge.get("acknowledge") == "dtx")

    async def _look_at_branches(self) -> None:
        """How far the branch of a bridge that was just killed had come, by ledger and target."""
        there = "prepared" if await self.target.upstream.branches.recover() else "not prepared"
        status = "".join(status for (status,) in self.ledger.query("SELECT status FROM branches"))
        self.note(**{f"killed {status}, {there}": 1})

    def accident(self, in_flight: int, *, counts: bool = False, forgets: bool = False) -> None:
        """Whatever is between source and target now may come twice; see :class:`Accident`.

        A source that crashes may also bring again what was acknowledged to it and was not on its disk yet. Broker-J
        gives credit before it writes that down, so it is counted apart, as another prefetch.
        """
        most = 0 if self.exactly_once else self._bridge.get("prefetch", PREFETCH) * (1 + forgets)
        self.accidents.append(Accident(time.time(), in_flight, most, counts, forgets))

    async def stuck(self, seconds: float, within: float = 15.0) -> dict[str, Any]:
        """While a fault lasts: the bridge says that it does not run, and why; it takes no more than its prefetch;
        and for so many seconds, in which nobody asks, it costs nearly nothing. Returns what it says."""
        noticed = await self.says(
            lambda found: found["state"] != "running" and bool(found["reason"]), within, "nothing is said of the fault"
        )
        cpu, lines = self.cpu_seconds(), len(self.gateway.log().splitlines())
        await asyncio.sleep(seconds)
        used, said = self.cpu_seconds() - cpu, len(self.gateway.log().splitlines()) - lines
        found = await self.status()
        leases, _ = await self.in_flight()
        self.must(found["state"] != "running" and bool(found["reason"]), f"after {seconds:g} s it says {found}")
        self.must(used <= CPU_MAX * seconds, f"it used {used:.2f} s of the processor in {seconds:g} s of waiting")
        self.must(said <= LINES_MAX * seconds, f"it logged {said} lines in {seconds:g} s of waiting")
        most = self._bridge.get("prefetch", PREFETCH)
        self.must(leases <= most, f"{leases} messages are out, and the prefetch is {most}")
        self.worst(noticed_s=noticed, cpu_share=used / seconds, log_lines_a_second=said / seconds)
        self.note(state=found["state"], reason=found["reason"])
        return found

    def cpu_seconds(self) -> float:
        """Processor time that the gateway's process has used."""
        assert self.gateway.process is not None
        text = Path(f"/proc/{self.gateway.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(text[11]) + int(text[12])) / TICKS

    def worst(self, **figures: float) -> None:
        """A figure of the row's own, of which the greatest is kept."""
        for name, value in figures.items():
            self.notes[name] = round(max(value, self.notes.get(name, 0.0)), 2)

    # ------------------------------------------------------------------------------------------- the end

    async def finish(self, drain_within: float = 120.0) -> Verdict:
        """Let the load end, drain, look at brokers and ledger, and check.

        Raises:
            NotDrained: the source was never seen empty.
            AssertionError: the verdict or one of the row's own checks is bad; with everything there is to know.
        """
        await self.load.stop()
        await self.drained(drain_within)
        await asyncio.to_thread(self.gateway.terminate)
        await self._emptied(self.source)
        copies = self.taken + await self.target.take_all(self.target.queue)
        dead = await self._dead_letters()
        await self._emptied(self.target)
        self.history.drained = True
        self.seconds = time.monotonic() - self._began
        self._slow_machine()
        self.found = self.recorded()
        found = Found(self.history, copies, dead, self.found, self.accidents, frozenset(self.poison))
        self.verdict = checker.check(found)
        self.look_at_log()
        self.verdict.problems += self.failures
        assert self.verdict.valid, self.summary()
        self.note(unrecorded=self.verdict.unrecorded, marked=self.verdict.marked)
        self.ledger.check(self)  # type: ignore[arg-type]  # it needs a name only
        return self.verdict

    def _slow_machine(self) -> None:
        """On a machine that stands still the gateway loses brokers that no fault of the row took away, and ends before
        the target has confirmed what is on its way; it says so."""
        for event in self.gateway.events("bridge.not_drained"):
            at = datetime.fromisoformat(event["at"]).timestamp()
            self.accidents.append(Accident(at, event["messages"], 0 if self.exactly_once else event["messages"]))
            self.note(not_drained=event["messages"])
        missed = [event for event in self.gateway.events("broker.state") if "no heartbeat" in event["reason"]]
        if missed:
            most = 0 if self.exactly_once else self._bridge.get("prefetch", PREFETCH)
            times = (datetime.fromisoformat(event["at"]).timestamp() for event in missed)
            self.accidents += [Accident(at, 0, most) for at in times]
            self.note(heartbeats_missed=len(missed))
        self.accidents.sort(key=lambda accident: accident.at)

    async def _emptied(self, side: Side) -> None:
        """Look into its queue. Raises NotDrained."""
        if number := await asyncio.to_thread(left, side.server, side.queue):
            raise NotDrained(f"{number} messages are left in the {side.name}")

    async def drained(self, within: float = 60.0) -> None:
        """Let the bridge go on until nothing is left in the source, nor between source and target.

        Raises:
            NotDrained: there still is, after so many seconds.
        """
        deadline = time.monotonic() + within
        quiet = 0
        while quiet < 3:
            ready, (leases, pending) = await self.source.ready(), await self.in_flight()
            quiet = 0 if ready or leases or pending else quiet + 1
            if time.monotonic() > deadline:
                said = f"{await self.status()}\n{self.summary()}"
                raise NotDrained(f"after {within:g} s {ready} messages wait and {leases} are out\n{said}")
            await asyncio.sleep(0.05)

    async def _dead_letters(self) -> list[Copy]:
        """What is at the dead-letter place, which is there only if something ever was."""
        try:
            await self.source.upstream.query_queue(self.dead_queue)
        except NotFound:
            return []
        return await self.source.take_all(self.dead_queue)

    def recorded(self) -> dict[str, Recorded]:
        """What the ledger says of every message that the bridge took, by the gateway's id."""
        names = dict(self.ledger.query("SELECT id, properties FROM messages WHERE origin = 'bridge'"))
        rows = self.ledger.query(
            "SELECT message_id, kind, detail, at FROM events ORDER BY message_id, at, shard, sequence"
        )
        found: dict[str, Recorded] = {}
        for id, events in groupby(rows, key=lambda row: bytes(row[0])):
            if id in names:
                listed = list(events)
                state = state_of(EventKind(each[1]) for each in listed)
                detail = parse(listed[-1][2])
                target, resent = detail.get("target", ""), ", resent" if detail.get("resent") else ""
                told = f"{EventKind(listed[-1][1]).name.lower()} at {listed[-1][3] / 1e6:.6f}{resent}"
                found[id_text(id)] = Recorded(parse(names[id]).get("message_id", ""), str(state), str(target), told)
        return found

    def row(self) -> tuple[str, ...]:
        """The line of the table."""
        assert self.verdict is not None
        return checker.row(self.name, self.direction, self.verdict, self.accidents, self.times, self.seconds, self.seed)

    def summary(self) -> str:
        """Everything there is to know, for a failure."""
        lines = [f"{self.name}, {self.direction}, seed {self.seed}"]
        if self.verdict is not None:
            lines += [f"  problem: {problem}" for problem in self.verdict.problems]
            lines.append(common.table([self.row()], checker.COLUMNS))
        lines.append(f"  {self.load.attempted} attempted, errors of the load {self.load.errors}")
        lines.append(f"  {len(self.accidents)} accidents, notes {self.notes}")
        lines += self._twice()
        return "\n".join(lines)

    def _twice(self) -> list[str]:
        """Of some messages that are recorded under several ids, in which order that came about."""
        ids: dict[str, list[str]] = {}
        for gateway_id, recorded in self.found.items():
            ids.setdefault(recorded.id, []).append(f"{gateway_id} {recorded.told}")
        twice = [f"  {id}: {'; '.join(sorted(each))}" for id, each in ids.items() if id and len(each) > 1][:TWICE]
        times = ", ".join(f"{accident.at:.3f}" for accident in self.accidents)
        return [*twice, f"  accidents at {times}"] if twice else []
