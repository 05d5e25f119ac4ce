"""What an outcome means, and when the next attempt is made, under a clock and a chance that are given."""

from __future__ import annotations

import random
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import errors
from gateway.errors import GatewayError
from gateway.fidelity.deaths import CODES
from gateway.webhooks.attempts.schedule import (
    DELAYS,
    ERRORS,
    HOUR,
    JITTER,
    MINUTE,
    PAUSE_MAX,
    PAUSE_MIN,
    RETRY_AFTER_MAX,
    STATUSES,
    AttemptOutcome,
    NextStep,
    Schedule,
    asks_to_drop,
    parse_retry_after,
)

NOW = 1_700_000_000.0
SCHEDULE = Schedule()
LAST = len(DELAYS)


def middle() -> float:
    return 0.5


def status(number: int, attempt: int = 1, retry_after: str | None = None, schedule: Schedule = SCHEDULE):  # type: ignore[no-untyped-def]
    return schedule.after_status(attempt, number, retry_after, NOW, middle)


def test_the_schedule_is_the_one_of_the_specification() -> None:
    waits = [SCHEDULE.before(attempt, middle) for attempt in range(1, LAST + 2)]
    assert waits == [0, 5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400, None]
    assert sum(DELAYS) == 75 * HOUR + 35 * MINUTE + 5


def test_each_attempt_is_within_its_jitter_and_uses_all_of_it() -> None:
    rng = random.Random(7)
    for attempt, delay in enumerate(DELAYS, 1):
        waits = [SCHEDULE.before(attempt, rng.random) for _ in range(500)]
        assert all(wait is not None and delay * (1 - JITTER) <= wait <= delay * (1 + JITTER) for wait in waits)
        if delay:
            assert min(waits) < delay * (1 - 0.9 * JITTER)  # type: ignore[type-var, operator]
            assert max(waits) > delay * (1 + 0.9 * JITTER)  # type: ignore[type-var, operator]


def test_a_message_that_always_fails_under_a_clock() -> None:
    """Ten attempts, each at its time, then dead."""
    rng = random.Random(3)
    at, times, attempt = 0.0, [], 1
    while True:
        times.append(at)
        next_step = SCHEDULE.after_status(attempt, 500, None, NOW + at, rng.random)
        if next_step.wait is None:
            break
        at += next_step.wait
        attempt += 1
    assert attempt == len(times) == 10
    assert next_step.dead
    assert sum(DELAYS) * (1 - JITTER) < at < sum(DELAYS) * (1 + JITTER)


@pytest.mark.parametrize(
    ("number", "verdict"),
    [
        *((number, AttemptOutcome.DELIVERED) for number in (200, 201, 202, 204, 206, 226, 299)),
        *((number, AttemptOutcome.RETRY) for number in (300, 301, 302, 303, 304, 307, 308, 399)),
        *(
            (number, AttemptOutcome.RETRY)
            for number in (400, 401, 403, 404, 405, 408, 409, 413, 422, 425, 428, 451, 499)
        ),
        (410, AttemptOutcome.DISABLE),
        (429, AttemptOutcome.PAUSE),
        (503, AttemptOutcome.PAUSE),
        *((number, AttemptOutcome.RETRY) for number in (500, 501, 502, 504, 507, 511, 599, 600, 999)),
    ],
)
def test_what_a_status_means(number: int, verdict: AttemptOutcome) -> None:
    next_step = status(number)
    assert next_step.outcome is verdict
    assert next_step.why.startswith(f"{number}: ")
    if verdict in (AttemptOutcome.DELIVERED, AttemptOutcome.DISABLE):
        assert (next_step.wait, next_step.dead) == (None, False)
    elif verdict is AttemptOutcome.RETRY:
        assert (next_step.wait, next_step.pause) == (5, 0)
        assert status(number, LAST).dead
    else:
        assert (next_step.wait, next_step.pause) == (5, PAUSE_MIN)


