"""Settings: one TOML file, overridden by environment variables, overridden by command-line options.

Every setting is a field of one of the structs below, with its unit and default; ``docs/settings.md`` is checked
against them. An unknown key is refused, with the name of the key and of the table it stood in.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from msgspec import Meta

from gateway.errors import ConfigurationError
from gateway.limits import DEFAULT_BROKER_LIMITS, DEFAULT_LIMITS

LOCAL_BROKERS = {"local-0-8": "0-8", "local-0-9-1": "0-9-1", "local-0-10": "0-10"}
"""How the embedded broker is offered: name -> version."""
DEFAULT_PORTS = {"amqp": 5672, "amqps": 5671}
VERSION_NAMES = ("0-8", "0-9-1", "0-10", "auto")

Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(ge=0)]
Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all tables."""


class HttpTls(Settings, frozen=True):
    """``[http.tls]``: the API over TLS. Files that change are read again, for new connections."""

    cert_file: str = ""
    """Certificate chain of the server (PEM); empty: the API is served without TLS."""
    key_file: str = ""
    """Its key (PEM); empty: it is in ``cert_file``."""
    client_ca_file: str = ""
    """Authorities that may sign certificates of callers (PEM); empty: none is asked for."""
    clients: Literal["optional", "required"] = "optional"
    """Whether a caller must have one to connect at all."""


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
    bodies_max: Annotated[int, Meta(ge=1024, le=1 << 40)] = 512 << 20
    """Most octets of the bodies of all requests under way; more get 503. At least ``body_max``."""
    batch_max: Annotated[int, Meta(ge=1, le=100_000)] = 10_000
    """Most messages in one batch."""
    concurrency: Annotated[int, Meta(ge=1)] = 1_000
    """Most requests under way at once; more get 503."""
    connections_per_address: Annotated[int, Meta(ge=0)] = 200
    """Most connections from one remote address; more are closed at once. Loopback is not counted. 0: no limit."""
    head_timeout: Annotated[float, Meta(gt=0, le=600)] = 10.0
    """How long a request's head may take, and how long a new connection may say nothing, in seconds."""
    idle_timeout: Annotated[float, Meta(gt=0, le=3_600)] = 30.0
    """How long a connection may wait between two requests, in seconds."""
    body_idle: Annotated[float, Meta(gt=0, le=600)] = 10.0
    """How long a body may pause, in seconds; a stream of messages too."""
    body_rate: Annotated[int, Meta(ge=0)] = 1_000
    """Least octets a second that a body must have come with after ``body_idle`` seconds; not a stream of messages. 0:
    none."""
    body_timeout: Annotated[float, Meta(gt=0, le=86_400)] = 60.0
    """How long a whole body may take, in seconds; not a stream of messages."""
    tls: HttpTls = HttpTls()
    send_timeout: Annotated[float, Meta(gt=0, le=3_600)] = 300.0
    """How long a caller may not read what is sent to it, in seconds."""
    confirm_timeout: Seconds = 30.0
    """How long a publish waits for its confirm, in seconds, before it answers 504 ``outcome_unknown``."""
    leases_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    """Most messages that are out with consumers at once; then a pull answers 503."""
    access_log: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Share of the requests that are logged (``http.request``), and with it every one that failed (5xx), at most 200
    a second; 0: none."""
    drain_timeout: Seconds = 20.0
    """How long running requests may take at shutdown, in seconds."""
    drain_delay: Annotated[float, Meta(ge=0, le=300)] = 0.0
    """How long the API goes on taking requests after SIGTERM while it says that it is not ready, in seconds: until
    whoever passes requests on has noticed. A second signal ends it."""


class OpsSettings(Settings, frozen=True):
    """``[ops]``: ``/livez``, ``/readyz`` and ``/metrics``, on a port of their own."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 8081
    """0 takes any free port."""
    metrics_names: Annotated[int, Meta(ge=0, le=200)] = 20
    """Of how many bridges, taps, endpoints and subscriptions, each, ``/metrics`` has series by name; the others are
    together ``other``. There are 5,000 series at most, whatever it says."""


class EmbeddedUser(Settings, frozen=True):
    """``[[embedded.users]]``"""

    name: str
    """Login."""
    password: str
    """Password, in clear. For tests only, as the embedded broker is."""


class EmbeddedTls(Settings, frozen=True):
    """``[embedded.tls]``: a second port, with TLS. Files that change are read again, for new connections."""

    port: Port = 5669
    """0 takes any free port."""
    cert_file: str = ""
    """Certificate chain of the server (PEM); empty: there is no such port."""
    key_file: str = ""
    """Its key (PEM); empty: it is in ``cert_file``."""
    ca_file: str = ""
    """Authorities of clients' certificates (PEM). Who shows one is offered EXTERNAL, as the user of ``users`` that is
    its subject's common name; nobody has to. Empty: none is asked for."""


