"""One pushed subscription, with real parts around it and endpoints that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.config import SubscriptionSettings
from gateway.core.sources import intake
from gateway.core.sources.stored import open_envelope
from gateway.core.work import subscription_work
from gateway.errors import BrokerUnavailable, CommitUnknown, LedgerUnavailable, OutboundTimeout, OutcomeUnknown
from gateway.fidelity import annotate, annotation
from gateway.ledger import EventKind, Ledger, id_text
from gateway.ledger.pending.deliveries import DeliveryStore
from gateway.ledger.pending.owed import BacklogEntry
from gateway.upstreams import Delivery, PublishReceipt
from gateway.webhooks import pusher
from gateway.webhooks.attempts import replies
from gateway.webhooks.attempts.forms import PushedMessage
from gateway.webhooks.attempts.outcomes import PushOutcomes
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.endpoint import Endpoint, EndpointState
from gateway.webhooks.states import PushState
from gateway.webhooks.supervisor import Pushes
from tests.webhooks.pushed import Estate, Receivers, until


@pytest.fixture
async def estate(tmp_path: Path) -> AsyncIterator[Estate]:
    found = Estate(tmp_path)
    await found.open()
    yield found
    await found.close()


@pytest.mark.parametrize("lease", ["broker", "ledger"])
async def test_what_is_published_is_pushed_recorded_and_acknowledged(estate: Estate, lease: str) -> None:
    estate.receivers.put("e")
    await estate.subscribe(lease=lease)
    ids = await estate.publish(*[b"%d" % number for number in range(50)])
    await until(lambda: len(estate.receivers.bodies()) == 50)
    assert sorted(estate.receivers.bodies()) == sorted(b"%d" % number for number in range(50))
    await estate.wait_for(in_flight=0, waiting=0, dead=0)
    await estate.wait_depth(0)
    stored = [EventKind.STORED] if lease == "ledger" else []
    for message_id in ids:
        assert await estate.kinds(message_id) == [*stored, EventKind.ACKNOWLEDGED]


async def test_what_fails_is_stored_with_its_time_and_acknowledged(estate: Estate) -> None:
    answers = [SendOutcome(status=500), SendOutcome(status=500), SendOutcome(status=200)]
    estate.receivers.put("e", lambda items: answers.pop(0), schedule=[0, 0.05, 0.1])
    await estate.subscribe()
    (message_id,) = await estate.publish(b"x")
    await until(lambda: estate.receivers.bodies() == [b"x"])
    await estate.wait_for(in_flight=0, waiting=0)
    assert [attempt for _, attempt in estate.receivers.attempts()] == [1, 2, 3]
    assert len({item.id for _, items in estate.receivers.requests["e"] for item in items}) == 1
    assert await estate.kinds(message_id) == [
        EventKind.STORED, EventKind.ATTEMPT_FAILED, EventKind.ATTEMPT_FAILED, EventKind.ACKNOWLEDGED,
    ]  # fmt: skip


async def test_who_lets_requests_time_out_takes_no_connection_that_others_keep(estate: Estate) -> None:
    cut = SendOutcome(error=OutboundTimeout("no answer"))
    answers = [SendOutcome(status=500), cut, cut, SendOutcome(status=200, truncated=True), SendOutcome(status=200)]
    estate.receivers.put("e", lambda items: answers.pop(0) if answers else SendOutcome(status=200), schedule=[0] * 5)
    await estate.subscribe()
    for number in range(3):
        await estate.publish(b"%d" % number)
        await until(lambda number=number: len(estate.receivers.bodies()) == number + 1)  # type: ignore[misc]
    assert estate.receivers.fresh["e"] == [False, False, True, True, True, False]


async def test_a_request_whose_outcome_was_not_recorded_is_made_again_under_the_same_id(estate: Estate) -> None:
    """A gateway dies after the endpoint's 2xx and before its commit."""
    taken = asyncio.Event()

    async def answer(_: Sequence[PushedMessage]) -> SendOutcome:
        taken.set()
        await asyncio.sleep(3_600)
        return SendOutcome(status=200)

    estate.receivers.put("e", answer)
    await estate.subscribe()
    (message_id,) = await estate.publish(b"x")
    await taken.wait()
    await estate.close_gateway(0.0)
    estate.receivers.answers["e"] = SendOutcome(status=200)
    await estate.open_gateway()
    await until(lambda: estate.receivers.bodies() == [b"x"])
    await estate.wait_for(in_flight=0)
    assert await estate.kinds(message_id) == [EventKind.ACKNOWLEDGED]
    (first,), (second,) = (items for _, items in estate.receivers.requests["e"])
    assert first.id == second.id
    assert (first.redelivered, second.redelivered) == (False, True)


