"""Where a message goes when it is sent once more, and what it looks like then.

A dead letter says where it came from in one of these ways, the first that is there counts:

1. The reserved header's ``queue``, ``exchange``, ``routing_key`` and ``broker``, where a gateway dead-lettered it. Of
   another broker than the one that it lies on it is only believed if the ledger knows that the message was there.
2. The newest entry of ``x-death``, where the broker did (RabbitMQ, the embedded broker).
3. The ledger's timeline of the id in its reserved header: the queue it was last taken from, else the exchange that it
   was published to.
4. The exchange and routing key of the delivery itself: Qpid keeps them when it dead-letters.

The same place is the *queue* that it died in, through the default exchange, and not the exchange that it was published
to: others who had got their copy from there would get it again.

What is sent is a message of its own, with an id of its own: the message as it was, without what earlier ways have
written into it (``x-death``, bridges that it passed, the reason for which it died), and with two entries in the
reserved header, ``replay``, the id of the replay, and ``replay_of``, the id of the original.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.amqp.message import Message
from gateway.errors import FrameSyntaxError
from gateway.fidelity.deaths import told_by_broker, told_by_gateway
from gateway.ledger import RecordedEvent, Timeline
from gateway.replays.requests import ReplayTarget, exchange_name


@dataclass(frozen=True, slots=True)
class ReplayPlace:
    """Somewhere to publish to. ``queue`` empty: it is only known what it was published to."""

    broker: str
    exchange: str
    routing_key: str
    queue: str = ""
    unsure: bool = False
    """Only the message says that it came from that other broker. Anybody who may publish can write that, and nobody may
    have a gateway publish where they may not: it takes somebody who names the broker."""

    def to(self, target: ReplayTarget) -> ReplayPlace:
        """Where it goes, coming from here."""
        broker = target.broker or self.broker
        unsure = self.unsure and not target.broker
        if target.exchange is None and target.routing_key is None and self.queue and broker == self.broker:
            return ReplayPlace(broker, "", self.queue, unsure=unsure)
        exchange = self.exchange if target.exchange is None else exchange_name(target.exchange)
        routing_key = self.routing_key if target.routing_key is None else target.routing_key
        return ReplayPlace(broker, exchange, routing_key, unsure=unsure)


def told_by_message(message: Message, broker: str) -> ReplayPlace | None:
    """What the message itself says of where it came from (1 and 2)."""
    try:
        headers = message.properties.headers
    except FrameSyntaxError:
        return None
    if not headers:
        return None
    ours, native = told_by_gateway(headers), told_by_broker(headers)
    if ours is not None and (ours.queue or ours.exchange is not None):
        return ReplayPlace(ours.broker or broker, ours.exchange or "", ours.routing_key or "", ours.queue or "")
    if native is not None and native.queue:
        return ReplayPlace(broker, native.exchange or "", native.routing_key or "", native.queue)
    return None


def was_at(timeline: Timeline | None, broker: str) -> bool:
    """Whether the ledger knows that the message was at that broker."""
    if timeline is None:
        return False
    return broker == timeline.message.broker or any(event.broker == broker for event in timeline.events)


def told_by_ledger(timeline: Timeline | None) -> ReplayPlace | None:
    """What the ledger says (3)."""
    if timeline is None:
        return None
    message = timeline.message
    queue = _last(timeline.events, message.broker)
    return ReplayPlace(message.broker, message.exchange, message.routing_key, queue)


def _last(events: Iterable[RecordedEvent], broker: str) -> str:
    queue = ""
    for event in events:
        told = event.detail.get("queue")
        if event.broker == broker and isinstance(told, str):
            queue = told
    return queue


def new_id(created_at: int, job: str, key: str) -> bytes:
    """The id that a replay gives to what it sends: the same whenever that is sent again. A UUIDv7, as all ids are,
    dated by the beginning of the replay, in microseconds since 1970."""
    name = job.encode()
    digest = hashlib.sha256(len(name).to_bytes(4, "big") + name + key.encode("utf-8", "surrogateescape")).digest()
    number = int.from_bytes(digest[:10], "big")
    high = (created_at // 1000) << 16 | 0x7 << 12 | (number >> 62) & 0xFFF
    return high.to_bytes(8, "big") + (0b10 << 62 | number & (1 << 62) - 1).to_bytes(8, "big")
