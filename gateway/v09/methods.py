"""The methods of 0-9 that are neither 0-8's nor 0-9-1's, and those that it shares with one of them."""

from __future__ import annotations

from typing import Final

from gateway.classic import methods


@methods.method(60, 102, like=methods.BasicRecover)
class BasicRecoverSync(methods.BasicRecover):
    """Client, Qpid: what 0-9-1 has as 60.110."""


@methods.method(60, 101, answers=(BasicRecoverSync,), like=methods.BasicRecoverOk)
class BasicRecoverSyncOk(methods.BasicRecoverOk):
    """Server, Qpid."""


OF_THE_DEFINITION: Final[tuple[type[methods.Method], ...]] = (
    methods.ConnectionRedirect09,
    methods.ConnectionClose,
    methods.ConnectionCloseOk,
    methods.ChannelOpenOk,
    methods.AccessRequest,
    methods.AccessRequestOk,
)
OF_QPID: Final[tuple[type[methods.Method], ...]] = (BasicRecoverSync, BasicRecoverSyncOk)
OF_RABBITMQ: Final[tuple[type[methods.Method], ...]] = (
    methods.ConnectionBlocked,
    methods.ConnectionUnblocked,
    methods.ConnectionUpdateSecret,
    methods.ConnectionUpdateSecretOk,
    methods.ExchangeBind,
    methods.ExchangeBindOk,
    methods.ExchangeUnbind,
    methods.ExchangeUnbindOk,
)
"""RabbitMQ answers the header of 0-9 and goes on in 0-9-1, with its extensions."""
