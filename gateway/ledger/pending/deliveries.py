"""``ledger.deliveries``: messages that the ledger owes to subscriptions.

A delivery is one message owed to one subscription. From the commit that stores it until the commit that settles it,
it is the ledger's to hand out, through the end of processes and connections; a lease is only a time at which it may be
handed out again. All writes are calls of the group commit: a hundred callers at once share one.

Leases and due times go by the database's clock, so that all processes mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import sqlalchemy as sa

from gateway.ledger.pending import delivery_reads
from gateway.ledger.pending.delivery_reads import DeliveryReads
from gateway.ledger.pending.owed import (
    BacklogCounts,
    BacklogEntry,
    BacklogSettlement,
    Claimed,
    DeadGroup,
    DeliveryFilter,
    KeptBody,
    Owed,
)
from gateway.ledger.writing.calls import Hand, Keep, SettleOwed, Store, WriterCall
from gateway.ledger.writing.dividing import divided, future
from gateway.ledger.writing.records import InboxRow, LogEntry

OCTETS_MAX = 64 << 20
"""Most octets of bodies that are claimed at once, unless it is only one."""


class DeliveryAccess(Protocol):
    """The ledger, as its parts see it."""

    async def submit(self, call: WriterCall) -> Any: ...
    async def read(self, run: Callable[[sa.Connection], Any]) -> Any: ...


def _no_entries(_: list[BacklogEntry]) -> list[LogEntry]:
    return []


class DeliveryStore:
    """The verbs."""

    def __init__(self, ledger: DeliveryAccess, reads: DeliveryReads, group_max: int, keeps_bodies: bool) -> None:
        self.keeps_bodies = keeps_bodies
        """Whether :meth:`keep_bodies` keeps any (``retention.bodies``): where not, nobody needs to encode them."""
        self._ledger = ledger
        self._reads = reads
        self._group_max = group_max

    # ------------------------------------------------------------------------------------------------- write

    async def store(
        self, owed: Sequence[Owed], entries: Sequence[LogEntry] = (), inbox: Sequence[InboxRow] = ()
    ) -> None:
        """Owe messages from now on; with their events and rows of the inbox in one commit, unless there are more than
        ``group_max`` or one is bad. A delivery whose id is there already is left alone, and its events are
        not written again. Durable when it returns.

        Raises:
            LedgerUnavailable: nothing was written, or it cannot be told: store the same again.
            EntriesRefused: some of ``owed`` cannot be stored, by their index, nor events and inbox rows of their
                messages; the others are durable.
        """
        if not owed and not entries and not inbox:
            return
        await divided(self._ledger, Store(future(), owed, entries, inbox), self._group_max)

    async def claim(
        self,
        subscription: str,
        limit: int,
        seconds: float,
        *,
        ordered: bool = False,
        octets_max: int = OCTETS_MAX,
        entries: Callable[[list[BacklogEntry]], list[LogEntry]] = _no_entries,
    ) -> Claimed:
        """Hand out what is due and not dead: the first ``limit`` in line, by ``due_at`` and then by id. Each is out for
        ``seconds``, with ``attempt`` and ``lease`` one higher, and comes with its payload. Any number of processes at
        once: none gets what another has. Where nothing is due, nothing is written. A caller that is cancelled while it
        waits leaves nothing out.

        Args:
            ordered: of those with the same ``order_key`` only the oldest that is not dead, so that one is out at once.
            octets_max: most octets of bodies; the first one comes with any size.
            entries: makes the events that are written in the same commit. Runs on the writer's thread, perhaps more
                than once: no side effects.

        Raises:
            LedgerUnavailable, EntriesRefused: nothing is out. After a cut-off commit of which nobody can tell, what may
                be out is due again after ``seconds``.
        """
        call = Hand(future(), subscription, limit, seconds, ordered, octets_max, entries)
        found: Claimed = await self._ledger.submit(call)
        return found

    async def settle(self, settlements: Sequence[BacklogSettlement]) -> list[bool]:
        """Settle deliveries; those of one call in their order. True: it took effect, and its events are written. False:
        it is gone, dead, or under another lease; nothing of it was written.

        Raises:
            LedgerUnavailable: nothing was written, or it cannot be told: settle the same again, and what took effect
                the first time is False.
            EntriesRefused: some cannot be written, by their index; what became of the others is in ``results``.
        """
        if not settlements:
            return []
        results: list[bool] = await divided(self._ledger, SettleOwed(future(), settlements), self._group_max)
        return results

    async def keep_bodies(self, rows: Sequence[KeptBody]) -> None:
        """Keep bodies of messages that the ledger does not owe, for replays, as ``[retention]`` says: one that is
        larger than ``body_max`` is not; with ``until-settled`` they go once a consumer has settled the message. Those
        of deliveries need not be given here. Called beside ``record`` it shares its commit.

        Raises:
            LedgerUnavailable: nothing was written.
            EntriesRefused: some cannot be kept, by their index; the others are.
        """
        if self.keeps_bodies and rows:
            await divided(self._ledger, Keep(future(), rows), self._group_max)

    # -------------------------------------------------------------------------------------------------- read

    async def due(
        self,
        subscription: str,
        limit: int,
        *,
        after: BacklogEntry | tuple[int, bytes] | None = None,
        payload: bool = False,
    ) -> list[BacklogEntry]:
        """What is not dead, in line: by ``due_at``, then by id; also what is not due yet, or is out. ``after``: behind
        this place (``due_at`` and id)."""
        place = (after.due_at, after.id) if isinstance(after, BacklogEntry) else after
        found: list[BacklogEntry] = await self._ledger.read(
            lambda connection: self._reads.due(connection, subscription, limit, place, payload)
        )
        return found

    async def get(self, delivery_id: bytes, *, payload: bool = False) -> BacklogEntry | None:
        """One by id. None: it is settled, or never was."""
        found: BacklogEntry | None = await self._ledger.read(
            lambda connection: self._reads.get(connection, delivery_id, payload)
        )
        return found

    async def page(
        self,
        where: DeliveryFilter | None = None,
        cursor: str | None = None,
        limit: int = 100,
        *,
        newest_first: bool = False,
        payload: bool = False,
    ) -> tuple[list[BacklogEntry], str | None]:
        """Deliveries in the order of their ids, and the cursor of the next page (None: that was the last).

        Raises:
            ValueError: the cursor is malformed.
        """
        found: tuple[list[BacklogEntry], str | None] = await self._ledger.read(
            lambda connection: self._reads.page(
                connection, where or DeliveryFilter(), cursor, limit, newest_first, payload
            )
        )
        return found

    async def count(self, where: DeliveryFilter | None = None, most: int = 1_000_000) -> int:
        """How many there are, of which not more than ``most`` are counted."""
        found: int = await self._ledger.read(
            lambda connection: self._reads.count(connection, where or DeliveryFilter(), most)
        )
        return found

    async def backlog(self, subscription: str) -> BacklogCounts:
        """Pending messages of a subscription."""
        found: BacklogCounts = await self._ledger.read(lambda connection: self._reads.backlog(connection, subscription))
        return found

    async def backlogs(self) -> dict[str, BacklogCounts]:
        """Pending messages of each subscription that has any."""
        found: dict[str, BacklogCounts] = await self._ledger.read(self._reads.backlogs)
        return found

    async def dead_groups(
        self, most: int, *, code: str | None = None, subscriptions: tuple[str, ...] | None = None
    ) -> tuple[list[DeadGroup], bool]:
        """Dead deliveries by code and subscription: at most so many groups, and whether there are more. Only with this
        code, and only of these subscriptions, where they are given."""
        found: tuple[list[DeadGroup], bool] = await self._ledger.read(
            lambda connection: self._reads.dead_groups(connection, most, code, subscriptions)
        )
        return found

    async def newest(self, subscription: str) -> bytes | None:
        """The id of the newest delivery of a subscription, dead ones included. None: there is none."""
        found: bytes | None = await self._ledger.read(
            lambda connection: delivery_reads.newest(connection, subscription)
        )
        return found

    async def body(self, message_id: bytes) -> bytes | None:
        """The payload of a message. None: nothing of it is pending, and it is not kept."""
        found: bytes | None = await self._ledger.read(lambda connection: delivery_reads.body(connection, message_id))
        return found
