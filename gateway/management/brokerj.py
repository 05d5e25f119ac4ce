"""Queues as the HTTP management of Apache Qpid Broker-J lists them.

``GET /api/latest/querybroker/queue`` gives chosen attributes by pages. Broker-J counts messages and bytes that came and
went, and no rates, so rates are not known.
"""

from __future__ import annotations

from http import HTTPStatus
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
    text_of,
    word_of,
)

PAGE: Final = 500
HOSTS_MAX: Final = 1_000
"""Most virtual hosts that are looked through."""
COLUMNS: Final = (
    "name", "type", "state", "durable", "lifetimePolicy", "exclusive", "alternateBinding", "queueDepthMessages",
    "availableMessages", "unacknowledgedMessages", "queueDepthBytes", "consumerCount",
)  # fmt: skip
CONSUMER: Final = ("name", "linkName", "createdBy", "unacknowledgedMessages")
"""What is asked of a consumer. Its name is ``CONNECTION|CHANNEL|TAG``: the number of its connection comes first."""
CONNECTIONS_MAX: Final = 1_000
"""Most connections that are looked through for those of consumers."""
_QUERY: Final = "/api/latest/querybroker"


async def read(client: ManagementClient, vhost: str, rows_max: int) -> QueueList:
    """Return the queues of a virtual host.

    Raises:
        ManagementProblem: not even the first page can be read; ``status`` 404: this API is not there.
    """
    host = await _virtual_host(client, vhost)
    found = Collected(rows_max)
    where = _same(("$parent.name", host))
    path = f"{_QUERY}/queue?select={','.join(COLUMNS)}&where={where}&orderBy=name&limit={PAGE}"
    offset, total = 0, 1
    while offset < total and not found.is_full:
        try:
            total, rows = _table(await client.get(f"{path}&offset={offset}"))
        except ManagementProblem as problem:
            if not offset:
                raise
            return found.list(problem.reason)
        if not rows:
            break
        for each in rows:
            found.add(row_of(each, vhost))
        total, offset = min(total, rows_max + PAGE), offset + PAGE
    return found.list()


async def read_one(client: ManagementClient, vhost: str, queue: str, consumers: bool = False) -> QueueDetails:
    """Return one queue of a virtual host. ``consumers``: with those who consume.

    Raises:
        ManagementProblem: it cannot be read; ``status`` 404: this API or the queue is not there.
    """
    host = await _virtual_host(client, vhost)
    where = _same(("$parent.name", host), ("name", queue))
    _, rows = _table(await client.get(f"{_QUERY}/queue?select={','.join(COLUMNS)}&where={where}&limit=1"))
    row = row_of(rows[0], vhost) if rows else None
    if row is None:
        raise ManagementProblem("The management API shows this login no such queue.", HTTPStatus.NOT_FOUND)
    found = await _consumers(client, host, queue) if consumers else None
    return QueueDetails(row=row, return_risk="The broker shows messages; none need be taken.", consumers=found)


async def _consumers(client: ManagementClient, host: str, queue: str) -> list[QueueConsumer]:
    """The consumers of a queue, those who hold most first, with the names of their connections."""
    where = _same(("$parent.name", queue), ("$parent.$parent.name", host))
    path = f"{_QUERY}/consumer?select={','.join(CONSUMER)}&where={where}"
    _, rows = _table(await client.get(f"{path}&orderBy=unacknowledgedMessages%20DESC&limit={CONSUMERS_MAX}"))
    listed = [dict(zip(CONSUMER, row, strict=True)) for row in rows[:CONSUMERS_MAX] if len(row) == len(CONSUMER)]
    names: dict[str, str] = {}
    if listed:
        _, rows = _table(await client.get(f"{_QUERY}/connection?select=name&limit={CONNECTIONS_MAX}"))
        for name in (text_of(row[0]) for row in rows if row):
            number, _, address = name.removeprefix("[").partition("] ")
            names[number] = address
    return [
        QueueConsumer(
            tag=text_of(each["linkName"]),
            user=text_of(each["createdBy"]),
            connection=names.get(text_of(each["name"]).partition("|")[0], ""),
            prefetch=None,
            unacknowledged=count_of(each["unacknowledgedMessages"]),
        )
        for each in listed
    ]


def _same(*pairs: tuple[str, str]) -> str:
    """A condition of a query: attributes have these values."""
    words = " AND ".join("{} = '{}'".format(name, value.replace("'", "''")) for name, value in pairs)
    return quote(words, safe="", errors="surrogateescape")


async def _virtual_host(client: ManagementClient, vhost: str) -> str:
    """The name of the virtual host that a client of AMQP gets by this name: without one it is the default."""
    select = "name,$parent.defaultVirtualHostNode"
    _, rows = _table(await client.get(f"{_QUERY}/virtualhost?select={select}&limit={HOSTS_MAX}"))
    names = [(name_of(row[0]), flag_of(row[1])) for row in rows if len(row) == 2]
    bare = vhost.removeprefix("/")
    for name, is_default in names:
        if name and (name == bare if bare else is_default):
            return name
    raise ManagementProblem(f"The broker has no virtual host {vhost!r} that its management shows this login.", 200)


def _table(answer: Any) -> tuple[int, list[list[Any]]]:
    """How many rows there are, and those of the answer. Raises ManagementProblem."""
    total, rows = count_of(member(answer, "total")), member(answer, "results")
    if total is None or not isinstance(rows, list):
        raise ManagementProblem("The management API answers with something else than a table.", 200)
    return total, [row if isinstance(row, list) else [] for row in rows]


def row_of(values: list[Any], vhost: str) -> QueueRow | None:
    """A queue of an answer; None: it cannot be read."""
    if len(values) != len(COLUMNS):
        return None
    item = dict(zip(COLUMNS, values, strict=True))
    name = name_of(item["name"])
    if not name:
        return None
    lifetime, exclusive = word_of(item["lifetimePolicy"]), word_of(item["exclusive"])
    return QueueRow(
        name=name,
        vhost=vhost,
        depth=count_of(item["queueDepthMessages"]),
        ready=count_of(item["availableMessages"]),
        unacknowledged=count_of(item["unacknowledgedMessages"]),
        bytes=count_of(item["queueDepthBytes"]),
        consumers=count_of(item["consumerCount"]),
        state=word_of(item["state"]),
        type=word_of(item["type"]),
        durable=flag_of(item["durable"]),
        auto_delete=lifetime.startswith("delete_on") if lifetime is not None else None,
        exclusive=exclusive != "none" if exclusive is not None else None,
        dead_letters=item["alternateBinding"] is not None,
        dead_letter_exchange=name_of(member(item["alternateBinding"], "destination")),
    )
