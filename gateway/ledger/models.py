"""The tables.

History (``messages``, ``events``) is only ever appended to, and leaves by whole days: on PostgreSQL both are
partitioned by ranges of the message id, which begins with its time (:mod:`gateway.ledger.ids`), so that a message
and all its events live, are found and are dropped together. Everything that is owed, leased or configured lives in
plain tables and goes when it is settled.

AMQP strings are octets: PostgreSQL's text takes neither U+0000 nor what is not UTF-8. Numbers that AMQP makes
unsigned and 64 bits wide are ``NUMERIC(20)``. Times are microseconds since 1970.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, UserDefinedType

MAX_INT64 = (1 << 63) - 1

Integer = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
Octets = sa.LargeBinary()
Text = sa.Text()


class SqliteAny(UserDefinedType[Any]):
    """SQLite's ANY: a STRICT table's column that keeps whatever it is given."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "ANY"


class UInt64(TypeDecorator[int]):
    """An unsigned 64-bit number. SQLite's integers are signed: there, what does not fit is text of 20 digits,
    which sorts behind all integers and in the right order (:func:`uint64_in_json` makes it)."""

    impl = sa.Numeric(20, 0)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        return dialect.type_descriptor(SqliteAny() if dialect.name == "sqlite" else sa.Numeric(20, 0))

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:
        return None if value is None else int(value)


def uint64_in_json(value: int) -> int | str:
    """An unsigned 64-bit number as it travels to SQL, where JSON numbers end at 2**63 - 1."""
    return value if value <= MAX_INT64 else f"{value:020}"


metadata = sa.MetaData(
    naming_convention={
        "pk": "%(table_name)s_pk",
        "ix": "%(table_name)s_by_%(column_0_N_name)s",
        "ck": "%(table_name)s_%(constraint_name)s",
    }
)


def _table(name: str, *parts: Any, partition_by: str | None = None) -> sa.Table:
    options: dict[str, Any] = {"sqlite_strict": True}
    if partition_by is not None:
        options |= {"postgresql_partition_by": f"RANGE ({partition_by})", "sqlite_with_rowid": False}
    return sa.Table(name, metadata, *parts, **options)


def _octets(name: str, *, key: bool = False) -> sa.Column[bytes]:
    return sa.Column(name, Octets, nullable=False, primary_key=key)


def _integer(name: str, *, key: bool = False) -> sa.Column[int]:
    return sa.Column(name, Integer, nullable=False, primary_key=key, autoincrement=False)


def _text(name: str, *, key: bool = False) -> sa.Column[str]:
    return sa.Column(name, Text, nullable=False, primary_key=key)


PARTITIONED = {"messages": "id", "events": "message_id"}
"""Table -> the column whose ranges are its partitions."""

messages = _table(
    "messages",
    _octets("id", key=True),
    _integer("at"),
    _text("broker"),
    _text("version"),
    _octets("exchange"),
    _octets("routing_key"),
    sa.Column("size", UInt64, nullable=False),
    _octets("sha256"),
    _text("origin"),
    _octets("client"),
    _octets("properties"),
    sa.CheckConstraint("length(id) = 16", name="id_16"),
    sa.CheckConstraint("length(sha256) = 32", name="sha256_32"),
    partition_by="id",
)
"""One row a message, written once. ``properties`` is JSON, as octets."""

events = _table(
    "events",
    _integer("shard", key=True),
    _integer("sequence", key=True),
    _octets("message_id", key=True),
    _text("kind"),
    _integer("at"),
    _text("broker"),
    _text("version"),
    _octets("detail"),
    sa.CheckConstraint("length(message_id) = 16", name="message_id_16"),
    sa.Index(None, "message_id"),
    partition_by="message_id",
)
"""What happened, append-only. ``sequence`` has no gaps within ``shard``: the counter row of the shard is locked
from before the first insert until the commit. ``message_id`` is part of the key because PostgreSQL wants the
partition's column there."""

shards = _table(
    "shards",
    _integer("shard", key=True),
    sa.Column("owner", Text, nullable=True),
    _integer("fence"),
    _integer("expires_at"),
    _integer("next_sequence"),
    _integer("commits"),
)
"""Who may write where. ``owner`` NULL: nobody. ``fence`` grows each time the shard changes hands. ``commits``
counts transactions, so that the fate of one whose COMMIT was cut off can be read afterwards. ``expires_at`` is
on the database's clock."""

keys = _table(
    "idempotency_keys",
    _octets("id", key=True),
    _octets("client"),
    _octets("key"),
    _octets("fingerprint"),
    _text("status"),
    _integer("shard"),
    _integer("fence"),
    _octets("message_ids"),
    _integer("answer_status"),
    _octets("answer_headers"),
    _octets("answer_body"),
    _integer("expires_at"),
    sa.Index(None, "expires_at"),
)
"""Idempotency-Keys. ``id`` is a digest of client and key. ``status``: ``running`` (held by ``shard`` and
``fence``), ``unknown`` (held by nobody) or ``done`` (with the answer)."""

obligations = _table(
    "obligations",
    _octets("message_id", key=True),
    _octets("key_id"),
    _integer("item"),
    _text("broker"),
    _octets("exchange"),
    _octets("routing_key"),
    _octets("payload"),
    _integer("at"),
    _integer("attempt"),
    _text("status"),
    _integer("shard"),
    _integer("fence"),
    sa.Index(None, "key_id"),
    sa.Index(None, "shard", "fence"),
    sa.CheckConstraint("length(message_id) = 16", name="message_id_16"),
)
"""What is owed: publishes without an outcome. ``key_id`` empty: nothing to send again, only to be told about.
``status``: ``pending``, held by ``shard`` and ``fence``; or ``parked``, until its key is repeated or forgotten."""

resources = _table(
    "resources",
    _text("kind", key=True),
    _octets("name", key=True),
    _octets("spec"),
    _text("etag"),
    _integer("created_at"),
    _integer("updated_at"),
)
"""Named JSON documents: subscriptions and the like."""
