"""How keys end: what their messages' outcomes come to, what is known of messages that had one before, and telling the
ledger however long it takes.

A key ends ``final`` with an answer that every repeat gets; ``free``, where the broker kept nothing and a repeat may
succeed; or ``unknown``, which is no end: a repeat sends its messages again, with the same ids, marked ``resent``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from gateway.core.publishing.publisher import PublishOutcome
from gateway.errors import EntriesRefused, GatewayError, LedgerUnavailable, OutcomeUnknown, error_of
from gateway.ledger import EndedKey, EventKind, KeyLost, Ledger, Timeline, id_text
from gateway.observing.telemetry import log
from gateway.runtime.backoff import Backoff

LATE_CONFIRM: Final = 10.0
"""How many times the confirm time-out a keyed publish stays pending, for repeats to join."""
PAUSE_MIN, PAUSE_MAX = 0.1, 5.0
"""Pause before the ledger is tried again, in seconds; doubled each time. Each pause is a line for debugging only: the
ledger itself says once that it cannot be written, and hundreds of answers may wait for it."""
_RECORDED_ERRORS = frozenset({EventKind.UNROUTABLE, EventKind.REFUSED, EventKind.NOT_SENT, EventKind.UNKNOWN})


def finality(results: Sequence[PublishOutcome]) -> str:
    """``unknown`` with any unknown outcome; ``free`` where nothing was kept by the broker and a repeat may
    succeed; else ``final``."""
    errors = [result.error for result in results]
    if any(error is not None and error.outcome == "unknown" for error in errors):
        return "unknown"
    if errors and all(error is not None and error.retryable for error in errors):
        return "free"
    return "final"


def stay_unknown(results: Sequence[PublishOutcome]) -> None:
    """Of what was sent again: the earlier attempt may have arrived, even if this one was not sent, or was refused for
    now."""
    for result in results:
        error = result.error
        if error is not None and (error.outcome == "not_sent" or error.retryable) and error.outcome != "unknown":
            result.error = OutcomeUnknown(f"an earlier attempt has no outcome, and this one failed: {error}")


async def known(ledger: Ledger, message_id: bytes) -> PublishOutcome:
    """The outcome of a message that was settled before an answer could be kept. Waits for a ledger that is away."""
    result = PublishOutcome(id_text(message_id))
    timeline = await _timeline(ledger, message_id)
    for event in timeline.events if timeline is not None else ():
        if event.kind is EventKind.RESENT:
            result.resent = True
        elif event.kind is EventKind.CONFIRMED:
            result.routed, result.error = True, None
        elif event.kind is EventKind.UNROUTABLE and event.detail.get("mandatory") is False:
            result.routed, result.error = False, None
        elif event.kind in _RECORDED_ERRORS:
            result.routed = False
            result.error = error_of(str(event.detail.get("code", "")), str(event.detail.get("text", "")))
    return result


async def _timeline(ledger: Ledger, message_id: bytes) -> Timeline | None:
    """The timeline of a message, as soon as the ledger can be read."""
    backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
    while True:
        try:
            return await ledger.timeline(message_id)
        except LedgerUnavailable as error:
            log("ledger.answer_waits", logging.DEBUG, detail=str(error))
            await backoff.wait()


def disown(results: Sequence[PublishOutcome]) -> None:
    """Of messages whose key another process has taken over: it sends them again, so a failure here is no outcome."""
    for result in results:
        if result.error is not None:
            why = "another process has taken over the key and sends the message again"
            result.error, result.key = OutcomeUnknown(f"{why}; this attempt failed: {result.error}"), ""


async def insist(ledger: Ledger, client: str, ended: Sequence[EndedKey]) -> set[str]:
    """Tell the ledger how keys end, again until it is written, or a key is found to be another's. Where events cannot
    be stored, a key ends without them. Returns the keys that are another's."""
    lost: set[str] = set()
    backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
    while ended:
        try:
            errors = await ledger.keyring.end(client, ended)
        except LedgerUnavailable as error:
            errors = [error] * len(ended)
        lost.update(each.key for each, error in zip(ended, errors, strict=True) if isinstance(error, KeyLost))
        ended, away = _left(ended, errors)
        if ended and away is not None:
            log("ledger.answer_waits", logging.DEBUG, count=len(ended), detail=str(away))
            await backoff.wait()
    return lost


def _left(
    ended: Sequence[EndedKey], errors: Sequence[GatewayError | None]
) -> tuple[list[EndedKey], LedgerUnavailable | None]:
    """What is to be tried again; and why it must wait, if it must."""
    left: list[EndedKey] = []
    away: LedgerUnavailable | None = None
    for each, error in zip(ended, errors, strict=True):
        if isinstance(error, KeyLost):
            log("ledger.key_lost", logging.WARNING, detail=str(error))
        elif isinstance(error, LedgerUnavailable):
            away = error
            left.append(each)
        elif isinstance(error, EntriesRefused) and each.entries:
            log("ledger.events_refused", logging.ERROR, detail=str(error))
            left.append(each._replace(entries=()))
        elif error is not None:
            raise error
    return left, away
