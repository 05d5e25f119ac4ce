"""Resources of one kind: those that the configuration file defines, and those that callers put into the ledger.

Brokers, subscriptions, endpoints, bridges and taps are all kept so. The file's are read-only, and hide one of their
name in the ledger. What a resource does is not known here: each kind has a registry of its own above this.

A write asks for a condition, as HTTP has it (RFC 9110, section 13.1):

| `if_match` | there is none | the same settings | other settings |
| --- | --- | --- | --- |
| None | created | nothing is written | refused |
| empty: there must be none | created | refused | refused |
| `*` | refused | nothing is written | replaced |
| its etag | refused | nothing is written | replaced |
| another etag | refused | refused | refused |
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Generic, TypeVar

import msgspec

from gateway.errors import EtagMismatch, ReadOnly
from gateway.ledger import Ledger, ResourceRecord
from gateway.observing.telemetry import log

ANY: Final = "*"
"""``if_match``: there is one, with any etag."""
ABSENT: Final = ""
"""``if_match``: there is none."""

S = TypeVar("S")
"""The settings."""


@dataclass(frozen=True, slots=True)
class StoredSettings(Generic[S]):
    """What the ledger has of a resource before it is put again."""

    settings: S | None
    """None: they cannot be read here."""
    etag: str


class ResourceStore(Generic[S]):
    """The resources of one kind. Belongs to the event loop.

    Args:
        ledger: keeps what callers put.
        kind: of resource, as errors, log and ledger name it.
        configured: name -> settings, of those that the configuration file defines.
    """

    def __init__(self, ledger: Ledger, kind: str, configured: Mapping[str, S]) -> None:
        self.ledger = ledger
        self.kind = kind
        self.configured = dict(configured)
        """Name -> settings. :meth:`reconfigure` changes it in place."""
        self._hidden: set[str] = set()
        """Those of the ledger that the file hides, and of which the log tells."""

    def reconfigure(self, configured: Mapping[str, S]) -> dict[str, S]:
        """Have other resources of the configuration file count. Returns those of before."""
        before = dict(self.configured)
        self.configured.clear()
        self.configured.update(configured)
        self._hidden &= self.configured.keys()
        return before

    def refuse_configured(self, name: str) -> None:
        """Raise ReadOnly where the configuration file defines a resource of that name."""
        if name in self.configured:
            raise ReadOnly(f"the {self.kind} {name!r} is defined by the configuration file")

    # ---------------------------------------------------------------------------------------- in the ledger

    async def rows(self) -> list[ResourceRecord]:
        """All of the ledger that count: not those that the configuration file hides, of which the log tells once.
        Raises LedgerUnavailable."""
        found = []
        async for row in self.ledger.all_resources(self.kind):
            if row.name not in self.configured:
                found.append(row)
            elif row.name not in self._hidden:
                self._hidden.add(row.name)
                reason = "the configuration file defines it"
                log(f"{self.kind}.hidden", logging.WARNING, None, **{self.kind: row.name}, reason=reason)
        return found

    async def row(self, name: str) -> ResourceRecord | None:
        """One of the ledger; None: there is none, or the configuration file hides it. Raises LedgerUnavailable."""
        return None if name in self.configured else await self.ledger.get_resource(self.kind, name)

    def condition(self, name: str, before: StoredSettings[S] | None, settings: S, if_match: str | None) -> str | None:
        """Return the condition under which :meth:`put` writes; None: these settings are there, and nothing is to be
        written.

        Args:
            before: what the ledger has; None: nothing.
            if_match: see the table of this module.

        Raises:
            EtagMismatch: the caller does not know what is there.
        """
        fits = (None, ABSENT) if before is None else (None, ANY, before.etag)
        if if_match not in fits:
            raise EtagMismatch(f"the {self.kind} {name!r} is not the one that If-Match asks for")
        if before is None:
            return ABSENT
        if before.settings == settings:
            return None
        if if_match is None:
            raise EtagMismatch(f"the {self.kind} {name!r} exists with other settings")
        return if_match

    async def put(self, name: str, document: Any, if_match: str) -> tuple[str, bool]:
        """Write what stands for a resource: a struct, or settings. Returns its etag, and whether it is new.

        Raises:
            EtagMismatch: somebody else was quicker.
            LedgerUnavailable: nothing was written.
        """
        spec: dict[str, Any] = msgspec.to_builtins(document)
        return await self.ledger.put_resource(self.kind, name, spec, if_match)

    async def delete(self, name: str, if_match: str | None) -> bool:
        """Delete one; whether there was one. Raises EtagMismatch, LedgerUnavailable."""
        return await self.ledger.delete_resource(self.kind, name, if_match)


def etag_of(settings: Any) -> str:
    """Return the etag of settings of the configuration file."""
    return sha256(msgspec.json.encode(settings)).hexdigest()[:16]
