"""SASL mechanisms, for all versions and both roles.

=================  ======  ======  ====================================================================================
mechanism          client  server
=================  ======  ======  ====================================================================================
SCRAM-SHA-256      yes     yes     RFC 7677; the server where it knows keys of users
SCRAM-SHA-1        yes             RFC 5802
CRAM-MD5           yes             RFC 2195
PLAIN, AMQPLAIN    yes     yes     RFC 4616; AMQPLAIN is of the classic versions
EXTERNAL           asked   asked   RFC 4422 appendix A; the TLS certificate names the client
ANONYMOUS          asked   asked   RFC 4505
=================  ======  ======  ====================================================================================

"asked": only where the configuration names it (client), or a certificate was shown or a login is set (server).

Either side is an object of one exchange. The client's :meth:`Mechanism.start` gives the first response,
:meth:`Mechanism.challenge` answers what the server asks. SCRAM checks the server's signature and refuses a server
that does not know the password. The server's :meth:`ServerMechanism.respond` takes each response and gives the next
challenge, until it knows who the client is.

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

from gateway.session import PendingLogin, ScramKeys, ServerConfig

RandomOctets = Callable[[int], bytes]
NONCE_OCTETS: Final = 18
SALT_OCTETS: Final = 16
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

    @property
    def login(self) -> str:
        """Who we are when it succeeds; empty: only the server knows."""
        return self.user

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
    _answered = False

    def challenge(self, data: bytes) -> bytes:
        if self._answered:  # a server may not have as many digests of its own choice as it likes
            raise SaslError(f"{self.name}: the server sent a second challenge")
        self._answered = True
        digest = hmac.new(_octets(self.password), data, hashlib.md5).hexdigest()
        return _octets(self.user) + b" " + digest.encode()


class External(Mechanism):
    """RFC 4422 appendix A: we are who our TLS certificate says. No identity to act as is asked for."""

    name = "EXTERNAL"


class Anonymous(Mechanism):
    """RFC 4505, without a trace: the identity is not given."""

    name = "ANONYMOUS"

    @property
    def login(self) -> str:
        return ""


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
        if self._verified:
            raise SaslError(f"{self.name}: the server sent a challenge behind its signature")
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
            raise SaslError(f"{self.name}: the server's nonce does not continue the client's")
        try:
            salt = base64.b64decode(fields[b"s"], validate=True)
            iterations = int(fields[b"i"])
        except (KeyError, ValueError, binascii.Error):
            raise SaslError(f"{self.name}: salt or iteration count are missing or malformed") from None
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise SaslError(f"{self.name}: {iterations} iterations are not within {ITERATIONS_MIN}..{ITERATIONS_MAX}")
        client_key, keys = _keys(self.algorithm, self.password, salt, iterations)
        without_proof = b"c=biws,r=" + nonce
        message = b",".join((self._first_bare, data, without_proof))
        proof = _xor(client_key, hmac.digest(keys.stored_key, message, self.algorithm))
        self._signature = hmac.digest(keys.server_key, message, self.algorithm)
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
    mechanism.name: mechanism for mechanism in (ScramSha256, ScramSha1, CramMd5, Plain, AmqPlain, External, Anonymous)
}


def choose_mechanism(
    offered: Iterable[str],
    allowed: Iterable[str],
    secure: bool,
    user: str,
    password: str,
    random_octets: RandomOctets | None = None,
) -> Mechanism | None:
    """The first of ``allowed`` that is ``offered`` and may be used on this stream; None where there is none.

    PLAIN and AMQPLAIN need a ``secure`` stream, SCRAM needs ``random_octets``. What the server offers alone is never a
    reason: EXTERNAL and ANONYMOUS are taken where ``allowed`` names them.
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


