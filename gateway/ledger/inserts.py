"""``INSERT`` of the history's rows, for each database in the way that is quickest there.

PostgreSQL takes them as one JSON array and one string of octets (:mod:`gateway.ledger.batch`): one statement, two
parameters, whatever the number of rows. SQLite would look up each value in the JSON by a function call, which was half
of the price of a row; it takes them as ``VALUES (...), (...)``. A number of rows is part of that statement, so there
is one for each power of two, and 1,000 rows are six of them: 512, 256, 128, 64, 32 and 8. Each is prepared once, by the
driver. ``executemany`` is no way: it gives up the interpreter's lock at every row and has to wait for it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import sqlalchemy as sa

from gateway.ledger.batch import Batch, select_rows
from gateway.ledger.engine import Database, run
from gateway.ledger.prepared import Prepared
from gateway.ledger.shards import INSERT

MOST = 512
"""Most rows of one statement; a power of two. SQLite takes 32,766 parameters."""


class Rows(Protocol):
    """Rows on their way to an :class:`Insert`."""

    def __len__(self) -> int:
        """How many there are."""

    def add(self, plain: tuple[Any, ...], *octets: bytes) -> None:
        """A row: the values of the columns of numbers and ASCII text, in order, then those of octets."""


class Insert(Protocol):
    """A statement that inserts."""

    def rows(self) -> Rows:
        """None yet."""

    def run(self, connection: sa.Connection, rows: Any, shard: int, first: int) -> None:
        """Insert rows that :meth:`rows` began. Where the table has ``shard`` and ``sequence``, theirs are ``shard``,
        and ``first`` and up."""


class Values:
    """Rows as one flat list of values, which the garbage collector takes for one object."""

    __slots__ = ("count", "values")

    def __init__(self) -> None:
        self.count = 0
        self.values: list[Any] = []

    def __len__(self) -> int:
        return self.count

    def add(self, plain: tuple[Any, ...], *octets: bytes) -> None:
        """See :class:`Rows`."""
        self.values += plain
        self.values += octets
        self.count += 1


class ValuesInsert:
    """SQLite's."""

    __slots__ = ("_numbered", "_texts", "_width")

    def __init__(self, table: sa.Table, tail: str = "") -> None:
        """``tail`` is what follows the rows."""
        self._numbered = "sequence" in table.c
        columns = [column for column in table.c if column.name not in ("shard", "sequence")]
        columns.sort(key=lambda column: isinstance(column.type, sa.LargeBinary))  # stable
        self._width = len(columns)
        names = ["shard", "sequence"] * self._numbered + [column.name for column in columns]
        begin = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES "  # noqa: S608  # names of ours
        self._texts: dict[int, str] = {}
        number = 1
        while number <= MOST:
            rows = ", ".join(self._row(index) for index in range(number))
            self._texts[number] = f"{begin}{rows} {tail}"
            number *= 2

    def _row(self, index: int) -> str:
        places = [f"?1, ?2 + {index}"] * self._numbered + ["?"] * self._width
        return f"({', '.join(places)})"

    def rows(self) -> Values:
        """See :class:`Insert`."""
        return Values()

    def run(self, connection: sa.Connection, rows: Values, shard: int, first: int) -> None:
        """See :class:`Insert`."""
        values, width = rows.values, self._width
        begin, left = 0, rows.count
        while left:
            number = min(MOST, 1 << (left.bit_length() - 1))
            part = values[begin * width : (begin + number) * width]
            if self._numbered:
                part[:0] = (shard, first + begin)
            run(connection, self._texts[number], part)
            begin += number
            left -= number


class JsonInsert:
    """PostgreSQL's, which SQLite could run too."""

    __slots__ = ("_statement",)

    def __init__(self, database: Database, table: sa.Table, keys: Sequence[sa.Column[Any]] = ()) -> None:
        """Rows whose ``keys`` are there already are left out."""
        columns = [column for column in table.c if column.name not in ("shard", "sequence")]
        rows, index = select_rows(database.dialect, columns)
        if "sequence" in table.c:
            rows = rows.add_columns(
                sa.bindparam("my_shard", type_=sa.BigInteger).label("shard"),
                (sa.bindparam("first", type_=sa.BigInteger) + index).label("sequence"),
            )
        insert = INSERT[database.dialect](table).from_select(list(rows.selected_columns.keys()), rows)
        self._statement = Prepared(database, insert.on_conflict_do_nothing(index_elements=keys) if keys else insert)

    def rows(self) -> Batch:
        """See :class:`Insert`."""
        return Batch()

    def run(self, connection: sa.Connection, rows: Batch, shard: int, first: int) -> None:
        """See :class:`Insert`."""
        self._statement.run(connection, rows.parameters(my_shard=shard, first=first))


def insert(database: Database, table: sa.Table, key: sa.Column[Any] | None = None) -> Insert:
    """The quickest way there is. A row whose ``key`` is there already is left out."""
    if database.dialect == "sqlite":
        return ValuesInsert(table, f"ON CONFLICT ({key.name}) DO NOTHING" if key is not None else "")
    return JsonInsert(database, table, () if key is None else (key,))
