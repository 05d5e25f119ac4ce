"""``/v1/caller``: who calls, and what the credential allows."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from gateway.access.scopes import parse_scope

SCOPES = [
    "publish:shop/amq.default", "publish:*/a/b", "route:shop/amq.topic/eu.%23", "route:*/*/a%2Fb.*.%23",
    "route:shop/a%2Ab/x%25", "consume:shop/orders", "subscribe:shop/*", "broker:shop", "endpoint:mine", "history",
]  # fmt: skip


async def test_a_key_tells_its_scopes(client_with_keys: Callable[..., httpx.AsyncClient]) -> None:
    answer = await client_with_keys("history", "endpoint:mine").get("/v1/caller")
    found = answer.json()
    assert (found["admin"], found["scopes"], found["credential"]) == (False, ["history", "endpoint:mine"], "key")
    assert answer.headers["cache-control"] == "no-store"


async def test_where_no_credential_is_asked_for(client: httpx.AsyncClient) -> None:
    found = (await client.get("/v1/caller")).json()
    assert (found["name"], found["admin"], found["scopes"], found["credential"]) == ("anonymous", True, ["admin"], "")


async def test_an_admin(client_with_keys: Callable[..., httpx.AsyncClient]) -> None:
    found = (await client_with_keys("admin", "history").get("/v1/caller")).json()
    assert (found["admin"], found["scopes"]) == (True, ["admin"])


@pytest.mark.parametrize("text", SCOPES)
def test_a_scope_is_written_as_it_is_read(text: str) -> None:
    grant = parse_scope(text)
    assert parse_scope(str(grant)) == grant
    if "%23" not in text:
        assert str(grant) == text
