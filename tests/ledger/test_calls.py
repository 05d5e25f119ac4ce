"""How much of a group a call is."""

from __future__ import annotations

import asyncio

from gateway.ledger import EventKind
from gateway.ledger.writing.calls import Claim, Record, SettleKey, Task
from tests.ledger.conftest import entry, intent, new_id, published


async def test_rows() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    one = new_id()
    assert Record(future, published(one)).rows == 2
    assert Claim(future, "shop", "k", b"f", [intent(one), intent(new_id())]).rows == 3
    assert SettleKey(future, "shop", "k", "done", [entry(one, EventKind.CONFIRMED)]).rows == 2
    assert Task(future, lambda connection, lease: None).rows == 1
    future.cancel()
