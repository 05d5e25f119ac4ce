"""The reserve of disk: nothing new is promised before nothing can be settled."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.errors import LedgerFull, LedgerUnavailable
from gateway.ledger.db import disk as module
from gateway.ledger.db.disk import MIB, Disk, reserve_of
from gateway.ledger.db.engine import unavailable


def test_the_reserve_of_a_small_disk_is_small() -> None:
    assert reserve_of(256 * MIB, 1 << 40) == 256 * MIB
    assert reserve_of(256 * MIB, 100 * MIB) == 5 * MIB
    assert reserve_of(0, 1 << 40) == 0


def test_a_disk_that_is_low(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    free = 300 * MIB
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(total=1 << 40, free=free))
    disk = Disk(tmp_path / "ledger.db", 256 * MIB)
    disk.look()
    disk.check()
    assert (disk.is_low, disk.reason) == (False, "")
    free = 200 * MIB
    disk.look()
    with pytest.raises(LedgerFull, match=r"less than 256.0 MiB \(ledger.disk_reserve\) of its disk are free"):
        disk.check()
    free = 300 * MIB
    disk.look()
    disk.check(20 * MIB)
    with pytest.raises(LedgerFull, match=r"does not take 20,971,520 bytes: with them, less than 256.0 MiB"):
        disk.check(20 * MIB)
    disk.check()
    disk.look()
    disk.check(20 * MIB)
    free = 200 * MIB
    disk.look()
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: (_ for _ in ()).throw(OSError("gone")))
    disk.look()
    assert disk.is_low


def test_postgresql_is_not_looked_at() -> None:
    disk = Disk(None, 256 * MIB)
    disk.look()
    disk.check(1 << 40)
    assert (disk.is_watched, disk.is_low, disk.reserve_bytes) == (False, False, 0)


def test_a_full_database_says_so() -> None:
    class Error(Exception):
        sqlstate = "53100"

    full: Any = SimpleNamespace(orig=Error("could not extend file"))
    assert isinstance(unavailable(full), LedgerFull)
    other: Any = SimpleNamespace(orig=RuntimeError("gone"))
    assert not isinstance(unavailable(other), LedgerFull)
    assert isinstance(LedgerFull("x"), LedgerUnavailable)


async def test_the_ledger_looks_every_second(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gateway.config import LedgerSettings
    from gateway.ledger import Ledger
    from tests.ledgers import sqlite_ledger

    ledger = await Ledger.open(sqlite_ledger(tmp_path), LedgerSettings(), owner="test")
    try:
        assert ledger.takes()[0]
        assert ledger.disk.reserve_bytes > 0
        monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(total=1 << 40, free=MIB))
        async with asyncio.timeout(5):
            while ledger.takes()[0]:
                await asyncio.sleep(0.05)
        assert ledger.ready()[0]
        assert "ledger.disk_reserve" in ledger.takes()[1]
    finally:
        await ledger.close()
