"""Who does what: work that only one process may do at a time, and the processes that share the ledger.

A piece of work is a kind and a name (``bridge``, ``orders-to-cloud``). Its row carries shard and fence of the process
that does it, as everything does that a process holds (:mod:`gateway.ledger.db.shards`): it is its owner's as long as
the shard's row says so, on the database's clock. Nobody has to be asked, and nothing renewed but the lease of the
shard. A row without a living owner is free, and so is a name without a row.

Each process that takes part has a row in ``peers``, which says where the others reach it and which kinds of work it
takes.

SQLite has one process, to which all is granted without a row (:class:`Alone`).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, Protocol

import msgspec
import sqlalchemy as sa

from gateway.errors import EtagMismatch, LedgerUnavailable
from gateway.ledger import resources
from gateway.ledger.db.batch import RowBatch, select_rows
from gateway.ledger.db.encoding import octets, text
from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import peers, shards, work
from gateway.ledger.db.prepared import StaticStatement, once
from gateway.ledger.db.shards import INSERT, ShardLease, alive
from gateway.runtime.ids import ids

SECRET: Final = 32
"""Octets of a secret that is made here."""
SECRETS: Final = "cluster-secret"
"""Kind of the resources that hold them."""
CLAIM_MAX: Final = 1_000
"""Most names that are claimed or released in one transaction."""


class Peer(msgspec.Struct, frozen=True):
    """A process that shares the ledger, this one included."""

    id: bytes
    """Eight random octets, new with each start."""
    shard: int
    fence: int
    name: str
    """Host and process."""
    url: str
    """Where the other processes reach it."""
    config: str
    """A digest of its configuration."""
    kinds: frozenset[str]
    """The kinds of work that it takes; none: it is about to leave."""


class View(msgspec.Struct):
    """The processes and their work at one moment."""

    peers: list[Peer]
    """All that live and have announced themselves, by shard."""
    counts: dict[str, dict[int, int]]
    """Kind -> shard -> how many pieces of work a living owner has."""
    lapsed: bool
    """The lease of some shard has run out, and nobody has fenced it yet."""


class WorkAccess(Protocol):
    """What of the ledger this needs."""

    @property
    def lease(self) -> ShardLease:
        """Under which lease is written now, or one that nobody has."""

    async def task(self, run: Callable[[sa.Connection, ShardLease], Any]) -> Any:
        """Run in a transaction of the writer's, under its lease."""

    async def read(self, run: Callable[[sa.Connection], Any]) -> Any:
        """Run on a connection of a reader's."""


class LedgerWork(Protocol):
    """What :class:`Alone` and :class:`Shared` have in common."""

    shared: bool
    """There may be other processes."""

    async def announce(self, peer: Peer) -> None:
        """Tell the others of this process. ``shard`` and ``fence`` are filled in here."""

    async def view(self) -> View:
        """Processes and work, as they are now."""

    async def remove_lapsed(self) -> bool:
        """Fence the shards whose leases ran out, and forget what their processes did; whether there were any."""

    async def claim(self, kind: str, names: Collection[str]) -> set[str]:
        """Take what of these is free; returns what is this process's now."""

    async def release(self, kind: str, names: Collection[str]) -> None:
        """Give up what of these is this process's."""

    async def taken(self, kind: str) -> dict[str, int]:
        """Name -> shard of everything of this kind that has a living owner."""

    async def owner(self, kind: str, name: str) -> int | None:
        """The shard of its living owner."""

    async def secret(self, name: str) -> bytes:
        """A secret that all processes share, made on first use."""


class Alone:
    """One process owns the ledger, so it owns all work."""

    shared = False

    async def announce(self, peer: Peer) -> None:
        """Nobody is there to be told."""

    async def view(self) -> View:
        """Nobody else, ever."""
        return View([], {}, lapsed=False)

    async def remove_lapsed(self) -> bool:
        """The former owner of the file is dead."""
        return False

    async def claim(self, kind: str, names: Collection[str]) -> set[str]:
        """All of them."""
        return set(names)

    async def release(self, kind: str, names: Collection[str]) -> None:
        """There are no rows."""

    async def taken(self, kind: str) -> dict[str, int]:
        """There are no rows."""
        return {}

    async def owner(self, kind: str, name: str) -> int | None:
        """There are no rows."""
        return None

    async def secret(self, name: str) -> bytes:
        """Nobody to share it with: new each time."""
        return ids.random_bytes(SECRET)


