"""``gateway pull``: what becomes of the messages, and of the leases."""

from __future__ import annotations

import pytest

from gateway import commands
from gateway.commands import Failure
from gateway.commands.client import ApiClient
from gateway.commands.pull import settle
from tests.commands.conftest import Canned, Run


def test_more_than_a_broker_and_a_queue_is_wrong_usage(run: Run) -> None:
    assert run("pull", "a", "b", "c").exit_code == commands.USAGE


@pytest.mark.parametrize(
    ("statuses", "exit_status", "said"),
    [
        (["SUCCESS", "LEASE_LOST"], commands.PARTLY_DONE, "1 acknowledged, 1 not (LEASE_LOST)"),
        (["LEASE_LOST", "INVALID_ACK_ID"], commands.FAILED, "0 acknowledged, 2 not (INVALID_ACK_ID, LEASE_LOST)"),
    ],
)
def test_leases_that_are_gone_are_told(canned: Canned, statuses: list[str], exit_status: int, said: str) -> None:
    ids = [f"a{number}" for number in range(len(statuses))]
    results = [{"ack_id": ack_id, "status": status} for ack_id, status in zip(ids, statuses, strict=True)]
    canned.answer(200, {"results": results})
    with pytest.raises(Failure, match=r".*not \(.*") as caught:
        settle(ApiClient(canned.url, None), "/v1/subscriptions/s", "acknowledge", ids)
    assert caught.value.exit_code == exit_status
    assert said in caught.value.message
    assert canned.asked[0][1:] == (
        "/v1/subscriptions/s:acknowledge",
        canned.asked[0][2],
        {"ack_ids": ids},
    )
