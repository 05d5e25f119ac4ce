"""Messages that a connection cannot carry: it gets what lies behind them, and they stay for connections that can."""

from __future__ import annotations

from itertools import count
from math import inf
from typing import Any

import pytest

from gateway.amqp.operations import (
    BindQueue,
    Cancel,
    Confirmed,
    Consume,
    Consuming,
    Credit,
    DeclareExchange,
    DeclareQueue,
    Deliver,
    Get,
    GotNothing,
    OpenChannel,
    Operation,
    Publish,
    PurgeQueue,
    Qos,
    QueryQueue,
    Recover,
    Returned,
    SelectConfirm,
    Settlement,
    TxCommit,
    TxSelect,
)
from gateway.amqp.values import INT64_MAX, Typed
from gateway.broker.broker import ATTEMPT_COST, Skip
from gateway.broker.queues import BATCH, CARRIERS_MAX
from gateway.limits import BrokerLimits
from gateway.session import Version
from gateway.v010.version import V0_10
from gateway.v08.version import V0_8
from gateway.v091.version import V0_9_1
from tests.broker.clients import FRAME_MAX, IMPOSSIBLE, Client, ack, make_broker, publishing
from tests.broker.wire import Host

RELEASE, REJECT = Settlement.RELEASE, Settlement.REJECT
LARGE = FRAME_MAX + 1


def too_large(body: bytes = b"large", size: int = LARGE, queue: str = "q", **properties: Any) -> Publish:
    return publishing(queue, body, headers={"frame_size": size}, **properties)


def good(*bodies: bytes, queue: str = "q") -> list[Publish]:
    return [publishing(queue, body) for body in bodies]


def bodies(told: list[Operation]) -> list[bytes]:
    return [each.message.body for each in told if isinstance(each, Deliver)]


class Scene:
    """A broker with a queue, a client with a large frame_max, and what was told of skipped messages."""

    def __init__(self, **arguments: Any) -> None:
        self.skips: list[Skip] = []
        self.broker = make_broker()
        self.broker.on_skip = self.skips.append
        self.publisher = Client(self.broker)
        self.publisher(
            DeclareQueue(1, "q", arguments={f"x-{name.replace('_', '-')}": arguments[name] for name in arguments})
        )
        self.publisher.take()

    def small(self, frame_max: int = FRAME_MAX, version: Version = V0_9_1) -> Client:
        return Client(self.broker, version, frame_max=frame_max)

    def roomy(self) -> Client:
        return Client(self.broker, frame_max=1 << 20)

    @property
    def ready(self) -> int:
        return self.broker.virtual_host("/").queues["q"].ready

    def turn(self, *clients: Client) -> None:
        """What was written has gone out, until nobody is held back by it."""
        for _ in range(100):
            for client in clients:
                self.broker.flushed(client.connection)
                self.broker.resume(client.connection, client.now)


def test_a_consumer_gets_what_is_behind(scene: Scene) -> None:
    consumer = scene.small()
    scene.publisher(too_large(), *good(b"1", b"2"))
    told = consumer(Consume(1, "q", "tag"))
    assert isinstance(told[0], Consuming)
    assert bodies(told) == [b"1", b"2"]
    scene.publisher(*good(b"3"))
    assert consumer.bodies() == [b"3"]
    assert scene.ready == 1
    assert 1 in consumer.connection.channels
    assert scene.skips == [Skip("q", "", "0-9-1", "the header is too large")]
    assert consumer.session.tried == 1


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_it_comes_first_to_a_connection_that_can_carry_it(scene: Scene) -> None:
    consumer, roomy = scene.small(), scene.roomy()
    consumer(Consume(1, "q", "tag", no_ack=True))
    scene.publisher(too_large(b"a"), *good(b"1"), too_large(b"b"), *good(b"2"))
    assert consumer.bodies() == [b"1", b"2"]
    assert bodies(roomy(Consume(1, "q", "roomy", no_ack=True))) == [b"a", b"b"]
    assert scene.ready == 0
    queue = scene.broker.virtual_host("/").queues["q"]
    assert not queue.skipped
    assert not queue._carriers
    scene.publisher(*good(b"3", b"4", b"5", b"6"))
    assert sorted(consumer.bodies() + roomy.bodies()) == [b"3", b"4", b"5", b"6"]


