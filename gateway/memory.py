"""Give memory that is free back to the system.

When a burst of messages is over, its memory is free, but glibc keeps it: a few objects that live on between the holes
are enough. So a process would stay as large as in its worst minute. Once a minute the gateway has glibc give back what
is free, after the collector has freed what only holds itself: each connection that ends leaves such a circle. Other
threads get no memory meanwhile, so large objects are kept out of those holes: each gets a mapping of its own, which
goes back as soon as it is free. A C library without such calls is left alone.
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
RARELY: Final = 5_000.0
"""The collector looks at old objects, too, when so many times the time has passed that it took last. Everybody waits
for it: a few milliseconds where some ten thousand objects are there."""
MAPPED: Final = 512 << 10
"""Objects of this many octets or more get a mapping of their own. One read of a socket is smaller. Unless this is set,
glibc raises it with each larger object that is freed, up to 32 MiB."""
_MMAP_THRESHOLD: Final = -3
"""``M_MMAP_THRESHOLD`` of malloc.h."""


def map_large() -> bool:
    """Give large objects a mapping of their own from now on, in all threads; return whether the C library does that."""
    try:
        option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(option(_MMAP_THRESHOLD, MAPPED))


def give_back() -> bool:
    """Give back what is free; whether there was anything. Takes milliseconds, in most of which other threads go on,
    unless they allocate from the same arena."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return False
    return bool(trim(0))


@contextlib.contextmanager
def given_back() -> Iterator[None]:
    """Collect, and give back what is free, every minute, as long as the block. Large objects get mappings of their own,
    also afterwards. Needs a running loop."""
    map_large()

    async def keep() -> None:
        collect_old_at = 0.0
        while True:
            await clock.sleep(EVERY)
            began = clock.monotonic()
            if began < collect_old_at:
                gc.collect(1)
            else:
                gc.collect()  # by itself it comes by seldom, and a connection that ends is old
                collect_old_at = began + RARELY * (clock.monotonic() - began)
            await threads.run(give_back)

    task = asyncio.get_running_loop().create_task(keep(), name="memory")
    try:
        yield
    finally:
        task.cancel()
