"""The two sides of a bridge beside each other, so that an estate can be moved queue by queue.

What the ledger tells of a window of time costs the brokers nothing: what the bridge took that was to be forwarded, and
what it forwarded. With ``peek`` the queues are looked into as well. The source's side is then its queue where messages
stay there (``mirror``), else what the ledger says was forwarded; the target's side is its queue.

A message is the same on both sides where its origin id is (or its id, where the other side is the ledger); one without
any is known by its digest only. Where both sides are queues, it is unchanged if its digest of properties, headers and
body is equal (:func:`gateway.fidelity.digest`); the ledger knows the body alone. What the bridge changes on purpose
(``set_headers``, ``remove_headers``) is changed before the digest is taken, and what it would not forward is left out.

The digest of a side does not depend on the order: it is the sum of those of its messages, modulo 2**256.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final, Literal, NamedTuple

import msgspec

from gateway.amqp.message import Message
from gateway.amqp.operations import Settlement
from gateway.bridges.items import BridgeDelivery
from gateway.bridges.routes import BridgeRoute, RouteOutcome
from gateway.config import BridgeSettings
from gateway.core import Gateway
from gateway.core.leasing.consuming import own_id, printable
from gateway.core.publishing.outbox import moment
from gateway.core.sources.fetching import settle
from gateway.errors import BrokerUnavailable, EncodeError, FrameSyntaxError, Overloaded
from gateway.fidelity import digest, forward, raw_annotations
from gateway.ledger import EventKind, Happened, id_text
from gateway.runtime.clock import clock
from gateway.runtime.threads import threads
from gateway.upstreams import Delivery, Upstream

LIST_MAX: Final = 100
"""Most messages of each list of a report."""
LIMIT_MAX: Final = 65_535
"""Most messages of a queue that are looked at; the greatest prefetch there is."""
LEDGER_MAX: Final = 1_000_000
"""Most messages of a window that are distinguished; they need 100 MB."""
IDLE: Final = 1.0
"""A queue that brings nothing for this many seconds has no more to show."""
KEPT_WITHIN: Final = 5.0
"""Seconds for messages that have used up their queue's delivery limit to become safe."""
WITHIN: Final = 60.0
"""How long a queue is looked into, in seconds."""
KINDS: Final = (
    EventKind.FORWARDED,
    EventKind.REDUCED,
    EventKind.DEAD_LETTERED,
    EventKind.FILTERED,
    EventKind.LOOPED,
    EventKind.DUPLICATE_DROPPED,
)
_MODULUS: Final = 1 << 256
_EMPTY: Final = Message(b"")


class Side(msgspec.Struct, kw_only=True):
    """One side: what it holds."""

    what: str
    """``taken``, ``forwarded`` or the name of a queue."""
    broker: str
    """Name of the broker."""
    how: Literal["ledger", "browsed", "leased"]
    """How the messages were counted. ``ledger``: from the ledger. ``browsed``: in the queue. ``leased``: taken and
    given back, as the broker cannot show messages; they are marked as redelivered."""
    messages: int
    """How many messages it holds."""
    octets: int
    """Bytes of the bodies."""
    digest: str
    """SHA-256 over each message, summed up: equal where the messages are, in any order."""
    complete: bool
    """Whether all messages were looked at."""


class Row(msgspec.Struct, kw_only=True):
    """One number of both sides."""

    name: str
    """What is compared: ``messages``, ``octets`` or ``digest``."""
    source: str | int
    """The value of the source."""
    target: str | int
    """The value of the target."""
    equal: bool
    """Whether both values are equal."""


class Different(msgspec.Struct, kw_only=True):
    """A message that is not the same on both sides."""

    id: str
    """Its origin id, or its id; empty: it has no id."""
    octets: int
    """Bytes of its body."""
    source: str | None
    """Digest at the source; null: it is not there."""
    target: str | None
    """Digest at the target; null: it is not there."""


