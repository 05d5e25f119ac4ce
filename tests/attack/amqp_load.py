"""What costs the embedded broker much time for little: matches, selectors, scans and cascades of dead letters.

Each attack builds what it needs through a client of its own and then asks once or a few times. The neighbor measures
how long the process stands still. A refusal of the publisher (506) is as right as an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import (
    BindQueue,
    ChannelClosed,
    Closed,
    Consume,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Operation,
    Outcome,
    Publish,
    PurgeQueue,
    QueryBinding,
    SelectConfirm,
)
from gateway.session import Version
from gateway.v010.version import V0_10
from gateway.v091.version import V0_9_1
from tests.attack.judge import Record
from tests.attack.lab import Target
from tests.broker.raw import Raw

BATCH = 500
PATIENCE = 120.0
"""How long the broker may take for a batch of requests, in seconds."""


async def carry_out(client: Raw, operations: Sequence[Operation]) -> list[Operation]:
    """Send operations and return every answer, until each has an outcome or the channel is closed."""
    told: list[Operation] = []
    for start in range(0, len(operations), BATCH):
        batch = operations[start : start + BATCH]
        octets = client.octets(*batch)
        writing = asyncio.create_task(_write(client, octets))
        waiting = len(batch)
        try:
            async with asyncio.timeout(PATIENCE):
                while waiting > 0:
                    heard = await _hear(client)
                    told += heard
                    waiting -= sum(event.last - event.first + 1 for event in heard if isinstance(event, Outcome))
                    if any(isinstance(event, ChannelClosed | Closed) for event in heard) or client.session.closed:
                        return told
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
    return told


async def _write(client: Raw, octets: bytes) -> None:
    with contextlib.suppress(OSError):
        await asyncio.get_running_loop().sock_sendall(client.socket, octets)


async def _hear(client: Raw) -> list[Operation]:
    loop = asyncio.get_running_loop()
    if octets := b"".join(client.session.data_to_send()):
        await _write(client, octets)
    try:
        octets = await loop.sock_recv(client.socket, 1 << 18)
    except ConnectionError:
        octets = b""
    return client.session.receive_data(octets, client.now) if octets else client.session.receive_eof(client.now)


@contextlib.asynccontextmanager
async def connected(target: Target, version: Version = V0_9_1) -> AsyncIterator[Raw]:
    """A client with a channel in confirm mode, as long as the block."""
    client = await Raw.open(target.amqp_port, version)
    try:
        await carry_out(client, [SelectConfirm(1)])
        yield client
    finally:
        client.close()


@contextlib.asynccontextmanager
async def topology(target: Target, exchange: str, kind: str, *queues: str) -> AsyncIterator[None]:
    """An exchange and queues, as long as the block."""
    async with connected(target) as client:
        await carry_out(client, [DeclareExchange(1, exchange, kind), *(DeclareQueue(1, queue) for queue in queues)])
    try:
        yield
    finally:
        async with connected(target) as client:
            await carry_out(client, [DeleteExchange(1, exchange)])
        for queue in queues:
            async with connected(target) as client:
                await carry_out(client, [DeleteQueue(1, queue)])


def _name(what: str) -> str:
    return f"{what}-{os.urandom(4).hex()}"


async def exchange_bound(target: Target, record: Record) -> None:
    """Ask 0-10's ``exchange.bound`` for a key and arguments that are in many bindings each, and in none together."""
    count = target.scaled(8_000, 1_500)
    exchange, queue = _name("bound"), _name("bound")
    async with topology(target, exchange, "fanout", queue), connected(target, V0_10) as client:
        await carry_out(client, [BindQueue(1, queue, exchange, "k", {"u": number}) for number in range(count)])
        await carry_out(client, [BindQueue(1, queue, exchange, f"x{number}", {"z": 1}) for number in range(count)])
        for _ in range(3):
            told = await carry_out(client, [QueryBinding(1, exchange, queue, "k", {"z": 1})])
            record.check(told, "exchange.bound was not answered")


async def headers_exchange(target: Target, record: Record) -> None:
    """Publish headers that are large arrays to an exchange with many bindings on all of them."""
    count, length = target.scaled(1_000, 150), target.scaled(4_000, 2_000)
    exchange, queue = _name("headers"), _name("headers")
    async with topology(target, exchange, "headers", queue), connected(target) as client:
        names = [f"h{number}" for number in range(12)]
        wished = [{"x-match": "all", **{name: f"{name}-{number}" for name in names}} for number in range(count)]
        await carry_out(client, [BindQueue(1, queue, exchange, "", arguments) for arguments in wished])
        headers = {name: [True] * length for name in names}
        for _ in range(3):
            told = await carry_out(client, [Publish(1, exchange, "", Message(b"x", Properties(headers=headers)))])
            record.check(told, "the publish was not answered")
            if _over(told):
                return


