"""What a target sends, tries again, refuses and writes down."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.errors import (
    AccessRefused,
    BrokerUnavailable,
    GatewayError,
    LimitExceeded,
    NoSuchBroker,
    NoSuchSubscription,
    NotFound,
    OutcomeUnknown,
    PublishRefused,
    StateError,
    Unroutable,
    Unsupported,
)
from gateway.ledger import Ending, EventKind, id_text
from gateway.replays.items import ReplayItem
from gateway.replays.jobs import ANY_REPLAY, Job
from gateway.replays.places import ReplayPlace
from gateway.replays.requests import DeliveriesSource, QueueSource, ReplayRequest, ReplaySource, ReplayTarget
from gateway.replays.targets import BrokerTarget, Later, PurgeTarget, SubscriptionTarget, revivals
from gateway.upstreams import PublishReceipt
from tests.core.fakes import FakeUpstream

ROUTED = PublishReceipt(True)
Outcome = PublishReceipt | GatewayError | None


class Brokers:
    """A gateway with one broker, whose outcomes are given, and a ledger that keeps what is written into it."""

    def __init__(self, *outcomes: Outcome) -> None:
        """None: no outcome comes."""
        self.outcomes = list(outcomes)
        self.upstream = FakeUpstream("b")
        self.brokers = {"b": self.upstream}
        self.upstream.publish_nowait = self.publish  # type: ignore[method-assign,assignment]
        self.sent: list[tuple[str, str, dict[str, str]]] = []
        self.options: list[dict[str, Any]] = []
        self.waiting: list[asyncio.Future[PublishReceipt]] = []
        self.settled: list[Any] = []
        self.recorded: list[Any] = []
        self.seen: list[Any] = []
        self.results: list[bool] = []
        self.changed: list[str] = []
        self.subscriptions = self
        self.ledger = SimpleNamespace(deliveries=SimpleNamespace(settle=self.settle), record=self.record)
        self.settings: dict[str, Any] = {}

    def broker(self, name: str) -> FakeUpstream:
        if name != "b":
            raise NoSuchBroker(f"no broker {name!r}")
        return self.upstream

    def publish(self, exchange: str, key: str, message: Message, **options: Any) -> asyncio.Future[PublishReceipt]:
        future: asyncio.Future[PublishReceipt] = asyncio.get_running_loop().create_future()
        self.sent.append((exchange, key, (message.properties.headers or {})["x-gateway"]))
        self.options.append(options)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, PublishReceipt):
            future.set_result(outcome)
        elif outcome is not None:
            future.set_exception(outcome)
        else:
            self.waiting.append(future)
        return future

    async def settle(self, settlements: Sequence[Any]) -> list[bool]:
        self.settled += settlements
        return self.results

    async def record(self, entries: Sequence[Any], rows: Sequence[Any]) -> None:
        assert entries
        self.recorded += entries
        self.seen += rows

    async def get(self, name: str) -> Any:
        if name not in self.settings:
            raise NoSuchSubscription(name)
        return SimpleNamespace(settings=self.settings[name])

    def deliveries_changed(self, name: str) -> None:
        self.changed.append(name)

    def job(self, **target: Any) -> Job:
        source = ReplaySource(deliveries=DeliveriesSource())
        return Job(id="r1", client="me", request=ReplayRequest(source=source, target=ReplayTarget(**target)))

    def target(self, **target: Any) -> BrokerTarget:
        gateway: Any = self
        return BrokerTarget(gateway, self.job(**target))


SHOP = ReplayPlace("b", "shop", "k")


def item(number: int = 0, place: ReplayPlace | None = SHOP) -> ReplayItem:
    found = ReplayItem(f"key {number}", bytes([number] * 16), Message(b"%d" % number), place)
    found.named("r1", 0)
    return found


def row(subscription: str = "s", *, dead: bool = True, attempt: int = 0) -> Any:
    about = {"subscription": subscription, "dead": dead, "attempt": attempt}
    return SimpleNamespace(id=b"r" * 16, message_id=b"m" * 16, size=3, **about)


@pytest.mark.parametrize(
    ("error", "tries", "in_doubt"),
    [
        (Unroutable("nobody"), 2, False),
        (AccessRefused(403, "no"), 2, False),
        (PublishRefused("full"), 5, False),
        (OutcomeUnknown("no confirm"), 5, True),
        (NotFound(404, "no exchange"), 1, False),
        (LimitExceeded("too large", "message_max"), 1, False),
    ],
)
async def test_how_often_a_message_is_sent_that_is_refused(error: GatewayError, tries: int, in_doubt: bool) -> None:
    found = item()
    gateway = Brokers(*[error] * tries)
    target = gateway.target()
    for _ in range(tries - 1):
        assert await target.send([found]) == [found]
        assert (found.error, found.resent) == (None, in_doubt)
    assert await target.send([found]) == []
    assert found.error is error
    assert found.resent is in_doubt
    assert len(gateway.sent) == tries
    assert ["resent" in entries for _, _, entries in gateway.sent] == [False, *[in_doubt] * (tries - 1)]


async def test_what_nobody_takes_is_refused() -> None:
    found = item()
    target = Brokers(*[PublishReceipt(False, 312, "NO_ROUTE")] * 2).target()
    assert await target.send([found]) == [found]
    assert await target.send([found]) == []
    assert str(found.error) == "no queue takes 'k' at 'shop': NO_ROUTE"


async def test_what_was_sent_more_than_once_stays_in_doubt() -> None:
    """By the broker's word, by an error that says so, or from before."""
    refused = PublishRefused("full")
    refused.resent = True
    found = [item(number) for number in range(4)]
    found[2].resent = True
    gateway = Brokers(PublishReceipt(True, resent=True), refused, ROUTED, ROUTED)
    assert await gateway.target().send(found) == [found[1]]
    assert [each.resent for each in found] == [True, True, True, False]
    gateway = Brokers(PublishRefused("full"))
    assert await gateway.target().send([found[1]]) == [found[1]]
    assert found[1].resent


