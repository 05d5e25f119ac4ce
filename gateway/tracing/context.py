"""Where in which trace something happens: W3C Trace Context, read from HTTP and from messages, and written.

In a message it stands in two plain headers, ``traceparent`` and ``tracestate``, as others write it there. The first
writer is right: a message that has one of them keeps both as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gateway.amqp.message import Message, with_headers
from gateway.amqp.values import Typed
from gateway.errors import GatewayError

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
STATE_MAX: Final = 512
"""Most characters of ``tracestate`` that are passed on; a longer one is left out as a whole (W3C section 3.3.1.5)."""
SAMPLED: Final = 1
_PARENT: Final = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE: Final = re.compile(r"[ -~\t]*")
_OCTETS: Final = TRACEPARENT.encode()


class TraceContext:
    """A place in a trace: the trace, and the span that is the parent of what comes next."""

    __slots__ = ("flags", "span_id", "state", "trace_id")

    def __init__(self, trace_id: str, span_id: str, flags: int, state: str = "") -> None:
        self.trace_id = trace_id
        """32 hexadecimal digits."""
        self.span_id = span_id
        """16 of them."""
        self.flags = flags
        self.state = state
        """``tracestate``, as it came."""

    @property
    def sampled(self) -> bool:
        """The beginner of the trace wants it to be seen."""
        return bool(self.flags & SAMPLED)

    @property
    def traceparent(self) -> str:
        """As the header has it."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    def __repr__(self) -> str:
        return f"Context({self.traceparent})"


def parse(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """What the headers say; None: nothing that can be understood (W3C section 4.3). Of a version that is not known the
    parts of version 00 are taken."""
    match = _PARENT.fullmatch(traceparent.strip(" \t"))
    if match is None or (match[5] and match[1] == "00"):
        return None
    state = tracestate if len(tracestate) <= STATE_MAX and _STATE.fullmatch(tracestate) else ""
    return TraceContext(match[2], match[3], int(match[4], 16) & SAMPLED, state)


def of_request(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """The caller's, from the headers of a request as ASGI has them. Two ``traceparent`` do not count."""
    parents: list[str] = []
    states: list[str] = []
    for name, value in headers:
        if name == b"traceparent":
            parents.append(value.decode("latin-1"))
        elif name == b"tracestate":
            states.append(value.decode("latin-1"))
    return parse(parents[0], ",".join(states)) if len(parents) == 1 else None


def of_message(message: Message) -> TraceContext | None:
    """The message's own; None where it has none. What came off the wire is decoded only where the word stands in it."""
    raw = message.raw
    if raw is not None and _OCTETS not in raw.octets:
        return None
    try:
        headers = message.properties.headers
    except GatewayError:
        return None
    return of_headers(headers) if headers else None


def trace_of(message: Message) -> str:
    """The trace that a message belongs to, for a line of the log; empty: to none."""
    context = of_message(message)
    return context.trace_id if context is not None else ""


def of_headers(headers: Mapping[str, Any]) -> TraceContext | None:
    """What the headers of a message say."""
    parent = _text(headers.get(TRACEPARENT))
    return parse(parent, _text(headers.get(TRACESTATE))) if parent else None


def _text(value: Any) -> str:
    """A header as text, in any of AMQP's types; empty: it is not text."""
    if isinstance(value, Typed):
        value = value.value
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else ""


def into(message: Message, context: TraceContext) -> Message:
    """The message with the context in its headers. One that has either header, or that came from a broker or a log, is
    returned as it is."""
    if message.relayed:
        return message
    properties = message.properties
    headers = properties.headers
    if headers and (TRACEPARENT in headers or TRACESTATE in headers):
        return message
    ours = {TRACEPARENT: context.traceparent}
    if context.state:
        ours[TRACESTATE] = context.state
    return Message(message.body, with_headers(properties, {**headers, **ours} if headers else {**ours}))


def header_pairs(context: TraceContext) -> list[tuple[bytes, bytes]]:
    """As headers of a request."""
    pairs = [(b"traceparent", context.traceparent.encode())]
    if context.state:
        pairs.append((b"tracestate", context.state.encode()))
    return pairs
