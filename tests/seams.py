"""Check of the seams: no module outside ``gateway/runtime`` reads a clock, sleeps, draws a random number or starts a
thread.

``python -m tests.seams`` reads every module of the package. Each finding is one line: where, what, and what to write
instead. A simulation that replaces the few functions of ``gateway/runtime`` then controls all time, chance and threads.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "gateway"
SEAMS: Final = "gateway/runtime/"

_CLOCK: Final = "time comes from gateway.runtime.clock: now, now_ns, monotonic, utc"
_SLEEP: Final = "sleep with gateway.runtime.clock: sleep in a task, block in a thread"
_CHANCE: Final = "chance comes from gateway.runtime.ids"
_THREAD: Final = "threads come from gateway.runtime.threads: run, submit, pool, start"

BANNED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter",
            "time.perf_counter_ns", "time.process_time", "time.process_time_ns", "time.thread_time",
            "time.clock_gettime", "time.clock_gettime_ns", "datetime.datetime.now", "datetime.datetime.utcnow",
            "datetime.datetime.today", "datetime.date.today",
        ),
        _CLOCK,
    ),
    **dict.fromkeys(("time.sleep", "asyncio.sleep"), _SLEEP),
    **dict.fromkeys(("os.urandom", "os.getrandom", "uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7"), _CHANCE),
    **dict.fromkeys(
        (
            "asyncio.to_thread", "threading.Thread", "threading.Timer", "concurrent.futures.ThreadPoolExecutor",
            "concurrent.futures.ProcessPoolExecutor", "_thread.start_new_thread",
        ),
        _THREAD,
    ),
}  # fmt: skip
"""Dotted name, and what to write instead."""
BANNED_MODULES: Final = {"random": _CHANCE, "secrets": _CHANCE, "multiprocessing": _THREAD}
"""Modules of which everything is banned."""
TYPES: Final = frozenset({"random.Random", "threading.Thread"})
"""Banned only where it is called: as a type it is a value that somebody was given."""
NOW_WITHOUT_ARGUMENT: Final = frozenset({"time.gmtime", "time.localtime", "time.ctime", "time.asctime"})
"""These read the clock only if they are called without a time. ``strftime`` needs one, too."""
LOOPS: Final = ("loop", "get_running_loop()", "get_event_loop()")
"""What an expression ends with that is an event loop."""
KEPT: Final = frozenset({
    "gateway.runtime.clock.clock.now", "gateway.runtime.clock.clock.now_ns", "gateway.runtime.clock.clock.monotonic",
    "gateway.runtime.clock.clock.sleep", "gateway.runtime.clock.clock.block", "gateway.runtime.ids.ids.fraction",
    "gateway.runtime.ids.ids.random_bytes",
})  # fmt: skip
"""Functions that may be replaced: a reference that somebody keeps would outlive its replacement."""

EXCEPTIONS: Final[Mapping[str, Mapping[str, str]]] = {}
"""Module, what it may use, and why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One use of what only the seams may use."""

    path: str
    line: int
    what: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}: {self.instead}"


def findings(path: str, source: str) -> Iterator[Finding]:
    """Yield what a module uses that only the seams may use."""
    tree = ast.parse(source)
    names: dict[str, str] = {}
    called: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.partition(".")[0]
                names[local] = alias.name if alias.asname else local
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        elif isinstance(node, ast.Call):
            called.add(node.func)
            name = _dotted(node.func, names)
            given = len(node.args) + len(node.keywords)
            if (name in NOW_WITHOUT_ARGUMENT and not given) or (name == "time.strftime" and given < 2):
                yield Finding(path, node.lineno, name, _CLOCK)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            found = _finding(node, names, node in called)
            if found is not None:
                yield Finding(path, node.lineno, *found)


def _finding(node: ast.Attribute | ast.Name, names: Mapping[str, str], called: bool) -> tuple[str, str] | None:
    name = _dotted(node, names)
    if (instead := BANNED.get(name)) and (called or name not in TYPES):
        return name, instead
    module, _, member = name.rpartition(".")
    if member and (instead := BANNED_MODULES.get(module.partition(".")[0])) and (called or name not in TYPES):
        return name, instead
    if isinstance(node, ast.Attribute):
        if node.attr == "run_in_executor":
            return node.attr, _THREAD
        if node.attr == "time" and ast.unparse(node.value).lower().endswith(LOOPS):
            return "loop.time", _CLOCK
    if name in KEPT and not called:
        return f"{name} is kept", "call it where it is used, or pass a lambda that calls it"
    return None


def _dotted(node: ast.AST, names: Mapping[str, str]) -> str:
    """The full name of what is used, or an empty text."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return ""
    return ".".join([names[node.id], *reversed(parts)])


def check(
    sources: Mapping[str, str],
    exceptions: Mapping[str, Mapping[str, str]] = EXCEPTIONS,
) -> list[str]:
    """Return what is wrong with these modules (path -> source), and with the table."""
    wrong: list[str] = []
    for path, source in sorted(sources.items()):
        found = [] if path.startswith(SEAMS) else list(findings(path, source))
        excused = exceptions.get(path, {})
        unused = set(excused) - {finding.what for finding in found}
        wrong += [f"{path}: it does not use {what}: take that from EXCEPTIONS" for what in sorted(unused)]
        wrong += [str(finding) for finding in found if finding.what not in excused]
    wrong += [f"{path}: it does not exist: take it from EXCEPTIONS" for path in sorted({*exceptions} - {*sources})]
    return wrong


def package() -> dict[str, str]:
    """Every module of the package: its path and its source."""
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


def main() -> int:
    """Print what is wrong. Return the exit code."""
    sources = package()
    wrong = check(sources)
    print(*wrong, sep="\n") if wrong else print(f"{len(sources)} modules: time, chance and threads are in the seams")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
