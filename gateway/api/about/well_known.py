"""``/.well-known/webhook-keys``: the public keys of ``v1a`` signatures, for receivers, who have no API key.

A JSON Web Key Set (RFC 7517) of keys by their thumbprints, in the order of the keys themselves: it says neither whose a
key is nor since when there is one.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from gateway.api.about.schemas import Input
from gateway.api.http.call import Call
from gateway.api.http.routing import Route, Scope
from gateway.webhooks.settings.keys import PublicKeys

MAX_AGE: Final = 300
"""How long the answer may be kept, in seconds."""
JWK_SET: Final = "application/jwk-set+json"


class KeysQuery(Input):
    """Which keys."""

    kid: str = ""
    """Only the key of this name."""


async def webhook_keys(call: Call) -> Response:
    """All of them, or one."""
    wanted = call.query(KeysQuery).kid
    keys = call.endpoints.public_keys() if call.endpoints is not None else PublicKeys([])
    if wanted:
        keys = PublicKeys([keys.by_name[wanted]] if wanted in keys.by_name else [])
    headers = {"etag": f'"{keys.etag}"', "cache-control": f"public, max-age={MAX_AGE}"}
    if headers["etag"] in (call.header(b"if-none-match") or "").replace("W/", "").split(", "):
        return Response(status_code=304, headers=headers)
    return Response(keys.document, media_type=JWK_SET, headers=headers)


ROUTES = (
    Route(
        "GET", "/.well-known/webhook-keys", "webhook_keys", "The public keys of webhook signatures", webhook_keys,
        Scope.NONE,
        {200: ("A JSON Web Key Set (RFC 7517, RFC 8037).", None), 304: ("The caller has it already.", None)},
        query=KeysQuery, codes=("invalid_parameter",),
        description="Ed25519, for `v1a`. `kid` is the thumbprint of RFC 7638.", tag="endpoints",
    ),
)  # fmt: skip
