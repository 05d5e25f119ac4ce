"""What happens to a bridge all of a sudden: its gateway is killed, a broker goes, the network breaks.

Each function is called when load and bridge run, does its worst so many times, and returns when the bridge is at work
again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from tests.faults.bridges.harness import BridgeRun, Side
from tests.faults.proxy import Direction, Latency, Timeout
from tests.servers import RabbitMQ

HOLD: Final = 1.5, 8.0
"""How long a fault lasts while the bridge only waits, in seconds, in the quick and in the full form."""
GRACE: Final = 25.0
"""A gateway that is told to end does so within so many seconds."""
MORE: Final = 4
"""How many more kills there may be where none came behind a confirm."""
RECOVERED: Final = 15.0
"""Within so many seconds after a fault the bridge is at work again."""


def hold(times: int) -> float:
    """See :data:`HOLD`."""
    return HOLD[times > 1]


# -------------------------------------------------------------------------------------- the gateway process


async def gateway_killed(run: BridgeRun, times: int) -> None:
    """SIGKILL under load. A kill counts where at least one publish had no confirm and one delivery no acknowledgement
    when it came: the gateway is asked for both right before."""
    with ExitStack() as stack:
        for side in run.sides:  # so that something is on its way nearly always
            stack.enter_context(side.proxy.toxic(Latency(0.02, 0.01)))
        for _ in range(times):
            await run.running()
            await run.forwards(run.random.randint(1, 60))
            await asyncio.sleep(run.random.uniform(0.0, 0.5))
            await run.kill()
            run.times += 1
        await run.running()
        await run.forwards()
    counted = sum(accident.counts for accident in run.accidents)
    run.must(counted == times, f"{counted} of {times} kills counted")


async def gateway_terminated(run: BridgeRun, times: int) -> None:
    """SIGTERM under load: what is under way comes to its end, so that nothing is there twice."""
    for _ in range(times):
        await run.running()
        await run.forwards(run.random.randint(10, 60))
        run.worst(exit_s=await asyncio.to_thread(run.gateway.terminate))
        await asyncio.to_thread(run.gateway.start)
        run.times += 1
    await run.running()
    await run.forwards()
    run.must(run.notes["exit_s"] <= GRACE, f"it took {run.notes['exit_s']} s to end")


async def killed_behind_the_confirm(run: BridgeRun, times: int) -> None:
    """SIGKILL where the target has confirmed, the ledger knows it, and the source was never told: what the gateway
    says to the source is swallowed. All of that comes again, and none of it is forwarded again."""
    confirmed = kills = 0
    while kills < times or (not confirmed and kills < times + MORE):  # on a slow machine it may come too soon
        await run.running()
        await run.forwards(run.random.randint(5, 40))
        held, before = 0, (await run.status())["forwarded"]
        with run.source.proxy.toxic(Timeout(), Direction.UPSTREAM):
            end = time.monotonic() + 1.5  # before the source misses the heartbeats that are swallowed too
            while held < 10 and time.monotonic() < end:
                await asyncio.sleep(0.02)
                held = (await run.status())["forwarded"] - before
            run.gateway.kill()
        run.accident(held, counts=True)
        run.note(kills=1, confirmed_and_not_acknowledged=held)
        confirmed += held
        kills += 1
        await asyncio.to_thread(run.gateway.start)
        run.times += 1
    await run.running()
    await run.forwards()
    run.must(confirmed > 0, "nothing was confirmed when the kills came")


# -------------------------------------------------------------------------------------------------- brokers


async def _side_away(
    run: BridgeRun, times: int, side: Side, end: Callable[[], None], back: Callable[[], None], forgets: bool = False
) -> None:
    """A broker is away: the bridge says so, waits, and goes on when it is back. ``forgets``: it comes back without
    knowing what it had delivered."""
    for _ in range(times):
        await run.forwards(run.random.randint(10, 60))
        await asyncio.to_thread(end)
        found = await run.stuck(hold(times))
        run.must(side.name in found["reason"], f"the reason does not name broker {side.name}: {found['reason']!r}")
        run.accident(0, forgets=forgets)
        await asyncio.to_thread(back)
        run.worst(recovered_s=await run.running(RECOVERED))
        await run.forwards()
        run.times += 1


async def source_killed(run: BridgeRun, times: int) -> None:
    """kill -9 for the source broker, started again on its data."""
    await _side_away(run, times, run.source, run.source.server.kill, run.source.server.restart, True)


async def target_killed(run: BridgeRun, times: int) -> None:
    """kill -9 for the target broker, started again on its data."""
    await _side_away(run, times, run.target, run.target.server.kill, run.target.server.restart)


async def source_paused(run: BridgeRun, times: int) -> None:
    """SIGSTOP for the source broker: connections stay open, and nobody answers. SIGCONT later."""
    await _side_away(run, times, run.source, run.source.server.pause, run.source.server.resume)


async def target_paused(run: BridgeRun, times: int) -> None:
    """SIGSTOP for the target broker, and SIGCONT later."""
    await _side_away(run, times, run.target, run.target.server.pause, run.target.server.resume)


async def source_gone(run: BridgeRun, times: int) -> None:
    """The network to the source breaks: connections are reset, and nobody listens."""
    await _side_away(run, times, run.source, run.source.proxy.down, run.source.proxy.up)


async def target_gone(run: BridgeRun, times: int) -> None:
    """The network to the target breaks."""
    await _side_away(run, times, run.target, run.target.proxy.down, run.target.proxy.up)


async def target_blocked(run: BridgeRun, times: int) -> None:
    """RabbitMQ's memory alarm at the target: it reads no publishes any more."""
    server = run.target.server
    assert isinstance(server, RabbitMQ)
    await _side_away(run, times, run.target, lambda: server.memory_alarm(True), lambda: server.memory_alarm(False))


async def source_blocked(run: BridgeRun, times: int) -> None:
    """RabbitMQ's memory alarm at the source: publishers wait, and the bridge empties the queue meanwhile."""
    server = run.source.server
    assert isinstance(server, RabbitMQ)
    for _ in range(times):
        await run.forwards(20)
        await asyncio.to_thread(server.memory_alarm, True)
        try:
            await run.says(lambda found: not found["in_flight"], 20, "the source was not emptied")
            run.must((await run.status())["state"] == "running", f"it does not run: {await run.status()}")
        finally:
            await asyncio.to_thread(server.memory_alarm, False)
        await run.forwards()
        run.times += 1


async def connections_reset(run: BridgeRun, times: int) -> None:
    """RST on all connections of one side, then of the other, at any moment."""
    for number in range(times):
        await run.running(RECOVERED)
        await run.forwards(run.random.randint(1, 40))
        run.sides[number % 2].proxy.reset()
        run.accident(0)
        run.times += 1
    await run.running(RECOVERED)
    await run.forwards()
