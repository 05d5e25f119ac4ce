"""``/v1/overview``: everything that a caller may see at a glance, and of each thing that is not well why.

The parts are those of the lists, each bounded by :data:`SEEN_MAX`. A part that the caller has no scope for is left out,
and so are its things in the backlog. While the ledger is away, what needs it is left out, and that is what is wrong.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote, urlencode

from starlette.responses import Response

from gateway.api.about.schemas import Output
from gateway.api.http.auth import NEEDS
from gateway.api.http.call import Call, answer
from gateway.api.http.problems import printable
from gateway.api.http.routing import Route, Scope
from gateway.api.resources import bridges, taps
from gateway.api.resources.brokers import first_brokers, moment
from gateway.api.resources.endpoints import first_endpoints
from gateway.api.resources.inventory import MANY, Sight, all_sights
from gateway.api.resources.replays import the_replays
from gateway.api.resources.subscriptions import first_subscriptions, seen_subscriptions
from gateway.core.sources.own_queues import queue_of
from gateway.errors import LedgerUnavailable, NoSuchBroker
from gateway.fidelity.deaths import CODES
from gateway.ledger import BacklogCounts, BacklogEntry, DeliveryFilter, HourFilter, id_text
from gateway.ledger.events.statistics import HOUR_US
from gateway.management import BrokerQueues
from gateway.replays import JobState
from gateway.runtime.clock import clock
from gateway.runtime.threads import threads

SEEN_MAX: Final = 1_000
"""Most things of a kind that are looked at."""
TROUBLES_MAX: Final = 200
"""Most things that are named."""
DEAD_MAX: Final = 20
"""Most groups of dead letters that are named."""
QUEUES_MAX: Final = 20
"""Most queues that are named; those with most messages."""
QUEUES_KEPT: Final = 15.0
"""How old a broker's list of queues may be that is not read again, in seconds."""
QUEUES_WAIT: Final = 0.25
"""How long a broker's list of queues is waited for, in seconds. Without a list there are more queues than are known."""
HEADS_MAX: Final = 20
"""Of how many subscriptions the oldest message is looked at."""
TRIES: Final = 2
"""After so many attempts the oldest message of a subscription is named."""
KINDS_MAX: Final = 200
"""Most kinds of events with a rate; there are fewer."""
RECENT: Final = 86_400
"""A replay that failed counts as not well for so long, in seconds."""
WORDS_MAX: Final = 500
"""Longest sentence, in characters."""

Severity = Literal["bad", "notice"]


class Trouble(Output, omit_defaults=False):
    """A thing that is not well."""

    kind: Literal[
        "broker", "queue", "bridge", "tap", "endpoint", "subscription", "front", "replay", "dead_letters", "ledger"
    ]
    """What it is; ``dead_letters``: those of a subscription with one code."""
    name: str
    """Its name; of dead letters that of the subscription."""
    state: str
    """Its state, as its resource has it."""
    code: str
    """Why, in one word: the code of a problem, of a dead letter, or the state."""
    reason: str
    """Why, in a sentence."""
    severity: Severity
    """``bad``: it does not do what it should; ``notice``: somebody wanted that, or it is only to be known."""
    since: str | None
    """Since when it is in that state, RFC 3339; ``null`` where that is not known."""
    path: str
    """Path of its resource."""
    message: str | None = None
    """Id of the message that it is about; ``null``: it is about none, or the caller lacks the scope ``history``."""


class KindCount(Output, omit_defaults=False):
    """How the things of a kind stand."""

    kind: str
    """What they are."""
    count: int
    """How many there are."""
    well: int
    """How many of them are well."""
    more: bool
    """There are more than were looked at."""
    path: str
    """Path of their list."""


class OverviewBacklog(Output, omit_defaults=False):
    """What the ledger holds for subscriptions that the caller may see; some seconds old."""

    waiting: int
    """Messages to be handed out or pushed."""
    out: int
    """Messages that are with consumers, or on their way to endpoints."""
    dead: int
    """Dead letters."""
    octets: int
    """Bytes of all bodies."""
    oldest_at: str | None
    """When the oldest that is not dead arrived, RFC 3339; ``null``: there is none."""


