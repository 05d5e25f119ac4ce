"""The listener: versions by header, clients that misbehave, pika as the judge of what 0-9-1 clients see."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from gateway.broker.server import PRODUCT, EmbeddedBroker
from gateway.config import EmbeddedSettings
from gateway.limits import BrokerLimits, Limits
from gateway.session import PROTOCOL_HEADERS, Version
from gateway.v08.version import V0_8
from gateway.versions import FALLBACK_HEADER
from tests import golden
from tests.broker.raw import frames

T = TypeVar("T")


@contextlib.asynccontextmanager
async def running(
    limits: Limits | None = None, broker_limits: BrokerLimits | None = None, **settings: Any
) -> AsyncIterator[EmbeddedBroker]:
    broker = EmbeddedBroker(EmbeddedSettings(port=0, **settings), limits or Limits(), broker_limits)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


@pytest.fixture
async def broker() -> AsyncIterator[EmbeddedBroker]:
    async with running() as broker:
        yield broker


# ---------------------------------------------------------------------------------------- raw connections


async def talk(port: int, octets: bytes, timeout: float = 5) -> bytes:
    """Send octets, and read what comes until the server hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(octets)
    try:
        return await asyncio.wait_for(reader.read(), timeout)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(("header", "version"), PROTOCOL_HEADERS.items())
async def test_the_header_chooses_the_version(broker: EmbeddedBroker, header: bytes, version: Version) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    for octet in header:
        writer.write(bytes([octet]))
        await writer.drain()
    first = await asyncio.wait_for(reader.read(65_536), 5)
    assert PRODUCT.encode() in first
    assert b"durable_storage" in first
    writer.close()
    (connection,) = broker.broker.connections.values()
    assert connection.session.version is version


