"""Commands that were sent and are not complete, for a session that outlives its connection (specification section 6.9).

When such a session is attached again, each end says which commands it expects, and the other sends those once more,
under their ids, behind a session.command-point. What is complete is forgotten; so what is held is bounded by how far
the peer is behind, and never more than the limits here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from gateway.errors import FrameSyntaxError
from gateway.v010.execution import within
from gateway.v010.frames import BODY, COMMAND, FIRST_SEGMENT, HEADER, LAST_SEGMENT, write_segment

COMMANDS_MAX: Final = 65_536
"""Most commands that are held for one session."""


class Sent(NamedTuple):
    """A command, and its content if it has any."""

    segment: bytes
    header: bytes | None = None
    body: bytes = b""

    @property
    def octets(self) -> int:
        """What it takes."""
        return len(self.segment) + len(self.header or b"") + len(self.body)

    def frames(self, wire: int, frame_max: int) -> list[bytes]:
        """It on a channel."""
        if self.header is None:
            return write_segment(self.segment, COMMAND, COMMAND, wire, frame_max)
        last = 0 if self.body else LAST_SEGMENT
        frames = write_segment(self.segment, COMMAND, COMMAND, wire, frame_max, FIRST_SEGMENT)
        frames += write_segment(self.header, HEADER, COMMAND, wire, frame_max, last)
        if self.body:
            frames += write_segment(self.body, BODY, COMMAND, wire, frame_max, LAST_SEGMENT)
        return frames


class Replay:
    """What one end of a session may have to send again."""

    __slots__ = ("_commands", "octets", "octets_max")

    def __init__(self, octets_max: int) -> None:
        self.octets_max = octets_max
        self.octets = 0
        self._commands: dict[int, Sent] = {}

    def __len__(self) -> int:
        return len(self._commands)

    @property
    def full(self) -> bool:
        """No more should be sent before something is complete. One command is held however large it is."""
        return len(self._commands) >= COMMANDS_MAX or (self.octets > self.octets_max and len(self._commands) > 1)

    @property
    def over(self) -> bool:
        """It is twice what it should be, and no more is held."""
        few = len(self._commands) < 2 * COMMANDS_MAX
        return not few or (self.octets > 2 * self.octets_max and len(self._commands) > 1)

    @property
    def half_full(self) -> bool:
        """It is time to ask what is complete."""
        return 2 * len(self._commands) >= COMMANDS_MAX or 2 * self.octets >= self.octets_max

    def add(self, number: int, sent: Sent) -> None:
        """A command is sent. Ids only grow."""
        self._commands[number] = sent
        self.octets += sent.octets

    def forget(self, ranges: Iterable[tuple[int, int]], newest: int) -> None:
        """Commands are complete. The ranges may be lies."""
        for number in within(self._commands, ranges, newest):
            self.octets -= self._commands.pop(number).octets

    def runs(self, expected: list[tuple[int, int]], following: int) -> Iterator[tuple[int, list[Sent]]]:
        """What to send again: the id to begin with, and the commands from there on. ``expected``, in order: what the
        peer waits for, the last of it open at its end; ``following``: the id of the command that was not sent yet.

        Raises:
            FrameSyntaxError: it waits for what was never sent, or for what it has said is complete.
        """
        *missing, (start, _) = expected
        for first, last in (*missing, (start, following - 1)):
            if last - first >= len(self._commands) or first > following or last >= following:
                raise FrameSyntaxError(f"session.expected {first & 0xFFFFFFFF} where it cannot be missing")
            try:
                yield first, [self._commands[number] for number in range(first, last + 1)]
            except KeyError as error:
                number = error.args[0]
                raise FrameSyntaxError(f"session.expected {number & 0xFFFFFFFF}, which is complete") from None
