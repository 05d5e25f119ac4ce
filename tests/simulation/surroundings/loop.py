"""An event loop with virtual time, for several processes that are simulated in one thread.

Each process (a gateway, a broker, a caller) is a :class:`Node`. A callback belongs to the node in whose context it was
scheduled, and so do all tasks that it starts. Within a node callbacks run in the order in which they became ready, as
asyncio promises; which node has its turn next is drawn from the seed, since real processes do not wait for each other.
Time stands still while callbacks run, apart from steps that are drawn, and jumps to the next timer when nothing is
ready. A node may be paused for a while, as by a garbage collector or SIGSTOP, and killed between any two callbacks:
nothing of it runs afterwards.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import weakref
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from typing import Any, Final

START: Final = 1_000.0
"""Where the monotonic clock begins, in seconds."""
WALL: Final = 1_790_000_000.0
"""What the wall clock says then, in seconds since 1970."""
STEPS_MAX: Final = 2_000_000
"""So many callbacks in one world mean that somebody runs in a circle."""
STILL_MAX: Final = 100_000
"""So many callbacks without any time that passes mean the same."""
STEP_SHARE: Final = 0.2
"""After this share of the turns a little time passes."""
STEP_SECONDS: Final = 0.0001
TASKS_KEPT: Final = 64
"""After so many tasks those that have ended are forgotten."""


_new: Final = object.__new__


class SimulationError(Exception):
    """The world itself went wrong: somebody runs in a circle, or everybody waits for somebody else."""


class Node:
    """One simulated process."""

    __slots__ = (
        "_tasks", "alive", "context", "failures", "handler", "is_queued", "name", "paused_until", "ready",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.ready: deque[SimHandle] = deque()
        self.paused_until = 0.0
        self.handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self.failures: list[dict[str, Any]] = []
        """What was reported to the exception handler."""
        self._tasks: list[weakref.ref[SimTask]] = []
        self.is_queued = False
        """It is among those that may run next."""
        self.context: Context = copy_context()
        self.context.run(NODE.set, self)

    def __repr__(self) -> str:
        return self.name

    def add(self, task: SimTask) -> None:
        """One of its tasks has begun. It is not held: a task that failed says so when nobody holds it any more."""
        tasks = self._tasks
        tasks.append(weakref.ref(task))
        if len(tasks) % TASKS_KEPT == 0:
            self._tasks = [each for each in tasks if (found := each()) is not None and not found.done()]

    @property
    def tasks(self) -> list[SimTask]:
        """Its tasks that have not ended, the oldest first."""
        return [task for each in self._tasks if (task := each()) is not None and not task.done()]


NODE: Final[ContextVar[Node]] = ContextVar("node")


class SimHandle(events.Handle):
    """A callback, and the node that it belongs to. The loop makes it without a call of its own: there are thousands."""

    __slots__ = ("node",)

    node: Node

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._callback} {self._args}>"

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]


class SimTimer(SimHandle):
    """The same at a time."""

    __slots__ = ("_when",)

    _when: float

    def when(self) -> float:
        """When it is due."""
        return self._when


class SimTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on where it lies in memory."""

    __slots__ = ("number",)

    number: int

    def __hash__(self) -> int:
        return self.number


class SimFuture(asyncio.Future[Any]):
    """The same of a future."""

    __slots__ = ("number",)

    number: int

    def __hash__(self) -> int:
        return self.number


