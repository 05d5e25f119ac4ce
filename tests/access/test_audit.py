"""The audit log: what is in it, and what does not go unnoticed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.access import trail as module
from gateway.access.access import Access
from gateway.access.rates import Rates
from gateway.access.trail import Trail
from gateway.api.app import NOT_RECORDED, ROUTES, is_recorded
from gateway.errors import LedgerUnavailable, OutcomeUnknown
from gateway.ledger import Ledger
from gateway.ledger.access.audit import AuditHead, AuditRow, append
from gateway.ledger.access.audit_check import verify

TRAIL = {"publish", "pull", "acknowledge", "modify_ack_deadline", "release", "reject", "cancel_scheduled",
         "reschedule", "retry_scheduled", "explain_translation", "redeem_login"}  # fmt: skip
"""What has its rows in the ledger's history, or changes nothing."""


async def rows(ledger: Ledger) -> list[dict[str, Any]]:
    return [row.document() for row in await ledger.audit.read()]


async def flushed(access: Access) -> None:
    assert access.trail is not None
    await access.trail._flush()


# -------------------------------------------------------------------------------------------------- the chain


@pytest.fixture
async def chain(ledger: Ledger) -> Ledger:
    for number in range(5):
        await ledger.audit.append([(1_000 + number, {"action": "a", "number": number})])
    return ledger


async def check(ledger: Ledger, known: AuditHead | None = None) -> Any:
    return await ledger.read(lambda connection: verify(connection, known))


async def tamper(ledger: Ledger, statement: str) -> None:
    import sqlalchemy as sa

    await ledger.task(lambda connection, _: connection.execute(sa.text(statement)) and None)


async def test_a_sound_chain(chain: Ledger) -> None:
    found = await check(chain)
    assert (found.rows, found.broken, found.head.sequence) == (5, 0, 5)
    assert (await check(chain, found.head)).broken == 0
    await chain.audit.append([(9, {"action": "b"}), (9, {"action": "c"})])
    assert (await check(chain, found.head)).rows == 7


async def test_nothing_is_sound() -> None:
    assert AuditRow(1, 1, b"", b"", b"").document() == {}


async def test_an_empty_log(ledger: Ledger) -> None:
    found = await check(ledger)
    assert (found.rows, found.broken) == (0, 0)
    assert "cut off" in (await check(ledger, AuditHead(3, bytes(32)))).why


@pytest.mark.parametrize(
    ("statement", "broken", "why"),
    [
        ('UPDATE audit_log SET entry = CAST(\'{"action":"b"}\' AS BLOB) WHERE sequence = 3', 3, "changed"),
        ("UPDATE audit_log SET at = at + 1 WHERE sequence = 1", 1, "changed"),
        ("UPDATE audit_log SET previous = zeroblob(32) WHERE sequence = 4", 4, "not chained"),
        ("UPDATE audit_log SET hash = zeroblob(32) WHERE sequence = 5", 5, "changed"),
        ("DELETE FROM audit_log WHERE sequence = 2", 2, "missing"),
        ("DELETE FROM audit_log WHERE sequence = 1", 1, "missing"),
        ("UPDATE audit_log SET sequence = sequence + 10 WHERE sequence > 3", 4, "missing"),
    ],
)
async def test_what_is_done_to_it_is_seen(chain: Ledger, statement: str, broken: int, why: str) -> None:
    await tamper(chain, statement)
    found = await check(chain)
    assert (found.broken, found.rows) == (broken, broken - 1)
    assert why in found.why


async def test_a_chain_that_was_cut_off_or_made_anew_is_told_by_its_head(chain: Ledger) -> None:
    head = (await check(chain)).head
    await tamper(chain, "DELETE FROM audit_log WHERE sequence = 5")
    assert (await check(chain)).broken == 0, "a chain alone cannot tell"
    assert "cut off" in (await check(chain, head)).why
    await chain.audit.append([(1, {"action": "other"})])
    assert (await check(chain)).broken == 0
    assert "rebuilt" in (await check(chain, head)).why


