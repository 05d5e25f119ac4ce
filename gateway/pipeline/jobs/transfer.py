"""Move queues from one broker to another, and delete from the source only when both sides agree.

::

    what is there    depth of each source queue, of each target queue          nothing changed yet
    hold             a cursor on the message log, so that what comes now stays
    tap              a tap a queue, until it has taken what the queue held: into the log, then acknowledged
    publish          what the taps took, through a transform if there is one, under a key each
    count            log against depth, confirmed against log, target queue against confirmed
    let go           the cursor and the taps, once all of these agree

The log holds every message from its acknowledgement to its broker until the end. A run that
stops anywhere goes on there under its id; it reports obstacles, and deletes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from gateway.errors import BadFilter, Breaks, ConfigurationError, NoSuchResource, PipelineFault
from gateway.pipeline.expressions import checked_transform, transformed
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
from gateway.pipeline.schema import COLUMNS, MESSAGES, ddl
from gateway.pipeline.source.messages import Counts
from gateway.runtime.clock import block, monotonic_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUEUES_MAX: Final = 1_000
"""Most queues of one transfer."""
SLICE_ROWS: Final = 200_000
"""Most sequence numbers of the log that are published before the run's record says how far it is."""
ASKED_MAX: Final = 50
"""Most taps that the service is asked for by name; of more, the rows of other taps are left out here."""
POLL: Final = 0.5
"""How often taps are looked at, in seconds."""
NEEDED: Final = ("shard", "sequence", "queue", "exchange", "routing_key", "properties", "body")
"""Columns that a transform must leave there, with their types."""
ENDED: Final = "stopped"
"""State of a tap that has taken what its queue held."""


@dataclass(frozen=True, slots=True)
class Source:
    """A queue that is moved."""

    broker: str
    queue: str

    @classmethod
    def parse(cls, text: str) -> Source:
        """``QUEUE@BROKER``. Raises ConfigurationError."""
        queue, at, broker = text.strip().rpartition("@")
        if not at or not queue or not broker:
            raise ConfigurationError(f"{text!r} is not QUEUE@BROKER")
        return cls(broker, queue)

    @property
    def path(self) -> str:
        """Where the API has it."""
        return f"/v1/brokers/{quote(self.broker, safe='')}/queues/{quote(self.queue, safe='')}"

    def __str__(self) -> str:
        return f"{self.queue}@{self.broker}"


