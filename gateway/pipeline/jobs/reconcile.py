"""Every message accounted for, or named.

The event log is read once, as moves into accounts and out of them (:mod:`gateway.pipeline.jobs.moves`), and each
account's sides are compared by digests per hour. What balances is done with. What does not is looked at message by
message (:mod:`gateway.pipeline.jobs.breaks`), and what should lie in queues is compared with what the gateway's API
says of them, which was asked before: so what is published or taken meanwhile is no break.

``docs/explanation/reconcile.md`` lists the limits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import ConfigurationError, GatewayError
from gateway.exits import DIFFERENT, DONE
from gateway.pipeline.jobs import breaks
from gateway.pipeline.jobs.base import Context, Option, Outcome
from gateway.pipeline.jobs.breaks import CHANGED, DUPLICATE, KINDS, SCHEMA, UNOPENED
from gateway.pipeline.jobs.estate import Estate, HeldPublishes, ask_estate
from gateway.pipeline.jobs.lives import FINAL
from gateway.pipeline.jobs.moves import (
    COLUMNS,
    DIFFERS,
    NO_HOUR,
    PUBLISH,
    QUEUE,
    cells,
    digests,
    exprs,
    kept,
    listed,
    plain,
    read,
    single,
    within,
)  # fmt: skip
from gateway.pipeline.reports import Bars, Number, Numbers, Section, Table
from gateway.pipeline.schema import EVENTS, MESSAGES
from gateway.runtime.clock import clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GRACE: Final = 600.0
LATE_HOURS: Final = 24.0
LISTED: Final = 1_000
SHOWN: Final = 200
MESSAGE_COLUMNS: Final = ("message_id", "tap", "queue", "broker", "accepted_at", "sha256")
PEEK_MAX: Final = 10_000
OVERDUE_MAX: Final = 1_000
"""Most messages of which the gateway is asked whether it still holds them for later."""


@dataclass(frozen=True, slots=True)
class Account:
    """An account, over all hours."""

    name: str
    moved_in: int
    moved_out: int
    cells: int
    differing: int
    """Hours whose sides differ."""
    lies: int = 0
    """Messages that should lie there."""
    held: int | None = None
    """Messages that lie there, or that the gateway has in hand; None: nobody can tell."""
    carries: bool = True
    """Whether messages keep their ids there: otherwise an incoming message cannot be recognized when it leaves."""

    @property
    def missing(self) -> int:
        """Messages that should lie there and do not."""
        return max(0, self.lies - self.held) if self.held is not None and self.carries else 0

    @property
    def not_judged(self) -> bool:
        """Messages should lie there, and nobody can tell whether they do."""
        return self.lies > 0 and (self.held is None or not self.carries)


@dataclass(frozen=True, slots=True)
class Found:
    """What reconciling found."""

    events: int
    """Events that move something."""
    accounts: Sequence[Account]
    breaks: DataFrame
    counts: Mapping[tuple[str, bool], int] = field(default_factory=dict)
    """Kind of break, and whether it is marked -> how many."""
    wrong: frozenset[str] = frozenset()
    """The accounts and holders that have breaks which are not marked."""
    not_asked: int = 0
    """Messages that are overdue, and of which nobody asked whether the ledger still holds them."""

    @property
    def unmarked(self) -> int:
        """Breaks that nobody said of the message itself."""
        return sum(count for (_, marked), count in self.counts.items() if not marked)


class Reconcile:
    """The job."""

    name = "reconcile"
    help = (
        "Name every message that is lost, doubled, late or changed, and every one whose events are missing. What the "
        "log tells is compared with itself, with what lies in the queues, and with what taps have spooled. Exit status "
        "7 where there are breaks; marked duplicates are listed, and count as breaks only with --strict."
    )
    options = (
        Option("since", "messages that came at this time or later; by default all that the log has", "time"),
        Option("until", "messages that came before this time", "time"),
        Option("source", "Parquet folder with events, in place of the log", metavar="FOLDER"),
        Option("messages", "compare bodies with what taps have spooled: 'log', or a Parquet folder",
               metavar="log|FOLDER"),
        Option("estate", "JSON file that says who consumes which queue and what lies there, in place of the gateway",
               "file", metavar="FILE"),
        Option("bind", "queue that gets what is published to an exchange: BROKER/EXCHANGE[/ROUTING_KEY]=BROKER/QUEUE",
               many=True, metavar="ROUTE=QUEUE"),
        Option("grace", "seconds within which nothing is expected of a message yet", "number", GRACE, least=0),
        Option("late_hours", "hours after which a message is late", "number", LATE_HOURS, least=0),
        Option("peek", "look into the queues at the targets of bridges, too, for bodies that were changed there",
               "flag", False),
        Option("strict", "marked duplicates are breaks, too", "flag", False),
    )  # fmt: skip

    def run(self, context: Context) -> Outcome:
        """See :class:`gateway.pipeline.jobs.base.Job`."""
        options = context.options
        routes = dict(_route(text) for text in options.get("bind") or ())
        context.say("asking what lies in the queues")
        asked_at = clock.now()  # what comes later may not have been counted
        estate = (
            read_estate(options["estate"], routes) if options.get("estate") else ask_estate(context.service, routes)
        )
        events = _events(context)
        context.say("comparing")
        owed = None if options.get("estate") else HeldPublishes(context.service).owes
        with kept(events, of_log=not options.get("source")) as whole:
            found = reconcile(
                whole, estate, now=asked_at, grace=float(options["grace"]), late_hours=float(options["late_hours"]),
                messages=_messages(context), owed=owed,
            )  # fmt: skip
        peeked = peek(context, estate) if options.get("peek") else []
        first = found.breaks.orderBy("kind", "route", "at", "message_id").limit(LISTED).collect()
        if not context.dry_run:
            found.breaks.repartition(1).write.mode("overwrite").parquet(
                context.pipeline.place("reconcile", context.run_id)
            )
        total = found.unmarked + len(peeked)
        if options.get("strict"):
            total += sum(count for (_, marked), count in found.counts.items() if marked)
        rows = [*map(_row, first), *peeked]
        return Outcome(
            rows=found.events,
            detail=_detail(found, peeked, rows),
            reports=_sections(found, estate, rows, peeked),
            exit=DIFFERENT if total else DONE,
        )


# -------------------------------------------------------------------------------------------------------- comparing


def reconcile(
    events: DataFrame,
    estate: Estate,
    *,
    now: float,
    grace: float = GRACE,
    late_hours: float = LATE_HOURS,
    messages: DataFrame | None = None,
    owed: Callable[[str], bool] | None = None,
) -> Found:
    """Compare.

    Args:
        now: seconds since 1970.
        grace: moves of the last seconds of this number are not expected to be complete.
        late_hours: what took longer is late.
        messages: the log of messages, to compare bodies with.
        owed: whether the gateway still holds a message that was to be published later, or is done with it by now; None:
            nobody can tell, and none of them is a break.
    """
    late_us = int(late_hours * 3_600_000_000)
    old_before = int((now - grace) * 1_000_000)
    from pyspark.sql import DataFrame

    rows = plain(events, estate)
    groups = read(digests(events, estate, late_us), estate).localCheckpoint()
    balance = cells(groups, estate)
    totals = {row.account: row for row in balance.groupBy("account").agg(*_sums()).collect()}
    parts: list[DataFrame] = []
    lies: dict[str, int] = {}
    known: set[str] = {name for name, row in totals.items() if row.equal}
    not_asked = 0
    moves = _moves(rows, groups, balance, totals, estate)
    if moves is not None:
        tallied = breaks.tallies(moves, old_before)
        tallied = tallied.join(breaks.replayed(events), "message_id", "left").localCheckpoint()
        judged = breaks.judged(tallied).localCheckpoint()
        if not judged.where(f"kind = '{UNOPENED}'").isEmpty():
            judged = breaks.unopened(judged, events)
        parts.append(judged)
        if owed is not None and not tallied.where("planned").isEmpty():
            gone, not_asked = _overdue(breaks.overdue(tallied, events, old_before), owed)
            parts.append(gone)
        for row in tallied.groupBy("account").agg(*exprs(*breaks.STANDING)).collect():
            lies[row.account] = int(row.lies or 0)
            known |= {row.account} if row.known else set()
    # Whether messages keep their ids is a matter of the broker: of one where they do in some queue they do in all.
    keeps = {_broker(name) for name in known if name.startswith(QUEUE)}
    known |= {name for name in totals if name.startswith(QUEUE) and _broker(name) in keeps}
    accounts = [_account(row, lies, known, estate) for _, row in sorted(totals.items())]
    if missing := {account.name: account.missing for account in accounts if account.missing}:
        parts.append(breaks.missing(tallied, missing, lies, estate))
    if any(row.late for row in totals.values()):
        mirrored = f"coalesce(holder IN ({listed(estate.mirrors)}), false)" if estate.mirrors else "false"
        ends = groups.where(f"late > 0 AND kind IN ({listed(FINAL)}) AND NOT {mirrored}")
        parts.append(breaks.late(events, rows, ends, late_us))
    if messages is not None:
        parts.append(breaks.changed(events, messages))
    broken = reduce(DataFrame.unionByName, parts) if parts else None
    return replace(_found(events, accounts, broken, estate), not_asked=not_asked)


def _moves(
    rows: DataFrame, groups: DataFrame, balance: DataFrame, totals: Mapping[str, Any], estate: Estate
) -> DataFrame | None:
    """The moves that are to be looked at message by message; None: there are none."""
    differing = {name for name, row in totals.items() if row.differing}
    alone = {name for name in differing if not totals[name].moved_in and not name.startswith(PUBLISH)}
    picked = []
    for names, in_one in ((differing - alone, False), (alone, True)):
        if not names:
            continue
        hours = balance.where(f"({DIFFERS}) AND account IN ({listed(names)})").select("account", "hour")
        hours = hours.localCheckpoint()
        moves = single(rows, within(groups, hours, estate), estate)
        moves = moves.join(hours.hint("broadcast"), ["account", "hour"], "left_semi")
        if in_one:
            twice = breaks.again(moves).localCheckpoint()
            if twice.isEmpty():
                continue
            moves = moves.join(twice, ["account", "hash"], "left_semi").select(*moves.columns)
        picked.append(moves)
    return reduce(lambda one, other: one.unionByName(other), picked) if picked else None


def _overdue(broken: DataFrame, owed: Callable[[str], bool]) -> tuple[DataFrame, int]:
    """Those of the messages that are overdue which nobody holds; and how many were not asked for."""
    rows = broken.localCheckpoint()
    first = [row.message_id for row in rows.orderBy("at", "message_id").limit(OVERDUE_MAX).collect()]
    lost = [message_id for message_id in first if not owed(message_id)]
    not_asked = rows.count() - len(first) if len(first) == OVERDUE_MAX else 0
    return rows.where(rows.message_id.isin(lost)), not_asked


def _found(events: DataFrame, accounts: Sequence[Account], broken: DataFrame | None, estate: Estate) -> Found:
    moved = sum(account.moved_in + account.moved_out for account in accounts)
    if broken is None:
        return Found(moved, accounts, events.sparkSession.createDataFrame([], SCHEMA))
    broken = broken.localCheckpoint()
    kinds = {row.kind for row in broken.select("kind").distinct().collect()}
    if DUPLICATE in kinds:
        broken = breaks.marked(broken, events, estate).localCheckpoint()
    else:
        broken = broken.selectExpr("kind", "route", "hour", "message_id", "why", "false AS marked", "at")
    broken = broken.withColumn("hour", *exprs(f"nullif(hour, {NO_HOUR}L)"))
    counts: dict[tuple[str, bool], int] = {}
    wrong: set[str] = set()
    if kinds:
        for row in broken.groupBy("kind", "marked", "route").agg(*exprs("count(*) AS n")).collect():
            counts[row.kind, row.marked] = counts.get((row.kind, row.marked), 0) + int(row.n)
            wrong |= set() if row.marked else {row.route}
    return Found(moved, accounts, broken, counts, frozenset(wrong))


def _sums() -> list[Any]:
    return exprs(
        "sum(in_n) AS moved_in", "sum(out_n) AS moved_out", "count(*) AS cells", f"count_if({DIFFERS}) AS differing",
        f"count_if(NOT ({DIFFERS}) AND in_n > 0) > 0 AS equal", "sum(late) AS late",
    )  # fmt: skip


def _broker(account: str) -> str:
    """The broker of a queue's account."""
    return account.removeprefix(QUEUE).partition("/")[0]


