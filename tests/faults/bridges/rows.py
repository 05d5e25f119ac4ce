"""The table of faults of a bridge: what is done to whom while it is at work.

A row's fault is a function that is called when load and bridge run, and returns when the fault is over. What must hold
in every row is in :meth:`~tests.faults.bridges.harness.BridgeRun.finish`; a row adds its own with ``run.must``.
:data:`ROWS` is the full form, :data:`QUICK` the quick one, where several rows share a gateway, for most of the time
goes into starting one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.amqp.message import Message
from tests.faults.bridges import accidents, obstacles, poisons
from tests.faults.bridges.harness import EXCHANGE, BridgeRun
from tests.faults.bridges.poisons import LIMIT
from tests.faults.ledgers import Place, SmallDisk, SqliteFile
from tests.faults.source import Shape
from tests.servers import serving
from tests.servers.process import Server


@dataclass(frozen=True)
class Direction:
    """From where to where."""

    name: str
    source: tuple[str, str]
    """Kind of server and version."""
    target: tuple[str, str]


OLD_TO_QPID: Final = Direction("0-8 to 0-10", ("rabbitmq", "0-8"), ("brokerj", "0-10"))
QPID_TO_RABBIT: Final = Direction("0-10 to 0-9-1", ("brokerj", "0-10"), ("rabbitmq", "0-9-1"))
BOTH: Final = (OLD_TO_QPID, QPID_TO_RABBIT)

SMALL: Final = {"large_share": 0.0}
"""No body is over a limit by chance."""
KEYED: Final = {"target.exchange": "amq.topic", "target.routing_key": "{header:key}"}
"""The routing key is in a header of each message."""


DTX: Final = {"acknowledge": "dtx"}
"""Nothing may come twice."""


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    name: str
    fault: Callable[[BridgeRun, int], Awaitable[None]]
    directions: tuple[Direction, ...] = BOTH
    """Of the full form."""
    times: tuple[int, int] = (1, 5)
    """How often the fault happens, in the quick and in the full form."""
    messages: tuple[int, int] = (100, 2_000)
    """At least so many, likewise."""
    private: bool = False
    """The fault is done to a broker, so that it must be nobody else's."""
    shape: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    bridge: Mapping[str, Any] = field(default_factory=dict)
    ledger: Callable[[], Place] = SqliteFile
    """Where the run keeps its ledger."""
    login: Callable[[Server], AbstractContextManager[tuple[str, str]]] | None = None
    """The gateway's login at the target, as long as the context lasts; None: everybody's."""
    change: Callable[[int, Message], Message] | None = None
    """What the load makes of each message, from the first on."""


ROWS: Final = (
    Row("gateway killed", accidents.gateway_killed, times=(2, 50), messages=(100, 5_000)),
    Row("gateway killed behind the confirm", accidents.killed_behind_the_confirm, times=(1, 20), messages=(100, 5_000)),
    Row("gateway terminated", accidents.gateway_terminated, times=(1, 20)),
    Row("source killed", accidents.source_killed, private=True),
    Row("target killed", accidents.target_killed, private=True),
    Row("source paused", accidents.source_paused, private=True),
    Row("target paused", accidents.target_paused, private=True),
    Row("source blocked by an alarm", accidents.source_blocked, (OLD_TO_QPID,), private=True),
    Row("target blocked by an alarm", accidents.target_blocked, (QPID_TO_RABBIT,), private=True),
    Row("source gone", accidents.source_gone),
    Row("target gone", accidents.target_gone),
    Row("connections reset", accidents.connections_reset, times=(4, 50)),
    Row("source queue deleted", obstacles.queue_deleted),
    Row("unroutable at the target", obstacles.target_queue_deleted),
    Row(
        "gateway killed in dtx",
        accidents.gateway_killed,
        (OLD_TO_QPID,),
        times=(2, 50),
        messages=(100, 5_000),
        bridge=DTX,
    ),
    Row("connections reset in dtx", accidents.connections_reset, (OLD_TO_QPID,), times=(4, 50), bridge=DTX),
    Row("source killed in dtx", accidents.source_killed, (OLD_TO_QPID,), private=True, bridge=DTX),
    Row("target killed in dtx", accidents.target_killed, (OLD_TO_QPID,), private=True, bridge=DTX),
    Row("unknown target exchange", obstacles.exchange_unknown, bridge={"target.exchange": EXCHANGE}),
    Row("ledger locked", obstacles.ledger_locked),
    Row("ledger disk full", obstacles.ledger_disk_full, ledger=SmallDisk),
    Row("over the target's limit", poisons.too_large, settings={"brokers.target.message_max": LIMIT}, shape=SMALL),
    Row("over the source's limit", poisons.over_the_limit, settings={"brokers.source.message_max": LIMIT}, shape=SMALL),
    Row(
        "untranslatable under strict", poisons.untranslatable, bridge={"on_loss": "strict"}, login=poisons.another_user
    ),
    Row(
        "refused by the target",
        poisons.refused,
        (QPID_TO_RABBIT,),
        bridge=KEYED,
        login=poisons.denied_user,
        change=poisons.good_key,
    ),
    Row("one unroutable among others", poisons.unroutable, bridge=KEYED, change=poisons.good_key),
)
"""In the order in which they are run."""


