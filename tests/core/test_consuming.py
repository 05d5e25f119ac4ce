"""Pull and settle, under leases."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties, RawProperties, delivery_count
from gateway.amqp.operations import Settlement
from gateway.budgets import BudgetBounds, ShareHolder
from gateway.config import SubscriptionFilter, SubscriptionSettings
from gateway.core import Gateway, Pulled, SubscriptionResource
from gateway.core.leasing.consuming import own_id
from gateway.core.leasing.leases import Lease
from gateway.errors import (
    BrokerUnavailable,
    BudgetExceeded,
    FrameSyntaxError,
    LedgerUnavailable,
    NoDeadLetterDestination,
    NotFound,
    Overloaded,
)
from gateway.fidelity import annotate
from gateway.ledger import Ledger, MessageIds, id_text
from gateway.observing.telemetry import Metrics
from gateway.upstreams import PublishReceipt
from tests.core.fakes import FakeUpstream
from tests.core.test_publishing import message


@pytest.fixture
async def billing(gateway: Gateway) -> SubscriptionResource:
    settings = SubscriptionSettings(broker="fake", queue="orders")
    subscription, created = await gateway.subscriptions.put("billing", settings, None)
    assert created
    return subscription


async def pull(
    gateway: Gateway, subscription: SubscriptionResource, count: int = 10, wait: float = 0.0
) -> list[Pulled]:
    return await gateway.consuming.pull(subscription, count, wait, None)


async def events(gateway: Gateway, item: Pulled) -> list[str]:
    return [event.kind.value for event in (await gateway.timeline(id_text(item.id))).events]


async def statuses(results: Any) -> list[str]:
    return [result.status for result in await results]


async def test_publish_pull_acknowledge(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource
) -> None:
    (published,) = await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, billing)
    assert id_text(item.id) == published.id
    assert (item.attempt, item.delivery.redelivered) == (None, False)
    assert gateway.consuming.lease_count("billing") == 1
    assert b"amqpgw_leases 1.0" in gateway.metrics.render()
    assert await statuses(gateway.consuming.acknowledge(billing, [item.lease.ack_id])) == ["SUCCESS"]
    assert b"amqpgw_leases 0.0" in gateway.metrics.render()
    assert upstream.settled == [(Settlement.ACCEPT, b"hello")]
    assert await events(gateway, item) == ["accepted", "confirmed", "delivered", "acknowledged"]
    assert gateway.consuming.lease_count("billing") == 0


@pytest.mark.parametrize("end", ["acknowledged", "lost"])
async def test_a_broker_that_forgets_is_no_reason_to_forget(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource, end: str
) -> None:
    """A broker that crashed may deliver a message again and not say so."""
    await gateway.publish("fake", "", [message(), message(b"another")])
    (item,) = await pull(gateway, billing, 1)
    ready = upstream.queues["orders"].ready
    if end == "acknowledged":
        await gateway.consuming.acknowledge(billing, [item.lease.ack_id])
    else:
        upstream.out[0].lose()
        ready.popleft()
    ready.appendleft((item.delivery.message, "", "orders", False))
    again, another = await pull(gateway, billing)
    assert (again.id, again.redelivered, again.attempt) == (item.id, True, None)
    assert (another.redelivered, another.attempt) == (False, None)
    await gateway.consuming.release(billing, [again.lease.ack_id])
    settings = SubscriptionSettings(broker="fake", queue="orders")
    other, _ = await gateway.subscriptions.put("other", settings, None)
    ready[0] = (item.delivery.message, "", "orders", False)
    (first,) = await pull(gateway, other)
    assert not first.redelivered, "in another queue it would be another message"


async def test_a_repeated_acknowledgement_succeeds(gateway: Gateway, billing: SubscriptionResource) -> None:
    await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, billing)
    ids = [item.lease.ack_id, item.lease.ack_id]
    assert await statuses(gateway.consuming.acknowledge(billing, ids)) == ["SUCCESS", "SUCCESS"]
    assert await statuses(gateway.consuming.release(billing, ids[:1])) == ["LEASE_LOST"]


async def test_a_message_of_another_gets_an_id_when_it_is_first_taken(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource
) -> None:
    for headers in (None, {"x-gateway": {"id": "nonsense"}}, {"x-gateway": {"id": "0" * 32}}):
        upstream.queues["orders"].ready.append((Message(b"x", Properties(headers=headers)), "", "orders", False))
    items = await pull(gateway, billing)
    assert len({item.id for item in items}) == 3
    for item in items:
        assert await events(gateway, item) == ["received", "delivered"]


def test_own_ids_are_ours_and_not_from_the_future() -> None:
    ours = MessageIds()()
    assert own_id(id_text(ours)) == ours
    assert own_id(id_text(MessageIds(clock=lambda: 1e10)())) is None
    assert own_id("6ba7b810-9dad-41d1-80b4-00c04fd430c8") is None
    assert own_id(None) is None


async def test_release_and_redelivery(gateway: Gateway, billing: SubscriptionResource) -> None:
    await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, billing)
    assert await statuses(gateway.consuming.release(billing, [item.lease.ack_id])) == ["SUCCESS"]
    (again,) = await pull(gateway, billing)
    assert (again.id, again.attempt, again.delivery.redelivered) == (item.id, None, True)
    assert (await events(gateway, item))[2:] == ["delivered", "released", "delivered"]


async def test_the_broker_s_own_count_is_no_attempt(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource
) -> None:
    upstream.queues["orders"].ready.append((Message(b"", Properties(headers={"x-delivery-count": 4})), "", "k", True))
    (item,) = await pull(gateway, billing)
    assert (item.attempt, delivery_count(item.delivery.message)) == (None, 4)


async def test_properties_that_are_none(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource
) -> None:
    def broken(octets: bytes) -> Properties:
        raise FrameSyntaxError("no property list")

    upstream.queues["orders"].ready.append((Message(b"", raw=RawProperties(b"\xff", "x", broken)), "", "k", False))
    (item,) = await pull(gateway, billing)
    assert await events(gateway, item) == ["received", "delivered"]


async def test_an_expired_lease_goes_back(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource
) -> None:
    await gateway.publish("fake", "", [message()])
    (item,) = await gateway.consuming.pull(billing, 1, 0, 0.05)
    await asyncio.sleep(0.15)
    assert upstream.settled == [(Settlement.RELEASE, b"hello")]
    assert await statuses(gateway.consuming.acknowledge(billing, [item.lease.ack_id])) == ["LEASE_LOST"]
    (again,) = await pull(gateway, billing)
    assert "lease_expired" in await events(gateway, again)


async def test_an_extension_moves_the_deadline_up_to_the_end(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource
) -> None:
    await gateway.publish("fake", "", [message()])
    (item,) = await gateway.consuming.pull(billing, 1, 0, 0.1)
    assert await statuses(gateway.consuming.modify_deadline(billing, [item.lease.ack_id, "x"], 600)) == [
        "SUCCESS", "INVALID_ACK_ID",
    ]  # fmt: skip
    await asyncio.sleep(0.2)
    assert not upstream.settled
    item.lease.latest = asyncio.get_running_loop().time() + 0.05
    await gateway.consuming.modify_deadline(billing, [item.lease.ack_id], 600)
    await asyncio.sleep(0.15)
    assert upstream.settled == [(Settlement.RELEASE, b"hello")]


async def test_a_deadline_of_nought_gives_back(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource
) -> None:
    await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, billing)
    assert await statuses(gateway.consuming.modify_deadline(billing, [item.lease.ack_id], 0)) == ["SUCCESS"]
    assert upstream.settled == [(Settlement.RELEASE, b"hello")]


async def test_a_dead_channel_loses_its_leases(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource
) -> None:
    await gateway.publish("fake", "", [message(b"1"), message(b"2")])
    first, second = await pull(gateway, billing)
    upstream.out[0].lose()
    results = await statuses(gateway.consuming.acknowledge(billing, [first.lease.ack_id, second.lease.ack_id]))
    assert results == ["LEASE_LOST", "SUCCESS"]
    await asyncio.sleep(0.05)
    assert (await events(gateway, first))[-1] == "lease_lost"


async def test_what_is_lost_before_it_is_leased_is_not_handed_out(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its channel dies while another message is discarded, and another pull gets it."""
    settings = SubscriptionSettings(
        broker="fake", queue="orders", filter=SubscriptionFilter(selector="colour = 'red'"), unmatched="discard"
    )
    red, _ = await gateway.subscriptions.put("red", settings, None)
    for body, colour in ((b"unwanted", "blue"), (b"wanted", "red")):
        given = Message(body, annotate(Properties(headers={"colour": colour}), id=id_text(MessageIds()())))
        upstream.queues["orders"].ready.append((given, "", "orders", False))
    record = Ledger.record
    discarding, may_go = asyncio.Event(), asyncio.Event()

    async def slow(self: Ledger, *arguments: Any) -> Any:
        if not discarding.is_set():
            discarding.set()
            await may_go.wait()
        return await record(self, *arguments)

    monkeypatch.setattr(Ledger, "record", slow)
    waiting = asyncio.create_task(pull(gateway, red))
    await discarding.wait()
    upstream.out[1].lose()
    (item,) = await pull(gateway, red)
    may_go.set()
    assert await waiting == []
    assert await statuses(gateway.consuming.acknowledge(red, [item.lease.ack_id])) == ["SUCCESS"]


