"""Settings of brokers, and their addresses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.config.base import OLD_NAME, Seconds, Settings
from gateway.errors import ConfigurationError
from gateway.versions import DRAFTS, VERSION_NAMES

LOCAL_BROKERS = {f"local-{name}": name for name in VERSION_NAMES}
"""How the embedded broker is offered: name -> version."""
DRAFT_NAMES: Final = tuple((draft.draft, draft.name) for draft in DRAFTS)
"""``dialect`` and ``version`` of a URL that names a draft."""
DEFAULT_PORTS = {"amqp": 5672, "amqps": 5671}
AUTO: Final = "auto"
"""In place of a version: the first one that the broker speaks."""


class TlsSettings(Settings, frozen=True):
    """``[brokers.NAME.tls]``"""

    ca: str = ""
    """Authorities that may sign the broker's certificate (PEM); empty: the system's."""
    ca_file: str = ""
    """The same, in a file."""
    cert: str = ""
    """Client certificate, and the chain behind it (PEM)."""
    cert_file: str = ""
    """The same, in a file."""
    key: str = ""
    """Key of the client certificate (PEM)."""
    key_file: str = ""
    """The same, in a file."""
    server_name: str = ""
    """Name to verify; empty: the host of the URL."""
    dangerous_disable_verification: bool = False
    """Accept any certificate."""


class BrokerSettings(Settings, frozen=True):
    """``[brokers.NAME]``: one virtual host of one broker."""

    RENAMED: ClassVar[Mapping[str, str]] = {"lease_max": "lease_max_seconds"}

    url: str
    """``amqp[s]://user:password@host:port/vhost?version=VERSION``: ``0-8``, ``0-9-1``, ``0-10`` and so on, or ``auto``.
    With ``&dialect=transitional`` for the draft of 0-10"""
    hosts: tuple[str, ...] = ()
    """``host`` or ``host:port`` of further nodes of the broker, tried in turn when the one before cannot be reached.
    Everything else is as in the URL."""
    password: str = ""
    """The password, instead of the URL."""
    password_file: str = ""
    """File that holds the password, instead of the URL."""
    management: str = ""
    """``http[s]://[user:password@]host[:port]`` of the broker's management API: RabbitMQ's plugin or Broker-J's HTTP
    management. `GET /v1/queues` lists all queues of the virtual host by it. Without user and password those of ``url``
    are sent. Empty: only the queues that the gateway itself knows are listed
    ([inventory](../how-to/queue-inventory.md))."""
    tls: TlsSettings = TlsSettings()
    """For ``amqps``."""
    dialect: Literal["", "rabbitmq", "qpid", "published", "transitional"] = ""
    """Overrides what the server's product name says. ``published``: 0-8 as its definition has it. ``transitional``:
    0-10 is the draft of July 2007; the URL can say so, too."""
    mechanisms: tuple[str, ...] = ()
    """SASL mechanisms allowed, best first; empty: SCRAM-SHA-256, SCRAM-SHA-1, CRAM-MD5, PLAIN, AMQPLAIN. EXTERNAL (the
    client certificate of ``tls`` says who we are) and ANONYMOUS are used only where they are named here."""
    allow_plain_without_tls: bool = False
    """PLAIN and AMQPLAIN on a stream that is neither TLS nor loopback."""
    redirect_hosts: tuple[str, ...] = ()
    """``host`` or ``host:port``, to which the broker may send us when we connect (connection.redirect of 0-8 and 0-10);
    our credentials go with us. Empty: it may not."""
    realm: Annotated[str, Meta(max_length=127)] = "/data"
    """What tickets are asked for, with ``dialect = "published"``."""
    heartbeat: Seconds = 20.0
    """Heartbeat asked for, in seconds; 0 is off."""
    connect_timeout: Annotated[float, Meta(gt=0)] = 10.0
    """From the first packet to an open connection, in seconds."""
    reconnect_min: Annotated[float, Meta(gt=0)] = 0.5
    """First pause before a reconnect, in seconds; doubled each time, with full jitter."""
    reconnect_max: Annotated[float, Meta(gt=0)] = 30.0
    """Longest pause before a reconnect, in seconds. At least ``reconnect_min``."""
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
    consume_connections: Annotated[int, Meta(ge=1, le=64)] = 8
    """Most connections for consumers: a further one is opened when those that there are have no channels left."""
    lease_max_seconds: Annotated[float, Meta(ge=10, le=1_500)] | UnsetType = UNSET
    """Longest broker lease, extensions included, in seconds; stays below the broker's own delivery time-out."""
    lease_max: Annotated[float, Meta(ge=10, le=1_500), OLD_NAME] = 1_500.0
    """Old name of ``lease_max_seconds``."""
    message_max: Annotated[int, Meta(ge=1024, le=1 << 30)] = 16 << 20
    """Largest message body, in octets, in both directions."""
    delivery_limit: Annotated[int, Meta(ge=0, le=1_000_000)] = 20
    """Smallest delivery limit of quorum queues at this broker, as its policies or its default set it: the gateway
    cannot see them. A message that was given back too often for it is kept in the ledger, dead. 0: no queue has a limit
    but those that were declared through the gateway with ``x-delivery-limit``."""
    annotate: bool = True
    """Whether messages get the reserved header ``x-gateway`` with the gateway's id."""
    required: bool = False
    """Whether the gateway is only ready while this broker is up."""


