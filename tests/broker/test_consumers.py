"""Consuming: fair dispatch within prefetch and credit, settlement, browsing, selecting."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.amqp.operations import (
    Acquire,
    Acquired,
    Cancel,
    ChannelClosed,
    CloseChannel,
    Consume,
    Consuming,
    Credit,
    Declared,
    DeclareQueue,
    Deliver,
    Done,
    Failed,
    Flow,
    Get,
    Got,
    OpenChannel,
    PurgeQueue,
    Qos,
    QueryQueue,
    Recover,
    Settle,
    Settlement,
)
from gateway.limits import BrokerLimits
from gateway.session import Version
from gateway.v010.version import V0_10
from gateway.v08.version import V0_8
from gateway.v091.version import V0_9_1
from tests.broker.clients import Client, ack, make_broker, publishing

RELEASE, REJECT = Settlement.RELEASE, Settlement.REJECT


@pytest.fixture
def client() -> Client:
    client = Client(make_broker())
    client(DeclareQueue(1, "q"))
    return client


def fill(client: Client, count: int, queue: str = "q", size: int = 0) -> None:
    client(*(publishing(queue, b"%d" % number + b" " * size) for number in range(count)))


def delivered(client: Client) -> list[tuple[str, bytes]]:
    return [(told.consumer_tag, told.message.body) for told in client.take() if isinstance(told, Deliver)]


def test_deliver(client: Client) -> None:
    client.publish("q", b"before")
    consuming, deliver = client(Consume(1, "q", "tag"))
    assert consuming == Consuming(1, 4, 4, "tag")
    assert isinstance(deliver, Deliver)
    assert (deliver.consumer_tag, deliver.delivery, deliver.redelivered) == ("tag", 1, False)
    assert (deliver.exchange, deliver.routing_key, deliver.message.body) == ("", "q", b"before")
    client.broker.receive(client.connection, [publishing("q", b"after")], 0)
    assert delivered(client) == [("tag", b"after")]


def test_a_tag_by_the_server(client: Client) -> None:
    first = client.one(Consume(1, "q"), Consuming).consumer_tag
    second = client.one(Consume(1, "q"), Consuming).consumer_tag
    assert first.startswith("amq.ctag-")
    assert first != second


def test_a_tag_in_use_costs_the_connection(client: Client) -> None:
    client(Consume(1, "q", "tag"))
    assert client.failure(Consume(1, "q", "tag")) == (530, "NOT_ALLOWED - attempt to reuse consumer tag 'tag'")
    assert not client.broker.connections


def test_unknown_argument(client: Client) -> None:
    assert client.failure(Consume(1, "q", "tag", arguments={"x-stream-offset": 5})) == (
        406,
        "PRECONDITION_FAILED - unknown arg 'x-stream-offset' for consumer of queue 'q' in vhost '/'",
    )


def test_in_turn(client: Client) -> None:
    client(Consume(1, "q", "a", no_ack=True), Consume(1, "q", "b", no_ack=True))
    fill(client, 4)
    other = Client(client.broker)
    other(Consume(1, "q", "c", no_ack=True))
    other(*(publishing("q", b"%d" % number) for number in range(6)))
    assert [tag for tag, _ in delivered(client)] == ["a", "b", "a", "b"]
    assert client.broker.memory.used == 0


def test_prefetch_per_consumer(client: Client) -> None:
    client(Qos(1, 2), Consume(1, "q", "a"), Qos(1, 1), Consume(1, "q", "b"))
    fill(client, 5)
    publisher = Client(client.broker)
    publisher(publishing("q", b"5"))
    assert client.told == []
    assert client.one(QueryQueue(1, "q"), Declared).message_count == 3


def test_settling_one_by_one(client: Client) -> None:
    fill(client, 4)
    client(Qos(1, 1))
    _, first = client(Consume(1, "q", "tag"))
    assert isinstance(first, Deliver)
    for number in range(1, 4):
        (deliver,) = client(ack(number))
        assert isinstance(deliver, Deliver)
        assert deliver.message.body == b"%d" % number
    assert client(ack(4)) == []
    assert client.broker.memory.used == 0


def test_prefetch_of_the_channel(client: Client) -> None:
    client(DeclareQueue(1, "r"))
    fill(client, 3)
    fill(client, 3, "r")
    client(Qos(1, 2, whole_channel=True))
    told = client(Consume(1, "q", "a"), Consume(1, "r", "b"))
    assert [each.consumer_tag for each in told if isinstance(each, Deliver)] == ["a", "a"]
    (deliver,) = client(ack(1))
    assert isinstance(deliver, Deliver)
    assert [type(each) for each in client(Qos(1, 3, whole_channel=True))] == [Done, Deliver]


def test_prefetch_in_octets(client: Client) -> None:
    fill(client, 4, size=99)
    client(Qos(1, 0, 250))
    told = client(Consume(1, "q", "tag"))
    assert len([each for each in told if isinstance(each, Deliver)]) == 2
    (deliver,) = client(ack(1))
    assert isinstance(deliver, Deliver)
    client.publish("q", b"x" * 1_000)
    (deliver,) = client(ack(0, 3))
    client.publish("q", b"behind")
    (deliver,) = client(ack(4))
    assert isinstance(deliver, Deliver)
    assert len(deliver.message.body) == 1_000


@pytest.mark.parametrize(("version", "count"), [(V0_8, 2), (V0_9_1, 0)])
def test_qos_on_a_running_channel(version: Version, count: int) -> None:
    client = Client(make_broker(), version)
    client(DeclareQueue(1, "q"), Qos(1, 1), Consume(1, "q", "tag"))
    fill(client, 5)
    done, *more = client(Qos(1, 3))
    assert isinstance(done, Done)
    assert len(more) == count


def test_get_does_not_count_against_prefetch(client: Client) -> None:
    fill(client, 2)
    assert client.get("q", no_ack=False)
    client(Qos(1, 1, whole_channel=True))
    _, deliver = client(Consume(1, "q", "tag"))
    assert isinstance(deliver, Deliver)


def test_get(client: Client) -> None:
    client.publish("q", b"1")
    client.publish("q", b"2")
    got = client.one(Get(1, "q"), Got)
    assert (got.first, got.last, got.delivery, got.message_count, got.message.body) == (5, 5, 1, 1, b"1")


# --------------------------------------------------------------------------------------------- settlement


def test_unknown_delivery(client: Client) -> None:
    assert client.failure(ack(7)) == (406, "PRECONDITION_FAILED - unknown delivery tag 7")
    fill(client, 1)
    client.get("q", no_ack=False)
    client(ack(1))
    assert client.failure(ack(1))[0] == 406
    assert client.failure(ack(0, 9))[0] == 406
    assert client(ack(0, 0)) == []


def test_unknown_delivery_in_0_10() -> None:
    client = Client(make_broker(), V0_10)
    assert client(ack(7), ack(3, 900), ack(0, 5)) == []


@pytest.mark.parametrize(
    ("settle", "left"),
    [
        (ack(3), [b"0", b"1", b"3", b"4"]),
        (ack(0, 3), [b"3", b"4"]),
        (ack(0, 0), []),
        (ack(2, 4), [b"0", b"4"]),
        (ack(2, 1 << 40), [b"0"]),
    ],
)
def test_ranges(client: Client, settle: Settle, left: list[bytes]) -> None:
    fill(client, 5)
    for _ in range(5):
        client.get("q", no_ack=False)
    client(settle)
    client(CloseChannel(1), OpenChannel(1))
    assert client.drain("q") == left
    assert client.broker.memory.used == 0


def test_release(client: Client) -> None:
    fill(client, 3)
    client(Qos(1, 1), Consume(1, "q", "tag"))
    (deliver,) = client(ack(1, settlement=RELEASE))
    assert isinstance(deliver, Deliver)
    assert (deliver.message.body, deliver.redelivered, deliver.delivery) == (b"0", True, 2)


def test_release_many(client: Client) -> None:
    fill(client, 1_000)
    client(Consume(1, "q", "tag"), Cancel(1, "tag"))
    client(ack(0, 1_000, RELEASE))
    assert client.drain("q") == [b"%d" % number for number in range(1_000)]


def test_release_out_of_order(client: Client) -> None:
    fill(client, 300)
    client(Consume(1, "q", "tag"), Cancel(1, "tag"))
    for number in [*range(1, 301, 2), *range(300, 0, -2)]:
        client(ack(number, settlement=RELEASE))
    assert client.drain("q") == [b"%d" % number for number in range(300)]


def test_reject_without_dead_letters_drops(client: Client) -> None:
    fill(client, 1)
    client.get("q", no_ack=False)
    client(ack(1, settlement=REJECT))
    assert client.drain("q") == []
    assert client.broker.memory.used == 0


def test_recover(client: Client) -> None:
    fill(client, 3)
    client(Consume(1, "q", "tag"))
    done, *deliveries = client(Recover(1))
    assert isinstance(done, Done)
    assert [
        (each.delivery, each.message.body, each.redelivered) for each in deliveries if isinstance(each, Deliver)
    ] == [
        (4, b"0", True),
        (5, b"1", True),
        (6, b"2", True),
    ]


def test_recover_to_those_who_had_it(client: Client) -> None:
    fill(client, 3)
    client(Qos(1, 2))
    _, *first = client(Consume(1, "q", "tag"))
    assert len(first) == 2
    client.get("q", no_ack=False)
    _done, *again = client(Recover(1, requeue=False))
    assert [(each.delivery, each.message.body) for each in again if isinstance(each, Deliver)] == [(4, b"0"), (5, b"1")]
    assert client.one(QueryQueue(1, "q"), Declared).message_count == 1
    (deliver,) = client(ack(4))
    assert isinstance(deliver, Deliver)
    assert deliver.message.body == b"2"


def test_a_closed_channel_gives_back(client: Client) -> None:
    client(OpenChannel(2), Consume(2, "q", "tag"))
    fill(client, 3)
    (closed,) = client(CloseChannel(2))
    assert isinstance(closed, ChannelClosed)
    got = client.get("q")
    assert got is not None
    assert got.redelivered
    assert (got.message.body, got.message_count) == (b"0", 2)


def test_a_lost_connection_gives_back(client: Client) -> None:
    other = Client(client.broker)
    fill(client, 2)
    other(Consume(1, "q", "tag"))
    client(Consume(1, "q", "mine"))
    client.take()
    client.broker.disconnect(other.connection, 0)
    client.broker.disconnect(other.connection, 0)
    assert delivered(client) == [("mine", b"0"), ("mine", b"1")]


def test_cancel_leaves_what_is_out(client: Client) -> None:
    fill(client, 1)
    client(Consume(1, "q", "tag"))
    client.one(Cancel(1, "tag"), Done)
    client.one(Cancel(1, "unheard-of"), Done)
    assert client(ack(1)) == []
    fill(client, 1)
    assert client.drain("q") == [b"0"]


# -------------------------------------------------------------------------------- exclusive, single, order


def test_exclusive_consumer(client: Client) -> None:
    client(Consume(1, "q", "tag", exclusive=True))
    other = Client(client.broker)
    text = "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"
    assert other.failure(Consume(1, "q")) == (403, text)
    client(Cancel(1, "tag"))
    other(Consume(1, "q"))
    assert client.failure(Consume(1, "q", exclusive=True)) == (403, text)


def test_single_active_consumer() -> None:
    client = Client(make_broker())
    client(DeclareQueue(1, "q", arguments={"x-single-active-consumer": True}))
    client(Qos(1, 1), Consume(1, "q", "a"), Consume(1, "q", "b"), Consume(1, "q", "c"))
    told = client(publishing("q", b"1"), publishing("q", b"2"))
    assert [(each.consumer_tag, each.message.body) for each in told if isinstance(each, Deliver)] == [("a", b"1")]
    (deliver,) = client(ack(1))
    assert isinstance(deliver, Deliver)
    assert deliver.consumer_tag == "a"
    client(Cancel(1, "b"))
    client.publish("q", b"3")
    _, deliver = sorted(client(Cancel(1, "a")), key=lambda each: isinstance(each, Deliver))
    assert isinstance(deliver, Deliver)
    assert (deliver.consumer_tag, deliver.message.body) == ("c", b"3")


def test_a_queue_with_a_single_active_consumer_has_no_exclusive_one() -> None:
    client = Client(make_broker())
    client(DeclareQueue(1, "q", arguments={"x-single-active-consumer": True}))
    text = "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"
    assert client.failure(Consume(1, "q", exclusive=True)) == (403, text)


def test_consumer_priorities(client: Client) -> None:
    client(Qos(1, 1))
    client(Consume(1, "q", "low", arguments={"x-priority": -5}), Consume(1, "q", "normal"))
    client(Consume(1, "q", "high", arguments={"x-priority": 10}))
    told = client(*(publishing("q", b"%d" % number) for number in range(4)))
    assert [each.consumer_tag for each in told if isinstance(each, Deliver)] == ["high", "normal", "low"]
    (deliver,) = client(ack(2))
    assert isinstance(deliver, Deliver)
    assert deliver.consumer_tag == "normal"


def test_priorities_that_come_and_go_leave_nothing(client: Client) -> None:
    for number in range(100):
        client(Consume(1, "q", "tag", arguments={"x-priority": number}), Cancel(1, "tag"))
    assert not client.broker.virtual_host("/").queues["q"]._rotation._lines


# -------------------------------------------------------------------------------------------------- flow


def test_flow(client: Client) -> None:
    client(Consume(1, "q", "tag", no_ack=True))
    assert client(Flow(1, active=False), publishing("q", b"1")) == []
    (deliver,) = client(Flow(1, active=True))
    assert isinstance(deliver, Deliver)


def credited(**options: Any) -> Client:
    client = Client(make_broker(), V0_10)
    client(DeclareQueue(1, "q"), Consume(1, "q", "d", credit=True, **options))
    return client


def test_credit_in_messages() -> None:
    client = credited()
    fill(client, 5)
    assert client(Credit(1, "d", 0, None)) == []
    assert len(client(Credit(1, "d", 2, 0))) == 2
    assert client(ack(1), ack(2)) == []
    assert len(client(Credit(1, "d", 1, 0))) == 1
    assert len(client(Credit(1, "d", None, None))) == 2


def test_credit_in_octets() -> None:
    client = credited(no_ack=True)
    client(*(publishing("q", b"x" * 10) for _ in range(5)))
    assert client(Credit(1, "d", None, 0)) == []
    assert len(client(Credit(1, "d", 0, 25))) == 2
    assert len(client(Credit(1, "d", 0, 5))) == 1


def test_stop() -> None:
    client = credited()
    assert client(Credit(1, "d", 5, None), Credit(1, "d", stopped=True)) == []
    client.publish("q")
    client.take()
    assert client(Credit(1, "d", 1, 0)) == []
    assert len(client(Credit(1, "d", 0, None))) == 1


def test_flush() -> None:
    client = credited()
    fill(client, 2)
    told = client(Credit(1, "d", 5, None), Credit(1, "d", flush=True))
    assert [type(each) for each in told] == [Deliver, Deliver, Done]
    fill(client, 1)
    assert not [told for told in client.take() if isinstance(told, Deliver)]


def test_credit_for_nobody() -> None:
    client = credited()
    assert client.failure(Credit(1, "unheard-of", 1, 1))[0] == 404


# -------------------------------------------------------------------------------------- browse and select


@pytest.mark.parametrize("how", [{"acquired": False}, {"arguments": {"x-filter-no-consume": True}}])
def test_browse(client: Client, how: dict[str, Any]) -> None:
    fill(client, 3)
    _, *told = client(Consume(1, "q", "browser", **how))
    assert len(told) == 3
    assert client(ack(1, settlement=REJECT), ack(2, settlement=RELEASE)) == []
    told = client(publishing("q", b"3"))
    assert [each.message.body for each in told if isinstance(each, Deliver)] == [b"3"]
    client(Cancel(1, "browser"))
    assert client.drain("q") == [b"0", b"1", b"2", b"3"]


def test_browse_with_prefetch_and_another_consumer(client: Client) -> None:
    fill(client, 4)
    client(Qos(1, 2))
    _, *told = client(Consume(1, "q", "browser", acquired=False))
    assert len(told) == 2
    other = Client(client.broker)
    got = [other.get("q") for _ in range(3)]
    assert got[2] is not None
    (deliver,) = client(ack(0, 2))
    assert isinstance(deliver, Deliver)
    assert deliver.message.body == b"3"


def test_browse_priorities() -> None:
    client = Client(make_broker())
    client(DeclareQueue(1, "q", arguments={"x-max-priority": 3}))
    client(publishing("q", b"0"), publishing("q", b"3", priority=3), publishing("q", b"1", priority=1))
    client(Consume(1, "q", "browser", acquired=False, no_ack=True))
    client.take()
    client(publishing("q", b"2", priority=2))
    other = Client(client.broker)
    _, *told = other(Consume(1, "q", "browser", acquired=False, no_ack=True))
    assert [each.message.body for each in told if isinstance(each, Deliver)] == [b"3", b"2", b"1", b"0"]


def test_acquire() -> None:
    client = Client(make_broker(), V0_10)
    client(DeclareQueue(1, "q"))
    fill(client, 5)
    client(Consume(1, "q", "browser", acquired=False, credit=True))
    assert len(client(Credit(1, "browser", None, None))) == 5
    other = Client(client.broker)
    other.get("q")
    assert client.one(Acquire(1, ((1, 2), (4, 900))), Acquired).deliveries == ((2, 2), (4, 5))
    assert client.one(Acquire(1, ((2, 2),)), Acquired).deliveries == ()
    client(ack(2), ack(4, settlement=RELEASE), ack(5, settlement=REJECT), ack(3))
    assert other.drain("q") == [b"2", b"3"]
    client(ack(1))  # it was shown, and is remembered until then
    assert client.broker.memory.used == 0


def select(text: str) -> dict[str, Any]:
    return {"x-filter-jms-selector": text}


def test_selectors_share_a_queue(client: Client) -> None:
    client(Consume(1, "q", "red", arguments=select("colour = 'red'"), no_ack=True))
    client(Consume(1, "q", "large", arguments=select("size > 10"), no_ack=True))
    colours = ["red", "blue", "green", "red"]
    told = client(
        *(publishing("q", b"%d" % index, headers={"colour": colour, "size": 5}) for index, colour in enumerate(colours))
    )
    assert [(each.consumer_tag, each.message.body) for each in told if isinstance(each, Deliver)] == [
        ("red", b"0"),
        ("red", b"3"),
    ]
    client(Consume(1, "q", "any", no_ack=True))
    assert client.one(QueryQueue(1, "q"), Declared).message_count == 0
    assert client.broker.memory.used == 0


def test_selector_with_prefetch_and_requeue(client: Client) -> None:
    client(*(publishing("q", b"%d" % index, headers={"n": index}) for index in range(6)))
    client(Qos(1, 1))
    _, first = client(Consume(1, "q", "odd", arguments=select("n = 1 OR n = 3 OR n = 5")))
    assert isinstance(first, Deliver)
    assert first.message.body == b"1"
    other = Client(client.broker)
    bodies = [got.message.body for _ in range(3) if (got := other.get("q", no_ack=False)) is not None]
    assert bodies == [b"0", b"2", b"3"]
    (deliver,) = client(ack(1))
    assert isinstance(deliver, Deliver)
    assert deliver.message.body == b"5"
    other(ack(0, 3, RELEASE))
    (deliver,) = client(ack(2))
    assert isinstance(deliver, Deliver)
    assert (deliver.message.body, deliver.redelivered) == (b"3", True)
    client(ack(3))
    client(Cancel(1, "odd"))
    assert other.drain("q") == [b"0", b"2", b"4"]
    assert client.broker.memory.used == 0


def test_holes_are_swept(client: Client) -> None:
    queue = client.broker.virtual_host("/").queues["q"]
    client(Consume(1, "q", "odd", arguments=select("odd"), no_ack=True))
    for index in range(2_000):
        client.publish("q", b"%d" % index, headers={"odd": bool(index % 10)})
    assert queue.ready == 200
    assert sum(map(len, queue._lines)) < 600
    client(Cancel(1, "odd"))
    assert client.drain("q") == [b"%d" % index for index in range(0, 2_000, 10)]


def test_no_message_is_held_by_a_consumer_that_does_not_look(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others take and release under its eyes; what is remembered for it stays bounded."""
    monkeypatch.setattr("gateway.broker.queues.RETURNED_MAX", 8)
    fill(client, 5)
    client(Qos(1, 1))
    client(Consume(1, "q", "stuck", arguments=select("TRUE")))
    other = Client(client.broker)
    for delivery in range(1, 50):
        other.get("q", no_ack=False)
        other(ack(delivery, settlement=RELEASE))
    (consumer,) = client.connection.channels[1].consumers.values()
    assert consumer.cursor is not None
    assert len(consumer.queue._returned) + len(consumer.cursor.unseen) <= 13
    client(PurgeQueue(1, "q"))
    client(ack(1))
    assert client.broker.memory.used == 0


