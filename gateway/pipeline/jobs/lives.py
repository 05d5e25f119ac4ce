"""What each kind of event says about where a message is: one table, :data:`LIVES`.

A message has one *publish* at most, and *stays* in queues. A publish begins when the gateway takes the message and ends
with its outcome. A stay begins when the message is in a queue and ends when a consumer is done with it there; one that
takes it and gives it back, or keeps it in the ledger meanwhile, does not end the stay. A confirm ends the publish and
begins a stay; a bridge ends one stay and begins another.

So reconciling is counting: what began must have ended, once, or be where the ledger has it.

In which order events may follow each other is in :mod:`gateway.ledger.writing.transitions`.

A kind has one role for the publish and one for the stay. :data:`FLOWS` says who writes which kinds, and in which flow
of the gateway they begin, hold and end something; the tests drive a gateway through every flow and compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from gateway.ledger.writing.states import EventKind


class Role(StrEnum):
    """What an event does to a publish or a stay."""

    OPENS = "opens"
    """It begins."""
    HOLDS = "holds"
    """It goes on: somebody has the message in hand, or is going to."""
    ENDS = "ends"
    """It is over. A second end is a duplicate."""
    LEAVES = "leaves"
    """It is over, and the message may rightly come back: a broker may route what was rejected to the same queue
    again, and what is at a dead-letter place may be driven back. So a second one is no duplicate."""
    DOUBTS = "doubts"
    """It is over for now, without anybody knowing how. A later end counts."""
    NOTES = "notes"
    """It says nothing about that."""


class Life(NamedTuple):
    """What a kind means for a message's publish, and for its stay in a queue."""

    publish: Role
    stay: Role


LIVES: Final[Mapping[EventKind, Life]] = {
    EventKind.ACCEPTED:          Life(Role.OPENS, Role.NOTES),
    EventKind.SCHEDULED:         Life(Role.OPENS, Role.NOTES),
    EventKind.RESENT:            Life(Role.HOLDS, Role.NOTES),
    EventKind.CONFIRMED:         Life(Role.ENDS, Role.OPENS),
    EventKind.UNROUTABLE:        Life(Role.ENDS, Role.NOTES),
    EventKind.REFUSED:           Life(Role.ENDS, Role.NOTES),
    EventKind.NOT_SENT:          Life(Role.ENDS, Role.NOTES),
    EventKind.CANCELLED:         Life(Role.ENDS, Role.NOTES),
    EventKind.UNKNOWN:           Life(Role.DOUBTS, Role.NOTES),
    EventKind.RECEIVED:          Life(Role.NOTES, Role.HOLDS),
    EventKind.DELIVERED:         Life(Role.NOTES, Role.HOLDS),
    EventKind.EXTENDED:          Life(Role.NOTES, Role.HOLDS),
    EventKind.RELEASED:          Life(Role.NOTES, Role.HOLDS),
    EventKind.LEASE_EXPIRED:     Life(Role.NOTES, Role.HOLDS),
    EventKind.LEASE_LOST:        Life(Role.NOTES, Role.HOLDS),
    EventKind.STORED:            Life(Role.NOTES, Role.HOLDS),
    EventKind.PREPARED:          Life(Role.NOTES, Role.HOLDS),
    EventKind.ATTEMPT_FAILED:    Life(Role.NOTES, Role.HOLDS),
    EventKind.DEAD:              Life(Role.NOTES, Role.HOLDS),
    EventKind.REVIVED:           Life(Role.NOTES, Role.HOLDS),
    EventKind.ACKNOWLEDGED:      Life(Role.NOTES, Role.ENDS),
    EventKind.FORWARDED:         Life(Role.NOTES, Role.ENDS),
    EventKind.SPOOLED:           Life(Role.NOTES, Role.ENDS),
    EventKind.REJECTED:          Life(Role.NOTES, Role.LEAVES),
    EventKind.DISCARDED:         Life(Role.NOTES, Role.LEAVES),
    EventKind.DEAD_LETTERED:     Life(Role.NOTES, Role.LEAVES),
    EventKind.FILTERED:          Life(Role.NOTES, Role.LEAVES),
    EventKind.LOOPED:            Life(Role.NOTES, Role.LEAVES),
    EventKind.PURGED:            Life(Role.NOTES, Role.LEAVES),
    EventKind.REDUCED:           Life(Role.NOTES, Role.NOTES),
    EventKind.DUPLICATE_DROPPED: Life(Role.NOTES, Role.NOTES),
    EventKind.REPLIED:           Life(Role.NOTES, Role.NOTES),
    EventKind.REPLAYED:          Life(Role.NOTES, Role.LEAVES),
}  # fmt: skip
"""Kind -> its roles. ``forwarded`` ends a stay at the bridge's source and begins one at its target, and
``dead_lettered`` one at the dead-letter place; ``replayed`` ends that of a dead message, which the ledger gives up with
it, and is a copy otherwise."""


