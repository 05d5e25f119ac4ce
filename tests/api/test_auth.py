"""Who calls, and what they may do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.api.app import ROUTES, Api
from gateway.api.http.auth import ConfiguredKeys, Doorkeeper
from gateway.api.http.problems import ApiProblem
from gateway.api.http.routing import Scope
from gateway.config import ApiKeySettings, HttpSettings
from gateway.core import Gateway
from gateway.errors import ConfigurationError
from tests.api.conftest import problem

PUBLISH = "/v1/brokers/fake/exchanges/amq.default:publish"


def path_of(template: str) -> str:
    return template.format(asset="console.js" if template.startswith("/console") else "start.js")


@pytest.mark.parametrize("route", [route for route in ROUTES if route.scope is Scope.NONE], ids=lambda r: r.operation)
async def test_documents_are_open(route: Any, client_with_keys: Callable[..., Any]) -> None:
    response = await client_with_keys().request(route.method, path_of(route.path), headers={"authorization": ""})
    assert response.status_code == (400 if route.body else 200)  # there was none


async def test_scopes_are_per_object(client_with_keys: Callable[..., Any]) -> None:
    client = client_with_keys("publish:fake/amq.default", "consume:fake/orders")
    assert (await client.post(PUBLISH, json={"routing_key": "orders"})).status_code == 200
    problem(await client.post("/v1/brokers/fake/exchanges/other:publish", json={}), 403, "forbidden")
    assert (await client.get("/v1/brokers/fake/queues/orders")).status_code == 200
    problem(await client.get("/v1/brokers/fake/queues/other"), 403, "forbidden")
    problem(await client.delete("/v1/brokers/fake/queues/orders"), 403, "forbidden")
    problem(await client.put("/v1/subscriptions/s", json={"broker": "fake", "queue": "orders"}), 403, "forbidden")
    admin = {"authorization": "Bearer other-secret"}
    for name, queue in (("mine", "orders"), ("theirs", "other")):
        settings = {"broker": "fake", "queue": queue}
        assert (await client.put(f"/v1/subscriptions/{name}", json=settings, headers=admin)).status_code == 201
    assert (await client.post("/v1/subscriptions/mine:pull", json={})).status_code == 200
    problem(await client.post("/v1/subscriptions/theirs:pull", json={}), 403, "forbidden")
    listed = (await client.get("/v1/subscriptions")).json()["subscriptions"]
    assert [item["name"] for item in listed] == ["mine"]


@pytest.mark.parametrize("sent", ["Bearer secret", "bearer other-secret", "Bearer"])
async def test_two_credentials_are_refused(client_with_keys: Callable[..., Any], sent: str) -> None:
    """Which one counts would not be clear to a proxy that checks the other."""
    headers = {"authorization": sent, "x-api-key": "secret"}
    refused = problem(await client_with_keys("admin").get("/v1/brokers", headers=headers), 400, "malformed_request")
    assert "X-Api-Key" in refused["detail"]
    assert "Authorization" in refused["detail"]


async def test_a_proxy_may_have_a_login_of_its_own(client_with_keys: Callable[..., Any]) -> None:
    """``Authorization: Basic`` is no credential of the gateway's."""
    headers = {"authorization": "Basic dTpw", "x-api-key": "secret"}
    assert (await client_with_keys("admin").get("/v1/brokers", headers=headers)).status_code == 200


async def test_a_key_does_not_learn_whether_a_subscription_is_there(client_with_keys: Callable[..., Any]) -> None:
    client = client_with_keys("consume:fake/orders")
    settings = {"broker": "fake", "queue": "other"}
    made = await client.put("/v1/subscriptions/there", json=settings, headers={"authorization": "Bearer other-secret"})
    assert made.status_code == 201
    for method, verb, body in (
        ("GET", "", {}), ("GET", ":stream", {}), ("POST", ":pull", {}), ("POST", ":acknowledge", {"ack_ids": ["x"]}),
    ):  # fmt: skip
        told = []
        for name in ("there", "gone"):
            answer = await client.request(method, f"/v1/subscriptions/{name}{verb}", json=body)
            found = problem(answer, 403, "forbidden")
            told.append({**found, "detail": found["detail"].replace(name, "NAME"), "instance": ""})
        assert told[0] == told[1]
        assert "other" not in told[0]["detail"], "nor where it leads"
    for scope in ("consume:*/*", "admin"):
        problem(await client_with_keys(scope).get("/v1/subscriptions/gone"), 404, "subscription_not_found")


