"""The inbox: written with the events, found by key, replaced, forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.config import LedgerSettings
from gateway.errors import EntriesRefused, LedgerUnavailable
from gateway.ledger import EventKind, InboxRow, Ledger, LogEntry, Seen
from gateway.ledger.pending.inbox import ID, digests
from tests.ledger.conftest import NOW, ON_POSTGRESQL, SHA, Clock, Open, entry, message, new_id

Sql = Callable[[str], list[Any]]
MINUTE = 60_000_000


def forwarded(message_id: bytes, **fields: Any) -> LogEntry:
    return LogEntry(message_id, EventKind.FORWARDED, NOW, "target", "0-10", {"bridge": "east"}, message(**fields))


def row(key: str, message_id: bytes, *, scope: str = "east", body: bytes = SHA, expires_at: int = 2 * NOW) -> InboxRow:
    return InboxRow(scope, key, body, message_id, expires_at)


async def forward(ledger: Ledger, *keys: str, **fields: Any) -> list[bytes]:
    """Messages with these keys, in one call; their ids."""
    ids = [new_id() for _ in keys]
    inbox = [row(key, one, **fields) for key, one in zip(keys, ids, strict=True)]
    await ledger.record([forwarded(one) for one in ids], inbox)
    return ids


async def test_what_was_forwarded_is_found_by_its_key(open_ledger: Open) -> None:
    ledger = await open_ledger(clock=Clock())
    one, two = await forward(ledger, "rabbit/1", "rabbit/\udcff\x00")
    assert await ledger.seen("east", ["rabbit/\udcff\x00", "rabbit/2", "rabbit/1", "rabbit/1"]) == {
        "rabbit/1": Seen(SHA, one, NOW),
        "rabbit/\udcff\x00": Seen(SHA, two, NOW),
    }
    assert await ledger.seen("west", ["rabbit/1"]) == {}
    assert await ledger.seen("east", []) == {}
    timeline = await ledger.timeline(one)
    assert timeline is not None
    assert timeline.message.state == "forwarded"


async def test_events_and_inbox_share_a_commit(ledger: Ledger, sql: Sql) -> None:
    before = sql("SELECT commits FROM shards")[0][0]
    await forward(ledger, *map(str, range(100)))
    assert sql("SELECT commits FROM shards")[0][0] == before + 1
    assert sql("SELECT count(*) FROM inbox")[0][0] == 100
    assert sql("SELECT count(*) FROM events")[0][0] == 100


async def test_a_row_of_the_same_key_is_replaced(open_ledger: Open, sql: Sql) -> None:
    clock = Clock()
    ledger = await open_ledger(clock=clock)
    await forward(ledger, "k")
    clock.now += 1
    (two,) = await forward(ledger, "k", body=bytes(32))
    assert await ledger.seen("east", ["k"]) == {"k": Seen(bytes(32), two, NOW + 1_000_000)}
    assert sql("SELECT count(*) FROM inbox")[0][0] == 1
    _, four = await forward(ledger, "k", "k")
    assert (await ledger.seen("east", ["k"]))["k"].message_id == four


async def test_rows_lie_in_runs_and_the_newest_counts(
    open_ledger: Open, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.ledger.pending.inbox.RUN", {"sqlite": 10, "postgresql": 10})
    clock = Clock()
    ledger = await open_ledger(clock=clock)
    ids = {}
    for begin in range(0, 40, 4):
        keys = [str(number) for number in range(begin, begin + 4)]
        ids |= dict(zip(keys, await forward(ledger, *keys), strict=True))
    assert sql("SELECT run, count(*) FROM inbox GROUP BY run ORDER BY run") == [(0, 12), (1, 12), (2, 12), (3, 4)]
    clock.now += 1
    ids |= {"3": (await forward(ledger, "3"))[0]}
    assert sql("SELECT count(*) FROM inbox")[0][0] == 41
    found = await ledger.seen("east", [str(number) for number in range(50)])
    assert {key: seen.message_id for key, seen in found.items()} == ids
    await ledger.close()
    again = await open_ledger(clock=clock)  # goes on in the newest run
    await forward(again, "50")
    assert sql("SELECT max(run) FROM inbox")[0][0] == 3


async def test_the_newest_counts_whichever_run_it_is_in(open_ledger: Open, sql: Sql) -> None:
    """Another process may be ahead."""
    clock = Clock()
    ledger = await open_ledger(clock=clock)
    await forward(ledger, "k")
    sql("UPDATE inbox SET run = 7")
    clock.now += 1
    (newest,) = await forward(ledger, "k")
    assert sql("SELECT run FROM inbox ORDER BY run") == [(0,), (7,)]
    assert (await ledger.seen("east", ["k"]))["k"].message_id == newest


async def test_a_row_is_there_until_it_expires(open_ledger: Open) -> None:
    clock = Clock()
    ledger = await open_ledger(clock=clock)
    await forward(ledger, "k", expires_at=NOW + MINUTE)
    clock.now += 59.9
    assert set(await ledger.seen("east", ["k"])) == {"k"}
    clock.now += 0.1
    assert await ledger.seen("east", ["k"]) == {}


async def test_what_has_expired_is_forgotten(open_ledger: Open, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several transactions; what has not expired stays."""
    monkeypatch.setattr("gateway.ledger.pending.inbox.CHUNK", 10)
    clock = Clock()
    ledger = await open_ledger(clock=clock, shard_lease=5.0)
    await forward(ledger, *map(str, range(35)), expires_at=NOW + MINUTE)
    await forward(ledger, "kept", expires_at=NOW + 2 * MINUTE)
    clock.now += 61
    async with asyncio.timeout(60):
        while sql("SELECT count(*) FROM inbox")[0][0] > 1:
            await asyncio.sleep(0.05)
    assert set(await ledger.seen("east", ["0", "34", "kept"])) == {"kept"}


