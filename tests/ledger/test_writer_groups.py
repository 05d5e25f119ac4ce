"""The writer's groups: what is written together, who is answered, and what a bad row costs the others."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence

import pytest
from sqlalchemy import exc

from gateway.budgets import ALONE
from gateway.errors import EntriesRefused, LedgerUnavailable
from gateway.ledger.writing import writer as module
from gateway.ledger.writing.calls import Task
from tests.ledger.writer_steps import ALICE, BOB, Call, Make, make, time

__all__ = ["make", "time"]


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([1, 1, 1, 1, 1], ["abcd", "e"]),
        ([3, 3, 1], ["ab", "c"]),
        ([4, 1], ["a", "b"]),
        ([5, 1], ["a", "b"]),
        ([1], ["a"]),
        ([2, 1, 1, 4], ["abc", "d"]),
    ],
)
async def test_a_group_has_so_many_rows(make: Make, sizes: list[int], groups: list[str]) -> None:
    writer = make(group_max=4)
    calls = [Call(name, rows) for name, rows in zip("abcde", sizes, strict=False)]
    writer.run(*calls)
    assert writer.group.groups == groups
    await asyncio.sleep(0)
    assert [call.future.result() for call in calls] == [f"{call.name} is written" for call in calls]


@pytest.mark.parametrize(
    ("sizes", "groups"), [([50, 49, 1], ["abc"]), ([50, 50, 1], ["ab", "c"]), ([100, 1], ["a", "b"])]
)
async def test_a_group_has_so_many_octets(
    make: Make, monkeypatch: pytest.MonkeyPatch, sizes: list[int], groups: list[str]
) -> None:
    monkeypatch.setattr(module, "GROUP_OCTETS", 100)
    writer = make()
    writer.run(*(Call(name, octets=octets) for name, octets in zip("abc", sizes, strict=False)))
    assert writer.group.groups == groups


async def test_calls_that_came_together_are_not_kept_together_by_force(make: Make) -> None:
    """What does not fit into the group is begun with in the next one, also where nothing else comes."""
    writer = make(group_max=2)
    for names in ("abc", "de"):
        for _ in names:
            writer.places.add(ALONE, 1)
        writer._put([Call(name) for name in names])
    writer.run()
    assert writer.group.groups == ["ab", "cd", "e"]


async def test_a_task_has_a_transaction_of_its_own(make: Make) -> None:
    writer = make()
    loop = asyncio.get_running_loop()
    tasks = [Task(loop.create_future(), lambda connection, lease: writer.group.groups.append("task")) for _ in range(2)]
    writer.run(tasks[0], Call("a"), tasks[1], Call("b"))
    assert writer.group.groups == ["ab", "task", "task"]
    assert writer.said[0] == "commit 1"
    assert writer.said == ["commit 1", "commit 2", "commit 3"]
    with writer._engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT next_sequence FROM shards").scalar() == 1, "it takes no numbers"


async def test_places_are_left_by_those_who_took_them(make: Make) -> None:
    """Also where some of the callers went away; the others are answered."""
    writer = make()
    holders = [ALICE, ALICE, BOB, ALICE, BOB]
    calls = [Call(name, rows) for rows, name in enumerate("abcde", 1)]
    for call, holder in zip(calls, holders, strict=True):
        call.holder = holder
    assert writer.places.take_now(BOB, 100)
    calls[0].future.cancel()
    calls[3].future.cancel()
    writer.run(*calls)
    await asyncio.sleep(0)
    assert writer.waiting == 100
    assert [call.future.done() and not call.future.cancelled() for call in calls] == [False, True, True, False, True]
    assert [writer.places._holdings.held_by(holder) for holder in (ALICE, BOB)] == [0, 100]


async def test_a_client_may_fill_the_whole_queue(make: Make) -> None:
    writer = make(queue_max=60_000)
    assert writer.places.take_now(ALICE, 50_000)
    assert writer.places.take_now(ALICE, 10_000)
    assert not writer.places.take_now(ALICE, 1)


async def test_what_waits_for_a_place_when_the_ledger_is_closed_is_refused(make: Make) -> None:
    writer = make(queue_max=2)
    first = asyncio.create_task(writer.submit(Call("a", 2)))
    await asyncio.sleep(0)
    waiting = [
        asyncio.create_task(writer.submit(Call("b", 2))),
        asyncio.create_task(writer.submit_all([Call("c"), Call("d")])),
    ]
    await asyncio.sleep(0)
    assert (writer.waiting, writer._queue.qsize()) == (2, 1)
    await writer.close()
    for task in waiting:
        with pytest.raises(LedgerUnavailable, match="closed"):
            await task
    for late in (writer.submit(Call("e")), writer.submit_all([Call("f")])):
        with pytest.raises(LedgerUnavailable, match="closed"):
            await late
    first.cancel()
    await asyncio.wait([first])


async def test_what_waits_for_a_place_is_written_when_there_is_one(make: Make) -> None:
    writer = make(queue_max=2)
    first, second = Call("a", 2), [Call("b"), Call("c")]
    tasks = [asyncio.create_task(writer.submit(first)), asyncio.create_task(writer.submit_all(second))]
    await asyncio.sleep(0)
    writer.run()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert tasks[0].done()
    writer.run()
    assert await tasks[1] == ["b is written", "c is written"]
    assert writer.group.groups == ["a", "bc"]
    assert await writer.submit_all([]) == []


# ------------------------------------------------------------------------------------------------------- bad rows


def bad_row(name: str) -> Callable[[Sequence[Call]], None]:
    def fails(calls: Sequence[Call]) -> None:
        if any(call.name == name for call in calls):
            raise exc.IntegrityError("statement", {}, sqlite3.IntegrityError("it is bad"))

    return fails


@pytest.mark.parametrize("names", ["x", "xa", "ax", "abxcd", "axbcdef"])
async def test_who_waits_beside_a_bad_row_is_written(make: Make, names: str) -> None:
    writer = make()
    writer.group.fails = bad_row("x")
    calls = [Call(name) for name in names]
    writer.run(*calls)
    await asyncio.sleep(0)
    for call in calls:
        if call.name == "x":
            error = call.future.exception()
            assert isinstance(error, EntriesRefused)
            assert error.refused == {0: "it is bad"}
        else:
            assert call.future.result() == f"{call.name} is written"
    assert writer.trouble is None


async def test_a_call_that_is_deferred_is_written_with_the_next_transaction(make: Make) -> None:
    writer = make()
    writer.group.defers = {"b"}
    calls = [Call(name) for name in "abc"]
    writer.run(*calls)
    await asyncio.sleep(0)
    assert writer.group.groups == ["abc", "b"]
    assert all(call.future.done() for call in calls)


async def test_a_defect_is_told_to_those_who_have_no_answer(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    writer = make()
    writer.group.defers = {"b"}

    def fails(calls: Sequence[Call]) -> None:
        if len(calls) == 1:
            raise ZeroDivisionError

    writer.group.fails = fails
    calls = [Call(name) for name in "abc"]
    writer.run(*calls)
    await asyncio.sleep(0)
    assert [call.future.exception() for call in calls[::2]] == [None, None], "theirs is committed"
    assert isinstance(calls[1].future.exception(), LedgerUnavailable)
    assert "ZeroDivisionError" in str(writer.trouble)
    assert "the ledger's writer failed" in caplog.text
    assert writer._connection is None
