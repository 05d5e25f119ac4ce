"""F34: a load for hours, and one fault a minute.

The quick form is under a clock that is given: what is pushed to an endpoint, while ledger, endpoint and channel fail in
turn. The full form is a day of that. Besides, a gateway process works on a real broker, at half of the rate that it was
found to take, for as many minutes as are given (``--minutes``). The table says how many these were. Whether its memory
grows is judged over all runs with ``--keep`` together.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from gateway.webhooks.attempts.forms import PushedMessage
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.endpoint import EndpointState
from tests.chaos.figures import Figures, code
from tests.chaos.memory import ENOUGH, LIVES, Slope, Watch, keep, load, slope_of
from tests.chaos.parts import Context
from tests.faults.harness import Run
from tests.faults.ledgers import SqliteFile
from tests.faults.load import Shape
from tests.faults.proxy import HalfOpen, Latency
from tests.traces import QUERY, impossible_traces
from tests.webhooks.virtual import World, now, run

HOURS: Final = {False: 1.0, True: 24.0}
"""Of virtual time, in the quick and in the full form."""
EVERY: Final = 2.0
"""A message each so many seconds of virtual time."""
MINUTES: Final = 10.0
"""Of real time, in the full form, unless told otherwise."""
MINUTE: Final = 60.0
CHECKS: Final = {
    # Two copies of a message that was sent again may be handed over, and settled, by one call, and so at one time.
    "events that are there twice": """
        SELECT count(*) FROM (SELECT message_id, kind FROM events GROUP BY message_id, kind, at HAVING count(*) > 1)
            AS doubled
        WHERE kind NOT IN ('delivered', 'acknowledged', 'released')
            OR message_id NOT IN (SELECT message_id FROM events WHERE kind = 'resent')""",
    "shards with gaps in their sequence": """
        SELECT count(*) FROM (
            SELECT 1 FROM events GROUP BY shard HAVING max(sequence) - min(sequence) + 1 <> count(*)) AS gaps""",
    "answers that are still owed": "SELECT count(*) FROM obligations WHERE status <> 'parked'",
}
"""What must be 0 in the ledger at the end -> how to count it."""
TRIAL: Final = 1_000
"""Messages by which the greatest rate is found."""
SAMPLE: Final = 2.0
"""How often memory and files are looked at, in seconds."""


# ------------------------------------------------------------------------------------------------- virtual time


class Mishaps:
    """What happens to the world: each lasts for some seconds."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.answer: SendOutcome | None = None
        """What the endpoint says; None: it takes everything."""
        self.delay = 0.0
        self.all: tuple[Callable[[float], Awaitable[None]], ...] = (
            self.ledger_away,
            self.endpoint_fails,
            self.endpoint_asks_to_wait,
            self.endpoint_is_slow,
            self.endpoint_paused,
            self.channel_dies,
        )

    async def respond(self, items: Sequence[PushedMessage]) -> SendOutcome:
        """The endpoint."""
        await asyncio.sleep(0.01 + self.delay)
        return self.answer or SendOutcome(status=200)

    async def ledger_away(self, seconds: float) -> None:
        self.world.ledger.away = True
        await asyncio.sleep(seconds)
        self.world.ledger.away = False

    async def endpoint_fails(self, seconds: float) -> None:
        self.answer = SendOutcome(status=self.rng.choice((500, 502, 503)))
        await asyncio.sleep(seconds)
        self.answer = None

    async def endpoint_asks_to_wait(self, seconds: float) -> None:
        self.answer = SendOutcome(status=429, retry_after=str(int(seconds)))
        await asyncio.sleep(seconds)
        self.answer = None

    async def endpoint_is_slow(self, seconds: float) -> None:
        self.delay = 3.0
        await asyncio.sleep(seconds)
        self.delay = 0.0

    async def endpoint_paused(self, seconds: float) -> None:
        self.world.receivers.set_state("e", EndpointState.PAUSED)
        await asyncio.sleep(seconds)
        self.world.receivers.set_state("e", EndpointState.ACTIVE)

    async def channel_dies(self, seconds: float) -> None:
        broker = self.world.broker
        for consumer in broker.consumers["e"]:
            for delivery in list(consumer.held):
                delivery.lost = True
                del consumer.held[delivery]
                broker.queues["e"].appendleft((delivery.message, True))
            consumer.feed()


