"""Signatures of webhooks, as the Standard Webhooks specification has them.

What is signed is ``ID.TIMESTAMP.BODY``: the message's id (the same on every attempt), the second of this attempt, and
the very octets of the body. Two schemes:

====== ============ ============================ ================================================
scheme algorithm    key                          who can sign
====== ============ ============================ ================================================
v1     HMAC-SHA256  ``whsec_``, 24 to 64 octets  both sides: they share it
v1a    ed25519      ``whsk_`` and ``whpk_``      the sender; receivers have the public key
====== ============ ============================ ================================================

``webhook-signature`` lists one signature for each key, so that keys change without a gap: sign with the new key and the
old one until all receivers have the new one. A receiver accepts a request if any signature in it verifies with any key
it has, and if the time stamp is within its tolerance.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import json
import re
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from gateway.errors import EncodeError

ID, TIMESTAMP, SIGNATURE = b"webhook-id", b"webhook-timestamp", b"webhook-signature"
"""The headers."""
TOLERANCE: Final = 300
"""How far a time stamp may be from the receiver's clock, in seconds."""
SECRET_MIN, SECRET_MAX = 24, 64
"""Octets of a shared secret."""
KEYS_MAX: Final = 8
"""Most keys of one endpoint at a time, and most signatures that a receiver looks at per key."""
SEED: Final = 32
"""Octets of an ed25519 seed, and of a public key."""

_ID: Final = re.compile(r"[!-\-/-~]{1,255}")
"""Printable ASCII without a dot, which separates what is signed."""
_SECONDS: Final = re.compile(rb"[0-9]{1,15}")

Random = Callable[[int], bytes]
"""So many random octets: ``secrets.token_bytes``."""


class Signer(Protocol):
    """Makes signatures."""

    @property
    def scheme(self) -> str:
        """``v1`` or ``v1a``."""

    def sign(self, text: bytes) -> bytes:
        """The signature, raw."""


class VerifyingKey(Protocol):
    """Judges signatures."""

    @property
    def scheme(self) -> str:
        """``v1`` or ``v1a``."""

    def verifies(self, text: bytes, signature: bytes) -> bool:
        """Whether it is one of this key."""


class SharedSecret:
    """A key of ``v1``: signs and verifies."""

    scheme = "v1"
    prefix = "whsec_"
    __slots__ = ("_keyed", "_octets")

    def __init__(self, octets: bytes) -> None:
        """Raises EncodeError where it is too short or too long."""
        if not SECRET_MIN <= len(octets) <= SECRET_MAX:
            raise EncodeError(f"webhook secret: {len(octets)} octets, it must have {SECRET_MIN} to {SECRET_MAX}")
        self._octets = octets
        self._keyed = hmac.new(octets, digestmod="sha256")
        """The key is in it, and no text yet: setting the key takes half of the time of a signature."""

    @classmethod
    def generate(cls, random: Random) -> SharedSecret:
        """A new one, of 32 octets."""
        return cls(random(32))

    @classmethod
    def parse(cls, text: str) -> SharedSecret:
        """From ``whsec_…``; raises EncodeError."""
        return cls(_decode(text, cls.prefix))

    def __str__(self) -> str:
        """``whsec_…``: the secret itself. Show it once."""
        return _encode(self._octets, self.prefix)

    def __repr__(self) -> str:
        return "SharedSecret(…)"

    def sign(self, text: bytes) -> bytes:
        """HMAC-SHA256."""
        signature = self._keyed.copy()
        signature.update(text)
        return signature.digest()

    def verifies(self, text: bytes, signature: bytes) -> bool:
        """In constant time."""
        return hmac.compare_digest(self.sign(text), signature)


class PublicKey:
    """A public key of ``v1a``: verifies."""

    scheme = "v1a"
    prefix = "whpk_"
    __slots__ = ("_key", "octets")

    def __init__(self, octets: bytes) -> None:
        """Raises EncodeError where it is no public key of ed25519."""
        if len(octets) != SEED:
            raise EncodeError(f"webhook public key: {len(octets)} octets, it must have {SEED}")
        self.octets = octets
        self._key = Ed25519PublicKey.from_public_bytes(octets)

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """From ``whpk_…``; raises EncodeError."""
        return cls(_decode(text, cls.prefix))

    def __str__(self) -> str:
        """``whpk_…``"""
        return _encode(self.octets, self.prefix)

    def verifies(self, text: bytes, signature: bytes) -> bool:
        """Whether the secret half made it."""
        try:
            self._key.verify(signature, text)
        except InvalidSignature:
            return False
        return True

    @property
    def thumbprint(self) -> str:
        """The name of the key: RFC 7638, SHA-256, with the members of RFC 8037."""
        members = {"crv": "Ed25519", "kty": "OKP", "x": _url(self.octets)}
        return _url(hashlib.sha256(json.dumps(members, separators=(",", ":")).encode()).digest())

    def as_jwk(self) -> dict[str, str]:
        """RFC 8037."""
        return {
            "kty": "OKP",
            "crv": "Ed25519",
            "alg": "EdDSA",
            "use": "sig",
            "kid": self.thumbprint,
            "x": _url(self.octets),
        }


