"""Background tasks: kept from the garbage collector, ended together, and reported if they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

from gateway.runtime.clock import clock

T = TypeVar("T")

FAILED_TASK: Final = "failed_task"
"""Key of the context that the loop's exception handler gets: whose task failed."""


class Tasks:
    """The background tasks of one owner.

    A failure goes to the event loop's exception handler, which the gateway replaces with one that logs ``task.failed``
    and counts it. So every failure is reported in one way.
    """

    def __init__(
        self,
        owner: str,
        *,
        expected: tuple[type[BaseException], ...] = (),
        on_failure: Callable[[BaseException], None] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """
        Args:
            owner: A fixed name for logs and metrics. What varies, such as a queue, belongs to the task's name.
            expected: Errors that their callers got already; they are not reported.
            on_failure: Called with an error instead of the report, where the owner has an answer of its own.
            on_end: Called after each task that has ended.
        """
        self._owner = owner
        self._expected = expected
        self._on_failure = on_failure
        self._on_end = on_end
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(tuple(self._running))

    def start(self, work: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Run a coroutine in the background. Needs a running loop."""
        task = asyncio.get_running_loop().create_task(work, name=name or self._owner)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """End all that run. One that has not begun yet never does."""
        for task in self:
            task.cancel()

    async def join(self, within_seconds: float | None = None) -> bool:
        """Wait for all that run, also for those that they start. Return whether they have ended in time."""
        deadline = None if within_seconds is None else clock.monotonic() + within_seconds
        while self._running:
            left = None if deadline is None else max(0.0, deadline - clock.monotonic())
            _, late = await asyncio.wait(self._running, timeout=left)
            if late:
                return False
        return True

    async def close(self, within_seconds: float = 0.0) -> None:
        """Give the tasks so long to end, then cancel those that still run, and wait for them."""
        if within_seconds > 0:
            await self.join(within_seconds)
        self.cancel()
        await self.join()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, self._expected):
            if self._on_failure is not None:
                self._on_failure(error)
            else:
                report(self._owner, error, task.get_name())
        if self._on_end is not None:
            self._on_end()


def report(owner: str, error: BaseException, name: str = "") -> None:
    """Report that a background task failed. Needs a running loop."""
    context = {"message": f"{owner} failed", FAILED_TASK: owner, "exception": error, "name": name or owner}
    asyncio.get_running_loop().call_exception_handler(context)
