"""The object graph of ``gateway serve``, from the configuration to open ports and back.

Start: the operations port, embedded broker, ledger, brokers, API, and last the API's port, so that nobody is answered
before there is something to answer with. Stop: not ready, for ``http.drain_delay`` seconds; then in reverse: no more
work is taken, requests under way finish, leases go back, links close, the ledger writes what waits.

A process may have only a part of this (``role``). ``api`` takes no work that one process at a time may do; ``worker``
opens no port for the API, and answers for its work at the peer port.

Without a configuration file this is a development tool: the embedded broker runs and is offered once in each
version, on loopback only.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import ipaddress
import json
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
import uvicorn

from gateway import __version__
from gateway.access import configured
from gateway.access.access import Access
from gateway.access.heads import Heads
from gateway.access.tokens import SET_MAX
from gateway.access.trail import Trail
from gateway.api.about.ops import Ops
from gateway.api.app import Api
from gateway.api.http.accepting import TlsListener
from gateway.api.http.browsers import LOCAL_HOSTS, Sites
from gateway.api.http.connections import Connections
from gateway.api.http.guard import Bounds, GuardedProtocol, guarded
from gateway.api.http.proxies import Proxies
from gateway.api.resources.peers import PeerPort
from gateway.bridges import BridgeSupervisor
from gateway.broker.listing import queues_of
from gateway.broker.logins import open_to_strangers
from gateway.broker.server import EmbeddedBroker
from gateway.broker_store import BrokerStore
from gateway.budgets import MOST, Budgets, Holdings
from gateway.config import (
    LOCAL_BROKERS,
    ApiKeySettings,
    BrokerSettings,
    Config,
    EmbeddedSettings,
    EmbeddedUser,
    HttpSettings,
    asks_for_credentials,
    budget_bounds,
)
from gateway.core import Gateway
from gateway.core.leasing.ack_ids import load_key
from gateway.core.work.peers import Peers, digest, shared_secret
from gateway.durable import make_folder
from gateway.errors import ConfigurationError, GatewayError
from gateway.front.fronts import Fronts, check_fronts
from gateway.ledger import Ledger
from gateway.ledger.access.api_keys import KEYS_PURPOSE, KeyMacs
from gateway.ledger.access.audit import PURPOSE
from gateway.management import QueueList
from gateway.memory import given_back
from gateway.observing import collector
from gateway.observing.telemetry import Metrics, log, set_up_logging, settle_lines
from gateway.outbound import DEFAULT_OUTBOUND_LIMITS, BrokerGuard, GuardedTransport, OutboundRules
from gateway.reload import Reloads, Running
from gateway.replays import Replays
from gateway.runtime.clock import clock
from gateway.runtime.threads import SWITCH_INTERVAL, threads
from gateway.taps import TapSupervisor
from gateway.transports.tls import ServerTls
from gateway.upstreams import Upstream
from gateway.webhooks.attempts.sender import Sender
from gateway.webhooks.attempts.traces import PushTraces
from gateway.webhooks.settings.endpoints import EndpointRegistry
from gateway.webhooks.settings.secrets import Seals, load_seals
from gateway.webhooks.supervisor import Pushes

DEFAULT_HTTP: Final = HttpSettings(connections_per_address=0)
"""For the ports that are for machines of one's own."""
HANDSHAKE_TIMEOUT: Final = 5.0
"""How long the TLS handshake of a caller may take, in seconds."""
RENEW_EVERY: Final = 2.0
"""How often files of certificates are looked at, in seconds."""
SETTLE_LINES_EVERY: Final = 5.0
"""How often the log is asked for lines that it withheld, in seconds."""
CLOSE_TIMEOUT: Final = 4.0
"""How long confirms and events may still take once the last request is answered, in seconds."""
COLLECTOR: Final = (50_000, 20, 50)
"""Thresholds of the garbage collector. A batch makes ten objects per message that all live until it is answered; with
the default of 700 the collector looks through them again and again, which was half of the price of a batch."""
TICKS: Final = 10
"""Of uvicorn's in a second."""
LOOPBACK: Final = ("127.0.0.0/8", "::1", "localhost")
"""Whom a development gateway may call besides. Its own ports stay denied."""
TRY_OUT: Final = "try-out"
"""Name of the one caller and of the one AMQP user of a try-out."""
UP_TIMEOUT: Final = 5.0
"""How long ``running`` waits for the embedded broker's links, in seconds."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a running gateway listens. ``http`` is None in the role ``worker``, ``amqp`` without embedded broker."""

    http: int | None
    ops: int
    amqp: int | None
    fronts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By the name of the front."""

    def as_dict(self) -> dict[str, int]:
        """For ``--ports-file``."""
        ports = {"http": self.http, "ops": self.ops, "amqp": self.amqp}
        ports |= {f"front {name}": port for name, port in self.fronts.items()}
        return {name: port for name, port in ports.items() if port is not None}


@dataclass(frozen=True, slots=True)
class App:
    """A running gateway."""

    config: Config
    """As it was at the start; ``reloads.config`` is what counts now."""
    gateway: Gateway
    ports: Ports
    reloads: Reloads
    trail: Trail | None = None
    """The audit log; None: nobody is asked who they are."""

    @property
    def url(self) -> str:
        """Of the HTTP API; empty: this process serves none."""
        if self.ports.http is None:
            return ""
        scheme = "https" if self.config.http.tls.cert_file else "http"
        return f"{scheme}://{_literal(self.config.http.host)}:{self.ports.http}"

    @property
    def ops_url(self) -> str:
        """Of the operations port."""
        return f"http://{_literal(self.config.ops.host)}:{self.ports.ops}"

    def ready_line(self) -> str:
        """The line that says that it is ready, and names the ports."""
        line = "ready:" if self.ports.http is None else f"ready: http {self.url}"
        line += f" ops {self.ops_url}"
        if self.ports.amqp is not None:
            line += f" amqp amqp://{_literal(self.config.embedded.host)}:{self.ports.amqp}"
        if self.ports.http is not None:
            line += f" console {self.url}/console"
        return line


def with_development(config: Config) -> Config:
    """The configuration that stands for no file: as given, with the embedded broker and its three names, and with
    endpoints on this machine."""
    return msgspec.structs.replace(
        config,
        embedded=msgspec.structs.replace(config.embedded, enabled=True),
        outbound=msgspec.structs.replace(
            config.outbound,
            allow=(*config.outbound.allow, *LOOPBACK),
            broker_allow=(*config.outbound.broker_allow, *LOOPBACK),
        ),
    )


def with_try_out(config: Config, key: str, password: str) -> Config:
    """The development configuration on all addresses, for a container: open to callers with ``key`` and to AMQP clients
    that log in as :data:`TRY_OUT` with ``password``, and to nobody else."""
    config = with_development(config)
    return msgspec.structs.replace(
        config,
        http=msgspec.structs.replace(config.http, host="0.0.0.0"),  # noqa: S104  # behind the key
        api_keys=(ApiKeySettings(name=TRY_OUT, key=key),),
        access=msgspec.structs.replace(config.access, required="always"),
        embedded=msgspec.structs.replace(
            config.embedded,
            host="0.0.0.0",  # noqa: S104  # behind the password
            users=(EmbeddedUser(TRY_OUT, password),),
            loopback_users=(),
        ),
    )


async def run(
    config: Config,
    ports_file: str | Path | None = None,
    ready: Callable[[str], None] | None = None,
    *,
    migrate: bool | None = None,
    read: Callable[[], Config] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT, and ``http.drain_delay`` longer; returns the exit status.

    Args:
        ports_file: where the ports are written as JSON once they are open.
        ready: is called with the line that says so.
        read: reads the configuration again, on SIGHUP and over HTTP; None: it cannot be read again, and SIGHUP ends
            the process as it does any other.
        migrate: bring the ledger's schema up to date first; None: on SQLite.

    Raises:
        GatewayError: it could not start.
    """
    set_up_logging(config.log_level)
    if read is not None and sys.platform != "win32":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something that could be changed
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        async with running(config, migrate=migrate, read=read) as app, _reloading(app if read else None):
            if ports_file is not None:
                await threads.run(_write_whole, Path(ports_file), json.dumps(app.ports.as_dict()) + "\n")
            log("gateway.ready", ports=app.ports.as_dict())
            if ready is not None:
                ready(app.ready_line())
            await stop.wait()
            stop.clear()
            delay = app.reloads.config.http.drain_delay if config.role != "worker" else 0.0
            log("gateway.stopping", delay=delay)
            app.gateway.leave()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), delay)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    log("gateway.stopped")
    return 0


