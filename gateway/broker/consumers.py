"""Consumers: who may have how many messages.

A consumer of a classic channel is held back by prefetch (its own and the channel's, in messages and octets), one
of 0-10 by the credit that it was given; both by a channel that was asked to stop and by a connection that does not
read. :meth:`Consumer.admits` is the one place that decides.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Callable
from operator import neg
from typing import TYPE_CHECKING

from gateway.amqp.message import SMALL
from gateway.amqp.selectors import Selector
from gateway.amqp.steps import Steps, TooManySteps

if TYPE_CHECKING:
    from gateway.broker.channels import Channel
    from gateway.broker.queues import Entry, Queue


SELECTOR_WEIGHT = 64
"""Octets that a selector takes for each of its characters, compiled, roughly."""


class Window:
    """A limit on what is out, in messages and octets (0 is no limit), and what is out."""

    __slots__ = ("count", "count_max", "size", "size_max")

    def __init__(self, count_max: int = 0, size_max: int = 0) -> None:
        self.count_max = count_max
        self.size_max = size_max
        self.count = 0
        self.size = 0

    def admits(self, size: int) -> bool:
        """Whether a message of that size may go out too. The limit of octets is one on sending in advance: a
        message goes alone however large it is (0-9-1, basic.qos)."""
        if self.count_max and self.count >= self.count_max:
            return False
        return not self.size_max or self.count == 0 or self.size + size <= self.size_max

    def add(self, size: int) -> None:
        """A message went out."""
        self.count += 1
        self.size += size

    def remove(self, size: int) -> None:
        """A message was settled."""
        self.count -= 1
        self.size -= size


class CreditBalance:
    """What a 0-10 consumer may still have (message.flow); None is without limit."""

    __slots__ = ("messages", "octets")

    def __init__(self) -> None:
        self.messages: int | None = 0
        self.octets: int | None = 0

    def admits(self, size: int) -> bool:
        """Whether there is credit for a message of that size. An empty one takes some, too."""
        return (self.messages is None or self.messages > 0) and (self.octets is None or self.octets >= (size or 1))

    def spend(self, size: int) -> None:
        """A message went out."""
        if self.messages is not None:
            self.messages -= 1
        if self.octets is not None:
            self.octets -= size

    def grant(self, messages: int | None, octets: int | None) -> None:
        """Add credit."""
        self.messages = None if messages is None or self.messages is None else self.messages + messages
        self.octets = None if octets is None or self.octets is None else self.octets + octets

    def clear(self) -> None:
        """Take all credit away."""
        self.messages = self.octets = 0


class QueueCursor:
    """How far a browsing or selecting consumer has looked through its queue.

    ``unseen`` is what was found when it last looked; what was taken by others in the meantime is passed over.
    """

    __slots__ = ("looks_again", "returned_at", "seen", "unseen")

    def __init__(self, levels: int, returned_at: int, looks_again: bool = True) -> None:
        self.seen = [-1] * levels
        """Per priority: the position up to which everything was looked at."""
        self.unseen: deque[Entry] = deque()
        self.returned_at = returned_at
        """How much was looked at of what came back to the queue."""
        self.looks_again = looks_again
        """It looks at what came back. Browsers do not."""

    def rewind(self) -> None:
        """Look at the whole queue again."""
        self.seen = [-1] * len(self.seen)
        self.unseen.clear()


class Consumer:
    """One consumer of one queue."""

    __slots__ = (
        "acquires", "auto_close", "cancelled", "channel", "credit", "cursor", "exclusive", "flushing", "no_ack",
        "no_local", "priority", "queue", "selector", "tag", "waiting", "wanted", "weight", "window",
    )  # fmt: skip

    def __init__(
        self,
        channel: Channel,
        queue: Queue,
        tag: str,
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        acquires: bool = True,
        priority: int = 0,
        selector: Selector | None = None,
        no_local: bool = False,
        auto_close: bool = False,
        credit: CreditBalance | None = None,
        window: Window | None = None,
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.acquires = acquires
        """False: it browses; messages stay where they are."""
        self.priority = priority
        self.selector = selector
        self.no_local = no_local
        self.auto_close = auto_close
        """It ends when nothing is left that it has not seen."""
        self.credit = credit
        """None: prefetch instead of credit."""
        self.window = window if window is not None else Window()
        self.cursor: QueueCursor | None = None
        """For those that do not simply take the first message: browsers and selectors."""
        self.waiting = False
        """It stands in its queue's rotation."""
        self.flushing = False
        """message.flush: deliver even though the connection is slow to read; the credit bounds it."""
        self.cancelled = False
        self.wanted: Entry | None = None
        """The last that its selector selected: what it costs to find out is spent once."""
        self.weight = len(tag) + (SELECTOR_WEIGHT * len(selector.text) if selector is not None else 0)
        """What its tag and selector take in memory, roughly, in octets."""

    @property
    def selective(self) -> bool:
        """It does not simply take the first message."""
        return not self.acquires or self.selector is not None or self.no_local

    def wants(self, entry: Entry) -> bool:
        """Whether it wants this message at all."""
        envelope = entry.envelope
        if envelope.frame_sizes is not None and not self.channel.connection.carries(entry):
            return False
        if self.no_local and envelope.publisher == self.channel.connection.number:
            return False
        if self.selector is None:
            return True
        if self.wanted is entry:
            return True
        message = envelope.message
        connection = self.channel.connection
        try:
            if not self.selector.matches(message.properties, Steps(connection.broker.limits.select_steps)):
                return False
            self.wanted = entry
            return True
        except TooManySteps:
            connection.broker.too_costly(connection, "a selector", self.queue.name)
            return False
        finally:
            message.forget(SMALL)

    def admits(self, size: int) -> bool:
        """Whether it may have a message of that size now."""
        channel = self.channel
        if channel.stopped or channel.away or self.cancelled:
            return False
        connection = channel.connection
        if connection.paused and not (self.flushing and connection.outgoing <= connection.broker.limits.input_stop):
            connection.parked[self] = None
            return False
        if self.credit is not None and not self.credit.admits(size):
            return False
        if self.no_ack:
            return True
        if not channel.window.admits(size):
            channel.full = True
            return False
        return self.window.admits(size) and (self.acquires or connection.broker.may_show(self))


