"""pika does with the embedded broker what it does with RabbitMQ, and sees no difference.

Every test runs against both: what passes on RabbitMQ and not on ours is a difference that an application would
notice.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.interop import octets, samples
from tests.interop.embedded import Embedded
from tests.interop.raw import Octets
from tests.servers.process import HOST
from tests.servers.relay import SERVER, relay_to

pytestmark = pytest.mark.broker

SOON = 5.0
"""How long something may take that is to happen, in seconds."""


@pytest.fixture(params=["rabbitmq", "embedded"])
def port(request: pytest.FixtureRequest) -> int:
    """Where the broker listens."""
    server: Any = request.getfixturevalue(request.param)
    assert request.param != "embedded" or isinstance(server, Embedded)
    return int(server.port)


Open = Callable[..., pika.BlockingConnection]


@pytest.fixture
def connect(port: int) -> Iterator[Open]:
    """``connect(heartbeat=0)``: a connection to the broker."""
    opened: list[pika.BlockingConnection] = []

    def connect(**parameters: Any) -> pika.BlockingConnection:
        parameters = {"heartbeat": 0, "connection_attempts": 1, **parameters}
        connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, port, **parameters))
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        if connection.is_open:
            connection.close()


@pytest.fixture
def channel(connect: Open) -> BlockingChannel:
    return connect().channel()


@pytest.fixture
def queue(channel: BlockingChannel, unique_name: Callable[[str], str]) -> str:
    """A queue that goes with the connection."""
    name = unique_name("pika")
    channel.queue_declare(name, exclusive=True)
    return name


def depth(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def bodies(channel: BlockingChannel, queue: str, within: float = SOON) -> list[bytes]:
    """All that is in the queue, oldest first; waits for the first."""
    deadline = time.monotonic() + within
    found: list[bytes] = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is not None:
            found.append(body)
        elif found or time.monotonic() > deadline:
            return found
        else:
            time.sleep(0.02)


Request = Callable[[BlockingChannel], object]


def wait_for_depth(channel: BlockingChannel, queue: str, number: int) -> None:
    deadline = time.monotonic() + SOON
    while (found := depth(channel, queue)) != number:
        assert time.monotonic() < deadline, f"{found} in the queue, not {number}"
        time.sleep(0.02)


# ------------------------------------------------------------------------------------------- connection


def test_the_server_says_what_it_can_do(connect: Open) -> None:
    properties = connect()._impl.server_properties
    wanted = {
        "publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify",
        "connection.blocked", "authentication_failure_close",
    }  # fmt: skip
    assert wanted <= {name for name, value in properties["capabilities"].items() if value is True}
    for name in ("product", "version", "platform"):
        assert isinstance(properties[name], str)


def _refusal(connect: Open, **parameters: Any) -> str:
    """What pika says of a connection that it may not have."""
    with pytest.raises(pika.exceptions.AMQPConnectionError) as caught:
        connect(**parameters)
    said = repr(caught.value)
    del caught
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # pika leaves a pair of sockets behind
        gc.collect()
    return said


def test_a_wrong_password_is_refused_at_once(connect: Open) -> None:
    started = time.monotonic()
    said = _refusal(connect, credentials=pika.PlainCredentials("guest", "wrong"))
    assert "ProbableAuthenticationError" in said
    assert "(403) 'ACCESS_REFUSED - " in said
    assert time.monotonic() - started < SOON


def test_an_unknown_virtual_host_is_refused(connect: Open) -> None:
    said = _refusal(connect, virtual_host="nowhere")
    assert "ProbableAccessDeniedError" in said
    assert "(530) 'NOT_ALLOWED - vhost nowhere not found'" in said


def test_heartbeats_keep_an_idle_connection(connect: Open) -> None:
    connection = connect(heartbeat=1)
    connection.process_data_events(3.2)
    assert connection.channel().is_open


def test_a_small_frame_size_is_honoured(
    connect: Open, unique_name: Callable[[str], str], request: pytest.FixtureRequest
) -> None:
    """The smallest of the specification; RabbitMQ drops a connection below 8192 since 4.1."""
    since_4_1 = "rabbitmq" in request.node.name and request.getfixturevalue("rabbitmq").release >= (4, 1)
    channel = connect(frame_max=8192 if since_4_1 else 4096).channel()
    name = unique_name("pika")
    channel.queue_declare(name, exclusive=True)
    body = samples.pattern(50_001)
    channel.basic_publish("", name, body)
    assert bodies(channel, name) == [body]


def test_channels_come_and_go(connect: Open) -> None:
    connection = connect()
    for _ in range(500):
        connection.channel().close()
    many = [connection.channel() for _ in range(200)]
    assert many[-1].queue_declare("", exclusive=True).method.queue
    assert connection.channel(2047).is_open


# ---------------------------------------------------------------------------------------------- topology


def test_declaring_twice_is_the_same_and_differently_is_an_error(
    connect: Open, channel: BlockingChannel, queue: str
) -> None:
    assert channel.queue_declare(queue, exclusive=True).method.queue == queue
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="PRECONDITION_FAILED") as caught:
        channel.queue_declare(queue, exclusive=True, auto_delete=True)
    assert caught.value.reply_code == 406


def test_what_is_not_there(connect: Open) -> None:
    connection = connect()
    requests: list[Request] = [
        lambda channel: channel.queue_declare("pika-missing", passive=True),
        lambda channel: channel.exchange_declare("pika-missing", passive=True),
        lambda channel: channel.queue_bind("pika-missing", "amq.topic", "key"),
        lambda channel: channel.basic_get("pika-missing"),
        lambda channel: channel.basic_consume("pika-missing", lambda *_: None),
        lambda channel: channel.queue_purge("pika-missing"),
    ]
    for request in requests:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND") as caught:
            request(connection.channel())
        assert caught.value.reply_code == 404
    channel = connection.channel()
    assert channel.queue_delete("pika-missing").method.message_count == 0
    channel.exchange_delete("pika-missing")
    assert channel.is_open


def test_what_is_reserved_or_belongs_to_another(connect: Open, queue: str) -> None:
    other = connect()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="RESOURCE_LOCKED") as caught:
        other.channel().queue_declare(queue, passive=True)
    assert caught.value.reply_code == 405
    requests: list[Request] = [
        lambda channel: channel.queue_declare("amq.mine"),
        lambda channel: channel.exchange_declare("amq.mine"),
        lambda channel: channel.exchange_delete("amq.topic"),
    ]
    for request in requests:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="ACCESS_REFUSED") as caught:
            request(other.channel())
        assert caught.value.reply_code == 403


@pytest.mark.parametrize(
    ("kind", "binding", "matching", "others"),
    [
        ("direct", ("key", None), [("key", None)], [("Key", None), ("", None)]),
        ("fanout", ("", None), [("any", None), ("", None)], []),
        ("topic", ("a.*.#", None), [("a.b", None), ("a.b.c.d", None)], [("a", None), ("b.a", None)]),
        (
            "headers",
            ("", {"x-match": "all", "n": 1, "s": "x"}),
            [("", {"n": 1, "s": "x", "more": True})],
            [("", {"n": 1}), ("", {"n": 2, "s": "x"}), ("", None)],
        ),
        ("headers", ("", {"x-match": "any", "n": 1, "s": "x"}), [("", {"n": 1})], [("", {"n": 2}), ("", None)]),
    ],
)
def test_every_kind_of_exchange_routes(
    channel: BlockingChannel,
    queue: str,
    unique_name: Callable[[str], str],
    kind: str,
    binding: tuple[str, Any],
    matching: list[tuple[str, Any]],
    others: list[tuple[str, Any]],
) -> None:
    exchange = unique_name("pika")
    channel.confirm_delivery()
    channel.exchange_declare(exchange, kind)
    channel.queue_bind(queue, exchange, *binding)
    for key, headers in matching:
        channel.basic_publish(exchange, key, key.encode(), pika.BasicProperties(headers=headers), mandatory=True)
    for key, headers in others:
        with pytest.raises(pika.exceptions.UnroutableError):
            channel.basic_publish(exchange, key, b"lost", pika.BasicProperties(headers=headers), mandatory=True)
    assert bodies(channel, queue) == [key.encode() for key, _ in matching]
    channel.queue_unbind(queue, exchange, *binding)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(exchange, matching[0][0], b"", pika.BasicProperties(), mandatory=True)
    channel.exchange_delete(exchange)


def test_an_exchange_can_be_bound_to_another(
    channel: BlockingChannel, queue: str, unique_name: Callable[[str], str]
) -> None:
    first, second = unique_name("pika"), unique_name("pika")
    channel.exchange_declare(first, "topic")
    channel.exchange_declare(second, "fanout")
    channel.exchange_bind(second, first, "a.#")
    channel.queue_bind(queue, second)
    channel.basic_publish(first, "a.b", b"through")
    channel.basic_publish(first, "b", b"lost")
    assert bodies(channel, queue) == [b"through"]
    channel.exchange_unbind(second, first, "a.#")
    channel.basic_publish(first, "a.b", b"lost")
    assert bodies(channel, queue, 0.2) == []
    channel.exchange_delete(first)
    channel.exchange_delete(second)


def test_what_is_not_routed_goes_to_the_alternate_exchange(
    channel: BlockingChannel, queue: str, unique_name: Callable[[str], str]
) -> None:
    main, spare = unique_name("pika"), unique_name("pika")
    channel.exchange_declare(spare, "fanout")
    channel.exchange_declare(main, "direct", arguments={"alternate-exchange": spare})
    channel.queue_bind(queue, spare)
    channel.confirm_delivery()
    channel.basic_publish(main, "nobody", b"found", mandatory=True)
    assert bodies(channel, queue) == [b"found"]
    channel.exchange_delete(main)
    channel.exchange_delete(spare)


def test_exclusive_and_auto_delete_queues_go(connect: Open, channel: BlockingChannel) -> None:
    first = connect()
    one = first.channel()
    exclusive = one.queue_declare("", exclusive=True).method.queue
    auto_delete = one.queue_declare("", durable=True, auto_delete=True).method.queue
    assert exclusive.startswith("amq.gen")
    tag = one.basic_consume(auto_delete, lambda *_: None)
    one.basic_cancel(tag)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        one.queue_declare(auto_delete, passive=True)
    assert caught.value.reply_code == 404
    first.close()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare(exclusive, passive=True)
    assert caught.value.reply_code == 404


def test_deleting_only_what_is_unused_or_empty(connect: Open, channel: BlockingChannel, queue: str) -> None:
    connection = connect()
    channel.basic_publish("", queue, b"x")
    wait_for_depth(channel, queue, 1)
    other = connection.channel()
    name = other.queue_declare("", durable=True, auto_delete=True).method.queue
    other.basic_publish("", name, b"x")
    wait_for_depth(other, name, 1)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        other.queue_delete(name, if_empty=True)
    assert caught.value.reply_code == 406
    other = connection.channel()
    other.basic_consume(name, lambda *_: None)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        other.queue_delete(name, if_unused=True)
    assert caught.value.reply_code == 406
    assert channel.queue_purge(queue).method.message_count == 1
    assert channel.queue_delete(queue, if_unused=True, if_empty=True).method.message_count == 0


# ---------------------------------------------------------------------------------------------- messages


def test_properties_and_body_pass_octet_by_octet(
    port: int, unique_name: Callable[[str], str], request: pytest.FixtureRequest
) -> None:
    wire = octets.properties(**samples.ON_THE_WIRE)
    handed_out = octets.properties(**samples.on_the_wire(in_order="embedded" in request.fixturenames))
    name = unique_name("pika")
    with relay_to(port) as relay:
        connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, relay.port, heartbeat=0))
        channel = connection.channel()
        channel.queue_declare(name, exclusive=True)
        for size in samples.SIZES:
            body = samples.pattern(size)
            channel.basic_publish("", name, body, Octets(wire))
            assert bodies(channel, name) == [body]
        connection.close()
        stream = b"".join(data for who, data in relay.connections[0] if who == SERVER)
    assert list(octets.content_headers(stream)) == [handed_out] * len(samples.SIZES)


def test_a_publish_is_confirmed_or_returned(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    for number in range(100):
        channel.basic_publish("", queue, b"%d" % number, mandatory=True)
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("", "pika-missing", b"lost", pika.BasicProperties(message_id="m"), mandatory=True)
    (returned,) = caught.value.messages
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.method.exchange, returned.method.routing_key) == ("", "pika-missing")
    assert (returned.body, returned.properties.message_id) == (b"lost", "m")
    channel.basic_publish("", "pika-missing", b"lost", mandatory=False)
    assert bodies(channel, queue) == [b"%d" % number for number in range(100)]


def test_an_unknown_exchange_costs_the_channel_only(connect: Open) -> None:
    connection = connect()
    channel = connection.channel()
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND - no exchange 'pika-missing'") as caught:
        channel.basic_publish("pika-missing", "key", b"")
    assert caught.value.reply_code == 404
    assert connection.channel().is_open


def test_a_bad_expiration_is_refused(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.basic_publish("", queue, b"", pika.BasicProperties(expiration="soon"))
    assert caught.value.reply_code == 406


def test_a_foreign_user_id_is_refused(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"", pika.BasicProperties(user_id="guest"))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.basic_publish("", queue, b"", pika.BasicProperties(user_id="somebody"))
    assert caught.value.reply_code == 406


def test_get_counts_what_is_left_and_gives_back_what_is_not_acknowledged(channel: BlockingChannel, queue: str) -> None:
    assert channel.basic_get(queue) == (None, None, None)
    for body in (b"a", b"b", b"c"):
        channel.basic_publish("", queue, body)
    wait_for_depth(channel, queue, 3)
    first, _, _ = channel.basic_get(queue)
    assert (first.message_count, first.redelivered, first.exchange, first.routing_key) == (2, False, "", queue)
    assert depth(channel, queue) == 2
    channel.basic_nack(first.delivery_tag, requeue=True)
    wait_for_depth(channel, queue, 3)
    again, _, body = channel.basic_get(queue)
    assert (body, again.redelivered, again.delivery_tag) == (b"a", True, first.delivery_tag + 1)
    channel.basic_ack(again.delivery_tag)
    second, _, _ = channel.basic_get(queue)
    third, _, _ = channel.basic_get(queue)
    channel.basic_ack(third.delivery_tag, multiple=True)
    assert (depth(channel, queue), second.message_count, third.message_count) == (0, 1, 0)


def test_acknowledging_what_is_not_out_closes_the_channel(channel: BlockingChannel, queue: str) -> None:
    channel.basic_ack(77)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="PRECONDITION_FAILED - unknown delivery tag 77"):
        channel.queue_declare(queue, passive=True)


def test_prefetch_bounds_what_is_out(connect: Open, channel: BlockingChannel, queue: str) -> None:
    connection = channel.connection
    consumer = connection.channel()
    consumer.basic_qos(prefetch_count=3)
    came: list[Any] = []
    tag = consumer.basic_consume(queue, lambda _, method, __, body: came.append((method, body)))
    assert tag
    for number in range(10):
        channel.basic_publish("", queue, b"%d" % number)
    _run(connection, lambda: len(came) == 3)
    connection.process_data_events(0.3)
    assert [body for _, body in came] == [b"0", b"1", b"2"]
    consumer.basic_ack(came[2][0].delivery_tag, multiple=True)
    _run(connection, lambda: len(came) == 6)
    consumer.basic_cancel(tag)
    assert depth(channel, queue) == 4
    consumer.close()
    wait_for_depth(channel, queue, 7)
    method, _, body = channel.basic_get(queue)
    assert (body, method.redelivered) == (b"3", True)


def _run(connection: pika.BlockingConnection, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not until():
        assert time.monotonic() < deadline, "it did not happen"
        connection.process_data_events(0.1)


def test_messages_are_shared_between_consumers(channel: BlockingChannel, queue: str) -> None:
    connection = channel.connection
    came: dict[str, list[bytes]] = {"one": [], "two": []}
    for name, bucket in came.items():
        consumer = connection.channel()
        consumer.basic_qos(prefetch_count=1)

        def take(on: BlockingChannel, method: Any, _: Any, body: bytes, bucket: list[bytes] = bucket) -> None:
            bucket.append(body)
            on.basic_ack(method.delivery_tag)

        consumer.basic_consume(queue, take, consumer_tag=name)
    for number in range(20):
        channel.basic_publish("", queue, b"%d" % number)
    _run(connection, lambda: len(came["one"]) + len(came["two"]) == 20)
    assert came["one"]
    assert came["two"]


def test_a_consumer_hears_that_its_queue_is_gone(connect: Open, channel: BlockingChannel) -> None:
    name = channel.queue_declare("", durable=True).method.queue
    connection = connect()
    consumer = connection.channel()
    gone: list[Any] = []
    consumer.add_on_cancel_callback(gone.append)
    consumer.basic_consume(name, lambda *_: None, consumer_tag="mine")
    channel.queue_delete(name)
    _run(connection, lambda: bool(gone))
    assert gone[0].method.consumer_tag == "mine"


def test_an_exclusive_consumer_is_alone(connect: Open, channel: BlockingChannel) -> None:
    name = channel.queue_declare("", durable=True, auto_delete=True).method.queue
    channel.basic_consume(name, lambda *_: None, exclusive=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        connect().channel().basic_consume(name, lambda *_: None)
    assert caught.value.reply_code == 403


def test_recover_gives_everything_back(channel: BlockingChannel, queue: str) -> None:
    for body in (b"a", b"b"):
        channel.basic_publish("", queue, body)
    wait_for_depth(channel, queue, 2)
    channel.basic_get(queue)
    channel.basic_get(queue)
    channel.basic_recover(requeue=True)
    wait_for_depth(channel, queue, 2)
    method, _, body = channel.basic_get(queue)
    assert (body, method.redelivered) == (b"a", True)


def test_a_lost_connection_gives_everything_back(port: int, channel: BlockingChannel) -> None:
    name = channel.queue_declare("", durable=True).method.queue
    channel.basic_publish("", name, b"back")
    wait_for_depth(channel, name, 1)
    with relay_to(port) as relay:
        lost = pika.BlockingConnection(pika.ConnectionParameters(HOST, relay.port, heartbeat=0))
        assert lost.channel().basic_get(name)[2] == b"back"
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        lost.process_data_events(SOON)
    wait_for_depth(channel, name, 1)
    method, _, body = channel.basic_get(name, auto_ack=True)
    assert (body, method.redelivered) == (b"back", True)
    channel.queue_delete(name)


def test_transactions(channel: BlockingChannel, queue: str) -> None:
    connection = channel.connection
    transaction = connection.channel()
    transaction.tx_select()
    transaction.basic_publish("", queue, b"undone")
    transaction.tx_rollback()
    transaction.basic_publish("", queue, b"kept")
    assert depth(channel, queue) == 0
    transaction.tx_commit()
    assert depth(channel, queue) == 1
    method, _, _ = transaction.basic_get(queue)
    transaction.basic_ack(method.delivery_tag)
    transaction.tx_rollback()
    transaction.close()
    wait_for_depth(channel, queue, 1)
    assert bodies(channel, queue) == [b"kept"]


# ----------------------------------------------------------------------------------- queues with arguments


def test_messages_expire_and_are_dead_lettered(
    channel: BlockingChannel, queue: str, unique_name: Callable[[str], str]
) -> None:
    short = unique_name("pika")
    arguments = {"x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    channel.queue_declare(short, exclusive=True, arguments=arguments)
    channel.basic_publish("", short, b"by the queue")
    wait_for_depth(channel, queue, 1)
    _, properties, body = channel.basic_get(queue, auto_ack=True)
    assert body == b"by the queue"
    (death,) = properties.headers["x-death"]
    assert {key: death[key] for key in ("queue", "reason", "count", "exchange", "routing-keys")} == {
        "queue": short, "reason": "expired", "count": 1, "exchange": "", "routing-keys": [short],
    }  # fmt: skip
    assert properties.headers["x-first-death-queue"] == short
    assert properties.headers["x-first-death-reason"] == "expired"
    channel.basic_publish("", queue, b"by itself", pika.BasicProperties(expiration="50"))
    wait_for_depth(channel, queue, 0)


def test_rejected_messages_are_dead_lettered(
    channel: BlockingChannel, queue: str, unique_name: Callable[[str], str]
) -> None:
    name = unique_name("pika")
    arguments = {"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": name}
    channel.queue_declare(name, exclusive=True, arguments=arguments)
    channel.queue_bind(queue, "amq.topic", name)
    for reject in ("basic_reject", "basic_nack"):
        channel.basic_publish("", name, reject.encode(), pika.BasicProperties(headers={"n": 1}))
        wait_for_depth(channel, name, 1)
        method, _, _ = channel.basic_get(name)
        getattr(channel, reject)(method.delivery_tag, requeue=False)
        wait_for_depth(channel, queue, 1)
        _, properties, body = channel.basic_get(queue, auto_ack=True)
        assert body == reject.encode()
        assert properties.headers["n"] == 1
        assert properties.headers["x-death"][0]["reason"] == "rejected"


def test_a_queue_of_limited_length_drops_its_head(channel: BlockingChannel, unique_name: Callable[[str], str]) -> None:
    name = unique_name("pika")
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 2})
    channel.confirm_delivery()
    for body in (b"a", b"b", b"c"):
        channel.basic_publish("", name, body)
    assert bodies(channel, name) == [b"b", b"c"]


def test_a_queue_of_limited_length_may_refuse(channel: BlockingChannel, unique_name: Callable[[str], str]) -> None:
    name = unique_name("pika")
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    channel.basic_publish("", name, b"a")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", name, b"b")
    assert bodies(channel, name) == [b"a"]


def test_a_queue_with_priorities(channel: BlockingChannel, unique_name: Callable[[str], str]) -> None:
    name = unique_name("pika")
    channel.queue_declare(name, exclusive=True, arguments={"x-max-priority": 5})
    channel.confirm_delivery()
    for priority in (1, 5, 0, 3):
        channel.basic_publish("", name, b"%d" % priority, pika.BasicProperties(priority=priority))
    assert bodies(channel, name) == [b"5", b"3", b"1", b"0"]


def test_a_queue_that_is_not_used_expires(channel: BlockingChannel, unique_name: Callable[[str], str]) -> None:
    name = unique_name("pika")
    channel.queue_declare(name, durable=True, arguments={"x-expires": 100})
    time.sleep(0.5)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare(name, passive=True)
    assert caught.value.reply_code == 404


def test_one_active_consumer_at_a_time(channel: BlockingChannel, unique_name: Callable[[str], str]) -> None:
    name = unique_name("pika")
    connection = channel.connection
    channel.queue_declare(name, exclusive=True, arguments={"x-single-active-consumer": True})
    came: list[tuple[str, bytes]] = []
    for tag in ("first", "second"):
        channel.basic_consume(
            name, lambda _, method, __, body: came.append((method.consumer_tag, body)), True, consumer_tag=tag
        )
    for number in range(4):
        channel.basic_publish("", name, b"%d" % number)
    _run(connection, lambda: len(came) == 4)
    assert {tag for tag, _ in came} == {"first"}
    channel.basic_cancel("first")
    channel.basic_publish("", name, b"next")
    _run(connection, lambda: len(came) == 5)
    assert came[-1] == ("second", b"next")
