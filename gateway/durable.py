"""Files and folders that a loss of power leaves as they were promised.

A file is on the disk once it is synced, and its name is once its folder is synced. The name of a folder has to be
synced in the folder above.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def flush(path: Path) -> None:
    """Sync a file, or the names in a folder. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder and the folders above it, and sync their names. It may exist, and then nothing is synced.

    Args:
        path: the folder.
        mode: of this folder; those above it have the system's default.

    Raises:
        OSError: it cannot be made, or is a file.
    """
    try:
        path.mkdir(mode)
    except FileNotFoundError:
        make_folder(path.parent)
        make_folder(path, mode)
    except FileExistsError:
        if path.is_dir():
            return
        if os.path.lexists(path):
            raise
        make_folder(path, mode)  # somebody else has made it, and has deleted it since
    else:
        flush(path.parent)


def make_file(path: Path, content: bytes) -> None:
    """Make a file that only its owner can read. After a loss of power it has its content, or does not exist.

    Raises:
        FileExistsError: it exists, and stays as it is.
        OSError: it cannot be written.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)  # of a process that was killed
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    try:
        _name(part, path)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()
    flush(path.parent)


def _name(part: Path, path: Path) -> None:
    """Give a file its name, unless that is taken."""
    try:
        path.hardlink_to(part)
    except FileExistsError:
        raise
    except OSError:  # a filesystem without links
        if path.exists():
            raise FileExistsError(str(path)) from None
        part.replace(path)
