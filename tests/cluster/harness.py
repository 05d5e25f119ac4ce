"""Several gateways on one ledger, with bridges between queues of one broker.

::

    async with Cluster(rabbitmq, postgresql, "owners killed", replicas=2, bridges=4, seed=7) as cluster:
        cluster.begin()                                   # messages straight to the source queues
        await cluster.settled()                           # every bridge runs somewhere, evenly
        at = cluster.kill(cluster.owner_of(0))            # whatever the row is about
        await cluster.finish()                            # drain, look at the broker, the ledger and the audit

All messages must be found at the target, nothing changed, and none twice but what a process had in flight when it was
killed or paused; the database's own record (:mod:`tests.cluster.audit`) must show no two owners at a time, and no write
of one that had lost its work.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg

from gateway.ledger import Ledger
from gateway.ledger.db.encoding import parse
from gateway.ledger.db.ids import id_text
from gateway.ledger.writing.states import EventKind, state_of
from tests.cluster import audit
from tests.faults.bridges import checker
from tests.faults.bridges.checker import Accident, Found, Recorded, Verdict
from tests.faults.bridges.harness import Side
from tests.faults.bridges.load import MESSAGES
from tests.faults.checker import History, NotDrained
from tests.faults.harness import GatewayFailed, GatewayProcess
from tests.faults.http import Answer, NoAnswer, NotSent
from tests.faults.source import Load, Shape, left
from tests.servers import PostgreSQL, RabbitMQ
from tests.traces import QUERY, impossible_traces

PREFETCH: Final = 50
"""Of each bridge, so that the bound of what may come twice is a tight one."""
LEASE: Final = 6.0
"""``ledger.shard_lease``, in seconds: the default."""
TAKEOVER: Final = 10.0
"""Within so many seconds of a kill the work is another's; how often it was later is in the notes, for a machine that
has other things to do proves nothing."""
PATIENCE: Final = 30.0
"""And within so many it must be."""


class Replica(GatewayProcess):
    """One gateway of the cluster."""

    name = ""

    @property
    def in_flight(self) -> bool:
        """Whether a publish is unconfirmed, or a delivery unacknowledged, as it says."""
        found = self.get_ops("/metrics")
        lines = [] if found is None else found[1].splitlines()
        return any(line.startswith("amqpgw_bridge_in_flight") and not line.endswith(" 0.0") for line in lines)

    async def bridge(self, name: str) -> dict[str, Any]:
        """What it says of a bridge."""
        answer = await self.ask("GET", f"/v1/bridges/{name}")
        found: dict[str, Any] = answer.json()
        return found


class Cluster:
    """See the module."""

    def __init__(
        self,
        broker: RabbitMQ,
        database: PostgreSQL,
        name: str,
        *,
        replicas: int = 2,
        bridges: int = 4,
        shape: Shape | None = None,
        seed: int = 1,
        version: str = "0-9-1",
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.seed = seed
        self.database = database
        self.url = database.create_database()
        self.folder = Path(tempfile.mkdtemp(prefix="gateway-cluster-"))
        self.history = History()
        self.accidents: list[Accident] = []
        self._moves: list[tuple[str, float]] = []
        self.notes: dict[str, Any] = {}
        self.failures: list[str] = []
        self.verdict: Verdict | None = None
        self.audit = audit.Audit()
        self.seconds = 0.0
        run = uuid4().hex[:8]
        self.bridges = [f"b{number}-{run}" for number in range(bridges)]
        shape = shape if shape is not None else Shape(messages=100, rate=25.0)
        self.side = Side("rabbit", broker, version, f"out-{run}", seed)
        self.target = self.side.queue
        self.sources = {bridge: f"in-{bridge}" for bridge in self.bridges}
        self.loads = {
            bridge: Load(self.history, shape, MESSAGES, self.side.upstream, queue, seed * 1_000 + number)
            for number, (bridge, queue) in enumerate(self.sources.items())
        }
        self.replicas: list[Replica] = []
        for number in range(replicas):
            folder = self.folder / f"replica-{number}"
            folder.mkdir()
            tables = self._tables(folder)
            for path, value in (settings or {}).items():
                section, _, key = path.partition(".")
                tables.setdefault(section, {})[key] = value
            replica = Replica(folder, tables)
            replica.name = f"replica-{number}"
            self.replicas.append(replica)

    def _tables(self, folder: Path) -> dict[str, Any]:
        broker = {"url": self.side.server.url(self.side.version), "reconnect_min": 0.05, "reconnect_max": 0.5}
        return {
            "data_dir": str(folder / "data"),
            "ledger": {"url": self.url, "shard_lease": LEASE},
            "brokers": {"rabbit": broker},
            "bridges": {
                bridge: {
                    "source": {"broker": "rabbit", "queue": queue},
                    "target": {"broker": "rabbit", "routing_key": self.target},
                    "prefetch": PREFETCH,
                }
                for bridge, queue in self.sources.items()
            },
        }

    # ----------------------------------------------------------------------------------------- begin, end

    async def __aenter__(self) -> Cluster:
        try:
            await asyncio.to_thread(Ledger.migrate, self.url)
            await asyncio.to_thread(audit.watch, self.url)
            await self.side.upstream.start()
            if not await self.side.upstream.wait_up(30):
                raise GatewayFailed(f"the broker: {self.side.upstream.reason}")
            for queue in (self.target, *self.sources.values()):
                await self.side.upstream.declare_queue(queue)
            for replica in self.replicas:
                await asyncio.to_thread(replica.start)
        except BaseException:
            await self._close()
            raise
        self._began = time.monotonic()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        for load in self.loads.values():
            await load.abandon()
        if kind is not None:
            print(self.summary(), file=sys.stderr)
            for replica in self.replicas:
                print(f"\n{replica.name}'s log ends:\n{replica.log()[-3000:]}", file=sys.stderr)
        await self._close()

    async def _close(self) -> None:
        for replica in self.replicas:
            replica.close()
        await self.side.close(self.target, *self.sources.values(), *(f"gateway.dead.{name}" for name in self.bridges))
        await asyncio.to_thread(self.database.drop_database, self.url)
        shutil.rmtree(self.folder, ignore_errors=True)

    def begin(self) -> None:
        """Messages come to all sources from now on."""
        for load in self.loads.values():
            load.begin()

    # -------------------------------------------------------------------------------------- for the rows

    def query(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Ask the database itself."""
        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as connection:
            return connection.execute(statement.encode(), parameters or None).fetchall()

    def owners(self) -> dict[str, str]:
        """Bridge -> host and process of its living owner, as the database says."""
        rows = self.query(
            "SELECT work.name, shards.owner FROM work JOIN shards USING (shard, fence)"
            " WHERE kind = 'bridge' AND shards.owner IS NOT NULL"
        )
        return {bytes(name).decode(): owner for name, owner in rows}

    def replica_of(self, owner: str) -> Replica:
        """The replica of a host and process."""
        pid = int(owner.rpartition(":")[2])
        return next(each for each in self.replicas if each.process is not None and each.process.pid == pid)

    def owner_of(self, bridge: str) -> Replica:
        """The replica that owns a bridge."""
        return self.replica_of(self.owners()[bridge])

    def owned_by(self, replica: Replica) -> list[str]:
        """The bridges that a replica owns."""
        assert replica.process is not None
        return [name for name, owner in self.owners().items() if owner.endswith(f":{replica.process.pid}")]

    async def until(self, condition: Callable[[], bool], within: float, what: str) -> float:
        """Wait until something of the database is so; how many seconds that took.

        Raises:
            GatewayFailed: it is not so in time.
        """
        began = time.monotonic()
        while not await asyncio.to_thread(condition):
            if time.monotonic() - began > within:
                raise GatewayFailed(f"{what}: not within {within:g} s; owners {self.owners()}")
            await asyncio.sleep(0.05)
        return time.monotonic() - began

    async def spread(self, *replicas: Replica, within: float = 30.0) -> float:
        """Wait until these replicas own all bridges between them, nobody two more than another."""

        def even() -> bool:
            counts = [len(self.owned_by(replica)) for replica in replicas]
            return sum(counts) == len(self.bridges) and max(counts) - min(counts) <= 1

        return await self.until(even, within, "the bridges are not spread evenly")

    async def forwards(self, *bridges: str, more: int = 5, within: float = 30.0) -> None:
        """Wait until each of these has forwarded so many more messages, whoever runs it."""
        count = "SELECT count(*) FROM events WHERE kind = 'forwarded' AND position(%s::bytea IN detail) > 0"
        for bridge in bridges:
            before = self.query(count, bridge.encode())[0][0]

            def more_now(bridge: str = bridge, before: int = before) -> bool:
                return bool(self.query(count, bridge.encode())[0][0] >= before + more)

            await self.until(more_now, within, f"{bridge} forwards nothing")

    async def ask(self, replica: Replica, method: str, path: str, body: Any = None) -> Answer:
        """One request to one replica; again while it does not answer."""
        deadline = time.monotonic() + 30
        while True:
            try:
                return await replica.ask(method, path, body)
            except (NotSent, NoAnswer):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)

    def accident(self, bridges: list[str]) -> None:
        """Whatever these bridges had in flight until now may come twice."""
        most = PREFETCH * len(bridges)
        self.accidents.append(Accident(time.time(), most, most, counts=True))

    def must_move(self, bridges: list[str], since: float) -> None:
        """When the run is over: these had another owner soon after that time, by the database's clock."""
        self._moves += [(bridge, since) for bridge in bridges]

    def must(self, condition: bool, text: str) -> None:
        """A check of the row's own."""
        if not condition:
            self.failures.append(text)

    # ------------------------------------------------------------------------------------------- the end

    async def finish(self, drain_within: float = 90.0) -> Verdict:
        """Let the loads end, drain, and check.

        Raises:
            NotDrained: a source was never seen empty.
            AssertionError: something is not as it must be.
        """
        await asyncio.gather(*(load.stop() for load in self.loads.values()))
        await self._drained(drain_within)
        await asyncio.gather(*(asyncio.to_thread(each.terminate) for each in self.replicas if each.running))
        for queue in self.sources.values():
            if number := await asyncio.to_thread(left, self.side.server, queue):
                raise NotDrained(f"{number} messages are left in {queue}")
        copies = await self.side.take_all(self.target)
        for replica in self.replicas:
            for lost in replica.events("work.lost"):  # it dropped what it had in flight
                at = datetime.fromisoformat(lost["at"]).timestamp()
                most = PREFETCH * lost["work"].get("bridge", 0)
                self.accidents.append(Accident(at, most, most))
        self.history.drained = True
        self.seconds = time.monotonic() - self._began
        self.accidents.sort(key=lambda accident: accident.at)
        self.audit = await asyncio.to_thread(audit.read, self.url)
        self.verdict = checker.check(Found(self.history, copies, (), self._recorded(), self.accidents))
        for bridge, since in self._moves:
            took = self.audit.taken_after(("bridge", bridge), since)
            self.must(took is not None and took <= PATIENCE, f"{bridge} had another owner after {took} s")
            self.notes["moved_s"] = max(self.notes.get("moved_s", 0.0), took or 0.0)
            self.notes["moved late"] = self.notes.get("moved late", 0) + ((took or PATIENCE) > TAKEOVER)
        problems = self.verdict.problems
        problems += [f"two owners at a time: {text}" for text in self.audit.overlaps[:5]]
        problems += [f"written by one that was not the owner: {text}" for text in self.audit.strays[:5]]
        for replica in self.replicas:
            faults = [line for line in replica.log().splitlines() if '"exception"' in line or "Traceback" in line]
            self.must(not faults, f"{len(faults)} exceptions in the log of {replica.name}: {faults[:1]}")
        problems += self.failures
        problems += self._doubles()
        problems += impossible_traces(self.query(QUERY))[:5]
        assert self.verdict.valid, self.summary()
        return self.verdict

    def _doubles(self) -> list[str]:
        """Rows that are there twice, gaps in a sequence, work that somebody still owns."""
        counts = {
            "events that are there twice": "SELECT count(*) FROM (SELECT 1 FROM events"
            " GROUP BY message_id, kind, at HAVING count(*) > 1) AS found",
            "messages with two outcomes": "SELECT count(*) FROM (SELECT 1 FROM events"
            " WHERE kind IN ('confirmed', 'forwarded') GROUP BY message_id HAVING count(*) > 1) AS found",
            "shards with gaps in their sequence": "SELECT count(*) FROM (SELECT 1 FROM events"
            " GROUP BY shard HAVING max(sequence) - min(sequence) + 1 <> count(*)) AS found",
            "pieces of work that still have an owner": "SELECT count(*) FROM work JOIN shards USING (shard, fence)"
            " WHERE shards.owner IS NOT NULL",
        }
        return [f"{count} {what}" for what, text in counts.items() if (count := self.query(text)[0][0])]

    async def _drained(self, within: float) -> None:
        deadline = time.monotonic() + within
        quiet = 0
        while quiet < 3:
            ready = [await self.side.upstream.query_queue(queue) for queue in self.sources.values()]
            held = await asyncio.gather(*(self._held(replica) for replica in self.replicas if replica.running))
            waiting = sum(found.message_count or 0 for found in ready) + sum(held)
            quiet = 0 if waiting else quiet + 1
            if time.monotonic() > deadline:
                raise NotDrained(f"after {within:g} s {waiting} messages are not forwarded\n{self.summary()}")
            await asyncio.sleep(0.1)

    async def _held(self, replica: Replica) -> int:
        answer = await self.ask(replica, "GET", "/v1/brokers/rabbit")
        found = answer.json()
        return int(found["leases"] + found["pending"])

    def _recorded(self) -> dict[str, Recorded]:
        names = dict(self.query("SELECT id, properties FROM messages WHERE origin = 'bridge'"))
        rows = self.query("SELECT message_id, kind, detail FROM events ORDER BY message_id, at, shard, sequence")
        found: dict[str, Recorded] = {}
        for id, events in groupby(rows, key=lambda row: bytes(row[0])):
            if id in names:
                listed = list(events)
                state = state_of(EventKind(kind) for _, kind, _ in listed)
                target = parse(listed[-1][2]).get("target", "")
                found[id_text(id)] = Recorded(parse(names[id]).get("message_id", ""), str(state), str(target))
        return found

    def row(self) -> tuple[str, ...]:
        """The line of the table."""
        verdict = self.verdict
        assert verdict is not None
        figures = (
            len(self.replicas), len(self.bridges), verdict.attempted, verdict.acknowledged, len(verdict.lost),
            len(verdict.unexpected), verdict.duplicated, verdict.bound, self.audit.moves, len(self.audit.overlaps),
            len(self.audit.strays), f"{self.notes.get('moved_s', 0.0):.1f}", f"{self.seconds:.0f}", self.seed,
        )  # fmt: skip
        return self.name, *map(str, figures)

    def summary(self) -> str:
        """Everything there is to know, for a failure."""
        lines = [f"{self.name}, seed {self.seed}: notes {self.notes}, {len(self.accidents)} accidents"]
        if self.verdict is not None:
            lines += [f"  problem: {problem}" for problem in self.verdict.problems]
        for bridge, load in self.loads.items():
            lines.append(f"  {bridge}: {load.attempted} attempted in all, errors {load.errors}")
        return "\n".join(lines)


COLUMNS: Final = (
    "row", "processes", "bridges", "attempted", "acknowledged", "lost", "unexpected", "duplicated", "at most", "moves",
    "overlaps", "stray writes", "slowest move (s)", "seconds", "seed",
)  # fmt: skip
"""Of the table that a run prints."""
