"""Signatures, held against implementations that are not ours."""

from __future__ import annotations

import json
import random
import time
from base64 import b64decode, b64encode, urlsafe_b64decode
from datetime import UTC, datetime

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from gateway.errors import EncodeError
from gateway.webhooks.attempts.signing import (
    KEYS_MAX,
    TOLERANCE,
    PublicKey,
    SecretKey,
    SharedSecret,
    SignatureOutcome,
    Signer,
    public_key_set,
    sign,
    verify,
)
from tests.webhooks import ed25519

BODY = b'{"event":"order.paid","total":"12,50 \xe2\x82\xac"}'
NOW = 1_700_000_000
SHARED = SharedSecret(bytes(range(32)))
SECRET = SecretKey(bytes(range(32)))


def headers(*keys: Signer, at: int = NOW, body: bytes = BODY) -> dict[bytes, bytes]:
    return dict(sign(keys, "msg_1", at, body))


def texts(found: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in found.items()}


# ------------------------------------------------------------------------------------------- other judges


def test_the_reference_implementation_verifies_ours() -> None:
    key = SharedSecret.generate(random.Random(1).randbytes)
    found = texts(headers(key, at=int(time.time())))
    assert Webhook(str(key)).verify(BODY, found) == json.loads(BODY)
    with pytest.raises(WebhookVerificationError):
        Webhook(str(key)).verify(BODY + b" ", found)


def test_it_does_so_while_keys_are_rotated_and_beside_v1a() -> None:
    old, new = (SharedSecret.generate(random.Random(seed).randbytes) for seed in (1, 2))
    found = texts(headers(new, SECRET, old, at=int(time.time())))
    for key in (old, new):
        Webhook(str(key)).verify(BODY, found)
    with pytest.raises(WebhookVerificationError):
        Webhook(str(SharedSecret.generate(random.Random(3).randbytes))).verify(BODY, found)


def test_we_verify_the_reference_implementations() -> None:
    signature = Webhook(str(SHARED)).sign("msg_1", datetime.fromtimestamp(NOW, UTC), BODY.decode())
    found = {b"webhook-id": b"msg_1", b"webhook-timestamp": b"%d" % NOW, b"webhook-signature": signature.encode()}
    assert verify([SHARED], found, BODY, NOW) is SignatureOutcome.VALID
    assert found == headers(SHARED)