class EmbeddedSettings(Settings, frozen=True):
    """``[embedded]``: the in-memory broker, for development and tests."""

    enabled: bool = False
    """Whether it runs. Without a configuration file it does."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 5670
    """0 takes any free port."""
    transitional: bool = False
    """0-10 is the draft of July 2007, for whoever comes with its protocol header, which is that of the final."""
    users: tuple[EmbeddedUser, ...] = (EmbeddedUser(name="guest", password="guest"),)  # noqa: S106  # documented default of a development broker
    """Who may log in."""
    anonymous: str = ""
    """The login of clients that come without one (ANONYMOUS); empty: they are sent away."""
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
    shard_lease: Annotated[float, Meta(ge=1)] = 6.0
    """How long a silent process keeps its shard and its work, in seconds."""
    key_retention: Annotated[float, Meta(ge=60)] = 86_400.0
    """How long an Idempotency-Key is remembered, in seconds."""
    group_max: Annotated[int, Meta(ge=1, le=100_000)] = 5_000
    """Most rows of one group commit."""
    queue_max: Annotated[int, Meta(ge=1)] = 50_000
    """Most rows waiting for a commit; then callers wait."""
    headers: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=255)], ...], Meta(max_length=16)] = ()
    """Names of AMQP headers that are remembered of each message, as text of at most 200 characters, so that messages
    can be found by them."""
    secrets_file: str = ""
    """File with the key under which secrets are sealed (AES-256-GCM): 32 octets in base64; several lines: the first one
    seals, all of them open. Empty: ``secrets.key`` in the data folder, made at the first start. Gateways that share a
    ledger need the same one."""


class RetentionSettings(Settings, frozen=True):
    """``[retention]``: how long the ledger remembers."""

    history_days: Annotated[int, Meta(ge=1, le=3_650)] = 30
    """Days after which messages and their events go. What is owed never goes by itself."""
    statistics_days: Annotated[int, Meta(ge=1, le=3_650)] = 400
    """Days after which the counts per hour go."""
    audit_days: Annotated[int, Meta(ge=30, le=36_500)] = 400
    """Days after which rows of the audit log go; the chain of the others can be verified as before."""
    bodies: Literal["never", "until-settled", "days"] = "never"
    """Whether bodies of messages are kept beyond what is owed, for replays: not; until a consumer has settled the
    message; for ``body_days``."""
    body_days: Annotated[int, Meta(ge=1, le=3_650)] = 7
    """Days after which a body goes; with ``until-settled`` also that of a message which nobody settled."""
    body_max: Annotated[int, Meta(ge=0, le=64 << 20)] = 1 << 20
    """Largest body that is kept for replays, in octets."""
    log_days: Annotated[int, Meta(ge=1, le=3_650)] = 7
    """Days after which spooled messages go, whether they were read or not. What all cursors of the message log have
    read goes at once."""
    log_octets: Annotated[int, Meta(ge=1 << 20, le=1 << 50)] = 10 << 30
    """How large the message log may be, in octets; what is more goes, the oldest first, whether it was read or not."""


class ClusterSettings(Settings, frozen=True):
    """``[cluster]``: several gateways on one PostgreSQL."""

    host: str = "127.0.0.1"
    """Address on which the other gateways reach this one."""
    port: Port = 0
    """Port for that; 0 takes any free port. With SQLite nobody listens."""
    url: str = ""
    """What the others are told; empty: ``http://HOST:PORT`` of the above."""
    secret_file: str = ""
    """File with the secret that all of them share, at least 32 octets; empty: one is made and kept in the ledger."""


class OutboundSettings(Settings, frozen=True):
    """``[outbound]``: whom the gateway may call over HTTP (endpoints, tokens)."""

    allow: tuple[str, ...] = ()
    """Networks (``10.1.0.0/16``) and hosts (``hooks.example``, ``*.hooks.example``) that may be called although they
    are not public, on any port and without TLS."""
    ports: tuple[Port, ...] = (443, 8443)
    """Ports that may be called anywhere else."""
    plain: bool = False
    """Whether ``http`` is allowed anywhere else."""
    requests: Annotated[int, Meta(ge=1, le=1_024)] = 256
    """Most requests of endpoints at once."""
    origin: str = ""
    """The host name that the gateway gives as its own when it asks an endpoint whether it may call (``handshake``);
    empty: the machine's."""


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
    """``amqp[s]://user:password@host:port/vhost?version=0-8|0-9-1|0-10|auto``, with ``&dialect=transitional`` for the
    draft of 0-10"""
    password_file: str = ""
    """File that holds the password, instead of the URL."""
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
    consume_connections: Annotated[int, Meta(ge=1, le=64)] = 8
    """Most connections for consumers: a further one is opened when those that there are have no channels left."""
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
    """``publish:BROKER/EXCHANGE``, ``consume:BROKER/QUEUE``, ``broker:BROKER``, ``endpoint:NAME``, ``history``,
    ``admin``; ``*`` stands for any one part."""


