"""Backups of a ledger on SQLite: a copy of the database, made while a gateway uses it, in one file.

The file is the database, followed by a trailer of :data:`TRAILER` bytes: a mark, and a JSON object with the size and
SHA-256 of the database, when it was copied, and which release and schema wrote it. SQLite does not read past its own
pages, so the file opens as a database, too. A file that was cut off has no trailer.

The copy is what one read transaction sees: everything that was committed before :attr:`BackupInfo.at`, and nothing in
part. Writers go on meanwhile. No key is in it: those are files of their own.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from gateway import __version__
from gateway.durable import flush
from gateway.errors import BackupRefused, LedgerUnavailable
from gateway.ledger.db.engine import BUSY_TIMEOUT
from gateway.ledger.db.schema import HEAD
from gateway.ledger.db.shards import RETIRED
from gateway.runtime.clock import clock

FORMAT: Final = 1
"""Number of the form of the file."""
MARK: Final = b"amqp-gateway backup\n"
"""The trailer begins with it."""
TRAILER: Final = 4_096
"""Bytes of the trailer."""
PAGES: Final = 2_000
"""Pages that are copied at a time."""
CHUNK: Final = 1 << 20
"""Bytes that are read at a time."""


class BackupInfo(msgspec.Struct, frozen=True):
    """What the trailer says."""

    format: int
    release: str
    """Version of the gateway that made it."""
    schema: int
    """Revision of the tables."""
    at: int
    """Everything that was committed before is in it; microseconds since 1970."""
    restores: int
    """How often the ledger had been restored from a backup. A greater number fences a smaller one."""
    size: int
    sha256: str


def back_up(path: Path, target: Path) -> BackupInfo:
    """Copy the ledger at ``path``, which may be in use, to the file ``target``, which is replaced as a whole. Blocks.

    Raises:
        LedgerUnavailable: the ledger cannot be read.
        BackupRefused: it has other tables than this release; or ``target`` is something else than a backup, or one of
            the same ledger after it was restored: this one is fenced.
        OSError: ``target`` cannot be written.
    """
    before = _present(target)
    part = target.with_name(f"{target.name}.part")
    try:
        part.unlink(missing_ok=True)  # of a backup that was ended
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        at, schema, restores = _copy(path, part)
        if before is not None and before.restores > restores:
            raise BackupRefused(
                f"{target} is a backup of this ledger after a restore: another gateway has taken over from this one. "
                "Stop this gateway, or name another file"
            )
        with part.open("r+b") as file:
            size, digest = _hashed(file)
            info = BackupInfo(FORMAT, __version__, schema, at, restores, size, digest)
            file.seek(0, os.SEEK_END)
            file.write(_trailer(info))
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
        flush(target.parent)
        return info
    finally:
        for name in (part, *beside(part)):
            name.unlink(missing_ok=True)


def read_info(path: Path) -> BackupInfo:
    """What a backup says of itself; its content is not read.

    Raises:
        BackupRefused: it is cut off, no backup, or of a form that this release does not know.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - TRAILER))
        trailer = file.read(TRAILER)
        file.seek(0)
        is_database = file.read(16) == b"SQLite format 3\0"
    if len(trailer) < TRAILER or not trailer.startswith(MARK):
        what = "is cut off: its end is missing" if is_database else "is not a backup of a ledger"
        raise BackupRefused(f"{path} {what}. Nothing was changed")
    try:
        text = trailer[len(MARK) :].rstrip(b"\0")
        form = msgspec.json.decode(text, type=_Form).format
        if form != FORMAT:
            raise BackupRefused(f"{path} has form {form}, and this release reads form {FORMAT}. Nothing was changed")
        info = msgspec.json.decode(text, type=BackupInfo)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BackupRefused(f"{path} is damaged: its trailer cannot be read. Nothing was changed") from None
    if info.size != size - TRAILER:
        raise BackupRefused(
            f"{path} is cut off: it has {size - TRAILER:,} bytes of a ledger of {info.size:,}. Nothing was changed"
        )
    return info


def check_version(path: Path, info: BackupInfo) -> None:
    """
    Raises:
        BackupRefused: the tables are those of another release.
    """
    if info.schema != HEAD:
        raise BackupRefused(
            f"{path} is of release {info.release} (tables {info.schema:04}), and this release needs tables {HEAD:04}. "
            f"Restore it with release {info.release}, then run 'gateway migrate'. Nothing was changed"
        )


def unpack(path: Path, info: BackupInfo, target: Path) -> None:
    """Write the database of a backup to the new file ``target``. Blocks.

    Raises:
        BackupRefused: the content is not what the trailer says, or SQLite finds it damaged; ``target`` is gone again.
        OSError: a file cannot be read or written.
    """
    found, left = sha256(), info.size
    try:
        with path.open("rb") as source, os.fdopen(_new(target), "wb") as made:
            while left and (data := source.read(min(CHUNK, left))):
                found.update(data)
                made.write(data)
                left -= len(data)
            made.flush()
            os.fsync(made.fileno())
        if left or found.hexdigest() != info.sha256:
            raise BackupRefused(f"{path} is damaged: its SHA-256 is not the one in its trailer. Nothing was changed")
        with closing(sqlite3.connect(target)) as database:
            if (says := database.execute("PRAGMA quick_check(1)").fetchone()) != ("ok",):
                raise BackupRefused(f"{path} is damaged: {says[0]}. Nothing was changed")
    except sqlite3.Error as error:
        target.unlink()
        raise BackupRefused(f"{path} is damaged: {error}. Nothing was changed") from None
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def beside(path: Path) -> tuple[Path, ...]:
    """The files that SQLite keeps beside a database."""
    return tuple(path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))


class _Form(msgspec.Struct):
    format: int


def _present(target: Path) -> BackupInfo | None:
    """The backup that is replaced; None if there is no file. Raises BackupRefused for any other file."""
    try:
        return read_info(target)
    except FileNotFoundError:
        return None
    except BackupRefused:
        raise BackupRefused(f"{target} is there, and is not a whole backup. Name another file") from None


def _copy(path: Path, target: Path) -> tuple[int, int, int]:
    """Copy what one transaction sees; when it began, the revision of the tables, and the number of restores."""
    try:
        at = int(clock.now() * 1e6)
        source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_TIMEOUT)
        with closing(source), closing(sqlite3.connect(target)) as made:
            source.isolation_level = None
            source.execute("BEGIN")
            schema = int(source.execute("SELECT version_num FROM alembic_version").fetchone()[0])
            if schema != HEAD:
                raise BackupRefused(
                    f"the ledger {path} has tables {schema:04}, and this release has {HEAD:04}: "
                    "back it up with the release that serves it"
                )
            restores = source.execute("SELECT count(*) FROM shards WHERE fence >= ?", (RETIRED,)).fetchone()[0]
            source.backup(made, pages=PAGES, sleep=0.0)
            source.execute("COMMIT")
        return at, schema, restores
    except (sqlite3.Error, TypeError, ValueError) as error:
        raise LedgerUnavailable(f"the ledger {path} cannot be read: {error}") from None


def _hashed(file: BinaryIO) -> tuple[int, str]:
    found, size = sha256(), 0
    while data := file.read(CHUNK):
        found.update(data)
        size += len(data)
    return size, found.hexdigest()


def _trailer(info: BackupInfo) -> bytes:
    return (MARK + msgspec.json.encode(info) + b"\n").ljust(TRAILER, b"\0")


def _new(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
