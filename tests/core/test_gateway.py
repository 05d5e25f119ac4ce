"""The object graph: start, ready, close."""

from __future__ import annotations

import pytest

from gateway.core import Gateway
from gateway.errors import NoSuchMessage
from gateway.ledger import Ledger, MessageFilter
from gateway.observing.telemetry import Metrics
from gateway.upstreams import Oversized, UpstreamState
from tests.core.fakes import FakeUpstream
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
