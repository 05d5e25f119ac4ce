"""Publish messages of the archive once more: those that a filter chooses, to a broker of any version.

What is to be published is settled when the run begins, and stays so: the archive's rows up to where it is now, those
that the filter is true for. They are worked through slice by slice, a slice being some minutes of the time at which
they were spooled, few enough to be published in :data:`SLICE_SECONDS` at the rate that is set. Before each the run's
record says how far it is. A run that was killed goes on with the slice that it was in, under the same keys, so that
what had been published of it is not published again for as long as the gateway remembers its keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gateway.errors import ConfigurationError, SourceGone
from gateway.exits import DONE, PARTLY_DONE
from gateway.pipeline.archive.opening import archive_of
from gateway.pipeline.archive.table import ArchiveTable
from gateway.pipeline.expressions import checked_filter
from gateway.pipeline.jobs.base import Context, Option, Outcome
from gateway.pipeline.jobs.sending import (
    OPTIONS,
    Target,
    check_id,
    clear,
    outgoing,
    publish,
    rate_of,
    sections,
)
from gateway.pipeline.reports import Number, Numbers, Section, Table
from gateway.pipeline.schema import MESSAGES, ddl
from gateway.pipeline.source.messages import Counts
from gateway.runtime.clock import clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SLICE_SECONDS: Final = 120.0
"""How long publishing a slice takes, at the rate that is set."""
SLICE_ROWS: Final = 500_000
"""Rows of a slice where no rate is set."""
KEYS_HOURS: Final = 24.0
"""How long the gateway remembers keys unless set otherwise (``ledger.key_retention``), in hours."""
MARGIN: Final = 0.95
"""Of that time, the part that is relied upon."""
PLACES: Final = 20
"""Most places that a dry run names."""
MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows that were spooled from ``since`` until before ``until``."""

    since: datetime
    until: datetime
    rows: int


