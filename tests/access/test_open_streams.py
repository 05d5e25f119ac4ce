"""Streams end when the credential of their reader, or writer, counts no more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from time import time
from typing import Any

import pytest

from gateway.access.access import Access
from gateway.api.app import Api
from gateway.api.http import call as calls
from gateway.api.http.auth import ConfiguredKeys
from gateway.api.http.guard import CERTIFICATE
from gateway.api.messages import stream as publishing
from gateway.config import AccessSettings, ApiKeySettings, CertificateSettings, Config, HttpSettings, HttpTls
from gateway.core import Gateway
from gateway.core.leasing import streams
from gateway.ledger import Ledger
from gateway.outbound import GuardedTransport
from tests.access.conftest import ROOT
from tests.access.test_tokens import Issuer, issuer, settings, token, transport
from tests.api.test_events import of_bridge
from tests.core.fakes import FakeUpstream
from tests.core.test_intake import until
from tests.core.test_ledger_leases import bodies, subscribe
from tests.core.test_publishing import message

__all__ = ["issuer", "transport"]

PUBLISH = "/v1/brokers/fake/exchanges/amq.default:publish"
STREAM = "/v1/subscriptions/billing:stream"
EVENTS = "/v1/events"
NDJSON = "application/x-ndjson"
SCOPES = ("publish:fake/amq.default", "consume:fake/orders", "history")


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked more often than it would be."""
    monkeypatch.setattr(calls, "STILL_COUNTS", 0.0)
    monkeypatch.setattr(publishing, "LOOK_AGAIN", 0.02)
    monkeypatch.setattr(streams, "ASK_EVERY", 0.02)


class Open:
    """A stream that goes on: ASGI by hand, whose body comes as it is told to."""

    def __init__(self, api: Api, path: str, key: str = "", accept: str = NDJSON, certificate: str = "") -> None:
        self._body: asyncio.Queue[Any] = asyncio.Queue()
        self.publishes = path == PUBLISH
        self.status = 0
        self.text = ""
        self.ended = False
        headers = [(b"accept", accept.encode()), (b"content-type", NDJSON.encode())]
        headers += [(b"authorization", f"Bearer {key}".encode())] if key else []
        scope: Any = {
            "type": "http", "method": "POST" if self.publishes else "GET", "path": path, "raw_path": path.encode(),
            "query_string": b"", "client": ("127.0.0.1", 1), "headers": headers,
        }  # fmt: skip
        if certificate:
            scope[CERTIFICATE] = frozenset({certificate})
        if not self.publishes:
            self._body.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        self.task = asyncio.create_task(api(scope, self._body.get, self._send))

    async def _send(self, sent: Any) -> None:
        if sent["type"] == "http.response.start":
            self.status = sent["status"]
        else:
            self.text += sent["body"].decode()
            self.ended = not sent["more_body"]

    def say(self, octets: bytes) -> None:
        self._body.put_nowait({"type": "http.request", "body": octets, "more_body": True})

    def publish(self, payload: str) -> None:
        self.say(json.dumps({"routing_key": "orders", "payload": payload}).encode() + b"\n")

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.text.split("\n") if line]

    async def end(self) -> None:
        self._body.put_nowait({"type": "http.disconnect"})
        async with asyncio.timeout(10):
            await asyncio.gather(self.task, return_exceptions=True)


Opening = Callable[..., Open]


@pytest.fixture
async def opening() -> AsyncIterator[Opening]:
    opened: list[Open] = []

    def begin(*arguments: Any, **more: Any) -> Open:
        opened.append(Open(*arguments, **more))
        return opened[-1]

    yield begin
    for each in opened:
        await each.end()


@pytest.fixture
async def _billing(gateway: Gateway) -> None:
    await subscribe(gateway)


async def begun(opened: Open) -> Open:
    """As soon as it goes on."""
    if opened.publishes:
        opened.publish("first")
    await until(lambda: bool(opened.text))
    assert (opened.status, opened.ended) == (200, False)
    return opened


def reason(opened: Open) -> str:
    """What the last line says."""
    last = opened.lines[-1]
    if not opened.publishes:
        return str(last["end"])
    assert (last["status"], last["problem"]["code"]) in ((401, "unauthorized"), (403, "forbidden"))
    return str(last["problem"]["detail"])


@pytest.mark.usefixtures("_billing")
@pytest.mark.parametrize("path", [PUBLISH, STREAM, EVENTS])
async def test_a_key_that_is_revoked(gateway: Gateway, access: Access, opening: Opening, path: str) -> None:
    api = Api(gateway, HttpSettings(), (ROOT,), access=access)
    key, secret = await access.keys.create("shop", SCOPES, brokers=("fake", "b"), by="me")
    stream = await begun(opening(api, path, secret))
    await asyncio.sleep(0.2)
    assert not stream.ended
    await access.keys.revoke(key.id, by="me")
    await until(lambda: stream.ended)
    assert reason(stream) == "the API key is not valid"


@pytest.mark.usefixtures("_billing")
async def test_server_sent_events_end_with_a_reason(gateway: Gateway, access: Access, opening: Opening) -> None:
    api = Api(gateway, HttpSettings(), (ROOT,), access=access)
    key, secret = await access.keys.create("shop", SCOPES, brokers=("fake", "b"), by="me")
    opened = [await begun(opening(api, path, secret, accept="*/*")) for path in (STREAM, EVENTS)]
    await access.keys.revoke(key.id, by="me")
    for stream in opened:
        await until(lambda stream=stream: stream.ended)  # type: ignore[misc]
        assert stream.text.endswith('event: end\ndata: {"reason":"the API key is not valid"}\n\n')


