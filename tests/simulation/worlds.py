"""What a world is: topology, work and faults, drawn from its seed, as plain data that can be shortened."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

VERSIONS: Final = ("0-8", "0-9-1", "0-10")
ROTATIONS: Final = 11
"""In the world of every so manyth seed keys are rotated."""
CLUSTER: Final = 12
"""The world of every so manyth seed has two processes of the gateway."""
FRONTS: Final = 9
"""In the world of every so manyth seed AMQP clients use a front of the gateway."""
SHARED_FRONTS: Final = 60
"""In the world of every so manyth seed AMQP clients use the fronts of two processes."""
MOMENTS: Final = 18
"""In the world of every so manyth seed a rare moment is made likely: one process, no front."""
REPLAYS: Final = 17
"""In the world of every so manyth seed messages of the ledger are replayed."""
OPERATORS: Final = 13
"""In the world of every so manyth seed somebody pauses and changes what moves messages."""
SLEEPS: Final = 36
"""In the world of every so manyth seed a process sleeps after it has read its ledger."""
READ: Final = ("branches", "deliveries", "events", "inbox", "messages", "outbox", "resources", "shards", "work")
"""Tables that processes read."""
COPIES: Final = "copies"
"""Queue or endpoint to which they go."""


@dataclass(frozen=True, slots=True)
class Route:
    """A way from a publish to a consumer."""

    name: str
    broker: str
    """Where it is published."""
    lease: str
    ordered: bool
    target: str = ""
    """The broker that a bridge moves it to, where its consumer waits; empty: there is no bridge."""
    acknowledge: str = "on-confirm"
    """When the bridge tells its source."""
    changed: str = ""
    """The same once the configuration was changed; empty: it stays so."""
    push: bool = False
    """Its messages are pushed to a receiver of webhooks."""
    reject: float = 0.0
    """Share of the messages that consumers reject; they are dead in the ledger until somebody retries them."""
    redrive: bool = False
    """Rejected messages go to a dead-letter queue instead, and replays drive them back."""
    revive: bool = False
    """What is dead in the ledger is driven back by replays, not by retries."""
    tap: bool = False
    """Its messages go into the message log; there is no subscription."""
    depth: bool = False
    """The tap takes what the queue held at the start, and no more."""
    prefetch: int = 0
    """Of its bridge or tap; 0: what it is by default."""

    @property
    def end(self) -> str:
        """The broker that it is consumed from."""
        return self.target or self.broker

    @property
    def last(self) -> str:
        """The queue that it is consumed from."""
        return f"{self.name}.end" if self.target else self.name

    @property
    def dead(self) -> str:
        """The queue of what consumers reject, or an empty text."""
        return f"{self.name}.dead" if self.redrive else ""


@dataclass(frozen=True, slots=True)
class Publish:
    """One request of a producer, with one message or more."""

    number: int
    route: int
    producer: int
    keyed: bool
    count: int
    order: int
    """Number of the order key."""
    pause: float
    """Seconds before it is sent."""
    hang_up: float | None
    """The first try is given up after this many seconds."""
    size: int
    delay: float = 0.0
    """Seconds after which the gateway is to publish it; 0: at once."""
    twin: bool = False
    """Its publisher gives all such messages of a route the same id."""
    own_keys: bool = False
    """Each of its messages has an Idempotency-Key; the request has none."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """Somebody who puts messages into the queue of a route, past the gateway."""

    route: int
    messages: int
    pause: float
    """Seconds between two messages; negative: all are there before the gateway starts."""
    equal: bool = False
    """All of them have the same id and the same body."""
    was_out: bool = False
    """They were out and given back when they come, so that their broker says of all that they come again."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong."""

    at: float
    """Seconds after the work has begun; for what happens at a commit or a message, its number."""
    kind: str
    target: str
    other: str = ""
    """The other end; of what a message at the target sets off, who it happens to, if not the target."""
    amount: float = 0.0


@dataclass(frozen=True, slots=True)
class Front:
    """A front of the gateway, and its clients."""

    broker: str
    publishers: tuple[str, ...]
    """Versions of those who publish."""
    consumers: tuple[str, ...]
    messages: int
    """Of each publisher."""
    window: int
    """Most publishes of a client without an outcome."""
    prefetch: int
    store: str
    """Which publishes go to the ledger."""
    record: str
    """Which messages have a timeline."""
    transacted: tuple[str, ...] = ()
    """Versions of those who publish in transactions."""
    fetchers: tuple[str, ...] = ()
    """Versions of those who fetch single messages."""
    committers: tuple[str, ...] = ()
    """Versions of those who settle in transactions."""
    restless: tuple[str, ...] = ()
    """Versions of those who have two consumers on a channel, and begin and end them, and the channel, all the time."""
    owners: tuple[str, ...] = ()
    """Versions of those who have an exclusive queue each."""
    forgetful: bool = False
    """In a crash the broker forgets what it has delivered before."""
    queue: str = "front"


