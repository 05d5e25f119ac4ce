"""What lies behind a message that cannot go out yet, and what changes when that one has gone."""

from __future__ import annotations

from itertools import count
from math import inf
from typing import Any

import pytest

from gateway.amqp.operations import (
    Acquire,
    Acquired,
    BindQueue,
    Consume,
    Credit,
    DeclareExchange,
    DeclareQueue,
    Get,
    PurgeQueue,
    Qos,
    Returned,
    Settlement,
)
from gateway.errors import EncodeError
from gateway.v010.version import V0_10
from tests.broker.clients import Client, ack, publishing
from tests.broker.test_carriage import LARGE, Scene, bodies, good, too_large

RELEASE = Settlement.RELEASE


def short_of_octets(scene: Scene, octets: int = 10) -> Client:
    """A consumer whose credit is too small for a large body."""
    client = scene.small(version=V0_10)
    client(Consume(1, "q", "d", no_ack=True, credit=True), Credit(1, "d", None, octets))
    return client


@pytest.mark.parametrize("skipped", [0, 1])
def test_a_get_lets_those_behind_go(skipped: int) -> None:
    scene = Scene()
    scene.publisher(*(too_large() for _ in range(skipped)))
    consumer = short_of_octets(scene)
    scene.publisher(publishing("q", b"x" * 100), *good(b"1", b"2", b"3"))
    assert consumer.bodies() == []
    assert scene.small().get("q") is not None
    assert consumer.bodies() == [b"1", b"2", b"3"]


@pytest.mark.parametrize("skipped", [0, 1])
def test_acquiring_lets_those_behind_go(skipped: int) -> None:
    scene = Scene()
    scene.publisher(*(too_large() for _ in range(skipped)))
    consumer = short_of_octets(scene)
    scene.publisher(publishing("q", b"x" * 100), *good(b"1", b"2", b"3"))
    browser = scene.small(version=V0_10)
    browser(Consume(1, "q", "b", acquired=False, credit=True))
    browser(Credit(1, "b", 1, None))
    assert consumer.bodies() == []
    assert browser.one(Acquire(1, ((1, 1),)), Acquired).deliveries == ((1, 1),)
    assert consumer.bodies() == [b"1", b"2", b"3"]


def test_acquiring_makes_room_for_the_browser() -> None:
    scene = Scene()
    scene.publisher(*good(b"1", b"2"))
    browser = scene.small(version=V0_10)
    browser(Qos(1, 1, whole_channel=True))
    assert bodies(browser(Consume(1, "q", "b", acquired=False))) == [b"1"]
    told = browser(Acquire(1, ((1, 1),)))
    assert bodies(told) == [b"2"]


def test_a_skipped_message_that_was_acquired_comes_back_to_all() -> None:
    scene = Scene()
    small = scene.small()
    small(Consume(1, "q", "s", no_ack=True))
    scene.publisher(too_large())
    assert len(scene.skips) == 1
    browser = scene.roomy()
    assert bodies(browser(Consume(1, "q", "b", acquired=False))) == [b"large"]
    browser.one(Acquire(1, ((1, 1),)), Acquired)
    assert scene.ready == 0
    taker = scene.roomy()
    taker(Consume(1, "q", "t", no_ack=True))
    browser(ack(1, settlement=RELEASE))
    assert taker.bodies() == [b"large"]
    assert small.bodies() == []
    assert len(scene.skips) == 1


def test_a_length_limit_lets_those_behind_go() -> None:
    scene = Scene(max_length=3)
    consumer = short_of_octets(scene)
    scene.publisher(publishing("q", b"x" * 100), *good(b"1", b"2", b"3"))
    assert consumer.bodies() == [b"1", b"2", b"3"]


def test_expiry_lets_all_behind_go_where_somebody_selects() -> None:
    scene = Scene()
    consumer = short_of_octets(scene)
    scene.small()(Consume(1, "q", "none", arguments={"x-filter-jms-selector": "JMSPriority = 9"}))
    scene.publisher(publishing("q", b"x" * 100, expiration="1000"), *good(b"1", b"2", b"3"))
    assert consumer.bodies() == []
    scene.broker.handle_timeout(2.0)
    assert consumer.bodies() == [b"1", b"2", b"3"]


