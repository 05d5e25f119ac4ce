"""Publishes through our layers, one on top of the other, without HTTP: so that differences are what a layer costs.

``link``: a channel of a link. ``upstream``: the broker by name, with its windows, lanes and time-outs. ``core``: ids,
annotations, events and answers, with a ledger that keeps no events. ``ledger``: the same with the real one.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import uvloop

from gateway import __version__
from gateway.amqp.message import Message, Properties
from gateway.app import prepare_interpreter
from gateway.config import BrokerSettings, LedgerSettings
from gateway.core import Gateway, Publication
from gateway.ledger import InboxRow, Ledger, LogEntry
from gateway.observing.telemetry import Metrics
from gateway.upstreams import Upstream
from gateway.upstreams.keeper import Dialer
from tests.benchmarks.programs import gateway as link
from tests.benchmarks.programs.clock import Stopwatch, largest


class Forgetful(Ledger):
    """A ledger that keeps no events: what the core does by itself."""

    async def record(self, entries: Sequence[LogEntry], inbox: Sequence[InboxRow] = ()) -> list[int]:
        """Forget them."""
        return [0] * len(entries)


Send = Callable[[], Awaitable[None]]
"""Publish one batch and wait for every outcome."""


async def repeat(send: Send, job: dict[str, Any]) -> Stopwatch:
    """So many messages, in batches, so many batches at once."""
    left = iter(range(job["number"] // job["batch"]))

    async def work() -> None:
        for _ in left:
            await send()

    with Stopwatch() as watch:
        await asyncio.gather(*(work() for _ in range(job["callers"])))
    return watch


async def through_link(job: dict[str, Any]) -> Stopwatch:
    """The window is what the callers have on their way."""
    dialer = Dialer("bench", BrokerSettings(url=job["url"]))
    return await link.publish(dialer, [job["queue"]], {**job, "window": job["callers"] * job["batch"]})


async def through_upstream(job: dict[str, Any]) -> Stopwatch:
    """Without ids and events."""
    upstream = Upstream("rabbit", BrokerSettings(url=job["url"]))
    await upstream.start()
    assert await upstream.wait_up(10)
    message = Message(b"x" * job["size"], link.MESSAGE)

    async def send() -> None:
        # The messages of one caller stay in order, as those of a request do.
        order = str(id(asyncio.current_task())) if job["batch"] > 1 else None
        futures: list[Future[Any]] = [
            upstream.publish_nowait("", job["queue"], message, timeout=30.0, order=order) for _ in range(job["batch"])
        ]
        for future in futures:
            await future

    watch = await repeat(send, job)
    await upstream.close()
    return watch


async def through_core(job: dict[str, Any]) -> Stopwatch:
    """As the HTTP API calls it."""
    kind = Ledger if job["stage"] == "ledger" else Forgetful
    ledger = await kind.open(job["ledger"], LedgerSettings(), owner="bench", migrate=True)
    upstream = Upstream("rabbit", BrokerSettings(url=job["url"]))
    gateway = Gateway(ledger, {"rabbit": upstream}, Metrics(__version__), ack_key=b"x" * 32)
    await gateway.start()
    assert await upstream.wait_up(10)
    body = b"x" * job["size"]

    async def send() -> None:
        messages = [
            Publication(
                job["queue"], Message(body, Properties(content_type="text/plain", delivery_mode=2)), mandatory=True
            )
            for _ in range(job["batch"])
        ]
        results = await gateway.publish("rabbit", "", messages)
        assert all(result.error is None for result in results)

    watch = await repeat(send, job)
    await gateway.close(5.0)
    await ledger.close()
    return watch


STAGES = {"link": through_link, "upstream": through_upstream, "core": through_core, "ledger": through_core}


async def _run(job: dict[str, Any]) -> dict[str, Any]:
    watch = await STAGES[job["stage"]](job)
    return {**watch.result(job["number"]), "memory": largest()}


def main(job: dict[str, Any]) -> dict[str, Any]:
    """The program."""
    prepare_interpreter()
    return uvloop.run(_run(job))
