"""Bridges between real brokers: what only they can show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.config import BrokerSettings
from gateway.errors import GatewayError
from gateway.upstreams import Upstream
from gateway.versions import VERSION_NAMES
from tests.bridges.conftest import Estate, entry, until
from tests.bridges.points import POINTS, Hold, branches, crash, prepared, until_async
from tests.servers import BrokerJ, RabbitMQ, RabbitMQ310, serving

pytestmark = pytest.mark.broker


class Real(Estate):
    """An estate between two brokers that run elsewhere."""

    def __init__(self, path: Path, old: str, new: str, name: Callable[[str], str]) -> None:
        super().__init__(path)
        self._urls = {"old": old, "new": new}
        self.source, self.target = name("in"), name("out")

    def upstream(self, name: str, version: str, **options: Any) -> Upstream:
        return Upstream(name, BrokerSettings(url=self._urls[name], **options))

    async def begin(self) -> Real:
        await self.open_gateway({"old": "", "new": ""})
        await self.old.declare_queue(self.source)
        await self.new.declare_queue(self.target)
        return self

    async def bridge(self, name: str = "b", **settings: Any) -> Any:
        return await super().bridge(
            name,
            **{
                "source": {"broker": "old", "queue": self.source},
                "target": {"broker": "new", "routing_key": self.target},
                "dead_letter": {"broker": "old", "routing_key": f"{self.source}.dead"},
                **settings,
            },
        )

    async def end(self) -> None:
        await self.bridges.close(1.0)
        for upstream, queue in ((self.old, self.source), (self.new, self.target), (self.old, f"{self.source}.dead")):
            try:
                await upstream.delete_queue(queue)
            except GatewayError:
                pass  # a test that failed may have lost it
        await self.close()


@pytest.fixture
async def real(
    tmp_path: Path,
    rabbitmq: RabbitMQ,
    rabbitmq310: RabbitMQ310,
    brokerj: BrokerJ,
    unique_name: Callable[[str], str],
    request: pytest.FixtureRequest,
) -> AsyncIterator[Real]:
    """Between two brokers, named as ``("rabbitmq", "0-8")``; Broker-J's virtual host on a disk, or that in memory."""
    servers = {
        "rabbitmq": rabbitmq.url,
        "rabbitmq-3.10": rabbitmq310.url,
        "brokerj": brokerj.url,
        "brokerj-memory": lambda version: brokerj.url(version, "memory"),
    }
    old, new = (servers[serving(kind, version)](version) for kind, version in request.param)
    real = Real(tmp_path, old, new, unique_name)
    yield await real.begin()
    await real.end()


RABBITMQ, BROKERJ = "rabbitmq", "brokerj"
PAIRS = [
    ((RABBITMQ, "0-9-1"), (RABBITMQ, "0-9-1")),
    ((RABBITMQ, "0-8"), (BROKERJ, "0-10")),
    ((BROKERJ, "0-10"), (RABBITMQ, "0-9-1")),
    ((BROKERJ, "0-9-1"), (RABBITMQ, "0-8")),
]


@pytest.mark.parametrize("real", PAIRS, indirect=True, ids=lambda pair: "-".join(map(" ".join, pair)))
async def test_in_order_and_once(real: Real) -> None:
    await real.fill(300, real.source)
    await real.bridge(prefetch=50)
    await real.fill(300, real.source)
    await real.wait_for(forwarded=600, in_flight=0, state="running")
    came = await real.take(600, real.target)
    assert [int(delivery.message.body) for delivery in came] == list(range(1, 601))
    assert (await real.wait_for(source_messages=0)).resent == 0