def test_what_expired_while_it_was_out_does_not_go_out_again() -> None:
    scene = Scene(message_ttl=1_000)
    consumer = scene.small()
    scene.publisher(too_large(), *good(b"1"))
    assert bodies(consumer(Consume(1, "q", "tag"))) == [b"1"]
    assert bodies(consumer(ack(1, settlement=RELEASE), now=2.0)) == []
    scene.broker.handle_timeout(2.0)
    assert scene.ready == 0
    assert scene.broker.memory.used == 0


@pytest.mark.parametrize("arguments", [{}, {"x-filter-jms-selector": "JMSPriority < 10"}])
def test_a_higher_priority_comes_before_what_was_looked_at(arguments: dict[str, Any]) -> None:
    scene = Scene(max_priority=9)
    consumer = scene.small()
    scene.publisher(too_large(), *good(b"1", b"2", b"3"))
    consumer(Qos(1, 1))
    assert bodies(consumer(Consume(1, "q", "tag", arguments=arguments))) == [b"1"]
    scene.publisher(publishing("q", b"high", priority=9), publishing("q", b"middle", priority=5))
    assert [body for number in range(1, 5) for body in bodies(consumer(ack(number)))] == [
        b"high",
        b"middle",
        b"2",
        b"3",
    ]


def test_immediate_where_it_was_found_out_in_another_queue() -> None:
    scene = Scene()
    publisher = scene.publisher
    publisher(DeclareExchange(1, "f", "fanout"))
    for queue in ("q1", "q2"):
        publisher(DeclareQueue(1, queue), BindQueue(1, queue, "f"))
    publisher(
        publishing("q2", b"other", headers={"frame_size": LARGE}),
        publishing("", b"large", exchange="f", headers={"frame_size": LARGE}),
    )
    consumer = scene.small(version=V0_10)
    consumer.get("q1")
    consumer(Consume(1, "q2", "d", no_ack=True, credit=True), Credit(1, "d", None, None))
    told = scene.small(version=V0_10)(publishing("q2", b"1", immediate=True))
    assert not any(isinstance(each, Returned) for each in told)
    assert consumer.bodies() == [b"1"]
    assert [skip.queue for skip in scene.skips] == ["q1", "q2", "q2"]


def test_a_get_takes_nothing_for_a_connection_that_has_gone() -> None:
    scene = Scene()
    scene.publisher(*(too_large() for _ in range(200)), *good(b"1"))
    client = scene.small()
    turn = scene.broker.turn
    turn.clock, turn.until = count().__next__, 20
    client(Get(1, "q", False))
    turn.until = inf
    scene.broker.disconnect(client.connection, 0.0)
    scene.broker.handle_timeout(0.0)
    assert scene.ready == 201


def test_a_purge_forgets_what_came_back() -> None:
    scene = Scene()
    client = scene.small()
    scene.publisher(too_large(), *good(*(b"x" for _ in range(100))))
    for _ in range(100):
        client.get("q", no_ack=False)
    client(ack(1, 100, settlement=RELEASE))
    queue = scene.broker.virtual_host("/").queues["q"]
    assert queue._returned
    scene.publisher(PurgeQueue(1, "q"))
    assert not queue._returned
    scene.publisher(*good(b"2"))
    assert client.drain("q") == [b"2"]


def test_an_answer_without_form_in_a_later_turn_costs_the_channel_alone() -> None:
    scene = Scene()
    browser = Client(scene.broker, V0_10)
    scene.publisher(*good(*(b"x" for _ in range(1_000))))
    browser(Consume(1, "q", "d", acquired=False))
    session = browser.session
    send = session.send

    def refusing(operation: Any, now: float) -> int:
        if isinstance(operation, Acquired):
            raise EncodeError("too many ranges")
        return send(operation, now)

    session.send = refusing  # type: ignore[method-assign]
    turn = scene.broker.turn
    turn.clock, turn.until = count().__next__, 3
    browser(Acquire(1, ((1, 1_000),)))
    assert 1 in browser.connection.channels
    turn.until = inf
    scene.broker.handle_timeout(0.0)
    assert 1 not in browser.connection.channels
    assert not browser.connection.busy
    assert scene.ready == 1_000
