"""The spans of a bridge. The message's context is read and never written: what arrives at the target is what came.

A message without a context, or of a trace that nobody watches, costs one search in its undecoded properties.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.bridges.items import BridgeDelivery
from gateway.core.traces import of_broker, receiving
from gateway.runtime.clock import clock
from gateway.tracing import Tracer, names, of_message
from gateway.upstreams import Upstream


class BridgeTraces:
    """What makes them, for one bridge."""

    def __init__(self, tracer: Tracer, bridge: str, queue: str, exchange: str, source: Upstream, target: Upstream):
        """``queue`` is the source's, ``exchange`` the target's."""
        self._tracer = tracer
        self._bridge = bridge
        self._queue = queue
        self._exchange = exchange
        self._source = source
        self._target = target
        self._loop = asyncio.get_running_loop()

    def ended(self, items: Sequence[BridgeDelivery], error: str = "") -> None:
        """These are acknowledged at the source. ``error``: the target has not got them, for that reason."""
        tracer, row, publish = self._tracer, names.FORWARD, names.BRIDGE_PUBLISH
        if not tracer.exports:
            return
        now, monotonic = clock.now_ns(), clock.monotonic()
        for item in items:
            delivery = item.delivery
            context = of_message(delivery.message)
            if context is None or not context.sampled:
                continue
            attributes = receiving(
                row, self._source, delivery.exchange, delivery.routing_key, self._queue, item.text, item.size
            )
            to = names.sent_to(self._exchange, item.routing_key)
            attributes |= {names.BRIDGE: self._bridge, names.TARGET: self._target.name, names.TARGET_DESTINATION: to}
            if delivery.redelivered:
                attributes[names.REDELIVERED] = True
            began = now - int((monotonic - delivery.at) * 1e9)
            span = tracer.begin(f"{row.name} {self._queue}", row.kind, context, attributes, started=began)
            assert span is not None  # the context is sampled
            if not error:
                sent = of_broker(self._target)
                sent |= {names.OPERATION: publish.name, names.OPERATION_TYPE: publish.type, names.DESTINATION: to}
                sent |= {names.BRIDGE: self._bridge, names.MESSAGE_ID: item.text, names.BODY_SIZE: item.size}
                child = tracer.begin(
                    f"{publish.name} {self._exchange or item.routing_key}", publish.kind, span.context, sent,
                    started=now - int((monotonic - item.published) * 1e9),
                )  # fmt: skip
                assert child is not None
                child.end(at=now)
            span.end(error, at=now)
