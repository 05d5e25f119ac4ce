"""There and back: by one bridge from one end to the other, by a second one home again, and what became of everything.

The bridges are the gateway's own (:mod:`gateway.bridges`), with a ledger. Who publishes and who takes at the end are
no part of that gateway: they have links of their own.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from uuid import uuid4

from gateway.amqp.message import Message
from gateway.amqp.operations import Settlement
from gateway.bridges import BridgeSupervisor
from gateway.config import BridgeSettings, BridgeSource, BridgeTarget, BrokerSettings, LedgerSettings
from gateway.core import Gateway
from gateway.errors import NotFound
from gateway.fidelity import annotation
from gateway.ledger import Ledger
from gateway.observing.telemetry import Metrics
from gateway.upstreams import Delivery, Upstream
from gateway.upstreams.publishing.receipts import PublishReceipt
from tests.translation.live.compare import differences, same_digest
from tests.translation.live.ends import End, Servers
from tests.translation.live.messages import messages, number_of

SILENCE = 20.0
"""Nothing came for so many seconds: nothing more will."""
AFTERWARDS = 0.3
"""How long it is listened for messages that come twice when all have come, in seconds."""
WINDOW = 1_000
"""How many publishes are in flight."""


@dataclass
class Result:
    """What became of the messages of one pair."""

    source: End
    target: End
    sent: int
    back: int = 0
    equal: int = 0
    ordered: bool = True
    """Each number came after all smaller ones."""
    lost: list[int] = field(default_factory=list)
    twice: list[int] = field(default_factory=list)
    changed: dict[int, list[str]] = field(default_factory=dict)
    """Number (-1: unknown) -> what is not the same."""
    refused: dict[int, str] = field(default_factory=dict)
    """Number -> why the source did not take it."""
    buried: dict[int, str] = field(default_factory=dict)
    """Number (-1: unknown) -> why a bridge dead-lettered it."""
    bridges: dict[str, str] = field(default_factory=dict)
    """What a bridge has to say besides that it forwarded everything."""
    seconds: float = 0.0

    @property
    def perfect(self) -> bool:
        """All that was sent came back, once, in order and unchanged."""
        clean = not (self.lost or self.twice or self.changed or self.refused or self.buried or self.bridges)
        return clean and self.ordered and self.sent == self.back == self.equal

    def row(self) -> tuple[str, ...]:
        """A line of the table."""
        return (
            f"{self.source.name} → {self.target.name}",
            f"{self.sent:,}",
            f"{self.back:,}",
            f"{self.equal:,}",
            "yes" if self.ordered else "NO",
            str(len(self.lost)),
            str(len(self.twice)),
            f"{self.seconds:.1f}",
        )

    def notes(self, most: int = 10) -> list[str]:
        """What went wrong, the first few of each kind."""
        found = [f"refused {number}: {why}" for number, why in list(self.refused.items())[:most]]
        found += [f"changed {number}: {'; '.join(what)}" for number, what in list(self.changed.items())[:most]]
        found += [f"dead-lettered {number}: {why}" for number, why in list(self.buried.items())[:most]]
        found += [f"lost {number}" for number in self.lost[:most]]
        found += [f"twice {number}" for number in self.twice[:most]]
        return [*found, *(f"bridge {name}: {what}" for name, what in self.bridges.items())]


HEADINGS = ("pair", "sent", "back", "equal", "in order", "lost", "twice", "seconds")


@asynccontextmanager
async def upstream(end: End, servers: Servers, name: str = "") -> AsyncIterator[Upstream]:
    """A connection to an end, up."""
    settings = BrokerSettings(url=end.url(servers), reconnect_min=0.05, reconnect_max=1.0)
    made = Upstream(name or end.id, settings)
    await made.start()
    try:
        assert await made.wait_up(20), made.reason
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def bridged(
    source: End, target: End, servers: Servers, settings: dict[str, BridgeSettings]
) -> AsyncIterator[BridgeSupervisor]:
    """A gateway that knows the two ends as the brokers ``source`` and ``target``, with these bridges."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="translation-"))
        brokers = {
            name: await stack.enter_async_context(upstream(end, servers, name))
            for name, end in (("source", source), ("target", target))
        }
        ledger = await Ledger.open(f"sqlite:///{folder}/ledger.db", LedgerSettings(), owner="translation", migrate=True)
        stack.push_async_callback(ledger.close)
        gateway = Gateway(ledger, brokers, Metrics("translation"), ack_key=b"k" * 32)
        await gateway.start()
        stack.push_async_callback(gateway.close, 5.0)
        bridges = BridgeSupervisor(gateway, settings)
        await bridges.start()
        stack.push_async_callback(bridges.close, 5.0)
        yield bridges