async def test_a_copy_is_marked() -> None:
    found = item()
    found.is_copy = True
    gateway = Brokers(ROUTED)
    assert await gateway.target().send([found]) == []
    ((_, _, entries),) = gateway.sent
    assert entries == {"id": found.text, "replay": "r1", "replay_of": id_text(bytes(16)), "resent": "1"}
    assert gateway.options == [{"timeout": 60.0, "order": "replay r1"}]


async def test_a_broker_that_is_away_is_waited_for_once_it_takes_nothing() -> None:
    away = BrokerUnavailable("away")
    found = [item(number) for number in range(3)]
    with pytest.raises(Later, match="away"):
        await Brokers(away, away, away).target().send(found)
    assert await Brokers(ROUTED, away, away).target().send(found) == found[1:]
    assert await Brokers(away, ROUTED, PublishRefused("full")).target().send(found) == [found[0], found[2]]


async def test_what_cannot_go_anywhere_does_not_hold_up_the_rest() -> None:
    found = [
        item(0),
        item(1, None),
        item(2, ReplayPlace("gone", "shop", "k")),
        item(3, ReplayPlace("b", "shop", "k", unsure=True)),
    ]
    with pytest.raises(Later):
        await Brokers(BrokerUnavailable("away")).target().send(found)
    gateway = Brokers(ROUTED)
    assert await gateway.target().send(found) == []
    assert [type(each.error) for each in found] == [type(None), Unsupported, NoSuchBroker, Unsupported]
    assert found[0].to == ReplayPlace("b", "shop", "k")
    assert len(gateway.sent) == 1


async def test_nothing_waits_at_the_broker_for_one_that_is_given_up() -> None:
    gateway = Brokers(None, None)
    sending = asyncio.create_task(gateway.target().send([item(0), item(1)]))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    assert [future.cancelled() for future in gateway.waiting] == [True, True]


@pytest.mark.parametrize(
    ("target", "went"),
    [
        ({"broker": "b", "exchange": "shop"}, ("shop", "last")),
        ({"broker": "b", "exchange": "shop", "routing_key": "new"}, ("shop", "new")),
        ({"broker": "b", "exchange": "", "routing_key": "orders"}, ("", "orders")),
        ({"broker": "b", "exchange": ""}, None),
        ({"broker": "b", "routing_key": "orders"}, None),
        ({"exchange": "shop", "routing_key": "orders"}, None),
    ],
)
async def test_one_that_does_not_say_where_it_came_from(target: dict[str, str], went: tuple[str, str] | None) -> None:
    """It goes where the target says all that is missing; the routing key is the one that it had last."""
    found = item(0, None)
    found.routing_key = "last"
    gateway = Brokers(ROUTED)
    assert await gateway.target(**target).send([found]) == []
    assert [each[:2] for each in gateway.sent] == ([] if went is None else [went])
    assert isinstance(found.error, Unsupported if went is None else type(None))


