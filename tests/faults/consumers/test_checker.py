"""The checker of a lane itself: each of its checks fails where it must."""

from __future__ import annotations

import random
from collections.abc import Sequence
from uuid import UUID

import pytest

from gateway.amqp.message import Message
from gateway.amqp.values import Typed
from tests.faults.checker import History, NotDrained, Outcome, Reception, Settled, Verdict
from tests.faults.consumers.checker import COLUMNS, Found, check, never_handed_out, row
from tests.faults.consumers.lanes import LANES, PULL, PUSH, STREAMS, Lane
from tests.faults.consumers.messages import digest_received, digest_sent, make_message
from tests.faults.source import Shape

BY_BROKER = Lane(PULL, "broker", "rabbitmq", "0-8")
BY_LEDGER = Lane(PULL, "ledger", "rabbitmq", "0-8")
PUSHED = Lane(PUSH, "broker", "rabbitmq", "0-8")


def found(lane: Lane, *receptions: Reception, broken: Sequence[float] = ()) -> Found:
    """One message, confirmed, and what consumers were handed of it."""
    history = History()
    history.attempt("a", "digest")
    history.answer("a", Outcome.ACKNOWLEDGED)
    for reception in receptions:
        history.receive(reception)
    history.drained = True
    return Found(lane, history, {"g": "acknowledged"}, broken)


def handed(
    since: float, until: float | None, ends: float | None, settled: Settled = Settled.ACKED, **more: object
) -> Reception:
    return Reception(
        "a",
        "digest",
        "g",
        since=since,
        until=until,
        ends=ends,
        settled=settled,
        **more,  # type: ignore[arg-type]
    )


GOOD = handed(1, 2, 11)
HELD = handed(1, None, 11, Settled.NO)


def problems(case: Found) -> str:
    return "; ".join(check(case).problems)


@pytest.mark.parametrize("lane", [BY_BROKER, BY_LEDGER, PUSHED])
def test_a_good_run(lane: Lane) -> None:
    assert check(found(lane, GOOD)) == Verdict(attempted=1, acknowledged=1, received=1)


def test_what_was_not_drained_is_an_error_and_no_pass() -> None:
    case = found(BY_LEDGER, GOOD)
    case.history.drained = False
    with pytest.raises(NotDrained):
        check(case)


def test_lost() -> None:
    case = found(BY_LEDGER)
    assert problems(case) == "1 lost: a"


def test_unexpected_and_changed() -> None:
    case = found(BY_LEDGER, GOOD)
    case.history.receive(Reception("b", "digest", "g", since=3, until=4, settled=Settled.ACKED))
    case.history.publishes["a"].digest = "another"
    assert "1 unexpected: b" in problems(case)
    assert "1 changed on the way: a" in problems(case)


def test_a_message_that_nobody_acknowledged() -> None:
    assert "1 received, never settled, and not delivered again: a" in problems(found(BY_LEDGER, HELD))


@pytest.mark.parametrize("lane", [BY_BROKER, BY_LEDGER])
def test_a_second_lease_before_the_first_has_run_out(lane: Lane) -> None:
    early, late = (handed(since, since + 1, 30, attempt=2) for since in (10.5, 11.0))
    assert problems(found(lane, HELD, early)) == "1 handed out while another lease went on: a (0.50 s too early)"
    assert check(found(lane, HELD, late)).valid


def test_two_copies_in_the_ledger_are_two_messages() -> None:
    """Its gateway died between commit and acknowledgement, and the message bore no id."""
    copy = handed(1.5, 2.5, 11.5, redelivered=True)
    copy.gateway_id = "h"
    case = found(BY_LEDGER, GOOD, copy)
    case.states = {"g": "acknowledged", "h": "acknowledged"}
    assert check(case).valid
    copy.gateway_id = "g"
    assert "1 out in two leases at once: a" in problems(case)
    assert "handed out while another lease went on" in problems(case)


