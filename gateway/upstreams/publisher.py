"""Publishing: a window of messages per exchange, and what became of each of them.

Every exchange that is published to (:class:`~gateway.upstreams.lanes.Exchange`) has one outlet, two where confirms
are transactions: while one waits for its commit the other fills. An outlet has a lane, the channel that publishes,
and a line of those that wait for room. A lane dies with the first message that its broker dislikes; whatever was in
its window is then unknown, the outlet opens another one for the next, and other exchanges never notice. One timer
per broker looks after time-outs and silence.

Three things make the broker unavailable for publishing: there is no link; it said ``connection.blocked``, or
stopped the channel, for longer than a moment; or, where it cannot say so (0-8), publishes are pending and
nothing has been answered for some seconds. What is in a window then stays there, and may still be confirmed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.errors import BrokerUnavailable, EncodeError, GatewayError, LimitExceeded, RemoteError, StateError
from gateway.link import Link
from gateway.message import Message
from gateway.operations import Publish
from gateway.session import Confirms
from gateway.upstreams.lanes import NEVER, Exchange, Lane, Outlet, Waiting, settle
from gateway.upstreams.receipts import PublishReceipt

CONFIRM_TIMEOUT: Final = 30.0
"""How long a publish waits for its outcome unless the caller says otherwise, in seconds."""
EXCHANGE_FRESH: Final = 5.0
"""Seconds for which an exchange is known to exist; then it is asked for again, behind the publishes' back."""
EXCHANGE_STALE: Final = 15.0
"""Seconds after which publishes wait for that answer."""
SILENCE: Final = 5.0
"""A broker that leaves publishes without any outcome for so many seconds is taken to be blocked, where it has no
word for that; a channel that it stopped for so long counts as blocked too."""
WAITING_MAX: Final = 20_000
"""Most publishes that wait for room, over all exchanges of a broker."""
WAITING_WINDOWS: Final = 4
"""Most octets that wait for room, in windows (``publish_window_octets``)."""
EXPIRATION_MAX: Final = (1 << 32) - 1
"""Longest ``expiration`` of classic brokers, in milliseconds: RabbitMQ closes the channel over more."""
_TICK: Final = 0.5


COPY_HEADERS: Final = ("CC", "BCC")
"""Headers by which RabbitMQ routes further copies; anything but an array of strings there closes the channel."""


