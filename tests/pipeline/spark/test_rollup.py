"""Each event is counted once, in its hour, whatever is repeated, late, or killed in between."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from gateway.config import PipelineSettings
from gateway.errors import ConfigurationError
from gateway.pipeline.jobs.base import Context, JobRequest, Outcome, options_of
from gateway.pipeline.jobs.rollup import Rollup, beyond, fold, last_of, percentiles, rates, recount, rollup
from gateway.pipeline.jobs.rollups import Manifest, Rollups
from gateway.pipeline.settings import Pipeline
from tests.benchmarks import events_at_scale as scale

HOUR = scale.START // 3600


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Events of about two hours and a half."""
    folder = str(tmp_path_factory.mktemp("made") / "events")
    scale.events(spark, 20_000, partitions=1, gap=1_200_000).write.parquet(folder)
    return spark.read.parquet(folder)


def _counts(rows: DataFrame) -> dict[tuple[Any, ...], int]:
    columns = ("hour", "route", "version", "kind")
    there = rows.select(*columns, "events").collect()
    found = {tuple(row[name] for name in columns): row.events for row in there}
    assert len(found) == len(there), "one row each"
    return found


@pytest.fixture(scope="module")
def whole(made: DataFrame) -> dict[tuple[Any, ...], int]:
    """What counting all of them at once gives."""
    return _counts(rollup(made))


def test_counts_octets_and_latencies_are_those_of_the_events(spark: SparkSession, made: DataFrame) -> None:
    found = rollup(made).localCheckpoint()
    exact = made.groupBy("kind").agg({"*": "count", "size": "sum"}).collect()
    summed = {
        row.kind: (row["sum(events)"], row["sum(octets)"])
        for row in found.groupBy("kind").agg({"events": "sum", "octets": "sum"}).collect()
    }
    assert {row.kind: (row["count(1)"], row["sum(size)"]) for row in exact} == summed
    routes = {row.route for row in found.select("route").distinct().collect()}
    assert {"bridge:b-3", "subscription:orders-3", "subscription:topic-3", "shop//orders-3", "qpid/events"} <= routes
    # What a sketch promises is a rank, within 1.65 %: the value lies between those of ranks that are farther away.
    around = "array(0.47D, 0.53D, 0.92D, 0.98D, 0.96D, 1.00D)"
    times = f"percentile((unix_micros(at) - unix_micros(accepted_at)) / 1000D, {around})"
    true = {row[0]: row[1] for row in made.where("kind = 'forwarded'").groupBy("detail").agg(_expr(times)).collect()}
    sketched = {row.route: row for row in percentiles(found).collect() if row.kind == "forwarded"}
    assert len(true) == len(sketched) == scale.QUEUES
    for detail, ranks in true.items():
        row = sketched["bridge:" + detail.split('"')[3]]
        for mine, least, most in zip((row.p50, row.p95, row.p99), ranks[::2], ranks[1::2], strict=True):
            assert least <= mine <= most
    shares = {(row.hour, row.kind): row.share for row in rates(found).collect()}
    assert sum(share for (hour, _), share in shares.items() if hour == min(shares)[0]) == pytest.approx(1.0)


def _expr(text: str) -> Any:
    from pyspark.sql import functions as F  # noqa: N812  # as everyone has it

    return F.expr(text)


def test_folding_piece_by_piece_is_counting_at_once(
    spark: SparkSession, made: DataFrame, whole: dict[tuple[Any, ...], int], tmp_path: Path
) -> None:
    rollups = Rollups(tmp_path)
    head = last_of(made)
    for number, part in enumerate((0.3, 0.8, 1.0)):
        before = rollups.manifest()
        end = {shard: int(last * part) for shard, last in head.items()}
        fresh = made.where(" OR ".join(
            f"shard = {shard} AND sequence > {before.position.get(shard, 0)} AND sequence <= {last}"
            for shard, last in end.items()))  # fmt: skip
        fold(rollups, before, fresh, end, f"run-{number}", now=scale.START + 3600 * number)
    assert _counts(rollups.read(spark)) == whole
    manifest = rollups.manifest()
    assert manifest.position == head
    assert sum(hour.events for hour in manifest.hours.values()) == made.count()
    again = fold(rollups, manifest, made.limit(0), head, "run-3")
    assert again["events"] == 0
    assert rollups.manifest() == manifest


def test_late_events_are_counted_and_added_to_their_hour(
    spark: SparkSession, made: DataFrame, whole: dict[tuple[Any, ...], int], tmp_path: Path
) -> None:
    rollups = Rollups(tmp_path)
    first = made.where("shard != 1")
    fold(rollups, Manifest(), first, last_of(first), "one", now=scale.START + 2 * 3600 + 60)
    late = made.where("shard = 1")
    before = rollups.manifest()
    found = fold(rollups, before, late, {**before.position, **last_of(late)}, "two", now=scale.START + 9 * 3600)
    over = late.where(f"unix_micros(at) DIV 3600000000 < {HOUR + 2}").count()
    assert found["late"] == over > 0
    hours = rollups.manifest().hours
    assert sum(hour.late for hour in hours.values()) == over
    assert _counts(rollups.read(spark)) == whole


