"""Bridges between embedded brokers, over a real ledger on SQLite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.bridges import BridgeState, BridgeStatus, BridgeSupervisor
from gateway.broker.server import EmbeddedBroker, Listener
from gateway.config import BridgeSettings, BrokerSettings, EmbeddedSettings, LedgerSettings
from gateway.core import Gateway
from gateway.fidelity import RESERVED
from gateway.ledger import Ledger, MessageFilter, StoredMessage, Timeline
from gateway.observing.telemetry import Metrics
from gateway.upstreams import Delivery, Upstream
from tests.audited import missing
from tests.bridges.hands import Hand
from tests.ledgers import sqlite_ledger

WITHIN = 20.0


async def until(condition: Callable[[], Any], within: float = WITHIN) -> None:
    """Wait until something holds."""
    deadline = asyncio.get_running_loop().time() + within
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


class Estate:
    """Two embedded brokers, ``old`` and ``new``, and a gateway between them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.brokers: dict[str, EmbeddedBroker] = {}
        self.upstreams: dict[str, Upstream] = {}
        self.ledger: Ledger
        self.gateway: Gateway
        self.bridges: BridgeSupervisor
        self._listened: dict[str, int] = {}
        self._counter = 0
        self.refused: set[str] = set()
        """Promises of which a test has the ledger refuse the events that end them."""

    async def open(self, old: str, new: str, configured: dict[str, BridgeSettings], **broker: Any) -> None:
        """Start everything, with these versions."""
        for name in ("old", "new"):
            if name not in self.brokers:
                embedded = self.brokers[name] = EmbeddedBroker(EmbeddedSettings(enabled=True, port=0))
                await embedded.start()
        await self.open_gateway({"old": old, "new": new}, configured, **broker)

    async def open_gateway(
        self, versions: dict[str, str], configured: dict[str, BridgeSettings] | None = None, **broker: Any
    ) -> None:
        """Start a gateway on the brokers that run."""
        options = {"reconnect_min": 0.02, "reconnect_max": 0.1, **broker}
        self.upstreams = {name: self.upstream(name, version, **options) for name, version in versions.items()}
        self.ledger = await Ledger.open(sqlite_ledger(self.path), LedgerSettings(), owner="test")
        self.metrics = Metrics("test")
        self.gateway = Gateway(self.ledger, self.upstreams, self.metrics, ack_key=b"k" * 32, confirm_timeout=5.0)
        await self.gateway.start()
        for upstream in self.upstreams.values():
            assert await upstream.wait_up(30), upstream.reason
        self.bridges = BridgeSupervisor(self.gateway, configured or {})
        await self.bridges.start()

    def upstream(self, name: str, version: str, **options: Any) -> Upstream:
        """A broker, as the gateway knows it."""
        url = f"amqp://guest:guest@127.0.0.1:{self.brokers[name].port}/?version={version}"
        return Upstream(name, BrokerSettings(url=url, **options))

    async def close_gateway(self, within: float = 2.0) -> None:
        """Close the gateway; the brokers go on."""
        self.bridges.hold()
        await self.bridges.close(within)
        await self.gateway.close(within)
        lost = await missing(self.ledger)
        await self.ledger.close()
        lost = [each for each in lost if each.promise not in self.refused]
        assert lost == [], "everything that was promised is owed, or has ended"

    async def close(self) -> None:
        """Close everything."""
        await self.close_gateway(0.5)
        for broker in self.brokers.values():
            await broker.stop()

    async def away(self, name: str) -> None:
        """A broker is not to be reached any more; it keeps what it has."""
        broker = self.brokers[name]
        self._listened[name] = broker.port
        for listener in broker._listeners:
            listener.close()
        for served in list(broker._served):
            served.stream.abort()

    async def back(self, name: str) -> None:
        """It is back, at the same port."""
        await self.back_without_a_gateway(name)
        assert await self.upstreams[name].wait_up(30)

    async def back_without_a_gateway(self, name: str) -> None:
        """The same; nobody waits for it."""
        broker = self.brokers[name]
        listener = Listener(broker, None)
        broker._listeners = [listener]
        await listener.start("127.0.0.1", self._listened[name])

    @property
    def old(self) -> Upstream:
        """The broker that messages come from."""
        return self.upstreams["old"]

    @property
    def new(self) -> Upstream:
        """The broker that they go to."""
        return self.upstreams["new"]

    async def bridge(self, name: str = "b", **settings: Any) -> BridgeStatus:
        """Put a bridge; from the queue ``in`` of ``old`` to the queue ``out`` of ``new`` unless told otherwise."""
        status, _ = await self.bridges.put(name, bridge_settings(**settings), None)
        return status

    async def status(self, name: str = "b") -> BridgeStatus:
        """Of a bridge."""
        return await self.bridges.get(name)

    async def wait_for(self, name: str = "b", within: float = WITHIN, **fields: Any) -> BridgeStatus:
        """Wait until the status has these values; functions are asked."""
        deadline = asyncio.get_running_loop().time() + within
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

    async def fill(self, count: int = 10, queue: str = "in", size: int = 0, **properties: Any) -> list[str]:
        """Publish numbered messages to a queue of ``old``; their message ids."""
        ids = []
        futures = []
        for _ in range(count):
            self._counter += 1
            ids.append(f"m-{self._counter}")
            message = Message(
                b"%d" % self._counter + b"x" * size,
                Properties(**{"message_id": ids[-1], "delivery_mode": 2, **properties}),
            )
            futures.append(self.old.publish_nowait("", queue, message, order="fill"))
        for future in futures:
            assert (await future).routed
        return ids

    async def fill_past_it(self, count: int) -> list[str]:
        """:meth:`fill`, while there is no gateway."""
        self.upstreams = {"old": self.upstream("old", "0-9-1", reconnect_min=0.02, reconnect_max=0.1)}
        await self.old.start()
        assert await self.old.wait_up(30)
        ids = await self.fill(count)
        await self.old.close()
        return ids

    async def take(self, count: int, queue: str = "out", broker: str = "new", within: float = WITHIN) -> list[Delivery]:
        """Take so many messages from a queue, no more and no less."""
        upstream = self.upstreams[broker]
        found: list[Delivery] = []
        deadline = asyncio.get_running_loop().time() + within
        while len(found) < count:
            found += await upstream.fetch(queue, count - len(found), 0.2)
            assert len(found) >= count or asyncio.get_running_loop().time() < deadline, f"{len(found)} of {count} came"
        for delivery in found:
            delivery.settle(Settlement.ACCEPT)
        assert await upstream.fetch(queue, 1, 0.0) == []
        return found

    async def depth(self, queue: str = "in", broker: str = "old") -> int:
        """How many messages are ready in a queue."""
        return (await self.upstreams[broker].query_queue(queue)).message_count

    async def gateway_refused(self, name: str = "b") -> float:
        """How many publishes of a bridge were refused."""
        labels = {"bridge": name, "event": "refused"}
        return self.metrics.registry.get_sample_value("amqpgw_bridge_messages_total", labels) or 0.0

    accept, release = Settlement.ACCEPT, Settlement.RELEASE

    async def stored(self) -> list[StoredMessage]:
        """What the ledger knows, oldest first."""
        found, _ = await self.ledger.messages(MessageFilter(), None, 1_000)
        return list(reversed(found))

    async def timeline(self, delivery: Delivery) -> Timeline:
        """What happened to a message that came out."""
        return await self.gateway.timeline(entry(delivery)["id"])


