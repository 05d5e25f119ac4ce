"""Deliveries within one transaction: what is due when, who gets how much, whose turn it is, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from gateway.config import RetentionSettings
from gateway.ledger import BacklogEntry, BacklogSettlement, Ending, EventKind, LogEntry, Owed
from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import bodies, deliveries
from gateway.ledger.pending import delivery_rows as module
from gateway.ledger.pending.bodies import Bodies
from gateway.ledger.pending.delivery_rows import COLUMNS, DeliveryRows, _simple, delivery, when
from gateway.ledger.pending.owed import ENDINGS, BacklogStatus
from gateway.ledger.writing.calls import Hand, SettleOwed, Store
from tests.ledger.conftest import NOW, entry, new_id

BILLING = "billing"
SECOND = 1_000_000
NOBODY: Any = None
"""In place of a call's future: nobody waits for it."""


class Rows:
    """The statements, and a database in memory that they run on."""

    def __init__(self, connection: sa.Connection, retention: RetentionSettings) -> None:
        database = Database("sqlite:////nowhere/ledger.db")  # only its dialect counts
        self.connection = connection
        self.rows = DeliveryRows(database, Bodies(database, retention))
        self.now = self.there = NOW

    def call(self, subscription: str = BILLING, limit: int = 10, **fields: Any) -> Hand:
        values: dict[str, Any] = {
            "seconds": 30.0, "ordered": False, "octets_max": 1 << 30, "entries": self.events,
        } | fields  # fmt: skip
        return Hand(NOBODY, subscription, limit, **values)

    @staticmethod
    def events(found: list[BacklogEntry]) -> list[LogEntry]:
        assert found, "where nothing is handed out nobody is asked for events"
        return [entry(each.message_id, EventKind.DELIVERED) for each in found]

    def store(self, *owed: Owed, **fields: Any) -> Store:
        call = Store(NOBODY, owed, **fields)
        self.write([call], [])
        return call

    def settle(self, *settlements: BacklogSettlement) -> list[bool]:
        call = SettleOwed(NOBODY, settlements)
        self.told = self.write([], [call])
        found: list[bool] = call.result
        return found

    def write(self, stores: list[Store], settles: list[SettleOwed]) -> list[LogEntry]:
        return self.rows.write(self.connection, stores, settles, self.now, self.there)

    def claim(self, *calls: Hand) -> tuple[list[list[bytes]], list[LogEntry], list[Any]]:
        """The ids that each call got, the events, and what waits for the next transaction."""
        entries, deferred = self.rows.claim(self.connection, calls, self.there)
        return [[each.id for each in call.result or ()] for call in calls], entries, deferred

    def hand_out(self, **fields: Any) -> list[BacklogEntry]:
        call = self.call(**fields)
        self.claim(call)
        return list(call.result)

    def row(self, owed: Owed) -> Any:
        return self.connection.execute(sa.select(deliveries).where(deliveries.c.id == owed.id)).one()

    def due(self, owed: Owed) -> float:
        """In how many seconds."""
        return float(self.row(owed).due_at - self.there) / SECOND

    def kept(self) -> list[tuple[int, int]]:
        found = self.connection.execute(sa.select(bodies.c.owed, bodies.c.kept_until).order_by(bodies.c.message_id))
        return [(row.owed, row.kept_until) for row in found]


Make = Callable[..., Rows]


@pytest.fixture
def make() -> Iterator[Make]:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        deliveries.create(connection)
        bodies.create(connection)
        yield lambda **retention: Rows(connection, RetentionSettings(**retention))
    engine.dispose()


@pytest.fixture
def rows(make: Make) -> Rows:
    return make()


def owed(**fields: Any) -> Owed:
    values: dict[str, Any] = {
        "id": new_id(), "message_id": new_id(), "subscription": BILLING, "at": NOW, "payload": b"hello", "size": 5,
    } | fields  # fmt: skip
    return Owed(**values)


def ids(found: Sequence[Owed | BacklogEntry]) -> list[bytes]:
    return [each.id for each in found]


# ----------------------------------------------------------------------------------------------------------- store