class Transfer:
    """The job."""

    name = "transfer"
    help = (
        "Move queues from one broker to another, and count both sides.\n\nEach queue's messages are taken into the "
        "message log, published at the target with all of their properties, and counted. The log deletes them only "
        "when the counts agree. A run that stopped goes on under its id."
    )
    options = (
        Option("from", "A queue; may be repeated.", many=True, metavar="QUEUE@BROKER"),
        Option("queues_file", "A file with a queue on each line.", "file"),
        Option(
            "to",
            "Where to: BROKER, each to the queue of its name; or EXCHANGE@BROKER.",
            required=True,
            metavar="[EXCHANGE@]BROKER",
        ),
        Option("routing_key", "Routing key for all of them, with EXCHANGE@BROKER.", metavar="KEY"),
        Option("transform", "A file with a query over the table messages: what is published in their place.", "file"),
        Option("leave_out", "The transform may leave messages out; they go with the source.", "flag", default=False),
        *OPTIONS,
        Option("release", "Delete from the source although counts differ.", "flag", default=False, identity=False),
    )

    def __init__(
        self,
        sleep: Callable[[float], None] = block,
        clock: Callable[[], float] = monotonic_time,
    ) -> None:
        self._sleep = sleep
        self._clock = clock

    def run(self, context: Context) -> Outcome:
        """See the module.

        Raises:
            BadFilter: the transform, before anything is touched; or it doubles messages or leaves some out.
            Breaks: the counts do not agree. Nothing was deleted.
        """
        options = context.options
        check_id(context.run_id)
        sources = sources_of(options["from"], options["queues_file"])
        target = Target.parse(options["to"], options["routing_key"], "@" not in options["to"])
        for source in sources:
            if target.queues and source.broker == target.broker:
                raise ConfigurationError(f"{source} would be moved to itself")
        transform = _transform(context, options["transform"])
        target.check(context)
        if context.dry_run:
            return self._tell(context, sources, target)
        if context.kept.get("released"):  # it was stopped while it let go
            _let_go(context)
            return _outcome(context, target, msgspec.convert(context.kept["counts"], Counts), (), ())
        if "taps" not in context.kept:
            _begin(context, sources, target)
        self._tap(context)
        counts, parts = self._publish(context, target, transform)
        checks = list(_checks(context, target, counts))
        wrong = [check.why for check in checks if check.why]
        if wrong and not options["release"]:
            raise Breaks(
                f"nothing was deleted from the source: {'; '.join(wrong)}. What is there stays in the message log"
            )
        context.keep(released=True, counts=clear(counts))
        _let_go(context)
        return _outcome(context, target, counts, parts, checks)

    def _tell(self, context: Context, sources: Sequence[Source], target: Target) -> Outcome:
        rows = []
        for source in sources:
            found = context.service.ask("GET", source.path)
            rows.append((source.queue, source.broker, found["messages"], found["consumers"]))
        total = sum(row[2] for row in rows)
        numbers = Numbers("What would be moved", [Number("messages", total), Number("to", str(target))])
        table = Table("Queues", ("queue", "broker", "messages", "consumers"), rows)
        return Outcome(total, {"messages": total, "queues": len(rows)}, [numbers, table])

    # ------------------------------------------------------------------------------------------------- tap

    def _tap(self, context: Context) -> None:
        """Have every tap take what its queue held; then nothing more comes."""
        if "end" in context.kept:
            return
        taps: Mapping[str, Mapping[str, str]] = context.kept["taps"]
        for name, place in taps.items():
            if _tap_of(context, name) is None:
                body = {**place, "until": "depth"}
                context.service.ask("PUT", _tap_path(name), body=body)
        retry = context.pipeline.settings.unavailable_timeout
        since, seen = self._clock(), -1
        while True:
            found = [_tap_of(context, name) for name in taps]
            states = [tap["state"] if tap is not None else "gone" for tap in found]
            spooled = sum(tap["spooled"] for tap in found if tap is not None)
            context.progress(spooled, sum(context.kept["depths"].values()), tapping=states.count("running"))
            if all(state == ENDED for state in states):
                break
            if spooled != seen:
                since, seen = self._clock(), spooled
            elif self._clock() - since > retry:
                raise PipelineFault(f"nothing was taken for {retry:g} s: {_stuck(taps, found)}")
            self._sleep(POLL)
        context.keep(end=_head(context)["position"])

    # --------------------------------------------------------------------------------------------- publish

    def _publish(self, context: Context, target: Target, transform: str) -> tuple[Counts, list[Counts]]:
        """Publish what the taps took; the counts in all, and of what this attempt has published."""
        counts = msgspec.convert(context.kept.get("counts", {}), Counts)
        refused = Counts()
        done = dict(context.kept.get("done", {}))
        parts: list[Counts] = []
        total = sum(context.kept["depths"].values())
        for number, (shard, after, upto) in enumerate(_ranges(context.kept["start"], context.kept["end"])):
            if done.get(shard, -1) >= upto:
                continue
            frame = _rows(context, {shard: after}, {shard: upto})
            if transform:
                frame = _apply(context, frame, transform)
            ready = outgoing(frame, target, f"{self.name}:{context.run_id}")
            found = publish(context, ready, target.broker, f"transfer-{number}", again=True)
            parts.append(found)
            if found.refused:  # another attempt tries this part once more
                refused.add(found)
            else:
                counts.add(found)
                done[shard] = upto
                context.keep(done=done, counts=clear(counts))
            context.progress(counts.rows + refused.rows, total, published=counts.published, refused=refused.refused)
        counts.add(refused)
        return counts, parts


def sources_of(given: Sequence[str], path: str | None) -> list[Source]:
    """The queues that are named.

    Raises:
        ConfigurationError: none is, one is twice, or there are too many.
    """
    lines = Path(path).read_text(encoding="utf-8").splitlines() if path else []
    found = [Source.parse(text) for text in (*given, *(line for line in lines if line.strip()))]
    if not found:
        raise ConfigurationError("no queue is named: --from QUEUE@BROKER, or --queues-file")
    if len(found) > QUEUES_MAX:
        raise ConfigurationError(f"{len(found):,} queues are named, and one transfer moves {QUEUES_MAX:,} at most")
    for source in found:
        if found.count(source) > 1:
            raise ConfigurationError(f"{source} is named twice")
    return found


