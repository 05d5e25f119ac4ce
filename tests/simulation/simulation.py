"""Run one world, and judge it."""

from __future__ import annotations

import asyncio
import atexit
import gc
import hashlib
import random
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Final

from tests.ledgers import sqlite_ledger
from tests.simulation.amqp_clients import AmqpClients
from tests.simulation.consumers import Consumers
from tests.simulation.faults import Faults
from tests.simulation.judge import Judge
from tests.simulation.operators import Operators
from tests.simulation.producers import Producers
from tests.simulation.replays import Replays
from tests.simulation.rotations import Rotations
from tests.simulation.scene import Result, Scene
from tests.simulation.settings import RECEIVER_PORT, configuration
from tests.simulation.surroundings.far import FarBroker
from tests.simulation.surroundings.gateways import GatewayProcess
from tests.simulation.surroundings.loop import NODE, START, Node, SimTask, SimulationError
from tests.simulation.surroundings.receivers import Receiver
from tests.simulation.surroundings.seams import ENTERED
from tests.simulation.worlds import World

BROKER_PORT: Final = 5_001
"""Of the first broker."""
LONGEST: Final = 600.0
"""How long a world may last, in seconds of virtual time."""
FOLDER: Final = "/dev/shm"


@cache
def _folder() -> Path:
    """The folder of all worlds of this process: engines are kept, and know where their file is."""
    folder = tempfile.TemporaryDirectory(prefix="simulation-", dir=FOLDER if Path(FOLDER).is_dir() else None)
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _empty(folder: Path) -> None:
    for each in folder.iterdir():
        if each.is_dir():
            shutil.rmtree(each)
        else:
            each.unlink()


