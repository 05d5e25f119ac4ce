"""The spans of a request: the request itself, what it publishes, hands out and settles.

Everything here is called only where there is a :class:`Trace`. With a collector every request has one, without one
those that bring a ``traceparent``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from gateway.api.http.problems import ApiProblem
from gateway.api.messages.later import prefers_later
from gateway.core import AckOutcome, Publication, Pulled
from gateway.core.leasing.pulled import SUCCESS
from gateway.core.sources.own_queues import queue_of
from gateway.core.subscriptions import SubscriptionResource
from gateway.core.traces import receiving, sending
from gateway.errors import GatewayError
from gateway.ledger import id_text
from gateway.observing.telemetry import FOLLOWING, Following
from gateway.runtime.clock import clock
from gateway.tracing import Span, TraceContext, Tracer, into, names, of_message, of_request
from gateway.tracing.names import SpanRow

if TYPE_CHECKING:
    from starlette.types import Scope

    from gateway.api.http.call import Call

FAILED_FROM: Final = 500
"""From this status on the request failed and it was not its caller's fault (HTTP spans, Status)."""
LOOKED_AT: Final = 1_000
"""Most messages of which the routing keys are compared."""


class Trace:
    """The trace that a request belongs to."""

    __slots__ = ("_following", "context", "span", "tracer")

    def __init__(self, tracer: Tracer, context: TraceContext | None, span: Span | None) -> None:
        self._following = follow(context)
        self.tracer = tracer
        self.context = context
        """The parent of what happens inside; None: the request begins no trace that is seen, and is part of none."""
        self.span = span
        """None: it is not seen."""

    def end(self, method: str, route: str, status: int) -> None:
        """The answer is written. ``route``: empty where there is none; ``status`` 0: there is no answer."""
        self._following.trace_id = ""
        span = self.span
        if span is None:
            return
        span.name = f"{method} {route}" if route else method
        if route:
            span.attributes[names.ROUTE] = route
        if not status:
            span.end("cut_off")
            return
        span.attributes[names.STATUS] = status
        span.end(str(status) if status >= FAILED_FROM else "")


def begin(tracer: Tracer, scope: Scope, started: int) -> Trace | None:
    """The trace of a request that came at ``started`` (nanoseconds since 1970). Logs and problems name it from now
    on. None: there is neither a collector nor a trace of the caller's."""
    caller = of_request(scope["headers"])
    if caller is None and not tracer.exports:
        return None
    span = tracer.begin("", names.REQUEST.kind, caller, started=started)
    if span is not None:
        raw: bytes = scope.get("raw_path") or b""
        client = scope.get("client")
        span.attributes |= {
            names.METHOD: scope["method"],
            names.URL_PATH: raw.decode("latin-1"),
            names.URL_SCHEME: scope.get("scheme", "http"),
        }
        if client:
            span.attributes[names.CLIENT_ADDRESS] = str(client[0])
    context = span.context if span is not None else caller
    return Trace(tracer, context, span)


def follow(context: TraceContext | None) -> Following:
    """Have logs and problems of this request name the trace, until that is taken away."""
    following = Following(context.trace_id if context is not None else "")
    FOLLOWING.set(following)
    return following


# --------------------------------------------------------------------------------------------------- publish


