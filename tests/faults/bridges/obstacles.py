"""What stands in a bridge's way until it is taken away: a queue or an exchange that is not there, a ledger that cannot
be written.

As in :mod:`tests.faults.bridges.accidents`; here nothing may be there twice.
"""

from __future__ import annotations

import asyncio

from tests.faults.bridges.accidents import RECOVERED, hold
from tests.faults.bridges.harness import BridgeRun
from tests.faults.ledgers import SmallDisk, SqliteFile

# ------------------------------------------------------------------------------------------------- topology


async def queue_deleted(run: BridgeRun, times: int) -> None:
    """The source's queue goes under the bridge. It is empty then, or what was in it would be gone with it."""
    for _ in range(times):
        await run.forwards(20)
        await run.load.pause()
        await run.drained()
        await asyncio.to_thread(run.source.server.delete_queue, run.source.queue)  # type: ignore[attr-defined]
        found = await run.stuck(hold(times))
        run.must(run.source.queue in found["reason"], f"the reason does not name the queue: {found['reason']!r}")
        await run.source.declare()
        run.worst(recovered_s=await run.running(RECOVERED))
        run.load.begin()
        await run.forwards()
        run.times += 1


async def target_queue_deleted(run: BridgeRun, times: int) -> None:
    """The target's queue goes: what is published there is unroutable. It is empty then."""
    for _ in range(times):
        await run.forwards(20)
        await run.load.pause()
        await run.drained()
        run.taken += await run.target.take_all(run.target.queue)
        await run.target.upstream.delete_queue(run.target.queue)
        run.load.begin()
        found = await run.stuck(hold(times))
        run.must("no queue takes" in found["reason"], f"the reason does not say so: {found['reason']!r}")
        await run.target.declare()
        run.worst(recovered_s=await run.running(RECOVERED))
        await run.forwards()
        run.times += 1


async def exchange_unknown(run: BridgeRun, times: int) -> None:
    """The target's exchange is not there at first, and goes again later."""
    exchange, target = run.target_exchange, run.target
    for _ in range(times):
        found = await run.stuck(hold(times))
        run.must(exchange in found["reason"], f"the reason does not name the exchange: {found['reason']!r}")
        await target.upstream.declare_exchange(exchange, "fanout")
        await target.upstream.bind_queue(target.queue, exchange)
        run.worst(recovered_s=await run.running(RECOVERED))
        await run.forwards()
        await run.load.pause()
        await run.drained()
        await target.upstream.delete_exchange(exchange)
        run.load.begin()
        run.times += 1
    await run.stuck(hold(times))
    await target.upstream.declare_exchange(exchange, "fanout")
    await target.upstream.bind_queue(target.queue, exchange)
    await run.running(RECOVERED)
    await run.forwards()


# --------------------------------------------------------------------------------------------------- ledger


async def ledger_locked(run: BridgeRun, times: int) -> None:
    """Another process holds ``BEGIN EXCLUSIVE``."""
    assert isinstance(run.ledger, SqliteFile)
    for _ in range(times):
        await run.forwards(20)
        with run.ledger.locked():
            await run.stuck(hold(times))
        run.worst(recovered_s=await run.running(RECOVERED))
        await run.forwards()
        run.times += 1


async def ledger_disk_full(run: BridgeRun, times: int) -> None:
    """No room is left, until there is some again."""
    assert isinstance(run.ledger, SmallDisk)
    for _ in range(times):
        await run.forwards(20)
        assert run.gateway.process is not None
        with run.ledger.full(run.gateway.process.pid):
            await run.stuck(hold(times))
        run.worst(recovered_s=await run.running(RECOVERED))
        await run.forwards()
        run.times += 1
