"""0-9 as RabbitMQ answers it, as Qpid speaks it, and as it was published."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.classic import methods
from gateway.classic.dialect import QPID_TRAITS, Dialect, table_of
from gateway.classic.tables import PUBLISHED_TAGS
from gateway.v09.methods import OF_QPID, OF_RABBITMQ, OF_THE_DEFINITION, BasicRecoverSync, BasicRecoverSyncOk
from gateway.v09.unserved import UNSERVED
from gateway.v09.version import V0_9

RABBITMQ: Final = Dialect(
    name="rabbitmq",
    routes_copies=True,
    finite_floats=True,
    version=V0_9,
    start_version=(0, 9),
    methods=table_of(methods.SHARED, UNSERVED.methods, OF_THE_DEFINITION, OF_RABBITMQ),
    unserved=frozenset(method.key for method in UNSERVED.methods),
    connection_close=methods.ConnectionClose,
    connection_close_ok=methods.ConnectionCloseOk,
    channel_open_ok=methods.ChannelOpenOk,
    redirect=methods.ConnectionRedirect09,
    properties="classic/rabbitmq/0-8",
    alike=frozenset({"classic/rabbitmq/0-9-1"}),
    recover_without_requeue=False,
    immediate=False,
    prefetch_size=False,
    flow_from_client=False,
    update_secret=True,
    cluster_id=True,
)
"""RabbitMQ, which answers the header of 0-9 and goes on in 0-9-1. The property list is 0-8's."""

QPID: Final = replace(
    RABBITMQ,
    **QPID_TRAITS,
    name="qpid",
    methods=table_of(methods.SHARED, UNSERVED.methods, OF_THE_DEFINITION, OF_QPID),
    properties="classic/qpid/0-8",
    alike=frozenset({"classic/qpid/0-9-1"}),
    recover=BasicRecoverSync,
    recover_ok=BasicRecoverSyncOk,
)
"""Apache Qpid Broker-J."""

PUBLISHED: Final = replace(
    RABBITMQ,
    name="published",
    routes_copies=False,
    finite_floats=False,
    methods=table_of(methods.SHARED, UNSERVED.methods, OF_THE_DEFINITION),
    properties="classic/published/0-8",
    alike=frozenset(),
    tags=PUBLISHED_TAGS,
    recover=methods.BasicRecoverAsync,
    recover_ok=None,
    recover_without_requeue=True,
    access_request=True,
    immediate=True,
    prefetch_size=True,
    flow_from_client=True,
    update_secret=False,
    native_dead_letter=False,
    capabilities_table=False,
)
"""The definition of 2006, for brokers of that time; only by configuration."""

DIALECTS: Final = {dialect.name: dialect for dialect in (RABBITMQ, QPID, PUBLISHED)}
