"""The operations of AMQP, in the words of the specification, the same for all versions.

What a client sends is what a server receives: a client session takes :class:`DeclareQueue` in ``send`` and a
server session returns it from ``receive_data``; the server answers with ``send(Declared(...))`` and the client
returns that. Nothing here knows about frames.

**Serials.** ``send`` returns the serial of the operation: 1, 2, 3, ... per channel, over everything the client
sends on that channel. A server session numbers what it receives the same way, in ``operation.serial``. An
:class:`Outcome` names the serials it settles as the range ``first``-``last``. Every operation a client sends
gets exactly one final outcome, but for those marked *no outcome*, or a :class:`ChannelClosed` or
:class:`Closed` that ends them all (a publish that ends so is *unknown*). :class:`Returned` is no final outcome
of its own where ``final`` is false.

**Deliveries.** ``delivery`` numbers the deliveries of one channel from 1 up, without gaps that matter; it is unwrapped
to Python integers, even if the wire wraps. In the server role ``send(Deliver(...))`` returns that number, and the field
of the operation sent is ignored.

Channel 0 is the connection itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar, dataclass_transform

from gateway.amqp.message import Message
from gateway.amqp.values import Table

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def operation(cls: type[_T]) -> type[_T]:
    """Declare an operation: frozen for the type checker, plain slots at run time."""
    return dataclass(slots=True)(cls)


@operation
class Operation:
    """Anything that passes between a session and its user."""

    channel: int


@operation
class Request(Operation):
    """What a client asks. ``serial`` is set by the server session that received it."""

    serial: int = field(default=0, kw_only=True)


@operation
class Outcome(Operation):
    """What became of the requests ``first`` to ``last`` of the channel."""

    first: int
    last: int


# ---------------------------------------------------------------------------------------------- connection


class CloseReason(Enum):
    """Why a connection ended."""

    LOCAL = "local"
    """We closed it."""
    PEER = "peer"
    """The peer sent a close; code and text are the peer's."""
    EOF = "eof"
    """The stream ended without a close."""
    HEARTBEAT = "heartbeat"
    """Nothing was heard for two heartbeat intervals."""
    SYNTAX = "syntax"
    """The peer broke the specification; code and text are those of the close."""
    PROTOCOL_HEADER = "protocol-header"
    """The peer answered with another protocol header, or with other bytes."""
    AUTHENTICATION = "authentication"
    """The peer refused the credentials or the virtual host, or offers no mechanism that we accept."""
    LOGIN_CUT = "login-cut"
    """The stream ended where the peer owed an answer to our credentials or virtual host: a refusal without a word, or a
    broker that comes up or goes down."""
    TIMEOUT = "timeout"
    """The handshake or the close took too long."""


@operation
class Opened(Operation):
    """The connection is open (channel 0). A client session returns it once, first of all; a server session
    returns it when the client's open was accepted."""

    user: str = ""
    virtual_host: str = "/"


@operation
class Close(Request):
    """Close the connection (channel 0). Its outcome is :class:`Closed`."""

    code: int = 200
    text: str = ""


@operation
class Closed(Operation):
    """The connection is over (channel 0); nothing follows, and everything without an outcome has none."""

    reason: CloseReason
    code: int
    text: str
    supported: str | None = None
    """With PROTOCOL_HEADER: the version the peer asked for instead, if it named one that we speak."""
    redirect: tuple[str, ...] = ()
    """With PEER: where the server sends its clients instead of opening (connection.redirect of 0-8 and 0-10), as it
    wrote it: the host first, then the known hosts. In the server role, with LOCAL: where the client was sent."""


@operation
class Blocked(Operation):
    """The broker takes no publishes for now (channel 0; 0-9-1's connection.blocked)."""

    reason: str = ""


@operation
class Unblocked(Operation):
    """The broker takes publishes again (channel 0)."""


@operation
class UpdateSecret(Request):
    """Tell the broker a new password for the connection that is open (channel 0; connection.update-secret of 0-9-1
    with RabbitMQ's extensions). Outcome: Done; a broker that refuses it closes the connection. A server session answers
    alone."""

    secret: str = field(repr=False)
    reason: str = ""


# ------------------------------------------------------------------------------------------------- channel