def prepare_interpreter() -> None:
    """Set the collector and the switches between threads for a process that is a gateway. Call it after imports."""
    gc.freeze()  # what is imported stays
    gc.set_threshold(*COLLECTOR)
    sys.setswitchinterval(SWITCH_INTERVAL)


def serve(
    config: Config,
    ports_file: str | Path | None = None,
    ready: Callable[[str], None] | None = None,
    *,
    migrate: bool | None = None,
    read: Callable[[], Config] | None = None,
) -> int:
    """:func:`run` on a loop of its own (uvloop where there is one), in a process of its own."""
    prepare_interpreter()
    if sys.platform == "win32":
        return asyncio.run(run(config, ports_file, ready, migrate=migrate, read=read))
    import uvloop  # not on every platform

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(config, ports_file, ready, migrate=migrate, read=read))


@asynccontextmanager
async def _reloading(app: App | None) -> AsyncIterator[None]:
    """Read the configuration again on SIGHUP, as long as the block. One that comes meanwhile is not forgotten."""
    if app is None or sys.platform == "win32":
        yield
        return
    loop, asked = asyncio.get_running_loop(), asyncio.Event()

    async def reload() -> None:
        while True:
            await asked.wait()
            asked.clear()
            try:
                await app.reloads.reload()
                if app.trail is not None:
                    await app.trail.changed("reload_configuration", object="SIGHUP", result=200)
            except GatewayError:
                pass  # it is in the log
            except Exception as error:  # a fault of ours must not end the listening
                log("config.failed", logging.ERROR, exc_info=error)

    task = loop.create_task(reload(), name="reload on SIGHUP")
    loop.add_signal_handler(signal.SIGHUP, asked.set)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # one that comes now must not cut the end short
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def running(
    config: Config, *, migrate: bool | None = None, read: Callable[[], Config] | None = None
) -> AsyncIterator[App]:
    """A gateway that runs as long as the block. ``read``: the configuration as it is by then, for reloads.

    Raises:
        ConfigurationError: a setting is wrong, or a port is taken.
        LedgerUnavailable: the ledger cannot be opened.
    """
    check_configuration(config)
    metrics = Metrics(__version__, config.ops.metrics_names)
    budgets = Budgets(budget_bounds(config), {"connections": most_connections()})
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        stack.callback(loop.set_exception_handler, loop.get_exception_handler())
        loop.set_exception_handler(metrics.report_failures)
        http_socket = None
        if config.role != "worker":
            http_socket = stack.enter_context(contextlib.closing(_listen(config.http.host, config.http.port, "http")))
        ops_socket = stack.enter_context(contextlib.closing(_listen(config.ops.host, config.ops.port, "ops")))
        ops = Ops(sites=Sites(config.http, *LOCAL_HOSTS), is_local=_literal(config.ops.host) in LOCAL_HOSTS)
        await stack.enter_async_context(
            _serving(ops, ops_socket, 1.0, _bounds(DEFAULT_HTTP, budgets["ops_connections"]))
        )
        embedded = await _start_embedded(config.embedded, metrics, budgets, stack)
        amqp_ports = _ports_of(embedded)
        amqp = amqp_ports[0] if amqp_ports else None
        listeners = [ops_socket] if http_socket is None else [http_socket, ops_socket]
        spans = collector.Collector(metrics, [each.getsockname()[:2] for each in listeners])
        (await spans.prepare(config.tracing))()
        stack.push_async_callback(spans.close)
        stack.enter_context(_settling_lines())
        stack.enter_context(given_back())
        brokers = {name: Upstream(name, settings) for name, settings in _brokers(config, amqp).items()}
        data = await threads.run(_data_folder, Path(config.data_dir))
        seals = await threads.run(load_seals, config.ledger.secrets_file, data / "secrets.key")
        ops.waits_for = "the ledger"
        ledger = await _open_ledger(config, migrate, seals)
        stack.push_async_callback(ledger.close)
        ledger.history.start()
        peers, ack_key = await _peers(config, ledger, metrics, data)
        gateway = Gateway(
            ledger,
            brokers,
            metrics,
            subscriptions=config.subscriptions,
            ack_key=ack_key,
            peers=peers,
            confirm_timeout=config.http.confirm_timeout,
            intent_always=config.ledger.intent == "always",
            takes_work=config.role != "api",
            tracer=spans.tracer,
            budgets=budgets,
        )
        bridges = BridgeSupervisor(gateway, config.bridges)
        taps = TapSupervisor(gateway, config.taps, config.retention)
        gateway.inventory.sources += [bridges.queues, taps.queues]
        gateway.inventory.own = [listener.getsockname()[:2] for listener in listeners]
        if embedded is not None:
            gateway.inventory.embedded = partial(_embedded_queues, embedded)
        rules, transport = _outbound(config, listeners, amqp_ports, gateway.budgets)
        stack.push_async_callback(transport.aclose)
        guard = BrokerGuard(rules.beside(config.outbound.broker_allow, "broker_allow"))
        store = BrokerStore(gateway, _brokers(config, amqp), seals, guard)
        await store.load()
        configured.warn(config, gateway.brokers)
        sender = Sender(transport, traces=PushTraces(spans.tracer, gateway.brokers.get))
        stack.push_async_callback(sender.close)
        if peers.shared and not config.ledger.secrets_file:
            log(
                "secrets.key_not_shared", logging.WARNING, key=seals.name,
                detail="ledger.secrets_file is not set: what this gateway seals, others on this ledger cannot open, "
                "and its rows of the audit log they cannot check",
            )  # fmt: skip
        endpoints = EndpointRegistry(ledger, config.endpoints, sender, seals, origin=config.outbound.origin)
        heads = Heads(ledger, config.audit, data, metrics, partial(_tell_head, endpoints, config.audit.send_endpoint))
        await heads.start()
        stack.push_async_callback(heads.close)
        pushes = Pushes(
            gateway, endpoints, sender, places=config.outbound.requests
        )  # fmt: skip
        gateway.on_owed.append(pushes.wake)
        replays = Replays(gateway, endpoints, sender)
        issuer = _issuer(rules, stack)
        access = Access(config, ledger, issuer)
        await stack.enter_async_context(access.running())
        api = Api(
            gateway, config.http, config.api_keys, bridges, endpoints=endpoints, pushes=pushes, replays=replays,
            taps=taps, access=access,
        )  # fmt: skip
        peer_port = None
        if peers.shared:
            of_cluster = _bounds(DEFAULT_HTTP, budgets["cluster_connections"])
            peer_port = await stack.enter_async_context(_peer_port(config, peers, api, rules, of_cluster))
        await gateway.start(LOCAL_BROKERS if amqp is not None else ())
        stack.push_async_callback(gateway.close, CLOSE_TIMEOUT)
        api.brokers = store
        store.begin()
        stack.push_async_callback(store.close)
        stack.push_async_callback(bridges.close, CLOSE_TIMEOUT)
        stack.push_async_callback(taps.close, CLOSE_TIMEOUT)
        if amqp is not None:
            await asyncio.gather(*(brokers[name].wait_up(UP_TIMEOUT) for name in LOCAL_BROKERS if name in brokers))
        await endpoints.start()
        stack.push_async_callback(endpoints.close)
        stack.push_async_callback(pushes.close, CLOSE_TIMEOUT)
        pushes.begin()
        stack.push_async_callback(replays.close, CLOSE_TIMEOUT)
        replays.begin()
        await bridges.start()
        await taps.start()
        fronts = Fronts(config.fronts if config.role != "worker" else {}, _brokers(config, amqp), metrics, gateway)
        stack.push_async_callback(fronts.stop)
        await fronts.start()
        api.fronts = fronts.fronts
        for name, port in fronts.ports.items():
            host = config.fronts[name].host
            rules.listens("127.0.0.1" if host == "localhost" else host, port)
        bounds = _bounds(config.http, budgets["connections"])
        if http_socket is not None:
            await stack.enter_async_context(_serving(api, http_socket, config.http.drain_timeout, bounds, config.http))
        live = Running(
            gateway, bridges, taps, endpoints, pushes, access, api, spans, rules, (transport, issuer), issuer, fronts,
            store, set_bounds=lambda http: _set_bounds(bounds, peer_port, http), check=check_configuration,
        )  # fmt: skip
        reloads = api.reloader = Reloads(config, live, read)
        stack.push_async_callback(reloads.close)
        ops.begin(gateway)
        stack.callback(gateway.drain)
        stack.callback(bridges.hold)
        stack.callback(taps.hold)
        if http_socket is not None and not access.required:
            log("http.development", detail="no API keys: loopback only, Host and Origin are checked")
        http = None if http_socket is None else _port(http_socket)
        yield App(config, gateway, Ports(http, _port(ops_socket), amqp, fronts.ports), reloads, access.trail)