@dataclass(frozen=True, slots=True)
class Replay:
    """Somebody who has the messages of a route sent once more, as the ledger keeps them."""

    route: int
    broker: str
    """Where their copies go."""
    push: bool
    """They go to an endpoint instead."""
    rate: float
    """Messages a second; 0: as fast as it can."""
    asks: tuple[tuple[float, str, float], ...]
    """Pause before each replay, what is wished for, and after how many seconds."""
    same: int
    """So many of the first ones have one id."""


@dataclass(frozen=True, slots=True)
class Steering:
    """Somebody who pauses or changes what moves the messages of a route, and takes that back."""

    route: int
    kind: str
    """What it is: ``bridges``, ``taps``, ``subscriptions`` or ``endpoints``."""
    changes: bool
    """It gets other settings; else it is paused, and resumed."""
    pause: float
    """Seconds before that."""
    seconds: float
    """Until it is taken back."""
    hang_up: float | None
    """The first request is given up after this many seconds."""
    process: int
    """The process that is asked first."""
    cuts: bool
    """It is the first thing that happens, and the ledger is lost in the commit of the first request."""
    restarts: bool
    """A process is ended and started again when all is done."""


@dataclass(frozen=True, slots=True)
class World:
    """All of it."""

    seed: int
    brokers: dict[str, str]
    """Name -> version."""
    routes: tuple[Route, ...]
    publishes: tuple[Publish, ...]
    faults: tuple[Fault, ...]
    consumers: int
    clumsy: float
    """Share of the requests of consumers that they give up."""
    slowness: int
    """Most steps of latency of the network."""
    split: float
    """Share of the writes that arrive in two pieces."""
    ledger_seconds: float
    """How long a transaction of the ledger takes, at least."""
    settings: dict[str, Any] = field(default_factory=dict)
    gateways: int = 1
    """Processes of the gateway, which share the ledger."""
    front: Front | None = None
    moment: str = ""
    """The rare moment that is made likely, see ``MOMENT_MAKERS``."""
    stranger: Stranger | None = None
    replay: Replay | None = None
    steering: tuple[Steering, ...] = ()
    """Where there is any, bridges, taps and subscriptions are no part of the configuration file."""

    @property
    def is_shared(self) -> bool:
        """The ledger is one that several processes may use, and that may be away."""
        return (
            self.gateways > 1
            or any(fault.kind.startswith("lose") for fault in self.faults)
            or any(step.cuts for step in self.steering)
        )

    @property
    def rotates(self) -> bool:
        """Whether keys are replaced."""
        return any(fault.kind.startswith("rotate") for fault in self.faults)

    def without(self, **changes: Any) -> World:
        """The same, but for these."""
        return replace(self, **changes)

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: brokers {self.brokers}, settings {self.settings}, consumers {self.consumers}, "
            f"gateways {self.gateways}",
            f"  slowness {self.slowness}, split {self.split}, clumsy {self.clumsy}, ledger {self.ledger_seconds} s",
        ]
        lines += [f"  {route}" for route in self.routes]
        lines += [f"  {publish}" for publish in self.publishes]
        lines += [f"  {each}" for each in (self.front, self.stranger, self.replay) if each is not None]
        lines += [f"  {each}" for each in self.steering]
        lines += [f"  {fault}" for fault in self.faults]
        return "\n".join(lines)


