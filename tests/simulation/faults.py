"""What goes wrong in a world."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.faults.http import NoAnswer, NotSent
from tests.simulation.rare_faults import RareFaults
from tests.simulation.rotations import Rotations
from tests.simulation.scene import Scene
from tests.simulation.surroundings.callers import WITHIN, Caller
from tests.simulation.surroundings.gateways import GatewayProcess
from tests.simulation.surroundings.loop import Node
from tests.simulation.surroundings.network import Cut
from tests.simulation.surroundings.seams import Killed
from tests.simulation.worlds import Fault

SLOW = 0.2
"""How long a transaction takes at least in a ledger that is slow, in seconds."""
LEAVES = 30
"""How long to wait for the next commit of a process whose ledger goes away, in tenths of a second."""
CONFIRMS = 2.0
"""How long a broker's confirms wait for a process whose ledger was away, in seconds."""


class Faults:
    """Those who do the faults of a world."""

    def __init__(self, scene: Scene, rotations: Rotations) -> None:
        self.scene, self.rotations, self.rare = scene, rotations, RareFaults(scene)
        self.alarms: dict[tuple[str, int], asyncio.Event] = {}
        """What shall happen at a commit or a message: of whom, and its number."""
        for fault in scene.world.faults:
            if " at " in fault.kind and fault.kind not in ("strand at commit", "sleep at read"):
                self.alarms[fault.target, int(fault.at)] = asyncio.Event()
        scene.seams.ledgers.on_commit = self._commit
        scene.seams.on_message = self._message

    async def do(self, fault: Fault) -> None:
        """Have a fault happen in its time, and wait until it is over."""
        scene = self.scene
        kind, target, amount = fault.kind, fault.target, fault.amount
        if kind == "sleep at read":  # it happens when that is read
            await asyncio.sleep(amount)
            return
        if kind == "strand at commit":
            kind = "strand"
        elif " at " in kind:
            alarm = self.alarms.get((target, int(fault.at)))
            if alarm is not None:  # else it went off in the turn in which the faults began
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await alarm.wait()
                self.alarms.pop((target, int(fault.at)), None)
            kind = kind.partition(" at ")[0]
        else:
            await asyncio.sleep(fault.at)
        if kind == "crash":
            await scene.brokers[target].crash(amount)
        elif kind == "kill":
            await self._kill(self._process(target), amount)
        elif kind == "cut":
            scene.note("fault", "cut", target, fault.other, f"after {amount:.0f} octets")
            cut = Cut(target, fault.other, int(amount))
            scene.network.cuts.append(cut)
            await asyncio.sleep(1.0)
            if cut in scene.network.cuts:
                scene.network.cuts.remove(cut)
        elif kind == "part":
            scene.note("fault", "part", target, fault.other, f"{amount:.1f} s")
            scene.network.part(target, fault.other)
            await asyncio.sleep(amount)
            scene.network.join(target, fault.other)
            scene.note("fault", "join", target, fault.other)
        elif kind == "pause":
            scene.pause(fault.other or target, amount)
            await asyncio.sleep(amount)
        elif kind == "reload":
            await self._reload(self._process(target))
        elif kind.startswith("rotate"):
            await self.rotations.rotate(kind)
        elif kind == "ledger":
            scene.note("fault", "ledger fails", f"{amount:.2f} s")
            scene.seams.ledgers.failing.add(target)
            await asyncio.sleep(amount)
            scene.seams.ledgers.failing.discard(target)
            scene.note("fault", "ledger works")
        elif kind in self.rare.kinds:
            await self.rare.kinds[kind](fault)
        elif kind == "lose":
            await self._lose(fault.other, target, amount)

    def _process(self, name: str) -> GatewayProcess:
        found = self.scene.process(name)
        assert found is not None
        return found

    async def _kill(self, process: GatewayProcess, seconds: float) -> None:
        if not process.node.alive or process.app is None:
            return
        self.scene.note("fault", "kill", process.name, f"{seconds:.1f} s")
        self.scene.report_failures(process.node)
        process.kill()
        await asyncio.sleep(seconds)
        await process.start()

    async def _reload(self, process: GatewayProcess) -> None:
        scene = self.scene
        scene.reloads += 1
        caller = Caller(process.port)
        try:
            answer = await caller.request("POST", "/v1/admin:reload", None, {}, WITHIN)
            scene.note("fault", "reload", answer.status)
        except (NotSent, NoAnswer) as error:
            scene.note("fault", "reload", error)
        caller.close()

    async def _lose(self, name: str, broker: str, seconds: float) -> None:
        """The ledger is away for a process from its next commit on. It never learns whether that one happened, so it
        gives up its shard, and takes over the keys of its own requests, which wait for confirms of the broker. Then
        both ends of a key come to a slow ledger at once."""
        scene, ledgers = self.scene, self.scene.seams.ledgers
        scene.note("fault", "ledger is away", name, f"{seconds:.2f} s")
        scene.network.part(broker, name)
        ledgers.leaving.add(name)
        ledgers.slow[name] = SLOW
        for _ in range(LEAVES):
            if name in ledgers.away:
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(seconds)
        ledgers.leaving.discard(name)
        ledgers.away.discard(name)
        scene.note("fault", "ledger is slow", name)
        await asyncio.sleep(CONFIRMS)
        scene.network.join(broker, name)
        await asyncio.sleep(CONFIRMS)
        ledgers.slow[name] = scene.world.ledger_seconds
        scene.note("fault", "ledger works", name)

    # ------------------------------------------------------------------------------------------- alarms

    def _commit(self, node: Node, _: int) -> None:
        """A process is about to commit: after the alarm it is dead, before the commit or right behind it."""
        process = self.scene.process(node.name)
        if process is None:
            return
        process.commits += 1
        self.rare.committing(node, process.commits)
        alarm = self.alarms.get((node.name, process.commits))
        if alarm is None or not self.scene.is_working or process.app is None:
            return
        del self.alarms[node.name, process.commits]
        self._ring(alarm)
        if process.commits % 2:
            self.scene.note("fault", "killed before a commit")
            process.is_dying = True
            raise Killed

    def _message(self, name: str, count: int) -> None:
        alarm = self.alarms.get((name, count))
        if alarm is not None:
            self._ring(alarm)

    def _ring(self, alarm: asyncio.Event) -> None:
        loop = self.scene.loop
        loop.call_soon(alarm.set, context=loop.world.context)
