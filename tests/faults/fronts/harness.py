"""A run: a gateway as a process of its own with a front, its broker behind a proxy, a load, a fault, a verdict.

Between clients and front there are two proxies more: one for most clients, one for those that are to be slow. Half of
the messages go to a durable queue, half to one that clients of RabbitMQ declare as transient and the front makes
durable.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any, Final
from uuid import uuid4

from tests import canary
from tests.faults import checker
from tests.faults.checker import History, NotDrained, Outcome, Verdict
from tests.faults.fronts.clients import USER
from tests.faults.fronts.load import Load, Shape
from tests.faults.harness import FaultRun, GatewayFailed, GatewayProcess, url_at
from tests.faults.ledgers import Place
from tests.faults.proxy import Proxy
from tests.ledgers import sqlite_ledger
from tests.servers import RabbitMQ
from tests.servers.process import Server, free_port

PROGRESS_WITHIN: Final = 240.0
"""How long a part of the load may take, in seconds."""
NEVER_LOGGED: Final = (
    "front.undeliverable", "front.publishes_given_up", "front.consumer_lost", "front.publish_refused",
    "front.not_restored", "front.stuck",
)  # fmt: skip
"""Events that no fault may bring about."""


class FrontRun(FaultRun):
    """One row, once. Entering it starts proxies and gateway, and declares the queues.

    Args:
        server: RabbitMQ or Broker-J, running.
        version: in which the front speaks to it.
        name: of the row.
        shape: of the load.
        seed: of messages and proxies.
        settings: of the front.
        place: where the ledger is; None: SQLite in the run's folder.
    """

    def __init__(
        self,
        server: Server,
        version: str,
        name: str,
        shape: Shape,
        seed: int = 1,
        settings: Mapping[str, Any] | None = None,
        place: Place | None = None,
    ) -> None:
        super().__init__(name, seed)
        self.server = server
        self.version = version
        self.shape = shape
        self.place: Any = place
        self.history = History()
        self.verdict: Verdict | None = None
        self.queues = (f"durable-{uuid4().hex[:12]}", f"rewritten-{uuid4().hex[:12]}")
        self.may_break = False
        """The fault is one that clients notice."""
        self._settings = settings or {}
        self.proxy: Proxy
        """Between front and broker."""
        self.clients: Proxy
        """Between most clients and the front."""
        self.slow: Proxy
        """Between slow clients and the front."""
        self.load: Load

    async def __aenter__(self) -> FrontRun:
        port = free_port()
        self.proxy, self.clients, self.slow = (Proxy(each, self.seed) for each in (self.server.port, port, port))
        self.gateway = GatewayProcess(self.folder, self._tables(port))
        with self.gateway.config.open("a", encoding="utf-8") as config:
            config.write(f'[[fronts.legacy.users]]\nname = "{USER}"\npassword = "{USER}"\n')
        ports = self.clients.port, self.slow.port
        self.load = Load(self.history, self.shape, ports, self.queues, self.seed)
        try:
            if self.place is not None and self.place.url.startswith("postgresql"):
                await asyncio.to_thread(self.gateway.run, "migrate")
            await asyncio.to_thread(self.gateway.start)
            durable, rewritten = self.queues
            await self.load.declare(port, {durable: True, rewritten: not isinstance(self.server, RabbitMQ)})
            if isinstance(self.server, RabbitMQ):  # it forgets a queue that is seconds old when it is killed
                await asyncio.to_thread(self.server.write_tables)
        except BaseException:
            await self._close()
            raise
        self._began = time.monotonic()
        self.load.begin()
        return self

    def _tables(self, port: int) -> dict[str, Any]:
        url = url_at(self.server, self.proxy.port, self.version, canary.login(self.server))
        broker = {"url": url, "heartbeat": 2.0, "connect_timeout": 3.0, "reconnect_min": 0.1, "reconnect_max": 1.0}
        rules = {"transient_queue": "on"} if isinstance(self.server, RabbitMQ) else {}
        front = {"port": port, "broker": "b", "rules": rules, **self._settings}
        tables: dict[str, Any] = {
            "data_dir": str(self.folder / "data"), "brokers": {"b": broker}, "fronts": {"legacy": front}
        }  # fmt: skip
        if self.place is not None:
            tables["ledger"] = {"url": self.place.url}
        else:
            sqlite_ledger(self.folder / "data")
        return tables

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        await self.load.abandon()
        if kind is not None:
            self.explain()
        await self._close()

    async def _close(self) -> None:
        self.gateway.close()
        for proxy in (self.proxy, self.clients, self.slow):
            proxy.close()
        if self.server.running and self.server.owned:
            self.server.resume()
        for queue in self.queues:
            with suppress(Exception):  # the run has its verdict; a queue more or less does no harm
                await asyncio.to_thread(self.server.delete_queue, queue)  # type: ignore[attr-defined]  # both have it
        shutil.rmtree(self.folder, ignore_errors=True)

    # -------------------------------------------------------------------------------------------- for the rows

    @property
    def failure(self) -> str:
        """See :class:`~tests.faults.harness.FaultRun`."""
        return self.load.failure and f"a client failed: {self.load.failure}"

    async def part(self, number: int, times: int) -> None:
        """Let the load go on to the end of this part of ``times + 1``, and wait until half of that was attempted."""
        self.load.allow((number + 1) / (times + 1))
        wanted = (number + 0.5) / (times + 1) * self.shape.messages
        await self.until(lambda: self.load.made >= wanted, PROGRESS_WITHIN, f"not {wanted:.0f} messages were attempted")

    async def part_done(self) -> None:
        """Wait until all that was allowed has its outcome."""
        await self.until(lambda: self.load.is_done, PROGRESS_WITHIN, "publishes have no outcome")

    async def delivered(self) -> None:
        """Wait until all that was acknowledged has come to consumers."""

        def all_came() -> bool:
            return all(
                each.id in self.load.received
                for each in self.history.publishes.values()
                if each.outcome is Outcome.ACKNOWLEDGED
            )

        await self.until(all_came, PROGRESS_WITHIN, "not all that was acknowledged has come")

    @property
    def acknowledged(self) -> int:
        """Publishes that were confirmed so far."""
        return self.history.count(Outcome.ACKNOWLEDGED)

    # ------------------------------------------------------------------------------------------------- the end

    async def finish(self) -> Verdict:
        """Let publishers end, drain, and check.

        Raises:
            NotDrained: the queues were never seen empty.
            AssertionError: the verdict or one of the row's own checks is bad; with everything there is to know.
        """
        self.load.allow(1.0)
        all_made = lambda: self.load.made >= self.shape.messages and self.load.is_done  # noqa: E731
        await self.until(all_made, PROGRESS_WITHIN, "publishers did not end")
        await self.load.produced()
        try:
            await self.until(lambda: self.load.is_quiet, 120.0, "it did not get quiet")
        except GatewayFailed as error:
            raise NotDrained(f"{error}\n{self.summary()}") from None
        await self.load.stop()
        await self._look_at_metrics()
        await asyncio.to_thread(self.gateway.terminate)
        left = {queue: await asyncio.to_thread(self._depth, queue) for queue in self.queues}
        self._look_at_ledger()
        self.history.drained = True
        self.seconds = time.monotonic() - self._began
        self.verdict = checker.check(self.history)
        self.must(not any(left.values()), f"messages are left: {left}")
        breaks = self.load.breaks
        self.must(self.may_break or not breaks, f"{len(breaks)} client connections were lost: {breaks[:3]}")
        self.note(broken=len(breaks))
        self.look_at_log()
        for event in NEVER_LOGGED:
            lines = self.gateway.events(event)
            self.must(not lines, f"{len(lines)} events {event}: {lines[:1]}")
        refused = self.history.count(Outcome.NOT_TAKEN)
        self.must(not refused, f"{refused} publishes were refused")
        self.verdict.problems += self.failures
        assert self.verdict.valid, self.summary()
        return self.verdict

    def _depth(self, queue: str) -> int:
        """What a client of the broker's own finds in a queue. Broker-J counts a message for moments after it was
        acknowledged."""
        deadline = time.monotonic() + 10.0
        while True:
            try:
                depth = int(self.server.queue_depth(queue))  # type: ignore[attr-defined]  # both have it
            except Exception as error:
                raise NotDrained(f"the queue cannot be looked into: {error!r}") from error
            if not depth or time.monotonic() > deadline:
                return depth
            time.sleep(0.2)

    def _look_at_ledger(self) -> None:
        """No event may follow another that it cannot follow, and with timelines each message that was consumed has one
        that says so."""
        if self.place is not None:
            self.place.check(self)
            return
        self.failures += self.traces_of_file()
        with closing(sqlite3.connect(self.folder / "data" / "ledger.db")) as connection:
            taken = "SELECT count(DISTINCT message_id) FROM events WHERE kind = 'acknowledged'"
            ((acknowledged,),) = connection.execute(taken).fetchall()
        if self._settings.get("record") == "all":
            self.note(timelines=acknowledged)
            wanted = len(self.load.received)
            self.must(acknowledged >= wanted, f"{acknowledged} timelines end with acknowledged, of {wanted}")

    async def _look_at_metrics(self) -> None:
        """Nothing may be left at the front, and what it says of its publishes is noted."""
        held, page = ["nobody has looked yet"], ""
        deadline = time.monotonic() + 10.0
        while held and time.monotonic() < deadline:
            answer = await asyncio.to_thread(self.gateway.get_ops, "/metrics")
            page = answer[1] if answer is not None else ""
            held = [
                line
                for line in page.splitlines()
                if line.startswith("amqpgw_front_bytes{") and line.split()[-1] != "0.0"
            ]
            await asyncio.sleep(0.2)
        self.must(not held, f"bytes are left at the front: {held}")
        for outcome in ("resent", "stored"):
            found = re.search(rf'amqpgw_front_publishes_total{{[^}}]*outcome="{outcome}"[^}}]*}} (\d+)', page)
            if found:
                self.notes[outcome] = int(found[1])

    def row(self) -> tuple[str, ...]:
        """The line of the table."""
        assert self.verdict is not None
        kind = "RabbitMQ" if isinstance(self.server, RabbitMQ) else "Broker-J"
        release = f" {'.'.join(map(str, self.server.release[:2]))}" if isinstance(self.server, RabbitMQ) else ""
        return checker.row(self.name, f"{kind}{release} {self.version}", self.verdict, self.seconds)

    def summary(self) -> str:
        """Everything there is to know, for a failure."""
        lines = [f"{self.name}, {self.server.kind} {self.version}, seed {self.seed}"]
        if self.verdict is not None:
            lines += [f"  problem: {problem}" for problem in self.verdict.problems]
            lines.append(checker.table([self.row()]))
        lines.append(f"  {len(self.history.publishes)} attempted, {self.acknowledged} acknowledged, ")
        lines.append(f"  {len(self.load.received)} received, in flight {self.load.in_flight}, ")
        lines.append(f"  held {self.load.open_deliveries}, notes {self.notes}, lost connections {self.load.breaks[:5]}")
        return "\n".join(lines)