KINDS: Final[Mapping[str, Callable[[World], bool]]] = {
    "": lambda world: True,
    "bridges": lambda world: any(route.target for route in world.routes),
    "dtx": lambda world: any(route.acknowledge == "dtx" for route in world.routes),
    "fronts": lambda world: world.front is not None,
    "shared fronts": lambda world: world.front is not None and world.gateways > 1,
    "losses": lambda world: world.gateways > 1 and any(fault.kind.startswith("lose") for fault in world.faults),
    "orders": lambda world: any(route.ordered for route in world.routes),
    "processes": lambda world: world.gateways > 1,
    "pushes": lambda world: any(route.push for route in world.routes),
    "reloads": lambda world: any(fault.kind == "reload" for fault in world.faults),
    "replays": lambda world: any(route.redrive for route in world.routes),
    "copies": lambda world: world.replay is not None,
    "revivals": lambda world: any(route.revive for route in world.routes),
    "retries": lambda world: any(route.reject and not route.redrive for route in world.routes),
    "steering": lambda world: bool(world.steering),
    "sleeps": lambda world: any(fault.kind == "sleep at read" for fault in world.faults),
    "schedules": lambda world: any(publish.delay for publish in world.publishes),
    "taps": lambda world: any(route.tap for route in world.routes),
    "turns": lambda world: world.moment == "turns",
    "twins": lambda world: any(publish.twin for publish in world.publishes),
    "branches": lambda world: world.moment == "branches",
    "claims": lambda world: world.moment == "claims",
    "depths": lambda world: world.moment == "depths",
    "equals": lambda world: world.moment == "equals",
    "forgetting": lambda world: world.moment == "forgetting",
    "losing again": lambda world: world.moment == "losing again",
    "modes": lambda world: world.moment == "modes",
    "redrives": lambda world: world.moment == "redrives",
    "restarts": lambda world: world.moment == "restarts",
    "strands": lambda world: world.moment == "strands",
    "unreadable": lambda world: world.moment == "unreadable",
}
"""Kinds of worlds: name -> whether a world is of this kind. The empty name has all."""


def draw(seed: int) -> World:
    """Return the world of a seed."""
    world = _draw(seed)
    more = random.Random(f"more of world {seed}")
    routes = [
        replace(route, push=True)
        if more.random() < 0.3
        else replace(route, reject=0.2)
        if route.lease == "ledger" and more.random() < 0.3
        else route
        for route in world.routes
    ]
    publishes = world.publishes
    if more.random() < 0.3:
        publishes = tuple(
            replace(each, delay=more.choice((0.1, 0.5, 1.5))) if more.random() < 0.5 else each for each in publishes
        )
    faults = world.faults
    if more.random() < 0.2:
        faults = (*faults, Fault(round(more.random() * 0.6, 4), "reload", "gateway"))
    last = random.Random(f"last of world {seed}")
    for index, route in enumerate(routes):
        if not (route.ordered or route.push or route.reject) and last.random() < 0.5:
            tap = last.random() < 0.4
            routes[index] = replace(route, tap=True) if tap else replace(route, redrive=True, reject=0.3)
    if last.random() < 0.25:
        publishes = tuple(replace(each, twin=True) if last.random() < 0.4 else each for each in publishes)
    world = replace(world, routes=tuple(routes), publishes=publishes, faults=faults)
    if seed % CLUSTER == 0:
        world = _with_another_gateway(world)
        world = _with_front(world) if seed % SHARED_FRONTS == 0 else world
    elif seed % FRONTS == 3:
        world = _with_front(world)
    elif seed % MOMENTS == 5:
        return _with_moment(world)
    elif seed % SLEEPS == 29:
        world = _with_sleeps(world)
    if seed % ROTATIONS == 2:
        world = _with_rotations(world)
    if seed % REPLAYS == 12:
        world = _with_replays(world)
    return _with_operators(world) if seed % OPERATORS == 7 else world


def _with_operators(world: World) -> World:
    """The same with somebody who pauses and changes what moves messages."""
    rng = random.Random(f"operators of world {world.seed}")
    things = []
    for index, route in enumerate(world.routes):
        things.append((index, "taps" if route.tap else "subscriptions"))
        things += [
            (index, kind) for kind, is_there in (("bridges", route.target), ("endpoints", route.push)) if is_there
        ]
    is_ordered = any(route.ordered for route in world.routes)  # a ledger that is lost may break order
    steering = tuple(
        Steering(
            route=index,
            kind=kind,
            changes=kind != "endpoints" and rng.random() < 0.5,
            pause=_time(rng, 0.0, 0.8),
            seconds=round(rng.choice((0.05, 0.5, 1.5)) * rng.random(), 4),
            # What was given up may still be done, so one process has both requests.
            hang_up=round(0.02 * rng.random(), 4) if world.gateways == 1 and rng.random() < 0.4 else None,
            process=rng.randrange(world.gateways),
            cuts=rng.random() < 0.4 and not is_ordered,
            restarts=rng.random() < 0.5 and world.front is None,
        )
        for index, kind in rng.sample(things, rng.randint(1, min(len(things), 3)))
    )
    faults = list(world.faults)
    name, at = rng.choice(("gateway", "gateway2")[: world.gateways]), rng.choice(steering).pause
    chosen = rng.random()
    if chosen < 0.3 and not is_ordered:
        faults.append(Fault(at, "lose", rng.choice(sorted(world.brokers)), name, round(0.3 * rng.random(), 4)))
    elif chosen < 0.5:
        faults.append(Fault(at, "ledger", name, "", _time(rng, 0.01, 0.3)))
    elif chosen < 0.7:
        faults.append(Fault(rng.randint(1, 40), "kill at commit", name, "", round(0.1 * rng.random(), 4)))
    return replace(world, steering=steering, faults=tuple(faults))


