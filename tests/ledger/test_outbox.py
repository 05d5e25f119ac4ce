"""The outbox: publishes that are owed, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.errors import EntriesRefused
from gateway.ledger import EventKind, Ledger, LogEntry, OutboxEntry, OutboxFilter
from tests.ledger.conftest import NOW, ON_POSTGRESQL, Clock, Open, accepted, entry, message, new_id

Sql = Callable[[str], list[Any]]
RABBIT = ["rabbit"]


def promised(**fields: Any) -> OutboxEntry:
    """A publish of later."""
    values: dict[str, Any] = {
        "message_id": new_id(),
        "broker": "rabbit",
        "exchange": "orders\udcff",
        "routing_key": "eu.\x00",
        "payload": b"hello\xff",
        "at": NOW,
        "client": "shop",
    }
    return OutboxEntry(**(values | fields))


def scheduled(row: OutboxEntry) -> LogEntry:
    return LogEntry(row.message_id, EventKind.SCHEDULED, NOW, "rabbit", "0-9-1", None, message())


async def put(ledger: Ledger, number: int, **fields: Any) -> list[OutboxEntry]:
    rows = [promised(**fields) for _ in range(number)]
    await ledger.outbox.put(rows, [scheduled(row) for row in rows])
    return rows


async def kinds(ledger: Ledger, row: OutboxEntry) -> list[str]:
    timeline = await ledger.timeline(row.message_id)
    return [] if timeline is None else [str(event.kind) for event in timeline.events]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def ledger(open_ledger: Open, clock: Clock) -> Ledger:
    return await open_ledger(clock=clock)


async def test_what_is_put_is_handed_out_once(ledger: Ledger, sql: Sql) -> None:
    (row,) = await put(ledger, 1)
    assert await ledger.outbox.get(row.message_id) == promised(message_id=row.message_id, due_at=NOW)
    expected = promised(message_id=row.message_id, due_at=NOW, attempt=1, claimed=True)
    assert await ledger.outbox.claim(10, RABBIT) == [expected]
    assert await ledger.outbox.claim(10, RABBIT) == []
    assert await ledger.outbox.settle([(row.message_id, [entry(row.message_id, EventKind.CONFIRMED)])]) == [True]
    assert await kinds(ledger, row) == ["scheduled", "confirmed"]
    assert sql("SELECT count(*) FROM outbox") == [(0,)]
    assert await ledger.outbox.get(row.message_id) is None
    await ledger.outbox.put([])
    assert await ledger.outbox.settle([]) == []


async def test_what_is_put_again_counts_once(ledger: Ledger, sql: Sql) -> None:
    """The first answer was lost; the second time it is in the outbox still, or was sent, or never came."""
    (there,), (sent,) = await put(ledger, 1), await put(ledger, 1, broker="brokerj")
    await ledger.outbox.claim(10, ["brokerj"])
    await ledger.outbox.settle([(sent.message_id, [entry(sent.message_id, EventKind.CONFIRMED)])])
    new = promised()
    again = [promised(message_id=row.message_id, reason={"resent": True}) for row in (there, sent, new)]
    await ledger.outbox.put(again, [scheduled(row) for row in again])
    assert [await kinds(ledger, row) for row in again] == [["scheduled"], ["scheduled", "confirmed"], ["scheduled"]]
    rows = await ledger.outbox.claim(10, RABBIT)
    assert {row.message_id: row.reason for row in rows} == {there.message_id: {}, new.message_id: {"resent": True}}
    (last,) = await put(ledger, 1)  # numbered behind them
    assert sql("SELECT max(sequence), count(*) FROM events") == [(5, 5)]
    assert await kinds(ledger, last) == ["scheduled"]


async def test_sent_when_it_is_due(ledger: Ledger, clock: Clock) -> None:
    late = promised(due_at=NOW + 60_000_000)
    soon = promised(due_at=NOW + 30_000_000)
    elsewhere = promised(broker="brokerj")
    await ledger.outbox.put([late, soon, elsewhere])
    assert await ledger.outbox.claim(10, RABBIT) == []
    assert await ledger.outbox.claim(10, []) == []
    assert len(await ledger.outbox.claim(10, ["brokerj"])) == 1
    clock.now += 30
    assert [row.message_id for row in await ledger.outbox.claim(10, RABBIT)] == [soon.message_id]
    clock.now += 30
    assert [row.message_id for row in await ledger.outbox.claim(10, RABBIT)] == [late.message_id]


async def test_in_the_order_in_which_they_are_due(ledger: Ledger, clock: Clock) -> None:
    clock.now += 60
    rows = [promised(due_at=NOW + offset) for offset in (3, 1, 2)]
    await ledger.outbox.put(rows)
    first = await ledger.outbox.claim(2, RABBIT)
    assert [row.due_at for row in first + await ledger.outbox.claim(2, RABBIT)] == [NOW + 1, NOW + 2, NOW + 3]


async def test_tried_again_later(ledger: Ledger, clock: Clock) -> None:
    one, two = await put(ledger, 2)
    await ledger.outbox.claim(10, RABBIT)
    confirmed = entry(two.message_id, EventKind.CONFIRMED)
    took = await ledger.outbox.settle([(two.message_id, [confirmed])], [(one.message_id, 5.0, {"why": "blocked"})])
    assert took == [True, True]
    assert await ledger.outbox.claim(10, RABBIT) == []
    clock.now += 5
    (again,) = await ledger.outbox.claim(10, RABBIT)
    assert (again.message_id, again.attempt, again.reason) == (one.message_id, 2, {"why": "blocked"})


async def test_taken_back_unless_it_is_being_sent(ledger: Ledger) -> None:
    one, two = await put(ledger, 2)
    assert await ledger.outbox.cancel(one.message_id, entry(one.message_id, EventKind.CANCELLED))
    assert await kinds(ledger, one) == ["scheduled", "cancelled"]
    assert not await ledger.outbox.cancel(one.message_id, entry(one.message_id, EventKind.CANCELLED))
    assert [row.message_id for row in await ledger.outbox.claim(10, RABBIT)] == [two.message_id]
    assert not await ledger.outbox.cancel(two.message_id, entry(two.message_id, EventKind.CANCELLED))
    assert await kinds(ledger, two) == ["scheduled"]
    assert await ledger.outbox.release() == 1
    assert await ledger.outbox.cancel(two.message_id, entry(two.message_id, EventKind.CANCELLED))


async def test_taken_back_when_it_may_have_been_sent(open_ledger: Open) -> None:
    ledger = await open_ledger("first")
    held, marked, never = await put(ledger, 3)

    async def taken_back(ledger: Ledger, row: OutboxEntry) -> str:
        plain, doubtful = (entry(row.message_id, kind) for kind in (EventKind.CANCELLED, EventKind.UNKNOWN))
        assert await ledger.outbox.cancel(row.message_id, plain, doubtful)
        return (await kinds(ledger, row))[-1]

    await ledger.outbox.claim(2, RABBIT)
    await ledger.outbox.settle([], [(marked.message_id, -1, {"resent": True})])
    assert await taken_back(ledger, never) == "cancelled"
    assert await taken_back(ledger, marked) == "unknown"
    await ledger.close()
    assert await taken_back(await open_ledger("second"), held) == "unknown"


async def test_another_time_unless_it_is_being_sent(ledger: Ledger, clock: Clock) -> None:
    (row,) = await put(ledger, 1)
    again = entry(row.message_id, EventKind.SCHEDULED)
    later = NOW + 50_000_000
    assert await ledger.outbox.reschedule(row.message_id, later, NOW, {"not_before": "then"}, again)
    assert await kinds(ledger, row) == ["scheduled", "scheduled"]
    assert await ledger.outbox.claim(10, RABBIT) == []
    clock.now += 50
    (claimed,) = await ledger.outbox.claim(10, RABBIT)
    assert claimed.reason == {"not_before": "then"}
    assert not await ledger.outbox.reschedule(row.message_id, later, NOW, {}, again), "it is being sent"
    await ledger.outbox.settle([], [(row.message_id, -1, {"resent": True, "text": "no confirm"})])
    assert await ledger.outbox.reschedule(row.message_id, NOW, NOW, {"not_before": "now"}, again)
    (claimed,) = await ledger.outbox.claim(10, RABBIT)
    assert claimed.reason == {"resent": True, "not_before": "now"}
    assert await ledger.outbox.settle([], [], [(row.message_id, [], {})]) == [True]
    assert not await ledger.outbox.reschedule(row.message_id, later, NOW, {}, again), "it was refused"
    assert not await ledger.outbox.reschedule(b"x" * 16, later, NOW, {}, again)
    assert await kinds(ledger, row) == ["scheduled", "scheduled", "scheduled"]


async def test_what_is_put_twice_is_there_once(ledger: Ledger) -> None:
    (row,) = await put(ledger, 1)
    await ledger.outbox.claim(1, RABBIT)
    await ledger.outbox.put([row, promised(message_id=row.message_id, payload=b"other")])
    found, cursor = await ledger.outbox.page()
    assert [(each.payload, each.attempt, each.claimed) for each in found] == [(b"hello\xff", 1, True)]
    assert cursor is None


async def test_pages(ledger: Ledger) -> None:
    rows = await put(ledger, 5)
    others = await put(ledger, 2, broker="brokerj", client="depot")
    found, cursor = await ledger.outbox.page(OutboxFilter(broker="rabbit"), limit=3)
    rest, end = await ledger.outbox.page(OutboxFilter(broker="rabbit"), cursor, limit=3)
    assert [row.message_id for row in found + rest] == [row.message_id for row in rows]
    assert end is None
    depot, _ = await ledger.outbox.page(OutboxFilter(client="depot"))
    assert [row.message_id for row in depot] == [row.message_id for row in others]
    with pytest.raises(ValueError, match="no cursor"):
        await ledger.outbox.page(None, "zz")


async def test_rows_of_a_dead_process_are_free(open_ledger: Open) -> None:
    """On SQLite after its successor has begun."""
    first = await open_ledger("first")
    one, two = await put(first, 2)
    claimed = await first.outbox.claim(1, RABBIT)
    assert [row.message_id for row in claimed] == [one.message_id]
    await first.close()
    second = await open_ledger("second")
    found = await second.outbox.claim(10, RABBIT)
    assert [(row.message_id, row.attempt) for row in found] == [(one.message_id, 2), (two.message_id, 1)]


@ON_POSTGRESQL
async def test_rows_of_another_process(open_ledger: Open) -> None:
    """What it holds is its own; of rows that were taken from it nothing is written."""
    first, second = await open_ledger("first"), await open_ledger("second")
    (row,) = await put(first, 1)
    claims = await asyncio.gather(*(ledger.outbox.claim(1, RABBIT) for ledger in (first, second) for _ in range(5)))
    assert sum(map(len, claims)) == 1
    holder, other = (first, second) if any(claims[:5]) else (second, first)
    assert await other.outbox.settle([], [(row.message_id, 0.0, {})]) == [False]
    assert await other.outbox.release() == 0
    assert not await other.outbox.cancel(row.message_id, entry(row.message_id, EventKind.CANCELLED))
    await holder.close()
    (taken,) = await other.outbox.claim(1, RABBIT)
    assert (taken.message_id, taken.attempt) == (row.message_id, 2)
    third = await open_ledger("third")
    late = [(row.message_id, [entry(row.message_id, EventKind.CONFIRMED)])]
    kept: list[Any] = [(row.message_id, [entry(row.message_id, EventKind.REFUSED)], {})]
    assert await third.outbox.settle(late) == [False]
    assert await third.outbox.settle([], [], kept) == [False]
    assert await kinds(third, row) == ["scheduled"]
    assert await other.outbox.settle(late) == [True]
    assert await other.outbox.settle(late) == [False]
    assert await kinds(third, row) == ["scheduled", "confirmed"]


async def test_publishes_without_a_key_are_settled_once(open_ledger: Open, sql: Sql) -> None:
    """More of them than a group holds. What came to an end before gets no second outcome."""
    ledger = await open_ledger(group_max=7)
    ids = [new_id() for _ in range(20)]
    await ledger.record([accepted(id) for id in ids])
    assert len(sql("SELECT 1 FROM obligations")) == 20
    resent = [(id, [entry(id, EventKind.RESENT), entry(id, EventKind.CONFIRMED)]) for id in ids]
    assert await ledger.outbox.settle_publishes(resent[:12]) == [True] * 12
    assert await ledger.outbox.settle_publishes(resent) == [False] * 12 + [True] * 8
    assert sql("SELECT 1 FROM obligations") == []
    for id in ids:
        timeline = await ledger.timeline(id)
        assert timeline is not None
        assert [str(event.kind) for event in timeline.events] == ["accepted", "resent", "confirmed"]


async def test_many_callers_share_commits(ledger: Ledger, sql: Sql) -> None:
    rows = [promised() for _ in range(100)]
    before = sql("SELECT commits FROM shards")[0][0]
    await asyncio.gather(*(ledger.outbox.put([row], [scheduled(row)]) for row in rows))
    assert sql("SELECT commits FROM shards")[0][0] < before + 10
    claimed = await ledger.outbox.claim(1_000, RABBIT)
    before = sql("SELECT commits FROM shards")[0][0]
    took = await asyncio.gather(*(ledger.outbox.settle([(row.message_id, [])]) for row in claimed))
    assert took == [[True]] * 100
    assert sql("SELECT commits FROM shards")[0][0] < before + 10


BAD: dict[str, dict[str, Any]] = {
    "short id": {"message_id": b"short"},
    "time beyond 64 bits": {"due_at": 2**70},
    "payload that is text": {"payload": "hello"},
    "reason that is no JSON": {"reason": {"it": object()}},
    "name that cannot be octets": {"exchange": "\ud800"},
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_row_fails_alone(ledger: Ledger, name: str) -> None:
    rows = [promised() for _ in range(4)]
    calls = [
        ledger.outbox.put(rows[:1], [scheduled(rows[0])]),
        ledger.outbox.put([rows[1], promised(**BAD[name]), rows[2]], [scheduled(rows[1]), scheduled(rows[2])]),
        ledger.outbox.put(rows[3:], [scheduled(rows[3])]),
    ]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[1], EntriesRefused)
    assert set(results[1].refused) == {1}
    assert (results[0], results[2]) == (None, None)
    found, _ = await ledger.outbox.page()
    assert [row.message_id for row in found] == sorted(row.message_id for row in rows)


async def test_a_bad_ending_fails_alone(ledger: Ledger) -> None:
    rows = await put(ledger, 4)
    await ledger.outbox.claim(4, RABBIT)
    done = [(row.message_id, [entry(row.message_id, EventKind.CONFIRMED)]) for row in rows[:2]]
    done[1] = (rows[1].message_id, [entry(b"short", EventKind.CONFIRMED)])
    retry = [(rows[2].message_id, 1.0, {}), (rows[3].message_id, float("nan"), {"it": object()})]
    with pytest.raises(EntriesRefused) as caught:
        await ledger.outbox.settle(done, retry)
    assert set(caught.value.refused) == {1, 3}
    assert caught.value.results == [True, None, True, None]
    found, _ = await ledger.outbox.page()
    assert [(row.message_id, row.claimed) for row in found] == [
        (rows[1].message_id, True),
        (rows[2].message_id, False),
        (rows[3].message_id, True),
    ]


async def test_a_large_call_is_written_in_groups(open_ledger: Open) -> None:
    ledger = await open_ledger(group_max=10)
    rows = await put(ledger, 35)
    assert len(await ledger.outbox.claim(100, RABBIT)) == 35
    done = [(row.message_id, [entry(row.message_id, EventKind.CONFIRMED)]) for row in rows[:20]]
    assert await ledger.outbox.settle(done, [(row.message_id, 0.0, {}) for row in rows[20:]]) == [True] * 35
    assert len(await ledger.outbox.claim(100, RABBIT)) == 15


async def test_the_oldest_that_keeps_its_place(ledger: Ledger, clock: Clock) -> None:
    """What was scheduled for later, postponed or refused for good holds nothing up."""
    by = NOW + 1_000_000
    assert await ledger.outbox.oldest("rabbit", "shop", by) is None
    await put(ledger, 1, due_at=NOW + 10)
    await put(ledger, 1, client="other")
    await put(ledger, 1, broker="brokerj")
    assert await ledger.outbox.oldest("rabbit", "shop", by) is None
    clock.now = (NOW + 5) / 1e6
    first, second = await put(ledger, 1, at=NOW + 1) + await put(ledger, 1, at=NOW + 2)
    assert await ledger.outbox.oldest("rabbit", "shop", by) == NOW + 1
    taken = {row.message_id: row for row in await ledger.outbox.claim(10, RABBIT)}
    assert await ledger.outbox.oldest("rabbit", "shop", by) == NOW + 1
    await ledger.outbox.settle([], retry=[(first.message_id, 1.0, {})], kept=[(second.message_id, [], {})])
    assert {first.message_id, second.message_id} <= taken.keys()
    assert await ledger.outbox.oldest("rabbit", "shop", by) is None


async def test_a_text_is_found_in_exchanges_and_keys(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    (a,) = await put(ledger, 1, routing_key="eu.\x00\udcff", exchange="")
    (b,) = await put(ledger, 1, exchange="eu", routing_key="x", client="other")
    (c,) = await put(ledger, 1, exchange="", routing_key="us.eu")

    async def find(text: str, client: str | None = None, cursor: str | None = None, limit: int = 10) -> Any:
        found, following = await ledger.outbox.find(text, client, cursor, limit)
        assert all(row.payload == b"" for row in found)
        return [row.message_id for row in found], following

    assert await find("eu") == ([each.message_id for each in (a, b, c)], None)
    assert await find("eu", "shop") == ([a.message_id, c.message_id], None)
    assert await find("\x00\udcff") == ([a.message_id], None)
    assert await find("EU") == ([], None)
    first, cursor = await find("eu", limit=2)
    assert (first, await find("eu", None, cursor, 2)) == ([a.message_id, b.message_id], ([c.message_id], None))
    monkeypatch.setattr("gateway.ledger.pending.outbox.FIND_MAX", 2)
    none, cursor = await find("us")
    assert (none, cursor is not None) == ([], True), "it looked at two, and says that there are more"
    assert await find("us", None, cursor) == ([c.message_id], None)
    with pytest.raises(ValueError, match="no cursor"):
        await find("eu", None, "no cursor")
