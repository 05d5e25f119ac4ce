"""Settings of subscriptions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.config import SubscriptionSettings
from gateway.core import Gateway, subscriptions
from gateway.errors import (
    CommitUnknown,
    EtagMismatch,
    LedgerUnavailable,
    NoSuchBroker,
    NoSuchSubscription,
    ReadOnly,
)
from gateway.ledger import Ledger
from gateway.observing.telemetry import Metrics
from tests.core.fakes import FakeUpstream

ORDERS = SubscriptionSettings(broker="fake", queue="orders")
OTHER = SubscriptionSettings(broker="fake", queue="other")


async def test_create_replace_delete(gateway: Gateway) -> None:
    first, created = await gateway.subscriptions.put("billing", ORDERS, None)
    assert (created, first.read_only) == (True, False)
    again, created = await gateway.subscriptions.put("billing", ORDERS, None)
    assert (created, again.etag) == (False, first.etag)
    with pytest.raises(EtagMismatch):
        await gateway.subscriptions.put("billing", OTHER, None)
    with pytest.raises(EtagMismatch):
        await gateway.subscriptions.put("billing", OTHER, "nonsense")
    changed, created = await gateway.subscriptions.put("billing", OTHER, first.etag)
    assert (created, changed.settings) == (False, OTHER)
    assert (await gateway.subscriptions.get("billing")).settings == OTHER
    await gateway.subscriptions.delete("billing", changed.etag)
    with pytest.raises(NoSuchSubscription):
        await gateway.subscriptions.get("billing")
    with pytest.raises(NoSuchSubscription):
        await gateway.subscriptions.delete("billing", None)


async def test_its_broker_must_exist(gateway: Gateway) -> None:
    with pytest.raises(NoSuchBroker):
        await gateway.subscriptions.put("x", SubscriptionSettings(broker="missing", queue="q"), None)


async def test_what_the_file_defines_is_read_only(ledger: Ledger, upstream: FakeUpstream) -> None:
    gateway = Gateway(
        ledger, {"fake": upstream}, Metrics("test"), subscriptions={"file": ORDERS}, ack_key=b"k" * 32  # type: ignore[dict-item]
    )  # fmt: skip
    assert (await gateway.subscriptions.get("file")).read_only
    with pytest.raises(ReadOnly):
        await gateway.subscriptions.put("file", OTHER, None)
    with pytest.raises(ReadOnly):
        await gateway.subscriptions.delete("file", None)
    for name in ("a", "b", "c"):
        await gateway.subscriptions.put(name, ORDERS, None)
    page, cursor = await gateway.subscriptions.page(None, 2)
    assert [item.name for item in page] == ["file", "a", "b"]
    page, cursor = await gateway.subscriptions.page(cursor, 2)
    assert ([item.name for item in page], cursor) == (["c"], None)


async def test_settings_are_read_again_after_a_while(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    await gateway.subscriptions.put("billing", ORDERS, None)
    await gateway.subscriptions.get("billing")
    await gateway.ledger.put_resource("subscription", "billing", {"broker": "fake", "queue": "other"})
    assert (await gateway.subscriptions.get("billing")).settings == ORDERS
    monkeypatch.setattr(subscriptions, "CACHE_SECONDS", 0.0)
    assert (await gateway.subscriptions.get("billing")).settings == OTHER


@pytest.mark.parametrize("fails", ["put_resource", "delete_resource"])
async def test_what_is_stored_though_its_put_fails_is_done(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """A repeat changes nothing, and would tell nobody: its messages would stay in the queue until the next start."""
    settings = SubscriptionSettings(broker="fake", queue="orders", lease="ledger", order_key="routing_key")
    real = getattr(gateway.ledger, fails)
    errors: list[LedgerUnavailable] = [CommitUnknown("cut off")]

    async def away(*arguments: Any) -> Any:
        found = await real(*arguments)
        if errors:
            raise errors.pop()
        return found

    monkeypatch.setattr(gateway.ledger, fails, away)
    with pytest.raises(LedgerUnavailable):
        await gateway.subscriptions.put("billing", settings, None)
    again, created = await gateway.subscriptions.put("billing", settings, None)
    assert (again.settings, created) == (settings, False)
    async with asyncio.timeout(10):
        while "billing" not in gateway.intakes._running:
            await asyncio.sleep(0.01)


async def test_what_is_paused_though_that_fails_is_paused(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SubscriptionSettings(broker="fake", queue="orders", lease="ledger", order_key="routing_key")
    await gateway.subscriptions.put("billing", settings, None)
    async with asyncio.timeout(10):
        while "billing" not in gateway.intakes._running:
            await asyncio.sleep(0.01)
        put_resource, errors = gateway.ledger.put_resource, [CommitUnknown("cut off")]

        async def away(*arguments: Any) -> Any:
            found = await put_resource(*arguments)
            if errors:
                raise errors.pop()
            return found

        monkeypatch.setattr(gateway.ledger, "put_resource", away)
        with pytest.raises(CommitUnknown):
            await gateway.subscriptions.pause("billing")
        assert (await gateway.subscriptions.pause("billing")).paused
        while "billing" in gateway.intakes._running:
            await asyncio.sleep(0.01)


async def test_what_was_read_before_a_change_is_not_remembered_after_it(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await gateway.subscriptions.put("s", ORDERS, None)
    read = Ledger.get_resource
    is_slow, reading, may_go = True, asyncio.Event(), asyncio.Event()

    async def slow(self: Ledger, *arguments: Any) -> Any:
        nonlocal is_slow
        found = await read(self, *arguments)
        if is_slow and arguments == (subscriptions.WISH, "s"):
            is_slow = False
            reading.set()
            await may_go.wait()
        return found

    monkeypatch.setattr(Ledger, "get_resource", slow)
    gateway.subscriptions.forget("s")
    before = asyncio.create_task(gateway.subscriptions.get("s"))
    await reading.wait()
    await gateway.subscriptions.pause("s")
    may_go.set()
    assert not (await before).paused
    assert (await gateway.subscriptions.get("s")).paused


async def test_what_is_deleted_though_that_fails_takes_nothing_more(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SubscriptionSettings(broker="fake", queue="orders", lease="ledger", order_key="routing_key")
    await gateway.subscriptions.put("billing", settings, None)
    delete_resource = gateway.ledger.delete_resource

    async def cut(*arguments: Any) -> bool:
        await delete_resource(*arguments)
        raise CommitUnknown("cut off")

    async with asyncio.timeout(10):
        while "billing" not in gateway.intakes._running:
            await asyncio.sleep(0.01)
        with monkeypatch.context() as patched:
            patched.setattr(gateway.ledger, "delete_resource", cut)
            with pytest.raises(CommitUnknown):
                await gateway.subscriptions.delete("billing", None)
        with pytest.raises(NoSuchSubscription):
            await gateway.subscriptions.get("billing")
        while "billing" in gateway.intakes._running:
            await asyncio.sleep(0.01)


async def test_what_is_asked_last_holds(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause whose caller has given up is still being written when the next one resumes."""
    await gateway.subscriptions.put("billing", ORDERS, None)
    put_resource, may_go = gateway.ledger.put_resource, asyncio.Event()

    async def slow(*arguments: Any) -> Any:
        await may_go.wait()
        return await put_resource(*arguments)

    monkeypatch.setattr(gateway.ledger, "put_resource", slow)
    pausing = asyncio.create_task(gateway.subscriptions.pause("billing"))
    await asyncio.sleep(0.05)
    resuming = asyncio.create_task(gateway.subscriptions.resume("billing"))
    await asyncio.sleep(0.05)
    may_go.set()
    await asyncio.gather(pausing, resuming)
    gateway.subscriptions.forget("billing")
    assert not (await gateway.subscriptions.get("billing")).paused
