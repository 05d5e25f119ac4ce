"""Hostile peers on real sockets: the embedded broker and its neighbours, and a link whose broker is hostile."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from random import Random

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import Settlement
from gateway.broker.server import EmbeddedBroker
from gateway.config import BrokerSettings, EmbeddedSettings
from gateway.errors import GatewayError
from gateway.limits import DEFAULT_LIMITS
from gateway.session import Role, Version
from gateway.upstreams import Upstream
from gateway.v010.version import V0_10
from gateway.v091.version import V0_9_1
from gateway.versions import VERSIONS
from tests.fuzz import generators
from tests.fuzz.broker import tape
from tests.hostile import (
    CLASSIC,
    content,
    control,
    frame,
    frame010,
    headers010,
    long,
    map010,
    method,
    nested_maps,
    nested_tables,
    short,
    transfer,
)

LIMITS = replace(DEFAULT_LIMITS, message_max=100_000, handshake_timeout=1.0, close_timeout=0.2)


@pytest.fixture
async def embedded() -> AsyncIterator[EmbeddedBroker]:
    broker = EmbeddedBroker(EmbeddedSettings(port=0), LIMITS)
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
async def neighbour(embedded: EmbeddedBroker) -> AsyncIterator[Upstream]:
    upstream = Upstream("neighbour", BrokerSettings(url=f"amqp://guest:guest@127.0.0.1:{embedded.port}/?version=0-9-1"))
    await upstream.start()
    assert await upstream.wait_up(10)
    await upstream.declare_queue("neighbour")
    yield upstream
    await upstream.close(1.0)


async def still_there(neighbour: Upstream) -> None:
    """The neighbour publishes and fetches, on connections that were never lost."""
    assert (await neighbour.publish("", "neighbour", Message(b"x"))).routed
    (delivery,) = await neighbour.fetch("neighbour", 1, 5.0)
    delivery.settle(Settlement.ACCEPT)
    assert neighbour.state.value == "up"


async def attack(embedded: EmbeddedBroker, *chunks: bytes, within: float = 5.0) -> bytes:
    """Connect, send, and read until the broker hangs up; what it said."""
    reader, writer = await asyncio.open_connection("127.0.0.1", embedded.port)
    try:
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
        async with asyncio.timeout(within):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


CLASSIC_ATTACKS = {
    "cve_2026_69219": method(10, 11, struct.pack(">I", 0x7FFFFFFE) + bytes(20), 0),
    "cve_2026_69220": method(10, 11, nested_tables(580) + short(b"PLAIN") + long(b"") + short(b"en"), 0),
    "cve_2019_18609": struct.pack(">BHI", 1, 0, 0xFFFFFFFF),
    "cve_2026_44235": frame(1, 0, b"\x00"),
    "cve_2018_1298": method(10, 11, long(b"") + short(b"PLAIN") + long(b"\x00\x00") + short(b"en"), 0),
    "cve_2016_4432": method(10, 40, short(b"/") + short(b"") + b"\x00", 0),
    "ghsa_5fp7_heartbeat": frame(8, 5, b""),
    "ghsa_5fp7_type": frame(7, 0, b""),
    "cve_2019_0200_content": content(Role.SERVER, 5),
}
ATTACKS_010 = {
    "cve_2012_4458": control(1, 2, 0x0100, map010(0x40000000, b"\x01a\xf0")),
    "cve_2026_69219": control(1, 2, 0x0100, struct.pack(">I", 0x7FFFFFFE)),
    "cve_2026_69220": control(1, 2, 0x0100, nested_maps(580)),
    "cve_2018_1298": control(1, 2, 0x0600, short(b"PLAIN") + struct.pack(">I", 2) + b"\0\0"),
    "cve_2015_0203_gap": control(2, 13, 0x0100, b"\x00\x08" + bytes(8)),
    "cve_2015_0203_header": frame010(b"\x03\x01\x01\x00\x00\x00", 1, 1, 0, 0x0B),
    "cve_2016_4432": control(1, 7, 0x0100, short(b"/")),
    "ghsa_5fp7_channels": frame010(b"x", 0, 0, 700, 0x0E),
}


@pytest.mark.parametrize(
    ("version", "name"),
    [(version, name) for version in CLASSIC for name in CLASSIC_ATTACKS] + [(V0_10, name) for name in ATTACKS_010],
)
async def test_before_authentication(
    embedded: EmbeddedBroker, neighbour: Upstream, version: Version, name: str
) -> None:
    octets = (ATTACKS_010 if version is V0_10 else CLASSIC_ATTACKS)[name]
    said = await attack(embedded, version.header + octets)
    assert b"mechanisms" in said or b"PLAIN" in said
    await still_there(neighbour)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_hundred_hostile_clients(embedded: EmbeddedBroker, neighbour: Upstream, version: Version) -> None:
    """CVE-2019-0200 and all the others: whatever comes behind a good beginning."""
    random = Random(f"sockets {version.value}")

    async def one() -> None:
        octets = generators.grammar(random, version, Role.SERVER, "channel")
        try:
            await attack(embedded, *tape(version, "channel"), octets, within=0.5)
        except TimeoutError:
            pass  # nothing was wrong with it

    for _ in range(5):
        await asyncio.gather(*(one() for _ in range(20)))
        await still_there(neighbour)


@pytest.mark.parametrize("version", VERSIONS)
async def test_cve_2018_8030_a_message_over_the_limit(
    embedded: EmbeddedBroker, neighbour: Upstream, version: Version
) -> None:
    """Broker-J went down over it. Here its publisher is told, and nobody else notices."""
    url = f"amqp://guest:guest@127.0.0.1:{embedded.port}/?version={version.value}"
    publisher = Upstream("publisher", BrokerSettings(url=url))
    await publisher.start()
    assert await publisher.wait_up(10)
    with pytest.raises(GatewayError) as refused:
        await publisher.publish("", "neighbour", Message(bytes(100_001)))
    assert "100001" in str(refused.value)
    assert (await publisher.publish("", "neighbour", Message(bytes(1)))).routed
    await publisher.close(1.0)
    (delivery,) = await neighbour.fetch("neighbour", 5, 5.0)
    delivery.settle(Settlement.ACCEPT)
    await still_there(neighbour)


@pytest.mark.parametrize("version", VERSIONS)
async def test_cve_2026_67235_a_stream_without_end(
    embedded: EmbeddedBroker, neighbour: Upstream, version: Version
) -> None:
    """The broker holds no more of it than its limit, and drops or closes."""
    if version is V0_10:
        start = transfer(Role.SERVER, headers010(map010(0, b"")), [b"", b"x"])[:-13]
        piece = frame010(bytes(4_000), 3, 1, 0, 0x04)
    else:
        start, piece = content(Role.SERVER, 1 << 40), frame(3, 1, bytes(4_000))
    reader, writer = await asyncio.open_connection("127.0.0.1", embedded.port)
    for octets in tape(version, "channel"):
        writer.write(octets)
    writer.write(start)
    for _ in range(1_000):  # 4 MB
        writer.write(piece)
        await asyncio.wait_for(writer.drain(), 5)
    await asyncio.sleep(0.05)
    held = [connection.session.unfinished for connection in embedded.broker.connections.values()]
    assert max(held) <= 100_000 + 65_536
    await still_there(neighbour)
    writer.close()
    await asyncio.sleep(0)
    del reader


async def test_a_client_that_never_says_who_it_is(embedded: EmbeddedBroker, neighbour: Upstream) -> None:
    for octets in (b"", b"A", b"AMQP\x00\x00\x09", V0_9_1.header, V0_10.header):
        await attack(embedded, octets)
    await still_there(neighbour)


# ------------------------------------------------------------------------------------------- a hostile broker

ANSWERS = {
    "cve_2026_69219": method(10, 10, b"\x00\x09" + struct.pack(">I", 0x7FFFFFFE) + bytes(20), 0),
    "cve_2026_69220": method(10, 10, b"\x00\x09" + nested_tables(5_000) + long(b"PLAIN") + long(b"en"), 0),
    "cve_2026_44236": method(10, 10, b"\x00\x09" + long(b"") + long(b"PLAIN") + long(b"en"), 0)
    + method(10, 30, struct.pack(">HIH", 0, 8, 0), 0),
    "cve_2019_18609": struct.pack(">BHI", 1, 0, 0xFFFFFFFF),
    "redirected to itself": method(10, 50, short(b"127.0.0.1:1") + short(b""), 0),
    "unasked": method(60, 60, short(b"t") + bytes(9) + short(b"") + short(b""), 1) + content(Role.CLIENT, 5),
    "noise": bytes(range(256)) * 40,
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_hostile_broker_is_an_error_and_no_more(name: str) -> None:
    """An upstream says what is wrong, keeps trying with pauses, and ends when it is told to."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            await reader.readexactly(8)
            writer.write(ANSWERS[name])
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = BrokerSettings(
        url=f"amqp://guest:guest@127.0.0.1:{port}/?version=0-9-1", reconnect_min=0.05, reconnect_max=0.1
    )
    upstream = Upstream("hostile", settings)
    await upstream.start()
    assert not await upstream.wait_up(0.5)
    assert upstream.reason not in ("", "connecting")
    with pytest.raises(GatewayError):
        await upstream.publish("", "q", Message(b"x"))
    assert 3 <= connections < 60
    await upstream.close(0.1)
    server.close()