# ---------------------------------------------------------------------------------------------------- pieces


def check_configuration(config: Config) -> None:
    """What only the whole configuration can tell. Raises ConfigurationError."""
    if config.role != "all" and not config.ledger.url.startswith("postgres"):
        raise ConfigurationError(
            f"role is {config.role!r}, and SQLite serves one process: set ledger.url to a PostgreSQL, or role to 'all'"
        )
    if config.role != "worker" and not asks_for_credentials(config) and not _is_loopback(config.http.host):
        raise ConfigurationError(
            f"http.host is {config.http.host!r}: without api_keys the gateway listens on loopback only"
        )
    if config.tracing.endpoint:
        collector.check(config.tracing)
    taken = sorted(LOCAL_BROKERS.keys() & config.brokers.keys()) if config.embedded.enabled else []
    if taken:
        raise ConfigurationError(f"brokers.{taken[0]}: the name belongs to the embedded broker")
    configured.check(config)
    check_fronts(config.fronts)
    Proxies(config.http.trusted_proxies)


def most_connections() -> int:
    """Return how many connections the API may hold, by the files that the process may open: half of them. The process
    has its soft limit raised to its hard one."""
    try:
        import resource  # not on every platform
    except ImportError:
        return MOST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # it stays as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if files == resource.RLIM_INFINITY else max(10, files // 2)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _start_embedded(
    settings: EmbeddedSettings, metrics: Metrics, budgets: Budgets, stack: AsyncExitStack
) -> EmbeddedBroker | None:
    """The embedded broker; None: it does not run."""
    if not settings.enabled:
        return None
    for reason in open_to_strangers(settings):
        log("embedded.open_to_strangers", logging.WARNING, host=settings.host, reason=reason)
    broker = EmbeddedBroker(settings, metrics=metrics, budgets=budgets)
    try:
        await broker.start()
    except OSError as error:
        tls = f" or embedded.tls.port {settings.tls.port}" if settings.tls.cert_file else ""
        another = "Choose another one: --amqp-port, embedded.port or GATEWAY_AMQP_PORT"
        raise ConfigurationError(f"embedded.port {settings.port}{tls}: {error.strerror}. {another}") from None
    stack.push_async_callback(broker.stop)
    return broker


