"""F23: channels opened and closed by the ten thousand, on one connection, and more of them than there may be.

What a channel leaves behind is looked for in the memory of both sessions of ours, and in a link to a real broker.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from typing import Final

from gateway.amqp.operations import ChannelClosed, CloseChannel, Closed, Done, OpenChannel
from gateway.errors import GatewayError, LimitExceeded
from gateway.link import Channel, Link
from gateway.session import Version
from gateway.versions import VERSIONS
from tests.chaos.ends import FarEnd, far_ends
from tests.chaos.figures import Figures
from tests.chaos.parts import Context
from tests.pair import SessionPair

IN_MEMORY: Final = {False: 1_000, True: 100_000}
"""How often a channel is opened and closed between two sessions in memory, in the quick and in the full form."""
ON_A_BROKER: Final = {False: 200, True: 20_000}
"""Likewise on a connection to a real broker."""
USED_UP: Final = {False: 256, True: 2_047}
"""Likewise: no more channels than these are held at a time."""
LEAK_MAX: Final = 1_000
"""How many blocks of memory may be in use more after all of them than after the first tenth."""
NUMBERS: Final = 100
"""How many channel numbers take turns."""
AT_ONCE: Final = 40
"""How many channels are open at a time on a real broker."""


def in_memory(version: Version, times: int) -> Figures:
    """A client and a server session, and what they hold afterwards."""
    figures = Figures(f"opened and closed in memory, {version.value}", unit="channels")
    pair = SessionPair(version).open(1)
    base = 0
    for number in range(times):
        channel = 2 + number % NUMBERS
        pair.ask(OpenChannel(channel))
        (request,) = pair.requests
        assert isinstance(request, OpenChannel)
        opened = pair.answer(Done(channel, request.serial, request.serial))
        pair.ask(CloseChannel(channel))
        (closing,) = pair.requests
        events = list(pair.events)
        if isinstance(closing, CloseChannel):
            events += pair.answer(ChannelClosed(channel, 200, "", by_peer=False))
        figures.attempted += 1
        figures.unexpected += not (
            [type(event) for event in opened] == [Done] and any(isinstance(event, ChannelClosed) for event in events)
        )
        if number == times // 10:
            gc.collect()
            base = sys.getallocatedblocks()
    gc.collect()
    leak = sys.getallocatedblocks() - base
    figures.extra = {"blocks_left": leak}
    figures.must(leak <= LEAK_MAX, f"{version.value}: {leak:,} blocks of memory are left of {times:,} channels")
    pair.ask(OpenChannel(2))
    figures.must(not any(isinstance(event, Closed) for event in pair.events), "the connection has ended")
    return figures


async def on_a_broker(end: FarEnd, times: int, most: int) -> Figures:
    """On one connection: some at a time, and then as many as there may be and one more, where that is not over
    ``most``."""
    figures = Figures(f"opened and closed on {end.kind} {end.version}", unit="channels")
    link = await end.link()
    objects = 0
    while figures.attempted < times:
        channels = [link.channel(Channel) for _ in range(AT_ONCE)]
        done = await asyncio.gather(*(channel.open() for channel in channels), return_exceptions=True)
        figures.unexpected += sum(isinstance(each, BaseException) for each in done)
        await asyncio.gather(*(channel.close() for channel in channels))
        figures.attempted += AT_ONCE
        if not objects and figures.attempted >= times // 10:
            gc.collect()
            objects = len(gc.get_objects())
    gc.collect()
    figures.must(link.channels == 0, f"{link.channels} channels are left")
    more = len(gc.get_objects()) - objects
    figures.must(more < times // 10 + 1_000, f"{more} objects are left of {times} channels")
    figures.extra = {"objects_left": more, "channel_max": link.capabilities.channel_max}
    if 0 < link.capabilities.channel_max <= most:
        await _used_up(link, figures, link.capabilities.channel_max)
    return figures


async def _used_up(link: Link, figures: Figures, most: int) -> None:
    """One channel more than the broker allows is refused here, and costs nobody anything."""
    held = [link.channel(Channel) for _ in range(most)]
    await asyncio.gather(*(channel.open() for channel in held))
    try:
        link.channel(Channel)
    except LimitExceeded:
        pass
    except GatewayError as error:
        figures.problems.append(f"one channel too many: {type(error).__name__}")
    else:
        figures.problems.append(f"channel {most + 1} was not refused")
    await held[0].close()
    again = link.channel(Channel)
    await again.open()
    figures.must(again.usable, "a channel that has become free cannot be used")
    for channel in (*held[1:], again):
        await channel.close()
    figures.must(link.ended is None, f"the connection has ended: {link.ended}")


def channels(context: Context) -> list[Figures]:
    """In memory in each version, and on each real broker."""
    found = []
    for version in VERSIONS:
        began = time.monotonic()
        found.append(in_memory(version, context.times or IN_MEMORY[context.full]))
        found[-1].seconds = round(time.monotonic() - began, 1)

    async def real() -> None:
        for end in far_ends(context):
            began = time.monotonic()
            try:
                found.append(await on_a_broker(end, context.times or ON_A_BROKER[context.full], USED_UP[context.full]))
            finally:
                await end.close()
            found[-1].seconds = round(time.monotonic() - began, 1)

    asyncio.run(real())
    return found
