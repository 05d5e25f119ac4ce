"""Losses of power at points of a recorded run."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

from tests.powerloss.disk import KINDS, Disk, write
from tests.powerloss.found import Found
from tests.powerloss.judge import Promises, problems
from tests.powerloss.recording import record, steps

RAM: Final = Path("/dev/shm")
"""Where the files of each point are put."""
PROCESSES: Final = 3
"""How many processes work on the ledger of a run, one after the other."""


def recorded(seed: int, operations: int, folder: Path, defect: str = "") -> Path:
    """Record a run: several processes, one after the other, of which some end without closing the ledger."""
    root, log, state = folder / "root", folder / "log", folder / "state.json"
    root.mkdir()
    for number in range(PROCESSES):
        arguments = [str(root), str(state), f"{seed}-{number}", str(operations // PROCESSES)]
        arguments += [defect] if defect else []
        record("tests.powerloss.work", arguments, root, log)
    return log


def scratch() -> Path:
    """A new folder, in memory where there is one."""
    return Path(tempfile.mkdtemp(prefix="powerloss-", dir=RAM if RAM.is_dir() else None))


def images(log: Path, seed: int, points: int) -> Iterator[tuple[int, str, dict[str, bytes | None], Promises]]:
    """So many losses of power, spread over the run, each with different files: the number of the step, what was left of
    the others, the files, and what was promised."""
    found = list(steps(log))
    chance = random.Random(f"{seed} losses")
    moments = [number for number, step in enumerate(found) if step.kind != "!"]
    chosen = Counter(chance.choices(moments, k=points * 2))
    disk, promised, made = Disk(), Promises(), 0
    seen, marks = set[bytes](), 0
    for number, step in enumerate(found):
        if step.kind == "!":
            promised.take(step)
            marks += 1
            continue
        disk.take(step)
        for _ in range(chosen[number]):
            kind = "all" if disk.is_certain else chance.choice(KINDS)
            files = disk.after(kind, chance)
            contents = [(path, sha256(content or b"").digest()) for path, content in files.items()]
            digest = sha256(repr((marks, contents)).encode()).digest()
            if digest in seen or made >= min(points, (number + 1) * points / len(found) + 1):
                continue
            seen.add(digest)
            made += 1
            yield number, kind, files, promised


def lose(seed: int, operations: int, points: int, defect: str = "") -> Found:
    """Record a run, lose the power at so many points of it, and look at what is left."""
    found = Found()
    folder = scratch()
    try:
        log = recorded(seed, operations, folder, defect)
        for number, kind, files, promised in images(log, seed, points):
            place = scratch()
            try:
                write(files, place)
                wrong = asyncio.run(problems(place, promised))
            finally:
                shutil.rmtree(place)
            found.points[kind] += 1
            found.problems += [f"seed {seed}, step {number}, {kind}: {each}" for each in wrong]
    finally:
        shutil.rmtree(folder)
    return found