@pytest.mark.parametrize(
    ("due_at", "at", "there", "expected"),
    [
        (150, 90, 1_000, 1_050),  # in 50, by whichever clock
        (150, 90, 10, 60),
        (101, 90, 1_000, 1_001),
        (100, 90, 1_000, 100),  # at once, and before what comes later
        (100, 90, 50, 50),  # but not later than now
        (0, 90, 1_000, 90),
        (0, 90, 50, 50),
    ],
)
def test_a_time_is_carried_over_to_the_clock_of_the_database(due_at: int, at: int, there: int, expected: int) -> None:
    assert when(due_at, at, 100, there) == expected


def test_what_is_stored_as_handed_out_is_out_for_as_long(rows: Rows) -> None:
    short, tried, free = owed(lease_seconds=0.5), owed(lease_seconds=2.0, attempt=3), owed(attempt=3)
    rows.store(short, tried, free)
    found = [(rows.row(each).attempt, rows.row(each).lease, rows.due(each)) for each in (short, tried, free)]
    assert found == [(1, 1, 0.5), (3, 1, 2.0), (3, 0, 0.0)]
    assert [rows.row(each).status for each in (short, tried, free)] == [module.OUT, module.OUT, module.WAITING]


@pytest.mark.parametrize("size", [4, 5, 6])
def test_a_body_is_kept_where_it_is_not_too_large(make: Make, size: int) -> None:
    rows = make(bodies="days", body_days=2, body_max=5)
    rows.store(owed(size=size))
    assert rows.kept() == [(1, NOW + 2 * 86_400 * SECOND if size <= 5 else 0)]


def test_the_same_twice_in_a_call_is_stored_once(rows: Rows) -> None:
    one, two = owed(), owed()
    other = owed(message_id=one.message_id)
    rows.store(one, one, two, other)
    assert rows.kept() == [(2, 0), (1, 0)]
    assert len(rows.connection.execute(sa.select(deliveries.c.id)).all()) == 3
    events = [entry(each.message_id, EventKind.STORED) for each in (one, two)]
    new = owed()
    call = rows.store(one, two, new, entries=[*events, entry(new.message_id, EventKind.STORED)])
    assert [each.message_id for each in call.fresh] == [new.message_id]
    assert rows.kept() == [(2, 0), (1, 0), (1, 0)]
    for table in (deliveries, bodies):
        rows.connection.execute(sa.delete(table))
    rows.write([call], [])
    assert call.fresh == call.entries, "another attempt finds other rows"


def test_only_a_dead_one_has_a_code(rows: Rows) -> None:
    dead, alive = (owed(dead=dead, reason={"code": "rejected"}) for dead in (True, False))
    rows.store(dead, alive)
    assert [(rows.row(each).code, rows.row(each).status) for each in (dead, alive)] == [
        ("rejected", module.DEAD),
        ("", module.WAITING),
    ]


# ---------------------------------------------------------------------------------------------------------- settle


def done(one: Owed, lease: int | None = 1, **fields: Any) -> BacklogSettlement:
    return BacklogSettlement(one.id, Ending.DONE, lease, **fields)


def test_which_settlements_one_statement_will_do_for() -> None:
    """Done under a lease, and nothing else of that delivery."""
    a, b, c, d, e, f = (owed() for _ in range(6))
    first = [done(a, 3), done(b), done(c, None), done(d, 0), BacklogSettlement(e.id, Ending.RETRY, 1), done(f)]
    second = [done(b), done(e), BacklogSettlement(f.id, Ending.EXTEND, 1), done(f)]
    calls = [SettleOwed(NOBODY, each) for each in (first, second)]
    assert _simple(calls) == {a.id: 3}
    assert _simple(calls[:1]) == {a.id: 3, b.id: 1, f.id: 1}
    assert _simple([*calls, SettleOwed(NOBODY, [done(b)])]) == {a.id: 3}


def test_done_under_a_lease_or_not(rows: Rows) -> None:
    one, waits, stale, gone = (owed() for _ in range(4))
    rows.store(one, stale)
    rows.hand_out()
    rows.store(waits)
    event, other = (entry(each.message_id, EventKind.ACKNOWLEDGED) for each in (one, waits))
    settlements = [done(one, entries=(event,)), done(waits, 7, entries=(other,)), done(stale, 2), done(gone)]
    assert rows.settle(*settlements) == [True, False, False, False]
    assert rows.told == [event]
    assert rows.settle(BacklogSettlement(waits.id, Ending.EXTEND, 0, entries=(event,))) == [False]
    assert rows.told == []
    retry = BacklogSettlement(waits.id, Ending.RETRY, 0, entries=(other,))
    assert (rows.settle(retry), rows.told) == ([True], [other])
    assert rows.kept() == [(1, 0), (1, 0)]
    assert rows.settle(done(waits, 0), done(stale, None), done(gone, None)) == [True, True, False]
    assert rows.kept() == []


