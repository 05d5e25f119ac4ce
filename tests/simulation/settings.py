"""The configuration of a process of the gateway in a world."""

from __future__ import annotations

from typing import Any, Final

from gateway.config import load
from tests.simulation.scene import Scene
from tests.simulation.surroundings.gateways import GatewayProcess
from tests.simulation.worlds import Route

RECEIVER_PORT: Final = 9_000
SCHEDULE: Final = (0.0, 0.1, 0.3, *(1.0 for _ in range(60)))
"""When a message is pushed again, in seconds."""
FRONT_PORT: Final = 3
"""Of a front, above that of the HTTP API of its process."""
FRONT_USER: Final = {"name": "guest", "password": "guest"}
SECRETS: Final = "secrets.keys"
CLUSTER_SECRET: Final = "cluster.key"
"""Files of keys."""
STEERED: Final = frozenset({"bridges", "taps", "subscriptions"})
"""What somebody puts over HTTP in worlds where it is steered."""


def configuration(scene: Scene, process: GatewayProcess) -> Any:
    """Return the configuration of a process. Each reload finds another one."""
    world, folder = scene.world, scene.folder
    settings: dict[str, Any] = {
        "http.port": process.port,
        "ops.port": process.port + 1,
        "data_dir": str(folder),
        "log_level": "error",
        **world.settings,
    }
    if world.is_shared:
        settings["ledger.url"] = f"sqlite:///{folder / 'ledger.db'}"
        settings["data_dir"] = str(folder / process.name)
        settings["cluster.port"] = process.port + 2
    if world.rotates:
        settings["ledger.secrets_file"] = str(folder / SECRETS)
        settings["cluster.secret_file"] = str(folder / CLUSTER_SECRET)
    for name, version in world.brokers.items():
        port = scene.brokers[name].port
        settings[f"brokers.{name}.url"] = f"amqp://guest:guest@127.0.0.1:{port}/?version={version}"
        settings[f"brokers.{name}.reconnect_min"] = 0.1
        settings[f"brokers.{name}.reconnect_max"] = 1.0
        settings[f"brokers.{name}.heartbeat"] = 4.0
    if world.front is not None:
        settings["fronts.front"] = {
            "port": process.port + FRONT_PORT, "broker": world.front.broker, "users": [FRONT_USER],
            "store": world.front.store, "record": world.front.record, "prefetch_max": 200 + scene.reloads % 2,
        }  # fmt: skip
    for route in world.routes:
        for kind, document in documents(route, scene.reloads % 2, is_signed=world.rotates).items():
            if not (world.steering and kind in STEERED):
                settings |= {f"{kind}.{route.name}.{name}": value for name, value in document.items()}
        if route.push:
            settings["outbound.allow"] = ["127.0.0.0/8"]
    return load(None, {}, settings)


def documents(route: Route, change: int, *, is_signed: bool) -> dict[str, dict[str, Any]]:
    """Return the settings of what moves the messages of a route, by its kind. ``change`` makes others of them."""
    found: dict[str, dict[str, Any]] = {}
    if route.target:
        found["bridges"] = bridge = {
            "source": {"broker": route.broker, "queue": route.name},
            "target": {"broker": route.target, "routing_key": route.last},
            "acknowledge": route.changed if route.changed and change else route.acknowledge,
        }
        if route.prefetch:
            bridge["prefetch"] = route.prefetch
    taken: dict[str, Any] = {"broker": route.end, "queue": route.last}
    if route.tap:
        found["taps"] = {**taken, "prefetch": (route.prefetch or 3) + change}
        if route.depth:
            found["taps"]["until"] = "depth"
        return found
    found["subscriptions"] = taken
    if route.dead:
        taken["dead_letter_routing_key"] = route.dead
    taken["lease"] = route.lease
    taken["ack_deadline_seconds"] = 10 + change
    if route.push:
        taken["push"] = route.name
        found["endpoints"] = {
            "url": f"http://127.0.0.1:{RECEIVER_PORT}/{route.name}",
            "signing": ["v1"] if is_signed else [],
            "schedule": list(SCHEDULE),
            "deadline_seconds": 2.0,
            "breaker_open_max_seconds": 1.0,
            "concurrency": 4 + change,
        }
    if route.ordered:
        taken["order_key"] = "property:correlation_id"
    return found
