"""The faults of the ledger: locked, without room, gone, restarted, slow, and cut off in the middle of a commit.

In all of them no publish is answered 2xx while its events are not committed; who asks meanwhile is told 503 and when to
come again; ``/readyz`` says why; the log has a line when it begins, not one for every caller; and it mends by itself.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from tests.faults.harness import Run
from tests.faults.ledgers import Postgres, SmallDisk, SqliteFile
from tests.faults.proxy import Direction, Timeout

BUSY: Final = 5.0
"""How long a write waits for SQLite's lock, in seconds (:data:`gateway.ledger.db.engine.BUSY_TIMEOUT`)."""
NOTICED: Final = BUSY + 3.0
MENDED: Final = BUSY + 3.0
"""Within so many seconds the gateway notices that its ledger cannot be written, and that it can."""
PUBLISH: Final = "/v1/brokers/b/exchanges/amq.default:publish"
LINES_MAX: Final = 20
"""Most lines of the log that one fault of the ledger may cost."""


async def ready(run: Run) -> tuple[bool, str]:
    """What ``/readyz`` says."""
    answer = await asyncio.to_thread(run.gateway.get_ops, "/readyz")
    if answer is None:
        return False, "nobody answers"
    status, text = answer
    return status == 200, "; ".join(json.loads(text)["reasons"])


async def wait_ready(run: Run, wanted: bool, within: float) -> float:
    """Wait until the gateway is ready, or is not because of its ledger; how many seconds that took."""
    began = time.monotonic()
    while True:
        is_ready, reasons = await ready(run)
        if is_ready is wanted and (is_ready or "ledger" in reasons):
            return time.monotonic() - began
        if time.monotonic() - began > within:
            run.must(False, f"ready is {is_ready} ({reasons}) after {within:g} s")
            return within
        await asyncio.sleep(0.05)


async def _away(run: Run, fault: AbstractContextManager[None], hold: float) -> None:
    """The ledger cannot be written while ``fault`` lasts, and can afterwards."""
    lines = len(run.gateway.log().splitlines())
    with fault:
        noticed = await wait_ready(run, False, NOTICED)
        acknowledged = run.acknowledged
        refused = run.load.answers["publish ledger_unavailable"]
        await asyncio.sleep(hold)
        if not isinstance(run.ledger, SmallDisk):  # there a commit may find room in a file that is long enough
            more = run.acknowledged - acknowledged
            run.must(not more, f"{more} publishes were answered 2xx while the ledger could not be written")
        more = run.load.answers["publish ledger_unavailable"] - refused
        answer = await run.gateway.ask(
            "POST", PUBLISH, {"routing_key": run.queue, "payload": "while it is away"}, within=3
        )
        told = answer.status, answer.json().get("code"), answer.json().get("outcome"), "retry-after" in answer.headers
        run.must(told == (503, "ledger_unavailable", "not_sent", True), f"a publish meanwhile was answered {told}")
        run.must(run.gateway.running, "the gateway is gone")
    mended = await wait_ready(run, True, MENDED)
    await run.settle_down()
    cost = len(run.gateway.log().splitlines()) - lines
    run.must(cost <= LINES_MAX, f"it cost {cost} lines of the log")
    run.note(times=1, refused=more, log_lines=cost)
    run.note(noticed_s=round(max(noticed, run.notes.get("noticed_s", 0.0)), 1))
    run.note(mended_s=round(max(mended, run.notes.get("mended_s", 0.0)), 1))


async def _several(run: Run, times: int, fault: Callable[[], AbstractContextManager[None]], hold: float) -> None:
    for number in range(times):
        await run.progress((number + 1) / (times + 2))
        await _away(run, fault(), hold)


async def ledger_locked(run: Run, times: int) -> None:
    """Another process holds ``BEGIN EXCLUSIVE``, in the full form for 30 s."""
    assert isinstance(run.ledger, SqliteFile)
    await _several(run, times, run.ledger.locked, 1.0 if times == 1 else 30.0 - BUSY)


async def ledger_disk_full(run: Run, times: int) -> None:
    """No room is left, until there is some again."""
    place = run.ledger
    assert isinstance(place, SmallDisk)
    run.note(disk="tmpfs" if place.mounted else "limit")

    def full() -> AbstractContextManager[None]:
        assert run.gateway.process is not None
        return place.full(run.gateway.process.pid)

    await _several(run, times, full, 1.0)


async def backends_terminated(run: Run, times: int) -> None:
    """``pg_terminate_backend`` for whatever serves the gateway, under load."""
    assert isinstance(run.ledger, Postgres)
    ended = number = 0
    while ended < times:
        await run.progress(min(0.9, (ended + 0.5) / (times + 1)))
        run.must(run.load.producing, f"the load was over after {ended} backends")
        if not run.load.producing:
            break
        ended += await asyncio.to_thread(run.ledger.terminate_backends)
        number += 1
        await run.settle_down(5)
    run.note(times=number, terminated=ended)


async def postgresql_away(run: Run, times: int) -> None:
    """Ended in good order and killed in turn, and started again."""
    place = run.ledger
    assert isinstance(place, Postgres)
    for number in range(times):
        await run.progress((number + 1) / (times + 2))
        await asyncio.to_thread(place.server.kill if number % 2 else place.server.halt)
        noticed = await wait_ready(run, False, NOTICED)
        acknowledged = run.acknowledged
        await asyncio.sleep(0.5)
        run.must(run.acknowledged == acknowledged, "publishes were answered 2xx while PostgreSQL was away")
        await asyncio.to_thread(place.server.restart)
        mended = await wait_ready(run, True, MENDED)
        await run.settle_down()
        run.note(times=1, noticed_s=round(max(noticed, run.notes.get("noticed_s", 0.0)), 1))
        run.note(mended_s=round(max(mended, run.notes.get("mended_s", 0.0)), 1))


async def statements_time_out(run: Run, times: int) -> None:
    """Somebody holds the table of events for longer than a statement may take."""
    assert isinstance(run.ledger, Postgres)
    await _several(run, times, run.ledger.locked, 1.0)


async def commits_cut_off(run: Run, times: int) -> None:
    """PostgreSQL hears the commit, and its answer is lost with the connection: what happened is found out by looking,
    so that nothing is lost and nothing is there twice."""
    place = run.ledger
    assert isinstance(place, Postgres)
    for number in range(times):
        await run.progress((number + 0.5) / (times + 1))
        with place.proxy.toxic(Timeout(), Direction.DOWNSTREAM):
            await asyncio.sleep(0.15)
        place.proxy.reset()
        run.note(times=1)
        await run.settle_down(10)
