"""Batches as Spark takes them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType, _parse_datatype_json_value

from gateway.errors import ConfigurationError, ServiceRefused
from gateway.pipeline.schema import COLUMNS
from gateway.pipeline.source.conform import arrow_schema, columns_of, conform, from_ndjson, pieces

SCHEMA = pa.schema([("sequence", pa.int64()), ("body", pa.binary()), ("accepted_at", pa.timestamp("us", tz="UTC"))])


def test_columns_are_put_in_order_and_converted_where_nothing_is_lost() -> None:
    batch = pa.record_batch(
        [
            pa.array([1_000], pa.timestamp("ms", tz="UTC")),
            pa.array(["gone"]),
            pa.array([7], pa.int32()),
            pa.array([b"x"], pa.large_binary()),
        ],
        names=["accepted_at", "more", "sequence", "body"],
    )
    found = conform(batch, SCHEMA)
    assert found.schema.equals(SCHEMA)
    assert found.column(0).to_pylist() == [7]
    assert found.column(1).to_pylist() == [b"x"]
    assert found.column(2).cast(pa.int64()).to_pylist() == [1_000_000]


def test_a_batch_that_fits_is_not_touched() -> None:
    batch = pa.RecordBatch.from_pylist([{"sequence": 1, "body": b"", "accepted_at": None}], schema=SCHEMA)
    assert conform(batch, SCHEMA) is batch


def test_a_column_that_does_not_come_or_is_of_another_type_is_named() -> None:
    with pytest.raises(ServiceRefused, match="sent no column body; it sent sequence"):
        conform(pa.record_batch([pa.array([1])], names=["sequence"]), SCHEMA)
    batch = pa.record_batch([pa.array(["seven"]), pa.array([b""]), pa.array([0])], names=SCHEMA.names)
    with pytest.raises(ServiceRefused, match="sent the column sequence as string, which is no int64"):
        conform(batch, SCHEMA)


def test_arrow_has_the_types_that_spark_makes_of_the_schema(spark_types: dict[str, StructType]) -> None:
    """Spark compares the first batch with this, and hands all others to the JVM unseen."""
    for log, columns in COLUMNS.items():
        names = [column.name for column in columns]
        assert arrow_schema(log, names).equals(to_arrow_schema(spark_types[log], timezone="UTC"))


@pytest.fixture
def spark_types() -> dict[str, StructType]:
    """The schemas, as Spark reads their DDL."""
    names = {"int": "integer", "bigint": "long"}
    return {
        log: StructType(
            [StructField(each.name, _parse_datatype_json_value(names.get(each.type, each.type))) for each in of]
        )
        for log, of in COLUMNS.items()
    }


def test_a_schema_of_ones_own_has_columns_of_the_log(spark_types: dict[str, StructType]) -> None:
    assert columns_of(spark_types["events"], "events")[:2] == ("shard", "sequence")
    with pytest.raises(ConfigurationError, match="the log of messages has no column 'colour'; it has shard, sequence"):
        columns_of(StructType().add("colour", "string"), "messages")
    with pytest.raises(ConfigurationError, match="the column sequence of the log of messages is bigint, not int"):
        columns_of(StructType().add("sequence", "integer"), "messages")


def test_a_batch_that_is_too_large_is_divided() -> None:
    batch = pa.record_batch([pa.array([bytes(1_000)] * 100), pa.array(range(100))], names=["body", "sequence"])
    found = list(pieces(batch, 10_000))
    assert max(each.nbytes for each in found) <= 10_000
    assert pa.Table.from_batches(found).column("sequence").to_pylist() == list(range(100))
    huge = pa.record_batch([pa.array([bytes(1_000)])], names=["body"])
    assert list(pieces(huge, 10)) == [huge]


# ----------------------------------------------------------------------------------------------------- NDJSON


def test_lines_become_rows() -> None:
    lines = (
        b'{"sequence":1,"body":"AP8=","accepted_at":"2026-01-01T00:00:00.000001Z","more":[1]}\n'
        b'{"sequence":2,"body":"","accepted_at":"2026-01-01T00:00:00Z"}\n{"sequence":3,"body":null}\n'
    )
    found = from_ndjson(lines, SCHEMA, "messages")
    assert found.schema.equals(SCHEMA)
    assert found.column("body").to_pylist() == [b"\0\xff", b"", None]
    assert found.column("accepted_at").cast(pa.int64()).to_pylist() == [1767225600000001, 1767225600000000, None]


@pytest.mark.parametrize(
    "line",
    [
        b"<html>\n",
        b'{"sequence":"one"}\n',
        b'{"sequence":1,"body":"no base64!"}\n',
        b'{"sequence":1,"accepted_at":"yesterday"}\n',
        b'{"sequence":1',
    ],
)
def test_lines_that_are_no_rows_are_refused(line: bytes) -> None:
    with pytest.raises(ServiceRefused, match="the gateway sent lines that are no rows"):
        from_ndjson(line, SCHEMA, "messages")