@pytest.mark.parametrize("number", [0, 1, 100, 199, 1_000])
def test_a_status_that_is_none_is_a_failure(number: int) -> None:
    assert status(number) == NextStep(AttemptOutcome.RETRY, f"{number}: the endpoint failed", 5)


def test_every_row_is_some_status() -> None:
    whys = {status(number).why.partition(": ")[2] for number in range(200, 1_000)}
    assert whys == {row.why for row in STATUSES if not row.asked}


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (errors.AddressDenied("x"), AttemptOutcome.RETRY),
        (errors.ResolveFailed("x"), AttemptOutcome.RETRY),
        (errors.ConnectFailed("x"), AttemptOutcome.RETRY),
        (errors.TlsFailed("x"), AttemptOutcome.RETRY),
        (errors.OutboundTimeout("x", sent=True), AttemptOutcome.RETRY),
        (errors.AnswerCut("x", sent=True), AttemptOutcome.RETRY),
        (errors.AnswerMalformed("x", sent=True), AttemptOutcome.RETRY),
        (errors.AnswerHeadTooLarge("x", sent=True), AttemptOutcome.RETRY),
        (errors.ConfigurationError("x"), AttemptOutcome.RETRY),
        (errors.EncodeError("x"), AttemptOutcome.UNDELIVERABLE),
        (errors.Overloaded("x"), AttemptOutcome.NOT_TRIED),
        (errors.StateError("x"), AttemptOutcome.RETRY),
        (GatewayError("x"), AttemptOutcome.RETRY),
    ],
)
def test_what_an_error_means(error: GatewayError, verdict: AttemptOutcome) -> None:
    next_step = SCHEDULE.after_error(2, error, middle)
    assert next_step.outcome is verdict
    assert next_step.why.endswith(": x")
    assert (
        next_step.wait
        == {AttemptOutcome.RETRY: 300, AttemptOutcome.UNDELIVERABLE: None, AttemptOutcome.NOT_TRIED: 1.5}[verdict]
    )
    last = SCHEDULE.after_error(LAST, error, middle)
    assert last.dead == (verdict is not AttemptOutcome.NOT_TRIED)


def test_every_outbound_error_has_a_meaning_of_its_own() -> None:
    of_ours = {error for error in errors.OutboundFailed.__subclasses__() if error.__module__ == errors.__name__}
    assert of_ours <= ERRORS.keys()