@operation
class OpenChannel(Request):
    """Open a channel (0-10: attach a session). Outcome: Done. The channel number is the caller's choice."""

    timeout: int = 0
    """0-10: how many seconds the session is to outlive its connection, see :class:`Detached`. Failed 540 where the
    broker keeps no sessions, and the channel is closed."""
    state: Any = field(default=None, compare=False, repr=False)
    """0-10. Client: that of a Detached: attach its session again. What was under way goes on: what the broker has not
    received is sent again, and outcomes name the serials that they always had; this request's is the next one. Failed
    404 where the broker does not know the session any more: everything without an outcome is *unknown* then. Server:
    what stands for the session, to be returned by ``ServerConfig.resume_session``."""
    name: bytes = field(default=b"", compare=False)
    """Server role, 0-10: the session's."""
    resumed: bool = False
    """Server role, 0-10: the session was detached and is back; it has no outcome, the client knows already."""


@operation
class Detach(Request):
    """Client, 0-10: detach a session that was opened with a ``timeout``. Its outcome is :class:`Detached`."""


@operation
class Detached(Operation):
    """A session of 0-10 has lost its connection, or was detached, and outlives that. The channel is over. A client gets
    it before Closed, for each channel that was opened with a ``timeout``; a server session's user keeps all that the
    channel has until it is back or ``timeout`` seconds have passed."""

    timeout: int
    """Seconds."""
    state: Any = field(compare=False, repr=False)
    """For :class:`OpenChannel`, of this connection or another one to the same broker. Use it once."""


@operation
class CloseChannel(Request):
    """Close a channel. Outcome: ChannelClosed. In the server role: close it with a code and text, and with
    the failing method where ``failed`` names the request that caused it."""

    code: int = 200
    text: str = ""
    failed: int = 0


@operation
class ChannelClosed(Operation):
    """The channel is over. A client's publishes without an outcome are unknown, its deliveries are lost."""

    code: int
    text: str
    by_peer: bool = True


@operation
class Flow(Request):
    """Ask the other side to stop (``active`` false) or go on sending content on this channel. Both roles send
    and receive it; no outcome. 0-10: message.stop and message.flow for the destinations of the channel."""

    active: bool = True


@operation
class Alert(Operation):
    """The broker warns of something that is no error on this channel (channel.alert of 0-8). In the server role it is
    sent to clients of 0-8, and dropped for those of 0-9-1, which has no such method."""

    code: int
    text: str
    details: Table = field(default_factory=dict)


# ---------------------------------------------------------------------------------------- general outcomes


@operation
class Done(Outcome):
    """It was done, and there is nothing more to say of it."""


@operation
class Failed(Outcome):
    """It was refused with an AMQP reply code. In classic versions a ChannelClosed (or Closed) follows; where
    the reply could not be tied to one request, only that comes. A server session that is sent this closes
    the channel or, for 503, 504, 530, 540 and 541, the connection, as its version does."""

    code: int
    text: str


# ------------------------------------------------------------------------------------------------ exchange


@operation
class DeclareExchange(Request):
    """Outcome: Done. ``passive`` only asks whether it exists."""

    exchange: str
    type: str = "direct"
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    passive: bool = False
    arguments: Table = field(default_factory=dict)


@operation
class DeleteExchange(Request):
    """Outcome: Done."""

    exchange: str
    if_unused: bool = False


@operation
class BindExchange(Request):
    """Bind ``destination`` to ``source`` (both exchanges). Outcome: Done. 0-9-1 with RabbitMQ's extension."""

    destination: str
    source: str
    routing_key: str = ""
    arguments: Table = field(default_factory=dict)


@operation
class UnbindExchange(Request):
    """Outcome: Done."""

    destination: str
    source: str
    routing_key: str = ""
    arguments: Table = field(default_factory=dict)


@operation
class QueryExchange(Request):
    """Does it exist? Outcome: ExchangeFound, or Failed 404 (which in classic versions costs the channel)."""

    exchange: str


@operation
class ExchangeFound(Outcome):
    """The exchange exists. ``type`` and ``durable`` are None where the version does not tell."""

    exchange: str
    type: str | None = None
    durable: bool | None = None
    arguments: Table | None = None


# --------------------------------------------------------------------------------------------------- queue


@operation
class DeclareQueue(Request):
    """Outcome: Declared. An empty name asks the server to choose one (0-10: the session chooses)."""

    queue: str
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    passive: bool = False
    arguments: Table = field(default_factory=dict)


