"""A gateway that does all that it can has no breaks, and what is broken on purpose is named."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from gateway.amqp.message import Message
from gateway.config import PipelineSettings
from gateway.ledger.writing.states import EventKind
from gateway.pipeline.jobs.base import Context, JobRequest, options_of
from gateway.pipeline.jobs.breaks import unlike, unopened
from gateway.pipeline.jobs.estate import Estate, HeldPublishes, ask_estate
from gateway.pipeline.jobs.lives import FLOWS
from gateway.pipeline.jobs.reconcile import Found, Reconcile, reconcile
from gateway.pipeline.service import Service
from gateway.pipeline.settings import Pipeline
from tests.benchmarks import events_at_scale as scale
from tests.pipeline.house import MID, NEW, OLD, House, house
from tests.pipeline.spark.cases import CASES, FORGOTTEN

UNDRIVEN = {
    EventKind.UNKNOWN, EventKind.RESENT,  # a broker that says nothing
    EventKind.PREPARED,  # a bridge in distributed transactions, to a broker of 0-10
    EventKind.LEASE_EXPIRED, EventKind.LEASE_LOST,  # they take ten seconds, and a broken channel
    EventKind.DEAD_LETTERED, EventKind.LOOPED, EventKind.REDUCED, EventKind.DUPLICATE_DROPPED,
}  # fmt: skip
"""Kinds that no flow of the house writes; :func:`test_flows_that_take_a_broken_broker` makes them up."""


@dataclass(frozen=True)
class Seen:
    """A gateway at one moment: its logs, what it says of its queues, and ids of messages that were broken."""

    events: Path
    messages: Path
    estate: Estate
    ids: dict[str, str]
    owed: set[str]
    """Of these, what the gateway still holds to be published later, or was never to."""


async def _look(home: House, folder: Path, ids: dict[str, str]) -> Seen:
    folder.mkdir()

    def asked() -> tuple[Estate, set[str]]:
        with Service(Pipeline(url=home.app.url)) as service:
            outbox = HeldPublishes(service)
            return ask_estate(service), {message_id for message_id in ids.values() if outbox.owes(message_id)}

    estate, owed = await asyncio.to_thread(asked)
    return Seen(await home.log("events", folder), await home.log("messages", folder), estate, ids, owed)


async def _break(home: House, ledger: Path) -> dict[str, str]:
    """Lose, double and change messages behind the gateway's back; their ids."""
    lost, *_ = await home.publish(MID, "pulled", 4)
    await home.take(MID, "pulled")
    await home.drain("pulled", 3)
    (elsewhere,) = await home.publish(NEW, "pulled")  # the same queue, of the same broker by another name
    await home.take(MID, "pulled")
    (doubled,) = await home.publish(MID, "pulled")
    message = await home.take(MID, "pulled")
    await home.put(MID, "pulled", message)
    await home.put(MID, "pulled", message)
    await home.drain("pulled", 2)
    await home.ask("POST", "/v1/taps/spools:pause")
    (changed,) = await home.publish(OLD, "edited")
    await home.until_depth("spooled", 1)
    message = await home.take(MID, "spooled")
    await home.put(MID, "spooled", Message(b"edited at the target", message.properties, relayed=True))
    await home.ask("POST", "/v1/taps/spools:resume")
    await home.until_state(changed, "spooled")
    waits, dropped = [await _later(home) for _ in range(2)]
    with closing(sqlite3.connect(ledger)) as database, database:
        cursor = database.execute("DELETE FROM outbox WHERE message_id = ?", (UUID(dropped).bytes,))
        assert cursor.rowcount == 1
    await asyncio.sleep(0.2)
    return {"lost": lost, "elsewhere": elsewhere, "doubled": doubled, "changed": changed, "waits": waits,
            "dropped": dropped}  # fmt: skip


async def _later(home: House) -> str:
    """A message that is to be published at once, to a broker that is not there: the ledger holds it."""
    soon = datetime.now(UTC) + timedelta(seconds=0.1)
    body = {"routing_key": "due", "payload": "later", "not_before": soon.isoformat()}
    answer = await home.ask("POST", "/v1/brokers/gone/exchanges/amq.default:publish", 202, json=body)
    found: str = answer["id"]
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Seen, Seen]:
    """A gateway after every flow, and again after what was broken."""
    folder = tmp_path_factory.mktemp("house")

    async def live() -> tuple[Seen, Seen]:
        async with house(folder) as home:
            await home.everything()
            clean = await _look(home, folder / "clean", {})
            ids = await _break(home, folder / "ledger.db")
            return clean, await _look(home, folder / "broken", ids)

    return asyncio.run(live())


