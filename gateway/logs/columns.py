"""The columns of both logs: where they come from in SQL, and what becomes of them for a reader.

SQL gives what lies in the tables, and no more; the shape that a reader gets is made from it value by value here, for
NDJSON, and column by column in :mod:`gateway.logs.arrow`. What is of the message of an event is joined only where it
is asked for.

AMQP names are octets. One that is UTF-8 is that text; any other is written as the API writes a ``binary`` object, in
JSON: ``{"type":"binary","value":"…"}``, with its octets in base64. A name that begins like such an object is written as
one, too, so that a text stands for one name only.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any, Final, NamedTuple
from uuid import UUID

from gateway.logs import Log

BINARY: Final = '{"type":"binary"'
"""How a name begins that is written as an object."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Shape(Enum):
    """What a reader gets of a column."""

    INT32 = auto()
    INT64 = auto()
    BOOL = auto()
    """Of 0 or 1."""
    TIME = auto()
    """Of microseconds since 1970."""
    TEXT = auto()
    NAME = auto()
    """Text, of octets that may be anything."""
    JSON = auto()
    """Text, of octets that are a JSON object, or nothing for an empty one."""
    ID = auto()
    """Text with hyphens, of the 16 octets of a message id."""
    DIGEST = auto()
    """Hexadecimal digits, of 32 octets."""
    OCTETS = auto()


class Field(NamedTuple):
    """A column."""

    name: str
    shape: Shape
    sql: str
    """``e`` is the row of the log, ``m`` that of its message."""
    joined: bool = False
    """It is of the message, of which the ledger may know nothing: then it is null."""


NOTHING: Final = {"sqlite": "x''", "postgresql": "'\\x'::bytea"}
"""Dialect -> no octets."""
_SIZE = "least(m.size, 9223372036854775807)::bigint"
_SQLITE_SIZE = "CASE typeof(m.size) WHEN 'integer' THEN m.size ELSE 9223372036854775807 END"

FIELDS: Final[Mapping[Log, tuple[Field, ...]]] = {
    Log.EVENTS: (
        Field("shard", Shape.INT32, "e.shard"),
        Field("sequence", Shape.INT64, "e.sequence"),
        Field("message_id", Shape.ID, "e.message_id"),
        Field("kind", Shape.TEXT, "e.kind"),
        Field("at", Shape.TIME, "e.at"),
        Field("broker", Shape.TEXT, "e.broker"),
        Field("version", Shape.TEXT, "e.version"),
        Field("detail", Shape.JSON, "e.detail"),
        Field("accepted_at", Shape.TIME, "m.at", joined=True),
        Field("source_broker", Shape.TEXT, "m.broker", joined=True),
        Field("source_version", Shape.TEXT, "m.version", joined=True),
        Field("exchange", Shape.NAME, "m.exchange", joined=True),
        Field("routing_key", Shape.NAME, "m.routing_key", joined=True),
        Field("size", Shape.INT64, _SIZE, joined=True),
        Field("sha256", Shape.DIGEST, "m.sha256", joined=True),
        Field("origin", Shape.TEXT, "m.origin", joined=True),
    ),
    Log.MESSAGES: (
        Field("shard", Shape.INT32, "e.shard"),
        Field("sequence", Shape.INT64, "e.sequence"),
        Field("message_id", Shape.ID, "e.message_id"),
        Field("tap", Shape.TEXT, "e.tap"),
        Field("accepted_at", Shape.TIME, "e.at"),
        Field("broker", Shape.TEXT, "e.broker"),
        Field("version", Shape.TEXT, "e.version"),
        Field("queue", Shape.NAME, "e.queue"),
        Field("exchange", Shape.NAME, "e.exchange"),
        Field("routing_key", Shape.NAME, "e.routing_key"),
        Field("redelivered", Shape.BOOL, "e.redelivered"),
        Field("origin_id", Shape.NAME, "e.origin_id"),
        Field("properties", Shape.JSON, "e.properties"),
        Field("body", Shape.OCTETS, "e.body"),
        Field("size", Shape.INT64, "length(e.body)"),
        Field("sha256", Shape.DIGEST, "e.sha256"),
    ),
}
"""Log -> its columns, in order: those of :data:`gateway.pipeline.schema.COLUMNS`."""
_TABLES = {Log.EVENTS: "events", Log.MESSAGES: "message_log"}

