"""``INSERT`` of the history's rows, for each database in the way that is quickest there.

PostgreSQL takes them as one JSON array and one string of octets (:mod:`gateway.ledger.db.batch`): one statement, two
parameters, for any number of rows. SQLite would look up each value in the JSON by a function call, which was half of
the price of a row; it takes them as ``VALUES (...), (...)``. A number of rows is part of that statement, so there is
one for each power of two, and 1,000 rows are six of them: 512, 256, 128, 64, 32 and 8. Each is prepared once, by the
driver. ``executemany`` is no way: it gives up the interpreter's lock at every row and has to wait for it again.

What such a statement costs is mostly its parameters, and many are the same in every row: all that one bridge or one
batch writes has the same broker and version, often the same time. Those are bound once, by a statement that names their
parameter in each row. Not any columns can be: the statements would be too many to keep. A table has a few sets of
columns that tend to be alike (:data:`ALIKE`), and the first set that is takes the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import sqlalchemy as sa

from gateway.ledger.db.batch import RowBatch, select_rows
from gateway.ledger.db.engine import Database, Row, run, write
from gateway.ledger.db.prepared import PreparedStatement
from gateway.ledger.db.shards import INSERT

MOST = 512
"""Most rows of one statement; a power of two. SQLite takes 32,766 parameters."""
_ALONE: Final = (1, ())
"""One row of which no column is alike."""

ALIKE: dict[str, tuple[tuple[str, ...], ...]] = {
    "messages": (
        ("at", "broker", "version", "origin", "exchange", "routing_key", "client"),
        ("broker", "version", "origin", "client"),
    ),
    "events": (("kind", "at", "broker", "version", "detail"), ("kind", "broker", "version")),
    "inbox": (("run", "at", "expires_at"),),
    "message_log": (
        ("tap", "at", "broker", "version", "redelivered", "queue", "exchange"),
        ("tap", "broker", "version", "redelivered", "queue"),
        ("tap", "broker", "version"),
    ),
    "deliveries": (
        ("at", "due_at", "attempt", "lease", "status", "code", "subscription", "order_key", "reason"),
        ("attempt", "lease", "status", "code", "subscription", "order_key", "reason"),
        ("attempt", "lease", "status", "code", "subscription", "reason"),
    ),
}
"""Table -> sets of columns that often have the same value in all rows, the greatest first."""


class PendingRows(Protocol):
    """Rows on their way to an :class:`Insert`."""

    def __len__(self) -> int:
        """How many there are."""

    def add(self, plain: tuple[Any, ...], *octets: bytes) -> None:
        """A row: the values of the columns of numbers and ASCII text, in order, then those of octets."""


class Insert(Protocol):
    """A statement that inserts."""

    def rows(self) -> PendingRows:
        """None yet."""

    def run(self, connection: sa.Connection, rows: Any, shard: int, first: int) -> list[Row]:
        """Insert rows that :meth:`rows` began. Where the table has ``shard`` and ``sequence``, theirs are ``shard``,
        and ``first`` and up. Returns what the statement does."""

    def write(self, connection: sa.Connection, rows: Any, shard: int, first: int) -> int:
        """The same; how many of them were not there."""


class Values:
    """Rows as one flat list of values, which the garbage collector takes for one object."""

    __slots__ = ("count", "values")

    def __init__(self) -> None:
        self.count = 0
        self.values: list[Any] = []

    def __len__(self) -> int:
        return self.count

    def add(self, plain: tuple[Any, ...], *octets: bytes) -> None:
        """See :class:`PendingRows`."""
        self.values += plain
        self.values += octets
        self.count += 1


class ValuesInsert:
    """SQLite's."""

    __slots__ = ("_names", "_numbered", "_sets", "_table", "_tail", "_texts")

    def __init__(self, table: sa.Table, tail: str = "") -> None:
        """``tail`` is what follows the rows."""
        self._table = table.name
        self._tail = tail
        self._numbered = "sequence" in table.c
        columns = [column for column in table.c if column.name not in ("shard", "sequence")]
        columns.sort(key=lambda column: isinstance(column.type, sa.LargeBinary))  # stable
        self._names = [column.name for column in columns]
        self._sets = [tuple(map(self._names.index, names)) for names in ALIKE.get(table.name, ())]
        self._texts: dict[tuple[int, tuple[int, ...]], str] = {}

    def _text(self, number: int, alike: tuple[int, ...]) -> str:
        """The statement for this many rows, of which these columns are alike."""
        names = [self._names[index] for index in alike]
        places = [f"?{index + 1}" for index in range(len(names))]
        if self._numbered:
            names += ["shard", "sequence"]
            first = len(places) + 1
            places += [f"?{first}", f"?{first + 1} + {{index}}"]
        others = [name for index, name in enumerate(self._names) if index not in alike]
        row = f"({', '.join(places + ['?'] * len(others))})"
        rows = ", ".join(row.format(index=index) for index in range(number))
        return f"INSERT INTO {self._table} ({', '.join(names + others)}) VALUES {rows} {self._tail}"  # noqa: S608  # ours

    def rows(self) -> Values:
        """See :class:`Insert`."""
        return Values()

    def run(self, connection: sa.Connection, rows: Values, shard: int, first: int) -> list[Row]:
        """See :class:`Insert`."""
        found: list[Row] = []
        for text, values in self._statements(rows, shard, first):
            found += run(connection, text, values)
        return found

    def write(self, connection: sa.Connection, rows: Values, shard: int, first: int) -> int:
        """See :class:`Insert`."""
        return sum([write(connection, text, values) for text, values in self._statements(rows, shard, first)])

    def _statements(self, rows: Values, shard: int, first: int) -> Iterator[tuple[str, list[Any]]]:
        """The statements, with their values."""
        values, count = rows.values, rows.count
        if count == 1:  # alone it is like nothing else, and this is the whole commit of a lone caller
            text = self._texts.get(_ALONE)
            if text is None:
                text = self._texts[_ALONE] = self._text(*_ALONE)
            yield text, [shard, first, *values] if self._numbered else values
            return
        width = len(self._names)
        columns = [values[index::width] for index in range(width)]
        alike = next((each for each in self._sets if all(_same(columns[index]) for index in each)), ())
        head = [values[index] for index in alike]
        if alike:
            others = [column for index, column in enumerate(columns) if index not in alike]
            width = len(others)
            values = [None] * (width * count)
            for index, column in enumerate(others):
                values[index::width] = column
        begin, left = 0, count
        while left:
            number = min(MOST, 1 << (left.bit_length() - 1))
            text = self._texts.get((number, alike))
            if text is None:
                text = self._texts[number, alike] = self._text(number, alike)
            numbers = [shard, first + begin] * self._numbered
            yield text, [*head, *numbers, *values[begin * width : (begin + number) * width]]
            begin += number
            left -= number


