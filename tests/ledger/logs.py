"""Short ways to say what goes into the log of messages."""

from __future__ import annotations

import hashlib
from typing import Any

from gateway.ledger import Ledger, Log, Spooled
from gateway.logs.columns import fields
from tests.ledger.conftest import NOW, new_id


def spooled(**given: Any) -> Spooled:
    """A message that a tap has taken."""
    body = given.get("body", b"hello")
    values: dict[str, Any] = {
        "message_id": new_id(),
        "tap": "orders",
        "at": NOW,
        "broker": "rabbit",
        "version": "0-9-1",
        "queue": "new",
        "exchange": "orders",
        "routing_key": "eu.new",
        "redelivered": False,
        "origin_id": "",
        "properties": b'{"content_type":"text/plain"}',
        "body": body,
        "sha256": hashlib.sha256(body).digest(),
    }
    return Spooled(**(values | given))


async def heads(ledger: Ledger, log: Log = Log.MESSAGES) -> dict[int, tuple[int, int]]:
    """Floor and head of each shard."""
    return {each.shard: (each.floor, each.head) for each in await ledger.log.extents(log)}


async def rows(ledger: Ledger, log: Log = Log.MESSAGES, shard: int | None = None, **where: list[str]) -> list[Any]:
    """All rows that can be read of a shard, or of the only one."""
    extents = await ledger.log.extents(log)
    (extent,) = [each for each in extents if shard in (None, each.shard)]
    return await ledger.log.rows(log, extent.shard, extent.floor - 1, extent.head, fields(log), where)