class Overview(Output, omit_defaults=False):
    """Everything at a glance."""

    at: str
    """When this was, RFC 3339."""
    kinds: list[KindCount]
    """The kinds of things that the caller has a scope for."""
    troubles: list[Trouble]
    """What is not well, the bad ones first."""
    more: bool
    """There are more than are named."""
    backlog: OverviewBacklog | None
    """What waits; ``null``: the caller sees no subscriptions, or the ledger is away."""
    events: dict[str, float] | None
    """Events of the last hour by kind, a second. The hour before counts in part. ``null`` without the scope
    ``history``, or the ledger is away."""
    bridged: float | None
    """Messages that all bridges forward a second; ``null`` for a caller who may not see bridges."""


class Part(NamedTuple):
    """What there is to say of a kind."""

    summary: KindCount
    troubles: list[Trouble]
    names: list[str]
    rate: float = 0.0
    unnamed: bool = False
    """Not all that are not well are among the troubles."""


async def get_overview(call: Call) -> Response:
    """Look at everything."""
    allowed = [part for scope, part in _PARTS if _may(call, scope)]
    if not call.principal.admin and not all_sights(call):
        allowed = [part for part in allowed if part is not _queues]
    sees_subscriptions = _may(call, Scope.CONSUMER)
    *found, events, dead = await asyncio.gather(
        *(_unless_away(part(call)) for part in allowed),
        _unless_away(_events() if not _may(call, Scope.HISTORY) else _rates(call)),
        _unless_away(_dead(call)),
    )
    parts: list[Part] = [part for part in found if part is not None]
    named = next((part.names for part in parts if part.summary.kind == "subscription"), None)
    backlog = None
    if sees_subscriptions and named is not None:
        backlog = await _unless_away(_backlog(call, None if call.principal.admin else named))
    troubles = [trouble for part in parts for trouble in part.troubles] + (dead or [])
    if sees_subscriptions and named is not None:
        troubles += await _unless_away(_heads(call, named)) or []
    if len(parts) < len(allowed) or dead is None:
        ready, why = call.gateway.ledger.ready()
        reason = why if not ready and why else "The ledger did not answer. What it knows is not shown."
        troubles.append(_trouble("ledger", "ledger", "down", "ledger_unavailable", reason, "bad", path="/health/ready"))
    troubles.sort(key=lambda each: each.severity != "bad")
    body = Overview(
        at=moment(clock.now()),
        kinds=[part.summary for part in parts],
        troubles=troubles[:TROUBLES_MAX],
        more=len(troubles) > TROUBLES_MAX or any(part.summary.more or part.unnamed for part in parts),
        backlog=backlog,
        events=events,
        bridged=next((part.rate for part in parts if part.summary.kind == "bridge"), None),
    )
    return answer(body)


def _may(call: Call, scope: Scope) -> bool:
    return call.principal.admin or NEEDS[scope](call.principal, {})


async def _unless_away(part: Awaitable[Any]) -> Any:
    """None where the ledger is away."""
    try:
        return await part
    except LedgerUnavailable:
        return None


def _trouble(
    kind: Any, name: str, state: str, code: str, reason: str, severity: Severity, *, since: Any = None, path: str = ""
) -> Trouble:
    where = path or f"/v1/{kind}s/{quote(name, safe='')}"
    words = printable(reason)
    words = words if len(words) <= WORDS_MAX else words[: WORDS_MAX - 1] + "…"
    return Trouble(
        kind=kind, name=name, state=state, code=code, reason=words, severity=severity, since=since, path=where
    )


def _part(kind: str, rows: Iterable[Any], troubles: list[Trouble], more: bool, rate: float = 0.0) -> Part:
    names = [row if isinstance(row, str) else row.name for row in rows]
    well = len(names) - len({each.name for each in troubles})
    summary = KindCount(kind=kind, count=len(names), well=well, more=more, path=f"/v1/{kind}s")
    return Part(summary, troubles, names, rate)


# ------------------------------------------------------------------------------------------------------- kinds


