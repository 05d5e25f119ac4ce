"""The signing keys of an endpoint: made here, kept sealed, and changed without a gap.

A key signs from when it is made until it is taken away: at a time that was set when the next one came, or when somebody
says so. In between both sign, the newest first, so that receivers have that long to learn the new one. An old key whose
time is over is no key any more, even before it is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final, Literal

import msgspec

from gateway.errors import EncodeError, StateError
from gateway.webhooks.attempts.signing import (
    KEYS_MAX,
    PublicKey,
    Random,
    SecretKey,
    SharedSecret,
    public_key_set,
)
from gateway.webhooks.settings.secrets import Seals

Scheme = Literal["v1", "v1a"]
ID_OCTETS: Final = 8
"""Octets of the name of a ``v1`` key; one of ``v1a`` has its thumbprint."""
_CLASSES: Final[dict[str, type[SharedSecret] | type[SecretKey]]] = {"v1": SharedSecret, "v1a": SecretKey}


class StoredKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key as the ledger keeps it."""

    scheme: Scheme
    id: str
    """Its name. Says nothing of the key."""
    at: float
    """When it was made, in seconds since 1970."""
    sealed: str
    until: float | None = None
    """When it stops signing, in seconds since 1970; None: when somebody says so."""
    old: bool = False
    """There is a newer one of this scheme."""


@dataclass(frozen=True, slots=True)
class HeldKey:
    """A key that can sign. Two of the same name are the same."""

    scheme: Scheme
    id: str
    at: float
    until: float | None
    old: bool
    key: SharedSecret | SecretKey = field(compare=False, repr=False)

    @property
    def public(self) -> PublicKey | None:
        """The half for everybody, where the scheme has one."""
        return self.key.public if isinstance(self.key, SecretKey) else None

    @property
    def told(self) -> str:
        """What a receiver needs: the secret that both share, or the public key."""
        return str(self.key.public if isinstance(self.key, SecretKey) else self.key)

    def signs(self, now: float) -> bool:
        """Whether its time is not over."""
        return self.until is None or now < self.until


class PublicKeys:
    """The public keys of many endpoints, as they are shown to everybody: each once, in an order that says nothing."""

    def __init__(self, keys: Iterable[PublicKey]) -> None:
        ordered = sorted({key.octets: key for key in keys}.items())
        self.by_name = {key.thumbprint: key for _, key in ordered}
        self.document = msgspec.json.encode(public_key_set([key for _, key in ordered]))
        """A JSON Web Key Set."""
        self.etag = sha256(self.document).hexdigest()[:32]


def make(scheme: Scheme, random: Random, now: float) -> HeldKey:
    """A new key."""
    key = _CLASSES[scheme].generate(random)
    name = key.public.thumbprint if isinstance(key, SecretKey) else random(ID_OCTETS).hex()
    return HeldKey(scheme, name, now, None, False, key)


def rotate(
    keys: Sequence[HeldKey], schemes: Sequence[Scheme], random: Random, now: float, overlap: float | None
) -> tuple[HeldKey, ...]:
    """A new key for each scheme, before the ones there are. Those sign for ``overlap`` more seconds (None:
    until :func:`finish`); those of them that were to stop sooner still do.

    Raises:
        StateError: more keys would sign at once than a receiver looks at.
    """
    until = None if overlap is None else now + overlap
    kept = [replace(key, old=True, until=_sooner(key.until, until)) if key.scheme in schemes else key for key in keys]
    found = (*(make(scheme, random, now) for scheme in schemes), *(key for key in kept if key.signs(now)))
    if len(found) > KEYS_MAX:
        raise StateError(f"{len(found) - len(schemes)} keys sign already and at most {KEYS_MAX} may: finish first")
    return found


def fitting(keys: Sequence[HeldKey], schemes: Sequence[Scheme], random: Random, now: float) -> tuple[HeldKey, ...]:
    """The keys of these schemes that still sign, and a new one for each scheme that has none."""
    kept = tuple(key for key in keys if key.scheme in schemes and key.signs(now))
    have = {key.scheme for key in kept if not key.old}
    return (*(make(scheme, random, now) for scheme in schemes if scheme not in have), *kept)


def finish(keys: Sequence[HeldKey]) -> tuple[HeldKey, ...]:
    """Without the old ones."""
    return tuple(key for key in keys if not key.old)


def seal(seals: Seals, endpoint: str, keys: Sequence[HeldKey], known: Sequence[StoredKey]) -> list[StoredKey]:
    """For the ledger. What is sealed there already (``known``) stays as it is, so that nothing changes that did not."""
    sealed = {key.id: key.sealed for key in known}
    return [
        StoredKey(
            key.scheme,
            key.id,
            key.at,
            sealed.get(key.id) or seals.seal(purpose_of(endpoint, key.scheme, key.id), str(key.key)),
            key.until,
            key.old,
        )
        for key in keys
    ]


def unseal(seals: Seals, endpoint: str, stored: Sequence[StoredKey]) -> tuple[HeldKey, ...]:
    """From the ledger.

    Raises:
        ConfigurationError: a key cannot be opened.
        EncodeError: what was sealed is no key.
    """
    found = []
    for key in stored:
        text = seals.open((purpose_of(endpoint, key.scheme, key.id),), key.sealed)
        try:
            found.append(HeldKey(key.scheme, key.id, key.at, key.until, key.old, _CLASSES[key.scheme].parse(text)))
        except EncodeError:
            raise EncodeError(f"the signing key {key.id} is damaged") from None
    return tuple(found)


def purpose_of(endpoint: str, scheme: str, name: str) -> str:
    """What a signing key is sealed for."""
    return f"endpoint {endpoint} signing {scheme} {name}"


def _sooner(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
