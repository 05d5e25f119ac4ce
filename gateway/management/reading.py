"""The queues of a broker's virtual host, by whichever management API answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final, TypeVar

from gateway.config import BrokerSettings, parse_broker_url
from gateway.management import brokerj, rabbitmq
from gateway.management.client import WITHIN_SECONDS, ManagementClient, ManagementProblem
from gateway.management.rows import QueueDetails, QueueList
from gateway.outbound import OutboundRules

T = TypeVar("T")

QPID: Final = ("qpid", "broker-j")
"""Parts of the product names of brokers whose API is that of Broker-J, in lower case."""
ROWS_MAX: Final = 50_000
"""Most queues of one broker that are listed."""


async def read_queues(
    name: str,
    settings: BrokerSettings,
    product: str = "",
    *,
    rows_max: int = ROWS_MAX,
    own: Iterable[tuple[str, int]] = (),
    within: float = WITHIN_SECONDS,
    rules: OutboundRules | None = None,
) -> QueueList:
    """Ask a broker's management API for the queues of the virtual host that its URL names.

    Args:
        name: the broker's.
        settings: its settings; ``management`` is not empty.
        product: what it calls itself over AMQP: it says which API is tried first.
        rows_max: most queues that are listed.
        own: addresses and ports that this process listens on.
        within: how long it may take, in seconds.
        rules: where it may be; None: anywhere.

    Raises:
        ManagementProblem: no queue can be listed.
    """
    asks = [partial(each.read, rows_max=rows_max) for each in (rabbitmq, brokerj)]
    return await _answered(name, settings, product, asks, ManagementClient(name, settings, own, within, rules))


async def read_queue(
    name: str,
    settings: BrokerSettings,
    queue: str,
    product: str = "",
    *,
    consumers: bool = False,
    own: Iterable[tuple[str, int]] = (),
    within: float = WITHIN_SECONDS,
    rules: OutboundRules | None = None,
) -> QueueDetails:
    """Ask a broker's management API for one queue, and what a list leaves out of it; arguments as
    :func:`read_queues`. ``consumers``: with those who consume.

    Raises:
        ManagementProblem: it cannot be read; ``status`` 404: there may be no such queue.
    """
    asks = [partial(each.read_one, queue=queue, consumers=consumers) for each in (rabbitmq, brokerj)]
    return await _answered(name, settings, product, asks, ManagementClient(name, settings, own, within, rules))


async def _answered(
    name: str,
    settings: BrokerSettings,
    product: str,
    asks: Sequence[Callable[[ManagementClient, str], Awaitable[T]]],
    client: ManagementClient,
) -> T:
    """What the first API answers that there is. ``asks``: RabbitMQ's, and Broker-J's."""
    vhost = parse_broker_url(settings.url).virtual_host
    first = -1 if any(each in product.lower() for each in QPID) else 1
    async with client:
        for ask in asks[::first]:
            try:
                return await ask(client, vhost)
            except ManagementProblem as problem:
                if problem.status != HTTPStatus.NOT_FOUND:
                    raise
    raise ManagementProblem(
        f"What answers at brokers.{name}.management has neither RabbitMQ's API nor Broker-J's, or no virtual host "
        f"{vhost!r} (404). Correct the URL; the virtual host is that of brokers.{name}.url.",
        HTTPStatus.NOT_FOUND,
    )
