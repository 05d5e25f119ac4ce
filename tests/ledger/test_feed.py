"""Following the events: nothing missed, nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from gateway.errors import LedgerUnavailable
from gateway.ledger import EventFilter, EventKind, Ledger, RecordedEvent
from gateway.ledger.events import feed, reads
from gateway.ledger.events.feed import AWAY, POLL, Feed
from tests.ledger.conftest import NOW, ON_POSTGRESQL, Open, entry, new_id, published


async def take(ledger: Ledger, position: dict[str, int], count: int, **where: Any) -> list[RecordedEvent]:
    """The next events behind a position."""
    found: list[RecordedEvent] = []
    async with asyncio.timeout(60), aclosing(ledger.history.follow(position, EventFilter(**where), 60.0)) as pages:
        async for page, _ in pages:
            found += page
            if len(found) >= count:
                return found
    raise AssertionError("it ended")


async def test_what_was_and_what_comes(ledger: Ledger) -> None:
    await ledger.record(published(new_id()))
    seen = []
    async with asyncio.timeout(60), aclosing(ledger.history.follow({})) as pages:
        async for page, position in pages:
            seen += [event.sequence for event in page]
            assert position == {"0": max(seen, default=0)}
            if len(seen) == 2:
                assert ledger.history.followers == 1
                await ledger.record(published(new_id()))
            elif len(seen) == 4:
                break
    assert seen == [1, 2, 3, 4]
    assert ledger.history.followers == 0


async def test_from_now_on(ledger: Ledger) -> None:
    await ledger.record(published(new_id()))
    position = await ledger.history.end()
    assert position == {"0": 2}
    await ledger.record(published(new_id()))
    assert [event.sequence for event in await take(ledger, position, 2)] == [3, 4]


async def test_from_a_time_on(ledger: Ledger) -> None:
    for place in range(10):
        await ledger.record(published(new_id(), NOW + place))
    assert await ledger.history.position_at(NOW + 3) == {"0": 6}
    assert await ledger.history.position_at(NOW - 1) == {"0": 0}
    assert await ledger.history.position_at(NOW + 99) == {"0": 20}


async def test_filters_are_the_same_for_what_was_and_for_what_comes(ledger: Ledger) -> None:
    one, other = new_id(), new_id()

    async def write() -> None:
        await ledger.record(published(one))
        await ledger.record(
            [
                entry(one, EventKind.DELIVERED, detail={"subscription": "billing"}),
                entry(other, EventKind.FORWARDED, detail={"bridge": "east"}),
                entry(other, EventKind.ATTEMPT_FAILED, detail={"subscription": "billing", "endpoint": "shop"}),
                entry(other, EventKind.RELEASED, detail={"subscription": "bill"}),
            ]
        )

    filters: list[tuple[dict[str, Any], list[int]]] = [
        ({"kinds": frozenset({EventKind.CONFIRMED, EventKind.RELEASED})}, [2, 6]),
        ({"broker": "rabbit", "message_id": other}, [4, 5, 6]),
        ({"broker": "other"}, []),
        ({"subscription": "billing"}, [3, 5]),
        ({"endpoint": "shop"}, [5]),
        ({"bridge": "east"}, [4]),
    ]
    start = await ledger.history.end()
    live = [asyncio.create_task(take(ledger, start, len(expected), **where)) for where, expected in filters if expected]
    while ledger.history.followers < len(live):
        await asyncio.sleep(0.01)
    await write()
    for found, (_, expected) in zip(await asyncio.gather(*live), (each for each in filters if each[1]), strict=True):
        assert [event.sequence for event in found] == expected
    for where, expected in filters:
        found, position = await ledger.history.events_after({}, 100, EventFilter(**where))
        assert ([event.sequence for event in found], position) == (expected, {"0": 6}), where


async def test_a_position_moves_over_what_is_not_wanted_and_over_what_is_gone(ledger: Ledger, sql: Any) -> None:
    for _ in range(3):
        await ledger.record(published(new_id()))
    nothing = EventFilter(broker="other")
    assert await ledger.history.events_after({}, 4, nothing) == ([], {"0": 4})
    assert await ledger.history.events_after({"0": 4}, 4, nothing) == ([], {"0": 6})
    sql("DELETE FROM events WHERE sequence IN (1, 2, 3, 6)")
    found, position = await ledger.history.events_after({}, 100)
    assert ([event.sequence for event in found], position) == ([4, 5], {"0": 6})
    await ledger.record(published(new_id()))
    assert [event.sequence for event in await take(ledger, {}, 4)] == [4, 5, 7, 8]


async def test_an_idle_follower_hears_where_it_is(ledger: Ledger) -> None:
    await ledger.record(published(new_id()))
    async with asyncio.timeout(60), aclosing(ledger.history.follow({"0": 2}, idle=0.01)) as pages:
        for _ in range(3):
            assert await anext(pages) == ([], {"0": 2})


async def test_a_follower_that_is_too_slow_reads_from_the_ledger(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "KEPT", 10)
    monkeypatch.setattr(feed, "POLL", 0.01)
    seen: list[int] = []
    more = {0: 1, 2: 50}
    async with asyncio.timeout(60), aclosing(ledger.history.follow({}, idle=0.05)) as pages:
        async for page, _ in pages:
            seen += [event.sequence for event in page]
            if messages := more.pop(len(seen), 0):
                for _ in range(messages):
                    await ledger.record(published(new_id()))
                await asyncio.sleep(0.1)
            if len(seen) == 102:
                break
    assert seen == list(range(1, 103))


async def test_followers_outlive_a_ledger_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is new is waited for."""
    monkeypatch.setattr(feed, "AWAY", 0.01)
    monkeypatch.setattr(feed, "POLL", 0.01)
    one = RecordedEvent(0, 6, new_id(), EventKind.RECEIVED, NOW, "rabbit", "0-9-1", {})
    left = 3

    async def read(function: Any, *arguments: Any) -> Any:
        nonlocal left
        if function.__name__ == "end":
            return {"0": 5}
        if arguments[0] == {"0": 5} and len(arguments) == 2:  # what is new
            left -= 1
            if left:
                raise LedgerUnavailable("away")
            return [one], {"0": 6}
        return [], {"0": max(5, arguments[0].get("0", 0))}

    async with asyncio.timeout(60), aclosing(Feed(read).follow({"0": 4}, EventFilter(), 60.0)) as pages:
        found = [each async for each in until_found(pages)]
    assert (found[-1], left) == (([one], {"0": 6}), 0)


