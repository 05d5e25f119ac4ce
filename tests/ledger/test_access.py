"""Keys of callers and the audit log, on both databases, and by several processes at once."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.errors import StateError
from gateway.ledger.access.api_keys import KEPT, ApiKey
from gateway.ledger.access.audit import AuditHead
from gateway.ledger.access.audit_check import verify
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


async def test_no_change_brings_a_version_back(open_ledger: Open) -> None:
    """Not even where rows go with it that are as many, and were changed as often, as those that come."""
    keys = (await open_ledger()).api_keys
    seen: list[tuple[int, ...]] = []

    async def changed() -> None:
        version = await keys.version()
        assert version[0] > max((each[0] for each in seen), default=0)
        seen.append(version)

    later = NOW + KEPT + 1_000
    await keys.add(key(1, "gone", expires_at=NOW + 1), NOW, {})
    await changed()
    await keys.add(key(2, "new"), later, {})  # key 1 goes
    await changed()
    await keys.revoke("0002", later, {})
    await changed()
    await keys.add(key(3, "leaked"), later, {})
    await changed()
    again = later + KEPT + 1_000
    await keys.revoke("0003", again, {})
    await changed()
    await keys.add(key(4, "new"), again, {})  # key 2 goes
    await changed()
    await keys.replace("0004", key(5, ""), again + 60, again, {})
    await changed()
    assert [each.id for each in (await keys.page(None, 10))[0]] == ["0003", "0004", "0005"]


@ON_POSTGRESQL
async def test_changes_at_once_have_numbers_of_their_own(open_ledger: Open) -> None:
    rows = [(await open_ledger(f"process {number}")).api_keys for number in range(3)]
    await asyncio.gather(*(rows[n % 3].add(key(n, f"client {n}"), NOW, {}) for n in range(9)))
    assert (await rows[0].version())[0] == 9
    adding = [rows[n % 3].add(key(100 + n, f"other {n}"), NOW, {}) for n in range(9)]
    await asyncio.gather(*adding, *(rows[n % 3].revoke(f"{n:04}", NOW, {}) for n in range(9)))
    assert (await rows[0].version())[0] == 27


@ON_POSTGRESQL
async def test_processes_make_one_chain_and_two_keys(open_ledger: Open) -> None:
    ledgers = [await open_ledger(f"process {number}") for number in range(3)]

    async def write(number: int) -> AuditHead:
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
