"""What waits for the writer: one call of a writing verb, and what became of it."""

from __future__ import annotations

import hashlib
from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from gateway.ledger.records import Entry, Intent
from gateway.ledger.shards import Lease


class Call:
    """A call on its way through the writer. ``future`` belongs to the event loop; the writer sets ``result`` or
    ``error``, and the loop passes them on. A ``result`` counts once the call is ``settled``: its transaction is
    committed, or will never be."""

    __slots__ = ("error", "future", "result", "settled")

    def __init__(self, future: Future[Any]) -> None:
        self.future = future
        self.result: Any = None
        self.error: BaseException | None = None
        self.settled = False

    @property
    def rows(self) -> int:
        """How much of a group it is."""
        return 1


class Record(Call):
    """``record``: append entries."""

    __slots__ = ("entries",)

    def __init__(self, future: Future[Any], entries: Sequence[Entry]) -> None:
        super().__init__(future)
        self.entries = entries

    @property
    def rows(self) -> int:
        return len(self.entries)


class Claim(Call):
    """``claim_key``."""

    __slots__ = ("client", "fingerprint", "intents", "key", "key_id")

    def __init__(
        self, future: Future[Any], client: str, key: str, fingerprint: bytes, intents: Sequence[Intent]
    ) -> None:
        super().__init__(future)
        self.client = client
        self.key = key
        self.key_id = key_digest(client, key)
        self.fingerprint = fingerprint
        self.intents = intents

    @property
    def rows(self) -> int:
        return len(self.intents) + 1


class Settle(Call):
    """The end of a claim: ``finish_key`` (``done``), ``free_key`` (``free``) or ``unknown_key`` (``unknown``)."""

    __slots__ = ("body", "ending", "entries", "headers", "key_id", "status")

    def __init__(
        self,
        future: Future[Any],
        client: str,
        key: str,
        ending: str,
        entries: Sequence[Entry],
        status: int = 0,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        super().__init__(future)
        self.key_id = key_digest(client, key)
        self.ending = ending
        self.entries = entries
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def rows(self) -> int:
        return len(self.entries) + 1


class Task(Call):
    """Anything else: a function that gets a transaction of its own. ``proves``: where it succeeds, so would the others
    that write."""

    __slots__ = ("proves", "run")

    def __init__(self, future: Future[Any], run: Callable[[sa.Connection, Lease], Any], proves: bool = False) -> None:
        super().__init__(future)
        self.run = run
        self.proves = proves


def key_digest(client: str, key: str) -> bytes:
    """What a key is found by: 32 octets, whatever the lengths of client and key."""
    name = client.encode("utf-8", "surrogateescape")
    digest = hashlib.sha256(len(name).to_bytes(4, "big"))
    digest.update(name)
    digest.update(key.encode("utf-8", "surrogateescape"))
    return digest.digest()