async def test_pages_of_subscriptions_name_no_others(client_with_keys: Callable[..., Any]) -> None:
    client = client_with_keys("consume:fake/orders")
    admin = {"authorization": "Bearer other-secret"}
    for name in ("a", "mine-1", "n", "mine-2", "o", "mine-3", "z"):
        settings = {"broker": "fake", "queue": "orders" if name.startswith("mine") else "other"}
        assert (await client.put(f"/v1/subscriptions/{name}", json=settings, headers=admin)).status_code == 201

    async def pages(headers: dict[str, str]) -> list[list[str]]:
        found = []
        url: str | None = "/v1/subscriptions?limit=2"
        while url:
            response = await client.get(url, headers=headers)
            found.append([item["name"] for item in response.json()["subscriptions"]])
            url = response.links.get("next", {}).get("url")
            assert url is None or url.endswith(f"cursor={found[-1][-1]}")
        return found

    assert await pages({}) == [["mine-1", "mine-2"], ["mine-3"]]
    assert await pages(admin) == [["a", "mine-1"], ["mine-2", "mine-3"], ["n", "o"], ["z"]]


async def test_who_published_is_in_the_ledger(client_with_keys: Callable[..., Any], gateway: Gateway) -> None:
    response = await client_with_keys("publish:*/*").post(PUBLISH, json={"routing_key": "orders"})
    assert (await gateway.timeline(response.json()["id"])).message.client == "caller"


def test_keys_by_digest_text_and_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("from-file\n")
    keys = ConfiguredKeys(
        [
            ApiKeySettings(name="a", sha256=hashlib.sha256(b"hashed").hexdigest()),
            ApiKeySettings(name="b", key="plain"),
            ApiKeySettings(name="c", key_file=str(path)),
        ]
    )
    names = [keys.find(key) for key in (b"hashed", b"plain", b"from-file", b"", b"from-file\n")]
    assert [principal.name if principal else None for principal in names] == ["a", "b", "c", None, None]


@pytest.mark.parametrize(
    "keys",
    [
        [ApiKeySettings(name="a")],
        [ApiKeySettings(name="a", key="x", sha256="00")],
        [ApiKeySettings(name="a", sha256="00")],
        [ApiKeySettings(name="a", sha256="x" * 64)],
        [ApiKeySettings(name="a", key_file="/nowhere/at/all")],
        [ApiKeySettings(name="a", key_file="/dev/null")],
        [ApiKeySettings(name="a", key="x"), ApiKeySettings(name="a", key="y")],
        [ApiKeySettings(name="a", key="x", scopes=("nonsense",))],
    ],
)
def test_wrong_keys(keys: list[ApiKeySettings]) -> None:
    with pytest.raises(ConfigurationError, match="api_keys"):
        ConfiguredKeys(keys)


def test_a_key_of_two_clients() -> None:
    """Neither of their scopes could count; and the sentence does not tell the key."""
    hashed = hashlib.sha256(b"the-same").hexdigest()
    with pytest.raises(ConfigurationError, match=r"^api_keys: 'a' and 'c' have the same key$"):
        ConfiguredKeys(
            [
                ApiKeySettings(name="a", key="the-same", scopes=("history",)),
                ApiKeySettings(name="b", key="another"),
                ApiKeySettings(name="c", sha256=hashed),
            ]
        )


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080", "LOCALHOST"])
def test_hosts_of_development(host: str) -> None:
    assert Doorkeeper(HttpSettings(), ConfiguredKeys([])).identify({b"host": host.encode()}).admin


