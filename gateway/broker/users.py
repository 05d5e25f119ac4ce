"""What each user of the embedded broker may hold of what all users share: connections, bytes of messages, and what is
declared.

A message counts for the user who published it, in any queue, as long as anybody holds it; so does a dead letter of
it. A broker with one login has no shares, for there is nobody else. The gateway logs in as the first user of
``embedded.users``, which may use what is reserved of the connections.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from gateway.broker.declared import DeclaredByUser, Kind
from gateway.broker.queues import Memory
from gateway.budgets import Budgets, Holder, ShareHolder
from gateway.config import EmbeddedSettings

CONNECTIONS: Final = "embedded_connections"
BYTES: Final = "embedded_bytes"
"""Resources."""


class Users:
    """The shares of all users."""

    __slots__ = ("_bytes", "_clients", "_connections", "_declared", "_holdings", "_memories", "_whole")

    def __init__(self, settings: EmbeddedSettings, whole: Memory, budgets: Budgets) -> None:
        """``whole``: the memory of the broker."""
        names = list(dict.fromkeys([*(user.name for user in settings.users), settings.anonymous]))
        names = [name for name in names if name]
        self._clients = {
            name: ShareHolder(name, is_admin=number == 0, is_alone=len(names) == 1) for number, name in enumerate(names)
        }
        self._connections, self._bytes = budgets[CONNECTIONS], budgets[BYTES]
        self._whole = whole
        self._memories: dict[ShareHolder, Memory] = {}
        self._declared: dict[ShareHolder, DeclaredByUser] = {}
        self._holdings = {kind: budgets[kind.value] for kind in Kind}
        for kind, holdings in self._holdings.items():
            holdings.measure = partial(self._measure_declared, kind)
        self._bytes.measure = self._measure
        self._bytes.on_change = self._resize

    def admit(self, user: str) -> ShareHolder:
        """Count a connection of a user; :meth:`leave` when it is over.

        Raises:
            BudgetExceeded, Overloaded: the user may not have one more.
        """
        client = self._clients[user]
        self._connections.take(client)
        return client

    def leave(self, client: ShareHolder) -> None:
        """A connection is over."""
        self._connections.give(client)

    def memory(self, client: ShareHolder) -> Memory:
        """Return what counts the messages that a user publishes."""
        found = self._memories.get(client)
        if found is None:
            whole = self._whole
            found = whole if client.is_alone else Memory(self._bytes.share_of(client), whole)
            self._memories[client] = found
        return found

    def declared(self, client: ShareHolder) -> DeclaredByUser | None:
        """Return what counts the things that a user declares; None: the user is alone, and has no share."""
        if client.is_alone:
            return None
        found = self._declared.get(client)
        if found is None:
            found = DeclaredByUser(partial(self._share_of, client), partial(self._refusal_of_declared, client))
            self._declared[client] = found
        return found

    def _share_of(self, client: ShareHolder, kind: Kind) -> int:
        return self._holdings[kind].share_of(client)

    def _refusal_of_declared(self, client: ShareHolder, kind: Kind, held: int, amount: int) -> str:
        holdings = self._holdings[kind]
        holdings.count_refusal("share")
        return str(holdings.exceeded(client, held, amount, holdings.share_of(client)))

    def _measure_declared(self, kind: Kind) -> dict[Holder, int]:
        held = ((client.holder, declared.held[kind]) for client, declared in list(self._declared.items()))
        return {holder: amount for holder, amount in held if amount}

    def refusal_of(self, client: ShareHolder, size: int) -> str:
        """Count that a user may hold no more, and return the text that says so."""
        self._bytes.count_refusal("share")
        held, share = self._memories[client].used, self._bytes.share_of(client)
        return str(self._bytes.exceeded(client, held, size, share))

    def _measure(self) -> dict[Holder, int]:
        return {client.holder: memory.used for client, memory in list(self._memories.items()) if memory.used}

    def _resize(self) -> None:
        """Shares have changed."""
        for client, memory in self._memories.items():
            if memory is not self._whole:
                memory.resize(self._bytes.share_of(client))
