"""An archive without Spark: rows are Arrow tables, so that the decisions are tested in milliseconds."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gateway.pipeline.archive.engine import Digest
from gateway.pipeline.archive.table import TIME
from gateway.pipeline.schema import COLUMNS, MESSAGES

TYPES = {
    "int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "binary": pa.binary(), "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"), "date": pa.date32(), "double": pa.float64(),
}  # fmt: skip
NAMES = {kind: name for name, kind in TYPES.items()}
START = datetime(2026, 11, 1, tzinfo=UTC)
A_DAY = 1_000
"""Sequence numbers of one day."""


def messages(first: int, last: int, shard: int = 0) -> pa.Table:
    """Rows of the message log from ``first`` to ``last``; each thousand is a day, from 2026-11-01 on."""
    numbers = range(first, last + 1)
    values = {
        "shard": [shard] * len(numbers),
        "sequence": list(numbers),
        "message_id": [f"{shard}-{number}" for number in numbers],
        "tap": ["orders"] * len(numbers),
        "accepted_at": [START + timedelta(days=1) * (number / A_DAY) for number in numbers],
        "body": [b"body %d" % number for number in numbers],
    }
    types = {column.name: TYPES[column.type] for column in COLUMNS[MESSAGES]}
    return pa.table({name: pa.array(found, types[name]) for name, found in values.items()})


class ArrowEngine:
    """Arrow, in one process. ``parts``: files a day that an append writes."""

    def __init__(self, parts: int = 1) -> None:
        self.parts = parts

    def columns(self, rows: pa.Table) -> tuple[tuple[str, str], ...]:
        return tuple((field.name, NAMES[field.type]) for field in rows.schema)

    def write(self, rows: pa.Table, log: str, folder: Path) -> None:
        self._write(rows.append_column("day", rows.column(TIME[log]).cast(pa.date32())), folder, self.parts)

    def _write(self, rows: pa.Table, folder: Path, parts: int) -> None:
        folder.mkdir()
        rows = rows.sort_by([("shard", "ascending"), ("sequence", "ascending")])
        for day in pc.unique(rows.column("day")).to_pylist():
            own = rows.filter(pc.equal(rows.column("day"), pa.scalar(day))).drop_columns("day")
            (folder / f"day={day}").mkdir()
            size = -(-own.num_rows // parts)
            for part in range(parts):
                piece = own.slice(part * size, size)
                pq.write_table(piece, folder / f"day={day}" / f"part-{part:05}.parquet", write_page_checksum=True)

    def read(self, archive: Path, files: Sequence[str], columns: Sequence[tuple[str, str]]) -> pa.Table:
        schema = pa.schema([(name, TYPES[kind]) for name, kind in (*columns, ("day", "date"))])
        return pa.concat_tables([schema.empty_table(), *(self._read(archive, file, schema) for file in files)])

    def _read(self, archive: Path, file: str, schema: pa.Schema) -> pa.Table:
        with pq.ParquetFile(archive / file) as parquet:
            there = parquet.read()
        day = datetime.fromisoformat(Path(file).parent.name.removeprefix("day=")).date()
        there = there.append_column("day", pa.array([day] * there.num_rows, pa.date32()))
        return pa.table(
            {
                field.name: there.column(field.name)
                if field.name in there.column_names
                else pa.nulls(there.num_rows, field.type)
                for field in schema
            },
            schema,
        )

    def rewrite(
        self, archive: Path, files: Sequence[str], columns: Sequence[tuple[str, str]], folder: Path, parts: int
    ) -> None:
        self._write(self.read(archive, files, columns), folder, parts)

    def digest(self, rows: pa.Table, columns: Sequence[tuple[str, str]]) -> Digest:
        codes = [hash(str(row)) for row in rows.select([name for name, _ in columns]).to_pylist()]
        return Digest(len(codes), functools.reduce(int.__xor__, codes, 0), sum(codes))
