"""Arrow for readers of a log, made by other processes.

They are processes for two reasons. The SQLite that comes with ADBC must not open a file that this process has open
(:mod:`gateway.logs.arrow`); and rows by the hundred thousand would take the interpreter from those who wait for the
answer to a publish. A worker is started when it is wanted, kept for :data:`IDLE` seconds after, and asked for one
*segment* at a time, some thousand rows or some mebioctets: a reader that takes its time holds no worker, no transaction
and no connection of the database meanwhile, and one that hangs up wastes no more than a segment.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Final

import msgspec

from gateway.errors import LedgerUnavailable, NoArrow
from gateway.ledger.db.engine import Database
from gateway.logs import Log
from gateway.logs.worker import DATA, ERROR, FRAME, EndOfRange, Hello, RangeRequest
from gateway.observing import telemetry
from gateway.runtime.clock import clock

WORKERS: Final = 4
"""Most processes at once."""
IDLE: Final = 60.0
"""How long one is kept that nobody needs, in seconds."""
PATIENCE: Final = 90.0
"""How long a segment may take, in seconds; the database gets less."""
BUFFER: Final = 1 << 20
"""Octets of an answer that wait here to be sent on."""
MAIN: Final = "from gateway.logs.worker import main; main()"
"""What a worker runs."""
MODULES: Final = {
    "sqlite": ("pyarrow", "adbc_driver_manager", "adbc_driver_sqlite"),
    "postgresql": ("pyarrow", "adbc_driver_manager", "adbc_driver_postgresql"),
}
"""Dialect -> what it takes."""


class ArrowWorker:
    """A process, asked for one segment at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.idle_since = 0.0
        self.broken = False
        """It is in the middle of an answer that nobody reads, or gone."""

    async def read(self, request: RangeRequest) -> AsyncGenerator[bytes, None]:
        """A segment as encapsulated record batches, and last the number of its rows as a :class:`EndOfRange`, encoded.

        Raises:
            LedgerUnavailable: the database says no, or the process died.
        """
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        self.broken = True
        try:
            line = json.dumps(msgspec.to_builtins(request))  # which escapes what is not UTF-8
            requests.write(line.encode("ascii") + b"\n")
            kind = DATA
            while kind == DATA:
                async with asyncio.timeout(PATIENCE):
                    kind, length = FRAME.unpack(await answers.readexactly(FRAME.size))
                    octets = await answers.readexactly(length)
                if kind != DATA:
                    self.broken = False
                if kind == ERROR:
                    raise LedgerUnavailable(
                        f"the log cannot be read: {msgspec.json.decode(octets, type=EndOfRange).error}"
                    )
                yield octets
        except TimeoutError:  # which is an OSError, too
            raise LedgerUnavailable(f"the log cannot be read: nothing came for {PATIENCE:g} s") from None
        except (OSError, asyncio.IncompleteReadError) as error:
            raise LedgerUnavailable("the log cannot be read: the process that makes Arrow of it died") from error

    async def close(self) -> None:
        """End the process; kill it if it does not end."""
        process = self._process
        assert process.stdin is not None
        process.stdin.close()
        if self.broken:
            with suppress(ProcessLookupError):
                process.kill()
        try:
            async with asyncio.timeout(5.0):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


class ArrowPool:
    """The workers."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._idle: list[ArrowWorker] = []
        self._turns = asyncio.Semaphore(WORKERS)
        self._sweeper: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def available(self) -> bool:
        """Whether what it takes is installed."""
        return all(find_spec(module) is not None for module in MODULES[self._database.dialect])

    def require(self) -> None:
        """
        Raises:
            NoArrow: what it takes is not installed.
        """
        if not self.available:
            raise NoArrow(
                "Arrow is made by PyArrow and ADBC, which are not installed here: install amqp-gateway[arrow], "
                "or accept application/x-ndjson"
            )

    async def segment(
        self,
        log: Log,
        shard: int,
        after: int,
        upto: int,
        columns: Sequence[str],
        where: Mapping[str, Sequence[str]],
        begin: bool = False,
    ) -> AsyncGenerator[bytes | int, None]:
        """A segment as encapsulated record batches, and last the number of its rows; before them the schema, where it
        is to ``begin`` with that. Close the generator.

        Raises:
            LedgerUnavailable: the database says no, or a process died.
        """
        request = RangeRequest(
            log, shard, after, upto, list(columns), {name: list(where[name]) for name in where}, begin
        )
        async with self._turns:
            worker = self._idle.pop() if self._idle else await self._start()
            answer = worker.read(request)
            try:
                last = b""
                async for octets in answer:
                    if last:
                        yield last
                    last = octets
                yield msgspec.json.decode(last, type=EndOfRange).rows
            finally:
                await answer.aclose()
                if worker.broken or self._closed:
                    await asyncio.shield(worker.close())
                else:
                    self._keep(worker)

    async def close(self) -> None:
        """End all processes."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        idle, self._idle = self._idle, []
        await asyncio.gather(*(worker.close() for worker in idle))

    async def _start(self) -> ArrowWorker:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            MAIN,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=BUFFER,
        )
        assert process.stdin is not None
        hello = Hello(self._database.dialect, self._database.arrow_uri)  # not on the command line, which all may read
        process.stdin.write(msgspec.json.encode(hello) + b"\n")
        telemetry.log("ledger.arrow_worker", logging.DEBUG, pid=process.pid)
        return ArrowWorker(process)

    def _keep(self, worker: ArrowWorker) -> None:
        worker.idle_since = clock.monotonic()
        self._idle.append(worker)
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep(), name="arrow-workers")

    async def _sweep(self) -> None:
        """End what nobody needed for a while."""
        while self._idle:
            await clock.sleep(max(0.0, self._idle[0].idle_since + IDLE - clock.monotonic()))
            while self._idle and self._idle[0].idle_since + IDLE <= clock.monotonic():
                await self._idle.pop(0).close()
