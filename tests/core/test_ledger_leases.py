"""Pull and settle, under leases that the ledger holds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.config import LedgerSettings, SubscriptionFilter, SubscriptionSettings
from gateway.core import AckOutcome, Gateway, Pulled, SubscriptionResource
from gateway.core.leasing import ledger_leases
from gateway.core.leasing.ack_ids import of_ledger
from gateway.core.publishing.envelopes import EnvelopeError
from gateway.errors import LedgerUnavailable, NoSuchSubscription, NotFound, Overloaded, StateError
from gateway.ledger import Ledger, id_text
from gateway.ledger.pending.deliveries import DeliveryStore
from gateway.ledger.pending.owed import DeliveryFilter
from gateway.observing.telemetry import Metrics
from gateway.replays.targets import revivals
from gateway.upstreams import PublishReceipt
from tests.core.fakes import FakeUpstream
from tests.core.test_intake import ours, until
from tests.core.test_publishing import message


async def subscribe(gateway: Gateway, name: str = "billing", **settings: Any) -> SubscriptionResource:
    given = SubscriptionSettings(**{"broker": "fake", "queue": "orders", "lease": "ledger", **settings})
    subscription, _ = await gateway.subscriptions.put(name, given, None)
    return subscription


async def pull(
    gateway: Gateway,
    subscription: SubscriptionResource,
    count: int = 10,
    wait: float = 0.0,
    seconds: float | None = None,
) -> list[Pulled]:
    return await gateway.consuming.pull(subscription, count, wait, seconds)


async def kinds(gateway: Gateway, item: Pulled) -> list[str]:
    return [event.kind.value for event in (await gateway.timeline(id_text(item.id))).events]


def ids(*items: Pulled) -> list[str]:
    return [item.lease.ack_id for item in items]


def bodies(items: list[Pulled]) -> list[bytes]:
    return [item.delivery.message.body for item in items]


async def statuses(results: Any) -> list[str]:
    settled: list[AckOutcome] = await results
    return [result.status for result in settled]


async def test_stored_acknowledged_handed_over_and_done(gateway: Gateway, upstream: FakeUpstream) -> None:
    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message(b"1"), message(b"2")])
    first, second = await pull(gateway, billing)
    assert upstream.settled == [(Settlement.ACCEPT, b"1"), (Settlement.ACCEPT, b"2")], "the broker is done with them"
    assert (first.attempt, first.redelivered, first.delivery.routing_key) == (1, False, "orders")
    assert all(map(of_ledger, ids(first, second)))
    assert await pull(gateway, billing) == [], "they are out"
    assert (await gateway.ledger.deliveries.backlog("billing")).out == 2
    assert await statuses(gateway.consuming.acknowledge(billing, ids(first, second))) == ["SUCCESS"] * 2
    assert await gateway.ledger.deliveries.count() == 0
    assert await kinds(gateway, first) == ["accepted", "confirmed", "delivered", "acknowledged"]
    assert await statuses(gateway.consuming.acknowledge(billing, ids(first))) == ["SUCCESS"], "a repeat is harmless"
    assert await statuses(gateway.consuming.release(billing, ids(first))) == ["LEASE_LOST"]


async def test_any_replica_takes_them_and_a_restart_ends_nothing(
    gateway: Gateway, upstream: Any, ledger: Ledger
) -> None:
    """Another gateway on the same ledger, with the same key: as a replica, or as this one after a restart."""
    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message(b"1"), message(b"2")])
    first, second = await pull(gateway, billing)
    other = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32)
    assert await statuses(other.consuming.acknowledge(billing, ids(first))) == ["SUCCESS"]
    assert await statuses(gateway.consuming.acknowledge(billing, ids(first))) == ["SUCCESS"], "told by the timeline"
    assert await statuses(other.consuming.release(billing, ids(second))) == ["SUCCESS"]
    assert await statuses(gateway.consuming.acknowledge(billing, ids(second))) == ["LEASE_LOST"]
    (again,) = await pull(other, billing)
    assert (again.attempt, again.redelivered, again.id) == (2, True, second.id)
    stranger = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"x" * 32)
    assert await statuses(stranger.consuming.acknowledge(billing, ids(again))) == ["INVALID_ACK_ID"]


async def test_forged_and_of_another_subscription(gateway: Gateway) -> None:
    billing, other = await subscribe(gateway), await subscribe(gateway, "other")
    await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, billing)
    mixed = [*ids(item), "forged", "A" * len(item.lease.ack_id)]
    assert await statuses(gateway.consuming.acknowledge(other, mixed)) == ["INVALID_ACK_ID"] * 3
    assert await statuses(gateway.consuming.acknowledge(billing, [*mixed, *ids(item)])) == [
        "SUCCESS", "INVALID_ACK_ID", "INVALID_ACK_ID", "SUCCESS",
    ]  # fmt: skip


async def test_a_lease_that_runs_out_counts(gateway: Gateway) -> None:
    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, billing, seconds=0.05)
    (again,) = await pull(gateway, billing, wait=10.0)
    assert (again.attempt, again.redelivered, again.id) == (2, True, item.id)
    assert (await kinds(gateway, item))[2:] == ["delivered", "lease_expired", "delivered"]
    assert await statuses(gateway.consuming.acknowledge(billing, ids(item))) == ["LEASE_LOST"]
    assert await statuses(gateway.consuming.acknowledge(billing, ids(again))) == ["SUCCESS"]


async def test_a_late_acknowledgement_counts_as_long_as_nobody_else_has_it(gateway: Gateway) -> None:
    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, billing, seconds=0.01)
    await asyncio.sleep(0.05)
    assert await statuses(gateway.consuming.acknowledge(billing, ids(item))) == ["SUCCESS"]
    assert await pull(gateway, billing) == []


async def test_extended_for_hours(gateway: Gateway) -> None:
    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, billing, seconds=0.05)
    assert await statuses(gateway.consuming.modify_deadline(billing, [*ids(item), "x"], 43_200)) == [
        "SUCCESS", "INVALID_ACK_ID",
    ]  # fmt: skip
    row = await gateway.ledger.deliveries.get(item.lease.delivery)  # type: ignore[arg-type,union-attr]
    assert row is not None
    assert row.due_in > 43_000
    await asyncio.sleep(0.06)
    assert await pull(gateway, billing) == []
    assert (await kinds(gateway, item))[-1] == "extended"
    assert await statuses(gateway.consuming.modify_deadline(billing, ids(item), 0)) == ["SUCCESS"]
    assert len(await pull(gateway, billing)) == 1


async def test_released_at_once_to_its_old_place(gateway: Gateway) -> None:
    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message(b"1"), message(b"2"), message(b"3")])
    items = await pull(gateway, billing, 2)
    waiting = asyncio.create_task(pull(gateway, billing, 10, 10.0))
    (last,) = await waiting
    assert await statuses(gateway.consuming.release(billing, ids(items[1], items[0]))) == ["SUCCESS"] * 2
    assert bodies(await pull(gateway, billing, 10)) == [b"1", b"2"]
    assert last.delivery.message.body == b"3"


async def test_a_release_puts_it_before_those_behind_it(gateway: Gateway) -> None:
    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message(b"1"), message(b"2"), message(b"3")])
    first, _, third = await pull(gateway, billing)
    for item in (third, first):
        assert await statuses(gateway.consuming.release(billing, ids(item))) == ["SUCCESS"]
    assert bodies(await pull(gateway, billing)) == [b"1", b"3"]


async def test_released_with_a_delay(gateway: Gateway) -> None:
    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, billing)
    assert await statuses(gateway.consuming.release(billing, ids(item), 0.3)) == ["SUCCESS"]
    assert await pull(gateway, billing) == [], "not yet"
    waiting = await pull(gateway, billing, 1, 10.0)
    assert [again.attempt for again in waiting] == [2]
    row = (await gateway.timeline(id_text(item.id))).events[3]
    assert row.detail == {"subscription": "billing", "lease": 1, "delay": 0.3}


async def test_max_deliveries_by_release_and_by_deadline(gateway: Gateway, upstream: FakeUpstream) -> None:
    billing = await subscribe(gateway, max_deliveries=2)
    await gateway.publish("fake", "", [message(b"released"), message(b"expired")])
    released, expired = await pull(gateway, billing, seconds=0.2)
    await gateway.consuming.release(billing, ids(released, expired))
    released, expired = await pull(gateway, billing, seconds=0.2)
    assert (released.attempt, expired.attempt) == (2, 2)
    assert await statuses(gateway.consuming.release(billing, ids(released))) == ["SUCCESS"]
    assert await statuses(gateway.consuming.release(billing, ids(released))) == ["SUCCESS"], "as it was answered before"
    assert await pull(gateway, billing, wait=1.5) == []
    dead, _ = await gateway.ledger.deliveries.page(DeliveryFilter(dead=True))
    assert [row.reason["reason"] for row in dead] == ["handed out 2 times (max_deliveries)"] * 2
    assert [row.reason["attempt"] for row in dead] == [2, 2]
    assert (await kinds(gateway, released))[-1] == "dead"
    assert (await kinds(gateway, expired))[-3:] == ["delivered", "lease_expired", "dead"]


@pytest.mark.parametrize("to", ["graves", "missing", ""])
async def test_rejected_with_a_reason(gateway: Gateway, upstream: FakeUpstream, to: str) -> None:
    await upstream.declare_queue("graves")
    billing = await subscribe(gateway, dead_letter_routing_key=to)
    properties = Properties(expiration="60000", headers={"n": 1})
    upstream.queues["orders"].ready.append((Message(b"bad", properties), "", "orders", False))
    (item,) = await pull(gateway, billing)
    assert await statuses(gateway.consuming.reject(billing, [*ids(item), "x"], "no such customer")) == [
        "SUCCESS", "INVALID_ACK_ID",
    ]  # fmt: skip
    graves = upstream.queues["graves"].ready
    if to == "graves":
        ((copy, _, _, _),) = graves
        assert copy.body == b"bad"
        assert copy.properties.expiration is None, "dead letters do not expire"
        headers = copy.properties.headers
        assert headers is not None
        assert headers["n"] == 1
        entry = dict(headers["x-gateway"])
        assert len(entry.pop("letter")) == 16
        assert entry.pop("at").endswith("Z")
        assert entry == {
            "id": id_text(item.id), "reason": "no such customer", "code": "rejected", "subscription": "billing",
            "expiration": "60000",
            "broker": "fake", "queue": "orders", "exchange": "", "routing_key": "orders",
        }  # fmt: skip
        assert (await kinds(gateway, item))[-1] == "dead_lettered"
        assert await gateway.ledger.deliveries.count() == 0
    else:
        assert not graves
        (row,) = (await gateway.ledger.deliveries.page(DeliveryFilter(dead=True)))[0]
        assert row.reason["reason"] == "no such customer"
        assert ("dead_letter_place" in row.reason) is bool(to)
        assert (await kinds(gateway, item))[-1] == "dead"
    assert await statuses(gateway.consuming.reject(billing, ids(item), "again")) == ["SUCCESS"]
    assert await statuses(gateway.consuming.acknowledge(billing, ids(item))) == ["LEASE_LOST"]


async def test_a_dead_letter_place_of_another_broker(ledger: Ledger, upstream: Any) -> None:
    morgue: Any = FakeUpstream("morgue")
    await morgue.declare_queue("graves")
    brokers = {"fake": upstream, "morgue": morgue}
    gateway = Gateway(ledger, brokers, Metrics("test"), ack_key=b"k" * 32)
    for lease in ("ledger", "broker"):
        subscription = await subscribe(
            gateway, lease, lease=lease, dead_letter_broker="morgue", dead_letter_routing_key="graves"
        )
        await gateway.publish("fake", "", [message(lease.encode())])
        (item,) = await pull(gateway, subscription)
        assert await statuses(gateway.consuming.reject(subscription, ids(item), "bad")) == ["SUCCESS"]
    assert [found[0].body for found in morgue.queues["graves"].ready] == [b"ledger", b"broker"]
    assert not upstream.out
    await gateway.close(1.0)


async def test_a_rejection_of_a_lease_that_is_lost_makes_no_copy(gateway: Gateway, upstream: FakeUpstream) -> None:
    await upstream.declare_queue("graves")
    billing = await subscribe(gateway, dead_letter_routing_key="graves")
    await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, billing)
    await gateway.consuming.release(billing, ids(item))
    assert await statuses(gateway.consuming.reject(billing, ids(item), "bad")) == ["LEASE_LOST"]
    assert not upstream.queues["graves"].ready


async def test_an_old_lease_rejects_nothing_that_the_next_consumer_has(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    await upstream.declare_queue("graves")
    billing = await subscribe(gateway, dead_letter_routing_key="graves")
    await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, billing)
    await gateway.consuming.release(billing, ids(item))
    (again,) = await pull(gateway, billing)
    assert await statuses(gateway.consuming.reject(billing, ids(item), "bad")) == ["LEASE_LOST"]
    assert not upstream.queues["graves"].ready
    assert await statuses(gateway.consuming.acknowledge(billing, ids(again))) == ["SUCCESS"]


# ---------------------------------------------------------------------------------------------- crash points


async def test_a_redelivery_after_the_commit_is_dropped(gateway: Gateway, upstream: FakeUpstream) -> None:
    """As after a kill between the commit and the acknowledgement to the broker."""
    billing = await subscribe(gateway)
    known, strange = ours(b"known"), Message(b"strange", Properties())
    ready = upstream.queues["orders"].ready
    ready.extend((item, "", "orders", False) for item in (known, strange))
    first, second = await pull(gateway, billing)
    ready.extend((item, "", "orders", True) for item in (known, strange))
    (copy,) = await pull(gateway, billing)
    assert (copy.delivery.message.body, copy.redelivered, copy.attempt) == (b"strange", True, 1)
    assert await pull(gateway, billing) == []
    assert [body for _, body in upstream.settled] == [b"known", b"strange", b"known", b"strange"]
    assert len({first.id, second.id, copy.id}) == 3


async def test_a_channel_that_dies_between_commit_and_acknowledgement(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DeliveryStore.store

    async def store_and_lose(self: DeliveryStore, *arguments: Any) -> None:
        await store(self, *arguments)
        for delivery in list(upstream.out):
            delivery.lose()

    billing = await subscribe(gateway)
    upstream.queues["orders"].ready.append((ours(b"x"), "", "orders", False))
    with monkeypatch.context() as patch:
        patch.setattr(DeliveryStore, "store", store_and_lose)
        (item,) = await pull(gateway, billing)
    assert await pull(gateway, billing) == [], "it came again, and the ledger has it"
    assert await statuses(gateway.consuming.acknowledge(billing, ids(item))) == ["SUCCESS"]
    assert not upstream.queues["orders"].ready
    assert upstream.settled == [(Settlement.ACCEPT, b"x")]


async def test_what_comes_again_while_a_pull_stores_it_is_there_once(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its channel is lost, and another pull gets it before the ledger has it."""
    store = DeliveryStore.store
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(self: DeliveryStore, *arguments: Any) -> None:
        begun.set()
        await go_on.wait()
        await store(self, *arguments)

    billing = await subscribe(gateway)
    upstream.queues["orders"].ready.append((ours(b"x"), "", "orders", False))
    monkeypatch.setattr(DeliveryStore, "store", slow)
    first = asyncio.create_task(pull(gateway, billing))
    await begun.wait()
    for delivery in list(upstream.out):
        delivery.lose()
    second = asyncio.create_task(pull(gateway, billing))
    await until(lambda: not upstream.queues["orders"].ready)
    await asyncio.sleep(0.05)
    assert not second.done()
    go_on.set()
    assert bodies(await first) == [b"x"]
    assert await second == []
    assert (await gateway.ledger.deliveries.backlog("billing")).out == 1
    assert upstream.settled == [(Settlement.ACCEPT, b"x")]
    assert not gateway.consuming.ledger_leases._backlogs["billing"].storing


