"""Nothing that was promised goes without a word: what is kept or ended is left alone, what is gone is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.ledger import BacklogSettlement, Ending, EventKind, Ledger, LogEntry, Owed
from gateway.ledger.pending.promises import MessageObligations, Missing, broken
from tests.audited import missing
from tests.ledger.conftest import NOW, Open, accepted, entry, intent, message, new_id, published
from tests.ledger.logs import spooled
from tests.ledger.test_branches import known, prepared
from tests.ledger.test_deliveries import delivered, owed, put
from tests.ledger.test_outbox import put as promise

Sql = Callable[[str], list[Any]]
Told = list[tuple[str, bytes]]


@pytest.fixture
async def ledger(open_ledger: Open) -> Ledger:
    return await open_ledger()


def settled(one: Owed, ending: Ending, kind: EventKind, **detail: Any) -> BacklogSettlement:
    told = {"subscription": one.subscription, **detail}
    return BacklogSettlement(one.id, ending, entries=(LogEntry(one.message_id, kind, NOW, "rabbit", "0-9-1", told),))


async def everything(ledger: Ledger) -> dict[str, Any]:
    """Of each promise one that is kept and, where that leaves a trace, one that ended."""
    kept: dict[str, Any] = {"publish": new_id(), "branch": new_id()}
    await ledger.record(published(new_id()))
    await ledger.record([accepted(kept["publish"])])
    await ledger.claim_key("shop", "k-1", b"f", [intent(new_id())])
    waiting, dead, done, purged = await put(ledger, 4)
    kept |= {"delivery": waiting, "dead": dead}
    await ledger.deliveries.settle(
        [
            settled(dead, Ending.DEAD, EventKind.DEAD),
            settled(done, Ending.DONE, EventKind.ACKNOWLEDGED),
            settled(purged, Ending.PURGE, EventKind.PURGED),
        ]
    )
    later, cancelled, sent, refused = await promise(ledger, 4)
    kept["later"] = later
    await ledger.outbox.cancel(cancelled.message_id, entry(cancelled.message_id, EventKind.CANCELLED))
    await ledger.outbox.claim(10, ["rabbit"])
    await ledger.outbox.settle(
        [(sent.message_id, [entry(sent.message_id, EventKind.CONFIRMED)])],
        kept=[(refused.message_id, [entry(refused.message_id, EventKind.REFUSED)], {})],
    )
    await ledger.outbox.release()
    branch = new_id()
    await ledger.branches.begin(branch, "b", "new")
    await ledger.branches.decide(branch, {}, [prepared(kept["branch"])], [known("k", kept["branch"])])
    await ledger.log.spool([spooled(), spooled(), spooled()])
    return kept


async def test_what_is_kept_or_ended_is_left_alone(ledger: Ledger) -> None:
    await everything(ledger)
    assert await missing(ledger) == []


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("DELETE FROM obligations WHERE length(key_id) = 0", [("publish", "publish", "")]),
        ("DELETE FROM deliveries", [("delivery", "dead", "billing"), ("delivery", "delivery", "billing")]),
        ("DELETE FROM deliveries WHERE status = 2", [("delivery", "dead", "billing")]),
        ("DELETE FROM outbox", [("later", "later", "")]),
        ("DELETE FROM branches", [("branch", "branch", "b")]),
        ("DELETE FROM bodies", [("body", "dead", "billing"), ("body", "delivery", "billing")]),
    ],
)
async def test_what_is_gone_is_named(
    ledger: Ledger, sql: Sql, statement: str, found: list[tuple[str, str, str]]
) -> None:
    kept = await everything(ledger)
    sql(statement)
    ids = {getattr(one, "message_id", one): name for name, one in kept.items()}
    assert sorted((each.promise, ids[each.message_id], each.what) for each in await missing(ledger)) == found


async def test_numbers_that_are_gone(ledger: Ledger, sql: Sql) -> None:
    await everything(ledger)
    (_, (extent,)) = await ledger.promises.survey()
    sql("DELETE FROM events WHERE sequence IN (2, 3)")
    sql("DELETE FROM message_log WHERE sequence = 2")
    assert {each for each in await missing(ledger) if not each.message_id} == {
        Missing("event", b"", f"shard {extent.shard}, 1 to {extent.head}", 2),
        Missing("spooled", b"", f"shard {extent.shard}, 1 to 3", 1),
    }


async def test_what_retention_took_is_not_missing(ledger: Ledger, sql: Sql) -> None:
    await everything(ledger)
    for log in ("events", "messages"):
        sql(f"INSERT INTO log_floors VALUES ('{log}', {ledger.shard}, 3, 'age', {NOW})")
    sql("DELETE FROM events WHERE sequence < 3")
    sql("DELETE FROM message_log WHERE sequence < 3")
    assert await missing(ledger) == []
    page = await ledger.promises.page(ledger.shard, 0, 10)  # one that was asked for before the floor was raised
    assert page.missing == []


async def test_pages_are_bounded_and_cover_all(ledger: Ledger, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.ledger.pending.promises.SPAN", 3)
    monkeypatch.setattr("gateway.ledger.pending.promises.NAMED", 1)
    rows = await put(ledger, 8)
    await ledger.log.spool([spooled() for _ in range(8)])
    page = await ledger.promises.page(ledger.shard, 0, 100)
    assert (page.events, page.end) == (3, 3)
    assert await missing(ledger) == []
    sql("DELETE FROM bodies")
    assert sorted(each.message_id for each in await missing(ledger)) == sorted(one.message_id for one in rows)
    sql("DELETE FROM deliveries")
    sql("DELETE FROM message_log WHERE sequence = 8")
    found = await missing(ledger)
    assert sorted(each.message_id for each in found if each.promise == "delivery") == sorted(
        one.message_id for one in rows
    )
    assert [each.what for each in found if each.promise == "spooled"] == [f"shard {ledger.shard}, 7 to 8"]


async def test_each_subscription_is_owed_its_own(ledger: Ledger, sql: Sql) -> None:
    one = owed("billing")
    other = owed("bil\udcffling", message_id=one.message_id)
    entries = [
        LogEntry(
            each.message_id, EventKind.STORED, NOW, "rabbit", "0-9-1", {"subscription": each.subscription}, message()
        )
        for each in (one, other)
    ]
    await ledger.deliveries.store([one, other], entries)
    await ledger.deliveries.settle([settled(one, Ending.DONE, EventKind.ACKNOWLEDGED)])
    assert await missing(ledger) == []
    sql("DELETE FROM deliveries")
    assert await missing(ledger) == [Missing("delivery", one.message_id, "bil\udcffling")]


async def test_handed_out_in_the_moment_it_was_stored(ledger: Ledger, sql: Sql) -> None:
    one = owed(lease_seconds=30.0)
    told = LogEntry(
        one.message_id, EventKind.DELIVERED, NOW, "rabbit", "0-9-1", {"subscription": "billing", "lease": 1}, message()
    )
    await ledger.deliveries.store([one], [told])
    assert await missing(ledger) == []
    sql("DELETE FROM deliveries")
    assert await missing(ledger) == [Missing("delivery", one.message_id, "billing")]


async def test_what_is_owed_beside_deliveries(ledger: Ledger) -> None:
    await everything(ledger)
    found = await ledger.promises.standing()
    assert (found.due, found.later, found.dead) == (1, 0, 1)
    assert (found.pending, found.parked) == (2, 0)
    assert found.overdue >= 0
    empty = await promise(ledger, 1, due_at=1 << 60)
    assert len(empty) == 1
    assert (await ledger.promises.standing()).later == 1


async def test_a_keyed_publish_without_an_outcome_waits_for_its_caller(ledger: Ledger) -> None:
    one = intent(new_id())
    await ledger.claim_key("shop", "k", bytes(32), [one])
    await ledger.record([entry(one.message_id, EventKind.UNKNOWN)])
    found = await ledger.promises.standing()
    assert (found.pending, found.parked) == (0, 1)


async def test_only_claims_that_a_broker_holds(ledger: Ledger) -> None:
    """What a broker leases is not the ledger's."""
    one = new_id()
    await ledger.record(
        [LogEntry(one, EventKind.DELIVERED, NOW, "rabbit", "0-9-1", {"subscription": "billing"}, message())]
    )
    assert await missing(ledger) == []
    assert await ledger.deliveries.claim("billing", 1, 1, entries=delivered) == []


