"""A gateway over a fake broker and a real ledger on SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config import LedgerSettings
from gateway.core import Gateway
from gateway.ledger import Ledger
from gateway.observing.telemetry import Metrics
from tests.audited import ON_PURPOSE, missing
from tests.core.fakes import FakeUpstream
from tests.ledgers import sqlite_ledger


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    ledger = await Ledger.open(sqlite_ledger(tmp_path), LedgerSettings(), owner="test")
    yield ledger
    await ledger.close()


@pytest.fixture
async def upstream() -> FakeUpstream:
    upstream = FakeUpstream()
    await upstream.declare_queue("orders")
    return upstream


@pytest.fixture
async def gateway(ledger: Ledger, upstream: Any) -> AsyncIterator[Gateway]:
    ON_PURPOSE.clear()
    gateway = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32, confirm_timeout=5.0)
    await gateway.start()
    yield gateway
    await gateway.close(1.0)
    if not ledger.ready()[0]:
        return
    lost = {each.message_id for each in await missing(ledger)}
    assert lost == ON_PURPOSE, "everything else that was promised is owed, or has ended"
