"""What can happen to a message, and the state each event leaves it in: one table.

The ledger never updates a message. It appends events, and the state is read off them: an event belongs to a
:class:`MessagePhase`, and the state is that of the last event of the latest phase that the message has reached. So a
confirm that is written after a fast consumer's acknowledgement does not move the message back, and a release
followed by another delivery does move it.

An event may also open or settle an *obligation*: a row of a plain table that says that an answer is still owed.
``accepted`` opens one unless the same commit settles it; what a process leaves open when it dies is in doubt and
is resolved by its successor, so that nothing stays ``accepted`` for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, StrEnum
from typing import NamedTuple


class EventKind(StrEnum):
    """The kinds of event."""

    ACCEPTED = "accepted"
    """A publish was taken over HTTP, a bridge or a replay; the broker is about to be asked."""
    RESENT = "resent"
    """Sent to the broker again after an unknown outcome; a possible duplicate."""
    CONFIRMED = "confirmed"
    """The broker took responsibility."""
    UNROUTABLE = "unroutable"
    """No queue took it; the broker kept nothing."""
    REFUSED = "refused"
    """The broker refused it, or the exchange does not exist."""
    NOT_SENT = "not_sent"
    """The broker was absent or blocked, or the message could not be encoded; nothing was written."""
    UNKNOWN = "unknown"
    """Written to the broker, and no outcome came: it may or may not be there."""
    RECEIVED = "received"
    """A message that did not come through the gateway was taken from a broker for the first time."""
    DELIVERED = "delivered"
    """Handed to a consumer, under a lease."""
    EXTENDED = "extended"
    """The consumer asked for more time."""
    ACKNOWLEDGED = "acknowledged"
    """The consumer is done with it, and it was acknowledged to the broker."""
    RELEASED = "released"
    """Given back to the queue."""
    REJECTED = "rejected"
    """Rejected by the consumer, and dead-lettered by the broker."""
    DISCARDED = "discarded"
    """Dropped because the consumer rejected it with ``discard``: it is gone."""
    DEAD_LETTERED = "dead_lettered"
    """A copy was published to the dead-letter place and confirmed there."""
    LEASE_EXPIRED = "lease_expired"
    """The consumer said nothing in time; given back to the queue."""
    LEASE_LOST = "lease_lost"
    """The channel that held the delivery died; the broker delivers it again."""
    PREPARED = "prepared"
    """A bridge published it at its target in a branch of a distributed transaction, which is prepared there. From this
    event on the branch is to be committed in any case."""
    FORWARDED = "forwarded"
    """A bridge published it at its target, where it was confirmed."""
    REDUCED = "reduced"
    """Forwarded by a bridge, without something that the target's version cannot carry."""
    DUPLICATE_DROPPED = "duplicate_dropped"
    """Delivered once more to a bridge that had forwarded it, or to a subscription or tap whose ledger has it, and
    dropped. It says nothing of what became of the message since."""
    FILTERED = "filtered"
    """Discarded by a bridge, whose selector it did not match."""
    LOOPED = "looped"
    """Discarded by a bridge, which it had passed before, or because it had passed too many."""
    STORED = "stored"
    """Taken into the ledger for a subscription, where it is pending from then on; it was acknowledged to the broker."""
    SPOOLED = "spooled"
    """Taken into the message log by a tap; it was acknowledged to the broker."""
    ATTEMPT_FAILED = "attempt_failed"
    """An attempt to push it failed; there will be another one."""
    DEAD = "dead"
    """Given up after its last attempt or delivery, or rejected: the ledger keeps it, with its reason."""
    REVIVED = "revived"
    """Dead, and to be tried again because somebody asked for that."""
    PURGED = "purged"
    """Deleted by somebody, with what the ledger still owed or kept of it."""
    REPLIED = "replied"
    """What the endpoint answered was published to the message's reply-to."""
    REPLAYED = "replayed"
    """A replay sent it once more; what it became is in the detail."""
    SCHEDULED = "scheduled"
    """Taken over HTTP to be published later; the ledger holds it."""
    CANCELLED = "cancelled"
    """Was to be published later, and somebody took that back."""


class MessageState(StrEnum):
    """The states of a message."""

    ACCEPTED = "accepted"
    CONFIRMED = "confirmed"
    UNROUTABLE = "unroutable"
    REFUSED = "refused"
    NOT_SENT = "not_sent"
    UNKNOWN = "unknown"
    RECEIVED = "received"
    DELIVERED = "delivered"
    ACKNOWLEDGED = "acknowledged"
    RELEASED = "released"
    REJECTED = "rejected"
    DEAD_LETTERED = "dead_lettered"
    PREPARED = "prepared"
    FORWARDED = "forwarded"
    DISCARDED = "discarded"
    STORED = "stored"
    SPOOLED = "spooled"
    RETRYING = "retrying"
    DEAD = "dead"
    REPLAYED = "replayed"
    SCHEDULED = "scheduled"
    CANCELLED = "cancelled"


class MessagePhase(IntEnum):
    """Where on its way a message is. Events of an earlier phase that are written late change nothing."""

    PUBLISH = 0
    """Between the gateway and the broker it publishes to."""
    CONSUME = 1
    """Between a broker's queue and a consumer."""


class Effect(StrEnum):
    """What an event does to the obligation of its message."""

    NONE = "none"
    OPENS = "opens"
    """An answer is pending from now on."""
    SETTLES = "settles"
    """Nothing is pending any more."""
    PARKS = "parks"
    """With an Idempotency-Key the message is kept, so that a repeat can send it again; without, it settles."""