class Sides(msgspec.Struct, kw_only=True):
    """Two sides beside each other."""

    source: Side
    """The side of the source."""
    target: Side
    """The side of the target."""
    rows: list[Row]
    """The numbers of both sides, one by one."""
    missing: int
    """Messages that the target lacks."""
    extra: int
    """Messages that only the target has: copies too, and what came from elsewhere."""
    copies: int
    """Those of ``extra`` that are further copies of a message that is on both sides. A bridge makes them where a crash
    or a lost connection came between the target's confirm and the acknowledgement."""
    changed: int
    """Messages that are on both sides, but differ."""
    differences: list[Different]
    """The messages that differ, at most 100 of each kind."""
    equal: bool
    """Whether both sides are complete and nothing differs."""


class Report(msgspec.Struct, kw_only=True):
    """The answer of a comparison."""

    bridge: str
    """Name of the bridge."""
    mode: str
    """Mode of the bridge: ``move`` or ``mirror``."""
    at: str
    """When the comparison was made, RFC 3339."""
    at_microseconds: int
    """The same, in microseconds since 1970."""
    ledger: Sides
    """What the bridge took, to be forwarded, and what it forwarded."""
    reduced: int
    """Messages forwarded without something that the target cannot carry."""
    dead_lettered: int
    """Messages that the bridge sent to its dead-letter destination."""
    filtered: int
    """Messages that its selector did not want."""
    looped: int
    """Messages that it stopped because they had passed it before, or too many bridges."""
    duplicates_dropped: int
    """Redeliveries of messages that were forwarded before."""
    queues: Sides | None
    """What the queues hold now; ``null`` without ``peek``."""
    equal: bool
    """Whether nothing differs: in the ledger, and with ``peek`` in the queues."""


class SideMessage(NamedTuple):
    """What a side knows of a message."""

    digest: bytes
    octets: int


class Pile:
    """The messages of one side."""

    def __init__(self, most: int, *, by_id: bool = True) -> None:
        """``by_id``: ids are part of the digest; where a bridge gives ids to messages that had none, they cannot be."""
        self.most = most
        self.by_id = by_id
        self.messages = 0
        self.octets = 0
        self.complete = True
        self.known: dict[str, list[SideMessage]] = {}
        self._sum = 0

    def add(self, key: str, digest: bytes, octets: int) -> None:
        """A message; ``key`` may be empty."""
        if self.messages >= self.most:
            self.complete = False
            return
        self.messages += 1
        self.octets += octets
        self.known.setdefault(key, []).append(SideMessage(digest, octets))
        name = key.encode("utf-8", "surrogateescape") if self.by_id else b""
        self._sum += int.from_bytes(sha256(name + b"\0" + digest).digest(), "big")

    def nameless(self) -> Pile:
        """The same without ids, which what is stripped has not: it is known by its body."""
        pile = Pile(self.most)
        for copies in self.known.values():
            for known in copies:
                pile.add("", *known)
        pile.complete = self.complete
        return pile

    @property
    def digest(self) -> str:
        """Of all, in hexadecimal digits."""
        return f"{self._sum % _MODULUS:064x}"

    def side(self, what: str, broker: str, how: Literal["ledger", "browsed", "leased"]) -> Side:
        """What there is to say of it."""
        return Side(
            what=printable(what),
            broker=broker,
            how=how,
            messages=self.messages,
            octets=self.octets,
            digest=self.digest,
            complete=self.complete,
        )


