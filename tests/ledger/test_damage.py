"""A disk that returns other bytes than were written: what is sent is checked, and the rest is named."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.config import LedgerSettings
from gateway.core.publishing import envelopes
from gateway.core.publishing.envelopes import EnvelopeError
from gateway.core.sources.stored import open_envelope
from gateway.errors import LedgerDamaged
from gateway.ledger import EventKind, Ledger, StoredAnswer, Unknown
from gateway.ledger.checking import check
from gateway.ledger.db import commit_count
from gateway.ledger.db.checksums import NONE, checksum, is_sound
from gateway.ledger.db.commit_count import check_commits, forget_commits
from gateway.ledger.db.engine import Database, unavailable
from gateway.ledger.db.files import check_files
from gateway.ledger.pending.bodies import digest_of
from tests.ledger.conftest import Open, entry, intent, new_id
from tests.ledger.test_deliveries import put as store
from tests.ledger.test_outbox import put
from tests.ledgers import sqlite_ledger

Sql = Callable[[str], list[Any]]
CHANGED = "payload = exchange"
FINGERPRINT = bytes(32)
COMMITS = "SELECT commits FROM shards"


@pytest.mark.parametrize("change", [CHANGED, "exchange = payload", "routing_key = payload", "client = payload"])
async def test_a_scheduled_publish_that_was_changed_is_not_sent(ledger: Ledger, sql: Sql, change: str) -> None:
    (row,) = await put(ledger, 1)
    sql(f"UPDATE outbox SET {change}")
    (found,) = await ledger.outbox.claim(10, ["rabbit"])
    assert (found.message_id, found.payload) == (row.message_id, b"")
    with pytest.raises(EnvelopeError, match="it is not what was written"):
        envelopes.decode(found.payload)


async def test_one_of_an_earlier_release_has_no_checksum(ledger: Ledger, sql: Sql) -> None:
    await put(ledger, 1)
    sql(f"UPDATE outbox SET checksum = {NONE}, exchange = payload")
    (found,) = await ledger.outbox.claim(10, ["rabbit"])
    assert found.payload == b"hello\xff"


async def test_a_keyed_publish_that_was_changed_is_not_sent(open_ledger: Open, ledger: Ledger, sql: Sql) -> None:
    one, other = intent(new_id()), intent(new_id())
    await ledger.claim_key("shop", "k", FINGERPRINT, [one, other])
    await ledger.unknown_key("shop", "k")
    sql(f"UPDATE obligations SET {CHANGED} WHERE item = 1")
    found = await ledger.claim_key("shop", "k", FINGERPRINT, [one, other])
    assert isinstance(found, Unknown)
    assert [each.payload for each in found.intents] == [b"hello", b""]


async def test_an_answer_that_was_changed_is_not_given(ledger: Ledger, sql: Sql) -> None:
    message = intent(new_id())
    for key in ("k", "other"):
        await ledger.claim_key("shop", key, FINGERPRINT, [message] if key == "k" else [])
        await ledger.finish_key("shop", key, 200, b"answer", [])
    sql("UPDATE idempotency_keys SET answer_status = 409 WHERE length(message_ids) > 0")
    with pytest.raises(LedgerDamaged, match="the answer under this Idempotency-Key"):
        await ledger.claim_key("shop", "k", FINGERPRINT, [message])
    assert isinstance(await ledger.claim_key("shop", "other", FINGERPRINT, []), StoredAnswer)


async def test_a_delivery_that_was_changed_is_not_handed_out(ledger: Ledger, sql: Sql) -> None:
    one, other = await store(ledger, 2)
    sql("UPDATE bodies SET payload = message_id WHERE message_id = (SELECT message_id FROM bodies LIMIT 1)")
    (kept,) = sql("SELECT count(*) FROM bodies WHERE length(payload) > 5")
    found, _ = await ledger.deliveries.page(payload=True)
    assert {each.payload for each in found} <= {b"", b"hello"}
    claimed = await ledger.deliveries.claim("billing", 10, 60.0)
    assert [each.payload for each in claimed].count(b"") == kept[0] == 1
    with pytest.raises(EnvelopeError, match="it is not what was written"):
        open_envelope(b"")
    bodies = [await ledger.deliveries.body(each.message_id) for each in (one, other)]
    assert sorted(bodies, key=len) == [b"", b"hello"]  # type: ignore[arg-type]
    payloads = await ledger.scans.payloads([one.message_id, other.message_id])
    assert sorted(payloads.values()) == [b"", b"hello"]


async def test_a_resource_that_was_changed_is_not_used(ledger: Ledger, sql: Sql) -> None:
    await ledger.put_resource("endpoint", "shop", {"url": "https://a.example"})
    text = '\'{"url":"https://b.example"}\''
    sql(f"UPDATE resources SET spec = CAST({text} AS {'BLOB' if _on_sqlite(ledger) else 'BYTEA'})")
    with pytest.raises(LedgerDamaged, match="endpoint 'shop' in the ledger is damaged"):
        await ledger.get_resource("endpoint", "shop")
    sql("UPDATE resources SET spec = substr(spec, 3)")
    with pytest.raises(LedgerDamaged, match="a document in the ledger is damaged"):
        await ledger.list_resources("endpoint")


def _on_sqlite(ledger: Ledger) -> bool:
    return ledger.disk.is_watched


def test_checksums_tell_where_one_column_ends() -> None:
    assert checksum(b"ab", b"c") != checksum(b"a", b"bc")
    assert is_sound(checksum(b"a"), b"a")
    assert not is_sound(checksum(b"a"), b"b")
    assert is_sound(NONE, b"anything")
    assert digest_of(b"a") != digest_of(b"b")


# ------------------------------------------------------------------------------------------------- files


@pytest.fixture
async def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A ledger that was killed: ten commits are in its journal alone."""

    url = sqlite_ledger(tmp_path / "live")
    ledger = await Ledger.open(url, LedgerSettings(), owner="test")
    for _ in range(10):
        await put(ledger, 1)
    assert ledger._commits is not None
    ledger._commits.catch_up()
    left = tmp_path / "left"
    left.mkdir()
    for name in ("ledger.db", "ledger.db-wal", "ledger.db.commits"):
        (left / name).write_bytes((tmp_path / "live" / name).read_bytes())
    await ledger.close()
    return left / "ledger.db"


