"""Who does what, in SQL: claimed by one, free when its owner is dead, and never two owners at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.errors import LedgerUnavailable
from gateway.ledger import Ledger, work
from gateway.ledger.db.engine import Database
from gateway.ledger.store import NO_LEASE
from gateway.ledger.work import Peer
from tests.ledger.conftest import ON_POSTGRESQL, Open


def peer(number: int, ledger: Ledger, *kinds: str) -> Peer:
    """A process, as it announces itself."""
    return Peer(
        bytes([number]) * 8, ledger.shard, ledger.fence, f"h:{number}", f"http://h:{number}", "c", frozenset(kinds)
    )


def fence(database: Database, ledger: Ledger) -> None:
    """The lease of a ledger's shard has run out, as if its process had been paused."""
    engine = sa.create_engine(database.url)
    with engine.begin() as connection:
        expires = sa.text("UPDATE shards SET expires_at = 0 WHERE shard = :shard")
        connection.execute(expires, {"shard": ledger.shard})
    engine.dispose()


@ON_POSTGRESQL
async def test_what_one_has_another_does_not_get(open_ledger: Open) -> None:
    one, two = await open_ledger("one"), await open_ledger("two")
    assert await one.work.claim("job", {"a", "b"}) == {"a", "b"}
    assert await two.work.claim("job", {"b", "c"}) == {"c"}
    assert await one.work.claim("job", {"a"}) == {"a"}, "what is mine stays mine"
    assert await two.work.claim("other", {"a"}) == {"a"}, "another kind"
    assert await two.work.taken("job") == {"a": one.shard, "b": one.shard, "c": two.shard}
    assert await two.work.owner("job", "a") == one.shard
    assert await two.work.owner("job", "none") is None
    await two.work.release("job", {"a", "c"})  # "a" is not its to release
    assert await one.work.taken("job") == {"a": one.shard, "b": one.shard}


@ON_POSTGRESQL
async def test_names_are_octets(open_ledger: Open) -> None:
    ledger = await open_ledger()
    names = {"ä✓", "nul\x00", "\udcff", "a" * 300}
    assert await ledger.work.claim("job", names) == names
    assert set(await ledger.work.taken("job")) == names
    await ledger.work.release("job", names)
    assert await ledger.work.taken("job") == {}


@ON_POSTGRESQL
async def test_thousands_at_once(open_ledger: Open) -> None:
    ledger = await open_ledger()
    names = {f"n{number}" for number in range(2_500)}
    assert await ledger.work.claim("job", names) == names
    assert (await ledger.work.view()).counts == {"job": {ledger.shard: 2_500}}
    await ledger.work.release("job", names)
    assert (await ledger.work.view()).counts == {}


@ON_POSTGRESQL
async def test_of_many_who_want_the_same_each_gets_other_pieces(open_ledger: Open) -> None:
    ledgers = [await open_ledger(f"l{number}") for number in range(4)]
    names = {f"n{number}" for number in range(200)}
    granted = await asyncio.gather(*(ledger.work.claim("job", names) for ledger in ledgers for _ in range(3)))
    taken = await ledgers[0].work.taken("job")
    assert set(taken) == names
    for ledger, found in zip([ledger for ledger in ledgers for _ in range(3)], granted, strict=True):
        assert all(taken[name] == ledger.shard for name in found)


@ON_POSTGRESQL
@pytest.mark.parametrize("buried", [True, False], ids=["buried", "fenced only"])
async def test_what_the_dead_had_is_free(open_ledger: Open, database: Database, buried: bool) -> None:
    dead, living = await open_ledger("dead"), await open_ledger("living")
    taken: list[int] = []
    living.on_takeover = lambda: taken.append(1)
    await dead.work.announce(peer(1, dead, "job"))
    assert await dead.work.claim("job", {"a"}) == {"a"}
    assert await living.work.claim("job", {"a"}) == set()
    fence(database, dead)
    view = await living.work.view()
    assert view.lapsed
    assert view.counts == {"job": {dead.shard: 1}}, "it is the dead one's until it is fenced"
    if buried:
        assert await living.work.remove_lapsed()
        assert taken == [1]
        assert not await living.work.remove_lapsed()
    else:
        await living.task(lambda connection, _: living._shards.fence_lapsed(connection))
    view = await living.work.view()
    assert (view.peers, view.counts, view.lapsed) == ([], {}, False)
    assert await living.work.claim("job", {"a"}) == {"a"}


