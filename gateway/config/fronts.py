"""Settings of fronts: listeners for AMQP clients, served from a broker."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.config.base import Port, Seconds, Settings
from gateway.versions import VERSION_NAMES


class FrontUser(Settings, frozen=True):
    """``[[fronts.NAME.users]]``"""

    name: str
    """Login."""
    password: str = ""
    """Password, in clear; prefer ``password_file``."""
    password_file: str = ""
    """File that holds the password."""
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
    users: tuple[FrontUser, ...] = ()
    """Who may log in."""
    rules: dict[str, Literal["on", "off"]] = {}
    """Rewriting rules to switch on or off, for every release of the broker."""
    transient_expires_seconds: Seconds = 86_400.0
    """After how long a queue that was to be transient goes when nobody uses it (rule ``transient_queue``); 0: never."""
    prefetch_max: Annotated[int, Meta(ge=1, le=65_535)] = 256
    """Most deliveries that the broker sends ahead for one consumer. A client that asks for more gets this many."""
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
    connections: Annotated[int, Meta(ge=1, le=1_000_000)] = 4_096
    """Most clients at once."""
    connections_per_address: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_024
    """Most clients at once from one remote address."""
    upstream_connections: Annotated[int, Meta(ge=1, le=64)] = 4
    """Most connections to one broker: a further one is opened when those that there are have no channels left."""
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
    if not front.users:
        return "users: the list is empty, so nobody can log in. Add [[fronts.NAME.users]]."
    names = [user.name for user in front.users]
    if len(set(names)) < len(names):
        return "users: a name is there twice"
    for user in front.users:
        if bool(user.password) is bool(user.password_file):
            return f"users.{user.name}.password: give it, or password_file, and not both"
    if front.message_max > front.memory:
        return f"message_max: {front.message_max} is more than memory = {front.memory}"
    return None
