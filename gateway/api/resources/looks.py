"""``/v1/brokers/{broker}/queues/{queue}/messages``: what is in a queue, for somebody who only looks.

Looking changes nothing. Where a broker cannot show messages, the answer says so, says whether they may be taken and
given back, and where the ledger has what went through the gateway.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from typing import Annotated, Final, Literal
from urllib.parse import quote, urlencode

from msgspec import Meta
from starlette.responses import Response

from gateway.access.scopes import DEFAULT_EXCHANGE
from gateway.api.about.schemas import Input, Output
from gateway.api.http.call import Call, answer
from gateway.api.http.problems import printable
from gateway.api.http.routing import Route, Scope
from gateway.bridges.supervisor import BRIDGE_KIND
from gateway.core.leasing.consuming import own_id
from gateway.core.sources.looking import Look, SeenMessage
from gateway.core.sources.own_queues import queue_of
from gateway.core.subscriptions import SubscriptionResource
from gateway.errors import BrokerUnavailable, FrameSyntaxError
from gateway.fidelity import raw_annotations
from gateway.ledger import id_text
from gateway.notation.messages import ReceivedMessage, received
from gateway.notation.values import text_to_json

LIMIT_MAX: Final = 100
"""Most messages of one look."""
BODY_MAX: Final = 1 << 20
"""Most bytes of a body that are shown."""
SOURCES_MAX: Final = 20
"""Most places in the ledger that are named."""
_utf8 = getincrementaldecoder("utf-8")

Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX)]
BodyMax = Annotated[int, Meta(ge=0, le=BODY_MAX)]


class LookQuery(Input):
    """How much to show."""

    limit: Annotated[Limit, Meta(description="Most messages, from the head of the queue.")] = 20
    body_max: Annotated[BodyMax, Meta(description="Most bytes of each body.")] = 65_536


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
    broker, queue = call.names["broker"], call.names["queue"]
    gateway = call.gateway
    upstream = gateway.broker(broker)
    info, declared = await gateway.topology.queue(broker, queue)
    if upstream.capabilities is None:
        raise BrokerUnavailable(f"broker {broker}: {upstream.reason}")
    looker, auto_delete = gateway.looker, declared.get("auto_delete")
    look = Look(query.body_max, is_complete=False)
    reason = await looker.why_not_browse(upstream, info, auto_delete if isinstance(auto_delete, bool) else None)
    if not reason:
        look = await looker.browse(upstream, queue, query.limit, query.body_max)
    take_reason = await looker.why_not_take(upstream, queue)
    how: Literal["browsed", "not_shown"] = "not_shown" if reason else "browsed"
    return answer(await _shown(call, look, how, reason, info.message_count, take_reason))


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
    message = seen.message
    try:
        made = own_id(raw_annotations(message).get("id"))
    except FrameSyntaxError:
        made = None
    given: tuple[str, Literal["string", "base64"]] | None = None
    if seen.is_cut:  # what is left of a character at the end is left out
        try:
            given = (_utf8().decode(message.body), "string")
        except UnicodeDecodeError:
            pass
    return QueueMessage(
        position=position,
        redelivered=seen.redelivered,
        size=seen.size,
        cut=seen.is_cut,
        message=received(id_text(made) if made else "", seen.exchange, seen.routing_key, message, given),
    )


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
