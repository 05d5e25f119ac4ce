"""SASL mechanisms, with the vectors of their RFCs."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.amqp import sasl
from gateway.amqp.sasl import (
    AmqPlain,
    Anonymous,
    CramMd5,
    External,
    Plain,
    SaslError,
    Scram,
    ScramSha1,
    ScramSha256,
    ServerScram,
    choose_mechanism,
)
from gateway.session import ClientConfig, ServerConfig

RANDOM = lambda count: bytes(count)  # noqa: E731


def scripted(kind: type[Scram], nonce: str, user: str = "user", password: str = "pencil") -> Scram:
    """A mechanism whose nonce is the vector's."""
    mechanism = kind(user, password, RANDOM)
    mechanism._nonce = nonce.encode()
    mechanism._first_bare = b"n=" + mechanism._name() + b",r=" + mechanism._nonce
    return mechanism


def test_plain() -> None:
    assert Plain("guest", "gu\u00e9st").start() == b"\x00guest\x00gu\xc3\xa9st"
    with pytest.raises(SaslError, match="PLAIN: the server sent a challenge"):
        Plain("guest", "guest").challenge(b"what?")


def test_amqplain_is_a_table_without_its_length() -> None:
    assert AmqPlain("ann", "secret").start() == b"\x05LOGINS\x00\x00\x00\x03ann\x08PASSWORDS\x00\x00\x00\x06secret"


def test_cram_md5_rfc_2195() -> None:
    mechanism = CramMd5("tim", "tanstaaftanstaaf")
    assert mechanism.start() == b""
    challenge = b"<1896.697170952@postoffice.reston.mci.net>"
    assert mechanism.challenge(challenge) == b"tim b913a602c7eda7a495b4e6e7334d3890"
    mechanism.finish()


def test_scram_sha_1_rfc_5802() -> None:
    mechanism = scripted(ScramSha1, "fyko+d2lbbFgONRv9qkxdawL")
    assert mechanism.start() == b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL"
    answer = mechanism.challenge(b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096")
    assert answer == b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
    assert mechanism.challenge(b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=") == b""
    mechanism.finish()


def test_scram_sha_256_rfc_7677() -> None:
    mechanism = scripted(ScramSha256, "rOprNGfwEbeRWgbNEkqO")
    first = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert mechanism.challenge(first) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert mechanism.challenge(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") == b""
    mechanism.finish()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"r=other,s=QSXCR+Q6sek8bf92,i=4096", "does not continue the client"),
        (b"r=abc,s=QSXCR+Q6sek8bf92,i=4096", "does not continue the client"),
        (b"r=abcdef,i=4096", "salt or iteration count"),
        (b"r=abcdef,s=!,i=4096", "salt or iteration count"),
        (b"r=abcdef,s=QSXCR+Q6sek8bf92,i=x", "salt or iteration count"),
        (b"r=abcdef,s=QSXCR+Q6sek8bf92,i=1", "1 iterations are not within"),
        (b"r=abcdef,s=QSXCR+Q6sek8bf92,i=2000000000", "iterations are not within"),
        (b"m=ext,r=abcdef", "malformed or asks for an extension"),
        (b"nonsense", "malformed"),
    ],
)
def test_a_malformed_first_message(message: bytes, reason: str) -> None:
    with pytest.raises(SaslError, match=reason):
        scripted(ScramSha256, "abc").challenge(message)


@pytest.mark.parametrize(
    ("message", "reason"),
    [(b"v=AAAA", "signature is wrong"), (b"v=!", "signature is wrong"), (b"e=invalid-proof", "invalid-proof")],
)
def test_a_server_that_does_not_know_the_password(message: bytes, reason: str) -> None:
    mechanism = scripted(ScramSha256, "abc")
    mechanism.challenge(b"r=abcdef,s=QSXCR+Q6sek8bf92,i=4096")
    with pytest.raises(SaslError, match=reason):
        mechanism.challenge(message)
    with pytest.raises(SaslError, match="without its signature"):
        mechanism.finish()


