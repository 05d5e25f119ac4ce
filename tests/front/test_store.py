"""``store = "when-down"``: publishes go to the ledger while the broker is away, and reach it in their order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    Confirmed,
    DeclareQueue,
    Get,
    Got,
    Operation,
    Publish,
    Refused,
    SelectConfirm,
    Settle,
    Settlement,
    TxSelect,
)
from gateway.broker.server import EmbeddedBroker
from gateway.config import BrokerSettings, EmbeddedSettings, FrontSettings, check_front
from gateway.core.publishing.publisher import Publication, PublishOutcome
from gateway.errors import BudgetExceeded, CommitUnknown, EncodeError, GatewayError, LedgerUnavailable, OutcomeUnknown
from gateway.front.server import Front
from gateway.front.store import GatewayLedger
from gateway.link import Channel, Link
from gateway.runtime.clock import clock
from gateway.upstreams.keeper import Dialer
from gateway.versions import VERSION_NAMES
from tests.front.fronts import ADMIN, LIMITED

LABEL = "front:test/guest"


@dataclass
class Ledger:
    """Keeps publishes in memory, until :meth:`send`."""

    kept: list[tuple[str, str, Publication]] = field(default_factory=list)
    since: float | None = None
    error: GatewayError | None = None
    room: int = 1 << 20
    """How many it takes."""
    bad: str = ""
    """A routing key whose publishes are refused."""
    puts: int = 0

    async def put(
        self, broker: str, exchange: str, messages: Sequence[Publication], client: str
    ) -> list[PublishOutcome]:
        assert broker == "upstream"
        self.puts += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        if len(self.kept) + len(messages) > self.room:
            raise BudgetExceeded("budget scheduled: enough")
        results = []
        for each in messages:
            is_bad = bool(self.bad) and each.routing_key == self.bad
            results.append(PublishOutcome("", EncodeError("it is bad") if is_bad else None))
            if not is_bad:
                self.kept.append((client, exchange, each))
        if self.kept and self.since is None:
            self.since = clock.now()
        return results

    async def oldest(self, broker: str, client: str) -> float | None:
        await asyncio.sleep(0)
        return self.since if self.kept else None

    def held_bytes(self, client: str) -> int:
        return sum(len(item.message.body) for kept, _, item in self.kept if kept == client)

    def records(self, front: str) -> None:
        """It keeps no timelines."""

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(item.message.body) for _, _, item in self.kept]


class Recorded(Channel):
    """A client's channel that keeps outcomes."""

    __slots__ = ("confirmed", "refused")

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self.confirmed: list[int] = []
        self.refused: list[Refused] = []

    def receive(self, operation: Operation) -> None:
        if isinstance(operation, Confirmed):
            self.confirmed += range(operation.first, operation.last + 1)
        elif isinstance(operation, Refused):
            self.refused.append(operation)
        super().receive(operation)

    def handle(self, operation: Operation) -> None:
        pass

    def publish(self, body: bytes, key: str = "q", **settings: Any) -> int:
        return self.send(Publish(self.number, "", key, Message(body), **settings))


