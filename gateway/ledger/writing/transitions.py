"""Which event may follow which: one table, :data:`TRANSITIONS`, that judges the events of any ledger.

The events of a message belong to *scopes*: its publish, each subscription, bridge and tap that had to do with it. What
happens in one scope says nothing of the others, so each is judged alone. A row of the table names an event, those that
it may follow in its scope, and the rule as a sentence.

A message has one publish. In every other scope it may be there several times: a broker delivers again what was not
acknowledged, and a message that was sent again may be in a queue twice. So a new delivery may begin at any time
(:data:`BEGIN`), and each event belongs to one of those that are open. Events do not say to which: the trace is
impossible where no choice is possible.

Numbers of one shard are in order. Events of two shards have nothing in common but their clocks, so those that are less
than :data:`SKEW` apart may have happened either way round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache, lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from gateway.ledger.writing.states import RULES, EventKind, MessagePhase

BEGIN: Final = ""
"""What the first event of a publish or delivery follows."""
SKEW: Final = 60_000_000
"""Most by which the clocks of two processes differ, in microseconds."""
SAME: Final = 3
"""So many open deliveries in the same state stand for any larger number."""
CHOICES: Final = 2_000
"""A scope with more possible states than this is taken for possible."""
REMEMBERED: Final = 20_000
"""Steps that are remembered, since most messages have the same."""


class TraceScope(StrEnum):
    """What an event of a message is about."""

    PUBLISH = "publish"
    SUBSCRIPTION = "subscription"
    BRIDGE = "bridge"
    TAP = "tap"


class EventVariant(StrEnum):
    """Events whose detail says that another rule is theirs than that of their kind."""

    SCHEDULED_AGAIN = "scheduled again"
    """A scheduled publish got another time, or is retried."""
    CONFIRMED_COPY = "confirmed copy"
    """A replay sent it; copies of one message have one id."""
    LEASED = "leased"
    """Handed out by the ledger for the first time."""
    LEASED_AGAIN = "leased again"
    """Handed out by the ledger under a further lease."""
    HANDED_BACK = "handed back"
    """Released by the gateway itself, which may be written before the delivery is."""
    PUSHED = "pushed"
    """Acknowledged by an endpoint."""


class TransitionRule(NamedTuple):
    """What an event may follow, and why."""

    after: frozenset[str]
    """Kinds and variants; :data:`BEGIN`: nothing."""
    why: str
    """The rule, as a sentence."""


def _rules(*rows: tuple[str, Iterable[str], str]) -> dict[str, TransitionRule]:
    return {str(step): TransitionRule(frozenset(map(str, after)), why) for step, after, why in rows}


_K, _V = EventKind, EventVariant
_ASKED: Final = (BEGIN, _K.ACCEPTED, _K.SCHEDULED, _V.SCHEDULED_AGAIN, _K.RESENT)
_NOT_TAKEN: Final = (_K.UNROUTABLE, _K.REFUSED, _K.NOT_SENT)
_LATER: Final = (_K.SCHEDULED, _V.SCHEDULED_AGAIN, *_NOT_TAKEN)
_ONE_OUTCOME: Final = "A publish has one outcome. After an unknown one it is sent again first."
_OUT: Final = (_K.DELIVERED, _V.LEASED, _V.LEASED_AGAIN, _K.EXTENDED)
_WAITING: Final = (_K.STORED, _K.RELEASED, _V.HANDED_BACK, _K.LEASE_EXPIRED, _K.ATTEMPT_FAILED, _K.REVIVED)
_LATE: Final = (*_OUT, _K.RELEASED, _V.HANDED_BACK, _K.LEASE_EXPIRED, _K.REVIVED, _K.DEAD)
_ANY: Final = (BEGIN, *_OUT, *_WAITING)

TRANSITIONS: Final[Mapping[TraceScope, Mapping[str, TransitionRule]]] = {
    TraceScope.PUBLISH: _rules(
        (_K.RECEIVED, (BEGIN,), "A message from elsewhere is received once, and the gateway has not published it."),
        (_K.ACCEPTED, (BEGIN,), "A publish is accepted once, before anything else happens to it."),
        (_K.SCHEDULED, (BEGIN,), "A publish is scheduled once, before anything else happens to it."),
        (_V.SCHEDULED_AGAIN, _LATER, "Only a scheduled publish that its broker has not taken is scheduled again."),
        (_K.RESENT, (*_ASKED, _K.UNKNOWN, _V.CONFIRMED_COPY), "Only a publish without a known outcome is sent again."),
        (_K.CONFIRMED, _ASKED, _ONE_OUTCOME),
        (_V.CONFIRMED_COPY, (BEGIN, _K.RESENT), "A further copy of a replay is marked as sent again."),
        (_K.UNROUTABLE, _ASKED, _ONE_OUTCOME),
        (_K.REFUSED, _ASKED, _ONE_OUTCOME),
        (_K.NOT_SENT, _ASKED, _ONE_OUTCOME),
        (_K.UNKNOWN, _ASKED, _ONE_OUTCOME),
        (_K.CANCELLED, _LATER, "Only a scheduled publish that its broker has not taken is cancelled."),
    ),
    TraceScope.SUBSCRIPTION: _rules(
        (_K.DELIVERED, (BEGIN,), "A broker may deliver a message at any time."),
        (_K.STORED, (BEGIN,), "A subscription may store a message at any time."),
        (_K.FILTERED, (BEGIN,), "The filter looks at a message before anybody gets it."),
        (_V.LEASED, (BEGIN, _K.STORED, _K.ATTEMPT_FAILED, _K.REVIVED), "The first lease is of a stored message."),
        (_V.LEASED_AGAIN, _WAITING, "A message is leased again once its lease has ended, and not while it is dead."),
        (_K.EXTENDED, _OUT, "Only a message that is handed out gets more time."),
        (_K.ACKNOWLEDGED, _LATE, "Only what was handed out is acknowledged, once for each time."),
        (_V.PUSHED, (*_ANY, _K.REPLIED), "An endpoint takes a message that is not dead."),
        (_K.RELEASED, (*_OUT, *_WAITING), "Only what was handed out is released."),
        (_V.HANDED_BACK, _ANY, "The gateway hands back what is not dead."),
        (_K.LEASE_EXPIRED, _ANY, "The lease of a dead message does not expire."),
        (_K.LEASE_LOST, (BEGIN, *_OUT), "A lease is lost once."),
        (_K.REJECTED, _OUT, "Only what is handed out is rejected."),
        (_K.DISCARDED, _LATE, "Only what was handed out is discarded, once for each time."),
        (_K.ATTEMPT_FAILED, _ANY, "A message that is dead is not pushed."),
        (_K.REPLIED, _ANY, "A message that is dead is not pushed."),
        (_K.DEAD, _ANY, "A message dies once, unless it was revived."),
        (_K.DEAD_LETTERED, _ANY, "A message that is dead in the ledger is dead-lettered only by a replay."),
        (_K.REVIVED, (_K.DEAD,), "Only a message that is dead is revived."),
        (_K.PURGED, (*_OUT, *_WAITING, _K.DEAD), "Only what the ledger has for a subscription is purged."),
    ),
    TraceScope.BRIDGE: _rules(
        (_K.PREPARED, (BEGIN,), "A bridge may begin a transaction for a message at any time."),
        (_K.FORWARDED, (BEGIN, _K.PREPARED), "A bridge may forward a message at any time."),
        (_K.REDUCED, (_K.FORWARDED,), "Only what was forwarded has lost something on the way, once for each time."),
        (_K.RELEASED, (_K.PREPARED,), "A bridge releases only what was prepared and not committed."),
        (_K.FILTERED, (BEGIN,), "The selector looks at a message before it is forwarded."),
        (_K.LOOPED, (BEGIN,), "A bridge looks for loops before it forwards a message."),
        (_K.DEAD_LETTERED, (BEGIN,), "A bridge may dead-letter what its target does not take."),
    ),
    TraceScope.TAP: _rules(
        (_K.SPOOLED, (BEGIN,), "A tap may spool a message at any time."),
        (_K.FILTERED, (BEGIN,), "The filter looks at a message before it is spooled."),
        (_K.DEAD_LETTERED, (BEGIN,), "A tap may dead-letter what the log cannot hold."),
    ),
}  # fmt: skip
"""TraceScope -> kind or variant -> what it may follow."""

NOTES: Final = frozenset({EventKind.DUPLICATE_DROPPED, EventKind.REPLAYED})
"""Kinds that may come at any time, in every scope."""
PUBLISH_KINDS: Final = frozenset(
    {kind for kind, rule in RULES.items() if rule.phase is MessagePhase.PUBLISH} - NOTES | {EventKind.RECEIVED}
)
"""Kinds whose scope is the publish."""
HOLDERS: Final = (TraceScope.SUBSCRIPTION, TraceScope.BRIDGE, TraceScope.TAP)
"""Scopes that have names, by the key of the detail that has it, in the order in which they are looked for."""
STEPS: Final = (*(kind.value for kind in EventKind), *(variant.value for variant in EventVariant))
"""All kinds and variants: their places here are their numbers."""


class TraceEvent(NamedTuple):
    """An event, with what its place in a trace depends on."""

    scope: str
    """``publish``, ``subscription:NAME``, ``bridge:NAME`` or ``tap:NAME``; empty: it may come at any time."""
    step: str
    """The kind, or the variant that its detail makes of it."""
    at: int
    """Microseconds since 1970."""
    shard: int
    sequence: int

    @classmethod
    def of(cls, kind: str, detail: Mapping[str, Any], at: int, shard: int, sequence: int) -> TraceEvent:
        """Read an event of the ledger.

        Raises:
            ValueError: the kind is unknown.
        """
        known = EventKind(kind)
        return cls(_scope_of(known, detail), _step_of(known, detail), at, shard, sequence)

    def __str__(self) -> str:
        return f"{self.step} at {datetime.fromtimestamp(self.at / 1e6, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


class ImpossibleTransition(NamedTuple):
    """An event that may not follow what came before it."""

    before: TraceEvent | None
    """The event before it in its scope; None: it is the first one."""
    event: TraceEvent
    why: str
    """The rule that it breaks."""

    def __str__(self) -> str:
        before = "as the first event" if self.before is None else f"after {self.before}"
        return f"{self.event.scope}: {self.event} {before}. {self.why}"


def impossible(events: Iterable[TraceEvent], *, is_cut: bool = False) -> list[ImpossibleTransition]:
    """Return the transitions of one message that the table does not have.

    Args:
        events: all of the message, in any order.
        is_cut: the first events of the message may be missing.
    """
    found: list[ImpossibleTransition] = []
    by_scope = sorted((event for event in events if event.scope), key=attrgetter("scope"))
    for scope, each in groupby(by_scope, attrgetter("scope")):
        found += _judged(TraceScope(scope.partition(":")[0]), list(each), is_cut)
    return sorted(found, key=lambda each: each.event[2:])


def is_possible(scope: TraceScope, steps: Sequence[str], is_cut: bool) -> bool:
    """Whether kinds and variants may follow each other in this order in a scope."""
    states = _begin(scope, is_cut)
    for step in steps:
        states = _next(scope, states, step)
    return bool(states)


# --------------------------------------------------------------------------------------------------- one scope

State = tuple[str, ...]
"""The last event of each delivery that is open, sorted; of a publish that has not begun, :data:`BEGIN`."""


def _scope_of(kind: EventKind, detail: Mapping[str, Any]) -> str:
    if kind in PUBLISH_KINDS:
        return TraceScope.PUBLISH
    if kind in NOTES:
        return ""
    for scope in HOLDERS:
        if name := detail.get(scope):
            return f"{scope}:{name}" if kind in TRANSITIONS[scope] else ""
    return ""


def _step_of(kind: EventKind, detail: Mapping[str, Any]) -> str:
    """SQL says the same in :mod:`gateway.pipeline.jobs.validate`."""
    if kind is EventKind.SCHEDULED and ("retry" in detail or "rescheduled" in detail):
        return EventVariant.SCHEDULED_AGAIN
    if kind is EventKind.CONFIRMED and "replay" in detail:
        return EventVariant.CONFIRMED_COPY
    if kind is EventKind.DELIVERED and "lease" in detail:
        return EventVariant.LEASED if detail["lease"] == 1 else EventVariant.LEASED_AGAIN
    if kind is EventKind.RELEASED and "subscription" in detail and "reason" in detail:
        return EventVariant.HANDED_BACK
    if kind is EventKind.ACKNOWLEDGED and "endpoint" in detail:
        return EventVariant.PUSHED
    return kind


@cache
def _open(scope: TraceScope) -> frozenset[str]:
    """What something may follow."""
    return frozenset().union(*(rule.after for rule in TRANSITIONS[scope].values())) - {BEGIN}


@cache
def _begin(scope: TraceScope, is_cut: bool) -> frozenset[State]:
    """The states before the first event. Of what is cut any delivery may be open, or the publish in any state."""
    opened = _open(scope)
    if scope is not TraceScope.PUBLISH:
        return frozenset({tuple(sorted(opened)) if is_cut else ()})
    return frozenset({(BEGIN,), *((step,) for step in opened), ()} if is_cut else {(BEGIN,)})


@lru_cache(REMEMBERED)
def _next(scope: TraceScope, states: frozenset[State], step: str) -> frozenset[State]:
    """The states behind an event; none: it is impossible."""
    rule = TRANSITIONS[scope][step]
    found = set()
    for state in states:
        if BEGIN in rule.after and scope is not TraceScope.PUBLISH:
            found.add(_with(scope, state, step))
        for before in rule.after.intersection(state):
            many = scope is not TraceScope.PUBLISH and state.count(before) == SAME
            at = state.index(before)
            found.add(_with(scope, state if many else state[:at] + state[at + 1 :], step))
    return frozenset(found)


def _with(scope: TraceScope, state: State, step: str) -> State:
    if step not in _open(scope) or state.count(step) == SAME:
        return state
    return tuple(sorted((*state, step)))


def _judged(scope: TraceScope, events: list[TraceEvent], is_cut: bool) -> Iterator[ImpossibleTransition]:
    """The impossible transitions of one scope. Where clocks leave a choice and one is possible, there are none."""
    shards = {event.shard for event in events}
    events.sort(key=lambda event: (0 if len(shards) == 1 else event.at, event.shard, event.sequence))
    if len(shards) > 1 and _has_order(scope, events, is_cut):
        return
    states = _begin(scope, is_cut)
    before: TraceEvent | None = None
    for event in events:
        after = _next(scope, states, event.step)
        if not after:
            yield ImpossibleTransition(before, event, TRANSITIONS[scope][event.step].why)
            after = frozenset(_with(scope, state, event.step) for state in states)
        states, before = after, event
        if len(states) > CHOICES:
            return


def _has_order(scope: TraceScope, events: Sequence[TraceEvent], is_cut: bool) -> bool:
    """Whether there is an order that the clocks allow, and that is possible."""
    lines = [
        sorted(each, key=attrgetter("sequence"))
        for _, each in groupby(sorted(events, key=attrgetter("shard")), attrgetter("shard"))
    ]
    reached: dict[tuple[int, ...], frozenset[State]] = {(0,) * len(lines): _begin(scope, is_cut)}
    for _ in events:
        further: dict[tuple[int, ...], frozenset[State]] = {}
        for places, states in reached.items():
            heads = [line[place] for line, place in zip(lines, places, strict=True) if place < len(line)]
            first = min(head.at for head in heads)
            for index, (line, place) in enumerate(zip(lines, places, strict=True)):
                if place == len(line) or line[place].at > first + SKEW:
                    continue
                if after := _next(scope, states, line[place].step):
                    moved = (*places[:index], place + 1, *places[index + 1 :])
                    further[moved] = further.get(moved, frozenset()) | after
        reached = further
        if sum(map(len, reached.values())) > CHOICES:
            return True
    return bool(reached)
