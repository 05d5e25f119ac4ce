"""The table of faults under clients of a front: what is done to whom while the load goes on.

A row lets the load go on part by part, and does something in the middle of each. What must hold in every row is in
:meth:`~tests.faults.fronts.harness.FrontRun.finish`; a row adds its own with ``run.must``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from tests.faults.fronts.harness import PROGRESS_WITHIN, FrontRun
from tests.faults.fronts.load import Shape
from tests.faults.ledgers import Place, Postgres
from tests.faults.proxy import Bandwidth, Direction, HalfOpen, Latency, LimitData, Proxy
from tests.servers import RabbitMQ
from tests.servers.process import Server

DETECTED: Final = 6.0
"""A broker that says nothing is taken for lost within this many seconds: two heartbeats, and some."""
WITHOUT: Final = 1.0
"""Seconds for which clients must hear of no publish, where none can be safe."""
OCTETS: Final = 250
"""Of a message and what is around it, at least."""
HANDSHAKE: Final = 700
"""Octets of a connection and its first requests, roughly."""


async def gateway_killed(run: FrontRun, times: int) -> None:
    """SIGKILL, and started again. It counts where a publish had no outcome and a consumer held something."""
    await _gateway_killed(run, times, lambda: bool(run.load.in_flight and run.load.open_deliveries))


async def gateway_killed_while_it_stores(run: FrontRun, times: int) -> None:
    """The same, where publishes go to the ledger in any case. It counts where a publish had no outcome: that one has
    its outcome before consumers have anything."""
    await _gateway_killed(run, times, lambda: bool(run.load.in_flight))


async def _gateway_killed(run: FrontRun, times: int, busy: Callable[[], bool]) -> None:
    run.may_break = True
    for proxy in (run.proxy, run.clients):  # so that something is on its way nearly always
        proxy.add(Latency(0.02, 0.01))
    for number in range(times):
        await run.part(number, times)
        await run.until(lambda: busy() or run.load.is_done, PROGRESS_WITHIN, "nothing was under way")
        run.note(kills=1, kills_that_count=int(not run.load.is_done))
        await asyncio.to_thread(run.gateway.kill)
        await asyncio.to_thread(run.gateway.start)
        await run.part_done()
    counted = run.notes["kills_that_count"]
    run.must(counted > times * 0.8, f"{counted} of {times} kills counted")


async def gateway_killed_while_the_broker_is_away(run: FrontRun, times: int) -> None:
    """The same, while the broker cannot be reached and publishes go to the ledger."""
    run.may_break = True
    for number in range(times):
        await run.part(number, times)
        run.proxy.down()
        before = run.load.made
        run.load.allow((number + 1.5) / (times + 1))
        await run.until(lambda before=before: run.load.made > before + 20, PROGRESS_WITHIN, "no publishes went on")  # type: ignore[misc]
        await asyncio.to_thread(run.gateway.kill)
        await asyncio.to_thread(run.gateway.start)
        await run.part_done()
        run.proxy.up()
        run.note(times=1)


async def broker_killed(run: FrontRun, times: int) -> None:
    """kill -9, and started again on its data."""
    for number in range(times):
        await run.part(number, times)
        await asyncio.to_thread(run.server.kill)
        await asyncio.to_thread(run.server.restart)
        await run.part_done()
        run.note(times=1)


async def broker_paused(run: FrontRun, times: int) -> None:
    """SIGSTOP for longer than the front waits for an answer, then SIGCONT."""
    for number in range(times):
        await run.part(number, times)
        run.server.pause()
        try:
            await asyncio.sleep(DETECTED)
        finally:
            run.server.resume()
        await run.part_done()
        run.note(times=1)


async def broker_blocked(run: FrontRun, times: int) -> None:
    """RabbitMQ's memory alarm: it reads nothing more from a connection that publishes."""
    assert isinstance(run.server, RabbitMQ)
    for number in range(times):
        await run.part(number, times)
        await asyncio.to_thread(run.server.memory_alarm, True)
        try:
            await asyncio.sleep(DETECTED)
        finally:
            await asyncio.to_thread(run.server.memory_alarm, False)
        await run.part_done()
        run.note(times=1)


