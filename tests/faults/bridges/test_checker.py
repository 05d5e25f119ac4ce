"""The checker of bridges itself: each of its checks fails where it must."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.values import Typed
from gateway.fidelity import RESERVED
from tests.faults.bridges.checker import COLUMNS, Accident, Copy, Found, Recorded, Verdict, check, row
from tests.faults.bridges.load import digest
from tests.faults.checker import History, NotDrained, Outcome, table

MILLISECOND = 1_700_000_000_000


def gateway_id(number: int, at: int = 0) -> str:
    """An id that was made ``at`` milliseconds after the beginning."""
    digits = f"{MILLISECOND + at:012x}7000{number:016x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def accident(at: int, most: int = 2) -> Accident:
    return Accident(at=(MILLISECOND + at) / 1000, in_flight=1, most=most, counts=True)


def found() -> Found:
    """Three messages, forwarded once each; drained."""
    history = History()
    copies, recorded = [], {}
    for number, id in enumerate("abc"):
        history.attempt(id, f"digest of {id}")
        history.answer(id, Outcome.ACKNOWLEDGED)
        copies.append(Copy(id, f"digest of {id}", gateway_id(number), f"source/{id}"))
        recorded[gateway_id(number)] = Recorded(id, "forwarded", "target")
    history.drained = True
    return Found(history, copies, (), recorded)


def again(copy: Copy, number: int, at: int = 0) -> Copy:
    """A second copy, of which the ledger was not told."""
    return replace(copy, gateway_id=gateway_id(number, at), resent=True)


def problems(case: Found) -> str:
    return "; ".join(check(case).problems)


def test_a_good_run() -> None:
    assert check(found()) == Verdict(attempted=3, acknowledged=3)


def test_what_was_not_drained_is_an_error_and_no_pass() -> None:
    case = found()
    case.history.drained = False
    with pytest.raises(NotDrained):
        check(case)


def test_lost() -> None:
    case = found()
    case.history.attempt("d", "digest of d")
    case.history.answer("d", Outcome.ACKNOWLEDGED)
    assert check(case).lost == ["d"]
    assert problems(case) == "1 lost: d"


@pytest.mark.parametrize("outcome", [None, Outcome.UNKNOWN, Outcome.NOT_TAKEN])
def test_a_publish_without_an_acknowledgement_may_be_lost(outcome: Outcome | None) -> None:
    case = found()
    case.history.attempt("d", "digest of d").outcome = outcome
    assert check(case).valid


@pytest.mark.parametrize("outcome", [None, Outcome.UNKNOWN])
def test_recovered(outcome: Outcome | None) -> None:
    case = found()
    case.history.publishes["a"].outcome = outcome
    assert check(case) == Verdict(attempted=3, acknowledged=2, recovered=1)


def test_unexpected() -> None:
    case = found()
    del case.history.publishes["a"]
    case.history.publishes["b"].outcome = Outcome.NOT_TAKEN
    assert sorted(check(case).unexpected) == ["a", "b"]
    assert "2 unexpected: a, b" in problems(case)


def test_changed() -> None:
    case = found()
    case.history.publishes["b"].digest = "another"
    assert problems(case) == "1 changed on the way: b"


def test_a_duplicate_before_an_accident() -> None:
    case = found()
    case.accidents = [accident(10)]
    case.copies = [*case.copies, again(case.copies[0], 7, at=5)]
    assert check(case) == Verdict(attempted=3, acknowledged=3, duplicated=1, marked=1, bound=2, unrecorded=1)


def test_a_duplicate_without_a_mark() -> None:
    case = found()
    case.accidents = [accident(10)]
    case.copies = [*case.copies, replace(again(case.copies[0], 7, at=5), resent=False)]
    assert problems(case) == "1 duplicates without a mark"


def test_a_copy_under_the_same_id_is_a_duplicate_too() -> None:
    """A publish without an outcome is repeated under the id that it had."""
    case = found()
    case.accidents = [accident(10)]
    case.copies = [*case.copies, replace(case.copies[0], resent=True)]
    assert check(case) == Verdict(attempted=3, acknowledged=3, duplicated=1, marked=1, bound=2, unrecorded=1)


def test_a_duplicate_without_an_accident() -> None:
    case = found()
    case.copies = [*case.copies, again(case.copies[0], 7)]
    assert "1 duplicates, and there may be 0" in problems(case)


def test_a_duplicate_after_the_last_accident() -> None:
    case = found()
    case.accidents = [accident(10)]
    case.copies = [*case.copies, again(case.copies[0], 7, at=15)]
    assert problems(case) == "1 copies that are not in the ledger came of no accident, which may have 0"


def test_more_duplicates_of_one_accident_than_were_in_flight() -> None:
    case = found()
    case.accidents = [accident(10), accident(20)]
    case.copies = [*case.copies, *(again(copy, 7 + number, at=15) for number, copy in enumerate(case.copies))]
    assert check(case).bound == 4
    assert problems(case) == "3 copies that are not in the ledger came of accident 1, which may have 2"


@pytest.mark.parametrize("forgets", [False, True])
def test_a_duplicate_that_the_ledger_knows_should_have_been_dropped(forgets: bool) -> None:
    """Unless the source did not say that it came again."""
    case = found()
    case.accidents = [replace(accident(10, most=1), forgets=forgets)]
    case.copies = [*case.copies, again(case.copies[0], 7, at=15)]
    case.recorded = {**case.recorded, gateway_id(7, 15): Recorded("a", "forwarded", "target")}
    assert problems(case) == ("" if forgets else "1 recorded as forwarded more than once: a")


def test_more_of_these_than_were_in_flight() -> None:
    case = found()
    case.accidents = [replace(accident(10, most=1), forgets=True), accident(20)]
    for number, id in enumerate("ab"):
        case.copies = [*case.copies, again(case.copies[number], 7 + number, at=15)]
        case.recorded = {**case.recorded, gateway_id(7 + number, 15): Recorded(id, "forwarded", "target")}
    assert problems(case) == "2 recorded as forwarded more than once: a, b"


def test_origins() -> None:
    case = found()
    case.copies[0].origin = ""
    case.copies[1].origin = "source/c"
    assert "1 without an origin id: a" in problems(case)
    assert "1 with the origin id of another message: c" in problems(case)
    case = found()
    case.accidents = [accident(10)]
    case.copies = [*case.copies, replace(again(case.copies[0], 7, at=5), origin="source/other")]
    assert problems(case) == "1 with several origin ids: a"


def test_the_ledger_names_what_the_target_has_not() -> None:
    case = found()
    case.recorded = {**case.recorded, gateway_id(9): Recorded("z", "forwarded", "target")}
    assert problems(case) == f"1 recorded as forwarded, and not at the target: {gateway_id(9)} (z)"


def test_the_ledger_does_not_know_of_a_message() -> None:
    case = found()
    case.accidents = [accident(10)]
    case.recorded = {id: recorded for id, recorded in case.recorded.items() if recorded.id != "a"}
    assert problems(case) == "1 at the target, and nowhere recorded: a"


def test_a_state_that_ends_nothing() -> None:
    case = found()
    case.recorded = {**case.recorded, gateway_id(9): Recorded("z", "received")}
    assert problems(case) == f"1 in a state that ends nothing: {gateway_id(9)} (received)"


def dead(case: Found, **changes: str) -> Found:
    """One message more, which was poison."""
    case.history.attempt("p", "digest of p")
    case.history.answer("p", Outcome.ACKNOWLEDGED)
    case.poison = frozenset({"p"})
    case.dead = [replace(Copy("p", "digest of p", gateway_id(9), "source/p", reason="too large"), **changes)]
    case.recorded = {**case.recorded, gateway_id(9): Recorded("p", "dead_lettered", "")}
    return case


def test_poison() -> None:
    assert check(dead(found())) == Verdict(attempted=4, acknowledged=4, dead=1)


def test_poison_without_its_reason() -> None:
    assert problems(dead(found(), reason="")) == "1 at the dead-letter place without a reason: p"


def test_poison_that_is_nowhere() -> None:
    case = dead(found())
    case.dead = ()
    assert "1 poison, and not at the dead-letter place: p" in problems(case)


def test_poison_at_the_target() -> None:
    case = dead(found())
    case.copies = [*case.copies, again(case.dead[0], 9)]
    assert "1 poison, and at the target: p" in problems(case)


def test_a_good_message_at_the_dead_letter_place() -> None:
    case = dead(found())
    case.poison = frozenset()
    assert problems(case) == "1 at the dead-letter place, and no poison: p"


def test_the_ledger_does_not_know_of_poison() -> None:
    case = dead(found())
    case.recorded = {id: recorded for id, recorded in case.recorded.items() if recorded.id != "p"}
    assert "1 at the dead-letter place, and not so in the ledger: p" in problems(case)


def test_the_line_of_the_table() -> None:
    line = row("gateway killed", "from to", check(found()), [accident(10)], 1, 12.3, 7)
    assert len(line) == len(COLUMNS)
    text = table([line], COLUMNS)
    assert text.splitlines()[2].split("|")[1:4] == [" gateway killed ", " from to ", "         3 "]


def test_the_digest_sees_body_properties_and_types_and_not_the_reserved_header() -> None:
    def of(body: bytes = b"x", **properties: object) -> str:
        return digest(Message(body, Properties(**properties)))  # type: ignore[arg-type]

    plain = of(headers={"a": 1, "b": 2})
    assert plain == of(headers={"a": 1, "b": 2, RESERVED: {"id": "1"}})
    assert len({plain, of(b"y", headers={"a": 1, "b": 2}), of(headers={"b": 2, "a": 2}), of(priority=1)}) == 4
    assert plain == of(headers={"b": 2, "a": 1})
    assert of(headers={"a": 1}) != of(headers={"a": Typed("int8", 1)})
    assert of() == of(headers={}) == of(headers={RESERVED: {"id": "1"}})
