"""What spans and their attributes are called: the one table.

Names are those of OpenTelemetry's semantic conventions (:data:`SCHEMA`); those of messaging are still in development
there, so changes are made here. What the conventions have no word for begins with ``amqpgw.``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"
"""Which conventions."""


class SpanKind(IntEnum):
    """What a span is to those around it; numbers as in OTLP."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3
    PRODUCER = 4
    CONSUMER = 5


SYSTEM: Final = "messaging.system"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
SUBSCRIPTION: Final = "messaging.destination.subscription.name"
MESSAGE_ID: Final = "messaging.message.id"
CONVERSATION_ID: Final = "messaging.message.conversation_id"
BODY_SIZE: Final = "messaging.message.body.size"
BATCH_COUNT: Final = "messaging.batch.message_count"
ROUTING_KEY: Final = "messaging.rabbitmq.destination.routing_key"
DELIVERY_TAG: Final = "messaging.rabbitmq.message.delivery_tag"
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
PROTOCOL_NAME: Final = "network.protocol.name"
PROTOCOL_VERSION: Final = "network.protocol.version"
CLIENT_ADDRESS: Final = "client.address"
METHOD: Final = "http.request.method"
ROUTE: Final = "http.route"
STATUS: Final = "http.response.status_code"
RESEND_COUNT: Final = "http.request.resend_count"
URL_PATH: Final = "url.path"
URL_SCHEME: Final = "url.scheme"
BROKER: Final = "amqpgw.broker"
BRIDGE: Final = "amqpgw.bridge"
ENDPOINT: Final = "amqpgw.endpoint"
ATTEMPT: Final = "amqpgw.attempt"
REDELIVERED: Final = "amqpgw.redelivered"
TARGET: Final = "amqpgw.target.broker"
TARGET_DESTINATION: Final = "amqpgw.target.destination"

ATTRIBUTES: Final[Mapping[str, str]] = {
    SYSTEM: "`rabbitmq` where the broker says that it is RabbitMQ, else `amqp`",
    OPERATION: "the word of the specification for what is done: `publish`, `deliver`, `ack` …",
    OPERATION_TYPE: "`create`, `send`, `receive`, `process` or `settle`",
    DESTINATION: "who sends: `{exchange}:{routing key}`; who receives: `{exchange}:{routing key}:{queue}`; empty parts "
    "and a queue that is called as its key are left out; `amq.default` where nothing is left",
    SUBSCRIPTION: "the subscription",
    MESSAGE_ID: "the gateway's id of the message, which `gateway why` takes",
    CONVERSATION_ID: "the property `correlation_id`",
    BODY_SIZE: "octets of the body",
    BATCH_COUNT: "messages, where a span is about several",
    ROUTING_KEY: "the routing key",
    DELIVERY_TAG: "the delivery's number on its channel",
    ERROR_TYPE: "the code of the error, or the status",
    SERVER_ADDRESS: "host of the broker, of the endpoint",
    SERVER_PORT: "its port",
    PROTOCOL_NAME: "`amqp`",
    PROTOCOL_VERSION: "`0-8`, `0-9-1` or `0-10`",
    CLIENT_ADDRESS: "who called",
    METHOD: "method of the request",
    ROUTE: "the route, as in the OpenAPI document",
    STATUS: "status of the answer",
    RESEND_COUNT: "1 where the request went out twice",
    URL_PATH: "path of the request, without its query",
    URL_SCHEME: "`http` or `https`",
    BROKER: "the broker's name in the configuration",
    BRIDGE: "the bridge",
    ENDPOINT: "the endpoint",
    ATTEMPT: "which attempt it was, from 1",
    REDELIVERED: "the message may have been delivered before",
    TARGET: "name of the broker that a bridge forwards to",
    TARGET_DESTINATION: "where a bridge publishes there",
}
"""Attribute -> what it says. No span has any other."""


@dataclass(frozen=True, slots=True)
class SpanRow:
    """One kind of span."""

    name: str
    """The first word of its name; behind it stand exchange or queue."""
    type: str
    """``messaging.operation.type``; empty: it is about HTTP."""
    kind: SpanKind
    about: str
    parent: str


REQUEST: Final = SpanRow(
    "{method}",
    "",
    SpanKind.SERVER,
    "a request of the API, up to the last octet of its answer",
    "the caller's `traceparent`",
)
PUBLISH: Final = SpanRow(
    "publish", "send", SpanKind.PRODUCER, "a publish over HTTP, up to the broker's confirm and the ledger's commit",
    "the request",
)  # fmt: skip
SCHEDULE: Final = SpanRow(
    "schedule", "create", SpanKind.PRODUCER, "a message that the ledger takes for later", "the request"
)
PUBLISH_LATER: Final = SpanRow(
    "publish", "send", SpanKind.CLIENT, "the publish of what was scheduled", "the message's context"
)
DELIVER: Final = SpanRow(
    "deliver", "receive", SpanKind.CLIENT, "a message that a pull or a stream hands out",
    "the message's context; linked to the request",
)  # fmt: skip
PROCESS: Final = SpanRow(
    "process", "process", SpanKind.CONSUMER, "an attempt to push a message to its endpoint",
    "the message's context; of several messages: linked to each",
)  # fmt: skip
POST: Final = SpanRow("POST", "", SpanKind.CLIENT, "the request to the endpoint", "`process`")
FORWARD: Final = SpanRow(
    "forward", "process", SpanKind.CONSUMER, "a message on its way through a bridge, from its arrival to its "
    "acknowledgement", "the message's context",
)  # fmt: skip
BRIDGE_PUBLISH: Final = SpanRow(
    "publish", "send", SpanKind.CLIENT, "the bridge's publish, up to the confirm of its target", "`forward`"
)
ACK: Final = SpanRow("ack", "settle", SpanKind.CLIENT, "an acknowledgement", "`deliver`; linked to the request")
RELEASE: Final = SpanRow("release", "settle", SpanKind.CLIENT, "a message that is given back", "`deliver`, as above")
REJECT: Final = SpanRow("reject", "settle", SpanKind.CLIENT, "a message that is given up", "`deliver`, as above")

SPANS: Final = (
    REQUEST, PUBLISH, SCHEDULE, PUBLISH_LATER, DELIVER, ACK, RELEASE, REJECT, PROCESS, POST, FORWARD, BRIDGE_PUBLISH,
)  # fmt: skip
"""Every span that there is."""


def sent_to(exchange: str, routing_key: str) -> str:
    """``messaging.destination.name`` of who sends."""
    return ":".join(part for part in (exchange, routing_key) if part) or "amq.default"


def received_from(exchange: str, routing_key: str, queue: str) -> str:
    """``messaging.destination.name`` of who receives."""
    parts = (exchange, routing_key, "" if queue == routing_key else queue)
    return ":".join(part for part in parts if part) or "amq.default"


def system_of(product: str) -> str:
    """``messaging.system`` of a broker's product. Nothing is registered for other brokers of AMQP."""
    return "rabbitmq" if product == "RabbitMQ" else "amqp"