class Publishing:
    """A publish, as a ``with`` block around it. Entering begins the span, and gives its context to those messages that
    bring none of their own along."""

    __slots__ = ("_call", "_messages", "_span", "error")

    def __init__(self, call: Call, messages: Sequence[Publication]) -> None:
        self.error = ""
        """Why it failed, where that is no exception."""
        self._call = call
        self._messages = messages
        self._span: Span | None = None

    def __enter__(self) -> Publishing:
        call, messages = self._call, self._messages
        trace = call.trace
        if trace is None or not messages:
            return self
        if trace.tracer.exports:
            self._begin(trace, call, messages)
        context = self._span.context if self._span is not None else trace.context
        if context is not None and trace.tracer.inject:
            for item in messages:
                item.given, item.message = item.message, into(item.message, context)
        return self

    def _begin(self, trace: Trace, call: Call, messages: Sequence[Publication]) -> None:
        links = [own for item in messages if (own := of_message(item.message)) is not None]
        upstream = call.gateway.brokers.get(call.names["broker"])
        exchange = call.names["exchange"]
        keys = {item.routing_key for item in messages} if len(messages) <= LOOKED_AT else set()
        key = keys.pop() if len(keys) == 1 else ""
        later = prefers_later(call) or all(item.not_before is not None for item in messages)
        row = names.SCHEDULE if later else names.PUBLISH
        span = trace.tracer.begin(
            f"{row.name} {exchange or key or 'amq.default'}", row.kind, trace.context, links=links, root=False
        )
        if span is not None:
            span.attributes = sending(row, upstream, exchange, key)
            if len(messages) == 1:
                message = messages[0].message
                span.attributes[names.BODY_SIZE] = len(message.body)
                conversation = None if message.relayed else message.properties.correlation_id
                if isinstance(conversation, str):
                    span.attributes[names.CONVERSATION_ID] = conversation
            else:
                span.attributes[names.BATCH_COUNT] = len(messages)
            self._span = span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        span = self._span
        if span is None:
            return
        if len(self._messages) == 1 and self._messages[0].text:
            span.attributes[names.MESSAGE_ID] = self._messages[0].text
        if isinstance(error, ApiProblem):
            self.error = error.problem_code
        elif isinstance(error, GatewayError):
            self.error = error.code
        elif error is not None:
            self.error = type(error).__name__
        span.end(self.error)


# ------------------------------------------------------------------------------------------- pull and settle


def handed_out(call: Call, subscription: SubscriptionResource, pulled: Iterable[Pulled]) -> None:
    """Messages go to a consumer: a span for each that is part of a trace, which is the message's and not the
    request's."""
    trace = call.trace
    if trace is None or not trace.tracer.exports:
        return
    links = (trace.context,) if trace.context is not None else ()
    upstream = call.gateway.brokers.get(subscription.settings.broker)
    queue = queue_of(subscription.name, subscription.settings)
    row = names.DELIVER
    for item in pulled:
        delivery = item.delivery
        context = of_message(delivery.message)
        if context is None or not context.sampled:
            continue
        attributes = receiving(
            row, upstream, delivery.exchange, delivery.routing_key, queue, id_text(item.id), len(delivery.message.body)
        )
        attributes[names.SUBSCRIPTION] = subscription.name
        if item.attempt is not None:
            attributes[names.ATTEMPT] = item.attempt
        if item.redelivered:
            attributes[names.REDELIVERED] = True
        span = trace.tracer.begin(f"{row.name} {queue}", row.kind, context, attributes, links=links)
        assert span is not None  # the context is sampled
        span.end()
        trace.tracer.handed_out(item.lease.ack_id, span.context, attributes)


SETTLED_SAYS: Final = (
    names.SYSTEM, names.BROKER, names.SUBSCRIPTION, names.DESTINATION, names.MESSAGE_ID, names.SERVER_ADDRESS,
    names.SERVER_PORT, names.PROTOCOL_NAME, names.PROTOCOL_VERSION,
)  # fmt: skip
"""What a settlement says as the delivery did."""


def settled(call: Call, row: SpanRow, started: int, results: Iterable[AckOutcome]) -> None:
    """Consumers have settled what was handed out."""
    trace = call.trace
    if trace is None or not trace.tracer.exports:
        return
    links = (trace.context,) if trace.context is not None else ()
    for item in results:
        if item.error is not None:
            continue  # the lease goes on
        found = trace.tracer.came_back(item.ack_id)
        if found is None:
            continue
        context, said = found
        attributes: dict[str, Any] = {name: said[name] for name in SETTLED_SAYS if name in said}
        attributes |= {names.OPERATION: row.name, names.OPERATION_TYPE: row.type}
        name = f"{row.name} {call.names['subscription']}"
        span = trace.tracer.begin(name, row.kind, context, attributes, links=links, started=started)
        assert span is not None  # as the delivery's was
        span.end("" if item.status == SUCCESS else item.status)


def now() -> int:
    """Nanoseconds since 1970."""
    return clock.now_ns()
