"""``/v1/subscriptions``: settings, pull and settlement.

A pulled message that cannot be handed over, because its caller hung up while the answer was on its way, goes back to
its queue at once (:class:`PullAnswer`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import aclosing
from typing import Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from gateway.access.scopes import CONSUMERS, Principal
from gateway.api.about.schemas import (
    AckRequest,
    AckResult,
    AckResults,
    Backlog,
    ModifyAckDeadlineRequest,
    PageQuery,
    PullRequest,
    PullResponse,
    Push,
    RejectRequest,
    ReleaseRequest,
    Subscription,
    SubscriptionBody,
    Subscriptions,
)
from gateway.api.history.traced import handed_out, now, settled
from gateway.api.http.auth import lacks
from gateway.api.http.call import (
    Call,
    JsonAnswer,
    answer,
    if_match,
    invalid_setting,
    invalid_value,
    no_content,
    page_headers,
)
from gateway.api.http.eager import ends_at_once
from gateway.api.http.problems import ApiProblem, as_json, problem_of, wrong_parameter
from gateway.api.http.routing import SHORT_STRING_MAX, Route, Scope
from gateway.api.messages.pulled_json import answer_pieces, is_large, pulled_message
from gateway.api.messages.streaming import StreamQuery, stream_answer
from gateway.api.resources.brokers import moment
from gateway.api.resources.patching import MEDIA, PATCHING, Patch, patched
from gateway.api.resources.peers import forward
from gateway.api.resources.subscription_scopes import check_name, check_put, check_steer
from gateway.core import AckOutcome, Gateway, Pulled, SubscriptionResource
from gateway.core.sources.own_queues import queue_of
from gateway.errors import EncodeError, EtagMismatch, NoSuchBroker, NoSuchSubscription
from gateway.limits import PULL_MAX
from gateway.notation.values import ValueProblem
from gateway.tracing import names
from gateway.tracing.names import SpanRow
from gateway.webhooks.states import PushStatus
from gateway.webhooks.supervisor import PUSH_KIND

NAME_MAX: Final = 128
"""Longest name of a subscription, in characters."""
LOOKED_AT: Final = 200
"""How many are read at a time for those that a caller may see."""
_NAMES: Final = ("queue", "exchange", "binding_key", "dead_letter_exchange", "dead_letter_routing_key")
"""Names of AMQP among the settings."""
_encode = msgspec.json.Encoder().encode


# ------------------------------------------------------------------------------------------------- settings


async def list_subscriptions(call: Call) -> Response:
    """A page of them."""
    query = call.query(PageQuery)
    visible, cursor = await _visible(call, query.cursor or None, query.limit)
    body = Subscriptions(subscriptions=[_describe(call, item) for item in visible])
    return answer(body, headers=page_headers(call, cursor, limit=query.limit))


async def first_subscriptions(call: Call, most: int) -> tuple[list[Subscription], bool]:
    """The first of those that the caller may see, at most ``most`` of them, and whether there are more."""
    found, more = await seen_subscriptions(call, most)
    return [_describe(call, item) for item in found], more


async def seen_subscriptions(call: Call, most: int) -> tuple[list[SubscriptionResource], bool]:
    """The same, as they are defined."""
    found, cursor = await _visible(call, None, most)
    return found[:most], cursor is not None or len(found) > most


async def _visible(call: Call, cursor: str | None, limit: int) -> tuple[list[SubscriptionResource], str | None]:
    """Those whose queue the caller has a scope for, and the cursor behind them: the name of one of them. There is none
    where only those follow that the caller may not see."""
    found: list[SubscriptionResource] = []
    own: list[SubscriptionResource] = []
    following, first = cursor, True
    while (first or following is not None) and len(own) <= limit:
        page, following = await call.gateway.subscriptions.page(following, max(limit + 1, LOOKED_AT))
        seen = [item for item in page if _may(call.principal, CONSUMERS, item)]
        found += [item for item in seen if item.read_only]
        own += [item for item in seen if not item.read_only]
        first = False
    return found + own[:limit], own[limit - 1].name if len(own) > limit else None


async def get_subscription(call: Call) -> Response:
    """One of them, with its ETag. Of one that another process pushes, that one knows more."""
    found = await _find(call, CONSUMERS)
    gateway = call.gateway
    if found.settings.push and gateway.peers.shared:
        owner = await gateway.ownership.owner(PUSH_KIND, found.name)
        if owner is not None and gateway.ownership.elsewhere(owner):
            return await forward(call, owner)
    return await _answer(call, found)


async def put_subscription(call: Call) -> Response:
    """Create or replace."""
    name = call.names["subscription"]
    if not 0 < len(name) <= NAME_MAX or not name.isprintable():
        raise wrong_parameter("subscription", f"the name is not 1 to {NAME_MAX} printable characters")
    await check_name(call, name)
    return await _store(call, name, await call.json(SubscriptionBody), if_match(call))


async def patch_subscription(call: Call) -> Response:
    """Change some settings."""
    name = call.names["subscription"]
    await check_steer(call, name)
    call.gateway.subscriptions.forget(name)
    found = await call.gateway.subscriptions.get(name)
    settings, match = await patched(call, f"the subscription {name!r}", found.settings, found.etag)
    return await _store(call, name, settings, match)


async def _store(call: Call, name: str, settings: SubscriptionBody, match: str | None) -> Response:
    for field in _NAMES:
        size = len(getattr(settings, field).encode())
        if size > SHORT_STRING_MAX:
            raise invalid_value(ValueProblem(f"{size} octets are more than {SHORT_STRING_MAX}", field))
    match = await check_put(call, name, settings, match)
    if settings.push and call.endpoints is not None:
        await call.endpoints.get(settings.push)
    budgets = call.gateway.ledger_budgets
    try:
        async with budgets.creating(call.client, "subscription", name):
            found, created = await call.gateway.subscriptions.put(name, settings, match)
            if created:
                await budgets.created(call.client, "subscription", name)
    except EtagMismatch as error:
        if match is None:
            raise ApiProblem("precondition_required", f"{error}; send If-Match to replace them") from None
        raise
    except EncodeError as error:
        raise invalid_setting(error) from None
    return await _answer(call, found, 201 if created else 200)


async def delete_subscription(call: Call) -> Response:
    """Delete."""
    match, etag = if_match(call), await check_steer(call, call.names["subscription"])
    if etag is not None and match in (None, "*"):
        match = etag  # what was looked at, and nothing else
    await call.gateway.subscriptions.delete(call.names["subscription"], match)
    await call.gateway.ledger_budgets.deleted("subscription", call.names["subscription"])
    return no_content()


async def pause(call: Call) -> Response:
    """Take and hand out nothing."""
    await check_steer(call, call.names["subscription"])
    return await _answer(call, await call.gateway.subscriptions.pause(call.names["subscription"]))


async def resume(call: Call) -> Response:
    """Go on."""
    await check_steer(call, call.names["subscription"])
    return await _answer(call, await call.gateway.subscriptions.resume(call.names["subscription"]))


async def _find(call: Call, kinds: Sequence[str] = ("consume",)) -> SubscriptionResource:
    """The subscription of the path, if the caller has a scope of one of these kinds for its queue. Other callers get
    the same answer as for one that does not exist: a key learns of nothing that it has no scope for."""
    principal, name = call.principal, call.names["subscription"]
    try:
        found = await call.gateway.subscriptions.get(name)
    except NoSuchSubscription:
        if any(principal.may(kind, "*", "*") for kind in kinds):
            raise
    else:
        if _may(principal, kinds, found):
            return found
    raise lacks(principal, f"{' or '.join(f'{kind}:' for kind in kinds)} for the queue of {name!r:.140}")


def _may(principal: Principal, kinds: Sequence[str], found: SubscriptionResource) -> bool:
    """Whether the caller has a scope of one of these kinds for the queue of a subscription."""
    return any(principal.may(kind, found.settings.broker, _queue(found)) for kind in kinds)


def _queue(found: SubscriptionResource) -> str:
    return queue_of(found.name, found.settings)


async def _answer(call: Call, found: SubscriptionResource, status: int = 200) -> Response:
    """The subscription with its backlog, and its ETag."""
    backlog = None
    owed = await call.gateway.ledger.deliveries.backlog(found.name)
    if found.settings.lease == "ledger" or owed.waiting or owed.out or owed.dead:
        oldest = moment(owed.oldest_at / 1e6) if owed.oldest_at is not None else None
        backlog = Backlog(
            waiting=owed.waiting, out=owed.out, dead=owed.dead, octets=owed.octets, oldest_at=oldest
        )  # fmt: skip
    push = None
    if found.settings.push and call.pushes is not None:
        push = _push(await call.pushes.status(found))
    return answer(_describe(call, found, backlog, push), status, {"etag": f'"{found.etag}"'})


def _push(status: PushStatus) -> Push:
    found = msgspec.structs.asdict(status)
    for name in ("next_attempt_at", "last_error_at"):
        found[name] = moment(found[name] / 1e6) if found[name] is not None else None
    return Push(**{**found, "state": status.state.value})


def _trouble(call: Call, found: SubscriptionResource) -> str:
    """Why no messages are taken for it although they are wanted, as far as this process knows; empty: they are."""
    try:
        call.gateway.broker(found.settings.broker)
    except NoSuchBroker as error:
        return str(error)
    pushed = call.pushes.trouble(found.name) if call.pushes is not None and found.settings.push else ""
    return call.gateway.intakes.reason(found.name) or pushed


def _describe(
    call: Call, found: SubscriptionResource, backlog: Backlog | None = None, push: Push | None = None
) -> Subscription:
    trouble = _trouble(call, found)
    return Subscription(
        name=found.name,
        read_only=found.read_only,
        state="paused" if found.paused else "error" if trouble else "active",
        reason=trouble or (push.reason if push is not None and push.code else ""),
        leases=call.gateway.consuming.lease_count(found.name),
        backlog=backlog,
        push_status=push,
        settings=found.settings,
        **msgspec.structs.asdict(found.settings),
    )


# ----------------------------------------------------------------------------------------------------- pull


async def pull(call: Call) -> Response:
    """Take messages under leases."""
    found = await _find(call)
    request = await call.json(PullRequest)
    bytes_max = min(PULL_MAX, call.gateway.budgets["bytes"].check(call.client))
    gone = None
    if request.seconds:
        call.take("streams")
        gone = asyncio.get_running_loop().create_task(_disconnected(call.receive), name="disconnect")
    try:
        pulled = await call.gateway.consuming.pull(
            found, request.max_messages, request.seconds, request.ack_deadline_seconds, gone, call.client, bytes_max
        )
    finally:
        if gone is not None:
            gone.cancel()
    try:
        call.hold_all(call.holds + sum(len(item.delivery.message.body) for item in pulled))
        if call.trace is not None:
            handed_out(call, found, pulled)
        return PullAnswer(call.gateway, pulled)
    except BaseException:
        call.gateway.consuming.hand_back(pulled, "the answer could not be written")
        raise


async def _disconnected(receive: Receive) -> None:
    """Returns when the caller hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


