"""SASL mechanisms, for all versions: PLAIN, AMQPLAIN, CRAM-MD5, SCRAM-SHA-1 and SCRAM-SHA-256.

The client side is an object of one exchange: :meth:`Mechanism.start` gives the first response,
:meth:`Mechanism.challenge` answers what the server asks. SCRAM checks the server's signature and refuses a server
that does not know the password. The server side reads PLAIN and AMQPLAIN.

Nothing here is secret-safe in memory, as nothing in Python is; passwords never appear in error texts.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Final

RandomOctets = Callable[[int], bytes]
NONCE_OCTETS: Final = 18
ITERATIONS_MAX: Final = 1_000_000
"""Most rounds of PBKDF2 that a server may ask of us."""
ITERATIONS_MIN: Final = 4_096
"""Fewest (RFC 7677 section 4): a hostile server must not get a cheap hash of the password."""


class SaslError(Exception):
    """The exchange cannot go on: the server's message is malformed or its signature is wrong. Never leaves a
    session, which ends as not authenticated."""


class Mechanism:
    """The client side of one authentication exchange."""

    name: ClassVar[str]
    needs_secure_stream: ClassVar[bool] = False
    """The password itself goes over the wire."""

    def __init__(self, user: str, password: str, random_octets: RandomOctets | None = None) -> None:
        self.user = user
        self.password = password
        self.random_octets = random_octets

    def start(self) -> bytes:
        """The initial response."""
        return b""

    def challenge(self, data: bytes) -> bytes:
        """The response to a challenge. Raises :class:`SaslError`."""
        raise SaslError(f"{self.name}: the server sent a challenge, which this mechanism has not")

    def finish(self) -> None:
        """Called when the server went on as if authenticated. Raises :class:`SaslError` where the server has
        not proved what the mechanism makes it prove."""


class Plain(Mechanism):
    """RFC 4616."""

    name = "PLAIN"
    needs_secure_stream = True

    def start(self) -> bytes:
        return b"\x00" + _octets(self.user) + b"\x00" + _octets(self.password)


class AmqPlain(Mechanism):
    """PLAIN as a field table without its length: LOGIN and PASSWORD."""

    name = "AMQPLAIN"
    needs_secure_stream = True

    def start(self) -> bytes:
        return _string_field(b"LOGIN", _octets(self.user)) + _string_field(b"PASSWORD", _octets(self.password))


class CramMd5(Mechanism):
    """RFC 2195."""

    name = "CRAM-MD5"

    def challenge(self, data: bytes) -> bytes:
        digest = hmac.new(_octets(self.password), data, hashlib.md5).hexdigest()
        return _octets(self.user) + b" " + digest.encode()


class Scram(Mechanism):
    """RFC 5802, without channel binding."""

    algorithm: ClassVar[str]

    def __init__(self, user: str, password: str, random_octets: RandomOctets | None = None) -> None:
        super().__init__(user, password, random_octets)
        if random_octets is None:
            raise SaslError(f"{self.name} needs a source of random octets")
        self._nonce = base64.b64encode(random_octets(NONCE_OCTETS))
        self._first_bare = b"n=" + self._name() + b",r=" + self._nonce
        self._signature: bytes | None = None
        self._verified = False

    def start(self) -> bytes:
        return b"n,," + self._first_bare

    def challenge(self, data: bytes) -> bytes:
        return self._server_first(data) if self._signature is None else self._server_final(data)

    def finish(self) -> None:
        if not self._verified:
            raise SaslError(f"{self.name}: the server went on without its signature")

    def _name(self) -> bytes:
        return _octets(prepared(self.user)).replace(b"=", b"=3D").replace(b",", b"=2C")

    def _server_first(self, data: bytes) -> bytes:
        fields = _attributes(self.name, data)
        nonce = fields.get(b"r", b"")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise SaslError(f"{self.name}: the server's nonce does not continue ours")
        try:
            salt = base64.b64decode(fields[b"s"], validate=True)
            iterations = int(fields[b"i"])
        except (KeyError, ValueError, binascii.Error):
            raise SaslError(f"{self.name}: salt or iteration count are missing or malformed") from None
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise SaslError(f"{self.name}: {iterations} iterations are not within {ITERATIONS_MIN}..{ITERATIONS_MAX}")
        salted = hashlib.pbkdf2_hmac(self.algorithm, _octets(prepared(self.password)), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self.algorithm)
        stored_key = hashlib.new(self.algorithm, client_key).digest()
        without_proof = b"c=biws,r=" + nonce
        message = b",".join((self._first_bare, data, without_proof))
        signature = hmac.digest(stored_key, message, self.algorithm)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self.algorithm)
        self._signature = hmac.digest(server_key, message, self.algorithm)
        return without_proof + b",p=" + base64.b64encode(proof)

    def _server_final(self, data: bytes) -> bytes:
        fields = _attributes(self.name, data)
        if b"e" in fields:
            raise SaslError(f"{self.name}: the server says {fields[b'e'].decode('utf-8', 'replace')!r}")
        try:
            signature = base64.b64decode(fields.get(b"v", b""), validate=True)
        except binascii.Error:
            signature = b""
        assert self._signature is not None
        if not hmac.compare_digest(signature, self._signature):
            raise SaslError(f"{self.name}: the server's signature is wrong: it does not know the password")
        self._verified = True
        return b""


class ScramSha1(Scram):
    name = "SCRAM-SHA-1"
    algorithm = "sha1"


class ScramSha256(Scram):
    name = "SCRAM-SHA-256"
    algorithm = "sha256"


MECHANISMS: Final[Mapping[str, type[Mechanism]]] = {
    mechanism.name: mechanism for mechanism in (ScramSha256, ScramSha1, CramMd5, Plain, AmqPlain)
}


def choose(
    offered: Iterable[str],
    allowed: Iterable[str],
    secure: bool,
    user: str,
    password: str,
    random_octets: RandomOctets | None = None,
) -> Mechanism | None:
    """The first of ``allowed`` that is ``offered`` and may be used on this stream; None where there is none.

    PLAIN and AMQPLAIN need a ``secure`` stream, SCRAM needs ``random_octets``.
    """
    available = set(offered)
    for name in allowed:
        kind = MECHANISMS.get(name)
        if kind is None or name not in available or (kind.needs_secure_stream and not secure):
            continue
        if issubclass(kind, Scram) and random_octets is None:
            continue
        return kind(user, password, random_octets)
    return None


# --------------------------------------------------------------------------------------------- server side


def read_plain(response: bytes) -> tuple[str, str] | None:
    """User and password of a PLAIN response, None where it is none. An authorization identity other than the
    user is refused."""
    parts = response.split(b"\x00")
    if len(parts) != 3 or not parts[1] or (parts[0] and parts[0] != parts[1]):
        return None
    return _text(parts[1]), _text(parts[2])


def read_amqplain(entries: Mapping[str, object]) -> tuple[str, str] | None:
    """User and password of an AMQPLAIN response, decoded as a table; None where it has them not."""
    user, password = entries.get("LOGIN"), entries.get("PASSWORD")
    return (user, password) if isinstance(user, str) and isinstance(password, str) else None


# -------------------------------------------------------------------------------------------------- helpers


def prepared(text: str) -> str:
    """``text`` by SASLprep (RFC 4013), as far as names and passwords need it: mapped spaces, nothing
    invisible, NFKC. Raises :class:`SaslError` for control characters."""
    mapped = "".join(
        " " if unicodedata.category(char) == "Zs" else char for char in text if char not in _MAPPED_TO_NOTHING
    )
    normal = unicodedata.normalize("NFKC", mapped)
    if any(unicodedata.category(char) in ("Cc", "Cs", "Co", "Cn") for char in normal):
        raise SaslError("user name and password may not hold control or unassigned characters")
    return normal


_MAPPED_TO_NOTHING: Final = frozenset("\u00ad\u034f\u1806\u180b\u180c\u180d\u200b\u200c\u200d\u2060\ufeff") | {
    chr(code) for code in range(0xFE00, 0xFE10)
}
"""RFC 3454 table B.1."""


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")


def _string_field(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + b"S" + len(value).to_bytes(4, "big") + value


def _attributes(mechanism: str, data: bytes) -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = {}
    for part in data.split(b","):
        name, equals, value = part.partition(b"=")
        if not equals or len(name) != 1 or name == b"m":
            raise SaslError(f"{mechanism}: the server's message is malformed or asks for an extension")
        fields[name] = value
    return fields