async def test_what_is_lost_while_a_pull_asks_the_ledger_is_not_stored(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fetch is done, its channel dies, and another pull gets the message."""
    billing = await subscribe(gateway)
    claim = DeliveryStore.claim
    is_slow, asking, may_go = False, asyncio.Event(), asyncio.Event()

    async def slow(self: DeliveryStore, *arguments: Any, **options: Any) -> Any:
        nonlocal is_slow
        if is_slow:
            is_slow = False
            asking.set()
            await may_go.wait()
        return await claim(self, *arguments, **options)

    monkeypatch.setattr(DeliveryStore, "claim", slow)
    waiting = asyncio.create_task(pull(gateway, billing, wait=0.5))
    await until(lambda: upstream.fetches == 1)
    is_slow = True
    gateway.consuming.backlogs["billing"].news()
    await asking.wait()
    await gateway.publish("fake", "", [message()])
    await until(lambda: len(upstream.out) == 1)
    upstream.out[0].lose()
    assert len(await pull(gateway, billing)) == 1
    may_go.set()
    assert await waiting == []


async def test_what_waits_behind_dead_letters_for_too_long_is_not_handed_out(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    """The dead-letter place is slow: the leases of the others end, and another pull gets them."""
    await upstream.declare_queue("dead")
    billing = await subscribe(gateway, order_key="property:type", max_deliveries=2, dead_letter_routing_key="dead")
    await gateway.ownership.review("intake")
    upstream.queues["orders"].ready.append((Message(b"tired", Properties(type="a")), "", "orders", False))
    upstream.pump()
    for _ in range(2):
        assert len(await pull(gateway, billing, wait=5.0, seconds=0.05)) == 1
    upstream.queues["orders"].ready.append((Message(b"fresh", Properties(type="b")), "", "orders", False))
    upstream.pump()
    await until(lambda: not upstream.out and not upstream.queues["orders"].ready)
    await asyncio.sleep(0.1)
    upstream.held = held = []
    late = asyncio.create_task(pull(gateway, billing, seconds=0.1))
    await until(lambda: bool(held))
    await asyncio.sleep(0.15)
    upstream.held = None
    (fresh,) = await pull(gateway, billing, wait=5.0)
    held[0].set_result(PublishReceipt(True))
    assert await late == []
    assert await statuses(gateway.consuming.acknowledge(billing, ids(fresh))) == ["SUCCESS"]


async def test_what_cannot_be_stored_goes_back(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no(self: DeliveryStore, *arguments: Any) -> None:
        raise LedgerUnavailable("full")

    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message()])
    with monkeypatch.context() as patch:
        patch.setattr(DeliveryStore, "store", no)
        with pytest.raises(LedgerUnavailable):
            await pull(gateway, billing)
    assert upstream.settled == [(Settlement.RELEASE, b"hello")]
    assert len(await pull(gateway, billing)) == 1


async def test_a_caller_that_is_gone_while_it_is_stored(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stored all the same, and goes back at once: nobody waits for the end of a lease that nobody knows."""
    store = DeliveryStore.store
    begun = asyncio.Event()

    async def slow(self: DeliveryStore, *arguments: Any) -> None:
        begun.set()
        await asyncio.sleep(0.05)
        await store(self, *arguments)

    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message()])
    monkeypatch.setattr(DeliveryStore, "store", slow)
    task = asyncio.create_task(pull(gateway, billing))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (again,) = await pull(gateway, billing, wait=10.0)
    assert (again.attempt, again.redelivered) == (2, True)


