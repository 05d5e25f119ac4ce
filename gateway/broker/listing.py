"""The queues of a virtual host of the embedded broker, as an inventory has them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gateway.management.rows import Collected, QueueList, QueueRow

if TYPE_CHECKING:
    from gateway.broker.broker import Broker
    from gateway.broker.queues import Queue


def queues_of(broker: Broker, virtual_host: str, rows_max: int) -> QueueList:
    """Return at most ``rows_max`` queues of a virtual host, with what is in them now."""
    vhost = broker.virtual_host(virtual_host)
    out: Counter[str] = Counter()
    for connection in broker.connections.values():
        if connection.vhost is vhost:
            for channel in connection.channels.values():
                out.update(
                    entry.queue.name
                    for entry, consumer in channel.unsettled.values()
                    if consumer is None or consumer.acquires  # what is browsed stays in its queue
                )
    found = Collected(rows_max)
    for queue in vhost.queues.values():
        found.add(_row(queue, vhost.name, out[queue.name]))
        if found.is_full:
            break
    return found.list()


def _row(queue: Queue, vhost: str, unacknowledged: int) -> QueueRow:
    arguments = queue.arguments
    return QueueRow(
        name=queue.name,
        vhost=vhost,
        depth=queue.ready + unacknowledged,
        ready=queue.ready,
        unacknowledged=unacknowledged,
        consumers=len(queue.consumers),
        type=arguments.queue_type,
        durable=queue.durable,
        auto_delete=queue.auto_delete,
        exclusive=queue.exclusive,
        dead_letters=arguments.rejected_to is not None,
        dead_letter_exchange=arguments.rejected_to,
        dead_letter_routing_key=arguments.dead_letter_routing_key,
    )
