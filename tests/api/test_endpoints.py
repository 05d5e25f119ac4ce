"""``/v1/endpoints`` and ``/.well-known/webhook-keys``, over a real server that is pushed to."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import httpx
import pytest
from standardwebhooks.webhooks import Webhook

from gateway.api.app import Api
from gateway.api.resources.peers import CallAnswer, CallRequest
from gateway.budgets import BudgetBounds
from gateway.config import ApiKeySettings, EndpointSettings, HttpSettings
from gateway.core import Gateway
from gateway.errors import PeerUnavailable
from gateway.ledger.work import Peer
from gateway.outbound import GuardedTransport, OutboundRules
from gateway.webhooks.attempts.sender import Sender
from gateway.webhooks.settings.endpoints import EndpointRegistry
from gateway.webhooks.settings.secrets import Seals
from tests.api.conftest import problem
from tests.outbound.conftest import make, server
from tests.outbound.endpoint import Endpoint as Server

__all__ = ["make", "server"]

SHOP, KEYS = "/v1/endpoints/shop", "/.well-known/webhook-keys"


@pytest.fixture
async def endpoints(
    gateway: Gateway, make: Callable[..., GuardedTransport], server: Server
) -> AsyncIterator[EndpointRegistry]:
    transport = make()
    sender = Sender(transport)
    configured = {"file": EndpointSettings(url=server.url("/200"), signing=("v1a",))}
    found = EndpointRegistry(gateway.ledger, configured, sender, Seals([bytes(32)]))
    await found.start()
    yield found
    await found.close()
    await sender.close()


@pytest.fixture
async def client(gateway: Gateway, endpoints: EndpointRegistry) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(Api(gateway, HttpSettings(), endpoints=endpoints))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def test_create_read_replace_delete(client: httpx.AsyncClient, server: Server) -> None:
    settings = {"url": server.url("/200"), "auth": {"kind": "basic", "user": "u", "secret": "geheim"}}
    created = await client.put(SHOP, json=settings)
    assert created.status_code == 201, created.text
    assert created.headers["cache-control"] == "no-store"
    body = created.json()
    assert (body["name"], body["state"], body["read_only"], body["reason"]) == ("shop", "active", False, "")
    assert (body["settings"]["format"], body["settings"]["concurrency"]) == ("json", 10)
    assert (body["settings"]["auth"]["secret"], body["secrets"]) == ("", ["auth.secret"])
    (key,) = body["signing_keys"]
    assert key["secret"].startswith("whsec_")
    assert (key["scheme"], key["old"], key["until"], key["public_key"]) == ("v1", False, None, None)
    assert datetime.fromisoformat(key["created_at"]).year > 2000
    read = await client.get(SHOP)
    assert read.headers["etag"] == created.headers["etag"]
    assert "secret" not in read.json()["signing_keys"][0]
    assert "geheim" not in read.text
    assert key["secret"] not in read.text
    again = await client.put(SHOP, json=settings)
    assert (again.status_code, "secret" in again.json()["signing_keys"][0]) == (200, False)
    shown = read.json()["settings"]
    assert (await client.put(SHOP, json=shown)).status_code == 200, "what is shown can be put"
    other = {**shown, "rate": 5}
    problem(await client.put(SHOP, json=other), 428, "precondition_required")
    problem(await client.put(SHOP, json=other, headers={"if-match": '"x"'}), 412, "etag_mismatch")
    replaced = await client.put(SHOP, json=other, headers={"if-match": read.headers["etag"]})
    assert (replaced.status_code, replaced.json()["settings"]["rate"]) == (200, 5)
    problem(await client.delete(SHOP, headers={"if-match": read.headers["etag"]}), 412, "etag_mismatch")
    assert (await client.delete(SHOP)).status_code == 204
    for method, verb in (
        ("GET", ""), ("DELETE", ""),
        *(("POST", f":{verb}") for verb in ("pause", "resume", "enable", "verify", "rotate", "test")),
    ):  # fmt: skip
        problem(await client.request(method, f"{SHOP}{verb}"), 404, "endpoint_not_found")


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        ({}, "invalid_request", "/url"),
        ({"url": "https://x.example/", "nonsense": 1}, "invalid_request", "/nonsense"),
        ({"url": "https://x.example/", "format": "xml"}, "invalid_request", "/format"),
        ({"url": "https://x.example/", "concurrency": 0}, "invalid_request", "/concurrency"),
        ({"url": "https://x.example/", "signing": ["v2"]}, "invalid_request", "/signing/0"),
        ({"url": "nonsense"}, "invalid_value", "/url"),
        ({"url": "https://x.example/", "auth": {"kind": "bearer"}}, "invalid_value", "/auth/secret"),
        (
            {"url": "https://x.example/", "auth": {"kind": "bearer", "secret_file": "/etc/passwd"}},
            "invalid_value",
            "/auth/secret_file",
        ),
        ({"url": "https://x.example/", "tls": {"ca_file": "/etc/passwd"}}, "invalid_value", "/tls/ca_file"),
        ({"url": "https://x.example/", "tls": {"ca": "x"}}, "invalid_value", "/tls/ca"),
        ({"url": "https://x.example/", "headers": {"Host": "x"}}, "invalid_value", "/headers"),
        ({"url": "https://169.254.169.254/"}, "address_denied", None),
        (
            {
                "url": "https://x.example/",
                "auth": {"kind": "oauth2", "user": "u", "secret": "s", "token_url": "https://10.0.0.1/"},
            },
            "address_denied",
            None,
        ),
    ],
)
async def test_bad_settings(client: httpx.AsyncClient, body: Any, code: str, pointer: str | None) -> None:
    found = problem(await client.put(SHOP, json=body), 422, code)
    if pointer is not None and not pointer.endswith("..."):
        assert [error["pointer"] for error in found.get("errors", ())] == [pointer]
    problem(await client.get(SHOP), 404, "endpoint_not_found")


async def test_bad_names(client: httpx.AsyncClient) -> None:
    for name in ("x" * 129, "%0A", "%FF"):
        problem(await client.put(f"/v1/endpoints/{name}", json={"url": "https://x.example/"}), 422, "invalid_parameter")


async def test_the_list_is_paged(client: httpx.AsyncClient, server: Server) -> None:
    for name in ("b", "a", "c"):
        await client.put(f"/v1/endpoints/{name}", json={"url": server.url("/200"), "signing": []})
    first = await client.get("/v1/endpoints?limit=3")
    assert [each["name"] for each in first.json()["endpoints"]] == ["a", "b", "c"]
    second = await client.get(first.links["next"]["url"])
    assert [each["name"] for each in second.json()["endpoints"]] == ["file"]
    assert "next" not in second.links


async def test_what_the_file_defines_is_read_only(client: httpx.AsyncClient, server: Server) -> None:
    assert (await client.get("/v1/endpoints/file")).json()["read_only"] is True
    problem(await client.put("/v1/endpoints/file", json={"url": server.url("/200")}), 409, "read_only")
    problem(await client.delete("/v1/endpoints/file"), 409, "read_only")
    assert (await client.post("/v1/endpoints/file:pause")).json()["state"] == "paused"


async def test_pause_resume_enable(client: httpx.AsyncClient, server: Server, endpoints: EndpointRegistry) -> None:
    await client.put(SHOP, json={"url": server.url("/200")})
    assert (await client.post(f"{SHOP}:pause")).json()["state"] == "paused"
    assert (await client.post(f"{SHOP}:resume")).json()["state"] == "active"
    await endpoints.disable("shop", "410: gone\udcff")
    found = (await client.get(SHOP)).json()
    assert (found["state"], found["reason"]) == ("disabled", "410: gone\\udcff")
    assert (await client.post(f"{SHOP}:enable")).json()["state"] == "active"


async def test_a_scheme_is_rotated_once(client: httpx.AsyncClient, server: Server) -> None:
    await client.put(SHOP, json={"url": server.url("/200")})
    keys = (await client.post(f"{SHOP}:rotate", json={"schemes": ["v1", "v1"]})).json()["signing_keys"]
    assert [key["old"] for key in keys] == [False, True]
    problem(await client.post(f"{SHOP}:rotate", json={"schemes": ["v1"] * 3}), 422, "invalid_request")


async def test_rotation(client: httpx.AsyncClient, server: Server) -> None:
    created = (await client.put(SHOP, json={"url": server.url("/200"), "signing": ["v1", "v1a"]})).json()
    old = created["signing_keys"][0]["secret"]
    rotated = await client.post(f"{SHOP}:rotate", json={"schemes": ["v1"], "overlap_seconds": None})
    assert rotated.headers["cache-control"] == "no-store"
    keys = rotated.json()["signing_keys"]
    assert [(key["scheme"], key["old"], "secret" in key) for key in keys] == [
        ("v1", False, True), ("v1", True, False), ("v1a", False, False),
    ]  # fmt: skip
    await client.post(f"{SHOP}:test")
    for secret in (old, keys[0]["secret"]):
        Webhook(secret).verify(server.requests[-1].body, server.requests[-1].headers)
    finished = (await client.post(f"{SHOP}:rotate", json={"finish": True})).json()
    assert [key["id"] for key in finished["signing_keys"]] == [keys[0]["id"], keys[2]["id"]]
    for _ in range(6):
        assert (await client.post(f"{SHOP}:rotate", json={"schemes": ["v1"]})).status_code == 200
    problem(await client.post(f"{SHOP}:rotate", json={"schemes": ["v1"]}), 409, "state")
    problem(await client.post("/v1/endpoints/file:rotate", json={"schemes": ["v1"]}), 422, "unsupported")
    problem(await client.post(f"{SHOP}:rotate", json={"overlap_seconds": -1}), 422, "invalid_request")


@pytest.mark.parametrize(
    ("path", "status", "verdict", "delivered"),
    [
        ("/200", 200, "delivered", True),
        ("/moved", 301, "retry", False),
        ("/410", 410, "disable", False),
        ("/429", 429, "pause", False),
        ("/hang-up", None, "retry", False),
    ],
)
async def test_a_test(
    client: httpx.AsyncClient, server: Server, path: str, status: int | None, verdict: str, delivered: bool
) -> None:
    await client.put(SHOP, json={"url": server.url(path)})
    answer = await client.post(f"{SHOP}:test")
    found = answer.json()
    assert (answer.status_code, found["status"], found["verdict"], found["delivered"]) == (
        200, status, verdict, delivered,
    )  # fmt: skip
    assert server.requests[-1].headers["webhook-id"] == found["id"]
    assert json.loads(server.requests[-1].body)["test"] is True
    assert ("problem" in found) == (status is None)
    if status is None:
        assert found["problem"]["code"] == "answer_cut"
    assert (await client.get(SHOP)).json()["state"] == "active", "a test changes nothing"


async def test_the_last_attempts(client: httpx.AsyncClient, server: Server, endpoints: EndpointRegistry) -> None:
    settings = {"url": server.url("/500"), "headers": {"X-Token": "token-of-shop"}}
    await client.put(SHOP, json=settings)
    assert (await client.get(f"{SHOP}/attempts")).json() == {"attempts": [], "complete": True}
    told = (await client.post(f"{SHOP}:test")).json()
    answer = await client.get(f"{SHOP}/attempts")
    (found,) = answer.json()["attempts"]
    assert (found["status"], found["test"], found["webhook_id"], found["count"]) == (500, True, told["id"], 1)
    assert found["seconds"] >= 0
    headers = {each["name"]: each["value"] for each in found["request_headers"]}
    assert (headers["X-Token"], headers["webhook-signature"]) == ("[redacted]", "[redacted]")
    assert "token-of-shop" not in answer.text
    assert found["response_body"] == "oh"
    assert (await client.get(f"{SHOP}/attempts?message=none")).json()["attempts"] == []
    problem(await client.get("/v1/endpoints/none/attempts"), 404, "endpoint_not_found")
    problem(await client.get(f"{SHOP}/attempts?x=1"), 422, "invalid_parameter")
    await client.delete(SHOP)
    assert endpoints.recent.of("shop") == []


async def test_attempts_of_other_processes(
    client: httpx.AsyncClient, server: Server, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.put(SHOP, json={"url": server.url("/200")})
    await client.post(f"{SHOP}:test")
    own = (await client.get(f"{SHOP}/attempts")).json()["attempts"]
    theirs = {**own[0], "id": "other-1", "at": "2020-01-01T00:00:00.000000Z"}
    peers = [
        Peer(bytes([number] * 8), number, 1, f"p{number}", f"http://p{number}", "", frozenset()) for number in (1, 2)
    ]
    asked: list[str] = []

    async def ask(_: Any, peer: Peer, request: CallRequest, within: float) -> CallAnswer:
        asked.append(request.path.decode())
        if peer.shard == 2:
            raise PeerUnavailable("it does not answer")
        return CallAnswer(200, [], json.dumps({"attempts": [theirs], "complete": True}).encode())

    monkeypatch.setattr("gateway.api.resources.attempts.ask", ask)
    monkeypatch.setattr(gateway.ledger.work, "shared", True)
    monkeypatch.setattr(type(gateway.peers), "others", peers)
    found = (await client.get(f"{SHOP}/attempts")).json()
    assert asked == [f"{SHOP}/attempts"] * 2
    assert ([each["id"] for each in found["attempts"]], found["complete"]) == ([own[0]["id"], "other-1"], False)


async def test_a_test_of_what_says_no_text(client: httpx.AsyncClient, server: Server) -> None:
    await client.put(SHOP, json={"url": server.url("/gzip-bomb")})
    found = (await client.post(f"{SHOP}:test")).json()
    assert found["body_encoding"] == "base64"
    assert b64decode(found["body"])[:2] == b"\x1f\x8b", "nothing is unpacked"


async def test_verify(client: httpx.AsyncClient, server: Server) -> None:
    await client.put(SHOP, json={"url": server.url("/404"), "handshake": True})
    found = (await client.post(f"{SHOP}:verify")).json()
    assert found["state"] == "unverified"
    assert "answered OPTIONS with 404" in found["reason"]


async def test_only_for_admin(gateway: Gateway, endpoints: EndpointRegistry) -> None:
    keys = [ApiKeySettings(name="caller", key="secret", scopes=("publish:*/*", "consume:*/*"))]
    transport = httpx.ASGITransport(Api(gateway, HttpSettings(), keys, endpoints=endpoints))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway.example") as client:
        assert (await client.get(KEYS)).status_code == 200, "receivers have no key"
        client.headers["authorization"] = "Bearer secret"
        for method, path in (("GET", "/v1/endpoints"), ("PUT", SHOP), ("POST", f"{SHOP}:rotate"), ("GET", SHOP)):
            problem(await client.request(method, path), 403, "forbidden")


async def test_a_gateway_that_pushes_nothing(gateway: Gateway) -> None:
    transport = httpx.ASGITransport(Api(gateway, HttpSettings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        problem(await client.get(SHOP), 422, "unsupported")
        assert (await client.get(KEYS)).json() == {"keys": []}


async def test_a_patch_keeps_the_secrets(
    client: httpx.AsyncClient, server: Server, endpoints: EndpointRegistry
) -> None:
    problem(await client.patch(SHOP, json={"rate": 2}), 404, "endpoint_not_found")
    auth = {"kind": "bearer", "secret": "s3cret"}
    made = await client.put(SHOP, json={"url": server.url("/200"), "auth": auth})
    problem(await client.patch(SHOP, json={"rate": 2}), 428, "precondition_required")
    match = {"if-match": made.headers["etag"]}
    changed = await client.patch(SHOP, json={"deadline_seconds": 5, "rate": 2}, headers=match)
    assert changed.status_code == 200, changed.text
    settings = changed.json()["settings"]
    assert (settings["deadline"], settings["deadline_seconds"], settings["rate"]) == (5, 5, 2)
    assert "s3cret" not in changed.text
    assert (await endpoints.get("shop")).settings.auth.secret == "s3cret"
    back = await client.patch(SHOP, json={"deadline_seconds": None}, headers={"if-match": "*"})
    assert back.json()["settings"]["deadline"] == 15
    problem(await client.patch(SHOP, json={"rate": 3}, headers=match), 412, "etag_mismatch")
    problem(await client.patch("/v1/endpoints/file", json={"rate": 3}, headers={"if-match": "*"}), 409, "read_only")


async def test_only_an_admin_learns_how_a_name_resolves(
    gateway: Gateway, make: Callable[..., GuardedTransport]
) -> None:
    async def resolve(host: str) -> list[str]:
        return ["10.0.0.7"] if host == "inside.example" else []

    transport = make(OutboundRules(), resolve=resolve)
    sender = Sender(transport)
    found = EndpointRegistry(gateway.ledger, {}, sender, Seals([bytes(32)]))
    await found.start()
    keys = [
        ApiKeySettings(name="low", key="low", scopes=("endpoint:*",)),
        ApiKeySettings(name="root", key="root", scopes=("admin",)),
    ]
    api = Api(gateway, HttpSettings(), keys, endpoints=found)
    said: dict[str, set[str]] = {"low": set(), "root": set()}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://localhost") as client:
        for name in ("inside", "none"):
            url, low = f"https://{name}.example/", {"x-api-key": "low"}
            settings = {"url": url, "handshake": True, "signing": []}
            assert (await client.put(f"/v1/endpoints/{name}", json=settings, headers=low)).status_code == 201
            for key, texts in said.items():
                for verb in ("verify", "test"):
                    answer = await client.post(f"/v1/endpoints/{name}:{verb}", headers={"x-api-key": key})
                    body = {**answer.json(), "id": "", "seconds": 0, "settings": {}}
                    texts.add(json.dumps(body).replace(f"{name}", "NAME"))
    await found.close()
    await sender.close()
    assert len(said["low"]) == 2, "one answer of each verb, whatever the name resolves to"
    assert not any("10.0.0.7" in text or "denied" in text for text in said["low"])
    assert any("10.0.0.7 is denied" in text and "address_denied" in text for text in said["root"])


@asynccontextmanager
async def two_keys(gateway: Gateway, endpoints: EndpointRegistry, url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API, two keys, and an endpoint for each."""
    keys = [ApiKeySettings(name=name, key=f"{name}-secret", scopes=("endpoint:*",)) for name in ("mallory", "alice")]
    transport = httpx.ASGITransport(Api(gateway, HttpSettings(), keys, endpoints=endpoints))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for name in ("mallory", "alice"):
            made = await client.put(f"/v1/endpoints/{name}", json={"url": url, "deadline": 300}, headers=_key(name))
            assert made.status_code == 201, made.text
        yield client