def test_a_consumer_that_waits_takes_it_over(scene: Scene) -> None:
    consumer, roomy = scene.small(), scene.roomy()
    consumer(Consume(1, "q", "tag", no_ack=True))
    roomy(Consume(1, "q", "roomy", no_ack=True))
    for number in range(4):
        scene.publisher(too_large(b"%d" % number))
    assert roomy.bodies() == [b"0", b"1", b"2", b"3"]
    assert consumer.bodies() == []


def test_a_get_looks_past_it(scene: Scene) -> None:
    scene.publisher(too_large(), *good(b"1"), too_large(b"b"))
    client = scene.small()
    got = client.get("q")
    assert got is not None
    assert (got.message.body, got.message_count) == (b"1", 2)
    assert client.get("q") is None
    assert client.get("q") is None
    assert client.session.tried == 2
    assert len(scene.skips) == 2
    assert scene.roomy().drain("q") == [b"large", b"b"]


def test_what_no_frame_carries_stays_and_is_tried_once_for_each_version(scene: Scene) -> None:
    scene.publisher(too_large(size=IMPOSSIBLE), *good(b"1", b"2", b"3"))
    for version, frame_max, body in (
        (V0_9_1, FRAME_MAX, b"1"),
        (V0_9_1, FRAME_MAX - 1, b"2"),
        (V0_8, FRAME_MAX, b"3"),
    ):
        client = scene.small(frame_max, version)
        got = client.get("q")
        assert got is not None
        assert got.message.body == body
        assert client.session.tried == (0 if frame_max < FRAME_MAX else 1)
    assert len(scene.skips) == 1
    assert scene.ready == 1


def test_prefetch_and_credit_are_not_spent(scene: Scene) -> None:
    consumer = scene.small()
    consumer(Qos(1, 1), Consume(1, "q", "tag"))
    credited = scene.small(version=V0_10)
    credited(Consume(1, "q", "d", no_ack=True, credit=True), Credit(1, "d", 1, 10))
    scene.publisher(*(too_large() for _ in range(5)), *good(b"1", b"2", b"3"))
    assert sorted(consumer.bodies() + credited.bodies()) == [b"1", b"2"]
    consumer(ack(1))
    assert scene.ready == 5


def test_flush_of_0_10_ends_behind_it(scene: Scene) -> None:
    scene.publisher(too_large(), *good(b"1"))
    client = scene.small(version=V0_10)
    client(Consume(1, "q", "d", no_ack=True, credit=True))
    delivery, _ = client(Credit(1, "d", 1, None, flush=True))
    assert isinstance(delivery, Deliver)
    assert delivery.message.body == b"1"
    assert bodies(client(Credit(1, "d", 1, None, flush=True))) == []


def test_redelivery_of_those_behind(scene: Scene) -> None:
    consumer = scene.small()
    scene.publisher(too_large(), *good(b"1", b"2"))
    consumer(Qos(1, 1), Consume(1, "q", "tag"))
    assert [told.redelivered for told in consumer(ack(1, settlement=RELEASE)) if isinstance(told, Deliver)] == [True]
    assert bodies(consumer(ack(2))) == [b"2"]


def test_one_that_came_back_is_offered_to_others_again(scene: Scene) -> None:
    small, roomy = scene.small(), scene.roomy()
    small(Consume(1, "q", "tag", no_ack=True))
    roomy(Qos(1, 1), Consume(1, "q", "roomy"))
    scene.publisher(too_large())
    assert roomy.bodies() == [b"large"]
    (again,) = roomy(ack(1, settlement=RELEASE))
    assert isinstance(again, Deliver)
    assert again.redelivered
    assert small.session.tried <= 1
    assert len(scene.skips) <= 1


@pytest.mark.parametrize("priority", [None, 0])
@pytest.mark.parametrize("selector", [False, True])
def test_what_came_back_has_its_old_place(selector: bool, priority: int | None) -> None:
    scene = Scene() if priority is None else Scene(max_priority=5)
    first, second = scene.small(), scene.small()
    arguments = {"x-filter-jms-selector": "JMSPriority < 9"} if selector else {}
    scene.publisher(too_large(), *good(*(b"%d" % number for number in range(1, 7))))
    first(Qos(1, 4))
    assert bodies(first(Consume(1, "q", "f", arguments=arguments))) == [b"1", b"2", b"3", b"4"]
    second(Qos(1, 1))
    assert bodies(second(Consume(1, "q", "s", arguments=arguments))) == [b"5"]
    first(Cancel(1, "f"))
    for number in (4, 3, 1, 2):
        first(ack(number, settlement=RELEASE))
    got = [second(ack(number))[0].message.body for number in range(1, 6)]  # type: ignore[attr-defined]
    assert got == [b"1", b"2", b"3", b"4", b"6"]