def entry(delivery: Delivery) -> dict[str, Any]:
    """The reserved header of a delivery."""
    headers = delivery.message.properties.headers or {}
    found = headers.get(RESERVED, {})
    assert isinstance(found, dict)
    return found


def bridge_settings(**settings: Any) -> BridgeSettings:
    """Settings from plain values, with the usual source and target."""
    source = settings.pop("source", {"broker": "old", "queue": "in"})
    target = settings.pop("target", {"broker": "new", "routing_key": "out"})
    return msgspec.convert({"source": source, "target": target, **settings}, BridgeSettings)


@pytest.fixture
async def estate(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Estate]:
    """An estate with the queues ``in`` and ``out``; both brokers speak 0-9-1 unless the test's parameter says
    otherwise: ``(version of old, version of new)``."""
    old, new = getattr(request, "param", ("0-9-1", "0-9-1"))
    estate = Estate(tmp_path)
    await estate.open(old, new, {})
    await estate.old.declare_queue("in")
    await estate.new.declare_queue("out")
    yield estate
    await estate.close()


@pytest.fixture
async def hand(estate: Estate) -> AsyncIterator[Hand]:
    """What makes flows whose deliveries the test hands over itself."""
    hand = Hand(estate)
    yield hand
    await hand.close()


__all__ = ["BridgeState", "Estate", "bridge_settings", "entry", "until"]
