"""What a process costs: wall clock, CPU and memory of this one, and of another by its number."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TICK = 1 / os.sysconf("SC_CLK_TCK")


class Stopwatch:
    """Wall clock and CPU of this process in a ``with`` block."""

    seconds = cpu = 0.0

    def __enter__(self) -> Stopwatch:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *exc: object) -> None:
        self.seconds = time.perf_counter() - self._wall
        self.cpu = time.process_time() - self._cpu

    def result(self, number: int) -> dict[str, Any]:
        """For :func:`tests.benchmarks.programs.samples`."""
        return {"number": number, "seconds": self.seconds, "cpu": self.cpu}


@dataclass
class Watched:
    """CPU of another process, in a ``with`` block of :func:`watched`."""

    cpu: float = 0.0


@contextmanager
def watched(pid: int) -> Iterator[Watched]:
    """CPU that the process spends in this block, to a hundredth of a second."""
    found = Watched()
    before = cpu_of(pid)
    yield found
    found.cpu = cpu_of(pid) - before


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far, user and system, all threads."""
    return _spent(f"/proc/{pid}/stat")


def cpu_of_loop(pid: int) -> float:
    """Those of its first thread alone, in which the event loop runs."""
    return _spent(f"/proc/{pid}/task/{pid}/stat")


def _spent(path: str) -> float:
    fields = Path(path).read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK


def resident(pid: int | str = "self") -> int:
    """Octets of memory that a process has now."""
    return _status(pid, "VmRSS")


def largest(pid: int | str = "self") -> int:
    """Octets of memory that a process had at its largest."""
    return _status(pid, "VmHWM")


def _status(pid: int | str, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def answer(works: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What a client of AMQP says at its end."""
    return {"works": works, "memory": largest()}


def percentile(ordered: list[float], part: float) -> float:
    """The value that ``part`` of a sorted list does not exceed."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
