"""Queues, exchanges and bindings: asked on channels that may die of the answer.

A 404 or 406 costs the channel it came on, and a mistake such as an exchange type that no broker knows costs a
whole connection. So these requests have a link of their own, and each has a channel to itself while it waits;
channels that survive are used again. Where a connection dies under several requests, each is asked once more,
alone, so that only the one that the broker objects to fails.

Exclusive queues belong to the connection that declares them: they, and what concerns them, are asked on the
link that consumes.

What was declared here is remembered, and declared again when the link is back: the broker creates what is
missing and leaves the rest as it is. What now stands in the way with other arguments is logged and left alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, cast

from gateway.amqp.operations import (
    BindExchange,
    BindingFound,
    BindQueue,
    Declared,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    ExchangeFound,
    Outcome,
    PurgeQueue,
    QueryBinding,
    QueryExchange,
    QueryQueue,
    Removed,
    Request,
    UnbindExchange,
    UnbindQueue,
)
from gateway.amqp.values import Table
from gateway.errors import AccessRefused, BrokerUnavailable, GatewayError, LimitExceeded, Overloaded, RemoteError
from gateway.link import Channel, Link
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock

PATIENCE: Final = 5.0
"""How long a request waits for a link that is being connected, in seconds."""
ANSWER_TIMEOUT: Final = 30.0
"""How long a request waits for the broker's answer, in seconds."""
QUEUE_KNOWN: Final = 5.0
"""Seconds for which a queue is known to exist."""
CHANNELS: Final = 8
"""Most requests under way at once on one link; more wait their turn."""
REMEMBERED: Final = 10_000
"""Most declarations that are remembered; the oldest are forgotten first."""

_O = TypeVar("_O", bound=Outcome)


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """What a broker tells of a queue."""

    queue: str
    message_count: int
    """What it counts depends on the broker: ``Capabilities.counts_unacked``."""
    consumer_count: int
    durable: bool | None
    arguments: Table | None
    """Both None where the version does not tell."""
    auto_delete: bool | None = None
    """Whether it goes with its last consumer, one that only looks included; None where the version does not tell."""


