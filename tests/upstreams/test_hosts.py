"""A broker of several nodes: which of them a link is opened to."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.broker.server import EmbeddedBroker
from gateway.config import BrokerSettings, EmbeddedSettings, EmbeddedUser
from gateway.config.loading import load
from gateway.errors import AuthenticationFailed, BrokerUnavailable, ConfigurationError
from gateway.link import Link
from gateway.upstreams.keeper import Dialer

NOBODY = "127.0.0.1:1"


@pytest.fixture
async def nodes() -> AsyncIterator[list[EmbeddedBroker]]:
    async with AsyncExitStack() as stack:
        found = []
        for password in ("guest", "guest", "other"):
            broker = EmbeddedBroker(EmbeddedSettings(port=0, users=(EmbeddedUser(name="guest", password=password),)))
            await broker.start()
            stack.push_async_callback(broker.stop)
            found.append(broker)
        yield found


def dialer(first: str, *hosts: str, version: str = "0-9-1") -> Dialer:
    url = f"amqp://guest:guest@{first}/?version={version}"
    return Dialer("there", BrokerSettings(url=url, hosts=hosts, connect_timeout=5.0))


def place(broker: EmbeddedBroker) -> str:
    return f"127.0.0.1:{broker.port}"


async def opened(dialer: Dialer, nodes: list[EmbeddedBroker]) -> tuple[Link, int]:
    """A link, and the number of the node that it is to."""
    before = [len(node.broker.connections) for node in nodes]
    link = await dialer.open("test")
    after = [len(node.broker.connections) for node in nodes]
    (number,) = [index for index, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
    return link, number


@pytest.mark.parametrize("version", ["0-9-1", "0-10", "auto"])
async def test_the_next_node_is_tried_and_stays(nodes: list[EmbeddedBroker], version: str) -> None:
    found = dialer(NOBODY, place(nodes[0]), place(nodes[1]), version=version)
    for _ in range(2):
        link, number = await opened(found, nodes)
        assert number == 0
        await link.close()
    await nodes[0].stop()
    link, number = await opened(found, nodes)
    assert number == 1
    await link.close()


async def test_the_host_of_the_url_is_the_first_one(nodes: list[EmbeddedBroker]) -> None:
    link, number = await opened(dialer(place(nodes[1]), place(nodes[0])), nodes)
    assert number == 1
    await link.close()


async def test_the_node_that_was_reached_last_is_the_first_one(
    nodes: list[EmbeddedBroker], caplog: pytest.LogCaptureFixture
) -> None:
    """So that nobody waits each time for one that is away."""
    found = dialer(NOBODY, place(nodes[0]))
    passed_over = []
    for _ in range(2):
        with caplog.at_level(logging.INFO, "gateway"):
            await (await found.open("test")).close()
        passed_over.append([record.getMessage() for record in caplog.records].count("broker.next_host"))
    assert passed_over == [1, 1]


async def test_no_node_answers() -> None:
    with pytest.raises(BrokerUnavailable):
        await dialer(NOBODY, NOBODY).open("test")


async def test_a_node_that_refuses_the_login_is_passed_over_the_next_time(nodes: list[EmbeddedBroker]) -> None:
    found = dialer(place(nodes[2]), place(nodes[0]))
    with pytest.raises(AuthenticationFailed):
        await found.open("test")
    link, number = await opened(found, nodes)
    assert number == 0
    await link.close()


def test_a_host_has_the_port_of_the_url_where_it_names_none() -> None:
    found = dialer("first:5673", "second", "third:5674")
    assert [(url.host, url.port, url.user) for url in found._places] == [
        ("first", 5673, "guest"), ("second", 5673, "guest"), ("third", 5674, "guest"),
    ]  # fmt: skip


def test_a_host_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('[brokers.modern]\nurl = "amqp://first/"\nhosts = ["amqp://second"]\n')
    with pytest.raises(ConfigurationError, match=r"brokers\.modern\.hosts"):
        load(file)
