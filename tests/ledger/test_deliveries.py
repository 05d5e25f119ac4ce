"""Deliveries: stored, handed out, settled, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.errors import EntriesRefused
from gateway.ledger import (
    BacklogEntry,
    BacklogSettlement,
    DeliveryFilter,
    Ending,
    EventKind,
    InboxRow,
    Ledger,
    LogEntry,
    Owed,
)
from gateway.ledger.db.engine import Database
from gateway.ledger.pending.delivery_reads import dead_groups
from gateway.ledger.writing.calls import GROUP_OCTETS, WriterCall
from gateway.ledger.writing.group import GroupCommit
from tests.ledger.conftest import NOW, SHA, Clock, Open, message, new_id

Sql = Callable[[str], list[Any]]
BILLING = "billing"


def owed(subscription: str = BILLING, **fields: Any) -> Owed:
    """A message for a subscription."""
    values: dict[str, Any] = {"id": new_id(), "message_id": new_id(), "at": NOW, "payload": b"hello", "size": 5}
    return Owed(subscription=subscription, **(values | fields))


def stored(one: Owed) -> LogEntry:
    return LogEntry(
        one.message_id, EventKind.STORED, NOW, "rabbit", "0-9-1", {"subscription": one.subscription}, message()
    )


def delivered(found: list[BacklogEntry]) -> list[LogEntry]:
    return [LogEntry(each.message_id, EventKind.DELIVERED, NOW, "rabbit", "0-9-1") for each in found]


def acknowledged(one: BacklogEntry | Owed) -> LogEntry:
    return LogEntry(one.message_id, EventKind.ACKNOWLEDGED, NOW, "rabbit", "0-9-1")


def done(one: BacklogEntry, **fields: Any) -> BacklogSettlement:
    return BacklogSettlement(one.id, Ending.DONE, one.lease, **fields)


async def put(ledger: Ledger, number: int, subscription: str = BILLING, **fields: Any) -> list[Owed]:
    """Store some, in order."""
    rows = [owed(subscription, **{"at": NOW + index} | fields) for index in range(number)]
    await ledger.deliveries.store(rows, [stored(one) for one in rows])
    return rows


async def kinds(ledger: Ledger, message_id: bytes) -> list[str]:
    timeline = await ledger.timeline(message_id)
    return [] if timeline is None else [str(event.kind) for event in timeline.events]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def ledger(open_ledger: Open, clock: Clock) -> Ledger:
    return await open_ledger(clock=clock)


# ------------------------------------------------------------------------------------------------------- store


async def test_what_is_stored_is_handed_out_as_it_came(ledger: Ledger) -> None:
    one = owed("bil\udcffling\x00", order_key=b"\x00\xff", payload=b"\x00\xff" * 500, size=1_000, reason={"why": "x"})
    await ledger.deliveries.store([one], [stored(one)])
    (found,) = await ledger.deliveries.claim("bil\udcffling\x00", 10, 30, entries=delivered)
    assert found == BacklogEntry(
        id=one.id,
        message_id=one.message_id,
        subscription=one.subscription,
        order_key=b"\x00\xff",
        at=NOW,
        due_at=NOW + 30_000_000,
        attempt=1,
        lease=1,
        dead=False,
        reason={"why": "x"},
        size=1_000,
        payload=one.payload,
        out=True,
        due_in=30.0,
    )
    assert await kinds(ledger, one.message_id) == ["stored", "delivered"]
    assert await ledger.deliveries.claim("bil\udcffling\x00", 10, 30) == []
    assert await ledger.deliveries.settle([done(found, entries=(acknowledged(one),))]) == [True]
    assert await kinds(ledger, one.message_id) == ["stored", "delivered", "acknowledged"]
    assert await ledger.deliveries.get(one.id) is None
    assert await ledger.deliveries.body(one.message_id) is None


async def test_deliveries_events_and_inbox_share_a_commit(ledger: Ledger, sql: Sql) -> None:
    before = sql("SELECT commits FROM shards")[0][0]
    rows = [owed() for _ in range(50)]
    inbox = [InboxRow("pull:billing", one.id.hex(), SHA, one.message_id, 2 * NOW) for one in rows]
    await ledger.deliveries.store(rows, [stored(one) for one in rows], inbox)
    assert sql("SELECT commits FROM shards")[0][0] == before + 1
    for table in ("deliveries", "bodies", "inbox", "events", "messages"):
        assert sql(f"SELECT count(*) FROM {table}")[0][0] == 50


async def test_a_delivery_that_is_there_is_left_alone(ledger: Ledger, sql: Sql) -> None:
    """Storing is repeated when nobody could tell whether it happened."""
    one, two = owed(), owed()
    await ledger.deliveries.store([one])
    (found,) = await ledger.deliveries.claim(BILLING, 1, 30)
    await ledger.deliveries.store([one, two, two], [stored(one), stored(two)])
    assert (await kinds(ledger, one.message_id), await kinds(ledger, two.message_id)) == ([], ["stored"])
    assert sql("SELECT owed FROM bodies ORDER BY message_id") == [(1,), (1,)]
    assert [each.id for each in await ledger.deliveries.claim(BILLING, 10, 30)] == [two.id]
    assert await ledger.deliveries.settle([done(found)]) == [True]
    assert sql("SELECT count(*) FROM bodies") == [(1,)]


async def test_large_ones_do_not_share_one_commit(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other calls wait for the transaction under way."""
    sizes: list[int] = []
    write = GroupCommit.write

    def noted(group: GroupCommit, connection: Any, lease: Any, calls: Sequence[WriterCall], at: int) -> Any:
        sizes.append(sum(call.octets for call in calls))
        return write(group, connection, lease, calls, at)

    monkeypatch.setattr(GroupCommit, "write", noted)
    large = bytes(3 << 20)
    rows = [owed(payload=large, size=len(large), at=NOW + index) for index in range(8)]
    await asyncio.gather(*(ledger.deliveries.store([row], [stored(row)]) for row in rows))
    await ledger.deliveries.settle([BacklogSettlement(row.id, Ending.DONE, octets=len(large)) for row in rows])
    assert sum(sizes) == 2 * 8 * len(large)
    assert max(sizes) < GROUP_OCTETS + len(large)


