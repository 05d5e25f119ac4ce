"""Real servers for the tests: private instances of RabbitMQ, Apache Qpid Broker-J and PostgreSQL.

``tests/servers/install.sh`` installs what is needed, once. Then, in a test::

    @pytest.mark.broker
    async def test_it(rabbitmq, brokerj, postgresql):        # started when the first test asks, shared by all
        rabbitmq.url("0-9-1")            # 4.0; amqp://guest:guest@127.0.0.1:PORT/%2F?version=0-9-1
        rabbitmq.port, rabbitmq.user, rabbitmq.password, rabbitmq.virtual_host, rabbitmq.versions
        rabbitmq.ctl("list_queues")      # rabbitmqctl, 2 s; rabbitmq.api("GET", "queues") is quick
        rabbitmq.queue_depth("orders"); rabbitmq.queues(); rabbitmq.delete_queue("orders")
        rabbitmq.create_user("ann", "secret"); rabbitmq.close_connections()

        rabbitmq.release                 # (4, 0, 5), as the server states it

        brokerj.url("0-10")              # the durable virtual host "default"; "memory" is the other one:
        brokerj.url("0-10", "memory")
        brokerj.queue_depth("orders"); brokerj.queue_depth("orders", "memory")
        brokerj.create_queue("full", overflowPolicy="REJECT", maximumQueueDepthMessages=3)

        url = postgresql.create_database()       # postgresql+psycopg://gateway@127.0.0.1:PORT/tHEX, empty

``rabbitmq`` is RabbitMQ 4.0, with upstream's defaults; :data:`MAIN_VARIABLE` names another kind instead. It speaks
0-9-1 only. For 0-8 there are the fixture ``rabbitmq310`` and the kind ``rabbitmq-3.10``; :func:`serving` finds the kind
for a version. ``rabbitmq40`` and ``rabbitmq43`` are one release each, whatever the main one is.

A test that hurts its server takes a private one; it is started once per test module and kind, and is up again
for each test that asks::

    @pytest.mark.broker
    async def test_crash(private_server):
        rabbitmq = private_server("rabbitmq")    # or "brokerj", "postgresql", …
        rabbitmq.kill()                          # SIGKILL; halt() ends it in good order
        rabbitmq.restart()                       # the same ports and data
        rabbitmq.pause(); rabbitmq.resume()      # SIGSTOP, SIGCONT
        rabbitmq.memory_alarm(True)

    @pytest.mark.broker
    async def test_tls(private_server):
        rabbitmq = private_server("rabbitmq-tls")    # or "brokerj-tls"
        rabbitmq.tls_port, rabbitmq.certificates.ca_file

Shared servers refuse kill, halt, pause and restart where another process started them. Names of queues and
exchanges on shared servers should be unique (``unique_name`` fixture), and memory alarms belong on private ones.

Without pytest::

    with started(RabbitMQ()) as rabbitmq: ...

    python -m tests.servers up --file servers.json       # start one of each, for several test processes
    GATEWAY_TEST_SERVERS=servers.json pytest ...         # use them
    python -m tests.servers down --file servers.json     # end them

What cannot be had fails with :class:`ServerUnavailable`, whose sentence says what to install; nothing skips.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from tests.servers.brokerj import BrokerJ, BrokerJWithTls
from tests.servers.postgresql import PostgreSQL
from tests.servers.process import MAIN_VARIABLE, Server, ServerUnavailable, started
from tests.servers.rabbitmq import RabbitMQ, RabbitMQ310, RabbitMQ310WithTls, RabbitMQWithTls
from tests.servers.rabbitmq4 import RabbitMQ40, RabbitMQ40WithTls, RabbitMQ43, RabbitMQ43WithTls

_MAIN: Final[str] = os.environ.get(MAIN_VARIABLE) or RabbitMQ40.kind

KINDS: Mapping[str, type[Server]] = {
    kind.kind: kind for kind in (RabbitMQ310, RabbitMQ40, RabbitMQ43, BrokerJ, PostgreSQL)
}
"""Those that may be shared."""

_WITH_TLS = (RabbitMQ310WithTls, RabbitMQ40WithTls, RabbitMQ43WithTls, BrokerJWithTls)
_PRIVATE: Mapping[str, type[Server]] = {**KINDS, **{kind.kind: kind for kind in _WITH_TLS}}

if _MAIN not in KINDS or not issubclass(KINDS[_MAIN], RabbitMQ):
    raise ServerUnavailable(
        f"{MAIN_VARIABLE} is {_MAIN!r}: it must be one of "
        f"{', '.join(name for name, kind in KINDS.items() if issubclass(kind, RabbitMQ))}."
    )

MainRabbitMQ: Final = KINDS[_MAIN]
"""The class of the main RabbitMQ."""

PRIVATE_KINDS: Mapping[str, type[Server]] = {
    **_PRIVATE,
    "rabbitmq": MainRabbitMQ,
    "rabbitmq-tls": _PRIVATE[f"{_MAIN}-tls"],
}
"""Those that a test may have for itself; ``rabbitmq`` and ``rabbitmq-tls`` are those of the main release."""

VARIABLE = "GATEWAY_TEST_SERVERS"
"""Environment variable that names the file of running servers."""


def serving(kind: str, version: str) -> str:
    """The kind that serves a version: RabbitMQ 4 has no 0-8, and 3.10 has."""
    suffix = "-tls" if kind.endswith("-tls") else ""
    return RabbitMQ310.kind + suffix if (kind, version) == (f"rabbitmq{suffix}", "0-8") else kind


__all__ = [
    "KINDS",
    "MAIN_VARIABLE",
    "PRIVATE_KINDS",
    "VARIABLE",
    "BrokerJ",
    "BrokerJWithTls",
    "MainRabbitMQ",
    "PostgreSQL",
    "RabbitMQ",
    "RabbitMQ40",
    "RabbitMQ43",
    "RabbitMQ310",
    "RabbitMQ310WithTls",
    "RabbitMQWithTls",
    "Server",
    "ServerUnavailable",
    "serving",
    "started",
]
