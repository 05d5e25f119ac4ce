"""What happens to consumers, to the gateway and to brokers while messages are on their way.

Each function is called when the loads and the consumers of a run are at work, does its worst so many times, and
returns when they are at work again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from typing import Final

from tests.faults.checker import Settled
from tests.faults.consumers.harness import ConsumerRun, Line
from tests.faults.consumers.lanes import PULL, PUSH
from tests.faults.consumers.pulls import DEADLINE, Temper
from tests.faults.consumers.receiver import BODY, HEAD
from tests.faults.http import Http, NoAnswer
from tests.faults.proxy import Direction, LimitData, Proxy

BODIES: Final = 8, 40
"""Answers of a lane that are cut off in the body, in the quick and in the full form."""


async def calm(run: ConsumerRun, times: int) -> None:
    """Nothing happens."""
    await run.consumed(10 * times)


async def consumers_killed(run: ConsumerRun, times: int) -> None:
    """The consumers of every lane are killed with leases open; others come."""
    for _ in range(times):
        for line in run.lines:
            await run.until(lambda line=line: line.consumers.open > 0, 60, f"{line.lane.name}: nothing was out")  # type: ignore[misc]
            run.note(killed_with_leases_open=await line.consumers.kill())
        for line in run.lines:
            await line.consumers.begin()
        await run.consumed(5)
        run.note(consumers_killed=len(run.lines))


async def deadlines_missed(run: ConsumerRun, times: int) -> None:
    """Some messages of every lane are held longer than their leases, or answered too late."""
    for line in run.lines:
        line.consumers.temper.late = 3 * times
    begun = lambda: not any(line.consumers.temper.late for line in run.lines)  # noqa: E731
    await run.until(begun, 300, "not all lanes took what they are to hold too long")
    run.note(held_too_long=3 * times * len(run.lines))


# ------------------------------------------------------------------------------------------ answers are cut off


async def answers_cut(run: ConsumerRun, times: int) -> None:
    """Answers are cut off at every octet of the head, and at random in the body: what the gateway says to a pull, what
    an endpoint says to the gateway. Once: the lanes share the octets among them, and each has every octet of its own
    in the full form."""
    pulls = [line for line in run.lines if line.lane.way == PULL]
    pushes = [line for line in run.lines if line.lane.way == PUSH]
    works = []
    for number, line in enumerate(pulls):
        first, step = (0, 1) if times > 1 else (number, len(pulls))
        works.append(_cut_pulls(run, line, first, step, BODIES[times > 1]))
    for number, line in enumerate(pushes):
        first, step = (0, 1) if times > 1 else (number, len(pushes))
        offsets = [
            *range(first, len(HEAD), step),
            *(run.random.randrange(len(HEAD), len(HEAD) + len(BODY)) for _ in range(BODIES[times > 1])),
        ]
        works.append(_cut_answers(run, line, offsets))
    await asyncio.gather(*works)


async def _cut_answers(run: ConsumerRun, line: Line, offsets: Iterable[int]) -> None:
    """The endpoint's."""
    cuts = line.consumers.temper.cuts = deque(offsets)
    number = len(cuts)
    await run.until(lambda: not cuts, 300, f"{line.lane.name}: not all answers were asked for")
    run.note(endpoint_answers_cut=number)


async def _cut_pulls(run: ConsumerRun, line: Line, first: int, step: int, bodies: int) -> None:
    """The gateway's, by a proxy in front of it: to a pull, and, as often, to the acknowledgement of one."""
    consumers = line.consumers
    consumers.resting = True  # so that there is something to pull
    proxy = Proxy(run.gateway.port, run.seed)
    try:
        head, whole = await _measure(line, proxy)
        offsets = [*range(first, head, step), *(run.random.randrange(head, whole) for _ in range(bodies))]
        for number, offset in enumerate(offsets):
            http = Http(proxy.port)
            with proxy.toxic(LimitData(offset, reset=bool(number % 2)), Direction.DOWNSTREAM):
                began = time.monotonic()
                messages = await consumers.pull(http, 1, 1.0)
            # Whatever came whole was handed over.
            held = consumers.received(messages, began + DEADLINE)
            http.reset()
            run.note(pulls_cut=int(not messages))
            consumers.open -= len(held)
        for _ in range(bodies):
            await _cut_acknowledgement(run, line, proxy)
    finally:
        proxy.close()
        consumers.resting = False


async def _measure(line: Line, proxy: Proxy) -> tuple[int, int]:
    """How many octets the head of an answer has, and the whole of one with a message."""
    consumers = line.consumers
    while True:
        before = proxy.octets[Direction.DOWNSTREAM]
        http = Http(proxy.port)
        began = time.monotonic()
        answer = await http.request("POST", f"{consumers.path}:pull", {"max_messages": 1, "wait": 1})
        octets = proxy.octets[Direction.DOWNSTREAM] - before
        messages = answer.json().get("messages", ())
        await consumers.take(http, consumers.received(messages, began + DEADLINE))
        http.reset()
        if messages:
            return octets - len(answer.body), octets


async def _cut_acknowledgement(run: ConsumerRun, line: Line, proxy: Proxy) -> None:
    """An acknowledgement whose answer does not arrive is repeated, and that is harmless."""
    consumers = line.consumers
    http = Http(run.gateway.port)
    began = time.monotonic()
    held = consumers.received(await consumers.pull(http, 1, 1.0), began + DEADLINE)
    try:
        for ack_id, reception in held:
            body = {"ack_ids": [ack_id]}
            cut = Http(proxy.port)
            reception.until = time.monotonic()
            reception.settled = Settled.UNCLEAR
            with proxy.toxic(LimitData(run.random.randrange(1, 150)), Direction.DOWNSTREAM):
                try:
                    await cut.request("POST", f"{consumers.path}:acknowledge", body)
                except NoAnswer as error:
                    consumers.unanswered("acknowledge", error)
            cut.reset()
            answer = await http.request("POST", f"{consumers.path}:acknowledge", body)
            statuses = [result["status"] for result in answer.json().get("results", ())]
            run.must(
                statuses == ["SUCCESS"], f"{line.lane.name}: a repeated acknowledgement: {answer.status} {statuses}"
            )
            reception.settled = Settled.ACKED
            run.note(acknowledgements_cut=1)
    finally:
        consumers.open -= len(held)
        http.reset()


# ------------------------------------------------------------------------------------------- gateway and brokers


async def gateway_killed(run: ConsumerRun, times: int) -> None:
    """SIGKILL while at least one message is out, and one is in the ledger."""
    for line in run.lines:
        line.consumers.temper.refuse = 0.2  # so that some of what is pushed waits in the ledger
        line.consumers.temper.hold = 0.4
    for _ in range(times):
        await run.consumed(run.random.randint(1, 5))
        await asyncio.sleep(run.random.uniform(0.0, 0.3))
        await run.kill()
    for line in run.lines:
        line.consumers.temper.hold = Temper().hold
    await run.consumed(5)
    counted = run.notes["kills_that_count"]
    run.must(counted == times, f"{counted} of {times} kills counted")


async def brokers_restarted(run: ConsumerRun, times: int) -> None:
    """Each broker is ended in good order and started again on its data."""
    for _ in range(times):
        await run.consumed(5)
        await asyncio.gather(*(run.restart(kind) for kind in sorted({line.lane.server for line in run.lines})))
        await run.consumed(5)
