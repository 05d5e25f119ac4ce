"""The spans of a push: the attempt (``process``), and the request in it.

An attempt at one message, or at several of one trace, belongs to that trace. One at messages of several traces begins
a trace of its own, and is linked to theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gateway.core.traces import receiving
from gateway.errors import GatewayError
from gateway.outbound.hosts import split_url
from gateway.tracing import Span, TraceContext, Tracer, header_pairs, names, of_message
from gateway.upstreams import Upstream
from gateway.webhooks.attempts.forms import Header, PushedMessage
from gateway.webhooks.endpoint import Endpoint


class PushTraces:
    """What makes them."""

    def __init__(self, tracer: Tracer, find: Callable[[str], Upstream | None]) -> None:
        """``find``: a broker by name, as it is now."""
        self._tracer = tracer
        self._find = find

    def begin(self, endpoint: Endpoint, items: Sequence[PushedMessage]) -> PushTrace:
        """A request begins."""
        tracer = self._tracer
        contexts = [context for item in items if (context := of_message(item.message)) is not None]
        parent = contexts[0] if len({context.trace_id for context in contexts}) == 1 else None
        seen = [context for context in contexts if context.sampled]
        first = items[0]
        row = names.PROCESS
        span = tracer.begin(
            f"{row.name} {first.queue}", row.kind, parent, links=() if parent is not None else seen,
            always=parent is None and bool(seen),
        )  # fmt: skip
        if span is None:
            return PushTrace(None, None, self._headers(endpoint, parent))
        span.attributes = receiving(
            row, self._find(first.broker), first.exchange, first.routing_key, first.queue, first.message_id,
            sum(len(item.message.body) for item in items),
        )  # fmt: skip
        span.attributes[names.ENDPOINT] = endpoint.name
        span.attributes[names.ATTEMPT] = first.attempt
        if first.subscription:
            span.attributes[names.SUBSCRIPTION] = first.subscription
        if first.redelivered:
            span.attributes[names.REDELIVERED] = True
        if len(items) > 1:
            span.attributes[names.BATCH_COUNT] = len(items)
            del span.attributes[names.MESSAGE_ID]
        post = tracer.begin(names.POST.name, names.POST.kind, span.context, _of_endpoint(endpoint))
        assert post is not None  # its parent is seen
        return PushTrace(span, post, self._headers(endpoint, post.context))

    def _headers(self, endpoint: Endpoint, context: TraceContext | None) -> list[Header]:
        """What tells the endpoint; nothing where its own headers do."""
        if context is None or not self._tracer.webhooks:
            return []
        if any(name.lower() == b"traceparent" for name, _ in endpoint.headers):
            return []
        return header_pairs(context)


class PushTrace:
    """One request."""

    __slots__ = ("_post", "_process", "headers")

    def __init__(self, process: Span | None, post: Span | None, headers: list[Header]) -> None:
        self.headers = headers
        """To be sent with it."""
        self._process = process
        self._post = post

    def end(self, status: int | None, error: GatewayError | None, *, resent: bool) -> None:
        """It is over; with neither status nor error nothing was sent."""
        process, post = self._process, self._post
        if process is None or post is None:
            return
        why = error.code if error is not None else ""
        if status is not None:
            post.attributes[names.STATUS] = status
            why = "" if status < 300 else str(status)
        if resent:
            post.attributes[names.RESEND_COUNT] = 1
        if status is not None or error is not None:
            post.end(why)
        process.end(why or ("" if status is not None else "undeliverable"))


def _of_endpoint(endpoint: Endpoint) -> dict[str, Any]:
    """Where the request goes; the URL itself may hold secrets."""
    found: dict[str, Any] = {names.METHOD: "POST", names.ENDPOINT: endpoint.name}
    try:
        site, _ = split_url(endpoint.settings.url)
    except GatewayError:
        return found
    return found | {names.SERVER_ADDRESS: site.host, names.SERVER_PORT: site.port}