@pytest.mark.parametrize("lease", ["broker", "ledger"])
@pytest.mark.parametrize("ends", [1, 2])
async def test_a_reply_that_may_be_there_twice_says_so(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, lease: str, ends: int
) -> None:
    """A gateway dies after the reply and before its commit, and the next one perhaps in the middle of the request."""
    replied, began = asyncio.Event(), asyncio.Event()

    async def stuck(*_: Any) -> None:
        replied.set()
        await asyncio.sleep(3_600)

    async def silent(_: Sequence[PushedMessage]) -> SendOutcome:
        began.set()
        await asyncio.sleep(3_600)
        return SendOutcome(status=200)

    estate.receivers.put("e", SendOutcome(status=200, body=b"answer"), reply=True)
    await estate.upstream.declare_queue("answers")
    await estate.subscribe(lease=lease)
    with monkeypatch.context() as patched:
        patched.setattr(PushOutcomes, "_done", stuck)
        await estate.publish(b"x", reply_to="answers", correlation_id="c")
        await replied.wait()
        await estate.close_gateway(0.0)
    if ends == 2:
        estate.receivers.answers["e"] = silent
        await estate.open_gateway()
        await began.wait()
        await estate.close_gateway(0.0)
        estate.receivers.answers["e"] = SendOutcome(status=200, body=b"answer")
    await estate.open_gateway()
    await estate.wait_for(in_flight=0, waiting=0)
    await estate.wait_depth(2, "answers")
    found = await estate.upstream.fetch("answers", 2, 1.0)
    assert [annotation(delivery.message.properties, "resent") for delivery in found] == [None, "1"]


async def test_a_reply_to_what_has_failed_before_is_the_first(estate: Estate) -> None:
    answers = [SendOutcome(status=500), SendOutcome(status=500), SendOutcome(status=200, body=b"answer")]
    estate.receivers.put("e", lambda items: answers.pop(0), schedule=[0, 0.05, 0.1], reply=True)
    await estate.upstream.declare_queue("answers")
    await estate.subscribe()
    await estate.publish(b"x", reply_to="answers", correlation_id="c")
    await estate.wait_depth(1, "answers")
    (reply,) = await estate.upstream.fetch("answers", 1, 1.0)
    assert annotation(reply.message.properties, "resent") is None


@pytest.mark.parametrize("away", [1, 2, 3])
async def test_a_reply_is_tried_three_times_while_its_broker_is_away(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, away: int
) -> None:
    """Only a reply that is there is recorded as one."""
    publish, tries = estate.upstream.publish, 0

    async def publish_later(exchange: str, routing_key: str, *arguments: Any, **named: Any) -> PublishReceipt:
        nonlocal tries
        tries += routing_key == "answers"
        if routing_key == "answers" and tries <= away:
            raise BrokerUnavailable("it is away")
        return await publish(exchange, routing_key, *arguments, **named)

    monkeypatch.setattr(replies, "PAUSE", 0.01)
    monkeypatch.setattr(estate.upstream, "publish", publish_later)
    estate.receivers.put("e", SendOutcome(status=200, body=b"answer"), reply=True)
    await estate.upstream.declare_queue("answers")
    await estate.subscribe()
    (message_id,) = await estate.publish(b"x", reply_to="answers")
    await estate.wait_kind(message_id, EventKind.ACKNOWLEDGED)
    there = away < 3
    assert tries == min(away + 1, 3)
    assert await estate.depth("answers") == there
    events = (await estate.timeline(message_id)).events
    assert (EventKind.REPLIED in [event.kind for event in events]) == there
    assert ("not sent: it is away" in str([event.detail for event in events])) == (not there)


