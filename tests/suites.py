"""Every check and every test of the project, suite by suite, and a table at the end.

``python tests/suites.py`` runs the suites of the tiers ``check`` and ``test``. ``--tier check`` runs the first alone,
and ``--tier all`` runs everything, with all pairings of a test (:mod:`tests.pairings`). Names as arguments run those
suites; ``--list`` prints them.
A suite is one process of its own. As many run at a time as keep two processors busy, for the machines this is meant for
have two: each counts with its ``share`` of a processor, as measured. A suite that measures time or load runs ``alone``.
The real servers are started once, beside the suites that do without, and every suite that needs them finds their
addresses through ``GATEWAY_TEST_SERVERS``.

A suite fails if its process fails, if a test fails, if a test is skipped (what is not run is not tested), if no
test was found, if it takes longer than its ``limit``, or if a secret that the tests plant is seen in what it or any of
its gateways said (:mod:`tests.canary`).

Suites disturb each other on two processors: a few tests that failed are run again when nothing else runs, and the table
says how many passed only then. A suite that counts lost messages is never run again: what was lost once was lost.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import canary, pairings  # noqa: E402  # this file is a program too, and then stands in the path alone
from tests.servers.process import MAIN_VARIABLE  # noqa: E402

BIN = Path(sys.executable).parent
SERVERS_START = 180
"""How long the real servers may take to start, in seconds."""
SHARED = ("brokerj", "postgresql", "rabbitmq-3.10", "rabbitmq-4.0")
"""The real servers that suites share, beside those that a suite names as its ``main`` one."""
TESTS_FAILED = 1
"""pytest's exit status where tests failed; any other says that something else went wrong."""
ROOM = 2.2
"""How much may run at a time, in processors. A little more than there are: no suite takes its share all the time."""
MOST = 6
"""How many suites may run at a time, however little they take."""
TIERS = ("check", "test", "all")
"""Each tier runs its own suites and those of the tiers before it."""
AGAIN = 3
"""How many tests may fail in all suites together, for them to be run again."""
GRACE = 20
"""How long a suite may take to end when it is told to, in seconds."""


@dataclass(frozen=True)
class Suite:
    """One row of the table. ``paths`` are globs below ``tests/``; a suite without any is a ``check``: commands
    that succeed or fail as a whole."""

    name: str
    paths: tuple[str, ...] = ()
    check: tuple[tuple[str, ...], ...] = ()
    servers: bool = False
    """Whether it needs the real servers."""
    alone: bool = False
    """Whether nothing may run beside it."""
    tier: str = "test"
    """The first tier that runs it: one of :data:`TIERS`."""
    later: bool = True
    """Whether the later tiers run it, too."""
    share: float = 1.0
    """What it takes of a processor while it runs, its own gateways and private servers included: cpu / seconds. The
    round numbers 0.5 and 1 are estimates: the suite mostly waits, or mostly works."""
    main: str = ""
    """The kind of server that ``rabbitmq`` is for its tests, unless it is the usual one."""
    only: str = ""
    """Which of the tests: an expression, as pytest's ``-k`` has it."""
    limit: int = 1800
    """After how many seconds it is ended. Slow machines need room: only what hangs shall be ended."""
    covers: str = ""
    """A package of which its tests must take every branch."""
    once: bool = False
    """Whether a test that failed is not run again: it played a fault, and says that a message was lost or changed."""

    def commands(self, report: Path, *, failed: bool = False) -> Iterator[list[str]]:
        """What to run, one after the other, until one fails. Tests write their results to ``report``, and the names of
        those that failed beside it; with ``failed`` only those are run."""
        for command in self.check:
            yield [str(BIN / command[0]), *command[1:]]
        if not self.paths:
            return
        tests = ["-m", "pytest", f"--junit-xml={report}", *(str(path.relative_to(ROOT)) for path in self.files())]
        tests += ["-o", f"cache_dir={report.with_suffix('.cache')}"]
        tests += ["-k", self.only] if self.only else []
        tests += ["--last-failed", "--last-failed-no-failures=none"] if failed else []
        if not self.covers:
            yield [sys.executable, *tests]
            return
        coverage = [sys.executable, "-m", "coverage"]
        data = f"--data-file={report.with_suffix('.coverage')}"
        yield [*coverage, "run", "--branch", data, f"--source={self.covers}", *tests]
        yield [*coverage, "report", data, "--fail-under=100", "--show-missing", "--skip-covered"]

    def files(self) -> list[Path]:
        """What its globs match: folders, and files that stand alone."""
        return sorted(path for glob in self.paths for path in (ROOT / "tests").glob(glob))