# ------------------------------------------------------------------------------------------------ the table


def said(*kinds: EventKind, subscription: str = "s", lease: int | None = None) -> Told:
    lease_text = b"" if lease is None else b',"lease":%d' % lease
    return [(kind.value, b'{"subscription":"%s"%s}' % (subscription.encode(), lease_text)) for kind in kinds]


@pytest.mark.parametrize(
    ("told", "rows", "lost"),
    [
        (said(EventKind.STORED), {}, 1),
        (said(EventKind.STORED), {"s": 1}, 0),
        (said(EventKind.STORED), {"other": 1}, 1),
        (said(EventKind.STORED, EventKind.STORED), {"s": 1}, 1),
        (said(EventKind.STORED, EventKind.STORED, EventKind.ACKNOWLEDGED), {"s": 1}, 0),
        (said(EventKind.STORED, EventKind.DELIVERED, lease=1), {}, 1),
        (said(EventKind.DELIVERED, EventKind.DELIVERED, lease=1), {}, 1),
        (said(EventKind.DELIVERED), {}, 0),
        (said(EventKind.DEAD, EventKind.REVIVED), {}, 1),
        (said(EventKind.STORED, EventKind.DEAD), {"s": 1}, 0),
        (said(EventKind.STORED, EventKind.DEAD_LETTERED), {}, 0),
        ([(EventKind.STORED.value, b"")], {}, 0),
        ([*said(EventKind.STORED), (EventKind.REPLAYED.value, b'{"replay":"r"}')], {}, 0),
        ([*said(EventKind.STORED), *said(EventKind.ACKNOWLEDGED, subscription="other")], {}, 1),
    ],
)
def test_deliveries_are_counted(told: Told, rows: dict[str, int], lost: int) -> None:
    kept = MessageObligations()
    kept.deliveries.update(rows)
    assert sum(each.number for each in broken(b"m", told, kept)) == lost


