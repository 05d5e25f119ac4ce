"""The endpoints at work: what goes to each of them, when, and how it is doing.

A :class:`PushTarget` is one endpoint that messages are pushed to, for any number of subscriptions. It begins a request
when four things are true: it is not suspended (:class:`~gateway.webhooks.lines.Suspension`), one of its sources
(:class:`~gateway.webhooks.lines.PushSource`) has messages, its window has room, and there is a place for it among all
requests (:mod:`gateway.webhooks.attempts.slots`). Sources take turns, a request at a time.

What suspends a target, in the order in which it is asked::

    its state         paused, disabled, unverified, or not there at all
    a pause           it answered 429 or 503, and is left alone for so long
    the breaker       it failed again and again (gateway.webhooks.breaker)
    the ledger        what would become of the request could not be written down now

A target that is held tells its lines, which release what they have not begun: nothing that waits for an endpoint is
taken from a queue meanwhile. Nothing here polls: each hold that ends after a time has a timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Protocol

from gateway.config import EndpointSettings
from gateway.errors import GatewayError, NoSuchEndpoint
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock, wall_time
from gateway.runtime.tasks import Tasks
from gateway.runtime.timers import WakeTimer
from gateway.webhooks.attempts.forms import BATCHED
from gateway.webhooks.attempts.items import PushDelivery
from gateway.webhooks.attempts.schedule import DELAYS, PAUSE_MAX, AttemptOutcome, Chance, NextStep, Schedule
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.attempts.slots import Health, Slots
from gateway.webhooks.breaker import Breaker, BreakerSettings, BreakerState
from gateway.webhooks.counts import PushCounts
from gateway.webhooks.endpoint import Endpoint, EndpointState
from gateway.webhooks.lines import Demand, PushSource, Send, Suspension

LOOK_EVERY: Final = 0.25
"""How often it is looked which endpoints have become slow, while requests are under way, in seconds."""
LEDGER_EVERY: Final = 0.5
"""How often it is looked whether the ledger is back, in seconds."""
TROUBLE_EVERY: Final = 5.0
"""After this many seconds an endpoint that could not be read is read again."""
AILING_AFTER: Final = 2.0
"""For this many seconds an endpoint that was well must have failed, before it is given less."""
REST: Final = 0.005
"""The rest between the beginnings of two requests to endpoints that fail, in seconds."""
RATE_BURST: Final = 0.1
"""How much may go at once after a rest, in seconds of the endpoint's ``rate``; one request always may."""


class Endpoints(Protocol):
    """The endpoints that there are."""

    async def get(self, name: str, /) -> Endpoint:
        """Return an endpoint. Raises NoSuchEndpoint."""

    async def disable(self, name: str, reason: str, url: str, /) -> object:
        """Push nothing more to one that said at this URL that it is gone."""