async def test_what_is_not_wanted_and_cannot_be_buried_goes_back(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SubscriptionSettings(
        broker="fake", queue="orders", filter=SubscriptionFilter(selector="colour = 'red'"),
        dead_letter_routing_key="graves",
    )  # fmt: skip
    red, _ = await gateway.subscriptions.put("red", settings, None)
    await gateway.publish("fake", "", [message(b"1")])

    async def no(*_: Any) -> list[BrokerUnavailable]:
        return [BrokerUnavailable("no room for graves")]

    monkeypatch.setattr(gateway.parts.dead_letters, "publish", no)
    with pytest.raises(BrokerUnavailable, match="no room for graves"):
        await pull(gateway, red)
    assert [settlement for settlement, _ in upstream.settled] == [Settlement.RELEASE]


@pytest.mark.parametrize("end", ["expired", "lost"])
async def test_what_ends_while_it_is_recorded_is_not_handed_out(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    await gateway.publish("fake", "", [message()])
    record = Ledger.record
    recording, may_go = asyncio.Event(), asyncio.Event()

    async def slow(self: Ledger, *arguments: Any) -> Any:
        if not recording.is_set():
            recording.set()
            await may_go.wait()
        return await record(self, *arguments)

    monkeypatch.setattr(Ledger, "record", slow)
    waiting = asyncio.create_task(gateway.consuming.pull(billing, 10, 0.0, 0.05 if end == "expired" else None))
    await recording.wait()
    if end == "lost":
        upstream.out[0].lose()
    (item,) = await pull(gateway, billing, wait=5.0)
    may_go.set()
    assert await waiting == []
    assert await statuses(gateway.consuming.acknowledge(billing, [item.lease.ack_id])) == ["SUCCESS"]


async def test_a_lease_that_is_lost_without_a_word(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource
) -> None:
    await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, billing)
    upstream.out[0].lost = True
    assert await statuses(gateway.consuming.release(billing, [item.lease.ack_id])) == ["LEASE_LOST"]
    assert (await events(gateway, item))[-1] == "lease_lost"


async def test_forged_and_foreign_ack_ids(gateway: Gateway, billing: SubscriptionResource) -> None:
    await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, billing)
    other, _ = await gateway.subscriptions.put("other", billing.settings, None)
    assert await statuses(gateway.consuming.acknowledge(other, [item.lease.ack_id])) == ["INVALID_ACK_ID"]
    assert await statuses(gateway.consuming.reject(other, ["nonsense"], "")) == ["INVALID_ACK_ID"]
    assert gateway.consuming.lease_count("billing") == 1