def check_broker(settings: BrokerSettings) -> str | None:
    """Return what is wrong with the settings taken together, beginning with the setting; None: nothing is. No password
    is part of the text."""
    try:
        url = parse_broker_url(settings.url)
    except ConfigurationError as error:
        return f"url: {error}"
    if settings.management:
        try:
            parse_management_url(settings.management)
        except ConfigurationError as error:
            return f"management: {error}"
    if settings.reconnect_max < settings.reconnect_min:
        return f"reconnect_max is {settings.reconnect_max:g}, less than reconnect_min = {settings.reconnect_min:g}"
    for setting in ("hosts", "redirect_hosts"):
        for entry in getattr(settings, setting):
            try:
                parse_host(entry)
            except ConfigurationError as error:
                return f"{setting}: {error}"
    if settings.password and settings.password_file:
        return "password: it is given as a text and as a file"
    if settings.password and urlsplit(settings.url).password is not None and settings.password != url.password:
        return "password: the URL has another one; give it in one place"
    return _check_tls(settings.tls)


def _check_tls(tls: TlsSettings) -> str | None:
    for name in ("ca", "cert", "key"):
        text = getattr(tls, name)
        if text and getattr(tls, f"{name}_file"):
            return f"tls.{name}: it is given as a text and as a file"
        if not text.isascii():
            return f"tls.{name}: PEM is ASCII"
        if name != "key" and "PRIVATE KEY" in text:
            return f"tls.{name}: there is a private key in it, which is shown to nobody only in tls.key"
    if tls.key and not (tls.cert or tls.cert_file):
        return "tls.key: a key without a certificate"
    return None


class BrokerUrl(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's URL, taken apart and unquoted."""

    secure: bool
    host: str
    port: int
    user: str
    password: str
    virtual_host: str
    version: str
    """A registered version, or ``auto``."""
    dialect: str = ""
    """``transitional``, or nothing."""


def parse_broker_url(url: str) -> BrokerUrl:
    """Take ``amqp[s]://user:password@host:port/vhost?version=…`` apart.

    No path and the path ``/`` both mean the virtual host ``/``; any other virtual host is percent-encoded.

    Raises:
        ConfigurationError: the URL is wrong; its password is never part of the text.
    """
    # What a ValueError says is passed over: it quotes what stands there, which may be a password or a part of one.
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigurationError(
            "broker URL: the host is missing or invalid; brackets are for an IPv6 address, and non-ASCII text in user "
            "and password is percent-encoded"
        ) from None
    try:
        port = parts.port
    except ValueError:
        raise ConfigurationError(
            "broker URL: the port is no number from 1 to 65535; in user and password '/', '?' and '#' are written "
            "%2F, %3F and %23"
        ) from None
    if parts.scheme not in DEFAULT_PORTS:
        raise ConfigurationError(f"broker URL: scheme is {parts.scheme!r}, not amqp or amqps")
    if not parts.hostname:
        raise ConfigurationError("broker URL: no host")
    if port == 0:
        raise ConfigurationError("broker URL: the port is 0, not 1 to 65535")
    if parts.fragment:
        raise ConfigurationError("broker URL: a '#' must be written %23")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    version = query.pop("version", AUTO)
    if version not in (*VERSION_NAMES, AUTO):
        raise ConfigurationError(f"broker URL: version is {version!r}, not one of {', '.join((*VERSION_NAMES, AUTO))}")
    dialect = query.pop("dialect", "")
    if dialect and (dialect, version) not in DRAFT_NAMES:
        known = " or ".join(f"{name} with version {of}" for name, of in DRAFT_NAMES)
        raise ConfigurationError(f"broker URL: dialect is {dialect!r}, not {known}")
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
        dialect=dialect,
    )


class ManagementUrl(msgspec.Struct, frozen=True, kw_only=True):
    """The URL of a management API, taken apart and unquoted."""

    base: str
    """The URL without user and password, and without a slash at its end."""
    user: str | None
    """None: that of the broker's URL."""
    password: str | None
    """None: that of the broker's URL, or of ``password_file``."""


def parse_management_url(url: str) -> ManagementUrl:
    """Take ``http[s]://[user[:password]@]host[:port][/path]`` apart.

    Raises:
        ConfigurationError: the URL is wrong; its password is never part of the text.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigurationError(
            "management URL: host or port is invalid; in user and password '/', '?', '#' and '@' are written %2F, %3F, "
            "%23 and %40"
        ) from None
    if parts.scheme not in ("http", "https"):
        raise ConfigurationError(f"management URL: scheme is {parts.scheme[:20]!r}, not http or https")
    if not parts.hostname or port == 0:
        raise ConfigurationError("management URL: host or port is missing")
    if parts.query or parts.fragment:
        raise ConfigurationError("management URL: '?' and '#' have no place in it")
    if parts.username == "" and parts.password is None:
        raise ConfigurationError("management URL: the user is missing before the '@'")
    host = parts.netloc.rpartition("@")[2]
    return ManagementUrl(
        base=f"{parts.scheme}://{host}{parts.path.rstrip('/')}",
        user=unquote(parts.username) if parts.username is not None else None,
        password=unquote(parts.password) if parts.password is not None else None,
    )


def parse_host(text: str) -> tuple[str, int | None]:
    """Host, in lower case, and port of ``host``, ``host:port`` or ``[address]:port``; None: no port is given.

    Raises:
        ConfigurationError: it is not one of these.
    """
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError as error:
        raise ConfigurationError(f"host {text!r:.80}: {error}") from None
    if not parts.hostname or parts.netloc != text or "@" in text or port == 0:
        raise ConfigurationError(f"host {text!r:.80}: not host, host:port or [address]:port")
    return parts.hostname, port
