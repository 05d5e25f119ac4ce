"""Those who publish in a world, and repeat what may not have arrived."""

from __future__ import annotations

import asyncio
import random
from itertools import count
from typing import Any, Final

from tests.faults.checker import Outcome, digest
from tests.faults.http import Answer, Hung, NoAnswer, NotSent
from tests.simulation.scene import Scene
from tests.simulation.surroundings.callers import WITHIN, Caller
from tests.simulation.worlds import Publish, Stranger

PATIENCE: Final = 40.0
"""How long a producer repeats one publish, in seconds."""
EQUAL: Final = "equal"
"""Id of all messages of a stranger whose messages are equal."""
_OUTCOMES: Final = {"not_sent": Outcome.NOT_TAKEN, "refused": Outcome.NOT_TAKEN, "unknown": Outcome.UNKNOWN}


class Producers:
    """All producers of a world."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.chance = random.Random(f"work {scene.world.seed}")

    def start(self) -> list[asyncio.Task[None]]:
        """Have all of them begin."""
        shares: dict[int, list[Publish]] = {}
        for publish in self.scene.world.publishes:
            shares.setdefault(publish.producer, []).append(publish)
        return [self.scene.spawn(self._produce(each), f"producer {number}") for number, each in shares.items()]

    async def _produce(self, publishes: list[Publish]) -> None:
        callers = self.scene.callers()
        for publish in publishes:
            await asyncio.sleep(publish.pause)
            await self._publish(callers, publish)
        for caller in callers:
            caller.close()

    async def put(self, stranger: Stranger) -> None:
        """Have a stranger put its messages into their queue. Those that are equal are counted, and have no history."""
        scene, route = self.scene, self.scene.world.routes[stranger.route]
        for number in range(stranger.messages):
            id = EQUAL if stranger.equal else f"s{number}"
            body = f"{id} from elsewhere".encode()
            if not stranger.equal:
                scene.bodies[id] = body
                scene.history.attempt(id, digest(body, {"message_id": id, "delivery_mode": 2}, {}))
                scene.history.answer(id, Outcome.ACKNOWLEDGED)
            scene.note("stranger", id, "to", route.name)
            await scene.brokers[route.broker].put(route.name, body, id, was_out=stranger.was_out)
            await asyncio.sleep(max(0.0, stranger.pause))

    def _messages(self, publish: Publish, order: str) -> dict[str, dict[str, Any]]:
        """Id -> message, each of which the history knows from now on."""
        route = self.scene.world.routes[publish.route]
        messages: dict[str, dict[str, Any]] = {}
        for index in range(publish.count):
            id = f"m{publish.number}.{index}"
            text = f"{id} ".ljust(publish.size, "x")
            name = f"twin {route.name}" if publish.twin else id
            properties = {"message_id": name, "correlation_id": order, "delivery_mode": 2}
            self.scene.bodies[id], self.scene.routes_of[id] = text.encode(), route.name
            self.scene.history.attempt(id, digest(self.scene.bodies[id], properties, {}))
            message = {"routing_key": route.name, "payload": text, "mandatory": True, "properties": properties}
            messages[id] = {**message, "delay_seconds": publish.delay} if publish.delay else message
            if publish.own_keys:
                messages[id]["key"] = f"k{id}"
        return messages

    async def _publish(self, callers: list[Caller], publish: Publish) -> None:
        scene, route = self.scene, self.scene.world.routes[publish.route]
        order = f"{publish.producer}-{publish.order}"
        messages = self._messages(publish, order)
        ids = list(messages)
        is_single = publish.count == 1 and not publish.own_keys
        body = messages[ids[0]] if is_single else {"messages": list(messages.values())}
        headers = {"idempotency-key": f"k{publish.number}"} if publish.keyed else {}
        path = f"/v1/brokers/{route.broker}/exchanges/amq.default:publish"
        until, began = scene.loop.now + PATIENCE, scene.loop.now
        hang_up, is_keyed = publish.hang_up, publish.keyed or publish.own_keys
        scene.note("publish", *ids, "to", route.name, "keyed" if publish.keyed else "")
        for turn in count(publish.producer):
            caller = callers[turn % len(callers)]
            try:
                answer = await caller.request("POST", path, body, headers, WITHIN, hang_up)
            except NotSent:
                pass
            except NoAnswer as error:
                scene.note("publish", *ids, "no answer:", error)
                if isinstance(error, Hung):
                    scene.problem("a publish hangs", *ids)
                for id in ids:
                    scene.history.answer(id, Outcome.UNKNOWN)
                if not is_keyed:
                    return
            else:
                if self._answered(publish, ids, answer, order, began):
                    return
            if scene.loop.now > until:
                scene.note("publish", *ids, "given up")
                return
            hang_up = None
            await asyncio.sleep(0.1 + 0.2 * self.chance.random())

    def _answered(self, publish: Publish, ids: list[str], answer: Answer, order: str, began: float) -> bool:
        """What an answer says; whether that is the end of it."""
        scene, body = self.scene, answer.json()
        scene.result.counts[f"publish {answer.status}"] += 1
        if answer.status == 207:
            parts = [
                (id, each["status"], {**each, **each.get("problem", {})})
                for id, each in zip(ids, body["results"], strict=True)
            ]
        else:
            parts = [(id, answer.status, body) for id in ids]
        if answer.status == 409 and body.get("code") == "idempotency_key_running":
            return False
        again, is_keyed = False, publish.keyed or publish.own_keys
        for id, status, each in parts:
            scene.note("publish", id, status, each.get("code", ""), "resent" if each.get("resent") else "")
            if status == 202:
                scene.history.answer(id, Outcome.ACKNOWLEDGED, each.get("id", ""))
                continue
            if status == 200:
                scene.history.answer(id, Outcome.ACKNOWLEDGED, each.get("id", ""), bool(each.get("resent")))
                scene.told.append((publish.route, order, id, began, scene.loop.now))
                continue
            outcome = _OUTCOMES.get(each.get("outcome", ""))
            if outcome is None:
                scene.problem(f"an answer without an outcome: {status} {each}", id)
                continue
            is_first = scene.history.publishes[id].outcome in (None, Outcome.NOT_TAKEN)
            scene.history.answer(id, outcome, each.get("id", ""))
            if outcome is Outcome.NOT_TAKEN and is_first and id in scene.came:
                scene.problem("answered as not taken, and a broker has had it", id)
            again |= status in (503, 504, 409) and (is_keyed or outcome is Outcome.NOT_TAKEN)
            if not is_keyed and publish.count > 1:
                again = False
        return not again