async def test_reject_natively_by_copy_or_not_at_all(gateway: Gateway, upstream: FakeUpstream) -> None:
    await upstream.declare_queue("dead")
    plain, _ = await gateway.subscriptions.put("plain", SubscriptionSettings(broker="fake", queue="orders"), None)
    copying, _ = await gateway.subscriptions.put(
        "copying", SubscriptionSettings(broker="fake", queue="orders", dead_letter_routing_key="dead"), None
    )
    await gateway.publish("fake", "", [message(b"1"), message(b"2")])
    (first,) = await pull(gateway, plain, 1)
    (result,) = await gateway.consuming.reject(plain, [first.lease.ack_id], "bad")
    assert (result.status, type(result.error)) == ("FAILED", NoDeadLetterDestination)
    assert gateway.consuming.lease_count("plain") == 1
    upstream.dead_letter = True
    assert await statuses(gateway.consuming.reject(plain, [first.lease.ack_id], "bad")) == ["SUCCESS"]
    timeline = await gateway.timeline(id_text(first.id))
    assert timeline.events[-1].detail == {"subscription": "plain", "reason": "bad"}
    upstream.dead_letter = False
    (second,) = await pull(gateway, copying, 1)
    assert await statuses(gateway.consuming.reject(copying, [second.lease.ack_id], "")) == ["SUCCESS"]
    assert [item[0].body for item in upstream.queues["dead"].ready] == [b"2"]


