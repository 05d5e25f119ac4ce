"""What spans say of a broker, and of what is sent to it and comes from it (:mod:`gateway.tracing.names`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.core.publishing.publisher import Publication, PublishOutcome
from gateway.tracing import Tracer, names, of_message
from gateway.tracing.names import SpanRow
from gateway.upstreams import Upstream


def of_broker(upstream: Upstream | None) -> dict[str, Any]:
    """The attributes that name a broker; none where it is not configured."""
    if upstream is None:
        return {}
    version = upstream.version
    return {
        names.SYSTEM: names.system_of(upstream.product),
        names.BROKER: upstream.name,
        names.SERVER_ADDRESS: upstream.url.host,
        names.SERVER_PORT: upstream.url.port,
        names.PROTOCOL_NAME: "amqp",
        names.PROTOCOL_VERSION: version.value if version is not None else "",
    }


def sending(row: SpanRow, upstream: Upstream | None, exchange: str, routing_key: str) -> dict[str, Any]:
    """The attributes of a sender."""
    found = of_broker(upstream)
    found[names.OPERATION] = row.name
    found[names.OPERATION_TYPE] = row.type
    found[names.DESTINATION] = names.sent_to(exchange, routing_key)
    if routing_key:
        found[names.ROUTING_KEY] = routing_key
    return found


def receiving(
    row: SpanRow, upstream: Upstream | None, exchange: str, routing_key: str, queue: str, message_id: str, size: int
) -> dict[str, Any]:
    """The attributes of a receiver of one message of this size."""
    found = of_broker(upstream)
    found[names.OPERATION] = row.name
    found[names.OPERATION_TYPE] = row.type
    found[names.DESTINATION] = names.received_from(exchange, routing_key, queue)
    if routing_key:
        found[names.ROUTING_KEY] = routing_key
    found[names.MESSAGE_ID] = message_id
    found[names.BODY_SIZE] = size
    return found


def published_later(
    tracer: Tracer,
    upstream: Upstream,
    exchange: str,
    began: int,
    items: Sequence[Publication],
    results: Sequence[PublishOutcome],
) -> None:
    """What was scheduled was sent at ``began`` (nanoseconds since 1970), and this became of it."""
    row = names.PUBLISH_LATER
    for item, result in zip(items, results, strict=True):
        context = of_message(item.message)
        if context is None or not context.sampled:
            continue
        attributes = sending(row, upstream, exchange, item.routing_key)
        attributes[names.MESSAGE_ID] = item.text
        attributes[names.BODY_SIZE] = len(item.message.body)
        name = f"{row.name} {exchange or item.routing_key}"
        span = tracer.begin(name, row.kind, context, attributes, started=began)
        assert span is not None  # the context is sampled
        span.end(result.error.code if result.error is not None else "")
