"""What a process did to its files: recorded by ``record.c``, which is preloaded into it.

The C compiler of the system makes the library, once in a process. What was recorded is a list of :class:`Step`.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

SOURCE: Final = Path(__file__).with_name("record.c")
_HEAD: Final = struct.Struct("=cIIQqq")


class Step(NamedTuple):
    """One call that changed a file or a folder, one that synced it, or a mark."""

    kind: str
    """A letter, as ``record.c`` has them."""
    path: str
    """Below the folder."""
    inode: int
    at: int
    """Where a write begins; how long a file is now."""
    data: bytes
    """What was written; the new name; the text of a mark."""


@cache
def library() -> str:
    """The path of the library. Raises OSError or CalledProcessError without a C compiler."""
    made = tempfile.mkdtemp(prefix="powerloss-")
    path = os.path.join(made, "record.so")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", path, str(SOURCE), "-ldl", "-lpthread"], check=True)
    return path


def record(module: str, arguments: Sequence[str], folder: Path, log: Path, seconds: float = 300.0) -> None:
    """Run a module of the tests in a process of its own, and append to ``log`` what it does below ``folder``. Raises
    CalledProcessError where it does not end with 0."""
    environment = os.environ | {"LD_PRELOAD": library(), "POWERLOSS_ROOT": str(folder), "POWERLOSS_LOG": str(log)}
    environment |= {"PYTHONHASHSEED": "0"}
    subprocess.run([sys.executable, "-m", module, *arguments], env=environment, check=True, timeout=seconds)


def mark(**fields: Any) -> None:
    """Put a mark between what is recorded of this process."""
    _mark()(json.dumps(fields).encode())


@cache
def _mark() -> Any:
    found = ctypes.CDLL(None).powerloss_mark
    found.argtypes = [ctypes.c_char_p]
    return found


def steps(log: Path) -> Iterator[Step]:
    """What was recorded."""
    octets = log.read_bytes()
    place = 0
    while place < len(octets):
        kind, of_path, of_data, inode, at, _ = _HEAD.unpack_from(octets, place)
        place += _HEAD.size
        path = octets[place : place + of_path].decode()
        place += of_path
        yield Step(kind.decode(), path, inode, at, octets[place : place + of_data])
        place += of_data