@pytest.mark.parametrize("acknowledge", ["on-confirm", "dtx"])
@pytest.mark.parametrize("real", [((RABBITMQ, "0-9-1"), (BROKERJ, "0-10"))], indirect=True, ids=[""])
async def test_transient_messages_among_persistent_ones_keep_their_place(real: Real, acknowledge: str) -> None:
    """Broker-J would let them overtake where it writes the others to a disk."""
    for number in range(200):
        message = Message(b"%d" % number, Properties(delivery_mode=1 if number % 2 else 2))
        assert (await real.old.publish("", real.source, message)).routed
    await real.bridge(prefetch=50, acknowledge=acknowledge)
    await real.wait_for(forwarded=200, in_flight=0)
    came = await real.take(200, real.target)
    assert [int(delivery.message.body) for delivery in came] == list(range(200))


@pytest.mark.parametrize(
    "real",
    [(source, (BROKERJ, "0-10")) for source in ((RABBITMQ, "0-9-1"), ("brokerj-memory", "0-10"))],
    indirect=True,
    ids=lambda pair: pair[0][0],
)
async def test_empty_arrays_come_to_a_disk(real: Real) -> None:
    """Broker-J ends the session over one that it is to store, and keeps one in memory."""
    headers = {"a": [], "b": [1, [], {"c": []}], "d": {}}
    for number in range(5):
        message = Message(b"%d" % number, Properties(delivery_mode=2, headers=headers))
        assert (await real.old.publish("", real.source, message)).routed
    await real.bridge()
    await real.wait_for(forwarded=5, in_flight=0, state="running")
    for number, delivery in enumerate(await real.take(5, real.target)):
        assert int(delivery.message.body) == number
        found = delivery.message.properties.headers
        assert found is not None
        assert {name: found[name] for name in headers} == headers


@pytest.mark.parametrize("real", PAIRS, indirect=True, ids=lambda pair: "-".join(map(" ".join, pair)))
async def test_a_pause_gives_back_what_was_not_forwarded(real: Real) -> None:
    await real.bridge(prefetch=50, messages_per_second=200)
    await real.fill(100, real.source)
    await real.wait_for(forwarded=lambda count: count >= 10)
    status = await real.bridges.pause("b")
    assert status.in_flight == 0
    await real.bridges.resume("b")
    await real.wait_for(forwarded=100, in_flight=0)
    came = await real.take(100, real.target)
    assert [int(delivery.message.body) for delivery in came] == list(range(1, 101))


@pytest.mark.parametrize("real", PAIRS[:3], indirect=True, ids=lambda pair: "-".join(map(" ".join, pair)))
async def test_an_unknown_exchange_and_a_key_that_nobody_wants(real: Real, unique_name: Callable[[str], str]) -> None:
    exchange = unique_name("later")
    await real.bridge(target={"broker": "new", "exchange": exchange, "routing_key": "{header:to}"})
    await real.fill(5, real.source, headers={"to": "a"})
    await real.wait_for(state="error", reason=lambda text: exchange in text)
    await real.new.declare_exchange(exchange, "direct")
    await real.new.bind_queue(real.target, exchange, "a")
    await real.wait_for(forwarded=5, in_flight=0, state="running")
    await real.old.declare_queue(f"{real.source}.dead")
    await real.fill(2, real.source, headers={"to": "nobody"})
    await real.fill(5, real.source, headers={"to": "a"})
    await real.wait_for(forwarded=10, dead_lettered=2, in_flight=0, state="running")
    letters = await real.take(2, f"{real.source}.dead", "old")
    assert all("nobody" in entry(letter)["reason"] for letter in letters)
    assert len(await real.take(10, real.target)) == 10
    await real.new.delete_exchange(exchange)


@pytest.mark.parametrize(
    "real",
    [((BROKERJ, version), (RABBITMQ, "0-9-1")) for version in VERSION_NAMES],
    indirect=True,
    ids=lambda pair: " ".join(pair[0]),
)
async def test_a_mirror_leaves_the_messages_where_they_are(real: Real) -> None:
    await real.fill(60, real.source)
    await real.bridge(mode="mirror", prefetch=25)
    await real.wait_for(forwarded=60, in_flight=0)
    await real.fill(10, real.source)
    await real.wait_for(forwarded=70, in_flight=0)
    await real.bridges.pause("b")
    await real.bridges.resume("b")
    await real.wait_for(duplicates_dropped=70, in_flight=0)
    await real.bridges.pause("b")
    came = await real.take(70, real.target)
    assert [int(delivery.message.body) for delivery in came] == list(range(1, 71))
    left = await real.take(70, real.source, "old")
    assert [int(delivery.message.body) for delivery in left] == list(range(1, 71))


