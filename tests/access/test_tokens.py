"""Bearer tokens: what counts, what does not, and how often the issuer is asked. Keys and signatures are real."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from time import time
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from gateway.access import tokens as module
from gateway.access.access import Access
from gateway.access.tokens import SET_MAX, CallerTokenRefused, IssuedTokens, looks_like_token
from gateway.api.app import Api
from gateway.config import AccessSettings, Config, TokenSettings
from gateway.core import Gateway
from gateway.errors import ConfigurationError
from gateway.ledger import Ledger
from gateway.outbound import DEFAULT_OUTBOUND_LIMITS, GuardedTransport, OutboundRules
from tests.api.conftest import problem
from tests.test_telemetry import lines

__all__ = ["lines"]

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
P256 = ec.generate_private_key(ec.SECP256R1())
P384 = ec.generate_private_key(ec.SECP384R1())
ED = ed25519.Ed25519PrivateKey.generate()
ISSUER, AUDIENCE = "https://issuer.example", "amqp-gateway"


def jwk(kid: str, private: Any, **more: Any) -> dict[str, Any]:
    kinds = {rsa.RSAPrivateKey: RSAAlgorithm, ec.EllipticCurvePrivateKey: ECAlgorithm}
    kind: Any = next((each for cls, each in kinds.items() if isinstance(private, cls)), OKPAlgorithm)
    return {**json.loads(kind.to_jwk(private.public_key())), "kid": kid, "use": "sig"} | more


KEYS = [
    jwk("rsa", RSA), jwk("p256", P256), jwk("ed", ED), jwk("p384", P384),
    jwk("ps", RSA, alg="PS256"), jwk("enc", RSA, use="enc"),
]  # fmt: skip


class Issuer:
    """Serves its keys, and counts who asks."""

    def __init__(self) -> None:
        self.port = 0
        self.asked = 0
        self.status = 200
        self.body = json.dumps({"keys": KEYS}).encode()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Issuer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        yield self
        server.close()
        await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        head = f"HTTP/1.1 {self.status} x\r\nConnection: close\r\nContent-Length: {len(self.body)}\r\n\r\n"
        writer.write(head.encode() + self.body)
        await writer.drain()
        writer.close()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with Issuer().serving() as issuer:
        yield issuer


@pytest.fixture
async def transport() -> AsyncIterator[GuardedTransport]:
    transport = GuardedTransport(OutboundRules(["127.0.0.0/8"]), replace(DEFAULT_OUTBOUND_LIMITS, body_kept=SET_MAX))
    yield transport
    await transport.aclose()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def settings(issuer: Issuer, **more: Any) -> TokenSettings:
    return TokenSettings(
        **{"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": f"http://127.0.0.1:{issuer.port}/jwks"} | more
    )


@pytest.fixture
async def tokens(issuer: Issuer, transport: GuardedTransport, clock: Clock) -> AsyncIterator[IssuedTokens]:
    tokens = IssuedTokens(settings(issuer), transport, clock)
    yield tokens
    await tokens.close()


def token(
    private: Any = RSA, kid: str | None = "rsa", alg: str = "RS256", head: dict[str, Any] | None = None, **claims: Any
) -> bytes:
    values = {
        "iss": ISSUER, "aud": AUDIENCE, "sub": "shop", "exp": int(time()) + 60, "scope": "openid publish:b/x history",
    } | claims  # fmt: skip
    values = {name: value for name, value in values.items() if value is not None}
    heads = ({"kid": kid} if kid is not None else {}) | (head or {})
    return jwt.encode(values, private, alg, headers=heads).encode()


def forged(head: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> bytes:
    parts = (json.dumps(head).encode(), json.dumps(claims).encode(), signature)
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)


# ------------------------------------------------------------------------------------------------- what counts


@pytest.mark.parametrize(
    ("private", "kid", "alg"),
    [(RSA, "rsa", "RS256"), (RSA, "ps", "PS256"), (P256, "p256", "ES256"), (ED, "ed", "EdDSA")],
)
async def test_a_token_of_the_issuer(tokens: IssuedTokens, private: Any, kid: str, alg: str) -> None:
    found = await tokens.identify(token(private, kid, alg))
    assert (found.name, found.credential, found.admin) == ("jwt:shop", "jwt:shop", False)
    assert found.may("publish", "b", "x")
    assert found.may("history")
    assert not found.may("publish", "b", "y")


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": ["other", AUDIENCE]},
        {"exp": -20},  # seconds from now: within the leeway
        {"nbf": 20},
        {"head": {"typ": "at+jwt"}},
        {"head": {"typ": "application/AT+JWT"}},
        {"scope": ["publish:b/a name with blanks", 7]},
        {"scope": None},
        {"scope": {"no": "list"}},
    ],
)
async def test_what_also_counts(tokens: IssuedTokens, claims: dict[str, Any]) -> None:
    now = int(time())
    claims = {name: value + now if name in ("exp", "nbf") else value for name, value in claims.items()}
    assert (await tokens.identify(token(**claims))).name == "jwt:shop"


async def test_scopes_with_blanks_come_in_a_list(tokens: IssuedTokens) -> None:
    assert (await tokens.identify(token(scope=["publish:b/a b"]))).may("publish", "b", "a b")


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: token(exp=int(time()) - 40), "expired"),
        (lambda: token(exp=None), "no exp"),
        (lambda: token(exp="soon"), "malformed"),
        (lambda: token(nbf=int(time()) + 40), "not valid yet"),
        (lambda: token(iss="https://other.example"), "another issuer"),
        (lambda: token(iss=None), "no iss"),
        (lambda: token(aud="other"), "somebody else"),
        (lambda: token(aud=None), "no aud"),
        (lambda: token(sub=None), "no sub"),
        (lambda: token(sub="x" * 129), "sub is not"),
        (lambda: token(sub="a\nb"), "sub is not"),
        (lambda: token(sub=""), "sub is not"),
        (lambda: token(OTHER), "signature"),
        (lambda: token(P256, "rsa", "ES256"), "key of the issuer"),  # a key of another kind under that name
        (lambda: token(RSA, "ps"), "key of the issuer"),  # the key is for PS256
        (lambda: token(RSA, "enc"), "not for signatures"),  # it is for encryption
        (lambda: token(RSA, "none"), "key of the issuer"),
        (lambda: token(RSA, None), "key of the issuer"),
        (lambda: token(P384, "p384", "ES384"), "algorithms"),
        (lambda: token(head={"typ": "logout+jwt"}), "types"),
        (lambda: token(head={"crit": ["b64"], "b64": True}), "crit"),
        (lambda: token(head={"crit": []}), "crit"),
        (lambda: forged({"alg": "none", "kid": "rsa"}, {"iss": ISSUER, "sub": "root"}), "algorithms"),
        (lambda: forged({"alg": "HS256", "kid": "rsa"}, {"iss": ISSUER}, b"x" * 32), "algorithms"),
        (lambda: forged({"kid": "rsa"}, {}), "algorithms"),
        (lambda: forged({"alg": "RS256", "kid": "rsa"}, {}, b""), "signature"),
        (lambda: forged({"alg": 1}, {}), "malformed"),
        (lambda: b"eyJ.x.y", "malformed"),
        (lambda: b"ey!!.x.y", "malformed"),
        (lambda: token(padding="x" * 9_000), "octets"),
        (lambda: b".".join([token().split(b".")[0], b"e30", token().split(b".")[2]]), "signature"),
    ],
)
async def test_what_does_not_count(tokens: IssuedTokens, made: Callable[[], bytes], why: str) -> None:
    credential = made()
    with pytest.raises(CallerTokenRefused, match=why) as refused:
        await tokens.identify(credential)
    assert credential.decode("latin-1") not in str(refused.value)


async def test_the_public_key_is_no_shared_secret(issuer: Issuer, transport: GuardedTransport) -> None:
    """The classic: HMAC with the public key, which everybody has."""
    import hashlib
    import hmac

    from cryptography.hazmat.primitives import serialization as forms

    pem = RSA.public_key().public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)
    unsigned = forged({"alg": "HS256", "kid": "rsa", "typ": "JWT"}, {"iss": ISSUER, "aud": AUDIENCE, "sub": "root"})
    text = unsigned.rpartition(b".")[0]
    signed = text + b"." + base64.urlsafe_b64encode(hmac.digest(pem, text, hashlib.sha256)).rstrip(b"=")
    with pytest.raises(CallerTokenRefused, match="algorithms"):
        await IssuedTokens(settings(issuer), transport).identify(signed)


async def test_scopes_of_the_issuer_are_translated(issuer: Issuer, transport: GuardedTransport) -> None:
    translated = IssuedTokens(settings(issuer, scopes={"gateway.read": ("history", "consume:*/q")}), transport)
    found = await translated.identify(token(scope="gateway.read admin other"))
    assert found.may("history")
    assert found.may("consume", "b", "q")
    assert not found.admin


async def test_another_claim_names_the_client(issuer: Issuer, transport: GuardedTransport) -> None:
    named = IssuedTokens(settings(issuer, client_claim="azp", scopes_claim="roles"), transport)
    found = await named.identify(token(azp="till", roles=["admin"]))
    assert (found.name, found.admin) == ("jwt:till", True)
    with pytest.raises(CallerTokenRefused, match="no azp"):
        await named.identify(token())


# ------------------------------------------------------------------------------------------------------- keys


async def test_the_issuer_is_asked_seldom(tokens: IssuedTokens, issuer: Issuer, clock: Clock) -> None:
    await asyncio.gather(*(tokens.identify(token()) for _ in range(20)))
    assert issuer.asked == 1
    for number in range(50):  # names of keys that somebody made up
        clock.now += 1
        with pytest.raises(CallerTokenRefused):
            await tokens.identify(token(kid=f"made-up-{number}"))
    assert issuer.asked == 1
    clock.now += 10
    with pytest.raises(CallerTokenRefused):
        await tokens.identify(token(kid="made-up"))
    assert issuer.asked == 2


async def test_a_new_key_is_found(tokens: IssuedTokens, issuer: Issuer, clock: Clock) -> None:
    await tokens.identify(token())
    issuer.body = json.dumps({"keys": [jwk("new", OTHER)]}).encode()
    clock.now += module.AGAIN
    assert (await tokens.identify(token(OTHER, "new"))).name == "jwt:shop"
    with pytest.raises(CallerTokenRefused):
        await tokens.identify(token())


async def test_keys_are_looked_up_again_while_they_are_used(tokens: IssuedTokens, issuer: Issuer, clock: Clock) -> None:
    await tokens.identify(token())
    issuer.body = b'{"keys": []}'
    clock.now += module.FRESH + 1
    await tokens.identify(token())
    while issuer.asked < 2 or tokens._asking is not None:
        await asyncio.sleep(0.01)
    with pytest.raises(CallerTokenRefused):
        await tokens.identify(token())


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b"oh"), (302, b""), (200, b"no json"), (200, b"[]"), (200, b'{"keys": [1]}'), (200, b"[" * 100_000),
        (200, b'{"keys": [' + b" " * SET_MAX + b"]}"),
    ],
)  # fmt: skip
async def test_an_issuer_that_fails(
    tokens: IssuedTokens, issuer: Issuer, clock: Clock, status: int, body: bytes
) -> None:
    await tokens.identify(token())
    issuer.status, issuer.body = status, body
    clock.now += module.STALE
    await tokens.identify(token())
    while tokens._asking is not None:
        await asyncio.sleep(0.01)
    clock.now += module.AGAIN
    with pytest.raises(CallerTokenRefused):
        await tokens.identify(token())
    assert issuer.asked == 3


async def test_an_issuer_that_is_away(transport: GuardedTransport) -> None:
    async with Issuer().serving() as issuer:
        tokens = IssuedTokens(settings(issuer), transport)
    with pytest.raises(CallerTokenRefused, match="key of the issuer"):
        await tokens.identify(token())
    await tokens.close()


async def test_keys_that_are_none_are_passed_over(issuer: Issuer, transport: GuardedTransport) -> None:
    wrong: list[dict[str, Any]] = [
        {}, {"kid": 1}, {"kid": "a", "kty": ["RSA"]}, {"kid": "a", "kty": "oct", "k": "eA"}, {"kid": "a", "kty": "RSA"},
        {"kid": "a", "kty": "EC", "crv": 1}, {"kid": "a", "kty": "EC", "crv": "P-256", "x": "!", "y": "!"},
        {"kid": "a", "kty": "OKP", "crv": "X25519", "x": "eA"}, {"kid": "a", "kty": "OKP", "crv": "Ed25519", "x": "eA"},
    ]  # fmt: skip
    issuer.body = json.dumps({"keys": [*wrong, *KEYS]}).encode()
    tokens = IssuedTokens(settings(issuer), transport)
    assert (await tokens.identify(token())).name == "jwt:shop"
    assert {kid for _, kid in tokens._keys} == {"rsa", "p256", "ed", "ps"}


SHORT = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # refused, says the test
EDGE = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SHARED = {"kty": "oct", "k": base64.urlsafe_b64encode(b"s" * 32).decode(), "use": "sig"}
PRIVATE = {**json.loads(RSAAlgorithm.to_jwk(RSA)), "use": "sig"}


@pytest.mark.parametrize(
    ("key", "private", "alg", "why"),
    [
        (jwk("k", SHORT), SHORT, "RS256", "an RSA key of 1024 bits, and at least 2048 are needed"),
        (jwk("k", SHORT), SHORT, "PS256", "an RSA key of 1024 bits"),
        (jwk("k", RSA, key_ops=["sign"]), RSA, "RS256", "key_ops"),
        (jwk("k", RSA, key_ops="verify"), RSA, "RS256", "key_ops"),
        (jwk("k", P256, key_ops=["encrypt"]), P256, "ES256", "key_ops"),
        (jwk("k", RSA, use="enc"), RSA, "RS256", "not for signatures"),
        ({**SHARED, "kid": "k"}, RSA, "RS256", "shared secret"),
        ({**PRIVATE, "kid": "k"}, RSA, "RS256", "private key"),
    ],
)
@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
async def test_keys_that_do_not_count(
    issuer: Issuer, transport: GuardedTransport, lines: io.StringIO, key: Any, private: Any, alg: str, why: str
) -> None:
    """The caller learns why, and the operator which key."""
    issuer.body = json.dumps({"keys": [key, *KEYS]}).encode()
    tokens = IssuedTokens(settings(issuer), transport)
    with pytest.raises(CallerTokenRefused, match=why):
        await tokens.identify(token(private, "k", alg))
    assert (await tokens.identify(token())).name == "jwt:shop", "the others go on"
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    told = [(line["event"], line["kid"]) for line in logged if why in line["reason"]]
    assert told == ([] if key.get("use") == "enc" else [("access.jwk_refused", "k")])
    await tokens.close()


async def test_keys_that_do(issuer: Issuer, transport: GuardedTransport) -> None:
    issuer.body = json.dumps({"keys": [jwk("k", EDGE, key_ops=["verify", "wrapKey"])]}).encode()
    tokens = IssuedTokens(settings(issuer), transport)
    assert (await tokens.identify(token(EDGE, "k"))).name == "jwt:shop"
    await tokens.close()


@pytest.mark.parametrize("exponent", [1, 2])
async def test_an_exponent_that_signs_nothing(issuer: Issuer, transport: GuardedTransport, exponent: int) -> None:
    """With e = 1 the signature is the text."""
    e = base64.urlsafe_b64encode(bytes([exponent])).decode().rstrip("=")
    issuer.body = json.dumps({"keys": [jwk("k", RSA, e=e)]}).encode()
    tokens = IssuedTokens(settings(issuer), transport)
    with pytest.raises(CallerTokenRefused, match="key of the issuer"):
        await tokens.identify(token(RSA, "k"))
    assert tokens._keys == {}
    await tokens.close()


async def test_it_can_be_closed_while_it_asks(transport: GuardedTransport) -> None:
    callers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: callers.append(writer), "127.0.0.1", 0)
    issuer = Issuer()
    issuer.port = server.sockets[0].getsockname()[1]
    tokens = IssuedTokens(settings(issuer), transport)
    asking, leaving = (asyncio.create_task(tokens.identify(token())) for _ in range(2))
    await asyncio.sleep(0.05)
    leaving.cancel()
    await asyncio.sleep(0.01)
    assert not asking.done(), "the keys are asked for on behalf of all"
    await tokens.close()
    with pytest.raises(CallerTokenRefused, match="key of the issuer"):
        await asking
    for writer in callers:
        writer.close()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"audience": ""}, "audience"),
        ({"jwks_url": ""}, "jwks_url"),
        ({"algorithms": ()}, "algorithms"),
        ({"scopes": {"a": ("root",)}}, "scopes.a"),
        ({"jwks_url": "http://169.254.169.254/keys"}, "jwks_url"),
        ({"jwks_url": "file:///etc/passwd"}, "jwks_url"),
    ],
)
async def test_wrong_settings(issuer: Issuer, transport: GuardedTransport, more: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"access.tokens.{why}"):
        IssuedTokens(settings(issuer, **more), transport)


# -------------------------------------------------------------------------------------------------- over HTTP


def test_tokens_and_keys_are_told_apart() -> None:
    assert looks_like_token(token())
    assert not looks_like_token(b"amqpgw_live_x_y")
    assert not looks_like_token(b"a.b.c")


async def test_over_http(gateway: Gateway, ledger: Ledger, issuer: Issuer, transport: GuardedTransport) -> None:
    config = Config(access=AccessSettings(tokens=settings(issuer)))
    access = Access(config, ledger, transport)
    assert access.required
    async with access.running():
        api = httpx.ASGITransport(Api(gateway, config.http, access=access))
        async with httpx.AsyncClient(transport=api, base_url="http://gateway.example") as client:

            async def ask(path: str, credential: bytes) -> httpx.Response:
                return await client.get(path, headers={"authorization": f"Bearer {credential.decode()}"})

            assert (await ask("/v1/messages", token())).status_code == 200
            found = problem(await ask("/v1/bridges", token()), 403, "forbidden")
            assert "'jwt:shop' lacks the scope admin" in found["detail"]
            assert found["title"] == "The caller lacks the scope"
            assert found["advice"].startswith("Ask the issuer for a token with that scope")
            refused = await ask("/v1/messages", token(exp=1))
            found = problem(refused, 401, "unauthorized")
            assert "expired" in found["detail"]
            assert (found["title"], found["advice"][:24]) == ("No valid credential", "Get a token from the iss")
            assert refused.headers["www-authenticate"] == 'Bearer realm="gateway", error="invalid_token"'
            found = problem(await ask("/v1/messages", b"no-token"), 401, "unauthorized")
            assert (found["detail"], found["advice"][:6]) == ("the API key is not valid", "Check ")
            problem(await client.get("/v1/messages"), 401, "unauthorized")
            assert (await ask("/openapi.json", token())).status_code == 200