class ServerMechanism:
    """The server side of one authentication exchange."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.user: str | None = None
        """Who the client is; None: it has not shown that, or not yet."""
        self.claimed = ""
        """Who it says it is."""
        self.pending: PendingLogin | None = None
        """Somebody else checks the password, and has not answered yet."""

    def respond(self, response: bytes) -> bytes | None:
        """Take a response of the client's, the initial one first. Returns the next challenge; None: it is over, and
        ``user`` says how it ended. Raises :class:`SaslError` for what is no response of the mechanism."""
        raise NotImplementedError

    def decide(self, accepted: bool) -> None:
        """Take the answer that ``pending`` waits for."""
        self.pending = None
        if accepted:
            self.user = self.claimed


class ServerPlain(ServerMechanism):
    """PLAIN."""

    def respond(self, response: bytes) -> bytes | None:
        self._check(read_plain(response))
        return None

    def _check(self, login: tuple[str, str] | None) -> None:
        if login is not None:
            self.claimed = login[0]
            accepted = self.config.authenticate(*login)
            if isinstance(accepted, PendingLogin):
                self.pending = accepted
            elif accepted:
                self.user = login[0]


class ServerAmqPlain(ServerPlain):
    """AMQPLAIN. Tables differ between dialects, so ``read_entries`` is the session's; what it raises is passed on."""

    def __init__(self, config: ServerConfig, read_entries: Callable[[bytes], Mapping[str, object]]) -> None:
        super().__init__(config)
        self._read_entries = read_entries

    def respond(self, response: bytes) -> bytes | None:
        self._check(read_amqplain(self._read_entries(response)))
        return None


class ServerExternal(ServerMechanism):
    """EXTERNAL: the client may name who it is, but not somebody else."""

    def respond(self, response: bytes) -> bytes | None:
        self.claimed = _text(response) or self.config.certificate
        if self.claimed == self.config.certificate:
            self.user = self.config.certificate
        return None


class ServerAnonymous(ServerMechanism):
    """ANONYMOUS. The trace that a client may send of itself is of no use here."""

    def respond(self, response: bytes) -> bytes | None:
        self.user = self.config.anonymous
        return None


class ServerScram(ServerMechanism):
    """SCRAM-SHA-256 without channel binding: client-first, server-first, client-final, server-final, and an empty
    response to that, since AMQP has no place for data beside its tune."""

    name = "SCRAM-SHA-256"
    algorithm = "sha256"

    def __init__(self, config: ServerConfig) -> None:
        super().__init__(config)
        self._asked = False
        """An empty challenge was sent to a client that began with nothing."""
        self._name = ""
        self._header = b""
        self._nonce = b""
        self._messages = b""
        self._keys: ScramKeys | None = None
        self._proved = False

    def respond(self, response: bytes) -> bytes | None:
        if self._proved:
            if not response:
                self.user = self._name
            return None
        if self._keys is not None:
            return self._client_final(response, self._keys)
        if not response and not self._asked:
            self._asked = True
            return b""
        return self._client_first(response)

    def _client_first(self, data: bytes) -> bytes:
        binding, comma, rest = data.partition(b",")
        identity, also_comma, bare = rest.partition(b",")
        if binding not in (b"n", b"y") or not comma or not also_comma:
            raise SaslError(f"{self.name}: the client's message is malformed or asks for channel binding")
        fields = _attributes(self.name, bare)
        name, nonce = fields.get(b"n", b""), fields.get(b"r", b"")
        if not name or not nonce or (identity and identity != b"a=" + name):
            raise SaslError(f"{self.name}: the client's message has no name or nonce, or asks to be somebody else")
        if b"=" in name.replace(b"=2C", b"").replace(b"=3D", b""):
            raise SaslError(f"{self.name}: a '=' in the name is not written =3D")
        assert self.config.random_octets is not None
        assert self.config.scram is not None
        self._name = self.claimed = prepared(_text(name.replace(b"=2C", b",").replace(b"=3D", b"=")))
        self._keys = keys = self.config.scram(self._name)
        self._header = binding + b"," + identity + b","
        self._nonce = nonce + base64.b64encode(self.config.random_octets(NONCE_OCTETS))
        first = b"r=%b,s=%b,i=%d" % (self._nonce, base64.b64encode(keys.salt), keys.iterations)
        self._messages = bare + b"," + first + b","
        return first

    def _client_final(self, data: bytes, keys: ScramKeys) -> bytes | None:
        without_proof, found, proof64 = data.rpartition(b",p=")
        if not found:
            raise SaslError(f"{self.name}: the client's message has no proof")
        fields = _attributes(self.name, without_proof)
        try:
            header = base64.b64decode(fields.get(b"c", b""), validate=True)
            proof = base64.b64decode(proof64, validate=True)
        except binascii.Error:
            raise SaslError(f"{self.name}: the client's proof is no base64") from None
        if header != self._header or fields.get(b"r") != self._nonce or len(proof) != len(keys.stored_key):
            raise SaslError(f"{self.name}: the client's proof is for another exchange")
        message = self._messages + without_proof
        client_key = _xor(proof, hmac.digest(keys.stored_key, message, self.algorithm))
        if not hmac.compare_digest(hashlib.new(self.algorithm, client_key).digest(), keys.stored_key):
            return None
        self._proved = True
        return b"v=" + base64.b64encode(hmac.digest(keys.server_key, message, self.algorithm))


