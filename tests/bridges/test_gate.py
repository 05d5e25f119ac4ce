"""The window before a target. Time is an argument."""

from __future__ import annotations

import pytest

from gateway.bridges.faults import Faults
from gateway.bridges.gate import REFUSED_IN_A_ROW, Gate
from gateway.runtime.ids import ids


@pytest.fixture
async def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    monkeypatch.setattr(ids, "fraction", lambda: 1.0)
    return Faults("b", lambda: None)


async def test_it_closes_and_opens_step_by_step(faults: Faults) -> None:
    gate = Gate(100, faults)
    gate.outstanding = 40
    assert gate.room == 60
    gate.outstanding = 0
    gate.close("it is gone", 10.0)
    assert (gate.room, gate.not_before) == (1, 10.5)
    assert faults.reason == "target: it is gone"
    rooms = []
    for _ in range(8):
        gate.taken(1)
        rooms.append(gate.room)
    assert rooms == [2, 4, 8, 16, 32, 64, 100, 100]
    assert not faults
    assert gate.not_before == 0.0


async def test_pauses_grow_and_begin_anew(faults: Faults) -> None:
    gate = Gate(10, faults)
    now, pauses = 0.0, []
    for _ in range(9):
        gate.close("no", now)
        pauses.append(gate.not_before - now)
        now = gate.not_before
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    gate.taken(1)
    gate.close("no", now)
    assert gate.not_before == now + 0.5


async def test_many_refusals_at_once_are_one(faults: Faults) -> None:
    gate = Gate(10, faults)
    for _ in range(50):
        gate.close("no", 1.0)
    assert gate.not_before == 1.5


async def test_a_target_that_is_back_is_not_waited_for(faults: Faults) -> None:
    gate = Gate(10, faults)
    gate.close("no", 1.0)
    gate.hurry()
    assert gate.not_before == 0.0
    assert gate.room == 1, "one at a time, still"


async def test_refusals_in_a_row(faults: Faults) -> None:
    gate = Gate(10, faults)
    assert [gate.refused() for _ in range(REFUSED_IN_A_ROW)] == [False] * (REFUSED_IN_A_ROW - 1) + [True]
    gate.taken(1)
    assert [gate.refused() for _ in range(REFUSED_IN_A_ROW)] == [False] * (REFUSED_IN_A_ROW - 1) + [True]


async def test_a_full_window_is_not_touched_by_what_is_taken(faults: Faults) -> None:
    gate = Gate(10, faults)
    gate.taken(500)
    assert gate.room == 10


async def test_a_window_of_one_opens_again(faults: Faults) -> None:
    gate = Gate(1, faults)
    assert (gate.room, gate.outstanding, gate.not_before) == (1, 0, 0.0)
    gate.close("no", 10.0)
    assert gate.room == 1
    gate.taken(0)
    assert (gate.room, gate.not_before, bool(faults)) == (1, 0.0, False)


async def test_the_next_pause_begins_when_the_last_one_is_over(faults: Faults) -> None:
    gate = Gate(10, faults)
    gate.close("no", 1.0)
    gate.close("still no", 1.5)
    assert (gate.not_before, faults.reason) == (2.5, "target: still no")


async def test_many_that_were_taken_open_it_at_once(faults: Faults) -> None:
    gate = Gate(100, faults)
    gate.close("no", 1.0)
    gate.taken(30)
    assert gate.room == 60
