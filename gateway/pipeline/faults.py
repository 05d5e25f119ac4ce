"""What a job of the pipeline can end with, and what Spark's own failures mean.

The classes stand in the one tree of :mod:`gateway.errors`, with a code each, and their exit statuses in the one table
of :mod:`gateway.exits`. What is here is the way from the other side: a task fails in a Python worker, Spark wraps its
words into an exception of the JVM, the JVM's into one of Py4J or of a query that ended, and somebody who runs a job
wants one sentence. :func:`fault_of` finds the words that matter and says which fault they are.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import Final

from gateway.errors import (
    ArchiveDamaged,
    ArchiveTooNew,
    BadFilter,
    Breaks,
    ConfigurationError,
    CursorOwned,
    DiskFull,
    FingerprintDiffers,
    GatewayError,
    JavaMissing,
    PipelineFault,
    ServiceRefused,
    ServiceUnreachable,
    SourceGone,
    SparkMissing,
    error_of,
)
from gateway.exits import exit_status

__all__ = [
    "ArchiveDamaged",
    "ArchiveTooNew",
    "BadFilter",
    "Breaks",
    "ConfigurationError",
    "CursorOwned",
    "DiskFull",
    "FingerprintDiffers",
    "GatewayError",
    "JavaMissing",
    "PipelineFault",
    "ServiceRefused",
    "ServiceUnreachable",
    "SourceGone",
    "SparkMissing",
    "error_of",
    "exit_status",
    "fault_of",
]

MAX_TEXT: Final = 2_000
"""Longest text of a fault that was made of somebody else's, in characters. Spark's go on for pages."""
ERRORS: Final = {kind.__name__: kind for kind in (
    ArchiveDamaged, ArchiveTooNew, BadFilter, ConfigurationError, CursorOwned, DiskFull, ServiceRefused,
    ServiceUnreachable, SourceGone,
)}  # fmt: skip
"""Our own errors that may come out of a task, by the name under which a worker's traceback shows them."""
RAISED: Final = re.compile(rf"^(?:[\w.]+\.)?({'|'.join(ERRORS)}): (.+)$", re.MULTILINE)
"""The last line of a Python traceback, wherever it is quoted."""
WORDS: Final[tuple[tuple[str, type[PipelineFault], str], ...]] = (
    ("No space left on device", DiskFull, "no space left on the device where Spark writes"),
    ("File too large", DiskFull, "a file is as large as it may be where Spark writes"),
    ("Disk quota exceeded", DiskFull, "the disk quota is used up where Spark writes"),
    ("JAVA_GATEWAY_EXITED", JavaMissing, "Java ended before Spark began; see what it said above"),
    (
        "UnsupportedClassVersionError",
        JavaMissing,
        "Java is too old for Spark, which needs 17 or later",
    ),
    ("is not a Parquet file", ArchiveDamaged, "a file is no Parquet, or was cut short"),
    ("Could not read footer", ArchiveDamaged, "a Parquet file was cut short"),
    ("[FAILED_READ_FILE", ArchiveDamaged, "a file cannot be read"),
    ("DELTA_INVALID_PROTOCOL_VERSION", ArchiveTooNew, "the Delta table needs a newer reader"),
    ("DELTA_TRUNCATED_TRANSACTION_LOG", ArchiveDamaged, "the commit log of the Delta table is cut short"),
    ("DELTA_VERSIONS_NOT_CONTIGUOUS", ArchiveDamaged, "the commit log of the Delta table has a gap"),
    ("DELTA_LOG_FILE_NOT_FOUND", ArchiveDamaged, "the commit log of the Delta table has a gap"),
    ("Python worker failed to connect back", PipelineFault, "a Python worker of Spark did not start within its 10 s"),
    ("OutOfMemoryError", PipelineFault, "Spark ran out of memory: raise pipeline.memory"),
)
"""Words of the JVM, the fault they stand for, and how we say it; the first that is found counts."""


def fault_of(error: BaseException) -> GatewayError:
    """The fault that an exception stands for, also inside others; :class:`PipelineFault` where none is known."""
    for each in _chain(error):
        if isinstance(each, GatewayError):
            return each
        if isinstance(each, OSError) and each.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return DiskFull(f"{each.filename or 'the disk'}: {each.strerror}")
    said = "\n".join(str(each) for each in _chain(error))
    if found := RAISED.search(said):
        return error_of(ERRORS[found[1]].code, found[2][:MAX_TEXT])
    for words, kind, text in WORDS:
        if (at := said.find(words)) >= 0:
            return kind(f"{text} ({_line(said, at)})"[:MAX_TEXT])
    return PipelineFault(f"{type(error).__name__}: {said.strip() or 'no words'}"[:MAX_TEXT])


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and those that it came from."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)


def _line(text: str, at: int) -> str:
    """The line that holds this place."""
    return text[text.rfind("\n", 0, at) + 1 :].partition("\n")[0].strip()