class Rotation:
    """The consumers of a queue that are ready for messages, in turn, the highest priority first.

    One that can take no message leaves the rotation, and comes back (at the end) when something that held it back
    has changed; so the cost of a message does not grow with the number of consumers that are full. One for which only
    this message is too large is passed over.
    """

    __slots__ = ("_lines", "_priorities")

    def __init__(self) -> None:
        self._lines: dict[int, OrderedDict[Consumer, None]] = {}
        self._priorities: list[int] = []
        """Of the lines, the highest first."""

    def add(self, consumer: Consumer) -> None:
        """At the end of the line of its priority."""
        line = self._lines.get(consumer.priority)
        if line is None:
            line = self._lines[consumer.priority] = OrderedDict()
            insort(self._priorities, consumer.priority, key=neg)
        consumer.waiting = True
        line[consumer] = None

    def remove(self, consumer: Consumer) -> None:
        """It is gone for good; an empty line goes with it."""
        line = self._lines.get(consumer.priority)
        if line is None:
            return
        if consumer.waiting:
            del line[consumer]
            consumer.waiting = False
        if not line:
            del self._lines[consumer.priority]
            self._priorities.remove(consumer.priority)

    def next(self, size: int) -> Consumer | None:
        """Whose turn it is to have a message of ``size``; it goes to the end of its line."""
        for priority in self._priorities:
            line = self._lines[priority]
            for consumer in line:  # nearly always it is the first
                if consumer.admits(size):
                    if len(line) > 1:
                        line.move_to_end(consumer)
                    return consumer
                if (chosen := _search(line, size)) is not None:
                    return chosen
                break
        return None

    def select(self, choose: Callable[[Consumer], bool]) -> Consumer | None:
        """The first in line that ``choose`` accepts; it goes to the end of its line. Those that can have none leave
        it."""
        for priority in self._priorities:
            line = self._lines[priority]
            full: list[Consumer] = []
            chosen = None
            for consumer in line:
                if choose(consumer):
                    chosen = consumer
                    break
                if not consumer.admits(0):
                    full.append(consumer)
            for consumer in full:
                del line[consumer]
                consumer.waiting = False
            if chosen is not None:
                line.move_to_end(chosen)
                return chosen
        return None

    def put_back(self, consumer: Consumer) -> None:
        """It goes to the end of its line, if it stands in one."""
        if consumer.waiting:
            self._lines[consumer.priority].move_to_end(consumer)


def _search(line: OrderedDict[Consumer, None], size: int) -> Consumer | None:
    """The first of a line that can have a message of ``size``; those before it that can have none leave the line."""
    full: list[Consumer] = []
    chosen = None
    for consumer in line:
        if consumer.admits(size):
            chosen = consumer
            break
        if not consumer.admits(0):
            full.append(consumer)
    for consumer in full:
        del line[consumer]
        consumer.waiting = False
    if chosen is not None:
        line.move_to_end(chosen)
    return chosen
