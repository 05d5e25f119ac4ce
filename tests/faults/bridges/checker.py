"""The checker of a bridge: what was published to the source, what the target holds, and whether that may be.

With the ids of messages as multisets::

    attempted     every message whose publish to the source was begun
    acknowledged  every message that the source confirmed
    copies        every message that was found at the target, as often as it was
    dead          every message that was found at the dead-letter place
    forwarded     every message that the ledger says was forwarded

    lost          acknowledged - copies - dead                        must be empty
    unexpected    at the target, but never attempted, or refused      must be empty
    duplicated    at the target more often than attempted             counted; see below
    recovered     at the target without an acknowledged publish       counted: unknown outcomes that did arrive

A crash may cost duplicates of what was unconfirmed or unrecorded at that moment, and nothing else may. So of every
message one copy, and one only, is in the ledger, under the gateway's id that this copy carries: all further copies are
those of which the ledger was never told. (Only a source that crashed may bring again what it had delivered, and what
was acknowledged to it and was not on its disk: these are recorded once more.) They carry the origin id of the first and
are marked, and each belongs to an accident (a kill, a broker that went away) before which it was made; none may have
more of them than the bridge had in flight, which is its prefetch at most. Besides: what came is octet for octet what
was sent, the ledger names no message that the target has not got, and the source is empty: a run that was not drained
is an error, never a pass.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tests.faults.checker import SHOWN, History, NotDrained, Outcome

Problem: TypeAlias = Callable[[str, Iterable[str]], None]
"""Notes what must not be, and those that it was found of, if there are any."""

COLUMNS: Final = (
    "row",
    "bridge",
    "attempted",
    "acknowledged",
    "lost",
    "unexpected",
    "duplicated",
    "at most",
    "recovered",
    "dead-lettered",
    "times",
    "kills that counted",
    "seconds",
    "seed",
)
"""Of the table that a run prints. ``at most``: the bound of the duplicates."""


@dataclass(slots=True)
class Copy:
    """A message as it was found at the target or at the dead-letter place."""

    id: str
    """Its publisher's ``message_id``."""
    digest: str
    gateway_id: str = ""
    """The entries of the reserved header; "" where there is none."""
    origin: str = ""
    reason: str = ""
    resent: bool = False


@dataclass(slots=True)
class Accident:
    """A moment at which whatever was between source and target may have been lost sight of."""

    at: float
    """In seconds since 1970."""
    in_flight: int
    """What the gateway said right before."""
    most: int
    """Of how many messages a second copy may come of it."""
    counts: bool = False
    """A publish was unconfirmed, and a delivery unacknowledged."""
    forgets: bool = False
    """The source may have forgotten what it delivered. A redelivery that does not say that it is one is forwarded and
    recorded again, with a mark, for it may be another message of the same id."""


@dataclass(slots=True)
class Recorded:
    """A message of which the ledger says that the bridge is done with it."""

    id: str
    """Its publisher's ``message_id``; "" where the ledger has none."""
    state: str
    target: str = ""
    """The broker's name in the event."""
    told: str = ""
    """When the bridge was done with it, and whether it was resent: for the report of a failure."""


@dataclass(slots=True)
class Found:
    """Everything that there is when a run is over."""

    history: History
    copies: Sequence[Copy] = ()
    dead: Sequence[Copy] = ()
    recorded: Mapping[str, Recorded] = field(default_factory=dict)
    """By the gateway's id."""
    accidents: Sequence[Accident] = ()
    poison: frozenset[str] = frozenset()
    """Ids that must be at the dead-letter place, and nowhere else."""


@dataclass(slots=True)
class Verdict:
    """What :func:`check` found. Counts for the table, problems in words."""

    attempted: int = 0
    acknowledged: int = 0
    lost: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    duplicated: int = 0
    marked: int = 0
    """Of those, the ones of which a copy says that it may be a repeat."""
    bound: int = 0
    recovered: int = 0
    dead: int = 0
    unrecorded: int = 0
    """Copies of which the ledger was never told."""
    problems: list[str] = field(default_factory=list)
    """Everything that must not be; empty: valid."""

    @property
    def valid(self) -> bool:
        """Whether everything that must hold does."""
        return not self.problems


def check(found: Found) -> Verdict:
    """Judge a run.

    Raises:
        NotDrained: ``history.drained`` was not set.
    """
    history = found.history
    if not history.drained:
        raise NotDrained("the run never saw its source empty: it shows nothing")
    verdict = Verdict(attempted=len(history.publishes), acknowledged=history.count(Outcome.ACKNOWLEDGED))
    by_id: dict[str, list[Copy]] = defaultdict(list)
    for copy in found.copies:
        by_id[copy.id].append(copy)
    dead = Counter(copy.id for copy in found.dead)
    verdict.dead = len(found.dead)
    verdict.duplicated = sum(len(copies) - 1 for copies in by_id.values()) + sum(dead.values()) - len(dead)
    verdict.marked = sum(min(len(copies) - 1, sum(copy.resent for copy in copies)) for copies in by_id.values())
    verdict.bound = sum(accident.most for accident in found.accidents)
    verdict.lost = [
        id
        for id, publish in history.publishes.items()
        if publish.outcome is Outcome.ACKNOWLEDGED and id not in by_id and id not in dead
    ]
    for id in by_id.keys() | dead.keys():
        publish = history.publishes.get(id)
        if publish is None or publish.outcome is Outcome.NOT_TAKEN:
            verdict.unexpected.append(id)
        else:
            verdict.recovered += publish.outcome is not Outcome.ACKNOWLEDGED

    def problem(text: str, culprits: Iterable[str]) -> None:
        names = sorted(culprits)
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            verdict.problems.append(f"{len(names)} {text}: {', '.join(names[:SHOWN])}{more}")

    problem("lost", verdict.lost)
    problem("unexpected", verdict.unexpected)
    problem(
        "changed on the way",
        {
            copy.id
            for copy in (*found.copies, *found.dead)
            if copy.id in history.publishes and copy.digest != history.publishes[copy.id].digest
        },
    )
    if verdict.duplicated > verdict.bound:
        verdict.problems.append(f"{verdict.duplicated} duplicates, and there may be {verdict.bound}")
    unmarked = verdict.duplicated - verdict.marked
    if unmarked:
        verdict.problems.append(f"{unmarked} duplicates without a mark")
    _check_origins(by_id, problem)
    _check_ledger(found, by_id, verdict, problem)
    _check_dead(found, by_id, dead, problem)
    return verdict


