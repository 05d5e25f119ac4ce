"""The jobs that keep archives, against a gateway: what the log has, the archive has, once and in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions

from gateway.config import PipelineSettings
from gateway.errors import CursorOwned, NoSuchResource
from gateway.pipeline.archive.opening import archive_of
from gateway.pipeline.archive.table import ArchiveTable
from gateway.pipeline.jobs import archive as archiving
from gateway.pipeline.jobs import upkeep
from gateway.pipeline.jobs.base import Context, JobRequest, Outcome, job_of, options_of
from gateway.pipeline.schema import EVENTS, MESSAGES
from gateway.pipeline.service import Service
from gateway.pipeline.settings import Pipeline
from gateway.pipeline.source.offsets import Head
from tests.ledgers import sqlite_ledger
from tests.pipeline.service import serving, url_of

MESSAGES_THERE = 2_500
EVENTS_THERE = 300


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a gateway is that has rows in both logs, and a tap."""
    folder = tmp_path_factory.mktemp("gateway")
    ledger = sqlite_ledger(folder / "ledger.db")
    taps = {"arrivals": {"broker": "local-0-9-1", "exchange": "amq.topic", "binding_key": "#"}}
    with serving(ledger, folder, messages=MESSAGES_THERE, events=EVENTS_THERE, taps=taps) as process:
        pipeline = Pipeline(PipelineSettings(url=url_of(process)), url=url_of(process))
        # The log lets go of what everybody has read: each test begins with an archive that has read nothing.
        ask(pipeline, "POST", "/v1/log/cursors/keeps:claim", log=MESSAGES, owner="test", start="earliest")
        yield url_of(process)


Run = Callable[..., Outcome]


@pytest.fixture
def pipeline(gateway: str, tmp_path: Path) -> Iterator[Pipeline]:
    """With an archive of its own. What the archive's cursors keep afterwards nobody else has to wait for."""
    found = Pipeline(PipelineSettings(url=gateway), url=gateway, storage=str(tmp_path))
    yield found
    for name in cursors(found):
        if name.startswith("archive-"):
            forget_cursor(found, name)


@pytest.fixture
def run(spark: SparkSession, pipeline: Pipeline) -> Run:
    """Run a job with these options."""

    def run_job(name: str, *, dry_run: bool = False, **options: Any) -> Outcome:
        job = job_of(name)
        context = Context(pipeline, JobRequest("test", options_of(job, options), name, dry_run), spark=spark)
        try:
            return job.run(context)
        finally:
            context.close()

    return run_job


def ask(pipeline: Pipeline, method: str, path: str, **body: Any) -> Any:
    with Service(pipeline) as service:
        return service.ask(method, path, body=body or None)


def forget_cursor(pipeline: Pipeline, name: str) -> None:
    found = ask(pipeline, "GET", f"/v1/log/cursors/{name}")
    ask(pipeline, "POST", f"/v1/log/cursors/{name}:release", owner=found["owner"], epoch=found["epoch"])
    ask(pipeline, "DELETE", f"/v1/log/cursors/{name}")


def arrive(pipeline: Pipeline, count: int) -> None:
    """So many messages come to the tap, and are in the log."""
    head = ask(pipeline, "GET", "/v1/log/head?log=messages")["position"]
    messages = [{"routing_key": "news", "payload": f"message {number}"} for number in range(count)]
    ask(pipeline, "POST", "/v1/brokers/local-0-9-1/exchanges/amq.topic:publish", messages=messages)
    until = time.monotonic() + 60
    while sum(ask(pipeline, "GET", "/v1/log/head?log=messages")["position"].values()) < sum(head.values()) + count:
        assert time.monotonic() < until
        time.sleep(0.05)


def table_of(spark: SparkSession, pipeline: Pipeline, log: str = MESSAGES) -> ArchiveTable:
    return archive_of(spark, pipeline, log)


def cursors(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in ask(pipeline, "GET", "/v1/log/cursors")["cursors"]}


def rows_of(rows: DataFrame) -> list[tuple[int, int]]:
    return [
        (row.shard, row.sequence) for row in rows.select("shard", "sequence").orderBy("shard", "sequence").collect()
    ]


