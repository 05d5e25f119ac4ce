"""The ledger when the n-th write fails, for every n: each call is written whole, once, or not at all and says so."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.config import LedgerSettings
from gateway.errors import LedgerUnavailable
from gateway.ledger import Ledger, New, OutboxEntry
from tests.ledger.conftest import intent, new_id, published

STEP = 1_030
"""Octets by which the limit grows: a quarter of a page and a bit, so that it falls at any place of a write."""


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    ledger = await Ledger.open(f"sqlite:///{tmp_path}/ledger.db", LedgerSettings(), owner="test", migrate=True)
    yield ledger
    await ledger.close()


@contextlib.contextmanager
def file_size_limit(octets: int) -> Iterator[None]:
    """No file grows beyond so many octets: writes fail at that place with EFBIG. Python ignores the signal."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (octets, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def events(path: Path) -> list[tuple[bytes, str, int]]:
    """Message, kind and sequence number of every event, as another reader of the file sees them."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT message_id, kind, sequence FROM events ORDER BY sequence").fetchall()


async def healthy(ledger: Ledger) -> None:
    """Wait until it has found out by itself that it can be written."""
    async with asyncio.timeout(10):
        while not ledger.healthy:
            await asyncio.sleep(0.05)


async def test_the_nth_write_fails(ledger: Ledger, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The write-ahead log may not grow beyond n octets more, for n up to more than a call needs."""
    path, wal = tmp_path / "ledger.db", tmp_path / "ledger.db-wal"
    written: list[bytes] = []
    failures = successes = left = 0
    caplog.set_level(logging.WARNING)
    number = 0
    while successes < 3:
        entries = [entry for _ in range(20) for entry in published(new_id())]
        with file_size_limit(wal.stat().st_size + number * STEP):
            try:
                await ledger.record(entries)
            except LedgerUnavailable:
                failures += 1
            else:
                successes += 1
                written += [entry.message_id for entry in entries]
        if not ledger.healthy:
            found = events(path)
            assert len(found) == len(written), "what failed is not there, and what was promised is"
            try:
                await ledger.record(entries)
            except LedgerUnavailable:  # the first to try may find what is left of the failure
                left += 1
            else:
                written += [entry.message_id for entry in entries]
        number += 1
        assert number < 200
    assert failures > 5
    assert len(caplog.records) <= failures + left
    await healthy(ledger)
    found = events(path)
    assert [message_id for message_id, _, _ in found] == written
    assert [sequence for _, _, sequence in found] == list(range(1, len(found) + 1))


async def test_the_nth_write_of_a_claim_fails(ledger: Ledger, tmp_path: Path) -> None:
    """A key is claimed with everything that it promises, or free."""
    wal = tmp_path / "ledger.db-wal"
    failures = number = 0
    while number < 40:
        key = f"key-{number}"
        intents: list[OutboxEntry] = [intent(new_id(), payload=bytes(3_000))]
        with file_size_limit(wal.stat().st_size + number * STEP):
            try:
                claim = await ledger.claim_key("shop", key, b"f", intents)
            except LedgerUnavailable:
                failures += 1
                claim = None
        if claim is None:
            claim = await ledger.claim_key("shop", key, b"f", intents)
        assert claim == New()
        await ledger.free_key("shop", key)
        number += 1
    assert failures > 5
