"""Columns of the logs: the contract with Spark, and what SQL they become."""

from __future__ import annotations

import pytest

from gateway.logs import Log
from gateway.logs.columns import BINARY, FIELDS, FILTERS, SHAPED, Shape, fields, name_of, select
from gateway.pipeline.schema import COLUMNS

SPARK = {
    Shape.INT32: "int", Shape.INT64: "bigint", Shape.BOOL: "boolean", Shape.TIME: "timestamp", Shape.TEXT: "string",
    Shape.NAME: "string", Shape.JSON: "string", Shape.ID: "string", Shape.DIGEST: "string", Shape.OCTETS: "binary",
}  # fmt: skip


@pytest.mark.parametrize("log", Log)
def test_they_are_those_that_spark_knows(log: Log) -> None:
    assert [(field.name, SPARK[field.shape]) for field in FIELDS[log]] == [
        (column.name, column.type) for column in COLUMNS[log.value]
    ]
    assert set(FILTERS[log]) <= {field.name for field in FIELDS[log]}
    assert set(SHAPED) == set(Shape)


def test_columns_are_in_the_order_of_the_log() -> None:
    assert [field.name for field in fields(Log.EVENTS, ["size", "shard", "size"])] == ["shard", "size"]
    assert fields(Log.EVENTS) == FIELDS[Log.EVENTS]
    with pytest.raises(ValueError, match="'body' is no column of the log 'events': accepted_at, "):
        fields(Log.EVENTS, ["kind", "body"])


def test_a_name_stands_for_one_text_only() -> None:
    names = [b"", b"plain", b"\xff", b"caf\xc3\xa9", BINARY.encode(), b'{"type":"binary","value":"/w=="}', b"\0"]
    texts = [name_of(name) for name in names]
    assert len(set(texts)) == len(names)
    assert texts[:4] == ["", "plain", '{"type":"binary","value":"/w=="}', "caf\xe9"]


def test_values_are_quoted() -> None:
    where = {"kind": ["a'b", "c\0d"], "exchange": ["e'\udcff"]}
    text = select("sqlite", Log.EVENTS, 1, 2, 3, fields(Log.EVENTS, ["kind"]), where)
    assert text == (
        "SELECT e.kind AS kind FROM events AS e LEFT JOIN messages AS m ON m.id = e.message_id WHERE e.shard = 1 AND "
        "e.sequence > 2 AND e.sequence <= 3 AND e.kind IN ('a''b', 'c?d') AND m.exchange IN (x'6527ff') "
        "ORDER BY e.sequence"
    )
    text = select("postgresql", Log.MESSAGES, 1, 2, 3, fields(Log.MESSAGES, ["tap"]), {"queue": ["q"]})
    assert "e.queue IN ('\\x71'::bytea)" in text