def _with_replays(world: World) -> World:
    """The same with replays of messages that the ledger keeps, and of those that are dead in it."""
    rng = random.Random(f"replays of world {world.seed}")
    routes = [
        replace(route, revive=True) if route.reject and not route.redrive and rng.random() < 0.7 else route
        for route in world.routes
    ]
    asks = tuple(
        (
            round(rng.choice((0.1, 0.4, 1.0)) * rng.random(), 4),
            rng.choice(("", "", "pause", "cancel")),
            round(rng.choice((0.05, 0.3, 1.0)) * rng.random(), 4),
        )
        for _ in range(rng.choice((1, 2, 3)))
    )
    replay = Replay(
        route=rng.choice(world.publishes).route,
        broker=rng.choice(sorted(world.brokers)),
        push=rng.random() < 0.4,
        rate=rng.choice((0.0, 0.0, 8.0, 40.0)),
        asks=asks,
        same=rng.choice((0, 2, 3)),
    )
    faults = list(world.faults)
    names = ("gateway", "gateway2")[: world.gateways]
    for _ in range(rng.choice((0, 1, 1, 2))):
        name, broker = rng.choice(names), replay.broker
        fault = rng.choice(
            (
                Fault(rng.randint(1, 60), "kill at commit", name, "", round(0.1 * rng.random(), 4)),
                Fault(_time(rng, 0.1, 1.5), "cut", *rng.sample([broker, name], 2), rng.randrange(1, 400)),
                Fault(_time(rng, 0.1, 1.5), "crash", broker, "", _time(rng, 0.01, 1.0)),
                Fault(_time(rng, 0.1, 1.5), "ledger", name, "", _time(rng, 0.05, 0.5)),
            )
        )
        faults.append(fault)
    routes.append(Route(COPIES, replay.broker, "broker", False, push=replay.push))
    settings = {**world.settings, "retention.bodies": "days"}
    return replace(world, routes=tuple(routes), replay=replay, faults=tuple(faults), settings=settings)


def _with_front(world: World) -> World:
    """The same with a front and its clients, whose connections may be cut, too."""
    rng = random.Random(f"front of world {world.seed}")
    front = Front(
        broker=rng.choice(sorted(world.brokers)),
        publishers=tuple(rng.choice(VERSIONS) for _ in range(rng.choice((1, 2, 3)))),
        consumers=tuple(rng.choice(VERSIONS) for _ in range(rng.choice((1, 2)))),
        messages=rng.randint(3, 12),
        window=rng.choice((1, 3, 20)),
        prefetch=rng.choice((1, 3, 50)),
        store=rng.choice(("never", "never", "when-down", "when-down", "always")),
        record=rng.choice(("none", "none", "publish", "all")),
    )
    faults = list(world.faults)
    more = random.Random(f"more of the front of world {world.seed}")
    if more.random() < 0.3:
        front = replace(front, transacted=(more.choice(VERSIONS),))
    if more.random() < 0.3:
        front = replace(front, fetchers=(more.choice(VERSIONS),))
    others = random.Random(f"restless clients of the front of world {world.seed}")
    committers, restless, owners = (
        tuple(others.choice(VERSIONS) for _ in range(others.choice((0, 0, 1, 1, 2)))) for _ in range(3)
    )
    front = replace(front, committers=committers, restless=restless, owners=owners)
    if committers or restless:
        front = replace(front, messages=others.randint(5, 25))
        if others.random() < 0.3:
            front = replace(front, consumers=())
    if others.random() < 0.3 and not any(route.ordered for route in world.routes):  # it may break order
        front = replace(front, store="always")
        away = round(others.choice((0.3, 2.0)) * others.random(), 4)
        faults.append(Fault(others.randint(1, 12), "lose at message", front.broker, "gateway", away))
    is_forgetful = others.random() < 0.5 and world.gateways == 1  # else it hands out again to one who cannot know
    front = replace(front, forgetful=is_forgetful)
    if rng.random() < 0.3:
        sender, receiver = rng.sample(("world", "gateway"), 2)
        octets = rng.randrange(1, rng.choice((400, 3_000)))
        faults.append(Fault(round(rng.random() * 0.6, 4), "cut", sender, receiver, octets))
    return replace(world, front=front, faults=tuple(faults))