async def test_what_is_handed_back_is_due_at_once(gateway: Gateway) -> None:
    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message()])
    pulled = await pull(gateway, billing)
    gateway.consuming.hand_back(pulled, "the caller hung up")
    gateway.consuming.hand_back(pulled, "once is enough")
    (again,) = await pull(gateway, billing, wait=10.0)
    assert again.attempt == 2
    assert (await kinds(gateway, again))[2:] == ["delivered", "released", "delivered"]


async def test_one_that_may_be_handed_out_once_is_no_redelivery(gateway: Gateway) -> None:
    """With an order key each one is stored before it is handed out."""
    billing = await subscribe(gateway, max_deliveries=1, order_key="routing_key")
    await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, billing, wait=10.0)
    assert (item.attempt, item.redelivered) == (1, False)


async def test_what_is_handed_back_comes_before_those_behind_it(gateway: Gateway) -> None:
    """Also where these have been due for longer."""
    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message(b"1"), message(b"2"), message(b"3")])
    first, _, third = await pull(gateway, billing)
    assert await statuses(gateway.consuming.release(billing, ids(third))) == ["SUCCESS"]
    gateway.consuming.hand_back([first], "the caller hung up")
    async with asyncio.timeout(10):
        while (await gateway.ledger.deliveries.backlog("billing")).out > 1:
            await asyncio.sleep(0.005)
    assert bodies(await pull(gateway, billing)) == [b"1", b"3"]


