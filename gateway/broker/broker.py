"""The embedded broker's core: connections, their requests and the outcomes.

The server hands over what a session returned from ``receive_data``; every outcome goes back by ``session.send``,
on that connection and, for deliveries, on others. Each send sets the connection's ``wake`` off once, until
the server has flushed it. What one turn may write for a client is bounded: above the high-water mark the connection
is paused, its deliveries stay in their queues, and its neighbors go on.

A request that is refused raises a :class:`~gateway.errors.RemoteError` somewhere below; here it becomes ``Failed``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from hmac import compare_digest
from itertools import count
from typing import Any, TypeAlias

from gateway.amqp.operations import (
    Blocked,
    ChannelClosed,
    Close,
    CloseChannel,
    Closed,
    Detached,
    Done,
    Failed,
    Flow,
    OpenChannel,
    Opened,
    Operation,
    Request,
    Unblocked,
)
from gateway.amqp.protocol import VersionRules
from gateway.amqp.sasl import SALT_OCTETS, SaslError, no_scram_keys, scram_keys
from gateway.broker.alarms import Alarms
from gateway.broker.channels import Channel
from gateway.broker.consumers import Consumer
from gateway.broker.declared import DeclaredByUser, Kind
from gateway.broker.publishing import PublisherWaits
from gateway.broker.queues import UNCARRIABLE, Carriage, Entry, Memory, Queue
from gateway.broker.refusals import reply_text
from gateway.broker.requests import HANDLERS, QUERIES
from gateway.broker.turns import Job, Jobs, Turn
from gateway.broker.users import Users
from gateway.broker.vhost import VirtualHost
from gateway.budgets import Budgets, ShareHolder
from gateway.config import EmbeddedSettings
from gateway.errors import BudgetExceeded, EncodeError, FrameSyntaxError, Overloaded, RemoteError, StateError
from gateway.limits import DEFAULT_BROKER_LIMITS, BrokerLimits
from gateway.observing.telemetry import log
from gateway.session import ScramKeys, Session
from gateway.versions import protocol_of

WRITE_OVERHEAD = 256
"""What a delivery takes on the wire beside its body, roughly, in octets."""

ATTEMPT_COST = 1 << 16
"""What it counts, at least, as output to find out that a connection cannot carry a message, in octets: so many take a
turn."""

SCRAM_SECRET = 32
"""Octets of the secret from which those who do not exist have their keys."""

SessionKey: TypeAlias = tuple[str, str, bytes]
"""User, virtual host and name of a 0-10 session."""

TOLD_MAX = 256
"""Queues that are kept in mind, so that the same is not logged again."""
LOOKS = 16
"""How often it is looked after deliveries that are not acknowledged, within the time that they may take."""


QPID_CLIENT: Mapping[str, bool] = {
    "immediate": True,
    "durable_exclusive_stays": True,
    "qos_on_running": True,
    "confirms_in_transactions": True,
    "transactional_release": False,
    "redelivers_first": True,
    "stops_publishers": True,
}
"""Exceptions for Qpid's JMS client, in any version: it was written against Qpid's broker."""


def rules_for(session: Session) -> VersionRules:
    """The rules of a client, by its version and by the product that it says it is."""
    rules = protocol_of(session.version, session.capabilities.dialect).rules
    return replace(rules, **QPID_CLIENT) if "qpid" in session.capabilities.product.lower() else rules  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Skip:
    """A message was found that a connection cannot carry. It stays in its queue, for others."""

    queue: str
    exchange: str
    version: str
    """Of that connection."""
    why: str


class Connection:
    """One client: its session, channels and exclusive queues. Made by :meth:`Broker.connect`."""

    __slots__ = (
        "awake", "backlog", "blocked", "broker", "busy", "carriage", "channels", "client", "confirming", "declared",
        "is_costly", "memory", "number", "open", "outgoing", "owned", "parked", "paused", "refusal", "rules", "session",
        "user", "vhost", "vhost_name", "waits", "wake",
    )  # fmt: skip

    def __init__(self, broker: Broker, number: int, session: Session, wake: Callable[[], None], refusal: str) -> None:
        self.broker = broker
        self.refusal = refusal
        """Why it is closed as soon as it is open; empty: it is not."""
        self.number = number
        self.session = session
        self.wake = wake
        self.awake = False
        """``wake`` was called, and :meth:`Broker.flushed` not since."""
        self.rules = rules_for(session)
        self.carriage: Carriage = (session.version.value, 0)
        """What it can carry, once it is open."""
        self.vhost = broker.virtual_host("")
        self.vhost_name = ""
        """As the client named it, without a leading slash."""
        self.user = ""
        self.client: ShareHolder | None = None
        """In whose share of the connections it counts; None: in nobody's."""
        self.memory = broker.memory
        """What counts the messages that it publishes: that of its user, once it is open."""
        self.declared: DeclaredByUser | None = None
        """What counts the things that it declares: that of its user, once it is open; None: its user has no share."""
        self.open = False
        self.backlog: deque[Operation] = deque()
        """Requests that wait: for the next turn, for a job, or until the client has read its answers."""
        self.busy = 0
        """Jobs that its next request waits for."""
        self.is_costly = False
        """It was logged that finding the queues of a message, or selecting it, cost too much."""
        self.channels: dict[int, Channel] = {}
        self.owned: dict[Queue, None] = {}
        self.confirming: dict[Channel, None] = {}
        """Channels with publishes that are safe and not told so yet."""
        self.paused = False
        self.parked: dict[Consumer, None] = {}
        """Consumers that could not be served because of ``paused``."""
        self.blocked = False
        """It knows that publishing is blocked."""
        self.waits = False
        """The first of ``backlog`` is a publish that there is no memory for."""
        self.outgoing = 0
        """Octets, roughly, that the session holds and the server has not fetched."""

    @property
    def may_go_on(self) -> bool:
        """There are requests that only wait for the next turn."""
        limit = self.broker.limits.input_stop
        return bool(self.backlog) and not self.busy and not self.waits and self.outgoing <= limit

    @property
    def is_connected(self) -> bool:
        """See :class:`~gateway.broker.served.ClientConnection`."""
        return self.number in self.broker.connections

    @property
    def holds_close(self) -> bool:
        """See :class:`~gateway.broker.served.ClientConnection`: a close is answered at once."""
        return False

    @property
    def linger_seconds(self) -> float:
        """See :class:`~gateway.broker.served.ClientConnection`: the stream ends with the answer."""
        return 0.0

    def receive(self, operations: Iterable[Operation], now: float) -> None:
        """See :meth:`Broker.receive`."""
        self.broker.receive(self, operations, now)

    def flushed(self) -> None:
        """See :meth:`Broker.flushed`."""
        self.broker.flushed(self)

    def resume(self, now: float) -> None:
        """See :meth:`Broker.resume`."""
        self.broker.resume(self, now)

    def depart(self, now: float) -> None:
        """See :meth:`Broker.depart`."""
        self.broker.depart(self, now)

    def disconnect(self, now: float) -> None:
        """See :meth:`Broker.disconnect`."""
        self.broker.disconnect(self, now)

    @property
    def durable_exclusive_stays(self) -> bool:
        return self.rules.durable_exclusive_stays

    def send(self, operation: Operation, now: float) -> None:
        """Queue an operation for the client."""
        try:
            self.session.send(operation, now)
        except StateError:
            # The session has closed the channel or the connection in the meantime (a violation further on in
            # the octets that brought the request): nobody is left to hear this.
            return
        self.outgoing += WRITE_OVERHEAD
        self.rouse()

    def carries(self, entry: Entry) -> bool:
        """See :class:`~gateway.broker.queues.Carrier`."""
        sizes = entry.envelope.frame_sizes
        if sizes is None:
            return True
        form, frame_max = self.carriage
        if (size := sizes.get(form, 0)) <= frame_max:
            return True
        if not entry.skipped:  # it was found out in another queue
            needed = "no frame carries it" if size == UNCARRIABLE else f"it takes a frame of {size} octets"
            self._note_skip(entry, f"{needed}, and frame_max is {frame_max}")
        return False

    def skip(self, entry: Entry, error: EncodeError | FrameSyntaxError) -> None:
        """It cannot carry the entry, which stays in its queue."""
        envelope = entry.envelope
        if envelope.frame_sizes is None:
            envelope.frame_sizes = {}
        form, frame_max = self.carriage
        frame_size = (error.frame_size if isinstance(error, EncodeError) else 0) or UNCARRIABLE
        envelope.frame_sizes[form] = max(frame_size, frame_max + 1)
        self._note_skip(entry, str(error))
        self.wrote(max(envelope.cost, ATTEMPT_COST))

    def _note_skip(self, entry: Entry, why: str) -> None:
        if entry.queue.skip(entry):
            exchange, version = entry.envelope.exchange, self.session.version.value
            self.broker.on_skip(Skip(entry.queue.name, exchange, version, why))

    def rouse(self) -> None:
        """Have the server look after this connection."""
        if not self.awake:
            self.awake = True
            self.wake()

    def wrote(self, octets: int) -> None:
        """Content of that size was queued for the client."""
        self.outgoing += octets + WRITE_OVERHEAD
        if self.outgoing > self.broker.limits.output_high_water:
            self.paused = True
        self.rouse()