def test_the_specifications_own_example() -> None:
    key = SharedSecret.parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    (_, _, signature) = sign([key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}')
    assert signature == (b"webhook-signature", b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")


def test_ed25519_by_its_definition_verifies_ours() -> None:
    """With nothing but the public key and what is on the wire."""
    found = headers(SECRET)
    scheme, _, encoded = found[b"webhook-signature"].partition(b",")
    assert scheme == b"v1a"
    public = b64decode(str(SECRET.public).removeprefix("whpk_"))
    text = b".".join((b"msg_1", b"%d" % NOW, BODY))
    signature = b64decode(encoded)
    assert ed25519.verifies(public, text, signature)
    assert not ed25519.verifies(public, text + b" ", signature)
    assert not ed25519.verifies(public, text, bytes([signature[0] ^ 1]) + signature[1:])
    assert not ed25519.verifies(SecretKey(bytes(32)).public.octets, text, signature)


@pytest.mark.parametrize(
    ("seed", "public", "text", "signature"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
            "d25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
            "387b2eaeb4302aeeb00d291612bb0c00",
        ),
    ],
)
def test_the_vectors_of_rfc_8032(seed: str, public: str, text: str, signature: str) -> None:
    key = SecretKey(bytes.fromhex(seed))
    assert key.public.octets.hex() == public
    assert key.sign(bytes.fromhex(text)).hex() == signature
    assert key.public.verifies(bytes.fromhex(text), bytes.fromhex(signature))
    assert ed25519.verifies(bytes.fromhex(public), bytes.fromhex(text), bytes.fromhex(signature))


def test_the_vector_of_rfc_4231() -> None:
    key = SharedSecret(bytes(range(1, 26)))
    assert key.sign(b"\xcd" * 50).hex() == "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"


def test_the_vectors_of_rfc_8037() -> None:
    key = PublicKey(urlsafe_b64decode("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo="))
    assert key.thumbprint == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
    assert key.as_jwk()["x"] == "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"


# --------------------------------------------------------------------------------------------- the receiver


@given(body=st.binary(max_size=200), id=st.from_regex(r"[A-Za-z0-9_-]{1,60}", fullmatch=True))
def test_what_was_signed_verifies_and_nothing_else(body: bytes, id: str) -> None:
    found = dict(sign([SHARED, SECRET], id, NOW, body))
    for key in (SHARED, SECRET.public):
        assert verify([key], found, body, NOW) is SignatureOutcome.VALID
        assert verify([key], found, body + b"x", NOW) is SignatureOutcome.MISMATCH
        assert verify([key], {**found, b"webhook-id": b"other"}, body, NOW) is SignatureOutcome.MISMATCH
        assert verify([key], {**found, b"webhook-timestamp": b"%d" % (NOW + 1)}, body, NOW) is SignatureOutcome.MISMATCH


@pytest.mark.parametrize(
    ("age", "verdict"),
    [
        (0, SignatureOutcome.VALID),
        (TOLERANCE, SignatureOutcome.VALID),
        (-TOLERANCE, SignatureOutcome.VALID),
        (TOLERANCE + 0.1, SignatureOutcome.TOO_OLD),
        (-TOLERANCE - 0.1, SignatureOutcome.TOO_NEW),
    ],
)
def test_the_tolerance(age: float, verdict: SignatureOutcome) -> None:
    assert verify([SHARED], headers(SHARED), BODY, NOW + age) is verdict


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_all_three_headers_are_needed(name: str) -> None:
    found = headers(SHARED)
    del found[name.encode()]
    assert verify([SHARED], found, BODY, NOW) is SignatureOutcome.UNSIGNED


@pytest.mark.parametrize("stamp", [b"", b"-1", b"1.5", b"now", b" 1", b"9" * 400, "١".encode()])
def test_a_time_stamp_is_a_number(stamp: bytes) -> None:
    assert verify([SHARED], {**headers(SHARED), b"webhook-timestamp": stamp}, BODY, NOW) is SignatureOutcome.UNSIGNED


@pytest.mark.parametrize(
    "listed",
    [b"", b" ", b"v1", b"v1,", b"v1,???", b"v1,AAAA", b"v2,AAAA", b"v1a,AAAA", b",", b"v1,AAAA v1,BBBB", b"\xff,\xff"],
)
def test_signatures_that_are_none(listed: bytes) -> None:
    found = {**headers(SHARED), b"webhook-signature": listed}
    assert verify([SHARED, SECRET.public], found, BODY, NOW) is SignatureOutcome.MISMATCH


def test_a_signature_belongs_to_its_scheme() -> None:
    signature = headers(SHARED)[b"webhook-signature"].removeprefix(b"v1,")
    found = {**headers(SHARED), b"webhook-signature": b"v1a," + signature}
    assert verify([SHARED], found, BODY, NOW) is SignatureOutcome.MISMATCH


def test_a_receiver_looks_at_so_many_signatures_and_no_more() -> None:
    good = headers(SHARED)[b"webhook-signature"]
    for before, verdict in ((KEYS_MAX - 1, SignatureOutcome.VALID), (KEYS_MAX, SignatureOutcome.MISMATCH)):
        found = {**headers(SHARED), b"webhook-signature": b"v1,AAAA " * before + good}
        assert verify([SHARED], found, BODY, NOW) is verdict


def test_a_signature_with_anything_but_base64_in_it_is_none() -> None:
    good = headers(SHARED)[b"webhook-signature"]
    found = {**headers(SHARED), b"webhook-signature": good[:10] + b"!" + good[10:]}
    assert verify([SHARED], found, BODY, NOW) is SignatureOutcome.MISMATCH
    found[b"webhook-signature"] += b" " + good
    assert verify([SHARED], found, BODY, NOW) is SignatureOutcome.VALID, "the one behind it counts"


def test_any_key_of_the_receiver_will_do() -> None:
    other = SharedSecret(bytes(32))
    assert verify([other, SHARED], headers(SHARED), BODY, NOW) is SignatureOutcome.VALID
    assert verify([other], headers(SHARED), BODY, NOW) is SignatureOutcome.MISMATCH
    assert verify([], headers(SHARED), BODY, NOW) is SignatureOutcome.MISMATCH


# ------------------------------------------------------------------------------------------------- the keys


def test_keys_are_written_and_read() -> None:
    assert str(SharedSecret.parse(str(SHARED))) == str(SHARED) == "whsec_" + b64encode(bytes(range(32))).decode()
    assert str(SecretKey.parse(str(SECRET))) == str(SECRET)
    assert str(PublicKey.parse(str(SECRET.public))) == str(SECRET.public)
    seed_only = "whsk_" + b64encode(bytes(range(32))).decode()
    assert str(SecretKey.parse(seed_only)) == str(SECRET)


def test_new_keys_come_from_the_randomness_that_is_given() -> None:
    for kind in (SharedSecret, SecretKey):
        one, other = (str(kind.generate(random.Random(seed).randbytes)) for seed in (1, 2))
        assert one != other
        assert one == str(kind.generate(random.Random(1).randbytes))


def test_secrets_do_not_show_in_what_is_logged() -> None:
    for key in (SHARED, SECRET):
        encoded = str(key).partition("_")[2]
        assert encoded[:10] not in repr(key)
        assert encoded[:10] not in f"{[key]}"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (SharedSecret, ""),
        (SharedSecret, "secret"),
        (SharedSecret, "whpk_" + "A" * 44),
        (SharedSecret, "whsec_" + "A" * 28),  # 21 octets
        (SharedSecret, "whsec_" + "A" * 88),  # 66 octets
        (SharedSecret, "whsec_" + "A" * 43),
        (SharedSecret, "whsec_é" + "A" * 43),
        (SharedSecret, "whsec_" + "_" * 44),
        (SharedSecret, "whsec_!" + "A" * 43 + "="),
        (SecretKey, "whsk_" + "A" * 40),
        (SecretKey, "whsk_" + b64encode(bytes(64)).decode()),
        (PublicKey, "whpk_" + "A" * 40),
        (PublicKey, "whsk_" + "A" * 44),
    ],
)
def test_keys_that_are_none(kind: type[SharedSecret | SecretKey | PublicKey], text: str) -> None:
    with pytest.raises(EncodeError) as error:
        kind.parse(text)
    assert not text or text[6:] not in str(error.value) or text == "secret"


