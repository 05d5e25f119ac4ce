"""Counts and latencies per hour, of what the event log tells.

The log is read on from where the last run ended, so a run costs what is new. What it finds for an hour is added to what
the hour has: counts add up, and KLL sketches merge, so that the percentiles of any range of hours come from their
sketches and no event is read twice. The hours and the position change together (:mod:`gateway.pipeline.jobs.rollups`):
a run that is repeated, or killed at any moment, counts each event once.

With ``since`` and ``until`` the hours of that range are counted again, from the rows of the log up to that
position, and take the place of what they had. An hour of which there are fewer events than were counted is left as it
is: then retention took some since.

``source`` is a folder of Parquet with events, in place of the log: an archive of what the log has no more, say. Its
rows have the shards and sequence numbers of the log, so that the two may follow each other.

A latency is the time from when the message came to the gateway to the event, of the events that end something
(:data:`gateway.pipeline.jobs.lives.FINAL`).
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import ConfigurationError
from gateway.pipeline.jobs.base import Context, Option, Outcome
from gateway.pipeline.jobs.lives import FINAL
from gateway.pipeline.jobs.moves import HOUR_US, REF, kept, one_of_each
from gateway.pipeline.jobs.rollups import Hour, Manifest, Rollups
from gateway.pipeline.jobs.routes import ROUTE
from gateway.pipeline.reports import Bars, Lines, Number, Numbers, Section, Table
from gateway.pipeline.schema import EVENTS
from gateway.runtime.clock import clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS: Final = (
    "shard", "sequence", "kind", "at", "version", "detail", "accepted_at", "source_broker", "exchange", "routing_key",
    "size",
)  # fmt: skip
"""What is read of the log."""
KEYS: Final = ("kind", "version", "source_broker", "exchange", "routing_key", "detail")
"""What decides, beside the hour, in which row of a rollup an event counts."""
SHOWN: Final = 200
"""Most rows of a table in a report."""


class Rollup:
    """The job."""

    name = "rollup"
    help = (
        "Count per hour, route, version and kind what happened, and how long it took. It goes on where the last run "
        "ended, counts each event once, and adds late events to their hours. With --since and --until it counts the "
        "hours of that range again."
    )
    options = (
        Option("since", "count again from the hour of this time on", "time"),
        Option("until", "and up to the hour of this time, which is left out", "time"),
        Option("source", "Parquet folder with events, in place of the log", metavar="FOLDER"),
        Option("show", "hours whose figures are in the report", "whole", 24, least=1, identity=False),
    )

    def run(self, context: Context) -> Outcome:
        """See :class:`gateway.pipeline.jobs.base.Job`."""
        if not context.pipeline.local:
            raise ConfigurationError(f"pipeline.storage is {context.pipeline.storage!r}, and rollups need a folder")
        rollups = Rollups(context.pipeline.place("rollups"))
        options = context.options
        anew = options.get("since") is not None
        if options.get("until") is not None and not anew:
            raise ConfigurationError("until is for counting again, which needs since")
        with rollups.locked():
            before = rollups.manifest()
            anew = anew and bool(before.position)  # where nothing was counted yet, all of it is
            found = self._anew(context, rollups, before) if anew else self._on(context, rollups, before)
        return _outcome(context, rollups, found)

    def _on(self, context: Context, rollups: Rollups, before: Manifest) -> dict[str, Any]:
        """Go on where the last run ended."""
        now = clock.now()
        missed = 0
        if folder := context.options.get("source"):
            events = context.spark.read.parquet(folder).select(*COLUMNS).where(beyond(before.position))
            head = {**before.position, **last_of(events)}
        else:
            from gateway.pipeline import source

            answer = context.service.ask("GET", "/v1/log/head", query={"log": EVENTS})
            head = {str(shard): int(last) for shard, last in answer["position"].items()}
            floor = {str(shard): int(last) for shard, last in answer["start"].items()}
            start = {shard: max(before.position.get(shard, 0), floor.get(shard, 0)) for shard in head}
            if before.position:
                missed = sum(start[shard] - before.position.get(shard, 0) for shard in head)
            events = source.read(context.spark, context.pipeline, EVENTS, COLUMNS, start=start, end=head)
        context.say("counting events")
        with kept(events, of_log=not folder) as rows:
            found = fold(rollups, before, rows, head, token_of(context.run_id), context.dry_run, now)
        return {**found, "missed": missed}

    def _anew(self, context: Context, rollups: Rollups, before: Manifest) -> dict[str, Any]:
        """Count a range of hours again."""
        first = hour_of(context.options["since"])
        until = context.options.get("until")
        last = int(clock.now()) // 3600 + 1 if until is None else hour_of(until)
        if last <= first:
            raise ConfigurationError(f"until must be an hour or more behind since: hours {first} to {last}")
        context.say(f"counting {last - first} hours again")
        if folder := context.options.get("source"):
            events = context.spark.read.parquet(folder).select(*COLUMNS)
        else:
            from gateway.pipeline import source

            events = source.read(context.spark, context.pipeline, EVENTS, COLUMNS, end=dict(before.position))
        with kept(events, of_log=not folder) as rows:
            return recount(rollups, before, rows, first, last, token_of(context.run_id), context.dry_run)


# ---------------------------------------------------------------------------------------------- DataFrame -> DataFrame


@cache
def sql(name: str) -> str:
    """The text of ``gateway/pipeline/sql/NAME.sql``."""
    return files("gateway.pipeline").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


def like(events: DataFrame) -> DataFrame:
    """Events with the group that they are counted in, made with little work an event: ``grp`` is the hash of what
    decides their route, version and kind. What of it is to be parsed is parsed once a group (:func:`named`): the first
    field of the detail says whose an event is."""
    final = ", ".join(f"'{kind}'" for kind in FINAL)
    return events.selectExpr(
        f"{REF} AS ref",
        "unix_micros(at) AS at",
        "unix_micros(accepted_at) AS came",
        "kind",
        "version",
        "size",
        "source_broker",
        "exchange",
        "CASE WHEN exchange = '' THEN routing_key ELSE '' END AS routing_key",
        "CASE WHEN kind = 'confirmed' AND locate('\"replay\":', detail) > 0 THEN '{\"replay\":'"
        " ELSE substring_index(detail, ',', 1) END AS detail",
    ).selectExpr(
        "*",
        f"at DIV {HOUR_US} AS hour",
        f"xxhash64({', '.join(KEYS)}) AS grp",
        # Clocks of two processes may differ by more than a message takes; of a message that the ledger has forgotten
        # nobody knows when it came, and greatest() would make 0 of that.
        f"CASE WHEN kind IN ({final}) AND came IS NOT NULL"
        " THEN greatest(CAST(at - came AS DOUBLE), 0D) / 1000D END AS latency",
    )


def named(events: DataFrame, counted: DataFrame) -> DataFrame:
    """Rows that were counted by ``grp``, with their route, version and kind, read off one event of each group."""
    names = like(one_of_each(events, counted)).selectExpr("grp", f"{ROUTE} AS route", "version", "kind")
    names = names.dropDuplicates(["grp"])  # a folder may hold the same event twice: it counts twice, and not four times
    return counted.drop("ref").join(names.hint("broadcast"), "grp").drop("grp")


def rollup(events: DataFrame) -> DataFrame:
    """The rollup of these events, :data:`gateway.pipeline.jobs.rollups.COLUMNS`. They are read twice, of which the
    second time reads hardly more than their numbers."""
    counted = _query(like(events), "events", "rollup_hourly").localCheckpoint()
    return merged(named(events, counted))


def merged(rollups: DataFrame) -> DataFrame:
    """Rollups in which an hour may have several rows of the same route, version and kind, as one row of each."""
    return _query(rollups, "rollups", "rollup_merge")


def percentiles(rollups: DataFrame) -> DataFrame:
    """Latencies over all hours of these rollups, by route and kind: ``sql/percentiles_range.sql``."""
    return _query(rollups, "rollups", "percentiles_range")


def rates(rollups: DataFrame) -> DataFrame:
    """Events a second by hour and kind: ``sql/rates.sql``."""
    return _query(rollups, "rollups", "rates")


def _query(rows: DataFrame, view: str, name: str) -> DataFrame:
    """The query of a file, over a view of these rows."""
    rows.createOrReplaceTempView(view)
    try:
        return rows.sparkSession.sql(sql(name))
    finally:
        rows.sparkSession.catalog.dropTempView(view)


# -------------------------------------------------------------------------------------------------------- the store


def fold(
    rollups: Rollups,
    before: Manifest,
    events: DataFrame,
    head: Mapping[str, int],
    token: str,
    dry_run: bool = False,
    now: float | None = None,
) -> dict[str, Any]:
    """Add new events, those up to ``head``, to the hours they belong to."""
    spark = events.sparkSession
    counted_at = int(clock.now() if now is None else now) // 3600
    if dict(head) == dict(before.position):
        return {"events": 0, "hours": [], "late": 0, "kept": 0}
    fresh = rollup(events).localCheckpoint()
    new = {int(row[0]): int(row[1]) for row in fresh.groupBy("hour").sum("events").collect()}
    late = {hour: count for hour, count in new.items() if hour < before.counted_at}
    if not dry_run:
        token = before.free(token)
        touched = rollups.read(spark, new)
        written = rollups.write(merged(touched.unionByName(fresh)), token)
        hours = {hour: Hour(token, count, _late(before, hour) + late.get(hour, 0)) for hour, count in written.items()}
        position = {**before.position, **head}  # a shard that is not named now may be named again
        rollups.swap(before, token, hours, position=position, counted_at=counted_at)
    return {"events": sum(new.values()), "hours": sorted(new), "late": sum(late.values()), "kept": 0}


def recount(
    rollups: Rollups,
    before: Manifest,
    events: DataFrame,
    first: int,
    last: int,
    token: str,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Count the hours from ``first`` to ``last``, which is left out, again, up to the position that is counted. An hour
    never has fewer events afterwards."""
    span = f"at >= timestamp_seconds({first * 3600}) AND at < timestamp_seconds({last * 3600})"
    fresh = rollup(events.where(f"{span} AND NOT ({beyond(before.position)})")).localCheckpoint()
    new = {int(row[0]): int(row[1]) for row in fresh.groupBy("hour").sum("events").collect()}
    kept = {
        hour
        for hour, known in before.hours.items()
        if first <= hour < last and new.get(hour, 0) < known.events
    }  # fmt: skip
    taken = sorted(new.keys() - kept)
    late = {hour: new[hour] - before.hours[hour].events for hour in taken if hour in before.hours}
    if taken and not dry_run:
        token = before.free(token)
        written = rollups.write(fresh.where(fresh.hour.isin(taken)), token)
        hours = {hour: Hour(token, count, _late(before, hour) + late.get(hour, 0)) for hour, count in written.items()}
        rollups.swap(before, token, hours)
    return {
        "events": sum(new[hour] for hour in taken), "hours": taken, "late": sum(late.values()), "kept": len(kept),
    }  # fmt: skip


