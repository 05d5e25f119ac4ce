"""How a client settles deliveries, in the numbers of its upstream channel."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gateway.amqp import operations
from gateway.amqp.operations import Settlement
from gateway.front.channels import deliveries, windows
from gateway.front.channels.consumers import Outstanding
from gateway.front.channels.refusals import refused
from gateway.front.channels.target import QPID
from gateway.front.counts import DELIVERIES

if TYPE_CHECKING:
    from gateway.front.channels.channel import FrontChannel


def settle(channel: FrontChannel, request: operations.Settle) -> None:
    first, last = request.first, request.last
    outstanding = channel.outstanding
    if first == last and (entry := outstanding.pop(first, None)) is not None:
        settle_upstream(channel, request.settlement, first, entry)
        settled(channel, entry)
        deliveries.pump_after(channel, entry)
        return
    last = last or channel.newest
    strict = channel.client.rules.strict_settlement
    if last > channel.newest and strict:
        raise refused(406, f"unknown delivery tag {request.last}")
    numbers = []
    for number in outstanding:  # they are in order
        if number > last:
            break
        if number >= first:
            numbers.append(number)
    if not numbers:
        if last <= channel.void:
            channel.client.counts.add(DELIVERIES, "void")
        elif strict and request.last:
            raise refused(406, f"unknown delivery tag {request.last}")
        return
    entries = [outstanding.pop(number) for number in numbers]
    settle_range(channel, request.settlement, numbers, entries)
    for entry in entries:
        settled(channel, entry)
    deliveries.pump(channel)


def settle_range(channel: FrontChannel, settlement: Settlement, numbers: list[int], entries: list[Outstanding]) -> None:
    """Settle several, in runs of the upstream's numbers without a gap that somebody holds, or that is to be given
    back."""
    pairs = sorted(zip(numbers, entries, strict=True), key=lambda pair: pair[1].number)
    entries = [entry for _, entry in pairs]  # what waited for its consumer may have been overtaken by others
    low, high = entries[0].number, entries[-1].number
    gaps: list[int] = []
    if high - low >= len(entries):
        gaps += [entry.number for entry in channel.outstanding.values() if low < entry.number < high]
        for consumer in channel.consumers.values():
            gaps += [delivery.delivery for delivery in consumer.held if low < delivery.delivery < high]
        for _, first, last in channel.given_back:
            gaps += range(max(first, low), min(last, high) + 1)
        gaps += [number for _, number in channel.later if low < number < high]
        gaps.sort()
    start = 0
    for at in range(1, len(entries) + 1):
        if at < len(entries):
            found = bisect(gaps, entries[at - 1].number)
            if found == len(gaps) or gaps[found] > entries[at].number:
                continue
        _say(channel, settlement, entries[start].number, entries[at - 1].number)
        start = at
    if channel.is_transacted and _may_be_undone(channel, settlement):
        channel.in_transaction = True
        channel.undecided += [(number, entry, settlement) for number, entry in pairs]
    else:
        record(channel, settlement, entries)


def settle_upstream(channel: FrontChannel, settlement: Settlement, number: int, entry: Outstanding) -> None:
    if settlement is Settlement.ACCEPT and not channel.is_transacted and channel.up is not None:
        channel.up.accept(entry.number)
    else:
        _say(channel, settlement, entry.number, entry.number)
    if channel.is_transacted and _may_be_undone(channel, settlement):
        channel.in_transaction = True
        channel.undecided.append((number, entry, settlement))
    elif entry.id:
        record(channel, settlement, (entry,))


def record(channel: FrontChannel, settlement: Settlement, entries: Iterable[Outstanding]) -> None:
    """Write that the client has settled these, if they have timelines."""
    records = channel.client.delivery_records
    if records is not None:
        records.settled(channel.client, [entry.id for entry in entries], settlement)


def record_lost(channel: FrontChannel) -> None:
    """Note that the client holds nothing of the channel any more, and the broker has it again."""
    if not (channel.outstanding or channel.undecided):
        return
    entries = [*channel.outstanding.values(), *(entry for _, entry, _ in channel.undecided)]
    handed, records = channel.client.link.handed, channel.client.delivery_records
    if handed is not None:
        handed.give_back(entry.fingerprint for entry in entries)
    if records is not None:
        records.lost(channel.client, [entry.id for entry in entries])


def _waits(channel: FrontChannel, settlement: Settlement) -> bool:
    """Whether what is given back waits for the end of the transaction, because client and broker differ. Qpid's client
    gives messages back before a rollback, which its own broker does at once; RabbitMQ takes that for a part of what is
    rolled back, and keeps them for the channel."""
    if not channel.is_transacted or settlement is Settlement.ACCEPT:
        return False
    return undoes_release(channel) is not channel.client.rules.transactional_release


def undoes_release(channel: FrontChannel) -> bool:
    """Whether the upstream takes what is given back in a transaction for a part of it, and holds it for the channel
    after a rollback."""
    target = channel.client.link.target
    return channel.is_transacted and not target.is_native and target.product != QPID


def _may_be_undone(channel: FrontChannel, settlement: Settlement) -> bool:
    """Whether a rollback leaves what is settled in the transaction with the client."""
    return settlement is Settlement.ACCEPT or channel.client.rules.transactional_release


def _say(channel: FrontChannel, settlement: Settlement, first: int, last: int) -> None:
    """Settle, in numbers of the upstream's."""
    if _waits(channel, settlement):
        channel.given_back.append((settlement, first, last))
    else:
        channel.say(operations.Settle(channel.number, settlement, first, last))


def give_back(channel: FrontChannel, *, is_rollback: bool = False) -> bool:
    """Send what waited for the end of the transaction. Of that, what the client has given back goes with a rollback
    if the client takes it for a part of that. Whether anything was sent."""
    given_back, channel.given_back = channel.given_back, []
    later, channel.later = channel.later, []
    if is_rollback and channel.client.rules.transactional_release:
        given_back.clear()
    given_back += [(settlement, number, number) for settlement, number in later]
    for settlement, first, last in given_back:
        channel.say(operations.Settle(channel.number, settlement, first, last))
    return bool(given_back)


def settled(channel: FrontChannel, entry: Outstanding) -> None:
    consumer = entry.consumer
    if consumer is None:
        return
    if consumer.window.growing:
        windows.settled(channel, consumer)
    consumer.out -= 1
    if channel.is_transacted:
        consumer.window.undecided += 1


def recover(channel: FrontChannel, request: operations.Recover) -> None:
    request = channel.rewritten(request)
    channel.check(request)
    if channel.up is None:
        channel.done(request)
        return
    channel.send(request)


def recovered(channel: FrontChannel, request: operations.Recover, outcome: operations.Outcome) -> None:
    """All that was out is in its queue again; so is what was held here."""
    for consumer in channel.consumers.values():
        consumer.out = 0
        channel.client.held.add(-consumer.held_bytes)
        consumer.held.clear()
        consumer.held_bytes = 0
    record(channel, Settlement.RELEASE, channel.outstanding.values())
    channel.outstanding.clear()
    channel.given_back.clear()
    channel.later.clear()
