"""Where a replay gets its messages from: the ledger's messages, or what it owes and keeps of dead ones.

A source hands out chunks, in order, and says with each where it goes on behind it, so that a job that has written that
down goes on there after a restart. A chunk may be empty and not be the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, Protocol, TypeAlias

from msgspec import structs

from gateway.amqp.message import Message
from gateway.core import Gateway
from gateway.core.leasing.consuming import printable
from gateway.core.publishing.envelopes import EnvelopeError
from gateway.core.sources.own_queues import queue_of
from gateway.core.sources.stored import Stored, open_envelope
from gateway.errors import EncodeError, GatewayError, NoSuchDelivery, NoSuchMessage, NoSuchSubscription, StateError
from gateway.ledger import MessageFilter, MessageState, StoredMessage, id_text, parse_id
from gateway.ledger.pending.owed import BacklogEntry, DeliveryFilter
from gateway.replays.items import ReplayItem
from gateway.replays.jobs import Refusal
from gateway.replays.places import ReplayPlace
from gateway.replays.requests import DeliveriesSource, MessagesSource, exchange_name, microseconds

ORIGIN: Final = "replay"
"""``origin`` of what replays have sent."""
BEGIN: Final = "0"
"""A position before everything."""
NO_BODY: Final = "no_body"
"""Code of a refusal: the ledger does not keep the message's body."""
KEEP_BODIES: Final = (
    'retention.bodies = "days" keeps the bodies of messages from then on, up to retention.body_max bytes each, for '
    "retention.body_days days."
)
"""What would have kept a body that is not there."""
OCTETS_MAX: Final = 32 << 20
"""Most octets of the bodies of a chunk, unless it is only one."""
NOT_READ: Final = Stored(Message(b""), "", "", redelivered=False, resent=False)
"""In place of a message that is deleted unread: its copy in the ledger may be damaged."""
COUNT_STEPS: Final = 20
"""How many steps a count of messages takes at most; what is more than it finds is not counted."""
COUNT_MAX: Final = 1_000_000
"""Most deliveries that are counted."""


@dataclass(slots=True)
class Chunk:
    """Some messages."""

    items: list[ReplayItem] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    """Messages that no target can take."""
    position: str = ""
    """Where it goes on behind these."""
    last: bool = False
    met: Counter[str] = field(default_factory=Counter)
    """The names of those that came though they were counted as sent."""


Refuses: TypeAlias = Callable[[ReplayPlace | None], GatewayError | None]
"""Why the target would not take a message that came from there; None: it would."""


@dataclass(slots=True)
class Survey:
    """What a source has, without anything being sent."""

    count: int = 0
    """Messages that can be sent, as far as the source can tell."""
    complete: bool = True
    """Whether these are all; else there are more."""
    items: list[ReplayItem] = field(default_factory=list)
    """The first of them."""
    refused: Counter[str] = field(default_factory=Counter)
    """Messages that cannot be sent, by the code of the reason."""
    refusals: list[Refusal] = field(default_factory=list)
    """The first of those."""

    def refuse(self, refusal: Refusal, most: int) -> None:
        """Count a message that cannot be sent, and name it among the first ``most``."""
        self.refused[refusal.code] += 1
        if len(self.refusals) < most:
            self.refusals.append(refusal)

    def take(self, item: ReplayItem, refuses: Refuses, most: int) -> None:
        """Show a message that was counted, among the first ``most``, or count it apart if the target refuses it."""
        if (error := refuses(item.place)) is not None:
            self.count -= 1
            self.refuse(refusal_of(item.told, error), most)
        elif len(self.items) < most:
            self.items.append(item)


class MessageSource(Protocol):
    """Where messages come from."""

    async def survey(self, most: int, refuses: Refuses) -> Survey:
        """What there is, with the first ``most`` messages. What the target would not take is counted apart, as far as
        the source knows of each message where it came from. Raises GatewayError."""
        ...

    async def total(self) -> tuple[int, bool]:
        """How many there are, and whether that is all of them."""
        ...

    def begin(self, count: int) -> str:
        """Where it begins; ``count`` as :meth:`total` has it."""
        ...

    async def take(self, position: str, most: int, landed: Counter[str]) -> Chunk:
        """The next ones, at most so many; ``landed``: the names of those that are counted as sent."""
        ...

    async def landed(self, keys: Sequence[str], sent: Collection[str], position: str) -> tuple[list[str], str]:
        """Of the chunk that was under way when work ended: which were sent, and where to go on. ``sent``: those of
        which the inbox says so."""
        ...

    def ahead(self, names: Counter[str], chunk: Chunk) -> Counter[str]:
        """Which of these may be met once more behind this chunk."""
        ...

    def left(self, recorded: Sequence[ReplayItem], position: str) -> tuple[bool, str]:
        """A chunk is left in the middle, after these were recorded and settled: where to go on, and whether they will
        not be met again, so that they are to be counted now."""
        ...

    async def passed(self, items: Sequence[ReplayItem]) -> list[ReplayItem]:
        """These are recorded as sent, now or before: settle them. Answers with those that come again all the
        same."""
        ...

    async def refused(self, items: Sequence[ReplayItem]) -> None:
        """These are not sent, for good.

        Raises:
            LimitExceeded: they are more than it can hold.
        """
        ...

    async def close(self) -> None:
        """Release everything."""
        ...


