"""Keys that are replaced while a world goes on, as the guide says it."""

from __future__ import annotations

import random
from base64 import b64decode, b64encode

from tests.faults.http import NoAnswer, NotSent
from tests.simulation.scene import Scene
from tests.simulation.settings import CLUSTER_SECRET, SECRETS
from tests.simulation.surroundings.callers import WITHIN, Caller
from tests.simulation.surroundings.receivers import Receiver
from tests.simulation.worlds import Route


class Rotations:
    """The keys of a world."""

    def __init__(self, scene: Scene, receiver: Receiver) -> None:
        self.scene, self.receiver = scene, receiver
        self._chance = random.Random(f"keys {scene.world.seed}")

    def begin(self) -> None:
        """Write the first keys."""
        self._write(SECRETS, [self._key()])
        self._write(CLUSTER_SECRET, [self._key()])

    async def rotate(self, kind: str) -> None:
        """Replace keys."""
        scene = self.scene
        scene.note("fault", kind)
        if kind == "rotate signing keys":
            for route in scene.world.routes:
                if route.push:
                    await self._rotate_signing_key(route)
        elif kind == "rotate secrets":
            old, new = (scene.folder / SECRETS).read_text().split(), self._key()
            for keys in ([*old, new], [new, *old]):
                self._write(SECRETS, keys)
                for process in scene.gateways:
                    await scene.end(process)
                    await process.start()
        else:  # of all processes at once
            for process in scene.gateways:
                await scene.end(process)
            (scene.folder / "ack-ids.key").unlink(missing_ok=True)
            self._write(CLUSTER_SECRET, [self._key()])
            for process in scene.gateways:
                await process.start()

    def _key(self) -> str:
        return b64encode(self._chance.randbytes(32)).decode()

    def _write(self, name: str, keys: list[str]) -> None:
        (self.scene.folder / name).write_text("\n".join(keys) + "\n")

    async def _rotate_signing_key(self, route: Route) -> None:
        """Have an endpoint sign with a further key, and tell its receiver. What nobody knows whose answer is lost signs
        beside those before it."""
        caller = Caller(self.scene.gateways[0].port)
        try:
            answer = await caller.request("POST", f"/v1/endpoints/{route.name}:rotate", None, {}, WITHIN)
        except (NotSent, NoAnswer):
            return
        finally:
            caller.close()
        self.scene.note("rotate", route.name, answer.status)
        for each in answer.json().get("signing_keys", ()):
            if "secret" in each:
                key = b64decode(each["secret"].removeprefix("whsec_"))
                self.receiver.keys.setdefault(route.name, []).append(key)