async def test_writers_at_once_make_one_chain(ledger: Ledger) -> None:
    await asyncio.gather(*(ledger.audit.append([(1, {"action": str(number)})]) for number in range(50)))
    found = await check(ledger)
    assert (found.rows, found.broken) == (50, 0)


async def test_an_entry_is_bounded(ledger: Ledger) -> None:
    await ledger.task(lambda connection, _: append(connection, [(1, {"action": "a", "text": "x" * 20_000})]))
    (row,) = await rows(ledger)
    assert row == {"action": "a", "cut": 20_024}


# ------------------------------------------------------------------------------------------------- what is in it


def test_every_operation_that_changes_something_is_recorded() -> None:
    changing = {route.operation for route in ROUTES if route.method != "GET"}
    assert {route.operation for route in ROUTES if is_recorded(route)} == changing - TRAIL - NOT_RECORDED


async def test_a_change_is_on_record_before_its_answer(ask: Callable[..., Any], ledger: Ledger) -> None:
    body = {"broker": "fake", "queue": "orders"}
    made = await ask("PUT", "/v1/subscriptions/billing", json=body, headers={"x-request-id": "r-1"})
    (row,) = await rows(ledger)
    etag = made.headers["etag"].strip('"')
    assert row == {
        "action": "put_subscription", "actor": "root", "credential": "key:root", "object": "/v1/subscriptions/billing",
        "address": "127.0.0.1", "request": "r-1", "result": 201, "after": etag,
    }  # fmt: skip
    body["queue"] = "other"
    await ask("PUT", "/v1/subscriptions/billing", json=body, headers={"if-match": f'"{etag}"'})
    assert (await rows(ledger))[1]["before"] == etag


async def test_what_changes_nothing_is_not(ask: Callable[..., Any], ledger: Ledger, access: Access) -> None:
    await ask("GET", "/v1/subscriptions")
    await ask("PUT", "/v1/subscriptions/billing", json={"nonsense": 1})
    await ask("DELETE", "/v1/subscriptions/none")
    await ask("POST", "/v1/brokers/fake/exchanges/amq.default:publish", json={"routing_key": "orders"})
    await flushed(access)
    assert await rows(ledger) == []


async def test_refusals_are_on_record_without_the_credential(
    ask: Callable[..., Any], ledger: Ledger, access: Access
) -> None:
    key = (await ask("POST", "/v1/keys", json={"client": "shop", "scopes": ["history"]})).json()
    await ask("GET", "/v1/bridges", key["key"])
    await ask("GET", "/v1/bridges", "a-wrong-secret")
    access.rates = Rates(0.001, 1)
    await ask("GET", "/v1/brokers")
    await ask("GET", "/v1/brokers")
    await flushed(access)
    created, asked, *refused = await rows(ledger)
    assert (created["action"], created["client"], asked["action"]) == ("keys.create", "shop", "create_key")
    assert [(row["action"], row["result"], row.get("actor")) for row in refused] == [
        ("list_bridges", "forbidden", "shop"), ("request", "unauthorized", None),
        ("list_brokers", "rate_limited", "root"),
    ]  # fmt: skip
    assert refused[0]["credential"] == f"key:{key['id']}"
    text = json.dumps(await rows(ledger))
    assert "a-wrong-secret" not in text
    assert key["key"] not in text
    assert "root-secret" not in text


