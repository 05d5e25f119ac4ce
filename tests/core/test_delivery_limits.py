"""Messages that have used up their queue's delivery limit are made safe before their broker drops them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import Settlement
from gateway.config import SubscriptionSettings
from gateway.core import Gateway, SubscriptionResource
from gateway.core.leasing.broker_leases import _handable
from gateway.core.sources import delivery_limits as module
from gateway.core.sources.delivery_limits import DeliveryLimitGuard
from gateway.errors import BrokerUnavailable
from tests.core.fakes import FakeUpstream
from tests.core.test_intake import until


class Used:
    """A delivery that was given back too often."""

    def __init__(self, body: bytes = b"x", queue: str = "orders") -> None:
        self.message, self.queue, self.exchange, self.routing_key = Message(body), queue, "", queue
        self.redelivered, self.lost, self.returns, self.limit = True, False, 19, 20
        self.is_used_up = True
        self.channel = object()
        self.settled: list[Settlement] = []

    def settle(self, settlement: Settlement) -> None:
        self.settled.append(settlement)


class Made:
    def __init__(self, gateway: Gateway, upstream: Any) -> None:
        self.subscriptions: list[SubscriptionResource] = []
        self.guard = DeliveryLimitGuard(gateway.parts, self._all)
        self.guard.attend(upstream)
        self.upstream = upstream
        self.chunks: list[list[bytes]] = []
        self.owners: list[str] = []
        self.errors: list[Exception] = []
        self.may_go = asyncio.Event()
        self.may_go.set()
        self.native: Any = False
        upstream.dead_letters_natively = self._native

    async def _all(self) -> list[SubscriptionResource]:
        return self.subscriptions

    async def _native(self, queue: str) -> bool:
        if isinstance(self.native, Exception):
            raise self.native
        return bool(self.native)

    def add(self, *deliveries: Any) -> None:
        for delivery in deliveries:
            self.upstream.delivery_limits.on_used_up(delivery)


@pytest.fixture
def made(gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch) -> Made:
    subject = Made(gateway, upstream)

    async def turn_away(parts: Any, arrivals: Any, place: Any, discards: bool, dead: Any, **more: Any) -> None:
        assert (discards, more) == (False, {"patient": True, "code": "delivery_limit"})
        await subject.may_go.wait()
        if subject.errors:
            raise subject.errors.pop(0)
        subject.chunks.append([arrival.delivery.message.body for arrival, _ in dead])
        subject.owners.append(arrivals.scope)

    monkeypatch.setattr(module, "turn_away", turn_away)
    monkeypatch.setattr(module, "PAUSE", 0.02)
    return subject


def count(gateway: Gateway) -> float:
    labels = {"broker": "fake", "event": "delivery_limit"}
    return gateway.metrics.registry.get_sample_value("amqpgw_deliveries_total", labels) or 0.0


async def test_they_are_kept_together_and_then_acknowledged(
    made: Made, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    made.may_go.clear()
    deliveries = [Used(b"%d" % number) for number in range(4)]
    lost = deliveries[2]
    made.add(deliveries[0])
    await asyncio.sleep(0.01)
    made.add(*deliveries[1:])
    lost.lost = True
    other = Used(b"other", "another")
    made.add(other)
    await asyncio.sleep(0.01)
    assert not any(delivery.settled for delivery in deliveries)
    made.may_go.set()
    await until(lambda: all(delivery.settled for delivery in (*deliveries[:2], deliveries[3], other)))
    assert sorted(made.chunks) == [[b"0"], [b"1"], [b"3"], [b"other"]]
    assert {each for delivery in deliveries for each in delivery.settled} == {Settlement.ACCEPT}
    assert lost.settled == []
    assert count(gateway) == 4
    await until(lambda: not made.guard._waiting)
    made.add(again := Used(b"again"))
    await until(lambda: bool(again.settled))


@pytest.mark.parametrize("native", [False, True])
async def test_a_pull_hands_out_none_that_its_broker_would_drop(made: Made, native: bool) -> None:
    """Unless the queue dead-letters them itself."""
    made.native = native
    fresh, used = Used(), Used()
    fresh.is_used_up = False
    found = await _handable(made.upstream, "orders", [fresh, used])  # type: ignore[list-item]
    assert found == ([fresh, used] if native else [fresh])
    assert (fresh.settled, used.settled) == ([], [] if native else [Settlement.RELEASE])


async def test_they_stay_held_while_they_cannot_be_kept(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    made.errors = [ValueError("a fault"), ValueError("a fault")]
    kept, lost = Used(b"kept"), Used(b"lost")
    made.add(kept, lost)
    await until(lambda: len(made.errors) == 1)
    lost.lost = True
    await until(lambda: bool(kept.settled))
    assert (made.chunks[-1], lost.settled) == ([b"kept"], [])
    assert [record.getMessage() for record in caplog.records].count("queue.delivery_limit_not_kept") == 2


@pytest.mark.parametrize(
    ("native", "settled", "chunks"),
    [
        (True, Settlement.RELEASE, []),
        (False, Settlement.ACCEPT, [[b"x"]]),
        (BrokerUnavailable("away"), Settlement.ACCEPT, [[b"x"]]),
    ],
)
async def test_a_broker_that_keeps_them_itself_may(
    made: Made, gateway: Gateway, native: Any, settled: Settlement, chunks: list[list[bytes]]
) -> None:
    made.native = native
    made.add(delivery := Used())
    await until(lambda: bool(delivery.settled))
    assert (delivery.settled, made.chunks) == ([settled], chunks)
    assert count(gateway) == len(chunks)


async def test_they_belong_to_who_takes_from_the_queue(made: Made) -> None:
    def resource(name: str, **settings: Any) -> SubscriptionResource:
        given = SubscriptionSettings(**{"broker": "fake", "queue": "orders", **settings})
        return SubscriptionResource(name, given, "", read_only=False)

    made.subscriptions = [resource("a", broker="other"), resource("b", queue="another"), resource("c"), resource("d")]
    owner = await made.guard._owner("fake", "orders")
    assert owner.name == "c"
    made.subscriptions = made.subscriptions[:2]
    owner = await made.guard._owner("fake", "orders")
    assert (owner.name, owner.settings.queue, owner.read_only) == ("queue:fake/orders", "orders", True)


async def test_what_is_on_its_way_is_waited_for(made: Made) -> None:
    made.may_go.clear()
    made.add(delivery := Used())
    asyncio.get_running_loop().call_later(0.02, made.may_go.set)
    await made.guard.close(5.0)
    assert delivery.settled == [Settlement.ACCEPT]
    made.may_go.clear()
    made.add(late := Used())
    await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        await made.guard.close(0.01)
    assert late.settled == []
    assert SimpleNamespace(**vars(late)).lost is False
