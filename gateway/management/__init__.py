"""Which queues there are at every broker, and what is in them.

:mod:`~gateway.management.client` asks a management HTTP API within bounds, :mod:`~gateway.management.rabbitmq` and
:mod:`~gateway.management.brokerj` turn its answers into :class:`~gateway.management.rows.QueueRow`, and
:mod:`~gateway.management.inventory` keeps a list per broker for a short time.
"""

from gateway.management.client import ManagementProblem
from gateway.management.inventory import BrokerQueues, Inventory
from gateway.management.reading import read_queue, read_queues
from gateway.management.rows import QueueDetails, QueueList, QueueRow

__all__ = [
    "BrokerQueues",
    "Inventory",
    "ManagementProblem",
    "QueueDetails",
    "QueueList",
    "QueueRow",
    "read_queue",
    "read_queues",
]
