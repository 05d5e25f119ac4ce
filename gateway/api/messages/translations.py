"""``/v1/translations:explain``: what a message becomes in another version, field by field, without sending it."""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from gateway.amqp.message import Message
from gateway.api.about.schemas import Input, Output, PublishMessage
from gateway.api.http.auth import require
from gateway.api.http.call import Call, answer, invalid_value
from gateway.api.http.problems import ApiProblem
from gateway.api.http.routing import Route, Scope
from gateway.api.messages.messages_json import outgoing
from gateway.errors import BrokerUnavailable
from gateway.notation.messages import MessageProperties, properties_to_json, property_to_json
from gateway.notation.values import ValueProblem, table_to_json, value_to_json
from gateway.runtime.clock import wall_time
from gateway.translation import FieldReceipt, TranslationTarget, target_of
from gateway.versions import VERSION_NAMES, protocol_of, version_named

DIALECT_OF: Final = {"": None, "rabbitmq": "rabbitmq", "qpid": "qpid"}
"""Product in a request -> dialect of the classic versions."""
NAMES: Final = {"rabbitmq": "RabbitMQ", "qpid": "Broker-J"}
"""Product in a request -> its name."""


class ExplainRequest(Input):
    """A message, and where it goes: either ``to`` or ``broker``."""

    message: PublishMessage
    """The message, as it would be published."""
    source: str = msgspec.field(name="from", default="")
    """A version, or the name of a broker: the message is treated as coming from there."""
    to: Annotated[str, Meta(extra_json_schema={"enum": ["", *VERSION_NAMES]})] = ""
    """The version that the message goes to."""
    product: Literal["", "rabbitmq", "qpid"] = ""
    """The broker's product. Empty: RabbitMQ, or Broker-J for 0-10."""
    broker: str = ""
    """The broker that the message goes to, with the capabilities of its connection."""
    release_headers: Annotated[list[str], Meta(max_length=100)] = msgspec.field(default_factory=list)
    """Headers that brokers act upon, and that are passed on unchanged."""
    strip: bool = False
    """Leave the reserved header out."""


class FieldResult(Output):
    """What becomes of one field."""

    field: str
    """A property, or the path of a header: `headers/a/b`."""
    value: Any
    """The value in your message."""
    result: Literal["same", "mapped", "carried", "lost"]
    """`same`: as it was. `mapped`: another value or type, and the original is restored on the way back. `carried`: only
    in the reserved header, and restored on the way back. `lost`: not restored."""
    becomes: Any = None
    """The value that an application finds there; absent: nothing."""
    why: str = ""
    """Why it changes, in a sentence; absent: it does not."""


class LossResult(Output):
    """One thing that is lost."""

    name: str
    """A name of the table of losses (docs/reference/translation-losses.md)."""
    field: str
    """The property, or the path of the header."""
    detail: str
    """What is lost, in a sentence."""


class TranslatedMessage(Output):
    """The message as an application there finds it, with the reserved header."""

    payload: str
    """The body, as text or as base64: see ``payload_encoding``."""
    payload_encoding: Literal["string", "base64"]
    """``base64`` where the payload is not UTF-8."""
    properties: MessageProperties
    """The AMQP properties."""
    headers: dict[str, Any] | list[Any] = msgspec.field(default_factory=dict)
    """The AMQP headers."""


class Explained(Output):
    """What becomes of the message."""

    to: str
    """The version that the message goes to."""
    product: str
    """The dialect: ``rabbitmq``, ``qpid``, ``published``; ``other`` for a 0-10 that is not Broker-J's."""
    fields: list[FieldResult]
    """What becomes of each property and header."""
    losses: list[LossResult]
    """Everything that is lost. Empty: nothing is."""
    message: TranslatedMessage | None = None
    """The message there; absent where it cannot be sent."""


async def explain(call: Call) -> Response:
    """A dry run."""
    request = await call.json(ExplainRequest)
    target = _target(call, request)
    try:
        message = outgoing(request.message).message
    except ValueProblem as problem:
        raise invalid_value(problem.under("message")) from None
    if request.source:
        message = _from(call, request.source).there_and_back(message)
    found = target.explain(message, release=frozenset(request.release_headers), leave_out=request.strip)
    sent = request.message
    return answer(
        Explained(
            to=target.version.value,
            product=target.product,
            fields=[_field(item) for item in found.fields],
            losses=[LossResult(name=loss.name, field=loss.field, detail=loss.detail) for loss in found.losses],
            message=_message(found.message, sent) if found.message is not None else None,
        )
    )


def _target(call: Call, request: ExplainRequest) -> TranslationTarget:
    if request.to and request.to not in VERSION_NAMES:
        wrong = f"{request.to!r} is not one of {', '.join(VERSION_NAMES)}"
        raise ApiProblem("invalid_request", "to is no registered version", errors=[("/to", wrong)])
    if bool(request.to) == bool(request.broker):
        raise ApiProblem("invalid_request", "either to or broker says where the message goes", errors=[("/to", "one")])
    if request.broker:
        return _of_broker(call, request.broker)
    return _of_version(request.to, request.product)


def _from(call: Call, source: str) -> TranslationTarget:
    return _of_version(source, "") if source in VERSION_NAMES else _of_broker(call, source)


def _of_broker(call: Call, name: str) -> TranslationTarget:
    require(call.principal, Scope.BROKER_SEEN, {"broker": name})  # before it is told whether it is there, and where
    upstream = call.gateway.broker(name)
    if upstream.target is None:
        raise BrokerUnavailable(f"broker {name}: {upstream.reason}; what it can carry is known once it was connected")
    return upstream.target


def _of_version(name: str, product: str) -> TranslationTarget:
    version = version_named(name)
    if product and product not in protocol_of(version).products:
        raise ApiProblem("invalid_request", f"{NAMES[product]} does not speak {name}", errors=[("/product", product)])
    return target_of(version, product, dialect=DIALECT_OF[product], clock=wall_time)


def _field(item: FieldReceipt) -> FieldResult:
    to_json = value_to_json if item.field.startswith("headers/") else property_to_json
    return FieldResult(
        field=item.field,
        value=to_json(item.value),
        result=item.result,
        becomes=None if item.becomes is None else to_json(item.becomes),
        why=item.why,
    )


def _message(message: Message, sent: PublishMessage) -> TranslatedMessage:
    properties = message.properties
    encoded = sent.payload_encoding == "base64"
    return TranslatedMessage(
        payload=(b64encode(message.body) if encoded else message.body).decode(),
        payload_encoding=sent.payload_encoding,
        properties=properties_to_json(properties),
        headers=table_to_json(properties.headers or {}),
    )


ROUTES: Final = (
    Route(
        "POST", "/v1/translations:explain", "explain_translation", "Explain what a message becomes in another version",
        explain, Scope.BROKERS, {200: ("Field by field: same, mapped, carried or lost, and why.", Explained)},
        body=ExplainRequest, takes_messages=True,
        codes=(
            "unsupported_media_type", "malformed_json", "invalid_request", "invalid_value", "invalid_header",
            "broker_not_found", "broker_unavailable",
        ),
        description="A broker that `broker` or `from` names takes a scope of that broker.",
        tag="translation",
    ),
)  # fmt: skip
