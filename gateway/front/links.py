"""Upstream connections of a front: one for each login, shared by the clients that have it.

A connection is opened when the first client needs it, opened again whenever it is lost, and closed when nobody has
needed it for a while. Channels are never shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from gateway.amqp.operations import (
    ChannelClosed,
    CloseReason,
    DeleteQueue,
    OpenChannel,
    Operation,
    Request,
    Settle,
    Settlement,
)
from gateway.broker.refusals import reply_text
from gateway.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    BudgetExceeded,
    GatewayError,
    LimitExceeded,
    Overloaded,
    RemoteError,
    StateError,
)
from gateway.front.channels.channel import FrontChannel
from gateway.front.channels.recovery import STRIKES_MAX
from gateway.front.channels.rules import Rule, rules_for
from gateway.front.channels.target import RABBITMQ, Target, target_of
from gateway.front.client import FrontClient
from gateway.front.counts import FrontCounts
from gateway.front.handed import HandedMemory
from gateway.front.shares import UserShare
from gateway.link import NOT_OUR_FAULT, Channel, Link
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock
from gateway.runtime.tasks import Tasks
from gateway.upstreams.keeper import Dialer, Keeper

IDLE_SECONDS: Final = 60.0
"""How long a connection may have no client before it is closed."""
CLOSE_SECONDS: Final = 5.0
"""How long the end of a connection may take."""
CHANNELS_MAX: Final = 0xFFFF
"""Channels of a connection whose broker names no limit."""
CHANNELS_KEPT: Final = 64
"""Channels of a connection that are left to the clients that it has."""
TOPOLOGY_TRIES: Final = 5
"""How often an exclusive queue is asked for that the upstream still holds for the connection that was lost."""
TOPOLOGY_PAUSE: Final = 0.5
"""Seconds between two of these tries."""
ASK_AGAIN: Final = 0.1
"""Seconds until a question of a client is asked again whose connection was lost."""
_LOCKED: Final = 405


class RelayChannel(Channel):
    """An upstream channel of one channel of a client."""

    __slots__ = ("_first", "_last", "_waits", "front", "share")

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self.front: FrontChannel | None = None
        self.share: UserShare | None = None
        """What counts it; None: it is over, or nobody does."""
        self._first = self._last = 0
        """Deliveries to accept; 0: none."""
        self._waits = False
        """The next write will have them."""

    def send(self, operation: Operation) -> int:
        """See :class:`~gateway.link.Channel`."""
        if self._first:
            self._tell_accepted()
        return super().send(operation)

    def accept(self, number: int) -> None:
        """See :class:`~gateway.front.channels.channel.UpstreamChannel`. Deliveries that follow each other are accepted
        as one: clients settle them one by one, and many with one write."""
        if self._first:
            if number == self._last + 1:
                self._last = number
                return
            self._tell_accepted()
        if not self._waits:
            self._waits = True
            self.link.before_flush(self._flush)
        self._first = self._last = number

    def _flush(self) -> None:
        self._waits = False
        if self._first:
            self._tell_accepted()

    def _tell_accepted(self) -> None:
        first, self._first = self._first, 0
        if self.closed is None:
            with suppress(StateError):  # the upstream has ended the channel or the connection, and says so next
                super().send(Settle(self.number, Settlement.ACCEPT, first, self._last))

    def receive(self, operation: Operation) -> None:
        """See :class:`~gateway.link.Channel`: everything goes to the client's channel."""
        if type(operation) is ChannelClosed:
            self.link.forget(self)
            self._give()
            self.closed = BrokerUnavailable("the channel is closed")
        front = self.front
        if front is not None:
            front.client.now = self.link.now
            front.received(operation)
        elif self.usable:  # a transaction was under way when the client's channel ended, and may be over now
            self._leave()

    def end(self, error: GatewayError) -> None:
        """See :class:`~gateway.link.Channel`: the connection is lost, which its clients hear of together."""
        self.closed = error
        self.front = None
        self._give()

    def _give(self) -> None:
        share, self.share = self.share, None
        if share is not None:
            share.give_channel()

    def detach(self) -> None:
        """The client's channel is over."""
        self.front = None
        if self._first:
            self._tell_accepted()
        self._leave()

    def _leave(self) -> None:
        """Close the channel. Behind a transaction that is about to end: what comes then has it tried again."""
        try:
            self.abandon()
        except StateError:  # that, or the upstream has ended it already, and what says so comes next
            self._closing = False


