"""The judge of a world is judged: each thing that must not be is shown to it alone, and it has to say so.

What the planted defects and the mutations show is not here. A judge that sees nothing would let every world pass.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from tests.faults.checker import Outcome, Reception, Settled
from tests.ledgers import sqlite_ledger
from tests.simulation.amqp_clients import AmqpClients
from tests.simulation.judge import Judge
from tests.simulation.replays import Replays, _Run
from tests.simulation.scene import Scene
from tests.simulation.surroundings.gateways import GatewayProcess
from tests.simulation.surroundings.loop import Node, SimTimer
from tests.simulation.surroundings.network import Transport
from tests.simulation.surroundings.receivers import Receiver
from tests.simulation.worlds import Replay, Stranger, World, draw

MADE: Final = "of m"
"""The digest of every message here."""


class Judged:
    """A scene in which one message was published and received, and nothing is wrong."""

    def __init__(self, world: World, folder: Path) -> None:
        sqlite_ledger(folder)
        self.scene = scene = Scene(world, folder)
        self.receiver = Receiver(scene.loop, random.Random(1), 0.0, cast(Any, None), scene.note)
        self.judge = Judge(scene, self.receiver)
        self.clients, self.replays = AmqpClients(scene), Replays(scene)
        scene.history.drained = True
        scene.result.counts["publish"] = 1
        self.publish("m1", 1.0, 2.0)
        self.receive("m1", 3.0, 4.0)

    def publish(self, id: str, began: float, answered: float, order: str = "0-0", route: int = 0) -> None:
        """A message was published, and acknowledged to its publisher."""
        self.scene.history.attempt(id, MADE)
        self.scene.history.answer(id, Outcome.ACKNOWLEDGED)
        self.scene.told.append((route, order, id, began, answered))
        self.scene.routes_of[id] = self.scene.world.routes[route].name

    def receive(
        self, id: str, since: float, until: float | None, settled: Settled = Settled.ACKED, **more: Any
    ) -> None:
        """A consumer was handed a message, and settled it."""
        self.scene.history.receive(Reception(id, MADE, id, since=since, until=until, settled=settled, **more))

    def equals(self, *marks: bool) -> None:
        """These copies of equal messages came."""
        self.scene.equals += [Reception("e", MADE, redelivered=mark, settled=Settled.ACKED) for mark in marks]

    def copy(self, id: str, copy: str, **more: Any) -> None:
        """What a replay has sent came."""
        values = {"gateway_id": copy, "settled": Settled.ACKED, "since": 10.0, **more}
        self.scene.copies.append(Reception(id, values.pop("digest", MADE), **values))

    def replayed(self, *runs: _Run) -> None:
        """These replays have run, the last one at 5 s."""
        self.replays._runs[:] = runs
        self.replays._last_at = 5.0

    def insert(self, table: str, **values: Any) -> None:
        """Write a row, with a zero in each column that needs a value and has none here."""
        ledger = sqlite3.connect(self.scene.folder / "ledger.db")
        for _, name, kind, is_needed, default, _ in ledger.execute(f"PRAGMA table_info({table})").fetchall():
            if is_needed and default is None and name not in values:
                values[name] = b"\0" * 16 if "BLOB" in kind.upper() else 0
        marks = ", ".join("?" * len(values))
        ledger.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))
        ledger.commit()
        ledger.close()

    def problems(self) -> list[str]:
        """What is found."""
        self.judge.judge()
        self.clients.judge()
        self.replays.judge()
        return self.scene.result.problems


def world_of(is_one: Callable[[World], bool]) -> World:
    """The first world of a kind, without its faults."""
    return replace(next(world for world in map(draw, count(1)) if is_one(world)), faults=())


PLAIN: Final = world_of(lambda world: not world.routes[0].ordered and world.front is None and world.replay is None)
ORDERED: Final = replace(PLAIN, routes=(replace(PLAIN.routes[0], ordered=True), *PLAIN.routes[1:]))
EQUAL: Final = replace(PLAIN, stranger=Stranger(0, 2, 0.1, equal=True))
REPLAYED: Final = replace(PLAIN, replay=Replay(0, next(iter(PLAIN.brokers)), False, 0.0, (), 0))


@pytest.fixture
def judged(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Judged]:
    made = Judged(request.param, tmp_path)
    yield made
    made.judge.close()
    made.scene.loop.clear()
    made.scene.loop.close()


@pytest.mark.parametrize("judged", [PLAIN, ORDERED], indirect=True, ids=["plain", "ordered"])
def test_what_went_well_is_no_problem(judged: Judged) -> None:
    assert judged.problems() == []


def _did_nothing(judged: Judged) -> None:
    judged.scene.result.counts["publish"] = 0


def _lost(judged: Judged) -> None:
    judged.publish("m2", 2.0, 3.0)


def _unsent(judged: Judged) -> None:
    judged.receive("m2", 3.0, 4.0)


def _unmarked(judged: Judged) -> None:
    judged.receive("m1", 5.0, 6.0)


def _forgotten(judged: Judged) -> None:
    """An attempt of the same webhook, after the broker has forgotten the first."""
    judged.scene.history.receptions[0].delivery = "webhook"
    judged.receive("m1", 5.0, 6.0, delivery="webhook")
    judged.scene.forgotten = {"m1"}, 4.5


def _unsigned(judged: Judged) -> None:
    judged.receiver.unsigned.append("a webhook")


def _in_doubt(judged: Judged) -> None:
    judged.insert("obligations", status="pending")


def _impossible(judged: Judged) -> None:
    for sequence, kind in enumerate(("confirmed", "confirmed"), 1):
        judged.insert("events", message_id=b"m" * 16, kind=kind, detail=b"{}", at=sequence, sequence=sequence)


def _lost_connection(judged: Judged) -> None:
    judged.clients.breaks.append("closed")


def _committed_and_came_again(judged: Judged) -> None:
    judged.clients.restless.committed[0] = "m1"
    judged.receive("m1", 5.0, 6.0, redelivered=True)


FOUND: Final[dict[str, Callable[[Judged], None]]] = {
    "the world did nothing": _did_nothing,
    "1 lost: m2": _lost,
    "1 unexpected: m2": _unsent,
    "1 repeats without a mark: m1 (": _unmarked,
    "1 that the ledger knows came again without a mark: m1": _forgotten,
    "pushed without a signature of a known key: a webhook": _unsigned,
    "in doubt after recovery: 1 rows of obligations": _in_doubt,
    f"impossible events of {(b'm' * 16).hex()}: ": _impossible,
    "clients of the front have lost their connection: closed": _lost_connection,
    "settled in a transaction that was committed, and came again: m1": _committed_and_came_again,
}
"""What the judge reports -> what happens."""


@pytest.mark.parametrize("judged", [PLAIN], indirect=True, ids=[""])
@pytest.mark.parametrize("said", FOUND)
def test_what_must_not_be_is_found(judged: Judged, said: str) -> None:
    FOUND[said](judged)
    (problem,) = judged.problems()
    assert problem.startswith(said)


# ----------------------------------------------------------------------------------------------------- order

EARLY: Final = "m2 was handed out before m1, published before it with its key, was done"
ORDERS: Final[dict[str, tuple[World, dict[str, Any], dict[str, Any], bool]]] = {
    "handed out before the first is done": (ORDERED, {}, {"since": 3.5}, True),
    "handed out when the first is done": (ORDERED, {}, {"since": 4.0}, False),
    "published while the first was under way": (ORDERED, {"began": 1.5}, {"since": 3.5}, False),
    "of another key": (ORDERED, {"order": "0-1"}, {"since": 3.5}, False),
    "of a route without order": (PLAIN, {}, {"since": 3.5}, False),
}
"""When the second message comes -> the world, how it is published and received, and whether that is a problem."""


@pytest.mark.parametrize(
    ("judged", "name"), [(case[0], name) for name, case in ORDERS.items()], indirect=["judged"], ids=list(ORDERS)
)
def test_order(judged: Judged, name: str) -> None:
    _, published, received, is_wrong = ORDERS[name]
    judged.publish("m2", **{"began": 2.0, "answered": 3.0, **published})
    judged.receive("m2", until=6.0, **received)
    assert judged.problems() == ([EARLY] if is_wrong else [])


@pytest.mark.parametrize("judged", [ORDERED], indirect=True, ids=[""])
def test_a_rejected_message_holds_up_no_other(judged: Judged) -> None:
    judged.publish("m2", 2.0, 3.0)
    judged.receive("m2", 3.5, 6.0)
    judged.scene.rejected.add("m1")
    assert judged.problems() == []


HELD: Final[dict[str, tuple[float, bool, bool]]] = {
    "a process slept, and the broker has marked it": (5.4, True, False),
    "a process slept, and it has no mark": (5.4, False, True),
    "a process slept later": (5.5, True, True),
    "no process slept": (float("inf"), True, True),
}
"""The first message comes at 5.5 s -> when a process fell asleep, whether the broker has marked the message, and
whether it is a problem that the second one comes earlier."""


@pytest.mark.parametrize("judged", [ORDERED], indirect=True, ids=[""])
@pytest.mark.parametrize("name", HELD)
def test_what_was_kept_for_a_sleeping_process_holds_up_no_other(judged: Judged, name: str) -> None:
    judged.scene.slept_at, is_marked, is_wrong = HELD[name]
    judged.publish("m2", 2.0, 3.0, order="0-1")
    judged.publish("m3", 4.0, 4.5, order="0-1")
    judged.receive("m3", 5.0, 5.1)
    judged.receive("m2", 5.5, 6.0, redelivered=is_marked)
    wrong = ["m3 was handed out before m2, published before it with its key, was done"]
    assert judged.problems() == (wrong if is_wrong else [])


# ----------------------------------------------------------------------------------------------------- equal messages


@pytest.mark.parametrize("judged", [EQUAL], indirect=True, ids=[""])
@pytest.mark.parametrize(
    ("marks", "said"),
    [
        ((False, False), []),
        ((False, False, True), []),
        ((False,), ["1 lost: of equal messages"]),
        ((False, False, False), ["1 repeats without a mark: of equal messages"]),
    ],
    ids=["each once", "one again, marked", "one lost", "one again, unmarked"],
)
def test_equal_messages_are_counted(judged: Judged, marks: tuple[bool, ...], said: list[str]) -> None:
    judged.equals(*marks)
    assert judged.problems() == said


# ----------------------------------------------------------------------------------------------------- replays


def _done(sent: int = 1, skipped: int = 0, id: str = "last") -> _Run:
    return _Run(id, "done", sent, skipped)


def _is_sent(judged: Judged) -> None:
    judged.replayed(_done())
    judged.copy("m1", "c1")


def _came_again_marked(judged: Judged) -> None:
    _is_sent(judged)
    judged.copy("m1", "c1", redelivered=True)


def _nobody_sent(judged: Judged) -> None:
    judged.replayed(_done(2))
    judged.copy("m1", "c1")
    judged.copy("m2", "c2")


def _changed(judged: Judged) -> None:
    judged.replayed(_done())
    judged.copy("m1", "c1", digest="of another")


def _came_again_unmarked(judged: Judged) -> None:
    _is_sent(judged)
    judged.copy("m1", "c1")


def _unsettled(judged: Judged) -> None:
    judged.replayed(_done())
    judged.copy("m1", "c1", settled=Settled.NO)


def _counted_too_many(judged: Judged) -> None:
    judged.replayed(_done(2))
    judged.copy("m1", "c1")


def _counted_too_few(judged: Judged) -> None:
    judged.replayed(_done())
    judged.copy("m1", "c1")
    judged.copy("m1", "c2")


def _sent_again(judged: Judged) -> None:
    judged.replayed(_done(id="again"), _done(2, 0, "again"), _done())
    for copy in ("c1", "c2", "c3"):
        judged.copy("m1", copy)


def _not_sent_last(judged: Judged) -> None:
    judged.replayed(_done())
    judged.copy("m1", "c1", since=4.0)


def _not_done(judged: Judged) -> None:
    judged.replayed(_Run("last", "cancelled", 1))
    judged.copy("m1", "c1")


REPLAYS: Final[dict[Callable[[Judged], None], list[str]]] = {
    _is_sent: [],
    _came_again_marked: [],
    _nobody_sent: ["a copy of what nobody has sent: m2"],
    _changed: ["a copy is not what was sent: m1"],
    _came_again_unmarked: ["1 copies came again without a mark: c1"],
    _unsettled: ["1 copies were settled by nobody: c1"],
    _counted_too_many: ["replays count 2 messages, and 1 have come"],
    _counted_too_few: ["replays count 1 messages, and 2 have come"],
    _sent_again: ["asked for again, it has sent 1 messages again: again"],
    _not_sent_last: ["the last replay has not sent 1 acknowledged messages: m1"],
    _not_done: ["the last replay ended as 'cancelled': last"],
}
"""What happens -> what the judge reports."""


@pytest.mark.parametrize("judged", [REPLAYED], indirect=True, ids=[""])
@pytest.mark.parametrize("happens", REPLAYS, ids=[each.__name__[1:] for each in REPLAYS])
def test_replays(judged: Judged, happens: Callable[[Judged], None]) -> None:
    happens(judged)
    assert judged.problems() == REPLAYS[happens]


# ----------------------------------------------------------------------------------------------------- what is left


class Stopped:
    """A process of the gateway that has stopped."""

    def __init__(self) -> None:
        self.name, self.app, self.node = "gateway", None, Node("gateway")
        self.says = ""
        """What is wrong with how it has stopped."""
        self.soon: list[Callable[[], object]] = []
        """What happens a little later."""

    async def stop(self) -> str:
        return self.says


class Renewal:
    """A task that has not ended."""

    def done(self) -> bool:
        return False

    def get_name(self) -> str:
        return "renewal"


RENEWAL: Final = Renewal()
"""Held here: a node does not hold its tasks."""


def _leave_nothing(judged: Judged, process: Stopped) -> None:
    """It was in good order."""


def _leave_task(judged: Judged, process: Stopped) -> None:
    process.node.add(cast(Any, RENEWAL))


def _timer(judged: Judged, process: Stopped) -> SimTimer:
    loop = judged.scene.loop
    loop.running = process.node
    return loop.call_later(60.0, print)


def _leave_timer(judged: Judged, process: Stopped) -> None:
    _timer(judged, process)


def _leave_timer_for_a_moment(judged: Judged, process: Stopped) -> None:
    process.soon.append(_timer(judged, process).cancel)


def _leave_connection(judged: Judged, process: Stopped) -> None:
    Transport(judged.scene.network, process.node, process.node.context)


def _leave_connection_at_a_broker(judged: Judged, process: Stopped) -> None:
    broker = SimpleNamespace(name="a", server=SimpleNamespace(broker=SimpleNamespace(connections={1: object()})))
    judged.scene.brokers["a"] = cast(Any, broker)


def _fail(judged: Judged, process: Stopped) -> None:
    process.node.failures.append({"message": "a callback failed"})


def _do_not_stop(judged: Judged, process: Stopped) -> None:
    process.says = "the gateway does not stop: renewal"


LEFT: Final[dict[Callable[[Judged, Stopped], None], list[str]]] = {
    _leave_nothing: [],
    _leave_timer_for_a_moment: [],
    _leave_task: ["task renewal of gateway left"],
    _leave_timer: ["timer <SimTimer <built-in function print> ()> of gateway left"],
    _leave_connection: ["connection of gateway to 0 left"],
    _leave_connection_at_a_broker: ["1 connections left at a"],
    _fail: ["a failure in gateway: a callback failed None "],
    _do_not_stop: ["the gateway does not stop: renewal"],
}
"""What a process does -> what the judge reports."""


@pytest.mark.parametrize("judged", [PLAIN], indirect=True, ids=[""])
@pytest.mark.parametrize("leave", LEFT, ids=[each.__name__[1:] for each in LEFT])
def test_what_a_process_leaves(
    monkeypatch: pytest.MonkeyPatch, judged: Judged, leave: Callable[[Judged, Stopped], None]
) -> None:
    scene, process = judged.scene, Stopped()

    async def sleep(seconds: float) -> None:
        scene.loop.now += seconds
        for each in process.soon:
            each()

    monkeypatch.setattr("tests.simulation.judge.asyncio.sleep", sleep)  # the loop does not run here
    scene.gateways.append(cast(GatewayProcess, process))
    leave(judged, process)
    with pytest.raises(StopIteration):
        judged.judge.stop(scene.gateways[0]).send(None)
    assert scene.result.problems == LEFT[leave]
