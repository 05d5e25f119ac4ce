"""The configuration read again while the gateway runs: what counts at once, what takes a restart, and how it is done.

A reload takes the whole file or nothing of it. First everything is checked, and all steps that may fail are done aside:
new links to brokers are made, what the ledger knows of new endpoints is read. Then all of it takes effect in one turn
of the event loop. Afterwards all work that depends on the changes starts over: bridges, taps, pushed subscriptions.

:data:`RULES` is the one table of which setting counts when; a change of one that takes a restart refuses the reload.
Nothing under way is lost by one: requests, publishes and leases that have begun come to their end as they began, and a
bridge settles its messages in flight before it starts over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gateway.access import configured
from gateway.access.access import Access
from gateway.api.app import Api
from gateway.api.http.auth import ConfiguredKeys
from gateway.api.resources.reloads import BrokerThen, Change, Reload
from gateway.bridges import BridgeSupervisor
from gateway.broker_store import DEPENDENT_WORK, BrokerResource, BrokerStore, users_in_ledger
from gateway.config import (
    Config,
    HttpSettings,
    asks_for_credentials,
    budget_bounds,
)
from gateway.core import Gateway
from gateway.core.broker_change import BrokerChange
from gateway.core.subscriptions import check_all
from gateway.errors import (
    ConfigurationError,
    GatewayError,
    LedgerUnavailable,
    Overloaded,
    ReloadRefused,
    RestartNeeded,
)
from gateway.front.fronts import Fronts, restarts
from gateway.observing.collector import Collector
from gateway.observing.telemetry import log, set_level
from gateway.outbound import GuardedTransport, OutboundRules
from gateway.runtime.backoff import Backoff
from gateway.runtime.tasks import Tasks
from gateway.runtime.threads import threads
from gateway.taps import TapSupervisor
from gateway.upstreams import Upstream
from gateway.webhooks.settings.endpoints import ENDPOINT_RESOURCE, EndpointRegistry
from gateway.webhooks.supervisor import Pushes

RESTART: Final = "restart"
"""Of a rule: the setting counts from the next start on."""
RULES: Final[Mapping[str, tuple[str, str]]] = {
    "brokers": ("live", "new links are made first; what has begun ends on the old ones"),
    "subscriptions": ("live", "for the next message"),
    "endpoints": ("live", "for the next request"),
    "bridges": ("live", "a bridge that is changed settles its messages in flight and starts over"),
    "taps": ("live", "as bridges"),
    "api_keys": ("live", "for the next request"),
    "access": ("live", "for the next request"),
    "access.required": (RESTART, "all callers learn at the start whether they need a credential"),
    "http": ("live", "for the next request"),
    "http.host": (RESTART, "the port is open"),
    "http.port": (RESTART, "the port is open"),
    "http.tls": (RESTART, "the open port keeps its file names; new content of the files takes effect within seconds"),
    "http.head_timeout": ("live", "for connections, those that are open included"),
    "http.send_timeout": ("live", "for connections, those that are open included"),
    "http.connections_per_address": ("live", "for the next connection"),
    "http.idle_timeout": (RESTART, "the HTTP server reads it only at the start"),
    "http.drain_timeout": (RESTART, "the HTTP server reads it only at the start"),
    "http.drain_delay": ("live", "at the next stop"),
    "http.trusted_proxies": ("live", "for the next request; connections count as they did"),
    "budgets": ("live", "for the next request; what is held over a new bound stays held"),
    "outbound": ("live", "for the next request; open connections are not used again"),
    "outbound.broker_allow": ("live", "for the next connection to a broker; those that are open stay"),
    "outbound.requests": (RESTART, "places and connections are counted out at the start"),
    "outbound.origin": (RESTART, "endpoints have allowed a name that is theirs to know"),
    "log_level": ("live", "at once"),
    "pipeline": ("live", "for the next job; the service reads none of it"),
    "role": (RESTART, "work is granted to processes by it"),
    "ops": (RESTART, "the port is open"),
    "embedded": (RESTART, "it holds its messages in memory"),
    "fronts": (
        "live",
        "clients stay; `host`, `port`, `tls`, `login`, `broker`, `virtual_hosts` and `message_max` of a front take a "
        "restart, and so do fronts that come or go",
    ),
    "ledger": (RESTART, "the database is open"),
    "ledger.headers": ("live", "for the next message; those that are kept have the headers of their time"),
    "data_dir": (RESTART, "files in it are open"),
    "cluster": (RESTART, "other processes know this one by it"),
    "tracing": ("live", "for the next span; what waits goes to the collector that there is then"),
    "audit": (RESTART, "the head is kept from the start on"),
    "retention": ("live", "for the next message and the next sweep; a kept body goes at the time set before"),
}
"""Setting, or table of them -> ``live`` or ``restart``, and when it counts or why it does not. The longest that fits
counts."""
TABLES: Final = ("brokers", "subscriptions", "endpoints", "bridges", "taps", "fronts")
"""Those with named entries."""
FINISH_WITHIN: Final = 15.0
"""How long a reload waits until all changed work has started over, in seconds; the rest goes on in the background."""
PAUSE_MIN, PAUSE_MAX = 0.5, 30.0
"""Pause before what the ledger did not take is tried again, in seconds; doubled each time."""


def rule_of(setting: str) -> tuple[str, str]:
    """The rule of a dotted setting."""
    return max(((name, rule) for name, rule in RULES.items() if f"{setting}.".startswith(f"{name}.")))[1]


def changes(before: Config, after: Config) -> Iterator[tuple[str, str]]:
    """What differs: a dotted setting, or the name of an entry of a table; and whether that was ``added``, ``changed``
    or ``removed``."""
    for name in Config.__struct_fields__:
        old, new = getattr(before, name), getattr(after, name)
        if name in TABLES:
            for entry in sorted({*old, *new}):
                if old.get(entry) != new.get(entry):
                    what = "added" if entry not in old else "removed" if entry not in new else "changed"
                    yield f"{name}.{entry}", what
        elif isinstance(old, msgspec.Struct):
            for inner in old.__struct_fields__:
                if getattr(old, inner) != getattr(new, inner):
                    yield f"{name}.{inner}", "changed"
        elif old != new:
            yield name, "changed"


@dataclass(frozen=True, slots=True)
class Running:
    """All parts that use a configuration."""

    gateway: Gateway
    bridges: BridgeSupervisor
    taps: TapSupervisor
    endpoints: EndpointRegistry
    pushes: Pushes
    access: Access
    api: Api
    spans: Collector
    rules: OutboundRules
    transports: Sequence[GuardedTransport]
    issuer: GuardedTransport
    """Reads the keys of the issuer of tokens."""
    fronts: Fronts
    store: BrokerStore
    """The brokers as they are defined."""
    set_bounds: Callable[[HttpSettings], None]
    """For the connections of the HTTP port."""
    check: Callable[[Config], None]
    """What only the whole configuration can tell. Raises ConfigurationError."""


@dataclass(slots=True)
class _Plan:
    """What was prepared."""

    config: Config
    changes: list[Change]
    brokers: BrokerChange
    """The new ones, started, and those that go."""
    commit: list[Callable[[], Any]]
    """What makes it count, none of which may fail."""


class Reloads:
    """Reads the configuration again. Belongs to the event loop."""

    def __init__(self, config: Config, running: Running, read: Callable[[], Config] | None) -> None:
        """``read``: the configuration as it is now, or ConfigurationError; None: there is nothing to read."""
        self.config = config
        """What counts."""
        self._running = running
        self._read = read
        self._following: asyncio.Task[bool] | None = None
        self._endpoints: set[str] = set()
        """Those that may lack keys yet."""
        self._queues: dict[str, Any] = {}
        """Subscriptions whose own queue may have to follow, with what they were before."""

    async def reload(self, *, dry_run: bool = False) -> Reload:
        """Read the configuration, and have it count; with ``dry_run`` only find out whether it could.

        Raises:
            ReloadRefused, RestartNeeded: it is wrong, or cannot count now; nothing has changed.
            LedgerUnavailable: nothing has changed.
            Overloaded: too many brokers that were replaced are still at work.
        """
        metrics = self._running.gateway.metrics.reloads
        async with self._running.store.changing:
            if self._running.gateway.leaving or self._running.gateway.draining:
                raise Overloaded("the gateway is shutting down")
            try:
                plan = await self._prepare()
            except GatewayError as error:
                metrics.labels("refused").inc()
                log("config.not_reloaded", logging.WARNING, reason=str(error), code=error.code)
                if isinstance(error, ConfigurationError):
                    raise ReloadRefused(str(error)) from None
                raise
            if dry_run:
                then = _then(plan.brokers.made)
                await plan.brokers.drop()
                return Reload("checked", plan.changes, then, complete=True)
            if not plan.changes:
                for commit in plan.commit:
                    commit()
                metrics.labels("unchanged").inc()
                return Reload("unchanged", [], [], complete=True)
            self._commit(plan)
            metrics.labels("applied").inc()
            log("config.reloaded", changed=[f"{each.setting} {each.change}" for each in plan.changes][:100])
            return Reload("applied", plan.changes, _then(plan.brokers.made), complete=await self._follow())

    async def close(self) -> None:
        """Read nothing any more."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])

    # ------------------------------------------------------------------------------------------------- prepare

    async def _prepare(self) -> _Plan:
        """Check everything, and do all steps that may fail aside."""
        running, before = self._running, self.config
        if self._read is None:
            raise ReloadRefused("this gateway was started without a configuration that could be read again")
        config = await threads.run(self._read)
        running.check(config)
        found = list(changes(before, config))
        late = [(name, why) for name, _ in found for when, why in [rule_of(name)] if when == RESTART]
        late += restarts(before.fronts, config.fronts)
        if not late and asks_for_credentials(before) != asks_for_credentials(config):
            late = [("access.required", rule_of("access.required")[1])]
        if late:
            raise RestartNeeded(late)
        listed = [Change(name, what, rule_of(name)[1]) for name, what in found]
        plan = _Plan(config, listed, BrokerChange(running.gateway, {}), [])
        rules = self._check_rules(config, plan)
        returned = await running.store.returning(before.brokers.keys() - config.brokers.keys())
        known = {*config.brokers, *returned, *(running.gateway.brokers.keys() - before.brokers.keys())}
        check_all(config.subscriptions)
        running.bridges.check_all(config.bridges, _finder(known))
        running.taps.check_all(config.taps, _finder(known), config.retention)
        guard = GuardedTransport(rules)  # calls nobody
        try:
            await running.endpoints.check_all(config.endpoints, guard.check)
            callers = running.access.reconfigure(config, running.issuer, guard)
        finally:
            await guard.aclose()
        keys = await threads.run(ConfiguredKeys, config.api_keys)
        plan.commit += [lambda: _close_soon(callers()), lambda: running.api.reconfigure(config.http, keys)]
        endpoints = await running.endpoints.prepare(config.endpoints)
        await self._check_use(config, returned)
        plan.commit += [
            lambda: self._endpoints.update(running.endpoints.reconfigure(endpoints)),
            lambda: running.store.reconfigure(config.brokers, returned),
            lambda: running.bridges.reconfigure(config.bridges),
            lambda: running.taps.reconfigure(config.taps, config.retention),
            lambda: self._note(running.gateway.subscriptions.reconfigure(config.subscriptions)),
            lambda: setattr(running.gateway, "confirm_timeout", config.http.confirm_timeout),
            lambda: running.gateway.budgets.configure(budget_bounds(config)),
            lambda: running.set_bounds(config.http),
            await threads.run(running.fronts.prepare, config.fronts, config.brokers),
            lambda: set_level(config.log_level),
            lambda: configured.warn(config, known),
            lambda: running.gateway.ledger.reconfigure(config.ledger.headers, config.retention),
            await running.spans.prepare(config.tracing),
        ]
        if running.gateway.peers.shared:
            running_peers = running.gateway.peers
            plan.commit.append(lambda: running_peers.configured(running_peers.digest(config)))
        await self._connect(config, plan, returned)
        return plan

    def _check_rules(self, config: Config, plan: _Plan) -> OutboundRules:
        running, settings = self._running, config.outbound
        rules = OutboundRules(settings.allow, ports=settings.ports, plain=settings.plain)
        brokers = rules.beside(settings.broker_allow, "broker_allow")
        if settings != self.config.outbound:

            def commit() -> None:
                running.rules.replace(rules)
                running.store.guard.rules.replace(brokers)
                for transport in running.transports:
                    transport.judge_anew()

            plan.commit.append(commit)
        return rules

    async def _check_use(self, config: Config, returned: Collection[str]) -> None:
        """What goes must not be in use by what the ledger has, unless a broker of the ledger takes its place
        (``returned``). Raises ReloadRefused, LedgerUnavailable."""
        brokers = self.config.brokers.keys() - config.brokers.keys() - set(returned)
        endpoints = self.config.endpoints.keys() - config.endpoints.keys()
        if not (brokers or endpoints):
            return
        ledger = self._running.gateway.ledger
        async for user in users_in_ledger(ledger):
            for what, used in (("brokers", user.brokers & brokers), ("endpoints", user.endpoints & endpoints)):
                for name in sorted(used):
                    if what == "endpoints" and await ledger.get_resource(ENDPOINT_RESOURCE, name) is not None:
                        continue  # that one takes its place
                    raise ReloadRefused(f"{what}.{name}: the {user.kind} {user.name!r} of the ledger works with it")

    async def _connect(self, config: Config, plan: _Plan, returned: Mapping[str, BrokerResource]) -> None:
        """Make the links to brokers that are new or have other settings. One that is up must stay so.

        Raises:
            ReloadRefused: one would not.
            Overloaded: there are too many of before.
        """
        old, store = self.config.brokers, self._running.store
        made = {
            name: Upstream(name, settings) for name, settings in config.brokers.items() if old.get(name) != settings
        }
        made |= {name: store.make(each) for name, each in returned.items()}
        gone = old.keys() - config.brokers.keys() - returned.keys()
        plan.brokers = change = BrokerChange(self._running.gateway, made, gone)
        await change.connect()
        for upstream in change.losses():
            await change.drop()
            raise ReloadRefused(
                f"brokers.{upstream.name}: it is up, and would not be with the new settings: {upstream.reason}"
            )

    # -------------------------------------------------------------------------------------------------- commit

    def _commit(self, plan: _Plan) -> None:
        """Have it count, in one go."""
        self.config = plan.config
        plan.brokers.commit()
        for commit in plan.commit:
            commit()

    def _note(self, changed: Sequence[tuple[str, Any]]) -> None:
        for name, before in changed:
            self._queues.setdefault(name, before)

    async def _follow(self) -> bool:
        """Restart all work that depends on the changes; returns whether that is done. The rest goes on in the
        background."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        self._following = task = asyncio.get_running_loop().create_task(self._begin_anew(), name="reload")
        done, _ = await asyncio.wait([task], timeout=FINISH_WITHIN + 1.0)
        return bool(done) and not task.cancelled() and task.exception() is None and task.result()

    async def _begin_anew(self) -> bool:
        gateway, backoff = self._running.gateway, Backoff(PAUSE_MIN, PAUSE_MAX)
        while True:
            try:
                names = sorted(self._endpoints)
                await self._running.endpoints.complete(names)
                self._endpoints.difference_update(names)
                while self._queues:
                    name, before = next(iter(self._queues.items()))
                    await gateway.subscriptions.move_queue(name, before)
                    self._queues.pop(name, None)
                return await gateway.ownership.reconsider(DEPENDENT_WORK, FINISH_WITHIN)
            except LedgerUnavailable as error:
                log("config.follows_later", logging.WARNING, reason=str(error))
            except Exception as error:  # a fault of ours must not end the trying
                log("config.failed", logging.ERROR, exc_info=error)
            await backoff.wait()


def _then(brokers: Mapping[str, Upstream]) -> list[BrokerThen]:
    return [
        BrokerThen(name, upstream.state.value, upstream.reason, upstream.status().code)
        for name, upstream in sorted(brokers.items())
    ]


def _finder(known: set[str]) -> Callable[[str], object]:
    def find(name: str) -> object:
        if name not in known:
            raise ConfigurationError(f"there is no broker {name!r}")
        return name

    return find


_closing: Final = Tasks("tokens of a configuration before")


def _close_soon(tokens: Any) -> None:
    """Tokens of before: nobody asks them any more."""
    if tokens is not None:
        _closing.start(tokens.close())
