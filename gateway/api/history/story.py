"""What happened to a message, in words: a sentence for each event, where it is now and why, and what can be done.

:data:`SAYS` has a sentence for each kind of event; what it says beside that comes from the event's detail
(:data:`ADDS`), for every kind of writer. :data:`ENDS` has, for each state, where the message is then. Its pending
entries in the ledger (a delivery, a scheduled publish) are looser than the state: a message may be acknowledged by one
subscription and wait for another, so pending entries come first.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from gateway.access.scopes import DEFAULT_EXCHANGE
from gateway.ledger import (
    BacklogEntry,
    EventKind,
    MessageState,
    OutboxEntry,
    RecordedEvent,
    StoredMessage,
    id_text,
    parse_id,
)


class Wait(msgspec.Struct, frozen=True):
    """A subscription that does not take a message now, and what holds it."""

    subscription: str
    """Empty: no subscription takes it."""
    code: str
    """One of :data:`WAITS`."""
    endpoint: str = ""
    reason: str = ""
    """What else is known."""
    broker: str = ""
    exchange: str = ""
    queue: str = ""
    """Where a message is that no subscription takes; empty: that is not known."""


class Holding(msgspec.Struct, frozen=True):
    """What the ledger owes and keeps of a message."""

    deliveries: Sequence[BacklogEntry] = ()
    outbox: OutboxEntry | None = None
    in_doubt: bool = False
    """A publish is without its outcome."""
    body: bool = False
    waits: Sequence[Wait] = ()
    """What holds the subscriptions that could take it."""


class Step(NamedTuple):
    """Something that can be done, and its command."""

    what: str
    command: str = ""


SAYS: Final[Mapping[EventKind, str]] = {
    EventKind.ACCEPTED: "The gateway took it, to publish it{to}.",
    EventKind.RESENT: "It was sent to the broker again, since the outcome was unknown: it may be there twice{marked}.",
    EventKind.CONFIRMED: "The broker {broker} confirmed it: it is safe there.",
    EventKind.UNROUTABLE: "No queue of the broker {broker} took it, and the broker kept nothing.",
    EventKind.REFUSED: "The broker {broker} refused it.",
    EventKind.NOT_SENT: "It was not sent to the broker {broker}.",
    EventKind.UNKNOWN: "It was sent to the broker {broker}, and no outcome came: it may or may not be there.",
    EventKind.RECEIVED: "The gateway first met it at the broker {broker}; it did not come in here.",
    EventKind.DELIVERED: "It was handed to a consumer{attempt}.",
    EventKind.EXTENDED: "The consumer asked for more time{seconds}.",
    EventKind.ACKNOWLEDGED: "The consumer was done with it{attempt}.",
    EventKind.RELEASED: "It was given back, to be delivered again.",
    EventKind.REJECTED: "The consumer rejected it, and the broker dead-lettered it.",
    EventKind.DISCARDED: "The consumer had it dropped.",
    EventKind.DEAD_LETTERED: "It was published to the dead-letter destination{place} and confirmed there.",
    EventKind.LEASE_EXPIRED: "The consumer said nothing in time, and it was given back.",
    EventKind.LEASE_LOST: "The channel that held it died; the broker delivers it again.",
    EventKind.PREPARED: "The bridge has it prepared at its target{place}, to be committed there.",
    EventKind.FORWARDED: "The bridge published it{place}, where it was confirmed.",
    EventKind.REDUCED: "What the version there cannot carry was left out: {losses}.",
    EventKind.DUPLICATE_DROPPED: "It was delivered once more after it had been taken over, and was dropped.",
    EventKind.FILTERED: "It was discarded, since the filter does not want it.",
    EventKind.LOOPED: "The bridge discarded it, so that it does not go round in circles.",
    EventKind.STORED: "The ledger took it over from the broker {broker}, which is done with it: it is pending here.",
    EventKind.SPOOLED: "A tap took it from the broker {broker}, which is done with it, into the message log.",
    EventKind.ATTEMPT_FAILED: "An attempt to push it failed{attempt}{status}.",
    EventKind.DEAD: "It was given up{attempt}{status}; the ledger keeps it.",
    EventKind.REVIVED: "Somebody had it tried again.",
    EventKind.PURGED: "Somebody deleted what the ledger had of it.",
    EventKind.REPLIED: "The endpoint's answer was published to its reply-to{place}.",
    EventKind.REPLAYED: "A replay sent it once more{place}.",
    EventKind.SCHEDULED: "The ledger took it, to publish it later{to}{not_before}.",
    EventKind.CANCELLED: "Somebody took it back before it was published.",
}
"""Kind -> a sentence; what is in braces comes from the event and its message, and may be nothing."""

ADDS: Final[tuple[tuple[str, str], ...]] = (
    ("subscription", "subscription {}"),
    ("queue", "queue {}"),
    ("endpoint", "endpoint {}"),
    ("bridge", "bridge {}"),
    ("tap", "tap {}"),
    ("front", "front {}"),
    ("replay", "replay {}"),
    ("client", "by {}"),
    ("reason", "reason: {}"),
    ("code", "code: {}"),
    ("error", "error: {}"),
    ("response_body", "response body: {}"),
    ("text", "{}"),
    ("dead_letter_place", "the dead-letter destination: {}"),
    ("retry_in", "next attempt in {} s"),
    ("next", "next attempt at {}"),
)
"""Member of a detail -> text that follows the sentence."""

ENDS: Final[Mapping[MessageState, str]] = {
    MessageState.ACCEPTED: "It is on its way to the broker {broker}; the outcome is not there yet.",
    MessageState.CONFIRMED: "It is at the broker {broker}; nobody took it through the gateway yet.",
    MessageState.UNROUTABLE: "It is nowhere: no queue of the broker {broker} is bound for it.",
    MessageState.REFUSED: "It is nowhere: the broker {broker} would not have it.",
    MessageState.NOT_SENT: "It is nowhere: it never left the gateway.",
    MessageState.UNKNOWN: "It may be at the broker {broker}, or lost on the way there; nobody can tell from here.",
    MessageState.RECEIVED: "It is at the broker {broker}.",
    MessageState.DELIVERED: "A consumer of {subscription} has it, and has not settled it yet.",
    MessageState.ACKNOWLEDGED: "It is done: the consumer of {subscription} acknowledged it.",
    MessageState.RELEASED: "It is at the broker {broker}, waiting for its next delivery.",
    MessageState.REJECTED: "The consumer of {subscription} rejected it, and its queue dead-lettered it.",
    MessageState.DEAD_LETTERED: "A copy is confirmed at the dead-letter destination{place}.",
    MessageState.PREPARED: "A bridge has it prepared at the broker {broker}, and commits it as soon as that is there.",
    MessageState.FORWARDED: "A bridge took it to the broker {broker}; nobody took it there through the gateway yet.",
    MessageState.DISCARDED: "It is gone: it was discarded.",
    MessageState.STORED: "The ledger holds it.",
    MessageState.SPOOLED: "It is in the message log, until retention takes it.",
    MessageState.RETRYING: "The push to {endpoint} is tried again.",
    MessageState.DEAD: "It is dead: given up, and kept by the ledger.",
    MessageState.REPLAYED: "It was sent once more by a replay.",
    MessageState.SCHEDULED: "The ledger holds it, to publish it later.",
    MessageState.CANCELLED: "It is nowhere: it was taken back before it was published.",
}
"""State -> where the message is, if nothing of it is pending."""

TEST_ENDPOINT: Final = "gateway endpoints test {endpoint}"
SHOW_QUEUE: Final = "gateway queues show {broker} {queue}"
ADVICE: Final[Mapping[MessageState, tuple[Step, ...]]] = {
    MessageState.CONFIRMED: (Step("See how many messages its queue holds, and who consumes it.", SHOW_QUEUE),),
    MessageState.UNROUTABLE: (
        Step("Declare its queue if it is missing, and publish it again.", "gateway queues declare {broker} {queue}"),
        Step("Leave `mandatory` true, as it is unless given, to get 422 in such a case."),
    ),
    MessageState.REFUSED: (Step("See what the broker said above; publish it again when that is fixed."),),
    MessageState.NOT_SENT: (
        Step("See whether the broker is there, and publish it again.", "gateway brokers {broker}"),
    ),
    MessageState.UNKNOWN: (
        Step("Publish it again with the same Idempotency-Key: it gets the same id, and is marked."),
    ),
    MessageState.DELIVERED: (
        Step("Wait for the consumer, or for the end of its lease.", "gateway tail --message {id}"),
    ),
    MessageState.RELEASED: (Step("Take it.", "gateway pull {subscription}"),),
    MessageState.PREPARED: (Step("See how the bridge does.", "gateway bridges watch {bridge}"),),
    MessageState.FORWARDED: (Step("See how the bridge does.", "gateway bridges watch {bridge}"),),
    MessageState.DEAD_LETTERED: (
        Step("See how many dead letters its queue holds.", "gateway queues show {dead_broker} {dead_queue}"),
        Step(
            "Send them back, after a look.", "gateway dlq redrive --broker {dead_broker} --queue {dead_queue} --dry-run"
        ),
    ),
}
"""State -> what can be done, if nothing of it is pending. A command of which a word is not known is left out."""

WAITS: Final[Mapping[str, tuple[str, Step]]] = {
    "endpoint_missing": (
        "The subscription {subscription} pushes to the endpoint {endpoint}, which does not exist",
        Step("Create the endpoint.", "gateway endpoints put {endpoint} FILE"),
    ),
    "endpoint_unverified": (
        "The endpoint {endpoint} of the subscription {subscription} is not verified",
        Step("Ask it again whether the gateway may call it.", "gateway endpoints verify {endpoint}"),
    ),
    "endpoint_disabled": (
        "The endpoint {endpoint} of the subscription {subscription} is disabled",
        Step("Enable it.", "gateway endpoints enable {endpoint}"),
    ),
    "endpoint_paused": (
        "The endpoint {endpoint} of the subscription {subscription} is paused",
        Step("Resume it.", "gateway endpoints resume {endpoint}"),
    ),
    "endpoint_asked_to_wait": (
        "The endpoint {endpoint} of the subscription {subscription} asked for a pause",
        Step("Wait for the end of the pause, or end it now.", "gateway endpoints resume {endpoint}"),
    ),
    "breaker_open": (
        "The circuit breaker of the endpoint {endpoint} of the subscription {subscription} is open",
        Step("When the endpoint works again, try it at once.", "gateway endpoints resume {endpoint}"),
    ),
    "ledger_unavailable": (
        "The subscription {subscription} waits for the ledger",
        Step("Look at the ledger.", "gateway doctor"),
    ),
    "backlog_full": (
        "The subscription {subscription} takes nothing from its queue",
        Step("Redrive or delete what is dead, or raise backlog_max.", "gateway dlq list --subscription {subscription}"),
    ),
    "queue_unreadable": (
        "The subscription {subscription} cannot read its queue",
        Step("See how the subscription does.", "gateway subscriptions show {subscription}"),
    ),
    "subscription_paused": (
        "The subscription {subscription} is paused",
        Step("Resume it.", "gateway subscriptions resume {subscription}"),
    ),
    "subscription_missing": (
        "There is no subscription {subscription} now; the ledger keeps the message for one of that name",
        Step("Create the subscription.", "gateway subscriptions put {subscription} FILE"),
    ),
    "not_running": (
        "No process pushes the subscription {subscription} now",
        Step("See how the subscription does.", "gateway subscriptions show {subscription}"),
    ),
    "not_pulled": (
        "It waits until somebody pulls the subscription {subscription}",
        Step("Take it.", "gateway pull {subscription}"),
    ),
    "no_subscription": (
        "No subscription of the gateway takes from {where}",
        Step("Create a subscription of its queue.", "gateway subscriptions put NAME FILE"),
    ),
}
"""Why a message waits -> a sentence without its end, and what can be done."""

REPLAY: Final = Step(
    "Send it once more, from the body that the ledger keeps.", "gateway replays messages --message {id}"
)
COPIES: Final = ("reply_id", "id", "origin_id")
"""Members of a detail that name another message."""


def story(message: StoredMessage, events: Sequence[RecordedEvent]) -> list[str]:
    """A sentence for each event."""
    return [sentence(message, event) for event in events]


def sentence(message: StoredMessage, event: RecordedEvent) -> str:
    """What an event says."""
    detail = event.detail
    if event.kind is EventKind.SCHEDULED and detail.get("rescheduled"):
        return f"It got another time: not before {printable(str(detail.get('not_before', '')))}."
    version = event.version or message.version
    words = {
        "broker": f"{event.broker or message.broker}{f' ({version})' if version else ''}",
        "to": f" to {_place(message.broker, message.exchange, message.routing_key)}"
        + (f", from {printable(message.client)}" if message.client else ""),
        "attempt": f" (attempt {detail['attempt']})" if "attempt" in detail else "",
        "status": f" with HTTP status {detail['status']}" if "status" in detail else "",
        "seconds": f", {detail['seconds']} s from then" if "seconds" in detail else "",
        "not_before": f", not before {detail['not_before']}" if "not_before" in detail else "",
        "place": _target(event),
        "losses": _losses(detail),
        "marked": " (marked)",
    }
    said = SAYS[event.kind].format_map(words)
    if event.kind is EventKind.REJECTED and (place := _copied_to(event)):
        said = f"The consumer rejected it, and a copy was confirmed at the dead-letter destination{place}."
    elif event.kind is EventKind.REJECTED and "front" in detail:
        said = "The consumer rejected it. The broker dead-lettered it, or dropped it: that depends on its queue."
    more = [how.format(printable(detail[name])) for name, how in ADDS if detail.get(name) not in (None, "")]
    return f"{said} [{'; '.join(more)}]" if more else said


def now(message: StoredMessage, events: Sequence[RecordedEvent], holding: Holding) -> str:
    """Where it is, and why."""
    if holding.outbox is not None:
        row = holding.outbox
        why = f" The last attempt failed: {_reason(row.reason)}." if _reason(row.reason) else ""
        if row.dead:
            return f"The ledger holds it, and the broker {row.broker} would not take it.{why}"
        return f"The ledger holds it, to publish it to {row.broker} at {_time(row.due_at)}.{why}"
    if holding.deliveries:
        return " ".join([*map(_owed, holding.deliveries), *map(waiting, holding.waits)])
    if message.state is None:
        return "Nothing is known of what happened to it."
    words = _words(message, events)
    if words["subscription"] == "?":  # advice leaves a command out that would need its name
        fronts = [printable(event.detail["front"]) for event in events if isinstance(event.detail.get("front"), str)]
        words["subscription"] = f"the front {fronts[-1]}" if fronts else "?"
    said = ENDS[message.state].format_map(words)
    last = next(
        (event for event in reversed(events) if event.kind in (EventKind.REJECTED, EventKind.DEAD_LETTERED)), None
    )
    if last is not None and message.state in (MessageState.REJECTED, MessageState.DEAD_LETTERED):
        if place := _copied_to(last):
            said = f"A copy is confirmed at the dead-letter destination{place}."
        if reason := printable(last.detail.get("reason") or ""):
            said += f" Why: {reason}."
    for wait in holding.waits:
        said += f" {waiting(wait)}"
    if holding.in_doubt:
        said += " Its outcome is kept for the caller who repeats its Idempotency-Key."
    return said


def advice(message: StoredMessage, events: Sequence[RecordedEvent], holding: Holding) -> list[Step]:
    """What can be done about it."""
    words = _words(message, events)
    steps: list[Step] = []
    if holding.outbox is not None:
        path = f"/v1/scheduled/{words['id']}"
        steps.append(Step(f"Send it again: POST {path}:retry") if holding.outbox.dead else Step("Wait for it."))
        steps.append(Step(f"Take it back: DELETE {path}"))
    for wait in holding.waits:
        step = WAITS[wait.code][1]
        steps.append(Step(step.what, step.command.format_map(_wait_words(wait, quoted))))
    for delivery in holding.deliveries:
        steps += _delivery_steps(delivery)
        if not delivery.dead and message.state is MessageState.RETRYING:
            steps.append(Step("See what the endpoint answers.", TEST_ENDPOINT.format_map(words)))
    if not holding.deliveries and holding.outbox is None and message.state is not None:
        told = {step.command for step in steps}
        more = [Step(step.what, step.command.format_map(words)) for step in ADVICE.get(message.state, ())]
        steps += [step for step in more if not step.command or step.command not in told]
    if holding.body:
        steps.append(Step(REPLAY.what, REPLAY.command.format_map(words)))
    return [step for step in steps if "?" not in step.command.split()]


def waiting(wait: Wait) -> str:
    """Return why a message waits, in a sentence."""
    said = WAITS[wait.code][0].format_map(_wait_words(wait, printable))
    word = wait.code.removeprefix("endpoint_")
    reason = printable(wait.reason).removeprefix(f"{word}: ")
    return f"{said}: {reason}." if reason not in ("", word) else f"{said}."


def _wait_words(wait: Wait, write: Callable[[Any], str]) -> dict[str, str]:
    where = f"the queue {wait.queue!r}" if wait.queue else f"a queue that the exchange {wait.exchange!r} leads to"
    return {
        "subscription": write(wait.subscription),
        "endpoint": write(wait.endpoint),
        "where": f"{printable(where)} at the broker {printable(wait.broker)}",
    }


def queue_of_message(message: StoredMessage, events: Sequence[RecordedEvent]) -> tuple[str, str, str, str]:
    """Return the broker, exchange and routing key that a message was published with last, and the queue that it is in;
    an empty queue: that is not known."""
    broker, exchange, routing_key, queue = message.broker, message.exchange, message.routing_key, ""
    for event in events:
        detail = event.detail
        if event.kind is EventKind.FORWARDED:
            broker, queue = event.broker, ""
            exchange, routing_key = str(detail.get("exchange", "")), str(detail.get("routing_key", ""))
        elif event.broker == broker and isinstance(detail.get("queue"), str):
            queue = detail["queue"]
    exchange = "" if exchange == DEFAULT_EXCHANGE else exchange
    return broker, exchange, routing_key, queue or (routing_key if not exchange else "")


def related(message: StoredMessage, events: Sequence[RecordedEvent]) -> list[str]:
    """Ids of other messages that the events name, each once."""
    found: dict[str, None] = {}
    for event in events:
        for name in COPIES:
            value = event.detail.get(name)
            if isinstance(value, str):
                try:
                    other = parse_id(value)
                except ValueError:
                    continue
                if other != message.id:
                    found[id_text(other)] = None
    return list(found)


def delivery_state(delivery: BacklogEntry) -> str:
    """``waiting``, ``out`` or ``dead``."""
    return "dead" if delivery.dead else "out" if delivery.out and delivery.due_in > 0 else "waiting"


def printable(value: Any) -> str:
    """A value as text in which nothing moves a cursor."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# ---------------------------------------------------------------------------------------------------- pieces


