"""One HTTP connection: uvicorn's protocol, with what its parser does not bound, and less work for each request.

Bounded are the connections of one address, the size of a request's head, the time that it takes to come, the time that
the rest of a body takes whose answer is written already, and the time that a caller does not read. (A body that is
waited for is bounded by who waits: :mod:`gateway.api.http.call`.) The octets of a head are counted while it is
incomplete, and a timer runs only then, so a head that comes in one piece costs nothing. What is wrong with a request is
told behind the answers that are still due to those before it.

Who sends a request octet by octet costs as much for each as others for a whole request. So after a few pieces that are
small its connection is read from once a second.

Who asks for another protocol (``Upgrade``, as Java's HTTP client does by default) is served in this one, body and all,
as RFC 9110 section 7.8 allows. The parser takes such a request to have no body: a second one reads it.

Saved are the timers of idle connections: one runs for as long as the connection lasts, looks when the last answer was,
and is not set again with each request. Answers are those of :mod:`gateway.api.http.cycle`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.api.http.connections import CONNECTION, Connections, ConnectionSlot
from gateway.api.http.cycle import WHOLE, WRITE_BUFFER_MAX, Cycle
from gateway.api.http.heads import HeadRefusal, refusal_of, refusal_of_target
from gateway.runtime.clock import clock

HEAD_MAX: Final = 16_384
"""Most octets of request line and headers."""
CERTIFICATE: Final = "gateway.certificate"
"""Key of the ASGI scope: the names in the caller's certificate, which a trusted authority has signed."""
PARSED_MAX: Final = 8_192
"""Bytes of a connection that are parsed at a time. Requests cost more memory parsed than unparsed, so the next bytes
are parsed when the requests before them have begun."""
UNPARSED_MAX: Final = 1_048_576
"""Most bytes of a connection that wait to be parsed. Reading is paused meanwhile, so only what the transport had read
already can come."""
SMALL: Final = 64
"""A piece of a request with fewer octets is small."""
SMALL_FREE: Final = 8
"""So many of them may come of one request."""
SMALL_PAUSE: Final = 1.0
"""Then nothing is read for so long after each, in seconds."""
CALLBACKS: Final = ("on_message_begin", "on_url", "on_header", "on_headers_complete", "on_body", "on_message_complete")
"""What a parser calls."""
_PLAIN = re.compile(rb"(/[!-\"$->@-~]*)(?:\?([!-\"$-~]*))?")
"""Path and query in ASCII, without scheme, host and fragment; anything else is for uvicorn's parser."""


@dataclass(slots=True)
class Bounds:
    """What the connections of one port may do; times in seconds. See ``[http]``."""

    head: float = 10.0
    """For a head to come, and for the first octet."""
    rest: float = 10.0
    """For the rest of a body when its answer is written."""
    send: float = 300.0
    """For a caller to read on."""
    connections: Connections = field(default_factory=Connections)
    """Which of them stay open."""


class GuardedFlow(FlowControl):
    """Flow control of one connection. While requests wait for their turn, nothing resumes reading."""

    requests_wait = False

    def resume_reading(self) -> None:
        """Read on, unless requests wait."""
        if not self.requests_wait:
            super().resume_reading()


def guarded(bounds: Bounds) -> type[GuardedProtocol]:
    """The protocol with these bounds."""
    return type("GuardedProtocol", (GuardedProtocol,), {"bounds": bounds})