async def test_what_is_claimed_is_handed_over_though_the_broker_is_away(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, billing)
    await gateway.consuming.release(billing, ids(item))
    del upstream.queues["orders"]
    assert len(await pull(gateway, billing, wait=0.5)) == 1
    with pytest.raises(NotFound):
        await pull(gateway, billing)


async def test_a_body_that_is_damaged_costs_only_itself(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message(b"1"), message(b"2")])
    items = await pull(gateway, billing)
    await gateway.consuming.release(billing, ids(*items))
    real = ledger_leases.open_envelope

    def damaged(payload: bytes) -> Any:
        if b"1" in payload[:8]:
            raise EnvelopeError("not an envelope")
        return real(payload)

    monkeypatch.setattr(ledger_leases, "open_envelope", damaged)
    assert bodies(await pull(gateway, billing)) == [b"2"]


# ---------------------------------------------------------------------------------------- filter, bounds, order


async def test_the_filter(gateway: Gateway, upstream: FakeUpstream) -> None:
    billing = await subscribe(gateway, filter=SubscriptionFilter(routing_key="orders.#"), unmatched="discard")
    ready = upstream.queues["orders"].ready
    ready.extend((Message(b"%d" % n), "", key, False) for n, key in enumerate(["stock", "orders.eu", "stock"]))
    assert bodies(await pull(gateway, billing)) == [b"1"]
    assert {settlement for settlement, _ in upstream.settled} == {Settlement.ACCEPT}
    waiting = asyncio.create_task(pull(gateway, billing, 10, 10.0))
    await asyncio.sleep(0.02)
    ready.append((Message(b"x"), "", "stock", False))
    upstream.arrived.set()
    await asyncio.sleep(0.05)
    ready.append((Message(b"y"), "", "orders", False))
    upstream.arrived.set()
    assert bodies(await waiting) == [b"y"], "it goes on behind what it does not want"


