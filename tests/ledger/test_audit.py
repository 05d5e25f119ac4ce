"""The audit log as it is written: rows, their order, which of them go, and what a process notices of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.ledger.access import audit as module
from gateway.ledger.access.audit import (
    ADVISORY_LOCK,
    BEGIN,
    BROKEN,
    ENTRY_MAX,
    KEYED,
    LATE,
    PAGE,
    TRIMMED,
    Audit,
    AuditHead,
    AuditKeys,
    append,
    keys_used,
    newest,
    read,
    rows,
    trim,
)
from gateway.ledger.access.audit_check import AuditRules, verify
from gateway.ledger.db.encoding import document
from gateway.ledger.db.models import audit_log
from tests.ledger.audit_attacks import DAY, bare, forged, keys, store, stored
from tests.ledger.conftest import NOW

ONE, TWO = AuditKeys(keys(1)), AuditKeys(keys(2, 1))
DAYS = 30
TODAY = NOW // DAY * DAY


@pytest.fixture
def connection() -> Iterator[sa.Connection]:
    """The table alone, in memory."""
    engine = sa.create_engine("sqlite://")
    audit_log.create(engine)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


class Direct:
    """A ledger whose transactions are all on one connection."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection

    async def task(self, run: Callable[[sa.Connection, Any], Any]) -> Any:
        return run(self.connection, None)

    async def read(self, run: Callable[[sa.Connection], Any]) -> Any:
        return run(self.connection)


Make = Callable[..., Audit]


@pytest.fixture
def make(connection: sa.Connection) -> Make:
    """Makes the audit log of another process."""

    def make(*numbers: int, shared: bool = False) -> Audit:
        return Audit(Direct(connection), keys(*numbers), shared=shared)  # type: ignore[arg-type]

    return make


def write(connection: sa.Connection, *at: int, by: AuditKeys | None = ONE) -> AuditHead:
    return append(connection, [(each, {"action": "a"}) for each in at], by)


def sequences(connection: sa.Connection) -> list[int]:
    return [row.sequence for row in stored(connection)]


def actions(connection: sa.Connection) -> list[str]:
    return [row.document()["action"] for row in stored(connection)]


# ------------------------------------------------------------------------------------------------------------ rows


@pytest.mark.parametrize("by", [None, AuditKeys({})], ids=["no keys", "an empty file of keys"])
def test_rows_without_a_key(connection: sa.Connection, by: AuditKeys | None) -> None:
    head = append(connection, [(0, {"action": "a"}), (0, {"action": "b"})], by)
    (first, second) = stored(connection)
    assert [(row.sequence, row.at, row.mac, row.mac_key) for row in (first, second)] == [
        (1, 0, None, None),
        (2, 0, None, None),
    ]
    assert (first.previous, second.previous, head) == (BEGIN, first.hash, AuditHead(2, second.hash, b""))
    assert append(connection, [], by) == head, "nothing was added"


def test_rows_with_a_key(connection: sa.Connection) -> None:
    assert append(connection, [], ONE) == AuditHead(0, BEGIN, b"")
    write(connection, NOW, by=None)
    head = write(connection, NOW, NOW + 1)
    write(connection, NOW + 1, by=TWO)
    log = stored(connection)
    assert [row.mac_key for row in log] == [None, "00000001", "00000001", "00000002"]
    assert head == AuditHead(3, log[2].hash, log[2].mac or b"")
    assert verify(connection, None, AuditRules(TWO, NOW)).broken == 0
    assert not ONE.is_right(bare(log[1])._replace(mac_key="00000001"), bytes(32)), "a row without a MAC is not right"


def test_a_row_that_comes_late_keeps_its_own_time(connection: sa.Connection) -> None:
    append(connection, [(NOW, {"n": 1}), (NOW - LATE, {"n": 2}), (NOW - LATE - 1, {"n": 3}), (NOW + 1, {"n": 4})])
    assert [(row.at, row.document()) for row in stored(connection)] == [
        (NOW, {"n": 1}),
        (NOW, {"n": 2}),
        (NOW, {"n": 3, "happened_at": NOW - LATE - 1}),
        (NOW + 1, {"n": 4}),
    ]


def test_an_entry_may_be_as_large_as_the_most(connection: sa.Connection) -> None:
    text = "x" * (ENTRY_MAX - len(document({"action": "a", "text": ""})))
    append(connection, [(NOW, {"action": "a", "text": text}), (NOW, {"action": "a", "text": text + "x"})])
    assert [row.document() for row in stored(connection)] == [
        {"action": "a", "text": text},
        {"action": "a", "cut": ENTRY_MAX + 1},
    ]