async def publish(source: Upstream, queue: str, sent: Sequence[Message]) -> dict[int, str]:
    """Publish all, in order; number -> why, of those that were refused."""
    futures: list[asyncio.Future[PublishReceipt]] = []
    capabilities = source.capabilities
    persistent: asyncio.Future[PublishReceipt] | None = None
    for message in sent:
        if len(futures) >= WINDOW:
            await asyncio.wait([futures[-WINDOW]])
        if message.properties.delivery_mode != 2 and persistent is not None:
            await asyncio.wait([persistent])  # else this one would overtake it
            persistent = None
        futures.append(source.publish_nowait("", queue, message, order=queue))
        if message.properties.delivery_mode == 2 and capabilities is not None and capabilities.transient_overtakes:
            persistent = futures[-1]
    await asyncio.wait(futures)
    refused = {}
    for number, future in enumerate(futures):
        error = future.exception()
        if error is not None:
            refused[number] = str(error)
        elif not future.result().routed:
            refused[number] = "not routed"
    return refused


async def buried(broker: Upstream, queue: str) -> list[Delivery]:
    """What a bridge has dead-lettered; the queue is there if it has."""
    try:
        return await broker.fetch(queue, WINDOW)
    except NotFound:
        return []


async def there_and_back(source: End, target: End, servers: Servers, seed: int, count: int) -> Result:
    """Send the first so many messages of ``source`` to ``target`` and home again."""
    result = Result(source, target, count)
    sent = list(messages(source, seed, count))  # before anything is connected: it takes seconds
    began = time.monotonic()
    run = uuid4().hex[:8]
    first, there, home = (f"translation.{run}.{name}" for name in ("first", "there", "home"))
    settings = {
        f"{run}.there": BridgeSettings(
            source=BridgeSource(broker="source", queue=first), target=BridgeTarget(broker="target", routing_key=there)
        ),
        f"{run}.back": BridgeSettings(
            source=BridgeSource(broker="target", queue=there), target=BridgeTarget(broker="source", routing_key=home)
        ),
    }
    got: list[Message] = []
    last = began

    def take(delivery: Delivery) -> None:
        nonlocal last
        got.append(delivery.message)
        delivery.settle(Settlement.ACCEPT)
        last = time.monotonic()

    async with upstream(source, servers) as ours, upstream(target, servers) as theirs:
        places = ((ours, first), (theirs, there), (ours, home))
        for one, queue in places:
            await one.declare_queue(queue)
        try:
            taker = await ours.consume(home, 1_000, take)
            async with bridged(source, target, servers, settings) as bridges:
                result.refused = await publish(ours, first, sent)
                last = time.monotonic()
                while len(got) < count - len(result.refused) and time.monotonic() - last < SILENCE:
                    await asyncio.sleep(0.02)
                result.seconds = time.monotonic() - began
                await asyncio.sleep(AFTERWARDS)
                for name in settings:
                    status = await bridges.get(name)
                    if status.losses or status.dead_lettered or status.forwarded < count:
                        result.bridges[name] = (
                            f"{status.state}, {status.forwarded} forwarded, {status.dead_lettered} dead-lettered,"
                            f" {status.duplicates_dropped} dropped, losses {status.losses}, {status.last_error}"
                        )
            await taker.close()
        finally:
            graves = [(one, f"gateway.dead.{name}") for one, name in zip((ours, theirs), settings, strict=True)]
            for one, queue in graves:
                for delivery in await buried(one, queue):
                    number = number_of(delivery.message)
                    why = annotation(delivery.message.properties, "reason")
                    result.buried[-1 if number is None else number] = f"{queue}: {why}"
            for one, queue in (*places, *graves):
                with suppress(NotFound):
                    await one.delete_queue(queue)
    judge(result, sent, got, time.monotonic() - began)
    return result


def judge(result: Result, sent: Sequence[Message], got: Sequence[Message], elapsed: float) -> None:
    """Compare what came back with what was sent."""
    in_order = result.source.keeps_order and result.target.keeps_order
    seen: set[int] = set()
    latest = -1
    for message in got:
        result.back += 1
        number = number_of(message)
        if number is None or number >= len(sent):
            result.changed.setdefault(-1, []).append(f"no number in {message.properties!r:.300}")
            continue
        if number in seen:
            result.twice.append(number)
            continue
        seen.add(number)
        result.ordered = result.ordered and number > latest
        latest = max(number, latest)
        different = differences(result.source, sent[number], message, elapsed, in_order)
        if not different and not same_digest(result.source, sent[number], message):
            different = ["the digest"]
        if different:
            result.changed[number] = different
        else:
            result.equal += 1
    result.lost = [number for number in range(len(sent)) if number not in seen and number not in result.refused]
