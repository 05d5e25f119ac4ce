"""The JSON of the API, as structs: what is decoded is what is documented.

A field's string is its description in the OpenAPI document. Input structs refuse unknown fields, so that a
misspelt name is an error and not a silence.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.config import BridgeSettings, BrokerSettings, EndpointSettings, SubscriptionSettings, TapSettings
from gateway.config.base import OLD_NAME
from gateway.core.publishing.outbox import YEAR
from gateway.notation.logged import Logged
from gateway.notation.messages import Binary, MessageProperties, ReceivedMessage
from gateway.validation import Moment, WrongField

EXCHANGE_TYPE: Final = "^(direct|fanout|topic|headers|xml|system|x-.+)$"
"""Types of exchanges (0-9-1 section 3.1.3). Any other is refused here: a broker that does not know one closes the
connection, and with it what others have under way."""
KEY_MAX: Final = 255
"""Longest idempotency key, in characters."""
Delay = Annotated[float, Meta(ge=0, le=YEAR)]
"""Seconds from now, at most as far ahead as a publish may be scheduled."""


class Input(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of what is sent to us."""


def only_one(given: msgspec.Struct, old: str, name: str) -> None:
    """Refuse a field that is given under both of its names. Raises WrongField."""
    if getattr(given, old) is not UNSET and getattr(given, name) is not UNSET:
        raise WrongField(old, f"this is another name of {name}, which is given too; give {name} alone")


