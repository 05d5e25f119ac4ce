"""``/v1/brokers``: the named brokers, and what they really speak."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from gateway.api.about.schemas import Broker, Brokers, PageQuery, ProbeAttempt, ProbeResult
from gateway.api.http.call import Call, answer, page_headers
from gateway.api.http.problems import printable, wrong_parameter
from gateway.api.http.routing import Route, Scope
from gateway.session import Capabilities
from gateway.upstreams import Upstream, probe


async def list_brokers(call: Call) -> Response:
    """A page of those that the caller may see, in the order of the configuration."""
    query = call.query(PageQuery)
    names = [name for name in call.gateway.brokers if call.principal.sees(name)]
    if query.cursor and query.cursor not in names:
        raise wrong_parameter("cursor", "it was not given by a page of this list")
    start = names.index(query.cursor) + 1 if query.cursor else 0
    page = names[start : start + query.limit]
    cursor = page[-1] if start + query.limit < len(names) else None
    body = Brokers(brokers=[_describe(call.gateway.brokers[name]) for name in page])
    return answer(body, headers=page_headers(call, cursor, limit=query.limit))


async def get_broker(call: Call) -> Response:
    """One of them."""
    return answer(_describe(call.gateway.broker(call.names["broker"])))


async def probe_broker(call: Call) -> Response:
    """Try each version on connections of their own."""
    found = await probe(call.gateway.broker(call.names["broker"]).settings)
    attempts = [
        ProbeAttempt(
            version=attempt.version.value,
            speaks=attempt.speaks,
            product=printable(attempt.product),
            product_version=printable(attempt.product_version),
            mechanisms=[printable(name) for name in attempt.mechanisms],
            reason=printable(attempt.reason),
            supported=attempt.supported,
            capabilities=_capabilities(attempt.capabilities),
            seconds=round(attempt.seconds, 4),
        )
        for attempt in found.attempts
    ]
    versions = [version.value for version in found.versions]
    return answer(ProbeResult(host=found.host, port=found.port, versions=versions, attempts=attempts))


def _describe(upstream: Upstream) -> Broker:
    status = upstream.status()
    return Broker(
        name=status.name,
        state=status.state.value,
        reason=printable(status.reason),
        code=status.code,
        version=status.version.value if status.version is not None else None,
        product=printable(status.product),
        product_version=printable(status.product_version),
        host=upstream.url.host,
        port=upstream.url.port,
        virtual_host=printable(upstream.url.virtual_host),
        since=moment(status.since),
        publishing=status.publishing,
        consuming=status.consuming,
        pending=status.pending,
        leases=status.leases,
        found=printable(status.found),
        alert=printable(status.alert),
        capabilities=_capabilities(status.capabilities),
    )


def _capabilities(capabilities: Capabilities | None) -> dict[str, Any] | None:
    if capabilities is None:
        return None
    fields = asdict(capabilities)
    fields["confirms"] = capabilities.confirms.value
    fields["mechanisms"] = [printable(name) for name in capabilities.mechanisms]
    for name in ("product", "product_version", "platform"):
        fields[name] = printable(fields[name])
    return fields


def moment(seconds: float) -> str:
    """Seconds since 1970 as RFC 3339 in UTC, to the microsecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


ROUTES = (
    Route(
        "GET", "/v1/brokers", "list_brokers", "List brokers", list_brokers, Scope.BROKERS,
        {200: ("A page.", Brokers)}, query=PageQuery, codes=("invalid_parameter",), tag="brokers",
    ),
    Route(
        "GET", "/v1/brokers/{broker}", "get_broker", "Read a broker's state", get_broker, Scope.BROKER_SEEN,
        {200: ("The broker, its negotiated version and its capabilities.", Broker)}, codes=("broker_not_found",),
        tag="brokers",
    ),
    Route(
        "POST", "/v1/brokers/{broker}:probe", "probe_broker", "Find the versions that a broker speaks",
        probe_broker, Scope.ADMIN,
        {200: ("Each version, tried on a connection of its own.", ProbeResult)}, codes=("broker_not_found",),
        tag="brokers",
    ),
)  # fmt: skip
