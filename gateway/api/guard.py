"""One HTTP connection: uvicorn's protocol, with what its parser does not bound, and less work for each request.

Bounded are the size of a request's head, and the time that it takes to come. The octets of a head are counted while it
is incomplete, and a timer runs only then, so a head that comes in one piece costs nothing.

Saved are the timers of idle connections: one runs for as long as the connection lasts, looks when the last answer was,
and is not set anew with each request. Answers are those of :mod:`gateway.api.cycle`.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final
from urllib.parse import unquote

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.api.cycle import Cycle

HEAD_MAX: Final = 32_768
"""Most octets of request line and headers."""
HEAD_SECONDS: Final = 10.0
"""How long a head may take, and how long a new connection may say nothing, in seconds."""
_PLAIN = re.compile(rb"(/[!-\"$->@-~]*)(?:\?([!-\"$-~]*))?")
"""Path and query in ASCII, without scheme, host and fragment; anything else is for uvicorn's parser."""


class GuardedProtocol(HttpToolsProtocol):
    """One connection."""

    _head = True
    _octets = 0
    _timer: asyncio.TimerHandle | None = None
    _idle_since: float | None = None
    _idle_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A new connection has to say something."""
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._rest()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
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
        match = _PLAIN.fullmatch(self.url)
        if match is None or self.parser.should_upgrade() or self.parser.get_http_version() != "1.1" or self.root_path:
            super().on_headers_complete()
            return
        raw_path, query = match.groups()
        scope: Any = self.scope
        scope["method"] = self.parser.get_method().decode("ascii")
        path = raw_path.decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = raw_path
        scope["query_string"] = query or b""
        before: Any = self.cycle
        self.cycle = Cycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:  # pipelined
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

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

    def on_response_complete(self) -> None:
        """An answer is written: the next request begins, or the connection idles."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
            return
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._idle)

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def _idle(self) -> None:
        """Close the connection if nothing has been asked for long enough; else look again when it may be."""
        self._idle_timer = None
        if self._idle_since is None:
            return  # a request is under way, whose end sets the timer
        ends = self._idle_since + self.timeout_keep_alive
        if ends <= self.loop.time():
            self.timeout_keep_alive_handler()
        else:
            self._idle_timer = self.loop.call_at(ends, self._idle)
