"""How a client settles deliveries, in the numbers of its upstream channel."""

from __future__ import annotations

from bisect import bisect
from typing import TYPE_CHECKING

from gateway import operations
from gateway.front import deliveries
from gateway.front.consumers import Outstanding
from gateway.front.counts import DELIVERIES
from gateway.front.refusals import refused
from gateway.operations import Settlement

if TYPE_CHECKING:
    from gateway.front.channel import FrontChannel


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
    numbers = [number for number in outstanding if first <= number <= last]
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
    """Settle several, in runs of the upstream's numbers without a gap that somebody holds."""
    pairs = sorted(zip(numbers, entries, strict=True), key=lambda pair: pair[1].number)
    entries = [entry for _, entry in pairs]  # what waited for its consumer may have been overtaken by others
    low, high = entries[0].number, entries[-1].number
    gaps = [entry.number for entry in channel.outstanding.values() if low < entry.number < high]
    for consumer in channel.consumers.values():
        gaps += [delivery.delivery for delivery in consumer.held if low < delivery.delivery < high]
    gaps.sort()
    start = 0
    for at in range(1, len(entries) + 1):
        if at < len(entries):
            found = bisect(gaps, entries[at - 1].number)
            if found == len(gaps) or gaps[found] > entries[at].number:
                continue
        channel.say(operations.Settle(channel.number, settlement, entries[start].number, entries[at - 1].number))
        start = at
    if channel.is_transacted:
        channel.in_transaction = True
        channel.undecided += pairs


def settle_upstream(channel: FrontChannel, settlement: Settlement, number: int, entry: Outstanding) -> None:
    channel.say(operations.Settle(channel.number, settlement, entry.number, entry.number))
    if channel.is_transacted:
        channel.in_transaction = True
        channel.undecided.append((number, entry))


def settled(channel: FrontChannel, entry: Outstanding) -> None:
    if entry.consumer is not None:
        entry.consumer.out -= 1


def recover(channel: FrontChannel, request: operations.Recover) -> None:
    channel.check(request)
    if channel.up is None:
        channel.done(request)
        return
    channel.send(request)


def recovered(channel: FrontChannel, request: operations.Recover, outcome: operations.Outcome) -> None:
    """All that was out is in its queue again; so is what was held here."""
    for consumer in channel.consumers.values():
        consumer.out = 0
        channel.client.held_bytes(-consumer.held_bytes)
        consumer.held.clear()
        consumer.held_bytes = 0
    channel.outstanding.clear()
