"""Spans on their way to a collector that is well, slow, busy, wrong or away. Nobody else waits for it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.config import TracingSettings
from gateway.errors import ConfigurationError, OutboundTimeout
from gateway.observing import collector as collectors
from gateway.observing.telemetry import Metrics
from gateway.tracing import Exporter, OtlpForm, Tracer, exporter
from gateway.tracing.names import SpanKind
from tests.tracing.collector import Collector, collecting

FORM = OtlpForm({"service.name": "gw"}, "1")


class Answer:
    def __init__(self, status: int, body: bytes = b"{}", retry_after: bytes | None = None) -> None:
        self.status = status
        self.body = body
        self._retry_after = retry_after

    def header(self, name: bytes) -> bytes | None:
        return self._retry_after if name == b"retry-after" else None


class Far:
    """The far end, as a script: an answer or an error for each request; the last one stays."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.bodies: list[bytes] = []
        self.counts: dict[str, int] = {}

    async def post(self, body: bytes, within: float) -> Any:
        self.bodies.append(body)
        found = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(found, BaseException):
            raise found
        if callable(found):
            return await found()
        return found

    def count(self, outcome: str, spans: int) -> None:
        self.counts[outcome] = self.counts.get(outcome, 0) + spans

    def exporter(self, tracer: Tracer, **settings: Any) -> Exporter:
        return Exporter(
            tracer, FORM, self.post, self.count, **{"batch_max": 10, "interval": 0.01, "deadline": 1.0, **settings}
        )


def spans(tracer: Tracer, count: int) -> None:
    for _ in range(count):
        span = tracer.begin("x", SpanKind.INTERNAL, None)
        assert span is not None
        span.end()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "PAUSE", 0.001)


async def test_batches_go_out() -> None:
    tracer, far = Tracer(), Far(Answer(200))
    found = far.exporter(tracer)
    spans(tracer, 25)
    found.start()
    await until(lambda: far.counts.get("exported") == 25)
    await found.close(1.0)
    assert [len(json.loads(body)["resourceSpans"][0]["scopeSpans"][0]["spans"]) for body in far.bodies] == [10, 10, 5]
    assert far.counts == {"exported": 25}


async def test_half_a_queue_does_not_wait_for_the_interval() -> None:
    tracer, far = Tracer(queue_max=20), Far(Answer(200))
    found = far.exporter(tracer, interval=600.0)
    found.start()
    await asyncio.sleep(0)
    spans(tracer, 9)
    await asyncio.sleep(0.02)
    assert far.bodies == []
    spans(tracer, 1)
    await until(lambda: far.counts.get("exported") == 10)
    await found.close(1.0)


async def test_the_last_spans_go_out_at_the_end() -> None:
    tracer, far = Tracer(), Far(Answer(200))
    found = far.exporter(tracer, interval=600.0)
    found.start()
    spans(tracer, 12)
    await found.close(1.0)
    assert far.counts == {"exported": 12}


@pytest.mark.parametrize("trouble", [Answer(503), Answer(429, retry_after=b"0"), OutboundTimeout("late")])
async def test_a_busy_collector_gets_the_same_batch_again(trouble: Any) -> None:
    tracer, far = Tracer(), Far(trouble, trouble, Answer(200))
    found = far.exporter(tracer)
    spans(tracer, 3)
    found.start()
    await until(lambda: far.counts.get("exported") == 3)
    await found.close(1.0)
    assert len(far.bodies) == 3
    assert len(set(far.bodies)) == 1


async def test_there_is_an_end_to_trying(caplog: pytest.LogCaptureFixture) -> None:
    tracer, far = Tracer(), Far(Answer(503))
    found = far.exporter(tracer)
    spans(tracer, 3)
    found.start()
    await until(lambda: far.counts.get("dropped") == 3)
    await found.close(1.0)
    assert len(far.bodies) == exporter.ATTEMPTS
    assert [record.message for record in caplog.records] == ["tracing.not_exported"]


async def test_what_is_wrong_is_not_repeated() -> None:
    tracer, far = Tracer(), Far(Answer(400))
    found = far.exporter(tracer)
    spans(tracer, 3)
    found.start()
    await until(lambda: far.counts.get("dropped") == 3)
    await found.close(1.0)
    assert len(far.bodies) == 1


async def test_a_part_may_be_refused() -> None:
    far = Far(Answer(200, b'{"partialSuccess": {"rejectedSpans": "2"}}'))
    tracer = Tracer()
    found = far.exporter(tracer)
    spans(tracer, 3)
    found.start()
    await until(lambda: far.counts.get("refused"))
    await found.close(1.0)
    assert far.counts == {"exported": 1, "refused": 2}


async def test_a_fault_of_ours_costs_one_batch(caplog: pytest.LogCaptureFixture) -> None:
    tracer, far = Tracer(), Far(ZeroDivisionError("ours"), Answer(200))
    found = far.exporter(tracer, batch_max=2)
    spans(tracer, 4)
    found.start()
    await until(lambda: far.counts == {"dropped": 2, "exported": 2})
    await found.close(1.0)
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == ["tracing.failed"]


async def test_a_collector_that_hangs_holds_up_nobody_and_not_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    tracer, far = Tracer(queue_max=100), Far(never)
    found = far.exporter(tracer)
    spans(tracer, 10)
    found.start()
    await until(lambda: far.bodies)
    spans(tracer, 150)
    assert (len(tracer), tracer.dropped) == (100, 50)
    began = asyncio.get_running_loop().time()
    await found.close(0.05)
    assert asyncio.get_running_loop().time() - began < 5.0
    assert far.counts == {"dropped": 160}  # the batch under way, what waited, and what had no room
    assert "tracing.queue_full" in [record.message for record in caplog.records]


