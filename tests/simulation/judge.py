"""The judge of a world: what must hold when all faults are over, and when the gateway has stopped."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any, Final

from tests.faults.checker import Settled, check
from tests.simulation.scene import Scene
from tests.simulation.surroundings.gateways import GatewayProcess
from tests.simulation.surroundings.loop import Node
from tests.simulation.surroundings.receivers import Receiver
from tests.traces import QUERY, impossible_traces

DRAIN: Final = 150.0
"""How long the last messages may take once nothing goes wrong any more, in seconds."""
OPEN_WORK: Final = """
    SELECT 'deliveries', count(*) FROM deliveries
    UNION ALL SELECT 'obligations', count(*) FROM obligations WHERE status = 'pending'
    UNION ALL SELECT 'outbox', count(*) FROM outbox
    UNION ALL SELECT 'branches', count(*) FROM branches WHERE status <> 'begun'
"""
"""What must be empty in the end. An obligation that is parked waits for its caller, and a branch that has only begun
holds nothing."""


class Judge:
    """Looks at a world from outside."""

    def __init__(self, scene: Scene, receiver: Receiver) -> None:
        self.scene, self.receiver = scene, receiver
        self._reader: sqlite3.Connection | None = None

    def close(self) -> None:
        """Close the connection to the ledger."""
        if self._reader is not None:
            self._reader.close()

    # ------------------------------------------------------------------------------------------- while it goes on

    async def drain(self) -> None:
        """Wait until nothing is anywhere any more."""
        scene = self.scene
        until = scene.loop.now + DRAIN
        quiet = 0
        # A request to a silent receiver may be under way for 2 seconds, of a message that its broker has taken back.
        enough = 10 if any(route.push for route in scene.world.routes) else 3
        while quiet < enough:
            await asyncio.sleep(0.3)
            left = self._left()
            quiet = 0 if left else quiet + 1
            if scene.loop.now > until:
                scene.problem("not drained", *left)
                return
        scene.history.drained = True

    def _left(self) -> list[str]:
        brokers = self.scene.brokers
        left = [f"{name}.{queue} {count}" for name, each in brokers.items() for queue, count in each.ready().items()]
        for name, broker in brokers.items():
            for connection in broker.server.broker.connections.values():
                left += [
                    f"{name} unsettled {len(channel.unsettled)}"
                    for channel in connection.channels.values()
                    if channel.unsettled
                ]
        if not left:
            left += self._rows()
        return left

    def _rows(self) -> list[str]:
        """Tables of the ledger that hold open work."""
        counts = self._read(OPEN_WORK)
        return [f"{count} rows of {table}" for table, count in counts if count]

    def _read(self, query: str) -> list[Any]:
        if self._reader is None:
            self._reader = sqlite3.connect(self.scene.folder / "ledger.db")
        return self._reader.execute(query).fetchall()

    # ------------------------------------------------------------------------------------------- of a process

    async def stop(self, process: GatewayProcess) -> None:
        """Stop a process for good, and judge what it has left."""
        scene = self.scene
        if problem := await process.stop():
            scene.problem(problem)
        until = scene.loop.now + 5.0  # far ends notice, and timers that only abort a stream are over
        while scene.loop.now < until and self._leaks(process.node):
            await asyncio.sleep(0.2)
        scene.report_failures(process.node)
        scene.result.problems += self._leaks(process.node)
        scene.note(process.name, "stopped")

    def _leaks(self, node: Node) -> list[str]:
        """What a gateway that has stopped has left."""
        scene = self.scene
        leaks = [f"task {task.get_name()} of {node} left" for task in node.tasks]
        leaks += [f"timer {timer} of {node} left" for timer in scene.loop.timers_of(node)]
        leaks += [f"connection of {node} to {each.port} left" for each in scene.network.of(node)]
        if all(process.app is None for process in scene.gateways):
            for broker in scene.brokers.values():
                if number := len(broker.server.broker.connections):
                    leaks.append(f"{number} connections left at {broker.name}")
        return leaks

    # ------------------------------------------------------------------------------------------- of all

    def judge(self) -> None:
        """Look at what has happened, and at what is left."""
        scene = self.scene
        if not scene.history.drained:
            return
        verdict = check(scene.history)
        scene.result.counts["attempted"] = verdict.attempted
        scene.result.counts["acknowledged"] = verdict.acknowledged
        scene.result.counts["duplicated"] = verdict.duplicated
        scene.result.problems += verdict.problems
        self._judge_order()
        self._judge_equals()
        self._judge_forgotten()
        self._judge_events()
        for left in self._rows():
            scene.problem(f"in doubt after recovery: {left}")
        if self.receiver.unsigned:
            scene.problem("pushed without a signature of a known key", *self.receiver.unsigned)
        if not scene.result.counts["publish"]:
            scene.problem("the world did nothing")

    def _judge_order(self) -> None:
        """Of an ordered subscription, messages with one key are handed out one at a time, and in the order in which
        they were acknowledged to their publisher. A message that was rejected holds up no other. A broker may have
        kept messages for a process that slept while another one took over. They come again, in their order, and hold up
        none that the broker did not keep."""
        scene = self.scene
        first: dict[str, float] = {}
        held: set[str] = set()
        done: dict[str, float] = {}
        for reception in scene.history.receptions:
            if reception.id not in first and reception.redelivered and reception.since > scene.slept_at:
                held.add(reception.id)
            first.setdefault(reception.id, reception.since)
            if reception.until is not None and reception.settled in (Settled.ACKED, Settled.UNCLEAR):
                done.setdefault(reception.id, reception.until)
        for index, (route, order, id, began, _) in enumerate(scene.told):
            if not scene.world.routes[route].ordered:
                continue
            for earlier_route, earlier_order, earlier, _, answered in scene.told[:index]:
                if (
                    (earlier_route, earlier_order) == (route, order)
                    and earlier not in scene.rejected
                    and (earlier not in held or id in held)
                    and answered <= began
                    and id in first
                    and first[id] < done.get(earlier, float("inf"))
                ):
                    scene.problem(f"{id} was handed out before {earlier}, published before it with its key, was done")

    def _judge_equals(self) -> None:
        """Of messages that have one id and one body, each comes, and each that comes again has a mark. Nobody can tell
        which is which, so they are counted."""
        stranger, equals = self.scene.world.stranger, self.scene.equals
        if stranger is None or not stranger.equal:
            return
        kept = sum(each.settled in (Settled.ACKED, Settled.UNCLEAR) for each in equals)
        if kept < stranger.messages:
            self.scene.problem(f"{stranger.messages - kept} lost", "of equal messages")
        fresh = sum(not each.marked for each in equals)
        if fresh > stranger.messages:
            self.scene.problem(f"{fresh - stranger.messages} repeats without a mark", "of equal messages")

    def _judge_forgotten(self) -> None:
        """What a broker delivers again, and has forgotten, has a mark of its own, for the ledger knows it. That
        attempts have one ``webhook-id`` is not enough."""
        received, at = self.scene.forgotten
        fresh = [
            each.id
            for each in self.scene.history.receptions
            if each.since > at and each.id in received and not each.marked
        ]
        if fresh:
            self.scene.problem(f"{len(fresh)} that the ledger knows came again without a mark", *fresh)

    def _judge_events(self) -> None:
        """Every event of the ledger follows one that it may follow."""
        self.scene.result.problems += impossible_traces(self._read(QUERY))
