"""The methods of 0-8 that have another number or shape than the shared ones, or that only 0-8 has."""

from __future__ import annotations

from typing import Final

from gateway.classic import methods

DIFFERENT: Final[tuple[type[methods.Method], ...]] = (
    methods.ConnectionRedirect,
    methods.ConnectionClose08,
    methods.ConnectionCloseOk08,
    methods.ChannelOpenOk08,
    methods.ChannelAlert,
    methods.AccessRequest,
    methods.AccessRequestOk,
)
OF_PRODUCTS: Final[tuple[type[methods.Method], ...]] = (methods.BasicRecoverOk08,)
"""What Qpid answers to 60/100."""
OF_THE_DEFINITION: Final[tuple[type[methods.Method], ...]] = (methods.BasicConsume08,)
"""What was published and has another shape in the products."""