class Publisher:
    """All publishing to one broker. :meth:`attach` gives it a link, :meth:`detach` takes it away."""

    def __init__(
        self,
        name: str,
        *,
        login: str,
        window: int,
        window_octets: int,
        channels: int,
        message_max: int,
        check_exchange: Callable[[str], Awaitable[object]],
        on_state: Callable[[], None],
    ) -> None:
        self.name = name
        self.pending_octets = 0
        self.unavailable = "not connected yet"
        """Why nothing can be published; "" while it can."""
        self._login = login
        self._window = window
        self._window_octets = window_octets
        self._channels = channels
        self._message_max = message_max
        self._check_exchange = check_exchange
        self._on_state = on_state
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._exchanges: dict[str, Exchange] = {}
        self._waiting: dict[Outlet, None] = {}  # outlets with a line, in the order in which they began to wait
        self._waiting_count = 0
        self._waiting_octets = 0
        self._pump_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._silent = False
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------------------------ link comes, goes

    def attach(self, link: Link) -> None:
        """Publish on this link."""
        self._link = link
        self._exchanges.clear()  # each was emptied when its link went; the broker may be another by now
        self._silent = False
        link.on_writable = self._schedule_pump
        link.on_blocked = self._state_changed
        self._state_changed()

    def detach(self, reason: str) -> None:
        """The link is lost: who waits is told that nothing was sent."""
        self._link = None
        for task in self._tasks:
            task.cancel()
        self._state_changed(reason)

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
        return self._waiting_count + sum(
            len(outlet.lane.window)
            for exchange in self._exchanges.values()
            for outlet in exchange.outlets
            if outlet.lane is not None
        )

    def forget(self, exchange: str) -> None:
        """The exchange was deleted: whether it exists must be asked before the next publish."""
        entry = self._exchanges.get(exchange)
        if entry is not None:
            entry.doubt()

    async def drain(self, within: float) -> None:
        """Wait until every publish has its outcome, at most so many seconds."""
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
            for outlet in list(self._waiting):
                self._fail_line(outlet, self._unavailable())
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
            self._wake_by(self._loop.time() + SILENCE)

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
        now = self._loop.time()
        entry = self._exchanges.get(exchange)
        try:
            # What came from a broker (raw) has been accepted by one: the session carries what this one must not see.
            if message.raw is None:
                properties = message.properties
                if properties.expiration or properties.user_id or properties.headers:
                    self._check(message, link)
            if len(message.body) > self._message_max:
                raise LimitExceeded(
                    f"a body of {len(message.body)} octets is over message_max = {self._message_max}", "message_max"
                )
            if entry is None:
                entry = self._enter(exchange, link)
        except GatewayError as error:
            future.set_exception(error)
            return future
        entry.used_at = now
        outlet = entry.outlets[0] if len(entry.outlets) == 1 else entry.outlet(order)
        deadline = now + (CONFIRM_TIMEOUT if timeout is None else timeout)
        if outlet.line or not self._has_room(outlet, len(message.body), now):
            self._wait(outlet, (future, deadline, routing_key, message, immediate))
        else:
            self._send(outlet, link, future, deadline, routing_key, message, immediate)
        if deadline < self._timer_at:
            self._wake_by(min(deadline, now + _TICK))
        return future

    def _check(self, message: Message, link: Link) -> None:
        """Refuse before the wire what makes a broker close the channel."""
        properties, capabilities = message.properties, link.capabilities
        expiration = properties.expiration
        if expiration is not None:
            if not (expiration.isascii() and expiration.isdigit()):
                raise EncodeError(f"expiration: {expiration!r:.80} is no number of milliseconds")
            if capabilities.confirms is not Confirms.COMPLETION and int(expiration) > EXPIRATION_MAX:
                raise EncodeError(f"expiration: {expiration:.80} is over {EXPIRATION_MAX} milliseconds")
        user = properties.user_id
        if user is not None and user not in (self._login, self._login.encode()) and capabilities.checks_user_id:
            raise EncodeError(f"user_id: {user!r} is not the login of broker {self.name}")
        if properties.headers and capabilities.routes_copies:
            for name in COPY_HEADERS:
                copies = properties.headers.get(name, [])
                if not isinstance(copies, list) or not all(isinstance(key, str) for key in copies):
                    raise EncodeError(f"headers.{name}: {copies!r:.80} is no array of routing keys")

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
            len(lane.window) < self._window
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
        try:
            serial = link.send(Publish(lane.number, outlet.exchange.name, routing_key, message, True, immediate))
        except StateError as error:
            future.set_exception(BrokerUnavailable(f"broker {self.name}: {error}"))
            return
        except GatewayError as error:
            future.set_exception(error)
            return
        except Exception as error:  # a fault of ours in the codec costs the message that finds it, and no other
            self._loop.call_exception_handler({"message": f"publisher of {self.name}", "exception": error})
            future.set_exception(EncodeError(f"the message cannot be written: {error!r:.200}"))
            return
        window = lane.window
        if not window:
            lane.base = serial
            lane.progress = link.now
            if lane.transactional:
                link.after_flush(lane.seal)
        size = len(message.body)
        window.append((future, size, deadline))
        self.pending_octets += size

    # --------------------------------------------------------------------------------------- lanes, lines

    def _enter(self, name: str, link: Link) -> Exchange:
        """Begin to publish to an exchange; the one that was idle longest makes room."""
        outlets = 2 if link.capabilities.confirms is Confirms.TRANSACTION else 1
        if (len(self._exchanges) + 1) * outlets > self._channels and self._exchanges:
            idle = [exchange for exchange in self._exchanges.values() if not any(o.busy for o in exchange.outlets)]
            if not idle:
                raise BrokerUnavailable(f"broker {self.name}: all {self._channels} publish_channels are in use")
            oldest = min(idle, key=lambda exchange: exchange.used_at)
            del self._exchanges[oldest.name]
            for outlet in oldest.outlets:
                lane, outlet.lane = outlet.lane, None
                if lane is not None:
                    lane.abandon()
        entry = self._exchanges[name] = Exchange(self, name, outlets)
        return entry

    def _wait(self, outlet: Outlet, item: Waiting) -> None:
        size = len(item[3].body)
        if self._waiting_count >= WAITING_MAX or (
            self._waiting_octets and self._waiting_octets + size > WAITING_WINDOWS * self._window_octets
        ):
            item[0].set_exception(BrokerUnavailable(f"broker {self.name}: too many publishes wait for room"))
            return
        outlet.line.append(item)
        self._waiting[outlet] = None
        self._waiting_count += 1
        self._waiting_octets += size
        self._prepare(outlet)

    def _prepare(self, outlet: Outlet) -> None:
        """See to it that the outlet gets a lane and its exchange is known to exist."""
        now = self._loop.time()
        if outlet.opening is None and (outlet.lane is None or outlet.exchange.known_at < now - EXCHANGE_STALE):
            outlet.opening = self._task(self._open(outlet))

    async def _open(self, outlet: Outlet) -> None:
        lane: Lane | None = None
        try:
            exchange = outlet.exchange
            if exchange.known_at < self._loop.time() - EXCHANGE_FRESH:
                await asyncio.shield(self._refresh(exchange))
            link = self._link
            if outlet.lane is None and link is not None:
                lane = link.channel(Lane)
                lane.outlet = outlet
                outlet.lane = lane
                await lane.prepare()
        except GatewayError as error:
            if lane is not None and outlet.lane is lane:
                outlet.lane = None
                lane.abandon()
            self._fail_line(outlet, error if isinstance(error, RemoteError) else BrokerUnavailable(str(error)))
        finally:
            outlet.opening = None
        self._schedule_pump()

    def _refresh(self, exchange: Exchange) -> asyncio.Task[None]:
        """Ask whether the exchange exists; all who need to know wait for one answer."""
        if exchange.checking is None:
            exchange.checking = self._task(self._ask(exchange))
        return exchange.checking

    async def _ask(self, exchange: Exchange) -> None:
        try:
            await self._check_exchange(exchange.name)
            exchange.known_at = self._loop.time()
        except RemoteError:
            exchange.doubt()
            raise
        finally:
            exchange.checking = None

    def _task(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, GatewayError):
            self._loop.call_exception_handler({"message": f"publisher of {self.name}", "exception": error})

    def _fail_line(self, outlet: Outlet, error: GatewayError) -> None:
        line, outlet.line = outlet.line, deque()
        self._waiting.pop(outlet, None)
        for future, _, _, message, _ in line:
            self._waiting_count -= 1
            self._waiting_octets -= len(message.body)
            settle(future, error)

    def freed(self, octets: int) -> None:
        """A lane's window moved."""
        self.pending_octets -= octets
        if self._silent:
            self._silent = False
            self._state_changed()
        if self._waiting and not self._pump_scheduled:
            self._schedule_pump()

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Send what waits and has room now."""
        self._pump_scheduled = False
        link = self._link
        if link is None or self.unavailable:
            return
        now = self._loop.time()
        for outlet in list(self._waiting):
            line = outlet.line
            while line:
                future, deadline, routing_key, message, immediate = line[0]
                size = len(message.body)
                if not future.done():
                    if not self._has_room(outlet, size, now):
                        break
                    self._send(outlet, link, future, deadline, routing_key, message, immediate)
                line.popleft()
                self._waiting_count -= 1
                self._waiting_octets -= size
            if line:
                self._prepare(outlet)
            else:
                del self._waiting[outlet]

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
        now = self._loop.time()
        earliest = NEVER
        stalled = False
        for exchange in self._exchanges.values():
            for outlet in exchange.outlets:
                earliest = min(earliest, self._late_in_line(outlet, now))
                lane = outlet.lane
                if lane is None:
                    continue
                if lane.window:
                    earliest = min(earliest, lane.time_out(now), now + _TICK)
                if lane.stopped_at is not None and now - lane.stopped_at >= SILENCE and outlet.line:
                    self._fail_line(
                        outlet, BrokerUnavailable(f"broker {self.name}: it stopped the channel for {exchange.name!r}")
                    )
                stalled = stalled or bool(lane.window and now - lane.progress >= SILENCE)
        link = self._link
        if link is None:
            return
        if stalled and not link.capabilities.blocked_notification and not self._silent:
            self._silent = True
            self._state_changed()
        if earliest < NEVER:
            self._wake_by(min(max(earliest, now + 0.001), now + _TICK))

    def _late_in_line(self, outlet: Outlet, now: float) -> float:
        """Fail those whose time is up before they were sent; the earliest deadline of the rest."""
        earliest = NEVER
        for future, deadline, _, _, _ in outlet.line:
            if future.done():
                continue
            if deadline <= now:
                future.set_exception(BrokerUnavailable(f"broker {self.name}: no room to publish in time"))
            elif deadline < earliest:
                earliest = deadline
        if outlet.line and earliest == NEVER:
            self._fail_line(outlet, self._unavailable())  # all of them are done: only the line is emptied
        return earliest
