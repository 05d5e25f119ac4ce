"""Threads: the only places that start one or hand work to one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from threading import Thread
from typing import ClassVar, Final, ParamSpec, TypeVar

SWITCH_INTERVAL: Final = 0.001
"""How long a thread waits for the interpreter's lock before it asks the holder to release it, in seconds. The ledger's
writer releases it for every statement, and beside a busy event loop waits for it again as often; with the default of
5 ms ten callers got a third of the commits."""
STARVED_INTERVAL: Final = 0.000_05
"""The same while a thread starves. It costs an event loop about 5 % of CPU: threads interrupt it more often."""
STARVED_AFTER: Final = 0.05
"""A thread starves when it finishes nothing for this long, in seconds: longer than a commit takes under full load."""
STARVED_FOR: Final = 0.5
"""How long the short interval stays after that, in seconds."""

P = ParamSpec("P")
T = TypeVar("T")


class StarvationGuard:
    """Guard against an event loop that leaves other threads no time.

    A thread that waits for the interpreter's lock asks for it after a whole interval in which nobody released it. An
    event loop releases it for every look at its sockets. One that answers short requests without a pause does so more
    than once in an interval, and takes it back before another thread has woken up, which then waits again from the
    start: a pull of 3 ms took 1.7 s. While work waits for a thread that finishes nothing, the interval is short.

    All methods belong to the event loop.
    """

    __slots__ = ("_finished", "_loop", "_timer", "_until", "_waiting")
    _starved: ClassVar[set[StarvationGuard]] = set()
    """The guards for whose threads the interval is short now."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting = 0
        self._finished = False
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, count: int = 1) -> None:
        """Count pieces of work that are given to a thread."""
        self._waiting += count
        if self._timer is None:
            self._finished = False
            self._timer = self._loop.call_later(STARVED_AFTER, self._look)

    def end(self, count: int = 1) -> None:
        """Count pieces of work that a thread has finished, or that nobody waits for any more."""
        self._waiting -= count
        self._finished = True

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._set(starved=False)

    def _look(self) -> None:
        now = self._loop.time()
        if self._waiting and not self._finished:
            self._until = now + STARVED_FOR
        self._finished = False
        starved = now < self._until
        self._set(starved)
        again = self._waiting or starved
        self._timer = self._loop.call_later(STARVED_AFTER, self._look) if again else None

    def _set(self, starved: bool) -> None:
        if starved == (self in self._starved):
            return
        if starved:
            self._starved.add(self)
        else:
            self._starved.remove(self)
        sys.setswitchinterval(STARVED_INTERVAL if self._starved else SWITCH_INTERVAL)


class Threads:
    """Work that would hold up the event loop, and threads that live as long as their owner."""

    async def run(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call a function in a thread of the loop's pool, with this task's context."""
        return await self.submit(None, partial(function, *arguments, **named))

    def submit(
        self, pool: Executor | None, function: Callable[P, T], *arguments: P.args, **named: P.kwargs
    ) -> asyncio.Future[T]:
        """Call a function in a thread of this pool (None: the loop's), with this task's context."""
        call = partial(copy_context().run, function, *arguments, **named)
        return asyncio.get_running_loop().run_in_executor(pool, call)

    def pool(self, workers: int, name: str) -> Executor:
        """Return a pool of at most ``workers`` threads, which start when they are needed."""
        return ThreadPoolExecutor(workers, name)

    def start(self, function: Callable[..., object], *arguments: object, name: str, daemon: bool = True) -> Thread:
        """Start a thread. One that is ``daemon`` does not keep the process from ending."""
        thread = Thread(target=function, args=arguments, name=name, daemon=daemon)
        thread.start()
        return thread

    def guard(self) -> StarvationGuard:
        """Return a guard for the threads of one owner on this loop."""
        return StarvationGuard()


threads: Final = Threads()
"""The threads of this process."""
