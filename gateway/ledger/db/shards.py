"""Shards: who may write, and under which fencing number.

A process that writes leases one shard, a row of its own that is locked at the beginning of each of its
transactions, checked and counted up: sequence numbers have no gaps since the row stays locked until the commit, and
the commit renews the lease for free. A process that finds a lease that has run out on the database's clock *fences* its
shard: no owner, and a greater ``fence``. The old owner, should it live, finds that its number is not the row's any more
and writes nothing.

A restored ledger *retires* its shards: nobody leases them again. Events that the old ledger wrote behind the backup may
have been read elsewhere, so their numbers must not be given to other events.

Everything in doubt carries shard and fence of its owner. It is its owner's as long as the shard's row still says
so; that is the whole test, and needs no list of who died.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import shards
from gateway.ledger.db.prepared import PreparedStatement, once

INSERT: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
"""Dialect -> INSERT with ON CONFLICT, which both have in the same words."""
RETIRED: Final = 1 << 62
"""The ``fence`` of a retired shard; no lease reaches it."""


class ShardLease(NamedTuple):
    """The right to write to a shard."""

    shard: int
    fence: int


class Fenced(Exception):
    """The shard's row has another fence than the lease: somebody took over."""


class Shards:
    """The statements on ``shards``; all run inside a transaction of the caller's."""

    def __init__(self, database: Database, owner: str, seconds: float) -> None:
        self.owner = owner
        self.now = 0
        """The database's clock, in microseconds, at the last ``enter``."""
        self.clock = database.clock
        self._microseconds = int(seconds * 1_000_000)
        self._prepare(database)
        self._fence = self._fence_lapsed if database.shared else self._fence_all

    @once
    def _prepare(self, database: Database) -> None:
        until = database.clock + sa.bindparam("lasts", type_=sa.BigInteger)
        owner = sa.bindparam("me", type_=sa.Text)
        owned = shards.c.owner.is_not(None)
        self._fence_all = self._fencing(database, owned)
        self._fence_lapsed = self._fencing(database, owned & (shards.c.expires_at < database.clock))
        self._find_free = PreparedStatement(
            database,
            sa.select(shards.c.shard)
            .where(shards.c.owner.is_(None), shards.c.fence < RETIRED)
            .order_by(shards.c.shard)
            .limit(1)
            .with_for_update(skip_locked=True),
        )
        mine = (shards.c.shard == sa.bindparam("my_shard")) & (shards.c.fence == sa.bindparam("my_fence"))
        self._take = PreparedStatement(
            database,
            sa.update(shards)
            .where(shards.c.shard == sa.bindparam("my_shard"))
            .values(owner=owner, fence=shards.c.fence + 1, expires_at=until)
            .returning(shards.c.shard, shards.c.fence),
        )
        number = sa.select(sa.func.coalesce(sa.func.max(shards.c.shard) + 1, 0)).scalar_subquery()
        self._create = PreparedStatement(
            database,
            INSERT[database.dialect](shards)
            .values(shard=number, owner=owner, fence=1, expires_at=until, next_sequence=1, commits=0)
            .on_conflict_do_nothing(index_elements=[shards.c.shard])
            .returning(shards.c.shard, shards.c.fence),
        )
        self._enter = PreparedStatement(
            database,
            sa.update(shards)
            .where(mine)
            .values(
                commits=shards.c.commits + 1,
                next_sequence=shards.c.next_sequence + sa.bindparam("taken"),
                expires_at=until,
            )
            .returning(shards.c.next_sequence, shards.c.commits, shards.c.expires_at),
        )
        self._extend = PreparedStatement(
            database,
            sa.update(shards).where(mine).values(next_sequence=shards.c.next_sequence + sa.bindparam("taken")),
        )
        self._log = PreparedStatement(
            database,
            sa.update(shards)
            .where(mine)
            .values(
                next_log=shards.c.next_log + sa.bindparam("taken"),
                log_octets=shards.c.log_octets + sa.bindparam("more"),
            )
            .returning(shards.c.next_log, shards.c.log_octets),
        )
        self._commits = sa.select(shards.c.commits).where(mine).with_for_update()
        self._release = PreparedStatement(
            database, sa.update(shards).where(mine).values(owner=sa.null(), fence=shards.c.fence + 1)
        )

    @staticmethod
    def _fencing(database: Database, lapsed: sa.ColumnElement[bool]) -> PreparedStatement:
        waiting = sa.select(shards.c.shard).where(lapsed).order_by(shards.c.shard)
        return PreparedStatement(
            database,
            sa.update(shards)
            .where(shards.c.shard.in_(waiting.with_for_update(skip_locked=True)), lapsed)
            .values(owner=sa.null(), fence=shards.c.fence + 1)
            .returning(shards.c.shard),
        )

    def acquire(self, connection: sa.Connection) -> ShardLease:
        """Lease a shard: one that nobody has, or a new one."""
        self.fence_lapsed(connection)
        mine = {"me": self.owner, "lasts": self._microseconds}
        free = self._find_free.run(connection, {})
        taken = self._take.run(connection, {"my_shard": free[0][0], **mine}) if free else []
        while not taken:  # somebody else made the same number: it is there now, count on
            taken = self._create.run(connection, mine)
        return ShardLease(*taken[0])

    def fence_lapsed(self, connection: sa.Connection) -> list[int]:
        """Fence the shards whose leases ran out. SQLite, where the file's lock proves that nobody else lives:
        all that have an owner; so only before the own shard is leased."""
        return [shard for (shard,) in self._fence.run(connection, {})]

    def enter(self, connection: sa.Connection, lease: ShardLease, rows: int) -> tuple[int, int]:
        """Lock the own shard, renew its lease and take ``rows`` sequence numbers: the first of them, and the
        count of commits that this transaction brings the shard to.

        Raises:
            Fenced: somebody took over.
        """
        mine = {"my_shard": lease.shard, "my_fence": lease.fence, "taken": rows, "lasts": self._microseconds}
        found = self._enter.run(connection, mine)
        if not found:
            raise Fenced
        following, commits, expires_at = found[0]
        self.now = expires_at - self._microseconds
        return following - rows, commits

    def extend(self, connection: sa.Connection, lease: ShardLease, rows: int) -> None:
        """Take ``rows`` more sequence numbers, behind those of ``enter``; below 0: give back the last."""
        self._extend.run(connection, {"my_shard": lease.shard, "my_fence": lease.fence, "taken": rows})

    def log(self, connection: sa.Connection, lease: ShardLease, rows: int, octets: int) -> tuple[int, int]:
        """Take ``rows`` numbers of the log of messages, for ``octets`` in all, behind ``enter``: the first of them, and
        how much was written to the shard's log before.

        Raises:
            Fenced: somebody took over.
        """
        mine = {"my_shard": lease.shard, "my_fence": lease.fence, "taken": rows, "more": octets}
        found = self._log.run(connection, mine)
        if not found:
            raise Fenced
        following, reached = found[0]
        return following - rows, reached - octets

    def commits(self, connection: sa.Connection, lease: ShardLease) -> int | None:
        """How many transactions of this lease's shard were committed; None: somebody took over. Waits for one
        that is still under way, as the server may not have noticed that its client is gone."""
        found: int | None = connection.execute(
            self._commits, {"my_shard": lease.shard, "my_fence": lease.fence}
        ).scalar_one_or_none()
        return found

    def release(self, connection: sa.Connection, lease: ShardLease) -> None:
        """Give the shard back."""
        self._release.run(connection, {"my_shard": lease.shard, "my_fence": lease.fence})


def is_retired() -> sa.ColumnElement[bool]:
    """Whether the shard of a row of ``shards`` is retired."""
    return shards.c.fence >= RETIRED


def alive(shard: sa.ColumnElement[int], fence: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    """Whether what carries this shard and fence still has its owner."""
    return sa.exists().where(shards.c.shard == shard, shards.c.fence == fence, shards.c.owner.is_not(None))
