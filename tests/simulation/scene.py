"""A world under way: who is in it, and what has happened."""

from __future__ import annotations

import asyncio
import random
import traceback
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.checker import History, Reception
from tests.simulation.surroundings.callers import Caller
from tests.simulation.surroundings.far import FarBroker
from tests.simulation.surroundings.gateways import GatewayProcess
from tests.simulation.surroundings.loop import START, Node, SimLoop
from tests.simulation.surroundings.network import Network
from tests.simulation.surroundings.seams import Seams
from tests.simulation.worlds import World


@dataclass
class Result:
    """What became of a world."""

    world: World
    problems: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    fingerprint: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    """Of virtual time."""
    steps: int = 0


class Scene:
    """What those who act in a world share."""

    def __init__(self, world: World, folder: Path) -> None:
        """``folder``: of the ledger and of the files of keys."""
        self.world, self.folder = world, folder
        self.result = Result(world)
        seed = world.seed
        self.loop = SimLoop(random.Random(f"turns {seed}"))
        self.network = Network(self.loop, random.Random(f"network {seed}"), self.note)
        self.network.slowness, self.network.split = world.slowness, world.split
        self.seams = Seams(self.loop, self.network, random.Random(f"threads {seed}"), random.Random(f"ids {seed}"))
        self.seams.is_shared = world.is_shared
        self.brokers: dict[str, FarBroker] = {}
        self.gateways: list[GatewayProcess] = []
        self.history = History()
        self.is_working = False
        """The gateway has started, and the work has begun."""
        self.is_calm = False
        """Nothing goes wrong any more."""
        self.reloads = 0
        """How often the configuration was to be read again, which changes it."""
        self.bodies: dict[str, bytes] = {}
        """Of all messages that were sent."""
        self.told: list[tuple[int, str, str, float, float]] = []
        """Acknowledged publishes in order: route, order key, id, when it was begun, when it was answered."""
        self.came: set[str] = set()
        """Messages that a broker has had."""
        self.routes_of: dict[str, str] = {}
        """Name of the route that each message was published on."""
        self.copies: list[Reception] = []
        """Receptions of what replays have sent elsewhere."""
        self.equals: list[Reception] = []
        """Receptions of messages that have one id and one body."""
        self.forgotten: tuple[set[str], float] = set(), float("inf")
        """What had been received when a broker forgot that it had delivered anything, and when that was."""
        self.slept_at = float("inf")
        """When a process of two first fell asleep. The other one may have taken over while the broker kept messages for
        it, until its connection ended."""
        self.rejected: set[str] = set()
        """What consumers have rejected: it is dead until it is tried again."""
        self.seams.on_body = lambda body: self.came.add(body.split(None, 1)[0].decode())

    def note(self, kind: str, *words: object) -> None:
        """Write a line of the trace."""
        self.result.counts[kind] += 1
        self.result.trace.append(f"{self.loop.now - START:9.4f} {kind:<8} " + " ".join(map(str, words)))

    def problem(self, text: str, *culprits: object) -> None:
        """Something that must not be."""
        names = ": " + ", ".join(str(each) for each in culprits) if culprits else ""
        self.result.problems.append(text + names)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Have somebody act who is no process of the gateway and no broker."""
        return self.loop.create_task(work, name=name)

    def process(self, name: str) -> GatewayProcess | None:
        """The process of the gateway with this name."""
        return next((each for each in self.gateways if each.name == name), None)

    def pause(self, name: str, seconds: float, *why: str) -> None:
        """Have a process of the gateway or a broker do nothing for this time."""
        self.note("fault", "pause", name, f"{seconds:.1f} s", *why)
        process = self.process(name)
        (process or self.brokers[name]).node.paused_until = self.loop.now + seconds
        if len(self.gateways) > 1 and process is not None:
            self.slept_at = min(self.slept_at, self.loop.now)

    def callers(self) -> list[Caller]:
        """A caller of each process."""
        return [Caller(process.port) for process in self.gateways]

    def report_failures(self, node: Node) -> None:
        """What nobody in a process has handled is a problem."""
        for context in node.failures:
            error = context.get("exception")
            text = "".join(traceback.format_exception(error)[-4:]) if error is not None else ""
            self.problem(f"a failure in {node}: {context.get('message')} {error!r} {text}")

    async def end(self, process: GatewayProcess) -> None:
        """Stop a process that is to be started again."""
        while process.app is None or process.is_dying:  # there is nothing to stop until it is started again
            await asyncio.sleep(0.05)
        if problem := await process.stop():
            self.problem(problem)
        self.report_failures(process.node)
        self.note(process.name, "ended")