async def test_the_broker_of_a_queue_is_asked_for_the_exchange() -> None:
    gateway = Brokers()
    job = gateway.job(exchange="nowhere")
    source = ReplaySource(queue=QueueSource(broker="b", queue="q"))
    job.request = ReplayRequest(source=source, target=job.request.target)
    upstream: Any = gateway
    with pytest.raises(NotFound, match="'nowhere' is not there on broker 'b'"):
        await BrokerTarget(upstream, job).check()
    with pytest.raises(NoSuchBroker):
        await gateway.target(broker="other").check()
    with pytest.raises(NoSuchBroker):
        await gateway.target(broker="other", exchange="e").check()
    await gateway.target(exchange="nowhere").check()  # of which broker only the messages say


async def test_what_is_written_down() -> None:
    """In one commit for the pending ones, in one for the others; never an empty one."""
    found = [item(number) for number in range(4)]
    for each in found:
        each.to = each.place
        each.sha256 = b"s" * 32
    found[0].row, found[1].row = row(), row(dead=False)
    delivery: Any = object()
    found[2].delivery = delivery
    found[3].is_copy = True
    gateway = Brokers()
    target = gateway.target()
    await target.record(found[:1])
    assert (gateway.recorded, gateway.seen) == ([], [])
    ((settled,), gateway.settled) = (gateway.settled, [])
    assert (settled.id, settled.ending, settled.octets) == (b"r" * 16, Ending.DONE, 3)
    assert [entry.kind for entry in settled.entries] == [EventKind.CONFIRMED, EventKind.REPLAYED]
    await target.record(found[1:])
    assert gateway.settled == []
    kinds = [entry.kind for entry in gateway.recorded]
    sent = [EventKind.CONFIRMED, EventKind.REPLAYED]
    assert kinds == [*sent, *sent, EventKind.RESENT, *sent], "what is remembered shares the fate of the last"
    assert [entry.detail.get("resent") for entry in gateway.recorded if entry.kind is EventKind.REPLAYED] == [
        None, None, True,
    ]  # fmt: skip
    assert [(seen.scope, seen.key) for seen in gateway.seen] == [
        ("replay:r1", "key 1"), ("replay:r1", "key 2"), (ANY_REPLAY, "key 2"), ("replay:r1", "key 3"),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [SubscriptionTarget, PurgeTarget])
async def test_one_that_is_not_dead_any_more_is_named(kind: type[SubscriptionTarget]) -> None:
    gateway = Brokers()
    gateway.results = [True, False, True]
    found = [item(number) for number in range(3)]
    for each, name in zip(found, ("s", "s", "t"), strict=True):
        each.row = row(name)
    anything: Any = gateway
    target = kind(anything, gateway.job())
    assert await target.send(found) == []
    await target.record(found)
    assert [type(each.error) for each in found] == [type(None), StateError, type(None)]
    assert sorted(gateway.changed) == ["s", "t"], "whoever waits for them hears of it"
    assert len(gateway.settled) == 3
    assert await target.signed() is None
    assert target.refuses(None) is None


async def test_a_pulled_one_may_be_handed_out_once_more() -> None:
    """Also where its deliveries are used up; of a subscription that is pushed, or gone, attempts count on."""
    gateway = Brokers()
    gateway.settings = {
        name: SimpleNamespace(push=push, max_deliveries=most)
        for name, push, most in (("five", None, 5), ("one", None, 1), ("any", None, 0), ("pushed", "hook", 5))
    }
    rows = [
        row(name, attempt=attempt)
        for name, attempt in (
            ("gone", 9), ("five", 7), ("five", 5), ("five", 2), ("one", 3), ("any", 9), ("pushed", 9), ("lost", 9),
        )
    ]  # fmt: skip
    anything: Any = gateway
    found = await revivals(anything, rows, 0, {"replay": "r1"})
    assert [each.attempt for each in found] == [None, 4, 4, 2, 0, None, None, None]
    assert {each.ending for each in found} == {Ending.REVIVE}
    assert [each.entries[0].detail for each in found] == [
        {"subscription": each.subscription, "replay": "r1"} for each in rows
    ]
