"""Backups of a ledger on SQLite: whole while it is written to, and refused where they are not."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gateway.config import LedgerSettings
from gateway.errors import BackupRefused, LedgerUnavailable
from gateway.ledger import Ledger
from gateway.ledger.backups import TRAILER, back_up, check_version, read_info, unpack
from gateway.ledger.db.schema import HEAD
from gateway.ledger.db.shards import RETIRED
from tests.ledger.conftest import new_id, published
from tests.ledgers import sqlite_ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a ledger."""
    sqlite_ledger(tmp_path)
    return tmp_path / "ledger.db"


@pytest.fixture
def backup(path: Path, tmp_path: Path) -> Path:
    target = tmp_path / "ledger.backup"
    back_up(path, target)
    return target


def query(path: Path, text: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(text).fetchall()


async def test_a_ledger_that_is_written_to(path: Path, tmp_path: Path) -> None:
    """Each copy is what one moment was: as many events as the shard's row says, and two of each message."""
    ledger = await Ledger.open(f"sqlite:///{path}", LedgerSettings(), owner="test")
    ends = False

    async def write() -> int:
        number = 0
        while not ends:
            await ledger.record([each for _ in range(50) for each in published(new_id())])
            number += 50
        return number

    writing = asyncio.create_task(write())
    counts = []
    try:
        for number in range(5):
            target, made = tmp_path / f"{number}.backup", tmp_path / f"{number}.db"
            await asyncio.to_thread(back_up, path, target)
            unpack(target, read_info(target), made)
            (following,) = query(made, "SELECT next_sequence - 1 FROM shards")
            assert query(made, "SELECT count(*) FROM events") == [following]
            (messages,) = query(made, "SELECT count(*) FROM messages")
            assert following[0] == 2 * int(str(messages[0]))
            counts.append(following[0])
    finally:
        ends = True
        written = await writing
        await ledger.close()
    assert counts == sorted(counts)
    assert int(str(counts[-1])) <= 2 * written


def test_the_file(path: Path, backup: Path, tmp_path: Path) -> None:
    info = read_info(backup)
    assert backup.stat().st_mode & 0o777 == 0o600
    assert backup.stat().st_size == info.size + TRAILER
    assert query(backup, "SELECT count(*) FROM shards") == [(0,)], "it opens as a database"
    made = tmp_path / "made.db"
    unpack(backup, info, made)
    assert query(made, "SELECT version_num FROM alembic_version") == query(
        path, "SELECT version_num FROM alembic_version"
    )
    assert not list(tmp_path.glob("*.part*"))


def test_a_backup_is_replaced_and_nothing_else_is(path: Path, backup: Path, tmp_path: Path) -> None:
    first = read_info(backup)
    assert back_up(path, backup).at > first.at
    other = tmp_path / "letter.txt"
    other.write_text("precious")
    with pytest.raises(BackupRefused, match=r"not a whole backup\. Name another file"):
        back_up(path, other)
    assert other.read_text() == "precious"
    assert not list(tmp_path.glob("*.part*"))


def test_what_a_backup_that_was_ended_has_left_is_no_hindrance(path: Path, backup: Path) -> None:
    before = read_info(backup)
    for name in (".part", ".part-wal", ".part-shm"):
        backup.with_name(backup.name + name).write_bytes(b"half a backup")
    assert back_up(path, backup).at > before.at
    assert sorted(each.name for each in backup.parent.glob("*.part*")) == []


def test_a_ledger_that_cannot_be_read(path: Path, backup: Path, tmp_path: Path) -> None:
    before = backup.read_bytes()
    for wrong in (tmp_path / "none.db", tmp_path / "junk.db"):
        if wrong.stem == "junk":
            wrong.write_bytes(b"junk" * 4_096)
        with pytest.raises(LedgerUnavailable, match="cannot be read"):
            back_up(wrong, backup)
    assert backup.read_bytes() == before


def test_one_of_before_a_restore_is_fenced(path: Path, backup: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO shards VALUES (0, NULL, ?, 0, 1, 0, 1, 0)", (RETIRED,))
    old = backup.with_name("old.db")
    unpack(backup, read_info(backup), old)
    back_up(path, backup)
    assert read_info(backup).restores == 1
    before = backup.read_bytes()
    with pytest.raises(BackupRefused, match="another gateway has taken over"):
        back_up(old, backup)
    assert backup.read_bytes() == before


@pytest.mark.parametrize("left", [0, 1, 100, 4_096, 20_000, -1, -4_096])
def test_one_that_is_cut_off(backup: Path, tmp_path: Path, left: int) -> None:
    os.truncate(backup, left if left >= 0 else backup.stat().st_size + left)
    with pytest.raises(BackupRefused, match=r"cut off|is not a backup"):
        read_info(backup)


def test_one_with_a_part_missing_in_the_middle(backup: Path) -> None:
    octets = backup.read_bytes()
    backup.write_bytes(octets[:8_192] + octets[12_288:])
    with pytest.raises(BackupRefused, match="cut off: it has"):
        read_info(backup)


def test_one_that_was_changed(backup: Path, tmp_path: Path) -> None:
    octets = bytearray(backup.read_bytes())
    octets[10_000] ^= 1
    backup.write_bytes(octets)
    made = tmp_path / "made.db"
    with pytest.raises(BackupRefused, match="is damaged: its SHA-256"):
        unpack(backup, read_info(backup), made)
    assert not made.exists()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b'"format":1,', b'"format":2,', "has form 2, and this release reads form 1"),
        (b'"size":', b'"sise":', "its trailer cannot be read"),
    ],
)
def test_a_trailer_of_another_form(backup: Path, old: bytes, new: bytes, says: str) -> None:
    octets = backup.read_bytes()
    assert old in octets[-TRAILER:]
    backup.write_bytes(octets[:-TRAILER] + octets[-TRAILER:].replace(old, new))
    with pytest.raises(BackupRefused, match=says):
        read_info(backup)


def test_tables_of_another_release(path: Path, backup: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '0007'")
    with pytest.raises(BackupRefused, match="has tables 0007"):
        back_up(path, backup)
    octets = backup.read_bytes()
    backup.write_bytes(
        octets[:-TRAILER] + octets[-TRAILER:].replace(b'"schema":%d' % HEAD, b'"schema":7 ')
    )  # as long as before
    with pytest.raises(BackupRefused, match="then run 'gateway migrate'"):
        check_version(backup, read_info(backup))


@pytest.mark.parametrize(
    ("begin", "words"), [(b"SQLite format 3\0", "is cut off"), (b"something else..", "is not a backup of a ledger")]
)
def test_a_file_without_a_trailer_is_known_by_its_beginning(tmp_path: Path, begin: bytes, words: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(begin + bytes(2 * TRAILER))
    with pytest.raises(BackupRefused, match=words):
        read_info(file)