async def test_backlog_max_bounds_what_is_taken(gateway: Gateway, upstream: FakeUpstream) -> None:
    billing = await subscribe(gateway, backlog_max=3)
    await gateway.publish("fake", "", [message(b"%d" % number) for number in range(5)])
    items = await pull(gateway, billing)
    assert len(items) == 3
    assert await pull(gateway, billing) == []
    assert len(upstream.queues["orders"].ready) == 2
    await gateway.consuming.acknowledge(billing, ids(items[0]))
    assert len(await pull(gateway, billing)) == 1
    assert len(upstream.queues["orders"].ready) == 1


async def test_a_backlog_of_dead_messages_is_told(gateway: Gateway) -> None:
    billing = await subscribe(gateway, backlog_max=1)
    await gateway.publish("fake", "", [message(), message()])
    (item,) = await pull(gateway, billing)
    await gateway.consuming.reject(billing, ids(item), "bad")
    with pytest.raises(Overloaded, match=r"1 dead messages .* backlog_max is 1"):
        await pull(gateway, billing)


async def test_in_order_by_key(gateway: Gateway, upstream: FakeUpstream) -> None:
    billing = await subscribe(gateway, order_key="header:customer")
    for number, customer in enumerate(["a", "a", "b", None, None, "a", "b"]):
        headers = {"customer": customer} if customer else {}
        upstream.queues["orders"].ready.append((Message(b"%d" % number, Properties(headers=headers)), "", "k", False))
    upstream.pump()
    got: list[Pulled] = []
    while len(got) < 4:
        got += await pull(gateway, billing, 10, 10.0)
    assert sorted(bodies(got)) == [b"0", b"2", b"3", b"4"]
    assert await pull(gateway, billing) == [], "one of each key at a time"
    by_body = {item.delivery.message.body: item for item in got}
    await gateway.consuming.release(billing, ids(by_body[b"0"]))
    assert bodies(await pull(gateway, billing, 10, 10.0)) == [b"0"], "no other one of its key overtakes it"
    await gateway.consuming.acknowledge(billing, ids(by_body[b"2"]))
    assert bodies(await pull(gateway, billing, 10, 10.0)) == [b"6"]