class TokenSettings(Settings, frozen=True):
    """``[access.tokens]``: bearer tokens (JWT) of an issuer, beside API keys."""

    issuer: str = ""
    """``iss`` that a token must have; empty: no tokens are taken."""
    audience: str = ""
    """``aud`` that a token must have, or have among others."""
    jwks_url: str = ""
    """Where the issuer's keys are (RFC 7517); under the same guard as endpoints: see ``[outbound]``."""
    algorithms: tuple[
        Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"], ...
    ] = ("RS256", "PS256", "ES256", "EdDSA")
    """Algorithms of signatures that are taken. None of them has a shared key."""
    types: tuple[str, ...] = ("JWT", "at+jwt")
    """``typ`` of tokens that are taken; one that says none counts as ``JWT``."""
    leeway: Annotated[float, Meta(ge=0, le=300)] = 30.0
    """How far the issuer's clock may be from ours, in seconds."""
    client_claim: str = "sub"
    """Claim that names the client; it is known as ``jwt:NAME``."""
    scopes_claim: str = "scope"
    """Claim with the scopes: a text with blanks between them, or a list."""
    scopes: dict[str, tuple[str, ...]] = {}
    """What a scope of the issuer stands for here; others are passed over. Empty: one of ours stands for itself."""


class CertificateSettings(Settings, frozen=True):
    """``[[access.certificates]]``: a caller who is known by its certificate (``http.tls.client_ca_file``)."""

    client: str
    """Who it is; appears in logs and in the ledger."""
    name: Annotated[str, Meta(pattern="^(URI|DNS|email|CN):.+$")]
    """A name in the certificate: ``URI:spiffe://…``, ``DNS:…`` or ``email:…`` of its alternative names, or ``CN:…``,
    the common name of its subject."""
    scopes: tuple[str, ...]
    """As those of API keys."""


class AccessSettings(Settings, frozen=True):
    """``[access]``: who may call."""

    required: Literal["auto", "always"] = "auto"
    """Whether callers need a credential. ``auto``: where this file says of any; else the gateway listens on loopback
    only. ``always``: in any case; keys are then those of ``gateway keys``."""
    rate: Annotated[float, Meta(ge=0)] = 0.0
    """Most requests a second of one client, at each process; 0: no limit. A batch is one request."""
    burst: Annotated[int, Meta(ge=0)] = 0
    """Most requests of a client at once; 0: as many as in ten seconds."""
    stranger_rate: Annotated[float, Meta(ge=0)] = 10.0
    """Most requests a second from one remote address without a credential that counts, where one is needed; ten times
    as many at once. Loopback is not counted. 0: no limit."""
    documents: Literal["open", "closed"] = "open"
    """Whether ``/``, ``/docs`` and ``/openapi.json`` are there for everybody; ``closed``: for who has a credential,
    which a browser gives as the password of HTTP Basic, there and nowhere else."""
    tokens: TokenSettings = TokenSettings()
    certificates: tuple[CertificateSettings, ...] = ()


class SubscriptionFilter(Settings, frozen=True):
    """``filter`` of a subscription: which messages it wants. All that is given must hold."""

    selector: str = ""
    """A JMS message selector over headers and properties."""
    routing_key: str = ""
    """A pattern for the routing key, as topic exchanges have it: words between dots, ``*`` for one, ``#`` for any
    number."""


class SubscriptionSettings(Settings, frozen=True):
    """``[subscriptions.NAME]``, and the body of ``PUT /v1/subscriptions/{name}``."""

    broker: str
    """A broker's name."""
    queue: str = ""
    """A queue of that broker. With ``exchange``: the name of the own queue; empty: ``gateway.subscription.NAME``."""
    exchange: str = ""
    """An exchange: the subscription declares a durable queue of its own and binds it there."""
    binding_key: str = ""
    """Routing key of that binding."""
    arguments: dict[str, str | int | bool] = {}
    """Arguments of that binding (a headers exchange)."""
    lease: Literal["broker", "ledger"] = "broker"
    """Who holds a message that is out: the broker, unacknowledged; or the ledger, which stores it first."""
    push: str = ""
    """Name of the endpoint that messages are pushed to; empty: consumers pull."""
    prefetch: Annotated[int, Meta(ge=1, le=65_535)] = 200
    """Most messages taken from the queue of which the first attempt is not over (push), or that nobody has pulled yet
    (``order_key``)."""
    prefetch_octets: Annotated[int, Meta(ge=1 << 16)] = 64 << 20
    """Most octets of their bodies."""
    backlog_max: Annotated[int, Meta(ge=1)] = 100_000
    """Most messages that the ledger holds for it: those that are out, wait for a retry or are dead. Then nothing more
    is taken from the queue."""
    ack_deadline_seconds: Annotated[int, Meta(ge=10, le=600)] = 30
    """How long a message is leased unless the pull asks otherwise, in seconds."""
    max_deliveries: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Most times that a message is handed to a consumer that pulls; then it is dead. 0: no limit. Needs ``lease =
    "ledger"``."""
    dead_letter_broker: str = ""
    """Broker of the dead-letter place; empty: the subscription's own."""
    dead_letter_exchange: str = ""
    """Where rejected messages go if the broker does not dead-letter by itself, or cannot say whether the queue does,
    and where dead ones of the ledger go. With an empty routing key too: rejected ones are only dead-lettered natively,
    dead ones of the ledger stay there."""
    dead_letter_routing_key: str = ""
    """Routing key at the dead-letter exchange; empty with a default exchange: none."""
    filter: SubscriptionFilter = SubscriptionFilter()
    unmatched: Literal["", "dead-letter", "discard"] = ""
    """What becomes of messages that the filter does not want. Empty: ``discard`` where the queue is the subscription's
    own, else ``dead-letter``."""
    order_key: str = ""
    """``routing_key``, ``property:NAME`` or ``header:NAME``: messages with the same value are handed out one at a time
    and in order; one without it stands for itself. Needs ``lease = "ledger"``."""
    paused: bool = False
    """It takes and hands out nothing until it is resumed."""


