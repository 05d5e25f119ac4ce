"""Bodies that are kept: as the policy says, no longer, and whole as long as somebody is owed them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.config import LedgerSettings, RetentionSettings
from gateway.errors import EntriesRefused
from gateway.ledger import BacklogSettlement, Ending, EventKind, KeptBody, Ledger
from tests.ledger.conftest import NOW, Clock, entry, new_id
from tests.ledger.test_deliveries import owed

Sql = Callable[[str], list[Any]]
DAY = 86_400


async def open_with(url: str, clock: Clock, **retention: Any) -> Ledger:
    settings = LedgerSettings(shard_lease=60.0)
    return await Ledger.open(
        url, settings, owner="test", migrate=True, clock=clock, retention=RetentionSettings(**retention)
    )


def kept(message_id: bytes, payload: bytes = b"hello", size: int = 5) -> KeptBody:
    return KeptBody(message_id, payload, size)


async def forget(ledger: Ledger) -> int:
    """What the keeper does."""
    found: int = await ledger.task(
        lambda connection, _: ledger._bodies.forget_expired(connection, int(ledger._clock() * 1e6))
    )
    return found


async def test_never(url: str, sql: Sql) -> None:
    ledger = await open_with(url, Clock(), bodies="never")
    before = sql("SELECT commits FROM shards")
    assert not ledger.deliveries.keeps_bodies
    await ledger.deliveries.keep_bodies([kept(new_id())])
    assert sql("SELECT commits FROM shards") == before  # nothing was written
    one = owed()
    await ledger.deliveries.store([one])
    assert await ledger.deliveries.body(one.message_id) == b"hello"
    await ledger.deliveries.settle([BacklogSettlement(one.id, Ending.DONE)])
    assert await ledger.deliveries.body(one.message_id) is None
    await ledger.close()


async def test_for_days(url: str, sql: Sql) -> None:
    clock = Clock()
    ledger = await open_with(url, clock, bodies="days", body_days=2, body_max=5)
    one, large = owed(), owed(size=6)
    plain, too_large = new_id(), new_id()
    await ledger.deliveries.store([one, large])
    await ledger.deliveries.keep_bodies([kept(plain), kept(too_large, size=6)])
    settled = [BacklogSettlement(each.id, Ending.DONE) for each in (one, large)]
    assert await ledger.deliveries.settle(settled) == [True, True]
    ids = (one.message_id, large.message_id, plain, too_large)
    assert [await ledger.deliveries.body(each) for each in ids] == [b"hello", None, b"hello", None]
    await ledger.record([entry(plain, EventKind.ACKNOWLEDGED)])
    clock.now += 2 * DAY - 1
    assert await forget(ledger) == 0
    clock.now += 1
    assert await forget(ledger) == 2
    assert sql("SELECT count(*) FROM bodies") == [(0,)]
    await ledger.close()


async def test_until_settled(url: str, sql: Sql) -> None:
    clock = Clock()
    ledger = await open_with(url, clock, bodies="until-settled", body_days=2)
    ids = [new_id() for _ in range(5)]
    await ledger.deliveries.keep_bodies([kept(each) for each in ids])
    await ledger.record([entry(ids[0], EventKind.DELIVERED), entry(ids[1], EventKind.ACKNOWLEDGED)])
    await ledger.record([entry(ids[2], EventKind.REJECTED), entry(ids[3], EventKind.DEAD_LETTERED)])
    assert [await ledger.deliveries.body(each) for each in ids] == [b"hello", None, None, None, b"hello"]
    clock.now += 2 * DAY  # nobody settled the others
    assert await forget(ledger) == 2
    assert sql("SELECT count(*) FROM bodies") == [(0,)]
    await ledger.close()


@pytest.mark.parametrize("policy", ["days", "until-settled"])
async def test_what_is_owed_stays_whole(url: str, sql: Sql, policy: str) -> None:
    """Whatever the policy says of what is not."""
    clock = Clock()
    ledger = await open_with(url, clock, bodies=policy, body_days=1)
    one = owed("a")
    two = owed("b", message_id=one.message_id)
    await ledger.deliveries.keep_bodies([kept(one.message_id)])
    await ledger.deliveries.store([one, two])
    assert sql("SELECT owed FROM bodies") == [(2,)]
    done = BacklogSettlement(one.id, Ending.DONE, entries=(entry(one.message_id, EventKind.ACKNOWLEDGED),))
    assert await ledger.deliveries.settle([done]) == [True]
    clock.now += 10 * DAY
    await forget(ledger)
    assert sql("SELECT owed, kept_until FROM bodies") == [(1, 0)]
    (found,) = await ledger.deliveries.claim("b", 1, 60)
    assert found.payload == b"hello"
    assert await ledger.deliveries.settle([BacklogSettlement(two.id, Ending.DONE)]) == [True]
    # It is kept from when it was stored, which is long ago.
    assert sql("SELECT count(*) FROM bodies") == [(0,)]
    await ledger.close()


async def test_kept_again_it_is_kept_for_longer(url: str, sql: Sql) -> None:
    clock = Clock()
    ledger = await open_with(url, clock, bodies="days", body_days=1)
    one = new_id()
    await ledger.deliveries.keep_bodies([kept(one)])
    clock.now += 100
    await ledger.deliveries.keep_bodies([kept(one)])
    assert sql("SELECT owed, kept_until FROM bodies") == [(0, NOW + (DAY + 100) * 1_000_000)]
    await ledger.close()


async def test_more_than_can_be_forgotten_at_a_time(url: str, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.ledger.pending.bodies.CHUNK", 10)
    clock = Clock()
    ledger = await open_with(url, clock, bodies="days", body_days=1)
    await ledger.deliveries.keep_bodies([kept(new_id()) for _ in range(15)])
    clock.now += DAY
    assert [await forget(ledger) for _ in range(3)] == [10, 5, 0]
    await ledger.close()


async def test_a_bad_body_fails_alone(url: str) -> None:
    ledger = await open_with(url, Clock(), bodies="days")
    ids = [new_id() for _ in range(4)]
    rows = [kept(each) for each in ids]
    rows[2] = kept(b"short")
    with pytest.raises(EntriesRefused) as caught:
        await ledger.deliveries.keep_bodies(rows)
    assert set(caught.value.refused) == {2}
    assert [await ledger.deliveries.body(each) for each in ids] == [b"hello", b"hello", None, b"hello"]
    await ledger.close()
