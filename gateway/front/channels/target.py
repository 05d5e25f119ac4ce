"""What the upstream of a front can do: learned from its session, never from its version."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from gateway.session import Capabilities, Version
from gateway.versions import protocol_of

RABBITMQ: Final = "rabbitmq"
QPID: Final = "qpid"
OTHER: Final = "other"
PRODUCTS: Final = (QPID, RABBITMQ)
"""Parts of what products call themselves, in lower case. The embedded broker names Qpid, and answers as RabbitMQ."""
_GATEWAY: Final = "amqp gateway"


@dataclass(frozen=True, slots=True)
class Target:
    """One upstream connection, as rules and the table of operations ask it."""

    product: str = OTHER
    """``rabbitmq``, ``qpid``, or ``other``."""
    release: tuple[int, int] = (0, 0)
    """Of the product; (0, 0): not known."""
    is_native: bool = False
    """It is spoken to in commands and not in methods (0-10)."""
    version: str = ""
    """The one that is spoken with it."""
    flow_from_client: bool = False
    recover_without_requeue: bool = False
    channel_prefetch: bool = False
    """A prefetch counts for all consumers of its channel, and at once."""
    capabilities: Capabilities = field(default_factory=Capabilities)


def target_of(version: Version, capabilities: Capabilities) -> Target:
    """Return what is known of an open connection."""
    named = capabilities.product.lower()
    product = OTHER if _GATEWAY in named else next((each for each in PRODUCTS if each in named), OTHER)
    found = re.match(r"(\d{1,5})\.(\d{1,5})", capabilities.product_version)
    protocol = protocol_of(version, capabilities.dialect)
    dialect = protocol.dialects.get(product) or next(iter(protocol.dialects.values()), None)
    return Target(
        product,
        (int(found[1]), int(found[2])) if found is not None else (0, 0),
        not protocol.is_classic,
        version.value,
        dialect is None or dialect.flow_from_client,
        dialect is not None and dialect.recover_without_requeue,
        dialect is not None and dialect.channel_prefetch,
        capabilities,
    )
