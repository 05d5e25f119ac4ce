"""Keys of callers and the audit log, on both databases, and by several processes at once."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.errors import StateError
from gateway.ledger.api_keys import ApiKey
from gateway.ledger.audit import Head, verify
from tests.ledger.conftest import NOW, ON_POSTGRESQL, Open


def key(number: int, client: str = "shop", **fields: Any) -> ApiKey:
    digest = number.to_bytes(32)
    return ApiKey(f"{number:04}", client, digest, "amqpgw_live_abcd", ("history",), "root", NOW, 0)._replace(**fields)


async def test_a_change_and_its_row_are_one(open_ledger: Open) -> None:
    ledger = await open_ledger()
    await ledger.api_keys.add(key(1), NOW, {"action": "keys.create"})
    await ledger.api_keys.add(key(2), NOW, {"action": "keys.create"})
    try:
        await ledger.api_keys.add(key(3), NOW, {"action": "keys.create"})
    except StateError:
        pass
    else:
        raise AssertionError("a third live key")
    assert await ledger.api_keys.get("0001") == key(1)
    before = await ledger.api_keys.version()
    await ledger.api_keys.used([("0001", NOW + 5)])
    assert await ledger.api_keys.version() == before
    revoked = await ledger.api_keys.revoke("0001", NOW + 1, {"action": "keys.revoke"})
    assert (revoked.revoked_at, revoked.last_used_at) == (NOW + 1, NOW + 5)
    assert await ledger.api_keys.version() != before
    new = await ledger.api_keys.replace("0002", key(4, ""), NOW + 60, NOW + 2, {"action": "keys.rotate"})
    assert (new.client, sorted(each.id for each in await ledger.api_keys.live(NOW + 2))) == ("shop", ["0002", "0004"])
    assert [each.id for each in await ledger.api_keys.live(NOW + 60)] == ["0004"]
    found = await ledger.read(verify)
    assert (found.rows, found.broken) == (4, 0)


@ON_POSTGRESQL
async def test_processes_make_one_chain_and_two_keys(open_ledger: Open) -> None:
    ledgers = [await open_ledger(f"process {number}") for number in range(3)]

    async def write(number: int) -> Head:
        return await ledgers[number % 3].audit.append([(NOW, {"action": "a", "number": number})])

    async def add(number: int) -> bool:
        try:
            await ledgers[number % 3].api_keys.add(key(number), NOW, {"action": "keys.create"})
        except StateError:
            return False
        return True

    heads = await asyncio.gather(*(write(number) for number in range(60)))
    assert sorted(head.sequence for head in heads) == list(range(1, 61))
    assert sum(await asyncio.gather(*(add(number) for number in range(1, 13)))) == 2
    found = await ledgers[0].read(verify)
    assert (found.rows, found.broken) == (62, 0)