def test_names_are_escaped_and_prepared() -> None:
    mechanism = ScramSha1("a=b,c\u00a0\u00ad", "p", RANDOM)
    assert mechanism.start().startswith(b"n,,n=a=3Db=2Cc ,r=")
    assert sasl.prepared("\u2168") == "IX"
    with pytest.raises(SaslError, match="control"):
        ScramSha1("a\x00b", "p", RANDOM)
    with pytest.raises(SaslError, match="random"):
        ScramSha1("a", "p")


def test_a_password_with_letters_beyond_ascii() -> None:
    mechanism = scripted(ScramSha256, "abc", password="gu\u00e9st")
    first = b"r=abcdef,s=QSXCR+Q6sek8bf92,i=4096"
    answer = mechanism.challenge(first)
    salted = hashlib.pbkdf2_hmac("sha256", "gu\u00e9st".encode(), base64.b64decode("QSXCR+Q6sek8bf92"), 4096)
    message = b"n=user,r=abc," + first + b"," + answer.rpartition(b",p=")[0]
    signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), message, "sha256")
    assert mechanism.challenge(b"v=" + base64.b64encode(signature)) == b""


@pytest.mark.parametrize(
    ("offered", "allowed", "secure", "random", "chosen"),
    [
        (("PLAIN", "SCRAM-SHA-256"), ("SCRAM-SHA-256", "PLAIN"), True, True, "SCRAM-SHA-256"),
        (("PLAIN", "SCRAM-SHA-256"), ("SCRAM-SHA-256", "PLAIN"), True, False, "PLAIN"),
        (("PLAIN", "SCRAM-SHA-256"), ("PLAIN", "SCRAM-SHA-256"), False, True, "SCRAM-SHA-256"),
        (("PLAIN", "AMQPLAIN"), ("PLAIN", "AMQPLAIN"), False, True, None),
        (("CRAM-MD5",), ("EXTERNAL", "CRAM-MD5"), False, False, "CRAM-MD5"),
        (("EXTERNAL", "PLAIN"), ("EXTERNAL",), True, True, "EXTERNAL"),
        (("EXTERNAL", "ANONYMOUS"), ("ANONYMOUS", "PLAIN"), False, False, "ANONYMOUS"),
        (("EXTERNAL", "ANONYMOUS"), ClientConfig().mechanisms, True, True, None),
        (("GSSAPI",), ("GSSAPI",), True, True, None),
    ],
)
def test_choose(offered: tuple[str, ...], allowed: tuple[str, ...], secure: bool, random: bool, chosen: str) -> None:
    mechanism = choose_mechanism(offered, allowed, secure, "user", "password", RANDOM if random else None)
    assert (mechanism.name if mechanism else None) == chosen


@pytest.mark.parametrize(
    ("response", "login"),
    [
        (b"\x00guest\x00secret", ("guest", "secret")),
        (b"guest\x00guest\x00secret", ("guest", "secret")),
        (b"\x00guest\x00", ("guest", "")),
        (b"other\x00guest\x00secret", None),
        (b"\x00\x00secret", None),
        (b"guest", None),
        (b"\x00guest\x00sec\x00ret", None),
    ],
)
def test_read_plain(response: bytes, login: tuple[str, str] | None) -> None:
    assert sasl.read_plain(response) == login


def test_read_amqplain() -> None:
    assert sasl.read_amqplain({"LOGIN": "a", "PASSWORD": "b"}) == ("a", "b")
    assert sasl.read_amqplain({"LOGIN": "a"}) is None
    assert sasl.read_amqplain({"LOGIN": 5, "PASSWORD": "b"}) is None


def test_the_base_has_nothing_to_say() -> None:
    assert sasl.Mechanism("a", "b").start() == b""
    with pytest.raises(NotImplementedError):
        sasl.ServerMechanism(SERVER).respond(b"")