async def _brokers(call: Call) -> Part:
    rows, more = first_brokers(call, SEEN_MAX)
    troubles = []
    for row in rows:
        if row.state != "up":
            severity: Severity = "notice" if row.state == "connecting" else "bad"
            reason = row.reason or "The gateway connects to it for the first time."
            troubles.append(
                _trouble("broker", row.name, row.state, row.code or row.state, reason, severity, since=row.since)
            )
        elif row.alert:
            troubles.append(_trouble("broker", row.name, row.state, "alert", row.alert, "notice", since=row.since))
    return _part("broker", rows, troubles, more)


async def _queues(call: Call) -> Part:
    """Queues with messages that nobody takes, as far as their lists tell."""
    sights = all_sights(call)
    read = call.gateway.inventory.read
    lists = await asyncio.gather(
        *(read(sight.broker, kept_seconds=QUEUES_KEPT, wait_seconds=QUEUES_WAIT) for sight in sights)
    )
    found = list(zip(sights, lists, strict=True))
    count, idle = await threads.run(_idle, found) if sum(len(each.rows) for each in lists) > MANY else _idle(found)
    named = heapq.nlargest(QUEUES_MAX, idle, key=lambda each: each[0])
    pulled = await _pulled(call) if named else {}
    troubles = []
    for messages, broker, queue in named:
        wait = "1 message waits" if messages == 1 else f"{messages:,} messages wait"
        taker = pulled.get((broker, queue))
        hint = f" The subscription {taker!r} takes them when somebody pulls." if taker else ""
        path = f"/v1/brokers/{quote(broker, safe='')}/queues/{quote(queue, safe='', errors='surrogateescape')}"
        reason = f"{wait} at the broker {broker}, and nobody consumes the queue.{hint}"
        troubles.append(_trouble("queue", printable(queue), "idle", "no_consumer", reason, "notice", path=path))
    unread = any(each.as_of is None for each in lists)
    summary = KindCount(kind="queue", count=count, well=count - len(idle), more=unread, path="/v1/queues")
    return Part(summary, troubles, [], unnamed=len(idle) > len(named))


def _idle(found: Sequence[tuple[Sight, BrokerQueues]]) -> tuple[int, list[tuple[int, str, str]]]:
    """How many queues there are; and those with messages and without consumers, as messages, broker and name."""
    count = 0
    idle = []
    for sight, queues in found:
        for row in sight.rows(queues):
            count += 1
            waiting = row.ready if row.ready is not None else row.depth
            if waiting and row.consumers == 0:
                idle.append((waiting, sight.broker, row.name))
    return count, idle


async def _pulled(call: Call) -> dict[tuple[str, str], str]:
    """Broker and queue -> a subscription that consumers pull."""
    if not _may(call, Scope.CONSUMER):
        return {}
    rows, _ = await seen_subscriptions(call, SEEN_MAX)
    return {
        (row.settings.broker, queue_of(row.name, row.settings)): row.name
        for row in rows
        if not row.settings.push and not row.paused
    }


async def _bridges(call: Call) -> Part:
    rows, more = await bridges.HANDLERS.every(call, SEEN_MAX)
    troubles = []
    for row in rows:
        if row.state not in ("running", "starting") or (row.state == "starting" and row.reason):
            reason = row.reason or row.last_error or _RESTS[row.state]
            severity: Severity = "bad" if row.state in ("error", "starting") else "notice"
            troubles.append(_trouble("bridge", row.name, row.state, row.state, reason, severity, since=row.since))
    return _part("bridge", rows, troubles, more, round(sum(row.rate for row in rows), 1))


async def _taps(call: Call) -> Part:
    rows, more = await taps.HANDLERS.every(call, SEEN_MAX)
    troubles = []
    for row in rows:
        if row.state in ("paused", "full", "error") or (row.state == "starting" and row.reason):
            reason = row.reason or row.last_error or _RESTS[row.state]
            severity: Severity = "notice" if row.state == "paused" else "bad"
            troubles.append(_trouble("tap", row.name, row.state, row.state, reason, severity, since=row.since))
    return _part("tap", rows, troubles, more)


