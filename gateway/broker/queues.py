"""Queues: messages in order, limits, expiry, and fair dispatch over the consumers.

An :class:`Envelope` is one published message, shared by all queues that it was routed to; an :class:`Entry` is its
place in one queue. Entries are numbered in the order of arrival, so that one that comes back takes its old place.
There is one line of entries per priority (one in all without ``x-max-priority``).

Two ways of dispatch. Where all consumers take whatever comes first, the head of the queue goes to the consumer
whose turn it is. Where one browses or selects, each such consumer has a cursor, and an entry that is taken from the
middle leaves a hole, which is swept up when it reaches the head or when holes outnumber entries. While an entry waits
that some connection could not carry (:meth:`Queue.skip`), connections that can carry the same share a cursor, so that
none of them looks at it twice.

Expired messages go when they come to the head, as in RabbitMQ, by an alarm or on the way to a consumer.

Nothing here takes longer for a long queue, but for what is asked of each of its messages; and where that may be all of
them at once (purge, expiry, a deleted queue) it is done :data:`BATCH` at a time, the rest later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from gateway.broker.arguments import QueueArguments, weight
from gateway.broker.consumers import Consumer, Cursor, Rotation
from gateway.message import Message
from gateway.values import Table

if TYPE_CHECKING:
    from gateway.broker.exchanges import Binding

ENVELOPE_OVERHEAD = 1_024
"""What a message costs beside its body and its raw properties, in octets: a flood of empty ones is one too."""
ENTRY_OVERHEAD = 256
"""What each further place costs that holds the same message: a queue, or a browser that is shown it."""
ALARM_AT = 0.9
"""Publishers are asked to stop when more than this share of the memory is used."""
ROOMY_AT = 0.8
"""Publishers are let on again when no more than this share is used."""
RESERVE = 1.25
"""Dead letters, which nobody can be asked to stop, may go over the limit by this factor; then they are dropped."""
BATCH = 1_024
"""Messages that are dropped, expired or looked at in one go."""
UNCARRIABLE: Final = 1 << 62
"""In place of the size of a frame: no frame carries the message."""
CARRIERS_MAX: Final = 256
"""For how many kinds of connections a queue remembers how far they have looked."""
Carriage: TypeAlias = tuple[str, int]
"""What a connection can carry: the form that messages have on it, and its ``frame_max``."""


class Memory:
    """How much the messages of the whole broker hold, in octets."""

    __slots__ = ("alarm", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.alarm = int(limit * ALARM_AT)
        self.used = 0

    @property
    def roomy(self) -> bool:
        """Publishers need not wait."""
        return self.used <= self.limit * ROOMY_AT

    @property
    def exhausted(self) -> bool:
        """Even the reserve is used up."""
        return self.used > self.limit * RESERVE


class Envelope:
    """A published message and where it was published to. Counted in :class:`Memory` while anyone holds it."""

    __slots__ = (
        "_holders",
        "cost",
        "exchange",
        "expiration",
        "frame_sizes",
        "memory",
        "message",
        "priority",
        "publisher",
        "routing_key",
    )

    def __init__(
        self,
        memory: Memory,
        message: Message,
        exchange: str,
        routing_key: str,
        *,
        publisher: int = 0,
        expiration: int | None = None,
        priority: int = 0,
    ) -> None:
        self.memory = memory
        self.message = message
        self.exchange = exchange
        self.routing_key = routing_key
        self.publisher = publisher
        """Number of the connection that published it; 0: the broker itself."""
        self.expiration = expiration
        """The message's own time to live, in milliseconds."""
        self.priority = priority
        self.frame_sizes: dict[str, int] | None = None
        """Form of messages -> the frame that it takes to carry this one, where a connection could not carry it;
        :data:`UNCARRIABLE`: no frame does."""
        raw = message.raw
        self.cost = (
            len(message.body)
            + ENVELOPE_OVERHEAD
            + (weight(message.properties.headers or {}) if raw is None else len(raw.octets))
        )
        self._holders = 0

    def hold(self) -> None:
        """One more place holds it."""
        self.memory.used += ENTRY_OVERHEAD if self._holders else self.cost
        self._holders += 1

    def release(self) -> None:
        """One place less holds it."""
        self._holders -= 1
        self.memory.used -= ENTRY_OVERHEAD if self._holders else self.cost


