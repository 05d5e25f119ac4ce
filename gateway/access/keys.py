"""API keys: what they look like, and those that the ledger has.

A key is ``amqpgw_ENV_RANDOM_CHECK``: a prefix by which scanners for leaked secrets find it, the environment that it is
for, 32 random digits of base 62 (190 bits), and CRC-32 over all of that in six digits. So a typing error, or a string
that only looks like a key, is rejected without a lookup. The ledger has the SHA-256 of the whole: a random
key needs no slow hash.

Every process keeps the live keys of the ledger in memory, and asks each :data:`REFRESH` seconds whether they have
changed: a key that was made or revoked elsewhere counts here from then on.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import zlib
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from gateway.access.scopes import SCOPE_MAX, SCOPES_MAX, Principal, doubt, parse_scope, principal_of
from gateway.config import JWT_CLIENT
from gateway.errors import ConfigurationError, EncodeError, GatewayError
from gateway.ledger.access.api_keys import NAMED_MAX, ApiKey
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock, wall_time
from gateway.runtime.ids import ids

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gateway.ledger import Ledger

PREFIX: Final = "amqpgw"
RANDOM: Final = 32
"""Random digits of a key."""
CHECK: Final = 6
"""Digits of its checksum."""
ENVIRONMENT_MAX: Final = 16
CLIENT_MAX: Final = 128
"""Longest name of a client, in characters."""
ID: Final = 8
"""Octets of a key's id."""
KEY_MAX: Final = 512
"""Longest credential that is looked at, in octets."""
REFRESH: Final = 5.0
"""How often the ledger is asked for changes, in seconds."""
USED_EVERY: Final = 60.0
"""How often the use of keys is reported, in seconds."""
OVERLAP: Final = 86_400
"""How long a key that was replaced goes on, in seconds, unless the request says otherwise."""
SEAL_ENTRY: Final = {"action": "keys.seal", "actor": "gateway", "object": "keys", "result": "done"}
"""What the audit log says of keys that got their MAC at the start."""
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def new_key(environment: str = "live") -> str:
    """A key that nobody has.

    Raises:
        EncodeError: the environment is not 1 to 16 small letters and digits.
    """
    if not (0 < len(environment) <= ENVIRONMENT_MAX and environment.isascii() and environment.isalnum()) or (
        environment != environment.lower()
    ):
        raise EncodeError(f"environment: {environment[:80]!r} is not 1 to {ENVIRONMENT_MAX} small letters and digits")
    text = f"{PREFIX}_{environment}_{ids.letters(RANDOM, _DIGITS)}"
    return f"{text}_{checksum(text)}"


def checksum(text: str) -> str:
    """CRC-32 in six digits of base 62."""
    value, digits = zlib.crc32(text.encode()), ""
    for _ in range(CHECK):
        value, digit = divmod(value, 62)
        digits = _DIGITS[digit] + digits
    return digits


def is_key(text: str) -> bool:
    """Whether it is shaped like a key of the gateway, checksum included."""
    head, _, check = text.rpartition("_")
    prefix, _, rest = head.partition("_")
    environment, _, random = rest.partition("_")
    return (
        prefix == PREFIX
        and bool(environment)
        and len(random) == RANDOM
        and hmac.compare_digest(check.encode("utf-8", "replace"), checksum(head).encode())
    )


def digest_of(key: str) -> bytes:
    """What is kept of a key."""
    return sha256(key.encode()).digest()


def check_scopes(scopes: Sequence[str], brokers: Collection[str]) -> tuple[str, ...]:
    """The scopes, if each can match something. Raises EncodeError."""
    if not 0 < len(scopes) <= SCOPES_MAX or any(len(scope) > SCOPE_MAX for scope in scopes):
        raise EncodeError(f"scopes: 1 to {SCOPES_MAX} are needed, each of at most {SCOPE_MAX} characters")
    for index, scope in enumerate(scopes):
        try:
            why = doubt(scope, brokers)
        except ConfigurationError as error:
            raise EncodeError(f"scopes.{index}: {str(error).removeprefix('scopes: ')}") from None
        if why:
            raise EncodeError(f"scopes.{index}: {scope!r}: {why}")
    return tuple(scopes)


