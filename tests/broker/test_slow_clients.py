"""Clients that do not read, or stop midway: what is kept for them is bounded, and their neighbours notice nothing."""

from __future__ import annotations

import asyncio

import pytest

from gateway.amqp.operations import Deliver, Done, OpenChannel, QueryQueue, SelectConfirm
from gateway.broker.server import EmbeddedBroker
from gateway.budgets import BudgetBounds, Budgets
from gateway.classic.frames import method_frame
from gateway.classic.methods import ChannelFlow
from gateway.config import EmbeddedSettings, EmbeddedUser
from gateway.limits import BrokerLimits
from gateway.session import Version
from gateway.transports.stream import WRITE_HIGH
from gateway.v010.controls import SessionFlush
from gateway.v010.frames import CONTROL, write_segment
from gateway.v010.version import V0_10
from tests.broker.raw import VERSIONS, Raw, frames, publishing, served, the_served, until

pytestmark = pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.value)
BODY = bytes(100_000)


async def fill(broker: EmbeddedBroker, version: Version, count: int) -> None:
    """Publish to the queue ``q``."""
    publisher = await Raw.open(broker.port, version)
    before = await publisher.declare("q")
    for _ in range(count // 10):
        await publisher.tell(*(publishing("q", BODY) for _ in range(10)))
    queue = broker.broker.virtual_host("/").queues["q"]
    await until(lambda: queue.consumers or queue.ready == before + count)
    publisher.close()


async def test_a_consumer_that_does_not_read_is_not_fed(version: Version) -> None:
    """What it is not given stays in the queue; another consumer of it has the rest, and it gets what it was given
    when it reads at last."""
    async with served() as broker:
        await fill(broker, version, 400)
        queue = broker.broker.virtual_host("/").queues["q"]
        silent = await Raw.open(broker.port, version, receive_buffer=4_096)
        await silent.consume("q", no_ack=True)
        await until(lambda: not the_served(broker, silent).stream.writable)
        await asyncio.sleep(0.1)
        slow = the_served(broker, silent)
        assert slow.connection is not None
        assert slow.stream.unsent < WRITE_HIGH + 2 * broker.broker.limits.output_high_water
        assert slow.connection.outgoing < 2 * broker.broker.limits.output_high_water
        left = queue.ready
        assert left > 300
        neighbour = await Raw.open(broker.port, version)
        await neighbour.consume("q", no_ack=True)
        for _ in range(left):
            await neighbour.hear(Deliver)
        assert not queue.ready
        for _ in range(400 - left):
            await silent.hear(Deliver)


async def test_a_client_that_asks_and_does_not_read_is_not_read_from(version: Version) -> None:
    """Returned messages, and what is known of a queue with long arguments: more comes out than goes in."""
    async with served(broker_limits=BrokerLimits(input_stop=1 << 18, output_high_water=1 << 17)) as broker:
        client = await Raw.open(broker.port, version, receive_buffer=4_096)
        if version is V0_10:
            await client.declare("q", arguments={"x-dead-letter-exchange": "x" * 255})
            octets = client.octets(QueryQueue(1, "q")) * 200_000
        else:
            await client.tell(SelectConfirm(1))
            await client.hear(Done)
            publish = publishing("nowhere", bytes(3_000))
            publish.mandatory = True  # type: ignore[misc]  # it comes back
            octets = client.octets(*(publish for _ in range(5_000)))
        assert await client.stuff(octets) < len(octets)
        slow = the_served(broker, client)
        assert slow.connection is not None
        await until(lambda: not slow.stream.reading)
        assert slow.connection.outgoing < 1_000_000
        neighbour = await Raw.open(broker.port, version)
        assert await neighbour.declare("other") == 0


async def test_answers_that_a_session_gives_by_itself_count_too(version: Version) -> None:
    """channel.flow and session.flush are answered before the broker hears of them."""
    async with served(broker_limits=BrokerLimits(output_buffers=2_000)) as broker:
        client = await Raw.open(broker.port, version, receive_buffer=4_096)
        if version is V0_10:
            octets = write_segment(SessionFlush(expected=True).encode(), CONTROL, CONTROL, 0, 4_096)[0] * 1_000_000
        else:
            octets = method_frame(1, ChannelFlow(True).encode()) * 1_000_000
        assert await client.stuff(octets) < len(octets)
        slow = the_served(broker, client)
        assert slow.session is not None
        await until(lambda: not slow.stream.reading)
        assert slow.session.pending < 2_000 + 16_384 // 10
        neighbour = await Raw.open(broker.port, version)
        assert await neighbour.declare("other") == 0


async def test_a_client_that_stays_stuck_is_cut_off(version: Version) -> None:
    """What it was given and did not acknowledge goes back."""
    async with served(broker_limits=BrokerLimits(stuck_timeout=1.0)) as broker:
        await fill(broker, version, 200)
        queue = broker.broker.virtual_host("/").queues["q"]
        stuck = await Raw.open(broker.port, version, receive_buffer=4_096)
        await stuck.consume("q")
        await until(lambda: queue.ready < 200)
        before = stuck.now
        await until(lambda: not queue.consumers)
        assert stuck.now - before > 0.2
        assert queue.ready == 200
        assert not broker._served


async def test_a_slow_client_is_not_a_stuck_one(version: Version) -> None:
    """It reads a little now and then, for much longer than it might stand still."""
    async with served(broker_limits=BrokerLimits(stuck_timeout=0.3)) as broker:
        await fill(broker, version, 100)
        slow = await Raw.open(broker.port, version, receive_buffer=4_096)
        await slow.consume("q", no_ack=True)
        await until(lambda: the_served(broker, slow).stream.unsent)
        for _ in range(8):
            await asyncio.sleep(0.1)
            for _ in range(4):
                await slow.hear(Deliver)
        assert broker._served


async def test_a_client_that_stops_in_the_middle_of_a_frame_is_cut_off(version: Version) -> None:
    async with served(broker_limits=BrokerLimits(stuck_timeout=0.2)) as broker:
        client = await Raw.open(broker.port, version)
        octets = client.octets(publishing("q", bytes(1_000)))
        await client.write(octets[:500])
        before = client.now
        assert await client.read_all() == b""
        assert 0.15 < client.now - before < 5


async def test_a_client_that_stops_in_the_middle_of_a_message_is_cut_off(version: Version) -> None:
    """Its frames are whole, but for the last one that does not come."""
    async with served(broker_limits=BrokerLimits(stuck_timeout=0.2)) as broker:
        client = await Raw.open(broker.port, version)
        whole = frames(version, client.octets(publishing("q", bytes(300_000))))
        assert len(whole) > 4
        await client.write(b"".join(whole[:-1]))
        before = client.now
        assert await client.read_all() == b""
        assert 0.15 < client.now - before < 5


async def test_a_client_with_nothing_to_say_stays(version: Version) -> None:
    async with served(broker_limits=BrokerLimits(stuck_timeout=0.05)) as broker:
        client = await Raw.open(broker.port, version)
        await asyncio.sleep(0.4)
        assert await client.declare("q") == 0


async def test_unfinished_messages_are_bounded_over_all_clients(version: Version) -> None:
    """A megabyte in all: one client must go, the others notice nothing."""
    async with served(queue_memory=1 << 20) as broker:
        clients = [await Raw.open(broker.port, version) for _ in range(4)]
        numbers = sorted(connection.number for connection in _open(broker))
        for client in clients:
            octets = client.octets(publishing("q", bytes(400_000)))
            await client.write(octets[:300_000])
        await until(lambda: len(broker.broker.connections) == 3)
        assert broker.unfinished < 1 << 20
        left = {connection.number for connection in _open(broker)}
        (gone,) = [client for number, client in enumerate(clients, min(numbers)) if number not in left]
        assert (await gone.closed()).code == 320
        for client in clients:
            client.close()
        await until(lambda: not broker._served)
        assert broker.unfinished == 0


async def test_unfinished_messages_of_a_user_are_bounded_by_its_share(version: Version) -> None:
    """A user who begins many messages loses a connection, and another one goes on."""
    settings = EmbeddedSettings(
        port=0,
        users=(EmbeddedUser(name="guest", password="guest"), EmbeddedUser(name="other", password="other")),
        queue_memory=4 << 20,
        message_max=1 << 19,
    )
    budgets = Budgets(BudgetBounds(0.25, 0.1, {"embedded_bytes": 4 << 20}, ones={"embedded_bytes": 1 << 19}))
    broker = EmbeddedBroker(settings, budgets=budgets)
    await broker.start()
    try:
        clients = [await Raw.open(broker.port, version) for _ in range(4)]
        for client in clients:
            octets = client.octets(publishing("q", bytes(400_000)))
            await client.write(octets[:300_000])
        await until(lambda: len(broker.broker.connections) == 3)
        assert broker.unfinished < 1 << 20
    finally:
        while Raw.made:
            Raw.made.pop().close()
        await broker.stop()
    assert broker.unfinished == 0


def _open(broker: EmbeddedBroker) -> list[object]:
    return list(broker.broker.connections.values())


async def test_whoever_floods_does_not_hold_up_the_others(version: Version) -> None:
    """A neighbour has its answer while most of a burst is still to be worked on."""
    async with served(broker_limits=BrokerLimits(turn=0.0)) as broker:
        client = await Raw.open(broker.port, version)
        neighbour = await Raw.open(broker.port, version)
        flooding = the_served(broker, client)
        burst = b"".join(client.octets(*(publishing("nowhere") for _ in range(1_000))) for _ in range(10))
        question = neighbour.octets(OpenChannel(2))
        flooding.data_received(burst)
        assert len(burst) - 20_000 < len(flooding._unread)
        assert not flooding.stream.reading
        await neighbour.write(question)
        await neighbour.hear(Done)
        assert len(flooding._unread) > len(burst) / 2
        await until(lambda: not flooding._unread)
        await until(lambda: flooding.stream.reading)
        assert await client.declare("q") == 0
