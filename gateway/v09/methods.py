"""The methods of 0-9 that are neither 0-8's nor 0-9-1's, and those that it shares with one of them."""

from __future__ import annotations

from typing import Final

from gateway.classic import methods as m


@m.method(60, 102, like=m.BasicRecover)
class BasicRecoverSync(m.BasicRecover):
    """Client, Qpid: what 0-9-1 has as 60.110."""


@m.method(60, 101, answers=(BasicRecoverSync,), like=m.BasicRecoverOk)
class BasicRecoverSyncOk(m.BasicRecoverOk):
    """Server, Qpid."""


OF_THE_DEFINITION: Final[tuple[type[m.Method], ...]] = (
    m.ConnectionRedirect09,
    m.ConnectionClose,
    m.ConnectionCloseOk,
    m.ChannelOpenOk,
    m.AccessRequest,
    m.AccessRequestOk,
)
OF_QPID: Final[tuple[type[m.Method], ...]] = (BasicRecoverSync, BasicRecoverSyncOk)
OF_RABBITMQ: Final[tuple[type[m.Method], ...]] = (
    m.ConnectionBlocked,
    m.ConnectionUnblocked,
    m.ConnectionUpdateSecret,
    m.ConnectionUpdateSecretOk,
    m.ExchangeBind,
    m.ExchangeBindOk,
    m.ExchangeUnbind,
    m.ExchangeUnbindOk,
)
"""RabbitMQ answers the header of 0-9 and goes on in 0-9-1, with its extensions."""
