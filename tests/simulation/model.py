"""What may follow what on the way of one message to its broker: a table that judges the events of a ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gateway.ledger.writing.states import RULES, EventKind, MessagePhase

ENDS: Final = frozenset({EventKind.CONFIRMED, EventKind.UNROUTABLE, EventKind.REFUSED, EventKind.NOT_SENT})
"""Outcomes that stand: nobody sends the message again."""
ASKED: Final = ENDS | {EventKind.UNKNOWN, EventKind.RESENT}
NEXT: Final[Mapping[EventKind | None, frozenset[EventKind]]] = {
    None: ASKED | {EventKind.ACCEPTED, EventKind.SCHEDULED},
    EventKind.SCHEDULED: ASKED | {EventKind.CANCELLED},
    EventKind.ACCEPTED: ASKED,
    EventKind.RESENT: ASKED,
    EventKind.UNKNOWN: frozenset({EventKind.RESENT}),
    EventKind.CONFIRMED: frozenset(),
    EventKind.UNROUTABLE: frozenset(),
    EventKind.REFUSED: frozenset(),
    EventKind.NOT_SENT: frozenset(),
    EventKind.CANCELLED: frozenset(),
}
"""Last event of the publish -> those that may follow; None: there was none yet."""
COPIES: Final = NEXT | {EventKind.CONFIRMED: frozenset({EventKind.RESENT})}
"""The same of a message of a replay: copies of one message have one id there, and the second is ``resent``."""


def impossible(
    kinds: Iterable[EventKind], table: Mapping[EventKind | None, frozenset[EventKind]] = NEXT
) -> Sequence[tuple[EventKind | None, EventKind]]:
    """Return the transitions of a message's publish that the table does not have. ``kinds``: all its events, the
    oldest first; those of consumers say nothing of the publish."""
    last: EventKind | None = None
    found = []
    for kind in kinds:
        if RULES[kind].phase is not MessagePhase.PUBLISH or kind is EventKind.DUPLICATE_DROPPED:
            continue
        if kind not in table[last]:
            found.append((last, kind))
        last = kind
    return found
