"""Counts per hour."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from typing import Any

import pytest

from gateway.ledger import EventKind, HourFilter, HourlyEvents, Ledger
from gateway.ledger.events import statistics
from tests.ledger.conftest import NOW, ON_POSTGRESQL, Open, entry, new_id, published

HOUR = 3_600_000_000
THIS = NOW // HOUR


async def counts(ledger: Ledger, by: Collection[str] = ("kind",), **where: Any) -> dict[tuple[Any, ...], int]:
    """Every count, by hour and names."""
    found, cursor = await ledger.history.statistics(HourFilter(**where), None, 1_000, by)
    assert cursor is None
    return {(each.hour - THIS, *(getattr(each, name) for name in by)): each.events for each in found}


async def test_events_are_counted_by_the_hour_they_tell_of(ledger: Ledger) -> None:
    one, other = new_id(), new_id()
    await ledger.record([*published(one, NOW, size=7), *published(other, NOW + 2 * HOUR, size=11)])
    await ledger.record(
        [
            entry(one, EventKind.DELIVERED, NOW, {"subscription": "b\u00e9", "attempt": 1}),
            entry(one, EventKind.DELIVERED, NOW, {"subscription": "b\u00e9", "attempt": 2}),
            entry(one, EventKind.ATTEMPT_FAILED, NOW, {"subscription": "b\udcff", "endpoint": "shop"}),
            entry(other, EventKind.FORWARDED, NOW, {"bridge": "east", "subscription": None}),
            entry(new_id(), EventKind.RECEIVED, NOW),  # a message that is not known
        ]
    )
    assert await counts(ledger) == {}
    assert await ledger.history.keeper.count()
    found, cursor = await ledger.history.statistics()
    assert cursor is None
    assert found == [
        HourlyEvents(THIS + 2, EventKind.ACCEPTED, "rabbit", "", "", "", 1, 11),
        HourlyEvents(THIS + 2, EventKind.CONFIRMED, "rabbit", "", "", "", 1, 11),
        HourlyEvents(THIS, EventKind.ACCEPTED, "rabbit", "", "", "", 1, 7),
        HourlyEvents(THIS, EventKind.ATTEMPT_FAILED, "rabbit", "b\udcff", "shop", "", 1, 7),
        HourlyEvents(THIS, EventKind.CONFIRMED, "rabbit", "", "", "", 1, 7),
        HourlyEvents(THIS, EventKind.DELIVERED, "rabbit", "b\u00e9", "", "", 2, 14),
        HourlyEvents(THIS, EventKind.FORWARDED, "rabbit", "", "", "east", 1, 11),
        HourlyEvents(THIS, EventKind.RECEIVED, "rabbit", "", "", "", 1, 0),
    ]
    assert await counts(ledger, (), subscription="b\u00e9") == {(0,): 2}
    assert await counts(ledger, ("bridge",), bridge="east", kinds=frozenset({EventKind.FORWARDED})) == {(0, "east"): 1}
    assert await counts(ledger, ("broker",), until=THIS + 2) == {(0, "rabbit"): 7}
    assert await counts(ledger, ("endpoint",), since=THIS + 2, broker="rabbit") == {(2, ""): 2}
    assert await counts(ledger, (), endpoint="shop", broker="other") == {}


async def test_counting_again_changes_nothing_and_goes_on(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "SPAN", 3)
    for _ in range(5):
        await ledger.record(published(new_id()))
    for _ in range(3):
        await ledger.history.keeper.count()
    await ledger.record(published(new_id()))
    await ledger.history.keeper.count()
    assert await counts(ledger) == {(0, EventKind.ACCEPTED): 6, (0, EventKind.CONFIRMED): 6}


async def test_a_page_that_somebody_else_has_counted_is_not_added(ledger: Ledger) -> None:
    await ledger.record(published(new_id()))
    keeper = ledger.history.keeper
    for begins in (True, False):
        page = await ledger.read(partial(keeper._next_page, await ledger.history.end()))
        assert (page.begin == 0) is begins
        both = [await ledger.task(partial(keeper._add, page)) for _ in range(2)]
        assert both == [True, False]
        await ledger.record(published(new_id()))
    assert await counts(ledger, ()) == {(0,): 4}


async def test_counting_ends_though_events_keep_coming(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    await ledger.record(published(new_id()))
    write = ledger.task
    turns = 0

    async def busy(run: Any) -> Any:
        nonlocal turns
        turns += 1
        if turns < 50:
            await ledger.record(published(new_id()))
        return await write(run)

    monkeypatch.setattr(ledger, "task", busy)
    await ledger.history.keeper.count()
    assert turns == 1
    assert await counts(ledger, ()) == {(0,): 2}


@ON_POSTGRESQL
async def test_several_processes_count_each_event_once(open_ledger: Open) -> None:
    """Past the lock that lets one of them work at a time."""
    ledgers = [await open_ledger(f"p{number}") for number in range(4)]
    for _ in range(10):
        await asyncio.gather(*(ledger.record(published(new_id())) for ledger in ledgers))
    await asyncio.gather(*(ledger.history.keeper._count() for ledger in ledgers for _ in range(2)))
    assert await counts(ledgers[0], ()) == {(0,): 80}


@ON_POSTGRESQL
async def test_one_process_works_at_a_time(open_ledger: Open) -> None:
    one, other = await open_ledger("one"), await open_ledger("other")

    async def meanwhile() -> None:
        assert not await other.history.keeper.count()

    assert await one.history.keeper._alone(meanwhile)
    assert await other.history.keeper.count()


async def test_an_hour_has_only_so_many_names(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "ROWS_MAX", 4)
    one = new_id()
    await ledger.record(published(one))

    async def deliver(*names: str) -> None:
        await ledger.record([entry(one, EventKind.DELIVERED, NOW, {"subscription": name}) for name in names])
        await ledger.history.keeper.count()

    await deliver("a")
    await deliver("b", "a")
    await deliver("c", "d", "a")
    await deliver("c", "e", "b")
    assert await counts(ledger, ("subscription",), kinds=frozenset({EventKind.DELIVERED})) == {
        (0, "a"): 3,
        (0, "b"): 2,
        (0, "(other)"): 4,
    }


@pytest.mark.parametrize("by", [statistics.BY, ("kind", "subscription"), ()])
async def test_pages(ledger: Ledger, by: tuple[str, ...]) -> None:
    for hour in range(3):
        one = new_id()
        entries = [
            entry(one, kind, NOW + hour * HOUR, {"subscription": name, "bridge": "b" * (number % 2)})
            for kind in (EventKind.DELIVERED, EventKind.RELEASED)
            for number, name in enumerate(("a", "b\udcff", "c"))
        ]
        await ledger.record(entries)
    await ledger.history.keeper.count()
    everything, _ = await ledger.history.statistics(None, None, 1_000, by)
    assert sum(each.events for each in everything) == 18
    for limit in (1, 2, 5):
        found: list[HourlyEvents] = []
        cursor = None
        while True:
            page, cursor = await ledger.history.statistics(None, cursor, limit, by)
            found += page
            if cursor is None:
                break
        assert found == everything


@pytest.mark.parametrize("cursor", ["", "zz", "e30=", "W10=", "é"])
async def test_a_foreign_cursor(ledger: Ledger, cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        await ledger.history.statistics(None, cursor)
