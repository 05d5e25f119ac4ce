"""Journals and headers of SQLite, made byte by byte: what is damaged, and how many commits would be lost."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from struct import iter_unpack, pack
from typing import NamedTuple

import pytest

from gateway.errors import LedgerDamaged
from gateway.ledger.db.files import Journal, check_files, read_journal

HEADER = 32
MARKS = {"<": 0x377F0682, ">": 0x377F0683}
SALTS = (7, 8)


def added(octets: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    """The checksum as SQLite's documentation has it."""
    one, other = sums
    for first, second in iter_unpack(f"{order}II", octets):
        one = (one + first + other) % 2**32
        other = (other + second + one) % 2**32
    return one, other


class Frame(NamedTuple):
    """One page of a journal."""

    page: int = 1
    database: int = 0
    """Pages of the database after it, where it ends a commit."""
    fill: int = 0
    """What its page is full of."""
    salts: tuple[int, int] = SALTS
    is_broken: bool = False
    """Whether a byte of its page was changed."""
    is_chained: bool = True
    """Whether those behind it go on from its checksum."""


END = Frame(database=1)
PART = Frame()


def frame_size(size: int) -> int:
    return 24 + size


def made(frames: Sequence[Frame], order: str = "<", size: int = 512, *, mark: int = 0, is_sound: bool = True) -> bytes:
    """A journal. ``is_sound``: its header has the right checksum."""
    head = pack(">IIIIII", mark or MARKS[order], 3_007_000, size, 0, *SALTS)
    sums = added(head, order, (0, 0))
    octets = head + pack(">II", *(sums if is_sound else (sums[0], sums[1] ^ 1)))
    for frame in frames:
        begin, page = pack(">II", frame.page, frame.database), bytes([frame.fill]) * size
        own = added(page, order, added(begin, order, sums))
        written = bytes([frame.fill ^ 1]) + page[1:] if frame.is_broken else page
        octets += begin + pack(">IIII", *frame.salts, *own) + written
        sums = own if frame.is_chained else sums
    return octets


def read(octets: bytes, database: bytes = b"") -> Journal:
    return read_journal(BytesIO(octets), BytesIO(database))