def test_how_long_a_collector_wants_to_be_left_alone() -> None:
    given = [b"7", b" 7 ", b"", None, b"-1", b"Wed, 21 Oct 2015 07:28:00 GMT", b"9" * 7]
    assert [exporter._seconds(each) for each in given] == [7.0, 7.0, 0.0, 0.0, 0.0, 0.0, 0.0]


# ------------------------------------------------------------------------------------------------ the way there


def settings(collector: Collector, **more: Any) -> TracingSettings:
    return msgspec.convert({"endpoint": collector.url, "interval": 0.01, **more}, TracingSettings)


@asynccontextmanager
async def tracing(
    settings: TracingSettings, metrics: Metrics, own: Iterable[tuple[str, int]] = ()
) -> AsyncIterator[collectors.Collector]:
    """What the application has of it."""
    made = collectors.Collector(metrics, own)
    try:
        (await made.prepare(settings))()
        yield made
    finally:
        await made.close()


async def exported(metrics: Metrics, count: int) -> None:
    """Wait until the exporter has the answers for this many spans. What is under way when it ends it sends again."""
    await until(lambda: f'amqpgw_trace_spans_total{{outcome="exported"}} {count}.0'.encode() in metrics.render())


async def test_without_an_endpoint_there_are_no_spans() -> None:
    async with tracing(TracingSettings(), Metrics("1")) as made:
        assert not made.tracer.exports
        assert made.tracer.begin("x", SpanKind.SERVER, None) is None


async def test_spans_go_to_another_collector_and_to_none() -> None:
    metrics = Metrics("1")
    async with collecting() as one, collecting() as two, tracing(settings(one), metrics) as made:
        tracer = made.tracer
        spans(tracer, 3)
        await one.until(lambda found: len(found) == 3)
        use = await made.prepare(settings(two))
        spans(tracer, 1)
        await one.until(lambda found: len(found) == 4)
        await exported(metrics, 4)
        use()
        spans(tracer, 2)
        await two.until(lambda found: len(found) == 2)
        await exported(metrics, 6)
        (await made.prepare(settings(two, interval=60)))()
        spans(tracer, 2)
        (await made.prepare(TracingSettings(inject="never")))()
        assert tracer.begin("x", SpanKind.SERVER, None) is None
        assert not tracer.inject
        await two.until(lambda found: len(found) == 4)
        assert len(one.spans) == 4
    assert b'amqpgw_trace_spans_total{outcome="exported"} 8.0' in metrics.render()


async def test_a_collector_that_is_away_does_not_take_spans_along() -> None:
    """What waits goes to the next one."""
    metrics = Metrics("1")
    async with collecting() as gone, collecting() as far, tracing(settings(gone, interval=60), metrics) as made:
        spans(made.tracer, 5)
        (await made.prepare(settings(far)))()
        await far.until(lambda found: len(found) == 5)
    assert gone.spans == []


async def test_a_file_of_headers_that_has_changed_is_read_again(tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.write_text("X-Api-Key: old\n")
    metrics = Metrics("1")
    async with collecting() as far, tracing(settings(far, headers_file=str(headers)), metrics) as made:
        spans(made.tracer, 1)
        await exported(metrics, 1)
        headers.write_text("X-Api-Key: new\n")
        (await made.prepare(settings(far, headers_file=str(headers))))()
        spans(made.tracer, 1)
        await far.until(lambda found: len(found) == 2)
    assert [sent["x-api-key"] for sent, _ in far.requests] == ["old", "new"]


async def test_to_a_collector_in_a_private_network(tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.write_text("# the key\nX-Api-Key: canary\n\nAuthorization:  Bearer x \n")
    metrics = Metrics("1")
    async with collecting() as far:
        more = {"headers_file": str(headers), "resource": {"deployment.environment.name": "test"}}
        async with tracing(settings(far, **more), metrics) as made:
            spans(made.tracer, 3)
            await far.until(lambda found: len(found) == 3)
            spans(made.tracer, 2)
        assert len(far.spans) == 5
    (sent, body), *_ = far.requests
    assert (sent["content-type"], sent["x-api-key"], sent["authorization"]) == (
        "application/json", "canary", "Bearer x",
    )  # fmt: skip
    resource = json.loads(body)["resourceSpans"][0]["resource"]["attributes"]
    told = {pair["key"]: pair["value"]["stringValue"] for pair in resource}
    assert told["service.name"] == "amqp-gateway"
    assert told["deployment.environment.name"] == "test"
    assert told["service.instance.id"]
    assert b'amqpgw_trace_spans_total{outcome="exported"} 5.0' in metrics.render()


async def test_a_port_of_our_own_is_no_collector(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    async with tracing(settings(collector), Metrics("1"), [("127.0.0.1", collector.port)]) as made:
        spans(made.tracer, 1)
    assert collector.requests == []
    (told,) = [record for record in caplog.records if record.message == "tracing.not_exported"]
    assert "is this gateway itself" in told.gateway_fields["reason"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("url", ["collector:4318", "ftp://collector/", "http://user:secret@collector/"])
async def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"tracing\.endpoint") as caught:
        collectors.check(TracingSettings(endpoint=url))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["no colon", ": value", "x-key:", "content-type: text/plain", "Host: elsewhere", "a: 1\n" * 40, "x-key: \u00e9"],
)
def test_headers_that_are_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "headers"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"tracing\.headers_file") as caught:
        collectors.read_headers(str(path))
    assert "value" not in str(caught.value)


def test_headers_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        collectors.read_headers(str(tmp_path / "none"))
