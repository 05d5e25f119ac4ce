"""Rows as Spark takes them: record batches whose columns have the very names, order and types of the query's schema.

Spark looks at the first batch only and hands the memory of all others to the JVM as it is, so every batch is looked at
here. A column that is of another type but holds the same values is converted; anything else is refused by name.
"""

from __future__ import annotations

import io
from base64 import b64decode
from binascii import Error as NoBase64
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from gateway.errors import ConfigurationError, ServiceRefused
from gateway.pipeline.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BATCH_OCTETS: Final = 32 << 20
"""Most octets of a batch that is given to Spark, unless a single row has more: the JVM holds it as a whole."""
TYPES: Final[dict[str, pa.DataType]] = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
"""Type in Spark's DDL -> type in Arrow."""
_WIRE: Final = {"binary": pa.string(), "timestamp": pa.string()}
"""How NDJSON writes what JSON has no type for: octets in base64, times as RFC 3339."""


def arrow_schema(log: str, names: Sequence[str]) -> pa.Schema:
    """These columns of a log, in this order, as Arrow has them."""
    types = {each.name: each.type for each in COLUMNS[log]}
    return pa.schema([(name, TYPES[types[name]]) for name in names])


def check_names(log: str, names: Sequence[str]) -> None:
    """Check that the log has these columns.

    Raises:
        ConfigurationError: there is no such log, or no such column. The text names it.
    """
    if log not in COLUMNS:
        raise ConfigurationError(f"there is no log {log!r}; there are {', '.join(COLUMNS)}")
    there = [each.name for each in COLUMNS[log]]
    for name in names:
        if name not in there:
            raise ConfigurationError(f"the log of {log} has no column {name!r}; it has {', '.join(there)}")


def columns_of(schema: StructType, log: str) -> tuple[str, ...]:
    """The columns that a query's schema asks for.

    Raises:
        ConfigurationError: the log has no such column, or it is of another type. The text names it.
    """
    check_names(log, schema.fieldNames())
    types = {each.name: each.type for each in COLUMNS[log]}
    for field in schema.fields:
        if field.dataType.simpleString() != types[field.name]:
            raise ConfigurationError(
                f"the column {field.name} of the log of {log} is {types[field.name]}, "
                f"not {field.dataType.simpleString()}"
            )
    return tuple(field.name for field in schema.fields)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with these columns, in this order and of these types.

    Raises:
        ServiceRefused: a column is missing, or does not fit its type. The text names it.
    """
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        place = batch.schema.get_field_index(field.name)
        if place < 0:
            raise ServiceRefused(f"the gateway sent no column {field.name}; it sent {', '.join(batch.schema.names)}")
        column = batch.column(place)
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except pa.ArrowException as error:
                raise ServiceRefused(
                    f"the gateway sent the column {field.name} as {column.type}, which is no {field.type}: {error}"
                ) from None
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def pieces(batch: pa.RecordBatch, octets: int = BATCH_OCTETS) -> Iterator[pa.RecordBatch]:
    """The batch, in pieces of at most so many octets where it has more."""
    if batch.nbytes <= octets or batch.num_rows <= 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from pieces(batch.slice(0, half), octets)
    yield from pieces(batch.slice(half), octets)


def from_ndjson(lines: bytes, schema: pa.Schema, log: str) -> pa.RecordBatch:
    """A batch of these columns from lines of JSON.

    Raises:
        ServiceRefused: a line is no JSON, or a value is not of its column's type.
    """
    wire = pa.schema([(field.name, _wire(field.name, log, field.type)) for field in schema])
    try:
        table = pyarrow.json.read_json(
            io.BytesIO(lines),
            pyarrow.json.ReadOptions(use_threads=False, block_size=max(len(lines), 1 << 20)),
            pyarrow.json.ParseOptions(explicit_schema=wire, unexpected_field_behavior="ignore"),
        )
        columns = [_decoded(table.column(field.name).combine_chunks(), field.type) for field in schema]
    except (pa.ArrowException, NoBase64) as error:
        raise ServiceRefused(f"the gateway sent lines that are no rows: {error}") from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _wire(name: str, log: str, kind: pa.DataType) -> pa.DataType:
    types = {each.name: each.type for each in COLUMNS[log]}
    return _WIRE.get(types[name], kind)


def _decoded(column: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if kind == pa.binary():
        values = [None if text is None else b64decode(text, validate=True) for text in column.to_pylist()]
        return pa.array(values, pa.binary())
    return column if column.type == kind else pc.cast(column, kind)
