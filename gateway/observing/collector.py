"""The way to a collector of traces, as ``[tracing]`` says.

The collector is the operator's choice, like a broker, so it may stand in a private network without being listed in
``outbound.allow``. All the rest of the outbound guard holds: no redirect, one deadline, bounded answers, and never a
port of our own.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from gateway import __version__
from gateway.config import TlsSettings, TracingSettings
from gateway.errors import ConfigurationError, EncodeError
from gateway.observing.telemetry import Metrics, log
from gateway.outbound import DEFAULT_OUTBOUND_LIMITS, GuardedTransport, HttpAnswer, OutboundRules
from gateway.outbound.hosts import Site, split_url
from gateway.outbound.requests import OURS
from gateway.runtime.tasks import Tasks
from gateway.runtime.threads import threads
from gateway.tracing import Exporter, OtlpForm, Tracer

FLUSH_WITHIN: Final = 3.0
"""How long the last spans may take at the end, in seconds."""
HEADERS_MAX: Final = 32
"""Most lines of ``tracing.headers_file``."""
FIXED: Final = frozenset({b"content-type"})
"""Headers that the file may not hold, besides those of the transport."""


class Collector:
    """Where spans go, for as long as the process runs. Its tracer stays the same; where its spans go may change."""

    def __init__(self, metrics: Metrics, own: Iterable[tuple[str, int]]) -> None:
        """``own``: where this process listens."""
        self.tracer = Tracer(exports=False)
        self._metrics = metrics
        self._own = tuple(own)
        self._settings: TracingSettings | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._current: tuple[Exporter, GuardedTransport] | None = None
        self._ending = Tasks("traces")

    async def prepare(self, settings: TracingSettings) -> Callable[[], None]:
        """Check settings, and read what they name; nothing counts until the result is called.

        Raises:
            ConfigurationError: a setting is wrong.
        """
        headers = await threads.run(read_headers, settings.headers_file)
        if settings == self._settings and headers == self._headers:
            return lambda: None
        if not settings.endpoint:
            return lambda: self._use(settings, headers, None)
        site = check(settings)
        rules = OutboundRules((site.host if site.literal is None else str(site.literal),), own=self._own)
        limits = dataclasses.replace(
            DEFAULT_OUTBOUND_LIMITS, deadline=settings.timeout, connections=2, connections_per_site=2
        )
        transport = GuardedTransport(rules, limits, tls=TlsSettings(ca_file=settings.ca_file))

        async def post(body: bytes, within: float) -> HttpAnswer:
            return await transport.send("POST", settings.endpoint, headers, body, within=within, repeatable=True)

        def use() -> None:
            exporter = Exporter(
                self.tracer,
                OtlpForm(resource(settings), __version__),
                post,
                lambda outcome, count: self._metrics.trace_spans.labels(outcome).inc(count),
                batch_max=settings.batch_max,
                interval=settings.interval,
                deadline=settings.timeout,
            )
            self._use(settings, headers, (exporter, transport))
            exporter.start()
            log("tracing.started", host=site.host, port=site.port, sample=settings.sample, inject=settings.inject)

        return use

    def _use(
        self,
        settings: TracingSettings,
        headers: list[tuple[bytes, bytes]],
        following: tuple[Exporter, GuardedTransport] | None,
    ) -> None:
        before, self._current = self._current, following
        self._settings, self._headers = settings, headers
        self.tracer.configure(
            exports=following is not None,
            sample=settings.sample,
            queue_max=settings.queue_max,
            inject=settings.inject == "absent",
            webhooks=settings.webhooks,
        )
        if before is not None:
            before[0].stop()
            self._ending.start(_end(*before, drain=following is None))
            if following is None:
                log("tracing.stopped")

    async def close(self) -> None:
        """Send the last spans."""
        await self._ending.join()
        if self._current is not None:
            await _end(*self._current, drain=True)
            self._current = None


async def _end(exporter: Exporter, transport: GuardedTransport, *, drain: bool) -> None:
    await exporter.close(FLUSH_WITHIN, drain=drain)
    await transport.aclose()


def check(settings: TracingSettings) -> Site:
    """Where the collector is. Raises ConfigurationError."""
    try:
        site, _ = split_url(settings.endpoint)
    except EncodeError as error:
        raise ConfigurationError(f"tracing.endpoint: {error}") from None
    return site


def resource(settings: TracingSettings) -> Mapping[str, str]:
    """Who sends: what the settings say, and what they do not."""
    return {
        "service.name": settings.service_name,
        "service.version": __version__,
        "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
        **settings.resource,
    }


def read_headers(path: str) -> list[tuple[bytes, bytes]]:
    """What every request to the collector has: the form of its body, and the lines ``NAME: VALUE`` of a file.

    Raises:
        ConfigurationError: the file cannot be read, or a line is malformed. What is in it is never part of the text.
    """
    found = [(b"content-type", b"application/json")]
    if not path:
        return found
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not ASCII"
        raise ConfigurationError(f"tracing.headers_file: {path}: {why}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, value = line.partition(":")
        key = name.strip().lower().encode()
        if not colon or not key or not value.strip() or key in OURS | FIXED or len(found) > HEADERS_MAX:
            raise ConfigurationError(f"tracing.headers_file: {path}: line {number} is no header that may be sent")
        found.append((key, value.strip().encode()))
    return found