def test_much_that_came_back_has_its_old_place(scene: Scene) -> None:
    first, second = scene.small(), scene.small()
    count = 3 * BATCH
    scene.publisher(too_large(), *good(*(b"%d" % number for number in range(count + 1))))
    first(Consume(1, "q", "f"))
    first(Cancel(1, "f"))
    first(*(ack(number, settlement=RELEASE) for number in range(count, 0, -1)))
    told = second(Consume(1, "q", "s", no_ack=True))
    assert bodies(told) == [b"%d" % number for number in range(count)]


def test_recover_to_the_same_consumer(scene: Scene) -> None:
    roomy = scene.roomy()
    scene.publisher(too_large())
    roomy(Consume(1, "q", "tag"))
    roomy.session.capabilities.frame_max = FRAME_MAX
    roomy(Recover(1, False))
    assert scene.ready == 1
    assert scene.broker.virtual_host("/").queues["q"].skipped == 1


def test_priorities() -> None:
    scene = Scene(max_priority=9)
    scene.publisher(
        too_large(b"low", priority=1), too_large(b"high", priority=9), *good(b"0"),
        publishing("q", b"5", priority=5), publishing("q", b"9", priority=9),
    )  # fmt: skip
    small = scene.small()
    assert small.drain("q") == [b"9", b"5", b"0"]
    scene.publisher(publishing("q", b"8", priority=8))
    assert scene.roomy().drain("q") == [b"high", b"8", b"low"]


def test_a_single_active_consumer_goes_on() -> None:
    scene = Scene(single_active_consumer=True)
    small, roomy = scene.small(), scene.roomy()
    small(Consume(1, "q", "active"))
    roomy(Consume(1, "q", "next"))
    scene.publisher(too_large(), *good(b"1"))
    assert small.bodies() == [b"1"]
    assert roomy.bodies() == []
    scene.broker.disconnect(small.connection, 0)
    assert roomy.bodies() == [b"large", b"1"]


def test_a_browser_and_a_selector_pass_over_it(scene: Scene) -> None:
    browser, selecting = scene.small(), scene.small()
    browser(Consume(1, "q", "browser", arguments={"x-filter-no-consume": True}))
    scene.publisher(too_large(priority=3), publishing("q", b"1", priority=3), publishing("q", b"2"))
    assert browser.bodies() == [b"1", b"2"]
    selector = {"x-filter-jms-selector": "JMSPriority = 3"}
    assert bodies(selecting(Consume(1, "q", "s", no_ack=True, arguments=selector))) == [b"1"]
    assert browser.connection.channels
    assert browser.session.tried + selecting.session.tried == 1
    assert scene.roomy().drain("q") == [b"large", b"2"]


def test_immediate_counts_what_can_be_had(scene: Scene) -> None:
    small = scene.small(version=V0_10)
    small(Consume(1, "q", "d", no_ack=True, credit=True), Credit(1, "d", None, None))
    scene.publisher(too_large())
    publisher = scene.small(version=V0_10)
    told = publisher(publishing("q", b"1", immediate=True))
    assert not any(isinstance(each, Returned) for each in told)
    assert small.bodies() == [b"1"]


@pytest.mark.parametrize("queues", [1, 2, 70])
@pytest.mark.parametrize("in_transaction", [False, True])
def test_immediate_is_returned_where_no_consumer_can_carry_it(scene: Scene, in_transaction: bool, queues: int) -> None:
    names = [f"q{number}" for number in range(queues)]
    consumer = scene.small(version=V0_8)
    publisher = scene.small(version=V0_8)
    publisher(DeclareExchange(1, "f", "fanout"))
    for name in names:
        publisher(DeclareQueue(1, name), BindQueue(1, name, "f"))
        consumer(Consume(1, name, name, no_ack=True))
    request = publishing("", b"large", "f", headers={"frame_size": LARGE}, immediate=True)
    told = publisher(TxSelect(1), request, TxCommit(1)) if in_transaction else publisher(SelectConfirm(1), request)
    scene.turn(publisher)
    told += publisher.take()
    assert [each.code for each in told if isinstance(each, Returned)] == [313]
    if not in_transaction:
        assert isinstance(told[-1], Confirmed)
    assert not any(scene.broker.virtual_host("/").queues[name].ready for name in names)
    assert scene.broker.memory.used == 0
    scene.roomy()(Consume(1, "q0", "roomy"))
    assert not any(isinstance(each, Returned) for each in publisher(publishing("", b"x", "f", immediate=True)))
    assert not scene.broker.virtual_host("/").queues["q0"].ready


