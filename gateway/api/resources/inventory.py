"""``GET /v1/queues``: the queues of all brokers, searched, sorted and paged."""

from __future__ import annotations

import asyncio
import heapq
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import msgspec
from starlette.responses import Response

from gateway.access.scopes import Principal
from gateway.api.about.schemas import InventoryBroker, InventoryQuery, InventoryQueue, QueueInventory
from gateway.api.http.call import Call, answer, page_headers
from gateway.api.http.problems import printable, wrong_parameter
from gateway.api.http.routing import Route, Scope
from gateway.api.resources.brokers import moment
from gateway.config import LOCAL_BROKERS
from gateway.errors import NoSuchBroker
from gateway.management import BrokerQueues, QueueRow
from gateway.notation.values import text_to_json
from gateway.runtime.threads import threads
from gateway.versions import AUTO_ORDER

EMBEDDED: Final = f"local-{AUTO_ORDER[0].value}"
"""The name by which the embedded broker's queues are listed, where they are listed once."""
MANY: Final = 2_000
"""From this number of rows on they are sorted in a thread."""
Key = tuple[Any, ...]
Found = tuple[Key, str, QueueRow]
"""Where a row comes in the list, its broker, and the row."""


def _depth(row: QueueRow) -> int | None:
    return row.depth if row.depth is not None else row.ready


VALUES: Final[Mapping[str, Callable[[QueueRow], Any]]] = {
    "name": attrgetter("name"),
    "depth": _depth,
    **{each: attrgetter(each) for each in ("ready", "unacknowledged", "consumers", "bytes")},
    **{each: attrgetter(each) for each in ("publish_rate", "deliver_rate", "ack_rate")},
}
"""What ``sort`` may name -> the value that a row is sorted by."""


@dataclass(frozen=True, slots=True)
class _Order:
    """How rows are sorted. Where a value is not known, the row comes last."""

    value: Callable[[QueueRow], Any]
    by_name: bool
    descending: bool

    @classmethod
    def of(cls, sort: str) -> _Order:
        name = sort.removeprefix("-")
        return cls(VALUES[name], name == "name", sort.startswith("-"))

    def key(self, value: Any, broker: str, name: str) -> Key:
        """Where a row stands."""
        if self.by_name:
            return (name, broker)
        return (value is None, 0 if value is None else -value if self.descending else value, broker, name)

    @property
    def is_reversed(self) -> bool:
        """Whether the greatest key comes first: numbers are turned round by their sign, names are not."""
        return self.by_name and self.descending


@dataclass(frozen=True, slots=True)
class Sight:
    """Which queues of a broker a caller may see."""

    broker: str
    sees_all: bool
    names: frozenset[str]

    @classmethod
    def of(cls, principal: Principal, broker: str) -> Sight:
        names = {
            grant.object for grant in principal.grants if grant.kind == "consume" and grant.broker in ("*", broker)
        }
        return cls(broker, principal.may("broker", broker) or "*" in names, frozenset(names))

    def __bool__(self) -> bool:
        return self.sees_all or bool(self.names)

    def rows(self, queues: BrokerQueues) -> Iterator[QueueRow]:
        """Those that may be seen."""
        return (row for row in queues.rows if self.sees_all or row.name in self.names)


def _once(sights: Sequence[Sight]) -> list[Sight]:
    """Without the embedded broker's further names: all of them have the same queues. One stays, by which the caller
    sees all if there is such a one, and that of :data:`EMBEDDED` before others."""
    embedded = [sight for sight in sights if sight.broker in LOCAL_BROKERS]
    kept = max(embedded, key=lambda sight: (sight.sees_all, sight.broker == EMBEDDED), default=None)
    if kept is None or not kept.sees_all:
        return list(sights)
    return [sight for sight in sights if sight is kept or sight.broker not in LOCAL_BROKERS]


def all_sights(call: Call) -> list[Sight]:
    """The brokers whose queues, or some of them, the caller may see: the embedded one once."""
    return _once([sight for name in call.gateway.brokers if (sight := Sight.of(call.principal, name))])


