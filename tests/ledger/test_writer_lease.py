"""The lease of the writer's shard, by a clock that stands still: until when it counts, and when it is renewed."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from gateway.config import LedgerSettings
from gateway.errors import LedgerUnavailable
from gateway.ledger.db import engine
from gateway.ledger.db.engine import Database
from gateway.ledger.db.shards import Fenced, ShardLease
from gateway.ledger.writing.calls import Task
from gateway.ledger.writing.writer import AGAIN, FENCED, SILENCE, WriterEvents
from tests.ledger.writer_steps import LEASE, Call, Make, Stepped, Time, enter, make, shards_of, time

__all__ = ["make", "time"]


async def test_a_lease_lasts_from_before_it_was_asked_for(make: Make, time: Time) -> None:
    writer = make()
    assert [writer.holds] == [False]
    writer._transaction(enter(writer))
    assert (writer._until, writer._renew_at) == (1_000.0 + LEASE, 1_000.0 + LEASE / 3)
    for seconds, holds in ((LEASE - 0.1, True), (LEASE, False), (LEASE + 0.1, False)):
        time.now = 1_000.0 + seconds
        assert writer.holds is holds
    writer._transaction(enter(writer))
    assert writer.holds
    assert writer._until == time.now + LEASE


async def test_on_a_file_of_its_own_nothing_runs_out(make: Make, time: Time) -> None:
    writer = make(shared=False)
    assert writer.holds
    writer._transaction(enter(writer))
    writer._lose()
    assert writer.holds
    assert writer._until == float("inf")


async def test_a_process_that_was_fenced_says_so_and_takes_a_new_lease(make: Make, time: Time) -> None:
    writer = make()
    writer._transaction(enter(writer))
    await asyncio.sleep(0)
    assert str(writer.lease) == str(ShardLease(0, 1))

    def fenced(connection: sa.Connection, lease: ShardLease) -> Any:
        raise Fenced

    with pytest.raises(LedgerUnavailable, match="took over"):
        writer._transaction(fenced)
    assert (writer.trouble, writer.holds, writer._lease) == (FENCED, False, None)
    await asyncio.sleep(0)
    assert (writer.said[-1], str(writer.lease)) == ("fenced", "None")
    assert writer._transaction(enter(writer)) == "done"
    await asyncio.sleep(0)
    assert (writer.trouble, writer.holds) == (None, True)
    assert writer.said[-1].startswith("lease ")
    assert writer.lease is not None


async def test_what_was_asked_for_under_a_lease_that_is_lost_is_refused(make: Make) -> None:
    writer = make()
    writer._transaction(enter(writer))
    loop = asyncio.get_running_loop()
    old, any_lease, own = Call("a"), Call("b"), Call("c")
    task = Task(loop.create_future(), lambda connection, lease: "done")
    old.lease = task.lease = ShardLease(0, 9)
    own.lease = writer._lease
    writer.run(old, any_lease, own, task)
    await asyncio.sleep(0)
    for refused in (old, task):
        with pytest.raises(LedgerUnavailable, match="took over"):
            refused.future.result()
        assert refused.settled
    assert writer.group.groups == ["bc"]
    assert writer.said.count("outdated") == 2


async def test_a_lease_is_renewed_when_it_is_time(make: Make, time: Time) -> None:
    writer = make()
    writer._transaction(enter(writer))
    for ahead, commits in ((0.5, 1), (1.0, 1), (0.0, 2), (-5.0, 3)):
        writer._renew_at = time.now + ahead
        writer._queue.put((Call("a"),))
        calls = writer._wait()
        assert calls is not None
        assert [call.name for call in calls if isinstance(call, Call)] == ["a"]
        assert shards_of(writer)[0][3] == commits
    assert writer._renew_at == time.now + LEASE / 3


@pytest.mark.parametrize(("silent", "renews"), [(0.0, True), (SILENCE * LEASE, True), (SILENCE * LEASE + 1, False)])
async def test_a_lease_is_renewed_while_the_event_loop_is_heard_of(
    make: Make, time: Time, silent: float, renews: bool
) -> None:
    writer = make()
    writer._transaction(enter(writer))
    writer.hear()
    time.now += silent
    writer._renew(time.now)
    assert shards_of(writer)[0][3] == 1 + renews
    assert writer._renew_at == time.now + (LEASE / 3 if renews else AGAIN)
    writer.hear()
    writer._renew(time.now)
    assert shards_of(writer)[0][3] == 2 + renews


async def test_a_lease_is_not_renewed_while_there_is_trouble_or_none_yet(make: Make, time: Time) -> None:
    writer = make()
    writer._renew(time.now)
    assert shards_of(writer) == []
    writer._transaction(enter(writer))
    writer.trouble = "it was full"
    writer._renew(time.now)
    assert shards_of(writer)[0][3] == 1
    assert writer._renew_at == time.now + AGAIN
    writer.trouble = None
    writer._renew(time.now)
    assert writer.trouble is None
    with writer._engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT next_sequence FROM shards").scalar() == 1, "it takes no numbers"


async def test_a_renewal_that_fails_is_tried_again(
    make: Make, time: Time, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = make()
    writer._transaction(enter(writer))

    def defect(*_: Any) -> Any:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(writer._shards, "enter", defect)
        writer._renew(time.now)
    assert "could not be renewed" in caplog.text
    assert writer._renew_at == time.now + AGAIN
    writer._renew(time.now)
    assert shards_of(writer)[0][3] == 2


# -------------------------------------------------------------------------------------------------------- the end


async def test_trouble_is_logged_when_it_begins(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    writer = make()
    for number in range(3):
        told = writer._failed(ValueError(f"number {number}"))
        assert str(told) == writer.trouble == f"the ledger cannot be written: number {number}"
    assert [record.message for record in caplog.records] == ["the ledger cannot be written: number 0"]


async def test_the_shard_is_given_back_at_the_end(make: Make) -> None:
    writer = make()
    writer.run(Call("a"), ends=True)
    assert shards_of(writer) == [(0, False, 2, 1)]
    unused = make(owner="other")
    unused.run(ends=True)
    assert shards_of(writer) == [(0, False, 2, 1)], "it had none"


async def test_a_shard_that_cannot_be_given_back(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = make()
    writer._transaction(enter(writer))
    connection = writer._connection
    assert connection is not None

    def fails(*_: Any) -> None:
        raise exc.OperationalError("s", {}, sqlite3.OperationalError("gone"))

    monkeypatch.setattr(writer._shards, "release", fails)
    writer.run(ends=True)
    assert "could not be given back and is free when its lease ends" in caplog.text
    assert connection.closed


async def test_on_postgresql_its_connection_is_hinted(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that it runs finds its rows by an index."""
    database = Database("postgresql://me@127.0.0.1:1/ledger")
    like = make()
    events = WriterEvents(lambda lease: None, lambda: None)
    unused: Any = None
    writer = Stepped(database, like._shards, unused, LedgerSettings(), events, lambda: 0.0)
    assert sa.event.contains(writer._engine, "connect", engine._tune_keyed)
    await writer.close()


async def test_a_lease_counts_though_the_first_work_under_it_fails(make: Make, time: Time) -> None:
    writer = make()

    def fails(connection: sa.Connection, lease: ShardLease) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        writer._transaction(fails)
    assert writer.holds
    assert writer._renew_at == time.now + LEASE / 3


async def test_a_connection_that_is_dropped_is_closed(make: Make) -> None:
    writer = make()
    writer._transaction(enter(writer))
    connection = writer._connection
    assert connection is not None
    writer._drop_connection()
    writer._drop_connection()
    assert (connection.closed, str(writer._connection)) == (True, "None")
    writer.run(ends=True)
    assert shards_of(writer) == [(0, True, 1, 1)], "it is free when its lease ends"
