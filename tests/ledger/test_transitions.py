"""The table of transitions: what it lets pass, and what it names."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ledger.writing.transitions import (
    BEGIN,
    NOTES,
    PUBLISH_KINDS,
    SAME,
    STEPS,
    TRANSITIONS,
    EventVariant,
    TraceEvent,
    TraceScope,
    impossible,
    is_possible,
)

S = {"subscription": "s"}
PULL = {**S, "queue": "q", "redelivered": False}
BRIDGE = {"bridge": "b"}
PUSH = {**S, "endpoint": "e"}
SECOND = 1_000_000


def lease(number: int) -> dict[str, Any]:
    return {**S, "lease": number}


def traced(*told: str | tuple[str, dict[str, Any]]) -> list[TraceEvent]:
    """Events of one shard, a second apart."""
    rows = [(each, {}) if isinstance(each, str) else each for each in told]
    return [TraceEvent.of(kind, detail, number * SECOND, 0, number) for number, (kind, detail) in enumerate(rows, 1)]


def broken(*told: str | tuple[str, dict[str, Any]], is_cut: bool = False) -> list[tuple[str, str]]:
    """The impossible transitions: the event before, and the event."""
    found = impossible(traced(*told), is_cut=is_cut)
    return [("" if each.before is None else each.before.step, each.event.step) for each in found]


def test_every_kind_has_a_rule_or_may_come_at_any_time() -> None:
    ruled = {step for rules in TRANSITIONS.values() for step in rules}
    assert ruled == set(STEPS) - NOTES
    assert {kind for kind in PUBLISH_KINDS if kind not in TRANSITIONS[TraceScope.PUBLISH]} == set()


@pytest.mark.parametrize("scope", TraceScope)
def test_every_rule_names_steps_of_its_scope_and_says_why(scope: TraceScope) -> None:
    rules = TRANSITIONS[scope]
    for step, rule in rules.items():
        assert rule.after, step
        assert rule.after <= rules.keys() | {BEGIN}, step
        assert rule.why.endswith("."), step
        assert len(rule.why.split()) <= 25, step


POSSIBLE: dict[str, list[Any]] = {
    "published": ["accepted", "confirmed"],
    "published without an intent": ["confirmed"],
    "unknown, and sent again": ["accepted", "unknown", "resent", "unknown", "resent", "confirmed"],
    "sent again behind a poisoned message": ["resent", "refused"],
    "later, with another time": ["scheduled", ("scheduled", {"rescheduled": True}), "confirmed"],
    "later, refused and retried": ["scheduled", "refused", ("scheduled", {"retry": True}), "resent", "confirmed"],
    "later, refused and taken back": ["scheduled", "refused", "cancelled"],
    "copies of a replay": [("confirmed", {"replay": "r"}), "resent", ("confirmed", {"replay": "r"})],
    "pulled": ["received", ("delivered", PULL), ("extended", S), ("acknowledged", S)],
    "a process died": [("delivered", PULL), ("delivered", PULL), ("acknowledged", S)],
    "in a queue twice": [("delivered", PULL), ("delivered", PULL), ("acknowledged", S), ("acknowledged", S)],
    "lost before it was written": [("lease_lost", S), ("delivered", PULL)],
    "handed back before it was written": [("released", {**S, "reason": "shut down"}), ("delivered", PULL)],
    "rejected, and brought back by its broker": [("delivered", PULL), ("rejected", S), ("delivered", PULL)],
    "stored, leased, dead, revived": [
        ("stored", PULL), ("delivered", lease(1)), ("lease_expired", lease(1)), ("delivered", lease(2)),
        ("dead", lease(2)), ("revived", S), ("delivered", lease(3)), ("acknowledged", lease(3))],
    "late, and in time": [("delivered", lease(1)), ("released", lease(1)), ("acknowledged", lease(1))],
    "purged while it is dead": [("dead", S), ("purged", S)],
    "pushed at once, with a reply": ["received", ("replied", PUSH), ("acknowledged", PUSH)],
    "pushed at the second attempt": [("stored", PULL), ("attempt_failed", PUSH), ("acknowledged", PUSH)],
    "dead-lettered after an attempt": [("attempt_failed", PUSH), ("dead_lettered", PUSH)],
    "bridged": [("forwarded", BRIDGE), ("reduced", BRIDGE), ("duplicate_dropped", BRIDGE)],
    "bridged in a transaction that was undone": [
        ("prepared", BRIDGE), ("released", {**BRIDGE, "reason": "r"}), ("prepared", BRIDGE), ("forwarded", BRIDGE)],
    "two subscriptions": [("delivered", PULL), ("stored", {"subscription": "t"}), ("acknowledged", S)],
    "more copies than are counted": [*[("delivered", PULL)] * (SAME + 3), *[("acknowledged", S)] * (SAME + 3)],
    "what says nothing": ["replayed", ("duplicate_dropped", {"tap": "t"}), ("spooled", {"tap": "t"})],
}  # fmt: skip


@pytest.mark.parametrize("case", POSSIBLE)
def test_what_a_gateway_writes_is_possible(case: str) -> None:
    assert broken(*POSSIBLE[case]) == []
    for first in range(len(POSSIBLE[case])):
        assert broken(*POSSIBLE[case][first:], is_cut=True) == [], "nor where the first events are gone"


IMPOSSIBLE: dict[str, tuple[list[Any], list[tuple[str, str]]]] = {
    "two outcomes": (["accepted", "confirmed", "not_sent"], [("confirmed", "not_sent")]),
    "an outcome of what was unknown": (["accepted", "unknown", "confirmed"], [("unknown", "confirmed")]),
    "accepted twice": (["accepted", "accepted", "confirmed"], [("accepted", "accepted")]),
    "received after it was published": (["confirmed", "received"], [("confirmed", "received")]),
    "published after it was received": (["received", ("delivered", PULL), "confirmed"], [("received", "confirmed")]),
    "retried, and never scheduled": ([("scheduled", {"retry": True})], [("", "scheduled again")]),
    "cancelled once it is confirmed": (["scheduled", "confirmed", "cancelled"], [("confirmed", "cancelled")]),
    "a copy without a mark": ([("confirmed", {"replay": "r"})] * 2, [("confirmed copy", "confirmed copy")]),
    "acknowledged, and not handed out": ([("acknowledged", S)], [("", "acknowledged")]),
    "acknowledged twice": (
        [("delivered", PULL), ("acknowledged", S), ("acknowledged", S)], [("acknowledged", "acknowledged")]),
    "rejected after it was released": (
        [("delivered", PULL), ("released", S), ("rejected", S)], [("released", "rejected")]),
    "extended in another subscription": (
        [("delivered", PULL), ("extended", {"subscription": "t"})], [("", "extended")]),
    "handed out while it is dead": (
        [("delivered", lease(1)), ("dead", lease(1)), ("delivered", lease(2))], [("dead", "leased again")]),
    "revived alive": ([("stored", PULL), ("revived", S)], [("stored", "revived")]),
    "purged after it was acknowledged": (
        [("delivered", lease(1)), ("acknowledged", lease(1)), ("purged", S)], [("acknowledged", "purged")]),
    "reduced, and not forwarded": ([("reduced", BRIDGE)], [("", "reduced")]),
    "released by a bridge without a branch": (
        [("forwarded", BRIDGE), ("released", BRIDGE)], [("forwarded", "released")]),
}  # fmt: skip


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_no_gateway_writes_is_named(case: str) -> None:
    told, names = IMPOSSIBLE[case]
    assert broken(*told) == names


def test_a_transition_is_named_with_both_events_their_times_and_the_rule() -> None:
    (found,) = impossible(traced("accepted", "confirmed", "not_sent"))
    assert str(found) == (
        "publish: not_sent at 1970-01-01T00:00:03.000000Z after confirmed at 1970-01-01T00:00:02.000000Z."
        " A publish has one outcome. After an unknown one it is sent again first."
    )
    (first,) = impossible(traced(("acknowledged", S)))
    assert str(first).startswith("subscription:s: acknowledged at 1970-01-01T00:00:01.000000Z as the first event. Only")


def test_what_follows_an_impossible_event_is_judged_by_it() -> None:
    assert broken("confirmed", "accepted", "confirmed", "confirmed") == [
        ("confirmed", "accepted"),
        ("confirmed", "confirmed"),
    ]


def test_where_the_beginning_is_missing_only_the_rest_is_judged() -> None:
    assert broken(("acknowledged", S), ("acknowledged", S), is_cut=True) == []
    assert broken("unknown", "confirmed", is_cut=True) == [("unknown", "confirmed")]
    assert broken("confirmed", "cancelled", is_cut=True) == [("confirmed", "cancelled")]


@pytest.mark.parametrize(("ahead", "count"), [(30, 0), (90, 1)])
def test_clocks_of_two_processes_differ_a_little(ahead: int, count: int) -> None:
    """One process handed it out, and another one took the acknowledgement, whose clock is behind."""
    out = TraceEvent.of("delivered", lease(1), (1_000 + ahead) * SECOND, 1, 7)
    done = TraceEvent.of("acknowledged", lease(1), 1_000 * SECOND, 2, 1)
    assert len(impossible([out, done])) == count
    again = TraceEvent.of("acknowledged", lease(1), 1_001 * SECOND, 2, 2)
    assert len(impossible([out, done, again])) >= 1


def test_numbers_of_a_shard_are_in_order_whatever_its_clock_says() -> None:
    events = [TraceEvent.of("accepted", {}, 5, 0, 1), TraceEvent.of("confirmed", {}, 4, 0, 2)]
    assert impossible(events) == impossible(events[::-1]) == []
    assert len(impossible([events[0]._replace(sequence=3), events[1]])) == 1


def test_a_way_of_letters_is_judged_as_its_events() -> None:
    for told, is_right in [*((told, True) for told in POSSIBLE.values()),
                           *((told, False) for told, _ in IMPOSSIBLE.values())]:  # fmt: skip
        ways: dict[str, list[str]] = {}
        for event in traced(*told):
            ways.setdefault(event.scope, []).append(event.step)
        ways.pop("", None)
        assert is_right is all(
            is_possible(TraceScope(scope.partition(":")[0]), way, False) for scope, way in ways.items()
        )


def test_unknown_kinds_are_no_events() -> None:
    with pytest.raises(ValueError, match="teleported"):
        TraceEvent.of("teleported", {}, 0, 0, 1)
    assert EventVariant("pushed") in STEPS
