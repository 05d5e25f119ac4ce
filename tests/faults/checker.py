"""The checker: what a run attempted, what it was promised, what came, and whether that may be.

A :class:`History` is written while a run goes on, and judged by :func:`check` when it is over. With ids as multisets::

    attempted     every message whose publish was begun
    acknowledged  every message whose publish was answered 2xx
    received      every message that a consumer was handed, as often as it was

    lost          acknowledged - received                             must be empty
    unexpected    received, but never attempted, or refused for good  must be empty
    duplicated    received more often than attempted                  counted; each repeat must carry a mark
    recovered     received without an acknowledged publish            counted: unknown outcomes that did arrive

Besides, five things must hold: what came is octet for octet what was sent (body and properties, by digest); whatever
was received was also settled by somebody; no message was out in two leases at once; the ledger's state of every
message is the one that was observed; and the source is empty. A run that was not drained shows nothing at all, so it
is an error (:class:`NotDrained`) and never a pass.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from itertools import pairwise
from typing import Any, Final

SHOWN: Final = 5
"""How many culprits a problem names."""


class NotDrained(Exception):
    """The run is an error: it never got to the point where something can be said about it."""


class Outcome(IntEnum):
    """What the publisher was told. The greater one stands: a repeat that is refused says nothing of the attempt
    before it whose outcome is unknown."""

    NOT_TAKEN = 0
    """A definite no: nothing was kept."""
    UNKNOWN = 1
    """No answer, or 504: it may have arrived."""
    ACKNOWLEDGED = 2
    """A 2xx."""


class Settled(StrEnum):
    """What the consumer knows of its acknowledgement."""

    NO = "no"
    """None was sent, or it was answered that the lease is gone: the message must come again."""
    ACKED = "acked"
    """Answered with success."""
    UNCLEAR = "unclear"
    """Sent, without an answer: it may come again or not."""
    RELEASED = "released"
    """Given back on purpose: the message must come again."""


@dataclass(slots=True)
class Publish:
    """One message that somebody tried to publish."""

    id: str
    digest: str
    outcome: Outcome | None = None
    """None: never answered, which counts as unknown."""
    gateway_ids: set[str] = field(default_factory=set)
    """What the gateway called it: one id, or one for each attempt that was not taken."""
    resent: bool = False
    """The answer said that it may be there twice."""


@dataclass(slots=True)
class Reception:
    """One message that a consumer was handed. The consumer fills in ``settled`` and ``until``."""

    id: str
    digest: str
    gateway_id: str = ""
    redelivered: bool = False
    """The broker says that it tried before."""
    resent: bool = False
    """The gateway says that it may have been published twice."""
    attempt: int = 0
    """How often it was handed out, as the gateway counts; 0: it does not say."""
    delivery: str = ""
    """A name that all attempts of one delivery have (``webhook-id``); "": there is none."""
    forgotten: bool = False
    """Nobody could know that it is a repeat: the broker has forgotten that it handed the message out."""
    elsewhere: bool = False
    """Taken by a client of the broker, past the gateway, so that the ledger cannot know of it."""
    since: float = 0.0
    """When it was handed over, on one clock for all consumers."""
    until: float | None = None
    """When the consumer sent its acknowledgement; None: never."""
    ends: float | None = None
    """When the lease ends by itself, at the earliest; None: not that anybody knew."""
    settled: Settled = Settled.NO

    @property
    def marked(self) -> bool:
        """It says of itself that it may be a repeat."""
        return self.redelivered or self.resent or self.attempt > 1


class History:
    """What happened in a run. One event loop or thread writes it."""

    def __init__(self) -> None:
        self.publishes: dict[str, Publish] = {}
        self.receptions: list[Reception] = []
        self.drained = False
        """Set by the run, once it has seen that the source is empty and nothing is out."""

    def attempt(self, id: str, digest: str) -> Publish:
        """A publish begins. Repeats under one Idempotency-Key, and after a definite no, are the same attempt."""
        if id in self.publishes:
            raise ValueError(f"{id} was attempted before")
        publish = self.publishes[id] = Publish(id, digest)
        return publish

    def answer(self, id: str, outcome: Outcome, gateway_id: str = "", resent: bool = False) -> None:
        """A publish was answered; may be called again for a repeat."""
        publish = self.publishes[id]
        publish.outcome = outcome if publish.outcome is None else max(outcome, publish.outcome)
        publish.resent |= resent
        if gateway_id:
            publish.gateway_ids.add(gateway_id)

    def receive(self, reception: Reception) -> Reception:
        """A consumer was handed a message."""
        self.receptions.append(reception)
        return reception

    def count(self, *outcomes: Outcome | None) -> int:
        """How many publishes have one of these outcomes; None: no answer."""
        return sum(publish.outcome in outcomes for publish in self.publishes.values())


@dataclass(slots=True)
class Verdict:
    """What :func:`check` found. Counts for the table, problems in words."""

    attempted: int = 0
    acknowledged: int = 0
    received: int = 0
    lost: list[str] = field(default_factory=list)
    """Acknowledged, and nobody has it."""
    unexpected: list[str] = field(default_factory=list)
    """Nobody sent it, or it was refused."""
    duplicated: int = 0
    """Receptions beyond the first."""
    marked: int = 0
    """Of those, the ones that carry a mark."""
    forgotten: int = 0
    """Of those without one, those of which nobody could know."""
    recovered: int = 0
    """Unknown outcomes that did arrive."""
    unknown: int = 0
    """Publishes that ended without an outcome."""
    problems: list[str] = field(default_factory=list)
    """Everything that must not be; empty: valid."""

    @property
    def valid(self) -> bool:
        """Whether everything that must hold does."""
        return not self.problems

    def problem(self, text: str, culprits: Sequence[str]) -> None:
        """Note what must not be, and those that it was found of, if there are any."""
        if culprits:
            more = f" and {len(culprits) - SHOWN} more" if len(culprits) > SHOWN else ""
            self.problems.append(f"{len(culprits)} {text}: {', '.join(culprits[:SHOWN])}{more}")


_NOT_THERE: Final = frozenset({"not_sent", "refused", "unroutable", "unknown"})
_BY_OTHERS: Final = frozenset({"confirmed", "unknown", "delivered", "released", "acknowledged"})
"""States of a message that somebody else took from the queue: the ledger stays at what it knew before. The last one
where the broker never read our acknowledgement."""
_UNCLEAR: Final = frozenset({"acknowledged", "delivered", "released"})
"""States of a message whose acknowledgement had no answer."""


COUNTS = frozenset({"x-delivery-count", "x-acquired-count"})
"""Headers in which quorum queues of RabbitMQ count what they hand out."""


def digest(body: bytes, properties: Mapping[str, Any], headers: Mapping[str, Any]) -> str:
    """Digest of a message as the HTTP API writes it, without properties that are None and :data:`COUNTS`."""
    headers = {name: value for name, value in headers.items() if name not in COUNTS}
    plain = {name: value for name, value in properties.items() if value is not None}
    text = json.dumps([plain, headers], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(hashlib.sha256(body).digest() + text.encode()).hexdigest()


def check(history: History, states: Mapping[str, str] | None = None) -> Verdict:
    """Judge a run.

    Args:
        states: the ledger's state of every message by the gateway's id; None: the ledger is not asked.

    Raises:
        NotDrained: ``history.drained`` was not set.
    """
    if not history.drained:
        raise NotDrained("the run never saw its source empty: it shows nothing")
    verdict = Verdict()
    by_id: dict[str, list[Reception]] = defaultdict(list)
    for reception in history.receptions:
        by_id[reception.id].append(reception)
    verdict.attempted = len(history.publishes)
    verdict.acknowledged = history.count(Outcome.ACKNOWLEDGED)
    verdict.unknown = history.count(Outcome.UNKNOWN, None)
    verdict.received = len(history.receptions)

    changed: list[str] = []
    for id, receptions in by_id.items():
        publish = history.publishes.get(id)
        if publish is None or publish.outcome is Outcome.NOT_TAKEN:
            verdict.unexpected.append(id)
            continue
        verdict.recovered += publish.outcome is not Outcome.ACKNOWLEDGED
        repeats = len(receptions) - 1
        verdict.duplicated += repeats
        verdict.marked += min(repeats, _marks(receptions))
        verdict.forgotten += sum(reception.forgotten for reception in receptions)
        changed += [id for reception in receptions if reception.digest != publish.digest]
    verdict.lost = [
        id for id, publish in history.publishes.items() if publish.outcome is Outcome.ACKNOWLEDGED and id not in by_id
    ]
    gone = [
        id
        for id, receptions in by_id.items()
        if not any(reception.settled in (Settled.ACKED, Settled.UNCLEAR) for reception in receptions)
    ]

    verdict.problem("lost", verdict.lost)
    verdict.problem("unexpected", verdict.unexpected)
    verdict.problem("changed on the way", changed)
    verdict.problem("received, never settled, and not delivered again", gone)
    verdict.problem("out in two leases at once", _overlaps(by_id))
    unmarked = verdict.duplicated - verdict.marked - verdict.forgotten
    if unmarked > 0:
        culprits = [_unmarked(id, receptions) for id, receptions in by_id.items()]
        verdict.problems.append(f"{unmarked} repeats without a mark: {'; '.join(filter(None, culprits))[:1_000]}")
    if states is not None:
        verdict.problem("with another state in the ledger than observed", disagreements(history, states))
    return verdict


def _unmarked(id: str, receptions: Sequence[Reception]) -> str:
    """What there is to know of a message with a repeat that nobody can know for one; empty: it has none."""
    if len(receptions) - 1 <= _marks(receptions) + sum(reception.forgotten for reception in receptions):
        return ""
    told = [f"{each.gateway_id} at {each.since:.3f} attempt {each.attempt} {each.delivery}" for each in receptions]
    return f"{id} ({', '.join(told)})"


def _marks(receptions: Sequence[Reception]) -> int:
    """How many of them can be known for repeats: they say so, or have the name of a delivery that came before."""
    seen: set[str] = set()
    marks = 0
    for reception in receptions:
        marks += reception.marked or reception.delivery in seen
        if reception.delivery:
            seen.add(reception.delivery)
    return marks


def _overlaps(by_id: Mapping[str, Iterable[Reception]]) -> list[str]:
    """Messages that two consumers held at the same time, and both settled with success. Two copies of a message that
    was sent again are two messages, and so are two that the gateway gave different ids."""
    found = []
    for id, receptions in by_id.items():
        held = sorted(
            (reception.gateway_id, reception.since, reception.until, reception.resent)
            for reception in receptions
            if reception.settled is Settled.ACKED and reception.until is not None
        )
        if any(
            later[0] == earlier[0] and later[1] < earlier[2] and not (earlier[3] or later[3])
            for earlier, later in pairwise(held)
        ):
            found.append(id)
    return found


def disagreements(history: History, states: Mapping[str, str]) -> list[str]:
    """Messages of which the ledger says something else than was observed, as ``id (state, not …)``."""
    by_gateway: dict[str, list[Reception]] = defaultdict(list)
    for reception in history.receptions:
        by_gateway[reception.gateway_id].append(reception)
    answered = {
        gateway_id
        for publish in history.publishes.values()
        if publish.outcome is Outcome.ACKNOWLEDGED
        for gateway_id in publish.gateway_ids
    }
    found = []
    for gateway_id in sorted(states.keys() | by_gateway.keys() | answered):
        state = states.get(gateway_id, "absent")
        allowed = _allowed(by_gateway.get(gateway_id, ()))
        if state not in allowed:
            found.append(f"{gateway_id or 'no id'} ({state}, not {' or '.join(sorted(allowed))})")
    return found


def _allowed(receptions: Sequence[Reception]) -> frozenset[str]:
    """The states that a message may be in which was received like this."""
    if not receptions:
        return _NOT_THERE
    if receptions[-1].elsewhere:
        return _BY_OTHERS
    settled = {reception.settled for reception in receptions}
    if Settled.UNCLEAR in settled and receptions[-1].settled is not Settled.ACKED:
        return _UNCLEAR
    return frozenset({"acknowledged"})


COLUMNS: Final = (
    "row",
    "broker",
    "attempted",
    "acknowledged",
    "lost",
    "unexpected",
    "duplicated",
    "marked",
    "recovered",
    "unknown",
    "seconds",
)
"""Of the table that a run prints."""


def row(name: str, broker: str, verdict: Verdict, seconds: float) -> tuple[str, ...]:
    """One line of the table."""
    numbers = (
        verdict.attempted,
        verdict.acknowledged,
        len(verdict.lost),
        len(verdict.unexpected),
        verdict.duplicated,
        verdict.marked,
        verdict.recovered,
        verdict.unknown,
    )
    return (name, broker, *(f"{number:,}" for number in numbers), f"{seconds:.0f}")


def table(rows: Iterable[Sequence[str]], columns: Sequence[str] = COLUMNS) -> str:
    """The rows under their heads, as a Markdown table."""
    lines = [columns, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(columns))]
    rule = ["-" * widths[0], "-" * widths[1], *("-" * (width - 1) + ":" for width in widths[2:])]
    padded = [
        [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in [padded[0], rule, *padded[1:]])
