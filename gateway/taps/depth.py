"""The number of messages that the queue held at the start, and no more.

A broker sends up to ``prefetch`` messages ahead of their acknowledgements, so a consumer that just stops at the last
one has been sent others, which would go back to the queue marked as redelivered. Therefore of each channel so many
acknowledgements are withheld that the broker cannot send more than is wanted: it has sent those that are acknowledged,
and a prefetch more. When all have come the consumer is cancelled, and then what was withheld is acknowledged::

    wanted 10, prefetch 4:   at most 6 acknowledgements while there are messages to come, so at most 10 come

A channel that dies may take the last acknowledgements with it. That the broker got one is only sure when it has sent
more than a prefetch since, or has closed the channel because it was asked to; the others count as not given, and their
messages as left. So after such a death a few messages more may be taken than there were, never fewer.
"""

from __future__ import annotations

from gateway.upstreams import Delivery


class Depth:
    """How many are left."""

    def __init__(self, depth: int, left: int) -> None:
        self.depth = depth
        """How many there were at the start."""
        self.left = left
        """How many of them are not done with."""
        self.to_come = left
        """How many may still come on this channel."""
        self.passed = 0
        """How many came on this channel that nobody can take."""
        self._acknowledgeable = 0
        """How many acknowledgements may leave before all have come."""
        self._channel: object = None
        self._received = self._acknowledged = 0
        """How many came on this channel, and of how many of them the acknowledgement was sent."""
        self._prefetch = 1
        self._ended = False
        """The consumer is cancelled: nothing comes any more, even after acknowledgements."""
        self._withheld: list[Delivery] = []

    def begin(self, prefetch: int) -> int:
        """A consumer begins, with that prefetch if it is not more than what is left: then with what is answered."""
        prefetch = max(1, min(prefetch, self.left))
        self._channel = None
        self._renew(prefetch)
        return prefetch

    def arrive(self, delivery: Delivery, prefetch: int) -> bool:
        """Whether that one is wanted. ``prefetch``: of its consumer, which may have started again."""
        if self._channel is not delivery.channel:
            if self._channel is not None:
                self._renew(prefetch)
            self._channel = delivery.channel
        if self.to_come <= 0:
            return False
        self.to_come -= 1
        self._received += 1
        return True

    def settled(self) -> None:
        """The acknowledgement of one was sent, or is about to be."""
        self.left -= 1
        self._acknowledged += 1

    @property
    def left_at_most(self) -> int:
        """How many are left if no acknowledgement reaches the broker of which that is not sure."""
        sure = max(0, self._received - self._prefetch)
        return min(self.depth, self.left + max(0, self._acknowledged - sure))

    def lose(self) -> None:
        """The channel died: what may not have reached the broker is left."""
        self.left = self.left_at_most
        self._received = self._acknowledged = 0

    def confirm(self) -> None:
        """The broker closed the channel because it was asked to: it has all acknowledgements."""
        self._received = self._acknowledged = 0

    def pass_over(self) -> None:
        """One came that nobody can take; it stays in the queue."""
        self.to_come = max(0, self.to_come - 1)
        self.passed += 1

    def withholds(self, delivery: Delivery) -> bool:
        """Whether its acknowledgement must wait; it is given out by :meth:`release`."""
        if self._ended or delivery.channel is not self._channel:  # one of a channel that died can go nowhere
            return False
        if self._acknowledgeable > 0:
            self._acknowledgeable -= 1
            return False
        self._withheld.append(delivery)
        return True

    @property
    def withholds_any(self) -> bool:
        """Whether an acknowledgement waits for :meth:`release`."""
        return bool(self._withheld)

    def release(self) -> list[Delivery]:
        """What was withheld, now that the consumer is cancelled and nothing more will come."""
        self._ended = True
        self.to_come = 0
        withheld, self._withheld = self._withheld, []
        return withheld

    def _renew(self, prefetch: int) -> None:
        """Another channel: what was not settled on the last one comes again."""
        self.to_come = self.left
        self._acknowledgeable = max(0, self.left - prefetch)
        self.passed = 0
        self._prefetch = prefetch
        self._received = self._acknowledged = 0
        self._ended = False
        self._withheld.clear()
