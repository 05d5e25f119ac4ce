"""The JSON of the API, as structs: what is decoded is what is documented.

A field's string is its description in the OpenAPI document. Input structs refuse unknown fields, so that a
misspelt name is an error and not a silence.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.config import SubscriptionSettings


class Input(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of what is sent to us."""


class Output(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Base of what we answer."""


# --------------------------------------------------------------------------------------------- messages


class Binary(msgspec.Struct, tag_field="type", tag="binary", forbid_unknown_fields=True):
    """A text whose octets are not UTF-8."""

    value: str
    """The octets in base64."""


class Address(msgspec.Struct, tag_field="type", tag="address", forbid_unknown_fields=True):
    """A reply-to that names an exchange (0-10). A plain reply-to is the routing key of the default exchange."""

    exchange: str | Binary = ""
    routing_key: str | Binary = ""


class MessageProperties(Input, omit_defaults=True):
    """The AMQP properties of a message; what is absent is not set."""

    content_type: str | Binary | None = None
    content_encoding: str | Binary | None = None
    delivery_mode: (
        Annotated[int, Meta(ge=1, le=2, description="1 transient, 2 persistent. Unless given: 2.")] | None
    ) = None
    priority: Annotated[int, Meta(ge=0, le=255)] | None = None
    correlation_id: str | Binary | None = None
    reply_to: str | Binary | Address | None = None
    expiration: Annotated[str, Meta(description="Time to live in milliseconds, as decimal digits.")] | Binary | None = (
        None
    )
    message_id: str | Binary | None = None
    timestamp: Annotated[int, Meta(ge=0, description="Seconds since 1970.")] | None = None
    type: str | Binary | None = None
    user_id: str | Binary | None = None
    app_id: str | Binary | None = None
    cluster_id: str | Binary | None = None


class PublishMessage(Input):
    """One message to publish."""

    routing_key: str | Binary = ""
    payload: str = ""
    payload_encoding: Literal["string", "base64"] = "string"
    properties: MessageProperties | UnsetType = UNSET
    headers: dict[str, Any] = {}
    """AMQP headers. Plain JSON for the plain types, ``{"type": "int8", "value": 3}`` for the rest."""
    mandatory: bool = False
    """Whether a message that no queue takes is an error (422 ``unroutable``)."""


class PublishRequest(PublishMessage):
    """One message; or, in ``messages`` and then alone, a batch."""

    messages: list[PublishMessage] | UnsetType = UNSET


class RawBatch(Input):
    """A batch of which at least one message has the wrong shape: each is looked at by itself."""

    messages: list[msgspec.Raw]


class Published(Output):
    """The broker confirmed the message."""

    id: str
    """The gateway's id of the message."""
    status: Literal["confirmed"]
    routed: bool
    """Whether a queue took it."""
    durable: bool
    """Whether it survives a restart of the broker, as far as is known."""
    resent: bool = False
    """It was sent again after an unknown outcome: consumers may see it twice, with the same id."""


class BatchResult(Output):
    """What became of one message of a batch or stream."""

    status: int
    """The status that the message alone would have been answered with."""
    id: str = ""
    routed: bool | UnsetType = UNSET
    durable: bool | UnsetType = UNSET
    resent: bool = False
    problem: Any = UNSET
    """The problem (RFC 9457), where the status is not 200."""


class BatchResults(Output):
    """One result per message, in order."""

    results: list[BatchResult]


class ReceivedMessage(Output, omit_defaults=False):
    """A message as it came from a queue."""

    id: str
    exchange: Any
    """A string, or a ``binary`` object."""
    routing_key: Any
    """A string, or a ``binary`` object."""
    payload: str
    payload_encoding: Literal["string", "base64"]
    """``base64`` where the payload is not UTF-8."""
    properties: MessageProperties
    headers: Any
    undecodable_properties: str | UnsetType = UNSET
    """Base64 of octets that the broker sent as properties and that are none."""


# ------------------------------------------------------------------------------------------ subscriptions


class Subscription(Output, omit_defaults=False):
    """A queue made available to consumers."""

    name: str
    broker: str
    queue: str
    lease: str
    ack_deadline_seconds: int
    dead_letter_exchange: str
    dead_letter_routing_key: str
    read_only: bool
    """Defined by the configuration file."""
    leases: int
    """Messages that are out."""


class Subscriptions(Output, omit_defaults=False):
    """A page of subscriptions."""

    subscriptions: list[Subscription]


class PullRequest(Input):
    """How much to pull, and how long to wait for it."""

    max_messages: Annotated[int, Meta(ge=1, le=1000)] = 10
    wait: Annotated[float, Meta(ge=0, le=60)] = 0
    """Seconds to wait for the first message (long poll)."""
    ack_deadline_seconds: Annotated[int, Meta(ge=10, le=600)] | None = None
    """How long each message is leased; unless given, as the subscription says."""


class PulledMessage(Output, omit_defaults=False):
    """A message and its lease."""

    ack_id: str
    delivery_attempt: int
    """Counted by the broker where it counts; else 1, or 2 for "at least the second"."""
    redelivered: bool
    """It was handed over before, as the broker says, or as the gateway remembers."""
    resent: bool
    """It was published again after an unknown outcome: it may be there twice, with the same id."""
    message: ReceivedMessage


class PullResponse(Output, omit_defaults=False):
    """What was there."""

    messages: list[PulledMessage]


AckIds = Annotated[list[str], Meta(min_length=1, max_length=10_000)]


class AckRequest(Input):
    """Which leases."""

    ack_ids: AckIds


class ModifyAckDeadlineRequest(Input):
    """Which leases, and how long from now they last."""

    ack_ids: AckIds
    ack_deadline_seconds: Annotated[int, Meta(ge=0, le=600)]
    """0 gives the messages back; else 10 to 600."""


class RejectRequest(Input):
    """Which leases, and why."""

    ack_ids: AckIds
    reason: Annotated[str, Meta(max_length=500)] = ""
    """For the timeline."""


class AckResult(Output, omit_defaults=False):
    """What became of one lease."""

    ack_id: str
    status: Literal["SUCCESS", "INVALID_ACK_ID", "LEASE_LOST", "FAILED"]
    problem: Any = UNSET
    """With FAILED: why. The lease goes on."""


class AckResults(Output, omit_defaults=False):
    """One result per ack id, in order."""

    results: list[AckResult]


# ------------------------------------------------------------------------------------------------ brokers


class Broker(Output, omit_defaults=False):
    """A named broker and the state of its links."""

    name: str
    state: str
    """connecting, up, blocked, down, failed or closed."""
    reason: str
    version: str | None
    """As negotiated last."""
    product: str
    product_version: str
    host: str
    port: int
    virtual_host: str
    since: str
    """When the state last changed."""
    publishing: bool
    consuming: bool
    pending: int
    """Publishes without an outcome."""
    leases: int
    found: str
    """What ``version=auto`` found."""
    capabilities: dict[str, Any] | None


class Brokers(Output, omit_defaults=False):
    """A page of brokers."""

    brokers: list[Broker]


class ProbeAttempt(Output, omit_defaults=False):
    """One version tried."""

    version: str
    speaks: bool
    product: str
    product_version: str
    mechanisms: list[str]
    reason: str
    supported: str | None
    """What the far end asked for instead."""
    capabilities: dict[str, Any] | None
    seconds: float


class ProbeResult(Output, omit_defaults=False):
    """What the far end really speaks."""

    host: str
    port: int
    versions: list[str]
    attempts: list[ProbeAttempt]


# ----------------------------------------------------------------------------------------------- topology


class QueueSettings(Input):
    """How to declare a queue."""

    durable: bool = True
    auto_delete: bool = False
    arguments: dict[str, Any] = {}


class Queue(Output, omit_defaults=False):
    """A queue as the broker describes it; ``null`` is what its version does not tell and we did not declare."""

    broker: str
    name: Any
    durable: bool | None
    auto_delete: bool | None
    messages: int
    consumers: int
    arguments: Any


class ExchangeSettings(Input):
    """How to declare an exchange."""

    type: Annotated[str, Meta(min_length=1, max_length=255)] = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, Any] = {}


