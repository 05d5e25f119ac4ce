"""What experiments are made of: rows of the suites of faults, tests by their names, and functions.

Every part says which tests are its quick form (:attr:`Part.tests`), runs in either form, and returns figures. A part
that fails returns figures too, with what went wrong: the others are run all the same.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from tests.chaos.figures import Figures, Form
from tests.cluster import rows as cluster_rows
from tests.faults import rows as fault_rows
from tests.faults.bridges import rows as bridge_rows
from tests.faults.consumers import rows as consumer_rows
from tests.faults.consumers.lanes import LANES, STREAMS
from tests.servers import PRIVATE_KINDS, Server, serving
from tests.servers.process import ROOT

TESTS_LIMIT: Final = 900
"""How long tests may take that are run by their names, in seconds."""


class Context:
    """How experiments are run, and the servers they share: each is started when it is asked for first."""

    def __init__(
        self,
        form: Form,
        seed: int = 1,
        *,
        on: str = "",
        messages: int = 0,
        times: int = 0,
        minutes: float = 0.0,
        keeps: bool = False,
        find: Callable[[str], Server] | None = None,
    ) -> None:
        """
        Args:
            on: only brokers, versions and directions with this in their names.
            messages: instead of a part's own number; likewise ``times``, how often a fault happens.
            minutes: of a soak.
            keeps: the run is kept, for those that follow.
            find: kind -> a server; unless given, private ones are started.
        """
        self.form = form
        self.seed = seed
        self.on = on
        self.messages = messages
        self.times = times
        self.minutes = minutes
        self.keeps = keeps
        self._find = find
        self._servers: dict[str, Server] = {}

    @property
    def full(self) -> bool:
        """Whether it is the full form."""
        return self.form is Form.FULL

    def wants(self, name: str) -> bool:
        """Whether a broker, version or direction is among those asked for."""
        return self.on.lower() in name.lower()

    def server(self, kind: str) -> Any:
        """A server of that kind, running."""
        if self._find is not None:
            return self._find(kind)
        if kind not in self._servers:
            self._servers[kind] = PRIVATE_KINDS[kind]().start()
        server = self._servers[kind]
        if not server.running:
            server.restart()
        return server

    def close(self) -> None:
        """End the servers."""
        for server in self._servers.values():
            with suppress(Exception):  # the others are to end too
                server.resume()
            server.stop()


class Part(ABC):
    """A part of an experiment."""

    name: str
    forms: tuple[Form, ...] = (Form.QUICK, Form.FULL)
    """In which it is run."""
    tests: tuple[str, ...] = ()
    """Its quick form: tests by their node ids."""

    def run(self, context: Context) -> list[Figures]:
        """Run it; a line for each of its runs."""
        found = []
        for what, work in self.works(context):
            began = time.monotonic()
            try:
                figures = work()
            except Exception as error:  # the others are run all the same
                traceback.print_exc()
                text = str(error).strip() or type(error).__name__
                figures = [Figures(what, problems=[f"{type(error).__name__}: {text}"])]
            for each in figures:
                each.seconds = each.seconds or time.monotonic() - began
            found += figures
        return found

    @abstractmethod
    def works(self, context: Context) -> Sequence[tuple[str, Callable[[], list[Figures]]]]:
        """Its runs: a name, and what to call."""


def _judged(what: str, verdict: Any, seconds: float, notes: dict[str, Any]) -> Figures:
    """What a checker of the suites of faults found."""
    extra = {name: value for name, value in notes.items() if name not in ("state", "reason")}
    marked = getattr(verdict, "marked", None)
    if verdict.duplicated and marked is not None:
        extra.setdefault("marked", marked)
    return Figures(
        what,
        verdict.attempted,
        verdict.acknowledged,
        len(verdict.lost),
        len(verdict.unexpected),
        verdict.duplicated,
        verdict.recovered,
        extra=extra,
        seconds=round(seconds, 1),
        problems=list(verdict.problems),
    )


@dataclass
class FaultRow(Part):
    """A row of :mod:`tests.faults.rows`."""

    name: str
    forms: tuple[Form, ...] = (Form.QUICK, Form.FULL)

    @property
    def row(self) -> fault_rows.Row:
        """The row."""
        return next(row for row in fault_rows.ROWS if row.name == self.name)

    @property
    def tests(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(
            f"tests/faults/test_rows.py::test_nothing_is_lost[{self.name}-{kind}-{version}]"
            for kind, version in self.row.quick
        )

    def works(self, context: Context) -> Sequence[tuple[str, Callable[[], list[Figures]]]]:
        row = self.row
        targets = row.full if context.full else row.quick
        return [
            (f"{self.name}, {kind} {version}", lambda kind=kind, version=version: self._one(context, kind, version))  # type: ignore[misc]
            for kind, version in targets
            if context.wants(f"{kind} {version}")
        ]

    def _one(self, context: Context, kind: str, version: str) -> list[Figures]:
        row = self.row
        messages = context.messages or (round(20_000 * row.portion) if context.full else row.messages)
        times = context.times or row.times[context.full]
        run = asyncio.run(
            fault_rows.perform(row, context.server(serving(kind, version)), version, messages, times, context.seed),
        )
        return [_judged(f"{self.name}, {run.broker}", run.verdict, run.seconds, run.notes)]


@dataclass
class BridgeRow(Part):
    """A row of :mod:`tests.faults.bridges.rows`."""

    name: str
    forms: tuple[Form, ...] = (Form.QUICK, Form.FULL)

    @property
    def row(self) -> bridge_rows.Row:
        """The row."""
        return next(row for row in bridge_rows.ROWS if row.name == self.name)

    @property
    def tests(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(
            f"tests/faults/bridges/test_rows.py::test_nothing_is_lost[{row.name}-{direction.name}]"
            for direction, row in bridge_rows.QUICK
            if self.name in row.name.split(", ")
        )

    def works(self, context: Context) -> Sequence[tuple[str, Callable[[], list[Figures]]]]:
        row = self.row
        directions = row.directions if context.full else row.directions[:1]
        return [
            (f"bridge: {self.name}, {direction.name}", lambda direction=direction: self._one(context, direction))  # type: ignore[misc]
            for direction in directions
            if context.wants(direction.name)
        ]

    def _one(self, context: Context, direction: bridge_rows.Direction) -> list[Figures]:
        run = asyncio.run(
            bridge_rows.perform(
                self.row, direction, context.server, full=context.full, seed=context.seed, times=context.times
            )
        )
        notes = {**run.notes, "bound": run.verdict.bound if run.verdict is not None else 0}
        return [_judged(f"bridge: {self.name}, {run.direction}", run.verdict, run.seconds, notes)]


@dataclass
class ConsumerRow(Part):
    """A row of :mod:`tests.faults.consumers.rows`, on all lanes at once; one line for all of them."""

    name: str
    forms: tuple[Form, ...] = (Form.QUICK, Form.FULL)

    @property
    def row(self) -> consumer_rows.Row:
        """The row."""
        return next(row for row in consumer_rows.ROWS if row.name == self.name)

    @property
    def tests(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(
            f"tests/faults/consumers/test_rows.py::test_nothing_is_lost[{row.name}]"
            for _, row in consumer_rows.QUICK
            if self.name in row.name.split(", ")
        )

    def works(self, context: Context) -> Sequence[tuple[str, Callable[[], list[Figures]]]]:
        return [(f"consumers: {self.name}", lambda: self._all(context))]

    def _all(self, context: Context) -> list[Figures]:
        lanes = [lane for lane in (*LANES, *STREAMS) if context.wants(lane.name)]
        run = asyncio.run(
            consumer_rows.perform(
                self.row,
                lanes,
                context.server,
                full=context.full,
                seed=context.seed,
                times=context.times,
                messages=context.messages,
            )
        )
        verdicts = [line.verdict for line in run.lines if line.verdict is not None]
        return [
            Figures(
                f"consumers: {self.name}, {len(verdicts)} lanes",
                sum(each.attempted for each in verdicts),
                sum(each.acknowledged for each in verdicts),
                sum(len(each.lost) for each in verdicts),
                sum(len(each.unexpected) for each in verdicts),
                sum(each.duplicated for each in verdicts),
                sum(each.recovered for each in verdicts),
                extra={**run.notes, "marked": sum(each.marked for each in verdicts)},
                seconds=round(run.seconds, 1),
                problems=[problem for each in verdicts for problem in each.problems],
            )
        ]


@dataclass
class ClusterRow(Part):
    """A row of :mod:`tests.cluster.rows`."""

    name: str
    forms: tuple[Form, ...] = (Form.QUICK, Form.FULL)

    @property
    def tests(self) -> tuple[str, ...]:  # type: ignore[override]
        return (f"tests/cluster/test_rows.py::test_row[{self.name}]",)

    def works(self, context: Context) -> Sequence[tuple[str, Callable[[], list[Figures]]]]:
        return [(f"cluster: {self.name}", lambda: self._one(context))]

    def _one(self, context: Context) -> list[Figures]:
        row = next(row for row in cluster_rows.ROWS if row.name == self.name)
        cluster = asyncio.run(
            cluster_rows.perform(
                row,
                context.server("rabbitmq"),
                context.server("postgresql"),
                full=context.full,
                seed=context.seed,
                times=context.times,
            )
        )
        notes = {**cluster.notes, "owners_at_once": len(cluster.audit.overlaps), "moves": cluster.audit.moves}
        what = f"cluster: {self.name}, {len(cluster.replicas)} processes"
        return [_judged(what, cluster.verdict, cluster.seconds, notes)]


@dataclass
class Tests(Part):
    """Tests by their node ids, which are one form of it and the other."""

    name: str
    ids: tuple[str, ...]
    forms: tuple[Form, ...] = (Form.QUICK, Form.FULL)

    @property
    def tests(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.ids if Form.QUICK in self.forms else ()

    def works(self, context: Context) -> Sequence[tuple[str, Callable[[], list[Figures]]]]:
        return [(self.name, self._run)]

    def _run(self) -> list[Figures]:
        with tempfile.TemporaryDirectory(prefix="gateway-chaos-") as folder:
            report = Path(folder) / "report.xml"
            command = [sys.executable, "-m", "pytest", "-q", f"--junit-xml={report}", *self.ids]
            done = subprocess.run(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TESTS_LIMIT
            )
            figures = Figures(self.name, unit="tests")
            if not report.exists():
                figures.problems.append(f"pytest ended with {done.returncode}: {done.stdout[-500:]}")
                return [figures]
            for suite in ElementTree.parse(report).getroot().iter("testsuite"):
                figures.attempted += int(suite.get("tests", 0))
                figures.unexpected += sum(int(suite.get(name, 0)) for name in ("failures", "errors", "skipped"))
        if figures.unexpected or done.returncode or not figures.attempted:
            print(done.stdout, file=sys.stderr)
            figures.problems.append(f"pytest ended with {done.returncode}")
        return [figures]


OWN: Final = "tests/chaos/test_own.py::test_it_holds"


@dataclass
class Own(Part):
    """A function of a module here. It is a test of this folder in its quick form, unless ``ids`` names tests of other
    suites that do the same."""

    name: str
    work: Callable[[Context], list[Figures]]
    forms: tuple[Form, ...] = (Form.QUICK, Form.FULL)
    ids: tuple[str, ...] = ()

    @property
    def tests(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.ids or ((f"{OWN}[{self.name}]",) if Form.QUICK in self.forms else ())

    def works(self, context: Context) -> Sequence[tuple[str, Callable[[], list[Figures]]]]:
        return [(self.name, lambda: self.work(context))]


@dataclass(frozen=True)
class Experiment:
    """One row of the table. Besides what it says itself, each must end with lost 0 and unexpected 0, its source empty
    and everything of the checker's in order (``docs/explanation/reliability.md``)."""

    id: str
    title: str
    """What is done."""
    must: str
    """What it must show besides."""
    parts: tuple[Part, ...]
    short: str = ""
    """What is not done of it, in either form."""

    @property
    def tests(self) -> tuple[str, ...]:
        """Its quick form, as tests."""
        return tuple(dict.fromkeys(test for part in self.parts for test in part.tests))
