"""Class dtx (100) of 0-8: the channel takes part in a transaction of a coordinator that the server knows by other
means than AMQP, and which alone prepares and commits. 0-10 has two-phase commit of its own.

No broker that we know has it: ours answers 540, RabbitMQ 503, and Broker-J hangs up.
"""

from __future__ import annotations

from typing import Final

from gateway.classic.methods import Method, method
from gateway.wire.types import ShortStr


@method(100, 10)
class DtxSelect(Method):
    """Client: this channel works in distributed transactions."""


@method(100, 11, answers=(DtxSelect,))
class DtxSelectOk(Method):
    pass


@method(100, 20)
class DtxStart(Method):
    """Client: begin a transaction."""

    dtx_identifier: ShortStr
    """What the coordinator calls it; not empty."""


@method(100, 21, answers=(DtxStart,))
class DtxStartOk(Method):
    pass


METHODS: Final[tuple[type[Method], ...]] = (DtxSelect, DtxSelectOk, DtxStart, DtxStartOk)
"""The class, in the order of its numbers."""
