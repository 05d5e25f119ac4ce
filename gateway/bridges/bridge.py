"""One bridge: its source, its consumer, its flow, and how things stand.

A bridge that runs has a consumer on its source's queue and a :class:`~gateway.bridges.flow.BridgeFlow` that takes what
comes. Both live until the bridge is halted; what goes wrong meanwhile is a fault that ends without help (see
:mod:`gateway.bridges.faults`). A change of settings, a pause and a restart are a halt and a new start: what is under
way is brought to an end, the rest goes back to the source.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from gateway.bridges.counts import BridgeCounts
from gateway.bridges.dead_letters import BridgeDeadLetterPublisher
from gateway.bridges.faults import Faults
from gateway.bridges.flow import BridgeFlow
from gateway.bridges.in_doubt import settle
from gateway.bridges.journal import PAUSE_MAX, PAUSE_MIN, BridgeJournal
from gateway.bridges.routes import BridgeRoute
from gateway.bridges.states import BridgeState, BridgeStatus
from gateway.bridges.traces import BridgeTraces
from gateway.bridges.two_phase import TwoPhase
from gateway.config import BridgeSettings
from gateway.core.gateway import Gateway
from gateway.core.leasing.consuming import own_id
from gateway.core.publishing.publisher import version_name
from gateway.core.work.supervised import HALT_WITHIN, SupervisedResource, WantedState
from gateway.errors import BrokerUnavailable, GatewayError, LedgerUnavailable, Unsupported
from gateway.observing.telemetry import log
from gateway.runtime.backoff import Backoff
from gateway.runtime.clock import clock
from gateway.upstreams import Consumer, ConsumerState, Oversized, Upstream, UpstreamState

CANCEL_WITHIN: Final = 1.0
"""How long the source's broker may take at least to say that it delivers no more, in seconds."""
LOOK_EVERY: Final = 0.5
"""How often a bridge that drains asks whether its source is empty, in seconds."""
GROW_EVERY: Final = 5.0
"""How often it is looked whether more messages fit into ``prefetch_octets``, in seconds."""
ASK_EVERY: Final = 1.0
"""How long the depth of the source's queue is remembered, in seconds."""
ASK_WITHIN: Final = 0.5
"""How long a status waits for that depth, in seconds."""
OUT_OF_ORDER: Final = frozenset({UpstreamState.DOWN, UpstreamState.FAILED, UpstreamState.BLOCKED})
BIND_EVERY: Final = 30.0
"""How often the bridge's own queue and its binding are declared again, in seconds: no broker says when a binding, or
its exchange, is gone."""
CALM: Final = 60.0
"""After this many seconds without an internal error the next one is the first again."""
PLAIN: Final = "bridge-plain"
"""The resource that says that a bridge of this name has run in another mode than ``dtx``. It stays: nobody can tell
when the last message comes again that such a run has published and not recorded."""
SOURCE, QUEUE, BROKER, OURS, BRANCH = "source", "own queue", "target broker", "bridge", "branch"
"""Where a fault can be, besides those of the flow."""


def check(name: str, settings: BridgeSettings, find: Callable[[str], object]) -> None:
    """Whether a bridge can be made of these settings; ``find``: a broker by name.

    Raises:
        EncodeError: a setting is wrong; it names the setting.
        NoSuchBroker: a broker is not configured.
    """
    BridgeRoute(name, settings, "", own_id)
    for broker in (settings.source.broker, settings.target.broker, settings.dead_letter.broker):
        if broker:
            find(broker)