def flip(path: Path, place: int) -> None:
    changed = bytearray(path.read_bytes())
    changed[place] ^= 4
    path.write_bytes(changed)


def journal(path: Path) -> Path:
    return path.with_name("ledger.db-wal")


@pytest.mark.parametrize("place", [20, 40, 32 + 30, 32 + 24 + 4096 + 300, 32 + 5 * (24 + 4096) + 8])
def test_a_journal_that_was_changed_is_named(path: Path, place: int) -> None:
    check_files(path)
    check_commits(path)
    assert check(path) == []
    flip(journal(path), place)
    with pytest.raises(LedgerDamaged, match="commits behind it would be lost"):
        check_files(path)
    assert "commits behind it would be lost" in check(path)[0]
    assert journal(path).exists()


def test_the_end_of_a_journal_may_be_that_of_a_loss_of_power(path: Path) -> None:
    """Its last commit may not have been synced, as far as the journal says. The file beside it says more."""
    size = journal(path).stat().st_size
    flip(journal(path), size - 1)
    check_files(path)
    with pytest.raises(LedgerDamaged, match="the last 1 commits are gone"):
        check_commits(path)
    forget_commits(path)
    check_commits(path)


def test_any_frame_of_the_last_commit_may_be_that_of_a_loss_of_power(path: Path) -> None:
    """Of those behind it only the last one ends a commit: the same one."""
    octets = journal(path).read_bytes()
    frames = range(32, len(octets), 24 + 4096)
    ends = [place for place in frames if int.from_bytes(octets[place + 4 : place + 8])]
    assert ends[-1] == frames[-1]
    assert ends[-1] - ends[-2] > 3 * (24 + 4096), "the commit has frames behind the damaged one, and its end"
    flip(journal(path), ends[-2] + (24 + 4096) + 100)
    check_files(path)


