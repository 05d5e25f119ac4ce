"""``/v1/login``: how a person gets a token at the issuer, for the console and programs like it."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta
from starlette.responses import Response

from gateway.access.tokens import CallerTokenRefused
from gateway.api.about.schemas import Input, Output
from gateway.api.http.auth import unauthorized
from gateway.api.http.call import Call, answer
from gateway.api.http.problems import ApiProblem
from gateway.api.http.routing import Route, Scope
from gateway.config import LoginSettings

ADVICE: Final = "Log in at the issuer again. If that does not help, compare access.tokens with what the issuer signs."


class LoginPlace(Output, omit_defaults=False):
    """Where a person logs in; everything is empty where this gateway takes keys and tokens only."""

    authorize_url: str
    """The issuer's authorization endpoint (OpenID Connect)."""
    client_id: str
    """The client to log in as, with PKCE (RFC 7636) and the method ``S256``."""
    scope: str
    """Scopes to ask for."""


class LoginCode(Input):
    """What the issuer gave, to be redeemed."""

    code: Annotated[str, Meta(min_length=1, max_length=4096)]
    """The authorization code."""
    code_verifier: Annotated[str, Meta(min_length=43, max_length=128)]
    """The verifier whose challenge the code was asked for with (RFC 7636)."""
    redirect_uri: Annotated[str, Meta(min_length=1, max_length=2048)]
    """The redirect URI that the code was asked for with."""


class LoginToken(Output, omit_defaults=False):
    """The token, which counts as ``Authorization: Bearer``."""

    token: str
    """The token. The gateway does not keep it."""
    name: str
    """The client that it names."""
    expires_seconds: float | None
    """For how long it counts, in seconds; ``null``: the issuer does not say."""


async def get_login(call: Call) -> Response:
    """Say where people log in."""
    login = call.access.login if call.access is not None else None
    settings = login.settings if login is not None else LoginSettings(scope="")
    return answer(
        LoginPlace(authorize_url=settings.authorize_url, client_id=settings.client_id, scope=settings.scope),
        headers={"cache-control": "no-store"},
    )


async def redeem_login(call: Call) -> Response:
    """Redeem a code for a token."""
    body = await call.json(LoginCode)
    login = call.access.login if call.access is not None else None
    if login is None:
        raise ApiProblem("unsupported", "this gateway has no login at an issuer: set access.tokens.login")
    try:
        with call.gateway.budgets["outbound_requests"].hold(call.client):
            found = await login.redeem(body.code, body.code_verifier, body.redirect_uri)
    except CallerTokenRefused as refused:
        raise unauthorized(str(refused), "invalid_token", advice=ADVICE) from None
    return answer(
        LoginToken(token=found.token, name=found.client, expires_seconds=found.expires_in),
        headers={"cache-control": "no-store"},
    )


ROUTES: Final = (
    Route(
        "GET", "/v1/login", "get_login", "Where people log in", get_login, Scope.NONE,
        {200: ("The issuer's endpoint and the client; empty: there is no login.", LoginPlace)}, tag="keys",
    ),
    Route(
        "POST", "/v1/login", "redeem_login", "Redeem a code of the issuer for a token", redeem_login, Scope.NONE,
        {200: ("The token.", LoginToken)}, body=LoginCode,
        codes=("malformed_json", "invalid_request", "invalid_value", "unsupported_media_type", "unauthorized",
               "unsupported", "budget_exceeded", "outbound_failed"),
        description=(
            "OpenID Connect, the authorization code flow with PKCE: the gateway asks the issuer's token endpoint, "
            "checks the token as any other, and hands it out."
        ), tag="keys",
    ),
)  # fmt: skip