def _newest(name: str, paths: tuple[str, ...], only: str) -> Suite:
    """The tests of a suite that talk to RabbitMQ in 0-9-1, on the newest release."""
    once = name == "faults"
    return Suite(f"{name}-4.3", paths, servers=True, tier="all", share=0.5, main="rabbitmq-4.3", only=only, once=once)


# Without Spark, mypy knows nothing of the types that come from it, and Any is all that is left of them.
_WITHOUT_SPARK = () if find_spec("pyspark") else ("--disable-error-code=import-not-found", "--disable-error-code=misc")
_WITHOUT_SPARK += () if find_spec("pyspark") else ("--no-warn-return-any", "--no-warn-unused-ignores")

SUITES = (
    Suite(
        "style",
        check=(("ruff", "check", "--no-cache", "."), ("ruff", "format", "--no-cache", "--check", ".")),
        tier="check",
    ),
    Suite("types", check=(("mypy", *_WITHOUT_SPARK),), tier="check"),
    Suite(
        "layers",
        check=(
            ("lint-imports", "--no-cache"),
            ("python", "-m", "tests.seams"),
            ("python", "-m", "tests.names"),
            ("python", "-m", "tests.shapes"),
            ("python", "-m", "tests.circles"),
        ),
        tier="check",
    ),
    Suite(
        "language",
        check=(("python", "-m", "tests.language"), ("python", "-m", "tests.language", "--whole")),
        tier="check",
        later=False,
    ),
    Suite("kernel", ("test_[!a]*.py", "notation", "runtime"), tier="check"),
    Suite("wire", ("wire",), covers="gateway.wire", tier="check"),
    Suite("classic", ("classic",), covers="gateway.classic", tier="check"),
    Suite("v08", ("v08",), covers="gateway.v08", tier="check"),
    Suite("v09", ("v09",), covers="gateway.v09", tier="check"),
    Suite("v091", ("v091",), covers="gateway.v091", tier="check"),
    Suite("v010", ("v010",), covers="gateway.v010", tier="check"),
    Suite("v010_draft", ("v010_draft",), covers="gateway.v010_draft", tier="check"),
    Suite("translation", ("translation/test_*.py",), tier="check"),
    Suite("front-clients", ("clients",), servers=True, share=0.3, tier="all", limit=3600),
    Suite("console-walks", ("console/test_long_walks.py",), servers=True, share=0.7, tier="all", limit=3600),
    Suite("spark-kills", ("pipeline/stream",), servers=True, tier="all", once=True),
    Suite("console-answers", ("console/test_long_answers.py",), share=0.7, tier="all", limit=3600),
    Suite("console-looks", ("console/test_looks.py",), share=0.8, tier="all"),
    Suite("console-late", ("console/test_late.py",), servers=True, share=0.4, tier="all"),
    Suite("kill-faults", ("faults/test_[bd]*.py",), servers=True, share=0.5, once=True),
    Suite("faults", ("faults/test_[!bd]*.py",), servers=True, share=0.4, once=True),
    Suite("ledger", ("ledger",), servers=True, share=0.35),
    Suite("spark-logs", ("pipeline/spark/test_[ast]*.py",), servers=True, share=0.5),
    Suite("http", ("core", "api"), servers=True, share=0.7),
    Suite("spark-jobs", ("pipeline/spark/test_[!ast]*.py",), servers=True),
    Suite("simulation", ("simulation", "mutants"), share=2.0),
    Suite("powerloss", ("powerloss",), once=True),
    Suite("app", ("test_a*.py",), servers=True, share=0.3),
    Suite("conformance", ("conformance",), servers=True, share=0.4),
    Suite("bridge-faults", ("faults/bridges",), servers=True, share=0.5, once=True),
    Suite("consumer-faults", ("faults/consumers",), servers=True, share=0.5, once=True),
    Suite("commands", ("commands", "examples/test_curl_and_python.py"), servers=True, share=0.5),
    Suite("attack", ("attack",), share=0.5),
    Suite("access", ("access",), servers=True, share=0.5),
    Suite("front", ("front",), servers=True, share=0.5),
    Suite("hostile", ("hostile",), share=0.3),
    Suite("broker", ("broker",), share=0.35),
    Suite("chaos", ("chaos",), servers=True, share=0.35, once=True),
    Suite("cluster", ("cluster",), servers=True, share=0.35),
    Suite("console", ("console/test_[!l]*.py",), servers=True, share=0.8),
    Suite("bridges", ("bridges",), servers=True, share=0.5),
    Suite("pipeline", ("pipeline/unit", "logs"), servers=True),
    Suite("interop", ("interop", "golden", "servers"), servers=True, share=0.4),
    Suite("outbound", ("outbound", "webhooks"), share=0.45),
    Suite("contract", ("contract",)),
    Suite("links", ("transports", "upstreams"), servers=True, share=0.45),
    Suite("management", ("management",), servers=True, share=0.15),
    Suite("taps", ("taps",), servers=True, share=0.5),
    Suite("replays", ("replays",), servers=True, share=0.5),
    Suite("doctor", ("doctor",), servers=True, share=0.35),
    Suite("tracing", ("tracing",), servers=True, share=0.3),
    Suite("translation-live", ("translation/live",), servers=True, share=0.2),
    Suite("jms", ("jms",), servers=True, share=0.5),
    Suite("fuzz", ("fuzz",)),
    Suite("budgets", ("budgets",), share=0.8),
    Suite("definitions", ("definitions",)),
    Suite("supply", ("supply/test_[!t]*.py",)),
    Suite("models", ("models",), tier="all"),
    Suite("benchmarks", ("benchmarks",), servers=True, tier="all"),
    Suite("front-faults", ("faults/fronts",), servers=True, share=0.5, tier="all", once=True),
    Suite("examples", ("examples/test_other_languages.py",), share=0.5, tier="all"),
    Suite("generated-clients", ("generated",), tier="all", share=1.0),
    Suite("site", ("site",), tier="all"),
    Suite("deploy", ("deploy/test_[!p]*.py",), tier="all"),
    Suite("deploy-processes", ("deploy/test_processes.py",), servers=True, share=0.5, tier="all"),
    Suite("supply-tools", ("supply/test_tools.py",), tier="all"),
    _newest("conformance", ("conformance",), "rabbitmq-0-9-1 or ((tls or logins) and not 0-8)"),
    _newest("interop", ("interop/test_rabbitmq.py", "interop/test_pika.py"), "not 0-8 and not embedded"),
    _newest("translation-live", ("translation/live/test_there_and_back.py",), "rabbitmq-0-9-1"),
    _newest("bridges", ("bridges/test_real_brokers.py",), "not 0-8"),
    _newest("app", ("test_app_brokers.py", "test_app_subscriptions.py"), "rabbitmq and not 0-8"),
    _newest("faults", ("faults/test_rows.py",), "rabbitmq-0-9-1"),
)
"""In the order in which they start: what is quick to say no comes first, and what is long not last."""


