"""Calls of the writer: how much of a group one is, and how one that is too large is divided."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gateway.budgets import ALONE
from gateway.ledger import BacklogEntry, BacklogSettlement, Ending, EventKind, InboxRow, LogEntry, OutboxEntry, Owed
from gateway.ledger.logs.logged import Spooled
from gateway.ledger.pending.owed import KeptBody
from gateway.ledger.writing.calls import (
    ROW_OCTETS,
    Claim,
    Hand,
    Keep,
    Put,
    Record,
    SettleKey,
    SettleOutbox,
    SettleOwed,
    SettlePublishes,
    SpoolCall,
    Store,
    Task,
    WriterCall,
    key_digest,
)
from tests.ledger.conftest import NOW, SHA, entry, intent, new_id, published

Future = asyncio.Future[Any]


@pytest.fixture
async def future() -> AsyncIterator[Future]:
    future: Future = asyncio.get_running_loop().create_future()
    yield future
    future.cancel()


async def test_rows(future: Future) -> None:
    one = new_id()
    assert Record(future, published(one)).rows == 2
    assert Claim(future, "shop", "k", b"f", [intent(one), intent(new_id())]).rows == 3
    assert SettleKey(future, "shop", "k", "done", [entry(one, EventKind.CONFIRMED)]).rows == 2
    assert Task(future, lambda connection, lease: None).rows == 1


# ------------------------------------------------------------------------------------------------------------ parts


IDS = [new_id() for _ in range(5)]


def rows_of(kind: EventKind, *numbers: int) -> list[LogEntry]:
    return [entry(IDS[number], kind) for number in numbers]


def inbox(*numbers: int) -> list[InboxRow]:
    return [InboxRow("s", str(number), SHA, IDS[number], 2 * NOW) for number in numbers]


def owed(number: int, payload: bytes = b"hello") -> Owed:
    return Owed(id=new_id(), message_id=IDS[number], subscription="billing", at=NOW, payload=payload, size=5)


def spooled(number: int, body: bytes = b"hello") -> Spooled:
    return Spooled(
        message_id=IDS[number], tap="t", at=NOW, broker="", version="", queue="", exchange="", routing_key="",
        redelivered=False, properties=b"{}", body=body, sha256=SHA,
    )  # fmt: skip


def put(number: int, **fields: Any) -> OutboxEntry:
    return OutboxEntry(**({
        "message_id": IDS[number], "broker": "rabbit", "exchange": "", "routing_key": "", "payload": b"hello",
    } | fields))  # fmt: skip


FIVE = range(5)
OWED, SPOOLED, PUT = [owed(n) for n in FIVE], [spooled(n) for n in FIVE], [put(n) for n in FIVE]
SETTLED = [BacklogSettlement(each.id, Ending.DONE, octets=100) for each in OWED]
KEPT = [KeptBody(IDS[n], b"hello", 5) for n in FIVE]
DONE = [(IDS[n], rows_of(EventKind.CONFIRMED, n)) for n in FIVE]
STORED, INBOX = rows_of(EventKind.STORED, *FIVE), inbox(*FIVE)
LATER = (IDS[2], 5.0, {"why": "blocked"})
DIVIDED: dict[str, tuple[Callable[[Future], WriterCall], list[str], list[tuple[Any, ...]]]] = {
    "record": (
        lambda future: Record(future, STORED, INBOX),
        ["entries", "inbox"],
        [(STORED[:2], INBOX[:2]), (STORED[2:4], INBOX[2:4]), (STORED[4:], INBOX[4:])],
    ),
    "store": (
        lambda future: Store(future, OWED, STORED, INBOX),
        ["owed", "entries", "fresh", "inbox"],
        [(OWED[n : n + 2], STORED[n : n + 2], STORED[n : n + 2], INBOX[n : n + 2]) for n in (0, 2, 4)],
    ),
    "spool": (
        lambda future: SpoolCall(future, SPOOLED, STORED, INBOX),
        ["messages", "entries", "inbox"],
        [(SPOOLED[n : n + 2], STORED[n : n + 2], INBOX[n : n + 2]) for n in (0, 2, 4)],
    ),
    "settle": (lambda future: SettleOwed(future, SETTLED), ["settlements"], [(SETTLED[n : n + 2],) for n in (0, 2, 4)]),
    "keep": (lambda future: Keep(future, KEPT), ["kept"], [(KEPT[n : n + 2],) for n in (0, 2, 4)]),
    "put": (
        lambda future: Put(future, PUT, STORED),
        ["promised", "entries"],
        [(PUT[n : n + 2], STORED[n : n + 2]) for n in (0, 2, 4)],
    ),
    "settle publishes": (
        lambda future: SettlePublishes(future, DONE), ["done"], [(DONE[n : n + 2],) for n in (0, 2, 4)]
    ),
    "settle outbox": (
        lambda future: SettleOutbox(future, DONE[:1], [LATER, LATER], [(*DONE[3], {}), (*DONE[4], {})]),
        ["done", "retry", "kept"],
        [(DONE[:1], [LATER], []), ([], [LATER], [(*DONE[3], {})]), ([], [], [(*DONE[4], {})])],
    ),
    "settle outbox, most of it done": (
        lambda future: SettleOutbox(future, DONE[:3], [LATER], [(*DONE[4], {})]),
        ["done", "retry", "kept"],
        [(DONE[:2], [], []), (DONE[2:3], [LATER], []), ([], [], [(*DONE[4], {})])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DIVIDED)
async def test_a_call_is_divided_in_its_order(name: str, future: Future) -> None:
    """Each part has what goes with it, and nothing is in two of them."""
    make, fields, expected = DIVIDED[name]
    call = make(future)
    assert call.units == 5
    parts = call.parts(2)
    assert [tuple(list(getattr(part, field)) for field in fields) for part in parts] == expected
    assert [part.units for part in parts] == [2, 2, 1]
    assert all(part.future is future for part in parts)
    assert [part.units for part in call.parts(5)] == [5]
    for each in (call, *parts):
        assert (each.result, each.error, each.settled, each.lease) == (None, None, False, None)
        assert (each.holder, each.places) == (ALONE, 0), "it takes no places before it is submitted"


async def test_what_goes_with_no_unit_of_a_call_is_in_its_first_part(future: Future) -> None:
    other = rows_of(EventKind.STORED, 4)
    parts = Store(future, OWED[:4], [*STORED[:4], *other], inbox(4)).parts(2)
    assert [list(part.entries) for part in parts] == [[*STORED[:2], *other], STORED[2:4]]
    assert [list(part.inbox) for part in parts] == [inbox(4), []]


async def test_what_goes_with_several_units_is_with_the_last_of_them(future: Future) -> None:
    """Its message has all of its deliveries by then."""
    both = [owed(0), owed(1), owed(0)]
    parts = Store(future, both, STORED[:2]).parts(2)
    assert [list(part.entries) for part in parts] == [STORED[1:2], STORED[:1]]


async def test_what_cannot_be_divided_is_one_unit(future: Future) -> None:
    for call in (Claim(future, "shop", "k", b"f", [intent(new_id())] * 9), Task(future, lambda connection, lease: 1)):
        assert (call.units, call.octets) == (1, 0)
        assert list(call.parts(1)) == [call]


async def test_large_payloads_count_as_more_rows(future: Future) -> None:
    """Of 16 KiB each."""
    large, small = bytes(ROW_OCTETS), bytes(ROW_OCTETS - 1)
    for make in (
        lambda body: Store(future, [owed(0, body)]),
        lambda body: SpoolCall(future, [spooled(0, body)]),
        lambda body: Keep(future, [KeptBody(IDS[0], body, 5)]),
        lambda body: Put(future, [put(0, payload=body)]),
    ):
        assert [(call.rows, call.octets) for call in map(make, (small, large))] == [
            (1, ROW_OCTETS - 1),
            (2, ROW_OCTETS),
        ]
    assert Record(future, STORED[:1], INBOX).rows == Store(future, OWED[:1], (), INBOX).rows == 5
    assert Store(future, OWED, STORED).rows == SpoolCall(future, SPOOLED, STORED).rows == 7
    assert SettleOwed(future, SETTLED).octets == 500


# ------------------------------------------------------------------------------------------------- what they know


async def test_events_of_deliveries_that_were_there_are_not_written_again(future: Future) -> None:
    """But those of a message of which one delivery is new."""
    rows = [owed(0), owed(1), owed(1), owed(2)]
    call = Store(future, rows, STORED)
    call.forget_repeated({rows[0].id, rows[2].id})
    assert call.fresh == [STORED[0], STORED[1], *STORED[3:]]
    assert call.entries == STORED
    call.forget_repeated({each.id for each in rows})
    assert call.fresh == STORED


async def test_a_put_knows_what_may_have_been_put_before(future: Future) -> None:
    call = Put(future, [put(0), put(1, reason={"resent": True}), put(2, reason={"why": "x"})])
    assert call.resent == [IDS[1]]
    assert call.known == set()


async def test_what_nobody_has_seen_is_given_back_as_it_was(future: Future) -> None:
    call = Hand(future, "billing", 10, 30.0, True, 1_000, lambda found: [])
    assert call.rows == 10
    call.result = [
        BacklogEntry(
            id=new_id(), message_id=IDS[number], subscription="billing", order_key=b"", at=NOW, due_at=NOW,
            attempt=number + 1, lease=number + 7, dead=False, reason={}, size=5,
        )
        for number in range(2)
    ]  # fmt: skip
    back = call.given_back(future, NOW + 5)
    assert list(back.settlements) == [
        BacklogSettlement(
            call.result[number].id, Ending.RETRY, number + 7, front=True, attempt=number,
            entries=(
                LogEntry(
                    IDS[number], EventKind.RELEASED, NOW + 5,
                    detail={"subscription": "billing", "reason": "the caller went away"},
                ),
            ),
        )
        for number in range(2)
    ]  # fmt: skip


def test_keys_of_clients_are_told_apart() -> None:
    names = [("shop", "k"), ("shop", "l"), ("shopk", ""), ("", "shopk"), ("sho", "pk"), ("stop", "k")]
    digests = {key_digest(client, key) for client, key in names}
    assert len(digests) == len(names)
    assert {len(each) for each in digests} == {32}
    assert key_digest("shop", "k") == key_digest("shop", "k")