def _with_another_gateway(world: World) -> World:
    """The same with two processes of the gateway, each of which may be paused for longer than its lease."""
    rng, names = random.Random(f"cluster of world {world.seed}"), ("gateway", "gateway2")

    def either(name: str) -> str:
        return rng.choice(names) if name == "gateway" else name

    faults = [replace(fault, target=either(fault.target), other=either(fault.other)) for fault in world.faults]
    for _ in range(rng.choice((0, 1, 2))):
        kind, at, name = rng.choice(("pause", "pause", "kill", "part")), round(rng.random() * 0.6, 4), rng.choice(names)
        amount = round(rng.choice((1.0, 8.0)) * rng.random(), 4)
        faults.append(Fault(at, kind, *names, amount) if kind == "part" else Fault(at, kind, name, "", amount))
    lease = rng.choice((1.5, 3.0))
    late = random.Random(f"late outcomes of world {world.seed}")
    if late.random() < 0.5:  # it sleeps until another process has said that nobody knows what became of a message
        broker, number, amount = late.choice(sorted(world.brokers)), late.randint(1, 8), lease * (1.2 + late.random())
        faults.append(Fault(number, "pause at message", broker, late.choice(names), round(amount, 4)))
    lost = random.Random(f"lost leases of world {world.seed}")
    if lost.random() < 0.3 and not any(route.ordered for route in world.routes):  # it may break order
        away, broker = round(lost.choice((0.3, lease)) * lost.random(), 4), lost.choice(sorted(world.brokers))
        faults.append(Fault(lost.randint(1, 8), "lose at message", broker, lost.choice(names), away))
    settings = {**world.settings, "ledger.shard_lease": lease}
    return replace(world, faults=tuple(faults), settings=settings, gateways=2)


def _with_sleeps(world: World) -> World:
    """The same with two processes, one of which reads something of the ledger and sleeps until the other one has its
    work. What it does with what it has read comes too late."""
    rng = random.Random(f"sleeps of world {world.seed}")
    world = _with_another_gateway(world)
    name, other = rng.sample(("gateway", "gateway2"), 2)
    faults = list(world.faults) if rng.random() < 0.3 else []
    amount = world.settings["ledger.shard_lease"] + _time(rng, 0.2, 4.0)
    faults.append(Fault(rng.randint(1, 3), "sleep at read", name, rng.choice(READ), round(amount, 4)))
    if rng.random() < 0.5:
        faults.append(Fault(_time(rng, 0.1, 1.0), "reload", name))
    if rng.random() < 0.5:
        faults.append(Fault(_time(rng, 0.5, 1.5), "slow ledger", other, "", 8.0))
    return replace(world, faults=tuple(faults))


def _with_rotations(world: World) -> World:
    """The same with an endpoint that signs, and keys that are replaced."""
    rng = random.Random(f"rotations of world {world.seed}")
    routes = list(world.routes)
    index = rng.randrange(len(routes))
    routes[index] = replace(routes[index], push=True, reject=0.0, redrive=False, tap=False)
    kinds = rng.sample(("rotate secrets", "rotate signing keys", "rotate ack ids"), rng.choice((1, 2)))
    faults = [Fault(round(rng.random() * 0.6, 4), kind, "gateway") for kind in kinds]
    return replace(world, routes=tuple(routes), faults=(*world.faults, *faults))


