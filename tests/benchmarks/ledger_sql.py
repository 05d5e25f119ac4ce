"""The rollup of a ledger's own database, for comparison: the same rows, the same groups, exact percentiles.

PostgreSQL has ``percentile_cont``; SQLite has none, so its percentiles are picked from rows that a window numbers.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset as ds
import pyarrow.types as types

from gateway.pipeline.jobs.lives import FINAL

COLUMNS: Final = ("kind", "at", "version", "detail", "accepted_at", "source_broker", "exchange", "routing_key", "size")
BATCH: Final = 50_000
FINAL_KINDS: Final = ", ".join(f"'{kind}'" for kind in FINAL)
_NAMED: Final = {
    "sqlite": "json_extract(nullif(detail, ''), '$.{0}')",
    "postgresql": "(nullif(detail, '')::json ->> '{0}')",
}
_EVENTS: Final = """
    SELECT at / 3600000000 AS hour, version, kind, size,
        coalesce('bridge:' || {bridge}, 'subscription:' || {subscription},
                 source_broker || '/' || CASE WHEN exchange = '' THEN '/' || routing_key ELSE exchange END) AS route,
        CASE WHEN kind IN ({final}) THEN (at - accepted_at) / 1000.0 END AS latency
    FROM bench_events
"""


def _events(dialect: str) -> str:
    named = _NAMED[dialect]
    return _EVENTS.format(bridge=named.format("bridge"), subscription=named.format("subscription"), final=FINAL_KINDS)


POSTGRESQL: Final = f"""
SELECT hour, route, version, kind, count(*), sum(size),
    percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY latency)
FROM ({_events("postgresql")}) AS events
GROUP BY hour, route, version, kind
"""
SQLITE: Final = f"""
SELECT hour, route, version, kind, count(*), sum(size),
    max(CASE WHEN place = (timed + 1) / 2 THEN latency END),
    max(CASE WHEN place = (timed * 95 + 99) / 100 THEN latency END),
    max(CASE WHEN place = (timed * 99 + 99) / 100 THEN latency END)
FROM (
    SELECT *, row_number() OVER (PARTITION BY hour, route, version, kind ORDER BY latency) AS place,
        count(latency) OVER (PARTITION BY hour, route, version, kind) AS timed
    FROM ({_events("sqlite")})
)
GROUP BY hour, route, version, kind
"""


def rows(events: str, count: int) -> Iterator[list[tuple[Any, ...]]]:
    """The first so many events of a Parquet folder, in batches; times in microseconds."""
    left = count
    for batch in ds.dataset(events, format="parquet").to_batches(columns=list(COLUMNS), batch_size=BATCH):
        batch = batch.slice(0, left)
        columns = [
            column.cast("timestamp[us]").cast("int64") if types.is_timestamp(column.type) else column
            for column in batch.columns
        ]
        yield list(zip(*(column.to_pylist() for column in columns), strict=True))
        left -= batch.num_rows
        if not left:
            return


def sqlite(folder: Path, events: str, count: int) -> Mapping[str, float]:
    """On SQLite, in a file of this folder."""
    path = folder / "bench.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute(f"CREATE TABLE bench_events ({_table('INTEGER')})")
        marks = ", ".join("?" * len(COLUMNS))
        connection.execute("BEGIN")
        for some in rows(events, count):
            connection.executemany(f"INSERT INTO bench_events VALUES ({marks})", some)
        connection.execute("COMMIT")
        found = _timed(lambda: connection.execute(SQLITE).fetchall(), count)
    path.unlink()
    return found


def postgresql(url: str, events: str, count: int) -> Mapping[str, float]:
    """On PostgreSQL, in an unlogged table, with as many workers as it gives a query: a temporary one gets none."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE UNLOGGED TABLE bench_events ({_table('BIGINT')})")
        with connection.cursor().copy("COPY bench_events FROM STDIN") as copy:
            for some in rows(events, count):
                for row in some:
                    copy.write_row(row)
        connection.execute("ANALYZE bench_events")
        found = _timed(lambda: connection.execute(POSTGRESQL).fetchall(), count)
        connection.execute("DROP TABLE bench_events")
        return found


def _table(integer: str) -> str:
    return ", ".join(f"{name} {integer if name in ('at', 'accepted_at', 'size') else 'TEXT'}" for name in COLUMNS)


def _timed(query: Callable[[], list[Any]], count: int) -> Mapping[str, float]:
    begun = time.perf_counter()
    groups = len(query())
    seconds = time.perf_counter() - begun
    return {"events": count, "groups": groups, "seconds": seconds, "events_a_second": count / seconds}
