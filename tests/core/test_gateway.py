"""The object graph: start, ready, close."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from gateway.config import SubscriptionSettings
from gateway.core import Gateway, KeyedRequest
from gateway.core.work.peers import TellRequest
from gateway.errors import NoSuchBroker, NoSuchMessage
from gateway.ledger import Ledger, MessageFilter
from gateway.observing.telemetry import Metrics
from gateway.upstreams import Oversized, PublishReceipt, UpstreamState
from tests.core.fakes import FakeUpstream
from tests.core.test_keys import render
from tests.core.test_publishing import message


async def test_ready_says_what_stands_in_the_way(ledger: Ledger) -> None:
    upstream = FakeUpstream(required=True)
    gateway = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32)  # type: ignore[dict-item]
    await gateway.start()
    assert gateway.ready() == []
    upstream.state, upstream.reason = UpstreamState.DOWN, "connection refused"
    assert gateway.ready() == ["broker fake: down connection refused"]
    gateway.drain()
    assert gateway.ready()[0] == "shutting down"
    await gateway.close(1.0)
    await ledger.close()
    assert any(reason.startswith("ledger: ") for reason in gateway.ready())


async def test_when_it_is_closed_it_asks_no_other_gateway_any_more(gateway: Gateway) -> None:
    gateway.peers.tell("subscription", {"name": "s"})
    client = gateway.peers._client = httpx.AsyncClient()
    await gateway.close(1.0)
    assert client.is_closed


async def test_a_broker_that_is_not_required_may_be_away(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.state = UpstreamState.DOWN
    assert gateway.ready() == []


async def test_changes_of_state_are_metrics(gateway: Gateway, upstream: FakeUpstream) -> None:
    assert b'amqpgw_broker_up{broker="fake"} 1.0' in gateway.metrics.render()
    upstream.state = UpstreamState.BLOCKED
    upstream.on_state[0](upstream)
    text = gateway.metrics.render()
    assert b'amqpgw_broker_up{broker="fake"} 0.0' in text
    assert b'amqpgw_broker_blocked{broker="fake"} 1.0' in text


async def test_a_message_that_is_too_large_is_counted(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.on_oversized[0](Oversized("orders", "", "orders", 100, 10))
    assert b'amqpgw_deliveries_total{broker="fake",event="oversized"} 1.0' in gateway.metrics.render()


async def test_messages_and_their_timelines(gateway: Gateway) -> None:
    results = await gateway.publish("fake", "", [message(), message()])
    page, cursor = await gateway.messages(MessageFilter(broker="fake"), None, 1)
    assert len(page) == 1
    assert cursor is not None
    assert (await gateway.timeline(results[0].id)).message.state == "confirmed"
    for unknown in ("nonsense", "01980000-0000-7000-8000-000000000000"):
        with pytest.raises(NoSuchMessage):
            await gateway.timeline(unknown)


def value(gateway: Gateway, name: str, **labels: str) -> float | None:
    return gateway.metrics.registry.get_sample_value(f"amqpgw_{name}", labels)


# ---------------------------------------------------------------------------------------------------- what is shown


async def test_what_is_looked_at_only_when_somebody_asks(
    gateway: Gateway, upstream: FakeUpstream, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.unconfirmed_for = 7.5
    monkeypatch.setattr(upstream, "status", lambda: SimpleNamespace(pending=3))
    monkeypatch.setattr(ledger.disk, "free_bytes", 1_000)
    monkeypatch.setattr(ledger.disk, "reserve_bytes", 100)
    for state, up, blocked in ((UpstreamState.UP, 1, 0), (UpstreamState.BLOCKED, 0, 1), (UpstreamState.DOWN, 0, 0)):
        upstream.state = state
        gateway.measure()
        assert (value(gateway, "broker_up", broker="fake"), value(gateway, "broker_blocked", broker="fake")) == (
            up, blocked,
        )  # fmt: skip
    assert value(gateway, "unconfirmed", broker="fake") == 3
    assert value(gateway, "unconfirmed_oldest_seconds", broker="fake") == 7.5
    assert value(gateway, "ledger_disk_free_bytes") == 1_000
    assert value(gateway, "ledger_disk_reserve_bytes") == 100
    assert value(gateway, "ledger_up") == 1
    monkeypatch.setattr(type(ledger), "ready", lambda self: (False, "locked"))
    gateway.measure()
    assert value(gateway, "ledger_up") == 0
    monkeypatch.undo()


async def test_a_state_of_a_broker_is_shown_and_logged(
    gateway: Gateway, upstream: FakeUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gateway")
    for state in (UpstreamState.BLOCKED, UpstreamState.DOWN, UpstreamState.UP, UpstreamState.CONNECTING):
        upstream.state = state
        gateway._broker_changed(upstream)  # type: ignore[arg-type]
        assert value(gateway, "broker_up", broker="fake") == (state is UpstreamState.UP)
        assert value(gateway, "broker_blocked", broker="fake") == (state is UpstreamState.BLOCKED)
    levels = [record.levelno for record in caplog.records if record.getMessage() == "broker.state"]
    assert levels == [logging.WARNING, logging.WARNING, logging.INFO, logging.INFO]
    upstream.state = UpstreamState.UP
    upstream.on_answered[0](0.25)
    assert value(gateway, "confirm_seconds_sum", broker="fake") == 0.25
    assert value(gateway, "publishes_total", broker="fake", outcome="unknown") == 0


async def test_each_thing_that_stands_in_the_way_is_a_reason(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers: Any = {name: FakeUpstream(name, required=name == "needed") for name in ("needed", "other")}
    gateway = Gateway(ledger, brokers, Metrics("test"), ack_key=b"k" * 32)
    for state in (UpstreamState.UP, UpstreamState.BLOCKED):
        brokers["needed"].state = state
        assert gateway.ready() == []
    brokers["needed"].state, brokers["other"].state = UpstreamState.CONNECTING, UpstreamState.DOWN
    assert gateway.ready() == ["broker needed: connecting"]
    brokers["needed"].state = UpstreamState.UP
    gateway.leave()
    assert gateway.ready() == ["shutting down"]
    gateway.leaving, gateway.draining = False, True
    assert gateway.ready() == ["shutting down"]
    gateway.draining = False
    monkeypatch.setattr(type(ledger.disk), "is_low", True)
    monkeypatch.setattr(type(ledger.disk), "reason", "the disk is full")
    assert gateway.ready() == ["ledger: the disk is full"]
    monkeypatch.setattr(type(ledger), "ready", lambda self: (False, "locked"))
    assert gateway.ready() == ["ledger: locked"]


# ------------------------------------------------------------------------------------------------- other brokers


async def test_brokers_come_and_go(gateway: Gateway, upstream: FakeUpstream) -> None:
    """What is under way at those that go comes to its end there."""
    await upstream.declare_queue("passing")
    gateway._publisher.know_queue("fake", "passing", durable=False)
    another: Any = FakeUpstream()
    new: Any = FakeUpstream("new")
    await another.declare_queue("passing")
    made: Any = {"fake": another, "new": new}
    gateway.change_brokers(made, [])
    assert gateway.brokers == {"fake": another, "new": new}
    assert len(gateway.retired) == 1
    assert gateway._broker_changed not in upstream.on_state
    assert value(gateway, "broker_up", broker="new") == 1
    (result,) = await gateway.publish("fake", "", [message(key="passing")])
    assert result.durable, "nothing is known of the queues of another broker"
    assert [sent.body for _, _, sent in another.published] == [b"hello"]
    for each in (another, new):
        each.state = UpstreamState.DOWN
        for call in each.on_state:
            call(each)
        assert value(gateway, "broker_up", broker=each.name) == 0
        each.state = UpstreamState.UP
    gateway.change_brokers({}, ["new"])
    assert set(gateway.brokers) == {"fake"}
    assert value(gateway, "broker_up", broker="new") is None
    assert len(gateway.retired) == 2
    with pytest.raises(NoSuchBroker, match="'new'"):
        gateway.broker("new")


@pytest.mark.parametrize("with_key", [False, True])
async def test_a_broker_knows_who_uses_it(gateway: Gateway, upstream: FakeUpstream, with_key: bool) -> None:
    upstream.held = []
    publish: Any = (
        partial(gateway.publish_keyed, KeyedRequest("me", "k", b"f" * 32), "fake", "", [message()], render)
        if with_key
        else partial(gateway.publish, "fake", "", [message()])
    )
    publishing = asyncio.create_task(publish())
    async with asyncio.timeout(5):
        while not upstream.held:
            await asyncio.sleep(0.005)
    assert upstream.users == 1
    upstream.confirm_held()
    await publishing
    assert upstream.users == 0
    upstream.users = 0
    upstream.failure = None
    with pytest.raises(NoSuchBroker):
        await gateway.publish("missing", "", [message()])
    assert upstream.users == 0


async def test_what_is_under_way_of_an_order_is_not_overtaken_over_another_broker(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    upstream.held = []
    another: Any = FakeUpstream()
    await another.declare_queue("orders")

    def publish(body: bytes, order: str | None = "o") -> asyncio.Task[Any]:
        return asyncio.create_task(gateway.publish("fake", "", [message(body)], order=order))

    async def sent(broker: Any, *expected: bytes) -> None:
        async with asyncio.timeout(5):
            while [sent.body for _, _, sent in broker.published] != list(expected):
                await asyncio.sleep(0.005)

    calls = [publish(b"1")]
    await sent(upstream, b"1")
    gateway.change_brokers({"fake": another}, [])
    calls.append(publish(b"2"))
    await sent(upstream, b"1", b"2")
    calls += [publish(b"another", "p"), publish(b"none", None)]
    await asyncio.gather(*calls[2:])
    assert len(another.published) == 2
    assert upstream.users == 2
    upstream.held[0].set_result(PublishReceipt(True))
    await calls[0]
    calls.append(publish(b"3"))
    await sent(upstream, b"1", b"2", b"3")
    upstream.confirm_held()
    await asyncio.gather(*calls)
    assert (upstream.users, another.users, gateway._orders) == (0, 0, {})
    await publish(b"4")
    assert another.published[-1][2].body == b"4"


# ------------------------------------------------------------------------------------------- what others hear of


async def test_what_other_processes_change_is_read_again(
    gateway: Gateway, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SubscriptionSettings(broker="fake", queue="orders")
    await gateway.subscriptions.put("s", settings, None)
    await gateway.subscriptions.get("s")
    await ledger.put_resource("subscription", "s", {"broker": "fake", "queue": "other"})
    changed: list[str] = []
    monkeypatch.setattr(gateway.consuming, "changed", changed.append)
    gateway.peers.heard(TellRequest("subscription", {"name": "s"}))
    assert (await gateway.subscriptions.get("s")).settings.queue == "other"
    assert changed == ["s"]


async def test_what_changes_here_is_told(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    changed: list[str] = []
    monkeypatch.setattr(gateway.peers, "tell", lambda topic, news: told.append((topic, dict(news))))
    monkeypatch.setattr(gateway.consuming, "changed", changed.append)
    await gateway.subscriptions.put("s", SubscriptionSettings(broker="fake", queue="orders"), None)
    assert told == [("subscription", {"name": "s"}), ("work", {"kind": "intake", "name": "s"})]
    assert changed == ["s"]
    owed: list[str] = []
    gateway.on_owed.append(owed.append)
    backlog = gateway.consuming.backlogs["s"]
    backlog.asked()
    backlog.emptied()
    gateway.deliveries_changed("s")
    assert (owed, backlog.may_be_due()) == (["s"], True)
