"""Settings: one TOML file, overridden by environment variables, overridden by command-line options.

Every setting is a field of one of the structs below, with its unit and default; ``docs/settings.md`` is checked
against them. An unknown key is refused, with the name of the key and of the table it stood in.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from msgspec import Meta

from gateway.errors import ConfigurationError
from gateway.limits import DEFAULT_BROKER_LIMITS, DEFAULT_LIMITS

DEFAULT_PORTS = {"amqp": 5672, "amqps": 5671}
VERSION_NAMES = ("0-8", "0-9-1", "0-10", "auto")

Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(ge=0)]
Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all tables."""


class HttpSettings(Settings, frozen=True):
    """``[http]``: the API, docs and console."""

    host: str = "127.0.0.1"
    """Address to listen on. Without API keys only loopback is accepted."""
    port: Port = 8080
    """0 takes any free port."""
    allowed_hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    """``Host`` headers accepted when there are no API keys (DNS rebinding)."""
    allowed_origins: tuple[str, ...] = ()
    """``Origin`` headers accepted besides those of the allowed hosts."""
    body_max: Annotated[int, Meta(ge=1024, le=1 << 30)] = 64 << 20
    """Largest request body, in octets."""
    batch_max: Annotated[int, Meta(ge=1, le=100_000)] = 10_000
    """Most messages in one batch."""
    concurrency: Annotated[int, Meta(ge=1)] = 1_000
    """Most requests under way at once; more get 503."""
    confirm_timeout: Seconds = 30.0
    """How long a publish waits for its confirm, in seconds, before it answers 504 ``outcome_unknown``."""
    leases_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    """Most messages that are out with consumers at once; then a pull answers 503."""
    drain_timeout: Seconds = 20.0
    """How long running requests may take at shutdown, in seconds."""


class OpsSettings(Settings, frozen=True):
    """``[ops]``: ``/livez``, ``/readyz`` and ``/metrics``, on a port of their own."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 8081
    """0 takes any free port."""


class EmbeddedUser(Settings, frozen=True):
    """``[[embedded.users]]``"""

    name: str
    """Login."""
    password: str
    """Password, in clear. For tests only, as the embedded broker is."""


class EmbeddedTls(Settings, frozen=True):
    """``[embedded.tls]``: a second port, with TLS."""

    port: Port = 5669
    """0 takes any free port."""
    cert_file: str = ""
    """Certificate chain of the server (PEM); empty: there is no such port."""
    key_file: str = ""
    """Its key (PEM); empty: it is in ``cert_file``."""


class EmbeddedSettings(Settings, frozen=True):
    """``[embedded]``: the in-memory broker, for development and tests."""

    enabled: bool = False
    """Whether it runs. Without a configuration file it does."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 5670
    """0 takes any free port."""
    users: tuple[EmbeddedUser, ...] = (EmbeddedUser(name="guest", password="guest"),)  # noqa: S106  # documented default of a development broker
    """Who may log in."""
    queue_memory: Annotated[int, Meta(ge=1 << 20)] = 256 << 20
    """Most octets of messages held over all queues. Near it publishers are asked to stop, then they are refused or
    not read from."""
    connections: Annotated[int, Meta(ge=1)] = DEFAULT_BROKER_LIMITS.connections
    """Most connections at once, per port."""
    connections_per_address: Annotated[int, Meta(ge=1)] = DEFAULT_BROKER_LIMITS.connections_per_address
    """Most of them from one remote address."""
    handshake_timeout: Annotated[float, Meta(gt=0)] = DEFAULT_LIMITS.handshake_timeout
    """How long a client may take from connecting to an open connection, TLS included, in seconds."""
    stuck_timeout: Seconds = DEFAULT_BROKER_LIMITS.stuck_timeout
    """How long a client may not read what waits for it, or leave a message unfinished and send nothing, in seconds.
    Then it is cut off. 0: for ever."""
    ack_timeout: Seconds = DEFAULT_BROKER_LIMITS.ack_timeout
    """How long a delivery may be unacknowledged, in seconds. Then its channel is closed. 0: for ever."""
    tls: EmbeddedTls = EmbeddedTls()


class LedgerSettings(Settings, frozen=True):
    """``[ledger]``: the SQL database that knows what happened to every message."""

    url: str = ""
    """``sqlite:///path`` or ``postgresql://user:password@host/database``; empty: ``ledger.db`` in the data folder."""
    intent: Literal["needed", "always"] = "needed"
    """``always`` writes an intent before every publish, not only where a key must be remembered."""
    shard_lease: Annotated[float, Meta(ge=1)] = 15.0
    """How long a silent process keeps its shard, in seconds."""
    key_retention: Annotated[float, Meta(ge=60)] = 86_400.0
    """How long an Idempotency-Key is remembered, in seconds."""
    group_max: Annotated[int, Meta(ge=1, le=100_000)] = 5_000
    """Most rows of one group commit."""
    queue_max: Annotated[int, Meta(ge=1)] = 50_000
    """Most rows waiting for a commit; then callers wait."""


