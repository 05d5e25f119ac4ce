"""The ledger: what 1, 10 and 100 writers get committed, on SQLite and on PostgreSQL, both waiting for the disk.

A commit here is what one caller waits for: a message and its outcome, durable. Callers that wait at the same time
share a transaction. "Busy" is the same with a thread beside it that holds the interpreter's lock whenever it can.
"""

from __future__ import annotations

from functools import partial
from tempfile import TemporaryDirectory

from tests.benchmarks import programs
from tests.benchmarks.bench import Bench
from tests.benchmarks.rows import OURS, Row, Sample, alternate

WRITERS = (1, 10, 100)
QUICK_WRITERS = (10,)
BUSY = f"{OURS}, busy"


def run(bench: Bench) -> list[Row]:
    """Both databases."""
    rows: list[Row] = []
    for database in (sqlite, postgresql):
        for writers in QUICK_WRITERS if bench.quick else WRITERS:
            clients = [(name, partial(database, bench, writers, name == BUSY)) for name in (OURS, BUSY)]
            rows += alternate("ledger", clients, bench.rounds)
    return rows


def name(writers: int, database: str) -> str:
    """Of the work."""
    return f"ledger commits on {database}, {writers} writer{'s' if writers > 1 else ''}"


def sqlite(bench: Bench, writers: int, busy: bool) -> dict[str, Sample]:
    """A file of its own."""
    with TemporaryDirectory(dir=bench.folder) as folder:
        return {name(writers, "SQLite"): measure(bench, f"sqlite:///{folder}/ledger.db", writers, busy)}


def postgresql(bench: Bench, writers: int, busy: bool) -> dict[str, Sample]:
    """A database of its own."""
    url = bench.postgresql.create_database()
    try:
        return {name(writers, "PostgreSQL"): measure(bench, url, writers, busy)}
    finally:
        bench.postgresql.drop_database(url)


def measure(bench: Bench, url: str, writers: int, busy: bool) -> Sample:
    """One round."""
    job = {"url": url, "writers": writers, "busy": busy, "seconds": bench.seconds * 0.75}
    return Sample(**programs.run("ledger", job))
