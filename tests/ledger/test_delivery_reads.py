"""Deliveries as they are read: lines, pages, counts and groups of dead ones, compared with plain lists."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.ledger import BacklogCounts, BacklogSettlement, DeliveryFilter, Ending, Owed
from gateway.ledger.db.checksums import DAMAGED
from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import bodies, deliveries
from gateway.ledger.pending import delivery_reads as module
from gateway.ledger.pending.delivery_reads import DeliveryReads
from tests.ledger.conftest import NOW, new_id
from tests.ledger.test_delivery_rows import BILLING, SECOND, Rows, make, owed, rows

__all__ = ["make", "rows"]


@pytest.fixture
def reads(rows: Rows) -> DeliveryReads:
    return DeliveryReads(Database("sqlite:////nowhere/ledger.db"), lambda: rows.there)


@pytest.fixture
def stored(rows: Rows) -> list[Owed]:
    """Waiting, due later, out, out for too long, dead; and one of another subscription."""
    there = [
        owed(at=NOW + 1, order_key=b"k", size=1),
        owed(at=NOW + 2, due_at=NOW + 50 * SECOND, attempt=2, size=2),
        owed(at=NOW + 3, lease_seconds=90.0, size=4),
        owed(at=NOW + 4, lease_seconds=5.0, size=8),
        owed(at=NOW + 5, dead=True, reason={"code": "rejected"}, size=16),
        owed(at=NOW + 6, attempt=1, size=32),
        owed(at=NOW + 7, subscription="o\udcffther", order_key=b"k", size=64),
    ]
    rows.there = NOW + SECOND
    rows.store(*there)
    rows.there = NOW + 10 * SECOND
    return there


# ----------------------------------------------------------------------------------------------------------- lines


def test_a_line_is_read_from_any_place(rows: Rows, reads: DeliveryReads, stored: list[Owed]) -> None:
    expected = [stored[number].id for number in (0, 5, 3, 1, 2)]
    for payload, limit in product((False, True), range(1, 7)):
        found: list[Any] = []
        after: tuple[int, bytes] | None = None
        while part := reads.due(rows.connection, BILLING, limit, after, payload):
            assert len(part) <= limit
            found += part
            after = part[-1].due_at, part[-1].id
        assert [each.id for each in found] == expected, "dead ones are in no line"
        assert {each.payload for each in found} == {b"hello" if payload else None}
        assert [each.out for each in found] == [False, False, True, False, True]
        assert [round(each.due_in) for each in found] == [-10, -10, -4, 41, 81]
    assert reads.due(rows.connection, "nobody", 9, None, True) == []


def test_one_is_read_by_its_id(rows: Rows, reads: DeliveryReads, stored: list[Owed]) -> None:
    for one in stored:
        found = reads.get(rows.connection, one.id, True)
        assert found is not None
        assert (found.id, found.message_id, found.subscription) == (one.id, one.message_id, one.subscription)
        assert (found.payload, found.dead, found.expired) == (b"hello", one.dead, False)
    assert reads.get(rows.connection, new_id(), True) is None
    rows.connection.execute(sa.update(bodies).values(payload=b"other"))
    found = reads.get(rows.connection, stored[0].id, True)
    assert found is not None
    assert found.payload == DAMAGED
    assert module.body(rows.connection, stored[0].message_id) == DAMAGED
    assert module.body(rows.connection, new_id()) is None
    rows.connection.execute(sa.delete(bodies))
    found = reads.get(rows.connection, stored[0].id, True)
    assert found is not None
    assert found.payload is None


def test_the_newest_of_a_subscription(rows: Rows, stored: list[Owed]) -> None:
    assert module.newest(rows.connection, BILLING) == stored[5].id
    assert module.newest(rows.connection, "o\udcffther") == stored[6].id
    assert module.newest(rows.connection, "nobody") is None


# ----------------------------------------------------------------------------------------------------------- pages


MILLISECOND = 1_000
FILTERS: dict[str, tuple[Callable[[list[Owed]], DeliveryFilter], list[int]]] = {
    "all": (lambda there: DeliveryFilter(), [0, 1, 2, 3, 4, 5, 6]),
    "a subscription": (lambda there: DeliveryFilter(subscription="o\udcffther"), [6]),
    "a message": (lambda there: DeliveryFilter(message_id=there[3].message_id), [3]),
    "a key": (lambda there: DeliveryFilter(order_key=b"k"), [0, 6]),
    "no key": (lambda there: DeliveryFilter(order_key=b"", subscription=BILLING), [1, 2, 3, 4, 5]),
    "subscriptions": (lambda there: DeliveryFilter(subscriptions=("o\udcffther", "nobody")), [6]),
    "no subscriptions": (lambda there: DeliveryFilter(subscriptions=()), []),
    "a code": (lambda there: DeliveryFilter(code="rejected"), [4]),
    "another code": (lambda there: DeliveryFilter(code="unknown"), []),
    "dead": (lambda there: DeliveryFilter(dead=True), [4]),
    "not dead": (lambda there: DeliveryFilter(dead=False), [0, 1, 2, 3, 5, 6]),
    "up to one": (lambda there: DeliveryFilter(until_id=there[2].id), [0, 1, 2]),
    "since 1970": (lambda there: DeliveryFilter(since=-5), [0, 1, 2, 3, 4, 5, 6]),
    "until 1970": (lambda there: DeliveryFilter(until=-5), []),
}


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("name", FILTERS)
def test_pages_of_any_size_are_the_same(
    rows: Rows, reads: DeliveryReads, stored: list[Owed], name: str, newest_first: bool
) -> None:
    where, numbers = FILTERS[name][0](stored), FILTERS[name][1]
    expected = [stored[number].id for number in numbers]
    if newest_first:
        expected.reverse()
    for limit in range(1, len(expected) + 2):
        found: list[Any] = []
        cursor: str | None = None
        pages = 0
        while cursor is not None or not pages:
            part, cursor = reads.page(rows.connection, where, cursor, limit, newest_first, pages % 2 == 0)
            found += part
            pages += 1
        assert [each.id for each in found] == expected
        assert pages == max(1, -(-len(expected) // limit)), "a page that is full may be the last"
        assert reads.count(rows.connection, where, limit) == min(limit, len(expected))


def test_deliveries_of_a_time_by_the_clock_in_their_ids(rows: Rows, reads: DeliveryReads) -> None:
    times = (1_000, 2_000, 3_000)
    there = [owed(id=at.to_bytes(6) + bytes((0x70, 0, 0x80, 0)) + bytes(6)) for at in times]
    rows.store(*there)
    for since, until in product((None, 0, 999, 1_000, 1_001, 2_000, 3_000, 3_001), repeat=2):
        where = DeliveryFilter(
            since=None if since is None else since * MILLISECOND, until=None if until is None else until * MILLISECOND
        )
        expected = [at for at in times if (since is None or at >= since) and (until is None or at < until)]
        assert reads.count(rows.connection, where, 9) == len(expected)


# ---------------------------------------------------------------------------------------------------------- counts


def test_what_is_pending_of_a_subscription(rows: Rows, reads: DeliveryReads, stored: list[Owed]) -> None:
    billing = BacklogCounts(
        waiting=4, out=1, dead=1, octets=63, oldest_at=NOW + 1, next_due_at=NOW + 1, tried=3
    )  # fmt: skip
    other = BacklogCounts(waiting=1, octets=64, oldest_at=NOW + 7, next_due_at=NOW + 7)
    assert reads.backlog(rows.connection, BILLING) == billing
    assert reads.backlog(rows.connection, "nobody") == BacklogCounts()
    assert reads.backlogs(rows.connection) == {BILLING: billing, "o\udcffther": other}
    rows.settle(*(BacklogSettlement(stored[number].id, Ending.PURGE) for number in (0, 1, 2, 3, 5)))
    assert reads.backlog(rows.connection, BILLING) == BacklogCounts(dead=1, octets=16)


@pytest.mark.parametrize(("later", "out"), [(-1, 1), (0, 0), (1, 0)])
def test_a_lease_that_ends_now_has_ended(rows: Rows, reads: DeliveryReads, later: int, out: int) -> None:
    rows.store(owed(lease_seconds=5.0))
    rows.there += 5 * SECOND + later
    found = reads.backlog(rows.connection, BILLING)
    assert (found.out, found.waiting) == (out, 1 - out)


# ---------------------------------------------------------------------------------------------------------- groups


def dead(rows: Rows, code: str, subscription: str, at: int) -> None:
    one = owed(dead=True, subscription=subscription, at=at, reason={"code": code or "unknown"})
    rows.store(one)
    if not code:
        rows.connection.execute(sa.update(deliveries).where(deliveries.c.id == one.id).values(code=""))


@pytest.fixture
def died(rows: Rows) -> dict[tuple[str, str], list[int]]:
    """When they arrived that are dead, by code and subscription. Earlier releases kept no code."""
    told = [
        ("rejected", "a"), ("rejected", "b"), ("expired", "a"), ("", "b"), ("unknown", "b"), ("rejected", "a"),
        ("unknown", "c"), ("", "b"), ("expired", "a"), ("rejected", "a"),
    ]  # fmt: skip
    found: dict[tuple[str, str], list[int]] = {}
    for at, (code, subscription) in enumerate(told, 1):
        dead(rows, code, subscription, at)
        found.setdefault((code or "unknown", subscription), []).append(at)
    rows.store(owed(subscription="a"))
    return found


@pytest.mark.parametrize("code", [None, "rejected", "unknown", "expired", "maxlen"])
@pytest.mark.parametrize("subscriptions", [None, ("a",), ("b", "a", "b"), ("c", "nobody"), ()])
def test_dead_ones_are_grouped(
    rows: Rows, reads: DeliveryReads, died: dict[tuple[str, str], list[int]], code: str | None, subscriptions: Any
) -> None:
    found, more = reads.dead_groups(rows.connection, 20, code, subscriptions)
    expected = {
        key: times
        for key, times in died.items()
        if (code is None or key[0] == code) and (subscriptions is None or key[1] in subscriptions)
    }
    assert {(each.code, each.subscription) for each in found} == expected.keys()
    for each in found:
        times = expected[each.code, each.subscription]
        assert (each.count, each.first_at, each.last_at, each.more) == (len(times), times[0], times[-1], False)
    assert len(found) == len(expected)
    assert not more


def test_so_many_groups_are_told(rows: Rows, reads: DeliveryReads, died: dict[tuple[str, str], list[int]]) -> None:
    """One that an earlier release has begun is found in two parts."""
    for subscriptions in (None, ("a", "b", "c")):
        for most in range(1, 8):
            found, more = reads.dead_groups(rows.connection, most, None, subscriptions)
            assert len(found) <= most
            assert more is (most < 6)


@pytest.mark.parametrize("most", [4, 6, 8, 12])
def test_so_many_of_a_group_are_counted(
    rows: Rows, reads: DeliveryReads, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """All groups of an answer share what is counted."""
    monkeypatch.setattr(module, "COUNTED_MAX", most)
    for at in range(4):
        dead(rows, "rejected", "a", at)
    for at in range(2):
        dead(rows, "expired", "a", at)
    (found,), _ = reads.dead_groups(rows.connection, 9, "rejected", None)
    assert (found.count, found.more) == (4, False)
    both, _ = reads.dead_groups(rows.connection, 9, None, None)
    expired, rejected = sorted(both, key=lambda each: each.code)
    assert (rejected.count, rejected.more) == (min(4, most // 2), most // 2 < 4)
    assert (expired.count, expired.more) == (2, False)