def test_a_selector_that_is_none(client: Client) -> None:
    code, text = client.failure(Consume(1, "q", "tag", arguments=select("n = = 5")))
    assert code == 406
    assert "invalid arg 'x-filter-jms-selector'" in text


@pytest.mark.parametrize("how", [{"no_local": True}, {"arguments": {"x-qpid-no-local": "true"}}])
def test_no_local(client: Client, how: dict[str, Any]) -> None:
    client(Consume(1, "q", "tag", no_ack=True, **how))
    assert client(publishing("q", b"mine")) == []
    Client(client.broker).publish("q", b"other")
    assert delivered(client) == [("tag", b"other")]


# ------------------------------------------------------------------------------------------ back-pressure


def test_a_client_that_does_not_read() -> None:
    broker = make_broker(BrokerLimits(output_high_water=10_000))
    slow, quick = Client(broker), Client(broker)
    slow.reads = False
    slow(DeclareQueue(1, "q"), Consume(1, "q", "tag", no_ack=True))
    slow.take()
    fill(quick, 50, size=1_000)
    assert 8 <= len(slow.take()) <= 11
    assert quick.one(QueryQueue(1, "q"), Declared).message_count >= 39
    quick(Consume(1, "q", "other", no_ack=True))
    broker.resume(quick.connection, 0)
    fill(quick, 1)
    assert slow.take() == []
    broker.flushed(slow.connection)
    broker.resume(slow.connection, 0)
    fill(quick, 5)
    assert slow.take()


