"""What the registry of subscriptions remembers, declares, refuses and tells of each."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from gateway.config import SubscriptionFilter, SubscriptionSettings
from gateway.core import subscriptions as module
from gateway.core.subscriptions import WISH, SubscriptionRegistry, discards_unmatched
from gateway.errors import (
    BrokerUnavailable,
    ConfigurationError,
    EncodeError,
    LedgerUnavailable,
    NoSuchBroker,
    NoSuchSubscription,
    ReadOnly,
    StateError,
)
from gateway.ledger import Ledger
from gateway.observing.repeats import FIELDS

ORDERS = SubscriptionSettings(broker="fake", queue="orders")
BOUND = SubscriptionSettings(broker="fake", exchange="shop", binding_key="orders")


class OwnQueues:
    """Own queues that only note what is asked of them."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.asked: list[tuple[str, ...]] = []
        self.stored: list[bool] = []
        """Whether the subscription was stored by then, for each ``ensure``."""
        self.failure: Exception | None = None

    async def ensure(self, name: str, settings: SubscriptionSettings) -> None:
        self.asked.append(("ensure", name, settings.queue or settings.binding_key))
        self.stored.append(await self.ledger.get_resource("subscription", name) is not None)
        if self.failure is not None:
            raise self.failure

    async def abandon(self, name: str, before: SubscriptionSettings, after: SubscriptionSettings | None = None) -> None:
        self.asked.append(("abandon", name, before.binding_key, "" if after is None else after.binding_key))

    def forget(self, name: str) -> None:
        self.asked.append(("forget", name))


class Made:
    """A registry, and what it told."""

    def __init__(self, ledger: Ledger, configured: Mapping[str, SubscriptionSettings] | None = None) -> None:
        queues: Any = OwnQueues(ledger)
        self.queues = queues
        self.changed: list[str] = []
        self.registry = SubscriptionRegistry(ledger, self._find, configured or {}, self.queues)
        self.registry.on_change.append(self.changed.append)

    def _find(self, name: str) -> Any:
        if name != "fake":
            raise NoSuchBroker(f"no broker {name!r} is configured")
        return SimpleNamespace(name=name)


@pytest.fixture
def made(ledger: Ledger) -> Made:
    return Made(ledger)


def bound(key: str) -> SubscriptionSettings:
    return structs.replace(BOUND, binding_key=key)


# -------------------------------------------------------------------------------------------------------- reading


