"""Bodies as large as the configuration allows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    ChannelClosed,
    Confirmed,
    Done,
    Get,
    Got,
    OpenChannel,
    Publish,
    Refused,
    SelectConfirm,
)
from gateway.limits import DEFAULT_LIMITS
from gateway.session import ClientConfig, Session, Version
from gateway.v010.version import V0_10
from tests.broker import raw
from tests.broker.raw import VERSIONS, Raw, served
from tests.pair import client_session

MIB = 1 << 20
LARGE = 128 * MIB


@pytest.fixture(autouse=True)
def large_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that take and send anything, and have time for it."""
    limits = replace(DEFAULT_LIMITS, message_max=2 * LARGE, spool_max=2 * LARGE)

    def session(version: Version, config: ClientConfig) -> Session:
        return client_session(version, replace(config, limits=limits))

    monkeypatch.setattr(raw, "client_session", session)
    monkeypatch.setattr(raw, "TIMEOUT", 60)


def publish(body: bytes, channel: int = 1) -> Publish:
    return Publish(channel, "", "q", Message(body))


async def confirming(port: int, version: Version) -> Raw:
    client = await Raw.open(port, version)
    await client.declare("q")
    await client.tell(SelectConfirm(1))
    await client.hear(Done)
    return client


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_body_of_128_mib(version: Version) -> None:
    body = bytes(range(256)) * (LARGE // 256)
    async with served(message_max=LARGE) as broker:
        client = await confirming(broker.port, version)
        await client.tell(publish(body))
        await client.hear(Confirmed)
        assert broker.unfinished == 0
        await client.tell(Get(1, "q", True))
        got = await client.hear(Got)
        assert got.message.body == body


@pytest.mark.parametrize("version", VERSIONS)
async def test_one_byte_more_is_refused(version: Version) -> None:
    """In 0-8 and 0-9-1 it costs the channel, in 0-10 nothing."""
    async with served(message_max=2 * MIB) as broker:
        client = await confirming(broker.port, version)
        await client.tell(publish(bytes(2 * MIB + 1)))
        if version is V0_10:
            await client.hear(Refused)
        else:
            assert (await client.hear(ChannelClosed)).code == 311
        await client.tell(OpenChannel(2))
        await client.hear(Done)
        await client.tell(publish(bytes(2 * MIB), channel=2))
        await client.tell(Get(2, "q", True))
        assert len((await client.hear(Got)).message.body) == 2 * MIB
