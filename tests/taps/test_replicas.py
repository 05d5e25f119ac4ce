"""Two gateways on one PostgreSQL: one of them has the tap, and the other goes on with it."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import sqlalchemy as sa

from gateway.amqp.message import Message, Properties
from gateway.config import BrokerSettings
from gateway.ledger.db.models import message_log
from gateway.upstreams import Upstream
from tests.faults.harness import SETTINGS, GatewayProcess
from tests.servers import RabbitMQ
from tests.taps.conftest import unmarked_copies

pytestmark = pytest.mark.broker

WITHIN = 60.0
LOAD = 800


class Replicas:
    """Two processes with one tap, ``t``, and what is published to its queue."""

    def __init__(self, folder: Path, ledger: str, url: str, queue: str) -> None:
        self.ledger = sa.create_engine(ledger)
        self.queue = queue
        self.upstream = Upstream("own", BrokerSettings(url=url))
        self.sent: list[bytes] = []
        broker = {name.removeprefix("brokers.b."): value for name, value in SETTINGS.items() if ".b." in name}
        tables = {
            "brokers": {"b": {"url": url, **broker}},
            "ledger": {"url": ledger, "shard_lease": SETTINGS["ledger.shard_lease"]},
            "taps": {"t": {"broker": "b", "queue": queue, "prefetch": 20}},
        }
        self.processes = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            self.processes.append(GatewayProcess(folder / name, {"data_dir": str(folder / name), **tables}))

    async def load(self, count: int) -> None:
        """Publish, every second message with an id."""
        for _ in range(count):
            number = len(self.sent)
            body = b"%d" % number
            more = {"message_id": f"m-{number}"} if number % 2 else {}
            assert (
                await self.upstream.publish("", self.queue, Message(body, Properties(delivery_mode=2, **more)))
            ).routed
            self.sent.append(body)

    def owners(self) -> list[GatewayProcess]:
        """Those that say that they have the tap; one that was paused says so until it has noticed that it lost it."""
        found = []
        for process in self.processes:
            answer = process.get_ops("/metrics") if process.process is not None else None
            if answer is not None and re.search(r'^amqpgw_work\{kind="tap"\} 1', answer[1], re.MULTILINE):
                found.append(process)
        return found

    async def owned(self) -> tuple[GatewayProcess, GatewayProcess]:
        """The owner, as soon as there is exactly one, and the other one."""
        async with asyncio.timeout(WITHIN):
            while len(owners := await asyncio.to_thread(self.owners)) != 1:
                await asyncio.sleep(0.05)
        (owner,) = owners
        return owner, next(process for process in self.processes if process is not owner)

    def rows(self) -> list[Any]:
        """The log."""
        query = sa.select(message_log).order_by(message_log.c.shard, message_log.c.sequence)
        with self.ledger.connect() as connection:
            return list(connection.execute(query).all())

    async def reached(self, count: int) -> None:
        """Until so many different messages are in the log."""
        async with asyncio.timeout(WITHIN):
            while len({row.body for row in await asyncio.to_thread(self.rows)}) < count:
                await asyncio.sleep(0.05)

    def check(self) -> None:
        """Nothing is lost, numbers have no gaps, and what is there twice is marked, or known and there once."""
        rows = self.rows()
        assert {row.body for row in rows} == set(self.sent)
        for shard in {row.shard for row in rows}:
            numbers = [row.sequence for row in rows if row.shard == shard]
            assert numbers == list(range(1, len(numbers) + 1))
        assert unmarked_copies(rows) == []
        known = [row.body for row in rows if row.origin_id]
        assert len(known) == len(set(known))


@pytest.fixture
async def replicas(postgresql_ledger: str, rabbitmq: RabbitMQ, unique_name: Any) -> AsyncIterator[Replicas]:
    folder = Path(tempfile.mkdtemp(prefix="gateway-tap-"))
    found = Replicas(folder, postgresql_ledger, rabbitmq.url("0-9-1"), unique_name("replicas"))
    await found.upstream.start()
    assert await found.upstream.wait_up(20)
    await found.upstream.declare_queue(found.queue)
    try:
        for process in found.processes:
            await asyncio.to_thread(process.start)
        yield found
    finally:
        for process in found.processes:
            if process.process is not None and process.process.poll() is None:
                process.process.send_signal(signal.SIGCONT)
                await asyncio.to_thread(process.kill)
        await found.upstream.delete_queue(found.queue)
        await found.upstream.close()
        found.ledger.dispose()
        shutil.rmtree(folder, ignore_errors=True)


async def test_an_owner_that_stops_and_comes_back(replicas: Replicas) -> None:
    """It holds messages and the beginning of a commit; the other one takes over, and it cannot write any more."""
    owner, other = await replicas.owned()
    loading = asyncio.create_task(replicas.load(LOAD))
    await replicas.reached(100)
    assert owner.process is not None
    owner.process.send_signal(signal.SIGSTOP)
    shards = {row.shard for row in await asyncio.to_thread(replicas.rows)}
    assert len(shards) == 1
    assert await replicas.owned() == (other, owner)
    await replicas.reached(300)
    before = [row for row in await asyncio.to_thread(replicas.rows) if row.shard in shards]
    owner.process.send_signal(signal.SIGCONT)
    await loading
    await replicas.reached(LOAD)
    await asyncio.to_thread(replicas.check)
    after = [row for row in await asyncio.to_thread(replicas.rows) if row.shard in shards]
    assert after == before, "who was taken for dead wrote nothing more under its old fence"
    await replicas.owned()  # one of them, and only one


async def test_an_owner_that_is_killed(replicas: Replicas) -> None:
    owner, other = await replicas.owned()
    loading = asyncio.create_task(replicas.load(LOAD // 2))
    await replicas.reached(100)
    await asyncio.to_thread(owner.kill)
    assert (await replicas.owned())[0] is other
    await loading
    await replicas.reached(LOAD // 2)
    await asyncio.to_thread(replicas.check)


async def test_asked_through_the_other_one(replicas: Replicas) -> None:
    """Steered at a process that does not have it, and told by the one that has."""
    _, other = await replicas.owned()
    await replicas.load(20)
    await replicas.reached(20)

    def ask(method: str, path: str) -> dict[str, Any]:
        with urlopen(Request(f"http://127.0.0.1:{other.port}{path}", method=method), timeout=20) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    assert (await asyncio.to_thread(ask, "GET", "/v1/taps/t"))["spooled"] == 20
    assert [each["spooled"] for each in (await asyncio.to_thread(ask, "GET", "/v1/taps"))["taps"]] == [20]
    assert (await asyncio.to_thread(ask, "POST", "/v1/taps/t:pause"))["state"] == "paused"
    await replicas.load(5)
    await asyncio.sleep(0.3)
    assert len(replicas.rows()) == 20
    await asyncio.to_thread(ask, "POST", "/v1/taps/t:resume")
    await replicas.reached(25)
    await asyncio.to_thread(replicas.check)
