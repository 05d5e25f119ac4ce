"""0-9-1 as RabbitMQ speaks it and as Qpid speaks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.classic import methods
from gateway.classic.dialect import QPID_TRAITS, Dialect, table_of
from gateway.v091.methods import DIFFERENT
from gateway.v091.version import V0_9_1

RABBITMQ: Final = Dialect(
    name="rabbitmq",
    routes_copies=True,
    finite_floats=True,
    version=V0_9_1,
    start_version=(0, 9),
    methods=table_of(methods.SHARED, DIFFERENT),
    connection_close=methods.ConnectionClose,
    connection_close_ok=methods.ConnectionCloseOk,
    channel_open_ok=methods.ChannelOpenOk,
    properties="classic/rabbitmq/0-9-1",
    alike=frozenset({"classic/rabbitmq/0-8"}),
    recover_without_requeue=False,
    immediate=False,
    prefetch_size=False,
    flow_from_client=False,
    update_secret=True,
)
"""RabbitMQ with its extensions."""

QPID: Final = replace(
    RABBITMQ,
    **QPID_TRAITS,
    name="qpid",
    properties="classic/qpid/0-9-1",
    alike=frozenset({"classic/qpid/0-8"}),
)
"""Apache Qpid Broker-J."""

DIALECTS: Final = {dialect.name: dialect for dialect in (RABBITMQ, QPID)}
