"""Folders that a run needs only while it lasts.

Spark spills, unpacks and shuffles on disk, and a JVM that is killed leaves all of that where it was. So every run has a
folder of its own, holds a lock on a file in it for as long as it lives, and sweeps away those whose lock nobody holds:
what a kill left behind goes with the next run. The lock is the kernel's and ends with its process, in any way.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

PREFIX: Final = "gateway-run-"
LOCK: Final = "lock"


class Scratch:
    """One run's folder; it is there until :meth:`remove`."""

    def __init__(self, parent: str = "") -> None:
        """Make it below ``parent``; empty: below the system's temporary folder.

        Raises:
            OSError: it cannot be made.
        """
        above = Path(parent or tempfile.gettempdir())
        above.mkdir(parents=True, exist_ok=True)
        sweep(above)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=above)).absolute()
        held = _lock(self.path)
        assert held is not None, "nobody else knows this folder"
        self._held = held

    def remove(self) -> None:
        """Remove it. Safe to repeat."""
        self._held.close()
        shutil.rmtree(self.path, ignore_errors=True)


def sweep(parent: Path) -> list[Path]:
    """Remove the folders of runs that are over; returns those that it removed."""
    return list(_swept(parent))


def _swept(parent: Path) -> Iterator[Path]:
    for path in sorted(parent.glob(PREFIX + "*")):
        # One without a lock is being made this moment.
        if path.is_dir() and path.stat().st_uid == os.getuid() and (path / LOCK).exists():
            held = _lock(path)
            if held is not None:
                shutil.rmtree(path, ignore_errors=True)
                held.close()
                yield path


def _lock(path: Path) -> IO[bytes] | None:
    """The lock of a folder, or None where somebody holds it."""
    try:
        file = (path / LOCK).open("ab")
    except OSError:
        return None  # somebody removed the folder
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file