@operation
class QueryQueue(Request):
    """Does it exist, and how deep is it? Outcome: Declared, or Failed 404 (in classic versions that costs
    the channel)."""

    queue: str


@operation
class Declared(Outcome):
    """The queue exists. What ``message_count`` counts is a capability of the peer."""

    queue: str
    message_count: int = 0
    consumer_count: int = 0
    durable: bool | None = None
    arguments: Table | None = None
    auto_delete: bool | None = None
    """The three only where the version tells (0-10's queue.query)."""


@operation
class BindQueue(Request):
    """Outcome: Done."""

    queue: str
    exchange: str
    routing_key: str = ""
    arguments: Table = field(default_factory=dict)


@operation
class UnbindQueue(Request):
    """Outcome: Done. 0-8: RabbitMQ's dialect has it, the published definition has not."""

    queue: str
    exchange: str
    routing_key: str = ""
    arguments: Table = field(default_factory=dict)


@operation
class QueryBinding(Request):
    """exchange.bound of Qpid's dialects and 0-10. Outcome: BindingFound."""

    exchange: str
    queue: str = ""
    routing_key: str | None = None
    arguments: Table | None = None


@operation
class BindingFound(Outcome):
    """What of the question exists; all true means that the binding is there."""

    exchange_found: bool = True
    queue_found: bool = True
    matched: bool = True
    """One binding has the queue, the key and the arguments, as far as they were given."""
    key_matched: bool = True
    arguments_matched: bool = True
    queue_matched: bool = True
    """The exchange has a binding to the queue. If it has none, key and arguments are looked for in all its bindings,
    else in those of the queue."""


@operation
class PurgeQueue(Request):
    """Outcome: Removed."""

    queue: str


@operation
class DeleteQueue(Request):
    """Outcome: Removed."""

    queue: str
    if_unused: bool = False
    if_empty: bool = False


@operation
class Removed(Outcome):
    """Purged or deleted, with how many messages (None: the version does not tell)."""

    message_count: int | None = None


# ------------------------------------------------------------------------------------------------- publish


@operation
class SelectConfirm(Request):
    """From now on every publish of this channel gets its own outcome when it is safe. Outcome: Done. What the
    peer has decides how (``capabilities.confirms``): confirm.select; a transaction per flush; completion."""


@operation
class Publish(Request):
    """Outcome, on a channel with SelectConfirm: Confirmed, Returned (final) or Refused. Without it: none,
    but Returned may still come."""

    exchange: str
    routing_key: str
    message: Message
    mandatory: bool = True
    immediate: bool = False


@operation
class Confirmed(Outcome):
    """The broker has taken responsibility for the publishes ``first`` to ``last`` that were still without an
    outcome."""


@operation
class Refused(Outcome):
    """The broker refused responsibility (basic.nack; 0-10 message.reject other than unroutable)."""

    code: int = 0
    text: str = ""


@operation
class Returned(Outcome):
    """Not routed (or not immediately deliverable): the broker kept no copy. ``message`` is what came back,
    None in 0-10. A client session emits it with ``final`` true exactly once per returned publish, in place of
    Confirmed; on a channel without SelectConfirm too. A server session is sent it before the Confirmed that
    covers the same serial, and puts the two on the wire in its version's order."""

    code: int
    text: str
    exchange: str = ""
    routing_key: str = ""
    message: Message | None = None
    final: bool = True


# ------------------------------------------------------------------------------------------------- consume


@operation
class Qos(Request):
    """Prefetch of the consumers started on this channel after it; 0 is no limit. Outcome: Done.
    0-10: becomes credit, topped up by settlements."""

    prefetch_count: int = 0
    prefetch_size: int = 0
    whole_channel: bool = False
    """classic ``global``."""


@operation
class Consume(Request):
    """Outcome: Consuming. The session refuses (StateError) a consumer tag that is in use on the channel."""

    queue: str
    consumer_tag: str = ""
    no_local: bool = False
    no_ack: bool = False
    exclusive: bool = False
    arguments: Table = field(default_factory=dict)
    acquired: bool = True
    """False: browse (0-10 acquire-mode not-acquired; Qpid's ``x-filter-no-consume``)."""
    credit: bool = False
    """Server role, 0-10: deliver only within :class:`Credit`; false: within Qos."""


@operation
class Consuming(Outcome):
    """The consumer exists."""

    consumer_tag: str


