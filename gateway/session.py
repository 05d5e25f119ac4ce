"""The common session: one AMQP connection as a state machine, without I/O.

Octets go in by ``receive_data`` and come out by ``data_to_send``; operations (:mod:`gateway.amqp.operations`) go in
by ``send`` and come out of ``receive_data``. Time is an argument: ``now`` is a monotonic clock in seconds. All
versions implement this in both roles; nothing above them knows which one it has, and asks
:class:`Capabilities` instead.

A session never raises for what its peer did: it queues the close that the specification asks for and returns
a :class:`~gateway.amqp.operations.Closed` that says why. It raises :class:`~gateway.errors.LocalError` at once for an
impossible request; nothing was sent then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from gateway.amqp.operations import Operation
from gateway.amqp.values import Table
from gateway.limits import DEFAULT_LIMITS, Limits


class Version:
    """An AMQP version. Each folder that implements one makes it, once."""

    __slots__ = ("header", "value")

    def __init__(self, value: str, header: bytes) -> None:
        """Add a version to those that sessions recognize in what a peer says.

        Args:
            value: its name in URLs, in the API and in the ledger.
            header: the 8 octets that open a connection (0-9-1 section 4.2.2; 0-10 section 4.3).
        """
        self.value = value
        self.header = header
        PROTOCOL_HEADERS[header] = self

    def __repr__(self) -> str:
        return f"Version({self.value!r})"


PROTOCOL_HEADERS: Final[dict[bytes, Version]] = {}
"""Protocol header -> version, of every version that was made."""


def not_amqp(octets: bytes) -> str:
    """What a server said that is no AMQP, as a sentence. An alert of TLS, record type 21 (RFC 8446 section 5.1),
    is what a TLS port answers to a protocol header."""
    hint = ", it is TLS: use amqps://" if octets[:2] == b"\x15\x03" else ""
    return f"the server answered with no AMQP: {octets[:16]!r}{hint}"


class Role(Enum):
    """Which end of the connection a session is."""

    CLIENT = "client"
    SERVER = "server"


class Confirms(Enum):
    """How the peer lets a publisher know that a message is safe."""

    NATIVE = "confirm.select"
    TRANSACTION = "tx"
    COMPLETION = "session.completed"


@dataclass(slots=True)
class Capabilities:
    """What the peer can do, learned from its properties and product. Never compare versions instead."""

    product: str = ""
    product_version: str = ""
    platform: str = ""
    mechanisms: tuple[str, ...] = ()
    confirms: Confirms = Confirms.TRANSACTION
    release_many: bool = True
    """A range of deliveries may be given back in one go."""
    native_dead_letter: bool = False
    """Reject without requeue reaches the queue's dead-letter exchange."""
    blocked_notification: bool = False
    consumer_cancel_notify: bool = False
    exchange_bindings: bool = False
    unbind_queue: bool = True
    query_binding: bool = False
    distributed: bool = False
    """The dtx operations are for it (0-10). Whether a branch that is prepared outlives the broker is
    ``durable_storage``."""
    browse: bool = False
    """A consumer may look at messages and leave them in the queue."""
    failure_closes_channel: bool = True
    """A failed request costs its channel (all versions do, since 0-10 ends the session)."""
    unknown_exchange_reported: bool = True
    """False: a publish to an exchange that does not exist is confirmed and goes elsewhere (Broker-J's 0-10)."""
    counts_unacked: bool = False
    """``message_count`` includes deliveries that are out."""
    transient_overtakes: bool = False
    """A transient message may come into its queue before persistent ones that were published earlier on the same
    channel (Broker-J; in 0-10 only where it stores them on a disk)."""
    absolute_expiration: bool = False
    """``expiration`` on the wire is milliseconds since 1970 (Broker-J's classic versions)."""
    routes_copies: bool = False
    """The headers CC and BCC name further routing keys (RabbitMQ), and must be arrays of strings."""
    redeclare_checked: bool = True
    """False: declaring what exists with other settings succeeds and changes nothing (Broker-J)."""
    checks_user_id: bool = True
    durable_storage: bool = True
    """False: nothing survives a restart of this broker (the embedded one)."""
    update_secret: bool = False
    """The password of a connection may be renewed while it is open (RabbitMQ's 0-9-1)."""
    dialect: str = ""
    """``transitional`` where 0-10 is the draft of July 2007."""
    form: str = ""
    """Of a server: what messages to this client are translated to, where its version has more than one form."""
    frame_max: int = 0
    channel_max: int = 0
    heartbeat: float = 0.0
    """The three as negotiated; 0 is no limit, no heartbeat."""


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """How a client session opens its connection."""

    user: str = "guest"
    password: str = field(default="guest", repr=False)
    virtual_host: str = "/"
    mechanisms: tuple[str, ...] = ("SCRAM-SHA-256", "SCRAM-SHA-1", "CRAM-MD5", "PLAIN", "AMQPLAIN")
    """Which SASL mechanisms may be used, best first. EXTERNAL and ANONYMOUS are used only where they are named here."""
    secure: bool = False
    """The stream is encrypted or loopback: PLAIN and AMQPLAIN may be used."""
    connection_name: str = ""
    client_properties: Table = field(default_factory=dict)
    heartbeat: float | None = None
    """Seconds; None takes the limit table's, 0 is off."""
    limits: Limits = DEFAULT_LIMITS
    dialect: str | None = None
    """Overrides the dialect that the server's product would choose: ``rabbitmq`` or ``qpid``. Of 0-10:
    ``transitional`` is the draft of July 2007, which has the protocol header of the final."""
    random_octets: Callable[[int], bytes] | None = None
    """For SCRAM's nonce and 0-10's session name. Required by them."""
    wall_clock: Callable[[], float] | None = None
    """Seconds since 1970; required where ``expiration`` is absolute."""
    insist: bool = True
    """Ask the server not to send us elsewhere (connection.redirect); one that does all the same ends the session with
    :attr:`~gateway.amqp.operations.Closed.redirect`."""
    realm: str = "/data"
    """What a ticket is asked for (access.request), where the dialect has tickets."""


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """What a server keeps of a password for SCRAM (RFC 5802 section 3); the password cannot be had from it."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


class PendingLogin:
    """A login that is checked elsewhere. The client waits until :meth:`decide` is called."""

    __slots__ = ("_decided",)

    def __init__(self) -> None:
        self._decided: Callable[[bool, str, float], None] | None = None

    def on_decision(self, decided: Callable[[bool, str, float], None]) -> None:
        """Set what the session does then."""
        self._decided = decided

    def decide(self, accepted: bool, now: float, unavailable: str = "") -> None:
        """Tell the session the result. ``unavailable``: why nobody could check it; such a client is told to come
        again, and not that its password is wrong."""
        if self._decided is not None:
            self._decided(accepted, unavailable, now)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How a server session receives connections."""

    authenticate: Callable[[str, str], bool | PendingLogin]
    """(user, password) -> accepted, or told later. Server sessions offer PLAIN and AMQPLAIN (0-10: PLAIN) for it."""
    open_virtual_host: Callable[[str, str], bool]
    """(user, virtual host as the client wrote it) -> accepted."""
    properties: Table = field(default_factory=dict)
    """server-properties: product, version, platform. The session adds its capabilities."""
    limits: Limits = DEFAULT_LIMITS
    random_octets: Callable[[int], bytes] | None = None
    """For SCRAM's nonce, and the names that a server makes."""
    wall_clock: Callable[[], float] | None = None
    dialect: str | None = None
    """``transitional``: 0-10 is the draft of July 2007, which has the protocol header of the final."""
    scram: Callable[[str], ScramKeys] | None = None
    """User -> what SCRAM-SHA-256 compares with. A user that does not exist gets keys that fit no password, so that
    nobody finds out who there is. None: it is not offered, nor is it without ``random_octets``."""
    certificate: str = ""
    """The login that the client has proved by its certificate; EXTERNAL is offered to those who have."""
    anonymous: str = ""
    """The login of clients that come as ANONYMOUS; empty: that is not offered."""
    admits: Callable[[str, bool], bool] | None = None
    """(user, whether the client has proved to be that user) -> whether it may come in. Told once of every login."""
    redirect: Callable[[str, str], tuple[str, ...]] | None = None
    """(user, virtual host) -> the hosts where the client is sent instead (connection.redirect of 0-8 and 0-10), the
    best first; none: it stays. Not asked for clients that insist."""
    session_timeout: int = 0
    """How many seconds a 0-10 session may outlive its connection; 0: no session does."""
    resume_session: Callable[[str, str, bytes, bool], Any] | None = None
    """(user, virtual host, session name, by force) -> ``state`` of the OpenChannel of that session if it is kept, None:
    there is no such session. Raises StateError where it is attached to another connection; by force it is detached from
    there first (``state.part()``)."""


