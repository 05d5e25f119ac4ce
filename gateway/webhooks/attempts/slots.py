"""Who may make a request now: places for requests, shared by all endpoints. Pure: the clock is an argument.

There are so many places for requests at once, and more endpoints than that. An endpoint that hangs keeps each of its
places until its deadline, so a few hundred dead ones would soon hold them all. Two things prevent that.

**A window for each endpoint.** It begins with one request at a time, takes one more with each success that found the
window full, up to the endpoint's ``concurrency``, is halved by a failure, and is one again while the endpoint fails.

**Classes of endpoints.** :data:`SHARES` is the part of all places that the endpoints of a class, and of those below
it, may hold together when another of their requests begins::

    good                      took its last request, and quickly
    ├── slow                  has a request under way that is not answered after a second
    ├── new                   nobody knows it yet
    └─────── failing          failed lately

So in every case half of the places are left to those that are good, and endpoints that fail share an eighth.
An endpoint changes its class with its requests: those under way move with it.

Those that fail begin one after the other, with a rest between two of them (:attr:`Slots.rest`): a few that hang hold
all places of their class, others gather behind them, and would all be tried, fail and be written down in the moment in
which one of those places is free. Good endpoints would wait for that.

Endpoints that want a place wait in line, each at most once, and leave the line with one place: nobody gets a second
one while another waits for the first. Each class has a line of its own, for one that may not go must not hold up
another one; they are served in turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

SLOW_AFTER: Final = 1.0
"""After this many seconds without an answer an endpoint is slow."""
FAILING_AFTER: Final = 2
"""So many failures in a row make an endpoint one that fails; of a new one the first does."""


class Health(IntEnum):
    """The classes, from the worst to the best."""

    FAILING = 0
    NEW = 1
    SLOW = 2
    GOOD = 3


SHARES: Final[Mapping[Health, float]] = {
    Health.FAILING: 0.125,
    Health.NEW: 0.5,
    Health.SLOW: 0.5,
    Health.GOOD: 1.0,
}
"""The part of all places that a class and those below it may hold together."""


class EndpointSlots:
    """One endpoint: its class, its window and its requests under way. Made by :meth:`Slots.lane`."""

    __slots__ = ("_begun", "_slots", "called", "concurrency", "failures", "health", "queued", "ready", "window")

    def __init__(self, slots: Slots, concurrency: int, ready: Callable[[], None]) -> None:
        self._slots = slots
        self.concurrency = concurrency
        """Most requests at once."""
        self.ready = ready
        """Called when it leaves the line: there is a place for it, to be taken at once or not at all."""
        self.window = 1
        """How many requests at once it may have now."""
        self.health = Health.NEW
        self.failures = 0
        """In a row."""
        self.queued = False
        """It waits in line."""
        self.called = False
        """It has come to the head of the line: the next place is its own."""
        self._begun: dict[int, float] = {}

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return len(self._begun)

    @property
    def room(self) -> int:
        """How many more its window lets through."""
        return max(0, min(self.window, self.concurrency) - len(self._begun))

    def look(self, now: float) -> None:
        """Whether it has become slow."""
        if self.health is Health.GOOD and self._begun and now - next(iter(self._begun.values())) >= SLOW_AFTER:
            self._slots.move(self, Health.SLOW)

    def begin(self, now: float) -> int:
        """A request begins. Returns its number, for :meth:`end`."""
        return self._slots.begin(self, now)

    def has_begun(self, number: int) -> bool:
        """Whether this request is under way."""
        return number in self._begun

    def end(self, number: int, good: bool | None, now: float) -> None:
        """A request is over. ``good``: the endpoint took it; None: it says nothing of the endpoint."""
        full = len(self._begun) >= min(self.window, self.concurrency)
        self._slots.end(self, number)
        if good is None:
            return
        if good:
            self.failures = 0
            if full and self.window < self.concurrency:
                self.window += 1
            begun = next(iter(self._begun.values()), now)
            self._slots.move(self, Health.SLOW if now - begun >= SLOW_AFTER else Health.GOOD)
            return
        self.failures += 1
        self.window = max(1, min(self.window, self.concurrency) // 2)
        if self.failures >= FAILING_AFTER or self.health is Health.NEW:
            self.fail()

    def fail(self) -> None:
        """It is known to fail."""
        self.window = 1
        self._slots.move(self, Health.FAILING)


class Slots:
    """All places."""

    def __init__(self, places: int) -> None:
        """``places``: most requests at once, at least 1."""
        self.places = places
        self.held = [0] * len(Health)
        """Requests under way, by class."""
        self._most = [max(1, int(places * SHARES[health])) for health in Health]
        self._lines: list[deque[EndpointSlots]] = [deque() for _ in Health]
        self.busy: dict[EndpointSlots, None] = {}
        """Those that have requests under way."""
        self.rest: Callable[[], None] | None = None
        """Called when an endpoint that fails begins a request; another one may when :meth:`rested` was called. None:
        there is no rest."""
        self._resting = False
        self._number = 0
        self._turn = 0
        self._serving = False

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return sum(self.held)

    def lane(self, concurrency: int, ready: Callable[[], None]) -> EndpointSlots:
        """A new endpoint."""
        return EndpointSlots(self, concurrency, ready)

    def may(self, health: Health) -> bool:
        """Whether an endpoint of this class may begin a request."""
        if self._resting and health is Health.FAILING:
            return False
        held = 0
        for each in Health:
            held += self.held[each]
            if each >= health and held >= self._most[each]:
                return False
        return True

    def ask(self, lane: EndpointSlots) -> bool:
        """Whether it may begin a request now. If not, it waits in line, and ``lane.ready`` is called; unless its window
        is full: then it asks again when one of its requests is over."""
        if not lane.room:
            return False
        if lane.called:
            lane.called = False
            return True
        if not self._lines[lane.health] and self.may(lane.health):
            return True
        if not lane.queued:
            lane.queued = True
            self._lines[lane.health].append(lane)
        return False

    def leave(self, lane: EndpointSlots) -> None:
        """It wants no place any more: it leaves the line."""
        if lane.queued:
            lane.queued = False
            self._lines[lane.health].remove(lane)

    def begin(self, lane: EndpointSlots, now: float) -> int:
        """See :meth:`EndpointSlots.begin`."""
        self._number += 1
        lane._begun[self._number] = now
        self.busy[lane] = None
        self.held[lane.health] += 1
        if lane.health is Health.FAILING and self.rest is not None:
            self._resting = True
            self.rest()
        return self._number

    def rested(self) -> None:
        """The rest is over. Those that wait are not called yet: see :meth:`serve`."""
        self._resting = False

    def end(self, lane: EndpointSlots, number: int) -> None:
        """See :meth:`EndpointSlots.end`. Those that wait are not called yet: see :meth:`serve`."""
        del lane._begun[number]
        self.held[lane.health] -= 1
        if not lane._begun:
            del self.busy[lane]

    def move(self, lane: EndpointSlots, health: Health) -> None:
        """It changes its class, and what it has under way changes with it; in line it goes to the end."""
        if health is lane.health:
            return
        self.held[lane.health] -= lane.in_flight
        self.held[health] += lane.in_flight
        queued = lane.queued
        self.leave(lane)
        lane.health = health
        if queued:
            lane.queued = True
            self._lines[health].append(lane)

    def serve(self) -> None:
        """Call those who wait, as long as there are places: the classes in turn, first come first served in each."""
        if self._serving or not any(self._lines):
            return  # whoever is called begins a request or not; it is looked at when it returns
        self._serving = True
        try:
            idle = 0
            while idle < len(self._lines):
                self._turn = (self._turn + 1) % len(self._lines)
                line = self._lines[self._turn]
                if line and self.may(Health(self._turn)):
                    idle = 0
                    lane = line.popleft()
                    lane.queued, lane.called = False, True
                    lane.ready()
                    lane.called = False
                else:
                    idle += 1
        finally:
            self._serving = False
