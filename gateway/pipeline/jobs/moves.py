"""Events as moves: into an account and out of it.

An account is a place where messages are counted. ``publish BROKER/EXCHANGE`` holds what the gateway has taken and has
no outcome for, ``queue BROKER/QUEUE`` what should lie in a queue. A confirm moves a message from the one to the other,
a bridge from one queue to the next, an acknowledgement out of the last one (:mod:`gateway.pipeline.jobs.lives`). Each
message that moved in must have moved out, once, or lie there.

Both sides of an account are compared by their *digest*, the number of moves, the XOR of the hashes of their messages'
ids and the sum of the lower halves of those hashes, for the messages of each hour. Where the digests are equal, so are
the messages: XOR alone would not see a message twice, and the count alone would not see one in the place of another.
Only cells that differ are looked at message by message.

The hour is that in which the message came to the gateway: it is the same in all of its events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from gateway.pipeline.jobs.estate import Estate
from gateway.pipeline.jobs.lives import FINAL, LIVES, Life, Role, kinds
from gateway.pipeline.jobs.routes import HOLDER, REPLAY, name_of, text_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COLUMNS: Final = (
    "shard", "sequence", "message_id", "kind", "at", "broker", "detail", "accepted_at", "source_broker", "exchange",
    "routing_key", "sha256",
)  # fmt: skip
"""What is read of the event log."""
HOUR_US: Final = 3_600_000_000
NO_HOUR: Final = -1
"""The hour of a message that the ledger has forgotten: nobody knows when it came. NULL would be equal to nothing."""
LOW: Final = "4294967295L"
"""The lower half of a hash: 32 bits, so that two thousand million of them can be summed."""
PUBLISH: Final = "publish "
QUEUE: Final = "queue "
IN: Final = 1
OUT: Final = -1
"""The message is over there, once."""
LEFT: Final = -2
"""It is over there, and may rightly come back."""
DOUBT: Final = -3
"""It is over there for now."""
NOTHING: Final = Life(Role.NOTES, Role.NOTES)


def literal(text: str) -> str:
    """Text as SQL has it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def listed(texts: Iterable[str]) -> str:
    """Texts for ``IN (…)``, which is never empty."""
    return ", ".join(literal(text) for text in sorted(texts)) or "NULL"


KEYS: Final = ("kind", "broker", "source_broker", "exchange", "key", "told")
"""What decides, beside the hour, which accounts an event moves."""
REF: Final = "shiftleft(CAST(shard AS BIGINT), 48) + sequence"
"""Names an event in one number."""
_RESCHEDULED: Final = "kind = 'scheduled' AND locate('\"rescheduled\":', detail) > 0"
"""An event of a publish that got another time: it was to be published before."""
_WHOLE: Final = ("forwarded", "dead_lettered")
"""Kinds of which the detail says where the message went."""


def plain(events: DataFrame, estate: Estate) -> DataFrame:
    """Events with :data:`KEYS`, made with little work an event: what is to be parsed is parsed once for all events that
    have it (:func:`read`), and what they are grouped by is one number, ``grp``, the hash of the keys.

    ``told`` is the part of the detail that says where an event belongs: who it is of is its first field. ``key`` is the
    routing key where that says to which queue a publish goes. Columns besides: ``ref``, ``message_id``, ``hash``,
    ``hour``, and ``at`` and ``since`` in microseconds (since 1970, and since the message came).
    """
    moving = [kind.value for kind, life in LIVES.items() if life != NOTHING]
    queues = listed(queue.partition("/")[2] for queue in estate.watched)
    exchanges = {path.split("/", 2)[1] for path in estate.routes}
    bound = listed(exchanges)
    named = ('"exchange":' + json.dumps(name, ensure_ascii=False) for name in sorted(exchanges | {""}))
    whole = " OR ".join(f"locate({literal(text)}, detail) > 0" for text in named)
    return (
        events.where(f"kind IN ({listed(moving)})")
        .selectExpr(
            f"{REF} AS ref", "message_id", "kind", "broker", "source_broker", "exchange", "unix_micros(at) AS at",
            "unix_micros(accepted_at) AS came",
            "CASE WHEN kind != 'confirmed' THEN '' "
            f"WHEN exchange = '' THEN CASE WHEN routing_key IN ({queues}) THEN routing_key ELSE '' END "
            f"WHEN exchange IN ({bound}) THEN routing_key ELSE '' END AS key",
            f"CASE WHEN kind IN ({listed(_WHOLE)}) AND ({whole}) THEN detail"
            " WHEN kind = 'confirmed' AND locate('\"replay\":', detail) > 0 THEN '{\"replay\":'"
            " ELSE substring_index(detail, ',', 1) END AS told",
        )
        .selectExpr(
            "ref", "message_id", "xxhash64(message_id) AS hash", "at", "at - came AS since",
            f"coalesce(came DIV {HOUR_US}, {NO_HOUR}L) AS hour", f"xxhash64({', '.join(KEYS)}) AS grp", *KEYS,
        )
    )  # fmt: skip