@ON_POSTGRESQL
async def test_a_zombie_writes_nothing_and_is_told_before_anybody_is_answered(
    open_ledger: Open, database: Database
) -> None:
    zombie, living = await open_ledger("zombie"), await open_ledger("living")
    said: list[str] = []
    zombie.on_fenced = lambda: said.append("fenced")
    assert await zombie.work.claim("job", {"a"}) == {"a"}
    fence(database, zombie)
    assert await living.work.remove_lapsed()
    assert await living.work.claim("job", {"a"}) == {"a"}
    before = zombie.fence

    async def write(number: int) -> None:
        try:
            await zombie.put_resource("zombie", f"z{number}", {})
        except LedgerUnavailable:
            said.append("refused")
        else:
            said.append("written")

    await asyncio.gather(*(write(number) for number in range(20)))
    assert said == ["fenced", *["refused"] * 20], "whatever was submitted under the lost lease is refused"
    assert (await living.list_resources("zombie"))[0] == []
    await write(99)
    assert said[-1] == "written", "under a new lease"
    assert zombie.fence > before or zombie.shard != living.shard
    assert await zombie.work.claim("job", {"a"}) == set()
    await zombie.work.release("job", {"a"})
    assert await living.work.owner("job", "a") == living.shard


@ON_POSTGRESQL
async def test_processes_see_each_other(open_ledger: Open, database: Database) -> None:
    one, two = await open_ledger("one"), await open_ledger("two")
    await one.work.announce(peer(1, one, "job", "other"))
    assert (await two.work.view()).peers == [peer(1, one, "job", "other")]
    await two.work.announce(peer(2, two))
    await one.work.announce(peer(1, one, "job"))
    assert (await two.work.view()).peers == [peer(1, one, "job"), peer(2, two)]
    await one.close()
    assert (await two.work.view()).peers == [peer(2, two)], "it gave its shard back"


@ON_POSTGRESQL
async def test_what_is_claimed_under_a_lease_that_is_lost_by_then_is_nobodys(
    open_ledger: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = await open_ledger(shard_lease=60.0)
    task = ledger.task

    async def late(run: Any) -> Any:
        found = await task(run)
        ledger._writer._abandoned = ledger._writer._lease
        ledger._writer._lose()
        async with asyncio.timeout(10):
            while ledger.lease != NO_LEASE:
                await asyncio.sleep(0.01)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(ledger, "task", late)
        assert await ledger.work.claim("job", {"a"}) == set()
    assert await ledger.work.claim("job", {"a"}) == {"a"}


@ON_POSTGRESQL
async def test_what_was_claimed_again_since_is_not_released(open_ledger: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many names the later ones are released in further transactions."""
    monkeypatch.setattr(work, "CLAIM_MAX", 1)
    ledger = await open_ledger(shard_lease=60.0)
    await ledger.work.claim("job", {"a", "b"})
    task, released = ledger.task, []

    async def losing(run: Any) -> Any:
        found = await task(run)
        if not released:
            released.append(run)
            ledger._writer._abandoned = ledger._writer._lease
            ledger._writer._lose()
            async with asyncio.timeout(10):
                while ledger.lease != NO_LEASE:
                    await asyncio.sleep(0.01)
            monkeypatch.setattr(ledger, "task", task)
            assert await ledger.work.claim("job", {"b"}) == {"b"}
        return found

    monkeypatch.setattr(ledger, "task", losing)
    await ledger.work.release("job", {"a", "b"})
    assert await ledger.work.owner("job", "b") == ledger.shard
    assert await ledger.work.owner("job", "a") is None


@ON_POSTGRESQL
async def test_secrets_are_shared_and_made_once(open_ledger: Open) -> None:
    one, two = await open_ledger("one"), await open_ledger("two")
    found = await asyncio.gather(*(ledger.work.secret("cluster") for ledger in (one, two) for _ in range(3)))
    assert len(set(found)) == 1
    assert len(found[0]) == 32
    assert await one.work.secret("another") != found[0]
    await one.put_resource("cluster-secret", "short", {"secret": "YWJj"})
    with pytest.raises(LedgerUnavailable, match="damaged"):
        await two.work.secret("short")


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_alone_all_is_granted_without_a_row(open_ledger: Open) -> None:
    ledger = await open_ledger()
    work = ledger.work
    assert not work.shared
    assert await work.claim("job", {"a", "b"}) == {"a", "b"}
    await work.release("job", {"a"})
    assert await work.taken("job") == {}
    assert await work.owner("job", "b") is None
    assert not await work.remove_lapsed()
    await work.announce(peer(1, ledger))
    view = await work.view()
    assert (view.peers, view.counts, view.lapsed) == ([], {}, False)
    assert len(await work.secret("x")) == 32
    assert ledger.holds
