"""``record = "all"``: what clients of a front get has a timeline, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    Consume,
    DeclareQueue,
    Deliver,
    Get,
    Got,
    Operation,
    Publish,
    Qos,
    Recover,
    SelectConfirm,
    Settle,
    Settlement,
    TxCommit,
    TxRollback,
    TxSelect,
)
from gateway.app import App, running
from gateway.config import BrokerSettings, LedgerSettings
from gateway.link import Channel, Link
from gateway.upstreams.keeper import Dialer
from tests.front.test_app_front import configuration
from tests.ledgers import sqlite_ledger


class Consuming(Channel):
    """A client's channel that keeps deliveries."""

    __slots__ = ("deliveries",)

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self.deliveries: list[Deliver] = []

    def handle(self, operation: Operation) -> None:
        if isinstance(operation, Deliver):
            self.deliveries.append(operation)

    def settle(self, number: int, settlement: Settlement = Settlement.ACCEPT, first: int = 0) -> None:
        self.send(Settle(self.number, settlement, first or number, number))


class Estate:
    """A gateway with a front, a channel of a client, and the API."""

    def __init__(self, app: App, api: httpx.AsyncClient) -> None:
        self.app = app
        self.api = api
        self.links: list[Link] = []

    async def channel(self, port: int = 0) -> Consuming:
        """A channel of a connection of its own, to the front unless a port is given."""
        port = port or self.app.ports.fronts["legacy"]
        url = f"amqp://guest:guest@127.0.0.1:{port}/?version=0-9-1"
        link = await Dialer("client", BrokerSettings(url=url)).open("client")
        self.links.append(link)
        channel = link.channel(Consuming)
        await channel.open()
        return channel

    async def publish(self, channel: Channel, *bodies: bytes) -> None:
        await channel.request(DeclareQueue(channel.number, "q", durable=True))
        await channel.request(SelectConfirm(channel.number))
        for body in bodies:
            await channel.request(Publish(channel.number, "", "q", Message(body)))

    async def timelines(self, done: Callable[[Sequence[Sequence[str]]], bool]) -> list[list[dict[str, Any]]]:
        """The events of all messages, oldest message first, as soon as they are as they should be."""
        found: list[list[dict[str, Any]]] = []
        async with asyncio.timeout(20):
            while True:
                answer = await self.api.get("/v1/messages", params={"limit": 100})
                ids = sorted(each["id"] for each in answer.json()["messages"])
                found = [(await self.api.get(f"/v1/messages/{id}")).json()["events"] for id in ids]
                if found and done([[event["kind"] for event in events] for events in found]):
                    return found
                await asyncio.sleep(0.05)


@asynccontextmanager
async def made(url: str, folder: Path, **settings: Any) -> AsyncIterator[Estate]:
    config = configuration(folder / "data")
    front = msgspec.structs.replace(config.fronts["legacy"], **{"record": "all", "versions": (), **settings})
    config = msgspec.structs.replace(config, ledger=LedgerSettings(url=url), fronts={"legacy": front})
    async with running(config) as app, httpx.AsyncClient(base_url=app.url) as api:
        estate = Estate(app, api)
        yield estate
        for link in estate.links:
            await link.close()


@pytest.fixture(params=["sqlite", "postgresql"])
async def estate(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Estate]:
    """On each database."""
    url = sqlite_ledger(tmp_path) if request.param == "sqlite" else request.getfixturevalue("postgresql_ledger")
    async with made(url, tmp_path) as estate:
        yield estate


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0.01)


async def test_each_way_to_settle_a_delivery_has_its_event(estate: Estate) -> None:
    channel = await estate.channel()
    await estate.publish(channel, b"taken", b"given back", b"rejected", b"two", b"at once")
    await channel.request(Qos(channel.number, 5))
    await channel.request(Consume(channel.number, "q", "tag"))
    await until(lambda: len(channel.deliveries) == 5)
    first, second, third, fourth, last = (each.delivery for each in channel.deliveries)
    channel.settle(first)
    channel.settle(second, Settlement.RELEASE)
    channel.settle(third, Settlement.REJECT)
    channel.settle(last, first=fourth)
    await until(lambda: len(channel.deliveries) == 6)
    assert channel.deliveries[5].redelivered
    channel.settle(channel.deliveries[5].delivery)
    taken = ["confirmed", "delivered", "acknowledged"]
    wanted = [
        taken,
        ["confirmed", "delivered", "released", "delivered", "acknowledged"],
        ["confirmed", "delivered", "rejected"],
        taken,
        taken,
    ]
    found = await estate.timelines(lambda kinds: [sorted(each) for each in kinds] == [sorted(each) for each in wanted])
    detail = next(event["detail"] for event in found[1] if event["kind"] == "delivered")
    assert detail == {"front": "legacy", "client": "front:legacy/guest", "queue": "q", "redelivered": False}


