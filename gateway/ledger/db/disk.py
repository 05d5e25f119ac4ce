"""A reserve of disk for a ledger on SQLite.

What was promised must be settled, and that writes, too. So while less than the reserve is free, nothing new is
promised. PostgreSQL's disk cannot be looked at from here: when it is full, its error says so
(:func:`gateway.ledger.db.engine.unavailable`).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from gateway.errors import LedgerFull

PART: Final = 20
"""The reserve is at most this part of the disk: one twentieth."""
WRITTEN: Final = 2
"""How often a payload is written: to the write-ahead log, and to the database."""
MIB: Final = 1 << 20


def reserve_of(configured: int, total: int) -> int:
    """Return how many bytes of a disk of ``total`` bytes are reserved."""
    return min(configured, total // PART)


class Disk:
    """The free space of the ledger's disk, as of the last look."""

    def __init__(self, file: Path | None, configured: int) -> None:
        """``file``: the database; None: it is on PostgreSQL, and nothing is looked at. ``configured``:
        ``ledger.disk_reserve``, in bytes."""
        self._folder = None if file is None else file.parent
        self._configured = configured
        self.free_bytes = 0
        self.reserve_bytes = 0
        """0: nothing is reserved."""

    @property
    def is_low(self) -> bool:
        """Less than the reserve is free."""
        return self.free_bytes < self.reserve_bytes

    @property
    def is_watched(self) -> bool:
        """Its free space is looked at."""
        return self._folder is not None

    def look(self) -> None:
        """Look how much is free. Blocks. A disk that does not tell leaves things as they were."""
        if self._folder is None:
            return
        try:
            found = shutil.disk_usage(self._folder)
        except OSError:
            return
        self.free_bytes = found.free
        self.reserve_bytes = reserve_of(self._configured, found.total)

    @property
    def reason(self) -> str:
        """Why nothing new is promised; empty: it is."""
        if not self.is_low:
            return ""
        return (
            f"less than {self.reserve_bytes / MIB:,.1f} MiB (ledger.disk_reserve) of its disk are free; they are "
            "reserved for what was promised before"
        )

    def check(self, payload_bytes: int = 0) -> None:
        """Raise LedgerFull while less than the reserve is free, or would be with a new payload of this size. What
        passes counts as written until the next look, so that a burst does not reach into the reserve."""
        if not self.reserve_bytes:
            return
        left = self.free_bytes - WRITTEN * payload_bytes
        if left < self.reserve_bytes:
            if not self.is_low:
                raise LedgerFull(
                    f"the ledger does not take {payload_bytes:,} bytes: with them, less than "
                    f"{self.reserve_bytes / MIB:,.1f} MiB (ledger.disk_reserve) of its disk would be free"
                )
            raise LedgerFull(f"the ledger takes nothing new: {self.reason}")
        self.free_bytes = left
