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
    m.BasicRecoverOk08,
)
