"""Messages that cannot be forwarded, among others that can: each ends at the dead-letter place with its reason, and the
others pass beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

from gateway.amqp.message import Message
from tests.faults.bridges.harness import BridgeRun
from tests.faults.poison import DENIED_KEY, PASSWORD, Denied
from tests.servers import BrokerJ, RabbitMQ
from tests.servers.process import Server

LAG_MAX: Final = 5.0
"""Longest median, in seconds, from a message's arrival at the bridge to its acknowledgement while others are poison."""
BAD: Final = 5
"""Every so many messages is poison."""
LARGE: Final = 40_000
"""Octets of a body that is over :data:`LIMIT`."""
LIMIT: Final = 32_768
GOOD_KEY: Final = "bridged"
"""A routing key that no other suite publishes with to ``amq.topic``, which they share."""


def _with_headers(message: Message, **headers: Any) -> Message:
    properties = message.properties
    return Message(message.body, replace(properties, headers={**(properties.headers or {}), **headers}))


async def _poisoned(run: BridgeRun, times: int, make: Callable[[int, Message], Message], suspect: bool = False) -> None:
    """Every fifth message is poison. It ends at the dead-letter place, and the others pass beside it and are quick.

    The bridge never says that it is stuck, unless the poison is ``suspect``: only the target knows it, and as long as
    that has taken no other message it may be the target that takes none.
    """

    before = run.load.change

    def change(number: int, message: Message) -> Message:
        if number % BAD:
            return before(number, message) if before is not None else message
        assert message.properties.message_id is not None
        run.poison.add(message.properties.message_id)
        return make(number, message)

    await run.running()
    await run.forwards(5)
    run.load.change = change
    stuck, asked = [], 0
    wanted = len(run.poison) + 8 * times
    while len(run.poison) < wanted:
        found = await run.status()
        asked += 1
        if found["state"] != "running" and not suspect:
            stuck.append(found["reason"])
        run.worst(lag_s=found["lag"] or 0.0)
        await asyncio.sleep(0.1)
    run.load.change = before  # the last of the poison is told from a target that takes nothing by what comes behind it
    await run.forwards()
    run.must(len(stuck) <= asked / 10, f"it was stuck {len(stuck)} of {asked} times: {stuck[-1:]}")
    run.must(run.notes["lag_s"] <= LAG_MAX, f"neighbours of poison took {run.notes['lag_s']} s")
    run.times += 8 * times


async def too_large(run: BridgeRun, times: int) -> None:
    """A body over the target's ``message_max``."""
    await _poisoned(run, times, lambda number, message: Message(bytes(LARGE), message.properties))


async def untranslatable(run: BridgeRun, times: int) -> None:
    """``on_loss = "strict"``: a user-id that is not the gateway's login at the target would be lost; and headers that
    are larger than a frame have no form in the classic versions at all."""

    def make(number: int, message: Message) -> Message:
        if run.source.version == "0-10" and number % 2:
            return _with_headers(message, wide="x" * 30_000, wider="y" * 60_000, widest="z" * 60_000)
        return Message(message.body, replace(message.properties, user_id=run.source.server.user))

    await _poisoned(run, times, make)


async def refused(run: BridgeRun, times: int) -> None:
    """A routing key that the gateway's login may not publish with at the target; only the target knows that, and
    closes the channel over it. What was on its way there is sent again, and may be there twice."""
    await _keyed(run, times, DENIED_KEY)
    await run.forwards()  # so that no channel closes behind the accident
    run.accident(0)


async def unroutable(run: BridgeRun, times: int) -> None:
    """A routing key for which the target has no queue."""
    await _keyed(run, times, "nowhere")


async def _keyed(run: BridgeRun, times: int, bad: str) -> None:
    await run.target.upstream.bind_queue(run.target.queue, "amq.topic", GOOD_KEY)
    await _poisoned(run, times, lambda number, message: _with_headers(message, key=bad), suspect=True)


def good_key(number: int, message: Message) -> Message:
    """With the header from which the bridge takes its routing key."""
    return _with_headers(message, key=GOOD_KEY)


async def over_the_limit(run: BridgeRun, times: int) -> None:
    """A body over the source's ``message_max``: it is not read, and stays at the source, and the status counts it.
    With a larger limit it is forwarded."""
    large = 0

    def change(number: int, message: Message) -> Message:
        nonlocal large
        if number % BAD or large == 5:
            return message
        large += 1
        return Message(bytes(LARGE), message.properties)

    run.load.change = change
    await run.says(lambda found: found["oversized"] == 5, 30, "the status does not count what is over the limit")
    await run.forwards()
    run.must((await run.status())["state"] == "running", "what is over the limit stops the others")
    await asyncio.to_thread(run.gateway.terminate)
    run.configure({"brokers.source.message_max": 1 << 20})
    await asyncio.to_thread(run.gateway.start)
    await run.running()
    run.times += 1


@contextmanager
def another_user(server: Server) -> Iterator[tuple[str, str]]:
    """A login of its own for the gateway."""
    assert isinstance(server, RabbitMQ | BrokerJ)
    name = f"bridge-{uuid4().hex[:8]}"
    server.create_user(name, PASSWORD)
    try:
        yield name, PASSWORD
    finally:
        server.delete_user(name)


@contextmanager
def denied_user(server: Server) -> Iterator[tuple[str, str]]:
    """One that may not publish with :data:`~tests.faults.poison.DENIED_KEY`."""
    assert isinstance(server, RabbitMQ)
    denied = Denied(server)
    denied.create()
    try:
        yield denied.name, PASSWORD
    finally:
        denied.delete()