async def test_paused(gateway: Gateway, upstream: FakeUpstream) -> None:
    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, billing)
    await gateway.subscriptions.pause("billing")
    paused = await gateway.subscriptions.get("billing")
    with pytest.raises(StateError, match="is paused"):
        await pull(gateway, paused)
    assert await statuses(gateway.consuming.acknowledge(paused, ids(item))) == ["SUCCESS"], "what is out may be settled"
    resumed = await gateway.subscriptions.resume("billing")
    assert await pull(gateway, resumed) == []


async def test_a_pushed_subscription_is_not_pulled(gateway: Gateway) -> None:
    pushed = await subscribe(gateway, push="somewhere")
    with pytest.raises(StateError, match="pushed to the endpoint 'somewhere'"):
        await pull(gateway, pushed)


async def test_leases_outlive_a_change_of_settings(gateway: Gateway, upstream: FakeUpstream) -> None:
    before = await subscribe(gateway)
    await gateway.publish("fake", "", [message(b"1")])
    (ledgers,) = await pull(gateway, before)
    settings = SubscriptionSettings(broker="fake", queue="orders")
    after, _ = await gateway.subscriptions.put("billing", settings, before.etag)
    await gateway.publish("fake", "", [message(b"2")])
    (brokers,) = await pull(gateway, after)
    assert await statuses(gateway.consuming.acknowledge(after, ids(brokers, ledgers))) == ["SUCCESS", "SUCCESS"]
    assert await gateway.ledger.deliveries.count() == 0


