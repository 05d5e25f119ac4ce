"""Defects that are planted to see whether the simulation finds them: each breaks one promise of the product."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from gateway.amqp.operations import Confirmed, Publish, Settlement
from gateway.core.publishing import publisher, sending
from gateway.core.sources import intake
from gateway.core.sources.fetching import settle
from gateway.front.channels import deliveries, recovery
from gateway.front.channels.channel import FrontChannel
from gateway.front.store import StoreLane
from gateway.ledger import Ledger
from gateway.ledger.pending.deliveries import DeliveryStore
from gateway.ledger.pending.keys import KeyStatements
from gateway.ledger.writing.group import GroupCommit
from gateway.taps.rows import TapBatch
from gateway.upstreams.branches import BranchLane


async def _early(self: Any, upstream: Any, exchange: str, messages: Any, futures: Any) -> list[Any]:
    for future in futures:
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return [publisher.PublishOutcome(item.text, resent=item.resent, durable=True) for item in messages]


async def _acknowledge_first(self: Any, parts: Any) -> None:
    for arrival in self.new:
        settle(arrival.delivery, Settlement.ACCEPT)
    await WRITE(self, parts)


async def _forget_answer(self: Any, client: str, key: str, *_: Any, entries: Any = (), **__: Any) -> None:
    await self.free_key(client, key, entries)


async def _unordered(self: Any, *arguments: Any, ordered: bool = False, **options: Any) -> Any:
    return await CLAIM(self, *arguments, ordered=False, **options)


async def _acknowledge_before_the_log(self: Any, parts: Any) -> None:
    for arrival in self._new:
        settle(arrival.delivery, Settlement.ACCEPT)
    await KEEP(self, parts)


def _twice(self: Any, upstream: Any, messages: Any, results: Any) -> list[Any]:
    entries = EVENTS(self, upstream, messages, results)
    return [*entries, *entries[-1:]]


def _late_outcomes(self: Any, connection: Any, lease: Any, calls: Any) -> list[Any]:
    END(self, connection, lease, calls)
    return [entry for call in calls for _, entries in call.done for entry in entries]


def _lost_keys(self: Any, connection: Any, lease: Any, settles: Any, now: int) -> None:
    SETTLE(self, connection, lease, settles, now)
    for call in settles:
        call.error = None


def _both_ends(self: Any, connection: Any, lease: Any, settles: Any, now: int) -> None:
    SETTLE(self, connection, lease, settles, now)
    ended = {call.key_id for call in settles if call.error is None}
    for call in settles:
        if call.key_id in ended:
            call.error = None


async def _nothing(*_: Any) -> None:
    """Do nothing."""


def _confirm(channel: FrontChannel, request: Any) -> None:
    if type(request) is Publish and channel.confirms and request.serial:
        channel.client.tell(Confirmed(channel.number, request.serial, request.serial))


def _confirm_before_the_broker(self: Any, request: Any) -> int:
    serial = SEND(self, request)
    _confirm(self, request)
    return serial


def _confirm_before_the_ledger(self: Any, channel: Any, request: Any, resent: bool) -> None:
    STORE(self, channel, request, resent)
    _confirm(channel, request)


def _restore_without_publishes(channel: Any) -> None:
    channel.sent.clear()
    RESTORE(channel)


def _hand_over_as_new(channel: Any, consumer: Any, operation: Any) -> None:
    operation.redelivered = False
    HAND_OVER(channel, consumer, operation)


SEND: Final = FrontChannel.send
STORE: Final = StoreLane.add
RESTORE: Final = recovery.restore
HAND_OVER: Final = deliveries.hand_over
WRITE: Final = intake.IntakeBatch.write
CLAIM: Final = DeliveryStore.claim
KEEP: Final = TapBatch.write
EVENTS: Final = publisher.Publisher.events
END: Final = GroupCommit._end_publishes
SETTLE: Final = KeyStatements.settle

DEFECTS: Final[Mapping[str, tuple[Any, str, Any]]] = {
    "a publish is answered before its confirm": (publisher.Publisher, "outcomes", _early),
    "a delivery is acknowledged before the ledger's commit": (intake.IntakeBatch, "write", _acknowledge_first),
    "what is sent again has no mark": (publisher, "RESENT", {}),
    "the answer under a key is forgotten": (Ledger, "finish_key", _forget_answer),
    "what is in doubt is not taken over": (sending.OutboxSender, "recover_soon", lambda self: None),
    "a branch is prepared before its confirms are there": (BranchLane, "confirmed", _nothing),
    "an outcome that was not recorded is forgotten": (publisher.Publisher, "_record_late", _nothing),
    "messages with a key are handed out in any order": (DeliveryStore, "claim", _unordered),
    "a tap acknowledges before the log has a message": (TapBatch, "write", _acknowledge_before_the_log),
    "an outcome counts that comes behind the end of the lease": (GroupCommit, "_end_publishes", _late_outcomes),
    "an outcome counts although another process has the key": (KeyStatements, "settle", _lost_keys),
    "two ends of a key in one commit both count": (KeyStatements, "settle", _both_ends),
    "an outcome is recorded twice": (publisher.Publisher, "events", _twice),
    "a front sends again without a mark": (recovery, "marked", lambda message: message),
    "a front forgets what its broker has not confirmed": (recovery, "restore", _restore_without_publishes),
    "a front confirms before its broker does": (FrontChannel, "send", _confirm_before_the_broker),
    "a front confirms before its ledger has a publish": (StoreLane, "add", _confirm_before_the_ledger),
    "a front lets newer publishes pass stored ones": (StoreLane, "may_pass", lambda self, client: True),
    "a front hands out a repeat as new": (deliveries, "hand_over", _hand_over_as_new),
}
"""What is wrong -> whose attribute is replaced, its name, and by what."""
SEEDS: Final[Mapping[str, tuple[int, str]]] = {
    "a publish is answered before its confirm": (7, "lost"),
    "a delivery is acknowledged before the ledger's commit": (40, "lost"),
    "what is sent again has no mark": (50, "out in two leases at once"),
    "the answer under a key is forgotten": (15, "repeats without a mark"),
    "what is in doubt is not taken over": (261, "rows of obligations"),
    "a branch is prepared before its confirms are there": (135, "unsettled"),
    "an outcome that was not recorded is forgotten": (164, "rows of obligations"),
    "messages with a key are handed out in any order": (54, "published before it with its key"),
    "a tap acknowledges before the log has a message": (106, "lost"),
    "an outcome counts that comes behind the end of the lease": (456, "impossible events"),
    "an outcome counts although another process has the key": (72, "impossible events"),
    "two ends of a key in one commit both count": (816, "impossible events"),
    "an outcome is recorded twice": (1, "impossible events"),
    "a front sends again without a mark": (1767, "repeats without a mark"),
    "a front forgets what its broker has not confirmed": (93, "has no outcome"),
    "a front confirms before its broker does": (1641, "lost"),
    "a front confirms before its ledger has a publish": (282, "lost"),
    "a front lets newer publishes pass stored ones": (534, "came to the broker behind it"),
    "a front hands out a repeat as new": (21, "repeats without a mark"),
}
"""Defect -> the seed of the world that is tried first, and a word of the problem that it shows."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Have this defect for the length of the block."""
    target, attribute, value = DEFECTS[name]
    with mock.patch.object(target, attribute, value):
        yield
