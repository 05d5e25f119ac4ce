"""Statements that run in every group commit, compiled once and run on the driver's own connection.

SQLAlchemy finds a compiled statement in its cache, but walks the expression and all its parameters to do so, each
time, and wraps cursor, context and rows around what it runs; for a group of one message that was half of all work.
Transactions, connections and errors stay SQLAlchemy's: what the driver raises here is what it would have raised there.
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from types import MappingProxyType
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from gateway.ledger.db.engine import Database, Row, run, write

T = TypeVar("T")
make_row: Final[Any] = partial(namedtuple, rename=True)
NO_PARAMETERS: Final[Mapping[str, Any]] = MappingProxyType({})


def once(prepare: Callable[[T, Database], None]) -> Callable[[T, Database], None]:
    """For a method that makes statements and keeps them as attributes. Statements do not change, and to make all those
    of a ledger takes a tenth of a second: the first ledger of a process makes them, for its kind of database."""
    made: dict[str, dict[str, Any]] = {}

    @wraps(prepare)
    def prepared(self: T, database: Database) -> None:
        if database.dialect not in made:
            before = set(vars(self))
            prepare(self, database)
            made[database.dialect] = {name: value for name, value in vars(self).items() if name not in before}
        vars(self).update(made[database.dialect])

    return prepared


class PreparedStatement:
    """A statement in the words of one database. Parameters and results are the driver's: numbers, text, octets."""

    __slots__ = ("_begins", "_fixed", "_positions", "_text")

    def __init__(self, database: Database, statement: sa.Executable) -> None:
        self._compile(database.url.get_dialect(), statement)

    def _compile(self, dialect: Any, statement: sa.Executable) -> Any:
        assert isinstance(statement, sa.ClauseElement)
        if dialect.name == "sqlite":
            # Numbered, a value is given once, wherever it stands: the driver would copy it for each place.
            compiled: Any = statement.compile(dialect=dialect(paramstyle="numeric_dollar"))
            self._text = re.sub(r"\$(\d)", r"?\1", str(compiled))
        else:
            compiled = statement.compile(dialect=dialect())
            self._text = str(compiled)
        self._begins = dialect.name != "sqlite"
        self._positions: tuple[str, ...] | None = tuple(compiled.positiontup) if compiled.positional else None
        self._fixed = {name: value for name, value in compiled.params.items() if value is not None}
        return compiled

    def run(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> list[Row]:
        """Execute it; all that it returns. ``parameters`` holds the values of its ``bindparam``s."""
        return run(connection, self._text, self._begin(connection, parameters))

    def write(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> int:
        """The same; how many rows it wrote or deleted."""
        return write(connection, self._text, self._begin(connection, parameters))

    def _begin(self, connection: sa.Connection, parameters: Mapping[str, Any]) -> Sequence[Any] | Mapping[str, Any]:
        if self._begins and not connection.in_transaction():
            # The driver begins one anyway. Unless SQLAlchemy ends it, its pool does, and takes a connection that died
            # meanwhile for a defect. Connections to SQLite do not die.
            connection.begin()
        values = {**self._fixed, **parameters}
        return values if self._positions is None else [values[name] for name in self._positions]


class StaticStatement:
    """The same for a statement of a module, which knows no database: it is compiled when it first runs at one. Rows
    have their columns by name, as they come from the driver."""

    __slots__ = ("_made", "_statement")

    def __init__(self, statement: sa.Executable) -> None:
        self._statement = statement
        self._made: dict[str, tuple[PreparedStatement, Callable[[Row], Any]]] = {}

    def rows(self, connection: sa.Connection, parameters: Mapping[str, Any] = NO_PARAMETERS) -> list[Any]:
        """Execute it; all that it returns. Several in a row see the same state of the ledger."""
        if not connection.in_transaction():
            connection.begin()
        made = self._made.get(connection.dialect.name) or self._make(type(connection.dialect))
        return list(map(made[1], made[0].run(connection, parameters)))

    def row(self, connection: sa.Connection, parameters: Mapping[str, Any] = NO_PARAMETERS) -> Any:
        """The first row; None: there is none."""
        rows = self.rows(connection, parameters)
        return rows[0] if rows else None

    def scalar(self, connection: sa.Connection, parameters: Mapping[str, Any] = NO_PARAMETERS) -> Any:
        """The first value of the first row; None: there is none."""
        row = self.row(connection, parameters)
        return None if row is None else row[0]

    def _make(self, dialect: Any) -> tuple[PreparedStatement, Callable[[Row], Any]]:
        prepared = PreparedStatement.__new__(PreparedStatement)
        compiled = prepared._compile(dialect, self._statement)
        columns = [(each.keyname, each.type) for each in compiled._result_columns]
        if any(isinstance(kind, sa.TypeDecorator) for _, kind in columns):
            raise TypeError(f"{self._statement}: a column is not what the driver returns")
        made = self._made[dialect.name] = prepared, make_row("StaticRow", [name for name, _ in columns])._make
        return made