class LedgerPiles:
    """What the ledger tells of a bridge: piles of distinct messages, by their ids."""

    def __init__(self, bridge: str) -> None:
        self.taken = Pile(LEDGER_MAX)
        self.forwarded = Pile(LEDGER_MAX)
        self.counts: dict[EventKind, int] = dict.fromkeys(KINDS, 0)
        self._bridge = bridge
        self._seen: set[tuple[EventKind, bytes]] = set()
        self._dead: dict[bytes, SideMessage] = {}

    def add(self, events: list[Happened]) -> None:
        """Some events, of whichever bridge."""
        for event in events:
            kind = event.kind
            if event.detail.get("bridge") != self._bridge:
                continue
            if kind is not EventKind.DUPLICATE_DROPPED and (kind, event.message_id) in self._seen:
                continue
            self.counts[kind] += 1
            if kind is EventKind.FORWARDED:
                self.forwarded.add(id_text(event.message_id), event.sha256, event.octets)
                self.taken.add(id_text(event.message_id), event.sha256, event.octets)
            elif kind is EventKind.DEAD_LETTERED:
                self._dead[event.message_id] = SideMessage(event.sha256, event.octets)
            if len(self._seen) < LEDGER_MAX:
                self._seen.add((kind, event.message_id))

    def end(self) -> None:
        """There are no more events: what was dead-lettered and not forwarded later was taken, too."""
        for message_id, known in self._dead.items():
            if (EventKind.FORWARDED, message_id) not in self._seen:
                self.taken.add(id_text(message_id), *known)