def test_a_log_is_archived_once_and_its_cursor_follows(
    spark: SparkSession, pipeline: Pipeline, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = run("archive", dry_run=True)
    assert told.rows == MESSAGES_THERE
    with pytest.raises(NoSuchResource, match="there is no archive"):
        table_of(spark, pipeline)
    monkeypatch.setattr(archiving, "FIRST_ROWS", 400)
    done = run("archive")
    table = table_of(spark, pipeline)
    assert (done.rows, done.detail["gaps"], done.detail["gone"]) == (MESSAGES_THERE, 0, [])
    assert done.detail["commits"] > 1, "the first commit is small, to learn how large rows are"
    assert sum(done.detail["position"].values()) == MESSAGES_THERE
    assert rows_of(table.read()) == sorted(
        (int(shard), number) for shard, last in table.position().items() for number in range(1, last + 1)
    )
    assert table.read().where(functions.sha2("body", 256) != functions.col("sha256")).count() == 0
    assert table.read().where(functions.length("body") != functions.col("size")).count() == 0
    cursor = cursors(pipeline)[f"archive-messages-{table.id[:8]}"]
    assert (cursor["position"], cursor["backlog"], cursor["owner"]) == (table.position(), 0, "")
    assert run("archive").rows == 0, "nothing is new"
    assert run("archive", log=EVENTS).rows == EVENTS_THERE
    events = table_of(spark, pipeline, EVENTS)
    assert [number for _, number in rows_of(events.read())] == list(range(1, EVENTS_THERE + 1))
    assert sum(day.rows for day in events.days()) == EVENTS_THERE


def test_rows_that_come_later_are_appended_and_a_lost_cursor_repeats_nothing(
    spark: SparkSession, pipeline: Pipeline, run: Run
) -> None:
    run("archive")
    table = table_of(spark, pipeline)
    begun = sum(day.rows for day in table.days())
    arrive(pipeline, 100)
    ask(pipeline, "DELETE", f"/v1/log/cursors/archive-messages-{table.id[:8]}")
    assert run("archive").rows == 100
    found = rows_of(table.read())
    assert (len(found), len(set(found))) == (begun + 100, begun + 100)
    arrived = table.read().where("tap = 'arrivals'")
    assert sorted(bytes(row.body) for row in arrived.select("body").collect())[:2] == [b"message 0", b"message 1"]


def test_another_machine_that_archives_is_named(
    spark: SparkSession, pipeline: Pipeline, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = archive_of(spark, pipeline, MESSAGES, create=True)
    name = f"/v1/log/cursors/archive-messages-{table.id[:8]}"
    ask(pipeline, "POST", f"{name}:claim", log=MESSAGES, owner="ann@elsewhere", start="earliest")
    with pytest.raises(CursorOwned, match="ann@elsewhere"):
        run("archive")
    assert table.position() == {}
    assert run("archive", take_over=True).rows >= MESSAGES_THERE


def test_a_cursor_ahead_of_an_archive_that_has_nothing_skips_nothing(
    spark: SparkSession, pipeline: Pipeline, run: Run
) -> None:
    """As where an archive was put back from a backup that is older than a shard."""
    table = archive_of(spark, pipeline, MESSAGES, create=True)
    name = f"/v1/log/cursors/archive-messages-{table.id[:8]}"
    end = ask(pipeline, "GET", "/v1/log/head?log=messages")["position"]
    claimed = ask(pipeline, "POST", f"{name}:claim", log=MESSAGES, owner="ann", start=end)
    ask(pipeline, "POST", f"{name}:release", owner="ann", epoch=claimed["epoch"])
    done = run("archive")
    assert (done.rows, done.detail["before"]) == (sum(end.values()), 0)


def test_what_the_log_let_go_of_before_an_archive_began_is_counted(
    pipeline: Pipeline, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def later(context: Context, log: str) -> Head:
        head: Head = head_of(context, log)
        return head._replace(shards=tuple(each._replace(floor=each.floor + 100) for each in head.shards))

    head_of, claim = archiving.head_of_log, archiving._Cursor.claim

    def claimed(self: archiving._Cursor, held: Mapping[str, int]) -> dict[str, int]:
        claim(self, dict(held))
        return dict.fromkeys(ends, 100)

    ends = ask(pipeline, "GET", "/v1/log/head?log=messages")["position"]
    monkeypatch.setattr(archiving, "head_of_log", later)
    monkeypatch.setattr(archiving._Cursor, "claim", claimed)
    done = run("archive")
    gone = 100 * len(ends)
    assert (done.rows, done.detail["before"], done.detail["gone"]) == (sum(ends.values()) - gone, gone, [])


def test_closed_days_are_compacted_and_old_ones_go(
    spark: SparkSession, pipeline: Pipeline, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoSuchResource, match="there is no archive of events or messages"):
        run("compact")
    monkeypatch.setattr(archiving, "FIRST_ROWS", 700)
    run("archive", rows=1_000)
    table = table_of(spark, pipeline)
    before = table.files()
    assert len(before) > 1
    assert run("compact", keep_hours=0).detail["files_before"] == 0, "today is not over"
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    monkeypatch.setattr(upkeep, "today", lambda: tomorrow)
    monkeypatch.setattr("gateway.pipeline.jobs.compact.today", lambda: tomorrow)
    assert run("compact", dry_run=True).detail["files_before"] == len(before)
    assert table.files() == before
    done = run("compact", keep_hours=0)
    assert (done.detail["files_before"], done.detail["files_after"], done.detail["deleted"]) == (
        len(before), len(table.days()), len(before),
    )  # fmt: skip
    rows = sum(day.rows for day in table.days())

    behind = {shard: last - 1_000 for shard, last in table.position().items()}
    ask(pipeline, "POST", "/v1/log/cursors/slow:claim", log=MESSAGES, owner="ann", start=behind)
    forget_cursor(pipeline, "keeps")
    kept = run("retention", days=1)
    assert (kept.rows, kept.detail["kept"][MESSAGES]["cursor"]) == (0, "slow")
    forget_cursor(pipeline, "slow")
    assert run("retention", days=1, dry_run=True).rows == rows
    assert sum(day.rows for day in table.days()) == rows
    assert run("retention", days=1, keep_hours=0).rows == rows
    assert table.files() == []
    assert run("archive").rows == 0, "what went stays archived"
