"""Events between two times."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import LedgerUnavailable
from gateway.ledger import EventKind, Happened, Ledger, LogEntry
from gateway.ledger.events.windows import LATE
from tests.ledger.conftest import NOW, ON_POSTGRESQL, SHA, Open, accepted, entry, message, new_id

HOUR = 3_600_000_000
KINDS = (EventKind.FORWARDED, EventKind.DEAD_LETTERED)


async def between(ledger: Ledger, since: int = 0, until: int = 2**62) -> list[Happened]:
    found = [event async for page in ledger.events_between(KINDS, since, until) for event in page]
    return sorted(found, key=lambda event: event.at)


def forwarded(at: int, **detail: Any) -> LogEntry:
    return LogEntry(new_id(), EventKind.FORWARDED, at, "target", "0-10", detail, message())


async def test_an_event_and_its_body(ledger: Ledger) -> None:
    known, strange = forwarded(NOW, bridge="b"), entry(new_id(), EventKind.DEAD_LETTERED, NOW + 1)
    await ledger.record([known, accepted(new_id()), strange])
    assert await between(ledger) == [
        Happened(EventKind.FORWARDED, known.message_id, NOW, {"bridge": "b"}, 5, SHA),
        Happened(EventKind.DEAD_LETTERED, strange.message_id, NOW + 1, {}, 0, b""),
    ]


async def test_the_window_begins_with_since_and_ends_before_until(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.ledger.events.windows.LATE", 0)  # which would hide a place that is off by one
    assert await between(ledger) == []
    times = [NOW + number * HOUR for number in range(10)]
    for at in times:
        await ledger.record([forwarded(at)])
    for since in (0, 3, 9):
        for until in (0, 3, 10):
            found = await between(ledger, times[0] + since * HOUR, times[0] + until * HOUR)
            assert [event.at for event in found] == times[since:until]


async def test_pages_leave_nothing_out(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.ledger.events.windows.SPAN", 7)
    times = [NOW + number for number in range(50)]
    await ledger.record([each for at in times for each in (accepted(new_id(), at), forwarded(at))])
    assert [event.at for event in await between(ledger)] == times
    pages = [len(page) async for page in ledger.events_between(KINDS, NOW, NOW + 100)]
    assert (len(pages), max(pages)) == (15, 4)


async def test_what_was_written_late_is_found(ledger: Ledger) -> None:
    """Events of an hour in which the ledger was away come after newer ones."""
    late = forwarded(NOW + 4 * HOUR - LATE // 2)
    await ledger.record([forwarded(NOW), *(forwarded(NOW + 4 * HOUR + number) for number in range(20)), late])
    assert late.message_id in {event.message_id for event in await between(ledger, late.at, late.at + 1)}


async def test_what_was_written_before_late_ones_is_found(ledger: Ledger) -> None:
    new = forwarded(NOW + HOUR)
    late = [forwarded(NOW + number) for number in range(20)]
    await ledger.record([new, *late, forwarded(NOW + 2 * HOUR)])
    found = await between(ledger, NOW + HOUR // 2, NOW + HOUR + 1)
    assert [event.message_id for event in found] == [new.message_id]


async def test_a_window_far_away_reads_next_to_nothing(ledger: Ledger) -> None:
    await ledger.record([forwarded(NOW + number * HOUR) for number in range(20)])
    pages = [page async for page in ledger.events_between(KINDS, NOW + 100 * HOUR, NOW + 200 * HOUR)]
    assert pages == []


@ON_POSTGRESQL
async def test_every_shard_is_read(open_ledger: Open) -> None:
    one, two = await open_ledger("one"), await open_ledger("two")
    for number in range(4):
        await (one, two)[number % 2].record([forwarded(NOW + number)])
    assert [event.at - NOW for event in await between(one)] == [0, 1, 2, 3]


async def test_a_closed_ledger(open_ledger: Open) -> None:
    ledger = await open_ledger()
    await ledger.close()
    with pytest.raises(LedgerUnavailable):
        await between(ledger)