class Comparer:
    """Compares bridges, one at a time, since a report takes memory."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._busy = False

    async def compare(
        self,
        route: BridgeRoute,
        *,
        since: int | None = None,
        until: int | None = None,
        peek: bool = False,
        limit: int = 10_000,
        source_queue: str = "",
        target_queue: str = "",
    ) -> Report:
        """Compare the sides of a bridge.

        Args:
            since: the window of the ledger begins here, in microseconds since 1970; None: with its first event.
            until: and ends before this; None: now.
            peek: look into the queues.
            limit: most messages of each queue that are looked at.
            source_queue: the queue that is looked into at the source; empty: the one that the bridge consumes, if it
                leaves messages there.
            target_queue: the queue that is looked into at the target; empty: the one that the default exchange leads
                to.

        Raises:
            EncodeError: it cannot be told which queue the target's is.
            Overloaded: another comparison is under way.
            LedgerUnavailable: the ledger cannot be read.
            NotFound, AccessRefused, BrokerUnavailable: a queue cannot be looked into.
        """
        if peek and not target_queue:
            target_queue = target_of(route)
        if self._busy:
            raise Overloaded("another comparison is under way; they are made one at a time")
        self._busy = True
        try:
            return await self._compare(route, since, until, peek, limit, source_queue, target_queue)
        finally:
            self._busy = False

    async def _compare(
        self,
        route: BridgeRoute,
        since: int | None,
        until: int | None,
        peek: bool,
        limit: int,
        source_queue: str,
        target_queue: str,
    ) -> Report:
        settings = route.settings
        now = clock.now_ns() // 1000
        window = LedgerPiles(route.name)
        async for events in self._gateway.ledger.events_between(KINDS, since or 0, now if until is None else until):
            window.add(events)
        await threads.run(window.end)
        taken = window.taken.side("taken", settings.source.broker, "ledger")
        forwarded = window.forwarded.side("forwarded", settings.target.broker, "ledger")
        ledger = await threads.run(beside, window.taken, taken, window.forwarded, forwarded)
        queues = None
        if peek:
            stays = settings.mode == "mirror" and not route.own_queue
            if source_queue or stays:
                queues = await self._queues(route, source_queue or route.queue, target_queue, limit)
            else:
                queues = await self._target(window.forwarded, settings, target_queue, limit)
        counts = window.counts
        return Report(
            bridge=route.name,
            mode=settings.mode,
            at=moment(now),
            at_microseconds=now,
            ledger=ledger,
            reduced=counts[EventKind.REDUCED],
            dead_lettered=counts[EventKind.DEAD_LETTERED],
            filtered=counts[EventKind.FILTERED],
            looped=counts[EventKind.LOOPED],
            duplicates_dropped=counts[EventKind.DUPLICATE_DROPPED],
            queues=queues,
            equal=ledger.equal and (queues is None or queues.equal),
        )

    async def _queues(self, route: BridgeRoute, source_queue: str, target_queue: str, limit: int) -> Sides:
        """Both sides are queues. The source first: what it shows should be at the target by then."""
        settings = route.settings
        source, target = Pile(limit, by_id=False), Pile(limit, by_id=False)

        def from_source(delivery: Delivery) -> None:
            item = BridgeDelivery(delivery, 0)
            if route.look(item) is RouteOutcome.FORWARD:
                source.add(item.key, _digest(_as_sent(delivery.message, settings)), len(delivery.message.body))

        def from_target(delivery: Delivery) -> None:
            message = delivery.message
            target.add(origin_of(message, settings.source.broker), _digest(message), len(message.body))

        before = await look_into(self._gateway.broker(settings.source.broker), source_queue, source, from_source)
        after = await look_into(self._gateway.broker(settings.target.broker), target_queue, target, from_target)
        return await threads.run(
            beside,
            source,
            source.side(source_queue, settings.source.broker, before),
            target,
            target.side(target_queue, settings.target.broker, after),
        )

    async def _target(self, forwarded: Pile, settings: BridgeSettings, queue: str, limit: int) -> Sides:
        """The ledger's side, which knows ids and bodies, and the target's queue."""
        target = Pile(limit)
        known = await threads.run(forwarded.nameless) if settings.strip else forwarded

        def from_target(delivery: Delivery) -> None:
            message = delivery.message
            message_id = None if settings.strip else own_id(_notes(message).get("id"))
            key = "" if message_id is None else id_text(message_id)
            target.add(key, sha256(message.body).digest(), len(message.body))

        how = await look_into(self._gateway.broker(settings.target.broker), queue, target, from_target)
        return await threads.run(
            beside,
            known,
            known.side("forwarded", settings.target.broker, "ledger"),
            target,
            target.side(queue, settings.target.broker, how),
        )


def target_of(route: BridgeRoute) -> str:
    """The queue at the target that all messages of a bridge end in.

    Raises:
        EncodeError: that cannot be told.
    """
    settings = route.settings
    key = settings.target.routing_key
    if not settings.target.exchange:
        if key is None and not route.own_queue:
            return route.queue
        if key is not None and "{" not in key and "}" not in key:
            return key
    raise EncodeError("target_queue: the bridge does not publish to one queue by its name; say which one to look into")


async def look_into(
    upstream: Upstream, queue: str, pile: Pile, see: Callable[[Delivery], None]
) -> Literal["browsed", "leased"]:
    """Show each message of a queue, up to the pile's limit, and leave it there.

    Raises:
        NotFound, AccessRefused, ResourceLocked, BrokerUnavailable: the broker does not let us.
    """
    depth = (await upstream.query_queue(queue)).message_count
    capabilities = upstream.capabilities
    if capabilities is None:
        raise BrokerUnavailable(f"broker {upstream.name}: {upstream.reason}")
    how: Literal["browsed", "leased"] = "browsed" if capabilities.browse else "leased"
    wanted = min(depth, pile.most)
    pile.complete = pile.complete and wanted == depth
    if not wanted:
        return how
    shown = 0
    last = clock.monotonic()
    enough = asyncio.Event()

    def arrive(delivery: Delivery) -> None:
        nonlocal shown, last
        last = clock.monotonic()
        if shown < wanted:
            shown += 1
            see(delivery)
        if how == "leased":
            out.append(delivery)
        if not delivery.is_used_up:  # else it is kept, with its body, when it is given back
            delivery.message = _EMPTY  # it may stay out for a while, its body need not
        if how == "browsed":  # not a return, which Broker-J would count and mark
            delivery.settle(Settlement.ACCEPT)
        if shown == wanted:
            enough.set()

    out: list[Delivery] = []
    consumer = await upstream.consume(queue, min(wanted, LIMIT_MAX), arrive, acquired=not capabilities.browse)
    try:
        end = clock.monotonic() + WITHIN
        while not enough.is_set() and (wait := min(last + IDLE, end) - clock.monotonic()) > 0:
            try:
                async with asyncio.timeout(wait):
                    await enough.wait()
            except TimeoutError:
                pass  # look again whether something came meanwhile
    finally:
        await consumer.cancel()
        for delivery in reversed(out):  # the end of a channel counts as a return where nack does not (RabbitMQ 4.3)
            settle(delivery, Settlement.RELEASE)
        await consumer.close(drain=KEPT_WITHIN)
    pile.complete = pile.complete and shown == wanted
    return how


def origin_of(message: Message, source: str) -> str:
    """The origin id of a message at the target; empty: it has none. ``source`` is the source's broker."""
    notes = _notes(message)
    if notes.get("origin"):
        return notes["origin"]
    if own_id(notes.get("id")) is not None:
        return notes["id"]
    try:
        message_id = message.properties.message_id
    except FrameSyntaxError:
        return ""
    return f"{source}/{message_id}" if message_id else ""