class Replay:
    """The job."""

    name = "replay"
    help = (
        "Publish messages of the archive once more.\n\nA filter in SQL chooses them, over the columns of the message "
        "log. Each is published as it was, with all of its properties, as a message of its own. A run with an id that "
        "was interrupted goes on where it was and publishes nothing twice."
    )
    options = (
        Option("where", "Which: an SQL expression over the columns of the message log.", required=True, metavar="SQL"),
        Option(
            "to",
            "Where to: BROKER, each to the exchange that it had been published to; or EXCHANGE@BROKER. amq.default "
            "names the default exchange.",
            required=True,
            metavar="[EXCHANGE@]BROKER",
        ),
        Option("routing_key", "Routing key for all of them; unless given, each with its own.", metavar="KEY"),
        Option("queues", "Each to the queue of the name that it was taken from, past all exchanges.", "flag"),
        Option("since", "Only what was spooled from then on.", "time"),
        Option("until", "Only what was spooled before.", "time"),
        Option(
            "once",
            "Of a message that the log has several times, since its broker gave it out again, only the first.",
            "flag",
            default=False,
        ),
        *OPTIONS,
        Option(
            "keys_hours",
            "How long the gateway remembers keys (ledger.key_retention), in hours.",
            "number",
            default=KEYS_HOURS,
            least=0,
            identity=False,
        ),
        Option("go_on", "Go on although the gateway may have forgotten keys.", "flag", default=False, identity=False),
    )

    def run(self, context: Context) -> Outcome:
        """See the module.

        Raises:
            BadFilter: before anything is read.
            ConfigurationError: a wrong target, or the run stopped longer ago than keys are remembered.
        SourceGone: rows went from the archive while it ran.
        """
        options = context.options
        check_id(context.run_id)
        target = Target.parse(options["to"], options["routing_key"], bool(options["queues"]))
        where = checked_filter(context.spark, options["where"], ddl(MESSAGES))
        target.check(context)
        table = archive_of(context.spark, context.pipeline, MESSAGES)
        state = _State.of(context, table)
        state.check_keys(context)
        chosen = Chosen(table, where, state.position, options["since"], options["until"], once=options["once"])
        context.say("counting")
        minutes = chosen.minutes()
        if context.dry_run:
            return self._tell(context, target, chosen, minutes)
        return self._publish(context, target, chosen, minutes, state)

    def _tell(
        self, context: Context, target: Target, chosen: Chosen, minutes: Sequence[tuple[datetime, int]]
    ) -> Outcome:
        rows = sum(count for _, count in minutes)
        rate = float(context.options["rate"])
        numbers = [Number("messages", rows), Number("to", str(target))]
        if minutes:
            numbers.append(
                Number("spooled", f"{minutes[0][0]:%Y-%m-%d %H:%M} to {minutes[-1][0] + MINUTE:%Y-%m-%d %H:%M}")
            )
        if rate and rows:
            numbers.append(Number("takes", str(timedelta(seconds=round(rows / rate))), f"at {rate:g} a second"))
        found: list[Section] = [Numbers("What would be published", numbers)]
        places = chosen.places() if rows else []
        found.append(Table("By exchange and routing key", ("exchange", "routing key", "queue", "messages"), places))
        plan = chosen.plan()
        return Outcome(rows, {"messages": rows, "slices": len(list(sliced(minutes, rate))), "plan": plan}, found)

    def _publish(
        self, context: Context, target: Target, chosen: Chosen, minutes: Sequence[tuple[datetime, int]], state: _State
    ) -> Outcome:
        rate = float(context.options["rate"])
        total = sum(count for _, count in minutes)
        parts: list[Counts] = []
        left = [each for each in minutes if state.upto is None or each[0] >= state.upto]
        context.progress(state.counts.rows, total)
        for number, each in enumerate(sliced(left, rate)):
            state.keep(context)
            frame = outgoing(chosen.frame(each), target, f"{self.name}:{context.run_id}")
            counts = publish(context, frame, target.broker, f"slice-{number}")
            if counts.rows != each.rows:
                raise SourceGone(
                    f"{each.rows:,} messages of {each.since:%Y-%m-%d %H:%M} were to be published, and {counts.rows:,} "
                    "were there: rows went from the archive meanwhile"
                )
            parts.append(counts)
            state.counts.add(counts)
            state.upto = each.until
            context.progress(state.counts.rows, total, published=state.counts.published, refused=state.counts.refused)
        measured = rate_of(parts)
        counts = state.counts
        detail = {**clear(counts), "to": str(target), "rate": rate}
        if measured is not None:
            detail["measured_rate"] = round(measured, 3)
            if rate:
                detail["rate_error"] = round(measured / rate - 1, 4)
        return Outcome(
            counts.rows,
            detail,
            sections(counts, rate, measured, f"Replayed to {target}"),
            PARTLY_DONE if counts.refused else DONE,
        )


@dataclass(slots=True)
class _State:
    """What another attempt has to know."""

    position: dict[str, int]
    """Shard -> last row of the archive that belongs to this run."""
    counts: Counts
    upto: datetime | None = None
    """What was spooled before is done with."""
    at: datetime | None = None
    """When the slice was begun that follows; None: none was."""

    @classmethod
    def of(cls, context: Context, table: ArchiveTable) -> _State:
        kept: Mapping[str, Any] = context.kept
        if "position" not in kept:
            return cls(table.position(), Counts())
        return cls(
            dict(kept["position"]),
            msgspec.convert(kept["counts"], Counts),
            datetime.fromisoformat(kept["upto"]) if kept["upto"] else None,
            datetime.fromisoformat(kept["at"]),
        )

    def check_keys(self, context: Context, now: datetime | None = None) -> None:
        """Raise ConfigurationError where keys of the slice that was begun may be forgotten."""
        hours = float(context.options["keys_hours"])
        if self.at is None or context.options["go_on"]:
            return
        ago = (now or clock.utc()) - self.at
        if ago > timedelta(hours=hours * MARGIN):
            raise ConfigurationError(
                f"the run {context.run_id} stopped {ago.total_seconds() / 3600:.1f} hours ago in the middle, and the "
                f"gateway remembers keys for {hours:g}: some messages would be published twice. See what is there; "
                "then --go-on, or another --id and --since"
            )

    def keep(self, context: Context) -> None:
        """Write it down, before a slice begins."""
        self.at = clock.utc()
        context.keep(
            position=self.position,
            counts=clear(self.counts),
            upto=self.upto.isoformat() if self.upto else "",
            at=self.at.isoformat(),
        )


