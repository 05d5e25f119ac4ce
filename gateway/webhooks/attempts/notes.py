"""Entries of a push in the ledger: events, and rows for what is to be tried again. Rules without I/O."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from gateway.core.sources.arrivals import Arrival, Arrivals, printable
from gateway.core.sources.dead_letters import DeadLetterDestination, died
from gateway.ledger import EventKind, LogEntry
from gateway.ledger.pending.owed import BacklogSettlement, Ending, Owed
from gateway.webhooks.attempts.items import PushDelivery
from gateway.webhooks.attempts.sender import SendOutcome

REASON_MAX = 500
"""Longest reason in an event and in a row, in characters."""


class Notes:
    """The events of one subscription."""

    def __init__(self, arrivals: Arrivals, endpoint: str) -> None:
        self._arrivals = arrivals
        self._endpoint = endpoint

    def detail(self, item: PushDelivery, outcome: SendOutcome | None, **more: Any) -> dict[str, Any]:
        """What every event of an attempt says."""
        found: dict[str, Any] = {
            "subscription": self._arrivals.name,
            "endpoint": self._endpoint,
            "attempt": item.attempt,
        }
        if outcome is not None:
            found["seconds"] = round(outcome.seconds, 3)
            if outcome.status is not None:
                found["status"] = outcome.status
            if outcome.excerpt:
                found["response_body"] = outcome.excerpt
        if item.redelivered:
            found["redelivered"] = True
        return {**found, **more}

    def entry(self, item: PushDelivery, kind: EventKind, at: int, detail: dict[str, Any]) -> LogEntry:
        """An event. Of what the broker holds the ledger may not know the message yet."""
        arrival, arrivals = item.arrival, self._arrivals
        return LogEntry(
            item.message_id,
            kind,
            at,
            arrivals.broker,
            arrivals.version,
            detail,
            arrivals.message(arrival) if arrival is not None else None,
        )

    def entries(self, item: PushDelivery, kind: EventKind, at: int, detail: dict[str, Any]) -> list[LogEntry]:
        """The event, and before it that the message came, where nobody told yet."""
        entry = self.entry(item, kind, at, detail)
        if item.arrival is None or not item.arrival.first:
            return [entry]
        return [
            LogEntry(item.message_id, EventKind.RECEIVED, at, entry.broker, entry.version, None, entry.message),
            entry,
        ]

    def died(self, item: PushDelivery, code: str) -> dict[str, Any]:
        """What events and rows say of a message that is given up, beside the reason."""
        arrivals = self._arrivals
        return died(code, arrivals.broker, arrivals.queue, item.exchange, item.routing_key)

    def dead_lettered(
        self, item: PushDelivery, at: int, reason: str, place: DeadLetterDestination, code: str
    ) -> list[LogEntry]:
        """The dead-letter place has it."""
        detail = self.detail(
            item,
            None,
            reason=short(reason),
            to=place.broker,
            exchange=printable(place.exchange),
            routing_key=printable(place.routing_key),
            **self.died(item, code),
        )
        return self.entries(item, EventKind.DEAD_LETTERED, at, detail)

    def owed(
        self, item: PushDelivery, arrival: Arrival, at: int, wait: float, reason: dict[str, Any], *, dead: bool = False
    ) -> Owed:
        """The row for what the broker held until now. Due ``wait`` seconds after ``at``."""
        return structs.replace(
            self._arrivals.owed(arrival, at),
            id=item.id,
            due_at=at + int(wait * 1_000_000),
            attempt=item.attempt,
            dead=dead,
            reason=reason,
        )


def reason_of(item: PushDelivery, why: str, at: int, **more: Any) -> dict[str, Any]:
    """What a row says of its last attempt."""
    mark = {"resent": True} if item.reason.get("resent") is True else {}
    return {"reason": short(why), "attempt": item.attempt, "at": at, **mark, **more}


def ended(item: PushDelivery, ending: Ending, *entries: LogEntry, **fields: Any) -> BacklogSettlement:
    """The settlement of a row that is out with us."""
    goes = item.size if ending is Ending.DONE else 0
    return BacklogSettlement(item.id, ending, item.lease, entries=entries, octets=goes, **fields)


def short(text: str) -> str:
    """``text`` as JSON can hold it, and no longer than that."""
    return printable(text)[:REASON_MAX]