class Exchange(Output, omit_defaults=False):
    """An exchange as the broker describes it; ``null`` is what its version does not tell and we did not declare."""

    broker: str
    name: Any
    type: str | None
    durable: bool | None
    auto_delete: bool | None
    internal: bool | None
    arguments: Any


class BindingSettings(Input):
    """A binding from ``exchange`` to ``queue``, or to the exchange ``destination``."""

    exchange: str
    queue: str | None = None
    destination: str | None = None
    routing_key: str | Binary = ""
    arguments: dict[str, Any] = {}


class Binding(Output, omit_defaults=False):
    """A binding that was made through the gateway."""

    broker: str
    exchange: Any
    queue: Any
    destination: Any
    routing_key: Any
    arguments: Any


class Known(Output, omit_defaults=False):
    """A queue or exchange that was declared through the gateway (AMQP has no way to list them)."""

    name: Any
    settings: Any


class Queues(Output, omit_defaults=False):
    """A page of the queues that were declared through the gateway."""

    queues: list[Known]


class Exchanges(Output, omit_defaults=False):
    """A page of the exchanges that were declared through the gateway."""

    exchanges: list[Known]


class Bindings(Output, omit_defaults=False):
    """A page of the bindings that were made through the gateway."""

    bindings: list[Binding]


