"""The methods of 0-9-1 that have another number or shape than 0-8's, or that only 0-9-1 has."""

from __future__ import annotations

from typing import Final

from gateway.classic import methods as m

DIFFERENT: Final[tuple[type[m.Method], ...]] = (
    m.ConnectionClose,
    m.ConnectionCloseOk,
    m.ConnectionBlocked,
    m.ConnectionUnblocked,
    m.ConnectionUpdateSecret,
    m.ConnectionUpdateSecretOk,
    m.ChannelOpenOk,
    m.ExchangeBind,
    m.ExchangeBindOk,
    m.ExchangeUnbind,
    m.ExchangeUnbindOk,
)
