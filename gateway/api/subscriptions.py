"""``/v1/subscriptions``: settings, pull and settlement.

A pulled message that cannot be handed over, because its caller hung up while the answer was on its way, goes back to
its queue at once (:class:`PullAnswer`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api import auth
from gateway.api.call import Call, JsonAnswer, answer, if_match, no_content, page_headers
from gateway.api.eager import ends_at_once
from gateway.api.messages_json import received
from gateway.api.problems import ApiProblem, as_json, problem_of
from gateway.api.routing import NAME_MAX as SHORT_STRING_MAX
from gateway.api.routing import Route
from gateway.api.routing import Scope as Needs
from gateway.api.schemas import (
    AckRequest,
    AckResult,
    AckResults,
    ModifyAckDeadlineRequest,
    PageQuery,
    PulledMessage,
    PullRequest,
    PullResponse,
    RejectRequest,
    Subscription,
    SubscriptionBody,
    Subscriptions,
)
from gateway.core import Gateway, Pulled, Settled
from gateway.core import Subscription as Found
from gateway.errors import EtagMismatch
from gateway.ledger import id_text

NAME_MAX: Final = 128
"""Longest name of a subscription, in characters."""
_NAMES: Final = {"queue": 1, "dead_letter_exchange": 0, "dead_letter_routing_key": 0}
"""Names of AMQP among the settings, and the fewest octets that each has."""
_encode = msgspec.json.Encoder().encode


# ------------------------------------------------------------------------------------------------- settings


async def list_subscriptions(call: Call) -> Response:
    """A page of them."""
    query = call.query(PageQuery)
    page, cursor = await call.gateway.subscriptions.page(query.cursor or None, query.limit)
    visible = [item for item in page if call.principal.may("consume", item.settings.broker, item.settings.queue)]
    body = Subscriptions(subscriptions=[_describe(call, item) for item in visible])
    return answer(body, headers=page_headers(call, cursor, limit=query.limit))


async def get_subscription(call: Call) -> Response:
    """One of them, with its ETag."""
    found = await _find(call)
    return answer(_describe(call, found), headers={"etag": f'"{found.etag}"'})


async def put_subscription(call: Call) -> Response:
    """Create or replace."""
    name = call.names["subscription"]
    if not 0 < len(name) <= NAME_MAX or not name.isprintable():
        raise ApiProblem("invalid_parameter", f"the name is not 1 to {NAME_MAX} printable characters")
    settings = await call.json(SubscriptionBody)
    for field, least in _NAMES.items():
        size = len(getattr(settings, field).encode())
        if not least <= size <= SHORT_STRING_MAX:
            detail = f"{field} is not {least} to {SHORT_STRING_MAX} octets long"
            raise ApiProblem("invalid_value", detail, errors=[(f"/{field}", detail)])
    match = if_match(call)
    try:
        found, created = await call.gateway.subscriptions.put(name, settings, match)
    except EtagMismatch as error:
        if match is None:
            raise ApiProblem("precondition_required", f"{error}; send If-Match to replace them") from None
        raise
    return answer(_describe(call, found), 201 if created else 200, {"etag": f'"{found.etag}"'})


async def delete_subscription(call: Call) -> Response:
    """Delete."""
    await call.gateway.subscriptions.delete(call.names["subscription"], if_match(call))
    return no_content()


async def _find(call: Call) -> Found:
    """The subscription of the path, if the caller may consume its queue."""
    if call.principal is auth.VISITOR:
        raise auth.unauthorized("this needs an API key")
    found = await call.gateway.subscriptions.get(call.names["subscription"])
    auth.require(call.principal, "consume", found.settings.broker, found.settings.queue)
    return found


def _describe(call: Call, found: Found) -> Subscription:
    return Subscription(
        name=found.name,
        read_only=found.read_only,
        leases=call.gateway.consuming.lease_count(found.name),
        **msgspec.structs.asdict(found.settings),
    )


# ----------------------------------------------------------------------------------------------------- pull


async def pull(call: Call) -> Response:
    """Take messages under leases."""
    found = await _find(call)
    request = await call.json(PullRequest)
    gone = None
    if request.wait:
        gone = asyncio.get_running_loop().create_task(_disconnected(call.receive), name="disconnect")
    try:
        pulled = await call.gateway.consuming.pull(
            found, request.max_messages, request.wait, request.ack_deadline_seconds, gone
        )
    finally:
        if gone is not None:
            gone.cancel()
    try:
        return PullAnswer(call.gateway, pulled)
    except BaseException:
        call.gateway.consuming.hand_back(pulled, "the answer could not be written")
        raise


async def _disconnected(receive: Receive) -> None:
    """Returns when the caller hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