class Chosen:
    """The rows of the archive that are to be published."""

    def __init__(
        self,
        table: ArchiveTable,
        where: str,
        position: Mapping[str, int],
        since: datetime | None = None,
        until: datetime | None = None,
        *,
        once: bool = False,
    ) -> None:
        self._table = table
        self._where = where
        self._position = position
        self._since = since
        self._until = until
        self._once = once
        self._known: DataFrame | None = None

    def frame(self, part: Slice | None = None) -> DataFrame:
        """All of them, or those of a slice."""
        rows = self._rows(part)
        return (
            rows.join(self._again(), ["shard", "sequence"], "left_anti").select(*rows.columns) if self._once else rows
        )

    def _again(self) -> DataFrame:
        """The numbers of those that came again: marked as redelivered, and the same as one that was spooled before from
        the same queue."""
        if self._known is None:
            rows = self._rows(None).selectExpr(
                "shard", "sequence", "redelivered", "tap", "queue", "sha256",
                "coalesce(nullif(origin_id, ''), message_id) AS copy_of",
                "struct(accepted_at, shard, sequence) AS place",
            )  # fmt: skip
            same = ["tap", "queue", "sha256", "copy_of"]
            marked = rows.where("redelivered")
            first = rows.join(marked.select(*same).distinct(), same, "left_semi").groupBy(*same).agg({"place": "min"})
            again = marked.join(first.withColumnRenamed("min(place)", "first"), same).where("place > first")
            self._known = again.select("shard", "sequence").localCheckpoint()
        return self._known

    def _rows(self, part: Slice | None) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        since, until = (self._since, self._until) if part is None else (part.since, part.until)
        days = (since.date() if since else None, until.date() if until else None)
        rows = self._table.read((), *days).where(_within(self._position)).where(F.expr(self._where))
        for limit, least in ((self._since, True), (self._until, False), (since, True), (until, False)):
            if limit is not None:
                at = F.lit(limit)
                rows = rows.where(F.col("accepted_at") >= at if least else F.col("accepted_at") < at)
        return rows

    def minutes(self) -> list[tuple[datetime, int]]:
        """How many were spooled in each minute that has any, in order."""
        from pyspark.sql import functions as F  # noqa: N812

        found = (
            self.frame()
            .groupBy(F.unix_seconds(F.date_trunc("minute", "accepted_at")).alias("minute"))
            .agg(F.count(F.lit(1)).alias("rows"))
            .orderBy("minute")
            .collect()
        )
        return [(datetime.fromtimestamp(row.minute, UTC), row.rows) for row in found]

    def places(self) -> list[tuple[str, str, str, int]]:
        """Where most of them were."""
        from pyspark.sql import functions as F  # noqa: N812

        names = ("exchange", "routing_key", "queue")
        found = self.frame().groupBy(*names).agg(F.count(F.lit(1)).alias("rows"))
        rows = found.orderBy(F.desc("rows"), *names).limit(PLACES).collect()
        return [(row.exchange or "amq.default", row.routing_key, row.queue, row.rows) for row in rows]

    def plan(self) -> str:
        """How Spark would read them."""
        plan: str = self.frame()._jdf.queryExecution().simpleString()
        return plan[:4_000]


def _within(position: Mapping[str, int]) -> Any:
    """Whether a row belongs to the archive as it was when the run began."""
    from pyspark.sql import functions as F  # noqa: N812

    found = F.lit(False)
    for shard, upto in sorted(position.items()):
        found = found | ((F.col("shard") == int(shard)) & (F.col("sequence") <= upto))
    return found


def sliced(minutes: Sequence[tuple[datetime, int]], rate: float) -> Iterator[Slice]:
    """Minutes, put together until a slice would be too large; a minute is not divided."""
    most = max(1, int(rate * SLICE_SECONDS)) if rate else SLICE_ROWS
    begun: Slice | None = None
    for start, count in minutes:
        if begun is not None and begun.rows + count <= most:
            begun = Slice(begun.since, start + MINUTE, begun.rows + count)
            continue
        if begun is not None:
            yield begun
        begun = Slice(start, start + MINUTE, count)
    if begun is not None:
        yield begun