async def _virtual(hours: float, seed: int) -> Figures:
    """Messages and mishaps for so long, and then none until everything has come."""
    figures = Figures(f"virtual time, {hours:g} h, a fault each minute")
    rng = random.Random(seed)
    world = World(chance=rng.random)
    mishaps = Mishaps(world, rng)
    world.receivers.put("e", mishaps.respond)
    await world.push("e")
    end = now() + hours * 3_600
    sent = 0
    happened: Counter[str] = Counter()

    async def produce() -> None:
        nonlocal sent
        while now() < end:
            world.broker.put("e", b"%d" % sent)
            sent += 1
            await asyncio.sleep(EVERY)

    producer = asyncio.create_task(produce())
    while now() < end:
        mishap = rng.choice(mishaps.all)
        happened[mishap.__name__] += 1
        lasts = rng.uniform(1.0, 40.0)
        await mishap(lasts)
        await asyncio.sleep(MINUTE - lasts if mishap != mishaps.channel_dies else MINUTE)
    await producer
    idle = 0
    while idle < 2_000 and (world.ledger.rows or world.broker.queues["e"] or world.broker.out("e")):
        await asyncio.sleep(MINUTE)
        idle += 1
    got = Counter(bytes(body) for body in world.receivers.bodies("e"))
    wanted = {b"%d" % number for number in range(sent)}
    figures.attempted = figures.acknowledged = sent
    figures.lost = len(wanted - got.keys())
    figures.unexpected = len(got.keys() - wanted)
    figures.duplicated = got.total() - len(got)
    figures.recovered = 0
    figures.extra = {"faults": happened.total(), "kinds": len(happened), "minutes_to_drain": idle}
    left = len(world.ledger.rows) + len(world.broker.queues["e"]) + world.broker.out("e")
    figures.must(not left, f"{left} messages are left after {idle} minutes")
    figures.must(figures.duplicated <= sent // 20 + 20, f"{figures.duplicated} of {sent} came twice")
    await world.close()
    return figures


# ---------------------------------------------------------------------------------------------------- real time


Fault = Callable[[Run], Awaitable[None]]


async def _reset(run: Run) -> None:
    run.proxy.reset()


async def _down(run: Run) -> None:
    run.proxy.down()
    await asyncio.sleep(5)
    run.proxy.up()


async def _half_open(run: Run) -> None:
    with run.proxy.toxic(HalfOpen()):
        await asyncio.sleep(8)


async def _late(run: Run) -> None:
    with run.proxy.toxic(Latency(0.3, 0.2)):
        await asyncio.sleep(10)


async def _broker_paused(run: Run) -> None:
    run.server.pause()
    try:
        await asyncio.sleep(6)
    finally:
        run.server.resume()


async def _broker_killed(run: Run) -> None:
    await asyncio.to_thread(run.server.kill)
    await asyncio.to_thread(run.server.restart)


async def _gateway_killed(run: Run) -> None:
    run.gateway.kill()
    await asyncio.to_thread(run.gateway.start)


async def _gateway_terminated(run: Run) -> None:
    await asyncio.to_thread(run.gateway.terminate)
    await asyncio.to_thread(run.gateway.start)


async def _ledger_locked(run: Run) -> None:
    assert isinstance(run.ledger, SqliteFile)
    with run.ledger.locked():
        await asyncio.sleep(7)


MILD: Final[tuple[Fault, ...]] = (_reset, _down, _half_open, _late, _broker_paused, _broker_killed, _ledger_locked)
HARD: Final[tuple[Fault, ...]] = (_gateway_killed, _gateway_terminated)
"""Those that end the process: at first only, so that the last life is a long one."""
HARD_MINUTES: Final = 5.0
"""For so long at most, and no longer than a third of the time."""


async def _greatest_rate(context: Context) -> float:
    """Messages a second, without a fault."""
    server = context.server("rabbitmq")
    trial = Run(server, "0-9-1", "trial", Shape(messages=TRIAL, batch=1), seed=context.seed)
    async with trial:
        began = time.monotonic()
        trial.load.begin()
        await trial.load.produced()
        seconds = time.monotonic() - began
        await trial.finish()
    return TRIAL / seconds


async def _real(context: Context) -> Figures:
    minutes = context.minutes or MINUTES
    rng = random.Random(context.seed)
    most = await _greatest_rate(context)
    rate = most / 2
    shape = Shape(messages=round(rate * minutes * MINUTE), rate=rate, batch=1)
    with SqliteFile() as place:
        soak = Run(
            context.server("rabbitmq"),
            "0-9-1",
            "soak",
            shape,
            seed=context.seed,
            ledger_url=place.url,
        )
        soak.ledger = place
        watch, before, commit = Watch(), load(LIVES), code()
        happened: Counter[str] = Counter()
        deck: list[Fault] = []
        """Each kind comes once before one comes again, so that the minutes that do not count have seen all."""

        async def sample() -> None:
            while True:
                if soak.gateway.process is not None and soak.gateway.running:
                    watch.look(soak.gateway.process.pid)
                if context.keeps:  # a run that is stopped counts as far as it came
                    keep(LIVES, [*before, *watch.lives(commit)])
                await asyncio.sleep(SAMPLE)

        async with soak:
            soak.load.begin()
            sampler = asyncio.create_task(sample())
            began = time.monotonic()
            number = 0
            while soak.load.producing and number < minutes:
                number += 1
                if not deck:
                    deck = rng.sample(MILD, len(MILD))
                hard = number <= min(minutes / 3, HARD_MINUTES)
                fault = rng.choice((*MILD, *HARD)) if hard else deck.pop()
                happened[fault.__name__.strip("_")] += 1
                await fault(soak)
                await soak.settle_down(20, within=90)
                print(f"  {number}: {fault.__name__}, {watch.newest / 1e6:.1f} MB", file=sys.stderr, flush=True)
                await asyncio.sleep(max(0.0, began + number * MINUTE - time.monotonic()))
            sampler.cancel()  # from here on every message is read back, which is no part of the load
            soak.load.enough()  # what was held up by faults is not made up for
            verdict = await soak.finish(300)
        for what, statement in CHECKS.items():
            ((count,),) = place.query(statement)
            if count:
                verdict.problems.append(f"{count} {what}")
        verdict.problems += impossible_traces(place.query(QUERY))[:5]
    lives = [*before, *watch.lives(commit)]
    slope = slope_of(lives)
    files = [sample.files for sample in watch.longest]
    first, last = sorted(files[: len(files) // 5 + 1]), sorted(files[-len(files) // 5 - 1 :])
    more = last[len(last) // 2] - first[len(first) // 2]
    lived = watch.longest[-1].at - watch.longest[0].at
    figures = Figures(
        f"real time, {soak.broker}, a fault each minute",
        verdict.attempted,
        verdict.acknowledged,
        len(verdict.lost),
        len(verdict.unexpected),
        verdict.duplicated,
        verdict.recovered,
        extra={
            "hours": round(soak.seconds / 3_600, 2),
            "faults": happened.total(),
            "a_second": round(rate, 1),
            "greatest": round(most, 1),
            "longest_life_min": round(lived / 60, 1),
            **({} if slope is None else grown(slope, len(lives))),
            "files_more": more,
            "marked": verdict.marked,
        },
        seconds=round(soak.seconds, 1),
        problems=list(verdict.problems),
    )
    figures.must(more <= 10, f"{more} files more are open at the end")
    if slope is None or slope.minutes < ENOUGH:
        figures.must(False, f"the memory was watched too short: {ENOUGH:g} minutes without the first of each life tell")
    else:
        figures.must(slope.an_hour < 1e6, f"memory grows by {slope.an_hour:,.0f} bytes an hour")
    return figures


def grown(slope: Slope, lives: int) -> dict[str, float]:
    """The growth of the memory, as the table has it."""
    return {
        "memory_MB_an_hour": round(slope.an_hour / 1e6, 2),
        "error": round(slope.error / 1e6, 2),
        "over_minutes": round(slope.minutes),
        "lives": lives,
    }


def soak(context: Context) -> list[Figures]:
    """In virtual time."""
    began = time.monotonic()
    figures: Figures = run(_virtual(HOURS[context.full], context.seed))
    figures.seconds = round(time.monotonic() - began, 1)
    return [figures]


def real(context: Context) -> list[Figures]:
    """In real time."""
    return [asyncio.run(_real(context))]