def _draw(seed: int) -> World:
    rng = random.Random(f"world {seed}")
    brokers = {name: rng.choice(VERSIONS) for name in ("a", "b")[: rng.choice((1, 1, 2))]}
    routes = []
    for number in range(rng.choice((1, 1, 2))):
        lease = rng.choice(("broker", "ledger"))
        ordered = lease == "ledger" and rng.random() < 0.5
        broker, target, acknowledge = rng.choice(sorted(brokers)), "", "on-confirm"
        if not ordered and rng.random() < 0.4:
            target = rng.choice(sorted(brokers))
            if brokers[target] == "0-10" and rng.random() < 0.5:
                acknowledge = "dtx"
        routes.append(Route(f"q{number}", broker, lease, ordered, target, acknowledge))
    publishes = [
        Publish(
            number=number,
            route=rng.randrange(len(routes)),
            producer=rng.randrange(3),
            keyed=rng.random() < 0.6,
            count=rng.choice((1, 1, 1, 3)),
            order=rng.randrange(2),
            pause=rng.choice((0.0, 0.0, 0.05, 0.3)) * rng.random(),
            hang_up=rng.choice((0.001, 0.003, 0.01)) * rng.random() * 2 if rng.random() < 0.15 else None,
            size=rng.choice((10, 10, 200, 5_000)),
        )
        for number in range(rng.randint(3, 14))
    ]
    faults = []
    names = [*brokers, "gateway"]
    for _ in range(rng.choice((0, 1, 2, 2, 3, 4))):
        kind = rng.choice(
            ("crash", "crash at message", "crash at message", "kill", "kill at commit", "kill at commit", "cut", "cut",
             "part", "pause", "ledger")
        )  # fmt: skip
        broker = rng.choice(sorted(brokers))
        at = round(rng.random() * 0.6, 4)
        if kind == "crash":
            faults.append(Fault(at, kind, broker, "", round(rng.choice((0.01, 0.5, 2.0)) * rng.random(), 4)))
        elif kind == "crash at message":
            faults.append(Fault(rng.randint(1, 12), kind, broker, "", round(rng.choice((0.01, 0.5)) * rng.random(), 4)))
        elif kind == "kill at commit":
            faults.append(Fault(rng.randint(1, 30), kind, "gateway", "", round(0.1 * rng.random(), 4)))
        elif kind == "kill":
            faults.append(Fault(at, kind, "gateway", "", round(rng.choice((0.01, 0.5)) * rng.random(), 4)))
        elif kind == "cut":
            sender, receiver = rng.sample([broker, "gateway"], 2)
            faults.append(Fault(at, kind, sender, receiver, rng.randrange(1, rng.choice((50, 400, 3_000)))))
        elif kind == "part":
            faults.append(Fault(at, kind, broker, "gateway", round(rng.choice((0.1, 1.0, 12.0)) * rng.random(), 4)))
        elif kind == "pause":
            faults.append(
                Fault(at, kind, rng.choice(names), "", round(rng.choice((0.05, 2.0, 12.0)) * rng.random(), 4))
            )
        else:
            faults.append(Fault(at, kind, "gateway", "", round(rng.choice((0.05, 1.0)) * rng.random(), 4)))
    return World(
        seed=seed,
        brokers=brokers,
        routes=tuple(routes),
        publishes=tuple(publishes),
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        consumers=rng.choice((1, 2)),
        clumsy=rng.choice((0.0, 0.0, 0.1, 0.3)),
        slowness=rng.choice((0, 2, 10, 50)),
        split=rng.choice((0.0, 0.1, 0.5)),
        ledger_seconds=rng.choice((0.0, 0.0, 0.003, 0.02)),
        settings={"ledger.intent": rng.choice(("needed", "always"))},
    )


# ------------------------------------------------------------------------------------------------ rare moments


def _with_moment(world: World) -> World:
    """A world in which one of the rare moments is likely, and little else goes wrong."""
    rng = random.Random(f"moment of world {world.seed}")
    # Each draws a number of its own, so that a further one takes few worlds from the others.
    moment = min(MOMENT_MAKERS, key=lambda name: random.Random(f"{name} in world {world.seed}").random())
    return MOMENT_MAKERS[moment](replace(world, moment=moment, faults=()), rng)


def _time(rng: random.Random, least: float, most: float) -> float:
    return round(least + (most - least) * rng.random(), 4)


def _on_one_route(world: World, **changes: Any) -> tuple[Publish, ...]:
    """All publishes on the only route."""
    return tuple(replace(each, route=0, **changes) for each in world.publishes)


def _of_claims(world: World, rng: random.Random) -> World:
    """Answers of a slow ledger come in the turn in which their callers give up."""
    faults = [Fault(_time(rng, 0.0, 0.2), "slow ledger", "gateway", "", 1.5)]
    faults += [
        Fault(_time(rng, 0.2, 1.5), "pause", "gateway", "", _time(rng, 0.15, 0.4)) for _ in range(rng.choice((1, 2, 3)))
    ]
    publishes = tuple(replace(each, keyed=True, hang_up=None, delay=0.0) for each in world.publishes)
    settings = {**world.settings, "http.confirm_timeout": 0.3}
    return replace(world, publishes=publishes, faults=tuple(faults), settings=settings)


