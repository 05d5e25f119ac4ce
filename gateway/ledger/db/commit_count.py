"""How many commits a ledger on SQLite had, in a file beside it: ``ledger.db.commits``.

The end of a journal can be cut off, or damaged, in a way that looks like a loss of power: what was committed there
would go without a word. So the count of commits of the shard is written to a file of its own, after the commit and
without a sync: at most every 100 ms, and what came since then within a second. After a loss of power or a kill it may
be too small, or unreadable, and says less. It is never too great, because the commit was synced before. A ledger that
has fewer commits than the file says has lost some.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote
from zlib import crc32

from gateway.errors import LedgerDamaged
from gateway.runtime.clock import clock

SIZE: Final = 64
"""Bytes of the file: it fits into a sector of a disk."""
PAUSE: Final = 0.1
"""Seconds between two writes: one after each commit would take a tenth of its time, also where each waits long for the
interpreter's lock."""


class CommitCount:
    """The file, held open by the one process that owns the ledger."""

    def __init__(self, path: Path) -> None:
        """``path``: the database. Raises OSError."""
        self._file = os.open(_beside(path), os.O_RDWR | os.O_CREAT, 0o600)
        self._again_at = 0.0
        self._counted = self._written = (0, 0)

    def count(self, shard: int, commits: int) -> None:
        """Say how many commits a shard has now: at once, or with what comes next. Raises OSError."""
        self._counted = shard, commits
        now = clock.monotonic()
        if now >= self._again_at:
            self._again_at = now + PAUSE
            self.catch_up()

    def catch_up(self) -> None:
        """Write what has not been written yet. May run beside ``count``: then the smaller number may win. Raises
        OSError."""
        counted = self._counted
        if counted != self._written:
            os.pwrite(self._file, _encoded(*counted), 0)
            self._written = counted

    def close(self) -> None:
        """Write what has not been written yet, and close the file."""
        with suppress(OSError):
            self.catch_up()
        os.close(self._file)


def check_commits(path: Path) -> None:
    """Compare a ledger, which nobody has open, with its file. Blocks.

    Raises:
        LedgerDamaged: commits are gone.
        sqlite3.Error, OSError: it cannot be read.
    """
    try:
        octets = _beside(path).read_bytes()
    except FileNotFoundError:
        return
    try:
        shard, commits = map(int, octets.split()[:2])
    except ValueError:
        return
    if octets != _encoded(shard, commits) or not path.stat().st_size:
        return
    # Read-only: closing it must not write a damaged journal into the database.
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "mode=ro&immutable=1"
    uri = f"file:{quote(str(path.absolute()))}?{mode}"
    with closing(sqlite3.connect(uri, uri=True)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        query = "SELECT commits FROM shards WHERE shard = ?"
        found = database.execute(query, (shard,)).fetchone() if "shards" in tables else None
    has = found[0] if found is not None else 0
    if has < commits:
        raise LedgerDamaged(
            f"{path}: the last {commits - has} commits are gone: it is damaged, or an older copy. Restore a backup "
            f"with 'gateway restore'; or remove {_beside(path).name} to start without them"
        )


def forget_commits(path: Path) -> None:
    """Remove the file: the ledger at this path is another one from now on. Raises OSError."""
    _beside(path).unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.commits")


def _encoded(shard: int, commits: int) -> bytes:
    text = b"%d %d" % (shard, commits)
    return (text + b" %08x\n" % crc32(text)).ljust(SIZE, b" ")