@operation
class Credit(Request):
    """0-10's message.flow as a server receives it: the consumer may have that many more. None: without limit.
    No outcome."""

    consumer_tag: str
    messages: int | None = 0
    octets: int | None = 0
    window: bool = False
    """Credit comes back by completion (``window``), or only by a further Credit."""
    stopped: bool = False
    """message.stop: all credit is gone."""
    flush: bool = False
    """message.flush: deliver what is there at once, then take the rest of the credit away."""


@operation
class Cancel(Request):
    """End a consumer. Outcome: Done. Deliveries that are out stay out."""

    consumer_tag: str


@operation
class Cancelled(Operation):
    """The broker ended the consumer, its queue is gone (basic.cancel of the server). In the server role it is
    sent to a client that can hear it, and dropped for others."""

    consumer_tag: str


@operation
class Deliver(Operation):
    """A message for a consumer. ``delivery`` is what Settle names."""

    consumer_tag: str
    delivery: int
    redelivered: bool
    exchange: str
    routing_key: str
    message: Message


@operation
class DeliveryTooLarge(Operation):
    """A delivery over our own limit: its body was discarded as it came. It is outstanding like any other and
    must be settled."""

    consumer_tag: str
    """Empty where the delivery answered a Get."""
    delivery: int
    size: int
    limit: int
    redelivered: bool = False
    exchange: str = ""
    routing_key: str = ""


@operation
class Get(Request):
    """One message, now. Outcome: Got or GotNothing (or DeliveryTooLarge followed by GotNothing)."""

    queue: str
    no_ack: bool = False


@operation
class Got(Outcome):
    """The answer to Get. ``delivery`` is what Settle names."""

    delivery: int
    redelivered: bool
    exchange: str
    routing_key: str
    message: Message
    message_count: int | None = None
    """How many are left, where the version tells."""


@operation
class GotNothing(Outcome):
    """The queue is empty."""


class Settlement(Enum):
    """What becomes of a delivery."""

    ACCEPT = "accept"
    RELEASE = "release"
    """Back to the queue, marked as redelivered."""
    REJECT = "reject"
    """Dead-lettered where the queue says so and the broker can, else gone."""


@operation
class Settle(Request):
    """Settle the outstanding deliveries ``first`` to ``last`` of the channel (both included). No outcome in a
    client; a violation closes the channel. ``first`` 0 in the server role: all up to ``last``; ``last`` 0: all.
    A client session refuses (StateError) a range without any outstanding delivery, and settles those in it
    that are outstanding."""

    settlement: Settlement
    first: int
    last: int


@operation
class Acquire(Request):
    """Take deliveries that were only shown (``acquired`` false of Consume), as far as nobody else has them by now.
    Outcome: Acquired. 0-10's message.acquire; Qpid's JMS client selects messages so. What is not acquired stays
    outstanding, and settling it says only that it was seen."""

    deliveries: tuple[tuple[int, int], ...] = ()
    """Ranges, both ends included."""


@operation
class Acquired(Outcome):
    """Those of the deliveries that are the client's now, to be settled as any other."""

    deliveries: tuple[tuple[int, int], ...] = ()


@operation
class Resume(Request):
    """How much is there of a message that was interrupted (0-10's message.resume)? Outcome: Resumed, or Failed 404
    where there is no such destination."""

    destination: str
    """The exchange that the rest is for."""
    resume_id: str
    """What the message's sender has called it."""


@operation
class Resumed(Outcome):
    """How many octets of the message are there already; 0: nothing, it starts over."""

    offset: int = 0


@operation
class Recover(Request):
    """Give back everything that is out on this channel. Outcome: Done."""

    requeue: bool = True
    asynchronous: bool = False
    """A client of 0-8 or 0-9-1 asks by the method that is not answered (60.100), with the channel stopped before it and
    set going behind it by channel.flow, whose answers tell what was recovered. So does 0-8 as it was published by
    itself, which has nothing else. Unsupported where clients may not stop a channel (RabbitMQ)."""


# --------------------------------------------------------------------------------------------- transaction


@operation
class TxSelect(Request):
    """Outcome: Done. Not on a channel with SelectConfirm."""


@operation
class TxCommit(Request):
    """Outcome: Done. Nothing more may be sent on the channel until it came (StateError)."""


@operation
class TxRollback(Request):
    """Outcome: Done. The same rule as for TxCommit."""