async def test_what_the_ledger_owes_comes_though_the_broker_holds_the_leases_now(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    before = await subscribe(gateway)
    await gateway.publish("fake", "", [message(b"1")])
    (item,) = await pull(gateway, before)
    assert await statuses(gateway.consuming.release(before, ids(item))) == ["SUCCESS"]
    after, _ = await gateway.subscriptions.put(
        "billing", SubscriptionSettings(broker="fake", queue="orders"), before.etag
    )
    (again,) = await pull(gateway, after)
    assert (again.id, again.attempt, again.redelivered) == (item.id, 2, True)
    assert await pull(gateway, after) == []
    assert await statuses(gateway.consuming.acknowledge(after, ids(again))) == ["SUCCESS"]
    assert await gateway.ledger.deliveries.count() == 0


@pytest.mark.parametrize("lease", ["broker", "ledger"])
@pytest.mark.parametrize("change", ["pause", "delete", "push", "queue"])
async def test_a_pull_that_waits_hears_of_a_change(
    gateway: Gateway, upstream: FakeUpstream, lease: str, change: str
) -> None:
    billing = await subscribe(gateway, lease=lease)
    waiting = asyncio.create_task(pull(gateway, billing, wait=20.0))
    await asyncio.sleep(0.05)
    match change:
        case "pause":
            await gateway.subscriptions.pause("billing")
        case "delete":
            await gateway.subscriptions.delete("billing", None)
        case "push":
            await gateway.subscriptions.put("billing", structs.replace(billing.settings, push="shop"), billing.etag)
        case _:
            await gateway.subscriptions.put("billing", structs.replace(billing.settings, queue="other"), billing.etag)
    async with asyncio.timeout(10):
        if change == "queue":
            assert await waiting == []
        else:
            with pytest.raises(NoSuchSubscription if change == "delete" else StateError):
                await waiting
    await gateway.publish("fake", "", [message(b"1")])
    assert len(upstream.queues["orders"].ready) == 1, "nobody takes it any more"


async def test_what_consumers_have_is_not_pushed_to_somebody_else(gateway: Gateway) -> None:
    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message(b"1")])
    (item,) = await pull(gateway, billing)
    pushed = structs.replace(billing.settings, push="shop")
    with pytest.raises(StateError, match="1 messages of the subscription 'billing' are out with consumers"):
        await gateway.subscriptions.put("billing", pushed, billing.etag)
    assert await statuses(gateway.consuming.acknowledge(billing, ids(item))) == ["SUCCESS"]
    await gateway.subscriptions.put("billing", pushed, billing.etag)


