"""The head of the audit log outside the database, and what a running gateway notices."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from random import Random
from time import time
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.access import heads as module
from gateway.access.heads import Heads, read_head, write_head
from gateway.config import AuditSettings, LedgerSettings
from gateway.errors import ConfigurationError
from gateway.ledger import Ledger
from gateway.ledger.access.audit import AuditHead, AuditKeys, append, rows, trim
from gateway.ledger.access.audit_check import AuditRules, verify
from gateway.ledger.db.models import audit_log
from gateway.observing.telemetry import Metrics
from tests.ledger.audit_attacks import ATTACKS, CUTS, DAY, SEED, bare, chained, forged, keys, store, stored
from tests.ledgers import sqlite_ledger

KEYS = keys(1)
NOW = int(time() * 1e6)

Open = Callable[..., Awaitable[Ledger]]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return sqlite_ledger(tmp_path)


@pytest.fixture
async def open_ledger(url: str) -> AsyncIterator[Open]:
    opened: list[Ledger] = []

    async def open_one(given: Mapping[str, bytes] = KEYS, where: str = url) -> Ledger:
        ledger = await Ledger.open(where, LedgerSettings(), owner=f"test {len(opened)}", audit_keys=given)
        opened.append(ledger)
        return ledger

    yield open_one
    for ledger in opened:
        await ledger.close()


@pytest.fixture
async def ledger(open_ledger: Open) -> Ledger:
    ledger = await open_ledger()
    for number in range(5):
        await ledger.audit.append([(NOW, {"action": "a", "number": number})])
    return ledger


def heads_of(ledger: Ledger, folder: Path, **options: Any) -> Heads:
    tell = options.pop("tell", None)
    return Heads(ledger, AuditSettings(**options), folder, Metrics(""), tell)


async def tamper(ledger: Ledger, change: Callable[[sa.Connection], Any]) -> None:
    """As somebody would who can write to the database."""
    await ledger.task(lambda connection, _: change(connection) and None)


async def check(ledger: Ledger, known: AuditHead | None = None) -> Any:
    rules = AuditRules(AuditKeys(KEYS), NOW, 30)
    return await ledger.read(lambda connection: verify(connection, known, rules))


async def actions(ledger: Ledger) -> list[str]:
    return [row.document()["action"] for row in await ledger.audit.read()]


def cut_off(connection: sa.Connection) -> None:
    connection.execute(sa.delete(audit_log).where(audit_log.c.sequence > 3))


def make_anew(connection: sa.Connection) -> None:
    log = stored(connection)
    store(connection, chained([bare(row._replace(entry=b'{"action":"b"}')) for row in log]))


def drop(connection: sa.Connection) -> None:
    connection.execute(sa.delete(audit_log))


def forge(connection: sa.Connection) -> None:
    store(connection, [*(log := stored(connection)), forged(log[-1], {"action": "forged"})])


def forge_with_mac(connection: sa.Connection) -> None:
    log = stored(connection)
    new = forged(log[-1], {"action": "forged"})
    store(connection, [*log, new._replace(mac=bytes(32), mac_key=log[-1].mac_key)])


async def test_it_is_in_the_file(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_EVERY", 0.01)
    heads = heads_of(ledger, tmp_path)
    await heads.start()
    assert read_head(tmp_path / "audit.head") == ledger.audit.head
    assert (tmp_path / "audit.head").stat().st_mode & 0o777 == 0o600
    await ledger.audit.append([(NOW, {"action": "b"})])
    while (head := read_head(tmp_path / "audit.head")) != ledger.audit.head:
        await asyncio.sleep(0.01)
    assert head is not None
    assert (head.sequence, len(head.mac)) == (6, 32)
    await ledger.audit.append([(NOW, {"action": "c"})])
    await heads.close()
    assert read_head(tmp_path / "audit.head") == ledger.audit.head, "the last one, too"
    assert (await check(ledger, head)).broken == 0


async def test_a_burst_costs_one_write(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = module.write_head

    def counted(path: Path, head: AuditHead, at: float) -> None:
        written.append(head.sequence)
        write(path, head, at)

    monkeypatch.setattr(module, "write_head", counted)
    heads = heads_of(ledger, tmp_path)
    await heads.start()
    await asyncio.gather(*(ledger.audit.append([(NOW, {"action": "b"})]) for _ in range(200)))
    await heads.close()
    assert (written[0], written[-1]) == (5, 205)
    assert len(written) <= 4


@pytest.mark.parametrize("change", [cut_off, make_anew, drop, forge, forge_with_mac])
@pytest.mark.parametrize("running", [True, False], ids=["while it runs", "while it stands still"])
async def test_what_is_done_to_the_log_is_noticed(
    open_ledger: Open, ledger: Ledger, tmp_path: Path, change: Any, running: bool, caplog: pytest.LogCaptureFixture
) -> None:
    heads = heads_of(ledger, tmp_path)
    await heads.start()
    before = read_head(tmp_path / "audit.head")
    assert before is not None
    if not running:
        await heads.close()
        await ledger.close()
        ledger = await open_ledger()
        heads = heads_of(ledger, tmp_path)
    await tamper(ledger, change)
    with caplog.at_level(logging.ERROR):
        await (heads._look() if running else heads.start())
        await ledger.audit.append([(NOW, {"action": "c"})])
    assert [record.message for record in caplog.records] == ["audit.broken"]
    assert (await actions(ledger))[-2:] == ["audit.broken", "c"]
    await heads.close()
    assert read_head(tmp_path / "audit.head") == before, "the file shows what is missing"
    assert heads._metrics.audit_log_broken._value.get() == 1
    assert (await check(ledger, before)).broken
    assert (await check(ledger)).broken, "the log itself says so"


async def test_a_cut_is_noticed_by_the_next_row(ledger: Ledger) -> None:
    await tamper(ledger, cut_off)
    await ledger.audit.append([(NOW, {"action": "b"}), (NOW, {"action": "c"})])
    assert (await actions(ledger))[3:] == ["audit.broken", "b", "c"]
    await ledger.audit.append([(NOW, {"action": "d"})])
    assert (await actions(ledger))[6:] == ["d"], "it is said once"
    found = await check(ledger)
    assert (found.broken, found.why) == (
        4, "a gateway found there: the log ends with row 3, and this gateway knows row 5: it was cut off",
    )  # fmt: skip


async def test_once_it_was_looked_into_the_file_begins_again(ledger: Ledger, tmp_path: Path) -> None:
    heads = heads_of(ledger, tmp_path)
    await heads.start()
    await tamper(ledger, cut_off)
    await ledger.audit.append([(NOW, {"action": "b"})])
    await heads._write()
    (tmp_path / "audit.head").unlink()
    await heads._write()
    await heads.close()
    head = read_head(tmp_path / "audit.head")
    assert head == ledger.audit.head
    rules = AuditRules(AuditKeys(KEYS), NOW, 30, accepted=[range(4, 5)])
    assert (await ledger.read(lambda connection: verify(connection, head, rules))).broken == 0


async def test_a_trim_notices_a_cut(ledger: Ledger) -> None:
    await tamper(ledger, cut_off)
    assert await ledger.audit.trim(NOW + 40 * DAY, 30) == 2
    assert (
        await actions(ledger) == ["a", "audit.broken", "audit.trimmed"] or (await actions(ledger))[-2] == "audit.broken"
    )


async def test_rows_of_an_earlier_release_are_covered_at_the_start(open_ledger: Open, tmp_path: Path) -> None:
    ledger = await open_ledger()
    await ledger.task(lambda connection, _: append(connection, [(NOW, {"action": "old"})]))
    heads = heads_of(ledger, tmp_path)
    await heads.start()
    await heads.close()
    assert await actions(ledger) == ["old", "audit.keyed"]
    found = await check(ledger)
    assert (found.broken, found.keyed) == (0, 2)


async def test_an_empty_log_has_no_head(open_ledger: Open, tmp_path: Path) -> None:
    ledger = await open_ledger()
    heads = heads_of(ledger, tmp_path)
    await heads.start()
    await heads.close()
    assert not (tmp_path / "audit.head").exists()
    assert await actions(ledger) == []


async def test_rows_that_went_are_no_finding(ledger: Ledger, tmp_path: Path) -> None:
    """A process that knew of none of the rows that are left."""
    old = await ledger.read(rows_of)
    write_head(tmp_path / "audit.head", AuditHead(2, old[1].hash, old[1].mac), 0)
    await tamper(ledger, lambda connection: trim(connection, NOW + 40 * DAY, 30, ledger.audit.keys))
    heads = heads_of(ledger, tmp_path)
    await heads.start()
    await heads.close()
    assert await actions(ledger) == ["a", "audit.trimmed"]
    head = read_head(tmp_path / "audit.head")
    assert head is not None
    assert head.sequence == 6


def rows_of(connection: sa.Connection) -> list[Any]:
    return list(rows(connection))


def test_a_later_head_stays(tmp_path: Path) -> None:
    path = tmp_path / "audit.head"
    write_head(path, AuditHead(7, b"h" * 32, b"m" * 32), 1.0)
    write_head(path, AuditHead(6, b"g" * 32), 2.0)
    assert read_head(path) == AuditHead(7, b"h" * 32, b"m" * 32)
    assert [each.name for each in tmp_path.iterdir()] == ["audit.head"]


@pytest.mark.parametrize("text", ["", "{}", '{"sequence":0,"hash":""}', '{"sequence":1,"hash":"zz"}', "[" * 9_000])
async def test_a_file_that_is_no_head(ledger: Ledger, tmp_path: Path, text: str) -> None:
    (tmp_path / "audit.head").write_text(text)
    with pytest.raises(ConfigurationError, match="not a head of the audit log"):
        await heads_of(ledger, tmp_path).start()
    assert (tmp_path / "audit.head").read_text() == text


async def test_a_file_that_cannot_be_written(ledger: Ledger, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heads = heads_of(ledger, tmp_path, head_file=str(tmp_path / "missing" / "head"))
    with caplog.at_level(logging.INFO):
        await heads.start()
        await heads._write()
        (tmp_path / "missing").mkdir()
        await heads.close()
    assert [record.message for record in caplog.records if record.message.startswith("audit.")] == [
        "audit.head_not_written", "audit.head_written",
    ]  # fmt: skip
    assert read_head(tmp_path / "missing" / "head") == ledger.audit.head


# ----------------------------------------------------------------------------------------------------- sending


async def test_it_is_sent_to_all_who_are_to_have_it(
    ledger: Ledger, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Mapping[str, Any]] = []

    async def tell(head: Mapping[str, Any]) -> str:
        told.append(head)
        return "" if len(told) == 1 else "status 503"

    sent = tmp_path / "heads.ndjson"
    options = {"send_log": True, "send_file": str(sent), "send_endpoint": "siem", "tell": tell}
    heads = heads_of(ledger, tmp_path, **options)
    await heads.start()
    with caplog.at_level(logging.INFO):
        await heads._send()
        await tamper(ledger, cut_off)
        await heads._send()
    await heads.close()
    lines = [json.loads(line) for line in sent.read_text().splitlines()]
    assert lines == told
    assert [line["head"].split(":")[0] for line in lines] == ["5", "4"]
    assert [bool(line["broken"]) for line in lines] == [False, True]
    found = await check(ledger, AuditHead(5, bytes.fromhex(lines[0]["head"].split(":")[1])))
    assert found.broken
    events = [record.message for record in caplog.records]
    assert events == ["audit.head", "audit.broken", "audit.head", "audit.head_not_sent"]


async def test_it_is_sent_again_and_again(ledger: Ledger, tmp_path: Path) -> None:
    sent = tmp_path / "heads.ndjson"
    settings = AuditSettings(send_file=str(sent), send_every=1)
    heads = Heads(ledger, settings, tmp_path, Metrics(""))
    await heads.start()
    while not sent.exists():
        await asyncio.sleep(0.05)
    await heads.close()


async def test_a_file_to_send_to_that_cannot_be_written(
    ledger: Ledger, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heads = heads_of(ledger, tmp_path, send_file=str(tmp_path / "missing" / "heads"))
    await heads.start()
    await heads._send()
    await heads.close()
    assert [record.message for record in caplog.records if record.message.startswith("audit.")] == [
        "audit.head_not_sent",
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------- several processes


@pytest.mark.broker
async def test_processes_at_once_with_keys_that_change(
    open_ledger: Open, postgresql_ledger: str, tmp_path: Path
) -> None:
    """Three processes on one ledger, of which one has another key first; each keeps a head of its own."""
    given = [keys(1, 2), keys(1, 2), keys(2, 1)]
    ledgers = [await open_ledger(each, postgresql_ledger) for each in given]
    folders = [tmp_path / str(number) for number in range(3)]
    heads = []
    for ledger, folder in zip(ledgers, folders, strict=True):
        folder.mkdir()
        heads.append(heads_of(ledger, folder))
        await heads[-1].start()
    await asyncio.gather(
        *(ledgers[n % 3].audit.append([(NOW + n % 7, {"action": "a", "n": n})]) for n in range(150)),
        *(ledger.audit.look(NOW) for ledger in ledgers for _ in range(20)),
    )
    for each in heads:
        await each.close()
    known = [read_head(folder / "audit.head") for folder in folders]
    rules = AuditRules(AuditKeys(keys(1, 2)), NOW, 30, shared=True)
    found = await ledgers[0].read(lambda connection: verify(connection, [each for each in known if each], rules))
    assert (found.rows, found.broken, found.keyed) == (150, 0, 1)
    assert all(each is not None for each in known)
    assert max(each.sequence for each in known if each) == 150
    assert {row.mac_key for row in await ledgers[0].audit.read()} == {"00000001", "00000002"}
    assert not any(ledger.audit.broken for ledger in ledgers)


# --------------------------------------------------------------------------------------- tampering under way


@pytest.mark.parametrize("running", [True, False], ids=["while it runs", "while it stands still"])
async def test_a_gateway_that_goes_on_covers_no_tampering(ledger: Ledger, tmp_path: Path, running: bool) -> None:
    """Whatever is done to the rows, and whatever the gateway does then, the head file names it afterwards."""
    random = Random(SEED)
    backups = []
    for number in range(60):
        await ledger.audit.append([(NOW - (60 - number) * DAY // 4, {"action": "a", "number": number})])
        if number % 7 == 5:
            backups.append(await ledger.read(stored))
    log = await ledger.read(stored)
    path = tmp_path / "audit.head"
    head = AuditHead(log[-1].sequence, log[-1].hash, log[-1].mac or b"")
    unseen = 0
    assert not (await check(ledger, head)).broken
    for number in range(160):
        attack = ATTACKS[number % len(ATTACKS)]
        left = attack(random, log, backups)
        if left == log or len({row.sequence for row in left}) < len(left):
            continue
        path.unlink(missing_ok=True)
        write_head(path, head, 0)
        await tamper(ledger, lambda connection, left=left: store(connection, left))  # type: ignore[misc]
        ledger.audit.head, ledger.audit.broken, ledger.audit.missed = head, "", None
        heads = heads_of(ledger, tmp_path)
        if not running:
            ledger.audit.head = None
            await heads.start()
        for _ in range(random.randint(1, 5)):
            match random.randrange(4):
                case 0:
                    await ledger.audit.look(NOW)
                case 1:
                    await heads._write()
                case _:
                    await ledger.audit.append([(NOW, {"action": "b"})])
        await (heads._write() if running else heads.close())
        found = await check(ledger, read_head(path))
        assert found.broken, f"seed {SEED}, try {number}: {attack.__name__}"
        if not (await check(ledger)).broken:
            assert attack in CUTS
            unseen += 1
    assert unseen < 20
