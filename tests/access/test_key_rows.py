"""Rows of API keys that somebody has changed in the database, on both databases."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.access.keys import StoredKeys, digest_of, new_key
from gateway.errors import StateError
from gateway.ledger import Ledger
from gateway.ledger.access.api_keys import KeyMacs
from gateway.ledger.access.audit import rows
from gateway.ledger.db.models import api_keys
from gateway.webhooks.settings import resealing
from gateway.webhooks.settings.secrets import Seals
from tests.ledger.conftest import open_ledger, url
from tests.test_telemetry import lines

__all__ = ["lines", "open_ledger", "url"]

OLD, NEW = {"old": bytes(32)}, {"new": bytes(range(32))}


@pytest.fixture
async def ledger(open_ledger: Any) -> Ledger:
    found: Ledger = await open_ledger()
    found.api_keys.macs = KeyMacs(OLD)
    return found


@pytest.fixture
async def stored(ledger: Ledger) -> AsyncIterator[StoredKeys]:
    stored = StoredKeys(ledger)
    await stored.start()
    yield stored
    await stored.close()


async def change(ledger: Ledger, key_id: str, **values: Any) -> None:
    """Write to the database as somebody who is no gateway."""
    this = sa.update(api_keys).where(api_keys.c.id == key_id).values(**values)
    await ledger.task(lambda connection, _: connection.execute(this) and None)


async def opens(ledger: Ledger, secret: str, **settings: Any) -> bool:
    """Whether a key opens anything in a process that starts now."""
    stored = StoredKeys(ledger, **settings)
    await stored.start()
    await stored.close()
    return stored.find(secret.encode()) is not None


FAR = 4_000_000_000_000_000


@pytest.mark.parametrize(
    "values",
    [
        {"scopes": b'["admin"]'}, {"scopes": b'["history","admin"]'}, {"client": "root"}, {"expires_at": FAR},
        {"created_by": "somebody"}, {"created_at": 1}, {"hint": "x"}, {"mac": bytes(32)}, {"mac": b""},
        {"mac_key": "new"}, {"mac_key": ""}, {"mac": None, "scopes": b'["admin"]'}, {"mac_key": None},
    ],
    ids=str,
)  # fmt: skip
async def test_a_changed_row_opens_nothing(
    stored: StoredKeys, ledger: Ledger, lines: io.StringIO, values: dict[str, Any]
) -> None:
    key, secret = await stored.create("shop", ["history"], brokers=(), by="me", seconds=60)
    other, fine = await stored.create("other", ["history"], brokers=(), by="me")
    assert stored.find(secret.encode())
    await change(ledger, key.id, **values)
    await stored.refresh(changed=True)
    assert stored.find(secret.encode()) is None
    assert stored.find(fine.encode())
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert {line["key"] for line in logged if line["event"] == "access.key_refused"} == {key.id}
    with pytest.raises(StateError, match="does not count"):
        await stored.rotate(key.id, by="me")
    assert not await opens(ledger, secret, seal_old=False)
    assert (await stored.rotate(other.id, by="me"))[0].client == "other"


async def test_another_digest_makes_no_key(stored: StoredKeys, ledger: Ledger) -> None:
    key, _ = await stored.create("shop", ["admin"], brokers=(), by="me")
    mine = new_key()
    await change(ledger, key.id, digest=digest_of(mine))
    await stored.refresh(changed=True)
    assert stored.find(mine.encode()) is None


async def test_a_revoked_key_stays_so(stored: StoredKeys, ledger: Ledger) -> None:
    key, secret = await stored.create("shop", ["admin"], brokers=(), by="me")
    await stored.revoke(key.id, by="me")
    await change(ledger, key.id, revoked_at=0)
    await stored.refresh(changed=True)
    assert stored.find(secret.encode()) is None
    assert not await opens(ledger, secret)


async def test_rows_of_a_release_before_are_sealed_at_the_start(stored: StoredKeys, ledger: Ledger) -> None:
    """While a process runs they do not count: it has sealed all that there were."""
    key, secret = await stored.create("shop", ["admin"], brokers=(), by="me")
    await change(ledger, key.id, mac=None, mac_key=None)
    await stored.refresh(changed=True)
    assert stored.find(secret.encode()) is None
    assert not await opens(ledger, secret, seal_old=False)
    assert await opens(ledger, secret)
    await stored.refresh()
    assert stored.find(secret.encode()), "others see it, too"
    found = await ledger.read(lambda connection: [row.document() for row in rows(connection, 0)])
    told = [entry for entry in found if entry["action"] == "keys.seal"]
    assert [(entry["sealed"], entry["keys"]) for entry in told] == [(1, [f"{key.id} shop"])]
    assert await opens(ledger, secret)
    later = await ledger.read(lambda connection: [row.document() for row in rows(connection, 0)])
    assert later == found, "once is enough"


async def test_changes_of_the_gateway_are_sealed(stored: StoredKeys, ledger: Ledger) -> None:
    key, secret = await stored.create("shop", ["admin"], brokers=(), by="me")
    new, other = await stored.rotate(key.id, by="me", overlap=60)
    assert stored.find(secret.encode())
    assert stored.find(other.encode())
    assert await opens(ledger, secret, seal_old=False)
    await stored.revoke(new.id, by="me")
    for each in (await stored.page(None, 10))[0]:
        assert ledger.api_keys.macs.refusal_of(each) == ""


async def test_keys_of_the_macs_are_replaced(stored: StoredKeys, ledger: Ledger) -> None:
    _, secret = await stored.create("shop", ["admin"], brokers=(), by="me")
    wrong, _ = await stored.create("wrong", ["history"], brokers=(), by="me")
    await change(ledger, wrong.id, scopes=b'["admin"]')
    ledger.api_keys.macs = KeyMacs(NEW | OLD)
    assert await opens(ledger, secret)
    assert (await ledger.read(resealing.used))["old"] == 2
    done, failed = await resealing.rotate(ledger, Seals([bytes(32)]))
    assert (done, failed) == (1, [f"API key {wrong.id}: its row does not count"])
    assert await ledger.read(resealing.used) == {"new": 1, "old": 1}
    ledger.api_keys.macs = KeyMacs(NEW)
    assert await opens(ledger, secret, seal_old=False)
    ledger.api_keys.macs = KeyMacs(OLD)
    assert not await opens(ledger, secret)


async def test_without_a_key_that_all_processes_have_no_row_has_a_mac(stored: StoredKeys, ledger: Ledger) -> None:
    ledger.api_keys.macs = KeyMacs()
    key, secret = await stored.create("shop", ["admin"], brokers=(), by="me")
    assert (key.mac, (await stored.get(key.id)).mac) == (None, None)
    assert await opens(ledger, secret)
    assert await ledger.api_keys.reseal() == (0, [])
