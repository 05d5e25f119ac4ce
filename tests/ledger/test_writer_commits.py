"""Transactions of the writer, and each way in which one can end: cut off, locked, of unknown outcome."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from gateway.errors import CommitUnknown, LedgerUnavailable
from gateway.ledger.db.shards import ShardLease
from gateway.ledger.writing import writer as module
from gateway.ledger.writing.calls import Task
from gateway.ledger.writing.group import NOTHING
from gateway.ledger.writing.writer import COSTLY
from tests.ledger.writer_steps import Call, Make, Stepped, Time, enter, make, shards_of, time

__all__ = ["make", "time"]


def cut(monkeypatch: pytest.MonkeyPatch, writer: Stepped, *, times: int = 1, lost: bool = True) -> list[int]:
    """Have statements fail; how many have."""
    failed: list[int] = []

    def fails(calls: Sequence[Call]) -> None:
        if len(failed) < times:
            failed.append(1)
            raise exc.OperationalError("s", {}, sqlite3.OperationalError("gone"), connection_invalidated=lost)

    writer.group.fails = fails
    return failed


@pytest.mark.parametrize(
    ("times", "lost", "groups", "written"),
    [(1, True, 2, True), (2, True, 2, False), (1, False, 1, False), (0, True, 1, True)],
)
async def test_a_connection_that_was_dead_costs_one_more_try(
    make: Make, monkeypatch: pytest.MonkeyPatch, times: int, lost: bool, groups: int, written: bool
) -> None:
    writer = make()
    cut(monkeypatch, writer, times=times, lost=lost)
    calls = [Call("a"), Call("b")]
    writer.run(*calls)
    await asyncio.sleep(0)
    assert writer.group.groups == ["ab"] * groups
    errors = [call.future.exception() for call in calls]
    if written:
        assert errors == [None, None]
        assert writer.trouble is None
    else:
        assert [str(error) for error in errors] == ["the ledger cannot be written: gone"] * 2
        assert errors[0] is not errors[1], "each caller has an error of its own"
        assert writer.trouble == "the ledger cannot be written: gone"
    assert (writer._connection is None) is not written


async def test_a_deadlock_is_tried_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = make()
    monkeypatch.setattr(module, "is_deadlock", lambda error: True)
    cut(monkeypatch, writer, lost=False)
    writer.run(Call("a"))
    assert writer.group.groups == ["a", "a"]
    assert writer.trouble is None


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("seconds", "is_costly"), [(COSTLY, False), (COSTLY + 0.01, True)])
async def test_tasks_behind_a_lock_that_took_its_time_are_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch, time: Time, shared: bool, seconds: float, is_costly: bool
) -> None:
    """On SQLite, where each of them would wait as long; but not those of the next round."""
    writer = make(shared=shared)
    loop = asyncio.get_running_loop()

    def fails(calls: Sequence[Call]) -> None:
        time.now += seconds
        raise exc.OperationalError("s", {}, sqlite3.OperationalError("database is locked"))

    writer.group.fails = fails
    task, later = (Task(loop.create_future(), lambda connection, lease: "done") for _ in range(2))
    writer.run(first := Call("a"), task)
    writer.run(later)
    await asyncio.sleep(0)
    assert isinstance(first.future.exception(), LedgerUnavailable)
    assert later.future.result() == "done"
    if is_costly and not shared:
        with pytest.raises(LedgerUnavailable, match="locked"):
            task.future.result()
    else:
        assert task.future.result() == "done"


async def test_trouble_is_over_when_something_was_written_that_proves_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make()
    nothing = lambda connection, lease: (NOTHING, "nothing")  # noqa: E731
    for work, proves, room, over in (
        (nothing, True, True, False),
        (enter(writer), False, True, False),
        (enter(writer), True, False, False),
        (enter(writer), True, True, True),
    ):
        monkeypatch.setattr(writer._database, "has_room", lambda room=room: room)
        writer.trouble = "it was full"
        assert writer._transaction(work, proves) in ("done", "nothing")
        assert (writer.trouble is None) is over


async def test_what_finds_nothing_to_write_commits_nothing(make: Make) -> None:
    writer = make()
    writer._transaction(enter(writer))
    before = shards_of(writer)

    def work(connection: sa.Connection, lease: ShardLease) -> Any:
        writer._shards.enter(connection, lease, 0)
        return NOTHING, "nothing"

    assert writer._transaction(work) == "nothing"
    assert shards_of(writer) == before
    assert writer.said == ["commit 1"]


# ----------------------------------------------------------------------------------------- commits that are cut off


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has the next COMMIT fail, after it happened or not."""

    def cut_off(writer: Stepped, *, happens: bool, lost: bool = True) -> None:
        dialect = writer._engine.dialect
        commit = dialect.do_commit

        def fails(connection: Any) -> None:
            monkeypatch.setattr(dialect, "do_commit", commit)
            if happens:
                commit(connection)
            raise sqlite3.OperationalError("the connection is lost")

        monkeypatch.setattr(dialect, "do_commit", fails)
        monkeypatch.setattr(dialect, "is_disconnect", lambda error, *_: lost and "lost" in str(error))

    return cut_off


