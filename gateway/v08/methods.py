"""The methods of 0-8 that have another number or shape than the shared ones, or that only 0-8 has."""

from __future__ import annotations

from typing import Final

from gateway.classic import methods as m

DIFFERENT: Final[tuple[type[m.Method], ...]] = (
    m.ConnectionRedirect,
    m.ConnectionClose08,
    m.ConnectionCloseOk08,
    m.ChannelOpenOk08,
    m.ChannelAlert,
    m.AccessRequest,
    m.AccessRequestOk,
)
OF_PRODUCTS: Final[tuple[type[m.Method], ...]] = (m.BasicRecoverOk08,)
"""What Qpid answers to 60/100."""
OF_THE_DEFINITION: Final[tuple[type[m.Method], ...]] = (m.BasicConsume08,)
"""What was published and has another shape in the products."""
