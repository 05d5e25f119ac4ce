"""The outbox where things go wrong: old places, what is kept, what is in doubt, keys; on both databases."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import EntriesRefused
from gateway.ledger import EventKind, Ledger, LogEntry, Mismatch, New, OutboxEntry, OutboxFilter, StoredAnswer
from gateway.ledger.pending import outbox as module
from gateway.ledger.pending.outbox import OLD_PLACE
from tests.ledger.conftest import NOW, Clock, Open, entry
from tests.ledger.test_outbox import RABBIT, Sql, kinds, promised, put, scheduled


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def ledger(open_ledger: Open, clock: Clock) -> Ledger:
    return await open_ledger(clock=clock)


async def test_a_retry_in_its_old_place_comes_before_its_successors(ledger: Ledger, clock: Clock) -> None:
    first, second, third = await put(ledger, 3)
    await ledger.outbox.claim(10, RABBIT)
    clock.now += 10
    held = [(first.message_id, 0.0, {"n": 1}), (second.message_id, OLD_PLACE, {}), (third.message_id, OLD_PLACE, {})]
    assert await ledger.outbox.settle([], held) == [True] * 3
    rows = await ledger.outbox.claim(10, RABBIT)
    assert [row.message_id for row in rows] == [second.message_id, third.message_id, first.message_id]
    assert [row.due_at for row in rows[:2]] == [NOW, NOW]
    assert not any(row.doubtful for row in rows)


async def test_what_is_refused_for_good_is_kept_until_it_is_revived(ledger: Ledger) -> None:
    (row,) = await put(ledger, 1)
    await ledger.outbox.claim(10, RABBIT)
    refused = entry(row.message_id, EventKind.REFUSED)
    assert await ledger.outbox.settle([], [], [(row.message_id, [refused], {"text": "no"})]) == [True]
    assert await kinds(ledger, row) == ["scheduled", "refused"]
    kept = await ledger.outbox.get(row.message_id)
    assert kept is not None
    assert (kept.dead, kept.reason, kept.claimed) == (True, {"text": "no"}, False)
    assert await ledger.outbox.claim(10, RABBIT) == []
    for dead in (True, False):
        page, _ = await ledger.outbox.page(OutboxFilter(dead=dead))
        assert len(page) == dead
    again = entry(row.message_id, EventKind.SCHEDULED)
    assert await ledger.outbox.revive(row.message_id, again) is True
    assert await ledger.outbox.revive(row.message_id, again) is False
    assert len(await ledger.outbox.claim(10, RABBIT)) == 1
    assert await kinds(ledger, row) == ["scheduled", "refused", "scheduled"]


async def test_what_is_kept_can_be_cancelled(ledger: Ledger) -> None:
    (row,) = await put(ledger, 1)
    await ledger.outbox.claim(10, RABBIT)
    await ledger.outbox.settle([], [], [(row.message_id, [], {})])
    assert await ledger.outbox.cancel(row.message_id, entry(row.message_id, EventKind.CANCELLED)) is True
    assert await ledger.outbox.get(row.message_id) is None


async def test_a_long_settlement_is_divided(open_ledger: Open) -> None:
    ledger = await open_ledger(group_max=7)
    rows = await put(ledger, 30)
    await ledger.outbox.claim(100, RABBIT)
    done = [(row.message_id, [entry(row.message_id, EventKind.CONFIRMED)]) for row in rows[:10]]
    retry = [(row.message_id, OLD_PLACE, {}) for row in rows[10:20]]
    kept = [(row.message_id, [entry(row.message_id, EventKind.REFUSED)], {}) for row in rows[20:]]
    assert await ledger.outbox.settle(done, retry, kept) == [True] * 30
    page, _ = await ledger.outbox.page()
    assert [row.dead for row in page] == [False] * 10 + [True] * 10


async def test_octets_bound_what_is_claimed(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OCTETS_MAX", 25)
    await put(ledger, 5, payload=bytes(10))
    assert [len(await ledger.outbox.claim(10, RABBIT)) for _ in range(4)] == [2, 2, 1, 0]
    await put(ledger, 2, payload=bytes(100))
    assert [len(await ledger.outbox.claim(10, RABBIT)) for _ in range(3)] == [1, 1, 0]


async def test_what_a_dead_process_held_is_in_doubt(open_ledger: Open, clock: Clock, sql: Sql) -> None:
    ledger = await open_ledger(clock=clock)
    held, free = await put(ledger, 2)
    await ledger.outbox.claim(1, RABBIT)
    await ledger.close()
    ledger = await open_ledger(clock=clock)
    rows = await ledger.outbox.claim(10, RABBIT)
    assert {row.message_id: row.doubtful for row in rows} == {held.message_id: True, free.message_id: False}


# -------------------------------------------------------------------------------------------------- keys


async def keyed(ledger: Ledger, rows: list[OutboxEntry], entries: list[LogEntry] | None = None, **more: Any) -> Any:
    values: dict[str, Any] = {"client": "me", "key": "k", "fingerprint": b"f" * 32, **more}
    return await ledger.outbox.put_keyed(
        values["client"],
        values["key"],
        values["fingerprint"],
        rows,
        [scheduled(row) for row in rows] if entries is None else entries,
        status=202,
        headers={"a": "b"},
        body=b"answer",
    )


async def test_key_answer_and_promise_in_one_commit(ledger: Ledger, clock: Clock) -> None:
    row = promised()
    assert await keyed(ledger, [row]) == New()
    assert await kinds(ledger, row) == ["scheduled"]
    assert await keyed(ledger, [promised()]) == StoredAnswer(202, {"a": "b"}, b"answer")
    assert await keyed(ledger, [promised()], fingerprint=b"g" * 32) == Mismatch()
    assert await keyed(ledger, [promised()], client="you") == New()
    page, _ = await ledger.outbox.page()
    assert len(page) == 2
    clock.now += 100_000  # longer than a key is remembered
    assert await keyed(ledger, [promised()]) == New()


async def test_what_cannot_be_written_leaves_no_key(ledger: Ledger, sql: Sql) -> None:
    row = promised()
    bad = LogEntry(b"short", EventKind.SCHEDULED, NOW, "rabbit", "", None)
    with pytest.raises(EntriesRefused):
        await keyed(ledger, [row], [bad])
    assert sql("SELECT count(*) FROM idempotency_keys") == [(0,)]
    assert sql("SELECT count(*) FROM outbox") == [(0,)]
    assert await keyed(ledger, [row]) == New()


async def test_many_at_once_with_one_key(ledger: Ledger) -> None:
    answers = await asyncio.gather(*(keyed(ledger, [promised()]) for _ in range(20)))
    assert sum(answer == New() for answer in answers) == 1
    page, _ = await ledger.outbox.page()
    assert len(page) == 1
