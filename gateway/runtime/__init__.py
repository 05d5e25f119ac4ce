"""Time, chance, threads and tasks: the only modules that read a clock, sleep, draw a random number or start a thread.

Each module has one object that everybody shares: :data:`~gateway.runtime.clock.clock`, :data:`~gateway.runtime.ids.ids`
and :data:`~gateway.runtime.threads.threads`. A test, or a simulation, replaces what these objects do with
:func:`replaced`; the code that uses them stays as it is. So call them where they are used (``clock.now()``), and do not
keep one of their functions in a variable or a default: it would outlive its replacement. ``make layers`` checks both.

Timers belong to the event loop (``call_later``, ``call_at``, ``asyncio.timeout``): who replaces the loop replaces them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(seam: object, **functions: Callable[..., Any]) -> Iterator[None]:
    """Replace functions of a shared object for the length of the block: ``replaced(clock, now=lambda: 0.0)``."""
    before = {name: getattr(seam, name) for name in functions}
    for name, function in functions.items():
        setattr(seam, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(seam, name, function)
