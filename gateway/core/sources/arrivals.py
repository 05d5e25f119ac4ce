"""What a broker delivers for a subscription or a tap, read once: its id, its order, whether it may be a redelivery. See
:mod:`gateway.core.sources.deduplicator` for what comes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final

from gateway.amqp.message import Message
from gateway.core.publishing.publisher import headers_of, summary, version_name
from gateway.core.sources.dead_letters import DeadLetterDestination, UndeliverableMessage, died
from gateway.core.sources.filters import Filter
from gateway.core.sources.order_keys import OrderKey
from gateway.core.sources.own_queues import queue_of
from gateway.core.sources.stored import envelope
from gateway.core.sources.turns import Turns
from gateway.core.subscriptions import SubscriptionResource
from gateway.errors import FrameSyntaxError
from gateway.fidelity import raw_annotations
from gateway.fidelity.deaths import UNKNOWN
from gateway.ledger import EventKind, InboxRow, LogEntry, MessageIds, NewMessage, parse_id
from gateway.ledger.pending.owed import Owed
from gateway.runtime.clock import clock
from gateway.upstreams import Delivery, Upstream

DAY_MS: Final = 86_400_000
REMEMBER_US: Final = 86_400 * 1_000_000
"""How long a stored message is remembered in the inbox, in microseconds."""
READERS_MAX: Final = 1_000
"""How many subscriptions' compiled settings are kept; when they are more, all are made again."""
KEY_MAX: Final = 512
"""Longest origin id, in characters; what is longer in a reserved header is none of ours."""


class Arrival:
    """A delivery, and what is known of it. Built per message, so with slots and without ceremony."""

    __slots__ = (
        "delivery", "first", "id", "key", "order_key", "properties", "redelivered", "resent", "sha256", "size",
        "strange",
    )  # fmt: skip

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.size = len(delivery.message.body)
        self.id = b""
        """The gateway's id: the one that it brought along, or a new one."""
        self.first = False
        """It came without an id of ours: this is where the gateway first took it."""
        self.key = ""
        """What the inbox knows it by; empty: it cannot be recognised."""
        self.strange = False
        """That is the id of a publisher's, who may have given it to others as well."""
        self.redelivered: bool = delivery.redelivered
        """It may have been handed out before."""
        self.resent = False
        """It was published again after an unknown outcome: it may be there twice."""
        self.order_key = b""
        self.properties = b""
        """All of it but the body, as JSON, where somebody wants that."""
        self.sha256 = b""
        """Of the body."""

    def doubt(self) -> None:
        """Mark it as a possible duplicate."""
        self.redelivered = True


class Origins:
    """How deliveries of one queue are read, known again and recorded."""

    def __init__(self, scope: str, detail: Mapping[str, Any], broker: str, version: str, ids: MessageIds) -> None:
        """
        Args:
            scope: whose inbox it is.
            detail: what every event says of who took the message, and from where; has ``queue``.
        """
        self.scope = scope
        self.broker = broker
        self.version = version
        self.queue: str = detail["queue"]
        self._detail = dict(detail)
        self._remember_us = REMEMBER_US
        self._ids = ids

    def read(self, delivery: Delivery) -> Arrival:
        """Look at a delivery."""
        arrival = Arrival(delivery)
        message = delivery.message
        arrival.sha256 = sha256(message.body).digest()
        try:
            notes = raw_annotations(message)
        except FrameSyntaxError:
            notes = {}  # octets that are no property list are kept as they are, under an id of our own
        text = notes.get("id")
        found = own_id(text)
        if found is None or text is None:  # then the other entries are no word of a gateway's either
            arrival.first = arrival.strange = True
            arrival.id = self._ids()
            arrival.key = self._stranger(message)
        else:
            arrival.id = found
            origin = notes.get("origin")
            arrival.strange = bool(origin) and len(origin or "") <= KEY_MAX
            arrival.key = sound(origin) if origin and arrival.strange else text
            again = "/".join(filter(None, (notes.get("replay"), notes.get("letter") or notes.get("reason"))))
            if again:  # it was sent anew since it was here: not a redelivery of that
                arrival.key = f"{arrival.key}/{sha256(again.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"
            arrival.resent = "resent" in notes
        return arrival

    def _stranger(self, message: Message) -> str:
        """What a message is known by that brings no id of a gateway's along; empty: it cannot be recognised."""
        return ""

    # ------------------------------------------------------------------------------------------- for the ledger

    def inbox(self, arrival: Arrival, at: int) -> InboxRow | None:
        """What it is recognised by; None: it cannot be."""
        if not arrival.key or not self._remember_us:
            return None
        return InboxRow(self.scope, arrival.key, arrival.sha256, arrival.id, at + self._remember_us)

    def entry(self, arrival: Arrival, kind: EventKind, at: int, **detail: Any) -> LogEntry:
        """An event, and with it the message."""
        return LogEntry(
            arrival.id, kind, at, self.broker, self.version, {**self._detail, **detail}, self.message(arrival)
        )

    def letter(self, arrival: Arrival, reason: str, code: str) -> UndeliverableMessage:
        """It, on its way to a dead-letter place."""
        delivery = arrival.delivery
        return UndeliverableMessage(
            arrival.id, delivery.message, reason, self.broker, self.queue, delivery.exchange, delivery.routing_key, code
        )

    def died(self, arrival: Arrival, code: str) -> dict[str, Any]:
        """Return what the ledger is told of its death, beside the reason."""
        delivery = arrival.delivery
        return died(code, self.broker, self.queue, delivery.exchange, delivery.routing_key)

    def dead_lettered(
        self, arrival: Arrival, at: int, place: DeadLetterDestination, reason: str, code: str
    ) -> LogEntry:
        """The event that the dead-letter place has it."""
        where = {
            "broker": place.broker,
            "exchange": printable(place.exchange),
            "routing_key": printable(place.routing_key),
        }
        told = {"reason": printable(reason)[:500], **self.died(arrival, code)}
        return self.entry(arrival, EventKind.DEAD_LETTERED, at, place=where, **told)

    def message(self, arrival: Arrival) -> NewMessage:
        """What the ledger remembers of it."""
        delivery = arrival.delivery
        return NewMessage(
            broker=self.broker,
            version=self.version,
            exchange=delivery.exchange,
            routing_key=delivery.routing_key,
            size=arrival.size,
            sha256=arrival.sha256,
            origin="broker",
            properties=summary(delivery.message),
            headers=headers_of(delivery.message),
        )