def _over(told: Sequence[Operation]) -> bool:
    return any(isinstance(event, ChannelClosed | Closed) for event in told)


async def like_selectors(target: Target, record: Record) -> None:
    """Consumers whose selectors search a long header for a long pattern."""
    queue = _name("like")
    pattern = "%" + "_" * 3_900 + "x"
    async with (
        topology(target, _name("like"), "fanout", queue),
        connected(target) as consumer,
        connected(target) as client,
    ):
        selector = {"x-filter-jms-selector": f"h LIKE '{pattern}'"}
        consumes = [Consume(1, queue, f"t{number}", arguments=selector) for number in range(target.scaled(10, 3))]
        await carry_out(consumer, consumes)
        for _ in range(target.scaled(3, 1)):
            message = Message(b"x", Properties(headers={"h": "a" * 120_000}))
            record.check(await carry_out(client, [Publish(1, "", queue, message)]), "the publish was not answered")
        await asyncio.sleep(0.2)


async def long_selector(target: Target, record: Record) -> None:
    """A consumer with a selector of many terms comes to a long queue."""
    queue = _name("scan")
    async with topology(target, _name("scan"), "fanout", queue):
        async with connected(target) as client:
            message = Message(b"x", Properties(headers={"n": -1}))
            await carry_out(client, [Publish(1, "", queue, message)] * target.scaled(60_000, 4_000))
        async with connected(target) as consumer:
            terms = " OR ".join(f"n = {number}" for number in range(400))
            consume = Consume(1, queue, "t", arguments={"x-filter-jms-selector": terms})
            record.check(await carry_out(consumer, [consume]), "the consumer was not answered")
            await asyncio.sleep(target.scaled(3, 1))


async def topic_patterns(target: Target, record: Record) -> None:
    """Publish a long key to an exchange with many patterns that each match in many ways: nearly as many as a user's
    share of declared bytes holds."""
    count = target.scaled(9_000, 1_500)
    exchange, queue = _name("topic"), _name("topic")
    async with topology(target, exchange, "topic", queue), connected(target) as client:
        letters = "abcdefgh"
        patterns = []
        for number in range(count):
            words = [letters[(number >> (3 * place)) & 7] for place in range(6)]
            patterns.append("#." + ".#.".join(words) + f".{number}")
        await carry_out(client, [BindQueue(1, queue, exchange, pattern) for pattern in patterns])
        for number in range(3):
            key = ".".join(letters[place % 8] for place in range(119)) + f".n{number}"
            told = await carry_out(client, [Publish(1, exchange, key[:255], Message(b"x", Properties()))])
            record.check(told, "the publish was not answered")
            if _over(told):
                return


async def purges(target: Target, record: Record) -> None:
    """Purge and delete long queues, and browse one."""
    queue = _name("purge")
    async with topology(target, _name("purge"), "fanout", queue), connected(target) as client:
        for _ in range(target.scaled(3, 1)):
            message = Message(b"x", Properties())
            await carry_out(client, [Publish(1, "", queue, message)] * target.scaled(60_000, 5_000))
            record.check(await carry_out(client, [PurgeQueue(1, queue)]), "the purge was not answered")


async def dead_letter_cascade(target: Target, record: Record) -> None:
    """Queues whose dead letters go to the fanout that feeds them all: one message must not fill the memory."""
    exchange = _name("cascade")
    queues = [_name("cascade") for _ in range(target.scaled(60, 12))]
    async with topology(target, exchange, "fanout"), connected(target) as client:
        try:
            arguments = {"x-message-ttl": 1, "x-dead-letter-exchange": exchange}
            await carry_out(client, [DeclareQueue(1, queue, arguments=arguments) for queue in queues])
            await carry_out(client, [BindQueue(1, queue, exchange, "") for queue in queues])
            told = await carry_out(client, [Publish(1, exchange, "", Message(b"0123456789", Properties()))])
            record.check(told, "the publish was not answered")
            await asyncio.sleep(target.scaled(8, 2))
        finally:
            async with connected(target) as cleaner:
                await carry_out(cleaner, [DeleteQueue(1, queue) for queue in queues])
