"""F09: a bridge whose target is slow, with a long queue at its source: it takes no more than its prefetch, and its
memory stays flat.

The link to the target takes a few thousand octets a second. What is left at the source when that was watched for long
enough is counted there: all that was published is at the one place or the other, and nothing at both.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from tests.chaos.figures import Figures
from tests.chaos.parts import Context
from tests.faults.bridges.harness import PREFETCH, BridgeRun, Side
from tests.faults.ledgers import SqliteFile
from tests.faults.proxy import Bandwidth, Direction
from tests.faults.source import Shape
from tests.traces import QUERY, impossible_traces

MESSAGES: Final = {False: 2_000, True: 1_000_000}
"""At the source, in the quick and in the full form."""
WATCHED: Final = {False: 3.0, True: 60.0}
"""How long, in seconds."""
RATE: Final = 10_000
"""Octets a second to the target: ten messages and some."""
BODY: Final = 700
GROWTH_MAX: Final = 50 << 20
"""Of the gateway's memory, in octets."""
AT_ONCE: Final = 2_000


def resident(pid: int) -> int:
    """A process's memory, in octets."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * 4096


async def _fill(side: Side, first: int, number: int) -> None:
    """Publish so many, numbered from ``first`` on."""
    for start in range(first, first + number, AT_ONCE):
        calls = [
            side.upstream.publish_nowait("", side.queue, _message(each), timeout=120.0)
            for each in range(start, min(start + AT_ONCE, first + number))
        ]
        receipts = await asyncio.gather(*calls)
        assert all(receipt.routed for receipt in receipts)


def _message(number: int) -> Message:
    id = f"slow-{number}"
    return Message(id.encode().ljust(BODY), Properties(message_id=id, delivery_mode=2))


async def _ids(side: Side, queue: str) -> Counter[str]:
    """The ids of all that is in a queue, taken out of it."""
    found: Counter[str] = Counter()
    last = time.monotonic()

    def take(delivery: Any) -> None:
        nonlocal last
        last = time.monotonic()
        found[delivery.message.properties.message_id or ""] += 1
        delivery.settle(Settlement.ACCEPT)

    consumer = await side.upstream.consume(queue, 1_000, take)
    while time.monotonic() - last < 1.0 or (await side.upstream.query_queue(queue)).message_count:
        await asyncio.sleep(0.05)
    await consumer.close()
    return found


async def _play(context: Context) -> list[Figures]:
    rabbitmq = context.server("rabbitmq")
    messages = context.messages or MESSAGES[context.full]
    began = time.monotonic()
    with SqliteFile() as place:
        ends = (rabbitmq, "0-9-1"), (rabbitmq, "0-9-1")
        run = BridgeRun(*ends, "slow target", Shape(messages=0), seed=context.seed, ledger=place)
        async with run:
            await _fill(run.source, 0, 500)
            await run.forwards(100)  # it has seen everything once
            with run.target.proxy.toxic(Bandwidth(RATE), Direction.UPSTREAM):
                await _fill(run.source, 500, messages - 500)
                assert run.gateway.process is not None
                pid = run.gateway.process.pid
                before, forwarded = resident(pid), (await run.status())["forwarded"]
                growth, most = 0, 0
                end = time.monotonic() + WATCHED[context.full]
                while time.monotonic() < end:
                    await asyncio.sleep(0.25)
                    growth = max(growth, resident(pid) - before)
                    most = max(most, (await run.in_flight())[0])
                rate = ((await run.status())["forwarded"] - forwarded) / WATCHED[context.full]
                depth = await run.source.ready()
            await run.forwards(PREFETCH)  # what the slow link still held is through: an end waits for so long only
            await asyncio.to_thread(run.gateway.terminate)
            at_target = await _ids(run.target, run.target.queue)
            at_source = await _ids(run.source, run.source.queue)
            traces = impossible_traces(place.query(QUERY))[:5]
        wanted = {f"slow-{number}" for number in range(messages)}
        both = at_target.keys() & at_source.keys()
        figures = Figures(
            "slow target, RabbitMQ 0-9-1",
            messages,
            messages,
            len(wanted - at_target.keys() - at_source.keys()),
            len((at_target.keys() | at_source.keys()) - wanted),
            at_target.total() + at_source.total() - len(at_target.keys() | at_source.keys()),
            0,
            extra={
                "waiting_at_the_source": depth or 0,
                "a_second": round(rate, 1),
                "most_out": most,
                "memory_grew_MB": round(growth / 1e6, 1),
            },
            seconds=round(time.monotonic() - began, 1),
        )
        figures.problems += traces
        figures.must(growth <= GROWTH_MAX, f"memory grew by {growth:,} octets")
        figures.must(most <= PREFETCH, f"{most} messages were out, and the prefetch is {PREFETCH}")
        figures.must(not both, f"{len(both)} messages are at both places after an end in good order")
        figures.must(rate < 100, f"{rate:.0f} messages a second is not slow")
    return [figures]


def slow_target(context: Context) -> list[Figures]:
    """A bridge on RabbitMQ."""
    return asyncio.run(_play(context))
