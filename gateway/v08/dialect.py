"""0-8 as RabbitMQ speaks it, as Qpid speaks it, and as it was published."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.classic import methods
from gateway.classic.dialect import QPID_TRAITS, Dialect, table_of
from gateway.classic.tables import PUBLISHED_TAGS
from gateway.v08.methods import DIFFERENT, OF_PRODUCTS, OF_THE_DEFINITION
from gateway.v08.unserved import UNSERVED
from gateway.v08.version import V0_8

RABBITMQ: Final = Dialect(
    name="rabbitmq",
    routes_copies=True,
    finite_floats=True,
    version=V0_8,
    start_version=(8, 0),
    methods=table_of(methods.SHARED, DIFFERENT, UNSERVED.methods, OF_PRODUCTS),
    unserved=frozenset(method.key for method in UNSERVED.methods),
    connection_close=methods.ConnectionClose08,
    connection_close_ok=methods.ConnectionCloseOk08,
    channel_open_ok=methods.ChannelOpenOk08,
    redirect=methods.ConnectionRedirect,
    properties="classic/rabbitmq/0-8",
    alike=frozenset({"classic/rabbitmq/0-9-1"}),
    recover_without_requeue=False,
    consume_arguments=False,
    bare_consume=True,
    immediate=False,
    prefetch_size=False,
    flow_from_client=False,
    cluster_id=True,
    capabilities_table=False,
)
"""RabbitMQ up to 3.x."""

QPID: Final = replace(
    RABBITMQ,
    **QPID_TRAITS,
    name="qpid",
    properties="classic/qpid/0-8",
    alike=frozenset({"classic/qpid/0-9-1"}),
    recover=methods.BasicRecoverAsync,
    recover_ok=methods.BasicRecoverOk08,
    async_recover_ok=methods.BasicRecoverOk08,
    consume_arguments=True,
)
"""Apache Qpid Broker-J."""

PUBLISHED: Final = replace(
    RABBITMQ,
    routes_copies=False,
    finite_floats=False,
    name="published",
    methods=table_of(methods.SHARED, DIFFERENT, UNSERVED.methods, OF_THE_DEFINITION),
    properties="classic/published/0-8",
    alike=frozenset(),
    tags=PUBLISHED_TAGS,
    recover=methods.BasicRecoverAsync,
    recover_ok=None,
    recover_without_requeue=True,
    access_request=True,
    unbind_queue=False,
    immediate=True,
    prefetch_size=True,
    flow_from_client=True,
    native_dead_letter=False,
)
"""The definition of 2006, for brokers of that time; only by configuration."""

DIALECTS: Final = {dialect.name: dialect for dialect in (RABBITMQ, QPID, PUBLISHED)}
