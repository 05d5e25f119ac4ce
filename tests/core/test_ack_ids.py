"""Opaque, unforgeable names of leases."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gateway.core.leasing.ack_ids import (
    COUNT_MAX,
    LEDGER_LENGTH,
    LENGTH,
    AckIds,
    ForeignAckId,
    InvalidAckId,
    load_key,
    of_ledger,
)
from gateway.errors import ConfigurationError

KEY = b"k" * 32


def test_there_and_back() -> None:
    ids = AckIds(KEY)
    mark = ids.mark("billing")
    for number in (1, 255, 1 << 40):
        text = ids.make(number, mark)
        assert len(text) == LENGTH
        assert ids.read(text, mark) == number


def test_every_changed_character_is_noticed() -> None:
    ids = AckIds(KEY)
    mark = ids.mark("billing")
    text = ids.make(7, mark)
    for index in range(LENGTH - 2):  # the last character before the padding holds two bits that mean nothing
        changed = text[:index] + ("A" if text[index] != "A" else "B") + text[index + 1 :]
        with pytest.raises(InvalidAckId):
            ids.read(changed, mark)


@pytest.mark.parametrize("text", ["", "x", "é" * LENGTH, "=" * LENGTH, "A" * LENGTH, "A" * 10_000, "\udcff" * LENGTH])
def test_garbage_is_invalid(text: str) -> None:
    ids = AckIds(KEY)
    with pytest.raises(InvalidAckId):
        ids.read(text, ids.mark("billing"))


def test_of_another_subscription_key_or_process() -> None:
    ids = AckIds(KEY)
    text = ids.make(7, ids.mark("billing"))
    with pytest.raises(InvalidAckId):
        ids.read(text, ids.mark("shipping"))
    with pytest.raises(InvalidAckId):
        AckIds(b"x" * 32).read(text, ids.mark("billing"))
    with pytest.raises(ForeignAckId):
        AckIds(KEY).read(text, ids.mark("billing"))


def test_the_key_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "ack-ids.key"
    key = load_key(path)
    assert len(key) == 32
    assert load_key(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_damaged_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ack-ids.key"
    path.write_bytes(b"short")
    with pytest.raises(ConfigurationError, match="5 octets"):
        load_key(path)


DELIVERY, MESSAGE = bytes(range(16)), bytes(range(16, 32))


def test_leases_of_the_ledger_are_good_at_every_replica() -> None:
    here, there = AckIds(KEY), AckIds(KEY)
    mark = here.mark("billing")
    for lease, attempt in ((1, 1), (7, 3), (COUNT_MAX, COUNT_MAX)):
        text = here.make_ledger(DELIVERY, MESSAGE, lease, attempt, mark)
        assert (len(text), of_ledger(text)) == (LEDGER_LENGTH, True)
        assert there.read_ledger(text, mark) == (DELIVERY, MESSAGE, lease, attempt)
    assert here.read_ledger(here.make_ledger(DELIVERY, MESSAGE, 1 << 40, 1, mark), mark).lease == COUNT_MAX


def test_leases_of_the_ledger_are_sealed() -> None:
    ids = AckIds(KEY)
    mark = ids.mark("billing")
    text = ids.make_ledger(DELIVERY, MESSAGE, 2, 1, mark)
    for index in range(LEDGER_LENGTH - 2):
        changed = text[:index] + ("A" if text[index] != "A" else "B") + text[index + 1 :]
        with pytest.raises(InvalidAckId):
            ids.read_ledger(changed, mark)
    for other, of in ((AckIds(b"x" * 32), mark), (ids, ids.mark("shipping"))):
        with pytest.raises(InvalidAckId):
            other.read_ledger(text, of)


@pytest.mark.parametrize("text", ["", "x", "=" * LEDGER_LENGTH, "A" * LEDGER_LENGTH, "\udcff" * LEDGER_LENGTH])
def test_garbage_is_no_lease_of_the_ledger(text: str) -> None:
    ids = AckIds(KEY)
    with pytest.raises(InvalidAckId):
        ids.read_ledger(text, ids.mark("billing"))


def test_one_form_is_not_taken_for_the_other() -> None:
    ids = AckIds(KEY)
    mark = ids.mark("billing")
    assert not of_ledger(ids.make(7, mark))
    with pytest.raises(InvalidAckId):
        ids.read_ledger(ids.make(7, mark), mark)
    with pytest.raises(InvalidAckId):
        ids.read(ids.make_ledger(DELIVERY, MESSAGE, 1, 1, mark), mark)


def test_a_foreign_ack_id_names_its_owner() -> None:
    ids = AckIds(KEY, b"owner--1")
    with pytest.raises(ForeignAckId) as raised:
        AckIds(KEY, b"owner--2").read(ids.make(7, ids.mark("billing")), ids.mark("billing"))
    assert raised.value.owner == b"owner--1"
