"""One request and its answer on a connection, as uvicorn has it, with less work for each.

What is sent and received over ASGI, and what is refused, is the same. The head of an answer whose length is known
waits for its body, so that both are one write; octets that are the same for every answer of a second are put together
once a second.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

CUT: Final = "http.response.cut"
"""Type of a message that is sent in place of the rest of a body: the connection ends, in the middle of the answer."""
WHOLE: Final = "http.response.whole"
"""Type of a message that is a whole answer: ``status``, ``headers``, ``body``. A key of the ASGI scope says that it is
understood."""
WRITE_MAX: Final = 16_384
"""Bytes of a body that are written at a time."""
WRITE_BUFFER_MAX: Final = 32_768
"""Bytes that a connection may hold that its caller has not read; then nothing more is written until it has."""
_NOT_IN_HEADERS = re.compile(rb"[\x00\r\n]")
"""What would end a header's value early (RFC 9110 section 5.5)."""


class Cycle(RequestResponseCycle):
    """See the module."""

    _head: bytes = b""
    _ends_with_connection = False
    """The body has neither a length nor chunks."""
    _defaults: ClassVar[tuple[list[tuple[bytes, bytes]], bytes]] = ([], b"")
    """The last headers of every answer, and their octets."""

    async def send(self, message: Any) -> None:
        """Send the head of the answer, or a piece of its body (ASGI)."""
        kind = message["type"]
        if kind == CUT:
            self._cut()
            return
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self._is_gone():
            return
        if not self.response_started:
            if kind == WHOLE:
                self._start(message)
                await self._pieces(message["body"], False)
            elif kind == "http.response.start":
                self._start(message)
            else:
                raise RuntimeError(f"expected http.response.start, not {kind}")
        elif self.response_complete or kind != "http.response.body":
            raise RuntimeError(f"{kind} does not belong here")
        else:
            await self._pieces(message.get("body", b""), message.get("more_body", False))

    async def _pieces(self, body: bytes, more: bool) -> None:
        """Write a body no faster than it is read."""
        if len(body) > WRITE_MAX and self.scope["method"] != "HEAD":
            view = memoryview(body)
            for start in range(0, len(view) - WRITE_MAX, WRITE_MAX):
                self._body(view[start : start + WRITE_MAX], True)
                if self.flow.write_paused:
                    await self.flow.drain()
                if self._is_gone():
                    return
            body = body[start + WRITE_MAX :]
        self._body(body, more)

    def _is_gone(self) -> bool:
        """Whether nobody takes what is written: a write has failed, and the protocol hears of it in the next turn."""
        if self.transport.is_closing():
            self.disconnected = True
        return self.disconnected

    def _start(self, message: Any) -> None:
        status = message["status"]
        length: int | None = None
        close = False
        parts = [STATUS_LINE[status], self._default_octets()]
        for name, value in message.get("headers", ()):
            if _NOT_IN_HEADERS.search(value) or _NOT_IN_HEADERS.search(name):
                raise RuntimeError("a header holds the end of a line")
            if name == b"content-length":
                length = int(value)
            elif name == b"connection":
                close = b"close" in value.lower()
            parts += (name, b": ", value, b"\r\n")
        if close:
            self.keep_alive = False
        elif not self.keep_alive:
            parts.append(b"connection: close\r\n")
        has_body = self.scope["method"] != "HEAD" and status not in (204, 304)
        # HTTP/1.0 knows no transfer codings (RFC 9112 section 6.1): the end of the connection ends the body.
        self.chunked_encoding = length is None and has_body and self.scope["http_version"] != "1.0"
        self._ends_with_connection = length is None and has_body and not self.chunked_encoding
        self.expected_content_length = length or 0
        parts.append(b"transfer-encoding: chunked\r\n\r\n" if self.chunked_encoding else b"\r\n")
        self.response_started = True
        self.waiting_for_100_continue = False
        head = b"".join(parts)
        if length is None:
            self.transport.write(head)
        else:
            self._head = head

    def _default_octets(self) -> bytes:
        headers, octets = Cycle._defaults
        if headers is not self.default_headers:  # a new list with each second, for its date
            headers = self.default_headers
            octets = b"".join(b"%b: %b\r\n" % pair for pair in headers)
            Cycle._defaults = headers, octets
        return octets

    def _cut(self) -> None:
        """Nobody is to take what was sent for all of it; who does not read is not waited for."""
        if self.disconnected or self.response_complete:
            return
        self.response_complete = self.disconnected = True
        self.message_event.set()
        if self.flow.write_paused:
            self.transport.abort()
        else:
            self.transport.close()
        self.on_response()

    def _body(self, body: bytes | memoryview, more: bool) -> None:
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
            body = b""
        elif self.chunked_encoding:
            body = b"".join((b"%x\r\n" % len(body), body, b"\r\n")) if body else b""
            if not more:
                body += b"0\r\n\r\n"
        elif not self._ends_with_connection:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0:
                raise RuntimeError("the body is longer than its content-length")
        if self._head:
            body, self._head = self._head + body, b""
        if body:
            self.transport.write(body)
        if not more:
            if self.expected_content_length:
                raise RuntimeError("the body is shorter than its content-length")
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()