async def test_rows_are_read_in_both_directions(connection: sa.Connection, make: Make) -> None:
    write(connection, *range(NOW, NOW + 5))
    log = stored(connection)
    assert read(connection) == read(connection, 0) == log
    assert read(connection, 2, 2) == log[2:4]
    assert read(connection, 5) == []
    assert newest(connection) == log[::-1]
    assert newest(connection, 4, 2) == [log[2], log[1]]
    assert newest(connection, 1) == []
    audit = make(1)
    assert await audit.read(3) == log[3:]
    assert await audit.read(0, 1) == log[:1]
    assert await audit.newest(limit=1) == log[4:]
    assert await audit.newest(3) == [log[1], log[0]]


def test_all_rows_are_read_page_by_page(connection: sa.Connection) -> None:
    write(connection, *[NOW] * (PAGE + 1))
    assert [row.sequence for row in rows(connection)] == list(range(1, PAGE + 2))
    assert [row.sequence for row in rows(connection, PAGE)] == [PAGE + 1]


def test_rows_are_counted_by_key(connection: sa.Connection) -> None:
    assert keys_used(connection) == {}
    write(connection, NOW, by=None)
    write(connection, NOW, NOW)
    write(connection, NOW, NOW, NOW, by=TWO)
    assert keys_used(connection) == {"00000001": 2, "00000002": 3}


# ------------------------------------------------------------------------------------------------- alone at the end


class Noted:
    """A connection to PostgreSQL that runs nothing."""

    class dialect:  # noqa: N801
        name = "postgresql"

    def __init__(self) -> None:
        self.ran: list[tuple[str, Any]] = []

    def execute(self, statement: Any, parameters: Any) -> None:
        self.ran.append((str(statement), parameters))


def test_on_postgresql_one_process_at_a_time_writes() -> None:
    noted = Noted()
    module._alone(noted)  # type: ignore[arg-type]
    assert noted.ran == [("SELECT pg_advisory_xact_lock(:key)", {"key": ADVISORY_LOCK})]