def _same(column: list[Any]) -> bool:
    first = column[0]
    return column[-1] == first and column.count(first) == len(column)


class JsonInsert:
    """PostgreSQL's, which SQLite could run too."""

    __slots__ = ("_statement",)

    def __init__(
        self,
        database: Database,
        table: sa.Table,
        keys: Sequence[sa.Column[Any]] = (),
        replace: bool = False,
        returning: Sequence[sa.Column[Any]] = (),
    ) -> None:
        """See :func:`insert`. Two rows of a batch must not have the same ``keys`` where they ``replace``."""
        columns = [column for column in table.c if column.name not in ("shard", "sequence")]
        rows, index = select_rows(database.dialect, columns)
        if "sequence" in table.c:
            rows = rows.add_columns(
                sa.bindparam("my_shard", type_=sa.BigInteger).label("shard"),
                (sa.bindparam("first", type_=sa.BigInteger) + index).label("sequence"),
            )
        insert = INSERT[database.dialect](table).from_select(list(rows.selected_columns.keys()), rows)
        if keys and replace:
            values = {column.name: insert.excluded[column.name] for column in _others(table, keys)}
            insert = insert.on_conflict_do_update(index_elements=keys, set_=values)
        elif keys:
            insert = insert.on_conflict_do_nothing(index_elements=keys)
        if returning:
            insert = insert.returning(*returning)
        self._statement = PreparedStatement(database, insert)

    def rows(self) -> RowBatch:
        """See :class:`Insert`."""
        return RowBatch()

    def run(self, connection: sa.Connection, rows: RowBatch, shard: int, first: int) -> list[Row]:
        """See :class:`Insert`."""
        return self._statement.run(connection, rows.parameters(my_shard=shard, first=first))

    def write(self, connection: sa.Connection, rows: RowBatch, shard: int, first: int) -> int:
        """See :class:`Insert`."""
        return self._statement.write(connection, rows.parameters(my_shard=shard, first=first))


def insert(
    database: Database,
    table: sa.Table,
    keys: Sequence[sa.Column[Any]] = (),
    *,
    replace: bool = False,
    returning: Sequence[sa.Column[Any]] = (),
) -> Insert:
    """The quickest way there is. A row whose ``keys`` are there already is left out or, with ``replace``, takes the
    place of the other. ``returning``: what the statement returns of each row that it wrote."""
    if database.dialect != "sqlite":
        return JsonInsert(database, table, keys, replace, returning)
    tail = ""
    if keys:
        sets = ", ".join(f"{column.name} = excluded.{column.name}" for column in _others(table, keys))
        what = f"UPDATE SET {sets}" if replace else "NOTHING"
        tail = f"ON CONFLICT ({', '.join(key.name for key in keys)}) DO {what}"
    if returning:
        tail += f" RETURNING {', '.join(column.name for column in returning)}"
    return ValuesInsert(table, tail)


def _others(table: sa.Table, keys: Sequence[sa.Column[Any]]) -> list[sa.Column[Any]]:
    return [column for column in table.c if column not in keys]
