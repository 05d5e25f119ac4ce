"""Which spans there are, how many wait, and what they look like as octets."""

from __future__ import annotations

import json
from random import Random

import pytest

from gateway.tracing import OtlpForm, TraceContext, Tracer, names, short
from gateway.tracing.names import SpanKind, received_from, sent_to, system_of
from gateway.tracing.otlp import rejected
from gateway.tracing.spans import LINKS_MAX, OUT_MAX, TEXT_MAX
from tests.tracing.collector import read

CALLER = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1, "a=1")
UNSEEN = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 0)


def test_a_trace_begins_here() -> None:
    tracer = Tracer()
    span = tracer.begin("publish q", SpanKind.PRODUCER, None)
    assert span is not None
    assert span.parent_id == ""
    assert (len(span.context.trace_id), len(span.context.span_id), span.context.sampled) == (32, 16, True)
    assert len(tracer) == 0  # it has not ended
    span.end()
    assert tracer.fetch(10) == [span]
    assert tracer.fetch(10) == []


def test_a_trace_goes_on_here() -> None:
    span = Tracer(sample=0.0).begin("publish q", SpanKind.PRODUCER, CALLER)
    assert span is not None
    assert (span.context.trace_id, span.parent_id, span.context.state) == (CALLER.trace_id, CALLER.span_id, "a=1")
    assert span.context.span_id != CALLER.span_id


def test_what_the_caller_does_not_want_seen_is_not() -> None:
    assert Tracer().begin("publish q", SpanKind.PRODUCER, UNSEEN) is None


def test_who_must_not_begin_a_trace_does_not() -> None:
    assert Tracer().begin("publish q", SpanKind.PRODUCER, None, root=False) is None


def test_a_share_of_the_traces_is_seen() -> None:
    tracer = Tracer(sample=0.25, random=Random(7))
    seen = sum(tracer.begin("x", SpanKind.INTERNAL, None) is not None for _ in range(4_000))
    assert 900 < seen < 1_100
    assert Tracer(sample=0.0).begin("x", SpanKind.INTERNAL, None) is None
    assert Tracer(sample=0.0).begin("x", SpanKind.INTERNAL, None, always=True) is not None


def test_ids_differ() -> None:
    tracer = Tracer()
    spans = [tracer.begin("x", SpanKind.INTERNAL, None) for _ in range(1_000)]
    assert len({span.context.trace_id for span in spans if span is not None}) == 1_000
    assert len({span.context.span_id for span in spans if span is not None}) == 1_000


def test_only_the_first_end_counts() -> None:
    tracer = Tracer()
    span = tracer.begin("x", SpanKind.INTERNAL, CALLER, started=1_000)
    assert span is not None
    span.end("broker_unavailable", at=500)  # a clock that went back
    span.end()
    assert (span.ended, span.error, len(tracer)) == (1_000, "broker_unavailable", 1)
    assert span.attributes == {names.ERROR_TYPE: "broker_unavailable"}


def test_what_has_no_room_is_counted_and_gone() -> None:
    called: list[int] = []
    tracer = Tracer(queue_max=10)
    tracer.on_full(lambda: called.append(len(tracer)))
    for _ in range(25):
        span = tracer.begin("x", SpanKind.INTERNAL, None)
        assert span is not None
        span.end()
    assert (len(tracer), tracer.dropped, called) == (10, 15, [5])


def test_links_are_bounded() -> None:
    span = Tracer().begin("x", SpanKind.CONSUMER, None, links=[CALLER] * (LINKS_MAX + 1))
    assert span is not None
    assert len(span.links) == LINKS_MAX


def test_what_is_out_is_known_until_it_comes_back() -> None:
    tracer = Tracer()
    tracer.handed_out("a", CALLER, {names.BROKER: "b"})
    assert tracer.came_back("a") == (CALLER, {names.BROKER: "b"})
    assert tracer.came_back("a") is None
    for number in range(OUT_MAX + 1):
        tracer.handed_out(str(number), CALLER, {})
    assert tracer.came_back("0") is None  # the oldest went
    assert tracer.came_back("1") is not None


