"""Settings of fronts: listeners for AMQP clients, served from a broker."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.config.base import Port, Seconds, Settings
from gateway.versions import VERSION_NAMES


class FrontTls(Settings, frozen=True):
    """``[fronts.NAME.tls]``: the port speaks TLS only. Files that change are read again, for new connections."""

    cert_file: str = ""
    """Certificate chain of the server (PEM); empty: the port speaks no TLS."""
    key_file: str = ""
    """Its key (PEM); empty: it is in ``cert_file``."""
    client_ca_file: str = ""
    """Authorities of clients' certificates (PEM). A client that shows one is offered EXTERNAL, as the user that is its
    subject's common name. Empty: none is asked for."""
    clients: Literal["optional", "required"] = "optional"
    """Whether a client must have one to connect at all. ``required`` needs ``client_ca_file``."""


class FrontUser(Settings, frozen=True):
    """``[[fronts.NAME.users]]``"""

    name: str
    """Login."""
    password: str = ""
    """Password, in clear; prefer ``password_file``."""
    password_file: str = ""
    """File that holds the password. A user with neither logs in by certificate only."""
    scopes: tuple[str, ...] = ("admin",)
    """What the user may do, as the scopes of API keys: ``publish:BROKER/EXCHANGE``, ``route:…``,
    ``consume:BROKER/QUEUE``, ``broker:BROKER``, ``admin``."""


class FrontSettings(Settings, frozen=True):
    """``[fronts.NAME]``: a port for AMQP clients of any version, which are served from a broker."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 5673
    """0 takes any free port."""
    broker: str = ""
    """The broker behind the virtual host ``/``."""
    virtual_hosts: dict[str, str] = {}
    """Virtual host -> broker, in place of ``broker``."""
    versions: tuple[str, ...] = ()
    """Versions that clients may speak; empty: all."""
    login: Literal["gateway", "pass"] = "gateway"
    """Who checks logins. ``gateway``: clients are users of ``users``. ``pass``: the broker checks the client's user and
    password, and its permissions count."""
    logins: Annotated[int, Meta(ge=1, le=65_535)] = 1_024
    """Most different logins at once with ``login = "pass"``. Each has broker connections of its own."""
    users: tuple[FrontUser, ...] = ()
    """Who may log in."""
    tls: FrontTls = FrontTls()
    rules: dict[str, Literal["on", "off"]] = {}
    """Rewriting rules to switch on or off, for every release of the broker."""
    transient_expires_seconds: Seconds = 86_400.0
    """After how long a queue that was to be transient goes when nobody uses it (rule ``transient_queue``); 0: never."""
    prefetch_max: Annotated[int, Meta(ge=1, le=65_535)] = 256
    """Most deliveries that the broker sends ahead for one consumer. A client that asks for more gets more once it holds
    that many, as far as it reads them and the budget ``front_deliveries`` goes."""
    publish_window: Annotated[int, Meta(ge=1, le=65_535)] = 1_000
    """Most publishes of one channel without the broker's confirm; its client waits at more."""
    publish_window_bytes: Annotated[int, Meta(ge=1 << 16)] = 16 << 20
    """The same in bytes; one message goes however large it is."""
    client_bytes: Annotated[int, Meta(ge=1 << 16)] = 16 << 20
    """Bytes of deliveries that wait for one client, above which nothing is read from its broker connection."""
    memory: Annotated[int, Meta(ge=1 << 20)] = 256 << 20
    """Most bytes of messages at the front: without a confirm, held for their clients, or not there yet. Publishers wait
    at more."""
    message_max: Annotated[int, Meta(ge=1_024, le=1 << 30)] = 16 << 20
    """Largest message body, in bytes."""
    record: Literal["none", "publish", "all"] = "none"
    """Which messages get a timeline in the ledger. ``publish``: what clients publish, outside of transactions. ``all``:
    that, and what is delivered to them."""
    store: Literal["never", "when-down", "always"] = "never"
    """Which publishes go to the ledger, which confirms them and sends them to the broker. ``never``: none; publishers
    wait while the broker is away. ``when-down``: those that come while it is away. ``always``: all. Needs
    ``login = "gateway"``."""
    store_bytes: Annotated[int, Meta(ge=1 << 16)] = 1 << 30
    """Most bytes of messages in the ledger that wait for the broker."""
    store_seconds: Seconds = 86_400.0
    """How long a stored publish may wait before nothing more is stored; 0: for ever."""
    store_full: Literal["wait", "refuse"] = "wait"
    """What becomes of further publishes when nothing more is stored. ``wait``: nothing is read from the publisher.
    ``refuse``: they are refused (nack, or 506 on a channel without confirms)."""
    connections: Annotated[int, Meta(ge=1, le=1_000_000)] = 4_096
    """Most clients at once."""
    connections_per_address: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_024
    """Most clients at once from one remote address."""
    upstream_connections: Annotated[int, Meta(ge=1, le=64)] = 4
    """Most connections to one broker for each login there: a further one is opened when those that there are have no
    channels left."""
    handshake_timeout_seconds: Annotated[float, Meta(gt=0, le=600)] = 10.0
    """From the first packet to an open connection."""
    stuck_timeout_seconds: Seconds = 60.0
    """How long a client may take nothing of what waits for it, or leave a frame unfinished; 0: for ever."""


def check_front(front: FrontSettings) -> str | None:
    """What is wrong with the settings of a front: ``SETTING: why``; None: nothing."""
    if bool(front.broker) is bool(front.virtual_hosts):
        return "broker: give it, or virtual_hosts, and not both"
    if unknown := [name for name in front.versions if name not in VERSION_NAMES]:
        return f"versions: there is no version {unknown[0]!r}; there are {', '.join(VERSION_NAMES)}"
    if (wrong := _check_tls(front.tls)) is not None:
        return wrong
    if front.login == "pass":
        if front.store != "never":
            return "store: the ledger's publishes go out with the gateway's own login. Use login = 'gateway'."
        if front.users:
            return "users: with login = 'pass' the broker has the users. Remove them here, or use login = 'gateway'."
        if front.virtual_hosts:
            return "virtual_hosts: login = 'pass' needs one broker, which checks every login. Set broker instead."
        if front.tls.client_ca_file:
            return "tls.client_ca_file: login = 'pass' takes passwords only, since a certificate cannot be passed on"
    elif not front.users:
        return "users: the list is empty, so nobody can log in. Add [[fronts.NAME.users]], or use login = 'pass'."
    names = [user.name for user in front.users]
    if len(set(names)) < len(names):
        return "users: a name is there twice"
    for user in front.users:
        if user.password and user.password_file:
            return f"users.{user.name}.password: give it, or password_file, and not both"
        if not (user.password or user.password_file or front.tls.client_ca_file):
            return (
                f"users.{user.name}.password: give it, or password_file; only tls.client_ca_file lets a user do without"
            )
    if front.message_max > front.memory:
        return f"message_max: {front.message_max} is more than memory = {front.memory}"
    return None


def _check_tls(tls: FrontTls) -> str | None:
    for name in ("key_file", "client_ca_file"):
        if getattr(tls, name) and not tls.cert_file:
            return f"tls.{name}: it needs tls.cert_file"
    if tls.clients == "required" and not tls.client_ca_file:
        return "tls.clients: 'required' needs tls.client_ca_file"
    return None