def _ports_of(broker: EmbeddedBroker | None) -> tuple[int, ...]:
    """The ports of the embedded broker, without TLS and with it; none: it does not run."""
    if broker is None:
        return ()
    return (broker.port, broker.tls_port) if broker.settings.tls.cert_file else (broker.port,)


def _embedded_queues(broker: EmbeddedBroker, name: str, rows_max: int) -> QueueList | None:
    """The queues of the embedded broker, by one of its names; None: the name is another broker's."""
    return queues_of(broker.broker, "/", rows_max) if name in LOCAL_BROKERS else None


def _brokers(config: Config, amqp: int | None) -> dict[str, BrokerSettings]:
    brokers = dict(config.brokers)
    if amqp is not None:
        user = config.embedded.users[0]
        login = f"{quote(user.name, safe='')}:{quote(user.password, safe='')}"
        for name, version in LOCAL_BROKERS.items():
            url = f"amqp://{login}@{_literal(config.embedded.host)}:{amqp}/?version={version}"
            brokers[name] = BrokerSettings(
                url=url, reconnect_min=0.1, reconnect_max=5.0, message_max=config.embedded.message_max
            )
    return brokers


def _outbound(
    config: Config, listeners: Sequence[socket.socket], amqp: Sequence[int], budgets: Budgets
) -> tuple[OutboundRules, GuardedTransport]:
    """The transport for requests to URLs that others set; and its rules, to which the gateway's own ports may be
    added."""
    settings = config.outbound
    rules = OutboundRules(settings.allow, ports=settings.ports, plain=settings.plain)
    for listener in listeners:
        rules.listens(*listener.getsockname()[:2])
    host = config.embedded.host
    for port in amqp:
        rules.listens("127.0.0.1" if host == "localhost" else host, port)
    # Who may call whom how often is said by the endpoints; here is only what all of them may take together.
    # Requests that callers wait for have connections of their own, so that none is missing for webhooks.
    most = settings.requests + budgets["outbound_requests"].total
    limits = dataclasses.replace(DEFAULT_OUTBOUND_LIMITS, connections=most, connections_per_site=most)
    return rules, GuardedTransport(rules, limits, lookups=budgets["lookups"])