def _of_branches(world: World, rng: random.Random) -> World:
    """A branch cannot be undone at once: the ledger is slow, or fails."""
    brokers = {"a": world.brokers["a"], "b": "0-10"}
    route = Route("q0", rng.choice(("a", "b")), rng.choice(("broker", "ledger")), False, "b", "dtx")
    publishes = _on_one_route(world, delay=0.0)
    kind = rng.choice(("reset and slow at message", "reset and failing at message"))
    faults = (Fault(rng.randint(1, 12), kind, route.broker, "b", _time(rng, 0.0, 0.08)),)
    slowness = rng.choice((10, 50))
    return replace(world, brokers=brokers, routes=(route,), publishes=publishes, faults=faults, slowness=slowness)


def _of_depths(world: World, rng: random.Random) -> World:
    """A tap ends when it has what its queue held at the start. It may have acknowledged the first of a prefetch before
    the last has come."""
    prefetch = rng.randint(5, 12)
    routes = (
        Route("q0", "a", "broker", False, tap=True, depth=True, prefetch=prefetch), Route("q1", "a", "broker", False)
    )  # fmt: skip
    publishes = tuple(replace(each, route=1) for each in world.publishes)
    stranger = Stranger(0, prefetch + rng.randint(1, 4), -1.0)
    brokers = {**world.brokers, "a": "0-10"}
    world = replace(world, routes=routes, publishes=publishes, stranger=stranger, brokers=brokers)
    return replace(world, slowness=50, split=0.9, ledger_seconds=0.0)


def _of_equals(world: World, rng: random.Random) -> World:
    """The broker says of messages of one id and body that they come again, because somebody has looked at them: where a
    stranger has put them, or where a bridge has."""
    faults = [Fault(_time(rng, 0.0, 0.3), rng.choice(("slow ledger", "ledger")), "gateway", "", _time(rng, 0.0, 0.5))]
    stranger = Stranger(0, rng.randint(2, 25), -1.0, equal=True, was_out=True)
    where = rng.choice(("bridge", "tap", "behind a bridge"))
    if where == "bridge":  # its consumer has no ledger, which would leave out repeats
        route = Route("q0", "a", "broker", False, "a", prefetch=rng.choice((1, 2, 3)))
    elif where == "tap":
        route = Route("q0", "a", "ledger", False, tap=True)
    else:
        route = Route("q0", "a", "ledger", False, "a")
        faults.append(Fault(0.0, "look", "a", route.last, 2.0))
        stranger = replace(stranger, pause=_time(rng, 0.001, 0.05), was_out=False)
    publishes = _on_one_route(world, twin=False)
    return replace(world, routes=(route,), publishes=publishes, faults=tuple(faults), stranger=stranger, clumsy=0.0)


def _of_forgetting(world: World, rng: random.Random) -> World:
    """A broker crashes, gets none of the acknowledgements, and forgets that it has delivered anything. Until then its
    messages have been refused by their receiver, so that the ledger has them."""
    route = Route("q0", "a", "broker", False, push=True)
    faults = (Fault(_time(rng, 0.02, 0.4), "forget", "a", "gateway", 3.0),)
    publishes = _on_one_route(world, twin=False, delay=0.0, hang_up=None)
    return replace(world, routes=(route,), publishes=publishes, faults=faults, clumsy=1.0)


def _of_losing_again(world: World, rng: random.Random) -> World:
    """The ledger is away for one commit after another."""
    world = _with_another_gateway(world)
    faults = (Fault(_time(rng, 0.05, 0.6), "lose again", rng.choice(("gateway", "gateway2")), "", rng.randint(2, 5)),)
    routes = tuple(replace(each, ordered=False, lease="broker", push=False, reject=0.0) for each in world.routes)
    return replace(world, routes=routes, faults=faults)


def _of_modes(world: World, rng: random.Random) -> World:
    """A process dies as its bridge has published a message, and the next one has another mode for the bridge."""
    brokers = {"a": world.brokers["a"], "b": "0-10"}
    route = Route("q0", rng.choice(("a", "b")), "broker", False, "b", changed="dtx")
    fault = Fault(rng.randint(1, 14), "kill and change at message", "b", "gateway")
    publishes = _on_one_route(world, delay=0.0)
    return replace(world, brokers=brokers, routes=(route,), publishes=publishes, faults=(fault,))