@pytest.mark.parametrize(("most", "attempt"), [(0, 2), (2, 2), (1, None)])
async def test_what_is_revived_counts_on_and_says_that_it_was_out_before(
    gateway: Gateway, most: int, attempt: int | None
) -> None:
    billing = await subscribe(gateway, max_deliveries=most)
    await gateway.publish("fake", "", [message(b"1")])
    (item,) = await pull(gateway, billing)
    assert await statuses(gateway.consuming.reject(billing, ids(item), "no")) == ["SUCCESS"]
    (row,), _ = await gateway.ledger.deliveries.page(DeliveryFilter(dead=True), None, 10)
    assert await gateway.ledger.deliveries.settle(await revivals(gateway, [row], 1, {})) == [True]
    gateway.deliveries_changed("billing")
    (again,) = await pull(gateway, billing)
    assert (again.id, again.attempt, again.redelivered) == (item.id, attempt, True)


async def test_a_restart_hands_out_what_was_owed(tmp_path: Path, upstream: Any) -> None:
    url = f"sqlite:///{tmp_path}/restart.db"
    ledger = await Ledger.open(url, LedgerSettings(), owner="before", migrate=True)
    gateway = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32)
    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message(b"kept"), message(b"done")])
    kept, done = await pull(gateway, billing, seconds=0.05)
    await ledger.close()
    ledger = await Ledger.open(url, LedgerSettings(), owner="after")
    gateway = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32)
    assert await statuses(gateway.consuming.acknowledge(billing, ids(done))) == ["SUCCESS"]
    (again,) = await pull(gateway, billing, wait=20.0)
    assert (again.id, again.attempt) == (kept.id, 2)
    await ledger.close()


async def test_nobody_gets_what_another_has(gateway: Gateway, upstream: FakeUpstream) -> None:
    """Many pulls at once, some from the ledger and some from the broker: no id in two open leases."""
    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message(b"%d" % number) for number in range(100)])
    first = await pull(gateway, billing, 50)
    await gateway.consuming.release(billing, ids(*first))
    pulled = await asyncio.gather(*(pull(gateway, billing, 7, 0.5) for _ in range(20)))
    got = [item for items in pulled for item in items]
    assert len(got) == len({item.id for item in got}) == 100
    await until(lambda: not upstream.out)


async def test_what_a_broker_s_lease_cannot_do_says_which_setting_to_change(gateway: Gateway) -> None:
    broker = await subscribe(gateway, lease="broker")
    await gateway.publish("fake", "", [message()])
    (item,) = await pull(gateway, broker)
    for results in (
        await gateway.consuming.release(broker, [*ids(item), "x"], 5.0),
        await gateway.consuming.modify_deadline(broker, [*ids(item), "x"], 601),
    ):
        assert [result.status for result in results] == ["FAILED", "INVALID_ACK_ID"]
        assert 'set lease = "ledger" for the subscription' in str(results[0].error)
    assert await statuses(gateway.consuming.acknowledge(broker, ids(item))) == ["SUCCESS"], "the lease goes on"
