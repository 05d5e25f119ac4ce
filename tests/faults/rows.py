"""The table of faults about network, broker and gateway process: what is done to whom while the load goes on.

A row is a function that is called when producers and consumers run, and returns when the fault is over. What must hold
in every row is in :meth:`~tests.faults.harness.Run.finish`; a row adds its own with ``run.must``. :data:`ROWS` says
with which brokers and versions, and how much, in the quick form (a test) and in the full one (``make faults``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from tests.faults import ledger_rows
from tests.faults.harness import Run
from tests.faults.ledgers import Place, Postgres, SmallDisk, SqliteFile
from tests.faults.load import Shape
from tests.faults.proxy import Bandwidth, Changing, Direction, HalfOpen, Latency, Slicer, Timeout, Toxic
from tests.servers import BrokerJ, RabbitMQ
from tests.servers.process import Server

UP, DOWN = Direction.UPSTREAM, Direction.DOWNSTREAM
HEARTBEAT: Final = 2.0
"""Of all runs, in seconds (:data:`tests.faults.harness.SETTINGS`)."""
DETECT: Final = 2 * HEARTBEAT + 1
"""A peer that is silent is taken for dead within so many seconds."""
GRACE: Final = 25.0
"""A gateway that is told to end does so within so many seconds."""


# -------------------------------------------------------------------------------------- the gateway process


async def gateway_killed(run: Run, times: int) -> None:
    """SIGKILL under load. A kill counts where at least one publish had no confirm and one delivery no acknowledgement
    when it came: the gateway is asked for both right before."""
    with run.proxy.toxic(Latency(0.02, 0.01)):  # so that something is on its way nearly always
        for number in range(times):
            await run.progress((number + 0.5) / (times + 1))
            counts = False
            while not counts and run.load.producing:
                found = await run.gateway.broker()
                counts = bool(found["pending"] and found["leases"] and run.load.in_flight and run.load.open_leases)
            run.gateway.kill()
            run.note(kills=1, kills_that_count=int(counts))
            await asyncio.to_thread(run.gateway.start)
            await run.settle_down()
    run.must(run.notes["kills_that_count"] == times, f"not {times} kills counted: {run.notes}")


async def gateway_terminated(run: Run, times: int) -> None:
    """SIGTERM under load: what is under way is finished, what is out goes back, and the process ends in time."""
    longest = 0.0
    for number in range(times):
        await run.progress((number + 1) / (times + 2))
        longest = max(longest, await asyncio.to_thread(run.gateway.terminate))
        await asyncio.to_thread(run.gateway.start)
        await run.settle_down()
    run.note(terms=times, longest_exit_s=round(longest, 1))
    run.must(longest <= GRACE, f"it took {longest:.1f} s to end")
    died = run.load.answers["publish outcome_unknown"]
    run.must(not died, f"{died} publishes were given up although the gateway ended in good order")


# -------------------------------------------------------------------------------------------------- brokers


async def broker_killed(run: Run, times: int) -> None:
    """kill -9, and started again on the same data."""
    await _broker_away(run, times, run.server.kill)


async def broker_restarted(run: Run, times: int) -> None:
    """Ended in good order, and started again."""
    await _broker_away(run, times, run.server.halt)


async def broker_away_for_long(run: Run, times: int) -> None:
    """kill -9, and nobody there for a minute. Only in the full form, for it only waits."""
    await _broker_away(run, times, run.server.kill, 60.0)


async def _broker_away(run: Run, times: int, end: Callable[[], None], seconds: float = 0.0) -> None:
    for number in range(times):
        await run.progress((number + 1) / (times + 2))
        await asyncio.to_thread(end)
        await run.gateway.wait_broker("down", within=DETECT)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(run.server.restart)
        recovery = await run.gateway.wait_broker("up", within=2 * HEARTBEAT + 2)
        await run.settle_down()
        run.note(times=1, recovery_s=round(max(recovery, run.notes.get("recovery_s", 0.0)), 1))


async def broker_paused(run: Run, times: int) -> None:
    """SIGSTOP: connections stay open, and nobody answers. SIGCONT later."""
    for number in range(times):
        await run.progress((number + 1) / (times + 2))
        run.server.pause()
        try:
            seconds = await run.gateway.wait_broker("down", within=DETECT + 5)
        finally:
            run.server.resume()
        run.note(times=1, detected_s=round(max(seconds, run.notes.get("detected_s", 0.0)), 1))
        run.must(seconds <= DETECT, f"a paused broker was noticed after {seconds:.1f} s, not {DETECT:g}")
        await run.gateway.wait_broker("up", within=10)
        await run.settle_down()


async def broker_blocked(run: Run, times: int) -> None:
    """The memory alarm: publishes are refused with Retry-After, consumers go on, nobody waits for ever. The next part
    of the load begins when the alarm is there: RabbitMQ blocks a connection when it publishes."""
    assert isinstance(run.server, RabbitMQ)
    for number in range(times):
        await run.load.produced()
        await asyncio.to_thread(run.server.memory_alarm, True)
        try:
            refused, received = run.load.answers["publish broker_unavailable"], len(run.history.receptions)
            run.load.begin_producers((number + 2) / (times + 1))
            # 0-8 has no connection.blocked: there, silence says so.
            seconds = await run.gateway.wait_broker("blocked", within=10 if run.version == "0-8" else 1)
            more = lambda: run.load.answers["publish broker_unavailable"] - refused  # noqa: B023, E731
            # A producer that was refused waits as long as Retry-After says before it comes back.
            await run.until(lambda: more() > 0, 10, "no publish was refused while the alarm lasted")  # noqa: B023
            empty = lambda: run.load.empty_pulls > 2 * run.load.shape.consumers and not run.load.open_leases  # noqa: E731
            await run.until(empty, 10, "the consumers did not empty the queue while the alarm lasted")
            run.note(times=1, refused=more(), received_meanwhile=len(run.history.receptions) - received)
            run.note(blocked_visible_s=round(max(seconds, run.notes.get("blocked_visible_s", 0.0)), 2))
        finally:
            await asyncio.to_thread(run.server.memory_alarm, False)
        await run.gateway.wait_broker("up", within=10)
        await run.settle_down()


async def queue_deleted(run: Run, times: int) -> None:
    """The queue goes while pulls wait at it. It is empty then, or what was in it would be gone with it."""
    assert isinstance(run.server, RabbitMQ | BrokerJ)
    for number in range(times):
        await run.load.produced()
        run.load.forget_empty_pulls()
        empty = lambda: run.load.empty_pulls > 8 and not run.load.open_leases  # noqa: E731
        await run.until(empty, 60, "the queue did not get empty")
        pull = asyncio.create_task(
            run.gateway.ask("POST", f"/v1/subscriptions/{run.queue}:pull", {"max_messages": 1, "wait": 20})
        )
        await asyncio.sleep(0.5)
        began = time.monotonic()
        await asyncio.to_thread(run.server.delete_queue, run.queue)
        answer = await pull
        seconds = time.monotonic() - began
        run.note(times=1, visible_s=round(max(seconds, run.notes.get("visible_s", 0.0)), 2))
        run.must(answer.status == 404, f"the pull that waited was answered {answer.status} {answer.body!r}")
        run.must(seconds <= 5.0, f"it was answered after {seconds:.1f} s, and would have waited for 20")
        body = {"routing_key": run.queue, "payload": "x", "mandatory": True}
        refused = await run.gateway.ask("POST", "/v1/brokers/b/exchanges/amq.default:publish", body)
        run.must(refused.status == 422, f"a publish to the queue that is gone: {refused.status} {refused.body!r}")
        await run.declare_queue()
        run.load.begin_producers((number + 2) / (times + 1))
        await run.settle_down(1)


async def channels_used_up(run: Run, times: int) -> None:
    """The broker allows few channels (:func:`few_channels`), and more pulls wait than there are: some wait for
    their turn or get 503, none fails otherwise, and everything arrives."""
    await run.progress(0.9)
    wrong = {
        answer: number
        for answer, number in run.load.answers.items()
        if answer.startswith("pull") and answer not in ("pull 200", "pull overloaded", "pull broker_unavailable")
    }
    run.must(not wrong, f"pulls were answered {wrong}")
    run.note(pulls_refused=run.load.answers["pull overloaded"] + run.load.answers["pull broker_unavailable"])


# -------------------------------------------------------------------------------------------------- network


async def half_open(run: Run, times: int) -> None:
    """A black hole both ways: heartbeats find out. Later what was underway arrives all the same."""
    for number in range(times):
        await run.progress((number + 1) / (times + 2))
        with run.proxy.toxic(HalfOpen()):
            seconds = await run.gateway.wait_broker("down", within=DETECT + 5)
        run.note(times=1, detected_s=round(max(seconds, run.notes.get("detected_s", 0.0)), 1))
        run.must(seconds <= DETECT, f"it was noticed after {seconds:.1f} s, not {DETECT:g}")
        await run.gateway.wait_broker("up", within=10)
        await run.settle_down()


async def connections_reset(run: Run, times: int) -> None:
    """RST on all connections, at any moment."""
    for number in range(times):
        await run.progress((number + 1) / (times + 2))
        run.proxy.reset()
        run.note(times=1)
        await run.settle_down()


async def broker_down_for_the_network(run: Run, times: int) -> None:
    """Nobody listens for a while."""
    for number in range(times):
        await run.progress((number + 1) / (times + 2))
        run.proxy.down()
        await run.gateway.wait_broker("down", within=DETECT)
        await asyncio.sleep(0.5)
        run.proxy.up()
        run.note(times=1)
        await run.gateway.wait_broker("up", within=10)
        await run.settle_down()


async def one_octet_slices(run: Run, times: int) -> None:
    """Every octet comes alone, in both directions."""
    run.proxy.add(Slicer(1))
    await run.load.produced()


async def latency(run: Run, times: int) -> None:
    """300 +- 200 ms each way."""
    run.proxy.add(Latency(0.3, 0.2))
    await run.load.produced()


async def bandwidth(run: Run, times: int) -> None:
    """64 kB/s each way, on each connection."""
    run.proxy.add(Bandwidth(64_000))
    await run.load.produced()


async def confirms_swallowed(run: Run, times: int) -> None:
    """The broker's answers are swallowed: each publish is unknown in time, says so with its id and advice, and is
    repeated with the same key once the broker can be heard again."""
    for number in range(times):
        await run.progress((number + 1) / (times + 2))
        before = run.load.answers["publish outcome_unknown"]
        with run.proxy.toxic(Timeout(), DOWN):
            await run.until(
                lambda before=before: run.load.answers["publish outcome_unknown"] > before + 2,  # type: ignore[misc]
                10,
                "no publish was answered 504",
            )
        run.proxy.reset()
        run.note(times=1, answered_504=run.load.answers["publish outcome_unknown"] - before)
        await run.settle_down()


class BrokenFrames(Changing):
    """Breaks frames that the broker sends: each connection's next one, whenever it is armed. It must see a connection
    from its first octet, to know where frames begin.

    What is broken is a frame's first octet and no message: AMQP has no checksum, and what is changed inside a message
    arrives changed.
    """

    def __init__(self, version: str) -> None:
        self._head, self._size, self._behind = (12, slice(2, 4), -12) if version == "0-10" else (7, slice(3, 7), 1)
        self.armed = 0
        """Greater than before: the next frame of every connection that there is is broken."""

    def change(self, memory: dict[str, Any], data: bytes) -> bytes:
        memory.setdefault("armed", self.armed)
        changed = bytearray(data)
        place = 0
        while place < len(data):
            if memory.get("left"):
                step = min(memory["left"], len(data) - place)
                memory["left"] -= step
                place += step
                continue
            head = memory.get("head", b"")
            if not head and memory["armed"] < self.armed:
                memory["armed"] = self.armed
                changed[place] ^= 0xFF
            wanted = 8 if (head or data[place : place + 1])[:1] == b"A" else self._head
            piece = data[place : place + wanted - len(head)]
            head += piece
            place += len(piece)
            memory["head"] = head
            if len(head) == wanted:
                memory["head"] = b""
                if head[:1] != b"A":  # else it is the protocol header with which 0-10 begins
                    memory["left"] = int.from_bytes(head[self._size], "big") + self._behind
        return bytes(changed)


async def corrupt_octets(run: Run, times: int) -> None:
    """The broker sends what is no frame: the connection ends, and the next one goes on."""
    broken = next(toxic for toxic, _ in run.proxy.toxics.values() if isinstance(toxic, BrokenFrames))
    for number in range(times):
        await run.progress((number + 1) / (times + 2))
        accepted = run.proxy.accepted
        broken.armed += 1
        await run.until(lambda accepted=accepted: run.proxy.accepted > accepted, 10, "no connection ended")  # type: ignore[misc]
        run.note(times=1)
        await run.gateway.wait_broker("up", within=10)
        await run.settle_down()
    ended = [line for line in run.gateway.events("broker.link_down") if "broke the protocol" in line["reason"]]
    run.must(len(ended) >= times, f"{len(ended)} links ended because of a broken frame")


# --------------------------------------------------------------------------------------------------- table


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    name: str
    fault: Callable[[Run, int], Awaitable[None]]
    quick: tuple[tuple[str, str], ...]
    """Broker and version of each quick form."""
    full: tuple[tuple[str, str], ...]
    """Of each full form."""
    messages: int = 400
    """Of the quick form."""
    times: tuple[int, int] = (1, 5)
    """How often the fault happens, in the quick and in the full form."""
    portion: float = 1.0
    """Of the messages of the full form, where all would take too long."""
    private: bool = False
    """The fault is done to the broker, so that it must be nobody else's."""
    shape: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    first: float = 1.0
    """Share of the messages that is published before the fault goes on by itself."""
    toxics: Callable[[str], tuple[tuple[Toxic, Direction], ...]] = lambda version: ()
    before: Callable[[Server], None] | None = None
    after: Callable[[Server], None] | None = None
    ledger: Callable[[], Place] | None = None
    """Where the run keeps its ledger; None: in a SQLite file that nobody hurts."""


