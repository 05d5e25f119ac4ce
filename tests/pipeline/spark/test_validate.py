"""Events that may not follow each other are named, in the log of a gateway, in an archive and in Parquet files."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql import DataFrame, SparkSession

from gateway.config import PipelineSettings
from gateway.errors import ArchiveDamaged, ArchiveTooNew, GatewayError, NoSuchResource, SourceGone
from gateway.ledger.writing.transitions import TraceEvent
from gateway.pipeline.archive.opening import archive_of
from gateway.pipeline.archive.table import Token
from gateway.pipeline.faults import fault_of
from gateway.pipeline.jobs.base import Context, JobRequest, Outcome, options_of
from gateway.pipeline.jobs.validate import COLUMNS, Validate, validate
from gateway.pipeline.schema import EVENTS, ddl
from gateway.pipeline.settings import Pipeline
from tests.benchmarks import events_at_scale as scale
from tests.ledger.test_transitions import IMPOSSIBLE, POSSIBLE
from tests.pipeline.house import MID, house
from tests.pipeline.service import serving, url_of

START = datetime(2026, 11, 1, tzinfo=UTC)
ONE_OUTCOME = "A publish has one outcome. After an unknown one it is sent again first."
Rows = list[dict[str, Any]]


def told(message: str, *events: Any, shard: int = 0, first: int = 1, came: datetime | None = START) -> Rows:
    """Events of a message, a second apart."""
    rows: Rows = []
    for number, each in enumerate(events):
        kind, detail = (each, {}) if isinstance(each, str) else each
        text = json.dumps(detail, separators=(",", ":"))
        at = START + timedelta(seconds=first + number)
        rows.append({"shard": shard, "sequence": first + number, "message_id": message, "kind": kind, "at": at,
                     "detail": text, "accepted_at": came})  # fmt: skip
    return rows


def frame(spark: SparkSession, rows: Rows) -> DataFrame:
    return spark.createDataFrame(rows, ddl(EVENTS, COLUMNS))


def named(spark: SparkSession, rows: Rows) -> list[tuple[str, str | None, str]]:
    """Message, the event before, and the event."""
    found = validate(frame(spark, rows)).found.orderBy("at").collect()
    return [(row.message_id, row.before, row.kind) for row in found]


def run(spark: SparkSession, folder: Path, id: str, *, url: str = "", **options: Any) -> tuple[Outcome, Pipeline]:
    job = Validate()
    pipeline = Pipeline(PipelineSettings(), url=url or "http://127.0.0.1:1", storage=str(folder / "storage"))
    context = Context(pipeline, JobRequest(id, options_of(job, options), job.name), spark=spark)
    try:
        return job.run(context), pipeline
    finally:
        context.close()


def test_all_that_the_table_knows_is_judged_as_by_the_table(spark: SparkSession) -> None:
    rows: Rows = []
    for case, events in [*POSSIBLE.items(), *((case, events) for case, (events, _) in IMPOSSIBLE.items())]:
        rows += told(case, *events, first=len(rows) + 1)
    expected = [
        (case, before or None, event) for case, (_, names) in IMPOSSIBLE.items() for before, event in names
    ]  # fmt: skip
    assert named(spark, rows) == expected


def test_the_generator_is_a_gateway_but_for_what_it_breaks(spark: SparkSession, tmp_path: Path) -> None:
    count, every = 20_000, 100
    whole = validate(scale.events(spark, count, partitions=1))
    assert (whole.kinds, whole.cut) == ({}, 0)
    assert whole.events == 4 * whole.messages >= count
    made = tmp_path / "events"
    scale.events(spark, count, every=every, partitions=1).write.parquet(str(made))
    outcome, pipeline = run(spark, tmp_path, "v-1", source=str(made))
    rows = spark.read.parquet(pipeline.place("validate", "v-1")).collect()
    what = {row.message_id: row.what for row in scale.broken(spark, count, every=every).collect()}
    steps = {"duplicate", "unanswered", "lost at a bridge"}
    assert {row.message_id for row in rows} == {message for message, each in what.items() if each in steps}
    assert (outcome.exit, outcome.detail["impossible"]) == (7, len(rows))
    first = next(row for row in rows if what[row.message_id] == "lost at a bridge")
    assert first.why == "Only what was forwarded has lost something on the way, once for each time."
    with pytest.raises(NoSuchResource, match="nothing was validated"):
        run(spark, tmp_path, "v-2", source=str(made), until=datetime(2026, 1, 1, tzinfo=UTC))


def test_a_planted_transition_in_the_ledger_of_a_gateway_is_named(spark: SparkSession, tmp_path: Path) -> None:
    async def live() -> str:
        async with house(tmp_path) as home:
            await home.publishes()
            await home.pulls()
            await home.owes()
            (message_id,) = await home.publish(MID, "plain")
            return message_id

    planted = asyncio.run(live())
    ledger, folder = tmp_path / "ledger.db", tmp_path / "gateway"
    folder.mkdir()
    with serving(f"sqlite:///{ledger}", folder) as gateway:
        clean, _ = run(spark, tmp_path, "v-1", url=url_of(gateway))
        with closing(sqlite3.connect(ledger)) as database, database:
            change = "UPDATE events SET kind = 'unknown' WHERE message_id = ? AND kind = 'accepted'"
            assert database.execute(change, (UUID(planted).bytes,)).rowcount == 1
        broken, _ = run(spark, tmp_path, "v-2", url=url_of(gateway))
    assert (clean.exit, clean.detail["impossible"], clean.detail["first"]) == (0, 0, [])
    assert clean.rows == clean.detail["events"] > 50
    assert (broken.exit, broken.detail["impossible"]) == (7, 1)
    (first,) = broken.detail["first"]
    assert (first["id"], first["scope"], first["before"], first["event"]) == (
        planted, "publish", "unknown", "confirmed",
    )  # fmt: skip
    assert first["why"] == ONE_OUTCOME
    assert first["before_at"] <= first["at"]


def test_an_archive_is_judged_by_what_it_still_has(spark: SparkSession, tmp_path: Path) -> None:
    rows = told("a", "accepted", "confirmed") + told("b", "accepted", "confirmed", "refused", first=3)
    pipeline = Pipeline(PipelineSettings(), storage=str(tmp_path / "storage"))
    archive_of(spark, pipeline, EVENTS, create=True).append(frame(spark, rows), Token.of("0", 5))
    outcome, _ = run(spark, tmp_path, "v-1", source="archive")
    assert (outcome.exit, outcome.rows) == (7, 5)
    assert outcome.detail["first"] == [
        {"id": "b", "scope": "publish", "event": "refused", "at": "2026-11-01T00:00:05.000000Z",
         "before": "confirmed", "before_at": "2026-11-01T00:00:04.000000Z", "why": ONE_OUTCOME}
    ]  # fmt: skip
    with pytest.raises(NoSuchResource):
        run(spark, tmp_path / "elsewhere", "v-1", source="archive")


def test_messages_whose_beginning_is_gone_are_not_accused(spark: SparkSession) -> None:
    late = START + timedelta(minutes=5)
    rows = told("old", "cancelled", first=7) + told("new", "cancelled", first=8, came=late)
    found = validate(frame(spark, rows))
    assert [(row.message_id, row.before) for row in found.found.collect()] == [("new", None)]
    assert (found.cut, found.messages) == (1, 2)
    forgotten = told("new", "cancelled", came=None)
    assert named(spark, forgotten) == [], "nobody knows when it came"


def test_two_processes_wrote_of_one_message(spark: SparkSession) -> None:
    lease = {"subscription": "s", "lease": 1}
    rows = told("m", ("delivered", lease), first=2) + told("m", ("acknowledged", lease), shard=1)
    rows += told("n", "accepted", "confirmed", first=3) + told("n", "refused", shard=1, first=2)
    rows += told("x", "accepted")
    assert named(spark, rows) == [("n", "refused", "accepted")]


def damaged(rows: Rows) -> Sequence[tuple[Rows, type[GatewayError], str]]:
    gap = [{**row, "at": row["at"] + timedelta(days=3), "sequence": row["sequence"] + 4} for row in rows]
    return (
        ([*rows, *gap], SourceGone, "shard 0 has no events from 3 to 4, and has some before them"),
        ([*rows, rows[1]], ArchiveDamaged, "shard 0 has event 2 more than once"),
        ([{**rows[0], "kind": "teleported"}, rows[1]], ArchiveTooNew, "kind 'teleported', which this release"),
    )


@pytest.mark.parametrize("number", range(3))
def test_a_log_with_a_damaged_part_is_refused_with_a_sentence(spark: SparkSession, number: int) -> None:
    rows, error, text = damaged(told("m", "accepted", "confirmed"))[number]
    with pytest.raises(error, match=text):
        validate(frame(spark, rows))


def test_numbers_may_be_missing_where_the_archive_begins(spark: SparkSession) -> None:
    rows = told("m", "confirmed", first=3) + told("n", "cancelled", first=9)
    assert named(spark, rows) == []


def test_files_of_another_kind_and_files_that_are_cut_short(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).coalesce(1).write.parquet(str(tmp_path / "other"))
    with pytest.raises(ArchiveTooNew, match="no column 'shard'"):
        run(spark, tmp_path, "v-1", source=str(tmp_path / "other"))
    frame(spark, told("m", "accepted")).coalesce(1).write.parquet(str(tmp_path / "cut"))
    (file,) = (tmp_path / "cut").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-20])
    (tmp_path / "cut" / f".{file.name}.crc").unlink(missing_ok=True)
    with pytest.raises(Exception) as caught:  # noqa: PT011  # Spark's own, which the command says in our words
        run(spark, tmp_path, "v-2", source=str(tmp_path / "cut"))
    assert isinstance(fault_of(caught.value), ArchiveDamaged)


def test_a_detail_that_is_damaged_names_its_event(spark: SparkSession) -> None:
    rows = told("m", "accepted", "confirmed", "confirmed")
    rows[2]["detail"] = "{"
    with pytest.raises(Exception) as caught:  # noqa: PT011  # as above
        validate(frame(spark, rows)).found.collect()
    assert str(fault_of(caught.value)).startswith("event 3 of shard 0: ")
    assert TraceEvent.of("confirmed", {}, 0, 0, 1).step == "confirmed"
