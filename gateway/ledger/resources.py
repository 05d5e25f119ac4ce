"""Named JSON documents with an etag: resources of the API, such as subscriptions.

Writes run in the writer's thread, reads in a reader's. The etag is a digest of the document, so that putting the
same again changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from gateway.errors import EtagMismatch, LedgerDamaged
from gateway.ledger.db.encoding import document, octets, parse, text
from gateway.ledger.db.models import resources
from gateway.ledger.db.prepared import StaticStatement
from gateway.ledger.db.shards import INSERT
from gateway.ledger.writing.records import ResourceRecord

_KIND = resources.c.kind == sa.bindparam("of", type_=sa.Text)
_THIS = _KIND & (resources.c.name == sa.bindparam("this", type_=sa.LargeBinary))
_FIND = sa.select(resources).where(_THIS)
_GET = StaticStatement(_FIND)
_GET_TO_CHANGE = StaticStatement(_FIND.with_for_update())
_INSERT = {
    name: StaticStatement(
        insert(resources)
        .values({column.name: sa.bindparam(f"new_{column.name}", type_=column.type) for column in resources.c})
        .on_conflict_do_nothing(index_elements=[resources.c.kind, resources.c.name])
        .returning(resources.c.etag)
    )
    for name, insert in INSERT.items()
}
"""By dialect: another process may create the same at the same time."""
_UPDATE = (
    sa.update(resources)
    .where(_THIS)
    .values(
        spec=sa.bindparam("new_spec", type_=sa.LargeBinary),
        etag=sa.bindparam("new_etag", type_=sa.Text),
        updated_at=sa.bindparam("now", type_=sa.BigInteger),
    )
)
_DELETE = sa.delete(resources).where(_THIS)
_SOME = sa.select(resources).where(_KIND).order_by(resources.c.name).limit(sa.bindparam("most", type_=sa.Integer))
_LIST = StaticStatement(_SOME)
_LIST_BEHIND = StaticStatement(_SOME.where(resources.c.name > sa.bindparam("behind", type_=sa.LargeBinary)))
ANY, NONE = "*", ""
"""``if_match``: it exists, it does not."""


def put(
    connection: sa.Connection, kind: str, name: str, spec: Mapping[str, Any], if_match: str | None, now: int
) -> tuple[str, bool]:
    """Create or replace; the etag, and whether it is new. ``now`` in microseconds since 1970."""
    this = {"of": kind, "this": octets(name)}
    found = _GET_TO_CHANGE.row(connection, this)
    _check(kind, name, found, if_match)
    encoded = document(spec)
    etag = etag_of(spec)
    if found is None:
        row = {"kind": kind, "name": this["this"], "spec": encoded, "etag": etag, "created_at": now, "updated_at": now}
        values = {f"new_{column}": value for column, value in row.items()}
        if _INSERT[connection.dialect.name].row(connection, values) is not None:
            return etag, True
        found = _GET_TO_CHANGE.row(connection, this)
        _check(kind, name, found, if_match)
    if found.etag != etag:
        connection.execute(_UPDATE, {**this, "new_spec": encoded, "new_etag": etag, "now": now})
    return etag, False


def get(connection: sa.Connection, kind: str, name: str) -> ResourceRecord | None:
    """One by name."""
    row = _GET.row(connection, {"of": kind, "this": octets(name)})
    return None if row is None else _resource(row)


def page(
    connection: sa.Connection, kind: str, cursor: str | None, limit: int
) -> tuple[list[ResourceRecord], str | None]:
    """Some by name, and the cursor behind them: the last name."""
    values = {"of": kind, "most": limit + 1}
    if cursor is None:
        rows = _LIST.rows(connection, values)
    else:
        rows = _LIST_BEHIND.rows(connection, {**values, "behind": octets(cursor)})
    found = [_resource(row) for row in rows[:limit]]
    return found, found[-1].name if len(rows) > limit else None


def delete(connection: sa.Connection, kind: str, name: str, if_match: str | None) -> bool:
    """Delete; whether there was one."""
    this = {"of": kind, "this": octets(name)}
    found = _GET_TO_CHANGE.row(connection, this)
    _check(kind, name, found, if_match)
    if found is None:
        return False
    connection.execute(_DELETE, this)
    return True


def etag_of(spec: Mapping[str, Any]) -> str:
    """The etag of a document; the order of its keys does not matter."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode("ascii")).hexdigest()[:32]


def _check(kind: str, name: str, found: Any, if_match: str | None) -> None:
    if if_match is None:
        return
    fits = found is None if if_match == NONE else found is not None and if_match in (ANY, found.etag)
    if not fits:
        now = "does not exist" if found is None else f"has the etag {found.etag}"
        raise EtagMismatch(f"{kind} {name!r} {now}, which is not what If-Match asks for")


def _resource(row: Any) -> ResourceRecord:
    """A row. Raises LedgerDamaged: it is not what was written."""
    name, spec = text(row.name), parse(row.spec)
    if etag_of(spec) != row.etag:
        raise LedgerDamaged(f"{row.kind} {name!r} in the ledger is damaged: it is not what was written. Put it again")
    return ResourceRecord(row.kind, name, spec, row.etag, row.created_at, row.updated_at)
