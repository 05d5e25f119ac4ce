"""Getting in, being turned away, and finding out what is spoken."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import LoginCut
from gateway.link import RESTING, Channel
from gateway.upstreams import Upstream, UpstreamState, probe
from gateway.v08.version import V0_8
from gateway.v09.version import V0_9
from gateway.v091.version import V0_9_1
from gateway.versions import VERSIONS, version_named
from tests.conformance.conftest import FarEnd
from tests.servers import serving
from tests.upstreams.fake import until

SPOKEN = {
    "rabbitmq-3.10": {V0_8, V0_9, V0_9_1},
    "rabbitmq": {V0_9, V0_9_1},  # which is the same there
    "brokerj": set(VERSIONS),
    "embedded": set(VERSIONS),
}


async def test_the_version_is_the_one_asked_for(far_end: FarEnd, upstream: Upstream) -> None:
    status = upstream.status()
    assert status.version is version_named(far_end.version)
    assert status.product
    assert status.product_version
    assert status.capabilities is not None
    assert status.capabilities.frame_max >= 4096


@pytest.mark.parametrize("wrong", [{"password": "wrong"}, {"user": "nobody"}], ids=["password", "user"])
async def test_wrong_credentials(far_end: FarEnd, wrong: dict[str, str]) -> None:
    upstream = Upstream("wrong", far_end.settings(**wrong))  # type: ignore[arg-type]
    await upstream.start()
    if (far_end.kind, far_end.version) == ("rabbitmq", "0-8"):  # it hangs up without a word: it may be going down
        await until(lambda: upstream.status().code == LoginCut.code, 10)
        assert upstream.state is UpstreamState.DOWN
    else:
        await until(lambda: upstream.state is UpstreamState.FAILED, 10)
    assert upstream.reason
    await upstream.close()


async def test_an_unknown_virtual_host(far_end: FarEnd) -> None:
    upstream = Upstream("wrong", far_end.settings(virtual_host="no such host"))
    await upstream.start()
    await until(lambda: upstream.state is UpstreamState.FAILED, 10)
    assert upstream.reason
    await upstream.close()


async def test_auto_and_probe(far_end: FarEnd) -> None:
    upstream = await far_end.upstream(version="auto")
    spoken = SPOKEN[serving(far_end.kind, far_end.version)]
    assert upstream.version in spoken
    assert upstream.status().found.startswith("found ")
    result = await probe(far_end.settings())
    assert set(result.versions) == spoken
    for attempt in result.attempts:
        assert attempt.product if attempt.speaks else attempt.reason


async def test_channels_come_and_go(far_end: FarEnd) -> None:
    """Also before they are open, and with numbers used again."""
    link = await far_end.link()
    for _ in range(20):
        channels = [link.channel(Channel) for _ in range(20)]
        opening = [asyncio.ensure_future(channel.open()) for channel in channels]
        await asyncio.sleep(0)
        for channel in channels[::2]:
            channel.abandon()
        await asyncio.gather(*opening, return_exceptions=True)
        assert all(channel.usable for channel in channels[1::2])
        for channel in channels:
            await channel.close()
        assert max(channel.number for channel in channels) <= RESTING + 40
    assert link.ended is None
