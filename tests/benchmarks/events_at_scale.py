"""Ledger events by the million, as the gateway writes them, made by Spark without a shuffle.

Event number ``n`` is a function of ``n`` and a seed: which message it is of, which of its four events, and all columns.
So any number of them is made by as many tasks as there are, and the same seed gives the same rows. What can happen to a
message is a table, :data:`FLOWS`.

Events lie as a ledger has them: in blocks of :data:`BLOCK` messages, first all first events, then all second ones. The
sequence of a shard has no gap.

One message in ``every`` is broken on purpose, in the ways of :data:`BREAKS` by turns; :func:`broken` names them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STEPS: Final = 4
"""Events of a message."""
BLOCK: Final = 4_096
"""Messages whose events lie together."""
SHARDS: Final = 4
QUEUES: Final = 20
"""Queues of a kind, each with a subscription or a bridge; ``{q}`` in the table is its number."""
START: Final = 1_793_491_200
"""When the first message came, in seconds since 1970: 2026-11-01T00:00:00Z."""
GAP: Final = 172_800
"""Microseconds from one message to the next: 20 million events take 10 days."""
LATE: Final = 200_000
"""So many seconds late is what is late on purpose."""


class Step(NamedTuple):
    """One event of a flow."""

    kind: str
    broker: str
    version: str
    detail: str = ""


class Flow(NamedTuple):
    """A way that messages go."""

    share: int
    """Per cent of all messages."""
    origin: str
    broker: str
    version: str
    exchange: str
    routing_key: str
    steps: tuple[Step, Step, Step, Step]


_PUSHED: Final = '"endpoint":"hook-{q}","attempt":1,"seconds":0.012,"status":200}'
FLOWS: Final[Mapping[str, Flow]] = {
    "pulled": Flow(40, "http", "shop", "0-9-1", "", "orders-{q}", (
        Step("accepted", "shop", "0-9-1"),
        Step("confirmed", "shop", "0-9-1"),
        Step("delivered", "shop", "0-9-1",
             '{"subscription":"orders-{q}","queue":"orders-{q}","attempt":1,"redelivered":false}'),
        Step("acknowledged", "shop", "0-9-1", '{"subscription":"orders-{q}"}'),
    )),
    "bridged": Flow(40, "http", "legacy", "0-8", "", "in-{q}", (
        Step("accepted", "legacy", "0-8"),
        Step("confirmed", "legacy", "0-8"),
        Step("forwarded", "shop", "0-9-1",
             '{"bridge":"b-{q}","target":"shop","exchange":"","routing_key":"moved-{q}"}'),
        Step("acknowledged", "shop", "0-9-1", '{"subscription":"moved-{q}",' + _PUSHED),
    )),
    "taken": Flow(15, "broker", "qpid", "0-10", "events", "topic.{q}", (
        Step("received", "qpid", "0-10"),
        Step("stored", "qpid", "0-10", '{"subscription":"topic-{q}","queue":"topic-{q}"}'),
        Step("attempt_failed", "qpid", "0-10", '{"subscription":"topic-{q}",' + _PUSHED),
        Step("acknowledged", "qpid", "0-10", '{"subscription":"topic-{q}",' + _PUSHED),
    )),
    "later": Flow(5, "http", "shop", "0-9-1", "", "reports-{q}", (
        Step("scheduled", "shop", "0-9-1"),
        Step("not_sent", "shop", "", '{"code":"broker_unavailable","text":"it is away"}'),
        Step("scheduled", "shop", "", '{"retry":true}'),
        Step("confirmed", "shop", "0-9-1"),
    )),
}  # fmt: skip
"""Name -> flow. ``reports-{q}`` is consumed by others than the gateway."""

BREAKS: Final[Mapping[str, tuple[str, Mapping[int, str]]]] = {
    "lost": ("pulled", {3: "extended"}),
    "unopened": ("pulled", {0: "resent"}),
    "duplicate": ("pulled", {2: "acknowledged"}),
    "late": ("pulled", {}),
    "unanswered": ("pulled", {1: "resent", 2: "extended", 3: "extended"}),
    "lost at a bridge": ("bridged", {2: "reduced", 3: "reduced"}),
}
"""What is broken -> in which flow, and the kinds that some of its events have instead."""
QUEUE_OF: Final[Mapping[str, str]] = {
    **{f"subscription:orders-{q}": f"shop/orders-{q}" for q in range(QUEUES)},
    **{f"subscription:moved-{q}": f"shop/moved-{q}" for q in range(QUEUES)},
    **{f"subscription:topic-{q}": f"qpid/topic-{q}" for q in range(QUEUES)},
    **{f"bridge:b-{q}": f"legacy/in-{q}" for q in range(QUEUES)},
}
"""Who consumes what, as the gateway would tell."""


def events(
    spark: SparkSession, count: int, *, seed: int = 1, every: int = 0, partitions: int | None = None, gap: int = GAP
) -> DataFrame:
    """So many events, rounded up to whole blocks, with the columns of the event log.

    Args:
        every: one message in so many is broken; 0: none.
        gap: microseconds from one message to the next.
    """
    blocks = -(-count // (STEPS * BLOCK))
    rows = spark.range(0, blocks * STEPS * BLOCK, 1, partitions or max(2, count // 2_000_000))
    return _drawn(rows, seed, every, gap).selectExpr(
        f"CAST(block % {SHARDS} AS INT) AS shard",
        f"(block DIV {SHARDS}) * {STEPS * BLOCK} + id % {STEPS * BLOCK} + 1 AS sequence",
        f"{_ID} AS message_id",
        f"{_kinds()} AS kind",
        "timestamp_micros(at0 + after) AS at",
        f"{_each_step(lambda step: step.broker)} AS broker",
        f"{_each_step(lambda step: step.version)} AS version",
        f"{_each_step(lambda step: step.detail)} AS detail",
        "timestamp_micros(at0) AS accepted_at",
        f"{_each_flow(lambda flow: flow.broker)} AS source_broker",
        f"{_each_flow(lambda flow: flow.version)} AS source_version",
        f"{_each_flow(lambda flow: flow.exchange)} AS exchange",
        f"{_each_flow(lambda flow: flow.routing_key)} AS routing_key",
        "pmod(h, 4096) AS size",
        "sha2(CAST(m AS STRING), 256) AS sha256",
        f"{_each_flow(lambda flow: flow.origin)} AS origin",
    )


def broken(spark: SparkSession, count: int, *, seed: int = 1, every: int) -> DataFrame:
    """The messages among so many events that are broken: ``message_id`` and ``what``, as in :data:`BREAKS`."""
    blocks = -(-count // (STEPS * BLOCK))
    rows = spark.range(0, blocks * STEPS * BLOCK).where(f"(id % {STEPS * BLOCK}) DIV {BLOCK} = 0")
    what = ", ".join(f"'{name}'" for name in BREAKS)
    return (
        _drawn(rows, seed, every, GAP)
        .where("b >= 0")
        .selectExpr(f"{_ID} AS message_id", f"element_at(array({what}), b + 1) AS what")
    )


_ID: Final = (
    "concat(substr(ms, 1, 8), '-', substr(ms, 9, 4), '-7', substr(r, 1, 3),"
    " '-a', substr(r, 4, 3), '-', substr(r, 5, 12))"
)
"""A UUIDv7: the message's milliseconds, and what is drawn."""


