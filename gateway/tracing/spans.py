"""Spans, and who makes them.

A :class:`Tracer` that exports nothing makes no spans, and contexts only pass through. What brings a context along is
seen if its flag says so; what begins here, in the share that ``sample`` is. Nothing here waits or fails: a span that
has no room in the queue is counted, and gone.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final

from gateway.runtime.clock import clock
from gateway.runtime.ids import ids
from gateway.tracing.context import SAMPLED, TraceContext
from gateway.tracing.names import ERROR_TYPE, SpanKind

LINKS_MAX: Final = 128
"""Most links of a span."""
TEXT_MAX: Final = 1_024
"""Longest text in an attribute, in characters; the rest is cut off."""
OUT_MAX: Final = 10_000
"""Of how many messages that are out it is known in which trace they are; the oldest go."""


class Span:
    """Something that takes time. Built per request and per message, so with slots and without ceremony."""

    __slots__ = (
        "_tracer", "attributes", "context", "ended", "error", "kind", "links", "name", "parent_id", "started",
    )  # fmt: skip

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        kind: SpanKind,
        context: TraceContext,
        parent_id: str,
        started: int,
        attributes: dict[str, Any],
        links: Sequence[TraceContext],
    ) -> None:
        self.name = name
        self.kind = kind
        self.context = context
        """What happens inside it has this as its parent."""
        self.parent_id = parent_id
        """Empty: the trace begins here."""
        self.started = started
        """Nanoseconds since 1970."""
        self.ended = 0
        self.attributes = attributes
        self.links = links
        self.error = ""
        """Why it failed; empty: it did not."""
        self._tracer = tracer

    def end(self, error: str = "", at: int = 0) -> None:
        """It is over. ``error``: a code, or a few fixed words; never a text that a peer wrote. Only the first end
        counts."""
        if self.ended:
            return
        self.ended = max(at or clock.now_ns(), self.started)
        if error:
            self.error = error
            self.attributes[ERROR_TYPE] = error
        self._tracer.take(self)


class Tracer:
    """Makes spans, and keeps those that have ended until somebody fetches them."""

    def __init__(
        self,
        *,
        exports: bool = True,
        sample: float = 1.0,
        queue_max: int = 8_192,
        inject: bool = True,
        webhooks: bool = True,
        random: Random | None = None,
        on_full: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            exports: whether somebody fetches spans; without it there are none.
            sample: share of the traces that begin here which are seen.
            queue_max: most spans that wait to be fetched.
            inject: whether messages that are published over HTTP get the context.
            webhooks: whether endpoints do.
            on_full: is called when half of the queue is used.
        """
        self.configure(exports=exports, sample=sample, queue_max=queue_max, inject=inject, webhooks=webhooks)
        self.dropped = 0
        """Spans for which there was no room."""
        self.reported = 0
        """How many of them are counted and logged."""
        self._on_full = on_full
        self._queue: deque[Span] = deque()
        self._random = random if random is not None else ids.generator()
        self._out: OrderedDict[str, tuple[TraceContext, dict[str, Any]]] = OrderedDict()

    def configure(self, *, exports: bool, sample: float, queue_max: int, inject: bool, webhooks: bool) -> None:
        """Go on with other settings; see :meth:`__init__`."""
        self.exports = exports
        self.inject = inject
        self.webhooks = webhooks
        self._sample = sample
        self._max = queue_max
        self._wake_at = max(1, queue_max // 2)

    def __len__(self) -> int:
        """How many spans wait."""
        return len(self._queue)

    def on_full(self, call: Callable[[], None]) -> None:
        """Have ``call`` called when half of the queue is used."""
        self._on_full = call

    # --------------------------------------------------------------------------------------------------- making

    def begin(
        self,
        name: str,
        kind: SpanKind,
        parent: TraceContext | None,
        attributes: dict[str, Any] | None = None,
        *,
        links: Sequence[TraceContext] = (),
        started: int = 0,
        root: bool = True,
        always: bool = False,
    ) -> Span | None:
        """A span that begins now, or at ``started``; None: this one is not seen. Without a parent it begins a trace,
        if ``root`` allows that, and ``sample`` or ``always``."""
        if not self.exports:
            return None
        if parent is not None:
            if not parent.flags & SAMPLED:
                return None
            trace_id, parent_id, state = parent.trace_id, parent.span_id, parent.state
        else:
            if not root or not (always or self._sample >= 1.0 or self._random.random() < self._sample):
                return None
            trace_id, parent_id, state = f"{self._random.getrandbits(128) or 1:032x}", "", ""
        context = TraceContext(trace_id, f"{self._random.getrandbits(64) or 1:016x}", SAMPLED, state)
        return Span(
            self, name, kind, context, parent_id, started or clock.now_ns(),
            attributes if attributes is not None else {}, links[:LINKS_MAX],
        )  # fmt: skip

    def take(self, span: Span) -> None:
        """A span has ended."""
        queue = self._queue
        if len(queue) >= self._max:
            self.dropped += 1
            return
        queue.append(span)
        if len(queue) == self._wake_at:
            self._on_full()

    def fetch(self, most: int) -> list[Span]:
        """Up to so many that have ended, the oldest first."""
        queue = self._queue
        return [queue.popleft() for _ in range(min(most, len(queue)))]

    # ----------------------------------------------------------------------------------------------- what is out

    def handed_out(self, ack_id: str, context: TraceContext, attributes: Mapping[str, Any]) -> None:
        """A message is out under this id; its settlement belongs there."""
        out = self._out
        out[ack_id] = context, dict(attributes)
        if len(out) > OUT_MAX:
            out.popitem(last=False)

    def came_back(self, ack_id: str) -> tuple[TraceContext, dict[str, Any]] | None:
        """Where the settlement of what is out under this id belongs; None: nobody knows, or it was asked before."""
        return self._out.pop(ack_id, None)


def short(text: str) -> str:
    """``text`` as an attribute may hold it."""
    if len(text) > TEXT_MAX:
        text = text[:TEXT_MAX]
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
