"""Replays over a gateway with two fake brokers and a real ledger on SQLite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from time import time_ns
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.config import ClusterSettings, LedgerSettings, RetentionSettings, SubscriptionSettings
from gateway.core import Gateway
from gateway.core.sources.stored import Stored, envelope
from gateway.core.work.peers import Peers
from gateway.ledger import EventKind, KeptBody, Ledger, LogEntry, NewMessage, Owed
from gateway.observing.telemetry import Metrics
from gateway.replays import Job, JobState, Replays
from tests.audited import missing
from tests.core.fakes import FakeUpstream

SUBSCRIPTIONS = {"billing": SubscriptionSettings(broker="fake", queue="orders", lease="ledger")}


class House:
    """A gateway that can be killed and started again."""

    def __init__(self, folder: Path, *, url: str = "", beside: House | None = None) -> None:
        """``url``: of a ledger that others share; ``beside``: another gateway, with the same brokers."""
        self.folder = folder
        self.url = url or f"sqlite:///{folder}/ledger.db"
        self.fake = FakeUpstream("fake") if beside is None else beside.fake
        self.other = FakeUpstream("other") if beside is None else beside.other
        self.ledger: Ledger
        self.gateway: Gateway
        self.replays: Replays

    async def start(self, *, begin: bool = True) -> None:
        # Where nobody else can take a lease over, none must lapse only because the machine is slow.
        settings = LedgerSettings(shard_lease=60.0 if self.url.startswith("sqlite") else 2.0)
        self.ledger = await Ledger.open(
            self.url, settings, owner="test", migrate=True, retention=RetentionSettings(bodies="days")
        )  # fmt: skip
        brokers: Any = {"fake": self.fake, "other": self.other}
        metrics = Metrics("test")
        peers = None
        if self.ledger.work.shared:
            peers = Peers(self.ledger, metrics, ClusterSettings(), name="test", config="c", secret=b"s" * 32)
        self.gateway = Gateway(
            self.ledger, brokers, metrics, ack_key=b"k" * 32, peers=peers, subscriptions=SUBSCRIPTIONS,
            confirm_timeout=5.0,
        )  # fmt: skip
        self.replays = Replays(self.gateway)
        await self.gateway.start()
        if begin:
            self.replays.begin()

    async def stop(self) -> None:
        await self.replays.close(1.0)
        await self.gateway.close(1.0)
        lost = await missing(self.ledger)
        await self.ledger.close()
        assert lost == [], "everything that was promised is owed, or has ended"

    async def kill(self) -> None:
        """As a process that is killed: nothing is given back, nothing written any more; brokers take back what it
        held."""
        for runner in list(self.replays._runners.values()):
            task = runner._task
            assert task is not None
            task.cancel()
            await asyncio.wait([task])
        outbox = self.gateway.outbox
        lanes = [lane.task for lane in outbox.sender._lanes.values() if lane.task is not None]
        for each in [*lanes, *([outbox.sender._runner] if outbox.sender._runner is not None else [])]:
            each.cancel()
            await asyncio.wait([each])
        ownership = self.gateway.ownership
        if ownership._runner is not None:
            ownership._runner.cancel()
            await asyncio.wait([ownership._runner])
        await self.ledger.close()
        for upstream in (self.fake, self.other):
            for delivery in reversed(list(upstream.out)):
                delivery.lose()

    async def restart(self) -> None:
        await self.kill()
        await self.start()

    # -------------------------------------------------------------------------------------------- messages

    async def known(self, count: int, *, kept: bool = True, **fields: Any) -> list[bytes]:
        """Messages that the ledger knows, with their bodies."""
        ids = [self.gateway.ids() for _ in range(count)]
        at = time_ns() // 1000
        entries = []
        for number, message_id in enumerate(ids):
            body = b"message %d" % number
            about = {"broker": "fake", "exchange": "", "routing_key": "orders", **fields}
            message = NewMessage(version="0-9-1", size=len(body), sha256=sha256(body).digest(), origin="http", **about)
            entries.append(LogEntry(message_id, EventKind.CONFIRMED, at, "fake", "0-9-1", None, message))
        await self.ledger.record(entries)
        if kept:
            rows = [
                KeptBody(message_id, payload(b"message %d" % number), len(b"message %d" % number))
                for number, message_id in enumerate(ids)
            ]
            await self.ledger.deliveries.keep_bodies(rows)
        return ids

    async def dead(
        self,
        count: int,
        *,
        alive: bool = False,
        code: str = "",
        subscription: str = "billing",
        text: bytes = b"dead %d",
    ) -> list[bytes]:
        """Dead messages of a subscription. ``text``: their bodies, ``%d`` is the number of each."""
        owed = []
        entries = []
        for number in range(count):
            body = text.replace(b"%d", b"%d" % number)
            message_id = self.gateway.ids()
            at = time_ns() // 1000
            message = NewMessage(
                broker="fake", version="0-9-1", exchange="shop", routing_key="k", size=len(body),
                sha256=sha256(body).digest(), origin="broker",
            )  # fmt: skip
            entries.append(LogEntry(message_id, EventKind.STORED, at, "fake", "0-9-1", {"queue": "orders"}, message))
            owed.append(
                Owed(
                    id=self.gateway.ids(), message_id=message_id, subscription=subscription, at=at, size=len(body),
                    payload=payload(body, "shop", "k"), dead=not alive,
                    reason={"text": "too many deliveries", **({"code": code} if code else {})},
                )
            )  # fmt: skip
        await self.ledger.deliveries.store(owed, entries)
        return [each.id for each in owed]

    async def ended(self, job_id: str) -> Job:
        """Wait for the end."""
        return await self.until(job_id, lambda job: job.state in (JobState.DONE, JobState.FAILED, JobState.CANCELLED))

    async def until(self, job_id: str, condition: Callable[[Job], bool]) -> Job:
        async with asyncio.timeout(60):
            while True:
                job = await self.replays.get(job_id)
                if condition(job):
                    return job
                await asyncio.sleep(0.01)

    async def kinds(self, message_id: bytes) -> list[EventKind]:
        timeline = await self.ledger.timeline(message_id)
        return [] if timeline is None else [event.kind for event in timeline.events]


def payload(body: bytes, exchange: str = "", routing_key: str = "orders") -> bytes:
    return envelope(Stored(Message(body, Properties(delivery_mode=2)), exchange, routing_key, False, False))


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = House(tmp_path)
    await house.fake.declare_queue("orders")
    await house.other.declare_queue("orders")
    await house.start()
    yield house
    await house.stop()


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.01)
