"""Ranges of a log as Arrow record batches: from SQL by ADBC, and shaped column by column.

Nothing here runs for each row in Python. The driver gives columns of numbers, texts and octets; numbers become times
and truths by Arrow's casts, octets hexadecimal digits all at once, and names texts by a cast that checks that they are
UTF-8. Only a column of a batch that holds a name which is not takes the exact way, value by value
(:func:`gateway.logs.columns.name_of`).

**SQLite must not be opened by this in a process that has it open already.** ADBC's driver brings a SQLite of its own,
and locks of files are a matter of processes: to the one library the locks of the other are its own. It would take
itself for the first to open the file, and reset its shared memory under the writer's hands. The service therefore
has this done by processes of their own (:mod:`gateway.ledger.logs.arrow_pool`).

PyArrow and ADBC are not part of the service: nothing that it needs imports this module.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cache
from importlib import import_module
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_manager import AdbcConnection, AdbcStatement  # its DB API loads pandas wherever that is installed

from gateway.logs import Log
from gateway.logs.columns import BINARY, Field, Shape, name_of, select

ROWS: Final = 4_096
"""Most rows of a record batch."""
BUSY: Final = 5_000
"""How long a read waits for SQLite's lock, in milliseconds."""
DRIVERS: Final = {"sqlite": "adbc_driver_sqlite", "postgresql": "adbc_driver_postgresql"}
"""Dialect -> the module of its driver."""
TYPES: Final[Mapping[Shape, pa.DataType]] = {
    Shape.INT32: pa.int32(),
    Shape.INT64: pa.int64(),
    Shape.BOOL: pa.bool_(),
    Shape.TIME: pa.timestamp("us", "UTC"),
    Shape.TEXT: pa.string(),
    Shape.NAME: pa.string(),
    Shape.JSON: pa.string(),
    Shape.ID: pa.string(),
    Shape.DIGEST: pa.string(),
    Shape.OCTETS: pa.binary(),
}
"""Shape -> the type of its column."""


def schema_of(chosen: Sequence[Field]) -> pa.Schema:
    """The schema of these columns."""
    return pa.schema([pa.field(field.name, TYPES[field.shape]) for field in chosen])


class ArrowConnection:
    """An ADBC connection that only reads, each statement in its own transaction; its errors are ADBC's."""

    def __init__(self, dialect: str, uri: str) -> None:
        """``uri`` as :attr:`gateway.ledger.db.engine.Database.arrow_uri` has it."""
        self.dialect = dialect
        driver = import_module(DRIVERS[dialect])
        self._closing = ExitStack()
        try:
            database = self._closing.enter_context(closing(driver.connect(uri)))
            self._connection = self._closing.enter_context(closing(AdbcConnection(database)))
            if dialect == "sqlite":
                self.rows(f"PRAGMA busy_timeout = {BUSY}")
        except BaseException:
            self._closing.close()
            raise

    def batches(self, text: str) -> Generator[pa.RecordBatch]:
        """What a statement finds, as the driver gives it."""
        with closing(AdbcStatement(self._connection)) as statement:
            if self.dialect == "sqlite":
                statement.set_options(**{"adbc.sqlite.query.batch_rows": str(ROWS)})
            statement.set_sql_query(text)
            stream, _ = statement.execute_query()
            with pa.RecordBatchReader.from_stream(stream) as reader:
                yield from reader

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        """The same row by row, for what has few."""
        return [tuple(row.values()) for batch in self.batches(text) for row in batch.to_pylist()]

    def close(self) -> None:
        """Hang up."""
        self._closing.close()


def read(
    connection: ArrowConnection,
    log: Log,
    shard: int,
    after: int,
    upto: int,
    chosen: Sequence[Field],
    where: Mapping[str, Sequence[str]] = {},
) -> Generator[pa.RecordBatch]:
    """A range of a log as record batches, of at most :data:`ROWS` rows each, in the order of their numbers. What is not
    there is left out: the caller counts.

    Args:
        where: column -> the values of it that are wanted.
    """
    text = select(connection.dialect, log, shard, after, upto, chosen, where)
    with closing(connection.batches(text)) as batches:
        for batch in batches:
            for begin in range(0, batch.num_rows, ROWS):
                yield shape(batch.slice(begin, ROWS), chosen)


def shape(batch: pa.RecordBatch, chosen: Sequence[Field]) -> pa.RecordBatch:
    """A batch of SQL's as a reader gets it."""
    known = batch.column(len(chosen)).cast(pa.bool_()) if batch.num_columns > len(chosen) else None
    if known is not None and pc.all(known, min_count=0).as_py():
        known = None
    columns = []
    for place, field in enumerate(chosen):
        column = _SHAPED[field.shape](batch.column(place))
        if field.joined and known is not None:
            column = pc.if_else(known, column, pa.scalar(None, column.type))
        columns.append(column)
    return pa.record_batch(columns, schema=schema_of(chosen))


def _cast(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    return lambda column: column.cast(kind)


def _names(column: pa.Array) -> pa.Array:
    try:
        texts = column.cast(pa.string())
    except pa.ArrowInvalid:  # some are not UTF-8
        texts = None
    if texts is not None and not pc.any(pc.starts_with(texts, BINARY), min_count=0).as_py():
        return texts
    return pa.array(map(name_of, column.to_pylist()), pa.string())


def _objects(column: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(pc.binary_length(column), 0), "{}", column.cast(pa.string()))


def _digits(column: pa.Array, width: int) -> pa.Array:
    """Octets, ``width`` of each value, as hexadecimal digits; a value of another length is no value."""
    whole = pc.equal(pc.binary_length(column), width)
    if not pc.all(whole, min_count=0).as_py():
        column = pc.if_else(whole, column, bytes(width))
    count = len(column)
    _, offsets, data = column.buffers()
    if not count:
        return pa.array([], pa.string())
    first = memoryview(offsets).cast("i")[column.offset]
    digits = bytes(memoryview(data)[first : first + count * width]).hex().encode("ascii")
    return pa.StringArray.from_buffers(count, _offsets(count, 2 * width), pa.py_buffer(digits))


@cache
def _steps(width: int) -> pa.Buffer:
    return pa.py_buffer(array("i", range(0, ROWS * width + 1, width)))


def _offsets(count: int, width: int) -> pa.Buffer:
    return _steps(width).slice(0, 4 * (count + 1))


def _ids(column: pa.Array) -> pa.Array:
    digits = _digits(column, 16)
    cuts = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
    return pc.binary_join_element_wise(*(pc.utf8_slice_codeunits(digits, begin, end) for begin, end in cuts), "-")


_SHAPED: Mapping[Shape, Callable[[pa.Array], pa.Array]] = {
    Shape.INT32: _cast(pa.int32()),
    Shape.INT64: _cast(pa.int64()),
    Shape.BOOL: _cast(pa.bool_()),
    Shape.TIME: _cast(TYPES[Shape.TIME]),
    Shape.TEXT: _cast(pa.string()),
    Shape.NAME: _names,
    Shape.JSON: _objects,
    Shape.ID: _ids,
    Shape.DIGEST: lambda column: _digits(column, 32),
    Shape.OCTETS: _cast(pa.binary()),
}
"""Shape -> how a column of SQL's becomes one for a reader."""
