"""The audit at work beside a gateway: quiet while all is well, and loud once where something is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.core import Gateway
from gateway.core.work import auditor, observer
from gateway.core.work.auditor import Auditor
from gateway.core.work.observer import Observer
from gateway.errors import LedgerUnavailable
from gateway.ledger import EventKind, Ledger
from gateway.ledger.pending.promises import Missing, ObligationPage
from gateway.observing.series import OTHER
from gateway.observing.telemetry import Metrics
from tests.audited import ON_PURPOSE
from tests.core.test_ledger_leases import ids, pull, subscribe
from tests.core.test_publishing import message


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("GRACE", 0.05), ("TWICE", 0.01), ("PAUSE_MIN", 0.0), ("PAUSE_MAX", 0.05), ("AGAIN", 0.05)):
        monkeypatch.setattr(auditor, name, seconds)
    monkeypatch.setattr(auditor, "ROUND_EVERY", 0.0)
    monkeypatch.setattr(observer, "FIRST", 0.0)


def lost(metrics: Metrics, promise: str = "delivery") -> float:
    return metrics.registry.get_sample_value("amqpgw_lost_total", {"promise": promise}) or 0.0


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"amqpgw_{name}", labels)


async def until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.02)


async def delete(ledger: Ledger, statement: str) -> None:
    await ledger.task(lambda connection, _: connection.execute(sa.text(statement)))


async def test_quiet_while_all_is_well_and_loud_once_where_it_is_not(gateway: Gateway, ledger: Ledger) -> None:
    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message(b"1"), message(b"2"), message(b"3"), message(key="nowhere")])
    items = await pull(gateway, billing)
    await gateway.consuming.acknowledge(billing, ids(items[0]))
    rounds = gateway.metrics.audit_rounds
    before = rounds._value.get()
    await until(lambda: rounds._value.get() >= before + 2)
    assert not gateway.auditor.found
    assert (value(gateway.metrics, "audit_checked_total") or 0) > 0
    await delete(ledger, "DELETE FROM deliveries")
    ON_PURPOSE.update((items[1].id, items[2].id))
    await until(lambda: lost(gateway.metrics) == 2)
    seen = rounds._value.get()
    await until(lambda: rounds._value.get() >= seen + 2)
    assert lost(gateway.metrics) == 2, "each is counted once"
    assert {each.message_id for each in gateway.auditor.found} == ON_PURPOSE
    assert b'amqpgw_lost_total{promise="delivery"} 2.0' in gateway.metrics.render()


async def test_new_events_are_looked_at_without_a_round(
    gateway: Gateway, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditor, "ROUND_EVERY", 1e9)
    await until(lambda: gateway.metrics.audit_rounds._value.get() == 1)
    await subscribe(gateway)
    await ledger.record([])
    await gateway.publish("fake", "", [message(b"1")])
    checked = gateway.metrics.audit_checked
    before = checked._value.get()
    await until(lambda: checked._value.get() > before)
    assert gateway.metrics.audit_rounds._value.get() == 1
    await until(lambda: value(gateway.metrics, "audit_behind") == 0)


async def test_what_is_there_again_was_not_lost(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """What begins between two statements of a page looks broken, once."""
    metrics = Metrics("test")
    seen = Missing("delivery", b"m" * 16, "s")
    pages = [ObligationPage(1, None, [seen]), ObligationPage(1, None, [])]

    async def bodies(after: bytes) -> ObligationPage:
        return pages.pop(0) if pages else ObligationPage(0, None, [])

    monkeypatch.setattr(ledger.promises, "bodies", bodies)
    audit = Auditor(ledger, metrics)
    assert await audit.through()
    assert pages == []
    assert not audit.found
    assert lost(metrics) == 0


async def test_what_is_found_is_bounded(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(auditor, "FOUND_MAX", 30)
    monkeypatch.setattr(auditor, "LOGGED_MAX", 3)
    metrics = Metrics("test")
    audit = Auditor(ledger, metrics)
    many = [Missing("body", number.to_bytes(16, "big"), "s") for number in range(100)]

    async def bodies(after: bytes) -> ObligationPage:
        return ObligationPage(100, None, many)

    monkeypatch.setattr(ledger.promises, "bodies", bodies)
    await audit.through()
    await audit.through()
    assert len(audit.found) == lost(metrics, "body") == 30
    assert [record.getMessage() for record in caplog.records].count("ledger.lost") == 3


async def test_one_process_audits(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics("test")
    audit = Auditor(ledger, metrics)

    async def survey() -> Any:
        return ledger.shard + 1, []

    monkeypatch.setattr(ledger.promises, "survey", survey)
    audit.start()
    await asyncio.sleep(0.3)
    await audit.close()
    assert metrics.audit_rounds._value.get() == 0
    metrics.outbox_overdue.set(7)  # of when it was this process that looked
    watch = Observer(ledger, metrics)
    await watch.look()
    assert b"amqpgw_outbox_messages{" not in metrics.render()
    assert metrics.registry.get_sample_value("amqpgw_outbox_overdue_seconds") == 0


async def test_a_ledger_that_is_away_and_a_defect_end_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics("test")
    trouble: list[Exception] = [LedgerUnavailable("away"), ZeroDivisionError("a defect")]
    survey = ledger.promises.survey

    async def failing() -> Any:
        if trouble:
            raise trouble.pop(0)
        return await survey()

    monkeypatch.setattr(ledger.promises, "survey", failing)
    audit = Auditor(ledger, metrics)
    audit.start()
    await until(lambda: metrics.audit_rounds._value.get() >= 1)
    await audit.close()
    assert trouble == []


# --------------------------------------------------------------------------------------------- what is owed


async def test_what_the_ledger_owes_is_shown(gateway: Gateway, ledger: Ledger) -> None:
    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message(b"1"), message(b"22"), message(b"3")])
    items = await pull(gateway, billing)
    await gateway.consuming.reject(billing, ids(items[0]), "no")
    await gateway.consuming.release(billing, ids(items[1]))
    metrics = Metrics("test")
    watch = Observer(ledger, metrics)
    await watch.look()
    states = {state: value(metrics, "subscription_messages", subscription="billing", state=state) for state in
              ("waiting", "out", "dead")}  # fmt: skip
    assert states == {"waiting": 1, "out": 1, "dead": 1}
    assert value(metrics, "subscription_octets", subscription="billing") == 4
    assert 0 < (value(metrics, "subscription_oldest_seconds", subscription="billing") or 0) < 3600
    assert value(metrics, "outbox_messages", state="due") == 0
    assert value(metrics, "in_doubt", state="pending") == 0
    await gateway.consuming.acknowledge(billing, ids(*await pull(gateway, billing), items[2]))
    await delete(ledger, "DELETE FROM deliveries")
    ON_PURPOSE.add(items[0].id)
    await watch.look()
    assert b"amqpgw_subscription_messages{" not in metrics.render()


async def test_the_worst_have_names(gateway: Gateway, ledger: Ledger) -> None:
    for name, count in (("a", 1), ("b", 3), ("c", 2), ("d", 1)):
        await gateway.brokers["fake"].declare_queue(name)
        await subscribe(gateway, name, queue=name)
        await gateway.publish("fake", "", [message(key=name) for _ in range(count)])
        subscription = await gateway.subscriptions.get(name)
        await gateway.consuming.release(subscription, ids(*await pull(gateway, subscription)))
    metrics = Metrics("test", names=2)
    watch = Observer(ledger, metrics)
    await watch.look()
    waiting = {name: value(metrics, "subscription_messages", subscription=name, state="waiting")
               for name in ("a", "b", "c", "d", OTHER)}  # fmt: skip
    assert waiting == {"a": None, "b": 3, "c": 2, "d": None, OTHER: 2}
    subscription = await gateway.subscriptions.get("d")
    await gateway.consuming.reject(subscription, ids(*await pull(gateway, subscription)), "no")
    await watch.look()
    assert value(metrics, "subscription_messages", subscription="d", state="dead") == 1
    assert value(metrics, "subscription_messages", subscription="c", state="waiting") is None
    assert value(metrics, "subscription_messages", subscription=OTHER, state="waiting") == 3


async def test_what_is_measured_when_somebody_asks(gateway: Gateway) -> None:
    billing = await subscribe(gateway, lease="broker")
    await gateway.publish("fake", "", [message(b"1")])
    (item,) = await pull(gateway, billing)
    delivery: Any = item.lease.delivery
    delivery.at = asyncio.get_running_loop().time() - 7
    await gateway.ledger.written()
    gateway.measure()
    assert 6 < (value(gateway.metrics, "leases_oldest_seconds") or 0) < 60
    assert value(gateway.metrics, "broker_up", broker="fake") == 1
    assert value(gateway.metrics, "unconfirmed", broker="fake") == 0
    assert value(gateway.metrics, "ledger_waiting") == 0
    assert (value(gateway.metrics, "ledger_commit_seconds_count") or 0) > 0
    await gateway.consuming.acknowledge(billing, ids(item))
    gateway.measure()
    assert value(gateway.metrics, "leases_oldest_seconds") == 0


async def test_answers_under_leases_that_ended_are_counted(gateway: Gateway) -> None:
    billing = await subscribe(gateway)
    await gateway.publish("fake", "", [message(b"1")])
    (item,) = await pull(gateway, billing)
    await gateway.consuming.acknowledge(billing, ids(item))
    assert value(gateway.metrics, "fencing_rejections_total", lease="delivery") == 0
    await gateway.consuming.release(billing, ids(item))
    assert value(gateway.metrics, "fencing_rejections_total", lease="delivery") == 1
    assert EventKind.ACKNOWLEDGED in {event.kind for event in (await gateway.ledger.timeline(item.id)).events}  # type: ignore[union-attr]