def test_a_journal_that_is_cut_off_or_gone_is_named(path: Path) -> None:
    octets = journal(path).read_bytes()
    journal(path).write_bytes(octets[: len(octets) // 2])
    with pytest.raises(LedgerDamaged, match="commits are gone"):
        check_commits(path)
    journal(path).unlink()
    with pytest.raises(LedgerDamaged, match="commits are gone"):
        check_commits(path)


def test_commits_are_counted_at_most_ten_times_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(commit_count.clock, "monotonic", lambda: now)
    counted = commit_count.CommitCount(tmp_path / "ledger.db")

    def said() -> int:
        return int((tmp_path / "ledger.db.commits").read_bytes().split()[1])

    counted.count(0, 1)
    counted.count(0, 2)
    assert said() == 1
    now += 0.101
    counted.count(0, 3)
    assert said() == 3
    counted.count(0, 4)
    counted.catch_up()
    assert said() == 4
    counted.count(0, 5)
    counted.close()
    assert said() == 5


async def test_the_count_of_a_burst_is_written_within_a_second(tmp_path: Path) -> None:
    ledger = await Ledger.open(sqlite_ledger(tmp_path / "live"), LedgerSettings(), owner="test")
    for _ in range(10):
        await put(ledger, 1)
    counted = (tmp_path / "live" / "ledger.db.commits").read_bytes
    async with asyncio.timeout(20):
        while int(counted().split()[1]) < await ledger.read(lambda there: there.scalar(sa.text(COMMITS))):
            await asyncio.sleep(0.05)
    await ledger.close()


def test_a_count_that_cannot_be_read_says_nothing(path: Path) -> None:
    journal(path).unlink()
    for octets in (b"", b"0 100\n", b"\0" * 64, b"0 100 00000000\n".ljust(64)):
        path.with_name("ledger.db.commits").write_bytes(octets)
        check_commits(path)


def test_a_journal_that_the_database_has_is_none(path: Path) -> None:
    """Its header was about to be written for the next commits when the power went."""
    octets = journal(path).read_bytes()
    database = sqlite3.connect(path)
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    journal(path).write_bytes(bytes(32) + octets[32:])
    check_files(path)


def test_a_database_that_is_cut_off_is_named(path: Path) -> None:
    sqlite3.connect(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    check_files(path)
    octets = path.read_bytes()
    path.write_bytes(octets[: len(octets) // 2])
    with pytest.raises(LedgerDamaged, match="is cut off"):
        check_files(path)
    path.write_bytes(b"x" + octets[1:])
    with pytest.raises(LedgerDamaged, match="its header is not that of a database"):
        check_files(path)
    path.write_bytes(b"")
    check_files(path)


async def test_a_schema_that_is_no_text_is_named(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    octets = path.read_bytes()
    path.write_bytes(octets.replace(b"CREATE TABLE outbox", b"CREATE TABLE \xa0utbox"))
    assert check(path)
    with pytest.raises(LedgerDamaged, match="damaged"):
        await Ledger.open(f"sqlite:///{path}", LedgerSettings(), owner="test")


def test_what_sqlite_calls_malformed_is_damaged() -> None:
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    assert isinstance(unavailable(error), LedgerDamaged)


async def test_the_check_reads_what_is_only_in_the_log_of_writes(tmp_path: Path) -> None:
    url = sqlite_ledger(tmp_path)
    path = Database(url).path
    assert path is not None
    ledger = await Ledger.open(url, LedgerSettings(), owner="test")
    await put(ledger, 1)
    database = sqlite3.connect(path)
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.execute("UPDATE outbox SET payload = exchange")
    database.commit()
    assert path.with_name("ledger.db-wal").stat().st_size
    assert "a scheduled or pending publish is not what was written" in "\n".join(check(path, is_open=True))
    database.close()
    await ledger.close()


async def test_the_check_reads_every_row(tmp_path: Path) -> None:

    url = sqlite_ledger(tmp_path)
    path = Database(url).path
    assert path is not None
    ledger = await Ledger.open(url, LedgerSettings(), owner="test")
    await put(ledger, 1)
    await store(ledger, 1)
    await ledger.claim_key("shop", "k", FINGERPRINT, [intent(new_id())])
    await ledger.finish_key("shop", "k", 200, b"answer", [entry(new_id(), EventKind.EXTENDED)])
    await ledger.claim_key("shop", "other", FINGERPRINT, [intent(new_id())])
    await ledger.put_resource("endpoint", "shop", {"url": "https://a.example"})
    assert check(path, is_open=True) == []
    await ledger.close()
    assert check(path) == []
    database = sqlite3.connect(path)
    for change in (
        "outbox SET payload = exchange", "obligations SET payload = exchange",
        "bodies SET payload = message_id", "idempotency_keys SET answer_body = id",
        "resources SET etag = etag || 'x'", "deliveries SET digest = id",
    ):  # fmt: skip
        database.execute(f"UPDATE {change}")
    database.commit()
    database.close()
    found = "\n".join(check(path))
    for what in (
        "a scheduled or pending publish", "a publish without an outcome", "the body of a message",
        "the answer under an Idempotency-Key", "a resource", "the reference to a body in a delivery",
    ):  # fmt: skip
        assert f"{what} is not what was written" in found
