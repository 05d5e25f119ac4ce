"""What pushing writes into the ledger: together, once, and in the end. The clock is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import pytest

from gateway.errors import EntriesRefused, LedgerUnavailable
from gateway.ledger import EventKind, Ledger, LogEntry
from gateway.ledger.pending.owed import BacklogSettlement, Ending, Owed
from gateway.webhooks.attempts import journal
from gateway.webhooks.attempts.journal import GATHER, GROUP, PAUSE_MIN, Line, PushJournal
from tests.webhooks.virtual import now, run


class PlayedLedger:
    """Writes what it is given; each commit takes a moment."""

    def __init__(self) -> None:
        self.deliveries = self
        self.away = self.healthy_after = 0.0
        """Until when it is away, and until when it does not know that it is back."""
        self.commits: list[tuple[float, str, list[Any]]] = []
        """When, what kind, and what."""
        self.tries = self.looked = 0
        self.is_lost_behind_commit = False
        self.refused: dict[int, str] = {}

    @property
    def healthy(self) -> bool:
        return now() >= max(self.away, self.healthy_after)

    async def _commit(self, kind: str, what: Sequence[Any]) -> None:
        self.tries += 1
        await asyncio.sleep(0.001)
        if now() < self.away:
            raise LedgerUnavailable("away")
        refused, self.refused = self.refused, {}
        self.commits.append((now(), kind, [each for index, each in enumerate(what) if index not in refused]))
        if refused:
            raise EntriesRefused(refused, [index not in refused for index in range(len(what))])
        if self.is_lost_behind_commit:
            self.is_lost_behind_commit = False
            raise LedgerUnavailable("lost")

    async def record(self, entries: Sequence[LogEntry]) -> None:
        await self._commit("record", entries)

    async def unrecorded(self, entries: Sequence[LogEntry]) -> list[LogEntry]:
        self.looked += 1
        written = [each for _, _, what in self.commits for each in what]
        return [each for each in entries if each not in written]

    async def settle(self, settlements: Sequence[BacklogSettlement]) -> list[bool]:
        await self._commit("settle", settlements)
        return [each.id != b"other" for each in settlements]

    async def store(self, owed: Sequence[Owed], entries: Sequence[LogEntry], inbox: Sequence[Any]) -> None:
        await self._commit("store", owed)

    def written(self, kind: str) -> list[Any]:
        """All of a kind, in order."""
        return [each for _, name, what in self.commits if name == kind for each in what]


class Desk:
    """A journal, and how often it has called."""

    def __init__(self) -> None:
        self.ledger = PlayedLedger()
        self.heard: list[bool] = []
        self.journal = PushJournal(cast(Ledger, self.ledger), lambda: self.heard.append(self.journal.writable))


def with_desk(test: Callable[[Desk], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Give the test a journal of its own."""

    async def main() -> None:
        desk = Desk()
        await test(desk)
        await desk.journal.close()

    def wrapped() -> None:
        run(main())

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


def entry(number: int) -> LogEntry:
    return LogEntry(number.to_bytes(16, "big"), EventKind.ACKNOWLEDGED, 1, "b", "0-9-1", None, None)


def owed(number: int) -> Owed:
    name = number.to_bytes(16, "big")
    return Owed(id=name, message_id=name, subscription="s", at=1, payload=b"", size=0)


def done(name: bytes = b"row", ending: Ending = Ending.DONE, *entries: LogEntry) -> BacklogSettlement:
    return BacklogSettlement(name, ending, 1, entries=entries)


@with_desk
async def test_what_comes_while_a_commit_runs_goes_with_the_next_one(desk: Desk) -> None:
    writes = [asyncio.create_task(desk.journal.record([entry(0)]))]
    await asyncio.sleep(0.0005)
    writes += [asyncio.create_task(desk.journal.record([entry(number), entry(100 + number)])) for number in (1, 2)]
    await asyncio.gather(*writes)
    assert [what for _, _, what in desk.ledger.commits] == [
        [entry(0)],
        [entry(1), entry(101), entry(2), entry(102)],
    ]
    await desk.journal.record([entry(7)])
    assert desk.ledger.commits[-1][2] == [entry(7)]


