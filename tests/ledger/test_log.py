"""The logs: what taps spool, and that whoever reads by number misses nothing."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from itertools import pairwise
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from gateway.errors import EntriesRefused, LedgerUnavailable
from gateway.ledger import EventKind, InboxRow, Ledger, Log, LogEntry, id_text
from gateway.ledger.db import schema
from gateway.ledger.db.engine import Database
from gateway.ledger.logs import log as log_module
from gateway.logs.columns import fields, select
from tests.ledger.conftest import NOW, ON_POSTGRESQL, SHA, Open, entry, message, new_id, published
from tests.ledger.logs import heads, rows, spooled


async def test_messages_are_numbered_in_their_order(ledger: Ledger) -> None:
    assert await ledger.log.spool([spooled(body=b"%d" % number) for number in range(3)]) == [1, 2, 3]
    assert await ledger.log.spool([spooled(body=b"3")]) == [4]
    assert await ledger.log.spool([]) == []
    assert [row["body"] for row in await rows(ledger)] == [b"0", b"1", b"2", b"3"]
    assert await heads(ledger) == {0: (1, 4)}
    assert await heads(ledger, Log.EVENTS) == {0: (1, 0)}


async def test_events_and_the_inbox_are_in_the_same_commit(ledger: Ledger, sql: Any) -> None:
    one = spooled(origin_id="o-1")
    told = LogEntry(one.message_id, EventKind.RECEIVED, NOW, "rabbit", "0-9-1", {"tap": "orders"}, message())
    row = InboxRow("orders", "o-1", SHA, one.message_id, NOW * 2)
    assert await ledger.log.spool([one], [told], [row]) == [1]
    assert sql("SELECT commits FROM shards") == [(2,)]  # the first is the one that opened it
    assert [each["kind"] for each in await rows(ledger, Log.EVENTS)] == ["received"]
    assert list(await ledger.seen("orders", ["o-1"])) == ["o-1"]


async def test_both_logs_have_numbers_of_their_own(ledger: Ledger) -> None:
    await ledger.record(published(new_id()))
    numbers = await asyncio.gather(
        ledger.log.spool([spooled()], [entry(new_id(), EventKind.RECEIVED)]),
        ledger.record([entry(new_id(), EventKind.DELIVERED)]),
        ledger.log.spool([spooled(), spooled()]),
    )
    assert numbers[0] + numbers[2] == [1, 2, 3]
    assert [row["sequence"] for row in await rows(ledger, Log.EVENTS)] == [1, 2, 3, 4]


async def test_all_columns_as_a_reader_gets_them(ledger: Ledger) -> None:
    one = spooled(
        redelivered=True, origin_id="m-\N{SNOWMAN}", exchange="", routing_key="caf\udce9", queue='{"type":"binary"'
    )
    await ledger.log.spool([one])
    (row,) = await rows(ledger)
    assert list(row) == [field.name for field in fields(Log.MESSAGES)]
    assert row["message_id"] == f"{one.message_id.hex()[:8]}-{one.message_id.hex()[8:12]}-" + "-".join(
        (one.message_id.hex()[12:16], one.message_id.hex()[16:20], one.message_id.hex()[20:])
    )
    assert (row["accepted_at"].isoformat(), row["redelivered"]) == ("2027-01-15T08:00:00+00:00", True)
    assert (row["exchange"], row["origin_id"]) == ("", "m-\N{SNOWMAN}")
    assert row["routing_key"] == f'{{"type":"binary","value":"{b64encode(b"caf" + bytes([0xE9])).decode()}"}}'
    assert row["queue"] == f'{{"type":"binary","value":"{b64encode(one.queue.encode()).decode()}"}}'
    assert (row["size"], row["sha256"]) == (5, one.sha256.hex())


async def test_the_message_of_an_event_is_joined_where_it_is_known(ledger: Ledger) -> None:
    huge = 2**64 - 1
    known, unknown = new_id(), new_id()
    await ledger.record([*published(known, size=huge)[:1], entry(unknown, EventKind.DELIVERED, detail={"a": "\udc80"})])
    first, second = await rows(ledger, Log.EVENTS)
    assert (first["source_broker"], first["exchange"], first["origin"]) == ("rabbit", "orders", "http")
    assert (first["size"], first["sha256"], first["detail"]) == (2**63 - 1, SHA.hex(), "{}")
    joined = {field.name for field in fields(Log.EVENTS) if field.joined}
    assert {name for name, value in second.items() if value is None} == joined
    assert second["detail"] == '{"a": "\\udc80"}'


async def test_what_is_not_asked_for_is_not_joined(ledger: Ledger) -> None:
    text = select(ledger._database.dialect, Log.EVENTS, 0, 0, 9, fields(Log.EVENTS, ["sequence", "kind"]))
    assert "JOIN" not in text
    assert "JOIN" in select("sqlite", Log.EVENTS, 0, 0, 9, fields(Log.EVENTS, ["kind"]), {"origin": ["http"]})


@pytest.mark.parametrize("name", ["o'brien", "%s %", 'x"; --', "\0", "caf\udce9", "\\x00", "q"])
async def test_filters_take_any_name(ledger: Ledger, name: str) -> None:
    await ledger.log.spool([spooled(queue=name), spooled(queue="other"), spooled(tap="other", queue=name)])
    assert [row["sequence"] for row in await rows(ledger, queue=[name])] == [1, 3]
    assert [row["sequence"] for row in await rows(ledger, queue=[name, "other"], tap=["orders"])] == [1, 2]
    assert await rows(ledger, tap=[name]) == []


async def test_a_bad_message_fails_alone(ledger: Ledger) -> None:
    good = [spooled() for _ in range(4)]
    bad = spooled(sha256=b"short")
    with pytest.raises(EntriesRefused) as caught:
        await ledger.log.spool([*good[:2], bad, *good[2:]])
    assert set(caught.value.refused) == {2}
    assert caught.value.results == [1, 2, None, 3, 4]
    assert [row["sequence"] for row in await rows(ledger)] == [1, 2, 3, 4]


async def test_more_than_a_group_at_once(open_ledger: Open) -> None:
    ledger = await open_ledger(group_max=50)
    messages = [spooled(body=b"x" * 1_000) for _ in range(120)]
    entries = [entry(each.message_id, EventKind.RECEIVED) for each in messages]
    assert await ledger.log.spool(messages, entries) == list(range(1, 121))
    assert len(await rows(ledger, Log.EVENTS)) == 120


async def test_eight_writers_and_a_reader_by_number(open_ledger: Open, database: Database) -> None:
    """Transactions are rolled back amid; who reads each shard behind the last number it saw gets every row of both
    logs, once, and never number n + 1 before n."""
    opened = [await open_ledger(f"writer-{number}", group_max=20) for number in range(8 if database.shared else 1)]
    written: dict[Log, set[str]] = {Log.EVENTS: set(), Log.MESSAGES: set()}
    done = asyncio.Event()

    async def write(number: int) -> None:
        ledger = opened[number % len(opened)]
        for turn in range(25):
            messages = [spooled(body=b"%d %d %d" % (number, turn, each)) for each in range(1 + turn % 5)]
            bad = spooled(sha256=b"") if turn % 4 == 0 else None
            entries = [entry(each.message_id, EventKind.RECEIVED) for each in messages]
            if bad is None:
                await ledger.log.spool(messages, entries)
            else:
                with pytest.raises(EntriesRefused, match=f"entry {len(messages)}:"):
                    await ledger.log.spool([*messages, bad], entries)
            ids = {id_text(each.message_id) for each in messages}
            written[Log.MESSAGES] |= ids
            written[Log.EVENTS] |= ids

    async def read(log: Log) -> list[str]:
        found: list[str] = []
        position: dict[int, int] = {}
        chosen = fields(log, ["sequence", "message_id"])
        while True:
            last_round = done.is_set()
            for extent in await opened[0].log.extents(log):
                after = position.get(extent.shard, 0)
                got = await opened[0].log.rows(log, extent.shard, after, extent.head, chosen, {})
                assert [row["sequence"] for row in got] == list(range(after + 1, extent.head + 1))
                position[extent.shard] = extent.head
                found += [row["message_id"] for row in got]
            if last_round:
                return found

    readers = [asyncio.create_task(read(log)) for log in Log]
    await asyncio.gather(*map(write, range(8)))
    done.set()
    for log, reader in zip(Log, readers, strict=True):
        found = await reader
        assert len(found) == len(set(found))
        assert set(found) == written[log]


@ON_POSTGRESQL
@pytest.mark.parametrize("happened", [True, False])
async def test_a_commit_that_is_cut_off(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, happened: bool) -> None:
    """The connection dies during COMMIT. What was written is told as written, and what was not has taken no number."""
    await ledger.log.spool([spooled(body=b"before")])
    dialect = ledger._writer._engine.dialect
    commit = dialect.do_commit

    def cut_off(connection: Any) -> None:
        monkeypatch.setattr(dialect, "do_commit", commit)
        if happened:
            commit(connection)
        connection.dbapi_connection.close()
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(dialect, "do_commit", cut_off)
    if happened:
        assert await ledger.log.spool([spooled(body=b"cut")]) == [2]
    else:
        with pytest.raises(LedgerUnavailable, match="lost"):
            await ledger.log.spool([spooled(body=b"cut")])
    await ledger.log.spool([spooled(body=b"after")])
    expected = [b"before", b"cut", b"after"] if happened else [b"before", b"after"]
    assert [row["body"] for row in await rows(ledger)] == expected


@ON_POSTGRESQL
async def test_a_fenced_writer_writes_nothing(open_ledger: Open, sql: Any) -> None:
    ledger = await open_ledger()
    shard = ledger.shard
    await ledger.log.spool([spooled(body=b"mine")])
    sql("UPDATE shards SET fence = fence + 1, owner = NULL")
    with pytest.raises(LedgerUnavailable, match="took over"):
        await ledger.log.spool([spooled(body=b"late")])
    assert [row["body"] for row in await rows(ledger, shard=shard)] == [b"mine"]
    assert await heads(ledger) == {shard: (1, 1)}
    assert await ledger.log.spool([spooled(body=b"again")]) == [2]  # under a new lease


async def test_how_much_is_between_two_numbers(ledger: Ledger, sql: Any) -> None:
    sizes = [10, 2_000, 0, 300]
    await ledger.log.spool([spooled(body=b"x" * size) for size in sizes])
    whole = await ledger.log.backlog(Log.MESSAGES, {})
    parts = [await ledger.log.backlog(Log.MESSAGES, {"0": number}) for number in range(5)]
    assert parts[0] == whole
    assert [each.rows for each in parts] == [4, 3, 2, 1, 0]
    steps = [one.octets - other.octets for one, other in pairwise(parts)]
    assert [step - size for step, size in zip(steps, sizes, strict=True)] == [steps[2]] * 4
    assert parts[4].octets == 0
    sql("DELETE FROM message_log WHERE sequence < 3")
    assert await ledger.log.backlog(Log.MESSAGES, {"0": 2}) == parts[2]


async def test_a_segment_holds_no_more_than_it_may(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "SEGMENT_OCTETS", 3_000)
    await ledger.log.spool([spooled(body=b"x" * size) for size in (1_000, 1_000, 9_000, 10, 10, 10, 1_000, 2_600, 200)])
    chosen = fields(Log.MESSAGES)

    async def cut(upto: int, rows: int = 100, chosen: Any = chosen) -> list[int]:
        found, after = [], 0
        while after < upto:
            after = await ledger.log.segment(Log.MESSAGES, 0, after, upto, chosen, rows)
            found.append(after)
        return found

    assert await cut(9) == [2, 3, 7, 8, 9]
    assert await cut(5) == [2, 3, 5]
    assert await cut(9, rows=2) == [2, 3, 5, 7, 8, 9]
    assert await cut(9, chosen=fields(Log.MESSAGES, ["sequence", "size"])) == [9]


async def test_where_an_older_ledger_has_gaps(url: str, database: Database, open_ledger: Open) -> None:
    """What is behind the last gap is where its log of events begins."""
    ledger = await open_ledger()
    kept = new_id()
    await ledger.record([entry(kept if number in (2, 9) else new_id(), EventKind.DELIVERED) for number in range(12)])
    await ledger.close()
    schema.migrate(database, "0005")
    engine = database.writer()

    async def floor_after(statement: str) -> Any:
        with engine.begin() as connection:
            connection.execute(sa.text(statement))
        again = await open_ledger()
        found = await heads(again, Log.EVENTS)
        await again.close()
        schema.migrate(database, "0005")
        return found[0]

    assert await floor_after("SELECT 1") == (1, 12)
    assert await floor_after("DELETE FROM events WHERE sequence < 3") == (3, 12)
    assert await floor_after("DELETE FROM events WHERE sequence IN (5, 7)") == (8, 12)
    assert await floor_after("DELETE FROM events WHERE sequence > 10") == (13, 12)
    assert await floor_after("DELETE FROM events") == (13, 12)
    engine.dispose()
