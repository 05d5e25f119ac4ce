"""Put the simulation's time, chance, threads and network in the place of the real ones.

What is replaced is what ``gateway/runtime`` offers, and besides it the operating system: bound sockets, SQLite's clock
and commits, and the queue on which the ledger's writer waits. The code of the product runs as it is. The writer has a
thread of its own only in name: it runs in the loop's thread until it waits for its queue, and is begun again when there
is something in it. How long a transaction takes is drawn from the seed, and its answers come that much later.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import sqlite3
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache, partial
from math import inf, nextafter
from queue import Empty
from typing import Any

import sqlalchemy as sa
from anyio._backends._asyncio import CancelScope
from httpx._transports import default
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway import app, memory
from gateway.broker import queues
from gateway.broker.served import Served
from gateway.ledger.db import engine
from gateway.ledger.db.engine import Database
from gateway.ledger.writing import writer
from gateway.outbound.transport import GuardedTransport
from gateway.runtime import replaced
from gateway.runtime.clock import clock
from gateway.runtime.ids import ids
from gateway.runtime.threads import threads
from gateway.upstreams.consuming.consumers import Consumer
from gateway.upstreams.consuming.leases import LeaseChannel
from gateway.upstreams.upstream import Upstream
from tests.simulation.surroundings.loop import NODE, START, WALL, Node, SimLoop
from tests.simulation.surroundings.network import Network


class Parked(BaseException):
    """A thread waits for its queue: it is begun again when there is something."""


class Killed(BaseException):
    """The process is dead: the transaction under way is not committed."""


class ThreadQueue:
    """The queue of a thread that runs in the loop's thread."""

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self.wake: Callable[[], None] = lambda: None
        self.wake_after: Callable[[float], None] = lambda seconds: None

    def put(self, item: Any) -> None:
        """Put an item in, and have the thread run soon."""
        self.items.append(item)
        self.wake()

    def get(self, timeout: float | None = None) -> Any:
        """Take the next item. With a time-out the thread begins again after that many seconds at the latest."""
        if not self.items:
            if timeout is not None:
                self.wake_after(timeout)
            raise Parked
        return self.items.popleft()

    def get_nowait(self) -> Any:
        """Take the next item, if there is one."""
        if not self.items:
            raise Empty
        return self.items.popleft()