class EventRule(NamedTuple):
    """What one kind of event means."""

    phase: MessagePhase
    state: MessageState
    effect: Effect = Effect.NONE


RULES: dict[EventKind, EventRule] = {
    EventKind.ACCEPTED:          EventRule(MessagePhase.PUBLISH, MessageState.ACCEPTED, Effect.OPENS),
    EventKind.RESENT:            EventRule(MessagePhase.PUBLISH, MessageState.ACCEPTED),
    EventKind.CONFIRMED:         EventRule(MessagePhase.PUBLISH, MessageState.CONFIRMED, Effect.SETTLES),
    EventKind.UNROUTABLE:        EventRule(MessagePhase.PUBLISH, MessageState.UNROUTABLE, Effect.SETTLES),
    EventKind.REFUSED:           EventRule(MessagePhase.PUBLISH, MessageState.REFUSED, Effect.SETTLES),
    EventKind.NOT_SENT:          EventRule(MessagePhase.PUBLISH, MessageState.NOT_SENT, Effect.SETTLES),
    EventKind.UNKNOWN:           EventRule(MessagePhase.PUBLISH, MessageState.UNKNOWN, Effect.PARKS),
    EventKind.RECEIVED:          EventRule(MessagePhase.CONSUME, MessageState.RECEIVED),
    EventKind.DELIVERED:         EventRule(MessagePhase.CONSUME, MessageState.DELIVERED),
    EventKind.EXTENDED:          EventRule(MessagePhase.CONSUME, MessageState.DELIVERED),
    EventKind.ACKNOWLEDGED:      EventRule(MessagePhase.CONSUME, MessageState.ACKNOWLEDGED),
    EventKind.RELEASED:          EventRule(MessagePhase.CONSUME, MessageState.RELEASED),
    EventKind.REJECTED:          EventRule(MessagePhase.CONSUME, MessageState.REJECTED),
    EventKind.DISCARDED:         EventRule(MessagePhase.CONSUME, MessageState.DISCARDED),
    EventKind.DEAD_LETTERED:     EventRule(MessagePhase.CONSUME, MessageState.DEAD_LETTERED),
    EventKind.LEASE_EXPIRED:     EventRule(MessagePhase.CONSUME, MessageState.RELEASED),
    EventKind.LEASE_LOST:        EventRule(MessagePhase.CONSUME, MessageState.RELEASED),
    EventKind.PREPARED:          EventRule(MessagePhase.CONSUME, MessageState.PREPARED),
    EventKind.FORWARDED:         EventRule(MessagePhase.CONSUME, MessageState.FORWARDED),
    EventKind.REDUCED:           EventRule(MessagePhase.CONSUME, MessageState.FORWARDED),
    EventKind.DUPLICATE_DROPPED: EventRule(MessagePhase.PUBLISH, MessageState.FORWARDED),
    EventKind.FILTERED:          EventRule(MessagePhase.CONSUME, MessageState.DISCARDED),
    EventKind.LOOPED:            EventRule(MessagePhase.CONSUME, MessageState.DISCARDED),
    EventKind.STORED:            EventRule(MessagePhase.CONSUME, MessageState.STORED),
    EventKind.SPOOLED:           EventRule(MessagePhase.CONSUME, MessageState.SPOOLED),
    EventKind.ATTEMPT_FAILED:    EventRule(MessagePhase.CONSUME, MessageState.RETRYING),
    EventKind.DEAD:              EventRule(MessagePhase.CONSUME, MessageState.DEAD),
    EventKind.REVIVED:           EventRule(MessagePhase.CONSUME, MessageState.STORED),
    EventKind.PURGED:            EventRule(MessagePhase.CONSUME, MessageState.DISCARDED),
    EventKind.REPLIED:           EventRule(MessagePhase.CONSUME, MessageState.ACKNOWLEDGED),
    EventKind.REPLAYED:          EventRule(MessagePhase.CONSUME, MessageState.REPLAYED),
    EventKind.SCHEDULED:         EventRule(MessagePhase.PUBLISH, MessageState.SCHEDULED),
    EventKind.CANCELLED:         EventRule(MessagePhase.PUBLISH, MessageState.CANCELLED),
}  # fmt: skip

PHASES: dict[MessageState, MessagePhase] = {
    state: max(rule.phase for rule in RULES.values() if rule.state is state) for state in MessageState
}

TRANSITIONS: dict[MessageState | None, dict[EventKind, MessageState]] = {
    before: {
        kind: rule.state if before is None or rule.phase >= PHASES[before] else before for kind, rule in RULES.items()
    }
    for before in (None, *MessageState)
}
"""State and event -> next state; None is a message of which nothing is known yet."""

LATE_KINDS: tuple[EventKind, ...] = tuple(
    kind for kind, rule in RULES.items() if rule.phase is not MessagePhase.PUBLISH
)
"""The kinds that outrank every event of the publish phase."""


def state_of(kinds: Iterable[EventKind]) -> MessageState | None:
    """The state after these events, oldest first. None: no events."""
    state: MessageState | None = None
    for kind in kinds:
        state = TRANSITIONS[state][kind]
    return state


def kinds_of(state: MessageState) -> tuple[EventKind, ...]:
    """The kinds of event that lead to ``state``."""
    return tuple(kind for kind, rule in RULES.items() if rule.state is state)