@pytest.mark.parametrize("octets", [b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x01\x00\x00", b"AMQQ", b"\x00"])
async def test_another_header_gets_ours(broker: EmbeddedBroker, octets: bytes) -> None:
    assert await talk(broker.port, octets) in (FALLBACK_HEADER, b"")
    assert not broker.broker.connections


async def test_silence_is_not_waited_for() -> None:
    async with running(Limits(handshake_timeout=0.1)) as broker:
        for octets in (b"", b"AMQP", b"AMQP\x00\x00\x09\x01"):
            await talk(broker.port, octets)


async def test_one_connection_too_many() -> None:
    async with running(Limits(close_timeout=0.1), BrokerLimits(connections=2)) as broker:
        streams = [await asyncio.open_connection("127.0.0.1", broker.port) for _ in range(2)]
        refusal = await talk(broker.port, octets_that_ask()[0])
        assert b"NOT_ALLOWED - the limit of 2 connections is reached" in refusal
        for _, writer in streams:
            writer.close()


async def test_stop_ends_those_who_do_not_answer() -> None:
    limits = Limits(close_timeout=0.1)
    async with running(limits) as broker:
        _, silent = await asyncio.open_connection("127.0.0.1", broker.port)
        reader, begun = await asyncio.open_connection("127.0.0.1", broker.port)
        begun.write(b"AMQP\x00\x00\x09\x01")
        await reader.read(100)
        port = broker.port
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    silent.close()
    begun.close()


# -------------------------------------------------------------------------------------------------- pika


@contextlib.contextmanager
def client(
    port: int, user: str = "guest", password: str = "guest", **options: Any
) -> Iterator[pika.BlockingConnection]:
    parameters = pika.ConnectionParameters(
        "127.0.0.1",
        port,
        credentials=pika.PlainCredentials(user, password),
        socket_timeout=5,
        blocked_connection_timeout=5,
        **options,
    )
    connection = pika.BlockingConnection(parameters)
    try:
        yield connection
    finally:
        if connection.is_open:
            connection.close()


async def with_pika(broker: EmbeddedBroker, use: Callable[[BlockingChannel], T], **options: Any) -> T:
    """Run ``use`` on a channel of pika's, in a thread of its own."""

    def work() -> T:
        with client(broker.port, **options) as connection:
            return use(connection.channel())

    return await asyncio.wait_for(asyncio.to_thread(work), 30)


async def test_pika_publishes_and_consumes(broker: EmbeddedBroker) -> None:
    def use(channel: BlockingChannel) -> None:
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.exchange_declare("logs", "topic")
        channel.queue_bind(queue, "logs", "eu.#")
        channel.confirm_delivery()
        properties = pika.BasicProperties(headers={"n": 1, "s": "x"}, delivery_mode=2, message_id="m")
        for number in range(100):
            channel.basic_publish("logs", "eu.de", b"%d" % number, properties, mandatory=True)
        channel.basic_qos(prefetch_count=10)
        seen = []
        for method, found, body in channel.consume(queue, inactivity_timeout=5):
            assert method is not None
            seen.append(body)
            assert found.headers == {"n": 1, "s": "x"}
            assert (found.message_id, found.delivery_mode) == ("m", 2)
            channel.basic_ack(method.delivery_tag)
            if len(seen) == 100:
                break
        assert seen == [b"%d" % number for number in range(100)]
        channel.cancel()
        assert channel.queue_declare(queue, passive=True).method.message_count == 0

    await with_pika(broker, use)
    assert broker.broker.memory.used == 0
    assert not broker.broker.virtual_host("/").queues


async def test_pika_large_and_empty_bodies(broker: EmbeddedBroker) -> None:
    def use(channel: BlockingChannel) -> None:
        channel.queue_declare("q")
        channel.confirm_delivery()
        bodies = [b"", b"x" * 131_064, b"x" * 131_065, bytes(range(256)) * 20_000]
        for body in bodies:
            channel.basic_publish("", "q", body)
        assert [channel.basic_get("q", auto_ack=True)[2] for _ in bodies] == bodies

    await with_pika(broker, use)


async def test_pika_unroutable_and_refused(broker: EmbeddedBroker) -> None:
    def use(channel: BlockingChannel) -> None:
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.UnroutableError) as error:
            channel.basic_publish("", "nowhere", b"x", mandatory=True)
        assert error.value.messages[0].body == b"x"
        channel.queue_declare("q", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", "q", b"x")

    await with_pika(broker, use)


async def test_pika_failures_cost_the_channel_alone(broker: EmbeddedBroker) -> None:
    def use(channel: BlockingChannel) -> None:
        connection = channel.connection
        failures: list[tuple[Callable[[BlockingChannel], object], int, str]] = [
            (lambda channel: channel.queue_declare("none", passive=True), 404, "NOT_FOUND - no queue 'none'"),
            (lambda channel: channel.exchange_declare("none", passive=True), 404, "NOT_FOUND - no exchange 'none'"),
            (lambda channel: channel.basic_consume("none", lambda *_: None), 404, "NOT_FOUND - no queue 'none'"),
            (lambda channel: channel.exchange_declare("amq.mine"), 403, "ACCESS_REFUSED - exchange name 'amq.mine'"),
            (lambda channel: channel.queue_declare("q", durable=True), 406, "PRECONDITION_FAILED - inequivalent arg"),
            (lambda channel: channel.tx_commit(), 406, "PRECONDITION_FAILED - channel is not transactional"),
        ]
        channel.queue_declare("q")
        for fail, code, text in failures:
            victim = connection.channel()
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as error:
                fail(victim)
            assert error.value.reply_code == code
            assert error.value.reply_text.startswith(text)
        assert channel.queue_declare("q", passive=True).method.message_count == 0

    await with_pika(broker, use)


async def test_pika_failures_that_cost_the_connection(broker: EmbeddedBroker) -> None:
    def use(channel: BlockingChannel) -> None:
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as error:
            channel.exchange_declare("x", "unheard-of")
        assert error.value.reply_code == 503
        assert error.value.reply_text == "COMMAND_INVALID - unknown exchange type 'unheard-of'"

    await with_pika(broker, use)


async def test_pika_transactions_and_dead_letters(broker: EmbeddedBroker) -> None:
    def use(channel: BlockingChannel) -> None:
        channel.queue_declare("dead")
        channel.queue_declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        channel.tx_select()
        channel.basic_publish("", "q", b"1")
        channel.tx_rollback()
        channel.basic_publish("", "q", b"2")
        channel.tx_commit()
        method, _, body = channel.basic_get("q")
        assert body == b"2"
        channel.basic_reject(method.delivery_tag, requeue=False)
        channel.tx_commit()
        method, properties, body = channel.basic_get("dead", auto_ack=True)
        assert body == b"2"
        (death,) = properties.headers["x-death"]
        assert (death["queue"], death["reason"], death["count"]) == ("q", "rejected", 1)
        assert death["routing-keys"] == ["q"]

    await with_pika(broker, use)


async def test_pika_requeue_and_recover(broker: EmbeddedBroker) -> None:
    def use(channel: BlockingChannel) -> None:
        channel.queue_declare("q")
        for number in range(3):
            channel.basic_publish("", "q", b"%d" % number)
        tags = [channel.basic_get("q")[0].delivery_tag for _ in range(3)]
        channel.basic_nack(tags[1], multiple=True, requeue=True)
        method, _, body = channel.basic_get("q")
        assert (body, method.redelivered) == (b"0", True)
        channel.basic_recover(requeue=True)
        assert channel.queue_declare("q", passive=True).method.message_count == 3
        assert channel.queue_purge("q").method.message_count == 3
        assert channel.queue_delete("q").method.message_count == 0
        assert channel.queue_delete("q").method.message_count == 0

    await with_pika(broker, use)


async def test_pika_is_told_when_a_queue_goes(broker: EmbeddedBroker) -> None:
    def use(channel: BlockingChannel) -> None:
        channel.queue_declare("q")
        cancelled = threading.Event()
        channel.add_on_cancel_callback(lambda frame: cancelled.set())
        channel.basic_consume("q", lambda *_: None)
        other = channel.connection.channel()
        other.queue_delete("q")
        channel.connection.process_data_events(time_limit=2)
        assert cancelled.is_set()

    await with_pika(broker, use)


async def test_pika_expiry(broker: EmbeddedBroker) -> None:
    def use(channel: BlockingChannel) -> None:
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"x", pika.BasicProperties(expiration="30"))
        assert channel.queue_declare("q", passive=True).method.message_count == 1
        channel.connection.sleep(0.2)
        assert channel.queue_declare("q", passive=True).method.message_count == 0

    await with_pika(broker, use)


async def test_pika_exclusive_queues(broker: EmbeddedBroker) -> None:
    def use(channel: BlockingChannel) -> None:
        channel.queue_declare("q", exclusive=True)
        with client(broker.port) as other, pytest.raises(pika.exceptions.ChannelClosedByBroker) as error:
            other.channel().queue_declare("q", passive=True)
        assert error.value.reply_code == 405

    await with_pika(broker, use)
    await with_pika(broker, lambda channel: channel.queue_declare("q", exclusive=True))


async def test_pika_wrong_password_and_virtual_host(broker: EmbeddedBroker) -> None:
    def refused(**options: Any) -> type[Exception]:
        with pytest.raises(pika.exceptions.AMQPConnectionError) as error, client(broker.port, **options):
            pass
        return error.type

    assert await asyncio.to_thread(refused, password="wrong") is pika.exceptions.ProbableAuthenticationError
    assert issubclass(
        await asyncio.to_thread(refused, virtual_host="none"),
        (pika.exceptions.ProbableAccessDeniedError, pika.exceptions.ConnectionClosedByBroker),
    )
    await with_pika(broker, lambda channel: channel.queue_declare("q"), virtual_host="")


async def test_pika_channels_by_the_thousand(broker: EmbeddedBroker) -> None:
    def use(channel: BlockingChannel) -> None:
        for _ in range(300):
            channel.connection.channel().close()

    await with_pika(broker, use)


async def test_pika_update_secret(broker: EmbeddedBroker) -> None:
    await with_pika(broker, lambda channel: channel.connection.update_secret("guest", "rotation"))


async def test_a_blocked_publisher_is_told() -> None:
    async with running(queue_memory=1 << 20) as broker:

        def use(channel: BlockingChannel) -> None:
            told: list[str] = []
            channel.connection.add_on_connection_blocked_callback(lambda *_: told.append("blocked"))
            channel.connection.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
            channel.queue_declare("q")
            channel.confirm_delivery()
            for _ in range(3):
                channel.basic_publish("", "q", b"x" * 300_000)
            with pytest.raises(pika.exceptions.NackError):
                channel.basic_publish("", "q", b"x" * 300_000)
            channel.queue_purge("q")
            channel.connection.process_data_events(time_limit=0.2)
            assert told == ["blocked", "unblocked"]
            channel.basic_publish("", "q", b"x" * 300_000)

        await with_pika(broker, use)


async def test_stop_tells_pika() -> None:
    async with running() as broker:
        connected = threading.Event()

        def use() -> tuple[int, str]:
            with client(broker.port) as connection:
                connection.channel()
                connected.set()
                with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as error:
                    connection.sleep(10)
            return error.value.reply_code, error.value.reply_text

        waiting = asyncio.create_task(asyncio.to_thread(use))
        await asyncio.to_thread(connected.wait, 5)
        await broker.stop()
        assert await waiting == (320, "CONNECTION_FORCED - the embedded broker stops")


async def test_a_consumer_that_does_not_read(broker: EmbeddedBroker) -> None:
    """It holds up nobody, and what waits for it waits in the queue."""
    raw = await asyncio.to_thread(_StuckConsumer, broker.port)
    await asyncio.to_thread(raw.consume, "q")

    def use(channel: BlockingChannel) -> None:
        channel.confirm_delivery()
        for _ in range(400):
            channel.basic_publish("", "q", b"x" * 100_000)
        assert channel.queue_declare("q", passive=True).method.message_count > 200

    await with_pika(broker, use)
    assert await asyncio.to_thread(raw.count) == 400
    await asyncio.to_thread(raw.close)


class _StuckConsumer:
    """A consumer that reads when told to."""

    def __init__(self, port: int) -> None:
        self._pika = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        self._channel = self._pika.channel()
        self._seen = 0

    def consume(self, queue: str) -> None:
        self._channel.queue_declare(queue)
        self._channel.basic_consume(queue, self._on_message, auto_ack=True)

    def _on_message(self, *_: object) -> None:
        self._seen += 1

    def count(self) -> int:
        deadline = time.monotonic() + 10
        while self._seen < 400 and time.monotonic() < deadline:
            self._pika.process_data_events(time_limit=0.1)
        return self._seen

    def close(self) -> None:
        self._pika.close()


async def test_a_client_that_asks_and_never_reads() -> None:
    """Answers to its own requests pile up to a bound; then it is not read from either."""
    async with running(broker_limits=BrokerLimits(input_stop=1 << 18)) as broker:

        def use(channel: BlockingChannel) -> None:
            channel.queue_declare("q")
            channel.basic_publish("", "q", b"x" * 1_000_000)

        await with_pika(broker, use)
        greedy = socket.create_connection(("127.0.0.1", broker.port))
        greedy.setblocking(False)
        loop = asyncio.get_running_loop()
        handshake, get = octets_that_ask()
        await loop.sock_sendall(greedy, handshake)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.sock_sendall(greedy, get * 1_000_000), 1)
        (served,) = broker._served
        assert served.connection is not None
        assert served.connection.backlog
        assert served.connection.outgoing < 3_000_000
        assert not served.stream.reading
        await with_pika(broker, lambda channel: channel.queue_declare("other"))
        greedy.close()


