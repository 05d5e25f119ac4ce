"""The methods of 0-9-1 that have another number or shape than 0-8's, or that only 0-9-1 has."""

from __future__ import annotations

from typing import Final

from gateway.classic import methods

DIFFERENT: Final[tuple[type[methods.Method], ...]] = (
    methods.ConnectionClose,
    methods.ConnectionCloseOk,
    methods.ConnectionBlocked,
    methods.ConnectionUnblocked,
    methods.ConnectionUpdateSecret,
    methods.ConnectionUpdateSecretOk,
    methods.ChannelOpenOk,
    methods.ExchangeBind,
    methods.ExchangeBindOk,
    methods.ExchangeUnbind,
    methods.ExchangeUnbindOk,
)
