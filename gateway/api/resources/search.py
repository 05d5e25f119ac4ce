"""``/v1/search``: a text in the names of everything that a caller may list, and in what the ledger knows of messages.

Each kind is a search of its own, as its list allows it, and all run at once. Names contain the text in any case; the
exact name comes first, then those that begin with it. Messages are looked for as their list does: by the gateway's id,
the publisher's, the correlation id, the routing key, or ``NAME=VALUE`` of a header. Each search is bounded in time and
in what it looks at. The answer names what was not searched, or only in part, with the reason.
"""

from __future__ import annotations

import asyncio
import heapq
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import Meta
from starlette.responses import Response

from gateway.access.scopes import DEFAULT_EXCHANGE
from gateway.api.about.schemas import Input, Output
from gateway.api.http.auth import NEEDS
from gateway.api.http.call import Call, answer
from gateway.api.http.problems import printable, wrong_parameter
from gateway.api.http.routing import Route, Scope
from gateway.api.resources.brokers import moment, seen_brokers
from gateway.api.resources.endpoints import seen_endpoints
from gateway.api.resources.inventory import all_sights
from gateway.api.resources.replays import the_replays
from gateway.api.resources.subscriptions import seen_subscriptions
from gateway.core.topology import EXCHANGE
from gateway.errors import LedgerUnavailable
from gateway.ledger import MessageFilter, OutboxEntry, OutboxFilter, StoredMessage, first_id, id_text, parse_id, time_of
from gateway.notation.values import text_from_json, text_to_json
from gateway.replays import ReplayRequest
from gateway.runtime.threads import threads

WITHIN: Final = 5.0
"""How long one kind is searched, in seconds."""
LOOKED_MAX: Final = 10_000
"""Most things of a kind that are looked at, where they are read from the ledger for this."""
PAGE: Final = 1_000
"""How many of them are read at a time."""
MANY: Final = 2_000
"""From this number of names on they are compared in a thread."""
GAPS_MAX: Final = 200
"""Most gaps that are named."""
PROPERTIES: Final = ("message_id", "correlation_id")
"""Properties of a message that are compared."""
OWN_TIME_MS: Final = (-10_000, 110_000)
"""From when to when a message is looked for first whose id has a time, in milliseconds from that time: its publisher
made the id before the gateway got the message, by a clock of its own."""
ELSEWHEN: Final = "elsewhen-"
"""What the cursor begins with when the messages of an id's own time are on the first page."""
REPLAY_NAMES: Final = ("broker", "queue", "subscription", "endpoint", "exchange", "routing_key")
"""What of a replay's source and target is compared."""

Kind = Literal[
    "broker", "queue", "exchange", "subscription", "endpoint", "bridge", "tap", "front", "replay", "scheduled",
    "message",
]  # fmt: skip
Match = Literal["name", "id", "message_id", "correlation_id", "exchange", "routing_key", "header"]
Code = Literal["forbidden", "incomplete", "bounded", "late", "ledger_unavailable"]


class SearchQuery(Input):
    """What is looked for."""

    q: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=255,
            description="Part of a name, in any case; or a message's id, routing key, or NAME=VALUE of a header.",
        ),
    ]
    kind: Annotated[tuple[Kind, ...], Meta(description="Only these kinds; every kind if none is given.")] = ()
    limit: Annotated[int, Meta(ge=1, le=200, description="Most things of each kind.")] = 20
    cursor: Annotated[
        str, Meta(max_length=1000, description="From `next` of a kind, which is given as the one `kind`.")
    ] = ""


class SearchFound(Output, omit_defaults=False):
    """Something that was found."""

    kind: Kind
    """What it is."""
    name: Any
    """Its name, or its id. A string; a ``binary`` object where a name is not UTF-8."""
    broker: str
    """Its broker; empty where it has none."""
    match: Match
    """What of it has the text."""
    state: str
    """Of messages, scheduled publishes and replays the state; otherwise empty."""
    exchange: Any
    """Of messages and scheduled publishes: the exchange; otherwise ``null``."""
    routing_key: Any
    """Of messages and scheduled publishes: the routing key; otherwise ``null``."""
    at: str | None
    """When a message came, or a scheduled publish is due, RFC 3339; otherwise ``null``."""
    path: str
    """Path of its resource."""


