"""A run: a gateway as a process of its own with many lanes at once, a load, a fault, and a verdict for each lane.

::

    async with ConsumerRun(lanes, server, "gateway killed", Shape(messages=500), seed=7) as run:
        await run.begin()                 # messages straight to the brokers, consumers at work
        await run.consumed(20)            # until the consumers of every lane have had so many more
        await run.kill(); ...             # whatever the row is about
        await run.finish()                # drain, look at brokers and ledger, check; fails unless valid
        run.rows()                        # the lines of the table

Parts of it that rows use: ``run.lanes`` (:class:`Line`: lane, history, load, consumers), ``run.gateway``
(:class:`~tests.faults.harness.GatewayProcess`), ``run.server(kind)`` (the broker itself), ``run.note(...)``,
``run.must(condition, text)``.

The drain is part of the run: the loads end, and the consumers go on until every queue is empty, nobody holds a lease,
and the ledger owes nothing. Then the gateway is ended by SIGTERM, a client that is not ours looks into the queues, and
the tables of the ledger are read: anything that is left there makes the run an error, never a pass.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from gateway.config import BrokerSettings
from gateway.errors import GatewayError
from gateway.upstreams import Upstream
from tests.faults import checker as common
from tests.faults.checker import History, NotDrained, Outcome, Verdict
from tests.faults.consumers import checker
from tests.faults.consumers.checker import COLUMNS, Found
from tests.faults.consumers.lanes import NDJSON, PULL, PUSH, SSE, Lane
from tests.faults.consumers.messages import MESSAGES
from tests.faults.consumers.pulls import DEADLINE, Consumers
from tests.faults.consumers.receiver import DEADLINE as ENDPOINT_DEADLINE
from tests.faults.consumers.receiver import Receiver
from tests.faults.consumers.streams import Stream
from tests.faults.harness import FaultRun, GatewayFailed, GatewayProcess
from tests.faults.ledgers import Place
from tests.faults.source import Load, Shape, left
from tests.servers.process import Server

BROKER: Final[Mapping[str, Any]] = {
    "heartbeat": 10.0,
    "connect_timeout": 5.0,
    "reconnect_min": 0.1,
    "reconnect_max": 1.0,
}
"""Settings of the gateway's brokers."""
ENDPOINT: Final[Mapping[str, Any]] = {
    "deadline": ENDPOINT_DEADLINE,
    "schedule": [0.0, *[0.2] * 5, *[1.0] * 94],
    "breaker_failures": 20,
    "breaker_open_max": 1.0,
}
"""Of endpoints: no message dies of a fault, and retries come soon."""
SUBSCRIPTION: Final[Mapping[str, Any]] = {"ack_deadline_seconds": int(DEADLINE), "prefetch": 50}
"""Of subscriptions."""
_OWN: Final = {"heartbeat": 30.0, "reconnect_min": 0.05, "reconnect_max": 0.5, "publish_repeat": False}
"""How the run's own connections to the brokers are set."""
_OWED: Final = "SELECT subscription, count(*) FROM deliveries GROUP BY subscription"
_LEFT: Final = {"deliveries": "SELECT count(*) FROM deliveries", "bodies": "SELECT count(*) FROM bodies"}
"""What must be empty in the ledger at the end -> how to count it."""


class Line:
    """A lane of the run: its queue, its load and its consumers."""

    def __init__(self, lane: Lane, queue: str, upstream: Upstream, shape: Shape, seed: int) -> None:
        self.lane = lane
        self.queue = queue
        self.upstream = upstream
        self.history = History()
        self.load = Load(self.history, shape, MESSAGES, upstream, queue, seed)
        self.consumers: Consumers
        self.verdict: Verdict | None = None
        self.kills = 0
        """Kills that found a message out, and one in the ledger where that is where it waits."""

    @property
    def stores(self) -> bool:
        """Whether its messages wait in the ledger, all or some of them."""
        return self.lane.lease == "ledger" or self.lane.way == PUSH


