"""Every operation of the OpenAPI document, as it is served: 401 without a credential, 403 with a foreign scope.

The test knows nothing of the table of routes: what it walks is what a stranger reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from gateway.access.scopes import FORMS
from gateway.api.app import ROUTES, openapi_octets
from gateway.api.http.auth import NEEDS
from gateway.api.http.routing import Scope
from tests.api.conftest import problem

METHODS = {"get", "put", "post", "delete", "patch", "head", "options", "trace"}
NAMES = {"broker": "fake", "exchange": "ex", "queue": "orders", "endpoint": "mine", "asset": "start.js"}
OPEN = {
    "root",
    "docs",
    "docs_folder",
    "docs_asset",
    "openapi",
    "webhook_keys",
    "console",
    "console_folder",
    "console_asset",
    "get_login",
    "redeem_login",
}
"""What anybody may read. A new one is added here on purpose, or this fails."""
FOREIGN = (
    "publish:else/ex", "route:else/ex/%23", "route:fake/else/%23", "consume:else/orders", "subscribe:else/orders",
    "broker:else", "endpoint:else", "history",
)  # fmt: skip
"""One scope of each kind, on objects that no path of this test names."""
ANY_OF = {
    "any publish: or route:": ("publish", "route"),
    "any consume: or subscribe:": ("consume", "subscribe"),
    "any endpoint:": ("endpoint",),
    "history": ("history",),
}
"""Scopes of a route that any object of a kind satisfies -> those kinds, which are then left out of the foreign ones."""


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    import json

    paths = json.loads(openapi_octets())["paths"]
    return [
        (method.upper(), path, operation)
        for path, item in paths.items()
        for method, operation in item.items()
        if method in METHODS
    ]


WALKED = operations()
GUARDED = [each for each in WALKED if each[2]["security"]]


def filled(path: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: NAMES.get(found[1], "x"), path)


def foreign(scope: str) -> list[str]:
    """Scopes of every kind that do not make it for this route."""
    if scope == "any scope of a broker":
        return [text for text in FOREIGN if text.partition(":")[0] in ("endpoint", "history")]
    if scope == "any scope of {broker}":
        return [text for text in FOREIGN if ":fake/" not in text]
    return [text for text in FOREIGN if text.partition(":")[0] not in ANY_OF.get(scope, ())]


def owned(scope: str) -> str:
    """A scope that does."""
    return {
        "any credential": "endpoint:else",
        "any scope of a broker": "broker:else",
        "any scope of {broker}": "publish:fake/else",
        "any publish: or route:": "publish:else/ex",
        "any consume: or subscribe:": "consume:else/orders",
        "any endpoint:": "endpoint:else",
        "consume:{broker}/{queue} of the subscription": "consume:fake/orders",
        "consume:{broker}/{queue} or subscribe:{broker}/{queue} of the subscription": "subscribe:fake/orders",
        "subscribe:{broker}/{queue} of the subscription": "subscribe:fake/orders",
    }.get(scope, scope.partition(" or ")[0].partition(",")[0].format(**NAMES))


def name_of(each: tuple[str, str, dict[str, Any]]) -> str:
    return str(each[2]["operationId"])


def test_the_document_has_every_route() -> None:
    assert sorted(name_of(each) for each in WALKED) == sorted(route.operation for route in ROUTES)


def test_what_is_open_is_open_on_purpose() -> None:
    assert {name_of(each) for each in WALKED if not each[2]["security"]} == OPEN


def test_every_need_can_be_checked() -> None:
    assert set(NEEDS) == set(Scope)
    assert {each[2]["x-scope"] for each in GUARDED} <= {scope.value for scope in Scope if scope is not Scope.NONE}


async def with_subscription(make: Callable[..., Any], *scopes: str) -> Any:
    """A client of these scopes, beside a subscription of the queue ``orders``."""
    client = make(*scopes)
    body = {"broker": "fake", "queue": "orders"}
    made = await client.put("/v1/subscriptions/x", json=body, headers={"authorization": "Bearer other-secret"})
    assert made.status_code in (200, 201)
    return client


@pytest.mark.parametrize("each", GUARDED, ids=name_of)
async def test_without_a_key_and_with_a_wrong_one(each: Any, client_with_keys: Callable[..., Any]) -> None:
    method, path, operation = each
    assert {"401", "403"} <= operation["responses"].keys()
    client = client_with_keys("admin")
    for headers in ({"authorization": ""}, {"authorization": "Bearer wrong"}, {"authorization": "Basic c2VjcmV0"}):
        response = await client.request(method, filled(path), headers=headers)
        problem(response, 401, "unauthorized")
        assert response.headers["www-authenticate"].startswith("Bearer")
    problem(await client.request(method, filled(path), headers={"authorization": "", "x-api-key": "no"}), 401,
            "unauthorized")  # fmt: skip


@pytest.mark.parametrize("each", [each for each in GUARDED if each[2]["x-scope"] != "any credential"], ids=name_of)
async def test_with_every_foreign_scope(each: Any, client_with_keys: Callable[..., Any]) -> None:
    method, path, operation = each
    scopes = foreign(operation["x-scope"])
    assert scopes
    client = await with_subscription(client_with_keys, *scopes)
    found = problem(await client.request(method, filled(path)), 403, "forbidden")
    assert "lacks the scope" in found["detail"]
    problem(await client_with_keys().request(method, filled(path)), 403, "forbidden")


@pytest.mark.parametrize("each", [each for each in GUARDED if "stream" not in name_of(each)], ids=name_of)
async def test_with_the_scope_itself(each: Any, client_with_keys: Callable[..., Any]) -> None:
    method, path, operation = each
    client = await with_subscription(client_with_keys, owned(operation["x-scope"]))
    assert (await client.request(method, filled(path))).status_code not in (401, 403)


async def test_lists_name_nothing_else(client_with_keys: Callable[..., Any]) -> None:
    assert (await client_with_keys("publish:else/x").get("/v1/brokers")).json() == {"brokers": []}
    found = (await client_with_keys("consume:fake/q").get("/v1/brokers")).json()["brokers"]
    assert [broker["name"] for broker in found] == ["fake"]


def test_kinds_of_the_test_are_all() -> None:
    assert {text.partition(":")[0] for text in FOREIGN} == set(FORMS) - {"admin"}
