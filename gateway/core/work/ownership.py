"""Which work this process does, and when it has to stop.

What only one process may do at a time is *work*: a kind and a name. Each kind of work registers a :class:`Worker`,
which lists its work, starts it when it is granted, brings it to an end when it is to go elsewhere, and drops it at once
when it is lost.

::

    free ──claimed──> starting ──> running ──handed over──> stopping ──> free
                          │            │                        │
                          └────────────┴────── fenced ──────────┴──> lost: somebody else's, at once

On SQLite there is one process, and all is granted at once. On PostgreSQL rows say who does what
(:mod:`gateway.ledger.work`), and each process looks about twice a second: it fences whose lease has run out, claims
what is free up to its share, and hands over what it has beyond that. A share is the number of names divided by the
processes that take work of the kind, so that in the end nobody has two more than another; nothing moves to make it
even. A process may also take none (the role ``api``): it looks, and leaves all to the others.

Ownership is a question of time: it lasts as long as the lease, counted from before its request.
A process that was paused, or that lost its database, answers "no" before anybody else may answer "yes".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final, Protocol, runtime_checkable

from gateway.core.work.peers import Peers
from gateway.errors import GatewayError
from gateway.ledger import Ledger
from gateway.ledger.db.shards import ShardLease
from gateway.ledger.work import Peer, View
from gateway.observing.telemetry import Metrics, log
from gateway.runtime.backoff import Backoff
from gateway.runtime.clock import clock
from gateway.runtime.tasks import Tasks

LOOK_EVERY: Final = 0.5
"""How often a process looks what the others do, in seconds."""
NAMES_EVERY: Final = 15.0
"""How often a worker is asked for its names where nobody said that they changed, in seconds."""
CLAIMS: Final = 3
"""How often it is tried to claim up to one's share at one look, where others want the same."""
HAND_OVER_WITHIN: Final = 5.0
"""How long work may take to come to an end when it goes to another process, in seconds."""
STARTS: Final = 32
"""How much work is started at a time."""
PAUSE_MIN, PAUSE_MAX = 0.5, 30.0
"""Pause before what could not be started is tried again, in seconds; doubled each time."""
NEWS: Final = "work"
"""Notice to the other processes when there is something to look at."""


class Worker(Protocol):
    """Worker for one kind of work. All methods are called on the event loop, for one name one after the other."""

    async def names(self) -> Collection[str]:
        """All work, of all processes. Asked again and again."""

    async def start(self, name: str) -> None:
        """This process owns it now: begin. An error is logged, and it is tried again."""

    async def stop(self, name: str, within: float) -> None:
        """Bring it to an end within this many seconds, and give the rest back; another process may go on after that."""

    def lost(self, name: str) -> None:
        """This process lost it: drop everything at once, acknowledge nothing. Not told whether it had started."""


@runtime_checkable
class Attentive(Protocol):
    """A worker that wants to know when another process changed what a name stands for."""

    outdated: Collection[str]
    """Names that this process does by other settings than those that the last listing of ``names`` found: it has not
    heard of a change."""

    async def refresh(self, name: str) -> None:
        """Read the settings of a name again; this process owns it."""


class Held:
    """A piece of work that this process owns."""

    __slots__ = ("name", "readings", "stopping", "task", "tried")

    def __init__(self, name: str) -> None:
        self.name = name
        self.task: asyncio.Task[None] | None = None
        """Starts it, or stops it."""
        self.stopping = False
        self.readings = 0
        """How often it is being read again."""
        self.tried = asyncio.Event()
        """It was tried to start it."""


class OwnedWork:
    """The work of one kind."""

    def __init__(self, kind: str, worker: Worker) -> None:
        self.kind = kind
        self.worker = worker
        self.names: set[str] = set()
        self.held: dict[str, Held] = {}
        self.stale = True
        """The names are to be asked for."""
        self.asked_at = 0.0
        self.changed: set[str] = set()
        """Names that stand for something else now."""


