"""Leases and fences: who may write, and that the dead and the undead may not."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from gateway.errors import LedgerUnavailable
from gateway.ledger import EventKind, Ledger, MessageState, New
from gateway.ledger.db.engine import Database
from tests.ledger.conftest import ON_POSTGRESQL, Open, accepted, entry, intent, new_id, published

Sql = Callable[[str], list[Any]]


async def test_a_shard_that_was_given_back_is_leased_again_with_a_greater_fence(open_ledger: Open) -> None:
    first = await open_ledger()
    assert (first.shard, first.fence) == (0, 1)
    await first.close()
    second = await open_ledger()
    assert second.shard == 0
    assert second.fence > 1


async def test_the_fenced_write_nothing_and_come_back_under_a_new_fence(ledger: Ledger, sql: Sql) -> None:
    taken: list[None] = []
    ledger.on_takeover = lambda: taken.append(None)
    one = new_id()
    assert await ledger.claim_key("shop", "k", b"f", [intent(one)]) == New()
    sql("UPDATE shards SET fence = fence + 1, owner = NULL")
    calls = [ledger.record(published(new_id())) for _ in range(5)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[0], LedgerUnavailable)
    assert "took over" in str(results[0])
    fenced = sum(isinstance(result, LedgerUnavailable) for result in results)
    assert sql("SELECT count(*) FROM events WHERE sequence > 1") == [((5 - fenced) * 2,)]
    assert await ledger.record(published(new_id()))
    assert ledger.fence > 2
    assert taken == [None]
    with pytest.raises(LedgerUnavailable, match="taken over"):  # what it held, it holds no more
        await ledger.finish_key("shop", "k", 200, b"")
    (again,) = await ledger.outbox.take_over()
    assert again.message_id == one
    await ledger.finish_key("shop", "k", 200, b"", [entry(one, EventKind.CONFIRMED)])
    assert ledger.healthy


async def test_an_idle_process_finds_out_by_itself(open_ledger: Open, sql: Sql) -> None:
    ledger = await open_ledger(shard_lease=1.0)
    taken = asyncio.Event()
    ledger.on_takeover = taken.set
    sql("UPDATE shards SET fence = fence + 1, owner = NULL")
    async with asyncio.timeout(60):
        await taken.wait()
    assert await ledger.record(published(new_id()))


async def test_a_listener_that_fails_does_not_end_the_renewal(
    open_ledger: Open, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = await open_ledger(shard_lease=1.0)

    def broken(*_: Any) -> bool:
        raise ZeroDivisionError

    renew, ledger._renew = ledger._renew, broken  # type: ignore[method-assign]
    async with asyncio.timeout(60):
        while "ledger maintenance failed" not in caplog.text:
            await asyncio.sleep(0.05)
    ledger._renew = renew  # type: ignore[method-assign]
    before = sql("SELECT commits FROM shards")
    async with asyncio.timeout(60):
        while sql("SELECT commits FROM shards") == before:
            await asyncio.sleep(0.05)


async def test_an_idle_process_keeps_its_lease(open_ledger: Open, sql: Sql) -> None:
    ledger = await open_ledger(shard_lease=1.0)
    before = sql("SELECT expires_at FROM shards")
    async with asyncio.timeout(60):
        while sql("SELECT expires_at FROM shards") == before:
            await asyncio.sleep(0.05)
    assert ledger.fence == 1


@ON_POSTGRESQL
async def test_one_who_lives_fences_one_whose_lease_ran_out(open_ledger: Open) -> None:
    """The zombie: it stopped (here: its lease ends at once, and it renews only every 20 s), goes on, and finds
    itself fenced; what it left open is resolved by the other."""
    zombie = await open_ledger("zombie", shard_lease=60.0)
    other = await open_ledger("other", shard_lease=1.0)
    taken = asyncio.Event()
    other.on_takeover = taken.set
    plain, keyed = new_id(), intent(new_id())
    await zombie.record([accepted(plain)])
    await zombie.claim_key("shop", "k", b"f", [keyed])
    with other._database.writer().begin() as connection:
        connection.exec_driver_sql(f"UPDATE shards SET expires_at = 0 WHERE shard = {zombie.shard}")
    async with asyncio.timeout(60):
        await taken.wait()
    (again,) = await other.outbox.take_over()
    assert again.message_id == keyed.message_id
    with pytest.raises(LedgerUnavailable, match="took over"):
        await zombie.finish_key("shop", "k", 200, b"zombie", [entry(keyed.message_id, EventKind.CONFIRMED)])
    with pytest.raises(LedgerUnavailable, match="taken over"):
        await zombie.finish_key("shop", "k", 200, b"zombie", [entry(keyed.message_id, EventKind.CONFIRMED)])
    await other.finish_key("shop", "k", 200, b"other", [entry(keyed.message_id, EventKind.CONFIRMED)])
    timeline = await other.timeline(plain)
    assert timeline is not None
    assert timeline.message.state is MessageState.UNKNOWN


@ON_POSTGRESQL
async def test_many_open_at_once_and_each_has_its_own(open_ledger: Open) -> None:
    first = await open_ledger()
    ledgers = await asyncio.gather(*(open_ledger(f"p{number}") for number in range(6)))
    assert sorted(each.shard for each in [first, *ledgers]) == list(range(7))


@ON_POSTGRESQL
async def test_who_opens_does_not_wait_for_a_shard_that_another_is_about_to_lease(
    open_ledger: Open, database: Database
) -> None:
    first = await open_ledger()
    await first.close()
    engine = database.writer()
    with engine.begin() as other:
        other.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        other.exec_driver_sql(f"SELECT 1 FROM shards WHERE shard = {first.shard} FOR UPDATE")
        assert (await open_ledger()).shard == first.shard + 1
    engine.dispose()


VICTIM = """
import asyncio, os, sys
from gateway.config import LedgerSettings
from gateway.ledger import EventKind, Ledger, LogEntry
from tests.ledger.conftest import accepted, intent, new_id, published