def _drawn(rows: DataFrame, seed: int, every: int, gap: int) -> DataFrame:
    """Numbers -> message ``m``, its step ``k``, its flow, queue ``q``, break ``b`` and times."""
    names = list(FLOWS)
    bounds, so_far = [], 0
    for name in names[:-1]:
        so_far += FLOWS[name].share
        bounds.append(f"WHEN pmod(h, 100) < {so_far} THEN {names.index(name)}")
    chosen = f"CASE {' '.join(bounds)} ELSE {len(names) - 1} END"
    ways = list(BREAKS)
    turn = f"CAST((m DIV {every}) % {len(ways)} AS INT)" if every else "-1"
    fits = (
        f"element_at(array({', '.join(str(names.index(BREAKS[way][0])) for way in ways)}), turn + 1)" if every else "-1"
    )
    here = f"m % {every} = 0 AND flow = {fits}" if every else "false"
    late = ways.index("late")
    return (
        rows.selectExpr(
            "id",
            f"id DIV {STEPS * BLOCK} AS block",
            f"(id DIV {STEPS * BLOCK}) * {BLOCK} + id % {BLOCK} AS m",
            f"CAST((id % {STEPS * BLOCK}) DIV {BLOCK} AS INT) AS k",
        )
        .selectExpr("*", f"xxhash64(m, {seed}) AS h", f"{turn} AS turn")
        .selectExpr("*", f"{chosen} AS flow", f"CAST(pmod(h DIV 1000, {QUEUES}) AS STRING) AS q")
        .selectExpr("*", f"CASE WHEN {here} THEN turn ELSE -1 END AS b", f"{START}000000L + m * {gap}L AS at0")
        .selectExpr(
            "*",
            "lpad(lower(hex(at0 DIV 1000)), 12, '0') AS ms",
            f"lpad(lower(hex(xxhash64(m, {seed} + 1))), 16, '0') AS r",
            # A long tail, as queues have it: medians of 15, 90 and 300 ms, and a thousandth takes seconds.
            "CAST(1000000 * (CASE WHEN k = 0 THEN 0 ELSE 0.002 * exp(pmod(shiftright(h, 8), 1000) / 250D) END"
            " + CASE WHEN k < 2 THEN 0 ELSE 0.004 * exp(pmod(shiftright(h, 18), 1000) / 160D) END"
            " + CASE WHEN k < 3 THEN 0 ELSE 0.008 * exp(pmod(shiftright(h, 28), 1000) / 140D) END"
            f" + CASE WHEN k = 3 AND b = {late} THEN {LATE} ELSE 0 END) AS BIGINT) AS after",
        )
    )  # fmt: skip


def _one_of(texts: Sequence[str], index: str) -> str:
    """The text of this index (from 0), in which ``{q}`` is the queue's number. The texts are one constant, so that the
    code that Spark makes of it stays small enough to be compiled."""
    listed = ", ".join(f"'{text}'" for text in texts)
    found = f"element_at(array({listed}), {index} + 1)"
    return f"replace({found}, '{{q}}', q)" if any("{q}" in text for text in texts) else found


def _each_flow(field: Callable[[Flow], str]) -> str:
    return _one_of([field(flow) for flow in FLOWS.values()], "flow")


def _each_step(field: Callable[[Step], str]) -> str:
    return _one_of([field(step) for flow in FLOWS.values() for step in flow.steps], f"flow * {STEPS} + k")


def _kinds() -> str:
    """The kind: what a break has instead, else what the flow has."""
    instead = [
        kinds.get(k, FLOWS[flow].steps[k].kind) for flow, kinds in BREAKS.values() for k in range(STEPS)
    ]  # fmt: skip
    return f"CASE WHEN b >= 0 THEN {_one_of(instead, f'b * {STEPS} + k')} ELSE {_each_step(lambda step: step.kind)} END"
