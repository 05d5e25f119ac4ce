"""Long work in pieces, and aside."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from time import perf_counter

import pytest

from gateway.amqp.message import Message, Properties
from gateway.core.publishing.publisher import GROUP, GROUP_BYTES, HEADER_BYTES, Publication, groups_of
from gateway.core.sources import turns
from gateway.core.sources.turns import ASIDE_MIN, Turns, aside

WHO: ContextVar[str] = ContextVar("WHO", default="")


async def test_others_have_their_turn_once_one_has_lasted_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    async def work() -> None:
        turn = Turns()
        for step in range(3):
            done.append(f"work {step}")
            await turn.over()

    async def other() -> None:
        done.append("other")

    await asyncio.gather(work(), other())
    assert done == ["work 0", "work 1", "work 2", "other"]
    done.clear()
    monkeypatch.setattr(turns, "TURN", 0.0)
    await asyncio.gather(work(), other())
    assert done == ["work 0", "other", "work 1", "work 2"]


async def test_long_work_is_done_in_a_thread_with_its_context() -> None:
    WHO.set("caller")

    def where() -> tuple[int, str]:
        return threading.get_ident(), WHO.get()

    assert await aside(ASIDE_MIN, where) == (threading.get_ident(), "caller")
    thread, who = await aside(ASIDE_MIN + 1, where)
    assert thread != threading.get_ident()
    assert who == "caller"

    def fail() -> None:
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        await aside(ASIDE_MIN + 1, fail)


async def test_the_loop_goes_on_meanwhile() -> None:
    def spin() -> None:
        until = perf_counter() + 0.3
        while perf_counter() < until:
            pass

    work = asyncio.create_task(aside(ASIDE_MIN + 1, spin))
    count = 0
    while not work.done():
        await asyncio.sleep(0.001)
        count += 1
    assert count > 5


def outgoing(size: int, headers: int = 0) -> Publication:
    return Publication("q", Message(bytes(size), Properties(headers={str(index): index for index in range(headers)})))


@pytest.mark.parametrize(
    ("messages", "groups"),
    [
        ([], [0]),
        ([outgoing(1)], [1]),
        ([outgoing(1)] * GROUP, [GROUP]),
        ([outgoing(1)] * (2 * GROUP + 1), [GROUP, GROUP, 1]),
        ([outgoing(GROUP_BYTES + 1)] * 2, [1, 1]),
        ([outgoing(GROUP_BYTES // 2)] * 5, [2, 2, 1]),
        ([outgoing(0, 64)] * 100, [GROUP_BYTES // HEADER_BYTES // 64, 100 - GROUP_BYTES // HEADER_BYTES // 64]),
    ],
)
def test_groups_of_a_batch(messages: list[Publication], groups: list[int]) -> None:
    assert [len(group) for group in groups_of(messages)] == groups
