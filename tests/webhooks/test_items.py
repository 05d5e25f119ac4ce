"""Messages on their way to an endpoint, under which id, and what the ledger says of them."""

from __future__ import annotations

from hashlib import sha256
from types import SimpleNamespace
from typing import Any, cast
from uuid import RFC_4122, UUID

import pytest

from gateway.amqp.message import Message, Properties
from gateway.core.sources.arrivals import Arrival, Arrivals
from gateway.core.sources.stored import envelope
from gateway.ledger.pending.owed import BacklogEntry, Ending
from gateway.upstreams import Delivery
from gateway.webhooks.attempts.items import PushDelivery, arrived, delivery_id, stored
from gateway.webhooks.attempts.notes import Notes, ended, reason_of
from gateway.webhooks.attempts.sender import SendOutcome

ID = bytes(range(16))


def delivered(body: bytes = b"body", *, redelivered: bool = False) -> Delivery:
    """What a broker delivers."""
    found = SimpleNamespace(
        message=Message(body, Properties()), exchange="x", routing_key="r", redelivered=redelivered, queue="q"
    )
    return cast(Delivery, found)


def row(*, resent: bool = False, **fields: Any) -> BacklogEntry:
    """A row of the ledger."""
    values: dict[str, Any] = {
        "id": ID, "message_id": ID[::-1], "subscription": "s", "order_key": b"", "at": 0, "due_at": 0, "attempt": 3,
        "lease": 7, "dead": False, "reason": {}, "size": 4, "payload": envelope(delivered(), resent=resent),
        "out": True, "due_in": 0.0,
    }  # fmt: skip
    return BacklogEntry(**{**values, **fields})


@pytest.mark.parametrize("body", [b"", b"a", b"b", b"c", b"d"])
def test_the_id_of_a_delivery_is_a_uuid_with_the_time_of_its_message(body: bytes) -> None:
    """So receivers may sort by it."""
    found = delivery_id(ID, "s", sha256(body).digest())
    uuid = UUID(bytes=found)
    assert (uuid.version, uuid.variant) == (7, RFC_4122)
    assert found[:6] == ID[:6]
    assert found == delivery_id(ID, "s", sha256(body).digest())
    assert found != delivery_id(ID, "t", sha256(body).digest())
    assert found != delivery_id(ID, "s", sha256(body + b".").digest())
    assert found != delivery_id(ID[:-1] + b"x", "s", sha256(body).digest())


def test_the_id_of_a_delivery_is_the_same_in_every_release() -> None:
    """A receiver knows a repeat by it, also when a newer release makes it."""
    assert delivery_id(ID, "s", sha256(b"body").digest()).hex() == "0001020304057b069dc4a45619d0fc51"


def test_a_delivery_of_a_broker_becomes_a_first_attempt() -> None:
    arrival = Arrival(delivered(b"12345", redelivered=True))
    arrival.id, arrival.sha256 = ID, sha256(b"12345").digest()
    item = arrived(arrival, "s")
    assert (item.size, item.attempt, item.lease, item.reason) == (5, 1, 0, {})
    assert (item.exchange, item.routing_key, item.message.body) == ("x", "r", b"12345")
    assert (item.redelivered, item.resent, item.doubtful) == (True, False, True)
    assert (item.arrival, item.delivery) == (arrival, arrival.delivery)
    assert item.id == delivery_id(ID, "s", arrival.sha256)


@pytest.mark.parametrize(
    ("in_message", "in_reason", "resent"),
    [(False, {}, False), (True, {}, True), (False, {"resent": True}, True), (False, {"resent": "yes"}, False)],
)
def test_a_row_of_the_ledger_says_whether_its_message_was_sent_again(
    in_message: bool, in_reason: dict[str, Any], *, resent: bool
) -> None:
    item = stored(row(resent=in_message, reason={"attempt": 2, **in_reason}))
    assert (item.resent, item.doubtful) == (resent, resent)
    assert (item.arrival, item.delivery) == (None, None)
    assert (item.id, item.message_id, item.attempt, item.lease, item.size) == (ID, ID[::-1], 3, 7, 4)
    assert (item.message.body, item.exchange, item.routing_key) == (b"body", "x", "r")
    again = reason_of(item, "it failed", 5, code="c")
    expected = {"reason": "it failed", "attempt": 3, "at": 5, "code": "c"}
    assert again == ({**expected, "resent": True} if in_reason.get("resent") is True else expected)


@pytest.mark.parametrize(("attempt", "doubtful"), [(1, False), (2, True), (0, False)])
def test_an_attempt_of_which_nobody_has_said_what_became_of_it_is_in_doubt(attempt: int, *, doubtful: bool) -> None:
    assert stored(row(attempt=attempt)).doubtful is doubtful
    assert not stored(row(attempt=attempt, reason={"attempt": attempt - 1})).doubtful


@pytest.mark.parametrize(("ending", "octets"), [(Ending.DONE, 4), (Ending.RETRY, 0), (Ending.DEAD, 0)])
def test_only_a_row_that_goes_gives_its_room_back(ending: Ending, octets: int) -> None:
    found = ended(stored(row()), ending, due_in=3.0)
    assert (found.id, found.ending, found.lease, found.due_in) == (ID, ending, 7, 3.0)
    assert found.octets == octets


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (None, {}),
        (SendOutcome(seconds=0.12345), {"seconds": 0.123}),
        (SendOutcome(seconds=1.0, status=200), {"seconds": 1.0, "status": 200}),
        (SendOutcome(status=500, excerpt="no"), {"seconds": 0.0, "status": 500, "response_body": "no"}),
    ],
)
@pytest.mark.parametrize("redelivered", [False, True])
def test_the_event_of_an_attempt_says_what_came_of_it(
    outcome: SendOutcome | None, says: dict[str, Any], *, redelivered: bool
) -> None:
    item = PushDelivery()
    item.attempt, item.redelivered = 2, redelivered
    found = Notes(cast(Arrivals, SimpleNamespace(name="s")), "e").detail(item, outcome, more="m")
    if redelivered:
        says = {**says, "redelivered": True}
    assert found == {"subscription": "s", "endpoint": "e", "attempt": 2, **says, "more": "m"}
