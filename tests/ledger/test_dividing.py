"""Calls that are larger than a group: what is known of them when the ledger goes away in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.errors import EntriesRefused, LedgerUnavailable
from gateway.ledger.writing.calls import GROUP_OCTETS, WriterCall
from gateway.ledger.writing.dividing import divided, future
from gateway.ledger.writing.writer import Writer


class Numbers(WriterCall):
    """A call of so many units, each a row."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__(future())
        self.numbers = numbers

    @property
    def rows(self) -> int:
        return len(self.numbers)

    @property
    def units(self) -> int:
        return len(self.numbers)

    def parts(self, size: int) -> list[Numbers]:
        return [Numbers(self.numbers[begin : begin + size]) for begin in range(0, len(self.numbers), size)]


class Rows:
    """A ledger that cannot hold some numbers, and that goes away before others."""

    def __init__(self, bad: Sequence[int] = (), away: Sequence[int] = ()) -> None:
        self.bad, self.away = bad, away
        self.written: list[int] = []

    async def submit(self, call: WriterCall) -> Any:
        assert isinstance(call, Numbers)
        if any(number in self.away for number in call.numbers):
            raise LedgerUnavailable("away")
        self.written += [number for number in call.numbers if number not in self.bad]
        refused = {index: "bad" for index, number in enumerate(call.numbers) if number in self.bad}
        if refused:
            raise EntriesRefused(refused, [None if number in self.bad else number for number in call.numbers])
        return list(call.numbers)


async def test_in_parts() -> None:
    rows = Rows()
    assert await divided(rows, Numbers(range(10)), 4) == list(range(10))
    with pytest.raises(EntriesRefused) as caught:
        await divided(Rows(bad=[1, 8]), Numbers(range(10)), 4)
    assert caught.value.refused == {1: "bad", 8: "bad"}


@pytest.mark.parametrize(("away", "written"), [(0, 0), (3, 0), (4, 4), (9, 8)])
async def test_what_was_written_before_it_went_away(away: int, written: int) -> None:
    rows = Rows(bad=[1], away=[away])
    with pytest.raises(LedgerUnavailable) as caught:
        await divided(rows, Numbers(range(10)), 4)
    assert caught.value.written == written
    assert caught.value.refused == ({1: "bad"} if written else {})
    assert rows.written == [number for number in range(written) if number != 1]


async def test_halves_of_a_call_with_a_bad_row_say_the_same() -> None:
    """The writer's own: of eight units one is bad, and then the database is away."""
    rows = Rows(bad=[1], away=[6])
    writer = Writer.__new__(Writer)

    def write(calls: list[WriterCall]) -> list[WriterCall]:
        (call,) = calls
        assert isinstance(call, Numbers)
        if len(call.numbers) > 1 and any(number in (1, 6) for number in call.numbers):
            writer._write_halves(call)
            return []
        try:
            call.result = asyncio.run_coroutine_threadsafe(rows.submit(call), loop).result(5)
        except (LedgerUnavailable, EntriesRefused) as error:
            call.error = error
        return []

    loop = asyncio.get_running_loop()
    writer._write = write  # type: ignore[method-assign]
    call = Numbers(range(8))
    await asyncio.to_thread(_in_a_loop, writer, call)
    assert isinstance(call.error, LedgerUnavailable)
    assert (call.error.written, call.error.refused) == (6, {1: "bad"})
    assert rows.written == [0, 2, 3, 4, 5]


def _in_a_loop(writer: Writer, call: WriterCall) -> None:
    async def run() -> None:
        writer._write_halves(call)

    asyncio.run(run())


class Large(Numbers):
    """Each unit has 3 MiB."""

    @property
    def octets(self) -> int:
        return len(self.numbers) * (3 << 20)

    def parts(self, size: int) -> list[Numbers]:
        return [Large(each.numbers) for each in super().parts(size)]


async def test_large_ones_in_parts() -> None:
    """Few rows may be many octets, and others wait for the transaction."""
    rows = Rows()
    sizes: list[int] = []
    submit = rows.submit

    async def noted(call: WriterCall) -> Any:
        sizes.append(call.octets)
        return await submit(call)

    rows.submit = noted  # type: ignore[method-assign]
    assert await divided(rows, Large(range(10)), 100) == list(range(10))
    assert sum(sizes) == 30 << 20
    assert max(sizes) <= GROUP_OCTETS
    assert await divided(rows, Large(range(1)), 100) == [0], "one that is larger stays whole"