async def test_a_line_after_the_end_of_a_key_is_not_published(
    gateway: Gateway, access: Access, opening: Opening, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However short the wait between two lines is, and although the rest of a line was there before."""
    monkeypatch.setattr(publishing, "LOOK_AGAIN", 60.0)
    api = Api(gateway, HttpSettings(), (ROOT,), access=access)
    key, secret = await access.keys.create("shop", SCOPES, brokers=("fake", "b"), by="me")
    stream = await begun(opening(api, PUBLISH, secret))
    await access.keys.revoke(key.id, by="me")
    stream.publish("late")
    await until(lambda: stream.ended)
    assert [line["status"] for line in stream.lines] == [200, 401]
    assert [sent.body for _, _, sent in upstream.published] == [b"first"]


@pytest.mark.usefixtures("_billing")
@pytest.mark.parametrize("path", [STREAM, EVENTS])
async def test_what_comes_after_the_end_of_a_key_is_not_handed_over(
    gateway: Gateway, access: Access, opening: Opening, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "ASK_EVERY", 60.0)
    monkeypatch.setattr("gateway.api.history.events.LOOK", 60.0)
    api = Api(gateway, HttpSettings(), (ROOT,), access=access)
    key, secret = await access.keys.create("shop", SCOPES, brokers=("fake", "b"), by="me")
    stream = await begun(opening(api, path, secret))
    await asyncio.sleep(0.1)
    await access.keys.revoke(key.id, by="me")
    await gateway.publish("fake", "", [message(b"late")])
    await gateway.ledger.record([of_bridge()])
    await until(lambda: stream.ended)
    assert [list(line) for line in stream.lines if "position" not in line or len(line) > 1] == [["end"]]
    if path == STREAM:  # it went back
        found = await gateway.subscriptions.get("billing")
        (again,) = await gateway.consuming.pull(found, 1, 5.0, None)
        assert bodies([again]) == [b"late"]
        gateway.consuming.hand_back([again], "the test is over")


async def test_a_key_that_expires(gateway: Gateway, access: Access, opening: Opening) -> None:
    api = Api(gateway, HttpSettings(), (ROOT,), access=access)
    _, secret = await access.keys.create("shop", SCOPES, brokers=("fake", "b"), by="me", seconds=3600)
    stream = await begun(opening(api, EVENTS, secret))
    access.keys._clock = lambda: time() + 3601
    await until(lambda: stream.ended)
    assert reason(stream) == "the API key is not valid"


@pytest.mark.usefixtures("_billing")
@pytest.mark.parametrize("path", [PUBLISH, STREAM, EVENTS])
@pytest.mark.parametrize(
    ("after", "why"),
    [
        ((), "the API key is not valid"),
        ((ApiKeySettings(name="other", key="secret"),), "not that of the same client"),
        ((ApiKeySettings(name="shop", key="secret", scopes=("publish:fake/x", "consume:fake/x")),), "lacks the scope"),
    ],
)
async def test_keys_of_another_configuration(
    gateway: Gateway, access: Access, opening: Opening, path: str, after: tuple[ApiKeySettings, ...], why: str
) -> None:
    api = Api(gateway, HttpSettings(), (ROOT, ApiKeySettings(name="shop", key="secret", scopes=SCOPES)), access=access)
    stream, root = await begun(opening(api, path, "secret")), await begun(opening(api, path, "root-secret"))
    api.reconfigure(HttpSettings(), ConfiguredKeys((ROOT, *after)))
    await until(lambda: stream.ended)
    assert why in reason(stream)
    assert not root.ended


async def test_a_token_that_expires(
    gateway: Gateway, ledger: Ledger, issuer: Issuer, transport: GuardedTransport, opening: Opening
) -> None:
    config = Config(access=AccessSettings(tokens=settings(issuer, leeway=0.0)))
    access = Access(config, ledger, transport)
    async with access.running():
        api = Api(gateway, config.http, access=access)
        short = await begun(opening(api, EVENTS, token(exp=int(time()) + 3).decode()))
        other = await begun(opening(api, EVENTS, token().decode()))
        await until(lambda: short.ended)
        assert reason(short) == "the token has expired"
        assert not other.ended


async def test_a_certificate_that_another_configuration_does_not_name(
    gateway: Gateway, ledger: Ledger, opening: Opening
) -> None:
    known = CertificateSettings(client="shop", name="CN:shop", scopes=("history",))
    http = HttpSettings(tls=HttpTls(client_ca_file="ca.pem"))
    access = Access(Config(http=http, access=AccessSettings(certificates=(known,))), ledger)
    async with access.running():
        api = Api(gateway, HttpSettings(), access=access)
        stream = await begun(opening(api, EVENTS, certificate="CN:shop"))
        access.certificates = {}
        api.reconfigure(HttpSettings(), ConfiguredKeys(()))
        await until(lambda: stream.ended)
        assert "credential" in reason(stream)


async def test_nobody_asks_more_often_than_needed(
    gateway: Gateway, access: Access, opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "STILL_COUNTS", 60.0)
    api = Api(gateway, HttpSettings(), (ROOT,), access=access)
    key, secret = await access.keys.create("shop", SCOPES, brokers=("fake", "b"), by="me")
    stream = await begun(opening(api, PUBLISH, secret))
    await access.keys.revoke(key.id, by="me")
    stream.publish("second")
    await until(lambda: len(stream.lines) == 2)
    assert stream.lines[1]["status"] == 200
