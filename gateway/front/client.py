"""One client of a front: its session, its channels, and what it may hold.

What the session received waits in ``backlog`` until it can be carried out: until the upstream is there, takes
publishes, and has confirmed enough of those before. Nothing more is read from the client meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from gateway.access.scopes import VISITOR, Principal
from gateway.amqp import operations
from gateway.amqp.message import Message
from gateway.amqp.operations import Close, Closed, Operation, Publish, Request
from gateway.amqp.protocol import VersionRules
from gateway.broker.broker import QPID_CLIENT
from gateway.broker.queues import Memory
from gateway.broker.refusals import reply_text
from gateway.errors import BudgetExceeded, Overloaded, RemoteError, StateError
from gateway.front.channels import deliveries, recovery
from gateway.front.channels.channel import FrontChannel
from gateway.front.channels.rules import Rule
from gateway.front.channels.target import Target
from gateway.front.channels.topology import Topology
from gateway.front.handed import HandedMemory
from gateway.front.shares import UserShare
from gateway.limits import BrokerLimits
from gateway.session import Session
from gateway.versions import protocol_of

if TYPE_CHECKING:
    from gateway.front.counts import FrontCounts

WRITE_OVERHEAD: Final = 256
"""What an answer takes on the wire beside its body, roughly, in octets."""
LINGER_SECONDS: Final = 0.5
"""For how long the stream stays open behind the answer to a close: some clients take an end at once for a failure."""


class Login(NamedTuple):
    """A login at a broker, whose connections its clients share."""

    broker: str
    user: str = ""
    """Empty: the user of the broker's settings."""
    password: bytes = b""
    """A digest of it."""


class UpstreamLink(Protocol):
    """The upstream connection of a client, which others with the same login share."""

    @property
    def is_up(self) -> bool: ...

    @property
    def writable(self) -> bool:
        """The upstream reads what was written."""

    @property
    def blocked(self) -> str | None:
        """Why the upstream takes no publishes; None: it does."""

    @property
    def target(self) -> Target: ...

    @property
    def rules(self) -> dict[type[Operation], tuple[Rule, ...]]: ...

    @property
    def owners(self) -> dict[str, FrontClient]:
        """Exclusive queues, and whose they are."""

    @property
    def handed(self) -> HandedMemory | None:
        """What clients of the broker were handed; None: it does not forget that."""

    def attach(self, channel: FrontChannel) -> None:
        """Open an upstream channel for a front's, which has it as ``up`` then. Raises LimitExceeded,
        BrokerUnavailable."""

    def ask(self, channel: FrontChannel, request: Request, answered: Callable[[Any], None]) -> None:
        """Ask on a channel of its own for a client's; ``answered`` gets the outcome, or a RemoteError. Where the link
        is lost first, the question is asked again. It is not called where the client's channel ends first."""

    def hold(self, client: FrontClient) -> None:
        """The client is sent too much: read nothing more from the upstream for now."""

    def go_on(self, client: FrontClient) -> None:
        """The opposite."""

    def leave(self, client: FrontClient, queues: list[str], left: Callable[[], None]) -> None:
        """The client has gone. ``left`` is called when its exclusive queues are deleted."""


class PublishLane(Protocol):
    """Where publishes of a client go that are not for the broker itself."""

    @property
    def is_always(self) -> bool:
        """Publishes are stored while the broker is there, too."""

    def may_pass(self, client: FrontClient) -> bool:
        """Whether the client's next publish may go to the broker itself."""

    def takes(self, channel: FrontChannel, request: Publish) -> bool:
        """Whether a publish is stored although the broker is there."""

    def may_store(self, channel: FrontChannel, request: Publish) -> bool:
        """Whether a publish may be stored now."""

    def may_keep(self, channel: FrontChannel, request: Publish) -> bool:
        """Whether a publish is one that can be stored at all."""

    def full(self) -> str:
        """Why nothing more is stored; empty: there is room."""

    def add(self, channel: FrontChannel, request: Publish, resent: bool) -> None:
        """Store a publish. ``resent``: the broker may have it."""

    def leave(self, client: FrontClient) -> None:
        """The client is gone."""


