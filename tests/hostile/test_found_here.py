"""What fuzzing and reading have found in this project, each with its test."""

from __future__ import annotations

import asyncio
import struct

import pytest

from gateway.amqp import operations as o
from gateway.amqp.message import Message
from gateway.amqp.operations import Settlement
from gateway.config import BrokerSettings
from gateway.session import Role, Version
from gateway.upstreams import Delivery, Upstream
from gateway.versions import VERSIONS
from tests.fuzz.states import NOW, make
from tests.fuzz.upstream import World
from tests.hostile import CLASSIC, ROLES, Victim, content, frame, method, short


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("role", ROLES)
def test_the_list_that_a_session_returned_is_not_used_any_more(version: Version, role: Role) -> None:
    """An empty one was, and what came later appeared in it."""
    session = make(version, role)
    first = session.receive_data(b"", NOW)
    session.receive_eof(NOW)
    assert first == []


@pytest.mark.parametrize("version", CLASSIC)
@pytest.mark.parametrize("tag", [0, 3])
def test_a_delivery_tag_that_came_before(version: Version, tag: int) -> None:
    """Were it taken, one acknowledgement would settle two deliveries, or the second none."""
    victim = Victim(version, Role.CLIENT, "consuming")
    octets = content(Role.CLIENT, 0).replace(struct.pack(">Q", 1_000), struct.pack(">Q", tag))
    victim.hear(octets)
    victim.refused("behind 3", 503)
    victim = Victim(version, Role.CLIENT, "consuming")
    got = method(60, 71, struct.pack(">QB", 0, 0) + short(b"e") + short(b"k") + bytes(4), 1)
    victim.hear(got + frame(2, 1, struct.pack(">HHQ", 60, 0, 0) + b"\x00\x00"))
    victim.refused("delivery tag 0", 503)


@pytest.mark.parametrize("version", VERSIONS)
async def test_deliveries_ahead_of_a_violation_in_one_read(version: Version) -> None:
    """The session is over when they are handed on: their consumer's settlements must not raise into the loop, and
    whoever waits must hear of the end."""
    loop = asyncio.get_running_loop()
    faults: list[object] = []
    loop.set_exception_handler(lambda loop, context: faults.append(context))
    world = World(version)
    url = f"amqp://guest:guest@localhost/?version={version.value}"
    upstream = Upstream("hurt", BrokerSettings(url=url, reconnect_min=0.01), connector=world.dial)
    await upstream.start()
    assert await upstream.wait_up(30)
    lost: list[str] = []

    def on_delivery(delivery: Delivery) -> None:
        try:
            delivery.settle(Settlement.ACCEPT if delivery.number % 2 else Settlement.RELEASE)
        except Exception as error:
            lost.append(type(error).__name__)
            raise

    await upstream.consume("q", 10, on_delivery)
    before = list(world.fars)
    hostile = b"\x09\x00\x00\x00\x00\x00\x00\xce" * 2
    for far in before:
        channels = [number for number, channel in far.hosted.connection.channels.items() if channel.consumers]
        for number in channels:
            (tag,) = far.hosted.connection.channels[number].consumers
            for _ in range(4):
                far.hosted.session.send(o.Deliver(number, tag, 0, False, "e", "k", Message(b"x")), 0.0)
        far.hostile = hostile
        far.stream.wake()
        far.stream.flush()
    for _ in range(20):
        await asyncio.sleep(0)
    assert lost == []
    assert faults == []
    for far in before:
        far.stream.close()
    assert await upstream.wait_up(30)
    await upstream.close(0.5)
