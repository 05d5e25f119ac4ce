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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gateway.access import configured
from gateway.access.access import Access
from gateway.api.app import Api
from gateway.api.http.auth import ConfiguredKeys
from gateway.api.resources.reloads import BrokerThen, Change, Reload
from gateway.bridges import BridgeSupervisor
from gateway.bridges.supervisor import BRIDGE_KIND
from gateway.config import (
    BridgeSettings,
    Config,
    HttpSettings,
    SubscriptionSettings,
    TapSettings,
    asks_for_credentials,
    budget_bounds,
)
from gateway.core import Gateway
from gateway.core.publishing.outbox import OUTBOX_WORK
from gateway.core.sources.intakes import INTAKE_WORK
from gateway.core.subscriptions import SUBSCRIPTION_RESOURCE, check_all
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
from gateway.taps.rows import TAP_KIND
from gateway.upstreams import Upstream, UpstreamState
from gateway.webhooks.settings.endpoints import ENDPOINT_RESOURCE, EndpointRegistry
from gateway.webhooks.supervisor import PUSH_KIND, Pushes

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
KINDS: Final = (OUTBOX_WORK, INTAKE_WORK, PUSH_KIND, BRIDGE_KIND, TAP_KIND)
"""Work that may be about something else afterwards."""
UP_MARGIN: Final = 2.0
"""How long a broker's links may take to be good for something, beyond ``connect_timeout``, in seconds."""
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
    for field in msgspec.structs.fields(Config):
        name, old, new = field.name, getattr(before, field.name), getattr(after, field.name)
        if name in TABLES:
            for entry in sorted({*old, *new}):
                if old.get(entry) != new.get(entry):
                    what = "added" if entry not in old else "removed" if entry not in new else "changed"
                    yield f"{name}.{entry}", what
        elif isinstance(old, msgspec.Struct):
            for inner in msgspec.structs.fields(type(old)):
                if getattr(old, inner.name) != getattr(new, inner.name):
                    yield f"{name}.{inner.name}", "changed"
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
    set_bounds: Callable[[HttpSettings], None]
    """For the connections of the HTTP port."""
    check: Callable[[Config], None]
    """What only the whole configuration can tell. Raises ConfigurationError."""