class Heartbeats:
    """When octets came from the peer and went to it last; times in seconds."""

    __slots__ = ("interval", "received_at", "sent_at")

    def __init__(self) -> None:
        self.interval = 0.0
        """As negotiated; 0: there are none."""
        self.received_at = 0.0
        self.sent_at = 0.0


class Session(Protocol):
    """One connection, in one version and role."""

    @property
    def version(self) -> Version: ...

    @property
    def role(self) -> Role: ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def closed(self) -> bool:
        """A Closed was returned, or will be by the next call; the stream may be shut once ``data_to_send`` is
        drained."""
        ...

    @property
    def pending(self) -> int:
        """How many buffers wait for ``data_to_send``. A session gives some answers alone, so a peer that asks
        and does not read is found out here."""
        ...

    @property
    def unfinished(self) -> int:
        """Octets held of frames and messages that have not come in whole."""
        ...

    def send(self, operation: Operation, now: float) -> int:
        """Queue an operation and return its serial (Deliver, Got in the server role: the delivery number;
        operations without one: 0).

        Raises:
            LocalError: the state, the version or a limit forbids it; nothing was queued.
        """
        ...

    def receive_data(self, data: bytes | bytearray | memoryview, now: float) -> list[Operation]:
        """Take octets from the stream. Never raises for what the peer did."""
        ...

    def receive_eof(self, now: float) -> list[Operation]:
        """The stream ended."""
        ...

    def data_to_send(self) -> list[bytes]:
        """Everything queued since the last call, for one gathered write. This is the flush: a version sends the end of
        a burst of publishes (0-10's sync bit, tx.commit) here."""
        ...

    def next_timeout(self) -> float | None:
        """When ``handle_timeout`` wants to be called, on the clock of ``now``; None: not."""
        ...

    def handle_timeout(self, now: float) -> list[Operation]:
        """Heartbeats, the handshake's and the close's deadline."""
        ...
