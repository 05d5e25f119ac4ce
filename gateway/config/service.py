"""Settings of the process itself: HTTP, operations, the embedded broker, requests to others, traces."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.config.base import Port, Seconds, Settings
from gateway.limits import DEFAULT_BROKER_LIMITS, DEFAULT_LIMITS


class HttpTls(Settings, frozen=True):
    """``[http.tls]``: the API over TLS. Files that change are read again, for new connections."""

    cert_file: str = ""
    """Certificate chain of the server (PEM); empty: the API is served without TLS."""
    key_file: str = ""
    """Its key (PEM); empty: it is in ``cert_file``."""
    client_ca_file: str = ""
    """Authorities that may sign certificates of callers (PEM); empty: none is asked for."""
    clients: Literal["optional", "required"] = "optional"
    """Whether a caller must have one to connect at all. ``required`` needs ``client_ca_file``."""


class HttpSettings(Settings, frozen=True):
    """``[http]``: the API, docs and console."""

    host: str = "127.0.0.1"
    """Address to listen on. Without API keys only loopback is accepted."""
    port: Port = 8080
    """0 takes any free port."""
    allowed_hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    """``Host`` headers accepted when there are no API keys (DNS rebinding)."""
    allowed_origins: tuple[str, ...] = ()
    """``Origin`` headers accepted besides the gateway's own, such as ``http://localhost:5173``."""
    body_max: Annotated[int, Meta(ge=1024, le=1 << 30)] = 64 << 20
    """Largest request body, in octets."""
    bodies_max: Annotated[int, Meta(ge=1024, le=1 << 40)] = 512 << 20
    """Most bytes of the bodies of all requests under way; more get 503. One client holds a part of it
    ([budgets](limits.md#budgets)). At least ``body_max``."""
    batch_max: Annotated[int, Meta(ge=1, le=100_000)] = 10_000
    """Most messages in one batch."""
    concurrency: Annotated[int, Meta(ge=1)] = 1_000
    """Most requests under way at once; more get 503. One client holds a part of it ([budgets](limits.md#budgets))."""
    connections_per_address: Annotated[int, Meta(ge=0)] = 200
    """Most connections from one remote address; more are closed at once. Loopback is not counted. 0: no limit."""
    connections: Annotated[int, Meta(ge=10, le=1_000_000)] = 4_000
    """Most connections at once, and at most half of the files that the process may open. See
    [connections](../explanation/security.md#connections)."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks (``10.1.0.0/16``) of proxies whose ``Forwarded`` or ``X-Forwarded-For`` says who calls
    ([behind a proxy](../explanation/security.md#behind-a-proxy))."""
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
    """Most messages that brokers hold under leases at once; see [budgets](limits.md#budgets)."""
    leases_bytes_max: Annotated[int, Meta(ge=1 << 20, le=1 << 40)] = 512 << 20
    """Most bytes of those messages; see [budgets](limits.md#budgets)."""
    access_log: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Share of the requests that are logged (``http.request``), and with it every one that failed (5xx), at most 200
    a second; 0: none."""
    drain_timeout: Seconds = 20.0
    """How long running requests may take at shutdown, in seconds."""
    drain_delay: Annotated[float, Meta(ge=0, le=300)] = 0.0
    """How long the API goes on taking requests after SIGTERM while it says that it is not ready, in seconds: until load
    balancers have noticed. A second signal ends it."""


class OpsSettings(Settings, frozen=True):
    """``[ops]``: ``/livez``, ``/readyz`` and ``/metrics``, on a port of their own."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 8081
    """0 takes any free port."""
    metrics_names: Annotated[int, Meta(ge=0, le=200)] = 20
    """Of how many bridges, taps, endpoints and subscriptions, each, ``/metrics`` has series by name; the others are
    together ``other``. There are 5,000 series at most, even with a larger value."""


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
    """0-10 is the draft of July 2007, for clients with its protocol header, which is that of the final."""
    users: tuple[EmbeddedUser, ...] = (EmbeddedUser(name="guest", password="guest"),)  # noqa: S106  # documented default of a development broker
    """Who may log in."""
    loopback_users: tuple[str, ...] = ("guest",)
    """Users that may log in from this machine only, as in RabbitMQ. Empty: all may come from anywhere."""
    anonymous: str = ""
    """The login of clients that come without one (ANONYMOUS); empty: they are sent away."""
    queue_memory: Annotated[int, Meta(ge=1 << 20)] = 256 << 20
    """Most octets of messages held over all queues. Near it publishers are asked to stop, then they are refused or
    not read from."""
    message_max: Annotated[int, Meta(ge=1024, le=1 << 30)] = DEFAULT_LIMITS.message_max
    """Largest message body, in bytes. A larger one than the default must fit into ``queue_memory``."""
    connections: Annotated[int, Meta(ge=1)] = DEFAULT_BROKER_LIMITS.connections
    """Most connections at once, per port."""
    connections_per_address: Annotated[int, Meta(ge=1)] = DEFAULT_BROKER_LIMITS.connections_per_address
    """Most of them from one remote address."""
    channels: Annotated[int, Meta(ge=1)] = DEFAULT_BROKER_LIMITS.channels
    """Most open channels, over all connections."""
    exchanges: Annotated[int, Meta(ge=16)] = DEFAULT_BROKER_LIMITS.exchanges
    """Most exchanges."""
    queues: Annotated[int, Meta(ge=1)] = DEFAULT_BROKER_LIMITS.queues
    """Most queues."""
    bindings: Annotated[int, Meta(ge=1)] = DEFAULT_BROKER_LIMITS.bindings
    """Most bindings."""
    consumers: Annotated[int, Meta(ge=1)] = DEFAULT_BROKER_LIMITS.consumers
    """Most consumers."""
    declared_bytes: Annotated[int, Meta(ge=1 << 16)] = DEFAULT_BROKER_LIMITS.declared_octets
    """Most bytes of the names, keys and arguments of all exchanges, queues, bindings and consumers."""
    handshake_timeout: Annotated[float, Meta(gt=0)] = DEFAULT_LIMITS.handshake_timeout
    """How long a client may take from connecting to an open connection, TLS included, in seconds."""
    stuck_timeout: Seconds = DEFAULT_BROKER_LIMITS.stuck_timeout
    """How long a client may not read what waits for it, or leave a message unfinished and send nothing, in seconds.
    Then it is cut off. 0: for ever."""
    ack_timeout: Seconds = DEFAULT_BROKER_LIMITS.ack_timeout
    """How long a delivery may be unacknowledged, in seconds. Then its channel is closed. 0: for ever."""
    tls: EmbeddedTls = EmbeddedTls()


