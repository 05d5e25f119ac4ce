"""What a channel does when its upstream connection is lost, and when there is one again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gateway.amqp import operations
from gateway.errors import BrokerUnavailable, LimitExceeded, LocalError
from gateway.front.channels import consuming, credit, publishing, settling, windows
from gateway.front.channels.messages import marked
from gateway.front.counts import PUBLISHES

if TYPE_CHECKING:
    from gateway.front.channels.channel import FrontChannel

STRIKES_MAX: Final = 2
"""How often the upstream may end the whole connection over something while the same requests of a channel are under
way. Then that channel is closed, for its neighbors' sake."""


def restart(channel: FrontChannel, request: operations.Request, outcome: operations.Failed) -> None:
    """Something that was to be restored cannot be: a consumer is canceled, and the channel attached again."""
    if type(request) is operations.Consume:
        consumer = channel.consumers.pop(request.consumer_tag, None)
        if consumer is not None:
            windows.release(channel, consumer)
        channel.client.tell(operations.Cancelled(channel.number, request.consumer_tag))
        channel.client.counts.consumer_lost(channel.client, request.queue, outcome.text)
    channel.restarts = True


def lost(channel: FrontChannel, hard: bool) -> None:
    """The upstream connection is gone. ``hard``: the upstream ended it over something that it was sent."""
    if channel.over:
        return
    channel.up = None
    channel.own.clear()
    channel.later.clear()
    settling.record_lost(channel)
    channel.undecided.clear()
    channel.given_back.clear()
    channel.is_giving_back = False
    if channel.asking is not None:
        channel.client.backlog.appendleft(channel.asking)
        channel.asking = None
    channel.known_exchanges.clear()
    channel.takes_publishes = True
    channel.upstream_prefetch = -1
    channel.void = channel.newest
    channel.outstanding.clear()
    for consumer in channel.consumers.values():
        windows.release(channel, consumer)
        consumer.is_running = consumer.takes_once
        consumer.out = 0
        channel.client.held.add(-consumer.held_bytes)
        consumer.held.clear()
        consumer.held_bytes = 0
    for tag in list(channel.flushing):
        credit.flushed(channel, tag)
    if channel.in_transaction or channel.committing:
        channel.fail(506, "RESOURCE_ERROR - the broker was lost within a transaction, which is rolled back unless "
                       "its commit had reached it")  # fmt: skip
        return
    if hard and channel.sent:
        channel.strikes += 1
        if channel.strikes >= STRIKES_MAX:
            serial = next((request.serial for request in channel.sent.values() if request.serial), 0)
            channel.fail(541, "INTERNAL_ERROR - the broker ends the connection over what was sent here", serial)
            return
    if not hard:
        publishing.store_sent(channel)
    if channel.closing is not None:
        channel.close_when_safe()


def restore(channel: FrontChannel) -> None:
    """An upstream connection is there again: go on where the old one ended."""
    if channel.over:
        return
    # What has no serial is a consumer that was being restored, and is one of those that are restored now.
    pending = [request for request in channel.sent.values() if request.serial]
    if not pending and not channel.consumers and not channel.is_transacted and channel.up is None:
        channel.confirms_upstream = False
        return  # it is made when it is needed
    channel.sent.clear()
    channel.confirms_upstream = False
    for request in pending:
        if type(request) is operations.Cancel:  # the consumer has ended with the connection
            consuming.gone(channel, request)
            channel.done(request)
    pending = [request for request in pending if type(request) is not operations.Cancel]
    waits = {request.consumer_tag for request in pending if type(request) is operations.Consume}
    try:
        if channel.is_transacted and not any(type(request) is operations.TxSelect for request in pending):
            channel.ask(operations.TxSelect(channel.number))
        if channel.unconfirmed and not channel.is_transacted:
            channel.ask(operations.SelectConfirm(channel.number))
            channel.confirms_upstream = True
        for tag, consumer in list(channel.consumers.items()):
            if consumer.takes_once:
                continue
            if consumer.waiting is not None:
                credit.start(channel, consumer)
                continue
            windows.begin(channel, consumer)
            if tag not in waits:
                channel.send(replace(consumer.request, serial=0))
        for request in pending:
            if type(request) is operations.Publish:
                request = replace(request, message=marked(request.message))
                channel.client.counts.add(PUBLISHES, "resent")
                message_id, records = channel.recorded.get(request.serial), channel.client.host.records
                if message_id is not None and records is not None:
                    records.resent(channel.client, message_id)
            channel.send(request)
    except (LocalError, LimitExceeded, BrokerUnavailable) as error:
        channel.fail(506, f"RESOURCE_ERROR - the channel cannot go on at the broker: {error}"[:255])
