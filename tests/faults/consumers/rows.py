"""The table of faults of consumers: what is done to whom, and how often.

A row's fault is a function that is called when loads and consumers run, and returns when the fault is over. What must
hold in every row is in :meth:`~tests.faults.consumers.harness.ConsumerRun.finish`; a row adds its own with
``run.must``. Many lanes share a gateway, and in the quick form several rows a run, for most of the time goes into
starting things.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.faults.consumers import accidents
from tests.faults.consumers.harness import ConsumerRun
from tests.faults.consumers.lanes import LANES, STREAMS, Lane
from tests.faults.ledgers import Place, SqliteFile
from tests.faults.source import Shape
from tests.servers.process import Server

MESSAGES: Final = 40, 20_000
"""Of each lane, at least, in the quick and in the full form."""
RATES: Final = 6.0, 150.0
"""Messages a second of each lane, likewise."""


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    name: str
    fault: Callable[[ConsumerRun, int], Awaitable[None]]
    times: tuple[int, int] = (1, 5)
    """How often the fault happens, in the quick and in the full form."""
    private: bool = False
    """The fault is done to a broker, so that it must be nobody else's."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


ROWS: Final = (
    Row("calm", accidents.calm, times=(1, 10)),
    Row("consumers killed", accidents.consumers_killed, times=(1, 20)),
    Row("answers cut off", accidents.answers_cut, times=(1, 2)),
    Row("deadlines missed", accidents.deadlines_missed, times=(1, 10)),
    Row("gateway killed", accidents.gateway_killed, times=(2, 20)),
    Row("broker restarted", accidents.brokers_restarted, times=(1, 3), private=True),
)
"""In the order in which they are run."""


def together(*names: str) -> Row:
    """Several rows as one, which does what they do one after the other. Its own number of times is that of the form:
    1 quick, 2 full; each row then has its own."""
    rows = [next(row for row in ROWS if row.name == name) for name in names]

    async def fault(run: ConsumerRun, times: int) -> None:
        for row in rows:
            began = time.monotonic()
            await row.fault(run, row.times[times > 1])
            run.note(**{f"{row.name}_s": round(time.monotonic() - began, 1)})

    settings = {name: table for row in rows for name, table in row.settings.items()}
    return Row(", ".join(names), fault, (1, 2), any(row.private for row in rows), settings)


RESTARTED: Final = (("rabbitmq", "0-9-1"), ("brokerj", "0-10"))
"""Brokers and versions of the quick form of the last row."""
QUICK: Final = (
    ((*LANES, *STREAMS), together("calm", "deadlines missed", "answers cut off", "consumers killed")),
    ((*LANES, *STREAMS), together("gateway killed")),
    (
        tuple(lane for lane in (*LANES, *STREAMS) if (lane.kind, lane.version) in RESTARTED),
        together("broker restarted"),
    ),
)
"""In the order in which they are run: which lanes share a gateway, and which rows they have."""


async def perform(
    row: Row,
    lanes: Sequence[Lane],
    servers: Callable[[str], Server],
    *,
    full: bool = False,
    seed: int = 1,
    times: int = 0,
    messages: int = 0,
    rate: float = 0.0,
    ledger: Callable[[], Place] = SqliteFile,
) -> ConsumerRun:
    """One row with some lanes.

    Args:
        servers: kind -> a server of that kind.
        times: how often the fault happens, instead of the row's own number.
        messages: of each lane, and how many a second, instead of those of the form.

    Raises:
        AssertionError, NotDrained, GatewayFailed: it is not valid, or an error.
    """
    shape = Shape(messages=messages or MESSAGES[full], rate=rate or RATES[full])
    with ledger() as place:
        run = ConsumerRun(lanes, servers, row.name, shape, seed=seed, settings=row.settings, ledger=place)
        async with run:
            await run.begin()
            await row.fault(run, times or row.times[full])
            await run.finish(3_600 if full else 180)
    return run