class PullAnswer(JsonAnswer):
    """An answer that gives its messages back if the caller hangs up before all of it is on its way."""

    def __init__(self, gateway: Gateway, pulled: Sequence[Pulled]) -> None:
        self._gateway = gateway
        self._pulled = pulled
        super().__init__(_encode(PullResponse(messages=[_pulled(item) for item in pulled])))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send head and body, look whether somebody is still there, end."""
        handed_over = False
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self.body, "more_body": True})
            handed_over = not ends_at_once(_disconnected(receive))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if not handed_over and self._pulled:
                self._gateway.consuming.hand_back(self._pulled, "the caller hung up")


def _pulled(item: Pulled) -> PulledMessage:
    delivery = item.delivery
    return PulledMessage(
        ack_id=item.lease.ack_id,
        delivery_attempt=item.attempt,
        redelivered=item.redelivered,
        resent=item.resent,
        message=received(id_text(item.id), delivery.exchange, delivery.routing_key, delivery.message),
    )


# --------------------------------------------------------------------------------------------------- settle


async def acknowledge(call: Call) -> Response:
    """Accept."""
    found = await _find(call)
    request = await call.json(AckRequest)
    return _results(await call.gateway.consuming.acknowledge(found, request.ack_ids))


async def release(call: Call) -> Response:
    """Give back."""
    found = await _find(call)
    request = await call.json(AckRequest)
    return _results(await call.gateway.consuming.release(found, request.ack_ids))


async def modify_ack_deadline(call: Call) -> Response:
    """Extend, or give back."""
    found = await _find(call)
    request = await call.json(ModifyAckDeadlineRequest)
    if 0 < request.ack_deadline_seconds < 10:
        detail = "ack_deadline_seconds is neither 0 nor 10 to 600"
        raise ApiProblem("invalid_request", detail, errors=[("/ack_deadline_seconds", detail)])
    return _results(await call.gateway.consuming.modify_deadline(found, request.ack_ids, request.ack_deadline_seconds))


async def reject(call: Call) -> Response:
    """Dead-letter. Where no message at all could be, that is the answer."""
    found = await _find(call)
    request = await call.json(RejectRequest)
    settled = await call.gateway.consuming.reject(found, request.ack_ids, request.reason)
    errors = [item.error for item in settled]
    if errors[0] is not None and all(error is not None and error.code == errors[0].code for error in errors):
        raise errors[0]
    return _results(settled)


def _results(settled: Sequence[Settled]) -> Response:
    results = []
    for item in settled:
        result = AckResult(ack_id=item.ack_id, status=item.status)  # type: ignore[arg-type]  # one of its literals
        if item.error is not None:
            result.problem = as_json(problem_of(item.error))
        results.append(result)
    return answer(AckResults(results=results))


_PATH: Final = "/v1/subscriptions/{subscription}"
_CODES: Final = ("subscription_not_found",)
_BODY: Final = ("malformed_json", "invalid_request", "unsupported_media_type")
_SETTLED: Final = {200: ("One result per ack id, in order.", AckResults)}

ROUTES = (
    Route(
        "GET", "/v1/subscriptions", "list_subscriptions", "List subscriptions", list_subscriptions, Needs.KEY,
        {200: ("A page: those whose queue the key may consume.", Subscriptions)},
        query=PageQuery, codes=("invalid_parameter",), tag="subscriptions",
    ),
    Route(
        "GET", _PATH, "get_subscription", "Read a subscription", get_subscription, Needs.SUBSCRIPTION,
        {200: ("The subscription; its ETag is in the header.", Subscription)}, codes=_CODES, tag="subscriptions",
    ),
    Route(
        "PUT", _PATH, "put_subscription", "Create or replace a subscription", put_subscription, Needs.ADMIN,
        {200: ("It was there, and is now as asked.", Subscription), 201: ("Created.", Subscription)},
        body=SubscriptionBody, headers=("If-Match",),
        codes=(*_BODY, "invalid_value", "broker_not_found", "read_only", "precondition_required", "etag_mismatch",
               "invalid_parameter"),
        description="Replacing other settings needs `If-Match` with the ETag that was read; the same settings do not.",
        tag="subscriptions",
    ),
    Route(
        "DELETE", _PATH, "delete_subscription", "Delete a subscription", delete_subscription, Needs.ADMIN,
        {204: ("Deleted. Messages that are out stay out until their leases end.", None)}, headers=("If-Match",),
        codes=(*_CODES, "read_only", "etag_mismatch", "invalid_parameter"), tag="subscriptions",
    ),
    Route(
        "POST", f"{_PATH}:pull", "pull", "Take messages under leases", pull, Needs.SUBSCRIPTION,
        {200: ("What was there; after `wait` seconds perhaps nothing.", PullResponse)},
        body=PullRequest, body_required=False,
        codes=(*_CODES, *_BODY, "broker_not_found", "not_found", "access_refused", "resource_locked",
               "broker_unavailable", "ledger_unavailable", "overloaded"),
        description="The broker holds each message unacknowledged until it is settled or its deadline passes.",
        tag="subscriptions",
    ),
    Route(
        "POST", f"{_PATH}:acknowledge", "acknowledge", "Accept messages", acknowledge, Needs.SUBSCRIPTION, _SETTLED,
        body=AckRequest, codes=(*_CODES, *_BODY), description="Repeating it is harmless.", tag="subscriptions",
    ),
    Route(
        "POST", f"{_PATH}:modifyAckDeadline", "modify_ack_deadline", "Extend leases", modify_ack_deadline,
        Needs.SUBSCRIPTION, _SETTLED, body=ModifyAckDeadlineRequest, codes=(*_CODES, *_BODY),
        description="All extensions of a lease together end at the broker's `lease_max`, 25 minutes unless set lower.",
        tag="subscriptions",
    ),
    Route(
        "POST", f"{_PATH}:release", "release", "Give messages back", release, Needs.SUBSCRIPTION, _SETTLED,
        body=AckRequest, codes=(*_CODES, *_BODY), tag="subscriptions",
    ),
    Route(
        "POST", f"{_PATH}:reject", "reject", "Dead-letter messages", reject, Needs.SUBSCRIPTION, _SETTLED,
        body=RejectRequest,
        codes=(*_CODES, *_BODY, "unsupported", "unroutable", "publish_refused", "outcome_unknown",
               "broker_unavailable"),
        description=(
            "By the broker where it can; else a copy goes to the subscription's dead-letter place and is confirmed "
            "before the message is accepted. Where neither can be: 422 `unsupported`, and the lease goes on."
        ),
        tag="subscriptions",
    ),
)  # fmt: skip