@pytest.mark.parametrize("id", ["", "a.b", "a b", "é", "a\n", "x" * 256, "a\x00"])
def test_ids_that_cannot_be_signed(id: str) -> None:
    with pytest.raises(EncodeError, match="webhook id"):
        sign([SHARED], id, NOW, BODY)


@pytest.mark.parametrize("number", [0, KEYS_MAX + 1])
def test_how_many_keys_sign(number: int) -> None:
    with pytest.raises(EncodeError, match=f"there are {number}"):
        sign([SHARED] * number, "msg_1", NOW, BODY)


def test_a_body_is_signed_as_it_is() -> None:
    body = bytes(range(256))
    assert verify([SHARED], headers(SHARED, body=body), body, NOW) is SignatureOutcome.VALID


def test_the_public_key_set() -> None:
    other = SecretKey(bytes(32))
    found = public_key_set([SECRET.public, other.public, SECRET.public])
    assert [key["kid"] for key in found["keys"]] == [SECRET.public.thumbprint, other.public.thumbprint]
    (key, _) = found["keys"]
    assert (key["kty"], key["crv"], key["alg"], key["use"]) == ("OKP", "Ed25519", "EdDSA", "sig")
    assert "d" not in key
    public = Ed25519PublicKey.from_public_bytes(urlsafe_b64decode(key["x"] + "="))
    text = b".".join((b"msg_1", b"%d" % NOW, BODY))
    signature = b64decode(headers(SECRET)[b"webhook-signature"].partition(b",")[2])
    public.verify(signature, text)
    with pytest.raises(InvalidSignature):
        public.verify(signature, text + b" ")
    json.dumps(found)