def _words(message: StoredMessage, events: Sequence[RecordedEvent]) -> dict[str, str]:
    """What the last events say of where it is."""
    words = dict.fromkeys(("subscription", "endpoint", "bridge", "queue", "dead_broker", "dead_queue"), "?")
    words |= {"id": id_text(message.id), "broker": message.broker, "place": ""}
    words["queue"] = quoted(queue_of_message(message, events)[3])
    for event in events:
        if event.kind is EventKind.DEAD_LETTERED:
            place = event.detail.get("place", event.detail)
            words["place"] = _target(event)
            words["dead_broker"] = quoted(place.get("broker") or place.get("to") or event.broker)
            words["dead_queue"] = (
                quoted(place.get("routing_key") or "") if place.get("exchange", "") in ("", DEFAULT_EXCHANGE) else "?"
            )
        words["broker"] = event.broker or words["broker"]
        for name in ("subscription", "endpoint", "bridge"):
            if isinstance(event.detail.get(name), str):
                words[name] = printable(event.detail[name])
    return words


def quoted(word: Any) -> str:
    """A word as a shell takes it; ``?`` where it is empty."""
    return shlex.quote(printable(word)) if word else "?"


def _copied_to(event: RecordedEvent) -> str:
    """Where the copy of a rejected message was confirmed; empty: the event names no such place. The broker itself may
    have dead-lettered it, although the subscription has a destination."""
    detail = event.detail
    names = ("dead_letter_exchange", "dead_letter_routing_key")
    copied = detail.get("dead_letter_broker") or detail.get("reason")  # the latter: as earlier versions recorded it
    if event.kind is not EventKind.REJECTED or not copied or not any(detail.get(name) for name in names):
        return ""
    exchange, routing_key = (detail.get(name, "") for name in names)
    return f" at {_place(detail.get('dead_letter_broker') or event.broker, exchange, routing_key)}"


