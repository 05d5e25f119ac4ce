"""The states of a tap, and everything there is to say of one.

::

    starting ──> running <──> full         full: the log holds as much as it may; it goes on by itself
        │           │  └────> error        error: something stands in its way; it goes on by itself
        │           └───────> stopped      it has taken what the queue held when it began (until = "depth")
        └──────> paused                    until it is resumed

What is wished for (:class:`~gateway.core.work.supervised.WantedState`) survives a restart of the gateway; the state
follows from it and from what stands in the way.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from gateway.config import TapSettings
from gateway.core.work.supervised import SupervisedResource, WantedState
from gateway.runtime.clock import clock


class TapState(StrEnum):
    """What a tap is doing."""

    STARTING = "starting"
    """Its queue is not being consumed yet."""
    RUNNING = "running"
    PAUSED = "paused"
    """Nothing is taken from the queue until it is resumed."""
    FULL = "full"
    """The message log holds ``log_octets`` that no reader has passed yet; nothing is taken until it holds less."""
    ERROR = "error"
    """An obstacle stops it, ``reason`` says which; it goes on when that is over."""
    STOPPED = "stopped"
    """It is done (``until``), or the gateway is shutting down."""


class TapStatus(msgspec.Struct, kw_only=True):
    """A tap at one moment. Counts begin at zero with each start of the gateway."""

    name: str
    state: TapState
    reason: str
    """What stands in its way, or why it has stopped; "" otherwise."""
    since: float
    """When ``state`` changed last, in seconds since 1970."""
    read_only: bool
    """The configuration file defines it."""
    etag: str
    settings: TapSettings
    queue: str
    """The queue that is consumed."""
    version: str = ""
    """The AMQP version spoken; "" before the first connection."""
    taken: int = 0
    """Messages that came from the queue, redeliveries included."""
    spooled: int = 0
    """Messages that are in the log, and acknowledged."""
    redelivered: int = 0
    """Those of them that are marked: they may be there twice."""
    duplicates_dropped: int = 0
    """Redeliveries of what is in the log."""
    dead_lettered: int = 0
    """Messages that the ledger cannot hold, at the dead-letter place."""
    oversized: int = 0
    """Over ``message_max`` of the broker, and not read."""
    octets: int = 0
    """Octets of the bodies of what is in the log."""
    in_flight: int = 0
    """Messages taken and not settled yet."""
    depth: int | None = None
    """How many messages the queue held when the tap began (``until = "depth"``)."""
    left: int | None = None
    """How many of these it has still to take."""
    rate: float = 0.0
    """Messages spooled a second, over the last 5 s."""
    source_messages: int | None = None
    """Depth of the queue; None while it is not known."""
    last_error: str = ""
    """What was wrong last, also when it is over."""


def resting(resource: SupervisedResource[TapSettings], queue: str) -> TapStatus:
    """What there is to say of a tap that this process does not run: its settings, and what is wished for."""
    state, reason = _RESTING[resource.wish]
    return TapStatus(
        name=resource.name,
        state=state,
        reason=reason,
        since=clock.now(),
        read_only=resource.read_only,
        etag=resource.etag,
        settings=resource.settings,
        queue=queue,
    )


_AWAY = "the process that had it does not answer; another one takes over"
_RESTING = {
    WantedState.RUN: (TapState.STARTING, _AWAY),
    WantedState.PAUSE: (TapState.PAUSED, ""),
    WantedState.STOP: (TapState.STOPPED, ""),
}
"""What is wished for -> state and reason of a tap that nobody runs."""