def _transform(context: Context, path: str | None) -> str:
    """The transform, checked; empty: there is none."""
    if not path:
        return ""
    text = Path(path).read_text(encoding="utf-8")
    columns = dict(checked_transform(context.spark, text, ddl(MESSAGES)))
    for column in COLUMNS[MESSAGES]:
        if column.name in NEEDED and columns.get(column.name) != column.type:
            found = columns.get(column.name, "missing")
            raise BadFilter(f"the transform must have the column {column.name} as {column.type}, and it is {found}")
    return text


def _begin(context: Context, sources: Sequence[Source], target: Target) -> None:
    """Look what is there, hold the log, and write down what is going to be done."""
    depths: dict[str, int] = {}
    before: dict[str, int] = {}
    for source in sources:
        found = context.service.ask("GET", source.path)
        if found["consumers"]:
            raise ConfigurationError(
                f"{source} has {found['consumers']} consumers, which take messages from it: stop them first"
            )
        depths[str(source)] = found["messages"]
        if target.queues:
            before[source.queue] = context.service.ask("GET", Source(target.broker, source.queue).path)["messages"]
    start = _head(context)["position"]
    body = {"log": MESSAGES, "owner": _owner(context), "start": start}
    held = context.service.ask("POST", f"{_cursor_path(context)}:claim", body=body)["position"]
    taps = {
        f"{_owner(context)}.{number}": {"broker": source.broker, "queue": source.queue}
        for number, source in enumerate(sources)
    }
    context.keep(taps=taps, start=held, depths=depths, before=before)


def _rows(context: Context, start: Mapping[str, int], end: Mapping[str, int], columns: Sequence[str] = ()) -> DataFrame:
    """What the taps of this run took, between two positions. A shard that ``end`` does not name is not read."""
    from pyspark.sql import functions as F  # noqa: N812

    from gateway.pipeline.source import read

    others = {shard: number for shard, number in _head(context)["position"].items() if shard not in end}
    begin = {shard: start.get(shard, 0) for shard in end}
    taps = list(context.kept["taps"])
    asked = ",".join(taps) if len(taps) <= ASKED_MAX else ""
    frame = read(context.spark, context.pipeline, MESSAGES, columns, {**others, **begin}, {**others, **end}, tap=asked)
    return frame.where(F.col("tap").isin(taps))


def _apply(context: Context, frame: DataFrame, transform: str) -> DataFrame:
    """What the transform makes of a part; none of it twice, and none missing unless that is wanted.

    Raises:
        BadFilter: it is otherwise.
    """
    from pyspark.sql import functions as F  # noqa: N812

    made = transformed(context.spark, transform, frame)
    both = made.select("shard", "sequence").groupBy("shard", "sequence").agg(F.count(F.lit(1)).alias("times"))
    found = both.agg(F.count(F.lit(1)).alias("messages"), F.coalesce(F.max("times"), F.lit(0)).alias("most")).collect()[
        0
    ]
    if found.most > 1:
        raise BadFilter(f"the transform makes {found.most} messages of one; each may become one at most")
    there = frame.select("shard", "sequence").count()
    if found.messages != there and not context.options["leave_out"]:
        raise BadFilter(
            f"the transform leaves out {there - found.messages:,} of {there:,} messages; --leave-out if that is meant"
        )
    return made


def _ranges(start: Mapping[str, int], end: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    """The log between two positions, in pieces."""
    for shard, last in sorted(end.items(), key=lambda each: int(each[0])):
        after = start.get(shard, 0)
        while after < last:
            upto = min(after + SLICE_ROWS, last)
            yield shard, after, upto
            after = upto


# ------------------------------------------------------------------------------------------------ count


@dataclass(frozen=True, slots=True)
class _Check:
    """A count on both sides."""

    what: str
    source: int
    target: int
    why: str = ""
    """What is wrong; empty: they agree."""


def _checks(context: Context, target: Target, counts: Counts) -> Iterator[_Check]:
    """Put both sides beside each other."""
    from pyspark.sql import functions as F  # noqa: N812

    kept = context.kept
    rows = (
        _rows(context, kept["start"], kept["end"], ("tap", "sequence")).groupBy("tap").agg(F.count(F.lit(1)).alias("n"))
    )
    logged = {row.tap: row.n for row in rows.collect()}
    for name, place in kept["taps"].items():
        source = str(Source(place["broker"], place["queue"]))
        depth, found = kept["depths"][source], logged.get(name, 0)
        tap = _tap_of(context, name) or {}
        lost = [f"{tap[what]} {what}" for what in ("dead_lettered", "oversized") if tap.get(what)]
        why = ""
        if found < depth or lost:
            why = (
                f"{source} held {depth:,} messages, and {found:,} are in the log{''.join(f', {each}' for each in lost)}"
            )
        yield _Check(f"{source}: queue, log", depth, found, why)
    total = sum(logged.values())
    there = counts.published + counts.repeated
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(counts.reasons.items()))
    left_out = total - counts.rows
    why = ""
    if counts.refused:
        why = f"{counts.refused:,} messages were refused ({reasons})"
    elif there != total and not (context.options["leave_out"] and there == total - left_out):
        why = f"{total:,} messages are in the log, and {there:,} are confirmed at {target}"
    yield _Check(f"log, confirmed at {target.broker}", total, there, why)
    if target.queues and not context.options["transform"]:
        yield from _depths(context, target, logged)