class PullAnswer(JsonAnswer):
    """An answer that gives its messages back if the caller hangs up before all of it is on its way. Many messages, and
    large ones, are written in pieces, each when the one before has been read."""

    def __init__(self, gateway: Gateway, pulled: Sequence[Pulled]) -> None:
        self._gateway = gateway
        self._pulled = pulled
        self._in_pieces = is_large(pulled)
        if self._in_pieces:
            super().__init__(b"")
            del self.headers["content-length"]
        else:
            super().__init__(_encode(PullResponse(messages=[pulled_message(item) for item in pulled])))

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Send head and body, look whether somebody is still there, end."""
        handed_over = False
        try:
            if self._in_pieces and scope.get("http_version") == "1.0":  # which knows no chunks
                self.body = b"".join([piece async for piece in answer_pieces(self._pulled)])
                self.headers["content-length"] = str(len(self.body))
                self._in_pieces = False
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if self._in_pieces:
                async with aclosing(answer_pieces(self._pulled)) as pieces:
                    async for piece in pieces:
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                        if ends_at_once(_disconnected(receive)):
                            return
            else:
                await send({"type": "http.response.body", "body": self.body, "more_body": True})
            handed_over = not ends_at_once(_disconnected(receive))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if not handed_over and self._pulled:
                self._gateway.consuming.hand_back(self._pulled, "the caller hung up")


async def stream(call: Call) -> Response:
    """Messages for as long as their reader stays."""
    return stream_answer(call, await _find(call))


# --------------------------------------------------------------------------------------------------- settle


async def acknowledge(call: Call) -> Response:
    """Accept."""
    found = await _find(call)
    request = await call.json(AckRequest)
    return await _settled(call, names.ACK, call.gateway.consuming.acknowledge(found, request.ack_ids))


async def release(call: Call) -> Response:
    """Give back."""
    found = await _find(call)
    request = await call.json(ReleaseRequest)
    releasing = call.gateway.consuming.release(found, request.ack_ids, request.delay_seconds)
    return await _settled(call, names.RELEASE, releasing)


async def modify_ack_deadline(call: Call) -> Response:
    """Extend, or give back."""
    found = await _find(call)
    request = await call.json(ModifyAckDeadlineRequest)
    if 0 < request.ack_deadline_seconds < 10:
        detail = "ack_deadline_seconds is neither 0 nor at least 10"
        raise ApiProblem("invalid_request", detail, errors=[("/ack_deadline_seconds", detail)])
    seconds = request.ack_deadline_seconds
    modifying = call.gateway.consuming.modify_deadline(found, request.ack_ids, seconds)
    return await _settled(call, None if seconds else names.RELEASE, modifying)


async def reject(call: Call) -> Response:
    """Dead-letter."""
    found = await _find(call)
    request = await call.json(RejectRequest)
    rejecting = call.gateway.consuming.reject(found, request.ack_ids, request.reason, discard=request.discard)
    return await _settled(call, names.REJECT, rejecting)


async def _settled(call: Call, row: SpanRow | None, settling: Awaitable[Sequence[AckOutcome]]) -> Response:
    """One result each. Where all of them failed, and for the same reason, that is the answer. ``row``: the span that it
    is; None: it settles nothing."""
    started = now() if call.trace is not None else 0
    ended = await settling
    if call.trace is not None and row is not None:
        settled(call, row, started, ended)
    first = ended[0].error
    if first is not None and all(item.error is not None and item.error.code == first.code for item in ended):
        try:
            raise first
        finally:
            del first, ended  # both hold the error, which holds this frame
    results = []
    for item in ended:
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
        "GET", "/v1/subscriptions", "list_subscriptions", "List subscriptions", list_subscriptions, Scope.CONSUMER,
        {200: ("A page: those whose queue the caller has a scope for.", Subscriptions)},
        query=PageQuery, codes=("invalid_parameter",), tag="subscriptions",
    ),
    Route(
        "GET", _PATH, "get_subscription", "Read a subscription", get_subscription, Scope.SUBSCRIPTION_SEEN,
        {200: ("The subscription; its ETag is in the header.", Subscription)}, codes=_CODES, tag="subscriptions",
    ),
    Route(
        "PUT", _PATH, "put_subscription", "Create or replace a subscription", put_subscription, Scope.SUBSCRIBE,
        {200: ("Replaced, or unchanged.", Subscription), 201: ("Created.", Subscription)},
        body=SubscriptionBody, headers=("If-Match",),
        codes=(*_BODY, "invalid_value", "broker_not_found", "endpoint_not_found", "not_found", "precondition_failed",
               "access_refused",
               "broker_unavailable", "ledger_unavailable", "read_only", "precondition_required", "etag_mismatch",
               "invalid_parameter", "state"),
        description="Replacing other settings needs `If-Match` with the ETag that was read; the same settings do not. "
        "Without `admin` some settings need further scopes: see docs/reference/scopes.md.",
        tag="subscriptions",
    ),
    Route(
        "PATCH", _PATH, "patch_subscription", "Change some settings of a subscription", patch_subscription,
        Scope.SUBSCRIBE, {200: ("Changed.", Subscription)}, body=Patch, media=MEDIA, headers=("If-Match",),
        codes=(*_CODES, *_BODY,
               "invalid_value", "broker_not_found", "endpoint_not_found", "not_found", "precondition_failed",
               "access_refused",
               "broker_unavailable", "ledger_unavailable", "read_only", "precondition_required", "etag_mismatch",
               "invalid_parameter", "state"), description=PATCHING, tag="subscriptions",
    ),
    Route(
        "DELETE", _PATH, "delete_subscription", "Delete a subscription", delete_subscription, Scope.SUBSCRIBE,
        {204: ("Deleted. Messages that are out stay out until their leases end.", None)}, headers=("If-Match",),
        codes=(*_CODES, "read_only", "etag_mismatch", "invalid_parameter"), tag="subscriptions",
    ),
    Route(
        "POST", f"{_PATH}:pull", "pull", "Take messages under leases", pull, Scope.SUBSCRIPTION,
        {200: ("The messages; none if no message came within `wait_seconds`.", PullResponse)},
        body=PullRequest, body_required=False,
        codes=(*_CODES, *_BODY, "broker_not_found", "not_found", "access_refused", "resource_locked",
               "broker_unavailable", "ledger_unavailable", "overloaded", "state", "unroutable", "publish_refused",
               "unsupported", "outcome_unknown"),
        description=(
            "With `lease` = `broker` the broker holds each message unacknowledged until it is settled or its deadline "
            "passes; with `ledger` it is stored first and acknowledged to the broker. 409 `state` while the "
            "subscription is paused, or where its messages are pushed. It ends at 32 MiB of messages."
        ),
        tag="subscriptions",
    ),
    Route(
        "GET", f"{_PATH}:stream", "stream", "Stream messages", stream, Scope.SUBSCRIPTION,
        {200: ("Server-sent events, or NDJSON where `Accept` asks for it, until the reader hangs up.", None)},
        query=StreamQuery,
        codes=(*_CODES, "invalid_parameter", "ledger_unavailable", "overloaded", "state"),
        description=(
            "An event `message` for each message, its `id` the ack id; settle them with the ordinary verbs, beside it. "
            "Not more than `max_outstanding` are out at a time. A comment, or an empty line, after 15 s without a "
            "message; an event `end` with its reason when the gateway ends the stream. What is not settled goes back "
            "when it ends."
        ),
        tag="subscriptions",
    ),
    Route(
        "POST", f"{_PATH}:acknowledge", "acknowledge", "Accept messages", acknowledge, Scope.SUBSCRIPTION, _SETTLED,
        body=AckRequest, codes=(*_CODES, *_BODY, "ledger_unavailable"), description="Repeating it is harmless.",
        tag="subscriptions",
    ),
    Route(
        "POST", f"{_PATH}:modifyAckDeadline", "modify_ack_deadline", "Extend leases", modify_ack_deadline,
        Scope.SUBSCRIPTION, _SETTLED, body=ModifyAckDeadlineRequest,
        codes=(*_CODES, *_BODY, "unsupported", "ledger_unavailable"),
        description=(
            "All extensions of a lease that a broker holds end together at the broker's `lease_max`, 25 minutes unless "
            "set lower. A lease that the ledger holds may be extended for as long as it takes."
        ),
        tag="subscriptions",
    ),
    Route(
        "POST", f"{_PATH}:release", "release", "Give messages back", release, Scope.SUBSCRIPTION, _SETTLED,
        body=ReleaseRequest, codes=(*_CODES, *_BODY, "unsupported", "ledger_unavailable"),
        description=(
            "At once, or, where the ledger holds the lease, after `delay_seconds`. A message that has used up "
            "`max_deliveries` is dead."
        ),
        tag="subscriptions",
    ),
    Route(
        "POST", f"{_PATH}:reject", "reject", "Dead-letter messages", reject, Scope.SUBSCRIPTION, _SETTLED,
        body=RejectRequest,
        codes=(*_CODES, *_BODY, "no_dead_letter_destination", "unroutable", "publish_refused", "outcome_unknown",
               "broker_unavailable", "ledger_unavailable"),
        description=(
            "With a reason, a copy with it goes to the subscription's dead-letter place and is confirmed before the "
            "message is accepted; without, the broker dead-letters it where its queue is known to do so, or stated to "
            "(`dead_letter_native`). Where no dead-letter destination is known the result is `FAILED` with "
            "`no_dead_letter_destination` (422 where that is so of all of them), and the lease goes on. Where the "
            "ledger holds the lease and no place takes the message, it stays there as dead. `discard` drops messages."
        ),
        tag="subscriptions",
    ),
    Route(
        "POST", f"{_PATH}:pause", "pause_subscription", "Pause a subscription", pause, Scope.SUBSCRIBE,
        {200: ("The subscription.", Subscription)}, codes=(*_CODES, "ledger_unavailable"),
        description=(
            "It takes and hands out nothing until it is resumed, also after a restart; what is out may be settled."
        ),
        tag="subscriptions",
    ),
    Route(
        "POST", f"{_PATH}:resume", "resume_subscription", "Resume a subscription", resume, Scope.SUBSCRIBE,
        {200: ("The subscription.", Subscription)}, codes=(*_CODES, "ledger_unavailable"), tag="subscriptions",
    ),
)  # fmt: skip
