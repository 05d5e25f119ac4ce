"""How much the upstream may send for one consumer before the client settles something.

It begins with ``prefetch_max``. A client that holds all of that gets twice as much, again and again, if it has no limit
or a higher one. It must have read what was written for it, and its user's share of the budget must allow it. RabbitMQ
takes a prefetch for consumers to come only, so a larger window is a further consumer of the same queue, whose
deliveries count as those of the first one.

A window goes back to what it was when the client reads too slowly, and step by step when it holds much less.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gateway.amqp import operations
from gateway.errors import BrokerUnavailable, LimitExceeded, LocalError
from gateway.front.channels.consumers import FrontConsumer

if TYPE_CHECKING:
    from gateway.amqp.message import Message
    from gateway.front.channels.channel import FrontChannel

GROW_AFTER: Final = 0.05
"""How long a client has to hold all that it may before the window grows, in seconds: one that settles as it goes
needs no larger one."""
TRY_AGAIN: Final = 1.0
"""Seconds until a window is looked at again that could not grow."""
COUNT_MAX: Final = 0xFFFF
"""Largest prefetch that can be asked for."""
ALONE_MAX: Final = 2_048
"""Largest window of a consumer that can have no other beside it. It is as large as the client's limit from the
beginning."""
USED_LESS: Final = 4
"""A window becomes smaller when the client holds at most this part of it for a while."""
FURTHER: Final = "front.more-"
"""How the tags of further consumers begin. A number, a colon and the tag of the first one follow."""
TAG_MAX: Final = 255
"""Octets of a tag."""
STREAM_OFFSET: Final = "x-stream-offset"
"""Argument of a consumer of a stream, and a header of what it is sent. Two consumers would get everything twice."""
STREAM_OFFSET_OCTETS: Final = STREAM_OFFSET.encode()


def begin(channel: FrontChannel, consumer: FrontConsumer) -> None:
    """Bound what the upstream sends ahead for the next consumer."""
    client, window = channel.client, consumer.window
    most = _most(channel, consumer)
    first = min(client.prefetch_max, most)
    request = consumer.request
    is_alone = request.exclusive or client.exclusive.get(request.queue, False)
    if not consumer.no_ack and (is_alone or STREAM_OFFSET in request.arguments):
        window.is_fixed = True
        first = max(first, min(most, ALONE_MAX))
    window.size = first
    _set_prefetch(channel, first)


def delivered(channel: FrontChannel, consumer: FrontConsumer, message: Message) -> None:
    """The client has got the last delivery that it may have: as :func:`check`, for any queue but a stream."""
    raw = message.raw
    if raw is not None and STREAM_OFFSET_OCTETS in raw.octets:
        consumer.window.is_fixed = True
    consumer.window.newest = channel.newest
    check(channel, consumer)


def check(channel: FrontChannel, consumer: FrontConsumer) -> None:
    """Have the window grow in a while, if the client holds all of it."""
    window = consumer.window
    if window.is_watched or window.is_fixed or not window.size or not consumer.is_used_up:
        return
    if window.size < _most(channel, consumer):
        _look_after(channel, consumer, GROW_AFTER)


def owner(channel: FrontChannel, operation: Any) -> FrontConsumer | None:
    """The consumer that a further one stands for, whose tag the operation gets; None: there is no such consumer."""
    tag: str = operation.consumer_tag
    if not tag.startswith(FURTHER):
        return None
    consumer = channel.consumers.get(tag.partition(":")[2])
    if consumer is None or tag not in consumer.window.further:
        return None
    operation.consumer_tag = consumer.request.consumer_tag
    return consumer


def shrink(channel: FrontChannel, consumer: FrontConsumer, *, by_one: bool = False) -> None:
    """Go back to the window of the beginning, or by one step."""
    window = consumer.window
    if not _is_ready(channel):
        return
    for tag in list(reversed(window.growing)):
        count = window.growing.pop(tag)
        window.size -= count
        _give(channel, count)
        if not channel.client.link.target.channel_prefetch:
            _cancel(channel, consumer, tag)
        if by_one:
            break
    if channel.client.link.target.channel_prefetch:
        _set_prefetch(channel, window.size)


def end(channel: FrontChannel, consumer: FrontConsumer, ended: str) -> None:
    """The upstream has canceled one of the consumers of a window, for it has held messages for too long or its queue is
    gone: cancel the others."""
    if not _is_ready(channel):
        return
    running = [tag for tag, runs in consumer.window.further.items() if runs]
    if consumer.is_running:
        running.append(consumer.request.consumer_tag)
    for tag in running:
        if tag != ended:
            channel.ask(operations.Cancel(channel.number, tag))


def release(channel: FrontChannel, consumer: FrontConsumer) -> None:
    """The consumer is over at the upstream: give back what it took of the budget."""
    window = consumer.window
    _give(channel, sum(window.growing.values()))
    window.growing.clear()
    window.further.clear()
    window.size = window.undecided = 0


def settled(channel: FrontChannel, consumer: FrontConsumer) -> None:
    """The client is about to settle a delivery of a window that has grown."""
    window = consumer.window
    window.peak = max(window.peak, consumer.out)
    window.settled += 1
    if window.settled >= window.size:
        if window.peak * USED_LESS <= window.size:
            shrink(channel, consumer, by_one=True)
        window.settled = window.peak = 0


def _most(channel: FrontChannel, consumer: FrontConsumer) -> int:
    """How many the client would hold at once."""
    if consumer.no_ack:
        return channel.client.prefetch_max
    bounds = () if consumer.has_credit else (consumer.limit, channel.limit)
    return min((bound for bound in bounds if bound), default=1 << 30)


def _set_prefetch(channel: FrontChannel, count: int) -> None:
    if channel.client.link.target.channel_prefetch:
        count = min(COUNT_MAX, sum(each.window.size for each in channel.consumers.values()))
    if count != channel.upstream_prefetch:
        channel.ask(operations.Qos(channel.number, count))
        channel.upstream_prefetch = count


def _look_after(channel: FrontChannel, consumer: FrontConsumer, seconds: float) -> None:
    window = consumer.window
    window.is_watched, newest = True, window.newest
    channel.client.host.later(seconds, lambda: _look(channel, consumer, newest))


def _look(channel: FrontChannel, consumer: FrontConsumer, newest: int) -> None:
    """Have the window grow, if the client still holds all of it, has read it, and has got nothing more since ``newest``
    came."""
    window, client = consumer.window, channel.client
    window.is_watched = False
    if channel.over or channel.consumers.get(consumer.request.consumer_tag) is not consumer:
        return
    if window.is_fixed or consumer.held or not consumer.is_used_up:
        return
    more = min(window.size, COUNT_MAX, _most(channel, consumer) - window.size)
    if client.link.target.channel_prefetch:
        more = min(more, COUNT_MAX - window.size)
    if more <= 0:
        return
    waits = client.paused or channel.stopped or not consumer.is_running or not _is_ready(channel)
    if window.newest != newest:
        _look_after(channel, consumer, GROW_AFTER)
    elif waits or not (taken := _take(channel, more)):
        _look_after(channel, consumer, TRY_AGAIN)
    else:
        _grow(channel, consumer, taken)


def _is_ready(channel: FrontChannel) -> bool:
    """Whether the upstream can be asked for something now."""
    return (
        channel.up is not None
        and channel.client.link.is_up
        and not (channel.committing or channel.is_giving_back or channel.closing)
    )


def _grow(channel: FrontChannel, consumer: FrontConsumer, more: int) -> None:
    """Have it grow by so much, which was taken of the budget."""
    window, request = consumer.window, consumer.request
    window.number += 1
    tag = f"{FURTHER}{window.number}:{request.consumer_tag}"
    if len(tag.encode("utf-8", "surrogateescape")) > TAG_MAX:
        window.is_fixed = True
        _give(channel, more)
        return
    if channel.client.link.target.channel_prefetch:
        window.growing[tag] = more
        window.size += more
        _set_prefetch(channel, window.size)
        return

    def begun(outcome: operations.Outcome) -> None:
        if isinstance(outcome, operations.Failed):
            window.is_fixed = channel.restarts = True  # the channel is lost with it; the first one begins again
            return
        window.further[tag] = True
        if tag not in window.growing:
            _cancel(channel, consumer, tag)

    try:
        _set_prefetch(channel, more)
        channel.ask(replace(request, consumer_tag=tag, serial=0), begun)
    except (LocalError, LimitExceeded, BrokerUnavailable):  # the connection is about to be lost, or the channel
        _give(channel, more)
        return
    window.further[tag] = False
    window.growing[tag] = more
    window.size += more


def _cancel(channel: FrontChannel, consumer: FrontConsumer, tag: str) -> None:
    def gone(outcome: operations.Outcome) -> None:
        consumer.window.further.pop(tag, None)

    # RabbitMQ's channel dies of a cancel that comes before its consume-ok.
    if consumer.window.further.get(tag) and _is_ready(channel):
        channel.ask(operations.Cancel(channel.number, tag), gone)


def _take(channel: FrontChannel, count: int) -> int:
    """Take so many of the budget, or what is left. Returns how many these are."""
    share = channel.client.share
    return count if share is None else share.take_deliveries(count)


def _give(channel: FrontChannel, count: int) -> None:
    share = channel.client.share
    if share is not None and count:
        share.give_deliveries(count)