class SearchedKind(Output, omit_defaults=False):
    """How a kind was searched."""

    kind: Kind
    """The kind."""
    count: int
    """How many of it are in this answer."""
    searched: Literal["all", "part", "none"]
    """Whether all of it was looked at; ``gaps`` say what was not, and why."""
    next: str | None
    """Path with query for more of this kind, or to go on where the search stopped; ``null``: there is no more."""
    reached: str | None
    """How far back messages were looked at, if there are older ones, RFC 3339; otherwise ``null``."""


class SearchGap(Output, omit_defaults=False):
    """Something that was not searched, or only in part."""

    kind: Kind
    """The kind."""
    broker: str
    """The broker that it is about; empty: all of the kind."""
    code: Code
    """``forbidden``: the caller may not list it; ``incomplete``: its list is not complete, or old; ``bounded``: only so
    many were looked at; ``late``: it took too long; ``ledger_unavailable``: the ledger is away."""
    reason: str
    """Why, in a sentence."""


class SearchAnswer(Output, omit_defaults=False):
    """What was found, and what was not searched."""

    found: list[SearchFound]
    """What was found, kind by kind."""
    kinds: list[SearchedKind]
    """The kinds that were asked for."""
    gaps: list[SearchGap]
    """What was not searched, or only in part, and why; at most 200 are named."""


class Sought(NamedTuple):
    """What one search looks for."""

    text: str
    low: str
    """The text without its case."""
    cursor: str
    limit: int


class Gap(NamedTuple):
    """What a search did not look at."""

    code: Code
    reason: str
    broker: str = ""


class Findings(NamedTuple):
    """What one search found."""

    found: Sequence[SearchFound] = ()
    cursor: str | None = None
    """Where it goes on; None: there is no more."""
    gaps: Sequence[Gap] = ()
    reached: str | None = None


class WrongCursor(ValueError):
    """A cursor that no search gave."""


async def search(call: Call) -> Response:
    """Search all kinds at once, or those that are asked for."""
    query = call.query(SearchQuery)
    kinds = [kind for kind in SEARCHES if not query.kind or kind in query.kind]
    if query.cursor and len(kinds) != 1:
        raise wrong_parameter("cursor", "it belongs to one kind: give that one as `kind`")
    sought = Sought(query.q, query.q.casefold(), query.cursor, query.limit)
    try:
        findings = await asyncio.gather(*(_within(call, kind, sought) for kind in kinds))
    except WrongCursor:
        raise wrong_parameter("cursor", "it was not given by a search of this kind") from None
    gaps = [
        SearchGap(kind=kind, broker=gap.broker, code=gap.code, reason=printable(gap.reason))
        for kind, each in zip(kinds, findings, strict=True)
        for gap in each.gaps
    ]
    body = SearchAnswer(
        found=[row for each in findings for row in each.found],
        kinds=[_searched(query, kind, each) for kind, each in zip(kinds, findings, strict=True)],
        gaps=gaps[:GAPS_MAX],
    )
    return answer(body)


async def _within(call: Call, kind: Kind, sought: Sought) -> Findings:
    """One search, within its time, as far as the caller may list the kind."""
    scope, run = SEARCHES[kind]
    if not (call.principal.admin or NEEDS[scope](call.principal, {})):
        return Findings(gaps=[Gap("forbidden", f"Your credential lacks the scope {scope.value}.")])
    try:
        async with asyncio.timeout(WITHIN):
            return await run(call, sought)
    except TimeoutError:
        return Findings(gaps=[Gap("late", f"The search did not end within {WITHIN:g} s. Search this kind alone.")])
    except LedgerUnavailable:
        return Findings(gaps=[Gap("ledger_unavailable", "The ledger does not answer. What it knows was not searched.")])


NOT_SEARCHED: Final = frozenset({"forbidden", "late", "ledger_unavailable"})
"""Codes of gaps that leave nothing of a kind, where they are about all of it."""


def _searched(query: SearchQuery, kind: Kind, each: Findings) -> SearchedKind:
    none = any(gap.code in NOT_SEARCHED and not gap.broker for gap in each.gaps)
    following = None
    if each.cursor is not None:
        pairs = {"q": query.q, "kind": kind, "limit": str(query.limit), "cursor": each.cursor}
        words = "&".join(f"{name}={quote(text, safe='', errors='surrogateescape')}" for name, text in pairs.items())
        following = f"/v1/search?{words}"
    return SearchedKind(
        kind=kind,
        count=len(each.found),
        searched="none" if none else "part" if each.gaps else "all",
        next=following,
        reached=each.reached,
    )


# ------------------------------------------------------------------------------------------------------- names


class Named(NamedTuple):
    """Something with a name, as it is compared."""

    name: str
    broker: str = ""
    state: str = ""
    others: tuple[str, ...] = ()
    """Names of others by which it is found, too: after those whose own name has the text."""