async def test_a_reply_of_which_nobody_knows_is_not_called_unsent(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = estate.upstream.publish

    async def publish_silently(exchange: str, routing_key: str, *arguments: Any, **named: Any) -> PublishReceipt:
        receipt = await publish(exchange, routing_key, *arguments, **named)
        if routing_key == "answers":
            raise OutcomeUnknown("no confirm came")
        return receipt

    monkeypatch.setattr(estate.upstream, "publish", publish_silently)
    estate.receivers.put("e", SendOutcome(status=200, body=b"answer"), reply=True)
    await estate.upstream.declare_queue("answers")
    await estate.subscribe()
    (message_id,) = await estate.publish(b"x", reply_to="answers")
    await estate.wait_kind(message_id, EventKind.ACKNOWLEDGED)
    assert await estate.depth("answers") == 1
    events = (await estate.timeline(message_id)).events
    assert events[-1].detail["reply"] == "perhaps sent: no confirm came"


async def test_what_a_gateway_that_died_had_claimed_is_tried_by_the_next_one_at_once(estate: Estate) -> None:
    """Its claims last for longer than anybody should wait."""
    taken: list[bytes] = []

    async def answer(items: Sequence[PushedMessage]) -> SendOutcome:
        taken.extend(item.message.body for item in items)
        await asyncio.sleep(3_600)
        return SendOutcome(status=200)

    estate.receivers.put("e", answer)
    await estate.subscribe(lease="ledger")
    await estate.publish(b"x")
    await until(lambda: taken)
    await estate.close_gateway(0.0)
    estate.receivers.answers["e"] = SendOutcome(status=200)
    await estate.open_gateway()
    await until(lambda: estate.receivers.bodies() == [b"x"])
    await estate.wait_for(in_flight=0, waiting=0)
    assert estate.receivers.attempts() == [(b"x", 1), (b"x", 2)]
    assert len({item.id for _, items in estate.receivers.requests["e"] for item in items}) == 1


async def test_what_was_stored_and_not_acknowledged_is_not_tried_out_of_turn(estate: Estate) -> None:
    """A gateway dies after its commit, and before the broker heard of it."""
    estate.receivers.put("e", SendOutcome(status=500), schedule=[0, 600], breaker_failures=100)
    await estate.subscribe()
    pusher = estate.pushes._running["s"]
    settle = Delivery.settle
    cut: list[Delivery] = []

    def lose(delivery: Delivery, settlement: Settlement) -> None:
        cut.append(delivery)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Delivery, "settle", lose)
        (message_id,) = await estate.publish(b"x")
        await until(lambda: cut)
    assert Delivery.settle is settle
    await pusher._source.close()
    await estate.wait_depth(1)
    pusher._source.want(0)
    pusher.changed()
    await estate.wait_depth(0)
    await estate.wait_kind(message_id, EventKind.DUPLICATE_DROPPED)
    assert len(estate.receivers.requests["e"]) == 1
    await estate.wait_for(waiting=1, retrying=1)


async def test_what_a_broker_forgot_that_it_delivered_is_marked_and_keeps_its_order(estate: Estate) -> None:
    """It was stored, and its broker heard of it; then the broker lost that in a crash, and says nothing of it."""
    estate.receivers.put("e", SendOutcome(status=500), schedule=[0, 600], breaker_failures=100)
    await estate.subscribe()
    (message_id,) = await estate.publish(b"x")
    await estate.wait_for(waiting=1, retrying=1)
    await estate.wait_depth(0)
    await estate.close_gateway()
    estate.receivers.answers["e"] = SendOutcome(status=200)
    await estate.open_gateway()
    again = Message(b"x", annotate(Properties(delivery_mode=2), id=message_id))
    await estate.upstream.publish("", "in", again)
    await estate.publish(b"y", b"z")
    await until(lambda: len(estate.receivers.bodies()) == 3)
    assert estate.receivers.bodies() == [b"x", b"y", b"z"]
    assert [item.redelivered for item in estate.receivers.got["e"]] == [True, False, False]


async def test_a_link_that_breaks_brings_messages_again_and_loses_none(estate: Estate) -> None:
    async def answer(_: Sequence[PushedMessage]) -> SendOutcome:
        await asyncio.sleep(0.01)
        return SendOutcome(status=200)

    estate.receivers.put("e", answer)
    await estate.subscribe()
    bodies = [b"%d" % number for number in range(200)]
    ids = await estate.publish(*bodies)
    for _ in range(3):
        await asyncio.sleep(0.1)
        for served in list(estate.broker._served):
            served.stream.abort()
        assert await estate.upstream.wait_up(30)
    await until(lambda: set(estate.receivers.bodies()) == set(bodies))
    await estate.wait_depth(0)
    await estate.wait_for(in_flight=0, held=0)
    again = len(estate.receivers.bodies()) - 200
    seen: set[str] = set()
    marked = 0
    for _, items in estate.receivers.requests["e"]:
        for item in items:
            marked += item.id in seen and item.redelivered
            seen.add(item.id)
    assert marked == again
    assert len(seen) == 200
    for message_id in ids:
        assert EventKind.ACKNOWLEDGED in await estate.kinds(message_id)


