"""The source and the sink in Spark itself: what only Spark can show. All the rest is in ``tests/pipeline/unit``."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from gateway.config import PipelineSettings
from gateway.errors import ConfigurationError, CursorOwned, GatewayError, ServiceRefused, ServiceUnreachable, SourceGone
from gateway.pipeline import source
from gateway.pipeline.faults import fault_of
from gateway.pipeline.settings import Pipeline
from tests.pipeline.fake import DAY, FakeGateway

KEY = "hush-hush"
ROWS = 3_000


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway(key=KEY) as found:
        found.add("messages", 0, ROWS - 500)
        found.add("messages", 3, 500)
        found.add("events", 0, 100)
        yield found


@pytest.fixture
def pipeline(gateway: FakeGateway) -> Pipeline:
    settings = PipelineSettings(unavailable_timeout=0.5, rows_max=1_000)
    return Pipeline(settings, url=gateway.url, api_key=KEY)


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    file = tmp_path / "key"
    file.write_text(KEY)
    return str(file)


Start = Callable[..., StreamingQuery]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(frame, now=True)``: a query with a checkpoint of its own, stopped after the test."""
    started: list[StreamingQuery] = []

    def start(frame: DataFrame, form: str = "noop", now: bool = True, name: str = "checkpoint", **options: str) -> Any:
        writer = frame.writeStream.format(form).option("checkpointLocation", str(tmp_path / name)).options(**options)
        query = (writer.trigger(availableNow=True) if now else writer.trigger(processingTime="0 seconds")).start()
        started.append(query)
        return query

    yield start
    for query in started:
        query.stop()


def until(condition: Callable[[], bool], within: float = 180.0) -> None:
    """Wait for something that is about to be."""
    ends = monotonic() + within
    while not condition() and monotonic() < ends:
        sleep(0.05)


def fault(run: Callable[[], Any]) -> GatewayError:
    """What it ends with, as a job tells it."""
    with pytest.raises((PySparkException, GatewayError)) as caught:
        run()
    return fault_of(caught.value)


# ------------------------------------------------------------------------------------------------------ batch


def test_it_is_found_by_its_name_and_shows_no_key(spark: SparkSession, gateway: FakeGateway, key_file: str) -> None:
    spark.sql(f"""
        CREATE OR REPLACE TEMPORARY VIEW log (sequence bigint, accepted_at timestamp, body binary)
        USING gateway OPTIONS (url '{gateway.url}', log 'messages', api_key_file '{key_file}', rowsMax '1000')
    """)
    (row,) = spark.sql("SELECT count(*) AS n, unix_micros(min(accepted_at)) AS at FROM log").collect()
    assert row["n"] == ROWS
    assert row["at"] == DAY + 1_001, "UTC, to the microsecond"
    assert {query["columns"] for query in gateway.queries} == {"sequence,accepted_at,body"}, "and no other columns"
    plan = spark.table("log")._jdf.queryExecution().toString()  # type: ignore[operator]
    assert KEY not in plan + str(spark.sparkContext.getConf().getAll())


def test_a_job_reads_the_columns_that_it_wants_behind_a_position(
    spark: SparkSession, gateway: FakeGateway, pipeline: Pipeline
) -> None:
    frame = source.read(spark, pipeline, "messages", ("body", "tap", "sequence"), start={"0": 2_000}, pushdown=True)
    assert frame.columns == ["sequence", "tap", "body"]
    rows = frame.where("sequence > 2490 AND tap = 'tap-1'")
    assert [row["sequence"] for row in rows.orderBy("sequence").collect()] == [2491, 2493, 2495, 2497, 2499]
    assert [(query["after"], query["tap"]) for query in gateway.queries] == [("2490", "tap-1")], "filters came along"
    with pytest.raises(ConfigurationError, match="the log of messages has no column 'colour'"):
        source.read(spark, pipeline, "messages", ("colour",))