class Arrivals(Origins):
    """How one subscription's deliveries are read and stored. Settings that changed need another one."""

    def __init__(self, subscription: SubscriptionResource, broker: str, version: str, ids: MessageIds) -> None:
        """Raises :class:`~gateway.errors.EncodeError` for a setting that is wrong."""
        settings = subscription.settings
        name = subscription.name
        detail = {"subscription": name, "queue": printable(queue_of(name, settings))}
        super().__init__(f"subscription:{name}", detail, broker, version, ids)
        self.name = name
        self.filter = Filter(settings.filter)
        self.order = OrderKey(settings.order_key)

    def read(self, delivery: Delivery) -> Arrival:
        """Look at a delivery."""
        arrival = super().read(delivery)
        if self.order:
            arrival.order_key = self.order.of(delivery.routing_key, delivery.message)
        return arrival

    def sort(self, deliveries: Iterable[Delivery]) -> tuple[list[Arrival], list[tuple[Arrival, str]]]:
        """Look at deliveries: those that the subscription wants, and the others, with why not."""
        return self._divide([self.read(delivery) for delivery in deliveries])

    async def sort_many(self, deliveries: Iterable[Delivery]) -> tuple[list[Arrival], list[tuple[Arrival, str]]]:
        """The same, in turns: all of them may be large. A caller who is cancelled still has the deliveries."""
        turns = Turns()
        arrivals = []
        for delivery in deliveries:
            arrivals.append(self.read(delivery))
            await turns.over()
        return self._divide(arrivals)

    def _divide(self, arrivals: list[Arrival]) -> tuple[list[Arrival], list[tuple[Arrival, str]]]:
        if self.filter.wants_all:
            return arrivals, []
        wanted: list[Arrival] = []
        unwanted: list[tuple[Arrival, str]] = []
        for arrival in arrivals:
            reason = self.filter.refusal(arrival.delivery.routing_key, arrival.delivery.message)
            if reason is None:
                wanted.append(arrival)
            else:
                unwanted.append((arrival, reason))
        return wanted, unwanted

    def owed(
        self, arrival: Arrival, at: int, *, lease_seconds: float = 0.0, dead: str = "", code: str = UNKNOWN
    ) -> Owed:
        """The row of the ledger. ``dead``: why nobody gets it, and ``code`` the same in one word."""
        delivery = arrival.delivery
        return Owed(
            id=self._ids(),
            message_id=arrival.id,
            subscription=self.name,
            order_key=arrival.order_key,
            at=at,
            payload=envelope(delivery, redelivered=arrival.redelivered, resent=arrival.resent),
            size=arrival.size,
            lease_seconds=lease_seconds,
            dead=bool(dead),
            reason={"reason": printable(dead)[:500], "at": at, **self.died(arrival, code)} if dead else {},
        )

    def stored(self, arrival: Arrival, at: int, *, leased: bool) -> LogEntry:
        """The event that it is the ledger's now; ``leased``: and handed out in the same moment."""
        if leased:
            return self.entry(arrival, EventKind.DELIVERED, at, attempt=1, lease=1, redelivered=arrival.redelivered)
        return self.entry(arrival, EventKind.STORED, at, redelivered=arrival.redelivered)


class Readers:
    """What reads the deliveries of each subscription: made once for its settings and the version that is spoken."""

    def __init__(self, ids: MessageIds) -> None:
        self._ids = ids
        self._found: dict[str, tuple[SubscriptionResource, Arrivals]] = {}

    def of(self, subscription: SubscriptionResource, upstream: Upstream) -> Arrivals:
        """That of a subscription. Raises EncodeError for a setting that is wrong."""
        version = version_name(upstream)
        found = self._found.get(subscription.name)
        if found is None or found[0].settings is not subscription.settings or found[1].version != version:
            if len(self._found) >= READERS_MAX:
                self._found.clear()
            found = subscription, Arrivals(subscription, upstream.name, version, self._ids)
            self._found[subscription.name] = found
        return found[1]


def now_us() -> int:
    """Microseconds since 1970."""
    return clock.now_ns() // 1000


def own_id(text: str | None) -> bytes | None:
    """The id in a message's reserved header, if it is one that a gateway made: a UUIDv7 that is not from the
    future. Anybody can write that header, and ids are dates to the ledger."""
    if text is None:
        return None
    try:
        octets = parse_id(text)
    except ValueError:
        return None
    made = int.from_bytes(octets[:6], "big")
    return octets if octets[6] >> 4 == 7 and made < clock.now() * 1000 + DAY_MS else None


def printable(text: str) -> str:
    """``text`` without lone surrogates."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def sound(text: str) -> str:
    """``text`` without lone surrogates and NUL, which not every database takes."""
    if text.isascii() and "\0" not in text:
        return text
    return printable(text).replace("\0", "\\x00")