class EndpointAuth(Settings, frozen=True):
    """``auth`` of an endpoint: who we say that we are. Secrets are shown to nobody again."""

    kind: Literal["none", "basic", "bearer", "oauth2"] = "none"
    """``oauth2``: client credentials (RFC 6749 section 4.4)."""
    user: str = ""
    """User of ``basic``, client id of ``oauth2``."""
    secret: str = ""
    """Password, token or client secret."""
    secret_file: str = ""
    """File that holds it instead; only in the configuration file."""
    token_url: str = ""
    """Where ``oauth2`` gets its tokens; under the same guard as the endpoint itself."""
    scope: str = ""
    """Scope to ask for."""


class EndpointTls(Settings, frozen=True):
    """``tls`` of an endpoint. Texts are PEM; files only in the configuration file."""

    ca: str = ""
    """Authorities that may sign its certificate; empty: the system's."""
    ca_file: str = ""
    """The same, in a file."""
    cert: str = ""
    """Client certificate, and the chain behind it."""
    cert_file: str = ""
    """The same, in a file."""
    key: str = ""
    """Key of the client certificate; empty: it is beside the certificate. Shown to nobody again."""
    key_file: str = ""
    """The same, in a file."""
    server_name: str = ""
    """Name to verify; empty: the host of the URL."""


class EndpointSettings(Settings, frozen=True):
    """``[endpoints.NAME]``, and the body of ``PUT /v1/endpoints/{name}``: where messages are pushed to."""

    url: str
    """``https://…``; what may be called is said in ``[outbound]``."""
    format: Literal["json", "raw", "cloudevents-binary", "cloudevents-structured", "cloudevents-batch"] = "json"
    """``json``: an envelope as pull has it; ``raw``: the body as it is, the rest as ``Amqp-*`` headers; CloudEvents 1.0
    in their three forms."""
    batch_max: Annotated[int, Meta(ge=1, le=1_000)] = 1
    """Most messages of one request (``json`` and ``cloudevents-batch``)."""
    batch_wait: Annotated[float, Meta(ge=0, le=10)] = 0.0
    """How long a batch waits to be full, in seconds."""
    headers: dict[str, str] = {}
    """Headers of each request. Their values are kept and shown like secrets, but for a few that are none."""
    signing: tuple[Literal["v1", "v1a"], ...] = ("v1",)
    """Signatures of Standard Webhooks; the keys are made by the gateway. Empty: none."""
    auth: EndpointAuth = EndpointAuth()
    tls: EndpointTls = EndpointTls()
    deadline: Annotated[float, Meta(gt=0, le=300)] = 15.0
    """For a request: connecting, head and body of the answer together, in seconds."""
    schedule: tuple[Annotated[float, Meta(ge=0, le=30 * 86_400)], ...] = ()
    """Pause before each attempt, in seconds, the first included; empty: 0, 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h,
    20 h, 24 h."""
    concurrency: Annotated[int, Meta(ge=1, le=100)] = 10
    """Most requests at once."""
    rate: Annotated[float, Meta(ge=0)] = 0.0
    """Most requests a second; 0: no limit."""
    breaker_failures: Annotated[int, Meta(ge=1)] = 5
    """Failures in a row that open the circuit breaker."""
    breaker_open_max: Annotated[float, Meta(ge=1)] = 600.0
    """How long it is open at most, in seconds."""
    handshake: bool = False
    """Whether the endpoint must first allow us to call it, by the ``OPTIONS`` request of CloudEvents web hooks."""
    reply: bool = False
    """Whether the body of a 2xx answer is published to the message's reply-to."""
    source: str = ""
    """``source`` of CloudEvents; empty: ``/brokers/BROKER/queues/QUEUE``."""
    event_type: str = ""
    """``type`` of CloudEvents whose message does not say it; empty: ``amqp.message``."""
    paused: bool = False
    """It gets nothing until it is resumed."""


class BridgeSource(Settings, frozen=True):
    """``source`` of a bridge: a queue, or an exchange and a binding key with a queue of the bridge's own."""

    broker: str
    """A broker's name."""
    queue: str = ""
    """The queue that is consumed. With ``exchange``: the name of the own queue; empty: ``gateway.bridge.NAME``."""
    exchange: str = ""
    """An exchange: the bridge declares a durable queue of its own and binds it there."""
    binding_key: str = ""
    """Routing key of that binding."""
    arguments: dict[str, str | int | bool] = {}
    """Arguments of that binding (a headers exchange)."""


class BridgeTarget(Settings, frozen=True):
    """``target`` of a bridge."""

    broker: str
    """A broker's name."""
    exchange: str = ""
    """An exchange there; empty: the default exchange."""
    routing_key: str | None = None
    """Routing key of what is published. None: kept as it came. ``{routing_key}``, ``{exchange}``, ``{queue}`` and
    ``{header:NAME}`` are replaced; ``{{`` and ``}}`` are braces."""


