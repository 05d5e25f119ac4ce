"""All endpoints of a gateway: those of the configuration file, which are read-only, and those in the ledger.

All of them are held in memory, so that nothing is asked of the ledger when a message is pushed. Where several gateways
share a ledger, what another one changed is seen within :data:`REFRESH` seconds; ``on_change`` reports it.

An endpoint is two documents in the ledger (:mod:`gateway.webhooks.settings.documents`): ``endpoint`` is what was put,
``endpoint-state`` what became of it: signing keys, paused, disabled, verified.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from gateway.amqp.message import Message, Properties
from gateway.budgets import ShareHolder
from gateway.config import EndpointSettings, EndpointTls
from gateway.core.work.resources import ResourceStore, StoredSettings
from gateway.errors import (
    ConfigurationError,
    EncodeError,
    EtagMismatch,
    GatewayError,
    LedgerUnavailable,
    LimitExceeded,
    NoSuchEndpoint,
    OutboundFailed,
    Unsupported,
    public_error,
)
from gateway.ledger import Ledger, MessageIds, ResourceRecord, id_text
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock, wall_time
from gateway.runtime.ids import random_bytes
from gateway.runtime.locks import Locks
from gateway.runtime.threads import threads
from gateway.transports import client_context
from gateway.webhooks.attempts import handshake
from gateway.webhooks.attempts.sender import PushedMessage, Sender, SendOutcome, endpoint_client
from gateway.webhooks.endpoint import Endpoint, EndpointState
from gateway.webhooks.settings import checks, keys
from gateway.webhooks.settings.documents import (
    Disabled,
    Documents,
    EndpointStateDocument,
    StoredEndpoint,
    Verified,
    lacks_keys,
    mark_of,
)
from gateway.webhooks.settings.keys import HeldKey, PublicKeys, Scheme
from gateway.webhooks.settings.secrets import Seals

__all__ = ["Endpoint", "EndpointRegistry", "EndpointState"]

ENDPOINT_RESOURCE: Final = "endpoint"
STATE: Final = "endpoint-state"
ENDPOINTS_MAX: Final = 10_000
"""Most endpoints."""
REFRESH: Final = 5.0
"""How often it is looked what other gateways changed, in seconds."""
REFRESH_SHARE: Final = 0.02
"""Most of the time that goes into looking."""
PAGE: Final = 500
TRIES: Final = 10
"""How often a change of the state is tried while others change it too."""
VERIFY_AFTER: Final = (0.0, 5.0, 60.0, 300.0, 1_800.0)
"""Pauses before each attempt to verify an endpoint by ourselves, in seconds; afterwards it takes ``:verify``."""
VERIFYING: Final = 8
"""Most endpoints that are verified at once."""
OVERLAP: Final = 86_400.0
"""How long an old key signs beside a new one unless told otherwise, in seconds."""


class PreparedEndpoints(NamedTuple):
    """Other settings in the configuration file, with what the ledger knows of them."""

    configured: Mapping[str, EndpointSettings]
    states: Mapping[str, ResourceRecord | None]
    specs: Mapping[str, ResourceRecord | None]


class EndpointRegistry:
    """The endpoints of a gateway."""

    def __init__(
        self,
        ledger: Ledger,
        configured: Mapping[str, EndpointSettings],
        sender: Sender,
        seals: Seals,
        *,
        origin: str = "",
        clock: Callable[[], float] = wall_time,
        random: Callable[[int], bytes] = random_bytes,
    ) -> None:
        """
        Args:
            origin: our host name for handshakes; empty: the machine's.
            clock: seconds since 1970.
        """
        self.on_change: list[Callable[[str], None]] = []
        """Called with the name of an endpoint that is new, gone, or not as it was."""
        self._ledger = ledger
        self._store = ResourceStore(ledger, ENDPOINT_RESOURCE, configured)
        self._sender = sender
        self.recent = sender.recent
        """The last requests of this process to each endpoint."""
        self._transport = sender.transport
        self._seals = seals
        self._origin = origin or socket.gethostname()
        self._documents = Documents(seals, self._store.configured, origin)
        self._clock = clock
        self._random = random
        self._ids = MessageIds()
        self._held: dict[str, StoredEndpoint] = {}
        self._loads = 0
        """How often all of them were read."""
        self._touched: set[str] = set()
        """Names that were changed here since reading all of them began."""
        self._locks = Locks()
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._verifying = asyncio.Semaphore(VERIFYING)
        self._public: tuple[float, PublicKeys] | None = None

    # ---------------------------------------------------------------------------------------- start, close

    async def start(self) -> None:
        """Read what there is, and make the keys that are missing.

        Raises:
            ConfigurationError: an endpoint of the configuration file is wrong.
            LedgerUnavailable: it cannot be read which endpoints there are.
        """
        await self.check_all(self._store.configured)
        await self._load()
        await self._complete(self._held)
        if self._ledger.work.shared:
            self._spawn(self._refresh(), "")

    async def check_all(
        self, configured: Mapping[str, EndpointSettings], check_url: Callable[[str], None] | None = None
    ) -> None:
        """Whether these settings can be those of the configuration file; ``check_url`` says which URLs may be called,
        None: the guard as it is. Raises ConfigurationError."""
        for name, settings in configured.items():
            try:
                checks.check_endpoint(settings, from_file=True)
                await self._look_at(settings, check_url)
            except GatewayError as error:
                raise ConfigurationError(f"endpoints.{name}.{error}") from None

    async def prepare(self, configured: Mapping[str, EndpointSettings]) -> PreparedEndpoints:
        """What of other settings in the configuration file is in the ledger: of those that are new, their state; of
        those that go, another one of their name. Raises LedgerUnavailable."""
        unread = {name for name in configured if (held := self._held.get(name)) is None or held.trouble}
        new = configured.keys() - self._store.configured.keys()
        gone = self._store.configured.keys() - configured.keys()
        states = {name: await self._ledger.get_resource(STATE, name) for name in sorted(unread | new | gone)}
        specs = {name: await self._ledger.get_resource(ENDPOINT_RESOURCE, name) for name in sorted(gone)}
        return PreparedEndpoints(configured, states, specs)

    def reconfigure(self, prepared: PreparedEndpoints) -> list[str]:
        """Have these settings count, which were checked. Returns the names of those that are not as they were; their
        keys are made by :meth:`complete`."""
        before, now = self._store.reconfigure(prepared.configured), self._store.configured
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        for name in changed:
            held = self._held.get(name)
            if name in prepared.states:
                document, state = prepared.specs.get(name), prepared.states[name]
                if name in now or document is not None:
                    self._held[name] = self._documents.make(name, document, state)
                else:
                    self._held.pop(name, None)
            elif held is not None:
                spec = msgspec.to_builtins(held.state)
                known = ResourceRecord(STATE, name, spec, held.state_etag, 0, 0) if held.state_etag else None
                self._held[name] = self._documents.make(name, None, known)
            self._changed(name)
        return changed

    async def complete(self, names: Sequence[str]) -> None:
        """Make the keys that these lack, and ask them whether they may be called. Raises LedgerUnavailable."""
        await self._complete({name: self._held[name] for name in names if name in self._held})

    async def _complete(self, some: Mapping[str, StoredEndpoint]) -> None:
        for name, held in list(some.items()):
            if held.trouble:
                log("endpoint.not_read", logging.ERROR, endpoint=name, reason=held.trouble)
            elif lacks_keys(held.endpoint):
                await self._change(name, lambda state: state)  # makes them
        for name in some:
            if (now := self._held.get(name)) is not None:
                self._verify_soon(name, now.endpoint)

    async def close(self) -> None:
        """Look and verify no more."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _load(self) -> None:
        """Build all endpoints again, and report the changed ones."""
        self._touched.clear()
        states = {item.name: item async for item in self._ledger.all_resources(STATE)}
        specs = {item.name: item for item in await self._store.rows()}
        before, now = self._held, dict[str, StoredEndpoint]()
        for name in (*self._store.configured, *specs):
            held = before.get(name)
            if name in self._touched:
                continue
            spec, state = specs.get(name), states.get(name)
            same = (
                held is not None
                and held.state_etag == (state.etag if state is not None else "")
                and (spec is None or held.endpoint.etag == spec.etag)
            )
            now[name] = held if same and held is not None else self._documents.make(name, spec, state)
        for name in self._touched & before.keys():  # what was changed here meanwhile is newer than what was read
            now[name] = before[name]
        self._held = now
        self._loads += 1
        for name in {*before, *now}:
            if _differ(before.get(name), now.get(name)):
                self._changed(name)

    async def _refresh(self) -> None:
        """What another gateway changed. Rests the longer, the more there is to look at."""
        pause = REFRESH
        while True:
            await clock.sleep(pause)
            began = clock.monotonic()
            try:
                await self._load()
            except GatewayError as error:
                log("endpoints.not_read", logging.WARNING, reason=str(error))
            except Exception as error:  # a defect here must not end the looking
                log("endpoints.failed", logging.ERROR, exc_info=error)
            pause = max(REFRESH, (clock.monotonic() - began) / REFRESH_SHARE)

    # --------------------------------------------------------------------------------------------- looking

    def __contains__(self, name: str) -> bool:
        """Whether an endpoint of that name is known here."""
        return name in self._held

    async def get(self, name: str) -> Endpoint:
        """An endpoint by name. Raises NoSuchEndpoint, LedgerUnavailable."""
        held = self._held.get(name)
        if held is None and self._ledger.work.shared:  # another gateway may have made it a moment ago
            async with self._locks.of(name):  # else what was read could take the place of what is put meanwhile
                held = self._held.get(name) or await self._read(name)
        if held is None:
            raise NoSuchEndpoint(f"no endpoint {name!r}")
        return held.endpoint

    async def _read(self, name: str) -> StoredEndpoint | None:
        """Read one again, and report it if it is not as it was, for the next refresh finds nothing different."""
        spec, held = await self._store.row(name), None
        if spec is not None or name in self._store.configured:
            held = self._documents.make(name, spec, await self._ledger.get_resource(STATE, name))
        before = self._held.get(name)
        if held is not None:
            self._held[name] = held
        else:
            self._held.pop(name, None)
        if _differ(before, held):
            self._changed(name)
        return held

    async def page(self, cursor: str | None, limit: int) -> tuple[list[Endpoint], str | None]:
        """Some by name, and the cursor behind them: the last name."""
        names = sorted(name for name in self._held if cursor is None or name > cursor)
        page = names[:limit]
        return [self._held[name].endpoint for name in page], page[-1] if len(names) > limit else None

    def public_keys(self) -> PublicKeys:
        """The public keys that receivers may see signatures of."""
        now = self._clock()
        if self._public is None or now >= self._public[0]:
            keys = [key for held in self._held.values() for key in held.endpoint.keys if key.signs(now)]
            until = min((key.until for key in keys if key.until is not None), default=float("inf"))
            self._public = until, PublicKeys(key.public for key in keys if key.public is not None)
        return self._public[1]

    # -------------------------------------------------------------------------------------------- changing

    async def put(
        self, name: str, settings: EndpointSettings, if_match: str | None
    ) -> tuple[Endpoint, bool, list[HeldKey]]:
        """Create or replace an endpoint; also says whether it is new, and which keys were made. The same settings again
        change nothing and need no ``if_match``. Secrets that are empty stay as they are.

        Raises:
            ReadOnly: the configuration file defines it.
            EncodeError: a setting is wrong.
            AddressDenied: its URL, or that of its tokens, may not be called.
            EtagMismatch: see :mod:`gateway.core.work.resources`.
            LimitExceeded: there are too many.
        """
        self._store.refuse_configured(name)
        async with self._locks.of(name):
            known = self._held.get(name)
            present = await self._read(name)
            before = present.endpoint if present is not None else None
            settings = checks.keep_secrets(settings, before.settings if before is not None else None)
            stored = StoredSettings(before.settings, before.etag) if before is not None else None
            condition = self._store.condition(name, stored, settings, if_match)
            if before is not None and condition is None:
                new = []
                if known is None or known.endpoint != before or lacks_keys(before):  # stored by a call that failed
                    new = await self._change_locked(name, lambda state: state)
                    before = self._held[name].endpoint
                    self._verify_soon(name, before)
                return before, False, new
            assert condition is not None
            if before is None and len(self._held) >= ENDPOINTS_MAX:
                raise LimitExceeded(f"there are {len(self._held)} endpoints, the limit is {ENDPOINTS_MAX}", "endpoints")
            checks.check_endpoint(settings, from_file=False)
            await self._look_at(settings)
            document = self._documents.spec(name, settings)
            etag, created = await self._store.put(name, document, condition)
            resource = ResourceRecord(ENDPOINT_RESOURCE, name, msgspec.to_builtins(document), etag, 0, 0)
            self._held[name] = self._documents.make(name, resource, await self._ledger.get_resource(STATE, name))
            try:
                if created:  # what is left of another endpoint that had this name does not count
                    new = await self._change_locked(name, lambda _: EndpointStateDocument(), lambda _: (), anew=True)
                else:
                    new = await self._change_locked(name, lambda state: _as_put(state, before, settings))
            except BaseException:  # the settings count all the same, and the next call finds nothing to change
                self._changed(name)
                if (held := self._held.get(name)) is not None:
                    self._verify_soon(name, held.endpoint)
                raise
            endpoint = self._held[name].endpoint
            self._verify_soon(name, endpoint)
            log("endpoint.put", endpoint=name, created=created)
            return endpoint, created, new

    async def delete(self, name: str, if_match: str | None) -> None:
        """Delete an endpoint. Its pending messages wait until there is one of this name again.

        Raises:
            ReadOnly, NoSuchEndpoint, EtagMismatch
        """
        self._store.refuse_configured(name)
        async with self._locks.of(name):
            found = await self._store.delete(name, if_match)
            self._held.pop(name, None)
            self.recent.forget(name)
            self._documents.refused.pop(name, None)
            self._changed(name)  # also where a call that failed has deleted it
            if not found:
                raise NoSuchEndpoint(f"no endpoint {name!r}")
            await self._ledger.delete_resource(STATE, name, None)
            log("endpoint.deleted", endpoint=name)

    async def pause(self, name: str) -> Endpoint:
        """Let it get nothing until it is resumed. Raises NoSuchEndpoint."""
        return await self._set(name, paused=True)

    async def resume(self, name: str) -> Endpoint:
        """Let it get messages. Raises NoSuchEndpoint."""
        return await self._set(name, paused=False)

    async def disable(self, name: str, reason: str, url: str = "") -> Endpoint:
        """Let it get nothing until it is enabled, or has another URL than this one; empty: than the one that it has.
        Raises NoSuchEndpoint."""
        url = url or (await self.get(name)).settings.url
        endpoint = await self._set(name, disabled=Disabled(reason, mark_of(url), self._clock()))
        log("endpoint.disabled", logging.WARNING, endpoint=name, reason=reason)
        return endpoint

    async def enable(self, name: str) -> Endpoint:
        """Let one that was disabled get messages again. Raises NoSuchEndpoint."""
        return await self._set(name, disabled=None)

    async def rotate(
        self,
        name: str,
        schemes: Sequence[Scheme] = (),
        *,
        overlap: float | None = OVERLAP,
        finish: bool = False,
    ) -> tuple[Endpoint, list[HeldKey]]:
        """New signing keys; the old ones sign beside them for a while.

        Args:
            schemes: of which there are new ones; none: of all that the endpoint has.
            overlap: how long the old ones sign, in seconds; None: until ``finish``.
            finish: make none, and take the old ones away now.

        Raises:
            NoSuchEndpoint: there is none of that name.
            Unsupported: it does not sign with such a scheme.
            StateError: too many keys would sign at once.
        """
        signing = (await self.get(name)).settings.signing
        wanted = tuple(dict.fromkeys(schemes))
        for scheme in wanted:
            if scheme not in signing:
                raise Unsupported(f"the endpoint {name!r} does not sign with {scheme}")
        if not signing:
            raise Unsupported(f"the endpoint {name!r} does not sign")
        async with self._locks.of(name):
            new = await self._change_locked(
                name,
                lambda state: state,
                lambda held: (
                    keys.finish(held)
                    if finish
                    else keys.rotate(held, wanted or signing, self._random, self._clock(), overlap)
                ),
            )
            log("endpoint.rotated", endpoint=name, new=[key.id for key in new], finished=finish)
            return self._held[name].endpoint, new

    async def verify(self, name: str, client: ShareHolder | None = None) -> Endpoint:
        """Ask the endpoint whether the gateway may call it. What it says is its state.

        Args:
            name: the endpoint's.
            client: whose share of the lookups is used; None: the endpoint's.

        Raises:
            NoSuchEndpoint: there is none of that name.
            OutboundFailed: it said nothing; and it had allowed it before, which still holds.
        """
        settings = (await self.get(name)).settings
        try:
            rate = await handshake.ask(self._transport, settings, self._origin, client or endpoint_client(name))
        except handshake.HandshakeRefused as error:
            self._documents.refused[name] = f"not verified: {error}"
            return await self._set(name, verified=None)
        except (OutboundFailed, EncodeError, ConfigurationError) as error:
            if (await self.get(name)).state is not EndpointState.UNVERIFIED:
                raise  # what it allowed still holds
            told = public_error(error)
            if told is not error:
                log("endpoint.not_reached", logging.WARNING, endpoint=name, code=error.code, reason=str(error))
            self._documents.refused[name] = f"not verified: {told}"
            return await self._set(name)
        self._documents.refused.pop(name, None)
        return await self._set(name, verified=Verified(mark_of(settings.url), self._origin, self._clock(), rate))

    async def test(self, name: str, client: ShareHolder | None = None) -> SendOutcome:
        """Send it a message that says that it is a test, in every state of the endpoint.

        Args:
            name: the endpoint's.
            client: whose share of the lookups is used; None: the endpoint's.

        Raises:
            NoSuchEndpoint: there is no endpoint of that name.
        """
        document = {"test": True, "endpoint": name}
        return await self._tell(name, "amqp.test", document, {"test": True}, test=True, client=client)

    async def tell(self, name: str, kind: str, document: Mapping[str, Any]) -> SendOutcome:
        """Send it a message of the gateway's own, once, in any state. Raises NoSuchEndpoint.

        Args:
            kind: the message's type.
        """
        return await self._tell(name, kind, document, {})

    async def _tell(
        self,
        name: str,
        kind: str,
        document: Mapping[str, Any],
        headers: dict[str, Any],
        *,
        test: bool = False,
        client: ShareHolder | None = None,
    ) -> SendOutcome:
        endpoint = await self.get(name)
        now = self._clock()
        message_id = id_text(self._ids())
        properties = Properties("application/json", timestamp=int(now), type=kind, headers=headers)
        body = msgspec.json.encode({**document, "id": message_id})
        item = PushedMessage(message_id, message_id, "", "", "", "", "", Message(body, properties), test=test)
        return await self._sender.send(endpoint, [item], int(now), client=client)

    # ---------------------------------------------------------------------------------------------- pieces

    def check_url(self, url: str) -> None:
        """Whether the guard would let us call a URL, as far as that can be told without asking for its address.

        Raises:
            EncodeError: it is no URL.
            AddressDenied: it would not.
        """
        self._transport.check(url)

    async def _look_at(self, settings: EndpointSettings, check_url: Callable[[str], None] | None = None) -> None:
        """What only the guard and OpenSSL can tell. Raises EncodeError, AddressDenied."""
        check_url = check_url or self._transport.check
        check_url(settings.url)
        if settings.auth.token_url:
            check_url(settings.auth.token_url)
        if settings.tls != EndpointTls():
            try:
                await threads.run(client_context, settings.tls)
            except ConfigurationError as error:
                raise EncodeError(str(error)) from None

    async def _set(self, name: str, **fields: Any) -> Endpoint:
        """Change the state."""
        return await self._change(name, lambda state: msgspec.structs.replace(state, **fields))

    async def _change(self, name: str, change: Callable[[EndpointStateDocument], EndpointStateDocument]) -> Endpoint:
        async with self._locks.of(name):
            await self._change_locked(name, change)
            return self._held[name].endpoint

    async def _change_locked(
        self,
        name: str,
        change: Callable[[EndpointStateDocument], EndpointStateDocument],
        turn: Callable[[tuple[HeldKey, ...]], tuple[HeldKey, ...]] = lambda held: held,
        *,
        anew: bool = False,
    ) -> list[HeldKey]:
        """Change the state and the keys, as they are by then, and write it down; returns the keys that are new.
        ``anew``: with their settings of that time.

        Raises:
            NoSuchEndpoint, LedgerUnavailable
        """
        for attempt in range(TRIES):
            held = self._held.get(name) if attempt == 0 else await self._read(name)
            if held is None:
                held = await self._read(name)
            if held is None:
                raise NoSuchEndpoint(f"no endpoint {name!r}")
            endpoint = held.endpoint
            stored = [] if anew else held.state.keys
            old = keys.unseal(self._seals, name, stored)
            schemes: tuple[Scheme, ...] = endpoint.settings.signing
            found = keys.fitting(turn(old), schemes, self._random, self._clock())
            state = change(held.state)
            state = msgspec.structs.replace(state, keys=keys.seal(self._seals, name, found, stored))
            if state == held.state and held.state_etag:
                etag = held.state_etag
            else:
                spec = msgspec.to_builtins(state)
                try:
                    etag, _ = await self._ledger.put_resource(STATE, name, spec, held.state_etag)
                except EtagMismatch:
                    continue  # another gateway was quicker
            trouble = "" if anew else held.trouble
            made = self._documents.endpoint(name, endpoint.settings, endpoint.etag, state, found, trouble)
            self._held[name] = StoredEndpoint(made, state, etag, trouble)
            self._changed(name)
            return [key for key in found if key.id not in {each.id for each in old}]
        raise LedgerUnavailable(f"the endpoint {name!r} is being changed by others all the time")

    def _changed(self, name: str) -> None:
        self._public = None
        self._touched.add(name)
        for tell in self.on_change:
            tell(name)

    # ------------------------------------------------------------------------------------------- verifying

    def _verify_soon(self, name: str, endpoint: Endpoint) -> None:
        """Begin to ask an endpoint that has not allowed us to call it, unless that is being done."""
        if endpoint.state is EndpointState.UNVERIFIED and name not in self._tasks.values():
            self._spawn(self._verify_at_last(name), name)

    async def _verify_at_last(self, name: str) -> None:
        for pause in VERIFY_AFTER:
            await clock.sleep(pause)
            try:
                endpoint = await self.get(name)
                if endpoint.state is EndpointState.UNVERIFIED:
                    async with self._verifying:
                        endpoint = await self.verify(name)
            except NoSuchEndpoint:
                return
            except LedgerUnavailable as error:
                log("endpoint.not_verified", logging.WARNING, endpoint=name, reason=str(error))
                continue
            if endpoint.state is not EndpointState.UNVERIFIED:
                return
            log("endpoint.not_verified", logging.WARNING, endpoint=name, reason=endpoint.reason)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = name
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            log("endpoints.failed", logging.ERROR, exc_info=error)


def _differ(before: StoredEndpoint | None, now: StoredEndpoint | None) -> bool:
    """Whether an endpoint is new, gone, or not as it was."""
    return (before.endpoint if before is not None else None) != (now.endpoint if now is not None else None)


def _as_put(state: EndpointStateDocument, before: Endpoint | None, settings: EndpointSettings) -> EndpointStateDocument:
    """What was paused or resumed stays so, unless the settings say something new about it."""
    if before is None or before.settings.paused == settings.paused:
        return state
    return msgspec.structs.replace(state, paused=None)