def _issuer(rules: OutboundRules, stack: AsyncExitStack) -> GuardedTransport:
    """The transport for the keys of an issuer of tokens."""
    limits = dataclasses.replace(DEFAULT_OUTBOUND_LIMITS, body_kept=SET_MAX, connections=2, connections_per_site=2)
    transport = GuardedTransport(rules, limits)
    stack.push_async_callback(transport.aclose)
    return transport


def _data_folder(path: Path) -> Path:
    """The data folder, made if need be, readable by its owner only."""
    try:
        make_folder(path, 0o700)
    except OSError as error:
        raise ConfigurationError(f"data_dir {path}: {error.strerror}") from None
    return path.resolve()


def ledger_url(config: Config) -> str:
    """The ledger's database: as it is set, else a file in the data folder, which is made if need be.

    Raises:
        ConfigurationError: the data folder cannot be made.
    """
    return config.ledger.url or f"sqlite:///{_data_folder(Path(config.data_dir)) / 'ledger.db'}"


def audit_keys(config: Config, *, make: bool = True) -> dict[str, bytes]:
    """The keys of the MACs of the audit log, by name; the first one makes them. ``make``: a key in the data folder,
    where there is none and ``ledger.secrets_file`` does not say another; False: then there are none.

    Raises:
        ConfigurationError: the file of keys is missing or wrong.
    """
    file, data = config.ledger.secrets_file, Path(config.data_dir)
    if not file and make:
        data = _data_folder(data)
    otherwise = data / "secrets.key"
    return load_seals(file, otherwise).derived(PURPOSE) if file or make or otherwise.exists() else {}


