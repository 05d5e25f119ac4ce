"""What the ledger tells of a dead letter, as the object that messages of dead-letter queues have, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.fidelity.deaths import Death, code_of
from gateway.ledger import BacklogEntry, EventKind, MessageState, RecordedEvent, StoredMessage
from gateway.notation.dead_letters import DeadLetter, dead_letter_json

ORIGIN: Final = "from"
"""Member of the detail of an event and of the reason of a row: where the dead letter came from."""
_KINDS: Final = frozenset({EventKind.DEAD, EventKind.DEAD_LETTERED, EventKind.REJECTED})
_STATES: Final = frozenset({MessageState.DEAD, MessageState.DEAD_LETTERED, MessageState.REJECTED})


def of_delivery(row: BacklogEntry) -> DeadLetter | None:
    """Return why a delivery is dead; None: it is not."""
    return _told(row.reason, row.reason.get("at")) if row.dead else None


def of_message(
    message: StoredMessage, events: Sequence[RecordedEvent], deliveries: Sequence[BacklogEntry]
) -> DeadLetter | None:
    """Return why a message is a dead letter; None: it is no dead letter now."""
    for delivery in deliveries:
        if delivery.dead:
            return of_delivery(delivery)
    event = next((event for event in reversed(events) if event.kind in _KINDS), None)
    if event is None or message.state not in _STATES:
        return None
    told = event.detail
    if ORIGIN not in told:  # an event of an earlier version, or of a native rejection
        origin = {"queue": told.get("queue") or _queue_before(events, event)}
        if event.broker == message.broker:
            origin |= {"exchange": message.exchange, "routing_key": message.routing_key}
        told = {"code": "rejected" if event.kind is EventKind.REJECTED else "", **told, ORIGIN: origin}
    return _told(told, event.at)


def _queue_before(events: Sequence[RecordedEvent], event: RecordedEvent) -> Any:
    """The queue that the subscription of an event had it from."""
    name = event.detail.get("subscription")
    found = [each.detail.get("queue") for each in events if each.detail.get("subscription") == name and name]
    return next((queue for queue in reversed(found) if queue), None)


def _told(told: Mapping[str, Any], at: Any) -> DeadLetter:
    """``at``: microseconds since 1970."""
    origin = told.get(ORIGIN)
    names = origin if isinstance(origin, Mapping) else {}
    exchange, routing_key, queue = (
        value if isinstance(value := names.get(name), str) else None for name in ("exchange", "routing_key", "queue")
    )
    reason = told.get("reason") or told.get("text")
    return dead_letter_json(
        Death(
            code_of(str(told.get("code", ""))),
            reason if isinstance(reason, str) else None,
            exchange,
            routing_key,
            queue,
            at=at / 1e6 if isinstance(at, int) else None,
        )
    )