def digests(events: DataFrame, estate: Estate, late_us: int) -> DataFrame:
    """One row for each hour and combination of :data:`KEYS`: ``n``, ``x`` and ``s`` are the digest of its messages,
    ``late`` the number of events that came later than ``late_us``.

    All events are added up by two numbers, the hour and the hash of the keys; the keys are then read off one event of
    each.
    """
    found = plain(events, estate).groupBy("hour", "grp").agg(
        *exprs(
            "count(*) AS n", "bit_xor(hash) AS x", f"sum(hash & {LOW}) AS s", f"count_if(since > {late_us}) AS late",
            "min(ref) AS ref",
        )
    ).localCheckpoint()  # fmt: skip
    names = plain(one_of_each(events, found), estate).select("grp", *KEYS).dropDuplicates(["grp"])
    return found.drop("ref").join(names.hint("broadcast"), "grp")


def one_of_each(events: DataFrame, found: DataFrame) -> DataFrame:
    """One event of each ``grp``, its first. Most groups are met early in the log: what is behind the last of those
    events is not read, where files tell which sequences they hold."""
    refs = found.groupBy("grp").agg(*exprs("min(ref) AS ref")).select("ref").localCheckpoint()
    last = refs.groupBy(exprs("shiftright(ref, 48) AS shard")[0]).agg(*exprs("max(ref) AS ref")).collect()
    where = " OR ".join(f"(shard = {row.shard} AND sequence <= {row.ref - (row.shard << 48)})" for row in last)
    picked = events.where(where or "false").withColumn("ref", exprs(REF)[0])
    return picked.join(refs.hint("broadcast"), "ref", "left_semi").drop("ref")


def read(rows: DataFrame, estate: Estate) -> DataFrame:
    """Rows with :data:`KEYS`, read: what each event of theirs moves. Those that move nothing are left out.

    Columns are added: ``pub`` is the side that it moves in the publish account ``place``, ``goes`` the queue it moves
    into, and ``how`` the side by which it moves out of the hands of ``holder``; 0 and NULL: nothing.
    """
    stays = "CASE " + " ".join(
        f"WHEN kind IN ({listed(kinds(stay=role))}) THEN {side}"
        for role, side in ((Role.ENDS, OUT), (Role.LEAVES, LEFT))
    ) + " ELSE 0 END"  # fmt: skip
    pub = (
        f"CASE WHEN holder = '{REPLAY}' OR ({_RESCHEDULED}) THEN 0"
        f" WHEN kind IN ({listed(kinds(publish=Role.OPENS))}) THEN {IN}"
        f" WHEN kind IN ({listed(kinds(publish=Role.ENDS))}) THEN {OUT}"
        f" WHEN kind IN ({listed(kinds(publish=Role.DOUBTS))}) THEN {DOUBT} ELSE 0 END"
    )
    watched = listed(estate.watched)
    nameless = f"WHEN kind = 'forwarded' AND holder IN ({listed(estate.nameless)}) THEN NULL" if estate.nameless else ""
    same = " ".join(
        f"WHEN queue = {literal(name)} THEN {literal(queue)}"
        for name, queue in sorted(estate.same.items())
        if queue in estate.watched
    )
    return (
        rows.withColumnRenamed("told", "detail")
        .selectExpr("*", f"{HOLDER} AS whose")
        .withColumnRenamed("whose", "holder")
        .selectExpr("*", *(f"{_by_kind(texts)} AS {name}" for name, texts in _PUT.items()))
        .selectExpr("*", f"CASE {nameless} {' '.join(_queue_of(estate))} END AS queue", f"{pub} AS pub")
        .selectExpr("*", f"CASE WHEN holder IS NULL OR holder = '{REPLAY}' THEN 0 ELSE {stays} END AS how",
                    f"CASE {same} WHEN queue IN ({watched}) THEN queue END AS goes",
                    "CASE WHEN pub != 0 THEN concat(source_broker, '/', exchange) END AS place")
        .where("pub != 0 OR how != 0 OR goes IS NOT NULL")
        .drop("queue", *_PUT)
        .withColumnRenamed("detail", "told")
    )  # fmt: skip


_PLACE: Final = "coalesce(get_json_object(detail, '$.place.{0}'), get_json_object(detail, '$.{0}'))"
_PUT: Final[Mapping[str, Mapping[str, str]]] = {
    "put_at": {
        "confirmed": "broker",
        "forwarded": "broker",
        "dead_lettered": f"coalesce(get_json_object(detail, '$.place.broker'), {name_of('to')}, broker)",
    },
    "put_to": {
        "confirmed": "exchange", "forwarded": text_of("exchange"), "dead_lettered": _PLACE.format("exchange"),
    },
    "put_by": {
        "confirmed": "key", "forwarded": text_of("routing_key"), "dead_lettered": _PLACE.format("routing_key"),
    },
}  # fmt: skip
"""Broker, exchange and routing key with which a message was put somewhere, by the kind of the event."""


