"""``/v1/endpoints``: where messages are pushed to. Secrets come in and are not shown again; the key of a ``v1``
signature is shown once, in the answer in which it was made."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal

from msgspec import UNSET
from starlette.responses import Response

from gateway.api.about.schemas import (
    Endpoint,
    EndpointBody,
    Endpoints,
    PageQuery,
    RotateRequest,
    SigningKey,
    TestResult,
)
from gateway.api.http.auth import lacks
from gateway.api.http.call import Call, answer, if_match, invalid_setting, no_content, page_headers
from gateway.api.http.problems import ApiProblem, as_json, printable, problem_of, wrong_parameter
from gateway.api.http.routing import Route, Scope
from gateway.api.resources.brokers import moment
from gateway.api.resources.patching import MEDIA, PATCHING, Patch, patched
from gateway.errors import (
    EncodeError,
    EndpointInUse,
    EtagMismatch,
    LedgerUnavailable,
    NoSuchEndpoint,
    OutboundFailed,
    Unsupported,
    public_error,
)
from gateway.runtime.clock import clock
from gateway.runtime.ids import fraction
from gateway.webhooks.attempts.schedule import AttemptOutcome, NextStep, Schedule
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.settings import checks, endpoints
from gateway.webhooks.settings.keys import HeldKey

NAME_MAX: Final = 128
"""Longest name of an endpoint, in characters."""
COUNTED_MAX: Final = 50
"""For how many endpoints of a page, at most, the waiting messages are counted."""
NAMED_MAX: Final = 10
"""Most subscriptions that a refusal names."""


def the_endpoints(call: Call) -> endpoints.EndpointRegistry:
    if call.endpoints is None:
        raise Unsupported("this gateway pushes nothing")
    return call.endpoints


# ------------------------------------------------------------------------------------------------- settings


async def list_endpoints(call: Call) -> Response:
    """A page of them; for who may not see all: those that the scopes name, in one page."""
    query = call.query(PageQuery)
    if not call.principal.may("endpoint", "", "*"):
        return answer(Endpoints(endpoints=await _listed(call, await _own(call))))
    page, cursor = await the_endpoints(call).page(query.cursor or None, query.limit)
    return answer(
        Endpoints(endpoints=await _listed(call, page)),
        headers=page_headers(call, cursor, limit=query.limit),
    )


async def first_endpoints(call: Call, most: int) -> tuple[list[Endpoint], bool]:
    """The first of those that the caller may see, at most ``most`` of them, and whether there are more."""
    found, more = await seen_endpoints(call, most)
    return await _listed(call, found), more


async def seen_endpoints(call: Call, most: int) -> tuple[list[endpoints.Endpoint], bool]:
    """The same, as they are defined."""
    if call.principal.may("endpoint", "", "*"):
        page, cursor = await the_endpoints(call).page(None, most)
        return page[:most], cursor is not None or len(page) > most
    own = await _own(call)
    return own[:most], len(own) > most


async def _listed(call: Call, page: Sequence[endpoints.Endpoint]) -> list[Endpoint]:
    """Those of a page. What waits is counted for the first of those that get nothing or fail."""
    described, counted = [], 0
    for found in page:
        pending = None
        well = found.state is endpoints.EndpointState.ACTIVE and not _last_error(call, found.name)
        if not well and counted < COUNTED_MAX:
            counted += 1
            pending = await _pending(call, found.name)
        described.append(_describe(call, found, pending))
    return described


async def _own(call: Call) -> list[endpoints.Endpoint]:
    found = []
    for name in sorted({grant.object for grant in call.principal.grants if grant.kind == "endpoint"}):
        with suppress(NoSuchEndpoint):
            found.append(await the_endpoints(call).get(name))
    return found


async def get_endpoint(call: Call) -> Response:
    """One of them, with its ETag."""
    return await _answer(call, await the_endpoints(call).get(call.names["endpoint"]))


async def put_endpoint(call: Call) -> Response:
    """Create or replace."""
    name = call.names["endpoint"]
    if not 0 < len(name) <= NAME_MAX or not name.isprintable():
        raise wrong_parameter("endpoint", f"the name is not 1 to {NAME_MAX} printable characters")
    return await _store(call, name, await call.json(EndpointBody), if_match(call))


async def patch_endpoint(call: Call) -> Response:
    """Change some settings. Secrets are as a GET shows them, so that they stay."""
    name = call.names["endpoint"]
    found = await the_endpoints(call).get(name)
    shown, _ = checks.take_out(found.settings)
    return await _store(call, name, *await patched(call, f"the endpoint {name!r}", shown, found.etag))


async def _store(call: Call, name: str, settings: EndpointBody, match: str | None) -> Response:
    if settings.reply and not call.principal.admin:  # it publishes, to wherever the messages say
        raise lacks(call.principal, "admin, which `reply` needs")
    budgets = call.gateway.ledger_budgets
    try:
        async with budgets.creating(call.client, "endpoint", name):
            found, created, made = await the_endpoints(call).put(name, settings, match)
            if created:
                await budgets.created(call.client, "endpoint", name)
    except EtagMismatch as error:
        if match is None:
            raise ApiProblem("precondition_required", f"{error}; send If-Match to replace them") from None
        raise
    except EncodeError as error:
        raise invalid_setting(error) from None
    return await _answer(call, found, 201 if created else 200, made)


async def delete_endpoint(call: Call) -> Response:
    """Delete, unless subscriptions push there."""
    name, match = call.names["endpoint"], if_match(call)
    if not (await the_endpoints(call).get(name)).read_only:
        users = sorted(found.name for found in await call.gateway.subscriptions.all() if found.settings.push == name)
        if users:
            more = f" and {len(users) - NAMED_MAX} more" if len(users) > NAMED_MAX else ""
            raise EndpointInUse(
                f"the endpoint {name!r} is in use by the subscription{'s' * (len(users) > 1)} "
                f"{', '.join(map(repr, users[:NAMED_MAX]))}{more}"
            )
    await the_endpoints(call).delete(name, match)
    await call.gateway.ledger_budgets.deleted("endpoint", name)
    return no_content()


# --------------------------------------------------------------------------------------------------- verbs


async def pause_endpoint(call: Call) -> Response:
    """Nothing more, for now."""
    return await _answer(call, await the_endpoints(call).pause(call.names["endpoint"]))


async def resume_endpoint(call: Call) -> Response:
    """Go on."""
    return await _well(call, await the_endpoints(call).resume(call.names["endpoint"]))


async def enable_endpoint(call: Call) -> Response:
    """It is not gone after all."""
    return await _well(call, await the_endpoints(call).enable(call.names["endpoint"]))


async def _well(call: Call, found: endpoints.Endpoint) -> Response:
    """Somebody says that it is well: its breaker does not wait for its time."""
    if call.pushes is not None:
        call.pushes.recheck(found.name)
    return await _answer(call, found)


async def verify_endpoint(call: Call) -> Response:
    """Ask whether we may call it."""
    try:
        with call.gateway.budgets["outbound_requests"].hold(call.client):
            return await _answer(call, await the_endpoints(call).verify(call.names["endpoint"], call.client))
    except OutboundFailed as error:
        raise (error if call.principal.admin else public_error(error)) from None


async def rotate_endpoint(call: Call) -> Response:
    """New signing keys."""
    request = await call.json(RotateRequest)
    found, made = await the_endpoints(call).rotate(
        call.names["endpoint"], request.schemes, overlap=request.overlap_seconds, finish=request.finish
    )
    return await _answer(call, found, 200, made)


async def test_endpoint(call: Call) -> Response:
    """Send a message that says that it is a test."""
    with call.gateway.budgets["outbound_requests"].hold(call.client):
        outcome = await the_endpoints(call).test(call.names["endpoint"], call.client)
    if call.principal.admin:
        outcome.error = outcome.detailed or outcome.error
    return answer(_result(outcome))


def _result(outcome: SendOutcome) -> TestResult:
    next_step = _next_step(outcome)
    try:
        body, encoding = outcome.body.decode(), "string"
    except UnicodeDecodeError:
        body, encoding = b64encode(outcome.body).decode(), "base64"
    return TestResult(
        id=outcome.id,
        delivered=next_step.outcome is AttemptOutcome.DELIVERED,
        status=outcome.status,
        verdict=next_step.outcome.value,
        reason=printable(next_step.why),
        retry_after=outcome.retry_after,
        content_type=outcome.content_type,
        body=body,
        body_encoding=encoding,  # type: ignore[arg-type]  # one of the two literals above
        truncated=outcome.truncated,
        seconds=round(outcome.seconds, 6),
        problem=as_json(problem_of(outcome.error)) if outcome.error is not None else UNSET,
    )


def _next_step(outcome: SendOutcome) -> NextStep:
    """What a first attempt that ended so would mean."""
    if outcome.undeliverable:
        return NextStep(AttemptOutcome.UNDELIVERABLE, outcome.undeliverable[0])
    if outcome.error is not None:
        return Schedule().after_error(1, outcome.error, fraction)
    assert outcome.status is not None
    return Schedule().after_status(1, outcome.status, outcome.retry_after, clock.now(), fraction, drop=outcome.drop)


# -------------------------------------------------------------------------------------------------- answers


async def _answer(call: Call, found: endpoints.Endpoint, status: int = 200, made: Sequence[HeldKey] = ()) -> Response:
    headers = {"etag": f'"{found.etag}"'}
    if made:
        headers["cache-control"] = "no-store"  # there is a secret in it
    return answer(_describe(call, found, await _pending(call, found.name), made), status, headers)


async def _pending(call: Call, name: str) -> int | None:
    """What waits for it in the ledger; None: that is not known here."""
    if call.pushes is None:
        return None
    try:
        return await call.pushes.pending(name)
    except LedgerUnavailable:  # what is known of it is shown all the same
        return None


def _last_error(call: Call, name: str) -> str:
    return call.pushes.last_error(name) if call.pushes is not None else ""


def _describe(call: Call, found: endpoints.Endpoint, pending: int | None, made: Sequence[HeldKey] = ()) -> Endpoint:
    state: Literal["active", "error", "paused", "disabled", "unverified"] = found.state.value
    reason = found.reason
    if found.state is endpoints.EndpointState.ACTIVE and pending and (why := _last_error(call, found.name)):
        waits = "1 message waits" if pending == 1 else f"{pending} messages wait"
        state, reason = "error", f"{waits}, last attempt failed: {why}"
    settings, secrets = checks.take_out(found.settings)
    new = {key.id for key in made}
    return Endpoint(
        name=found.name,
        state=state,
        reason=printable(reason),
        pending=pending,
        read_only=found.read_only,
        settings=settings,
        secrets=sorted(secrets),
        signing_keys=[_key(key, key.id in new) for key in found.keys],
        verified_at=_moment(found.verified_at),
        allowed_rate=found.allowed_rate,
    )


def _key(key: HeldKey, new: bool) -> SigningKey:
    return SigningKey(
        id=key.id,
        scheme=key.scheme,
        created_at=moment(key.at),
        until=_moment(key.until),
        old=key.old,
        public_key=str(key.public) if key.public is not None else None,
        secret=str(key.key) if new and key.public is None else UNSET,
    )


def _moment(at: float | None) -> str | None:
    return None if at is None else moment(at)


_PATH: Final = "/v1/endpoints/{endpoint}"
_CODES: Final = ("endpoint_not_found", "ledger_unavailable")
_BODY: Final = ("malformed_json", "invalid_request", "unsupported_media_type")
_STATE: Final = {200: ("The endpoint, as it is now.", Endpoint)}

ROUTES = (
    Route(
        "GET", "/v1/endpoints", "list_endpoints", "List endpoints", list_endpoints, Scope.ENDPOINTS,
        {200: ("A page, by name.", Endpoints)}, query=PageQuery, codes=("invalid_parameter",), tag="endpoints",
    ),
    Route(
        "GET", _PATH, "get_endpoint", "Read an endpoint", get_endpoint, Scope.ENDPOINT,
        {200: ("The endpoint without its secrets; its ETag is in the header.", Endpoint)}, codes=_CODES,
        tag="endpoints",
    ),
    Route(
        "PUT", _PATH, "put_endpoint", "Create or replace an endpoint", put_endpoint, Scope.ENDPOINT,
        {200: ("Replaced, or unchanged.", Endpoint),
         201: ("Created. The keys of `v1` signatures are in this answer and in no other.", Endpoint)},
        body=EndpointBody, headers=("If-Match",),
        codes=(*_BODY, "invalid_value", "address_denied", "read_only", "precondition_required", "etag_mismatch",
               "invalid_parameter", "limit_exceeded", "ledger_unavailable"),
        description=(
            "Replacing other settings needs `If-Match` with the ETag that was read; the same settings do not. A secret "
            "that is an empty text stays as it is, unless it would go to another place than before: then it must be "
            "given again. Files cannot be named here."
        ),
        tag="endpoints",
    ),
    Route(
        "PATCH", _PATH, "patch_endpoint", "Change some settings of an endpoint", patch_endpoint,
        Scope.ENDPOINT, {200: ("Changed.", Endpoint)}, body=Patch, media=MEDIA, headers=("If-Match",),
        codes=(*_CODES, *_BODY,
               "invalid_value", "address_denied", "read_only", "precondition_required", "etag_mismatch",
               "invalid_parameter", "limit_exceeded", "ledger_unavailable"), description=PATCHING, tag="endpoints",
    ),
    Route(
        "DELETE", _PATH, "delete_endpoint", "Delete an endpoint", delete_endpoint, Scope.ENDPOINT,
        {204: ("Deleted, with its keys.", None)}, headers=("If-Match",),
        codes=(*_CODES, "endpoint_in_use", "read_only", "etag_mismatch", "invalid_parameter"), tag="endpoints",
    ),
    Route(
        "POST", f"{_PATH}:pause", "pause_endpoint", "Pause an endpoint", pause_endpoint, Scope.ENDPOINT, _STATE,
        codes=_CODES, description="It gets nothing until it is resumed; its messages wait.", tag="endpoints",
    ),
    Route(
        "POST", f"{_PATH}:resume", "resume_endpoint", "Resume an endpoint", resume_endpoint, Scope.ENDPOINT, _STATE,
        codes=_CODES, tag="endpoints",
    ),
    Route(
        "POST", f"{_PATH}:enable", "enable_endpoint", "Enable an endpoint that was disabled", enable_endpoint,
        Scope.ENDPOINT, _STATE, codes=_CODES, description="For an endpoint that answered 410.", tag="endpoints",
    ),
    Route(
        "POST", f"{_PATH}:verify", "verify_endpoint", "Ask an endpoint whether it may be called", verify_endpoint,
        Scope.ENDPOINT, {200: ("The endpoint; if it does not allow it, `reason` says what it answered.", Endpoint)},
        codes=(*_CODES, "address_denied", "overloaded", "outbound_failed", "resolve_failed", "connect_failed",
               "tls_failed", "outbound_timeout", "answer_cut", "answer_malformed", "answer_head_too_large"),
        description="The `OPTIONS` request of CloudEvents web hooks.", tag="endpoints",
    ),
    Route(
        "POST", f"{_PATH}:rotate", "rotate_endpoint", "Change the signing keys of an endpoint", rotate_endpoint,
        Scope.ENDPOINT, {200: ("The endpoint. New keys of `v1` are in this answer and in no other.", Endpoint)},
        body=RotateRequest, body_required=False, codes=(*_CODES, *_BODY, "unsupported", "state"),
        description="New and old keys sign together until the overlap is over, or `finish` is asked for.",
        tag="endpoints",
    ),
    Route(
        "POST", f"{_PATH}:test", "test_endpoint", "Send a test message", test_endpoint, Scope.ENDPOINT,
        {200: ("What the endpoint said, or why there is no answer.", TestResult)}, codes=_CODES,
        description="Signed like any other and marked as a test, in any state of the endpoint. It is not retried.",
        tag="endpoints",
    ),
)  # fmt: skip
