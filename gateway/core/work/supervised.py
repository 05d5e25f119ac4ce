"""Things that run by themselves until somebody stops them: bridges and taps.

Those of the configuration file are read-only, the others are resources in the ledger. What is wished for of one
(:class:`WantedState`: paused, drained, stopped) is kept in the ledger as well, for both kinds, and survives a restart.

Each is work (:mod:`gateway.core.work.ownership`): where several processes share the ledger, one of them owns it, also
while it is paused. That one runs it, and is the only one that changes it: a process that changes one without an owner
takes it first, and only the owner changes one that is owned, as the API sees to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from gateway.core.gateway import Gateway
from gateway.core.work.resources import ResourceStore, StoredSettings, etag_of
from gateway.errors import (
    CommitUnknown,
    ConfigurationError,
    EncodeError,
    GatewayError,
    LedgerUnavailable,
    NoSuchResource,
    PeerUnavailable,
)
from gateway.ledger import ResourceRecord
from gateway.observing.telemetry import log
from gateway.runtime.backoff import Backoff
from gateway.runtime.locks import Locks
from gateway.runtime.tasks import Tasks
from gateway.validation import explain

HALT_WITHIN: Final = 5.0
"""How long what is under way may take when something is paused or changed, in seconds; the rest goes back."""
PAUSE_MIN: Final = 0.5
PAUSE_MAX: Final = 30.0
"""Pause before a wish is written again where the ledger was away, in seconds; doubled each time."""


class WantedState(StrEnum):
    """What is wanted of it."""

    RUN = "run"
    PAUSE = "pause"
    DRAIN = "drain"
    STOP = "stop"


class HasPaused(Protocol):
    """Settings say how it begins."""

    @property
    def paused(self) -> bool: ...


S = TypeVar("S", bound=HasPaused)
"""The settings."""
X = TypeVar("X")
"""Everything there is to say of one."""


@dataclass(frozen=True, slots=True)
class SupervisedResource(Generic[S]):
    """One as it is defined: by the configuration file, or in the ledger."""

    name: str
    settings: S
    etag: str
    read_only: bool = False
    """The configuration file defines it."""
    asked: WantedState | None = None
    """What somebody asked for; None: nobody did, so that the settings count."""

    @property
    def wish(self) -> WantedState:
        """What is wanted of it."""
        if self.asked is not None:
            return self.asked
        return WantedState.PAUSE if self.settings.paused else WantedState.RUN


S_co = TypeVar("S_co", covariant=True)
X_co = TypeVar("X_co", covariant=True)


class Thing(Protocol[S_co, X_co]):
    """One that is this process's. All methods belong to the event loop."""

    @property
    def name(self) -> str: ...
    @property
    def settings(self) -> S_co: ...
    @property
    def etag(self) -> str: ...
    @property
    def read_only(self) -> bool: ...

    wish: WantedState

    @property
    def finished(self) -> bool:
        """It has come to the end that was wished for."""

    @property
    def stale(self) -> bool:
        """A broker that it works with is another one now."""

    def start(self) -> None:
        """Run, if that is what is wished for. What stands in the way is no error here."""

    async def halt(self, within: float = HALT_WITHIN) -> None:
        """Take nothing more, bring what is under way to an end within this many seconds, and give the rest back."""

    def drop(self) -> Coroutine[Any, Any, None]:
        """Another process has it: do nothing more at once. Await what is returned to give back what was taken."""
        ...

    async def status(self) -> X_co:
        """Everything there is to say."""
        ...

    async def abandon_source(self, heir: Any = None) -> None:
        """It goes, or ``heir`` takes its place: undo what was declared for it alone."""


T = TypeVar("T", bound=Thing[Any, Any])