def _depths(context: Context, target: Target, logged: Mapping[str, int]) -> Iterator[_Check]:
    """Queues of the target that nobody reads hold what came."""
    kept = context.kept
    expected: dict[str, int] = {}
    for name, place in kept["taps"].items():
        expected[place["queue"]] = expected.get(place["queue"], 0) + logged.get(name, 0)
    for queue, count in expected.items():
        now = context.service.ask("GET", Source(target.broker, queue).path)
        came = now["messages"] - kept["before"][queue]
        why = ""
        if came < count and not now["consumers"]:
            why = f"{queue} at {target.broker} holds {came:,} more than before, and {count:,} were confirmed"
        yield _Check(f"confirmed, {queue} at {target.broker}", count, came, why)


# ----------------------------------------------------------------------------------------------- let go


def _let_go(context: Context) -> None:
    """Release and delete the cursor, delete the taps, as far as they exist."""
    cursor = _there(context, _cursor_path(context))
    if cursor is not None:
        body = {"owner": cursor["owner"], "epoch": cursor["epoch"]}
        context.service.ask("POST", f"{_cursor_path(context)}:release", body=body)
        context.service.ask("DELETE", _cursor_path(context))
    for name in context.kept["taps"]:
        if _there(context, _tap_path(name)) is not None:
            context.service.ask("DELETE", _tap_path(name))


def _outcome(
    context: Context, target: Target, counts: Counts, parts: Sequence[Counts], checks: Sequence[_Check]
) -> Outcome:
    rate = float(context.options["rate"])
    measured = rate_of(parts)
    rows = [(check.what, check.source, check.target, not check.why) for check in checks]
    found: list[Section] = [
        *sections(counts, rate, measured, f"Moved to {target}"),
        Table("Both sides", ("what", "source", "target", "agree"), rows),
    ]
    detail = {
        **clear(counts),
        "to": str(target),
        "queues": len(context.kept["taps"]),
        "agree": all(not check.why for check in checks),
        "checks": [msgspec.to_builtins(check) for check in checks][:100],
    }
    return Outcome(counts.rows, detail, found)


def _owner(context: Context) -> str:
    """What cursor and taps of this run are called, for any id."""
    return f"transfer-{sha256(context.run_id.encode()).hexdigest()[:16]}"


def _cursor_path(context: Context) -> str:
    return f"/v1/log/cursors/{quote(_owner(context), safe='')}"


def _tap_path(name: str) -> str:
    return f"/v1/taps/{quote(name, safe='')}"


def _tap_of(context: Context, name: str) -> Mapping[str, Any] | None:
    """A tap as it is now; None: it is not there."""
    return _there(context, _tap_path(name))


def _there(context: Context, path: str) -> Mapping[str, Any] | None:
    """What is there; None: nothing is."""
    try:
        found: Mapping[str, Any] = context.service.ask("GET", path)
    except NoSuchResource:
        return None
    return found


def _head(context: Context) -> Mapping[str, Any]:
    found: Mapping[str, Any] = context.service.ask("GET", "/v1/log/head", query={"log": MESSAGES})
    return found


def _stuck(taps: Mapping[str, Mapping[str, str]], found: Sequence[Mapping[str, Any] | None]) -> str:
    """What stands in the way of the first tap that is not done."""
    for place, tap in zip(taps.values(), found, strict=True):
        if tap is None:
            return f"the tap of {place['queue']}@{place['broker']} is gone"
        if tap["state"] != ENDED:
            return f"{place['queue']}@{place['broker']} is {tap['state']} {tap['reason'] or tap['last_error']}".rstrip()
    return "all taps are done"
