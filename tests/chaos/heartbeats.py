"""F24: heartbeats over a day, under a clock that is given.

Both ends of a connection are sessions of ours, with the wire between them in memory: a day passes as fast as its
heartbeats can be worked off. Three scenarios in each version: nobody has anything to say but heartbeats; the peer sends
no heartbeats at all, and data flows; the peer says nothing any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from gateway.amqp.message import Message
from gateway.amqp.operations import Closed, CloseReason, Operation, Publish
from gateway.session import Session, Version
from gateway.versions import VERSIONS
from tests.chaos.figures import Figures
from tests.chaos.parts import Context
from tests.pair import CLIENT, SERVER, SessionPair

INTERVAL: Final = 5.0
"""Of the heartbeats, in seconds."""
HOURS: Final = {False: 2.0, True: 24.0}
"""How long each scenario lasts, in the quick and in the full form."""
DATA_EVERY: Final = 4.0
"""How often the peer that sends no heartbeats sends something else, in seconds."""


class Wire:
    """A client and a server, and the time."""

    def __init__(self, version: Version) -> None:
        self.pair = SessionPair(
            version,
            replace(CLIENT, heartbeat=INTERVAL),
            replace(SERVER, limits=replace(SERVER.limits, heartbeat=INTERVAL)),
        ).open()
        self.heard = 0
        """How often something reached the client."""

    def ends(self) -> list[Closed]:
        """Who of the two believes that it is over."""
        return [event for event in (*self.pair.events, *self.pair.requests) if isinstance(event, Closed)]

    def step(self, *alive: Session) -> list[Closed]:
        """Go on to the next moment at which one of ``alive`` has something to do, and let it."""
        times = [at for session in alive if (at := session.next_timeout()) is not None]
        self.pair.now = max(self.pair.now, min(times))
        events: list[Operation] = [event for session in alive for event in session.handle_timeout(self.pair.now)]
        over = [event for event in events if isinstance(event, Closed)]
        if not over:
            self.pair.pump()
            self.heard += bool(self.pair.to_client)
            over = self.ends()
        return over


def _idle(version: Version, hours: float) -> Figures:
    """Nothing but heartbeats, both ways."""
    wire = Wire(version)
    end = wire.pair.now + hours * 3_600
    figures = Figures(f"idle, {version.value}", unit="heartbeats")
    while wire.pair.now < end and not figures.unexpected:
        figures.unexpected += len(wire.step(wire.pair.client, wire.pair.server))
    figures.attempted = wire.heard
    figures.must(wire.heard >= hours * 3_600 / INTERVAL, f"only {wire.heard} times was anything heard of the peer")
    return figures


def _data_only(version: Version, hours: float) -> Figures:
    """The client never lets its clock tick, so that it sends no heartbeat, but publishes every few seconds: the server
    takes any octets for life."""
    wire = Wire(version)
    pair = wire.pair
    end = pair.now + hours * 3_600
    figures = Figures(f"data and no heartbeats, {version.value}", unit="publishes")
    due = pair.now
    while pair.now < end and not figures.unexpected:
        due += DATA_EVERY
        while (at := pair.server.next_timeout()) is not None and at < due:
            figures.unexpected += len(wire.step(pair.server))
            if figures.unexpected:
                return figures
        pair.now = due
        pair.ask(Publish(1, "", "q", Message(b"x")))
        figures.attempted += 1
        figures.unexpected += len(wire.ends())
    return figures


def _silent(version: Version, hours: float) -> Figures:
    """The server says nothing more: the client takes it for dead, after two intervals and not before."""
    figures = Figures(f"a peer that falls silent, {version.value}", unit="times")
    latest = soonest = 0.0
    for number in range(round(hours * 10)):
        wire = Wire(version)
        last = wire.pair.now
        for _ in range(number % 7):
            wire.step(wire.pair.client, wire.pair.server)
            last = wire.pair.now if wire.pair.to_client else last
        over: list[Closed] = []
        while not over:
            at = wire.pair.client.next_timeout()
            assert at is not None
            wire.pair.now = at
            over = [event for event in wire.pair.client.handle_timeout(at) if isinstance(event, Closed)]
            wire.pair.client.data_to_send()  # and nobody reads it
        figures.attempted += 1
        figures.unexpected += over[0].reason is not CloseReason.HEARTBEAT
        took = wire.pair.now - last
        latest, soonest = max(latest, took), min(soonest or took, took)
    figures.extra = {"soonest_s": soonest, "latest_s": latest}
    figures.must(latest <= 2 * INTERVAL + 1, f"it took {latest:g} s")
    figures.must(soonest >= 2 * INTERVAL, f"it took {soonest:g} s only")
    return figures


SCENARIOS: Final[tuple[Callable[[Version, float], Figures], ...]] = (_idle, _data_only, _silent)


def heartbeats(context: Context) -> list[Figures]:
    """All scenarios in all versions; a line for each scenario."""
    found = []
    hours = HOURS[context.full]
    for scenario in SCENARIOS:
        began = time.monotonic()
        each = [scenario(version, hours) for version in VERSIONS]
        first = each[0]
        first.what = f"{first.what.partition(', ')[0]}, each version, {hours:g} h of virtual time"
        for other in each[1:]:
            first.attempted += other.attempted
            first.unexpected += other.unexpected
            first.problems += other.problems
        first.seconds = round(time.monotonic() - began, 1)
        found.append(first)
    return found
