"""What uvicorn's parser does not bound: the size of a request's head, and the time it takes to come.

The octets of a head are counted while it is incomplete, and a timer runs only then, so a head that comes in one piece
costs nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_MAX: Final = 32_768
"""Most octets of request line and headers."""
HEAD_SECONDS: Final = 10.0
"""How long a head may take, and how long a new connection may say nothing, in seconds."""


class GuardedProtocol(HttpToolsProtocol):
    """One connection."""

    _head = True
    _octets = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A new connection has to say something."""
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._rest()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._head = True
        self._octets = 0

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._head = False
        self._rest()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head that is still incomplete."""
        super().data_received(data)
        if self._head and not self.transport.is_closing():
            self._octets += len(data)
            if self._octets > HEAD_MAX:
                self.send_400_response("The head of the request is too large.")
            else:
                self._watch()

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        self.transport.close()
