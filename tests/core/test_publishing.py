"""Messages to brokers, and what became of them, in the ledger."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core import Gateway, Outgoing, Published
from gateway.core.publishing import OUTCOMES, outcome_of
from gateway.errors import (
    BrokerUnavailable,
    EncodeError,
    GatewayError,
    LedgerUnavailable,
    NoSuchBroker,
    NotFound,
    NotRecorded,
    OutcomeUnknown,
    PublishRefused,
    Unroutable,
    remote_error,
)
from gateway.fidelity import annotation
from gateway.ledger import Kind, Ledger, parse_id
from gateway.message import Message, Properties
from gateway.session import Capabilities
from gateway.telemetry import Metrics
from gateway.upstreams import UpstreamState
from tests.core.fakes import FakeUpstream

PERSISTENT = Properties(delivery_mode=2)


def message(body: bytes = b"hello", key: str = "orders", **more: Any) -> Outgoing:
    return Outgoing(key, Message(body, Properties(delivery_mode=2)), **more)


async def kinds(gateway: Gateway, result: Published) -> list[str]:
    return [event.kind.value for event in (await gateway.timeline(result.id)).events]


async def test_a_confirmed_message_is_in_the_ledger(gateway: Gateway, upstream: FakeUpstream) -> None:
    (result,) = await gateway.publish("fake", "", [message()], "alice")
    assert (result.error, result.routed, result.durable) == (None, True, True)
    timeline = await gateway.timeline(result.id)
    assert [event.kind for event in timeline.events] == [Kind.ACCEPTED, Kind.CONFIRMED]
    assert (timeline.message.client, timeline.message.size, timeline.message.version) == ("alice", 5, "0-9-1")


async def test_the_message_carries_our_id(gateway: Gateway, upstream: FakeUpstream) -> None:
    (result,) = await gateway.publish("fake", "", [message()])
    (_, _, sent) = upstream.published[0]
    assert annotation(sent.properties, "id") == result.id


async def test_a_broker_may_be_spared_the_header(ledger: Ledger) -> None:
    upstream = FakeUpstream(annotate=False)
    gateway = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32)  # type: ignore[dict-item]
    await gateway.publish("fake", "", [message()])
    assert upstream.published[0][2].properties.headers is None


async def test_a_batch_keeps_its_order(gateway: Gateway, upstream: FakeUpstream) -> None:
    results = await gateway.publish("fake", "", [message(str(n).encode()) for n in range(100)])
    assert [body for _, _, sent in upstream.published for body in [sent.body]] == [str(n).encode() for n in range(100)]
    assert len({result.id for result in results}) == 100
    assert [result.id for result in results] == sorted(result.id for result in results)


async def test_not_routed(gateway: Gateway) -> None:
    results = await gateway.publish("fake", "", [message(key="nowhere"), message(key="nowhere", mandatory=True)])
    assert (results[0].error, results[0].routed, results[0].durable) == (None, False, False)
    assert isinstance(results[1].error, Unroutable)
    assert await kinds(gateway, results[0]) == ["accepted", "unroutable"]
    assert await kinds(gateway, results[1]) == ["accepted", "unroutable"]


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (PublishRefused("full"), "refused"),
        (OutcomeUnknown("the channel died"), "unknown"),
        (EncodeError("message_id is too long"), "not_sent"),
        (BrokerUnavailable("blocked"), "not_sent"),
        (remote_error(403, "ACCESS_REFUSED"), "refused"),
    ],
)
async def test_every_outcome_is_recorded(
    gateway: Gateway, upstream: FakeUpstream, failure: GatewayError, kind: str
) -> None:
    upstream.failure = failure
    (result,) = await gateway.publish("fake", "", [message()])
    assert result.error is failure
    assert await kinds(gateway, result) == ["accepted", kind]


async def test_unknown_exchange_and_broker(gateway: Gateway) -> None:
    (result,) = await gateway.publish("fake", "missing", [message()])
    assert isinstance(result.error, NotFound)
    with pytest.raises(NoSuchBroker):
        await gateway.publish("missing", "", [message()])


async def test_a_broker_that_is_away(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.state = UpstreamState.DOWN
    (result,) = await gateway.publish("fake", "", [message()])
    assert isinstance(result.error, BrokerUnavailable)
    assert result.error.retry_after == 3.0


async def test_durable_needs_mode_queue_and_broker(gateway: Gateway, upstream: FakeUpstream) -> None:
    transient = Outgoing("orders", Message(b"", Properties(delivery_mode=1)))
    assert [result.durable for result in await gateway.publish("fake", "", [transient, message()])] == [False, True]
    await gateway.topology.declare_queue("fake", "passing", durable=False, auto_delete=False, arguments={}, spec={})
    assert not (await gateway.publish("fake", "", [message(key="passing")]))[0].durable
    upstream.capabilities = Capabilities(durable_storage=False)
    assert not (await gateway.publish("fake", "", [message()]))[0].durable


async def test_a_ledger_that_is_away_refuses_before_anything_is_sent(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ledger, "healthy", property(lambda self: False))
    with pytest.raises(LedgerUnavailable):
        await gateway.publish("fake", "", [message()])
    assert not upstream.published


async def test_a_ledger_that_fails_after_the_confirm_leaves_it_unknown(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def record(self: Ledger, entries: object) -> list[int]:
        raise LedgerUnavailable("full")

    monkeypatch.setattr(Ledger, "record", record)
    with pytest.raises(NotRecorded) as caught:
        await gateway.publish("fake", "", [message()])
    assert caught.value.outcome == "unknown"
    assert len(upstream.published) == 1


async def test_with_intent_always_the_ledger_is_first(ledger: Ledger, upstream: FakeUpstream) -> None:
    gateway = Gateway(
        ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32, intent_always=True  # type: ignore[dict-item]
    )  # fmt: skip
    upstream.held = []
    import asyncio

    task = asyncio.create_task(gateway.publish("fake", "", [message()]))
    while not upstream.held:
        await asyncio.sleep(0.01)
    (stored,), _ = await ledger.messages()
    assert stored.state == "accepted"
    upstream.confirm_held()
    (result,) = await task
    assert parse_id(result.id) == stored.id
    assert await kinds(gateway, result) == ["accepted", "confirmed"]


def test_every_error_of_a_publish_has_an_event() -> None:
    for kind in OUTCOMES:
        error = kind.__new__(kind)
        assert outcome_of(Published("x", error))[0] is OUTCOMES[kind]
