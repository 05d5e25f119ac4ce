"""Secrets at rest: sealed before they go to the ledger, so that a copy of the database gives none away.

AES-256-GCM (NIST SP 800-38D) with a random nonce of 96 bits. What a sealed text was for is sealed in with it, so that
nobody who can write to the database moves a secret to where it would be sent to somebody else. A sealed text is::

    1.KEY.BASE64URL     the form; eight hexadecimal digits that name the key; nonce, text and tag

The key is in a file, not in the ledger: 32 octets in base64. A file of several lines has several keys: the first one
seals, all of them open, so that a key is replaced by writing a new line before the old one.

Keys for other purposes are derived from these (HKDF, RFC 5869), so that one file is enough.
"""

from __future__ import annotations

import shlex
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.durable import make_file
from gateway.errors import ConfigurationError
from gateway.runtime.ids import ids, random_bytes

KEY: Final = 32
"""Octets of a key."""
KEYS_MAX: Final = 16
"""Most keys of a file."""
_NONCE: Final = 12
_FORM: Final = "1"


class Seals:
    """Seals and opens."""

    def __init__(self, keys: Sequence[bytes], random: Callable[[int], bytes] = random_bytes) -> None:
        """``keys``: the first one seals. Raises ConfigurationError where there is none, or one that is no key."""
        if not 0 < len(keys) <= KEYS_MAX or any(len(key) != KEY for key in keys):
            raise ConfigurationError(f"sealing keys: 1 to {KEYS_MAX} are needed, each of {KEY} octets")
        self._keys = {_name(key): AESGCM(key) for key in keys}
        self._octets = {_name(key): key for key in keys}
        self.name = _name(keys[0])
        """Of the key that seals."""
        self._random = random

    @property
    def names(self) -> tuple[str, ...]:
        """Of all keys, in their order."""
        return tuple(self._keys)

    def derived(self, purpose: str) -> dict[str, bytes]:
        """A key for another purpose from each of the keys, in their order, under the same names."""
        return {
            name: HKDF(SHA256(), KEY, salt=None, info=purpose.encode()).derive(key)
            for name, key in self._octets.items()
        }

    def seal(self, purpose: str, text: str) -> str:
        """A text for nobody to read but us. ``purpose`` says what it is for; it is needed to open it."""
        nonce = self._random(_NONCE)
        octets = nonce + self._keys[self.name].encrypt(nonce, text.encode(), purpose.encode())
        return f"{_FORM}.{self.name}.{urlsafe_b64encode(octets).decode()}"

    def renew(self, purposes: Sequence[str], sealed: str) -> str:
        """The same secret under the key that seals, and for the first of these purposes; as it is where it is that
        already. Raises as ``open``."""
        text = self.open(purposes, sealed)
        with suppress(ConfigurationError):
            if key_of(sealed) == self.name and self.open(purposes[:1], sealed):
                return sealed
        return self.seal(purposes[0], text)

    def open(self, purposes: Sequence[str], sealed: str) -> str:
        """The text that was sealed for one of these purposes.

        Raises:
            ConfigurationError: it was sealed with a key that we do not have, for something else, or it was changed.
        """
        form, _, rest = sealed.partition(".")
        name, _, encoded = rest.partition(".")
        key = self._keys.get(name)
        if form != _FORM or key is None:
            raise ConfigurationError(
                f"a secret is sealed with the key {name[:16] or '?'}, and the file of keys has {', '.join(self._keys)}"
            )
        for purpose in purposes:
            with suppress(InvalidTag, ValueError):
                octets = urlsafe_b64decode(encoded)
                return key.decrypt(octets[:_NONCE], octets[_NONCE:], purpose.encode()).decode()
        raise ConfigurationError(f"a secret does not open with its key {name}: it was changed or moved")


def make_key_file(path: Path) -> None:
    """Write a file with one random key, readable by its owner only, and sync it.

    Raises:
        FileExistsError: the file is there. It is left as it is.
        OSError: it cannot be written.
    """
    make_file(path, b64encode(ids.random_bytes(KEY)) + b"\n")


def load_seals(file: str, otherwise: Path) -> Seals:
    """The keys in ``file``; where that is empty, in the file ``otherwise``, which is made if need be (one random key,
    readable by its owner only).

    Raises:
        ConfigurationError: the file is missing, or holds something else.
    """
    path = Path(file) if file else otherwise
    if not file:
        with suppress(FileExistsError):  # made by an earlier start
            make_key_file(path)
    try:
        lines = path.read_text(encoding="ascii").split()
        return Seals([b64decode(line, validate=True) for line in lines])
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"ledger.secrets_file: {path}: {error.strerror}. Copy the file of the other gateways on this ledger there. "
            f"If there is none, make it: gateway secrets new {shlex.quote(str(path))}"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"ledger.secrets_file: {path}: {error.strerror}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"ledger.secrets_file: {path}: {error}") from None
    except ValueError:
        raise ConfigurationError(f"ledger.secrets_file: {path}: it is not keys in base64, one a line") from None


def key_of(sealed: str) -> str:
    """The name of the key that a text is sealed with."""
    return sealed.partition(".")[2].partition(".")[0]


def _name(key: bytes) -> str:
    return sha256(b"amqp-gateway sealing key" + key).hexdigest()[:8]