def test_a_run_that_died_before_the_manifest_changed_counts_nothing(
    spark: SparkSession,
    made: DataFrame,
    whole: dict[tuple[Any, ...], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rollups = Rollups(tmp_path)
    head = last_of(made)
    with monkeypatch.context() as patch:
        patch.setattr(Rollups, "swap", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fold(rollups, Manifest(), made, head, "one")
    assert rollups.manifest() == Manifest()
    fold(rollups, Manifest(), made, head, "one")
    assert _counts(rollups.read(spark)) == whole


def test_a_run_that_comes_again_under_its_id_keeps_what_it_has_counted(
    spark: SparkSession, made: DataFrame, whole: dict[tuple[Any, ...], int], tmp_path: Path
) -> None:
    """It was killed when the manifest named its folder, and before its record said so; meanwhile more came."""
    rollups = Rollups(tmp_path)
    first = made.where("shard = 0")
    fold(rollups, Manifest(), first, last_of(first), "one")
    for _ in range(2):
        before = rollups.manifest()
        fresh = made.where("shard != 0").where(beyond(before.position))
        fold(rollups, before, fresh, {**before.position, **last_of(made)}, "one")
        found = recount(rollups, rollups.manifest(), made, HOUR, HOUR + 1, "one")
        assert (found["hours"], found["kept"]) == ([HOUR], 0)
    assert _counts(rollups.read(spark)) == whole


def test_what_the_ledger_has_forgotten_is_counted_without_a_latency(spark: SparkSession, made: DataFrame) -> None:
    columns = ("accepted_at", "source_broker", "exchange", "routing_key", "size")
    confirmed, forwarded = (made.where(f"kind = '{kind}'").limit(1_000) for kind in ("confirmed", "forwarded"))
    some = confirmed.union(forwarded).localCheckpoint()
    forgotten = some.withColumns({name: _expr(f"CAST(NULL AS {some.schema[name].dataType.simpleString()})")
                                  for name in columns})  # fmt: skip
    rows = rollup(forgotten).collect()
    assert sum(row.events for row in rows) == 2_000
    assert {row.timed for row in rows} == {0}
    assert {row.octets for row in rows} == {0}
    assert {row.route.partition(":")[0] for row in rows} == {"(unknown)", "bridge"}


def test_an_event_that_a_folder_has_twice_counts_twice(spark: SparkSession, made: DataFrame) -> None:
    some = made.where("sequence <= 500").localCheckpoint()
    assert {key: 2 * count for key, count in _counts(rollup(some)).items()} == _counts(rollup(some.union(some)))


def test_a_shard_that_is_not_named_for_a_while_keeps_its_position(made: DataFrame, tmp_path: Path) -> None:
    rollups = Rollups(tmp_path)
    first = made.where("shard = 0")
    fold(rollups, Manifest(position={"7": 5}), first, last_of(first), "one")
    assert rollups.manifest().position == {"7": 5, **last_of(first)}


def test_an_hour_that_is_counted_anew_is_overwritten_and_never_loses_events(
    spark: SparkSession, made: DataFrame, whole: dict[tuple[Any, ...], int], tmp_path: Path
) -> None:
    rollups = Rollups(tmp_path)
    fold(rollups, Manifest(), made, last_of(made), "one")
    before = rollups.manifest()
    found = recount(rollups, before, made, HOUR, HOUR + 1, "two")
    assert (found["hours"], found["kept"], found["late"]) == ([HOUR], 0, 0)
    after = rollups.manifest()
    assert (after.hours[HOUR].run, after.hours[HOUR + 1].run) == ("two", "one")
    assert _counts(rollups.read(spark)) == whole
    found = recount(rollups, after, made.where("sequence % 2 = 0"), HOUR, HOUR + 2, "three")
    assert (found["hours"], found["kept"]) == ([], 2)
    assert rollups.manifest() == after


def _run(spark: SparkSession, folder: Path, run_id: str, **options: Any) -> Outcome:
    job = Rollup()
    pipeline = Pipeline(PipelineSettings(), storage=str(folder / "storage"))
    return job.run(Context(pipeline, JobRequest(run_id, options_of(job, options), job.name), spark=spark))


def test_the_job_goes_on_where_it_was_and_counts_anew(spark: SparkSession, made: DataFrame, tmp_path: Path) -> None:
    source = str(tmp_path / "events")
    made.where("shard = 0").write.parquet(source)
    # Where nothing was counted yet, all of it is, whatever is to be counted anew.
    first = _run(spark, tmp_path, "r-1", source=source, since=datetime(2026, 11, 20, tzinfo=UTC))
    assert first.rows == made.where("shard = 0").count()
    assert [section.title for section in first.reports][:2] == ["Counted", "Events a second"]
    made.where("shard != 0").write.mode("append").parquet(source)
    second = _run(spark, tmp_path, "r-2", source=source)
    assert first.rows + second.rows == made.count()
    assert _run(spark, tmp_path, "r-3", source=source).rows == 0
    anew = _run(spark, tmp_path, "r-4", source=source, since=datetime(2026, 11, 1, tzinfo=UTC),
                until=datetime(2026, 11, 1, 1, tzinfo=UTC))  # fmt: skip
    assert anew.detail["hours"] == 1
    for wrong, text in (({"until": datetime(2026, 11, 1, tzinfo=UTC)}, "needs since"),
                        ({"since": datetime(2026, 11, 2, tzinfo=UTC), "until": datetime(2026, 11, 1, tzinfo=UTC)},
                         "behind since")):  # fmt: skip
        with pytest.raises(ConfigurationError, match=text):
            _run(spark, tmp_path, "r-5", source=source, **wrong)
