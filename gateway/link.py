"""A link: one session, one stream and the clock.

The session knows the protocol and no time, the stream moves octets, and the link runs the two: what comes is
given to the session and the operations it returns are handed to the :class:`Channel` they are for; what is
sent is written once per turn of the loop; one timer serves heartbeats and deadlines. It opens a connection
once, and when the connection ends the link has ended: reconnecting is for those above.

Everything that happens per message is a plain call: no task, no dictionary and no copy is made for it.

A channel that is lost fails what was asked on it: with the broker's reply code where the broker closed it, with
:class:`~gateway.errors.BrokerUnavailable` where the connection went. Subclasses of :class:`Channel` decide what
becomes of their publishes and deliveries.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from gateway.amqp.operations import (
    Alert,
    Blocked,
    ChannelClosed,
    Close,
    CloseChannel,
    Closed,
    CloseReason,
    Detached,
    Failed,
    OpenChannel,
    Opened,
    Operation,
    Outcome,
    Request,
    Unblocked,
)
from gateway.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    GatewayError,
    LimitExceeded,
    LoginCut,
    ProtocolMismatch,
    StateError,
    remote_error,
)
from gateway.runtime.clock import clock
from gateway.session import Capabilities, Session
from gateway.transports.stream import Stream, StreamUser

Dial: TypeAlias = Callable[[StreamUser, float], Awaitable[Stream]]
"""Open a stream for a user within this many seconds."""

CLOSE_TIMEOUT: Final = 2.0
"""How long a broker may take to answer our close before the stream is cut, in seconds."""

RESTING: Final = 64
"""How many other channels of a connection end before the number of one that has ended is used again."""

_HANDSHAKE_ERRORS: Mapping[CloseReason, type[BrokerUnavailable]] = {
    CloseReason.AUTHENTICATION: AuthenticationFailed,
    CloseReason.LOGIN_CUT: LoginCut,
    CloseReason.PROTOCOL_HEADER: ProtocolMismatch,
    CloseReason.SYNTAX: ProtocolMismatch,
    CloseReason.TIMEOUT: ProtocolMismatch,
}
"""What a connection that ended before it was open means to those who wanted it; else BrokerUnavailable."""

_NEVER: Final = float("inf")
_C = TypeVar("_C", bound="Channel")


class Channel:
    """One channel of a link: requests and their outcomes, matched by serial.

    Made by :meth:`Link.channel`. Subclasses add what they receive besides outcomes in :meth:`handle`, and what
    the end of the channel means in :meth:`lost`.
    """

    __slots__ = ("_closing", "_requests", "closed", "link", "number")

    def __init__(self, link: Link, number: int) -> None:
        self.link = link
        self.number = number
        self.closed: GatewayError | None = None
        """Why the channel is over; None while it is not."""
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._closing = False

    async def open(self) -> None:
        """Open it. Raises what :meth:`request` raises."""
        await self.request(OpenChannel(self.number))

    def send(self, operation: Operation) -> int:
        """Queue an operation, return its serial. Raises ``LocalError``; nothing was queued then."""
        if self.closed is not None:
            raise StateError(f"the channel is closed: {self.closed}")
        return self.link.send(operation)

    def request(self, operation: Request) -> asyncio.Future[Any]:
        """Queue an operation; its outcome will be the result of the future.

        The future fails with a :class:`~gateway.errors.RemoteError` where the broker refused it, with
        :class:`~gateway.errors.BrokerUnavailable` where the link was lost.
        """
        future: asyncio.Future[Any] = self.link.loop.create_future()
        if self.closed is not None:
            future.set_exception(self.closed)
            future.exception()  # as in end
            return future
        self._requests[self.link.send(operation)] = future
        return future

    async def close(self) -> bool:
        """Close the channel and wait until it is. A channel that is over is left alone.

        True: the broker has closed it because it was asked to, so it has all that was sent before. False: the channel
        ended in another way, and nobody knows what of the last has arrived."""
        if self.closed is not None:
            return False
        self.abandon()
        waiter: asyncio.Future[Any] = self.link.loop.create_future()
        self._requests[-1] = waiter
        # Not awaited itself, which would raise why the channel is over: then that error held this frame, the frame the
        # channel, and the channel the error, and each channel that was closed waited for the garbage collector.
        await asyncio.wait([waiter])
        return isinstance(self.closed, StateError)

    def abandon(self) -> None:
        """Begin to close the channel, without waiting for the end of it."""
        if self.usable:
            self._closing = True
            self.link.send(CloseChannel(self.number))

    @property
    def usable(self) -> bool:
        """It is not over, nor about to be."""
        return self.closed is None and not self._closing and not self.link.closing

    # ------------------------------------------------------------------------------- called by the link

    def receive(self, operation: Operation) -> None:
        """An operation for this channel."""
        if isinstance(operation, Failed):
            self._fail(operation)
        elif isinstance(operation, Outcome):
            for serial in range(operation.first, operation.last + 1):
                future = self._requests.pop(serial, None)
                if future is not None and not future.done():
                    future.set_result(operation)
        elif isinstance(operation, Alert):
            self.link.alerted(operation)
        elif isinstance(operation, ChannelClosed):
            self.link.forget(self)
            self.end(
                remote_error(operation.code, operation.text)
                if operation.by_peer
                else StateError("the channel was closed")
            )
        else:
            self.handle(operation)
            if isinstance(operation, Detached) and not self.link.closing:  # else Closed follows, and ends it
                self.link.forget(self)
                self.end(StateError("the session was detached"))

    def _fail(self, operation: Failed) -> None:
        for serial in range(operation.first, operation.last + 1):
            future = self._requests.pop(serial, None)
            if future is not None and not future.done():
                future.set_exception(remote_error(operation.code, operation.text))
                future.exception()  # as in end

    def end(self, error: GatewayError) -> None:
        """The channel is over because of ``error``."""
        if self.closed is not None:
            return
        self.closed = error
        requests, self._requests = self._requests, {}
        for future in requests.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever asked may have left; that is no reason for a warning
        self.lost(error)

    def handle(self, operation: Operation) -> None:
        """Anything but an outcome: deliveries, flow, cancellations. The base class has no use for it."""

    def lost(self, error: GatewayError) -> None:
        """The channel is over; called once."""


class Link:
    """One connection in the client role, from :meth:`open` to its end."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.loop = asyncio.get_running_loop()
        self.ended: Closed | None = None
        """How the connection ended; None while it lasts."""
        self.closing = False
        """We are closing it, or it has just ended: nothing that is sent from now on arrives."""
        self.blocked: str | None = None
        """The broker's reason for taking no publishes; None while it takes them."""
        self.on_closed: Callable[[Closed], None] | None = None
        """Called once when an open link has ended, after its channels were."""
        self.on_blocked: Callable[[], None] | None = None
        """Called when ``blocked`` has changed."""
        self.on_alert: Callable[[Alert], None] | None = None
        """Called when the broker has warned of something, on any channel."""
        self.on_writable: Callable[[], None] | None = None
        """Called when the stream takes octets again."""
        self.stream: Stream | None = None
        self._channels: dict[int, Channel] = {}
        self._next_number = 1
        self._free: deque[int] = deque()
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._opened: asyncio.Future[None] = self.loop.create_future()
        self._over: asyncio.Future[None] = self.loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER
        self.now = clock.monotonic()
        """When octets came last, on the loop's clock."""
        self._before_flush: list[Callable[[], None]] = []
        self._after_flush: list[Callable[[], None]] = []

    # ------------------------------------------------------------------------------------------- open

    async def open(self, dial: Dial, within: float) -> None:
        """Open a stream by ``dial`` and the connection on it, ``within`` this many seconds altogether. Where it fails
        after the stream was open, ``ended`` says more than the error.

        Raises:
            AuthenticationFailed: credentials or virtual host were refused.
            LoginCut: the broker hung up where it owed an answer to them.
            ProtocolMismatch: the far end answered with another protocol header (``ended.supported`` names the
                version it asked for, if we speak it), with garbage, or not at all.
            BrokerUnavailable: nobody listens, or the broker closed the connection.
        """
        deadline = clock.monotonic() + within
        self.stream = stream = await dial(self, within)
        if self.ended is not None:  # by what came with the end of the TLS handshake
            stream.close()
        try:
            async with asyncio.timeout_at(deadline):
                self._set_timer()
                stream.wake()
                await asyncio.shield(self._opened)
        except TimeoutError:
            self._finish(Closed(0, CloseReason.TIMEOUT, 0, f"no open connection within {within:g} s"))
            stream.abort()
            raise handshake_error(self) from None
        except asyncio.CancelledError:
            self._finish(Closed(0, CloseReason.LOCAL, 0, "given up during the handshake"))
            stream.abort()
            raise

    @property
    def capabilities(self) -> Capabilities:
        """What the broker can do."""
        return self.session.capabilities

    @property
    def writable(self) -> bool:
        """False while the broker does not read what was written already: add nothing that can wait."""
        return self.stream is not None and self.stream.writable

    # ------------------------------------------------------------------------------------------- use

    @property
    def channels(self) -> int:
        """How many are open, or about to be."""
        return len(self._channels)

    def channel(self, kind: type[_C]) -> _C:
        """A new channel of a kind, not yet open.

        Raises:
            LimitExceeded: as many channels are open as the broker allows (``channel_max``).
            BrokerUnavailable: the link has ended.
        """
        if self.ended is not None:
            raise BrokerUnavailable(f"the connection is lost: {self.ended.text}")
        most = self.capabilities.channel_max or 0xFFFF
        if len(self._channels) >= most:
            raise LimitExceeded(f"all {most} channels of the connection are in use", "channel_max")
        # A number rests for a while. Where both ends close a channel at once, the answer to our close is still to
        # come, and on a new channel of that number it would be a violation.
        if len(self._free) < RESTING and self._next_number <= most:
            number = self._next_number
            self._next_number += 1
        else:
            number = self._free.popleft()
        channel = kind(self, number)
        self._channels[number] = channel
        return channel

    def forget(self, channel: Channel) -> None:
        """The channel is over; its number may be used again."""
        if self._channels.pop(channel.number, None) is not None:
            self._free.append(channel.number)

    def send(self, operation: Operation) -> int:
        """Queue an operation for the write at the end of this turn. Raises ``LocalError``."""
        serial = self.session.send(operation, clock.monotonic())
        self.stream.wake()  # type: ignore[union-attr]  # operations are sent on an open link, and open sets it
        return serial

    def request(self, operation: Request) -> asyncio.Future[Any]:
        """Queue an operation for the connection itself; its outcome will be the result of the future, which fails as
        those of a channel that is lost do."""
        future: asyncio.Future[Any] = self.loop.create_future()
        if self.ended is not None:
            future.set_exception(connection_error(self.ended))
            future.exception()  # as at the end of a channel
            return future
        try:
            self._requests[self.send(operation)] = future
        except GatewayError as error:
            future.set_exception(error)
        return future

    def alerted(self, alert: Alert) -> None:
        """The broker has warned of something."""
        if self.on_alert is not None:
            self.on_alert(alert)

    def before_flush(self, call: Callable[[], None]) -> None:
        """Call once, before the next write is put together: the place to send what was held back to be sent
        as one."""
        self._before_flush.append(call)
        self.stream.wake()  # type: ignore[union-attr]  # as in send

    def after_flush(self, call: Callable[[], None]) -> None:
        """Call once, after the next write was put together: the burst has ended for the session."""
        self._after_flush.append(call)

    async def close(self, within: float = CLOSE_TIMEOUT) -> None:
        """Close the connection; after ``within`` seconds without an answer, or when this is given up, the stream is
        cut."""
        if self.ended is None and self.stream is not None:
            if not self.closing:
                self._send_held()
                self.closing = True
                self.send(Close(0))
                self._set_timer()
            try:
                await asyncio.wait([self._over], timeout=within)
            finally:
                if self.ended is None:
                    self.stream.abort()
                    self._finish(Closed(0, CloseReason.LOCAL, 0, "closed, without an answer"))
        if self.stream is not None:  # _finish has it cut in the end
            await asyncio.wait([self.stream.gone], timeout=CLOSE_TIMEOUT)

    # ---------------------------------------------------------------------- called by stream and timer

    def data_received(self, data: bytes) -> None:
        """Octets came (:class:`~gateway.transports.stream.StreamUser`)."""
        self.now = now = clock.monotonic()
        try:
            operations = self.session.receive_data(data, now)
        except Exception as error:  # nobody knows any more what came and what did not
            self._give_up(error)
            return
        self._dispatch(operations)
        at = self.session.next_timeout()
        if at is not None and at < self._timer_at and self.ended is None:
            self._set_timer()
        if self.stream is not None:  # over TLS a far end may speak before dial has returned; open wakes it then
            self.stream.wake()

    def stream_lost(self, error: Exception | None) -> None:
        """The stream is over."""
        try:
            self._dispatch(self.session.receive_eof(clock.monotonic()))
        except Exception as fault:  # those who wait must hear of the end all the same
            self._fault("in the session", fault)
        if self.ended is None:
            self._finish(Closed(0, CloseReason.EOF, 0, f"the stream ended: {error}" if error else "the stream ended"))

    def data_to_send(self) -> list[bytes]:
        """What is to be written now."""
        if self._before_flush and self.ended is None:
            self._send_held()
        try:
            buffers = self.session.data_to_send()
        except Exception as error:  # it would fail again, and nobody would be told that nothing is written any more
            self._give_up(error)
            return []
        if self._after_flush:
            calls, self._after_flush = self._after_flush, []
            self._call(calls, "after a flush")
        return buffers

    def _send_held(self) -> None:
        """Have what was held back sent."""
        calls, self._before_flush = self._before_flush, []
        self._call(calls, "before a flush")

    def _call(self, calls: list[Callable[[], None]], where: str) -> None:
        """One that fails must not keep the others from their turn, nor what is sent from the wire."""
        for call in calls:
            try:
                call()
            except Exception as error:
                self._fault(where, error)

    def _fault(self, where: str, error: Exception) -> None:
        """An internal error in a callback."""
        self.loop.call_exception_handler({"message": f"link: a callback failed {where}", "exception": error})

    def _give_up(self, error: Exception) -> None:
        """An internal error in the session: the connection cannot go on."""
        self._fault("in the session", error)
        if self.stream is not None:  # else dial has not returned yet, and open sees how it ended
            self.stream.abort()
        else:
            self._finish(Closed(0, CloseReason.LOCAL, 0, f"a fault: {error}"))

    def writable_again(self) -> None:
        """The stream takes octets again."""
        if self.on_writable is not None:
            self.on_writable()

    def _dispatch(self, operations: list[Operation]) -> None:
        if self.session.closed:
            self.closing = True  # the end is among them, or before them: what comes ahead of it cannot be answered
        channels = self._channels
        for operation in operations:
            channel = channels.get(operation.channel)
            try:
                if channel is not None:
                    channel.receive(operation)
                elif operation.channel == 0:
                    self._receive(operation)
            except Exception as error:
                self._missed(channel, operation, error)

    def _missed(self, channel: Channel | None, operation: Operation, error: Exception) -> None:
        """The receiver of an operation has failed, so a delivery may never be settled and a request never
        answered: the channel goes. The others, whose operations came with it, hear nothing of that."""
        self._fault(f"over {type(operation).__name__}", error)
        try:
            if channel is not None:
                channel.abandon()
        except GatewayError:
            pass  # the connection is about to end, and all channels with it

    def _receive(self, operation: Operation) -> None:
        """An operation of the connection itself."""
        if isinstance(operation, Closed):
            self._finish(operation)
        elif isinstance(operation, Opened):
            if not self._opened.done():
                self._opened.set_result(None)
        elif isinstance(operation, Outcome):
            future = self._requests.pop(operation.first, None)
            if future is not None and not future.done():
                future.set_result(operation)
        elif isinstance(operation, Blocked):
            self.blocked = operation.reason or "the broker gives no reason"
            if self.on_blocked is not None:
                self.on_blocked()
        elif isinstance(operation, Unblocked):
            self.blocked = None
            if self.on_blocked is not None:
                self.on_blocked()

    def _timeout(self) -> None:
        self._timer = None
        self._timer_at = _NEVER
        now = clock.monotonic()
        try:
            if self.stream is not None and not self.stream.reading:
                self.session.receive_data(b"", now)  # it is not the broker's fault that we hear nothing of it
            self._dispatch(self.session.handle_timeout(now))
        except Exception as error:  # without the clock there are no heartbeats
            self._give_up(error)
            return
        if self.ended is None:
            self.stream.wake()  # type: ignore[union-attr]  # as in send
            self._set_timer()

    def _set_timer(self) -> None:
        """Ask the session when it wants to be called. A timer that fires too early does no harm, so what only
        moves back, as heartbeats do with all traffic, is left alone until it fires."""
        if self._timer is not None:
            self._timer.cancel()
        at = self.session.next_timeout() if self.ended is None else None
        self._timer = None if at is None else self.loop.call_at(at, self._timeout)
        self._timer_at = _NEVER if at is None else at

    # ------------------------------------------------------------------------------------------- end

    def _finish(self, closed: Closed) -> None:
        if self.ended is not None:
            return
        self.ended = closed
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        stream = self.stream
        if stream is not None:
            stream.close()
            self.loop.call_later(CLOSE_TIMEOUT, stream.abort)  # a peer that never reads must not hold it open
        channels, self._channels = self._channels, {}
        error = connection_error(closed)
        for channel in channels.values():
            try:
                channel.end(error)
            except Exception as fault:  # whoever waits on the other channels must hear of the end all the same
                self._fault("at the end of its channel", fault)
        requests, self._requests = self._requests, {}
        for future in requests.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # as at the end of a channel
        if not self._over.done():
            self._over.set_result(None)
        if not self._opened.done():
            self._opened.set_exception(handshake_error(self))
            self._opened.exception()  # nobody may be waiting any more
        elif self.on_closed is not None:
            self._call([partial(self.on_closed, closed)], "at the end of the link")