async def test_stored_as_handed_out(ledger: Ledger, clock: Clock) -> None:
    one = owed(lease_seconds=20.0)
    await ledger.deliveries.store([one])
    assert await ledger.deliveries.claim(BILLING, 1, 30) == []
    there = await ledger.deliveries.get(one.id)
    assert there is not None
    assert (there.attempt, there.lease, there.due_in, there.out) == (1, 1, 20.0, True)
    clock.now += 20
    (found,) = await ledger.deliveries.claim(BILLING, 1, 30)
    assert (found.attempt, found.lease, found.expired) == (2, 2, True)
    assert await ledger.deliveries.settle([BacklogSettlement(one.id, Ending.DONE, 1)]) == [False]
    assert await ledger.deliveries.settle([BacklogSettlement(one.id, Ending.DONE, 2)]) == [True]


async def test_stored_with_a_schedule(ledger: Ledger, clock: Clock) -> None:
    one = owed(due_at=NOW + 5_000_000, attempt=1, reason={"status": 500})
    await ledger.deliveries.store([one])
    clock.now += 4.9
    assert await ledger.deliveries.claim(BILLING, 1, 30) == []
    clock.now += 0.1
    (found,) = await ledger.deliveries.claim(BILLING, 1, 30)
    assert (found.attempt, found.lease, found.expired, found.reason) == (2, 1, False, {"status": 500})


async def test_stored_dead(ledger: Ledger) -> None:
    one = owed(dead=True, reason={"status": 400})
    await ledger.deliveries.store([one])
    assert await ledger.deliveries.claim(BILLING, 1, 30) == []
    there = await ledger.deliveries.get(one.id, payload=True)
    assert there is not None
    assert (there.dead, there.reason, there.payload) == (True, {"status": 400}, b"hello")


