"""Taps on an embedded broker, into a real ledger on SQLite."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.broker.server import EmbeddedBroker, Listener
from gateway.config import BrokerSettings, EmbeddedSettings, LedgerSettings, TapSettings
from gateway.core import Gateway
from gateway.ledger import Ledger, RecordedEvent, id_text
from gateway.ledger.db.models import message_log
from gateway.observing.telemetry import Metrics
from gateway.taps import TapStatus, TapSupervisor
from gateway.upstreams import Delivery, Upstream
from tests.audited import missing
from tests.ledgers import sqlite_ledger

WITHIN = 20.0


async def until(condition: Callable[[], Any], within: float = WITHIN) -> None:
    """Wait until something holds."""
    deadline = asyncio.get_running_loop().time() + within
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


class House:
    """An embedded broker, and a gateway with taps."""

    def __init__(self, path: Path, version: str) -> None:
        self.path = path
        self.version = version
        self.broker: EmbeddedBroker
        self.upstream: Upstream
        self.ledger: Ledger
        self.gateway: Gateway
        self.taps: TapSupervisor
        self.metrics: Metrics
        self._port = 0
        self._counter = 0

    async def open(self, configured: dict[str, TapSettings] | None = None, **broker: Any) -> None:
        """Start everything."""
        if not hasattr(self, "broker"):
            self.broker = EmbeddedBroker(EmbeddedSettings(enabled=True, port=0))
            await self.broker.start()
            self._port = self.broker.port
        self._url = f"amqp://guest:guest@127.0.0.1:{self._port}/?version={self.version}"
        settings = BrokerSettings(url=self._url, **{"reconnect_min": 0.02, "reconnect_max": 0.1, **broker})
        self.upstream = Upstream("house", settings)
        self.ledger = await Ledger.open(sqlite_ledger(self.path), LedgerSettings(), owner="test")
        self.metrics = Metrics("test")
        self.gateway = Gateway(
            self.ledger, {"house": self.upstream}, self.metrics, ack_key=b"k" * 32, confirm_timeout=5.0
        )
        await self.gateway.start()
        assert await self.upstream.wait_up(5.0), self.upstream.reason
        self.taps = TapSupervisor(self.gateway, configured or {})
        await self.taps.start()

    async def close_gateway(self, within: float = 2.0) -> None:
        """The broker goes on."""
        self.taps.hold()
        await self.taps.close(within)
        await self.gateway.close(within)
        lost = await missing(self.ledger)
        await self.ledger.close()
        assert lost == [], "everything that was promised is owed, or has ended"

    async def close(self) -> None:
        """Close everything."""
        await self.close_gateway(0.5)
        await self.broker.stop()

    async def away(self) -> None:
        """The broker is not to be reached any more; it keeps what it has."""
        for listener in self.broker._listeners:
            listener.close()
        self.cut()

    def cut(self) -> None:
        """All connections to the broker die."""
        for served in list(self.broker._served):
            served.stream.abort()

    async def back(self) -> None:
        """It is back, at the same port."""
        listener = Listener(self.broker, None)
        self.broker._listeners = [listener]
        await listener.start("127.0.0.1", self._port)
        assert await self.upstream.wait_up(5.0)

    async def tap(self, name: str = "t", **settings: Any) -> TapStatus:
        """Put a tap on the queue ``in`` unless told otherwise."""
        status, _ = await self.taps.put(name, tap_settings(**settings), None)
        return status

    async def wait_for(self, name: str = "t", within: float = WITHIN, **fields: Any) -> TapStatus:
        """Wait until the status has these values; functions are asked."""
        deadline = asyncio.get_running_loop().time() + within
        while True:
            status = await self.taps.get(name)
            wrong = {
                field: getattr(status, field)
                for field, value in fields.items()
                if not (value(getattr(status, field)) if callable(value) else getattr(status, field) == value)
            }
            if not wrong:
                return status
            assert asyncio.get_running_loop().time() < deadline, f"{wrong}: {status}"
            await asyncio.sleep(0.01)

    async def publish(self, *messages: Message, queue: str = "in", exchange: str = "") -> None:
        """Publish messages as they are."""
        futures = [self.upstream.publish_nowait(exchange, queue, message, order="fill") for message in messages]
        for future in futures:
            assert (await future).routed

    async def fill(self, count: int = 10, queue: str = "in", size: int = 0, **properties: Any) -> list[bytes]:
        """Publish numbered messages; their bodies."""
        bodies = []
        for _ in range(count):
            self._counter += 1
            bodies.append(b"%d " % self._counter + b"x" * size)
        given = {"delivery_mode": 2, **properties}
        await self.publish(*(Message(body, Properties(**given)) for body in bodies), queue=queue)
        return bodies

    async def publish_outside(self, *messages: Message, queue: str = "in") -> None:
        """Publish messages past the gateway, whatever its limits are."""
        upstream = Upstream("outside", BrokerSettings(url=self._url))
        await upstream.start()
        assert await upstream.wait_up(5.0)
        for message in messages:
            assert (await upstream.publish("", queue, message)).routed
        await upstream.close()

    def settings(self, **settings: Any) -> TapSettings:
        """Of a tap."""
        return tap_settings(**settings)

    async def rows(self, tap: str = "t") -> list[Any]:
        """What a tap has spooled, in the order of the log."""
        query = sa.select(message_log).where(message_log.c.tap == tap).order_by(message_log.c.sequence)
        found: list[Any] = await self.ledger.read(lambda connection: connection.execute(query).all())
        return found

    async def bodies(self, tap: str = "t") -> list[bytes]:
        """Of these."""
        return [row.body for row in await self.rows(tap)]

    async def events(self, message_id: bytes) -> list[RecordedEvent]:
        """What happened to a message."""
        return (await self.gateway.timeline(id_text(message_id))).events

    async def depth(self, queue: str = "in") -> int:
        """How many messages are ready in a queue."""
        return (await self.upstream.query_queue(queue)).message_count

    async def take(self, queue: str = "in", most: int = 1_000) -> list[Delivery]:
        """Take what is ready in a queue."""
        found = await self.upstream.fetch(queue, most, 0.2)
        for delivery in found:
            delivery.settle(Settlement.ACCEPT)
        return found


def unmarked_copies(rows: Sequence[Any]) -> list[bytes]:
    """Bodies that are there more than once, and more than one of them is not marked."""
    plain = Counter(row.body for row in rows if not row.redelivered)
    return [body for body, count in plain.items() if count > 1]


def tap_settings(**settings: Any) -> TapSettings:
    """Settings from plain values."""
    where = {} if "exchange" in settings else {"queue": "in"}
    return msgspec.convert({"broker": "house", **where, **settings}, TapSettings)


@pytest.fixture
async def house(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[House]:
    """With the queue ``in``; the broker speaks 0-9-1 unless the test's parameter says otherwise."""
    house = House(tmp_path, getattr(request, "param", "0-9-1"))
    await house.open()
    await house.upstream.declare_queue("in")
    yield house
    await house.close()


__all__ = ["House", "tap_settings", "unmarked_copies", "until"]