async def perform(row: Row, server: Server, version: str, messages: int, times: int, seed: int) -> Run:
    """One row with one broker and version, from load to verdict.

    Raises:
        AssertionError, NotDrained, GatewayFailed: it is not valid, or an error.
    """
    shape = Shape(messages=messages, **row.shape)
    if row.before is not None:
        await asyncio.to_thread(row.before, server)
    try:
        with row.ledger() if row.ledger is not None else nullcontext() as place:
            run = Run(
                server,
                version,
                row.name,
                shape,
                seed=seed,
                settings=row.settings,
                ledger_url=place.url if place is not None else "",
                toxics=row.toxics(version),
            )
            run.ledger = place
            async with run:
                run.load.begin(row.first if row.first == 1.0 else 1 / (times + 1))
                await row.fault(run, times)
                await run.finish()
                if place is not None:
                    place.check(run)
    finally:
        if row.after is not None:
            await asyncio.to_thread(row.after, server)
    return run


def few_channels(server: Server) -> None:
    """No more than four channels on a connection."""
    assert isinstance(server, RabbitMQ)
    server.ctl("eval", "application:set_env(rabbit, channel_max, 4).")


def many_channels(server: Server) -> None:
    """As it was."""
    assert isinstance(server, RabbitMQ)
    server.ctl("eval", "application:set_env(rabbit, channel_max, 2047).")