class SecretKey:
    """A secret key of ``v1a``: signs."""

    scheme = "v1a"
    prefix = "whsk_"
    __slots__ = ("_key", "_seed", "public")

    def __init__(self, octets: bytes) -> None:
        """From the seed (32 octets), or from seed and public key (64), which is what is written down. Raises
        EncodeError where it is neither, or where the halves do not belong together."""
        if len(octets) not in (SEED, 2 * SEED):
            raise EncodeError(f"webhook secret key: {len(octets)} octets, it must have {SEED} or {2 * SEED}")
        self._seed = octets[:SEED]
        self._key = Ed25519PrivateKey.from_private_bytes(self._seed)
        self.public = PublicKey(self._key.public_key().public_bytes_raw())
        """The other half."""
        if octets[SEED:] not in (b"", self.public.octets):
            raise EncodeError("webhook secret key: its public half is another key's")

    @classmethod
    def generate(cls, random: Random) -> SecretKey:
        """A new one."""
        return cls(random(SEED))

    @classmethod
    def parse(cls, text: str) -> SecretKey:
        """From ``whsk_…``; raises EncodeError."""
        return cls(_decode(text, cls.prefix))

    def __str__(self) -> str:
        """``whsk_…``: the secret itself. Show it to nobody."""
        return _encode(self._seed + self.public.octets, self.prefix)

    def __repr__(self) -> str:
        return f"SecretKey(…, {self.public})"

    def sign(self, text: bytes) -> bytes:
        """ed25519 (RFC 8032)."""
        return self._key.sign(text)


def sign(keys: Sequence[Signer], message_id: str, timestamp: int, body: bytes) -> list[tuple[bytes, bytes]]:
    """The three headers of one attempt.

    Args:
        keys: the newest first; during a rotation the old ones as well.
        message_id: printable ASCII without a dot, at most 255 characters; the same on every attempt.
        timestamp: the time of this attempt, in seconds since 1970.

    Raises:
        EncodeError: there is no key or there are too many, or the id cannot be signed.
    """
    if not 0 < len(keys) <= KEYS_MAX:
        raise EncodeError(f"webhook keys: there are {len(keys)}, it must be 1 to {KEYS_MAX}")
    if not _ID.fullmatch(message_id):
        raise EncodeError(f"webhook id: {message_id[:80]!r} is not 1 to 255 printable ASCII characters without a dot")
    name = message_id.encode("ascii")
    text = b"%b.%d.%b" % (name, timestamp, body)
    signatures = " ".join(f"{key.scheme},{b64encode(key.sign(text)).decode()}" for key in keys)
    return [(ID, name), (TIMESTAMP, b"%d" % timestamp), (SIGNATURE, signatures.encode())]


class SignatureOutcome(StrEnum):
    """What a receiver finds."""

    VALID = "valid"
    """A key of the gateway made it, now."""
    UNSIGNED = "unsigned"
    """A header is missing, or is not what it should be."""
    TOO_OLD = "too_old"
    """It was made longer ago than is tolerated: somebody may be repeating it."""
    TOO_NEW = "too_new"
    """It claims to be made in the future."""
    MISMATCH = "mismatch"
    """No signature verifies with any key."""


def verify(
    keys: Sequence[VerifyingKey],
    headers: Mapping[bytes, bytes],
    body: bytes,
    now: float,
    tolerance: float = TOLERANCE,
) -> SignatureOutcome:
    """Judge a request as its receiver. ``headers`` have lower-case names; ``now`` is in seconds since 1970."""
    name, stamp, listed = headers.get(ID), headers.get(TIMESTAMP), headers.get(SIGNATURE)
    if not name or stamp is None or listed is None or not _SECONDS.fullmatch(stamp):
        return SignatureOutcome.UNSIGNED
    age = now - int(stamp)
    if age > tolerance:
        return SignatureOutcome.TOO_OLD
    if age < -tolerance:
        return SignatureOutcome.TOO_NEW
    text = b".".join((name, stamp, body))
    for each in listed.split(b" ", KEYS_MAX)[:KEYS_MAX]:
        scheme, _, encoded = each.partition(b",")
        try:
            signature = b64decode(encoded, validate=True)
        except binascii.Error:
            continue  # a scheme of its own may look like anything
        if any(key.scheme.encode() == scheme and key.verifies(text, signature) for key in keys):
            return SignatureOutcome.VALID
    return SignatureOutcome.MISMATCH


def public_key_set(keys: Sequence[PublicKey]) -> dict[str, Any]:
    """The JSON Web Key Set (RFC 7517) for ``/.well-known/webhook-keys``: each key once."""
    return {"keys": [key.as_jwk() for key in {key.octets: key for key in keys}.values()]}


def _decode(text: str, prefix: str) -> bytes:
    """The octets behind the prefix. The error does not show the value."""
    if not text.startswith(prefix):
        raise EncodeError(f"webhook key: it does not begin with {prefix}")
    try:
        return b64decode(text.removeprefix(prefix), validate=True)
    except (binascii.Error, ValueError):
        raise EncodeError(f"webhook key: what follows {prefix} is not base64") from None


def _encode(octets: bytes, prefix: str) -> str:
    return prefix + b64encode(octets).decode()


def _url(octets: bytes) -> str:
    """base64url without padding, as JOSE has it (RFC 7515 section 2)."""
    return urlsafe_b64encode(octets).rstrip(b"=").decode()
