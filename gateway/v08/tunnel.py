"""Class tunnel (110) of 0-8: octets of another protocol as the content of a method.

No broker that we know has it: ours answers 540, RabbitMQ 503, and Broker-J hangs up.
"""

from __future__ import annotations

from typing import Final

from gateway.classic.methods import Method, method
from gateway.wire.types import FieldTable


@method(110, 10, content=True)
class TunnelRequest(Method):
    """Either side."""

    meta_data: FieldTable
    """What the tunnel needs to know of the octets."""


METHODS: Final[tuple[type[Method], ...]] = (TunnelRequest,)
"""The class, in the order of its numbers."""
