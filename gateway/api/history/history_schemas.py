"""JSON of what the ledger tells: messages, events, counts."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from gateway.api.about.schemas import Input, MessageEvent, MessageSummary, Output, PageQuery
from gateway.api.history.story import WAITS
from gateway.notation.dead_letters import DeadLetter
from gateway.validation import Moment


class MessagesQuery(PageQuery):
    """Paging and filters."""

    broker: Annotated[str, Meta(description="Only messages of this broker.")] = ""
    exchange: Annotated[str, Meta(description="Only of this exchange; `amq.default` is the default one.")] | None = None
    routing_key: Annotated[str, Meta(description="Only with this routing key.")] | None = None
    state: Annotated[str, Meta(description="Only messages in this state.")] = ""
    client: Annotated[str, Meta(description="Only what this API key published.")] = ""
    origin: Annotated[str, Meta(description="Only what came in by `http`, `broker`, `bridge` or `replay`.")] = ""
    subscription: Annotated[str, Meta(description="Only messages that went through this subscription.")] = ""
    endpoint: Annotated[str, Meta(description="Only messages that were pushed to this endpoint.")] = ""
    bridge: Annotated[str, Meta(description="Only messages that went through this bridge.")] = ""
    since: Annotated[Moment | None, Meta(description="Only messages made then or later.")] = None
    until: Annotated[Moment | None, Meta(description="Only messages made before that.")] = None
    message_id: Annotated[str, Meta(description="Only with this `message_id`, the publisher's.")] = ""
    correlation_id: Annotated[str, Meta(description="Only with this `correlation_id`.")] = ""
    type: Annotated[str, Meta(description="Only with this `type`.")] = ""
    content_type: Annotated[str, Meta(description="Only with this `content_type`.")] = ""
    header: Annotated[
        tuple[str, ...],
        Meta(
            max_length=8,
            description="Only with this header, `NAME=VALUE`; of headers that the ledger keeps (`ledger.headers`). "
            "Where it is there more than once, all must hold.",
        ),
    ] = ()


class OwedDelivery(Output, omit_defaults=False):
    """A delivery that the ledger owes to a subscription."""

    id: str
    """Id of the delivery."""
    subscription: str
    """Name of the subscription."""
    state: str
    """``waiting``, ``out`` (a consumer has it) or ``dead``."""
    attempt: int
    """How often it was handed out or tried."""
    due_at: str
    """When it is handed out or tried next, RFC 3339. Where a consumer has it: when its lease ends."""
    reason: dict[str, Any]
    """Why it is not done yet. A time in it is RFC 3339."""


class Waiting(Output, omit_defaults=False):
    """Why a message that could be taken now is not."""

    subscription: str
    """The subscription that could take it; empty: there is none."""
    code: Annotated[str, Meta(description="Why, in one stable word.", extra_json_schema={"enum": list(WAITS)})]
    reason: str
    """Why, in a sentence."""


class Advice(Output, omit_defaults=False):
    """Something that can be done."""

    what: str
    """What you can do, in a sentence."""
    command: str
    """The command that does it; empty: there is none."""


class MessageTimeline(MessageSummary, omit_defaults=False):
    """Everything that is known of a message."""

    events: list[MessageEvent]
    """What happened to the message, the oldest first."""
    owed: list[OwedDelivery]
    """What the ledger holds for subscriptions."""
    body_kept: bool
    """Whether the ledger has the body, so that the message can be replayed."""
    dead_letter: DeadLetter | None
    """Why it is a dead letter, and where it came from; ``null``: it is not one."""
    story: list[str]
    """What happened, a sentence for each event."""
    waits: list[Waiting]
    """Why it waits: what holds the subscriptions that could take it. Empty: it does not wait, or nothing is known to
    hold it."""
    now: str
    """Where it is now, and why."""
    advice: list[Advice]
    """What can be done about it."""
    related: list[str]
    """Ids of other messages that the events name: replies, copies that a replay sent."""


class EventsQuery(Input):
    """Where to begin, and filters."""

    kind: Annotated[str, Meta(description="Only these kinds of event, with commas between them.")] = ""
    broker: Annotated[str, Meta(description="Only events at this broker.")] = ""
    message: Annotated[str, Meta(description="Only events of this message, by the gateway's id.")] = ""
    subscription: Annotated[str, Meta(description="Only of this subscription.")] = ""
    endpoint: Annotated[str, Meta(description="Only of this endpoint.")] = ""
    bridge: Annotated[str, Meta(description="Only of this bridge.")] = ""
    position: Annotated[
        str,
        Meta(
            max_length=8_000,
            description="Begin behind this position, as `Last-Event-ID` has it; `{}` is the beginning of the history. "
            "Without any: what happens from now on.",
        ),
    ] = ""
    since: Annotated[Moment | None, Meta(description="Begin with what happened then or later.")] = None
    follow: Annotated[
        bool, Meta(description="Keep the stream open for new events. With `false` it ends after the events that exist.")
    ] = True


class FeedEvent(MessageEvent, omit_defaults=False):
    """An event of the feed."""

    id: str
    """The message's."""


class FeedLine(FeedEvent, omit_defaults=False):
    """An event in NDJSON."""

    position: dict[str, int]
    """The position behind it."""


class StatisticsQuery(PageQuery):
    """Paging, filters, and the names by which counts are grouped."""

    cursor: Annotated[str, Meta(max_length=4_000, description="From the link `rel=next` of the page before.")] = ""
    by: Annotated[
        str,
        Meta(
            description="Names by which the counts of an hour are grouped, with commas: `kind`, `broker`, "
            "`subscription`, `endpoint`, `bridge`; empty: nothing."
        ),
    ] = "kind,broker"
    since: Annotated[Moment | None, Meta(description="Only this hour and later ones.")] = None
    until: Annotated[Moment | None, Meta(description="Only hours before that.")] = None
    kind: Annotated[str, Meta(description="Only these kinds of event, with commas between them.")] = ""
    broker: Annotated[str, Meta(description="Only events at this broker.")] = ""
    subscription: Annotated[str, Meta(description="Only of this subscription.")] = ""
    endpoint: Annotated[str, Meta(description="Only of this endpoint.")] = ""
    bridge: Annotated[str, Meta(description="Only of this bridge.")] = ""


class HourCount(Output, omit_defaults=False):
    """A count of an hour. Names by which the counts are not grouped are empty."""

    hour: str
    """When the hour began, RFC 3339, UTC."""
    kind: str
    """Kind of the events."""
    broker: str
    """Name of the broker."""
    subscription: str
    """Name of the subscription. ``(other)``: of those for which the hour had no room."""
    endpoint: str
    """Name of the endpoint."""
    bridge: str
    """Name of the bridge."""
    events: int
    """How many events there were."""
    octets: int
    """Bytes of the bodies of their messages."""


class HourCounts(Output, omit_defaults=False):
    """A page of counts, the newest hour first."""

    hours: list[HourCount]
    """The counts of this page."""