class Entry:
    """A message's place in a queue."""

    __slots__ = (
        "envelope", "expires", "level", "position", "queue", "ready", "redelivered", "size", "skipped", "stored",
    )  # fmt: skip

    def __init__(self, queue: Queue, envelope: Envelope, position: int, level: int, expires: float | None) -> None:
        self.queue = queue
        self.envelope = envelope
        self.position = position
        self.level = level
        self.expires = expires
        """When, in seconds on the clock of ``now``; None: never."""
        self.size = len(envelope.message.body)
        self.redelivered = False
        self.ready = False
        """It waits in the queue; false while it is out, and after."""
        self.stored = False
        """It stands in its line, ready or as a hole."""
        self.skipped = False
        """A connection could not carry it."""

    def drop(self) -> None:
        """It is over with this entry; whoever still refers to it holds no message by it."""
        self.envelope.release()
        self.envelope = _NOTHING


_NOTHING = Envelope(Memory(0), Message(), "", "")

_BY_POSITION = attrgetter("position")


class Undertaker(Protocol):
    """Where a queue sends what leaves it unconsumed."""

    memory: Memory
    """What counts all messages."""

    def died(self, entry: Entry, reason: str) -> None:
        """``entry`` left its queue for a reason of ``x-death``: rejected, expired or maxlen."""
        ...

    def arm(self, queue: Queue) -> None:
        """What expires next in ``queue`` may have changed."""
        ...

    def discard(self, entries: deque[Entry]) -> None:
        """These have left their queue and are to be dropped, now or later."""
        ...


class Carrier(Protocol):
    """A connection, as far as what it can carry goes."""

    carriage: Carriage

    def carries(self, entry: Entry) -> bool:
        """Whether it can carry the message, as far as that was found out."""
        ...


class Tenant(Protocol):
    """A connection, as far as its exclusive queues go."""

    number: int
    owned: dict[Queue, None]
    """Queues that it owns."""

    @property
    def durable_exclusive_stays(self) -> bool:
        """A durable and exclusive queue outlives the connection (Qpid's durable subscriptions)."""
        ...


