"""The seams: replaceable time, chance and threads; pauses that grow; background tasks that report failures."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.runtime import replaced
from gateway.runtime.backoff import Backoff
from gateway.runtime.clock import clock
from gateway.runtime.ids import ids
from gateway.runtime.tasks import FAILED_TASK, Tasks
from gateway.runtime.threads import STARVED_INTERVAL, SWITCH_INTERVAL, threads


async def test_a_clock_that_is_replaced_tells_the_new_time_and_then_the_old_one() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    with replaced(clock, now=lambda: 86_400.0, sleep=sleep):
        assert clock.now() == 86_400.0
        assert clock.utc() == datetime(1970, 1, 2, tzinfo=UTC)
        await clock.sleep(3_600.0)
    assert slept == [3_600.0]
    assert clock.now() > 1e9


async def test_the_monotonic_clock_is_the_clock_of_the_loop() -> None:
    before = clock.monotonic()
    assert before - 0.1 <= asyncio.get_running_loop().time() <= clock.monotonic() + 0.1


def test_what_is_random_comes_from_two_functions() -> None:
    with replaced(ids, random_bytes=lambda size: bytes(range(size)), fraction=lambda: 0.25):
        assert ids.hex(3) == "000102"
        assert str(ids.uuid()) == "00010203-0405-4607-8809-0a0b0c0d0e0f"
        assert ids.letters(5, "abc") == "abcab"
        assert ids.between(10.0, 20.0) == 12.5
        assert ids.generator().random() == ids.generator().random()
    assert ids.uuid() != ids.uuid()


def test_letters_are_equally_likely() -> None:
    with replaced(ids, random_bytes=lambda size: bytes([255] * (size - 1) + [1])):
        assert ids.letters(4, "abc") == "bbbb"  # 255 would be one more for the first letter
    counts = Counter(ids.letters(30_000, "abc"))
    assert all(9_000 < counts[letter] < 11_000 for letter in "abc")


def test_pauses_double_up_to_the_longest_and_start_again_after_a_success() -> None:
    backoff = Backoff(0.5, 3.0)
    with replaced(ids, fraction=lambda: 0.0):
        assert [backoff.next() for _ in range(5)] == [0.25, 0.5, 1.0, 1.5, 1.5]
    assert (backoff.failures, backoff.longest) == (5, 3.0)
    backoff.reset()
    with replaced(ids, fraction=lambda: 1.0):
        assert [backoff.next() for _ in range(4)] == [0.5, 1.0, 2.0, 3.0]
    with replaced(ids, fraction=lambda: 0.0):
        assert Backoff(1.0, 1.0, jitter=1.0).next() == 0.0
    backoff.failures = 100_000
    assert backoff.longest == 3.0


async def test_a_backoff_sleeps_on_the_clock() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    backoff = Backoff(1.0, 30.0)
    with replaced(clock, sleep=sleep, block=slept.append), replaced(ids, fraction=lambda: 0.5):
        await backoff.wait()
        backoff.block()
    assert slept == [0.75, 1.5]


async def test_work_in_a_thread_has_the_context_of_its_task() -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="")
    name.set("orders")
    assert await threads.run(name.get) == "orders"
    pool = threads.pool(1, "test")
    assert await threads.submit(pool, name.get) == "orders"
    pool.shutdown()
    seen: list[object] = []
    threads.start(seen.append, 7, name="test").join()
    assert seen == [7]


async def until_interval(seconds: float) -> None:
    async with asyncio.timeout(10):
        while sys.getswitchinterval() != pytest.approx(seconds):
            await asyncio.sleep(0.001)


@pytest.fixture
def intervals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Quick guards, and the interval of the service as long as the test."""
    monkeypatch.setattr("gateway.runtime.threads.STARVED_AFTER", 0.005)
    monkeypatch.setattr("gateway.runtime.threads.STARVED_FOR", 0.02)
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("intervals")
async def test_a_thread_that_finishes_nothing_gets_the_interpreter_sooner_for_a_while() -> None:
    guard = threads.guard()
    guard.begin()
    await until_interval(STARVED_INTERVAL)
    guard.end()
    await until_interval(SWITCH_INTERVAL)


@pytest.mark.usefixtures("intervals")
async def test_a_thread_that_gets_on_does_not_interrupt_the_loop_more_often() -> None:
    guard = threads.guard()
    end = asyncio.get_running_loop().time() + 0.1
    guard.begin()
    while asyncio.get_running_loop().time() < end:
        guard.begin()
        guard.end()
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL)
        await asyncio.sleep(0)
    guard.close()


@pytest.mark.usefixtures("intervals")
async def test_the_interval_stays_short_while_the_threads_of_one_owner_starve() -> None:
    one, other = threads.guard(), threads.guard()
    one.begin()
    other.begin()
    await until_interval(STARVED_INTERVAL)
    await asyncio.sleep(0.02)  # both have looked
    one.close()
    assert sys.getswitchinterval() == pytest.approx(STARVED_INTERVAL)
    other.close()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL)


@pytest.fixture
async def heard() -> list[dict[str, Any]]:
    contexts: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: contexts.append(context))
    return contexts


async def fail(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


async def test_a_failure_is_reported_once_to_the_loop(heard: list[dict[str, Any]]) -> None:
    tasks = Tasks("publisher", expected=(LookupError,))
    error = ValueError("no")
    tasks.start(fail(error), "orders")
    tasks.start(fail(LookupError()))
    tasks.start(asyncio.sleep(60)).cancel()
    assert await tasks.join(1.0)
    assert [(each[FAILED_TASK], each["exception"], each["name"]) for each in heard] == [("publisher", error, "orders")]
    assert len(tasks) == 0


async def test_an_owner_may_answer_a_failure(heard: list[dict[str, Any]]) -> None:
    failures: list[BaseException] = []
    ends: list[int] = []
    tasks = Tasks("flow", on_failure=failures.append, on_end=lambda: ends.append(len(tasks)))
    error = ValueError("no")
    tasks.start(fail(error))
    tasks.start(asyncio.sleep(0))
    await tasks.join()
    assert (failures, heard, sorted(ends)) == ([error], [], [0, 1])


async def test_tasks_get_their_time_and_are_then_cancelled() -> None:
    tasks = Tasks("test")
    soon, late = tasks.start(asyncio.sleep(0.01)), tasks.start(asyncio.sleep(60))
    assert set(tasks) == {soon, late}
    assert not await tasks.join(0.05)
    assert soon.done()
    assert not late.done()
    await tasks.close()
    assert late.cancelled()
    assert len(tasks) == 0
