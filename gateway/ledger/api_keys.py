"""``ledger.api_keys``: keys of callers, by their digests. The ledger never sees a key itself.

Each change is written with its row of the audit log, in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import sqlalchemy as sa

from gateway.errors import NoSuchResource, StateError
from gateway.ledger.audit import Head
from gateway.ledger.models import api_keys

if TYPE_CHECKING:
    from gateway.ledger.store import Ledger

T = TypeVar("T")

LIVE_MAX: Final = 2
"""Most live keys of one client: the one in use, and the one that replaces it."""
KEYS_MAX: Final = 10_000
"""Most live keys of all clients."""
KEPT: Final = 90 * 86_400 * 1_000_000
"""How long a key that is no longer live is still listed, in microseconds."""
ADVISORY_LOCK: Final = 0x616D7172
"""Held on PostgreSQL while keys are counted, numbered and written."""


class ApiKey(NamedTuple):
    """A key, as the ledger has it. Times are microseconds since 1970; 0: never."""

    id: str
    client: str
    digest: bytes
    """SHA-256 of the key."""
    hint: str
    """How the key begins, to be recognised by."""
    scopes: tuple[str, ...]
    created_by: str
    created_at: int
    expires_at: int
    revoked_at: int = 0
    last_used_at: int = 0

    def live(self, now: int) -> bool:
        """Whether it opens anything at that time."""
        return not self.revoked_at and not 0 < self.expires_at <= now


def _key(row: Any) -> ApiKey:
    values = row._asdict()
    del values["changes"]
    return ApiKey(**values | {"scopes": tuple(msgspec.json.decode(row.scopes, type=list[str]))})


def _live(now: int) -> sa.ColumnElement[bool]:
    there = api_keys.c
    return (there.revoked_at == 0) & ((there.expires_at == 0) | (there.expires_at > now))


def _alone(connection: sa.Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})


def _insert(connection: sa.Connection, key: ApiKey, now: int) -> None:
    _check_room(connection, key.client, now)
    change = _next_change(connection)  # before rows go, among which the highest may be
    old = ((api_keys.c.revoked_at > 0) & (api_keys.c.revoked_at < now - KEPT)) | (
        (api_keys.c.expires_at > 0) & (api_keys.c.expires_at < now - KEPT)
    )
    connection.execute(sa.delete(api_keys).where(old))
    values = key._asdict() | {"scopes": msgspec.json.encode(key.scopes), "changes": change}
    connection.execute(sa.insert(api_keys).values(**values))


def _next_change(connection: sa.Connection) -> int:
    """The number of a change, above those of all before. Two who take one at once must be alone: see ``_alone``."""
    highest = connection.execute(sa.select(sa.func.coalesce(sa.func.max(api_keys.c.changes), 0))).scalar_one()
    return int(highest) + 1


def _check_room(connection: sa.Connection, client: str, now: int) -> None:
    counts = sa.select(
        sa.func.count(), sa.func.coalesce(sa.func.sum(sa.case((api_keys.c.client == client, 1), else_=0)), 0)
    ).where(_live(now))
    every, own = connection.execute(counts).one()
    if own >= LIVE_MAX:
        raise StateError(f"the client {client!r} has {own} live keys, and may have {LIVE_MAX}: revoke one first")
    if every >= KEYS_MAX:
        raise StateError(f"there are {every} live keys, and may be {KEYS_MAX}: revoke some first")


def _get(connection: sa.Connection, key_id: str) -> ApiKey:
    row = connection.execute(sa.select(api_keys).where(api_keys.c.id == key_id).with_for_update()).one_or_none()
    if row is None:
        raise NoSuchResource(f"there is no key {key_id!r:.80}")
    return _key(row)


def _change(connection: sa.Connection, key_id: str, **values: int) -> ApiKey:
    this = sa.update(api_keys).where(api_keys.c.id == key_id)
    connection.execute(this.values(changes=_next_change(connection), **values))
    return _get(connection, key_id)


class ApiKeys:
    """``ledger.api_keys``. ``entry`` is what goes into the audit log."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def add(self, key: ApiKey, now: int, entry: Mapping[str, Any]) -> None:
        """Remember a key.

        Raises:
            StateError: its client has two live keys already.
            LedgerUnavailable: it is not remembered.
        """

        def run(connection: sa.Connection) -> tuple[None, Head]:
            _alone(connection)
            _insert(connection, key, now)
            return None, self._ledger.audit.chain(connection, [(now, entry)])

        await self._recorded(run)

    async def revoke(self, key_id: str, now: int, entry: Mapping[str, Any]) -> ApiKey:
        """It opens nothing any more. Harmless where it does not already.

        Raises:
            NoSuchResource: there is none of that id.
        """

        def run(connection: sa.Connection) -> tuple[ApiKey, Head | None]:
            _alone(connection)
            found = _get(connection, key_id)
            if found.revoked_at:
                return found, None
            head = self._ledger.audit.chain(connection, [(now, {**entry, "client": found.client})])
            return _change(connection, key_id, revoked_at=now), head

        return await self._recorded(run)

    async def replace(self, key_id: str, key: ApiKey, until: int, now: int, entry: Mapping[str, Any]) -> ApiKey:
        """Another key for the client and with the scopes of one that there is, which ends at ``until`` if not before;
        the new one, with those.

        Raises:
            NoSuchResource: there is none of that id.
            StateError: it is not live, or its client has two already.
        """

        def run(connection: sa.Connection) -> tuple[ApiKey, Head]:
            _alone(connection)
            old = _get(connection, key_id)
            if not old.live(now):
                raise StateError(f"the key {key_id!r} is not live: create one")
            new = key._replace(client=old.client, scopes=old.scopes)
            _insert(connection, new, now)
            ends = min(until, old.expires_at) if old.expires_at else until
            _change(connection, key_id, expires_at=max(ends, 1))
            row = (now, {**entry, "client": old.client, "new": new.id})
            return new, self._ledger.audit.chain(connection, [row])

        return await self._recorded(run)

    async def _recorded(self, run: Callable[[sa.Connection], tuple[T, Head | None]]) -> T:
        """Run a change with its row of the audit log, in one transaction."""
        found: tuple[T, Head | None] = await self._ledger.task(lambda connection, _: run(connection))
        value, head = found
        if head is not None:
            self._ledger.audit.note(head)
        return value

    async def get(self, key_id: str) -> ApiKey:
        """One by its id. Raises NoSuchResource."""
        query = sa.select(api_keys).where(api_keys.c.id == key_id)
        row = await self._ledger.read(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            raise NoSuchResource(f"there is no key {key_id!r:.80}")
        return _key(row)

    async def page(self, cursor: str | None, limit: int) -> tuple[list[ApiKey], str | None]:
        """Some, by id, and the cursor behind them; None: that was the last."""
        query = sa.select(api_keys).order_by(api_keys.c.id).limit(limit + 1)
        if cursor is not None:
            query = query.where(api_keys.c.id > cursor)
        rows = await self._ledger.read(lambda connection: connection.execute(query).all())
        found = [_key(row) for row in rows[:limit]]
        return found, found[-1].id if len(rows) > limit else None

    async def live(self, now: int) -> list[ApiKey]:
        """All that open something; as many as there may be."""
        query = sa.select(api_keys).where(_live(now)).limit(KEYS_MAX)
        rows = await self._ledger.read(lambda connection: connection.execute(query).all())
        return [_key(row) for row in rows]

    async def version(self) -> tuple[int, int, int]:
        """What is another after every change but that of ``last_used_at``: the number of the last change, which only
        grows; and count and sum, which tell of rows that somebody changed or deleted by hand."""
        changes = api_keys.c.changes
        query = sa.select(
            sa.func.coalesce(sa.func.max(changes), 0), sa.func.count(), sa.func.coalesce(sa.func.sum(changes), 0)
        )
        row = await self._ledger.read(lambda connection: connection.execute(query).one())
        return int(row[0]), int(row[1]), int(row[2])

    async def used(self, times: Sequence[tuple[str, int]]) -> None:
        """Remember when keys were last used."""

        def run(connection: sa.Connection, _: Any) -> None:
            this = sa.update(api_keys).where(api_keys.c.id == sa.bindparam("this"))
            rows = [{"this": key_id, "last": at} for key_id, at in times]
            connection.execute(this.values(last_used_at=sa.bindparam("last")), rows)

        if times:
            await self._ledger.task(run)