def _reconciled(spark: SparkSession, seen: Seen, events: DataFrame | None = None, **options: Any) -> Found:
    frame = spark.read.parquet(str(seen.events)) if events is None else events
    messages = spark.read.parquet(str(seen.messages))
    more = {"grace": 0, "messages": messages, "owed": seen.owed.__contains__, **options}
    return reconcile(frame, seen.estate, now=time.time(), **more)


def _named(found: Found) -> set[tuple[str, str, str]]:
    return {(row.kind, row.route, row.message_id) for row in found.breaks.collect()}


# ------------------------------------------------------------------------------------------------------ a real gateway


def test_every_flow_is_driven_and_none_is_a_break(spark: SparkSession, seen: tuple[Seen, Seen]) -> None:
    clean, _ = seen
    events = spark.read.parquet(str(clean.events))
    kinds = {EventKind(row.kind) for row in events.select("kind").distinct().collect()}
    assert kinds == set(EventKind) - UNDRIVEN
    assert {kind for flow in FLOWS.values() for kind in flow.roles} == kinds | UNDRIVEN
    times = pq.read_table(clean.events, columns=["at", "accepted_at"]).to_pydict()
    assert datetime.now(UTC) - min(times["at"] + times["accepted_at"]) < timedelta(hours=1), "microseconds, all of them"
    assert clean.estate.queues["bridge:moves"] == f"{OLD}/in"
    assert clean.estate.mirrors == {"bridge:mirrors"}
    assert clean.estate.held[f"{MID}/due"] == 0
    assert not clean.estate.unknown
    found = _reconciled(spark, clean)
    assert [row.asDict() for row in found.breaks.collect()] == []
    assert found.unmarked == 0
    by_name = {account.name: account for account in found.accounts}
    assert by_name[f"queue {MID}/pulled"].moved_in == 9
    # The mirrored stay where they are, and one is owed to a subscription, dead.
    assert (by_name[f"queue {MID}/failing"].lies, by_name[f"queue {MID}/failing"].held) == (1, 1)


def test_what_is_broken_is_named_with_its_id_and_where(spark: SparkSession, seen: tuple[Seen, Seen]) -> None:
    _, broken = seen
    ids = broken.ids
    events = spark.read.parquet(str(broken.events))
    pulled = events.where("routing_key = 'pulled'").groupBy("message_id").agg({"kind": "collect_list"}).collect()
    whole = ["accepted", "acknowledged", "confirmed", "delivered"]
    some = [row.message_id for row in pulled if sorted(row[1]) == whole and row.message_id not in ids.values()]
    removed = dict(zip(("accepted", "confirmed", "acknowledged"), some, strict=False))
    left = events.where(" AND ".join(
        f"NOT (message_id = '{message_id}' AND kind = '{kind}')" for kind, message_id in removed.items()))  # fmt: skip
    found = _reconciled(spark, broken, left)
    assert _named(found) == {
        ("lost", f"queue {MID}/pulled", ids["lost"]),
        ("lost", f"queue {MID}/pulled", ids["elsewhere"]),
        ("lost", "publish gone/", ids["dropped"]),
        ("duplicate", f"queue {MID}/pulled", ids["doubled"]),
        ("changed", "tap:spools", ids["changed"]),
        ("unopened", f"publish {MID}/", removed["accepted"]),
        ("lost", f"publish {MID}/", removed["confirmed"]),
        ("lost", f"queue {MID}/pulled", removed["acknowledged"]),
    }
    assert found.unmarked == 8
    why = {row.message_id: row.why for row in found.breaks.collect()}
    assert why[ids["lost"]] == "last confirmed; it lies there no more, and was not taken by subscription:pulled"
    assert why[ids["doubled"]].startswith("it ended 2 times")
    assert why[ids["changed"]].startswith(f"its body in {MID}/spooled has the digest")


# ---------------------------------------------------------------------------------------------------- events by hand

NOW = 1_800_000_000
SCHEMA = (
    "shard int, sequence bigint, message_id string, kind string, at timestamp, broker string, version string,"
    " detail string, accepted_at timestamp, source_broker string, source_version string, exchange string,"
    " routing_key string, size bigint, sha256 string, origin string"
)