class Estate:
    """A front that stores publishes, and a broker that comes and goes."""

    def __init__(self, version: str, **settings: Any) -> None:
        self.version = version
        self.ledger = Ledger()
        self.links: list[Link] = []
        self.settings = FrontSettings(
            **{"port": 0, "broker": "upstream", "users": (ADMIN, LIMITED), "store": "when-down", **settings}
        )
        self.broker: EmbeddedBroker
        self.front: Front

    async def start(self) -> None:
        self.broker = EmbeddedBroker(EmbeddedSettings(port=0))
        await self.broker.start()
        url = f"amqp://guest:guest@127.0.0.1:{self.broker.port}/?version={self.version}"
        upstream = BrokerSettings(url=url, reconnect_min=0.01, reconnect_max=0.02)
        self.front = Front("test", self.settings, {"upstream": upstream}, ledger=self.ledger)
        await self.front.start()

    async def stop(self) -> None:
        for link in self.links:
            await link.close()
        await self.front.stop()
        await self.broker.stop()

    async def channel(self, version: str = "0-9-1") -> Recorded:
        """A channel of a connection of its own."""
        url = f"amqp://guest:guest@127.0.0.1:{self.front.port}/?version={version}"
        link = await Dialer("client", BrokerSettings(url=url)).open("client")
        self.links.append(link)
        channel = link.channel(Recorded)
        await channel.open()
        return channel

    async def publisher(self, version: str = "0-9-1") -> Recorded:
        """A channel that has declared a durable queue ``q``, and hears of its publishes."""
        channel = await self.channel(version)
        await channel.request(DeclareQueue(channel.number, "q", durable=True))
        await channel.request(SelectConfirm(channel.number))
        return channel

    async def lose(self) -> None:
        """Have the broker away for the front, until :meth:`come_back`."""
        for link in self.front.pool.all():
            link.keeper.use(self._dialer(1))
        for served in list(self.broker._served):
            served.stream.abort()
        await until(lambda: not any(link.is_up for link in self.front.pool.all()))

    def come_back(self) -> None:
        """Have the broker there again."""
        for link in self.front.pool.all():
            link.keeper.use(self._dialer(self.broker.port))

    def _dialer(self, port: int) -> Dialer:
        url = f"amqp://guest:guest@127.0.0.1:{port}/?version={self.version}"
        return Dialer("upstream", BrokerSettings(url=url, reconnect_min=0.01, reconnect_max=0.02))

    def send(self) -> None:
        """Have the ledger be done with what it keeps."""
        self.ledger.kept, self.ledger.since = [], None

    def in_queue(self) -> list[bytes]:
        """What the front has brought to the queue itself."""
        queue = self.broker.broker.virtual_host("/").queues["q"]
        return [bytes(entry.envelope.message.body) for line in queue._lines for entry in line if entry.ready]


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0.01)


@pytest.fixture(params=["0-9-1", "0-10"])
async def estate(request: pytest.FixtureRequest) -> AsyncIterator[Estate]:
    """With an upstream of each kind."""
    estate = Estate(request.param)
    await estate.start()
    yield estate
    await estate.stop()


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Any]]:
    """Makes one with other settings."""
    made: list[Estate] = []

    async def start(**settings: Any) -> Estate:
        estate = Estate("0-9-1", **settings)
        made.append(estate)
        await estate.start()
        return estate

    yield start
    for estate in made:
        await estate.stop()


@pytest.mark.parametrize("version", VERSION_NAMES)
async def test_publishes_are_stored_while_the_broker_is_away(estate: Estate, version: str) -> None:
    channel = await estate.publisher(version)
    first = channel.publish(b"before")
    await until(lambda: first in channel.confirmed)
    await estate.lose()
    serials = [channel.publish(b"%d" % number) for number in range(50)]
    await until(lambda: set(serials) <= set(channel.confirmed))
    assert estate.ledger.bodies == [b"%d" % number for number in range(50)]
    assert {client for client, _, _ in estate.ledger.kept} == {LABEL}
    assert estate.front.counts.of("publishes")["stored"] == 50
    assert estate.front.counts.stored_bytes == sum(map(len, estate.ledger.bodies))

    estate.come_back()
    await until(lambda: any(link.is_up for link in estate.front.pool.all()))
    later = channel.publish(b"newer")
    await asyncio.sleep(0.05)
    assert later not in channel.confirmed, "what is stored goes first"
    assert b"newer" not in estate.in_queue()
    estate.send()
    await until(lambda: later in channel.confirmed)
    assert estate.in_queue()[-1] == b"newer"
    assert estate.front.counts.stored_bytes == 0


async def test_the_order_holds_over_many_outages(estate: Estate) -> None:
    """Publishes go on all the time, and the outbox sends what was stored whenever the broker is there."""
    channel = await estate.publisher()
    url = f"amqp://guest:guest@127.0.0.1:{estate.broker.port}/?version=0-9-1"
    serials: dict[int, bytes] = {}

    def publish(count: int) -> None:
        for _ in range(count):
            body = b"%d" % len(serials)
            serials[channel.publish(body)] = body

    for _ in range(5):
        publish(20)
        await estate.lose()
        publish(20)
        await until(lambda: bool(estate.ledger.kept))
        estate.come_back()
        outbox = await Dialer("outbox", BrokerSettings(url=url)).open("outbox")
        sending = outbox.channel(Channel)
        await sending.open()
        await sending.request(SelectConfirm(sending.number))
        (lane,) = estate.front.store.lanes.values()
        while not lane.is_drained:
            if not estate.ledger.kept:
                await asyncio.sleep(0.01)
                continue
            _, exchange, item = estate.ledger.kept[0]
            await sending.request(Publish(sending.number, exchange, item.routing_key, item.message))
            estate.ledger.kept.pop(0)
        await outbox.close()
    await until(lambda: serials.keys() <= set(channel.confirmed))
    bodies = estate.in_queue()
    assert set(bodies) == set(serials.values())
    first = {body: bodies.index(body) for body in serials.values()}
    assert sorted(first, key=lambda body: first[body]) == list(serials.values()), "the first copies are in order"


