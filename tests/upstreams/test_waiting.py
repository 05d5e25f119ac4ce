"""The lines before the outlets: what is in them altogether, and who is turned away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.errors import BrokerUnavailable, NotFound, OutcomeUnknown
from gateway.upstreams.publishing import waiting
from gateway.upstreams.publishing.isolation import Again
from gateway.upstreams.publishing.lanes import NEVER, Outlet, PublishedExchange
from gateway.upstreams.publishing.receipts import PublishReceipt, Waiting
from gateway.upstreams.publishing.waiting import WaitingRoom


def outlet() -> Outlet:
    owner: Any = None
    return PublishedExchange(owner, "e", 1, 10).outlets[0]


def item(size: int = 0, *, order: str | None = None, deadline: float = 9.0) -> Waiting:
    future: asyncio.Future[PublishReceipt] = asyncio.get_running_loop().create_future()
    return future, deadline, "k", Message(bytes(size)), False, order


def added(room: WaitingRoom, line: Outlet, *sizes: int) -> list[bool]:
    """Whether messages of these sizes find room."""
    items = [item(size) for size in sizes]
    found = [room.add(line, each) for each in items]
    for each, has_room in zip(items, found, strict=True):
        assert each[0].done() is not has_room
        if not has_room:
            assert isinstance(each[0].exception(), BrokerUnavailable)
    return found


async def test_as_many_as_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAITING_MAX", 3)
    room, one, two = WaitingRoom("b", 100), outlet(), outlet()
    assert added(room, one, 0, 0) == [True, True]
    assert added(room, two, 0, 0) == [True, False]
    assert room.count == 3
    room.served(one)
    assert added(room, two, 0, 0) == [True, False]
    assert [len(line.line) for line in (one, two)] == [1, 2]


async def test_as_many_bytes_as_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAITING_WINDOWS", 2)
    room, line = WaitingRoom("b", 50), outlet()
    assert added(room, line, 60, 41, 40, 1) == [True, False, True, False]
    room.served(line)
    assert added(room, line, 61, 60) == [False, True]
    room.fail(line, BrokerUnavailable("gone"))
    assert (room.count, bool(room)) == (0, False)
    assert added(room, line, 101, 1) == [True, False], "one that is alone waits however large it is"
    room.served(line)
    assert added(room, line, 0, 101, 1) == [True, True, False]
    for _ in range(2):
        room.served(line)
    assert added(room, line, 100, 0, 1) == [True, True, False]


async def test_those_of_an_order_are_turned_away_together_for_a_turn_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "WAITING_MAX", 1)
    room, line = WaitingRoom("b", 100), outlet()
    assert room.add(line, item(order="a"))
    for order in ("a", "b", None):
        assert not room.add(line, item(order=order))
    room.served(line)
    assert [room.add(line, item(order=order)) for order in ("a", "b", None)] == [False, False, True]
    room.served(line)
    await asyncio.sleep(0)
    assert room.add(line, item(order="a"))
    assert not room.add(line, item(order="a"))
    room.served(line)
    await asyncio.sleep(0)  # the second time as well
    assert room.add(line, item(order="a"))


async def test_what_was_in_a_window_comes_first_beyond_all_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAITING_MAX", 2)
    monkeypatch.setattr(waiting, "WAITING_WINDOWS", 1)
    room, line = WaitingRoom("b", 50), outlet()
    room.put_first(line, [])
    assert not room
    last = item(10)
    assert room.add(line, last)
    first = [item(20) for _ in range(2)]
    room.put_first(line, first)
    assert list(line.line) == [*first, last]
    assert room.count == 3
    assert added(room, line, 0) == [False]
    room.served(line)
    room.served(line)
    assert added(room, line, 41, 40) == [False, True]
    room.served(line)
    room.served(line)
    assert (room.count, list(room.outlets)) == (0, [])


async def test_lines_are_served_in_the_order_in_which_they_began() -> None:
    room, one, two = WaitingRoom("b", 100), outlet(), outlet()
    for line in (one, two, one):
        room.add(line, item())
    assert list(room.outlets) == [one, two]
    room.served(one)
    assert list(room.outlets) == [one, two]
    room.served(one)
    assert list(room.outlets) == [two]


async def test_all_of_a_line_fail_together() -> None:
    room, line, other = WaitingRoom("b", 100), outlet(), outlet()
    caller: asyncio.Future[PublishReceipt] = asyncio.get_running_loop().create_future()
    again = Again(caller, BrokerUnavailable("before"))
    left, plain, stays = item(5), item(5), item(5)
    left[0].cancel()
    for each in (left, plain):
        room.add(line, each)
    room.put_first(line, [(again, 9.0, "k", Message(b"x"), False, None)])
    room.add(other, stays)
    line.suspects = 1
    error = NotFound(404, "no exchange")
    room.fail(line, error)
    assert (room.count, list(room.outlets), line.suspects, len(line.line)) == (1, [other], 0, 0)
    assert plain[0].exception() is error
    with pytest.raises(OutcomeUnknown, match="no exchange"):  # of the first attempt that says nothing
        await caller
    assert not stays[0].done()


async def test_whose_time_is_up_and_who_is_next() -> None:
    room, line = WaitingRoom("b", 100), outlet()
    items = [
        item(deadline=deadline, order=order)
        for deadline, order in ((5.0, "a"), (3.0, None), (9.0, "a"), (8.0, "b"), (7.0, None), (7.5, None))
    ]
    for each in items:
        room.add(line, each)
    items[4][0].cancel()
    assert room.late(line, 2.9) == 3.0
    assert not items[1][0].done()
    assert room.late(line, 3.0) == 5.0
    assert isinstance(items[1][0].exception(), BrokerUnavailable)
    assert room.late(line, 5.0) == 7.5
    assert [each[0].done() for each in items] == [True, True, True, False, True, False]
    assert room.count == 6, "they leave the line when it is served"
    assert room.late(line, 8.0) == NEVER
    assert (room.count, list(room.outlets)) == (0, [])
    assert room.late(line, 8.0) == NEVER