@pytest.mark.parametrize(("kind", "login"), [(External, "ann"), (Anonymous, "")])
def test_mechanisms_that_say_nothing(kind: type[sasl.Mechanism], login: str) -> None:
    mechanism = kind("ann", "secret")
    assert (mechanism.start(), mechanism.login) == (b"", login)
    mechanism.finish()
    with pytest.raises(SaslError, match="which this mechanism has not"):
        mechanism.challenge(b"password?")


def test_a_server_gets_one_digest() -> None:
    mechanism = CramMd5("user", "password")
    mechanism.challenge(b"<1@x>")
    with pytest.raises(SaslError, match="second challenge"):
        mechanism.challenge(b"<2@x>")


def test_nothing_follows_the_signature() -> None:
    mechanism = scripted(ScramSha1, "fyko+d2lbbFgONRv9qkxdawL")
    mechanism.challenge(b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096")
    mechanism.challenge(b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=")
    with pytest.raises(SaslError, match="behind its signature"):
        mechanism.challenge(b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=")


# --------------------------------------------------------------------------------------------- server side

SERVER = ServerConfig(
    authenticate=lambda user, password: (user, password) == ("user", "pencil"),
    open_virtual_host=lambda user, name: True,
    random_octets=RANDOM,
    scram=lambda user: (
        sasl.scram_keys("pencil", b"some salt") if user in ("user", "a=b,c") else sasl.no_scram_keys(user, b"secret")
    ),
    certificate="carol",
    anonymous="guest",
)


def test_what_is_offered() -> None:
    everything = ("PLAIN", "AMQPLAIN", "SCRAM-SHA-256", "EXTERNAL", "ANONYMOUS")
    assert sasl.offered_mechanisms(SERVER, tables=True) == everything
    bare = replace(SERVER, random_octets=None, certificate="", anonymous="")
    assert sasl.offered_mechanisms(bare, tables=False) == ("PLAIN",)
    for name in everything[1:]:
        assert sasl.server_mechanism(name, bare) is None
    assert sasl.server_mechanism("AMQPLAIN", bare, lambda octets: {}) is not None


@pytest.mark.parametrize(
    ("name", "response", "user"),
    [
        ("PLAIN", b"\x00user\x00pencil", "user"),
        ("PLAIN", b"\x00user\x00pen", None),
        ("PLAIN", b"nonsense", None),
        ("AMQPLAIN", b"user pencil", "user"),
        ("AMQPLAIN", b"user pen", None),
        ("EXTERNAL", b"", "carol"),
        ("EXTERNAL", b"carol", "carol"),
        ("EXTERNAL", b"user", None),
        ("ANONYMOUS", b"", "guest"),
        ("ANONYMOUS", b"somebody@example", "guest"),
    ],
)
def test_one_response(name: str, response: bytes, user: str | None) -> None:
    mechanism = sasl.server_mechanism(
        name, SERVER, lambda octets: dict(zip(("LOGIN", "PASSWORD"), octets.decode().split(), strict=True))
    )
    assert mechanism is not None
    assert mechanism.respond(response) is None
    assert mechanism.user == user


def scram(client: Scram, begins: bool = True, config: ServerConfig = SERVER) -> str | None:
    """A whole exchange; who the server takes the client for. Raises :class:`SaslError`."""
    server = sasl.server_mechanism("SCRAM-SHA-256", config)
    assert server is not None
    if not begins:
        assert server.respond(b"") == b""
    response = client.start()
    while (challenge := server.respond(response)) is not None:
        assert server.user is None
        response = client.challenge(challenge)
    if server.user is not None:
        client.finish()
    return server.user


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize(
    ("user", "password", "found"),
    [
        ("user", "pencil", "user"),
        ("a=b,c", "pencil", "a=b,c"),
        ("\u00aduser", "pencil", "user"),
        ("user", "pen", None),
        ("nobody", "pencil", None),
    ],
)
def test_scram_between_the_two(user: str, password: str, found: str | None, begins: bool) -> None:
    assert scram(ScramSha256(user, password, RANDOM), begins) == found


def test_scram_sha_256_of_the_rfc_as_a_server() -> None:
    """The vector of RFC 7677, from the other side."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    server = ServerScram(replace(SERVER, scram=lambda user: sasl.scram_keys("pencil", salt)))
    server.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    server._nonce = nonce
    server._messages = b"n=user,r=rOprNGfwEbeRWgbNEkqO,r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,"
    final = b"c=biws,r=" + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert server.respond(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert server.respond(b"") is None
    assert server.user == "user"


def test_somebody_who_does_not_exist_looks_like_somebody() -> None:
    firsts = []
    for user in (b"user", b"nobody", b"nobody"):
        server = ServerScram(SERVER)
        first = server.respond(b"n,,n=" + user + b",r=abc")
        assert first is not None
        firsts.append([part[:2] for part in first.split(b",")])
    assert firsts == [[b"r=", b"s=", b"i="]] * 3
    assert sasl.no_scram_keys("nobody", b"secret") == sasl.no_scram_keys("nobody", b"secret")
    assert sasl.no_scram_keys("nobody", b"secret") != sasl.no_scram_keys("nobody", b"other")
    assert len(sasl.no_scram_keys("nobody", b"secret").salt) == sasl.SALT_OCTETS


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "malformed"),
        (b"p=tls-unique,,n=user,r=abc", "channel binding"),
        (b"n", "malformed"),
        (b"n,n=user,r=abc", "no name or nonce"),
        (b"n,,n=user", "no name or nonce"),
        (b"n,,r=abc", "no name or nonce"),
        (b"n,a=admin,n=user,r=abc", "somebody else"),
        (b"n,,m=ext,n=user,r=abc", "asks for an extension"),
        (b"n,,n=us=er,r=abc", "not written =3D"),
        (b"n,,n=us\x00er,r=abc", "control"),
    ],
)
def test_a_first_message_that_is_none(message: bytes, reason: str) -> None:
    server = ServerScram(SERVER)
    assert server.respond(b"") == b""
    with pytest.raises(SaslError, match=reason):
        server.respond(message)


@pytest.mark.parametrize("first", [b"n,,n=user,r=abc", b"y,,n=user,r=abc", b"n,a=user,n=user,r=abc"])
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda final: final.partition(b",p=")[0], "has no proof"),
        (lambda final: final.partition(b",p=")[0] + b",p=!", "no base64"),
        (lambda final: final.partition(b",p=")[0] + b",p=AAAA", "another exchange"),
        (lambda final: final.replace(b"r=abc", b"r=abd"), "another exchange"),
        (lambda final: b"c=AAAA" + final[final.index(b",") :], "another exchange"),
        (lambda final: b"nonsense,p=" + final.partition(b",p=")[2], "malformed"),
    ],
)
def test_a_final_message_that_is_none(first: bytes, spoil: Callable[[bytes], bytes], reason: str) -> None:
    server = ServerScram(SERVER)
    said = server.respond(first)
    assert said is not None
    header = first[: first.index(b",n=") + 1]
    nonce = said.partition(b",")[0]
    final = b"c=" + base64.b64encode(header) + b"," + nonce + b",p=" + base64.b64encode(bytes(32))
    assert server.respond(final) is None
    assert server.user is None
    again = ServerScram(SERVER)
    again.respond(first)
    with pytest.raises(SaslError, match=reason):
        again.respond(spoil(final))


def test_nothing_is_said_behind_the_end() -> None:
    client, server = ScramSha256("user", "pencil", RANDOM), ServerScram(SERVER)
    challenge = server.respond(client.start())
    assert challenge is not None
    signature = server.respond(client.challenge(challenge))
    assert signature is not None
    assert server.respond(b"more") is None
    assert server.user is None


def test_a_password_that_scram_has_no_keys_for() -> None:
    with pytest.raises(SaslError, match="control"):
        sasl.scram_keys("sec\x00ret", b"salt")
