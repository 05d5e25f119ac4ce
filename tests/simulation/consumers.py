"""Those who receive in a world: who pull, who are pushed to, and who drive back what was rejected."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import datetime
from itertools import cycle
from typing import Any, Final

from tests.faults.checker import Reception, Settled, digest
from tests.faults.http import Hung, NoAnswer, NotSent
from tests.simulation.producers import EQUAL
from tests.simulation.scene import Scene
from tests.simulation.surroundings.callers import WITHIN, Caller
from tests.simulation.surroundings.loop import START, WALL
from tests.simulation.worlds import COPIES, Route

TOLD: Final = 0.05
"""So long before it ended, at most, a replay has acknowledged its last message, in seconds."""


class Consumers:
    """All consumers of a world."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._drained = False
        self._driven: Counter[str] = Counter()
        """How often a message was rejected that replays drive back: so often it may come again without a mark."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Have all of them begin."""
        scene = self.scene
        self._tasks = [
            scene.spawn(self._consume(route, number), f"consumer {route.name} {number}")
            for route in scene.world.routes
            if not (route.push or route.tap)
            for number in range(scene.world.consumers)
        ]
        self._tasks += [
            scene.spawn(again(route), f"retry {route.name}")
            for route in scene.world.routes
            for again, is_needed in (
                (self._retry, route.lease == "ledger" and not route.revive),
                (self._revive, route.revive),
                (self._redrive, route.redrive),
            )
            if route.reject and is_needed
        ]

    async def stop(self) -> None:
        """End them: nothing is left to receive."""
        self._drained = True
        if self._tasks:
            for task in self._tasks:  # they wait for messages that do not come
                task.cancel()
            await asyncio.wait(self._tasks)

    # ------------------------------------------------------------------------------------------- pulled

    async def _consume(self, route: Route, number: int) -> None:
        scene = self.scene
        chance = random.Random(f"{scene.world.seed} consumer {route.name} {number}")
        path = f"/v1/subscriptions/{route.name}"
        callers, turn = scene.callers(), number
        while not self._drained:
            caller = callers[turn % len(callers)]
            is_clumsy = not scene.is_calm and chance.random() < scene.world.clumsy
            hang_up = 0.02 * chance.random() if is_clumsy else None
            question = {"max_messages": chance.choice((1, 3, 10)), "wait": chance.choice((0.0, 0.1, 3.0, 3.0))}
            if scene.is_calm:
                question["wait"] = 0.0 if scene.world.moment == "turns" else 3.0
            waited = scene.brokers[route.end].waiting(route.last) if scene.world.moment == "turns" else set()
            try:
                answer = await caller.request("POST", f"{path}:pull", question, {}, WITHIN, hang_up)
            except NotSent:
                turn += 1
                await asyncio.sleep(0.1)
                continue
            except NoAnswer as error:
                if isinstance(error, Hung):
                    scene.problem("a pull hangs", route.name)
                continue
            if len(callers) > 1 and chance.random() < 0.3:  # any process takes the acknowledgement
                caller = callers[(turn + 1) % len(callers)]
            if answer.status != 200:
                scene.note("pull", route.name, answer.status, answer.json().get("code", ""))
                await asyncio.sleep(0.1)
                continue
            messages = answer.json()["messages"]
            if not messages:
                if left := waited & scene.brokers[route.end].waiting(route.last):
                    scene.problem(f"a pull brought nothing, and {len(left)} messages were there", route.name)
                if not question["wait"]:
                    await asyncio.sleep(0.1)
                continue
            held = [(item["ack_id"], self._received(item, route)) for item in messages]
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.01, 0.2)))
            await self._settle(caller, route, held, chance)
        for caller in callers:
            caller.close()

    async def _settle(
        self, caller: Caller, route: Route, held: list[tuple[str, Reception]], chance: random.Random
    ) -> None:
        """Acknowledge most of what was pulled, release some of it, and reject some."""
        scene, path = self.scene, f"/v1/subscriptions/{route.name}"
        back = [each for each in held if not each[1].marked and chance.random() < 0.05]
        kept = [each for each in held if each not in back]
        if route.reject and (route.redrive or not scene.is_calm):  # what is driven back once is taken in the end
            dead = [each for each in kept if chance.random() < route.reject]
            dead = [each for each in dead if not (scene.is_calm and each[1].id in scene.rejected)]
            kept = [each for each in kept if each not in dead]
            scene.rejected.update(reception.id for _, reception in dead)
            if route.redrive:
                self._driven.update(reception.id for _, reception in dead)
            await self._tell(caller, f"{path}:reject", dead, Settled.RELEASED, chance)
        await self._tell(caller, f"{path}:acknowledge", kept, Settled.ACKED, chance)
        await self._tell(caller, f"{path}:release", back, Settled.RELEASED, chance)

    async def _tell(
        self, caller: Caller, path: str, held: list[tuple[str, Reception]], success: Settled, chance: random.Random
    ) -> None:
        if not held:
            return
        scene, verb = self.scene, path.partition(":")[2]
        for _, reception in held:
            reception.until = scene.loop.now
        is_clumsy = not scene.is_calm and chance.random() < scene.world.clumsy
        hang_up = 0.01 * chance.random() if is_clumsy else None
        names = [reception.id for _, reception in held]
        try:
            body = {"ack_ids": [ack_id for ack_id, _ in held]}
            answer = await caller.request("POST", path, body, {}, WITHIN, hang_up)
        except NotSent:
            return
        except NoAnswer as error:
            if isinstance(error, Hung):
                scene.problem(f"{verb} hangs", *names)
            for _, reception in held:
                reception.settled = Settled.UNCLEAR if success is Settled.ACKED else success
            scene.note(verb, *names, "no answer")
            return
        if answer.status != 200:
            scene.note(verb, *names, answer.status)
            for _, reception in held:
                if answer.status >= 500 and success is Settled.ACKED:
                    reception.settled = Settled.UNCLEAR
            return
        for (_, reception), result in zip(held, answer.json()["results"], strict=True):
            scene.note(verb, reception.id, result["status"])
            if result["status"] == "SUCCESS":
                reception.settled = success

    # ------------------------------------------------------------------------------------------- pushed, or kept

    def pushed(self, name: str, item: dict[str, Any]) -> Reception:
        """A receiver of webhooks has a message."""
        route = next(each for each in self.scene.world.routes if each.name == name)
        reception = self._received(item, route)
        reception.delivery = item["webhook_id"]
        if route.lease == "broker":  # which delivers again at once when the link is lost
            reception.until = reception.since
        return reception

    def _received(self, item: dict[str, Any], route: Route) -> Reception:
        scene = self.scene
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
            since=scene.loop.now,
        )
        is_copy = route.name == COPIES
        if (
            not (is_copy or reception.marked)
            and self._driven[id]
            and id in {each.id for each in scene.history.receptions}
        ):
            self._driven[id] -= 1
            reception.forgotten = True
        marks = [name for name in ("redelivered", "resent") if getattr(reception, name)]
        scene.note("receive", id, "from", route.name, *marks, f"attempt {reception.attempt}")
        if id == EQUAL:
            scene.equals.append(reception)
            return reception
        if is_copy:
            scene.result.counts["copy"] += 1
            scene.copies.append(reception)
            return reception
        return scene.history.receive(reception)

    def read_logs(self) -> None:
        """What taps have kept counts as received."""
        for route in self.scene.world.routes:
            if route.tap:
                self._read_log(route)

    def _read_log(self, route: Route) -> None:
        scene = self.scene
        query = "SELECT message_id, body, redelivered, properties FROM message_log WHERE tap = ? ORDER BY sequence"
        with closing(sqlite3.connect(scene.folder / "ledger.db")) as connection:
            rows = connection.execute(query, (route.name,)).fetchall()
        for message_id, body, redelivered, properties in rows:
            id = body.split()[0].decode()
            publish = scene.history.publishes.get(id)
            expected = publish.digest if publish is not None and body == scene.bodies[id] else ""
            reception = Reception(id=id, digest=expected, gateway_id=message_id.hex(), redelivered=bool(redelivered))
            reception.resent = b'"resent"' in properties
            reception.settled = Settled.ACKED
            if id == EQUAL:
                scene.equals.append(reception)
            else:
                scene.history.receive(reception)
            scene.note("log", id, "from", route.name, "redelivered" if redelivered else "")

    # ------------------------------------------------------------------------------------------- driven back

    async def _retry(self, route: Route) -> None:
        """Have what is dead of a subscription tried again, from time to time."""
        for caller in cycle(self.scene.callers()):
            await asyncio.sleep(1.0)
            try:
                await caller.request("POST", "/v1/deliveries:retry", {"filter": {"subscription": route.name}})
            except (NotSent, NoAnswer):
                continue

    async def _revive(self, route: Route) -> None:
        """Have replays bring back what is dead of a subscription, one after another."""
        scene = self.scene
        number, is_asked = 0, False
        for caller in cycle(scene.callers()):
            await asyncio.sleep(0.5)
            id = f"revive-{route.name}-{number}"
            try:
                if not is_asked:
                    request = {"id": id, "source": {"deliveries": {"subscription": route.name}}}
                    answer = await caller.request("POST", "/v1/replays", request)
                    is_asked = answer.status < 300
                    continue
                answer = await caller.request("GET", f"/v1/replays/{id}")
            except (NotSent, NoAnswer) as error:
                if isinstance(error, Hung):
                    scene.problem("a replay hangs", id)
                continue
            if answer.status == 200 and (state := answer.json()["state"]) in ("done", "failed", "cancelled"):
                if answer.json()["sent"]:
                    scene.note("revive", id, state, answer.json()["sent"], answer.json()["reason"])
                number, is_asked = number + 1, False

    async def _redrive(self, route: Route) -> None:
        """Drive back what is in the dead-letter queue of a subscription, by one replay after another."""
        scene = self.scene
        number, is_asked = 0, False
        queue = {"broker": route.end, "queue": route.dead}
        waited: set[Any] = set()
        for caller in cycle(scene.callers()):
            await asyncio.sleep(0.5)
            id = f"{route.name}-{number}"
            try:
                if not is_asked:
                    if not scene.brokers[route.end].ready().get(route.dead):
                        continue
                    waited = scene.brokers[route.end].waiting(route.dead)
                    request = {"id": id, "source": {"queue": queue}}
                    answer = await caller.request("POST", "/v1/replays", request, {}, WITHIN)
                    scene.note("replay", id, answer.status, answer.json().get("code", ""))
                    is_asked = answer.status < 300
                    continue
                answer = await caller.request("GET", f"/v1/replays/{id}", None, {}, WITHIN)
            except (NotSent, NoAnswer) as error:
                if isinstance(error, Hung):
                    scene.problem("a replay hangs", id)
                continue
            if answer.status == 200 and (state := answer.json()["state"]) in ("done", "failed", "cancelled"):
                scene.note("replay", id, state, answer.json()["reason"])
                if state == "done" and self._has_heard(answer.json()["ended_at"]):
                    left = waited & scene.brokers[route.end].waiting(route.dead)
                    if left:
                        scene.problem(f"a replay is done, and has left {len(left)} of its messages", id)
                number, is_asked = number + 1, False

    def _has_heard(self, ended_at: str) -> bool:
        """Whether a broker has had all that a replay told it before it ended, where connections are only reset."""
        scene = self.scene
        ended = datetime.fromisoformat(ended_at).timestamp() - WALL + START
        return scene.world.moment == "redrives" and scene.network.cut_at < ended - TOLD