async def test_a_commit_that_happened_though_it_was_cut_off(make: Make, cut_off: Callable[..., None]) -> None:
    writer = make()
    writer._transaction(enter(writer))
    cut_off(writer, happens=True)
    assert writer._transaction(enter(writer)) == "done"
    assert writer.trouble is None
    assert shards_of(writer) == [(0, True, 1, 2)]
    assert writer.said == ["commit 1", "commit 2"]


async def test_a_commit_that_was_cut_off_and_did_not_happen(make: Make, cut_off: Callable[..., None]) -> None:
    writer = make()
    writer._transaction(enter(writer))
    cut_off(writer, happens=False)
    with pytest.raises(LedgerUnavailable, match="the connection is lost") as caught:
        writer._transaction(enter(writer))
    assert not isinstance(caught.value, CommitUnknown)
    assert shards_of(writer) == [(0, True, 1, 1)]
    assert writer.trouble == "the ledger cannot be written: the connection is lost"
    assert writer._connection is None
    assert writer._transaction(enter(writer)) == "done"
    assert shards_of(writer) == [(0, True, 1, 2)], "under the same lease"


async def test_a_commit_that_fails_is_rolled_back(make: Make, cut_off: Callable[..., None]) -> None:
    writer = make()
    writer._transaction(enter(writer))
    cut_off(writer, happens=False, lost=False)
    with pytest.raises(LedgerUnavailable):
        writer._transaction(enter(writer))
    assert shards_of(writer) == [(0, True, 1, 1)]


@pytest.mark.parametrize("counted", [True, False], ids=["taken over", "not counted"])
async def test_a_commit_of_which_nobody_can_tell_costs_the_lease(
    make: Make, cut_off: Callable[..., None], monkeypatch: pytest.MonkeyPatch, counted: bool
) -> None:
    """What stands under it comes to be in doubt at once: it is given up with the next lease."""
    writer = make()
    writer._transaction(enter(writer))
    cut_off(writer, happens=True)
    monkeypatch.setattr(writer._shards, "commits", lambda connection, lease: None if counted else 9)
    work = enter(writer)
    with pytest.raises(CommitUnknown, match="it may have been written all the same"):
        writer._transaction(work if counted else lambda connection, lease: (None, work(connection, lease)))
    await asyncio.sleep(0)
    assert writer.said[-1] == "fenced"
    assert (writer.lease, writer.holds, writer._lease) == (None, False, None)
    monkeypatch.undo()
    assert writer._transaction(enter(writer)) == "done"
    assert shards_of(writer)[0][1:3] == (True, 3), "the one that was given up is free, and leased again"
    await asyncio.sleep(0)
    assert writer.lease == ShardLease(0, 3)
    assert writer._abandoned is None


@pytest.mark.parametrize(
    ("lost", "failures", "happened", "asked"),
    [(True, 0, True, 1), (True, 2, True, 3), (True, 3, None, 3), (False, 1, None, 1)],
)
async def test_how_often_the_database_is_asked(
    make: Make, monkeypatch: pytest.MonkeyPatch, lost: bool, failures: int, happened: bool | None, asked: int
) -> None:
    writer = make()
    writer._transaction(enter(writer))
    lease = writer._lease
    assert lease is not None
    asks: list[int] = []
    commits = writer._shards.commits

    def ask(connection: sa.Connection, lease: ShardLease) -> int | None:
        asks.append(1)
        if len(asks) <= failures:
            raise exc.OperationalError("s", {}, sqlite3.OperationalError("gone"), connection_invalidated=lost)
        return commits(connection, lease)

    monkeypatch.setattr(writer._shards, "commits", ask)
    assert writer._happened(lease, 1) is happened
    assert len(asks) == asked
    assert writer._connection is None
    if happened:
        assert writer._happened(lease, 0) is True
        assert writer._happened(lease, 2) is False
        assert writer._happened(lease, None) is None
        assert writer._happened(ShardLease(0, 9), 1) is None
