"""The ``x-death`` header, as RabbitMQ writes it.

One table per queue and reason, the newest first, with a count; ``x-first-death-queue``, ``-reason`` and
``-exchange`` beside it. A message that would come to a queue for the second time, with nothing but expiry and
length limits on the way, is dropped there: nobody would ever end that cycle.

Publishers can write the header themselves, so its values may be of any type and size. A count stops at the most that
64 bits hold. What is older than a rejection, which no cycle is made of, is cut off beyond :data:`HISTORY_MAX`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.amqp.message import Message, Properties
from gateway.amqp.values import INT64_MAX, Table, Timestamp, Typed, Value
from gateway.broker.arguments import plain, weight
from gateway.broker.queues import Entry

X_DEATH = "x-death"
HISTORY_MAX = 1 << 16
"""Bytes of the newest entries that are kept in any case, as :func:`~gateway.broker.arguments.weight` counts them."""


def with_death(entry: Entry, reason: str, seconds: int) -> Message:
    """A copy of the entry's message that tells how it died; ``seconds`` since 1970.

    Its ``expiration`` is taken off, or it would expire again, and kept in the header.
    """
    envelope = entry.envelope
    properties = envelope.message.properties
    headers: Table = dict(properties.headers) if properties.headers else {}
    death: Table = {
        "count": Typed("int64", 1),
        "reason": reason,
        "queue": entry.queue.name,
        "time": Timestamp(seconds),
        "exchange": envelope.exchange,
        "routing-keys": [envelope.routing_key],
    }
    if properties.expiration is not None:
        death["original-expiration"] = properties.expiration
    known = headers.pop(X_DEATH, None)
    if not isinstance(known, list):
        headers["x-first-death-exchange"] = envelope.exchange
        headers["x-first-death-queue"] = entry.queue.name
        headers["x-first-death-reason"] = reason
        known = []
    others: list[Any] = []
    for item in known:
        if (
            isinstance(item, dict)
            and plain(item.get("queue")) == entry.queue.name
            and plain(item.get("reason")) == reason
        ):
            death = {**item, "count": Typed("int64", _one_more(item.get("count")))}
        else:
            others.append(item)
    headers[X_DEATH] = _recent([death, *others])
    return envelope.message.altered(replace(properties, headers=headers, expiration=None))


def _one_more(count: Value) -> int:
    """The count of an entry after one more death; what is no count is 0."""
    known = plain(count)
    if not isinstance(known, int) or isinstance(known, bool):
        return 1
    return min(max(known, 0), INT64_MAX - 1) + 1


def _recent(deaths: list[Any]) -> list[Any]:
    """The entries, without those that are too old."""
    size, ended = 0, False
    for index, death in enumerate(deaths):
        size += weight(death)
        if ended and size > HISTORY_MAX:
            return deaths[:index]
        ended = ended or _ends_cycles(death)
    return deaths


def _ends_cycles(death: Any) -> bool:
    return not isinstance(death, dict) or plain(death.get("reason")) == "rejected"


def automatic_deaths(properties: Properties) -> set[str]:
    """The queues in which the message died since anybody rejected it last: it does not come to those again."""
    deaths = properties.headers.get(X_DEATH) if properties.headers else None
    been: set[str] = set()
    for death in deaths if isinstance(deaths, list) else ():
        if _ends_cycles(death):
            break
        queue = plain(death.get("queue"))
        if isinstance(queue, str):
            been.add(queue)
    return been