async def test_more_than_can_be_forgotten_at_a_time_waits(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease has to be renewed, however much has expired."""
    renewed = 0

    def renew(*_: Any) -> list[int]:
        nonlocal renewed
        renewed += 1
        return []

    monkeypatch.setattr("gateway.ledger.pending.inbox.CHUNK", 1)
    monkeypatch.setattr(ledger, "_renew", renew)
    monkeypatch.setattr(ledger, "_forget_inbox", lambda *_: 1)
    monkeypatch.setattr(ledger, "_lease_seconds", 0.03)
    keeper = asyncio.get_running_loop().create_task(ledger._keep())
    async with asyncio.timeout(60):
        while renewed < 3:
            await asyncio.sleep(0.01)
    keeper.cancel()


async def test_a_row_goes_with_the_entry_of_its_message(open_ledger: Open) -> None:
    """Where an entry is refused, its message is not remembered; neither is the entry of a bad row."""
    ledger = await open_ledger()
    ids = [new_id() for _ in range(12)]
    entries = [forwarded(one) for one in ids]
    entries[3] = forwarded(ids[3], sha256=b"short")
    inbox = [row(str(number), one, body=b"short" if number == 8 else SHA) for number, one in enumerate(ids)]
    with pytest.raises(EntriesRefused) as caught:
        await ledger.record(entries, inbox)
    assert set(caught.value.refused) == {3, 8}
    good = {str(number) for number in range(12)} - {"3", "8"}
    assert set(await ledger.seen("east", [str(number) for number in range(12)])) == good
    events, _ = await ledger.events_after({})
    assert {event.message_id for event in events} == {ids[int(number)] for number in good}


async def test_a_row_goes_with_the_last_entry_of_its_message(open_ledger: Open) -> None:
    ledger = await open_ledger(group_max=4)
    ids = [new_id() for _ in range(4)]
    entries = [*(forwarded(one) for one in ids), *(entry(one, EventKind.REDUCED) for one in ids)]
    entries[5] = entry(ids[1], "eaten")  # type: ignore[arg-type]
    with pytest.raises(EntriesRefused) as caught:
        await ledger.record(entries, [row(str(number), one) for number, one in enumerate(ids)])
    assert set(caught.value.refused) == {5}
    assert set(await ledger.seen("east", ["0", "1", "2", "3"])) == {"0", "2", "3"}


async def test_rows_without_an_entry(ledger: Ledger) -> None:
    one, two = new_id(), new_id()
    assert await ledger.record([], [row("alone", one)]) == []
    assert await ledger.record([forwarded(two)], [row("stranger", one)]) == [1]
    assert set(await ledger.seen("east", ["alone", "stranger"])) == {"alone", "stranger"}
    with pytest.raises(EntriesRefused):
        await ledger.record([], [row("bad", b"short")])


BAD: dict[str, InboxRow] = {
    "short digest": row("bad", new_id(), body=b"short"),
    "short id": row("bad", b"short"),
    "time beyond 64 bits": row("bad", new_id(), expires_at=2**70),
    "key that is no text": row(7, new_id()),  # type: ignore[arg-type]
    "key that cannot be octets": row("\ud800", new_id()),
    "no row": None,  # type: ignore[dict-item]
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_row_fails_alone(ledger: Ledger, name: str) -> None:
    results = await asyncio.gather(
        forward(ledger, "before"),
        ledger.record([forwarded(new_id())], [BAD[name]]),
        forward(ledger, "after"),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [list, EntriesRefused, list]
    assert set(await ledger.seen("east", ["before", "bad", "after"])) == {"before", "after"}


async def test_a_call_larger_than_a_group_takes_its_rows_along(open_ledger: Open) -> None:
    ledger = await open_ledger(group_max=10)
    keys = [str(number) for number in range(35)]
    await forward(ledger, *keys)
    assert set(await ledger.seen("east", keys)) == set(keys)


async def test_many_scopes_in_one_call(ledger: Ledger) -> None:
    ids = [new_id() for _ in range(6)]
    scopes = ["east", "west", "west", "east", "east", "north"]
    inbox = [row("k", one, scope=scope) for scope, one in zip(scopes, ids, strict=True)]
    await ledger.record([forwarded(one) for one in ids], inbox)
    found = [(await ledger.seen(scope, ["k"]))["k"].message_id for scope in ("east", "west", "north")]
    assert found == [ids[4], ids[2], ids[5]]


async def test_a_closed_ledger_has_seen_nothing(open_ledger: Open) -> None:
    ledger = await open_ledger()
    await ledger.close()
    with pytest.raises(LedgerUnavailable, match="closed"):
        await ledger.seen("east", ["k"])


@ON_POSTGRESQL
async def test_two_processes_with_one_bridge(url: str, open_ledger: Open) -> None:
    """What one forwarded the other has seen, and both may write the same keys at once."""
    one, two = await open_ledger("one"), await open_ledger("two")
    keys = [str(number) for number in range(200)]
    await asyncio.gather(
        *(forward(ledger, *(keys if turn % 2 else keys[::-1])) for turn in range(6) for ledger in (one, two))
    )
    assert set(await two.seen("east", keys)) == set(keys)
    third = await Ledger.open(url, LedgerSettings(), owner="third")
    assert set(await third.seen("east", keys)) == set(keys)
    await third.close()


def test_a_digest_does_not_mix_scope_and_key() -> None:
    assert digests("ab", ["c"]) != digests("a", ["bc"])
    assert [len(digest) for digest in digests("é\udcff", ["", "x" * 10_000])] == [ID, ID]
    assert digests("a", ["x", "y"]) == [*digests("a", ["x"]), *digests("a", ["y"])]
