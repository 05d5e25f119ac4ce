"""Spans on their way to a collector: batches, a bounded number of attempts, and an end.

What a collector does not take is dropped and counted: nothing that carries messages ever waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Protocol

from gateway.errors import GatewayError
from gateway.observing.telemetry import log
from gateway.runtime.backoff import Backoff
from gateway.runtime.clock import clock
from gateway.tracing.otlp import OtlpForm, rejected
from gateway.tracing.spans import Span, Tracer

AGAIN: Final = frozenset({429, 502, 503, 504})
"""Statuses after which the same batch may be sent again (OTLP, Failures)."""
ATTEMPTS: Final = 4
"""Most attempts of one batch."""
PAUSE: Final = 1.0
"""Pause before the second attempt, in seconds; doubled each time, with jitter."""
PAUSE_MAX: Final = 30.0
"""Longest pause that a collector may ask for (``Retry-After``), in seconds."""


class Reply(Protocol):
    """What the collector answered."""

    status: int
    body: bytes

    def header(self, name: bytes) -> bytes | None: ...


Post = Callable[[bytes, float], Awaitable[Reply]]
"""Sends a body within this many seconds. Raises GatewayError."""
Count = Callable[[str, int], None]
"""Counts so many spans as ``exported``, ``dropped`` or ``refused``."""


class Exporter:
    """Fetches what a tracer has, and sends it."""

    def __init__(
        self,
        tracer: Tracer,
        form: OtlpForm,
        post: Post,
        count: Count,
        *,
        batch_max: int,
        interval: float,
        deadline: float,
    ) -> None:
        """
        Args:
            batch_max: most spans of one request.
            interval: how long a span waits at most for others, in seconds.
            deadline: of one request, in seconds.
        """
        self._tracer = tracer
        self._form = form
        self._post = post
        self._count = count
        self._batch_max = batch_max
        self._interval = interval
        self._deadline = deadline
        self._sending: list[Span] = []
        """The batch that is under way."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        tracer.on_full(self._wake.set)

    def start(self) -> None:
        """Begin to send."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="traces")

    def stop(self) -> None:
        """Fetch nothing more; :meth:`close` is still to come."""
        if self._task is not None:
            self._task.cancel()

    async def close(self, within: float, *, drain: bool = True) -> None:
        """Send what is left, for at most ``within`` seconds. ``drain`` False: only the batch that is under way, since
        another exporter fetches the rest."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        most = self._batch_max if drain else 0
        spans = self._sending or self._tracer.fetch(most)
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while spans:
                    await self._send(spans, 1)
                    spans = self._tracer.fetch(most)
        self._count_dropped()
        if left := len(self._sending) + len(self._tracer.fetch(len(self._tracer) if drain else 0)):
            self._count("dropped", left)

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._wake.wait()
            self._wake.clear()
            while spans := self._tracer.fetch(self._batch_max):
                try:
                    await self._send(spans, ATTEMPTS)
                except asyncio.CancelledError:
                    raise
                except Exception as error:  # a fault of ours must not end the sending
                    self._sending = []
                    self._count("dropped", len(spans))
                    log("tracing.failed", logging.ERROR, error)
                if len(self._tracer) < self._batch_max:
                    break  # what has come meanwhile waits for others
            self._count_dropped()

    def _count_dropped(self) -> None:
        dropped = self._tracer.dropped - self._tracer.reported
        if dropped:
            self._tracer.reported += dropped
            self._count("dropped", dropped)
            log("tracing.queue_full", logging.WARNING, spans=dropped)

    async def _send(self, spans: list[Span], attempts: int) -> None:
        """One batch, in so many attempts."""
        self._sending = spans
        body = self._form.request(spans)
        backoff = Backoff(PAUSE, PAUSE_MAX)
        for attempt in range(1, attempts + 1):
            asked = 0.0
            try:
                reply = await self._post(body, self._deadline)
            except GatewayError as error:
                why, again = str(error), True
            else:
                if reply.status < 300:
                    self._sending = []
                    refused = min(rejected(reply.body), len(spans))
                    self._count("exported", len(spans) - refused)
                    if refused:
                        self._count("refused", refused)
                        log("tracing.refused", logging.WARNING, spans=refused)
                    return
                why, again = f"the collector answered {reply.status}", reply.status in AGAIN
                asked = _seconds(reply.header(b"retry-after"))
            if not again or attempt == attempts:
                self._sending = []
                self._count("dropped", len(spans))
                log("tracing.not_exported", logging.WARNING, spans=len(spans), reason=why[:500])
                return
            await clock.sleep(min(max(asked, backoff.next()), PAUSE_MAX))


def _seconds(retry_after: bytes | None) -> float:
    """What ``Retry-After`` asks for in seconds; a date counts as nothing."""
    text = (retry_after or b"").strip()
    return float(int(text)) if text.isdigit() and len(text) <= 6 else 0.0
