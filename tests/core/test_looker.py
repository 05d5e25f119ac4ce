"""Looking into queues of a broker that shows messages, and taking and giving back where it does not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import Settlement
from gateway.core.sources import looking
from gateway.core.sources.looking import EMBEDDED, Look, Looker
from gateway.errors import NotFound, Overloaded, Unsupported
from gateway.management import ManagementProblem
from gateway.session import Capabilities
from gateway.upstreams import QueueInfo
from tests.core.fakes import FakeConsumer, FakeUpstream


class Inventory:
    """What the management of a broker says."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.found: Any = None
        self.embedded: set[str] = set()

    def is_embedded(self, name: str) -> bool:
        return name in self.embedded

    async def details(self, broker: str, queue: str) -> Any:
        self.asked.append((broker, queue))
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class Shows(FakeUpstream):
    """A broker that shows messages, and remembers how it was asked."""

    def __init__(self, name: str = "fake", *, browse: bool = True) -> None:
        super().__init__(name)
        self.capabilities = Capabilities(product="Fake", browse=browse)
        self.options: list[tuple[int, dict[str, Any]]] = []

    async def consume(self, queue: str, prefetch: int, on_delivery: Any, **options: Any) -> FakeConsumer:
        self.options.append((prefetch, options))
        return await super().consume(queue, prefetch, on_delivery, **options)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "IDLE_SECONDS", 0.03)
    monkeypatch.setattr(looking, "WITHIN_SECONDS", 5.0)


@pytest.fixture
def inventory() -> Inventory:
    return Inventory()


@pytest.fixture
def broker() -> Any:
    return Shows()


@pytest.fixture
def looker(inventory: Any, broker: Any) -> Looker:
    return Looker(inventory, {broker.name: broker})


async def put(broker: FakeUpstream, *sizes: int) -> None:
    await broker.declare_queue("q")
    for number, size in enumerate(sizes):
        broker.queues["q"].ready.append((Message(b"%d" % number * size), "e", f"k{number}", number == 1))


def sizes(look: Look) -> list[tuple[int, int]]:
    """How long each body is, and what is here of it."""
    return [(seen.size, len(seen.message.body)) for seen in look.messages]


# -------------------------------------------------------------------------------------------------------- browsing


@pytest.mark.parametrize(
    ("count", "limit", "seen", "is_complete"),
    [(0, 2, 0, True), (1, 2, 1, True), (2, 2, 2, True), (3, 2, 2, False), (9, 1, 1, False)],
)
async def test_the_first_messages_of_a_queue_are_seen(
    looker: Looker, broker: Any, count: int, limit: int, seen: int, is_complete: bool
) -> None:
    await put(broker, *[1] * count)
    look = await looker.browse(broker, "q", limit, 100)
    assert [(each.routing_key, each.message.body, each.redelivered) for each in look.messages] == [
        (f"k{number}", b"%d" % number, number == 1) for number in range(seen)
    ]
    assert look.is_complete is is_complete
    assert broker.consumers == []
    assert len(broker.settled) >= min(count, limit + 1)
    assert {settlement for settlement, _ in broker.settled} <= {Settlement.ACCEPT}, "a return would be counted"
    assert broker.options == [(limit + 1, {"acquired": False})]


async def test_no_more_bytes_are_read_than_may_be(looker: Looker, broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "READ_MAX", 10)
    for given, seen in (((6, 6, 6), 2), ((5, 5, 5), 2), ((10, 1), 1), ((4, 5), 2)):
        broker.queues.clear()
        await put(broker, *given)
        look = await looker.browse(broker, "q", 9, 100)
        assert (len(look.messages), look.read) == (seen, sum(given[:seen]))
        assert look.is_complete is (seen == len(given))


async def test_bodies_are_cut(looker: Looker, broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "SHOWN_MAX", 8)
    await put(broker, 3, 4, 3, 3)
    look = await looker.browse(broker, "q", 9, 3)
    assert sizes(look) == [(3, 3), (4, 3), (3, 2), (3, 0)]
    assert [seen.is_cut for seen in look.messages] == [False, True, True, True]
    assert (look.kept, look.read) == (8, 13)


@pytest.mark.parametrize(("position", "found"), [(1, b"0"), (2, b"11"), (3, b"222"), (4, None), (9, None)])
async def test_one_message_is_found_by_its_place(
    looker: Looker, broker: Any, position: int, found: bytes | None
) -> None:
    await put(broker, 1, 2, 3)
    seen = await looker.find(broker, "q", position)
    assert (seen and seen.message.body) == found
    if seen is not None:
        assert (seen.size, seen.routing_key, seen.redelivered) == (position, f"k{position - 1}", position == 2)
    assert broker.options[0][0] == position


async def test_a_message_is_looked_for_within_the_bytes(
    looker: Looker, broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "READ_MAX", 10)
    for first, expected in ((9, True), (10, False), (11, False)):
        broker.queues.clear()
        await put(broker, first, 1)
        assert (await looker.find(broker, "q", 2) is not None) is expected


