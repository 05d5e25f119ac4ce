"""The brokers of a gateway: those of the configuration file, which are read-only, and those in the ledger.

A broker in the ledger is one resource. A change is written first, and then takes effect in this process as a reload
would have it: new links are made before the old ones are left (:mod:`gateway.core.broker_change`). It notifies
other processes on the ledger, which look every :data:`REFRESH` seconds besides.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.broker_store.uses import DEPENDENT_WORK, users_of
from gateway.config import LOCAL_BROKERS, BrokerSettings
from gateway.core import Gateway
from gateway.core.broker_change import BrokerChange
from gateway.core.broker_documents import (
    BROKER_RESOURCE,
    BrokerDocument,
    check_put,
    keep_secrets,
    purpose_of_broker,
    put_back,
    take_out,
)
from gateway.core.work.resources import ResourceStore, StoredSettings, etag_of
from gateway.errors import (
    BrokerInUse,
    ConfigurationError,
    EncodeError,
    EtagMismatch,
    GatewayError,
    LimitExceeded,
    NoSuchBroker,
    ReadOnly,
)
from gateway.ledger import ResourceRecord
from gateway.observing.telemetry import log
from gateway.outbound import BrokerGuard
from gateway.runtime.tasks import Tasks
from gateway.runtime.threads import threads
from gateway.transports import client_context
from gateway.upstreams import Upstream
from gateway.validation import explain
from gateway.webhooks.settings.secrets import Seals

BROKERS_MAX: Final = 100
"""Most brokers in the ledger."""
REFRESH: Final = 5.0
"""How often it is looked what other processes changed, in seconds."""
RESTART_WITHIN: Final = 15.0
"""How long work that depends on a broker is waited for until it has started over, in seconds."""
NEWS: Final = "brokers"
"""Notice to other processes that a broker in the ledger changed."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class BrokerResource:
    """A broker as it is defined."""

    name: str
    settings: BrokerSettings
    """With its secrets; without them where they cannot be read."""
    etag: str
    read_only: bool
    """Whether the configuration defines it."""
    trouble: str = ""
    """Why it cannot be used here; empty: it can."""