class SharedLink:
    """One upstream connection and its clients."""

    def __init__(
        self, dialer: Dialer, switches: Mapping[str, str], number: int, counts: FrontCounts, memory: HandedMemory,
        is_clients_login: bool = False, connections: int = 1,
    ) -> None:  # fmt: skip
        """
        Args:
            memory: what clients of the broker were handed.
            is_clients_login: the login is the clients' own, so they go when the broker refuses it.
            connections: how many connections there may be with that login.
        """
        self._connections = connections
        self.clients: dict[FrontClient, None] = {}
        self.owners: dict[str, FrontClient] = {}
        self.target = Target()
        self.rules: dict[type[Operation], tuple[Rule, ...]] = {}
        self.front = counts.front
        self.handed: HandedMemory | None = None
        """See :class:`~gateway.front.client.UpstreamLink`."""
        self.login = dialer.url.user
        self.empty_since = clock.monotonic()
        self.expected = 0
        """How many clients wait for its login."""
        self.restores = 0
        """How often it was opened again."""
        self.changed = asyncio.Event()
        """Set whenever it has come up, or has not."""
        self._switches = switches
        self._link: Link | None = None
        self._was_up = False
        self._counts = counts
        self._memory = memory
        self._is_clients_login = is_clients_login
        self._holders: set[FrontClient] = set()
        self._left: list[str] = []
        """Exclusive queues of clients that have gone while it was not up: they may just have been declared again."""
        self._tasks = Tasks("front link")
        self.keeper = Keeper(dialer, f"front {self.front} {number}", up=self._up, down=self._down)
        self._run = asyncio.get_running_loop().create_task(self.keeper.run(), name=f"front {self.front} {number}")

    # -------------------------------------------------------------------------------------- what clients ask

    @property
    def is_up(self) -> bool:
        """See :class:`~gateway.front.client.UpstreamLink`."""
        link = self._link
        return link is not None and link.ended is None and not link.closing

    @property
    def is_accepted(self) -> bool:
        """The broker has taken the login, and not refused it since."""
        return self._was_up and self.keeper.code != AuthenticationFailed.code

    @property
    def is_needed(self) -> bool:
        """It has clients, or clients wait for it."""
        return bool(self.clients or self.expected)

    @property
    def writable(self) -> bool:
        """See :class:`~gateway.front.client.UpstreamLink`."""
        return self._link is not None and self._link.writable

    @property
    def blocked(self) -> str | None:
        """See :class:`~gateway.front.client.UpstreamLink`."""
        return None if self._link is None else self._link.blocked

    @property
    def channels(self) -> int:
        """How many channels it has."""
        return 0 if self._link is None else self._link.channels

    @property
    def room(self) -> int:
        """How many channels more the connection may have."""
        link = self._link
        return CHANNELS_MAX if link is None else (link.capabilities.channel_max or CHANNELS_MAX) - link.channels

    def attach(self, channel: FrontChannel) -> None:
        """See :class:`~gateway.front.client.UpstreamLink`."""
        link, share = self._link, channel.client.share
        if link is None:
            raise BrokerUnavailable("the broker is away")
        if share is not None:
            try:
                share.take_channel(self._connections * (link.capabilities.channel_max or CHANNELS_MAX))
            except (BudgetExceeded, Overloaded) as error:
                raise LimitExceeded(str(error), "front_channels") from None
        try:
            relay = link.channel(RelayChannel)
        except GatewayError:
            if share is not None:
                share.give_channel()
            raise
        relay.share = share
        relay.front = channel
        relay.send(OpenChannel(relay.number))
        channel.up = relay

    def ask(self, channel: FrontChannel, request: Request, answered: Callable[[Any], None]) -> None:
        """See :class:`~gateway.front.client.UpstreamLink`."""
        self._tasks.start(self._ask(channel, request, answered), "front question")

    async def _ask(self, channel: FrontChannel, request: Request, answered: Callable[[Any], None]) -> None:
        """Ask until there is an answer: a connection that is lost is no reason to refuse what a client asks. Where the
        broker has ended it with a code, that may be for what another client has sent; but not again and again."""
        outcome: Any = None
        strikes = 0
        while outcome is None:
            if channel.over:
                return
            link = self._link
            try:
                outcome = await self._perform(link, request)
            except BrokerUnavailable:
                pass
            except GatewayError as error:
                strikes += 1
                if (self.is_up and self._link is link) or strikes >= STRIKES_MAX:
                    is_answer = isinstance(error, RemoteError)
                    outcome = error if is_answer else RemoteError(506, f"RESOURCE_ERROR - {error}"[:255])
            if outcome is None:
                await clock.sleep(ASK_AGAIN)
                while not self.is_up and not channel.over:
                    await clock.sleep(ASK_AGAIN)
        answered(outcome)

    async def _perform(self, link: Link | None, request: Request) -> Any:
        """The outcome of a request on a channel of its own."""
        if link is None:
            raise BrokerUnavailable("the broker is away")
        channel = link.channel(Channel)
        await channel.open()
        try:
            return await channel.request(replace(request, channel=channel.number))
        finally:
            if channel.closed is None:
                channel.abandon()

    def hold(self, client: FrontClient) -> None:
        """See :class:`~gateway.front.client.UpstreamLink`."""
        self._holders.add(client)
        self._steer()

    def go_on(self, client: FrontClient) -> None:
        """See :class:`~gateway.front.client.UpstreamLink`."""
        self._holders.discard(client)
        self._steer()

    def _steer(self) -> None:
        stream = None if self._link is None else self._link.stream
        if stream is None:
            return
        if self._holders:
            stream.pause_reading()
        else:
            stream.resume_reading()

    def leave(self, client: FrontClient, queues: list[str], left: Callable[[], None]) -> None:
        """See :class:`~gateway.front.client.UpstreamLink`."""
        if queues and self.is_up:
            self._tasks.start(self._leave(client, queues, left), "front client leaves")
        else:
            self._left += queues
            self._gone(client, queues)
            left()

    async def _leave(self, client: FrontClient, queues: list[str], left: Callable[[], None]) -> None:
        try:
            for name in queues:
                await self._delete(self._link, name)
        except GatewayError:
            pass  # the connection is lost, and they with it
        finally:
            self._gone(client, queues)
            left()

    async def _delete(self, link: Link | None, queue: str) -> None:
        try:
            await self._perform(link, DeleteQueue(0, queue))
        except RemoteError as error:
            if error.reply_code != 404:
                log("front.queue_left", front=self.front, queue=queue, reason=str(error))

    def _gone(self, client: FrontClient, queues: list[str]) -> None:
        self._holders.discard(client)
        self._steer()
        for name in queues:
            if self.owners.get(name) is client:
                del self.owners[name]
        if self.clients.pop(client, False) is None and not self.clients:
            self.empty_since = clock.monotonic()

    # ---------------------------------------------------------------------------------------- up and down

    async def _up(self, link: Link) -> None:
        """The connection is open: have all there again that its clients had."""
        self.target = target_of(link.session.version, link.capabilities)
        self.rules = dict(rules_for(self.target, self._switches))
        self._memory.begin()
        self.handed = None if self.target.product == RABBITMQ else self._memory
        self._left.clear()  # these went with the connection before
        for client in list(self.clients):
            if client.is_connected and len(client.topology):
                await self._declare(link, client)
        while self._left:
            await self._delete(link, self._left.pop())
        if link.ended is not None:
            return
        link.on_blocked = self._blocked
        link.on_writable = self._rouse
        self._link = link
        if self._was_up:
            self.restores += 1
            self._counts.restores += 1
            log("front.link_restored", front=self.front, login=self.login, clients=len(self.clients))
        self._was_up = True
        self._steer()
        for client in list(self.clients):
            client.now = clock.monotonic()
            client.upstream_restored()
        self.changed.set()

    async def _declare(self, link: Link, client: FrontClient) -> None:
        """Declare again what the client had declared. What is refused is left, and logged."""
        channel: Channel | None = None
        for request in client.topology.requests():
            for tried in range(TOPOLOGY_TRIES):
                if channel is None or channel.closed is not None:
                    channel = link.channel(Channel)
                    await channel.open()
                try:
                    await channel.request(replace(request, channel=channel.number))
                    break
                except RemoteError as error:
                    if error.reply_code == _LOCKED and tried + 1 < TOPOLOGY_TRIES:
                        await clock.sleep(TOPOLOGY_PAUSE)  # the upstream has not seen yet that the old one is gone
                        continue
                    log(
                        "front.not_restored",
                        front=self.front,
                        user=client.user,
                        what=type(request).__name__,
                        reason=str(error),
                    )
                    break
                except LimitExceeded:
                    return
        if channel is not None and channel.closed is None:
            channel.abandon()

    def _down(self, reason: str) -> None:
        """The connection is lost, or was not to be had."""
        link, self._link = self._link, None
        self.changed.set()
        if link is None:
            if self._was_up and self.keeper.code == AuthenticationFailed.code and self._is_clients_login:
                self.close_clients(320, reply_text(320, "the broker refuses this login now"))
            return
        ended = link.ended
        hard = ended is not None and ended.reason is CloseReason.PEER and ended.code not in NOT_OUR_FAULT
        for client in list(self.clients):
            client.now = clock.monotonic()
            client.upstream_lost(hard)

    def _blocked(self) -> None:
        """The upstream takes no publishes, or takes them again."""
        reason = self.blocked
        for client in list(self.clients):
            client.upstream_blocked(reason)
        if reason is None:
            self._rouse()

    def _rouse(self) -> None:
        """The upstream takes octets again."""
        for client in list(self.clients):
            client.rouse()

    def use(self, dialer: Dialer) -> None:
        """Go on with a connection by other settings. Clients wait meanwhile, as at a loss."""
        self.login = dialer.url.user
        self.keeper.use(dialer)
        if self._link is not None:
            self._tasks.start(self._link.close(CLOSE_SECONDS), "other settings")

    def use_rules(self, switches: Mapping[str, str]) -> None:
        """Switch rules, for requests that come from now on."""
        self._switches = switches
        self.rules = dict(rules_for(self.target, switches))

    def add(self, client: FrontClient) -> None:
        """One client more."""
        self.clients[client] = None

    async def close(self) -> None:
        """Close the connection."""
        self._run.cancel()
        await asyncio.wait([self._run], timeout=CLOSE_SECONDS)
        self._down("closed")
        await self._tasks.close()

    def close_clients(self, code: int, text: str) -> None:
        """Tell every client that it is over."""
        for client in list(self.clients):
            client.now = clock.monotonic()
            client.close(code, text)