@pytest.mark.parametrize(
    ("number", "attempt", "asked", "wait", "pause"),
    [
        (429, 1, "2", 5, 2),  # never earlier than the schedule
        (429, 1, "120", 120, 120),
        (503, 2, "120", 300, 120),
        (503, 1, "999999999999", RETRY_AFTER_MAX, RETRY_AFTER_MAX),
        (503, 1, "0", 5, 0),
        (503, 1, None, 5, PAUSE_MIN),
        (503, 2, None, 300, PAUSE_MAX),
        (503, 1, "soon", 5, PAUSE_MIN),
        (500, 1, "120", 120, 0),  # honoured for this message, but only 429 and 503 speak for the endpoint
        (500, 1, "1", 5, 0),
        (429, LAST, "120", None, 120),  # no attempt is left, and the endpoint is left alone all the same
        (429, LAST, None, None, PAUSE_MIN),
        (410, 1, "120", None, 0),
        (200, 1, "120", None, 0),
    ],
)
def test_retry_after(number: int, attempt: int, asked: str | None, wait: float | None, pause: float) -> None:
    next_step = status(number, attempt, asked)
    assert (next_step.wait, next_step.pause) == (wait, pause)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("120", 120),
        (" 120\t", 120),
        ("0000120", RETRY_AFTER_MAX),  # more than six digits is not looked at
        ("86400", 86_400),
        ("86401", RETRY_AFTER_MAX),
        ("9" * 10_000, RETRY_AFTER_MAX),
        ("Tue, 14 Nov 2023 22:15:20 GMT", 120),
        ("Tuesday, 14-Nov-23 22:15:20 GMT", 120),
        ("Tue Nov 14 22:15:20 2023", 120),
        ("Wed Nov  1 22:15:20 2023", 0),
        ("Tue, 14 Nov 2023 22:13:20 GMT", 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 0),
        ("Tuesday, 14-Nov-73 22:15:20 GMT", RETRY_AFTER_MAX),  # 50 years ahead at most
        ("Wednesday, 14-Nov-74 22:15:20 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", RETRY_AFTER_MAX),
        ("Tue, 14 Nov 2023 22:15:60 GMT", 159),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("1e3", None),
        ("soon", None),
        ("١٢٠", None),
        ("120, 60", None),
        ("Tue, 14 Nov 2023 22:15:20", None),
        ("Tue, 14 Nov 2023 22:15:20 CET", None),
        ("Tue, 32 Nov 2023 22:15:20 GMT", None),
        ("Tue, 14 Foo 2023 22:15:20 GMT", None),
        ("Tue, 14 Nov 2023 25:15:20 GMT", None),
        ("Tue, 14 Nov 0000 22:15:20 GMT", None),
        ("2023-11-14T22:15:20Z", None),
    ],
)
def test_what_retry_after_says(text: str, seconds: float | None) -> None:
    assert parse_retry_after(text, NOW) == seconds


@given(st.integers(0, 100_000))
def test_a_date_is_as_good_as_the_seconds(seconds: int) -> None:
    assert parse_retry_after(formatdate(NOW + seconds, usegmt=True), NOW) == min(seconds, RETRY_AFTER_MAX)


@given(st.text(max_size=60))
def test_whatever_it_says(text: str) -> None:
    found = parse_retry_after(text, NOW)
    assert found is None or 0 <= found <= RETRY_AFTER_MAX


@pytest.mark.parametrize(
    ("delays", "jitter"), [((), 0.2), ((-1.0,), 0.2), ((0.0, 31 * 86_400.0), 0.2), ((0.0,), 1.0), ((0.0,), -0.1)]
)
def test_schedules_that_are_none(delays: tuple[float, ...], jitter: float) -> None:
    with pytest.raises(errors.ConfigurationError, match="retry schedule"):
        Schedule(delays, jitter)


def test_a_schedule_of_ones_own() -> None:
    short = Schedule((0, 1), 0)
    assert status(500, 1, schedule=short).wait == 1
    assert status(500, 2, schedule=short).dead


@pytest.mark.parametrize("number", [400, 404, 410, 422, 429, 499])
def test_a_receiver_that_asks_for_it_has_the_message_dropped(number: int) -> None:
    next_step = SCHEDULE.after_status(1, number, "60", NOW, middle, drop=True)
    assert next_step == NextStep(AttemptOutcome.DROP, f"{number}: the receiver asked to drop the message")
    assert (next_step.dead, next_step.code) == (True, "dropped_by_receiver")


@pytest.mark.parametrize("number", [200, 204, 302, 399, 500, 503, 999])
def test_it_asks_for_that_with_a_status_of_4xx_alone(number: int) -> None:
    asked = SCHEDULE.after_status(1, number, None, NOW, middle, drop=True)
    assert asked == SCHEDULE.after_status(1, number, None, NOW, middle)


@pytest.mark.parametrize(
    ("value", "asks"), [("drop", True), (" DROP\t", True), ("Drop", True), (None, False), ("", False), ("retry", False)]
)
def test_the_header_that_asks_for_it(value: str | None, *, asks: bool) -> None:
    assert asks_to_drop(value) is asks


def test_each_way_to_be_given_up_has_a_code_of_dead_letters() -> None:
    for verdict in AttemptOutcome:
        assert NextStep(verdict, "").code in CODES