async def test_a_message_from_elsewhere_is_received_first(estate: Estate) -> None:
    assert estate.app.ports.amqp is not None
    elsewhere = await estate.channel(estate.app.ports.amqp)
    await estate.publish(elsewhere, b"got", b"consumed without acknowledgement")
    channel = await estate.channel()
    assert isinstance(await channel.request(Get(channel.number, "q", no_ack=True)), Got)
    await channel.request(Consume(channel.number, "q", "tag", no_ack=True))
    await until(lambda: len(channel.deliveries) == 1)
    await estate.timelines(
        lambda kinds: [sorted(each) for each in kinds] == [["acknowledged", "delivered", "received"]] * 2
    )


async def test_what_a_client_leaves_is_lost_to_it(estate: Estate) -> None:
    """Its connection ends, its channel is closed, or it asks for all again."""
    publisher, one, other, third = [await estate.channel() for _ in range(4)]
    await estate.publish(publisher, b"x")
    assert isinstance(await one.request(Get(one.number, "q")), Got)
    await one.link.close()
    assert isinstance(await other.request(Get(other.number, "q")), Got)
    await other.close()
    assert isinstance(await third.request(Get(third.number, "q")), Got)
    await third.request(Recover(third.number, True))
    got = await third.request(Get(third.number, "q"))
    assert isinstance(got, Got)
    third.settle(got.delivery)
    wanted = ["acknowledged", "confirmed", *["delivered"] * 4, "lease_lost", "lease_lost", "released"]
    await estate.timelines(lambda kinds: [sorted(each) for each in kinds] == [wanted])


async def test_a_transaction_counts_when_it_is_committed(estate: Estate) -> None:
    publisher, channel = await estate.channel(), await estate.channel()
    await estate.publish(publisher, b"x")
    await channel.request(TxSelect(channel.number))
    got = await channel.request(Get(channel.number, "q"))
    assert isinstance(got, Got)
    channel.settle(got.delivery)
    await channel.request(TxRollback(channel.number))
    await estate.timelines(lambda kinds: [sorted(each) for each in kinds] == [["confirmed", "delivered"]])
    channel.settle(got.delivery)
    await channel.request(TxCommit(channel.number))
    await estate.timelines(
        lambda kinds: [sorted(each) for each in kinds] == [["acknowledged", "confirmed", "delivered"]]
    )


async def test_the_story_says_who_has_it(estate: Estate) -> None:
    channel = await estate.channel()
    await estate.publish(channel, b"x")
    got = await channel.request(Get(channel.number, "q"))
    assert isinstance(got, Got)
    await estate.timelines(lambda kinds: [sorted(each) for each in kinds] == [["confirmed", "delivered"]])
    (message,) = (await estate.api.get("/v1/messages")).json()["messages"]
    told = (await estate.api.get(f"/v1/messages/{message['id']}")).json()
    assert told["now"].startswith("A consumer of the front legacy has it"), told["now"]
    assert any("queue q; front legacy; by front:legacy/guest" in line for line in told["story"]), told["story"]
    channel.settle(got.delivery, Settlement.REJECT)
    await estate.timelines(lambda kinds: [sorted(each) for each in kinds] == [["confirmed", "delivered", "rejected"]])
    told = (await estate.api.get(f"/v1/messages/{message['id']}")).json()
    assert any("or dropped it" in line for line in told["story"]), told["story"]


async def test_deliveries_have_none_with_publish(tmp_path: Path) -> None:
    async with made(sqlite_ledger(tmp_path), tmp_path, record="publish") as estate:
        channel = await estate.channel()
        await estate.publish(channel, b"x", b"y")
        for _ in range(2):
            got = await channel.request(Get(channel.number, "q"))
            assert isinstance(got, Got)
            channel.settle(got.delivery)
        assert not isinstance(await channel.request(Get(channel.number, "q")), Got)
        await estate.timelines(lambda kinds: [sorted(each) for each in kinds] == [["confirmed"]] * 2)