async def test_a_large_call_is_written_in_groups(open_ledger: Open) -> None:
    ledger = await open_ledger(group_max=10)
    rows = await put(ledger, 35)
    found = await ledger.deliveries.claim(BILLING, 100, 30)
    assert [each.id for each in found] == [one.id for one in rows]
    assert await ledger.deliveries.settle([done(each) for each in found]) == [True] * 35


# ------------------------------------------------------------------------------------------------------- claim


async def test_handed_out_in_line(ledger: Ledger, clock: Clock) -> None:
    """By the time at which they are due, then by id; what was never due to wait in the order of arrival."""
    clock.now += 60
    late = owed(due_at=NOW + 61_000_000)
    soon = owed(due_at=NOW + 30_000_000)
    rows = await put(ledger, 5, at=NOW + 40_000_000)
    await ledger.deliveries.store([late, soon])
    found = await ledger.deliveries.claim(BILLING, 100, 30)
    assert [each.id for each in found] == [soon.id, *(one.id for one in rows)]
    clock.now += 1
    assert [each.id for each in await ledger.deliveries.claim(BILLING, 100, 30)] == [late.id]


async def test_as_many_as_are_wanted(ledger: Ledger) -> None:
    rows = await put(ledger, 5, size=100)
    await put(ledger, 1, "other")
    assert len(await ledger.deliveries.claim(BILLING, 2, 30)) == 2
    found = await ledger.deliveries.claim(BILLING, 10, 30, octets_max=250)
    assert [each.id for each in found] == [rows[2].id, rows[3].id]
    assert len(await ledger.deliveries.claim(BILLING, 10, 30, octets_max=1)) == 1  # the first, whatever its size
    assert await ledger.deliveries.claim(BILLING, 10, 30) == []


async def test_a_clock_of_the_process_that_is_ahead(ledger: Ledger) -> None:
    """What arrives is due at once, though it says that it will arrive later."""
    one = owed(at=NOW + 3_600_000_000)
    await ledger.deliveries.store([one])
    assert [each.id for each in await ledger.deliveries.claim(BILLING, 1, 30)] == [one.id]


async def test_in_order_one_of_each_key_is_out(ledger: Ledger, clock: Clock) -> None:
    a, b, c, free, other = (
        await put(ledger, 3, order_key=b"a"),
        await put(ledger, 2, order_key=b"b"),
        await put(ledger, 1, order_key=b"c"),
        await put(ledger, 2),
        await put(ledger, 1, "other", order_key=b"a"),
    )

    async def claim() -> list[BacklogEntry]:
        return await ledger.deliveries.claim(BILLING, 100, 30, ordered=True)

    first = await claim()
    assert {each.id for each in first} == {a[0].id, b[0].id, c[0].id, free[0].id, free[1].id}
    assert await claim() == []
    by_id = {each.id: each for each in first}
    await ledger.deliveries.settle([done(by_id[a[0].id])])
    await ledger.deliveries.settle([BacklogSettlement(b[0].id, Ending.RETRY, 1, due_in=10)])
    (second,) = await claim()
    assert second.id == a[1].id
    await ledger.deliveries.settle([BacklogSettlement(a[1].id, Ending.DEAD, 1)])  # the dead do not block
    assert [each.id for each in await claim()] == [a[2].id]
    clock.now += 10
    assert [each.id for each in await claim()] == [b[0].id]  # b[1] waits for it all the time
    assert [each.id for each in await ledger.deliveries.claim("other", 9, 9, ordered=True)] == [other[0].id]