class Targets:
    """All of them."""

    def __init__(
        self,
        endpoints: Endpoints,
        sender: Send,
        counts: PushCounts,
        *,
        places: int,
        chance: Chance,
        clock: Callable[[], float] = wall_time,
        writable: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            places: most requests at once.
            clock: seconds since 1970, for time stamps and ``Retry-After``.
            writable: whether the ledger can be written now.
        """
        self.endpoints = endpoints
        self.sender = sender
        self.counts = counts
        self.chance = chance
        self.clock = clock
        self.writable = writable
        self.slots = Slots(places)
        self.slots.rest = self._rest
        self._targets: dict[str, PushTarget] = {}
        self._tasks = Tasks("push")
        self._tick: asyncio.TimerHandle | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._targets)

    def get(self, name: str) -> PushTarget | None:
        """A target that is at work."""
        return self._targets.get(name)

    async def join(self, name: str, line: PushSource) -> PushTarget:
        """Have a line served by an endpoint. One that is not there, or cannot be read now, holds its lines."""
        target = self._targets.get(name)
        if target is not None:
            target.lines.append(line)
            return target
        target = self._targets[name] = PushTarget(name, self)
        target.lines.append(line)  # others join and leave while it is read: without lines it would be forgotten
        try:
            await asyncio.shield(self.run(target.reload()))  # for those others, where this line is cancelled
        except BaseException:
            await self.cut(target, line)
            raise
        return target

    async def cut(self, target: PushTarget, line: PushSource) -> None:
        """A line is served no more, and its requests are cut off. A target without lines is forgotten, with all that
        was known of its health."""
        await target.remove(line)
        if not target.lines and self._targets.get(target.name) is target:
            del self._targets[target.name]
            target.close()
            self.counts.idle(target.name)

    def changed(self, name: str) -> None:
        """An endpoint has other settings, or another state."""
        target = self._targets.get(name)
        if target is not None:
            self.run(target.reload())

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task, which is looked after."""
        return self._tasks.start(work)

    def watch(self) -> None:
        """Requests are under way: look now and then which endpoints have become slow."""
        if self._tick is None:
            self._tick = self._loop.call_later(LOOK_EVERY, self._look)

    def _look(self) -> None:
        self._tick = None
        if not self.slots.in_flight:
            return
        now = clock.monotonic()
        for lane in self.slots.busy:
            lane.look(now)
        self.slots.serve()
        self.watch()

    def _rest(self) -> None:
        self._resting = self._loop.call_later(REST, self._rested)

    def _rested(self) -> None:
        self._resting = None
        self.slots.rested()
        self.slots.serve()

    async def close(self) -> None:
        """Nothing more; what is under way is cut off."""
        for timer in (self._tick, self._resting):
            if timer is not None:
                timer.cancel()
        self._tick = self._resting = None
        for target in list(self._targets.values()):
            target.close()
        self._targets.clear()
        await self._tasks.close()


class PushTarget:
    """One endpoint at work. All methods belong to the event loop."""

    def __init__(self, name: str, targets: Targets) -> None:
        self.name = name
        self.endpoint: Endpoint | None = None
        self.schedule = Schedule()
        self.breaker = Breaker()
        self.lane = targets.slots.lane(1, self.pump)
        self.lines: deque[PushSource] = deque()
        """Those that it serves; the one whose turn is next comes first."""
        self.trouble = "it was not read yet"
        """Why there is no endpoint."""
        self.paused_until = 0.0
        self._paused_for = ""
        self.last_error = ""
        """Why the last request failed; empty: it did not."""
        self._targets = targets
        self._loop = asyncio.get_running_loop()
        self._next_at = 0.0
        """When ``rate`` lets the next request go."""
        self._timer = WakeTimer(self.look)
        self._demand = Demand.NOTHING
        self._logged = ""
        """Why it is held, as the log has it; empty: it is not."""
        self._gone = ""
        """What it said when it said that it is gone; it is being disabled."""
        self._failing_since: float | None = None
        """When the first request began that failed since the last success."""
        self._cuts = False
        """Its last request was the end of its connection."""
        self._proven = False
        """It has taken something."""
        self._requests: dict[asyncio.Task[None], PushSource] = {}
        self._closed = False

    # --------------------------------------------------------------------------------------------- settings

    async def reload(self) -> None:
        """Read the endpoint again."""
        try:
            endpoint = await self._targets.endpoints.get(self.name)
        except NoSuchEndpoint as error:
            self.endpoint, self.trouble = None, str(error)
        except GatewayError as error:  # what is known goes on to hold; it is tried again
            self.trouble = str(error)
            self._loop.call_later(TROUBLE_EVERY, self._reload_soon)
        else:
            self._use(endpoint)
        self.look()

    def _reload_soon(self) -> None:
        if not self._closed:
            self._targets.changed(self.name)

    def _use(self, endpoint: Endpoint) -> None:
        settings = endpoint.settings
        before = self.endpoint.settings if self.endpoint is not None else None
        self.endpoint = endpoint
        self.trouble = ""
        self.lane.concurrency = settings.concurrency
        self.schedule = Schedule(settings.schedule or DELAYS)
        if before is None or _breaker_settings(before) != _breaker_settings(settings) or before.url != settings.url:
            self.breaker = Breaker(_breaker_settings(settings))
            self.paused_until = 0.0
        self._next_at = min(self._next_at, clock.monotonic() + 1 / endpoint.rate) if endpoint.rate else 0.0

    @property
    def batch(self) -> int:
        """Most messages of a request."""
        settings = self.endpoint.settings if self.endpoint is not None else None
        return settings.batch_max if settings is not None and settings.format in BATCHED else 1

    def suspect(self) -> None:
        """What the ledger keeps for it says that it failed before: it is no new endpoint."""
        if self.lane.health is Health.NEW and not self.lane.in_flight:
            self.lane.fail()
            self.last_error = self.last_error or "it failed before this process began"

    def recheck(self) -> None:
        """Its owner says that it is well: it is asked at once."""
        self.breaker.succeeded()
        self.paused_until = 0.0
        self.look()

    # ---------------------------------------------------------------------------------------------- holding

    def suspension(self, now: float) -> Suspension | None:
        """Why it gets nothing now; None: nothing holds it."""
        endpoint = self.endpoint
        if endpoint is None:
            return Suspension("missing", self.trouble, None)
        if endpoint.state is not EndpointState.ACTIVE:
            return Suspension(endpoint.state.value, endpoint.reason or f"the endpoint is {endpoint.state.value}", None)
        if self._gone:
            return Suspension("disabled", self._gone, None)
        if now < self.paused_until:
            return Suspension("asked_to_wait", self._paused_for, self.paused_until)
        if self.breaker.state(now) is BreakerState.OPEN:
            reason = f"{self.breaker.failures} requests in a row failed"
            return Suspension("breaker_open", reason, now + self.breaker.next(now))
        if not self._targets.writable():
            return Suspension("ledger", "the ledger cannot be written now", now + LEDGER_EVERY)
        return None

    @property
    def demand(self) -> Demand:
        """How much it can take, as of the last look."""
        return self._demand

    def look(self) -> None:
        """Find out again what it can take, inform the lines if that has changed, and begin what can begin."""
        if self._closed:
            return
        now = clock.monotonic()
        suspension = self.suspension(now)
        if suspension is not None:
            demand = Demand.NOTHING
            self._targets.slots.leave(self.lane)
            if suspension.until is not None:
                self._timer.wake_at(suspension.until)
        elif self._is_ailing(now):
            demand = Demand.LITTLE
        else:
            demand = Demand.MUCH
        if demand is not self._demand:
            self._tell(demand, suspension)
        if suspension is None:
            self.pump(now)

    def _is_ailing(self, now: float) -> bool:
        """It is better given a message at a time. One that was well, and has failed for a moment, is not."""
        if self.breaker.state(now) is not BreakerState.CLOSED:
            return True
        if self.lane.health is not Health.FAILING:
            return False
        return not self._proven or self._failing_since is None or now - self._failing_since > AILING_AFTER

    def _tell(self, demand: Demand, suspension: Suspension | None) -> None:
        self._demand = demand
        self._targets.counts.up(self.name, suspension is None)
        if suspension is not None and suspension.state not in (self._logged, "ledger"):
            self._logged = suspension.state
            log(
                "push.suspended",
                logging.WARNING,
                endpoint=self.name,
                state=suspension.state,
                reason=suspension.reason[:500],
            )
        elif demand is Demand.MUCH and self._logged:
            self._logged = ""
            log("push.resumed", endpoint=self.name)
        for line in list(self.lines):
            line.changed()

    # -------------------------------------------------------------------------------------------- requests

    async def remove(self, line: PushSource) -> None:
        """Serve it no more; what is under way is cut off, and has ended when this returns."""
        if tasks := self.abandon(line):
            await asyncio.wait(tasks)

    def abandon(self, line: PushSource) -> list[asyncio.Task[None]]:
        """Serve it no more, from this turn of the loop on, and cut off what is under way; returns what has yet to
        end."""
        if line in self.lines:
            self.lines.remove(line)
        tasks = [task for task, of in self._requests.items() if of is line]
        for task in tasks:
            if not task.cancelling():  # one that is being cut off closes its connection
                task.cancel()
        return tasks

    def pump(self, free_at: float | None = None) -> None:
        """Begin as many requests as can begin. ``free_at``: nothing holds it at this time, as was just found out."""
        targets, lane, endpoint = self._targets, self.lane, self.endpoint
        if endpoint is None or self._closed:
            return
        settings = endpoint.settings
        most, rate = self.batch, endpoint.rate
        while True:
            now = clock.monotonic() if free_at is None else free_at
            line, at = self._next_line(now, most, settings.batch_wait)
            if line is None:
                if at is not None:
                    self._timer.wake_at(at)
                targets.slots.leave(lane)
                return
            if free_at is not None:
                free_at = None
            elif self.suspension(now) is not None:
                self.look()
                return
            if rate and self._next_at > now:
                self._timer.wake_at(self._next_at)
                return
            if self.breaker.next(now) > 0:  # the probe is under way
                self._timer.wake_at(now + self.breaker.next(now))
                return
            if not targets.slots.ask(lane):
                return
            self.lines.remove(line)
            self.lines.append(line)
            items = line.take(most)
            if not items:
                continue
            self.breaker.allows(now)
            if rate:
                self._next_at = max(self._next_at, now - RATE_BURST) + 1 / rate
            number = lane.begin(now)
            targets.watch()
            task = targets.run(self._request(endpoint, line, items, number))
            self._requests[task] = line
            task.add_done_callback(partial(self._over, line, items, number))

    def _next_line(self, now: float, most: int, wait: float) -> tuple[PushSource | None, float | None]:
        """The next line that has a request's worth; None, and when one will have it."""
        soonest: float | None = None
        for line in self.lines:
            at = line.ripe_at(most, wait)
            if at is None:
                continue
            if at <= now:
                return line, None
            soonest = at if soonest is None else min(soonest, at)
        return None, soonest

    async def _request(self, endpoint: Endpoint, line: PushSource, items: list[PushDelivery], number: int) -> None:
        targets = self._targets
        begun = clock.monotonic()
        outcome = await targets.sender.send(
            endpoint, [line.outgoing(item) for item in items], int(targets.clock()), self._cuts
        )
        now = clock.monotonic()
        self._cuts = outcome.status is None or outcome.truncated
        next_steps = [self._rule(item, index, outcome) for index, item in enumerate(items)]
        self._learn(next_steps, outcome, number, begun, now)
        targets.counts.request(self.name, next_steps, now - begun)
        targets.counts.retried(outcome, sum(each.wait is not None for each in next_steps))
        gone = next((each.why for each in next_steps if each.outcome is AttemptOutcome.DISABLE), "")
        self._gone = gone or self._gone
        targets.slots.serve()
        self.look()
        if gone:
            await self._disable(gone, endpoint.settings.url)
        await line.finished(items, outcome, next_steps)
        self.look()

    def _over(self, line: PushSource, items: list[PushDelivery], number: int, task: asyncio.Task[None]) -> None:
        """A request has ended. One that was cut off, perhaps before it began, leaves its place to those who wait."""
        del self._requests[task]
        if not self.lane.has_begun(number):
            return  # its outcome was heard
        self.lane.end(number, None, clock.monotonic())
        self.breaker.untold()
        line.dropped(items)
        self._targets.slots.serve()
        self.look()

    def _rule(self, item: PushDelivery, index: int, outcome: SendOutcome) -> NextStep:
        targets = self._targets
        if index in outcome.undeliverable:
            return NextStep(AttemptOutcome.UNDELIVERABLE, outcome.undeliverable[index])
        if outcome.error is not None:
            return self.schedule.after_error(item.attempt, outcome.error, targets.chance)
        return self.schedule.after_status(
            item.attempt, outcome.status or 0, outcome.retry_after, targets.clock(), targets.chance, drop=outcome.drop
        )

    def _learn(
        self, next_steps: Sequence[NextStep], outcome: SendOutcome, number: int, begun: float, now: float
    ) -> None:
        """What the outcome says of the endpoint."""
        told = next((each for each in next_steps if each.outcome is not AttemptOutcome.UNDELIVERABLE), None)
        good = _GOOD[told.outcome] if told is not None else None
        self.lane.end(number, good, now)
        if good is None or told is None:
            self.breaker.untold()
            if told is not None and told.wait is not None:
                self._pause(now + told.wait, told.why)
        elif good:
            self.breaker.succeeded()
            self._proven, self._failing_since, self.last_error = True, None, ""
        else:
            if self._failing_since is None:
                self._failing_since = begun
            self.last_error = told.why[:500]
            was = self.breaker.state(now)
            self.breaker.failed(now, self._targets.chance)
            if self.breaker.state(now) is BreakerState.OPEN and was is not BreakerState.OPEN:
                self.lane.fail()
            if told.pause:
                self._pause(now + told.pause, told.why)

    def _pause(self, until: float, why: str) -> None:
        if until > self.paused_until:
            self.paused_until, self._paused_for = until, why

    async def _disable(self, why: str, url: str) -> None:
        """It wants nothing any more at this URL; it may have another one by now."""
        log("push.endpoint_disabled", logging.WARNING, endpoint=self.name, reason=why[:500])
        try:
            await self._targets.endpoints.disable(self.name, why, url)
        except GatewayError as error:  # the next request will have the same answer
            log("push.not_disabled", logging.WARNING, endpoint=self.name, reason=str(error))
            self._pause(clock.monotonic() + PAUSE_MAX, why)
        finally:  # also where its subscription goes elsewhere meanwhile: others have the same endpoint
            self._gone = ""
        await self.reload()

    def close(self) -> None:
        """It begins nothing more."""
        self._closed = True
        self._targets.slots.leave(self.lane)
        self._timer.cancel()


_GOOD: Final[dict[AttemptOutcome, bool | None]] = {
    AttemptOutcome.DELIVERED: True,
    AttemptOutcome.DROP: True,
    AttemptOutcome.RETRY: False,
    AttemptOutcome.PAUSE: False,
    AttemptOutcome.DISABLE: False,
    AttemptOutcome.UNDELIVERABLE: None,
    AttemptOutcome.NOT_TRIED: None,
}
"""What an outcome says of the endpoint; None: nothing."""


def _breaker_settings(settings: EndpointSettings) -> BreakerSettings:
    return BreakerSettings(
        failures=settings.breaker_failures,
        open_first=min(BreakerSettings().open_first, settings.breaker_open_max),
        open_max=settings.breaker_open_max,
    )
