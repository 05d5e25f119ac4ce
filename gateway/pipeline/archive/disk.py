"""What is on the disk is on the disk: files and folders flushed, and a full disk told for what it is.

After an append the archive's rows may be the only ones there are, for the log deletes rows that were read. So before
the cursor moves, each file and the folder that names it has been flushed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gateway.errors import DiskFull

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a full disk, a used up quota and a limit on the size of files say."""


@contextmanager
def room(place: Path) -> Iterator[None]:
    """Say :class:`DiskFull` of what fails in the block for want of room; ``place`` is what is being written."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DiskFull(f"{place}: {error.strerror}; what was committed is safe") from error
        raise


def write_flushed(path: Path, data: bytes) -> None:
    """Write a new file, and have it on the disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
