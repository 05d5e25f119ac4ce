"""What a message tells of its death: why it is a dead letter, when that was, and where it came from.

Two writers tell it in headers. The gateway writes ``reason``, ``code``, ``at``, ``queue``, ``exchange`` and
``routing_key`` into the reserved header of each dead letter that it publishes. RabbitMQ and the embedded broker write
``x-death``, the newest entry first, and ``x-first-death-…``, which is read where there is no such entry. Where both
writers tell of a death, the later one counts.

Anybody who may publish can write these headers. So values of odd types count as absent, and a caller that
acts on a :class:`Death` checks it first.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from gateway.amqp.values import Value
from gateway.fidelity.reserved import entry_of

X_DEATH: Final = "x-death"
FIRST_DEATH: Final = "x-first-death-"
"""Prefix of the headers beside it."""
LAST_DEATH: Final = "x-last-death-"
"""Prefix of those that RabbitMQ writes from release 4 on."""
UNKNOWN: Final = "unknown"
CODES: Final[Mapping[str, str]] = {
    "rejected": "a consumer rejected it",
    "expired": "its time to live ran out",
    "maxlen": "its queue was at the length limit",
    "delivery_limit": "it was handed out as often as the queue or the subscription allows",
    "attempts_exhausted": "its endpoint did not accept it within the retry schedule",
    "dropped_by_receiver": "the receiver of the webhook asked to drop it",
    "undeliverable": "the format of its endpoint cannot carry it",
    "filtered": "the filter of the subscription or the bridge does not match it",
    "looped": "it passed the bridge before, or too many bridges",
    "lossy": "the target of a strict bridge cannot carry all of it",
    "not_forwarded": "the target of the bridge refused it, or it cannot be written for the target",
    "not_stored": "the ledger cannot hold it",
    "damaged": "the copy in the ledger cannot be read",
    UNKNOWN: "nothing says why",
}
"""Code of a dead letter -> what it means. The first four are the words of RabbitMQ. Codes are stable."""

_LATEST: Final = 253_402_300_799
"""9999-12-31T23:59:59Z, in seconds since 1970."""


class Death(NamedTuple):
    """How a message died. None: that is not told."""

    code: str
    """One of :data:`CODES`."""
    reason: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    queue: str | None = None
    broker: str | None = None
    at: float | None = None
    """In seconds since 1970."""


def death_of(headers: Mapping[str, Value] | None) -> Death | None:
    """Return the latest death that the headers tell of; None where the message is no dead letter."""
    if not headers:
        return None
    ours, native = told_by_gateway(headers), told_by_broker(headers) or _told(headers, FIRST_DEATH)
    if ours is None or ours.reason is None:
        return native
    if native is None:
        return ours
    # A broker tells whole seconds. What it wrote before the gateway's copy is held in the reserved header.
    earlier = native.at is not None and ours.at is not None and native.at < int(ours.at)
    return ours if earlier else native


def told_by_gateway(headers: Mapping[str, Value]) -> Death | None:
    """Return what the reserved header tells; None where it tells neither a reason nor an origin."""
    entry = entry_of(headers)
    reason, queue, exchange = (_text(entry.get(name)) for name in ("reason", "queue", "exchange"))
    if reason is None and not queue and exchange is None:
        return None
    return Death(
        code_of(_text(entry.get("code"))),
        reason,
        exchange,
        _text(entry.get("routing_key")),
        queue,
        _text(entry.get("broker")),
        _parsed(_text(entry.get("at"))),
    )


def told_by_broker(headers: Mapping[str, Value]) -> Death | None:
    """Return what the newest entry of ``x-death`` tells; None where it is missing."""
    deaths = _plain(headers.get(X_DEATH))
    death = _plain(deaths[0]) if isinstance(deaths, list) and deaths else None
    return _told(death) if isinstance(death, dict) else None


def code_of(word: str | None) -> str:
    """Return the code that a word stands for; ``unknown`` where it is no code."""
    return word if word in CODES and word is not None else UNKNOWN


def written(at: float) -> str:
    """Return a time (seconds since 1970) as RFC 3339, in the way that the reserved header has it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _told(table: Mapping[str, Value], prefix: str = "") -> Death | None:
    reason, queue = _text(table.get(f"{prefix}reason")), _text(table.get(f"{prefix}queue"))
    if reason is None and not queue:
        return None
    keys, at = (None, None) if prefix else (_plain(table.get("routing-keys")), _plain(table.get("time")))
    return Death(
        code_of(reason),
        CODES.get(reason, reason) if reason is not None else None,
        _text(table.get(f"{prefix}exchange")),
        _text(keys[0]) if isinstance(keys, list) and keys else None,
        queue,
        at=float(at) if isinstance(at, int) and not isinstance(at, bool) and 0 <= at <= _LATEST else None,
    )


def _parsed(text: str | None) -> float | None:
    if text is None or len(text) > 40:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    seconds = at.timestamp() if at.tzinfo is not None else -1.0
    return seconds if 0 <= seconds <= _LATEST else None


def _plain(value: Value) -> Any:
    return getattr(value, "value", value)


def _text(value: Any) -> str | None:
    value = _plain(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value if isinstance(value, str) else None