def test_octets_are_what_the_protocol_says() -> None:
    tracer = Tracer()
    attributes = {names.BROKER: "shop", names.BODY_SIZE: 12, names.REDELIVERED: True, names.ROUTING_KEY: "a\udcff"}
    one = tracer.begin("deliver q", SpanKind.CLIENT, CALLER, dict(attributes), links=[UNSEEN, CALLER], started=5_000)
    two = tracer.begin("publish x", SpanKind.PRODUCER, None)
    assert one is not None
    assert two is not None
    one.end(at=2_000_005_000)
    two.end("unroutable")
    body = OtlpForm({"service.name": "gw"}, "1.2").request(tracer.fetch(10))
    first, second = read(body)
    assert (first.name, first.kind, first.trace_id, first.parent_id, first.span_id, first.state) == (
        "deliver q", SpanKind.CLIENT, CALLER.trace_id, CALLER.span_id, one.context.span_id, "a=1",
    )  # fmt: skip
    assert first.attributes == {**attributes, names.ROUTING_KEY: "a\\udcff"}
    assert first.links == ((UNSEEN.trace_id, UNSEEN.span_id), (CALLER.trace_id, CALLER.span_id))
    assert (first.seconds, first.failed) == (2.0, "")
    assert (second.parent_id, second.failed, second.attributes) == ("", "unroutable", {names.ERROR_TYPE: "unroutable"})
    (resource,) = json.loads(body)["resourceSpans"]
    assert resource["resource"] == {"attributes": [{"key": "service.name", "value": {"stringValue": "gw"}}]}
    assert resource["scopeSpans"][0]["scope"] == {"name": "amqp-gateway", "version": "1.2"}
    assert resource["scopeSpans"][0]["schemaUrl"] == names.SCHEMA


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b'{"partialSuccess": {"rejectedSpans": "3", "errorMessage": "x"}}', 3),
        (b'{"partialSuccess": {"rejectedSpans": 2}}', 2),
        (b'{"partialSuccess": {"rejectedSpans": -2}}', 0),
        (b'{"partialSuccess": {}}', 0),
        (b'{"partialSuccess": 5}', 0),
        (b"{}", 0),
        (b"[]", 0),
        (b"", 0),
        (b"\xff<html>", 0),
    ],
)
def test_what_a_collector_did_not_take(body: bytes, count: int) -> None:
    assert rejected(body) == count


def test_a_text_has_an_end() -> None:
    assert short("x" * 5_000) == "x" * TEXT_MAX


@pytest.mark.parametrize(
    ("exchange", "key", "queue", "sent", "received"),
    [
        ("orders", "new", "billing", "orders:new", "orders:new:billing"),
        ("", "billing", "billing", "billing", "billing"),
        ("orders", "", "billing", "orders", "orders:billing"),
        ("orders", "billing", "billing", "orders:billing", "orders:billing"),
        ("", "", "", "amq.default", "amq.default"),
    ],
)
def test_destinations(exchange: str, key: str, queue: str, sent: str, received: str) -> None:
    assert (sent_to(exchange, key), received_from(exchange, key, queue)) == (sent, received)


def test_systems() -> None:
    assert [system_of(product) for product in ("RabbitMQ", "qpid", "")] == ["rabbitmq", "amqp", "amqp"]


def test_the_table_has_every_name() -> None:
    constants = {
        value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str) and "." in value and not value.startswith("https:")
    }
    assert constants == set(names.ATTRIBUTES)
    rows = {row for row in vars(names).values() if isinstance(row, names.SpanRow)}
    assert rows == set(names.SPANS)
    assert {row.type for row in names.SPANS} == {"", "create", "send", "receive", "process", "settle"}
