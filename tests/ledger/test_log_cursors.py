"""Cursors: whose they are, and that they only go forward."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import CursorOwned, LimitExceeded, NoSuchCursor, RangeAhead, StateError
from gateway.ledger import EventKind, Ledger, Log
from gateway.ledger.logs import log_cursors
from gateway.ledger.logs.log_cursors import EARLIEST, LATEST
from tests.ledger.conftest import NOW, Clock, Open, entry, new_id
from tests.ledger.logs import spooled


class Later(Clock):
    """A clock for cursors, too."""

    def go(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Later:
    return Later()


@pytest.fixture
async def ledger(open_ledger: Open, clock: Later) -> Ledger:
    found = await open_ledger(clock=clock)
    await found.log.spool([spooled() for _ in range(5)])
    return found


async def test_where_a_cursor_begins(ledger: Ledger, sql: Any) -> None:
    assert (await ledger.log.claim_cursor("a", Log.MESSAGES, "one", EARLIEST)).position == {"0": 0}
    assert (await ledger.log.claim_cursor("b", Log.MESSAGES, "one", LATEST)).position == {"0": 5}
    assert (await ledger.log.claim_cursor("c", Log.MESSAGES, "one", {"0": 3})).position == {"0": 3}
    assert (await ledger.log.claim_cursor("d", Log.EVENTS, "one", LATEST)).position == {"0": 0}
    with pytest.raises(RangeAhead, match=r"6 in shard 0 .* ends at 5"):
        await ledger.log.claim_cursor("e", Log.MESSAGES, "one", {"0": 6})
    with pytest.raises(RangeAhead, match="1 in shard 7"):
        await ledger.log.claim_cursor("e", Log.MESSAGES, "one", {"7": 1})
    with pytest.raises(NoSuchCursor):
        await ledger.log.get_cursor("e")
    sql("INSERT INTO log_floors (log, shard, floor, reason, at) VALUES ('messages', 0, 4, 'age', 1)")
    assert (await ledger.log.claim_cursor("f", Log.MESSAGES, "one", EARLIEST)).position == {"0": 3}


async def test_the_beginning_is_found_once(ledger: Ledger) -> None:
    await ledger.log.claim_cursor("a", Log.MESSAGES, "one", LATEST)
    await ledger.log.spool([spooled()])
    again = await ledger.log.claim_cursor("a", Log.MESSAGES, "one", LATEST)
    assert (again.position, again.epoch) == ({"0": 5}, 2)


async def test_an_owner_is_told_who_came_after(ledger: Ledger, clock: Later) -> None:
    first = await ledger.log.claim_cursor("a", Log.MESSAGES, "one")
    clock.go(30)
    with pytest.raises(CursorOwned, match=r"'a' is owned by 'one', in epoch 1, for 30 s; it was heard of 30 s ago"):
        await ledger.log.claim_cursor("a", Log.MESSAGES, "two")
    assert (await ledger.log.claim_cursor("a", Log.MESSAGES, "two", take_over=True)).epoch == 2
    with pytest.raises(CursorOwned, match="owned by 'two', in epoch 2"):
        await ledger.log.move_cursor("a", "one", first.epoch, {"0": 2})
    with pytest.raises(CursorOwned, match="owned by 'two'"):
        await ledger.log.release_cursor("a", "one", first.epoch)
    assert (await ledger.log.move_cursor("a", "two", 2, {"0": 2})).position == {"0": 2}


async def test_the_same_owner_with_an_older_epoch_is_another(ledger: Ledger) -> None:
    """Two queries of one name: the one that was first learns that it is not the only one."""
    first = await ledger.log.claim_cursor("a", Log.MESSAGES, "one")
    second = await ledger.log.claim_cursor("a", Log.MESSAGES, "one")
    with pytest.raises(CursorOwned, match="epoch 2"):
        await ledger.log.move_cursor("a", "one", first.epoch, {"0": 1})
    await ledger.log.move_cursor("a", "one", second.epoch, {"0": 1})


async def test_an_owner_that_is_silent_loses_it_and_one_that_speaks_does_not(ledger: Ledger, clock: Later) -> None:
    await ledger.log.claim_cursor("a", Log.MESSAGES, "one")
    for _ in range(3):
        clock.go(50)
        await ledger.log.move_cursor("a", "one", 1, {})
    clock.go(59)
    with pytest.raises(CursorOwned):
        await ledger.log.claim_cursor("a", Log.MESSAGES, "two")
    clock.go(1)
    taken = await ledger.log.claim_cursor("a", Log.MESSAGES, "two")
    assert (taken.owner, taken.epoch, taken.since) == ("two", 2, NOW + 210_000_000)


async def test_a_released_cursor_is_free_at_once(ledger: Ledger) -> None:
    await ledger.log.claim_cursor("a", Log.MESSAGES, "one")
    for _ in range(2):
        assert (await ledger.log.release_cursor("a", "one", 1)).owner == ""
    with pytest.raises(CursorOwned, match="nobody's since its epoch 1 was released"):
        await ledger.log.move_cursor("a", "one", 1, {"0": 1})
    assert (await ledger.log.claim_cursor("a", Log.MESSAGES, "two")).epoch == 2
    with pytest.raises(CursorOwned, match="'two'"):
        await ledger.log.release_cursor("a", "one", 1)


async def test_it_only_goes_forward_and_not_behind_the_end(ledger: Ledger, sql: Any) -> None:
    await ledger.log.claim_cursor("a", Log.MESSAGES, "one")
    assert (await ledger.log.move_cursor("a", "one", 1, {"0": 4})).position == {"0": 4}
    assert (await ledger.log.move_cursor("a", "one", 1, {"0": 2})).position == {"0": 4}
    assert (await ledger.log.move_cursor("a", "one", 1, {})).position == {"0": 4}
    with pytest.raises(RangeAhead):
        await ledger.log.move_cursor("a", "one", 1, {"0": 6})
    assert (await ledger.log.get_cursor("a")).position == {"0": 4}
    assert sql("SELECT position FROM log_cursors")[0][0] == b'{"0":4}'


async def test_a_cursor_belongs_to_a_log(ledger: Ledger) -> None:
    await ledger.log.claim_cursor("a", Log.MESSAGES, "one")
    with pytest.raises(StateError, match="one of the log 'messages', not 'events'"):
        await ledger.log.claim_cursor("a", Log.EVENTS, "one")
    await ledger.record([entry(new_id(), EventKind.DELIVERED)])
    await ledger.log.claim_cursor("b", Log.EVENTS, "one")
    assert (await ledger.log.move_cursor("b", "one", 1, {"0": 1})).position == {"0": 1}


async def test_of_two_that_claim_at_once_one_gets_it(open_ledger: Open, url: str) -> None:
    """Where processes share the ledger, two of them; the row is made by one, and both go by what it says then."""
    ledgers = (
        [await open_ledger("a"), await open_ledger("b")] if url.startswith("postgresql") else [await open_ledger()]
    )
    for turn in range(20):
        claims = [
            ledgers[number % len(ledgers)].log.claim_cursor(f"c{turn}", Log.MESSAGES, f"owner-{number}")
            for number in range(4)
        ]
        found = await asyncio.gather(*claims, return_exceptions=True)
        won = [each for each in found if not isinstance(each, BaseException)]
        assert [type(each) for each in found].count(CursorOwned) == 3, found
        assert [each.epoch for each in won] == [1]
        assert (await ledgers[0].log.get_cursor(f"c{turn}")).owner == won[0].owner


async def test_pages_and_their_backlog(ledger: Ledger) -> None:
    for name in ("b", "a", "c"):
        await ledger.log.claim_cursor(name, Log.MESSAGES, "one", {"0": 2})
    page, cursor = await ledger.log.list_cursors(None, 2)
    rest, end = await ledger.log.list_cursors(cursor, 2)
    assert ([each.name for each in page + rest], end) == (["a", "b", "c"], None)
    assert (await ledger.log.backlog(Log.MESSAGES, page[0].position)).rows == 3


async def test_what_no_reader_has_passed(ledger: Ledger) -> None:
    assert (await ledger.log.held()).rows == 5
    await ledger.log.claim_cursor("a", Log.MESSAGES, "one", {"0": 2})
    await ledger.log.claim_cursor("b", Log.MESSAGES, "one", {"0": 4})
    assert (await ledger.log.held()).rows == 3
    await ledger.log.move_cursor("a", "one", 1, {"0": 5})
    assert (await ledger.log.held()).rows == 1


async def test_one_that_is_in_use_is_not_deleted(ledger: Ledger, clock: Later) -> None:
    await ledger.log.claim_cursor("a", Log.MESSAGES, "one")
    with pytest.raises(CursorOwned):
        await ledger.log.delete_cursor("a")
    await ledger.log.release_cursor("a", "one", 1)
    await ledger.log.delete_cursor("a")
    with pytest.raises(NoSuchCursor):
        await ledger.log.delete_cursor("a")
    await ledger.log.claim_cursor("b", Log.MESSAGES, "one")
    clock.go(60)
    await ledger.log.delete_cursor("b")
    for call in (ledger.log.move_cursor("b", "one", 1, {}), ledger.log.release_cursor("b", "one", 1)):
        with pytest.raises(NoSuchCursor, match="'b'"):
            await call


async def test_there_are_only_so_many(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_cursors, "CURSORS_MAX", 2)
    for name in ("a", "b", "a"):
        await ledger.log.claim_cursor(name, Log.MESSAGES, "one")
    with pytest.raises(LimitExceeded, match="2 cursors"):
        await ledger.log.claim_cursor("c", Log.MESSAGES, "one")
