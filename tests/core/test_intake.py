"""From a queue into the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.config import SubscriptionFilter, SubscriptionSettings
from gateway.core import Gateway, SubscriptionResource
from gateway.core.sources import intake, taking
from gateway.core.sources.dead_letters import DeadLetterDestination, UndeliverableMessage
from gateway.core.sources.intake import Intake
from gateway.core.sources.intakes import Intakes, OrderedIntake
from gateway.core.sources.stored import open_envelope
from gateway.core.work import subscription_work
from gateway.errors import EntriesRefused, LedgerUnavailable
from gateway.fidelity import annotate
from gateway.ledger import MessageIds, id_text
from gateway.ledger.db import disk
from gateway.ledger.pending.deliveries import DeliveryStore
from gateway.ledger.pending.owed import BacklogEntry, Ending
from gateway.ledger.pending.owed import BacklogSettlement as Ends
from tests.audited import ON_PURPOSE
from tests.core.fakes import FakeConsumer, FakeUpstream
from tests.core.test_publishing import message


class Taken:
    """What an intake stored."""

    def __init__(self) -> None:
        self.rows: list[BacklogEntry] = []
        self.room = 1_000

    def stored(self, rows: Sequence[BacklogEntry]) -> None:
        self.rows += rows
        self.room -= len(rows)

    @property
    def bodies(self) -> list[bytes]:
        return [open_envelope(row.payload or b"").message.body for row in self.rows]


Start = Callable[..., Any]


@pytest.fixture
def taken() -> Taken:
    return Taken()


@pytest.fixture
async def start(gateway: Gateway, upstream: Any, taken: Taken) -> AsyncIterator[Start]:
    """Start an intake of a subscription with these settings."""
    running: list[Intake] = []

    async def begin(**settings: Any) -> Intake:
        given = SubscriptionSettings(**{"broker": "fake", "queue": "orders", "lease": "ledger", **settings})
        found = Intake(
            gateway.parts,
            SubscriptionResource("billing", given, "", read_only=False),
            upstream,
            on_stored=taken.stored,
            room=lambda: taken.room,
        )
        running.append(found)
        await found.start()
        return found

    yield begin
    for item in running:
        await item.stop(1.0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def ours(body: bytes, *, resent: bool = False, id: str | None = None) -> Message:
    more = {"resent": "1"} if resent else {}
    return Message(body, annotate(Properties(delivery_mode=2), id=id or id_text(MessageIds()()), **more))


def put(upstream: FakeUpstream, *messages: Message, redelivered: bool = False) -> None:
    for item in messages:
        upstream.queues["orders"].ready.append((item, "", "orders", redelivered))
    upstream.pump()


async def test_stored_then_acknowledged(gateway: Gateway, upstream: FakeUpstream, start: Start, taken: Taken) -> None:
    await gateway.publish("fake", "", [message(b"%d" % number) for number in range(5)])
    found = await start()
    await until(lambda: len(upstream.settled) == 5)
    assert taken.bodies == [b"0", b"1", b"2", b"3", b"4"]
    assert {settlement for settlement, _ in upstream.settled} == {Settlement.ACCEPT}
    assert [row.id for row in taken.rows] == sorted(row.id for row in taken.rows)
    rows = await gateway.ledger.deliveries.due("billing", 10)
    assert [row.id for row in rows] == [row.id for row in taken.rows]
    assert (rows[0].attempt, rows[0].lease, found.stored) == (0, 0, 5)
    events = (await gateway.timeline(id_text(taken.rows[0].message_id))).events
    assert [event.kind.value for event in events] == ["accepted", "confirmed", "stored"]
    assert events[-1].detail == {"subscription": "billing", "queue": "orders", "redelivered": False}


async def test_nothing_is_acknowledged_before_it_is_stored(
    gateway: Gateway, upstream: FakeUpstream, start: Start, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DeliveryStore.store
    away = True
    asked = []

    async def no(self: DeliveryStore, owed: Any, *more: Any) -> None:
        asked.append([row.id for row in owed])
        if away:
            raise LedgerUnavailable("locked")
        await store(self, owed, *more)

    monkeypatch.setattr(DeliveryStore, "store", no)
    put(upstream, ours(b"1"), ours(b"2"))
    found = await start()
    await until(lambda: len(asked) >= 2)
    assert (upstream.settled, found.reason) == ([], "locked")
    away = False
    await until(lambda: len(upstream.settled) == 2)
    assert (taken.bodies, found.reason) == ([b"1", b"2"], "")
    assert asked[0] == asked[-1], "where nobody can tell whether a commit happened the same is stored again"


async def test_a_crash_between_commit_and_acknowledgement(
    gateway: Gateway, upstream: FakeUpstream, start: Start, taken: Taken
) -> None:
    """What was stored comes again, marked by its broker: the ledger has it, so it is dropped. What has no id is there
    twice, marked."""
    known, strange = ours(b"known"), Message(b"strange", Properties())
    put(upstream, known, strange)
    first = await start()
    await until(lambda: len(taken.rows) == 2)
    await first.stop()
    put(upstream, known, strange, redelivered=True)
    await start()
    await until(lambda: len(upstream.settled) == 4)
    assert taken.bodies == [b"known", b"strange", b"strange"]
    assert open_envelope(taken.rows[2].payload or b"").redelivered
    backlog = await gateway.ledger.deliveries.backlog("billing")
    assert backlog.waiting == 3


@pytest.mark.parametrize("is_lost", [False, True])
async def test_what_comes_while_its_consumer_closes_is_not_counted_as_held(
    gateway: Gateway, upstream: FakeUpstream, start: Start, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    close = FakeConsumer.close

    async def slow(self: FakeConsumer, drain: float = 0.0) -> None:
        put(upstream, ours(b"late"))
        await asyncio.sleep(0.01)
        await close(self, drain)

    async def cancel(self: FakeConsumer, within: float = 0.0) -> None:
        """Its broker does not answer in time."""

    monkeypatch.setattr(FakeConsumer, "close", slow)
    monkeypatch.setattr(FakeConsumer, "cancel", cancel)
    found = await start()
    await until(lambda: bool(upstream.consumers))
    if is_lost:
        found.lost()
        await found.gone()
    else:
        await found.stop()
    assert gateway.parts.byte_budget.held == 0


async def test_a_broker_that_forgot(gateway: Gateway, upstream: FakeUpstream, start: Start, taken: Taken) -> None:
    """Nobody says that it comes again, so it may be another message: it is kept, and marked."""
    known = ours(b"known")
    put(upstream, known)
    await (await start()).stop()
    put(upstream, known)
    await start()
    await until(lambda: len(taken.rows) == 2)
    assert [open_envelope(row.payload or b"").redelivered for row in taken.rows] == [False, True]


async def test_a_message_that_was_sent_twice(upstream: FakeUpstream, start: Start, taken: Taken) -> None:
    identity = id_text(MessageIds()())
    put(upstream, ours(b"x", id=identity), ours(b"x", id=identity, resent=True), ours(b"y", id=identity, resent=True))
    await start()
    await until(lambda: len(upstream.settled) == 3)
    assert taken.bodies == [b"x", b"y"], "the same id with another body is another message"


@pytest.mark.parametrize("entry", [{"replay": "job-1"}, {"reason": "it was a dead letter"}])
async def test_what_was_sent_anew_is_no_redelivery_of_what_was_here(
    upstream: FakeUpstream, start: Start, taken: Taken, entry: dict[str, str]
) -> None:
    identity = id_text(MessageIds()())
    put(upstream, ours(b"x", id=identity))
    await start()
    await until(lambda: len(taken.rows) == 1)
    anew = Message(b"x", annotate(Properties(delivery_mode=2), id=identity, **entry))
    put(upstream, anew, anew, redelivered=True)
    await until(lambda: len(upstream.settled) == 3)
    assert taken.bodies == [b"x", b"x"], "and it is recognised when it comes again itself"


async def test_a_channel_that_dies(upstream: FakeUpstream, start: Start, taken: Taken) -> None:
    await start()
    await until(lambda: bool(upstream.consumers))
    put(upstream, *(ours(b"%d" % number) for number in range(20)))
    await asyncio.sleep(0)
    upstream.consumers[0].lose()
    await until(lambda: not upstream.queues["orders"].ready and not upstream.out)
    assert sorted(taken.bodies, key=int) == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"unmatched": "discard"}, "filtered"),
        ({}, "dead"),
        ({"dead_letter_routing_key": "graves"}, "dead_lettered"),
        ({"dead_letter_routing_key": "missing"}, "dead"),
    ],
)
async def test_what_the_filter_does_not_want(
    gateway: Gateway, upstream: FakeUpstream, start: Start, taken: Taken, settings: Any, expected: str
) -> None:
    await upstream.declare_queue("graves")
    good, bad = (Message(b"%d" % n, annotate(Properties(headers={"n": n}), id=id_text(MessageIds()()))) for n in (1, 0))
    put(upstream, bad, good)
    await start(filter=SubscriptionFilter(selector="n = 1"), **settings)
    await until(lambda: len(upstream.settled) == 2)
    assert taken.bodies == [b"1"]
    page, _ = await gateway.ledger.messages()
    states = {
        item.size: item.state.value
        for item in page
        if item.state is not None and item.id not in (taken.rows[0].message_id,)
    }
    assert set(states.values()) == {expected if expected != "filtered" else "discarded"}
    assert (await gateway.ledger.deliveries.backlog("billing")).dead == (expected == "dead")
    graves = upstream.queues["graves"].ready
    assert len(graves) == (expected == "dead_lettered")
    if graves:
        headers = graves[0][0].properties.headers
        assert headers is not None
        assert headers["x-gateway"]["reason"] == "the selector does not match"
        assert headers["x-gateway"]["subscription"] == "billing"


async def test_without_room_the_queue_keeps_the_rest(
    upstream: FakeUpstream, start: Start, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "HOLD", 0.05)
    monkeypatch.setattr(taking, "LOOK_EVERY", 0.02)
    taken.room = 10
    put(upstream, *(ours(b"%d" % number) for number in range(100)))
    found = await start(prefetch=8)
    await until(lambda: not upstream.consumers and bool(taken.rows))
    assert 10 <= len(taken.rows) <= 10 + 8
    assert not upstream.out, "nothing is held"
    assert len(upstream.queues["orders"].ready) == 100 - len(taken.rows)
    taken.room = 1_000
    found.wake()
    await until(lambda: len(taken.rows) == 100)
    assert taken.bodies == [b"%d" % number for number in range(100)], "in order"
    assert not any(open_envelope(row.payload or b"").redelivered for row in taken.rows)


async def test_room_that_comes_back_while_the_last_ones_are_stored(
    upstream: FakeUpstream, start: Start, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer was cancelled for want of room, with messages to be stored: there must be another one, although
    there is room again before the first look at an empty hand."""
    monkeypatch.setattr(taking, "HOLD", 0.05)
    monkeypatch.setattr(taking, "LOOK_EVERY", 0.02)
    store = taken.stored

    def stored(rows: Sequence[BacklogEntry]) -> None:
        store(rows)
        taken.room = 1_000

    monkeypatch.setattr(taken, "stored", stored)
    await start(prefetch=8)
    await until(lambda: bool(upstream.consumers))
    taken.room = 0
    put(upstream, *(ours(b"%d" % number) for number in range(100)))
    await until(lambda: len(taken.rows) == 100)