class LedgerSource:
    """What both sources of the ledger share."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._ledger = gateway.ledger

    def begin(self, count: int) -> str:
        return BEGIN

    async def landed(self, keys: Sequence[str], sent: Collection[str], position: str) -> tuple[list[str], str]:
        return list(sent), position

    def ahead(self, names: Counter[str], chunk: Chunk) -> Counter[str]:
        """Names are ids here, and a position is one, too."""
        if chunk.last:
            return Counter()
        return Counter({name: count for name, count in names.items() if parse_id(name).hex() > chunk.position})

    def left(self, recorded: Sequence[ReplayItem], position: str) -> tuple[bool, str]:
        return False, position

    async def passed(self, items: Sequence[ReplayItem]) -> list[ReplayItem]:
        """The ledger holds nothing for us."""
        return []

    async def refused(self, items: Sequence[ReplayItem]) -> None:
        """They stay where they are."""

    async def close(self) -> None:
        """There is nothing to close."""


class LedgerMessageSource(LedgerSource):
    """Messages that the ledger knows, the oldest first, with the bodies that it keeps. What replays have sent is not
    sent once more, unless it is named by its id."""

    def __init__(self, gateway: Gateway, source: MessagesSource, until: int) -> None:
        """``until``: what is newer is left alone, in microseconds since 1970."""
        super().__init__(gateway)
        self._ids = sorted(_ids(source.ids or (), "source.messages.ids"))
        given = microseconds(source.until)
        self._where = MessageFilter(
            broker=source.broker or None,
            exchange=None if source.exchange is None else exchange_name(source.exchange),
            routing_key=source.routing_key,
            client=source.client,
            state=MessageState(source.state) if source.state else None,
            since=microseconds(source.since),
            until=until if given is None else min(given, until),
        )

    async def total(self) -> tuple[int, bool]:
        if self._ids:
            return len(self._ids), True
        count, after = 0, b""
        for _ in range(COUNT_STEPS):
            page, following = await self._ledger.scans.step(self._where, after, 1_000)
            count += len(page) - sum(message.origin == ORIGIN for message in page)
            if following is None:
                return count, True
            after = following
        return count, False

    async def survey(self, most: int, refuses: Refuses) -> Survey:
        """Bodies are not read to count messages: the ledger says which it has."""
        survey, first = Survey(), list[StoredMessage]()
        if self._ids:
            known = await self._ledger.scans.by_id(self._ids)
            for message_id in self._ids:
                if message_id not in known:
                    survey.refuse(_no_message(message_id), most)
            await self._surveyed(list(known.values()), survey, first, most, refuses)
        else:
            after, following = b"", None
            for _ in range(COUNT_STEPS):
                page, following = await self._ledger.scans.step(self._where, after, 1_000)
                found = [message for message in page if message.origin != ORIGIN]
                await self._surveyed(found, survey, first, most, refuses)
                if following is None:
                    break
                after = following
            survey.complete = following is None
        payloads = await self._ledger.scans.payloads([message.id for message in first])
        chunk = Chunk()
        for message in first:
            stored = _opened(payloads.get(message.id), id_text(message.id), chunk)
            if stored is not None:
                survey.items.append(_item(message, stored))
        survey.count -= len(chunk.refused)
        for refusal in chunk.refused:
            survey.refuse(refusal, most)
        return survey

    async def _surveyed(
        self,
        found: Sequence[StoredMessage],
        survey: Survey,
        first: list[StoredMessage],
        most: int,
        refuses: Refuses,
    ) -> None:
        """Count messages by whether the ledger has their bodies. The first that it has go to ``first``, as far as their
        bodies are read at once."""
        kept = await self._ledger.scans.with_payload([message.id for message in found])
        for message in found:
            if message.id not in kept:
                survey.refuse(_no_body(id_text(message.id)), most)
                continue
            if (error := refuses(_place(message))) is not None:
                survey.refuse(refusal_of(id_text(message.id), error), most)
                continue
            survey.count += 1
            if len(first) < most and (not first or sum(each.size for each in first) + message.size <= OCTETS_MAX):
                first.append(message)

    async def take(self, position: str, most: int, landed: Counter[str]) -> Chunk:
        after = b"" if position == BEGIN else bytes.fromhex(position)
        chunk = Chunk()
        if self._ids:
            wanted = [message_id for message_id in self._ids if message_id > after][:most]
            known = await self._ledger.scans.by_id(wanted)
            chunk.refused = [_no_message(message_id) for message_id in wanted if message_id not in known]
            found = [known[message_id] for message_id in wanted if message_id in known]
            following = wanted[-1] if wanted and wanted[-1] != self._ids[-1] else None
        else:
            found, following = await self._ledger.scans.step(self._where, after, most)
        fit = fitting([message.size for message in found])
        if fit < len(found):
            found, following = found[:fit], found[fit - 1].id
            chunk.refused = [refusal for refusal in chunk.refused if parse_id(refusal.id) <= following]
        if not self._ids:
            found = [message for message in found if message.origin != ORIGIN]
        payloads = await self._ledger.scans.payloads([message.id for message in found])
        for message in found:
            stored = _opened(payloads.get(message.id), id_text(message.id), chunk)
            if stored is not None:
                chunk.items.append(_item(message, stored))
        _without(chunk, landed)
        chunk.last = following is None
        chunk.position = position if following is None else following.hex()
        return chunk


class DeadDeliverySource(LedgerSource):
    """Dead messages of subscriptions, in the order in which they came."""

    def __init__(
        self, gateway: Gateway, source: DeliveriesSource, until: int, *, revives: bool, purges: bool = False
    ) -> None:
        """``revives``: they go back to their subscription; ``purges``: they are deleted, and nobody reads them. Then
        only the dead ones are of interest."""
        super().__init__(gateway)
        self._ids = sorted(_ids(source.ids or (), "source.deliveries.ids"))
        given = microseconds(source.until)
        self._revives = revives
        self._purges = purges
        self._endpoint = source.endpoint
        self._where = DeliveryFilter(
            subscription=source.subscription or None,
            dead=True,
            code=source.code or None,
            since=microseconds(source.since),
            until=until if given is None else min(given, until),
        )

    async def total(self) -> tuple[int, bool]:
        if self._ids:
            return len(self._ids), True
        count = await self._ledger.deliveries.count(await self._filter(), COUNT_MAX)
        return count, count < COUNT_MAX

    async def _filter(self) -> DeliveryFilter:
        """Which ones; those of an endpoint are those of the subscriptions that are pushed to it now."""
        if not self._endpoint:
            return self._where
        return structs.replace(self._where, subscriptions=await self._gateway.subscriptions.pushed_to(self._endpoint))

    async def survey(self, most: int, refuses: Refuses) -> Survey:
        """The ledger has the bodies of dead messages. So only named ones need a look each."""
        survey, position, last = Survey(), BEGIN, False
        survey.count, survey.complete = await self.total()
        while not last and (self._ids or len(survey.items) + len(survey.refusals) < most):
            chunk = await self.take(position, most, Counter())
            for item in chunk.items:
                survey.take(item, refuses, most)
            survey.count -= len(chunk.refused)
            for refusal in chunk.refused:
                survey.refuse(refusal, most)
            position, last = chunk.position, chunk.last
        return survey

    async def take(self, position: str, most: int, landed: Counter[str]) -> Chunk:
        chunk = Chunk()
        rows = await self._named(position, most, chunk) if self._ids else await self._next(position, most, chunk)
        for row in rows:
            stored = NOT_READ if self._purges else _opened(row.payload, id_text(row.id), chunk)
            if stored is not None:
                chunk.items.append(await self._item(row, stored))
        _without(chunk, landed)
        return chunk

    async def _next(self, position: str, most: int, chunk: Chunk) -> list[BacklogEntry]:
        """Those that fit the filter."""
        behind = None if position == BEGIN else position
        where = await self._filter()
        rows, cursor = await self._ledger.deliveries.page(where, behind, most)
        if self._purges:
            chunk.last, chunk.position = cursor is None, cursor or position
            return rows
        fit = fitting([row.size for row in rows])
        chunk.last = cursor is None and fit == len(rows)
        chunk.position = rows[fit - 1].id.hex() if rows else position
        if not rows:
            return rows
        rows, _ = await self._ledger.deliveries.page(where, behind, fit, payload=True)
        return [row for row in rows if row.id.hex() <= chunk.position]

    async def _named(self, position: str, most: int, chunk: Chunk) -> list[BacklogEntry]:
        """Those that are named."""
        after = b"" if position == BEGIN else bytes.fromhex(position)
        rows: list[BacklogEntry] = []
        octets = 0
        chunk.position, chunk.last = position, True
        for delivery_id in self._ids:
            if delivery_id <= after:
                continue
            if len(rows) + len(chunk.refused) >= most:
                chunk.last = False
                break
            row = await self._ledger.deliveries.get(delivery_id, payload=not self._purges)
            if row is not None and rows and octets + row.size > OCTETS_MAX:
                chunk.last = False  # the next chunk begins with it
                break
            if row is None:
                text = "the ledger neither owes nor keeps it"
                chunk.refused.append(Refusal(id_text(delivery_id), NoSuchDelivery.code, text))
            elif (self._revives or self._purges) and not row.dead:
                chunk.refused.append(Refusal(id_text(delivery_id), StateError.code, "it is not dead"))
            else:
                rows.append(row)
                octets += row.size
            chunk.position = delivery_id.hex()
        return rows

    async def _item(self, row: BacklogEntry, stored: Stored) -> ReplayItem:
        place = None
        subscription = await self._subscription(row.subscription)
        if subscription is not None:
            broker, queue = subscription
            place = ReplayPlace(broker, stored.exchange, stored.routing_key, queue)
        item = ReplayItem(id_text(row.id), row.message_id, stored.message, place)
        item.exchange, item.routing_key = stored.exchange, stored.routing_key
        item.sha256 = sha256(stored.message.body).digest()
        item.row = row
        return item

    async def _subscription(self, name: str) -> tuple[str, str] | None:
        """The broker and queue of a subscription; None: there is none of that name any more."""
        try:
            found = await self._gateway.subscriptions.get(name)
        except NoSuchSubscription:
            return None
        return found.settings.broker, queue_of(name, found.settings)

    async def landed(self, keys: Sequence[str], sent: Collection[str], position: str) -> tuple[list[str], str]:
        """A dead one goes, or is revived, in the commit that records that it was sent."""
        gone = set(sent)
        for key in keys:
            row = await self._ledger.deliveries.get(parse_id(key))
            if row is None or (self._revives and not row.dead):
                gone.add(key)
        return list(gone), position


def fitting(sizes: Sequence[int]) -> int:
    """How many of these bodies are taken at once, at least one where there is any."""
    octets = 0
    for count, size in enumerate(sizes):
        octets += size
        if octets > OCTETS_MAX and count:
            return count
    return len(sizes)


def _without(chunk: Chunk, landed: Iterable[str]) -> None:
    """What is counted as sent is not met once more, nor missed where it went from the ledger."""
    known = set(landed)
    if known:
        chunk.items = [item for item in chunk.items if item.name not in known]
        chunk.refused = [refusal for refusal in chunk.refused if refusal.id not in known]


def _ids(texts: Sequence[str], setting: str) -> set[bytes]:
    found = set()
    for text in texts:
        try:
            found.add(parse_id(text))
        except ValueError:
            raise EncodeError(f"{setting}: {text!r:.60} is no id") from None
    return found


def _opened(payload: bytes | None, text: str, chunk: Chunk) -> Stored | None:
    """The message of a payload; where there is none the chunk says so."""
    if payload is None:
        chunk.refused.append(_no_body(text))
        return None
    try:
        return open_envelope(payload)
    except EnvelopeError as error:
        chunk.refused.append(Refusal(text, "internal", str(error)))
        return None


def _no_body(text: str) -> Refusal:
    return Refusal(text, NO_BODY, "the ledger does not keep its body (retention.bodies)")


def _no_message(message_id: bytes) -> Refusal:
    return Refusal(id_text(message_id), NoSuchMessage.code, "the ledger knows no such message")


def refusal_of(text: str, error: GatewayError) -> Refusal:
    """A message that is not sent, as it is named; ``text``: its id."""
    return Refusal(text, error.code, printable(str(error))[:300])


def _place(message: StoredMessage) -> ReplayPlace:
    return ReplayPlace(message.broker, message.exchange, message.routing_key)


def _item(message: StoredMessage, stored: Stored) -> ReplayItem:
    item = ReplayItem(id_text(message.id), message.id, stored.message, _place(message))
    item.sha256 = message.sha256
    return item