async def test_in_order_behind_a_long_line(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the first that are due hold none that may go, it goes from key to key, and each has its turn."""
    monkeypatch.setattr("gateway.ledger.pending.delivery_rows.WINDOW_MIN", 20)
    line = await put(ledger, 100, order_key=b"m")
    others = [await put(ledger, 2, order_key=bytes([key])) for key in b"abcxyz"]
    free = await put(ledger, 3)
    found = [await ledger.deliveries.claim(BILLING, 1, 30, ordered=True) for _ in range(11)]
    ids = [each.id for claimed in found for each in claimed]
    assert ids[0] == line[0].id
    assert set(ids) == {line[0].id, *(pair[0].id for pair in others), *(one.id for one in free)}
    assert found[10] == []
    # Each time somebody is done the next of that key may go.
    await ledger.deliveries.settle([BacklogSettlement(others[0][0].id, Ending.DONE)])
    await ledger.deliveries.settle([BacklogSettlement(others[5][0].id, Ending.DONE)])
    found = [await ledger.deliveries.claim(BILLING, 1, 30, ordered=True) for _ in range(3)]
    assert {each.id for claimed in found for each in claimed} == {others[0][1].id, others[5][1].id}


async def test_many_claims_at_once_share_commits_and_nothing_else(ledger: Ledger, sql: Sql) -> None:
    rows = await put(ledger, 300)
    before = sql("SELECT commits FROM shards")[0][0]
    found = await asyncio.gather(*(ledger.deliveries.claim(BILLING, 3, 30, entries=delivered) for _ in range(100)))
    assert [len(each) for each in found] == [3] * 100
    assert sorted(one.id for each in found for one in each) == [one.id for one in rows]
    assert sql("SELECT commits FROM shards")[0][0] < before + 10
    before = sql("SELECT commits FROM shards")[0][0]
    took = await asyncio.gather(*(ledger.deliveries.settle([done(one) for one in each]) for each in found))
    assert took == [[True] * 3] * 100
    assert sql("SELECT commits FROM shards")[0][0] < before + 10
    assert sql("SELECT count(*) FROM deliveries") == sql("SELECT count(*) FROM bodies") == [(0,)]


# ------------------------------------------------------------------------------------------------------ settle


async def test_released_goes_to_the_end_or_to_its_old_place(ledger: Ledger, clock: Clock) -> None:
    clock.now += 60
    rows = await put(ledger, 4)
    one, two = await ledger.deliveries.claim(BILLING, 2, 30)
    clock.now += 1
    released = [
        BacklogSettlement(one.id, Ending.RETRY, 1, reason={"why": "busy"}),
        BacklogSettlement(two.id, Ending.RETRY, 1, front=True),
    ]
    assert await ledger.deliveries.settle(released) == [True, True]
    found = await ledger.deliveries.claim(BILLING, 4, 30)
    assert [each.id for each in found] == [rows[1].id, rows[2].id, rows[3].id, rows[0].id]
    assert [(each.attempt, each.lease, each.expired) for each in found] == [
        (2, 2, False),
        (1, 1, False),
        (1, 1, False),
        (2, 2, False),
    ]
    assert found[3].reason == {"why": "busy"}


async def test_a_lease_that_is_over_counts_no_more(ledger: Ledger, clock: Clock) -> None:
    await put(ledger, 1)
    (one,) = await ledger.deliveries.claim(BILLING, 1, 30)
    event = acknowledged(one)
    clock.now += 31
    assert await ledger.deliveries.settle([BacklogSettlement(one.id, Ending.EXTEND, 1, due_in=30)]) == [
        True
    ]  # nobody has it
    clock.now += 31
    (again,) = await ledger.deliveries.claim(BILLING, 1, 30)
    for ending in Ending:
        assert await ledger.deliveries.settle([BacklogSettlement(one.id, ending, 1, entries=(event,))]) == [False]
    assert await ledger.deliveries.settle([BacklogSettlement(one.id, Ending.RETRY, again.lease)]) == [True]
    for ending in Ending:
        assert await ledger.deliveries.settle([BacklogSettlement(one.id, ending, again.lease, entries=(event,))]) == [
            False
        ]
    assert await kinds(ledger, one.message_id) == ["stored"]
    assert await ledger.deliveries.settle([BacklogSettlement(new_id(), Ending.DONE, entries=(event,))]) == [False]


async def test_extended(ledger: Ledger, clock: Clock) -> None:
    await put(ledger, 1)
    (one,) = await ledger.deliveries.claim(BILLING, 1, 30)
    clock.now += 29
    assert await ledger.deliveries.settle([BacklogSettlement(one.id, Ending.EXTEND, 1, due_in=7_200)]) == [True]
    clock.now += 7_199
    assert await ledger.deliveries.claim(BILLING, 1, 30) == []
    clock.now += 1
    (again,) = await ledger.deliveries.claim(BILLING, 1, 30)
    assert (again.attempt, again.lease) == (2, 2)


async def test_dead_and_revived(ledger: Ledger) -> None:
    rows = await put(ledger, 2)
    (one,) = await ledger.deliveries.claim(BILLING, 1, 30)
    assert await ledger.deliveries.settle([BacklogSettlement(one.id, Ending.DEAD, 1, reason={"why": "5 times"})]) == [
        True
    ]
    assert await ledger.deliveries.settle([BacklogSettlement(one.id, Ending.RETRY)]) == [False]
    dead, _ = await ledger.deliveries.page(DeliveryFilter(subscription=BILLING, dead=True), payload=True)
    assert [(each.id, each.reason, each.payload) for each in dead] == [(one.id, {"why": "5 times"}, b"hello")]
    assert await ledger.deliveries.settle([BacklogSettlement(one.id, Ending.REVIVE, attempt=0, front=True)]) == [True]
    found = await ledger.deliveries.claim(BILLING, 2, 30)
    assert [(each.id, each.attempt, each.lease) for each in found] == [(rows[0].id, 1, 2), (rows[1].id, 1, 1)]
    assert found[0].reason == {"why": "5 times"}
    purged = [BacklogSettlement(each.id, Ending.PURGE) for each in found]
    assert await ledger.deliveries.settle(purged) == [True, True]
    assert await ledger.deliveries.settle(purged) == [False, False]


async def test_settlements_of_one_delivery_in_one_call(ledger: Ledger) -> None:
    await put(ledger, 1)
    (one,) = await ledger.deliveries.claim(BILLING, 1, 30)
    took = await ledger.deliveries.settle(
        [
            BacklogSettlement(one.id, Ending.EXTEND, 1, due_in=60),
            done(one, entries=(acknowledged(one),)),
            done(one, entries=(acknowledged(one),)),
        ]
    )
    assert took == [True, True, False]
    assert await kinds(ledger, one.message_id) == ["stored", "acknowledged"]


# ------------------------------------------------------------------------------------------------------ bodies


async def test_a_body_is_stored_once_and_goes_with_its_last_delivery(ledger: Ledger, sql: Sql) -> None:
    shared = new_id()
    rows = [owed(name, message_id=shared) for name in ("a", "b", "c")]
    await ledger.deliveries.store(rows[:2])
    await ledger.deliveries.store(rows[2:])
    assert sql("SELECT owed FROM bodies") == [(3,)]
    assert await ledger.deliveries.body(shared) == b"hello"
    for one, left in zip(rows[:2], (2, 1), strict=True):
        assert await ledger.deliveries.settle([BacklogSettlement(one.id, Ending.DONE)]) == [True]
        assert sql("SELECT owed FROM bodies") == [(left,)]
    (last,) = await ledger.deliveries.claim("c", 1, 30)
    assert last.payload == b"hello"
    await ledger.deliveries.settle([done(last)])
    assert sql("SELECT count(*) FROM bodies") == [(0,)]


async def test_a_message_that_says_it_is_another_does_not_change_it(ledger: Ledger, sql: Sql) -> None:
    shared = new_id()
    one, two = owed("a", message_id=shared, payload=b"one"), owed("b", message_id=shared, payload=b"two")
    await ledger.deliveries.store([one])
    await ledger.deliveries.store([two])
    assert [each.payload for each in await ledger.deliveries.claim("a", 1, 30)] == [b"one"]
    assert [each.payload for each in await ledger.deliveries.claim("b", 1, 30)] == [b"two"]
    await ledger.deliveries.settle([BacklogSettlement(one.id, Ending.DONE)])
    assert sql("SELECT count(*) FROM bodies") == [(1,)]
    assert await ledger.deliveries.body(shared) == b"two"


# ----------------------------------------------------------------------------------------------------- reading


async def test_due_in_line_and_page_by_page(ledger: Ledger, clock: Clock) -> None:
    rows = await put(ledger, 5)
    later = owed(due_at=NOW + 90_000_000)
    dead = owed(dead=True)
    await ledger.deliveries.store([later, dead])
    (out,) = await ledger.deliveries.claim(BILLING, 1, 60)
    found = await ledger.deliveries.due(BILLING, 100)
    assert [each.id for each in found] == [*(one.id for one in rows[1:]), out.id, later.id]
    assert [each.out for each in found] == [False] * 4 + [True, False]
    assert [each.due_in for each in found[-2:]] == [60.0, 90.0]
    assert found[0].payload is None
    paged = await ledger.deliveries.due(BILLING, 2, payload=True)
    assert [each.payload for each in paged] == [b"hello"] * 2
    while page := await ledger.deliveries.due(BILLING, 2, after=paged[-1], payload=True):
        paged += page
    assert [each.id for each in paged] == [each.id for each in found]


async def test_pages(ledger: Ledger) -> None:
    rows = await put(ledger, 5, order_key=b"k")
    await put(ledger, 2, "other")
    where = DeliveryFilter(subscription=BILLING)
    found, cursor = await ledger.deliveries.page(where, limit=3)
    rest, end = await ledger.deliveries.page(where, cursor, limit=3)
    assert ([each.id for each in found + rest], end) == ([one.id for one in rows], None)
    newest, cursor = await ledger.deliveries.page(where, limit=2, newest_first=True)
    assert [each.id for each in newest] == [rows[4].id, rows[3].id]
    assert await ledger.deliveries.count(where) == 5
    assert await ledger.deliveries.count(where, most=3) == 3
    assert await ledger.deliveries.count() == 7
    by: dict[DeliveryFilter, int] = {
        DeliveryFilter(message_id=rows[2].message_id): 1,
        DeliveryFilter(order_key=b"k"): 5,
        DeliveryFilter(dead=True): 0,
        DeliveryFilter(dead=False): 7,
        DeliveryFilter(until_id=rows[2].id): 3,
        DeliveryFilter(since=0, until=2 * NOW): 7,
        DeliveryFilter(until=1_000_000): 0,
    }
    assert {where: await ledger.deliveries.count(where) for where in by} == by
    assert await ledger.deliveries.newest(BILLING) == rows[4].id
    assert await ledger.deliveries.newest("nobody") is None
    with pytest.raises(ValueError, match="no cursor"):
        await ledger.deliveries.page(where, "zz")


async def die(ledger: Ledger, rows: Sequence[Owed], code: str, status: Ending = Ending.DEAD) -> None:
    reason = {"code": code, "reason": f'"code":"{code}x"'}
    await ledger.deliveries.settle([BacklogSettlement(row.id, status, reason=reason) for row in rows])


async def groups(ledger: Ledger, most: int = 10, **where: Any) -> tuple[dict[tuple[str, str], int], bool]:
    found, more = await ledger.deliveries.dead_groups(most, **where)
    return {(each.code, each.subscription): each.count for each in found}, more


async def test_dead_ones_are_counted_by_code_and_subscription(ledger: Ledger) -> None:
    rows = await put(ledger, 5)
    await die(ledger, rows[:3], "rejected")
    await die(ledger, rows[3:4], "expired")
    other = await put(ledger, 2, "o\udcffther")
    await die(ledger, other, "no such code")
    await ledger.deliveries.store([owed("stored", dead=True, reason={"code": "maxlen"}), owed("alive")])
    names = {
        ("rejected", BILLING): 3, ("expired", BILLING): 1, ("unknown", "o\udcffther"): 2, ("maxlen", "stored"): 1,
    }  # fmt: skip
    assert await groups(ledger) == (names, False)
    (found,), _ = await ledger.deliveries.dead_groups(10, code="rejected")
    assert (found.first_at, found.last_at, found.more) == (NOW, NOW + 2, False)
    assert await groups(ledger, 2) == ({("rejected", BILLING): 3, ("expired", BILLING): 1}, True)
    assert await groups(ledger, code="unknown") == ({("unknown", "o\udcffther"): 2}, False)
    only = (BILLING, "stored", "none")
    assert (await groups(ledger, subscriptions=only))[0].keys() == names.keys() - {("unknown", "o\udcffther")}
    assert await groups(ledger, code="expired", subscriptions=only) == ({("expired", BILLING): 1}, False)
    assert await groups(ledger, subscriptions=()) == ({}, False)
    where = DeliveryFilter(code="rejected", subscriptions=(BILLING, "none"))
    assert await ledger.deliveries.count(where) == 3
    page, cursor = await ledger.deliveries.page(where, limit=2)
    assert ([each.id for each in page], cursor) == ([row.id for row in rows[:2]], rows[1].id.hex())
    assert await ledger.deliveries.count(DeliveryFilter(code="rejected", dead=False)) == 0
    await die(ledger, rows[:1], "expired", Ending.REVIVE)
    assert await groups(ledger, subscriptions=(BILLING,)) == (
        {("rejected", BILLING): 2, ("expired", BILLING): 1}, False,
    )  # fmt: skip
    await ledger.deliveries.settle([BacklogSettlement(row.id, Ending.DISCARD) for row in rows[:2]])
    assert (await groups(ledger, code="rejected"))[0] == {("rejected", BILLING): 1}
    assert await ledger.deliveries.get(rows[0].id) is not None, "it is not dead any more"


async def test_groups_of_dead_ones_are_looked_for_until_there_are_more_than_wanted(
    ledger: Ledger, database: Database
) -> None:
    """A caller may see many subscriptions: those behind the last group of the answer are not looked at."""
    names = tuple(f"s{number}" for number in range(20))
    for name in names:
        await die(ledger, await put(ledger, 1, name), "rejected")
    engine = database.readers()
    statements: list[str] = []
    with engine.connect() as connection:
        sa.event.listen(connection, "before_cursor_execute", lambda *event: statements.append(event[2]))
        among_all = dead_groups(connection, 2, "rejected", names)
        fewest = len(statements)
        assert dead_groups(connection, 2, "rejected", names[:3]) == among_all
        assert len(statements) == 2 * fewest
    engine.dispose()
    groups, more = among_all
    assert ([group.subscription for group in groups], more) == (["s0", "s1"], True)


async def test_more_dead_ones_than_are_counted(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.ledger.pending.delivery_reads.COUNTED_MAX", 4)
    await die(ledger, await put(ledger, 3), "rejected")
    await die(ledger, await put(ledger, 2), "expired")
    found, _ = await ledger.deliveries.dead_groups(10)
    assert [(each.code, each.count, each.more) for each in found] == [("rejected", 2, True), ("expired", 2, False)]


async def test_dead_ones_of_a_release_that_kept_no_code(ledger: Ledger, sql: Sql) -> None:
    rows = await put(ledger, 3)
    await die(ledger, rows, "rejected")
    await die(ledger, await put(ledger, 1), "unknown")
    sql("UPDATE deliveries SET code = '' WHERE code = 'rejected'")
    assert await groups(ledger) == ({("unknown", BILLING): 4}, False)
    assert await ledger.deliveries.count(DeliveryFilter(code="unknown")) == 4


async def test_backlogs(ledger: Ledger, clock: Clock) -> None:
    await put(ledger, 4, size=10)
    await ledger.deliveries.store([owed(dead=True, size=3), owed("other", size=1)])
    await ledger.deliveries.claim(BILLING, 2, 30)
    backlog = await ledger.deliveries.backlog(BILLING)
    assert (backlog.waiting, backlog.out, backlog.dead, backlog.octets) == (2, 2, 1, 43)
    assert (backlog.oldest_at, backlog.next_due_at) == (NOW, NOW)
    clock.now += 31
    assert (await ledger.deliveries.backlog(BILLING)).waiting == 4
    backlogs = await ledger.deliveries.backlogs()
    assert {name: each.waiting for name, each in backlogs.items()} == {BILLING: 4, "other": 1}
    nothing = await ledger.deliveries.backlog("nobody")
    assert (nothing.waiting, nothing.octets, nothing.oldest_at) == (0, 0, None)


# ----------------------------------------------------------------------------------------------------- bad rows

BAD: dict[str, dict[str, Any]] = {
    "short id": {"id": b"short"},
    "short message id": {"message_id": b"short"},
    "time beyond 64 bits": {"at": 2**70},
    "size beyond 64 bits": {"size": 2**70},
    "payload that is text": {"payload": "hello"},
    "key that is none": {"order_key": None},
    "reason that is no JSON": {"reason": {"it": object()}},
    "subscription that cannot be octets": {"subscription": "\ud800"},
    "lease that never ends": {"lease_seconds": float("inf")},
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_row_fails_alone(ledger: Ledger, name: str) -> None:
    rows = [owed() for _ in range(7)]
    bad = owed(**{"subscription": BILLING} | BAD[name])
    calls = [ledger.deliveries.store([one], [stored(one)]) for one in rows[:3]]
    calls.append(ledger.deliveries.store([rows[3], bad, rows[4]], [stored(one) for one in rows[3:5]]))
    calls += [ledger.deliveries.store([one], [stored(one)]) for one in rows[5:]]
    results = await asyncio.gather(*calls, return_exceptions=True)
    refused = results.pop(3)
    assert isinstance(refused, EntriesRefused), refused
    assert set(refused.refused) == {1}
    assert results == [None] * 5
    found = await ledger.deliveries.claim(BILLING, 100, 30)
    assert {each.id for each in found} == {one.id for one in rows}
    events, _ = await ledger.events_after({})
    assert [event.sequence for event in events] == list(range(1, 8))
    assert ledger.healthy


async def test_a_bad_settlement_fails_alone(ledger: Ledger) -> None:
    await put(ledger, 6)
    found = await ledger.deliveries.claim(BILLING, 6, 30)
    settlements = [done(each, entries=(acknowledged(each),)) for each in found]
    settlements[1] = BacklogSettlement(found[1].id, Ending.RETRY, 1, attempt=2**70)
    settlements[2] = BacklogSettlement(found[2].id, Ending.DONE, 7)
    settlements[4] = done(found[4], entries=(LogEntry(b"short", EventKind.ACKNOWLEDGED, NOW),))
    with pytest.raises(EntriesRefused) as caught:
        await ledger.deliveries.settle(settlements)
    assert set(caught.value.refused) == {1, 4}
    assert caught.value.results == [True, None, False, True, None, True]
    assert {each.id for each in (await ledger.deliveries.page())[0]} == {found[index].id for index in (1, 2, 4)}


async def test_bad_events_of_a_claim_hand_out_nothing(ledger: Ledger) -> None:
    await put(ledger, 2)
    bad = ledger.deliveries.claim(BILLING, 1, 30, entries=lambda _: [LogEntry(b"short", EventKind.DELIVERED, NOW)])
    good = ledger.deliveries.claim(BILLING, 1, 30, entries=delivered)
    results = await asyncio.gather(bad, good, return_exceptions=True)
    assert isinstance(results[0], EntriesRefused)
    assert isinstance(results[1], list)
    assert len(results[1]) == 1
    (left,) = await ledger.deliveries.claim(BILLING, 9, 30)
    assert (left.attempt, left.lease) == (1, 1)