def offered_mechanisms(config: ServerConfig, *, tables: bool) -> tuple[str, ...]:
    """What a server offers, by its configuration; ``tables``: AMQPLAIN too, which is of the classic versions."""
    names = ["PLAIN", "AMQPLAIN"] if tables else ["PLAIN"]
    if config.scram is not None and config.random_octets is not None:
        names.append(ServerScram.name)
    if config.certificate:
        names.append("EXTERNAL")
    if config.anonymous:
        names.append("ANONYMOUS")
    return tuple(names)


def server_mechanism(
    name: str, config: ServerConfig, read_entries: Callable[[bytes], Mapping[str, object]] | None = None
) -> ServerMechanism | None:
    """The server side of a mechanism, None where it is not offered. ``read_entries`` decodes AMQPLAIN's table; without
    it there is no AMQPLAIN."""
    if name not in offered_mechanisms(config, tables=read_entries is not None):
        return None
    if name == "AMQPLAIN" and read_entries is not None:
        return ServerAmqPlain(config, read_entries)
    return _SERVER_MECHANISMS[name](config)


def logged_in(mechanism: ServerMechanism, config: ServerConfig) -> str | None:
    """Who has logged in by an exchange that is over, None: nobody."""
    user = mechanism.user
    if config.admits is not None and not config.admits(mechanism.claimed if user is None else user, user is not None):
        return None
    return user


_SERVER_MECHANISMS: Final[Mapping[str, type[ServerMechanism]]] = {
    "PLAIN": ServerPlain,
    "EXTERNAL": ServerExternal,
    "ANONYMOUS": ServerAnonymous,
    ServerScram.name: ServerScram,
}


def scram_keys(password: str, salt: bytes, iterations: int = ITERATIONS_MIN) -> ScramKeys:
    """What a server keeps of a password for SCRAM-SHA-256. Raises :class:`SaslError` for a password that SASLprep
    refuses."""
    return _keys(ServerScram.algorithm, password, salt, iterations)[1]


def no_scram_keys(user: str, secret: bytes) -> ScramKeys:
    """Keys that fit no password, for a user that does not exist: always the same for the same ``user``, and not to be
    told from others without the ``secret``."""
    salt, stored_key, server_key = (
        hmac.digest(secret, word + _octets(user), ServerScram.algorithm) for word in (b"salt", b"stored", b"server")
    )
    return ScramKeys(salt[:SALT_OCTETS], ITERATIONS_MIN, stored_key, server_key)


def read_plain(response: bytes) -> tuple[str, str] | None:
    """User and password of a PLAIN response, None where it is malformed. An authorization identity other than the
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


def _keys(algorithm: str, password: str, salt: bytes, iterations: int) -> tuple[bytes, ScramKeys]:
    """The client's key and the server's two (RFC 5802 section 3)."""
    salted = hashlib.pbkdf2_hmac(algorithm, _octets(prepared(password)), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    stored_key = hashlib.new(algorithm, client_key).digest()
    return client_key, ScramKeys(salt, iterations, stored_key, hmac.digest(salted, b"Server Key", algorithm))


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


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
            raise SaslError(f"{mechanism}: the peer's message is malformed or asks for an extension")
        fields[name] = value
    return fields
