"""The tables.

History (``messages``, ``events``) is only ever appended to, and leaves by whole days: on PostgreSQL both are
partitioned by ranges of the message id, which begins with its time (:mod:`gateway.ledger.db.ids`), so that a message
and all its events live, are found and are dropped together. Everything that is pending, leased or configured lives in
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
    """SQLite's ANY: a STRICT table's column that keeps any value."""

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


def _table(name: str, *parts: Any, partition_by: str | None = None, with_rowid: bool = True) -> sa.Table:
    options: dict[str, Any] = {"sqlite_strict": True, "sqlite_with_rowid": with_rowid}
    if partition_by is not None:
        options["postgresql_partition_by"] = f"RANGE ({partition_by})"
    return sa.Table(name, metadata, *parts, **options)


def _octets(name: str, *, key: bool = False) -> sa.Column[bytes]:
    return sa.Column(name, Octets, nullable=False, primary_key=key)


def _integer(name: str, *, key: bool = False) -> sa.Column[int]:
    return sa.Column(name, Integer, nullable=False, primary_key=key, autoincrement=False)


def _text(name: str, *, key: bool = False) -> sa.Column[str]:
    return sa.Column(name, Text, nullable=False, primary_key=key)


def _checksum() -> sa.Column[int]:
    """See :mod:`gateway.ledger.db.checksums`."""
    return sa.Column("checksum", Integer, nullable=False, server_default="0")


def _where(condition: str) -> dict[str, Any]:
    """The options of an index over some rows only."""
    return {f"{dialect}_where": sa.text(condition) for dialect in ("sqlite", "postgresql")}


PARTITIONED = {"messages": "id", "events": "message_id", "message_log": "message_id"}
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
    with_rowid=False,
)
"""One row a message, written once. Where a consumer wrote it before the outcome of the publish was known, the publish
replaces it. ``properties`` is JSON, as octets."""

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
    with_rowid=False,
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
    sa.Column("next_log", Integer, nullable=False, server_default="1"),
    sa.Column("log_octets", Integer, nullable=False, server_default="0"),
)
"""Who may write where. ``owner`` NULL: nobody. ``fence`` grows each time the shard changes hands. ``commits``
counts transactions, so that the fate of one whose COMMIT was cut off can be read afterwards. ``expires_at`` is
on the database's clock. ``next_log`` is to ``message_log`` what ``next_sequence`` is to ``events``; ``log_octets``: how
much was ever written there."""

message_log = _table(
    "message_log",
    _integer("shard", key=True),
    _integer("sequence", key=True),
    _octets("message_id", key=True),
    _text("tap"),
    _integer("at"),
    _text("broker"),
    _text("version"),
    _octets("queue"),
    _octets("exchange"),
    _octets("routing_key"),
    _integer("redelivered"),
    _octets("origin_id"),
    _octets("properties"),
    _octets("body"),
    _octets("sha256"),
    _integer("octets"),
    sa.CheckConstraint("length(message_id) = 16", name="message_id_16"),
    sa.CheckConstraint("length(sha256) = 32", name="sha256_32"),
    partition_by="message_id",
)
"""Messages that taps have spooled, with their bodies; numbered like ``events``, by a counter of its own. ``octets``:
how much was ever written to the shard's log before this row, so that what is between two rows is a subtraction.
``properties`` is JSON, as octets. Rows are large, and SQLite packs large rows better with a rowid."""

log_floors = _table(
    "log_floors",
    _text("log", key=True),
    _integer("shard", key=True),
    _integer("floor"),
    _text("reason"),
    _integer("at"),
    with_rowid=False,
)
"""The lowest sequence number of each shard that can be read; without a row it is 1. It is raised before what is below
goes. ``reason``: ``cursor`` (all have read it), ``age`` or ``size`` of the log, ``history``."""

log_cursors = _table(
    "log_cursors",
    _text("name", key=True),
    _text("log"),
    _octets("position"),
    _text("owner"),
    _integer("epoch"),
    _integer("since"),
    _integer("heard_at"),
    _integer("created_at"),
    with_rowid=False,
)
"""How far somebody has read a log. ``position`` is JSON, as octets. ``owner`` empty: nobody; ``epoch`` grows with each
claim; ``since``: when the owner claimed it first. Times are on the database's clock."""

