"""What is known of a queue's dead-letter destination decides whether a message may be rejected, or taken at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Declared, Publish, QueryExchange, QueryQueue, Settle, Settlement
from gateway.errors import NoDeadLetterDestination, Unsupported
from gateway.upstreams.consuming import dead_letters
from tests.upstreams.conftest import Start
from tests.upstreams.fake import FakeBroker, Peer, until


def tells(arguments: dict[str, Any] | None) -> Callable[[Peer, QueryQueue], bool]:
    """Answers of a broker that tells the arguments of its queues."""

    def answer(peer: Peer, operation: QueryQueue) -> bool:
        n = operation.serial
        peer.send(Declared(operation.channel, n, n, operation.queue, durable=True, arguments=arguments))
        return True

    return answer


def brokerj(**capabilities: Any) -> FakeBroker:
    """A broker that drops messages after so many deliveries without telling their number."""
    broker = FakeBroker(**{"native_dead_letter": True, **capabilities})
    broker.capabilities = replace(broker.capabilities, product="qpid-broker-j")
    return broker


@pytest.mark.parametrize("name", ["x-qpid-maximum-delivery-count", "maximumDeliveryAttempts"])
@pytest.mark.parametrize("value", [1, 5, "5", "123456789"])
async def test_a_queue_with_a_maximum_of_deliveries_is_named(start: Start, name: str, value: Any) -> None:
    broker = brokerj()
    broker.on[QueryQueue] = tells({name: value})
    upstream = await start(broker)
    for _ in range(2):  # the second time it is remembered
        with pytest.raises(Unsupported, match=f"'q' drops a message after {value} deliveries"):
            await upstream.check_give_back("q")
    assert len(broker.all(QueryQueue)) == 1


@pytest.mark.parametrize("value", [0, -1, True, "0", "many", "1234567890", "٣", 5.0, None])
async def test_what_is_no_maximum_of_deliveries_keeps_nobody_away(start: Start, value: Any) -> None:
    broker = brokerj()
    broker.on[QueryQueue] = tells({"maximumDeliveryAttempts": value})
    await (await start(broker)).check_give_back("q")


async def test_the_first_maximum_that_says_something_counts(start: Start) -> None:
    broker = brokerj()
    broker.on[QueryQueue] = tells({"x-qpid-maximum-delivery-count": 0, "maximumDeliveryAttempts": 3})
    upstream = await start(broker)
    with pytest.raises(Unsupported, match="after 3 deliveries"):
        await upstream.check_give_back("q")


async def test_a_maximum_matters_only_where_messages_are_dropped(start: Start) -> None:
    """A destination keeps them, and other brokers, or versions, have no such thing."""
    elsewhere = FakeBroker(native_dead_letter=True)
    classic = brokerj(native_dead_letter=False)
    for broker in (elsewhere, classic):
        broker.on[QueryQueue] = tells({"maximumDeliveryAttempts": 3})
        await (await start(broker)).check_give_back("q")
    kept = brokerj()
    kept.on[QueryQueue] = tells({"maximumDeliveryAttempts": 3, "alternate-exchange": "amq.direct"})
    await (await start(kept)).check_give_back("q")


async def test_a_stated_destination_is_of_no_use_where_the_broker_dead_letters_nothing(
    broker: FakeBroker, start: Start
) -> None:
    """There a reject would delete the message."""
    upstream = await start(broker)
    await upstream.declare_queue("q", arguments={"x-dead-letter-exchange": "amq.direct"})
    broker.put("q", b"1")
    (delivery,) = await upstream.fetch("q", 1)
    with pytest.raises(NoDeadLetterDestination, match="does not dead-letter"):
        await upstream.reject(delivery, native=True)
    assert not delivery.settled
    assert not await upstream.dead_letters_natively("q")


async def test_nothing_is_known_before_the_broker_was_reached(broker: FakeBroker, start: Start) -> None:
    broker.down = True
    upstream = await start(broker, wait=False)
    assert not await upstream.dead_letters_natively("q")
    await upstream.check_give_back("q")


async def test_a_queue_that_is_declared_again_is_looked_at_again(start: Start) -> None:
    broker = FakeBroker(native_dead_letter=True)
    upstream = await start(broker)
    await upstream.declare_queue("q", arguments={"x-dead-letter-exchange": "amq.direct"})
    assert await upstream.dead_letters_natively("q")
    await upstream.delete_queue("q")
    await upstream.declare_queue("q")
    assert not await upstream.dead_letters_natively("q")


async def test_a_login_that_may_not_ask_for_the_destination(start: Start) -> None:
    """It is named, and nothing says that it is not there."""
    broker = FakeBroker(native_dead_letter=True)

    def refuse(peer: Peer, operation: QueryExchange) -> bool:
        peer.close_channel(operation.channel, 403, "ACCESS_REFUSED")
        return True

    broker.on[QueryExchange] = refuse
    upstream = await start(broker)
    await upstream.declare_queue("q", arguments={"x-dead-letter-exchange": "dead"})
    assert await upstream.dead_letters_natively("q")


async def test_a_destination_behind_the_default_exchange(start: Start) -> None:
    """It exists where its queue does; without a routing key of its own it is the default exchange itself."""
    broker = FakeBroker(native_dead_letter=True)
    upstream = await start(broker)
    for name, arguments in (
        ("there", {"x-dead-letter-routing-key": "there"}),
        ("gone", {"x-dead-letter-routing-key": "nowhere"}),
        ("plain", {}),
    ):
        await upstream.declare_queue(name, arguments={"x-dead-letter-exchange": "", **arguments})
    found = {name: await upstream.dead_letters_natively(name) for name in ("there", "gone", "plain")}
    assert found == {"there": True, "gone": False, "plain": True}


async def test_a_destination_that_is_no_name_is_none(start: Start) -> None:
    broker = FakeBroker(native_dead_letter=True)
    broker.on[QueryQueue] = tells({"alternate-exchange": 5})
    assert not await (await start(broker)).dead_letters_natively("q")


async def test_what_is_known_of_queues_is_bounded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "REMEMBERED", 2)
    broker = FakeBroker(native_dead_letter=True)
    upstream = await start(broker)
    known: list[set[str]] = []
    for name in ("a", "b", "c"):
        broker.put(name)
        await upstream.dead_letters_natively(name)
        known.append(set(upstream._dead_letters._known))
    assert known == [{"a"}, {"a", "b"}, {"c"}]


@pytest.mark.parametrize(
    ("properties", "entries"),
    [
        (Properties(user_id="guest"), {}),
        (Properties(user_id=b"guest"), {}),
        (Properties(user_id="ann"), {"user_id": "ann"}),
        (Properties(user_id=b"\xffann"), {"user_id": "\\xffann"}),
        (Properties(expiration="5", user_id="guest"), {"expiration": "5"}),
    ],
)
async def test_a_copy_keeps_what_the_broker_would_refuse_readable(
    broker: FakeBroker, start: Start, properties: Properties, entries: dict[str, str]
) -> None:
    """Of our own login it is kept as it is."""
    upstream = await start(broker)
    broker.put("dead")
    broker.put("q", b"1")
    broker.queues["q"][0] = (Message(b"1", properties), False)
    (delivery,) = await upstream.fetch("q", 1)
    await upstream.reject(delivery, ("", "dead"))
    await until(lambda: broker.all(Settle))
    assert [each.settlement for each in broker.all(Settle)] == [Settlement.ACCEPT]
    (publish,) = broker.all(Publish)
    found = publish.message.properties
    assert (found.headers or {}).get("x-gateway", {}) == entries
    assert found.expiration is None
    assert found.user_id == (None if "user_id" in entries else properties.user_id)
