"""``/v1/brokers/{broker}/queues/{queue}/messages``: what is in a queue, for somebody who only looks.

Looking changes nothing. Where a broker cannot show messages, the answer says so, says whether they may be taken and
given back, and where the ledger has what went through the gateway.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal
from urllib.parse import quote, urlencode

from msgspec import Meta
from starlette.responses import Response

from gateway.access.scopes import DEFAULT_EXCHANGE
from gateway.api.about.schemas import Input, Output
from gateway.api.http.call import Call, answer
from gateway.api.http.problems import printable, wrong_parameter
from gateway.api.http.routing import Route, Scope
from gateway.api.messages.bodies import BodyMax, file_answer, payload_of
from gateway.bridges.supervisor import BRIDGE_KIND
from gateway.core.leasing.consuming import own_id
from gateway.core.sources.looking import Look, SeenMessage
from gateway.core.sources.own_queues import queue_of
from gateway.core.subscriptions import SubscriptionResource
from gateway.errors import BrokerUnavailable, FrameSyntaxError, StateError, Unsupported
from gateway.fidelity import raw_annotations
from gateway.ledger import id_text
from gateway.notation.messages import ReceivedMessage, received
from gateway.notation.values import text_to_json
from gateway.upstreams import QueueInfo, Upstream
from gateway.validation import shown

LIMIT_MAX: Final = 100
"""Most messages of one look."""
SOURCES_MAX: Final = 20
"""Most places in the ledger that are named."""

Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX)]


class LookQuery(Input):
    """How much to show."""

    limit: Annotated[Limit, Meta(description="Most messages, from the head of the queue.")] = 20
    body_max: Annotated[BodyMax, Meta(description="Most bytes of each body.")] = 65_536


class QueuedBodyQuery(Input):
    """Which message is meant: another may have its place by now."""

    id: Annotated[str, Meta(description="The gateway's id that it must have, as the look showed it.")] = ""
    size: Annotated[int, Meta(ge=0, description="Bytes that its body must have, as the look showed.")] | None = None


class TakeRequest(Input):
    """How much to take."""

    limit: Limit = 1
    """Most messages, from the head of the queue."""
    body_max: BodyMax = 65_536
    """Most bytes of each body that are shown."""


class QueueMessage(Output, omit_defaults=False):
    """A message as it lies in its queue."""

    position: int
    """Its place among those that are ready; 1 is the head."""
    redelivered: bool
    """Whether the broker has handed it out before."""
    size: int
    """Bytes of its body."""
    cut: bool
    """Whether ``payload`` has the beginning of the body only."""
    payload_bytes: int
    """How many bytes of the body ``payload`` has, of ``size``."""
    message: ReceivedMessage
    """The message. ``id`` is empty where no gateway has given it one."""


class LedgerPlace(Output, omit_defaults=False):
    """Where the ledger has messages that have to do with the queue."""

    what: Literal["published", "subscription", "backlog", "bridge"]
    """``published``: to the queue, by its name. ``subscription``, ``bridge``: taken from it by one of that name.
    ``backlog``: what the ledger holds for the subscription, with bodies."""
    name: str
    """Name of the subscription or bridge; empty for ``published``."""
    path: str
    """Path of the list."""


class QueueLook(Output, omit_defaults=False):
    """What is in a queue."""

    broker: str
    """Name of the broker."""
    how: Literal["browsed", "taken", "not_shown"]
    """``browsed``: the broker showed the messages, which are as they were. ``taken``: they were taken and given back,
    and are marked as redelivered. ``not_shown``: the broker cannot show messages; ``reason`` says why."""
    reason: str
    """Why nothing is shown, as a sentence; empty: it is."""
    ready: int
    """Messages in the queue, as the broker counted them before."""
    complete: bool
    """Whether these are all messages that were ready."""
    messages: list[QueueMessage]
    """The first ones, the head first."""
    can_take: bool
    """Whether messages may be taken and given back, with ``:takeAndGiveBack``."""
    take_reason: str
    """Why they may not, as a sentence; empty: they may."""
    ledger: list[LedgerPlace]
    """Where the ledger has messages that have to do with the queue, as far as the caller may read that."""


async def look_into_queue(call: Call) -> Response:
    """Show it, where the broker can."""
    query = call.query(LookQuery)
    look = Look(query.body_max, is_complete=False)
    upstream, info, reason = await _why_not(call)
    if not reason:
        look = await call.gateway.looker.browse(upstream, call.names["queue"], query.limit, query.body_max)
    take_reason = await call.gateway.looker.why_not_take(upstream, call.names["queue"])
    how: Literal["browsed", "not_shown"] = "not_shown" if reason else "browsed"
    return answer(await _shown(call, look, how, reason, info.message_count, take_reason))


async def get_queued_body(call: Call) -> Response:
    """The body of one message that the broker can show, as it is."""
    query = call.query(QueuedBodyQuery)
    queue, position = call.names["queue"], _position(call.names["position"])
    upstream, _, reason = await _why_not(call)
    if reason:
        raise Unsupported(reason)
    seen = await call.gateway.looker.find(upstream, queue, position)
    if seen is None:
        raise StateError(
            f"the queue {text_to_json(queue)!r:.80} shows no message at position {position}. Look into it again."
        )
    id = _id_of(seen)
    for name, found, wanted in (("id", id, query.id), ("size", seen.size, query.size)):
        if wanted not in ("", None, found):
            raise StateError(
                f"the message at position {position} is another one by now: its {name} is {shown(found)}, and not "
                f"{shown(wanted)}. Look into the queue again."
            )
    return file_answer(seen.message.body, f"{id or f'message-{position}'}.bin")


def _position(text: str) -> int:
    """The position of a path. Raises ApiProblem (invalid_parameter)."""
    if text.isascii() and text.isdigit() and len(text) <= 3 and 1 <= int(text) <= LIMIT_MAX:
        return int(text)
    raise wrong_parameter("position", f"{shown(text)} is not an integer between 1 and {LIMIT_MAX}")


async def _why_not(call: Call) -> tuple[Upstream, QueueInfo, str]:
    """The broker of a call, its queue, and why that cannot be shown; empty: it can."""
    broker, queue = call.names["broker"], call.names["queue"]
    upstream = call.gateway.broker(broker)
    info, declared = await call.gateway.topology.queue(broker, queue)
    if upstream.capabilities is None:
        raise BrokerUnavailable(f"broker {broker}: {upstream.reason}")
    auto_delete = declared.get("auto_delete")
    reason = await call.gateway.looker.why_not_browse(
        upstream, info, auto_delete if isinstance(auto_delete, bool) else None
    )
    return upstream, info, reason


async def take_and_give_back(call: Call) -> Response:
    """Take, show, give back."""
    request = await call.json(TakeRequest)
    broker, queue = call.names["broker"], call.names["queue"]
    upstream = call.gateway.broker(broker)
    info, _ = await call.gateway.topology.queue(broker, queue)
    look = await call.gateway.looker.take_and_give_back(upstream, queue, request.limit, request.body_max)
    return answer(await _shown(call, look, "taken", "", info.message_count, ""))


async def _shown(
    call: Call, look: Look, how: Literal["browsed", "taken", "not_shown"], reason: str, ready: int, take_reason: str
) -> QueueLook:
    return QueueLook(
        broker=call.names["broker"],
        how=how,
        reason=printable(reason),
        ready=ready,
        complete=look.is_complete,
        messages=[_message(position, seen) for position, seen in enumerate(look.messages, 1)],
        can_take=not take_reason,
        take_reason=printable(take_reason),
        ledger=await _places(call),
    )


def _message(position: int, seen: SeenMessage) -> QueueMessage:
    payload, encoding, count = payload_of(seen.message.body, is_cut=seen.is_cut)
    return QueueMessage(
        position=position,
        redelivered=seen.redelivered,
        size=seen.size,
        cut=seen.is_cut,
        payload_bytes=count,
        message=received(_id_of(seen), seen.exchange, seen.routing_key, seen.message, (payload, encoding)),
    )


def _id_of(seen: SeenMessage) -> str:
    """The gateway's id of a message; empty: no gateway has given it one."""
    try:
        made = own_id(raw_annotations(seen.message).get("id"))
    except FrameSyntaxError:
        return ""
    return id_text(made) if made else ""


