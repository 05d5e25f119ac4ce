"""A process that was fenced while it published: what it finds out too late changes no outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.config import LedgerSettings
from gateway.core import Gateway
from gateway.errors import BrokerUnavailable, GatewayError, NotFound, NotRecorded, OutcomeUnknown
from gateway.ledger import EventKind, Ledger
from gateway.observing.telemetry import Metrics
from gateway.upstreams import PublishReceipt
from tests.core import test_keys
from tests.core.fakes import FakeUpstream
from tests.core.test_keyed_messages import message
from tests.core.test_publishing import kinds

pytestmark = pytest.mark.broker
LATE = [
    BrokerUnavailable("broker fake is down"),
    OutcomeUnknown("the connection was lost"),
    NotFound(404, "no exchange"),
]


@asynccontextmanager
async def process(
    url: str, name: str, *, takes_over: bool = False, **options: Any
) -> AsyncIterator[tuple[Gateway, FakeUpstream]]:
    """A gateway on the ledger that others share. Without ``takes_over`` it leaves keys to their repeats."""
    ledger = await Ledger.open(url, LedgerSettings(shard_lease=60.0), owner=name)
    upstream: Any = FakeUpstream()
    await upstream.declare_queue("orders")
    gateway = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32, confirm_timeout=20.0, **options)
    if not takes_over:
        gateway.outbox.sender.recover_soon = lambda: None  # type: ignore[method-assign]
    await gateway.start()
    try:
        yield gateway, upstream
    finally:
        await gateway.close(1.0)
        await ledger.close()


async def held(upstream: FakeUpstream) -> asyncio.Future[PublishReceipt]:
    """The outcome of what was sent, which the test is to give."""
    async with asyncio.timeout(10):
        while not upstream.held:
            await asyncio.sleep(0.01)
    return upstream.held[0]


def fence(url: str, owner: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        statement = sa.text("UPDATE shards SET owner = NULL, fence = fence + 1 WHERE owner = :owner")
        assert connection.execute(statement, {"owner": owner}).rowcount == 1
    engine.dispose()


@pytest.mark.parametrize("late", LATE, ids=lambda late: type(late).__name__)
async def test_a_late_outcome_does_not_undo_a_confirm(postgresql_ledger: str, late: GatewayError) -> None:
    async with process(postgresql_ledger, "old") as (old, before):
        before.held = []
        first = asyncio.create_task(old.publish("fake", "", [message("k")], "alice"))
        outcome = await held(before)
        fence(postgresql_ledger, "old")
        async with process(postgresql_ledger, "new", takes_over=True) as (new, after):
            async with asyncio.timeout(10):
                await new.outbox.sender.recovered()
            assert len(after.published) == 1, "sent again by the new owner, and confirmed"
            outcome.set_exception(late)
            (told,) = await first
            assert isinstance(told.error, OutcomeUnknown), "another process has sent it"
            assert told.key == ""
            for _ in range(2):
                (again,) = await new.publish("fake", "", [message("k")], "alice")
                assert (again.id, again.error, again.key, again.resent) == (told.id, None, "repeated", True)
            assert await kinds(new, again) == ["accepted", "resent", "confirmed"]
            assert len(after.published) == 1


@pytest.mark.parametrize("late", LATE, ids=lambda late: type(late).__name__)
async def test_the_same_of_a_key_of_a_request(postgresql_ledger: str, late: GatewayError) -> None:
    async with process(postgresql_ledger, "old") as (old, before):
        before.held = []
        first = asyncio.create_task(test_keys.publish(old))
        outcome = await held(before)
        fence(postgresql_ledger, "old")
        async with process(postgresql_ledger, "new", takes_over=True) as (new, after):
            async with asyncio.timeout(10):
                await new.outbox.sender.recovered()
            outcome.set_exception(late)
            assert b"OutcomeUnknown" in (await first).body
            for _ in range(2):
                again = await test_keys.publish(new)
                assert (again.status, again.body.endswith(b"[] True")) == (200, True)
            assert len(after.published) == 1


async def test_a_late_confirm_is_told_and_not_recorded(postgresql_ledger: str) -> None:
    """The outcome is the new owner's: where it finds out nothing, the next repeat sends the message once more."""
    async with process(postgresql_ledger, "old") as (old, before):
        before.held = []
        first = asyncio.create_task(old.publish("fake", "", [message("k")], "alice"))
        outcome = await held(before)
        fence(postgresql_ledger, "old")
        async with process(postgresql_ledger, "new") as (new, after):
            after.held = []
            second = asyncio.create_task(new.publish("fake", "", [message("k")], "alice"))
            again = await held(after)
            outcome.set_result(PublishReceipt(True))
            (told,) = await first
            assert told.error is None
            again.set_exception(OutcomeUnknown("the connection was lost"))
            (unknown,) = await second
            assert isinstance(unknown.error, OutcomeUnknown)
            after.held = None
            (third,) = await new.publish("fake", "", [message("k")], "alice")
            assert (third.id, third.error, third.key, third.resent) == (told.id, None, "done", True)
            assert await kinds(new, third) == ["accepted", "resent", "unknown", "resent", "confirmed"]
            assert len(after.published) == 2


async def test_a_late_confirm_of_a_publish_without_a_key(postgresql_ledger: str) -> None:
    """Another process has said that nobody knows what became of it, and that stays so."""
    async with process(postgresql_ledger, "old", intent_always=True) as (old, before):
        before.held = []
        first = asyncio.create_task(old.publish("fake", "", [message("")], "alice"))
        outcome = await held(before)
        fence(postgresql_ledger, "old")
        async with process(postgresql_ledger, "new", takes_over=True) as (new, _):
            async with asyncio.timeout(10):
                await new.outbox.sender.recovered()
            outcome.set_result(PublishReceipt(True))
            with suppress(NotRecorded):  # where the old process does not know yet that it is fenced
                (told,) = await first
                assert told.error is None
            await old._publisher._late.join(10)
            (stored,), _ = await new.ledger.messages()
            timeline = await new.ledger.timeline(stored.id)
            assert timeline is not None
            assert [event.kind for event in timeline.events] == [EventKind.ACCEPTED, EventKind.UNKNOWN]