class PublishRecords(Protocol):
    """Timelines of what clients publish."""

    def begin(self, message: Message) -> tuple[bytes, Message]:
        """Give a message an id; the message with it."""

    def resent(self, client: FrontClient, message_id: bytes) -> None:
        """It is sent to the broker again."""

    def end(self, client: FrontClient, message_id: bytes, request: Publish, outcome: str, code: int, text: str) -> None:
        """This became of it: ``confirmed``, ``unroutable``, ``refused`` or ``unknown``."""


class DeliveryRecords(Protocol):
    """Timelines of what is delivered to clients."""

    def delivered(self, client: FrontClient, operation: operations.Deliver | operations.Got, queue: str) -> bytes:
        """A message was written for the client. Returns its id."""

    def settled(self, client: FrontClient, ids: Iterable[bytes], settlement: operations.Settlement) -> None:
        """The client has settled these, and the front tells the broker. An empty id: it has no timeline."""

    def lost(self, client: FrontClient, ids: Iterable[bytes]) -> None:
        """The client's channel is over, or the broker's: these are in their queues again."""


class FrontTimelines(PublishRecords, DeliveryRecords, Protocol):
    """Both."""


class ClientHost(Protocol):
    """What a client asks its front."""

    @property
    def records(self) -> PublishRecords | None:
        """Timelines of what clients publish; None: there are none."""

    @property
    def delivery_records(self) -> DeliveryRecords | None:
        """Timelines of what clients get; None: there are none."""

    @property
    def broker_limits(self) -> BrokerLimits: ...

    @property
    def prefetch_max(self) -> int: ...

    @property
    def transient_expires(self) -> int: ...

    @property
    def publish_window(self) -> int: ...

    @property
    def publish_window_bytes(self) -> int: ...

    @property
    def client_bytes(self) -> int: ...

    @property
    def memory(self) -> Memory: ...

    @property
    def counts(self) -> FrontCounts: ...

    @property
    def until(self) -> float:
        """When this turn is over."""

    def clock(self) -> float: ...

    def begin(self) -> None:
        """Begin a turn."""

    def soon(self, call: Callable[[], None]) -> None:
        """Call in the next turn of the event loop."""

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call after that time."""

    def link_for(self, client: FrontClient) -> UpstreamLink: ...

    def lane_for(self, client: FrontClient) -> PublishLane | None:
        """Where its publishes go while the broker is away; None: they wait."""

    def share_of(self, client: FrontClient) -> UserShare | None:
        """What its user holds; None: nobody counts that."""

    def principal_of(self, user: str) -> Principal: ...

    def broker_of(self, virtual_host: str) -> str: ...

    def random_text(self, octets: int) -> str: ...

    def has_memory(self, size: int) -> bool: ...

    def gone(self, client: FrontClient) -> None: ...


class HeldBytes:
    """Bytes of messages that wait at the front for one client. Too many, and nothing more is read for it from the
    upstream."""

    def __init__(self, client: FrontClient) -> None:
        self._client = client
        self._bytes = 0
        self._is_full = False
        """Nothing is read for it."""

    def add(self, more: int) -> None:
        """Count bytes that wait; below 0: that wait no more."""
        if not more:
            return
        client, held = self._client, self._bytes + more
        client.counts.held(more)
        self._bytes = held
        if held > client.host.client_bytes and not self._is_full:
            self._is_full = True
            client.link.hold(client)
        elif self._is_full and held <= client.host.client_bytes // 2:
            self._is_full = False
            client.link.go_on(client)

    def clear(self) -> None:
        """None wait any more."""
        self.add(-self._bytes)


@dataclass(slots=True)
class ClientAccess:
    """Where a client is logged in, and what it may do there."""

    principal: Principal = VISITOR
    virtual_host: str = "/"
    """As the client named it."""
    broker: str = ""
    """The name of the broker behind it."""


class FrontClient:
    """See the module."""

    def __init__(self, host: ClientHost, number: int, session: Session, wake: Callable[[], None], refusal: str) -> None:
        self.host = host
        self.number = number
        self.session = session
        self.refusal = refusal
        """Why it is closed as soon as it is open; empty: it is not."""
        protocol = protocol_of(session.version, session.capabilities.dialect)
        self.is_classic = protocol.is_classic
        self.rules: VersionRules = protocol.rules
        self.access = ClientAccess()
        self.user = ""
        self.login: Login | None = None
        """Its own login at the broker; None: the front's."""
        self.link: UpstreamLink
        self.lane: PublishLane | None = None
        self.share: UserShare | None = None
        """What its user holds; None: nobody counts that."""
        self.memory = host.memory
        self.counts = host.counts
        self.prefetch_max = host.prefetch_max
        self.transient_expires = host.transient_expires
        self.delivery_records = host.delivery_records
        self.open = False
        self.is_connected = True
        self.paused = False
        self.backlog: deque[Any] = deque()
        self.channels: dict[int, FrontChannel] = {}
        self.exclusive: dict[str, bool] = {}
        """Its own queues -> whether they stay when it goes."""
        self.topology = Topology()
        self.now = 0.0
        self.since = 0.0
        """When it came, by the wall clock."""
        self.address = ""
        self.holds_close = False
        self.linger_seconds = LINGER_SECONDS
        self.stopping = False
        """The client is gone, and what it has published is not confirmed yet."""
        self.stamp = ""
        """What marks its publishes, for consumers that want none of them; empty: there are no such consumers."""
        self.rewrites: dict[str, int] = {}
        """Rule -> how often it rewrote what this client asked."""
        self._wake = wake
        self._awake = False
        self._outgoing = 0
        self.held = HeldBytes(self)
        self._working = False
        self._ending: list[Operation] = []
        """Why the connection ends, at most one reason: it is sent when the client's exclusive queues are deleted."""

    # ------------------------------------------------------------------------------------ called by the port

    @property
    def may_go_on(self) -> bool:
        """See :class:`~gateway.broker.served.ClientConnection`."""
        return bool(self.backlog) and self._may_take(self.backlog[0])

    def receive(self, received: Iterable[Operation], now: float) -> None:
        """See :class:`~gateway.broker.served.ClientConnection`."""
        self.now = now
        backlog = self.backlog
        backlog.extend(received)
        last = backlog[-1] if backlog else None
        if type(last) is Closed and last.reason is operations.CloseReason.PEER and self.open:
            self.holds_close = True
        self.work()

    def work(self) -> None:
        """Carry out what waits, as far as it can be, until the turn is over."""
        if self._working:
            return
        self._working = True
        backlog, channels, clock, until = self.backlog, self.channels, self.host.clock, self.host.until
        stop = self.host.broker_limits.input_stop
        try:
            while backlog and self._outgoing <= stop and not self._ending:
                operation = backlog[0]
                channel = channels.get(operation.channel)
                if not (channel is None or channel.over or channel.may_take(operation)):
                    break
                self._handle(backlog.popleft(), channel)
                if clock() >= until:
                    break
        finally:
            self._working = False
        if backlog and (self.stopping or self.holds_close):
            if self._may_take(backlog[0]):
                self.host.soon(self.rouse)  # the port asks for no more
            elif not self.link.is_up:
                self._answer_close()
        if self.stopping:
            self._leave_when_safe()

    def flushed(self) -> None:
        """See :class:`~gateway.broker.served.ClientConnection`."""
        self._awake = False
        self._outgoing = 0

    def resume(self, now: float) -> None:
        """See :class:`~gateway.broker.served.ClientConnection`."""
        self.now = now
        self.paused = False
        for channel in list(self.channels.values()):
            deliveries.pump(channel)
        self.work()

    def depart(self, now: float) -> None:
        """See :class:`~gateway.broker.served.ClientConnection`: what it has published is brought to its end first."""
        self.now = now
        self.paused = True
        self.holds_close = False
        if not self.open:
            self.disconnect(now)
            return
        self.stopping = True
        self.work()

    def disconnect(self, now: float) -> None:
        """See :class:`~gateway.broker.served.ClientConnection`."""
        if not self.is_connected:
            return
        self.is_connected = False
        self.backlog.clear()
        for channel in list(self.channels.values()):
            channel.end()
        self.held.clear()
        if self.open:
            self.open = False
            if self.lane is not None:
                self.lane.leave(self)
            self.link.leave(self, self._queues_to_delete(), self._left)
        else:
            self.host.gone(self)

    # --------------------------------------------------------------------------------------------- operations

    def _may_take(self, operation: Operation) -> bool:
        if self._ending:
            return False
        channel = self.channels.get(operation.channel)
        return channel is None or channel.over or channel.may_take(operation)

    def _handle(self, operation: Any, channel: FrontChannel | None) -> None:
        if channel is not None:
            if type(operation) is operations.ChannelClosed:
                channel.end()
            else:
                channel.take(operation)
        elif operation.channel:
            if type(operation) is operations.OpenChannel and self.open:
                self.channels[operation.channel] = FrontChannel(self, operation.channel)
                self.tell(operations.Done(operation.channel, operation.serial, operation.serial))
        elif type(operation) is operations.Opened:
            self._opened(operation)
        elif type(operation) is Closed:
            self._closed(operation)

    def _opened(self, operation: operations.Opened) -> None:
        """The client has logged in."""
        self.user = operation.user
        if "qpid" in self.session.capabilities.product.lower():
            self.rules = replace(self.rules, **QPID_CLIENT)  # type: ignore[arg-type]  # a table of flags
        if self.refusal:
            self.tell(Close(0, 530, reply_text(530, self.refusal)))
            return
        broker = self.host.broker_of(operation.virtual_host)
        self.access = ClientAccess(self.host.principal_of(self.user), operation.virtual_host or "/", broker)
        share = self.host.share_of(self)
        try:
            if share is not None:
                share.take_connection()
        except (BudgetExceeded, Overloaded) as error:
            self.tell(Close(0, 530, reply_text(530, str(error))))
            return
        self.share = share
        try:
            self.link = self.host.link_for(self)
        except RemoteError as error:
            self.tell(Close(0, error.reply_code, error.reply_text))
            return
        self.open = True
        self.lane = self.host.lane_for(self)
        if self.link.blocked is not None:
            self.upstream_blocked(self.link.blocked)

    def _closed(self, closed: Closed) -> None:
        """The session is over. A close that the client has asked for is answered when all is done that was asked."""
        self.stopping = True
        self.paused = True
        self._leave_when_safe()

    def _leave_when_safe(self) -> None:
        """Leave once what it has published is confirmed."""
        if not self.is_connected or self.backlog:
            return
        for channel in self.channels.values():
            if channel.unconfirmed or channel.asking is not None:
                # Without an upstream that may take long, and nobody shall wait for the answer to a close.
                if not self.link.is_up and self.holds_close:
                    self._answer_close()
                return
        self.disconnect(self.now)

    def _left(self) -> None:
        """Its exclusive queues are gone, and its channels were closed."""
        self._answer_close()
        self.host.gone(self)

    def _answer_close(self) -> None:
        if self.holds_close:
            self.holds_close = False
            self._wake()

    # ------------------------------------------------------------------------------------ asked by channels

    def send(self, operation: Operation, now: float) -> None:
        """See :class:`~gateway.broker.served.ClientConnection`."""
        self.now = now
        self.tell(operation)

    def tell(self, operation: Operation) -> None:
        """Queue an operation for the client."""
        try:
            self.session.send(operation, self.now)
        except StateError:
            # The session has closed the channel or the connection in the meantime: nobody is left to hear this.
            return
        self._outgoing += WRITE_OVERHEAD
        self._rouse_port()

    def wrote(self, size: int) -> None:
        """Content of that size was queued for the client."""
        self._outgoing += size + WRITE_OVERHEAD
        if self._outgoing > self.host.broker_limits.output_high_water:
            self.paused = True
        self._rouse_port()

    def rouse(self) -> None:
        """Something has happened that requests may have waited for."""
        if self._working or not self.is_connected:
            return
        if self.backlog or self.stopping:
            self.host.begin()
            self.work()
            self._rouse_port()

    def _rouse_port(self) -> None:
        if not self._awake:
            self._awake = True
            self._wake()

    def close(self, code: int, text: str) -> None:
        """Close the connection."""
        self.tell(Close(0, code, text))
        self._end_channels()

    def end_with(self, reason: Operation) -> None:
        """End the connection for a fault of the client. The reason is sent once its exclusive queues are deleted: the
        client may connect again at once and declare them."""
        if self._ending:
            return
        self._ending.append(reason)
        self._end_channels()
        queues = self._queues_to_delete()
        if queues and self.open:
            self.link.leave(self, queues, self._ended)
        else:
            self._ended()

    def _ended(self) -> None:
        reason = self._ending.pop()
        if self.is_connected:
            self.tell(reason)
            self.rouse()

    def _end_channels(self) -> None:
        for channel in list(self.channels.values()):
            channel.end()

    def forget(self, channel: FrontChannel) -> None:
        """The channel is over."""
        if self.channels.get(channel.number) is channel:
            del self.channels[channel.number]

    def may_publish(self, channel: FrontChannel) -> bool:
        """Whether one more publish may be sent upstream without an outcome."""
        host = self.host
        if channel.unconfirmed >= host.publish_window:
            return False
        if channel.unconfirmed_bytes and channel.unconfirmed_bytes >= host.publish_window_bytes:
            return False
        if not channel.unconfirmed:
            return True
        return host.has_memory(0) and (self.share is None or self.share.has_memory)

    def count_unconfirmed(self, size: int) -> None:
        """Count bytes that were published and have no outcome; below 0: that have theirs."""
        self.counts.unconfirmed(size)
        if self.share is not None:
            self.share.bytes += size

    def fresh_name(self, stem: str, octets: int) -> str:
        """A name that nobody has."""
        return stem + self.host.random_text(octets)

    def reserve_queue(self, name: str, stays: bool) -> None:
        """The queue is to be this client's own."""
        self.exclusive[name] = stays
        self.link.owners[name] = self

    def _queues_to_delete(self) -> list[str]:
        """Its own queues, which go with it. Those that stay may be another client's from now on."""
        for name in [name for name, stays in self.exclusive.items() if stays]:
            self.release_queue(name)
        queues = list(self.exclusive)
        self.exclusive.clear()
        return queues

    def release_queue(self, name: str) -> None:
        """It is not, or not any more."""
        if self.exclusive.pop(name, None) is not None:
            self.topology.forget_queue(name)
            if self.link.owners.get(name) is self:
                del self.link.owners[name]

    # --------------------------------------------------------------------------------- told by the upstream

    def upstream_blocked(self, reason: str | None) -> None:
        """The upstream takes no publishes; None: it takes them again. Who need not wait for it is not told."""
        if self.lane is None or not self.lane.is_always:
            self.tell(operations.Unblocked(0) if reason is None else operations.Blocked(0, reason))

    def upstream_lost(self, hard: bool) -> None:
        """The upstream connection is gone."""
        for channel in list(self.channels.values()):
            recovery.lost(channel, hard)
        if self.stopping:
            self._leave_when_safe()

    def upstream_restored(self) -> None:
        """There is one again, and what the client had declared is there."""
        for channel in list(self.channels.values()):
            recovery.restore(channel)
        self.rouse()

    @property
    def unacknowledged(self) -> int:
        """Deliveries that the client has not settled."""
        return sum(len(channel.outstanding) for channel in self.channels.values())
