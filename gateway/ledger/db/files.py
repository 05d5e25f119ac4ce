"""The files of a ledger on SQLite, looked at before they are opened.

SQLite checks its journal, and takes a frame whose checksum is wrong for the end of it: that is what a loss of power
leaves. Where a disk has changed a frame, all that was committed behind it would go without a word. So the frames are
read here first. With ``synchronous=FULL`` each commit is synced before the next one is written, so a loss of power can
damage frames of the last commit only. Damage before that is reported, and the ledger is not opened.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct, iter_unpack
from typing import BinaryIO, Final, NamedTuple

from gateway.errors import LedgerDamaged

RESTORE: Final = "Keep its files, and restore a backup, or start without them"
_HEADER: Final = 100
"""Bytes of the header of a database."""
_JOURNAL: Final = Struct(">IIIIIIII")
"""Mark, format, page size, checkpoint, two salts, two checksums."""
_FRAME: Final = Struct(">IIIIII")
"""Page, size of the database after a commit (else 0), two salts, two checksums."""
_MARKS: Final = {0x377F0682: "<", 0x377F0683: ">"}
"""The first number of a journal -> the byte order of its checksums."""
_PAGES: Final = frozenset(1 << power for power in range(9, 17))
"""Sizes that pages may have."""


class Journal(NamedTuple):
    """What a journal holds."""

    lost: int
    """Commits behind the first frame that is not what was written, which SQLite would drop."""
    at: int
    """Where that frame begins, in bytes."""
    is_empty: bool
    """There is no commit that counts."""


def check_files(path: Path) -> None:
    """Look at the files of a database that nobody has open.

    Raises:
        LedgerDamaged: the database is cut off, or the journal is damaged before its last commit.
        OSError: a file cannot be read.
    """
    journal = path.with_name(path.name + "-wal")
    found = Journal(0, 0, True)
    if journal.exists() and journal.stat().st_size:
        with journal.open("rb") as file, path.open("rb") as database:
            found = read_journal(file, database)
        if found.lost:
            raise LedgerDamaged(
                f"{journal} is damaged at byte {found.at:,}: {found.lost} commits behind it would be lost. {RESTORE}"
            )
    if found.is_empty:
        _check_size(path)


def read_journal(file: BinaryIO, beside: BinaryIO) -> Journal:
    """Read the journal of the database ``beside`` as SQLite does, and on behind the place where SQLite would stop."""
    head = file.read(_JOURNAL.size)
    if len(head) < _JOURNAL.size:
        return Journal(0, 0, True)
    mark, _, size, _, *rest = _JOURNAL.unpack(head)
    order = _MARKS.get(mark, "")
    is_sound = bool(order) and _added(head[:24], order, 0, 0) == tuple(rest[2:])
    if not is_sound:
        return _behind_damaged_header(file, beside)
    salts, sums = tuple(rest[:2]), (rest[2], rest[3])
    place, commits, broken_at, lost = _JOURNAL.size, 0, 0, 0
    while len(frame := file.read(_FRAME.size + size)) == _FRAME.size + size:
        page, database, *own = _FRAME.unpack_from(frame)
        told = (own[2], own[3])
        found = _added(frame[_FRAME.size :], order, *_added(frame[:8], order, *sums))
        fits = found == told and tuple(own[:2]) == salts and page > 0
        if not broken_at:
            if fits:
                commits += database > 0
            else:
                broken_at = place
        elif fits:  # by the checksum that the frame before it tells
            lost += database > 0
        sums = told
        place += len(frame)
    # What follows the damaged frame and belongs to its commit may be of a write that a loss of power cut off.
    return Journal(_certain(lost, file, broken_at, size, salts), broken_at, commits == 0)


def _certain(lost: int, file: BinaryIO, broken_at: int, size: int, salts: tuple[int, ...]) -> int:
    """Commits that were synced: all behind the damaged frame, or the one that it belongs to and those behind that."""
    if not lost:
        return 0
    file.seek(broken_at)
    page, database, *own = _FRAME.unpack_from(file.read(_FRAME.size + size))
    ends_commit = database > 0 and page > 0 and tuple(own[:2]) == salts
    return lost + 1 if ends_commit else lost if lost > 1 else 0


def _behind_damaged_header(file: BinaryIO, database: BinaryIO) -> Journal:
    """Commits of a journal whose header is not what was written, and that the database does not have. A header fits
    into a sector, and is synced before the first frame: frames that fit each other say that it was whole once. They
    count no more where the database has all of them, and the header was about to be written for the next ones."""
    for size in sorted(_PAGES):
        for order in ("<", ">"):
            pages, lost = _fitting(file, size, order)
            if lost and any(_page(database, number, size) != _at(file, place, size) for number, place in pages.items()):
                return Journal(lost, 1, False)
    return Journal(0, 0, True)


def _fitting(file: BinaryIO, size: int, order: str) -> tuple[dict[int, int], int]:
    """Where the last copy of each page is, in frames that fit each other from the second one on; and how many commits
    these are."""
    file.seek(_JOURNAL.size)
    before: list[int] = []
    committed, pages, commits, count, place = dict[int, int](), dict[int, int](), 0, 0, _JOURNAL.size
    while len(frame := file.read(_FRAME.size + size)) == _FRAME.size + size:
        page, database, *own = _FRAME.unpack_from(frame)
        if before:
            sums = _added(frame[:8], order, before[2], before[3])
            if own[:2] != before[:2] or _added(frame[_FRAME.size :], order, *sums) != (own[2], own[3]):
                break
            count += 1
        pages[page] = place + _FRAME.size
        if database:
            commits += 1
            committed = dict(pages)
        before, place = own, place + len(frame)
    return (committed, commits) if count else ({}, 0)


def _page(database: BinaryIO, number: int, size: int) -> bytes:
    return _at(database, (number - 1) * size, size)


def _at(file: BinaryIO, place: int, size: int) -> bytes:
    file.seek(place)
    return file.read(size)


def _added(octets: bytes, order: str, one: int, other: int) -> tuple[int, int]:
    """SQLite's checksum of a journal, over some more bytes."""
    for first, second in iter_unpack(f"{order}II", octets):
        one = (one + first + other) & 0xFFFFFFFF
        other = (other + second + one) & 0xFFFFFFFF
    return one, other


def _check_size(path: Path) -> None:
    """Compare the size of a database without a journal with the one in its header."""
    size = path.stat().st_size
    if not size:
        return
    with path.open("rb") as file:
        head = file.read(_HEADER)
    page = int.from_bytes(head[16:18])
    page = 65_536 if page == 1 else page
    pages = int.from_bytes(head[28:32])
    if len(head) < _HEADER or not head.startswith(b"SQLite format 3\0") or page not in _PAGES:
        raise LedgerDamaged(f"{path} is damaged: its header is not that of a database. {RESTORE}")
    if head[24:28] == head[92:96] and size < pages * page:
        raise LedgerDamaged(f"{path} is cut off: it has {size:,} bytes of {pages * page:,}. {RESTORE}")