def _account(row: Any, lies: Mapping[str, int], known: set[str], estate: Estate) -> Account:
    name = row.account
    queue = name.removeprefix(QUEUE) if name.startswith(QUEUE) else ""
    return Account(
        name, int(row.moved_in), int(row.moved_out), int(row.cells), int(row.differing),
        lies=lies.get(name, 0), held=estate.held.get(queue) if queue else None,
        carries=name in known or not (row.moved_in and row.moved_out),
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------- what is given


def _events(context: Context) -> DataFrame:
    options = context.options
    if folder := options.get("source"):
        events = context.spark.read.parquet(folder).select(*COLUMNS)
    else:
        from gateway.pipeline import source

        head = context.service.ask("GET", "/v1/log/head", query={"log": EVENTS})["position"]
        events = source.read(context.spark, context.pipeline, EVENTS, COLUMNS, end=head)
    for name, sign in (("since", ">="), ("until", "<")):
        if (moment := options.get(name)) is not None:
            events = events.where(f"accepted_at {sign} timestamp_micros({int(moment.timestamp() * 1_000_000)})")
    return events


def _messages(context: Context) -> DataFrame | None:
    where = context.options.get("messages")
    if not where:
        return None
    if where == "log":
        from gateway.pipeline import source

        return source.read(context.spark, context.pipeline, MESSAGES, MESSAGE_COLUMNS)
    return context.spark.read.parquet(where).select(*MESSAGE_COLUMNS)


def _route(text: str) -> tuple[str, str]:
    """``BROKER/EXCHANGE[/ROUTING_KEY]=BROKER/QUEUE``."""
    route, sign, queue = text.rpartition("=")
    if not sign or "/" not in route or "/" not in queue:
        raise ConfigurationError(f"bind is {text!r}, not BROKER/EXCHANGE[/ROUTING_KEY]=BROKER/QUEUE")
    return route, queue


def read_estate(path: str, routes: Mapping[str, str]) -> Estate:
    """An estate from a file: an object with ``queues``, ``held`` and, where there are any, ``mirrors``, ``nameless``,
    ``same`` and ``routes``.

    Raises:
        ConfigurationError: it is malformed.
    """
    try:
        found = json.loads(Path(path).read_bytes())
        return Estate(
            queues={str(name): str(queue) for name, queue in found["queues"].items()},
            held={str(queue): int(count) for queue, count in found.get("held", {}).items()},
            mirrors=frozenset(found.get("mirrors", ())),
            nameless=frozenset(found.get("nameless", ())),
            same={str(name): str(queue) for name, queue in found.get("same", {}).items()},
            routes={**found.get("routes", {}), **routes},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"estate {path}: {error!r}") from None


def peek(context: Context, estate: Estate) -> list[list[Any]]:
    """Breaks that only the queues at the targets of bridges show: messages there whose body is another one. At most 100
    of each bridge; one whose target is no single queue is passed over, with a word."""
    rows: list[list[Any]] = []
    for holder in sorted(estate.queues):
        kind, _, name = holder.partition(":")
        if kind != "bridge":
            continue
        context.say(f"looking at the target of bridge {name}")
        try:
            report = context.service.ask("POST", f"/v1/bridges/{name}:compare", body={"peek": True, "limit": PEEK_MAX})
        except GatewayError as error:
            context.say(f"bridge {name} cannot be looked at: {error}")
            continue
        for each in report["queues"]["differences"]:
            if each["source"] is not None and each["target"] is not None:
                there, taken = each["target"][:12], each["source"][:12]
                why = f"its body at the target has the digest {there}…, and was taken with {taken}…"
                rows.append([CHANGED, holder, None, each["id"], why, False])
    return rows


# -------------------------------------------------------------------------------------------------------- the report


def _row(row: Any) -> list[Any]:
    hour = time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(row.hour * 3600)) if row.hour is not None else None
    return [row.kind, row.route, hour, row.message_id, row.why, row.marked]


