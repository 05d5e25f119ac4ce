"""Real servers for the tests: private instances of RabbitMQ, Apache Qpid Broker-J and PostgreSQL.

``tests/servers/install.sh`` installs what is needed, once. Then, in a test::

    @pytest.mark.broker
    async def test_it(rabbitmq, brokerj, postgresql):        # started when the first test asks, shared by all
        rabbitmq.url("0-9-1")            # amqp://guest:guest@127.0.0.1:PORT/%2F?version=0-9-1
        rabbitmq.port, rabbitmq.user, rabbitmq.password, rabbitmq.virtual_host, rabbitmq.versions
        rabbitmq.ctl("list_queues")      # rabbitmqctl, 2 s; rabbitmq.api("GET", "queues") is quick
        rabbitmq.queue_depth("orders"); rabbitmq.queues(); rabbitmq.delete_queue("orders")
        rabbitmq.create_user("ann", "secret"); rabbitmq.close_connections()

        rabbitmq40, rabbitmq43           # fixtures of RabbitMQ 4.0 and 4.3: 0-9-1 only, upstream's defaults
        rabbitmq43.release               # (4, 3, 6), as the server states it

        brokerj.url("0-10")              # the durable virtual host "default"; "memory" is the other one:
        brokerj.url("0-10", "memory")
        brokerj.queue_depth("orders"); brokerj.queue_depth("orders", "memory")
        brokerj.create_queue("full", overflowPolicy="REJECT", maximumQueueDepthMessages=3)

        url = postgresql.create_database()       # postgresql+psycopg://gateway@127.0.0.1:PORT/tHEX, empty

A test that hurts its server takes a private one; it is started once per test module and kind, and is up again
for each test that asks::

    @pytest.mark.broker
    async def test_crash(private_server):
        rabbitmq = private_server("rabbitmq")    # or "rabbitmq-4.0", "rabbitmq-4.3", "brokerj", "postgresql"
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

from collections.abc import Mapping

from tests.servers.brokerj import BrokerJ, BrokerJWithTls
from tests.servers.postgresql import PostgreSQL
from tests.servers.process import Server, ServerUnavailable, started
from tests.servers.rabbitmq import RabbitMQ, RabbitMQWithTls
from tests.servers.rabbitmq4 import RabbitMQ40, RabbitMQ43

KINDS: Mapping[str, type[Server]] = {
    kind.kind: kind for kind in (RabbitMQ, RabbitMQ40, RabbitMQ43, BrokerJ, PostgreSQL)
}
"""Those that may be shared."""

PRIVATE_KINDS: Mapping[str, type[Server]] = {
    **KINDS,
    **{kind.kind: kind for kind in (RabbitMQWithTls, BrokerJWithTls)},
}
"""Those that a test may have for itself."""

VARIABLE = "GATEWAY_TEST_SERVERS"
"""Environment variable that names the file of running servers."""

__all__ = [
    "KINDS",
    "PRIVATE_KINDS",
    "VARIABLE",
    "BrokerJ",
    "BrokerJWithTls",
    "PostgreSQL",
    "RabbitMQ",
    "RabbitMQ40",
    "RabbitMQ43",
    "RabbitMQWithTls",
    "Server",
    "ServerUnavailable",
    "started",
]
