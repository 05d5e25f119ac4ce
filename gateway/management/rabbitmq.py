"""Queues as the management plugin of RabbitMQ lists them.

``GET /api/queues/VHOST`` by pages, which 3.10 to 4.3 understand. ``columns`` keeps an answer small, and sorting by name
has the broker gather statistics for the queues of the page alone.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec

from gateway.management.client import ManagementClient, ManagementProblem
from gateway.management.rows import (
    CONSUMERS_MAX,
    COUNT_MAX,
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
_Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX - 1)]


class _Rate(msgspec.Struct, gc=False):
    rate: float | None = None


class _Stats(msgspec.Struct, gc=False):
    publish_details: _Rate | list[Any] | None = None
    deliver_get_details: _Rate | list[Any] | None = None
    ack_details: _Rate | list[Any] | None = None


class _Arguments(
    msgspec.Struct, gc=False, rename={"exchange": "x-dead-letter-exchange", "key": "x-dead-letter-routing-key"}
):
    exchange: Any = None
    key: Any = None


class _Policy(msgspec.Struct, gc=False, rename={"exchange": "dead-letter-exchange", "key": "dead-letter-routing-key"}):
    exchange: Any = None
    key: Any = None


class _Item(msgspec.Struct, gc=False):
    """A queue whose members have the types that they should have. RabbitMQ writes some empty objects as ``[]``."""

    name: str
    messages: _Count | None = None
    messages_ready: _Count | None = None
    messages_unacknowledged: _Count | None = None
    message_bytes: _Count | None = None
    consumers: _Count | None = None
    state: str | None = None
    type: str | None = None
    durable: bool | None = None
    auto_delete: bool | None = None
    exclusive: bool | None = None
    arguments: _Arguments | list[Any] | None = None
    effective_policy_definition: _Policy | list[Any] | None = None
    message_stats: _Stats | list[Any] | None = None


class _Page(msgspec.Struct):
    items: list[_Item]
    page_count: _Count | None = None


_pages: Final = msgspec.json.Decoder(_Page)
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
            rows, count = await client.get(f"{path}&page={page}", partial(_read_page, vhost=vhost))
            if rows is None:
                raise ManagementProblem("The management API answers with something else than a list of queues.", 200)
        except ManagementProblem as problem:
            if page == 1:
                raise
            return found.list("" if problem.status == OUT_OF_RANGE else problem.reason)
        for row in rows:
            found.add(row)
        pages = min(count or 1, rows_max // PAGE + 1)
        page += 1
    return found.list()


def _read_page(body: bytes, vhost: str) -> tuple[list[QueueRow | None] | None, int | None]:
    """The rows of an answer, None for each without a name, and how many pages there are. No rows: it is no list.
    A page on which all is of the type that it should be takes a tenth of the time."""
    try:
        page = _pages.decode(body)
    except msgspec.ValidationError:
        answer = msgspec.json.decode(body)
        items = answer if isinstance(answer, list) else member(answer, "items")
        if not isinstance(items, list):
            return None, None
        return [row_of(item, vhost) for item in items], count_of(member(answer, "page_count"))
    return [_row_of_item(item, vhost) for item in page.items], page.page_count


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
    """A queue of an answer, with members of any type; None: it has no name."""
    name = name_of(member(item, "name"))
    if not name:
        return None
    arguments, policy = member(item, "arguments"), member(item, "effective_policy_definition")
    to, by = "dead-letter-exchange", "dead-letter-routing-key"
    dead_letters, exchange, key = _dead_letters(
        _Arguments(member(arguments, f"x-{to}"), member(arguments, f"x-{by}")),
        _Policy(member(policy, to), member(policy, by)) if isinstance(policy, dict) else None,
    )
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
        dead_letters=dead_letters,
        dead_letter_exchange=exchange,
        dead_letter_routing_key=key,
    )


def _row_of_item(item: _Item, vhost: str) -> QueueRow | None:
    """The same of a queue whose members have the right types."""
    name = name_of(item.name)
    if not name:
        return None
    stats, arguments, policy = item.message_stats, item.arguments, item.effective_policy_definition
    publish = deliver = ack = None
    if type(stats) is _Stats:
        publish, deliver, ack = _rate(stats.publish_details), _rate(stats.deliver_get_details), _rate(stats.ack_details)
    dead_letters, exchange, key = _dead_letters(
        arguments if type(arguments) is _Arguments else None, policy if type(policy) is _Policy else None
    )
    return QueueRow(
        name=name,
        vhost=vhost,
        depth=item.messages,
        ready=item.messages_ready,
        unacknowledged=item.messages_unacknowledged,
        bytes=item.message_bytes,
        consumers=item.consumers,
        publish_rate=publish,
        deliver_rate=deliver,
        ack_rate=ack,
        state=word_of(item.state),
        type=word_of(item.type),
        durable=item.durable,
        auto_delete=item.auto_delete,
        exclusive=item.exclusive,
        dead_letters=dead_letters,
        dead_letter_exchange=exchange,
        dead_letter_routing_key=key,
    )


def _rate(details: _Rate | list[Any] | None) -> float | None:
    return rate_of(details.rate) if type(details) is _Rate else None


def _dead_letters(arguments: _Arguments | None, policy: _Policy | None) -> tuple[bool | None, str | None, str | None]:
    """Whether dead letters go somewhere, to which exchange and with which key: an argument wins over the policy. None:
    it is not told whether there is a policy."""
    exchange = key = None
    for told in (arguments, policy):
        if told is not None:
            if exchange is None and told.exchange is not None:
                exchange = name_of(told.exchange)
            if key is None and told.key is not None:
                key = name_of(told.key)
    if exchange is None:
        return None if policy is None else False, None, None
    return True, exchange, key