async def broker_blocked_and_stored(run: FrontRun, times: int) -> None:
    """The same, where publishes go to the ledger in any case: nobody waits for the broker."""
    assert isinstance(run.server, RabbitMQ)
    for number in range(times):
        await run.part(number, times)
        await asyncio.to_thread(run.server.memory_alarm, True)
        try:
            run.load.allow((number + 1.5) / (times + 1))
            await run.part_done()
            await asyncio.sleep(DETECTED)
        finally:
            await asyncio.to_thread(run.server.memory_alarm, False)
        run.note(times=1)


async def half_open(run: FrontRun, times: int) -> None:
    """A black hole between front and broker; later what was under way arrives all the same."""
    for number in range(times):
        await run.part(number, times)
        with run.proxy.toxic(HalfOpen()):
            await asyncio.sleep(DETECTED)
        await run.part_done()
        run.note(times=1)


async def broker_cut(run: FrontRun, times: int) -> None:
    """The connection to the broker ends at any octet, either way, by FIN or RST; of a third the next one, too, within
    its first octets."""
    await _cut(run, run.proxy, times, run.shape.messages * OCTETS // times)


async def broker_cut_and_stored(run: FrontRun, times: int) -> None:
    """The same, where publishes go to the ledger meanwhile: the next cut waits until clients are connected again."""
    await _cut(run, run.proxy, times, run.shape.messages * OCTETS // times, again=run.delivered)


async def clients_cut(run: FrontRun, times: int) -> None:
    """The connection of a client ends at any octet, likewise."""
    run.may_break = True
    await _cut(run, run.clients, times, run.shape.messages * OCTETS // times // 6)


async def _cut(
    run: FrontRun, proxy: Proxy, times: int, most: int, again: Callable[[], Awaitable[None]] | None = None
) -> None:
    chance = random.Random(run.seed)
    cuts = 0
    for number in range(times):
        run.load.allow((number + 1) / (times + 1))
        name = f"cut-{number}"
        toxic = LimitData(chance.randrange(1, max(2, most)), reset=chance.random() < 0.5, once=True)
        proxy.add(toxic, chance.choice(tuple(Direction)), name=name)
        gone = lambda name=name: name not in proxy.toxics or run.load.is_done  # type: ignore[misc]  # noqa: E731
        await run.until(gone, PROGRESS_WITHIN, "no progress")
        if name not in proxy.toxics:
            cuts += 1
            if chance.random() < 1 / 3:
                next_one = LimitData(chance.randrange(1, HANDSHAKE), reset=chance.random() < 0.5, once=True)
                proxy.add(next_one, chance.choice(tuple(Direction)), name=f"{name}-again")
        await run.part_done()
        if again is not None:
            await again()
    for name in list(proxy.toxics):
        proxy.remove(name)
    run.note(cuts=cuts)
    run.must(cuts > times // 2, f"{cuts} connections were cut, of {times}")


async def slow_clients(run: FrontRun, times: int) -> None:
    """Two publishers and two consumers have 40 kB/s each way, and read nothing at all for seconds: others go on."""
    run.slow.add(Bandwidth(40_000))
    for number in range(times):
        await run.part(number, times)
        with run.slow.toxic(HalfOpen()):
            before = run.load.fast_receptions
            run.load.allow((number + 1.9) / (times + 1))
            await run.until(
                lambda before=before: run.load.fast_receptions > before + 20,  # type: ignore[misc]
                30.0,
                "other consumers got nothing",
            )
            await asyncio.sleep(2.0)
        run.note(times=1)
    run.load.allow(1.0)


async def slow_broker(run: FrontRun, times: int) -> None:
    """100 kB/s and 50 ± 30 ms each way between front and broker."""
    run.proxy.add(Bandwidth(100_000))
    run.proxy.add(Latency(0.05, 0.03))
    run.load.allow(1.0)


async def ledger_away(run: FrontRun, times: int) -> None:
    """The ledger is away, or its connections end at any octet, while the broker is away, too; then the ledger alone."""
    chance = random.Random(run.seed)
    ledger: Proxy = run.place.proxy
    for number in range(times):
        await run.part(number, times)
        run.proxy.down()
        if number % 2:
            cut = LimitData(chance.randrange(1, 20_000), reset=True, once=True)
            ledger.add(cut, chance.choice(tuple(Direction)), name=f"cut-{number}")
            run.load.allow((number + 1.5) / (times + 1))
            await asyncio.sleep(2.0)
        else:
            ledger.down()
            await asyncio.sleep(0.2)
            run.load.allow((number + 1.5) / (times + 1))
            before = run.acknowledged
            await asyncio.sleep(WITHOUT)
            run.must(run.acknowledged == before, f"{run.acknowledged - before} publishes were confirmed by nobody")
            ledger.up()
        if number % 3 == 0:  # and what is stored must wait for the ledger again
            await run.part_done()
            ledger.down()
            run.proxy.up()
            await asyncio.sleep(WITHOUT)
            ledger.up()
        else:
            run.proxy.up()
        await run.part_done()
        run.note(times=1)
    for name in list(ledger.toxics):
        ledger.remove(name)


# --------------------------------------------------------------------------------------------------- table


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    name: str
    fault: Callable[[FrontRun, int], Awaitable[None]]
    quick: tuple[tuple[str, str], ...]
    """Broker and version of each quick form."""
    full: tuple[tuple[str, str], ...]
    """Of each full form."""
    messages: int = 400
    """Of the quick form."""
    times: tuple[int, int] = (1, 5)
    """How often the fault happens, in the quick and in the full form."""
    shape: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the front."""
    ledger: Callable[[], Place] | None = None
    """Where the ledger is; None: in a SQLite file that nobody hurts."""


async def perform(row: Row, server: Server, version: str, messages: int, times: int, seed: int) -> FrontRun:
    """One row with one broker and version, from load to verdict.

    Raises:
        AssertionError, NotDrained, GatewayFailed: it is not valid, or an error.
    """
    with row.ledger() if row.ledger is not None else nullcontext() as place:
        shape = Shape(messages=messages, **row.shape)
        async with FrontRun(server, version, row.name, shape, seed, row.settings, place) as run:
            await row.fault(run, times)
            await run.finish()
    return run


RABBIT: Final = ("rabbitmq", "0-9-1")
RABBIT_43: Final = ("rabbitmq-4.3", "0-9-1")
QPID: Final = ("brokerj", "0-10")
STORE: Final = {"store": "when-down"}
ALWAYS: Final = {"store": "always"}

ROWS: Final = (
    Row("gateway killed", gateway_killed, (RABBIT,), (RABBIT, QPID), times=(2, 50)),
    Row(
        "gateway killed, broker away, store",
        gateway_killed_while_the_broker_is_away,
        (RABBIT,),
        (RABBIT,),
        times=(1, 20),
        settings=STORE,
    ),
    Row("broker killed", broker_killed, (RABBIT, QPID), (RABBIT, RABBIT_43, QPID), times=(1, 50)),
    Row("broker killed, store", broker_killed, (RABBIT,), (RABBIT,), times=(1, 10), settings=STORE),
    Row("broker paused", broker_paused, (RABBIT,), (RABBIT, QPID)),
    Row("broker paused, store", broker_paused, (), (RABBIT,), settings=STORE),
    Row("broker blocked by an alarm", broker_blocked, (RABBIT,), (RABBIT,)),
    Row("half-open connection", half_open, (QPID,), (RABBIT, QPID)),
    Row("broker's connection cut", broker_cut, (RABBIT, QPID), (RABBIT, QPID), times=(10, 100)),
    Row("broker's connection cut, store", broker_cut_and_stored, (RABBIT,), (RABBIT,), times=(10, 100), settings=STORE),
    Row("clients' connections cut", clients_cut, (RABBIT,), (RABBIT, QPID), times=(10, 100)),
    Row("slow clients", slow_clients, (RABBIT,), (RABBIT,), shape={"slow": (2, 2)}),
    Row("slow broker", slow_broker, (RABBIT,), (RABBIT,)),
    Row("ledger away, store", ledger_away, (RABBIT,), (RABBIT,), times=(2, 12), settings=STORE, ledger=Postgres),
    Row(
        "gateway killed, always",
        gateway_killed_while_it_stores,
        (RABBIT,),
        (RABBIT, QPID),
        times=(2, 50),
        settings=ALWAYS,
    ),
    Row("broker killed, always", broker_killed, (), (RABBIT,), times=(1, 10), settings=ALWAYS),
    Row("broker blocked by an alarm, always", broker_blocked_and_stored, (RABBIT,), (RABBIT,), settings=ALWAYS),
    Row("ledger away, always", ledger_away, (RABBIT,), (RABBIT,), times=(2, 12), settings=ALWAYS, ledger=Postgres),
    Row(
        "broker's connection cut, record all",
        broker_cut,
        (RABBIT,),
        (RABBIT, QPID),
        times=(10, 100),
        settings={"record": "all"},
    ),
)
"""In the order in which they are run."""
