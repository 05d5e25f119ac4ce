"""Lists, filters, cursors, the feed."""

from __future__ import annotations

import pytest

from gateway.ledger import EventKind, Ledger, MessageFilter, MessageIds, MessageState
from gateway.ledger.writing.states import state_of
from tests.ledger.conftest import NOW, ON_POSTGRESQL, Open, accepted, entry, new_id, published


async def test_messages_newest_first_by_pages(ledger: Ledger) -> None:
    ids = [new_id() for _ in range(25)]
    await ledger.record([each for one in ids for each in published(one)])
    seen: list[bytes] = []
    cursor: str | None = None
    sizes = []
    while True:
        page, cursor = await ledger.messages(None, cursor, 10)
        sizes.append(len(page))
        seen += [found.id for found in page]
        if cursor is None:
            break
    assert (sizes, seen) == ([10, 10, 5], ids[::-1])
    page, cursor = await ledger.messages(limit=25)
    assert (len(page), cursor) == (25, None)


async def test_filters(ledger: Ledger) -> None:
    a, b, c = new_id(), new_id(), new_id()
    await ledger.record(published(a, broker="one", exchange="x\udcff", client="ann"))
    await ledger.record(published(b, broker="two", routing_key="r", origin="bridge"))
    await ledger.record([accepted(c, broker="two")])

    async def ids(**fields: object) -> list[bytes]:
        return [found.id for found in (await ledger.messages(MessageFilter(**fields)))[0]]  # type: ignore[arg-type]

    assert await ids() == [c, b, a]
    assert await ids(broker="two") == [c, b]
    assert await ids(exchange="x\udcff") == [a]
    assert await ids(routing_key="r") == [b]
    assert await ids(client="ann") == [a]
    assert await ids(origin="bridge", broker="two") == [b]
    assert await ids(state=MessageState.CONFIRMED) == [b, a]
    assert await ids(state=MessageState.ACCEPTED) == [c]
    assert await ids(state=MessageState.RELEASED) == []


async def test_filter_by_time(ledger: Ledger) -> None:
    times = [1_000.0, 2_000.0, 3_000.0]
    ids = [MessageIds(lambda now=now: now)() for now in times]  # type: ignore[misc]
    await ledger.record([accepted(each) for each in ids])
    page, _ = await ledger.messages(MessageFilter(since=2_000_000_000, until=3_000_000_000))
    assert [found.id for found in page] == [ids[1]]


async def test_the_list_and_the_timeline_agree_on_the_state(ledger: Ledger) -> None:
    stories = [
        [EventKind.ACCEPTED, EventKind.DELIVERED, EventKind.CONFIRMED],
        [EventKind.ACCEPTED, EventKind.UNKNOWN, EventKind.RESENT],
        [EventKind.RECEIVED, EventKind.DELIVERED, EventKind.LEASE_EXPIRED],
        [
            EventKind.RECEIVED,
            EventKind.DELIVERED,
            EventKind.LEASE_LOST,
            EventKind.DELIVERED,
            EventKind.EXTENDED,
            EventKind.ACKNOWLEDGED,
        ],
        *([kind] for kind in EventKind),
    ]
    expected = {}
    for story in stories:
        one = new_id()
        first = accepted(one)
        entries = [entry(one, kind, NOW + place) for place, kind in enumerate(story)]
        entries[0] = type(first)(one, story[0], NOW, "", "", None, first.message)
        await ledger.record(entries)
        expected[one] = state_of(story)
        timeline = await ledger.timeline(one)
        assert timeline is not None
        assert timeline.message.state is expected[one]
    page, _ = await ledger.messages(limit=1_000)
    assert {found.id: found.state for found in page} == expected


async def test_a_message_without_events_has_no_state(ledger: Ledger, sql: object) -> None:
    one = new_id()
    await ledger.record([accepted(one)])
    sql("DELETE FROM events")  # type: ignore[operator]
    (found,), _ = await ledger.messages()
    assert found.state is None


@pytest.mark.parametrize("cursor", ["", "zz", "00", "é"])
async def test_a_foreign_cursor(ledger: Ledger, cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        await ledger.messages(None, cursor)


async def test_the_feed_goes_on_from_a_position(ledger: Ledger) -> None:
    await ledger.record(published(new_id()))
    events, position = await ledger.events_after({}, 1)
    assert ([event.sequence for event in events], position) == ([1], {"0": 1})
    events, position = await ledger.events_after(position)
    assert ([event.sequence for event in events], position) == ([2], {"0": 2})
    assert await ledger.events_after(position) == ([], {"0": 2})


@ON_POSTGRESQL
async def test_a_busy_shard_does_not_keep_the_others_out(open_ledger: Open) -> None:
    busy, quiet = await open_ledger("busy"), await open_ledger("quiet")
    await busy.record([each for _ in range(50) for each in published(new_id())])
    await quiet.record(published(new_id()))
    events, position = await busy.events_after({"7": 3}, 10)
    assert position == {"7": 3, str(busy.shard): 5, str(quiet.shard): 2}
    assert len(events) == 7


async def test_events_that_the_ledger_has_not_got(ledger: Ledger) -> None:
    ids = [new_id() for _ in range(600)]  # more than go into one statement
    await ledger.record([accepted(one) for one in ids])
    there = [entry(one, EventKind.RELEASED, NOW + 1) for one in ids[::2]]
    await ledger.record(there)
    new = [entry(one, EventKind.RELEASED, NOW + 1) for one in ids[1::2]]
    later, other = entry(ids[0], EventKind.RELEASED, NOW + 2), entry(ids[0], EventKind.ACKNOWLEDGED, NOW + 1)
    assert await ledger.unrecorded([*there, *new, later, other]) == [*new, later, other]
    assert await ledger.unrecorded([]) == []