@pytest.mark.parametrize(
    ("kinds", "kept", "lost"),
    [
        ([EventKind.ACCEPTED], MessageObligations(), ["publish"]),
        ([EventKind.ACCEPTED], MessageObligations(obligation=True), []),
        ([EventKind.ACCEPTED], MessageObligations(outbox=True), []),
        ([EventKind.ACCEPTED, EventKind.RESENT], MessageObligations(), ["publish"]),
        ([EventKind.ACCEPTED, EventKind.UNKNOWN], MessageObligations(), []),
        ([EventKind.SCHEDULED, EventKind.ACCEPTED], MessageObligations(obligation=True), ["later"]),
        ([EventKind.SCHEDULED], MessageObligations(outbox=True), []),
        ([EventKind.SCHEDULED, EventKind.CANCELLED], MessageObligations(), []),
        ([EventKind.PREPARED], MessageObligations(), ["branch"]),
        ([EventKind.PREPARED], MessageObligations(branches=frozenset({"b"})), []),
        ([EventKind.PREPARED, EventKind.RELEASED], MessageObligations(), []),
        ([EventKind.SPOOLED, EventKind.FILTERED], MessageObligations(), []),
    ],
)
def test_what_ends_a_promise(kinds: list[EventKind], kept: MessageObligations, lost: list[str]) -> None:
    told = [(kind.value, b'{"bridge":"b"}') for kind in kinds]
    assert [each.promise for each in broken(b"m", told, kept)] == lost