def ranked(names: Iterable[Named], sought: Sought) -> tuple[list[Named], str | None]:
    """Those with the text in their name, the exact ones first, and the cursor behind them. Raises WrongCursor."""
    after = _place(sought.cursor) if sought.cursor else None

    def fitting() -> Iterable[tuple[tuple[int, str, str], Named]]:
        for each in names:
            low = each.name.casefold()
            if sought.low in low:
                rank = 0 if low == sought.low else 1 if low.startswith(sought.low) else 2
            elif any(sought.low in other.casefold() for other in each.others):
                rank = 3
            else:
                continue
            key = (rank, each.name, each.broker)
            if after is None or key > after:
                yield key, each

    page = heapq.nsmallest(sought.limit + 1, fitting(), key=lambda pair: pair[0])
    if len(page) <= sought.limit:
        return [each for _, each in page], None
    rank, name, broker = page[sought.limit - 1][0]
    place = msgspec.json.encode([rank, name.encode("utf-8", "surrogateescape").hex(), broker])
    return [each for _, each in page[: sought.limit]], urlsafe_b64encode(place).decode().rstrip("=")


def _place(cursor: str) -> tuple[int, str, str]:
    """Where the page before has ended."""
    try:
        octets = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        rank, name, broker = msgspec.json.decode(octets, type=tuple[int, str, str])
        return rank, bytes.fromhex(name).decode("utf-8", "surrogateescape"), broker
    except (ValueError, msgspec.MsgspecError):
        raise WrongCursor from None


async def _names(
    kind: Kind, names: Sequence[Named], sought: Sought, gaps: Sequence[Gap] = (), path: str = "", own: Match = "name"
) -> Findings:
    """``path``: of one, with ``{broker}`` and ``{name}``; empty: that of the kind. ``own``: what its own name is."""
    found, cursor = ranked(names, sought) if len(names) < MANY else await threads.run(ranked, names, sought)
    rows = [
        _found(
            kind,
            text_to_json(each.name),
            each.broker,
            own if sought.low in each.name.casefold() else "name",
            (path or f"/v1/{kind}s/{{name}}").format(broker=_segment(each.broker), name=_segment(each.name)),
            state=each.state,
        )
        for each in found
    ]
    return Findings(rows, cursor, gaps)


def _found(
    kind: Kind, name: Any, broker: str, match: Match, path: str, *, state: str = "",
    place: tuple[str, str] | None = None, at: str | None = None,
) -> SearchFound:  # fmt: skip
    exchange, key = (None, None) if place is None else map(text_to_json, place)
    return SearchFound(
        kind=kind, name=name, broker=broker, match=match, state=state, exchange=exchange, routing_key=key, at=at,
        path=path,
    )  # fmt: skip


def _segment(name: str) -> str:
    return quote(name, safe="", errors="surrogateescape") or DEFAULT_EXCHANGE


def _bounded(what: str) -> Gap:
    return Gap("bounded", f"Only the first {LOOKED_MAX:,} {what} were looked at.")


async def _brokers(call: Call, sought: Sought) -> Findings:
    return await _names("broker", [Named(name) for name in seen_brokers(call)], sought)


async def _queues(call: Call, sought: Sought) -> Findings:
    """As the list of queues has them: from the management of brokers, or what the gateway knows."""
    sights = all_sights(call)
    if not sights and not call.principal.admin:
        return Findings(gaps=[Gap("forbidden", "Your credential has no scope broker: or consume:.")])
    lists = await asyncio.gather(*(call.gateway.inventory.read(sight.broker) for sight in sights))
    names = [Named(row.name, sight.broker) for sight, queues in zip(sights, lists, strict=True)
             for row in sight.rows(queues)]  # fmt: skip
    gaps = [
        Gap("incomplete", queues.reason, sight.broker)
        for sight, queues in zip(sights, lists, strict=True)
        if queues.is_partial
    ]
    return await _names("queue", names, sought, gaps, "/v1/brokers/{broker}/queues/{name}")