class Queue:
    """One queue."""

    is_exchange = False

    def __init__(
        self,
        name: str,
        undertaker: Undertaker,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        arguments: QueueArguments | None = None,
        table: Table | None = None,
    ) -> None:
        self.name = name
        self.undertaker = undertaker
        self.memory = undertaker.memory
        self.durable = durable
        self.auto_delete = auto_delete
        self.exclusive = False
        self.owner: Tenant | None = None
        """The connection that it is exclusive to, or ends with; None: none now."""
        self.ends_with_owner = False
        """It goes when that connection goes."""
        self.arguments = arguments if arguments is not None else QueueArguments()
        self.table = table if table is not None else {}
        self.bindings_to: dict[Binding, None] = {}
        self.gone = False
        self.alarm: float | None = None
        self.used_at = 0.0
        """When it last had a consumer or was asked for."""
        self.consumers: dict[Consumer, None] = {}
        self.ready = 0
        """How many messages wait."""
        self.ready_octets = 0
        self.skipped = 0
        """How many of those that wait could not be carried by some connection."""
        self._lines: list[deque[Entry]] = [deque() for _ in range((self.arguments.max_priority or 0) + 1)]
        self._holes = 0
        self._mortal = False
        self._next_position = 0
        self._rotation = Rotation()
        self._selective: dict[Consumer, None] = {}
        self._carriers: dict[Carriage, Cursor] = {}
        """While messages are skipped: how far connections that can carry the same have looked."""
        self._settled = False
        """Nobody can take any of what waits."""

    # ------------------------------------------------------------------------------------------- messages

    def overflows(self, size: int, count: int = 1) -> bool:
        """Whether so many messages more, of that size together, would be over a length limit."""
        arguments = self.arguments
        return (arguments.max_length is not None and self.ready + count > arguments.max_length) or (
            arguments.max_length_bytes is not None and self.ready_octets + size > arguments.max_length_bytes
        )

    def publish(self, envelope: Envelope, now: float, promised: bool = False) -> bool:
        """Take a message, and hand it on at once if somebody waits for it. False: the queue is full and refuses
        publishes (``x-overflow``); not those that it has ``promised`` to take."""
        arguments = self.arguments
        if arguments.no_local and self.owner is not None and envelope.publisher == self.owner.number:
            return True
        limited = arguments.max_length is not None or arguments.max_length_bytes is not None
        ttl = envelope.expiration
        if arguments.message_ttl is not None and (ttl is None or ttl > arguments.message_ttl):
            ttl = arguments.message_ttl
        level = envelope.priority
        if level >= len(self._lines):
            level = len(self._lines) - 1
        entry = Entry(self, envelope, self._next_position, level, None if ttl is None else now + ttl / 1_000)
        refusing = arguments.overflow in REFUSING
        if limited and refusing and not promised and self.overflows(entry.size):
            if arguments.overflow == "reject-publish-dlx":
                envelope.hold()
                self.undertaker.died(entry, "maxlen")
            return False
        self._next_position += 1
        envelope.hold()
        entry.ready = entry.stored = True
        self._lines[level].append(entry)
        self.ready += 1
        self.ready_octets += entry.size
        if self.consumers:
            self.dispatch(now)
        if limited and self.ready and not refusing:
            self._drop_overflow()
        if ttl is not None and entry.ready:
            self._mortal = True
            if ttl == 0:
                self.expire(now)
            self.undertaker.arm(self)
        return True

    def accepts_at_once(self, size: int) -> bool:
        """Whether a message of that size would go straight to a consumer (``immediate``)."""
        if self.ready > self.skipped:
            return False
        return any(consumer.acquires and consumer.admits(size) for consumer in self._candidates())

    def requeue(self, entries: Iterable[Entry], now: float) -> None:
        """Give entries back their old places. Dispatch is the caller's business."""
        by_level: dict[int, list[Entry]] = {}
        self._settled = False
        for entry in entries:
            entry.ready = True
            self.ready += 1
            self.ready_octets += entry.size
            self.skipped += entry.skipped
            if entry.stored:
                self._holes -= 1
            else:
                entry.stored = True
                by_level.setdefault(entry.level, []).append(entry)
            for consumer in self._selective:
                cursor = consumer.cursor
                if consumer.acquires and cursor is not None and entry.position <= cursor.seen[entry.level]:
                    cursor.returned[entry] = None
            for cursor in self._carriers.values():
                if entry.position <= cursor.seen[entry.level]:
                    cursor.returned[entry] = None
        for level, returned in by_level.items():
            _insert(self._lines[level], sorted(returned, key=_BY_POSITION))
        if self.arguments.overflow not in REFUSING:
            self._drop_overflow()
        if self._mortal:
            self.undertaker.arm(self)

    def first(self, now: float) -> Entry | None:
        """The next entry, None if none is ready. Expired ones are buried on the way."""
        for line in reversed(self._lines):
            while (entry := self._head(line)) is not None:
                if entry.expires is None or entry.expires >= now:
                    return entry
                self.take(entry)
                self.undertaker.died(entry, "expired")
        return None

    def _head(self, line: deque[Entry]) -> Entry | None:
        """The first ready entry of a line; holes before it are swept up."""
        while line:
            entry = line[0]
            if entry.ready:
                return entry
            line.popleft()
            entry.stored = False
            self._holes -= 1
        return None

    def take(self, entry: Entry) -> None:
        """Take a ready entry out of the queue."""
        entry.ready = False
        self.ready -= 1
        self.ready_octets -= entry.size
        if entry.skipped:
            self._less_skipped()
        line = self._lines[entry.level]
        if line[0] is entry:
            line.popleft()
            entry.stored = False
            if self._mortal:
                self.undertaker.arm(self)
            return
        self._holes += 1
        if self._holes > self.ready + _HOLES_MIN:
            self._sweep()

    def purge(self) -> int:
        """Drop what is ready; how many there were."""
        entries = self.clear()
        count = len(entries)
        self.undertaker.discard(entries)
        return count

    def clear(self) -> deque[Entry]:
        """Take all that is ready out of the queue, in order."""
        entries = deque(entry for line in reversed(self._lines) for entry in line if entry.ready)
        for line in self._lines:
            for entry in line:
                entry.ready = entry.stored = False
            line.clear()
        self.ready = self.ready_octets = self._holes = self.skipped = 0
        self._carriers.clear()
        return entries

    def expire(self, now: float) -> None:
        """Bury what has expired at the head of each line; no more than a batch, the next alarm is for the rest."""
        left = BATCH
        for line in self._lines:
            while (
                left and (entry := self._head(line)) is not None and entry.expires is not None and entry.expires <= now
            ):
                left -= 1
                self.take(entry)
                self.undertaker.died(entry, "expired")

    def next_alarm(self) -> float | None:
        """When something expires next: a message at a head, or the queue itself."""
        times = []
        for line in self._lines:
            head = self._head(line)
            if head is not None and head.expires is not None:
                times.append(head.expires)
        if self.arguments.expires is not None and not self.consumers:
            times.append(self.used_at + self.arguments.expires / 1_000)
        return min(times, default=None)

    def unused_since(self, now: float) -> bool:
        """Whether ``x-expires`` has passed."""
        expires = self.arguments.expires
        return expires is not None and not self.consumers and self.used_at + expires / 1_000 <= now

    def _drop_overflow(self) -> None:
        """RabbitMQ's drop-head: the head of the highest priority goes first."""
        count_max, octets_max = self.arguments.max_length, self.arguments.max_length_bytes
        while self.ready and (
            (count_max is not None and self.ready > count_max)
            or (octets_max is not None and self.ready_octets > octets_max)
        ):
            entry = next(entry for line in reversed(self._lines) if (entry := self._head(line)) is not None)
            self.take(entry)
            self.undertaker.died(entry, "maxlen")

    def _sweep(self) -> None:
        for line in self._lines:
            kept = [entry for entry in line if entry.ready]
            if len(kept) != len(line):
                for entry in line:
                    entry.stored = entry.ready
                line.clear()
                line.extend(kept)
        self._holes = 0

    # ------------------------------------------------------------- what not every connection can carry

    def skip(self, entry: Entry) -> bool:
        """A connection cannot carry the entry, which stays for others. Whether that is the first time."""
        if entry.skipped:
            return False
        entry.skipped = True
        if entry.ready:
            self.skipped += 1
        return True

    def _less_skipped(self) -> None:
        self.skipped -= 1
        if not self.skipped:
            self._carriers.clear()

    def next_for(self, connection: Carrier, now: float) -> Entry | None:
        """The next entry that the connection can carry, as far as is known; None if none is ready. What has expired
        is buried on the way."""
        if not self.skipped:
            return self.first(now)
        return self._unseen(self._cursor_of(connection), connection.carries, now, bury=True)

    def _cursor_of(self, connection: Carrier) -> Cursor:
        """The cursor of all connections that can carry what this one can."""
        carriers = self._carriers
        cursor = carriers.get(connection.carriage)
        if cursor is None:
            if len(carriers) >= CARRIERS_MAX:
                del carriers[next(iter(carriers))]
            cursor = carriers[connection.carriage] = Cursor(len(self._lines))
        return cursor

    # ------------------------------------------------------------------------------------------ consumers

    @property
    def selective(self) -> int:
        """How many of its consumers browse or select."""
        return len(self._selective)

    def add_consumer(self, consumer: Consumer) -> None:
        """It takes part from the next dispatch on."""
        self.consumers[consumer] = None
        self._settled = False
        if consumer.selective:
            consumer.cursor = Cursor(len(self._lines))
            self._selective[consumer] = None
        if consumer.acquires and (self._active() is consumer or not self.arguments.single_active_consumer):
            self._rotation.add(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """It takes part no more; with a single active consumer the next one takes over."""
        consumer.cancelled = True
        was_active = self._active() is consumer
        self._settled = False
        del self.consumers[consumer]
        self._selective.pop(consumer, None)
        self._rotation.remove(consumer)
        if was_active and self.arguments.single_active_consumer and (heir := self._active()) is not None:
            self._rotation.add(heir)

    def wake(self, consumer: Consumer) -> None:
        """Something that held the consumer back has changed."""
        self._settled = False
        if (
            not consumer.waiting
            and not consumer.cancelled
            and consumer.acquires
            and (not self.arguments.single_active_consumer or self._active() is consumer)
        ):
            self._rotation.add(consumer)

    def dispatch(self, now: float) -> None:
        """Hand out what is ready to those who may have it."""
        if self._is_picky():
            self._dispatch_selectively(now)
            return
        next_consumer = self._rotation.next
        while self.ready:
            entry = self.first(now)
            if entry is None or (consumer := next_consumer(entry.size)) is None:
                return
            if consumer.channel.deliver(consumer, entry, now):
                self.take(entry)
            elif self._is_picky():
                self._dispatch_selectively(now)
                return

    def _is_picky(self) -> bool:
        """Not every consumer may have what comes first."""
        return bool(self._selective) or self.skipped > 0

    def _dispatch_selectively(self, now: float) -> None:
        """The same where not every consumer may have what comes first."""
        for consumer in list(self._selective):
            if not consumer.acquires:
                cursor = consumer.cursor
                assert cursor is not None
                while (entry := self._unseen(cursor, consumer.wants, now)) is not None and consumer.admits(entry.size):
                    if consumer.channel.deliver(consumer, entry, now):
                        cursor.unseen.popleft()
                if entry is None and consumer.auto_close:
                    consumer.channel.connection.broker.finish_later(consumer)
        chosen: list[Entry] = []
        dry: set[Cursor] = set()

        def choose(consumer: Consumer) -> bool:
            if (cursor := consumer.cursor) is not None:
                entry = self._unseen(cursor, consumer.wants, now)
            elif self.skipped:
                connection = consumer.channel.connection
                cursor = self._cursor_of(connection)
                entry = None if cursor in dry else self.next_for(connection, now)
                if entry is None:
                    dry.add(cursor)
            else:
                entry = self.first(now)
            if entry is None or not consumer.admits(entry.size):
                return False
            chosen.append(entry)
            return True

        was_settled = self._settled
        while self.ready and (taker := self._rotation.select(choose)) is not None:
            entry = chosen.pop()
            if taker.channel.deliver(taker, entry, now):
                self.take(entry)
                if was_settled:
                    return  # no more than one has come since nobody could take any
        self._settled = True

    def _unseen(self, cursor: Cursor, wants: Callable[[Entry], bool], now: float, bury: bool = False) -> Entry | None:
        """The first ready entry that was not looked at with this cursor and is wanted. What has expired is passed
        over, or buried."""
        unseen, returned = cursor.unseen, cursor.returned
        while returned:
            entry = next(iter(returned))
            if entry.ready and wants(entry):
                return entry
            del returned[entry]
        while True:
            while unseen:
                entry = unseen[0]
                if entry.ready:
                    if entry.expires is None or entry.expires >= now:
                        if wants(entry):
                            return entry
                    elif bury:
                        self.take(entry)
                        self.undertaker.died(entry, "expired")
                unseen.popleft()
            self._look(cursor)
            if not unseen:
                return None

    def _look(self, cursor: Cursor) -> None:
        """Collect a batch of what the cursor has not looked at, the highest priority first."""
        for level in range(len(self._lines) - 1, -1, -1):
            line, seen = self._lines[level], cursor.seen[level]
            if not line or line[-1].position <= seen:
                continue
            start = bisect_right(line, seen, key=_BY_POSITION)
            new = len(line) - start
            # From the nearer end: a cursor has mostly seen all but the last.
            found = list(islice(line, start, start + BATCH) if new > BATCH else islice(reversed(line), new))
            if new <= BATCH:
                found.reverse()
            cursor.seen[level] = found[-1].position
            cursor.unseen.extend(found)
            return

    def _active(self) -> Consumer | None:
        """The consumer that a queue with ``x-single-active-consumer`` serves."""
        return next((consumer for consumer in self.consumers if consumer.acquires), None)

    def _candidates(self) -> Iterable[Consumer]:
        if self.arguments.single_active_consumer:
            active = self._active()
            return () if active is None else (active,)
        return self.consumers


REFUSING = frozenset({"reject-publish", "reject-publish-dlx"})
"""Settings of ``x-overflow`` with which a full queue takes no more."""
_HOLES_MIN = 64
"""Holes that are not worth a sweep."""


def _insert(line: deque[Entry], entries: list[Entry]) -> None:
    """Put entries, sorted by position, where they belong in a sorted line; what is close to its head is cheap."""
    last = entries[-1].position
    before: list[Entry] = []
    while line and line[0].position < last:
        before.append(line.popleft())
    line.extendleft(reversed(list(merge(before, entries, key=_BY_POSITION)) if before else entries))
