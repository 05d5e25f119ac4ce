"""One connection: a request goes out in one write, its answer comes in, and then the connection is free for another or
it is closed."""

from __future__ import annotations

import asyncio
import select
import ssl
from collections.abc import Callable
from typing import Final, cast

from gateway.errors import AnswerCut, AnswerHeadTooLarge, AnswerMalformed, OutboundFailed, OutboundTimeout, TlsFailed
from gateway.outbound.answers import AnswerReader, HttpAnswer
from gateway.outbound.limits import OutboundLimits
from gateway.runtime.clock import clock

_READABLE: Final = getattr(select, "POLLIN", 0)


class HttpConnection(asyncio.Protocol):
    """At most one request at a time. ``done`` is called when an answer was read and the connection can carry another
    request, ``gone`` once when it is over."""

    __slots__ = (
        "_done", "_gone", "_limits", "_loop", "_over", "_poll", "_reader", "_timer", "_transport", "_waiter",
        "counted", "idle_since", "key", "name", "opened",
    )  # fmt: skip

    def __init__(
        self,
        key: object,
        name: str,
        limits: OutboundLimits,
        done: Callable[[HttpConnection], None],
        gone: Callable[[HttpConnection], None],
    ) -> None:
        self.key = key
        """What it is kept by."""
        self.name = name
        """Its site, for the texts of errors."""
        self.idle_since = 0.0
        self.counted = True
        """Whether it still has a place among all connections."""
        self._loop = asyncio.get_running_loop()
        self.opened = clock.monotonic()
        self._limits = limits
        self._reader: AnswerReader  # from connection_made on: the pair of it and its parser is nothing to leave behind
        self._done = done
        self._gone = gone
        self._over = False
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[HttpAnswer] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._poll: select.poll | None = None

    @property
    def made(self) -> bool:
        """Whether it was ever open; then ``gone`` is called."""
        return self._transport is not None

    @property
    def heard(self) -> bool:
        """Whether any octet came since the last request."""
        return self._reader.heard

    def exchange(self, octets: bytes, *, head_only: bool, deadline: float) -> asyncio.Future[HttpAnswer]:
        """Send a request; the future brings the answer or an OutboundFailed. Who stops waiting calls :meth:`abort`."""
        transport = self._transport
        assert transport is not None
        waiter: asyncio.Future[HttpAnswer] = self._loop.create_future()
        if self._over or transport.is_closing():
            waiter.set_exception(AnswerCut(f"{self.name}: the far end hung up before it got the request"))
            return waiter
        self._reader.expect(head_only=head_only)
        self._waiter = waiter
        self._timer = self._loop.call_at(deadline, self._late)
        transport.write(octets)
        return waiter

    def is_stale(self) -> bool:
        """Of a connection without a request: whether it is closing, or something came that nobody asked for: the end
        of the stream, or an answer before its question."""
        transport = self._transport
        if self._over or transport is None or transport.is_closing():
            return True
        return self._poll is not None and bool(self._poll.poll(0))

    def abort(self) -> None:
        """Close now."""
        self._over = True
        if self._transport is not None:
            self._transport.abort()

    # -------------------------------------------------------------------------------------- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._reader = AnswerReader(self.name, self._limits)
        sock = transport.get_extra_info("socket")
        if _READABLE and sock is not None:  # not on every platform
            self._poll = select.poll()
            self._poll.register(sock.fileno(), _READABLE)

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        if self._waiter is None:
            self.abort()  # it says something that nobody asked for
            return
        try:
            over = self._reader.feed(data)
        except (AnswerMalformed, AnswerHeadTooLarge) as error:
            self._fail(error)
        else:
            if over:
                self._finish()

    def eof_received(self) -> None:
        if self._waiter is None:
            return
        try:
            self._reader.end()
        except AnswerCut as error:
            self._fail(error)
        else:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        if self._waiter is not None:
            self._fail(self._why(exc))
        self._reader.close()
        self._gone(self)

    # ------------------------------------------------------------------------------------------- the outcome

    def _finish(self) -> None:
        reader, transport = self._reader, self._transport
        assert transport is not None
        # A far end that answers before it has read all of the request may take the rest for the next one.
        reusable = reader.reusable and not transport.is_closing() and not transport.get_write_buffer_size()
        waiter = self._release()
        if not waiter.done():
            waiter.set_result(reader.answer())
        if reusable:
            self._done(self)
        else:
            self.abort()

    def _fail(self, error: OutboundFailed) -> None:
        waiter = self._release()
        if not waiter.done():
            waiter.set_exception(error)
        self.abort()

    def _late(self) -> None:
        reader = self._reader
        had = f"the status {reader.status}" if reader.status else "a part of its head" if reader.heard else "nothing"
        self._fail(
            OutboundTimeout(
                f"{self.name}: no whole answer within the deadline, {had} came", sent=True, status=reader.status
            )
        )

    def _release(self) -> asyncio.Future[HttpAnswer]:
        waiter, timer = self._waiter, self._timer
        assert waiter is not None
        assert timer is not None
        timer.cancel()
        self._waiter = self._timer = None
        return waiter

    def _why(self, exc: Exception | None) -> OutboundFailed:
        status = self._reader.status
        if isinstance(exc, ssl.SSLError) and not self._reader.heard:
            # In TLS 1.3 a client certificate is judged after we think the handshake over (RFC 8446 section 4.4.2.4).
            return TlsFailed(f"{self.name}: TLS failed: {exc.reason or exc}", sent=True)
        what = "in the middle of its answer" if self._reader.heard else "without an answer"
        why = f": {exc}" if exc is not None else ""
        return AnswerCut(f"{self.name}: the connection ended {what}{why}", sent=True, status=status)
