"""A queue as it was when its replay began: what is taken of it, what is known again, and what goes back."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.errors import GatewayError, LimitExceeded, Unsupported
from gateway.replays import queues
from gateway.replays.items import ReplayItem
from gateway.replays.places import ReplayPlace
from gateway.replays.queues import QueueSnapshot, sample, told_by_delivery
from gateway.replays.requests import QueueSource
from gateway.session import Capabilities
from tests.core.fakes import FakeQueue, FakeUpstream


class Grave:
    """A queue of a broker, and a gateway whose ledger knows nothing."""

    def __init__(self, *names: str) -> None:
        """``names``: ids of the messages; "": a message has none, and all of these are equal."""
        self.upstream = FakeUpstream("b")
        self.upstream.queues["dead"] = FakeQueue()
        self.made = 0
        self.put(*names)
        self.looked: list[str] = []
        self.upstream.check_give_back = self.check  # type: ignore[method-assign]

    def put(self, *names: str, redelivered: bool = False) -> None:
        for name in names:
            properties = Properties(message_id=name or None)
            message = Message(name.encode(), properties)
            self.upstream.queues["dead"].ready.append((message, "dlx", "k", redelivered))

    async def check(self, queue: str) -> None:
        self.looked.append(queue)

    def ids(self) -> bytes:
        self.made += 1
        return self.made.to_bytes(16, "big")

    @property
    def gateway(self) -> Any:
        async def timeline(message_id: bytes) -> None:
            return None

        ledger = SimpleNamespace(timeline=timeline)
        return SimpleNamespace(broker=lambda name: self.upstream, ledger=ledger, ids=self.ids)

    def snapshot(self, limit: int | None = None) -> QueueSnapshot:
        return QueueSnapshot(self.gateway, QueueSource(broker="b", queue="dead", limit=limit), "r1")

    @property
    def ready(self) -> list[tuple[str, bool]]:
        """Bodies that are in the queue, and whether each is marked as redelivered."""
        return [(item[0].body.decode(), item[3]) for item in self.upstream.queues["dead"].ready]

    def settled(self, settlement: Settlement) -> list[bytes]:
        return [body for each, body in self.upstream.settled if each is settlement]


def bodies(items: list[ReplayItem]) -> list[str]:
    return [item.message.body.decode() for item in items]


async def names(grave: Grave) -> list[str]:
    """What the messages of the queue are known by; they stay there."""
    snapshot = grave.snapshot()
    deliveries = await grave.upstream.fetch("dead", 100)
    found = [(await snapshot.item(delivery)).name for delivery in deliveries]
    for delivery in reversed(deliveries):
        delivery.settle(Settlement.RELEASE)
    grave.upstream.settled.clear()
    return found


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "FETCH_WAIT", 0.001)


async def test_it_is_walked_through_until_so_many_were_taken() -> None:
    grave = Grave("a", "b", "c", "d")
    snapshot = grave.snapshot(limit=3)
    assert await grave.snapshot().total() == (4, True)
    assert await snapshot.total() == (3, True)
    chunk = await snapshot.take(snapshot.begin(3), 2, Counter())
    assert (bodies(chunk.items), chunk.position, chunk.last) == (["a", "b"], "1", False)
    chunk = await snapshot.take(chunk.position, 2, Counter())
    assert (bodies(chunk.items), chunk.position, chunk.last) == (["c"], "0", True)
    fetches = grave.upstream.fetches
    chunk = await snapshot.take(chunk.position, 2, Counter())
    assert (chunk.items, chunk.position, chunk.last) == ([], "0", True)
    assert grave.upstream.fetches == fetches, "nothing is missing any more"


async def test_a_queue_that_has_nothing_left_ends_it() -> None:
    grave = Grave("a")
    snapshot = grave.snapshot()
    chunk = await snapshot.take("3", 5, Counter())
    assert (bodies(chunk.items), chunk.position, chunk.last) == (["a"], "2", False)
    fetches = grave.upstream.fetches
    chunk = await snapshot.take("2", 5, Counter())
    assert (chunk.items, chunk.position, chunk.last) == ([], "2", True)
    assert grave.upstream.fetches == fetches + 1, "its depth says that nothing is there"


async def test_a_depth_that_counts_what_is_held_is_no_reason_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    grave = Grave("a", "b")
    snapshot = grave.snapshot()
    await snapshot.take("5", 5, Counter())
    query = grave.upstream.query_queue
    depth = 2

    async def asked(queue: str) -> Any:
        await query(queue)
        return SimpleNamespace(message_count=depth)

    monkeypatch.setattr(grave.upstream, "query_queue", asked)
    fetches = grave.upstream.fetches
    await snapshot.take("3", 5, Counter())
    assert grave.upstream.fetches == fetches + 1
    depth = 3
    await snapshot.take("3", 5, Counter())
    assert grave.upstream.fetches == fetches + 1 + queues.FETCHES


async def test_what_was_settled_is_not_held_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    grave = Grave("a", "b")
    snapshot = grave.snapshot()
    chunk = await snapshot.take("5", 5, Counter())
    assert await snapshot.passed(chunk.items) == []

    async def asked(queue: str) -> Any:
        return SimpleNamespace(message_count=2)

    monkeypatch.setattr(grave.upstream, "query_queue", asked)
    fetches = grave.upstream.fetches
    await snapshot.take("3", 5, Counter())
    assert grave.upstream.fetches == fetches + queues.FETCHES, "two are there, and others may hold them"


async def test_what_is_known_of_a_message() -> None:
    grave = Grave("a", "")
    snapshot = grave.snapshot()
    chunk = await snapshot.take("2", 5, Counter())
    named, nameless = chunk.items
    digest = sha256(b"a").digest()
    assert named.sha256 == digest
    assert (named.exchange, named.routing_key) == ("dlx", "k")
    assert named.key == named.name == f"b/a/{digest.hex()}@b/k"
    assert nameless.name.startswith("sha256:")
    assert named.original is not None
    assert (named.original.broker, named.original.sha256) == ("b", digest)
    assert named.id != nameless.id


async def test_what_was_taken_goes_back_in_order_where_it_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    grave = Grave("a", "b", "c")
    snapshot = grave.snapshot()
    item, read = snapshot.item, 0

    async def fails(delivery: Any) -> ReplayItem:
        nonlocal read
        read += 1
        if read == 3:
            raise Unsupported("away")
        return await item(delivery)

    monkeypatch.setattr(snapshot, "item", fails)
    with pytest.raises(Unsupported):
        await snapshot.take("3", 5, Counter())
    assert grave.ready == [("a", True), ("b", True), ("c", True)]
    assert grave.settled(Settlement.RELEASE) == [b"c", b"b", b"a"]


async def test_what_was_counted_as_sent_is_only_settled() -> None:
    """Where its broker says that it was delivered before; as often as it was counted."""
    grave = Grave()
    grave.put("a", "b", redelivered=True)
    grave.put("a")
    a, b, _ = await names(grave)
    grave.upstream.queues["dead"].ready.clear()
    grave.put("a", "a", "b", redelivered=True)
    grave.put("a")
    snapshot = grave.snapshot()
    chunk = await snapshot.take("2", 9, Counter({a: 1, b: 1}))
    assert (bodies(chunk.items), chunk.position, chunk.last) == (["a"], "1", False)
    assert chunk.met == Counter({a: 1})
    assert grave.settled(Settlement.ACCEPT) == [b"a"]
    chunk = await snapshot.take("1", 9, Counter({a: 1, b: 1}))
    assert (chunk.items, chunk.met, chunk.last) == ([], Counter({b: 1}), False)
    chunk = await snapshot.take("1", 9, Counter({a: 1}))
    assert bodies(chunk.items) == ["a"], "it was not delivered before"
    assert (chunk.position, chunk.last, chunk.items[0].counted) == ("0", True, False)


async def test_one_that_is_settled_in_vain_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    grave = Grave()
    grave.put("a", redelivered=True)
    (a,) = await names(grave)
    snapshot = grave.snapshot()
    fetch = grave.upstream.fetch

    async def lost(*arguments: Any) -> Any:
        found = await fetch(*arguments)
        for each in found:
            each.lose()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(grave.upstream, "fetch", lost)
        chunk = await snapshot.take("0", 9, Counter({a: 1}))
    assert (chunk.items, chunk.met, chunk.last) == ([], Counter(), False)
    chunk = await snapshot.take("0", 9, Counter({a: 1}))
    assert (chunk.items, chunk.met, chunk.last) == ([], Counter({a: 1}), True)
    assert grave.ready == []


async def test_of_equal_ones_any_may_be_the_one_that_was_sent() -> None:
    grave = Grave()
    grave.put("", "", "", redelivered=True)
    name = (await names(grave))[0]
    snapshot = grave.snapshot()
    chunk = await snapshot.take("3", 9, Counter({name: 2}))
    assert [(item.counted, item.resent) for item in chunk.items] == [(True, True), (True, True), (False, False)]
    assert (chunk.met, chunk.position, chunk.last) == (Counter({name: 2}), "2", False)
    assert len({item.key for item in chunk.items}) == 3
    assert snapshot.left(chunk.items, "3") == (True, "2"), "those that were counted are not counted again"


async def test_what_came_after_the_beginning_goes_back() -> None:
    grave = Grave()
    grave.put("a", redelivered=True)
    (a,) = await names(grave)
    grave.upstream.queues["dead"].ready.clear()
    grave.put("new", "a", redelivered=True)
    chunk = await grave.snapshot().take("0", 9, Counter({a: 2}))
    assert (chunk.items, chunk.position, chunk.last) == ([], "0", True)
    assert sorted(grave.ready) == [("a", True), ("new", True)]


async def test_what_the_replay_put_there_itself_goes_back_with_all_behind_it() -> None:
    grave = Grave("a")
    ours = Message(b"ours", Properties(headers={"x-gateway": {"replay": "r1"}}))
    other = Message(b"other", Properties(headers={"x-gateway": {"replay": "r2"}}))
    for message in (other, ours):
        grave.upstream.queues["dead"].ready.append((message, "dlx", "k", False))
    grave.put("b")
    chunk = await grave.snapshot().take("9", 9, Counter())
    assert (bodies(chunk.items), chunk.position, chunk.last) == (["a", "other"], "0", True)
    assert {body for body, _ in grave.ready} == {"ours", "b"}


async def test_how_far_it_came_before_work_ended() -> None:
    snapshot = Grave().snapshot()
    assert await snapshot.landed(["a", "b"], ["a"], "5") == (["a"], "4")
    assert await snapshot.landed(["a", "b"], ["a", "b"], "1") == (["a", "b"], "0")
    assert await snapshot.landed(["a"], ["a"], "") == (["a"], "0")
    assert await snapshot.landed(["a"], [], "") == ([], "0")
    names = Counter({"a": 1})
    assert snapshot.ahead(names, SimpleNamespace(position="0")) == names  # type: ignore[arg-type]


async def test_what_is_safe_elsewhere_is_taken_off() -> None:
    grave = Grave("a", "b")
    snapshot = grave.snapshot()
    chunk = await snapshot.take("2", 9, Counter())
    first, second = chunk.items
    grave.upstream.out[1].lose()
    bare = ReplayItem("key", bytes(16), Message(), None)
    assert await snapshot.passed([first, second, bare]) == [second]
    assert grave.settled(Settlement.ACCEPT) == [b"a"]
    await snapshot.close()
    assert grave.settled(Settlement.RELEASE) == []


async def test_what_is_refused_is_held_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "HELD_MAX", 2)
    grave = Grave("a", "b", "c", "d")
    snapshot = grave.snapshot()
    chunk = await snapshot.take("4", 9, Counter())
    await snapshot.refused(chunk.items[:2])
    assert grave.ready == []
    with pytest.raises(LimitExceeded, match="more than 2 messages were refused; they are back in the queue 'dead'"):
        await snapshot.refused(chunk.items[2:3])
    await snapshot.close()
    assert [body for body, _ in grave.ready] == ["a", "b", "c", "d"]
    await snapshot.close()
    assert len(grave.settled(Settlement.RELEASE)) == 4


async def test_a_survey_leaves_everything_where_it_is() -> None:
    def refuses(place: ReplayPlace | None) -> GatewayError | None:
        return Unsupported("no target")

    grave = Grave("a", "b", "c")
    found = await grave.snapshot().survey(2, lambda place: None)
    assert (found.count, bodies(found.items)) == (3, ["a", "b"])
    assert grave.ready == [("a", True), ("b", True), ("c", False)]
    assert grave.looked == ["dead"], "to look could cost a message"
    found = await grave.snapshot(limit=1).survey(2, refuses)
    assert (found.count, len(found.refusals), dict(found.refused)) == (0, 1, {"unsupported": 1})
    assert [body for body, _ in grave.ready] == ["a", "b", "c"]


async def test_a_survey_of_a_queue_that_grows_counts_no_less_than_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    grave = Grave("a", "b")

    async def one(queue: str) -> Any:
        return SimpleNamespace(message_count=1)

    monkeypatch.setattr(grave.upstream, "query_queue", one)
    found = await grave.snapshot().survey(5, lambda place: Unsupported("no target"))
    assert (found.count, len(found.refusals)) == (0, 2)


@pytest.mark.parametrize(("limit", "most", "count"), [(None, 2, 2), (1, 2, 1), (3, 2, 2), (None, 9, 3)])
async def test_a_sample_is_no_larger_than_the_limit(limit: int | None, most: int, count: int) -> None:
    grave = Grave("a", "b", "c")
    found = await sample(grave.gateway, QueueSource(broker="b", queue="dead", limit=limit), most)
    assert len(found) == count
    assert [body for body, _ in grave.ready] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("product", "exchange", "key", "is_told"),
    [
        ("qpid", "shop", "k", True),
        ("", "shop", "dead", True),
        ("qpid", "", "k", True),
        ("qpid", "", "dead", False),
        ("RabbitMQ", "dlx", "k", False),
        ("AMQP Gateway", "dlx", "k", False),
    ],
)
def test_what_a_delivery_says_of_its_origin(product: str, exchange: str, key: str, is_told: bool) -> None:
    delivery: Any = SimpleNamespace(exchange=exchange, routing_key=key, queue="dead")
    place = ReplayPlace("b", exchange, key) if is_told else None
    assert told_by_delivery(delivery, "b", Capabilities(product=product)) == place


def test_a_broker_of_which_nothing_is_known_yet() -> None:
    delivery: Any = SimpleNamespace(exchange="shop", routing_key="k", queue="dead")
    assert told_by_delivery(delivery, "b", None) == ReplayPlace("b", "shop", "k")
