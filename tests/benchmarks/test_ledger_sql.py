"""The rollup in SQL, which Spark's is compared with: both databases find the same groups."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.benchmarks import ledger_sql
from tests.servers import PostgreSQL

HOUR = 3_600_000_000
EVENTS = [
    {
        "kind": kind,
        "at": number * HOUR // 2 + offset,
        "version": "0-9-1",
        "detail": detail,
        "accepted_at": number * HOUR // 2,
        "source_broker": "east",
        "exchange": exchange,
        "routing_key": "orders",
        "size": 10,
    }
    for number in range(4)
    for offset, kind in ((0, "accepted"), (1_000, "confirmed"))
    for detail, exchange in (("", "orders"), ("", ""), ('{"bridge": "west"}', ""), ('{"subscription": "push"}', ""))
]
GROUPS = 2 * 4 * 2
"""Hours, routes and kinds."""


@pytest.mark.broker
def test_both_databases_find_the_same_groups(tmp_path: Path, postgresql: PostgreSQL) -> None:
    events = tmp_path / "events"
    events.mkdir()
    pq.write_table(pa.Table.from_pylist(EVENTS), events / "part.parquet")
    found = {
        "sqlite": ledger_sql.sqlite(tmp_path, str(events), len(EVENTS)),
        "postgresql": ledger_sql.postgresql(
            postgresql.create_database().replace("+psycopg", ""), str(events), len(EVENTS)
        ),
    }
    assert {name: (each["events"], each["groups"]) for name, each in found.items()} == {
        "sqlite": (len(EVENTS), GROUPS),
        "postgresql": (len(EVENTS), GROUPS),
    }
