"""One user of a front cannot take what all of its users need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import Confirmed, DeclareQueue, Publish, SelectConfirm
from gateway.broker.server import EmbeddedBroker
from gateway.budgets import BudgetBounds, Budgets, ShareHolder
from gateway.config import BrokerSettings, EmbeddedSettings, FrontSettings, FrontUser
from gateway.errors import GatewayError
from gateway.front.server import Front
from gateway.front.shares import label
from gateway.link import Channel, Link
from gateway.upstreams.keeper import Dialer

ANN, BOB = FrontUser(name="ann", password="a"), FrontUser(name="bob", password="b")
HOLDER = ShareHolder(label("test", "ann"))


class Estate:
    """A front of two users, and the broker behind it."""

    def __init__(self, **totals: int) -> None:
        self.budgets = Budgets(BudgetBounds(share=0.5, reserve=0.0, totals=totals))
        self.links: list[Link] = []

    async def start(self, **settings: Any) -> None:
        self.broker = EmbeddedBroker(EmbeddedSettings(port=0))
        await self.broker.start()
        url = f"amqp://guest:guest@127.0.0.1:{self.broker.port}/?version=0-9-1"
        upstream = BrokerSettings(url=url, reconnect_min=0.01, reconnect_max=0.05)
        self.settings = FrontSettings(**{"port": 0, "broker": "upstream", "users": (ANN, BOB), **settings})
        self.front = Front("test", self.settings, {"upstream": upstream}, budgets=self.budgets)
        await self.front.start()

    async def stop(self) -> None:
        for link in self.links:
            await link.close()
        await self.front.stop()
        await self.broker.stop()

    async def link(self, user: FrontUser) -> Link:
        url = f"amqp://{user.name}:{user.password}@127.0.0.1:{self.front.port}/?version=0-9-1"
        link = await Dialer("client", BrokerSettings(url=url)).open("client")
        self.links.append(link)
        return link

    async def channel(self, user: FrontUser, link: Link | None = None) -> Channel:
        """A channel that has one at the broker."""
        channel = (link or await self.link(user)).channel(Channel)
        await channel.open()
        await channel.request(DeclareQueue(channel.number, user.name, durable=True))
        return channel


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Any]]:
    """Makes an estate."""
    made: list[Estate] = []

    async def start(totals: dict[str, int] | None = None, **settings: Any) -> Estate:
        estate = Estate(**(totals or {}))
        await estate.start(**settings)
        made.append(estate)
        return estate

    yield start
    for estate in made:
        await estate.stop()


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0.01)


async def told(estate: Estate, user: FrontUser) -> str:
    """Why the user may not connect."""
    try:
        link = await estate.link(user)
        await until(lambda: link.ended is not None)
    except GatewayError as error:
        return str(error)
    assert link.ended is not None
    return link.ended.text


async def test_a_user_has_a_part_of_the_connections(make: Callable[..., Any]) -> None:
    estate = await make(connections=4)
    mine = [await estate.channel(ANN) for _ in range(2)]
    assert "budget front_connections: 'front:test/ann' holds 2 connections" in await told(estate, ANN)
    await estate.channel(BOB)
    await mine[0].link.close()
    await until(lambda: estate.budgets["front_connections"].held_by(HOLDER) == 1)
    await estate.channel(ANN)
    assert estate.budgets["front_connections"].refusals["share"] == 1
    for link in estate.links:
        await link.close()
    await until(lambda: estate.budgets["front_connections"].held == 0)


async def test_a_user_has_a_part_of_the_channels_at_the_broker(make: Callable[..., Any]) -> None:
    estate = await make({"front_channels": 4})
    link = await estate.link(ANN)
    first, _ = [await estate.channel(ANN, link) for _ in range(2)]
    idle = link.channel(Channel)
    await idle.open()  # it costs the broker nothing
    with pytest.raises(GatewayError, match="budget front_channels"):
        await estate.channel(ANN, link)
    assert link.ended is None
    await estate.channel(BOB)
    await first.close()
    await until(lambda: estate.budgets["front_channels"].held_by(HOLDER) == 1)
    await estate.channel(ANN, link)
    await link.close()
    await until(lambda: estate.budgets["front_channels"].held_by(HOLDER) == 0)


async def test_a_client_may_have_all_its_channels_in_confirm_mode(make: Callable[..., Any]) -> None:
    """Beside other clients on the same connection to the broker, where nothing is published on most of them."""
    estate = await make()
    await estate.channel(ANN)
    link = await estate.link(ANN)
    channels = [link.channel(Channel) for _ in range(link.capabilities.channel_max)]
    await asyncio.gather(*(channel.open() for channel in channels))
    await asyncio.gather(*(channel.request(SelectConfirm(channel.number)) for channel in channels))
    (shared,) = estate.front.pool.all()
    assert (shared.channels, link.ended) == (1, None)
    last = channels[-1]
    assert isinstance(await last.request(Publish(last.number, "", "ann", Message(b"m"))), Confirmed)
    assert shared.channels == 2


async def test_channels_of_a_lost_connection_are_given_back(make: Callable[..., Any]) -> None:
    estate = await make({"front_channels": 4})
    link = await estate.link(ANN)
    channels = [await estate.channel(ANN, link) for _ in range(2)]
    for served in list(estate.broker._served):
        served.stream.abort()
    await until(lambda: estate.budgets["front_channels"].held_by(HOLDER) == 0)
    for channel in channels:
        await channel.request(DeclareQueue(channel.number, "more", durable=True))
    assert estate.budgets["front_channels"].held_by(HOLDER) == 2


async def test_a_user_has_a_part_of_the_memory(make: Callable[..., Any]) -> None:
    """A publisher whose publishes get no answer waits at its share, and another one goes on."""
    estate = await make(memory=1 << 20, message_max=1 << 20)
    channel = await estate.channel(ANN)
    await channel.request(SelectConfirm(channel.number))
    (client,) = estate.front.clients.values()
    (front_channel,) = client.channels.values()
    assert front_channel.up is not None
    front_channel.up.front = None  # the broker's answers are lost from now on
    for _ in range(20):
        channel.send(Publish(channel.number, "", "ann", Message(bytes(1 << 16))))
    await until(lambda: client.share is not None and not client.share.has_memory)
    assert client.share is not None
    await until(lambda: bool(client.backlog))
    assert client.share.bytes == (1 << 19)
    assert estate.front.shares is not None
    assert estate.front.shares.bytes_held() == {HOLDER.holder: 1 << 19}
    other = await estate.channel(BOB)
    await other.request(SelectConfirm(other.number))
    for _ in range(3):
        await other.request(Publish(other.number, "", "bob", Message(bytes(1 << 16))))
    for served in list(estate.broker._served):
        served.stream.abort()  # what has no answer is sent again
    await until(lambda: not client.backlog and not client.share.bytes)


async def test_a_user_alone_has_all(make: Callable[..., Any]) -> None:
    estate = await make(users=(ANN,), connections=4)
    for _ in range(4):
        await estate.channel(ANN)
    assert estate.budgets["front_connections"].held_by(HOLDER) == 4