def test_a_client_that_asks_and_does_not_read() -> None:
    broker = make_broker(BrokerLimits(input_stop=10_000))
    client = Client(broker)
    client(DeclareQueue(1, "q"))
    fill(client, 50, size=1_000)
    client.reads = False
    assert 8 <= len(client(*(Get(1, "q", True) for _ in range(50)))) <= 11
    broker.resume(client.connection, 0)
    assert client.take() == []
    broker.flushed(client.connection)
    broker.resume(client.connection, 0)
    assert 8 <= len(client.take()) <= 11
    assert 28 <= len(client.connection.backlog) <= 34
    broker.disconnect(client.connection, 0)
    assert not client.connection.backlog


def test_paused_and_resumed(client: Client) -> None:
    client.broker.pause(client.connection)
    assert [type(told) for told in client(Consume(1, "q", "tag"), publishing("q", b"1"))] == [Consuming]
    client.broker.resume(client.connection, 0)
    assert client.bodies() == [b"1"]


def test_flush_does_not_wait_for_a_slow_reader() -> None:
    client = credited()
    client.broker.pause(client.connection)
    client.publish("q")
    assert [type(each) for each in client(Credit(1, "d", 1, None, flush=True))] == [Deliver, Done]


def test_one_wake_until_flushed(client: Client) -> None:
    client.reads = False
    client.wakes = 0
    fill(client, 1)
    client(Consume(1, "q", "tag"))
    client(Get(1, "q"), Get(1, "q"))
    assert client.wakes == 1
    client.broker.flushed(client.connection)
    client(Get(1, "q"))
    assert client.wakes == 2


