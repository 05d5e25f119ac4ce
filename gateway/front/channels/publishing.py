"""Publishes of a client, and what the upstream says of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gateway.amqp import operations
from gateway.errors import BrokerUnavailable, FrameSyntaxError, LimitExceeded, LocalError
from gateway.front.channels.messages import LOCAL, checked, marked, noted, restored
from gateway.front.channels.refusals import refused
from gateway.front.counts import PUBLISHES

if TYPE_CHECKING:
    from gateway.amqp.message import Message
    from gateway.front.channels.channel import FrontChannel

KNOWN_EXCHANGES_MAX: Final = 1_024
"""Of how many exchanges a channel remembers that they are there."""


def publish(channel: FrontChannel, request: Any) -> None:
    client = channel.client
    channel.check(request)
    message = request.message
    lane = client.lane
    if lane is not None and (not client.link.is_up or lane.takes(channel, request)):
        store(channel, request)
        return
    if request.exchange not in channel.known_exchanges and request.exchange:
        if not client.link.target.capabilities.unknown_exchange_reported:
            find_exchange(channel, request)
            return
        if len(channel.known_exchanges) < KNOWN_EXCHANGES_MAX:
            channel.known_exchanges.add(request.exchange)
    request.message = _stamped(channel, checked(message, client.user, client.is_classic))
    if channel.is_transacted:
        channel.transaction[channel.say(request)] = request.serial
        channel.in_transaction = True
        if channel.confirms:
            # The commit is what counts. Qpid's clients wait for an answer to each publish before they come to it.
            client.tell(operations.Confirmed(channel.number, request.serial, request.serial))
        return
    records = client.host.records
    if records is not None:
        channel.recorded[request.serial], request.message = records.begin(request.message)
    if not channel.confirms_upstream:
        channel.ask(operations.SelectConfirm(channel.number))
        channel.confirms_upstream = True
    channel.send(request)
    channel.unconfirmed += 1
    size = len(request.message.body)
    channel.unconfirmed_bytes += size
    client.count_unconfirmed(size)


def _stamped(channel: FrontChannel, message: Message) -> Message:
    """The message, marked as its client's if some consumer has to know."""
    stamp = channel.client.stamp
    return noted(message, **{LOCAL: stamp}) if stamp else message


def store(channel: FrontChannel, request: Any) -> None:
    """Have the ledger keep a publish."""
    client, lane = channel.client, channel.client.lane
    assert lane is not None, "the channel has asked it"
    request.message = message = _stamped(channel, checked(request.message, client.user, client.is_classic))
    _ = message.properties  # what cannot be read is refused now
    if why := lane.full():
        refuse(channel, request, why)
        return
    size = len(message.body)
    channel.unconfirmed += 1
    channel.unconfirmed_bytes += size
    client.count_unconfirmed(size)
    lane.add(channel, request, False)


def store_sent(channel: FrontChannel) -> None:
    """Have the ledger keep what was published and is not confirmed: the broker is away, and newer ones are stored.
    Where anything else is under way on the channel, publishes may need it, and all of them wait."""
    lane = channel.client.lane
    pending: list[Any] = [request for request in channel.sent.values() if request.serial]
    if lane is None or not pending or lane.full():
        return
    for request in pending:
        if type(request) is not operations.Publish or not lane.may_keep(channel, request):
            return
        try:
            _ = request.message.properties
        except FrameSyntaxError:  # the broker is to say what is wrong with it
            return
    channel.sent.clear()
    for request in pending:
        record(channel, request, "unknown", 0, "the broker is away; it is sent again from the ledger")
        lane.add(channel, request, True)


def refuse(channel: FrontChannel, request: operations.Publish, why: str) -> None:
    """Refuse a publish that cannot be kept."""
    client = channel.client
    if channel.over:
        client.counts.publish_lost(client, request, why)
    elif channel.confirms:
        client.counts.add(PUBLISHES, "refused")
        client.tell(operations.Refused(channel.number, request.serial, request.serial, 506, why))
    else:
        channel.refuse(request, refused(506, why))


def stored(results: Sequence[tuple[FrontChannel, operations.Publish, str]]) -> None:
    """The ledger has these publishes: confirm them. With a text: it cannot keep that one."""
    channels: dict[FrontChannel, list[int]] = {}
    for channel, request, why in results:
        client = channel.client
        client.now = client.host.clock()
        serials = channels.setdefault(channel, [])
        if not channel.over:
            size = len(request.message.body)
            channel.unconfirmed -= 1
            channel.unconfirmed_bytes -= size
            client.count_unconfirmed(-size)
        if why:
            refuse(channel, request, why)
            continue
        client.counts.add(PUBLISHES, "stored")
        serials.append(request.serial)
    for channel, serials in channels.items():
        if channel.confirms and not channel.over:
            for first, last in _runs(serials):
                channel.client.tell(operations.Confirmed(channel.number, first, last))
        progress(channel)


