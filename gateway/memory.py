"""Memory that is free goes back to the system.

What a burst of messages took is freed when it is over, but glibc keeps it: a few objects that live on between the holes
are enough. So a process would stay as large as its worst minute, and creep up with each that is worse. Now and then it
is told to give back what it does not use. While it does that nobody else gets memory, so what is large is not in those
holes: it is mapped by itself, and goes back as soon as it is free. Where the C library has no such calls, nothing is
done.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
from collections.abc import Iterator
from typing import Final

from gateway.runtime.clock import clock
from gateway.runtime.threads import threads

EVERY: Final = 60.0
"""How often, in seconds."""
MAPPED: Final = 512 << 10
"""From so many octets on an object is mapped by itself. What is read from a socket at a time is smaller. If this is not
set, glibc raises it to 32 MiB with the first large object that is freed."""
_MMAP_THRESHOLD: Final = -3
"""``M_MMAP_THRESHOLD`` of malloc.h."""


def map_large() -> bool:
    """Have what is large mapped by itself from now on, in all threads; whether the C library does that."""
    try:
        option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(option(_MMAP_THRESHOLD, MAPPED))


def give_back() -> bool:
    """Give back what is free, with young objects that only hold each other; whether there was anything. Takes
    milliseconds, in most of which other threads go on, unless they allocate from the same arena."""
    gc.collect(1)  # the service collects seldom by itself, and what failed leaves tracebacks in circles
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return False
    return bool(trim(0))


@contextlib.contextmanager
def given_back() -> Iterator[None]:
    """As long as the block, do so every minute. What is large is mapped by itself, also afterwards. Needs a running
    loop."""
    map_large()

    async def keep() -> None:
        while True:
            await clock.sleep(EVERY)
            await threads.run(give_back)

    task = asyncio.get_running_loop().create_task(keep(), name="memory")
    try:
        yield
    finally:
        task.cancel()