class BridgePlace(Settings, frozen=True):
    """``dead_letter`` of a bridge: where poison goes."""

    broker: str = ""
    """A broker's name; empty: the source's."""
    exchange: str = ""
    """An exchange there; empty: the default exchange."""
    routing_key: str = ""
    """Routing key; empty with the default exchange: the queue ``gateway.dead.NAME``, which the bridge declares."""


class BridgeSettings(Settings, frozen=True):
    """``[bridges.NAME]``, and the body of ``PUT /v1/bridges/{name}``."""

    source: BridgeSource
    """Where messages come from."""
    target: BridgeTarget
    """Where they go."""
    mode: Literal["move", "mirror"] = "move"
    """``move`` takes messages from the source; ``mirror`` leaves them there and copies them."""
    acknowledge: Literal["on-confirm", "dtx", "unsafe-on-publish", "unsafe-no-ack"] = "on-confirm"
    """When the source is told that a message is done with: when the target has confirmed it, or (``dtx``, to a target
    of version 0-10) has committed it in a distributed transaction, so that a crash leaves no second copy of a message
    with an id. With the other two messages are lost when something breaks."""
    prefetch: Annotated[int, Meta(ge=1, le=65_535)] = 1_000
    """Most messages between source and target at a time."""
    prefetch_octets: Annotated[int, Meta(ge=1 << 16)] = 64 << 20
    """Most octets of bodies between source and target at a time."""
    dead_letter: BridgePlace = BridgePlace()
    """Where messages go that cannot be forwarded."""
    on_loss: Literal["strict", "warn", "drop"] = "warn"
    """What becomes of a message that the target's version cannot carry whole: ``strict`` dead-letters it; ``warn``
    forwards it, records each loss and logs; ``drop`` forwards it and records each loss."""
    selector: str = ""
    """A JMS message selector over headers and properties; messages that do not match are not forwarded."""
    unmatched: Literal["", "dead-letter", "discard"] = ""
    """What becomes of those. Empty: ``discard`` where the queue is the bridge's own or keeps its messages (``mirror``),
    else ``dead-letter``."""
    set_headers: dict[str, str | int | float | bool] = {}
    """Headers that each message gets, in place of those of the same name."""
    remove_headers: tuple[str, ...] = ()
    """Headers that are taken out."""
    release_headers: tuple[str, ...] = ()
    """Headers that brokers act upon (``x-death``, ``CC``, ...) and that are passed on as they are all the same."""
    strip: bool = False
    """The last hop: the reserved header is taken off, and with it all that has no other home."""
    messages_per_second: Annotated[float, Meta(ge=0)] = 0.0
    """Most messages forwarded a second; 0: no limit."""
    octets_per_second: Annotated[float, Meta(ge=0)] = 0.0
    """Most octets of bodies forwarded a second; 0: no limit."""
    hops_max: Annotated[int, Meta(ge=1, le=100)] = 8
    """Most bridges that a message may have passed. One that has passed this bridge before is not forwarded again."""
    dedupe_seconds: Annotated[int, Meta(ge=0, le=30 * 86_400)] = 3_600
    """How long a forwarded message with an id is remembered, so that its redelivery is dropped; 0: not."""
    delete_after: Literal["never", "queue-length"] | Annotated[int, Meta(ge=1)] = "never"
    """When the bridge ends by itself: after as many messages as the source queue held at the start, or this number."""
    paused: bool = False
    """It does not run until it is resumed."""


class TapSettings(Settings, frozen=True):
    """``[taps.NAME]``, and the body of ``PUT /v1/taps/{name}``: a queue whose messages go into the message log."""

    broker: str
    """A broker's name."""
    queue: str = ""
    """The queue that is consumed. With ``exchange``: the name of the own queue; empty: ``gateway.tap.NAME``."""
    exchange: str = ""
    """An exchange: the tap declares a durable queue of its own and binds it there."""
    binding_key: str = ""
    """Routing key of that binding."""
    arguments: dict[str, str | int | bool] = {}
    """Arguments of that binding (a headers exchange)."""
    prefetch: Annotated[int, Meta(ge=1, le=65_535)] = 1_000
    """Most messages taken from the queue that are not in the log yet."""
    prefetch_octets: Annotated[int, Meta(ge=1 << 16)] = 64 << 20
    """Most octets of their bodies."""
    until: Literal["never", "depth"] = "never"
    """``depth``: the tap ends by itself when it has taken as many messages as the queue held when it began, and leaves
    the rest there."""
    log_octets: Annotated[int, Meta(ge=0)] = 0
    """Most octets of the message log that no reader has passed yet. Beyond that this tap takes nothing more. Less than
    ``retention.log_octets``, beyond which they would go unread; 0: half of that."""
    dedupe_seconds: Annotated[int, Meta(ge=0, le=30 * 86_400)] = 3_600
    """How long a message with an id is remembered, so that its redelivery is dropped; 0: not."""
    dead_letter_broker: str = ""
    """Broker of the dead-letter place; empty: the tap's own."""
    dead_letter_exchange: str = ""
    """Where messages go that the ledger cannot hold; empty: the default exchange."""
    dead_letter_routing_key: str = ""
    """Routing key there; empty with the default exchange: the queue ``gateway.dead.tap.NAME``, which the tap declares
    when it needs it."""
    paused: bool = False
    """It takes nothing until it is resumed."""


