"""Queues: messages in order, limits, expiry, and fair dispatch over the consumers.

An :class:`Envelope` is one published message, shared by all queues that it was routed to; an :class:`Entry` is its
place in one queue. Entries are numbered in the order of arrival, so that one that comes back takes its old place.
There is one line of entries per priority (one in all without ``x-max-priority``).

Two ways of dispatch. Where all consumers take any message, the head of the queue goes to the consumer
whose turn it is. Where one browses or selects, each such consumer has a cursor, and an entry that is taken from the
middle leaves a hole, which is swept up when it reaches the head or when holes outnumber entries. While an entry waits
that some connection could not carry (:meth:`Queue.skip`), connections that can carry the same share a cursor, so that
none of them looks at it twice.

Expired messages go when they come to the head, as in RabbitMQ, by an alarm or on the way to a consumer.

Nothing here takes longer for a long queue, but for what is asked of each of its messages. Where that may be all of them
at once it ends with the turn, and goes on in a later one: see :meth:`Queue.go_on`. A purge begins a new *epoch*: what
was ready in an earlier one is ready no more, and is dropped later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from gateway.amqp.message import Message
from gateway.amqp.values import Table
from gateway.broker.arguments import QueueArguments, weight
from gateway.broker.consumers import Consumer, QueueCursor, Rotation
from gateway.broker.declared import DeclaredByUser
from gateway.broker.turns import PIECE, Turn

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
LEVEL_WEIGHT = 768
"""What each further priority of a queue takes in memory while nothing waits, in octets, roughly."""
HOPS_MAX = 128
"""How often a message may be dead-lettered, from one queue to the next, without anybody's doing."""
BATCH = 1_024
"""Messages that are dropped, expired or looked at in one go."""
UNCARRIABLE: Final = 1 << 62
"""In place of the size of a frame: no frame carries the message."""
CARRIERS_MAX: Final = 256
"""For how many kinds of connections a queue remembers how far they have looked."""
Carriage: TypeAlias = tuple[str, int]
"""What a connection can carry: the form that messages have on it, and its ``frame_max``."""


class Memory:
    """How much messages hold, in octets: those of the whole broker, or those that one user has published."""

    __slots__ = ("alarm", "limit", "unfinished", "used", "whole")

    def __init__(self, limit: int, whole: Memory | None = None) -> None:
        """``whole``: that of the broker, where this is a user's."""
        self.whole = whole
        self.used = 0
        self.unfinished = 0
        """Octets of messages that are not all there; they are not among those used."""
        self.resize(limit)

    def resize(self, limit: int) -> None:
        """Change the limit."""
        self.limit = limit
        self.alarm = int(limit * ALARM_AT)

    def add(self, octets: int) -> None:
        """Use this many octets more; below 0: fewer."""
        self.used += octets
        if self.whole is not None:
            self.whole.used += octets

    def fits(self, octets: int) -> bool:
        """Whether this many octets more fit. One message does, however large it is, where there is no other."""
        return not self.used or self.used + octets <= self.limit

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
        "_copies_left",
        "_holders",
        "_hops",
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
        self._copies_left: list[int] | None = None
        """How many further copies dead-lettering may make, shared with those that it has made; None: none so far."""
        self._hops = 0

    def pass_on(self, copy: Envelope, places: int, most: int) -> bool:
        """Let a dead letter, sent on without anybody's doing, come to so many queues. False: it may not, for
        dead-lettering has made ``most`` further copies of the message that was published, or it was passed on
        :data:`HOPS_MAX` times. One place is its own, which it has lost."""
        if self._copies_left is None:
            self._copies_left = [most]
        left = self._copies_left[0] - max(places - 1, 0)
        if left < 0 or self._hops >= HOPS_MAX:
            return False
        self._copies_left[0] = left
        copy._copies_left, copy._hops = self._copies_left, self._hops + 1
        return True

    def hold(self, places: int = 1) -> None:
        """One more place holds it, or more."""
        first = ENTRY_OVERHEAD if self._holders else self.cost
        self.memory.add(first + (places - 1) * ENTRY_OVERHEAD)
        self._holders += places

    def release(self) -> None:
        """One place less holds it."""
        self._holders -= 1
        self.memory.add(-(ENTRY_OVERHEAD if self._holders else self.cost))


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
        self.ready = 0
        """The queue's epoch while it waits in the queue; 0 while it is out, and after."""
        self.stored = 0
        """The queue's epoch while it stands in its line, ready or as a hole."""
        self.skipped = False
        """A connection could not carry it."""

    def drop(self) -> None:
        """It is over with this entry; other references to it hold no message."""
        self.envelope.release()
        self.envelope = _NOTHING