def _check_origins(by_id: Mapping[str, Sequence[Copy]], problem: Problem) -> None:
    """Every copy of a message carries one and the same origin id, which no other message has."""
    owner: dict[str, str] = {}
    shared: set[str] = set()
    for id, copies in by_id.items():
        for copy in copies:
            if copy.origin and owner.setdefault(copy.origin, id) != id:
                shared.add(id)
    problem("without an origin id", {id for id, copies in by_id.items() if not all(copy.origin for copy in copies)})
    problem(
        "with several origin ids", {id for id, copies in by_id.items() if len({copy.origin for copy in copies}) > 1}
    )
    problem("with the origin id of another message", shared)


def _check_ledger(found: Found, by_id: Mapping[str, Sequence[Copy]], verdict: Verdict, problem: Problem) -> None:
    """The ledger and the target agree: one copy of each message is recorded, the others are the accidents'."""
    forwarded: dict[str, set[str]] = defaultdict(set)
    for gateway_id, recorded in found.recorded.items():
        if recorded.state == "forwarded":
            forwarded[recorded.id].add(gateway_id)
    at_target = {copy.gateway_id for copies in by_id.values() for copy in copies}
    problem("recorded as forwarded, and not at the target", {
        f"{gateway_id} ({id})" for id, gateway_ids in forwarded.items() for gateway_id in gateway_ids - at_target
    })  # fmt: skip
    problem("at the target, and nowhere recorded", by_id.keys() - forwarded.keys())
    if sum(len(ids) - 1 for ids in forwarded.values()) > sum(each.most for each in found.accidents if each.forgets):
        problem("recorded as forwarded more than once", {id for id, ids in forwarded.items() if len(ids) > 1})
    problem("in a state that ends nothing", {
        f"{gateway_id} ({recorded.state})"
        for gateway_id, recorded in found.recorded.items()
        if recorded.state not in ("forwarded", "dead_lettered")
    })  # fmt: skip
    seen: set[str] = set()
    unrecorded = []
    for copies in by_id.values():
        for copy in copies:
            if copy.gateway_id not in found.recorded or copy.gateway_id in seen:
                unrecorded.append(copy)
            seen.add(copy.gateway_id)
    verdict.unrecorded = len(unrecorded)
    over: Counter[int] = Counter()
    for copy in unrecorded:
        over[_accident_of(copy, found.accidents)] += 1
    for number, count in sorted(over.items()):
        most = found.accidents[number].most if number >= 0 else 0
        if count > most:
            which = f"accident {number}" if number >= 0 else "no accident"
            verdict.problems.append(f"{count} copies that are not in the ledger came of {which}, which may have {most}")


def _accident_of(copy: Copy, accidents: Sequence[Accident]) -> int:
    """The first accident after a copy was made, which its gateway's id says; -1: none."""
    digits = copy.gateway_id.replace("-", "")
    made = int(digits[:12], 16) / 1000 if len(digits) == 32 else 0.0
    return next((number for number, accident in enumerate(accidents) if made <= accident.at), -1)


def _check_dead(found: Found, by_id: Mapping[str, Sequence[Copy]], dead: Mapping[str, int], problem: Problem) -> None:
    """At the dead-letter place is what must be there, with its reason, and nothing else."""
    problem("poison, and not at the dead-letter place", found.poison - dead.keys())
    problem("poison, and at the target", found.poison & by_id.keys())
    problem("at the dead-letter place, and no poison", dead.keys() - found.poison)
    problem("at the dead-letter place without a reason", {copy.id for copy in found.dead if not copy.reason})
    told = {recorded.id for recorded in found.recorded.values() if recorded.state == "dead_lettered"}
    problem("at the dead-letter place, and not so in the ledger", dead.keys() - told)


def row(
    name: str, bridge: str, verdict: Verdict, accidents: Sequence[Accident], times: int, seconds: float, seed: int
) -> tuple[str, ...]:
    """One line of the table."""
    kills = sum(accident.counts for accident in accidents)
    numbers = (
        verdict.attempted,
        verdict.acknowledged,
        len(verdict.lost),
        len(verdict.unexpected),
        verdict.duplicated,
        verdict.bound,
        verdict.recovered,
        verdict.dead,
        times,
        kills,
    )
    return (name, bridge, *(f"{number:,}" for number in numbers), f"{seconds:.0f}", str(seed))
