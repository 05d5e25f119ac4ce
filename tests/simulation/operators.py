"""Those who pause and change what moves messages, while other things go wrong, and take it back.

Some of their requests fail, or nobody can say what became of them. What was answered with a 2xx holds, also after a
restart: a bridge that was resumed runs, and has the settings that were put last.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from tests.faults.http import NoAnswer, NotSent
from tests.simulation.scene import Scene
from tests.simulation.settings import STEERED, documents
from tests.simulation.surroundings.callers import WITHIN, Caller
from tests.simulation.worlds import Steering

AGAIN: Final = 0.1
"""Pause before a request is sent again, in seconds."""
TRIES: Final = 300
"""How often a request is sent until it must have been answered with a 2xx."""
AWAY: Final = 0.05
"""For how long a process can reach no ledger that it has lost, in seconds."""
SOON: Final = 30.0
"""After this many seconds everything runs, and each process knows it."""
OTHER: Final = {"bridges": "prefetch", "taps": "prefetch", "subscriptions": "ack_deadline_seconds"}
"""Setting that is changed."""


class Operators:
    """All of a world."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._put: dict[tuple[str, str], dict[str, Any]] = {}
        """Kind and name -> the settings that were put last, and answered with a 2xx."""

    async def begin(self) -> None:
        """Put what the configuration files do not have, and steer where the ledger is lost meanwhile: when work is
        under way, other commits would nearly always be the ones that are lost."""
        world = self.scene.world
        if not world.steering:
            return
        steps = {(step.route, step.kind): step for step in world.steering if step.cuts}
        for index, route in enumerate(world.routes):
            for kind, document in documents(route, 0, is_signed=world.rotates).items():
                step = steps.get((index, kind))
                if kind in STEERED:
                    if step is not None and step.changes:
                        await self._begin(step, "PUT", route.name, document)
                    await self._insist(0, "PUT", kind, route.name, document)
                if step is not None:
                    await self._do(step)

    def start(self) -> list[asyncio.Task[None]]:
        """Have all others begin. The tasks end when everything runs again."""
        return [
            self.scene.spawn(self._steer(each), f"operator of {each.kind} {each.route}")
            for each in self.scene.world.steering
            if not each.cuts
        ]

    async def _steer(self, step: Steering) -> None:
        await asyncio.sleep(step.pause)
        await self._do(step)

    async def _do(self, step: Steering) -> None:
        if step.changes:
            await self._change(step)
        else:
            await self._pause(step)
        if step.restarts:
            process = self.scene.gateways[step.process]
            await self.scene.end(process)
            await process.start()

    async def _change(self, step: Steering) -> None:
        """Give something other settings."""
        route = self.scene.world.routes[step.route]
        document = documents(route, 0, is_signed=self.scene.world.rotates)[step.kind]
        setting = OTHER[step.kind]
        other = {**document, setting: document.get(setting, 50) + 1}
        await self._begin(step, "PUT", route.name, other)
        await self._insist(step.process, "PUT", step.kind, route.name, other)

    async def _pause(self, step: Steering) -> None:
        """Pause something, and resume it, whatever became of the pause."""
        name = self.scene.world.routes[step.route].name
        await self._begin(step, "POST", f"{name}:pause")
        await self._insist(step.process, "POST", step.kind, f"{name}:resume")

    async def _begin(self, step: Steering, method: str, name: str, body: Any = None) -> None:
        """Send the first request, once."""
        name_of = self.scene.gateways[step.process].name
        losing = self.scene.spawn(self._lose(name_of), f"ledger of {name_of}") if step.cuts else None
        status = await self._ask(step.process, method, step.kind, name, body, step.hang_up)
        if body is not None and 200 <= status < 300:
            self._put[step.kind, name] = body
        if losing is not None:
            losing.cancel()
            self._regain(name_of)
        await asyncio.sleep(step.seconds)

    async def _lose(self, process: str) -> None:
        """Have a process lose its ledger in one commit after the other."""
        self.scene.note("fault", "ledger is away", process)
        while True:
            self.scene.seams.ledgers.away.discard(process)
            self.scene.seams.ledgers.leaving.add(process)
            await asyncio.sleep(AWAY)

    def _regain(self, process: str) -> None:
        """It has its ledger again."""
        self.scene.seams.ledgers.leaving.discard(process)
        self.scene.seams.ledgers.away.discard(process)
        self.scene.note("fault", "ledger works", process)

    async def _ask(
        self, process: int, method: str, kind: str, name: str, body: Any = None, hang_up: float | None = None
    ) -> int:
        """Send a request once; the status of the answer, 0 if there was none."""
        caller = Caller(self.scene.gateways[process % len(self.scene.gateways)].port)
        headers = {"if-match": "*"} if (kind, name) in self._put else {}
        try:
            answer = await caller.request(method, f"/v1/{kind}/{name}", body, headers, WITHIN, hang_up)
        except (NotSent, NoAnswer):
            return 0
        finally:
            caller.close()
        code = "" if answer.status < 300 else answer.json().get("code", "")
        self.scene.note("operator", method, kind, name, answer.status, code)
        return answer.status

    async def _insist(self, process: int, method: str, kind: str, name: str, body: Any = None) -> None:
        """Send a request until it is answered with a 2xx, to one process after the other."""
        for count in range(TRIES):
            if 200 <= await self._ask(process + count, method, kind, name, body) < 300:
                if body is not None:
                    self._put[kind, name] = body
                return
            await asyncio.sleep(AGAIN)
        self.scene.problem(f"{method} {kind}/{name} is not answered with a 2xx")

    async def judge(self) -> None:
        """Everything runs, with the settings that were put last. Another process may have to take over first."""
        until = self.scene.loop.now + SOON
        while (wrong := await self._wrong()) and self.scene.loop.now < until:
            await asyncio.sleep(1.0)
        for each in wrong:
            self.scene.problem(each)

    async def _wrong(self) -> list[str]:
        found = []
        for (kind, name), wanted in self._put.items():
            for process in self.scene.gateways:
                caller = Caller(process.port)
                answer = (await caller.request("GET", f"/v1/{kind}/{name}", None, {}, WITHIN)).json()
                caller.close()
                setting = OTHER[kind]
                value = answer.get("settings", {}).get(setting)
                if setting in wanted and value != wanted[setting]:
                    found.append(f"{kind} {name} has {setting} {value}, and {wanted[setting]} was put last")
                if answer.get("state") not in ("running", "active"):
                    found.append(f"{kind} {name} does not run: {answer.get('state')} {answer.get('reason')}")
        return found
