"""Who does what where processes share a ledger, on one file of SQLite: each process is a lease of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.errors import LedgerUnavailable
from gateway.ledger import resources
from gateway.ledger import work as module
from gateway.ledger.db.shards import ShardLease, Shards
from gateway.ledger.work import SECRETS, Peer, Shared
from tests.ledger.conftest import NOW
from tests.ledger.writer_steps import SharedFile
from tests.ledgers import sqlite_ledger


class Process:
    """What of a ledger the work needs."""

    def __init__(self, database: SharedFile, engine: sa.Engine, name: str) -> None:
        self.engine = engine
        self.shards = Shards(database, name, 60.0)
        with engine.begin() as connection:
            self.lease: ShardLease = self.shards.acquire(connection)
        self.taken_over = 0
        self.tasks = 0
        self.work = Shared(database, self, self.shards.fence_lapsed, self._on_takeover, lambda: NOW)

    def _on_takeover(self) -> None:
        self.taken_over += 1

    async def task(self, run: Callable[[sa.Connection, ShardLease], Any]) -> Any:
        self.tasks += 1
        with self.engine.begin() as connection:
            return run(connection, self.lease)

    async def read(self, run: Callable[[sa.Connection], Any]) -> Any:
        with self.engine.connect() as connection:
            return run(connection)

    def peer(self, number: int, *kinds: str, **fields: Any) -> Peer:
        values: dict[str, Any] = {"name": f"h:{number}", "url": f"http://h:{number}", "config": "c"} | fields
        return Peer(bytes([number]) * 8, *self.lease, kinds=frozenset(kinds), **values)


Start = Callable[[str], Process]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    database = SharedFile(sqlite_ledger(tmp_path))
    engine = database.writer()
    yield lambda name: Process(database, engine, name)
    engine.dispose()


def change(process: Process, statement: str) -> None:
    with process.engine.begin() as connection:
        connection.exec_driver_sql(statement)


def lapse(process: Process) -> None:
    """Its lease has run out, as if it had been paused."""
    change(process, f"UPDATE shards SET expires_at = 0 WHERE shard = {process.lease.shard}")


async def test_each_process_has_a_shard_of_its_own(start: Start) -> None:
    assert [start(name).lease for name in "abc"] == [(0, 1), (1, 1), (2, 1)]


async def test_what_one_has_another_does_not_get(start: Start) -> None:
    one, two = start("one"), start("two")
    assert await one.work.claim("job", {"a", "b"}) == {"a", "b"}
    assert await two.work.claim("job", {"b", "c"}) == {"c"}
    assert await one.work.claim("job", {"a"}) == {"a"}, "what is its own stays its own"
    assert await two.work.claim("other", {"a"}) == {"a"}, "another kind"
    assert await two.work.taken("job") == {"a": 0, "b": 0, "c": 1}
    assert [await two.work.owner("job", name) for name in ("a", "c", "none")] == [0, 1, None]
    assert (await one.work.view()).counts == {"job": {0: 2, 1: 1}, "other": {1: 1}}
    await two.work.release("job", {"a", "c"})
    assert await one.work.taken("job") == {"a": 0, "b": 0}, "it gave up its own only"
    assert await one.work.taken("other") == {"a": 1}


async def test_names_are_octets(start: Start) -> None:
    one = start("one")
    names = {"ä✓", "nul\x00", "\udcff", "a" * 300}
    assert await one.work.claim("job", names) == names
    assert (await one.work.taken("job")).keys() == names
    assert await one.work.owner("job", "\udcff") == 0
    await one.work.release("job", names)
    assert await one.work.taken("job") == {}


@pytest.mark.parametrize(("number", "tasks"), [(0, 0), (2, 1), (3, 1), (4, 2), (6, 2), (7, 3)])
async def test_many_names_go_in_batches(start: Start, monkeypatch: pytest.MonkeyPatch, number: int, tasks: int) -> None:
    monkeypatch.setattr(module, "CLAIM_MAX", 3)
    one = start("one")
    names = {f"n{number}" for number in range(number)}
    assert await one.work.claim("job", names) == names
    assert one.tasks == tasks
    assert (await one.work.taken("job")).keys() == names
    await one.work.release("job", names)
    assert one.tasks == 2 * tasks
    assert await one.work.taken("job") == {}


async def test_what_the_dead_had_is_free_once_they_are_fenced(start: Start) -> None:
    dead, living = start("dead"), start("living")
    await dead.work.announce(dead.peer(1, "job"))
    await living.work.announce(living.peer(2, "job"))
    await dead.work.claim("job", {"a"})
    await living.work.claim("job", {"b"})
    assert (await living.work.view()).lapsed is False
    assert not await living.work.remove_lapsed()
    assert living.taken_over == 0
    lapse(dead)
    view = await living.work.view()
    assert (view.lapsed, view.counts) == (True, {"job": {0: 1, 1: 1}}), "it is its own until it is fenced"
    assert await living.work.claim("job", {"a"}) == set()
    assert await living.work.remove_lapsed()
    assert living.taken_over == 1
    with living.engine.connect() as connection:
        rows = [connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() for table in ("work", "peers")]
    assert rows == [1, 1], "nothing of it is left"
    assert not await living.work.remove_lapsed()
    assert living.taken_over == 1
    view = await living.work.view()
    assert (view.peers, view.counts, view.lapsed) == ([living.peer(2, "job")], {"job": {1: 1}}, False)
    assert await living.work.claim("job", {"a"}) == {"a"}
    assert await living.work.owner("job", "a") == 1


async def test_what_was_fenced_without_being_forgotten_is_nobodys(start: Start) -> None:
    dead, living = start("dead"), start("living")
    await dead.work.announce(dead.peer(1, "job"))
    await dead.work.claim("job", {"a", "b"})
    lapse(dead)
    with living.engine.begin() as connection:
        assert living.shards.fence_lapsed(connection) == [0]
    view = await living.work.view()
    assert (view.peers, view.counts, view.lapsed) == ([], {}, False)
    assert await living.work.taken("job") == {}
    assert await living.work.owner("job", "a") is None
    await dead.work.release("job", {"b"})
    assert await living.work.claim("job", {"a", "b"}) == {"a", "b"}
    await dead.work.release("job", {"a"})
    assert await living.work.taken("job") == {"a": 1, "b": 1}, "the old owner gives up nothing of the new one's"


async def test_processes_see_each_other(start: Start) -> None:
    one, two = start("one"), start("two")
    await two.work.announce(two.peer(2))
    await one.work.announce(one.peer(1, "job", "other"))
    assert (await two.work.view()).peers == [one.peer(1, "job", "other"), two.peer(2)]
    again = one.peer(3, "job", name="h:9", url="http://x", config="d")
    await one.work.announce(again)
    assert (await two.work.view()).peers == [again, two.peer(2)]


async def test_what_is_claimed_under_a_lease_that_is_lost_by_then_is_nobodys(start: Start) -> None:
    one = start("one")
    task = one.task

    async def late(run: Any) -> Any:
        found = await task(run)
        one.lease = ShardLease(0, 9)
        return found

    one.task = late  # type: ignore[method-assign]
    assert await one.work.claim("job", {"a"}) == set()


async def test_secrets_are_shared_and_made_once(start: Start) -> None:
    one, two = start("one"), start("two")
    secret = await one.work.secret("cluster")
    assert len(secret) == 32
    assert (one.tasks, two.tasks) == (1, 0)
    assert await two.work.secret("cluster") == secret
    assert two.tasks == 0, "it was there"
    assert await one.work.secret("another") != secret


async def test_a_process_that_was_quicker_made_the_secret(start: Start) -> None:
    one, two = start("one"), start("two")
    task = one.task

    async def late(run: Any) -> Any:
        await two.work.secret("cluster")
        return await task(run)

    one.task = late  # type: ignore[method-assign]
    assert await one.work.secret("cluster") == await two.work.secret("cluster")


@pytest.mark.parametrize(
    ("text", "is_damaged"),
    [
        ("YWJj", True),
        ("A" * 42 + "==", True),
        ("A" * 43 + "=", False),
        ("A" * 44 + "abcde", True),
        ("A" * 44 + "\u00e9", True),
    ],
    ids=["too short", "an octet too short", "whole", "no Base64", "no ASCII"],
)
async def test_a_secret_that_is_damaged(start: Start, text: str, is_damaged: bool) -> None:
    one = start("one")

    def put(connection: sa.Connection, _: ShardLease) -> None:
        resources.put(connection, SECRETS, "cluster", {"secret": text}, resources.NONE, NOW)

    await one.task(put)
    if is_damaged:
        with pytest.raises(LedgerUnavailable, match="'cluster' in the ledger is damaged; delete it"):
            await one.work.secret("cluster")
    else:
        assert await one.work.secret("cluster") == bytes(32)
