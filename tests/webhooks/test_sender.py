"""One request to an endpoint: what goes out, and what comes of whatever comes back."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import socket
import time
import tracemalloc
from base64 import b64decode

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from gateway.config import EndpointAuth
from gateway.errors import AddressDenied, ConfigurationError, EncodeError, GatewayError, ResolveFailed
from gateway.outbound import GuardedTransport, OutboundRules
from gateway.outbound.addresses import Address
from gateway.webhooks.attempts import sender as sender_module
from gateway.webhooks.attempts.schedule import NextStep, Schedule
from gateway.webhooks.attempts.sender import Sender, SendOutcome
from gateway.webhooks.attempts.signing import SignatureOutcome as Signed
from gateway.webhooks.endpoint import Endpoint
from tests.outbound.conftest import Make
from tests.outbound.endpoint import Endpoint as Server
from tests.outbound.endpoint import Request
from tests.test_telemetry import lines
from tests.webhooks import ed25519
from tests.webhooks.receivers import RECEIVERS, SECRET, SHARED, Receiver, endpoint_of, message, signed

__all__ = ["lines"]

DEADLINE = 0.5


def next_step(outcome: SendOutcome) -> NextStep:
    if outcome.error is not None:
        return Schedule().after_error(1, outcome.error, lambda: 0.5)
    assert outcome.status is not None
    return Schedule().after_status(1, outcome.status, outcome.retry_after, 1_445_412_480, lambda: 0.5)


@pytest.mark.parametrize("receiver", RECEIVERS.values(), ids=list(RECEIVERS))
async def test_receivers(receiver: Receiver, sender: Sender, server: Server) -> None:
    endpoint = endpoint_of(server.url(receiver.path), deadline=DEADLINE)
    now = int(time.time())
    outcome = await sender.send(endpoint, [message()], now)
    assert outcome.status == receiver.status
    assert type(outcome.error) is (receiver.error or type(None)), outcome.error
    assert (len(outcome.body), outcome.truncated) == (receiver.body, receiver.truncated)
    assert outcome.retry_after == receiver.retry_after
    assert next_step(outcome).outcome is receiver.outcome
    assert server.paths() == [receiver.path], "nothing is followed and nothing is sent twice"
    assert signed(server.requests[0], now, SHARED) is Signed.VALID


@pytest.mark.parametrize("name", ["10 GB", "gzip bomb", "100,000 headers"])
async def test_receivers_that_send_much_cost_little(name: str, sender: Sender, server: Server) -> None:
    endpoint = endpoint_of(server.url(RECEIVERS[name].path))
    await sender.send(endpoint_of(server.url("/200")), [message()], 0)  # what is made once is made
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(5):
            await sender.send(endpoint, [message()], 0)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The server is in this process: its buffers are in the peak.
    assert peak < 4 << 20
    assert kept < 1 << 20
    assert server.sent < 64 << 20


async def test_a_bad_receiver_delays_nobody_else(sender: Sender, server: Server) -> None:
    never = [sender.send(endpoint_of(server.url("/never"), deadline=5.0), [message()], 0) for _ in range(20)]
    waiting = asyncio.gather(*never)
    await asyncio.sleep(0)
    good = await asyncio.gather(*(sender.send(endpoint_of(server.url("/200")), [message()], 0) for _ in range(20)))
    assert [outcome.status for outcome in good] == [200] * 20
    assert not waiting.done()
    await server.close()
    assert all(outcome.error is not None for outcome in await waiting)


# --------------------------------------------------------------------------------------------- signatures


async def sent(sender: Sender, server: Server, endpoint: Endpoint, body: bytes) -> Request:
    outcome = await sender.send(endpoint, [message(body)], int(time.time()))
    assert outcome.status == 200, outcome
    return server.requests[-1]


async def test_the_reference_implementation_verifies_v1(sender: Sender, server: Server) -> None:
    request = await sent(sender, server, endpoint_of(server.url("/200")), b'{"total":"12,50 \xe2\x82\xac"}')
    Webhook(str(SHARED)).verify(request.body, request.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(str(SHARED)).verify(request.body + b" ", request.headers)


async def test_others_verify_v1a(sender: Sender, server: Server) -> None:
    """``cryptography`` through its own API, and the definition in plain integers; a body that is no text."""
    request = await sent(sender, server, endpoint_of(server.url("/200"), format="raw"), b"\x00\xff\xfe\r\n")
    assert request.body == b"\x00\xff\xfe\r\n"
    headers = request.headers
    text = b".".join((headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), request.body))
    (signature,) = [each[4:] for each in headers["webhook-signature"].split() if each.startswith("v1a,")]
    public = b64decode(str(SECRET.public).removeprefix("whpk_"))
    Ed25519PublicKey.from_public_bytes(public).verify(b64decode(signature), text)
    assert ed25519.verifies(public, text, b64decode(signature))
    with pytest.raises(InvalidSignature):
        Ed25519PublicKey.from_public_bytes(public).verify(b64decode(signature), text + b".")


async def test_the_id_stays_and_the_time_does_not(sender: Sender, server: Server) -> None:
    endpoint, item = endpoint_of(server.url("/200")), message()
    for at in (1_700_000_000, 1_700_000_300):
        await sender.send(endpoint, [item], at)
    first, second = server.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == item.id
    assert (first.headers["webhook-timestamp"], second.headers["webhook-timestamp"]) == ("1700000000", "1700000300")
    assert first.headers["webhook-signature"] != second.headers["webhook-signature"]


async def test_a_key_that_is_over_signs_nothing(sender: Sender, server: Server) -> None:
    endpoint = endpoint_of(server.url("/200"), signing=("v1a",))
    (key,) = endpoint.keys
    gone = Endpoint("shop", endpoint.settings, "", False, keys=(type(key)("v1a", key.id, 0.0, 100.0, True, key.key),))
    assert (await sender.send(gone, [message()], 99)).status == 200
    outcome = await sender.send(gone, [message()], 100)
    assert isinstance(outcome.error, ConfigurationError)
    assert "no key of v1a yet" in str(outcome.error)
    assert len(server.requests) == 1, "better late than unsigned"


async def test_without_signatures_the_id_is_there_all_the_same(sender: Sender, server: Server) -> None:
    item = message()
    await sender.send(endpoint_of(server.url("/200"), signing=()), [item], 7)
    (request,) = server.requests
    assert (request.headers["webhook-id"], request.headers["webhook-timestamp"]) == (item.id, "7")
    assert "webhook-signature" not in request.headers


# ------------------------------------------------------------------------------------------------ requests


async def test_headers_of_the_endpoint_and_who_we_are(sender: Sender, server: Server) -> None:
    for auth, said in (
        (EndpointAuth(kind="basic", user="Aladdin", secret="open sesame"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
        (EndpointAuth(kind="bearer", secret="t-1"), "Bearer t-1"),
    ):
        await sender.send(endpoint_of(server.url("/200"), auth=auth, headers={"X-Tenant": "7"}), [message()], 0)
        assert server.requests[-1].headers["authorization"] == said
        assert server.requests[-1].headers["x-tenant"] == "7"
    await sender.send(endpoint_of(server.url("/200")), [message()], 0)
    assert "authorization" not in server.requests[-1].headers


async def test_what_cannot_be_in_this_form_is_not_sent(sender: Sender, server: Server) -> None:
    endpoint = endpoint_of(server.url("/200"), format="raw")
    outcome = await sender.send(endpoint, [message(headers={"x": "y" * 20_000})], 0)
    assert (outcome.status, outcome.error) == (None, None)
    assert list(outcome.undeliverable) == [0]
    assert "raw allows 16384" in outcome.undeliverable[0]
    assert server.requests == []


async def test_errors_are_outcomes(sender: Sender, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    denied = await sender.send(endpoint_of("http://10.0.0.1/"), [message()], 0)
    assert isinstance(denied.error, AddressDenied)
    several = await sender.send(endpoint_of(server.url("/200"), format="raw"), [message(), message()], 0)
    assert isinstance(several.error, EncodeError)
    bad_id = message()
    bad_id.id = "a.b"
    assert isinstance((await sender.send(endpoint_of(server.url("/200")), [bad_id], 0)).error, EncodeError)

    def fault(*_: object) -> None:
        raise RuntimeError("secret in here")

    monkeypatch.setattr(sender_module, "write", fault)
    ours = await sender.send(endpoint_of(server.url("/200")), [message()], 0)
    assert type(ours.error) is GatewayError
    assert "secret" not in str(ours.error)
    assert server.requests == []


async def test_only_being_cancelled_gets_out(sender: Sender, server: Server) -> None:
    task = asyncio.create_task(sender.send(endpoint_of(server.url("/never")), [message()], 0))
    while not server.requests:
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_kept_connection_that_closes_costs_nothing(sender: Sender, server: Server) -> None:
    """The receiver knows a repeat by its id, so the request goes out again."""
    endpoint = endpoint_of(server.url("/first-only"))
    assert (await sender.send(endpoint, [message()], 0)).resent is False
    outcome = await sender.send(endpoint, [message()], 0)
    assert (outcome.status, outcome.resent) == (200, True)


async def test_the_guard_is_asked_each_time(make: Make) -> None:
    """What was allowed when the endpoint was put need not be allowed now."""

    async def resolve(host: str) -> list[str]:
        return ["10.0.0.7"]

    transport: GuardedTransport = make(OutboundRules(), resolve=resolve)
    sender = Sender(transport)
    outcome = await sender.send(endpoint_of("https://hooks.example/"), [message()], 0)
    assert isinstance(outcome.detailed, AddressDenied)
    assert "10.0.0.7 is denied" in str(outcome.detailed)


async def test_nobody_learns_how_a_name_resolves(make: Make, lines: io.StringIO) -> None:
    """One that leads inside, one that leads nowhere and one that does not exist are the same to callers."""
    names = {"inside.example": ["10.0.0.7"], "both.example": ["1.1.1.1", "10.0.0.7"], "empty.example": []}

    async def resolve(host: str) -> list[str]:
        if host not in names:
            raise ResolveFailed(f"{host}: Name or service not known")
        return names[host]

    async def dial(address: Address, port: int) -> socket.socket:
        raise ConnectionRefusedError(111, "no")

    sender = Sender(make(OutboundRules(), resolve=resolve, dial=dial))
    told = set()
    for host in (*names, "none.example"):
        error = (await sender.send(endpoint_of(f"https://{host}/"), [message()], 0)).error
        assert isinstance(error, ResolveFailed)
        told.add(str(error).replace(host, "HOST"))
    assert told == {"HOST: the host has no address that the gateway may call"}
    names["far.example"] = ["1.1.1.7"]
    outcome = await sender.send(endpoint_of("https://far.example/"), [message()], 0)
    assert str(outcome.error) == "https://far.example: Connection refused"
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert {line["event"] for line in logged} == {"push.not_reached"}
    assert [line["code"] for line in logged] == [
        "address_denied", "address_denied", "resolve_failed", "resolve_failed", "connect_failed",
    ]  # fmt: skip
    assert "10.0.0.7 is denied" in logged[0]["reason"]
    assert "1.1.1.7: Connection refused" in logged[-1]["reason"]