def send_stored(channel: FrontChannel, request: operations.Publish, resent: bool) -> None:
    """Send a publish that was to be stored to the broker, which is there again. ``resent``: it may have it."""
    try:
        if not channel.confirms_upstream:
            channel.ask(operations.SelectConfirm(channel.number))
            channel.confirms_upstream = True
        channel.send(replace(request, message=marked(request.message)) if resent else request)
    except (LocalError, LimitExceeded, BrokerUnavailable) as error:
        channel.fail(506, f"RESOURCE_ERROR - the channel cannot go on at the broker: {error}"[:255])


def _runs(serials: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of numbers without a gap."""
    first = last = 0
    for serial in serials:
        if serial != last + 1 or not last:
            if last:
                yield first, last
            first = serial
        last = serial
    if last:
        yield first, last


def find_exchange(channel: FrontChannel, request: operations.Publish) -> None:
    """A broker that takes publishes to an exchange that is not there is asked for it first."""

    def found(outcome: operations.Outcome) -> None:
        if not channel.client.link.is_up:
            return  # the broker is lost behind its answer: the publish waits, as without one
        channel.asking = None
        if isinstance(outcome, operations.Failed):
            text = f"no exchange '{request.exchange}' in vhost '{channel.client.access.virtual_host}'"
            channel.refuse(request, refused(404, text))
        else:
            channel.known_exchanges.add(request.exchange)
            channel.take(request)
        channel.client.rouse()

    channel.asking = request
    channel.ask(operations.QueryExchange(channel.number, request.exchange), found)


def confirmed(channel: FrontChannel, outcome: operations.Confirmed) -> None:
    sent, confirms, client = channel.sent, channel.confirms, channel.client
    first = last = number = size = 0
    channel.strikes = 0
    for serial in range(outcome.first, outcome.last + 1):
        request = sent.get(serial)
        if type(request) is not operations.Publish:
            continue
        del sent[serial]
        if channel.recorded:
            record(channel, request, "confirmed")
        number += 1
        size += len(request.message.body)
        if request.serial != last + 1:
            if last and confirms:
                client.tell(operations.Confirmed(channel.number, first, last))
            first = request.serial
        last = request.serial
    if last and confirms:
        client.tell(operations.Confirmed(channel.number, first, last))
    channel.unconfirmed -= number
    channel.unconfirmed_bytes -= size
    client.count_unconfirmed(-size)
    client.counts.add(PUBLISHES, "confirmed", number)
    progress(channel)


def progress(channel: FrontChannel) -> None:
    if channel.closing is not None:
        channel.close_when_safe()
    channel.client.rouse()


def taken(channel: FrontChannel, serial: int) -> Any:
    """Return the publish that has its outcome now; None: that serial is not a publish."""
    request = channel.sent.get(serial)
    if type(request) is not operations.Publish:
        return None
    del channel.sent[serial]
    channel.unconfirmed -= 1
    size = len(request.message.body)
    channel.unconfirmed_bytes -= size
    channel.client.count_unconfirmed(-size)
    return request


def record(channel: FrontChannel, request: operations.Publish, outcome: str, code: int = 0, text: str = "") -> None:
    """Write what became of a publish, if it has a timeline."""
    message_id, records = channel.recorded.pop(request.serial, None), channel.client.host.records
    if message_id is not None and records is not None:
        records.end(channel.client, message_id, request, outcome, code, text)


def returned(channel: FrontChannel, outcome: Any) -> None:
    client = channel.client
    request = taken(channel, outcome.first)
    if request is None:
        serial = channel.transaction.get(outcome.first, 0)
        message = None if outcome.message is None else restored(outcome.message)
        exchange, key = outcome.exchange, outcome.routing_key
    else:
        serial, message = request.serial, request.message
        exchange, key = request.exchange, request.routing_key
        record(channel, request, "unroutable", outcome.code, outcome.text)
    returned = operations.Returned(
        channel.number, serial, serial, outcome.code, outcome.text, exchange, key, message, final=False
    )
    client.tell(returned)
    client.counts.add(PUBLISHES, "returned")
    if serial and channel.confirms and request is not None:
        client.tell(operations.Confirmed(channel.number, serial, serial))
    progress(channel)


def refused_upstream(channel: FrontChannel, outcome: operations.Refused) -> None:
    for serial in range(outcome.first, outcome.last + 1):
        request = taken(channel, serial)
        if request is None:
            continue
        record(channel, request, "refused", outcome.code, outcome.text)
        if channel.confirms:
            channel.client.counts.add(PUBLISHES, "refused")
            channel.client.tell(
                operations.Refused(channel.number, request.serial, request.serial, outcome.code, outcome.text)
            )
        else:
            channel.client.counts.publish_lost(channel.client, request, outcome.text)
    progress(channel)


def upstream_flow(channel: FrontChannel, operation: operations.Flow) -> None:
    channel.takes_publishes = operation.active
    channel.client.rouse()


def alert(channel: FrontChannel, operation: operations.Alert) -> None:
    operation.channel = channel.number  # type: ignore[misc]  # nobody else has it
    channel.client.tell(operation)