@dataclass(slots=True)
class _Plan:
    """What was prepared."""

    config: Config
    changes: list[Change]
    brokers: dict[str, Upstream]
    """The new ones, started, by name."""
    gone: list[str]
    """Brokers that are no more."""
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
        self._lock = asyncio.Lock()
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
        async with self._lock:
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
                then = _then(plan.brokers)
                await self._drop(plan)
                return Reload("checked", plan.changes, then, complete=True)
            if not plan.changes:
                for commit in plan.commit:
                    commit()
                metrics.labels("unchanged").inc()
                return Reload("unchanged", [], [], complete=True)
            self._commit(plan)
            metrics.labels("applied").inc()
            log("config.reloaded", changed=[f"{each.setting} {each.change}" for each in plan.changes][:100])
            return Reload("applied", plan.changes, _then(plan.brokers), complete=await self._follow())

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
        plan = _Plan(config, [Change(name, what, rule_of(name)[1]) for name, what in found], {}, [], [])
        rules = self._check_rules(config, plan)
        known = {*config.brokers, *(running.gateway.brokers.keys() - before.brokers.keys())}
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
        await self._check_use(config)
        plan.commit += [
            lambda: self._endpoints.update(running.endpoints.reconfigure(endpoints)),
            lambda: running.bridges.reconfigure(config.bridges),
            lambda: running.taps.reconfigure(config.taps, config.retention),
            lambda: self._note(running.gateway.subscriptions.reconfigure(config.subscriptions)),
            lambda: setattr(running.gateway, "confirm_timeout", config.http.confirm_timeout),
            lambda: running.gateway.budgets.configure(budget_bounds(config)),
            lambda: running.set_bounds(config.http),
            await threads.run(running.fronts.prepare, config.fronts, config.brokers),
            lambda: set_level(config.log_level),
            lambda: configured.warn(config),
            lambda: running.gateway.ledger.reconfigure(config.ledger.headers, config.retention),
            await running.spans.prepare(config.tracing),
        ]
        if running.gateway.peers.shared:
            running_peers = running.gateway.peers
            plan.commit.append(lambda: running_peers.configured(running_peers.digest(config)))
        await self._connect(config, plan)
        return plan

    def _check_rules(self, config: Config, plan: _Plan) -> OutboundRules:
        running, settings = self._running, config.outbound
        rules = OutboundRules(settings.allow, ports=settings.ports, plain=settings.plain)
        if settings != self.config.outbound:

            def commit() -> None:
                running.rules.replace(rules)
                for transport in running.transports:
                    transport.judge_anew()

            plan.commit.append(commit)
        return rules

    async def _check_use(self, config: Config) -> None:
        """What goes must not be in use by what the ledger has. Raises ReloadRefused, LedgerUnavailable."""
        brokers = self.config.brokers.keys() - config.brokers.keys()
        endpoints = self.config.endpoints.keys() - config.endpoints.keys()
        if not (brokers or endpoints):
            return
        ledger = self._running.gateway.ledger
        for kind, names, shape in _USERS:
            cursor: str | None = None
            while True:
                page, cursor = await ledger.list_resources(kind, cursor, 500)
                for item in page:
                    try:
                        used_brokers, used_endpoints = names(msgspec.convert(item.spec, shape))
                    except msgspec.ValidationError:
                        continue  # it does not run
                    for what, used in (("brokers", used_brokers & brokers), ("endpoints", used_endpoints & endpoints)):
                        for name in sorted(used):
                            if what == "endpoints" and await ledger.get_resource(ENDPOINT_RESOURCE, name) is not None:
                                continue  # that one takes its place
                            raise ReloadRefused(f"{what}.{name}: the {kind} {item.name!r} of the ledger works with it")
                if cursor is None:
                    break

    async def _connect(self, config: Config, plan: _Plan) -> None:
        """Make the links to brokers that are new or have other settings. One that is up must stay so.

        Raises:
            ReloadRefused: one would not.
            Overloaded: there are too many of before.
        """
        gateway, old = self._running.gateway, self.config.brokers
        made = {name: settings for name, settings in config.brokers.items() if old.get(name) != settings}
        plan.gone += sorted(old.keys() - config.brokers.keys())
        gateway.retired.check_room(len(made.keys() & old.keys()) + len(plan.gone))
        try:
            for name, settings in made.items():
                plan.brokers[name] = upstream = Upstream(name, settings)
                await upstream.start()
            await asyncio.gather(
                *(
                    upstream.wait_up(upstream.settings.connect_timeout + UP_MARGIN)
                    for name, upstream in plan.brokers.items()
                    if _works(gateway.brokers.get(name))
                )
            )
            for name, upstream in plan.brokers.items():
                if _works(gateway.brokers.get(name)) and not _works(upstream):
                    raise ReloadRefused(
                        f"brokers.{name}: it is up, and would not be with the new settings: {upstream.reason}"
                    )
        except BaseException:
            await self._drop(plan)
            raise

    async def _drop(self, plan: _Plan) -> None:
        await asyncio.gather(*(upstream.close(0.0) for upstream in plan.brokers.values()))

    # -------------------------------------------------------------------------------------------------- commit

    def _commit(self, plan: _Plan) -> None:
        """Have it count, in one go."""
        self.config = plan.config
        self._running.gateway.change_brokers(plan.brokers, plan.gone)
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
                return await gateway.ownership.reconsider(KINDS, FINISH_WITHIN)
            except LedgerUnavailable as error:
                log("config.follows_later", logging.WARNING, reason=str(error))
            except Exception as error:  # a fault of ours must not end the trying
                log("config.failed", logging.ERROR, exc_info=error)
            await backoff.wait()


def _works(upstream: Upstream | None) -> bool:
    return upstream is not None and upstream.state in (UpstreamState.UP, UpstreamState.BLOCKED)


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


def _of_bridge(settings: BridgeSettings) -> tuple[set[str], set[str]]:
    return {settings.source.broker, settings.target.broker, settings.dead_letter.broker}, set()


def _of_tap(settings: TapSettings) -> tuple[set[str], set[str]]:
    return {settings.broker, settings.dead_letter_broker}, set()


def _of_subscription(settings: SubscriptionSettings) -> tuple[set[str], set[str]]:
    return {settings.broker, settings.dead_letter_broker}, {settings.push}


_USERS: Final[Sequence[tuple[str, Callable[[Any], tuple[set[str], set[str]]], Any]]] = (
    (BRIDGE_KIND, _of_bridge, BridgeSettings),
    (TAP_KIND, _of_tap, TapSettings),
    (SUBSCRIPTION_RESOURCE, _of_subscription, SubscriptionSettings),
)
"""Kind of resource, which brokers and endpoints one works with, and what it is."""