class OutboundSettings(Settings, frozen=True):
    """``[outbound]``: whom the gateway may call over HTTP (endpoints, tokens), and where brokers may be that come over
    HTTP."""

    allow: tuple[str, ...] = ()
    """Networks (``10.1.0.0/16``) and hosts (``hooks.example``, ``*.hooks.example``) that may be called although they
    are not public, on any port and without TLS."""
    ports: tuple[Port, ...] = (443, 8443)
    """Ports that may be called anywhere else."""
    plain: bool = False
    """Whether ``http`` is allowed anywhere else."""
    broker_allow: tuple[str, ...] = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
    """Networks and hosts of brokers that ``PUT /v1/brokers/{broker}`` may name although they are not public. Brokers of
    the configuration file may be anywhere."""
    requests: Annotated[int, Meta(ge=1, le=1_024)] = 256
    """Most requests of endpoints at once."""
    origin: str = ""
    """The host name that the gateway gives as its own when it asks an endpoint whether it may call (``handshake``);
    empty: the machine's."""


class TracingSettings(Settings, frozen=True):
    """``[tracing]``: what happens to a message, as spans of OpenTelemetry."""

    endpoint: str = ""
    """Where spans are sent, by OTLP over HTTP in JSON: ``http://collector:4318/v1/traces``. Empty: there are no spans,
    and the caller's ``traceparent`` passes through."""
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
    """Other attributes of the sending process: ``"deployment.environment.name" = "production"``."""
    batch_max: Annotated[int, Meta(ge=1, le=10_000)] = 512
    """Most spans of one request."""
    queue_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 8_192
    """Most spans that wait; what is more is dropped and counted."""
    interval: Annotated[float, Meta(gt=0, le=300)] = 2.0
    """How long a span waits at most for others, in seconds."""
    timeout: Annotated[float, Meta(gt=0, le=300)] = 10.0
    """How long the collector may take for an answer, in seconds."""
