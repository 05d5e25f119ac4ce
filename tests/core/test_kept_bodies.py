"""Bodies that are kept for replays: nobody gets the answer of a publish before its body is there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.amqp.message import Message
from gateway.config import RetentionSettings
from gateway.core import Gateway, Publication, PublishOutcome
from gateway.core.sources.stored import open_envelope
from gateway.errors import LedgerUnavailable
from gateway.ledger import KeptBody, Ledger
from tests.core import test_keyed_messages, test_keys, test_outbox


async def with_key(gateway: Gateway) -> None:
    assert (await test_keys.publish(gateway)).status == 200


async def with_keys_of_messages(gateway: Gateway) -> None:
    (result,) = await test_keyed_messages.publish(gateway, test_keyed_messages.message("k1"))
    assert result.error is None


async def later(gateway: Gateway) -> None:
    results = await gateway.outbox.put(gateway.broker("fake"), "", [test_outbox.message()], "me")
    await test_outbox.settled(gateway, results)


@pytest.mark.parametrize("publish", [with_key, with_keys_of_messages, later])
async def test_the_ledger_is_away_when_a_body_is_to_be_kept(gateway: Gateway, ledger: Ledger, publish: object) -> None:
    ledger.reconfigure((), RetentionSettings(bodies="days"))
    real, failures, kept = ledger.deliveries.keep_bodies, 2, 0

    async def fail(rows: Sequence[KeptBody]) -> None:
        nonlocal failures, kept
        if failures:
            failures -= 1
            raise LedgerUnavailable("away")
        await real(rows)
        kept += len(rows)

    ledger.deliveries.keep_bodies = fail  # type: ignore[method-assign]
    assert callable(publish)
    await publish(gateway)
    assert (failures, kept) == (0, 1)


@pytest.mark.parametrize("resent", [False, True])
async def test_a_kept_body_says_whether_its_message_may_be_there_twice(
    gateway: Gateway, ledger: Ledger, resent: bool
) -> None:
    ledger.reconfigure((), RetentionSettings(bodies="days"))
    kept: list[KeptBody] = []

    async def keep(rows: Sequence[KeptBody]) -> None:
        kept.extend(rows)

    ledger.deliveries.keep_bodies = keep  # type: ignore[method-assign]
    publication = Publication("orders", Message(b"hello"), id=b"1" * 16)
    await gateway._publisher.keep("", [publication], [PublishOutcome("1", resent=resent)])
    assert [open_envelope(row.payload).resent for row in kept] == [resent]