async def _places(call: Call) -> list[LedgerPlace]:
    """What the ledger may have, as far as the caller may read it."""
    broker, queue, principal = call.names["broker"], call.names["queue"], call.principal
    found: list[LedgerPlace] = []
    if isinstance(text_to_json(queue), str) and principal.may("history"):
        asked = urlencode({"broker": broker, "exchange": DEFAULT_EXCHANGE, "routing_key": queue})
        found.append(LedgerPlace(what="published", name="", path=f"/v1/messages?{asked}"))
    for each in await call.gateway.subscriptions.all():
        if (each.settings.broker, queue_of(each.name, each.settings)) == (broker, queue):
            found += _of_subscription(call, each)
    if principal.admin:
        for name, bridge in (await call.bridges.all_settings()).items():
            if (bridge.source.broker, queue_of(name, bridge.source, BRIDGE_KIND)) == (broker, queue):
                path = f"/v1/messages?bridge={quote(name, safe='')}"
                found.append(LedgerPlace(what="bridge", name=name, path=path))
    return found[:SOURCES_MAX]


def _of_subscription(call: Call, subscription: SubscriptionResource) -> list[LedgerPlace]:
    name, settings, principal = subscription.name, subscription.settings, call.principal
    named = quote(name, safe="")
    found: list[LedgerPlace] = []
    if principal.may("history"):
        found.append(LedgerPlace(what="subscription", name=name, path=f"/v1/messages?subscription={named}"))
    if principal.admin and (settings.lease == "ledger" or settings.push):
        found.append(LedgerPlace(what="backlog", name=name, path=f"/v1/deliveries?subscription={named}"))
    return found


