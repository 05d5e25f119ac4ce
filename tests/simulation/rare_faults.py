"""What goes wrong in the worlds in which a rare moment is made likely."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from tests.simulation.scene import Scene
from tests.simulation.surroundings.gateways import GatewayProcess
from tests.simulation.surroundings.loop import Node
from tests.simulation.worlds import Fault

SLOW: Final = 0.2
"""How long a transaction takes at least in a ledger that is slow, in seconds."""
WITHIN: Final = 2.0
"""How long what a fault begins with is waited for, in seconds."""
VERY_SLOW: Final = 0.3
"""The same, if the process is to end meanwhile."""
SLOW_FOR: Final = 1.5
"""For how long, in seconds."""
FAILS_FOR: Final = 0.4
"""For how long a ledger fails, in seconds."""
RECORDED: Final = 2.5
"""After this many seconds the ledger knows of a message that a receiver of webhooks has got; it may stay silent for
two."""
LOOK_EVERY: Final = 0.001
"""Pause before a queue is looked at again, in seconds."""
NOTICED: Final = 0.05
"""After this many seconds a process knows that its connections are lost."""
FENCED: Final = 1.5
"""After this many seconds a process that comes back knows that its work is another's."""
_TABLE: Final = re.compile(r"\b(?:FROM|JOIN) ([a-z_]+)")


