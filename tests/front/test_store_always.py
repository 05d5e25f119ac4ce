"""``store = "always"``: every publish goes to the ledger, and from there to the broker, in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import DeclareQueue, Get, Got, Publish, SelectConfirm, TxCommit, TxSelect
from gateway.app import running
from gateway.config import BrokerSettings, LedgerSettings
from gateway.errors import LedgerUnavailable
from gateway.link import Channel
from gateway.upstreams.keeper import Dialer
from gateway.versions import VERSION_NAMES
from tests.front.test_app_front import configuration
from tests.front.test_store import LABEL, Estate, until
from tests.ledgers import sqlite_ledger


@pytest.fixture(params=["0-9-1", "0-10"])
async def estate(request: pytest.FixtureRequest) -> AsyncIterator[Estate]:
    """With an upstream of each kind."""
    estate = Estate(request.param, store="always")
    await estate.start()
    yield estate
    await estate.stop()


@pytest.mark.parametrize("version", VERSION_NAMES)
async def test_publishes_are_stored_while_the_broker_is_there(estate: Estate, version: str) -> None:
    channel = await estate.publisher(version)
    serials = [channel.publish(b"%d" % number) for number in range(50)]
    await until(lambda: set(serials) <= set(channel.confirmed))
    assert estate.ledger.bodies == [b"%d" % number for number in range(50)]
    assert {client for client, _, _ in estate.ledger.kept} == {LABEL}
    assert estate.in_queue() == []
    assert estate.front.counts.of("publishes") == {"stored": 50}
    await estate.lose()
    away = channel.publish(b"away")
    await until(lambda: away in channel.confirmed)
    estate.come_back()
    await until(lambda: any(link.is_up for link in estate.front.pool.all()))
    back = channel.publish(b"back")
    await until(lambda: back in channel.confirmed)
    assert estate.ledger.bodies[50:] == [b"away", b"back"]
    assert not any(item.resent for _, _, item in estate.ledger.kept)


async def test_what_the_ledger_cannot_keep_goes_to_the_broker_at_once(estate: Estate) -> None:
    """Though something is stored, and more comes all the time."""
    channel, transacted = await estate.publisher(), await estate.channel()
    stored = channel.publish(b"stored")
    await until(lambda: stored in channel.confirmed)
    await channel.request(DeclareQueue(channel.number, "mine", exclusive=True))
    reply = channel.publish(b"reply", "mine")
    await until(lambda: reply in channel.confirmed)
    got = await channel.request(Get(channel.number, "mine", no_ack=True))
    assert isinstance(got, Got)
    assert got.message.body == b"reply"
    await transacted.request(TxSelect(transacted.number))
    transacted.publish(b"in a transaction")
    await transacted.request(TxCommit(transacted.number))
    assert estate.in_queue() == [b"in a transaction"]
    assert estate.ledger.bodies == [b"stored"]


async def test_publishers_wait_for_a_ledger_that_is_away(estate: Estate) -> None:
    channel = await estate.publisher()
    estate.ledger.error = LedgerUnavailable("away")
    serials = [channel.publish(b"%d" % number) for number in range(5)]
    await until(lambda: estate.ledger.puts > 0)
    await asyncio.sleep(0.1)
    assert not channel.confirmed
    assert estate.in_queue() == []
    estate.ledger.error = None
    await until(lambda: set(serials) <= set(channel.confirmed))
    assert estate.ledger.bodies == [b"%d" % number for number in range(5)]
    assert channel.link.ended is None


async def test_a_publish_waits_for_what_the_client_has_asked_before_it(estate: Estate) -> None:
    """The queue that it is for may not be there yet."""
    channel = await estate.publisher()
    declared = channel.request(DeclareQueue(channel.number, "later", durable=True))
    serial = channel.publish(b"behind it", "later")
    assert (await declared).queue == "later"
    await until(lambda: serial in channel.confirmed)
    assert estate.ledger.bodies == [b"behind it"]


async def test_who_need_not_wait_for_the_broker_is_not_told_that_it_takes_nothing(estate: Estate) -> None:
    channel = await estate.publisher()
    (shared,) = estate.front.pool.all()
    assert shared._link is not None
    shared._link.blocked = "memory"
    shared._blocked()
    serial = channel.publish(b"stored")
    await until(lambda: serial in channel.confirmed)
    assert channel.link.blocked is None
    assert estate.ledger.bodies == [b"stored"]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_what_is_stored_reaches_the_broker_in_order(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """With the gateway's own outbox, and both databases; each message has a timeline."""
    url = sqlite_ledger(tmp_path) if database == "sqlite" else request.getfixturevalue("postgresql_ledger")
    config = configuration(tmp_path / "data")
    front = msgspec.structs.replace(config.fronts["legacy"], store="always", versions=())
    config = msgspec.structs.replace(config, ledger=LedgerSettings(url=url), fronts={"legacy": front})
    async with running(config) as app:
        address = f"amqp://guest:guest@127.0.0.1:{app.ports.fronts['legacy']}/?version=0-9-1"
        link = await Dialer("client", BrokerSettings(url=address)).open("client")
        channel = link.channel(Channel)
        await channel.open()
        await channel.request(DeclareQueue(channel.number, "q", durable=True))
        await channel.request(SelectConfirm(channel.number))
        bodies = [b"%d" % number for number in range(300)]
        await asyncio.gather(*(channel.request(Publish(channel.number, "", "q", Message(body))) for body in bodies))
        found: list[Any] = []
        async with asyncio.timeout(60):
            while len(found) < len(bodies):
                got = await channel.request(Get(channel.number, "q", no_ack=True))
                if isinstance(got, Got):
                    found.append(got)
                else:
                    await asyncio.sleep(0.02)
        assert [each.message.body for each in found] == bodies
        ids = [each.message.properties.headers["x-gateway"]["id"] for each in found]
        assert len(set(ids)) == len(bodies)
        stored = b'amqpgw_front_publishes_total{front="legacy",outcome="stored"} 300.0'
        await until(lambda: stored in app.gateway.metrics.render())
        await link.close()