def test_the_default_reader_works_where_filters_may_not_be_pushed_down(
    spark: SparkSession, gateway: FakeGateway, pipeline: Pipeline
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert source.read(spark, pipeline, "events", ("sequence",)).where("sequence > 90").count() == 10
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_a_limit_ends_the_reading_early(spark: SparkSession, pipeline: Pipeline) -> None:
    assert len(source.read(spark, pipeline, "messages").limit(3).collect()) == 3


def test_what_goes_wrong_in_a_task_is_told_in_a_sentence(
    spark: SparkSession, gateway: FakeGateway, pipeline: Pipeline
) -> None:
    frame = source.read(spark, pipeline, "messages", ("sequence",), end={"0": 500})
    gateway.logs["messages"][0].missing = {77}
    found = fault(frame.count)
    assert type(found) is SourceGone
    assert "shard 0, 0 < sequence <= 500 has 500 rows, and 499 came" in str(found)
    gateway.logs["messages"][0].missing = set()
    gateway.fail("/v1/log", 1_000, status=503)
    found = fault(frame.count)
    assert type(found) is ServiceUnreachable
    assert f"{gateway.url}/v1/log answered 503" in str(found)
    gateway.faults.clear()
    gateway.key = "another"
    assert type(fault(frame.count)) is ServiceRefused


# ----------------------------------------------------------------------------------------------------- stream


def test_a_stream_reads_all_that_is_there_and_its_cursor_is_at_the_end(
    spark: SparkSession, gateway: FakeGateway, pipeline: Pipeline, start: Start
) -> None:
    stream = source.Stream(spark, pipeline, "messages", ("shard", "sequence"), cursor="c", max_rows=1_200)
    query = start(stream.frame, "memory", queryName="seen")
    query.awaitTermination()
    assert stream.finish(query) == {"0": ROWS - 500, "3": 500}
    assert gateway.told() == {"0": ROWS - 500, "3": 500}
    assert gateway.cursors["c"]["owner"] == "", "let go"
    assert len(query.recentProgress) == 3
    (row,) = spark.sql("SELECT count(*) AS n, count(DISTINCT shard, sequence) AS d FROM seen").collect()
    assert (row["n"], row["d"]) == (ROWS, ROWS)


def test_a_second_query_on_a_cursor_is_told_who_has_it_and_one_that_is_taken_over_ends(
    spark: SparkSession, gateway: FakeGateway, pipeline: Pipeline, start: Start
) -> None:
    first = source.Stream(spark, pipeline, "messages", ("sequence",), cursor="c", owner="the first")
    running = start(first.frame, now=False, name="first")
    first.follow(running)
    running.processAllAvailable()
    second = source.Stream(spark, pipeline, "messages", ("sequence",), cursor="c", owner="the second")
    found = fault(start(second.frame, name="second").awaitTermination)
    assert type(found) is CursorOwned
    assert "belongs to the first since" in str(found)
    third = source.Stream(spark, pipeline, "messages", ("sequence",), cursor="c", owner="the third", take_over="true")
    start(third.frame, name="third").awaitTermination()
    gateway.add("messages", 0, 10)
    found = fault(running.awaitTermination)
    assert type(found) is CursorOwned
    assert "belongs to the third now" in str(found)
    assert type(fault(lambda: first.finish(running))) is CursorOwned


def test_a_query_that_goes_on_tells_its_cursor_of_each_batch(
    spark: SparkSession, gateway: FakeGateway, pipeline: Pipeline, tmp_path: Path, start: Start
) -> None:
    """With an hour between two batches Spark asks nothing in between: the driver tells."""
    stream = source.Stream(spark, pipeline, "messages", ("sequence",), cursor="c")
    query = (
        stream.frame.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "hourly"))
        .trigger(processingTime="1 hour")
        .start()
    )
    try:
        stream.follow(query)
        wanted = {"0": ROWS - 500, "3": 500}
        until(lambda: not query.isActive or gateway.told() == wanted)
        assert gateway.told() == wanted
    finally:
        query.stop()
    stream.finish(query)


def test_rows_that_went_before_they_were_read_end_the_stream_or_are_passed_over(
    spark: SparkSession, gateway: FakeGateway, pipeline: Pipeline, start: Start
) -> None:
    frame = source.stream(spark, pipeline, "messages", ("sequence",), start='{"0": 100}')
    gateway.logs["messages"][0].floor = 201
    found = fault(start(frame).awaitTermination)
    assert type(found) is SourceGone
    assert "shard 0, 100 < sequence <= 200" in str(found)
    passing = source.stream(spark, pipeline, "messages", ("sequence",), start='{"0": 100}', failOnDataLoss="false")
    query = start(passing, "memory", name="passing", queryName="passed")
    query.awaitTermination()
    assert spark.table("passed").count() == ROWS - 200


# ----------------------------------------------------------------------------------------------------- writer


def test_a_task_that_runs_again_publishes_nothing_twice(
    spark: SparkSession, gateway: FakeGateway, pipeline: Pipeline, tmp_path: Path
) -> None:
    """The third request of a task fails for good: Spark runs the task again, and the first two are sent again."""
    report = tmp_path / "report.json"
    rows = source.read(spark, pipeline, "messages", ("body", "routing_key"), end={"0": 900})
    calls = count()
    gateway.refuses = lambda message: (422, "refused_once", False) if next(calls) == 650 else None
    source.write(rows, pipeline, "orders", id="copy", chunk_rows="300", report_file=str(report)).save()
    assert len(gateway.published) == 900
    assert sorted(gateway.bodies()) == sorted(f"body 0 {number}".encode() for number in range(1, 901))
    assert gateway.received == 900 + 900, "all three requests of the first attempt, and of the second"
    found = json.loads(report.read_text())
    counts = found["counts"]
    assert found["state"] == "done"
    assert (counts["rows"], counts["published"], counts["repeated"], counts["refused"]) == (900, 1, 899, 0)
    assert fault(lambda: rows.write.format("gateway").options(url=gateway.url, broker="b").mode("overwrite").save())


def test_a_stream_is_published_and_a_batch_that_is_written_again_is_published_once(
    spark: SparkSession, gateway: FakeGateway, pipeline: Pipeline, tmp_path: Path, start: Start
) -> None:
    from gateway.pipeline.source.helpers import write_options

    frame = source.stream(spark, pipeline, "messages", ("body", "routing_key", "properties"), max_rows=2_000)
    report = tmp_path / "report.json"
    options = write_options(pipeline, "orders", "x", report_file=str(report))
    start(frame, "gateway", **options).awaitTermination()
    assert len(gateway.published) == ROWS
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    commits[-1].unlink()  # killed behind the last batch, before Spark wrote that it was done
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink()
    start(frame, "gateway", **options).awaitTermination()
    assert len(gateway.published) == ROWS
    assert gateway.received == ROWS + 1_000
    counts = json.loads(report.read_text())["counts"]
    assert (counts["rows"], counts["published"], counts["repeated"]) == (ROWS, ROWS, 0), "counted once"
    found = {base64.b64decode(each["payload"]): each["routing_key"] for each in gateway.published.values()}
    assert found[b"body 0 751"] == "key.2"
