"""The public keys of webhook signatures, for receivers."""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64decode

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from gateway.webhooks.settings.endpoints import EndpointRegistry
from tests.api.test_endpoints import KEYS, SHOP, client, endpoints, make, server
from tests.outbound.endpoint import Endpoint as Server

__all__ = ["client", "endpoints", "make", "server"]


async def test_the_key_in_it_verifies(client: httpx.AsyncClient, server: Server) -> None:
    created = (await client.put(SHOP, json={"url": server.url("/200"), "signing": ["v1a"]})).json()
    await client.post(f"{SHOP}:test")
    request = server.requests[-1]
    kid = created["signing_keys"][0]["id"]
    (key,) = (await client.get(KEYS, params={"kid": kid})).json()["keys"]
    assert (key["kty"], key["crv"], key["kid"]) == ("OKP", "Ed25519", kid)
    text = b".".join(
        (request.headers["webhook-id"].encode(), request.headers["webhook-timestamp"].encode(), request.body)
    )
    signature = b64decode(request.headers["webhook-signature"].removeprefix("v1a,"))
    Ed25519PublicKey.from_public_bytes(urlsafe_b64decode(key["x"] + "=")).verify(signature, text)


async def test_all_keys_and_nothing_else(client: httpx.AsyncClient, server: Server) -> None:
    await client.put(SHOP, json={"url": server.url("/200"), "signing": ["v1", "v1a"]})
    rotated = (await client.post(f"{SHOP}:rotate", json={"schemes": ["v1a"]})).json()
    answer = await client.get(KEYS)
    assert answer.headers["content-type"] == "application/jwk-set+json"
    assert answer.headers["cache-control"] == "public, max-age=300"
    found = {key["kid"] for key in answer.json()["keys"]}
    of_file = (await client.get("/v1/endpoints/file")).json()["signing_keys"][0]["id"]
    assert found == {of_file, *(key["id"] for key in rotated["signing_keys"] if key["scheme"] == "v1a")}
    assert "shop" not in answer.text
    assert "127.0.0.1" not in answer.text
    assert (await client.get(KEYS, params={"kid": "none"})).json() == {"keys": []}


async def test_who_has_it_already_is_told_so(
    client: httpx.AsyncClient, server: Server, endpoints: EndpointRegistry
) -> None:
    first = await client.get(KEYS)
    same = await client.get(KEYS, headers={"if-none-match": f'"other", {first.headers["etag"]}'})
    assert (same.status_code, same.content) == (304, b"")
    assert endpoints.public_keys() is endpoints.public_keys()
    await client.put(SHOP, json={"url": server.url("/200"), "signing": ["v1a"]})
    other = await client.get(KEYS, headers={"if-none-match": first.headers["etag"]})
    assert other.status_code == 200
    assert len(other.json()["keys"]) == 2