class RemovedMessages(Output, omit_defaults=False):
    """How many messages went; ``null`` where the version does not tell."""

    messages: int | None


# ----------------------------------------------------------------------------------------------- timeline


class MessageEvent(Output, omit_defaults=False):
    """One thing that happened to a message."""

    shard: int
    sequence: int
    """Gapless within the shard."""
    at: str
    """RFC 3339, UTC."""
    kind: str
    broker: str
    version: str
    detail: dict[str, Any]
    """Reply code and text, subscription, attempt, ..."""


class MessageSummary(Output, omit_defaults=False):
    """A message, without its events. The body is not kept; its size and SHA-256 are."""

    id: str
    state: str
    broker: str
    version: str
    exchange: Any
    routing_key: Any
    at: str
    """When the gateway first heard of it."""
    origin: str
    """``http``: published here; ``broker``: first seen when it was pulled."""
    client: str
    """The name of the API key that published it."""
    size: int
    sha256: str
    properties: dict[str, Any]


class MessageTimeline(MessageSummary, omit_defaults=False):
    """Everything that is known of a message."""

    events: list[MessageEvent]


class Messages(Output, omit_defaults=False):
    """A page of messages, the newest first."""

    messages: list[MessageSummary]


# ---------------------------------------------------------------------------------------- query parameters


class PageQuery(Input):
    """Paging."""

    limit: Annotated[int, Meta(ge=1, le=1000, description="Most items of a page.")] = 100
    cursor: Annotated[str, Meta(max_length=1000, description="From the link `rel=next` of the page before.")] = ""


class MessagesQuery(PageQuery):
    """Paging and filters."""

    broker: Annotated[str, Meta(description="Only messages of this broker.")] = ""
    exchange: Annotated[str, Meta(description="Only of this exchange; `amq.default` is the default one.")] | None = None
    routing_key: Annotated[str, Meta(description="Only with this routing key.")] | None = None
    state: Annotated[str, Meta(description="Only messages in this state.")] = ""


class PublishQuery(Input):
    """For a raw body, CloudEvents and NDJSON."""

    routing_key: Annotated[str, Meta(description="Routing key, for a raw body and CloudEvents.")] = ""
    mandatory: Annotated[bool, Meta(description="As `mandatory` of a message, for a raw body and CloudEvents.")] = False


class DeleteQueueQuery(Input):
    """Conditions."""

    if_unused: Annotated[bool, Meta(description="Only without consumers.")] = False
    if_empty: Annotated[bool, Meta(description="Only without messages.")] = False


class DeleteExchangeQuery(Input):
    """Conditions."""

    if_unused: Annotated[bool, Meta(description="Only without bindings.")] = False


class BindingQuery(Input):
    """Which binding."""

    exchange: Annotated[str, Meta(description="`amq.default` is the default exchange.")]
    queue: Annotated[str, Meta(description="The queue it ends at.")] = ""
    destination: Annotated[str, Meta(description="Or the exchange it ends at.")] = ""
    routing_key: str = ""
    arguments: Annotated[str, Meta(description="The arguments it was made with, as a JSON object.")] = "{}"


SubscriptionBody = SubscriptionSettings
"""The body of a PUT is the table of the configuration file."""