async def test_nobody_else_writes_between_the_last_row_and_the_next(
    connection: sa.Connection, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two rows would be chained to one."""
    order: list[str] = []
    last_row = module.last_row

    def looked(of: sa.Connection) -> Any:
        order.append("looked")
        return last_row(of)

    monkeypatch.setattr(module, "_alone", lambda of: order.append("alone"))
    monkeypatch.setattr(module, "last_row", looked)
    audit = make(1)
    await audit.append([(NOW, {"action": "a"}), (NOW, {"action": "a"})])
    write(connection, NOW, by=None)
    append(connection, [(NOW, {"action": "b"})], None)
    assert order == ["alone", "looked"] * 3
    order.clear()
    audit.head = None
    await audit.look(NOW)
    assert order == ["looked", "alone", "looked"], "what was read before is read again"
    order.clear()
    assert trim(connection, NOW + 40 * DAY, DAYS, ONE)[0] == 4
    assert order == ["alone", "looked"]


# ------------------------------------------------------------------------------------------------ which rows may go


def test_nothing_goes_of_what_is_not_there(connection: sa.Connection) -> None:
    assert trim(connection, NOW, DAYS, ONE) == (0, None)
    write(connection, TODAY - 40 * DAY)
    assert trim(connection, NOW, DAYS, ONE) == (0, None), "the last one stays"
    assert sequences(connection) == [1]


def test_a_row_goes_once_it_is_older_by_whole_days(connection: sa.Connection) -> None:
    due = TODAY - DAYS * DAY
    write(connection, due - 2, due - 1, due, due + 1)
    gone, head = trim(connection, NOW, DAYS, ONE)
    assert (gone, sequences(connection)) == (1, [2, 3, 4, 5])
    assert head is not None
    assert head.sequence == 5
    assert trim(connection, NOW, DAYS, ONE) == (0, None), "the last one that is due stays"
    assert trim(connection, TODAY + DAY - 1, DAYS, ONE) == (0, None)
    assert trim(connection, TODAY + DAY, DAYS, ONE)[0] == 2
    assert verify(connection, None, AuditRules(ONE, NOW + DAY, DAYS)).broken == 0


def test_what_went_is_on_record(connection: sa.Connection) -> None:
    old = TODAY - 40 * DAY
    write(connection, old, old + 1, old + 2, old + 3, NOW)
    log = stored(connection)
    assert trim(connection, NOW, DAYS, ONE)[0] == 3
    assert stored(connection)[-1].document() == {
        "action": TRIMMED, "anchor": 4, "days": DAYS, "rows": 3, "first": 1, "last": 3,
        "digest": log[2].hash.hex(), "mac": (log[2].mac or b"").hex(), "newest": old + 2,
    }  # fmt: skip
    store(connection, [])
    write(connection, old, old, by=None)
    write(connection, NOW)
    assert trim(connection, NOW, DAYS, ONE)[0] == 1
    assert stored(connection)[-1].document()["mac"] == "", "the last of them had none"


@pytest.mark.parametrize(("number", "left"), [(2, [2]), (3, [3]), (4, [3, 4]), (9, [3, 4, 5, 6, 7, 8, 9])])
def test_so_many_rows_go_at_once(
    connection: sa.Connection, number: int, left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    write(connection, *[TODAY - 40 * DAY] * number)
    gone, _ = trim(connection, NOW, DAYS, ONE)
    assert (gone, sequences(connection)) == (left[0] - 1, [*left, number + 1])
    while trim(connection, NOW, DAYS, ONE)[0]:
        pass
    assert sequences(connection)[0] == number
    assert verify(connection, None, AuditRules(ONE, NOW, DAYS)).broken == 0


def test_a_row_that_is_young_is_never_the_first(connection: sa.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where as many rows are due as go at once."""
    monkeypatch.setattr(module, "CHUNK", 2)
    write(connection, TODAY - 40 * DAY, TODAY - 40 * DAY, NOW, NOW)
    assert trim(connection, NOW, DAYS, ONE)[0] == 1
    assert sequences(connection) == [2, 3, 4, 5]


# ---------------------------------------------------------------------------------------------- what is noticed


async def test_the_end_that_is_known_never_goes_back(make: Make) -> None:
    audit = make(1)
    third = await audit.append([(NOW, {"action": "a"})] * 3)
    assert audit.head == third
    for older in (AuditHead(2, bytes(32)), AuditHead(3, bytes(32))):
        assert audit.note(older) == older
        assert audit.head == third
    audit.note(AuditHead(4, bytes(32)))
    assert audit.head == AuditHead(4, bytes(32))


async def test_a_look_at_a_sound_log_remembers_its_end(connection: sa.Connection, make: Make) -> None:
    for audit in (make(), make(1)):
        await audit.look(NOW)
        assert audit.head is None, "there is none"
    head = write(connection, NOW, NOW)
    for audit in (make(1), make(2, 1), make(3), make()):
        await audit.look(NOW)
        assert (audit.head, audit.broken) == (head, "")
    assert len(sequences(connection)) == 2, "nothing was written"


@pytest.mark.parametrize("shared", [False, True])
async def test_a_row_without_a_mac_is_covered_where_there_is_a_key(
    connection: sa.Connection, make: Make, shared: bool
) -> None:
    head = write(connection, NOW, NOW, by=None)
    plain, keyed = make(), make(1, shared=shared)
    await plain.look(NOW)
    assert (plain.head, actions(connection)) == (head, ["a", "a"])
    keyed.head = AuditHead(1, stored(connection)[0].hash)
    await keyed.look(NOW)
    assert actions(connection) == ["a", "a", KEYED]
    assert keyed.head is not None
    assert (keyed.head.sequence, keyed.broken) == (3, "")
    await keyed.look(NOW)
    await plain.look(NOW)
    assert actions(connection) == ["a", "a", KEYED], "once"


async def test_a_row_without_a_mac_behind_one_with_a_mac(connection: sa.Connection, make: Make) -> None:
    """Only where others write, too, may an earlier release have written it."""
    alone, beside = make(1), make(1, shared=True)
    await alone.append([(NOW, {"action": "a"})])
    beside.head = alone.head
    write(connection, NOW, by=None)
    await beside.look(NOW)
    assert (actions(connection)[2:], beside.broken) == ([KEYED], "")
    store(connection, stored(connection)[:2])
    known = alone.head
    await alone.look(NOW)
    assert (alone.broken, alone.missed) == ("row 2 has no MAC", known)
    assert actions(connection)[2:] == [BROKEN]
    later = make(1)
    store(connection, stored(connection)[:2])
    await later.look(NOW)
    assert (actions(connection)[2:], later.broken) == ([KEYED], ""), "it knows of no row with one"


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_mac_that_its_key_does_not_make(connection: sa.Connection, make: Make, number: int) -> None:
    write(connection, *[NOW] * number)
    *before, last = stored(connection)
    store(connection, [*before, last._replace(mac=bytes(32))])
    audit = make(1)
    await audit.look(NOW)
    assert audit.broken == f"row {number} has a MAC that its key does not make"
    *_, said = stored(connection)
    assert said.document() == {"action": BROKEN, "detail": audit.broken, "head": ""}
    assert audit.missed is None, "it knew of no row"
    assert audit.head is not None
    await audit.look(NOW)
    assert actions(connection).count(BROKEN) == 1, "once"


CHANGES: dict[str, tuple[Callable[[list[Any]], list[Any]], str]] = {
    "all rows gone": (
        lambda log: [],
        "the log ends with row 0, and this gateway knows row 3: it was cut off",
    ),
    "the last row gone": (
        lambda log: log[:2],
        "the log ends with row 2, and this gateway knows row 3: it was cut off",
    ),
    "another in its place": (
        lambda log: [*log[:2], forged(log[1], {"action": "b"})],
        "row 3 is not the one that this gateway knows",
    ),
    "its MAC gone": (
        lambda log: [*log[:2], bare(log[2])],
        "row 3 is not the one that this gateway knows",
    ),
    "others behind another": (
        lambda log: [*log[:2], other := forged(log[1], {"action": "b"}), forged(other, {"action": "b"})],
        "row 3 is not the one that this gateway knows",
    ),
    "it is gone, and there are others": (
        lambda log: [*log[:2], forged(log[2], {"action": "b"})],
        "row 3, which this gateway knows, is missing",
    ),
}


@pytest.mark.parametrize("way", ["look", "append", "trim"])
@pytest.mark.parametrize("change", CHANGES)
async def test_what_was_done_to_the_row_that_is_known(
    connection: sa.Connection, make: Make, change: str, way: str
) -> None:
    do, why = CHANGES[change]
    audit = make(1, shared=True)
    known = await audit.append([(NOW, {"action": "a"})] * 3)
    store(connection, do(stored(connection)))
    left = len(sequences(connection))
    if way == "look":
        await audit.look(NOW + 1)
    elif way == "trim":
        assert await audit.trim(NOW + 1, DAYS) == 0
    else:
        await audit.append([(NOW + 1, {"action": "c"}), (NOW + 2, {"action": "d"})])
    told, *rest = stored(connection)[left:]
    assert (told.at, told.document()) == (
        NOW + 1,
        {"action": BROKEN, "detail": why, "head": f"3:{known.hash.hex()}"},
    )
    assert [row.document()["action"] for row in rest] == (["c", "d"] if way == "append" else [])
    assert (audit.broken, audit.missed) == (why, known)


async def test_who_adds_nothing_says_nothing(connection: sa.Connection, make: Make) -> None:
    audit = make(1)
    known = await audit.append([(NOW, {"action": "a"})] * 3)
    store(connection, stored(connection)[:2])
    assert (await audit.append([])).sequence == 2
    assert (sequences(connection), audit.broken, audit.head) == ([1, 2], "", known)


async def test_another_process_goes_on_from_the_row_that_is_known(connection: sa.Connection, make: Make) -> None:
    one, other = make(1), make(1)
    known = await one.append([(NOW, {"action": "a"})] * 2)
    last = await other.append([(NOW, {"action": "b"})] * 2)
    await one.look(NOW)
    assert (one.head, one.broken) == (last, "")
    one.head = known._replace(mac=b"")
    await one.append([(NOW, {"action": "c"})])
    assert actions(connection) == ["a", "a", "b", "b", "c"], "its hash alone will do"


async def test_a_trim_remembers_its_own_row(connection: sa.Connection, make: Make) -> None:
    audit = make(1)
    await audit.append([(TODAY - 40 * DAY, {"action": "a"})] * 3)
    known = audit.head
    assert await audit.trim(NOW, DAYS) == 2
    assert audit.head is not None
    assert audit.head.sequence == 4
    assert await audit.trim(NOW, DAYS) == 0
    other = make(1)
    other.head = AuditHead(1, bytes(32))
    await other.look(NOW)
    assert other.broken == "", "the row that it knew was too old"
    assert known is not None
    other.head = known
    await other.look(NOW)
    assert (other.head, other.broken) == (audit.head, "")
    assert actions(connection) == ["a", TRIMMED]
