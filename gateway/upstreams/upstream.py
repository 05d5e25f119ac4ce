"""A broker by name: three links, kept alive, and one method for each thing that may be asked of it.

One link publishes, one consumes, and one asks about queues and exchanges: a broker that refuses publishes stops
reading the link that publishes, and one that dislikes a question may close the link on which it was asked, and
neither shall cost a lease. Nothing is ever published on a link that consumes. Where consumers are many, further links
consume as well (:mod:`gateway.upstreams.spare_links`).

The object knows no protocol: it puts together :class:`~gateway.upstreams.publishing.publisher.Publisher`,
:class:`~gateway.upstreams.topology.Topology`, :class:`~gateway.upstreams.consuming.leases.Leases` and its consumers,
gives them links and takes them away, and says how things stand.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gateway.amqp.message import Message
from gateway.amqp.operations import BindingFound, Consume, ExchangeFound
from gateway.amqp.values import Table
from gateway.config import BrokerSettings
from gateway.errors import BrokerUnavailable, GatewayError, Unsupported
from gateway.limits import PULL_MAX
from gateway.link import Dial, Link
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock
from gateway.runtime.tasks import Tasks
from gateway.session import Capabilities, Version
from gateway.translation import TranslationTarget, target_of
from gateway.transports.dial import Resolve
from gateway.upstreams.branches import UpstreamBranches
from gateway.upstreams.consuming.consumers import ConsumedBroker, Consumer, ConsumerState
from gateway.upstreams.consuming.dead_letters import DeadLetters
from gateway.upstreams.consuming.deliveries import Delivery, HeldDeliveries, Oversized
from gateway.upstreams.consuming.delivery_limits import DeliveryLimits
from gateway.upstreams.consuming.leases import Leases
from gateway.upstreams.keeper import Dialer, Keeper
from gateway.upstreams.notify import notify
from gateway.upstreams.publishing.publisher import Publisher
from gateway.upstreams.publishing.receipts import PublishReceipt
from gateway.upstreams.spare_links import SpareLinks, room
from gateway.upstreams.status import Status, UpstreamState
from gateway.upstreams.topology import PATIENCE, QueueInfo, Topology

_PUBLISH: Final = "publish"
_CONSUME: Final = "consume"
_ASK: Final = "ask"


class Upstream:
    """One virtual host of one broker. All methods belong to the event loop that made it."""

    def __init__(
        self,
        name: str,
        settings: BrokerSettings,
        *,
        connector: Dial | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        """``connector`` opens streams in place of TCP and TLS; ``resolve`` says to which addresses, None: any.

        Raises:
            ConfigurationError: the URL is wrong.
        """
        self.name = name
        self.settings = settings
        self.on_state: list[Callable[[Upstream], None]] = []
        """Called on the loop after each change of ``state``."""
        self.on_oversized: list[Callable[[Oversized], None]] = []
        """Called when a delivery over ``message_max`` was set aside."""
        self.on_answered: list[Callable[[float], None]] = []
        """Called with the seconds from writing a publish to its outcome, for one at a time of each channel."""
        self.resolve = resolve
        self._dialer = Dialer(name, settings, connector, resolve)
        self.url = self._dialer.url
        self._publisher = Publisher(
            name,
            settings,
            login=self.url.user,
            check_exchange=self.query_exchange,
            on_state=self._judge,
            on_answered=self._answered,
        )
        self._topology = Topology(name)
        self.branches = UpstreamBranches(name, self.query_exchange, settings.message_max)
        """Branches of distributed transactions (0-10)."""
        self.delivery_limits = DeliveryLimits(settings.delivery_limit, self._topology)
        """The delivery limits of its queues."""
        self._leases = Leases(
            name,
            channels=settings.lease_channels,
            lease_max=settings.lease_max,
            message_max=settings.message_max,
            check_queue=self._topology.check_queue,
            on_oversized=self._oversized,
            limits=self.delivery_limits,
        )
        self._dead_letters = DeadLetters(name, self.url.user, self._publisher, self._topology)
        self._consumers: set[Consumer] = set()
        self._rejecting = Tasks("dead-lettering of oversized messages")
        self._keepers = {
            _PUBLISH: Keeper(self._dialer, _PUBLISH, up=self._publish_up, down=self._publish_down),
            _CONSUME: Keeper(self._dialer, _CONSUME, up=self._consume_up, down=self._consume_down),
            _ASK: Keeper(self._dialer, _ASK, up=self._ask_up, down=self._ask_down),
        }
        self._spare = SpareLinks(self._dialer, _CONSUME, settings.consume_connections - 1)
        self._tasks: list[asyncio.Task[None]] = []
        self._ready = dict.fromkeys(self._keepers, False)
        self._reasons = dict.fromkeys(self._keepers, "")
        self._state = UpstreamState.CONNECTING
        self._reason = "not started"
        self._since = clock.now()
        self._all_up = asyncio.Event()
        self._consuming = asyncio.Event()
        self.users = 0
        """How many are about to use it who do not show in ``status``: see :attr:`idle`."""
        self._version: Version | None = None
        self._capabilities: Capabilities | None = None
        self._target: TranslationTarget | None = None
        self._was_up = False
        self._closed = False
        self._is_ending = False
        """The tasks were canceled."""

    # ------------------------------------------------------------------------------------ start, state, close

    async def start(self) -> None:
        """Begin to connect, and return: a broker that is away is no error."""
        if not self._tasks:
            self._reason = "connecting"
            self._tasks = [asyncio.create_task(keeper.run()) for keeper in self._keepers.values()]
            self._tasks.append(asyncio.create_task(self._dialer.watch_files()))

    async def wait_up(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109  # part of the answer: False
        """Wait until everything is connected, at most ``timeout`` seconds; whether it is."""
        try:
            async with asyncio.timeout(timeout):
                await self._all_up.wait()
        except TimeoutError:
            return False
        return True

    async def close(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109  # of the publishes, not of the close
        """Let publishes in flight come to an end for at most ``timeout`` seconds, then close everything. What
        is leased goes back to its queues. Where it was given up, a further call does what is left."""
        if not self._closed:
            await self._publisher.drain(timeout)
        self._closed = True
        for consumer in list(self._consumers):
            await consumer.close()
        await self._spare.close()
        if not self._is_ending:  # else they close their links already
            self._is_ending = True
            for task in self._tasks:
                task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._publisher.detach("closed", final=True)
        for down in (self._publish_down, self._consume_down, self._ask_down):
            down("closed")
        self._judge()

    @property
    def state(self) -> UpstreamState:
        """How things stand."""
        return self._state

    @property
    def reason(self) -> str:
        """Why it is not up; "" when it is."""
        return self._reason

    @property
    def version(self) -> Version | None:
        """As negotiated last; None before the first time."""
        return self._version

    @property
    def capabilities(self) -> Capabilities | None:
        """As negotiated last; None before the first time."""
        return self._capabilities

    @property
    def target(self) -> TranslationTarget | None:
        """What a message can be there, as negotiated last; None before the first time."""
        return self._target

    @property
    def product(self) -> str:
        """The broker's product, "" while it is not known."""
        return self._capabilities.product if self._capabilities is not None else ""

    @property
    def product_version(self) -> str:
        """Its version, "" while it is not known."""
        return self._capabilities.product_version if self._capabilities is not None else ""

    @property
    def unconfirmed_for(self) -> float:
        """For how long, at least, the oldest publish that was written has had no outcome, in seconds; 0: there is
        none."""
        return self._publisher.oldest

    def _answered(self, seconds: float) -> None:
        for call in self.on_answered:
            call(seconds)

    def status(self) -> Status:
        """Everything there is to say."""
        return Status(
            name=self.name,
            state=self._state,
            reason=self._reason,
            version=self._version,
            capabilities=self._capabilities,
            product=self.product,
            product_version=self.product_version,
            since=self._since,
            publishing=self._ready[_PUBLISH],
            consuming=self._ready[_CONSUME],
            pending=self._publisher.pending + self.branches.pending,
            leases=self._leases.out + sum(consumer.out for consumer in self._consumers),
            found=self._dialer.found,
            code=self._code(),
            alert=self._dialer.alert,
        )

    @property
    def idle(self) -> bool:
        """Nothing is under way, held or waited for that would suffer from its end."""
        status = self.status()
        return not (self.users or self._rejecting or self._consumers or status.pending or status.leases)

    def _code(self) -> str:
        if self._state is UpstreamState.UP:
            return ""
        return next((keeper.code for keeper in self._keepers.values() if keeper.code), "")

    # ---------------------------------------------------------------------------------------------- publish

    async def publish(
        self,
        exchange: str,
        routing_key: str,
        message: Message,
        *,
        immediate: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109  # a publish that is late stays in its window
        order: str | None = None,
    ) -> PublishReceipt:
        """Publish a message and wait until the broker has said what becomes of it.

        The broker is always asked to say whether the message was routed, and a message that was not is no
        error here: the receipt says so, and the caller decides what that means.

        Args:
            immediate: Only if a consumer can have it at once.
            timeout: Seconds to wait for the outcome (30 unless given). One that comes later is not heard.
            order: Publishes with the same order reach the broker in the order in which they were asked for.
                Without it there is no such promise where confirms are transactions.

        Raises:
            BrokerUnavailable: not connected, blocked, or no room in time; nothing was sent.
            NotFound: there is no such exchange; nothing was sent.
            EncodeError, Unsupported: the message does not fit the version or the broker; nothing was sent.
            LimitExceeded: the body is over ``message_max``; nothing was sent.
            PublishRefused, RemoteError: the broker refused it.
            OutcomeUnknown: it was sent, and no outcome came.
        """
        return await self._publisher.publish(exchange, routing_key, message, immediate, timeout, order)

    def publish_nowait(
        self,
        exchange: str,
        routing_key: str,
        message: Message,
        *,
        immediate: bool = False,
        timeout: float | None = None,
        order: str | None = None,
    ) -> asyncio.Future[PublishReceipt]:
        """:meth:`publish` for many: the future has the receipt or the error, and is to be looked at."""
        return self._publisher.publish(exchange, routing_key, message, immediate, timeout, order)

    # --------------------------------------------------------------------------------------------- topology

    async def declare_queue(
        self,
        queue: str,
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Table | None = None,
        passive: bool = False,
    ) -> QueueInfo:
        """Declare a queue, or with ``passive`` only ask for it. An empty name asks the broker for one.

        This, and all that follows here, raises NotFound, PreconditionFailed, ResourceLocked, AccessRefused or
        another RemoteError for the broker's no, Unsupported or EncodeError for what the version has not, and
        BrokerUnavailable where there is no link or no answer.
        """
        return await self._topology.declare_queue(queue, durable, exclusive, auto_delete, arguments, passive)

    async def query_queue(self, queue: str) -> QueueInfo:
        """Whether a queue exists, and how deep it is. NotFound where there is none."""
        return await self._topology.query_queue(queue)

    async def delete_queue(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int | None:
        """Delete a queue; how many messages went with it, None where the version does not tell."""
        self._dead_letters.forget(queue)
        return await self._topology.delete_queue(queue, if_unused, if_empty)

    async def purge_queue(self, queue: str) -> int | None:
        """Delete what is ready in a queue; how many that were, None where the version does not tell."""
        return await self._topology.purge_queue(queue)

    async def bind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Table | None = None
    ) -> None:
        """Bind a queue to an exchange."""
        await self._topology.bind_queue(queue, exchange, routing_key, arguments)

    async def unbind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Table | None = None
    ) -> None:
        """Undo :meth:`bind_queue`."""
        await self._topology.unbind_queue(queue, exchange, routing_key, arguments)

    async def declare_exchange(
        self,
        exchange: str,
        type: str = "direct",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Table | None = None,
        passive: bool = False,
    ) -> None:
        """Declare an exchange, or with ``passive`` only ask for it."""
        await self._topology.declare_exchange(exchange, type, durable, auto_delete, internal, arguments, passive)
        self._publisher.forget(exchange)

    async def query_exchange(self, exchange: str) -> ExchangeFound:
        """Whether an exchange exists. NotFound where there is none."""
        return await self._topology.query_exchange(exchange)

    async def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        """Delete an exchange."""
        await self._topology.delete_exchange(exchange, if_unused)
        self._publisher.forget(exchange)

    async def bind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Table | None = None
    ) -> None:
        """Bind an exchange to another one. Unsupported where the broker has no such thing."""
        await self._topology.bind_exchange(destination, source, routing_key, arguments)

    async def unbind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Table | None = None
    ) -> None:
        """Undo :meth:`bind_exchange`."""
        await self._topology.unbind_exchange(destination, source, routing_key, arguments)

    async def query_binding(
        self, exchange: str, queue: str, routing_key: str | None = None, arguments: Table | None = None
    ) -> BindingFound:
        """Whether a queue is bound to an exchange, with that key and these arguments where they are given.
        Unsupported where the broker cannot be asked."""
        return await self._topology.query_binding(exchange, queue, routing_key, arguments)

    # ---------------------------------------------------------------------------------------------- consume

    async def fetch(
        self, queue: str, max_messages: int, wait: float = 0.0, bytes_max: int = PULL_MAX
    ) -> list[Delivery]:
        """Lease up to ``max_messages`` messages, and no more once they have ``bytes_max`` bytes. Where there are none,
        wait up to ``wait`` seconds for the first; an empty list when none came. Any number of fetches may share a
        queue.

        Raises:
            NotFound: there is no such queue.
            AccessRefused: the login may not read it, or somebody else has it exclusively.
            LimitExceeded: all ``lease_channels`` are in use.
            BrokerUnavailable: no link, or no answer.
        """
        self.users += 1
        try:
            return await self._leases.fetch(queue, max_messages, wait, bytes_max)
        finally:
            self.users -= 1

    async def reject(
        self, delivery: Delivery, dead_letter: tuple[str, str] | None = None, *, native: bool = False
    ) -> None:
        """Dead-letter a delivery: by the broker where the queue is known to name a dead-letter destination, else as a
        copy, confirmed, to the exchange and routing key of ``dead_letter``, before the delivery is accepted. See
        :mod:`gateway.upstreams.consuming.dead_letters`.

        Args:
            native: The queue is stated to dead-letter natively.

        Raises:
            NoDeadLetterDestination: no destination is known, and none was given.
            Unroutable: nobody takes dead letters there.
            LeaseLost: the lease is lost; the copy, if one was made, stays.
            PublishRefused, OutcomeUnknown, BrokerUnavailable, NotFound: the copy could not be made.
            Unless the lease is lost, it stays.
        """
        await self._dead_letters.reject(delivery, dead_letter, self._capabilities, native=native)

    async def dead_letters_natively(self, queue: str) -> bool:
        """Return whether the broker is known to dead-letter what is rejected from a queue, or exceeds its limit.

        Raises:
            NotFound, RemoteError, BrokerUnavailable: it cannot be asked.
        """
        return await self._dead_letters.takes(queue, self._capabilities)

    async def check_give_back(self, queue: str) -> None:
        """Check that a message of a queue may be taken and given back.

        Raises:
            Unsupported: the broker drops it after some deliveries, and does not tell their number.
            NotFound, RemoteError, BrokerUnavailable: it cannot be asked.
        """
        if most := await self._dead_letters.drops_after(queue, self._capabilities):
            raise Unsupported(
                f"broker {self.name}: the queue {queue!r} drops a message after {most} deliveries, and the broker does "
                'not tell their number, so the gateway does not take messages to give them back. Set lease = "ledger" '
                "for the subscription, or an alternate-exchange for the queue"
            )

    async def consume(
        self,
        queue: str,
        prefetch: int,
        on_delivery: Callable[[Delivery], None],
        *,
        exclusive: bool = False,
        no_ack: bool = False,
        acquired: bool = True,
        arguments: Table | None = None,
        holder: tuple[str, str] = ("", ""),
    ) -> Consumer:
        """Start a consumer that lives until it is closed, through all failures of the link or the queue.

        Args:
            prefetch: Most deliveries that are out at once.
            no_ack: The broker forgets each message as it sends it, without regard to the prefetch: deliveries come
            settled.
            acquired: False: only look at messages, which stay in the queue (``Capabilities.browse``).
            holder: For whom messages are taken, as kind and name.
            on_delivery: Called on the loop for each; quick, and without errors: one that raises costs the
                consumer its channel.

        Raises:
            NotFound, AccessRefused, ResourceLocked, RemoteError: the broker refused it at the start.
            BrokerUnavailable: no link.
        """
        consumer = Consumer(
            Consume(0, queue, no_ack=no_ack, exclusive=exclusive, arguments=arguments or {}, acquired=acquired),
            prefetch,
            on_delivery,
            ConsumedBroker(
                self._consuming_link,
                self._topology.check_queue,
                self._topology.query_queue,
                self._oversized,
                self.delivery_limits,
                self.settings.reconnect_min,
                self.settings.reconnect_max,
            ),
        )
        consumer.holder = holder
        consumer.on_state.append(self._consumer_changed)
        self._consumers.add(consumer)
        await consumer.start()
        return consumer

    def held(self, queue: str) -> list[HeldDeliveries]:
        """Return what is out of a queue, unacknowledged: of each consumer, and of all leases together."""
        found = [(consumer.holder, consumer.deliveries) for consumer in self._consumers if consumer.queue == queue]
        found.append((("", ""), self._leases.deliveries(queue)))
        return [
            HeldDeliveries(holder, len(deliveries), min(each.at for each in deliveries))
            for holder, deliveries in found
            if deliveries
        ]

    def _consumer_changed(self, consumer: Consumer) -> None:
        if consumer.state is ConsumerState.CLOSED:
            self._consumers.discard(consumer)

    async def _consuming_link(self, queue: str) -> Link:
        """A link with room for one consumer more. An exclusive queue is read on the link that declared it."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._consuming.wait()
        except TimeoutError:
            raise BrokerUnavailable(f"broker {self.name}: {self._reason}") from None
        link = self._keepers[_CONSUME].link
        if link is None:
            raise BrokerUnavailable(f"broker {self.name}: {self._reason}")
        if self._topology.is_exclusive(queue) or room(link, kept=self.settings.lease_channels) > 0:
            return link
        return await self._spare.get()

    def _oversized(self, oversized: Oversized, reject: Callable[[], None]) -> None:
        log(
            "broker.oversized", logging.WARNING,
            broker=self.name, queue=oversized.queue, size=oversized.size, message_max=oversized.limit,
        )  # fmt: skip
        self._rejecting.start(self._dead_letter(oversized.queue, reject), self.name)
        notify(self.on_oversized, oversized)

    async def _dead_letter(self, queue: str, reject: Callable[[], None]) -> None:
        """A message over a limit: dead-letter it, where that is sure to keep it."""
        try:
            if await self._dead_letters.takes(queue, self._capabilities):
                reject()
        except GatewayError as error:  # then it stays set aside
            log("broker.oversized_not_rejected", logging.WARNING, broker=self.name, queue=queue, reason=str(error))

    # ---------------------------------------------------------------------------------- links come and go

    async def _publish_up(self, link: Link) -> None:
        self._learn(link)
        self._target = target_of(
            link.session.version,
            link.capabilities.product,
            login=self.url.user,
            annotate=self.settings.annotate,
            frame_max=link.capabilities.frame_max,
            dialect=self.settings.dialect or self.url.dialect or None,
            clock=lambda: clock.now(),
        )
        self._publisher.attach(link)
        self.branches.attach(link)
        self._set_ready(_PUBLISH)

    def _publish_down(self, reason: str) -> None:
        self._set_down(_PUBLISH, reason)
        self._publisher.detach(reason)
        self.branches.detach(reason)

    async def _consume_up(self, link: Link) -> None:
        self._learn(link)
        self._topology.exclusive.attach(link)
        await self._topology.common.wait_ready()
        await self._topology.restore(self._topology.exclusive)
        self._topology.exclusive.ready()
        self._leases.attach(link)
        self._consuming.set()
        self._set_ready(_CONSUME)

    def _consume_down(self, reason: str) -> None:
        self._consuming.clear()
        self._set_down(_CONSUME, reason)
        self._topology.exclusive.detach(reason)
        self._leases.detach(reason)

    async def _ask_up(self, link: Link) -> None:
        self._topology.common.attach(link)
        await self._topology.restore(self._topology.common)
        self._topology.common.ready()
        self._set_ready(_ASK)

    def _ask_down(self, reason: str) -> None:
        self._set_down(_ASK, reason)
        self._topology.common.detach(reason)

    def _learn(self, link: Link) -> None:
        self._version = link.session.version
        self._capabilities = link.capabilities

    def _set_ready(self, purpose: str) -> None:
        self._ready[purpose] = True
        self._reasons[purpose] = ""
        self._judge()

    def _set_down(self, purpose: str, reason: str) -> None:
        self._ready[purpose] = False
        self._reasons[purpose] = reason
        self._judge()

    def _judge(self) -> None:
        """What follows from the links for the state."""
        if all(self._ready.values()):
            self._was_up = True
            self._all_up.set()
        else:
            self._all_up.clear()
        state, reason = self._state_now()
        changed = state is not self._state
        self._state, self._reason = state, reason
        if changed:
            self._since = clock.now()
            notify(self.on_state, self)

    def _state_now(self) -> tuple[UpstreamState, str]:
        if self._closed:
            return UpstreamState.CLOSED, "closed"
        if self._ready[_PUBLISH] and self._ready[_CONSUME]:
            blocked = self._publisher.blocked
            return (UpstreamState.BLOCKED, blocked) if blocked else (UpstreamState.UP, "")
        reason = next((self._reasons[purpose] for purpose in self._ready if self._reasons[purpose]), "")
        if any(keeper.hopeless for keeper in self._keepers.values()):
            return UpstreamState.FAILED, reason
        if reason or self._was_up:
            return UpstreamState.DOWN, reason
        return UpstreamState.CONNECTING, "connecting"