async def test_a_queue_that_shows_nothing_has_no_more(
    looker: Looker, broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it was not given the time to."""
    await put(broker)
    assert (await looker.browse(broker, "q", 5, 100)).is_complete
    monkeypatch.setattr(looking, "IDLE_SECONDS", 5.0)
    monkeypatch.setattr(looking, "WITHIN_SECONDS", 0.03)
    assert not (await looker.browse(broker, "q", 5, 100)).is_complete


async def test_what_comes_late_is_waited_for(looker: Looker, broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "IDLE_SECONDS", 0.1)
    await put(broker)
    looks = asyncio.create_task(looker.browse(broker, "q", 5, 100))
    for number in range(3):
        await asyncio.sleep(0.06)
        broker.queues["q"].ready.append((Message(b"%d" % number), "", "k", False))
        broker.pump()
    assert [seen.message.body for seen in (await looks).messages] == [b"0", b"1", b"2"]


async def test_only_a_few_queues_are_looked_into_at_once(
    looker: Looker, broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "LOOKS_MAX", 2)
    await put(broker, 1)
    with pytest.raises(NotFound):
        await looker.browse(broker, "missing", 5, 100)
    looks = [asyncio.create_task(looker.browse(broker, "q", 5, 100)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="2 queues"):
        await looker.browse(broker, "q", 5, 100)
    await asyncio.gather(*looks)
    await looker.browse(broker, "q", 5, 100)


async def test_the_embedded_broker_is_looked_into_by_one_name(inventory: Inventory) -> None:
    """Not all of its versions have arguments of consumers."""
    named, other = Shows(EMBEDDED, browse=False), Shows("local-0-10", browse=False)
    inventory.embedded = {EMBEDDED, "local-0-10"}
    brokers: Any = {EMBEDDED: named, "local-0-10": other}
    given: Any = inventory
    await put(named, 1)
    look = await Looker(given, brokers).browse(brokers["local-0-10"], "q", 5, 100)
    assert len(look.messages) == 1
    assert named.options == [(6, {"arguments": {"x-filter-no-consume": True}})]
    assert other.options == []


# ---------------------------------------------------------------------------------------------------- what may be


def info(consumers: int = 0, auto_delete: bool | None = None) -> QueueInfo:
    return QueueInfo("q", 3, consumers, None, None, auto_delete)


@pytest.mark.parametrize(
    ("found", "declared", "details", "why", "asks"),
    [
        (info(1, True), True, None, "", False),
        (info(0, False), None, None, "", False),
        (info(0, True), False, None, "goes with its last consumer", False),
        (info(0, None), False, None, "", False),
        (info(0, None), True, None, "goes with its last consumer", False),
        (info(0, None), None, SimpleNamespace(row=SimpleNamespace(auto_delete=False)), "", True),
        (info(0, None), None, SimpleNamespace(row=SimpleNamespace(auto_delete=True)), "goes with its last", True),
        (info(0, None), None, None, "Set brokers.fake.management", True),
        (info(0, None), None, ManagementProblem("away"), "Set brokers.fake.management", True),
    ],
)
async def test_a_queue_is_not_looked_into_where_it_would_go(
    looker: Looker, inventory: Inventory, broker: Any, found: QueueInfo, declared: bool | None, details: Any, why: str,
    asks: bool,
) -> None:  # fmt: skip
    inventory.found = details
    said = await looker.why_not_browse(broker, found, declared)
    assert why in said
    assert bool(said) is bool(why)
    assert inventory.asked == ([("fake", "q")] if asks else [])


async def test_a_broker_that_cannot_show_messages_is_named(looker: Looker, inventory: Inventory) -> None:
    broker: Any = Shows(browse=False)
    assert "The broker fake (Fake) cannot show" in await looker.why_not_browse(broker, info(1), None)
    broker.capabilities = None
    assert "cannot show" in await looker.why_not_browse(broker, info(1), None)
    inventory.embedded = {"fake"}
    assert await looker.why_not_browse(broker, info(1), None) == ""


@pytest.mark.parametrize(
    ("browse", "details", "why"),
    [
        (True, None, "none need be taken"),
        (False, ManagementProblem("it is away"), "not known: it is away"),
        (False, None, "set brokers.fake.management"),
        (False, SimpleNamespace(return_risk="It has a limit."), "It has a limit."),
        (False, SimpleNamespace(return_risk=""), ""),
    ],
)
async def test_messages_are_taken_only_where_nothing_is_lost_by_it(
    looker: Looker, inventory: Inventory, browse: bool, details: Any, why: str
) -> None:
    broker: Any = Shows(browse=browse)
    inventory.found = details
    await put(broker, 1)
    said = await looker.why_not_take(broker, "q")
    assert why in said
    assert bool(said) is bool(why)
    if why:
        with pytest.raises(Unsupported, match="takes no message of the queue 'q'"):
            await looker.take_and_give_back(broker, "q", 5, 100)
    else:
        assert len((await looker.take_and_give_back(broker, "q", 5, 100)).messages) == 1


async def test_what_was_taken_goes_back_in_its_order(
    looker: Looker, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker: Any = Shows(browse=False)
    inventory.found = SimpleNamespace(return_risk="")
    await put(broker, 2, 3, 4)
    checked: list[str] = []

    async def check(queue: str) -> None:
        checked.append(queue)

    monkeypatch.setattr(broker, "check_give_back", check)
    for limit, seen, is_complete in ((2, 2, False), (3, 3, False), (4, 3, True)):
        look = await looker.take_and_give_back(broker, "q", limit, 3)
        assert (sizes(look), look.is_complete) == ([(2, 2), (3, 3), (4, 3)][:seen], is_complete)
        assert [item[1] for item in broker.queues["q"].ready] == ["e"] * 3
        assert [len(item[0].body) for item in broker.queues["q"].ready] == [2, 3, 4]
        assert not broker.out
    assert checked == ["q"] * 3
    assert {settlement for settlement, _ in broker.settled} == {Settlement.RELEASE}
    monkeypatch.setattr(looking, "READ_MAX", 9)
    assert not (await looker.take_and_give_back(broker, "q", 4, 3)).is_complete
    monkeypatch.setattr(looking, "READ_MAX", 10)
    assert (await looker.take_and_give_back(broker, "q", 4, 3)).is_complete