def key_macs(config: Config, seals: Seals) -> KeyMacs:
    """The MACs of API keys in the ledger. Where processes share a ledger and no file of keys, there are none: what one
    of them writes, the others could not check."""
    is_shared = not ledger_url(config).startswith("sqlite") and not config.ledger.secrets_file
    return KeyMacs({} if is_shared else seals.derived(KEYS_PURPOSE))


async def _open_ledger(config: Config, migrate: bool | None, seals: Seals) -> Ledger:
    url = await threads.run(ledger_url, config)
    if migrate is None:
        migrate = url.startswith("sqlite")
    ledger = await Ledger.open(
        url, config.ledger, owner=_process(), migrate=migrate, retention=config.retention,
        audit_keys=seals.derived(PURPOSE),
    )  # fmt: skip
    ledger.api_keys.macs = await threads.run(key_macs, config, seals)
    return ledger


async def _tell_head(endpoints: EndpointRegistry, name: str, head: Mapping[str, Any]) -> str:
    """Send the head of the audit log to an endpoint; why it was not taken, or empty."""
    try:
        outcome = await endpoints.tell(name, "amqp.audit-head", head)
    except GatewayError as error:
        return str(error)
    if outcome.error is not None:
        return str(outcome.error)
    return "" if outcome.status is not None and 200 <= outcome.status <= 299 else f"status {outcome.status}"


