"""Signing keys over time."""

from __future__ import annotations

import random

import msgspec
import pytest

from gateway.errors import ConfigurationError, EncodeError, StateError
from gateway.webhooks.attempts.signing import KEYS_MAX, SecretKey
from gateway.webhooks.settings import keys
from gateway.webhooks.settings.keys import HeldKey, PublicKeys, StoredKey
from gateway.webhooks.settings.secrets import Seals

SEALS = Seals([bytes(32)])
octets = random.Random(1).randbytes


def names(held: tuple[HeldKey, ...]) -> list[tuple[str, bool, float | None]]:
    return [(key.id, key.old, key.until) for key in held]


def test_new_keys() -> None:
    shared, own = keys.make("v1", octets, 5.0), keys.make("v1a", octets, 5.0)
    assert shared.told.startswith("whsec_")
    assert own.told.startswith("whpk_")
    assert shared.public is None
    assert own.public is not None
    assert own.id == own.public.thumbprint
    assert shared.id not in shared.told
    assert shared.signs(1e12)


def test_rotation_with_overlap() -> None:
    first = keys.fitting((), ("v1", "v1a"), octets, 0.0)
    assert [key.scheme for key in first] == ["v1", "v1a"]
    second = keys.rotate(first, ("v1",), octets, 100.0, 50.0)
    assert names(second)[1:] == [(first[0].id, True, 150.0), (first[1].id, False, None)]
    assert not second[0].old
    assert [key.signs(149.9) for key in second] == [True, True, True]
    assert [key.signs(150.0) for key in second] == [True, False, True]
    assert keys.fitting(second, ("v1", "v1a"), octets, 150.0) == (second[0], second[2])


def test_until_told() -> None:
    first = keys.fitting((), ("v1",), octets, 0.0)
    second = keys.rotate(first, ("v1",), octets, 100.0, None)
    third = keys.rotate(second, ("v1",), octets, 200.0, 10.0)
    assert [key.until for key in third] == [None, 210.0, 210.0]
    fourth = keys.rotate(third, ("v1",), octets, 205.0, None)
    assert [key.until for key in fourth] == [None, None, 210.0, 210.0], "what was to stop sooner still does"
    assert names(keys.finish(fourth)) == [(fourth[0].id, False, None)]


def test_without_overlap_the_old_one_is_gone_at_once() -> None:
    first = keys.fitting((), ("v1",), octets, 0.0)
    assert len(keys.rotate(first, ("v1",), octets, 1.0, 0.0)) == 1


def test_not_more_than_a_receiver_looks_at() -> None:
    held = keys.fitting((), ("v1",), octets, 0.0)
    for _ in range(KEYS_MAX - 1):
        held = keys.rotate(held, ("v1",), octets, 0.0, None)
    with pytest.raises(StateError, match="8 keys sign already and at most 8 may"):
        keys.rotate(held, ("v1",), octets, 0.0, None)


def test_keys_fit_the_schemes() -> None:
    both = keys.fitting((), ("v1", "v1a"), octets, 0.0)
    (left,) = keys.fitting(both, ("v1a",), octets, 0.0)
    assert left == both[1]
    again = keys.fitting((left,), ("v1", "v1a"), octets, 0.0)
    assert again[1] == left
    assert again[0].id != both[0].id


def test_at_rest_they_are_sealed_for_one_endpoint() -> None:
    held = keys.rotate(keys.fitting((), ("v1", "v1a"), octets, 0.0), ("v1",), octets, 1.0, 60.0)
    stored = keys.seal(SEALS, "shop", held, ())
    document = msgspec.json.encode(stored)
    for key in held:
        assert str(key.key).split("_")[1].encode() not in document
    stored = msgspec.json.decode(document, type=list[StoredKey])
    opened = keys.unseal(SEALS, "shop", stored)
    assert [str(key.key) for key in opened] == [str(key.key) for key in held]
    assert names(opened) == names(held)
    assert keys.seal(SEALS, "shop", held, stored) == stored, "what is sealed stays as it is"
    with pytest.raises(ConfigurationError):
        keys.unseal(SEALS, "other", stored)
    with pytest.raises(ConfigurationError):
        keys.unseal(SEALS, "shop", [msgspec.structs.replace(stored[0], sealed=stored[1].sealed)])
    with pytest.raises(ConfigurationError):
        keys.unseal(Seals([bytes(range(32))]), "shop", stored)


def test_what_was_sealed_and_is_no_key() -> None:
    sealed = SEALS.seal("endpoint shop signing v1 a", "whsec_AAAA")
    with pytest.raises(EncodeError, match="the signing key a is damaged"):
        keys.unseal(SEALS, "shop", [StoredKey("v1", "a", 0.0, sealed)])


def test_public_keys_are_a_set_in_an_order_that_says_nothing() -> None:
    made = [SecretKey(bytes([number] * 32)).public for number in range(5)]
    one, other = PublicKeys(made), PublicKeys([*reversed(made), made[2]])
    assert (one.document, one.etag) == (other.document, other.etag)
    found = msgspec.json.decode(one.document)["keys"]
    assert {each["kid"] for each in found} == {key.thumbprint for key in made} == set(one.by_name)
    assert set(found[0]) == {"kty", "crv", "alg", "use", "kid", "x"}
