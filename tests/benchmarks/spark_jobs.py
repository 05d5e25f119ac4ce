"""Rollup and reconcile at scale: functions that take sizes and return figures, and a command that prints them.

``python -m tests.benchmarks.spark_jobs --events 20000000`` makes the events in a folder of its own, measures, and
removes them; ``--growth 10,20,100`` measures so many million events each, for how it grows. ``--folder`` keeps the
events, and takes those that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from gateway.config import PipelineSettings
from gateway.pipeline import session as sessions
from gateway.pipeline.archive.opening import archive_of
from gateway.pipeline.archive.table import ArchiveTable, Token
from gateway.pipeline.jobs.base import Context, JobRequest, options_of
from gateway.pipeline.jobs.estate import Estate
from gateway.pipeline.jobs.reconcile import reconcile
from gateway.pipeline.jobs.rollup import percentiles, rollup
from gateway.pipeline.jobs.routes import ROUTE
from gateway.pipeline.jobs.validate import Validate
from gateway.pipeline.schema import EVENTS
from gateway.pipeline.settings import Pipeline
from tests.benchmarks import events_at_scale as scale
from tests.benchmarks import ledger_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ESTATE: Final = Estate(queues=scale.QUEUE_OF, held=dict.fromkeys(scale.QUEUE_OF.values(), 0))
SQL_EVENTS: Final = 2_000_000
"""So many events go into the databases: at 20 million SQLite's query alone takes minutes."""
Figures = Mapping[str, Any]


def start(master: str = "local[2]", memory: str = "3g", scratch: str = "") -> SparkSession:
    """Spark as the jobs start it."""
    pipeline = Pipeline(PipelineSettings(memory=memory, scratch=scratch))
    return sessions.spark_session(pipeline, master, "bench", extra={"spark.sql.shuffle.partitions": "8"})


def make(spark: SparkSession, folder: str, count: int, *, every: int = 0) -> str:
    """So many events as Parquet, unless they are there."""
    if not (Path(folder) / "_SUCCESS").exists():
        scale.events(spark, count, every=every).write.mode("overwrite").parquet(folder)
    return folder


def measure(spark: SparkSession, work: Callable[[], Any], events: int, rounds: int = 3) -> tuple[Figures, Any]:
    """Do something some times; the median, and what it returned last. The first time compiles, and is left out where
    there are others."""
    walls, cpus = [], []
    for _ in range(rounds):
        begun, cpu = time.perf_counter(), _cpu()
        found = work()
        walls.append(time.perf_counter() - begun)
        cpus.append(_cpu() - cpu)
    warm = slice(1, None) if rounds > 1 else slice(None)
    seconds = median(walls[warm])
    return {
        "events": events,
        "seconds": round(seconds, 2),
        "first_seconds": round(walls[0], 2),
        "events_a_second": round(events / seconds),
        "cpu_seconds": round(median(cpus[warm]), 2),
        "peak_memory": _peak(),
    }, found


def rollup_figures(spark: SparkSession, events: str, rounds: int = 3) -> Figures:
    """The hourly rollup with its sketches, of all events in a folder."""
    frame = spark.read.parquet(events)
    figures, rows = measure(spark, lambda: rollup(frame).localCheckpoint(), frame.count(), rounds)
    return {**figures, "rows": rows.count()}


def reconcile_figures(spark: SparkSession, events: str, rounds: int = 3) -> Figures:
    """Reconciling all events in a folder."""
    frame = spark.read.parquet(events)
    figures, found = measure(spark, lambda: reconcile(frame, ESTATE, now=scale.START + 10.0**9), frame.count(), rounds)
    return {**figures, "breaks": sum(found.counts.values())}


def validate_figures(spark: SparkSession, folder: str, count: int, rounds: int = 3) -> Figures:
    """Validating an archive of so many events, the table of what was found included."""
    pipeline = Pipeline(storage=folder)
    table = archive_of(spark, pipeline, EVENTS, create=True)
    made = scale.events(spark, count)
    for shard in range(scale.SHARDS):
        rows = made.where(f"shard = {shard}")
        table.append(rows, Token.of(str(shard), rows.agg({"sequence": "max"}).collect()[0][0]))
    job = Validate()

    def work() -> Any:
        request = JobRequest("bench", options_of(job, {"source": "archive"}), job.name)
        return job.run(Context(pipeline, request, spark=spark)).detail

    begun = time.perf_counter()
    figures, found = measure(spark, work, table_rows(table), rounds)
    found.pop("first")
    return {**figures, **found, "files": len(table.files()), "all_seconds": round(time.perf_counter() - begun, 1)}