def _events(spark: SparkSession, rows: list[tuple[Any, ...]]) -> DataFrame:
    """Events from short rows: message, kind, detail, seconds after the message came, and columns that differ."""
    lines = []
    for number, (message, kind, detail, seconds, *more) in enumerate(rows):
        line = {"shard": 0, "sequence": number + 1, "message_id": message, "kind": kind, "broker": "shop",
                "at": _text(NOW - 86_400 + seconds), "accepted_at": _text(NOW - 86_400), "source_broker": "shop",
                "exchange": "", "routing_key": "q", "size": 1, "sha256": "00", "origin": "http", "version": "0-9-1",
                "detail": json.dumps(detail, separators=(",", ":"))}  # fmt: skip
        lines.append(json.dumps({**line, **(more[0] if more else {})}))
    literal = ", ".join(f"({_sql(line)})" for line in lines)
    return spark.sql(f"SELECT from_json(line, '{SCHEMA}') AS row FROM VALUES {literal} AS t(line)").select("row.*")


def _text(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def _sql(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _of_its_own(number: int, value: Any, key: str = "") -> Any:
    """A case's names with a number, so that all cases go through one reconciliation."""
    if value is None:
        return None
    if isinstance(value, dict):
        return {name: _of_its_own(number, each, name) for name, each in value.items()}
    if key in ("subscription", "bridge", "routing_key") or (key == "exchange" and value):
        return f"{value}{number}"
    if key == "detail":
        return str(value).replace('"s"', f'"s{number}"')
    return value


def _path(number: int, path: str) -> str:
    """``shop/q`` -> ``shop/q7``, ``subscription:s`` -> ``subscription:s7``, ``publish shop/e`` likewise."""
    if path.startswith("publish "):
        return path if path.endswith("/") else f"{path}{number}"
    broker, *names = path.split("/")
    return "/".join([broker, *(f"{name}{number}" for name in names)]) if names else f"{path}{number}"


@pytest.fixture(scope="module")
def judged(spark: SparkSession) -> Found:
    """All cases, reconciled at once."""
    rows: list[tuple[Any, ...]] = []
    estate = Estate()
    for number, (mine, its, _) in enumerate(CASES.values()):
        rows += [
            (f"{message}{number}", kind, _of_its_own(number, detail), seconds,
             {"routing_key": f"q{number}", **_of_its_own(number, more[0] if more else {})})
            for message, kind, detail, seconds, *more in mine
        ]  # fmt: skip
        estate = Estate(
            queues={
                **estate.queues,
                **{_path(number, holder): _path(number, queue) for holder, queue in its.queues.items()},
            },
            mirrors=estate.mirrors | {_path(number, holder) for holder in its.mirrors},
            nameless=estate.nameless | {_path(number, holder) for holder in its.nameless},
            routes={
                **estate.routes,
                **{_path(number, route): _path(number, queue) for route, queue in its.routes.items()},
            },
            held={**estate.held, **{_path(number, queue): count for queue, count in its.held.items()}},
            same={
                **estate.same,
                **{_path(number, name): _path(number, queue) for name, queue in its.same.items()},
            },
        )
    held = lambda message_id: message_id.startswith("h")  # noqa: E731  # shorter than a function here
    return reconcile(_events(spark, rows), estate, now=NOW, grace=60, late_hours=2, owed=held)


@pytest.fixture(scope="module")
def named(judged: Found) -> list[Row]:
    """What it named."""
    return judged.breaks.collect()


@pytest.mark.parametrize("case", CASES)
def test_what_no_flow_of_the_house_writes(named: list[Row], case: str) -> None:
    number = list(CASES).index(case)
    found = {
        (f"{row.kind}{', marked' * row.marked}", row.route, row.message_id)
        for row in named
        if row.message_id[1:] == str(number)
    }
    expected = {(kind, _path(number, route), f"{message}{number}") for kind, route, message in CASES[case][2]}
    assert found == expected


def test_marked_duplicates_are_listed_and_no_breaks(judged: Found) -> None:
    kinds = [kind for _, _, breaks in CASES.values() for kind, _, _ in breaks]
    marked = kinds.count("duplicate, marked")
    assert judged.counts[("duplicate", True)] == marked == 2
    assert (sum(judged.counts.values()), judged.unmarked) == (len(kinds), len(kinds) - marked)


def test_where_only_some_are_gone_the_sentence_says_that_it_is_a_guess(named: list[Row]) -> None:
    number = list(CASES).index("the oldest is the one that is gone")
    (why,) = [row.why for row in named if row.message_id == f"m{number}"]
    assert why.endswith("; 1 of the 2 that should lie there are gone: the oldest are named")
    number = list(CASES).index("an exchange that is bound")
    (why,) = [row.why for row in named if row.message_id == f"m{number}"]
    assert why == f"last confirmed; it lies there no more, and was not taken by subscription:s{number}"


def test_the_hour_of_a_message_that_the_ledger_has_forgotten_is_null(named: list[Row]) -> None:
    number = list(CASES).index("twice, and the ledger has forgotten when it came")
    hours = {row.message_id: row.hour for row in named}
    assert hours.pop(f"m{number}") is None
    assert None not in hours.values()


def test_accounts_that_cannot_be_judged_and_those_that_are_wrong(judged: Found) -> None:
    cases = list(CASES)
    not_judged = {account.name for account in judged.accounts if account.not_judged}
    assert not_judged == {
        f"queue anon/q{cases.index('a broker that does not keep ids')}",
        f"queue shop/q{cases.index('a queue of which nobody tells')}",
    }
    assert f"queue old/in{cases.index('a bridge that loses one and doubles another')}" in judged.wrong
    assert f"queue shop/q{cases.index('a duplicate that is marked')}" not in judged.wrong


def test_a_log_that_begins_later_does_not_accuse_messages_that_came_before(spark: SparkSession) -> None:
    rows = [("old", "confirmed", {}, 100), ("new", "confirmed", {}, 101, {"accepted_at": _text(NOW - 86_400 + 100)}),
            ("lost", "confirmed", {}, 101, FORGOTTEN)]  # fmt: skip
    events = _events(spark, rows)
    breaks = events.selectExpr("'unopened' AS kind", "message_id")
    assert unopened(breaks, events).count() == 3, "it begins at 1"
    later = events.withColumn("sequence", events.sequence + 10)
    assert [row.message_id for row in unopened(breaks, later).collect()] == ["new"]


def test_a_digest_sees_what_xor_and_count_do_not(spark: SparkSession) -> None:
    def side(*rows: tuple[str, str]) -> DataFrame:
        return spark.createDataFrame([("p", *row) for row in rows], "place string, message_id string, value string")

    assert unlike(side(("a", "1"), ("b", "2")), side(("b", "2"), ("a", "1"))).isEmpty()
    (row,) = unlike(side(("a", "1"), ("b", "2")), side(("a", "1"), ("b", "3"))).collect()
    assert (row.message_id, row.value, row.other) == ("b", "2", "3")
    (row,) = unlike(side(("a", "1"), ("b", "2")), side(("b", "2"))).collect()
    assert (row.message_id, row.value, row.other) == ("a", "1", None)


# ------------------------------------------------------------------------------------------------------------ the job


def test_the_job_names_what_the_generator_broke_and_leaves_a_table(spark: SparkSession, tmp_path: Path) -> None:
    count, every = 20_000, 100
    made = tmp_path / "events"
    scale.events(spark, count, every=every, partitions=1).write.parquet(str(made))
    estate = tmp_path / "estate.json"
    estate.write_text(json.dumps({"queues": dict(scale.QUEUE_OF), "held": dict.fromkeys(scale.QUEUE_OF.values(), 0)}))
    job = Reconcile()
    pipeline = Pipeline(PipelineSettings(), storage=str(tmp_path / "storage"))
    given = options_of(job, {"source": str(made), "estate": str(estate)})
    context = Context(pipeline, JobRequest("r-1", given, job.name), spark=spark)
    outcome = job.run(context)
    expected = {row.message_id: row.what for row in scale.broken(spark, count, every=every).collect()}
    assert set(expected.values()) == set(scale.BREAKS)
    rows = spark.read.parquet(pipeline.place("reconcile", "r-1")).collect()
    kinds = {"unanswered": "lost", "lost at a bridge": "lost"}
    assert {row.message_id: row.kind for row in rows} == {key: kinds.get(what, what) for key, what in expected.items()}
    assert outcome.exit == 7
    assert sum(outcome.detail["breaks"].values()) == len(expected) == len(rows)
    none = {"source": str(made), "estate": str(estate), "until": datetime(2026, 1, 1, tzinfo=UTC)}
    context = Context(pipeline, JobRequest("r-2", options_of(job, none), job.name, dry_run=True), spark=spark)
    outcome = job.run(context)
    assert (outcome.exit, sum(outcome.detail["breaks"].values())) == (0, 0)
    assert not Path(pipeline.place("reconcile", "r-2")).exists()