class Bridge:
    """A bridge by name. All methods belong to the event loop."""

    def __init__(
        self,
        resource: SupervisedResource[BridgeSettings],
        gateway: Gateway,
        counts: BridgeCounts,
        token: str,
        on_finish: Callable[[Bridge, str], None],
    ) -> None:
        """``token`` is the bridge in a message's ``via``. ``on_finish`` is called when it ends on its own.

        Raises:
            EncodeError: a setting is wrong.
            NoSuchBroker: a broker is not configured.
        """
        name, settings = resource.name, resource.settings
        self.name = name
        self.settings = settings
        self.etag = resource.etag
        self.read_only = resource.read_only
        self.wish = resource.wish
        self.counts = counts
        self.route = BridgeRoute(name, settings, token, own_id)
        self._gateway = gateway
        self._on_finish = on_finish
        self._source = gateway.broker(settings.source.broker)
        self._target = gateway.broker(settings.target.broker)
        self._place = gateway.broker(settings.dead_letter.broker or settings.source.broker)
        self._faults = Faults(name, self._judge)
        self._flow: BridgeFlow | None = None
        self._consumer: Consumer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._declaring: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._look = asyncio.Event()
        self._limit: int | None = None
        self._limited = False
        """``_limit`` was found out."""
        self._left: int | None = None
        """How many of them are left."""
        self._drained = False
        self._crashed_at = -CALM
        self._rest_seconds = 0.0
        self._backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        """Pause after an internal error."""
        self._why_stopped = ""
        self._state = BridgeState.STOPPED
        self._since = clock.now()
        self._depth: int | None = None
        self._asked_at = -ASK_EVERY
        self._loop = asyncio.get_running_loop()
        gateway.metrics.bridge_in_flight.labels(name).set_function(lambda: self._flow.held if self._flow else 0)
        gateway.metrics.bridge_oldest.labels(name).set_function(lambda: self._flow.oldest if self._flow else 0.0)
        gateway.metrics.bridge_up.labels(name).set(0)
        gateway.metrics.bridge_fault.labels(name).set(0)
        self._judge()

    # ---------------------------------------------------------------------------------------- start, halt

    def start(self) -> None:
        """Run, if that is what is wished for. What stands in the way is a fault, and no error here."""
        if self._tasks or self.wish not in (WantedState.RUN, WantedState.DRAIN):
            self._look.set()
            self._judge()
            return
        self._why_stopped = ""
        for upstream in self._brokers():
            upstream.on_state.append(self._broker_changed)
        self._source.on_oversized.append(self._oversized)
        self._broker_changed(self._target)
        self._tasks = [self._loop.create_task(self._run(), name=f"bridge {self.name}")]
        self._judge()

    async def halt(self, within: float = HALT_WITHIN) -> None:
        """Take nothing more, bring what is under way to an end within this many seconds, and give the rest back."""
        if tasks := self._end_tasks():
            await asyncio.wait(tasks)
        distributed = self._flow is not None and self._flow.two_phase is not None
        is_ours = await self._end_flow(within)
        if distributed and is_ours:  # else its branches are the next owner's
            await self._settle_last(max(within, CANCEL_WITHIN))
        self._rest_now()

    def drop(self) -> Coroutine[Any, Any, None]:
        """Another process has it: from now on nothing is published, recorded or acknowledged. Await what is returned to
        give back what the source delivered."""
        self._end_tasks()
        flow, consumer = self._flow, self._consumer
        self._flow = self._consumer = None
        if flow is not None:
            flow.abandon()
        if consumer is not None and self._consumer_changed in consumer.on_state:
            consumer.on_state.remove(self._consumer_changed)
        self._rest_now()
        return _close(consumer)

    def _end_tasks(self) -> list[asyncio.Task[None]]:
        """Listen to nobody any more, and cancel what looks after the bridge."""
        for upstream in self._brokers():
            if self._broker_changed in upstream.on_state:
                upstream.on_state.remove(self._broker_changed)
        if self._oversized in self._source.on_oversized:
            self._source.on_oversized.remove(self._oversized)
        tasks, self._tasks = self._tasks, []
        if self._declaring is not None:
            tasks.append(self._declaring)
        for task in tasks:
            task.cancel()
        return tasks

    def _rest_now(self) -> None:
        self._limited = self._drained = False
        self._left = None
        self._faults.clear_all()
        self._judge()

    async def _end_flow(self, within: float) -> bool:
        """End consumer and flow. Who is cancelled in here leaves the rest to the next who comes. Returns whether it was
        not dropped meanwhile."""
        flow, consumer = self._flow, self._consumer
        if consumer is not None:
            if self._consumer_changed in consumer.on_state:
                consumer.on_state.remove(self._consumer_changed)
            await consumer.cancel(max(within, CANCEL_WITHIN))
        if flow is not None:
            await flow.stop(within)
            if flow.two_phase is not None:
                await flow.two_phase.close()
        if consumer is not None:
            await consumer.close()
        is_ours = self._flow is flow
        self._flow = self._consumer = None
        return is_ours

    def _brokers(self) -> set[Upstream]:
        return {self._source, self._target, self._place}

    async def _run(self) -> None:
        """Begin, with growing pauses until it works; then look after what needs looking after."""
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        while True:
            self._hurry.clear()
            try:
                await self._end_flow(0.0)
                await self._begin()
                break
            except GatewayError as error:
                if BRANCH not in self._faults:
                    self._faults.set(SOURCE, str(error))
            except Exception as error:  # a fault of ours must not end the trying
                log("bridge.failed", logging.ERROR, exc_info=error, bridge=self.name)
                self._faults.set(OURS, f"internal error: {error!r:.200}")
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff.next()):  # wait_for may swallow a cancelling
                    await self._hurry.wait()
        self._faults.clear(OURS)
        while True:
            try:
                await self._look_after()
            except Exception as error:  # nor the looking after
                log("bridge.failed", logging.ERROR, exc_info=error, bridge=self.name)
            await clock.sleep(GROW_EVERY)

    async def _begin(self) -> None:
        source, settings = self._source, self.settings
        browses = settings.mode == "mirror" and not self.route.own_queue
        if browses:
            self._check_browsing()
        if self.route.own_queue:
            await self._declare()
        if not self._limited:
            self._limit = self._left = await self._find_limit()
            self._limited = True
        if self._left == 0:
            self._finish("delete_after: there was nothing to forward")
            return
        left = await self._settle_branches()
        plain = await self._was_plain()
        flow = self._flow = self._make_flow()
        if flow.two_phase is not None:
            flow.two_phase.inherit(left)
            flow.two_phase.unsure = plain
        flow.deduplicator.repeats = browses
        flow.unheld = settings.acknowledge == "unsafe-no-ack"
        flow.start(self._left)
        consumer = self._consumer = await source.consume(
            self.route.queue,
            settings.prefetch,
            flow.arrive,
            no_ack=flow.unheld,
            acquired=not browses,
            holder=("bridge", self.name),
        )
        consumer.on_state.append(self._consumer_changed)
        self._consumer_changed(consumer)

    def _make_flow(self) -> BridgeFlow:
        gateway, settings = self._gateway, self.settings
        journal = self._journal()
        flow = BridgeFlow(
            self.route,
            gateway.parts,
            journal,
            self.counts,
            on_full=self._full,
            on_enough=self._enough,
            on_crash=self._crashed,
        )
        queue, exchange = self.route.queue, settings.target.exchange
        flow.traces = BridgeTraces(self._gateway.tracer, self.name, queue, exchange, self._source, self._target)
        if settings.acknowledge == "dtx":
            flow.deduplicator.trusts_ids = True
            flow.two_phase = TwoPhase(self.route, gateway.parts, journal)
        flow.dead_letters = BridgeDeadLetterPublisher(
            self.route, self._place, gateway.parts.dead_letters, journal, flow.dead_lettered, flow.retaken
        )
        return flow

    def _journal(self) -> BridgeJournal:
        ledger = self._gateway.ledger
        return BridgeJournal(self.name, self.settings, ledger, self._source, self._target, self._faults)

    async def _settle_branches(self) -> Sequence[bytes]:
        """What was left in the middle at a target, before anything is taken; what the target has still of it."""
        target = self._target if self.settings.acknowledge == "dtx" else None
        if target is None and not await self._gateway.ledger.branches.of(self.name):
            return ()  # as for every bridge that never was one of mode dtx
        try:
            settled = await settle(self.name, self.route.token, self._gateway, self._journal(), target)
        except GatewayError as error:
            self._faults.set(BRANCH, f"{error}{await self._in_doubt()}")
            raise
        self._faults.clear(BRANCH)
        return settled.left

    async def _in_doubt(self) -> str:
        """How many transactions wait to be settled, for the reason; empty: none that is known."""
        with suppress(LedgerUnavailable):
            if count := len(await self._gateway.ledger.branches.of(self.name)):
                what = "1 transaction is" if count == 1 else f"{count} transactions are"
                return f". {what} in doubt: nothing is taken until the broker and the ledger agree on it"
        return ""

    async def _was_plain(self) -> bool:
        """Whether one of this name has run in another mode than ``dtx``, written down before it takes anything: what
        that has published has no branch, so that none in the ledger does not say that it is not at the target."""
        ledger = self._gateway.ledger
        found = await ledger.get_resource(PLAIN, self.name)
        if found is None and self.settings.acknowledge != "dtx":
            await ledger.put_resource(PLAIN, self.name, {}, None)
        return found is not None

    async def _settle_last(self, within: float) -> str:
        """It does not run any more: settle its unfinished work within this many seconds; returns why that failed, "" if
        it did not."""
        try:
            async with asyncio.timeout(within):
                await self._settle_branches()
                left = await self._gateway.ledger.branches.of(self.name)
        except (GatewayError, TimeoutError) as error:
            return str(error) or f"no answer within {within:g} s"
        return "their broker has them still, or is not configured" if left else ""

    def _check_browsing(self) -> None:
        capabilities = self._source.capabilities
        if capabilities is None:
            raise BrokerUnavailable(f"broker {self._source.name}: {self._source.reason}")
        if not capabilities.browse:
            raise Unsupported(
                f"broker {self._source.name} cannot show the messages of the queue {self.route.queue!r} and keep them: "
                "mirror from the exchange that fills the queue, with source.exchange and source.binding_key"
            )

    async def _declare(self) -> None:
        """The bridge's own queue, and its binding."""
        source, queue = self.settings.source, self.route.queue
        await self._source.declare_queue(queue)
        await self._source.bind_queue(queue, source.exchange, source.binding_key, dict(source.arguments) or None)

    async def _find_limit(self) -> int | None:
        after = self.settings.delete_after
        if after == "never":
            return None
        if after == "queue-length":
            return (await self._source.query_queue(self.route.queue)).message_count
        return int(after)

    # ------------------------------------------------------------------------------------------ looking after

    async def _look_after(self) -> None:
        """Once in a while: has a bridge that drains come to its end, does more fit into the prefetch?"""
        grow_at = clock.monotonic() + GROW_EVERY
        bind_at = clock.monotonic() + BIND_EVERY
        messages = octets = 0
        empty = 0
        while True:
            self._look.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY if self.wish is WantedState.DRAIN else GROW_EVERY):
                    await self._look.wait()
            flow, consumer = self._flow, self._consumer
            if flow is None or consumer is None:
                continue
            if self.wish is WantedState.DRAIN:
                empty = empty + 1 if await self._is_empty(flow, consumer) else 0
                if empty >= 2:
                    self._drained = True
                    self._finish("drained")
                    empty = 0
            if self.route.own_queue and clock.monotonic() >= bind_at:
                bind_at = clock.monotonic() + BIND_EVERY
                self._declare_again()
            if clock.monotonic() >= grow_at:
                grow_at = clock.monotonic() + GROW_EVERY
                self._grow(flow, consumer, flow.done - messages, flow.done_octets - octets)
                messages, octets = flow.done, flow.done_octets

    async def _is_empty(self, flow: BridgeFlow, consumer: Consumer) -> bool:
        if not flow.idle or consumer.state is not ConsumerState.RUNNING:
            return False
        if flow.deduplicator.repeats:
            return True  # it has shown what there is; its messages stay
        taken = flow.taken
        try:
            found = await self._source.query_queue(self.route.queue)
        except GatewayError:
            return False
        return found.message_count == 0 and flow.taken == taken and not flow.held

    def _full(self, overrun: bool) -> None:
        """More octets are out than may be: the next consumer gets fewer messages at a time. ``overrun``: this one's
        are given back, and would come again for ever: another one follows in any case, when there is room."""
        flow, consumer = self._flow, self._consumer
        if flow is None or consumer is None or consumer.changing:
            return
        fits = flow.octets_max * flow.held // max(flow.octets, 1)
        smaller = max(1, min(fits, consumer.prefetch // 2))
        if flow.unheld:
            consumer.change_prefetch(consumer.prefetch, flow.wait_low)
        elif overrun or smaller < consumer.prefetch:
            log("bridge.prefetch", bridge=self.name, prefetch=smaller, before=consumer.prefetch, octets=flow.octets)
            consumer.change_prefetch(smaller, flow.wait_low if overrun else None)

    def _grow(self, flow: BridgeFlow, consumer: Consumer, messages: int, octets: int) -> None:
        """Messages have become smaller: more of them fit."""
        if not messages or consumer.prefetch >= self.settings.prefetch or consumer.changing:
            return
        fits = min(flow.octets_max * messages // max(octets, 1) // 2, self.settings.prefetch)
        if fits >= 2 * consumer.prefetch or fits == self.settings.prefetch:
            log("bridge.prefetch", bridge=self.name, prefetch=fits, before=consumer.prefetch)
            consumer.change_prefetch(fits)

    def _enough(self) -> None:
        self._finish(f"delete_after: {self._limit} messages are done")

    def _finish(self, why: str) -> None:
        """It is done."""
        self._why_stopped = why
        log("bridge.finished", bridge=self.name, reason=why)
        self._on_finish(self, why)

    @property
    def stale(self) -> bool:
        """One of its brokers is another one now."""
        return any(self._gateway.brokers.get(upstream.name) is not upstream for upstream in self._brokers())

    @property
    def finished(self) -> bool:
        """It has come to the end that was wished for."""
        left = self._flow.left if self._flow is not None else self._left
        return (left == 0 and self.wish in (WantedState.RUN, WantedState.DRAIN)) or (
            self._drained and self.wish is WantedState.DRAIN
        )

    def _crashed(self, error: BaseException) -> None:
        """An internal error: everything goes back to the source, and it starts over."""
        log("bridge.failed", logging.ERROR, exc_info=error, bridge=self.name)
        self._faults.set(OURS, f"internal error: {error!r:.200}")
        if len(self._tasks) == 1:
            now = clock.monotonic()
            if now - self._crashed_at >= CALM:
                self._backoff.reset()
            self._rest_seconds = self._backoff.next()
            self._crashed_at = now + self._rest_seconds
            self._tasks.append(self._loop.create_task(self._restart()))

    async def _restart(self) -> None:
        running = self._tasks[0]
        running.cancel()
        await asyncio.wait([running])
        flow = self._flow
        try:
            await self._end_flow(0.0)
        except Exception as error:  # it is tried again before the next begins
            log("bridge.failed", logging.ERROR, exc_info=error, bridge=self.name)
        if flow is not None:
            self._left = flow.left
        await clock.sleep(self._rest_seconds)
        self._tasks = [self._loop.create_task(self._run(), name=f"bridge {self.name}")]

    # -------------------------------------------------------------------------------------- what others say

    def _broker_changed(self, upstream: Upstream) -> None:
        if upstream is self._target:
            if upstream.state in OUT_OF_ORDER:
                self._faults.set(BROKER, f"{upstream.name} is {upstream.state.value}: {upstream.reason}")
            else:
                self._faults.clear(BROKER)
        if upstream.state is UpstreamState.UP:
            self._hurry.set()
            if self._flow is not None:
                self._flow.hurry()

    def _consumer_changed(self, consumer: Consumer) -> None:
        if consumer.state is ConsumerState.RUNNING:
            self._faults.clear(SOURCE)
        elif consumer.state is not ConsumerState.CLOSED:
            self._faults.set(SOURCE, consumer.reason or consumer.state.value)
            if self._flow is not None:
                self._flow.forget_lost()
            if consumer.state is ConsumerState.CANCELLED and self.route.own_queue:
                self._declare_again()
        self._judge()

    def _declare_again(self) -> None:
        """The bridge's own queue is gone, or its binding may be; the consumer finds it when it is back."""
        if self._declaring is None or self._declaring.done():
            self._declaring = self._loop.create_task(self._declare_until_done())

    async def _declare_until_done(self) -> None:
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        while True:
            try:
                await self._declare()
                break
            except GatewayError as error:
                self._faults.set(QUEUE, str(error))
            except Exception as error:  # a fault of ours must not end the trying
                log("bridge.failed", logging.ERROR, exc_info=error, bridge=self.name)
                self._faults.set(QUEUE, f"internal error: {error!r:.200}")
            await backoff.wait()
        self._faults.clear(QUEUE)

    def _oversized(self, oversized: Oversized) -> None:
        if oversized.queue == self.route.queue:
            self.counts.add("oversized")
            self._faults.last = (
                f"source: a message of {oversized.size} octets is over message_max = {oversized.limit}: not forwarded"
            )

    # ------------------------------------------------------------------------------------------------ status

    @property
    def state(self) -> BridgeState:
        """How things stand."""
        return self._state

    def _state_now(self) -> BridgeState:
        if self.wish is WantedState.PAUSE:
            return BridgeState.PAUSED
        if self.wish is WantedState.STOP or not self._tasks:
            return BridgeState.STOPPED
        if self._faults:
            return BridgeState.ERROR
        if self._consumer is None or self._consumer.state is not ConsumerState.RUNNING:
            return BridgeState.STARTING
        return BridgeState.DRAINING if self.wish is WantedState.DRAIN else BridgeState.RUNNING

    def _judge(self) -> None:
        state = self._state_now()
        if state is not self._state:
            self._state = state
            self._since = clock.now()
            log("bridge.state", bridge=self.name, state=state.value, reason=self._faults.reason)
            metrics = self._gateway.metrics
            metrics.bridge_up.labels(self.name).set(state in (BridgeState.RUNNING, BridgeState.DRAINING))
            metrics.bridge_fault.labels(self.name).set(state in (BridgeState.STARTING, BridgeState.ERROR))

    async def status(self) -> BridgeStatus:
        """Everything there is to say. Asks how deep the source's queue is, at most once a second."""
        now = clock.monotonic()
        if now - self._asked_at >= ASK_EVERY:
            self._asked_at = now
            try:
                async with asyncio.timeout(ASK_WITHIN):
                    self._depth = (await self._source.query_queue(self.route.queue)).message_count
            except (GatewayError, TimeoutError):
                self._depth = None
        flow, counts = self._flow, self.counts
        numbers = counts.numbers
        return BridgeStatus(
            name=self.name,
            state=self._state,
            reason=self._faults.reason or (self._why_stopped if self._state is BridgeState.STOPPED else ""),
            since=self._since,
            read_only=self.read_only,
            etag=self.etag,
            settings=self.settings,
            source_version=version_name(self._source),
            target_version=version_name(self._target),
            taken=numbers["taken"],
            forwarded=numbers["forwarded"],
            dead_lettered=numbers["dead_lettered"],
            duplicates_dropped=numbers["duplicates_dropped"],
            filtered=numbers["filtered"],
            looped=numbers["looped"],
            resent=numbers["resent"],
            oversized=numbers["oversized"],
            losses=dict(counts.losses),
            in_flight=flow.held if flow is not None else 0,
            octets=flow.octets if flow is not None else 0,
            rate=counts.rate(now),
            lag=counts.lag(),
            source_messages=self._depth,
            last_error=self._faults.last,
        )

    async def abandon_source(self, heir: Bridge | None = None) -> None:
        """The bridge goes: its own queue is unbound, and deleted where it is empty. What is in it stays. A queue that
        is the ``heir``'s too stays. It is bound again before it is unbound, so that messages for both bindings are not
        missed."""
        if heir is None and (reason := await self._settle_last(CANCEL_WITHIN)):
            log("bridge.branches_left", logging.WARNING, bridge=self.name, reason=reason)
        if not self.route.own_queue:
            return
        source, queue = self.settings.source, self.route.queue
        inherited = heir is not None and heir._source.name == self._source.name and heir.route.queue == queue
        try:
            if heir is not None and inherited and heir.route.own_queue:
                await heir._declare()
                if _binding(heir.settings) == _binding(self.settings):
                    return
            await self._source.unbind_queue(queue, source.exchange, source.binding_key, dict(source.arguments) or None)
            if not inherited:
                await self._source.delete_queue(queue, if_unused=True, if_empty=True)
        except GatewayError as error:
            log("bridge.queue_left", logging.WARNING, bridge=self.name, queue=queue, reason=str(error))


async def _close(consumer: Consumer | None) -> None:
    if consumer is not None:
        await consumer.close()


def _binding(settings: BridgeSettings) -> object:
    source = settings.source
    return source.exchange, source.binding_key, source.arguments
