"""Dead letters stay where they are sent to: no header of the message routes a copy of one to another place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.dead_letters import DeadLetters, Letter, Place
from gateway.errors import EncodeError
from gateway.message import Message, Properties
from gateway.session import Capabilities
from gateway.upstreams import PublishReceipt
from tests.core.fakes import FakeUpstream

PLACE = Place("fake", "", "orders")


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
    letters = DeadLetters(lambda _: upstream)
    (outcome,) = await letters.bury(PLACE, "s", [Letter(bytes(16), Message(b"x", Properties(headers=headers)), "why")])
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