class StoredKeys:
    """The keys of the ledger."""

    def __init__(
        self,
        ledger: Ledger,
        configured: frozenset[str] = frozenset(),
        clock: Callable[[], float] = wall_time,
        *,
        seal_old: bool = True,
    ) -> None:
        """
        Args:
            configured: clients whose keys the configuration file defines.
            seal_old: whether keys without a MAC get one at the start, and count from then on.
        """
        self._rows = ledger.api_keys
        self.configured = configured
        """Clients whose keys the configuration file defines."""
        self._clock = clock
        self._seal_old = seal_old
        self._live: dict[bytes, tuple[ApiKey, Principal]] = {}
        self._version: tuple[int, int, int] | None = None
        self._reading = asyncio.Lock()
        self._used: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------------------------------------- asking

    def find(self, credential: bytes) -> Principal | None:
        """Whose key that is; None: nobody's, or not any more."""
        if len(credential) > KEY_MAX or not is_key(credential.decode("latin-1")):
            return None
        found = self._live.get(sha256(credential).digest())
        now = self._now()
        if found is None or not found[0].live(now) or found[0].client in self.configured:
            return None
        self._used[found[0].id] = now
        return found[1]

    def _now(self) -> int:
        return int(self._clock() * 1_000_000)

    # ----------------------------------------------------------------------------------------------- changing

    async def create(
        self,
        client: str,
        scopes: Sequence[str],
        *,
        brokers: Collection[str],
        by: str,
        environment: str = "live",
        seconds: int = 0,
    ) -> tuple[ApiKey, str]:
        """Make a key for a client. Returns it and the key itself, which nobody is shown again.

        Args:
            brokers: Those that scopes may name.
            seconds: How long it lives; 0: for ever.

        Raises:
            EncodeError: A value does not fit, or a scope can match nothing.
            StateError: the client has two live keys already.
        """
        if not 0 < len(client) <= CLIENT_MAX or not client.isprintable():
            raise EncodeError(f"client: the name is not 1 to {CLIENT_MAX} printable characters")
        if client.startswith(JWT_CLIENT):
            raise EncodeError(f"client: {JWT_CLIENT} begins the names of clients with tokens")
        if client in self.configured:
            raise EncodeError(f"client: the keys of {client!r} are in the configuration file")
        now = self._now()
        key, secret = self._new(client, check_scopes(scopes, brokers), environment, seconds, by, now)
        await self._rows.add(key, now, _entry("keys.create", by, key.id, client=client, scopes=list(scopes)))
        await self.refresh(changed=True)
        return key, secret

    async def rotate(
        self, key_id: str, *, by: str, environment: str = "live", seconds: int = 0, overlap: int = OVERLAP
    ) -> tuple[ApiKey, str]:
        """A key in place of another, which goes on for ``overlap`` seconds. Raises as ``create``; NoSuchResource."""
        now = self._now()
        key, secret = self._new("", (), environment, seconds, by, now)
        until = now + overlap * 1_000_000
        found = await self._rows.replace(key_id, key, until, now, _entry("keys.rotate", by, key_id))
        await self.refresh(changed=True)
        return found, secret

    async def revoke(self, key_id: str, *, by: str) -> ApiKey:
        """It opens nothing any more: here at once, elsewhere within :data:`REFRESH` seconds. Raises NoSuchResource."""
        found = await self._rows.revoke(key_id, self._now(), _entry("keys.revoke", by, key_id))
        await self.refresh(changed=True)
        return found

    def _new(
        self, client: str, scopes: tuple[str, ...], environment: str, seconds: int, by: str, now: int
    ) -> tuple[ApiKey, str]:
        secret = new_key(environment)
        hint = secret[: len(secret) - RANDOM - CHECK - 1 + 4]
        expires = now + seconds * 1_000_000 if seconds else 0
        return ApiKey(ids.hex(ID), client, digest_of(secret), hint, scopes, by, now, expires), secret

    async def get(self, key_id: str) -> ApiKey:
        """One by its id. Raises NoSuchResource."""
        return await self._rows.get(key_id)

    async def page(self, cursor: str | None, limit: int) -> tuple[list[ApiKey], str | None]:
        """Some, by id, and the cursor behind them."""
        return await self._rows.page(cursor, limit)

    # ------------------------------------------------------------------------------------------------ keeping

    async def start(self) -> None:
        """Read them, and go on reading what changes. Raises LedgerUnavailable."""
        if self._seal_old and (sealed := await self._rows.seal(self._now(), SEAL_ENTRY)):
            log("access.keys_sealed", logging.WARNING, keys=[key.id for key in sealed[:NAMED_MAX]], count=len(sealed))
        await self.refresh()
        self._task = asyncio.get_running_loop().create_task(self._keep(), name="access-keys")

    async def close(self) -> None:
        """Tell which keys were used, and end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with suppress(GatewayError):  # nice to know, and nothing that is owed
            await self._tell()

    async def refresh(self, *, changed: bool = False) -> None:
        """Read the live keys, if any has changed; ``changed``: it is known that one has. Raises LedgerUnavailable."""
        async with self._reading:  # so that what was read before a change does not replace what was read after it
            version = await self._rows.version()
            if version == self._version and not changed:
                return
            keys = await self._rows.live(self._now())
            self._live = {key.digest: (key, _principal(key)) for key in keys if self._counts(key)}
            self._version = version

    def refusal_of(self, key: ApiKey) -> str:
        """Return why a live key opens nothing; empty if it does."""
        if key.client in self.configured:
            return f"the keys of {key.client!r} are in the configuration file"
        return self._rows.macs.refusal_of(key)

    def _counts(self, key: ApiKey) -> bool:
        """Whether a row is as a gateway wrote it."""
        if why := self._rows.macs.refusal_of(key):
            log("access.key_refused", logging.ERROR, key=key.id, client=key.client, reason=why)
        return not why

    async def _keep(self) -> None:
        told = self._clock()
        while True:
            await clock.sleep(REFRESH)
            try:
                await self.refresh()
                if self._clock() - told >= USED_EVERY:
                    told = self._clock()
                    await self._tell()
            except GatewayError as error:
                log("access.keys_not_read", logging.WARNING, detail=str(error))
            except Exception as error:  # a defect of ours; those that are known go on
                log("access.keys_failed", logging.ERROR, error)

    async def _tell(self) -> None:
        used, self._used = self._used, {}
        await self._rows.used(list(used.items()))


def _principal(key: ApiKey) -> Principal:
    """Whose key that is. A scope that another release took and this one does not allows nothing."""
    scopes = []
    for scope in key.scopes:
        with suppress(ConfigurationError):
            parse_scope(scope)
            scopes.append(scope)
    return principal_of(key.client, scopes, f"key:{key.id}")


def _entry(action: str, by: str, key_id: str, **more: Any) -> Mapping[str, Any]:
    return {"action": action, "actor": by, "object": f"key:{key_id}", "result": "done", **more}