class PipelineSettings(Settings, frozen=True):
    """``[pipeline]``: what the jobs of ``gateway pipeline`` work with. The service reads none of it."""

    url: str = "http://127.0.0.1:8080"
    """The gateway that the jobs work for."""
    api_key_file: str = ""
    """File that holds the API key, where the gateway has any; the key itself only comes in ``GATEWAY_API_KEY``."""
    direct: bool = False
    """Whether logs are read straight from the ledger, at ``ledger.url``, instead of over HTTP."""
    storage: str = "./gateway-pipeline"
    """Folder, or URL that Spark knows (``s3a://bucket/gateway``), of archive, rollups, checkpoints and reports."""
    archive: Literal["parquet", "delta"] = "parquet"
    """Format of the archive. ``parquet`` needs a file system; ``delta`` needs jars and works on object stores too."""
    jars: str = ""
    """Folder of Delta's jars; empty: ``.servers/delta`` where there is one."""
    scratch: str = ""
    """Folder for what a run needs only while it lasts; empty: the system's temporary folder."""
    master: str = "local[*]"
    """Where Spark runs: ``local[*]``, ``spark://HOST:PORT``, ``k8s://…``; ``spark-submit`` has its own."""
    memory: Annotated[str, Meta(pattern="^[1-9][0-9]*[mg]$")] = "2g"
    """Heap of the driver, which with ``local`` is all there is, in mebioctets (``m``) or gibioctets (``g``)."""
    spark: dict[str, str] = {}
    """Any other settings of Spark, by their name. They are shown in Spark's own pages: no secrets."""
    timeout: Annotated[float, Meta(gt=0)] = 60.0
    """How long the gateway may take for an answer, in seconds."""
    unavailable_timeout: Seconds = 120.0
    """How long a job waits for a gateway that was there and went away, in seconds."""
    rows_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 200_000
    """Most rows that one task reads at a time."""


