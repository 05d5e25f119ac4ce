"""Idempotency-Key: however often a request is repeated, its messages are published once, and every repeat gets the
first final answer.

The intent, the messages included, is in the ledger before the broker is asked. From there::

    the first request        claim, publish, keep the answer
    a repeat while it runs   409 ``idempotency_key_running``
    ... after a 504          joins: waits for the publish that is still pending
    ... after an answer      that answer again, with ``Idempotent-Replayed: true``
    ... of another meaning   422 ``idempotency_key_reused``
    503, nothing was sent    the key is free again
    no outcome at all        not final: a repeat sends the same messages again, with the same ids, marked ``resent``

The work runs in a task of its own, so that it goes on when its caller gives up. A ledger that is away when the answer
has to be kept is tried again until it is back; repeats wait for that. After any error behind the claim, the key does
not stay with a task that has ended: it would be answered with 409 as long as this process lives.

Once an outcome is unknown it stays so until the broker has taken the message or refused it for good: a repeat that
cannot be sent says nothing of the first attempt, which may have arrived.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from gateway.core.publishing.endings import (
    LATE_CONFIRM,
    PAUSE_MAX,
    PAUSE_MIN,
    disown,
    finality,
    known,
    stay_unknown,
)
from gateway.core.publishing.entries import keyed_entry, publication_of
from gateway.core.publishing.fingerprints import Older
from gateway.core.publishing.publisher import Publication, Publisher, PublishOutcome, in_doubt
from gateway.errors import (
    CommitUnknown,
    EntriesRefused,
    KeyReused,
    KeyRunning,
    LedgerUnavailable,
    OutcomeUnknown,
    Overloaded,
)
from gateway.ledger import (
    KeyLost,
    Ledger,
    LogEntry,
    Mismatch,
    RunningRequest,
    StoredAnswer,
    Unknown,
    id_text,
)
from gateway.ledger.db.shards import ShardLease
from gateway.observing.telemetry import log
from gateway.runtime.backoff import Backoff
from gateway.runtime.clock import clock
from gateway.upstreams import Upstream

PENDING_MAX: Final = 10_000
"""Most keyed requests under way at once."""


@dataclass(slots=True)
class KeyedAnswer:
    """An HTTP answer, to be kept under its key."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    replayed: bool = False


Render: TypeAlias = Callable[[list[PublishOutcome]], KeyedAnswer]
"""Makes the answer from what became of the messages."""


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """Whose key, and for which request."""

    client: str
    key: str
    fingerprint: bytes
    """Digest of everything in the request that matters (:mod:`gateway.core.publishing.fingerprints`)."""
    older: Older = tuple
    """Makes those that an earlier release kept for it."""


@dataclass(slots=True)
class _Pending:
    """A keyed request that this process works on."""

    request: KeyedRequest
    task: asyncio.Task[KeyedAnswer]
    ids: Sequence[str]
    """Of its messages, as the API writes them."""
    given_up: bool = False
    """Its caller got 504: repeats join from now on."""
    claimed: bool = False
    """The ledger knows the key. Nothing is sent before that."""