class SimLoop(asyncio.BaseEventLoop):
    """See the module."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.now = START
        self.chance = chance
        self.steps = 0
        self.still = 0
        self.world = Node("world")
        self.running = self.world
        """Whose turn it is."""
        self.kept: list[object] = []
        """What belongs to killed nodes: its destructors must not run before the world has ended."""
        self._numbers = itertools.count(1)
        self._runnable: list[Node] = []
        self._timers: list[tuple[float, float, int, SimTimer]] = []
        self.deadline = float("inf")
        """A world that lasts longer than this is an error."""

    # ------------------------------------------------------------------------------------------- time and turns

    def time(self) -> float:
        return self.now

    def wall(self) -> float:
        """The wall time, in seconds since 1970."""
        return WALL + self.now - START

    def wall_ns(self) -> int:
        """The same in nanoseconds."""
        return int(self.wall() * 1e6) * 1000

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> SimHandle:
        handle = _new(SimHandle)
        handle._callback, handle._args, handle._cancelled = callback, args, False
        if context is None:
            handle._context, node = copy_context(), self.running
        else:
            handle._context, node = context, context.get(NODE, self.world)
        handle.node = node
        if node.alive:
            node.ready.append(handle)
            if not node.is_queued:
                node.is_queued = True
                self._runnable.append(node)
        else:
            self.kept.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimHandle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimTimer:
        when = self.now + delay if delay > 0.0 else self.now
        return self.call_at(when, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimTimer:
        handle = _new(SimTimer)
        handle._callback, handle._args, handle._cancelled, handle._when = callback, args, False, when
        if context is None:
            handle._context, handle.node = copy_context(), self.running
        else:
            handle._context, handle.node = context, context.get(NODE, self.world)
        heappush(self._timers, (when, self.chance.random(), next(self._numbers), handle))
        return handle

    def _due(self) -> None:
        """Have the timers run that are due."""
        timers, now = self._timers, self.now
        while timers and timers[0][0] <= now:
            handle = heappop(timers)[3]
            if handle._cancelled:
                continue
            node = handle.node
            if node.alive:
                node.ready.append(handle)
                if not node.is_queued:
                    node.is_queued = True
                    self._runnable.append(node)
            else:
                self.kept.append(handle)

    def _run_once(self) -> None:
        chance, runnable, timers = self.chance.random, self._runnable, self._timers
        self._due()
        while not self._stopping:  # type: ignore[attr-defined]
            count = len(runnable)
            index = int(chance() * count) if count > 1 else 0
            node = runnable[index] if count else None
            if node is not None and node.paused_until > self.now:
                awake = [each for each in runnable if each.paused_until <= self.now]
                node = awake[int(chance() * len(awake))] if awake else None
                index = runnable.index(node) if node is not None else 0
            if node is None:
                self._jump()
                continue
            runnable[index] = runnable[-1]
            runnable.pop()
            node.is_queued = False
            self.running = node
            ready = node.ready
            for _ in range(len(ready)):
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                self.steps += 1
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self._failed(handle, error)
                if not node.alive or self._stopping:  # type: ignore[attr-defined]
                    break
            self.still += 1
            if ready and not node.is_queued and node.alive:
                node.is_queued = True
                runnable.append(node)
            if chance() < STEP_SHARE:
                self.now += STEP_SECONDS
                self.still = 0
            elif self.still > STILL_MAX or self.steps > STEPS_MAX:
                raise SimulationError(f"{node} runs in a circle")
            if timers and timers[0][0] <= self.now:
                self._due()

    def _failed(self, handle: SimHandle, error: BaseException) -> None:
        """A callback has raised."""
        context = {"message": f"Exception in callback {handle._callback}", "exception": error, "handle": handle}
        handle._context.run(self.call_exception_handler, context)

    def _jump(self) -> None:
        """Nothing can run now: let time pass."""
        timers = self._timers
        while timers and timers[0][3]._cancelled:
            heappop(timers)
        until = timers[0][0] if timers else float("inf")
        for node in self._runnable:  # which is paused
            until = min(until, node.paused_until)
        if until > self.now:
            self.now = until
        self.still = 0
        if until == float("inf"):
            raise SimulationError("everybody waits for somebody else")
        if until > self.deadline:
            raise SimulationError(f"the world has not ended after {self.now - START:.0f} s")
        self._due()

    # ------------------------------------------------------------------------------------------- nodes

    def start(self, node: Node, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run a coroutine in a node."""
        return self.create_task(work, name=name, context=node.context)

    def kill(self, node: Node) -> None:
        """End a node between two callbacks. Nothing of it runs any more, and nothing of it is cleaned up."""
        node.alive = False
        self.kept.extend(node.ready)
        self.kept.extend(node.tasks)
        for _, _, _, handle in self._timers:
            if handle.node is node and not handle._cancelled:
                self.kept.append(copy_handle(handle))
                handle.cancel()
        node.ready.clear()
        if node.is_queued:
            node.is_queued = False
            self._runnable.remove(node)

    def clear(self) -> None:
        """Forget all that is to come."""
        self._timers.clear()
        self._runnable.clear()

    def timers_of(self, node: Node) -> list[SimTimer]:
        """The timers that a node has set."""
        return [handle for _, _, _, handle in self._timers if not handle._cancelled and handle.node is node]

    def create_task(  # type: ignore[override]
        self, work: Any, *, name: str | None = None, context: Context | None = None
    ) -> SimTask:
        task = SimTask(work, loop=self, name=name, context=context)
        task.number = next(self._numbers)
        node = self.running if context is None else context.get(NODE, self.world)
        node.add(task)
        return task

    get_debug = staticmethod(bool)  # type: ignore[assignment]
    """Never. Each future asks, so it is no function of Python's."""

    def create_future(self) -> SimFuture:
        future = SimFuture(loop=self)
        future.number = next(self._numbers)
        return future

    def set_exception_handler(self, handler: Any) -> None:
        (NODE.get(None) or self.world).handler = handler

    def get_exception_handler(self) -> Any:
        return (NODE.get(None) or self.world).handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        node = NODE.get(None) or self.world
        if node.alive:
            node.failures.append(context)
            if node.handler is not None:
                node.handler(self, context)

    # ------------------------------------------------------------------------------------------- not used

    def _process_events(self, event_list: Any) -> None:
        """Nothing to do: no file is watched."""

    def _write_to_self(self) -> None:
        """It never sleeps."""

    def add_signal_handler(self, sig: int, callback: Callable[..., Any], *args: Any) -> None:
        """No signals come."""


def copy_handle(handle: SimHandle) -> tuple[Any, ...]:
    """What a handle holds, which it forgets when it is cancelled."""
    return (handle._callback, handle._args, handle._context)
