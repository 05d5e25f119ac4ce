"""``/v1/endpoints/{endpoint}/attempts``: the last requests to an endpoint, with what was sent and answered.

Each process remembers its own. The one that is asked asks the others, and shows what those say that answer in time.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.responses import Response

from gateway.api.about.schemas import Input, Output
from gateway.api.http.call import Call, answer
from gateway.api.http.problems import printable
from gateway.api.http.routing import Route, Scope
from gateway.api.resources.brokers import moment
from gateway.api.resources.endpoints import the_endpoints
from gateway.api.resources.peers import FORWARDED, CallRequest, ask
from gateway.errors import PeerUnavailable
from gateway.ledger.work import Peer
from gateway.webhooks.attempts.recent import EACH_MAX, Attempt

ANSWER_WITHIN: Final = 3.0
"""How long another process may take to tell of its attempts, in seconds."""
SHOWN_MAX: Final = 100
"""Most attempts of one answer."""


class AttemptHeader(Output, omit_defaults=False):
    """A header of a request."""

    name: str
    """Its name, as it was sent."""
    value: str
    """Its value, at most 200 characters; ``[redacted]`` where it is a secret, or a setting of the endpoint."""


class EndpointAttempt(Output, omit_defaults=False):
    """One request to an endpoint."""

    id: str
    """Id of the attempt."""
    at: str
    """When it began, RFC 3339."""
    seconds: float
    """How long it took."""
    status: int | None
    """Status of the answer; ``null``: there is no answer."""
    code: str
    """Code of the error, where there is no answer; else empty."""
    reason: str
    """Why there is no answer, in a sentence; else empty."""
    webhook_id: str
    """Id of the delivery, as the header ``webhook-id`` has it."""
    attempt: int | None
    """How often its messages were tried, this time included; of a batch the highest number."""
    subscription: str
    """Name of the subscription; empty for a test."""
    messages: list[str]
    """Ids of the first ten messages in it: see ``/v1/messages/{id}``."""
    count: int
    """How many messages were in it."""
    test: bool
    """It was a test."""
    resent: bool
    """It went out twice, because a connection was closed without an answer."""
    request_headers: list[AttemptHeader]
    """The headers that the gateway sent, without those of the connection."""
    request_octets: int
    """Bytes of the body that was sent."""
    response_type: str | None
    """``Content-Type`` of the answer."""
    response_body: str
    """The beginning of the answer, at most 1,024 bytes, without secrets of the endpoint."""


class EndpointAttempts(Output, omit_defaults=False):
    """The last requests to an endpoint."""

    attempts: list[EndpointAttempt]
    """The newest first."""
    complete: bool
    """Whether all processes have answered."""


class AttemptsQuery(Input):
    """Filters."""

    message: Annotated[str, Meta(description="Only attempts of this message, by its id.")] = ""


async def list_attempts(call: Call) -> Response:
    """Those of all processes."""
    name = call.names["endpoint"]
    registry = the_endpoints(call)
    await registry.get(name)
    query = call.query(AttemptsQuery)
    found = [_shown(each) for each in registry.recent.of(name)]
    complete = True
    peers = call.gateway.peers
    if peers.shared and FORWARDED not in call.scope:
        others = [peer for peer in peers.others if peer.url]
        for told in await asyncio.gather(*(_of(call, peer) for peer in others)):
            complete = complete and told is not None
            found += told.attempts if told is not None else []
    if query.message:
        found = [each for each in found if query.message in each.messages]
    found.sort(key=lambda each: each.at, reverse=True)
    return answer(EndpointAttempts(attempts=found[:SHOWN_MAX], complete=complete))


async def _of(call: Call, peer: Peer) -> EndpointAttempts | None:
    """Those of another process; None: it does not answer."""
    grants = [(grant.kind, grant.broker, grant.object) for grant in call.principal.grants]
    path: bytes = call.scope["raw_path"]
    request = CallRequest("GET", path, b"", {}, b"", call.principal.name, call.principal.admin, grants)
    try:
        told = await ask(call.gateway.peers, peer, request, ANSWER_WITHIN)
        return msgspec.json.decode(told.body, type=EndpointAttempts) if told.status == 200 else None
    except (PeerUnavailable, msgspec.DecodeError):
        return None


def _shown(attempt: Attempt) -> EndpointAttempt:
    return EndpointAttempt(
        id=attempt.id,
        at=moment(attempt.at),
        seconds=round(attempt.seconds, 6),
        status=attempt.status,
        code=attempt.code,
        reason=printable(attempt.reason)[:500],
        webhook_id=printable(attempt.webhook_id),
        attempt=attempt.attempt,
        subscription=printable(attempt.subscription),
        messages=[each for each in attempt.messages if each],
        count=attempt.count,
        test=attempt.test,
        resent=attempt.resent,
        request_headers=[AttemptHeader(name=name, value=printable(value)) for name, value in attempt.headers],
        request_octets=attempt.sent.octets,
        response_type=None if attempt.content_type is None else printable(attempt.content_type)[:200],
        response_body=printable(attempt.excerpt),
    )


ROUTES: Final = (
    Route(
        "GET", "/v1/endpoints/{endpoint}/attempts", "list_attempts", "List the last attempts of an endpoint",
        list_attempts, Scope.ENDPOINT,
        {200: (f"At most {EACH_MAX} of each process, the newest first.", EndpointAttempts)}, query=AttemptsQuery,
        codes=("endpoint_not_found", "invalid_parameter", "ledger_unavailable"),
        description=(
            "What was sent and answered, without secrets. Attempts are in memory: a restart forgets them, and so does "
            "a process that calls more than 250 other endpoints. What became of each message is in the ledger."
        ),
        tag="endpoints",
    ),
)  # fmt: skip
