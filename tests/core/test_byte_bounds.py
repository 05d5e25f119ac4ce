"""Pulls and streams end at their bytes, whoever holds the leases."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.budgets import ALONE
from gateway.core import Gateway, SubscriptionResource
from gateway.core.leasing import streams
from gateway.errors import Overloaded
from gateway.ledger import Ledger
from tests.core.fakes import FakeUpstream
from tests.core.test_intake import until
from tests.core.test_ledger_leases import bodies, ids, subscribe
from tests.core.test_publishing import message
from tests.core.test_streams import Reader

SIZE = 1_000


@pytest.fixture(params=["broker", "ledger"])
async def billing(gateway: Gateway, request: pytest.FixtureRequest) -> SubscriptionResource:
    return await subscribe(gateway, lease=request.param)


async def publish(gateway: Gateway, count: int) -> list[bytes]:
    sent = [b"%03d" % number + bytes(SIZE - 3) for number in range(count)]
    await gateway.publish("fake", "", [message(body) for body in sent])
    return sent


async def pull(gateway: Gateway, subscription: SubscriptionResource, bytes_max: int, wait: float = 0.0) -> Any:
    return await gateway.consuming.pull(subscription, 100, wait, None, None, ALONE, bytes_max)


@pytest.mark.parametrize("wait", [0.0, 1.0])
async def test_a_pull_ends_at_its_bytes(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource, wait: float
) -> None:
    sent = await publish(gateway, 10)
    got: list[bytes] = []
    for expected in (4, 4, 2):
        pulled = await pull(gateway, billing, 4 * SIZE, wait)
        assert len(pulled) == expected
        got += bodies(pulled)
        await gateway.consuming.acknowledge(billing, ids(*pulled))
    assert got == sent
    assert await pull(gateway, billing, 4 * SIZE) == []


async def test_what_is_due_in_the_ledger_comes_with_the_next_pull(gateway: Gateway, upstream: FakeUpstream) -> None:
    """More is due than fits: that is not taken for an empty ledger, and what the broker has waits behind it."""
    billing = await subscribe(gateway)
    sent = await publish(gateway, 8)
    first = await pull(gateway, billing, 100 * SIZE)
    await gateway.consuming.release(billing, ids(*first))
    await publish(gateway, 1)
    got = []
    for expected in (3, 3):
        pulled = await pull(gateway, billing, 3 * SIZE + 1)
        assert len(pulled) == expected
        got += bodies(pulled)
    last = await pull(gateway, billing, 3 * SIZE + 1)
    assert len(last) == 3
    assert sorted([*got, *bodies(last)]) == sorted([*sent, sent[0]])
    assert not upstream.queues["orders"].ready


async def test_what_is_given_up_takes_no_bytes_of_a_pull(gateway: Gateway) -> None:
    """A message that was out too often is larger than the pull; what is due behind it comes all the same."""
    billing = await subscribe(gateway, max_deliveries=2)
    await gateway.publish("fake", "", [message(bytes(5 * SIZE))])
    (tired,) = await pull(gateway, billing, 100 * SIZE)
    await gateway.consuming.release(billing, ids(tired))
    (fresh,) = await publish(gateway, 1)
    assert len(await gateway.consuming.pull(billing, 100, 0.0, 0.01)) == 2
    await asyncio.sleep(0.05)
    gateway.deliveries_changed("billing")
    assert bodies(await pull(gateway, billing, SIZE)) == [fresh]
    assert (await gateway.ledger.deliveries.backlog("billing")).dead == 1


async def test_a_claim_says_that_more_is_due(gateway: Gateway, ledger: Ledger) -> None:
    billing = await subscribe(gateway)
    await publish(gateway, 3)
    await gateway.consuming.release(billing, ids(*await pull(gateway, billing, 100 * SIZE)))
    claimed = await ledger.deliveries.claim("billing", 10, 30.0, octets_max=2 * SIZE)
    assert (len(claimed), claimed.is_cut) == (2, True)
    claimed = await ledger.deliveries.claim("billing", 10, 30.0, octets_max=2 * SIZE)
    assert (len(claimed), claimed.is_cut) == (1, False)


async def test_leases_of_brokers_are_bounded_in_bytes(gateway: Gateway, upstream: FakeUpstream) -> None:
    billing = await subscribe(gateway, lease="broker")
    gateway.budgets["lease_bytes"].configure(3 * SIZE, 1.0, 0.0, {})
    await publish(gateway, 5)
    pulled = await pull(gateway, billing, 100 * SIZE)
    assert len(pulled) == 3
    with pytest.raises(Overloaded, match=r"lease_bytes: 3,000 of 3,000 .*http\.leases_bytes_max"):
        await pull(gateway, billing, 100 * SIZE)
    assert len(upstream.queues["orders"].ready) == 2
    assert gateway.budgets["lease_bytes"].standing().held == 3 * SIZE
    await gateway.consuming.acknowledge(billing, ids(pulled[0]))
    assert len(await pull(gateway, billing, 100 * SIZE)) == 1


async def test_pulls_that_waited_while_others_took_all_give_back(gateway: Gateway, upstream: FakeUpstream) -> None:
    """Each has a message when the first of them is handed over, which fills the budget."""
    billing = await subscribe(gateway, lease="broker")
    gateway.budgets["lease_bytes"].configure(2 * SIZE, 1.0, 0.0, {})
    waiting = [asyncio.create_task(pull(gateway, billing, 100 * SIZE, 5.0)) for _ in range(3)]
    await until(lambda: upstream.fetches == 3)
    for number in range(3):
        upstream.publish_nowait("", "orders", message(b"%d" % number + bytes(2 * SIZE)).message)
    results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
    (pulled,) = (each for each in results if isinstance(each, list))
    assert len(pulled) == 1
    assert sum(isinstance(each, Overloaded) for each in results) == 2
    assert gateway.budgets["leases"].standing().held == 1
    assert len(upstream.out) == 1
    assert len(upstream.queues["orders"].ready) == 2


async def test_a_stream_has_a_window_in_bytes(
    gateway: Gateway, billing: SubscriptionResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "WINDOW_BYTES", 4 * SIZE)
    monkeypatch.setattr(streams, "BATCH_BYTES", 2 * SIZE)
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    stream = streams.DeliveryStream(
        gateway.consuming,
        gateway.subscriptions,
        gateway.ledger,
        billing,
        streams.StreamReader(gone, 100, None),
        shared=False,
    )
    await publish(gateway, 10)
    reader = Reader(stream, gone)
    await until(lambda: len(reader.got) == 4)
    await asyncio.sleep(0.05)
    assert len(reader.got) == 4
    await gateway.consuming.acknowledge(billing, ids(*reader.got))
    await until(lambda: len(reader.got) == 8)
    await reader.end()


async def test_a_stream_waits_where_others_hold_all_bytes(
    gateway: Gateway, billing: SubscriptionResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "PAUSE", 0.01)
    budget = gateway.budgets["bytes"]
    budget.configure(SIZE, 1.0, 0.0, {})
    budget.take(ALONE, SIZE)
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    stream = streams.DeliveryStream(
        gateway.consuming,
        gateway.subscriptions,
        gateway.ledger,
        billing,
        streams.StreamReader(gone, 100, None, bytes_left=lambda: budget.check(ALONE)),
        shared=False,
    )
    await publish(gateway, 2)
    reader = Reader(stream, gone)
    await asyncio.sleep(0.1)
    assert reader.got == []
    budget.give(ALONE, SIZE)
    await until(lambda: len(reader.got) == 2)
    await reader.end()