async def test_a_reason_goes_along_with_the_copy_though_the_queue_dead_letters(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    """The broker would dead-letter without the reason."""
    await upstream.declare_queue("dead")
    upstream.dead_letter = True
    settings = SubscriptionSettings(broker="fake", queue="orders", dead_letter_routing_key="dead")
    copying, _ = await gateway.subscriptions.put("copying", settings, None)
    await gateway.publish("fake", "", [message(b"1")])
    (item,) = await pull(gateway, copying)
    assert await statuses(gateway.consuming.reject(copying, [item.lease.ack_id], "bad")) == ["SUCCESS"]
    ((letter, *_),) = upstream.queues["dead"].ready
    assert letter.properties.headers["x-gateway"]["reason"] == "bad"


@pytest.mark.parametrize("reason", ["bad", ""])
async def test_a_rejection_says_where_its_dead_letter_went(
    gateway: Gateway, upstream: FakeUpstream, reason: str
) -> None:
    await upstream.declare_queue("dead")
    await upstream.declare_exchange("dlx")
    await upstream.bind_queue("dead", "dlx", "late")
    settings = SubscriptionSettings(
        broker="fake", queue="orders", dead_letter_exchange="dlx", dead_letter_routing_key="late"
    )
    copying, _ = await gateway.subscriptions.put("copying", settings, None)
    await gateway.publish("fake", "", [message(b"1")])
    (item,) = await pull(gateway, copying)
    assert await statuses(gateway.consuming.reject(copying, [item.lease.ack_id], reason)) == ["SUCCESS"]
    assert [found[0].body for found in upstream.queues["dead"].ready] == [b"1"]
    place = {"dead_letter_exchange": "dlx", "dead_letter_routing_key": "late"}
    confirmed = {"reason": "bad", "dead_letter_broker": "fake"} if reason else {}
    rejected = (await gateway.timeline(id_text(item.id))).events[-1]
    assert rejected.detail == {"subscription": "copying", **place, **confirmed}


async def test_a_dead_letter_place_of_another_broker_gets_a_copy_without_a_reason_too(
    ledger: Ledger, upstream: FakeUpstream
) -> None:
    morgue: Any = FakeUpstream("morgue")
    await morgue.declare_queue("dead")
    upstream.dead_letter = True
    gateway = Gateway(ledger, {"fake": upstream, "morgue": morgue}, Metrics("test"), ack_key=b"k" * 32)
    settings = SubscriptionSettings(
        broker="fake", queue="orders", dead_letter_broker="morgue", dead_letter_routing_key="dead"
    )
    copying, _ = await gateway.subscriptions.put("copying", settings, None)
    await gateway.publish("fake", "", [message(b"1")])
    (item,) = await pull(gateway, copying)
    assert await statuses(gateway.consuming.reject(copying, [item.lease.ack_id], "")) == ["SUCCESS"]
    assert [found[0].body for found in morgue.queues["dead"].ready] == [b"1"]
    await gateway.close(1.0)


async def test_a_queue_that_is_stated_to_dead_letter(gateway: Gateway, upstream: FakeUpstream) -> None:
    settings = SubscriptionSettings(broker="fake", queue="orders", dead_letter_native=True)
    stated, _ = await gateway.subscriptions.put("stated", settings, None)
    await gateway.publish("fake", "", [message(b"1")])
    (item,) = await pull(gateway, stated)
    assert await statuses(gateway.consuming.reject(stated, [item.lease.ack_id], "bad")) == ["SUCCESS"]
    assert upstream.out == []


@pytest.mark.parametrize("lease", ["broker", "ledger"])
async def test_a_message_is_dropped_where_that_is_said(gateway: Gateway, upstream: FakeUpstream, lease: Any) -> None:
    settings = SubscriptionSettings(broker="fake", queue="orders", lease=lease, dead_letter_routing_key="dead")
    subscription, _ = await gateway.subscriptions.put("dropping", settings, None)
    await upstream.declare_queue("dead")
    await gateway.publish("fake", "", [message(b"1")])
    (item,) = await pull(gateway, subscription)
    for _ in range(2):
        result = gateway.consuming.reject(subscription, [item.lease.ack_id], "bad", discard=True)
        assert await statuses(result) == ["SUCCESS"]
    assert not upstream.queues["dead"].ready
    assert not upstream.queues["orders"].ready
    timeline = await gateway.timeline(id_text(item.id))
    assert (timeline.events[-1].kind, timeline.events[-1].detail["reason"]) == ("discarded", "bad")


@pytest.mark.parametrize("lease", ["broker", "ledger"])
async def test_two_rejections_of_one_lease_make_one_copy(gateway: Gateway, upstream: FakeUpstream, lease: str) -> None:
    """The second one is a client's that did not wait for the answer of the first."""
    await upstream.declare_queue("dead")
    settings = SubscriptionSettings(broker="fake", queue="orders", lease=lease, dead_letter_routing_key="dead")
    copying, _ = await gateway.subscriptions.put("copying", settings, None)
    await gateway.publish("fake", "", [message(), message()])
    items = await pull(gateway, copying)
    first, second = (item.lease.ack_id for item in items)
    upstream.held = []
    one = asyncio.create_task(statuses(gateway.consuming.reject(copying, [first], "bad")))
    await asyncio.sleep(0.05)
    both = asyncio.create_task(statuses(gateway.consuming.reject(copying, [first, second], "bad")))
    await asyncio.sleep(0.05)
    assert len(upstream.held) == 1
    upstream.confirm_held()
    assert await one == ["SUCCESS"]
    assert await both == ["SUCCESS", "SUCCESS"]
    assert len(upstream.queues["dead"].ready) == 2
    assert not gateway.consuming._rejecting


async def test_a_lease_that_another_request_ends_while_it_is_rejected(gateway: Gateway, upstream: FakeUpstream) -> None:
    """It is answered as it was ended, and no lease was lost."""
    await upstream.declare_queue("dead")
    settings = SubscriptionSettings(broker="fake", queue="orders", dead_letter_routing_key="dead")
    copying, _ = await gateway.subscriptions.put("copying", settings, None)
    await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, copying)
    upstream.held = []
    late = asyncio.create_task(statuses(gateway.consuming.reject(copying, [item.lease.ack_id], "bad")))
    await asyncio.sleep(0.01)
    (confirm,) = upstream.held
    upstream.held = None
    assert await statuses(gateway.consuming.acknowledge(copying, [item.lease.ack_id])) == ["SUCCESS"]
    confirm.set_result(PublishReceipt(True))
    assert await late == ["LEASE_LOST"]
    assert (await events(gateway, item))[-1] == "acknowledged"


