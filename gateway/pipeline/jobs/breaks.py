"""What does not balance, message by message.

Of the accounts (:mod:`gateway.pipeline.jobs.moves`) whose sides differ, the moves of each message are counted. What is
wrong with them is a table, :data:`JUDGED`; messages that should lie in a queue and, by the gateway's view of that
queue, do not, are missing from it: as many messages as are missing, the oldest first, since queues give out, drop and
expire what is at their head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.pipeline.jobs.estate import Estate
from gateway.pipeline.jobs.lives import Role, kinds
from gateway.pipeline.jobs.moves import (
    DOUBT,
    HOUR_US,
    IN,
    LEFT,
    LOW,
    OUT,
    PUBLISH,
    QUEUE,
    REF,
    account_of,
    exprs,
    listed,
    literal,
)
from gateway.pipeline.jobs.routes import HOLDER, name_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA: Final = "kind string, route string, hour bigint, message_id string, why string, marked boolean, at bigint"
"""A break: what it is, the account or route, the hour in which the message came (since 1970; NULL: the ledger has
forgotten it), its id, a sentence; that somebody said so of the message itself; and when it moved last, in microseconds
since 1970."""
LOST: Final = "lost"
DUPLICATE: Final = "duplicate"
LATE: Final = "late"
CHANGED: Final = "changed"
UNOPENED: Final = "unopened"
PARTS: Final = 1_024
"""Into so many parts each place is divided by the ids of its messages, for the digests of two sides."""
KINDS: Final[Mapping[str, str]] = {
    LOST: "It was taken, and neither ended nor is where it should be.",
    DUPLICATE: "It ended more than once in the same place.",
    LATE: "It took longer than it may.",
    CHANGED: "Its body is not the one that was taken.",
    UNOPENED: "It ended, and nothing says that it began: events of it are missing.",
}
"""The kinds of break."""


class Rule(NamedTuple):
    """When an account's moves of one message are a break."""

    kind: str
    account: str
    """The kind of account."""
    when: str
    """A condition over ``ins``, ``outs``, ``lefts``, ``doubts``, ``planned`` and ``old``."""
    why: str
    """An expression of SQL."""


JUDGED: Final = (
    Rule(LOST, PUBLISH, "ins > 0 AND outs + doubts = 0 AND NOT planned AND old",
         "'the gateway took it, and there is no outcome'"),
    Rule(UNOPENED, PUBLISH, "ins = 0",
         "concat(last_kind, ', and the ledger does not say that the gateway took it')"),
    Rule(DUPLICATE, PUBLISH, "ins > 0 AND outs > ins", "concat(outs, ' outcomes of one publish')"),
    Rule(DUPLICATE, QUEUE, "outs > greatest(ins, 1)",
         "concat('it ended ', outs, ' times, and was put there ', if(ins = 0, 'by others', concat(ins, 'x')))"),
)  # fmt: skip
"""Groups that are wrong on their own. What is missing from a queue depends on what else lies there
(:func:`missing`)."""


def again(single: DataFrame) -> DataFrame:
    """Accounts and hashes of messages that ended there more than once: of an account into which nothing moves, as where
    others publish than the gateway, only these can be a break. Hashes are quicker to count than ids; the next step
    separates two messages of one hash."""
    ends = single.where(f"side = {OUT}").groupBy("account", "hash").agg(*exprs("count(*) AS n"))
    return ends.where("n > 1").select("account", "hash")


def tallies(single: DataFrame, old_before: int) -> DataFrame:
    """The moves of each message in each account. ``old_before``: microseconds since 1970; of what moved later nothing
    is expected yet."""
    return single.groupBy("message_id", "account").agg(
        *exprs(
            f"count_if(side = {IN}) AS ins",
            f"count_if(side = {OUT}) AS outs",
            f"count_if(side = {LEFT}) AS lefts",
            f"count_if(side = {DOUBT}) AS doubts",
            "any(kind = 'scheduled') AS planned",
            "min(hour) AS hour",
            f"min(CASE WHEN side = {IN} THEN at END) AS first_in",
            "max(at) AS at",
            "max_by(kind, at) AS last_kind",
        ),
    ).selectExpr("*", f"at < {old_before} AS old")  # fmt: skip


def judged(tallied: DataFrame) -> DataFrame:
    """The breaks by :data:`JUDGED`, as :data:`SCHEMA` has them."""
    whens = [
        (f"startswith(account, '{rule.account}') = {str(rule.account == PUBLISH).lower()}"
         if rule.account == PUBLISH else f"NOT startswith(account, '{PUBLISH}')") + f" AND {rule.when}"
        for rule in JUDGED
    ]  # fmt: skip
    kind = " ".join(f"WHEN {when} THEN '{rule.kind}'" for when, rule in zip(whens, JUDGED, strict=True))
    why = " ".join(f"WHEN {when} THEN {rule.why}" for when, rule in zip(whens, JUDGED, strict=True))
    return tallied.selectExpr(
        f"CASE {kind} END AS kind", "account AS route", "hour", "message_id", f"CASE {why} END AS why", "at"
    ).where("kind IS NOT NULL")


