"""What tells one publish from another under the same key; and entries, which become publications again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from gateway.amqp.message import Message, Properties
from gateway.amqp.values import Typed
from gateway.core import Publication
from gateway.core.publishing import envelopes
from gateway.core.publishing.entries import keyed_entry, publication_of
from gateway.core.publishing.fingerprints import of_message, of_request, older_of_message
from gateway.ledger import MessageIds, OutboxEntry, id_text
from tests.core.fakes import FakeUpstream

ITEM = Publication("orders", Message(b"body", Properties(headers={"a": 1, "b": {"c": 1, "d": 2}})))


def of(*items: Publication | str, batch: bool = False, later: bool = False) -> bytes:
    return of_request("fake", "shop", items, batch=batch, later=later)


def test_what_tells_requests_apart() -> None:
    at = 1_900_000_000_000_000
    digests = [
        of(),
        of(ITEM),
        of(ITEM, batch=True),
        of(ITEM, later=True),
        of(ITEM, batch=True, later=True),
        of(ITEM, ITEM),
        of(replace(ITEM, routing_key="order")),
        of(replace(ITEM, routing_key="", message=Message(b"ordersbody", ITEM.message.properties))),
        of("limit_exceeded"),
        of("not_found"),
        of("limit_exceeded", ITEM),
        of(ITEM, "limit_exceeded"),
        of(replace(ITEM, not_before=at)),
        of(replace(ITEM, not_before=at + 1)),
        of(replace(ITEM, not_before=at, delay_seconds=5.0)),
        of(replace(ITEM, not_before=at, delay_seconds=6.0)),
        of(replace(ITEM, not_before=5, delay_seconds=None)),
    ]
    assert len(set(digests)) == len(digests)


def test_a_delay_means_the_same_whenever_it_is_asked_for() -> None:
    """Of a repeat the time is another one, and the delay is not."""
    assert of(replace(ITEM, not_before=1, delay_seconds=5.0)) == of(replace(ITEM, not_before=2, delay_seconds=5.0))


def test_the_context_of_a_trace_tells_nothing_apart() -> None:
    """A repeat has one of its own, which the gateway puts into the message."""
    traced = ITEM.message.altered(Properties(headers={"a": 1, "b": {"c": 1, "d": 2}, "traceparent": "00-1"}))
    first = replace(ITEM, message=traced, given=ITEM.message)
    assert of_message("fake", "shop", first) == of_message("fake", "shop", ITEM)
    assert of_message("fake", "shop", replace(ITEM, message=traced)) != of_message("fake", "shop", ITEM)


def test_the_order_of_members_tells_nothing_apart() -> None:
    def digest(headers: dict[str, Any]) -> bytes:
        return of_message("fake", "shop", Publication("orders", Message(b"", Properties(headers=headers))))

    assert digest({"x": Typed("table", {"a": 1, "b": 2})}) == digest({"x": Typed("table", {"b": 2, "a": 1})})
    assert digest({"x": Typed("table", {"a": 1, "b": 2})}) != digest({"x": Typed("table", {"a": 2, "b": 1})})
    assert digest({"x": Typed("int8", 1)}) != digest({"x": 1})
    assert digest({}) != digest({"x": None})


@pytest.mark.parametrize("left_out", [None, (), ("CC",), ("CC", "BCC")])
def test_what_a_broker_had_before_is_another_message(left_out: tuple[str, ...] | None) -> None:
    relayed = Publication("orders", Message(b"body", ITEM.message.properties, None, left_out, relayed=True))
    others = [of_message("fake", "shop", ITEM)]
    for other in (None, (), ("CC",), ("CC", "BCC")):
        if other != left_out:
            message = Message(b"body", ITEM.message.properties, None, other, relayed=True)
            others.append(of_message("fake", "shop", replace(ITEM, message=message)))
    assert of_message("fake", "shop", relayed) not in others
    assert len(set(others)) == 4


@pytest.mark.parametrize(("is_given", "count"), [(True, 1), (False, 2)])
def test_what_an_earlier_release_kept_is_known(is_given: bool, count: int) -> None:
    """It took ``mandatory`` for false where nobody gave it."""
    item = replace(ITEM, is_mandatory_given=is_given)
    found = list(older_of_message("fake", "shop", item, envelopes.encode(item.message, True))())
    assert len(set(found)) == count
    false = list(older_of_message("fake", "shop", ITEM, envelopes.encode(item.message, False))())
    assert (false[0] in found) is not is_given


# ------------------------------------------------------------------------------------------------------ entries


def entry(**changes: Any) -> OutboxEntry:
    item = replace(ITEM, id=MessageIds()())
    return structs.replace(keyed_entry(FakeUpstream(), "shop", item, "alice", 7), **changes)  # type: ignore[arg-type]


def test_an_entry_is_what_is_to_be_sent() -> None:
    item = replace(ITEM, id=MessageIds()())
    made = keyed_entry(FakeUpstream(), "shop", item, "alice", 7)  # type: ignore[arg-type]
    assert (made.broker, made.exchange, made.routing_key, made.at) == ("fake", "shop", "orders", 7)
    assert made.message is not None
    assert (made.message.client, made.message.size, made.message.origin) == ("alice", 4, "http")
    found = publication_of(made)
    assert (found.id, found.text) == (item.id, id_text(item.id))
    assert (found.message.body, found.message.properties) == (b"body", ITEM.message.properties)
    assert (found.mandatory, found.resent) == (True, False)
    encoded = envelopes.encode(ITEM.message, False)
    given = keyed_entry(FakeUpstream(), "shop", item, "alice", 7, encoded)  # type: ignore[arg-type]
    assert given.payload == encoded


@pytest.mark.parametrize(
    ("changes", "resent"),
    [
        ({}, False),
        ({"doubtful": True}, True),
        ({"reason": {"resent": True}}, True),
        ({"reason": {"resent": False}}, False),
        ({"doubtful": True, "reason": {"resent": True}}, True),
    ],
)
def test_what_may_have_been_sent_is_marked(changes: dict[str, Any], resent: bool) -> None:
    assert publication_of(entry(**changes)).resent is resent


@pytest.mark.parametrize(
    ("key", "mandatory", "reason", "expected"),
    [
        ("k", True, {}, True),
        ("k", False, {}, False),
        ("", True, {}, True),
        ("", False, {}, True),  # of an earlier release, where nobody chose it
        ("", False, {"mandatory": False}, False),
        ("", True, {"mandatory": False}, True),
    ],
)
def test_a_message_stays_mandatory(key: str, mandatory: bool, reason: dict[str, Any], expected: bool) -> None:
    made = entry(key=key, reason=reason, payload=envelopes.encode(ITEM.message, mandatory))
    assert publication_of(made).mandatory is expected
