"""A whole gateway that traces, with the embedded broker: which spans there are, and what nobody changes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import App
from gateway.broker.server import EmbeddedBroker
from gateway.config import EmbeddedSettings
from gateway.limits import Limits
from gateway.tracing import names
from gateway.tracing.names import SpanKind
from gateway.versions import VERSION_NAMES
from tests.tracing.collector import Collector
from tests.tracing.estate import CALLER, NOT_SEEN, SPAN, TRACE, Hook, estate, of, only, until

EMBEDDED = {"embedded.enabled": True, "embedded.port": 0}
PUBLISH = "/v1/brokers/{}/exchanges/amq.default:publish"
BROKERS = tuple(f"local-{name}" for name in VERSION_NAMES)
"""Those of the embedded broker."""


async def queue(client: httpx.AsyncClient, name: str = "q") -> None:
    (await client.put(f"/v1/brokers/local-0-9-1/queues/{name}", json={})).raise_for_status()


async def subscribe(client: httpx.AsyncClient, name: str = "s", **settings: Any) -> None:
    body = {"broker": "local-0-9-1", "queue": "q", **settings}
    (await client.put(f"/v1/subscriptions/{name}", json=body)).raise_for_status()


async def publish(
    client: httpx.AsyncClient, caller: dict[str, str] | None = None, broker: str = "local-0-10", **item: Any
) -> dict[str, Any]:
    body = {"routing_key": "q", "payload": "hello", **item}
    answer = await client.post(PUBLISH.format(broker), json=body, headers=caller or {})
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


async def pull(client: httpx.AsyncClient, name: str = "s", **headers: str) -> list[dict[str, Any]]:
    answer = await client.post(f"/v1/subscriptions/{name}:pull", json={"max_messages": 10, "wait": 5}, headers=headers)
    answer.raise_for_status()
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


async def settle(client: httpx.AsyncClient, verb: str, *ack_ids: str, **more: Any) -> None:
    body = {"ack_ids": list(ack_ids), **more}
    (await client.post(f"/v1/subscriptions/s:{verb}", json=body)).raise_for_status()


@pytest.mark.parametrize("lease", ["broker", "ledger"])
async def test_publish_pull_acknowledge(tmp_path: Path, collector: Collector, lease: str) -> None:
    async with estate(tmp_path, collector, EMBEDDED) as (_, client, _):
        await queue(client)
        await subscribe(client, lease=lease)
        told = await publish(client, CALLER, properties={"correlation_id": "c-1"})
        (item,) = await pull(client)
        await settle(client, "acknowledge", item["ack_id"])
        await collector.until(lambda found: bool(of(found, "ack")))
    spans = collector.spans
    request = only(spans, "POST", **{names.ROUTE: "/v1/brokers/{broker}/exchanges/{exchange}:publish"})
    assert (request.trace_id, request.parent_id, request.kind, request.state) == (
        TRACE,
        SPAN,
        SpanKind.SERVER,
        "caller=1",
    )
    assert request.name == "POST /v1/brokers/{broker}/exchanges/{exchange}:publish"
    assert request.attributes[names.STATUS] == 200
    assert request.attributes[names.URL_PATH] == "/v1/brokers/local-0-10/exchanges/amq.default:publish"
    sent = only(spans, "publish")
    assert (sent.trace_id, sent.parent_id, sent.kind, sent.name) == (
        TRACE, request.span_id, SpanKind.PRODUCER, "publish q",
    )  # fmt: skip
    assert sent.attributes | {names.SERVER_PORT: 0} == {
        names.OPERATION: "publish", names.OPERATION_TYPE: "send", names.DESTINATION: "q", names.ROUTING_KEY: "q",
        names.SYSTEM: "amqp", names.BROKER: "local-0-10", names.SERVER_ADDRESS: "127.0.0.1", names.SERVER_PORT: 0,
        names.PROTOCOL_NAME: "amqp", names.PROTOCOL_VERSION: "0-10", names.BODY_SIZE: 5,
        names.CONVERSATION_ID: "c-1", names.MESSAGE_ID: told["id"],
    }  # fmt: skip
    # What the consumer gets names the span that sent it: it goes on from there.
    assert item["message"]["headers"] == {"traceparent": f"00-{TRACE}-{sent.span_id}-01", "tracestate": "caller=1"}
    taken = only(spans, "deliver")
    assert (taken.trace_id, taken.parent_id, taken.kind, taken.name) == (
        TRACE,
        sent.span_id,
        SpanKind.CLIENT,
        "deliver q",
    )
    assert taken.attributes[names.OPERATION_TYPE] == "receive"
    assert (taken.attributes[names.SUBSCRIPTION], taken.attributes[names.MESSAGE_ID]) == ("s", told["id"])
    asked = only(spans, "POST", **{names.ROUTE: "/v1/subscriptions/{subscription}:pull"})
    assert asked.trace_id != TRACE
    assert taken.links == ((asked.trace_id, asked.span_id),)
    acked = only(spans, "ack")
    assert (acked.trace_id, acked.parent_id, acked.kind) == (TRACE, taken.span_id, SpanKind.CLIENT)
    assert acked.attributes[names.OPERATION_TYPE] == "settle"
    assert acked.attributes[names.MESSAGE_ID] == told["id"]
    assert not any(span.failed for span in spans)


@pytest.mark.parametrize(("verb", "word"), [("release", "release"), ("reject", "reject")])
async def test_other_ends(tmp_path: Path, collector: Collector, verb: str, word: str) -> None:
    async with estate(tmp_path, collector, EMBEDDED) as (_, client, _):
        await queue(client)
        await subscribe(client, lease="ledger")
        await publish(client, CALLER)
        (item,) = await pull(client)
        await settle(client, "modifyAckDeadline", item["ack_id"], ack_deadline_seconds=60)
        await settle(client, verb, item["ack_id"])
        spans = await collector.until(lambda found: bool(of(found, word)))
    assert only(spans, word).trace_id == TRACE
    assert of(spans, "ack") == []


async def test_the_publishers_own_headers_stay_and_the_span_is_linked_to_theirs(
    tmp_path: Path, collector: Collector
) -> None:
    theirs = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01", "tracestate": "theirs=1"}
    async with estate(tmp_path, collector, EMBEDDED) as (_, client, _):
        await queue(client)
        await subscribe(client)
        await publish(client, CALLER, headers=theirs)
        await publish(client, CALLER, headers={"tracestate": "alone=1", "n": 1})
        first, second = await pull(client)
        spans = await collector.until(lambda found: len(of(found, "deliver")) == 1)
    assert first["message"]["headers"] == theirs
    assert second["message"]["headers"] == {"tracestate": "alone=1", "n": 1}
    sent = of(spans, "publish")
    assert {span.trace_id for span in sent} == {TRACE}
    assert sorted(span.links for span in sent) == [(), (("1" * 32, "2" * 16),)]
    assert only(spans, "deliver").trace_id == "1" * 32


@pytest.mark.parametrize(
    ("settings", "headers", "traceparent"),
    [
        ({"tracing.inject": "never"}, CALLER, None),
        ({"tracing.sample": 0.0}, {}, None),
        ({"tracing.sample": 0.0}, NOT_SEEN, NOT_SEEN["traceparent"]),  # the caller's word is passed on as it came
        ({}, {"traceparent": "00-nonsense"}, "a new one"),
    ],
)
async def test_what_a_message_is_given(
    tmp_path: Path, collector: Collector, settings: dict[str, Any], headers: dict[str, str], traceparent: str | None
) -> None:
    async with estate(tmp_path, collector, {**EMBEDDED, **settings}) as (_, client, _):
        await queue(client)
        await subscribe(client)
        await publish(client, headers)
        (item,) = await pull(client)
    found = item["message"].get("headers", {}).get("traceparent")
    if traceparent == "a new one":
        sent = only(collector.spans, "publish")
        assert found == f"00-{sent.trace_id}-{sent.span_id}-01"
    else:
        assert found == traceparent


OWN = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize(
    ("settings", "caller", "own", "found"),
    [
        ({}, CALLER, {}, CALLER),
        ({}, NOT_SEEN, {}, NOT_SEEN),
        ({}, {}, {}, {}),
        ({}, {"tracestate": "alone=1"}, {}, {}),
        ({}, {"traceparent": "00-nonsense"}, {}, {}),
        ({}, {"traceparent": f"00-{'0' * 32}-{SPAN}-01"}, {}, {}),
        ({}, {"traceparent": f"ff-{TRACE}-{SPAN}-01"}, {}, {}),
        ({}, CALLER, OWN, OWN),
        ({"tracing.inject": "never"}, CALLER, {}, {}),
    ],
)
async def test_without_a_collector_the_callers_context_passes_through(
    tmp_path: Path, broker: str, settings: Any, caller: Any, own: Any, found: Any
) -> None:
    """Into the message, and from the message into the request of a webhook. There are no spans."""
    async with estate(tmp_path, None, {**EMBEDDED, **settings}) as (app, client, hook):
        await queue(client)
        await subscribe(client, broker=broker)
        for index in range(2):
            await publish(client, caller, broker, headers={"n": index, **own})
        items = await pull(client)
        await settle(client, "acknowledge", *(item["ack_id"] for item in items))
        await subscribe(client, "pushed", broker=broker, push="hook")
        await publish(client, caller, broker, headers=own)
        await until(lambda: hook.got)
        assert not app.gateway.tracer.exports
        assert len(app.gateway.tracer) == 0
    assert [item["message"]["headers"] for item in items] == [{"n": 0, **own, **found}, {"n": 1, **own, **found}]
    headers, _ = hook.got[0]
    assert {name: headers[name] for name in ("traceparent", "tracestate") if name in headers} == found


async def test_without_a_collector_batches_streams_and_scheduled_publishes_pass_it_on(tmp_path: Path) -> None:
    async with estate(tmp_path, None, EMBEDDED) as (_, client, _):
        await queue(client)
        await subscribe(client)
        path, line = PUBLISH.format("local-0-9-1"), {"routing_key": "q", "payload": "x"}
        await client.post(path, json={"messages": [line, {**line, "headers": OWN}]}, headers=CALLER)
        ndjson = {"content-type": "application/x-ndjson", **CALLER}
        await client.post(path, content=json.dumps(line) + "\n", headers=ndjson)
        later = await client.post(path, json=line, headers={"prefer": "respond-async", **CALLER})
        assert later.status_code == 202
        got = await until_pulled(client, 4)
        await settle(client, "acknowledge", *(item["ack_id"] for item in got))
    assert [item["message"]["headers"] for item in got].count(CALLER) == 3
    assert [item["message"]["headers"] for item in got].count(OWN) == 1


async def test_without_a_collector_problems_name_the_callers_trace(tmp_path: Path) -> None:
    async with estate(tmp_path, None, EMBEDDED) as (_, client, _):
        path = PUBLISH.format("nowhere")
        with_trace = (await client.post(path, json={"payload": "x"}, headers=CALLER)).json()
        without = (await client.post(path, json={"payload": "x"})).json()
    assert (with_trace["code"], with_trace["trace_id"]) == ("broker_not_found", TRACE)
    assert "trace_id" not in without


async def test_a_problem_names_its_trace_and_its_span_says_why(tmp_path: Path, collector: Collector) -> None:
    async with estate(tmp_path, collector, EMBEDDED) as (_, client, _):
        missing = await client.post(PUBLISH.format("nowhere"), json={"payload": "x"}, headers=CALLER)
        body = {"payload": "x", "routing_key": "nobody", "mandatory": True}
        refused = await client.post(PUBLISH.format("local-0-9-1"), json=body)
        spans = await collector.until(lambda found: len(of(found, "POST")) == 2)
    assert missing.json()["trace_id"] == TRACE
    ours = only(spans, "publish", **{names.BROKER: "local-0-9-1"})
    assert refused.json()["trace_id"] == ours.trace_id != TRACE
    assert ours.failed == "422"
    assert {span.attributes[names.STATUS]: span.failed for span in of(spans, "POST")} == {404: "", 422: ""}


async def test_a_publish_that_raises_says_why(tmp_path: Path, collector: Collector) -> None:
    async with estate(tmp_path, collector, EMBEDDED) as (_, client, _):
        missing = await client.post("/v1/brokers/local-0-9-1/exchanges/none:publish", json={"payload": "x"})
        both = {"messages": [{"payload": "x", "key": "a"}]}
        path = PUBLISH.format("local-0-9-1")
        twice = await client.post(path, json=both, headers={"idempotency-key": "k"})
        spans = await collector.until(lambda found: len(of(found, "publish")) == 2)
    assert (missing.json()["code"], twice.json()["code"]) == ("not_found", "invalid_parameter")
    assert sorted(span.failed for span in of(spans, "publish")) == ["404", "invalid_parameter"]


async def test_a_batch_and_a_stream_are_one_span_each_part(tmp_path: Path, collector: Collector) -> None:
    async with estate(tmp_path, collector, EMBEDDED) as (_, client, _):
        await queue(client)
        await subscribe(client)
        items = [{"routing_key": "q", "payload": str(number)} for number in range(5)]
        answer = await client.post(PUBLISH.format("local-0-9-1"), json={"messages": items}, headers=CALLER)
        assert answer.status_code == 207
        lines = "".join(json.dumps(item) + "\n" for item in items)
        more = {"content-type": "application/x-ndjson", **CALLER}
        answer = await client.post(PUBLISH.format("local-0-8"), content=lines, headers=more)
        assert answer.status_code == 200
        got: list[dict[str, Any]] = []
        while len(got) < 10:
            got += await pull(client)
        spans = await collector.until(lambda found: len(of(found, "deliver")) == 10)
    batch = only(spans, "publish", **{names.BROKER: "local-0-9-1"})
    stream = only(spans, "publish", **{names.BROKER: "local-0-8"})
    for span in (batch, stream):
        assert (span.attributes[names.BATCH_COUNT], span.attributes[names.DESTINATION]) == (5, "q")
        assert names.MESSAGE_ID not in span.attributes
    parents = [item["message"]["headers"]["traceparent"] for item in got]
    assert sorted(parents) == sorted(f"00-{TRACE}-{span.span_id}-01" for span in (batch, stream) for _ in range(5))


async def test_what_is_published_later_is_part_of_the_trace_that_asked(tmp_path: Path, collector: Collector) -> None:
    async with estate(tmp_path, collector, EMBEDDED) as (_, client, _):
        await queue(client)
        await publish(client, {**CALLER, "prefer": "respond-async"})
        spans = await collector.until(lambda found: bool(of(found, "publish")))
    asked, sent = only(spans, "schedule"), only(spans, "publish")
    assert (asked.kind, asked.attributes[names.OPERATION_TYPE]) == (SpanKind.PRODUCER, "create")
    assert (sent.kind, sent.trace_id, sent.parent_id) == (SpanKind.CLIENT, TRACE, asked.span_id)
    assert asked.attributes[names.MESSAGE_ID] == sent.attributes[names.MESSAGE_ID]


async def test_a_repeated_publish_is_the_same_message(tmp_path: Path, collector: Collector) -> None:
    """An Idempotency-Key is about what the caller said: another trace is not another request."""
    async with estate(tmp_path, collector, EMBEDDED) as (_, client, _):
        await queue(client)
        await subscribe(client)
        first = await publish(client, {**CALLER, "idempotency-key": "k"})
        again = await publish(client, {"idempotency-key": "k"})
        assert first == again
        (item,) = await pull(client)
        assert item["message"]["headers"]["traceparent"].split("-")[1] == TRACE


# ------------------------------------------------------------------------------------------- webhooks, bridges


PUSHED = {
    **EMBEDDED,
    "subscriptions.s.broker": "local-0-9-1",
    "subscriptions.s.queue": "q",
    "subscriptions.s.push": "hook",
}


async def pushed(client: httpx.AsyncClient, hook: Hook, count: int = 1) -> list[dict[str, str]]:
    await until(lambda: len(hook.got) >= count)
    return [headers for headers, _ in hook.got]


async def test_an_attempt_belongs_to_the_messages_trace(tmp_path: Path, collector: Collector) -> None:
    async with estate(tmp_path, collector, PUSHED) as (_, client, hook):
        await queue(client)
        hook.status = 500
        told = await publish(client, CALLER)
        (headers,) = await pushed(client, hook)
        spans = await collector.until(lambda found: bool(of(found, "process")))
    sent, attempt = only(spans, "publish"), only(spans, "process")
    assert (attempt.trace_id, attempt.parent_id, attempt.kind) == (TRACE, sent.span_id, SpanKind.CONSUMER)
    assert (attempt.attributes[names.ENDPOINT], attempt.attributes[names.ATTEMPT]) == ("hook", 1)
    assert (attempt.attributes[names.MESSAGE_ID], attempt.attributes[names.SUBSCRIPTION]) == (told["id"], "s")
    post = only(spans, "POST", **{names.ENDPOINT: "hook"})
    assert (post.trace_id, post.parent_id, post.kind) == (TRACE, attempt.span_id, SpanKind.CLIENT)
    assert (post.attributes[names.STATUS], post.failed, attempt.failed) == (500, "500", "500")
    assert post.attributes[names.SERVER_ADDRESS] == "127.0.0.1"
    assert headers["traceparent"] == f"00-{TRACE}-{post.span_id}-01"
    assert headers["tracestate"] == "caller=1"
    # The message's own header is the sender's, as ever.
    assert json.loads(headers["amqp-headers"])["traceparent"] == f"00-{TRACE}-{sent.span_id}-01"


@pytest.mark.parametrize(
    ("settings", "traceparent"),
    [
        ({"tracing.webhooks": False}, None),
        ({"endpoints.hook.headers": {"traceparent": "their own"}}, "their own"),
    ],
)
async def test_an_endpoint_need_not_be_told(
    tmp_path: Path, collector: Collector, settings: dict[str, Any], traceparent: str | None
) -> None:
    async with estate(tmp_path, collector, {**PUSHED, **settings}) as (_, client, hook):
        await queue(client)
        await publish(client, CALLER)
        (headers,) = await pushed(client, hook)
        await collector.until(lambda found: bool(of(found, "process")))
    assert headers.get("traceparent") == traceparent


async def test_a_request_of_several_traces_is_a_trace_of_its_own(tmp_path: Path, collector: Collector) -> None:
    batched = {"endpoints.hook.format": "json", "endpoints.hook.batch_max": 10, "endpoints.hook.batch_wait": 1.0}
    async with estate(tmp_path, collector, {**PUSHED, **batched, "tracing.sample": 0.0}) as (_, client, hook):
        await queue(client)
        other = "f" * 32
        await asyncio.gather(
            publish(client, CALLER),
            publish(client, {"traceparent": f"00-{other}-{SPAN}-01"}),
            publish(client),
        )
        await until(lambda: sum(len(json.loads(body)["messages"]) for _, body in hook.got) == 3)
        assert len(hook.got) == 1
        spans = await collector.until(lambda found: bool(of(found, "process")))
    attempt = only(spans, "process")
    assert attempt.trace_id not in (TRACE, other)
    assert {trace for trace, _ in attempt.links} == {TRACE, other}
    assert attempt.attributes[names.BATCH_COUNT] == 3
    assert names.MESSAGE_ID not in attempt.attributes


BRIDGED = {
    **EMBEDDED,
    "bridges.b.source.broker": "local-0-9-1",
    "bridges.b.source.queue": "q",
    "bridges.b.target.broker": "local-0-10",
    "bridges.b.target.routing_key": "out",
    "subscriptions.s.broker": "local-0-8",
    "subscriptions.s.queue": "out",
}


async def test_a_bridge_reads_and_writes_nothing(tmp_path: Path, collector: Collector) -> None:
    async with estate(tmp_path, collector, BRIDGED) as (app, client, _):
        await queue(client, "q")
        await queue(client, "out")
        told = await publish(client, CALLER, broker="local-0-9-1", headers={"n": 1})
        await without_trace(app)
        first, second = sorted(await until_pulled(client, 2), key=lambda item: "traceparent" in str(item), reverse=True)
        spans = await collector.until(lambda found: bool(of(found, "forward")))
    sent, passed = only(spans, "publish", **{names.BROKER: "local-0-9-1"}), only(spans, "forward")
    assert (passed.trace_id, passed.parent_id, passed.kind) == (TRACE, sent.span_id, SpanKind.CONSUMER)
    assert passed.attributes[names.BRIDGE] == "b"
    assert (passed.attributes[names.TARGET], passed.attributes[names.TARGET_DESTINATION]) == ("local-0-10", "out")
    assert passed.attributes[names.MESSAGE_ID] == told["id"]
    child = only(spans, "publish", **{names.BRIDGE: "b"})
    assert (child.trace_id, child.parent_id, child.kind) == (TRACE, passed.span_id, SpanKind.CLIENT)
    assert child.seconds <= passed.seconds
    # What came out is what went in.
    assert first["message"]["headers"] == {
        "n": 1,
        "traceparent": f"00-{TRACE}-{sent.span_id}-01",
        "tracestate": "caller=1",
    }
    assert second["message"]["headers"] == {"n": 2}


async def without_trace(app: App) -> None:
    """A message that somebody else publishes, who traces nothing."""
    from gateway.amqp.message import Message, Properties

    upstream = app.gateway.broker("local-0-9-1")
    await upstream.publish("", "q", Message(b"bare", Properties(headers={"n": 2}, delivery_mode=2)))


async def until_pulled(client: httpx.AsyncClient, count: int) -> list[dict[str, Any]]:
    got: list[dict[str, Any]] = []
    async with asyncio.timeout(20):
        while len(got) < count:
            got += await pull(client)
    return got


async def test_a_stream_hands_out_within_the_messages_trace(tmp_path: Path, collector: Collector) -> None:
    async with estate(tmp_path, collector, EMBEDDED) as (_, client, _):
        await queue(client)
        await subscribe(client)
        await publish(client, CALLER)
        path, accept = "/v1/subscriptions/s:stream", {"accept": "application/x-ndjson"}
        async with client.stream("GET", path, headers=accept) as answer:
            async for line in answer.aiter_lines():
                if line:
                    break
        assert json.loads(line)["message"]["headers"]["traceparent"].split("-")[1] == TRACE
        spans = await collector.until(lambda found: bool(of(found, "deliver")) and bool(of(found, "GET")))
    assert only(spans, "deliver").trace_id == TRACE
    assert only(spans, "GET").name == "GET /v1/subscriptions/{subscription}:stream"


async def test_a_collector_that_is_away_costs_nobody_anything(tmp_path: Path, collector: Collector) -> None:
    collector.status = 503
    async with estate(tmp_path, collector, {**EMBEDDED, "tracing.queue_max": 10}) as (app, client, _):
        await queue(client)
        await subscribe(client)
        for _ in range(30):
            await publish(client)
        got = await until_pulled(client, 30)
        assert len(got) == 30
        metrics = (await client.get(f"{app.ops_url}/metrics")).text
    assert collector.spans == []
    assert 'amqpgw_publishes_total{broker="local-0-10",outcome="confirmed"} 30.0' in metrics


RICH = {
    "text": "ü", "n": -5, "big": 2**40, "flag": True, "nothing": None, "list": [1, "two", {"three": 3.5}],
    "table": {"inner": {"deep": "x"}}, "time": {"type": "timestamp", "value": 1_700_000_000},
    "octets": {"type": "binary", "value": "AP8="},
}  # fmt: skip


@pytest.mark.parametrize("broker", BROKERS)
async def test_but_for_the_two_headers_a_message_is_what_it_is_without_tracing(
    tmp_path: Path, collector: Collector, broker: str
) -> None:
    found = []
    for number, traced in enumerate((collector, None)):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with estate(folder, traced, EMBEDDED) as (_, client, _):
            await queue(client)
            await subscribe(client, broker=broker)
            properties = {"message_id": "m", "content_type": "text/plain", "priority": 3, "type": "t", "app_id": "a"}
            await publish(client, CALLER, broker, headers=RICH, properties=properties)
            (item,) = await pull(client)
            found.append(item["message"])
    traced_message, bare = found
    for message in found:
        assert list(message["headers"])[-2:] == ["traceparent", "tracestate"]
        for name in ("traceparent", "tracestate"):
            del message["headers"][name]
        del message["id"]
    assert traced_message == bare
    assert list(traced_message["headers"]) == list(bare["headers"]) == list(RICH)


async def test_the_log_says_how_a_broker_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gateway")
    async with estate(tmp_path, None, EMBEDDED):
        pass
    told = [record.gateway_fields for record in caplog.records if record.message == "broker.state"]  # type: ignore[attr-defined]
    for name in BROKERS:
        states = [line["state"] for line in told if line["broker"] == name]
        assert states[0] == "up"
        assert states[-1] == "closed"


async def test_a_push_names_the_broker_as_it_is_now(tmp_path: Path, collector: Collector) -> None:
    """Also after the broker was changed; what makes the spans asks for it each time."""
    brokers = [EmbeddedBroker(EmbeddedSettings(port=0), Limits(close_timeout=0.5)) for _ in range(2)]
    for broker in brokers:
        await broker.start()
    async with estate(tmp_path, collector, {"outbound.broker_allow": ["127.0.0.0/8"]}) as (_, client, hook):
        for number, broker in enumerate(brokers, 1):
            settings = {"url": f"amqp://guest:guest@127.0.0.1:{broker.port}/?version=0-9-1"}
            (await client.put("/v1/brokers/shop", json=settings, headers={"if-match": "*"} if number > 1 else {})
             ).raise_for_status()  # fmt: skip
            async with asyncio.timeout(20):
                while (await client.get("/v1/brokers/shop")).json()["state"] != "up":
                    await asyncio.sleep(0.02)
            (await client.put("/v1/brokers/shop/queues/q", json={})).raise_for_status()
            await subscribe(client, "pushed", broker="shop", push="hook")
            await publish(client, {}, "shop")
            await until(lambda: len(hook.got) == number)  # noqa: B023
            spans = await collector.until(lambda found: len(of(found, "process")) == number)  # noqa: B023
            assert of(spans, "process")[-1].attributes[names.SERVER_PORT] == broker.port
    for broker in brokers:
        await broker.stop()