async def test_a_client_that_reads_late_gets_everything() -> None:
    async with running(broker_limits=BrokerLimits(input_stop=1 << 16)) as broker:

        def use(channel: BlockingChannel) -> None:
            channel.queue_declare("q")
            channel.basic_publish("", "q", b"x" * 50_000)

        await with_pika(broker, use)
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port, limit=1 << 16)
        handshake, get = octets_that_ask()
        writer.write(handshake + get * 2_000)
        while not broker._served or not (served := next(iter(broker._served))).connection:
            await asyncio.sleep(0.01)
        while served.stream.reading:
            await asyncio.sleep(0.01)
        assert served.connection is not None
        assert served.connection.backlog
        received = 0
        while received < 2_000 * 50_000:
            octets = await asyncio.wait_for(reader.read(1 << 20), 5)
            assert octets
            received += len(octets)
        while not served.stream.reading:
            await asyncio.sleep(0.01)
        assert not served.connection.backlog
        writer.close()


async def test_stopped_twice() -> None:
    async with running() as broker:
        port = broker.port
        await broker.stop()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


def octets_that_ask() -> tuple[bytes, bytes]:
    """A handshake of 0-9-1 without waiting for answers, and a basic.get that is released at once."""

    def frame(kind: int, channel: int, payload: bytes) -> bytes:
        return bytes([kind]) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"

    def method(channel: int, class_id: int, method_id: int, arguments: bytes) -> bytes:
        return frame(1, channel, class_id.to_bytes(2, "big") + method_id.to_bytes(2, "big") + arguments)

    def short(text: bytes) -> bytes:
        return bytes([len(text)]) + text

    response = b"\0guest\0guest"
    handshake = (
        b"AMQP\x00\x00\x09\x01"
        + method(
            0, 10, 11, b"\0\0\0\0" + short(b"PLAIN") + len(response).to_bytes(4, "big") + response + short(b"en_US")
        )
        + method(0, 10, 31, (2047).to_bytes(2, "big") + (131_072).to_bytes(4, "big") + b"\0\0")
        + method(0, 10, 40, short(b"/") + b"\0\0")
        + method(1, 20, 10, b"\0")
    )
    return handshake, method(1, 60, 70, b"\0\0" + short(b"q") + b"\0") + method(1, 60, 110, b"\x01")


async def test_recover_of_0_8_is_answered_as_in_the_transcript(broker: EmbeddedBroker) -> None:
    """The same octets get the same methods in the same order as from RabbitMQ."""
    transcript = golden.load("rabbitmq-0-8-recover")
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    heard = b""
    for who, octets in transcript.pieces:
        if who == "client":
            writer.write(octets)
            heard += await asyncio.wait_for(reader.read(1 << 16), 5)
            with contextlib.suppress(TimeoutError):
                while chunk := await asyncio.wait_for(reader.read(1 << 16), 0.1):
                    heard += chunk
    writer.close()

    def methods(data: bytes) -> list[bytes]:
        return [frame[7:11] for frame in frames(V0_8, data) if frame[0] == 1]

    assert methods(heard) == methods(transcript.from_server)