async def list_all_queues(call: Call) -> Response:
    """A page of those that the caller may see."""
    query = call.query(InventoryQuery)
    gateway, principal = call.gateway, call.principal
    if query.broker and not (query.broker in gateway.brokers and principal.sees(query.broker)):
        raise NoSuchBroker(f"there is no broker {query.broker!r}")
    order = _Order.of(query.sort)
    after = _place(query, order) if query.cursor else None
    sights = [sight] if query.broker and (sight := Sight.of(principal, query.broker)) else []
    if not query.broker:
        sights = all_sights(call)
    lists = await asyncio.gather(*(gateway.inventory.read(sight.broker) for sight in sights))
    found = list(zip(sights, lists, strict=True))
    work = (found, query.search.casefold(), order, after, query.limit)
    if sum(len(queues.rows) for queues in lists) < MANY:
        page, counts = _page(*work)
    else:
        page, counts = await threads.run(_page, *work)
    cursor = None
    if len(page) > query.limit:
        page = page[: query.limit]
        _, broker, row = page[-1]
        cursor = _cursor([query.sort, order.value(row), broker, row.name])
    body = QueueInventory(
        queues=[_queue(broker, row) for _, broker, row in page],
        total=sum(counts),
        brokers=[_broker(sight.broker, queues, count) for (sight, queues), count in zip(found, counts, strict=True)],
    )
    headers = page_headers(
        call, cursor, search=query.search, broker=query.broker, sort=query.sort, limit=query.limit
    )  # fmt: skip
    return answer(body, headers=headers)


def _page(
    found: Sequence[tuple[Sight, BrokerQueues]], search: str, order: _Order, after: Key | None, limit: int
) -> tuple[list[Found], list[int]]:
    """One row more than a page has, if there is one; and how many rows of each broker fit the search."""
    counts: list[int] = []

    def rows() -> Iterator[Found]:
        for sight, queues in found:
            count = 0
            for row in sight.rows(queues):
                if search and search not in row.name.casefold():
                    continue
                count += 1
                key = order.key(order.value(row), sight.broker, row.name)
                if after is None or (key < after if order.is_reversed else key > after):
                    yield key, sight.broker, row
            counts.append(count)

    take = heapq.nlargest if order.is_reversed else heapq.nsmallest
    return take(limit + 1, rows(), key=lambda each: each[0]), counts


def _cursor(parts: list[Any]) -> str:
    parts[3] = parts[3].encode("utf-8", "surrogateescape").hex()
    if parts[0].removeprefix("-") == "name":
        parts[1] = None
    return urlsafe_b64encode(msgspec.json.encode(parts)).decode().rstrip("=")


def _place(query: InventoryQuery, order: _Order) -> Key:
    """Where the page before has ended. Raises ApiProblem (invalid_parameter)."""
    try:
        octets = urlsafe_b64decode(query.cursor + "=" * (-len(query.cursor) % 4))
        sort, value, broker, name = msgspec.json.decode(octets, type=tuple[str, float | int | None, str, str])
        if sort != query.sort:
            raise ValueError(f"it belongs to sort={sort}")
        return order.key(value, broker, bytes.fromhex(name).decode("utf-8", "surrogateescape"))
    except (ValueError, msgspec.MsgspecError):
        raise wrong_parameter("cursor", "it was not given by a page of this list, sorted like this") from None


def _queue(broker: str, row: QueueRow) -> InventoryQueue:
    fields = {name: getattr(row, name) for name in row.__struct_fields__}
    for name in ("name", "dead_letter_exchange", "dead_letter_routing_key"):
        if fields[name] is not None:
            fields[name] = text_to_json(fields[name])
    return InventoryQueue(broker=broker, **{**fields, "vhost": printable(row.vhost)})


def _broker(name: str, queues: BrokerQueues, count: int) -> InventoryBroker:
    return InventoryBroker(
        name=name,
        source=queues.source,
        partial=queues.is_partial,
        reason=printable(queues.reason),
        as_of=moment(queues.as_of) if queues.as_of is not None else None,
        queues=count,
    )


ROUTES = (
    Route(
        "GET", "/v1/queues", "list_all_queues", "List the queues of all brokers", list_all_queues, Scope.BROKERS,
        {200: ("A page, and for each broker where its queues come from.", QueueInventory)}, query=InventoryQuery,
        codes=("invalid_parameter", "broker_not_found"),
        description=(
            "The answer has the queues that `GET /v1/brokers/{broker}/queues/{queue}` would show to the caller. They "
            "are read from a broker's management API where `management` of the broker is set, and are at most some "
            "seconds old. Those of the embedded broker stand there once, by one of its names, if no `broker` is given. "
            "`partial` and `reason` of a broker say what is missing. `null` is what is not known."
        ),
        tag="topology",
    ),
)  # fmt: skip