class TracingSettings(Settings, frozen=True):
    """``[tracing]``: what happens to a message, as spans of OpenTelemetry."""

    endpoint: str = ""
    """Where spans are sent, by OTLP over HTTP in JSON: ``http://collector:4318/v1/traces``. Empty: there are none, and
    no message is given a header."""
    headers_file: str = ""
    """File with headers of these requests, ``NAME: VALUE`` a line: the key of the collector, say."""
    ca_file: str = ""
    """Authorities that may sign the collector's certificate (PEM); empty: the system's."""
    sample: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Share of the traces that begin here which are seen. A trace that a caller or a message brings along is seen if
    its flag says so."""
    inject: Literal["absent", "never"] = "absent"
    """Whether messages that are published over HTTP get the headers ``traceparent`` and ``tracestate``: those that have
    neither do, or none does. No other message ever gets them, those of bridges and replays least of all."""
    webhooks: bool = True
    """Whether requests to endpoints have the headers ``traceparent`` and ``tracestate``."""
    service_name: str = "amqp-gateway"
    """``service.name`` of the spans."""
    resource: dict[str, str] = {}
    """Other attributes of whoever sends: ``"deployment.environment.name" = "production"``."""
    batch_max: Annotated[int, Meta(ge=1, le=10_000)] = 512
    """Most spans of one request."""
    queue_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 8_192
    """Most spans that wait; what is more is dropped and counted."""
    interval: Annotated[float, Meta(gt=0, le=300)] = 2.0
    """How long a span waits at most for others, in seconds."""
    timeout: Annotated[float, Meta(gt=0, le=300)] = 10.0
    """How long the collector may take for an answer, in seconds."""


class Config(Settings, frozen=True):
    """The whole file."""

    role: Literal["all", "api", "worker"] = "all"
    """What this process does: ``api`` serves HTTP; ``worker`` does the work that one process at a time may do (bridges,
    pushed subscriptions, taps, replays, the outbox, pulls in order). ``api`` and ``worker`` need PostgreSQL."""
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
    access: AccessSettings = AccessSettings()
    outbound: OutboundSettings = OutboundSettings()
    tracing: TracingSettings = TracingSettings()
    cluster: ClusterSettings = ClusterSettings()
    retention: RetentionSettings = RetentionSettings()
    subscriptions: dict[Name, SubscriptionSettings] = {}
    endpoints: dict[Name, EndpointSettings] = {}
    bridges: dict[Name, BridgeSettings] = {}
    taps: dict[Name, TapSettings] = {}
    pipeline: PipelineSettings = PipelineSettings()


def asks_for_credentials(config: Config) -> bool:
    """Whether callers of the API need a credential."""
    access = config.access
    return bool(access.required == "always" or config.api_keys or access.tokens.issuer or access.certificates)


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
    dialect: str = ""
    """``transitional``, or nothing."""


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
    dialect = query.pop("dialect", "")
    if dialect and (dialect, version) != ("transitional", "0-10"):
        raise ConfigurationError(f"broker URL: dialect is {dialect!r}, not transitional with version 0-10")
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


def parse_host(text: str) -> tuple[str, int | None]:
    """Host, in lower case, and port of ``host``, ``host:port`` or ``[address]:port``; None: no port is given.

    Raises:
        ConfigurationError: it is none of these.
    """
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError as error:
        raise ConfigurationError(f"host {text!r:.80}: {error}") from None
    if not parts.hostname or parts.netloc != text or "@" in text or port == 0:
        raise ConfigurationError(f"host {text!r:.80}: not host, host:port or [address]:port")
    return parts.hostname, port


ENVIRONMENT: dict[str, tuple[str, ...]] = {
    "GATEWAY_ROLE": ("role",),
    "GATEWAY_HTTP_HOST": ("http", "host"),
    "GATEWAY_HTTP_PORT": ("http", "port"),
    "GATEWAY_OPS_HOST": ("ops", "host"),
    "GATEWAY_OPS_PORT": ("ops", "port"),
    "GATEWAY_CLUSTER_HOST": ("cluster", "host"),
    "GATEWAY_CLUSTER_PORT": ("cluster", "port"),
    "GATEWAY_AMQP_PORT": ("embedded", "port"),
    "GATEWAY_DATA_DIR": ("data_dir",),
    "GATEWAY_LEDGER_URL": ("ledger", "url"),
    "GATEWAY_SECRETS_FILE": ("ledger", "secrets_file"),
    "GATEWAY_LOG_LEVEL": ("log_level",),
    "GATEWAY_TRACING_ENDPOINT": ("tracing", "endpoint"),
    **{
        f"GATEWAY_PIPELINE__{field.name.upper()}": ("pipeline", field.name)
        for field in msgspec.structs.fields(PipelineSettings)
        if field.name != "spark"
    },
}
"""Variable -> setting. ``GATEWAY_CONFIG`` names the file. Each may also come as ``NAME_FILE``, a file with its text."""


def load(
    path: str | Path | None,
    environ: dict[str, str] | os._Environ[str] = os.environ,
    overrides: dict[str, Any] | None = None,
) -> Config:
    """Read the configuration file (TOML, or JSON where its name ends so; None: development defaults), then the
    environment, then ``overrides`` (dotted setting name to value; None values are passed over).

    Raises:
        ConfigurationError: naming the file, the setting and what is wrong with it.
    """
    document: dict[str, Any] = {}
    where = "configuration"
    if path is not None:
        where = str(path)
        try:
            written = Path(path).read_text(encoding="utf-8")
            document = _json(written) if Path(path).suffix == ".json" else tomllib.loads(written)
        except OSError as error:
            raise ConfigurationError(f"{where}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{where}: {error}") from None
    for variable, setting in ENVIRONMENT.items():
        if (text := _variable(environ, variable)) is not None:
            _assign(document, setting, _typed(setting, text))
    for name, value in (overrides or {}).items():
        if value is not None:
            _assign(document, tuple(name.split(".")), value)
    try:
        config = msgspec.convert(document, Config)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    if config.http.bodies_max < config.http.body_max:
        raise ConfigurationError(
            f"{where}: http.bodies_max is {config.http.bodies_max}, less than http.body_max = {config.http.body_max}"
        )
    for name, broker in config.brokers.items():
        try:
            parse_broker_url(broker.url)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: brokers.{name}.url: {error}") from None
        for entry in broker.redirect_hosts:
            try:
                parse_host(entry)
            except ConfigurationError as error:
                raise ConfigurationError(f"{where}: brokers.{name}.redirect_hosts: {error}") from None
    for name, subscription in config.subscriptions.items():
        if not _known(subscription.broker, config):
            raise ConfigurationError(
                f"{where}: subscriptions.{name}.broker: there is no broker {subscription.broker!r}"
            )
    for name, subscription in config.subscriptions.items():
        if (wrong := check_subscription(subscription)) is not None:
            raise ConfigurationError(f"{where}: subscriptions.{name}.{wrong}")
        if subscription.push and subscription.push not in config.endpoints:
            raise ConfigurationError(
                f"{where}: subscriptions.{name}.push: there is no endpoint {subscription.push!r} in this file"
            )
    for name, bridge in config.bridges.items():
        _check_bridge(f"{where}: bridges.{name}", bridge, config)
    for name, tap in config.taps.items():
        _check_tap(f"{where}: taps.{name}", tap, config)
    return config


def _variable(environ: dict[str, str] | os._Environ[str], name: str) -> str | None:
    """The text of a variable; or, where there is one of its name with ``_FILE``, that of the file that it names."""
    text, file = environ.get(name), environ.get(f"{name}_FILE")
    if file is None:
        return text
    if text is not None:
        raise ConfigurationError(f"{name} and {name}_FILE are both set")
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigurationError(f"{name}_FILE: {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{name}_FILE: {file}: not UTF-8") from None


def check_subscription(subscription: SubscriptionSettings) -> str | None:
    """What is wrong with a subscription's settings taken together; None: nothing."""
    if not subscription.queue and not subscription.exchange:
        return "queue: neither queue nor exchange is given"
    if not subscription.exchange and (subscription.binding_key or subscription.arguments):
        return "exchange: binding_key and arguments belong to an exchange"
    kind, _, name = subscription.order_key.partition(":")
    if subscription.order_key and (
        kind not in ("routing_key", "property", "header") or (kind == "routing_key") == bool(name)
    ):
        return f"order_key is {subscription.order_key!r}, not routing_key, property:NAME or header:NAME"
    if subscription.lease == "broker":
        for setting in ("order_key", "max_deliveries"):
            if getattr(subscription, setting):
                return f'{setting} needs lease = "ledger"'
        filtered = subscription.filter != SubscriptionFilter() and not subscription.push
        dead = subscription.unmatched == "dead-letter" or not (subscription.unmatched or subscription.exchange)
        if filtered and dead and not (subscription.dead_letter_exchange or subscription.dead_letter_routing_key):
            return (
                "unmatched: what the filter does not want needs a dead-letter place (dead_letter_exchange, "
                'dead_letter_routing_key), unmatched = "discard" or lease = "ledger"'
            )
    queue = subscription.queue
    dead_letters_to_itself = (
        subscription.dead_letter_broker in ("", subscription.broker)
        and not subscription.dead_letter_exchange
        and subscription.dead_letter_routing_key == queue
    )
    if queue and dead_letters_to_itself:
        return f"dead_letter_routing_key is its own queue {queue!r}: what is dead-lettered there would come again"
    return None


