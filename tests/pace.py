"""How long a piece of work takes, said so that a busy machine and a watching coverage do not spoil it.

::

    assert seconds(lambda: read(octets), enough=0.050) < 0.050
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.amqp.values import Typed

ROUNDS = 8
IDLE = 0.012
"""What :func:`pace` does takes so many seconds on an idle machine of the kind that the limits are meant for."""


@contextmanager
def untraced() -> Iterator[None]:
    """Nothing watches what runs inside: coverage makes code several times slower."""
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)


def pace() -> float:
    """How many times longer than on an idle machine the same work takes at the moment, at least 1."""
    start = time.process_time()
    [Typed("str8", str(number)) for number in range(40_000)]
    return max(1.0, (time.process_time() - start) / IDLE)


def seconds(call: Callable[[], object], enough: float) -> float:
    """CPU that ``call`` takes when nobody disturbs it: the best of a few rounds, or the first that is below
    ``enough``. Collections are put off, for they count the objects of all other tests."""
    took = float("inf")
    gc.disable()
    try:
        with untraced():
            for _ in range(ROUNDS):
                start = time.process_time()
                call()
                last = time.process_time() - start
                took = min(took, last if last < enough else last / pace())
                if took < enough:
                    break
    finally:
        gc.enable()
    return took
