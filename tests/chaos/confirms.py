"""F30: confirms that never come, come late, come for ten thousand at once, say no, or name numbers near the end.

The broker is one without a protocol (:mod:`tests.upstreams.fake`), which says what it is told to; numbers near 2^63 are
given to the window of the classic versions itself, for no channel lives long enough to reach them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final
from unittest.mock import patch

from gateway.amqp.message import Message
from gateway.amqp.operations import Confirmed, Publish, Refused
from gateway.classic.confirms import ConfirmWindow, Pending
from gateway.config import BrokerSettings
from gateway.errors import FrameSyntaxError, GatewayError, OutcomeUnknown, PublishRefused
from gateway.upstreams import PublishReceipt, Upstream
from gateway.upstreams.publishing import isolation
from tests.chaos.figures import Figures
from tests.chaos.parts import Context
from tests.upstreams.fake import FakeBroker, Peer, until

MESSAGES: Final = {False: 10_000, True: 100_000}
"""Of each scenario, in the quick and in the full form: in windows of :data:`AT_ONCE`."""
AT_ONCE: Final = 10_000
FEW: Final = 1_000
"""At a time, where each waits for its time to be up."""
NEVER: Final = 3.0
"""That time, in seconds: until then each must be with the broker, or it was not sent."""
PATIENCE: Final = 120.0
"""How long a busy machine may take for the others, in seconds."""
EDGE: Final = 1 << 63
Outcomes = Counter[str]


class Bench:
    """An upstream at a broker that keeps publishes to itself until it is told what to say of them."""

    def __init__(self) -> None:
        self.broker = FakeBroker()
        self.broker.put("q")
        self.held: list[tuple[Peer, Publish]] = []
        self.broker.on[Publish] = self._hold
        settings = BrokerSettings(
            url="amqp://guest:guest@localhost/?version=0-9-1",
            reconnect_min=0.01,
            reconnect_max=0.05,
            publish_window=20_000,
            publish_repeat=False,
        )
        self.upstream = Upstream("fake", settings, connector=self.broker.dial)

    def _hold(self, peer: Peer, operation: Publish) -> bool:
        self.held.append((peer, operation))
        return True

    async def publish(self, number: int, timeout: float) -> list[asyncio.Future[PublishReceipt]]:
        """So many at once; returns when the broker has them all."""
        self.held.clear()
        futures = [
            self.upstream.publish_nowait("", "q", Message(b"%d" % each), timeout=timeout) for each in range(number)
        ]
        await until(lambda: len(self.held) == number, PATIENCE)
        return futures


async def outcomes(futures: list[asyncio.Future[PublishReceipt]]) -> Outcomes:
    """What became of them, by name."""
    done = await asyncio.gather(*futures, return_exceptions=True)
    return Counter("confirmed" if isinstance(each, PublishReceipt) else type(each).__name__ for each in done)


async def _multiple(bench: Bench, number: int) -> Outcomes:
    """One acknowledgement for all of them."""
    futures = await bench.publish(number, PATIENCE)
    peer, first = bench.held[0]
    peer.send(Confirmed(first.channel, first.serial, bench.held[-1][1].serial))
    return await outcomes(futures)


async def _refused(bench: Bench, number: int) -> Outcomes:
    """One refusal for all of them."""
    futures = await bench.publish(number, PATIENCE)
    peer, first = bench.held[0]
    peer.send(Refused(first.channel, first.serial, bench.held[-1][1].serial))
    return await outcomes(futures)


async def _never(bench: Bench, number: int) -> Outcomes:
    """None at all: each publish is unknown in time. What comes afterwards is heard by nobody and frees the window."""
    futures = await bench.publish(number, NEVER)
    found = await outcomes(futures)
    peer, first = bench.held[0]
    peer.send(Confirmed(first.channel, first.serial, bench.held[-1][1].serial))
    await until(lambda: bench.upstream.status().pending == 0, PATIENCE)
    return found


async def _backwards(bench: Bench, number: int) -> Outcomes:
    """One by one, the newest first."""
    futures = await bench.publish(number, PATIENCE)
    for peer, each in reversed(bench.held):
        peer.send(Confirmed(each.channel, each.serial, each.serial))
    return await outcomes(futures)


SCENARIOS: Final[tuple[tuple[str, Callable[[Bench, int], Awaitable[Outcomes]], str], ...]] = (
    ("one acknowledgement for 10,000", _multiple, "confirmed"),
    ("one refusal for 10,000", _refused, PublishRefused.__name__),
    ("none comes", _never, OutcomeUnknown.__name__),
    ("the newest first", _backwards, "confirmed"),
)


def _near_the_end() -> Figures:
    """Numbers on both sides of 2^63, one by one, several at once, and such as were never given out."""
    figures = Figures("numbers near 2^63", unit="numbers")
    publish = Publish(1, "", "q", Message(b"x"))
    window = ConfirmWindow()
    window._first = EDGE - 5_000
    for number in range(AT_ONCE):
        window.add(Pending(number, publish, b""))
    taken: list[Pending] = []
    for tag in (EDGE - 4_990, EDGE - 1, EDGE, EDGE + 1):
        taken += window.settle(tag, False)
    for tag in (EDGE - 2, EDGE + 1, EDGE + 4_999):
        taken += window.settle(tag, True)
    figures.attempted = AT_ONCE
    figures.unexpected = AT_ONCE - len({each.serial for each in taken}) + len(taken) - AT_ONCE
    figures.must(len(taken) == AT_ONCE and len(window) == 0, f"{len(taken)} were settled, {len(window)} are left")
    for tag in (EDGE + 5_000, (1 << 64) - 1):
        for multiple in (False, True):
            try:
                window.settle(tag, multiple)
            except FrameSyntaxError:
                continue
            figures.problems.append(f"{tag} was settled, and never given out")
    return figures


def confirms(context: Context) -> list[Figures]:
    """Every scenario; the map of pending publishes is empty at the end of each."""
    found = []
    rounds = MESSAGES[context.full] // AT_ONCE

    async def play(name: str, scenario: Callable[[Bench, int], Awaitable[Outcomes]], wanted: str) -> Figures:
        figures = Figures(name, unit="publishes")
        bench = Bench()
        with (
            patch("gateway.upstreams.keeper.client_session", bench.broker.session),
            patch.object(isolation, "FIRST_WINDOW", 65_535),
        ):
            await bench.upstream.start()
            assert await bench.upstream.wait_up(30), bench.upstream.reason
            try:
                number = FEW if scenario is _never else AT_ONCE
                for _ in range(rounds):
                    seen = await scenario(bench, number)
                    figures.attempted += number
                    figures.unexpected += number - seen[wanted]
                    figures.must(set(seen) == {wanted}, f"{dict(seen)}")
                    pending = bench.upstream.status().pending
                    figures.must(pending == 0, f"{pending} are pending at the end")
            except (GatewayError, TimeoutError) as error:
                figures.problems.append(f"{type(error).__name__}: {error}")
            finally:
                await bench.upstream.close(0.0)
        return figures

    for name, scenario, wanted in SCENARIOS:
        began = time.monotonic()
        found.append(asyncio.run(play(name, scenario, wanted)))
        found[-1].seconds = round(time.monotonic() - began, 1)
    return [*found, _near_the_end()]
