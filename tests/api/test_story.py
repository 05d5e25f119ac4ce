"""What happened, in words."""

from __future__ import annotations

import shlex
from typing import Any

import click
import pytest

from gateway.api.history import story
from gateway.api.history.story import ADVICE, ENDS, SAYS, WAITS, Holding, Step, Wait
from gateway.commands import Noun, cli
from gateway.ledger import (
    BacklogEntry,
    EventKind,
    MessageIds,
    MessageState,
    OutboxEntry,
    RecordedEvent,
    StoredMessage,
    id_text,
)
from gateway.ledger.writing.states import RULES, state_of

new_id = MessageIds()
ONE, OTHER = new_id(), new_id()
AT = 1_800_000_000_000_000


def message(state: MessageState | None = MessageState.CONFIRMED, **fields: Any) -> StoredMessage:
    values: dict[str, Any] = {
        "id": ONE, "at": AT, "broker": "old", "version": "0-8", "exchange": "", "routing_key": "orders", "size": 5,
        "sha256": bytes(32), "origin": "http", "client": "shop", "properties": {}, "state": state,
    }  # fmt: skip
    return StoredMessage(**(values | fields))


def event(kind: EventKind, broker: str = "old", version: str = "0-8", **detail: Any) -> RecordedEvent:
    return RecordedEvent(0, 1, ONE, kind, AT, broker, version, detail)


def delivery(**fields: Any) -> BacklogEntry:
    values: dict[str, Any] = {
        "id": OTHER, "message_id": ONE, "subscription": "billing", "order_key": b"", "at": AT, "due_at": AT,
        "attempt": 3, "lease": 3, "dead": False, "reason": {}, "size": 5,
    }  # fmt: skip
    return BacklogEntry(**(values | fields))


def test_every_kind_has_its_sentence_and_every_state_its_place() -> None:
    assert set(SAYS) == set(EventKind)
    assert set(ENDS) == set(MessageState)
    assert set(ADVICE) <= set(MessageState)
    for kind in EventKind:
        said = story.sentence(message(), event(kind))
        assert said
        assert "{" not in said, said
        state = RULES[kind].state
        assert "{" not in story.now(message(state), [event(kind)], Holding())
        for step in story.advice(message(state), [event(kind)], Holding(body=True)):
            assert "{" not in step.command


@pytest.mark.parametrize(
    ("happened", "said"),
    [
        (event(EventKind.ACCEPTED),
         "The gateway took it, to publish it to exchange 'amq.default' of old, routing key 'orders', from shop."),
        (event(EventKind.CONFIRMED), "The broker old (0-8) confirmed it: it is safe there."),
        (event(EventKind.REFUSED, text="ACCESS_REFUSED"), "The broker old (0-8) refused it. [ACCESS_REFUSED]"),
        (event(EventKind.DELIVERED, subscription="billing", queue="q", attempt=2, redelivered=True),
         "It was handed to a consumer (attempt 2). [subscription billing; queue q]"),
        (event(EventKind.FORWARDED, "new", "0-10", bridge="east", target="new", exchange="x", routing_key="k",
               resent=True),
         "The bridge published it at exchange 'x' of new, routing key 'k', sent a second time after an unknown outcome,"
         " where it was confirmed. [bridge east]"),
        (event(EventKind.REDUCED, "new", "0-10", bridge="east", losses=[{"name": "dropped", "field": "cluster_id"}]),
         "What the version there cannot carry was left out: dropped (cluster_id). [bridge east]"),
        (event(EventKind.REDUCED), "What the version there cannot carry was left out: ?."),
        (event(EventKind.ATTEMPT_FAILED, subscription="billing", endpoint="shop", attempt=4, status=503, reason="busy"),
         "An attempt to push it failed (attempt 4) with HTTP status 503. [subscription billing; endpoint shop; "
         "reason: busy]"),
        (event(EventKind.DEAD_LETTERED, place={"broker": "new", "exchange": "", "routing_key": "dead"},
               reason="r\x1b[m"),
         "It was published to the dead-letter destination at exchange 'amq.default' of new, routing key 'dead' and "
         "confirmed there. [reason: r\\x1b[m]"),
        (event(EventKind.REPLAYED, url="https://hooks.example/x", replay="r-1"),
         "A replay sent it once more to https://hooks.example/x. [replay r-1]"),
        (event(EventKind.EXTENDED, seconds=30), "The consumer asked for more time, 30 s from then."),
        (event(EventKind.SCHEDULED, not_before="2027-01-15T08:00:00Z"),
         "The ledger took it, to publish it later to exchange 'amq.default' of old, routing key 'orders', from shop, "
         "not before 2027-01-15T08:00:00Z."),
    ],
)  # fmt: skip
def test_sentences(happened: RecordedEvent, said: str) -> None:
    assert story.sentence(message(), happened) == said


