"""A message on its way to an endpoint, and where it is kept until it is there: by its broker or by the ledger.

**Its delivery id** is what the receiver sees as ``webhook-id``, the same on each attempt. A row of the ledger has one.
A message that the broker holds gets its id before the first attempt; so that it is the same when the broker delivers it
again after a crash, it is computed from the gateway's id of the message, the subscription's name and the digest of the
body (:func:`delivery_id`): two messages to which somebody gave the same id are two deliveries. A message without an id
of the gateway gets a new one each time the broker delivers it.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

from gateway.amqp.message import Message
from gateway.core.sources.arrivals import Arrival
from gateway.core.sources.stored import open_envelope
from gateway.ledger.pending.owed import BacklogEntry
from gateway.upstreams import Delivery

_VERSION: Final = 0x70
_VARIANT: Final = 0x80


class PushDelivery:
    """One message. Built per message, so with slots and without ceremony."""

    __slots__ = (
        "arrival", "attempt", "exchange", "id", "lease", "message", "message_id", "reason", "redelivered", "resent",
        "routing_key", "size",
    )  # fmt: skip

    id: bytes
    """Of the delivery, 16 octets."""
    message_id: bytes
    """The gateway's id of the message, 16 octets."""
    message: Message
    exchange: str
    routing_key: str
    size: int
    """Octets of the body."""
    attempt: int
    """The number of the attempt that is made next, or under way; the first is 1."""
    redelivered: bool
    """The broker says that it was delivered before."""
    resent: bool
    """Its publisher's gateway sent it again after an unknown outcome: it may be there twice."""
    arrival: Arrival | None
    """What the broker delivered and holds; None: the ledger does."""
    lease: int
    """Of the ledger's row."""
    reason: dict[str, Any]
    """What the ledger's row says of its last attempt."""

    @property
    def doubtful(self) -> bool:
        """Its endpoint may have taken it before: it may be there twice, or an attempt was begun of which nobody has
        told what became. An attempt that fails is recorded; a process that dies records nothing."""
        untold = self.attempt - 1 > self.reason.get("attempt", 0)
        return self.redelivered or self.resent or (self.arrival is None and untold)

    @property
    def delivery(self) -> Delivery | None:
        """Of the broker that holds it; None: the ledger does."""
        return self.arrival.delivery if self.arrival is not None else None


def arrived(arrival: Arrival, subscription: str) -> PushDelivery:
    """What a broker delivered."""
    delivery = arrival.delivery
    item = PushDelivery()
    item.arrival = arrival
    item.message_id = arrival.id
    item.id = delivery_id(arrival.id, subscription, arrival.sha256)
    item.message = delivery.message
    item.exchange = delivery.exchange
    item.routing_key = delivery.routing_key
    item.size = arrival.size
    item.attempt = 1
    item.redelivered = arrival.redelivered
    item.resent = arrival.resent
    item.lease = 0
    item.reason = {}
    return item


def stored(row: BacklogEntry) -> PushDelivery:
    """What the ledger handed out. Raises :class:`EnvelopeError` where its body is damaged."""
    found = open_envelope(row.payload or b"")
    item = PushDelivery()
    item.arrival = None
    item.id = row.id
    item.message_id = row.message_id
    item.message = found.message
    item.exchange = found.exchange
    item.routing_key = found.routing_key
    item.size = row.size
    item.attempt = row.attempt
    item.redelivered = found.redelivered
    item.resent = found.resent or row.reason.get("resent") is True
    item.lease = row.lease
    item.reason = row.reason
    return item


def delivery_id(message_id: bytes, subscription: str, body_sha256: bytes) -> bytes:
    """The id under which a subscription owes a message: a UUIDv7 with the message's time."""
    digest = bytearray(sha256(message_id + body_sha256 + subscription.encode()).digest()[:10])
    digest[0] = _VERSION | digest[0] & 0x0F
    digest[2] = _VARIANT | digest[2] & 0x3F
    return message_id[:6] + bytes(digest)
