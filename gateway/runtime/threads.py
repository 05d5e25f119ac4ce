"""Threads: the only places that start one or hand work to one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from threading import Thread
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


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


threads: Final = Threads()
"""The threads of this process."""
