"""The states of a bridge, and everything there is to say of one.

::

    starting ──> running <──> error        error: something stands in its way; it goes on by itself
        │           │
        │        draining ──> stopped      the source is forwarded until it is empty
        │           │
        └──────> paused                    until it is resumed

What is wished for (:class:`~gateway.core.work.supervised.WantedState`) survives a restart of the gateway; the state
follows from it and from what stands in the way.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from gateway.config import BridgeSettings
from gateway.core.work.supervised import SupervisedResource, WantedState
from gateway.runtime.clock import clock


class BridgeState(StrEnum):
    """What a bridge is doing."""

    STARTING = "starting"
    """Its source is not being consumed yet."""
    RUNNING = "running"
    PAUSED = "paused"
    """Nothing is taken from the source until it is resumed."""
    DRAINING = "draining"
    """It runs until the source's queue is empty."""
    ERROR = "error"
    """An obstacle stops it, ``reason`` says which; it goes on when that is over."""
    STOPPED = "stopped"
    """It is done: drained, or ``delete_after`` was reached; or the gateway is shutting down."""


class BridgeStatus(msgspec.Struct, kw_only=True):
    """A bridge at one moment. Counts begin at zero with each start of the gateway."""

    name: str
    state: BridgeState
    reason: str
    """What stands in its way, or why it has stopped; "" otherwise."""
    since: float
    """When ``state`` changed last, in seconds since 1970."""
    read_only: bool
    """The configuration file defines it."""
    etag: str
    settings: BridgeSettings
    source_version: str
    target_version: str
    """The AMQP versions spoken; "" before the first connection."""
    taken: int
    """Messages that came from the source, redeliveries included."""
    forwarded: int
    """Confirmed by the target and recorded."""
    dead_lettered: int
    duplicates_dropped: int
    filtered: int
    """Not wanted by the selector, and discarded or dead-lettered."""
    looped: int
    """Stopped because they had passed this bridge, or too many."""
    resent: int
    """Published although they may have been at the target already; each is marked."""
    oversized: int
    """Over ``message_max`` of the source's broker, and not read."""
    losses: dict[str, int]
    """Name of a loss -> how many messages were forwarded with it."""
    in_flight: int
    """Messages taken and not settled yet."""
    octets: int
    """Their bodies' octets."""
    rate: float
    """Messages forwarded a second, over the last 5 s."""
    lag: float | None
    """Seconds from a message's arrival to its ack, the median of the last ones; None before the first."""
    source_messages: int | None
    """Depth of the source's queue; None while it is not known."""
    last_error: str
    """What was wrong last, also when it is over."""


def resting(resource: SupervisedResource[BridgeSettings]) -> BridgeStatus:
    """What there is to say of a bridge that this process does not run: its settings, and what is wished for."""
    state, reason = _RESTING[resource.wish]
    return BridgeStatus(
        name=resource.name,
        state=state,
        reason=reason,
        since=clock.now(),
        read_only=resource.read_only,
        etag=resource.etag,
        settings=resource.settings,
        source_version="",
        target_version="",
        taken=0,
        forwarded=0,
        dead_lettered=0,
        duplicates_dropped=0,
        filtered=0,
        looped=0,
        resent=0,
        oversized=0,
        losses={},
        in_flight=0,
        octets=0,
        rate=0.0,
        lag=None,
        source_messages=None,
        last_error="",
    )


_AWAY = "the process that had it does not answer; another one takes over"
_RESTING = {
    WantedState.RUN: (BridgeState.STARTING, _AWAY),
    WantedState.DRAIN: (BridgeState.STARTING, _AWAY),
    WantedState.PAUSE: (BridgeState.PAUSED, ""),
    WantedState.STOP: (BridgeState.STOPPED, ""),
}
"""What is wished for -> state and reason of a bridge that nobody runs."""
