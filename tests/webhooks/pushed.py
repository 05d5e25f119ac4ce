"""Pushed subscriptions between the embedded broker and endpoints that a test plays, over a real ledger on SQLite."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gateway.amqp.message import Message, Properties
from gateway.broker.server import EmbeddedBroker
from gateway.config import BrokerSettings, EmbeddedSettings, EndpointSettings, LedgerSettings, SubscriptionSettings
from gateway.core import Gateway
from gateway.core.publishing.publisher import Publication as Publish
from gateway.errors import NoSuchEndpoint
from gateway.ledger import EventKind, Ledger, MessageFilter, Timeline
from gateway.ledger.writing.states import LATE_KINDS
from gateway.observing.telemetry import Metrics
from gateway.upstreams import Upstream
from gateway.webhooks.attempts.forms import PushedMessage
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.endpoint import Endpoint, EndpointState
from gateway.webhooks.states import PushStatus
from gateway.webhooks.supervisor import Pushes
from tests.audited import missing
from tests.ledgers import sqlite_ledger

WITHIN = 20.0
OK = SendOutcome(status=200)
Answer = SendOutcome | Callable[[Sequence[PushedMessage]], Any]


async def until(condition: Callable[[], Any], within: float = WITHIN) -> None:
    """Wait until something holds."""
    deadline = asyncio.get_running_loop().time() + within
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


class Receivers:
    """Endpoints that a test plays: the face of ``Endpoints`` and of ``Sender``."""

    def __init__(self) -> None:
        self.on_change: list[Callable[[str], None]] = []
        self.endpoints: dict[str, Endpoint] = {}
        self.answers: dict[str, Answer] = {}
        """What each says; unless it is told, 200."""
        self.got: dict[str, list[PushedMessage]] = {}
        self.requests: dict[str, list[tuple[float, list[PushedMessage]]]] = {}
        """When, on the loop's clock, and what."""
        self.disabled: dict[str, str] = {}
        self.under_way: dict[str, int] = {}
        self.most: dict[str, int] = {}
        """How many requests at once there were at most."""
        self.fresh: dict[str, list[bool]] = {}
        """Of each request, whether it was to be on a connection of its own."""

    def put(self, name: str, answer: Answer = OK, state: EndpointState = EndpointState.ACTIVE, **settings: Any) -> None:
        """Make an endpoint, or change it."""
        converted = msgspec.convert({"url": f"https://{name}.example/", **settings}, EndpointSettings)
        self.endpoints[name] = Endpoint(name, converted, "e", read_only=False, state=state)
        self.answers[name] = answer
        self.tell(name)

    def set_state(self, name: str, state: EndpointState) -> None:
        """Pause it, resume it …"""
        settings = self.endpoints[name].settings
        self.endpoints[name] = Endpoint(name, settings, "e", read_only=False, state=state, reason=f"now {state.value}")
        self.tell(name)

    def tell(self, name: str) -> None:
        """Call those who want to know."""
        for call in self.on_change:
            call(name)

    def __contains__(self, name: str) -> bool:
        return name in self.endpoints

    async def get(self, name: str) -> Endpoint:
        if name not in self.endpoints:
            raise NoSuchEndpoint(f"no endpoint {name!r}")
        return self.endpoints[name]

    async def disable(self, name: str, reason: str, url: str) -> Endpoint:
        if self.endpoints[name].settings.url == url:
            self.disabled[name] = reason
            self.set_state(name, EndpointState.DISABLED)
        return self.endpoints[name]

    async def send(
        self, endpoint: Endpoint, items: Sequence[PushedMessage], timestamp: int, fresh: bool = False
    ) -> SendOutcome:
        name = endpoint.name
        loop = asyncio.get_running_loop()
        begun = loop.time()
        self.requests.setdefault(name, []).append((begun, list(items)))
        self.fresh.setdefault(name, []).append(fresh)
        self.under_way[name] = self.under_way.get(name, 0) + 1
        self.most[name] = max(self.most.get(name, 0), self.under_way[name])
        try:
            answer = self.answers[name]
            found = answer if isinstance(answer, SendOutcome) else answer(items)
            if asyncio.iscoroutine(found):
                found = await found
        finally:
            self.under_way[name] -= 1
        assert isinstance(found, SendOutcome)
        outcome = msgspec.structs.replace(found, seconds=loop.time() - begun)
        if outcome.status is not None and 200 <= outcome.status < 300:
            self.got.setdefault(name, []).extend(items)
        return outcome

    def bodies(self, name: str = "e") -> list[bytes]:
        """What an endpoint took, in order."""
        return [item.message.body for item in self.got.get(name, [])]

    def attempts(self, name: str = "e") -> list[tuple[bytes, int | None]]:
        """Every message of every request: body and attempt."""
        return [(item.message.body, item.attempt) for _, items in self.requests.get(name, []) for item in items]


