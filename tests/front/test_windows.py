"""A client that acknowledges late, or never, gets what it would get of the broker directly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    Cancel,
    Cancelled,
    Consume,
    DeclareQueue,
    DeleteQueue,
    Publish,
    Qos,
    Settle,
    Settlement,
    TxCommit,
    TxRollback,
    TxSelect,
)
from gateway.front.channels import windows
from gateway.front.channels.consumers import Window
from tests.front.fronts import RunningFront
from tests.front.test_shares import ANN, BOB, HOLDER, make
from tests.front.test_survival import Estate, Recorded, estate, until
from tests.servers.process import HOST

__all__ = ["estate", "make"]

MANY = 1_500
"""Several times what the broker sends ahead."""


@pytest.fixture
def broker_queue(estate: Estate) -> Callable[[], Any]:
    """The queue at the broker."""
    return lambda: estate.broker.broker.virtual_host("/").queues["q"]


def window(estate: Estate) -> Window:
    """That of the only consumer."""
    ((consumer,),) = [
        channel.consumers.values()
        for client in estate.front.clients.values()
        for channel in client.channels.values()
        if channel.consumers
    ]
    return consumer.window


async def consume(estate: Estate, count: int = MANY, **settings: Any) -> Recorded:
    """A channel with a consumer, of a queue with messages."""
    channel = await estate.channel(await estate.link())
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    for number in range(count):
        channel.send(Publish(channel.number, "", "q", Message(b"%d" % number)))
    await channel.request(Consume(channel.number, "q", "tag", **settings))
    return channel


def in_order(channel: Recorded, count: int) -> bool:
    return [int(each.message.body) for each in channel.deliveries] == list(range(count))


async def test_a_client_that_acknowledges_nothing_gets_all(estate: Estate, broker_queue: Callable[[], Any]) -> None:
    channel = await consume(estate)
    await until(lambda: len(channel.deliveries) == MANY)
    assert in_order(channel, MANY)
    assert {each.consumer_tag for each in channel.deliveries} == {"tag"}
    channel.send(Settle(channel.number, Settlement.ACCEPT, 1, channel.deliveries[-1].delivery))
    await channel.request(Cancel(channel.number, "tag"))
    await until(lambda: not broker_queue().consumers)
    channel.send(Publish(channel.number, "", "q", Message(b"later")))
    await until(lambda: broker_queue().ready == 1)
    await channel.close()
    assert broker_queue().ready == 1
    assert len(channel.deliveries) == MANY


async def test_a_limit_of_the_client_is_kept(estate: Estate) -> None:
    channel = await estate.channel(await estate.link())
    await channel.request(Qos(channel.number, 600))
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    await channel.request(Consume(channel.number, "q", "tag"))
    for number in range(MANY):
        channel.send(Publish(channel.number, "", "q", Message(b"%d" % number)))
    for most in (600, 1_200, MANY):
        await until(lambda most=most: len(channel.deliveries) >= most)  # type: ignore[misc]
        assert in_order(channel, most)
        assert window(estate).size <= 600
        channel.send(Settle(channel.number, Settlement.ACCEPT, 1, channel.deliveries[-1].delivery))


async def test_a_client_that_acknowledges_as_it_goes_needs_no_more(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "GROW_AFTER", 5.0)  # a machine may stall for longer than in earnest
    channel = await estate.channel(await estate.link())
    channel.on_delivery = lambda delivery: channel.send(
        Settle(channel.number, Settlement.ACCEPT, delivery.delivery, delivery.delivery)
    )
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    await channel.request(Consume(channel.number, "q", "tag"))
    for number in range(MANY):
        channel.send(Publish(channel.number, "", "q", Message(b"%d" % number)))
    await until(lambda: len(channel.deliveries) == MANY)
    assert not window(estate).growing


async def test_in_a_transaction(estate: Estate) -> None:
    """What was settled is with the client until the end of the transaction, as the broker sees it."""
    link = await estate.link()
    channel, other = await estate.channel(link), await estate.channel(link)
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    for number in range(MANY):
        other.send(Publish(other.number, "", "q", Message(b"%d" % number)))
    await channel.request(TxSelect(channel.number))
    channel.on_delivery = lambda delivery: channel.send(
        Settle(channel.number, Settlement.ACCEPT, delivery.delivery, delivery.delivery)
    )
    await channel.request(Consume(channel.number, "q", "tag"))
    await until(lambda: len(channel.deliveries) == MANY)
    await channel.request(TxRollback(channel.number))
    channel.send(Settle(channel.number, Settlement.ACCEPT, 1, channel.deliveries[-1].delivery))
    await channel.request(TxCommit(channel.number))
    await channel.close()
    assert not estate.broker.broker.virtual_host("/").queues["q"].ready


async def test_it_begins_again_when_the_broker_is_lost(estate: Estate) -> None:
    channel = await consume(estate)
    await until(lambda: len(channel.deliveries) == MANY)
    channel.deliveries.clear()
    estate.cut()
    await until(lambda: len(channel.deliveries) == MANY)
    assert all(each.redelivered for each in channel.deliveries)


async def test_the_client_hears_once_of_a_deleted_queue(estate: Estate) -> None:
    channel = await consume(estate)
    await until(lambda: len(channel.deliveries) == MANY)
    await channel.request(DeleteQueue(channel.number, "q"))
    await until(lambda: bool(channel.others) or "0-10" in str(estate.broker.session_configs))
    assert len([each for each in channel.others if type(each).__name__ == "Cancelled"]) <= 1


async def test_it_becomes_smaller_when_the_client_holds_less(estate: Estate) -> None:
    channel = await consume(estate)
    await until(lambda: len(channel.deliveries) == MANY)
    grown = window(estate).size
    assert grown > MANY
    channel.send(Settle(channel.number, Settlement.ACCEPT, 1, channel.deliveries[-1].delivery))
    channel.on_delivery = lambda delivery: channel.send(
        Settle(channel.number, Settlement.ACCEPT, delivery.delivery, delivery.delivery)
    )
    sent = len(channel.deliveries)
    while window(estate).growing:
        for _ in range(100):
            channel.send(Publish(channel.number, "", "q", Message(b"more")))
        sent += 100
        await until(lambda sent=sent: len(channel.deliveries) == sent)  # type: ignore[misc]
        assert sent < 20 * grown
    assert window(estate).size == 256


async def test_one_that_reads_nothing_is_sent_no_more_ahead(estate: Estate) -> None:
    channel = await consume(estate)
    await until(lambda: len(channel.deliveries) == MANY)
    channel.send(Settle(channel.number, Settlement.ACCEPT, 1, channel.deliveries[-1].delivery))
    (client,) = estate.front.clients.values()
    assert channel.link.stream is not None
    channel.link.stream.pause_reading()
    other = await estate.channel(await estate.link())
    for _ in range(500):
        other.send(Publish(other.number, "", "q", Message(bytes(50_000))))
    await until(lambda: client.paused)
    await until(lambda: not window(estate).growing)
    channel.link.stream.resume_reading()
    await until(lambda: len(channel.deliveries) == MANY + 500)


async def test_an_exclusive_consumer_gets_its_limit_at_once(estate: Estate) -> None:
    channel = await consume(estate, exclusive=True)
    await until(lambda: len(channel.deliveries) == MANY)
    assert window(estate).size == 2_048
    assert not window(estate).growing


async def test_a_user_has_a_share(make: Callable[..., Any]) -> None:
    """Whose share is used up waits, until something is acknowledged or given back."""
    estate = await make({"front_deliveries": 1_024}, users=(ANN, BOB))
    budget = estate.budgets["front_deliveries"]
    links = [await estate.link(user) for user in (ANN, ANN, BOB)]
    channels = []
    for number, link in enumerate(links):
        channel = link.channel(Recorded)
        await channel.open()
        queue = f"q{number}"
        await channel.request(DeclareQueue(channel.number, queue, durable=True))
        for _ in range(MANY):
            channel.send(Publish(channel.number, "", queue, Message(b"")))
        await channel.request(Consume(channel.number, queue, "tag"))
        await until(lambda channel=channel, most=(768, 256, 768)[number]: len(channel.deliveries) == most)
        channels.append(channel)
    assert budget.held_by(HOLDER) == 512
    assert budget.refusals["share"]
    await links[0].close()
    await until(lambda: len(channels[1].deliveries) == 768)
    assert budget.held_by(HOLDER) == 512
    await links[1].close()
    await links[2].close()
    await until(lambda: not budget.held)


@pytest.fixture(params=[("rabbitmq-4.0", "0-9-1"), ("brokerj", "0-9-1"), ("brokerj", "0-10")], ids="-".join)
def running(request: pytest.FixtureRequest, private_server: Callable[[str], Any]) -> Iterator[RunningFront]:
    """A front to a real broker."""
    kind, version = request.param
    front = RunningFront(private_server(kind).url(version))
    yield front
    front.close()


@pytest.mark.broker
@pytest.mark.parametrize("batch", [500, 3_000])
def test_batches_on_real_brokers(running: RunningFront, batch: int, unique_name: Callable[[str], str]) -> None:
    """A consumer that acknowledges many at once, beside one that acknowledges each."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, running.port, heartbeat=0))
    channel = connection.channel()
    channel.confirm_delivery()
    queues = [unique_name("late"), unique_name("prompt")]
    late, prompt = [], []
    for queue in queues:
        channel.queue_declare(queue, durable=True)
        for number in range(2 * batch):
            channel.basic_publish("", queue, b"%d" % number)

    def arrived(_: Any, method: Any, properties: Any, body: bytes) -> None:
        late.append(int(body))
        if len(late) % batch == 0:
            reader.basic_ack(method.delivery_tag, multiple=True)

    def acknowledge(_: Any, method: Any, properties: Any, body: bytes) -> None:
        prompt.append(int(body))
        other.basic_ack(method.delivery_tag)

    reader, other = connection.channel(), connection.channel()
    reader.basic_consume(queues[0], arrived)
    other.basic_consume(queues[1], acknowledge)
    while len(late) < 2 * batch or len(prompt) < 2 * batch:
        connection.process_data_events(30)
        assert late or prompt
    assert late == prompt == list(range(2 * batch))
    reader.close()
    other.close()
    for queue in queues:
        assert channel.queue_declare(queue, passive=True).method.message_count == 0
        channel.queue_delete(queue)
    connection.close()


@pytest.mark.parametrize("estate", ["0-9-1"], indirect=True)
async def test_a_window_of_which_the_broker_cancels_a_part_is_over(
    estate: Estate, broker_queue: Callable[[], Any]
) -> None:
    """RabbitMQ 4.3 cancels a consumer that holds a message for too long, and only that one."""
    channel = await consume(estate)
    await until(lambda: len(channel.deliveries) == MANY)
    further = next(tag for tag, runs in window(estate).further.items() if runs)
    ((front_channel,),) = [client.channels.values() for client in estate.front.clients.values()]
    front_channel.received(Cancelled(front_channel.number, further))
    await until(lambda: Cancelled(channel.number, "tag") in channel.others)
    await until(lambda: not [each for each in broker_queue().consumers if each.tag != further])