class Broker:
    """Virtual hosts and connections.

    Args:
        settings: users, and the memory for messages.
        random_octets: for names that the server makes.
        wall_clock: seconds since 1970.
        limits: see :class:`~gateway.limits.BrokerLimits`.
        clock: seconds, of any beginning, for turns; None: each request is done at once.
        virtual_hosts: the virtual hosts that there are. A leading slash means nothing, so ``/`` is also the
            empty name.
        budgets: what each user may hold; None: no user has a share.
    """

    def __init__(
        self,
        settings: EmbeddedSettings,
        *,
        random_octets: Callable[[int], bytes],
        wall_clock: Callable[[], float],
        limits: BrokerLimits | None = None,
        clock: Callable[[], float] | None = None,
        virtual_hosts: Iterable[str] = ("/",),
        budgets: Budgets | None = None,
    ) -> None:
        self.on_skip: Callable[[Skip], None] = lambda skip: None
        """Called once for each message in a queue that some connection cannot carry."""
        self.on_refused_match: Callable[[], None] = lambda: None
        """Called for each message whose queues, or selector's answer, would have cost too much."""
        self.limits = limits if limits is not None else DEFAULT_BROKER_LIMITS
        self.turn = Turn(clock, self.limits.turn)
        """A caller on the event loop begins it."""
        self.jobs = Jobs(self.turn)
        self.memory = Memory(settings.queue_memory)
        self._users = Users(settings, self.memory, budgets) if budgets is not None else None
        self.connections: dict[int, Connection] = {}
        self._passwords = {user.name: user.password for user in settings.users}
        self._random_octets = random_octets
        self._scram_secret = random_octets(SCRAM_SECRET)
        self._scram_keys: dict[str, ScramKeys] = {}
        self._virtual_hosts = {
            _bare(name): VirtualHost(
                name or "/", self.memory, self.limits, random_octets, wall_clock, self.jobs, self._lost
            )
            for name in virtual_hosts
        }
        self._numbers = count(1)
        self._failing: list[tuple[Channel, str]] = []
        self._finished: list[Consumer] = []
        self._blocked: dict[Connection, None] = {}
        """Told by connection.blocked."""
        self._stopped: dict[Channel, None] = {}
        """Asked to publish no more."""
        self._waiting: dict[Connection, None] = {}
        """Not read from: see :attr:`Connection.waits`."""
        self._waiting_for_share: dict[Memory, dict[Connection, None]] = {}
        """The same, where it is their user who has published too much: by the memory of the user."""
        self._starved: dict[Consumer, None] = {}
        """Browsers that are shown nothing for want of memory."""
        self.channels = 0
        """Open channels of all connections, and those that have none for now."""
        self._sessions: dict[SessionKey, Channel] = {}
        """0-10 sessions by their names."""
        self._away: Alarms[Channel] = Alarms()
        """Those that have no connection: when they are given up."""
        self._look_at: float | None = None
        self._jobs_first = False
        self._told_lost: set[str] = set()
        """Queues of which it was logged that their dead letters are dropped."""

    # -------------------------------------------------------------------------------- what sessions ask

    def authenticate(self, user: str, password: str) -> bool:
        """For :attr:`gateway.session.ServerConfig.authenticate`."""
        known = self._passwords.get(user)
        if known is None:
            return False
        return compare_digest(known.encode("utf-8", "surrogatepass"), password.encode("utf-8", "surrogatepass"))

    def scram_keys(self, user: str) -> ScramKeys:
        """For :attr:`gateway.session.ServerConfig.scram`. Made when a user is first asked for, which takes 4,096 rounds
        of a hash."""
        keys = self._scram_keys.get(user)
        if keys is None:
            password = self._passwords.get(user)
            try:
                if not password:
                    return no_scram_keys(user, self._scram_secret)
                keys = scram_keys(password, self._random_octets(SALT_OCTETS))
            except SaslError:  # a password with control characters
                return no_scram_keys(user, self._scram_secret)
            self._scram_keys[user] = keys
        return keys

    def has_user(self, user: str) -> bool:
        """Whether there is a user of that name, who needs no password where a certificate says who it is."""
        return user in self._passwords

    def open_virtual_host(self, user: str, name: str) -> bool:
        """For :attr:`gateway.session.ServerConfig.open_virtual_host`."""
        return _bare(name) in self._virtual_hosts

    def virtual_host(self, name: str) -> VirtualHost:
        """The virtual host as a client names it."""
        return self._virtual_hosts[_bare(name)]

    # --------------------------------------------------------------------------------------- connections

    def connect(self, session: Session, wake: Callable[[], None], refusal: str = "") -> Connection:
        """A client has come. ``wake`` is called when its session has something to send, at most once until
        :meth:`flushed`; it must not call back. ``refusal``: why the client is sent away when it has logged in."""
        connection = Connection(self, next(self._numbers), session, wake, refusal)
        self.connections[connection.number] = connection
        return connection

    def receive(self, connection: Connection, operations: Iterable[Operation], now: float) -> None:
        """Carry out what a session received, until the turn is over. The rest waits in its backlog, for :meth:`receive`
        in a later turn; or for :meth:`resume`, when too much is queued for the client, or there is no memory for what
        it publishes. The server reads nothing more from it meanwhile."""
        backlog, clock, until = connection.backlog, self.turn.clock, self.turn.until
        backlog.extend(operations)
        stop = self.limits.input_stop
        while backlog and connection.outgoing <= stop and not connection.busy and not connection.waits:
            self._handle(connection, backlog.popleft(), now)
            self._clean_up(connection.vhost, now)
            if clock() >= until:
                break
        for channel in list(connection.confirming):
            channel.flush_confirms(now)
        connection.confirming.clear()

    def work(
        self,
        connection: Connection,
        job: Job,
        now: float,
        channel: Channel | None = None,
        request: Request | None = None,
    ) -> None:
        """Work on a job that the next request of a connection waits for."""
        connection.busy += 1
        self.jobs.start(self._for(connection, job, now, channel, request))

    def _for(
        self, connection: Connection, job: Job, now: float, channel: Channel | None, request: Request | None
    ) -> Job:
        try:
            yield from job
        except RemoteError as error:
            if channel is not None and request is not None and connection.channels.get(channel.number) is channel:
                self._fail(channel, request, error, now)
        except EncodeError as error:  # as in _handle
            if channel is not None and request is not None and connection.channels.get(channel.number) is channel:
                channel.fail(506, reply_text(506, str(error)), request.serial, now)
        finally:
            connection.busy -= 1
        for each in list(connection.confirming):
            each.flush_confirms(now)
        connection.confirming.clear()
        if connection.backlog:
            connection.rouse()

    def too_costly(self, connection: Connection, what: str, name: str) -> None:
        """Finding the queues of a message, or selecting it, costs too much: count it, and log it once."""
        self.on_refused_match()
        if not connection.is_costly:
            connection.is_costly = True
            log("embedded.match_refused", logging.WARNING, user=connection.user, what=what, name=name)

    def _lost(self, queue: str, why: str) -> None:
        """A dead letter was dropped."""
        if queue not in self._told_lost:
            if len(self._told_lost) >= TOLD_MAX:
                self._told_lost.clear()
            self._told_lost.add(queue)
            log("embedded.dead_letter_dropped", logging.WARNING, queue=queue, why=why)

    def flushed(self, connection: Connection) -> None:
        """The server has taken what the session had to send."""
        connection.awake = False
        connection.outgoing = 0

    def pause(self, connection: Connection) -> None:
        """The client does not read what was written to it: no more deliveries, until :meth:`resume`."""
        connection.paused = True

    def resume(self, connection: Connection, now: float) -> None:
        """What was written to the client has gone: go on with its deliveries and its requests."""
        connection.paused = False
        if connection.parked:
            parked, connection.parked = connection.parked, {}
            self.jobs.start(_unpark(parked, now))
            self._clean_up(connection.vhost, now)
        self.receive(connection, (), now)

    def depart(self, connection: Connection, now: float) -> None:
        """The client has gone: what it has asked for is done, then it is :meth:`disconnect`-ed."""
        connection.paused = True
        self.jobs.start(self._depart(connection, now))

    def _depart(self, connection: Connection, now: float) -> Job:
        while connection.number in self.connections and (connection.busy or connection.may_go_on):
            if not connection.busy:
                self._handle(connection, connection.backlog.popleft(), now)
                self._clean_up(connection.vhost, now)
            yield
        self.disconnect(connection, now)

    def disconnect(self, connection: Connection, now: float) -> None:
        """The client is gone, however it went: what it held goes back, its exclusive queues go."""
        if self.connections.pop(connection.number, None) is None:
            return
        connection.open = False
        if all(type(operation) in _PARTING for operation in connection.backlog):
            for operation in connection.backlog:
                if isinstance(operation, Detached):
                    self._detached(connection, operation, now)
        connection.paused = True
        connection.waits = False
        self._blocked.pop(connection, None)
        self._waiting.pop(connection, None)
        for waiting in self._waiting_for_share.values():
            waiting.pop(connection, None)
        if connection.client is not None and self._users is not None:
            self._users.leave(connection.client)
            connection.client = None
        for channel in list(connection.channels.values()):
            channel.close(now)
        self.work(connection, connection.vhost.drop_tenant(connection, now), now)
        connection.parked = {}
        connection.backlog.clear()
        self._clean_up(connection.vhost, now)

    def in_doubt(self) -> int:
        """How many branches of distributed transactions are prepared."""
        return sum(len(vhost.branches.in_doubt()) for vhost in self._virtual_hosts.values())

    def close_all(self, code: int, text: str, now: float) -> None:
        """The broker stops: tell every client."""
        for connection in list(self.connections.values()):
            connection.send(Close(0, code, text), now)
            self.disconnect(connection, now)

    # -------------------------------------------------------------------------------------------- timers

    def next_timeout(self) -> float | None:
        """When :meth:`handle_timeout` wants to be called, on the clock of ``now``; None: not."""
        if self.jobs or (self.memory.roomy and self._has_stopped) or self._has_share:
            return 0.0
        times = [time for vhost in self._virtual_hosts.values() if (time := vhost.next_timeout()) is not None]
        if self._look_at is not None:
            times.append(self._look_at)
        if (away := self._away.next()) is not None:
            times.append(away)
        return min(times, default=None)

    def handle_timeout(self, now: float) -> None:
        """Delete expired messages, and go on with the rest of earlier turns."""
        over = self.turn.over
        if self._look_at is not None and self._look_at <= now:
            self._look_at = now + self.limits.ack_timeout / LOOKS if self.channels else None
            self.jobs.start(self._look_after_deliveries(now))
        for channel in self._away.due(now):
            channel.close(now)
            if over():
                break
        self._jobs_first = not self._jobs_first
        if self._jobs_first:
            self.jobs.go_on()
        for vhost in self._virtual_hosts.values():
            if not over():
                vhost.handle_timeout(now)
            self._clean_up(vhost, now)
        if not self._jobs_first and not over():
            self.jobs.go_on()

    def _look_after_deliveries(self, now: float) -> Job:
        """Close the channels that do not acknowledge (406), as RabbitMQ does."""
        timeout = self.limits.ack_timeout
        for connection in list(self.connections.values()):
            for channel in list(connection.channels.values()):
                if connection.channels.get(channel.number) is channel and channel.overdue(now, timeout):
                    text = f"delivery acknowledgement on channel {channel.number} timed out. "
                    text += f"Timeout value used: {timeout * 1_000:.0f} ms"
                    channel.fail(406, reply_text(406, text), 0, now)
                    yield
            yield

    # ---------------------------------------------------------------------------------------- back-pressure

    def block(self, channel: Channel, now: float) -> None:
        """The memory for messages is nearly used up: ask this publisher to stop, once, in the way that it knows."""
        connection = channel.connection
        if self.memory.roomy:
            return  # it is just this one message that is too large
        if connection.session.capabilities.blocked_notification:
            if not connection.blocked:
                connection.blocked = True
                self._blocked[connection] = None
                connection.send(Blocked(0, "low on memory"), now)
        elif connection.rules.stops_publishers and channel not in self._stopped:
            self._stopped[channel] = None
            connection.send(Flow(channel.number, False), now)

    def may_show(self, consumer: Consumer) -> bool:
        """Whether there is memory to keep in mind what a browser was shown."""
        if self.memory.used <= self.memory.limit:
            return True
        self._starved[consumer] = None
        return False

    @property
    def _has_stopped(self) -> bool:
        """Somebody waits for room in the memory for messages."""
        return bool(self._blocked or self._stopped or self._waiting or self._starved)

    def share_refusal(self, connection: Connection, size: int) -> str:
        """Return why a user may not publish this many octets now, and count the refusal."""
        assert self._users is not None
        assert connection.client is not None
        return self._users.refusal_of(connection.client, size)

    @property
    def _has_share(self) -> bool:
        """Somebody waits for room in the share of its user, and there is some."""
        return any(waiting and memory.roomy for memory, waiting in self._waiting_for_share.items())

    def _unblock_users(self) -> None:
        """Let those go on whose user has room again."""
        for memory, waiting in list(self._waiting_for_share.items()):
            while waiting and memory.roomy and not self.turn.over():
                connection, _ = waiting.popitem()
                connection.waits = False
                connection.rouse()
            if not waiting:
                del self._waiting_for_share[memory]

    def _unblock(self, now: float) -> None:
        """Let publishers and browsers go on, as many as the turn allows."""
        over = self.turn.over
        while self._has_stopped and self.memory.roomy and not over():
            if self._blocked:
                blocked, _ = self._blocked.popitem()
                blocked.blocked = False
                blocked.send(Unblocked(0), now)
            if self._stopped:
                channel, _ = self._stopped.popitem()
                channel.connection.send(Flow(channel.number, True), now)
            if self._waiting:
                waiting, _ = self._waiting.popitem()
                waiting.waits = False
                waiting.rouse()
            if self._starved:
                consumer, _ = self._starved.popitem()
                if not consumer.cancelled:
                    consumer.queue.dispatch(now)

    def channel_gone(self, channel: Channel) -> None:
        """A channel is over."""
        self.channels -= 1
        if channel.connection.declared is not None:
            channel.connection.declared.give(Kind.CHANNELS)
        self._stopped.pop(channel, None)
        self._away.clear(channel)
        if channel.key is not None and self._sessions.get(channel.key) is channel:
            del self._sessions[channel.key]

    # ---------------------------------------------------------------------- sessions without a connection

    def resume_session(self, user: str, virtual_host: str, name: bytes, force: bool) -> Any:
        """For :attr:`gateway.session.ServerConfig.resume_session`."""
        channel = self._sessions.get((user, _bare(virtual_host), name))
        if channel is None:
            return None
        if not channel.away:
            if not force or channel.connection.backlog:
                raise StateError("the session is attached to another connection, or has work to do there")
            if not channel.state.timeout:
                return None  # it ends when the new one opens
            channel.state.release()
            channel.connection.rouse()
        return channel.state

    def _detached(self, connection: Connection, operation: Detached, now: float) -> None:
        """A session goes on without its connection: nothing is delivered, and what is out stays out."""
        channel = connection.channels.get(operation.channel)
        if channel is None or channel.state is not operation.state:
            return
        channel.flush_confirms(now)
        connection.confirming.pop(channel, None)
        del connection.channels[operation.channel]
        channel.away = True
        self._away.set(channel, now + operation.timeout)

    def _resumed(self, connection: Connection, operation: OpenChannel, now: float) -> None:
        """It is back, on this connection."""
        key = (connection.user, connection.vhost_name, operation.name)
        channel = self._sessions.get(key)
        if channel is None or channel.state is not operation.state:
            text = reply_text(404, "the session was given up in the meantime")
            connection.send(CloseChannel(operation.channel, 404, text), now)
            return
        if channel.connection.channels.get(channel.number) is channel:
            del channel.connection.channels[channel.number]
        self._away.clear(channel)
        channel.away = False
        channel.connection, channel.number = connection, operation.channel
        connection.channels[operation.channel] = channel
        channel.wake(now)

    def _end_taken(self, channel: Channel, now: float) -> None:
        """A session that does not outlive its connection is attached to another one by force."""
        connection = channel.connection
        channel.flush_confirms(now)
        channel.state.release()
        channel.close(now)
        connection.rouse()

    # ------------------------------------------------------------------------------------------- requests

    def fail_later(self, channel: Channel, text: str) -> None:
        """Close a channel with 311 when the current request is done: it may be in the middle of a dispatch."""
        self._failing.append((channel, text))

    def finish_later(self, consumer: Consumer) -> None:
        """End a consumer that has seen all there is to see, when the current request is done."""
        self._finished.append(consumer)

    def _clean_up(self, vhost: VirtualHost, now: float) -> None:
        """What a request has left behind: dead letters, channels that failed, room for publishers."""
        if vhost.dead:
            vhost.send_dead_letters(now)
        while self._finished:
            consumer = self._finished.pop()
            if not consumer.cancelled:
                consumer.channel.finish_consumer(consumer, now)
        while self._failing:
            channel, text = self._failing.pop()
            if channel.connection.channels.get(channel.number) is channel:
                channel.fail(311, text, 0, now)
                vhost.send_dead_letters(now)
        if (self._blocked or self._stopped or self._waiting or self._starved) and self.memory.roomy:
            self._unblock(now)
        if self._waiting_for_share:
            self._unblock_users()

    def _handle(self, connection: Connection, operation: Operation, now: float) -> None:
        on_connection = _ON_CONNECTION.get(type(operation))
        if on_connection is not None:
            on_connection(self, connection, operation, now)
            return
        channel = connection.channels.get(operation.channel)
        if channel is None:
            # Sent before the client heard that the channel is closed (0-9-1 section 1.4.2.6: discard).
            return
        assert isinstance(operation, Request)
        try:
            job = HANDLERS[type(operation)](channel, operation, now)
            if job is not None:
                self.work(connection, job, now, channel, operation)
        except RemoteError as error:
            self._fail(channel, operation, error, now)
        except EncodeError as error:  # the answer has no form in the client's version
            channel.fail(506, reply_text(506, str(error)), operation.serial, now)
        except PublisherWaits as wait:
            connection.waits = True
            connection.backlog.appendleft(operation)
            if wait.memory is self.memory:
                self._waiting[connection] = None
            else:
                self._waiting_for_share.setdefault(wait.memory, {})[connection] = None
        except FrameSyntaxError as error:
            connection.send(Close(0, error.reply_code, f"SYNTAX_ERROR - {error}"[:255]), now)
            self.disconnect(connection, now)

    def _fail(self, channel: Channel, request: Request, error: RemoteError, now: float) -> None:
        connection, code, serial = channel.connection, error.reply_code, request.serial
        if connection.rules.queries_survive and type(request) in QUERIES:
            connection.send(Failed(channel.number, serial, serial, code, error.reply_text), now)
            return
        channel.fail(code, error.reply_text, serial, now)
        if code in connection.rules.connection_codes:
            self.disconnect(connection, now)

    def _opened(self, connection: Connection, operation: Opened, now: float) -> None:
        connection.vhost = self.virtual_host(operation.virtual_host)
        connection.vhost_name = _bare(operation.virtual_host)
        connection.rules = rules_for(connection.session)  # it has said by now who it is
        connection.user = operation.user
        known = connection.session.capabilities
        connection.carriage = (f"{connection.session.version.value} {known.form}", known.frame_max)
        refusal = connection.refusal or self._admit(connection)
        if refusal:
            connection.send(Close(0, 530, reply_text(530, refusal)), now)
            self.disconnect(connection, now)
            return
        connection.open = True

    def _admit(self, connection: Connection) -> str:
        """Count a connection for its user. Returns why it is not to stay; empty: it is."""
        if self._users is None:
            return ""
        try:
            connection.client = self._users.admit(connection.user)
        except (BudgetExceeded, Overloaded) as error:
            return str(error)
        connection.memory = self._users.memory(connection.client)
        connection.declared = self._users.declared(connection.client)
        return ""

    def _closed(self, connection: Connection, operation: Close | Closed, now: float) -> None:
        self.disconnect(connection, now)

    def _open_channel(self, connection: Connection, operation: OpenChannel, now: float) -> None:
        if not connection.open:
            return
        if operation.resumed:
            self._resumed(connection, operation, now)
            return
        number, serial = operation.channel, operation.serial
        if self.channels >= self.limits.channels:
            text = reply_text(506, f"the limit of {self.limits.channels} channels is reached")
            connection.send(Failed(number, serial, serial, 506, text), now)
            return
        if connection.declared is not None:
            try:
                connection.declared.take(Kind.CHANNELS)
            except RemoteError as error:
                connection.send(Failed(number, serial, serial, 506, error.reply_text), now)
                return
        self.channels += 1
        channel = connection.channels[number] = Channel(connection, number)
        if operation.state is not None:
            channel.state = operation.state
            channel.key = key = (connection.user, connection.vhost_name, operation.name)
            if (taken := self._sessions.get(key)) is not None:
                self._end_taken(taken, now)
            self._sessions[key] = channel
        if self._look_at is None and self.limits.ack_timeout:
            self._look_at = now + self.limits.ack_timeout / LOOKS
        connection.send(Done(number, serial, serial), now)

    def _close_channel(self, connection: Connection, operation: CloseChannel | ChannelClosed, now: float) -> None:
        channel = connection.channels.get(operation.channel)
        if channel is not None:
            channel.flush_confirms(now)
            channel.close(now)
        if isinstance(operation, CloseChannel):
            connection.send(ChannelClosed(operation.channel, operation.code, operation.text), now)


_ON_CONNECTION: Mapping[type[Operation], Callable[[Broker, Connection, Any, float], None]] = {
    Opened: Broker._opened,
    Close: Broker._closed,
    Closed: Broker._closed,
    OpenChannel: Broker._open_channel,
    CloseChannel: Broker._close_channel,
    ChannelClosed: Broker._close_channel,
    Detached: Broker._detached,
}
"""What concerns a connection, or makes and ends its channels; the rest is in :mod:`gateway.broker.requests`."""


def _unpark(parked: dict[Consumer, None], now: float) -> Job:
    """Let consumers go on whose connection was slow to read."""
    for consumer in parked:
        consumer.queue.wake(consumer)
        if consumer.queue.ready and not consumer.cancelled:
            consumer.queue.dispatch(now)
        yield


_PARTING = frozenset({Detached, Closed})
"""What of a backlog means that all before it was done."""


def _bare(name: str) -> str:
    """A virtual host's name without its leading slash: Qpid's client writes one in 0-8 to 0-9-1, and none in
    0-10."""
    return name.removeprefix("/")