async def test_a_change_that_failed_may_have_happened(
    ask: Callable[..., Any], ledger: Ledger, upstream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (OutcomeUnknown("no answer came"), RuntimeError("a defect")):

        async def fails(*_: Any, error: Exception = error, **__: Any) -> None:
            raise error

        monkeypatch.setattr(upstream, "delete_queue", fails)
        await ask("DELETE", "/v1/brokers/fake/queues/orders")
    assert [(row["action"], row["result"]) for row in await rows(ledger)] == [
        ("delete_queue", 504), ("delete_queue", 500),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------ bounds


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def test_a_flood_of_refusals_is_a_few_rows(ledger: Ledger) -> None:
    clock = Clock()
    trail = Trail(ledger, clock)
    for _ in range(10_000):
        trail.refused("pull", "unauthorized", "192.0.2.1", object="/v1/x")
    trail.refused("pull", "unauthorized", "192.0.2.2")
    clock.now += 61
    trail.refused("pull", "unauthorized", "192.0.2.1")
    await trail.close()
    found = await rows(ledger)
    assert [row["action"] for row in found] == ["pull"] * 6 + ["refusals", "pull"]
    assert found[6] == {"action": "refusals", "result": "unauthorized", "address": "192.0.2.1", "more": 9_995}
    assert trail.written == 8


async def test_addresses_and_rows_are_bounded(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ADDRESSES_MAX", 3)
    monkeypatch.setattr(module, "QUEUE_MAX", 6)
    trail = Trail(ledger, Clock())
    for number in range(100):
        trail.refused("pull", "unauthorized", f"192.0.2.{number}")
    assert len(trail._counts) == 4
    assert len(trail._waiting) == 6
    await trail._flush()
    trail._sum_up()
    await trail.close()
    assert {row["action"]: row.get("more") for row in await rows(ledger)} == {
        "pull": None, "refusals": 92, "missed": 2,
    }  # fmt: skip


async def test_one_caller_with_many_addresses_is_one(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    trail = Trail(ledger, Clock())
    for number in range(100):
        trail.refused("pull", "unauthorized", f"2001:db8::{number:x}")
        trail.refused("pull", "forbidden", f"192.0.2.{number}", actor="shop")
    await trail.close()
    found = await rows(ledger)
    assert [row["action"] for row in found] == ["pull"] * 10 + ["refusals"] * 2
    assert found[-2:] == [
        {"action": "refusals", "result": "unauthorized", "address": "2001:db8::/64", "more": 95},
        {"action": "refusals", "result": "forbidden", "actor": "shop", "more": 95},
    ]


async def test_refusals_of_all_callers_are_bounded(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFUSALS_MAX", 10)
    clock = Clock()
    trail = Trail(ledger, clock)
    for number in range(30):
        trail.refused("pull", "unauthorized", f"192.0.2.{number}")
    await trail.changed("put_tap", actor="root")
    clock.now += 61
    trail.refused("pull", "unauthorized", "192.0.2.1")
    await trail.close()
    found = await rows(ledger)
    assert [row["action"] for row in found].count("pull") == 11
    assert {"action": "missed", "more": 20} in found
    assert found[0]["action"] == "put_tap"


async def test_what_cannot_be_written_waits(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    trail = Trail(ledger, Clock())
    write = ledger.audit.append

    async def away(entries: Any) -> AuditHead:
        raise LedgerUnavailable("away")

    monkeypatch.setattr(ledger.audit, "append", away)
    await trail.changed("put_tap", actor="root")
    trail.refused("pull", "forbidden", "192.0.2.1")
    await trail._flush()
    assert trail.written == 0
    monkeypatch.setattr(ledger.audit, "append", write)
    await trail.close()
    assert [row["action"] for row in await rows(ledger)] == ["put_tap", "pull"]


async def test_it_is_written_by_itself(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLUSH", 0.01)
    monkeypatch.setattr(module, "MINUTE", 0.05)
    trail = Trail(ledger)
    trail.start()
    for _ in range(7):
        trail.refused("pull", "forbidden", "192.0.2.1", object="\udcff" * 1_000)
    while len(found := await rows(ledger)) < 6:
        await asyncio.sleep(0.01)
    assert found[0]["object"] == "\\udcff" * 512
    assert found[5]["more"] == 2
    await trail.close()


async def test_what_is_being_written_at_the_end_is_written(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLUSH", 0.01)
    write = ledger.audit.append
    begun = asyncio.Event()

    async def slow(entries: Any) -> AuditHead:
        begun.set()
        await asyncio.sleep(0.1)
        return await write(entries)

    monkeypatch.setattr(ledger.audit, "append", slow)
    trail = Trail(ledger)
    trail.start()
    trail.refused("pull", "forbidden", "192.0.2.1")
    await begun.wait()
    trail.refused("pull", "forbidden", "192.0.2.2")
    await trail.close()
    assert [row["address"] for row in await rows(ledger)] == ["192.0.2.1", "192.0.2.2"]
