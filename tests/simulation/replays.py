"""Somebody who has messages of the ledger sent once more: to a queue, or to an endpoint."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any, Final

from tests.faults.checker import Outcome, Reception, Settled
from tests.faults.http import Answer, Hung, NoAnswer, NotSent
from tests.simulation.scene import Scene
from tests.simulation.surroundings.callers import Caller
from tests.simulation.worlds import COPIES, Replay

ENDED: Final = frozenset({"done", "failed", "cancelled"})
LOOK: Final = 0.3
"""How often the state of a replay is looked at, in seconds."""
PATIENCE: Final = 150.0
"""How long a replay may take once nothing goes wrong any more, in seconds."""


@dataclass
class _Run:
    """One replay, as its caller knows it."""

    id: str
    state: str = ""
    sent: int = 0
    """By this run, or by one before it under the same id."""
    skipped: int = 0
    """By one before it."""
    refused: int = 0


class Replays:
    """The replays of a world, one after another, and the last one when everything has come."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._runs: list[_Run] = []
        self._last_at = 0.0
        """When the last one was asked for."""

    def start(self) -> list[asyncio.Task[None]]:
        """Have them begin."""
        replay = self.scene.world.replay
        return [] if replay is None else [self.scene.spawn(self._work(replay), "replays")]

    async def finish(self) -> None:
        """Replay once more, now that nothing goes wrong: this one must send all that was acknowledged."""
        replay = self.scene.world.replay
        if replay is not None:
            self._last_at = self.scene.loop.now
            await self._replay(replay, "last", "", 0.0)

    async def _work(self, replay: Replay) -> None:
        for number, (pause, wish, after) in enumerate(replay.asks):
            await asyncio.sleep(pause)
            # The first ones have one id: a replay that has ended goes through its source again.
            await self._replay(replay, "again" if number < replay.same else f"again-{number}", wish, after)

    async def _replay(self, replay: Replay, id: str, wish: str, after: float) -> None:
        """Ask for a replay, wish for something after so many seconds, and wait for its end."""
        scene, run = self.scene, _Run(id)
        self._runs.append(run)
        route = scene.world.routes[replay.route]
        target: dict[str, Any] = {"broker": replay.broker, "exchange": "amq.default", "routing_key": COPIES}
        if replay.push:
            target = {"endpoint": COPIES}
        source = {"messages": {"broker": route.broker, "routing_key": route.name}}
        request = {"id": id, "source": source, "target": target, "rate": replay.rate}
        began = calm = scene.loop.now
        for caller in cycle(scene.callers()):
            if not scene.is_calm:
                calm = scene.loop.now
            if scene.loop.now - calm > PATIENCE:
                scene.problem(f"a replay does not end, its state is {run.state!r}", id)
                return
            if not run.state:
                answer = await self._ask(caller, "POST", "/v1/replays", request)
                if answer is not None and answer.status < 300:
                    scene.note("replay", id, answer.status)
                    run.state = answer.json()["state"]
                    continue
                if answer is not None and answer.status not in (409, 503, 504):
                    scene.problem(f"a replay is refused: {answer.status} {answer.json().get('code', '')}", id)
                    return
            elif wish and scene.loop.now - began > after:
                answer = await self._ask(caller, "POST", f"/v1/replays/{id}:{wish}", None)
                scene.note("replay", id, wish, answer.status if answer is not None else "no answer")
                if answer is not None and answer.status < 500:
                    wish, after = "resume" if wish == "pause" else "", after + 0.5
            answer = await self._ask(caller, "GET", f"/v1/replays/{id}", None)
            if run.state and answer is not None and answer.status == 200:
                said = answer.json()
                run.state, run.sent = said["state"], said["sent"] + said["skipped"]
                run.skipped = said["skipped"]
                run.refused = sum(said["refused"].values())
                if run.state in ENDED:
                    scene.note("replay", id, run.state, said["sent"], said["skipped"], said["reason"])
                    return
            await asyncio.sleep(LOOK)

    async def _ask(self, caller: Caller, method: str, path: str, body: Any) -> Answer | None:
        """The answer to a request; None: there is none."""
        try:
            return await caller.request(method, path, body)
        except (NotSent, NoAnswer) as error:
            if isinstance(error, Hung):
                self.scene.problem("a request for a replay hangs", path)
            return None

    def judge(self) -> None:
        """The last replay has sent every message that was acknowledged. Of each replay as many have come as it counts,
        and of each copy only one without a mark."""
        scene, replay = self.scene, self.scene.world.replay
        if replay is None:
            return
        copies: dict[str, list[Reception]] = defaultdict(list)
        for each in scene.copies:
            copies[_name_of(each)].append(each)
            if each.id not in scene.history.publishes:
                scene.problem("a copy of what nobody has sent", each.id)
            elif each.digest != scene.history.publishes[each.id].digest:
                scene.problem("a copy is not what was sent", each.id)
        # All attempts of one request to an endpoint have one id, which is their mark.
        fresh = Counter(each.gateway_id for each in scene.copies if not (each.delivery or each.marked))
        repeats = [id for id, count in fresh.items() if count > 1]
        if repeats:
            scene.problem(f"{len(repeats)} copies came again without a mark", *repeats)
        is_whole = all(run.state == "done" for run in self._runs)  # what was cancelled may be there or not
        unsettled = [id for id, each in copies.items() if not any(one.settled is not Settled.NO for one in each)]
        if unsettled and is_whole:
            scene.problem(f"{len(unsettled)} copies were settled by nobody", *unsettled)
        sent = sum(max(run.sent for run in self._runs if run.id == id) for id in {run.id for run in self._runs})
        if len(copies) < sent or (len(copies) > sent and is_whole):
            scene.problem(f"replays count {sent} messages, and {len(copies)} have come")
        for earlier, later in pairwise(self._runs):
            if earlier.id == later.id and earlier.state == later.state == "done" and later.skipped < earlier.sent:
                scene.problem(f"asked for again, it has sent {earlier.sent - later.skipped} messages again", later.id)
        came = {each.id for each in scene.copies if each.since >= self._last_at}
        name = scene.world.routes[replay.route].name
        missing = [
            id
            for id, publish in scene.history.publishes.items()
            if publish.outcome is Outcome.ACKNOWLEDGED and scene.routes_of.get(id) == name and id not in came
        ]
        last = self._runs[-1]
        if missing:
            scene.problem(f"the last replay has not sent {len(missing)} acknowledged messages", *missing)
        elif last.state != "done" and not (last.state == "failed" and last.refused):  # nobody has taken any of them
            scene.problem(f"the last replay ended as {last.state!r}", last.id)


def _name_of(copy: Reception) -> str:
    """What all attempts to send one copy have: the id of the request to an endpoint, or of the message."""
    return copy.delivery or copy.gateway_id