# ---------------------------------------------------------------------------- distributed transactions (0-10)


@dataclass(frozen=True, slots=True)
class Xid:
    """A transaction branch, as X/Open XA names it (0-10's dtx.xid). Two are the same if all three are."""

    format: int
    """The maker's code for how to read the other two, 32 bits; -1 of XA, the null xid, is 0xFFFFFFFF."""
    global_id: bytes
    """The transaction, at most 64 octets."""
    branch_id: bytes
    """The branch of it, at most 64 octets."""


class XaStatus(Enum):
    """What became of a branch (0-10's dtx.xa-status)."""

    XA_OK = 0
    XA_RBROLLBACK = 1
    """Rolled back, for a reason that is not told."""
    XA_RBTIMEOUT = 2
    """Rolled back: it took longer than its timeout."""
    XA_HEURHAZ = 3
    """Something was decided without us, and it is not known what."""
    XA_HEURCOM = 4
    """Committed without us."""
    XA_HEURRB = 5
    """Rolled back without us."""
    XA_HEURMIX = 6
    """Committed in part and rolled back in part, without us."""
    XA_RDONLY = 7
    """There was nothing to commit; the branch is over."""


@operation
class DtxSelect(Request):
    """Branches may be worked on in this channel from now on. Outcome: Done. Not on a channel with TxSelect; together
    with SelectConfirm. A client session asks for it before any other Dtx request (StateError)."""


@operation
class DtxStart(Request):
    """From here to :class:`DtxEnd`, publishes and settlements of this channel belong to the branch. Outcome: XaResult,
    or Failed 530 for a branch that is known already, where neither ``join`` nor ``resume`` says so."""

    xid: Xid
    join: bool = False
    """Work on a branch that another channel has started."""
    resume: bool = False
    """Go on with a branch that was suspended here."""


@operation
class DtxEnd(Request):
    """The channel's work on the branch is over. Outcome: XaResult, or Failed 406 where it was not started here. On a
    channel with SelectConfirm a publish of the branch has its outcome by then; its Confirmed says that the broker has
    noted it for the branch. It is safe with the branch."""

    xid: Xid
    fail: bool = False
    """It failed: nothing but a rollback is possible then. Outcome: XaResult with XA_RBROLLBACK."""
    suspend: bool = False
    """It is only interrupted, see ``resume`` of :class:`DtxStart`."""


@operation
class DtxPrepare(Request):
    """The first phase: from its outcome on, the branch can be committed through all faults (whether that includes a
    crash of the broker is ``capabilities.durable_storage``). Outcome: XaResult; anything but XA_OK and XA_RDONLY is a
    branch to be rolled back. Failed 404 for one that is not known, 406 for one that has not ended."""

    xid: Xid


@operation
class DtxCommit(Request):
    """The second phase, or with ``one_phase`` both. Outcome: XaResult; Failed as for :class:`DtxPrepare`, and 406 where
    ``one_phase`` is not what is the case."""

    xid: Xid
    one_phase: bool = False


@operation
class DtxRollback(Request):
    """Nothing of the branch has happened. Outcome: XaResult; Failed as for :class:`DtxPrepare`. Deliveries that were
    settled in the branch are in their queue again, marked as redelivered."""

    xid: Xid


@operation
class DtxForget(Request):
    """Forget a branch that was decided elsewhere (XA_HEUR...). Outcome: Done; Failed 406 for any other."""

    xid: Xid


@operation
class DtxRecover(Request):
    """Which branches of the virtual host are prepared, or were decided without us? Outcome: RecoverResult."""


@operation
class DtxSetTimeout(Request):
    """How many seconds the branch may take until it is prepared; 0 is the broker's default. Outcome: Done."""

    xid: Xid
    timeout: int


@operation
class DtxGetTimeout(Request):
    """Outcome: GetTimeoutResult."""

    xid: Xid


@operation
class XaResult(Outcome):
    """What became of a branch by a DtxStart, DtxEnd, DtxPrepare, DtxCommit or DtxRollback."""

    status: XaStatus = XaStatus.XA_OK


@operation
class RecoverResult(Outcome):
    """The branches in doubt."""

    in_doubt: tuple[Xid, ...] = ()


@operation
class GetTimeoutResult(Outcome):
    """The timeout of a branch, in seconds."""

    timeout: int = 0
