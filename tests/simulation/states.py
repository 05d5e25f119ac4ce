"""Which faults hit which states of messages: ``python -m tests.simulation.states``.

Worlds show nothing of a fault in a state that it never hits. The states are those of the whole world when a fault
begins, as the ledger and the brokers have them.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import ClassVar, Final
from unittest import mock

from tests.simulation import simulation
from tests.simulation.__main__ import begin_with
from tests.simulation.adding import ADDED, added
from tests.simulation.scene import Result, Scene
from tests.simulation.undoing import ROOT, VARIABLE
from tests.simulation.worlds import World, draw

RESULTS: Final = Path(__file__).with_name("states.json")
FAULTS: Final[Mapping[tuple[str, str], str]] = {
    ("fault", "kill"): "a process is killed",
    ("fault", "killed before a commit"): "a process is killed before a commit",
    ("fault", "pause"): "a process or a broker is paused",
    ("fault", "crash"): "a broker crashes",
    ("net", "cut"): "a connection is cut after an octet",
    ("net", "reset"): "all connections of two are reset",
    ("fault", "part"): "two are parted",
    ("fault", "ledger fails"): "the ledger fails",
    ("fault", "ledger is slow"): "the ledger is slow",
    ("fault", "ledger cannot be read"): "the ledger cannot be read",
    ("fault", "ledger is away"): "the ledger is lost in a commit",
    ("fault", "an answer of the ledger is lost"): "the ledger is lost in a commit",
    ("fault", "reload"): "the configuration is read again",
    ("fault", "rotate signing keys"): "signing keys are rotated",
    ("fault", "rotate secrets"): "keys that seal are rotated",
    ("fault", "rotate ack ids"): "keys of ack ids are rotated",
}
"""Kind and first word of the line of a trace with which a fault begins -> the fault."""
IN_LEDGER: Final[Mapping[str, str]] = {
    "key": "SELECT count(*) FROM idempotency_keys WHERE status = 'running'",
    "in doubt": "SELECT count(*) FROM obligations WHERE status = 'pending'",
    "scheduled": "SELECT count(*) FROM outbox",
    "waiting": "SELECT count(*) FROM deliveries WHERE status = 0",
    "leased": "SELECT count(*) FROM deliveries WHERE status = 1",
    "dead": "SELECT count(*) FROM deliveries WHERE status = 2",
    "branch": "SELECT count(*) FROM branches",
    "replay": "SELECT count(*) FROM resources WHERE kind = 'replay' AND json_extract(spec, '$.state') NOT IN "
    "('done', 'failed', 'cancelled')",
}
"""State -> what counts those that are in it."""
STATES: Final[Mapping[str, str]] = {
    "publish": "a publish over HTTP without an answer",
    "key": "an `Idempotency-Key` whose request runs",
    "in doubt": "a publish that the ledger has, without an outcome",
    "scheduled": "a publish that is scheduled, or stored for its broker",
    "pull": "a message that the gateway holds for a subscription that is pulled",
    "push": "the same of one that is pushed",
    "waiting": "a message in the ledger that waits for its subscription",
    "leased": "one that is handed out under a lease of the ledger",
    "dead": "one that is dead",
    "bridge": "a message that a bridge holds",
    "branch": "a branch of a transaction of a bridge",
    "tap": "a message that a tap holds",
    "replay": "a replay that has not ended",
    "front publish": "a publish to a front without an outcome",
    "front": "a message that a client of a front holds",
}
"""State -> what is in it."""

EMPTY: Final[Mapping[str, Mapping[str, str]]] = {
    "signing keys are rotated": {"tap": "a tap signs nothing, and few worlds have both"},
    "keys of ack ids are rotated": {"tap": "a tap hands out no ack ids, and few worlds have both"},
}
"""Fault -> state that it has not hit -> why it has not."""


class WatchedScene(Scene):
    """A scene in which the states are noted at each fault. Its trace is the same."""

    times: ClassVar[Counter[str]] = Counter()
    """Fault -> how often it happened."""
    hits: ClassVar[Counter[tuple[str, str]]] = Counter()
    """Fault and state -> how often something was in the state when the fault happened."""

    def note(self, kind: str, *words: object) -> None:
        super().note(kind, *words)
        fault = FAULTS.get((kind, str(words[0]))) if words else None
        if fault is not None and self.is_working and not self.is_calm:
            self.times[fault] += 1
            self.hits.update((fault, state) for state in self.states())

    def states(self) -> Iterator[str]:
        """Yield the states that something is in."""
        open_publishes = [each.id for each in self.history.publishes.values() if each.outcome is None]
        if any(not _is_of_front(id) for id in open_publishes):
            yield "publish"
        if any(map(_is_of_front, open_publishes)):
            yield "front publish"
        with closing(sqlite3.connect(self.folder / "ledger.db")) as ledger:
            yield from (state for state, query in IN_LEDGER.items() if ledger.execute(query).fetchone()[0])
        yield from {state for broker, queue in self._held() for state in self._holders(broker, queue)}

    def _held(self) -> Iterator[tuple[str, str]]:
        """Yield broker and queue of each delivery without a settlement."""
        for name, broker in self.brokers.items():
            for connection in broker.server.broker.connections.values():
                for channel in connection.channels.values():
                    yield from ((name, entry.queue.name) for entry, _ in channel.unsettled.values())

    def _holders(self, broker: str, queue: str) -> Iterator[str]:
        """Yield who holds what was delivered from a queue."""
        front = self.world.front
        if front is not None and (front.broker, front.queue) == (broker, queue):
            yield "front"
        for route in self.world.routes:
            if route.target and (route.broker, route.name) == (broker, queue):
                yield "bridge"
            elif (route.end, route.last) == (broker, queue):
                yield "tap" if route.tap else "push" if route.push else "pull"


def _is_of_front(id: str) -> bool:
    """Whether a message was published to a front: its id is a UUID."""
    return id.count("-") == 4


def watch(worlds: Iterable[World]) -> Iterator[Result]:
    """Run these worlds, and note what their faults hit. Yield what became of each."""
    with mock.patch.object(simulation, "Scene", WatchedScene):
        for world in worlds:
            yield simulation.simulate(world)


def empty() -> Mapping[str, list[str]]:
    """Return the states that each fault has not hit, of those that have missed any."""
    rows = json.loads(RESULTS.read_text())["faults"]
    found = {fault: [state for state, times in row["hits"].items() if not times] for fault, row in rows.items()}
    return {fault: states for fault, states in found.items() if states}


def main() -> int:
    """Run worlds, and write what their faults have hit."""
    parser = argparse.ArgumentParser("python -m tests.simulation.states")
    parser.add_argument("--worlds", type=int, default=3_000, help="how many are run (3000)")
    parser.add_argument("--added", type=int, default=600, help="how many run again with each fault of adding.py (600)")
    options = parser.parse_args()
    if min(options.worlds, options.added) < 1:
        parser.error("a run of no world shows nothing; ask for 1 or more")
    begin_with({"PYTHONHASHSEED": "0", VARIABLE: ""}, "tests.simulation.states")
    drawn = [draw(seed) for seed in range(1, options.worlds + 1)]
    drawn += [added(kind, draw(seed)) for kind in ADDED for seed in range(1, options.added + 1)]
    failed = [result.world.seed for result in watch(drawn) if result.problems]
    code = subprocess.run(
        ["git", "log", "-1", "--abbrev=8", "--format=%h", "--", "gateway", "tests/simulation/worlds.py"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    times, hits = WatchedScene.times, WatchedScene.hits
    rows = {
        fault: {"times": times[fault], "hits": {state: hits[fault, state] for state in STATES}}
        for fault in dict.fromkeys(FAULTS.values())
    }
    results = {
        "code": code, "worlds": options.worlds, "added": dict.fromkeys(ADDED, options.added), "failed": failed,
        "states": dict(STATES), "faults": rows, "empty": EMPTY,
    }  # fmt: skip
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