_NOTHING = Envelope(Memory(0), Message(), "", "")

_BY_POSITION = attrgetter("position")


class QueueHost(Protocol):
    """Where a queue sends what leaves it unconsumed."""

    memory: Memory
    """What counts all messages."""
    turn: Turn

    def died(self, entry: Entry, reason: str) -> None:
        """``entry`` left its queue for a reason of ``x-death``: rejected, expired or maxlen."""
        ...

    def arm(self, queue: Queue) -> None:
        """What expires next in ``queue`` may have changed."""
        ...

    def later(self, queue: Queue) -> None:
        """Call :meth:`Queue.go_on` in a later turn."""
        ...

    def discard(self, line: deque[Entry], epoch: int) -> None:
        """Those that were ready in that epoch have left their queue, and are to be dropped, now or later."""
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
    declared: DeclaredByUser | None
    """In whose share its queues count; None: in nobody's."""

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
        host: QueueHost,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        arguments: QueueArguments | None = None,
        table: Table | None = None,
    ) -> None:
        self.name = name
        self.host = host
        self.memory = host.memory
        self.durable = durable
        self.auto_delete = auto_delete
        self.exclusive = False
        self.owner: Tenant | None = None
        """The connection that it is exclusive to, or ends with; None: none now."""
        self.ends_with_owner = False
        """It goes when that connection goes."""
        self.arguments = arguments if arguments is not None else QueueArguments()
        self.table = table if table is not None else {}
        self.user: DeclaredByUser | None = None
        """In whose share it counts; None: in nobody's."""
        self.weight = 0
        """What its name and arguments take in memory, roughly, in octets."""
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
        self.epoch = 1
        self.pending = False
        """It has something left to do in a later turn."""
        self.unfinished = False
        """The last look for an entry has found none yet, and goes on in a later turn."""
        self._lines: list[deque[Entry]] = [deque() for _ in range((self.arguments.max_priority or 0) + 1)]
        self._holes = 0
        self._mortal = False
        self._next_position = 0
        self._rotation = Rotation()
        self._selective: dict[Consumer, None] = {}
        self._carriers: dict[Carriage, QueueCursor] = {}
        """While messages are skipped: how far connections that can carry the same have looked."""
        self._settled = False
        """Nobody can take any of what waits."""
        self._returned: list[Entry] = []
        """What came back lately, for those who look again."""

    # ------------------------------------------------------------------------------------------- messages

    def overflows(self, size: int, count: int = 1) -> bool:
        """Whether this number of messages more, of that size together, would be over a length limit."""
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
                self.host.died(entry, "maxlen")
            return False
        self._next_position += 1
        envelope.hold()
        entry.ready = entry.stored = self.epoch
        self._lines[level].append(entry)
        self.ready += 1
        self.ready_octets += entry.size
        if self.consumers:
            self.dispatch(now)
        if limited and not refusing and self.ready and self.overflows(0, 0):
            self._drop_overflow()
            self.move_up(now)
        if ttl is not None and entry.ready:
            self._mortal = True
            if ttl == 0:
                self.expire(now)
            self.host.arm(self)
        return True

    def accepts_at_once(self, size: int) -> bool:
        """Whether a message of that size would go straight to a consumer (``immediate``)."""
        if self.ready > self.skipped:
            return False
        return any(consumer.acquires and consumer.admits(size) for consumer in self._candidates())

    def hand_over(self, envelope: Envelope, now: float) -> bool:
        """Have a consumer take a message at once (``immediate``). False: none did, and the queue does not keep it."""
        if not self.publish(envelope, now):
            return False
        line = self._lines[min(envelope.priority, len(self._lines) - 1)]
        if not line or (entry := line[-1]).envelope is not envelope or not entry.ready or self.pending:
            return True
        self.take(entry)
        entry.drop()
        return False

    def requeue(self, entries: Iterable[Entry], now: float) -> None:
        """Give entries back their old places. Dispatch is the caller's business."""
        by_level: dict[int, list[Entry]] = {}
        epoch = self.epoch
        self._settled = False
        for entry in entries:
            entry.ready = epoch
            self.ready += 1
            self.ready_octets += entry.size
            self.skipped += entry.skipped
            if entry.stored == epoch:
                self._holes -= 1
            else:
                entry.stored = epoch
                by_level.setdefault(entry.level, []).append(entry)
            if self._selective or self._carriers:
                self._note_return(entry)
        for level, returned in by_level.items():
            _insert(self._lines[level], sorted(returned, key=_BY_POSITION))
        if self.arguments.overflow not in REFUSING:
            self._drop_overflow()
        if self._mortal:
            self.host.arm(self)

    def _note_return(self, entry: Entry) -> None:
        """Have those who select or skip look at an entry again; who is too far behind, at the whole queue."""
        returned = self._returned
        if len(returned) >= RETURNED_MAX:
            for cursor in self._cursors():
                if cursor.looks_again and cursor.returned_at < len(returned):
                    cursor.rewind()
                cursor.returned_at = 0
            returned.clear()
        returned.append(entry)

    def _cursors(self) -> Iterator[QueueCursor]:
        for consumer in self._selective:
            if consumer.cursor is not None:
                yield consumer.cursor
        yield from self._carriers.values()

    def first(self, now: float) -> Entry | None:
        """The next entry, None if none is ready. Expired ones become dead letters on the way, a batch at a time:
        ``unfinished`` says if there are more."""
        self.unfinished = False
        line = self._lines[-1]
        if line:  # nearly always there is one line, and its head is ready
            entry = line[0]
            if entry.ready and entry.expires is None:
                return entry
        left = BATCH
        for line in reversed(self._lines):
            while (head := self._head(line)) is not None:
                if head.expires is None or head.expires >= now:
                    return head
                if not left:
                    self.unfinished = True
                    return None
                left -= 1
                self.take(head)
                self.host.died(head, "expired")
        return None

    def _head(self, line: deque[Entry]) -> Entry | None:
        """The first ready entry of a line; holes before it are swept up."""
        while line:
            entry = line[0]
            if entry.ready:
                return entry
            line.popleft()
            entry.stored = 0
            self._holes -= 1
        return None

    def take(self, entry: Entry) -> None:
        """Take a ready entry out of the queue."""
        entry.ready = 0
        self.ready -= 1
        self.ready_octets -= entry.size
        if entry.skipped:
            self._less_skipped()
        line = self._lines[entry.level]
        if line[0] is entry:
            line.popleft()
            entry.stored = 0
            if self._mortal:
                self.host.arm(self)
            return
        self._holes += 1
        if self._holes > min(self.ready + _HOLES_MIN, _HOLES_MAX):
            self._sweep()

    def purge(self) -> int:
        """Drop what is ready; how many there were."""
        count = self.ready
        for line in self.clear():
            self.host.discard(line, self.epoch - 1)
        return count

    def clear(self) -> list[deque[Entry]]:
        """Take all that is ready out of the queue: its lines. What of them was ready has the epoch before this."""
        lines, self._lines = self._lines, [deque() for _ in self._lines]
        self.epoch += 1
        self.ready = self.ready_octets = self._holes = self.skipped = 0
        self._carriers.clear()
        for cursor in self._cursors():
            cursor.returned_at = 0
        self._returned.clear()
        return [line for line in reversed(lines) if line]

    def expire(self, now: float) -> None:
        """Bury what has expired at the head of each line; no more than a batch, the next alarm is for the rest."""
        left, over = BATCH, self.host.turn.over
        for line in self._lines:
            while (
                left and (entry := self._head(line)) is not None and entry.expires is not None and entry.expires <= now
            ):
                left -= 1
                if not left % PIECE and over():
                    left = 0
                self.take(entry)
                self.host.died(entry, "expired")

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
        left = BATCH
        while self.ready and (
            (count_max is not None and self.ready > count_max)
            or (octets_max is not None and self.ready_octets > octets_max)
        ):
            if not left:
                left = BATCH
                if self.host.turn.over():
                    self._later()
                    return
            left -= 1
            entry = next(entry for line in reversed(self._lines) if (entry := self._head(line)) is not None)
            self.take(entry)
            self.host.died(entry, "maxlen")

    def _sweep(self) -> None:
        for level, line in enumerate(self._lines):
            kept = deque(entry for entry in line if entry.ready)
            if len(kept) != len(line):
                for entry in line:
                    if not entry.ready:
                        entry.stored = 0
                self._lines[level] = kept
        self._holes = 0

    # ------------------------------------------------------------- what not every connection can carry

    def skip(self, entry: Entry) -> bool:
        """A connection cannot carry the entry, which stays for others. Whether that is the first time."""
        if entry.skipped:
            return False
        entry.skipped = True
        if entry.ready == self.epoch:
            self.skipped += 1
        return True

    def _less_skipped(self) -> None:
        self.skipped -= 1
        if not self.skipped:
            self._carriers.clear()
            if not self._selective:
                self._returned.clear()

    def next_for(self, connection: Carrier, now: float) -> Entry | None:
        """The next entry that the connection can carry, as far as is known; None if none is ready, or if it goes on
        looking in a later turn (``unfinished``). What has expired becomes a dead letter on the way."""
        if not self.skipped:
            return self.first(now)
        return self._unseen(self._cursor_of(connection), connection.carries, now, expire=True)

    def _cursor_of(self, connection: Carrier) -> QueueCursor:
        """The cursor of all connections that can carry what this one can."""
        carriers = self._carriers
        cursor = carriers.get(connection.carriage)
        if cursor is None:
            if len(carriers) >= CARRIERS_MAX:
                del carriers[next(iter(carriers))]
            cursor = carriers[connection.carriage] = QueueCursor(len(self._lines), len(self._returned))
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
            consumer.cursor = QueueCursor(len(self._lines), len(self._returned), looks_again=consumer.acquires)
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
        if not self._selective and not self._carriers:
            self._returned.clear()
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
        """Hand out what is ready to those who may have it, until the turn is over; the rest later."""
        if self.pending:
            return
        if self._is_picky():
            self._dispatch_selectively(now)
            return
        next_consumer, turn = self._rotation.next, self.host.turn
        while self.ready:
            if turn.clock() >= turn.until:
                self._later()
                return
            entry = self.first(now)
            if entry is None:
                if self.unfinished:
                    self._later()
                return
            consumer = next_consumer(entry.size)
            if consumer is None:
                return
            if consumer.channel.deliver(consumer, entry, now):
                self.take(entry)
            elif self._is_picky():
                self._dispatch_selectively(now)
                return

    def move_up(self, now: float) -> None:
        """What came first has gone, and to no consumer: what it held up may go to one."""
        self._settled = False
        if self.ready and self.consumers:
            self.dispatch(now)

    def _is_picky(self) -> bool:
        """Not every consumer may have what comes first."""
        return bool(self._selective) or self.skipped > 0

    def go_on(self, now: float) -> None:
        """Do what was left over from an earlier turn."""
        self.pending = False
        if not self.gone:
            if self.arguments.overflow not in REFUSING:
                self._drop_overflow()
            self.dispatch(now)

    def _later(self) -> None:
        self._settled = False
        if not self.pending:
            self.pending = True
            self.host.later(self)

    def _dispatch_selectively(self, now: float) -> None:
        """The same where not every consumer may have what comes first."""
        over = self.host.turn.over
        for consumer in list(self._selective):
            if not consumer.acquires and not self._show(consumer, now):
                self._later()
                if over():
                    return
        chosen: list[Entry] = []
        dry: set[QueueCursor] = set()
        is_unfinished = False

        def choose(consumer: Consumer) -> bool:
            nonlocal is_unfinished
            if is_unfinished:
                return False
            self.unfinished = False
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
            if entry is None:
                if self.unfinished:
                    tired.append(consumer)
                    is_unfinished = over()
                return False
            if not consumer.admits(entry.size):
                return False
            chosen.append(entry)
            return True

        was_settled = self._settled
        tired: list[Consumer] = []
        while self.ready and not is_unfinished and (taker := self._rotation.select(choose)) is not None:
            entry = chosen.pop()
            if taker.channel.deliver(taker, entry, now):
                self.take(entry)
                if was_settled:
                    break  # no more than one has come since nobody could take any
            is_unfinished = over()
        for consumer in tired:
            self._rotation.put_back(consumer)
        if is_unfinished or tired:
            self._later()
        else:
            self._settled = True

    def _show(self, consumer: Consumer, now: float) -> bool:
        """Show a browser what it has not seen. False: there is more, for a later turn."""
        cursor, over = consumer.cursor, self.host.turn.over
        assert cursor is not None
        while True:
            entry = self._unseen(cursor, consumer.wants, now)
            if entry is None or not consumer.admits(entry.size):
                break
            if consumer.channel.deliver(consumer, entry, now):
                cursor.unseen.popleft()
            if over():
                self.unfinished = True
                break
        if self.unfinished:  # the others first, next time
            del self._selective[consumer]
            self._selective[consumer] = None
            return False
        if entry is None and consumer.auto_close:
            consumer.channel.connection.broker.finish_later(consumer)
        return True

    def _unseen(
        self, cursor: QueueCursor, wants: Callable[[Entry], bool], now: float, expire: bool = False
    ) -> Entry | None:
        """The first ready entry that was not looked at with this cursor and is wanted. What has expired is passed
        over, or sent as a dead letter. None: no such entry, or the turn is over (``unfinished``)."""
        self.unfinished = False
        epoch, turn = self.epoch, self.host.turn
        if cursor.looks_again and cursor.returned_at < len(self._returned):
            self._look_again(cursor)
        unseen = cursor.unseen
        level = len(self._lines) if len(self._lines) > 1 else 0
        while True:
            while unseen:
                entry = unseen[0]
                if entry.level < level:
                    level = entry.level
                    self._put_back_lower(cursor)
                    continue
                if entry.ready == epoch:
                    if entry.expires is None or entry.expires >= now:
                        if wants(entry):
                            return entry
                    elif expire:
                        self.take(entry)
                        self.host.died(entry, "expired")
                unseen.popleft()
                if turn.clock() >= turn.until:
                    self.unfinished = True
                    return None
            self._look(cursor)
            if not unseen:
                return None

    def _look_again(self, cursor: QueueCursor) -> None:
        """Put what came back where it belongs among what the cursor has found; if that is too much, it looks at the
        whole queue again."""
        seen, unseen = cursor.seen, cursor.unseen
        fresh = [
            entry
            for entry in self._returned[cursor.returned_at :]
            if entry.ready == self.epoch and entry.position <= seen[entry.level]
        ]
        cursor.returned_at = len(self._returned)
        if len(unseen) + len(fresh) > 2 * BATCH:
            cursor.rewind()
        elif fresh and len(self._lines) == 1:
            _insert(unseen, sorted(fresh, key=_BY_POSITION))
        elif fresh:
            together = sorted([*unseen, *fresh], key=lambda entry: (-entry.level, entry.position))
            unseen.clear()
            unseen.extend(together)

    def _put_back_lower(self, cursor: QueueCursor) -> None:
        """Forget what was found of a priority if something of a higher one has come since."""
        for level in range(len(self._lines) - 1, cursor.unseen[0].level, -1):
            line = self._lines[level]
            if line and line[-1].position > cursor.seen[level]:
                for entry in reversed(cursor.unseen):
                    cursor.seen[entry.level] = entry.position - 1
                cursor.unseen.clear()
                return

    def _look(self, cursor: QueueCursor) -> None:
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
_HOLES_MAX = 16_384
"""Holes that are swept up however long the queue is."""
RETURNED_MAX = 16_384
"""Entries that came back, and are kept in mind for those who select."""


def _insert(line: deque[Entry], entries: list[Entry]) -> None:
    """Put entries, sorted by position, where they belong in a sorted line. The line is turned once, however many they
    are; what is close to its head is cheap."""
    if not line or entries[-1].position < line[0].position:
        line.extendleft(reversed(entries))
        return
    places = [bisect_right(line, entry.position, key=_BY_POSITION) for entry in entries]
    turned = 0
    for place, entry in zip(places, entries, strict=True):
        line.rotate(turned - place)
        turned = place
        line.append(entry)
    line.rotate(turned + len(entries))
