"""Rows of the ledger whose body cannot be read: they are dead, and nobody waits for them."""

from __future__ import annotations

import asyncio

from gateway.ledger import EventKind
from gateway.ledger.pending.owed import BacklogStatus, Owed
from tests.webhooks.test_push_in_time import in_a_world
from tests.webhooks.virtual import World


@in_a_world
async def test_a_row_that_cannot_be_read_is_dead_after_one_attempt(world: World) -> None:
    name = world.parts.ids()
    await world.ledger.store([Owed(id=name, message_id=name, subscription="s", at=1, payload=b"garbage", size=7)])
    world.receivers.put("e")
    await world.push("s", "e", lease="ledger")
    world.broker.put("s", b"good")
    await asyncio.sleep(3_600)
    assert world.receivers.bodies() == [b"good"]
    (row,) = world.ledger.rows.values()
    assert (row.status, row.attempt, row.reason["code"]) == (BacklogStatus.DEAD, 1, "damaged")
    (entry,) = [entry for entry in world.ledger.entries if entry.kind is EventKind.DEAD]
    assert entry.detail is not None
    assert (entry.message_id, entry.detail["code"]) == (name, "damaged")