async def _endpoints(call: Call) -> Part:
    if call.endpoints is None:
        return _part("endpoint", (), [], False)
    rows, more = await first_endpoints(call, SEEN_MAX)
    troubles = []
    for row in rows:
        if row.state != "active":
            reason = _RESTS.get(row.state, "") if row.reason in ("", row.state) else row.reason
            severity: Severity = "bad" if row.state in ("disabled", "error") else "notice"
            troubles.append(_trouble("endpoint", row.name, row.state, row.state, reason or row.state, severity))
    return _part("endpoint", rows, troubles, more)


async def _subscriptions(call: Call) -> Part:
    rows, more = await first_subscriptions(call, SEEN_MAX)
    troubles = []
    for row in rows:
        if row.state == "paused":
            reason = row.reason or _RESTS["paused"]
            troubles.append(_trouble("subscription", row.name, row.state, row.state, reason, "notice"))
        elif row.reason:
            missing = row.settings.broker not in call.gateway.brokers
            code = NoSuchBroker.code if missing else "not_pushed" if row.settings.push else "not_consumed"
            troubles.append(_trouble("subscription", row.name, row.state, code, row.reason, "bad"))
    return _part("subscription", rows, troubles, more)


async def _heads(call: Call, names: Collection[str]) -> list[Trouble]:
    """Subscriptions whose oldest message failed again and again: those behind it may wait for it."""
    backlogs = await call.gateway.observer.backlogs()
    tried = [name for name in names if name in backlogs and backlogs[name].tried]
    troubles = []
    for name in tried[:HEADS_MAX]:
        page, _ = await call.gateway.ledger.deliveries.page(DeliveryFilter(subscription=name, dead=False), None, 1)
        if page and page[0].attempt - page[0].out >= TRIES:
            troubles.append(_head(call, page[0], backlogs[name].waiting + backlogs[name].out))
    return troubles


def _head(call: Call, row: BacklogEntry, waiting: int) -> Trouble:
    """The oldest message of a subscription, which failed before."""
    why = str(row.reason.get("reason") or row.reason.get("text") or "").rstrip(".")
    behind = "" if waiting < 2 else " 1 more waits." if waiting == 2 else f" {waiting - 1:,} more wait."
    reason = f"Its oldest message has failed {row.attempt - row.out} times{f': {why}' if why else ''}.{behind}"
    path = f"/v1/subscriptions/{quote(row.subscription, safe='')}"
    since = moment(row.at / 1e6)
    found = _trouble("subscription", row.subscription, "active", "retrying", reason, "notice", since=since, path=path)
    if _may(call, Scope.HISTORY):
        found.message = id_text(row.message_id)
    return found


async def _fronts(call: Call) -> Part:
    rows = list(call.fronts.values())
    troubles = []
    for row in rows[:SEEN_MAX]:
        for login, links in row.pool.links.items():
            down, blocked = [each for each in links if not each.is_up], [each for each in links if each.blocked]
            if down:
                reason = f"{len(down)} of its connections to the broker {login.broker!r} are down."
                troubles.append(_trouble("front", row.name, "down", "broker_unavailable", reason, "bad"))
            elif blocked:
                reason = f"The broker {login.broker!r} takes no publishes: {blocked[0].blocked}"
                troubles.append(_trouble("front", row.name, "blocked", "broker_blocked", reason, "bad"))
    return _part("front", rows[:SEEN_MAX], troubles, len(rows) > SEEN_MAX)


async def _replays(call: Call) -> Part:
    if call.replays is None:
        return _part("replay", (), [], False)
    rows, cursor = await the_replays(call).page(None, SEEN_MAX)
    recent = (clock.now() - RECENT) * 1e6
    troubles = []
    for row in rows:
        since = moment((row.ended_at or row.asked_at) / 1e6)
        if row.state is JobState.FAILED and row.ended_at >= recent:
            troubles.append(_trouble("replay", row.id, "failed", "failed", row.reason, "bad", since=since))
        elif row.state is JobState.PAUSED or (row.state is JobState.RUNNING and row.reason):
            reason = row.reason or _RESTS["paused"]
            code = "waiting" if row.state is JobState.RUNNING else "paused"
            troubles.append(_trouble("replay", row.id, row.state.value, code, reason, "notice", since=since))
    return _part("replay", [row.id for row in rows], troubles, cursor is not None)