@pytest.fixture(params=["<", ">"], ids=["little", "big"])
def order(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


BROKEN_END, BROKEN_PART = END._replace(is_broken=True), PART._replace(is_broken=True)
JOURNALS: dict[str, tuple[list[Frame], tuple[int, int | None, bool]]] = {
    # frames -> commits that are lost, the index of the first bad frame, and whether no commit counts
    "none": ([], (0, None, True)),
    "no commit": ([PART, PART], (0, None, True)),
    "one commit": ([PART, END], (0, None, False)),
    "commits": ([END, PART, END, END, PART], (0, None, False)),
    "the last frame": ([END, END, BROKEN_END], (0, 2, False)),
    "the only frame": ([BROKEN_END], (0, 0, True)),
    "the end of a commit": ([END, BROKEN_END, END], (2, 1, False)),
    "the end of the first commit": ([BROKEN_END, END, END], (3, 0, True)),
    "the end of a commit before a part": ([END, BROKEN_END, PART], (0, 1, False)),
    "a part of the last commit": ([END, BROKEN_PART, PART, END], (0, 1, False)),
    "a part of a commit": ([END, BROKEN_PART, END, END], (2, 1, False)),
    "a part of a commit before more": ([END, PART, BROKEN_PART, END, PART, END, END], (3, 2, False)),
    "two frames": ([END, BROKEN_PART, BROKEN_END, END, END], (2, 1, False)),
    "a page without a number": ([END, END._replace(page=0), END], (0, 1, False)),
    "a page without a number before more": ([END, END._replace(page=0), END, END], (2, 1, False)),
    "of an earlier journal": ([END, END._replace(salts=(7, 9)), END], (0, 1, False)),
    "of an earlier journal before more": ([END, END._replace(salts=(6, 8)), END, END], (2, 1, False)),
    "an end of an earlier journal": ([END, BROKEN_END, END._replace(salts=(6, 8)), END], (2, 1, False)),
}


@pytest.mark.parametrize("size", [512, 1024])
@pytest.mark.parametrize("name", JOURNALS)
def test_what_a_journal_holds(name: str, order: str, size: int) -> None:
    frames, (lost, broken, is_empty) = JOURNALS[name]
    at = 0 if broken is None else HEADER + broken * frame_size(size)
    assert read(made(frames, order, size)) == Journal(lost, at, is_empty)
    if frames:
        cut = made([*frames, END], order, size)[:-1]
        assert read(cut) == Journal(lost, at, is_empty), "a frame that is not all there counts for nothing"


def test_a_journal_without_a_whole_header_holds_nothing() -> None:
    for length in (0, 1, HEADER - 1, HEADER):
        assert read(made([END])[:length]) == Journal(0, 0, True)


# ---------------------------------------------------------------------------------------------- a damaged header


def pages(*fills: int, size: int = 512) -> bytes:
    """A database."""
    return b"".join(bytes([fill]) * size for fill in fills)


FITTING: dict[str, tuple[list[Frame], int]] = {
    "one frame says nothing": ([END], 0),
    "two commits": ([END, END], 2),
    "a commit and a part": ([END, PART], 1),
    "parts": ([PART, PART], 0),
    "a commit of parts": ([PART, PART, END], 1),
    "another journal behind": ([END, END, END._replace(salts=(7, 9)), END], 2),
    "a changed frame behind": ([END, END, BROKEN_END, END], 2),
    "a changed frame in between": ([END, END, BROKEN_END._replace(is_chained=False), END], 2),
    "another journal in between": ([END, END, END._replace(salts=(7, 9), is_chained=False), END], 2),
    "nothing fits": ([END, BROKEN_END, BROKEN_END], 0),
}


@pytest.mark.parametrize("size", [512, 1024, 4096])
@pytest.mark.parametrize("name", FITTING)
def test_commits_behind_a_damaged_header(name: str, order: str, size: int) -> None:
    """They count where the database lacks a page of them."""
    frames, lost = FITTING[name]
    octets = made([frame._replace(fill=5) for frame in frames], order, size, is_sound=False)
    assert read(octets) == (Journal(lost, 1, False) if lost else Journal(0, 0, True))
    assert read(octets, pages(5, size=size)) == Journal(0, 0, True), "the database has all of them"


def test_each_page_is_looked_for_in_its_place(order: str) -> None:
    """Its last copy of a commit counts, wherever it is."""
    frames = [
        Frame(1, 0, 1), Frame(2, 3, 2), Frame(3, 0, 9), Frame(3, 3, 3), Frame(2, 3, 4), Frame(1, 0, 8),
    ]  # fmt: skip
    octets = made(frames, order, is_sound=False)
    assert read(octets, pages(1, 4, 3)) == Journal(0, 0, True)
    for lacking in (pages(0, 4, 3), pages(1, 2, 3), pages(1, 4, 9), pages(1, 4), pages(4, 3, 1), b""):
        assert read(octets, lacking) == Journal(3, 1, False)


@pytest.mark.parametrize("mark", [1, 0x377F0684])
def test_a_header_without_its_mark_is_damaged(order: str, mark: int) -> None:
    assert read(made([END, END], order, mark=mark)) == Journal(2, 1, False)
    assert read(made([END, END], order, mark=MARKS["<" if order == ">" else ">"])) == Journal(2, 1, False)


# ------------------------------------------------------------------------------------------------------ the files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    path.write_bytes(database())
    return path


def database(number: int = 2, size: int = 512, *, told: int | None = None, version: int = 3, known: int = 3) -> bytes:
    """A database. ``told``: how many pages its header says that it has, in a ``version`` that is the one ``known``."""
    head = bytearray(100)
    head[:16] = b"SQLite format 3\0"
    head[16:18] = (1 if size == 65_536 else size).to_bytes(2)
    head[24:28], head[28:32], head[92:96] = (each.to_bytes(4) for each in (version, told or number, known))
    return bytes(head).ljust(number * size, b"x")


def fails(path: Path, octets: bytes) -> str:
    path.write_bytes(octets)
    with pytest.raises(LedgerDamaged) as caught:
        check_files(path)
    return str(caught.value)


@pytest.mark.parametrize("size", [512, 4096, 65_536])
def test_a_database_has_as_many_pages_as_its_header_says(path: Path, size: int) -> None:
    for octets in (database(2, size), database(3, size, told=2), b"", database(1, size, told=2, version=4)):
        path.write_bytes(octets)
        check_files(path)
    assert f"is cut off: it has {size * 2 - 1:,} bytes of {size * 2:,}" in fails(path, database(2, size)[:-1])
    assert "is cut off" in fails(path, database(2, size)[:100])


def test_a_header_that_is_not_that_of_a_database(path: Path) -> None:
    head = database(1)
    for octets in (head[:99], b"T" + head[1:], head[:15] + b"x" + head[16:], b"x", database(1, 256), database(1, 513)):
        assert "its header is not that of a database" in fails(path, octets)
    path.write_bytes(database(0)[:100])
    check_files(path)


def test_a_journal_beside_a_database(path: Path) -> None:
    journal = path.with_name("ledger.db-wal")
    journal.write_bytes(b"")
    check_files(path)
    journal.write_bytes(made([END, BROKEN_END, END]))
    with pytest.raises(LedgerDamaged, match=r"ledger.db-wal is damaged at byte 568: 2 commits behind it would be lost"):
        check_files(path)
    journal.write_bytes(made([END, END]))
    path.write_bytes(database()[:-1])
    check_files(path)  # its pages may be in the journal
    journal.write_bytes(made([PART]))
    with pytest.raises(LedgerDamaged, match="is cut off"):
        check_files(path)
