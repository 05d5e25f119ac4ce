"""One stream of octets, with one write per turn of the event loop.

A sender calls :meth:`Stream.wake`, as often as it likes; when the turn of the loop is over
the stream asks its user once for everything that is queued and writes it in one call. That write is also the
flush of the session: a version sends the end of a burst (0-10's sync bit, ``tx.commit``) in ``data_to_send``, so a
burst costs one of them.

When the transport's buffer is full nothing more is fetched until it has drained: what is queued then waits in
the session, whose user sees :attr:`Stream.writable` and stops.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol, cast

logger = logging.getLogger(__name__)

WRITE_HIGH: Final = 1 << 20
"""Octets in the transport's buffer from which on nothing more is fetched."""
WRITE_LOW: Final = 1 << 18
"""Octets in the transport's buffer at which fetching goes on."""


class StreamUser(Protocol):
    """What a stream calls; always on the event loop, never from within :meth:`Stream.wake`."""

    def data_received(self, data: bytes) -> None:
        """Octets came."""

    def stream_lost(self, error: Exception | None) -> None:
        """The stream is over, by end of file or by ``error``. Called once, last."""

    def data_to_send(self) -> list[bytes]:
        """Everything that is to be written now."""

    def writable_again(self) -> None:
        """The transport's buffer has drained."""


class Stream(asyncio.Protocol):
    """An asyncio protocol that serves a :class:`StreamUser`."""

    __slots__ = (
        "_closing", "_ended", "_fetched", "_loop", "_scheduled", "_transport", "gone", "reading", "user", "writable",
    )  # fmt: skip

    def __init__(self, user: StreamUser) -> None:
        self.user = user
        self.writable = True
        """False while the transport's buffer is full."""
        self.reading = True
        """False while the peer is not read from: :meth:`pause_reading`."""
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        """Done when the transport is closed, which over TLS takes some turns of both ends after :meth:`close`."""
        self._transport: asyncio.Transport | None = None
        self._scheduled = False
        self._closing = False
        self._ended = False
        self._fetched = 0

    def wake(self) -> None:
        """There is something to send: fetch and write it at the end of this turn."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def flush(self) -> None:
        """Fetch and write now; for the last words before :meth:`close`."""
        transport = self._transport
        if transport is None or not self.writable or transport.is_closing():
            return
        buffers = self.user.data_to_send()
        if buffers:
            # Not writelines: asyncio's forgets to pause its protocol in some releases (seen with Python 3.13.0), and
            # a peer that does not read would be fed without end.
            octets = buffers[0] if len(buffers) == 1 else b"".join(buffers)
            self._fetched += len(octets)
            try:
                transport.write(octets)
            except RuntimeError:  # uvloop's, whose handle was closed in this turn; connection_lost() comes next
                logger.debug("%s: the connection ended while it was written to", self.peer)
                transport.abort()  # whatever it was: what was not written must not be followed by anything

    def pause_reading(self) -> None:
        """Take nothing more from the peer, until :meth:`resume_reading`."""
        if self.reading and self._transport is not None and not self._transport.is_closing():
            self.reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on."""
        if not self.reading and self._transport is not None and not self._transport.is_closing():
            self.reading = True
            self._transport.resume_reading()

    @property
    def unsent(self) -> int:
        """Octets that the transport holds, because the peer does not take them."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def sent(self) -> int:
        """Octets that the transport holds no more: where this stands still, the peer reads nothing."""
        return self._fetched - self.unsent

    def close(self, last_words: bytes = b"") -> None:
        """Write what is queued, and last words of the caller's, then end the stream. A peer that does not read cannot
        hold it open: see :meth:`abort`."""
        if self._closing:
            return
        self.flush()
        self._closing = True
        if self._transport is not None:
            if last_words:
                self._transport.write(last_words)
            self._transport.close()

    def abort(self) -> None:
        """End the stream now; what is queued is dropped."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def peer(self) -> str:
        """``host:port`` of the other end, "" where there is none."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) >= 2 else ""

    @property
    def certificate(self) -> object:
        """The other end's, verified, as ``SSLSocket.getpeercert`` has it; None or empty where there is none."""
        return None if self._transport is None else self._transport.get_extra_info("peercert")

    @property
    def address(self) -> str:
        """The host alone."""
        return self.peer.rpartition(":")[0]

    @property
    def own_address(self) -> str:
        """The host of this end."""
        name = None if self._transport is None else self._transport.get_extra_info("sockname")
        return str(name[0]) if isinstance(name, tuple) and len(name) >= 2 else ""

    def _flush(self) -> None:
        self._scheduled = False
        self.flush()

    # ------------------------------------------------------------------------------ called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH, low=WRITE_LOW)
        if self._closing:
            self._transport.abort()
        else:
            self.wake()

    def data_received(self, data: bytes) -> None:
        self.user.data_received(data)

    def eof_received(self) -> bool:
        self._end(None)
        return False  # the transport closes itself: AMQP knows no half-open connections

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.wake()
        self.user.writable_again()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        if not self.gone.done():
            self.gone.set_result(None)
        self._end(exc)

    def _end(self, error: Exception | None) -> None:
        if not self._ended:
            self._ended = True
            self.user.stream_lost(error)
