"""Coroutines that are run up to their first wait."""

from __future__ import annotations

import asyncio

import pytest

from gateway.api.http.eager import begin, ends_at_once


async def at_once(value: int) -> int:
    return value


async def fail() -> None:
    raise ValueError("at once")


async def test_a_result_without_waiting() -> None:
    assert begin(at_once(3)) == (3, None)
    assert ends_at_once(at_once(3))
    for run in (begin, ends_at_once):
        with pytest.raises(ValueError, match="at once"):
            run(fail())


async def test_the_rest_is_awaited() -> None:
    event = asyncio.Event()

    async def wait() -> str:
        await event.wait()
        await asyncio.sleep(0)
        return "done"

    found, rest = begin(wait())
    assert found is None
    assert rest is not None
    asyncio.get_running_loop().call_soon(event.set)
    async with asyncio.timeout(30):
        assert await rest == "done"


async def test_a_timeout_reaches_the_coroutine() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("ended")

    _, rest = begin(wait())
    assert rest is not None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await rest
    assert ended == ["ended"]


async def test_an_error_after_the_wait() -> None:
    async def wait() -> None:
        await asyncio.sleep(0)
        await fail()

    _, rest = begin(wait())
    assert rest is not None
    with pytest.raises(ValueError, match="at once"):
        await rest


async def test_one_that_would_wait_is_closed() -> None:
    event = asyncio.Event()
    ended = []

    async def wait() -> None:
        try:
            await event.wait()
        finally:
            ended.append("ended")

    work = wait()
    assert not ends_at_once(work)
    assert ended == ["ended"]
    event.set()  # nobody waits any more
