"""A collector on loopback, which reads what it gets by the protocol's own definitions (``opentelemetry-proto``)."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.tracing import names
from gateway.tracing.names import SpanKind


@dataclass(frozen=True)
class Seen:
    """A span, as a collector has it."""

    name: str
    kind: SpanKind
    trace_id: str
    span_id: str
    parent_id: str
    state: str
    seconds: float
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    failed: str
    """The message of its status, where that is an error."""

    @property
    def word(self) -> str:
        """The first word of its name."""
        return self.name.split()[0]


def read(body: bytes) -> list[Seen]:
    """The spans of one request; raises where the definitions have no such field or type."""
    document = json.loads(body)
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for holder in (span, *span.get("links", ())):
                    for name in ("traceId", "spanId", "parentSpanId"):
                        if name in holder:  # hexadecimal in OTLP, base64 in every other JSON of protobuf
                            holder[name] = b64encode(bytes.fromhex(holder[name])).decode()
    request = json_format.ParseDict(document, ExportTraceServiceRequest())
    found = []
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                assert len(span.trace_id) == 16
                assert len(span.span_id) == 8
                assert len(span.parent_span_id) in (0, 8)
                assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
                attributes = {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}
                assert set(attributes) <= set(names.ATTRIBUTES), attributes
                assert len(attributes) == len(span.attributes)
                found.append(
                    Seen(
                        name=span.name,
                        kind=SpanKind(span.kind),
                        trace_id=span.trace_id.hex(),
                        span_id=span.span_id.hex(),
                        parent_id=span.parent_span_id.hex(),
                        state=span.trace_state,
                        seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                        attributes=attributes,
                        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                        failed=span.status.message if span.status.code == 2 else "",
                    )
                )
    return found


class Collector:
    """What it got."""

    def __init__(self) -> None:
        self.port = 0
        self.status = 200
        self.more = ""
        """Further headers of its answers."""
        self.answer = b"{}"
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.spans: list[Seen] = []
        """Of the requests that were answered with 200."""

    @property
    def url(self) -> str:
        """Where it takes spans."""
        return f"http://127.0.0.1:{self.port}/v1/traces"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while line := await reader.readline():
                assert line == b"POST /v1/traces HTTP/1.1\r\n", line
                headers: dict[str, str] = {}
                while (line := await reader.readline()) != b"\r\n":
                    name, _, value = line.decode().partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers["content-length"]))
                self.requests.append((headers, body))
                spans = read(body)
                if self.status == 200:
                    self.spans += spans
                head = f"HTTP/1.1 {self.status} X\r\n{self.more}content-length: {len(self.answer)}\r\n\r\n"
                writer.write(head.encode() + self.answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the gateway is gone
        finally:
            writer.close()

    async def until(self, condition: Callable[[list[Seen]], bool], within: float = 20.0) -> list[Seen]:
        """The spans, as soon as something holds of them."""
        deadline = asyncio.get_running_loop().time() + within
        while not condition(self.spans):
            shown = [(span.name, span.trace_id[:6]) for span in self.spans]
            assert asyncio.get_running_loop().time() < deadline, f"it did not happen in time: {shown}"
            await asyncio.sleep(0.02)
        return list(self.spans)


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """A collector that runs as long as the block."""
    found = Collector()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