async def test_settings_are_remembered_and_memory_is_bounded(
    made: Made, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CACHED_MAX", 2)
    for name in ("a", "b", "c"):
        await ledger.put_resource("subscription", name, {"broker": "fake", "queue": "orders"})
    reads: list[str] = []
    real = Ledger.get_resource

    async def reading(self: Ledger, kind: str, name: str) -> Any:
        if kind == "subscription":
            reads.append(name)
        return await real(self, kind, name)

    monkeypatch.setattr(Ledger, "get_resource", reading)
    for name in ("a", "b", "a", "b", "a"):
        await made.registry.get(name)
    assert reads == ["a", "b"]
    await made.registry.get("c")
    await made.registry.get("c")
    assert reads == ["a", "b", "c"]
    await made.registry.get("a")
    assert reads == ["a", "b", "c", "a"], "all were forgotten when there were too many"


async def test_what_is_gone_is_not_remembered(made: Made, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    await made.registry.put("billing", ORDERS, None)
    monkeypatch.setattr(module, "CACHE_SECONDS", 0.0)
    await ledger.delete_resource("subscription", "billing", None)
    with pytest.raises(NoSuchSubscription):
        await made.registry.get("billing")
    monkeypatch.undo()
    with pytest.raises(NoSuchSubscription):
        await made.registry.get("billing")


async def test_a_page_has_those_of_the_file_first(ledger: Ledger) -> None:
    """Each of them once, also where the ledger has one of the same name."""
    made = Made(ledger, {"file": ORDERS})
    for name in ("a", "file", "z"):
        await ledger.put_resource("subscription", name, {"broker": "fake", "queue": "other"})
    found, _ = await made.registry.page(None, 10)
    assert [(each.name, each.read_only, each.settings.queue) for each in found] == [
        ("file", True, "orders"),
        ("a", False, "other"),
        ("z", False, "other"),
    ]
    assert (await made.registry.get("file")).read_only
    assert found[0].etag == (await made.registry.get("file")).etag


async def test_all_are_found_over_pages(made: Made, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 2)
    for number in range(5):
        spec = {"broker": "fake", "queue": f"q{number}", "push": "shop" if number % 2 else ""}
        await ledger.put_resource("subscription", f"s{number}", spec)
    await made.registry.pause("s4")
    found = await made.registry.all()
    assert [(each.name, each.paused) for each in found] == [(f"s{number}", number == 4) for number in range(5)]
    assert await made.registry.pushed_to("shop") == ("s1", "s3")
    assert await made.registry.queues() == [("fake", f"q{number}") for number in range(5)]


# ----------------------------------------------------------------------------------------- the configuration file


async def test_queues_of_a_broker_that_is_up_are_there(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    other = SubscriptionSettings(broker="other", exchange="shop", binding_key="x")
    made = Made(ledger, {"a": bound("a"), "elsewhere": other, "b": bound("b")})
    made.queues.failure = BrokerUnavailable("away again")
    await made.registry.declare_queues("fake")
    assert made.queues.asked == [("ensure", "a", "a"), ("ensure", "b", "b")]
    assert [record.getMessage() for record in caplog.records] == ["subscription.queue_missing"] * 2


async def test_another_file_tells_what_is_not_as_it_was(ledger: Ledger) -> None:
    made = Made(ledger, {"same": bound("a"), "other": bound("b"), "gone": bound("c")})
    await made.registry.get("other")
    changed = made.registry.reconfigure({"same": bound("a"), "other": bound("d"), "new": bound("e")})
    assert [(name, None if before is None else before.settings) for name, before in changed] == [
        ("other", bound("b")),
        ("gone", bound("c")),
        ("new", None),
    ]
    assert made.changed == ["other", "gone", "new"]
    assert made.queues.asked == [("forget", name) for name in made.changed]
    assert (await made.registry.get("other")).settings == bound("d")
    with pytest.raises(NoSuchSubscription):
        await made.registry.get("gone")


async def test_queues_move_with_the_file(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    """That of a subscription that is gone stays, and the log says so."""
    made = Made(ledger, {"moved": bound("a"), "gone": bound("b"), "plain": ORDERS})
    changed = made.registry.reconfigure({"moved": bound("c"), "new": bound("d")})
    made.queues.asked.clear()
    for name, before in changed:
        await made.registry.move_queue(name, before)
    await made.registry.move_queue("unknown", None)
    assert made.queues.asked == [("ensure", "moved", "c"), ("abandon", "moved", "a", "c"), ("ensure", "new", "d")]
    assert [getattr(record, FIELDS)["subscription"] for record in caplog.records] == ["gone"]
    made.queues.asked.clear()
    made.queues.failure = BrokerUnavailable("away")
    for name, before in changed:
        await made.registry.move_queue(name, before)
    assert made.queues.asked == [("ensure", "moved", "c"), ("ensure", "new", "d")], "the old one is still needed"


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        (SubscriptionSettings(broker="fake"), "queue"),
        (structs.replace(ORDERS, lease="ledger", order_key="property:none"), "order_key"),
        (structs.replace(BOUND, filter=SubscriptionFilter(selector="a = = b")), r"filter\.selector"),
    ],
)
async def test_settings_that_make_no_sense_are_refused(
    made: Made, ledger: Ledger, settings: SubscriptionSettings, wrong: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"subscriptions\.x\.{wrong}"):
        Made(ledger, {"x": settings})
    with pytest.raises(EncodeError, match=wrong):
        await made.registry.put("x", settings, None)
    assert made.queues.asked == []


@pytest.mark.parametrize(
    ("unmatched", "exchange", "discards"),
    [
        ("", "", False),
        ("", "shop", True),
        ("discard", "", True),
        ("discard", "shop", True),
        ("dead-letter", "", False),
        ("dead-letter", "shop", False),
    ],
)
def test_what_becomes_of_messages_that_the_filter_does_not_want(unmatched: Any, exchange: str, discards: bool) -> None:
    settings = SubscriptionSettings(broker="fake", queue="orders", exchange=exchange, unmatched=unmatched)
    assert discards_unmatched(settings) is discards


# ------------------------------------------------------------------------------------------------------- changing


async def test_its_queue_is_there_before_it_is_stored(made: Made) -> None:
    """So that nothing is missed; where it cannot be declared, nothing is stored."""
    first, created = await made.registry.put("s", bound("a"), None)
    assert created
    assert made.queues.asked == [("forget", "s"), ("ensure", "s", "a")]
    assert made.queues.stored == [False]
    assert made.changed == ["s"]
    again, created = await made.registry.put("s", bound("a"), None)
    assert (again, created) == (first, False)
    assert made.queues.asked[2:] == [("ensure", "s", "a")]
    assert made.changed == ["s"]
    await made.registry.put("s", bound("b"), first.etag)
    assert made.queues.asked[3:] == [("forget", "s"), ("ensure", "s", "b"), ("abandon", "s", "a", "b")]
    made.queues.failure = BrokerUnavailable("away")
    with pytest.raises(BrokerUnavailable):
        await made.registry.put("t", bound("a"), None)
    with pytest.raises(NoSuchSubscription):
        await made.registry.get("t")


async def test_its_dead_letter_broker_must_exist(made: Made) -> None:
    missing = structs.replace(ORDERS, dead_letter_broker="missing", dead_letter_routing_key="dead")
    with pytest.raises(NoSuchBroker, match="missing"):
        await made.registry.put("s", missing, None)
    await made.registry.put("s", structs.replace(missing, dead_letter_broker="fake"), None)


async def test_what_another_process_changed_is_read_before_it_is_replaced_or_deleted(
    made: Made, ledger: Ledger
) -> None:
    await made.registry.put("s", ORDERS, None)
    etag, _ = await ledger.put_resource("subscription", "s", {"broker": "fake", "queue": "other"})
    changed, created = await made.registry.put("s", bound("a"), etag)
    assert (created, changed.settings) == (False, bound("a"))
    await made.registry.get("s")
    etag, _ = await ledger.put_resource("subscription", "s", {"broker": "fake", "exchange": "shop", "binding_key": "b"})
    made.changed.clear()
    made.queues.asked.clear()
    await made.registry.delete("s", etag)
    assert made.queues.asked == [("abandon", "s", "b", "")]
    assert made.changed == ["s"]


async def test_only_what_is_in_the_ledger_is_changed(ledger: Ledger) -> None:
    made = Made(ledger, {"file": ORDERS})
    with pytest.raises(ReadOnly):
        await made.registry.put("file", ORDERS, None)
    with pytest.raises(ReadOnly):
        await made.registry.delete("file", None)
    assert (await made.registry.pause("file")).paused
    assert (await Made(ledger, {"file": ORDERS}).registry.get("file")).paused, "also after a restart"


@pytest.mark.parametrize(
    ("was_pushed", "push", "out", "is_refused"),
    [
        (None, "shop", 3, True),
        (None, "shop", 0, False),
        (None, "", 3, False),
        ("", "shop", 3, True),
        ("", "shop", 0, False),
        ("shop", "another", 3, False),
        ("shop", "", 3, False),
    ],
)
async def test_nothing_is_pushed_that_consumers_have(
    made: Made,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    was_pushed: str | None,
    push: str,
    out: int,
    is_refused: bool,
) -> None:
    etag = None
    if was_pushed is not None:
        before, _ = await made.registry.put("s", structs.replace(ORDERS, push=was_pushed), None)
        etag = before.etag

    async def backlog(name: str) -> Any:
        assert name == "s"
        return SimpleNamespace(out=out)

    monkeypatch.setattr(ledger.deliveries, "backlog", backlog)
    settings = structs.replace(ORDERS, push=push)
    if is_refused:
        with pytest.raises(StateError, match="3 messages"):
            await made.registry.put("s", settings, etag)
        assert made.changed == ([] if was_pushed is None else ["s"])
    else:
        assert (await made.registry.put("s", settings, etag))[0].settings == settings


async def test_a_pause_outlasts_other_settings(made: Made, ledger: Ledger) -> None:
    """But not settings that say how it is to begin, nor the subscription itself."""
    first, _ = await made.registry.put("s", ORDERS, None)
    assert not first.paused
    await made.registry.pause("s")
    second, _ = await made.registry.put("s", bound("a"), first.etag)
    assert second.paused
    third, _ = await made.registry.put("s", structs.replace(bound("a"), paused=True), second.etag)
    assert third.paused
    await made.registry.resume("s")
    assert not (await made.registry.get("s")).paused
    fourth, _ = await made.registry.put("s", structs.replace(bound("a"), paused=False), third.etag)
    assert not fourth.paused
    await made.registry.pause("s")
    await made.registry.delete("s", None)
    assert await ledger.get_resource(WISH, "s") is None
    await ledger.put_resource(WISH, "s", {"paused": True})  # of another that had this name
    assert not (await made.registry.put("s", ORDERS, None))[0].paused


async def test_a_wish_that_cannot_be_deleted_keeps_no_subscription(
    made: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await made.registry.put("s", ORDERS, None)
    real = Ledger.delete_resource

    async def failing(self: Ledger, kind: str, *arguments: Any) -> Any:
        if kind == WISH:
            raise LedgerUnavailable("away")
        return await real(self, kind, *arguments)

    monkeypatch.setattr(Ledger, "delete_resource", failing)
    await made.registry.delete("s", None)
    with pytest.raises(NoSuchSubscription):
        await made.registry.get("s")
    assert [record.getMessage() for record in caplog.records] == ["subscription.definition_left"]


async def test_a_pause_is_told_once(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gateway")
    await made.registry.put("s", ORDERS, None)
    made.changed.clear()
    for _ in range(2):
        assert (await made.registry.pause("s")).paused
    assert made.changed == ["s"]
    for _ in range(2):
        assert not (await made.registry.resume("s")).paused
    assert made.changed == ["s", "s"]
    states = [getattr(each, FIELDS)["state"] for each in caplog.records if each.msg == "subscription.state"]
    assert states == ["paused", "active"]
