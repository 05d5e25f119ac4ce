"""Who can write to the database, and has no key, changes nothing of the audit log unseen."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa

from gateway.ledger.access.audit import TRIMMED, AuditHead, AuditKeys, append, trim
from gateway.ledger.access.audit_check import AuditRules, verify
from gateway.ledger.db.engine import Database
from tests.ledger import audit_attacks as attacks
from tests.ledger.audit_attacks import DAY, SEED, Log, bare, forged, keys, store, stored
from tests.ledger.conftest import NOW

DAYS = 40
FIRST, BOTH = AuditKeys(keys(1)), AuditKeys(keys(2, 1))
TRIES = {"sqlite": 1_200, "postgresql": 160}


class Filled(NamedTuple):
    """A log, and what its database held before."""

    rows: Log
    backups: Sequence[Log]
    head: AuditHead
    rules: AuditRules


@pytest.fixture
def connection(database: Database) -> Iterator[sa.Connection]:
    engine = database.writer()
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def write(connection: sa.Connection, at: int, number: int, with_keys: AuditKeys | None) -> AuditHead:
    entry = {"action": "put_subscription", "actor": "shop", "number": number, "object": f"/v1/subscriptions/{number}"}
    return append(connection, [(at, entry)], with_keys)


def fill(connection: sa.Connection, database: Database, *, trimmed: bool) -> Filled:
    """20 rows of a release before MACs, 40 with one key, 40 with another, half a day between them; or what is left of
    them when old rows went, twice."""
    backups, at = [], NOW - 50 * DAY
    for number in range(100):
        write(connection, at, number, None if number < 20 else FIRST if number < 60 else BOTH)
        if number % 9 == 8 and number > 30:
            backups.append(stored(connection))
        at += DAY // 2
    if trimmed:
        for day in (5, 15):
            gone, _ = trim(connection, NOW + day * DAY, DAYS, BOTH)
            assert gone > 0
            write(connection, NOW + day * DAY, 100 + day, BOTH)
            backups.append(stored(connection))
    last = write(connection, NOW + 20 * DAY, 1_000, BOTH)
    rows = stored(connection)
    return Filled(rows, backups, last, AuditRules(BOTH, NOW + 20 * DAY, DAYS, database.shared))


@pytest.fixture(params=[False, True], ids=["whole", "trimmed"])
def filled(connection: sa.Connection, database: Database, request: pytest.FixtureRequest) -> Filled:
    found = fill(connection, database, trimmed=request.param)
    for known in (None, found.head):
        check = verify(connection, known, found.rules)
        assert (check.broken, check.why, check.rows) == (0, "", len(found.rows))
    assert (check.first, check.keyed) == ((50, 50) if request.param else (1, 21))
    return found


def checked(connection: sa.Connection, filled: Filled, log: Log, head: AuditHead | None = None) -> Any:
    """What is said of a log that is put in the place of the one that there is."""
    with connection.begin_nested() as nested:
        store(connection, log)
        found = verify(connection, head, filled.rules)
        nested.rollback()
    return found


def test_random_tampering_is_named(connection: sa.Connection, filled: Filled, database: Database) -> None:
    random = Random(SEED)
    tried: Counter[str] = Counter()
    unseen: Counter[str] = Counter()
    while tried.total() < TRIES[database.dialect] // 2:
        attack = attacks.ATTACKS[tried.total() % len(attacks.ATTACKS)]
        log = attack(random, filled.rows, filled.backups)
        if log == filled.rows or len({row.sequence for row in log}) < len(log):
            continue  # nothing was done, or the database would not take it
        tried[attack.__name__] += 1
        what = f"seed {SEED}, try {tried.total()}: {attack.__name__}"
        with_head = checked(connection, filled, log, filled.head)
        assert with_head.broken, what
        assert with_head.why, what
        without = checked(connection, filled, log)
        if not without.broken:
            assert attack in attacks.CUTS, what
            unseen[attack.__name__] += 1
    print(f"tampered {tried.total()} times; unseen without the head: {dict(unseen)}")
    assert min(tried.values()) > 0
    assert len(tried) == len(attacks.ATTACKS)


@pytest.mark.parametrize("kind", ["future", "configuration"])
def test_forged_trims_of_a_log_without_macs(connection: sa.Connection, database: Database, kind: str) -> None:
    """Both ways to have rows go before their time that a chain alone let pass; here in a log of an earlier release,
    to which the gateway has added a row since."""
    for number in range(10):
        write(connection, NOW - (60 - number) * DAY, number, None)
    log = stored(connection)
    at = log[5].at + 31 * DAY if kind == "configuration" else NOW + 31 * DAY
    said = {"action": TRIMMED, "anchor": 6, "days": 30, "rows": 5}
    store(connection, [*log[5:], forged(log[-1], said, at)])
    write(connection, NOW, 11, BOTH)
    found = verify(connection, None, AuditRules(BOTH, NOW, 400, database.shared))
    assert found.broken
    assert ("in the future" in found.why) if kind == "future" else ("retention.audit_days is 400" in found.why)


def cases(log: Log) -> dict[str, tuple[Log, bool]]:
    """Name -> what is left, and whether it is seen without a head, too."""
    last, middle = log[-1], len(log) // 2
    one = log[middle]
    other = b'{"action":"other"}'
    return {
        "an entry": ([*log[:middle], one._replace(entry=other), *log[middle + 1 :]], True),
        "a time": ([*log[:middle], one._replace(at=one.at + 1), *log[middle + 1 :]], True),
        "what it is chained to": ([*log[:middle], one._replace(previous=bytes(32)), *log[middle + 1 :]], True),
        "a hash": ([*log[:middle], one._replace(hash=bytes(32)), *log[middle + 1 :]], True),
        "a MAC": ([*log[:-1], last._replace(mac=bytes(32))], True),
        "the name of a key": ([*log[:-1], last._replace(mac_key="00000001")], True),
        "a key nobody has": ([*log[:-1], last._replace(mac_key="ffffffff")], True),
        "the MAC of the last row gone": ([*log[:-1], bare(last)], True),
        "all MACs gone": ([bare(row) for row in log], True),
        "a row gone": ([*log[:middle], *log[middle + 1 :]], True),
        "the first row gone": (log[1:], True),
        "two rows swapped": (attacks.swap(Random(3), log, ()), True),
        "a row put in": (attacks.insert(Random(1), log, ()), True),
        "a row added": ([*log, forged(last, {"action": "a"})], True),
        "a row added with a MAC": ([*log, forged(last, {})._replace(mac=last.mac, mac_key="00000002")], True),
        "the last row again": ([*log, last._replace(sequence=last.sequence + 1)], True),
        "made anew": (attacks.make_anew(Random(1), log, ()), True),
        "cut off": (log[:-1], False),
        "all rows gone": ([], False),
    }  # fmt: skip


def test_each_tampering_is_named(connection: sa.Connection, filled: Filled) -> None:
    for name, (log, seen) in cases(filled.rows).items():
        assert checked(connection, filled, log, filled.head).broken, name
        assert bool(checked(connection, filled, log).broken) is seen, name


def test_rows_that_went_are_not_put_back(connection: sa.Connection, database: Database) -> None:
    filled = fill(connection, database, trimmed=True)
    old = filled.backups[-3]  # of before the first trim
    begin = filled.rows[0].sequence
    back = [*(row for row in old if row.sequence < begin), *filled.rows]
    assert back[0].sequence == 1
    assert "are there again" in checked(connection, filled, back).why
    some = [row for row in back if row.sequence > 10]
    assert checked(connection, filled, some).broken == 1


def test_an_earlier_release_beside_this_one(connection: sa.Connection, database: Database) -> None:
    """Where processes share the ledger, rows without a MAC are no tampering for a day, once they are covered."""
    rules = AuditRules(BOTH, NOW, None, shared=True)
    hour = DAY // 24
    for number in range(3):
        write(connection, NOW + number, number, None)
    write(connection, NOW + hour, 3, BOTH)
    write(connection, NOW + hour, 4, None)
    assert verify(connection, None, rules._replace(now=NOW + 2 * hour)).broken == 0, "it is still time to cover it"
    assert verify(connection, None, rules._replace(now=NOW + 2 * DAY)).broken == 5, "nothing has covered it"
    write(connection, NOW + 2 * hour, 5, BOTH)
    found = verify(connection, None, rules._replace(now=NOW + 2 * DAY))
    assert (found.broken, found.keyed, found.without) == (0, 4, 1)
    assert verify(connection, None, rules._replace(shared=False, now=NOW + DAY)).broken == 5, "SQLite has one process"
    write(connection, NOW + 30 * hour, 6, BOTH)
    write(connection, NOW + 30 * hour, 7, None)
    late = verify(connection, None, rules._replace(now=NOW + 2 * DAY))
    assert (late.broken, "has no MAC" in late.why) == (8, True)
    accepted = rules._replace(now=NOW + 2 * DAY, accepted=[range(8, 9)])
    assert verify(connection, None, accepted).broken == 0


def test_the_day_of_an_earlier_release_is_a_day(connection: sa.Connection) -> None:
    """Behind a row that came a day later, and with a clock that is behind."""
    write(connection, NOW, 0, None)
    write(connection, NOW, 1, BOTH)
    write(connection, NOW + DAY, 2, BOTH)
    write(connection, NOW + DAY, 3, None)
    found = verify(connection, None, AuditRules(BOTH, NOW + DAY - 1, None, shared=True))
    assert (found.broken, "has no MAC" in found.why) == (4, True)


def test_a_row_of_an_earlier_release_that_is_covered_too_late(connection: sa.Connection) -> None:
    """A row of yesterday that comes to be there tomorrow."""
    write(connection, NOW, 0, None)
    write(connection, NOW, 1, BOTH)
    write(connection, NOW + 1, 2, None)
    write(connection, NOW + 2 * DAY, 3, BOTH)
    found = verify(connection, None, AuditRules(BOTH, NOW + 3 * DAY, None, shared=True))
    assert (found.broken, found.rows) == (3, 3)


def test_times_never_decrease(connection: sa.Connection) -> None:
    append(connection, [(NOW, {"action": "a"}), (NOW - 5, {"action": "b"}), (NOW - DAY, {"action": "c"})], BOTH)
    rows = stored(connection)
    assert [row.at for row in rows] == [NOW, NOW, NOW]
    assert [row.document() for row in rows] == [
        {"action": "a"}, {"action": "b"}, {"action": "c", "happened_at": NOW - DAY},
    ]  # fmt: skip
    assert verify(connection, None, AuditRules(BOTH, NOW)).broken == 0
    assert "600 seconds in the future" in verify(connection, None, AuditRules(BOTH, NOW - 600_000_000)).why


def test_a_trim_that_a_gateway_with_other_settings_made(connection: sa.Connection) -> None:
    """It is genuine, and not what the configuration says: that is a finding, unless it is known."""
    for number in range(3):
        write(connection, NOW - (60 - number) * DAY, number, BOTH)
    trim(connection, NOW, 30, BOTH)
    rules = AuditRules(BOTH, NOW, 30)
    assert verify(connection, None, rules).broken == 0
    found = verify(connection, None, rules._replace(days=400))
    assert (found.broken, found.why) == (4, "rows went after 30 days, and retention.audit_days is 400")
    assert verify(connection, None, rules._replace(days=400, accepted=[range(4, 5)])).broken == 0


def test_a_key_that_is_gone(connection: sa.Connection) -> None:
    write(connection, NOW, 0, FIRST)
    write(connection, NOW, 1, BOTH)
    only = AuditRules(AuditKeys(keys(2)), NOW)
    assert verify(connection, None, only).why == "its MAC is of the key '00000001', and the file of keys has 00000002"
    assert verify(connection, None, only._replace(accepted=[range(1, 2)])).broken == 0


def test_values_that_are_far_too_long_cost_no_memory(connection: sa.Connection) -> None:
    """Somebody has put 64 MB into each column that takes them: they are named, and not read."""
    write(connection, NOW, 0, BOTH)
    log = stored(connection)
    long = bytes(64 << 20)
    for fields in ({"entry": long}, {"mac": long}, {"mac_key": long.decode()[: 64 << 20].replace("\0", "k")}):
        store(connection, [log[0]._replace(**fields)])
        tracemalloc.start()
        found = verify(connection, None, AuditRules(BOTH, NOW))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert found.broken == 1
        assert len(found.why) < 200
        assert peak < 1 << 20
