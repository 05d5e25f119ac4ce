"""What varies between versions and products, as values.

The machinery of this package asks a :class:`Dialect` and never compares version numbers or product names. A
client session starts with its version's first dialect and takes the one that the server's product names
(:func:`choose`), unless its configuration says otherwise; a server session chooses by the client's product.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.classic.methods import (
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    ChannelOpenOk,
    ChannelOpenOk08,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionRedirect,
    Method,
)
from gateway.classic.tables import QPID_TAGS, RABBITMQ_TAGS
from gateway.session import Version


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """One version as one product speaks it."""

    name: str
    """``rabbitmq``, ``qpid`` or ``published``; what the configuration calls it."""
    version: Version
    start_version: tuple[int, int]
    """version-major and version-minor of connection.start."""
    methods: Mapping[int, type[Method]]
    """Every method that may be received, by key."""
    connection_close: type[ConnectionClose]
    connection_close_ok: type[ConnectionCloseOk]
    channel_open_ok: type[ChannelOpenOk] | type[ChannelOpenOk08]
    properties: str
    """Name of the encoding of content properties: octets pass untouched between sessions where it is equal."""
    alike: frozenset[str] = frozenset()
    """Names of encodings that are equal but for the property cluster-id."""
    unserved: frozenset[int] = frozenset()
    """Keys of the methods that no session serves: 540 answers them."""
    redirect: type[ConnectionRedirect] | None = None
    """connection.redirect; None: there is no such thing, or a server does not send it."""
    tags: Mapping[str, str] = field(default_factory=lambda: RABBITMQ_TAGS)
    """Tags of field tables."""
    recover: type[BasicRecover] | type[BasicRecoverAsync] = BasicRecover
    recover_ok: type[BasicRecoverOk] | None = BasicRecoverOk
    """None: recover is not answered."""
    async_recover_ok: type[BasicRecoverOk] | None = None
    """What answers 60/100 (a server's view)."""
    recover_without_requeue: bool = True
    """False: the server answers 540."""
    consume_arguments: bool = True
    """basic.consume ends with a table."""
    bare_consume: bool = False
    """As a server: it may come without."""
    access_request: bool = False
    """A channel needs a ticket before anything else."""
    unbind_queue: bool = True
    query_binding: bool = False
    """exchange.bound."""
    browse: bool = False
    """``x-filter-no-consume``."""
    immediate: bool = True
    """False: the server answers 540."""
    prefetch_size: bool = True
    """False: the server answers 540."""
    channel_prefetch: bool = False
    """basic.qos counts for all consumers of its channel, and at once, whether it is ``global`` or not."""
    flow_from_client: bool = True
    """False: the server answers 540 to channel.flow."""
    update_secret: bool = False
    """connection.update-secret."""
    nack_before_return: bool = False
    """A publish that cannot be routed is refused first and returned next, not returned and acknowledged."""
    release_many: bool = True
    """basic.nack with multiple and requeue gives back all it names."""
    native_dead_letter: bool = True
    absolute_expiration: bool = False
    """``expiration`` is milliseconds since 1970."""
    transient_overtakes: bool = False
    """Of the publishes on a channel, transient messages reach their queues before persistent ones that came earlier."""
    counts_unacked: bool = False
    routes_copies: bool = False
    """The headers CC and BCC name further routing keys."""
    redeclare_checked: bool = True
    """Declaring what exists with other settings is refused."""
    validates_headers: bool = False
    """The broker cannot read some headers, and drops their messages half a minute later, without an error. It cannot
    read text that is not UTF-8, an empty name or table, and a character above U+FFFF in a name. The same goes for a
    decimal with a scale above 127, an array of small unsigned integers, and an array of no octets."""
    finite_floats: bool = False
    """The broker closes the connection (541) over a header that holds NaN or an infinity."""
    expands_gzip: bool = False
    """The broker unpacks bodies whose content-encoding is ``gzip`` on their way to a consumer, and takes the property
    off."""
    cluster_id: bool = False
    """The property exists."""
    capabilities_table: bool = True
    """Properties hold a table of capabilities, in both directions."""


QPID_TRAITS: Final[Mapping[str, Any]] = {
    "tags": QPID_TAGS,
    **dict.fromkeys(
        (
            "recover_without_requeue", "query_binding", "browse", "immediate", "prefetch_size", "flow_from_client",
            "nack_before_return", "absolute_expiration", "transient_overtakes", "counts_unacked", "expands_gzip",
            "validates_headers", "channel_prefetch",
        ),
        True,
    ),
    **dict.fromkeys(
        (
            "update_secret", "release_many", "native_dead_letter", "redeclare_checked", "routes_copies",
            "finite_floats",
        ),
        False,
    ),
}  # fmt: skip
"""How Apache Qpid Broker-J behaves in every classic version."""

NOT_IMPLEMENTED: Final = 540


def refused_method(dialect: Dialect, code: int, text: str, key: int) -> str:
    """The text of a peer's close. One with 540 names the method that the peer does not have, whether or not the peer
    wrote it down in words."""
    method = dialect.methods.get(key)
    if code != NOT_IMPLEMENTED or method is None or method.title in text:
        return text
    return f"{method.title}: {text}"


def table_of(*groups: Iterable[type[Method]]) -> Mapping[int, type[Method]]:
    """Methods by key; later ones replace earlier ones of the same number."""
    return {method.key: method for group in groups for method in group}


PRODUCTS: Final = {"amqp gateway": "rabbitmq", "qpid": "qpid", "rabbitmq": "rabbitmq"}
"""Part of a product's name, in lower case -> the name of its dialect; the first that is found. The embedded broker
answers as RabbitMQ does, but names Qpid in its product, since Qpid's client looks for that."""


def choose(dialects: Mapping[str, Dialect], product: str, override: str | None = None) -> Dialect:
    """The dialect for a product, or the one that the configuration names; the first where nothing matches."""
    if override is not None and override in dialects:
        return dialects[override]
    lowered = product.lower()
    for part, name in PRODUCTS.items():
        if part in lowered and name in dialects:
            return dialects[name]
    return next(iter(dialects.values()))