class KeyedPublisher:
    """Publishes under Idempotency-Keys."""

    def __init__(self, ledger: Ledger, publisher: Publisher) -> None:
        self._ledger = ledger
        self._publisher = publisher
        self._pending: dict[tuple[str, str], _Pending] = {}

    async def publish(
        self,
        request: KeyedRequest,
        upstream: Upstream,
        exchange: str,
        messages: Sequence[Publication],
        within: float,
        render: Render,
    ) -> KeyedAnswer:
        """The answer to the request, made now or kept from before. Where there is no outcome within ``within``
        seconds it says that of every message, by its id; repeat to go on waiting.

        Raises:
            KeyReused, KeyRunning: see above.
            LedgerUnavailable: nothing was sent; the ledger cannot be written, or was not within that time.
            Overloaded: too many keyed requests under way.
        """
        return await self._wait(self._begun(request, upstream, exchange, messages, within, render), within, render)

    def _begun(
        self,
        request: KeyedRequest,
        upstream: Upstream,
        exchange: str,
        messages: Sequence[Publication],
        within: float,
        render: Render,
    ) -> _Pending:
        """The request of that key that is under way, which may be this one."""
        name = request.client, request.key
        pending = self._pending.get(name)
        if pending is None:
            if len(self._pending) >= PENDING_MAX:
                raise Overloaded(f"{PENDING_MAX} requests with an Idempotency-Key are under way")
            self._publisher.give_ids(messages)
            work = self._work(request, upstream, exchange, messages, within, render)
            task = asyncio.get_running_loop().create_task(work, name="keyed publish")
            pending = self._pending[name] = _Pending(request, task, [item.text for item in messages])
            task.add_done_callback(lambda _: self._forget(name))
        elif pending.request.fingerprint != request.fingerprint:
            raise KeyReused("the Idempotency-Key is in use for another request")
        elif not pending.given_up:
            raise KeyRunning("the first request with this Idempotency-Key has no answer yet")
        return pending

    def _forget(self, name: tuple[str, str]) -> None:
        task = self._pending.pop(name).task
        if not task.cancelled():
            task.exception()  # retrieved here, since its caller may be gone

    async def _wait(self, pending: _Pending, within: float, render: Render) -> KeyedAnswer:
        try:
            done, _ = await asyncio.wait([pending.task], timeout=within)
        except asyncio.CancelledError:
            pending.given_up = True  # nobody waits any more, so a repeat must be able to
            raise
        try:
            if not done and not pending.claimed:
                pending.task.cancel()  # what the ledger has of it by then is given back
            cut_off = pending.task.cancelled()
            if (cut_off or not done) and not pending.claimed:
                raise LedgerUnavailable(f"the ledger could not be written within {within:g} s; nothing was sent")
            if done and not cut_off:
                return pending.task.result()
            pending.given_up = True
            ids = pending.ids
        finally:
            del pending, done  # the task holds its error, which holds this frame until the collector comes by
        why = "the gateway stops before the broker's confirm" if cut_off else f"no confirm within {within:g} s"
        error = OutcomeUnknown(f"{why}; repeat with the same Idempotency-Key to go on waiting")
        return render([PublishOutcome(id, error, routed=False) for id in ids])

    async def _work(
        self,
        request: KeyedRequest,
        upstream: Upstream,
        exchange: str,
        messages: Sequence[Publication],
        within: float,
        render: Render,
    ) -> KeyedAnswer:
        at = clock.now_ns() // 1000
        intents = [keyed_entry(upstream, exchange, item, request.client, at) for item in messages]
        try:
            claim = await self._ledger.claim_key(
                request.client, request.key, request.fingerprint, intents, request.older
            )
        except CommitUnknown as error:  # if it is claimed, another process or the next start sends the messages
            results = [PublishOutcome(item.text) for item in messages]
            in_doubt(results, error)
            return render(results)
        claimed = self._ledger.lease
        match claim:
            case StoredAnswer(status, headers, body):
                return KeyedAnswer(status, body, headers, replayed=True)
            case Mismatch():
                raise KeyReused("the Idempotency-Key was used for another request")
            case RunningRequest():
                raise KeyRunning("the first request with this Idempotency-Key has no answer yet")
        self._pending[request.client, request.key].claimed = True
        entries: list[LogEntry] = []
        sending: Sequence[Publication] = ()
        try:
            if isinstance(claim, Unknown):
                self._pending[request.client, request.key].ids = [id_text(octets) for octets in claim.ids]
                messages = [publication_of(intent) for intent in claim.intents]
                exchange = claim.intents[0].exchange if claim.intents else ""
            sending = messages
            results = sent = await self._send(upstream, exchange, messages, within)
            if isinstance(claim, Unknown):
                stay_unknown(results)
            entries = self._publisher.events(upstream, messages, results)
            if isinstance(claim, Unknown):
                results = await self._all_results(claim.ids, messages, results)
            answer = render(results)
        except Exception:
            if not entries:  # nobody knows how far it came
                doubt = [PublishOutcome(item.text, OutcomeUnknown("the gateway failed")) for item in sending]
                entries = self._publisher.events(upstream, sending, doubt)
            await self._insist(partial(self._ledger.unknown_key, request.client, request.key, claimed=claimed), entries)
            raise
        await self._publisher.keep(exchange, messages, sent, patiently=True)
        if not await self._keep(request, answer, results, entries, claimed):
            disown(results)
            answer = render(list(results))
        return answer

    async def _send(
        self, upstream: Upstream, exchange: str, messages: Sequence[Publication], within: float
    ) -> list[PublishOutcome]:
        futures = self._publisher.send(upstream, exchange, messages, within * LATE_CONFIRM)
        return await self._publisher.outcomes(upstream, exchange, messages, futures)

    async def _all_results(
        self, ids: Sequence[bytes], messages: Sequence[Publication], sent: Sequence[PublishOutcome]
    ) -> list[PublishOutcome]:
        """What became of all messages of a key: of those that were sent again, and, from their timelines, of those
        that had an outcome before."""
        by_id = {item.id: result for item, result in zip(messages, sent, strict=True)}
        return [
            result if (result := by_id.get(message_id)) is not None else await known(self._ledger, message_id)
            for message_id in ids
        ]

    async def _keep(
        self,
        request: KeyedRequest,
        answer: KeyedAnswer,
        results: Sequence[PublishOutcome],
        entries: Sequence[LogEntry],
        claimed: ShardLease,
    ) -> bool:
        """End the key; whether it was this process's still."""
        end: Callable[[Sequence[LogEntry]], Awaitable[None]]
        match finality(results):
            case "unknown":
                end = partial(self._ledger.unknown_key, request.client, request.key, claimed=claimed)
            case "free":
                end = partial(self._ledger.free_key, request.client, request.key, claimed=claimed)
            case _:
                end = partial(
                    self._ledger.finish_key,
                    request.client,
                    request.key,
                    answer.status,
                    answer.body,
                    headers=answer.headers,
                    claimed=claimed,
                )
        return await self._insist(end, entries)

    async def _insist(self, end: Callable[[Sequence[LogEntry]], Awaitable[None]], entries: Sequence[LogEntry]) -> bool:
        """Tell the ledger how a key ends, again until it is written, or the key is found to be another's, and return
        False. Where events cannot be stored, the key ends without them."""
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        while True:
            try:
                await end(entries)
            except KeyLost as error:
                log("ledger.key_lost", logging.WARNING, detail=str(error))
                return False
            except LedgerUnavailable as error:
                log("ledger.answer_waits", logging.DEBUG, detail=str(error))
                await backoff.wait()
                continue
            except EntriesRefused as error:
                if not entries:
                    raise
                log("ledger.events_refused", logging.ERROR, detail=str(error))
                entries = ()
                continue
            return True

    async def close(self, within: float) -> None:
        """Let what runs come to its end, for at most ``within`` seconds. What does not is resolved at the next
        start."""
        tasks = [pending.task for pending in self._pending.values()]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=within)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