def beside(source: Pile, one: Side, target: Pile, other: Side) -> Sides:
    """Two piles compared."""
    found: dict[str, list[Different]] = {"missing": [], "extra": [], "changed": []}
    counts = dict.fromkeys(found, 0)

    def tell(what: str, key: str, there: SideMessage | None, here: SideMessage | None) -> None:
        counts[what] += 1
        if len(found[what]) < LIST_MAX:
            known = there or here
            assert known is not None
            found[what].append(
                Different(
                    id=printable(key),
                    octets=known.octets,
                    source=there.digest.hex() if there is not None else None,
                    target=here.digest.hex() if here is not None else None,
                )
            )

    nameless = list(source.known.get("", ()))  # has an id at the target, perhaps, which the bridge gave it
    strange: list[tuple[str, SideMessage]] = []
    for key in {**source.known, **target.known}:
        there, here = _unlike(source.known.get(key, ()) if key else (), target.known.get(key, ()))
        while there and here:
            tell("changed", key, there.pop(), here.pop())
        for known in there:
            tell("missing", key, known, None)
        strange += [(key, known) for known in here]
    there, here = _unlike(nameless, [known for _, known in strange])
    for known in there:
        tell("missing", "", known, None)
    left, copies = Counter(here), 0
    for key, known in strange:
        if left[known]:
            left[known] -= 1
            tell("extra", key, None, known)
            copies += bool(key and key in source.known)
    rows = [
        Row(name=name, source=mine, target=theirs, equal=mine == theirs)
        for name, mine, theirs in (
            ("messages", one.messages, other.messages),
            ("octets", one.octets, other.octets),
            ("digest", one.digest, other.digest),
        )
    ]
    return Sides(
        source=one,
        target=other,
        rows=rows,
        **counts,
        copies=copies,
        differences=[*found["missing"], *found["extra"], *found["changed"]],
        equal=one.complete and other.complete and not any(counts.values()) and all(row.equal for row in rows),
    )


def _unlike(there: Sequence[SideMessage], here: Sequence[SideMessage]) -> tuple[list[SideMessage], list[SideMessage]]:
    """What is left of both when what is the same is taken away, one by one."""
    if there == here:
        return [], []
    one, other = Counter(there), Counter(here)
    return list((one - other).elements()), list((other - one).elements())


def _notes(message: Message) -> dict[str, str]:
    try:
        return dict(raw_annotations(message))
    except FrameSyntaxError:
        return {}


def _as_sent(message: Message, settings: BridgeSettings) -> Message:
    """The message with what the bridge changes on purpose."""
    if not settings.set_headers and not settings.remove_headers:
        return message
    try:
        return forward(message, {}, set_headers=settings.set_headers or None, remove_headers=settings.remove_headers)
    except FrameSyntaxError:
        return message


def _digest(message: Message) -> bytes:
    """Of a message; one with malformed properties is known by their bytes."""
    try:
        return digest(message)
    except FrameSyntaxError:
        octets = message.raw.octets if message.raw is not None else b""
        return sha256(octets + message.body).digest()