async def test_a_subscription_that_is_paused_resumed_and_changed(estate: Estate) -> None:
    estate.receivers.put("e")
    estate.receivers.put("f")
    await estate.subscribe()
    await estate.gateway.subscriptions.pause("s")
    await until(lambda: not estate.pushes.here("s"))
    await estate.publish(b"x")
    await estate.wait_depth(1)
    assert (await estate.status()).state is PushState.PAUSED
    await estate.gateway.subscriptions.resume("s")
    await until(lambda: estate.receivers.bodies("e") == [b"x"])
    found = await estate.gateway.subscriptions.get("s")
    changed = msgspec.structs.replace(found.settings, push="f")
    await estate.gateway.subscriptions.put("s", changed, found.etag)
    await until(lambda: estate.pushes.targets.get("e") is None)
    await estate.publish(b"y")
    await until(lambda: estate.receivers.bodies("f") == [b"y"])
    await estate.gateway.subscriptions.delete("s", None)
    await until(lambda: not estate.pushes.here("s"))


async def test_what_is_given_up_goes_to_the_dead_letter_place_with_the_reason(estate: Estate) -> None:
    estate.receivers.put("e", SendOutcome(status=500), schedule=[0, 0.01], breaker_failures=100)
    await estate.upstream.declare_queue("dead")
    await estate.subscribe(dead_letter_routing_key="dead")
    (message_id,) = await estate.publish(b"x", message_id="m-1")
    await estate.wait_depth(1, "dead")
    await estate.wait_for(waiting=0, dead=0)
    (delivery,) = await estate.upstream.fetch("dead", 1, 5.0)
    properties = delivery.message.properties
    assert (delivery.message.body, properties.message_id) == (b"x", "m-1")
    assert annotation(properties, "reason") == "500: the endpoint failed"
    assert annotation(properties, "subscription") == "s"
    assert (annotation(properties, "queue"), annotation(properties, "routing_key")) == ("in", "in")
    assert annotation(properties, "id") == message_id
    await estate.wait_kind(message_id, EventKind.DEAD_LETTERED)


async def test_what_the_filter_does_not_want_is_not_pushed(estate: Estate) -> None:
    estate.receivers.put("e")
    await estate.subscribe(filter={"selector": "colour = 'red'"}, unmatched="discard")
    (no,) = await estate.publish(b"no", headers={"colour": "blue"})
    (yes,) = await estate.publish(b"yes", headers={"colour": "red"})
    await until(lambda: estate.receivers.bodies() == [b"yes"])
    await estate.wait_depth(0)
    await estate.wait_for(in_flight=0)
    await estate.wait_kind(no, EventKind.FILTERED)
    assert await estate.kinds(yes) == [EventKind.ACKNOWLEDGED]


async def test_a_message_that_came_past_the_gateway_has_a_beginning_in_the_ledger(estate: Estate) -> None:
    estate.receivers.put("e", SendOutcome(status=500), schedule=[0, 600])
    await estate.subscribe()
    await estate.publish(b"x", ours=False)
    await estate.wait_for(waiting=1)
    (message_id,) = await estate.ids()
    assert await estate.kinds(id_text(message_id)) == [EventKind.RECEIVED, EventKind.STORED, EventKind.ATTEMPT_FAILED]


async def test_two_copies_of_one_message_are_two_deliveries(estate: Estate) -> None:
    """A replay may publish the same message again while the first one waits."""
    estate.receivers.put("e", SendOutcome(status=500), schedule=[0, 600], breaker_failures=100)
    await estate.subscribe()
    await estate.publish(b"x")
    await estate.wait_for(waiting=1)
    (row,) = await estate.ledger.deliveries.due("s", 10, payload=True)
    assert row.payload is not None
    await estate.upstream.publish("", "in", open_envelope(row.payload).message)
    await estate.wait_for(waiting=2)