async def test_a_rejection_of_a_lost_lease(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource
) -> None:
    await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, billing)
    upstream.out[0].lost = True
    assert await statuses(gateway.consuming.reject(billing, [item.lease.ack_id], "")) == ["LEASE_LOST"]
    assert b'amqpgw_deliveries_total{broker="fake",event="lease_lost"} 1.0' in gateway.metrics.render()


async def test_a_long_poll_gets_what_comes(gateway: Gateway, billing: SubscriptionResource) -> None:
    waiting = asyncio.create_task(pull(gateway, billing, 10, 5.0))
    await asyncio.sleep(0.02)
    await gateway.publish("fake", "", [message()])
    assert len(await waiting) == 1
    assert await pull(gateway, billing, 10, 0.02) == []


async def test_a_caller_that_is_gone_ends_the_poll(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource
) -> None:
    gone = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(gateway.consuming.pull(billing, 1, 30.0, None, gone))
    await asyncio.sleep(0.02)
    gone.set_result(None)
    async with asyncio.timeout(15):
        assert await waiting == []
    await gateway.publish("fake", "", [message()])
    assert len(await pull(gateway, billing)) == 1


async def test_draining_ends_polls_and_refuses_new_ones(gateway: Gateway, billing: SubscriptionResource) -> None:
    waiting = asyncio.create_task(pull(gateway, billing, 10, 30.0))
    await asyncio.sleep(0.02)
    gateway.drain()
    async with asyncio.timeout(15):
        assert await waiting == []
    with pytest.raises(Overloaded):
        await pull(gateway, billing)


