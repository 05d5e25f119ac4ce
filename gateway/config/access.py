"""Settings of who may do what."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from gateway.config.base import Settings

JWT_CLIENT: Final = "jwt:"
"""How clients with tokens are known; no other client may be called so."""


class ApiKeySettings(Settings, frozen=True):
    """``[[api_keys]]``"""

    name: str
    """Who uses it; appears in logs and in the ledger. Not ``jwt:…``, as clients with tokens are called."""
    sha256: str = ""
    """SHA-256 of the key, in hex."""
    key: str = ""
    """The key itself; prefer ``sha256`` or ``key_file``."""
    key_file: str = ""
    """File that holds the key."""
    scopes: tuple[str, ...] = ("admin",)
    """``publish:BROKER/EXCHANGE``, ``route:BROKER/EXCHANGE/PATTERN``, ``consume:BROKER/QUEUE``,
    ``subscribe:BROKER/QUEUE``, ``broker:BROKER``, ``endpoint:NAME``, ``history``, ``admin``; ``*`` stands for any one
    part."""


class LoginSettings(Settings, frozen=True):
    """``[access.tokens.login]``: how people get a token of the issuer in the console: OpenID Connect, the authorization
    code flow with PKCE."""

    client_id: str = ""
    """The console as the issuer knows it: a public client whose redirect URI is the address of ``/console``. Empty: the
    console asks for a key or a token."""
    authorize_url: str = ""
    """The issuer's authorization endpoint, which the browser opens."""
    token_url: str = ""
    """The issuer's token endpoint, which the gateway asks; under the same guard as endpoints: see ``[outbound]``."""
    scope: str = "openid"
    """Scopes that are asked for, with blanks between them."""
    use: Literal["access_token", "id_token"] = "access_token"
    """Which token of the answer logs in. It must be a JWT of this issuer and for this audience."""


class TokenSettings(Settings, frozen=True):
    """``[access.tokens]``: bearer tokens (JWT) of an issuer, beside API keys."""

    issuer: str = ""
    """``iss`` that a token must have; empty: no tokens are taken."""
    audience: str = ""
    """``aud`` that a token must have, or have among others."""
    jwks_url: str = ""
    """Where the issuer's keys are (RFC 7517); under the same guard as endpoints: see ``[outbound]``."""
    algorithms: tuple[
        Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"], ...
    ] = ("RS256", "PS256", "ES256", "EdDSA")
    """Algorithms of signatures that are taken. None of them has a shared key."""
    types: tuple[str, ...] = ("JWT", "at+jwt")
    """``typ`` of tokens that are taken; one that says none counts as ``JWT``."""
    leeway: Annotated[float, Meta(ge=0, le=300)] = 30.0
    """How far the issuer's clock may be from the gateway's, in seconds."""
    client_claim: str = "sub"
    """Claim that names the client; it is known as ``jwt:NAME``."""
    scopes_claim: str = "scope"
    """Claim with the scopes: a text with blanks between them, or a list."""
    scopes: dict[str, tuple[str, ...]] = {}
    """What a scope of the issuer stands for here; others are passed over. Empty: scopes of the gateway stand for
    themselves."""
    login: LoginSettings = LoginSettings()


class CertificateSettings(Settings, frozen=True):
    """``[[access.certificates]]``: a caller who is known by its certificate (``http.tls.client_ca_file``)."""

    client: str
    """Who it is; appears in logs and in the ledger. Not ``jwt:…``, as clients with tokens are called."""
    name: Annotated[str, Meta(pattern="^(URI|DNS|email|CN):.+$")]
    """A name in the certificate: ``URI:spiffe://…``, ``DNS:…`` or ``email:…`` of its alternative names, or ``CN:…``,
    the common name of its subject."""
    scopes: tuple[str, ...]
    """As those of API keys."""


class AccessSettings(Settings, frozen=True):
    """``[access]``: who may call."""

    required: Literal["auto", "always"] = "auto"
    """Whether callers need a credential. ``auto``: where this file says of any; else the gateway listens on loopback
    only. ``always``: in any case; keys are then those of ``gateway keys``."""
    rate: Annotated[float, Meta(ge=0)] = 0.0
    """Most requests a second of one client, at each process; 0: no limit. A batch is one request."""
    burst: Annotated[int, Meta(ge=0)] = 0
    """Most requests of a client at once; 0: as many as in ten seconds."""
    stranger_rate: Annotated[float, Meta(ge=0)] = 10.0
    """Most requests a second from one remote address without a credential that counts, where one is needed; ten times
    as many at once. Loopback is not counted. 0: no limit."""
    documents: Literal["open", "closed"] = "open"
    """Whether ``/``, ``/docs``, ``/console`` and ``/openapi.json`` are there for everybody; ``closed``: for who has a
    credential, which a browser gives as the password of HTTP Basic, there and nowhere else."""
    unsealed_keys: Literal["seal", "refuse"] = "seal"
    """What becomes of keys in the ledger whose row has no MAC. ``seal``: they get one when a process starts, and the
    audit log names them. ``refuse``: they do not count, at the start either."""
    tokens: TokenSettings = TokenSettings()
    certificates: tuple[CertificateSettings, ...] = ()
