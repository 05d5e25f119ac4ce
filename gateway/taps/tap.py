"""One tap: its flow, what stands in its way, and how things stand.

A tap that runs has a :class:`~gateway.taps.flow.TapFlow`, which keeps itself going through every failure. A change of
settings, a pause and a restart are a halt and a new flow: what is under way is brought to an end, the rest goes back to
the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from gateway.config import RetentionSettings, TapSettings, check_tap
from gateway.core.gateway import Gateway
from gateway.core.leasing.parts import Parts
from gateway.core.publishing.publisher import version_name
from gateway.core.sources.own_queues import queue_of
from gateway.core.work.supervised import HALT_WITHIN, SupervisedResource, WantedState
from gateway.errors import EncodeError, GatewayError
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock
from gateway.taps.counts import TapCounts
from gateway.taps.depth import Depth
from gateway.taps.flow import TapFlow
from gateway.taps.rows import TAP_KIND
from gateway.taps.states import TapState, TapStatus

ASK_EVERY: Final = 1.0
"""How long the depth of the queue is remembered, in seconds."""
ASK_WITHIN: Final = 0.5
"""How long a status waits for that depth, in seconds."""


def check(settings: TapSettings, find: Callable[[str], object], retention: RetentionSettings) -> None:
    """Whether a tap can be made of these settings; ``find``: a broker by name.

    Raises:
        EncodeError: a setting is wrong; it names the setting.
        NoSuchBroker: a broker is not configured.
    """
    if (wrong := check_tap(settings, retention)) is not None:
        raise EncodeError(wrong)
    find(settings.broker)
    if settings.dead_letter_broker:
        find(settings.dead_letter_broker)


class Tap:
    """A tap by name. All methods belong to the event loop."""

    def __init__(
        self,
        resource: SupervisedResource[TapSettings],
        gateway: Gateway,
        parts: Parts,
        counts: TapCounts,
        *,
        log_octets: Callable[[], int],
        on_finish: Callable[[Tap, str], None],
    ) -> None:
        """``parts``: with what declares the own queues of taps. ``log_octets``: what they are unless the settings say
        so. ``on_finish`` is called when it ends on its own.

        Raises:
            NoSuchBroker: a broker is not configured.
        """
        name, settings = resource.name, resource.settings
        self.name = name
        self.settings = settings
        self.etag = resource.etag
        self.read_only = resource.read_only
        self.wish = resource.wish
        self.counts = counts
        self.queue = queue_of(name, settings, TAP_KIND)
        self._gateway = gateway
        self._resource = resource
        self._parts = parts
        self._upstream = gateway.broker(settings.broker)
        self._on_finish = on_finish
        self._log_octets = lambda: settings.log_octets or log_octets()
        self._flow: TapFlow | None = None
        self._depth: Depth | None = None
        """Of the last flow."""
        self._why_stopped = ""
        self._state = TapState.STOPPED
        self._since = clock.now()
        self._messages: int | None = None
        """How deep the queue was when it was asked last."""
        self._asked_at = -ASK_EVERY
        self._loop = asyncio.get_running_loop()
        gateway.metrics.tap_up.labels(name).set(0)
        gateway.metrics.tap_fault.labels(name).set(0)
        self._judge()

    # ---------------------------------------------------------------------------------------- start, halt

    def start(self) -> None:
        """Run, if that is what is wished for. What stands in the way is a reason, and no error here."""
        if self._flow is None and self.wish is WantedState.RUN:
            self._why_stopped = ""
            self._flow = TapFlow(
                self._parts,
                self._resource,
                self._upstream,
                self.counts,
                log_octets=self._log_octets,
                on_change=self._judge,
                on_done=self._done,
            )
            self._flow.begin()
        self._judge()

    async def halt(self, within: float = HALT_WITHIN) -> None:
        """Take nothing more, spool what has come within this many seconds, and give the rest back."""
        flow = self._flow
        if flow is not None:
            await flow.stop(within)
            self._depth = flow.depth
            if self._flow is flow:
                self._flow = None
        self._judge()

    def drop(self) -> Coroutine[Any, Any, None]:
        """Another process has it: from now on nothing is spooled or acknowledged."""
        flow, self._flow = self._flow, None
        if flow is not None:
            flow.lost()
        self._judge()
        return _dropped(flow)

    def _done(self, why: str) -> None:
        self._why_stopped = why
        log("tap.finished", tap=self.name, reason=why)
        self._on_finish(self, why)

    @property
    def stale(self) -> bool:
        """Its broker is another one now."""
        return self._gateway.brokers.get(self._upstream.name) is not self._upstream

    @property
    def finished(self) -> bool:
        """It has taken what the queue held when it began."""
        return self._flow is not None and self._flow.done and self.wish is WantedState.RUN

    async def abandon_source(self, heir: Tap | None = None) -> None:
        """The tap goes: its own queue is unbound, and deleted where it is empty. What is in it stays, and so does a
        queue that is the ``heir``'s too."""
        await self._parts.own_queues.abandon(self.name, self.settings, heir.settings if heir is not None else None)

    # ------------------------------------------------------------------------------------------------ status

    def _reason(self) -> str:
        flow = self._flow
        if flow is None:
            return ""
        return "; ".join(filter(None, (flow.reason, flow.dead_letters.reason)))

    def _state_now(self) -> TapState:
        flow = self._flow
        if self.wish is WantedState.PAUSE:
            return TapState.PAUSED
        if flow is None or self.wish is WantedState.STOP or flow.done:
            return TapState.STOPPED
        if self._reason():
            return TapState.ERROR
        if flow.full:
            return TapState.FULL
        return TapState.RUNNING if flow.consuming else TapState.STARTING

    def _judge(self) -> None:
        state = self._state_now()
        if state is not self._state:
            self._state = state
            self._since = clock.now()
            log("tap.state", tap=self.name, state=state.value, reason=self._reason())
            metrics = self._gateway.metrics
            metrics.tap_up.labels(self.name).set(state is TapState.RUNNING)
            metrics.tap_fault.labels(self.name).set(state in (TapState.STARTING, TapState.ERROR, TapState.FULL))

    async def status(self) -> TapStatus:
        """Everything there is to say. Asks how deep the queue is, at most once a second."""
        now = clock.monotonic()
        if now - self._asked_at >= ASK_EVERY:
            self._asked_at = now
            try:
                async with asyncio.timeout(ASK_WITHIN):
                    self._messages = (await self._upstream.query_queue(self.queue)).message_count
            except (GatewayError, TimeoutError):
                self._messages = None
        self._judge()
        flow, counts = self._flow, self.counts
        numbers = counts.numbers
        if flow is not None:
            self._depth = flow.depth
        depth = self._depth
        reason = self._why_stopped if self._state is TapState.STOPPED else self._reason()
        return TapStatus(
            name=self.name,
            state=self._state,
            reason=reason or (flow.full if flow is not None else ""),
            since=self._since,
            read_only=self.read_only,
            etag=self.etag,
            settings=self.settings,
            queue=self.queue,
            version=version_name(self._upstream),
            taken=numbers["taken"],
            spooled=numbers["spooled"],
            redelivered=numbers["redelivered"],
            duplicates_dropped=numbers["duplicates_dropped"],
            dead_lettered=numbers["dead_lettered"],
            oversized=numbers["oversized"],
            octets=counts.octets,
            in_flight=flow.in_flight if flow is not None else 0,
            depth=depth.depth if depth is not None else None,
            left=depth.left if depth is not None else None,
            rate=counts.rate(now),
            source_messages=self._messages,
            last_error=counts.last_error,
        )


async def _dropped(flow: TapFlow | None) -> None:
    """What the broker delivered is its again when the consumer is closed."""
    if flow is not None:
        await flow.gone()
