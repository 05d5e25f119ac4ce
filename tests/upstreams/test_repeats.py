"""What is sent again after its channel died, and what its caller hears of the second attempt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import Publish
from gateway.errors import (
    AccessRefused,
    BrokerUnavailable,
    GatewayError,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    PublishRefused,
    RemoteError,
)
from gateway.fidelity import annotation
from gateway.upstreams.publishing.isolation import (
    RESENT,
    Again,
    Refusals,
    error_of,
    repeats,
    size_limit,
    whole_exchange,
)
from gateway.upstreams.publishing.receipts import ROUTED, Entry, PublishReceipt

CAUSE = PreconditionFailed(406, "one of them")


def future() -> asyncio.Future[PublishReceipt]:
    return asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    ("receipt", "heard"),
    [(ROUTED, RESENT), (PublishReceipt(False, 312, "NO_ROUTE"), PublishReceipt(False, 312, "NO_ROUTE", resent=True))],
)
async def test_a_receipt_says_that_it_was_sent_again(receipt: PublishReceipt, heard: PublishReceipt) -> None:
    caller = future()
    Again(caller, CAUSE).set_result(receipt)
    assert await caller == heard


@pytest.mark.parametrize(
    ("error", "is_unknown"),
    [
        (BrokerUnavailable("away"), True),
        (PublishRefused("full"), True),
        (NotFound(404, "no exchange"), True),
        (AccessRefused(403, "access to exchange 'e' refused"), True),
        (AccessRefused(403, "access to topic 'k' refused"), False),
        (PreconditionFailed(406, "bad"), False),
    ],
)
async def test_what_says_nothing_of_the_first_attempt_leaves_it_unknown(error: GatewayError, is_unknown: bool) -> None:
    caller = future()
    Again(caller, CAUSE).set_exception(error)
    with pytest.raises(GatewayError) as caught:
        await caller
    assert caught.value.resent
    assert isinstance(caught.value, OutcomeUnknown if is_unknown else type(error))
    if is_unknown:
        assert "one of them" in str(caught.value)
        assert str(error) in str(caught.value)


async def test_who_leaves_takes_the_second_attempt_along() -> None:
    caller = future()
    again = Again(caller, CAUSE)
    caller.cancel()
    await asyncio.sleep(0)
    assert again.cancelled()
    caller = future()
    again = Again(caller, CAUSE)
    again.cancel()
    await asyncio.sleep(0)
    assert not caller.done(), "whoever gave it up says what became of it"
    caller = future()
    heard: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context))
    again = Again(caller, CAUSE)
    again.set_result(ROUTED)
    caller.cancel()
    await asyncio.sleep(0)
    assert heard == []


def entries(count: int) -> list[Entry]:
    return [
        (future(), 1, 5.0 + number, Publish(1, "e", f"k{number}", Message(b"%d" % number), True, number == 1))
        for number in range(count)
    ]


@pytest.mark.parametrize(("named", "suspects"), [(None, 4), (0, 0), (2, 2), (4, 4)])
async def test_those_behind_the_culprit_are_no_suspects(named: int | None, suspects: int) -> None:
    pending = entries(4)
    items, found = repeats(pending, CAUSE, named, mark=True)
    assert found == suspects
    assert [(item[1], item[2], item[4], item[5]) for item in items] == [
        (5.0, "k0", False, None), (6.0, "k1", True, None), (7.0, "k2", False, None), (8.0, "k3", False, None),
    ]  # fmt: skip
    assert [annotation(item[3].properties, "resent") for item in items] == ["1"] * 4


async def test_callers_that_have_left_are_left_out() -> None:
    pending = entries(4)
    pending[0][0].cancel()
    pending[2][0].set_result(ROUTED)
    items, suspects = repeats(pending, CAUSE, 3, mark=False)
    assert [item[2] for item in items] == ["k1", "k3"]
    assert suspects == 1
    assert [item[3].properties.headers for item in items] == [None, None]


async def test_a_third_attempt_is_the_second_one_for_its_caller() -> None:
    pending = entries(1)
    ((again, *_, first),) = [(item[0], item[3]) for item in repeats(pending, CAUSE, None, mark=True)[0]]
    other = PreconditionFailed(406, "another")
    entry = (again, 1, 5.0, Publish(1, "e", "k", first, True, False))
    ((once_more, _, _, message, _, _),), _ = repeats([entry], other, None, mark=True)
    assert once_more is again
    assert message is first, "it has its mark"
    again.set_exception(BrokerUnavailable("away"))
    with pytest.raises(OutcomeUnknown, match="another"):
        await pending[0][0]


@pytest.mark.parametrize(
    ("code", "text", "is_whole"),
    [
        (404, "anything", True),
        (403, "ACCESS_REFUSED - access to exchange 'e' refused", True),
        (403, "ACCESS_REFUSED - access to topic 'k' refused", False),
        (406, "access to exchange 'e' refused", False),
    ],
)
def test_refusals_for_every_message(code: int, text: str, is_whole: bool) -> None:
    assert whole_exchange(RemoteError(code, text)) is is_whole


def test_what_a_caller_hears_of_a_lone_publish() -> None:
    assert isinstance(error_of(RemoteError(541, "INTERNAL_ERROR")), OutcomeUnknown)
    assert isinstance(error_of(RemoteError(406, "PRECONDITION_FAILED - partial tx completion")), PublishRefused)
    assert error_of(CAUSE) is CAUSE
    assert size_limit(RemoteError(406, "message size 5000 is larger than configured max size 4000")) == 4_000
    assert size_limit(CAUSE) is None


def test_refusals_are_remembered_until_their_time_is_up() -> None:
    refusals = Refusals()
    refusals.add("e", "k", AccessRefused(403, "access to topic 'k' refused"), 5.0)
    refusals.add("f", "k", NotFound(404, "no exchange"), 5.0)
    found = refusals.find("e", "k", 4.9)
    assert isinstance(found, AccessRefused)
    assert refusals.find("e", "k", 4.9) is not found, "each caller has its own"
    assert (refusals.find("e", "other", 4.9), refusals.find("g", "k", 4.9)) == (None, None)
    assert isinstance(refusals.find("f", "other", 4.9), NotFound)
    assert refusals.find("f", "other", 5.0) is None
    assert bool(refusals)
    refusals.forget("f")
    assert isinstance(refusals.find("e", "k", 4.9), AccessRefused)
    assert refusals.find("e", "k", 5.0) is None
    assert not refusals
