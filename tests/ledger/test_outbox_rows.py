"""The outbox at its bounds: how much goes at once, when it is due again, and where a page ends."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import LedgerUnavailable
from gateway.ledger import EventKind, Ledger, OutboxFilter
from gateway.ledger.db import batch
from gateway.ledger.db.shards import ShardLease
from gateway.ledger.pending import outbox as module
from gateway.ledger.pending.outbox import OutboxStore
from tests.ledger.conftest import NOW, Clock, Open, accepted, entry, intent, new_id
from tests.ledger.test_outbox import RABBIT, kinds, promised, put, scheduled


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def ledger(open_ledger: Open, clock: Clock) -> Ledger:
    return await open_ledger(clock=clock)


@pytest.mark.parametrize(
    ("most", "sizes", "taken"),
    [
        (20, [10, 10, 10], [2, 1]),
        (19, [10, 10], [1, 1]),
        (21, [10, 11], [2]),
        (20, [10, 50, 10], [1, 1, 1]),  # the third does not overtake the second
        (20, [50, 10], [1, 1]),
        (1, [0, 1, 0], [3]),
    ],
)
async def test_so_many_octets_are_claimed_at_once(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, most: int, sizes: list[int], taken: list[int]
) -> None:
    monkeypatch.setattr(module, "OCTETS_MAX", most)
    rows = [promised(payload=bytes(size)) for size in sizes]
    await ledger.outbox.put(rows)
    found = [await ledger.outbox.claim(10, RABBIT) for _ in taken]
    assert [len(each) for each in found] == taken
    assert [row.message_id for each in found for row in each] == [row.message_id for row in rows]
    assert await ledger.outbox.claim(10, RABBIT) == []


async def test_large_publishes_are_put_in_several_statements(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one transaction."""
    monkeypatch.setattr(batch, "PART", 100)
    for sizes in ([200], [10, 200, 10], [60, 60], [200, 200, 1]):
        rows = [promised(payload=bytes(size)) for size in sizes]
        await ledger.outbox.put(rows)
        found = await ledger.outbox.claim(10, RABBIT)
        assert [len(row.payload) for row in found] == sizes


@pytest.mark.parametrize(("due_in", "due"), [(0.5, 0.5), (0.0, 0.0), (-0.5, -20.0)])
async def test_when_it_is_due_again(ledger: Ledger, clock: Clock, due_in: float, due: float) -> None:
    (row,) = await put(ledger, 1)
    clock.now += 20
    await ledger.outbox.claim(10, RABBIT)
    assert await ledger.outbox.settle([], [(row.message_id, due_in, {})]) == [True]
    found = await ledger.outbox.get(row.message_id)
    assert found is not None
    assert found.due_at == NOW + (20 + due) * 1e6


async def test_a_page_that_is_full_may_be_the_last(ledger: Ledger) -> None:
    rows = sorted([*await put(ledger, 4), *await put(ledger, 2, broker="brokerj")], key=lambda row: row.message_id)
    ids = [row.message_id for row in rows]
    for limit in range(1, 8):
        found, cursor = await ledger.outbox.page(None, limit=limit)
        assert [row.message_id for row in found] == ids[:limit]
        assert cursor == (ids[limit - 1].hex() if limit < 6 else None)
        sought, further = await ledger.outbox.find("eu", None, None, limit)
        assert ([row.message_id for row in sought], further) == (ids[:limit], cursor)
    page, cursor = await ledger.outbox.page(OutboxFilter(broker="brokerj", dead=False), ids[3].hex(), 2)
    assert ([row.message_id for row in page], cursor) == (ids[4:], None)


async def test_a_search_looks_at_the_last_of_so_many(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIND_MAX", 2)
    rows = [promised(routing_key=key) for key in ("a", "b", "c")]
    await ledger.outbox.put(rows)

    async def find(text: str, after: Any = None) -> Any:
        found, cursor = await ledger.outbox.find(text, "shop", after and after.message_id.hex(), 10)
        return [row.routing_key for row in found], cursor

    assert await find("b") == (["b"], rows[1].message_id.hex())
    assert await find("c") == ([], rows[1].message_id.hex())
    assert await find("c", rows[1]) == (["c"], None)
    assert await find("b", rows[1]) == ([], None), "what it has seen is not looked at again"
    assert await find("c", rows[0]) == (["c"], rows[2].message_id.hex())


async def test_the_oldest_may_be_due_now(ledger: Ledger, clock: Clock) -> None:
    clock.now += 1
    await put(ledger, 2, at=NOW + 7)
    assert await ledger.outbox.oldest("rabbit", "shop", NOW + 6) is None
    assert await ledger.outbox.oldest("rabbit", "shop", NOW + 7) == NOW + 7


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
async def test_all_without_a_key_are_resolved_by_one_call(open_ledger: Open, limit: int) -> None:
    """Also where there are exactly as many as go at once: who asks stops when it is given nothing."""
    ledger = await open_ledger("first")
    ids = [new_id() for _ in range(4)]
    await ledger.record([accepted(each) for each in ids])
    await ledger.close()
    ledger = await open_ledger("second")
    assert await ledger.outbox.take_over(limit) == []
    for each in ids:
        timeline = await ledger.timeline(each)
        assert timeline is not None
        assert [str(event.kind) for event in timeline.events] == ["accepted", "unknown"]


async def test_as_many_with_a_key_are_taken_over_as_are_wanted(open_ledger: Open) -> None:
    ledger = await open_ledger("first")
    for number in range(3):
        await ledger.claim_key("shop", f"k{number}", b"f", [intent(new_id())])
    await ledger.record([accepted(new_id())])
    await ledger.close()
    ledger = await open_ledger("second")
    found = [await ledger.outbox.take_over(2) for _ in range(3)]
    assert [len(each) for each in found] == [2, 1, 0]
    assert len({row.message_id for each in found for row in each}) == 3


class Lost:
    """A ledger whose lease is lost as soon as something is written."""

    lease = ShardLease(0, 2)

    def __init__(self, written: Any) -> None:
        self.written = written

    async def task(self, run: Any) -> Any:
        return self.written


@pytest.mark.parametrize("verb", ["take_over", "claim"])
async def test_what_was_taken_over_under_a_lease_that_is_lost_is_not_sent(verb: str) -> None:
    """Another process takes it over from here."""

    async def taken(lease: ShardLease, found: list[Any]) -> Any:
        unused: Any = None
        store = OutboxStore(Lost((lease, found)), unused, unused, unused, 10, unused, unused)  # type: ignore[arg-type]
        return await (store.claim(5, ["b"]) if verb == "claim" else store.take_over())

    row = promised()
    assert await taken(ShardLease(0, 2), [row]) == [row]
    assert await taken(ShardLease(0, 1), []) == []
    with pytest.raises(LedgerUnavailable, match="lost"):
        await taken(ShardLease(0, 1), [row])


async def test_who_puts_nothing_writes_nothing(ledger: Ledger, sql: Any) -> None:
    before = sql("SELECT commits FROM shards")
    await ledger.outbox.put([], [])
    assert await ledger.outbox.settle([], [], []) == []
    assert sql("SELECT commits FROM shards") == before
    row = promised()
    await ledger.outbox.put([], [scheduled(row)])
    await ledger.outbox.put([row])
    assert await kinds(ledger, row) == ["scheduled"]
    assert await ledger.outbox.settle([], [(row.message_id, 0.0, {})]) == [False], "nobody has claimed it"
    assert not await ledger.outbox.revive(row.message_id, entry(row.message_id, EventKind.SCHEDULED))
    assert await kinds(ledger, row) == ["scheduled"]
