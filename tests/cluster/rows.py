"""What happens to a cluster, as rows of a table.

A row is a function over a :class:`~tests.cluster.harness.Cluster` whose bridges are spread and have a load; it does its
worst as often as it is told. What must hold afterwards is the harness's: nothing lost, nothing changed, nothing twice
but what was in flight, never two owners at a time, no write of one who had lost its work.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tests.cluster.clients import Clients
from tests.cluster.harness import LEASE, PATIENCE, Cluster, Replica
from tests.faults.source import Shape
from tests.servers import PostgreSQL, RabbitMQ

PAUSE_QUICK, PAUSE_FULL = LEASE + 2.0, 60.0
"""For how long an owner is stopped, in seconds: longer than its lease."""
GRACE: Final = 0.02
"""How often a moment is looked for at which an owner has something in flight, in seconds."""


@dataclass(frozen=True)
class Row:
    """One row. ``times``: how often it happens in the full form; once in the quick one, unless ``quick`` says else."""

    name: str
    strike: Callable[[Cluster, int, bool], Awaitable[None]]
    replicas: int
    bridges: int
    times: int
    quick: int = 1
    pulls: bool = False
    """Besides the bridges there are producers and consumers over HTTP."""


async def _busy_owner(cluster: Cluster, rng: random.Random) -> tuple[Replica, list[str]]:
    """One that owns bridges, at a moment at which it has something in flight, and what it owns."""
    replica = rng.choice([each for each in cluster.replicas if each.running])
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(lambda: replica.in_flight):
            await asyncio.sleep(GRACE)
    return replica, await asyncio.to_thread(cluster.owned_by, replica)


async def killed(cluster: Cluster, times: int, full: bool) -> None:
    """SIGKILL for one owner; its work moves; it is started again and gets its share."""
    rng = random.Random(cluster.seed)
    for number in range(times):
        if number or full:
            await cluster.spread(*cluster.replicas)
        victim, mine = await _busy_owner(cluster, rng)
        at = time.time()
        await asyncio.to_thread(victim.kill)
        cluster.accident(mine)
        cluster.must_move(mine, at)
        others = [each for each in cluster.replicas if each is not victim]
        await cluster.spread(*others, within=PATIENCE)
        await cluster.forwards(*mine)
        if full:
            await asyncio.to_thread(victim.start)


async def paused(cluster: Cluster, times: int, full: bool) -> None:
    """SIGSTOP for one owner, for longer than its lease; then it goes on, and finds that all is another's."""
    rng = random.Random(cluster.seed)
    for _ in range(times):
        await cluster.spread(*cluster.replicas)
        victim, mine = await _busy_owner(cluster, rng)
        began, at = time.monotonic(), time.time()
        victim.pause()
        cluster.accident(mine)
        cluster.must_move(mine, at)
        others = [each for each in cluster.replicas if each is not victim]
        await cluster.spread(*others, within=PATIENCE)
        await cluster.forwards(*mine)
        await asyncio.sleep(max(0.0, began + (PAUSE_FULL if full else PAUSE_QUICK) - time.monotonic()))
        victim.resume()
        await cluster.spread(*cluster.replicas)
        lost = victim.events("work.lost")
        cluster.must(bool(lost), f"{victim.name} never noticed that it had lost its work")


async def ended(cluster: Cluster, times: int, full: bool) -> None:
    """SIGTERM for one owner: it hands everything over, and nothing comes twice."""
    rng = random.Random(cluster.seed)
    for _ in range(times):
        await cluster.spread(*cluster.replicas)
        victim, mine = await _busy_owner(cluster, rng)
        at = time.time()
        await asyncio.to_thread(victim.terminate)
        cluster.must_move(mine, at)
        await cluster.spread(*(each for each in cluster.replicas if each is not victim))
        await asyncio.to_thread(victim.start)
        await cluster.forwards(*mine)


async def cut_off(cluster: Cluster, times: int, full: bool) -> None:
    """``pg_terminate_backend`` for whatever serves the gateways, again and again, under a load of everything."""
    rng = random.Random(cluster.seed)
    ended = 0
    for _ in range(times):
        await asyncio.sleep(rng.uniform(0.05, 0.6 if full else 0.15))
        found = await asyncio.to_thread(
            cluster.query,
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'amqp-gateway'",
        )
        ended += found[0][0]
    cluster.notes["connections ended"] = ended
    cluster.must(ended >= times, f"only {ended} connections were ended")


ROWS: Final = (
    Row("owners killed", killed, replicas=3, bridges=6, times=10),
    Row("owners paused", paused, replicas=2, bridges=4, times=5),
    Row("owners ended", ended, replicas=3, bridges=6, times=10),
    Row("database connections cut off", cut_off, replicas=2, bridges=2, times=50, quick=8, pulls=True),
)
"""All of them."""


async def perform(
    row: Row, broker: RabbitMQ, database: PostgreSQL, *, full: bool, seed: int = 1, times: int = 0
) -> Cluster:
    """Run a row; its cluster, with the verdict.

    Raises:
        AssertionError, NotDrained: with everything there is to know.
    """
    shape = Shape(messages=2_000, rate=40.0) if full else Shape(messages=100, rate=25.0)
    replicas = row.replicas if full else 2
    bridges = row.bridges if full else 2
    cluster = Cluster(broker, database, row.name, replicas=replicas, bridges=bridges, shape=shape, seed=seed)
    async with cluster:
        await cluster.spread(*cluster.replicas)
        cluster.begin()
        clients = Clients(cluster, seed) if row.pulls else None
        if clients is not None:
            await clients.begin()
        await cluster.forwards(*cluster.bridges, more=1)
        await row.strike(cluster, times or (row.times if full else row.quick), full)
        if clients is not None:
            await clients.finish()
        await cluster.finish()
    return cluster