async def until_found(pages: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Up to the first page that is not empty."""
    async for page in pages:
        yield page
        if page[0]:
            return


@ON_POSTGRESQL
async def test_eight_writers_and_one_reader_by_sequence(open_ledger: Open) -> None:
    """Each commits when it pleases; the reader misses no row, and sees none twice."""
    writers = [await open_ledger(f"writer-{number}") for number in range(8)]
    reader = await open_ledger("reader")
    rounds = 25
    wrote: list[tuple[int, int]] = []

    async def write(ledger: Ledger, size: int) -> None:
        for turn in range(rounds):
            entries = [each for _ in range(1 + (turn + size) % 5) for each in published(new_id())]
            wrote.extend((ledger.shard, sequence) for sequence in await ledger.record(entries))

    expected = sum(2 * (1 + (turn + size) % 5) for turn in range(rounds) for size in range(8))
    follower = asyncio.create_task(take(reader, {}, expected))
    await asyncio.gather(*(write(ledger, size) for size, ledger in enumerate(writers)))
    seen = [(event.shard, event.sequence) for event in await follower]
    assert len(seen) == len(set(seen)) == expected
    assert set(seen) == set(wrote)
    # And by hand, in small steps, from a position that knows nothing.
    position: dict[str, int] = {}
    again: list[tuple[int, int]] = []
    while True:
        found, reached = await reader.history.events_after(position, 17)
        if reached == position:
            break
        again += [(event.shard, event.sequence) for event in found]
        position = reached
    assert sorted(again) == sorted(wrote)


# ------------------------------------------------------------------------------------------------------ what is kept


class Scripted:
    """A ledger's reads, one after the other; the last one goes on for ever."""

    def __init__(self, *pages: Any) -> None:
        self.pages = list(pages)
        self.slept: list[float] = []

    async def read(self, function: Any, *arguments: Any) -> Any:
        if function is reads.end:
            return {"9": 4}
        await asyncio.sleep(0)
        page = self.pages.pop(0) if self.pages else []
        if isinstance(page, Exception):
            raise page
        position = dict(arguments[0])
        for event in page:
            position[str(event.shard)] = event.sequence
        return page, position

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


def new(shard: int, sequence: int) -> RecordedEvent:
    return RecordedEvent(shard, sequence, bytes(16), EventKind.RECEIVED, NOW, "r", "", {})


async def watched(followed: Feed, script: Scripted) -> None:
    """Have the feed read all of it."""
    task = asyncio.create_task(followed._watch())
    while script.pages:
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


async def test_so_many_events_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that went are read again where a follower is behind."""
    monkeypatch.setattr(feed, "KEPT", 3)
    script = Scripted([new(0, 1), new(1, 1)], [new(0, 2)])
    monkeypatch.setattr("gateway.runtime.clock.clock.sleep", script.sleep)
    followed = Feed(script.read)
    await watched(followed, script)
    assert (list(followed._kept), followed._first) == ([new(0, 1), new(1, 1), new(0, 2)], 0)
    assert followed._covers({"9": 4})
    assert not followed._covers({"9": 3}), "what there was when it began is not kept"
    script.pages = [[new(0, 3), new(1, 2)]]
    await watched(followed, script)
    assert (list(followed._kept), followed._first) == ([new(0, 2), new(0, 3), new(1, 2)], 2)
    assert followed._end == {"0": 3, "1": 2, "9": 4}
    for position, covers in (({}, False), ({"0": 1}, False), ({"0": 1, "1": 1}, True), ({"0": 0, "1": 9}, False)):
        assert followed._covers(position | {"9": 4}) is covers
    followed._forget()
    assert (list(followed._kept), followed._covers({"0": 9, "1": 9})) == ([], False)


async def test_the_ledger_is_not_asked_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Scripted([], LedgerUnavailable("away"), [new(0, 1)], [])
    monkeypatch.setattr("gateway.runtime.clock.clock.sleep", script.sleep)
    followed = Feed(script.read)
    await watched(followed, script)
    assert script.slept[:3] == [POLL, AWAY, POLL], "only where something came it is asked again at once"
    assert list(followed._kept) == [new(0, 1)]