_PARTS: Final[tuple[tuple[Scope, Callable[[Call], Awaitable[Part]]], ...]] = (
    (Scope.BROKERS, _brokers),
    (Scope.BROKERS, _queues),
    (Scope.ADMIN, _bridges),
    (Scope.ENDPOINTS, _endpoints),
    (Scope.CONSUMER, _subscriptions),
    (Scope.ADMIN, _taps),
    (Scope.ADMIN, _fronts),
    (Scope.ADMIN, _replays),
)
"""What each part takes, as its list does."""
_RESTS: Final = {
    "paused": "Somebody paused it.",
    "draining": "It is being drained: it stops when its source is empty.",
    "stopped": "It has stopped: it was drained, or has reached its end.",
    "unverified": "The endpoint has not said yet that it may be called.",
    "disabled": "It is disabled until somebody enables it.",
    "full": "It takes nothing until the log holds less.",
    "starting": "No process runs it yet.",
    "error": "Something stands in its way.",
}
"""State -> why, where its resource does not say it."""


# ---------------------------------------------------------------------------------------------------- the rest


async def _dead(call: Call) -> list[Trouble]:
    """The largest groups of dead letters."""
    if not call.principal.admin:
        return []
    groups, _ = await call.gateway.ledger.deliveries.dead_groups(DEAD_MAX)
    found = []
    for group in sorted(groups, key=lambda group: -group.count):
        asked = {"code": group.code, "subscription": group.subscription}
        found.append(
            _trouble(
                "dead_letters",
                group.subscription,
                "dead",
                group.code,
                f"{group.count:,}{'+' * group.more} dead letter{'s' * (group.count != 1)}: {CODES[group.code]}.",
                "notice",
                since=moment(group.first_at / 1e6),
                path=f"/v1/dead-letters?{urlencode(asked, errors='replace')}",
            )
        )
    return found


async def _backlog(call: Call, names: list[str] | None) -> OverviewBacklog:
    """``names``: of these subscriptions; None: of all."""
    found = await call.gateway.observer.backlogs()
    rows: list[BacklogCounts] = (
        list(found.values()) if names is None else [found[name] for name in names if name in found]
    )
    oldest = min((row.oldest_at for row in rows if row.oldest_at is not None), default=None)
    return OverviewBacklog(
        waiting=sum(row.waiting for row in rows),
        out=sum(row.out for row in rows),
        dead=sum(row.dead for row in rows),
        octets=sum(row.octets for row in rows),
        oldest_at=None if oldest is None else moment(oldest / 1e6),
    )


async def _events() -> None:
    """Not for this caller."""


async def _rates(call: Call) -> dict[str, float]:
    """Events a second over the last hour: of the hour that is under way all, of the one before the part of it that is
    in the last sixty minutes."""
    hour, into = divmod(clock.now() * 1e6, HOUR_US)
    where = HourFilter(since=int(hour) - 1)
    page, _ = await call.gateway.ledger.history.statistics(where, None, KINDS_MAX, ["kind"])
    sums: dict[str, float] = {}
    for row in page:
        if row.kind is not None:
            share = 1.0 if row.hour >= hour else 1.0 - into / HOUR_US
            sums[row.kind.value] = sums.get(row.kind.value, 0.0) + row.events * share
    return {kind: round(events / 3_600, 4) for kind, events in sorted(sums.items()) if events}


ROUTES: Final = (
    Route(
        "GET", "/v1/overview", "get_overview", "See what is wrong, at a glance", get_overview, Scope.CALLER,
        {200: ("Counts by kind, what is not well and why, backlog and rates.", Overview)},
        description=(
            f"Of each kind at most {SEEN_MAX:,} things are looked at, and at most {TROUBLES_MAX} are named. A kind "
            "that the caller has no scope for is left out. Fronts are those of the process that was asked."
        ),
        tag="administration",
    ),
)  # fmt: skip
