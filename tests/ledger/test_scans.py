"""Messages, oldest first, step by step; on both databases."""

from __future__ import annotations

import pytest

from gateway.ledger import EventKind, KeptBody, Ledger, LogEntry, MessageFilter, MessageState
from gateway.ledger.events import scans as module
from tests.ledger.conftest import NOW, Open, message, new_id


async def add(ledger: Ledger, number: int, **fields: str) -> list[bytes]:
    ids = [new_id() for _ in range(number)]
    await ledger.record(
        [LogEntry(each, EventKind.CONFIRMED, NOW, "rabbit", "", None, message(**fields)) for each in ids]
    )
    return ids


async def everything(ledger: Ledger, where: MessageFilter, limit: int) -> list[bytes]:
    found: list[bytes] = []
    after = b""
    while True:
        page, following = await ledger.scans.step(where, after, limit)
        assert len(page) <= limit
        found += [each.id for each in page]
        if following is None:
            return found
        assert following > after
        after = following


@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize("step", [2, 5, 1_000])
async def test_all_of_them_in_their_order(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, limit: int, step: int
) -> None:
    monkeypatch.setattr(module, "STEP", step)
    ids: list[bytes] = []
    for number in range(4):
        ids += await add(ledger, 3, routing_key="odd" if number % 2 else "even")
    assert await everything(ledger, MessageFilter(), limit) == ids
    assert await everything(ledger, MessageFilter(routing_key="odd"), limit) == ids[3:6] + ids[9:]
    assert await everything(ledger, MessageFilter(routing_key="none"), limit) == []
    assert await everything(ledger, MessageFilter(state=MessageState.CONFIRMED), limit) == ids
    assert await everything(ledger, MessageFilter(state=MessageState.REFUSED), limit) == []


async def test_between_two_times(ledger: Ledger) -> None:
    ids = await add(ledger, 6)
    times = [int.from_bytes(each[:6], "big") * 1000 for each in ids]
    where = MessageFilter(since=times[0], until=times[-1] + 1_000)
    assert await everything(ledger, where, 2) == ids
    assert await everything(ledger, MessageFilter(until=times[0]), 2) == []
    assert await everything(ledger, MessageFilter(since=times[-1] + 1_000), 2) == []


async def test_by_id_and_payloads(open_ledger: Open) -> None:
    from gateway.config import RetentionSettings

    ledger = await open_ledger(retention=RetentionSettings(bodies="days"))
    first, second, third = await add(ledger, 3)
    await ledger.deliveries.keep_bodies([KeptBody(first, b"1", 1), KeptBody(third, b"3", 1)])
    assert await ledger.scans.payloads([first, second, third, new_id()]) == {first: b"1", third: b"3"}
    assert await ledger.scans.payloads([]) == {}
    found = await ledger.scans.by_id([first, second, new_id()])
    assert found.keys() == {first, second}
    assert found[first].state is MessageState.CONFIRMED
