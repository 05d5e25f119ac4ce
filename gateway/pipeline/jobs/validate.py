"""Every event of the log follows one that it may follow, or is named.

The events of a message are put into order and judged by :mod:`gateway.ledger.writing.transitions`, scope by scope. Most
messages go the same ways, so Spark only writes down the way of each, as one letter an event, and each different way is
judged once. The events of messages whose way is impossible, or was written by several shards, are then read again and
judged one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import ArchiveDamaged, ArchiveTooNew, LedgerDamaged, NoSuchResource, SourceGone
from gateway.exits import DIFFERENT, DONE
from gateway.ledger.db.encoding import parse
from gateway.ledger.writing.states import EventKind
from gateway.ledger.writing.transitions import (
    HOLDERS,
    NOTES,
    PUBLISH_KINDS,
    SKEW,
    STEPS,
    TRANSITIONS,
    EventVariant,
    ImpossibleTransition,
    TraceEvent,
    TraceScope,
    impossible,
    is_possible,
)
from gateway.pipeline.archive.opening import archive_of
from gateway.pipeline.jobs.base import Context, Option, Outcome
from gateway.pipeline.jobs.moves import exprs, kept, listed
from gateway.pipeline.jobs.routes import name_of
from gateway.pipeline.reports import Bars, Number, Numbers, Section, Table
from gateway.pipeline.schema import EVENTS

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

COLUMNS: Final = ("shard", "sequence", "message_id", "kind", "at", "detail", "accepted_at")
"""What is read of the event log."""
DETAIL: Final = "coalesce(detail, '') AS detail"
ARCHIVE: Final = "archive"
LISTED: Final = 1_000
SHOWN: Final = 200
DAY_US: Final = 86_400_000_000
CODES: Final = 64
"""More than there are steps."""
LETTER: Final = ord("A")
"""The letter of the first step; the others follow."""
FOUND: Final = (
    "message_id string, scope string, kind string, at timestamp, before string, before_at timestamp, why string"
)
"""An impossible transition: the event and the one before it in its scope (NULL: it is the first)."""


@dataclass(frozen=True, slots=True)
class Validated:
    """What validating found."""

    events: int
    messages: int
    found: DataFrame
    """As :data:`FOUND`."""
    kinds: dict[tuple[str, str], int]
    """Event and the one before it -> how many."""
    cut: int
    """Messages that came before the first event that the log still has."""


class Validate:
    """The job."""

    name = "validate"
    help = (
        "Name every event that may not follow the one before it. A table says which events may follow each other in a "
        "publish, a subscription, a bridge and a tap. Exit status 7 where a transition is impossible, 3 where there is "
        "no event to validate."
    )
    options = (
        Option("since", "messages that came at this time or later; by default all that the log has", "time"),
        Option("until", "messages that came before this time", "time"),
        Option("source", "Parquet folder with events, or 'archive', in place of the log", metavar="FOLDER|archive"),
    )

    def run(self, context: Context) -> Outcome:
        """See :class:`gateway.pipeline.jobs.base.Job`."""
        events = _events(context)
        context.say("validating")
        with kept(events, of_log=not context.options.get("source")) as whole:
            result = validate(whole, _came(context))
            first = result.found.orderBy("at", "message_id").limit(LISTED).collect()
        if not context.dry_run:
            result.found.repartition(1).write.mode("overwrite").parquet(
                context.pipeline.place("validate", context.run_id)
            )
        total = sum(result.kinds.values())
        rows = [_row(row) for row in first]
        detail = {
            "events": result.events, "messages": result.messages, "impossible": total, "cut": result.cut,
            "first": [dict(zip(("id", "scope", "event", "at", "before", "before_at", "why"), row, strict=True))
                      for row in rows[:100]],
        }  # fmt: skip
        return Outcome(
            rows=result.events,
            detail=detail,
            reports=_sections(result, rows, total),
            exit=DIFFERENT if total else DONE,
        )


def validate(events: DataFrame, came: str = "true") -> Validated:
    """Judge messages.

    Args:
        events: the whole log, for what it lacks decides how its messages are judged.
        came: a condition of SQL: which messages.

    Raises:
        NoSuchResource: there is no such event.
        ArchiveTooNew: a kind of event is unknown.
        SourceGone: events are missing among the others.
        ArchiveDamaged: events are there twice.
    """
    cut = f"coalesce(unix_micros(accepted_at) < {_begin(events)}L, true) AS cut"
    chosen = events.where(came)
    steps = (
        chosen.where(f"kind NOT IN ({listed(NOTES)})")
        .selectExpr(
            "xxhash64(message_id) AS message", "kind", "sequence", "shard", "coalesce(detail, '') AS detail", cut
        )
        .selectExpr("*", *(f"{name_of(scope)} AS {scope}" for scope in HOLDERS))
        .selectExpr("message", f"{_scope()} AS scope", f"sequence * {CODES} + {_code()} AS step", "shard", "cut")
        .where("scope IS NOT NULL")
    )
    ways = (
        steps.groupBy("message", "scope")
        .agg(*exprs("sort_array(collect_list(step)) AS steps", "min(shard) != max(shard) AS many", "any(cut) AS cut"))
        .selectExpr(
            "message", "substring_index(scope, ':', 1) AS scope", "many", "cut",
            f"CASE WHEN NOT many THEN array_join(transform(steps, s -> char({LETTER} + s % {CODES})), '') END AS way",
        )
        .localCheckpoint()
    )  # fmt: skip
    told = ways.agg(*exprs("count(DISTINCT message) AS messages", "count(DISTINCT IF(cut, message, NULL)) AS cut"))
    (counts,) = told.collect()
    if not counts.messages:
        raise NoSuchResource("the log has no event of the messages that were asked for: nothing was validated")
    different = ways.where("NOT many").select("scope", "cut", "way").distinct()
    wrong = different.mapInPandas(_wrong, "scope string, cut boolean, way string")
    doubtful = ways.join(wrong, ["scope", "cut", "way"], "left_semi").unionByName(ways.where("many"))
    found = (
        chosen.withColumn("message", *exprs("xxhash64(message_id)"))
        .join(doubtful.select("message").distinct(), "message", "left_semi")
        .selectExpr("message_id", "shard", "sequence", "kind", DETAIL,
                    "unix_micros(at) AS at", cut)
        .repartition("message_id")
        .sortWithinPartitions("message_id")
        .mapInPandas(_judged, FOUND)
        .localCheckpoint()
    )  # fmt: skip
    kinds = {(row.kind, row.before or ""): int(row[2]) for row in found.groupBy("kind", "before").count().collect()}
    return Validated(chosen.count(), int(counts.messages), found, kinds, int(counts.cut))


# ------------------------------------------------------------------------------------------------- what is given


def _events(context: Context) -> DataFrame:
    source = context.options.get("source")
    if source == ARCHIVE:
        return archive_of(context.spark, context.pipeline, EVENTS).read(COLUMNS)
    if source:
        found = context.spark.read.parquet(source)
        if missing := [name for name in COLUMNS if name not in found.columns]:
            raise ArchiveTooNew(
                f"{source} has no column {missing[0]!r}, so it is no event log that this release knows; "
                f"it has {', '.join(found.columns[:20])}"
            )
        return found.select(*COLUMNS)
    from gateway.pipeline import source as logs

    head = context.service.ask("GET", "/v1/log/head", query={"log": EVENTS})["position"]
    return logs.read(context.spark, context.pipeline, EVENTS, COLUMNS, end=head)


def _came(context: Context) -> str:
    """The condition that a message is to be judged."""
    found = ["true"]
    for name, sign in (("since", ">="), ("until", "<")):
        if (moment := context.options.get(name)) is not None:
            found.append(f"accepted_at {sign} timestamp_micros({int(moment.timestamp() * 1_000_000)})")
    return " AND ".join(found)


def _begin(events: DataFrame) -> int:
    """Messages that came before this moment may have lost their first events: microseconds since 1970.

    The archive keeps whole days, and the numbers of a shard are only nearly in the order of days. So numbers may be
    missing within a day of the first event that is left.
    """
    known = listed(str(kind) for kind in EventKind)
    counted = events.groupBy("shard").agg(
        *exprs(
            "count(*) AS n", "min(sequence) AS first", "max(sequence) AS last", "sum(sequence) AS total",
            "min_by(unix_micros(at), sequence) AS at", f"min(IF(kind IN ({known}), NULL, kind)) AS strange",
        )
    )  # fmt: skip
    begin = 0
    for row in counted.orderBy("shard").collect():
        if row.strange is not None:
            raise ArchiveTooNew(
                f"shard {row.shard} has events of the kind {row.strange!r}, which this release does not know: validate "
                "the log with the release that wrote it"
            )
        if row.first > 1:
            begin = max(begin, row.at + SKEW)
        whole = row.last - row.first + 1
        if row.n != whole or row.total != (row.first + row.last) * whole // 2:
            begin = max(begin, _edge(events, row.shard, row.at) + SKEW)
    return begin


def _edge(events: DataFrame, shard: int, first: int) -> int:
    """The time of the first event behind the last numbers that a shard lacks. ``first``: that of its first event."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812  # as everyone has it

    before = F.lag("sequence").over(Window.partitionBy("shard").orderBy("sequence"))
    steps = events.where(f"shard = {int(shard)}").selectExpr("shard", "sequence", "unix_micros(at) AS at")
    gaps = steps.withColumn("before", before).where("sequence != before + 1").orderBy("sequence").localCheckpoint()
    if (twice := gaps.where("sequence = before").first()) is not None:
        raise ArchiveDamaged(f"shard {shard} has event {twice.sequence} more than once: read each row of the log once")
    edge = first
    for row in gaps.toLocalIterator():
        if row.at > first + DAY_US:
            raise SourceGone(
                f"shard {shard} has no events from {row.before + 1} to {row.sequence - 1}, and has some before them: "
                "without them nothing can be said of its messages"
            )
        edge = max(edge, row.at)
    return edge