class Ownership:
    """The work of this process. All methods belong to the event loop."""

    def __init__(self, ledger: Ledger, peers: Peers, metrics: Metrics, *, takes_work: bool = True) -> None:
        """``takes_work`` False: others do all of it."""
        self._ledger = ledger
        self._work = ledger.work
        self.takes_work = takes_work
        self._peers = peers
        self._metrics = metrics
        self._groups: dict[str, OwnedWork] = {}
        self._looking = asyncio.Lock()
        self._news = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._tasks = Tasks("ownership")
        self._starts = asyncio.Semaphore(STARTS)
        self._announced: object = None
        self._leaving = False
        self._troubles: dict[str, str] = {}
        """Kind -> what went wrong at the last look; "": at the look itself."""

    # ---------------------------------------------------------------------------------------- start, close

    def register(self, kind: str, worker: Worker) -> None:
        """Take work of this kind, from now on; before or after the start."""
        assert kind not in self._groups, f"there is a worker for {kind!r} already"
        self._groups[kind] = OwnedWork(kind, worker)
        self._metrics.work.labels(kind).set(0)
        self._news.set()

    async def start(self) -> None:
        """Begin to claim work."""
        self._ledger.on_fenced = self._fenced
        self._peers.listen(NEWS, self._told)
        self._runner = asyncio.get_running_loop().create_task(self._run(), name="ownership")

    async def close(self, within: float) -> None:
        """Claim nothing more; bring all work to an end within this many seconds, and leave it to the others."""
        self._leaving = True
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
            self._runner = None
        await self._announce()
        groups = list(self._groups.values())
        await asyncio.gather(*(self._hand_over(group, list(group.held), within) for group in groups if group.held))
        await self._tasks.join(within)
        self._tasks.cancel()

    # -------------------------------------------------------------------------------------------- asking

    def owns(self, kind: str, name: str) -> bool:
        """Whether this process does the work now. Ask before anything that only the owner may do."""
        group = self._groups.get(kind)
        return group is not None and name in group.held and self._ledger.holds

    def has(self, kind: str, name: str) -> bool:
        """Whether it was granted and not lost yet: as ``owns``, however long the lease lasts."""
        group = self._groups.get(kind)
        return group is not None and name in group.held

    def keeps(self, kind: str, name: str) -> bool:
        """Whether it was granted, and is neither lost nor about to go to another process."""
        group = self._groups.get(kind)
        held = group.held.get(name) if group is not None else None
        return held is not None and not held.stopping

    async def owner(self, kind: str, name: str) -> Peer | None:
        """Who does it now; ``peers.me`` where it is this process, None where nobody does.

        Raises:
            LedgerUnavailable: that cannot be read.
        """
        if self.owns(kind, name):
            return self._peers.me
        shard = await self._work.owner(kind, name)
        return None if shard is None else await self._peers.of_shard(shard)

    def elsewhere(self, owner: Peer | None) -> bool:
        """Whether that is another process."""
        return owner is not None and owner.id != self._peers.me.id

    # ------------------------------------------------------------------------------------------- changing

    def changed(self, kind: str, name: str = "") -> None:
        """There is more of this kind to do, or less; or what ``name`` stands for has changed. The other processes are
        told."""
        self._peers.tell(NEWS, {"kind": kind, "name": name})
        if (group := self._groups.get(kind)) is not None:
            group.stale = True
            self._news.set()

    def reread(self, kind: str, name: str) -> None:
        """``changed``, and if this process owns it, its worker reads it again, too."""
        self.changed(kind, name)
        if (group := self._groups.get(kind)) is not None:
            group.changed.add(name)

    async def review(self, kind: str) -> None:
        """Look now, and wait until what was granted of this kind was tried to start."""
        group = self._groups[kind]
        group.stale = True
        await self._look()
        await asyncio.gather(*(held.tried.wait() for held in group.held.values() if not held.stopping))

    async def reconsider(self, kinds: Collection[str], within: float) -> bool:
        """The configuration is another one: list the names of these kinds again, and have all owned work read again.
        Whether that was done within this many seconds; the rest is tried again and again."""
        before = set(self._tasks)
        groups = [self._groups[kind] for kind in kinds if kind in self._groups]
        for group in groups:
            group.stale = True
            group.changed.update(group.held)
            self._peers.tell(NEWS, {"kind": group.kind})
        await self._look()
        waiting: set[asyncio.Future[Any]] = {task for task in self._tasks if task not in before}
        waiting |= {
            asyncio.ensure_future(held.tried.wait()) for group in groups for held in group.held.values()
        }  # fmt: skip
        if not waiting:
            return not self._troubles
        _, left = await asyncio.wait(waiting, timeout=within)
        for task in left - set(self._tasks):
            task.cancel()
        return not left and not self._troubles

    async def acquire(self, kind: str, name: str) -> bool:
        """Take one piece of work, beyond one's share if need be, and wait until it was tried to start it; False:
        another process has it, or is to have it.

        Raises:
            LedgerUnavailable: it could not be claimed.
        """
        if not self.takes_work:
            self.changed(kind, name)
            return False
        group = self._groups[kind]
        async with self._looking:
            if name not in group.held and not self._leaving:
                group.names.add(name)
                for granted in await self._work.claim(kind, {name}):
                    self._grant(group, granted)
        held = group.held.get(name)
        if held is None:
            return False
        await held.tried.wait()
        return group.held.get(name) is held and not held.stopping

    # -------------------------------------------------------------------------------------------- looking

    async def _run(self) -> None:
        while True:
            self._news.clear()
            await self._look()
            if self._work.shared:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY):
                        await self._news.wait()
            else:
                await self._news.wait()

    async def _look(self) -> None:
        """One look about. What goes wrong is tried again at the next, and keeps no other kind of work."""
        async with self._looking:
            if self._leaving:
                return
            before, self._troubles = self._troubles, {}
            try:
                view = await self._view()
            except Exception as error:  # the ledger's, or a fault of ours; it must not end the looking
                self._failed("", error, before)
                return
            if not self.takes_work:
                return
            await asyncio.gather(*(self._try(group, view, before) for group in list(self._groups.values())))

    async def _try(self, group: OwnedWork, view: View, before: Mapping[str, str]) -> None:
        try:
            await self._review(group, view)
        except Exception as error:  # the ledger's, or a fault of a worker
            self._failed(group.kind, error, before)

    def _failed(self, kind: str, error: Exception, before: Mapping[str, str]) -> None:
        """Say so, once for each trouble, and look again soon."""
        reason = self._troubles[kind] = str(error) or repr(error)
        if before.get(kind) != reason:
            expected = isinstance(error, GatewayError)
            level, shown = (logging.WARNING, None) if expected else (logging.ERROR, error)
            log("work.waits", level, exc_info=shown, kind=kind, reason=reason)
        asyncio.get_running_loop().call_later(LOOK_EVERY, self._news.set)

    async def _view(self) -> View:
        """Return the processes and their work, after the work of ended processes was freed."""
        if not self._work.shared:
            return View([], {}, lapsed=False)
        await self._announce()
        view = await self._work.view()
        if view.lapsed and await self._work.remove_lapsed():
            view = await self._work.view()
        self._peers.found(view.peers)
        return view

    async def _announce(self) -> None:
        """Tell the others of this process, and of the work that it takes, if they have not been told yet."""
        kinds = frozenset() if self._leaving or not self.takes_work else frozenset(self._groups)
        wanted = self._ledger.shard, self._ledger.fence, kinds
        announced = *wanted, self._peers.me.config
        if not self._work.shared or announced == self._announced:
            return
        try:
            await self._work.announce(self._peers.describe(*wanted))
        except GatewayError:
            if not self._leaving:  # else the others will see for themselves
                raise
        else:
            self._announced = announced

    async def _review(self, group: OwnedWork, view: View) -> None:
        """Claim what is missing of one kind, up to our share; hand over what is too much."""
        now = clock.monotonic()
        due = group.stale or (self._work.shared and now >= group.asked_at + NAMES_EVERY)
        if due:
            group.stale = False
            try:
                group.names = set(await group.worker.names())
            except BaseException:
                group.stale = True
                raise
            group.asked_at = now
            if self._work.shared and isinstance(group.worker, Attentive):
                outdated = [held for name in group.worker.outdated if (held := group.held.get(name)) is not None]
                group.changed.update(held.name for held in outdated if not held.readings)
        if gone := [name for name, held in group.held.items() if name not in group.names and not held.stopping]:
            self._spawn(self._hand_over(group, gone, HAND_OVER_WITHIN))
        if changed := [held for name in group.changed if (held := group.held.get(name)) is not None]:
            for held in changed:
                self._spawn(self._refresh(group, held))
        group.changed.clear()
        wanted = group.names - group.held.keys()
        granted: Collection[str] = ()
        if not self._work.shared:
            granted = await self._work.claim(group.kind, wanted) if wanted else ()
        else:
            granted = await self._claim_share(group, view, wanted, due)
        for name in granted:
            self._grant(group, name)
        self._metrics.work.labels(group.kind).set(len(group.held))

    async def _claim_share(self, group: OwnedWork, view: View, wanted: set[str], due: bool) -> Collection[str]:
        """Claim what is free, up to our share; else hand over what is beyond it."""
        me = self._ledger.shard
        counts = {peer.shard: 0 for peer in view.peers if group.kind in peer.kinds}
        counts |= {shard: count for shard, count in view.counts.get(group.kind, {}).items() if shard in counts}
        in_rows = counts.get(me, 0)
        counts[me] = sum(not held.stopping for held in group.held.values())
        room = share(counts, len(group.names)) - counts[me]
        if wanted and room > 0 and (due or in_rows != len(group.held) or sum(counts.values()) < len(group.names)):
            granted: dict[str, ShardLease] = {}
            for _ in range(CLAIMS):
                taken = await self._work.taken(group.kind)
                free = [name for name in wanted - granted.keys() if taken.get(name, me) == me]
                if not free or len(granted) == room:
                    break
                free.sort(key=lambda name: _rank(name, self._peers.me.id))
                claimed = await self._work.claim(group.kind, free[: room - len(granted)])
                granted |= dict.fromkeys(claimed, self._ledger.lease)
            if granted:  # some of it under a lease that was lost meanwhile: it is nobody's
                return [name for name, lease in granted.items() if lease == self._ledger.lease]
        if surplus := to_hand_over(counts, me, len(group.names)):
            mine = sorted(
                (name for name, held in group.held.items() if not held.stopping),
                key=lambda name: _rank(name, self._peers.me.id),
            )
            log("work.balance", kind=group.kind, handed_over=surplus, kept=counts[me] - surplus)
            self._spawn(self._hand_over(group, mine[-surplus:], HAND_OVER_WITHIN))
        return ()

    def _told(self, news: Mapping[str, Any]) -> None:
        """Another process says that there is something to look at."""
        group = self._groups.get(str(news.get("kind", "")))
        if group is not None:
            group.stale = True
            if name := str(news.get("name", "")):
                group.changed.add(name)
        self._news.set()

    # -------------------------------------------------------------------------------- granted, stopped, lost

    def _grant(self, group: OwnedWork, name: str) -> None:
        held = group.held[name] = Held(name)
        held.task = asyncio.get_running_loop().create_task(self._start(group, held), name=f"start {group.kind}")

    async def _start(self, group: OwnedWork, held: Held) -> None:
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        said = ""
        while True:
            try:
                async with self._starts:
                    await group.worker.start(held.name)
            except Exception as error:  # the worker's, or the broker's; it is tried again
                expected = isinstance(error, GatewayError)
                if str(error) != said:
                    said = str(error)
                    level, shown = (logging.WARNING, None) if expected else (logging.ERROR, error)
                    log("work.not_started", level, exc_info=shown, kind=group.kind, name=held.name, reason=said)
            else:
                if self._work.shared:
                    log("work.started", kind=group.kind, name=held.name, shard=self._ledger.shard)
                return
            finally:
                held.tried.set()
            await backoff.wait()

    async def _refresh(self, group: OwnedWork, held: Held) -> None:
        """Have it read again. What went wrong is tried again: nobody else would."""
        worker = group.worker
        if not isinstance(worker, Attentive):
            return
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        held.readings += 1
        try:
            while not held.stopping and group.held.get(held.name) is held:
                await held.tried.wait()
                try:
                    await worker.refresh(held.name)
                    return
                except Exception as error:  # the worker's, or the broker's
                    expected = isinstance(error, GatewayError)
                    level, shown = (logging.WARNING, None) if expected else (logging.ERROR, error)
                    log("work.not_started", level, exc_info=shown, kind=group.kind, name=held.name, reason=str(error))
                await backoff.wait()
        finally:
            held.readings -= 1

    async def _hand_over(self, group: OwnedWork, names: Iterable[str], within: float) -> None:
        """Bring work to an end; it is free after that."""
        ending = [held for name in names if (held := group.held.get(name)) is not None and not held.stopping]
        for held in ending:
            held.stopping = True
        await asyncio.gather(*(self._stop(group, held, within) for held in ending))
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        # Each time only what is still held: with the lease it may be lost, and claimed again since.
        while ended := [held.name for held in ending if group.held.get(held.name) is held]:
            try:
                await self._work.release(group.kind, ended)
                break
            except GatewayError as error:
                if self._leaving:  # they are free when the shard is given back, or when its lease ends
                    log("work.not_released", logging.WARNING, kind=group.kind, count=len(ended), reason=str(error))
                    break
            await backoff.wait()
        for held in ending:
            if group.held.get(held.name) is held:
                del group.held[held.name]
        self._metrics.work.labels(group.kind).set(len(group.held))
        if ended:
            group.stale = group.stale or not self._work.shared
            self._news.set()
            self._peers.tell(NEWS, {"kind": group.kind})

    async def _stop(self, group: OwnedWork, held: Held, within: float) -> None:
        if held.task is not None and not held.task.done():
            held.task.cancel()
            await asyncio.wait([held.task])
        held.tried.set()
        if group.held.get(held.name) is not held:  # lost meanwhile, and perhaps granted again
            return
        held.task = asyncio.get_running_loop().create_task(group.worker.stop(held.name, within))
        await asyncio.wait([held.task])
        if not held.task.cancelled() and (error := held.task.exception()) is not None:
            log("work.not_stopped", logging.ERROR, exc_info=error, kind=group.kind, name=held.name)
            group.worker.lost(held.name)
        if self._work.shared:
            log("work.stopped", kind=group.kind, name=held.name, shard=self._ledger.shard)

    def _fenced(self) -> None:
        """Another process has taken over the shard, or may have: this process owns nothing any more."""
        counts = {group.kind: len(group.held) for group in self._groups.values()}
        for group in self._groups.values():
            lost, group.held = group.held, {}
            for held in lost.values():
                if held.task is not None:
                    held.task.cancel()
                try:
                    group.worker.lost(held.name)
                except Exception as error:  # a fault of ours must not keep the others
                    log("work.failed", logging.ERROR, exc_info=error, kind=group.kind, name=held.name)
                held.tried.set()
            self._metrics.work.labels(group.kind).set(0)
        self._metrics.fenced.inc()
        log("work.lost", logging.WARNING, work=counts, reason="another process took over, or may have")
        self._news.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work)


