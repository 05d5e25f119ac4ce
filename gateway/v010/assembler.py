"""From frames to segments to assemblies: a control, or a command with the content that follows it.

Frames of several channels and of both tracks may be interleaved, so what is unfinished is kept by channel *and*
track. The pieces of a segment are collected and joined once. A body larger than it may be is counted and dropped
as it comes: the assembly then ends with ``body`` None and the session says what became of it. Everything else
that is too large or out of order is :class:`~gateway.errors.FrameSyntaxError` (specification section 4.4).
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.errors import FrameSyntaxError
from gateway.limits import Limits
from gateway.v010.commands import TRANSFER
from gateway.v010.frames import (
    BODY,
    COMMAND,
    CONTROL,
    FIRST_FRAME,
    FIRST_SEGMENT,
    HEADER,
    LAST_FRAME,
    LAST_SEGMENT,
    WHOLE,
)

_TRANSFER = TRANSFER.to_bytes(2, "big")


class Content(NamedTuple):
    """A command with its content."""

    command: bytes
    """The command segment."""
    header: bytes
    """The header segment, empty where there was none."""
    body: bytes | None
    """None: it was larger than ``limit`` and is gone."""
    size: int
    """Octets of the body, kept or not."""
    limit: int


class _Open:
    """An assembly that is not finished."""

    __slots__ = ("body", "command", "header", "kind", "limit", "pieces", "segment_flag", "size", "within")

    def __init__(self) -> None:
        self.command = b""
        self.header = b""
        self.body: bytes | None = b""
        self.pieces: list[bytes] = []
        self.size = 0
        """Octets of the segment so far."""
        self.kind = -1
        """Type of the current or last segment."""
        self.within = False
        """In the middle of a segment."""
        self.segment_flag = 0
        self.limit = 0
        """The limit that the body broke; 0: none."""


class Assembler:
    """What is unfinished on one connection."""

    __slots__ = ("_limits", "_open", "spooled")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: dict[int, _Open] = {}
        self.spooled = 0
        """Octets of unfinished bodies, over all channels."""

    def busy(self, channel: int) -> bool:
        """A command of this channel is unfinished."""
        return channel << 1 | COMMAND in self._open

    def drop(self, channel: int) -> None:
        """The session of a channel is over, and with it the command that was coming."""
        if (assembly := self._open.pop(channel << 1 | COMMAND, None)) is not None:
            self._release(assembly)

    def feed(self, flags: int, kind: int, track: int, channel: int, payload: bytes) -> Content | bytes | None:
        """Take a frame. Returns the whole assembly where this frame ends it: the segment of a control or of a
        command without content, or the :class:`Content`.

        Raises:
            FrameSyntaxError: the frame does not fit what came before it, or is over a limit.
        """
        if track > COMMAND:
            raise FrameSyntaxError(f"a frame on track {track}")
        key = channel << 1 | track
        assembly = self._open.get(key)
        if assembly is None:
            if kind != track or flags & (FIRST_SEGMENT | FIRST_FRAME) != FIRST_SEGMENT | FIRST_FRAME:
                raise FrameSyntaxError(f"flags {flags:02x} and segment type {kind} at the beginning on track {track}")
            if flags == WHOLE:
                return payload
            assembly = self._open[key] = _Open()
        elif assembly.within:
            if kind != assembly.kind or flags & FIRST_FRAME or flags & LAST_SEGMENT != assembly.segment_flag:
                raise FrameSyntaxError(f"flags {flags:02x} and segment type {kind} within a segment")
        elif kind <= assembly.kind or flags & (FIRST_SEGMENT | FIRST_FRAME) != FIRST_FRAME:
            raise FrameSyntaxError(f"flags {flags:02x} and segment type {kind} where a segment begins")
        if flags & FIRST_FRAME:
            assembly.kind = kind
            assembly.segment_flag = flags & LAST_SEGMENT
            assembly.size = 0
        self._take(assembly, kind, payload)
        if not flags & LAST_FRAME:
            assembly.within = True
            return None
        assembly.within = False
        self._end_segment(assembly, kind)
        if not flags & LAST_SEGMENT:
            return None
        del self._open[key]
        self._release(assembly)
        if kind <= COMMAND:
            return assembly.command
        size = assembly.size if kind == BODY else 0
        return Content(assembly.command, assembly.header, assembly.body, size, assembly.limit)

    def _take(self, assembly: _Open, kind: int, payload: bytes) -> None:
        assembly.size += len(payload)
        limits = self._limits
        if kind != BODY:
            if assembly.size > limits.header_max:
                raise FrameSyntaxError(f"a segment of more than {limits.header_max} octets that is no body")
            if payload:
                assembly.pieces.append(payload)
            return
        if assembly.limit:
            return
        if assembly.size > limits.message_max:
            assembly.limit = limits.message_max
        elif self.spooled + len(payload) > limits.spool_max:
            assembly.limit = limits.spool_max
        if assembly.limit:
            self.spooled -= assembly.size - len(payload)
            assembly.pieces = []
        elif payload:
            self.spooled += len(payload)
            assembly.pieces.append(payload)

    def _end_segment(self, assembly: _Open, kind: int) -> None:
        pieces = assembly.pieces
        octets = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if kind == BODY:
            assembly.body = None if assembly.limit else octets
            return
        assembly.pieces = []
        if kind == HEADER:
            assembly.header = octets
            return
        assembly.command = octets
        if not assembly.segment_flag and (kind == CONTROL or octets[:2] != _TRANSFER):
            raise FrameSyntaxError(f"content behind {octets[:2].hex()}, which has none")

    def _release(self, assembly: _Open) -> None:
        if not assembly.limit and assembly.kind == BODY:
            self.spooled -= assembly.size
