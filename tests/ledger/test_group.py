"""One transaction: which rows a group has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.ledger import EventKind, Ledger, LogEntry, New
from gateway.ledger.writing.group import GroupRows
from tests.ledger.conftest import NOW, accepted, entry, intent, new_id, published

Sql = Callable[[str], list[Any]]


def counts(rows: GroupRows) -> dict[str, int]:
    return {name: len(getattr(rows, name)) for name in rows.__slots__ if len(getattr(rows, name))}


def test_what_is_opened_and_settled_in_one_call_owes_nothing() -> None:
    rows = GroupRows()
    rows.add(published(new_id()))
    assert counts(rows) == {"events": 2, "messages": 1}


def test_each_call_settles_for_itself() -> None:
    rows = GroupRows()
    one, two = new_id(), new_id()
    rows.add([accepted(one)])
    rows.add([entry(one, EventKind.CONFIRMED), entry(two, EventKind.UNKNOWN), entry(two, EventKind.DELIVERED)])
    assert counts(rows) == {"events": 4, "messages": 1, "opened": 1, "settled": 1, "parked": 1}


def test_an_unknown_outcome_in_the_same_call_is_one() -> None:
    rows = GroupRows()
    one = new_id()
    rows.add([accepted(one), entry(one, EventKind.UNKNOWN)])
    assert counts(rows) == {"events": 2, "messages": 1}


async def test_records_claims_and_endings_share_a_transaction(ledger: Ledger, sql: Sql) -> None:
    """All sequence numbers of a group follow one another, whatever the calls were."""
    first = intent(new_id())
    await ledger.claim_key("shop", "first", b"f", [first])
    before = sql("SELECT commits FROM shards")[0][0]
    calls: list[Any] = []
    for number in range(10):
        calls.append(ledger.record(published(new_id())))
        calls.append(ledger.claim_key("shop", f"k{number}", b"f", [intent(new_id()), intent(new_id())]))
    calls.append(ledger.finish_key("shop", "first", 200, b"", [entry(first.message_id, EventKind.CONFIRMED)]))
    results = await asyncio.gather(*calls)
    assert results.count(New()) == 10
    assert sql("SELECT commits FROM shards")[0][0] - before <= 3
    assert [row[0] for row in sql("SELECT sequence FROM events ORDER BY sequence")] == list(range(1, 43))
    for sequences in (result for result in results if isinstance(result, list)):
        kinds = [sql(f"SELECT kind FROM events WHERE sequence = {sequence}")[0][0] for sequence in sequences]
        assert kinds == ["accepted", "confirmed"]


async def test_an_event_without_its_message_row_is_kept(ledger: Ledger) -> None:
    """The ledger does not look whether the message is there: the price would be a look-up for each event."""
    one = new_id()
    await ledger.record([LogEntry(one, EventKind.RELEASED, NOW)])
    assert await ledger.timeline(one) is None
    events, _ = await ledger.events_after({})
    assert [event.message_id for event in events] == [one]
