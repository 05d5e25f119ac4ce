"""Two gateways hand out one subscription in order, and the one that takes its messages stops for longer than its lease.

Its connection stays open, so the broker keeps for it what it has not acknowledged. What becomes of the order then is up
to the queue.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from gateway.amqp.message import Message, Properties
from gateway.config import BrokerSettings
from gateway.upstreams import Upstream
from tests.faults.harness import SETTINGS, GatewayProcess
from tests.servers import RabbitMQ

pytestmark = pytest.mark.broker

WITHIN: Final = 60.0
SINGLE: Final = {"x-single-active-consumer": True}
MESSAGES: Final = 5
"""How many are published before the other process takes over, and how many after that."""


class Replicas:
    """Two processes with one ordered subscription, ``s``, and what is published to its queue."""

    def __init__(self, folder: Path, ledger: str, url: str, queue: str, heartbeat: float) -> None:
        """``heartbeat``: of the connections to the broker, in seconds."""
        self.queue = queue
        self.is_single = False
        """The queue serves one consumer at a time; of a quorum queue, the broker counts only that one."""
        self.upstream = Upstream("own", BrokerSettings(url=url))
        broker = {name.removeprefix("brokers.b."): value for name, value in SETTINGS.items() if ".b." in name}
        tables = {
            "brokers": {"b": {"url": url, **broker, "heartbeat": heartbeat}},
            "ledger": {"url": ledger, "shard_lease": SETTINGS["ledger.shard_lease"]},
            "subscriptions": {"s": {"broker": "b", "queue": queue, "lease": "ledger", "order_key": "header:customer"}},
        }
        self.processes = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            self.processes.append(GatewayProcess(folder / name, {"data_dir": str(folder / name), **tables}))

    async def publish(self, numbers: range) -> None:
        """Publish messages with these bodies and one key."""
        for number in numbers:
            message = Message(b"%d" % number, Properties(delivery_mode=2, headers={"customer": "c"}))
            assert (await self.upstream.publish("", self.queue, message)).routed

    async def owner(self, *processes: GatewayProcess) -> GatewayProcess:
        """The one of these that takes the messages, as soon as there is one."""
        async with asyncio.timeout(WITHIN):
            while True:
                for process in processes:
                    answer = await asyncio.to_thread(process.get_ops, "/metrics")
                    if answer is not None and re.search(r'^amqpgw_work\{kind="intake"\} 1', answer[1], re.MULTILINE):
                        return process
                await asyncio.sleep(0.05)

    async def consumed_by(self, count: int) -> None:
        """Until the broker says that this many consume from the queue."""
        async with asyncio.timeout(WITHIN):
            while (await self.upstream.declare_queue(self.queue, passive=True)).consumer_count != count:
                await asyncio.sleep(0.05)

    async def pull(self, process: GatewayProcess, wait: float) -> list[tuple[int, bool]]:
        """Pull what is there and acknowledge it; the bodies, and whether each is marked as a repeat."""
        asked = {"max_messages": 10, "wait": wait}
        found = (await process.ask("POST", "/v1/subscriptions/s:pull", asked)).json()["messages"]
        if found:
            ids = {"ack_ids": [each["ack_id"] for each in found]}
            assert (await process.ask("POST", "/v1/subscriptions/s:acknowledge", ids)).status == 200
        return [(int(each["message"]["payload"]), each["redelivered"]) for each in found]

    async def pull_all(self, process: GatewayProcess, count: int) -> list[tuple[int, bool]]:
        """Pull and acknowledge this many messages."""
        found: list[tuple[int, bool]] = []
        async with asyncio.timeout(WITHIN):
            while len(found) < count:
                found += await self.pull(process, 2.0)
        return found


@pytest.fixture
async def replicas(
    postgresql_ledger: str, rabbitmq: RabbitMQ, unique_name: Any, request: pytest.FixtureRequest
) -> AsyncIterator[Replicas]:
    arguments, heartbeat = request.param
    folder = Path(tempfile.mkdtemp(prefix="gateway-order-"))
    found = Replicas(folder, postgresql_ledger, rabbitmq.url("0-9-1"), unique_name("order"), heartbeat)
    await found.upstream.start()
    assert await found.upstream.wait_up(20)
    await found.upstream.declare_queue(found.queue, arguments=arguments)
    found.is_single = arguments != {}
    try:
        for process in found.processes:
            await asyncio.to_thread(process.start)
        yield found
    finally:
        for process in found.processes:
            await asyncio.to_thread(process.close)
        await found.upstream.delete_queue(found.queue)
        await found.upstream.close()
        shutil.rmtree(folder, ignore_errors=True)


async def _taken_over(replicas: Replicas) -> tuple[GatewayProcess, GatewayProcess]:
    """The first process stops and gets the first messages. The second one takes over; then the others are published."""
    first = await replicas.owner(*replicas.processes)
    (second,) = (process for process in replicas.processes if process is not first)
    first.pause()
    await replicas.publish(range(MESSAGES))
    assert await replicas.owner(second) is second
    if not replicas.is_single:
        await replicas.consumed_by(2)
    await replicas.publish(range(MESSAGES, 2 * MESSAGES))
    return first, second


@pytest.mark.parametrize("replicas", [({}, 30.0)], indirect=True, ids=["classic"])
async def test_later_messages_pass_those_that_a_stopped_process_holds(replicas: Replicas) -> None:
    first, second = await _taken_over(replicas)
    early = await replicas.pull_all(second, 1)
    assert all(number >= MESSAGES and not is_marked for number, is_marked in early), early
    first.resume()
    late = await replicas.pull_all(second, 2 * MESSAGES - len(early))
    assert sorted(number for number, _ in early + late) == list(range(2 * MESSAGES))
    assert all(is_marked for number, is_marked in late if number < MESSAGES), late


@pytest.mark.parametrize(
    "replicas",
    [(SINGLE, 30.0), ({**SINGLE, "x-queue-type": "quorum"}, 30.0)],
    indirect=True,
    ids=["classic", "quorum"],
)
async def test_a_queue_with_a_single_active_consumer_keeps_the_order(replicas: Replicas) -> None:
    first, second = await _taken_over(replicas)
    assert await replicas.pull(second, 2.0) == []  # the queue gives nothing to anybody else
    first.resume()
    found = await replicas.pull_all(second, 2 * MESSAGES)
    assert [number for number, _ in found] == list(range(2 * MESSAGES))


@pytest.mark.parametrize("replicas", [(SINGLE, 2.0)], indirect=True, ids=["classic"])
async def test_the_order_is_kept_when_the_broker_ends_the_connection_of_a_stopped_process(replicas: Replicas) -> None:
    _, second = await _taken_over(replicas)
    found = await replicas.pull_all(second, 2 * MESSAGES)
    assert [number for number, _ in found] == list(range(2 * MESSAGES))
