"""Run one world, and judge it."""

from __future__ import annotations

import asyncio
import atexit
import gc
import hashlib
import random
import shutil
import sqlite3
import sys
import tempfile
import traceback
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Coroutine
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count, cycle
from pathlib import Path
from typing import Any, Final

from gateway.config import load
from tests.faults.checker import History, Outcome, Reception, Settled, check, digest
from tests.faults.http import Answer, Hung, NoAnswer, NotSent
from tests.ledgers import sqlite_ledger
from tests.simulation.callers import Caller
from tests.simulation.far import FarBroker
from tests.simulation.gateways import GatewayProcess
from tests.simulation.loop import NODE, START, Node, SimLoop, SimTask, SimulationError
from tests.simulation.network import Cut, Network
from tests.simulation.receivers import Receiver
from tests.simulation.seams import ENTERED, Killed, Seams
from tests.simulation.worlds import Fault, Publish, Route, World
from tests.traces import QUERY, impossible_traces

BROKER_PORT: Final = 5_001
RECEIVER_PORT: Final = 9_000
SCHEDULE: Final = (0.0, 0.1, 0.3, *(1.0 for _ in range(60)))
"""When a message is pushed again, in seconds."""
WITHIN: Final = 60.0
"""How long any request may take before it counts as hung, in seconds."""
PATIENCE: Final = 40.0
"""How long a producer repeats one publish, in seconds."""
DRAIN: Final = 150.0
"""How long the last messages may take once nothing goes wrong any more, in seconds."""
SECRETS: Final = "secrets.keys"
CLUSTER_SECRET: Final = "cluster.key"
"""Files of keys."""
FOLDER: Final = "/dev/shm"
OPEN_WORK: Final = """
    SELECT 'deliveries', count(*) FROM deliveries
    UNION ALL SELECT 'obligations', count(*) FROM obligations WHERE status = 'pending'
    UNION ALL SELECT 'outbox', count(*) FROM outbox
    UNION ALL SELECT 'branches', count(*) FROM branches WHERE status <> 'begun'
"""
"""What must be empty in the end. An obligation that is parked waits for its caller, and a branch that has only begun
holds nothing."""
_OUTCOMES: Final = {"not_sent": Outcome.NOT_TAKEN, "refused": Outcome.NOT_TAKEN, "unknown": Outcome.UNKNOWN}


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