_PATH: Final = "/v1/brokers/{broker}/queues/{queue}/messages"
_CODES: Final = (
    "broker_not_found", "broker_unavailable", "broker_error", "access_refused", "not_found", "resource_locked",
    "overloaded",
)  # fmt: skip

ROUTES: Final = (
    Route(
        "GET", _PATH, "look_into_queue", "Look into a queue", look_into_queue, Scope.CONSUME,
        {200: ("The first messages, or why they are not shown.", QueueLook)}, query=LookQuery,
        codes=(*_CODES, "invalid_parameter"),
        description=(
            "Changes nothing: messages stay in the queue, unmarked and uncounted. At most 4 MiB of bodies are shown. A "
            "broker that cannot show messages, such as RabbitMQ, has `how` `not_shown` and a `reason`."
        ),
        tag="topology",
    ),
    Route(
        "GET", f"{_PATH}/{{position}}/body", "get_queued_body", "Download the body of a message in a queue",
        get_queued_body, Scope.CONSUME,
        {200: ("The bytes of the body, as `application/octet-stream`.", None)}, query=QueuedBodyQuery,
        codes=(*_CODES, "invalid_parameter", "state", "unsupported"),
        description=(
            "The body as it is, to be saved as a file; the message stays in the queue. 409 `state` where the queue has "
            "no message at the position, or another one than `id` and `size` say."
        ),
        tag="topology",
    ),
    Route(
        "POST", f"{_PATH}:takeAndGiveBack", "take_and_give_back", "Take messages of a queue, and give them back",
        take_and_give_back, Scope.CONSUME,
        {200: ("The messages, which are in the queue again.", QueueLook)}, body=TakeRequest, body_required=False,
        codes=(
            *_CODES, "unsupported", "limit_exceeded", "malformed_json", "invalid_request", "unsupported_media_type",
        ),
        description=(
            "For brokers that cannot show messages. It marks the messages as redelivered, and consumers may get them "
            "in another order. 422 `unsupported` where a message may be lost by it, or that is not known: a queue with "
            "a delivery limit or a maximum length, a quorum queue, a stream, a broker without `management`."
        ),
        tag="topology",
    ),
)  # fmt: skip