@asynccontextmanager
async def _peer_port(
    config: Config, peers: Peers, api: Api, rules: OutboundRules, bounds: Bounds
) -> AsyncIterator[PeerPort]:
    """Be there for the other processes as long as the block."""
    host = config.cluster.host
    with contextlib.closing(_listen(host, config.cluster.port, "cluster")) as listener:
        peers.reached_at(f"http://{_literal(host)}:{_port(listener)}")
        rules.listens(*listener.getsockname()[:2])
        port = PeerPort(peers, api, config.http.body_max)
        async with _serving(port, listener, 1.0, bounds):
            yield port


def _process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


async def _peers(config: Config, ledger: Ledger, metrics: Metrics, data: Path) -> tuple[Peers, bytes]:
    """The other processes on the ledger; and the key of ack ids, which all of them know."""
    if not ledger.work.shared:
        return Peers(ledger, metrics), await threads.run(load_key, data / "ack-ids.key")
    secret = await shared_secret(ledger, config.cluster)
    peers = Peers(
        ledger, metrics, config.cluster, name=_process(), config=digest(config, secret), secret=secret
    )  # fmt: skip
    return peers, peers.key("ack-ids")


def _listen(host: str, port: int, name: str) -> socket.socket:
    """A bound socket, which nobody can connect to yet: the port is reserved, and known, before there is anything behind
    it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"{name}.port {port} on {host}: {error.strerror or error}{_another(name)}") from None
    return listener


def _another(name: str) -> str:
    """How to choose another port than the one that is taken."""
    options = {"http": "--http-port, ", "ops": "--ops-port, "}
    return f". Choose another one: {options.get(name, '')}{name}.port or GATEWAY_{name.upper()}_PORT"


def _port(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


class _Server(uvicorn.Server):
    """uvicorn, with signals left to us, and told of its end: it would ask ten times a second whether that has come."""

    def __init__(self, settings: uvicorn.Config, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(settings)
        self._tls = tls
        self._told = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; a TLS handshake may take :data:`HANDSHAKE_TIMEOUT` seconds, of which uvicorn's has sixty."""
        if self._tls is None:
            await super().startup(sockets)
            return

        made: type[Any] = self.config.http_protocol_class

        def protocol() -> GuardedProtocol:
            found: GuardedProtocol = made(config=self.config, server_state=self.server_state, app_state={})
            return found

        connections = made.bounds.connections
        listeners: list[Any] = [
            TlsListener(each, self._tls, protocol, connections, HANDSHAKE_TIMEOUT, self.config.backlog)
            for each in sockets or ()
        ]
        self.servers = listeners
        self.started = True

    def exit(self) -> None:
        """Let requests under way finish, and end. uvicorn tells the connections that are there; one that was accepted,
        or is in its handshake, is made after that, and would keep the end waiting."""
        protocol: Any = self.config.http_protocol_class
        protocol.is_ending = True
        self.should_exit = True
        self._told.set()

    async def main_loop(self) -> None:
        """Until the end: a tick each second, on which uvicorn updates the date."""
        ticks = 0
        while not await self.on_tick(ticks):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), 1.0)
            ticks += TICKS

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Signals end the whole gateway, in :func:`run`."""
        yield


def _bounds(http: HttpSettings, holdings: Holdings) -> Bounds:
    """What the connections of a port may do, and in which budget they count."""
    connections = Connections(holdings, http.connections_per_address, Proxies(http.trusted_proxies).trusts)
    return Bounds(http.head_timeout, http.body_idle, http.send_timeout, connections)


def _set_bounds(bounds: Bounds, peer_port: PeerPort | None, http: HttpSettings) -> None:
    """Have the ports do as other settings say."""
    if peer_port is not None:
        peer_port.set_body_max(http.body_max)
    other = _bounds(http, bounds.connections.holdings)
    for name in ("head", "rest", "send"):
        setattr(bounds, name, getattr(other, name))
    bounds.connections.per_address = other.connections.per_address
    bounds.connections.is_proxy = other.connections.is_proxy


@asynccontextmanager
async def _serving(
    app: Any,
    listener: socket.socket,
    drain: float,
    bounds: Bounds | None = None,
    http: HttpSettings = DEFAULT_HTTP,
) -> AsyncIterator[None]:
    """Serve on an open socket as long as the block; then let requests under way finish, for ``drain`` seconds.
    ``bounds``: what its connections may do."""
    settings = uvicorn.Config(
        app,
        http=guarded(bounds or Bounds()),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        timeout_keep_alive=max(1, round(http.idle_timeout)),
        timeout_graceful_shutdown=max(1, round(drain)),
    )
    tls = await threads.run(ServerTls, http.tls) if http.tls.cert_file else None
    server = _Server(settings, tls.context if tls is not None else None)
    port = _port(listener)
    task = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]), name=f"http {port}")
    while not server.started and not task.done():  # uvicorn has a flag and no event
        await clock.sleep(0.001)
    if task.done():
        await task
        raise ConfigurationError(f"port {port}: the server ended at once")
    renewing = asyncio.get_running_loop().create_task(_renew(tls), name=f"http {port} tls") if tls is not None else None
    try:
        yield
    finally:
        if renewing is not None:
            renewing.cancel()
        server.exit()
        await task


async def _renew(tls: ServerTls) -> None:
    """Have certificates that are renewed count, as long as we serve."""
    while True:
        await clock.sleep(RENEW_EVERY)
        try:
            if tls.renew():  # here, not in a thread: a handshake must not read what is half written
                log("http.tls_renewed")
        except ConfigurationError as error:
            log("http.tls_not_renewed", logging.WARNING, detail=str(error))


@contextlib.contextmanager
def _settling_lines() -> Iterator[None]:
    """As long as the block, have the log say soon how things that kept repeating themselves have ended."""

    async def settle() -> None:
        while True:
            await clock.sleep(SETTLE_LINES_EVERY)
            settle_lines()

    task = asyncio.get_running_loop().create_task(settle(), name="log lines")
    try:
        yield
    finally:
        task.cancel()


def _write_whole(path: Path, text: str) -> None:
    """Write the ports file so that nobody reads half of it. Raises ConfigurationError: it cannot be written."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise ConfigurationError(f"--ports-file {path}: {error.strerror}") from None


def _literal(host: str) -> str:
    """A host as URLs write it."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


logging.getLogger("uvicorn").setLevel(logging.WARNING)