@with_desk
async def test_each_hears_what_became_of_its_own(desk: Desk) -> None:
    names = [b"a", b"other", b"b"]
    found = await asyncio.gather(*(desk.journal.settle(done(name)) for name in names))
    assert found == [True, False, True]
    assert len(desk.ledger.commits) == 1
    writes = [asyncio.create_task(desk.journal.settle(done(b"%d" % number))) for number in range(GROUP + 1)]
    await asyncio.gather(*writes)
    assert [len(what) for _, _, what in desk.ledger.commits[1:]] == [GROUP, 1]


@with_desk
async def test_failures_wait_a_moment_for_others_and_successes_do_not(desk: Desk) -> None:
    for _ in range(2):
        del desk.ledger.commits[:]
        begun = now()
        retries = [asyncio.create_task(desk.journal.settle(done(b"0", Ending.RETRY)))]
        await asyncio.sleep(GATHER / 2)
        retries += [asyncio.create_task(desk.journal.settle(done(b"1", Ending.RETRY)))]
        stores = [asyncio.create_task(desk.journal.store(owed(0), [], []))]
        success = await desk.journal.settle(done(b"2"))
        assert success
        assert all(await asyncio.gather(*retries, *stores))
        assert sorted((round(1_000 * (at - begun)), kind, len(what)) for at, kind, what in desk.ledger.commits) == [
            (1_000 * GATHER / 2 + 1, "settle", 1),
            (1_000 * GATHER + 1, "settle", 2),
            (1_000 * GATHER + 1, "store", 1),
        ]


@with_desk
async def test_while_the_ledger_is_away_all_wait_and_nothing_new_begins(desk: Desk) -> None:
    desk.ledger.away = now() + 100
    assert not desk.journal.writable
    writes: list[asyncio.Task[Any]] = [
        asyncio.create_task(desk.journal.record([entry(1)])),
        asyncio.create_task(desk.journal.settle(done())),
        asyncio.create_task(desk.journal.store(owed(1), [], [])),
    ]
    await asyncio.sleep(99)
    assert desk.heard == [False] * 3
    assert not any(write.done() for write in writes)
    assert 15 < desk.ledger.tries < 90, "it is asked less and less often"
    await asyncio.sleep(2)
    assert [write.result() for write in writes] == [None, True, True]
    assert desk.heard[3:5] == [False] * 2, "something waits for it still"
    assert (desk.heard[5:], desk.journal.writable) == ([True], True)
    assert [len(desk.ledger.written(kind)) for kind in ("record", "settle", "store")] == [1, 1, 1]


@with_desk
async def test_a_ledger_that_is_found_away_may_not_be_written_even_where_it_says_that_it_is_well(desk: Desk) -> None:
    desk.ledger.is_lost_behind_commit = True
    write = asyncio.create_task(desk.journal.record([entry(1)]))
    await asyncio.sleep(0.01)
    assert (desk.ledger.healthy, desk.journal.writable) == (True, False)
    await write
    assert desk.journal.writable
    assert desk.heard == [False, True]


@with_desk
async def test_a_ledger_that_is_back_is_written_within_a_moment(desk: Desk) -> None:
    """However long the pause is by now."""
    desk.ledger.away = now() + 300
    write = asyncio.create_task(desk.journal.settle(done()))
    await asyncio.sleep(299.9)
    tries = desk.ledger.tries
    await asyncio.sleep(0.1 + PAUSE_MIN + 0.01)
    assert (write.done(), desk.ledger.tries) == (True, tries + 1)


@with_desk
async def test_events_of_a_commit_of_which_nobody_heard_are_written_once(desk: Desk) -> None:
    desk.ledger.is_lost_behind_commit = True
    await desk.journal.record([entry(1)])
    await desk.journal.record([entry(2)])
    assert desk.ledger.written("record") == [entry(1), entry(2)]
    assert desk.ledger.looked == 1, "nobody looks for what was not tried before"


