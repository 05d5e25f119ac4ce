"""Queues as the management plugin of RabbitMQ lists them.

``GET /api/queues/VHOST`` by pages, which 3.10 to 4.3 understand. ``columns`` keeps an answer small, and sorting by name
has the broker gather statistics for the queues of the page alone.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from gateway.management.client import ManagementClient, ManagementProblem
from gateway.management.rows import (
    CONSUMERS_MAX,
    Collected,
    QueueConsumer,
    QueueDetails,
    QueueList,
    QueueRow,
    count_of,
    flag_of,
    member,
    name_of,
    rate_of,
    text_of,
    word_of,
)

PAGE: Final = 500
"""Queues of a page: the most that RabbitMQ gives."""
OUT_OF_RANGE: Final = 400
"""Status of a page behind the last one: queues have gone meanwhile."""
COLUMNS: Final = ",".join(
    (
        "name", "type", "state", "durable", "auto_delete", "exclusive", "arguments.x-dead-letter-exchange",
        "arguments.x-dead-letter-routing-key", "effective_policy_definition", "messages", "messages_ready",
        "messages_unacknowledged", "message_bytes", "consumers", "message_stats.publish_details.rate",
        "message_stats.deliver_get_details.rate", "message_stats.ack_details.rate",
    )
)  # fmt: skip


async def read(client: ManagementClient, vhost: str, rows_max: int) -> QueueList:
    """Return the queues of a virtual host.

    Raises:
        ManagementProblem: not even the first page can be read; ``status`` 404: this API or the virtual host is not
            there.
    """
    found = Collected(rows_max)
    path = f"/api/queues/{quote(vhost, safe='', errors='surrogateescape')}?page_size={PAGE}&sort=name&columns={COLUMNS}"
    page, pages = 1, 1
    while page <= pages and not found.is_full:
        try:
            answer = await client.get(f"{path}&page={page}")
            items = answer if isinstance(answer, list) else member(answer, "items")
            if not isinstance(items, list):
                raise ManagementProblem("The management API answers with something else than a list of queues.", 200)
        except ManagementProblem as problem:
            if page == 1:
                raise
            return found.list("" if problem.status == OUT_OF_RANGE else problem.reason)
        for item in items:
            found.add(row_of(item, vhost))
        pages = min(count_of(member(answer, "page_count")) or 1, rows_max // PAGE + 1)
        page += 1
    return found.list()


async def read_one(client: ManagementClient, vhost: str, queue: str, consumers: bool = False) -> QueueDetails:
    """Return one queue of a virtual host. ``consumers``: with those who consume, one request for each channel.

    Raises:
        ManagementProblem: it cannot be read; ``status`` 404: this API, the virtual host or the queue is not there.
    """
    path = "/".join(quote(name, safe="", errors="surrogateescape") for name in (vhost, queue))
    item = await client.get(f"/api/queues/{path}")
    row = row_of(item, vhost)
    if row is None or row.name != queue:
        raise ManagementProblem("The management API answers with something else than the queue.", 200)
    found = await _consumers(client, member(item, "consumer_details")) if consumers else None
    return QueueDetails(row=row, return_risk=_return_risk(row, item), consumers=found)


async def _consumers(client: ManagementClient, listed: Any) -> list[QueueConsumer] | None:
    """The consumers of a queue, with what their channels hold."""
    if not isinstance(listed, list):
        return None
    found: list[QueueConsumer] = []
    for each in listed[:CONSUMERS_MAX]:
        channel = member(each, "channel_details")
        name, unacknowledged = text_of(member(channel, "name")), None
        if name:
            try:
                told = await client.get(f"/api/channels/{quote(name, safe='')}?columns=messages_unacknowledged")
                unacknowledged = count_of(member(told, "messages_unacknowledged"))
            except ManagementProblem as problem:  # its channel was closed meanwhile, or the login may not see it
                if not problem.status:
                    raise
        found.append(
            QueueConsumer(
                tag=text_of(member(each, "consumer_tag")),
                user=text_of(member(channel, "user")),
                connection=text_of(member(channel, "connection_name")),
                prefetch=count_of(member(each, "prefetch_count")),
                unacknowledged=unacknowledged,
            )
        )
    return found


def _return_risk(row: QueueRow, item: Any) -> str:
    """See :class:`~gateway.management.rows.QueueDetails`. What is not told counts as a risk."""
    if row.type == "quorum":
        return (
            "It is a quorum queue, which counts how often a message was given back, and may drop it after some times."
        )
    if row.type != "classic":
        return f"What becomes of a message that is given back is only known of classic queues; this is {row.type!r}."
    arguments, policy = member(item, "arguments"), member(item, "effective_policy_definition")
    if not isinstance(arguments, dict) or not isinstance(policy, dict):
        return "The management API does not tell its policy, as it does not of a new queue. Ask again in some seconds."
    settings = {**policy, **{name.removeprefix("x-"): value for name, value in arguments.items()}}
    if "delivery-limit" in settings:
        return "It has a delivery limit: each return counts."
    if any(name in settings for name in ("max-length", "max-length-bytes")):
        return "It has a maximum length: what comes while a message is out may fill its place, and then it is dropped."
    return ""


def row_of(item: Any, vhost: str) -> QueueRow | None:
    """A queue of an answer; None: it has no name."""
    name = name_of(member(item, "name"))
    if not name:
        return None
    arguments, policy = member(item, "arguments"), member(item, "effective_policy_definition")
    exchange = name_of(member(arguments, "x-dead-letter-exchange"))
    if exchange is None:
        exchange = name_of(member(policy, "dead-letter-exchange"))
    key = name_of(member(arguments, "x-dead-letter-routing-key"))
    if key is None:
        key = name_of(member(policy, "dead-letter-routing-key"))
    return QueueRow(
        name=name,
        vhost=vhost,
        depth=count_of(member(item, "messages")),
        ready=count_of(member(item, "messages_ready")),
        unacknowledged=count_of(member(item, "messages_unacknowledged")),
        bytes=count_of(member(item, "message_bytes")),
        consumers=count_of(member(item, "consumers")),
        publish_rate=rate_of(member(item, "message_stats", "publish_details", "rate")),
        deliver_rate=rate_of(member(item, "message_stats", "deliver_get_details", "rate")),
        ack_rate=rate_of(member(item, "message_stats", "ack_details", "rate")),
        state=word_of(member(item, "state")),
        type=word_of(member(item, "type")),
        durable=flag_of(member(item, "durable")),
        auto_delete=flag_of(member(item, "auto_delete")),
        exclusive=flag_of(member(item, "exclusive")),
        dead_letters=True if exchange is not None else False if isinstance(policy, dict) else None,
        dead_letter_exchange=exchange,
        dead_letter_routing_key=key if exchange is not None else None,
    )