class ConsumerRun(FaultRun):
    """One row, once, for some lanes. Entering it declares the queues and starts the gateway."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        server: Callable[[str], Server],
        name: str,
        shape: Shape,
        *,
        seed: int = 1,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        ledger: Place,
    ) -> None:
        """
        Args:
            server: kind -> a server of that kind.
            shape: of the load of each lane.
            settings: tables of the configuration file over those of all runs: ``subscriptions``, ``endpoints``.
            ledger: where the gateway keeps its ledger.
        """
        super().__init__(name, seed)
        self.shape = shape
        self.random = random.Random(f"{seed} moments")
        self.broken: list[float] = []
        """When leases that brokers hold were lost."""
        self.restarts: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        """When the broker of a kind was told to end, and when it had."""
        self.ledger = ledger
        self.server = server
        self.lines: list[Line] = []
        self._lanes = lanes
        self._settings = settings or {}
        self._prefix = f"consumers-{uuid4().hex[:8]}"
        self._own: dict[str, Upstream] = {}

    async def __aenter__(self) -> ConsumerRun:
        try:
            for lane in self._lanes:
                if lane.broker not in self._own:
                    url = self.server(lane.server).url(lane.version)
                    own = Upstream(f"own-{lane.broker}", BrokerSettings(url=url, **_OWN))
                    await own.start()
                    self._own[lane.broker] = own
            for lane in self._lanes:
                own = self._own[lane.broker]
                if not await own.wait_up(30):
                    raise GatewayFailed(f"{lane.broker}: {own.reason}")
                line = Line(lane, f"{self._prefix}.{lane.slug}", own, self.shape, self.seed)
                await own.declare_queue(line.queue)
                self.lines.append(line)
            self.gateway = GatewayProcess(self.folder, {})
            for line in self.lines:
                line.consumers = self._consumers(line)
            self.gateway.configure(self._tables())
            await self.start()
        except BaseException:
            await self._close()
            raise
        self._began = time.monotonic()
        return self

    def _consumers(self, line: Line) -> Consumers:
        if line.lane.way == PUSH:
            return Receiver(line.lane, line.history, self.seed)
        kind = {PULL: Consumers, SSE: Stream, NDJSON: Stream}[line.lane.way]
        return kind(line.lane, line.history, self.gateway.port, self.seed)

    def _tables(self) -> dict[str, Any]:
        """The configuration file."""
        tables: dict[str, Any] = {
            "data_dir": str(self.folder / "data"),
            "ledger": {"url": self.ledger.url, "shard_lease": 2.0},
            "outbound": {"allow": ["127.0.0.0/8"]},
            "brokers": {},
            "subscriptions": {},
            "endpoints": {},
        }
        for line in self.lines:
            lane = line.lane
            url = self.server(lane.server).url(lane.version)
            tables["brokers"][lane.broker] = {"url": url, **BROKER}
            subscription = {"broker": lane.broker, "queue": line.queue, "lease": lane.lease, **SUBSCRIPTION}
            if isinstance(line.consumers, Receiver):
                subscription["push"] = lane.slug
                endpoint = {"url": line.consumers.url, **ENDPOINT, **self._settings.get("endpoints", {})}
                tables["endpoints"][lane.slug] = endpoint
            tables["subscriptions"][lane.slug] = {**subscription, **self._settings.get("subscriptions", {})}
        return tables

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None:
            self.explain()
        await self._close()

    async def _close(self) -> None:
        for line in self.lines:
            await line.load.abandon()
            if hasattr(line, "consumers"):
                await line.consumers.abandon()
        if hasattr(self, "gateway"):
            self.gateway.close()
        for line in self.lines:
            try:
                await line.upstream.delete_queue(line.queue)
            except GatewayError as error:  # the run has its verdict; a queue more or less does no harm
                print(f"{line.queue} stays: {error}", file=sys.stderr)
        for own in self._own.values():
            await own.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -------------------------------------------------------------------------------------- for the rows

    async def start(self) -> None:
        """Start the gateway, again after its end."""
        await asyncio.to_thread(self.gateway.start)

    async def begin(self) -> None:
        """Messages come, and consumers take them."""
        for line in self.lines:
            line.load.begin()
            await line.consumers.begin()

    def breaks(self) -> None:
        """From now on brokers may hand out again what they had handed out."""
        self.broken.append(time.monotonic())

    async def restart(self, kind: str) -> None:
        """End the broker of a kind in good order, and start it again on its data. Nothing is published meanwhile: a
        Broker-J that ends says of publishes of 0-10 that they are complete, and forgets them."""
        loads = [line.load for line in self.lines if line.lane.server == kind]
        await asyncio.gather(*(load.pause() for load in loads))
        server, told = self.server(kind), time.monotonic()
        self.breaks()
        await asyncio.to_thread(server.halt)
        ended = time.monotonic()
        self.restarts[kind].append((told, ended))
        print(f"{kind}: stopped from {told:.3f} to {ended:.3f}")
        self.breaks()
        await asyncio.to_thread(server.restart)
        for load in loads:
            load.begin()
        self.note(brokers_restarted=1)

    async def kill(self, patience: float = 3.0, within: float = 30.0) -> None:
        """SIGKILL for the gateway when a message is out and one is in the ledger, and its start. For a lane it counts
        where both were its own; so that it does for as many as possible, ``patience`` seconds are waited."""
        began = time.monotonic()
        counts: dict[str, bool] = {}
        while not all(counts.values()) or not counts:
            out = {line.lane.slug: line.consumers.open for line in self.lines}
            owed = await self.owed() if any(line.stores for line in self.lines) else {}
            counts = {
                line.lane.slug: bool(out[line.lane.slug] and (owed.get(line.lane.slug) or not line.stores))
                for line in self.lines
            }
            waited = time.monotonic() - began
            if waited > within or (waited > patience and any(counts.values())):
                break
            await asyncio.sleep(0.005)
        self.gateway.kill()
        self.breaks()
        self.note(kills=1, kills_that_count=int(any(counts.values())))
        for line in self.lines:
            line.kills += counts[line.lane.slug]
        await self.start()

    async def owed(self) -> dict[str, int]:
        """What the ledger owes to each subscription, by its tables."""
        rows = await asyncio.to_thread(self.ledger.query, _OWED)
        return {bytes(name).decode(): number for name, number in rows}

    async def consumed(self, more: int = 20, within: float = 90.0) -> None:
        """Wait until the consumers of every lane were handed so many more messages, or there are none.

        Raises:
            GatewayFailed: they were not, in time.
        """
        wanted = {line.lane.name: len(line.history.receptions) + more for line in self.lines}
        deadline = time.monotonic() + within
        slow = self.lines
        while slow := [line for line in slow if len(line.history.receptions) < wanted[line.lane.name]]:
            if time.monotonic() > deadline:
                names = ", ".join(line.lane.name for line in slow)
                raise GatewayFailed(f"no {more} messages more within {within:g} s for {names}")
            await asyncio.sleep(0.02)

    # ------------------------------------------------------------------------------------------- the end

    async def finish(self, within: float = 180.0) -> None:
        """Let the loads end, drain, look at brokers and ledger, and check.

        Raises:
            NotDrained: a source was never seen empty, or somebody is still owed something.
            AssertionError: a verdict or one of the row's own checks is bad; with everything there is to know.
        """
        await asyncio.gather(*(line.load.stop() for line in self.lines))
        drained = time.monotonic()
        await self._drain(within)
        self.note(drain_s=round(time.monotonic() - drained, 1))
        for line in self.lines:
            await line.consumers.stop()
        await self._nothing_is_owed()
        states = await self.gateway.ledger_states()
        self.note(exit_s=round(await asyncio.to_thread(self.gateway.terminate), 1))
        for line in self.lines:
            if number := await asyncio.to_thread(left, self.server(line.lane.server), line.queue):
                raise NotDrained(f"{number} messages are left in the queue of {line.lane.name}\n{self.summary()}")
            line.history.drained = True
        self.seconds = time.monotonic() - self._began
        since_1970 = time.time() - time.monotonic()
        found = [
            Found(line.lane, line.history, states, self.broken, self.restarts[line.lane.server], since_1970)
            for line in self.lines
        ]
        for line, each in zip(self.lines, found, strict=True):
            line.verdict = checker.check(each)
            if complaints := line.consumers.complaints:
                line.verdict.problems.append(f"{len(complaints)} bad answers: {complaints[:3]}")
        strange = checker.never_handed_out(found, states)
        self.must(not strange, f"{len(strange)} messages of which no consumer knows: {strange[:3]}")
        self.look_at_log()
        assert not self.problems(), self.summary()
        self.ledger.check(self)  # type: ignore[arg-type]  # it needs a name only

    async def _drain(self, within: float) -> None:
        """Let the consumers go on until nothing is anywhere."""
        deadline = time.monotonic() + within
        quiet = 0
        while quiet < 3:
            ready = {line.lane.name: (await line.upstream.query_queue(line.queue)).message_count for line in self.lines}
            out = {line.lane.name: line.consumers.open for line in self.lines}
            leases = await self._leases()
            owed = await self.owed()
            idle = not (any(ready.values()) or any(out.values()) or any(leases.values()) or any(owed.values()))
            quiet = quiet + 1 if idle else 0
            if time.monotonic() > deadline:
                raise NotDrained(
                    f"after {within:g} s ready {_some(ready)}, out {_some(out)}, leases {_some(leases)}, "
                    f"owed {_some(owed)}\n{await self._statuses(_some(ready).keys())}\n{self.summary()}"
                )
            await asyncio.sleep(0.1)

    async def _statuses(self, names: Collection[str]) -> str:
        """What the gateway says of lanes that are stuck."""
        paths = [
            f"/v1/{kind}/{line.lane.slug}"
            for line in self.lines
            if line.lane.name in names
            for kind in ("subscriptions", "endpoints")
        ]
        return "\n".join([f"{path}: {(await self.gateway.ask('GET', path)).body.decode()}" for path in paths])

    async def _leases(self) -> dict[str, int]:
        """How many messages of each broker are out, as the gateway says."""
        answers = [await self.gateway.ask("GET", f"/v1/brokers/{broker}") for broker in self._own]
        return {broker: answer.json()["leases"] for broker, answer in zip(self._own, answers, strict=True)}

    async def _nothing_is_owed(self) -> None:
        """``/v1/deliveries`` and the tables behind it are empty.

        Raises:
            NotDrained: they are not.
        """
        answer = await self.gateway.ask("GET", "/v1/deliveries")
        if answer.status != 200 or answer.json()["deliveries"]:
            raise NotDrained(f"/v1/deliveries: {answer.status} {answer.body[:500]!r}\n{self.summary()}")
        for what, statement in _LEFT.items():
            ((number,),) = await asyncio.to_thread(self.ledger.query, statement)
            if number:
                raise NotDrained(f"the ledger still has {number} {what}\n{self.summary()}")

    def problems(self) -> list[str]:
        """Everything that must not be, of all lanes and of the row itself."""
        found = [
            f"{line.lane.name}: {problem}" for line in self.lines if line.verdict for problem in line.verdict.problems
        ]
        return found + self.failures

    def rows(self) -> list[tuple[str, ...]]:
        """The lines of the table."""
        return [
            checker.row(self.name, line.lane, line.verdict, line.kills, self.seconds, self.seed)
            for line in self.lines
            if line.verdict is not None
        ]

    def summary(self) -> str:
        """Everything there is to know, for a failure."""
        lines = [f"{self.name}, {len(self.lines)} lanes, seed {self.seed}, notes {self.notes}"]
        lines += [f"  problem: {problem}" for problem in self.problems()]
        if rows := self.rows():
            lines.append(common.table(rows, COLUMNS))
        for line in self.lines:
            acknowledged = line.history.count(Outcome.ACKNOWLEDGED)
            lines.append(
                f"  {line.lane.name}: {line.load.attempted} attempted, {acknowledged} acknowledged, "
                f"{len(line.history.receptions)} received, {line.consumers.open} out, {dict(line.consumers.answers)}, "
                f"errors of the load {line.load.errors}, complaints {line.consumers.complaints[:3]}"
            )
        return "\n".join(lines)


def _some(numbers: Mapping[str, int | None]) -> dict[str, int | None]:
    """Those that are not 0."""
    return {name: number for name, number in numbers.items() if number}