@pytest.mark.parametrize("host", ["", "evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.2"])
def test_other_hosts(host: str) -> None:
    with pytest.raises(ApiProblem) as caught:
        Doorkeeper(HttpSettings(), ConfiguredKeys([])).identify({b"host": host.encode()})
    assert caught.value.problem_code == "misdirected_request"


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:8080", True),
        ("https://localhost:8080", True),
        ("http://LOCALHOST:8080", True),
        ("http://localhost:5173", True),  # listed
        ("https://console.example", True),
        ("http://localhost:3000", False),
        ("http://localhost", False),
        ("http://127.0.0.1:8080", False),
        ("https://127.0.0.1", False),
        ("http://[::1]:8080", False),
        ("http://gateway.example:8443", False),
        ("http://u@localhost:8080", False),
        ("", False),
        ("http://", False),
        ("http://evil.example", False),
        ("null", False),
        ("file://localhost", False),
        ("http://localhost.evil.example", False),
        ("http://[::1", False),
    ],
)
def test_origins_of_development(origin: str, allowed: bool) -> None:
    hosts = ("localhost", "127.0.0.1", "[::1]", "gateway.example:8443")
    origins = ("https://console.example", "http://localhost:5173")
    doorkeeper = Doorkeeper(HttpSettings(allowed_origins=origins, allowed_hosts=hosts), ConfiguredKeys([]))
    headers = {b"host": b"localhost:8080", b"origin": origin.encode()}
    if allowed:
        doorkeeper.check_site(headers)
    else:
        with pytest.raises(ApiProblem) as caught:
            doorkeeper.check_site(headers)
        assert caught.value.problem_code == "origin_refused"


async def test_a_web_page_does_not_reach_a_development_gateway(gateway: Gateway) -> None:
    transport = httpx.ASGITransport(Api(gateway, HttpSettings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://rebound.example") as client:
        problem(await client.get("/v1/brokers"), 421, "misdirected_request")
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        problem(await client.get("/v1/brokers", headers={"origin": "http://evil.example"}), 403, "origin_refused")


async def test_a_problem_speaks_of_the_credential_that_was_used(client_with_keys: Callable[..., Any]) -> None:
    client = client_with_keys("history")
    found = problem(await client.get("/v1/bridges"), 403, "forbidden")
    assert (found["title"], found["detail"]) == ("The caller lacks the scope", "'caller' lacks the scope admin")
    assert found["advice"] == "Ask for an API key with the scope that detail names."
    for headers, detail, advice in (
        ({"authorization": ""}, "this needs a credential", "Send an API key (`Authorization: Bearer KEY`"),
        ({"authorization": "Bearer wrong"}, "the API key is not valid", "Check for a typing error."),
        ({"authorization": "Bearer eyJ0.eyJ0.x"}, "this gateway takes no bearer tokens", "Send an API key; or have"),
    ):
        found = problem(await client.get("/v1/bridges", headers=headers), 401, "unauthorized")
        assert (found["title"], found["detail"]) == ("No valid credential", detail)
        assert found["advice"].startswith(advice)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
async def test_a_page_of_another_site_gets_nothing(gateway: Gateway, site: str, method: str) -> None:
    """``<img src="http://127.0.0.1:8080/v1/subscriptions/s:stream">`` has no ``Origin``, and leased every message."""
    transport = httpx.ASGITransport(Api(gateway, HttpSettings()))
    headers = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        path = "/v1/subscriptions/s:pull" if method == "POST" else "/v1/subscriptions/s"
        problem(await client.request(method, path), 403, "origin_refused")
        assert (await client.get("/openapi.json")).status_code == 200, "a link may open a document"
    headers["sec-fetch-site"] = "same-origin"
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        assert (await client.get("/v1/brokers")).status_code == 200


@pytest.mark.parametrize(
    ("sent", "allowed"),
    [
        ({"sec-fetch-site": "cross-site", "origin": "https://evil.example"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "https://gateway.example:8443", "sec-fetch-site": "same-origin"}, True),
        ({"origin": "https://gateway.example", "sec-fetch-site": "same-site"}, False),
        ({"origin": "https://console.example", "sec-fetch-site": "cross-site"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({}, True),
        ({"origin": "https://evil.example", "sec-fetch-site": "cross-site", "x-api-key": "given"}, True),
    ],
)
def test_a_certificate_does_not_act_for_other_sites(sent: dict[str, str], allowed: bool) -> None:
    """A browser shows the user's certificate to whichever page asks; a key it has to be given."""
    http = HttpSettings(allowed_origins=("https://console.example",))
    doorkeeper = Doorkeeper(http, ConfiguredKeys([ApiKeySettings(name="a", key="given", scopes=("admin",))]))
    headers = {name.encode(): value.encode() for name, value in sent.items()} | {b"host": b"gateway.example:8443"}
    if allowed:
        doorkeeper.check_site(headers, {"CN:ann"})
    else:
        with pytest.raises(ApiProblem) as caught:
            doorkeeper.check_site(headers, {"CN:ann"})
        assert caught.value.problem_code == "origin_refused"
