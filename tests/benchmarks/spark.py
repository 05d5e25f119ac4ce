"""``make bench-spark``: the pipeline beside what else reads and counts the same rows, in one run.

* read: the log of messages of one ledger on PostgreSQL, and one on SQLite, into Spark: over HTTP as Arrow, over HTTP as
  NDJSON, straight from the ledger, and by Spark's own JDBC source (PostgreSQL).
* archive: the job, from that log into a table.
* replay: from that archive to the embedded broker, at a rate that was set.
* rollup, range, reconcile: on events that are made (:mod:`tests.benchmarks.events_at_scale`), beside the SQL of both
  databases on the same rows.
* growth: rollup and reconcile of more and more of them. Only with ``--growth``: a hundred million take long.

The first round of everything that is repeated compiles, and is left out. ``python -m tests.benchmarks.spark read`` runs
one section.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import httpx

from gateway.config import PipelineSettings
from gateway.pipeline import session as sessions
from gateway.pipeline import source
from gateway.pipeline.archive.opening import archive_of
from gateway.pipeline.jobs import runs
from gateway.pipeline.jobs.base import Context, JobRequest, job_of, options_of
from gateway.pipeline.schema import MESSAGES
from gateway.pipeline.settings import Pipeline
from tests.benchmarks import machine, spark_jobs
from tests.ledgers import sqlite_ledger
from tests.pipeline.service import fill, serving, url_of
from tests.servers import PostgreSQL, started

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JARS: Final = Path(__file__).resolve().parents[2] / ".servers" / "jdbc"
OCTETS: Final = 200
"""Octets of a body."""
ROUNDS: Final = 4
HTTP, DIRECT, NDJSON, JDBC = "HTTP, Arrow", "ledger, ADBC", "HTTP, NDJSON", "Spark's JDBC"


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table."""

    work: str
    found: float
    unit: str
    least: float | None = None
    most: float | None = None
    """What is wanted of ``found``."""
    note: str = ""

    @property
    def verdict(self) -> str:
        """Whether that was met."""
        if self.least is None and self.most is None:
            return ""
        met = (self.least is None or self.found >= self.least) and (self.most is None or self.found <= self.most)
        wanted = f"at least {self.least:,.4g}" if self.least is not None else f"at most {self.most:,.4g}"
        return f"{'met' if met else 'MISSED'}: {wanted}"


def show(lines: Sequence[Line]) -> str:
    """The table."""
    cells = [(line.work, f"{line.found:,.4g}" if line.found < 100 else f"{line.found:,.0f}", line.unit, line.verdict,
              line.note) for line in lines]  # fmt: skip
    widths = [max(len(row[at]) for row in cells) for at in range(5)]
    return "\n".join(
        f"{work:<{widths[0]}}  {found:>{widths[1]}}  {unit:<{widths[2]}}  {verdict:<{widths[3]}}  {note}".rstrip()
        for work, found, unit, verdict, note in cells
    )


@contextmanager
def databases(folder: Path) -> Iterator[dict[str, str]]:
    """A new ledger on each: its URL by the name of the database."""
    with started(PostgreSQL()) as server:
        yield {"PostgreSQL": server.create_database(), "SQLite": sqlite_ledger(folder / "ledger.db")}


