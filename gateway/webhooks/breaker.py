"""A circuit breaker: an endpoint that fails again and again is left alone, and asked with one request at a time whether
it is well. Pure: the clock and chance are arguments.

::

              so many failures in a row
     CLOSED ────────────────────────────▶ OPEN ◀───────────┐
       ▲                                   │ its time is up │ the probe fails:
       │         the probe succeeds        ▼                │ twice as long as before
       └─────────────────────────────── HALF_OPEN ──────────┘

A message that the breaker holds back was not tried: that costs it no attempt of its schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.errors import ConfigurationError
from gateway.webhooks.attempts.schedule import Chance


class BreakerState(StrEnum):
    """Whether requests go out."""

    CLOSED = "closed"
    """They do."""
    OPEN = "open"
    """They do not."""
    HALF_OPEN = "half_open"
    """One does, and decides."""


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """Times in seconds."""

    failures: int = 5
    """Failures in a row that open it."""
    open_first: float = 10.0
    """How long it is open the first time."""
    open_max: float = 600.0
    """How long it is open at most; each time in a row is twice as long as the one before."""
    jitter: float = 0.2
    """Part of that time by which it is longer or shorter."""
    probe_timeout: float = 60.0
    """When a probe whose outcome nobody told is taken for lost."""

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        if self.failures < 1 or not 0 < self.open_first <= self.open_max or not 0 <= self.jitter < 1:
            raise ConfigurationError(f"circuit breaker: {self} makes no sense")


class Breaker:
    """The breaker of one endpoint. Ask :meth:`allows` before a request, and tell what became of each that was allowed:
    :meth:`succeeded`, :meth:`failed` or :meth:`untold`. ``now`` is a monotonic clock, in seconds."""

    __slots__ = ("_failures", "_opened", "_probing_since", "_settings", "_state", "_until")

    def __init__(self, settings: BreakerSettings | None = None) -> None:
        self._settings = settings or BreakerSettings()
        self._state = BreakerState.CLOSED
        self._failures = 0
        self._opened = 0
        self._until = 0.0
        self._probing_since: float | None = None

    def state(self, now: float) -> BreakerState:
        """As of now."""
        if self._state is BreakerState.OPEN and now >= self._until:
            return BreakerState.HALF_OPEN
        return self._state

    @property
    def failures(self) -> int:
        """Failures in a row."""
        return self._failures

    def allows(self, now: float) -> bool:
        """Whether a request may go out now. In the half-open state the first who asks gets the probe."""
        if self._state is BreakerState.OPEN and now >= self._until:
            self._state = BreakerState.HALF_OPEN
            self._probing_since = None
        if self._state is BreakerState.CLOSED:
            return True
        if self._state is BreakerState.OPEN:
            return False
        if self._probing_since is not None and now < self._probing_since + self._settings.probe_timeout:
            return False
        self._probing_since = now
        return True

    def next(self, now: float) -> float:
        """How long until it is worth asking again, in seconds; 0: ask now."""
        if self._state is BreakerState.OPEN:
            return max(0.0, self._until - now)
        if self._state is BreakerState.HALF_OPEN and self._probing_since is not None:
            return max(0.0, self._probing_since + self._settings.probe_timeout - now)
        return 0.0

    def succeeded(self) -> None:
        """The endpoint took a request: it is well again."""
        self._state = BreakerState.CLOSED
        self._failures = self._opened = 0
        self._probing_since = None

    def failed(self, now: float, chance: Chance) -> None:
        """A request failed. One that was sent before the breaker opened, and fails only now, opens it no longer."""
        self._failures += 1
        if self._state is BreakerState.OPEN:
            return
        if self._state is BreakerState.HALF_OPEN or self._failures >= self._settings.failures:
            settings = self._settings
            seconds = min(settings.open_first * 2.0 ** min(self._opened, 32), settings.open_max)
            self._opened += 1
            self._state = BreakerState.OPEN
            self._until = now + seconds * (1 + settings.jitter * (2 * chance() - 1))
            self._probing_since = None

    def untold(self) -> None:
        """A request that was allowed was not made, or says nothing of the endpoint: another one may be the probe."""
        self._probing_since = None
