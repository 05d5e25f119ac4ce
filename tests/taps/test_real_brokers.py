"""Taps on real brokers, in all versions that these speak: what comes out of the log is what was published, and what a
gateway that is killed leaves behind."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.config import LedgerSettings, TapSettings
from gateway.core import Gateway, Publication
from gateway.ledger import Ledger, MessageFilter
from gateway.ledger.db.models import message_log
from gateway.notation.logged import from_json
from gateway.observing.telemetry import Metrics
from gateway.taps import TapState, TapStatus, TapSupervisor
from gateway.upstreams import Upstream
from tests.faults.harness import SETTINGS, GatewayProcess
from tests.ledgers import sqlite_ledger
from tests.servers import BrokerJ, RabbitMQ, RabbitMQ310
from tests.translation.live.compare import differences
from tests.translation.live.ends import ENDS, End, Servers
from tests.translation.live.messages import messages, number_of
from tests.translation.live.run import publish, upstream

pytestmark = pytest.mark.broker

WITHIN = 60.0
MESSAGES = 250
"""Messages of each end, every second of which holds an edge value."""
LOAD = 600
KILLS = 3


@pytest.fixture
def servers(rabbitmq: RabbitMQ, rabbitmq310: RabbitMQ310, brokerj: BrokerJ) -> Servers:
    return Servers(rabbitmq, rabbitmq310, brokerj)


@asynccontextmanager
async def tapped(
    folder: Path, end: End, servers: Servers, settings: TapSettings
) -> AsyncIterator[tuple[Ledger, TapSupervisor]]:
    """A gateway with one tap, ``t``, when it has stopped by itself."""
    async with running(folder, end, servers, settings) as (ledger, taps):
        status = await stopped(taps)
        assert status.left == 0, status
        yield ledger, taps


async def stopped(taps: TapSupervisor) -> TapStatus:
    """The tap, once it has stopped by itself."""
    until = time.monotonic() + WITHIN
    while (status := await taps.get("t")).state is not TapState.STOPPED:
        assert time.monotonic() < until, status
        await asyncio.sleep(0.02)
    return status


@asynccontextmanager
async def running(
    folder: Path, end: End, servers: Servers, settings: TapSettings
) -> AsyncIterator[tuple[Ledger, TapSupervisor]]:
    """A gateway with one tap, ``t``."""
    async with upstream(end, servers, "house") as broker:
        ledger = await Ledger.open(sqlite_ledger(folder), LedgerSettings(), owner="test")
        gateway = Gateway(ledger, {"house": broker}, Metrics("test"), ack_key=b"k" * 32)
        await gateway.start()
        taps = TapSupervisor(gateway, {"t": settings})
        await taps.start()
        try:
            yield ledger, taps
        finally:
            await taps.close(1.0)
            await gateway.close(1.0)
            await ledger.close()


async def taken(broker: Upstream, queue: str, count: int) -> list[Message]:
    """So many messages of a queue, in order."""
    found: list[Message] = []
    async with asyncio.timeout(WITHIN):
        while len(found) < count:
            for delivery in await broker.fetch(queue, count - len(found), 1.0):
                found.append(delivery.message)
                delivery.settle(Settlement.ACCEPT)
    return found


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.id)
async def test_what_is_taken_before_its_publish_is_written_is_described_as_it_was_published(
    end: End, servers: Servers, tmp_path: Path, unique_name: Any
) -> None:
    """A broker may deliver a message before it confirms it, and the tap writes of it at once."""
    queue, count = unique_name("quick"), 200
    async with upstream(end, servers) as broker:
        await broker.declare_queue(queue)
        try:
            settings = TapSettings(broker="house", queue=queue)
            async with running(tmp_path, end, servers, settings) as (ledger, taps):
                sent = [Publication(queue, Message(b"%d" % number, Properties())) for number in range(count)]
                for item in sent:
                    (outcome,) = await taps._gateway.publish("house", "", [item], "me")
                    assert outcome.error is None
                async with asyncio.timeout(WITHIN):
                    while (await taps.get("t")).spooled < count:
                        await asyncio.sleep(0.02)
                found, cursor = await ledger.messages(MessageFilter(origin="http", client="me"), None, count)
                while cursor is not None:
                    more, cursor = await ledger.messages(MessageFilter(origin="http", client="me"), cursor, count)
                    found += more
                missing = {item.id for item in sent} - {message.id for message in found}
                assert not missing, f"{len(missing)} of {count} are described as the tap took them"
        finally:
            await broker.delete_queue(queue)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.id)
async def test_what_is_in_the_log_can_be_published_again_as_it_was(
    end: End, servers: Servers, tmp_path: Path, unique_name: Any
) -> None:
    """Every property and every header type that a publisher of this end has: equal in the log, and equal when what
    comes out of the log is published once more."""
    sent = list(messages(end, ENDS.index(end) + 11, MESSAGES))
    first, second = unique_name("first"), unique_name("second")
    async with upstream(end, servers) as broker:
        await broker.declare_queue(first)
        await broker.declare_queue(second)
        try:
            began = time.monotonic()
            refused = await publish(broker, first, sent)
            settings = TapSettings(broker="house", queue=first, until="depth", prefetch=50)
            async with tapped(tmp_path, end, servers, settings) as (ledger, _):
                query = sa.select(message_log).order_by(message_log.c.sequence)
                rows = await ledger.read(lambda connection: connection.execute(query).all())
            assert len(rows) == MESSAGES - len(refused)
            elapsed = time.monotonic() - began
            logged = [from_json(row.properties, row.body) for row in rows]
            compare(end, sent, logged, elapsed)
            assert not await publish(broker, second, logged)
            again = await taken(broker, second, len(logged))
            compare(end, logged, again, time.monotonic() - began)
        finally:
            for queue in (first, second):
                await broker.delete_queue(queue)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.id)
async def test_what_somebody_else_takes_is_not_waited_for(
    end: End, servers: Servers, tmp_path: Path, unique_name: Any
) -> None:
    """Where a broker counts what is out among the messages of a queue, the tap expects one that another consumer has,
    and it must see that the queue gives no more while it still has acknowledgements to send."""
    queue = unique_name("shared")
    async with upstream(end, servers) as broker:
        await broker.declare_queue(queue)
        try:
            for number in range(5):
                await broker.publish("", queue, Message(b"%d" % number))
            (other,) = await broker.fetch(queue, 1, WITHIN)
            settings = TapSettings(broker="house", queue=queue, until="depth", prefetch=2)
            async with running(tmp_path, end, servers, settings) as (ledger, taps), asyncio.timeout(WITHIN):
                while (await taps.get("t")).spooled < 4:
                    await asyncio.sleep(0.02)
                other.settle(Settlement.ACCEPT)
                await stopped(taps)
                query = sa.select(sa.func.count()).select_from(message_log)
                assert await ledger.read(lambda connection: connection.scalar(query)) == 4
            assert (await broker.query_queue(queue)).message_count == 0
        finally:
            await broker.delete_queue(queue)


def compare(end: End, sent: list[Message], got: list[Message], elapsed: float) -> None:
    by_number = {number_of(message): message for message in sent}
    changed = {
        number: found
        for message in got
        if (found := differences(end, by_number[number := number_of(message)], message, elapsed, end.keeps_order))
    }
    assert not changed


# ------------------------------------------------------------------------------------------------------ killed


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="gateway-tap-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def logged_rows(folder: Path) -> list[tuple[int, bytes, bool, str]]:
    """Sequence, body, mark and origin id of what is in the log, in order."""
    with closing(sqlite3.connect(folder / "data" / "ledger.db")) as connection:
        query = "SELECT sequence, body, redelivered, origin_id FROM message_log ORDER BY sequence"
        return [(n, body, bool(mark), origin.decode()) for n, body, mark, origin in connection.execute(query)]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.id)
async def test_a_gateway_that_is_killed(end: End, servers: Servers, folder: Path, unique_name: Any) -> None:
    """SIGKILL while messages come: none is lost, numbers have no gaps, what is known by its id is there once, and what
    is there twice is marked."""
    queue = unique_name("killed")
    settings = {name: value for name, value in SETTINGS.items() if ".b." not in name}
    tables: dict[str, Any] = {
        "data_dir": str(folder / "data"),
        "brokers": {"b": {"url": end.url(servers), "reconnect_min": 0.1, "reconnect_max": 0.5}},
        "taps": {"t": {"broker": "b", "queue": queue, "prefetch": 50}},
    }
    for name, value in settings.items():
        section, _, setting = name.partition(".")
        tables.setdefault(section, {})[setting] = value
    gateway = GatewayProcess(folder, tables)
    moments = random.Random(end.id)
    async with upstream(end, servers) as broker:
        await broker.declare_queue(queue)
        try:
            await asyncio.to_thread(gateway.start)
            loading = asyncio.create_task(load(broker, queue))
            for _ in range(KILLS):
                seen = progress(folder)
                await reached(folder, min(seen + moments.randint(20, 120), LOAD - 1))
                await asyncio.to_thread(gateway.kill)
                await asyncio.to_thread(gateway.start)
            sent = await loading
            await reached(folder, LOAD)
            async with asyncio.timeout(WITHIN):
                while (await broker.query_queue(queue)).message_count:
                    await asyncio.sleep(0.05)
            await asyncio.to_thread(gateway.terminate)
            left = (await broker.query_queue(queue)).message_count
        finally:
            if gateway.process is not None and gateway.process.poll() is None:
                await asyncio.to_thread(gateway.kill)
            await broker.delete_queue(queue)
    rows = logged_rows(folder)
    assert left == 0
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
    assert {row[1] for row in rows} == set(sent), "nothing is lost, and nothing changed"
    known = Counter(body for _, body, _, origin in rows if origin)
    assert set(known.values()) == {1}, "what has an id is there once"
    plain = Counter(body for _, body, mark, _ in rows if not mark)
    assert set(plain.values()) <= {1}, "of copies all but one are marked"


async def load(broker: Upstream, queue: str) -> list[bytes]:
    """Publish, every second one with an id; the bodies."""
    sent = []
    for number in range(LOAD):
        body = json.dumps({"number": number, "filler": "x" * 200}).encode()
        more = {"message_id": f"00000000-0000-0000-0000-{number:012}"} if number % 2 else {}
        receipt = await broker.publish("", queue, Message(body, Properties(delivery_mode=2, **more)))
        assert receipt.routed
        sent.append(body)
    return sent


def progress(folder: Path) -> int:
    """How many different messages are in the log."""
    try:
        return len({row[1] for row in logged_rows(folder)})
    except sqlite3.OperationalError:  # the tables are not there yet
        return 0


async def reached(folder: Path, count: int) -> None:
    async with asyncio.timeout(WITHIN):
        while progress(folder) < count:
            await asyncio.sleep(0.01)