def table_rows(table: ArchiveTable) -> int:
    """How many rows an archive has."""
    return sum(day.rows for day in table.days())


def range_figures(spark: SparkSession, events: str) -> Figures:
    """Percentiles of all hours from their sketches, beside reading all events again; and how far they are off."""
    frame = spark.read.parquet(events)
    rows = rollup(frame).localCheckpoint()
    count = frame.count()
    merging, merged = measure(spark, lambda: percentiles(rows).collect(), count)
    named = "kind = 'forwarded'"
    took = "(unix_micros(at) - unix_micros(accepted_at)) / 1000D"
    exact = frame.where(named).groupBy(_expr(f"{ROUTE} AS route")).agg(
        _expr(f"percentile({took}, array(0.5D, 0.95D, 0.99D)) AS p")
    )  # fmt: skip
    true = {row.route: row.p for row in exact.collect()}
    again, _ = measure(spark, lambda: percentiles(rollup(frame)).collect(), count, rounds=2)
    error = [
        max(abs(mine / value - 1) for value, mine in zip(true[row.route], (row.p50, row.p95, row.p99), strict=True))
        for row in merged
        if row.kind == "forwarded"
    ]
    return {
        "seconds": merging["seconds"],
        "first_seconds": merging["first_seconds"],
        "again_seconds": again["seconds"],
        "times_faster": round(again["seconds"] / merging["seconds"], 1),
        "largest_error": round(max(error), 4),
    }


def sql_figures(events: str, folder: str, postgresql: str = "", count: int = SQL_EVENTS) -> dict[str, Figures]:
    """The same rollup by the ledgers' own SQL, of the first so many events. ``postgresql``: a URL; empty: without."""
    found: dict[str, Figures] = {"sqlite": ledger_sql.sqlite(Path(folder), events, count)}
    if postgresql:
        found["postgresql"] = ledger_sql.postgresql(postgresql, events, count)
    return found


def growth_figures(spark: SparkSession, folder: str, counts: Sequence[int]) -> list[Figures]:
    """Rollup and reconcile of more and more events."""
    found = []
    for count in counts:
        made = make(spark, f"{folder}/events-{count}", count)
        found.append({
            "events": count,
            "rollup": rollup_figures(spark, made, rounds=2),
            "reconcile": reconcile_figures(spark, made, rounds=2),
        })  # fmt: skip
    return found


def _expr(text: str) -> Any:
    from pyspark.sql import functions as F  # noqa: N812  # as everyone has it

    return F.expr(text)


def _jvm() -> int:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    pid: int = gateway.proc.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for each in (pid, *map(int, children)):  # Java itself, or a shell that waits for it; Java starts Python's workers
        if Path(f"/proc/{each}/comm").read_text().strip() == "java":
            return each
    raise ChildProcessError(f"no Java among {pid} and what it started")


def _cpu() -> float:
    """CPU of Java, in seconds."""
    fields = Path(f"/proc/{_jvm()}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak() -> int:
    """The most memory that Java has had, in octets."""
    for line in Path(f"/proc/{_jvm()}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.spark_jobs", description=__doc__)
    parser.add_argument("--events", type=int, default=20_000_000, help="how many (20000000)")
    parser.add_argument("--growth", default="", metavar="MILLIONS", help="for example 10,20,100")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--memory", default="3g")
    parser.add_argument("--postgresql", default="", metavar="URL")
    parser.add_argument("--folder", default="", help="where events are kept; empty: nowhere")
    parser.add_argument("--only", default="", help="rollup, reconcile, validate, range or sql")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gateway-bench-") as own:
        folder = asked.folder or own
        spark = start(asked.master, asked.memory, own)
        try:
            if asked.growth:
                for figures in growth_figures(
                    spark, folder, [int(each) * 1_000_000 for each in asked.growth.split(",")]
                ):
                    print(json.dumps(figures), flush=True)
                return
            made = "" if asked.only == "validate" else make(spark, f"{folder}/events-{asked.events}", asked.events)
            works: dict[str, Callable[[], Any]] = {
                "rollup": lambda: rollup_figures(spark, made),
                "reconcile": lambda: reconcile_figures(spark, made),
                "validate": lambda: validate_figures(spark, own, asked.events),
                "range": lambda: range_figures(spark, made),
                "sql": lambda: sql_figures(made, own, asked.postgresql, min(SQL_EVENTS, asked.events)),
            }
            for name, work in works.items():
                if asked.only in ("", name):
                    print(json.dumps({name: work()}), flush=True)
        finally:
            sessions.close_session(spark)


if __name__ == "__main__":
    main()