class Simulation:
    """One run of one world."""

    def __init__(self, world: World) -> None:
        self.scene = scene = Scene(world, _folder())
        self.consumers = Consumers(scene)
        self.producers = Producers(scene)
        self.clients = AmqpClients(scene)
        self.replays = Replays(scene)
        self.operators = Operators(scene)
        chance = random.Random(f"receiver {world.seed}")
        self.receiver = Receiver(scene.loop, chance, world.clumsy, self.consumers.pushed, scene.note)
        self.rotations = Rotations(scene, self.receiver)
        self.faults = Faults(scene, self.rotations)
        self.judge = Judge(scene, self.receiver)
        for number in range(world.gateways):
            process = GatewayProcess(number, scene.seams, partial(configuration, scene), scene.note)
            scene.gateways.append(process)
            scene.seams.ledgers.slow[process.name] = world.ledger_seconds

    def run(self) -> Result:
        """Run it to its end."""
        scene, loop = self.scene, self.scene.loop
        _empty(scene.folder)  # of a world that was cut off
        ENTERED.clear()
        with scene.seams.installed():
            asyncio.set_event_loop(loop)
            loop.deadline = START + LONGEST
            try:
                token = NODE.set(loop.world)
                loop.run_until_complete(loop.create_task(self._main()))
            except SimulationError as error:
                scene.problem(str(error), *self._stuck())
            except Exception as error:
                scene.problem("the simulation failed: " + "".join(traceback.format_exception(error)[-6:]))
            finally:
                self._clean_up()
                NODE.reset(token)
        result = scene.result
        result.seconds = loop.now - START
        result.steps = loop.steps
        whole = "\n".join(result.trace)
        result.fingerprint = hashlib.sha256(f"{whole} {loop.steps} {loop.now}".encode()).hexdigest()[:16]
        return result

    async def _main(self) -> None:
        scene = self.scene
        sqlite_ledger(scene.folder)
        if scene.world.rotates:
            self.rotations.begin()
        await self._start_brokers()
        stranger = scene.world.stranger
        if stranger is not None and stranger.pause < 0.0:
            await self.producers.put(stranger)
        if any(route.push for route in scene.world.routes):
            await scene.network.create_server(self.receiver.protocol, "127.0.0.1", RECEIVER_PORT)
        for process in scene.gateways:
            await process.start()
            if (
                scene.world.rotates and process is scene.gateways[0]
            ):  # so that its receivers know a key of each endpoint
                await self.rotations.rotate("rotate signing keys")
        await self.operators.begin()
        for process in scene.gateways:
            process.commits = 0
        scene.is_working = True
        work = self.producers.start() + self.clients.start() + self.replays.start() + self.operators.start()
        if stranger is not None and stranger.pause >= 0.0:
            work.append(scene.spawn(self.producers.put(stranger), "stranger"))
        self.consumers.start()
        faults = [scene.spawn(self.faults.do(fault), f"fault {fault.kind}") for fault in scene.world.faults]
        await asyncio.gather(*faults)
        scene.note("world", "calm")
        scene.is_calm = self.receiver.calm = True
        await asyncio.gather(*work)
        scene.note("world", "published")
        await self.judge.drain()
        if scene.world.replay is not None:
            await self.replays.finish()
            await self.judge.drain()
        await self.operators.judge()
        await self.consumers.stop()
        await self.clients.stop()
        for process in scene.gateways:
            await self.judge.stop(process)
        self.consumers.read_logs()
        self.judge.judge()
        self.clients.judge()
        self.replays.judge()

    async def _start_brokers(self) -> None:
        scene = self.scene
        for number, name in enumerate(scene.world.brokers):
            chance = random.Random(f"{name} {scene.world.seed}")
            broker = FarBroker(name, BROKER_PORT + number, scene.loop, scene.network, chance, scene.note)
            scene.brokers[name] = broker
            await broker.start()
            if scene.world.moment == "turns":
                broker.be_busy()
        front = scene.world.front
        if front is not None:
            scene.brokers[front.broker].declare(front.queue)
            if front.forgetful and not self.clients.is_ended:  # a process that ends forgets, too
                scene.brokers[front.broker].forgetful = front.queue
        for route in scene.world.routes:
            scene.brokers[route.broker].declare(route.name)
            if route.target:
                scene.brokers[route.target].declare(route.last)
            if route.dead:
                scene.brokers[route.end].declare(route.dead)

    # ------------------------------------------------------------------------------------------- the end

    def _clean_up(self) -> None:
        """Drop what is left, the killed processes' included. What their destructors do must harm nobody."""
        scene, loop = self.scene, self.scene.loop
        ledgers = scene.seams.ledgers
        for node in list(ledgers.connections) + list(ledgers.locks):
            ledgers.let_go(node)
        for transport in list(scene.network.transports.values()):
            transport.vanish(True)
        with _unheard():
            tasks = [each for each in loop.kept if isinstance(each, SimTask)]
            for node in self._nodes():
                node.alive = False
                tasks += node.tasks
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(BaseException):
                    task.get_coro().close()  # type: ignore[union-attr]
            loop.kept.clear()
            loop.clear()
            for node in self._nodes():
                node.ready.clear()
            tasks.clear()
        asyncio.set_event_loop(None)
        loop.close()
        self.judge.close()
        _empty(scene.folder)

    def _nodes(self) -> list[Node]:
        scene = self.scene
        brokers = scene.brokers.values()
        return [scene.loop.world, *(each.node for each in scene.gateways), *(each.node for each in brokers)]

    def _stuck(self) -> list[str]:
        return [f"{task.get_name()}: {task.get_coro()}" for task in self.scene.loop.world.tasks][:5]


def simulate(world: World) -> Result:
    """Run a world, and judge it. Nothing of it is left in memory."""
    gc.freeze()  # what was there before it; nothing of it, which would then be there for good
    gc.disable()
    try:
        simulation = Simulation(world)
        result = simulation.run()
        with _unheard():
            del simulation
            gc.collect()
            gc.collect()  # what the destructors of the others still needed
    finally:
        gc.enable()
    return result


@contextmanager
def _unheard() -> Iterator[None]:
    """Hear nothing from destructors. The killed processes of a world could not end what they had begun."""
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        sys.unraisablehook = before
