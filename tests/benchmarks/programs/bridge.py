"""What a bridge is made of, part by part: so that the CPU of one can be split.

``link``: a consumer of ours and publishes of ours, through the upstreams, each message acknowledged when it is
confirmed; no ledger, nothing read, nothing changed. ``translation``: what is read in a message and written into it,
and what the target's version asks for beyond passing octets on; no socket.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import uvloop

from gateway.amqp.message import Message
from gateway.amqp.operations import Consume, Consuming, Deliver, Publish, Settlement
from gateway.app import prepare_interpreter
from gateway.bridges.items import BridgeDelivery
from gateway.bridges.routes import BridgeRoute
from gateway.config import BridgeSettings, BridgeSource, BridgeTarget, BrokerSettings
from gateway.core.leasing.consuming import own_id
from gateway.ledger import MessageIds, id_text
from gateway.session import Version
from gateway.translation import target_of
from gateway.upstreams import Delivery, PublishReceipt, Upstream
from gateway.versions import version_named
from tests.benchmarks.programs.clock import Stopwatch, largest
from tests.benchmarks.programs.gateway import MESSAGE
from tests.pair import SessionPair, only

CHUNK = 50
"""Publishes of a write where there is no socket."""


class Relay:
    """From a queue to a queue, message by message."""

    def __init__(self, target: Upstream, queue: str, number: int) -> None:
        self._target, self._queue, self._left = target, queue, number
        self._loop = asyncio.get_running_loop()
        self._confirmed: list[Delivery] = []
        self.done: asyncio.Future[None] = self._loop.create_future()

    def arrive(self, delivery: Delivery) -> None:
        """Publish it."""
        future = self._target.publish_nowait("", self._queue, delivery.message)
        future.add_done_callback(lambda done: self._taken(done, delivery))

    def _taken(self, future: asyncio.Future[PublishReceipt], delivery: Delivery) -> None:
        """Those of a turn of the loop are acknowledged together."""
        future.result()
        if not self._confirmed:
            self._loop.call_soon(self._settle)
        self._confirmed.append(delivery)

    def _settle(self) -> None:
        confirmed, self._confirmed = self._confirmed, []
        for delivery in confirmed:
            delivery.settle(Settlement.ACCEPT)
        self._left -= len(confirmed)
        if not self._left:
            self.done.set_result(None)


async def _link(job: dict[str, Any]) -> Stopwatch:
    source = Upstream("source", BrokerSettings(url=job["source"]))
    target = Upstream("target", BrokerSettings(url=job["target"]))
    for upstream in (source, target):
        await upstream.start()
        assert await upstream.wait_up(10)
    relay = Relay(target, job["to"], job["number"])
    with Stopwatch() as watch:
        consumer = await source.consume(job["from"], job["window"], relay.arrive)
        await relay.done
    await consumer.close()
    for upstream in (source, target):
        await upstream.close()
    return watch


def _translation(job: dict[str, Any]) -> Stopwatch:
    """The messages are received beforehand, and sent on to a session of the target's version; what it costs to send
    them as octets of its own is taken off."""
    source, target = version_named(job["source"]), version_named(job["target"])
    settings = BridgeSettings(BridgeSource("source", "from"), BridgeTarget("target", "", "to"))
    route = BridgeRoute("bench", settings, "bench.0123456789abcdef", own_id)
    judge, ids = target_of(target), MessageIds()
    message = Message(b"x" * job["size"], MESSAGE)
    native = _received(target, message, 1)
    items = [BridgeDelivery(_delivery(each), 1) for each in _received(source, message, job["number"])]
    pair = SessionPair(target).open()
    _publish(pair, native * 1_000)  # what is made once is made
    with Stopwatch() as plain:
        _publish(pair, native * job["number"])
    forwarded: list[Message] = []
    gc.collect()
    with Stopwatch() as watch:
        for item in items:
            route.look(item)
            item.id = ids()
            item.text = id_text(item.id)
            made = route.message(item, True)
            assert not judge.losses(made)
            forwarded.append(made)
        _publish(pair, forwarded)
    watch.cpu -= plain.cpu
    watch.seconds -= plain.seconds
    return watch


def _delivery(message: Message) -> Any:
    """What a route asks of a delivery."""
    return SimpleNamespace(message=message, exchange="", routing_key="from", redelivered=False)


def _received(version: Version, message: Message, number: int) -> list[Message]:
    """The message, as it comes off a connection."""
    pair = SessionPair(version).open()
    tag = "consumer-1"
    pair.ask(Consume(1, "from", tag, no_ack=True))
    serial = next(operation.serial for operation in pair.requests if isinstance(operation, Consume))
    assert isinstance(only(pair.answer(Consuming(1, serial, serial, tag))), Consuming)
    for _ in range(number):
        pair.server.send(Deliver(1, tag, 0, False, "", "from", message), pair.now)
    found = pair.client.receive_data(b"".join(pair.server.data_to_send()), pair.now)
    return [operation.message for operation in found if isinstance(operation, Deliver)]


def _publish(pair: SessionPair, messages: Sequence[Message]) -> None:
    for begin in range(0, len(messages), CHUNK):
        for message in messages[begin : begin + CHUNK]:
            pair.client.send(Publish(1, "", "to", message), pair.now)
        pair.client.data_to_send()


def main(job: dict[str, Any]) -> dict[str, Any]:
    """The program."""
    prepare_interpreter()
    watch = uvloop.run(_link(job)) if job["stage"] == "link" else _translation(job)
    return {**watch.result(job["number"]), "memory": largest()}
