"""Replays of an archive, through a gateway that runs, to the embedded broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import DataFrame, SparkSession, functions

from gateway.commands.demo import gateway_of_our_own
from gateway.config import PipelineSettings
from gateway.errors import BadFilter, ConfigurationError, NoSuchBroker, NotFound
from gateway.exits import DONE, PARTLY_DONE, exit_status
from gateway.pipeline.archive.opening import archive_of
from gateway.pipeline.archive.table import Token
from gateway.pipeline.jobs import replay as replays
from gateway.pipeline.jobs import runs
from gateway.pipeline.jobs.base import Context, JobRequest, Outcome, options_of
from gateway.pipeline.jobs.replay import Replay
from gateway.pipeline.schema import MESSAGES
from gateway.pipeline.settings import Pipeline
from tests.pipeline.queues import Queue
from tests.pipeline.spark.test_archive import messages

BROKER = "local-0-9-1"
FIELDS = {"properties": {"type": "t", "priority": 3}, "headers": {"n": {"type": "int8", "value": 3}}}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with gateway_of_our_own() as url:
        yield url


@pytest.fixture
def queue(url: str, request: pytest.FixtureRequest) -> Queue:
    return Queue(url, request.node.name.replace("[", "-").replace("]", ""))


@pytest.fixture
def pipeline(url: str, tmp_path: Path) -> Pipeline:
    return Pipeline(PipelineSettings(unavailable_timeout=1.0), url=url, storage=str(tmp_path / "storage"))


Fill = Callable[..., None]


@pytest.fixture
def fill(spark: SparkSession, pipeline: Pipeline, queue: Queue) -> Fill:
    """``fill(1, 2000)``: rows of the message log into the archive, a thousand a day, taken from ``queue``."""

    def fill(first: int, last: int, change: Callable[[DataFrame], DataFrame] = lambda rows: rows) -> None:
        rows = messages(spark, first, last)
        named = {"queue": queue.name, "exchange": "", "routing_key": queue.name, "properties": json.dumps(FIELDS)}
        for name, value in named.items():
            rows = rows.withColumn(name, functions.lit(value))
        archive_of(spark, pipeline, MESSAGES, create=True).append(change(rows), Token.of("0", last))

    return fill


Start = Callable[..., runs.Ended]


@pytest.fixture
def start(spark: SparkSession, pipeline: Pipeline, queue: Queue) -> Start:
    """Start a run, by default all of the archive to the queue."""

    def start(run_id: str, where: str = "true", dry_run: bool = False, **options: Any) -> runs.Ended:
        job = Replay()
        given = options_of(job, {"where": where, "to": BROKER, **options})
        with closing(Context(pipeline, JobRequest(run_id, given, "replay", dry_run), spark=spark)) as context:
            return runs.run(job, context)

    return start


def found(outcome: Outcome) -> tuple[int, int, int]:
    return outcome.detail["published"], outcome.detail["repeated"], outcome.detail["refused"]


def test_what_the_filter_chooses_is_published_as_it_was(fill: Fill, start: Start, queue: Queue) -> None:
    fill(1, 2_500)
    ended = start("a", "sequence % 5 = 0 AND get_json_object(properties, '$.properties.type') = 't'")
    assert (found(ended.outcome), ended.outcome.exit, len(queue)) == ((500, 0, 0), DONE, 500)
    taken = queue.take()
    assert sorted(int(each["payload"].split()[1]) for each in taken) == list(range(5, 2_501, 5))
    assert taken[0]["properties"] == FIELDS["properties"]
    assert taken[0]["headers"] == FIELDS["headers"]
    again = start("a", "sequence % 5 = 0 AND get_json_object(properties, '$.properties.type') = 't'")
    assert (again.repeated, found(again.outcome), len(queue)) == (True, (500, 0, 0), 0)


def test_a_run_that_was_killed_publishes_nothing_twice(
    fill: Fill, start: Start, queue: Queue, spark: SparkSession, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its second slice, when that is published and the record does not know it. What came into the archive
    meanwhile is not its."""
    fill(1, 1_500)
    monkeypatch.setattr(replays, "SLICE_ROWS", 500)
    publish, done = replays.publish, []

    def killed(*args: Any) -> Any:
        counts = publish(*args)
        done.append(counts)
        if len(done) == 2:
            raise KeyboardInterrupt
        return counts

    monkeypatch.setattr(replays, "publish", killed)
    with pytest.raises(KeyboardInterrupt):
        start("c")
    sent = len(queue)
    assert 0 < sent < 1_500
    fill(1_501, 1_600)
    ended = start("c")
    assert found(ended.outcome) == (1_500 - done[1].rows, done[1].rows, 0)
    assert done[1].rows == sent - done[0].rows
    assert len(queue) == 1_500
    bodies = [each["payload"] for _ in range(2) for each in queue.take()]
    assert len(set(bodies)) == 1_500


