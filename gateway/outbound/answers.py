"""Answers, read no further than is needed: octets in, one :class:`HttpAnswer` out.

The head is parsed within its limits, in octets and in number of headers; of the body the first octets are kept, as they
were sent (nothing is ever decompressed), and when there is more, reading ends. What comes after the end of an answer
was not asked for and makes the connection useless: the next request would take it for its own answer.
"""

from __future__ import annotations

from typing import Final

import httptools
import msgspec

from gateway.errors import AnswerCut, AnswerHeadTooLarge, AnswerMalformed
from gateway.outbound.limits import OutboundLimits

VERSIONS: Final = frozenset({"1.0", "1.1"})


class HttpAnswer(msgspec.Struct):
    """What came back."""

    status: int
    """200 to 999."""
    headers: list[tuple[bytes, bytes]]
    """In their order, names as they were written."""
    body: bytes
    """The first octets of the body, without chunks, still compressed if it was."""
    truncated: bool
    """Whether there was more of it."""
    resent: bool = False
    """Whether the request was sent twice, because a kept connection closed before any octet of an answer."""

    def header(self, name: bytes) -> bytes | None:
        """The value of the first header of this lower-case name."""
        for each, value in self.headers:
            if each.lower() == name:
                return value
        return None


class _Enough(Exception):
    """Raised out of the parser to stop it."""


class AnswerReader:
    """Reads the answers of one connection, one after the other: :meth:`expect`, then :meth:`feed` until it is True,
    or :meth:`end`."""

    __slots__ = (
        "_body", "_budget", "_head_only", "_headers", "_interim", "_limits", "_name", "_parser", "_room",
        "heard", "reusable", "status", "truncated", "whole",
    )  # fmt: skip

    def __init__(self, name: str, limits: OutboundLimits) -> None:
        """``name`` is the site, for the texts of errors."""
        self._name = name
        self._limits = limits
        self._parser = httptools.HttpResponseParser(self)
        self.whole = True
        """Whether nothing is expected: an answer was read to its end, or none was asked for."""
        self.reusable = False
        """Whether the connection can carry another request: all of the answer was read, nothing came after it, and the
        far end keeps the connection open."""
        self.heard = False
        """Whether any octet of the answer came."""
        self.status = 0
        """The status, once the head is read."""
        self.truncated = False

    def expect(self, *, head_only: bool = False) -> None:
        """A request is on its way. ``head_only``: it is a HEAD, and its answer has no body, without regard to its
        headers."""
        self._head_only = head_only
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._room = self._limits.body_kept
        self._budget = self._limits.head_max
        self._interim = False
        self.heard = self.reusable = self.truncated = self.whole = False
        self.status = 0

    def feed(self, data: bytes) -> bool:
        """Take octets; True when the answer is over.

        Raises:
            AnswerMalformed: they are no HTTP/1.1.
            AnswerHeadTooLarge: the head is over a limit.
        """
        self.heard = True
        try:
            if self.status == 0:
                if len(data) > self._budget:
                    # The head must end in here; what lies beyond may be body.
                    view = memoryview(data)
                    room = self._budget
                    self._parser.feed_data(view[:room])
                    if self.status == 0:
                        raise AnswerHeadTooLarge(
                            f"{self._name}: the head of the answer has over {self._limits.head_max} octets", sent=True
                        )
                    self._feed_body(view[room:])
                else:
                    self._budget -= len(data)
                    self._parser.feed_data(data)
            else:
                self._feed_body(memoryview(data))
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if cause is not None and not isinstance(cause, _Enough):
                raise cause from None
            self.whole, self.reusable = True, False
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.whole:  # else it is what came after the answer that is bad
                raise AnswerMalformed(
                    f"{self._name}: the answer is no HTTP/1.1: {error}", sent=True, status=self.status
                ) from None
            self.reusable = False
        except _Enough:  # of our own making
            self.whole, self.reusable = True, False
        return self.whole

    def end(self) -> None:
        """The far end will send no more. Returns where the answer is whole by that.

        Raises:
            AnswerCut: there should have been more.
        """
        self.reusable = False
        if self.whole:
            return
        if not self.status or not self._until_end():
            what = "in the middle of its answer" if self.heard else "without an answer"
            raise AnswerCut(f"{self._name}: the far end hung up {what}", sent=True, status=self.status)
        self.whole = True

    def close(self) -> None:
        """Nothing more will be read. The parser refers to this reader and is dropped."""
        del self._parser

    def answer(self) -> HttpAnswer:
        """What was read."""
        body = self._body
        return HttpAnswer(self.status, self._headers, body[0] if len(body) == 1 else b"".join(body), self.truncated)

    def _feed_body(self, data: memoryview) -> None:
        """Octets after the head. A body that is hidden in ever more framing ends where the budget does."""
        room = self._budget
        self._budget = room - len(data)
        if self._budget >= 0:
            self._parser.feed_data(data)
            return
        self._parser.feed_data(data[:room])
        self.truncated = not self.whole
        raise _Enough

    def _until_end(self) -> bool:
        """Whether the body ends where the connection does (RFC 9112 section 6.3, rule 8)."""
        headers = {name.lower(): value.lower() for name, value in self._headers}
        return b"content-length" not in headers and not headers.get(b"transfer-encoding", b"").endswith(b"chunked")

    # ------------------------------------------------------------------------------------- the parser's calls

    def on_message_begin(self) -> None:
        """Another answer."""
        if self.whole:
            self.reusable = False
            raise _Enough

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or one trailer."""
        if self.status:
            return  # a trailer: counted in octets, and dropped
        if len(self._headers) >= self._limits.headers_max:
            raise AnswerHeadTooLarge(f"{self._name}: the answer has over {self._limits.headers_max} headers", sent=True)
        self._headers.append((name, value.rstrip(b" \t")))  # RFC 9112 section 5.1; the parser strips the front

    def on_headers_complete(self) -> None:
        """The head is whole."""
        status = self._parser.get_status_code()
        version = self._parser.get_http_version()
        if version not in VERSIONS:
            raise AnswerMalformed(f"{self._name}: the answer is HTTP/{version}", sent=True)
        if status < 200:
            if not 100 <= status < 200 or status == 101:
                raise AnswerMalformed(f"{self._name}: the answer has the status {status}", sent=True)
            self._interim = True
            self._headers.clear()
            return
        self.status = status
        self._budget = self._limits.body_kept + self._limits.framing_max
        if self._head_only:
            raise _Enough

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        room = self._room
        if len(body) > room:
            self._body.append(body[:room])
            self.truncated = True
            raise _Enough
        self._room = room - len(body)
        self._body.append(body)

    def on_message_complete(self) -> None:
        """The end of an answer, or of one that only tells of the next."""
        if self._interim:
            self._interim = False
            return
        self.whole = True
        self.reusable = self._parser.should_keep_alive()