async def test_two_messages_that_say_the_same_id_are_two_to_the_receiver(estate: Estate) -> None:
    """Anybody can copy the reserved header; a receiver drops what comes under a ``webhook-id`` that it knows."""
    estate.receivers.put("e")
    await estate.subscribe()
    await estate.publish(b"x")
    await until(lambda: estate.receivers.bodies() == [b"x"])
    ((_, (first,)),) = estate.receivers.requests["e"]
    await estate.upstream.publish("", "in", Message(b"another", first.message.properties))
    await until(lambda: estate.receivers.bodies() == [b"x", b"another"])
    _, (_, (second,)) = estate.receivers.requests["e"]
    assert second.message_id == first.message_id
    assert second.id != first.id


async def test_the_own_queue_of_a_subscription_is_pushed(estate: Estate) -> None:
    estate.receivers.put("e")
    await estate.subscribe(queue="", exchange="amq.topic", binding_key="orders.#")
    await estate.wait_for(state=PushState.RUNNING)
    await estate.upstream.publish("amq.topic", "orders.eu", Message(b"x", Properties()))
    await until(lambda: estate.receivers.bodies() == [b"x"])
    ((_, (item,)),) = estate.receivers.requests["e"]
    assert (item.exchange, item.routing_key, item.queue) == ("amq.topic", "orders.eu", "gateway.subscription.s")


@pytest.mark.parametrize("version", ["0-8", "0-10"])
@pytest.mark.parametrize("lease", ["broker", "ledger"])
async def test_it_is_the_same_in_every_version(tmp_path: Path, version: str, lease: str) -> None:
    estate = Estate(tmp_path, version)
    await estate.open()
    answers = [SendOutcome(status=500)]
    estate.receivers.put("e", lambda items: answers.pop() if answers else SendOutcome(status=200), schedule=[0, 0.05])
    await estate.subscribe(lease=lease)
    ids = await estate.publish(*[b"%d" % number for number in range(20)])
    await until(lambda: len(estate.receivers.bodies()) == 20)
    await estate.wait_for(in_flight=0, waiting=0)
    await estate.wait_depth(0)
    for message_id in ids:
        await estate.wait_kind(message_id, EventKind.ACKNOWLEDGED)
    assert sum(attempt == 2 for _, attempt in estate.receivers.attempts()) == 1
    await estate.close()


async def test_two_copies_of_one_message_that_fail_at_once_are_owed_both(estate: Estate) -> None:
    go_on = asyncio.Event()

    async def answer(items: Sequence[PushedMessage]) -> SendOutcome:
        if items[0].message.body != b"x":
            return SendOutcome(status=200)
        await go_on.wait()
        return SendOutcome(status=500)

    estate.receivers.put("e", answer, schedule=[0, 600], breaker_failures=100)
    await estate.upstream.declare_queue("aside")
    await estate.publish(b"x", queue="aside")
    (delivery,) = await estate.upstream.fetch("aside", 1, 5.0)
    await estate.subscribe()
    await estate.publish(*[b"well"] * 100)  # so that it gets more than one request at a time
    await until(lambda: len(estate.receivers.bodies()) == 100)
    for _ in range(2):
        await estate.upstream.publish("", "in", delivery.message)
    await until(lambda: [body for body, _ in estate.receivers.attempts()].count(b"x") == 2)
    go_on.set()
    await estate.wait_depth(0)
    await estate.wait_for(in_flight=0)
    await estate.wait_for(waiting=2)


