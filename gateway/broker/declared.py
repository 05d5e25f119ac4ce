"""What one user of the embedded broker has declared, opened and subscribed to, against the shares of the user.

A thing counts for the user who made it until it is gone, also while others use it. All users together are bounded by
:class:`~gateway.limits.BrokerLimits`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from gateway.broker.refusals import refusal


class Kind(StrEnum):
    """What is counted; the name of the budget."""

    CHANNELS = "embedded_channels"
    EXCHANGES = "embedded_exchanges"
    QUEUES = "embedded_queues"
    BINDINGS = "embedded_bindings"
    CONSUMERS = "embedded_consumers"
    OCTETS = "embedded_declared_bytes"
    """Of names, keys and arguments of the others, as :attr:`~gateway.limits.BrokerLimits.declared_octets` counts."""


class DeclaredByUser:
    """How much of each kind one user has."""

    __slots__ = ("_refusal_of", "_share_of", "held")

    def __init__(self, share_of: Callable[[Kind], int], refusal_of: Callable[[Kind, int, int], str]) -> None:
        """
        Args:
            share_of: returns how much of a kind the user may have.
            refusal_of: called with a kind, what the user has of it and what it asks for, where that is too much; counts
                the refusal and returns the text that says so.
        """
        self._share_of = share_of
        self._refusal_of = refusal_of
        self.held = dict.fromkeys(Kind, 0)

    def take(self, kind: Kind, octets: int = 0) -> None:
        """Count one more, with this many bytes of names and arguments.

        Raises:
            RemoteError: 506, the user would have more than its share.
        """
        for each, amount in ((kind, 1), (Kind.OCTETS, octets)):
            held = self.held[each]
            if held + amount > self._share_of(each):
                raise refusal(506, self._refusal_of(each, held, amount))
        self.give(kind, -octets, -1)

    def give(self, kind: Kind, octets: int = 0, count: int = 1) -> None:
        """Count one less, with this many bytes."""
        self.held[kind] -= count
        self.held[Kind.OCTETS] -= octets