def test_a_message_that_does_not_fit_stays(client: Client) -> None:
    fill(client, 2)
    client.session.refuses = Deliver
    told = client(Consume(1, "q", "tag"))
    assert [type(each) for each in told] == [Consuming, Failed]
    assert isinstance(told[1], Failed)
    assert (told[1].code, told[1].text) == (311, "CONTENT_TOO_LARGE - q: it does not fit")
    assert 1 not in client.connection.channels
    client.session.refuses = None
    client(OpenChannel(1))
    assert client.drain("q") == [b"0", b"1"]


def test_a_message_that_does_not_fit_a_get(client: Client) -> None:
    fill(client, 1)
    client.session.refuses = Got
    assert client.failure(Get(1, "q"))[0] == 311
    client.session.refuses = None
    assert client.drain("q") == [b"0"]


def test_requests_on_a_closed_channel_are_discarded(client: Client) -> None:
    told = client(Get(1, "none"), publishing("q", b"x"), DeclareQueue(1, "other"))
    assert [type(each) for each in told] == [Failed]
    client(OpenChannel(1))
    assert client.drain("q") == []


def test_nobody_is_left_to_hear_it(client: Client) -> None:
    client.session.over.add(1)
    assert client(DeclareQueue(1, "r")) == []


def test_many_channels(client: Client) -> None:
    for _ in range(10_000):
        client(OpenChannel(7))
        client(CloseChannel(7))
    assert list(client.connection.channels) == [1]