pipeline_runs = _table(
    "pipeline_runs",
    _text("id", key=True),
    _text("job"),
    _text("state"),
    _integer("started_at"),
    _integer("ended_at"),
    _text("fingerprint"),
    _octets("detail"),
    _integer("updated_at"),
    sa.Index(None, "started_at", "id"),
)
"""What jobs of the pipeline tell of themselves. ``state``: ``running``, ``done`` or ``failed``; ``ended_at`` 0: it has
not. ``detail`` is JSON, as octets."""

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
    _checksum(),
    sa.Index(None, "expires_at"),
)
"""Idempotency-Keys. ``id`` is a digest of client and key. ``status``: ``running`` (held by ``shard`` and
``fence``), ``unknown`` (held by nobody) or ``done`` (with the answer). ``checksum`` is that of the answer."""

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
    _checksum(),
    sa.Index(None, "key_id"),
    sa.Index(None, "shard", "fence"),
    sa.CheckConstraint("length(message_id) = 16", name="message_id_16"),
)
"""Pending entries: publishes without an outcome. ``key_id`` empty: nothing to send again, only to be told about.
``status``: ``pending``, held by ``shard`` and ``fence``; or ``parked``, until its key is repeated or forgotten.
``checksum``: of what is to be sent."""

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

inbox = _table(
    "inbox",
    _integer("run", key=True),
    _octets("id", key=True),
    _octets("body_sha256"),
    _octets("message_id"),
    _integer("at"),
    _integer("expires_at"),
    sa.Index(None, "expires_at"),
    sa.CheckConstraint("length(body_sha256) = 32", name="body_sha256_32"),
    sa.CheckConstraint("length(message_id) = 16", name="message_id_16"),
    with_rowid=False,
)
"""What bridges forwarded, until ``expires_at``. ``id`` is a digest of scope and key. ``run``:
:mod:`gateway.ledger.pending.inbox`."""

branches = _table(
    "branches",
    _octets("id", key=True),
    _octets("bridge"),
    _text("broker"),
    _text("status"),
    _integer("at"),
    _octets("detail"),
    sa.CheckConstraint("length(id) = 16", name="id_16"),
)
"""Branches of distributed transactions that bridges have begun at their targets, and not finished:
:mod:`gateway.ledger.pending.branches`. ``detail`` is JSON, as octets."""

work = _table(
    "work",
    _text("kind", key=True),
    _octets("name", key=True),
    _integer("shard"),
    _integer("fence"),
    _integer("at"),
    with_rowid=False,
)
"""Which process does what, on a ledger that several share: ``shard`` and ``fence`` are those of the owner, whose work
it is as long as the shard's row says the same. ``at``: since when, on the database's clock."""

peers = _table(
    "peers",
    _integer("shard", key=True),
    _integer("fence"),
    _octets("id"),
    _text("name"),
    _text("url"),
    _text("config"),
    _text("kinds"),
    sa.CheckConstraint("length(id) = 8", name="id_8"),
)
"""The processes that share the ledger, and where they reach each other. ``kinds``: the kinds of work that it takes,
with commas between them."""

statistics = _table(
    "statistics",
    _integer("hour", key=True),
    _text("kind", key=True),
    _text("broker", key=True),
    _octets("subscription", key=True),
    _octets("endpoint", key=True),
    _octets("bridge", key=True),
    _integer("events"),
    _integer("octets"),
    with_rowid=False,
)
"""How many events there were, by the hour they tell of (hours since 1970) and whose they were. They stay when the
events go."""

counted = _table(
    "counted",
    _integer("shard", key=True),
    _integer("sequence"),
)
"""How far the events of each shard are in ``statistics``: the last sequence number that is. It moves in the transaction
that adds the counts, so that each event counts once."""