class Simulation:
    """One run of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.result = Result(world)
        seed = world.seed
        self.loop = SimLoop(random.Random(f"turns {seed}"))
        self.network = Network(self.loop, random.Random(f"network {seed}"), self.note)
        self.network.slowness, self.network.split = world.slowness, world.split
        self.seams = Seams(self.loop, self.network, random.Random(f"threads {seed}"), random.Random(f"ids {seed}"))
        self.seams.is_shared = world.gateways > 1
        self.seams.ledgers.on_commit = self._commit
        self.seams.on_message = self._message
        self.chance = random.Random(f"work {seed}")
        self.is_working = False
        """The gateway has started, and the work has begun."""
        self.alarms: dict[tuple[str, int], asyncio.Event] = {}
        """What shall happen at a commit or a message: of whom, and its number."""
        for fault in world.faults:
            if " at " in fault.kind:
                self.alarms[fault.target, int(fault.at)] = asyncio.Event()
        self.history = History()
        self.brokers: dict[str, FarBroker] = {}
        self.receiver = Receiver(self.loop, random.Random(f"receiver {seed}"), world.clumsy, self._pushed, self.note)
        self.reloads = 0
        self.keys = random.Random(f"keys {seed}")
        self.gateways = [
            GatewayProcess(number, self.seams, self._config, self.note) for number in range(world.gateways)
        ]
        self.by_name = {each.name: each for each in self.gateways}
        for each in self.gateways:
            self.seams.ledgers.slow[each.name] = world.ledger_seconds
        self.folder = Path()
        self._reader: sqlite3.Connection | None = None
        """Connection of :meth:`_rows`."""
        self.calm = False
        """Nothing goes wrong any more."""
        self.rejected: set[str] = set()
        """What consumers have rejected: it is dead until it is tried again."""
        self.bodies: dict[str, bytes] = {}
        """Of all messages that were sent."""
        self.driven: Counter[str] = Counter()
        """How often a message was rejected that replays drive back: so often it may come again without a mark."""
        self.told: list[tuple[int, str, str, float, float]] = []
        """Acknowledged publishes in order: route, order key, id, when it was begun, when it was answered."""

    # ------------------------------------------------------------------------------------------- running

    def run(self) -> Result:
        """Run it to its end."""
        self.folder = _folder()
        _empty(self.folder)  # of a world that was cut off
        ENTERED.clear()
        loop = self.loop
        gc.disable()
        gc.freeze()
        try:
            with self.seams.installed():
                asyncio.set_event_loop(loop)
                loop.deadline = START + 600
                try:
                    token = NODE.set(loop.world)
                    loop.run_until_complete(loop.create_task(self._main()))
                except SimulationError as error:
                    self.problem(str(error), *self._stuck())
                except Exception as error:
                    self.problem("the simulation failed: " + "".join(traceback.format_exception(error)[-6:]))
                finally:
                    self._clean_up()
                    NODE.reset(token)
        finally:
            gc.enable()
        self.result.seconds = loop.now - START
        self.result.steps = loop.steps
        whole = "\n".join(self.result.trace)
        self.result.fingerprint = hashlib.sha256(f"{whole} {loop.steps} {loop.now}".encode()).hexdigest()[:16]
        return self.result

    def _clean_up(self) -> None:
        """Drop what is left, the killed processes' included. What their destructors do must harm nobody."""
        loop = self.loop
        for node in list(self.seams.ledgers.connections) + list(self.seams.ledgers.locks):
            self.seams.ledgers.let_go(node)
        for transport in list(self.network.transports.values()):
            transport.vanish(True)
        before, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
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
            gc.collect()
        finally:
            sys.unraisablehook = before
        asyncio.set_event_loop(None)
        loop.close()
        if self._reader is not None:
            self._reader.close()
        _empty(self.folder)

    def _nodes(self) -> list[Node]:
        brokers = self.brokers.values()
        return [self.loop.world, *(each.node for each in self.gateways), *(each.node for each in brokers)]

    def _stuck(self) -> list[str]:
        return [f"{task.get_name()}: {task.get_coro()}" for task in self.loop.world.tasks][:5]

    def note(self, kind: str, *words: object) -> None:
        """Write a line of the trace."""
        self.result.counts[kind] += 1
        self.result.trace.append(f"{self.loop.now - START:9.4f} {kind:<8} " + " ".join(str(word) for word in words))

    def problem(self, text: str, *culprits: object) -> None:
        """Something that must not be."""
        names = ": " + ", ".join(str(each) for each in culprits) if culprits else ""
        self.result.problems.append(text + names)

    # ------------------------------------------------------------------------------------------- the world

    def _config(self, process: GatewayProcess) -> Any:
        settings: dict[str, Any] = {
            "http.port": process.port,
            "ops.port": process.port + 1,
            "data_dir": str(self.folder),
            "log_level": "error",
            **self.world.settings,
        }
        if len(self.gateways) > 1:
            settings["ledger.url"] = f"sqlite:///{self.folder / 'ledger.db'}"
            settings["data_dir"] = str(self.folder / process.name)
            settings["cluster.port"] = process.port + 2
        if self.world.rotates:
            settings["ledger.secrets_file"] = str(self.folder / SECRETS)
            settings["cluster.secret_file"] = str(self.folder / CLUSTER_SECRET)
        for name, version in self.world.brokers.items():
            port = self.brokers[name].port
            settings[f"brokers.{name}.url"] = f"amqp://guest:guest@127.0.0.1:{port}/?version={version}"
            settings[f"brokers.{name}.reconnect_min"] = 0.1
            settings[f"brokers.{name}.reconnect_max"] = 1.0
            settings[f"brokers.{name}.heartbeat"] = 4.0
        for route in self.world.routes:
            where = f"{'taps' if route.tap else 'subscriptions'}.{route.name}"
            settings[f"{where}.broker"] = route.end
            settings[f"{where}.queue"] = route.last
            if route.target:
                bridge = f"bridges.{route.name}"
                settings[f"{bridge}.source"] = {"broker": route.broker, "queue": route.name}
                settings[f"{bridge}.target"] = {"broker": route.target, "routing_key": route.last}
                settings[f"{bridge}.acknowledge"] = route.acknowledge
            if route.tap:
                settings[f"{where}.prefetch"] = 3 + self.reloads % 2
                continue
            if route.dead:
                settings[f"{where}.dead_letter_routing_key"] = route.dead
            settings[f"{where}.lease"] = route.lease
            settings[f"{where}.ack_deadline_seconds"] = 10 + self.reloads % 2
            if route.push:
                settings[f"{where}.push"] = route.name
                endpoint = f"endpoints.{route.name}"
                settings["outbound.allow"] = ["127.0.0.0/8"]
                settings[f"{endpoint}.url"] = f"http://127.0.0.1:{RECEIVER_PORT}/{route.name}"
                settings[f"{endpoint}.signing"] = ["v1"] if self.world.rotates else []
                settings[f"{endpoint}.schedule"] = list(SCHEDULE)
                settings[f"{endpoint}.deadline_seconds"] = 2.0
                settings[f"{endpoint}.breaker_open_max_seconds"] = 1.0
                settings[f"{endpoint}.concurrency"] = 4 + self.reloads % 2
            if route.ordered:
                settings[f"{where}.order_key"] = "property:correlation_id"
        return load(None, {}, settings)

    async def _main(self) -> None:
        sqlite_ledger(self.folder)
        if self.world.rotates:
            self._write_keys(SECRETS, [self._key()])
            self._write_keys(CLUSTER_SECRET, [self._key()])
        for number, name in enumerate(self.world.brokers):
            self.brokers[name] = broker = FarBroker(
                name,
                BROKER_PORT + number,
                self.loop,
                self.network,
                random.Random(f"{name} {self.world.seed}"),
                self.note,
            )
            await broker.start()
        for route in self.world.routes:
            self.brokers[route.broker].declare(route.name)
            if route.target:
                self.brokers[route.target].declare(route.last)
            if route.dead:
                self.brokers[route.end].declare(route.dead)
        if any(route.push for route in self.world.routes):
            await self.network.create_server(self.receiver.protocol, "127.0.0.1", RECEIVER_PORT)
        for process in self.gateways:
            await process.start()
            if self.world.rotates and process is self.gateways[0]:  # so that its receivers know a key of each endpoint
                await self._rotate("rotate signing keys")
        for process in self.gateways:
            process.commits = 0
        self.is_working = True
        producers: dict[int, list[Publish]] = {}
        for publish in self.world.publishes:
            producers.setdefault(publish.producer, []).append(publish)
        work = [self._spawn(self._produce(each), f"producer {number}") for number, each in producers.items()]
        drained = asyncio.Event()
        consumers = [
            self._spawn(self._consume(route, number, drained), f"consumer {route.name} {number}")
            for route in self.world.routes
            if not (route.push or route.tap)
            for number in range(self.world.consumers)
        ]
        consumers += [
            self._spawn(again(route), f"retry {route.name}")
            for route in self.world.routes
            for again, is_needed in ((self._retry, route.lease == "ledger"), (self._redrive, route.redrive))
            if route.reject and is_needed
        ]
        faults = [self._spawn(self._fault(fault), f"fault {fault.kind}") for fault in self.world.faults]
        await asyncio.gather(*faults)
        self.note("world", "calm")
        self.calm = self.receiver.calm = True
        await asyncio.gather(*work)
        self.note("world", "published")
        await self._drain()
        drained.set()
        if consumers:
            for consumer in consumers:  # they wait for messages that do not come
                consumer.cancel()
            await asyncio.wait(consumers)
        for process in self.gateways:
            await self._stop(process)
        for route in self.world.routes:
            if route.tap:
                self._read_log(route)
        self._judge()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self.loop.create_task(work, name=name)

    async def _stop(self, process: GatewayProcess) -> None:
        """Stop a process for good, and judge what it has left."""
        if problem := await process.stop():
            self.problem(problem)
        until = self.loop.now + 5.0  # far ends notice, and timers that only abort a stream are over
        while self.loop.now < until and self._leaks(process.node):
            await asyncio.sleep(0.2)
        self._judge_leaks(process.node)
        self.note(process.name, "stopped")

    async def _kill(self, process: GatewayProcess, seconds: float) -> None:
        if not process.node.alive or process.app is None:
            return
        self.note("fault", "kill", process.name, f"{seconds:.1f} s")
        self._judge_failures(process.node)
        process.kill()
        await asyncio.sleep(seconds)
        await process.start()

    def _commit(self, node: Node, _: int) -> None:
        """A process is about to commit: after the alarm it is dead, before the commit or right behind it."""
        process = self.by_name.get(node.name)
        if process is None:
            return
        process.commits += 1
        alarm = self.alarms.get((node.name, process.commits))
        if alarm is None or not self.is_working or process.app is None:
            return
        del self.alarms[node.name, process.commits]
        self.loop.call_soon(alarm.set, context=self.loop.world.context)
        if process.commits % 2:
            self.note("fault", "killed before a commit")
            raise Killed

    def _message(self, name: str, count: int) -> None:
        alarm = self.alarms.get((name, count))
        if alarm is not None:
            self.loop.call_soon(alarm.set, context=self.loop.world.context)

    async def _fault(self, fault: Fault) -> None:
        kind, target, amount = fault.kind, fault.target, fault.amount
        if " at " in kind:
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.alarms[target, int(fault.at)].wait()
            self.alarms.pop((target, int(fault.at)), None)
            kind = kind.partition(" ")[0]
        else:
            await asyncio.sleep(fault.at)
        if kind == "crash":
            await self.brokers[target].crash(amount)
        elif kind == "kill":
            await self._kill(self.by_name[target], amount)
        elif kind == "cut":
            self.note("fault", "cut", target, fault.other, f"after {amount:.0f} octets")
            cut = Cut(target, fault.other, int(amount))
            self.network.cuts.append(cut)
            await asyncio.sleep(1.0)
            if cut in self.network.cuts:
                self.network.cuts.remove(cut)
        elif kind == "part":
            self.note("fault", "part", target, fault.other, f"{amount:.1f} s")
            self.network.part(target, fault.other)
            await asyncio.sleep(amount)
            self.network.join(target, fault.other)
            self.note("fault", "join", target, fault.other)
        elif kind == "pause":
            node = (self.by_name.get(target) or self.brokers[target]).node
            self.note("fault", "pause", target, f"{amount:.1f} s")
            node.paused_until = self.loop.now + amount
            await asyncio.sleep(amount)
        elif kind == "reload":
            self.reloads += 1
            caller = Caller(self.by_name[target].port)
            try:
                answer = await caller.request("POST", "/v1/admin:reload", None, {}, WITHIN)
                self.note("fault", "reload", answer.status)
            except (NotSent, NoAnswer) as error:
                self.note("fault", "reload", error)
            caller.close()
        elif kind.startswith("rotate"):
            await self._rotate(kind)
        elif kind == "ledger":
            self.note("fault", "ledger fails", f"{amount:.2f} s")
            self.seams.ledgers.failing.add(target)
            await asyncio.sleep(amount)
            self.seams.ledgers.failing.discard(target)
            self.note("fault", "ledger works")

    # ------------------------------------------------------------------------------------------- rotations

    def _key(self) -> str:
        return b64encode(self.keys.randbytes(32)).decode()

    def _write_keys(self, name: str, keys: list[str]) -> None:
        (self.folder / name).write_text("\n".join(keys) + "\n")

    async def _rotate(self, kind: str) -> None:
        """Replace keys as the guide says it."""
        self.note("fault", kind)
        if kind == "rotate signing keys":
            for route in self.world.routes:
                if route.push:
                    await self._rotate_signing_key(route)
        elif kind == "rotate secrets":
            old, new = (self.folder / SECRETS).read_text().split(), self._key()
            for keys in ([*old, new], [new, *old]):
                self._write_keys(SECRETS, keys)
                for process in self.gateways:
                    await self._end(process)
                    await process.start()
        else:  # of all processes at once
            for process in self.gateways:
                await self._end(process)
            (self.folder / "ack-ids.key").unlink(missing_ok=True)
            self._write_keys(CLUSTER_SECRET, [self._key()])
            for process in self.gateways:
                await process.start()

    async def _end(self, process: GatewayProcess) -> None:
        """Stop a process that is to be started again."""
        while process.app is None:  # somebody else has ended it
            await asyncio.sleep(0.05)
        if problem := await process.stop():
            self.problem(problem)
        self._judge_failures(process.node)
        self.note(process.name, "ended")

    async def _rotate_signing_key(self, route: Route) -> None:
        """Have an endpoint sign with a further key, and tell its receiver. What nobody knows whose answer is lost signs
        beside those before it."""
        caller = Caller(self.gateways[0].port)
        try:
            answer = await caller.request("POST", f"/v1/endpoints/{route.name}:rotate", None, {}, WITHIN)
        except (NotSent, NoAnswer):
            return
        finally:
            caller.close()
        self.note("rotate", route.name, answer.status)
        for each in answer.json().get("signing_keys", ()):
            if "secret" in each:
                key = b64decode(each["secret"].removeprefix("whsec_"))
                self.receiver.keys.setdefault(route.name, []).append(key)

    # ------------------------------------------------------------------------------------------- producers

    async def _produce(self, publishes: list[Publish]) -> None:
        callers = self._callers()
        for publish in publishes:
            await asyncio.sleep(publish.pause)
            await self._publish(callers, publish)
        for caller in callers:
            caller.close()

    def _callers(self) -> list[Caller]:
        """A caller of each process."""
        return [Caller(process.port) for process in self.gateways]

    async def _publish(self, callers: list[Caller], publish: Publish) -> None:
        route = self.world.routes[publish.route]
        order = f"{publish.producer}-{publish.order}"
        messages = []
        for index in range(publish.count):
            id = f"m{publish.number}.{index}"
            text = f"{id} ".ljust(publish.size, "x")
            name = f"twin {route.name}" if publish.twin else id
            properties = {"message_id": name, "correlation_id": order, "delivery_mode": 2}
            self.bodies[id] = text.encode()
            self.history.attempt(id, digest(self.bodies[id], properties, {}))
            message = {"routing_key": route.name, "payload": text, "mandatory": True, "properties": properties}
            messages.append({**message, "delay_seconds": publish.delay} if publish.delay else message)
        ids = [f"m{publish.number}.{index}" for index in range(publish.count)]
        body = messages[0] if publish.count == 1 else {"messages": messages}
        headers = {"idempotency-key": f"k{publish.number}"} if publish.keyed else {}
        path = f"/v1/brokers/{route.broker}/exchanges/amq.default:publish"
        until, began = self.loop.now + PATIENCE, self.loop.now
        hang_up = publish.hang_up
        self.note("publish", *ids, "to", route.name, "keyed" if publish.keyed else "")
        for turn in count(publish.producer):
            caller = callers[turn % len(callers)]
            try:
                answer = await caller.request("POST", path, body, headers, WITHIN, hang_up)
            except NotSent:
                pass
            except NoAnswer as error:
                self.note("publish", *ids, "no answer:", error)
                if isinstance(error, Hung):
                    self.problem("a publish hangs", *ids)
                for id in ids:
                    self.history.answer(id, Outcome.UNKNOWN)
                if not publish.keyed:
                    return
            else:
                if self._answered(publish, ids, answer, order, began):
                    return
            if self.loop.now > until:
                self.note("publish", *ids, "given up")
                return
            hang_up = None
            await asyncio.sleep(0.1 + 0.2 * self.chance.random())

    def _answered(self, publish: Publish, ids: list[str], answer: Answer, order: str, began: float) -> bool:
        """What an answer says; whether that is the end of it."""
        body = answer.json()
        self.result.counts[f"publish {answer.status}"] += 1
        if answer.status == 207:
            parts = [
                (id, each["status"], {**each, **each.get("problem", {})})
                for id, each in zip(ids, body["results"], strict=True)
            ]
        else:
            parts = [(id, answer.status, body) for id in ids]
        if answer.status == 409 and body.get("code") == "idempotency_key_running":
            return False
        again = False
        for id, status, each in parts:
            self.note("publish", id, status, each.get("code", ""), "resent" if each.get("resent") else "")
            if status == 202:
                self.history.answer(id, Outcome.ACKNOWLEDGED, each.get("id", ""))
                continue
            if status == 200:
                self.history.answer(id, Outcome.ACKNOWLEDGED, each.get("id", ""), bool(each.get("resent")))
                self.told.append((publish.route, order, id, began, self.loop.now))
                continue
            outcome = _OUTCOMES.get(each.get("outcome", ""))
            if outcome is None:
                self.problem(f"an answer without an outcome: {status} {each}", id)
                continue
            self.history.answer(id, outcome, each.get("id", ""))
            again |= status in (503, 504) and (publish.keyed or outcome is Outcome.NOT_TAKEN)
            if not publish.keyed and publish.count > 1:
                again = False
        return not again

    # ------------------------------------------------------------------------------------------- consumers

    async def _consume(self, route: Route, number: int, drained: asyncio.Event) -> None:
        chance = random.Random(f"{self.world.seed} consumer {route.name} {number}")
        path = f"/v1/subscriptions/{route.name}"
        callers, turn = self._callers(), number
        while not drained.is_set():
            caller = callers[turn % len(callers)]
            is_clumsy = not self.calm and chance.random() < self.world.clumsy
            hang_up = 0.02 * chance.random() if is_clumsy else None
            question = {"max_messages": chance.choice((1, 3, 10)), "wait": chance.choice((0.0, 0.1, 3.0, 3.0))}
            if self.calm:
                question["wait"] = 3.0
            try:
                answer = await caller.request("POST", f"{path}:pull", question, {}, WITHIN, hang_up)
            except NotSent:
                turn += 1
                await asyncio.sleep(0.1)
                continue
            except NoAnswer as error:
                if isinstance(error, Hung):
                    self.problem("a pull hangs", route.name)
                continue
            if len(callers) > 1 and chance.random() < 0.3:  # any process takes the acknowledgement
                caller = callers[(turn + 1) % len(callers)]
            if answer.status != 200:
                self.note("pull", route.name, answer.status, answer.json().get("code", ""))
                await asyncio.sleep(0.1)
                continue
            messages = answer.json()["messages"]
            if not messages:
                if not question["wait"]:
                    await asyncio.sleep(0.1)
                continue
            held = [(item["ack_id"], self._received(item, route)) for item in messages]
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.01, 0.2)))
            back = [each for each in held if not each[1].marked and chance.random() < 0.05]
            kept = [each for each in held if each not in back]
            if route.reject and (route.redrive or not self.calm):  # what is driven back once is taken in the end
                dead = [each for each in kept if chance.random() < route.reject]
                dead = [each for each in dead if not (self.calm and each[1].id in self.rejected)]
                kept = [each for each in kept if each not in dead]
                self.rejected.update(reception.id for _, reception in dead)
                if route.redrive:
                    self.driven.update(reception.id for _, reception in dead)
                await self._tell(caller, path, "reject", dead, Settled.RELEASED, chance)
            await self._tell(caller, path, "acknowledge", kept, Settled.ACKED, chance)
            await self._tell(caller, path, "release", back, Settled.RELEASED, chance)
        for caller in callers:
            caller.close()

    async def _retry(self, route: Route) -> None:
        """Have what is dead of a subscription tried again, from time to time."""
        for caller in cycle(self._callers()):
            await asyncio.sleep(1.0)
            try:
                await caller.request("POST", "/v1/deliveries:retry", {"filter": {"subscription": route.name}})
            except (NotSent, NoAnswer):
                continue

    async def _redrive(self, route: Route) -> None:
        """Drive back what is in the dead-letter queue of a subscription, by one replay after another."""
        number, is_asked = 0, False
        queue = {"broker": route.end, "queue": route.dead}
        for caller in cycle(self._callers()):
            await asyncio.sleep(0.5)
            id = f"{route.name}-{number}"
            try:
                if not is_asked:
                    if not self.brokers[route.end].ready().get(route.dead):
                        continue
                    request = {"id": id, "source": {"queue": queue}}
                    answer = await caller.request("POST", "/v1/replays", request, {}, WITHIN)
                    self.note("replay", id, answer.status, answer.json().get("code", ""))
                    is_asked = answer.status < 300
                    continue
                answer = await caller.request("GET", f"/v1/replays/{id}", None, {}, WITHIN)
            except (NotSent, NoAnswer) as error:
                if isinstance(error, Hung):
                    self.problem("a replay hangs", id)
                continue
            if answer.status == 200 and (state := answer.json()["state"]) in ("done", "failed", "cancelled"):
                self.note("replay", id, state, answer.json()["reason"])
                number, is_asked = number + 1, False

    def _read_log(self, route: Route) -> None:
        """What a tap has kept counts as received."""
        connection = sqlite3.connect(self.folder / "ledger.db")
        query = "SELECT message_id, body, redelivered, properties FROM message_log WHERE tap = ? ORDER BY sequence"
        rows = connection.execute(query, (route.name,)).fetchall()
        connection.close()
        for message_id, body, redelivered, properties in rows:
            id = body.split()[0].decode()
            publish = self.history.publishes.get(id)
            expected = publish.digest if publish is not None and body == self.bodies[id] else ""
            reception = Reception(id=id, digest=expected, gateway_id=message_id.hex(), redelivered=bool(redelivered))
            reception.resent = b'"resent"' in properties
            reception.settled = Settled.ACKED
            self.history.receive(reception)
            self.note("log", id, "from", route.name, "redelivered" if redelivered else "")

    def _pushed(self, name: str, item: dict[str, Any]) -> Reception:
        """A receiver of webhooks has a message."""
        route = next(each for each in self.world.routes if each.name == name)
        reception = self._received(item, route)
        reception.delivery = item["webhook_id"]
        if route.lease == "broker":  # which delivers again at once when the link is lost
            reception.until = reception.since
        return reception

    def _received(self, item: dict[str, Any], route: Route) -> Reception:
        message = item["message"]
        properties = message["properties"]
        id = message["payload"].split()[0]
        reception = Reception(
            id=id,
            digest=digest(message["payload"].encode(), properties, message["headers"]),
            gateway_id=message["id"],
            redelivered=item["redelivered"],
            resent=item.get("resent", False),
            attempt=item.get("delivery_attempt") or 0,
            since=self.loop.now,
        )
        if not reception.marked and self.driven[id] and id in {each.id for each in self.history.receptions}:
            self.driven[id] -= 1
            reception.forgotten = True
        marks = [name for name in ("redelivered", "resent") if getattr(reception, name)]
        self.note("receive", id, "from", route.name, *marks, f"attempt {reception.attempt}")
        return self.history.receive(reception)

    async def _tell(
        self,
        caller: Caller,
        path: str,
        verb: str,
        held: list[tuple[str, Reception]],
        success: Settled,
        chance: random.Random,
    ) -> None:
        if not held:
            return
        for _, reception in held:
            reception.until = self.loop.now
        is_clumsy = not self.calm and chance.random() < self.world.clumsy
        hang_up = 0.01 * chance.random() if is_clumsy else None
        names = [reception.id for _, reception in held]
        try:
            body = {"ack_ids": [ack_id for ack_id, _ in held]}
            answer = await caller.request("POST", f"{path}:{verb}", body, {}, WITHIN, hang_up)
        except NotSent:
            return
        except NoAnswer as error:
            if isinstance(error, Hung):
                self.problem(f"{verb} hangs", *names)
            for _, reception in held:
                reception.settled = Settled.UNCLEAR if success is Settled.ACKED else success
            self.note(verb, *names, "no answer")
            return
        if answer.status != 200:
            self.note(verb, *names, answer.status)
            for _, reception in held:
                if answer.status >= 500 and success is Settled.ACKED:
                    reception.settled = Settled.UNCLEAR
            return
        for (_, reception), result in zip(held, answer.json()["results"], strict=True):
            self.note(verb, reception.id, result["status"])
            if result["status"] == "SUCCESS":
                reception.settled = success

    # ------------------------------------------------------------------------------------------- the end

    async def _drain(self) -> None:
        """Wait until nothing is anywhere any more."""
        until = self.loop.now + DRAIN
        quiet = 0
        # A request to a silent receiver may be under way for 2 seconds, of a message that its broker has taken back.
        enough = 10 if any(route.push for route in self.world.routes) else 3
        while quiet < enough:
            await asyncio.sleep(0.3)
            left = self._left()
            quiet = 0 if left else quiet + 1
            if self.loop.now > until:
                self.problem("not drained", *left)
                return
        self.history.drained = True

    def _left(self) -> list[str]:
        left = [
            f"{name}.{queue} {count}" for name, each in self.brokers.items() for queue, count in each.ready().items()
        ]
        for name, broker in self.brokers.items():
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
        if self._reader is None:
            self._reader = sqlite3.connect(self.folder / "ledger.db")
        counts = self._reader.execute(OPEN_WORK).fetchall()
        return [f"{count} rows of {table}" for table, count in counts if count]

    def _judge(self) -> None:
        if not self.history.drained:
            return
        verdict = check(self.history)
        self.result.counts["attempted"] = verdict.attempted
        self.result.counts["acknowledged"] = verdict.acknowledged
        self.result.counts["duplicated"] = verdict.duplicated
        self.result.problems += verdict.problems
        self._judge_order()
        self._judge_events()
        for left in self._rows():
            self.problem(f"in doubt after recovery: {left}")
        if self.receiver.unsigned:
            self.problem("pushed without a signature of a known key", *self.receiver.unsigned)
        if not self.result.counts["publish"]:
            self.problem("the world did nothing")

    def _judge_order(self) -> None:
        """Of an ordered subscription, messages with one key are handed out one at a time, and in the order in which
        they were acknowledged to their publisher. A message that was rejected holds up no other."""
        first: dict[str, float] = {}
        done: dict[str, float] = {}
        for reception in self.history.receptions:
            first.setdefault(reception.id, reception.since)
            if reception.until is not None and reception.settled in (Settled.ACKED, Settled.UNCLEAR):
                done.setdefault(reception.id, reception.until)
        for index, (route, order, id, began, _) in enumerate(self.told):
            if not self.world.routes[route].ordered:
                continue
            for earlier_route, earlier_order, earlier, _, answered in self.told[:index]:
                if (
                    (earlier_route, earlier_order) == (route, order)
                    and earlier not in self.rejected
                    and answered <= began
                    and id in first
                    and first[id] < done.get(earlier, float("inf"))
                ):
                    self.problem(f"{id} was handed out before {earlier}, published before it with its key, was done")

    def _judge_events(self) -> None:
        """Every event of the ledger follows one that it may follow."""
        with closing(sqlite3.connect(self.folder / "ledger.db")) as connection:
            self.result.problems += impossible_traces(connection.execute(QUERY))

    def _judge_failures(self, node: Node) -> None:
        for context in node.failures:
            error = context.get("exception")
            text = "".join(traceback.format_exception(error)[-4:]) if error is not None else ""
            self.problem(f"a failure in {node}: {context.get('message')} {error!r} {text}")

    def _leaks(self, node: Node) -> list[str]:
        """What a gateway that has stopped has left."""
        leaks = [f"task {task.get_name()} of {node} left" for task in node.tasks]
        leaks += [f"timer {timer} of {node} left" for timer in self.loop.timers_of(node)]
        leaks += [f"connection of {node} to {each.port} left" for each in self.network.of(node)]
        if all(process.app is None for process in self.gateways):
            for broker in self.brokers.values():
                if number := len(broker.server.broker.connections):
                    leaks.append(f"{number} connections left at {broker.name}")
        return leaks

    def _judge_leaks(self, node: Node) -> None:
        self._judge_failures(node)
        self.result.problems += self._leaks(node)


def simulate(world: World) -> Result:
    """Run a world, and judge it."""
    return Simulation(world).run()
