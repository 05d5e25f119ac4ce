"""Dead letters stay where they are sent to: no header of the message routes a copy of one to another place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties, RawProperties
from gateway.config import SubscriptionSettings
from gateway.core.sources.dead_letters import (
    DeadLetterDestination,
    DeadLetterPublisher,
    UndeliverableMessage,
    dead_letter_copy,
    place_of,
)
from gateway.errors import EncodeError, FrameSyntaxError, PublishRefused, Unroutable
from gateway.session import Capabilities
from gateway.upstreams import PublishReceipt
from tests.core.fakes import FakeUpstream

PLACE = DeadLetterDestination("fake", "", "orders")


class Tight(FakeUpstream):
    """A broker whose frames have no room for what the gateway adds."""

    def publish_nowait(self, exchange: str, routing_key: str, message: Message, **how: Any) -> Any:
        if "x-gateway" in (message.properties.headers or {}):
            future: asyncio.Future[PublishReceipt] = asyncio.get_running_loop().create_future()
            future.set_exception(EncodeError("headers: too long"))
            return future
        return super().publish_nowait(exchange, routing_key, message, **how)


async def bury(headers: dict[str, Any], *, routes_copies: bool) -> tuple[Any, list[Message]]:
    upstream: Any = Tight()
    upstream.capabilities = Capabilities(product="Fake", routes_copies=routes_copies)
    await upstream.declare_queue("orders")
    letters = DeadLetterPublisher(lambda _: upstream)
    (outcome,) = await letters.publish(
        PLACE, "s", [UndeliverableMessage(bytes(16), Message(b"x", Properties(headers=headers)), "why")]
    )
    return outcome, [message for _, _, message in upstream.published]


@pytest.mark.parametrize("name", ["CC", "BCC"])
async def test_a_message_that_would_be_copied_elsewhere_does_not_go_as_it_was(name: str) -> None:
    outcome, published = await bury({name: ["secret"]}, routes_copies=True)
    assert isinstance(outcome, EncodeError)
    assert published == []


@pytest.mark.parametrize(("headers", "routes_copies"), [({"a": 1}, True), ({"CC": ["x"]}, False)])
async def test_any_other_does(headers: dict[str, Any], routes_copies: bool) -> None:
    outcome, published = await bury(headers, routes_copies=routes_copies)
    assert outcome is None
    assert [message.properties.headers for message in published] == [headers]


class Small(FakeUpstream):
    """A broker whose frames have no room for what other brokers have added either."""

    def publish_nowait(self, exchange: str, routing_key: str, message: Message, **how: Any) -> Any:
        if any(name.startswith("x-") for name in message.properties.headers or {}):
            future: asyncio.Future[PublishReceipt] = asyncio.get_running_loop().create_future()
            future.set_exception(EncodeError("headers: too long"))
            return future
        return super().publish_nowait(exchange, routing_key, message, **how)


@pytest.mark.parametrize(("own", "left"), [({"a": 1}, {"a": 1}), ({}, None)])
async def test_one_that_its_deaths_made_too_large_goes_without_them(own: dict[str, Any], left: Any) -> None:
    upstream: Any = Small()
    upstream.capabilities = Capabilities(product="Fake")
    await upstream.declare_queue("orders")
    deaths = {"x-death": [{"queue": "q"}], "x-first-death-queue": "q", "x-first-death-reason": "rejected"}
    message = Message(b"x", Properties(headers={**deaths, **own}, message_id="m"))
    (outcome,) = await DeadLetterPublisher(lambda _: upstream).publish(
        PLACE, "s", [UndeliverableMessage(bytes(16), message, "why")]
    )
    assert outcome is None
    assert [message.properties for _, _, message in upstream.published] == [Properties(headers=left, message_id="m")]


# --------------------------------------------------------------------------------------------- places and outcomes


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({}, None),
        ({"dead_letter_broker": "other"}, None),
        ({"dead_letter_routing_key": "dead"}, DeadLetterDestination("fake", "", "dead")),
        ({"dead_letter_exchange": "dlx"}, DeadLetterDestination("fake", "dlx", "")),
        (
            {"dead_letter_broker": "other", "dead_letter_exchange": "dlx", "dead_letter_routing_key": "dead"},
            DeadLetterDestination("other", "dlx", "dead"),
        ),
    ],
)
def test_the_place_of_a_subscription(settings: dict[str, Any], place: DeadLetterDestination | None) -> None:
    assert place_of(SubscriptionSettings(broker="fake", queue="orders", **settings)) == place


async def test_each_copy_has_its_own_outcome() -> None:
    upstream: Any = FakeUpstream()
    await upstream.declare_queue("orders")
    publish, count = upstream.publish_nowait, 0

    def fail_the_first(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        upstream.failure = PublishRefused("full") if count == 1 else None
        return publish(*arguments, **options)

    upstream.publish_nowait = fail_the_first
    letters = [UndeliverableMessage(bytes(16), Message(b"%d" % number), "why") for number in range(3)]
    outcomes = await DeadLetterPublisher(lambda _: upstream).publish(PLACE, "s", letters)
    assert [type(outcome) for outcome in outcomes] == [PublishRefused, type(None), type(None)]
    missing = DeadLetterDestination("fake", "", "missing")
    (outcome,) = await DeadLetterPublisher(lambda _: upstream).publish(missing, "s", letters[:1])
    assert isinstance(outcome, Unroutable)


async def test_octets_that_are_no_property_list_are_not_routed_by_their_headers() -> None:
    """They go as they are, for nobody can add to them; nor can a broker read a header there."""

    def decode(octets: bytes) -> Properties:
        raise FrameSyntaxError("broken")

    upstream: Any = FakeUpstream()
    upstream.capabilities = Capabilities(product="Fake", routes_copies=True)
    upstream.failure = EncodeError("too long")
    message = Message(b"x", None, RawProperties(b"\xff\x00", "0-9-1", decode))
    tries = 0
    publish = upstream.publish_nowait

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal tries
        tries += 1
        assert arguments[2] is message
        return publish(*arguments, **options)

    upstream.publish_nowait = counted
    (outcome,) = await DeadLetterPublisher(lambda _: upstream).publish(
        PLACE, "s", [UndeliverableMessage(bytes(16), message, "why")]
    )
    assert isinstance(outcome, EncodeError)
    assert tries == 3


async def entries_of(**letter: Any) -> Any:
    upstream: Any = FakeUpstream()
    await upstream.declare_queue("orders")
    given = UndeliverableMessage(bytes(16), Message(b"x"), "why", **letter)
    assert await DeadLetterPublisher(lambda _: upstream).publish(PLACE, "s", [given]) == [None]
    return upstream.published[0][2].properties.headers["x-gateway"]


async def test_a_copy_says_where_its_message_was() -> None:
    entries = await entries_of(broker="b", queue="q\udcff", exchange="e", routing_key="k")
    assert [entries[name] for name in ("broker", "queue", "exchange", "routing_key")] == ["b", "q\\udcff", "e", "k"]
    assert (entries["reason"], entries["subscription"]) == ("why", "s")
    plain = await entries_of()
    assert not {"broker", "queue", "exchange", "routing_key"} & set(plain)


@pytest.mark.parametrize(
    ("given", "kept", "left"),
    [
        ({}, {}, {}),
        ({"user_id": "guest"}, {"user_id": "guest"}, {}),
        ({"user_id": b"guest"}, {"user_id": b"guest"}, {}),
        ({"user_id": "ann"}, {}, {"user_id": "ann"}),
        ({"user_id": b"an\xff"}, {}, {"user_id": "an\\xff"}),
        ({"expiration": "60000"}, {}, {"expiration": "60000"}),
        ({"expiration": "60000", "user_id": "guest"}, {"user_id": "guest"}, {"expiration": "60000"}),
        ({"expiration": "60000", "user_id": "ann"}, {}, {"expiration": "60000", "user_id": "ann"}),
    ],
)
@pytest.mark.parametrize("relayed", [False, True])
def test_a_copy_neither_expires_nor_claims_another_user(
    given: dict[str, Any], kept: dict[str, Any], left: dict[str, str], relayed: bool
) -> None:
    """A broker refuses a ``user_id`` that is not its login; both stand in the header."""
    message = Message(b"x", Properties(message_id="m", **given), relayed=relayed)
    copy = dead_letter_copy(message, {"reason": "why"}, "guest")
    assert copy.relayed or not (relayed or left)
    properties = copy.properties
    assert properties.message_id == "m"
    assert {name: getattr(properties, name) for name in ("user_id", "expiration") if getattr(properties, name)} == kept
    assert properties.headers is not None
    entries = properties.headers["x-gateway"]
    assert isinstance(entries, dict)
    assert {name: entries.get(name) for name in left} == left
    assert set(entries) - {"lost", "changed"} >= {"reason", *left}
    assert not {"user_id", "expiration"} - set(left) & set(entries)