async def main() -> None:
    ledger = await Ledger.open(sys.argv[1], LedgerSettings(shard_lease=1.0), owner="victim", migrate=True)
    ids = [new_id() for _ in range(3)]
    await ledger.record([accepted(ids[0])])
    await ledger.claim_key("shop", "k", b"f", [intent(ids[1], b"promised")])
    await ledger.record(published(ids[2]))
    print(*(each.hex() for each in ids), flush=True)
    while True:
        one = new_id()
        await ledger.record(published(one))
        print(one.hex(), flush=True)

asyncio.run(main())
"""


async def test_kill_nine(url: str, open_ledger: Open) -> None:
    """What was acknowledged is there, what was promised is handed out, and nothing stays accepted."""
    victim = await asyncio.create_subprocess_exec(
        sys.executable, "-c", VICTIM, url, stdout=asyncio.subprocess.PIPE, cwd=os.getcwd()
    )
    assert victim.stdout is not None
    async with asyncio.timeout(30):
        plain, keyed, done = (bytes.fromhex(text.decode()) for text in (await victim.stdout.readline()).split())
        acknowledged = [bytes.fromhex((await victim.stdout.readline()).decode()) for _ in range(20)]
    os.kill(victim.pid, signal.SIGKILL)
    rest = await victim.stdout.read()
    await victim.wait()
    acknowledged += [bytes.fromhex(line.decode()) for line in rest.split(b"\n")[:-1]]

    ledger = await open_ledger("heir", shard_lease=1.0)
    taken = []
    deadline = monotonic() + 60
    while not taken and monotonic() < deadline:  # on PostgreSQL until the lease of the dead has run out
        taken = await ledger.outbox.take_over()
        await asyncio.sleep(0.05)
    assert [(each.message_id, each.payload, each.attempt) for each in taken] == [(keyed, b"promised", 2)]
    await ledger.record([entry(keyed, EventKind.RESENT)])
    await ledger.finish_key("shop", "k", 200, b"", [entry(keyed, EventKind.CONFIRMED)])
    states = {}
    cursor = None
    while True:
        page, cursor = await ledger.messages(None, cursor, 1_000)
        states |= {found.id: found.state for found in page}
        if cursor is None:
            break
    assert states[plain] is MessageState.UNKNOWN
    assert states[keyed] is states[done] is MessageState.CONFIRMED
    assert set(acknowledged) <= set(states)
    assert MessageState.ACCEPTED not in states.values()
    events, _ = await ledger.events_after({}, 100_000)
    for shard in {event.shard for event in events}:
        sequences = [event.sequence for event in events if event.shard == shard]
        assert sequences == list(range(1, len(sequences) + 1))