class TlsSettings(Settings, frozen=True):
    """``[brokers.NAME.tls]``"""

    ca_file: str = ""
    """Authorities that may sign the broker's certificate (PEM); empty: the system's."""
    cert_file: str = ""
    """Client certificate (PEM)."""
    key_file: str = ""
    """Key of the client certificate (PEM)."""
    server_name: str = ""
    """Name to verify; empty: the host of the URL."""
    dangerous_disable_verification: bool = False
    """Accept any certificate."""


class BrokerSettings(Settings, frozen=True):
    """``[brokers.NAME]``: one virtual host of one broker."""

    url: str
    """``amqp[s]://user:password@host:port/vhost?version=0-8|0-9-1|0-10|auto``"""
    password_file: str = ""
    """File that holds the password, instead of the URL."""
    tls: TlsSettings = TlsSettings()
    """For ``amqps``."""
    dialect: Literal["", "rabbitmq", "qpid", "published"] = ""
    """Overrides what the server's product name says. ``published``: 0-8 as its definition has it."""
    mechanisms: tuple[str, ...] = ()
    """SASL mechanisms allowed, best first; empty: SCRAM-SHA-256, SCRAM-SHA-1, CRAM-MD5, PLAIN, AMQPLAIN."""
    allow_plain_without_tls: bool = False
    """PLAIN and AMQPLAIN on a stream that is neither TLS nor loopback."""
    heartbeat: Seconds = 20.0
    """Heartbeat asked for, in seconds; 0 is off."""
    connect_timeout: Annotated[float, Meta(gt=0)] = 10.0
    """From the first packet to an open connection, in seconds."""
    reconnect_min: Annotated[float, Meta(gt=0)] = 0.5
    """First pause before a reconnect, in seconds; doubled each time, with full jitter."""
    reconnect_max: Annotated[float, Meta(gt=0)] = 30.0
    """Longest pause before a reconnect, in seconds."""
    publish_window: Annotated[int, Meta(ge=1, le=65_535)] = 1_000
    """Most publishes without an outcome on one channel."""
    publish_window_octets: Annotated[int, Meta(ge=1 << 16)] = 32 << 20
    """Most octets of bodies without an outcome on one broker."""
    publish_channels: Annotated[int, Meta(ge=1, le=1_000)] = 64
    """Most channels that publish (one per exchange and window, the longest idle goes)."""
    publish_repeat: bool = True
    """Whether publishes in flight are sent again, marked as possible duplicates, when the broker closes their channel
    over one of them; without that their outcome is unknown."""
    lease_channels: Annotated[int, Meta(ge=1, le=10_000)] = 500
    """Most channels that hold leases."""
    lease_max: Annotated[float, Meta(ge=10, le=1_500)] = 1_500.0
    """Longest broker lease, extensions included, in seconds; stays below the broker's own delivery time-out."""
    message_max: Annotated[int, Meta(ge=1024, le=1 << 30)] = 16 << 20
    """Largest message body, in octets, in both directions."""
    annotate: bool = True
    """Whether messages get the reserved header ``x-gateway`` with the gateway's id."""
    required: bool = False
    """Whether the gateway is only ready while this broker is up."""


class ApiKeySettings(Settings, frozen=True):
    """``[[api_keys]]``"""

    name: str
    """Who uses it; appears in logs and in the ledger."""
    sha256: str = ""
    """SHA-256 of the key, in hex."""
    key: str = ""
    """The key itself; prefer ``sha256`` or ``key_file``."""
    key_file: str = ""
    """File that holds the key."""
    scopes: tuple[str, ...] = ("admin",)
    """``publish:BROKER/EXCHANGE``, ``consume:BROKER/QUEUE``, ``admin``; ``*`` stands for any one part."""


class SubscriptionSettings(Settings, frozen=True):
    """``[subscriptions.NAME]``, and the body of ``PUT /v1/subscriptions/{name}``."""

    broker: str
    """A broker's name."""
    queue: str
    """A queue of that broker."""
    lease: Literal["broker"] = "broker"
    """Who holds a message that is out: the broker, unacknowledged."""
    ack_deadline_seconds: Annotated[int, Meta(ge=10, le=600)] = 30
    """How long a message is leased unless the pull asks otherwise, in seconds."""
    dead_letter_exchange: str = ""
    """Where rejected messages go if the broker does not dead-letter by itself, or cannot say whether the queue does;
    with an empty routing key too, they are only dead-lettered natively."""
    dead_letter_routing_key: str = ""
    """Routing key at the dead-letter exchange; empty with a default exchange: none."""