async def test_closing_gives_everything_back(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource
) -> None:
    await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, billing)
    await gateway.close(1.0)
    assert upstream.settled == [(Settlement.RELEASE, b"hello")]
    assert (await events(gateway, item))[-1] == "released"


async def test_what_is_handed_back_is_released(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource
) -> None:
    await gateway.publish("fake", "", [message()])
    pulled = await pull(gateway, billing)
    gateway.consuming.hand_back(pulled, "the caller hung up")
    gateway.consuming.hand_back(pulled, "once is enough")
    assert upstream.settled == [(Settlement.RELEASE, b"hello")]


async def test_without_a_ledger_nothing_is_handed_over(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    await gateway.publish("fake", "", [message()])

    async def record(self: Ledger, entries: object) -> list[int]:
        raise LedgerUnavailable("full")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "record", record)
        with pytest.raises(LedgerUnavailable):
            await pull(gateway, billing)
    assert upstream.settled == [(Settlement.RELEASE, b"hello")]
    monkeypatch.setattr(Ledger, "healthy", property(lambda self: False))
    with pytest.raises(LedgerUnavailable):
        await pull(gateway, billing)
    assert upstream.fetches == 1


async def test_where_it_cannot_be_recorded_what_is_not_wanted_goes_back_with_the_rest(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SubscriptionSettings(
        broker="fake", queue="orders", filter=SubscriptionFilter(routing_key="orders.eu"), unmatched="discard"
    )
    choosy, _ = await gateway.subscriptions.put("choosy", settings, None)
    ready = upstream.queues["orders"].ready
    ready.extend((Message(key.encode()), "", key, False) for key in ("stock", "orders.eu"))

    async def record(self: Ledger, entries: object) -> list[int]:
        raise LedgerUnavailable("locked")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "record", record)
        with pytest.raises(LedgerUnavailable):
            await pull(gateway, choosy)
    assert not upstream.out
    assert sorted(upstream.settled) == [(Settlement.RELEASE, b"orders.eu"), (Settlement.RELEASE, b"stock")]
    assert gateway.budgets["leases"].standing().held == 0