def test_what_the_log_has_twice_is_published_twice_or_once(fill: Fill, start: Start, queue: Queue) -> None:
    """14 is 4 once more; 7, 21 and 28 say of themselves that they may be something; 10 and 11 have one id."""

    def repeat(rows: DataFrame) -> DataFrame:
        copied = rows.where("sequence = 4").select("message_id", "sha256").first()
        assert copied is not None
        for name, value in zip(("message_id", "sha256"), copied, strict=True):
            taken = functions.when(functions.col("sequence") == 14, value)
            rows = rows.withColumn(name, taken.otherwise(functions.col(name)))
        same = functions.col("sequence").isin(10, 11)
        return rows.withColumn("message_id", functions.when(same, "one id").otherwise(functions.col("message_id")))

    fill(1, 30, repeat)
    assert found(start("twice").outcome) == (30, 0, 0)
    queue.take()
    assert found(start("once", once=True).outcome) == (29, 0, 0)
    assert sorted(int(each["payload"].split()[1]) for each in queue.take()) == [n for n in range(1, 31) if n != 14]


def test_what_is_refused_is_counted_by_reason(fill: Fill, start: Start, queue: Queue) -> None:
    def spoil(rows: DataFrame) -> DataFrame:
        number = functions.col("sequence")
        return rows.withColumn(
            "routing_key", functions.when(number % 4 == 0, "nowhere").otherwise(functions.col("routing_key"))
        ).withColumn(
            "exchange", functions.when(number % 10 == 1, "no such exchange").otherwise(functions.col("exchange"))
        )

    fill(1, 200, spoil)
    outcome = start("e").outcome
    assert (found(outcome), outcome.exit) == ((130, 0, 70), PARTLY_DONE)
    assert outcome.detail["reasons"] == {"unroutable": 50, "not_found": 20}
    titles = {section.title: section for section in outcome.reports}
    assert dict(titles["Refused, by reason"].rows) == outcome.detail["reasons"]  # type: ignore[union-attr]
    assert len(queue) == 130


def test_somewhere_else(fill: Fill, start: Start, queue: Queue) -> None:
    fill(1, 50, lambda rows: rows.withColumn("exchange", functions.lit("gone")))
    assert found(start("f1", to=f"amq.default@{BROKER}", routing_key=queue.name).outcome) == (50, 0, 0)
    assert found(start("f2", queues=True).outcome) == (50, 0, 0)
    assert len(queue) == 100


def test_some_of_the_time_in_order(fill: Fill, start: Start, queue: Queue) -> None:
    fill(1, 3_000)
    day = datetime(2026, 11, 2, tzinfo=UTC)
    outcome = start("g", since=day + timedelta(hours=6), until=day + timedelta(hours=12), ordered=True).outcome
    assert found(outcome) == (250, 0, 0)
    assert [int(each["payload"].split()[1]) for each in queue.take()] == list(range(1_250, 1_500))


def test_a_dry_run_tells_and_sends_nothing(fill: Fill, start: Start, queue: Queue, url: str) -> None:
    fill(1, 2_000)
    outcome = start("h", "sequence > 1000", dry_run=True, rate=100.0).outcome
    assert outcome.rows == 1_000
    assert "Filter" in outcome.detail["plan"]
    numbers = {each.label: each.value for each in outcome.reports[0].numbers}  # type: ignore[union-attr]
    assert numbers["messages"] == 1_000
    assert numbers["spooled"] == "2026-11-02 00:01 to 2026-11-03 00:01"
    assert numbers["takes"] == "0:00:10"
    assert outcome.reports[1].rows == [("amq.default", queue.name, queue.name, 1_000)]  # type: ignore[union-attr]
    assert len(queue) == 0
    assert httpx.get(f"{url}/v1/pipeline/runs/h").status_code == 404


def test_the_rate_is_kept(fill: Fill, start: Start, queue: Queue) -> None:
    """Measured by the job itself, from what its task did when."""
    fill(1, 600)
    outcome = start("i", rate=200.0).outcome
    assert found(outcome) == (600, 0, 0)
    assert abs(outcome.detail["rate_error"]) <= 0.05, outcome.detail


@pytest.mark.parametrize(
    ("options", "error", "status"),
    [
        ({"where": "routing_key ="}, BadFilter, 2),
        ({"to": "nowhere"}, NoSuchBroker, 3),
        ({"to": f"missing@{BROKER}"}, NotFound, 3),
        ({"to": "@x"}, ConfigurationError, 2),
        ({"queues": True, "routing_key": "a"}, ConfigurationError, 2),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_read(
    start: Start, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], error: type[Any], status: int
) -> None:
    def unread(*args: Any) -> Any:
        raise AssertionError("the archive was opened")

    monkeypatch.setattr(replays, "archive_of", unread)
    with pytest.raises(error):
        start(f"j{hash(str(options))}", **{"where": "true", **options})
    assert exit_status(error) == status


def test_keys_that_may_be_forgotten_stop_it(
    fill: Fill, start: Start, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(1, 100)

    def killed(*args: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(replays, "publish", killed)
        with pytest.raises(KeyboardInterrupt):
            start("k")
    with pytest.raises(ConfigurationError, match=r"stopped 0\.0 hours ago in the middle.*--go-on"):
        start("k", keys_hours=0.0)
    assert len(queue) == 0
    assert found(start("k", keys_hours=0.0, go_on=True).outcome) == (100, 0, 0)
