"""Rows of API keys: which of them live, how many there may be, their MACs, and the audit log that goes with each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.errors import NoSuchResource, StateError
from gateway.ledger.access import api_keys as module
from gateway.ledger.access.api_keys import (
    ADVISORY_LOCK,
    KEPT,
    LIVE_MAX,
    NAMED_MAX,
    ApiKeys,
    KeyMacs,
    mac_keys,
)
from gateway.ledger.access.audit import Audit
from gateway.ledger.db.models import api_keys, audit_log
from tests.ledger.audit_attacks import stored
from tests.ledger.conftest import NOW
from tests.ledger.test_access import key
from tests.ledger.test_audit import Direct, Noted

OLD, NEW = {"old": bytes(32)}, {"new": bytes(range(32)), "old": bytes(32)}
CREATED = {"action": "keys.create"}


class Ledger(Direct):
    """A ledger with nothing but keys and the audit log, on one connection."""

    def __init__(self, connection: sa.Connection) -> None:
        super().__init__(connection)
        self.tasks = 0
        this: Any = self
        self.audit = Audit(this, {}, shared=False)
        self.keys = ApiKeys(this)

    async def task(self, run: Any) -> Any:
        self.tasks += 1
        return await super().task(run)

    @property
    def said(self) -> list[dict[str, Any]]:
        """What is in the audit log."""
        return [row.document() for row in stored(self.connection)]

    async def ids(self) -> list[str]:
        return [each.id for each in (await self.keys.page(None, 1_000))[0]]


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        api_keys.create(connection)
        audit_log.create(connection)
        yield Ledger(connection)
    engine.dispose()


# ---------------------------------------------------------------------------------------------------- which live


@pytest.mark.parametrize(
    ("fields", "is_live"),
    [
        ({}, True),
        ({"expires_at": NOW + 1}, True),
        ({"expires_at": NOW}, False),
        ({"expires_at": 1}, False),
        ({"revoked_at": 1}, False),
        ({"revoked_at": NOW, "expires_at": NOW + 1}, False),
    ],
)
async def test_a_key_lives_until_it_ends_or_is_revoked(ledger: Ledger, fields: dict[str, Any], is_live: bool) -> None:
    one = key(1, **fields)
    await ledger.keys.add(one, NOW - 10, CREATED)
    assert one.live(NOW) is is_live
    assert await ledger.keys.live(NOW) == [one] * is_live
    assert await ledger.keys.get("0001") == one
    with pytest.raises(NoSuchResource, match="0002"):
        await ledger.keys.get("0002")


async def test_a_client_has_so_many_live_keys(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    await ledger.keys.add(key(0, "other"), NOW, CREATED)
    await ledger.keys.add(key(1, expires_at=NOW), NOW, CREATED)
    for number in range(2, 2 + LIVE_MAX):
        await ledger.keys.add(key(number), NOW, CREATED)
    with pytest.raises(StateError, match="the client 'shop' has 2 live keys, and may have 2: revoke one first"):
        await ledger.keys.add(key(9), NOW, CREATED)
    await ledger.keys.add(key(10, "other"), NOW, CREATED)
    monkeypatch.setattr(module, "KEYS_MAX", 5)
    await ledger.keys.add(key(11, "third"), NOW, CREATED)
    with pytest.raises(StateError, match="there are 5 live keys, and may be 5: revoke some first"):
        await ledger.keys.add(key(12, "fourth"), NOW, CREATED)
    assert len(await ledger.ids()) == 6
    assert ledger.said == [CREATED] * 6, "what was refused changed nothing"


@pytest.mark.parametrize("field", ["revoked_at", "expires_at"])
async def test_a_dead_key_is_listed_for_so_long(ledger: Ledger, field: str) -> None:
    end = NOW - KEPT
    times = (0, 1, end - 1, end, end + 1)
    for number, at in enumerate(times):
        await ledger.keys.add(key(number, f"client {number}", **{field: at}), end, CREATED)
    assert await ledger.ids() == ["0000", "0002", "0003", "0004"], "what ended in 1970 went with the next"
    await ledger.keys.add(key(9), NOW, CREATED)
    assert await ledger.ids() == ["0000", "0003", "0004", "0009"]


# ------------------------------------------------------------------------------------------------------- changes


async def test_each_change_has_a_number_and_a_row(ledger: Ledger) -> None:
    assert await ledger.keys.version() == (0, 0, 0)
    await ledger.keys.add(key(1), NOW, CREATED)
    assert await ledger.keys.version() == (1, 1, 1)
    await ledger.keys.add(key(2), NOW, CREATED)
    assert await ledger.keys.version() == (2, 2, 3)
    revoked = await ledger.keys.revoke("0001", NOW + 1, {"action": "keys.revoke"})
    assert revoked == await ledger.keys.get("0001") == key(1, revoked_at=NOW + 1)
    assert await ledger.keys.version() == (3, 2, 5)
    assert await ledger.keys.revoke("0001", NOW + 2, {"action": "keys.revoke"}) == revoked
    assert await ledger.keys.version() == (3, 2, 5), "it was revoked before"
    assert ledger.said == [CREATED, CREATED, {"action": "keys.revoke", "client": "shop"}]
    assert ledger.audit.head is not None
    assert ledger.audit.head.sequence == 3
    with pytest.raises(NoSuchResource, match="there is no key '0009'"):
        await ledger.keys.revoke("0009", NOW, CREATED)


async def test_when_a_key_was_used_is_no_change(ledger: Ledger) -> None:
    for number in (1, 2):
        await ledger.keys.add(key(number), NOW, CREATED)
    before, tasks = await ledger.keys.version(), ledger.tasks
    await ledger.keys.used([("0002", NOW + 5), ("0009", NOW + 5)])
    await ledger.keys.used([])
    assert (await ledger.keys.version(), ledger.tasks) == (before, tasks + 1), "nothing to write is not written"
    assert [(await ledger.keys.get(name)).last_used_at for name in ("0001", "0002")] == [0, NOW + 5]


@pytest.mark.parametrize(
    ("expires_at", "until", "ends"),
    [
        (0, NOW + 60, NOW + 60),
        (NOW + 30, NOW + 60, NOW + 30),
        (NOW + 90, NOW + 60, NOW + 60),
        (0, 0, 1),
        (NOW + 30, -5, 1),
    ],
)
async def test_a_key_that_is_replaced_ends_in_time(ledger: Ledger, expires_at: int, until: int, ends: int) -> None:
    await ledger.keys.add(key(1, expires_at=expires_at, scopes=("history", "publish")), NOW, CREATED)
    await ledger.keys.add(key(3, "other"), NOW, CREATED)
    new = await ledger.keys.replace("0001", key(2, "somebody", scopes=()), until, NOW, {"action": "keys.rotate"})
    assert new == await ledger.keys.get("0002") == key(2, scopes=("history", "publish"))
    assert (await ledger.keys.get("0001")).expires_at == ends
    assert await ledger.keys.get("0003") == key(3, "other")
    assert ledger.said[2:] == [{"action": "keys.rotate", "client": "shop", "new": "0002"}]


async def test_what_does_not_live_or_count_is_not_replaced(ledger: Ledger) -> None:
    ledger.keys.macs = KeyMacs(OLD)
    await ledger.keys.add(key(1, expires_at=NOW), NOW, CREATED)
    await ledger.keys.add(key(2), NOW, CREATED)
    ledger.connection.execute(sa.update(api_keys).where(api_keys.c.id == "0002").values(scopes=b'["admin"]'))
    with pytest.raises(StateError, match="the key '0001' is not live: create one"):
        await ledger.keys.replace("0001", key(3), NOW, NOW, CREATED)
    with pytest.raises(StateError, match="the key '0002' does not count: the row is not as the gateway wrote it"):
        await ledger.keys.replace("0002", key(3), NOW, NOW, CREATED)
    assert await ledger.ids() == ["0001", "0002"]
    revoked = await ledger.keys.revoke("0002", NOW, CREATED)
    assert ledger.keys.macs.refusal_of(revoked), "a change does not make it count"
    assert ledger.keys.macs.refusal_of(await ledger.keys.get("0002"))
    sound = await ledger.keys.revoke("0001", NOW, CREATED)
    assert ledger.keys.macs.refusal_of(sound) == ledger.keys.macs.refusal_of(await ledger.keys.get("0001")) == ""


async def test_pages_of_keys(ledger: Ledger) -> None:
    for number in range(5):
        await ledger.keys.add(key(number, f"client {number}"), NOW, CREATED)
    names = [f"{number:04}" for number in range(5)]
    for limit in range(1, 7):
        found: list[str] = []
        cursor: str | None = None
        pages = 0
        while cursor is not None or not pages:
            page, cursor = await ledger.keys.page(cursor, limit)
            assert len(page) <= limit
            found += [each.id for each in page]
            pages += 1
        assert (found, pages) == (names, -(-5 // limit))


# ---------------------------------------------------------------------------------------------------------- MACs


def test_why_a_row_does_not_count() -> None:
    old, new, none = KeyMacs(OLD), KeyMacs(NEW), KeyMacs()
    assert (old.name, new.name, none.name) == ("old", "new", None)
    sealed = old.sealed(key(1))
    assert sealed.mac_key == "old"
    assert old.refusal_of(sealed) == new.refusal_of(sealed) == ""
    assert none.sealed(key(1)) == key(1)
    assert none.refusal_of(key(1)) == none.refusal_of(sealed._replace(mac=b"")) == ""
    for bare in (sealed._replace(mac=None), sealed._replace(mac_key=None), key(1)):
        assert old.refusal_of(bare) == "the row has no MAC"
    assert old.refusal_of(new.sealed(key(1))) == "the row has a MAC of the key 'new', and the file of keys has old"
    assert old.refusal_of(sealed._replace(mac=bytes(32))) == "the row is not as the gateway wrote it"
    assert new.refusal_of(sealed._replace(mac_key="new")) == "the row is not as the gateway wrote it"
    assert old.refusal_of(sealed._replace(last_used_at=NOW)) == "", "that changes without its MAC"


async def test_live_rows_of_a_release_before_macs_get_one(ledger: Ledger) -> None:
    await ledger.keys.add(key(1), NOW, CREATED)
    await ledger.keys.add(key(2, expires_at=NOW), NOW, CREATED)
    assert await ledger.keys.seal(NOW, {"action": "keys.seal"}) == [], "there is no key to seal them with"
    ledger.keys.macs = KeyMacs(OLD)
    await ledger.keys.add(key(3), NOW, CREATED)
    before = await ledger.keys.version()
    (sealed,) = await ledger.keys.seal(NOW, {"action": "keys.seal"})
    assert sealed == await ledger.keys.get("0001") == ledger.keys.macs.sealed(key(1))
    assert (await ledger.keys.get("0002")).mac is None
    assert (await ledger.keys.version())[0] == before[0] + 1
    assert await ledger.keys.seal(NOW, {"action": "keys.seal"}) == []
    assert ledger.said[3:] == [{"action": "keys.seal", "sealed": 1, "keys": ["0001 shop"]}], "once"
    assert mac_keys(ledger.connection) == {"old": 2}


async def test_many_rows_that_get_a_mac_are_named_in_part(ledger: Ledger) -> None:
    for number in range(NAMED_MAX + 1):
        await ledger.keys.add(key(number, f"client {number}"), NOW, CREATED)
    ledger.keys.macs = KeyMacs(OLD)
    assert len(await ledger.keys.seal(NOW, {})) == NAMED_MAX + 1
    said = ledger.said[-1]
    assert (said["sealed"], len(said["keys"]), said["keys"][0]) == (NAMED_MAX + 1, NAMED_MAX, "0000 client 0")
    changes = ledger.connection.execute(sa.select(api_keys.c.changes)).scalars().all()
    assert len(set(changes)) == NAMED_MAX + 1, "each has a number of its own"


async def test_macs_come_under_another_key(ledger: Ledger) -> None:
    await ledger.keys.add(key(1, "bare"), NOW, CREATED)
    assert await ledger.keys.reseal() == (0, [])
    ledger.keys.macs = KeyMacs(OLD)
    for number, client in ((2, "shop"), (3, "changed"), (4, "dead")):
        await ledger.keys.add(key(number, client, expires_at=NOW * (client == "dead")), NOW, CREATED)
    ledger.connection.execute(sa.update(api_keys).where(api_keys.c.id == "0003").values(client="root"))
    ledger.keys.macs = KeyMacs(NEW)
    await ledger.keys.add(key(5, "new"), NOW, CREATED)
    before = {name: await ledger.keys.get(name) for name in await ledger.ids()}
    assert await ledger.keys.reseal() == (2, ["0003"])
    for name, row in before.items():
        expected = ledger.keys.macs.sealed(row) if name in ("0002", "0004") else row
        assert await ledger.keys.get(name) == expected
    assert mac_keys(ledger.connection) == {"new": 3, "old": 1}
    assert await ledger.keys.reseal() == (0, ["0003"])


# -------------------------------------------------------------------------------------------------------- alone


def test_on_postgresql_one_process_at_a_time_changes_keys() -> None:
    noted = Noted()
    module._alone(noted)  # type: ignore[arg-type]
    assert noted.ran == [("SELECT pg_advisory_xact_lock(:key)", {"key": ADVISORY_LOCK})]


async def test_each_change_is_made_alone(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two of them would count the same keys, or take the same number."""
    alone: list[sa.Connection] = []
    monkeypatch.setattr(module, "_alone", alone.append)
    ledger.keys.macs = KeyMacs(OLD)
    for change in (
        ledger.keys.add(key(1), NOW, CREATED),
        ledger.keys.replace("0001", key(2), NOW, NOW, CREATED),
        ledger.keys.revoke("0001", NOW, CREATED),
        ledger.keys.seal(NOW, CREATED),
        ledger.keys.reseal(),
    ):
        alone.clear()
        await change
        assert alone == [ledger.connection]
