"""A run: cases by the thousand, in as many processes as there are cores.

A case that breaks a promise is written to a file, with the command that repeats it; the run goes on.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.fuzz.oracle import Broken
from tests.fuzz.report import Report
from tests.fuzz.targets import WEIGHED, made, play

BLOCK: Final = 2_000
"""How many cases a process takes at a time."""
WARM: Final = 300
"""Cases that are played before memory is looked at for the first time."""
FAILURES_MAX: Final = 50
"""More are counted, not written."""


def resident() -> int:
    """This process's memory, in KiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def play_block(seed: str, numbers: range, folder: Path, weighs: bool = True) -> Report:
    """Play these cases. ``weighs``: the memory of some of them is measured."""
    report = Report()
    for number in numbers:
        generator, case = made(seed, number)
        try:
            report.add(number, generator, case, play(case, weigh=weighs and number % WEIGHED == 0))
        except Broken as broken:
            report.note(generator, case)
            path = folder / f"{seed}-{number}.json"
            if len(report.failures) < FAILURES_MAX:
                case.write(path)
            why = str(broken).strip().splitlines()
            report.failures.append((number, str(path), why[-1] if why else ""))
    return report


def _work(seed: str, blocks: list[range], folder: str, results: multiprocessing.Queue[Report], weighs: bool) -> None:
    """A process. One that ``weighs`` says nothing of its own memory: what measures that of cases leaves some behind."""
    play_block(seed, range(-WARM, 0), Path(folder), weighs)
    begin = resident()
    parent = multiprocessing.parent_process()
    for block in blocks:
        if parent is not None and not parent.is_alive():
            return  # killed: nobody waits for the rest
        results.put(play_block(seed, block, Path(folder), weighs))
    end = Report()
    if not weighs:
        end.rss.append((begin, resident()))
    results.put(end)


def run(
    seed: str, cases: int, folder: Path, processes: int = 1, tell: Callable[[int, float], None] | None = None
) -> Report:
    """Play cases 0 to ``cases``; ``tell`` hears after each block how many are done, and after how many seconds. An
    interrupt ends it early."""
    folder.mkdir(parents=True, exist_ok=True)
    blocks = [range(first, min(first + BLOCK, cases)) for first in range(0, cases, BLOCK)]
    report = Report()
    if processes == 1:
        for block in blocks:
            report.merge(play_block(seed, block, folder))
        return report
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[Report] = context.Queue()
    workers = [
        context.Process(
            target=_work, args=(seed, blocks[index::processes], str(folder), results, not index), daemon=True
        )
        for index in range(processes)
    ]
    for worker in workers:
        worker.start()
    try:
        for _ in range(len(blocks) + processes):
            report.merge(results.get())
            if tell is not None:
                tell(report.cases, time.monotonic() - began)
    except KeyboardInterrupt:  # what was seen until now is worth telling
        for worker in workers:
            worker.terminate()
    for worker in workers:
        worker.join()
    return report