async def test_an_event_that_the_ledger_may_have_is_there_once(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is lost behind the commit, and nobody can tell."""
    record, cut, again = Ledger.record, False, False

    async def cut_off(self: Ledger, entries: Any, *more: Any) -> Any:
        nonlocal cut, again
        found = await record(self, entries, *more)
        if not cut and any(entry.kind is EventKind.ACKNOWLEDGED for entry in entries):
            cut = True
            raise CommitUnknown("cut off")
        again = cut
        return found

    monkeypatch.setattr(Ledger, "record", cut_off)
    estate.receivers.put("e")
    await estate.subscribe()
    (message_id,) = await estate.publish(b"x")
    await until(lambda: again)
    await estate.wait_depth(0)
    await estate.wait_for(in_flight=0)
    assert await estate.kinds(message_id) == [EventKind.ACKNOWLEDGED]


async def test_what_is_not_wanted_is_buried_once_although_the_ledger_was_away(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, away = DeliveryStore.store, 3

    async def no(self: DeliveryStore, owed: Any, *more: Any) -> None:
        nonlocal away
        if away:
            away -= 1
            raise LedgerUnavailable("locked")
        await store(self, owed, *more)

    monkeypatch.setattr(DeliveryStore, "store", no)
    monkeypatch.setattr(intake, "PAUSE_MIN", 0.01)
    estate.receivers.put("e")
    await estate.upstream.declare_queue("dead")
    await estate.subscribe(filter={"selector": "colour = 'red'"}, dead_letter_routing_key="dead")
    (message_id,) = await estate.publish(b"x")
    await estate.wait_kind(message_id, EventKind.DEAD_LETTERED)
    await estate.wait_depth(0)
    assert not away
    assert await estate.depth("dead") == 1


async def test_settings_that_change_while_the_ledger_is_away_are_used_when_it_is_back(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    backlog, away = DeliveryStore.backlog, 2

    async def no(self: DeliveryStore, subscription: str) -> Any:
        nonlocal away
        if away:
            away -= 1
            raise LedgerUnavailable("locked")
        return await backlog(self, subscription)

    monkeypatch.setattr(subscription_work, "PAUSE_MIN", 0.01)
    estate.receivers.put("e")
    estate.receivers.put("f")
    await estate.subscribe()
    monkeypatch.setattr(DeliveryStore, "backlog", no)
    found = await estate.gateway.subscriptions.get("s")
    await estate.gateway.subscriptions.put("s", msgspec.structs.replace(found.settings, push="f"), found.etag)
    await until(lambda: estate.pushes.targets.get("e") is None)
    await estate.publish(b"x")
    await until(lambda: estate.receivers.bodies("f") == [b"x"])
    assert not away


async def test_a_change_that_comes_as_it_is_handed_over_begins_nothing(estate: Estate) -> None:
    estate.receivers.put("e")
    await estate.subscribe()
    await estate.pushes.stop("s", 1.0)
    await estate.pushes.refresh("s")
    assert not estate.pushes.here("s")


async def test_what_is_lost_while_it_starts_over_begins_nothing(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    backlog = DeliveryStore.backlog
    asking, may_go = asyncio.Event(), asyncio.Event()

    async def slow(self: DeliveryStore, subscription: str) -> Any:
        asking.set()
        await may_go.wait()
        return await backlog(self, subscription)

    estate.receivers.put("e")
    await estate.subscribe()
    monkeypatch.setattr(DeliveryStore, "backlog", slow)
    found = await estate.gateway.subscriptions.get("s")
    await estate.gateway.subscriptions.put("s", msgspec.structs.replace(found.settings, prefetch=7), found.etag)
    await asking.wait()
    estate.pushes.lost("s")
    may_go.set()
    await estate.publish(b"x")
    await asyncio.sleep(0.1)
    assert not estate.pushes.here("s")
    assert (estate.receivers.requests, await estate.depth()) == ({}, 1)


async def test_what_the_next_owner_claimed_is_not_put_back_by_the_one_before(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that starts over is fenced while it reads what is out. Its message would be sent again while it is sent."""
    may_go = asyncio.Event()

    async def answer(_: Sequence[PushedMessage]) -> SendOutcome:
        await may_go.wait()
        return SendOutcome(status=200)

    estate.receivers.put("e", answer, concurrency=5)
    await estate.subscribe(lease="ledger")
    await estate.publish(b"x")
    await until(lambda: estate.receivers.requests.get("e"))
    before = Pushes(estate.gateway, Receivers(), Receivers())  # type: ignore[arg-type]
    before._granted.add("s")
    due = DeliveryStore.due

    async def lost_then(self: DeliveryStore, *arguments: Any, **options: Any) -> list[BacklogEntry]:
        found = await due(self, *arguments, **options)
        before.lost("s")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(DeliveryStore, "due", lost_then)
        await before.refresh("s")
    assert not before.here("s")
    estate.pushes._running["s"].wake()
    await asyncio.sleep(0.2)
    may_go.set()
    await until(lambda: estate.receivers.bodies())
    await estate.wait_for(in_flight=0, waiting=0)
    assert estate.receivers.attempts() == [(b"x", 1)]
    await before.close(0.0)


async def test_the_log_says_once_that_an_endpoint_gets_nothing_and_that_it_does_again(
    estate: Estate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def told() -> list[str]:
        return [
            name for record in caplog.records if (name := record.getMessage()) in ("push.suspended", "push.resumed")
        ]

    estate.receivers.put("e")
    await estate.subscribe()
    estate.receivers.set_state("e", EndpointState.PAUSED)
    await until(lambda: told() == ["push.suspended"])
    await estate.publish(b"x")
    estate.receivers.set_state("e", EndpointState.ACTIVE)
    await until(lambda: estate.receivers.bodies() == [b"x"])
    assert told() == ["push.suspended", "push.resumed"]


async def test_an_endpoint_that_has_moved_is_not_disabled_by_where_it_was(estate: Estate) -> None:
    may_answer = asyncio.Event()

    async def answer(_: Sequence[PushedMessage]) -> SendOutcome:
        await may_answer.wait()
        return SendOutcome(status=410)

    estate.receivers.put("e", answer)
    await estate.subscribe()
    await estate.publish(b"x")
    await until(lambda: bool(estate.receivers.under_way.get("e")))
    estate.receivers.put("e", SendOutcome(status=200), url="https://moved.example/")
    await until(lambda: estate.pushes.targets.get("e").endpoint is estate.receivers.endpoints["e"])  # type: ignore[union-attr]
    may_answer.set()
    await until(lambda: estate.receivers.bodies() == [b"x"])
    assert estate.receivers.disabled == {}


async def test_one_of_two_that_is_lost_while_their_endpoint_is_disabled(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one goes on where the endpoint is well again."""
    disabling = asyncio.Event()

    async def disable(*_: Any) -> Endpoint:
        disabling.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(estate.receivers, "disable", disable)
    estate.receivers.put("e", SendOutcome(status=410))
    for name in ("s", "t"):
        await estate.upstream.declare_queue(name)
        await estate.gateway.subscriptions.put(name, SubscriptionSettings(broker="b", queue=name, push="e"), None)
    await until(lambda: estate.pushes.here("s") and estate.pushes.here("t"))
    await estate.publish(b"s", queue="s")
    await disabling.wait()
    estate.pushes.lost("s")
    estate.receivers.put("e")
    await estate.publish(b"t", queue="t")
    await until(lambda: estate.receivers.bodies() == [b"t"])


@pytest.mark.parametrize("ends", ["s", "t"])
async def test_one_of_two_that_ends_while_their_endpoint_is_read(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    get = estate.receivers.get
    reading, may_go = asyncio.Event(), asyncio.Event()

    async def slow(name: str) -> Endpoint:
        reading.set()
        await may_go.wait()
        return await get(name)

    estate.receivers.put("e")
    monkeypatch.setattr(estate.receivers, "get", slow)
    for name in ("s", "t"):
        await estate.upstream.declare_queue(name)
        settings = SubscriptionSettings(broker="b", queue=name, push="e")
        await estate.gateway.subscriptions.put(name, settings, None)
        await reading.wait()
    await until(lambda: estate.pushes.here("t"))
    await asyncio.sleep(0.05)
    ownership = estate.gateway.ownership
    await ownership._hand_over(ownership._groups["push"], [ends], 1.0)
    may_go.set()
    await ownership.review("push")
    for name in ("s", "t"):
        await estate.publish(name.encode(), queue=name)
    await until(lambda: sorted(estate.receivers.bodies()) == [b"s", b"t"])


async def test_what_is_claimed_and_under_way_is_bounded_in_bytes(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint with many requests at once holds no more of large messages than of small ones."""
    monkeypatch.setattr(pusher, "ROW_BYTES", 3_000)
    most, at_once = 0, 0
    may_go = asyncio.Event()
    may_go.set()

    async def answer(_: Sequence[PushedMessage]) -> SendOutcome:
        nonlocal most, at_once
        at_once += 1
        most = max(most, at_once)
        await may_go.wait()
        at_once -= 1
        return SendOutcome(status=200)

    estate.receivers.put("e", answer, concurrency=20)
    await estate.subscribe(lease="ledger")
    await estate.publish(*[b"%02d" % number for number in range(40)])
    await until(lambda: len(estate.receivers.bodies()) == 40)  # its window is open by now
    may_go.clear()
    most = 0
    await estate.publish(*[b"%02d" % number + bytes(998) for number in range(20)])
    await until(lambda: at_once == 3)
    await asyncio.sleep(0.1)
    at_work = estate.pushes._running["s"]
    assert (most, len(at_work._rows), at_work._row_bytes) == (3, 0, 3_000)
    may_go.set()
    await until(lambda: len(estate.receivers.bodies()) == 60)
    await estate.wait_for(in_flight=0, waiting=0)
    assert at_work._row_bytes == 0
