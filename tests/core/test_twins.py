"""Messages of a publisher who uses an id again, with the same body, behind a bridge: each of them is handed out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.core import Pulled
from gateway.core.leasing import ledger_leases
from gateway.core.sources import deduplicator
from gateway.errors import LedgerUnavailable
from gateway.fidelity import annotate
from gateway.ledger import MessageIds, id_text
from gateway.ledger.pending.deliveries import DeliveryStore
from gateway.upstreams.consuming import leases
from gateway.webhooks.attempts.sender import SendOutcome
from tests.webhooks.pushed import Estate


@pytest.fixture
async def estate(tmp_path: Path) -> AsyncIterator[Estate]:
    found = Estate(tmp_path)
    await found.open()
    yield found
    await found.close()


async def looked_at(estate: Estate, count: int) -> None:
    """Twins in the queue, as a bridge leaves them; somebody had them, and gave them back."""
    ids = MessageIds()
    for _ in range(count):
        properties = annotate(Properties(delivery_mode=2), id=id_text(ids()), origin="legacy/m-1")
        await estate.upstream.publish("", "in", Message(b"twin", properties))
    for delivery in reversed(await estate.upstream.fetch("in", count, 0.5)):
        delivery.settle(Settlement.RELEASE)
    await estate.wait_depth(count)


async def pull(estate: Estate, count: int = 1) -> list[Pulled]:
    subscription = await estate.gateway.subscriptions.get("s")
    return await estate.gateway.consuming.pull(subscription, count, 0.5, None)


@pytest.mark.parametrize("apart", [False, True])
async def test_pulled_one_after_the_other(estate: Estate, monkeypatch: pytest.MonkeyPatch, apart: bool) -> None:
    """On one channel, or each on a channel of its own."""
    if apart:
        monkeypatch.setattr(leases.LeaseChannel, "reusable", False)
    await estate.subscribe(push="", lease="ledger")
    await looked_at(estate, 3)
    pulled = [item for _ in range(3) for item in await pull(estate)]
    assert [item.delivery.message.body for item in pulled] == [b"twin"] * 3
    assert all(item.redelivered for item in pulled)
    assert await pull(estate) == []


async def test_what_was_stored_and_not_acknowledged_stands_for_one(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway dies between the two: the first comes again and is dropped, the other is another message."""
    await estate.subscribe(push="", lease="ledger")
    await looked_at(estate, 2)
    with monkeypatch.context() as patched:
        patched.setattr(ledger_leases, "settle", lambda delivery, settlement: False)
        assert len(await pull(estate)) == 1
        await estate.close_gateway(0.0)
    await estate.open_gateway()
    pulled = [item for _ in range(3) for item in await pull(estate)]
    assert [item.redelivered for item in pulled] == [True]
    assert (await estate.ledger.deliveries.backlog("s")).out == 2, "the one before is out as well"
    await estate.wait_depth(0)


async def test_what_could_not_be_stored_comes_again_as_itself(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can tell whether it was stored, and it was: it is given back, comes again, and is known."""
    await estate.subscribe(push="", lease="ledger")
    await looked_at(estate, 1)
    store = DeliveryStore.store

    async def cut_off(self: DeliveryStore, *args: Any) -> Any:
        await store(self, *args)
        raise LedgerUnavailable("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(DeliveryStore, "store", cut_off)
        with pytest.raises(LedgerUnavailable):
            await pull(estate)
    assert await pull(estate) == [], "the ledger has it, handed out to nobody for now"
    assert (await estate.ledger.deliveries.backlog("s")).out == 1
    await estate.wait_depth(0)


@pytest.mark.parametrize("stored", [False, True])
async def test_a_twin_that_could_not_be_stored_is_no_repeat_of_the_first(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """The first has its row; the second comes again. Where nobody can tell whether it was stored, it may be there
    twice, marked."""
    await estate.subscribe(push="", lease="ledger")
    await looked_at(estate, 2)
    assert len(await pull(estate)) == 1
    store = DeliveryStore.store

    async def cut_off(self: DeliveryStore, *args: Any) -> Any:
        if stored:
            await store(self, *args)
        raise LedgerUnavailable("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(DeliveryStore, "store", cut_off)
        with pytest.raises(LedgerUnavailable):
            await pull(estate)
    (again,) = await pull(estate)
    assert again.redelivered
    assert (await estate.ledger.deliveries.backlog("s")).out == 2 + stored
    await estate.wait_depth(0)


async def test_no_more_is_remembered_than_a_bound(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplicator, "PULLED_MAX", 1)
    monkeypatch.setattr(ledger_leases, "READERS_MAX", 1)
    for name in ("s", "other"):
        await estate.subscribe(name, push="", lease="ledger")
    await looked_at(estate, 2)
    assert len(await pull(estate) + await pull(estate)) == 2
    subscription = await estate.gateway.subscriptions.get("other")
    assert await estate.gateway.consuming.pull(subscription, 1, 0.0, None) == []
    properties = annotate(Properties(), id=id_text(MessageIds()()), origin="legacy/m-2")
    await estate.upstream.publish("", "in", Message(b"x", properties))
    assert len(await pull(estate)) == 1


async def test_pushed_while_another_waits_for_its_next_attempt(estate: Estate) -> None:
    estate.receivers.put("e", SendOutcome(status=500), schedule=[0, 600], breaker_failures=100)
    await looked_at(estate, 3)
    await estate.subscribe(prefetch=1)
    await estate.wait_for(waiting=3)
    await estate.wait_depth(0)
