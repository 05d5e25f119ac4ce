"""Where a dead letter came from, and what is sent of it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from gateway.amqp.message import Message, Properties, RawProperties
from gateway.amqp.values import Typed
from gateway.errors import FrameSyntaxError
from gateway.fidelity import copy_of
from gateway.ledger import EventKind, RecordedEvent, StoredMessage, Timeline
from gateway.replays.places import ReplayPlace, new_id, told_by_ledger, told_by_message
from gateway.replays.requests import ReplayTarget


def message(headers: dict[str, Any] | None = None, **properties: Any) -> Message:
    return Message(b"x", Properties(headers=headers, **properties))


def undecodable() -> Message:
    def decode(octets: bytes) -> Properties:
        raise FrameSyntaxError("no property list")

    return Message(b"x", None, RawProperties(b"?", "rabbitmq", decode))


@pytest.mark.parametrize(
    ("headers", "place"),
    [
        (None, None),
        ({"a": 1}, None),
        ({"x-death": []}, None),
        ({"x-death": "nonsense"}, None),
        ({"x-death": [7]}, None),
        ({"x-death": [{"exchange": "shop"}]}, None),
        ({"x-death": [{"queue": "q"}]}, ReplayPlace("b", "", "", "q")),
        (
            {"x-death": [{"queue": "q", "exchange": "shop", "routing-keys": ["k", "cc"]}, {"queue": "older"}]},
            ReplayPlace("b", "shop", "k", "q"),
        ),
        ({"x-death": [{"queue": Typed("str8", "q"), "routing-keys": [b"\xff"]}]}, ReplayPlace("b", "", "\udcff", "q")),
        ({"x-gateway": {"queue": "q", "exchange": "shop", "routing_key": "k"}}, ReplayPlace("b", "shop", "k", "q")),
        ({"x-gateway": {"broker": "c", "exchange": "shop"}}, ReplayPlace("c", "shop", "", "")),
        ({"x-gateway": {"queue": "ours"}, "x-death": [{"queue": "q"}]}, ReplayPlace("b", "", "", "ours")),
        ({"x-gateway": {"id": "i"}, "x-death": [{"queue": "q"}]}, ReplayPlace("b", "", "", "q")),
    ],
)
def test_what_the_message_says(headers: dict[str, Any] | None, place: ReplayPlace | None) -> None:
    assert told_by_message(message(headers), "b") == place


def test_octets_that_are_no_property_list_say_nothing() -> None:
    assert told_by_message(undecodable(), "b") is None
    broken = undecodable()
    assert copy_of(broken, {"id": "1"}) is broken


def test_what_the_ledger_says() -> None:
    stored = StoredMessage(
        id=bytes(16), at=0, broker="b", version="", exchange="shop", routing_key="k", size=1, sha256=bytes(32),
        origin="broker", client="", properties={}, state=None,
    )  # fmt: skip
    events = [
        RecordedEvent(0, number, bytes(16), EventKind.DELIVERED, 0, broker, "", detail)
        for number, (broker, detail) in enumerate(
            [("b", {"queue": "first"}), ("b", {"queue": "last"}), ("c", {"queue": "elsewhere"}), ("b", {})]
        )
    ]
    assert told_by_ledger(None) is None
    assert told_by_ledger(Timeline(stored, [])) == ReplayPlace("b", "shop", "k", "")
    assert told_by_ledger(Timeline(stored, events)) == ReplayPlace("b", "shop", "k", "last")


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ({}, ReplayPlace("b", "", "q")),
        ({"broker": "b"}, ReplayPlace("b", "", "q")),
        ({"broker": "c"}, ReplayPlace("c", "shop", "k")),  # the queue is another broker's
        ({"exchange": "other"}, ReplayPlace("b", "other", "k")),
        ({"exchange": "amq.default", "routing_key": "z"}, ReplayPlace("b", "", "z")),
        ({"routing_key": "z"}, ReplayPlace("b", "shop", "z")),
    ],
)
def test_where_it_goes(target: dict[str, str], place: ReplayPlace) -> None:
    assert ReplayPlace("b", "shop", "k", "q").to(ReplayTarget(**target)) == place


def test_who_names_the_broker_makes_it_sure() -> None:
    told = ReplayPlace("c", "shop", "k", "q", unsure=True)
    assert told.to(ReplayTarget()).unsure
    assert told.to(ReplayTarget(exchange="other")).unsure
    assert told.to(ReplayTarget(broker="c")) == ReplayPlace("c", "", "q")


def test_without_a_queue_it_goes_where_it_was_published() -> None:
    assert ReplayPlace("b", "shop", "k").to(ReplayTarget()) == ReplayPlace("b", "shop", "k")


def test_what_is_sent_has_no_traces_of_earlier_ways() -> None:
    headers = {
        "x-death": [{"queue": "q"}],
        "x-first-death-queue": "q",
        "x-last-death-reason": "expired",
        "x-delivery-count": 3,
        "kept": 1,
        "x-gateway": {
            "id": "old", "origin": "o", "hops": "2", "via": "a,b", "resent": "1", "reason": "no", "bridge": "a",
            "queue": "q", "properties": {"user_id": "u"},
            "held": {"x-death": [1], "CC": ["c"]}, "held_at": "0,4",
        },
    }  # fmt: skip
    sent = copy_of(message(headers, correlation_id="c"), {"id": "new", "replay": "r"}).properties
    assert sent.correlation_id == "c"
    assert sent.headers == {
        "kept": 1,
        "x-gateway": {
            "properties": {"user_id": "u"}, "held": {"CC": ["c"]}, "held_at": "4", "id": "new", "replay": "r"
        },
    }  # fmt: skip
    bare = copy_of(message({"x-death": [{"queue": "q"}]}), {"id": "new"}, annotated=False).properties
    assert bare.headers is None
    only = copy_of(message({"x-gateway": {"held": {"x-death": [1]}, "held_at": "0"}}), {"id": "new"}).properties
    assert only.headers == {"x-gateway": {"id": "new"}}


def test_ids_are_the_same_for_the_same_and_dated() -> None:
    at = 1_763_757_600_123_456
    one = new_id(at, "job", "key")
    assert one == new_id(at, "job", "key")
    assert len({one, new_id(at, "job", "other"), new_id(at, "jobk", "ey"), new_id(at + 1_000, "job", "key")}) == 4
    uuid = UUID(bytes=one)
    assert (uuid.version, uuid.variant) == (7, "specified in RFC 4122")
    assert int.from_bytes(one[:6], "big") == at // 1_000
