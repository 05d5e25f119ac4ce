"""Dead letters stay where they are sent to: no header of the message routes a copy of one to another place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.core.sources.dead_letters import DeadLetterDestination, DeadLetterPublisher, UndeliverableMessage
from gateway.errors import EncodeError
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