def check_bridge(bridge: BridgeSettings) -> str | None:
    """What is wrong with a bridge's settings taken together; None: nothing."""
    source = bridge.source
    if not source.queue and not source.exchange:
        return "source: neither queue nor exchange is given"
    if not source.exchange and (source.binding_key or source.arguments):
        return "source: binding_key and arguments belong to an exchange"
    place = bridge.dead_letter
    if source.queue and (place.broker or source.broker, place.exchange, place.routing_key) == (
        source.broker, "", source.queue,
    ):  # fmt: skip
        return f"dead_letter is the source's own queue {source.queue!r}: what is dead-lettered there would come again"
    if bridge.acknowledge == "dtx" and not bridge.dedupe_seconds:
        return "acknowledge is 'dtx', and with dedupe_seconds = 0 nothing is remembered by which a redelivery is known"
    if bridge.mode == "mirror" and bridge.acknowledge not in ("on-confirm", "dtx"):
        return f"acknowledge is {bridge.acknowledge!r}, and a mirror takes nothing from its source"
    return None


def check_tap(tap: TapSettings, retention: RetentionSettings) -> str | None:
    """What is wrong with a tap's settings, taken together and with how long its messages are kept; None: nothing."""
    if not tap.queue and not tap.exchange:
        return "queue: neither queue nor exchange is given"
    if not tap.exchange and (tap.binding_key or tap.arguments):
        return "exchange: binding_key and arguments belong to an exchange"
    to_itself = tap.dead_letter_broker in ("", tap.broker) and not tap.dead_letter_exchange
    if tap.log_octets >= (most := retention.log_octets):
        return f"log_octets: {tap.log_octets} is not less than retention.log_octets = {most}: messages would go unread"
    if tap.queue and to_itself and tap.dead_letter_routing_key == tap.queue:
        return f"dead_letter_routing_key: {tap.queue!r} is its own queue: what is dead-lettered there would come again"
    return None


def _known(broker: str, config: Config) -> bool:
    return broker in config.brokers or (config.embedded.enabled and broker in LOCAL_BROKERS)


def _check_bridge(where: str, bridge: BridgeSettings, config: Config) -> None:
    if (wrong := check_bridge(bridge)) is not None:
        raise ConfigurationError(f"{where}.{wrong}")
    for setting, name in (
        ("source.broker", bridge.source.broker),
        ("target.broker", bridge.target.broker),
        ("dead_letter.broker", bridge.dead_letter.broker or bridge.source.broker),
    ):
        if not _known(name, config):
            raise ConfigurationError(f"{where}.{setting}: there is no broker {name!r}")


def _check_tap(where: str, tap: TapSettings, config: Config) -> None:
    if (wrong := check_tap(tap, config.retention)) is not None:
        raise ConfigurationError(f"{where}.{wrong}")
    for setting in ("broker", "dead_letter_broker"):
        if (name := getattr(tap, setting)) and not _known(name, config):
            raise ConfigurationError(f"{where}.{setting}: there is no broker {name!r}")


def _json(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise json.JSONDecodeError("not an object", text, 0)
    return found


def _typed(setting: tuple[str, ...], text: str) -> Any:
    """A variable's text as the setting's type; the text itself where it is none, and is refused for that later."""
    kind: Any = Config
    for name in setting:
        (kind,) = (field.type for field in msgspec.structs.fields(kind) if field.name == name)
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError:
        return text


def _assign(document: dict[str, Any], setting: tuple[str, ...], value: Any) -> None:
    table = document
    for part in setting[:-1]:
        table = table.setdefault(part, {})
    table[setting[-1]] = value
