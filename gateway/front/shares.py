"""What each user of a front may hold of what all its users share: connections, channels at the broker, bytes of
publishes without an outcome, and deliveries that its clients hold.

A user may hold its part of the totals in the table of budgets, and the same part of what the front has. A front with
one user has no shares, for there is nobody else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.budgets import Budgets, Holder, Holdings, ShareHolder
from gateway.config import FrontSettings
from gateway.errors import GatewayError

CONNECTIONS: Final = "front_connections"
CHANNELS: Final = "front_channels"
BYTES: Final = "front_bytes"
DELIVERIES: Final = "front_deliveries"
"""Resources."""


def label(front: str, user: str) -> str:
    """Under which name budgets and the ledger know a user of a front."""
    return f"front:{front}/{user}"


class UserShare:
    """What one user of a front holds."""

    __slots__ = (
        "_bytes", "_channels", "_connections", "_deliveries", "bytes", "channels", "connections", "deliveries",
        "holder", "settings",
    )  # fmt: skip

    def __init__(self, holder: ShareHolder, settings: FrontSettings, budgets: Budgets) -> None:
        self.holder = holder
        self.settings = settings
        self.connections = 0
        self.channels = 0
        """At the broker."""
        self.bytes = 0
        """Of publishes without an outcome."""
        self.deliveries = 0
        """That it may hold unsettled, beyond ``prefetch_max`` for each consumer."""
        self._connections, self._channels, self._bytes = budgets[CONNECTIONS], budgets[CHANNELS], budgets[BYTES]
        self._deliveries = budgets[DELIVERIES]

    def _of(self, total: int, holdings: Holdings) -> int:
        """The user's part of what the front has."""
        if self.holder.is_alone:
            return total
        return max(1, total * holdings.share_of(self.holder) // holdings.total)

    def take_connection(self) -> None:
        """Count one connection more.

        Raises:
            BudgetExceeded, Overloaded: the user may not have one more.
        """
        most = self._of(self.settings.connections, self._connections)
        self._take(self._connections, self.connections, most)
        self.connections += 1

    def give_connection(self) -> None:
        """A connection is over."""
        self.connections -= 1
        self._connections.give(self.holder)

    def take_channel(self, total: int) -> None:
        """Count one channel more. ``total``: how many there can be at the broker. Raises as :meth:`take_connection`."""
        self._take(self._channels, self.channels, self._of(total, self._channels))
        self.channels += 1

    def give_channel(self) -> None:
        """A channel is over."""
        self.channels -= 1
        self._channels.give(self.holder)

    def take_deliveries(self, wanted: int) -> int:
        """Count so many deliveries more, or as many as the user may have more. Returns how many these are."""
        holdings = self._deliveries
        left = self._of(holdings.total, holdings) - self.deliveries
        count = min(wanted, left, holdings.total - holdings.reserve - holdings.held)
        if count <= 0:
            holdings.count_refusal("share" if left <= 0 else "total")
            return 0
        holdings.take(self.holder, count)
        self.deliveries += count
        return count

    def give_deliveries(self, count: int) -> None:
        """So many are no longer wanted."""
        self.deliveries -= count
        self._deliveries.give(self.holder, count)

    def _take(self, holdings: Holdings, held: int, most: int) -> None:
        if held >= most:
            error: GatewayError = holdings.exceeded(self.holder, held, 1, most)
            holdings.count_refusal("share")
            raise error
        holdings.take(self.holder)

    @property
    def has_memory(self) -> bool:
        """Whether the user may publish more, before what it has published has its outcome."""
        if self.holder.is_alone:
            return True
        return self.bytes < min(self._of(self.settings.memory, self._bytes), self._bytes.share_of(self.holder))


class FrontShares:
    """The shares of all users of one front."""

    def __init__(self, front: str, settings: FrontSettings, budgets: Budgets) -> None:
        self._front = front
        self._settings = settings
        self._budgets = budgets
        self._users: dict[str, UserShare] = {}

    def of(self, user: str) -> UserShare:
        """Return what counts for a user that has logged in."""
        found = self._users.get(user)
        if found is None:
            found = self._users[user] = UserShare(self._holder(user), self._settings, self._budgets)
        return found

    def leave(self, user: str) -> None:
        """A connection of the user is over: forget the user, if it holds nothing more."""
        found = self._users.get(user)
        if found is not None and not (found.connections or found.channels or found.bytes or found.deliveries):
            del self._users[user]

    def use(self, settings: FrontSettings) -> None:
        """Go on with other settings. What is held over them stays held."""
        self._settings = settings
        for user, share in self._users.items():
            share.settings = settings
            share.holder = self._holder(user)

    def bytes_held(self) -> dict[Holder, int]:
        """Bytes of publishes without an outcome, by user."""
        return {share.holder.holder: share.bytes for share in self._users.values() if share.bytes}

    def _holder(self, user: str) -> ShareHolder:
        is_alone = self._settings.login == "gateway" and len(self._settings.users) == 1
        return ShareHolder(label(self._front, user), is_alone=is_alone)


def measured(shares: Callable[[], list[FrontShares]]) -> Callable[[], dict[Holder, int]]:
    """What :attr:`~gateway.budgets.Holdings.measure` asks for the bytes at all fronts."""

    def measure() -> dict[Holder, int]:
        found: dict[Holder, int] = {}
        for each in shares():
            found |= each.bytes_held()
        return found

    return measure
