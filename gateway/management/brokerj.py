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
    Collected,
    QueueDetails,
    QueueList,
    QueueRow,
    count_of,
    flag_of,
    member,
    name_of,
    word_of,
)

PAGE: Final = 500
HOSTS_MAX: Final = 1_000
"""Most virtual hosts that are looked through."""
COLUMNS: Final = (
    "name", "type", "state", "durable", "lifetimePolicy", "exclusive", "alternateBinding", "queueDepthMessages",
    "availableMessages", "unacknowledgedMessages", "queueDepthBytes", "consumerCount",
)  # fmt: skip
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
    """Return one queue of a virtual host. ``consumers``: is not told.

    Raises:
        ManagementProblem: it cannot be read; ``status`` 404: this API or the queue is not there.
    """
    where = _same(("$parent.name", await _virtual_host(client, vhost)), ("name", queue))
    _, rows = _table(await client.get(f"{_QUERY}/queue?select={','.join(COLUMNS)}&where={where}&limit=1"))
    row = row_of(rows[0], vhost) if rows else None
    if row is None:
        raise ManagementProblem("The management API shows this login no such queue.", HTTPStatus.NOT_FOUND)
    return QueueDetails(row=row, return_risk="The broker shows messages; none need be taken.")


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
