"""F19: the n-th thing that the ledger asks of its database fails, for every n.

SQLite's driver is told to fail at the n-th statement of a call, ``BEGIN`` and ``COMMIT`` counted, as it does when the
disk fails. Each call is then written whole, or not at all and says so; the next one finds the ledger well; nothing is
left open. How much of a *file* can be written is cut at every place in ``tests/faults/test_ledger_faults.py``.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from gateway.config import LedgerSettings
from gateway.errors import LedgerUnavailable
from gateway.ledger import EventKind, Ledger, LogEntry, Owed
from gateway.ledger.pending.owed import BacklogSettlement, Ending
from tests.chaos.figures import Figures
from tests.chaos.parts import Context
from tests.ledger.conftest import NOW, intent, message, new_id, published
from tests.ledgers import sqlite_ledger
from tests.traces import QUERY, impossible_traces

ERRORS: Final = {False: ("disk I/O error",), True: ("disk I/O error", "database or disk is full", "out of memory")}
"""What the driver says, in the quick and in the full form."""
TABLES: Final = (
    "messages", "events", "idempotency_keys", "obligations", "resources", "inbox", "deliveries", "bodies", "outbox",
)  # fmt: skip
"""What a call that failed must have left as it was."""
STATEMENTS_MAX: Final = 200
"""More than any call here needs."""


class Plan:
    """When the driver fails."""

    def __init__(self) -> None:
        self.left = 0
        """The statement that fails: 1 is the next; 0: none."""
        self.error = ""
        self.fired = False

    def tick(self) -> None:
        """One more statement."""
        if self.left:
            self.left -= 1
            if not self.left:
                self.fired = True
                raise sqlite3.OperationalError(self.error)


def driver(plan: Plan) -> type[sqlite3.Connection]:
    """A connection that keeps to the plan."""

    class Cursor(sqlite3.Cursor):
        def execute(self, *arguments: Any) -> Any:
            plan.tick()
            return super().execute(*arguments)

        def executemany(self, *arguments: Any) -> Any:
            plan.tick()
            return super().executemany(*arguments)

    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

        def execute(self, *arguments: Any) -> Any:
            return self.cursor().execute(*arguments)

        def executemany(self, *arguments: Any) -> Any:
            return self.cursor().executemany(*arguments)

        def commit(self) -> None:
            plan.tick()
            super().commit()

    return Connection


class Bench:
    """A ledger, and the calls that are made of it."""

    def __init__(self, ledger: Ledger, file: Path) -> None:
        self.ledger = ledger
        self.file = file
        self.calls: tuple[tuple[str, Callable[[], Awaitable[Any]]], ...] = (
            ("record", self._record),
            ("claim_key", self._claim_key),
            ("store", self._store),
            ("claim and settle", self._claim),
            ("put_resource", self._put_resource),
        )
        self._number = 0

    def tables(self) -> dict[str, int]:
        """How many rows there are of each kind, as another reader of the file sees them."""
        with closing(sqlite3.connect(self.file)) as connection:
            return {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in TABLES}

    async def _record(self) -> None:
        await self.ledger.record([entry for _ in range(20) for entry in published(new_id())])

    async def _claim_key(self) -> None:
        self._number += 1
        await self.ledger.claim_key("shop", f"key-{self._number}", b"f", [intent(new_id(), payload=bytes(2_000))])

    async def _store(self) -> None:
        rows = [
            Owed(subscription="s", id=new_id(), message_id=new_id(), at=NOW, payload=b"hello", size=5) for _ in range(3)
        ]
        entries = [
            LogEntry(row.message_id, EventKind.STORED, NOW, "rabbit", "0-9-1", {"subscription": "s"}, message())
            for row in rows
        ]
        await self.ledger.deliveries.store(rows, entries)

    async def _claim(self) -> None:
        found = await self.ledger.deliveries.claim("s", 1, 30.0)
        if found:
            done = LogEntry(found[0].message_id, EventKind.ACKNOWLEDGED, NOW, "rabbit", "0-9-1")
            await self.ledger.deliveries.settle([BacklogSettlement(found[0].id, Ending.DONE, found[0].lease, (done,))])

    async def _put_resource(self) -> None:
        self._number += 1
        await self.ledger.put_resource("subscription", f"s-{self._number}", {"broker": "b"}, None)


async def _fail_at_each(bench: Bench, plan: Plan, name: str, call: Callable[[], Awaitable[Any]], error: str) -> Figures:
    figures = Figures(f"{name}: {error}", unit="failures")
    for number in range(1, STATEMENTS_MAX):
        await _well(bench.ledger)
        before = bench.tables()
        plan.left, plan.error, plan.fired = number, error, False
        failed = ""
        try:
            await call()
        except LedgerUnavailable:
            failed = "said so"
        except Exception as other:
            failed = f"{type(other).__name__}: {other}"
        plan.left = 0
        if not plan.fired:
            figures.must(not failed, f"nothing failed, and the call did: {failed}")
            figures.extra = {"statements": number - 1}
            return figures
        figures.attempted += 1
        whole = bench.tables() != before
        if failed not in ("", "said so"):
            figures.unexpected += 1
            figures.problems.append(f"statement {number}: {failed}")
        elif failed and whole:
            figures.unexpected += 1
            figures.problems.append(f"statement {number}: it failed, and left {bench.tables()} of {before}")
    figures.problems.append(f"it takes more than {STATEMENTS_MAX} statements")
    return figures


async def _well(ledger: Ledger) -> None:
    """Wait until it has found out that it can be written, by itself."""
    async with asyncio.timeout(20):
        while not ledger.healthy:
            with suppress(LedgerUnavailable):
                await ledger.record(published(new_id()))
            await asyncio.sleep(0.005)


async def _play(error: str) -> list[Figures]:
    plan = Plan()
    factory = driver(plan)

    def connect(dialect: Any, record: Any, arguments: Any, options: dict[str, Any]) -> None:
        options["factory"] = factory

    found = []
    with tempfile.TemporaryDirectory(prefix="gateway-chaos-") as folder:
        file = Path(folder) / "ledger.db"
        sqlite_ledger(Path(folder))
        sa.event.listen(sa.Engine, "do_connect", connect)
        try:
            ledger = await Ledger.open(f"sqlite:///{file}", LedgerSettings(), owner="chaos", migrate=True)
            bench = Bench(ledger, file)
            files = len(os.listdir("/proc/self/fd"))
            try:
                for name, call in bench.calls:
                    began = time.monotonic()
                    found.append(await _fail_at_each(bench, plan, name, call, error))
                    found[-1].seconds = round(time.monotonic() - began, 2)
                await _well(ledger)
            finally:
                await ledger.close()
            more = len(os.listdir("/proc/self/fd")) - files
            found[-1].must(more <= 0, f"{more} files are left open")
        finally:
            sa.event.remove(sa.Engine, "do_connect", connect)
        with closing(sqlite3.connect(file)) as connection:
            sound = connection.execute("PRAGMA integrity_check").fetchone()[0]
            gaps = connection.execute(
                "SELECT count(*) FROM (SELECT 1 FROM events GROUP BY shard "
                "HAVING max(sequence) - min(sequence) + 1 <> count(*))"
            ).fetchone()[0]
            found[-1].problems += impossible_traces(connection.execute(QUERY))[:5]
        found[-1].must(sound == "ok", f"the file is damaged: {sound}")
        found[-1].must(not gaps, "there are gaps in the sequence of events")
    return found


def nth_statement(context: Context) -> list[Figures]:
    """Every call, every statement of it, every error."""
    return [figures for error in ERRORS[context.full] for figures in asyncio.run(_play(error))]