@pytest.mark.parametrize(
    ("fields", "due_in"),
    [
        ({}, 0.0),
        ({"front": True}, -20.0),
        ({"due_in": 1.0}, 1.0),
        ({"due_in": 1.0, "front": True}, 1.0),
        ({"due_in": 0.5, "front": True}, 0.5),
        ({"due_in": -3.0}, 0.0),
        ({"due_in": -3.0, "front": True}, -20.0),
    ],
)
@pytest.mark.parametrize("ending", [Ending.RETRY, Ending.REVIVE])
def test_when_it_is_due_again(rows: Rows, ending: Ending, fields: dict[str, Any], due_in: float) -> None:
    one = owed(dead=ending is Ending.REVIVE, attempt=2, due_at=NOW + 5 * SECOND)
    rows.store(one)
    rows.there += 20 * SECOND
    assert rows.settle(BacklogSettlement(one.id, ending, **fields)) == [True]
    assert (rows.due(one), rows.row(one).attempt) == (due_in, 2)


def test_what_came_from_the_future_is_due_now_at_its_old_place(rows: Rows) -> None:
    one = owed(at=NOW + 60 * SECOND)
    rows.store(one)
    rows.settle(BacklogSettlement(one.id, Ending.RETRY, front=True))
    assert rows.due(one) == 0.0


def test_a_lease_that_is_extended_leaves_the_attempts(rows: Rows) -> None:
    one = owed()
    rows.store(one)
    rows.hand_out()
    assert rows.settle(BacklogSettlement(one.id, Ending.EXTEND, 1, due_in=90.0, attempt=7, front=True)) == [True]
    assert (rows.due(one), rows.row(one).attempt, rows.row(one).status) == (90.0, 1, module.OUT)
    assert rows.settle(BacklogSettlement(one.id, Ending.RETRY, 1, attempt=7)) == [True]
    assert (rows.row(one).attempt, rows.row(one).status) == (7, module.WAITING)


def test_the_code_of_one_that_is_given_up(rows: Rows) -> None:
    """Of the reason that it is given up for, or else of the last one."""
    one, two = owed(), owed(reason={"code": "expired"})
    rows.store(one, two)
    dead = [
        BacklogSettlement(one.id, Ending.DEAD, reason={"code": "rejected"}),
        BacklogSettlement(two.id, Ending.DEAD),
    ]
    assert rows.settle(*dead) == [True, True]
    assert [rows.row(each).code for each in (one, two)] == ["rejected", "expired"]
    assert rows.settle(BacklogSettlement(one.id, Ending.REVIVE)) == [True]
    assert (rows.row(one).code, rows.row(one).reason) == ("", b'{"code":"rejected"}')


@pytest.mark.parametrize("status", ["waiting", "out", "dead"])
@pytest.mark.parametrize("lease", [None, 0, 1, 2])
def test_under_which_lease_it_counts(rows: Rows, status: str, lease: int | None) -> None:
    """One that is out under its own; one that was never out under 0; a dead one, whose lease is over, under none."""
    one = owed()
    rows.store(one)
    if status == "out":
        rows.hand_out()
    elif status == "dead":
        rows.settle(BacklogSettlement(one.id, Ending.DEAD))
    takes = lease is None or (status, lease) in {("waiting", 0), ("out", 1)}
    before = rows.row(one)
    assert rows.settle(BacklogSettlement(one.id, Ending.PURGE, lease)) == [takes]
    left = rows.connection.execute(sa.select(deliveries)).all()
    assert left == ([] if takes else [before])
    assert len(rows.kept()) == len(left)
    released = owed()
    rows.store(released)
    rows.hand_out()
    rows.settle(BacklogSettlement(released.id, Ending.RETRY, 1))
    assert rows.settle(BacklogSettlement(released.id, Ending.PURGE, 0)) == [False], "it was out once"