async def test_backlog_max(
    gateway: Gateway, upstream: FakeUpstream, start: Start, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "HOLD", 0.05)
    monkeypatch.setattr(taking, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(intake, "BACKLOG_EVERY", 0.02)
    put(upstream, *(ours(b"%d" % number) for number in range(30)))
    found = await start(prefetch=4, backlog_max=5)
    await until(lambda: not upstream.consumers and bool(taken.rows))
    await until(lambda: "backlog_max is 5" in found.reason)
    held = len(taken.rows)
    assert 5 <= held <= 5 + 4
    rows = await gateway.ledger.deliveries.claim("billing", 100, 30.0)
    await gateway.ledger.deliveries.settle([Ends(row.id, Ending.DONE, row.lease) for row in rows])
    ON_PURPOSE.update(row.message_id for row in rows)  # no event says that they ended
    await until(lambda: len(taken.rows) > held)


async def test_a_backlog_that_is_just_full_is_a_reason_until_there_is_room(
    gateway: Gateway, upstream: FakeUpstream, start: Start, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(intake, "BACKLOG_EVERY", 0.02)
    put(upstream, *(ours(b"%d" % number) for number in range(3)))
    first = await start()
    await until(lambda: len(taken.rows) == 3)
    await first.stop()
    put(upstream, ours(b"3"))
    found = await start(backlog_max=3)
    await until(lambda: found.reason == "the ledger holds 3 messages for it, and backlog_max is 3")
    assert len(upstream.queues["orders"].ready) == 1, "nothing is taken"
    (row,) = await gateway.ledger.deliveries.claim("billing", 1, 30.0)
    await gateway.ledger.deliveries.settle([Ends(row.id, Ending.DONE, row.lease)])
    ON_PURPOSE.add(row.message_id)  # no event says that it ended
    await until(lambda: taken.bodies[3:] == [b"3"])


async def test_a_full_disk_is_a_reason_and_takes_nothing_until_there_is_room(
    gateway: Gateway, upstream: FakeUpstream, start: Start, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(free: int) -> None:
        monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: SimpleNamespace(total=1 << 40, free=free))
        gateway.ledger.disk.look()

    monkeypatch.setattr(taking, "LOOK_EVERY", 0.02)
    put(upstream, ours(b"1"))
    leave(1 << 20)
    found = await start()
    await until(lambda: "ledger.disk_reserve" in found.reason)
    assert not found.running
    assert not upstream.consumers
    leave(1 << 39)
    await until(lambda: taken.bodies == [b"1"])
    assert found.reason == ""


async def test_too_many_octets_make_the_prefetch_smaller(upstream: FakeUpstream, start: Start, taken: Taken) -> None:
    put(upstream, *(ours(b"x" * 20_000) for _ in range(40)))
    found = await start(prefetch=30, prefetch_octets=1 << 16)
    await until(lambda: len(taken.rows) == 40)
    assert found._prefetch < 30


async def test_too_many_octets_that_come_with_the_broker_s_answer_are_stored(
    upstream: FakeUpstream, start: Start, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before there is a consumer of which the prefetch can be made smaller."""
    consume = upstream.consume

    async def answered_with_messages(*arguments: Any, **options: Any) -> FakeConsumer:
        consumer = await consume(*arguments, **options)
        consumer._deliver()
        return consumer

    monkeypatch.setattr(upstream, "consume", answered_with_messages)
    sent = [b"%02d" % number + b"x" * 20_000 for number in range(5)]
    put(upstream, *map(ours, sent))
    found = await start(prefetch=30, prefetch_octets=1 << 16)
    await until(lambda: len(upstream.settled) == 5)
    assert upstream.settled == [(Settlement.ACCEPT, body) for body in sent]
    assert (taken.bodies, found.reason) == (sent, "")


async def test_a_prefetch_that_is_being_changed_is_not_changed_again(
    upstream: FakeUpstream, start: Start, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes meanwhile was sent for the old one, and says nothing of the new."""
    asked: list[int] = []

    def change(consumer: FakeConsumer, prefetch: int, wait: Any = None) -> None:
        consumer.changing = True
        asked.append(prefetch)

    monkeypatch.setattr(FakeConsumer, "change_prefetch", change)
    put(upstream, *(ours(b"x" * 20_000) for _ in range(6)))
    await start(prefetch=30, prefetch_octets=1 << 16)
    await until(lambda: len(taken.rows) == 6)
    assert asked == [3]


async def test_more_than_twice_the_octets_is_given_back_at_once(
    upstream: FakeUpstream, start: Start, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a broker hears of a smaller prefetch when it has sent everything."""

    def change(consumer: FakeConsumer, prefetch: int, wait: Any = None) -> None:
        def apply() -> None:
            consumer.prefetch, consumer._channel, consumer.changing = prefetch, object(), False
            consumer.pump()

        consumer.changing = True
        asyncio.get_running_loop().call_soon(apply)

    monkeypatch.setattr(FakeConsumer, "change_prefetch", change)
    sent = [b"%02d" % number + b"x" * 20_000 for number in range(40)]
    put(upstream, *map(ours, sent))
    await start(prefetch=30, prefetch_octets=1 << 16)
    await until(lambda: len(taken.rows) == 40)
    assert sorted(taken.bodies) == sent
    assert any(settlement is Settlement.RELEASE for settlement, _ in upstream.settled)


async def test_stop_stores_what_has_come_and_gives_back_the_rest(
    upstream: FakeUpstream, start: Start, taken: Taken
) -> None:
    found = await start(prefetch=4)
    await until(lambda: bool(upstream.consumers))
    put(upstream, *(ours(b"%d" % number) for number in range(4)))
    await asyncio.sleep(0.01)
    await found.stop(5.0)
    assert len(taken.rows) + len(upstream.queues["orders"].ready) == 4
    assert not upstream.out
    assert not upstream.consumers


async def test_lost_acknowledges_nothing(
    upstream: FakeUpstream, start: Start, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(self: DeliveryStore, *more: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(DeliveryStore, "store", never)
    found = await start()
    put(upstream, ours(b"1"))
    await until(lambda: bool(upstream.out))
    await asyncio.sleep(0.01)
    found.lost()
    await until(lambda: not upstream.out)
    assert all(settlement is Settlement.RELEASE for settlement, _ in upstream.settled)
    assert [item[0].body for item in upstream.queues["orders"].ready] == [b"1"]


async def test_a_message_that_the_ledger_cannot_hold_costs_only_itself(
    gateway: Gateway, upstream: FakeUpstream, start: Start, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DeliveryStore.store

    async def picky(self: DeliveryStore, owed: Any, entries: Any = (), inbox: Any = ()) -> None:
        bad = {index: "too odd" for index, row in enumerate(owed) if open_envelope(row.payload).message.body == b"bad"}
        good = [index for index in range(len(owed)) if index not in bad]
        await store(self, [owed[index] for index in good], [entries[index] for index in good], ())
        if bad:
            raise EntriesRefused(bad)

    monkeypatch.setattr(DeliveryStore, "store", picky)
    put(upstream, ours(b"1"), ours(b"bad"), ours(b"2"))
    await start()
    await until(lambda: len(upstream.settled) == 2)
    assert taken.bodies == [b"1", b"2"]
    assert [item.message.body for item in upstream.out] == [b"bad"], "it is not acknowledged"


async def test_an_own_queue_is_declared_and_bound(upstream: FakeUpstream, start: Start, taken: Taken) -> None:
    await upstream.declare_exchange("news", "topic")
    await start(queue="", exchange="news", binding_key="k")
    await until(lambda: bool(upstream.consumers))
    assert upstream.bindings == {("news", "gateway.subscription.billing", "k")}


async def test_an_own_queue_that_was_deleted_is_there_again_after_the_next_put(
    gateway: Gateway, upstream: FakeUpstream, start: Start
) -> None:
    """Although it was declared a moment ago, as far as is remembered."""
    await upstream.declare_exchange("news", "topic")
    settings = SubscriptionSettings(broker="fake", exchange="news", binding_key="k", lease="ledger")
    await gateway.subscriptions.put("billing", settings, None)
    await start(queue="", exchange="news", binding_key="k")
    await until(lambda: bool(upstream.consumers))
    await upstream.delete_queue("gateway.subscription.billing")
    upstream.bindings.clear()
    upstream.consumers[0].end()
    await gateway.subscriptions.put("billing", settings, None)
    assert "gateway.subscription.billing" in upstream.queues
    assert upstream.bindings == {("news", "gateway.subscription.billing", "k")}


async def test_a_queue_that_is_missing_is_a_reason_and_no_end(
    upstream: FakeUpstream, start: Start, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "PAUSE_MIN", 0.01)
    found = await start(queue="later")
    await until(lambda: "no queue 'later'" in found.reason)
    assert not found.running
    await upstream.declare_queue("later")
    await until(lambda: bool(upstream.consumers))
    assert found.running


async def test_what_is_given_back_again_and_again_is_held_no_more(
    gateway: Gateway, upstream: FakeUpstream, start: Start, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that counted although nobody holds them would bound all others."""
    faults = 3

    async def no(self: Intake, chunk: Any) -> None:
        nonlocal faults
        faults -= 1
        if not faults:
            monkeypatch.undo()
        raise LedgerUnavailable("locked")

    monkeypatch.setattr(taking, "PAUSE_MIN", 0.01)
    monkeypatch.setattr(taking, "CHUNK", 1)
    monkeypatch.setattr(Intake, "_store", no)
    put(upstream, *(ours(b"%d" % number) for number in range(3)))
    await start()
    await until(lambda: len(taken.rows) == 3)
    assert any(settlement is Settlement.RELEASE for settlement, _ in upstream.settled)
    assert gateway.budgets["held_bytes"].standing().held == 0


async def test_what_is_not_wanted_is_buried_once_and_let_go_of_although_the_ledger_was_away(
    gateway: Gateway, upstream: FakeUpstream, start: Start, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would fill the prefetch for ever, or be at the dead-letter place as often as that was tried."""
    store = DeliveryStore.store
    away = 3

    async def no(self: DeliveryStore, owed: Any, *more: Any) -> None:
        nonlocal away
        if away and not owed:
            away -= 1
            raise LedgerUnavailable("locked")
        await store(self, owed, *more)

    monkeypatch.setattr(DeliveryStore, "store", no)
    monkeypatch.setattr(taking, "PAUSE_MIN", 0.01)
    await upstream.declare_queue("graves")
    put(upstream, ours(b"1"), ours(b"2"), ours(b"3"))
    await start(filter=SubscriptionFilter(selector="colour = 'red'"), dead_letter_routing_key="graves", prefetch=2)
    await until(lambda: len(upstream.settled) == 3)
    assert {settlement for settlement, _ in upstream.settled} == {Settlement.ACCEPT}
    assert not away
    assert sorted(grave[0].body for grave in upstream.queues["graves"].ready) == [b"1", b"2", b"3"]


async def test_a_dead_letter_that_is_driven_back_by_hand_twice_is_no_redelivery(
    gateway: Gateway, upstream: FakeUpstream, start: Start, taken: Taken
) -> None:
    """It dies of the same reason each time, and the gateway dies with it the second time before it is stored."""
    await upstream.declare_queue("graves")
    message_id = MessageIds()()
    message = ours(b"x", id=id_text(message_id))
    await start()
    for time in (1, 2):
        letter = UndeliverableMessage(message_id, message, "500", "fake", "orders", "", "orders")
        (error,) = await gateway.parts.dead_letters.publish(
            DeadLetterDestination("fake", "", "graves"), "billing", [letter]
        )
        assert error is None
        message = upstream.queues["graves"].ready.pop()[0]
        put(upstream, message, redelivered=time == 2)
        await until(lambda time=time: len(taken.rows) == time)
    assert taken.bodies == [b"x", b"x"]


async def test_an_intake_of_this_process_takes_what_the_changed_settings_say(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    await upstream.declare_queue("others")
    old = SubscriptionSettings(broker="fake", queue="orders", lease="ledger", order_key="property:type")
    put_first, _ = await gateway.subscriptions.put("s", old, None)
    await gateway.ownership.review("intake")
    new = SubscriptionSettings(broker="fake", queue="others", lease="ledger", order_key="property:correlation_id")
    await gateway.subscriptions.put("s", new, put_first.etag)
    await upstream.publish_nowait("", "others", Message(b"x", Properties(type="t", correlation_id="c")))
    async with asyncio.timeout(10):
        while not (rows := await gateway.ledger.deliveries.claim("s", 1, 30.0)):
            await asyncio.sleep(0.005)
    assert rows[0].order_key == b"=c"


async def test_changed_settings_of_an_intake_count_when_the_ledger_is_back(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await upstream.declare_queue("others")
    old = SubscriptionSettings(broker="fake", queue="orders", lease="ledger", order_key="property:type")
    put_first, _ = await gateway.subscriptions.put("s", old, None)
    await gateway.ownership.review("intake")
    build, away = Intakes.build, 2

    def no(self: Intakes, subscription: SubscriptionResource) -> OrderedIntake:
        nonlocal away
        if away:
            away -= 1
            raise LedgerUnavailable("locked")
        return build(self, subscription)

    monkeypatch.setattr(subscription_work, "PAUSE_MIN", 0.01)
    monkeypatch.setattr(Intakes, "build", no)
    await gateway.subscriptions.put("s", msgspec.structs.replace(old, queue="others"), put_first.etag)
    await upstream.publish_nowait("", "others", Message(b"x", Properties(type="t")))
    await until(lambda: not away)
    async with asyncio.timeout(10):
        while not (rows := await gateway.ledger.deliveries.claim("s", 1, 30.0)):
            await asyncio.sleep(0.005)
    assert rows[0].order_key == b"=t"
    assert gateway.intakes.reason("s") == ""
