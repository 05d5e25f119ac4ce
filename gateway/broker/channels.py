"""One channel (0-10: session) as the broker sees it: what is out, what is buffered, what is to be confirmed.

Deliveries that are out are kept in the order in which they went, so that "all up to" is a walk from the front.
In a transaction (tx class) publishes and settlements are only noted; commit carries them out, rollback forgets
them, and the settled deliveries are out again. What is done in a branch of a distributed transaction is noted there
(:mod:`gateway.broker.dtx`), since another channel may decide of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeAlias

from gateway.amqp.message import SMALL
from gateway.amqp.operations import Cancelled, Confirmed, Deliver, Failed, Publish, Settle, Settlement
from gateway.broker.consumers import Consumer, Window
from gateway.broker.dtx import Branch, BranchState
from gateway.broker.queues import ENTRY_OVERHEAD, Entry, Envelope, Queue
from gateway.broker.refusals import refusal, reply_text
from gateway.broker.turns import PIECE, Job, drained, pieces
from gateway.errors import EncodeError, FrameSyntaxError, LocalError, StateError

if TYPE_CHECKING:
    from gateway.broker.broker import Connection
    from gateway.broker.vhost import VirtualHost

SETTLED = 1 << 64
"""In place of the oldest delivery: there is none."""

Delivery: TypeAlias = tuple[int, Entry, Consumer | None]
"""Its number, the message, and who has it (None: it answered a Get)."""


class Transaction:
    """What a channel in transaction mode has noted since the last commit or rollback."""

    __slots__ = ("publishes", "settlements")

    def __init__(self) -> None:
        self.publishes: list[tuple[Publish, Envelope]] = []
        self.settlements: list[tuple[Delivery, Settlement]] = []


class Channel:
    """One open channel of one connection."""

    __slots__ = (
        "_confirm_first", "_confirm_last", "_seen", "alarm", "away", "branch", "branches", "checked_octets",
        "checked_priority", "confirms", "connection", "consumers", "distributed", "full", "key", "last_queue",
        "number", "prefetch", "state", "stopped", "transaction", "unsettled", "window",
    )  # fmt: skip

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.consumers: dict[str, Consumer] = {}
        self.unsettled: dict[int, tuple[Entry, Consumer | None]] = {}
        limits = connection.broker.limits
        self.window = Window(limits.unacked, limits.unacked_octets)
        """The whole channel's prefetch; where it has none, our own limit."""
        self.full = False
        """``window`` has held a consumer back."""
        self.prefetch = (0, 0)
        """Messages and octets for each consumer that is started from now on."""
        self.state: Any = None
        """What stands for its 0-10 session, which may outlive the connection."""
        self.key: tuple[str, str, bytes] | None = None
        """How the session is found."""
        self.away = False
        """It has no connection for now; ``connection`` is the last one."""
        self.alarm: float | None = None
        self.stopped = False
        """The client asked for no more content (channel.flow)."""
        self.confirms = connection.rules.always_confirms
        self.transaction: Transaction | None = None
        self.distributed = False
        """dtx.select was sent."""
        self.branch: Branch | None = None
        """What is done now belongs to it."""
        self.branches: dict[Branch, None] = {}
        """All that it has started or suspended, and not ended."""
        self.last_queue = ""
        """The queue declared last: an empty name stands for it (0-9-1, queue.bind)."""
        self.checked_octets: bytes | None = None
        """The raw properties of the message published last, if it has no time to live: publishers mostly send the
        same again, which need not be decoded and checked again."""
        self.checked_priority = 0
        self._confirm_first = 0
        self._confirm_last = 0
        self._seen: deque[tuple[float, int]] = deque()
        """When :meth:`overdue` looked, and the last delivery then."""

    # ----------------------------------------------------------------------------------------- deliveries

    def deliver(self, consumer: Consumer, entry: Entry, now: float) -> bool:
        """Send a message, which the queue then has to let go unless it is browsed. False: the consumer cannot have it,
        and nothing was sent."""
        connection, envelope = self.connection, entry.envelope
        try:
            number = connection.session.send(
                Deliver(
                    self.number,
                    consumer.tag,
                    0,
                    entry.redelivered,
                    envelope.exchange,
                    envelope.routing_key,
                    envelope.message,
                ),
                now,
            )
        except (EncodeError, FrameSyntaxError) as error:
            connection.skip(entry, error)
            return False
        except LocalError as error:
            # The consumer loses its channel, if it has not lost it already (StateError: its session has closed it, and
            # says so next).
            consumer.cancelled = True
            if not isinstance(error, StateError):
                connection.broker.fail_later(self, reply_text(311, f"{entry.queue.name}: {error}"))
            return False
        connection.wrote(entry.size)
        if consumer.credit is not None:
            consumer.credit.spend(entry.size)
        if not consumer.no_ack:
            consumer.window.add(entry.size)
            self.window.add(entry.size)
            self.unsettled[number] = (entry, consumer)
            envelope.message.forget(SMALL)  # decoded, if it goes to another version than it came from
            if not consumer.acquires:
                consumer.queue.memory.used += ENTRY_OVERHEAD
        elif consumer.acquires:
            entry.drop()
        return True

    def settle(self, request: Settle, now: float) -> Job | None:
        """basic.ack, nack, reject; message.accept, release, reject; a job, where they are many. 406 for a delivery that
        is not out."""
        numbers = self._named(request.first, request.last)
        if len(numbers) <= PIECE:
            self._settle(self._take(numbers), request.settlement, now)
            return None
        return self._settle_many(numbers, request.settlement, now)

    def _settle_many(self, numbers: Iterable[int], settlement: Settlement, now: float) -> Job:
        for piece in pieces(numbers):
            self._settle(self._take(piece), settlement, now)
            yield

    def _settle(self, deliveries: list[Delivery], settlement: Settlement, now: float) -> None:
        if self.branch is not None and settlement is Settlement.ACCEPT:
            self._accept_in_branch(self.branch, deliveries, now)
        elif self.transaction is None or (
            settlement is not Settlement.ACCEPT and not self.connection.rules.transactional_release
        ):
            self.finish(deliveries, settlement, now)
        else:
            self.transaction.settlements.extend((delivery, settlement) for delivery in deliveries)

    def _take(self, numbers: Iterable[int]) -> list[Delivery]:
        """Take deliveries out of ``unsettled``."""
        unsettled = self.unsettled
        return [(number, *unsettled.pop(number)) for number in numbers if number in unsettled]

    def _named(self, first: int, last: int) -> list[int]:
        """The deliveries of a range that are out."""
        unsettled = self.unsettled
        if first == last and last:
            if last in unsettled:
                return [last]
            self._unknown(last)
            return []
        if last == 0:
            return list(unsettled)
        if first == 0:
            if last not in unsettled:
                self._unknown(last)
            return list(takewhile(last.__ge__, unsettled))
        return self._within(first, last)

    def _within(self, first: int, last: int) -> list[int]:
        """The deliveries of a range that are out; a range may be far wider than what there is."""
        unsettled = self.unsettled
        if last - first < len(unsettled):
            return [number for number in range(first, last + 1) if number in unsettled]
        return [number for number in unsettled if first <= number <= last]

    def _unknown(self, number: int) -> None:
        if self.connection.rules.strict_settlement:
            raise refusal(406, f"unknown delivery tag {number}")

    def _accept_in_branch(self, branch: Branch, deliveries: list[Delivery], now: float) -> None:
        """What a branch has accepted waits for its end; where that can only be a rollback, it goes back now."""
        if branch.state is BranchState.ACTIVE:
            self.finish(deliveries, Settlement.ACCEPT, now, branch.entries.append)
        else:
            self.finish(deliveries, Settlement.RELEASE, now)

    def finish(
        self,
        deliveries: Iterable[Delivery],
        settlement: Settlement,
        now: float,
        accept: Callable[[Entry], None] = Entry.drop,
    ) -> None:
        """Carry out a settlement, and use the room that it makes. ``accept``: what is done with what was accepted."""
        returned: dict[Queue, list[Entry]] = {}
        freed: dict[Consumer, None] = {}
        for _, entry, consumer in deliveries:
            if consumer is not None:
                consumer.window.remove(entry.size)
                self.window.remove(entry.size)
                freed[consumer] = None
                if not consumer.acquires:
                    consumer.queue.memory.used -= ENTRY_OVERHEAD
                    continue
            queue = entry.queue
            if settlement is Settlement.ACCEPT or queue.gone:
                accept(entry)
            elif settlement is Settlement.RELEASE:
                entry.redelivered = True
                returned.setdefault(queue, []).append(entry)
            else:
                self.connection.vhost.died(entry, "rejected")
        for queue, entries in returned.items():
            queue.requeue(entries, now)
        self._make_use(freed, returned, now)

    def _make_use(self, freed: Iterable[Consumer], returned: Iterable[Queue], now: float) -> None:
        if self.full:
            self.full = False
            freed = self.consumers.values()
        queues = dict.fromkeys(returned)
        for consumer in freed:
            consumer.queue.wake(consumer)
            queues[consumer.queue] = None
        for queue in queues:
            if queue.ready:
                queue.dispatch(now)

    def wake(self, now: float) -> None:
        """What held the whole channel back has changed."""
        self._make_use(list(self.consumers.values()), (), now)

    def carry_out(self, settlements: Iterable[tuple[Delivery, Settlement]], now: float) -> Job:
        """Carry out the settlements of a transaction."""
        for piece in pieces(settlements):
            by_settlement: dict[Settlement, list[Delivery]] = {}
            for delivery, settlement in piece:
                by_settlement.setdefault(settlement, []).append(delivery)
            for settlement, deliveries in by_settlement.items():
                self.finish(deliveries, settlement, now)
            yield

    def acquire(self, ranges: Iterable[tuple[int, int]], taken: list[tuple[int, int]], now: float) -> Job:
        """message.acquire: take what was only shown out of its queue; those that it got are added to ``taken``. What
        they held up goes on."""
        for first, last in ranges:
            for piece in pieces(self._within(first, last)):
                queues: dict[Queue, None] = {}
                freed: dict[Consumer, None] = {}
                for number in piece:
                    entry, consumer = self.unsettled[number]
                    if consumer is None or consumer.acquires or entry.ready != entry.queue.epoch:
                        continue
                    entry.queue.take(entry)
                    queues[entry.queue] = freed[consumer] = None
                    consumer.window.remove(entry.size)
                    self.window.remove(entry.size)
                    consumer.queue.memory.used -= ENTRY_OVERHEAD
                    self.unsettled[number] = (entry, None)
                    if taken and taken[-1][1] == number - 1:
                        taken[-1] = (taken[-1][0], number)
                    else:
                        taken.append((number, number))
                for queue in queues:
                    queue.move_up(now)
                self._make_use(freed, (), now)
                yield

    def recover(self, requeue: bool, now: float) -> Job:
        """basic.recover: give everything that is out back, to the queues or to those who had it."""
        for piece in pieces(list(self.unsettled)):
            deliveries = self._take(piece)
            if requeue:
                self.finish(deliveries, Settlement.RELEASE, now)
                yield
                continue
            orphans: list[Delivery] = []
            for delivery in deliveries:
                _, entry, consumer = delivery
                if consumer is None or consumer.cancelled or not consumer.acquires or entry.queue.gone:
                    orphans.append(delivery)
                    continue
                consumer.window.remove(entry.size)
                self.window.remove(entry.size)
                entry.redelivered = True
                if not self.deliver(consumer, entry, now):
                    entry.queue.requeue([entry], now)
            self.finish(orphans, Settlement.RELEASE, now)
            yield

    def limit(self, count: int, size: int) -> None:
        """The whole channel's prefetch, in messages and octets. 0, no limit, is the broker's own."""
        limits, window = self.connection.broker.limits, self.window
        window.count_max = min(count or limits.unacked, limits.unacked)
        window.size_max = min(size or limits.unacked_octets, limits.unacked_octets)

    def overdue(self, now: float, timeout: float) -> bool:
        """Whether a delivery is out for longer than ``timeout``, as far as the calls of this tell: each remembers
        which delivery was the last then. No delivery pays for it."""
        seen = self._seen
        if self.transaction is not None and self.transaction.settlements:
            oldest = min(next(iter(self.unsettled), SETTLED), self.transaction.settlements[0][0][0])
        else:
            oldest = next(iter(self.unsettled), SETTLED)
        if oldest is SETTLED:
            seen.clear()
            return False
        while seen and seen[0][1] < oldest:
            seen.popleft()
        if seen and now - seen[0][0] >= timeout:
            return True
        last = next(reversed(self.unsettled), oldest)
        if not seen or last > seen[-1][1]:
            seen.append((now, last))
        return False

    # ------------------------------------------------------------------------------------------ consumers

    def consumer_cancelled(self, consumer: Consumer, now: float) -> None:
        """The queue of a consumer is gone: tell the client."""
        del self.consumers[consumer.tag]
        self.connection.send(Cancelled(self.number, consumer.tag), now)

    def cancel(self, consumer: Consumer, now: float) -> None:
        """The client wants no more; what is out stays out."""
        vhost = self.connection.vhost
        del self.consumers[consumer.tag]
        vhost.remove_consumer(consumer)
        vhost.unused(consumer.queue, now)
        if consumer.queue.ready:
            consumer.queue.dispatch(now)

    def finish_consumer(self, consumer: Consumer, now: float) -> None:
        """The consumer wanted to see what there is, and has: end it, and tell the client."""
        self.cancel(consumer, now)
        self.connection.send(Cancelled(self.number, consumer.tag), now)

    # ------------------------------------------------------------------------------------------- confirms

    def confirm(self, serial: int) -> None:
        """A publish is safe; reported at the end of the turn, together with its neighbors."""
        if not self._confirm_first:
            self._confirm_first = serial
            self.connection.confirming[self] = None
        self._confirm_last = serial

    def flush_confirms(self, now: float) -> None:
        """Tell what is safe."""
        if self._confirm_first:
            self.connection.send(Confirmed(self.number, self._confirm_first, self._confirm_last), now)
            self._confirm_first = 0

    # -------------------------------------------------------------------------------------- transactions

    def roll_back(self) -> Job:
        """Forget the publishes; the deliveries settled are out again."""
        transaction = self.transaction
        assert transaction is not None
        self.transaction = Transaction()
        for publishes in pieces(drained(transaction.publishes)):
            for _, envelope in publishes:
                envelope.release()
            yield
        if transaction.settlements:
            for settlements in pieces(drained(transaction.settlements), 4 * PIECE):
                for (number, entry, consumer), _ in settlements:
                    self.unsettled[number] = (entry, consumer)
                yield
            unsettled, numbers = self.unsettled, sorted(self.unsettled)
            yield
            self.unsettled = dict(zip(numbers, map(unsettled.__getitem__, numbers), strict=True))
            yield  # the old one goes in a turn of its own

    # ------------------------------------------------------------------------------------------------ end

    def fail(self, code: int, text: str, serial: int, now: float) -> None:
        """Close it with an error; ``serial`` is the request that caused it, 0 for none."""
        self.flush_confirms(now)
        self.connection.send(Failed(self.number, serial, serial, code, text), now)
        self.close(now)

    def close(self, now: float) -> None:
        """It is over: consumers go, what is out goes back. Nothing more that its connection asks for is done before."""
        connection = self.connection
        self.stopped = True
        if connection.channels.get(self.number) is self:
            del connection.channels[self.number]
        connection.broker.channel_gone(self)
        connection.confirming.pop(self, None)
        connection.broker.work(connection, self._end(connection.vhost, now), now)

    def _end(self, vhost: VirtualHost, now: float) -> Job:
        queues: dict[Queue, None] = {}
        while self.consumers:
            for _ in range(min(len(self.consumers), PIECE)):
                _, consumer = self.consumers.popitem()
                queues[consumer.queue] = None
                vhost.remove_consumer(consumer)
            yield
        if self.transaction is not None:
            yield from self.roll_back()
        yield from vhost.branches.leave(self, now)
        for piece in pieces(list(self.unsettled)):
            self.finish(self._take(piece), Settlement.RELEASE, now)
            yield
        for queue in queues:
            vhost.unused(queue, now)
            if queue.ready:
                queue.dispatch(now)
            yield