def rate(rows: int, work: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """Rows a second, the median of all rounds but the first."""
    seconds = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return rows / median(seconds[1:] or seconds)


def to_nothing(frame: DataFrame) -> Callable[[], None]:
    """Read all of it."""
    return lambda: frame.write.format("noop").mode("overwrite").save()


def jdbc(spark: SparkSession, url: str, rows: int) -> DataFrame:
    """The same columns by Spark's own source, in two parts by sequence."""
    parts = urlsplit(url.replace("postgresql+psycopg", "postgresql"))
    query = (
        "(SELECT shard, sequence, encode(message_id, 'hex') AS message_id, tap, at, broker, version, queue, exchange, "
        "routing_key, redelivered, origin_id, convert_from(properties, 'UTF8') AS properties, body, "
        "length(body) AS size, encode(sha256, 'hex') AS sha256 FROM message_log) AS log"
    )
    return (
        spark.read.format("jdbc")
        .option("url", f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}")
        .option("driver", "org.postgresql.Driver")
        .option("user", parts.username or "")
        .option("password", parts.password or "")
        .option("dbtable", query)
        .option("partitionColumn", "sequence")
        .option("lowerBound", 1)
        .option("upperBound", rows)
        .option("numPartitions", 2)
        .option("fetchsize", 10_000)
        .load()
    )


def read(spark: SparkSession, folder: Path, rows: int) -> list[Line]:
    """Rows a second into Spark, by each way; and into the archive."""
    lines = []
    with databases(folder) as found:
        for name, ledger in found.items():
            home = folder / name
            home.mkdir()
            asyncio.run(fill(ledger, messages=rows, octets=OCTETS))
            with serving(ledger, home) as process:
                settings = PipelineSettings(rows_max=max(50_000, rows // 2))
                over_http = Pipeline(settings, url=url_of(process), storage=str(home / "storage"))
                direct = Pipeline(
                    PipelineSettings(rows_max=settings.rows_max, direct=True), url=url_of(process), ledger_dsn=ledger
                )
                ways = {
                    HTTP: (source.read(spark, over_http, MESSAGES), rows, 200_000),
                    DIRECT: (source.read(spark, direct, MESSAGES), rows, 300_000),
                    NDJSON: (
                        source.read(spark, over_http, MESSAGES, end={"0": rows // 10}, format="ndjson"),
                        rows // 10,
                        None,
                    ),
                }
                if name == "PostgreSQL":
                    ways[JDBC] = jdbc(spark, ledger, rows), rows, None
                speeds = {}
                for way, (frame, count, least) in ways.items():
                    speeds[way] = rate(count, to_nothing(frame))
                    lines.append(Line(f"read, {name}: {way}", speeds[way], "rows/s", least))
                lines.append(Line(f"read, {name}: Arrow beside NDJSON", speeds[HTTP] / speeds[NDJSON], "×", 8))
                begun = time.perf_counter()
                ended(spark, over_http, "archive")
                taken = time.perf_counter() - begun
                there = archive_of(spark, over_http, MESSAGES).read().count()
                assert there == rows, f"{there} of {rows} rows are in the archive"
                lines.append(Line(f"archive, {name}", rows / taken, "rows/s", 80_000))
    return lines


def ended(spark: SparkSession, pipeline: Pipeline, job: str, **options: Any) -> runs.Ended:
    """Run a job to its end."""
    found = job_of(job)
    with closing(
        Context(pipeline, JobRequest(f"bench-{time.time_ns()}", options_of(found, options), job), spark=spark)
    ) as each:
        return runs.run(found, each)


def replay(spark: SparkSession, folder: Path, rows: int, wanted: float) -> list[Line]:
    """From an archive to the embedded broker: as fast as it goes, and at a rate that is set."""
    ledger = sqlite_ledger(folder / "replayed.db")
    home = folder / "replay"
    home.mkdir()
    lines = []
    with serving(ledger, home, messages=rows, outbound={}) as process:
        pipeline = Pipeline(PipelineSettings(), url=url_of(process), storage=str(home / "storage"))
        ended(spark, pipeline, "archive")
        with httpx.Client(base_url=pipeline.url, timeout=60) as client:
            client.put("/v1/brokers/local-0-9-1/queues/copies", json={}).raise_for_status()
        to = {"to": "amq.default@local-0-9-1", "routing_key": "copies"}
        free = ended(spark, pipeline, "replay", where="true", **to)
        lines.append(Line("replay, no rate set", free.outcome.detail["measured_rate"], "messages/s"))
        paced = ended(spark, pipeline, "replay", where=f"sequence <= {min(rows, int(wanted * 20))}", rate=wanted, **to)
        reached = paced.outcome.detail["measured_rate"]
        lines.append(Line(f"replay at {wanted:g}/s: off by", abs(reached / wanted - 1) * 100, "%", most=5))
    return lines


def events(spark: SparkSession, folder: Path, count: int, sql: int) -> list[Line]:
    """Rollup, percentiles of a range and reconcile, beside SQL."""
    made = spark_jobs.make(spark, str(folder / "events"), count)
    rollup = spark_jobs.rollup_figures(spark, made)
    lines = [
        Line("rollup", rollup["events_a_second"], "events/s", 2e6, note=f"{rollup['seconds']} s, {_memory(rollup)}")
    ]
    with started(PostgreSQL()) as server:
        url = server.create_database().replace("+psycopg", "")
        beside = spark_jobs.sql_figures(made, str(folder), url, min(sql, count))
    for name, least in (("postgresql", 4), ("sqlite", 10)):
        speed = beside[name]["events_a_second"]
        lines.append(Line(f"rollup beside {name}", rollup["events_a_second"] / speed, "×", least, note=f"{speed:,}/s"))
    wide = spark_jobs.range_figures(spark, made)
    lines += [
        Line("percentiles of all hours, first time", wide["first_seconds"], "s", most=1),
        Line("percentiles beside reading again", wide["times_faster"], "×", 10),
        Line("percentiles: largest error", wide["largest_error"] * 100, "%", most=1),
    ]
    checked = spark_jobs.reconcile_figures(spark, made)
    lines.append(
        Line(
            "reconcile",
            checked["events_a_second"],
            "events/s",
            1.5e6,
            note=f"{checked['seconds']} s, {_memory(checked)}",
        )
    )
    return lines


def cores(folder: Path, count: int) -> list[Line]:
    """The same rollup with one core and with two."""
    speeds = []
    for number in (1, 2):
        spark = spark_jobs.start(f"local[{number}]", "3g", str(folder))
        try:
            made = spark_jobs.make(spark, str(folder / "events-cores"), count)
            speeds.append(spark_jobs.rollup_figures(spark, made)["events_a_second"])
        finally:
            sessions.close_session(spark)
    return [Line("rollup, two cores beside one", speeds[1] / speeds[0], "×", 1.4)]


def growth(spark: SparkSession, folder: Path, millions: Sequence[int]) -> list[Line]:
    """More and more events: seconds for each million."""
    lines = []
    found = spark_jobs.growth_figures(spark, str(folder), [each * 1_000_000 for each in millions])
    for name in ("rollup", "reconcile"):
        first = found[0][name]["seconds"] / found[0]["events"]
        for each in found:
            figures = each[name]
            note = f"{figures['seconds']} s, {_memory(figures)}"
            slower = figures["seconds"] / each["events"] / first
            most = None if each is found[0] else 1.0
            lines.append(
                Line(f"{name} of {each['events'] // 10**6} M: time of one event", slower, "×", most=most, note=note)
            )
    return lines


def _memory(figures: spark_jobs.Figures) -> str:
    return f"{figures['peak_memory'] / 2**30:.1f} GiB at most"


def main() -> None:
    """The command."""
    sections = ("read", "replay", "events", "cores", "growth")
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.spark", description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[*sections, []], metavar="SECTION", help=", ".join(sections))
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the log that is read (1000000)")
    parser.add_argument("--events", type=int, default=20_000_000, help="that are rolled up and reconciled (20000000)")
    parser.add_argument("--sql", type=int, default=spark_jobs.SQL_EVENTS, help="that the databases roll up")
    parser.add_argument("--replayed", type=int, default=20_000, help="messages that are replayed (20000)")
    parser.add_argument("--rate", type=float, default=500.0, help="rate that is set for the second replay, a second")
    parser.add_argument("--growth", default="", metavar="MILLIONS", help="for example 10,30,100")
    parser.add_argument("--memory", default="3g", help="heap of Java (3g)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the lines to FILE")
    asked = parser.parse_args()
    chosen = asked.sections or [each for each in sections if each != "growth" or asked.growth]
    print(
        f"{machine.processor()}, {os.cpu_count()} cores, load {machine.load()}, local[2], heap {asked.memory}",
        flush=True,
    )
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="gateway-bench-spark-") as name:
        folder = Path(name)
        works: dict[str, Callable[[SparkSession], list[Line]]] = {
            "read": lambda spark: read(spark, folder, asked.rows),
            "replay": lambda spark: replay(spark, folder, asked.replayed, asked.rate),
            "events": lambda spark: events(spark, folder, asked.events, asked.sql),
            "growth": lambda spark: growth(spark, folder, [int(each) for each in asked.growth.split(",")]),
        }
        for section in chosen:
            if section == "cores":
                found = cores(folder, asked.events // 2)
            else:
                pipeline = Pipeline(PipelineSettings(memory=asked.memory, scratch=name))
                jars = ",".join(map(str, JARS.glob("*.jar")))
                extra = {"spark.sql.shuffle.partitions": "8", **({"spark.jars": jars} if jars else {})}
                spark = sessions.spark_session(pipeline, "local[2]", "bench", extra=extra)
                try:
                    found = works[section](spark)
                finally:
                    sessions.close_session(spark)
            lines += found
            print(show(found), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps([{**vars_of(line), "verdict": line.verdict} for line in lines], indent=1))


def vars_of(line: Line) -> dict[str, Any]:
    """The fields of a line."""
    return {name: getattr(line, name) for name in Line.__dataclass_fields__}


if __name__ == "__main__":
    main()