async def test_what_is_not_confirmed_at_the_loss_is_stored_first(estate: Estate) -> None:
    channel = await estate.publisher()
    serials = [channel.publish(b"%d" % number) for number in range(20)]
    await until(lambda: len(channel.confirmed) == 20)
    ((front_channel,),) = (client.channels.values() for client in estate.front.clients.values())
    front_channel.up.front = None  # the broker's answers are lost from now on
    doubtful = [channel.publish(b"doubtful %d" % number) for number in range(3)]
    await until(lambda: front_channel.unconfirmed == 3)
    await estate.lose()
    newer = channel.publish(b"newer")
    await until(lambda: newer in channel.confirmed)
    assert set(serials + doubtful) <= set(channel.confirmed)
    assert estate.ledger.bodies == [b"doubtful 0", b"doubtful 1", b"doubtful 2", b"newer"]
    assert [item.resent for _, _, item in estate.ledger.kept] == [True, True, True, False]


async def test_a_client_that_comes_while_the_broker_is_away(estate: Estate) -> None:
    await (await estate.publisher()).close()
    await estate.lose()
    channel = await estate.channel()
    await channel.request(SelectConfirm(channel.number))
    serial = channel.publish(b"stored")
    await until(lambda: serial in channel.confirmed)
    assert estate.ledger.bodies == [b"stored"]
    await channel.close()
    estate.send()
    estate.come_back()
    other = await estate.channel()
    await other.request(SelectConfirm(other.number))
    serial = other.publish(b"sent")
    await until(lambda: serial in other.confirmed)
    assert estate.in_queue() == [b"sent"]


async def test_acknowledgements_of_lost_deliveries_do_not_hold_publishes_up(estate: Estate) -> None:
    channel = await estate.publisher()
    serial = channel.publish(b"work")
    await until(lambda: serial in channel.confirmed)
    got = await channel.request(Get(channel.number, "q"))
    assert isinstance(got, Got)
    await estate.lose()
    channel.send(Settle(channel.number, Settlement.ACCEPT, got.delivery, got.delivery))
    answer = channel.publish(b"answer")
    await until(lambda: answer in channel.confirmed)
    assert estate.ledger.bodies == [b"answer"]


async def test_what_the_ledger_cannot_keep_waits_for_the_broker(estate: Estate) -> None:
    """Publishes of a transaction, and to queues that the front declares again."""
    channel = await estate.publisher()
    await channel.request(DeclareQueue(channel.number, "mine", exclusive=True))
    transacted = await estate.channel()
    await transacted.request(TxSelect(transacted.number))
    await estate.lose()
    to_own = channel.publish(b"to my own", "mine")
    behind = channel.publish(b"behind it")
    transacted.publish(b"in a transaction")
    await asyncio.sleep(0.1)
    assert not estate.ledger.kept
    estate.come_back()
    await until(lambda: {to_own, behind} <= set(channel.confirmed))
    assert not estate.ledger.kept
    assert b"behind it" in estate.in_queue()


async def test_the_ledger_is_away_too(estate: Estate) -> None:
    channel = await estate.publisher()
    await until(lambda: all(lane.is_drained for lane in estate.front.store.lanes.values()))
    estate.ledger.error = LedgerUnavailable("away")
    await estate.lose()
    serials = [channel.publish(b"%d" % number) for number in range(5)]
    await until(lambda: estate.ledger.puts > 0)
    assert not set(serials) & set(channel.confirmed)
    estate.ledger.error = None
    await until(lambda: set(serials) <= set(channel.confirmed))
    assert estate.ledger.bodies == [b"%d" % number for number in range(5)]


