"""From frames to segments to assemblies: a control, or a command with the content that follows it.

Frames of several channels and of both tracks may be interleaved, so what is unfinished is kept by channel *and*
track. The pieces of a segment are collected in one buffer, so that a thousand small ones cost no more than their
octets. A header or a body larger than it may be is counted and dropped as it comes: the assembly then ends with
``body`` None and the session says what became of it. Everything else that is too large or out of order is
:class:`~gateway.errors.FrameSyntaxError` (specification section 4.4).

What is unfinished is bounded for the connection as a whole: headers and bodies by ``spool_max``, controls and commands
by ``header_max`` and by their number, two for each session that may be open. Nothing grows with the channel numbers
that a peer makes up.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.errors import FrameSyntaxError
from gateway.limits import Limits
from gateway.v010.commands import COMMANDS
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

_WITH_CONTENT = frozenset(code.to_bytes(2, "big") for code, kind in COMMANDS.items() if kind.header is not None)


class Content(NamedTuple):
    """A command with its content."""

    command: bytes
    """The command segment."""
    header: bytes
    """The header segment, empty where there was none or it was too large."""
    body: bytes | None
    """None: it, or the header, was larger than ``limit`` and is gone."""
    size: int
    """Octets of the body, kept or not; of the header where that was too large."""
    limit: int


class _Open:
    """An assembly that is not finished."""

    __slots__ = (
        "body", "command", "header", "held", "kind", "limit", "limit_kind", "segment", "segment_flag", "size", "within",
    )  # fmt: skip

    def __init__(self) -> None:
        self.command = b""
        self.header = b""
        self.body = b""
        self.segment: bytes | bytearray = b""
        """What of the current segment is kept."""
        self.size = 0
        """Octets of the segment so far; of the one that was too large, once there was one."""
        self.held = 0
        """Octets of it that count as spooled."""
        self.kind = -1
        """Type of the current or last segment."""
        self.within = False
        """In the middle of a segment."""
        self.segment_flag = 0
        self.limit = 0
        """The limit that header or body broke; 0: none."""
        self.limit_kind = -1
        """Which of the two broke it."""


class Assembler:
    """What is unfinished on one connection."""

    __slots__ = ("_commands", "_limits", "_most", "_open", "spooled")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: dict[int, _Open] = {}
        self._most = 2 * (limits.channel_max + 1)
        self._commands = 0
        """Octets of unfinished controls and commands, over all channels."""
        self.spooled = 0
        """Octets of unfinished headers and bodies, over all channels."""

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
            if len(self._open) >= self._most:
                raise FrameSyntaxError(f"more than {self._most} controls and commands are unfinished")
            assembly = self._open[key] = _Open()
        elif assembly.within:
            if kind != assembly.kind or flags & FIRST_FRAME or flags & LAST_SEGMENT != assembly.segment_flag:
                raise FrameSyntaxError(f"flags {flags:02x} and segment type {kind} within a segment")
        elif kind <= assembly.kind or flags & (FIRST_SEGMENT | FIRST_FRAME) != FIRST_FRAME:
            raise FrameSyntaxError(f"flags {flags:02x} and segment type {kind} where a segment begins")
        if flags & FIRST_FRAME:
            assembly.kind = kind
            assembly.segment_flag = flags & LAST_SEGMENT
            if not assembly.limit:
                assembly.size = 0
        if kind <= COMMAND:
            self._take_command(assembly, payload)
        elif not assembly.limit:
            self._take(assembly, kind, payload)
        elif assembly.limit_kind == kind:
            assembly.size += len(payload)
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
        if assembly.limit:
            return Content(assembly.command, assembly.header, None, assembly.size, assembly.limit)
        return Content(assembly.command, assembly.header, assembly.body, len(assembly.body), 0)

    def _take_command(self, assembly: _Open, payload: bytes) -> None:
        """A piece of a control or command. It cannot be dropped: the ids of all behind it would be wrong."""
        self._commands += len(payload)
        if self._commands > self._limits.header_max:
            raise FrameSyntaxError(f"unfinished controls and commands of more than {self._limits.header_max} octets")
        _append(assembly, payload)

    def _take(self, assembly: _Open, kind: int, payload: bytes) -> None:
        limits = self._limits
        size = assembly.size = assembly.size + len(payload)
        most = limits.message_max if kind == BODY else limits.header_max
        if size > most:
            assembly.limit = most
        elif self.spooled + len(payload) > limits.spool_max:
            assembly.limit = limits.spool_max
        if assembly.limit:
            assembly.limit_kind = kind
            self.spooled -= len(assembly.segment)
            assembly.held -= len(assembly.segment)
            assembly.segment = b""
        else:
            self.spooled += len(payload)
            assembly.held += len(payload)
            _append(assembly, payload)

    def _end_segment(self, assembly: _Open, kind: int) -> None:
        octets, assembly.segment = bytes(assembly.segment), b""
        if kind == BODY:
            assembly.body = octets
        elif kind == HEADER:
            assembly.header = octets
        else:
            assembly.command = octets
            if not assembly.segment_flag and (kind == CONTROL or octets[:2] not in _WITH_CONTENT):
                raise FrameSyntaxError(f"content behind {octets[:2].hex()}, which has none")

    def _release(self, assembly: _Open) -> None:
        self._commands -= len(assembly.command) or len(assembly.segment)
        self.spooled -= assembly.held


def _append(assembly: _Open, payload: bytes) -> None:
    if not assembly.segment:
        assembly.segment = payload
        return
    if type(assembly.segment) is bytes:
        assembly.segment = bytearray(assembly.segment)
    assembly.segment += payload