deliveries = _table(
    "deliveries",
    _octets("id", key=True),
    _octets("message_id"),
    _octets("digest"),
    _octets("subscription"),
    _octets("order_key"),
    _integer("at"),
    _integer("due_at"),
    _integer("attempt"),
    _integer("lease"),
    _integer("status"),
    _integer("size"),
    _octets("reason"),
    sa.Column("code", Text, nullable=False, server_default=""),
    sa.CheckConstraint("length(id) = 16", name="id_16"),
    sa.CheckConstraint("length(message_id) = 16", name="message_id_16"),
    sa.Index("deliveries_by_code", "code", "subscription", "id", "status", **_where("status = 2")),
    sa.Index("deliveries_by_code_id", "code", "id", **_where("status = 2")),
    sa.Index("deliveries_by_due_at", "subscription", "due_at", "id", "order_key", "status", **_where("status < 2")),
    sa.Index(
        "deliveries_by_order_key", "subscription", "order_key", "id", **_where("status < 2 AND length(order_key) > 0")
    ),
    sa.Index("deliveries_by_subscription", "subscription", "id"),
    sa.Index(None, "message_id"),
    with_rowid=False,
)
"""Pending messages of subscriptions: a message each, of which ``bodies`` has the payload under ``message_id`` and
``digest``. ``status``: 0 waits, 1 is out under ``lease`` until ``due_at``, 2 is dead
(:class:`gateway.ledger.pending.owed.BacklogStatus`). ``due_at`` is on the database's clock. ``reason`` is JSON, as
octets. ``code`` is that of the reason of a dead one; empty: it is not dead, or has none."""

bodies = _table(
    "bodies",
    _octets("message_id", key=True),
    _octets("digest", key=True),
    _integer("owed"),
    _integer("kept_until"),
    _octets("payload"),
    sa.CheckConstraint("length(message_id) = 16", name="message_id_16"),
    sa.Index("bodies_by_kept_until", "kept_until", **_where("kept_until > 0")),
)
"""Payloads: of messages that are pending for ``owed`` subscriptions, and of those that are kept until ``kept_until``
(0: not at all), by the ledger's clock. One row a message: another ``digest`` under the same id is a message that only
says it is the same."""

outbox = _table(
    "outbox",
    _octets("message_id", key=True),
    _text("broker"),
    _octets("exchange"),
    _octets("routing_key"),
    _octets("payload"),
    _octets("client"),
    _integer("at"),
    _integer("due_at"),
    _integer("attempt"),
    _octets("reason"),
    _integer("shard"),
    _integer("fence"),
    _checksum(),
    sa.Index(None, "due_at"),
    sa.CheckConstraint("length(message_id) = 16", name="message_id_16"),
)
"""Pending publishes: taken over HTTP, to be sent at ``due_at``, on the database's clock. A row is held by
``shard`` and ``fence`` while they live; -1: by nobody. ``checksum``: of what is to be sent."""

api_keys = _table(
    "api_keys",
    _text("id", key=True),
    _text("client"),
    _octets("digest"),
    _text("hint"),
    _octets("scopes"),
    _text("created_by"),
    _integer("created_at"),
    _integer("expires_at"),
    _integer("revoked_at"),
    _integer("last_used_at"),
    _integer("changes"),
    sa.Column("mac", Octets, nullable=True),
    sa.Column("mac_key", Text, nullable=True),
    sa.CheckConstraint("length(digest) = 32", name="digest_32"),
    sa.Index("api_keys_by_digest", "digest", unique=True),
    sa.Index(None, "client"),
    with_rowid=False,
)
"""Keys of callers, by their SHA-256. ``scopes`` is JSON, as octets; a time of 0: never. ``changes`` is the number
of the last change but that of ``last_used_at``, counted over all rows, so that the highest says whether anything has
changed. Rows go only in a transaction that adds one with a higher number."""

audit_log = _table(
    "audit_log",
    _integer("sequence", key=True),
    _integer("at"),
    _octets("entry"),
    _octets("previous"),
    _octets("hash"),
    sa.Column("mac", Octets, nullable=True),
    sa.Column("mac_key", Text, nullable=True),
    sa.CheckConstraint("length(previous) = 32", name="previous_32"),
    sa.CheckConstraint("length(hash) = 32", name="hash_32"),
)
"""Who changed what, and who was refused, append-only, without gaps. ``entry`` is JSON, as octets; ``hash`` is over
``sequence``, ``at``, ``entry`` and ``previous``, the hash of the row before. ``mac`` is over ``hash`` and the MAC of
the row before, with the key that ``mac_key`` names; releases before 0008 write neither."""
