"""Brokers that others have taken the place of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.amqp.operations import Settlement
from gateway.config import BrokerSettings
from gateway.core import retired
from gateway.core.retired import Retired
from gateway.errors import Overloaded
from gateway.upstreams import Upstream
from tests.upstreams.fake import FakeBroker, until


@pytest.fixture
async def upstream(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Upstream]:
    broker = FakeBroker()
    broker.put("q", b"1")
    monkeypatch.setattr("gateway.upstreams.keeper.client_session", broker.session)
    monkeypatch.setattr(retired, "REST", 0.1)
    monkeypatch.setattr(retired, "LOOK_EVERY", 0.01)
    upstream = Upstream(
        "fake", BrokerSettings(url="amqp://guest:guest@localhost/?version=0-9-1"), connector=broker.dial
    )
    await upstream.start()
    assert await upstream.wait_up(10)
    await upstream.declare_queue("empty")
    yield upstream
    await upstream.close(0.0)


async def test_one_without_anything_under_way_is_closed_after_a_rest(upstream: Upstream) -> None:
    kept = Retired()
    kept.add(upstream)
    await asyncio.sleep(0.03)
    assert (len(kept), upstream.state.value) == (1, "up")
    await until(lambda: len(kept) == 0, 5.0)
    assert upstream.state.value == "closed"


@pytest.mark.parametrize("what", ["a lease", "a fetch that waits", "a consumer", "somebody about to use it"])
async def test_one_that_is_in_use_stays(upstream: Upstream, what: str) -> None:
    kept = Retired()
    (delivery,) = await upstream.fetch("q", 1) if what == "a lease" else (None,)
    fetching = asyncio.create_task(upstream.fetch("empty", 1, 30.0)) if what == "a fetch that waits" else None
    consumer: Any = await upstream.consume("q", 1, lambda _: None) if what == "a consumer" else None
    upstream.users += what == "somebody about to use it"
    await asyncio.sleep(0.02)
    assert not upstream.idle
    kept.add(upstream)
    await asyncio.sleep(0.3)
    assert (len(kept), upstream.state.value) == (1, "up")
    if delivery is not None:
        delivery.settle(Settlement.ACCEPT)
    if fetching is not None:
        fetching.cancel()
        await asyncio.wait([fetching])
    if consumer is not None:
        await consumer.close()
    if what == "somebody about to use it":
        upstream.users -= 1
    await until(lambda: len(kept) == 0, 5.0)


async def test_all_of_them_are_closed_at_the_end(upstream: Upstream) -> None:
    kept = Retired()
    upstream.users = 1
    kept.add(upstream)
    await asyncio.sleep(0.05)
    await kept.close(1.0)
    assert (len(kept), upstream.state.value) == (0, "closed")
    await kept.close(1.0)


async def test_there_is_an_end_to_them(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retired, "RETIRED_MAX", 1)
    kept = Retired()
    kept.check_room(1)
    upstream.users = 1
    kept.add(upstream)
    kept.check_room(0)
    with pytest.raises(Overloaded, match="1 brokers that were replaced"):
        kept.check_room(1)
    await kept.close(0.1)
