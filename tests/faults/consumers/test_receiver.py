"""The receiver of the tests: it answers, refuses, comes late, cuts off and dies as it is told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.faults.checker import History, Settled
from tests.faults.consumers import receiver
from tests.faults.consumers.lanes import PUSH, Lane
from tests.faults.consumers.receiver import BODY, HEAD, Receiver
from tests.faults.http import Answer, Http, NoAnswer, NotSent

HEADERS = {"webhook-id": "d", "webhook-timestamp": "1", "webhook-signature": "v1,x"}


@pytest.fixture
async def endpoint() -> AsyncIterator[Receiver]:
    made = Receiver(Lane(PUSH, "broker", "rabbitmq", "0-8"), History(), 1)
    made.temper.hold = 0.0
    await made.begin()
    yield made
    await made.abandon()


async def post(endpoint: Receiver, **changes: Any) -> Answer:
    """One webhook."""
    message = {
        "id": "g",
        "payload": "x",
        "payload_encoding": "string",
        "properties": {"message_id": "m"},
        "headers": {},
    }
    envelope = {"id": "d", "delivery_attempt": 2, "redelivered": False, "resent": False, "message": message}
    http = Http(endpoint.port)
    try:
        return await http.request("POST", "/hook", json.dumps({**envelope, **changes}).encode(), HEADERS)
    finally:
        http.close()


async def test_what_is_taken_is_acknowledged(endpoint: Receiver) -> None:
    answer = await post(endpoint)
    assert (answer.status, answer.body) == (200, BODY)
    [reception] = endpoint.history.receptions
    assert (reception.id, reception.gateway_id, reception.delivery, reception.attempt) == ("m", "g", "d", 2)
    assert reception.settled is Settled.ACKED
    assert reception.until is not None
    assert reception.since <= reception.until
    assert not endpoint.complaints
    assert endpoint.open == 0


async def test_what_is_refused_is_refused_once(endpoint: Receiver) -> None:
    endpoint.temper.refuse = 1.0
    assert [(await post(endpoint)).status for _ in range(2)] == [500, 200]
    assert [reception.settled for reception in endpoint.history.receptions] == [Settled.NO, Settled.ACKED]


@pytest.mark.parametrize("octets", [0, 1, len(HEAD) - 1, len(HEAD), len(HEAD) + 5])
async def test_answers_that_are_cut_off(endpoint: Receiver, octets: int) -> None:
    endpoint.temper.cuts.extend([octets, octets])
    for _ in range(2):  # once by FIN, once by RST
        with pytest.raises(NoAnswer):
            await post(endpoint)
    said = Settled.UNCLEAR if octets >= len(HEAD) else Settled.NO
    assert [reception.settled for reception in endpoint.history.receptions] == [said, said]
    assert endpoint.cut == 2
    assert (await post(endpoint)).status == 200


async def test_who_hangs_up_was_not_answered(endpoint: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "DEADLINE", 0.05)
    monkeypatch.setattr(receiver, "LATE", 0.05)
    endpoint.temper.late = 1
    task = asyncio.create_task(post(endpoint))
    while not endpoint.open:
        await asyncio.sleep(0.001)
    task.cancel()
    while endpoint.open:
        await asyncio.sleep(0.001)
    [reception] = endpoint.history.receptions
    assert reception.settled is Settled.NO
    assert reception.until is not None


async def test_killed_with_a_request_open(endpoint: Receiver) -> None:
    endpoint.temper.hold = 60.0
    task = asyncio.create_task(post(endpoint))
    while not endpoint.open:
        await asyncio.sleep(0.001)
    assert await endpoint.kill() == 1
    with pytest.raises(NoAnswer):
        await task
    with pytest.raises(NotSent):
        await post(endpoint)
    [reception] = endpoint.history.receptions
    assert (reception.settled, reception.until is not None) == (Settled.NO, True)
    endpoint.temper.hold = 0.0
    await endpoint.begin()
    assert (await post(endpoint)).status == 200


async def test_a_webhook_that_is_none_is_complained_of(endpoint: Receiver) -> None:
    await post(endpoint, id="another")
    assert endpoint.complaints == ["webhook-id d of the delivery another"]
    endpoint.complaints.clear()
    http = Http(endpoint.port)
    with pytest.raises(NoAnswer):
        await http.request("POST", "/hook", b"{}", {"webhook-id": "d"})
    assert endpoint.complaints[0] == "a request without webhook-timestamp, webhook-signature"
    assert "the receiver broke: KeyError" in endpoint.complaints[1]
    http.close()
