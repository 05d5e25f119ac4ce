"""From method, content header and body frames to one message.

The base of both roles' channels. Chunks are collected and joined once; a body in one frame is not copied again. A
body over the limits is discarded as it comes, and what its method announced is told by :meth:`Assembler.oversized`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from gateway.classic.frames import BASIC, CONTENT_HEADER, unexpected
from gateway.errors import FrameSyntaxError
from gateway.limits import Limits


class Spool:
    """How many octets of unfinished messages a connection holds, over all its channels."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class Assembler:
    """Content of one channel."""

    __slots__ = (
        "_chunks", "_header_max", "_held", "_left", "_message_max", "_method", "_octets", "_size", "_spool", "awaiting"
    )  # fmt: skip

    def __init__(self, limits: Limits, spool: Spool) -> None:
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
        self._chunks: list[bytes] | None = []

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
        self._chunks = [] if size <= self._message_max and len(octets) <= self._header_max else None
        self.awaiting = "body"
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
        chunks = self._chunks
        if left == 0:
            if chunks is None or chunks:
                if chunks is not None:
                    chunks.append(data[at:end])
                self._finish()
            else:
                self.awaiting = ""
                self.content(self._method, self._octets, data[at:end])
        elif chunks is not None:
            spool = self._spool
            if spool.held + length > spool.limit:
                self.forget()
                self._chunks = None
                return
            chunks.append(data[at:end])
            spool.held += length
            self._held += length

    def forget(self) -> None:
        """Give up the chunks held."""
        self._spool.held -= self._held
        self._held = 0
        self._chunks = None

    def _finish(self) -> None:
        chunks, octets, size = self._chunks, self._octets, self._size
        self.forget()
        self.awaiting = ""
        if chunks is not None:
            self.content(self._method, octets, b"".join(chunks))
        elif len(octets) > self._header_max:
            self.oversized(self._method, len(octets), self._header_max)
        else:
            self.oversized(self._method, size, min(self._message_max, self._spool.limit))
