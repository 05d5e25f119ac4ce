"""A broker that is told to end while it is being published to: nothing that was confirmed is lost.

A Broker-J says of the transfers of 0-10 that it has read, and not carried out when its virtual host stops, that they
are complete, and throws them away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.errors import BrokerUnavailable, OutcomeUnknown
from gateway.upstreams import Upstream, UpstreamState
from gateway.versions import VERSION_NAMES
from tests.conformance.conftest import FarEnd

UNDER_WAY: Final = 300
"""So many publishes wait for their confirms, so that some are read and not carried out, whenever the end comes."""


async def publish(upstream: Upstream, queue: str) -> tuple[set[bytes], int]:
    """Publish until the broker is away: what was confirmed, and how many were attempted."""
    confirmed: set[bytes] = set()
    room = asyncio.Semaphore(UNDER_WAY)
    pending: set[asyncio.Future[Any]] = set()
    attempted = 0

    def over(body: bytes, future: asyncio.Future[Any]) -> None:
        room.release()
        pending.discard(future)
        error = future.exception()
        assert error is None or isinstance(error, OutcomeUnknown | BrokerUnavailable), error
        if error is None:
            confirmed.add(body)

    while upstream.state is UpstreamState.UP:
        await room.acquire()
        body = b"%d" % attempted
        try:
            future = upstream.publish_nowait("", queue, Message(body, Properties(delivery_mode=2)))
        except BrokerUnavailable:
            break
        attempted += 1
        pending.add(future)
        future.add_done_callback(lambda done, body=body: over(body, done))
    if pending:
        await asyncio.wait(pending)
    return confirmed, attempted


async def take_all(upstream: Upstream, queue: str) -> set[bytes]:
    """All that is in the queue."""
    bodies: set[bytes] = set()
    while found := await upstream.fetch(queue, 500, 1.0):
        for delivery in found:
            bodies.add(bytes(delivery.message.body))
            delivery.settle(Settlement.ACCEPT)
    return bodies


@pytest.mark.broker
@pytest.mark.parametrize(
    ("kind", "versions"),
    [("brokerj", VERSION_NAMES), ("rabbitmq", ("0-9-1",)), ("rabbitmq-3.10", ("0-8",))],
    ids=["brokerj", "rabbitmq", "rabbitmq-3.10"],
)
async def test_what_was_confirmed_while_it_stopped_is_there(
    kind: str, versions: tuple[str, ...], private_server: Callable[[str], Any]
) -> None:
    server = private_server(kind)
    ends = [FarEnd(kind, version, server.port, "default" if kind == "brokerj" else "/") for version in versions]
    upstreams = [await end.upstream() for end in ends]
    queues = [end.name("queue") for end in ends]
    for upstream, queue in zip(upstreams, queues, strict=True):
        await upstream.declare_queue(queue)
    publishers = [
        asyncio.create_task(publish(upstream, queue)) for upstream, queue in zip(upstreams, queues, strict=True)
    ]
    await asyncio.sleep(1.0)
    await asyncio.to_thread(server.halt)
    told = await asyncio.gather(*publishers)
    await asyncio.to_thread(server.restart)
    for version, upstream, queue, (confirmed, attempted) in zip(versions, upstreams, queues, told, strict=True):
        assert await upstream.wait_up(60), upstream.reason
        there = await take_all(upstream, queue)
        assert confirmed, f"{version}: nothing was confirmed of {attempted}"
        assert len(confirmed) < attempted, f"{version}: it stopped when nothing was under way"
        assert not confirmed - there, f"{version}: {len(confirmed - there)} of {len(confirmed)} are lost"
        await upstream.delete_queue(queue)
    for end in ends:
        await end.close()
