"""More octets than a bridge may hold: what is given back comes again, and must not do so for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.sources.byte_budget import Part
from gateway.upstreams import Consumer
from tests.bridges.conftest import Estate, until

OCTETS = 1 << 16


async def test_a_consumer_that_is_overrun_before_it_is_known(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a broker sends behind its consume-ok is here before the bridge has the consumer in hand."""
    consume = estate.old.consume

    async def slow(*arguments: Any, **options: Any) -> Consumer:
        consumer = await consume(*arguments, **options)
        await asyncio.sleep(0.5)
        return consumer

    monkeypatch.setattr(estate.old, "consume", slow)
    await estate.new.delete_queue("out")
    await estate.fill(12, size=50_000)
    await estate.bridge(prefetch_octets=OCTETS)
    await estate.wait_for(state="error")
    await estate.new.declare_queue("out")
    taken = await estate.take(12)
    assert [int(delivery.message.body.rstrip(b"x")) for delivery in taken] == list(range(1, 13))
    await estate.wait_for(forwarded=12, in_flight=0, state="running")


async def test_one_at_a_time_overrun_by_what_a_lost_channel_left(estate: Estate) -> None:
    """The publishes of a lost channel are still without an outcome when the next one brings its first message."""
    await estate.bridge(prefetch=1, prefetch_octets=OCTETS, dedupe_seconds=0)
    await estate.wait_for(state="running")
    flow = estate.bridges._here["b"]._flow
    assert flow is not None
    record, held = flow._journal.record, asyncio.Event()

    async def slow(*arguments: Any) -> None:
        await held.wait()
        await record(*arguments)

    flow._journal.record = slow  # type: ignore[method-assign]
    await estate.fill(1, size=3 * OCTETS)
    await until(lambda: flow._gate.outstanding == 1)
    await estate.away("old")
    await estate.wait_for(state="error")
    await estate.back("old")
    await until(lambda: flow._overflowed is not False)
    held.set()
    await estate.wait_for(in_flight=0, forwarded=2, source_messages=0)


async def test_a_bridge_makes_room_for_others_and_goes_on(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others hold so much that only a small part of the total is left to each."""
    budget = estate.gateway.parts.byte_budget
    budget.holdings.configure(8 * OCTETS, 1.0, 0.0, {})
    other = budget.part("bridge", "other")
    other.add(5 * OCTETS)
    most = 0
    add = Part.add

    def count(part: Part, size: int) -> None:
        nonlocal most
        add(part, size)
        most = max(most, budget.held)

    monkeypatch.setattr(Part, "add", count)
    await estate.fill(40, size=20_000)
    await estate.bridge()
    await estate.wait_for(forwarded=40, in_flight=0, source_messages=0)
    assert 6 * OCTETS < most <= 8 * OCTETS
    assert budget.held == 5 * OCTETS
