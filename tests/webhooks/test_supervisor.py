"""All pushed subscriptions of a gateway: what it says of them, and what it measures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from gateway.webhooks.attempts.forms import PushedMessage
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.states import PushState
from tests.webhooks.pushed import Estate, until


@pytest.fixture
async def estate(tmp_path: Path) -> AsyncIterator[Estate]:
    found = Estate(tmp_path)
    await found.open()
    yield found
    await found.close()


async def test_a_subscription_that_is_not_pushed_here_says_why(estate: Estate) -> None:
    estate.receivers.put("e", SendOutcome(status=500), schedule=[0, 600], breaker_failures=100)
    await estate.subscribe()
    await estate.publish(b"x")
    await estate.wait_for(waiting=1, retrying=1)
    assert estate.pushes.last_error("e") == "500: the endpoint failed"
    assert await estate.pushes.pending("e") == 1
    await estate.gateway.subscriptions.pause("s")
    await until(lambda: not estate.pushes.here("s"))
    status = await estate.status()
    assert (status.state, status.reason, status.code) == (
        PushState.PAUSED,
        "the subscription is paused",
        "subscription_paused",
    )
    assert (status.endpoint, status.waiting, status.retrying, status.dead) == ("e", 1, 1, 0)
    assert (estate.pushes.last_error("e"), await estate.pushes.pending("e")) == ("", None)
    await estate.gateway.subscriptions.resume("s")
    await until(lambda: estate.pushes.here("s"))
    await estate.pushes.stop("s", 1.0)
    status = await estate.status()
    assert (status.state, status.reason, status.code) == (PushState.STOPPED, "this process does not push it", "")
    estate.pushes._troubles["s"] = "no broker 'c'"
    status = await estate.status()
    assert (status.state, status.reason, status.code) == (PushState.ERROR, "no broker 'c'", "queue_unreadable")
    assert estate.pushes.trouble("s") == "no broker 'c'"


async def test_requests_under_way_are_measured_and_a_deleted_endpoint_has_no_series(estate: Estate) -> None:
    may_go = asyncio.Event()

    async def answer(_: Sequence[PushedMessage]) -> SendOutcome:
        await may_go.wait()
        return SendOutcome(status=200)

    def delivered() -> float | None:
        return estate.metrics.registry.get_sample_value(
            "amqpgw_push_messages_total", {"endpoint": "e", "event": "delivered"}
        )

    def under_way() -> float | None:
        return estate.metrics.registry.get_sample_value("amqpgw_push_in_flight")

    estate.receivers.put("e", answer)
    await estate.subscribe()
    assert under_way() == 0
    await estate.publish(b"x")
    await until(lambda: under_way() == 1)
    may_go.set()
    await until(lambda: under_way() == 0)
    await until(lambda: delivered() == 1)
    estate.receivers.tell("e")
    assert delivered() == 1
    del estate.receivers.endpoints["e"]
    estate.receivers.tell("e")
    await until(lambda: delivered() is None)
    await until(lambda: estate.pushes.trouble("s") == "no endpoint 'e'")