def _key(name: str) -> dict[str, str]:
    return {"x-api-key": f"{name}-secret"}


@pytest.mark.parametrize("verb", ["test", "verify"])
async def test_one_client_has_its_share_of_the_requests_to_endpoints(
    gateway: Gateway, endpoints: EndpointRegistry, server: Server, verb: str
) -> None:
    gateway.budgets.configure(BudgetBounds(0.5, 0.0, {"outbound_requests": 4}))
    async with two_keys(gateway, endpoints, server.url("/never")) as client:
        path = f"/v1/endpoints/mallory:{verb}"
        hanging = [asyncio.create_task(client.post(path, headers=_key("mallory"))) for _ in range(2)]
        await asyncio.sleep(0.1)
        refused = await client.post(path, headers=_key("mallory"))
        detail = problem(refused, 429, "budget_exceeded")["detail"]
        assert "budget outbound_requests: 'mallory' holds 2" in detail
        await client.put("/v1/endpoints/alice2", json={"url": server.url("/200")}, headers=_key("alice"))
        answer = await client.post("/v1/endpoints/alice2:test", headers=_key("alice"))
        assert answer.json()["delivered"] is True
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
    assert gateway.budgets["outbound_requests"].standing().held == 0


async def test_names_that_nobody_answers_hold_up_nobody_else(
    gateway: Gateway, endpoints: EndpointRegistry, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    getaddrinfo = socket.getaddrinfo

    def answers(host: str, *more: Any, **named: Any) -> Any:
        if host.endswith(".hooks.example"):
            go_on.wait(30)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return getaddrinfo(host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", answers)
    gateway.budgets.configure(BudgetBounds(1.0, 0.0))
    async with two_keys(gateway, endpoints, server.url("/200")) as client:
        tests = []
        for number in range(32):
            url = f"https://n{number}.hooks.example/"
            name = f"mallory{number}"
            made = await client.put(f"/v1/endpoints/{name}", json={"url": url}, headers=_key("mallory"))
            assert made.status_code == 201, made.text
            tests.append(asyncio.create_task(client.post(f"/v1/endpoints/{name}:test", headers=_key("mallory"))))
        await asyncio.sleep(0.1)
        local = server.url("/200").replace("127.0.0.1", "localhost")
        await client.put("/v1/endpoints/alice3", json={"url": local}, headers=_key("alice"))
        async with asyncio.timeout(2.0):
            answer = await client.post("/v1/endpoints/alice3:test", headers=_key("alice"))
        assert answer.json()["delivered"] is True, answer.text
        endpoint = await endpoints.get("alice3")
        outcome = await endpoints.test(endpoint.name)  # as a push to it
        assert outcome.status == 200
        go_on.set()
        for each in await asyncio.gather(*tests):
            assert each.json()["verdict"] in ("retry", "not_tried"), each.text