async def test_what_the_ledger_may_have_is_stored_again_with_a_mark(estate: Estate) -> None:
    """The answer of the ledger was lost: an outbox may have sent it by the time at which it is stored again."""
    channel = await estate.publisher()
    await until(lambda: all(lane.is_drained for lane in estate.front.store.lanes.values()))
    estate.ledger.error = LedgerUnavailable("the connection was cut off in the commit")
    await estate.lose()
    serial = channel.publish(b"doubtful")
    await until(lambda: estate.ledger.puts > 0)
    estate.ledger.error = None
    newer = channel.publish(b"newer")
    await until(lambda: {serial, newer} <= set(channel.confirmed))
    assert [(bytes(item.message.body), item.resent) for _, _, item in estate.ledger.kept] == [
        (b"doubtful", True),
        (b"newer", False),
    ]


@pytest.mark.parametrize(
    ("error", "raised"), [(OutcomeUnknown("cut off"), CommitUnknown), (LedgerUnavailable("cut off"), LedgerUnavailable)]
)
async def test_what_the_outbox_may_have_is_the_ledger_s_no_answer(
    error: GatewayError, raised: type[GatewayError]
) -> None:
    """So that it is stored again."""

    async def put(*_: Any) -> list[PublishOutcome]:
        return [PublishOutcome("1"), PublishOutcome("2", error)]

    budgets = SimpleNamespace(take=lambda *_: None, give=lambda *_: None)
    gateway: Any = SimpleNamespace(broker=str, ledger_budgets=budgets, outbox=SimpleNamespace(put=put))
    with pytest.raises(raised, match="cut off"):
        await GatewayLedger(gateway).put("b", "", [], "me")


async def test_a_message_that_the_ledger_cannot_hold_is_refused_alone(estate: Estate) -> None:
    channel = await estate.publisher()
    await estate.lose()
    estate.ledger.bad = "bad"
    good, bad, last = channel.publish(b"1"), channel.publish(b"2", "bad"), channel.publish(b"3")
    await until(lambda: {good, last} <= set(channel.confirmed) and bool(channel.refused))
    assert channel.refused[0].first == bad
    assert estate.ledger.bodies == [b"1", b"3"]


async def test_a_full_store_has_publishers_wait(make: Callable[..., Any]) -> None:
    estate = await make(store_bytes=1 << 16)
    channel = await estate.publisher()
    await estate.lose()
    serials = [channel.publish(bytes(1 << 14)) for _ in range(10)]
    await until(lambda: len(estate.ledger.kept) == 4)
    await asyncio.sleep(0.1)
    assert len(estate.ledger.kept) == 4
    assert channel.link.ended is None
    estate.send()
    estate.come_back()
    await until(lambda: set(serials) <= set(channel.confirmed))


async def test_a_full_store_refuses_if_it_is_to(make: Callable[..., Any]) -> None:
    estate = await make(store_bytes=1 << 16, store_full="refuse")
    channel, silent = await estate.publisher(), await estate.channel()
    await estate.lose()
    serials = [channel.publish(bytes(1 << 14)) for _ in range(10)]
    await until(lambda: len(channel.confirmed) + len(channel.refused) == 10)
    assert set(serials) == set(channel.confirmed) | {each.first for each in channel.refused}
    assert len(channel.refused) == 6
    silent.publish(b"one that nobody would hear of")
    await until(lambda: silent.closed is not None)
    assert "store_bytes" in str(silent.closed)


async def test_publishes_that_are_too_old_fill_the_store(make: Callable[..., Any]) -> None:
    estate = await make(store_seconds=60.0, store_full="refuse")
    channel = await estate.publisher()
    await estate.lose()
    first = channel.publish(b"1")
    await until(lambda: first in channel.confirmed)
    estate.ledger.since = clock.now() - 61.0
    (lane,) = estate.front.store.lanes.values()
    await until(lambda: bool(lane.full()))
    channel.publish(b"2")
    await until(lambda: bool(channel.refused))
    assert "store_seconds" in lane.full()