def test_immediate_is_returned_where_no_selector_selects_it(scene: Scene) -> None:
    client = scene.small(version=V0_8)
    client(Consume(1, "q", "s", no_ack=True, arguments={"x-filter-jms-selector": "n = 1"}))
    told = client(publishing("q", b"2", headers={"n": 2}, immediate=True))
    assert [each.code for each in told if isinstance(each, Returned)] == [313]
    assert bodies(client(publishing("q", b"1", headers={"n": 1}, immediate=True))) == [b"1"]
    assert scene.ready == 0
    assert scene.broker.memory.used == 0


def test_time_to_live_behind_it(scene: Scene) -> None:
    client = scene.small()
    scene.publisher(too_large(), publishing("q", b"short", expiration="1000"), *good(b"1"))
    assert client(QueryQueue(1, "q"))[0].message_count == 3  # type: ignore[attr-defined]
    client.now = 2.0
    assert client.drain("q") == [b"1"]
    assert scene.ready == 1


def test_it_expires_itself() -> None:
    scene = Scene(message_ttl=1_000)
    client = scene.small()
    client(Consume(1, "q", "tag", no_ack=True))
    scene.publisher(too_large(), *good(b"1"))
    assert client.bodies() == [b"1"]
    scene.broker.handle_timeout(2.0)
    assert scene.ready == 0
    assert scene.broker.memory.used == 0


def test_length_limit_drops_it_first() -> None:
    scene = Scene(max_length=2)
    client = scene.small()
    scene.publisher(too_large(), *good(b"1", b"2"))
    assert client.drain("q") == [b"1", b"2"]


def test_purge_ends_it(scene: Scene) -> None:
    client = scene.small()
    client(Consume(1, "q", "tag", no_ack=True))
    scene.publisher(*(too_large() for _ in range(3)))
    scene.publisher(PurgeQueue(1, "q"))
    assert scene.broker.memory.used == 0
    scene.publisher(*good(b"1"))
    assert client.bodies() == [b"1"]


def test_a_fanout_is_counted_in_each_queue(scene: Scene) -> None:
    publisher = scene.publisher
    publisher(DeclareExchange(1, "f", "fanout"))
    for queue in ("q1", "q2", "q3"):
        publisher(DeclareQueue(1, queue), BindQueue(1, queue, "f"))
    publisher(publishing("", b"large", exchange="f", headers={"frame_size": LARGE}))
    client = scene.small()
    for queue in ("q1", "q2", "q3"):
        assert client.get(queue) is None
    assert [skip.queue for skip in scene.skips] == ["q1", "q2", "q3"]


def test_nobody_looks_twice(scene: Scene) -> None:
    """A thousand that cannot be carried, a thousand that can, and many consumers: every message is tried once."""
    clients = [scene.small() for _ in range(20)]
    for client in clients:
        for channel in range(2, 12):
            client(OpenChannel(channel), Consume(channel, "q", f"c{channel}", no_ack=True))
    scene.publisher(*(too_large() for _ in range(1_000)))
    scene.turn(*clients)
    assert sum(client.session.tried for client in clients) == 1_000
    scene.publisher(*good(*(b"%d" % number for number in range(1_000))))
    scene.turn(*clients)
    assert sum(len(client.bodies()) for client in clients) == 1_000
    assert sum(client.session.tried for client in clients) == 1_000
    assert scene.ready == 1_000
    assert len(scene.broker.virtual_host("/").queues["q"]._carriers) == 1


def test_looking_past_many_is_done_in_turns(scene: Scene) -> None:
    scene.publisher(*(too_large() for _ in range(200)), *good(b"1"))
    client = scene.small()
    client(Consume(1, "q", "tag", no_ack=True))
    once = client.session.tried
    assert once <= BrokerLimits().output_high_water // ATTEMPT_COST + 1
    scene.turn(client)
    assert client.bodies() == [b"1"]
    assert client.session.tried == 200