def _by_kind(texts: Mapping[str, str]) -> str:
    """One expression for each kind of event."""
    return "CASE " + " ".join(f"WHEN kind = '{kind}' THEN {text}" for kind, text in texts.items()) + " END"


def _queue_of(estate: Estate) -> Iterator[str]:
    """The queue that gets what is put there; the default exchange says which."""
    yield "WHEN put_to = '' THEN concat(put_at, '/', put_by)"
    for path, queue in sorted(estate.routes.items(), key=lambda item: -item[0].count("/")):
        broker, exchange, *key = path.split("/", 2)
        where = f"put_at = {literal(broker)} AND put_to = {literal(exchange)}"
        if key:
            where += f" AND put_by = {literal(key[0])}"
        yield f"WHEN {where} THEN {literal(queue)}"


# ------------------------------------------------------------------------------------------------------------- cells


def cells(found: DataFrame, estate: Estate) -> DataFrame:
    """One row for each account and hour: the digests of what moved in and out, and ``late``."""
    sides = (
        found.where("pub != 0").selectExpr(
            f"concat('{PUBLISH}', place) AS account", "hour", "pub AS side", "n", "x", "s",
            f"CASE WHEN kind IN ({listed(FINAL)}) THEN late ELSE 0L END AS late")
        .unionByName(found.where("goes IS NOT NULL").selectExpr(
            f"concat('{QUEUE}', goes) AS account", "hour", f"{IN} AS side", "n", "x", "s", "0L AS late"))
        .unionByName(found.where("how != 0").selectExpr(
            f"{account_of('holder', estate)} AS account", "hour", "how AS side", "n", "x", "s",
            f"CASE WHEN holder IN ({listed(estate.mirrors)}) THEN 0L ELSE late END AS late"))
    )  # fmt: skip
    return sides.groupBy("account", "hour").agg(
        *exprs(
            *(
                f"coalesce({how}(CASE WHEN side {sign} 0 THEN {of} END), 0L) AS {side}_{of}"
                for side, sign in (("in", ">"), ("out", "<"))
                for of, how in (("n", "sum"), ("x", "bit_xor"), ("s", "sum"))
            ),
            "sum(late) AS late",
        )
    )


DIFFERS: Final = "in_n != out_n OR in_x != out_x OR in_s != out_s"
"""The condition that a cell is to be looked at message by message."""


def account_of(holder: str, estate: Estate) -> str:
    """The account of the queue that a holder consumes; where nobody says which, or where it leaves messages in their
    queue, an account of its own."""
    cases = " ".join(
        f"WHEN {literal(name)} THEN {literal(QUEUE + queue)}"
        for name, queue in estate.queues.items()
        if name not in estate.mirrors
    )
    return f"CASE {holder} {cases} ELSE {holder} END" if cases else holder


def within(groups: DataFrame, differing: DataFrame, estate: Estate) -> DataFrame:
    """The groups that move something in these accounts and hours."""
    accounts = f"""array_compact(array(concat('{PUBLISH}', place), concat('{QUEUE}', goes),
                   CASE WHEN how != 0 THEN {account_of("holder", estate)} END))"""
    these = differing.groupBy("hour").agg(*exprs("collect_set(account) AS those"))
    return groups.join(these, "hour").where(f"arrays_overlap({accounts}, those)").drop("those")


def single(plain: DataFrame, groups: DataFrame, estate: Estate) -> DataFrame:
    """The moves of the events of some groups, one row each: ``message_id``, ``hash``, ``account``, ``hour``,
    ``side``, ``kind`` and ``at``. ``groups``: rows of :func:`read`, few enough to be sent to every task."""
    moves = groups.select("hour", "grp", "pub", "place", "goes", "how", "holder")
    moved = plain.join(moves.hint("broadcast"), ["hour", "grp"])
    return moved.selectExpr(
        "message_id", "hash", "hour", "kind", "at",
        f"""inline(filter(array(
            named_struct('account', concat('{PUBLISH}', place), 'side', pub),
            named_struct('account', concat('{QUEUE}', goes), 'side', CASE WHEN goes IS NULL THEN 0 ELSE {IN} END),
            named_struct('account', {account_of('holder', estate)}, 'side', how)), m -> m.side != 0))""",
    )  # fmt: skip


@contextmanager
def kept(events: DataFrame, of_log: bool) -> Iterator[DataFrame]:
    """Events that are to be read several times. Those of the log are kept on local disks meanwhile, for the service is
    to send them once; those of files are there anyway."""
    from pyspark import StorageLevel

    if not of_log:
        yield events
        return
    rows = events.persist(StorageLevel.DISK_ONLY)
    try:
        yield rows
    finally:
        rows.unpersist()


def exprs(*texts: str) -> list[Column]:
    """Expressions of SQL as columns."""
    from pyspark.sql import functions as F  # noqa: N812  # as everyone has it

    return [F.expr(text) for text in texts]
