"""A replay at work.

It goes chunk by chunk: what it is about to send is written down with the job (``flying``), then it is sent, then what
is there is recorded, in one commit with what is remembered of it, and only then settled at its source. After any crash
in between the next owner finds out which of the flying ones were recorded, and sends the others again: under the same
ids, marked as resent, since they may have been sent. Of a chunk that was left in the middle some landed and some is in
doubt; that is kept with the job until its source is behind it, for owners may follow one another faster than a chunk is
sent.

A target that takes nothing is waited for, with pauses that grow; a message that is refused for good is named and left
where it is. Counts are exact, also over crashes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from gateway.bridges.throttle import Throttle
from gateway.core.leasing.consuming import printable
from gateway.errors import (
    BrokerUnavailable,
    EntriesRefused,
    GatewayError,
    LedgerUnavailable,
    LimitExceeded,
    Overloaded,
)
from gateway.ledger import Ledger
from gateway.observing.telemetry import log
from gateway.replays.items import ReplayItem, name_of
from gateway.replays.jobs import ANY_REPLAY, ENDED, Job, JobState, Wish
from gateway.replays.sources import KEEP_BODIES, NO_BODY, Chunk, MessageSource, refusal_of
from gateway.replays.store import ReplayStore, StoredJob
from gateway.replays.targets import Later, ResendTarget
from gateway.runtime.backoff import Backoff
from gateway.runtime.clock import clock

CHUNK: Final = 500
"""Most messages of a chunk."""
CHUNKS_A_SECOND: Final = 4
"""With a rate: into how many chunks a second's worth is divided."""
PAUSE_MIN: Final = 0.5
PAUSE_MAX: Final = 30.0
"""Pause before something is tried again that is away, in seconds; doubled each time."""
LOOK_EVERY: Final = 2.0
"""How often it is looked what is wished for while nothing moves, in seconds."""
REFUSALS_MAX: Final = 10_000
"""Most messages that are named as refused; one more, and the replay fails."""

PASSING: Final = (BrokerUnavailable, LedgerUnavailable, Overloaded)
"""What is waited for: ledger or broker are away, or all channels at the broker are in use."""
REMEMBERED_MAX: Final = 5_000
"""Most messages that are remembered as met before and not since; the oldest go."""

T = TypeVar("T")


class Interrupted(Exception):
    """Something else is wished for, or it is to be handed over."""