class Supervisor(Generic[S, T, X]):
    """All of one kind."""

    kind: str
    """The kind of work that each is, and of resource."""
    settings_type: type[S]
    no_such: type[NoSuchResource]

    def __init__(self, gateway: Gateway, configured: Mapping[str, S]) -> None:
        self._gateway = gateway
        self._store = ResourceStore(gateway.ledger, self.kind, configured)
        self._here: dict[str, T] = {}
        """Those that are this process's."""
        self._locks = Locks()
        self._tasks = Tasks(self.kind)
        self._gone: set[str] = set()
        """Those that were taken out of the configuration file, and may still be here."""
        self.outdated: Collection[str] = ()
        """See :class:`gateway.core.work.ownership.Attentive`."""
        self._closing = False

    # ------------------------------------------------------------------------------------- what they are

    def check(self, name: str, settings: S, find: Callable[[str], object] | None = None) -> None:
        """Whether one can be made of these settings. ``find``: a broker by name; None: as the gateway has them.

        Raises:
            EncodeError: a setting is wrong; it names the setting.
            NoSuchBroker: a broker is not configured.
        """
        raise NotImplementedError

    def build(self, resource: SupervisedResource[S]) -> T:
        """Make one; it does not run yet. Raises as :meth:`check`."""
        raise NotImplementedError

    def at_rest(self, resource: SupervisedResource[S]) -> X:
        """What there is to say of one that this process does not run."""
        raise NotImplementedError

    def has_moved(self, before: S, after: S) -> bool:
        """Whether messages are taken from elsewhere, so that what was declared for it may not be needed any more."""
        raise NotImplementedError

    def forget_counts(self, name: str) -> None:
        """It is deleted: its numbers go."""
        raise NotImplementedError

    async def start_over(self, name: str) -> None:
        """One that has ended is about to run again: what was kept of its progress goes."""

    # ---------------------------------------------------------------------------------------- start, close

    async def start(self) -> None:
        """Start the work of this process, now and when it gets more.

        Raises:
            ConfigurationError: one of the configuration file is wrong.
            LedgerUnavailable: it cannot be read which there are.
        """
        self.check_all(self._store.configured)
        self._gateway.ownership.register(self.kind, _Work(self))
        await self._gateway.ownership.review(self.kind)

    def check_all(self, configured: Mapping[str, S], find: Callable[[str], object] | None = None) -> None:
        """Whether these settings can take the place of those of the configuration file. Raises ConfigurationError."""
        for name, settings in configured.items():
            try:
                self.check(name, settings, find)
            except GatewayError as error:
                raise ConfigurationError(f"{self.kind}s.{name}.{error}") from None

    def reconfigure(self, configured: Mapping[str, S]) -> None:
        """Other settings in the configuration file, which were checked. They count when
        :meth:`gateway.core.work.ownership.Ownership.reconsider` has had them read; what was paused stays so."""
        before = self._store.reconfigure(configured)
        self._gone = (self._gone | (before.keys() & self._here.keys())) - configured.keys()

    def hold(self) -> None:
        """The gateway is about to close: nothing is started any more."""
        self._closing = True

    async def close(self, within: float) -> None:
        """Halt all: what is under way has ``within`` seconds, the rest goes back to where it came from."""
        self._closing = True
        await self._tasks.close()
        if self._here:
            await asyncio.gather(*(thing.halt(within) for thing in self._here.values()))

    def _make(self, resource: SupervisedResource[S]) -> T:
        thing = self.build(resource)
        self._here[resource.name] = thing
        return thing

    # ------------------------------------------------------------------------------------ as it is owned

    async def names(self) -> set[str]:
        """All of them, in every process."""
        rows = await self._store.rows()
        self.outdated = [row.name for row in rows if self._differs(row)]
        return {*self._store.configured, *(row.name for row in rows)}

    def _differs(self, row: ResourceRecord) -> bool:
        """Whether it runs here by other settings."""
        thing = self._here.get(row.name)
        return thing is not None and not thing.read_only and thing.etag != row.etag

    async def all_settings(self) -> dict[str, S]:
        """The settings of all of them, in every process, by name; malformed ones are left out."""
        found = {}
        for row in await self._store.rows():
            with suppress(msgspec.ValidationError):
                found[row.name] = msgspec.convert(row.spec, self.settings_type)
        return {**found, **self._store.configured}

    async def take(self, name: str) -> None:
        """It is this process's from now on: run it, if that is what is wished for. Raises LedgerUnavailable."""
        try:
            found = await self._read(name)
            if found is not None and name not in self._here:  # else who changed it was quicker
                self._start(self._make(found))
        except LedgerUnavailable:
            raise
        except GatewayError as error:  # it is there to be put right, or deleted
            self._log("not_started", name, logging.ERROR, reason=str(error))

    async def give(self, name: str, within: float) -> None:
        """It is to be another's: bring what is under way to an end."""
        async with self._locks.of(name):
            thing = self._here.get(name)
            if thing is not None:
                await thing.halt(within)
                self._forget(thing)
                if name in self._gone:
                    self.forget_counts(name)
            self._gone.discard(name)

    def lose(self, name: str) -> None:
        """It is another's: drop everything."""
        thing = self._here.get(name)
        if thing is not None:
            self._forget(thing)
            self._spawn(thing.drop())

    async def refresh(self, name: str) -> None:
        """Another process changed it while it was nobody's."""
        async with self._locks.of(name):
            before, found = self._here.get(name), await self._read(name)
            changed = before is None or found is None or before.etag != found.etag or before.stale
            if changed or (before is not None and found is not None and found.asked not in (None, before.wish)):
                if before is not None:
                    await before.halt(HALT_WITHIN)
                if self._here.get(name) is not before:
                    return  # lost meanwhile, and perhaps taken again
                if before is not None:
                    self._forget(before)
                if found is not None:
                    thing = self._make(found)
                    both_of_file = before is not None and before.read_only and thing.read_only
                    if before is not None and both_of_file and self.has_moved(before.settings, thing.settings):
                        await before.abandon_source(thing)
                    self._start(thing)

    def _forget(self, thing: T) -> None:
        """It runs elsewhere, or not at all. Its counts go on if it comes back."""
        if self._here.get(thing.name) is thing:
            del self._here[thing.name]

    async def _read(self, name: str) -> SupervisedResource[S] | None:
        """One as it is defined; None: there is none of that name.

        Raises:
            EncodeError: the settings in the ledger are malformed.
            LedgerUnavailable: it cannot be read.
        """
        ledger = self._gateway.ledger
        settings = self._store.configured.get(name)
        etag = etag_of(settings) if settings is not None else ""
        if settings is None:
            row = await self._store.row(name)
            if row is None:
                return None
            try:
                settings, etag = msgspec.convert(row.spec, self.settings_type), row.etag
            except msgspec.ValidationError as error:
                raise EncodeError(str(explain(error, row.spec, self.settings_type))) from None
        kept = await ledger.get_resource(self._wishes, name)
        asked = None if kept is None else WantedState(kept.spec["wish"])
        return SupervisedResource(name, settings, etag, name in self._store.configured, asked)

    # --------------------------------------------------------------------------------------------- looking

    async def get(self, name: str) -> X:
        """One by name; of one that is not this process's only what the ledger knows.

        Raises:
            NoSuchResource: there is none of that name.
        """
        thing = self._here.get(name)
        if thing is not None:
            found: X = await thing.status()
            return found
        try:
            read = await self._read(name)
        except EncodeError:
            read = None
        if read is None:
            raise self._no_such(name)
        return self.at_rest(read)

    def is_here(self, name: str) -> bool:
        """Whether it is this process's."""
        return name in self._here

    async def page(self, cursor: str | None, limit: int) -> tuple[list[X], str | None]:
        """Some by name, and the cursor behind them: the last name."""
        known = await self.names() if self._gateway.peers.shared else self._here
        names = sorted(name for name in known if cursor is None or name > cursor)
        page = names[:limit]
        found = await asyncio.gather(*(self.get(name) for name in page), return_exceptions=True)
        statuses: list[X] = []
        for status in found:
            if not isinstance(status, BaseException):
                statuses.append(status)
            elif not isinstance(status, self.no_such):  # deleted meanwhile, or its settings are none
                raise status
        return statuses, page[-1] if len(names) > limit else None

    async def _find(self, name: str) -> T:
        """One of this process; one that nobody owns comes to be one.

        Raises:
            NoSuchResource: there is none.
            PeerUnavailable: another process has just taken it.
        """
        thing = self._here.get(name)
        if thing is None and self._gateway.peers.shared and name in await self.names():
            if not await self._gateway.ownership.acquire(self.kind, name):
                takes_work = self._gateway.ownership.takes_work
                why = "has just come to another process" if takes_work else "is run by no worker now"
                raise PeerUnavailable(f"the {self.kind} {name!r} {why}")
            thing = self._here.get(name)
        if thing is None:
            raise self._no_such(name)
        return thing

    # -------------------------------------------------------------------------------------------- changing

    async def put(self, name: str, settings: S, if_match: str | None) -> tuple[X, bool]:
        """Create or replace one; also says whether it is new. One that runs brings what is under way to an end and
        starts over with the new settings. The same settings again change nothing and need no ``if_match``.

        Raises:
            ReadOnly: the configuration file defines it.
            NoSuchBroker: one of its brokers is not configured.
            EncodeError: a setting is wrong.
            EtagMismatch: see :mod:`gateway.core.work.resources`.
            PeerUnavailable: another process has just taken it.
        """
        self._store.refuse_configured(name)
        with suppress(self.no_such):
            await self._find(name)
        async with self._locks.of(name):
            before = self._here.get(name)
            condition = self._store.condition(name, await self._stored(name), settings, if_match)
            if condition is None:
                return await self.get(name), False
            wish = None
            if before is not None and before.settings.paused == settings.paused:
                wish = before.wish
            self.check(name, settings)  # before anything is written
            if before is None:
                await self._store.ledger.delete_resource(self._wishes, name, None)  # of another that had this name
            try:
                etag, created = await self._store.put(name, settings, condition)
            except CommitUnknown:  # where they are stored, the next call finds nothing to change
                self._gateway.ownership.reread(self.kind, name)
                raise
            self._log("put", name, created=created)
            if created:  # the others take it over where this process dies soon
                self._gateway.ownership.changed(self.kind, name)
            if before is not None:
                await before.halt(HALT_WITHIN)
            if before is not None and self._here.get(name) is before:  # else it was lost meanwhile
                thing = self._make(SupervisedResource(name, settings, etag, asked=wish))
                if self.has_moved(before.settings, settings):
                    await before.abandon_source(thing)
                self._start(thing)
                if wish is None:
                    self._spawn(self._keep_wish_at_last(thing))
                return await thing.status(), created
        if await self._gateway.ownership.acquire(self.kind, name):
            await self.refresh(name)
        else:  # another process runs it, and may have read the settings before
            self._gateway.ownership.changed(self.kind, name)
        return await self.get(name), created

    async def _stored(self, name: str) -> StoredSettings[S] | None:
        row = await self._store.row(name)
        if row is None:
            return None
        try:
            return StoredSettings(msgspec.convert(row.spec, self.settings_type), row.etag)
        except msgspec.ValidationError:  # it is put right
            return StoredSettings(None, row.etag)

    async def delete(self, name: str, if_match: str | None) -> None:
        """Delete one. Its own queue is unbound, and deleted if it is empty.

        Raises:
            ReadOnly, NoSuchResource, EtagMismatch
        """
        self._store.refuse_configured(name)
        with suppress(self.no_such):
            await self._find(name)
        async with self._locks.of(name):
            if name not in self._here and await self._store.row(name) is None:
                raise self._no_such(name)
            await self._store.delete(name, if_match)
            thing = self._here.pop(name, None)
            if thing is not None:  # else its settings were wrong at the start
                await thing.halt(HALT_WITHIN)
                await thing.abandon_source()
                self.forget_counts(name)
            try:
                await self._store.ledger.delete_resource(self._wishes, name, None)
            except LedgerUnavailable as error:  # it goes when there is one of this name again
                self._log("wish_left", name, logging.WARNING, reason=str(error))
            self._log("deleted", name)
        self._gateway.ownership.changed(self.kind, name)

    async def pause(self, name: str) -> X:
        """Take nothing more until it is resumed. Raises NoSuchResource."""
        return await self._wish(name, WantedState.PAUSE)

    async def resume(self, name: str) -> X:
        """Run. Raises NoSuchResource."""
        return await self._wish(name, WantedState.RUN)

    async def _wish(self, name: str, wish: WantedState) -> X:
        async with self._locks.of(name):
            thing = await self._find(name)
            if thing.finished:  # it shows so already, and what is asked for comes after it
                await self._end(thing)
            if thing.wish is not wish:
                if wish is WantedState.RUN and thing.wish is WantedState.STOP:
                    await self.start_over(name)
                if self._here.get(name) is not thing:  # who has it now may have read the wish before it is written
                    raise PeerUnavailable(f"the {self.kind} {name!r} has just come to another process")
                before, thing.wish = thing.wish, wish
                try:
                    await self._keep_wish(thing)
                except LedgerUnavailable as error:
                    thing.wish = before
                    if isinstance(error, CommitUnknown):  # what may be written must not count after a restart
                        self._spawn(self._keep_wish_at_last(thing))
                    raise
                if self._here.get(name) is not thing:  # lost meanwhile: who has it now may have read the wish before
                    self._gateway.ownership.reread(self.kind, name)
                if wish is WantedState.PAUSE:
                    await thing.halt(HALT_WITHIN)
            self._start(thing)
            found: X = await thing.status()
            return found

    def _start(self, thing: T) -> None:
        is_here = self._here.get(thing.name) is thing
        if not (is_here and self._gateway.ownership.has(self.kind, thing.name)):  # it was lost meanwhile
            self._forget(thing)
        elif not self._closing:
            thing.start()

    async def _keep_wish(self, thing: T) -> None:
        await self._gateway.ledger.put_resource(self._wishes, thing.name, {"wish": thing.wish.value}, None)

    async def _keep_wish_at_last(self, thing: T) -> None:
        """Keep it, however long the ledger is away."""
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        while self._here.get(thing.name) is thing:
            try:
                await self._keep_wish(thing)
                return
            except LedgerUnavailable:
                await backoff.wait()

    def _finished(self, thing: T, why: str) -> None:
        """One has ended on its own."""
        self._spawn(self._stop(thing))

    async def _stop(self, thing: T) -> None:
        async with self._locks.of(thing.name):
            if self._here.get(thing.name) is not thing:
                return
            if thing.finished:
                await self._end(thing)
            elif thing.wish is not WantedState.STOP:
                return  # something else was asked for meanwhile
        await self._keep_wish_at_last(thing)

    async def _end(self, thing: T) -> None:
        thing.wish = WantedState.STOP
        await thing.halt(HALT_WITHIN)

    # ---------------------------------------------------------------------------------------------- pieces

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work)

    def _no_such(self, name: str) -> NoSuchResource:
        return self.no_such(f"no {self.kind} {name!r}")

    def _log(self, what: str, name: str, level: int = logging.INFO, **fields: Any) -> None:
        log(f"{self.kind}.{what}", level, None, **{self.kind: name}, **fields)

    @property
    def _wishes(self) -> str:
        """The kind of resource that holds what is wished for."""
        return f"{self.kind}-wish"


class _Work:
    """All of one kind, as those who grant work see them."""

    def __init__(self, supervisor: Supervisor[Any, Any, Any]) -> None:
        self.names = supervisor.names
        self.start = supervisor.take
        self.stop = supervisor.give
        self.lost = supervisor.lose
        self.refresh = supervisor.refresh
        self._supervisor = supervisor

    @property
    def outdated(self) -> Collection[str]:
        """Those that run by other settings."""
        return self._supervisor.outdated
