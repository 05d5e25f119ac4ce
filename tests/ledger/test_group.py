"""One transaction: which rows a group has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from gateway.ledger import EventKind, InboxRow, Ledger, LogEntry, New
from gateway.ledger.db import batch
from gateway.ledger.db.encoding import parse
from gateway.ledger.writing.calls import Claim
from gateway.ledger.writing.group import GroupRows
from gateway.ledger.writing.inserts import Values
from tests.ledger.conftest import NOW, SHA, accepted, entry, intent, new_id, published

Sql = Callable[[str], list[Any]]


def counts(rows: GroupRows) -> dict[str, int]:
    return {name: len(getattr(rows, name)) for name in rows.__slots__ if len(getattr(rows, name))}


def test_what_is_opened_and_settled_in_one_call_owes_nothing() -> None:
    rows = GroupRows()
    rows.add(published(new_id()))
    assert counts(rows) == {"events": 2, "messages": 1, "published": 1}


def test_each_call_settles_for_itself() -> None:
    rows = GroupRows()
    one, two = new_id(), new_id()
    rows.add([accepted(one)])
    rows.add([entry(one, EventKind.CONFIRMED), entry(two, EventKind.UNKNOWN), entry(two, EventKind.DELIVERED)])
    assert counts(rows) == {"events": 4, "messages": 1, "opened": 1, "settled": 1, "parked": 1, "published": 1}


def test_an_unknown_outcome_in_the_same_call_is_one() -> None:
    rows = GroupRows()
    one = new_id()
    rows.add([accepted(one), entry(one, EventKind.UNKNOWN)])
    assert counts(rows) == {"events": 2, "messages": 1, "published": 1}


def test_what_owes_nothing_is_in_nobodys_way() -> None:
    rows = GroupRows()
    one, two = new_id(), new_id()
    rows.add([entry(two, EventKind.RECEIVED), accepted(one), entry(two, EventKind.CONFIRMED)])
    assert counts(rows) == {"events": 3, "messages": 1, "opened": 1, "settled": 1, "published": 1}
    rows = GroupRows()
    rows.add([entry(one, EventKind.RESENT), entry(one, EventKind.CONFIRMED)], ended=True)
    assert counts(rows) == {"events": 2}


def test_one_detail_of_many_events_is_written_with_each() -> None:
    rows = GroupRows(Values(), Values())
    same: dict[str, Any] = {"queue": "orders"}
    details = [None, same, same, {"queue": "other"}, None, same]
    rows.add([entry(new_id(), EventKind.RECEIVED, detail=detail) for detail in details])
    assert isinstance(rows.events, Values)
    assert [parse(each) or None for each in rows.events.values[5::6]] == details


def test_a_message_is_watched_where_its_body_goes_with_an_event() -> None:
    rows = GroupRows(watched=frozenset({EventKind.ACKNOWLEDGED}))
    one, two = new_id(), new_id()
    rows.add([entry(one, EventKind.ACKNOWLEDGED), entry(two, EventKind.DELIVERED)])
    assert rows.consumed == {one}


def test_of_a_message_the_headers_that_are_named_are_kept() -> None:
    def properties(names: list[str], **fields: Any) -> dict[str, Any]:
        rows = GroupRows(Values(), Values(), headers=names)
        rows.add([accepted(new_id(), **fields)])
        assert isinstance(rows.messages, Values)
        return parse(rows.messages.values[-1])

    own, headers = {"message_id": "m-1"}, {"x-shop": "eu", "other": 1}
    assert properties([]) == properties([], headers=headers) == properties(["none"], headers=headers) == own
    assert properties(["x-shop"], headers={}) == properties(["x-shop"], headers=None) == own
    assert properties(["x-shop"], headers=headers) == own | {"headers": {"x-shop": "eu"}}
    assert properties(["x-shop"], headers=headers, properties=None) == {"headers": {"x-shop": "eu"}}


def test_large_obligations_are_opened_by_several_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "PART", 200)
    rows = GroupRows()
    claims = [intent(new_id(), bytes(size)) for size in (10, 300, 10, 10, 250, 10)]
    future: Any = None
    rows.add_claim(Claim(future, "shop", "k", b"f", claims))
    assert [len(each) for each in rows.opened] == [2, 3, 1]
    with pytest.raises(ValueError, match="intent 1 comes without its message"):
        rows.add_claim(Claim(future, "shop", "k", b"f", [claims[0], structs.replace(claims[1], message=None)]))


def test_of_the_same_key_of_the_inbox_the_last_row_counts() -> None:
    rows = GroupRows()
    seen = [InboxRow(scope, key, SHA, new_id(), NOW) for scope, key in ("aa", "ab", "ba", "aa", "bb", "ba")]
    rows.add_inbox(seen)
    rows.add_inbox([])
    assert list(rows.inbox.values()) == [seen[3], seen[1], seen[5], seen[4]]


async def test_a_probe_leaves_nothing(ledger: Ledger, sql: Sql) -> None:
    """It finds out whether rows can be written."""
    await ledger.record(published(new_id()))
    before = sql("SELECT commits, next_sequence FROM shards")

    def probe(connection: Any, lease: Any) -> None:
        first, _ = ledger._shards.enter(connection, lease, 0)
        ledger._group.probe(connection, lease, first, NOW)

    await ledger.task(probe)
    assert sql("SELECT count(*) FROM events") == [(2,)]
    assert sql("SELECT count(*) FROM messages") == [(1,)]
    assert sql("SELECT next_sequence FROM shards") == [before[0][1:]]
    sql("ALTER TABLE events RENAME TO away")
    with pytest.raises(Exception, match="events"):
        await ledger.task(probe)
    sql("ALTER TABLE away RENAME TO events")
    assert await ledger.record(published(new_id())) == [3, 4]


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