Counts = tuple[int, int]
"""Passed and failed."""


@dataclass
class Result:
    """What became of one suite."""

    suite: Suite
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    """What it and all that it started and waited for took of a processor, in seconds. What the shared servers took for
    it is not in it."""
    why: str = ""
    """Why it failed, where that is not a test that failed."""
    brokers: dict[str, Counts] = field(default_factory=dict)
    """Kind of broker -> passed and failed of the tests that talked to it."""
    again: int = 0
    """How many of those that passed had failed before, beside other suites."""

    @property
    def ok(self) -> bool:
        """Nothing failed, nothing was skipped, and nothing went wrong around it."""
        return not self.failed and not self.skipped and not self.why


def counts(report: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped of a JUnit report."""
    passed = failed = skipped = 0
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        number = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
        bad = number["failures"] + number["errors"]
        passed += number["tests"] - bad - number["skipped"]
        failed += bad
        skipped += number["skipped"]
    return passed, failed, skipped


def by_broker(report: Path) -> dict[str, Counts]:
    """Kind of broker -> passed and failed, from the property ``broker`` that ``tests/conftest.py`` writes."""
    found: dict[str, Counts] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        bad = case.find("failure") is not None or case.find("error") is not None
        kinds = {each.get("value", "") for each in case.iter("property") if each.get("name") == "broker"}
        for kind in kinds:
            passed, failed = found.get(kind, (0, 0))
            found[kind] = (passed + (not bad), failed + bad)
    return found


RUNNING: set[subprocess.Popen[bytes]] = set()
"""The processes under way, each the leader of a group of its own."""


def wait(process: subprocess.Popen[bytes], seconds: float) -> float:
    """Wait for its end, and leave its status to be asked for; what it and its children took of a processor, in seconds.

    Raises:
        subprocess.TimeoutExpired: it runs for longer than ``seconds``.
    """
    deadline = time.monotonic() + seconds
    # Who has ended and was not asked for the status yet can still be read in /proc, children included.
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            raise subprocess.TimeoutExpired(process.args, seconds)
        time.sleep(0.05)
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process, politely first, for it may have servers of its own to end; then whatever it left behind."""
    RUNNING.discard(process)
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=GRACE)
        except subprocess.TimeoutExpired:
            pass  # the group is killed below
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # nothing was left
    process.wait()


