"""SASL mechanisms, with the vectors of their RFCs."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from gateway import sasl
from gateway.sasl import AmqPlain, CramMd5, Plain, SaslError, Scram, ScramSha1, ScramSha256, choose

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
        (b"r=other,s=QSXCR+Q6sek8bf92,i=4096", "does not continue ours"),
        (b"r=abc,s=QSXCR+Q6sek8bf92,i=4096", "does not continue ours"),
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
        (("EXTERNAL",), ("EXTERNAL",), True, True, None),
        (("ANONYMOUS",), ("PLAIN",), True, True, None),
    ],
)
def test_choose(offered: tuple[str, ...], allowed: tuple[str, ...], secure: bool, random: bool, chosen: str) -> None:
    mechanism = choose(offered, allowed, secure, "user", "password", RANDOM if random else None)
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
