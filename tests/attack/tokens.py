"""Bearer tokens that must not count: other algorithms and keys, headers that name keys, claims that do not fit."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import time
import warnings
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tests.attack.client import Client
from tests.attack.judge import Record
from tests.attack.lab import RECEIVERS, Target
from tests.attack.outbound import listening

ISSUER: Final = "https://issuer.example"
AUDIENCE: Final = "gateway"


class Issuer:
    """The issuer's keys, and how often the gateway asked for them."""

    def __init__(self) -> None:
        self.asked = 0
        self.ec = ec.generate_private_key(ec.SECP256R1())
        self.rsa = rsa.generate_private_key(65_537, 2_048)
        self.weak = rsa.generate_private_key(65_537, 1_024)  # which the gateway must refuse
        self.other = ec.generate_private_key(ec.SECP256R1())
        public = [
            {**json.loads(ECAlgorithm.to_jwk(self.ec.public_key())), "kid": "ec", "use": "sig"},
            {**json.loads(RSAAlgorithm.to_jwk(self.rsa.public_key())), "kid": "rsa", "use": "sig"},
            {**json.loads(RSAAlgorithm.to_jwk(self.weak.public_key())), "kid": "weak", "use": "sig"},
            {"kty": "oct", "k": base64.urlsafe_b64encode(b"shared").decode(), "kid": "shared", "alg": "HS256"},
        ]
        self.body = json.dumps({"keys": public}).encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer with the keys."""
        with contextlib.suppress(OSError, EOFError):
            await reader.readuntil(b"\r\n\r\n")
            self.asked += 1
            head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(self.body)}\r\n\r\n"
            writer.write(head.encode() + self.body)
            await writer.drain()
        writer.close()

    def public_pem(self) -> bytes:
        """Return the public key as text, which some take for the secret of HS256."""
        return self.rsa.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )


def claims(**more: Any) -> dict[str, Any]:
    """Return claims that count, with changes; None takes one out."""
    now = int(time.time())
    found = {"iss": ISSUER, "aud": AUDIENCE, "sub": "shop", "exp": now + 600, "iat": now, "scope": "admin"} | more
    return {name: value for name, value in found.items() if value is not None}


def _part(value: Any) -> str:
    octets = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def raw(head: Any, body: Any, signature: bytes = b"") -> str:
    """Return a token of these parts."""
    return f"{_part(head)}.{_part(body)}.{_part(signature) if signature else ''}"


def shared(head: dict[str, Any], secret: bytes) -> str:
    """Return a token signed with a shared key."""
    text = f"{_part(head)}.{_part(claims())}"
    return f"{text}.{_part(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"


def _weak(issuer: Issuer) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library has the same opinion of the key
        return jwt.encode(claims(), issuer.weak, "RS256", headers={"kid": "weak"})


def bad(issuer: Issuer) -> dict[str, str]:
    """Return name -> a token that must not count."""

    def sign(body: dict[str, Any], **head: Any) -> str:
        return jwt.encode(body, issuer.ec, "ES256", headers={"kid": "ec", **head})

    good = sign(claims())
    head, body, signature = good.split(".")
    now = int(time.time())
    return {
        "alg none": raw({"alg": "none", "typ": "JWT"}, claims()),
        "alg None": raw({"alg": "None", "kid": "ec"}, claims()),
        "alg nOnE, signed": raw({"alg": "nOnE", "kid": "ec"}, claims(), b"x"),
        "no alg": raw({"kid": "ec"}, claims(), b"x"),
        "alg null": raw({"alg": None, "kid": "ec"}, claims(), b"x"),
        "alg a list": raw({"alg": ["ES256"], "kid": "ec"}, claims(), b"x"),
        "HS256 with the public key": shared({"alg": "HS256", "kid": "rsa"}, issuer.public_pem()),
        "HS256 with nothing": shared({"alg": "HS256", "kid": "ec"}, b""),
        "HS256 of the set": shared({"alg": "HS256", "kid": "shared"}, b"shared"),
        "another's key": jwt.encode(claims(), issuer.other, "ES256", headers={"kid": "ec"}),
        "an unknown kid": jwt.encode(claims(), issuer.ec, "ES256", headers={"kid": "nobody"}),
        "a kid that is a path": sign(claims(), kid="../../../../dev/null"),
        "a kid that is SQL": sign(claims(), kid="x' UNION SELECT 'shared'--"),
        "a kid that is a URL": sign(claims(), kid="http://127.0.0.1/keys"),
        "jku": jwt.encode(claims(), issuer.other, "ES256", headers={"jku": "http://127.0.0.9/keys"}),
        "x5u": jwt.encode(claims(), issuer.other, "ES256", headers={"x5u": "http://127.0.0.9/keys"}),
        "jwk": jwt.encode(claims(), issuer.other, "ES256",
                          headers={"jwk": json.loads(ECAlgorithm.to_jwk(issuer.other.public_key()))}),
        "crit": sign(claims(), crit=["x"], x=1),
        "crit b64": sign(claims(), crit=["b64"], b64=False),
        "another typ": sign(claims(), typ="secevent+jwt"),
        "the rsa key's name": sign(claims(), kid="rsa"),
        "RS256 under the ec key's name": jwt.encode(claims(), issuer.rsa, "RS256", headers={"kid": "ec"}),
        "a weak RSA key": _weak(issuer),
        "expired": sign(claims(exp=now - 3_600)),
        "no exp": sign(claims(exp=None)),
        "exp a text": sign(claims(exp="tomorrow")),
        "exp NaN": raw({"alg": "ES256", "kid": "ec"}, b'{"exp": NaN}', b"x"),
        "not yet": sign(claims(nbf=now + 3_600)),
        "another issuer": sign(claims(iss="https://evil.example")),
        "an issuer and a slash": sign(claims(iss=ISSUER + "/")),
        "no issuer": sign(claims(iss=None)),
        "another audience": sign(claims(aud="other")),
        "audiences without ours": sign(claims(aud=["a", "b"])),
        "no audience": sign(claims(aud=None)),
        "no subject": sign(claims(sub=None)),
        "an empty subject": sign(claims(sub="")),
        "cut off": good[:-4],
        "no signature": f"{head}.{body}.",
        "two parts": f"{head}.{body}",
        "four parts": f"{good}.x",
        "a signature of zeros": f"{head}.{body}.{_part(bytes(64))}",
        "a body of another": f"{head}.{_part(claims(sub='root'))}.{signature}",
        "a body that is no object": raw({"alg": "ES256", "kid": "ec"}, [1], b"x"),
        "a body that is no JSON": raw({"alg": "ES256", "kid": "ec"}, b"\xff", b"x"),
        "a head that is no object": raw([1], claims(), b"x"),
    }  # fmt: skip


async def attack(target: Target, record: Record) -> None:
    """Show all of them, and unknown names of keys by the hundred; good ones count."""
    issuer = await asyncio.to_thread(Issuer)
    async with listening(issuer.serve, (RECEIVERS,), target.issuer_port):
        for private, algorithm, kid in ((issuer.ec, "ES256", "ec"), (issuer.rsa, "RS256", "rsa")):
            caller = Client(target.port, jwt.encode(claims(), private, algorithm, headers={"kid": kid}))
            answer = await caller.ask("GET", "/v1/keys")
            record.check(answer.status == 200, f"a good token of {algorithm}: {answer.status} {answer.body[:200]!r}")
            caller.close()
        for scope in ("", "nonsense", "publish:*/*", ["history"], 1, None, "ADMIN"):
            token = jwt.encode(claims(scope=scope), issuer.ec, "ES256", headers={"kid": "ec"})
            caller = Client(target.port, token)
            answer = await caller.ask("GET", "/v1/keys")
            record.check(answer.status in (401, 403), f"scope {scope!r}: {answer.status}")
            caller.close()
        for name, token in bad(issuer).items():
            for headers in ({"Authorization": f"Bearer {token}"}, {"X-Api-Key": token}):
                caller = Client(target.port)
                answer = await caller.ask("GET", "/v1/keys", headers=headers)
                record.check(answer.status in (400, 401), f"{name}: {answer.status}")
                caller.close()
        asked = issuer.asked
        caller = Client(target.port)
        for number in range(target.scaled(200, 30)):
            token = jwt.encode(claims(), issuer.ec, "ES256", headers={"kid": f"unknown-{number}"})
            answer = await caller.ask("GET", "/v1/keys", headers={"Authorization": f"Bearer {token}"})
            record.check(answer.status == 401, f"an unknown kid: {answer.status}")
        caller.close()
        record.check(issuer.asked - asked <= 1, f"{issuer.asked - asked} fetches of the keys for unknown names")
