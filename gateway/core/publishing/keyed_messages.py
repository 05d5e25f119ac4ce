"""A key for each message: however often a message is sent again, under its key it is published once, and every repeat
gets the first final outcome.

What :mod:`gateway.core.publishing.keys` does for a request, this does for each message of a stream or batch, hundreds
at a time: all keys are claimed in one commit, with the messages; those that are new are sent, in their order; and all
outcomes are kept in one commit with their events. A message whose confirm is late holds up nobody: the others end
without it.

::

    a key that is new              published; the outcome is kept: ``done``
    one with an outcome            that outcome: ``repeated``; nothing is published
    one that is under way here     waits for it, as if it had come first: ``repeated``
    ... in another process         409 ``idempotency_key_running``
    ... for another message        422 ``idempotency_key_reused``
    nothing was sent (503)         the key is free again
    no outcome (504)               not final: a repeat joins it, or sends it again with the same id, marked ``resent``

Messages without a key may come between; they are published in their place, as ever.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future, Task
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final, TypeAlias

import msgspec

from gateway.core.publishing import envelopes, fingerprints
from gateway.core.publishing.endings import LATE_CONFIRM, disown, finality, insist, known, stay_unknown
from gateway.core.publishing.entries import keyed_entry
from gateway.core.publishing.publisher import (
    DONE,
    REPEATED,
    Publication,
    Publisher,
    PublishOutcome,
    groups_of,
    in_doubt,
)
from gateway.errors import (
    CommitUnknown,
    EntriesRefused,
    GatewayError,
    KeyReused,
    KeyRunning,
    LedgerUnavailable,
    OutcomeUnknown,
    Overloaded,
    error_of,
)
from gateway.ledger import (
    EndedKey,
    KeyClaim,
    Ledger,
    LogEntry,
    Mismatch,
    New,
    RunningRequest,
    StoredAnswer,
    Unknown,
    Wanted,
    id_text,
)
from gateway.ledger.db.shards import ShardLease
from gateway.ledger.pending.keys import ANSWERED, FREE, UNKNOWN
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock
from gateway.upstreams import PublishReceipt, Upstream

UNDER_WAY_MAX: Final = 50_000
"""Most messages with a key under way at once."""
RECORDING: Final = 5.0
"""How long known outcomes may wait for the ledger before their callers get ``outcome_unknown``, in seconds."""
_ENDINGS: Final = {"final": ANSWERED, "free": FREE, "unknown": UNKNOWN}
_MESSAGE: Final = 1
"""Kept as the status of an answer that is the outcome of a message; no HTTP answer has it."""


class _Kept(msgspec.Struct, array_like=True):
    """An outcome, as it is kept under its key."""

    id: str
    routed: bool
    durable: bool
    resent: bool
    code: str
    text: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Kept).decode


@dataclass(slots=True, eq=False)
class _Line:
    """A message on its way."""

    item: Publication
    client: str
    outcome: Future[PublishOutcome]
    """Set once it is in the ledger, or will never be."""
    fingerprint: bytes = b""
    payload: bytes = b""
    """The message as an intent holds it; dropped once it is claimed."""
    again: bool = False
    """An earlier attempt may have arrived."""
    first: _Line | None = None
    """The one with the same key that was there before, and is being worked on."""

    @property
    def name(self) -> tuple[str, str]:
        return self.client, self.item.key

    def result(self) -> PublishOutcome:
        """What its caller gets now."""
        if not self.outcome.done() or self.outcome.cancelled():
            item = self.item if self.first is None else self.first.item
            return _refused(item, OutcomeUnknown("no outcome yet; repeat it with the same key to go on waiting"))
        found = self.outcome.result()
        return found if self.first is None or not found.key else replace(found, key=REPEATED)


_Sent: TypeAlias = tuple[_Line, Future[PublishReceipt]]
_Plain: TypeAlias = tuple[list[_Line], list[Future[PublishReceipt]] | GatewayError]


def _future() -> Future[None]:
    return asyncio.get_running_loop().create_future()


class KeyedMessages:
    """Publishes messages of which some, or all, have a key of their own."""

    def __init__(self, ledger: Ledger, publisher: Publisher) -> None:
        self._ledger = ledger
        self._publisher = publisher
        self._under_way: dict[tuple[str, str], _Line] = {}
        self._turns: dict[str, Future[None]] = {}
        """Order -> the last of its calls; done once that has sent its messages."""
        self._tasks: set[Task[None]] = set()

    def has(self, messages: Sequence[Publication], order: str | None) -> bool:
        """Whether these are for it: any has a key, or must not overtake one that does."""
        return order in self._turns or any(item.key for item in messages)

    async def publish(
        self,
        upstream: Upstream,
        exchange: str,
        messages: Sequence[Publication],
        client: str,
        within: float,
        order: str | None = None,
    ) -> list[PublishOutcome]:
        """One result each, in order. What is final is in the ledger; what has no outcome within ``within`` seconds goes
        on without its caller, for repeats to join.

        Raises:
            Overloaded: too many messages with a key are under way; nothing was sent.
        """
        if len(self._under_way) + len(messages) > UNDER_WAY_MAX:
            raise Overloaded(f"{UNDER_WAY_MAX} messages with a key are under way")
        loop = asyncio.get_running_loop()
        deadline = clock.monotonic() + within
        lines: list[_Line] = []
        reported: list[Future[None]] = []
        groups = groups_of(messages) if order is None else [messages]  # nobody of the same order may come in between
        if order is None:
            order = self._publisher.new_order()
        for group in groups:
            if lines:  # others have their turn; a caller who goes away now has published what is before
                await clock.sleep(0)
            self._publisher.give_ids(group)
            made = [self._line(loop, upstream.name, exchange, item, client) for item in group]
            lines += made
            mine = [line for line in made if line.first is None]
            if mine:
                reported.append(self._start(upstream, exchange, client, mine, within, order))
        if reported:
            await asyncio.wait(reported, timeout=max(0.0, deadline - clock.monotonic()) + RECORDING)
        joined = {line.outcome for line in lines if not line.outcome.done() and line.first is not None}
        if joined:
            await asyncio.wait(joined, timeout=max(0.0, deadline - clock.monotonic()))
        return [line.result() for line in lines]

    def _line(
        self, loop: asyncio.AbstractEventLoop, broker: str, exchange: str, item: Publication, client: str
    ) -> _Line:
        """A message, known as under way; or the first with its key, where there is one."""
        line = _Line(item, client, loop.create_future())
        if not item.key:
            return line
        line.payload = envelopes.encode(item.message, item.mandatory)
        line.fingerprint = fingerprints.of_message(broker, exchange, item)
        first = self._under_way.setdefault(line.name, line)
        if first is not line:
            line.first, line.payload = first, b""
            if first.fingerprint == line.fingerprint:
                line.outcome = first.outcome
            else:
                line.outcome.set_result(_refused(item, KeyReused("the key is in use for another message")))
        return line

    def _start(
        self, upstream: Upstream, exchange: str, client: str, lines: list[_Line], within: float, order: str
    ) -> Future[None]:
        """Begin the work; what is returned is done when there is something to say of every line."""
        loop = asyncio.get_running_loop()
        work = _Work(
            self._ledger, self._publisher, self._ended, upstream, exchange, client, lines, within, order,
            self._turns.get(order),
        )  # fmt: skip
        self._turns[order] = work.sent
        task = loop.create_task(self._run(work), name="keyed messages")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return work.reported

    async def _run(self, work: _Work) -> None:
        try:
            await work.run()
        except Exception as error:
            log("publish.keyed_failed", logging.ERROR, error, broker=work.upstream.name)
            await work.give_up()
        finally:
            if self._turns.get(work.order) is work.sent:
                del self._turns[work.order]
            for future in (work.sent, work.reported):
                if not future.done():
                    future.set_result(None)
            for line in work.lines:
                if not line.outcome.done():  # the gateway is shutting down
                    self._ended(line, None)

    def _ended(self, line: _Line, result: PublishOutcome | None) -> None:
        """The outcome of a line; None: there will be none."""
        if self._under_way.get(line.name) is line:
            del self._under_way[line.name]
        if result is None:
            line.outcome.cancel()
        else:
            line.outcome.set_result(result)

    async def close(self, within: float) -> None:
        """Let what runs come to its end, for at most ``within`` seconds. What does not is resolved at the next
        start."""
        tasks = list(self._tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=within)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(slots=True)
class _Work:
    """Messages of one call, from their claims to their outcomes."""

    ledger: Ledger
    publisher: Publisher
    ended: Callable[[_Line, PublishOutcome], None]
    upstream: Upstream
    exchange: str
    client: str
    lines: list[_Line]
    within: float
    order: str
    before: Future[None] | None
    """Done once the call before, of the same order, has sent its messages."""
    sent: Future[None] = field(default_factory=_future)
    """Done once all are with the broker."""
    reported: Future[None] = field(default_factory=_future)
    """Done once there is something to say of each."""
    held: dict[str, _Line] = field(default_factory=dict)
    """Keys that are claimed and have not ended."""
    claimed: ShardLease | None = None
    """Under which lease."""

    async def run(self) -> None:
        """Claim, send, settle."""
        deadline = clock.monotonic() + self.within
        keyed = [line for line in self.lines if line.item.key]
        to_send, known_before = self._sort(keyed, await self._claims(keyed))
        if self.before is not None:
            await asyncio.wait([self.before])
        under_way: list[_Sent] = []
        plain: list[_Plain] = []
        for has_key, each in groupby((line for line in self.lines if line in to_send or not line.item.key), _has_key):
            run = list(each)
            if has_key:
                under_way += zip(run, self._send(run, LATE_CONFIRM), strict=True)
            else:
                plain.append((run, await self._send_plain(run)))
        self.sent.set_result(None)
        late: list[_Sent] = []
        await asyncio.gather(
            self._settle_in_time(under_way, deadline, late),
            self._recall(known_before),
            *(self._settle_plain(run, futures) for run, futures in plain),
        )
        self.reported.set_result(None)
        await self._settle(late)

    async def _settle_in_time(self, under_way: Sequence[_Sent], deadline: float, late: list[_Sent]) -> None:
        """Settle what has its outcome before ``deadline``; what has not is ``late``."""
        if not under_way:
            return
        left = deadline - clock.monotonic()
        done, _ = await asyncio.wait([future for _, future in under_way], timeout=max(0.0, left))
        late += [each for each in under_way if each[1] not in done]
        await self._settle([each for each in under_way if each[1] in done])

    # ------------------------------------------------------------------------------------------------ claim

    async def _claims(self, lines: Sequence[_Line]) -> Sequence[KeyClaim | GatewayError]:
        """What the ledger says of each key; in time, or nothing is claimed."""
        name = self.upstream.name
        at = clock.now_ns() // 1000
        wanted = []
        for line in lines:
            item = line.item
            intent = keyed_entry(self.upstream, self.exchange, item, self.client, at, line.payload)
            older = fingerprints.older_of_message(name, self.exchange, item, line.payload)
            wanted.append(Wanted(item.key, line.fingerprint, (intent,), older))
        error: GatewayError
        try:
            async with asyncio.timeout(self.within):
                claims = await self.ledger.keyring.claim(self.client, wanted) if wanted else ()
        except TimeoutError:
            error = LedgerUnavailable(f"the ledger could not be written within {self.within:g} s; nothing was sent")
        except LedgerUnavailable as closed:
            error = closed
        else:
            self.claimed = self.ledger.lease
            return claims
        return [error] * len(lines)

    def _sort(
        self, lines: Sequence[_Line], claims: Sequence[KeyClaim | GatewayError]
    ) -> tuple[set[_Line], list[_Line]]:
        """Those that are to be sent; and those that have an outcome, which the ledger knows. The others end here."""
        to_send: set[_Line] = set()
        known_before: list[_Line] = []
        for line, claim in zip(lines, claims, strict=True):
            item, result = line.item, None
            line.payload = b""
            match claim:
                case New():
                    to_send.add(line)
                case Unknown(ids, intents):
                    item.id, item.text, item.resent, line.again = ids[0], id_text(ids[0]), True, True
                    if intents:
                        to_send.add(line)
                    else:
                        known_before.append(line)
                case StoredAnswer(body=body):
                    result = _of_kept(_decode(body))
                case Mismatch():
                    result = _refused(item, KeyReused("the key was used for another message"))
                case RunningRequest():
                    result = _refused(item, KeyRunning("the message with this key is being worked on elsewhere"))
                case CommitUnknown():
                    in_doubt([result := PublishOutcome(item.text)], claim)
                case _:
                    result = _refused(item, claim)
            if result is None:
                self.held[item.key] = line
            else:
                self.ended(line, result)
        return to_send, known_before

    # ----------------------------------------------------------------------------------------- send, settle

    def _send(self, lines: Sequence[_Line], times: float) -> list[Future[PublishReceipt]]:
        items = [line.item for line in lines]
        return self.publisher.send(self.upstream, self.exchange, items, self.within * times, self.order)

    async def _send_plain(self, lines: Sequence[_Line]) -> list[Future[PublishReceipt]] | GatewayError:
        try:
            await self.publisher.intend(self.upstream, self.exchange, [line.item for line in lines], self.client)
        except (LedgerUnavailable, EntriesRefused) as error:
            return error
        return self._send(lines, 1.0)

    async def _settle_plain(self, lines: Sequence[_Line], futures: list[Future[PublishReceipt]] | GatewayError) -> None:
        """Those without a key."""
        items = [line.item for line in lines]
        try:
            if isinstance(futures, GatewayError):
                raise futures
            results = await self.publisher.settle(self.upstream, self.exchange, items, self.client, futures)
        except GatewayError as error:
            results = [_refused(item, error) for item in items]
        for line, result in zip(lines, results, strict=True):
            self.ended(line, result)

    async def _settle(self, sent: Sequence[_Sent]) -> None:
        """Those with a key, once they have their outcomes."""
        if not sent:
            return
        lines = [line for line, _ in sent]
        items = [line.item for line in lines]
        results = await self.publisher.outcomes(self.upstream, self.exchange, items, [future for _, future in sent])
        stay_unknown([result for line, result in zip(lines, results, strict=True) if line.again])
        entries: dict[bytes, list[LogEntry]] = {}
        for entry in self.publisher.events(self.upstream, items, results):
            entries.setdefault(entry.message_id, []).append(entry)
        await self.publisher.keep(self.exchange, items, results, patiently=True)
        await self._keep(lines, results, DONE, entries)

    async def _recall(self, lines: Sequence[_Line]) -> None:
        """Those that had an outcome before it could be kept."""
        if not lines:
            return
        results = await asyncio.gather(*(known(self.ledger, line.item.id) for line in lines))
        await self._keep(lines, results, REPEATED, {})

    async def _keep(
        self, lines: Sequence[_Line], results: Sequence[PublishOutcome], how: str, entries: dict[bytes, list[LogEntry]]
    ) -> None:
        """End the keys of lines, and tell their outcomes."""
        ended = []
        for line, result in zip(lines, results, strict=True):
            ending = _ENDINGS[finality([result])]
            final = ending == ANSWERED
            body = _encode(_to_keep(result)) if final else b""
            result.key = how if final else ""
            ended.append(
                EndedKey(
                    line.item.key, ending, entries.get(line.item.id, ()), _MESSAGE if final else 0, body, self.claimed
                )
            )
        lost = await insist(self.ledger, self.client, ended)
        disown([result for line, result in zip(lines, results, strict=True) if line.item.key in lost])
        for line, result in zip(lines, results, strict=True):
            self.held.pop(line.item.key, None)
            self.ended(line, result)

    async def give_up(self) -> None:
        """After an internal error: nobody knows how far it came, and no key may stay with it."""
        error = OutcomeUnknown("the gateway failed")
        items = [line.item for line in self.held.values()]
        entries = self.publisher.events(self.upstream, items, [_refused(item, error) for item in items])
        ended = [
            EndedKey(item.key, UNKNOWN, [entry], claimed=self.claimed)
            for item, entry in zip(items, entries, strict=True)
        ]
        await insist(self.ledger, self.client, ended)
        for line in self.lines:
            if not line.outcome.done():
                self.ended(line, _refused(line.item, error))


def _has_key(line: _Line) -> bool:
    return bool(line.item.key)


def _refused(item: Publication, error: GatewayError) -> PublishOutcome:
    return PublishOutcome(item.text, error, routed=False)


def _to_keep(result: PublishOutcome) -> _Kept:
    code, text = ("", "") if result.error is None else (result.error.code, str(result.error))
    text = text.encode("utf-8", "backslashreplace").decode()
    return _Kept(result.id, result.routed, result.durable, result.resent, code, text)


def _of_kept(kept: _Kept) -> PublishOutcome:
    error = error_of(kept.code, kept.text) if kept.code else None
    return PublishOutcome(kept.id, error, kept.routed, kept.durable, kept.resent, key=REPEATED)
