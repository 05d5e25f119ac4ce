"""Log lines that come again and again: the first are written, of the rest the last one, and how many there were.

A line is the same as another one where logger, event and :data:`ABOUT` are. :data:`BURST` of them are written in
:data:`WINDOW` seconds. What is more is withheld; when the window is over the last of those is written, with
``repeats``: so many lines it stands for. So a log cannot fill a disk over one broken thing, and still ends with how
that thing is.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, TextIO

from gateway.runtime.clock import monotonic_time

BURST: Final = 20
"""Lines of a kind that are written in a window."""
WINDOW: Final = 10.0
"""How long a window is, in seconds."""
KINDS_MAX: Final = 1_000
"""Of how many kinds the windows are kept; the oldest end early."""
TEXT_MAX: Final = 120
"""So many characters of a line of others say what kind it is."""
FIELDS: Final = "gateway_fields"
"""Attribute of a record: the fields of its event."""
ABOUT: Final = (
    "broker", "connection", "queue", "bridge", "tap", "subscription", "endpoint", "kind", "name", "process", "replay",
    "state",
)  # fmt: skip
"""Fields that say what a line is about."""
COUNTED_ELSEWHERE: Final = frozenset({"http.request"})
"""Events that are bounded where they are written."""


class RepeatWindow:
    """What is known of one kind of line."""

    __slots__ = ("began", "last", "withheld", "written")

    def __init__(self, began: float) -> None:
        self.began = began
        self.written = 0
        self.withheld = 0
        self.last: logging.LogRecord | None = None
        """The last one that was withheld."""


class Repeats:
    """Which lines are written."""

    def __init__(self, clock: Callable[[], float] = monotonic_time) -> None:
        self._clock = clock
        self._windows: OrderedDict[Hashable, RepeatWindow] = OrderedDict()
        """The oldest first."""

    def admits(self, record: logging.LogRecord) -> bool:
        """Whether it is written now."""
        if record.msg in COUNTED_ELSEWHERE:
            return True
        key = _kind(record)
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = RepeatWindow(self._clock())
        if window.written < BURST:
            window.written += 1
            return True
        window.withheld += 1
        window.last = record
        return False

    def over(self, *, all_of_them: bool = False) -> list[logging.LogRecord]:
        """The last lines of windows that are over, each with ``repeats``."""
        windows, now = self._windows, self._clock()
        found: list[logging.LogRecord] = []
        while windows:
            key, window = next(iter(windows.items()))
            if not all_of_them and now - window.began < WINDOW and len(windows) <= KINDS_MAX:
                break
            del windows[key]
            if window.last is not None:
                fields: dict[str, Any] = getattr(window.last, FIELDS, {})
                setattr(window.last, FIELDS, {**fields, "repeats": window.withheld})
                found.append(window.last)
        return found


class RepeatLines(logging.StreamHandler[TextIO]):
    """Writes lines, but not each repeat."""

    def __init__(self, stream: TextIO, repeats: Repeats | None = None) -> None:
        super().__init__(stream)
        self._repeats = repeats if repeats is not None else Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        """Write what windows that are over have left, and this one if it may be."""
        for late in self._repeats.over():
            super().emit(late)
        if self._repeats.admits(record):
            super().emit(record)

    def settle(self, *, all_of_them: bool = False) -> None:
        """Write what windows that are over have left, though nothing else is to be written."""
        self.acquire()
        try:
            for late in self._repeats.over(all_of_them=all_of_them):
                super().emit(late)
        finally:
            self.release()

    def close(self) -> None:
        """Write all that was withheld."""
        self.settle(all_of_them=True)
        super().close()


def _kind(record: logging.LogRecord) -> Hashable:
    fields: dict[str, Any] | None = getattr(record, FIELDS, None)
    if fields is None:
        return record.name, str(record.msg)[:TEXT_MAX]
    return record.msg, *(str(fields[name]) if name in fields else None for name in ABOUT)