async def test_a_user_at_its_share_of_the_ledger_waits(make: Callable[..., Any]) -> None:
    estate = await make()
    channel = await estate.publisher()
    await estate.lose()
    estate.ledger.error = BudgetExceeded("budget scheduled: enough")
    serial = channel.publish(b"1")
    await until(lambda: estate.ledger.puts > 0)
    assert serial not in channel.confirmed
    estate.ledger.error = None
    await until(lambda: serial in channel.confirmed)


async def test_as_much_is_stored_as_the_share_of_the_user_allows(estate: Estate) -> None:
    """A commit would hold more than that. The rest waits for the broker, and goes there behind what was stored."""
    channel = await estate.publisher()
    estate.ledger.room = 7
    await estate.lose()
    serials = [channel.publish(b"%d" % number) for number in range(20)]
    await until(lambda: len(channel.confirmed) == 7)
    assert channel.confirmed == serials[:7]
    estate.come_back()
    await until(lambda: any(link.is_up for link in estate.front.pool.all()))
    assert estate.in_queue() == []
    estate.ledger.room = 0
    estate.send()
    await until(lambda: channel.confirmed == serials)
    assert estate.in_queue() == [b"%d" % number for number in range(7, 20)]
    assert estate.front.counts.unconfirmed_bytes == estate.front.counts.stored_bytes == 0


async def test_what_becomes_free_is_used_while_the_broker_is_away(make: Callable[..., Any]) -> None:
    """Somebody has taken back what was stored."""
    estate = await make(store_bytes=1 << 16)
    channel = await estate.publisher()
    await estate.lose()
    serials = [channel.publish(bytes(1 << 14)) for _ in range(10)]
    for number in (4, 8, 10):
        await until(lambda number=number: len(channel.confirmed) == number)
        estate.send()
    assert channel.confirmed == serials


async def test_a_client_that_comes_from_another_process_waits_for_what_that_one_has_stored(estate: Estate) -> None:
    there = await estate.publisher()
    await until(lambda: all(lane.is_drained for lane in estate.front.store.lanes.values()))
    estate.ledger.kept.append((LABEL, "", Publication("q", Message(b"stored elsewhere"))))
    estate.ledger.since = clock.now()
    channel = await estate.channel()
    await channel.request(SelectConfirm(channel.number))
    serial = channel.publish(b"newer")
    await asyncio.sleep(0.1)
    assert serial not in channel.confirmed
    other = there.publish(b"of a client that was here")
    estate.send()
    await until(lambda: serial in channel.confirmed and other in there.confirmed)


async def test_a_reply_to_a_queue_of_another_client_waits_for_the_queue(estate: Estate) -> None:
    channel, caller = await estate.publisher(), await estate.channel()
    await caller.request(DeclareQueue(caller.number, "replies", exclusive=True))
    await estate.lose()
    reply = channel.publish(b"reply", "replies", mandatory=True)
    await asyncio.sleep(0.1)
    assert not estate.ledger.kept
    estate.come_back()
    await until(lambda: reply in channel.confirmed)
    got = await caller.request(Get(caller.number, "replies", no_ack=True))
    assert isinstance(got, Got)
    assert got.message.body == b"reply"


async def test_nothing_is_stored_without_the_setting(make: Callable[..., Any]) -> None:
    estate = await make(store="never")
    channel = await estate.publisher()
    await estate.lose()
    serial = channel.publish(b"waits")
    await asyncio.sleep(0.1)
    assert serial not in channel.confirmed
    estate.come_back()
    await until(lambda: serial in channel.confirmed)
    assert not estate.ledger.puts


async def test_a_user_is_checked_before_anything_is_stored(estate: Estate) -> None:
    await (await estate.publisher()).close()
    url = f"amqp://limited:secret@127.0.0.1:{estate.front.port}/?version=0-9-1"
    link = await Dialer("client", BrokerSettings(url=url)).open("client")
    estate.links.append(link)
    channel = link.channel(Recorded)
    await channel.open()
    await estate.lose()
    channel.send(Publish(channel.number, "secret", "q", Message(b"no")))
    await until(lambda: channel.closed is not None)
    assert "needs the scope" in str(channel.closed)
    assert not estate.ledger.kept


def test_a_store_needs_users_of_the_gateway() -> None:
    front = FrontSettings(broker="modern", login="pass", store="when-down")
    assert "store" in (check_front(front) or "")
