"""A client's subscription and its credit.

Flow is credit mode throughout: what a consumer may have is granted by message.flow and topped up as it settles,
half a prefetch at a time. A limit in octets is kept here and not by credit in octets: 0-10 never delivers a message
that is larger than what is left of its credit, and a queue would stand still behind it. Instead messages are
granted one at a time until their size is known, and then as many as fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.v010.client_requests import Step

COUNT_MAX: Final = 65_535
"""Most messages granted at a time where only octets are limited."""


class Subscription:
    """One destination of the session."""

    __slots__ = (
        "count_max", "credit", "destination", "ended", "get", "likely", "no_ack", "octets", "out", "owed", "size_max",
        "starting", "stopped",
    )  # fmt: skip

    def __init__(self, destination: str, no_ack: bool, count_max: int = 0, size_max: int = 0) -> None:
        self.destination = destination
        self.no_ack = no_ack
        self.count_max = 0 if no_ack else count_max
        self.size_max = 0 if no_ack else size_max
        """The prefetch; 0 is no limit, and nothing limits what needs no settling."""
        self.credit = 0
        """What the broker may still send, as it was granted."""
        self.owed = 0
        """Settled and not granted again."""
        self.out = 0
        self.octets = 0
        """Outstanding messages and, where octets are limited, their octets."""
        self.likely = 0
        """How large the next message may be: as the last ones were, the larger ones counting more."""
        self.starting: Step | None = None
        """The Consume whose outcome is still to be told."""
        self.get: Step | None = None
        """The Get that this subscription serves."""
        self.stopped = False
        self.ended = False
        """message.cancel was sent: the broker knows the destination no more."""

    @property
    def unlimited(self) -> bool:
        """Granted once and for all."""
        return not self.count_max and not self.size_max

    def first_grant(self) -> int:
        """Credit to begin with (and again after a stop), for a subscription that is not unlimited."""
        self.credit = self.owed = 0
        if self.size_max:
            return self._by_size()
        self.credit = max(self.count_max - self.out, 0)
        return self.credit

    def measured(self, size: int) -> None:
        """A delivery of that size is outstanding."""
        self.octets += size
        self.likely = size if size > self.likely else (7 * self.likely + size) // 8

    def settled(self, size: int) -> None:
        """A delivery was settled."""
        self.out -= 1
        self.owed += 1
        self.octets -= size

    def top_up(self) -> int:
        """Credit to grant now; 0: none, or not worth a command yet."""
        if self.stopped or self.ended:
            return 0
        if self.size_max:
            return self._by_size()
        if self.owed * 2 < self.count_max and self.credit > 0:
            return 0
        grant, self.owed = self.owed, 0
        self.credit += grant
        return grant

    def _by_size(self) -> int:
        likely = self.likely or self.size_max
        room = (self.size_max - self.octets) // likely
        room = min(room, (self.count_max or COUNT_MAX) - self.out)
        if self.out == 0:
            room = max(room, 1)
        grant = max(room - self.credit, 0)
        self.credit += grant
        return grant
