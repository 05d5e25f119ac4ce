"""Traces: what happened to a message on its way, as spans of OpenTelemetry.

* :mod:`~gateway.tracing.names`     what spans and attributes are called
* :mod:`~gateway.tracing.context`   where in which trace: ``traceparent`` in HTTP and in messages
* :mod:`~gateway.tracing.spans`     spans, and who makes them
* :mod:`~gateway.tracing.otlp`      spans as octets
* :mod:`~gateway.tracing.exporter`  and on their way to a collector

Without ``[tracing] endpoint`` the :class:`Tracer` makes no spans, and contexts only pass through.
"""

from gateway.tracing.context import TraceContext, header_pairs, into, of_message, of_request, parse, trace_of
from gateway.tracing.exporter import Exporter, Reply
from gateway.tracing.otlp import OtlpForm
from gateway.tracing.spans import Span, Tracer, short

__all__ = [
    "Exporter",
    "OtlpForm",
    "Reply",
    "Span",
    "TraceContext",
    "Tracer",
    "header_pairs",
    "into",
    "of_message",
    "of_request",
    "parse",
    "short",
    "trace_of",
]