@pytest.mark.parametrize("ending", Ending)
@pytest.mark.parametrize("status", [BacklogStatus.WAITING, BacklogStatus.OUT, BacklogStatus.DEAD])
def test_an_ending_takes_effect_where_the_table_has_it(rows: Rows, status: BacklogStatus, ending: Ending) -> None:
    one = owed(dead=status is BacklogStatus.DEAD, lease_seconds=5.0 * (status is BacklogStatus.OUT))
    rows.store(one)
    before = rows.row(one)
    after = ENDINGS[status].get(ending)
    assert rows.settle(BacklogSettlement(one.id, ending, due_in=7.0)) == [after is not None]
    found = rows.connection.execute(sa.select(deliveries)).all()
    if after is BacklogStatus.GONE:
        assert (found, rows.kept()) == ([], [])
    elif after is None:
        assert (found, rows.kept()) == ([before], [(1, 0)])
    else:
        assert ([row.status for row in found], rows.kept()) == ([after], [(1, 0)])


def test_a_body_goes_with_the_last_that_needs_it(rows: Rows) -> None:
    same = new_id()
    stored = [owed(message_id=same) for _ in range(6)]
    rows.store(*stored)
    rows.hand_out(limit=3)
    assert rows.settle(done(stored[0])) == [True]
    assert rows.kept() == [(5, 0)]
    assert rows.settle(done(stored[1]), done(stored[2]), done(stored[3], None)) == [True] * 3
    assert rows.kept() == [(2, 0)]
    assert rows.settle(done(stored[4], None), BacklogSettlement(stored[5].id, Ending.PURGE)) == [True] * 2
    assert rows.kept() == []


# ----------------------------------------------------------------------------------------------------------- claim


def test_each_caller_gets_as_many_as_it_asked_for_and_no_more(rows: Rows) -> None:
    stored = [owed(at=NOW + number, size=100) for number in range(7)]
    rows.there += SECOND
    rows.store(*stored)
    calls = [rows.call(limit=2), rows.call(limit=9, octets_max=200), rows.call(limit=2, octets_max=99)]
    found, entries, deferred = rows.claim(*calls, rows.call("other"))
    assert found == [ids(stored[:2]), ids(stored[2:4]), ids(stored[4:5]), []]
    assert [call.result.is_cut for call in calls] == [False, True, True]
    assert [each.message_id for each in entries] == [each.message_id for each in stored[:5]]
    assert deferred == []
    last = rows.call(limit=9)
    assert rows.claim(last)[0] == [ids(stored[5:])]
    assert not last.result.is_cut, "there was no more"
    assert rows.row(stored[0]).attempt == rows.row(stored[0]).lease == 1


