"""``/v1/brokers``: the named brokers, what they really speak, and those that are defined over HTTP. Secrets come in and
are not shown again."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from starlette.responses import Response

from gateway.api.about.schemas import Broker, BrokerBody, Brokers, PageQuery, ProbeAttempt, ProbeResult
from gateway.api.http.call import Call, answer, if_match, invalid_setting, no_content, page_headers
from gateway.api.http.problems import ApiProblem, printable, wrong_parameter
from gateway.api.http.routing import Route, Scope
from gateway.api.resources.patching import MEDIA, PATCHING, Patch, patched
from gateway.broker_store import BrokerResource, BrokerStore
from gateway.config import parse_broker_url
from gateway.core.broker_documents import take_out
from gateway.errors import EncodeError, EtagMismatch, Unsupported
from gateway.runtime.clock import clock
from gateway.session import Capabilities
from gateway.upstreams import Upstream, probe


async def list_brokers(call: Call) -> Response:
    """A page of those that the caller may see, in the order of the configuration."""
    query = call.query(PageQuery)
    names = seen_brokers(call)
    if query.cursor and query.cursor not in names:
        raise wrong_parameter("cursor", "it was not given by a page of this list")
    start = names.index(query.cursor) + 1 if query.cursor else 0
    page = names[start : start + query.limit]
    cursor = page[-1] if start + query.limit < len(names) else None
    body = Brokers(brokers=[_describe(call, name) for name in page])
    return answer(body, headers=page_headers(call, cursor, limit=query.limit))


def first_brokers(call: Call, most: int) -> tuple[list[Broker], bool]:
    """The first of those that the caller may see, at most ``most`` of them, and whether there are more."""
    names = seen_brokers(call)
    return [_describe(call, name) for name in names[:most]], len(names) > most


def seen_brokers(call: Call) -> list[str]:
    """The names of those that the caller may see."""
    known = call.gateway.brokers if call.brokers is None else call.brokers.names()
    return [name for name in known if call.principal.sees(name)]


async def get_broker(call: Call) -> Response:
    """One of them; for admins with its settings and ETag."""
    return _answer(call, call.names["broker"])


async def put_broker(call: Call) -> Response:
    """Create or replace."""
    return await _store(call, call.names["broker"], await call.json(BrokerBody), if_match(call))


async def patch_broker(call: Call) -> Response:
    """Change some settings. Secrets are as a GET shows them, so that they stay."""
    name = call.names["broker"]
    found = _all(call).get(name)
    shown, _ = take_out(found.settings)
    return await _store(call, name, *await patched(call, f"the broker {name!r}", shown, found.etag))


async def _store(call: Call, name: str, settings: BrokerBody, match: str | None) -> Response:
    try:
        _, created = await _all(call).put(name, settings, match)
    except EtagMismatch as error:
        if match is None:
            raise ApiProblem("precondition_required", f"{error}; send If-Match to replace them") from None
        raise
    except EncodeError as error:
        raise invalid_setting(error) from None
    return _answer(call, name, 201 if created else 200)


async def delete_broker(call: Call) -> Response:
    """Delete, unless something works with it."""
    await _all(call).delete(call.names["broker"], if_match(call))
    return no_content()


def _all(call: Call) -> BrokerStore:
    if call.brokers is None:
        raise Unsupported("this gateway changes no brokers")
    return call.brokers


async def probe_broker(call: Call) -> Response:
    """Try each version on connections of their own."""
    upstream = call.gateway.broker(call.names["broker"])
    found = await probe(upstream.settings, resolve=upstream.resolve)
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


def _answer(call: Call, name: str, status: int = 200) -> Response:
    headers = {}
    if call.brokers is not None and call.principal.admin:
        headers["etag"] = f'"{call.brokers.get(name).etag}"'
    return answer(_describe(call, name), status, headers)


def _describe(call: Call, name: str) -> Broker:
    defined = None if call.brokers is None else call.brokers.get(name)
    if defined is None:
        return _of_links(call.gateway.broker(name))
    shown = _unusable(defined) if defined.trouble else _of_links(call.gateway.broker(name))
    shown.read_only = defined.read_only
    if call.principal.admin:
        settings, secrets = take_out(defined.settings)
        shown.settings, shown.secrets = settings, sorted(secrets)
    return shown


def _unusable(defined: BrokerResource) -> Broker:
    """A broker of the ledger whose settings cannot be used here, so that it has no links."""
    url = parse_broker_url(defined.settings.url)
    return Broker(
        name=defined.name, state="failed", reason=printable(defined.trouble), code="configuration", version=None,
        product="", product_version="", host=url.host, port=url.port, virtual_host=printable(url.virtual_host),
        since=moment(clock.now()), publishing=False, consuming=False, pending=0, leases=0,
        message_max=defined.settings.message_max, found="", alert="", capabilities=None,
    )  # fmt: skip


def _of_links(upstream: Upstream) -> Broker:
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
        message_max=upstream.settings.message_max,
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


_PATH: Final = "/v1/brokers/{broker}"
_CHANGE: Final = (
    "malformed_json", "invalid_request", "unsupported_media_type", "invalid_value", "address_denied", "read_only",
    "precondition_required", "etag_mismatch", "invalid_parameter", "ledger_unavailable",
)  # fmt: skip

ROUTES = (
    Route(
        "GET", "/v1/brokers", "list_brokers", "List brokers", list_brokers, Scope.BROKERS,
        {200: ("A page.", Brokers)}, query=PageQuery, codes=("invalid_parameter",), tag="brokers",
    ),
    Route(
        "GET", _PATH, "get_broker", "Read a broker's state", get_broker, Scope.BROKER_SEEN,
        {200: ("The broker, its negotiated version and its capabilities.", Broker)}, codes=("broker_not_found",),
        tag="brokers",
    ),
    Route(
        "POST", "/v1/brokers/{broker}:probe", "probe_broker", "Find the versions that a broker speaks",
        probe_broker, Scope.ADMIN,
        {200: ("Each version, tried on a connection of its own.", ProbeResult)}, codes=("broker_not_found",),
        tag="brokers",
    ),
    Route(
        "PUT", _PATH, "put_broker", "Create or replace a broker", put_broker, Scope.ADMIN,
        {200: ("Replaced, or unchanged.", Broker), 201: ("Created. The gateway connects now.", Broker)},
        body=BrokerBody, headers=("If-Match",), codes=(*_CHANGE, "limit_exceeded", "overloaded"),
        description=(
            "Replacing other settings needs `If-Match` with the ETag that was read; the same settings do not. A secret "
            "that is not given stays as it is, unless it would go to another place than before: then it must be given "
            "again. Files cannot be named here. A broker that is up stays so until the links of the new settings are "
            "up or have failed; what has begun ends on the old links."
        ),
        tag="brokers",
    ),
    Route(
        "PATCH", _PATH, "patch_broker", "Change some settings of a broker", patch_broker, Scope.ADMIN,
        {200: ("Changed.", Broker)}, body=Patch, media=MEDIA, headers=("If-Match",),
        codes=("broker_not_found", *_CHANGE, "limit_exceeded", "overloaded"), description=PATCHING, tag="brokers",
    ),
    Route(
        "DELETE", _PATH, "delete_broker", "Delete a broker", delete_broker, Scope.ADMIN,
        {204: ("Deleted. Nothing worked with it.", None)}, headers=("If-Match",),
        codes=("broker_not_found", "broker_in_use", "read_only", "etag_mismatch", "invalid_parameter",
               "ledger_unavailable", "overloaded"),
        tag="brokers",
    ),
)  # fmt: skip
