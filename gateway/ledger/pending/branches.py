"""Branches of distributed transactions: the ledger's word on whether they are to be committed.

A bridge in mode ``dtx`` publishes in a branch of a transaction at its target. The branch has one row here, from before
it is started there until it is known to be finished there, and the row is a register that is written once::

    begun ──decide──> decided ──finish──> (no row)      to be committed, whatever happens; the inbox knows its messages
      │
      └────abort────> aborted ──finish──> (no row)      to be rolled back

Both steps out of ``begun`` are one transaction each, so the second writer accepts the decision of the first: a bridge
that starts aborts what it finds begun, and one that should still live somewhere, with its decision on the way, is
refused it. A branch without a row was never decided.

An id is used for one branch only. So a step that finds what it was to write has been written before, by the same hand,
and its answer was lost: it succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa

from gateway.ledger.db.encoding import document, octets, parse, text
from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import branches
from gateway.ledger.db.prepared import StaticStatement
from gateway.ledger.db.shards import INSERT, ShardLease
from gateway.ledger.pending.inbox import Inbox, digests
from gateway.ledger.writing.records import InboxRow, LogEntry

if TYPE_CHECKING:
    from gateway.ledger.store import Ledger

MOST = 10_000
"""Most rows that are read at a time."""


class BranchStatus(StrEnum):
    """What is to become of a branch."""

    BEGUN = "begun"
    """Nothing was decided."""
    DECIDED = "decided"
    """It is to be committed."""
    ABORTED = "aborted"
    """It is to be rolled back."""


class BranchRecord(msgspec.Struct, frozen=True):
    """A branch that is not known to be finished."""

    id: bytes
    """16 octets."""
    bridge: str
    broker: str
    """Where it is."""
    status: BranchStatus
    detail: dict[str, Any]
    """What its bridge wanted to be told of it."""


_THIS = branches.c.id == sa.bindparam("this", type_=sa.LargeBinary)
_FIND = sa.select(branches.c.status).where(_THIS).with_for_update()
_CHANGE = (
    sa.update(branches)
    .where(_THIS)
    .values(status=sa.bindparam("new_status", type_=sa.Text), detail=sa.bindparam("new_detail", type_=sa.LargeBinary))
)
_DELETE = sa.delete(branches).where(_THIS)
_OF = (
    sa.select(branches)
    .where(branches.c.bridge == sa.bindparam("of", type_=sa.LargeBinary))
    .order_by(branches.c.at, branches.c.id)
    .limit(MOST)
)
_BRIDGES = StaticStatement(sa.select(branches.c.bridge).distinct().order_by(branches.c.bridge))


class BranchStore:
    """``ledger.branches``. All verbs raise LedgerUnavailable; what they were to write may be written all the same, and
    they may be repeated."""

    def __init__(
        self,
        ledger: Ledger,
        database: Database,
        inbox: Inbox,
        append: Callable[[sa.Connection, ShardLease, Iterable[LogEntry]], None],
        now: Callable[[], int],
    ) -> None:
        self._ledger = ledger
        self._inbox = inbox
        self._append = append
        self._now = now
        self._insert = INSERT[database.dialect](branches).on_conflict_do_nothing(index_elements=[branches.c.id])

    async def begin(self, id: bytes, bridge: str, broker: str) -> None:
        """A branch of this id is about to be started."""
        await self._ledger.task(lambda connection, _: self._begin(connection, id, bridge, broker))

    async def decide(
        self, id: bytes, detail: Mapping[str, Any], entries: Sequence[LogEntry], inbox: Sequence[InboxRow] = ()
    ) -> bool:
        """A branch that is prepared is to be committed: in one transaction with the events and the rows of the inbox.
        False: nothing was written, for it was aborted, or is not known.

        Raises:
            EntriesRefused: some events cannot be stored; nothing was written.
        """

        def run(connection: sa.Connection, lease: ShardLease) -> bool:
            found = connection.execute(_FIND, {"this": id}).scalar()
            if found != BranchStatus.BEGUN:
                return found == BranchStatus.DECIDED
            self._change(connection, id, BranchStatus.DECIDED, detail)
            self._append(connection, lease, entries)
            rows = {}
            for row in inbox:
                rows[digests(row.scope, [row.key])[0]] = row
            if rows:
                self._inbox.write(connection, rows, self._now())
            return True

        decided: bool = await self._ledger.task(run)
        return decided

    async def abort(self, id: bytes) -> BranchStatus:
        """A branch is to be rolled back, unless it was decided: what stands. One that is not known is aborted."""

        def run(connection: sa.Connection, _: ShardLease) -> BranchStatus:
            found = connection.execute(_FIND, {"this": id}).scalar()
            if found == BranchStatus.BEGUN:
                self._change(connection, id, BranchStatus.ABORTED, {})
            return BranchStatus.DECIDED if found == BranchStatus.DECIDED else BranchStatus.ABORTED

        status: BranchStatus = await self._ledger.task(run)
        return status

    async def finish(
        self,
        id: bytes,
        entries: Sequence[LogEntry] = (),
        *,
        forget: Mapping[str, Sequence[str]] | None = None,
        doubt: Sequence[InboxRow] = (),
        following: tuple[bytes, str, str] | None = None,
    ) -> None:
        """A branch is finished at its broker: in one transaction with the events.

        Args:
            forget: scope and keys of the inbox that are forgotten, since it was rolled back after all.
            doubt: rows of the inbox in their place, where some of it may have been committed.
            following: id, bridge and broker of the branch that is about to be started next, as by :meth:`begin`.

        Raises:
            EntriesRefused: some events cannot be stored; nothing was written.
        """

        def run(connection: sa.Connection, lease: ShardLease) -> None:
            if connection.execute(_DELETE, {"this": id}).rowcount:
                self._append(connection, lease, entries)
                for scope, keys in (forget or {}).items():
                    self._inbox.drop(connection, digests(scope, keys))
                rows = {digests(row.scope, [row.key])[0]: row for row in doubt}
                if rows:
                    self._inbox.write(connection, rows, self._now())
            if following is not None:
                self._begin(connection, *following)

        await self._ledger.task(run)

    async def of(self, bridge: str) -> list[BranchRecord]:
        """Those of a bridge, the oldest first, at most :data:`MOST`."""

        def read(connection: sa.Connection) -> list[BranchRecord]:
            return [
                BranchRecord(row.id, text(row.bridge), row.broker, BranchStatus(row.status), parse(row.detail))
                for row in connection.execute(_OF, {"of": octets(bridge)})
            ]

        found: list[BranchRecord] = await self._ledger.read(read)
        return found

    async def bridges(self) -> list[str]:
        """The names of bridges that have any."""
        found: list[str] = await self._ledger.read(
            lambda connection: [text(name) for (name,) in _BRIDGES.rows(connection)]
        )
        return found

    def _begin(self, connection: sa.Connection, id: bytes, bridge: str, broker: str) -> None:
        connection.execute(
            self._insert,
            {
                "id": id, "bridge": octets(bridge), "broker": broker, "status": BranchStatus.BEGUN.value,
                "at": self._now(), "detail": b"",
            },
        )  # fmt: skip

    def _change(self, connection: sa.Connection, id: bytes, status: BranchStatus, detail: Mapping[str, Any]) -> None:
        connection.execute(_CHANGE, {"this": id, "new_status": status.value, "new_detail": document(detail)})