class BrokerStore:
    """All brokers of a process. Belongs to the event loop."""

    def __init__(
        self, gateway: Gateway, configured: Mapping[str, BrokerSettings], seals: Seals, guard: BrokerGuard
    ) -> None:
        """``configured``: those that the configuration defines, with those of the embedded broker."""
        self.changing = asyncio.Lock()
        """Held while brokers are changed: over HTTP, by another process, or by a reload."""
        self.guard = guard
        self._gateway = gateway
        self._ledger = gateway.ledger
        self._store = ResourceStore(gateway.ledger, BROKER_RESOURCE, configured)
        self._seals = seals
        self._held: dict[str, BrokerResource] = {}
        """Those of the ledger that count here."""
        self._tasks = Tasks("brokers of the ledger")
        self._restarting: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    # ---------------------------------------------------------------------------------------- start, close

    async def load(self) -> None:
        """Read what there is, and give it to the gateway, which has not started yet. Raises LedgerUnavailable."""
        for row in await self._store.rows():
            found = self._held[row.name] = await self._read(row)
            if not found.trouble:
                self._gateway.brokers[row.name] = self.make(found)

    def begin(self) -> None:
        """See what other processes change, from now on."""
        if self._ledger.work.shared:
            self._gateway.peers.listen(NEWS, lambda news: self._news.set())
            self._tasks.start(self._refresh())

    async def close(self) -> None:
        """Look no more."""
        await self._tasks.close()
        self.guard.close()

    async def _refresh(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH):
                    await self._news.wait()
            self._news.clear()
            try:
                await self.refresh()
            except GatewayError as error:
                log("brokers.not_read", logging.WARNING, reason=str(error), code=error.code)
            except Exception as error:  # a defect here must not end the looking
                log("brokers.failed", logging.ERROR, exc_info=error)

    async def refresh(self) -> None:
        """Have what other processes changed count here. Raises LedgerUnavailable, Overloaded: some of it waits."""
        async with self.changing:
            rows = {row.name: row for row in await self._store.rows()}
            for name in sorted(self._held.keys() - rows.keys()):
                await self._apply(name, None)
            for name, row in rows.items():
                held = self._held.get(name)
                if held is None or held.etag != row.etag:
                    await self._apply(name, await self._read(row))

    async def _read(self, row: ResourceRecord) -> BrokerResource:
        settings, trouble = BrokerSettings(url="amqp://unknown.invalid"), ""
        try:
            document = msgspec.convert(row.spec, BrokerDocument)
            settings = document.settings
            if document.sealed:
                text = self._seals.open((purpose_of_broker(row.name, settings),), document.sealed)
                settings = put_back(settings, msgspec.json.decode(text, type=dict[str, str]))
            await self._check(settings, is_new=False)
        except msgspec.ValidationError as error:
            trouble = f"its settings cannot be read: {explain(error, row.spec, BrokerDocument)}"
        except GatewayError as error:
            trouble = f"its settings cannot be used here: {error}"
        if trouble:
            log("broker.not_read", logging.ERROR, broker=row.name, reason=trouble)
        return BrokerResource(row.name, settings, row.etag, read_only=False, trouble=trouble)

    # --------------------------------------------------------------------------------------------- looking

    def names(self) -> list[str]:
        """All of them, also those that cannot be used here."""
        return [*self._gateway.brokers, *(name for name, found in self._held.items() if found.trouble)]

    def get(self, name: str) -> BrokerResource:
        """One by name. Raises NoSuchBroker."""
        if (held := self._held.get(name)) is not None:
            return held
        settings = self._store.configured.get(name)
        if settings is None:
            raise NoSuchBroker(f"no broker {name!r} is configured")
        shown, _ = take_out(settings)
        return BrokerResource(name, settings, etag_of(shown), read_only=True)

    # -------------------------------------------------------------------------------------------- changing

    async def put(self, name: str, settings: BrokerSettings, if_match: str | None) -> tuple[BrokerResource, bool]:
        """Create or replace a broker; also says whether it is new. The same settings again change nothing and need no
        ``if_match``. A secret that is not given stays as it is.

        Raises:
            ReadOnly: the configuration defines it.
            EncodeError: a setting is wrong.
            AddressDenied: it is where the gateway may not connect to.
            EtagMismatch: see :mod:`gateway.core.work.resources`.
            LimitExceeded: there are too many.
            Overloaded: too many brokers that were replaced are still at work.
        """
        self._refuse_configured(name)
        if not _NAME.fullmatch(name):
            raise EncodeError("broker: a name has 1 to 128 letters, digits, '.', '_' and '-', the first no sign")
        async with self.changing:
            row = await self._store.row(name)
            before = None if row is None else await self._read(row)
            known = before.settings if before is not None and not before.trouble else None
            settings = keep_secrets(settings, known)
            stored = StoredSettings(known, before.etag) if before is not None else None
            condition = self._store.condition(name, stored, settings, if_match)
            if before is not None and condition is None:
                held = self._held.get(name)
                if held is None or held.etag != before.etag:  # stored by a call that failed, or by another process
                    await self._apply(name, before)
                return before, False
            assert condition is not None
            await self._check(settings, is_new=True)
            if before is None and (count := len(await self._store.rows())) >= BROKERS_MAX:
                raise LimitExceeded(f"there are {count} brokers in the ledger, the limit is {BROKERS_MAX}", "brokers")
            self._gateway.retired.check_room(1)  # before anything is written
            shown, secrets = take_out(settings)
            sealed = ""
            if secrets:
                sealed = self._seals.seal(purpose_of_broker(name, shown), msgspec.json.encode(secrets).decode())
            etag, created = await self._store.put(name, BrokerDocument(shown, sealed), condition)
            self._gateway.peers.tell(NEWS, {"name": name})
            found = BrokerResource(name, settings, etag, read_only=False)
            await self._apply(name, found)
            log("broker.put", broker=name, created=created)
            return found, created

    async def delete(self, name: str, if_match: str | None) -> None:
        """Delete a broker that nothing works with.

        Raises:
            ReadOnly, NoSuchBroker, EtagMismatch
            BrokerInUse: something works with it.
            Overloaded: too many brokers that were replaced are still at work.
        """
        self._refuse_configured(name)
        async with self.changing:
            row = await self._store.row(name)
            if row is None:
                if name in self._held:
                    await self._apply(name, None)
                raise NoSuchBroker(f"no broker {name!r} is configured")
            if if_match not in (None, "*", row.etag):
                raise EtagMismatch(f"the broker {name!r} is not the one that If-Match asks for")
            if users := await users_of(self._gateway, name):
                raise BrokerInUse(f"the broker {name!r} is in use by {', '.join(users)}")
            self._gateway.retired.check_room(1)
            await self._store.delete(name, row.etag)
            self._gateway.peers.tell(NEWS, {"name": name})
            await self._apply(name, None)
            log("broker.deleted", broker=name)

    # ----------------------------------------------------------------------------------------- with reloads

    async def returning(self, gone: Collection[str]) -> dict[str, BrokerResource]:
        """Return the brokers of the ledger that take the places of those that the configuration will not define any
        more. Raises LedgerUnavailable."""
        found = {}
        for name in sorted(gone):
            row = await self._ledger.get_resource(BROKER_RESOURCE, name)
            if row is not None and not (read := await self._read(row)).trouble:
                found[name] = read
        return found

    def make(self, resource: BrokerResource) -> Upstream:
        """Make the links of one. They are not started."""
        return Upstream(resource.name, resource.settings, resolve=self.guard)

    def reconfigure(self, configured: Mapping[str, BrokerSettings], returned: Mapping[str, BrokerResource]) -> None:
        """Have other brokers of the configuration count; ``returned``: as :meth:`returning` found them."""
        local = {name: settings for name, settings in self._store.configured.items() if name in LOCAL_BROKERS}
        self._store.reconfigure({**local, **configured})
        self._held = {name: held for name, held in self._held.items() if name not in self._store.configured}
        self._held.update(returned)

    # ---------------------------------------------------------------------------------------------- pieces

    async def _apply(self, name: str, found: BrokerResource | None) -> None:
        """Have a broker count as it is in the ledger; None: it is not there any more. Raises Overloaded."""
        is_usable = found is not None and not found.trouble
        made = {name: self.make(found)} if found is not None and is_usable else {}
        gone = [name] if not is_usable and name in self._gateway.brokers else []
        change = BrokerChange(self._gateway, made, gone)
        await change.connect()
        change.commit()
        if found is None:
            self._held.pop(name, None)
        else:
            self._held[name] = found
        if self._restarting is not None:
            self._restarting.cancel()
        self._restarting = self._tasks.start(self._restart())

    async def _restart(self) -> None:
        """Have all work start over that depends on brokers; what takes longer is tried again there."""
        await self._gateway.ownership.reconsider(DEPENDENT_WORK, RESTART_WITHIN)

    async def _check(self, settings: BrokerSettings, *, is_new: bool) -> None:
        """Check what can be told before connecting. Raises EncodeError; if it is new, AddressDenied."""
        check_put(settings)
        try:
            if is_new:
                self.guard.check(settings)
            await threads.run(client_context, settings.tls)
        except ConfigurationError as error:
            raise EncodeError(str(error)) from None

    def _refuse_configured(self, name: str) -> None:
        if name in LOCAL_BROKERS:
            raise ReadOnly(f"the name {name!r} belongs to the embedded broker")
        self._store.refuse_configured(name)