RABBIT: Final = ("rabbitmq", "0-9-1")
RABBIT_08: Final = ("rabbitmq", "0-8")
QPID_08: Final = ("brokerj", "0-8")
QPID_010: Final = ("brokerj", "0-10")
ALL: Final = (RABBIT, QPID_08, QPID_010)

PATIENT: Final = {"http.confirm_timeout": 60.0}
"""For rows in which everything is slow."""

ROWS: Final = (
    Row("gateway killed", gateway_killed, (RABBIT, QPID_010), ALL, 600, (2, 50), shape={"producers": 32, "hold": 0.1}),
    Row("gateway terminated", gateway_terminated, (RABBIT,), ALL, times=(1, 20)),
    Row("broker killed", broker_killed, (RABBIT, QPID_010), ALL, private=True),
    Row("broker restarted", broker_restarted, (RABBIT,), ALL, private=True),
    Row(
        "broker away for a minute",
        broker_away_for_long,
        (),
        ALL,
        times=(1, 1),
        portion=0.25,
        private=True,
        shape={"patience": 180.0},
    ),
    Row("broker paused", broker_paused, (RABBIT,), ALL, private=True),
    Row("broker blocked by an alarm", broker_blocked, (RABBIT,), (RABBIT, RABBIT_08), private=True, first=0.5),
    Row("queue deleted under consumers", queue_deleted, (RABBIT, QPID_010), ALL, 200, first=0.5),
    Row(
        "channels used up",
        channels_used_up,
        (RABBIT,),
        (RABBIT,),
        private=True,
        shape={"consumers": 12, "hold": 0.05},
        before=few_channels,
        after=many_channels,
    ),
    Row("half-open connection", half_open, ALL, ALL),
    Row("connections reset", connections_reset, ALL, ALL, times=(5, 50)),
    Row("nobody listens for a while", broker_down_for_the_network, (RABBIT,), ALL),
    Row(
        "one-octet slices",
        one_octet_slices,
        ALL,
        ALL,
        60,
        shape={"body": 16, "large_share": 0.0, "within": 90.0},
        settings=PATIENT,
    ),
    Row(
        "latency 300 +- 200 ms",
        latency,
        (RABBIT,),
        ALL,
        200,
        shape={"producers": 64, "consumers": 8, "within": 90.0},
        settings=PATIENT,
    ),
    Row(
        "bandwidth 64 kB/s",
        bandwidth,
        (RABBIT,),
        ALL,
        200,
        shape={"body": 256, "large_share": 0.0, "within": 90.0},
        settings=PATIENT,
    ),
    Row(
        "confirms never come",
        confirms_swallowed,
        (RABBIT, QPID_010),
        ALL,
        settings={"http.confirm_timeout": 1.0, "brokers.b.heartbeat": 30.0},
    ),
    Row(
        "corrupt octets",
        corrupt_octets,
        (RABBIT, QPID_010),
        ALL,
        toxics=lambda version: ((BrokenFrames(version), DOWN),),
    ),
    Row("ledger locked", ledger_rows.ledger_locked, (RABBIT,), (RABBIT,), 300, (1, 2), ledger=SqliteFile),
    Row("ledger disk full", ledger_rows.ledger_disk_full, (RABBIT,), (RABBIT,), 300, (1, 3), ledger=SmallDisk),
    Row(
        "PostgreSQL backends terminated",
        ledger_rows.backends_terminated,
        (RABBIT,),
        (RABBIT,),
        times=(8, 50),
        ledger=Postgres,
    ),
    Row("PostgreSQL away", ledger_rows.postgresql_away, (RABBIT,), (RABBIT,), times=(2, 6), ledger=Postgres),
    Row(
        "PostgreSQL statements time out",
        ledger_rows.statements_time_out,
        (RABBIT,),
        (RABBIT,),
        times=(1, 5),
        ledger=lambda: Postgres("-c statement_timeout=1s -c lock_timeout=500ms"),
    ),
    Row(
        "PostgreSQL commits cut off", ledger_rows.commits_cut_off, (RABBIT,), (RABBIT,), times=(3, 30), ledger=Postgres
    ),
)
"""In the order in which they are run."""