def test_what_was_given_back_may_come_at_once() -> None:
    back = handed(1, 2, 11, Settled.RELEASED)
    assert check(found(BY_LEDGER, back, handed(2.1, 3, 12, attempt=2))).valid
    assert "handed out while another lease went on" in problems(found(BY_LEDGER, back, handed(1.9, 3, 12, attempt=2)))


def test_only_a_lease_of_the_broker_ends_with_its_channel() -> None:
    again = handed(5, 6, 15, redelivered=True)
    assert check(found(BY_BROKER, HELD, again, broken=[3.0])).valid
    assert check(found(BY_BROKER, HELD, again, broken=[-0.5])).valid, "it lay unread when its gateway died"
    assert "handed out" in problems(found(BY_BROKER, HELD, again, broken=[-1.5, 5.5]))
    assert "handed out" in problems(found(BY_LEDGER, HELD, again, broken=[3.0]))
    assert "handed out" in problems(found(PUSHED, HELD, again, broken=[3.0]))


def test_an_attempt_to_push_ends_when_its_connection_does() -> None:
    failed = handed(1, 2, None, Settled.NO, delivery="w")
    assert check(found(PUSHED, failed, handed(2.1, 3, None, delivery="w"))).valid
    assert "handed out" in problems(found(PUSHED, failed, handed(1.9, 3, None, delivery="w")))
    slow = handed(1, 9, 4, Settled.NO, delivery="w")
    assert check(found(PUSHED, slow, handed(4.1, 5, None, delivery="w"))).valid, "the gateway did not wait any longer"
    assert "handed out" in problems(found(PUSHED, slow, handed(3.9, 5, None, delivery="w")))


@pytest.mark.parametrize("mark", [{"redelivered": True}, {"resent": True}, {"attempt": 2}, {"delivery": "w"}])
def test_marks(mark: dict[str, object]) -> None:
    first = handed(1, 2, 11, delivery="w")
    assert check(found(BY_LEDGER, first, handed(12, 13, 22, **mark))).marked == 1


def test_a_repeat_without_a_mark() -> None:
    case = found(BY_LEDGER, handed(1, 2, 11, attempt=1, delivery="v"), handed(12, 13, 22, attempt=1, delivery="w"))
    assert problems(case).startswith("1 repeats without a mark: ")


def test_a_repeat_that_a_restarted_broker_has_forgotten() -> None:
    def case(moment: float, until: float = 2.0, id: str = "h") -> str:
        again = handed(5, 6, 15)
        again.gateway_id = id
        found_ = found(BY_BROKER, handed(1, until, 11), again, broken=[moment])
        found_.restarts = [(moment, moment + 0.4)]
        found_.states = {"g": "acknowledged", "h": "acknowledged"}
        return problems(found_)

    assert case(2.5) == ""
    assert "1 repeats without a mark" in case(4.5, until=-55.6), "it was settled long before"
    assert case(0.5) == "", "its broker may have handed it out before"
    assert "1 repeats without a mark" in case(-9.5), "it was not out yet"
    assert "1 repeats without a mark" in case(2.5, id="g"), "the gateway knows it by its id"


def test_what_the_ledger_held_when_its_broker_was_restarted() -> None:
    """Both copies are handed out long afterwards; what counts is when the gateway took them."""

    def case(restart: float) -> str:
        first, again = (str(UUID(int=int((1_000.0 + came) * 1_000) << 80 | 7 << 76)) for came in (3.0, 5.0))
        one, other = handed(20, 21, 30, attempt=1, delivery="v"), handed(31, 32, 41, attempt=1, delivery="w")
        one.gateway_id, other.gateway_id = first, again
        found_ = found(BY_LEDGER, one, other)
        found_.since_1970 = 1_000.0
        found_.restarts = [(restart, restart + 0.4)]
        found_.states = {first: "acknowledged", again: "acknowledged"}
        return problems(found_)

    assert case(4.0) == ""
    assert case(2.0) == "", "the gateway may have heard of it late"
    assert "1 repeats without a mark" in case(-9.0), "the first had not come yet"
    assert "1 repeats without a mark" in case(6.0), "the second had come already"
    assert "1 repeats without a mark" in case(25.0)