class RareFaults:
    """Those who do these faults."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.kinds: Mapping[str, Callable[[Fault], Awaitable[None]]] = {
            "forget": self._forget,
            "kill and change": self._change,
            "lose again": self._lose_again,
            "look": self._look,
            "reset": self._cut_off,
            "reset and failing": self._cut_branch,
            "reset and slow": self._cut_branch,
            "restart": self._restart,
            "slow ledger": self._slow,
            "strand": self._strand,
            "unreadable": self._unreadable,
        }
        """Kind of fault -> who does it."""
        self._commits: dict[tuple[str, int], asyncio.Event] = {}
        """Process and number of a commit -> what shall happen then."""
        self._reads: Counter[tuple[str, str]] = Counter()
        """How often each process has read each table since the work has begun."""
        self._sleeps: dict[tuple[str, str, int], float] = {}
        """Process, table and number of a read -> how long the process sleeps then, in seconds."""
        for fault in scene.world.faults:
            if fault.kind == "strand at commit":
                self._commits[fault.target, int(fault.at)] = asyncio.Event()
            elif fault.kind == "sleep at read":
                self._sleeps[fault.target, fault.other, int(fault.at)] = fault.amount
        if self._sleeps:
            scene.seams.ledgers.on_read = self._reading

    def committing(self, node: Node, number: int) -> None:
        """A process is about to commit for the time with this number since the work has begun."""
        alarm = self._commits.get((node.name, number))
        if alarm is not None and self.scene.is_working:
            loop, slow = self.scene.loop, self.scene.seams.ledgers.slow
            slow[node.name] = VERY_SLOW if self.scene.world.moment == "restarts" else SLOW
            loop.call_soon(alarm.set, context=loop.world.context)

    def _reading(self, node: Node, connection: Any) -> None:
        """A process begins to read its ledger: what it reads is followed."""
        connection.set_trace_callback(partial(self._read, node) if self._sleeps else None)

    def _read(self, node: Node, statement: str) -> None:
        """It reads something, and gets what it finds when it has slept."""
        if not self.scene.is_working:
            return
        for table in set(_TABLE.findall(statement)):
            self._reads[node.name, table] += 1
            seconds = self._sleeps.pop((node.name, table, self._reads[node.name, table]), 0.0)
            if seconds:
                self.scene.pause(node.name, seconds, f"after it has read {table}")

    def _process(self, name: str) -> GatewayProcess:
        found = self.scene.process(name)
        assert found is not None
        return found

    async def _forget(self, fault: Fault) -> None:
        scene = self.scene
        scene.note("fault", "part", fault.target, fault.other, f"{fault.amount:.1f} s")
        scene.network.part(fault.target, fault.other)
        await asyncio.sleep(fault.amount)
        now = scene.loop.now
        scene.forgotten = {each.id for each in scene.history.receptions if each.since < now - RECORDED}, now
        await scene.brokers[fault.target].crash(0.1, forgets=True)
        scene.network.join(fault.target, fault.other)

    async def _change(self, fault: Fault) -> None:
        """A process is killed, and starts with a changed configuration."""
        scene, process = self.scene, self._process(fault.other)
        scene.note("fault", "kill", fault.other)
        scene.report_failures(process.node)
        process.kill()
        scene.reloads += 1
        await process.start()

    async def _cut_off(self, fault: Fault) -> None:
        self.scene.note("fault", fault.kind, fault.other, fault.target)
        self.scene.network.cut_off(fault.other, fault.target)

    async def _cut_branch(self, fault: Fault) -> None:
        """A while after a message has come to a broker, the connections to another one are lost. The ledger is slow
        from then on; or it fails when they are back."""
        await asyncio.sleep(fault.amount)
        self.scene.note("fault", fault.kind, fault.other)
        self.scene.network.cut_off("gateway", fault.other)
        if fault.kind.startswith("reset and slow"):
            await self._slow(Fault(0.0, "slow ledger", "gateway", "", SLOW_FOR))
            return
        await asyncio.sleep(NOTICED)
        self.scene.note("fault", "ledger fails")
        self.scene.seams.ledgers.failing.add("gateway")
        await asyncio.sleep(FAILS_FOR)
        self.scene.seams.ledgers.failing.discard("gateway")
        self.scene.note("fault", "ledger works")

    async def _look(self, fault: Fault) -> None:
        """Somebody looks at what waits in a queue, again and again."""
        until = self.scene.loop.now + fault.amount
        while self.scene.loop.now < until:
            self.scene.brokers[fault.target].look(fault.other)
            await asyncio.sleep(LOOK_EVERY)

    async def _lose_again(self, fault: Fault) -> None:
        """The answers of some commits are lost, one soon after the other."""
        name, ledgers = fault.target, self.scene.seams.ledgers
        for _ in range(int(fault.amount)):
            self.scene.note("fault", "an answer of the ledger is lost", name)
            ledgers.leaving.add(name)
            for _ in range(20):
                await asyncio.sleep(0.05)
                if name in ledgers.away:
                    break
            await asyncio.sleep(0.05)
            ledgers.leaving.discard(name)
            ledgers.away.discard(name)

    async def _restart(self, fault: Fault) -> None:
        """A process is killed as a message has come to its broker. The next one gets the broker only when it runs, and
        ends soon after that: while the answer of one of its first commits is under way."""
        scene, name = self.scene, fault.other
        process = self._process(name)
        if not process.node.alive or process.app is None:
            return
        scene.note("fault", "kill", name)
        scene.report_failures(process.node)
        process.kill()
        scene.network.part(fault.target, name)
        await process.start()
        alarm = self._commits[name, process.commits + int(fault.amount)] = asyncio.Event()
        scene.network.join(fault.target, name)
        with suppress(TimeoutError):
            async with asyncio.timeout(WITHIN):
                await alarm.wait()
        await scene.end(process)
        scene.seams.ledgers.slow[name] = scene.world.ledger_seconds
        await process.start()

    async def _slow(self, fault: Fault) -> None:
        scene, slow = self.scene, self.scene.seams.ledgers.slow
        scene.note("fault", "ledger is slow", fault.target)
        slow[fault.target] = SLOW
        await asyncio.sleep(fault.amount)
        slow[fault.target] = scene.world.ledger_seconds
        scene.note("fault", "ledger is as before", fault.target)

    async def _strand(self, fault: Fault) -> None:
        """A process sleeps for longer than its lease, and gets nothing from its broker until it knows of that. Where
        that begins with a commit, its connections are lost, too."""
        scene, is_commit = self.scene, fault.kind == "strand at commit"
        name, broker = (fault.target, fault.other) if is_commit else (fault.other, fault.target)
        if is_commit:
            scene.seams.ledgers.slow[name] = SLOW
            with suppress(TimeoutError):
                async with asyncio.timeout(WITHIN):
                    await self._commits[name, int(fault.at)].wait()
        scene.note("fault", "part", broker, name)
        scene.network.part(broker, name)
        if is_commit:
            scene.network.cut_off(name, broker)
            await asyncio.sleep(NOTICED)
        scene.pause(name, fault.amount)
        await asyncio.sleep(fault.amount + FENCED)
        scene.network.join(broker, name)
        scene.seams.ledgers.slow[name] = scene.world.ledger_seconds
        scene.note("fault", "join", broker, name)

    async def _unreadable(self, fault: Fault) -> None:
        ledgers = self.scene.seams.ledgers
        self.scene.note("fault", "ledger cannot be read", f"{fault.amount:.1f} s")
        ledgers.unreadable.add(fault.target)
        ledgers.failing.add(fault.target)
        await asyncio.sleep(fault.amount)
        ledgers.unreadable.discard(fault.target)
        ledgers.failing.discard(fault.target)
        self.scene.note("fault", "ledger works")