class Output(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Base of what we answer."""


# --------------------------------------------------------------------------------------------- messages


class PublishMessage(Input):
    """One message to publish. At least one of ``routing_key``, ``payload``, ``properties``, ``headers`` and ``logged``
    must be there."""

    routing_key: str | Binary | UnsetType = UNSET
    """The routing key: at the default exchange, the name of the queue. Unless given: the empty one."""
    payload: msgspec.Raw | UnsetType = UNSET
    """Any JSON value. A string is published as it is, or decoded (``payload_encoding``). Any other value, ``null`` too,
    is published as compact JSON, its numbers as they are written, and ``content_type`` is ``application/json`` unless
    given. Without ``payload`` the body is empty."""
    payload_encoding: Literal["string", "base64"] = "string"
    """How a ``payload`` that is a string is written: ``string`` as it is, ``base64`` as base64 of the bytes."""
    properties: MessageProperties | UnsetType = UNSET
    """AMQP properties of the message. Properties that you leave out are not set."""
    headers: dict[str, Any] = {}
    """AMQP headers. Plain JSON for the plain types, ``{"type": "int8", "value": 3}`` for the rest. Where they are
    called just ``type`` and ``value``, or a name is not UTF-8, as pulls show them: ``{"type": "table", …}``."""
    logged: Logged | UnsetType = UNSET
    """Properties and headers as the column ``properties`` of the message log has them, in place of ``properties`` and
    ``headers``: the message is published once more, exactly as it was. What is not in them is not set."""
    mandatory: Annotated[bool, Meta(extra_json_schema={"default": True})] | UnsetType = UNSET
    """Whether a message that no queue takes is an error (422 ``unroutable``). With ``false`` it is answered with 200
    and the status ``unroutable``, and the message is gone."""
    not_before: datetime | Annotated[float, Meta(ge=0)] | None = None
    """When to publish the message, in place of now: RFC 3339 with an offset, or seconds since 1970; at most a year
    ahead. The answer is 202."""
    delay_seconds: Delay | None = None
    """Publish the message this many seconds from now, in place of ``not_before``. The answer is 202."""
    key: Annotated[str, Meta(min_length=1, max_length=KEY_MAX, pattern="^[ -~]*$")] | UnsetType = UNSET
    """An idempotency key of this one message, for lines of a stream and messages of a batch: however often you send it
    under this key, it is published once. Printable ASCII."""


class PublishRequest(PublishMessage):
    """One message; or, in ``messages`` and then alone, a batch."""

    messages: list[PublishMessage] | UnsetType = UNSET
    """The messages of a batch. No other member may stand beside it."""


class RawBatch(Input):
    """A batch of which at least one message has the wrong shape: each is checked alone."""

    messages: list[msgspec.Raw]


class Published(Output):
    """The broker took the message; or no queue did, and the caller allows that."""

    id: str
    """The gateway's id of the message."""
    status: Literal["confirmed", "unroutable"]
    """``confirmed``: the broker has it. ``unroutable``: no queue took it, and it was published with ``"mandatory":
    false``."""
    routed: bool
    """Whether a queue took the message."""
    durable: bool
    """Whether the message survives a restart of the broker, as far as is known."""
    resent: bool = False
    """The message was sent again after an unknown outcome: consumers may see it twice, with the same id."""


class Scheduled(Output):
    """The ledger holds the message, and publishes it later."""

    id: str
    """The gateway's id of the message: see ``/v1/scheduled/{id}``."""
    status: Literal["scheduled"]
    """Always ``scheduled``."""
    not_before: str | UnsetType = UNSET
    """When the message is published, RFC 3339; absent: as soon as the broker takes it."""


class BatchResult(Output):
    """What became of one message of a batch or stream."""

    status: int
    """The HTTP status that this message alone would have had."""
    id: str = ""
    """The gateway's id of the message."""
    state: Literal["confirmed", "unroutable", "scheduled"] | UnsetType = UNSET
    """The ``status`` that this message alone would have had; absent where there is a problem."""
    routed: bool | UnsetType = UNSET
    """Whether a queue took the message."""
    durable: bool | UnsetType = UNSET
    """Whether the message survives a restart of the broker, as far as is known."""
    resent: bool = False
    """The message was sent again after an unknown outcome: consumers may see it twice, with the same id."""
    key: Literal["done", "repeated"] | UnsetType = UNSET
    """Only for a message with a key, once its outcome is final. ``done``: the outcome is of this message. ``repeated``:
    it is of an earlier message with the same key, and nothing was published now."""
    problem: Any = UNSET
    """The problem (RFC 9457), where the status is not 200."""


class ScheduledMessage(Output, omit_defaults=False):
    """A message that was to be published later."""

    id: str
    """The gateway's id of the message."""
    state: str
    """``scheduled``: not published yet. ``refused``: the broker did not take it, and it is kept for ``:retry``.
    Otherwise the state that it reached."""
    broker: str
    """The broker that the message is published to."""
    exchange: Any
    """The exchange. A string; a ``binary`` object where it is not UTF-8."""
    routing_key: Any
    """The routing key. A string; a ``binary`` object where it is not UTF-8."""
    at: str
    """When the gateway took the message, RFC 3339."""
    client: str
    """The name of the API key that published it."""
    not_before: str | None = None
    """When it is to be published, RFC 3339; ``null``: as soon as the broker takes it."""
    attempts: int = 0
    """How often the gateway has sent it to the broker, or was about to."""
    sending: bool = False
    """Whether it is in flight now."""
    reason: str = ""
    """Why it is not published yet, or why the broker did not take it."""


class Reschedule(Input):
    """When a scheduled message is published instead. Give one of both."""

    not_before: datetime | Annotated[float, Meta(ge=0)] | None = None
    """Publish it at this time or soon after: RFC 3339 with an offset, or seconds since 1970; at most a year ahead."""
    delay_seconds: Delay | None = None
    """Publish it this many seconds from now; 0: at once."""


class ScheduledMessages(Output, omit_defaults=False):
    """A page of them."""

    scheduled: list[ScheduledMessage]
    """The messages of this page."""


class BatchResults(Output):
    """One result per message, in order."""

    results: list[BatchResult]
    """The results, in the order of the messages."""


# ------------------------------------------------------------------------------------------ subscriptions


class Backlog(Output, omit_defaults=False):
    """What the ledger owes a subscription."""

    waiting: int
    """Messages that wait: for a consumer, or for the time when they are due."""
    out: int
    """Messages that are out under a lease."""
    dead: int
    """Messages that were given up and are kept."""
    octets: int
    """Bytes of the bodies of all these messages."""
    oldest_at: str | None
    """When the oldest message arrived that is not dead, RFC 3339; ``null``: there is none."""


class Push(Output, omit_defaults=False):
    """How things stand with a subscription that is pushed."""

    endpoint: str
    """Name of the endpoint that messages are pushed to."""
    state: Literal["running", "waiting", "full", "error", "paused", "stopped"]
    """``waiting``: its endpoint gets nothing; ``full``: the ledger holds ``backlog_max`` messages for it; ``error``:
    its queue cannot be read; ``stopped``: no process pushes it."""
    reason: str
    """Why it is not running."""
    code: str
    """The same in one stable word, such as ``endpoint_missing``, ``endpoint_paused`` or ``breaker_open``; empty: it is
    running, or this process does not know."""
    in_flight: int
    """Messages in requests that are under way."""
    held: int
    """Messages that were taken from queue or ledger, and wait for a request."""
    waiting: int
    """Messages that the ledger holds and that are to be pushed."""
    retrying: int
    """Those of them that were tried before."""
    dead: int
    """Messages that were given up and are kept."""
    next_attempt_at: str | None
    """When the next message that waits is due."""
    last_error: str
    """Why the last attempt that failed did so."""
    last_error_at: str | None
    """When that attempt failed, RFC 3339; ``null``: none failed."""


class Subscription(SubscriptionSettings, frozen=True, kw_only=True):
    """A queue made available to consumers: its settings, and how things stand."""

    name: str
    """Name of the subscription."""
    read_only: bool
    """Whether the configuration file defines it. Then the API cannot change it."""
    state: Literal["active", "paused", "error"]
    """Whether it takes and hands out messages. ``paused`` is the state that it began with. ``error``: its broker,
    its queue or its endpoint is missing or cannot be used, as far as this process knows; ``reason`` says which."""
    reason: str
    """Why it takes no messages, as far as this process knows; empty: nothing is wrong. Lists show only the reasons of
    ``error``."""
    leases: int
    """Messages that this process has handed out and the broker holds."""
    backlog: Backlog | None
    """What the ledger holds for it; ``null`` where the broker holds its leases, and in lists."""
    push_status: Push | None
    """How pushing goes; ``null`` where consumers pull, and in lists."""
    settings: SubscriptionSettings
    """The settings alone, as a ``PUT`` and the configuration file have them. They also stand beside this member."""


class Subscriptions(Output, omit_defaults=False):
    """A page of subscriptions."""

    subscriptions: list[Subscription]
    """The subscriptions of this page."""


class PullRequest(Input):
    """How much to pull, and how long to wait for it."""

    max_messages: Annotated[int, Meta(ge=1, le=1000)] = 10
    """Most messages to return. The answer may have fewer."""
    wait_seconds: Annotated[float, Meta(ge=0, le=60)] | UnsetType = UNSET
    """How long to wait for the first message (long poll). Unless given: 0, do not wait."""
    wait: Annotated[float, Meta(ge=0, le=60), OLD_NAME] | UnsetType = UNSET
    """Old name of ``wait_seconds``."""
    ack_deadline_seconds: Annotated[int, Meta(ge=10, le=600)] | None = None
    """How long each message is leased. Unless given: as the subscription says."""

    def __post_init__(self) -> None:
        """Only one of the names may be given."""
        only_one(self, "wait", "wait_seconds")

    @property
    def seconds(self) -> float:
        """How long to wait."""
        return (self.wait_seconds or 0) if self.wait is UNSET else self.wait


class PulledMessage(Output, omit_defaults=False):
    """A message and its lease."""

    ack_id: str
    """Id of the lease. Send it to ``:acknowledge``, ``:release``, ``:reject`` or ``:modifyAckDeadline``."""
    delivery_attempt: int | None
    """How often the gateway has handed it out, this time included, as the ledger counts. ``null`` where the gateway
    does not know: where the broker holds the lease, and after a retry of a dead message that had used up
    ``max_deliveries``."""
    broker_delivery_count: int | None
    """How often the broker says that it was delivered before and given back (``x-delivery-count`` of quorum queues),
    when the gateway took it; ``null`` where the broker does not count."""
    redelivered: bool
    """Whether it was handed out before, as the broker says or the gateway remembers."""
    resent: bool
    """Whether it may be a copy with the same id: it was published again after an unknown outcome, or the ledger was
    restored from a backup."""
    message: ReceivedMessage
    """The message itself."""


class PullResponse(Output, omit_defaults=False):
    """What was there."""

    messages: list[PulledMessage]
    """The messages; empty where there were none."""


AckIds = Annotated[list[str], Meta(min_length=1, max_length=10_000)]


class AckRequest(Input):
    """Which leases."""

    ack_ids: AckIds
    """The ``ack_id`` of each message, from the answer of ``:pull``."""


class ReleaseRequest(Input):
    """Which leases, and when their messages are handed out again."""

    ack_ids: AckIds
    """The ``ack_id`` of each message, from the answer of ``:pull``."""
    delay_seconds: Annotated[float, Meta(ge=0, le=604_800)] = 0
    """Hand the messages out again after this many seconds, a week at most. Needs ``lease = "ledger"``."""


class ModifyAckDeadlineRequest(Input):
    """Which leases, and how long from now they last."""

    ack_ids: AckIds
    """The ``ack_id`` of each message, from the answer of ``:pull``."""
    ack_deadline_seconds: Annotated[
        int, Meta(ge=0, le=43_200, extra_json_schema={"not": {"exclusiveMinimum": 0, "exclusiveMaximum": 10}})
    ]
    """How long the leases last from now. 0 gives the messages back; otherwise 10 to 600, or to 43,200 (12 hours) where
    the ledger holds the lease."""


class RejectRequest(Input):
    """Which leases, and why."""

    ack_ids: AckIds
    """The ``ack_id`` of each message, from the answer of ``:pull``."""
    reason: Annotated[str, Meta(max_length=500)] = ""
    """Why. The timeline shows it, and its first 200 characters are in the reserved header at the dead-letter
    destination."""
    discard: bool = False
    """Delete the messages, in place of dead-lettering them. They are recorded as ``discarded``."""


class AckResult(Output, omit_defaults=False):
    """What became of one lease."""

    ack_id: str
    """The ``ack_id`` from the request."""
    status: Literal["SUCCESS", "INVALID_ACK_ID", "LEASE_LOST", "FAILED"]
    """``SUCCESS``: done. ``INVALID_ACK_ID``: this subscription gave no such id. ``LEASE_LOST``: the lease had ended,
    and the message is handed out again. ``FAILED``: see ``problem``."""
    problem: Any = UNSET
    """Why it ``FAILED``, as a problem (RFC 9457). The lease goes on."""


class AckResults(Output, omit_defaults=False):
    """One result per ack id, in order."""

    results: list[AckResult]
    """The results, in the order of the ack ids."""


# ------------------------------------------------------------------------------------------------ bridges


class Bridge(Output, omit_defaults=False):
    """A bridge and how things stand. Its counts begin at zero with each start of the gateway."""

    name: str
    """Name of the bridge."""
    state: Literal["starting", "running", "paused", "draining", "error", "stopped"]
    """How the bridge stands. After ``error`` it goes on when the cause is gone."""
    reason: str
    """Why it does not run; empty: it does."""
    since: str
    """When the state last changed, RFC 3339."""
    read_only: bool
    """Whether the configuration file defines it. Then the API cannot change it."""
    settings: BridgeSettings
    """The settings, as a ``PUT`` and the configuration file have them."""
    source_version: str
    """The AMQP version spoken with the source; empty before the first connection."""
    target_version: str
    """The AMQP version spoken with the target; empty before the first connection."""
    taken: int
    """Messages that came from the source, redeliveries included."""
    forwarded: int
    """Messages that the target has confirmed and the ledger has recorded."""
    dead_lettered: int
    """Messages that the bridge sent to its dead-letter destination."""
    duplicates_dropped: int
    """Redeliveries of messages that were forwarded before."""
    filtered: int
    """Messages that the selector did not want."""
    looped: int
    """Messages that were stopped because they had passed this bridge before, or too many bridges."""
    resent: int
    """Messages that were published although the target may have them already. Each is marked."""
    oversized: int
    """Messages over the source's ``message_max``, which were not read."""
    losses: dict[str, int]
    """How many messages were forwarded with each loss, by the name of the loss."""
    in_flight: int
    """Messages taken and not settled yet."""
    octets: int
    """Bytes of the bodies of the messages in flight."""
    rate: float
    """Messages forwarded per second, over the last 5 seconds."""
    lag: float | None
    """Seconds from the arrival of a message to its acknowledgement, as the median of the last messages; ``null``: there
    were none."""
    source_messages: int | None
    """Messages in the source's queue; ``null`` while that is not known."""
    last_error: str
    """The last error, even if it is over; empty: there was none."""


class Tap(Output, omit_defaults=False):
    """A tap and how things stand. Its counts begin at zero with each start of the gateway."""

    name: str
    """Name of the tap."""
    state: Literal["starting", "running", "paused", "full", "error", "stopped"]
    """How the tap stands. After ``full`` and ``error`` it goes on when the cause is gone."""
    reason: str
    """Why it does not run; empty: it does."""
    since: str
    """When the state last changed, RFC 3339."""
    read_only: bool
    """Whether the configuration file defines it. Then the API cannot change it."""
    settings: TapSettings
    """The settings, as a ``PUT`` and the configuration file have them."""
    queue: Any
    """The queue that is consumed: a string, or a ``binary`` object."""
    version: str
    """The AMQP version spoken; empty before the first connection."""
    taken: int
    """Messages that came from the queue, redeliveries included."""
    spooled: int
    """Messages that are in the log, and acknowledged."""
    redelivered: int
    """Messages in the log that are marked as redelivered: they may be there twice."""
    duplicates_dropped: int
    """Redeliveries of messages that are in the log."""
    dead_lettered: int
    """Messages that the ledger cannot hold, and that went to the dead-letter destination."""
    oversized: int
    """Messages over the broker's ``message_max``, which were not read."""
    octets: int
    """Bytes of the bodies in the log."""
    in_flight: int
    """Messages taken and not settled yet."""
    depth: int | None
    """How many messages the queue held when the tap began, with ``until = "depth"``."""
    left: int | None
    """How many of these messages it has still to take."""
    rate: float
    """Messages written to the log per second, over the last 5 seconds."""
    source_messages: int | None
    """Messages in the queue; ``null`` while that is not known."""
    last_error: str
    """The last error, even if it is over; empty: there was none."""


class Taps(Output, omit_defaults=False):
    """A page of taps."""

    taps: list[Tap]
    """The taps of this page."""


class Bridges(Output, omit_defaults=False):
    """A page of bridges."""

    bridges: list[Bridge]
    """The bridges of this page."""


class CompareRequest(Input):
    """What to compare."""

    since: Moment | None = None
    """Where the ledger's window begins; unless given, with its first event."""
    until: Moment | None = None
    """Where it ends; unless given, now."""
    peek: bool = False
    """Look into the queues, too."""
    limit: Annotated[int, Meta(ge=1, le=65_535)] = 10_000
    """Most messages of each queue to look at."""
    source_queue: Annotated[str, Meta(max_length=255)] = ""
    """The queue to look into at the source; unless given, the one that a mirror leaves its messages in."""
    target_queue: Annotated[str, Meta(max_length=255)] = ""
    """The queue to look into at the target; unless given, the one that the default exchange leads to."""


# ---------------------------------------------------------------------------------------------- endpoints


class SigningKey(Output, omit_defaults=False):
    """A key that signs requests."""

    id: str
    """Name of the key. Of a ``v1a`` key it is the ``kid`` at ``/.well-known/webhook-keys``."""
    scheme: str
    """Which signature of Standard Webhooks the key makes: ``v1`` (HMAC) or ``v1a`` (Ed25519)."""
    created_at: str
    """When the key was made, RFC 3339."""
    until: str | None
    """When it stops signing, RFC 3339; ``null``: when it is replaced, or when the rotation is finished."""
    old: bool
    """Whether there is a newer key."""
    public_key: str | None
    """The public key of a ``v1a`` key, ``whpk_…``; ``null``: it is a ``v1`` key."""
    secret: str | UnsetType = UNSET
    """The secret of a ``v1`` key, ``whsec_…``, for the receiver. It is only in the answer in which the key was made."""


class Endpoint(Output, omit_defaults=False):
    """Where messages are pushed to."""

    name: str
    """Name of the endpoint."""
    state: Literal["active", "error", "paused", "disabled", "unverified"]
    """``active``: it gets messages. ``error``: the last request to it failed, and messages wait for it, as far as this
    process knows. ``paused``: until it is resumed. ``disabled``: it answered 410, or its secrets cannot be read.
    ``unverified``: it has not allowed the gateway to call it."""
    reason: str
    """Why it is not active; empty: it is."""
    pending: int | None
    """Messages that wait for it in the ledger; ``null``: this process does not push to it, or, in lists, nothing holds
    it up."""
    read_only: bool
    """Whether the configuration file defines it. Then the API cannot change it."""
    settings: EndpointSettings
    """The settings, as a ``PUT`` and the configuration file have them, with an empty text in place of each secret."""
    secrets: list[str]
    """Which settings have a secret that is kept: ``auth.secret``, ``tls.key``, ``headers.NAME``."""
    signing_keys: list[SigningKey]
    """The keys that sign requests, the newest first."""
    verified_at: str | None
    """When it allowed the gateway to call it (``handshake``); ``null``: it has not."""
    allowed_rate: float
    """Most requests per second that it allowed then; 0: any number."""


class Endpoints(Output, omit_defaults=False):
    """A page of endpoints."""

    endpoints: list[Endpoint]
    """The endpoints of this page."""


class RotateRequest(Input):
    """Which keys are replaced, and how long the old ones sign beside them."""

    schemes: Annotated[list[Literal["v1", "v1a"]], Meta(max_length=2)] = []
    """Which keys to replace. Unless given: all that the endpoint signs with."""
    overlap_seconds: Annotated[float, Meta(ge=0, le=31_536_000)] | None = 86_400.0
    """How long the old keys sign beside the new ones; ``null``: until ``finish``."""
    finish: bool = False
    """Make no new key, and remove the old ones now."""


class TestResult(Output, omit_defaults=False):
    """What the endpoint said to a message that was marked as a test."""

    id: str
    """The header ``webhook-id`` of the request."""
    delivered: bool
    """Whether the answer was a success."""
    status: int | None
    """Status of the answer; ``null``: there was no answer."""
    verdict: str
    """What the answer would mean for a message: ``delivered``, ``retry``, ``pause``, ``disable`` …"""
    reason: str
    """Why the test failed, in a sentence; empty: it did not."""
    retry_after: str | None
    """The header ``Retry-After`` of the answer; ``null``: it had none."""
    content_type: str | None
    """The header ``Content-Type`` of the answer; ``null``: it had none."""
    body: str
    """The first 16 kB of the answer."""
    body_encoding: Literal["string", "base64"]
    """``base64`` where the body is not UTF-8."""
    truncated: bool
    """Whether the answer was longer than ``body``."""
    seconds: float
    """How long the request took, in seconds."""
    problem: Any = UNSET
    """Why there is no answer, as a problem (RFC 9457)."""


# ------------------------------------------------------------------------------------------------ brokers


class Broker(Output, omit_defaults=False):
    """A named broker and the state of its links."""

    name: str
    """Name of the broker."""
    state: str
    """``connecting``, ``up``, ``blocked``, ``down``, ``failed`` or ``closed``."""
    reason: str
    """Why it is not up; empty: it is."""
    code: str
    """Code of the problem that keeps it from being up, such as `certificate_refused`; empty: it is up, or was a moment
    ago."""
    version: str | None
    """The AMQP version that was negotiated last; ``null`` before the first connection."""
    product: str
    """Name of the broker's product, as it says; empty before the first connection."""
    product_version: str
    """Version of the product, as the broker says; empty before the first connection."""
    host: str
    """Host that the gateway connects to."""
    port: int
    """Port that the gateway connects to."""
    virtual_host: str
    """Virtual host that the gateway uses."""
    since: str
    """When the state last changed, RFC 3339."""
    publishing: bool
    """Whether the gateway can publish now."""
    consuming: bool
    """Whether the gateway can consume now."""
    pending: int
    """Publishes that the broker has not answered."""
    leases: int
    """Messages that are out to consumers and held by the broker."""
    message_max: int
    """Most bytes of the body of a message, to the broker or from it."""
    found: str
    """The version that ``version=auto`` found; empty: it has not looked."""
    alert: str
    """The last warning of the broker (channel.alert of 0-8); empty: there was none."""
    capabilities: dict[str, Any] | None
    """What the broker can do, by name; ``null`` before the first connection."""
    read_only: bool = False
    """Whether the configuration defines it, so that it can be changed only there."""
    settings: BrokerSettings | UnsetType = UNSET
    """The settings, with an empty text in place of each secret. Only callers with ``admin`` get it."""
    secrets: list[str] | UnsetType = UNSET
    """Which secrets are set: ``password``, ``tls.key``. Only callers with ``admin`` get it."""


class Brokers(Output, omit_defaults=False):
    """A page of brokers."""

    brokers: list[Broker]
    """The brokers of this page."""


class ProbeAttempt(Output, omit_defaults=False):
    """One version tried."""

    version: str
    """The AMQP version."""
    speaks: bool
    """Whether the broker speaks this version."""
    product: str
    """Name of the broker's product, as it says in this version."""
    product_version: str
    """Version of the product, as the broker says."""
    mechanisms: list[str]
    """SASL mechanisms that the broker offers in this version."""
    reason: str
    """Why the attempt failed; empty: it did not."""
    supported: str | None
    """The version that the broker asked for instead; ``null``: it did not say."""
    capabilities: dict[str, Any] | None
    """What the broker can do in this version; ``null``: it did not say."""
    seconds: float
    """How long the attempt took, in seconds."""


class ProbeResult(Output, omit_defaults=False):
    """What the far end really speaks."""

    host: str
    """Host that was tried."""
    port: int
    """Port that was tried."""
    versions: list[str]
    """AMQP versions that the broker speaks."""
    attempts: list[ProbeAttempt]
    """One attempt for each version."""


# ----------------------------------------------------------------------------------------------- topology


class QueueSettings(Input):
    """How to declare a queue."""

    durable: bool = True
    """Whether the queue survives a restart of the broker."""
    auto_delete: bool = False
    """Whether the broker deletes the queue when its last consumer leaves."""
    arguments: dict[str, Any] = {}
    """Arguments of the declaration, such as ``x-queue-type`` or ``x-message-ttl``; typed like the headers of a
    message."""


class Queue(Output, omit_defaults=False):
    """A queue as the broker describes it; ``null`` is what its version does not tell and we did not declare."""

    broker: str
    """Name of the broker."""
    name: Any
    """Name of the queue. A string; a ``binary`` object where it is not UTF-8."""
    durable: bool | None
    """Whether the queue survives a restart of the broker."""
    auto_delete: bool | None
    """Whether the broker deletes the queue when its last consumer leaves."""
    messages: int
    """Messages that are ready to be taken."""
    consumers: int
    """Consumers of the queue."""
    arguments: Any
    """Arguments of the declaration."""
    settings: Any
    """``durable``, ``auto_delete`` and ``arguments`` once more, as the list of queues and a ``PUT`` have them."""


class ExchangeSettings(Input):
    """How to declare an exchange."""

    type: Annotated[str, Meta(max_length=255, pattern=EXCHANGE_TYPE)] = "direct"
    """``direct``, ``fanout``, ``topic`` or ``headers``; ``xml`` and ``system``, where the broker has them; ``x-…``: one
    of its own."""
    durable: bool = True
    """Whether the exchange survives a restart of the broker."""
    auto_delete: bool = False
    """Whether the broker deletes the exchange when its last binding goes."""
    internal: bool = False
    """Whether only other exchanges may publish to it."""
    arguments: dict[str, Any] = {}
    """Arguments of the declaration, such as ``alternate-exchange``; typed like the headers of a message."""


class Exchange(Output, omit_defaults=False):
    """An exchange as the broker describes it; ``null`` is what its version does not tell and we did not declare."""

    broker: str
    """Name of the broker."""
    name: Any
    """Name of the exchange. A string; a ``binary`` object where it is not UTF-8."""
    type: str | None
    """Type of the exchange: ``direct``, ``fanout``, ``topic``, ``headers``, or one of the broker's own."""
    durable: bool | None
    """Whether the exchange survives a restart of the broker."""
    auto_delete: bool | None
    """Whether the broker deletes the exchange when its last binding goes."""
    internal: bool | None
    """Whether only other exchanges may publish to it."""
    arguments: Any
    """Arguments of the declaration."""
    settings: Any
    """`type`, `durable`, `auto_delete`, `internal` and `arguments` once more, as the list of exchanges and a `PUT` have
    them."""


class BindingSettings(Input):
    """A binding from ``exchange`` to ``queue``, or to the exchange ``destination``."""

    exchange: str
    """The exchange that messages come from."""
    queue: str | None = None
    """The queue that messages go to. Give either ``queue`` or ``destination``."""
    destination: str | None = None
    """The exchange that messages go to, in place of a queue."""
    binding_key: str | Binary | UnsetType = UNSET
    """The key that the binding matches. Unless given: the empty one."""
    routing_key: Annotated[str | Binary, OLD_NAME] | UnsetType = UNSET
    """Old name of ``binding_key``."""
    arguments: dict[str, Any] = {}
    """Arguments of the binding, such as the headers that a ``headers`` exchange compares."""

    def __post_init__(self) -> None:
        """Only one of the names may be given."""
        only_one(self, "routing_key", "binding_key")

    @property
    def key(self) -> tuple[str, str | Binary]:
        """The name that was given, and the key."""
        if self.routing_key is not UNSET:
            return "routing_key", self.routing_key
        return "binding_key", "" if self.binding_key is UNSET else self.binding_key


class Binding(Output, omit_defaults=False):
    """A binding that was made through the gateway."""

    broker: str
    """Name of the broker."""
    exchange: Any
    """The exchange that messages come from. A string; a ``binary`` object where it is not UTF-8."""
    queue: Any
    """The queue that messages go to; ``null``: they go to an exchange."""
    destination: Any
    """The exchange that messages go to; ``null``: they go to a queue."""
    binding_key: Any
    """The key that the binding matches."""
    routing_key: Any
    """The same, by its old name."""
    arguments: Any
    """Arguments of the binding."""


class Known(Output, omit_defaults=False):
    """A queue or exchange that was declared through the gateway (AMQP has no way to list them)."""

    name: Any
    """Its name. A string; a ``binary`` object where it is not UTF-8."""
    settings: Any
    """How it was declared."""


class Queues(Output, omit_defaults=False):
    """A page of the queues that were declared through the gateway."""

    queues: list[Known]
    """The queues of this page."""


class InventoryQueue(Output, omit_defaults=False):
    """A queue of any broker; ``null`` is what is not known."""

    broker: str
    """Name of the broker."""
    name: Any
    """Name of the queue. A string; a ``binary`` object where it is not UTF-8."""
    vhost: str
    """Virtual host of the queue: that of the broker's URL."""
    depth: int | None
    """Messages in the queue, those that are out for an acknowledgement included."""
    ready: int | None
    """Messages that wait for a consumer."""
    unacknowledged: int | None
    """Messages that are out for an acknowledgement."""
    bytes: int | None
    """Size of the bodies of its messages, in bytes."""
    consumers: int | None
    """Consumers of the queue."""
    publish_rate: float | None
    """Messages that come in per second."""
    deliver_rate: float | None
    """Messages that go out per second, also those that are fetched."""
    ack_rate: float | None
    """Acknowledgements per second."""
    state: str | None
    """State of the queue, in the broker's own word."""
    type: str | None
    """Type of the queue, in the broker's own word."""
    durable: bool | None
    """Whether the queue survives a restart of the broker."""
    auto_delete: bool | None
    """Whether the broker deletes the queue when its last consumer leaves."""
    exclusive: bool | None
    """Whether only one connection may use the queue."""
    dead_letters: bool | None
    """Whether messages that the queue drops or rejects go somewhere."""
    dead_letter_exchange: Any
    """The exchange they go to; of Broker-J the destination of the alternate binding, a queue or an exchange."""
    dead_letter_routing_key: Any
    """Their routing key then; ``null``: it is not known, or they keep theirs."""


class InventoryBroker(Output, omit_defaults=False):
    """Where the queues of a broker come from."""

    name: str
    """Name of the broker."""
    source: str
    """``management``: all queues, by the management API. ``amqp``: those that the gateway knows, and what AMQP tells of
    them. ``embedded``: all queues of the embedded broker."""
    partial: bool
    """Whether queues or figures may be missing, or are old."""
    reason: str
    """Why, as a sentence; empty: the list is complete."""
    as_of: str | None
    """When the queues were read, RFC 3339, UTC; ``null``: they have not been read yet."""
    queues: int
    """How many of them fit the search."""


class QueueInventory(Output, omit_defaults=False):
    """A page of the queues of all brokers."""

    queues: list[InventoryQueue]
    """The queues of this page."""
    total: int
    """How many queues fit the search, on all pages."""
    brokers: list[InventoryBroker]
    """The brokers whose queues the caller may see, all or some of them."""


class Exchanges(Output, omit_defaults=False):
    """A page of the exchanges that were declared through the gateway."""

    exchanges: list[Known]
    """The exchanges of this page."""


class Bindings(Output, omit_defaults=False):
    """A page of the bindings that were made through the gateway."""

    bindings: list[Binding]
    """The bindings of this page."""


class RemovedMessages(Output, omit_defaults=False):
    """How many messages went; ``null`` where the version does not tell."""

    messages: int | None
    """How many messages were removed."""


# ----------------------------------------------------------------------------------------------- timeline


class MessageEvent(Output, omit_defaults=False):
    """One thing that happened to a message."""

    shard: int
    """Shard of the history that holds the event."""
    sequence: int
    """Number of the event within the shard, without gaps."""
    at: str
    """When it happened, RFC 3339, UTC."""
    kind: str
    """What happened, in one stable word, such as ``accepted`` or ``confirmed``."""
    broker: str
    """Name of the broker where it happened; empty: at none."""
    version: str
    """AMQP version that was spoken there; empty: none."""
    detail: dict[str, Any]
    """More about it, such as reply code and text, subscription or attempt."""


class MessageSummary(Output, omit_defaults=False):
    """A message, without its events."""

    id: str
    """The gateway's id of the message."""
    state: str
    """The state that the message is in, such as ``confirmed`` or ``acknowledged``."""
    broker: str
    """Name of the broker that the message was published to, or came from."""
    version: str
    """AMQP version that was spoken with the broker."""
    exchange: Any
    """The exchange. A string; a ``binary`` object where it is not UTF-8."""
    routing_key: Any
    """The routing key. A string; a ``binary`` object where it is not UTF-8."""
    at: str
    """When the gateway first saw the message, RFC 3339."""
    origin: str
    """Where the message came from. ``http``: published here. ``front``: published at a front. ``broker``: first seen
    when it was pulled. ``bridge`` and ``replay``: one of them published it."""
    client: str
    """The name of the API key that published it, or ``front:FRONT/USER``."""
    size: int
    """Bytes of the body."""
    sha256: str
    """SHA-256 of the body, in hex. Empty without `admin`: its reader could find a short body by trying."""
    properties: dict[str, Any]
    """The AMQP properties that the ledger keeps."""


class Messages(Output, omit_defaults=False):
    """A page of messages, the newest first."""

    messages: list[MessageSummary]
    """The messages of this page."""
    reached: str | None = None
    """How far back the page has looked, RFC 3339: the next page goes on there; ``null``: there is none."""


# ---------------------------------------------------------------------------------------- query parameters


class PageQuery(Input):
    """Paging."""

    limit: Annotated[int, Meta(ge=1, le=1000, description="Most items on a page.")] = 100
    cursor: Annotated[str, Meta(max_length=1000, description="From the link `rel=next` of the page before.")] = ""


class InventoryQuery(PageQuery):
    """Search, order and paging of queues."""

    search: Annotated[
        str, Meta(max_length=255, description="Only queues with this text in their name, in any case.")
    ] = ""
    broker: Annotated[str, Meta(description="Only queues of this broker.")] = ""
    sort: Annotated[
        Literal[
            "name", "-name", "depth", "-depth", "ready", "-ready", "unacknowledged", "-unacknowledged", "consumers",
            "-consumers", "bytes", "-bytes", "publish_rate", "-publish_rate", "deliver_rate", "-deliver_rate",
            "ack_rate", "-ack_rate",
        ],
        Meta(description="What the queues are sorted by; `-`: the greatest first. What is not known comes last."),
    ] = "name"  # fmt: skip


class ScheduledQuery(PageQuery):
    """Paging and filters."""

    broker: Annotated[str, Meta(description="Only messages for this broker.")] = ""
    state: Annotated[
        Literal["", "scheduled", "refused"],
        Meta(description="`scheduled`: messages to be published; `refused`: messages that the broker did not take."),
    ] = ""


class PublishQuery(Input):
    """For a raw body and CloudEvents."""

    routing_key: Annotated[str, Meta(description="Routing key, for a raw body and CloudEvents.")] = ""
    mandatory: (
        Annotated[
            bool,
            Meta(description="As `mandatory` of a message, for a raw body and CloudEvents. Unless given: `true`."),
        ]
        | UnsetType
    ) = UNSET
    not_before: Annotated[str, Meta(description="As `not_before` of a message, for a raw body and CloudEvents.")] = ""
    delay_seconds: (
        Annotated[
            float,
            Meta(ge=0, le=YEAR, description="As `delay_seconds` of a message, for a raw body and CloudEvents."),
        ]
        | None
    ) = None
    raw: Annotated[bool, Meta(description="Treat the body as the payload, even if its Content-Type is JSON.")] = False


class DeleteQueueQuery(Input):
    """Conditions."""

    if_unused: Annotated[bool, Meta(description="Delete it only if it has no consumers.")] = False
    if_empty: Annotated[bool, Meta(description="Delete it only if it has no messages.")] = False


class DeleteExchangeQuery(Input):
    """Conditions."""

    if_unused: Annotated[bool, Meta(description="Delete it only if it has no bindings.")] = False


class BindingQuery(Input):
    """Which binding."""

    exchange: Annotated[str, Meta(description="`amq.default` is the default exchange.")]
    queue: Annotated[str, Meta(description="The queue that it leads to.")] = ""
    destination: Annotated[str, Meta(description="The exchange that it leads to, in place of a queue.")] = ""
    binding_key: (
        Annotated[str, Meta(description="The key it was made with. Unless given: the empty one.")] | UnsetType
    ) = UNSET
    routing_key: Annotated[str, OLD_NAME] | UnsetType = UNSET
    """Old name of ``binding_key``."""
    arguments: Annotated[str, Meta(description="The arguments it was made with, as a JSON object.")] = "{}"

    def __post_init__(self) -> None:
        """Only one of the names may be given."""
        only_one(self, "routing_key", "binding_key")


SubscriptionBody = SubscriptionSettings
"""The body of a PUT is the table of the configuration file."""

BridgeBody = BridgeSettings
"""As above, for a bridge."""
TapBody = TapSettings
"""As above, for a tap."""

EndpointBody = EndpointSettings
"""As above, for an endpoint."""
BrokerBody = BrokerSettings
"""As above, for a broker."""