# ------------------------------------------------------------------------------------------------------- the steps


def _scope() -> str:
    """The scope of an event, as :class:`TraceEvent` has it, or NULL."""
    cases = " ".join(
        f"WHEN {scope} IS NOT NULL THEN IF(kind IN ({listed(_kinds(scope))}), concat('{scope}:', {scope}), NULL)"
        for scope in HOLDERS
    )
    return f"CASE WHEN kind IN ({listed(PUBLISH_KINDS)}) THEN '{TraceScope.PUBLISH}' {cases} END"


def _kinds(scope: TraceScope) -> list[str]:
    return [kind for kind in EventKind if kind in TRANSITIONS[scope]]


def _code() -> str:
    """The number of a step, as :class:`TraceEvent` has it."""
    has = {name: f"locate('\"{name}\":', detail) > 0" for name in ("retry", "rescheduled", "replay", "lease", "reason",
                                                                   "subscription", "endpoint")}  # fmt: skip
    variants: dict[str, str] = {
        EventVariant.SCHEDULED_AGAIN: f"kind = 'scheduled' AND ({has['retry']} OR {has['rescheduled']})",
        EventVariant.CONFIRMED_COPY: f"kind = 'confirmed' AND {has['replay']}",
        EventVariant.LEASED: f"kind = 'delivered' AND {has['lease']} AND get_json_object(detail, '$.lease') = '1'",
        EventVariant.LEASED_AGAIN: f"kind = 'delivered' AND {has['lease']}",
        EventVariant.HANDED_BACK: f"kind = 'released' AND {has['subscription']} AND {has['reason']}",
        EventVariant.PUSHED: f"kind = 'acknowledged' AND {has['endpoint']}",
    }
    conditions: dict[str, str] = {**variants, **{kind: f"kind = '{kind}'" for kind in EventKind}}
    return "CASE " + " ".join(f"WHEN {when} THEN {STEPS.index(step)}" for step, when in conditions.items()) + " END"


