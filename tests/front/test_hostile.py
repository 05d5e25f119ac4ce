"""Hostile clients of a front: they get an error, and its other clients notice nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gateway.broker.server import EmbeddedBroker
from gateway.config import BrokerSettings, EmbeddedSettings, FrontSettings
from gateway.front.server import Front
from gateway.session import Role, Version
from gateway.v010.version import V0_10
from gateway.versions import VERSIONS
from tests.front.fronts import ADMIN
from tests.fuzz.broker import tape
from tests.hostile import content, frame, frame010, headers010, map010, transfer
from tests.hostile.test_sockets import (
    neighbour,
    still_there,
    test_a_client_that_never_says_who_it_is,
    test_a_hundred_hostile_clients,
    test_before_authentication,
    test_cve_2018_8030_a_message_over_the_limit,
)

__all__ = [
    "neighbour",
    "test_a_client_that_never_says_who_it_is",
    "test_a_hundred_hostile_clients",
    "test_before_authentication",
    "test_cve_2018_8030_a_message_over_the_limit",
]


@pytest.fixture(params=["0-9-1", "0-10"])
async def embedded(request: pytest.FixtureRequest) -> AsyncIterator[Front]:
    """A front, in place of the embedded broker that these tests were written for."""
    broker = EmbeddedBroker(EmbeddedSettings(port=0))
    await broker.start()
    url = f"amqp://guest:guest@127.0.0.1:{broker.port}/?version={request.param}"
    settings = FrontSettings(
        port=0, broker="upstream", users=(ADMIN,), message_max=100_000, handshake_timeout_seconds=1.0
    )
    front = Front("test", settings, {"upstream": BrokerSettings(url=url, reconnect_min=0.01, reconnect_max=0.05)})
    front.limits = replace(front.limits, close_timeout=0.2)
    front.session_configs = front._configs()
    await front.start()
    yield front
    await front.stop()
    await broker.stop()


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_stream_without_end(embedded: Front, neighbour: object, version: Version) -> None:
    """The front holds no more of it than its limit, and drops or closes."""
    if version is V0_10:
        start = transfer(Role.SERVER, headers010(map010(0, b"")), [b"", b"x"])[:-13]
        piece = frame010(bytes(4_000), 3, 1, 0, 0x04)
    else:
        start, piece = content(Role.SERVER, 1 << 40), frame(3, 1, bytes(4_000))
    _, writer = await asyncio.open_connection("127.0.0.1", embedded.port)
    try:
        for octets in tape(version, "channel"):
            writer.write(octets)
        writer.write(start)
        for _ in range(1_000):  # 4 MB
            writer.write(piece)
            await asyncio.wait_for(writer.drain(), 5)
    except ConnectionError:
        pass  # it was cut off
    held = [client.session.unfinished for client in embedded.clients.values()]
    assert max(held, default=0) <= 100_000 + 65_536
    await still_there(neighbour)  # type: ignore[arg-type]
    writer.close()
