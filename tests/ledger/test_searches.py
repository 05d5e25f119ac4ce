"""Lists: filters, and the bound on what is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from gateway.ledger import EventKind, Ledger, LogEntry, MessageFilter, MessageState
from gateway.ledger.db.engine import Database
from gateway.ledger.events import searches
from tests.ledger.conftest import NOW, Open, accepted, entry, message, new_id, published


@pytest.fixture
def search(database: Database) -> Iterator[Callable[..., Any]]:
    """A page, with a clock of its own."""
    engine = database.readers()

    def run(cursor: str | None = None, limit: int = 10, clock: Callable[[], float] = lambda: 0.0, **where: Any) -> Any:
        with engine.connect() as connection:
            page, following = searches.list_messages(connection, MessageFilter(**where), cursor, limit, clock)
            return [found.id for found in page], following

    yield run
    engine.dispose()


async def test_what_a_subscription_an_endpoint_or_a_bridge_had_to_do_with(ledger: Ledger, search: Any) -> None:
    a, b, c = (new_id() for _ in range(3))
    await ledger.record(
        [
            *published(a),
            *published(b),
            *published(c),
            entry(a, EventKind.DELIVERED, detail={"subscription": "bill"}),
            entry(b, EventKind.DELIVERED, detail={"attempt": 1, "subscription": 'b"ill\u00e9\n'}),
            entry(b, EventKind.ATTEMPT_FAILED, detail={"endpoint": "shop", "reason": '"subscription":"bill"'}),
            entry(c, EventKind.FORWARDED, detail={"bridge": "east", "lone": "\udc80"}),
        ]
    )
    assert search(subscription="bill") == ([a], None)
    assert search(subscription="billing") == ([], None)
    assert search(subscription='b"ill\u00e9\n') == ([b], None)
    assert search(endpoint="shop", state=MessageState.RETRYING) == ([b], None)
    assert search(bridge="east") == ([c], None)
    assert search(bridge="east", subscription="bill") == ([], None)


async def test_properties_and_headers(ledger: Ledger, search: Any) -> None:
    a, b = new_id(), new_id()
    headers = {"tenant": "7", "message_id": "x"}
    await ledger.record([accepted(a, properties={"message_id": "m-1", "headers": headers})])
    await ledger.record([accepted(b, properties={"message_id": "x", "type": "t"})])
    assert search(properties={"message_id": "m-1"}) == ([a], None)
    assert search(properties={"message_id": "x"}) == ([b], None)  # no header of that name
    assert search(headers={"message_id": "x"}) == ([a], None)
    assert search(headers={"tenant": "7"}, properties={"message_id": "m-1"}) == ([a], None)
    assert search(headers={"tenant": "8"}) == ([], None)


async def test_one_text_in_any_of_several_places(ledger: Ledger, search: Any) -> None:
    key, id, header, neither = (new_id() for _ in range(4))
    await ledger.record(
        [
            accepted(key, routing_key="x", properties={"message_id": "m-1"}),
            accepted(id, routing_key="y", properties={"message_id": "x"}),
            accepted(header, routing_key="y", properties={"headers": {"tenant": "x"}}),
            accepted(neither, routing_key="y", properties={"headers": {"message_id": "x"}}),
        ]
    )
    ways = [MessageFilter(routing_key="x"), MessageFilter(properties={"message_id": "x"})]
    assert search(any_of=ways) == ([id, key], None), "no header of that name"
    assert search(any_of=[*ways, MessageFilter(headers={"tenant": "x"})]) == ([header, id, key], None)
    assert search(any_of=ways, routing_key="y") == ([id], None)


async def test_what_fits_only_by_its_octets_hides_nothing(ledger: Ledger, search: Any) -> None:
    """Pages are as full as they can be, though some rows have to be left out behind the database."""
    wanted, others = [], []
    for number in range(40):
        one = new_id()
        if number % 4:
            others.append(accepted(one, properties={"headers": {"type": "t"}}))
        else:
            wanted.append(accepted(one, properties={"type": "t"}))
    await ledger.record([*wanted, *others])
    found: list[bytes] = []
    cursor = None
    while True:
        page, cursor = search(cursor, 3, properties={"type": "t"})
        found += page
        if cursor is None:
            break
    assert found == [each.message_id for each in wanted][::-1]


async def test_a_rare_message_takes_several_pages_and_no_long_one(
    ledger: Ledger, search: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches, "CHUNK_MIN", 5)
    monkeypatch.setattr(searches, "CHUNK_MAX", 10)
    monkeypatch.setattr(searches, "ROWS", 20)
    rare = new_id()
    await ledger.record(published(rare, routing_key="rare"))
    ids = [new_id() for _ in range(97)]
    await ledger.record([each for one in ids for each in published(one)])
    pages = []
    cursor = None
    while True:
        page, cursor = search(cursor, 3, routing_key="rare")
        pages.append((len(page), cursor))
        if cursor is None:
            break
    assert pages[-1] == (1, None)
    assert [found for found, _ in pages[:-1]] == [0, 0, 0]
    assert pages[0][1] == ids[97 - 25].hex()  # 5 + 10 + 10 were looked at


async def test_a_page_ends_with_its_time(ledger: Ledger, search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "CHUNK_MIN", 5)
    ids = [new_id() for _ in range(30)]
    await ledger.record([each for one in ids for each in published(one)])
    ticks = count(0.0, searches.SECONDS)
    page, cursor = search(None, 3, lambda: next(ticks), broker="other")
    assert (page, cursor) == ([], ids[25].hex())
    assert search(cursor, 3, broker="other") == ([], None)


async def test_a_full_page_is_never_cut_short(ledger: Ledger, search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "CHUNK_MIN", 2)
    ids = [new_id() for _ in range(30)]
    await ledger.record([each for one in ids for each in published(one)])
    page, cursor = search(None, 12, broker="rabbit")
    assert (page, cursor) == (ids[:17:-1], ids[18].hex())


async def test_a_page_looks_at_one_message_more_than_it_may_have(
    ledger: Ledger, search: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches, "CHUNK_MIN", 1)
    monkeypatch.setattr(searches, "ROWS", 1)
    ids = [new_id() for _ in range(10)]
    await ledger.record([each for one in ids for each in published(one)])
    assert search(None, 3, broker="other") == ([], ids[6].hex())


async def test_a_name_that_is_no_utf_8(ledger: Ledger, search: Any) -> None:
    one = new_id()
    detail = {"subscription": "b\udcff"}
    await ledger.record([LogEntry(one, EventKind.RECEIVED, NOW, "", "", detail, message())])
    assert search(subscription="b\udcff") == ([one], None)


async def test_headers_that_are_named_are_kept(open_ledger: Open, search: Any) -> None:
    ledger = await open_ledger(headers=("tenant", "n"))
    a, b, c = (new_id() for _ in range(3))
    await ledger.record(
        [
            accepted(a, headers={"tenant": "7", "other": "x"}),
            accepted(b, headers={"n": 3}, properties=None),
            accepted(c, headers={"other": "x"}, properties=None),
        ]
    )
    assert search(headers={"tenant": "7"}) == ([a], None)
    assert search(headers={"n": "3"}) == ([b], None)
    assert search(headers={"other": "x"}) == ([], None)
    page, _ = await ledger.messages()
    assert [found.properties for found in page] == [
        {}, {"headers": {"n": "3"}}, {"message_id": "m-1", "headers": {"tenant": "7"}},
    ]  # fmt: skip


async def test_a_message_without_headers_is_kept_where_headers_are_named(open_ledger: Open, search: Any) -> None:
    ledger = await open_ledger(headers=("tenant",))
    bare, empty = new_id(), new_id()
    await ledger.record([accepted(bare, headers=None), accepted(empty, headers={})])
    assert search() == ([empty, bare], None)
    assert search(headers={"tenant": "7"}) == ([], None)