async def _exchanges(call: Call, sought: Sought) -> Findings:
    """Those that were declared through the gateway: AMQP cannot list them."""
    names: list[Named] = []
    brokers = [name for name in call.gateway.brokers if call.principal.may("broker", name)]
    if not brokers and not call.principal.admin:
        return Findings(gaps=[Gap("forbidden", "Your credential has no scope broker:.")])
    gaps = [Gap("incomplete", "AMQP cannot list exchanges: these are those that were declared through the gateway.")]
    for broker in brokers:
        cursor: str | None = None
        while len(names) < LOOKED_MAX:
            page, cursor = await call.gateway.topology.known(EXCHANGE, broker, cursor, PAGE)
            names += [Named(text_from_json(item.spec["name"]), broker) for item in page]
            if cursor is None:
                break
    if len(names) >= LOOKED_MAX:
        gaps.append(_bounded("exchanges"))
    return await _names("exchange", names[:LOOKED_MAX], sought, gaps, "/v1/brokers/{broker}/exchanges/{name}")


async def _subscriptions(call: Call, sought: Sought) -> Findings:
    found, more = await seen_subscriptions(call, LOOKED_MAX)
    gaps = [_bounded("subscriptions")] if more else []
    return await _names("subscription", [Named(each.name, each.settings.broker) for each in found], sought, gaps)


async def _endpoints(call: Call, sought: Sought) -> Findings:
    if call.endpoints is None:
        return Findings()
    found, more = await seen_endpoints(call, LOOKED_MAX)
    gaps = [_bounded("endpoints")] if more else []
    return await _names("endpoint", [Named(each.name) for each in found], sought, gaps)


async def _bridges(call: Call, sought: Sought) -> Findings:
    return await _names("bridge", [Named(name) for name in await call.bridges.names()], sought)


async def _taps(call: Call, sought: Sought) -> Findings:
    return await _names("tap", [Named(name) for name in await call.taps.names()], sought)


async def _fronts(call: Call, sought: Sought) -> Findings:
    shared = call.gateway.peers.shared
    gaps = [Gap("incomplete", "Fronts of other processes were not searched.")] if shared else []
    return await _names("front", [Named(name) for name in call.fronts], sought, gaps)


async def _replays(call: Call, sought: Sought) -> Findings:
    if call.replays is None:
        return Findings()
    names: list[Named] = []
    cursor: str | None = None
    while len(names) < LOOKED_MAX:
        page, cursor = await the_replays(call).page(cursor, PAGE)
        names += [Named(job.id, state=job.state.value, others=_told(job.request)) for job in page]
        if cursor is None:
            break
    gaps = [_bounded("replays")] if cursor is not None else []
    return await _names("replay", names, sought, gaps, own="id")


def _told(request: ReplayRequest) -> tuple[str, ...]:
    """The names that a replay was asked for with: where its messages come from, and where they go."""
    source = getattr(request.source, request.source.kind)
    values = (getattr(part, name, None) for part in (source, request.target) for name in REPLAY_NAMES)
    return tuple(filter(None, values))


# ------------------------------------------------------------------------------------------------------ messages


def _id(text: str) -> bytes | None:
    """The id of a message, if the text is one."""
    try:
        return parse_id(text)
    except ValueError:
        return None


async def _scheduled(call: Call, sought: Sought) -> Findings:
    """Publishes that the ledger holds, by id, exchange and routing key."""
    outbox = call.gateway.outbox
    client = None if call.principal.admin else call.principal.name
    id = _id(sought.text)
    try:
        if id is not None:
            rows, cursor = await outbox.page(OutboxFilter(message_id=id, client=client), None, 1)
        else:
            rows, cursor = await outbox.find(sought.text, client, sought.cursor or None, sought.limit)
    except ValueError:
        raise WrongCursor from None
    gaps = []
    if cursor is not None and len(rows) < sought.limit:
        gaps.append(Gap("bounded", "Further scheduled publishes were not looked at yet. `next` goes on."))
    return Findings([_publish(row, sought.text, is_id=id is not None) for row in rows], cursor, gaps)


def _publish(row: OutboxEntry, text: str, *, is_id: bool) -> SearchFound:
    id = id_text(row.message_id)
    match: Match = "id" if is_id else "routing_key" if text in row.routing_key else "exchange"
    return _found(
        "scheduled", id, row.broker, match, f"/v1/scheduled/{id}",
        state="refused" if row.dead else "scheduled",
        place=(row.exchange, row.routing_key),
        at=None if row.dead else moment(row.due_at / 1e6),
    )  # fmt: skip