def run(suite: Suite, environ: dict[str, str], folder: Path, *, failed: bool = False) -> tuple[Result, str]:
    """Run one suite to its end, or those of its tests that ``failed`` there; returns its row and all it printed."""
    result = Result(suite)
    report = folder / f"{suite.name}.xml"
    log = folder / f"{suite.name}.log"
    sightings = folder / f"{suite.name}.canary"
    environ = {**environ, canary.VARIABLE: str(sightings)}
    if suite.main:
        environ[MAIN_VARIABLE] = suite.main
    began = time.monotonic()
    with log.open("wb") as output:
        for command in suite.commands(report, failed=failed):
            left = suite.limit - (time.monotonic() - began)
            # A session of its own, so that what a suite leaves behind goes with it.
            process = subprocess.Popen(
                command, cwd=ROOT, env=environ, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            RUNNING.add(process)
            try:
                result.cpu += wait(process, max(left, 1))
                status = process.wait()
            except subprocess.TimeoutExpired:
                result.why = f"took longer than {suite.limit} s"
                break
            finally:
                end(process)
            if status:
                result.why = f"{Path(command[0]).name} ended with {status}"
                break
    result.seconds = time.monotonic() - began
    if report.exists():
        result.passed, result.failed, result.skipped = counts(report)
        result.brokers = by_broker(report)
        if result.failed and result.why.endswith(f"ended with {TESTS_FAILED}"):
            result.why = ""  # the number of tests that failed says it better
        elif not result.why and not result.passed:
            result.why = "no test was found"
    elif suite.paths and not result.why:
        result.why = "no report was written"
    said = log.read_text(encoding="utf-8", errors="replace")
    seen = sightings.read_text(encoding="utf-8").splitlines() if sightings.exists() else []
    if seen or canary.look(said, "what the suite printed"):
        result.why = f"a planted secret was seen: {(seen or canary.taken())[0]}"
    return result, said


def may_run_again(results: Sequence[Result]) -> list[Result]:
    """The suites whose failed tests may be run again: a few tests failed, and nothing else went wrong in the suite."""
    if sum(result.failed for result in results) > AGAIN:
        return []
    return [each for each in results if each.failed and not (each.skipped or each.why or each.suite.once)]


def run_again(result: Result, environ: dict[str, str], folder: Path) -> str:
    """Run those tests of a suite that failed, with nothing beside them, and say in its row if they pass now; returns
    what they printed."""
    later, said = run(result.suite, environ, folder, failed=True)
    result.seconds += later.seconds
    result.cpu += later.cpu
    if later.ok and later.passed == result.failed:
        result.again, result.failed = later.passed, 0
        result.passed += later.passed
        result.brokers = {kind: (passed + failed, 0) for kind, (passed, failed) in result.brokers.items()}
    return said


class Servers:
    """The real servers, started in the background and shared by all suites."""

    def __init__(self, file: Path, kinds: Sequence[str] = SHARED) -> None:
        self.file = file
        self._kinds = kinds
        self.ready = threading.Event()
        """They are up, or could not be started: see ``why``."""
        self.why = ""
        self._starter = threading.Thread(target=self._start)

    def __enter__(self) -> Servers:
        self._starter.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._starter.join()
        if self.file.exists():
            print(f"\n── servers: {self._command('down').stdout.strip()}", flush=True)

    def _start(self) -> None:
        began = time.monotonic()
        try:
            done = self._command("up", "--owner", str(os.getpid()), "--only", *self._kinds)
            self.why = "" if done.returncode == 0 else "the servers did not start: " + " ".join(done.stdout.split())
        except subprocess.TimeoutExpired:
            self.why = f"the servers did not start in {SERVERS_START} s"
        print(f"── servers: {self.why or 'up'} in {time.monotonic() - began:.1f} s", flush=True)
        self.ready.set()

    def _command(self, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.servers", verb, "--file", str(self.file), *options]
        return subprocess.run(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SERVERS_START,
            check=False,
        )


class Schedule:
    """Which suite may start next: in the table's order, as many at a time as there is room for, ``alone`` only when
    nothing else runs, and none that needs the servers before they are up. What is larger than the room starts when
    nothing else runs."""

    def __init__(self, suites: Sequence[Suite], servers: Servers) -> None:
        self._waiting = list(suites)
        self._running: list[Suite] = []
        self._servers = servers
        self._changed = threading.Condition()

    def take(self) -> Suite | None:
        """The next suite, waiting until one may start; None when all have started."""
        with self._changed:
            while self._waiting:
                for suite in self._waiting:
                    if self._may_start(suite):
                        self._waiting.remove(suite)
                        self._running.append(suite)
                        return suite
                self._changed.wait(timeout=0.5)
            return None

    def _may_start(self, suite: Suite) -> bool:
        if suite.servers and not self._servers.ready.is_set():
            return False
        if suite.alone:
            return not self._running
        if not self._running:
            return True
        if len(self._running) >= MOST or any(other.alone for other in self._running):
            return False
        return suite.share <= ROOM - sum(other.share for other in self._running)

    def close(self) -> None:
        """Nothing more is to start."""
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()

    def ended(self, suite: Suite) -> None:
        """A suite is over."""
        with self._changed:
            self._running.remove(suite)
            self._changed.notify_all()


def run_all(suites: Sequence[Suite], servers: Servers, tier: str = "test") -> list[Result]:
    """Run the suites as the tier does, print what each said as it ends, and return their rows in the table's order."""
    schedule = Schedule(suites, servers)
    environ = {name: value for name, value in os.environ.items() if name != "COVERAGE_CORE"}
    environ["GATEWAY_TEST_SERVERS"] = str(servers.file)
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if tier != "all":
        environ[pairings.VARIABLE] = pairings.ONCE
    results: dict[str, Result] = {}
    printing = threading.Lock()

    def work() -> None:
        while (suite := schedule.take()) is not None:
            try:
                if suite.servers and servers.why:
                    result, said = Result(suite, why=servers.why), ""
                else:
                    result, said = run(suite, environ, folder)
            except Exception as error:  # a row for what went wrong, so that the table is whole
                result, said = Result(suite, why=f"{type(error).__name__}: {error}"), ""
            finally:
                schedule.ended(suite)
            results[suite.name] = result
            with printing:
                print(f"\n── {suite.name}: {'ok' if result.ok else 'FAILED'} in {result.seconds:.1f} s", flush=True)
                print(said.strip() if not result.ok else said.strip().rpartition("\n")[2], flush=True)

    with tempfile.TemporaryDirectory(prefix="gateway-suites-") as name:
        folder = Path(name)
        # Hundreds of processes import the same modules: what one of them has compiled is there for the others.
        environ["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
        workers = [threading.Thread(target=work, daemon=True) for _ in range(MOST)]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                worker.join()
            for result in may_run_again(list(results.values())):
                said = run_again(result, environ, folder)
                print(f"\n── {result.suite.name}, again: {'ok' if result.ok else 'FAILED'}\n{said.strip()}", flush=True)
        finally:
            schedule.close()
            for process in list(RUNNING):
                end(process)
    return [results[suite.name] for suite in suites]


def table(results: Sequence[Result]) -> str:
    """Suites, result, number of tests, seconds by the clock and of a processor; then one plain line with the sums. What
    is no test and failed (a check, a suite that broke, a skipped test) counts as failed, so that the sums never look
    better than the table."""
    rows = [("suite", "result", "tests", "seconds", "cpu")]
    passed = failed = 0
    for result in results:
        bad = result.failed + result.skipped
        passed += result.passed
        failed += bad or (not result.ok)
        parts = [
            f"{number} {word}" for number, word in ((result.failed, "failed"), (result.skipped, "skipped")) if number
        ]
        good = f"ok, {result.again} again" if result.again else "ok"
        said = good if result.ok else ", ".join([*parts, *([result.why] if result.why else [])])
        number = str(result.passed + bad) if result.suite.paths else "-"
        rows.append((result.suite.name, said, number, f"{result.seconds:.1f}", f"{result.cpu:.1f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [
        "  ".join(text.ljust(width) if column < 2 else text.rjust(width) for column, (text, width) in enumerate(pairs))
        for pairs in (zip(row, widths, strict=True) for row in rows)
    ]
    return "\n".join([*lines, "", f"{passed} passed, {failed} failed"])


def matrix(results: Sequence[Result]) -> str:
    """Passed and failed of each suite on each kind of broker; "" where none was talked to."""
    kinds = sorted({kind for result in results for kind in result.brokers})
    if not kinds:
        return ""
    rows = [("suite", *kinds)]
    for result in results:
        if result.brokers:
            found = (result.brokers.get(kind) for kind in kinds)
            said = (("-" if each is None else f"{each[0]}/{sum(each)}") for each in found)
            rows.append((result.suite.name, *said))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(["tests passed of all that talked to a broker", "", *lines])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="tests/suites.py", description="Run every check and every test.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="only these")
    parser.add_argument("--tier", choices=TIERS, default="test", help="all suites up to this tier; test unless given")
    parser.add_argument("--list", action="store_true", help="print the suites and what is in them")
    options = parser.parse_args(arguments)
    by_name = {suite.name: suite for suite in SUITES}
    if unknown := [name for name in options.suites if name not in by_name]:
        parser.error(f"there is no suite {unknown[0]!r}; there are {', '.join(by_name)}")
    tiers = TIERS[: TIERS.index(options.tier) + 1]
    chosen = [by_name[name] for name in options.suites] or [
        suite for suite in SUITES if suite.tier in tiers and (suite.later or suite.tier == options.tier)
    ]
    if options.list:
        for suite in chosen:
            what = ["tests/" + path for path in suite.paths] or [" ".join(command) for command in suite.check]
            needs = "servers" if suite.servers else ""
            print(f"{suite.name:<20} {suite.tier:<6} {suite.share:<5.2f} {needs:<8} {', '.join(what)}")
        return 0
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was started is ended
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gateway-servers-") as folder:
        kinds = sorted({*SHARED, *(suite.main for suite in chosen if suite.main)})
        servers = Servers(Path(folder) / "servers.json", kinds)
        with servers if any(suite.servers for suite in chosen) else nullcontext():
            results = run_all(chosen, servers, options.tier)
    if found := matrix(results):
        print(f"\n{found}", flush=True)
    print(f"\n{time.monotonic() - began:.0f} s in all\n\n{table(results)}", flush=True)
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