@pytest.mark.parametrize("real", [((RABBITMQ, "0-9-1"), (BROKERJ, "0-10"))], indirect=True, ids=["closed"])
async def test_connections_that_are_cut(real: Real, rabbitmq: RabbitMQ) -> None:
    await real.bridge(prefetch=100, messages_per_second=2_000)
    sending = asyncio.ensure_future(real.fill(1_000, real.source))
    await sending
    await real.wait_for(forwarded=lambda count: count >= 200)
    link = real.old._keepers["consume"].link
    assert link is not None
    assert link.stream is not None
    link.stream.abort()
    status = await real.wait_for(forwarded=lambda count: count >= 1_000, in_flight=0, source_messages=0, within=20.0)
    came = await real.new.fetch(real.target, 5_000, 1.0)
    bodies = [int(delivery.message.body) for delivery in came]
    assert set(bodies) == set(range(1, 1_001))
    assert len(bodies) - 1_000 <= status.resent <= 100


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("real", [((RABBITMQ, "0-9-1"), (BROKERJ, "0-10"))], indirect=True)
async def test_neither_gap_nor_duplicate(real: Real, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """The process ends at each point of mode ``dtx``."""
    owner, name, where, status, in_doubt = POINTS[point]
    ids = await real.fill(12, real.source)
    before = await prepared(real)
    hold = Hold()
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, where(getattr(owner, name), hold))
        await real.bridge(acknowledge="dtx")
        await until(lambda: hold.reached)
        assert await branches(real) == [status]
        assert await prepared(real) - before == in_doubt
        await crash(real)
    await real.open_gateway({"old": "", "new": ""})
    await real.wait_for(state="running")

    async def done() -> bool:
        return await real.depth(real.source) == 0 and (await real.status()).in_flight == 0

    await until_async(done, 30.0)
    found = await real.take(12, real.target)
    assert [entry(delivery)["origin"] for delivery in found] == [f"old/{id}" for id in ids]
    assert await prepared(real) == before


@pytest.mark.parametrize(
    ("real", "carried"),
    [(PAIRS[0], False), (PAIRS[1], True)],
    indirect=["real"],
    ids=["to 0-9-1", "to 0-10"],
)
async def test_a_dead_letter_that_no_frame_holds_any_more(real: Real, carried: bool) -> None:
    """RabbitMQ has added ``x-death``, and sends the header in a frame over ``frame_max``, but takes none of that size.
    A target without room for it does not get it: it is dead-lettered without what RabbitMQ has added. 0-10 has room."""
    origin, dead = f"{real.source}.origin", f"{real.source}.dead"
    await real.old.declare_queue(dead)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": real.source}
    await real.old.declare_queue(origin, arguments=arguments)
    large = {"h": "x" * 130_930}
    await real.old.publish("", origin, Message(b"large", Properties(headers=large)))
    (delivery,) = await real.old.fetch(origin, 1, 5.0)
    delivery.settle(Settlement.REJECT)
    async with asyncio.timeout(10):
        while not (await real.old.query_queue(real.source)).message_count:
            await asyncio.sleep(0.05)
    await real.old.delete_queue(origin)
    await real.fill(10, real.source)
    await real.bridge()
    await real.wait_for(forwarded=10 + carried, dead_lettered=int(not carried), in_flight=0, state="running")
    came = [delivery.message.body for delivery in await real.take(10 + carried, real.target)]
    assert came == [*[b"large"] * carried, *(b"%d" % number for number in range(1, 11))]
    if not carried:
        (letter,) = await real.take(1, dead, "old")
        assert letter.message.body == b"large"
        assert letter.message.properties.headers == large
