"""Ack ids: opaque, unforgeable names of leases.

An ack id is the URL-safe base64 of one of two forms, which differ in length. A lease that a process holds, on a channel
to a broker::

    owner    8 octets   the process that holds the lease; random, new with each start, so it fences older ones
    number   8 octets   the lease of that process
    mark     4 octets   the subscription: SHA-256 of its name, cut
    seal    12 octets   BLAKE2b of the above under a key (RFC 7693; keyed, it needs no HMAC)

A lease that the ledger holds, which every process with the same key and ledger can end::

    delivery 16 octets  what the ledger owes
    message  16 octets  the gateway's id of the message
    lease     4 octets  which lease of the delivery
    attempt   4 octets  the how manyth it was
    mark      4 octets
    seal     12 octets

What is not sealed by our key, or is of another subscription, is *invalid*. What is sealed but of another owner is asked
of that process; where it is gone, so is the lease.
"""

from __future__ import annotations

import hmac
from binascii import a2b_base64, b2a_base64
from functools import lru_cache
from hashlib import blake2b, sha256
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from gateway.durable import make_file
from gateway.errors import ConfigurationError
from gateway.runtime.ids import ids

_NUMBER = 8
_OWNER = 8
_MARK = 4
_SEAL = 12
LENGTH = (_OWNER + _NUMBER + _MARK + _SEAL) // 3 * 4 + 4
"""Characters of an ack id of a process's lease, padding included."""
_LEDGER = Struct(">16s16sII4s")
LEDGER_LENGTH = (_LEDGER.size + _SEAL) // 3 * 4 + 4
"""Characters of an ack id of a ledger's lease, padding included."""
COUNT_MAX = (1 << 32) - 1
"""Greatest number of a lease or attempt; beyond that it is named as this one."""


class InvalidAckId(ValueError):
    """Not an ack id of this subscription."""


class ForeignAckId(ValueError):
    """An ack id of this subscription whose owner is not this process."""

    def __init__(self, text: str, owner: bytes) -> None:
        super().__init__(text)
        self.owner = owner
        """The id of the process that holds the lease, or held it."""


class LedgerAckId(NamedTuple):
    """What the ack id of a ledger's lease says."""

    delivery: bytes
    """Id of the delivery, 16 octets."""
    message_id: bytes
    lease: int
    attempt: int


class AckIds:
    """Makes and reads the ack ids of one process."""

    def __init__(self, key: bytes, owner: bytes | None = None) -> None:
        self._key = key
        self._owner = owner if owner is not None else ids.random_bytes(_OWNER)

    def mark(self, subscription: str) -> bytes:
        """What stands for the subscription in its ack ids."""
        return _mark(subscription)

    def make(self, number: int, mark: bytes) -> str:
        """The ack id of the lease ``number``."""
        plain = self._owner + number.to_bytes(_NUMBER, "big") + mark
        return b2a_base64(plain + self._seal(plain), newline=False).translate(_URL_SAFE).decode("ascii")

    def make_ledger(self, delivery: bytes, message_id: bytes, lease: int, attempt: int, mark: bytes) -> str:
        """The ack id of a lease that the ledger holds."""
        plain = _LEDGER.pack(delivery, message_id, min(lease, COUNT_MAX), min(attempt, COUNT_MAX), mark)
        return b2a_base64(plain + self._seal(plain), newline=False).translate(_URL_SAFE).decode("ascii")

    def read_ledger(self, text: str, mark: bytes) -> LedgerAckId:
        """The ledger's lease.

        Raises:
            InvalidAckId: forged, damaged, of another subscription, or no lease of the ledger's.
        """
        octets = _octets(text, LEDGER_LENGTH)
        plain, seal = octets[:-_SEAL], octets[-_SEAL:]
        if len(plain) != _LEDGER.size or not hmac.compare_digest(self._seal(plain), seal):
            raise InvalidAckId(text)
        delivery, message_id, lease, attempt, of = _LEDGER.unpack(plain)
        if of != mark:
            raise InvalidAckId(text)
        return LedgerAckId(delivery, message_id, lease, attempt)

    def _seal(self, plain: bytes) -> bytes:
        return blake2b(plain, digest_size=_SEAL, key=self._key).digest()

    def read(self, text: str, mark: bytes) -> int:
        """The number of the lease.

        Raises:
            InvalidAckId: forged, damaged, or of another subscription.
            ForeignAckId: of another process.
        """
        octets = _octets(text, LENGTH)
        plain, seal = octets[:-_SEAL], octets[-_SEAL:]
        if len(octets) != _OWNER + _NUMBER + _MARK + _SEAL or not hmac.compare_digest(self._seal(plain), seal):
            raise InvalidAckId(text)
        if plain[_OWNER + _NUMBER :] != mark:
            raise InvalidAckId(text)
        if plain[:_OWNER] != self._owner:
            raise ForeignAckId(text, plain[:_OWNER])
        return int.from_bytes(plain[_OWNER : _OWNER + _NUMBER], "big")


def of_ledger(text: str) -> bool:
    """Whether an ack id, if it is one, names a lease that the ledger holds."""
    return len(text) == LEDGER_LENGTH


def _octets(text: str, length: int) -> bytes:
    """Decode an ack id of this length; empty where it is malformed."""
    if len(text) != length:
        return b""
    try:
        return a2b_base64(text.translate(_STANDARD), strict_mode=True)
    except ValueError:
        return b""


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
        make_file(path, ids.random_bytes(32))
    except FileExistsError:
        pass  # made by an earlier start
    key = path.read_bytes()
    if len(key) != 32:
        raise ConfigurationError(f"{path}: holds {len(key)} octets, not 32; remove it and start again")
    return key