class Shared:
    """The tables ``work`` and ``peers``."""

    shared = True

    def __init__(
        self,
        database: Database,
        tasks: WorkAccess,
        fence_lapsed: Callable[[sa.Connection], list[int]],
        on_takeover: Callable[[], None],
        now: Callable[[], int],
    ) -> None:
        """``fence_lapsed`` is that of the shards; ``on_takeover`` is called on the loop where it found any."""
        self._tasks = tasks
        self._fence = fence_lapsed
        self._on_takeover = on_takeover
        self._now = now
        self._prepare(database)

    @once
    def _prepare(self, database: Database) -> None:
        insert = INSERT[database.dialect]
        shard, fence = sa.bindparam("my_shard", type_=sa.BigInteger), sa.bindparam("my_fence", type_=sa.BigInteger)
        kind = sa.bindparam("of", type_=sa.Text)
        rows, _ = select_rows(
            database.dialect, (work.c.name,), kind=kind, shard=shard, fence=fence, at=database.clock
        )  # fmt: skip
        # By their names: a subquery in the WHERE of an ON CONFLICT is not correlated with the table.
        there = [sa.literal_column(f"work.{column}", sa.BigInteger) for column in ("shard", "fence")]
        taking = insert(work).from_select(list(rows.selected_columns.keys()), rows)
        self._claim = StaticStatement(
            taking.on_conflict_do_update(
                index_elements=[work.c.kind, work.c.name],
                set_={column: taking.excluded[column] for column in ("shard", "fence", "at")},
                where=~alive(*there) | ((work.c.shard == shard) & (work.c.fence == fence)),
            ).returning(work.c.name)
        )
        named, _ = select_rows(database.dialect, (work.c.name,))
        self._release = StaticStatement(
            sa.delete(work).where(
                work.c.kind == kind, work.c.shard == shard, work.c.fence == fence, work.c.name.in_(named)
            )
        )
        self._forget = (
            sa.delete(work).where(~alive(work.c.shard, work.c.fence)),
            sa.delete(peers).where(~alive(peers.c.shard, peers.c.fence)),
        )
        announced = insert(peers).values(
            {column.name: sa.bindparam(f"new_{column.name}", type_=column.type) for column in peers.c}
        )
        self._announce = StaticStatement(
            announced.on_conflict_do_update(
                index_elements=[peers.c.shard],
                set_={column.name: announced.excluded[column.name] for column in peers.c if column.name != "shard"},
            )
        )
        living = alive(peers.c.shard, peers.c.fence)
        self._living = StaticStatement(sa.select(peers).where(living).order_by(peers.c.shard))
        lapsed = sa.exists().where(shards.c.owner.is_not(None), shards.c.expires_at < database.clock)
        self._lapsed = StaticStatement(sa.select(lapsed))
        owned = alive(work.c.shard, work.c.fence)
        self._counts = StaticStatement(
            sa.select(work.c.kind, work.c.shard, sa.func.count()).where(owned).group_by(work.c.kind, work.c.shard)
        )
        self._taken = StaticStatement(sa.select(work.c.name, work.c.shard).where(work.c.kind == kind, owned))
        self._owner = StaticStatement(
            sa.select(work.c.shard).where(
                work.c.kind == kind, work.c.name == sa.bindparam("this", type_=sa.LargeBinary), owned
            )
        )

    async def announce(self, peer: Peer) -> None:
        """Tell the others of this process."""
        plain = {
            "new_id": peer.id,
            "new_name": peer.name,
            "new_url": peer.url,
            "new_config": peer.config,
            "new_kinds": ",".join(sorted(peer.kinds)),
        }

        def run(connection: sa.Connection, lease: ShardLease) -> None:
            self._announce.rows(connection, {**plain, "new_shard": lease.shard, "new_fence": lease.fence})

        await self._tasks.task(run)

    async def view(self) -> View:
        """Processes and work, as they are now."""

        def run(connection: sa.Connection) -> View:
            found = [_peer(row) for row in self._living.rows(connection)]
            counts: dict[str, dict[int, int]] = {}
            for kind, shard, count in self._counts.rows(connection):
                counts.setdefault(kind, {})[shard] = count
            return View(found, counts, lapsed=bool(self._lapsed.scalar(connection)))

        view: View = await self._tasks.read(run)
        return view

    async def remove_lapsed(self) -> bool:
        """Fence the shards whose leases ran out, and forget what their processes did; whether there were any."""

        def run(connection: sa.Connection, _: ShardLease) -> bool:
            fenced = self._fence(connection)
            for statement in self._forget if fenced else ():
                connection.execute(statement)
            return bool(fenced)

        found: bool = await self._tasks.task(run)
        if found:
            self._on_takeover()
        return found

    async def claim(self, kind: str, names: Collection[str]) -> set[str]:
        """Take what of these is free; returns what is this process's now. A lease may be lost before its claims are
        heard of: they are nobody's then."""
        found: dict[str, ShardLease] = {}
        for batch in _batches(names):

            def run(connection: sa.Connection, lease: ShardLease, batch: RowBatch = batch) -> dict[str, ShardLease]:
                mine = {"of": kind, "my_shard": lease.shard, "my_fence": lease.fence}
                return {text(name): lease for (name,) in self._claim.rows(connection, batch.parameters(**mine))}

            found |= await self._tasks.task(run)
        return {name for name, lease in found.items() if lease == self._tasks.lease}

    async def release(self, kind: str, names: Collection[str]) -> None:
        """Give up what of these is this process's. Names that are lost during the call stay as they are: they may have
        been claimed again since."""
        asked = self._tasks.lease
        for batch in _batches(names):

            def run(connection: sa.Connection, lease: ShardLease, batch: RowBatch = batch) -> None:
                if lease != asked:
                    return
                mine = {"of": kind, "my_shard": lease.shard, "my_fence": lease.fence}
                self._release.rows(connection, batch.parameters(**mine))

            await self._tasks.task(run)

    async def taken(self, kind: str) -> dict[str, int]:
        """Name -> shard of everything of this kind that has a living owner."""

        def run(connection: sa.Connection) -> dict[str, int]:
            return {text(name): shard for name, shard in self._taken.rows(connection, {"of": kind})}

        found: dict[str, int] = await self._tasks.read(run)
        return found

    async def owner(self, kind: str, name: str) -> int | None:
        """The shard of its living owner."""
        this = {"of": kind, "this": octets(name)}
        found: int | None = await self._tasks.read(lambda connection: self._owner.scalar(connection, this))
        return found

    async def secret(self, name: str) -> bytes:
        """A secret that all processes share, made on first use.

        Raises:
            LedgerUnavailable: it can neither be read nor made, or is damaged.
        """
        while True:
            found = await self._tasks.read(lambda connection: resources.get(connection, SECRETS, name))
            if found is not None:
                try:
                    secret = b64decode(str(found.spec.get("secret", "")), validate=True)
                except ValueError:
                    secret = b""
                if len(secret) < SECRET:
                    raise LedgerUnavailable(f"the {SECRETS} {name!r} in the ledger is damaged; delete it")
                return secret

            def put(connection: sa.Connection, _: ShardLease) -> None:
                spec = {"secret": b64encode(ids.random_bytes(SECRET)).decode("ascii")}
                resources.put(connection, SECRETS, name, spec, resources.NONE, self._now())

            try:
                await self._tasks.task(put)
            except EtagMismatch:
                pass  # another process was quicker


def _peer(row: Any) -> Peer:
    kinds = frozenset(filter(None, row.kinds.split(",")))
    return Peer(row.id, row.shard, row.fence, row.name, row.url, row.config, kinds)


def _batches(names: Iterable[str]) -> Iterable[RowBatch]:
    """In the order of the names, so that two processes that want the same wait for each other and never in a circle."""
    batch = RowBatch()
    for name in sorted(names):
        batch.add((), octets(name))
        if len(batch) == CLAIM_MAX:
            yield batch
            batch = RowBatch()
    if batch:
        yield batch
