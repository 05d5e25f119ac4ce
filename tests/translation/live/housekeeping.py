"""``python -m tests.translation.live.housekeeping``: what Broker-J drops of that which it has confirmed.

Half a minute after a message was stored by 0-8 or 0-9-1, the broker's housekeeping reads its headers once more, and
drops it without a word if it cannot. So every edge value and many random messages, of each source, are published to
durable queues through the gateway's own translation; when the housekeeping was there, all of them must be left.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.upstreams import Upstream
from tests.translation.live.__main__ import servers
from tests.translation.live.ends import ENDS, End, Servers
from tests.translation.live.messages import edges, message, messages, number_of
from tests.translation.live.run import WINDOW, publish, upstream

HOUSEKEEPING = 75.0
"""More than twice the broker's interval, in seconds."""


async def left_over(target: End, brokers: Servers, seed: int, count: int, patience: float) -> dict[str, list[int]]:
    """Name of a source -> the numbers of its messages that are gone after ``patience`` seconds. Every edge value is
    among ``count`` messages if that is twice as many as there are."""
    async with upstream(target, brokers) as one:
        queues = {}
        try:
            for source in ENDS:
                queue = queues[source] = f"housekeeping.{uuid4().hex[:12]}"
                await one.declare_queue(queue)
                # A short body, and no expiration: it is the headers that are looked at.
                sent = [Message(made.body[:8], _lasting(made)) for made in messages(source, seed, count)]
                refused = await publish(one, queue, sent)
                assert not refused, refused
            await asyncio.sleep(patience)
            return {
                source.name: sorted(set(range(count)) - await _numbers(one, queue)) for source, queue in queues.items()
            }
        finally:
            for queue in queues.values():
                await one.delete_queue(queue)


def _lasting(made: Message) -> Properties:
    return replace(made.properties, delivery_mode=2, expiration=None)


async def _numbers(one: Upstream, queue: str) -> set[int | None]:
    found: set[int | None] = set()
    while deliveries := await one.fetch(queue, WINDOW, 1.0):
        for delivery in deliveries:
            found.add(number_of(delivery.message))
            delivery.settle(Settlement.ACCEPT)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 1 if anything is gone."""
    parser = argparse.ArgumentParser(prog="python -m tests.translation.live.housekeeping", description=__doc__)
    parser.add_argument("--messages", type=int, default=4_000, help="messages of each source (4,000)")
    parser.add_argument("--seed", type=int, default=1, help="of the messages (1)")
    parser.add_argument("--servers", metavar="FILE", help="running servers, instead of private ones")
    options = parser.parse_args(arguments)
    lost = 0
    with servers(options.servers) as brokers:
        for target in (end for end in ENDS if end.broker == "brokerj"):
            found = asyncio.run(left_over(target, brokers, options.seed, options.messages, HOUSEKEEPING))
            for name, gone in found.items():
                lost += len(gone)
                print(f"{name} → {target.name}: {options.messages:,} confirmed, {len(gone)} gone", flush=True)
                source = next(end for end in ENDS if end.name == name)
                for number in gone[:10]:
                    known = edges(source)
                    edge = known[(number // 2 + options.seed * 97) % len(known)] if number % 2 == 0 else None
                    print("  ", number, edge or message(source, options.seed, number).properties.headers)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
