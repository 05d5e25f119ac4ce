"""From method, content header and body frames to one message.

The base of both roles' channels. A body in one frame is not copied again; one in several is collected in one buffer,
so that a thousand small frames cost no more than their octets. A message over the limits is discarded as it comes,
and the announcement of its method is reported by :meth:`Assembler.oversized`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Final

from gateway.classic.frames import BASIC, CONTENT_HEADER, CONTENT_HEADER_SIZE, unexpected
from gateway.errors import FrameSyntaxError
from gateway.limits import Limits

SMALL_HEADER: Final = 4_096
"""A content header up to this size does not count towards the spool: nearly all are a hundredth of it."""


class AssemblyLimit:
    """How many octets of unfinished messages a connection holds, over all its channels."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class Assembler:
    """Content of one channel."""

    __slots__ = (
        "_body", "_header_max", "_held", "_left", "_limit", "_message_max", "_method", "_octets", "_size", "_spool",
        "_told", "awaiting",
    )  # fmt: skip

    def __init__(self, limits: Limits, spool: AssemblyLimit) -> None:
        self._message_max = limits.message_max
        self._header_max = limits.header_max
        self._spool = spool
        self.awaiting = ""
        """``header``, ``body`` or nothing: the frame that must come next on this channel."""
        self._method: Any = None
        self._octets = b""
        self._size = 0
        self._left = 0
        self._held = 0
        """Octets of the spool that are this channel's: header and body so far."""
        self._body = bytearray()
        self._limit = 0
        """The limit that the message broke; 0: none."""
        self._told = 0
        """What broke it, in octets."""

    @abstractmethod
    def content(self, method: Any, octets: bytes, body: bytes) -> None:
        """A message is complete: its method, its raw properties, its body."""

    @abstractmethod
    def oversized(self, method: Any, size: int, limit: int) -> None:
        """A message over a limit has been discarded."""

    def expect_content(self, method: Any) -> None:
        """``method`` announced content."""
        self._method = method
        self.awaiting = "header"

    def header_frame(self, data: bytes, at: int, end: int) -> None:
        """A content header frame."""
        if self.awaiting != "header":
            raise unexpected(f"a content header where {self.awaiting or 'a method'} was due")
        if end - at < 14:
            raise FrameSyntaxError(f"a content header of {end - at} octets", 502)
        class_id, _weight, size = CONTENT_HEADER.unpack_from(data, at)
        if class_id != BASIC:
            raise FrameSyntaxError(f"a content header of class {class_id} after a method of class {BASIC}", 501)
        octets = data[at + 12 : end]
        if size == 0 and len(octets) <= self._header_max:
            self.awaiting = ""
            self.content(self._method, octets, b"")
            return
        self._octets = octets
        self._size = self._left = size
        self._limit = 0
        self.awaiting = "body"
        if len(octets) > self._header_max:
            self._discard(len(octets), self._header_max)
        elif size > self._message_max:
            self._discard(size, self._message_max)
        elif len(octets) > SMALL_HEADER:
            self._hold(len(octets))
        if size == 0:
            self._finish()

    def header_too_large(self, data: bytes, at: int, length: int) -> None:
        """The fixed part of a content header whose frame has ``length`` octets and is passed over."""
        class_id, _weight, size = CONTENT_HEADER.unpack_from(data, at)
        if class_id != BASIC:
            raise FrameSyntaxError(f"a content header of class {class_id} after a method of class {BASIC}", 501)
        self._size = self._left = size
        self.awaiting = "body"
        self._discard(length - CONTENT_HEADER_SIZE, self._header_max)
        if size == 0:
            self._finish()

    def body_frame(self, data: bytes, at: int, end: int) -> None:
        """A body frame."""
        if self.awaiting != "body":
            raise unexpected(f"a body frame where {self.awaiting or 'a method'} was due")
        length = end - at
        left = self._left = self._left - length
        if left < 0:
            raise FrameSyntaxError(f"a body runs {-left} octets past the {self._size} of its header", 501)
        if left == 0:
            if self._limit or self._held:
                if not self._limit:
                    self._body += memoryview(data)[at:end]
                self._finish()
            else:
                self.awaiting = ""
                self.content(self._method, self._octets, data[at:end])
        elif not self._limit:
            self._hold(length)
            if not self._limit:
                self._body += memoryview(data)[at:end]

    def forget(self) -> None:
        """Give up what is held."""
        self._spool.held -= self._held
        self._held = 0
        self._octets = b""
        if self._body:
            self._body = bytearray()

    def _hold(self, octets: int) -> None:
        """So many more are to be kept."""
        spool = self._spool
        if spool.held + octets > spool.limit:
            self._discard(self._size, spool.limit)
        else:
            spool.held += octets
            self._held += octets

    def _discard(self, size: int, limit: int) -> None:
        """Keep nothing of this message, since ``size`` is over ``limit``."""
        self._told, self._limit = size, limit
        self.forget()

    def _finish(self) -> None:
        octets, body, limit = self._octets, self._body, self._limit
        self.forget()
        self.awaiting = ""
        if limit:
            self.oversized(self._method, self._told, limit)
        else:
            self.content(self._method, octets, bytes(body))