class Flow(NamedTuple):
    """A way through the gateway, and what each kind does there."""

    writes: str
    """Who writes it down."""
    roles: Mapping[EventKind, str]
    """Kind -> ``begins``, ``holds``, ``ends`` or ``notes``."""


def _flow(writes: str, text: str) -> Flow:
    """``text``: ``begins: a b | holds: c | ends: d | notes: e``."""
    roles = {}
    for part in text.split("|"):
        verb, _, kinds = part.partition(":")
        for kind in kinds.split():
            roles[EventKind(kind)] = verb.strip()
    return Flow(writes, roles)


FLOWS: Final[Mapping[str, Flow]] = {
    "publish": _flow(
        "gateway.core.publishing.publisher, gateway.core.publishing.keys",
        "begins: accepted | holds: resent | ends: confirmed unroutable refused not_sent unknown",
    ),
    "publish later": _flow(
        "gateway.core.publishing.outbox",
        "begins: scheduled | holds: resent | ends: confirmed unroutable refused not_sent cancelled",
    ),
    "pull": _flow(
        "gateway.core.leasing.broker_leases",
        "begins: received | holds: delivered extended released lease_expired lease_lost"
        " | ends: acknowledged rejected discarded filtered dead_lettered",
    ),
    "pull from the ledger": _flow(
        "gateway.core.sources.intake, gateway.core.leasing.ledger_leases, gateway.core.leasing.ledger_settling",
        "begins: stored | holds: delivered extended released lease_expired dead revived"
        " | ends: acknowledged discarded filtered dead_lettered purged | notes: duplicate_dropped",
    ),
    "push": _flow(
        "gateway.webhooks.attempts.outcomes, gateway.webhooks.pusher",
        "begins: received stored | holds: attempt_failed dead revived"
        " | ends: acknowledged filtered dead_lettered purged | notes: replied duplicate_dropped",
    ),
    "bridge": _flow(
        "gateway.bridges.journal, gateway.bridges.two_phase",
        "holds: prepared released | ends: forwarded filtered looped dead_lettered | notes: reduced duplicate_dropped",
    ),
    "replay": _flow(
        "gateway.replays.targets",
        "begins: confirmed | holds: resent revived | ends: replayed",
    ),
    "deliveries of a front": _flow(
        "gateway.front.records",
        "begins: received | holds: delivered released lease_lost | ends: acknowledged rejected",
    ),
    "tap": _flow(
        "gateway.taps",
        "ends: spooled filtered dead_lettered | notes: duplicate_dropped",
    ),
}
"""Flow -> what is written in it. ``begins`` is what the flow writes first about a message that it takes on."""


def kinds(*, publish: Role | None = None, stay: Role | None = None) -> tuple[str, ...]:
    """The kinds of these roles, as the ledger writes them."""
    return tuple(
        kind.value
        for kind, life in LIVES.items()
        if (publish is None or life.publish is publish) and (stay is None or life.stay is stay)
    )


FINAL: Final = tuple(
    kind.value
    for kind, life in LIVES.items()
    if life.publish in (Role.ENDS, Role.DOUBTS)
    or (life.stay in (Role.ENDS, Role.LEAVES) and kind is not EventKind.REPLAYED)
)
"""The kinds after which a publish or a stay is over: what latencies are taken of."""