EMPTY: Final[Mapping[Shape, str]] = {
    Shape.INT32: "0",
    Shape.INT64: "0",
    Shape.BOOL: "0",
    Shape.TIME: "0",
    Shape.TEXT: "''",
}
"""Shape -> what stands for null in SQL; of the others: no octets. A column is of one type in all rows, even if the
first ones are null, since SQLite's drivers tell the type of a column by its values."""
FILTERS: Final[Mapping[Log, tuple[str, ...]]] = {
    Log.EVENTS: ("kind", "broker", "version", "exchange", "routing_key", "origin"),
    Log.MESSAGES: ("tap", "broker", "version", "queue", "exchange", "routing_key"),
}
"""Log -> columns by which its rows are filtered."""


def fields(log: Log, names: Sequence[str] = ()) -> tuple[Field, ...]:
    """The columns of these names, in the order of the log; none: all.

    Raises:
        ValueError: the log has no such column.
    """
    there = {field.name for field in FIELDS[log]}
    unknown = [name for name in names if name not in there]
    if unknown:
        raise ValueError(f"{unknown[0]!r:.80} is no column of the log {log.value!r}: {', '.join(sorted(there))}")
    return tuple(field for field in FIELDS[log] if not names or field.name in names)


def select(
    dialect: str,
    log: Log,
    shard: int,
    after: int,
    upto: int,
    chosen: Sequence[Field],
    where: Mapping[str, Sequence[str]] = {},
) -> str:
    """``SELECT`` of these columns of a range, as text: drivers of Arrow stream what has no parameters. Behind the
    columns comes ``known`` where any of them is joined: whether the message is there."""
    filters = [next(field for field in FIELDS[log] if field.name == name) for name in where]
    joined = any(field.joined for field in chosen)
    columns = [f"{_sql(dialect, field)} AS {field.name}" for field in chosen]
    if joined:
        columns.append("CASE WHEN m.id IS NULL THEN 0 ELSE 1 END AS known")
    source = f"{_TABLES[log]} AS e"
    if joined or any(field.joined for field in filters):
        source += " LEFT JOIN messages AS m ON m.id = e.message_id"
    conditions = [f"e.shard = {int(shard)}", f"e.sequence > {int(after)}", f"e.sequence <= {int(upto)}"]
    for field in filters:
        values = ", ".join(_literal(dialect, field, value) for value in where[field.name])
        conditions.append(f"{field.sql} IN ({values})")
    return f"SELECT {', '.join(columns)} FROM {source} WHERE {' AND '.join(conditions)} ORDER BY e.sequence"  # noqa: S608  # numbers and quoted texts


def _sql(dialect: str, field: Field) -> str:
    expression = _SQLITE_SIZE if field.sql == _SIZE and dialect == "sqlite" else field.sql
    return f"coalesce({expression}, {EMPTY.get(field.shape, NOTHING[dialect])})" if field.joined else expression


def _literal(dialect: str, field: Field, value: str) -> str:
    """A value in the words of SQL. Octets are hexadecimal digits; a text has its quotes doubled, and neither a zero nor
    what is not UTF-8, which no row has."""
    if field.shape is Shape.NAME:
        digits = value.encode("utf-8", "surrogateescape").hex()
        return f"x'{digits}'" if dialect == "sqlite" else f"'\\x{digits}'::bytea"
    text = value.encode("utf-8", "replace").decode().replace("\0", "?").replace("'", "''")
    return f"'{text}'"


# ---------------------------------------------------------------------------------------------- one by one


def name_of(value: bytes) -> str:
    """A name as readers of a log get it."""
    try:
        text = str(value, "utf-8")
    except UnicodeDecodeError:
        text = BINARY
    return f'{BINARY},"value":"{b64encode(value).decode()}"}}' if text.startswith(BINARY) else text


def _time(value: int) -> datetime:
    return _EPOCH + timedelta(microseconds=value)


def _json(value: bytes) -> str:
    return str(value, "utf-8") if value else "{}"


SHAPED: Final[Mapping[Shape, Callable[[Any], Any] | None]] = {
    Shape.INT32: None,
    Shape.INT64: None,
    Shape.BOOL: bool,
    Shape.TIME: _time,
    Shape.TEXT: None,
    Shape.NAME: name_of,
    Shape.JSON: _json,
    Shape.ID: lambda value: str(UUID(bytes=value)),
    Shape.DIGEST: bytes.hex,
    Shape.OCTETS: None,
}
"""Shape -> how a value of SQL's becomes one for a reader; None: it is."""


def shaped(chosen: Sequence[Field], rows: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Rows of :func:`select` as a reader gets them."""
    makers = [(place, field.name, SHAPED[field.shape], field.joined) for place, field in enumerate(chosen)]
    known = len(chosen)
    found = []
    for row in rows:
        there = len(row) == known or row[known]
        found.append(
            {
                name: None if joined and not there else row[place] if make is None else make(row[place])
                for place, name, make, joined in makers
            }
        )
    return found