def share(counts: Mapping[int, int], total: int) -> int:
    """Up to how many pieces of work a process claims what is free. ``counts``: shard -> how many it has, of the
    ``total``. The last few, which do not divide evenly, are for anybody once all others can have their part."""
    floor, rest = divmod(total, len(counts))
    free = total - sum(counts.values())
    missing = sum(max(0, floor - count) for count in counts.values())
    return floor + (rest > 0 and free > missing)


def to_hand_over(counts: Mapping[int, int], me: int, total: int) -> int:
    """How many pieces of work ``me`` gives up, so that in the end nobody has two more than another. ``counts``: shard
    -> how many it has, of the ``total``; what nobody has will be claimed by those who have too little. Everybody who
    knows the same counts comes to an answer that fits those of the others."""
    owned = sum(counts.values())
    floor, rest = divmod(max(owned, total), len(counts))
    most = floor + bool(rest)
    given = {shard: max(0, count - most) for shard, count in counts.items()}
    free = max(0, total - owned)
    missing = sum(max(0, floor - count) for count in counts.values()) - sum(given.values()) - free
    for shard in sorted(counts):
        if missing <= 0:
            break
        if counts[shard] - given[shard] > floor:
            given[shard] += 1
            missing -= 1
    return given[me]


def _rank(name: str, process: bytes) -> bytes:
    """In which order a process prefers names: each another one, so that two of them rarely want the same."""
    return blake2b(name.encode("utf-8", "surrogateescape"), key=process, digest_size=8).digest()