def together(*names: str) -> Row:
    """Several rows as one, which does what they do one after the other."""
    rows = [next(row for row in ROWS if row.name == name) for name in names]

    async def fault(run: BridgeRun, times: int) -> None:
        for row in rows:
            await row.fault(run, row.times[0])

    def merged(tables: list[Mapping[str, Any]]) -> Mapping[str, Any]:
        return {name: value for table in tables for name, value in table.items()}

    return Row(
        ", ".join(names),
        rows[0].fault if len(rows) == 1 else fault,
        times=rows[0].times,
        private=any(row.private for row in rows),
        shape=merged([row.shape for row in rows]),
        settings=merged([row.settings for row in rows]),
        bridge=merged([row.bridge for row in rows]),
        ledger=SmallDisk if any(row.ledger is SmallDisk for row in rows) else SqliteFile,
        login=next((row.login for row in rows if row.login is not None), None),
        change=next((row.change for row in rows if row.change is not None), None),
    )


QUICK: Final = (
    (OLD_TO_QPID, together("gateway killed", "gateway killed behind the confirm")),
    (QPID_TO_RABBIT, together("gateway killed", "gateway terminated")),
    (
        OLD_TO_QPID,
        together("source gone", "target gone", "source queue deleted", "unroutable at the target", "ledger locked"),
    ),
    (
        QPID_TO_RABBIT,
        together("target gone", "connections reset", "source queue deleted", "ledger disk full"),
    ),
    (QPID_TO_RABBIT, together("unknown target exchange")),
    (QPID_TO_RABBIT, together("over the target's limit", "untranslatable under strict")),
    (QPID_TO_RABBIT, together("refused by the target", "one unroutable among others")),
    (OLD_TO_QPID, together("over the source's limit")),
    (
        QPID_TO_RABBIT,
        together("target blocked by an alarm", "source paused", "source killed", "target killed"),
    ),
    (OLD_TO_QPID, together("source blocked by an alarm", "target paused")),
    (
        OLD_TO_QPID,
        together(
            "gateway killed in dtx",
            "connections reset in dtx",
            "source killed in dtx",
            "target killed in dtx",
        ),
    ),
)
"""In the order in which they are run: where, and which rows."""


async def perform(
    row: Row,
    direction: Direction,
    servers: Callable[[str], Server],
    *,
    full: bool = False,
    seed: int = 1,
    times: int = 0,
) -> BridgeRun:
    """One row in one direction, from load to verdict.

    Args:
        servers: kind -> a server of that kind.
        times: how often the fault happens, instead of the row's own number.

    Raises:
        AssertionError, NotDrained, GatewayFailed: it is not valid, or an error.
    """
    shape = Shape(messages=row.messages[full], **row.shape)
    source, target = (
        (servers(serving(kind, version)), version) for kind, version in (direction.source, direction.target)
    )
    with ExitStack() as stack:
        run = BridgeRun(
            source,
            target,
            row.name,
            shape,
            seed=seed,
            settings=row.settings,
            bridge=row.bridge,
            ledger=stack.enter_context(row.ledger()),
            login=stack.enter_context(row.login(target[0])) if row.login is not None else None,
        )
        async with run:
            run.load.change = row.change
            run.load.begin()
            await row.fault(run, times or row.times[full])
            await run.finish()
    return run