def _owed(delivery: BacklogEntry) -> str:
    name = printable(delivery.subscription)
    why = f" The last time: {_reason(delivery.reason)}." if _reason(delivery.reason) else ""
    state = delivery_state(delivery)
    if state == "dead":
        return f"It is dead for the subscription {name}, after {_times(delivery.attempt)}; the ledger keeps it.{why}"
    if state == "out":
        return f"A consumer of {name} has it (attempt {delivery.attempt}), until {_time(delivery.due_at)}.{why}"
    when = "at once" if delivery.due_in <= 0 else f"at {_time(delivery.due_at)}"
    return f"The ledger owes it to the subscription {name}, after {_times(delivery.attempt)}; next {when}.{why}"


def _delivery_steps(delivery: BacklogEntry) -> list[Step]:
    name, key = printable(delivery.subscription), id_text(delivery.id)
    if delivery.dead:
        return [
            Step("Have it tried again.", f"gateway dlq redrive {key}"),
            Step("See what is in it.", f"gateway dlq show {key}"),
            Step("Give it up for good.", f"gateway dlq purge {key}"),
        ]
    return [
        Step("See how the subscription does.", f"gateway subscriptions show {name}"),
        Step("See what happens to it.", f"gateway tail --subscription {name}"),
    ]


def _target(event: RecordedEvent) -> str:
    """Where something was published to."""
    detail = event.detail
    place = detail.get("place")
    there = place if isinstance(place, Mapping) else detail
    broker = there.get("broker") or there.get("target") or there.get("to") or event.broker
    if isinstance(there.get("url"), str):
        return f" to {printable(there['url'])}"
    if "exchange" not in there and "routing_key" not in there:
        return ""
    resent = ", sent a second time after an unknown outcome" if detail.get("resent") else ""
    return f" at {_place(broker, there.get('exchange', ''), there.get('routing_key', ''))}{resent}"


def _place(broker: Any, exchange: Any, routing_key: Any) -> str:
    """A place of a broker."""
    where = f"exchange {printable(exchange or DEFAULT_EXCHANGE)!r}"
    return f"{where} of {printable(broker)}, routing key {printable(routing_key)!r}"


def _losses(detail: Mapping[str, Any]) -> str:
    losses = detail.get("losses")
    if not isinstance(losses, list):
        return "?"
    named = [f"{each.get('name', '?')} ({each.get('field', '?')})" for each in losses if isinstance(each, Mapping)]
    return printable(", ".join(named) or "?")


def _reason(reason: Mapping[str, Any]) -> str:
    """What a row says of its last attempt."""
    said = [printable(reason[name]) for name in ("reason", "error", "text") if reason.get(name)]
    if reason.get("status"):
        said.append(f"HTTP status {printable(reason['status'])}")
    return ", ".join(said)


def _times(number: int) -> str:
    return {0: "no attempt", 1: "one attempt"}.get(number, f"{number} attempts")


def _time(at: int) -> str:
    return datetime.fromtimestamp(at / 1e6, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
