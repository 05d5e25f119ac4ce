"""What ``python -m tests.faults``, and those of bridges, consumers and fronts, share: rows, servers and the table.

A row that fails is printed with all there is to know and the others go on; the status is 1 then. The same seed makes
the same messages, not the same moments.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import traceback
from collections.abc import Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from tests.faults import checker
from tests.faults.harness import FaultRun
from tests.servers import PRIVATE_KINDS, Server


class Named(Protocol):
    """A row."""

    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=Named)


def parser_of(program: str, about: str | None, on: str) -> argparse.ArgumentParser:
    """A parser with the options of all. ``on``: what ``--on`` names, and how."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=about)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="names of rows, or parts of them; unless given: all")
    parser.add_argument("--on", default="", metavar=on.split()[0].upper(), help=f"only with this in the name: {on}")
    parser.add_argument("--times", type=int, default=0, help="how often the fault happens, instead of the row's number")
    parser.add_argument("--seed", type=int, default=1, help="of messages, moments and proxies (1)")
    parser.add_argument("--list", action="store_true", help="print the rows and end")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--full", action="store_true", help="the full form of each row (unless --quick is given)")
    form.add_argument("--quick", action="store_true", help="the quick form of each row, as the suites run it")
    return parser


def chosen(rows: Iterable[R], wanted: Sequence[str], parser: argparse.ArgumentParser) -> list[R]:
    """The rows with these names; a name that no row has is a part of names. Ends the program if there is none."""
    rows = list(rows)
    names = list(dict.fromkeys(row.name for row in rows))
    parts = [name for name in wanted if name not in names]
    found = [row for row in rows if not wanted or row.name in wanted or any(part in row.name for part in parts)]
    if not found:
        parser.error(f"there is no such row; there are {', '.join(names)}")
    return found


class Table:
    """Rows that are run one after the other, on servers that nobody else uses, and what came of them.

    Args:
        columns: of the table.
    """

    def __init__(self, columns: Sequence[str] = checker.COLUMNS) -> None:
        self._columns = columns
        self._servers: dict[str, Server] = {}
        self._lines: list[tuple[str, ...]] = []
        self._notes: list[str] = []
        self._failed: list[str] = []

    def __enter__(self) -> Table:
        # SIGTERM ends servers, too.
        signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
        return self

    def __exit__(self, *exc: object) -> None:
        for server in self._servers.values():
            server.stop()

    def server(self, kind: str) -> Server:
        """The server of a kind, running."""
        server = self._servers.get(kind)
        if server is None:
            server = self._servers[kind] = PRIVATE_KINDS[kind]().start()
        elif not server.running:
            server.restart()
        return server

    def run(self, name: str, row: Coroutine[Any, Any, FaultRun]) -> None:
        """Run a row, and print its line."""
        print(f"{datetime.now(UTC):%H:%M:%S} {name}", file=sys.stderr, flush=True)
        try:
            run = asyncio.run(row)
        except Exception:  # the other rows are run all the same
            self._failed.append(name)
            traceback.print_exc()
            for server in self._servers.values():
                server.resume()
            return
        self._lines += run.rows()
        self._notes.append(f"{name}: {run.notes}")
        print(checker.table(run.rows(), self._columns), self._notes[-1], sep="\n", file=sys.stderr, flush=True)

    def end(self) -> int:
        """Print the table. Returns the exit status: 1 where a row failed, or none was run."""
        if not self._notes and not self._failed:
            print("FAILED: no row was run; --list shows on which brokers each of them is")
            return 1
        print(checker.table(self._lines, self._columns), "", *self._notes, sep="\n")
        for name in self._failed:
            print(f"FAILED: {name}")
        return 1 if self._failed else 0
