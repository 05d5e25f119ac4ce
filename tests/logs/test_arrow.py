"""Columns of SQL as columns of a reader, the quick way and the exact one."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from gateway.logs import Log, arrow
from gateway.logs.columns import FIELDS, Field, Shape, shaped

IDS = [bytes(range(number, number + 16)) for number in range(5)]


def both(shape: Shape, values: list[Any], kind: pa.DataType, known: list[int] | None = None) -> list[Any]:
    """What becomes of a column: by Arrow, and value by value; they are the same."""
    field = Field("x", shape, "", joined=known is not None)
    columns = [pa.array(values, kind)] + ([] if known is None else [pa.array(known, pa.int64())])
    names = ["x", "known"][: len(columns)]
    batch = arrow.shape(pa.record_batch(columns, names), [field])
    assert batch.schema == arrow.schema_of([field])
    batch.validate(full=True)
    found: list[Any] = batch.column(0).to_pylist()
    rows = list(zip(values, known, strict=True)) if known is not None else [(value,) for value in values]
    assert found == [row["x"] for row in shaped([field], rows)]
    sliced = pa.record_batch([column.slice(1, 2) for column in columns], names)
    assert arrow.shape(sliced, [field]).column(0).to_pylist() == found[1:3]
    return found


def test_ids_and_digests() -> None:
    assert both(Shape.ID, IDS, pa.binary()) == [str(UUID(bytes=each)) for each in IDS]
    digests = [bytes([number]) * 32 for number in range(4)]
    assert both(Shape.DIGEST, digests, pa.binary()) == [each.hex() for each in digests]


def test_what_is_not_known_is_null() -> None:
    digests = [bytes([number]) * 32 for number in range(4)]
    digests[2] = b""
    assert both(Shape.DIGEST, digests, pa.binary(), [1, 1, 0, 1])[2] is None
    assert both(Shape.NAME, [b"a", b"", b"", b"d"], pa.binary(), [1, 1, 0, 1]) == ["a", "", None, "d"]
    assert both(Shape.TIME, [1, 2, 0, 4], pa.int64(), [1, 1, 0, 1])[2] is None
    assert both(Shape.TIME, [1, 2, 0, 4], pa.int64(), [1, 1, 1, 1])[2] is not None


@pytest.mark.parametrize(
    "odd", [b"\xff\xfe", b'{"type":"binary"', b'{"type":"binary","value":"/w=="}', "é☃".encode(), b"a\0b"]
)
def test_names_of_any_octets(odd: bytes) -> None:
    found = both(Shape.NAME, [b"plain", odd, b"", b"x" * 300], pa.binary())
    assert (found[0], found[2]) == ("plain", "")


def test_the_rest() -> None:
    assert both(Shape.JSON, [b"", b'{"a":1}', b""], pa.binary()) == ["{}", '{"a":1}', "{}"]
    assert both(Shape.BOOL, [0, 1, 0], pa.int64()) == [False, True, False]
    assert both(Shape.OCTETS, [b"", b"\xff", b"x"], pa.binary()) == [b"", b"\xff", b"x"]
    assert both(Shape.INT32, [0, 1, 2], pa.int64()) == [0, 1, 2]
    assert both(Shape.INT64, [0, 1, 2**63 - 1], pa.int64())[2] == 2**63 - 1
    assert both(Shape.TEXT, ["", "a", "b"], pa.string()) == ["", "a", "b"]
    assert both(Shape.TIME, [0, 1_800_000_000_123_456, 5], pa.int64())[1].isoformat() == (
        "2027-01-15T08:00:00.123456+00:00"
    )


@pytest.mark.parametrize("shape", Shape)
def test_nothing_at_all(shape: Shape) -> None:
    """SQLite's driver takes the columns of no rows for numbers."""
    field = Field("x", shape, "")
    batch = pa.record_batch([pa.array([], pa.binary())], ["x"])
    if shape in (Shape.BOOL, Shape.INT32, Shape.INT64, Shape.TIME):
        batch = pa.record_batch([pa.array([], pa.int64())], ["x"])
    assert arrow.shape(batch, [field]).num_rows == 0


def test_every_shape_has_its_type() -> None:
    assert set(arrow.TYPES) == set(Shape) == set(arrow._SHAPED)
    assert len(arrow.schema_of(FIELDS[Log.MESSAGES])) == 16
