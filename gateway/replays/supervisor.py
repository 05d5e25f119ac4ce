"""All replays: asked for, listed, steered, and done by their owners.

A replay is work of the kind ``replay``: one process does it, and another one goes on with it when that one is gone.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from gateway.core import Gateway
from gateway.core.leasing.consuming import printable
from gateway.errors import BrokerUnavailable, CommitUnknown, EtagMismatch, LimitExceeded, NoSuchReplay, StateError
from gateway.ledger import id_text
from gateway.replays.items import ReplayItem
from gateway.replays.jobs import ENDED, Job, JobState, Refusal, Wish
from gateway.replays.queues import QueueSnapshot
from gateway.replays.requests import ReplayRequest, check
from gateway.replays.runner import Runner
from gateway.replays.sources import KEEP_BODIES, NO_BODY, DeadDeliverySource, LedgerMessageSource, MessageSource
from gateway.replays.store import KEPT_DAYS, ReplayStore
from gateway.replays.targets import BrokerTarget, HttpTarget, PurgeTarget, ResendTarget, SubscriptionTarget
from gateway.runtime.clock import clock
from gateway.webhooks.attempts.sender import Sender
from gateway.webhooks.settings.endpoints import EndpointRegistry

REPLAY_WORK: Final = "replay"
SAMPLE: Final = 10
"""How many messages a dry run shows."""
JOBS_MAX: Final = 1_000
"""Most replays that have not ended."""
CLIENT_JOBS_MAX: Final = 100
"""Most of them that one client has asked for."""
FORGET_EVERY: Final = 3_600.0
"""Interval of checks for replays that ended long ago, in seconds."""
DAY: Final = 86_400 * 1_000_000


class Shown(msgspec.Struct, kw_only=True):
    """A message that a replay would send."""

    id: str
    """Id of the message or of the delivery."""
    exchange: str
    """The exchange that it came through last."""
    routing_key: str
    """The routing key that it had last."""
    octets: int
    """Bytes of the body."""
    came_from: str
    """The place that it came from, as far as it is known."""


class Preview(msgspec.Struct, kw_only=True):
    """What a replay would do."""

    count: int
    """How many messages would be sent, as far as that can be told before."""
    complete: bool
    """Whether ``count`` and ``refused_count`` are for all messages; else there are more."""
    sample: list[Shown]
    """The first messages that would be sent."""
    refused: list[Refusal]
    """The first that cannot be sent, and why."""
    refused_count: dict[str, int]
    """How many cannot be sent, by the code of the reason; ``no_body`` where the ledger does not keep the body. They are
    not in ``count``."""
    advice: str
    """Which setting would have kept what is missing; empty: nothing is."""
    signed: bool | None
    """Whether requests to the endpoint are signed. Those to a ``url`` are not: there is no key for it. ``null``: the
    messages go to brokers."""


class Replays:
    """The replays of a gateway."""

    outdated = ()
    """Each runner reads what is wished for again and again."""

    def __init__(
        self, gateway: Gateway, endpoints: EndpointRegistry | None = None, sender: Sender | None = None
    ) -> None:
        """``endpoints`` and ``sender`` None: nothing can be sent over HTTP."""
        self._gateway = gateway
        self._endpoints = endpoints
        self._sender = sender
        self._store = ReplayStore(gateway.ledger)
        self._runners: dict[str, Runner] = {}
        self._forgot_at = 0
        self._closing = False

    # ---------------------------------------------------------------------------------------- begin, close

    def begin(self) -> None:
        """Take work, from now on."""
        self._gateway.ownership.register(REPLAY_WORK, self)

    async def close(self, within: float) -> None:
        """Bring what is under way to its end, within this many seconds; nothing more is begun."""
        self._closing = True
        await asyncio.gather(*(self.stop(name, within) for name in list(self._runners)))

    # --------------------------------------------------------------------------------------------- asking

    async def preview(self, request: ReplayRequest) -> Preview:
        """What a replay would do; nothing is sent.

        Raises:
            EncodeError: something of it is wrong.
            GatewayError: what it names is not there.
        """
        check(request)
        job = Job(id="", request=request, asked_at=clock.now_ns() // 1000, created_at=clock.now_ns() // 1000)
        target = self._target(job)
        await target.check()
        survey = await self._source(job).survey(SAMPLE, target.refuses)
        return Preview(
            count=survey.count,
            complete=survey.complete,
            sample=[_shown(item) for item in survey.items],
            refused=survey.refusals,
            refused_count=dict(survey.refused),
            advice=KEEP_BODIES if NO_BODY in survey.refused else "",
            signed=await target.signed(),
        )

    async def ask(self, request: ReplayRequest, client: str) -> tuple[Job, bool]:
        """Begin a replay; also says whether it is new. One of the same id that has ended is run again, and sends only
        what was not sent before; one that has not is left as it is.

        Raises:
            EncodeError: something of it is wrong.
            StateError: there is one of that id that was asked for otherwise, or long ago.
            LimitExceeded: there are too many.
            GatewayError: what it names is not there.
        """
        check(request)
        now = clock.now_ns() // 1000
        request = msgspec.structs.replace(request, id=request.id or id_text(self._gateway.ids()), dry_run=False)
        job = Job(id=request.id, request=request, client=printable(client), created_at=now, asked_at=now)
        target = self._target(job)
        with suppress(BrokerUnavailable):  # it is waited for
            await target.check()
        job.signed = await target.signed()
        source = self._source(job)
        if request.source.queue is not None:
            await source.total()  # there is such a queue
        clients = [one.client async for one in self._store.all() if one.state not in ENDED]
        if len(clients) >= JOBS_MAX:
            raise LimitExceeded(f"{JOBS_MAX} replays have not ended; cancel some", "replays")
        if clients.count(job.client) >= CLIENT_JOBS_MAX:
            raise LimitExceeded(f"{CLIENT_JOBS_MAX} of your replays have not ended; cancel some", "replays")
        try:
            try:
                await self._store.add(job)
            except EtagMismatch:
                return await self._again(job), False
        except CommitUnknown:  # if it is stored it begins now, and not at a start long after
            self._gateway.ownership.changed(REPLAY_WORK, job.id)
            raise
        await self._tell(job.id)
        return job, True

    async def _again(self, asked: Job) -> Job:
        """There is one of that id."""

        def change(job: Job) -> None:
            if job.request != asked.request:
                raise StateError(f"the replay {job.id!r} exists, and was asked for otherwise; take another id")
            if job.state not in ENDED:
                return
            if asked.asked_at - job.created_at > KEPT_DAYS * DAY:
                raise StateError(f"the replay {job.id!r} is older than {KEPT_DAYS} days; take another id")
            job.move(JobState.PENDING)
            job.wish = Wish.RUN
            job.asked_at, job.ended_at = asked.asked_at, 0
            job.runs += 1
            job.found = job.sent = job.skipped = job.resent = 0
            job.refused, job.total, job.position, job.landed = {}, None, "", ()

        before = (await self._store.load(asked.id)).job
        job = await self._store.change(asked.id, change)
        if before.state in ENDED:
            await self._store.forget_refusals(before)
        await self._tell(asked.id)
        return job

    # --------------------------------------------------------------------------------------------- looking

    async def get(self, job_id: str) -> Job:
        """A replay by its id. Raises NoSuchReplay."""
        return (await self._store.load(job_id)).job

    async def page(self, cursor: str | None, limit: int) -> tuple[list[Job], str | None]:
        """Some, by id, and the cursor behind them."""
        return await self._store.page(cursor, limit)

    async def refusals(self, job_id: str, page: int) -> tuple[list[Refusal], int | None]:
        """What was not sent, a page of it, and the number of the next. Raises NoSuchReplay."""
        job = await self.get(job_id)
        found = await self._store.refusals(job, page)
        return found, page + 1 if page + 1 < job.pages else None

    # -------------------------------------------------------------------------------------------- steering

    async def pause(self, job_id: str) -> Job:
        """Send nothing more until it is resumed. Raises NoSuchReplay, StateError."""
        return await self._wish(job_id, Wish.PAUSE)

    async def resume(self, job_id: str) -> Job:
        """Go on. Raises NoSuchReplay, StateError."""
        return await self._wish(job_id, Wish.RUN)

    async def cancel(self, job_id: str) -> Job:
        """Send nothing more, ever. Raises NoSuchReplay, StateError."""
        return await self._wish(job_id, Wish.CANCEL)

    async def _wish(self, job_id: str, wish: Wish) -> Job:
        def change(job: Job) -> None:
            if wish is Wish.CANCEL and job.state is JobState.CANCELLED:
                return
            if job.state in ENDED:
                raise StateError(f"the replay {job.id!r} is {job.state}; ask for it again to run it again")
            if job.wish is not Wish.CANCEL:
                job.wish = wish

        job = await self._store.change(job_id, change)
        await self._tell(job_id)
        return job

    async def _tell(self, job_id: str) -> None:
        """Its owner shall look at it."""
        self._gateway.ownership.changed(REPLAY_WORK, job_id)
        if self._gateway.ownership.owns(REPLAY_WORK, job_id):
            await self.refresh(job_id)

    # ---------------------------------------------------------------------------------------------- worker

    async def names(self) -> list[str]:
        """Those that have not ended."""
        now = clock.now_ns() // 1000
        if now - self._forgot_at > FORGET_EVERY * 1_000_000:
            self._forgot_at = now
            await self._store.forget_old(now)
        names = [job.id async for job in self._store.all() if job.state not in ENDED]
        for name in names:
            if name not in self._runners:  # its owner may not have heard that it was asked for again
                await self.start(name)
        return names

    async def start(self, name: str) -> None:
        """Go on with it."""
        if not self._may_begin(name):
            return
        if name in self._runners:
            self._runners[name].look()
            return
        try:
            kept = await self._store.load(name)
        except NoSuchReplay:
            return
        if kept.job.state in ENDED or not self._may_begin(name):
            return
        if (begun := self._runners.get(name)) is not None:  # by another call, while this one read it
            begun.look()
            return
        parts = partial(self._parts, kept.job)
        runner = Runner(kept, self._store, self._gateway.ledger, parts, lambda name: self._ended(name, runner))
        self._runners[name] = runner
        runner.start()

    def _may_begin(self, name: str) -> bool:
        return not self._closing and self._gateway.ownership.keeps(REPLAY_WORK, name)

    async def stop(self, name: str, within: float) -> None:
        """Another process goes on with it."""
        runner = self._runners.get(name)
        if runner is not None:
            await runner.stop(within)
            self._forget(name, runner)

    def lost(self, name: str) -> None:
        """Another process goes on with it already."""
        runner = self._runners.pop(name, None)
        if runner is not None:
            runner.drop()

    async def refresh(self, name: str) -> None:
        """Something else is wished for, or it is to be run again."""
        await self.start(name)

    def _forget(self, name: str, runner: Runner) -> None:
        """It runs no more."""
        if self._runners.get(name) is runner:
            del self._runners[name]

    def _ended(self, name: str, runner: Runner) -> None:
        self._forget(name, runner)
        self._gateway.ownership.changed(REPLAY_WORK)

    # ---------------------------------------------------------------------------------------------- pieces

    async def _parts(self, job: Job) -> tuple[MessageSource, ResendTarget]:
        return self._source(job), self._target(job)

    def _source(self, job: Job) -> MessageSource:
        source = job.request.source
        if source.messages is not None:
            return LedgerMessageSource(self._gateway, source.messages, job.asked_at)
        if source.deliveries is not None:
            revives = job.request.target.same_place
            purges = job.request.target.purge
            return DeadDeliverySource(self._gateway, source.deliveries, job.asked_at, revives=revives, purges=purges)
        assert source.queue is not None
        return QueueSnapshot(self._gateway, source.queue, job.id)

    def _target(self, job: Job) -> ResendTarget:
        target = job.request.target
        if target.over_http:
            if self._endpoints is None or self._sender is None:
                raise StateError("this gateway sends nothing over HTTP")
            return HttpTarget(self._gateway, job, self._endpoints, self._sender)
        if target.purge:
            return PurgeTarget(self._gateway, job)
        if target.same_place and job.request.source.deliveries is not None:
            return SubscriptionTarget(self._gateway, job)
        return BrokerTarget(self._gateway, job)


def _shown(item: ReplayItem) -> Shown:
    place = item.place
    came_from = ""
    if place is not None:
        where = place.queue or f"{place.exchange or 'amq.default'} {place.routing_key}"
        came_from = f"{place.broker}: {where}"
    return Shown(
        id=item.key if item.row is not None else id_text(item.id),
        exchange=printable(item.exchange),
        routing_key=printable(item.routing_key),
        octets=len(item.message.body),
        came_from=printable(came_from),
    )
