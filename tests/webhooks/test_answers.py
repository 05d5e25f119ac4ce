"""What is kept of an answer, and what is made of it: over a transport and a broker that the test plays."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.amqp.message import Message, Properties
from gateway.budgets import ShareHolder
from gateway.config import EndpointAuth, EndpointTls
from gateway.errors import BrokerUnavailable, OutboundTimeout
from gateway.ledger import EventKind, MessageIds
from gateway.outbound import GuardedTransport, HttpAnswer
from gateway.runtime import replaced
from gateway.runtime.clock import clock
from gateway.tracing import Tracer
from gateway.upstreams import PublishReceipt, Upstream
from gateway.webhooks.attempts.auth import FRESH, EndpointTokens
from gateway.webhooks.attempts.excerpts import REDACTED
from gateway.webhooks.attempts.items import PushDelivery
from gateway.webhooks.attempts.replies import PAUSE, TEXT_MAX, Replies
from gateway.webhooks.attempts.sender import Sender, SendOutcome
from gateway.webhooks.attempts.traces import PushTraces
from tests.webhooks.receivers import endpoint_of, message
from tests.webhooks.virtual import now, run

URL = "https://shop.example/"


class PlayedTransport:
    """Gives an answer, and remembers the requests."""

    def __init__(self, status: int = 200, body: bytes = b"", **headers: str) -> None:
        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        self.answer = HttpAnswer(status, named, body, False)
        self.asked: list[dict[str, Any]] = []
        self.seconds = 0.0

    async def send(self, *_: Any, **named: Any) -> HttpAnswer:
        self.asked.append(named)
        await asyncio.sleep(self.seconds)
        return self.answer


def sender(transport: PlayedTransport, **more: Any) -> Sender:
    return Sender(cast(GuardedTransport, transport), **more)


async def test_the_outcome_has_what_is_needed_of_the_answer() -> None:
    headers = {"Retry_After": "7", "Content_Type": "text/plain", "Content_Encoding": "identity"}
    played = sender(PlayedTransport(429, b"busy", **headers))
    outcome = await played.send(endpoint_of(URL), [message()], 0)
    assert (outcome.status, outcome.body, outcome.excerpt) == (429, b"busy", "busy")
    assert (outcome.retry_after, outcome.content_type, outcome.content_encoding) == ("7", "text/plain", "identity")
    (attempt,) = played.recent.of("shop")
    assert (attempt.status, attempt.content_type, attempt.encoding) == (429, "text/plain", "identity")
    await played.close()


def test_the_seconds_of_a_request_are_counted() -> None:
    async def main() -> None:
        transport = PlayedTransport()
        transport.seconds = 2.5
        outcome = await sender(transport).send(endpoint_of(URL), [message()], 0)
        assert outcome.seconds == pytest.approx(2.5)

    run(main())


@pytest.mark.parametrize(
    "auth", [EndpointAuth(kind="basic", user="u", secret="pass-word"), EndpointAuth(kind="bearer", secret="pass-word")]
)
async def test_what_an_answer_repeats_of_the_login_is_not_kept(auth: EndpointAuth) -> None:
    for said in ("dTpwYXNzLXdvcmQ=", "pass-word"):
        played = sender(PlayedTransport(500, f"you said {said}".encode()))
        outcome = await played.send(endpoint_of(URL, auth=auth), [message()], 0)
        if auth.kind == "basic" or said == "pass-word":
            assert outcome.excerpt == f"you said {REDACTED}"


@pytest.mark.parametrize("refused", [0, 1])
async def test_what_an_answer_repeats_of_a_token_is_not_kept(refused: int) -> None:
    """Of the second one neither, where the endpoint did not take the first one."""
    transport, given, hooks = PlayedTransport(), 0, 0

    async def send(method: str, url: str, *_: Any, **__: Any) -> HttpAnswer:
        nonlocal given, hooks
        if "token" in url:
            given += 1
            return HttpAnswer(200, [], b'{"access_token":"secret-%d","token_type":"bearer"}' % given, False)
        hooks += 1
        status = 401 if hooks <= refused else 500
        return HttpAnswer(status, [], b"you said secret-%d" % given, False)

    transport.send = send  # type: ignore[method-assign]
    at = [0.0]
    tokens = EndpointTokens(cast(GuardedTransport, transport), lambda: at[0])
    auth = EndpointAuth(kind="oauth2", user="u", secret="client-pass", token_url="https://id.example/token")
    assert await tokens.get(auth, 5.0) == "secret-1"
    at[0] += FRESH
    outcome = await sender(transport, tokens=tokens).send(endpoint_of(URL, auth=auth), [message()], 0)
    assert (outcome.status, given, hooks) == (500, 1 + refused, 1 + refused)
    assert outcome.excerpt == f"you said {REDACTED}"


@pytest.mark.parametrize("tls", [EndpointTls(), EndpointTls(server_name="inner.example")])
@pytest.mark.parametrize("client", [None, ShareHolder("somebody", kind="client")])
async def test_certificates_and_the_share_of_the_lookups(tls: EndpointTls, client: ShareHolder | None) -> None:
    transport = PlayedTransport()
    await sender(transport).send(endpoint_of(URL, tls=tls), [message()], 0, client=client)
    (asked,) = transport.asked
    assert asked["tls"] == (None if tls == EndpointTls() else tls)
    assert asked["client"] == (client or ShareHolder("shop", kind="endpoint"))
    assert (asked["repeatable"], asked["fresh"]) == (True, False)


async def test_what_was_never_sent_is_no_attempt() -> None:
    played = sender(PlayedTransport())
    outcome = await played.send(endpoint_of(URL, format="raw"), [message(headers={"x": "y" * 20_000})], 0)
    assert list(outcome.undeliverable) == [0]
    assert played.recent.of("shop") == []


@pytest.mark.parametrize(("used", "is_sent"), [(14.5, True), (15.0, False), (16.0, False)])
async def test_a_request_without_any_time_left_is_not_made(used: float, *, is_sent: bool) -> None:
    transport = PlayedTransport()
    at = iter([0.0, used, used, used])
    with replaced(clock, monotonic=lambda: next(at)):
        outcome = await sender(transport).send(endpoint_of(URL, deadline=15.0), [message()], 0)
    assert isinstance(outcome.error, OutboundTimeout) is not is_sent
    assert [each["within"] for each in transport.asked] == ([15.0 - used] if is_sent else [])


async def test_a_traced_request_has_an_end() -> None:
    tracer = Tracer(sample=1.0)
    played = sender(PlayedTransport(), traces=PushTraces(tracer, lambda name: None))
    await played.send(endpoint_of(URL), [message()], 0)
    assert tracer.fetch(10)


async def test_the_end_of_a_sender_is_that_of_its_tokens() -> None:
    transport = PlayedTransport()
    transport.seconds = 3_600.0
    played = sender(transport)
    auth = EndpointAuth(kind="oauth2", user="u", secret="s", token_url="https://id.example/token")
    sending = asyncio.create_task(played.send(endpoint_of(URL, auth=auth), [message()], 0))
    while not transport.asked:
        await asyncio.sleep(0)
    await played.close()
    await asyncio.wait([sending])
    assert sending.cancelled()


# ------------------------------------------------------------------------------------------------------- replies


class PlayedBroker:
    """Takes replies, or is away."""

    def __init__(self, away: int = 0) -> None:
        self.settings = SimpleNamespace(annotate=False)
        self.away = away
        self.published: list[tuple[str, str, Message]] = []
        self.times: list[float] = []

    async def publish(self, exchange: str, routing_key: str, message: Message, *, timeout: float) -> PublishReceipt:
        self.times.append(asyncio.get_running_loop().time())
        if len(self.times) <= self.away:
            raise BrokerUnavailable("it is away")
        self.published.append((exchange, routing_key, message))
        return PublishReceipt(True)


def asked(**properties: Any) -> PushDelivery:
    """A message that may want a reply."""
    item = PushDelivery()
    item.message, item.message_id = Message(b"", Properties(**properties)), bytes(16)
    item.arrival, item.attempt, item.reason, item.redelivered, item.resent = None, 1, {"attempt": 0}, False, False
    return item


async def reply(broker: PlayedBroker, item: PushDelivery, **outcome: Any) -> Any:
    return await Replies(MessageIds()).send(cast(Upstream, broker), item, SendOutcome(**outcome))


@pytest.mark.parametrize(
    ("reply_to", "status", "count"), [("q", 200, 1), ("q", 201, 1), ("q", 204, 0), ("q", 205, 0), (None, 200, 0)]
)
async def test_only_an_answer_with_content_to_who_asked_is_a_reply(
    reply_to: str | None, status: int, count: int
) -> None:
    broker = PlayedBroker()
    found = await reply(broker, asked(reply_to=reply_to), status=status, body=b"answer")
    assert [(exchange, key, each.body) for exchange, key, each in broker.published] == [("", "q", b"answer")] * count
    assert (found is not None) == bool(count)
    if found is not None:
        assert (found[0], found[1]["size"]) == (EventKind.REPLIED, 6)


@pytest.mark.parametrize(("length", "is_kept"), [(TEXT_MAX, True), (TEXT_MAX + 1, False)])
async def test_a_content_type_is_passed_on_where_a_property_can_hold_it(length: int, *, is_kept: bool) -> None:
    broker = PlayedBroker()
    await reply(broker, asked(reply_to="q"), status=200, content_type="x" * length, content_encoding="y" * length)
    ((_, _, message),) = broker.published
    found = message.properties.content_type, message.properties.content_encoding
    assert found == (("x" * length, "y" * length) if is_kept else (None, None))


def test_a_broker_that_is_away_is_tried_again_after_a_pause() -> None:
    async def main() -> None:
        broker, begun = PlayedBroker(away=2), now()
        await reply(broker, asked(reply_to="q"), status=200, body=b"x")
        assert [at - begun for at in broker.times] == [0, PAUSE, 2 * PAUSE]
        assert len(broker.published) == 1

    run(main())
