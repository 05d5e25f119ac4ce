"""Bodies as rows: how many need each, until when it is kept, and with what it goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.config import RetentionSettings
from gateway.ledger import EventKind, KeptBody
from gateway.ledger.db.checksums import DAMAGED
from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import bodies, deliveries
from gateway.ledger.pending import bodies as module
from gateway.ledger.pending.bodies import Bodies, Key, digest_of, keys, matching, sound
from gateway.ledger.writing.calls import Keep
from tests.ledger.conftest import NOW, new_id

DAY = 86_400_000_000
NOBODY: Any = None


class Rows:
    """The statements, on a table in memory."""

    def __init__(self, connection: sa.Connection, **retention: Any) -> None:
        self.connection = connection
        self.bodies = Bodies(Database("sqlite:////nowhere/ledger.db"), RetentionSettings(**retention))

    def add(self, key: Key, owed: int = 1, kept_until: int = 0, payload: bytes = b"hello") -> None:
        self.bodies.add(self.connection, {key: (payload, owed, kept_until)})

    def release(self, released: dict[Key, int], now: int = NOW) -> None:
        self.bodies.write(self.connection, {}, released, now)

    @property
    def there(self) -> dict[Key, tuple[int, int]]:
        """Key -> how many need it, and until when it is kept."""
        found = self.connection.execute(sa.select(bodies))
        return {(row.message_id, row.digest): (row.owed, row.kept_until) for row in found}


@pytest.fixture
def connection() -> Iterator[sa.Connection]:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        bodies.create(connection)
        yield connection
    engine.dispose()


@pytest.fixture
def rows(connection: sa.Connection) -> Rows:
    return Rows(connection)


def key(payload: bytes = b"hello", message_id: bytes | None = None) -> Key:
    return message_id or new_id(), digest_of(payload)


A, B, C = sorted(key() for _ in range(3))
OTHER = key(b"other", A[0])
"""Another payload of the message of A."""


def test_a_payload_is_counted_for_each_that_needs_it(rows: Rows) -> None:
    rows.add(A, 2)
    rows.add(A, 1, payload=b"not used, as one is there")
    rows.add(OTHER, 1, payload=b"other")
    rows.add(B, 0, NOW + 5)
    assert rows.there == {A: (3, 0), OTHER: (1, 0), B: (0, NOW + 5)}
    assert rows.bodies.payloads(rows.connection, [A, OTHER, C]) == {A: b"hello", OTHER: b"other"}


@pytest.mark.parametrize(("first", "second", "kept"), [(0, 5, 5), (5, 0, 5), (5, 7, 7), (7, 5, 7), (5, 5, 5)])
def test_it_is_kept_until_the_later_time(rows: Rows, first: int, second: int, kept: int) -> None:
    rows.add(A, 1, first)
    rows.add(A, 0, second)
    assert rows.there == {A: (1, kept)}


def test_what_nobody_needs_goes(rows: Rows) -> None:
    for each, owed in ((A, 1), (B, 3), (C, 2), (OTHER, 5)):
        rows.add(each, owed)
    rows.release({A: 1, B: 1, OTHER: 2})
    assert rows.there == {B: (2, 0), C: (2, 0), OTHER: (3, 0)}
    rows.release({B: 2, C: 1})
    assert rows.there == {C: (1, 0), OTHER: (3, 0)}
    rows.release({C: 1})
    rows.release({A: 1, OTHER: 3})
    assert rows.there == {}
    rows.add(A)
    rows.release({})
    assert rows.there == {A: (1, 0)}


def test_what_is_added_and_released_at_once(rows: Rows) -> None:
    rows.add(A)
    rows.bodies.write(rows.connection, {A: (b"hello", 1, 0), B: (b"hello", 2, 0)}, {A: 1, B: 2}, NOW)
    assert rows.there == {A: (1, 0)}


@pytest.mark.parametrize(("kept_until", "stays"), [(NOW + 1, True), (NOW, False), (NOW - 1, False)])
@pytest.mark.parametrize("owed", [1, 2])
def test_what_is_kept_stays_until_its_time(rows: Rows, owed: int, kept_until: int, stays: bool) -> None:
    rows.add(A, owed, kept_until)
    rows.add(B, owed + 1, kept_until)
    rows.release({A: owed, B: 1})
    assert rows.there == ({A: (0, kept_until)} if stays else {}) | {B: (owed, kept_until)}


@pytest.mark.parametrize(("kept_until", "forgotten"), [(NOW + 1, 0), (NOW, 1), (1, 1), (0, 0)])
def test_a_body_is_forgotten_when_its_time_is_over(rows: Rows, kept_until: int, forgotten: int) -> None:
    rows.add(A, 0, kept_until)
    rows.add(B, 1, kept_until)
    rows.add(C, 0, NOW + 9)
    assert rows.bodies.forget_expired(rows.connection, NOW) == 2 * forgotten
    left = {C: (0, NOW + 9), B: (1, 0 if forgotten else kept_until)}
    assert rows.there == left | ({} if forgotten else {A: (0, kept_until)})


def test_bodies_are_forgotten_in_chunks(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    for number, each in enumerate((A, B, C)):
        rows.add(each, 0, NOW - number)
    assert [rows.bodies.forget_expired(rows.connection, NOW) for _ in range(3)] == [2, 1, 0]


@pytest.mark.parametrize("kept_until", [0, 1, NOW + 9])
def test_what_was_consumed_is_kept_no_longer(rows: Rows, kept_until: int) -> None:
    for each in (A, OTHER, B):
        rows.add(each, each == OTHER, kept_until)
    rows.bodies.let_go(rows.connection, [A[0], C[0]], NOW)
    assert rows.there == {OTHER: (1, 0), B: (0, kept_until)}


# ---------------------------------------------------------------------------------------------------------- policy


@pytest.mark.parametrize(
    ("policy", "kept_until", "consumed"),
    [("never", 0, False), ("days", NOW + 2 * DAY, False), ("until-settled", 0, True)],
)
def test_how_long_bodies_are_kept(connection: sa.Connection, policy: str, kept_until: int, consumed: bool) -> None:
    rows = Rows(connection, bodies=policy, body_days=2, body_max=5)
    assert rows.bodies.kept_until(NOW) == kept_until
    assert rows.bodies.body_max == 5
    settled = {EventKind.ACKNOWLEDGED, EventKind.REJECTED, EventKind.DISCARDED, EventKind.DEAD_LETTERED}
    assert rows.bodies.until_consumed == (settled if consumed else set())


def test_bodies_that_are_not_too_large_are_kept_without_a_delivery(connection: sa.Connection) -> None:
    rows = Rows(connection, bodies="days", body_days=2, body_max=5)
    kept = [KeptBody(new_id(), b"x" * size, size) for size in (4, 5, 6)]
    rows.bodies.keep(connection, [Keep(NOBODY, kept[:2]), Keep(NOBODY, kept[2:])], NOW)
    assert {message_id for message_id, _ in rows.there} == {each.message_id for each in kept[:2]}
    assert set(rows.there.values()) == {(0, NOW + 2 * DAY)}
    before = rows.there
    rows.bodies.keep(connection, [Keep(NOBODY, kept[2:])], NOW)
    assert rows.there == before


def test_large_payloads_are_added_by_several_statements(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.ledger.db.batch.PART", 100)
    for sizes in ([200], [10, 200, 10], [60, 60, 60]):
        added = {key(bytes(size)): (bytes(size), 1, 0) for size in sizes}
        rows.bodies.add(rows.connection, added)
        assert rows.bodies.payloads(rows.connection, added) == {each: value[0] for each, value in added.items()}


def test_postgresql_locks_what_it_releases_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are added and those that are released are locked together, or two processes wait in a circle."""
    statements = Bodies(Database("postgresql://127.0.0.1:1/ledger"))
    connection: Any = None
    added: list[Any] = []
    ran: list[str] = []
    monkeypatch.setattr(statements, "add", lambda connection, rows: added.append(rows))
    for name in ("_remove", "_give", "_clear"):

        class Statement:
            label = name

            def run(self, connection: Any, parameters: Any) -> list[Any]:
                ran.append(self.label)
                return []

        setattr(statements, name, Statement())
    statements.write(connection, {B: (b"hello", 1, 0)}, {A: 1, C: 2}, NOW)
    assert added == [{A: (b"", 0, 0), B: (b"hello", 1, 0), C: (b"", 0, 0)}]
    assert ran == ["_remove", "_give", "_clear"]
    statements.write(connection, {}, {}, NOW)
    assert len(added) == 1


def test_a_payload_that_is_not_what_was_written_is_damaged() -> None:
    assert sound(b"hello", digest_of(b"hello")) == b"hello"
    assert sound(b"hullo", digest_of(b"hello")) == DAMAGED
    assert len(digest_of(b"")) == 16
    assert len(keys([A, B])) == 2


def test_rows_of_a_batch_are_matched_by_all_their_columns() -> None:
    """On PostgreSQL in the order of the batch."""
    named = sa.select(bodies.c.message_id, bodies.c.digest)
    postgresql = str(matching("postgresql", bodies, named, bodies.c.owed == 1))
    assert "bodies.message_id = named.message_id AND bodies.digest = named.digest AND bodies.owed = " in postgresql
    assert "(bodies.message_id, bodies.digest) IN (SELECT" in str(matching("sqlite", bodies, named))
    assert "deliveries.id IN (SELECT" in str(matching("sqlite", deliveries, sa.select(deliveries.c.id)))