def beyond(position: Mapping[str, int]) -> str:
    """The condition that an event is behind a position; a shard that it does not name is all behind it."""
    if not position:
        return "true"
    known = " ".join(f"WHEN {int(shard)} THEN sequence > {int(last)}" for shard, last in sorted(position.items()))
    return f"CASE shard {known} ELSE true END"


def last_of(events: DataFrame) -> dict[str, int]:
    """The position behind all of these events."""
    return {str(shard): int(last) for shard, last in events.groupBy("shard").max("sequence").collect()}


def _late(before: Manifest, hour: int) -> int:
    known = before.hours.get(hour)
    return 0 if known is None else known.late


def token_of(run_id: str) -> str:
    """A folder's name for a run."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", run_id)[:80]
    return plain if plain == run_id else f"{plain}-{hashlib.sha256(run_id.encode()).hexdigest()[:8]}"


def hour_of(moment: datetime) -> int:
    """Hours since 1970."""
    return int(moment.timestamp()) // 3600


# -------------------------------------------------------------------------------------------------------- the report


def _outcome(context: Context, rollups: Rollups, found: dict[str, Any]) -> Outcome:
    hours: Sequence[int] = found["hours"]
    detail = {
        "events": found["events"],
        "hours": len(hours),
        "first_hour": _moment(hours[0]) if hours else None,
        "last_hour": _moment(hours[-1]) if hours else None,
        "late": found["late"],
        "kept": found["kept"],
        "missed": found.get("missed", 0),
    }
    return Outcome(rows=found["events"], detail=detail, reports=_sections(context, rollups, detail))


def _sections(context: Context, rollups: Rollups, detail: Mapping[str, Any]) -> list[Section]:
    numbers = Numbers("Counted", [
        Number("events", detail["events"]),
        Number("hours", detail["hours"]),
        Number("late events", detail["late"], "they came after their hour had been counted"),
        Number("missed events", detail["missed"], "retention took them before they were counted",
               bad=detail["missed"] > 0),
        Number("hours left as they were", detail["kept"], "the log has fewer events of them than were counted"),
    ])  # fmt: skip
    known = rollups.manifest().hours
    if not known:
        return [numbers]
    shown = sorted(known)[-int(context.options.get("show") or 24) :]
    rows = rollups.read(context.spark, shown).localCheckpoint()
    by_kind: dict[str, dict[str, float]] = {}
    axis = [_moment(hour) for hour in shown]
    for row in rates(rows).collect():
        by_kind.setdefault(row.kind, {})[f"{row.hour:%Y-%m-%dT%H:%MZ}"] = round(row.events_a_second, 3)
    latencies = percentiles(rows).collect()
    return [
        numbers,
        Lines("Events a second", axis,
              [(kind, [values.get(hour) for hour in axis]) for kind, values in by_kind.items()], unit="1/s"),
        Table("How long it took", ["route", "kind", "events", "p50 ms", "p95 ms", "p99 ms", "most ms"],
              [[row.route, row.kind, row.events, *(round(value, 3) for value in (row.p50, row.p95, row.p99,
                row.latency_max))] for row in latencies[:SHOWN]],
              note=f"the first {SHOWN} of {len(latencies)}" if len(latencies) > SHOWN else ""),
        Bars("Late events by hour", [(_moment(hour), known[hour].late) for hour in shown if known[hour].late]),
    ]  # fmt: skip


def _moment(hour: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(hour * 3600))
