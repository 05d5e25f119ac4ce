"""The inbox: what a bridge has forwarded, so that a redelivery of it is recognized.

A row is written in the same commit as the event that says that its message is safe at the target, and looked up only
for deliveries that may be redeliveries. So writing has to be cheap, and looking up may cost more.

A row is found by a digest of scope and key, and digests are scattered evenly: in one great tree nearly every row of a
commit would change a page of its own, and writing those pages costs several times what the rows do. Therefore the tree
is ordered by *run* first, a number that grows by one with each :data:`RUN` rows that a process writes. A commit changes
the pages of the newest run only; a look-up searches each run, of which a million rows have 250 on SQLite. Runs are a
matter of where rows lie and mean nothing: two processes may write to the same one, and one key may be in several, where
the newest row counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from gateway.ledger.db.batch import RowBatch, select_rows
from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import inbox
from gateway.ledger.db.prepared import PreparedStatement, once
from gateway.ledger.writing.inserts import insert
from gateway.ledger.writing.records import InboxRow, Seen

RUN = {"sqlite": 4_096, "postgresql": 131_072}
"""Dialect -> rows of a run, about. SQLite writes each page that changed with each commit, and 100 pages are a run.
PostgreSQL writes it once in a while, and the server does it: what fits into its buffers is fine."""
CHUNK = 1_000
"""Most rows that are forgotten in one transaction."""
ID = 16
"""Octets of a digest."""


class Inbox:
    """The statements on ``inbox``, and the run that is written to. Belongs to the writer's thread, but for
    :meth:`seen`."""

    def __init__(self, database: Database) -> None:
        self._size = RUN[database.dialect]
        self._run: int | None = None
        self._rows = 0
        self._prepare(database)

    @once
    def _prepare(self, database: Database) -> None:
        self._insert = insert(database, inbox, (inbox.c.run, inbox.c.id), replace=True)
        self._newest = PreparedStatement(database, sa.select(sa.func.coalesce(sa.func.max(inbox.c.run), 0)))
        now = sa.bindparam("now", type_=sa.BigInteger)
        # The numbers of the runs, each by a step along the tree.
        steps = sa.select(sa.func.min(inbox.c.run).label("run")).cte("runs", recursive=True)
        following = sa.select(sa.func.min(inbox.c.run)).where(inbox.c.run > steps.c.run).scalar_subquery()
        runs = steps.union_all(sa.select(following).where(steps.c.run.is_not(None)))
        named, _ = select_rows(database.dialect, (inbox.c.id,))
        self._find = PreparedStatement(
            database,
            sa.select(inbox.c.id, inbox.c.body_sha256, inbox.c.message_id, inbox.c.at)
            .where(inbox.c.run.in_(sa.select(runs.c.run)), inbox.c.id.in_(named), inbox.c.expires_at > now)
            .order_by(inbox.c.at, inbox.c.run),
        )
        self._drop = sa.delete(inbox).where(inbox.c.run.in_(sa.select(runs.c.run)), inbox.c.id.in_(named))
        this = sa.tuple_(inbox.c.run, inbox.c.id)
        expired = (
            sa.select(inbox.c.run, inbox.c.id)
            .where(inbox.c.expires_at <= now)
            .order_by(inbox.c.expires_at)
            .limit(sa.bindparam("most"))
            .with_for_update(skip_locked=True)
        )
        self._forget = sa.delete(inbox).where(this.in_(expired))

    def write(self, connection: sa.Connection, rows: dict[bytes, InboxRow], now: int) -> None:
        """Write rows, by their digests; one that is there is replaced. ``now`` in microseconds since 1970."""
        run = self._run
        if run is None:
            run = self._newest.run(connection, {})[0][0]
        elif self._rows >= self._size:
            run, self._rows = run + 1, 0
        self._run = run
        self._rows += len(rows)
        batch = self._insert.rows()
        for row_id in sorted(rows):  # the order of the tree, and the same for every process
            row = rows[row_id]
            batch.add((run, now, row.expires_at), row_id, row.body_sha256, row.message_id)
        self._insert.run(connection, batch, 0, 0)

    def seen(self, connection: sa.Connection, scope: str, keys: Sequence[str], now: int) -> dict[str, Seen]:
        """Which of the keys there are, and have not expired. Runs in a reader's thread."""
        by_id = dict(zip(digests(scope, keys), keys, strict=True))
        batch = RowBatch()
        for row_id in by_id:
            batch.add((), row_id)
        found = self._find.run(connection, batch.parameters(now=now))
        return {by_id[row_id]: Seen(body_sha256, message_id, at) for row_id, body_sha256, message_id, at in found}

    def drop(self, connection: sa.Connection, ids: Sequence[bytes]) -> None:
        """Forget rows by their digests: what they tell of was undone."""
        batch = RowBatch()
        for row_id in ids:
            batch.add((), row_id)
        if batch:
            connection.execute(self._drop, batch.parameters())

    def forget_expired(self, connection: sa.Connection, now: int) -> int:
        """Delete rows that have expired, at most :data:`CHUNK`; how many."""
        return connection.execute(self._forget, {"now": now, "most": CHUNK}).rowcount


def digests(scope: str, keys: Iterable[str]) -> list[bytes]:
    """Lookup value of rows, for any length of scope and key."""
    name = scope.encode("utf-8", "surrogateescape")
    begin = len(name).to_bytes(4, "big") + name
    sha256 = hashlib.sha256
    return [sha256(begin + key.encode("utf-8", "surrogateescape")).digest()[:ID] for key in keys]