async def test_an_acknowledgement_is_recorded_when_the_ledger_is_back(
    gateway: Gateway, billing: SubscriptionResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, billing)

    async def record(self: Ledger, entries: object) -> list[int]:
        raise LedgerUnavailable("locked")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "record", record)
        assert await statuses(gateway.consuming.acknowledge(billing, [item.lease.ack_id])) == ["SUCCESS"]
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.4)
    assert (await events(gateway, item))[-1] == "acknowledged"


async def test_leases_are_bounded(gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource) -> None:
    gateway.budgets.configure(BudgetBounds(0.5, 0.0, {"leases": 4}))
    alice, bob = ShareHolder("alice"), ShareHolder("bob")
    await gateway.publish("fake", "", [message() for _ in range(5)])
    held = await gateway.consuming.pull(billing, 10, 0.0, None, client=alice)
    assert len(held) == 2
    with pytest.raises(BudgetExceeded):
        await gateway.consuming.pull(billing, 10, 0.0, None, client=alice)
    (other,) = await gateway.consuming.pull(billing, 1, 0.0, 0.05, client=bob)
    await gateway.consuming.acknowledge(billing, [held[0].lease.ack_id])
    gateway.consuming.hand_back(held[1:], "nobody reads")
    await asyncio.sleep(0.1)
    assert isinstance(other.lease, Lease)
    assert gateway.budgets["leases"].standing().held == 0
    assert len(await gateway.consuming.pull(billing, 10, 0.0, None, client=alice)) == 2
    assert await gateway.consuming.pull(billing, 10, 0.05, None, client=bob) != []


async def test_pulls_that_fail_or_wait_in_vain_hold_no_share(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource
) -> None:
    gateway.budgets.configure(BudgetBounds(0.5, 0.0, {"leases": 4}))
    alice = ShareHolder("alice")
    assert await gateway.consuming.pull(billing, 10, 0.05, None, client=alice) == []
    waiting = asyncio.create_task(gateway.consuming.pull(billing, 1, 30.0, None, client=alice))
    await asyncio.sleep(0.05)
    assert gateway.budgets["leases"].held_by(alice) == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    missing, _ = await gateway.subscriptions.put("s", SubscriptionSettings(broker="fake", queue="missing"), None)
    with pytest.raises(NotFound):
        await gateway.consuming.pull(missing, 1, 0.0, None, client=alice)
    assert gateway.budgets["leases"].standing().held == 0


async def test_a_queue_that_is_missing(gateway: Gateway) -> None:
    settings = SubscriptionSettings(broker="fake", queue="missing")
    subscription, _ = await gateway.subscriptions.put("s", settings, None)
    for wait in (0.0, 0.1):
        with pytest.raises(NotFound):
            await pull(gateway, subscription, 1, wait)


async def test_a_poll_that_is_cancelled_as_its_messages_come_gives_them_back(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would know of them otherwise, and the broker would hold them for as long as a lease may last."""
    loop = asyncio.get_running_loop()
    fetch = upstream.fetch

    async def fetch_and_cancel(*args: Any) -> list[Any]:
        found = await fetch(*args)
        loop.call_soon(waiting.cancel)  # the fetch is done then, and nobody has looked
        return found

    monkeypatch.setattr(upstream, "fetch", fetch_and_cancel)
    await gateway.publish("fake", "", [message()])
    waiting = asyncio.create_task(pull(gateway, billing, 1, 5.0))
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.sleep(0.01)
    assert upstream.settled == [(Settlement.RELEASE, b"hello")]
    assert not upstream.out
