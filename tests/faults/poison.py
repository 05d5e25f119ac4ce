"""Poison: one message of a thousand that its broker does not take, and what a broker says of each kind.

Some kinds are known: the gateway refuses them before the wire. Others only the broker knows, and it answers with the
end of the channel (RabbitMQ; Broker-J's 0-10) or of the whole connection (Broker-J's 0-8 and 0-9-1):

* a routing key that the login may not use (a topic permission of RabbitMQ's, a rule of Broker-J's), for which both
  shared brokers have a user of their own here: :class:`Denied`;
* a queue that is full, in a transaction (RabbitMQ's 0-8);
* a body over the broker's own limit (RabbitMQ's ``max_message_size``);
* an exchange that went away a moment ago.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.fidelity import annotation
from gateway.upstreams import Delivery, PublishReceipt, Upstream
from tests.servers import BrokerJ, RabbitMQ

PEERS: Final = (
    ("rabbitmq", "0-8"),
    ("rabbitmq", "0-9-1"),
    ("brokerj", "0-8"),
    ("brokerj", "0-9-1"),
    ("brokerj", "0-10"),
)
PASSWORD: Final = "secret"
DENIED_KEY: Final = "bad"
"""The routing key that a :class:`Denied` user may not publish with."""


class Denied:
    """A user of a broker's, who may do everything but publish to ``amq.topic`` with the key :data:`DENIED_KEY`, nor to
    ``amq.fanout`` at all; and may publish to a direct exchange of the test's, with the same key refused."""

    def __init__(self, server: RabbitMQ | BrokerJ) -> None:
        self.server = server
        self.name = f"denied-{uuid4().hex[:8]}"
        self.virtual_host = "/" if isinstance(server, RabbitMQ) else "memory"

    def create(self) -> None:
        server = self.server
        server.create_user(self.name, PASSWORD)
        if isinstance(server, RabbitMQ):
            rights = {"configure": ".*", "write": "^(?!amq\\.fanout$).*$", "read": ".*"}
            server.api("PUT", f"permissions/%2F/{self.name}", rights)
            topics = {"exchange": "amq.topic", "write": f"^(?!{DENIED_KEY}$).*$", "read": ".*"}
            server.api("PUT", f"topic-permissions/%2F/{self.name}", topics)
            return
        rule = {"identity": self.name, "objectType": "EXCHANGE", "operation": "PUBLISH", "outcome": "DENY"}
        rules = [
            {**rule, "attributes": {"NAME": "amq.topic", "ROUTING_KEY": DENIED_KEY}},
            {**rule, "attributes": {"NAME": "amq.fanout"}},
        ]
        provider = {"name": self.name, "type": "RuleBased", "rules": rules}
        server.api("POST", "virtualhostaccesscontrolprovider/memory/memory", provider)

    def delete(self) -> None:
        if isinstance(self.server, BrokerJ):
            self.server.api("DELETE", f"virtualhostaccesscontrolprovider/memory/memory/{self.name}")
        self.server.delete_user(self.name)

    def url(self, version: str) -> str:
        """Of the broker, with this user's login."""
        host = quote(self.virtual_host, safe="")
        return f"amqp://{self.name}:{PASSWORD}@127.0.0.1:{self.server.port}/{host}?version={version}"


@dataclass
class Received:
    """What came out of a queue."""

    bodies: Counter[bytes] = field(default_factory=Counter)
    marked: set[bytes] = field(default_factory=set)
    """Bodies of which a copy said that it is a possible duplicate."""

    @property
    def duplicated(self) -> list[bytes]:
        """Those that came more than once."""
        return [body for body, count in self.bodies.items() if count > 1]


async def drain(upstream: Upstream, queue: str, silence: float = 0.5, within: float = 30.0) -> Received:
    """Everything in a queue: consume until nothing has come for a while and the broker counts nothing."""
    received = Received()
    loop = asyncio.get_running_loop()
    last = loop.time()

    def take(delivery: Delivery) -> None:
        nonlocal last
        last = loop.time()
        received.bodies[delivery.message.body] += 1
        if annotation(delivery.message.properties, "resent"):
            received.marked.add(delivery.message.body)
        delivery.settle(Settlement.ACCEPT)

    consumer = await upstream.consume(queue, 500, take)
    async with asyncio.timeout(within):
        while loop.time() - last < silence or (await upstream.query_queue(queue)).message_count:
            await asyncio.sleep(0.05)
    await consumer.close()
    return received


@asynccontextmanager
async def bound(upstream: Upstream, exchange: str, *keys: str) -> AsyncIterator[str]:
    """A new durable queue, bound to the exchange with these keys; deleted at the end."""
    queue = f"poison-{uuid4().hex[:12]}"
    await upstream.declare_queue(queue)
    for key in keys:
        await upstream.bind_queue(queue, exchange, key)
    try:
        yield queue
    finally:
        await upstream.delete_queue(queue)


def messages(count: int, culprits: Sequence[int], **properties: Any) -> list[Message]:
    """Persistent messages, numbered, and those of the culprits named so."""
    return [
        Message(b"culprit %d" % n if n in culprits else b"%d" % n, Properties(delivery_mode=2, **properties))
        for n in range(count)
    ]


def check(sent: dict[bytes, object], received: Received, culprits: set[bytes], window: int) -> dict[str, int]:
    """What must hold: everybody but the culprits is confirmed and stored, culprits are not, duplicates are at most a
    window, each with a mark on a copy and in its receipt. Returns the figures."""
    for body, outcome in sent.items():
        if body in culprits:
            assert isinstance(outcome, BaseException), (body, outcome)
            continue
        assert isinstance(outcome, PublishReceipt), (body, outcome)
        assert outcome.routed, (body, outcome)
        assert received.bodies[body] >= 1, f"{body!r} was confirmed and is lost"
        assert received.bodies[body] <= 2, f"{body!r} came {received.bodies[body]} times"
        if received.bodies[body] == 2:
            assert outcome.resent, f"{body!r} came twice, and its receipt says nothing"
    assert not set(received.bodies) - set(sent), "unexpected"
    assert not set(received.bodies) & culprits, "a culprit was stored"
    duplicated = received.duplicated
    assert len(duplicated) <= window
    assert set(duplicated) <= received.marked
    confirmed = sum(isinstance(outcome, PublishReceipt) for outcome in sent.values())
    return {"confirmed": confirmed, "duplicated": len(duplicated), "marked": len(received.marked)}
