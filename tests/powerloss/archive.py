"""Rot in an archive of plain Parquet: its commit log, its checkpoint and its data files."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Final

from gateway.errors import ArchiveDamaged, GatewayError
from gateway.pipeline.archive import commits
from gateway.pipeline.archive.parquet import ParquetTable
from gateway.pipeline.archive.table import Token
from gateway.pipeline.schema import MESSAGES
from tests.pipeline.unit.archive.arrow_engine import ArrowEngine, messages
from tests.powerloss.found import Found
from tests.powerloss.losses import scratch
from tests.powerloss.rot import damage

APPENDS: Final = 12
CHECKPOINT_EVERY: Final = 5
"""Commits between two checkpoints here, so that there are both."""


def archive_rot(seed: int, points: int) -> Found:
    """Damage a file of an archive at so many points, one at a time, and look at it as ``archive check --deep`` does."""
    found, chance, folder = Found(), random.Random(f"{seed} archive"), scratch()
    before = commits.CHECKPOINT_EVERY
    commits.CHECKPOINT_EVERY = CHECKPOINT_EVERY  # type: ignore[misc]
    try:
        place = folder / "archive"
        table = ParquetTable.opened(ArrowEngine(2), place, MESSAGES)
        for number in range(APPENDS):
            table.append(messages(number * 100 + 1, number * 100 + 100), Token.of("0", number * 100 + 100))
        rows = table.read(["sequence", "body"])
        paths = sorted(path for path in place.rglob("*") if path.is_file() and path.suffix in (".json", ".parquet"))
        for _ in range(points):
            path = chance.choice(paths)
            content = path.read_bytes()
            path.write_bytes(damage(content, chance))
            kind = "data" if path.suffix == ".parquet" else "checkpoint" if "checkpoint" in path.name else "commit"
            what = _look(place, rows)
            found.points[f"{kind}: {what}"] += 1
            if what == "served as truth":
                found.problems.append(f"seed {seed}, {path.relative_to(place)}: {what}")
            path.write_bytes(content)
    finally:
        commits.CHECKPOINT_EVERY = before  # type: ignore[misc]
        shutil.rmtree(folder)
    return found


def _look(place: Path, rows: object) -> str:
    try:
        table = ParquetTable.opened(ArrowEngine(2), place, MESSAGES, create=False)
        if table.check(deep=True).problems:
            return "named by the check"
        return "harmless" if table.read(["sequence", "body"]).equals(rows) else "served as truth"
    except ArchiveDamaged:
        return "named when it is opened"
    except GatewayError:
        return "refused when it is opened"
