"""The publishes of one client channel that have no outcome yet, and what brokers say of them.

Publishes are numbered from 1 from confirm.select (or tx.select) on; brokers acknowledge those numbers. The window
keeps what is pending in order, so that an acknowledgement of many is one walk from the front, and one out of order
leaves a gap.

Two orders exist when a message could not be routed. RabbitMQ: basic.return, then the ack that covers it. Broker-J:
basic.nack, then basic.return; a nack is therefore held until the next method on the channel says which it was, or
:data:`NACK_PATIENCE` is over. basic.return carries no number: it belongs to the oldest publish with the same
exchange, key, properties and body (then: body; then: the oldest of that exchange and key, as brokers may have
touched the rest).
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from gateway.amqp.operations import Publish
from gateway.errors import FrameSyntaxError

NACK_PATIENCE: Final = 0.5
"""How long a held nack waits for its basic.return, in seconds: the two are written together."""
REMEMBERED_MAX: Final = 1_024
"""How many publishes without confirms are remembered for a basic.return."""


class Pending(NamedTuple):
    """A publish without an outcome."""

    serial: int
    publish: Publish
    octets: bytes
    """The content properties as they were sent."""


class ConfirmWindow:
    """Publishes that wait for an acknowledgement."""

    __slots__ = ("_entries", "_first", "nacked")

    def __init__(self) -> None:
        self._entries: deque[Pending | None] = deque()
        self._first = 1
        self.nacked: list[Pending] = []
        """Refused, and perhaps about to be returned."""

    @property
    def last(self) -> int:
        """The number of the newest publish."""
        return self._first + len(self._entries) - 1

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Pending) -> None:
        """The next publish was sent."""
        self._entries.append(entry)

    def settle(self, tag: int, multiple: bool) -> list[Pending]:
        """Take out the publish of that number, or all up to it (0: all). Those that have had their outcome,
        because they were returned, are passed over.

        Raises:
            FrameSyntaxError: there was no such publish.
        """
        entries = self._entries
        if multiple and tag == 0:
            tag = self.last
        index = tag - self._first
        if index >= len(entries) or tag < 1:
            raise FrameSyntaxError(f"publish {tag} is acknowledged, and the last one was {self.last}", 503)
        if index < 0:
            return []
        if multiple:
            self._first = tag + 1
            popleft = entries.popleft
            return [entry for entry in (popleft() for _ in range(index + 1)) if entry is not None]
        if index == 0:
            entry = entries.popleft()
            self._first += 1
            while entries and entries[0] is None:
                entries.popleft()
                self._first += 1
        else:
            entry = entries[index]
            entries[index] = None
        return [] if entry is None else [entry]

    def returned(self, exchange: str, routing_key: str, octets: bytes, body: bytes) -> Pending | None:
        """Take out the publish that a basic.return means."""
        position = _match(self.nacked, exchange, routing_key, octets, body)
        if position is not None:
            return self.nacked.pop(position)
        position = _match(self._entries, exchange, routing_key, octets, body)
        if position is None:
            return None
        entry = self._entries[position]
        self._entries[position] = None
        return entry


class Remembered:
    """The last publishes of a channel without confirms, should one of them be returned."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: deque[tuple[int, str, str, int]] = deque(maxlen=REMEMBERED_MAX)

    def add(self, serial: int, publish: Publish, octets: bytes) -> None:
        """A publish was sent. Its body is not kept."""
        self._entries.append(
            (serial, publish.exchange, publish.routing_key, hash((octets, bytes(publish.message.body))))
        )

    def returned(self, exchange: str, routing_key: str, octets: bytes, body: bytes) -> int:
        """The serial of the publish that a basic.return means, 0 where it is not remembered."""
        digest = hash((octets, body))
        found = None
        for entry in self._entries:
            if entry[1] == exchange and entry[2] == routing_key:
                if entry[3] == digest:
                    found = entry
                    break
                found = found or entry
        if found is None:
            return 0
        self._entries.remove(found)
        return found[0]


def _match(
    entries: deque[Pending | None] | list[Pending], exchange: str, routing_key: str, octets: bytes, body: bytes
) -> int | None:
    best, rank = None, 0
    for position, entry in enumerate(entries):
        if entry is None or entry.publish.exchange != exchange or entry.publish.routing_key != routing_key:
            continue
        same_body = entry.publish.message.body == body
        if same_body and entry.octets == octets:
            return position
        if rank < 1 + same_body:
            best, rank = position, 1 + same_body
    return best