def test_the_ledger_says_something_else() -> None:
    case = found(BY_LEDGER, GOOD)
    case.states = {"g": "delivered"}
    assert problems(case) == "1 with another state in the ledger than observed: g (delivered, not acknowledged)"
    case.states = {}
    assert "g (absent, not acknowledged)" in problems(case)


def test_what_was_brought_once_more_and_dropped_stays_what_it_was() -> None:
    case = found(PUSHED, GOOD, broken=[3.0])
    case.states = {"g": "forwarded"}
    assert "g (forwarded, not acknowledged)" in problems(case)


def test_an_id_under_which_nobody_acknowledged_anything() -> None:
    """Where the broker holds the lease, another one took over; the ledger has one id for a message."""
    for lane, valid in ((BY_BROKER, True), (BY_LEDGER, False)):
        case = found(lane, HELD, handed(12, 13, 22, attempt=2))
        case.history.receptions[1].gateway_id = "h"
        case.states = {"g": "released", "h": "acknowledged"}
        assert check(case).valid is valid


def test_a_first_attempt_that_the_gateways_end_cut_off() -> None:
    """Only of what is pushed with the broker's lease, and only where it came again, the ledger may not know."""
    failed = handed(1, 2, None, Settled.NO)
    failed.gateway_id = "h"
    for lane, valid in ((PUSHED, True), (BY_BROKER, False), (BY_LEDGER, False)):
        assert check(found(lane, failed, handed(12, 13, 22, redelivered=True))).valid is valid
    case = found(PUSHED, handed(1, 2, None))
    case.states = {}
    assert "g (absent, not acknowledged)" in problems(case)


def test_what_no_consumer_ever_saw() -> None:
    case = found(BY_LEDGER, GOOD)
    states = {"g": "acknowledged", "h": "released", "i": "acknowledged", "j": "dead"}
    assert never_handed_out([case], states) == ["i (acknowledged)", "j (dead)"]


def test_the_line_of_the_table() -> None:
    assert len(row("calm", BY_BROKER, check(found(BY_BROKER, GOOD)), 0, 1.0, 7)) == len(COLUMNS)


def test_every_way_and_lease_from_every_broker_and_version() -> None:
    assert len({lane.slug for lane in (*LANES, *STREAMS)}) == len(LANES) + len(STREAMS) == 24
    assert {(lane.way, lane.lease) for lane in STREAMS} == {
        (way, lease) for way in ("sse", "ndjson") for lease in ("broker", "ledger")
    }


def test_the_digest_is_of_what_the_json_must_be() -> None:
    message = make_message(1, 2, random.Random(1), Shape())
    headers = dict(message.properties.headers or {})
    del headers["small"], headers["when"], headers["octets"]
    json = {
        "payload": message.body.decode(),
        "payload_encoding": "string",
        "properties": {
            name: getattr(message.properties, name)
            for name in (
                "content_type", "delivery_mode", "priority", "correlation_id", "message_id", "timestamp", "app_id"
            )
        },
        "headers": {
            **headers,
            "small": {"type": "int8", "value": 2},
            "when": {"type": "timestamp", "value": 1_700_000_002},
            "octets": {"type": "bytes", "value": "Av8="},
        },
    }  # fmt: skip
    assert digest_received(json) == digest_sent(message)
    json["headers"]["small"] = 2
    assert digest_received(json) != digest_sent(message)
    other = Message(message.body + b"x", message.properties)
    assert digest_sent(other) != digest_sent(message)
    assert Typed("int8", 2) == (message.properties.headers or {})["small"]