class GuardedProtocol(HttpToolsProtocol):
    """One connection."""

    bounds = Bounds()
    is_ending = False
    """The server ends: a connection that is made now ends behind its first answer. Set on the class of the server."""
    _certificate: frozenset[str] = frozenset()
    place: ConnectionSlot | None = None
    """Where it has one before its handshake."""
    is_open = False
    """It has been open."""
    _whole = True
    _framing = b""
    """How long the body is that the parser skips; empty: it skips none."""
    _rest_timer: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None
    _head = True
    _octets = 0
    _wrong: HeadRefusal | None = None
    """Why the head that came last is refused, besides what the parser says."""
    _refusal: HeadRefusal | None = None
    """What is sent behind the answers that are due."""
    _small = 0
    _unparsed = memoryview(b"")
    _pause: asyncio.TimerHandle | None = None
    _timer: asyncio.TimerHandle | None = None
    _idle_since: float | None = None
    _idle_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A new connection has to say something."""
        super().connection_made(transport)
        self.flow = self._flow = GuardedFlow(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_MAX)
        if (certificate := transport.get_extra_info("peercert")) is not None:
            self._certificate = names_of(certificate)
        self.is_open = True
        if self.place is None:
            self.place = self.bounds.connections.admit(self, self.client[0] if self.client is not None else "")
        elif not self.place.is_gone:
            self.place.owner = self
        if self.place is None or self.place.is_gone:
            transport.abort()
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._rest()
        for timer in (self._idle_timer, self._rest_timer, self._send_timer, self._pause):
            if timer is not None:
                timer.cancel()
        self._idle_timer = self._rest_timer = self._send_timer = self._pause = None
        self._unparsed = memoryview(b"")
        self.pipeline.clear()
        if self.place is not None:
            self.bounds.connections.leave(self.place)
            self.place = None
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        scope: Any = self.scope
        scope[CONNECTION] = self.place
        scope[WHOLE] = True
        if self._certificate:
            scope[CERTIFICATE] = self._certificate
        self._head = True
        self._whole = False
        self._octets = self._small = 0
        self._idle_since = None

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._head = False
        self._idle_since = None
        self._rest()
        version = self.parser.get_http_version()
        refusal = refusal_of(self.headers, version)
        match = _PLAIN.fullmatch(self.url)
        if match is None and refusal is None:
            method = self.parser.get_method().decode("ascii")
            refusal = refusal_of_target(method, self.url, self.headers)
        if refusal is not None:
            self._wrong = refusal
            raise ValueError(refusal.text)  # the parser ends, and the protocol refuses the request
        if match is None:
            parsed = parse_url(self.url)
            raw_path, query = parsed.path, parsed.query
        else:
            raw_path, query = match.groups()
        if self.parser.should_upgrade():
            self._framing = framing_of(self.headers)
        scope: Any = self.scope
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = version
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
            keep_alive=version != "1.0" and self.parser.should_keep_alive() and not self.is_ending,
            on_response=self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:  # pipelined
            self._flow.requests_wait = True
            self._flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def _should_upgrade(self) -> bool:
        """There is no other protocol here, even if a package for one is installed."""
        return False

    def on_message_complete(self) -> None:
        """The body is there."""
        if self._framing:
            return  # it is yet to be read
        self._whole = True
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None
        super().on_message_complete()

    @property
    def is_idle(self) -> bool:
        """Whether no answer is due."""
        return not self._due()

    def drop(self) -> None:
        """End at once: others need the place."""
        self.transport.abort()

    def end(self) -> None:
        """End behind the answer that is due."""
        if self._due():
            self.cycle.keep_alive = False

    def pause_writing(self) -> None:
        """The caller does not read as fast as we write."""
        super().pause_writing()
        if self._send_timer is None:
            self._send_timer = self.loop.call_later(self.bounds.send, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read on."""
        super().resume_writing()
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def data_received(self, data: bytes) -> None:
        """Parse what came, in pieces of :data:`PARSED_MAX` bytes; the rest waits while a parsed request waits."""
        small = len(data) < SMALL
        if not self._unparsed and not self.pipeline and len(data) <= PARSED_MAX:
            self._parse(data, small)
            return
        if len(self._unparsed) + len(data) > UNPARSED_MAX:
            self.transport.abort()
            return
        self._unparsed = memoryview(self._unparsed.tobytes() + data if self._unparsed else data)
        self._parse_on(small)

    def _parse_on(self, small: bool = False) -> None:
        """Parse what waits until a request has to wait, then read on if none does."""
        while self._unparsed and not self.pipeline and not self._refusal and not self.transport.is_closing():
            piece, self._unparsed = self._unparsed[:PARSED_MAX].tobytes(), self._unparsed[PARSED_MAX:]
            self._parse(piece, small)
        if self._refusal or self.transport.is_closing():
            self._unparsed = memoryview(b"")
        self._flow.requests_wait = bool(self.pipeline)

    def _parse(self, data: bytes, small: bool) -> None:
        """Parse one piece, and count what belongs to a head that is still incomplete."""
        if self._refusal:
            return
        before, in_body = self.cycle, not (self._head or self._whole)
        self._feed(data)
        if self._head and not self.transport.is_closing():
            behind = in_body or self.cycle is not before
            self._octets += self._behind(data) if behind else len(data)
            if self._octets > HEAD_MAX:
                self.send_400_response("The head of the request is too large.")
            else:
                self._watch()
        if not self._whole and small:
            self._small += 1
            if self._small > SMALL_FREE:
                self._slow_down()

    def _feed(self, data: bytes) -> None:
        """Have the parser read one piece."""
        while data:
            try:
                self.parser.feed_data(data)
                return
            except HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return
            except HttpParserUpgrade as stopped:
                data = data[stopped.args[0] :]
                if self._framing:
                    self.parser = parser_of_body(self, self._framing)
                    self._framing = b""

    def _behind(self, data: bytes) -> int:
        """How much of a piece belongs to the head that is behind the end of another request in it. The parser does not
        say where it begins: its target is looked for, from the end, so that nothing else is counted."""
        start = data.rfind(b" " + self.url) if self.url else -1
        return len(data) - start if start >= 0 else 0

    def send_400_response(self, msg: str) -> None:
        """Refuse what came last, and close; answers that are due to requests before it are written first."""
        refusal = self._wrong or HeadRefusal(400, msg)
        cycle = self.cycle
        due = self._due()
        if due and cycle.more_body:  # it is the body of the last of them that is wrong
            due = bool(self.pipeline) and self.pipeline[0][0] is cycle
            if due:
                self.pipeline.popleft()
        if due:
            self._refusal = refusal
            self._rest()
        else:
            self._refuse(refusal)

    def _refuse(self, refusal: HeadRefusal) -> None:
        """Write the refusal, and close."""
        parts = [STATUS_LINE[refusal.status], *(b"%b: %b\r\n" % pair for pair in self.server_state.default_headers)]
        parts.append(b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n" % len(refusal.text))
        parts += (b"connection: close\r\n\r\n", refusal.text.encode("ascii"))
        self.transport.write(b"".join(parts))
        self.transport.close()

    def _due(self) -> bool:
        """Whether an answer is due to a request that is there."""
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _slow_down(self) -> None:
        """Read nothing for a while, unless it is a stream, whose lines may be short, and come when they will."""
        streams = any(name == b"transfer-encoding" for name, _ in self.headers)
        if self._pause is None and not streams and not self.transport.is_closing():
            # Not by ``flow``, which resumes as soon as somebody waits for the body.
            self.transport.pause_reading()
            self._pause = self.loop.call_later(SMALL_PAUSE, self._read_on)

    def _read_on(self) -> None:
        self._pause = None
        if not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.bounds.head, self._late)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self._due():  # of a request before this head, which may take longer
            self._watch()
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        """An answer is written: the next request begins, or the connection idles."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
            if not self.pipeline:
                self._parse_on()
            self._flow.resume_reading()
            return
        self._flow.resume_reading()
        if self._refusal is not None:
            self._refuse(self._refusal)
            return
        if not self._whole and not self._head and self._rest_timer is None:
            self._rest_timer = self.loop.call_later(self.bounds.rest, self.transport.close)
        self._idle_since = clock.monotonic()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._idle)

    def _unset_keepalive_if_required(self) -> None:
        """Octets came. Only a request ends the idle time, not an empty line, or any other octets that begin none."""

    def _idle(self) -> None:
        """Close the connection if nothing has been asked for long enough; else look again when it may be."""
        self._idle_timer = None
        if self._idle_since is None:
            return  # a request is under way, whose end sets the timer
        ends = self._idle_since + self.timeout_keep_alive
        if ends <= clock.monotonic():
            self.timeout_keep_alive_handler()
        else:
            self._idle_timer = self.loop.call_at(ends, self._idle)


class _Relay:
    """Passes on what a parser calls, once it is open."""

    def __init__(self, protocol: GuardedProtocol) -> None:
        self.is_open = False
        for name in CALLBACKS:
            setattr(self, name, partial(self._pass, getattr(protocol, name)))

    def _pass(self, callback: Callable[..., None], *arguments: bytes) -> None:
        if self.is_open:
            callback(*arguments)


def framing_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the lines of a head that say how long the body is; empty: there is none."""
    lines = [
        (name, value)
        for name, value in headers
        if name == b"transfer-encoding" or (name == b"content-length" and int(value))
    ]
    return b"".join(b"%b: %b\r\n" % line for line in lines)


def parser_of_body(protocol: GuardedProtocol, framing: bytes) -> HttpRequestParser:
    """A parser that goes on behind the head of a request, for the body and the requests behind it.

    Args:
        framing: the lines of the head that say how long the body is.
    """
    relay = _Relay(protocol)
    parser = HttpRequestParser(relay)
    parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")
    relay.is_open = True
    return parser


def names_of(certificate: Mapping[str, Any]) -> frozenset[str]:
    """The names in a certificate, as ``ssl`` decodes it: ``URI:…``, ``DNS:…``, ``email:…``, ``CN:…``. Where there are
    alternative names, the common name still counts: its own prefix asks for it."""
    found = {f"{kind}:{value}" for kind, value in certificate.get("subjectAltName", ())}
    found |= {f"CN:{value}" for part in certificate.get("subject", ()) for name, value in part if name == "commonName"}
    return frozenset(found)
