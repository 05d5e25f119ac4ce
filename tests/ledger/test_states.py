"""Kinds, states and what moves a message."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gateway.ledger.writing.states import (
    LATE_KINDS,
    PHASES,
    RULES,
    TRANSITIONS,
    Effect,
    EventKind,
    MessagePhase,
    MessageState,
    kinds_of,
    state_of,
)


def test_every_kind_has_a_rule_and_every_state_a_kind() -> None:
    assert set(RULES) == set(EventKind)
    assert {rule.state for rule in RULES.values()} == set(MessageState)
    assert set(TRANSITIONS) == {None, *MessageState}
    assert all(set(row) == set(EventKind) for row in TRANSITIONS.values())


@pytest.mark.parametrize("kind", EventKind)
def test_the_first_event_decides_the_state(kind: EventKind) -> None:
    assert state_of([kind]) is RULES[kind].state
    assert kind in kinds_of(RULES[kind].state)


def test_no_events_no_state() -> None:
    assert state_of([]) is None


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        ("accepted confirmed", "confirmed"),
        ("accepted unroutable", "unroutable"),
        ("accepted unknown resent confirmed", "confirmed"),
        ("accepted unknown resent unknown", "unknown"),
        ("accepted confirmed delivered lease_expired delivered acknowledged", "acknowledged"),
        ("accepted delivered acknowledged confirmed", "acknowledged"),
        ("received delivered extended", "delivered"),
        ("received delivered lease_lost", "released"),
        ("received delivered rejected dead_lettered", "dead_lettered"),
        ("accepted confirmed forwarded", "forwarded"),
        ("accepted forwarded confirmed", "forwarded"),
        ("reduced duplicate_dropped", "forwarded"),
        ("forwarded delivered acknowledged duplicate_dropped", "acknowledged"),
        ("stored dead duplicate_dropped", "dead"),
        ("forwarded forwarded delivered acknowledged", "acknowledged"),
        ("filtered", "discarded"),
        ("forwarded looped", "discarded"),
    ],
)
def test_stories(kinds: str, state: str) -> None:
    assert state_of(EventKind(kind) for kind in kinds.split()) == state


def test_no_event_leads_back_to_an_earlier_phase() -> None:
    for before, row in TRANSITIONS.items():
        for after in row.values():
            assert before is None or PHASES[after] >= PHASES[before]


def test_late_kinds_are_those_of_the_consume_phase() -> None:
    assert set(LATE_KINDS) == {kind for kind, rule in RULES.items() if rule.phase is MessagePhase.CONSUME}


def test_only_accepted_opens_an_obligation_and_every_outcome_of_a_publish_ends_it() -> None:
    assert [kind for kind, rule in RULES.items() if rule.effect is Effect.OPENS] == [EventKind.ACCEPTED]
    ending = {kind for kind, rule in RULES.items() if rule.effect in (Effect.SETTLES, Effect.PARKS)}
    assert ending == {
        EventKind.CONFIRMED,
        EventKind.UNROUTABLE,
        EventKind.REFUSED,
        EventKind.NOT_SENT,
        EventKind.UNKNOWN,
    }


def test_phases_are_ordered() -> None:
    assert all(first < second for first, second in pairwise(MessagePhase))
