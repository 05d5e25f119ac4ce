"""The check of the audit log, rule by rule: what is sound, what is not, and with which row it begins to be wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.ledger.access.audit import (
    BEGIN,
    BROKEN,
    DAYS_MIN,
    KEYED,
    NO_MAC,
    TRIMMED,
    AuditHead,
    AuditKeys,
    AuditRow,
    hash_of,
)
from gateway.ledger.access.audit_check import PAGE, ROLLOUT, SKEW, AuditResult, AuditRules, verify
from gateway.ledger.db.encoding import document
from gateway.ledger.db.models import audit_log
from tests.ledger.audit_attacks import DAY, Log, keys, store
from tests.ledger.conftest import NOW

BOTH, NONE = AuditKeys(keys(2, 1)), AuditKeys({})
PLAIN: Mapping[str, Any] = {"action": "a"}


@pytest.fixture
def connection() -> Iterator[sa.Connection]:
    """The table alone, in memory."""
    engine = sa.create_engine("sqlite://")
    audit_log.create(engine)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


class Chain:
    """A log that is written as gateways write it, with and without MACs."""

    def __init__(self, begin: int = 1, previous: bytes = BEGIN, mac: bytes = NO_MAC) -> None:
        """``begin``: number of the first row, which is chained to ``previous`` and to ``mac``."""
        self.rows: Log = []
        self._next, self._previous, self._mac = begin, previous, mac

    def add(self, at: int = NOW, entry: Mapping[str, Any] = PLAIN, by: AuditKeys | None = BOTH) -> Chain:
        """Another row, sealed with the first of the keys; None: without a MAC."""
        octets = document(entry)
        row = AuditRow(self._next, at, octets, self._previous, hash_of(self._next, at, octets, self._previous))
        if by is not None:
            row = row._replace(mac=by.mac(by.name, row.hash, self._mac), mac_key=by.name)
        self.rows.append(row)
        self._next, self._previous, self._mac = row.sequence + 1, row.hash, row.mac or NO_MAC
        return self

    def bare(self, at: int = NOW, entry: Mapping[str, Any] = PLAIN) -> Chain:
        """A row as a release before MACs writes it."""
        return self.add(at, entry, None)

    @property
    def head(self) -> AuditHead:
        """Its end."""
        last = self.rows[-1]
        return AuditHead(last.sequence, last.hash, last.mac or b"")


def checked(
    connection: sa.Connection, log: Chain | Sequence[AuditRow], rules: AuditRules, known: Any = None
) -> AuditResult:
    store(connection, log.rows if isinstance(log, Chain) else log)
    return verify(connection, known, rules)


def trimmed(number: int, *, age: int = DAYS_MIN * DAY, before: Chain | None = None, **said: Any) -> Chain:
    """What is left of a log of which the rows before ``number`` went, and the row that says so. ``age``: of the newest
    of them, in microseconds."""
    whole = before or Chain()
    while len(whole.rows) < number + 1:
        whole.add(NOW - age)
    gone, rest = whole.rows[: number - 1], whole.rows[number - 1 :]
    entry = {
        "action": TRIMMED, "anchor": number, "days": DAYS_MIN, "rows": len(gone), "first": gone[0].sequence,
        "last": number - 1, "digest": rest[0].previous.hex(), "mac": (gone[-1].mac or b"").hex(),
        "newest": gone[-1].at,
    }  # fmt: skip
    whole.add(NOW, {name: value for name, value in (entry | said).items() if value is not None})
    whole.rows = whole.rows[number - 1 :]
    return whole


RULES = AuditRules(BOTH, NOW, DAYS_MIN)
SHARED = RULES._replace(shared=True)
CHAIN = AuditRules()
"""Neither keys nor a time: the chain alone."""


# -------------------------------------------------------------------------------------------------- what is sound


@pytest.mark.parametrize("rules", [CHAIN, RULES, SHARED])
def test_an_empty_log_is_sound(connection: sa.Connection, rules: AuditRules) -> None:
    assert checked(connection, [], rules) == AuditResult(0, AuditHead(0, BEGIN), 0, "", 1, 0, 0)
    assert checked(connection, [], rules, AuditHead(0, BEGIN)).broken == 0, "a head of an empty log"


def test_a_sound_log_says_what_is_in_it(connection: sa.Connection) -> None:
    log = Chain().bare().bare().add().add()
    assert checked(connection, log, RULES) == AuditResult(4, log.head, 0, "", 1, 3, 0)
    assert checked(connection, log, CHAIN) == AuditResult(4, log.head, 0, "", 1, 3, 0)
    bare = Chain().bare().bare()
    assert checked(connection, bare, CHAIN) == AuditResult(2, bare.head, 0, "", 1, 0, 0)
    assert bare.head.mac == b""


def test_rows_of_1970_are_as_good_as_others(connection: sa.Connection) -> None:
    log = Chain().add(0).add(0)
    assert checked(connection, log, RULES) == AuditResult(2, log.head, 0, "", 1, 1, 0)
    assert checked(connection, log.bare(0), RULES).rows == 2, "behind them a MAC is asked for, too"


@pytest.mark.parametrize("number", [PAGE - 1, PAGE, PAGE + 1])
def test_a_log_of_pages_is_read_to_its_end(connection: sa.Connection, number: int) -> None:
    log = Chain()
    for _ in range(number):
        log.add()
    assert checked(connection, log, RULES) == AuditResult(number, log.head, 0, "", 1, 1, 0)
    log.rows[-1] = log.rows[-1]._replace(at=NOW + 1)
    assert checked(connection, log, RULES).broken == number


@pytest.mark.parametrize("number", [2, 3, 5])
def test_a_log_of_which_old_rows_went_is_sound(connection: sa.Connection, number: int) -> None:
    log = trimmed(number)
    assert checked(connection, log, RULES) == AuditResult(3, log.head, 0, "", number, number, 0)


# ------------------------------------------------------------------------------------------------------- the chain


def test_the_first_row_is_chained_to_nothing(connection: sa.Connection) -> None:
    """Else rows before it would have been taken away, and the rest numbered again."""
    found = checked(connection, Chain(previous=bytes([1]) * 32).bare(), CHAIN)
    assert found == AuditResult(0, AuditHead(0, BEGIN), 1, "it is not chained to the row before", 1, 0, 0)


def test_what_is_sound_before_a_row_that_is_not(connection: sa.Connection) -> None:
    log = Chain().add().add().add()
    second = AuditHead(2, log.rows[1].hash, log.rows[1].mac or b"")
    log.rows[2] = log.rows[2]._replace(entry=b"{}")
    found = checked(connection, log, RULES)
    assert found == AuditResult(2, second, 3, "it was changed: its hash is another", 1, 1, 0)


def test_a_time_may_be_ahead_by_as_much_as_clocks_differ(connection: sa.Connection) -> None:
    assert checked(connection, Chain().add(NOW + SKEW), RULES).broken == 0
    found = checked(connection, Chain().add().add(NOW + SKEW + 1), RULES)
    assert (found.broken, found.why) == (2, "its time is 300 seconds in the future")
    assert checked(connection, Chain().add(NOW + 2 * SKEW), RULES._replace(now=None)).broken == 0


# --------------------------------------------------------------------------------------------- heads from elsewhere


def test_a_head_that_was_kept_elsewhere_is_still_there(connection: sa.Connection) -> None:
    log = Chain().add().add().add()
    first, second, third = (AuditHead(row.sequence, row.hash, row.mac or b"") for row in log.rows)
    for known in (first, second, third, [first, third], [AuditHead(0, BEGIN), second], second._replace(mac=b"")):
        assert checked(connection, log, RULES, known).broken == 0
    mac = checked(connection, log, RULES, second._replace(mac=bytes(32)))
    assert (mac.broken, mac.rows, mac.why) == (2, 1, "it has another MAC than the row that was kept elsewhere")
    other = checked(connection, log, RULES, [first, second._replace(hash=bytes(32))])
    assert (other.broken, other.rows) == (2, 1)
    assert "it is not the row that was kept elsewhere" in other.why
    both = checked(connection, log, RULES, second._replace(hash=bytes(32), mac=b""))
    assert "it is not the row" in both.why, "also where no MAC was kept"


def test_heads_say_where_a_log_was_cut_off(connection: sa.Connection) -> None:
    log = Chain().add().add()
    found = checked(connection, log, RULES, [AuditHead(5, bytes(32)), AuditHead(3, bytes(32))])
    assert found == AuditResult(2, log.head, 3, "the chain ends before row 5: it was cut off", 1, 1, 0)


def test_a_head_that_was_too_old_and_went(connection: sa.Connection) -> None:
    log = trimmed(4)
    begin = log.rows[0]
    assert checked(connection, log, RULES, AuditHead(4, begin.hash)).broken == 0, "the first row itself is there"
    found = checked(connection, log, RULES, AuditHead(3, bytes(32)))
    assert (found.broken, found.rows, "3, was too old and has gone" in found.why) == (3, 0, True)


# ------------------------------------------------------------------------------------------------------------ MACs


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"mac": None}, "was taken out"),
        ({"mac_key": None}, "was taken out"),
        ({"mac": bytes(31)}, "was taken out"),
        ({"mac": b""}, "was taken out"),
        ({"mac": bytes(33)}, "was taken out"),
        ({"mac": bytes(32)}, "does not fit its key"),
        ({"mac_key": "00000001"}, "does not fit its key"),
        ({"mac_key": "00000009"}, "is of the key '00000009', and the file of keys has 00000002, 00000001"),
    ],
)
@pytest.mark.parametrize("sequence", [1, 2, 3])
def test_a_row_whose_mac_is_not_its_own(
    connection: sa.Connection, sequence: int, fields: dict[str, Any], why: str
) -> None:
    log = Chain().add().add().add()
    log.rows[sequence - 1] = log.rows[sequence - 1]._replace(**fields)
    found = checked(connection, log, RULES)
    assert (found.broken, found.rows) == (sequence, sequence - 1)
    assert why in found.why
    assert checked(connection, log, CHAIN).broken == 0, "without keys nobody asks for MACs"


def test_no_key_is_there(connection: sa.Connection) -> None:
    found = checked(connection, Chain().add(), RULES._replace(keys=NONE))
    assert found.why == "its MAC is of the key '00000002', and the file of keys has none"


def test_times_of_rows_with_macs_do_not_go_back(connection: sa.Connection) -> None:
    found = checked(connection, Chain().add().add().add(NOW - 1), RULES)
    assert (found.broken, found.why) == (3, "its time is before that of the row before")
    assert checked(connection, Chain().bare().bare(NOW - 1).add(), RULES).broken == 0, "they did in earlier releases"
    assert checked(connection, Chain().add().add(NOW - 1), CHAIN).broken == 0


def test_a_log_without_macs_where_there_are_keys(connection: sa.Connection) -> None:
    log = Chain().bare().bare()
    found = checked(connection, log, RULES)
    assert (found.broken, found.rows) == (1, 2)
    assert "no row has a MAC" in found.why
    assert checked(connection, log, RULES._replace(accepted=[range(5, 6), range(2, 3)])).broken == 0
    assert checked(connection, log, RULES._replace(accepted=[range(1, 2)])).broken == 1, "the last one counts"
    keyed = RULES._replace(accepted=[range(1)])
    assert checked(connection, Chain().bare().add(), keyed).broken == 0


# ------------------------------------------------------------------------------------ beside a release before MACs


def test_rows_without_a_mac_are_counted_and_the_first_is_named(connection: sa.Connection) -> None:
    log = Chain().bare().add().bare().bare()
    found = checked(connection, log, SHARED._replace(now=NOW + ROLLOUT))
    assert (found.broken, found.rows, found.keyed, found.without) == (3, 4, 2, 2)
    assert found.why == "it has no MAC, and rows from 2 on have one"
    assert checked(connection, log, SHARED._replace(now=None)).broken == 3, "nobody knows whether there is still time"
    assert checked(connection, log, SHARED._replace(now=NOW + ROLLOUT - 1)).broken == 0
    covered = checked(connection, log.add(NOW + 1), SHARED._replace(now=None))
    assert (covered.broken, covered.without) == (0, 2)
    assert checked(connection, log, CHAIN).without == 0, "without keys nobody asks for MACs"


def test_rows_without_a_mac_are_covered_within_a_day(connection: sa.Connection) -> None:
    rules = SHARED._replace(now=None)
    log = Chain().bare().add().bare()
    in_time, late = Chain().bare().add().bare(), log.add(NOW + ROLLOUT)
    assert checked(connection, in_time.add(NOW + ROLLOUT - 1), rules).broken == 0
    found = checked(connection, late, rules)
    assert (found.broken, found.rows) == (3, 3)
    rules = SHARED._replace(now=NOW + ROLLOUT - 1)
    assert checked(connection, Chain().bare().add().add(NOW + ROLLOUT - 1).bare(), rules).broken == 0
    assert checked(connection, Chain().bare().add().add(NOW + ROLLOUT).bare(), rules).broken == 4


def test_a_log_that_has_begun_with_a_mac_has_no_row_without(connection: sa.Connection) -> None:
    found = checked(connection, Chain().add().bare().add(), SHARED)
    assert (found.broken, found.rows, found.why) == (2, 1, "it has no MAC, and rows from 1 on have one")
    assert checked(connection, Chain().bare().add().bare().add(), SHARED).broken == 0
    assert checked(connection, Chain().bare().add().bare().add(), RULES).broken == 3, "SQLite has one process"


# ------------------------------------------------------------------------------------- what rows say of the log


def test_what_a_gateway_found_is_a_finding_until_it_is_accepted(connection: sa.Connection) -> None:
    log = Chain().add().add(entry={"action": BROKEN, "detail": "row 1 is missing"}).add()
    found = checked(connection, log, RULES)
    assert (found.broken, found.rows, found.why) == (2, 1, "a gateway found there: row 1 is missing")
    assert checked(connection, log, RULES._replace(accepted=[range(1, 2)])).broken == 2
    assert checked(connection, log, RULES._replace(accepted=[range(2, 3)])).rows == 3
    bare = Chain().bare(entry={"action": BROKEN}).add(entry={"action": KEYED})
    assert checked(connection, bare, RULES).broken == 0, "anybody could have written that"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"first": None}, "it does not say which rows went"),
        ({"last": "4"}, "it does not say which rows went"),
        ({"newest": None}, "it does not say which rows went"),
        ({"rows": 2}, "it says that other rows went"),
        ({"rows": 4}, "it says that other rows went"),
        ({"anchor": 5}, "it says that other rows went"),
        ({"anchor": 3, "rows": 3}, "it says that other rows went"),
        ({"newest": NOW - DAYS_MIN * DAY + 1}, "30.0 days old, and 30 is the least"),
        ({"days": DAYS_MIN - 1}, "rows went after 29 days, and retention.audit_days is 30"),
        ({"days": "30"}, "'30' days, and 30 is the least"),
    ],
)
def test_a_row_with_a_mac_says_that_rows_went_that_may_not(
    connection: sa.Connection, said: dict[str, Any], why: str
) -> None:
    """A gateway whose settings or whose ledger somebody has changed, or another with the same key."""
    log = trimmed(4, **said)
    found = checked(connection, log, RULES)
    assert (found.broken, found.rows, found.first) == (log.head.sequence, 2, 4)
    assert why in found.why


@pytest.mark.parametrize("days", [DAYS_MIN - 1, DAYS_MIN, None])
def test_rows_may_go_when_they_are_as_old_as_is_configured(connection: sa.Connection, days: int | None) -> None:
    assert checked(connection, trimmed(4), RULES._replace(days=days)).broken == 0
    young = trimmed(4, age=DAYS_MIN * DAY - 1)
    assert checked(connection, young, RULES._replace(days=None)).broken == young.head.sequence
    fewer = checked(connection, trimmed(4), RULES._replace(days=DAYS_MIN + 1))
    assert fewer.why == "rows went after 30 days, and retention.audit_days is 31"
    accepted = RULES._replace(days=DAYS_MIN + 1, accepted=[range(6, 7)])
    assert checked(connection, trimmed(4), accepted).broken == 0


def twice(first: int, by: AuditKeys | None = BOTH) -> Chain:
    """A log of which rows went, and later those from ``first`` to 4."""
    old = NOW - DAYS_MIN * DAY
    log = Chain()
    for _ in range(5):
        log.add(old, by=by)
    said = {"action": TRIMMED, "anchor": 3, "days": DAYS_MIN, "rows": 2, "first": 1, "last": 2, "newest": old}
    log.add(NOW, {**said, "digest": log.rows[2].previous.hex(), "mac": (log.rows[1].mac or b"").hex()}, by)
    said |= {"anchor": 5, "rows": 5 - first, "first": first, "last": 4}
    log.add(NOW, {**said, "digest": log.rows[4].previous.hex(), "mac": (log.rows[3].mac or b"").hex()})
    log.rows = log.rows[4:]
    return log


def test_rows_went_besides_those_that_are_on_record(connection: sa.Connection) -> None:
    assert checked(connection, twice(3), RULES) == AuditResult(3, twice(3).head, 0, "", 5, 5, 0)
    found = checked(connection, twice(4), RULES)
    assert (found.broken, found.why) == (7, "rows went besides those that are on record")
    assert checked(connection, twice(2), RULES).broken == 7
    assert checked(connection, twice(4, None), RULES).broken == 0, "what an earlier release said counts for little"


# ------------------------------------------------------------------------------------------- with which row it begins


def test_a_log_that_begins_later_and_nothing_says_why(connection: sa.Connection) -> None:
    for begin in (2, 5):
        log = Chain(begin, bytes([7]) * 32).add().add()
        for rules in (CHAIN, RULES):
            found = checked(connection, log, rules)
            assert found == AuditResult(0, AuditHead(0, BEGIN), 1, "row 1 is missing", begin, begin, 0)


def test_a_log_that_begins_elsewhere_than_is_on_record(connection: sa.Connection) -> None:
    log = trimmed(4)
    found = checked(connection, log.rows[1:], RULES)
    assert (found.broken, found.first, found.why) == (1, 5, "row 1 is missing")
    whole = [*Chain().add(NOW - DAYS_MIN * DAY).add(NOW - DAYS_MIN * DAY).add(NOW - DAYS_MIN * DAY).rows, *log.rows]
    found = checked(connection, whole, RULES)
    assert (found.broken, found.rows, found.why) == (1, 6, "rows before 4 had gone, and are there again")
    assert checked(connection, whole, CHAIN).broken == 0, "without keys nobody knows who has said so"


def test_what_somebody_without_a_key_says_of_a_log_that_is_whole(connection: sa.Connection) -> None:
    log = Chain().bare(entry={"action": TRIMMED, "anchor": 9}).add()
    assert checked(connection, log, RULES).broken == 0


def test_rows_that_went_before_their_time_as_an_earlier_release_said_it(connection: sa.Connection) -> None:
    """Only the first row that is left tells how old they were."""
    for age, broken in ((DAYS_MIN * DAY, 0), (DAYS_MIN * DAY - 1, 1)):
        log = Chain(5, bytes([7]) * 32).bare(NOW - age)
        log.bare(NOW, {"action": TRIMMED, "anchor": 5, "days": DAYS_MIN}).add()
        found = checked(connection, log, RULES)
        assert (found.broken, found.first) == (broken, 5)
        assert ("rows up to 5 went before their time (30.0 days old" in found.why) is bool(broken)
        fewer = checked(connection, log, RULES._replace(days=31))
        assert fewer.broken == 1
        assert "(rows went after 30 days, and retention.audit_days is 31)" in fewer.why


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"digest": bytes(32).hex()}, "it does not follow the rows that went"),
        ({"digest": None}, "it does not follow the rows that went"),
        ({"mac": bytes([3] * 32).hex()}, "its MAC does not fit its key"),
        ({"mac": None}, "its MAC does not fit its key"),
    ],
)
def test_the_first_row_is_the_one_that_is_on_record(
    connection: sa.Connection, fields: dict[str, Any], why: str
) -> None:
    found = checked(connection, trimmed(4, **fields), RULES)
    assert (found.broken, found.rows, found.first) == (4, 3, 4)
    assert why in found.why
    assert checked(connection, trimmed(4, **fields), CHAIN).broken == 0


def test_a_first_row_that_has_no_mac_that_can_be_checked(connection: sa.Connection) -> None:
    """It was written by an earlier release, or its key is gone and somebody knows why; the row before may have been."""
    old = NOW - DAYS_MIN * DAY
    by_earlier = trimmed(4, before=Chain().bare(old).bare(old).bare(old).bare(old))
    assert checked(connection, by_earlier, RULES).broken == 0
    behind_earlier = trimmed(4, before=Chain().bare(old).bare(old).bare(old).add(old))
    assert checked(connection, behind_earlier, RULES).broken == 0
    lost = AuditKeys(keys(9))
    of_lost = trimmed(4, before=Chain().add(old, by=lost).add(old, by=lost).add(old, by=lost).add(old, by=lost))
    assert checked(connection, of_lost, RULES).broken == 4
    assert checked(connection, of_lost, RULES._replace(accepted=[range(4, 5)])).broken == 0
