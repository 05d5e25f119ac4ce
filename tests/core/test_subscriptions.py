"""Settings of subscriptions."""

from __future__ import annotations

import pytest

from gateway.config import SubscriptionSettings
from gateway.core import Gateway, subscriptions
from gateway.errors import EtagMismatch, NoSuchBroker, NoSuchSubscription, ReadOnly
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