class Config(Settings, frozen=True):
    """The whole file."""

    http: HttpSettings = HttpSettings()
    ops: OpsSettings = OpsSettings()
    embedded: EmbeddedSettings = EmbeddedSettings()
    ledger: LedgerSettings = LedgerSettings()
    data_dir: str = "./gateway-data"
    """Folder of the SQLite ledger."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe lines that are logged."""
    brokers: dict[Name, BrokerSettings] = {}
    api_keys: tuple[ApiKeySettings, ...] = ()
    subscriptions: dict[Name, SubscriptionSettings] = {}


class BrokerUrl(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's URL, taken apart and unquoted."""

    secure: bool
    host: str
    port: int
    user: str
    password: str
    virtual_host: str
    version: str
    """One of VERSION_NAMES."""


def parse_broker_url(url: str) -> BrokerUrl:
    """Take ``amqp[s]://user:password@host:port/vhost?version=…`` apart.

    No path and the path ``/`` both mean the virtual host ``/``; any other virtual host is percent-encoded.

    Raises:
        ConfigurationError: the URL is wrong; its password is never part of the text.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigurationError(f"broker URL: {error}") from None
    if parts.scheme not in DEFAULT_PORTS:
        raise ConfigurationError(f"broker URL: scheme is {parts.scheme!r}, not amqp or amqps")
    if not parts.hostname:
        raise ConfigurationError("broker URL: no host")
    if parts.fragment:
        raise ConfigurationError("broker URL: a '#' must be written %23")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    version = query.pop("version", "auto")
    if version not in VERSION_NAMES:
        raise ConfigurationError(f"broker URL: version is {version!r}, not one of {', '.join(VERSION_NAMES)}")
    if query:
        raise ConfigurationError(f"broker URL: unknown option {next(iter(query))!r}")
    path = parts.path[1:] if parts.path.startswith("/") else parts.path
    if "/" in path:
        raise ConfigurationError("broker URL: a '/' in the virtual host must be written %2F")
    return BrokerUrl(
        secure=parts.scheme == "amqps",
        host=parts.hostname,
        port=port if port is not None else DEFAULT_PORTS[parts.scheme],
        user=unquote(parts.username) if parts.username is not None else "guest",
        password=unquote(parts.password) if parts.password is not None else "guest",
        virtual_host=unquote(path) or "/",
        version=version,
    )


ENVIRONMENT: dict[str, tuple[str, ...]] = {
    "GATEWAY_HTTP_PORT": ("http", "port"),
    "GATEWAY_OPS_PORT": ("ops", "port"),
    "GATEWAY_AMQP_PORT": ("embedded", "port"),
    "GATEWAY_DATA_DIR": ("data_dir",),
    "GATEWAY_LEDGER_URL": ("ledger", "url"),
    "GATEWAY_LOG_LEVEL": ("log_level",),
}
"""Variable -> setting. ``GATEWAY_CONFIG`` names the file."""


def load(
    path: str | Path | None,
    environ: dict[str, str] | os._Environ[str] = os.environ,
    overrides: dict[str, Any] | None = None,
) -> Config:
    """Read the configuration file (None: development defaults), then the environment, then ``overrides``
    (dotted setting name to value; None values are passed over).

    Raises:
        ConfigurationError: naming the file, the setting and what is wrong with it.
    """
    document: dict[str, Any] = {}
    where = "configuration"
    if path is not None:
        where = str(path)
        try:
            document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(f"{where}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{where}: {error}") from None
    for variable, setting in ENVIRONMENT.items():
        if (text := environ.get(variable)) is not None:
            _assign(document, setting, int(text) if setting[-1] == "port" and text.isdigit() else text)
    for name, value in (overrides or {}).items():
        if value is not None:
            _assign(document, tuple(name.split(".")), value)
    try:
        config = msgspec.convert(document, Config)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    for name, broker in config.brokers.items():
        try:
            parse_broker_url(broker.url)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: brokers.{name}.url: {error}") from None
    for name, subscription in config.subscriptions.items():
        if subscription.broker not in config.brokers:
            raise ConfigurationError(
                f"{where}: subscriptions.{name}.broker: there is no broker {subscription.broker!r}"
            )
    return config


def _assign(document: dict[str, Any], setting: tuple[str, ...], value: Any) -> None:
    table = document
    for part in setting[:-1]:
        table = table.setdefault(part, {})
    table[setting[-1]] = value
