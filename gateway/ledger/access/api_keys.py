"""``ledger.api_keys``: keys of callers, by their digests. The ledger never sees a key itself.

Each change is written with its row of the audit log, in one transaction.

A row has a MAC over all that decides what the key opens, with a key that the database does not have. So nobody who
writes to the database can give a key another scope, or make one. What a MAC cannot show is that a row is back as it was
before, such as before it was revoked; the audit log has the revocation.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import sqlalchemy as sa

from gateway.errors import NoSuchResource, StateError
from gateway.ledger.access.audit import AuditHead
from gateway.ledger.db.models import api_keys
from gateway.ledger.db.prepared import StaticStatement

if TYPE_CHECKING:
    from gateway.ledger.store import Ledger

T = TypeVar("T")

KEYS_PURPOSE: Final = "amqp-gateway API keys"
"""Purpose of the keys of the MACs: they are derived from those that seal secrets, and are good for nothing else."""
NAMED_MAX: Final = 100
"""Most keys that a row of the audit log names."""

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
    """Beginning of the key, for people to recognize it."""
    scopes: tuple[str, ...]
    created_by: str
    created_at: int
    expires_at: int
    revoked_at: int = 0
    last_used_at: int = 0
    mac: bytes | None = None
    """None: it has none; see :class:`KeyMacs`."""
    mac_key: str | None = None
    """Name of the key of the MAC."""

    def live(self, now: int) -> bool:
        """Whether it opens anything at that time."""
        return not self.revoked_at and not 0 < self.expires_at <= now


class KeyMacs:
    """Makes and checks the MACs of rows. Without keys it makes none, and takes every row as it is."""

    def __init__(self, keys: Mapping[str, bytes] = MappingProxyType({})) -> None:
        """``keys``: by name; the first one makes MACs, all of them check."""
        self._keys = dict(keys)
        self.name = next(iter(self._keys), None)
        """Of the key that makes MACs; None: there is none."""

    def sealed(self, key: ApiKey) -> ApiKey:
        """Return a row with its MAC."""
        return key._replace(mac=self._mac(self.name, key), mac_key=self.name) if self.name is not None else key

    def refusal_of(self, key: ApiKey) -> str:
        """Return why a row does not count; empty if it does."""
        if self.name is None:
            return ""
        if key.mac is None or key.mac_key is None:
            return "the row has no MAC"
        if key.mac_key not in self._keys:
            return (
                f"the row has a MAC of the key {key.mac_key[:16]!r}, and the file of keys has {', '.join(self._keys)}"
            )
        right = hmac.compare_digest(self._mac(key.mac_key, key), key.mac)
        return "" if right else "the row is not as the gateway wrote it"

    def _mac(self, name: str, key: ApiKey) -> bytes:
        values = [
            key.id, key.client, key.digest.hex(), key.hint, key.scopes, key.created_by, key.created_at, key.expires_at,
            key.revoked_at,
        ]  # fmt: skip
        return hmac.digest(self._keys[name], msgspec.json.encode(values), "sha256")


def _key(row: Any) -> ApiKey:
    values = row._asdict()
    del values["changes"]
    return ApiKey(**values | {"scopes": tuple(msgspec.json.decode(row.scopes, type=list[str]))})


def _live(now: int | sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    there = api_keys.c
    return (there.revoked_at == 0) & ((there.expires_at == 0) | (there.expires_at > now))


_LIVE: Final = sa.select(api_keys).where(_live(sa.bindparam("now", type_=sa.BigInteger)))
_ALIVE: Final = StaticStatement(_LIVE.limit(KEYS_MAX))
_UNSEALED: Final = StaticStatement(_LIVE.where(api_keys.c.mac.is_(None)))
_VERSION: Final = StaticStatement(
    sa.select(
        sa.func.coalesce(sa.func.max(api_keys.c.changes), 0),
        sa.func.count(),
        sa.func.coalesce(sa.func.sum(api_keys.c.changes), 0),
    )
)


def _alone(connection: sa.Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})


def _insert(connection: sa.Connection, key: ApiKey, now: int, macs: KeyMacs) -> None:
    _check_room(connection, key.client, now)
    change = _next_change(connection)  # before rows go, among which the highest may be
    old = ((api_keys.c.revoked_at > 0) & (api_keys.c.revoked_at < now - KEPT)) | (
        (api_keys.c.expires_at > 0) & (api_keys.c.expires_at < now - KEPT)
    )
    connection.execute(sa.delete(api_keys).where(old))
    values = macs.sealed(key)._asdict() | {"scopes": msgspec.json.encode(key.scopes), "changes": change}
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


def _change(connection: sa.Connection, key: ApiKey, macs: KeyMacs, **values: Any) -> ApiKey:
    """Change a row. One that did not count before does not count by that."""
    changed = key._replace(**values)
    changed = changed if macs.refusal_of(key) else macs.sealed(changed)
    this = sa.update(api_keys).where(api_keys.c.id == key.id)
    connection.execute(
        this.values(changes=_next_change(connection), mac=changed.mac, mac_key=changed.mac_key, **values)
    )
    return changed


class ApiKeys:
    """``ledger.api_keys``. ``entry`` is what goes into the audit log."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.macs = KeyMacs()
        """Those of the rows."""

    async def add(self, key: ApiKey, now: int, entry: Mapping[str, Any]) -> None:
        """Remember a key.

        Raises:
            StateError: its client has two live keys already.
            LedgerUnavailable: it is not remembered.
        """

        def run(connection: sa.Connection) -> tuple[None, AuditHead]:
            _alone(connection)
            _insert(connection, key, now, self.macs)
            return None, self._ledger.audit.chain(connection, [(now, entry)])

        await self._recorded(run)

    async def revoke(self, key_id: str, now: int, entry: Mapping[str, Any]) -> ApiKey:
        """It opens nothing any more. Harmless where it does not already.

        Raises:
            NoSuchResource: there is none of that id.
        """

        def run(connection: sa.Connection) -> tuple[ApiKey, AuditHead | None]:
            _alone(connection)
            found = _get(connection, key_id)
            if found.revoked_at:
                return found, None
            head = self._ledger.audit.chain(connection, [(now, {**entry, "client": found.client})])
            return _change(connection, found, self.macs, revoked_at=now), head

        return await self._recorded(run)

    async def replace(self, key_id: str, key: ApiKey, until: int, now: int, entry: Mapping[str, Any]) -> ApiKey:
        """Another key for the client and with the scopes of one that there is, which ends at ``until`` if not before;
        the new one, with those.

        Raises:
            NoSuchResource: there is none of that id.
            StateError: it is not live, or its client has two already.
        """

        def run(connection: sa.Connection) -> tuple[ApiKey, AuditHead]:
            _alone(connection)
            old = _get(connection, key_id)
            if not old.live(now):
                raise StateError(f"the key {key_id!r} is not live: create one")
            if why := self.macs.refusal_of(old):
                raise StateError(f"the key {key_id!r} does not count: {why}. Create one")
            new = key._replace(client=old.client, scopes=old.scopes)
            _insert(connection, new, now, self.macs)
            ends = min(until, old.expires_at) if old.expires_at else until
            _change(connection, old, self.macs, expires_at=max(ends, 1))
            row = (now, {**entry, "client": old.client, "new": new.id})
            return new, self._ledger.audit.chain(connection, [row])

        return await self._recorded(run)

    async def seal(self, now: int, entry: Mapping[str, Any]) -> list[ApiKey]:
        """Give the live rows that have no MAC one, and return those: a release before MACs wrote them. What they were
        until now nobody can say, so the audit log names them."""

        def run(connection: sa.Connection) -> tuple[list[ApiKey], AuditHead | None]:
            _alone(connection)
            rows = _UNSEALED.rows(connection, {"now": now})
            found = [self.macs.sealed(_key(row)) for row in rows]
            if not found or self.macs.name is None:
                return [], None
            self._write_macs(connection, found)
            names = [f"{key.id} {key.client}" for key in found[:NAMED_MAX]]
            row = (now, {**entry, "sealed": len(found), "keys": names})
            return found, self._ledger.audit.chain(connection, [row])

        return await self._recorded(run)

    async def reseal(self) -> tuple[int, list[str]]:
        """Bring the MACs of all rows under the key that makes them: how many were not; and the ids of rows that do not
        count, which stay as they are."""

        def run(connection: sa.Connection, _: Any) -> tuple[int, list[str]]:
            _alone(connection)
            if self.macs.name is None:
                return 0, []
            others = api_keys.c.mac.is_not(None) & (api_keys.c.mac_key != self.macs.name)
            keys = [_key(row) for row in connection.execute(sa.select(api_keys).where(others))]
            right = [key for key in keys if not self.macs.refusal_of(key)]
            self._write_macs(connection, [self.macs.sealed(key) for key in right])
            return len(right), [key.id for key in keys if self.macs.refusal_of(key)]

        found: tuple[int, list[str]] = await self._ledger.task(run)
        return found

    @staticmethod
    def _write_macs(connection: sa.Connection, keys: Sequence[ApiKey]) -> None:
        if keys:
            this = sa.update(api_keys).where(api_keys.c.id == sa.bindparam("this"))
            values: dict[str, Any] = {name: sa.bindparam(f"new_{name}") for name in ("mac", "mac_key", "changes")}
            first = _next_change(connection)
            rows = [
                {"this": key.id, "new_mac": key.mac, "new_mac_key": key.mac_key, "new_changes": first + number}
                for number, key in enumerate(keys)
            ]
            connection.execute(this.values(values), rows)

    async def _recorded(self, run: Callable[[sa.Connection], tuple[T, AuditHead | None]]) -> T:
        """Run a change with its row of the audit log, in one transaction."""
        found: tuple[T, AuditHead | None] = await self._ledger.task(lambda connection, _: run(connection))
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
        rows = await self._ledger.read(lambda connection: _ALIVE.rows(connection, {"now": now}))
        return [_key(row) for row in rows]

    async def version(self) -> tuple[int, int, int]:
        """What is another after every change but that of ``last_used_at``: the number of the last change, which only
        grows; and count and sum, which tell of rows that somebody changed or deleted by hand."""
        row = await self._ledger.read(_VERSION.row)
        return int(row[0]), int(row[1]), int(row[2])

    async def used(self, times: Sequence[tuple[str, int]]) -> None:
        """Remember when keys were last used."""

        def run(connection: sa.Connection, _: Any) -> None:
            this = sa.update(api_keys).where(api_keys.c.id == sa.bindparam("this"))
            rows = [{"this": key_id, "last": at} for key_id, at in times]
            connection.execute(this.values(last_used_at=sa.bindparam("last")), rows)

        if times:
            await self._ledger.task(run)


def mac_keys(connection: sa.Connection) -> dict[str, int]:
    """Name of a key -> how many rows have a MAC of it."""
    query = sa.select(api_keys.c.mac_key, sa.func.count()).where(api_keys.c.mac.is_not(None))
    return {str(name): int(count) for name, count in connection.execute(query.group_by(api_keys.c.mac_key))}