def connection_error(closed: Closed) -> GatewayError:
    """What the end of a connection means to what was asked on its channels: the broker's reply code where it
    closed the connection because of something we sent, else BrokerUnavailable."""
    if closed.reason is CloseReason.PEER and closed.code not in NOT_OUR_FAULT:
        return remote_error(closed.code, closed.text)
    return BrokerUnavailable(f"the connection is lost: {describe(closed)}")


def handshake_error(link: Link) -> BrokerUnavailable:
    """What the end of a connection that never opened means to those who wanted it."""
    assert link.ended is not None
    return _HANDSHAKE_ERRORS.get(link.ended.reason, BrokerUnavailable)(describe(link.ended))


def describe(closed: Closed) -> str:
    """One sentence for the log and for the API: why a connection ended."""
    code = f" {closed.code}" if closed.code else ""
    text = f": {closed.text}" if closed.text else ""
    asked = f"; it asks for {closed.supported}" if closed.supported else ""
    return f"{_SAYINGS[closed.reason]}{code}{text}{asked}"


NOT_OUR_FAULT: Final = frozenset({0, 200, 320})
"""Reply codes of a connection's close that no request of the gateway has caused: a clean close, connection-forced."""

_SAYINGS: Mapping[CloseReason, str] = {
    CloseReason.LOCAL: "closed by us",
    CloseReason.PEER: "the broker closed the connection",
    CloseReason.EOF: "the broker hung up",
    CloseReason.HEARTBEAT: "no heartbeat from the broker",
    CloseReason.SYNTAX: "the broker broke the protocol",
    CloseReason.PROTOCOL_HEADER: "the far end speaks another protocol",
    CloseReason.AUTHENTICATION: "the broker refused the login",
    CloseReason.LOGIN_CUT: "the broker hung up on the login",
    CloseReason.TIMEOUT: "the broker did not answer in time",
}
