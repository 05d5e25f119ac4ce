"""The checker itself: each of its checks fails where it must."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace
from typing import Any

import pytest

from tests.faults.checker import (
    History,
    NotDrained,
    Outcome,
    Reception,
    Settled,
    Verdict,
    check,
    digest,
    row,
    table,
)
from tests.faults.ledgers import SqliteFile

A = digest(b"a", {"message_id": "a", "priority": None}, {"n": 1})
B = digest(b"b", {}, {})


def history() -> History:
    """Two messages, published, received once and settled; drained."""
    made = History()
    for id, what in (("a", A), ("b", B)):
        made.attempt(id, what)
        made.answer(id, Outcome.ACKNOWLEDGED, f"g-{id}")
        made.receive(Reception(id, what, f"g-{id}", since=1.0, until=2.0, settled=Settled.ACKED))
    made.drained = True
    return made


STATES = {"g-a": "acknowledged", "g-b": "acknowledged"}


def test_a_good_run() -> None:
    assert check(history(), STATES) == Verdict(attempted=2, acknowledged=2, received=2)


def test_what_was_not_drained_is_an_error_and_no_pass() -> None:
    made = history()
    made.drained = False
    with pytest.raises(NotDrained):
        check(made, STATES)


def test_lost() -> None:
    made = history()
    made.receptions.pop()
    verdict = check(made)
    assert verdict.lost == ["b"]
    assert verdict.problems == ["1 lost: b"]


def test_an_unknown_outcome_that_did_not_arrive_is_not_lost() -> None:
    made = history()
    made.receptions.pop()
    made.publishes["b"].outcome = Outcome.UNKNOWN
    verdict = check(made, STATES | {"g-b": "unknown"})
    assert verdict.valid
    assert (verdict.unknown, verdict.recovered) == (1, 0)


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, None])
def test_an_unknown_outcome_that_arrived_is_recovered(outcome: Outcome | None) -> None:
    made = history()
    made.publishes["b"].outcome = outcome
    verdict = check(made, STATES)
    assert verdict.valid
    assert (verdict.unknown, verdict.recovered, verdict.acknowledged) == (1, 1, 1)


def test_unexpected_is_what_nobody_sent() -> None:
    made = history()
    made.receive(Reception("c", A, settled=Settled.ACKED))
    assert check(made).problems == ["1 unexpected: c"]


def test_unexpected_is_what_was_refused_for_good() -> None:
    made = history()
    made.publishes["a"].outcome = Outcome.NOT_TAKEN
    assert check(made).problems == ["1 unexpected: a"]


def test_a_refusal_after_an_unknown_outcome_does_not_make_it_known() -> None:
    made = History()
    made.attempt("a", A)
    for outcome in (Outcome.NOT_TAKEN, Outcome.UNKNOWN, Outcome.NOT_TAKEN):
        made.answer("a", outcome)
    assert made.publishes["a"].outcome is Outcome.UNKNOWN
    made.answer("a", Outcome.ACKNOWLEDGED)
    assert made.publishes["a"].outcome is Outcome.ACKNOWLEDGED


def test_one_id_is_attempted_once() -> None:
    with pytest.raises(ValueError, match="a was attempted before"):
        history().attempt("a", A)


@pytest.mark.parametrize("mark", ["redelivered", "resent"])
def test_a_repeat_with_a_mark_is_counted(mark: str) -> None:
    made = history()
    made.receive(Reception("a", A, "g-a", since=3.0, until=4.0, settled=Settled.ACKED, **{mark: True}))  # type: ignore[arg-type]
    verdict = check(made, STATES)
    assert verdict.valid
    assert (verdict.duplicated, verdict.marked) == (1, 1)


def test_a_repeat_without_a_mark_is_a_problem() -> None:
    made = history()
    made.receive(Reception("a", A, "g-a", since=3.0, until=4.0, settled=Settled.ACKED))
    verdict = check(made, STATES)
    assert (verdict.duplicated, verdict.marked) == (1, 0)
    assert [problem.partition(":")[0] for problem in verdict.problems] == ["1 repeats without a mark"]


def test_a_mark_counts_for_one_repeat_only() -> None:
    made = history()
    for redelivered in (False, True):
        made.receive(Reception("a", A, "g-a", redelivered, settled=Settled.ACKED))
    assert check(made).marked == 1
    assert check(made).duplicated == 2


def test_what_was_changed_on_the_way() -> None:
    made = history()
    made.receptions[0].digest = B
    assert check(made).problems == ["1 changed on the way: a"]


@pytest.mark.parametrize("settled", [Settled.NO, Settled.RELEASED])
def test_what_was_received_and_not_settled_must_come_again(settled: Settled) -> None:
    made = history()
    made.receptions[0].settled = settled
    assert check(made).problems == ["1 received, never settled, and not delivered again: a"]
    made.receive(Reception("a", A, "g-a", redelivered=True, settled=Settled.ACKED))
    assert check(made, STATES).valid


def test_no_message_is_out_twice() -> None:
    made = history()
    made.receive(Reception("a", A, "g-a", redelivered=True, since=1.5, until=2.5, settled=Settled.ACKED))
    assert check(made, STATES).problems == ["1 out in two leases at once: a"]


@pytest.mark.parametrize(
    "second",
    [
        Reception("a", A, "g-a", resent=True, since=1.5, until=2.5, settled=Settled.ACKED),
        Reception("a", A, "g-a", redelivered=True, since=2.0, until=2.5, settled=Settled.ACKED),
        Reception("a", A, "g-a", redelivered=True, since=1.5),
    ],
    ids=["a copy", "afterwards", "its lease was lost"],
)
def test_what_is_no_second_lease(second: Reception) -> None:
    made = history()
    made.receive(second)
    assert check(made).valid


@pytest.mark.parametrize("state", ["accepted", "delivered", "confirmed", "released", "unknown", "not_sent"])
def test_the_ledger_says_what_was_observed(state: str) -> None:
    assert check(history(), STATES | {"g-a": state}).problems == [
        f"1 with another state in the ledger than observed: g-a ({state}, not acknowledged)"
    ]


def test_what_was_answered_is_in_the_ledger() -> None:
    [problem] = check(history(), {"g-a": "acknowledged"}).problems
    assert "g-b (absent, not acknowledged)" in problem


@pytest.mark.parametrize("state", ["accepted", "confirmed", "delivered", "acknowledged"])
def test_what_never_came_cannot_be_there_by_the_ledger(state: str) -> None:
    [problem] = check(history(), STATES | {"g-x": state}).problems
    assert f"g-x ({state}, not not_sent or refused or unknown or unroutable)" in problem


def test_the_attempts_that_were_not_taken_may_be_in_the_ledger() -> None:
    assert check(history(), STATES | {"g-x": "not_sent", "g-y": "refused", "g-z": "unroutable"}).valid


@pytest.mark.parametrize("state", ["acknowledged", "delivered", "released"])
def test_an_acknowledgement_without_an_answer_leaves_the_ledger_in_doubt(state: str) -> None:
    made = history()
    made.receptions[0].settled = Settled.UNCLEAR
    assert check(made, STATES | {"g-a": state}).valid
    assert not check(made, STATES | {"g-a": "confirmed"}).valid
    made.receive(Reception("a", A, "g-a", redelivered=True, since=3.0, until=4.0, settled=Settled.ACKED))
    assert check(made, STATES | {"g-a": state}).valid is (state == "acknowledged")


def test_what_others_took_the_ledger_cannot_know() -> None:
    made = history()
    made.receptions[0].elsewhere = True
    assert check(made, STATES | {"g-a": "confirmed"}).valid
    assert not check(made, STATES | {"g-a": "not_sent"}).valid


def test_the_digest_tells_bodies_properties_and_headers_apart() -> None:
    assert digest(b"a", {"message_id": "a"}, {"n": 1}) == A
    assert (
        len({digest(b"a", {}, {}), digest(b"b", {}, {}), digest(b"a", {"x": 1}, {}), digest(b"a", {}, {"x": 1})}) == 4
    )


def test_the_table() -> None:
    verdict = Verdict(attempted=20_000, acknowledged=19_990, duplicated=3, marked=3, unknown=10)
    lines = table([row("gateway killed", "RabbitMQ 0-9-1", verdict, 12.4)]).splitlines()
    assert lines[2] == (
        "| gateway killed | RabbitMQ 0-9-1 |    20,000 |       19,990 |    0 |          0 |          3 |      3 "
        "|         0 |      10 |      12 |"
    )
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(
    ("kinds", "doubled"),
    [
        (["accepted", "confirmed", "delivered", "acknowledged"], 0),
        (["accepted", "confirmed", "delivered", "delivered"], 1),
        (["accepted", "resent", "confirmed", "delivered", "delivered", "acknowledged", "acknowledged"], 0),
        (["accepted", "resent", "confirmed", "delivered", "delivered", "delivered"], 1),
        (["accepted", "resent", "confirmed", "confirmed"], 1),
    ],
)
def test_an_event_that_is_there_twice_is_found_unless_there_are_two_copies(kinds: list[str], doubled: int) -> None:
    run: Any = SimpleNamespace(name="run")
    with SqliteFile() as place:
        with sqlite3.connect(place.file) as connection:
            rows = [(0, number, bytes(16), kind, 1, "b", "", b"") for number, kind in enumerate(kinds)]
            connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        connection.close()
        if not doubled:
            place.check(run)
            return
        with pytest.raises(AssertionError, match=f"run: {doubled} events that are there twice"):
            place.check(run)