class FakeThread:
    """A thread that runs in turns of the event loop."""

    def __init__(self, seams: Seams, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self.seams = seams
        self.call = partial(function, *arguments)
        self.done: asyncio.Future[None] = seams.loop.create_future()
        self.answered_at = 0.0
        """When its last answer arrives, on the loop's clock."""
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        queue = getattr(getattr(function, "__self__", None), "_queue", None)
        if isinstance(queue, ThreadQueue):
            queue.wake, queue.wake_after = self.wake, self.wake_after
        self.wake()

    def wake(self) -> None:
        """Run soon."""
        if not self._scheduled and not self.done.done():
            self._scheduled = True
            self.seams.loop.call_later(self.seams.thread_delay(), self._run)

    def wake_after(self, seconds: float) -> None:
        """Run after that many seconds, unless it runs before."""
        self._timer = self.seams.loop.call_later(seconds, self.wake)

    def _run(self) -> None:
        self._scheduled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.seams.begin_thread()
        try:
            self.call()
        except Parked:
            return
        except Killed:  # the node is killed in the world's next turn: until then this thread does nothing
            self._scheduled = True
            return
        finally:
            self.seams.end_thread(self)
        if not self.done.done():
            self.done.set_result(None)

    def join(self) -> None:
        """See :meth:`Seams.submit`, which waits for it."""


class Pool:
    """A pool of no threads."""

    def shutdown(self) -> None:
        """There is nothing to end."""


class Guard:
    """A guard that has nothing to do: a thread has as much time as its world gives it."""

    def begin(self, count: int = 1) -> None:
        """There is nothing to count."""

    def end(self, count: int = 1) -> None:
        """There is nothing to count."""

    def close(self) -> None:
        """There is nothing to end."""


ENGINES: dict[tuple[str, str, str], sa.Engine] = {}
"""Engines are kept from world to world, with the statements that they have compiled: node, URL and first statement ->
it."""
SEAMS: list[Seams] = []
"""Those of the world under way."""
CUT_OFF = "the connection was cut off"
"""The error of a process whose ledger is away. Its connection is lost, which SQLite alone never says."""
TASKS: Any = getattr(asyncio.tasks, "_scheduled_tasks" if sys.version_info >= (3, 12) else "_all_tasks")
"""What the interpreter remembers tasks in."""

IN_SETS = (CancelScope, HttpToolsProtocol, Served, Consumer, LeaseChannel, Upstream)
"""Classes whose objects are held in sets that somebody goes through. By their place in memory the order would be
another one in each process."""


def _same_hash(_: object) -> int:
    """One for all: then the order of a set is that in which they came."""
    return 0


class Ledgers:
    """Faults of the ledgers of a world."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        """Nodes whose commits fail."""
        self.leaving: set[str] = set()
        """Nodes whose connection is cut during the next commit; then their ledger is away."""
        self.away: set[str] = set()
        """Nodes that cannot reach the ledger."""
        self.unreadable: set[str] = set()
        """Nodes that cannot read it."""
        self.slow: dict[str, float] = {}
        """Node -> how long its transactions take, in seconds."""
        self.connections: dict[Node, list[Any]] = {}
        self.locks: dict[Node, list[Any]] = {}
        self.commits = 0
        self.on_commit: Callable[[Node, int], None] = lambda node, commits: None
        self.on_read: Callable[[Node, Any], None] = lambda node, connection: None

    def let_go(self, node: Node) -> None:
        """A killed process holds no files."""
        for connection in self.connections.pop(node, ()):
            connection.close()
        for (name, _, _), each in ENGINES.items():
            if name == node.name:
                each.dispose()
        for lock in self.locks.pop(node, ()):
            lock.close()


class Seams:
    """The replacements, for the length of a world."""

    def __init__(self, loop: SimLoop, network: Network, chance: random.Random, ids_chance: random.Random) -> None:
        self.loop, self.network, self.chance, self.ids_chance = loop, network, chance, ids_chance
        self.ledgers = Ledgers()
        self.on_message: Callable[[str, int], None] = lambda name, count: None
        """Called with the name of a far broker and how many messages have come to it."""
        self.on_body: Callable[[bytes], None] = lambda body: None
        """Called with the body of a message that has come to a far broker."""
        self.is_shared = False
        """Several processes use the ledger."""
        self._inside = False
        self._answers: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace everything."""
        _install()
        loop, network = self.loop, self.network
        loop.call_soon_threadsafe = self._from_thread  # type: ignore[method-assign]
        loop.create_server = network.create_server  # type: ignore[assignment]
        loop.create_connection = network.create_connection  # type: ignore[assignment]
        with (
            replaced(clock, now=loop.wall, now_ns=loop.wall_ns, monotonic=loop.time, block=self._block),
            replaced(ids, random_bytes=self.ids_chance.randbytes, fraction=self.ids_chance.random),
            replaced(threads, run=self._run, submit=self.submit, pool=self._pool, start=self._start, guard=Guard),
        ):
            SEAMS.append(self)
            try:
                yield
            finally:
                SEAMS.remove(self)

    # ------------------------------------------------------------------------------------------- threads

    def thread_delay(self) -> float:
        """After how long a thread gets its turn, in seconds."""
        return self.ledgers.slow.get(self.loop.running.name, 0.0) + int(self.chance.random() * 3) * 0.0002

    def begin_thread(self) -> None:
        """A thread works: what is handed to the loop meanwhile arrives when its work has taken its time."""
        self._inside = True

    def end_thread(self, thread: FakeThread) -> None:
        """It has worked. What it hands over does not overtake what it has handed over before."""
        self._inside = False
        delay = self.thread_delay()
        answers, self._answers = self._answers, []
        for callback, arguments in answers:  # of two at one time the loop draws which comes first
            thread.answered_at = max(self.loop.now + delay, nextafter(thread.answered_at, inf))
            self.loop.call_at(thread.answered_at, callback, *arguments)

    def _from_thread(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        if self._inside:
            self._answers.append((callback, args))
            return None
        return self.loop.call_soon(callback, *args, context=context)

    async def _run(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return await self.submit(None, partial(function, *arguments, **named))

    def submit(self, pool: Any, function: Callable[..., Any], *arguments: Any, **named: Any) -> asyncio.Future[Any]:
        """Call a function in a turn of its own."""
        future: asyncio.Future[Any] = self.loop.create_future()
        target = function.func if isinstance(function, partial) else function
        owner = getattr(target, "__self__", None)
        if isinstance(owner, FakeThread):
            owner.done.add_done_callback(lambda _: future.done() or future.set_result(None))
            return future
        call = partial(copy_context().run, function, *arguments, **named)

        def answer(result: Any, error: BaseException | None) -> None:
            if not future.done():
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(result)

        def run() -> None:
            result, failed = None, None
            try:
                result = call()
            except Exception as error:
                failed = error
            self.loop.call_later(self.thread_delay(), answer, result, failed)

        self.loop.call_later(self.thread_delay(), run)
        return future

    def _pool(self, workers: int, name: str) -> Any:
        return Pool()

    def _start(self, function: Callable[..., object], *arguments: object, name: str, daemon: bool = True) -> Any:
        return FakeThread(self, function, arguments)

    def _block(self, seconds: float) -> None:
        raise AssertionError("a thread sleeps")

    # ------------------------------------------------------------------------------------------- SQLite

    def connected(self, connection: Any) -> None:
        """A node has opened the ledger once more."""
        connection.create_function("julianday", 1, self._julian)
        connection.execute("PRAGMA synchronous=OFF")  # no power is lost here, and it takes time
        self.ledgers.connections.setdefault(NODE.get(), []).append(connection)

    def begins(self, connection: Any, begin: Callable[[Any], None]) -> None:
        """A node begins a transaction that writes."""
        if NODE.get().name in self.ledgers.away:
            raise sqlite3.OperationalError(CUT_OFF)
        begin(connection)

    def reads(self, connection: Any, begin: Callable[[Any], None]) -> None:
        """A node begins a transaction that reads."""
        if NODE.get().name in self.ledgers.unreadable:
            raise sqlite3.OperationalError("disk I/O error")
        self.ledgers.on_read(NODE.get(), connection)
        begin(connection)

    def commits(self, connection: Any, commit: Callable[[Any], None]) -> None:
        """A node commits."""
        node = NODE.get()
        self.ledgers.commits += 1
        try:
            self.ledgers.on_commit(node, self.ledgers.commits)
        except Killed:
            connection.rollback()  # it dies with its process, which the others must not wait for
            raise
        if node.name in self.ledgers.failing:
            raise sqlite3.OperationalError("disk I/O error")
        if node.name in self.ledgers.leaving:
            self.ledgers.leaving.discard(node.name)
            self.ledgers.away.add(node.name)
            if self.chance.random() < 0.5:
                commit(connection)
            raise sqlite3.OperationalError(CUT_OFF)
        commit(connection)

    def _julian(self, _: str) -> float:
        return (WALL + self.loop.now - START) / 86_400 + 2_440_587.5


@cache
def _install() -> None:
    """Replace what each world finds replaced, for the rest of the process. If a class was put back after each
    world, the interpreter would forget all that it knows of it."""
    for target, name, value in (
        (app, "_listen", lambda host, port, name: SEAMS[-1].network.listen(host, port)),
        (app, "most_connections", lambda: 1_000),
        (memory, "give_back", lambda: False),
        (memory, "map_large", lambda: False),
        (writer, "SimpleQueue", ThreadQueue),
        (Database, "__init__", _without_path(Database.__init__)),
        (Database, "_engine", _kept(Database._engine)),
        (Database, "lock", _lock(Database.lock)),
        (Database, "shared", property(lambda database: SEAMS[-1].is_shared or database.dialect != "sqlite")),
        (engine, "filesystem_of", lambda folder: "tmpfs"),
        (queues.Queue, "publish", _noted(queues.Queue.publish)),
        (hashlib, "pbkdf2_hmac", _key_of_password),
        (default, "create_ssl_context", cache(default.create_ssl_context)),  # takes longer than all the rest of a start
        (TASKS, "add", lambda task: None),  # nodes know theirs
        *((kind, "__hash__", _same_hash) for kind in IN_SETS),
    ):
        setattr(target, name, value)
    named = GuardedTransport.__init__.__kwdefaults__
    named["dial"] = lambda address, port: SEAMS[-1].network.dial(address, port)
    logging.disable(logging.CRITICAL)


def _key_of_password(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """A digest, which takes no time: the real one is slow on purpose."""
    return hashlib.new(name, b"%d %b %b" % (iterations, salt, password)).digest()


def _kept(original: Callable[..., sa.Engine]) -> Callable[..., sa.Engine]:
    """Keep engines, and have the seams hear of their connections and commits."""

    def made(database: Database, begin: str, cache: int, **options: Any) -> sa.Engine:
        key = NODE.get().name, str(database.url), begin
        found = ENGINES.get(key)
        if found is None:
            found = ENGINES[key] = original(database, begin, cache, **options)
            sa.event.listen(found, "connect", lambda connection, _: SEAMS[-1].connected(connection))
            dialect: Any = found.dialect
            begun, commit = dialect.do_begin, dialect.do_commit
            if begin == "BEGIN":
                dialect.do_begin = lambda connection: SEAMS[-1].reads(connection, begun)
            else:
                dialect.do_begin = lambda connection: SEAMS[-1].begins(connection, begun)
                dialect.do_commit = lambda connection: SEAMS[-1].commits(connection, commit)
                dialect.is_disconnect = lambda error, *_: CUT_OFF in str(error)
        return found

    return made


def _lock(original: Callable[[Database], Any]) -> Callable[[Database], Any]:
    """Know who holds which files."""

    def lock(database: Database) -> Any:
        found = original(database)
        if found is not None:
            SEAMS[-1].ledgers.locks.setdefault(NODE.get(), []).append(found)
        return found

    return lock


def _without_path(original: Callable[[Database, str], None]) -> Callable[[Database, str], None]:
    """Where processes share a ledger, have nothing looked after, locked or counted that only a file of one process
    has."""

    def made(database: Database, url: str) -> None:
        original(database, url)
        if SEAMS[-1].is_shared:
            database.path = None

    return made


def _noted(original: Callable[..., bool]) -> Callable[..., bool]:
    """Note when a message came to a queue of a far broker."""

    def publish(queue: Any, envelope: Any, now: float, promised: bool = False) -> bool:
        name = NODE.get().name
        entered = ENTERED.get(name)
        if entered is not None:  # what a prepared branch holds was durable before
            entered.setdefault(envelope, (-1.0 if promised else now, envelope.publisher))
            SEAMS[-1].on_message(name, len(entered))
            SEAMS[-1].on_body(envelope.message.body)
        return original(queue, envelope, now, promised)

    return publish


ENTERED: dict[str, dict[Any, tuple[float, int]]] = {}
"""Name of a far broker -> its messages -> when each came, and on which connection."""