def _detail(found: Found, peeked: Sequence[Any], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    counts = {kind: sum(count for (name, _), count in found.counts.items() if name == kind) for kind in KINDS}
    counts[CHANGED] += len(peeked)
    return {
        "moves": found.events,
        "accounts": len(found.accounts),
        "breaks": counts,
        "marked": sum(count for (_, marked), count in found.counts.items() if marked),
        "not_judged": [account.name for account in found.accounts if account.not_judged][:100],
        "not_asked": found.not_asked,
        "first": [{"kind": row[0], "route": row[1], "id": row[3], "why": row[4]} for row in rows[:100]],
    }


def _sections(found: Found, estate: Estate, rows: Sequence[Sequence[Any]], peeked: Sequence[Any]) -> list[Section]:
    detail = _detail(found, peeked, rows)
    accounts = [
        [account.name, account.moved_in, account.moved_out, account.differing, account.lies, account.held,
         account.missing or None]
        for account in found.accounts
    ]  # fmt: skip
    bridges = [
        [holder, QUEUE + queue, account.moved_in, account.moved_out,
         not account.lies and account.name not in found.wrong]
        for holder, queue in sorted(estate.queues.items()) if holder.startswith("bridge:")
        for account in found.accounts if account.name == QUEUE + queue
    ]  # fmt: skip
    total = sum(detail["breaks"].values())
    return [
        Numbers("Reconciled", [
            Number("moves", detail["moves"], "events that begin or end something"),
            Number("accounts", detail["accounts"]),
            *(Number(kind, detail["breaks"][kind], why, bad=detail["breaks"][kind] > 0) for kind, why in KINDS.items()),
        ]),
        Table("Breaks", ["what", "where", "hour", "message", "why", "marked"], rows[:SHOWN], bad=True,
              note=f"the first {min(SHOWN, len(rows))} of {total}" if total > SHOWN else ""),
        Table("Accounts", ["account", "in", "out", "hours that differ", "should lie there", "is there", "missing"],
              accounts[:SHOWN]),
        Table("Bridges", ["bridge", "source", "published to it", "taken from it", "equal"], bridges[:SHOWN]),
        Bars("Breaks by kind", [(kind, count) for kind, count in detail["breaks"].items() if count]),
    ]  # fmt: skip
