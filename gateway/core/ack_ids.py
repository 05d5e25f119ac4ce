"""Ack ids: opaque, unforgeable names of leases.

An ack id is the URL-safe base64 of::

    owner    8 octets   the process that holds the lease; random, new with each start, so it fences older ones
    number   8 octets   the lease of that process
    mark     4 octets   the subscription: SHA-256 of its name, cut
    seal    12 octets   BLAKE2b of the above under the key of the data folder (RFC 7693; keyed, it needs no HMAC)

What is not sealed by our key, or is of another subscription, is *invalid*. What is sealed but of another owner was
valid once: its lease went with the process that held it.
"""

from __future__ import annotations

import hmac
import os
from binascii import a2b_base64, b2a_base64
from functools import lru_cache
from hashlib import blake2b, sha256
from pathlib import Path

from gateway.errors import ConfigurationError

_NUMBER = 8
_OWNER = 8
_MARK = 4
_SEAL = 12
LENGTH = (_OWNER + _NUMBER + _MARK + _SEAL) // 3 * 4 + 4
"""Characters of an ack id, padding included."""


class InvalidAckId(ValueError):
    """Not an ack id of this subscription."""


class ForeignAckId(ValueError):
    """An ack id of this subscription whose owner is not this process."""


class AckIds:
    """Makes and reads the ack ids of one process."""

    def __init__(self, key: bytes, owner: bytes | None = None) -> None:
        self._key = key
        self._owner = owner if owner is not None else os.urandom(_OWNER)

    def mark(self, subscription: str) -> bytes:
        """What stands for the subscription in its ack ids."""
        return _mark(subscription)

    def make(self, number: int, mark: bytes) -> str:
        """The ack id of the lease ``number``."""
        plain = self._owner + number.to_bytes(_NUMBER, "big") + mark
        return b2a_base64(plain + self._seal(plain), newline=False).translate(_URL_SAFE).decode("ascii")

    def _seal(self, plain: bytes) -> bytes:
        return blake2b(plain, digest_size=_SEAL, key=self._key).digest()

    def read(self, text: str, mark: bytes) -> int:
        """The number of the lease.

        Raises:
            InvalidAckId: forged, damaged, or of another subscription.
            ForeignAckId: of another process.
        """
        try:
            octets = a2b_base64(text.translate(_STANDARD), strict_mode=True) if len(text) == LENGTH else b""
        except ValueError:
            octets = b""
        plain, seal = octets[:-_SEAL], octets[-_SEAL:]
        if len(octets) != _OWNER + _NUMBER + _MARK + _SEAL or not hmac.compare_digest(self._seal(plain), seal):
            raise InvalidAckId(text)
        if plain[_OWNER + _NUMBER :] != mark:
            raise InvalidAckId(text)
        if plain[:_OWNER] != self._owner:
            raise ForeignAckId(text)
        return int.from_bytes(plain[_OWNER : _OWNER + _NUMBER], "big")


@lru_cache(1_000)
def _mark(subscription: str) -> bytes:
    return sha256(subscription.encode()).digest()[:_MARK]


_STANDARD = str.maketrans("-_", "+/")
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def load_key(path: Path) -> bytes:
    """The key in the file ``path``, made on first use (32 random octets, readable by its owner only).

    Raises:
        ConfigurationError: the file holds something else.
    """
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(os.urandom(32))
    except FileExistsError:
        pass  # made by an earlier start
    key = path.read_bytes()
    if len(key) != 32:
        raise ConfigurationError(f"{path}: holds {len(key)} octets, not 32; remove it and start again")
    return key
