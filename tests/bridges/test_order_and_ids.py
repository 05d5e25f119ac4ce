"""Two ways in which messages could be taken for others, or come before them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.upstreams import PublishReceipt
from tests.bridges.conftest import Estate


async def test_messages_that_share_an_id_and_a_body_are_not_redeliveries(estate: Estate) -> None:
    """Publishers have been seen that give the same id to all. What comes for the first time, on the channel that
    brought the others, is another message."""
    await estate.bridge(prefetch=2)
    for number in range(5):
        message = Message(b"same", Properties(message_id="same", delivery_mode=2, type=str(number)))
        assert (await estate.old.publish("", "in", message)).routed
        await estate.wait_for(forwarded=number + 1)
    taken = await estate.take(5)
    assert [delivery.message.properties.type for delivery in taken] == list("01234")
    assert (await estate.status()).duplicates_dropped == 0


@pytest.mark.parametrize("prefetch", [1, 10])
async def test_twins_that_somebody_gave_back_are_two(estate: Estate, prefetch: int) -> None:
    """Their broker says of both that they come again, and the target has had none of them."""
    for number in range(2):
        message = Message(b"same", Properties(message_id="same", delivery_mode=2, type=str(number)))
        assert (await estate.old.publish("", "in", message)).routed
    for delivery in reversed(await estate.old.fetch("in", 2, 0.5)):
        delivery.settle(Settlement.RELEASE)
    await estate.bridge(prefetch=prefetch)
    await estate.wait_for(forwarded=2)
    taken = await estate.take(2)
    assert [delivery.message.properties.type for delivery in taken] == ["0", "1"]


@pytest.mark.parametrize("overtakes", [True, False])
async def test_a_transient_message_waits_where_it_would_overtake(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, overtakes: bool
) -> None:
    capabilities = estate.new.capabilities
    assert capabilities is not None
    monkeypatch.setattr(capabilities, "transient_overtakes", overtakes)
    publish = estate.new.publish_nowait
    persistent: list[asyncio.Future[PublishReceipt]] = []
    in_flight: list[bool] = []

    def publish_nowait(exchange: str, routing_key: str, message: Message, **options: Any) -> Any:
        future = publish(exchange, routing_key, message, **options)
        if message.properties.delivery_mode == 2:
            persistent.append(future)
        else:
            in_flight.append(any(not one.done() for one in persistent))
        return future

    monkeypatch.setattr(estate.new, "publish_nowait", publish_nowait)
    for number in range(30):
        message = Message(b"%d" % number, Properties(delivery_mode=2 if number % 3 else 1))
        assert (await estate.old.publish("", "in", message)).routed
    await estate.bridge()
    taken = await estate.take(30)
    assert [delivery.message.body for delivery in taken] == [b"%d" % number for number in range(30)]
    assert len(in_flight) == 10
    assert any(in_flight) is not overtakes
