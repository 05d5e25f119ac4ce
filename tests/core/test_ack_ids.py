"""Opaque, unforgeable names of leases."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gateway.core.ack_ids import LENGTH, AckIds, ForeignAckId, InvalidAckId, load_key
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