@with_desk
async def test_events_that_the_ledger_cannot_hold_keep_nobody_waiting(desk: Desk) -> None:
    desk.ledger.refused = {0: "too large"}
    await asyncio.gather(desk.journal.record([entry(1)]), desk.journal.record([entry(2)]))
    assert desk.ledger.written("record") == [entry(2)]
    desk.ledger.refused = {0: "too large", 2: "too large"}
    names = [b"other", b"a", b"b"]
    found = await asyncio.gather(*(desk.journal.settle(done(name, Ending.DONE, entry(3))) for name in names))
    assert found == [False, True, True], "they are settled without their events"
    assert [(each.id, each.entries) for each in desk.ledger.written("settle")] == [
        (b"a", (entry(3),)),
        (b"other", ()),
        (b"b", ()),
    ]


@with_desk
async def test_a_message_that_the_ledger_cannot_hold_is_not_called_stored(desk: Desk) -> None:
    desk.ledger.refused = {0: "too large"}
    assert await desk.journal.store(owed(1), [], []) is False
    assert await desk.journal.store(owed(2), [], []) is True
    assert desk.ledger.written("store") == [owed(2)]


@with_desk
async def test_what_nobody_waits_for_any_more_is_not_written(desk: Desk) -> None:
    first = asyncio.create_task(desk.journal.record([entry(0)]))
    await asyncio.sleep(0.0005)
    others = [asyncio.create_task(desk.journal.record([entry(number)])) for number in (1, 2)]
    await asyncio.sleep(0)
    others[0].cancel()
    await asyncio.gather(first, others[1])
    assert desk.ledger.written("record") == [entry(0), entry(2)]
    first = asyncio.create_task(desk.journal.record([entry(3)]))
    await asyncio.sleep(0.0005)
    last = asyncio.create_task(desk.journal.record([entry(4)]))
    await asyncio.sleep(0)
    last.cancel()
    first.cancel()
    await asyncio.sleep(0.01)
    await desk.journal.record([entry(5)])
    assert desk.ledger.written("record")[2:] == [entry(3), entry(5)]


def test_at_the_end_all_that_wait_are_canceled() -> None:
    """What the commit that runs writes, and what waits behind it."""

    async def main() -> None:
        desk = Desk()
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        writes: list[asyncio.Task[Any]] = [asyncio.create_task(desk.journal.record([entry(0)]))]
        writes.append(asyncio.create_task(desk.journal.settle(done())))
        await asyncio.sleep(0.0005)
        writes.append(asyncio.create_task(desk.journal.record([entry(1)])))
        writes.append(asyncio.create_task(desk.journal.settle(done(b"r", Ending.RETRY))))
        writes.append(asyncio.create_task(desk.journal.store(owed(0), [], [])))
        await asyncio.sleep(0)
        await desk.journal.close()
        await asyncio.sleep(0)
        assert [write.cancelled() for write in writes] == [True] * 5
        await asyncio.sleep(10)
        assert (desk.ledger.commits, reported) == ([], [])
        await desk.journal.close()

    run(main())


def test_a_whole_group_for_which_nobody_waits_keeps_no_other_one_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "GROUP", 1)

    @with_desk
    async def main(desk: Desk) -> None:
        writes = [asyncio.create_task(desk.journal.record([entry(number)])) for number in range(3)]
        await asyncio.sleep(0.0005)
        writes[1].cancel()
        await asyncio.sleep(1)
        assert writes[2].done()
        assert desk.ledger.written("record") == [entry(0), entry(2)]

    main()


def test_an_error_that_nobody_expects_is_that_of_its_own_group() -> None:
    async def main() -> None:
        async def write(items: list[int]) -> list[int]:
            await asyncio.sleep(0.001)
            if 0 in items:
                raise RuntimeError("a fault")
            return [item * 2 for item in items]

        line: Line[int, int] = Line(write)
        first = line.put(0)
        await asyncio.sleep(0.0005)
        second, third = line.put(1), line.put(0)
        await asyncio.sleep(0.1)
        canceled = line.put(0)
        canceled_alone = line.put(3)
        await asyncio.sleep(0.0005)
        canceled.cancel()
        canceled_alone.cancel()
        last = line.put(2)
        await asyncio.sleep(0.1)
        for failed in (first, second, third):
            with pytest.raises(RuntimeError, match="a fault"):
                await failed
        assert await last == 4
        assert await line.put(4) == 8
        await line.close()

    run(main())
