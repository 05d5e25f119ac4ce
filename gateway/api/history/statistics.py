"""``/v1/statistics``: how many events there were, hour by hour."""

from __future__ import annotations

from starlette.responses import Response

from gateway.api.history.events import kinds_of, microseconds
from gateway.api.history.history_schemas import HourCount, HourCounts, StatisticsQuery
from gateway.api.http.call import Call, answer, page_headers
from gateway.api.http.problems import printable, wrong_parameter
from gateway.api.http.routing import Route, Scope
from gateway.api.resources.brokers import moment
from gateway.ledger import HourFilter, HourlyEvents
from gateway.ledger.events.statistics import BY, HOUR_US
from gateway.validation import one_of


async def read_statistics(call: Call) -> Response:
    """A page, the newest hour first."""
    query = call.query(StatisticsQuery)
    by = [name.strip() for name in query.by.split(",") if name.strip()]
    for name in by:
        if name not in BY:
            raise wrong_parameter("by", one_of(name, BY), BY)
    where = HourFilter(
        since=None if query.since is None else microseconds(query.since) // HOUR_US,
        until=None if query.until is None else -(-microseconds(query.until) // HOUR_US),
        kinds=kinds_of(query.kind),
        broker=query.broker or None,
        subscription=query.subscription or None,
        endpoint=query.endpoint or None,
        bridge=query.bridge or None,
    )
    try:
        page, cursor = await call.gateway.ledger.history.statistics(where, query.cursor or None, query.limit, by)
    except ValueError as error:
        raise wrong_parameter("cursor", f"it was not given by a page of this list: {error}") from None
    given = {name: getattr(query, name) for name in ("kind", "broker", "subscription", "endpoint", "bridge")}
    for name, time in (("since", query.since), ("until", query.until)):
        given[name] = "" if time is None else time.isoformat()
    headers = page_headers(call, cursor, limit=query.limit, by=query.by or ",", **given)
    return answer(HourCounts(hours=[_count(each) for each in page]), headers=headers)


def _count(hour: HourlyEvents) -> HourCount:
    return HourCount(
        hour=moment(hour.hour * 3600),
        kind="" if hour.kind is None else hour.kind.value,
        broker=hour.broker,
        subscription=printable(hour.subscription),
        endpoint=printable(hour.endpoint),
        bridge=printable(hour.bridge),
        events=hour.events,
        octets=hour.octets,
    )


ROUTES = (
    Route(
        "GET", "/v1/statistics", "read_statistics", "Count events per hour", read_statistics, Scope.HISTORY,
        {200: ("A page, the newest hour first.", HourCounts)}, query=StatisticsQuery,
        codes=("invalid_parameter", "ledger_unavailable"),
        description=(
            "Counts of what happened, by the hour in which it happened. They are some seconds behind, each event is "
            "counted once, and they stay when the events go (`[retention]`)."
        ),
        tag="messages",
    ),
)  # fmt: skip