def test_a_channel_that_its_session_has_closed_already(client: Client) -> None:
    client(Consume(1, "q", "tag"))
    client.session.over.add(1)
    other = Client(client.broker)
    other.publish("q", b"x")
    assert client.take() == []
    assert other.drain("q") == [b"x"]
    client(ChannelClosed(1, 504, "CHANNEL_ERROR", by_peer=False))
    assert client.broker.virtual_host("/").consumers == 0


def test_a_message_that_does_not_fit_a_browser(client: Client) -> None:
    fill(client, 1)
    client.session.refuses = Deliver
    assert [type(each) for each in client(Consume(1, "q", "tag", acquired=False))] == [Consuming, Failed]
    client.session.refuses = None
    client(OpenChannel(1))
    assert client.drain("q") == [b"0"]


def test_a_parked_consumer_that_has_nothing_to_do(client: Client) -> None:
    other = Client(client.broker)
    client(DeclareQueue(1, "r"))
    client.broker.pause(client.connection)
    client(Consume(1, "q", "a"), Consume(1, "r", "b"))
    client(publishing("q", b"1"), publishing("r", b"2"))
    assert other.drain("q") == [b"1"]
    client.broker.resume(client.connection, 0)
    assert client.bodies() == [b"2"]


def test_two_failures_of_one_channel(client: Client) -> None:
    client(DeclareQueue(1, "r"))
    client.session.refuses = Deliver
    client(Flow(1, active=False), Consume(1, "q", "a"), Consume(1, "r", "b"))
    other = Client(client.broker)
    other(publishing("q"), publishing("r"))
    assert [type(each) for each in client(Flow(1, active=True))] == [Failed]


def test_closing_a_channel_that_is_closed(client: Client) -> None:
    told = client(Get(1, "none"), CloseChannel(1))
    assert [type(each) for each in told] == [Failed, ChannelClosed]