def test_a_way_over_brokers_and_versions() -> None:
    """Each event names the broker and the version that it happened at."""
    way = [
        event(EventKind.ACCEPTED),
        event(EventKind.CONFIRMED),
        event(EventKind.FORWARDED, "new", "0-10", bridge="east", exchange="x", routing_key="k"),
        event(EventKind.DELIVERED, "new", "0-10", subscription="billing", attempt=1),
        event(EventKind.LEASE_EXPIRED, "new", "0-10", subscription="billing"),
    ]
    found = message(state_of(each.kind for each in way))
    assert len(story.story(found, way)) == 5
    assert story.now(found, way, Holding()) == "It is at the broker new, waiting for its next delivery."
    assert story.advice(found, way, Holding()) == [Step("Take it.", "gateway pull billing")]


@pytest.mark.parametrize(
    ("fields", "now", "command"),
    [
        ({"dead": True, "reason": {"reason": "no such order", "status": 422}},
         "It is dead for the subscription billing, after 3 attempts; the ledger keeps it. The last time: no such order,"
         " HTTP status 422.", f"gateway dlq redrive {id_text(OTHER)}"),
        ({"out": True, "due_in": 5.0}, "A consumer of billing has it (attempt 3), until 2027-01-15T08:00:00Z.",
         "gateway subscriptions show billing"),
        ({"out": True, "due_in": -5.0, "attempt": 1},
         "The ledger owes it to the subscription billing, after one attempt; next at once.",
         "gateway subscriptions show billing"),
        ({"due_in": 60.0, "attempt": 0, "reason": {"error": "timed out"}},
         "The ledger owes it to the subscription billing, after no attempt; next at 2027-01-15T08:00:00Z. The last"
         " time: timed out.", "gateway subscriptions show billing"),
    ],
)  # fmt: skip
def test_what_is_owed_is_told_before_the_state(fields: dict[str, Any], now: str, command: str) -> None:
    holding = Holding([delivery(**fields)])
    events = [event(EventKind.ACKNOWLEDGED, subscription="other")]
    assert story.now(message(MessageState.ACKNOWLEDGED), events, holding) == now
    assert story.advice(message(MessageState.ACKNOWLEDGED), events, holding)[0].command == command


def test_several_subscriptions_are_owed_it() -> None:
    holding = Holding([delivery(), delivery(subscription="audit", dead=True)])
    assert story.now(message(), [], holding).count("subscription") == 2


def test_publishes_of_later() -> None:
    row = OutboxEntry(message_id=ONE, broker="old", exchange="", routing_key="", payload=b"", at=AT, due_at=AT)
    assert story.now(message(MessageState.SCHEDULED), [], Holding(outbox=row)) == (
        "The ledger holds it, to publish it to old at 2027-01-15T08:00:00Z."
    )
    dead = OutboxEntry(
        message_id=ONE, broker="old", exchange="", routing_key="", payload=b"", at=AT, dead=True, reason={"text": "no"}
    )
    assert story.now(message(MessageState.SCHEDULED), [], Holding(outbox=dead)).endswith("The last attempt failed: no.")
    for held, number in ((row, 2), (dead, 2)):
        steps = story.advice(message(MessageState.SCHEDULED), [], Holding(outbox=held))
        assert len(steps) == number
        assert f"DELETE /v1/scheduled/{id_text(ONE)}" in steps[-1].what


def test_what_is_in_doubt_and_what_is_not_known() -> None:
    assert "repeats its Idempotency-Key" in story.now(message(MessageState.UNKNOWN), [], Holding(in_doubt=True))
    assert story.now(message(None), [], Holding()).startswith("Nothing is known")
    assert story.advice(message(None), [], Holding()) == []


def test_a_body_that_is_kept_can_be_sent_again() -> None:
    steps = story.advice(message(MessageState.ACKNOWLEDGED), [], Holding(body=True))
    assert len(steps) == 1
    assert id_text(ONE) in steps[0].command


def waiting_for(code: str) -> Holding:
    return Holding(waits=[Wait("bil ling", code, endpoint="shop", reason="r\x1b", queue="orders", broker="old")])