def _of_redrives(world: World, rng: random.Random) -> World:
    """The connection is lost before a replay has acknowledged what it has sent, while the ledger is slow."""
    route = Route("q0", "a", rng.choice(("broker", "ledger")), False, reject=0.5, redrive=True)
    faults = [Fault(0.3, "slow ledger", "gateway", "", 4.0)]
    faults += [Fault(_time(rng, 0.5, 4.0), "reset", "a", "gateway") for _ in range(rng.choice((2, 3, 4)))]
    publishes = _on_one_route(world, delay=0.0, hang_up=None)
    return replace(world, routes=(route,), publishes=publishes, faults=tuple(faults), clumsy=0.0)


def _of_restarts(world: World, rng: random.Random) -> World:
    """The process ends while it claims what one that died may have sent."""
    route = Route("q0", "a", rng.choice(("broker", "ledger")), False)
    publishes = _on_one_route(world, delay=rng.choice((0.05, 0.1, 0.3)), keyed=False, twin=False)
    fault = Fault(rng.randint(1, 8), "restart at message", "a", "gateway", rng.choice((1, 1, 2, 3)))
    return replace(world, routes=(route,), publishes=publishes, faults=(fault,), ledger_seconds=0.0)


def _of_strands(world: World, rng: random.Random) -> World:
    """A process is cut off from its broker, and sleeps until the other one has its work."""
    keyed = rng.random() < 0.7
    own_keys = keyed and rng.random() < 0.5
    publishes = tuple(
        replace(each, keyed=keyed and not own_keys, own_keys=own_keys, delay=0.0, hang_up=None)
        for each in world.publishes
    )
    routes = tuple(replace(route, ordered=False) for route in world.routes)  # it may break order
    world = replace(_with_another_gateway(replace(world, routes=routes, publishes=publishes)), faults=())
    broker, name = rng.choice(sorted(world.brokers)), rng.choice(("gateway", "gateway2"))
    amount = round(world.settings["ledger.shard_lease"] * (1.2 + rng.random()), 4)
    fault = Fault(rng.randint(1, 10), "strand at message", broker, name, amount)
    if keyed:
        fault = Fault(rng.randint(1, 10), "strand at commit", name, broker, amount)
    settings = {**world.settings, "ledger.intent": "always"}
    return replace(world, faults=(fault,), settings=settings)


def _of_turns(world: World, rng: random.Random) -> World:
    """A broker hands out few messages in a turn, while one consumer asks for what is there."""
    route = Route("q0", "a", "broker", False)
    stranger = Stranger(0, rng.randint(5, 25), rng.choice((-1.0, 0.0, 0.01)))
    publishes = _on_one_route(world, hang_up=None)
    brokers = {**world.brokers, "a": "0-10"}
    return replace(
        world, brokers=brokers, routes=(route,), publishes=publishes, stranger=stranger, consumers=1, clumsy=0.0
    )


def _of_unreadable(world: World, rng: random.Random) -> World:
    """The ledger cannot be read, nor written, while a reload changes a subscription."""
    route = Route("q0", "a", rng.choice(("broker", "ledger")), rng.random() < 0.3, push=True)
    route = replace(route, lease="ledger") if route.ordered else route
    at = _time(rng, 0.1, 0.5)
    later = round(at + rng.choice((0.02, 0.3, 2.0)) * rng.random(), 4)
    away = Fault(later, "unreadable", "gateway", "", _time(rng, 1.0, 6.0))
    faults = (Fault(at, "reload", "gateway"), away)
    publishes = _on_one_route(world)
    return replace(world, routes=(route,), publishes=publishes, faults=faults, clumsy=0.5)


MOMENT_MAKERS: Final[Mapping[str, Callable[[World, random.Random], World]]] = {
    "branches": _of_branches,
    "claims": _of_claims,
    "depths": _of_depths,
    "equals": _of_equals,
    "forgetting": _of_forgetting,
    "losing again": _of_losing_again,
    "modes": _of_modes,
    "redrives": _of_redrives,
    "restarts": _of_restarts,
    "strands": _of_strands,
    "turns": _of_turns,
    "unreadable": _of_unreadable,
}
"""Rare moment -> what makes it likely in a world."""