@pytest.mark.parametrize(("most", "waits"), [(100, True), (101, False), (50, True), (0, True)])
def test_so_many_octets_are_handed_out_in_one_transaction(
    rows: Rows, most: int, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OCTETS_MAX", most)
    one, two, three = owed(size=100), owed(size=60, subscription="b"), owed(subscription="c")
    rows.store(one, two, three)
    calls = [rows.call(), rows.call("b"), rows.call("c")]
    if not most:
        assert rows.claim(*calls)[2] == calls
        return
    found, _, deferred = rows.claim(*calls)
    if waits:
        assert (found, deferred) == ([[one.id], [], []], calls[1:])
    else:
        assert (found, deferred) == ([[one.id], [two.id], []], calls[2:])


def test_the_octets_of_all_callers_count(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OCTETS_MAX", 250)
    stored = [owed(size=100, at=NOW + number) for number in range(5)]
    rows.there += SECOND
    rows.store(*stored)
    found, _, _ = rows.claim(rows.call(limit=1), rows.call(limit=9))
    assert found == [ids(stored[:1]), ids(stored[1:2])]
    monkeypatch.setattr(module, "OCTETS_MAX", 200)
    assert rows.claim(rows.call(limit=9))[0] == [ids(stored[2:4])], "exactly as many fit"


def test_what_is_due_now_is_due(rows: Rows) -> None:
    soon = owed(due_at=NOW + SECOND, order_key=b"k")
    rows.store(soon)
    for ordered in (False, True):
        rows.there = NOW + SECOND - 1
        assert rows.hand_out(ordered=ordered) == []
        rows.there = NOW + SECOND
        (found,) = rows.hand_out(ordered=ordered)
        assert (found.attempt, found.due_in, found.out, found.expired, found.dead) == (1, 30.0, True, False, False)
        assert (found.payload, found.due_at) == (b"hello", rows.there + 30 * SECOND)
        read = delivery(tuple(rows.row(soon)._mapping[column] for column in COLUMNS), rows.there)
        assert read == msgspec.structs.replace(found, payload=None), "as it is read afterwards"
        rows.settle(BacklogSettlement(soon.id, Ending.RETRY, attempt=0, due_in=0.0))
        rows.connection.execute(sa.update(deliveries).values(due_at=NOW + SECOND))


# ------------------------------------------------------------------------------------------------ from key to key


def of_keys(rows: Rows, keys: str, number: int = 2) -> dict[str, Owed]:
    """Some deliveries of each key; the first of each."""
    first: dict[str, Owed] = {}
    for key in keys:
        stored = [owed(order_key=key.encode()) for _ in range(number)]
        rows.store(*stored)
        first[key] = stored[0]
    return first


def turns(rows: Rows, first: dict[str, Owed], most: int) -> str:
    """Whose turn it is."""
    by_id = {each.id: key for key, each in first.items()}
    found = rows.rows._by_keys(rows.connection, BILLING.encode(), most, rows.there)
    return "".join(by_id[each] for each in dict.fromkeys(found))


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 500])
def test_each_key_has_its_turn(rows: Rows, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEPS", steps)
    first = of_keys(rows, "abcde")
    rows.store(*(owed(order_key=b"c", subscription=name) for name in ("a", "billing2", "z")), owed())
    assert [turns(rows, first, 2) for _ in range(6)] == ["ab", "cd", "ea", "bc", "de", "ab"]
    assert turns(rows, first, 5) == "cdeab", "once around, from where the last one ended"
    assert turns(rows, first, 1) == "c"
    assert turns(rows, first, 9) == "deabc"


@pytest.mark.parametrize("steps", [1, 2, 500])
def test_a_key_whose_first_is_not_due_has_no_turn(rows: Rows, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEPS", steps)
    first = of_keys(rows, "abcd")
    for key in "bd":
        rows.settle(BacklogSettlement(first[key].id, Ending.RETRY, due_in=10.0))
    assert [turns(rows, first, 1) for _ in range(3)] == ["a", "c", "a"]
    assert turns(rows, first, 2) == "ca"
    assert sorted(turns(rows, first, 9)) == ["a", "c"]
    rows.there += 10 * SECOND - 1
    assert sorted(turns(rows, first, 9)) == ["a", "c"]
    rows.there += 1
    assert sorted(turns(rows, first, 9)) == ["a", "b", "c", "d"]
    for each in first.values():
        rows.settle(BacklogSettlement(each.id, Ending.EXTEND), BacklogSettlement(each.id, Ending.RETRY, due_in=10.0))
    assert [turns(rows, first, 9) for _ in range(3)] == [""] * 3


def test_dead_ones_are_in_nobodys_way(rows: Rows) -> None:
    first = of_keys(rows, "ab", number=1)
    rows.settle(BacklogSettlement(first["a"].id, Ending.DEAD))
    second = of_keys(rows, "a", number=1)
    assert turns(rows, {**first, **second}, 9) == "ab"


def test_where_claims_ended_is_remembered_of_so_many_subscriptions(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STARTS", 2)
    first = of_keys(rows, "abc")
    for name in (b"x", b"y"):
        rows.rows._by_keys(rows.connection, name, 1, rows.there)
    assert turns(rows, first, 1) == "a"
    assert len(rows.rows._starts) <= 2
    assert turns(rows, first, 1) == "b"
    assert rows.rows._by_keys(rows.connection, b"x", 1, rows.there) == []
    assert turns(rows, first, 1) == "c"
    assert len(rows.rows._starts) <= 2


@pytest.mark.parametrize("window", [1, 2, 200])
def test_in_order_as_many_as_there_are(rows: Rows, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether those that may go are among the first in line or not."""
    monkeypatch.setattr(module, "WINDOW", 1)
    monkeypatch.setattr(module, "WINDOW_MIN", window)
    first = of_keys(rows, "abc", number=4)
    free = [owed() for _ in range(2)]
    rows.store(*free)
    expected = sorted(ids([*first.values(), *free]))
    found: list[bytes] = []
    while got := ids(rows.hand_out(limit=2, ordered=True)):
        assert len(got) <= 2
        found += got
    assert sorted(found) == expected
