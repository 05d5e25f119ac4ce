"""What the outcome of an attempt means, and when the next one is made. Pure: time and chance are arguments.

An attempt ends with a status or with an error. :data:`STATUSES` and :data:`ERRORS` say what that means for the message
and for the endpoint; :class:`Schedule` says when to try again. A message that waits for its next attempt holds nothing:
its time is a value to be stored.

``Retry-After`` (RFC 9110 section 10.2.3) moves the next attempt back, never forward, and by a day at most.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Final

from gateway.errors import (
    AddressDenied,
    AnswerCut,
    AnswerHeadTooLarge,
    AnswerMalformed,
    ConfigurationError,
    ConnectFailed,
    EncodeError,
    GatewayError,
    OutboundFailed,
    OutboundTimeout,
    Overloaded,
    ResolveFailed,
    TlsFailed,
    TokenRefused,
)

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0
DELAYS: Final = (0.0, 5.0, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR)
"""Before each attempt, in seconds; 75 h 35 m in all."""
JITTER: Final = 0.2
"""Part of a delay by which it is longer or shorter."""
RETRY_AFTER_MAX: Final = DAY
"""Longest ``Retry-After`` that is respected, in seconds."""
PAUSE_MIN, PAUSE_MAX = 5.0, MINUTE
"""How long an endpoint is left alone that asks for it without saying how long, in seconds: as long as the message
waits, within these."""

Chance = Callable[[], float]
"""``random.Random().random``: from 0 to 1, without 1."""


class AttemptOutcome(StrEnum):
    """What becomes of the message, and of its endpoint."""

    DELIVERED = "delivered"
    """Done."""
    RETRY = "retry"
    """This attempt failed. There is another one, as long as the schedule has one."""
    PAUSE = "pause"
    """The same, and the endpoint gets nothing at all for a while."""
    DISABLE = "disable"
    """The endpoint wants nothing any more: it is disabled, and its messages wait for its owner."""
    DROP = "drop"
    """The receiver does not want this message: it is dead at once."""
    UNDELIVERABLE = "undeliverable"
    """This message can never be sent: it is dead at once."""
    NOT_TRIED = "not_tried"
    """We were too busy. It is no attempt, and is made again soon."""


@dataclass(frozen=True, slots=True)
class StatusRule:
    """One row: statuses from ``first`` to ``last``."""

    first: int
    last: int
    outcome: AttemptOutcome
    why: str
    asked: bool = False
    """Only where the answer has the header :data:`DROP_HEADER` with the value :data:`DROP`."""


DROP_HEADER: Final = "Webhook-Verdict"
DROP: Final = "drop"
"""Header of an answer, and its value, with which a receiver says that it wants the message never again."""

REFUSED_IT: Final = "the receiver refused it: is its key, or its credential, that of the endpoint?"

STATUSES: Sequence[StatusRule] = (
    StatusRule(200, 299, AttemptOutcome.DELIVERED, "success"),
    StatusRule(400, 499, AttemptOutcome.DROP, "the receiver asked to drop the message", asked=True),
    StatusRule(300, 399, AttemptOutcome.RETRY, "a redirect, which is never followed: correct the endpoint's URL"),
    StatusRule(401, 401, AttemptOutcome.RETRY, REFUSED_IT),
    StatusRule(403, 403, AttemptOutcome.RETRY, REFUSED_IT),
    StatusRule(410, 410, AttemptOutcome.DISABLE, "the endpoint is gone and says so"),
    StatusRule(429, 429, AttemptOutcome.PAUSE, "too many requests"),
    StatusRule(503, 503, AttemptOutcome.PAUSE, "the endpoint is overloaded or under repair"),
    StatusRule(200, 999, AttemptOutcome.RETRY, "the endpoint failed"),
)
"""The first row that fits counts."""

ERRORS: Mapping[type[GatewayError], tuple[AttemptOutcome, str]] = {
    EncodeError: (AttemptOutcome.UNDELIVERABLE, "the request cannot be written"),
    Overloaded: (AttemptOutcome.NOT_TRIED, "the gateway has too many requests under way"),
    ConfigurationError: (AttemptOutcome.RETRY, "a file of the endpoint's TLS settings is missing or wrong"),
    AddressDenied: (AttemptOutcome.RETRY, "the guard does not let us call there"),
    ResolveFailed: (AttemptOutcome.RETRY, "the host has no address"),
    ConnectFailed: (AttemptOutcome.RETRY, "nobody took the connection"),
    TlsFailed: (AttemptOutcome.RETRY, "TLS failed"),
    OutboundTimeout: (AttemptOutcome.RETRY, "no whole answer in time"),
    AnswerCut: (AttemptOutcome.RETRY, "the endpoint hung up"),
    AnswerMalformed: (AttemptOutcome.RETRY, "the answer is no HTTP/1.1"),
    AnswerHeadTooLarge: (AttemptOutcome.RETRY, "the head of the answer is too large"),
    TokenRefused: (AttemptOutcome.RETRY, "there is no OAuth2 token for it"),
    OutboundFailed: (AttemptOutcome.RETRY, "there is no answer"),
}
"""By the nearest class; an error that is not listed is a fault of the gateway and is tried again."""


DEAD_CODES: Final[Mapping[AttemptOutcome, str]] = {
    AttemptOutcome.DROP: "dropped_by_receiver",
    AttemptOutcome.UNDELIVERABLE: "undeliverable",
}
"""Outcome -> code of the dead letter. After any other outcome the schedule has no attempt left."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """What follows from one attempt."""

    outcome: AttemptOutcome
    why: str
    wait: float | None = None
    """Until the next attempt of this message, in seconds; None: there is none."""
    pause: float = 0.0
    """How long the endpoint gets nothing, in seconds."""

    @property
    def dead(self) -> bool:
        """Whether the message is given up: it can never be sent, or there is no attempt left."""
        return self.wait is None and self.outcome not in (AttemptOutcome.DELIVERED, AttemptOutcome.DISABLE)

    @property
    def code(self) -> str:
        """Of a message that is given up, why: one of :data:`gateway.fidelity.deaths.CODES`."""
        return DEAD_CODES.get(self.outcome, "attempts_exhausted")


@dataclass(frozen=True, slots=True)
class Schedule:
    """When attempts are made."""

    delays: Sequence[float] = DELAYS
    """Before the first attempt, the second, …, in seconds."""
    jitter: float = JITTER

    def __post_init__(self) -> None:
        """Raises ConfigurationError where it is no schedule."""
        if not self.delays or not all(0 <= delay <= 30 * DAY for delay in self.delays):
            raise ConfigurationError("retry schedule: it needs delays, each from 0 to 30 days")
        if not 0 <= self.jitter < 1:
            raise ConfigurationError(f"retry schedule: jitter is {self.jitter:g}, not from 0 to below 1")

    def before(self, attempt: int, chance: Chance) -> float | None:
        """How long to wait before this attempt (the first is 1), counted from the end of the one before; None: there is
        no such attempt. Anywhere within the jitter, evenly."""
        if attempt > len(self.delays):
            return None
        return self.delays[attempt - 1] * (1 + self.jitter * (2 * chance() - 1))

    def after_status(
        self, attempt: int, status: int, retry_after: str | None, now: float, chance: Chance, *, drop: bool = False
    ) -> NextStep:
        """What follows from an answer to this attempt (the first is 1). ``retry_after`` is the header, ``now`` is in
        seconds since 1970; ``drop``: the answer asks to drop the message."""
        rule = rule_of(status, drop=drop)
        why = f"{status}: {rule.why}"
        if rule.outcome in (AttemptOutcome.DELIVERED, AttemptOutcome.DISABLE, AttemptOutcome.DROP):
            return NextStep(rule.outcome, why)
        asked = None if retry_after is None else parse_retry_after(retry_after, now)
        wait = self.before(attempt + 1, chance)
        pause = 0.0
        if rule.outcome is AttemptOutcome.PAUSE:
            pause = asked if asked is not None else min(max(wait or 0.0, PAUSE_MIN), PAUSE_MAX)
        if wait is not None:
            wait = max(wait, asked or 0.0, pause)
        return NextStep(rule.outcome, why, wait, pause)

    def after_error(self, attempt: int, error: GatewayError, chance: Chance) -> NextStep:
        """What follows where there was no answer."""
        known = next((ERRORS[cls] for cls in type(error).__mro__ if cls in ERRORS), None)
        outcome, what = known or (AttemptOutcome.RETRY, "a fault of the gateway")
        why = f"{what}: {error}"
        if outcome is AttemptOutcome.UNDELIVERABLE:
            return NextStep(outcome, why)
        if outcome is AttemptOutcome.NOT_TRIED:
            return NextStep(outcome, why, 1 + chance())
        return NextStep(outcome, why, self.before(attempt + 1, chance))


@lru_cache(1_000)
def rule_of(status: int, *, drop: bool = False) -> StatusRule:
    """The row that fits a status; ``drop``: the answer asks to drop the message."""
    fits = (rule for rule in STATUSES if rule.first <= status <= rule.last and (drop or not rule.asked))
    return next(fits, STATUSES[-1])


def asks_to_drop(value: str | None) -> bool:
    """Whether the value of the header :data:`DROP_HEADER` asks to drop the message."""
    return value is not None and value.strip(" \t").lower() == DROP


# ------------------------------------------------------------------------------------------------- Retry-After

_SECONDS: Final = re.compile(r"[0-9]+")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TIME: Final = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_DATES: Final = tuple(
    re.compile(pattern, re.ASCII)
    for pattern in (
        rf"[A-Z][a-z]{{2}}, (?P<day>\d\d) (?P<month>[A-Z][a-z]{{2}}) (?P<year>\d{{4}}) {_TIME} GMT",
        rf"[A-Z][a-z]+day, (?P<day>\d\d)-(?P<month>[A-Z][a-z]{{2}})-(?P<year>\d\d) {_TIME} GMT",
        rf"[A-Z][a-z]{{2}} (?P<month>[A-Z][a-z]{{2}}) (?P<day>[\d ]\d) {_TIME} (?P<year>\d{{4}})",
    )
)
"""RFC 9110 section 5.6.7: IMF-fixdate, and the two old ones."""


def parse_retry_after(text: str, now: float) -> float | None:
    """Seconds from ``now`` (seconds since 1970) on, from 0 to :data:`RETRY_AFTER_MAX`; None where ``text`` is neither a
    number of seconds nor a date."""
    text = text.strip(" \t")
    if _SECONDS.fullmatch(text) and text.isascii():
        return RETRY_AFTER_MAX if len(text) > 6 else min(float(text), RETRY_AFTER_MAX)
    for pattern in _DATES:
        if (match := pattern.fullmatch(text)) is not None:
            at = _seconds(match, now)
            return None if at is None else min(max(at - now, 0.0), RETRY_AFTER_MAX)
    return None


def _seconds(match: re.Match[str], now: float) -> float | None:
    if match["month"] not in _MONTHS:
        return None
    year = int(match["year"])
    if len(match["year"]) == 2:  # the century in which it is not over 50 years ahead
        this = datetime.fromtimestamp(now, UTC).year
        year += this - this % 100
        year -= 100 if year > this + 50 else 0
    second = min(int(match["second"]), 59)  # a leap second is not in datetime
    clock = (int(match["hour"]), int(match["minute"]), second)
    try:
        return datetime(year, _MONTHS.index(match["month"]) + 1, int(match["day"]), *clock, tzinfo=UTC).timestamp()
    except ValueError:
        return None