class Desk:
    """Asks one link, each request on a channel that nothing else uses."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._link: Link | None = None
        self._ready = asyncio.Event()
        self._idle: list[Channel] = []
        self._turn = asyncio.Semaphore(CHANNELS)
        self._alone = asyncio.Lock()
        self._reason = "not connected yet"

    def attach(self, link: Link) -> None:
        """The link to ask. Only :meth:`restore`'s requests use it until :meth:`ready`."""
        self._link = link
        self._idle.clear()

    def ready(self) -> None:
        """Let requests through."""
        self._ready.set()

    def detach(self, reason: str) -> None:
        """The link is lost."""
        self._link = None
        self._reason = reason
        self._idle.clear()
        self._ready.clear()

    async def wait_ready(self) -> bool:
        """Wait a moment for requests to be let through; whether they are."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._ready.wait()
        except TimeoutError:
            return False
        return True

    async def ask(self, request: Request, *, at_once: bool = False) -> Outcome:
        """The outcome of a request (the upstream sets its channel number).

        Raises:
            RemoteError: the broker said no.
            LocalError: it cannot be asked in this version.
            BrokerUnavailable: no link, or no answer.
        """
        if not at_once:
            await self._let_through()  # before it takes a turn from those that could have an answer
        async with self._turn:
            try:
                return await self._ask(request, at_once)
            except (RemoteError, BrokerUnavailable) as error:
                link = self._link
                if at_once or (link is not None and link.ended is None):
                    raise
                if link is not None:
                    self.detach(str(error))  # its keeper comes to the same conclusion in a moment
                log("broker.request_repeated", broker=self.name, reason=str(error))
            async with self._alone:
                return await self._ask(request, at_once)

    async def _let_through(self) -> None:
        if not await self.wait_ready():
            raise BrokerUnavailable(f"broker {self.name}: {self._reason}")

    async def _ask(self, request: Request, at_once: bool) -> Outcome:
        if not at_once:
            await self._let_through()
        channel = await self._channel()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                outcome = await channel.request(replace(request, channel=channel.number))
        except TimeoutError:
            channel.abandon()
            raise BrokerUnavailable(f"broker {self.name}: no answer within {ANSWER_TIMEOUT:g} s") from None
        except asyncio.CancelledError:
            channel.abandon()
            raise
        except GatewayError:
            self._keep(channel)
            raise
        self._keep(channel)
        return cast(Outcome, outcome)

    async def _channel(self) -> Channel:
        while self._idle:
            channel = self._idle.pop()
            if channel.usable:
                return channel
        if self._link is None:
            raise BrokerUnavailable(f"broker {self.name}: {self._reason}")
        try:
            channel = self._link.channel(Channel)
        except LimitExceeded as error:  # a broker that allows few: not the request is too large, there are too many
            raise Overloaded(f"broker {self.name}: {error}") from None
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await channel.open()
        except TimeoutError:
            channel.abandon()
            raise BrokerUnavailable(f"broker {self.name}: no answer within {ANSWER_TIMEOUT:g} s") from None
        return channel

    def _keep(self, channel: Channel) -> None:
        if channel.usable and channel.link is self._link:
            self._idle.append(channel)


class Topology:
    """Asks for and remembers the topology of one broker. ``common`` is the desk of most requests,
    ``exclusive`` that of the consuming link."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.common = Desk(name)
        self.exclusive = Desk(name)
        self._declared: OrderedDict[Hashable, Request] = OrderedDict()
        self._ours: set[str] = set()  # names of exclusive queues
        self._known: dict[str, float] = {}  # queue that exists -> since when that is known

    # ----------------------------------------------------------------------------------------------- queues

    async def declare_queue(
        self, queue: str, durable: bool, exclusive: bool, auto_delete: bool, arguments: Table | None, passive: bool
    ) -> QueueInfo:
        """See :meth:`gateway.upstreams.upstream.Upstream.declare_queue`."""
        request = DeclareQueue(
            0, queue, durable=durable, exclusive=exclusive, auto_delete=auto_delete, passive=passive,
            arguments=arguments or {},
        )  # fmt: skip
        desk = self.exclusive if exclusive else self._desk(queue)
        found = _expect(Declared, await desk.ask(request))
        if not passive and queue:
            self._remember(("queue", queue), request)
            if exclusive:
                self._ours.add(queue)
        elif exclusive:
            self._ours.add(found.queue)
        return _info(found)

    async def query_queue(self, queue: str) -> QueueInfo:
        """See :meth:`gateway.upstreams.upstream.Upstream.query_queue`."""
        return _info(_expect(Declared, await self._desk(queue).ask(QueryQueue(0, queue))))

    async def check_queue(self, queue: str, age: float = QUEUE_KNOWN) -> None:
        """NotFound where there is no such queue. An answer that is no older than ``age`` seconds will do; a login
        that may not ask is let through."""
        now = clock.monotonic()
        known = self._known.get(queue)
        if known is not None and known > now - age:
            return
        self._known.pop(queue, None)
        try:
            await self.query_queue(queue)
        except AccessRefused:
            pass  # whoever reads from it is told what is the matter
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[queue] = now

    async def purge_queue(self, queue: str) -> int | None:
        """How many messages went, None where the version does not tell."""
        return _expect(Removed, await self._desk(queue).ask(PurgeQueue(0, queue))).message_count

    async def delete_queue(self, queue: str, if_unused: bool, if_empty: bool) -> int | None:
        """How many messages went with it, None where the version does not tell."""
        request = DeleteQueue(0, queue, if_unused=if_unused, if_empty=if_empty)
        removed = _expect(Removed, await self._desk(queue).ask(request))
        self._forget_queue(queue)
        return removed.message_count

    async def bind_queue(self, queue: str, exchange: str, routing_key: str, arguments: Table | None) -> None:
        """Bind a queue to an exchange."""
        request = BindQueue(0, queue, exchange, routing_key, arguments or {})
        await self._desk(queue).ask(request)
        self._remember(("binding", queue, exchange, routing_key, repr(arguments or {})), request)

    async def unbind_queue(self, queue: str, exchange: str, routing_key: str, arguments: Table | None) -> None:
        """Undo :meth:`bind_queue`."""
        await self._desk(queue).ask(UnbindQueue(0, queue, exchange, routing_key, arguments or {}))
        self._declared.pop(("binding", queue, exchange, routing_key, repr(arguments or {})), None)

    # -------------------------------------------------------------------------------------------- exchanges

    async def declare_exchange(
        self,
        exchange: str,
        type_: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Table | None,
        passive: bool,
    ) -> None:
        """See :meth:`gateway.upstreams.upstream.Upstream.declare_exchange`."""
        request = DeclareExchange(
            0, exchange, type_, durable=durable, auto_delete=auto_delete, internal=internal, passive=passive,
            arguments=arguments or {},
        )  # fmt: skip
        await self.common.ask(request)
        if not passive:
            self._remember(("exchange", exchange), request)

    async def query_exchange(self, exchange: str) -> ExchangeFound:
        """NotFound where there is none."""
        return _expect(ExchangeFound, await self.common.ask(QueryExchange(0, exchange)))

    async def delete_exchange(self, exchange: str, if_unused: bool) -> None:
        """Delete an exchange, and what is remembered of it."""
        await self.common.ask(DeleteExchange(0, exchange, if_unused=if_unused))
        self._declared.pop(("exchange", exchange), None)
        for key, request in list(self._declared.items()):
            match request:
                case BindQueue(exchange=name) if name == exchange:
                    del self._declared[key]
                case BindExchange(source=source, destination=destination) if exchange in (source, destination):
                    del self._declared[key]

    async def bind_exchange(self, destination: str, source: str, routing_key: str, arguments: Table | None) -> None:
        """Bind an exchange to another one."""
        request = BindExchange(0, destination, source, routing_key, arguments or {})
        await self.common.ask(request)
        self._remember(("exchange binding", destination, source, routing_key, repr(arguments or {})), request)

    async def unbind_exchange(self, destination: str, source: str, routing_key: str, arguments: Table | None) -> None:
        """Undo :meth:`bind_exchange`."""
        await self.common.ask(UnbindExchange(0, destination, source, routing_key, arguments or {}))
        self._declared.pop(("exchange binding", destination, source, routing_key, repr(arguments or {})), None)

    async def query_binding(
        self, exchange: str, queue: str, routing_key: str | None, arguments: Table | None
    ) -> BindingFound:
        """What of the question exists; Unsupported where the broker cannot be asked."""
        return _expect(
            BindingFound, await self._desk(queue).ask(QueryBinding(0, exchange, queue, routing_key, arguments))
        )

    # --------------------------------------------------------------------------------------------- memory

    async def restore(self, desk: Desk) -> None:
        """Declare again what was declared on this desk, exchanges and queues before what binds them."""
        self._known.clear()
        mine = [request for request in self._declared.values() if self._desk_of(request) is desk]
        for request in sorted(mine, key=lambda request: isinstance(request, (BindQueue, BindExchange))):
            try:
                await desk.ask(request, at_once=True)
            except BrokerUnavailable:
                raise
            except GatewayError as error:
                log("broker.not_restored", logging.WARNING, broker=self.name, request=repr(request), reason=str(error))

    def declared(self, queue: str) -> Table:
        """The arguments with which a queue was declared here; none if it was not."""
        request = self._declared.get(("queue", queue))
        return request.arguments if isinstance(request, DeclareQueue) else {}

    def is_exclusive(self, queue: str) -> bool:
        """Whether it was declared exclusive here: only the link that declared it may use it."""
        return queue in self._ours

    def _desk(self, queue: str) -> Desk:
        return self.exclusive if queue in self._ours else self.common

    def _desk_of(self, request: Request) -> Desk:
        return self._desk(request.queue) if isinstance(request, (DeclareQueue, BindQueue)) else self.common

    def _remember(self, key: Hashable, request: Request) -> None:
        self._declared[key] = request
        self._declared.move_to_end(key)
        if len(self._declared) > REMEMBERED:
            _, old = self._declared.popitem(last=False)
            if isinstance(old, DeclareQueue):
                self._ours.discard(old.queue)

    def _forget_queue(self, queue: str) -> None:
        self._ours.discard(queue)
        self._known.pop(queue, None)
        self._declared.pop(("queue", queue), None)
        for key, request in list(self._declared.items()):
            if isinstance(request, BindQueue) and request.queue == queue:
                del self._declared[key]


def _expect(kind: type[_O], outcome: Any) -> _O:
    assert isinstance(outcome, kind), f"{outcome!r} is no {kind.__name__}"
    return outcome


def _info(found: Declared) -> QueueInfo:
    return QueueInfo(
        found.queue, found.message_count, found.consumer_count, found.durable, found.arguments, found.auto_delete
    )
