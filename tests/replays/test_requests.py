"""Requests for replays: which go together with what, and what an error names."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.errors import EncodeError
from gateway.fidelity.deaths import CODES
from gateway.ledger import MessageState
from gateway.replays.places import ReplayPlace, told_by_message, was_at
from gateway.replays.requests import (
    DeliveriesSource,
    MessagesSource,
    QueueSource,
    ReplayRequest,
    ReplaySource,
    ReplayTarget,
    check,
    microseconds,
)

MESSAGES = ReplaySource(messages=MessagesSource())
DEAD = ReplaySource(deliveries=DeliveriesSource())
QUEUE = ReplaySource(queue=QueueSource(broker="b", queue="dead"))


@pytest.mark.parametrize(
    ("source", "target", "setting"),
    [
        (MESSAGES, {}, ""),
        (DEAD, {}, ""),
        (QUEUE, {}, ""),
        (ReplaySource(), {}, "source"),
        (ReplaySource(messages=MessagesSource(), queue=QueueSource(broker="b", queue="q")), {}, "source"),
        (ReplaySource(messages=MessagesSource(state="nonsense")), {}, "source.messages.state"),
        (ReplaySource(messages=MessagesSource(state=next(iter(MessageState)))), {}, ""),
        (ReplaySource(messages=MessagesSource(ids=("i",), routing_key="k")), {}, "source.messages.ids"),
        (ReplaySource(messages=MessagesSource(ids=("i",))), {}, ""),
        (ReplaySource(deliveries=DeliveriesSource(ids=("i",), code="expired")), {}, "source.deliveries.ids"),
        (ReplaySource(deliveries=DeliveriesSource(ids=("i",))), {}, ""),
        (ReplaySource(deliveries=DeliveriesSource(code="nonsense")), {}, "source.deliveries.code"),
        (ReplaySource(deliveries=DeliveriesSource(code=next(iter(CODES)))), {}, ""),
        (DEAD, {"purge": True}, ""),
        (MESSAGES, {"purge": True}, "target.purge"),
        (DEAD, {"purge": True, "broker": "b"}, "target.purge"),
        (MESSAGES, {"endpoint": "e"}, ""),
        (MESSAGES, {"url": "https://h.example/"}, ""),
        (MESSAGES, {"endpoint": "e", "url": "https://h.example/"}, "target.url"),
        (MESSAGES, {"url": "https://h.example/?a"}, "target.url"),
        (MESSAGES, {"endpoint": "e", "broker": "b"}, "target"),
        (MESSAGES, {"endpoint": "e", "exchange": ""}, "target"),
        (MESSAGES, {"url": "https://h.example/", "routing_key": "k"}, "target"),
        (MESSAGES, {"broker": "b", "exchange": "", "routing_key": "k"}, ""),
        (QUEUE, {"exchange": "", "routing_key": "dead"}, "target"),
        (QUEUE, {"broker": "b", "exchange": "amq.default", "routing_key": "dead"}, "target"),
        (QUEUE, {"broker": "c", "exchange": "", "routing_key": "dead"}, ""),
        (QUEUE, {"exchange": "shop", "routing_key": "dead"}, ""),
        (QUEUE, {"exchange": "", "routing_key": "other"}, ""),
        (QUEUE, {"routing_key": "dead"}, ""),
        (QUEUE, {"endpoint": "e"}, ""),
        (MESSAGES, {"exchange": "", "routing_key": "dead"}, ""),
    ],
)
def test_what_goes_together(source: ReplaySource, target: dict[str, Any], setting: str) -> None:
    asked = ReplayRequest(source=source, target=ReplayTarget(**target))
    if setting:
        with pytest.raises(EncodeError) as caught:
            check(asked)
        assert str(caught.value).startswith(f"{setting}:")
    else:
        check(asked)


def test_how_many_sources_were_given() -> None:
    with pytest.raises(EncodeError, match="must be given, not 0"):
        check(ReplayRequest(source=ReplaySource()))
    assert [source.kind for source in (MESSAGES, DEAD, QUEUE)] == ["messages", "deliveries", "queue"]


def test_microseconds() -> None:
    assert microseconds(None) is None
    assert microseconds(datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)) == 1_000_005


@pytest.mark.parametrize(
    ("place", "target", "to"),
    [
        (ReplayPlace("b", "shop", "k", "q"), {}, ReplayPlace("b", "", "q")),
        (ReplayPlace("b", "shop", "k", "q", unsure=True), {}, ReplayPlace("b", "", "q", unsure=True)),
        (ReplayPlace("b", "shop", "k", "q", unsure=True), {"broker": "b"}, ReplayPlace("b", "", "q")),
        (ReplayPlace("b", "shop", "k", "q"), {"broker": "c"}, ReplayPlace("c", "shop", "k")),
        (ReplayPlace("b", "shop", "k", "q"), {"exchange": "amq.default"}, ReplayPlace("b", "", "k")),
        (ReplayPlace("b", "shop", "k", "q"), {"routing_key": ""}, ReplayPlace("b", "shop", "")),
        (ReplayPlace("b", "shop", "k"), {}, ReplayPlace("b", "shop", "k")),
    ],
)
def test_where_a_message_goes(place: ReplayPlace, target: dict[str, Any], to: ReplayPlace) -> None:
    assert place.to(ReplayTarget(**target)) == to


@pytest.mark.parametrize(
    ("headers", "place"),
    [
        ({"x-gateway": {"exchange": ""}}, ReplayPlace("b", "", "", "")),
        ({"x-gateway": {"queue": "q", "broker": "c"}}, ReplayPlace("c", "", "", "q")),
        ({"x-gateway": {"routing_key": "k"}, "x-death": [{"queue": "q"}]}, ReplayPlace("b", "", "", "q")),
    ],
)
def test_what_the_message_says(headers: dict[str, Any], place: ReplayPlace) -> None:
    assert told_by_message(Message(b"x", Properties(headers=headers)), "b") == place


def test_nobody_knows_where_a_message_was() -> None:
    assert not was_at(None, "b")