@pytest.mark.parametrize("code", WAITS)
def test_why_it_waits_is_told_with_what_can_be_done(code: str) -> None:
    said = story.now(message(), [event(EventKind.CONFIRMED)], waiting_for(code))
    assert said.startswith("It is at the broker old; nobody took it through the gateway yet. ")
    assert said.endswith(": r\\x1b.")
    assert "{" not in said
    assert story.advice(message(), [event(EventKind.CONFIRMED)], waiting_for(code))


def test_a_reason_that_says_nothing_more_is_left_out() -> None:
    holding = Holding(waits=[Wait("billing", "endpoint_paused", endpoint="shop", reason="paused: paused")])
    said = story.now(message(), [event(EventKind.CONFIRMED)], holding)
    assert said.endswith("The endpoint shop of the subscription billing is paused.")


def test_every_command_that_is_told_is_one() -> None:
    words = {
        "id": id_text(ONE), "broker": "old", "subscription": "billing", "bridge": "east", "endpoint": "shop",
        "queue": "orders", "dead_broker": "old", "dead_queue": "dead",
    }  # fmt: skip
    told = [step.command.format_map(words) for steps in ADVICE.values() for step in steps] + [
        step.command
        for dead in (True, False)
        for step in story.advice(message(), [], Holding([delivery(dead=dead)], body=True))
    ]
    told += [step.command for code in WAITS for step in story.advice(message(), [], waiting_for(code))]
    assert len(told) > 8
    for command in filter(None, told):
        program, *arguments = shlex.split(command)
        assert program == "gateway"
        context: click.Context = click.Context(cli)
        found: click.Command = cli
        while isinstance(found, click.Group):
            arguments = found.with_verb(context, arguments) if isinstance(found, Noun) else arguments
            name = arguments.pop(0)
            inner = found.get_command(context, name)
            assert inner is not None, command
            found = inner
        if "FILE" not in arguments:  # which must be there
            found.make_context(name, arguments)


def test_a_command_without_its_name_is_not_told() -> None:
    assert story.advice(message(MessageState.RELEASED), [event(EventKind.RELEASED)], Holding()) == []


def test_a_dead_letter_says_where_its_copy_is_and_why() -> None:
    place = {"broker": "new", "exchange": "", "routing_key": "dead letters"}
    events = [
        event(EventKind.DEAD_LETTERED, subscription="billing", place=place, reason="no such order", code="rejected")
    ]
    assert story.now(message(MessageState.DEAD_LETTERED), events, Holding()) == (
        "A copy is confirmed at the dead-letter destination at exchange 'amq.default' of new, routing key "
        "'dead letters'. Why: no such order."
    )
    assert [step.command for step in story.advice(message(MessageState.DEAD_LETTERED), events, Holding())] == [
        "gateway queues show new 'dead letters'",
        "gateway dlq redrive --broker new --queue 'dead letters' --dry-run",
    ]


def test_a_rejection_that_names_its_destination_says_that_the_copy_is_there() -> None:
    """As it was recorded where the copy was published by the gateway."""
    told = {"subscription": "billing", "dead_letter_exchange": "x", "dead_letter_routing_key": "dead"}
    rejected = event(EventKind.REJECTED, reason="no such order", **told)
    where = "a copy was confirmed at the dead-letter destination at exchange 'x' of old, routing key 'dead'."
    assert where in story.sentence(message(), rejected)
    assert story.now(message(MessageState.REJECTED), [rejected], Holding()) == (
        "A copy is confirmed at the dead-letter destination at exchange 'x' of old, routing key 'dead'. "
        "Why: no such order."
    )
    assert "confirmed" not in story.now(message(MessageState.REJECTED), [event(EventKind.REJECTED, **told)], Holding())


def test_advice_shows_the_queue_that_the_message_is_in() -> None:
    steps = story.advice(message(routing_key="a b"), [event(EventKind.CONFIRMED)], Holding())
    assert [step.command for step in steps] == ["gateway queues show old 'a b'"]
    assert story.advice(message(exchange="x"), [event(EventKind.CONFIRMED)], Holding()) == []


def test_other_messages_are_named_once() -> None:
    events = [
        event(EventKind.REPLIED, reply_id=id_text(OTHER)),
        event(EventKind.REPLAYED, id=id_text(OTHER), replay="r"),
        event(EventKind.REPLAYED, id="no id", origin_id=id_text(ONE)),
    ]
    assert story.related(message(), events) == [id_text(OTHER)]