async def _messages(call: Call, sought: Sought) -> Findings:
    """What the ledger knows, the newest first."""
    ledger = call.gateway.ledger
    id = _id(sought.text)
    if id is not None and not sought.cursor and (known := await ledger.scans.by_id([id])):
        return Findings([_message(known[id], sought.text, "id")])
    name, equals, value = sought.text.partition("=")
    headers = {name: value} if equals and name in ledger.headers else {}
    ways = [
        MessageFilter(routing_key=sought.text),
        *(MessageFilter(properties={each: sought.text}) for each in PROPERTIES),
    ]
    if headers:
        ways.append(MessageFilter(headers=headers))
    where = MessageFilter(any_of=ways)
    own_time = None if id is None else time_of(id)
    if own_time is not None and not sought.cursor and (found := await _of_its_time(call, sought, where, own_time)):
        return found
    told = own_time is not None and sought.cursor.startswith(ELSEWHEN)
    try:
        page, cursor = await call.gateway.messages(where, sought.cursor[len(ELSEWHEN) * told :] or None, sought.limit)
    except ValueError:
        raise WrongCursor from None
    gaps = []
    reached = None
    if cursor is not None:
        reached = moment(int.from_bytes(bytes.fromhex(cursor)[:6]) / 1e3)  # an id is a time
        if len(page) < sought.limit:
            gaps.append(Gap("bounded", f"Messages before {reached} were not looked at yet. `next` goes on."))
    if equals and name and not headers:
        kept = ", ".join(ledger.headers) or "none"
        gaps.append(
            Gap("incomplete", f"The ledger does not keep the header {name:.100} (ledger.headers: {kept:.400}).")
        )
    if told and own_time is not None:
        first, end = (first_id(max(0, own_time + each)) for each in OWN_TIME_MS)
        page = [each for each in page if not first <= each.id < end]
        cursor = cursor and ELSEWHEN + cursor
    return Findings([_message(each, sought.text) for each in page], cursor, gaps, reached)


async def _of_its_time(call: Call, sought: Sought, where: MessageFilter, own_time: int) -> Findings | None:
    """Messages that came when their publisher made this id, if there are any. All others are for the next page."""
    since, until = ((own_time + each) * 1_000 for each in OWN_TIME_MS)
    where = msgspec.structs.replace(where, since=since, until=until)
    page, cursor = await call.gateway.messages(where, None, sought.limit)
    if not page or cursor is not None:
        return None
    reason = "Only messages of the time that the id has in it were looked at. `next` goes on with all others."
    return Findings([_message(each, sought.text) for each in page], ELSEWHEN, [Gap("bounded", reason)])


def _message(message: StoredMessage, text: str, match: Match = "header") -> SearchFound:
    """``match``: unless the text is one of its properties or its routing key."""
    known: tuple[tuple[Match, Any], ...] = (
        ("message_id", message.properties.get("message_id")),
        ("correlation_id", message.properties.get("correlation_id")),
        ("routing_key", message.routing_key),
    )
    id = id_text(message.id)
    return _found(
        "message", id, message.broker, next((each for each, value in known if value == text), match),
        f"/v1/messages/{id}",
        state=message.state.value if message.state is not None else "",
        place=(message.exchange, message.routing_key),
        at=moment(message.at / 1e6),
    )  # fmt: skip


SEARCHES: Final[Mapping[Kind, tuple[Scope, Callable[[Call, Sought], Awaitable[Findings]]]]] = {
    "broker": (Scope.BROKERS, _brokers),
    "queue": (Scope.BROKERS, _queues),
    "exchange": (Scope.BROKERS, _exchanges),
    "subscription": (Scope.CONSUMER, _subscriptions),
    "endpoint": (Scope.ENDPOINTS, _endpoints),
    "bridge": (Scope.ADMIN, _bridges),
    "tap": (Scope.ADMIN, _taps),
    "front": (Scope.ADMIN, _fronts),
    "replay": (Scope.ADMIN, _replays),
    "scheduled": (Scope.PUBLISHER, _scheduled),
    "message": (Scope.HISTORY, _messages),
}
"""Kind -> what its list takes, and its search."""

ROUTES: Final = (
    Route(
        "GET", "/v1/search", "search", "Search names and messages", search, Scope.CALLER,
        {200: ("What was found, and what was not searched.", SearchAnswer)}, query=SearchQuery,
        codes=("invalid_parameter",),
        description=(
            "Names are those of everything that the caller may list. Messages are found by the whole of their id, "
            "`message_id`, `correlation_id` or routing key, or by `NAME=VALUE` of a header that the ledger keeps; "
            "scheduled publishes by a part of exchange or routing key. Each kind is searched for "
            f"{WITHIN:g} s at most, messages for 2 s and 500,000 of them; `next` goes on. `gaps` name what was not "
            "searched, or only in part, and why."
        ),
        tag="administration",
    ),
)  # fmt: skip
