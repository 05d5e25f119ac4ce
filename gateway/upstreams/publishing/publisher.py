"""Publishing: a window of messages per exchange, and what became of each of them.

Every exchange that is published to (:class:`~gateway.upstreams.publishing.lanes.PublishedExchange`) has one outlet, two
where confirms are transactions: while one waits for its commit the other fills. An outlet has a lane, the channel that
publishes, and a line of those that wait for room. A lane dies with the first message that its broker dislikes: most of
these are refused before the wire (:mod:`gateway.upstreams.checks`), and where one comes through, what was in its window
is sent again, one at a time, until it is found (:mod:`gateway.upstreams.publishing.isolation`); other exchanges never
notice. One timer per broker looks after time-outs and silence.

Three things make the broker unavailable for publishing: there is no link; it said ``connection.blocked``, or
stopped the channel, for longer than a moment; or, where it cannot say so (0-8), publishes are pending and
nothing has been answered for some seconds. What is in a window then stays there, and may still be confirmed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.amqp.message import Message
from gateway.amqp.operations import Publish
from gateway.config import BrokerSettings
from gateway.errors import (
    AccessRefused,
    BrokerUnavailable,
    EncodeError,
    GatewayError,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    RemoteError,
    StateError,
)
from gateway.link import Link, connection_error
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock
from gateway.runtime.tasks import Tasks, report
from gateway.session import Confirms
from gateway.upstreams.checks import check
from gateway.upstreams.publishing import isolation
from gateway.upstreams.publishing.isolation import Refusals
from gateway.upstreams.publishing.lanes import NEVER, Lane, Outlet, PublishedExchange, settle
from gateway.upstreams.publishing.receipts import Entry, PublishReceipt
from gateway.upstreams.publishing.waiting import WaitingRoom

CONFIRM_TIMEOUT: Final = 30.0
"""How long a publish waits for its outcome unless the caller says otherwise, in seconds."""
EXCHANGE_FRESH: Final = 5.0
"""Seconds for which an exchange is known to exist; then the gateway asks again, beside the publishes."""
EXCHANGE_STALE: Final = 15.0
"""Seconds after which publishes wait for that answer."""
SILENCE: Final = 5.0
"""A broker that leaves publishes without any outcome for this many seconds is taken to be blocked, where it has no
word for that; a channel that it stopped for so long counts as blocked too."""
_TICK: Final = 0.5


class Publisher:
    """All publishing to one broker. :meth:`attach` gives it a link, :meth:`detach` takes it away."""

    def __init__(
        self,
        name: str,
        settings: BrokerSettings,
        *,
        login: str,
        check_exchange: Callable[[str], Awaitable[object]],
        on_state: Callable[[], None],
        on_answered: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """``on_answered`` is called with how long an outcome took, for some of them."""
        self.name = name
        self.pending_octets = 0
        self.unavailable = "not connected yet"
        """Why nothing can be published; "" while it can."""
        self._login = login
        self._window = settings.publish_window
        self._window_octets = settings.publish_window_octets
        self._channels = settings.publish_channels
        self._message_max = settings.message_max
        self._body_max = settings.message_max
        """The same, or what this broker is known to take where that is less."""
        self._mark = settings.annotate
        """What is sent a second time gets a header that says so."""
        self._repeat = settings.publish_repeat
        """It is sent a second time."""
        self._check_exchange = check_exchange
        self._on_state = on_state
        self._on_answered = on_answered
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._exchanges: dict[str, PublishedExchange] = {}
        self._waiting = WaitingRoom(name, settings.publish_window_octets)
        self._pump_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._silent = False
        self._refusals = Refusals()
        self._alone = False
        """One publish at a time over the whole link: the last one was closed over some publish."""
        self._kept = False
        """What waits stays although there is no link: the last one was closed over some publish."""
        self._orphans = 0
        """Publishes without an outcome that the end of the last link has left."""
        self._tasks = Tasks("publisher", expected=(GatewayError,))

    # ------------------------------------------------------------------------------------ link comes, goes

    def attach(self, link: Link) -> None:
        """Publish on this link."""
        self._link = link
        self._body_max = self._message_max  # the broker may be another by now
        self._orphans = 0
        self._keep_lines(link)
        self._silent = False
        link.on_writable = self._schedule_pump
        link.on_blocked = self._state_changed
        self._state_changed()

    def detach(self, reason: str, final: bool = False) -> None:
        """The link is lost: waiting publishes fail as not sent. Unless some publish is to blame for it: others
        wait for the next link then, as long as they would for room. ``final``: there will be none."""
        link, self._link = self._link, None
        if link is not None:
            self._kept = link.ended is not None and isinstance(connection_error(link.ended), RemoteError)
            self._tasks.cancel()
        self._kept = self._kept and not final
        self._alone = self._alone and self._kept
        self._state_changed(reason)

    def _keep_lines(self, link: Link) -> None:
        """Exchanges start over on a new link; what waits for one stays."""
        count = _outlets(link)
        self._exchanges = {
            name: exchange
            for name, exchange in self._exchanges.items()
            if len(exchange.outlets) == count and any(outlet.line for outlet in exchange.outlets)
        }
        for outlet in list(self._waiting.outlets):
            if self._exchanges.get(outlet.exchange.name) is not outlet.exchange:
                self._waiting.fail(outlet, self._unavailable())
            outlet.exchange.doubt()

    @property
    def blocked(self) -> str:
        """Why the broker takes no publishes although the link is up; "" while it takes them."""
        link = self._link
        if link is None:
            return ""
        if link.blocked is not None:
            return f"the broker takes no publishes: {link.blocked}"
        if self._silent:
            return f"the broker has answered no publish for {SILENCE:g} s"
        return ""

    @property
    def pending(self) -> int:
        """Publishes without an outcome, those that wait for room included."""
        return self._waiting.count + sum(
            len(outlet.lane.window)
            for exchange in self._exchanges.values()
            for outlet in exchange.outlets
            if outlet.lane is not None
        )

    @property
    def oldest(self) -> float:
        """For how long, at least, the oldest publish that was written has had no outcome, in seconds; 0: there is
        none."""
        now = clock.monotonic()
        lanes = (outlet.lane for exchange in self._exchanges.values() for outlet in exchange.outlets)
        return max((lane.waits(now) for lane in lanes if lane is not None), default=0.0)

    def answered(self, seconds: float) -> None:
        """The broker's word on a publish came so long after it was written."""
        self._on_answered(seconds)

    def forget(self, exchange: str) -> None:
        """The exchange was declared or deleted: whether it exists must be asked before the next publish."""
        self._refusals.forget(exchange)
        entry = self._exchanges.get(exchange)
        if entry is not None:
            entry.doubt()

    async def drain(self, within: float) -> None:
        """Wait until every publish has its outcome, at most this many seconds."""
        futures = []
        for exchange in self._exchanges.values():
            for outlet in exchange.outlets:
                futures += [item[0] for item in outlet.line]
                if outlet.lane is not None:
                    futures += [entry[0] for entry in outlet.lane.window if entry is not None]
        if futures:
            await asyncio.wait(futures, timeout=within)

    def _state_changed(self, reason: str = "not connected") -> None:
        self.unavailable = self.blocked if self._link is not None else reason
        if self.unavailable:
            if self._link is not None or not self._kept:
                for outlet in list(self._waiting.outlets):
                    self._waiting.fail(outlet, self._unavailable())
        else:
            self._schedule_pump()
        self._on_state()

    def _unavailable(self) -> BrokerUnavailable:
        return BrokerUnavailable(f"broker {self.name}: {self.unavailable}")

    def flow_changed(self, active: bool) -> None:
        """The broker stopped or started a lane."""
        if active:
            self._schedule_pump()
        else:
            self._wake_by(clock.monotonic() + SILENCE)

    # --------------------------------------------------------------------------------------------- publish

    def publish(
        self,
        exchange: str,
        routing_key: str,
        message: Message,
        immediate: bool = False,
        timeout: float | None = None,
        order: str | None = None,
    ) -> asyncio.Future[PublishReceipt]:
        """See :meth:`gateway.upstreams.upstream.Upstream.publish_nowait`."""
        future: asyncio.Future[PublishReceipt] = self._loop.create_future()
        link = self._link
        if link is None or self.unavailable:
            future.set_exception(self._unavailable())
            return future
        now = clock.monotonic()
        entry = self._exchanges.get(exchange)
        try:
            # What came from a broker has been accepted by one: the session carries what this one must not see.
            if not message.relayed:
                check(message.properties, link.capabilities, self._login, self.name)
            if len(message.body) > self._body_max:
                raise self._too_large(len(message.body))
            if self._refusals and (refused := self._refusals.find(exchange, routing_key, now)) is not None:
                raise refused
            if entry is None:
                entry = self._enter(exchange, link)
        except GatewayError as error:
            future.set_exception(error)
            return future
        entry.used_at = now
        outlet = entry.outlets[0] if len(entry.outlets) == 1 else entry.outlet(order)
        deadline = now + (CONFIRM_TIMEOUT if timeout is None else timeout)
        if outlet.line or not self._has_room(outlet, len(message.body), now) or order in self._waiting.turned_away:
            if self._waiting.add(outlet, (future, deadline, routing_key, message, immediate, order)):
                self._prepare(outlet)
        else:
            self._send(outlet, link, future, deadline, routing_key, message, immediate)
        if deadline < self._timer_at:
            self._wake_by(min(deadline, now + _TICK))
        return future

    def _too_large(self, size: int) -> LimitExceeded:
        if size > self._message_max:
            return LimitExceeded(f"a body of {size} octets is over message_max = {self._message_max}", "message_max")
        return LimitExceeded(
            f"a body of {size} octets is over the broker's own limit of {self._body_max}", "max_message_size"
        )

    def _has_room(self, outlet: Outlet, size: int, now: float) -> bool:
        lane = outlet.lane
        if lane is None or not lane.ready or lane.sealed or lane.stopped_at is not None:
            return False
        if outlet.exchange.known_at < now - EXCHANGE_FRESH:
            self._refresh(outlet.exchange)
            if outlet.exchange.known_at < now - EXCHANGE_STALE:
                return False
        pending = self.pending_octets
        return (
            len(lane.window) < outlet.limit
            and (pending + size <= self._window_octets or not pending)
            and lane.link.writable
        )

    def _send(
        self,
        outlet: Outlet,
        link: Link,
        future: asyncio.Future[PublishReceipt],
        deadline: float,
        routing_key: str,
        message: Message,
        immediate: bool,
    ) -> None:
        lane = outlet.lane
        assert lane is not None
        publish = Publish(lane.number, outlet.exchange.name, routing_key, message, True, immediate)
        try:
            serial = link.send(publish)
        except StateError as error:
            future.set_exception(BrokerUnavailable(f"broker {self.name}: {error}"))
            return
        except GatewayError as error:
            future.set_exception(error)
            return
        except Exception as error:  # a fault of ours in the codec costs the message that finds it, and no other
            report("publisher", error, self.name)
            future.set_exception(EncodeError(f"the message cannot be written: {error!r:.200}"))
            return
        window = lane.window
        if not window:
            lane.base = serial
            lane.progress = clock.monotonic()
            if lane.transactional:
                link.after_flush(lane.seal)
        if lane.measured < 0:
            lane.measured, lane.measured_at = serial, clock.monotonic()
        size = len(message.body)
        window.append((future, size, deadline, publish))
        self.pending_octets += size

    # --------------------------------------------------------------------------------------- lanes, lines

    def _enter(self, name: str, link: Link) -> PublishedExchange:
        """Begin to publish to an exchange; the one that was idle longest makes room."""
        outlets = _outlets(link)
        # One number is left for a channel that is being closed. Where there is no limit, channel_max is 0.
        most = min(self._channels, max(outlets, (link.capabilities.channel_max or 0xFFFF) - 1))
        if (len(self._exchanges) + 1) * outlets > most and self._exchanges:
            idle = [exchange for exchange in self._exchanges.values() if not any(o.busy for o in exchange.outlets)]
            if not idle:
                raise BrokerUnavailable(f"broker {self.name}: all {most} publish_channels are in use")
            oldest = min(idle, key=lambda exchange: exchange.used_at)
            del self._exchanges[oldest.name]
            for outlet in oldest.outlets:
                lane, outlet.lane = outlet.lane, None
                if lane is not None:
                    lane.abandon()
        entry = self._exchanges[name] = PublishedExchange(self, name, outlets, self._window)
        return entry

    def _prepare(self, outlet: Outlet) -> None:
        """See to it that the outlet gets a lane and its exchange is known to exist."""
        if self._alone and not outlet.suspects:
            return  # its turn comes when the culprit is found
        now = clock.monotonic()
        opening = outlet.opening is not None and not outlet.opening.done()  # one cancelled at once never ran
        if not opening and (outlet.lane is None or outlet.exchange.known_at < now - EXCHANGE_STALE):
            outlet.opening = self._tasks.start(self._open(outlet))

    async def _open(self, outlet: Outlet) -> None:
        lane: Lane | None = None
        try:
            exchange = outlet.exchange
            if exchange.known_at < clock.monotonic() - EXCHANGE_FRESH:
                await asyncio.shield(self._refresh(exchange))
            link = self._link
            if outlet.lane is None and link is not None:
                lane = link.channel(Lane)
                lane.outlet = outlet
                outlet.lane = lane
                outlet.limit = min(isolation.FIRST_WINDOW, self._window)
                await lane.prepare()
        except GatewayError as error:
            if lane is not None and outlet.lane is lane:
                outlet.lane = None
                lane.abandon()
            if lane is None or lane.link.ended is None:  # else detach says what becomes of those who wait
                # Of the question only these are answers; anything else came of what others asked there.
                kinds = (NotFound, AccessRefused) if lane is None else RemoteError
                answered = isinstance(error, kinds)
                self._waiting.fail(outlet, error if answered else BrokerUnavailable(str(error)))
        finally:
            outlet.opening = None
        self._schedule_pump()

    def _refresh(self, exchange: PublishedExchange) -> asyncio.Task[None]:
        """Ask whether the exchange exists; all who need to know wait for one answer."""
        if exchange.checking is None or exchange.checking.done():
            exchange.checking = self._tasks.start(self._ask(exchange))
        return exchange.checking

    async def _ask(self, exchange: PublishedExchange) -> None:
        try:
            await self._check_exchange(exchange.name)
            exchange.known_at = clock.monotonic()
        except RemoteError as error:
            exchange.doubt()
            self._refusals.add(exchange.name, "", error, clock.monotonic() + isolation.REFUSED_FOR)
            raise
        finally:
            exchange.checking = None

    def freed(self, octets: int) -> None:
        """A lane's window moved."""
        self.pending_octets -= octets
        if self._silent:
            self._silent = False
            self._state_changed()
        if self._waiting or self._alone:  # the last suspect may have its outcome now
            self._schedule_pump()

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Send what waits and has room now."""
        self._pump_scheduled = False
        link = self._link
        if link is None or link.ended is not None or self.unavailable:
            return
        now = clock.monotonic()
        for outlet in list(self._waiting.outlets):
            if self._alone and (self._in_flight() or not outlet.suspects):
                continue
            line = outlet.line
            while line:
                future, deadline, routing_key, message, immediate, _ = line[0]
                size = len(message.body)
                if self._refusals and (refused := self._refusals.find(outlet.exchange.name, routing_key, now)):
                    settle(future, refused)
                if not future.done():
                    if not self._has_room(outlet, size, now):
                        break
                    self._send(outlet, link, future, deadline, routing_key, message, immediate)
                self._waiting.served(outlet)
                if outlet.suspects:
                    outlet.suspects -= 1
                    if self._alone and not outlet.suspects:
                        outlet.limit = 0  # nothing of its own beside the suspects of the others
            if line:
                self._prepare(outlet)
        if self._alone and not self._in_flight() and not any(outlet.suspects for outlet in self._waiting.outlets):
            self._open_windows()

    # ------------------------------------------------------------------------------------------- isolation

    def _in_flight(self) -> bool:
        """Whether any publish is without an outcome on this link."""
        return any(
            outlet.lane is not None and outlet.lane.window
            for exchange in self._exchanges.values()
            for outlet in exchange.outlets
        )

    def named(self, outlet: Outlet, publish: Publish, error: RemoteError) -> None:
        """The broker closed the channel, or the connection, over this publish."""
        log(
            "broker.publish_refused", logging.WARNING,
            broker=self.name, exchange=publish.exchange, routing_key=publish.routing_key, reason=str(error),
        )  # fmt: skip
        link = self._link
        seconds = isolation.REFUSED_FOR if link is None or link.ended is None else isolation.REFUSED_FOR_LONG
        self._refusals.add(publish.exchange, publish.routing_key, error, clock.monotonic() + seconds)
        limit = isolation.size_limit(error)
        if limit is not None and limit < self._body_max:
            self._body_max = limit
        outlet.suspects = 0
        if self._alone:
            self._open_windows()

    def _open_windows(self) -> None:
        """There is nobody to be found any more over the whole link."""
        self._alone = False
        for exchange in self._exchanges.values():
            for outlet in exchange.outlets:
                outlet.suspects = 0
                outlet.limit = max(outlet.limit, isolation.FIRST_WINDOW)
        self._schedule_pump()

    def lane_lost(self, lane: Lane, pending: list[Entry], error: GatewayError) -> None:
        """What becomes of the publishes that a lane leaves without an outcome."""
        outlet = lane.outlet
        over = lane.link.ended is not None
        cause = error if isinstance(error, RemoteError) else None
        if cause is not None and len(pending) == 1 and not (over and (self._orphans or self._in_flight())):
            settle(pending[0][0], isolation.error_of(cause))
            self.named(outlet, pending[0][3], cause)
        elif cause is not None and self._repeat and pending:
            self._suspect(outlet, pending, cause, lane.named)
            self._alone = self._alone or over
        else:
            for entry in pending:
                settle(entry[0], OutcomeUnknown(f"the channel died before the message had an outcome: {error}"))
        if over:
            self._orphans += len(pending)
        self.freed(sum(entry[1] for entry in pending))

    def _suspect(self, outlet: Outlet, pending: list[Entry], error: RemoteError, named: int | None) -> None:
        """One of these is what the broker dislikes, unless it was ``named`` already, behind so many of them: send them
        again. What may have been stored goes one at a time, so that it is stored twice and not once more for each
        channel that dies; what is behind the culprit was not looked at."""
        items, suspects = isolation.repeats(pending, error, named, self._mark)
        log(
            "broker.publishes_suspect", logging.WARNING,
            broker=self.name, exchange=outlet.exchange.name, count=len(items), reason=str(error),
        )  # fmt: skip
        self._waiting.put_first(outlet, items)
        outlet.suspects = suspects + (outlet.suspects if named is None else 0)
        self._schedule_pump()

    # ------------------------------------------------------------------------------------------------ time

    def _wake_by(self, at: float) -> None:
        if at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        """Time out what is late, and notice silence."""
        self._timer = None
        self._timer_at = NEVER
        now = clock.monotonic()
        earliest = NEVER
        stalled = False
        for exchange in self._exchanges.values():
            for outlet in exchange.outlets:
                earliest = min(earliest, self._waiting.late(outlet, now))
                lane = outlet.lane
                if lane is None:
                    continue
                if lane.window:
                    earliest = min(earliest, lane.time_out(now), now + _TICK)
                    if outlet.limit < self._window and now - lane.progress >= isolation.PATIENCE:
                        self._give_up(outlet)
                if lane.stopped_at is not None and now - lane.stopped_at >= SILENCE and outlet.line:
                    self._waiting.fail(
                        outlet, BrokerUnavailable(f"broker {self.name}: it stopped the channel for {exchange.name!r}")
                    )
                stalled = stalled or bool(lane.window and now - lane.progress >= SILENCE)
        if self._alone:
            self._schedule_pump()  # the last suspect may have been given up
        link = self._link
        if link is not None and stalled and not link.capabilities.blocked_notification and not self._silent:
            self._silent = True
            self._state_changed()
        if earliest < NEVER:
            self._wake_by(min(max(earliest, now + 0.001), now + _TICK))

    def _give_up(self, outlet: Outlet) -> None:
        """No outcome for some time, and others wait behind it: it is no culprit, or not one that the broker names."""
        if self._alone:
            self._open_windows()
        outlet.limit = min(max(2 * outlet.limit, isolation.FIRST_WINDOW), self._window)
        self._schedule_pump()


def _outlets(link: Link) -> int:
    """How many lanes an exchange has: while one waits for its commit the other fills."""
    return 2 if link.capabilities.confirms is Confirms.TRANSACTION else 1