class Runner:
    """One job, from where it is to its end, or until it is stopped."""

    def __init__(
        self,
        kept: StoredJob,
        store: ReplayStore,
        ledger: Ledger,
        parts: Callable[[], Awaitable[tuple[MessageSource, ResendTarget]]],
        on_end: Callable[[str], None],
    ) -> None:
        """``parts`` makes source and target; ``on_end`` is called when nothing more is to be done."""
        self._kept = kept
        self._store = store
        self._ledger = ledger
        self._parts = parts
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._throttle = Throttle(kept.job.request.rate, 0.0, clock.monotonic())
        self._wake = asyncio.Event()
        self._stopping = False
        self._again: list[ReplayItem] = []
        """Of the chunk that is under way: settled in vain."""
        self._recent: set[str] = set()
        """Messages that were settled last: the broker may not have received it."""
        self._source: MessageSource
        self._target: ResendTarget
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------------------------ start, steer, stop

    def start(self) -> None:
        """Begin."""
        self._task = self._loop.create_task(self._work(), name=f"replay {self._kept.job.id}")

    def look(self) -> None:
        """Something may be wished for."""
        self._wake.set()

    async def stop(self, within: float) -> None:
        """Bring the chunk that is under way to its end, within this many seconds."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            try:
                await asyncio.wait([self._task], timeout=within)
            finally:  # also where it is lost meanwhile, and nobody waits for its end
                self.drop()
            await asyncio.wait([self._task])

    def drop(self) -> None:
        """End it at once."""
        if self._task is not None:
            self._task.cancel()

    # ------------------------------------------------------------------------------------------------- work

    async def _work(self) -> None:
        job = self._kept.job
        try:
            await self._until_end()
        except Exception as error:  # a fault of ours must not leave it running for ever
            log("replay.failed", logging.ERROR, exc_info=error, replay=job.id)
            await self._fail(f"internal error: {error!r:.200}")
        if job.state in ENDED:
            log("replay.ended", replay=job.id, state=job.state.value, sent=job.sent, reason=job.reason)
            self._on_end(job.id)

    async def _until_end(self) -> None:
        """Run whenever that is wished for."""
        job = self._kept.job
        while job.state not in ENDED and not self._stopping:
            if job.wish is Wish.CANCEL:
                await self._insist(self._cancel)
            elif job.wish is Wish.PAUSE:
                if job.state is not JobState.PAUSED:
                    job.move(JobState.PAUSED)
                    await self._insist(self._save)
                await self._rest(LOOK_EVERY)
                await self._insist(self._reread)
            else:
                await self._run()

    async def _cancel(self) -> None:
        """End it; what was sent is counted."""
        if self._kept.job.flying:
            self._source, self._target = await self._parts()
            await self._count_flying()
        await self._end(JobState.CANCELLED, "")

    async def _fail(self, reason: str) -> None:
        """It cannot go on."""
        await self._insist(lambda: self._end(JobState.FAILED, reason))

    async def _run(self) -> None:
        """Go on from where it is."""
        self._kept.job.move(JobState.RUNNING)
        try:
            self._source, self._target = await self._parts()
            await self._target.check()
        except PASSING as error:
            await self._reason(str(error))
            await self._rest(PAUSE_MIN)
            return
        except GatewayError as error:
            await self._fail(str(error))
            return
        outcome = None
        try:
            await self._patiently(self._resume)
            while await self._chunk():
                pass
            outcome = _outcome(self._kept.job)
        except Interrupted:
            await self._insist(self._save)
        except GatewayError as error:
            outcome = JobState.FAILED, str(error)
        finally:
            await self._source.close()
        if outcome is not None:  # only now: who reads that it ended finds what was refused back in its queue
            state, reason = outcome
            await self._insist(lambda: self._end(state, reason))

    async def _resume(self) -> None:
        """What became of the chunk that was under way."""
        job = self._kept.job
        if not job.position:
            count, whole = await self._source.total()
            job.total = count if whole else None
            job.position = self._source.begin(count)
        await self._count_flying()
        await self._save()

    async def _count_flying(self) -> None:
        """Find out which of the chunk that was under way were sent. Again they are only settled; the others are
        in doubt."""
        job = self._kept.job
        if job.flying:
            seen = await self._ledger.seen(job.scope, job.flying)
            sent = [key for key in dict.fromkeys(job.flying) if key in seen]
            landed, job.position = await self._source.landed(job.flying, sent, job.position)
            job.found += len(landed)
            job.sent += len(landed)
            job.landed = (*job.landed, *map(name_of, landed))[-REMEMBERED_MAX:]
            job.flying = tuple((Counter(job.flying) - Counter(landed)).elements())

    # ------------------------------------------------------------------------------------------------ chunks

    async def _chunk(self) -> bool:
        """Send the next messages; whether there are more."""
        job = self._kept.job
        self._steered()
        rate = job.request.rate
        most = min(CHUNK, max(1, int(rate / CHUNKS_A_SECOND))) if rate else CHUNK
        landed = Counter(job.landed)
        doubtful = Counter(map(name_of, job.flying))
        self._again = []
        chunk = await self._patiently(lambda: self._source.take(job.position, most, landed))
        came = Counter(item.name for item in chunk.items)
        items, skipped = await self._patiently(lambda: self._sift(chunk, doubtful))
        fresh = [item for item in items if not item.counted]
        found, sent, resent = len(fresh) + skipped + len(chunk.refused), 0, 0
        late = _remembered(doubtful - came)
        if items:
            job.flying = (*late, *(item.key for item in items))
            await self._patiently(self._save)
            try:
                await self._send(items)
            except (Interrupted, GatewayError):
                self._leave(items, late)
                raise
            sent = sum(item.error is None for item in fresh)
            resent = sum(item.error is None and item.is_marked for item in items)
        refusals = [*chunk.refused, *(refusal_of(item.told, item.error) for item in items if item.error is not None)]
        if refusals:
            await self._patiently(lambda: self._store.name(job.id, job.pages, refusals))
            job.pages += 1
            for refusal in refusals:
                job.refused[refusal.code] = job.refused.get(refusal.code, 0) + 1
        job.found += found
        job.sent += sent
        job.skipped += skipped
        job.resent += resent
        job.position = chunk.position
        job.flying = _remembered(self._source.ahead(Counter(late), chunk))
        landed = self._source.ahead(landed - chunk.met, chunk) + Counter(item.name for item in self._again)
        job.landed = _remembered(landed)
        self._recent = {item.name for item in items if item.name == item.key}
        await self._source.refused([item for item in items if item.error is not None])
        if job.refusals > REFUSALS_MAX:
            raise LimitExceeded(f"more than {REFUSALS_MAX} messages were refused; ask for fewer", "refused messages")
        return not chunk.last or bool(self._again)

    def _leave(self, items: list[ReplayItem], late: tuple[str, ...]) -> None:
        """A chunk is left in the middle: in doubt is only what has no outcome."""
        job = self._kept.job
        recorded = [item for item in items if item.recorded]
        doubtful = [item.key for item in items if item.resent and not item.recorded and not item.counted]
        counted, job.position = self._source.left(recorded, job.position)
        if counted:
            fresh = sum(not item.counted for item in recorded)
            job.found += fresh
            job.sent += fresh
            again = Counter(item.name for item in recorded if item.counted)
            job.landed = _remembered(Counter(job.landed) - again + Counter(item.name for item in self._again))
        else:
            doubtful += [item.key for item in recorded]
        job.flying = (*late, *doubtful)

    async def _sift(self, chunk: Chunk, doubtful: Counter[str]) -> tuple[list[ReplayItem], int]:
        """Those that are to be sent, and how many were sent by an earlier run."""
        job = self._kept.job
        items = chunk.items
        for item in items:
            item.named(job.id, job.created_at)
            lately = item.name in self._recent and item.delivery is not None and item.delivery.redelivered
            item.resent = item.resent or item.name in doubtful or lately
        # Another replay may have had them. It records what it sent before it takes it off what is flying.
        again = [item for item in items if item.delivery is not None and item.delivery.redelivered]
        flying = await self._store.flying(job) if again else set()
        sent = await self._ledger.seen(ANY_REPLAY, [item.key for item in again]) if again else {}
        for item in again:
            item.resent = item.resent or item.name in flying or item.key in sent
        skipped: list[ReplayItem] = []
        seen = await self._ledger.seen(job.scope, [item.key for item in items]) if items else {}
        keys = set(seen)
        for item in items:  # copies of a message have one key, and so one id here
            item.is_copy = item.key in keys
            keys.add(item.key)
        if job.runs > 1:
            skipped = [
                item
                for item in items
                if (before := seen.get(item.key)) is not None
                and before.body_sha256 == item.sha256
                and (item.delivery is None or item.delivery.redelivered)
            ]
        if not skipped:
            return items, 0
        self._again += await self._source.passed(skipped)
        gone = set(skipped)
        return [item for item in items if item not in gone], len(skipped)

    async def _send(self, items: list[ReplayItem]) -> None:
        """Send them, until each is there or refused for good."""
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        left = items
        while (ready := self._throttle.ready(clock.monotonic())) > clock.monotonic():
            await self._wait(ready - clock.monotonic())
        for item in items:
            self._throttle.take(len(item.message.body))
        while left:
            try:
                again = await self._target.send(left)
            except Later as error:
                await self._reason(str(error))
                await self._wait(error.wait or backoff.next())
                continue
            if self._kept.job.reason:
                await self._reason("")
            waits = set(again)
            done = [item for item in left if item not in waits and item.error is None]
            if done:
                await self._record(done)
            if again:
                await self._wait(backoff.next())
            left = again

    async def _record(self, done: list[ReplayItem]) -> None:
        """They are there: write that down, then settle them. Not interrupted."""

        async def record() -> None:
            try:
                await self._target.record(done)
            except EntriesRefused as error:  # they are safe where they are, so it goes on
                log("replay.events_refused", logging.ERROR, replay=self._kept.job.id, reason=str(error))

        await self._insist(record)
        for item in done:
            item.recorded = True
        self._again += await self._source.passed([item for item in done if item.error is None])

    # ------------------------------------------------------------------------------------------------- waiting

    def _steered(self) -> None:
        """Raises Interrupted where something else is to be done."""
        if self._stopping or self._kept.job.wish is not Wish.RUN:
            raise Interrupted

    async def _wait(self, seconds: float) -> None:
        """Wait, unless something else is to be done meanwhile.

        Raises:
            Interrupted: it is.
        """
        end = clock.monotonic() + seconds
        while (left := end - clock.monotonic()) > 0:
            woken = await self._rest(min(left, LOOK_EVERY))
            if woken or left > LOOK_EVERY:
                with suppress(LedgerUnavailable):
                    await self._reread()
            self._steered()
        self._steered()

    async def _rest(self, seconds: float) -> bool:
        """Wait so long; whether somebody called."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do it, however long ledger and brokers are away.

        Raises:
            Interrupted: something else is to be done.
        """
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        while True:
            try:
                return await work()
            except PASSING as error:
                self._kept.job.reason = printable(str(error))[:500]
                await self._wait(backoff.next())

    async def _insist(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it, however long the ledger is away, unless this is dropped."""
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        while True:
            try:
                await work()
                return
            except PASSING as error:
                log("replay.waits", logging.WARNING, replay=self._kept.job.id, reason=str(error))
                await backoff.wait()

    # ------------------------------------------------------------------------------------------- writing down

    async def _reason(self, text: str) -> None:
        """Say what stands in the way."""
        job = self._kept.job
        text = printable(text)[:500]
        if job.reason != text:
            job.reason = text
            with suppress(LedgerUnavailable):  # it is only for those who look
                await self._save()

    async def _end(self, state: JobState, reason: str) -> None:
        job = self._kept.job
        job.move(state, printable(reason)[:500])
        job.ended_at = clock.now_ns() // 1000
        await self._save()

    async def _save(self) -> None:
        await self._store.save(self._kept)

    async def _reread(self) -> None:
        await self._store.reread(self._kept)


def _outcome(job: Job) -> tuple[JobState, str]:
    """How a replay ends that came to the end of its source, and why."""
    count = len(job.flying)
    doubt = f"messages that may have been sent, and have not come back to the queue: {count}" if count else ""
    if not job.refused:
        return JobState.DONE, doubt
    codes = ", ".join(f"{code} {count}" for code, count in sorted(job.refused.items()))
    hint = (f" {KEEP_BODIES}" if NO_BODY in job.refused else "") + (f" And {doubt}." if doubt else "")
    what = "deleted" if job.request.target.purge else "sent"
    if job.sent or job.skipped:
        return JobState.DONE, f"{job.refusals} of {job.found} messages were not {what}: {codes}.{hint}"
    return JobState.FAILED, f"none of the {job.found} messages was {what}: {codes}.{hint}"


def _remembered(names: Counter[str]) -> tuple[str, ...]:
    """As the job keeps them."""
    return tuple(names.elements())[-REMEMBERED_MAX:]