class Estate:
    """A broker, a gateway, and receivers."""

    def __init__(self, path: Path, version: str = "0-9-1") -> None:
        self.path = path
        self.version = version
        self.receivers = Receivers()
        self.configured: dict[str, SubscriptionSettings] = {}
        self.broker: EmbeddedBroker
        self.ledger: Ledger
        self.gateway: Gateway
        self.pushes: Pushes
        self.upstream: Upstream
        self._number = 0

    async def open(self) -> None:
        """Start the broker, with the queue ``in``, and the gateway."""
        self.broker = EmbeddedBroker(EmbeddedSettings(enabled=True, port=0))
        await self.broker.start()
        await self.open_gateway()
        await self.upstream.declare_queue("in")

    async def open_gateway(self) -> None:
        """Start a gateway, on the same ledger as the one before."""
        url = f"amqp://guest:guest@127.0.0.1:{self.broker.port}/?version={self.version}"
        self.upstream = Upstream("b", BrokerSettings(url=url, reconnect_min=0.02, reconnect_max=0.1))
        self.ledger = await Ledger.open(sqlite_ledger(self.path), LedgerSettings(), owner="test")
        self.metrics = Metrics("test")
        self.gateway = Gateway(
            self.ledger, {"b": self.upstream}, self.metrics, subscriptions=self.configured, ack_key=b"k" * 32
        )
        await self.gateway.start()
        assert await self.upstream.wait_up(30), self.upstream.reason
        self.receivers.on_change.clear()
        self.pushes = Pushes(self.gateway, self.receivers, self.receivers, chance=lambda: 0.5)  # type: ignore[arg-type]
        self.pushes.begin()
        await self.gateway.ownership.review("push")

    async def close_gateway(self, within: float = 2.0) -> None:
        """Close it; the broker goes on."""
        await self.pushes.close(within)
        await self.gateway.close(within)
        lost = await missing(self.ledger)
        await self.ledger.close()
        assert lost == [], "everything that was promised is owed, or has ended"

    async def close(self) -> None:
        """Close everything."""
        await self.close_gateway(0.5)
        await self.broker.stop()
        await asyncio.sleep(0.01)  # connections that were cut off are closed in the turns of the loop after that

    async def subscribe(self, name: str = "s", queue: str = "in", push: str = "e", **settings: Any) -> None:
        """Put a subscription, and wait until it was tried to start it."""
        converted = msgspec.convert({"broker": "b", "queue": queue, "push": push, **settings}, SubscriptionSettings)
        await self.gateway.subscriptions.put(name, converted, None)
        await self.gateway.ownership.review("push")

    async def publish(self, *bodies: bytes, queue: str = "in", ours: bool = True, **properties: Any) -> list[str]:
        """Publish through the gateway, so that each message has an id of ours (``ours``), or past it."""
        messages = [Message(body, Properties(**properties)) for body in bodies]
        if not ours:
            for message in messages:
                await self.upstream.publish("", queue, message)
            return []
        found = await self.gateway.publish("b", "", [Publish(queue, message) for message in messages])
        assert all(each.error is None for each in found), found
        return [each.id for each in found]

    async def depth(self, queue: str = "in") -> int:
        """How many messages are ready in a queue."""
        return (await self.upstream.query_queue(queue)).message_count

    async def wait_depth(self, depth: int, queue: str = "in") -> None:
        """Wait until so many messages are ready in a queue."""
        deadline = asyncio.get_running_loop().time() + WITHIN
        while (found := await self.depth(queue)) != depth:
            assert asyncio.get_running_loop().time() < deadline, f"{found} messages in {queue}"
            await asyncio.sleep(0.01)

    async def status(self, name: str = "s") -> PushStatus:
        """Of a subscription."""
        return await self.pushes.status(await self.gateway.subscriptions.get(name))

    async def wait_for(self, name: str = "s", **fields: Any) -> PushStatus:
        """Wait until the status has these values; functions are asked."""
        deadline = asyncio.get_running_loop().time() + WITHIN
        while True:
            status = await self.status(name)
            wrong = {
                field: getattr(status, field)
                for field, value in fields.items()
                if not (value(getattr(status, field)) if callable(value) else getattr(status, field) == value)
            }
            if not wrong:
                return status
            assert asyncio.get_running_loop().time() < deadline, f"{wrong}: {status}"
            await asyncio.sleep(0.01)

    async def kinds(self, message_id: str) -> list[EventKind]:
        """What happened to a message since it was published."""
        told = {*LATE_KINDS, EventKind.DUPLICATE_DROPPED}
        return [event.kind for event in (await self.timeline(message_id)).events if event.kind in told]

    async def wait_kind(self, message_id: str, kind: EventKind) -> None:
        """Wait until that has happened to a message."""
        deadline = asyncio.get_running_loop().time() + WITHIN
        while kind not in (found := await self.kinds(message_id)):
            assert asyncio.get_running_loop().time() < deadline, found
            await asyncio.sleep(0.01)

    async def timeline(self, message_id: str) -> Timeline:
        """All of it."""
        return await self.gateway.timeline(message_id)

    async def ids(self) -> list[bytes]:
        """Of the messages that the ledger knows, oldest first."""
        found, _ = await self.ledger.messages(MessageFilter(), None, 1_000)
        return [each.id for each in reversed(found)]