def _wrong(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """The ways that are impossible."""
    for frame in frames:
        wrong = [
            not is_possible(TraceScope(scope), [STEPS[ord(letter) - LETTER] for letter in way], bool(cut))
            for scope, cut, way in zip(frame["scope"], frame["cut"], frame["way"], strict=True)
        ]
        yield frame.loc[wrong]


def _judged(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """The impossible transitions of messages, whose events follow each other."""
    import pandas as pd

    names = [name.split()[0] for name in FOUND.split(", ")]
    rows = (row for frame in frames for row in frame.itertuples(index=False))
    found = (
        (message_id, what.event.scope, what.event.step, _moment(what.event.at),
         what.before and what.before.step, what.before and _moment(what.before.at), what.why)
        for message_id, each in groupby(rows, attrgetter("message_id"))
        for what in _impossible(list(each))
    )  # fmt: skip
    while some := list(islice(found, LISTED)):
        yield pd.DataFrame(some, columns=names)


def _impossible(events: list[Any]) -> list[ImpossibleTransition]:
    return impossible(map(_read, events), is_cut=any(event.cut for event in events))


def _read(row: Any) -> TraceEvent:
    try:
        return TraceEvent.of(row.kind, parse(row.detail), row.at, row.shard, row.sequence)
    except LedgerDamaged as error:
        raise ArchiveDamaged(f"event {row.sequence} of shard {row.shard}: {error}") from None


def _moment(at: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=at)


# ------------------------------------------------------------------------------------------------------ the report


def _row(row: Any) -> list[Any]:
    """A transition, for people and for the record."""
    before_at = None if row.before_at is None else _text(row.before_at)
    return [row.message_id, row.scope, row.kind, _text(row.at), row.before, before_at, row.why]


def _text(at: datetime) -> str:
    return at.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def _sections(result: Validated, rows: Sequence[Sequence[Any]], total: int) -> list[Section]:
    kinds = [(f"{kind} after {before or 'nothing'}", count) for (kind, before), count in sorted(result.kinds.items())]
    return [
        Numbers("Validated", [
            Number("events", result.events),
            Number("messages", result.messages),
            Number("impossible transitions", total, bad=total > 0),
            Number("messages that are cut", result.cut, "they came before the first event that the log still has"),
        ]),
        Table("Impossible transitions", ["message", "where", "event", "at", "follows", "at", "the rule"], rows[:SHOWN],
              bad=True, note=f"the first {min(SHOWN, len(rows))} of {total}" if total > SHOWN else ""),
        Bars("Impossible transitions by kind", kinds),
    ]  # fmt: skip
