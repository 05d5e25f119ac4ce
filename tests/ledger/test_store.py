"""The ledger's verbs: record, open and close, and that nothing is missed by who follows the feed."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from gateway.config import LedgerSettings
from gateway.errors import EntriesRefused, LedgerUnavailable
from gateway.ledger import EventKind, Ledger, LogEntry, MessageState, RecordedEvent
from gateway.ledger.db.engine import Database
from tests.ledger.conftest import NOW, SHA, Open, accepted, entry, message, new_id, published

WEIRD = bytes(range(256))[:255].decode("utf-8", "surrogateescape")
"""A name of 255 octets, U+0000 among them, that is not UTF-8."""


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


async def everything(ledger: Ledger) -> list[RecordedEvent]:
    found: list[RecordedEvent] = []
    position: dict[str, int] = {}
    while True:
        events, position = await ledger.events_after(position, 1_000)
        if not events:
            return found
        found += events


async def test_what_is_recorded_is_there(ledger: Ledger) -> None:
    one = new_id()
    assert await ledger.record(published(one)) == [1, 2]
    assert await ledger.record([entry(one, EventKind.DELIVERED, NOW + 1, {"subscription": "billing"})]) == [3]
    timeline = await ledger.timeline(one)
    assert timeline is not None
    found = timeline.message
    assert (found.id, found.at, found.broker, found.version) == (one, NOW, "rabbit", "0-9-1")
    assert (found.exchange, found.routing_key, found.client, found.origin) == ("orders", "eu.new", "shop", "http")
    assert (found.size, found.sha256, found.properties) == (5, SHA, {"message_id": "m-1"})
    assert found.state is MessageState.DELIVERED
    assert [(event.shard, event.sequence, event.kind) for event in timeline.events] == [
        (ledger.shard, 1, "accepted"),
        (ledger.shard, 2, "confirmed"),
        (ledger.shard, 3, "delivered"),
    ]
    assert timeline.events[2].detail == {"subscription": "billing"}


async def test_nothing_is_nothing(ledger: Ledger) -> None:
    assert await ledger.record([]) == []
    assert await ledger.timeline(new_id()) is None


async def test_names_keep_every_octet_and_sizes_every_bit(ledger: Ledger) -> None:
    one = new_id()
    sizes = [0, 2**63 - 1, 2**63, 2**64 - 1]
    ids = [new_id() for _ in sizes]
    rest = {"properties": {"message_id": WEIRD}, "client": "a\x00b"}
    await ledger.record([accepted(one, exchange=WEIRD, routing_key="\x00", **rest)])
    for each, size in zip(ids, sizes, strict=True):
        await ledger.record([accepted(each, size=size)])
    timeline = await ledger.timeline(one)
    assert timeline is not None
    found = timeline.message
    assert (found.exchange, found.routing_key, found.client) == (WEIRD, "\x00", "a\x00b")
    assert found.properties == {"message_id": WEIRD}
    timelines = [await ledger.timeline(each) for each in ids]
    assert [timeline.message.size for timeline in timelines if timeline] == sizes


async def test_a_message_that_is_known_is_left_as_it_is(ledger: Ledger) -> None:
    one = new_id()
    await ledger.record([LogEntry(one, EventKind.RECEIVED, NOW, "rabbit", "0-9-1", None, message(size=1))])
    await ledger.record([LogEntry(one, EventKind.RECEIVED, NOW, "rabbit", "0-9-1", None, message(size=2))])
    timeline = await ledger.timeline(one)
    assert timeline is not None
    assert timeline.message.size == 1
    assert len(timeline.events) == 2


def spooled(message_id: bytes, at: int) -> LogEntry:
    """A consumer had it: it knows neither its client nor where it was published."""
    there = message(origin="broker", exchange="", routing_key="q", client="", properties={"type": "t"}, size=6)
    return LogEntry(message_id, EventKind.SPOOLED, at, "rabbit", "0-9-1", None, there)


@pytest.mark.parametrize("together", [True, False], ids=["in one commit", "in two"])
@pytest.mark.parametrize("origin", ["http", "front", "replay"])
async def test_a_message_is_described_as_it_was_published_although_a_consumer_was_quicker(
    ledger: Ledger, origin: str, together: bool
) -> None:
    """Its publish is written with its outcome, and the broker may deliver the message before."""
    one, other = new_id(), new_id()
    late = [accepted(one, NOW, origin=origin)]
    if origin != "http":  # one event, at its end
        late = [LogEntry(one, EventKind.CONFIRMED, NOW + 20, "rabbit", "0-9-1", None, message(origin=origin))]
    early = [spooled(other, NOW + 10), spooled(one, NOW + 10)]
    for entries in [early + late] if together else [early, late]:
        await ledger.record(entries)
    timelines = [await ledger.timeline(each) for each in (one, other)]
    found, untouched = (timeline.message for timeline in timelines if timeline)
    assert (found.origin, found.exchange, found.routing_key, found.client) == (origin, "orders", "eu.new", "shop")
    assert (found.properties, found.size, found.at) == ({"message_id": "m-1"}, 5, NOW + 10)
    assert (untouched.origin, untouched.routing_key, untouched.client) == ("broker", "q", "")


async def test_a_message_that_is_published_again_later_stays_as_it_is(ledger: Ledger) -> None:
    """By a consumer that keeps its id, to another place."""
    came, sent = new_id(), new_id()
    await ledger.record([spooled(came, NOW - 1), *published(sent, NOW - 1, routing_key="first")])
    await ledger.record([*published(came), *published(sent), spooled(sent, NOW + 1)])
    timelines = [await ledger.timeline(each) for each in (came, sent)]
    assert [(each.message.origin, each.message.routing_key) for each in timelines if each] == [
        ("broker", "q"),
        ("http", "first"),
    ]


BAD: dict[str, list[LogEntry]] = {
    "short id": [entry(b"short", EventKind.CONFIRMED)],
    "id that is text": [entry("0" * 16, EventKind.CONFIRMED)],  # type: ignore[arg-type]
    "time with a fraction": [entry(new_id(), EventKind.CONFIRMED, 1.5)],  # type: ignore[arg-type]
    "time beyond 64 bits": [entry(new_id(), EventKind.CONFIRMED, 2**70)],
    "kind that is none": [entry(new_id(), "eaten")],  # type: ignore[arg-type]
    "no broker": [LogEntry(new_id(), EventKind.CONFIRMED, NOW, None)],  # type: ignore[arg-type]
    "detail that is no JSON": [entry(new_id(), EventKind.CONFIRMED, NOW, {"it": object()})],
    "digest too short": [accepted(new_id(), sha256=b"x")],
    "name that cannot be octets": [accepted(new_id(), exchange="\ud800")],
    "no entry": [None],  # type: ignore[list-item]
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_row_fails_alone(ledger: Ledger, name: str) -> None:
    neighbours = [new_id() for _ in range(9)]
    calls = [ledger.record(published(each)) for each in neighbours]
    calls.insert(4, ledger.record(BAD[name]))
    results = await asyncio.gather(*calls, return_exceptions=True)
    bad = results.pop(4)
    assert isinstance(bad, EntriesRefused), bad
    assert set(bad.refused) == {0}
    assert all(isinstance(result, list) and len(result) == 2 for result in results)
    assert [event.sequence for event in await everything(ledger)] == list(range(1, 19))
    assert ledger.healthy


async def test_a_bad_entry_of_a_call_leaves_the_others(ledger: Ledger) -> None:
    ids = [new_id() for _ in range(20)]
    entries = [accepted(each) for each in ids]
    entries[7] = accepted(ids[7], sha256=b"")
    entries[12] = entry(b"", EventKind.CONFIRMED)
    with pytest.raises(EntriesRefused, match="2 ledger entries refused; entry 7: ") as caught:
        await ledger.record(entries)
    assert set(caught.value.refused) == {7, 12}
    found = {event.message_id for event in await everything(ledger)}
    assert found == set(ids) - {ids[7], ids[12]}


async def test_a_call_larger_than_a_group_is_written_in_groups(open_ledger: Open) -> None:
    ledger = await open_ledger(group_max=10)
    entries = [entry for _ in range(18) for entry in published(new_id())]
    assert await ledger.record(entries) == list(range(1, 37))
    entries[33] = entry(b"", EventKind.CONFIRMED)
    with pytest.raises(EntriesRefused) as caught:
        await ledger.record([LogEntry(new_id(), each.kind, each.at) if each.message_id else each for each in entries])
    assert set(caught.value.refused) == {33}


async def test_callers_wait_while_the_queue_is_full(open_ledger: Open) -> None:
    ledger = await open_ledger(queue_max=8, group_max=4)
    tasks = [asyncio.create_task(ledger.record(published(new_id()))) for _ in range(200)]
    await asyncio.sleep(0)
    for task in tasks[50:60]:  # those that give up while they wait leave no hole
        task.cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(result, list) for result in done) == 190
    assert await ledger.record([entry(new_id(), EventKind.RECEIVED) for _ in range(4)])
    events = await everything(ledger)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))


async def test_a_caller_that_gives_up_when_its_turn_has_come_hands_it_on(open_ledger: Open) -> None:
    ledger = await open_ledger(queue_max=2)
    first = asyncio.create_task(ledger.record(published(new_id())))
    await asyncio.sleep(0)
    second = asyncio.create_task(ledger.record(published(new_id())))
    third = asyncio.create_task(ledger.record(published(new_id())))
    first.add_done_callback(lambda _: second.cancel())
    await asyncio.wait_for(third, 60)
    await asyncio.gather(first, second, return_exceptions=True)
    assert await asyncio.wait_for(ledger.record(published(new_id())), 60)


async def test_eight_writers_and_a_reader_no_row_missed_and_no_gap(open_ledger: Open, database: Database) -> None:
    """Each writer has its own shard where the database can be shared; rows that are refused roll back amid."""
    rounds = 60
    count = 8 if database.shared else 1
    ledgers = [await open_ledger(f"writer-{number}") for number in range(count)]
    assert sorted(ledger.shard for ledger in ledgers) == list(range(count))
    written: dict[bytes, int] = {}

    async def write(ledger: Ledger) -> None:
        for turn in range(rounds):
            one = new_id()
            if turn % 7 == 3:
                with pytest.raises(EntriesRefused):
                    await ledger.record([entry(b"bad", EventKind.CONFIRMED)])
            await ledger.record(published(one))
            written[one] = ledger.shard

    async def read(ledger: Ledger, done: asyncio.Event) -> list[RecordedEvent]:
        found: list[RecordedEvent] = []
        position: dict[str, int] = {}
        while True:
            last = done.is_set()
            events, position = await ledger.events_after(position, 64)
            found += events
            if last and not events:
                return found

    done = asyncio.Event()
    reader = asyncio.create_task(read(ledgers[0], done))
    await asyncio.gather(*(write(ledgers[number % count]) for number in range(8)))
    done.set()
    found = await reader
    assert len(found) == 8 * rounds * 2
    for shard in range(count):
        mine = [event for event in found if event.shard == shard]
        assert [event.sequence for event in mine] == list(range(1, len(mine) + 1))
        assert {event.message_id for event in mine} == {each for each, home in written.items() if home == shard}


async def test_close_writes_what_waits_and_refuses_what_comes(open_ledger: Open) -> None:
    ledger = await open_ledger()
    waiting = [asyncio.create_task(ledger.record(published(new_id()))) for _ in range(50)]
    await asyncio.sleep(0)
    await ledger.close()
    assert all(len(result) == 2 for result in await asyncio.gather(*waiting))
    assert (ledger.healthy, ledger.ready()) == (False, (False, "the ledger is closed"))
    with pytest.raises(LedgerUnavailable, match="closed"):
        await ledger.record(published(new_id()))
    with pytest.raises(LedgerUnavailable, match="closed"):
        await ledger.timeline(new_id())
    await ledger.close()
    again = await open_ledger()
    assert (await everything(again))[-1].sequence == 100
    assert await again.record(published(new_id())) == [101, 102]


async def test_a_database_that_is_away(unused_port: int) -> None:
    away = f"postgresql://user:secret@127.0.0.1:{unused_port}/ledger"
    with pytest.raises(LedgerUnavailable) as caught:
        await Ledger.open(away, LedgerSettings(), owner="test")
    assert "secret" not in str(caught.value)
    with pytest.raises(LedgerUnavailable):
        await Ledger.open(away, LedgerSettings(), owner="test", migrate=True)
    with pytest.raises(LedgerUnavailable):
        Ledger.migrate(away)


async def test_open_fails_cleanly_when_no_shard_can_be_leased(url: str, database: Database, sql: Any) -> None:
    Ledger.migrate(url)
    sql("ALTER TABLE shards RENAME TO elsewhere")
    with pytest.raises(LedgerUnavailable):
        await Ledger.open(url, LedgerSettings(), owner="test")
    sql("ALTER TABLE elsewhere RENAME TO shards")
    ledger = await Ledger.open(url, LedgerSettings(), owner="test")
    await ledger.close()


async def test_close_ends_those_who_wait_for_room(open_ledger: Open) -> None:
    ledger = await open_ledger(queue_max=2)
    calls = [asyncio.create_task(ledger.record(published(new_id()))) for _ in range(20)]
    await asyncio.sleep(0)
    await ledger.close()
    results: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(result) for result in results} <= {list, LedgerUnavailable}
    assert any(isinstance(result, LedgerUnavailable) for result in results)


async def test_ready_says_where_it_writes(ledger: Ledger) -> None:
    assert ledger.ready() == (True, "writes to shard 0")
    assert ledger.fence == 1


async def test_one_file_one_ledger(url: str, ledger: Ledger, database: Database) -> None:
    if database.shared:
        second = await Ledger.open(url, LedgerSettings(), owner="second")
        assert second.shard != ledger.shard
        await second.close()
    else:
        with pytest.raises(LedgerUnavailable, match="in use by another process"):
            await Ledger.open(url, LedgerSettings(), owner="second")
        with pytest.raises(LedgerUnavailable, match="in use by another process"):
            Ledger.migrate(url)
