"""Old rows of the audit log go, and the chain of the others still shows whether anything was done to it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.config import RetentionSettings
from gateway.ledger import Ledger
from gateway.ledger.access import audit
from gateway.ledger.access.audit import AuditHead
from gateway.ledger.access.audit_check import verify
from gateway.ledger.db.models import audit_log
from tests.ledger.conftest import NOW, Clock, Open

DAY = 86_400_000_000
DAYS = 40


async def check(ledger: Ledger, known: AuditHead | None = None) -> Any:
    return await ledger.read(lambda connection: verify(connection, known))


async def sequences(ledger: Ledger) -> list[int]:
    return [row.sequence for row in await ledger.audit.read()]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def kept(open_ledger: Open, clock: Clock) -> Ledger:
    """A ledger of 10 rows, a day each, the last of them now."""
    ledger = await open_ledger(clock=clock, retention=RetentionSettings(audit_days=DAYS))
    for number in range(10):
        await ledger.audit.append([(NOW - (9 - number) * DAY, {"action": "a", "number": number})])
    return ledger


async def retain(ledger: Ledger, clock: Clock, days: float) -> None:
    clock.now += days * 86_400
    await ledger.history.keeper.retain()


async def test_old_rows_go_and_the_chain_begins_later(kept: Ledger, clock: Clock) -> None:
    heads = [AuditHead(row.sequence, row.hash) for row in await kept.audit.read()]
    await retain(kept, clock, DAYS - 9)
    assert await sequences(kept) == list(range(1, 11)), "the oldest is as old as it may be"
    await retain(kept, clock, 5)
    rows = await kept.audit.read()
    assert [row.sequence for row in rows] == [5, 6, 7, 8, 9, 10, 11]
    assert rows[-1].document() == {
        "action": "audit.trimmed", "anchor": 5, "days": DAYS, "rows": 4, "first": 1, "last": 4,
        "digest": heads[3].hash.hex(), "mac": "", "newest": NOW - 6 * DAY,
    }  # fmt: skip
    found = await check(kept)
    assert (found.rows, found.first, found.head.sequence, found.broken) == (7, 5, 11, 0)
    assert (await check(kept, heads[4])).broken == 0
    assert (await check(kept, heads[-1])).broken == 0
    gone = await check(kept, heads[1])
    assert gone.broken == 2
    assert "too old and has gone" in gone.why
    await retain(kept, clock, 0.01)
    assert len(await sequences(kept)) == 7, "it is said once a day"


async def test_again_and_again(kept: Ledger, clock: Clock) -> None:
    for _ in range(20):
        await retain(kept, clock, 7)
        found = await check(kept)
        assert found.broken == 0, found.why
    rows = await kept.audit.read()
    assert len(rows) < 10
    assert all(row.at >= clock.now * 1e6 - (DAYS + 8) * DAY for row in rows[1:])
    await kept.audit.append([(int(clock.now * 1e6), {"action": "b"})])
    assert (await check(kept)).broken == 0


async def test_an_empty_log_stays_empty(open_ledger: Open, clock: Clock) -> None:
    ledger = await open_ledger(clock=clock, retention=RetentionSettings(audit_days=DAYS))
    await retain(ledger, clock, 100)
    assert await sequences(ledger) == []
    assert (await check(ledger)).first == 1


async def test_many_go_in_many_transactions(kept: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "CHUNK", 2)
    await retain(kept, clock, 100)
    rows = await kept.audit.read()
    assert rows[0].sequence == 10
    assert [row.document()["anchor"] for row in rows[1:]] == [3, 5, 7, 9, 10]
    found = await check(kept)
    assert (found.first, found.broken) == (10, 0)


async def test_beside_writers(kept: Ledger, clock: Clock) -> None:
    entries = [(NOW + DAYS * DAY, {"action": "b", "number": number}) for number in range(30)]
    await asyncio.gather(retain(kept, clock, 37), *(kept.audit.append([each]) for each in entries))
    found = await check(kept)
    assert found.broken == 0, found.why
    assert found.first > 1


@pytest.mark.parametrize(
    ("statement", "broken", "why"),
    [
        ("DELETE FROM audit_log WHERE sequence = 5", 1, "row 1 is missing"),  # the anchor itself
        ("DELETE FROM audit_log WHERE sequence < 8", 1, "row 1 is missing"),
        ("DELETE FROM audit_log WHERE sequence = 11", 1, "row 1 is missing"),  # and what says which one that is
        ("UPDATE audit_log SET at = at - 86400000000 WHERE sequence = 5", 5, "changed"),
        ("UPDATE audit_log SET at = -1 WHERE sequence = 5", 5, "changed"),
        ("DELETE FROM audit_log WHERE sequence = 7", 7, "missing"),
    ],
)
async def test_what_is_done_to_it_is_seen(
    kept: Ledger, clock: Clock, statement: str, broken: int, why: str, sql: Any
) -> None:
    await retain(kept, clock, DAYS - 4)
    assert (await check(kept)).broken == 0
    sql(statement)
    found = await check(kept)
    assert (found.broken, why in found.why) == (broken, True), found.why


@pytest.mark.parametrize(
    "said", [{"days": DAYS}, {"days": 1}, {"days": 0}, {"days": "40"}, {}], ids=["as it is", "1", "0", "text", "none"]
)
async def test_rows_that_went_before_their_time(kept: Ledger, said: dict[str, Any]) -> None:
    """Who can write to the database takes rows out and says that they were too old: their own time tells."""

    def forge(connection: sa.Connection, _: Any) -> None:
        connection.execute(sa.delete(audit_log).where(audit_log.c.sequence < 8))
        audit.append(connection, [(NOW, {"action": audit.TRIMMED, "anchor": 8, "rows": 7, **said})])

    await kept.task(forge)
    found = await check(kept)
    assert found.broken == 1
    assert "went before their time" in found.why


async def test_octets_that_only_look_like_it(kept: Ledger) -> None:
    """A row that is no JSON, and hashed as it should be, is as good as any other."""

    def forge(connection: sa.Connection, _: Any) -> None:
        head = verify(connection).head
        octets = b"audit.trimmed {"
        values = {"sequence": 11, "at": NOW, "entry": octets, "previous": head.hash}
        connection.execute(
            sa.insert(audit_log).values(**values, hash=audit.hash_of(11, NOW, octets, head.hash))
        )  # fmt: skip

    await kept.task(forge)
    assert (await check(kept)).broken == 0
