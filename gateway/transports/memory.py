"""Two streams joined inside the process, for tests and for a broker in the same process.

A :class:`MemoryTransport` behaves as a socket's transport does: what is written arrives in a later turn of the
loop, a reader that pauses fills the writer's buffer until ``pause_writing``, and end of file follows the last
octet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from gateway.transports.stream import Stream


class MemoryTransport(asyncio.Transport):
    """One end. ``other`` is set by :func:`memory_pair`."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.other: MemoryTransport | None = None
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._buffer: list[bytes] = []
        self._size = 0
        self._high, self._low = 1 << 16, 1 << 14
        self._scheduled = self._closing = self._lost = self._writing_paused = self._reading_paused = False

    # ------------------------------------------------------------------------------------------ writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self._lost:
            return
        self._buffer.append(bytes(data))
        self._size += len(data)
        if self._size > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()
        self._wake()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self._size

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 1 << 16 if high is None else high
        self._low = self._high // 4 if low is None else low

    def close(self) -> None:
        """Deliver what was written, then end the stream on both sides."""
        if not self._closing:
            self._closing = True
            self._wake()

    def abort(self) -> None:
        self._buffer.clear()
        self._size = 0
        self.close()

    def is_closing(self) -> bool:
        return self._closing or self._lost

    # ------------------------------------------------------------------------------------------ reading

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        if self.other is not None:
            self.other._wake()

    def is_reading(self) -> bool:
        return not self._reading_paused

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    # ------------------------------------------------------------------------------------------ moving

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._move)

    def _move(self) -> None:
        """Hand what was written to the other end."""
        self._scheduled = False
        other = self.other
        if other is None or self._lost:
            return
        if self._buffer and not other._reading_paused and not other._lost:
            data = b"".join(self._buffer)
            self._buffer.clear()
            self._size = 0
            if self._writing_paused:
                self._writing_paused = False
                self._loop.call_soon(self._resume)
            other._protocol.data_received(data)
        if self._closing and not self._buffer:
            self._lose()
            if not other._lost:
                other._protocol.eof_received()
                other._lose()

    def _resume(self) -> None:
        if not self._lost:
            self._protocol.resume_writing()

    def _lose(self) -> None:
        if not self._lost:
            self._lost = True
            self._loop.call_soon(self._protocol.connection_lost, None)


def memory_pair(left: Stream | asyncio.Protocol, right: Stream | asyncio.Protocol) -> None:
    """Join two protocols: each is given its transport at once."""
    one, two = MemoryTransport(left), MemoryTransport(right)
    one.other, two.other = two, one
    left.connection_made(one)
    right.connection_made(two)
