"""A queue as any source describes it. What a source does not tell, or tells in an unexpected form, is None."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

import msgspec

NAME_MAX: Final = 255
"""Longest name of a queue, exchange or routing key, in bytes."""
WORD_MAX: Final = 64
"""Longest state or type, in characters."""
WORDS_KEPT: Final = 64
"""How many states and types are kept in lower case: there are few."""
CONSUMERS_MAX: Final = 20
"""Most consumers of a queue that are listed."""
COUNT_MAX: Final = 1 << 63
"""Counts from here on are not believed."""


class QueueRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One queue. None: not known."""

    name: str
    vhost: str
    depth: int | None = None
    """Messages in the queue, those that are out for an acknowledgement included."""
    ready: int | None = None
    """Messages that wait for a consumer."""
    unacknowledged: int | None = None
    """Messages that are out for an acknowledgement."""
    bytes: int | None = None
    """Size of the bodies."""
    consumers: int | None = None
    publish_rate: float | None = None
    """Messages per second that come in."""
    deliver_rate: float | None = None
    """Messages per second that go out, also those that are fetched."""
    ack_rate: float | None = None
    """Acknowledgements per second."""
    state: str | None = None
    """In the broker's own word."""
    type: str | None = None
    """In the broker's own word."""
    durable: bool | None = None
    auto_delete: bool | None = None
    exclusive: bool | None = None
    dead_letters: bool | None = None
    """Whether messages that it drops or rejects go somewhere."""
    dead_letter_exchange: str | None = None
    """Where they go: an exchange; of Broker-J the destination of the alternate binding, which may be a queue."""
    dead_letter_routing_key: str | None = None
    """The key they get, where it is not their own."""


def count_of(value: Any) -> int | None:
    """A count of an answer; None: it is not one."""
    return value if type(value) is int and 0 <= value < COUNT_MAX else None


def rate_of(value: Any) -> float | None:
    """A rate of an answer, to a hundredth; None: it is not one."""
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value < COUNT_MAX:
        return None
    return round(float(value), 2)


def flag_of(value: Any) -> bool | None:
    """A truth value of an answer; None: it is not one."""
    return value if type(value) is bool else None


def word_of(value: Any) -> str | None:
    """A short word of an answer in lower case; None: it is not one."""
    return _lower(value) if isinstance(value, str) and 0 < len(value) <= WORD_MAX else None


@lru_cache(WORDS_KEPT)
def _lower(word: str) -> str | None:
    return word.lower() if word.isprintable() else None


def text_of(value: Any) -> str:
    """A text of an answer, at most :data:`NAME_MAX` characters of it; empty: it is not one."""
    return value[:NAME_MAX].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def name_of(value: Any) -> str | None:
    """A name of AMQP, which may be empty; None: it is not one."""
    if not isinstance(value, str) or len(value) > NAME_MAX:
        return None
    try:
        return value if len(value.encode()) <= NAME_MAX else None
    except UnicodeEncodeError:  # a lone surrogate
        return None


def member(value: Any, *names: str) -> Any:
    """What lies in nested objects under these names; None: there is no such member."""
    for name in names:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


class QueueConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer of a queue, as a management API lists it."""

    tag: str
    user: str
    connection: str
    """Name of its connection: its addresses in RabbitMQ, the client's in Broker-J; empty: it is not told."""
    prefetch: int | None
    unacknowledged: int | None
    """Messages that it holds, in RabbitMQ those of its channel, of all queues; None: that is not told."""


class QueueDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One queue, with what a list of queues leaves out."""

    row: QueueRow
    return_risk: str
    """Why a message that is taken and given back may be lost or count as failed, as a sentence; empty: it may not."""
    consumers: list[QueueConsumer] | None = None
    """Who consumes, at most :data:`CONSUMERS_MAX`; None: that is not told."""


class QueueList(msgspec.Struct, frozen=True):
    """The queues of one virtual host."""

    rows: list[QueueRow]
    reason: str = ""
    """Why the list lacks something, as a sentence; empty: it does not."""


class Collected:
    """Rows as they come page by page: each name once, at most ``rows_max`` of them, in memory of bounded size."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._rows: dict[str, QueueRow] = {}
        self._unreadable = 0
        self._has_more = False

    @property
    def is_full(self) -> bool:
        """Whether nothing more is taken."""
        return self._has_more

    def add(self, row: QueueRow | None) -> None:
        """Take a row; None: there was one that could not be read. A row that comes again replaces the first."""
        if row is None:
            self._unreadable += 1
        elif row.name in self._rows or len(self._rows) < self._rows_max:
            self._rows[row.name] = row
        else:
            self._has_more = True

    def list(self, problem: str = "") -> QueueList:
        """Return what has come. ``problem``: why the rest did not."""
        reasons = []
        if self._has_more:
            reasons.append(f"The list ends after {self._rows_max:,} queues, which is as many as the gateway keeps.")
        if self._unreadable:
            reasons.append(f"{self._unreadable:,} queues have a name that cannot be read and are left out.")
        if problem:
            reasons.append(f"The list is not complete: {problem}")
        return QueueList(list(self._rows.values()), " ".join(reasons))

    def __len__(self) -> int:
        return len(self._rows)