LIES: Final = f"startswith(account, '{QUEUE}') AND ins > 0 AND outs + lefts < ins AND old AND replayed IS NULL"
"""The condition that a message should lie in a queue: as many copies as came in and did not go."""
STANDING: Final = (
    "any(ins > 0 AND outs + lefts > 0) AS known", f"sum(CASE WHEN {LIES} THEN ins - outs - lefts END) AS lies",
)  # fmt: skip
"""How an account stands: whether ids that came in went out, and how many messages should lie there."""


def missing(tallied: DataFrame, gone: Mapping[str, int], lies: Mapping[str, int], estate: Estate) -> DataFrame:
    """The messages that are gone from queues: of each the oldest ``gone[account]`` of those ``lies[account]`` that
    should be there. Where these are fewer, nobody can tell which of them they are, and the sentence says so."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812  # as everyone has it

    holders: dict[str, list[str]] = {}
    for holder, queue in estate.queues.items():
        holders.setdefault(QUEUE + queue, []).append(holder)
    most = " ".join(f"WHEN {literal(account)} THEN {count}" for account, count in gone.items())
    whose = " ".join(
        f"WHEN {literal(account)} THEN {literal(' or '.join(sorted(holders.get(account, ['nobody']))))}"
        for account in gone
    )
    some = " ".join(
        f"WHEN {literal(account)} THEN '; {count} of the {lies[account]} that should lie there are gone: the oldest are"
        " named'"
        for account, count in gone.items()
        if count < lies[account]
    )
    among = f"CASE account {some} ELSE '' END" if some else "''"
    number = F.row_number().over(Window.partitionBy("account").orderBy("first_in", "message_id"))
    return (
        tallied.where(tallied.account.isin(*gone))
        .where(LIES)
        .withColumn("number", number)
        .where(f"number <= CASE account {most} END")
        .selectExpr(
            f"'{LOST}' AS kind", "account AS route", "hour", "message_id",
            "concat('last ', last_kind, '; it lies there no more, and was not taken by ',"
            f" CASE account {whose} END, {among}) AS why",
            "at",
        )
    )  # fmt: skip


_NOT_BEFORE: Final = "unix_micros(to_timestamp(get_json_object(detail, '$.not_before')))"


def replayed(events: DataFrame) -> DataFrame:
    """The ids of messages that were replayed: what was dead, or lay in the queue that a replay took, is there no more
    with that, and nothing tells it from a mere copy. Of these nothing is expected to lie anywhere."""
    return events.where("kind = 'replayed'").selectExpr("message_id", "true AS replayed").distinct().hint("broadcast")


def overdue(tallied: DataFrame, events: DataFrame, old_before: int) -> DataFrame:
    """Messages that were to be published some time ago, and have no outcome. Whether they are lost only the ledger can
    tell: it may hold them still, for a broker that is away."""
    due = f"coalesce({_NOT_BEFORE}, unix_micros(at))"
    planned = events.where("kind = 'scheduled'").selectExpr("message_id", f"{due} AS due")
    planned = planned.groupBy("message_id").agg(*exprs("max(due) AS due"))
    rows = tallied.where(f"startswith(account, '{PUBLISH}') AND planned AND ins > outs + doubts")
    return (
        rows.join(planned, "message_id")
        .where(f"due < {old_before}")
        .selectExpr(
            f"'{LOST}' AS kind", "account AS route", "hour", "message_id",
            "concat('it was to be published at ', date_format(timestamp_micros(due), \"yyyy-MM-dd'T'HH:mm:ss'Z'\"),"
            " '; there is no outcome, and the ledger holds it no more') AS why",
            "at",
        )
    )  # fmt: skip


def unopened(breaks: DataFrame, events: DataFrame) -> DataFrame:
    """Breaks without those messages of which the beginning is not in the log any more: they came before the first of
    the events that it still has, of a shard that has deleted some."""
    begins = events.groupBy("shard").agg(*exprs("min(sequence) AS first", "min(unix_micros(at)) AS at"))
    begin = max((row.at for row in begins.where("first > 1").collect()), default=None)
    if begin is None:
        return breaks
    named = breaks.where(f"kind = '{UNOPENED}'").select("message_id").hint("broadcast")
    before = (
        events.where(f"accepted_at IS NULL OR unix_micros(accepted_at) < {begin}")
        .join(named, "message_id", "left_semi")
        .select("message_id")
        .distinct()
        .selectExpr("message_id", f"'{UNOPENED}' AS kind")
    )
    return breaks.join(before.hint("broadcast"), ["message_id", "kind"], "left_anti").select(*breaks.columns)


def late(events: DataFrame, plain: DataFrame, groups: DataFrame, late_us: int) -> DataFrame:
    """Messages that ended late. One that was to be published later is late by that time. ``groups``: those that have
    late events."""
    due = events.where("kind = 'scheduled' AND locate('not_before', detail) > 0").selectExpr(
        "message_id", f"{_NOT_BEFORE} AS due"
    )
    due = due.groupBy("message_id").agg(*exprs("max(due) AS due"))
    whose = groups.select("hour", "grp", "place", "holder").hint("broadcast")
    rows = plain.where(f"since > {late_us}").join(whose, ["hour", "grp"])
    return (
        rows.join(due, "message_id", "left")
        .where(f"at - coalesce(due, at - since) > {late_us}")
        .selectExpr(
            f"'{LATE}' AS kind",
            f"coalesce(holder, concat('{PUBLISH}', place)) AS route", "hour", "message_id",
            "concat(kind, ' after ', round((at - coalesce(due, at - since)) / 3600e6, 1), ' hours') AS why", "at",
        )
    )  # fmt: skip


def changed(events: DataFrame, messages: DataFrame) -> DataFrame:
    """Messages whose body, when a tap took them, was not the one that the gateway knows them by.

    What the log of messages holds no more, or not yet, is not compared.
    """
    known = events.where("kind = 'spooled'").selectExpr(f"{name_of('tap')} AS place", "message_id", "sha256 AS value")
    taken = messages.selectExpr("tap AS place", "message_id", "sha256 AS value")
    there = messages.selectExpr(
        "tap AS place", "message_id", "concat(broker, '/', queue) AS queue", "unix_micros(accepted_at) AS at"
    )
    return (
        unlike(known, taken)
        .where("value != other")
        .join(there, ["place", "message_id"])
        .selectExpr(
            f"'{CHANGED}' AS kind", "concat('tap:', place) AS route", f"at DIV {HOUR_US} AS hour", "message_id",
            "concat('its body in ', queue, ' has the digest ', substr(other, 1, 12), '…, and was taken with ',"
            " substr(value, 1, 12), '…') AS why", "at",
        )
        .distinct()
    )  # fmt: skip


def unlike(left: DataFrame, right: DataFrame) -> DataFrame:
    """Two sides of rows ``place``, ``message_id`` and ``value``: those of a message that differ, or are on one side
    only, as ``place``, ``message_id``, ``value`` (left) and ``other`` (right). Of places and parts of them whose
    digests are equal no row is looked at twice."""
    cell = ["place", "part"]
    left, right = (
        side.selectExpr("*", f"pmod(xxhash64(message_id), {PARTS}) AS part", "xxhash64(message_id, value) AS hash")
        for side in (left, right)
    )
    mine, theirs = (
        side.groupBy(*cell).agg(*exprs(f"count(*) AS {name}n", f"bit_xor(hash) AS {name}x",
                                        f"sum(hash & {LOW}) AS {name}s"))
        for name, side in (("l", left), ("r", right))
    )  # fmt: skip
    differing = (
        mine.join(theirs, cell, "full")
        .where("NOT (ln <=> rn AND lx <=> rx AND ls <=> rs)")
        .select(*cell)
        .localCheckpoint()
    )
    one, other = (side.join(differing, cell, "left_semi") for side in (left, right))
    return (
        one.select("place", "message_id", "value")
        .join(other.selectExpr("place", "message_id", "value AS other"), ["place", "message_id"], "full")
        .where("NOT value <=> other")
    )


def marked(breaks: DataFrame, events: DataFrame, estate: Estate) -> DataFrame:
    """Breaks, and whether somebody said of the message itself that it may be there twice.

    ``resent`` belongs to a message, and counts everywhere. ``redelivered`` belongs to one delivery: it counts in the
    queue from which that was, and for the end that came of it. So each end but the first must have one of its own, or
    the duplicate is not marked.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812  # as everyone has it

    named = F.broadcast(breaks.where(f"kind = '{DUPLICATE}'").select("message_id", "route").distinct())
    touched = events.join(
        F.broadcast(named.select("message_id").distinct()), "message_id", "left_semi"
    ).localCheckpoint()
    resent = touched.where("kind = 'resent' OR get_json_object(detail, '$.resent') = 'true'")
    resent = resent.select("message_id").distinct().withColumn("resent", F.lit(True))
    steps = (
        touched.selectExpr(
            f"{REF} AS ref", "message_id", "at", f"{account_of(HOLDER, estate)} AS route",
            f"kind IN ({listed(kinds(stay=Role.ENDS))}) AS ends",
            "get_json_object(detail, '$.redelivered') AS says",
        )
        .join(named, ["message_id", "route"], "left_semi")
    )  # fmt: skip
    before = Window.partitionBy("message_id", "route").orderBy("at", "ref").rowsBetween(Window.unboundedPreceding, -1)
    turns = steps.withColumn("turn", F.count_if("ends").over(before)).groupBy("message_id", "route", "turn").agg(
        *exprs("any(ends) AS ended", "coalesce(max_by(says, struct(at, ref)) FILTER (WHERE says IS NOT NULL)"
               " = 'true', false) AS says")
    )  # fmt: skip
    again = turns.where("turn > 0 AND ended").groupBy("message_id", "route").agg(*exprs("every(says) AS again"))
    return (
        breaks.join(F.broadcast(resent), "message_id", "left")
        .join(F.broadcast(again), ["message_id", "route"], "left")
        .selectExpr(
            "kind", "route", "hour", "message_id", "why",
            f"kind = '{DUPLICATE}' AND (resent IS NOT NULL OR coalesce(again, false)) AS marked", "at",
        )
    )  # fmt: skip