def test_a_get_past_many_is_done_in_turns(scene: Scene) -> None:
    scene.publisher(*(too_large() for _ in range(200)), *good(b"1"))
    client = scene.small()
    turn = scene.broker.turn
    turn.clock, turn.until = count().__next__, 20
    assert client(Get(1, "q", True)) == []
    assert client.session.tried <= 20
    turn.until = inf
    scene.broker.handle_timeout(0.0)
    scene.turn(client)
    (got,) = client.take()
    assert got.message.body == b"1"  # type: ignore[attr-defined]
    assert isinstance(client.one(Get(1, "q", True), GotNothing), GotNothing)


def test_memory_of_cursors_is_bounded(scene: Scene) -> None:
    scene.publisher(too_large(size=1 << 20))
    for number in range(CARRIERS_MAX + 10):
        assert scene.small(FRAME_MAX - number).get("q") is None
    assert len(scene.broker.virtual_host("/").queues["q"]._carriers) == CARRIERS_MAX


@pytest.mark.parametrize(
    ("count", "becomes"),
    [
        (INT64_MAX, INT64_MAX),
        (Typed("uint64", (1 << 64) - 1), INT64_MAX),
        (INT64_MAX - 1, INT64_MAX),
        (-5, 1),
        (Typed("int8", -1), 1),
        (True, 1),
        ("9", 1),
        (1.5, 1),
        (None, 1),
        ([1], 1),
        ({"a": 1}, 1),
        (10**30, INT64_MAX),
    ],
)
def test_a_count_of_deaths_stops_at_the_most_that_fits(scene: Scene, count: Any, becomes: int) -> None:
    client = scene.publisher
    client(DeclareQueue(1, "r", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}))
    death = {"queue": "r", "reason": "rejected", "count": count}
    client.publish("r", b"x", headers={"x-death": [death, "no table", {"queue": 5}, [death]]})
    client.get("r", no_ack=False)
    client(ack(1, settlement=REJECT))
    got = client.get("q")
    assert got is not None
    deaths = (got.message.properties.headers or {})["x-death"]
    assert deaths[0]["count"] == Typed("int64", becomes)
    assert deaths[1:] == ["no table", {"queue": 5}, [death]]


def test_old_deaths_are_cut_off_and_what_ends_cycles_is_kept(scene: Scene) -> None:
    client = scene.publisher
    client(DeclareQueue(1, "r", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}))
    old = [{"queue": f"old{number}", "reason": "expired", "count": 1} for number in range(10_000)]
    client.publish("r", b"x", headers={"x-death": old})
    client.get("r", no_ack=False)
    client(ack(1, settlement=REJECT))
    got = client.get("q")
    assert got is not None
    deaths = (got.message.properties.headers or {})["x-death"]
    assert (deaths[0]["queue"], deaths[0]["reason"]) == ("r", "rejected")
    assert 50 < len(deaths) < 500
    assert deaths[1:] == old[: len(deaths) - 1]
    assert got.message.body == b"x"


def test_deaths_since_a_rejection_are_all_kept(scene: Scene) -> None:
    client = scene.publisher
    client(
        DeclareQueue(
            1, "r", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q", "x-message-ttl": 0}
        )
    )
    old = [{"queue": f"old{number}", "reason": "expired", "count": 1} for number in range(1_000)]
    client.publish("r", b"x", headers={"x-death": old})
    got = client.get("q")
    assert got is not None
    assert len((got.message.properties.headers or {})["x-death"]) == 1_001


@pytest.mark.parametrize("name", ["x-dead-letter-exchange", "x-dead-letter-routing-key", "alternate-exchange"])
@pytest.mark.parametrize("value", ["é" * 128, Typed("string", b"\xff" * 256)])
def test_a_name_that_no_message_can_carry_is_refused(scene: Scene, name: str, value: Any) -> None:
    arguments = {"x-dead-letter-exchange": "", name: value}
    code, text = scene.publisher.failure(DeclareQueue(1, "r", arguments=arguments))
    assert code == 406
    assert "256 octets are more than 255" in text


def test_an_answer_that_has_no_form_costs_the_session_alone() -> None:
    host = Host()
    wire = host.connect()
    wire.ask(OpenChannel(1))
    wire.ask(DeclareQueue(1, "q"))
    host.broker.virtual_host("/").queues["q"].table = {"long": "x" * 70_000}
    wire.send(QueryQueue(1, "q"))
    events = wire.take()
    assert any(getattr(event, "code", 0) == 506 or "65535" in getattr(event, "text", "") for event in events), events
    assert not wire.connection.channels
    assert wire.ask(OpenChannel(2))
