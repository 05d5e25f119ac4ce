"""A queue as the source of a replay: a dead-letter queue that is driven back, most likely.

It takes what was in the queue when it began and no more: the messages that the queue held then, oldest first, and
none that this replay has put there itself (they carry its name). Each is held unacknowledged until what became of it is
in the ledger, as a bridge does it, so that a crash costs a repetition and never a message. What the target will not
take is held until the end and then given back; there is a bound to how many that may be.

A message is known again after a crash by its gateway's id, else its publisher's id, always together with the digest of
its body and the place that it goes to; and only where the broker says that it was delivered before. Messages without
any id and with the same body are indistinguishable: of these each is sent under an id of its own, and one that may have
been sent before a crash is sent again, marked, and never dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import Final

from gateway.amqp.message import Message
from gateway.amqp.operations import Settlement
from gateway.core import Gateway
from gateway.core.leasing.consuming import own_id
from gateway.core.publishing.publisher import Publication, describe, version_name
from gateway.errors import FrameSyntaxError, GatewayError, LeaseLost, LimitExceeded, StateError
from gateway.fidelity import annotation
from gateway.ledger import id_text
from gateway.replays.items import ReplayItem, nameless
from gateway.replays.places import ReplayPlace, told_by_ledger, told_by_message, was_at
from gateway.replays.requests import QueueSource
from gateway.replays.sources import Chunk, Refuses, Survey
from gateway.session import Capabilities
from gateway.upstreams import Delivery

HELD_MAX: Final = 1_000
"""Most refused messages that are held until the end; one more, and the replay fails."""
FETCH_WAIT: Final = 1.0
"""How long it waits for a message that should be there, in seconds."""
FETCHES: Final = 10
"""How often it does so while the queue says that it has messages: its broker may be slow, or others hold them."""
KEEPERS: Final = ("RabbitMQ", "AMQP Gateway")
"""Products that tell in x-death where a dead letter came from, and deliver it as from its dead-letter exchange. Others
deliver it as from the exchange that it was published to."""


class QueueSnapshot:
    """What was in a queue."""

    def __init__(self, gateway: Gateway, source: QueueSource, job: str) -> None:
        self._gateway = gateway
        self._ledger = gateway.ledger
        self._upstream = gateway.broker(source.broker)
        self._source = source
        self._queue = source.queue
        self._limit = source.limit
        self._job = job
        self._held: list[Delivery] = []
        """Refused, and given back at the end."""
        self._out: dict[int, Delivery] = {}
        """Taken, and not settled."""

    async def total(self) -> tuple[int, bool]:
        depth = (await self._upstream.query_queue(self._queue)).message_count
        return depth if self._limit is None else min(depth, self._limit), True

    async def survey(self, most: int, refuses: Refuses) -> Survey:
        """The first messages stay where they are: they are taken and given back, which marks them as redelivered."""
        count, complete = await self.total()
        found = await sample(self._gateway, self._source, most)
        survey = Survey(count, complete)
        for delivery in found:
            survey.take(await self.item(delivery), refuses, most)
        survey.count = max(0, survey.count)  # some may have come since
        return survey

    def begin(self, count: int) -> str:
        return str(count)

    async def take(self, position: str, most: int, landed: Counter[str]) -> Chunk:
        """``position``: how many are left. When none is, those that were settled in vain come again and are settled."""
        left = int(position)
        chunk = Chunk(position=position, last=True)
        wanted = max(left, 0) or landed.total()
        if not wanted:
            return chunk
        deliveries = await self._fetch(min(most, wanted))
        try:
            return await self._chunk(chunk, deliveries, left, landed)
        except BaseException:  # it is taken again
            for delivery in reversed(deliveries):
                self._settle(delivery, Settlement.RELEASE)
            raise

    async def _fetch(self, most: int) -> Sequence[Delivery]:
        """Take messages; none if the queue has none."""
        for _ in range(FETCHES):
            deliveries = await self._upstream.fetch(self._queue, most, FETCH_WAIT)
            if deliveries:
                return deliveries
            depth = (await self._upstream.query_queue(self._queue)).message_count
            if depth <= len(self._held) + len(self._out):  # some brokers count what is held
                break
        return []

    async def _chunk(self, chunk: Chunk, deliveries: Sequence[Delivery], left: int, landed: Counter[str]) -> Chunk:
        """What was taken, as a chunk."""
        in_vain = False
        for index, delivery in enumerate(deliveries):
            if self._is_ours(delivery.message):  # what follows was put there after the beginning, too
                return self._end(chunk, deliveries[index:])
            item = await self.item(delivery)
            if delivery.redelivered and landed[item.name] > chunk.met[item.name]:
                if item.name == item.key:
                    if self._settle(delivery, Settlement.ACCEPT):
                        chunk.met[item.name] += 1
                    else:
                        in_vain = True
                    continue  # it was counted when it was found to be sent
                chunk.met[item.name] += 1
                item.counted = item.resent = True
            elif left <= 0:  # it came after the beginning
                return self._end(chunk, deliveries[index:])
            else:
                left -= 1
            self._out[id(delivery)] = delivery
            chunk.items.append(item)
        chunk.position = str(left)
        chunk.last = not in_vain and (not deliveries or left <= 0)
        return chunk

    def _end(self, chunk: Chunk, rest: Sequence[Delivery]) -> Chunk:
        """What was there at the beginning ends here; the rest goes back."""
        for delivery in rest:
            self._settle(delivery, Settlement.RELEASE)
        chunk.position = "0"
        return chunk

    def _is_ours(self, message: Message) -> bool:
        try:
            return annotation(message.properties, "replay") == self._job
        except FrameSyntaxError:
            return False

    async def item(self, delivery: Delivery) -> ReplayItem:
        """What is known of a delivery."""
        message = delivery.message
        digest = sha256(message.body).digest()
        known, name = None, ""
        try:
            properties = message.properties
        except FrameSyntaxError:
            pass  # octets that are no property list: known by the body alone
        else:
            known = own_id(annotation(properties, "id"))
            name = properties.message_id or ""
        place = told_by_message(message, self._upstream.name)
        if place is None and known is not None:
            place = told_by_ledger(await self._ledger.timeline(known))
        elif place is not None and place.broker != self._upstream.name:
            timeline = await self._ledger.timeline(known) if known is not None else None
            place = replace(place, unsure=not was_at(timeline, place.broker))
        if place is None:
            place = told_by_delivery(delivery, self._upstream.name, self._upstream.capabilities)
        if known is not None:
            text = f"{id_text(known)}/{digest.hex()}"
        elif name:
            text = f"{self._upstream.name}/{name}/{digest.hex()}"
        else:
            text = nameless(digest.hex(), self._gateway.ids().hex())
        key = f"{text}@{place.broker}/{place.queue or place.routing_key}" if place is not None else text
        item = ReplayItem(_printable(key), known if known is not None else self._gateway.ids(), message, place)
        item.exchange, item.routing_key = delivery.exchange, delivery.routing_key
        item.sha256 = digest
        item.delivery = delivery
        outgoing = Publication(delivery.routing_key, message)
        item.original = describe(
            self._upstream.name, version_name(self._upstream), delivery.exchange, outgoing, "", "broker"
        )
        return item

    async def landed(self, keys: Sequence[str], sent: Collection[str], position: str) -> tuple[list[str], str]:
        return list(sent), str(max(0, int(position or 0) - len(sent)))

    def ahead(self, names: Counter[str], chunk: Chunk) -> Counter[str]:
        """All that have not come: their broker may find out late that who had them is gone."""
        return names

    def left(self, recorded: Sequence[ReplayItem], position: str) -> tuple[bool, str]:
        return True, str(int(position) - sum(not item.counted for item in recorded))

    async def passed(self, items: Sequence[ReplayItem]) -> list[ReplayItem]:
        """They are safe elsewhere, or were before: take them off the queue."""
        return [item for item in items if item.delivery is not None and not self._settle(item.delivery)]

    async def refused(self, items: Sequence[ReplayItem]) -> None:
        """The target does not take these.

        Raises:
            LimitExceeded: too many are held by now.
        """
        self._held += [item.delivery for item in items if item.delivery is not None]
        if len(self._held) > HELD_MAX:
            text = f"more than {HELD_MAX} messages were refused; they are back in the queue {self._queue!r}"
            raise LimitExceeded(text, "refused messages")

    def _settle(self, delivery: Delivery, settlement: Settlement = Settlement.ACCEPT) -> bool:
        """Whether its broker still counted it as delivered; else it comes again."""
        self._out.pop(id(delivery), None)
        try:
            delivery.settle(settlement)
        except (LeaseLost, StateError):
            return False
        return True

    async def close(self) -> None:
        """Give back what is not settled, the first at the head again."""
        for delivery in reversed(list(self._out.values())):
            self._settle(delivery, Settlement.RELEASE)
        self._held.clear()


def told_by_delivery(delivery: Delivery, broker: str, capabilities: Capabilities | None) -> ReplayPlace | None:
    """Where it came from, by what it was delivered as; None where that says nothing."""
    product = capabilities.product if capabilities is not None else ""
    if product.startswith(KEEPERS) or (not delivery.exchange and delivery.routing_key == delivery.queue):
        return None
    return ReplayPlace(broker, delivery.exchange, delivery.routing_key)


async def sample(gateway: Gateway, source: QueueSource, most: int) -> list[Delivery]:
    """The first messages of a queue, which stay there: taken and given back, which marks them as redelivered.

    Raises:
        NotFound, AccessRefused, BrokerUnavailable: the broker does not let us.
        Unsupported: looking could cost a message.
    """
    upstream = gateway.broker(source.broker)
    await upstream.check_give_back(source.queue)
    deliveries = await upstream.fetch(source.queue, min(most, source.limit or most), 0.0)
    for delivery in reversed(deliveries):
        with suppress(GatewayError):  # it comes back by itself
            delivery.settle(Settlement.RELEASE)
    return deliveries


def _printable(text: str) -> str:
    """A key that every database takes."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
