"""Brokers that send their clients elsewhere, and passwords that change: the embedded broker is both ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import Alert, Settlement
from gateway.broker.server import EmbeddedBroker
from gateway.config import BrokerSettings, EmbeddedSettings, EmbeddedUser, parse_broker_url, parse_host
from gateway.errors import BrokerUnavailable, ConfigurationError
from gateway.limits import Limits
from gateway.upstreams import Upstream, UpstreamState, keeper
from gateway.upstreams.keeper import Dialer, url_of
from gateway.upstreams.redirects import REDIRECTS_MAX, RedirectRefused, allowed_places
from gateway.v091.version import V0_9_1
from tests.upstreams.fake import until

HOPS = ("0-8", "0-10")
"""Versions with a connection.redirect."""


@pytest.fixture
async def brokers() -> AsyncIterator[list[EmbeddedBroker]]:
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(3):
            broker = EmbeddedBroker(EmbeddedSettings(port=0), Limits(close_timeout=0.5))
            await broker.start()
            stack.push_async_callback(broker.stop)
            found.append(broker)
        yield found


def send_away(broker: EmbeddedBroker, *hosts: str) -> None:
    for version, config in broker.session_configs.items():
        broker.session_configs[version] = replace(config, redirect=lambda user, name: hosts)


def place(broker: EmbeddedBroker) -> str:
    return f"127.0.0.1:{broker.port}"


def settings(broker: EmbeddedBroker, version: str, *hosts: str, **more: Any) -> BrokerSettings:
    url = f"amqp://guest:guest@{place(broker)}/?version={version}"
    return BrokerSettings(url=url, redirect_hosts=hosts, connect_timeout=5.0, **more)


@pytest.mark.parametrize("version", HOPS)
async def test_a_broker_is_followed(brokers: list[EmbeddedBroker], version: str) -> None:
    first, second, third = brokers
    send_away(first, place(second))
    send_away(second, "127.0.0.1:1", f"amqp:tcp:{place(third)}", place(first))
    upstream = Upstream("there", settings(first, version, "127.0.0.1"))
    await upstream.start()
    try:
        assert await upstream.wait_up(10), upstream.reason
        await upstream.declare_queue("q")
        await upstream.publish("", "q", Message(b"body"))
        (delivery,) = await upstream.fetch("q", 1, 5.0)
        assert delivery.message.body == b"body"
        delivery.settle(Settlement.ACCEPT)
        assert len(third.broker.connections) == 3
        assert not first.broker.connections
    finally:
        await upstream.close()


async def test_a_broker_is_followed_with_less_than_a_second_left(brokers: list[EmbeddedBroker]) -> None:
    send_away(brokers[0], place(brokers[1]))
    hurried = msgspec.structs.replace(settings(brokers[0], "0-8", "127.0.0.1"), connect_timeout=1.0)
    link = await Dialer("here", hurried).open("test")
    assert brokers[1].broker.connections
    await link.close()


@pytest.mark.parametrize("version", HOPS)
@pytest.mark.parametrize("named", ["", "localhost", "127.0.0.1:1"])
async def test_a_host_that_the_settings_do_not_name(brokers: list[EmbeddedBroker], version: str, named: str) -> None:
    first, second, _ = brokers
    send_away(first, place(second))
    dialer = Dialer("here", settings(first, version, *([named] if named else [])))
    if not named:
        link = await dialer.open("test")  # we insisted
        await link.close()
        return
    with pytest.raises(RedirectRefused, match="redirect_hosts names none") as caught:
        await dialer.open("test")
    assert isinstance(caught.value, BrokerUnavailable)
    assert not second.broker.connections


@pytest.mark.parametrize("version", HOPS)
async def test_in_circles(brokers: list[EmbeddedBroker], version: str) -> None:
    first, second, _ = brokers
    asked = []

    def elsewhere(broker: EmbeddedBroker) -> Callable[[str, str], tuple[str, ...]]:
        def hosts(user: str, name: str) -> tuple[str, ...]:
            asked.append(name)
            return (place(broker),)

        return hosts

    for here, there in ((first, second), (second, first)):
        for known, config in here.session_configs.items():
            here.session_configs[known] = replace(config, redirect=elsewhere(there))
    with pytest.raises(RedirectRefused, match="more than 5 times"):
        await Dialer("here", settings(first, version, "127.0.0.1")).open("test")
    assert len(asked) == REDIRECTS_MAX + 1


async def test_where_nobody_listens(brokers: list[EmbeddedBroker]) -> None:
    send_away(brokers[0], "127.0.0.1:1", "127.0.0.1:2")
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:2"):
        await Dialer("here", settings(brokers[0], "0-8", "127.0.0.1")).open("test")


async def test_auto_follows_too(brokers: list[EmbeddedBroker]) -> None:
    """0-9-1 knows no redirection, so it is the version that is found."""
    send_away(brokers[0], place(brokers[1]))
    dialer = Dialer("here", settings(brokers[0], "auto", "127.0.0.1"))
    link = await dialer.open("test")
    assert link.session.version is V0_9_1
    assert dialer.found.startswith("found 0-9-1")
    await link.close()


async def test_auto_finds_another_version_once_its_broker_has_changed(brokers: list[EmbeddedBroker]) -> None:
    dialer = Dialer("here", settings(brokers[0], "auto"))
    await (await dialer.open("test")).close()
    del brokers[0].session_configs[V0_9_1]
    link = await dialer.open("test")
    assert dialer.found.startswith(f"found {link.session.version.value}")
    assert link.session.version is not V0_9_1
    await link.close()


async def test_a_refusal_is_tried_again_slowly(brokers: list[EmbeddedBroker]) -> None:
    send_away(brokers[0], place(brokers[1]))
    upstream = Upstream("there", settings(brokers[0], "0-8", "other.example"))
    await upstream.start()
    try:
        await until(lambda: upstream.state is UpstreamState.FAILED, 5.0)
        assert "redirect_hosts" in upstream.reason
    finally:
        await upstream.close()


URL = parse_broker_url("amqps://guest:guest@first:5000/?version=0-8")


@pytest.mark.parametrize(
    ("hosts", "allowed", "found"),
    [
        (("Second:1",), ("second",), [("second", 1)]),
        (("second",), ("second",), [("second", 5000)]),
        (("second:1", "third:2"), ("third:2", "second:9"), [("third", 2)]),
        (("amqp:tcp:second:1,tls:third:2",), ("second", "third"), [("second", 1), ("third", 2)]),
        (("[::1]:7",), ("[::1]",), [("::1", 7)]),
        (("second", "second", "user@second", "", "second:0", "second:x"), ("second",), [("second", 5000)]),
        (tuple(f"h{number}" for number in range(20)), ("h15", "h16"), [("h15", 5000)]),
    ],
)
def test_places(hosts: tuple[str, ...], allowed: tuple[str, ...], found: list[tuple[str, int]]) -> None:
    places = allowed_places(URL, hosts, allowed)
    assert [(place.host, place.port) for place in places] == found
    assert all(place.secure and place.user == "guest" for place in places)


@pytest.mark.parametrize("allowed", [(), ("other",), ("second:2",)])
def test_no_place(allowed: tuple[str, ...]) -> None:
    with pytest.raises(RedirectRefused, match="second:1"):
        allowed_places(URL, ("second:1",), allowed)


@pytest.mark.parametrize("text", ["", "a/b", "user@host", "host:99999", "host:0", "[::1", "host?x"])
def test_hosts_that_are_none(text: str) -> None:
    with pytest.raises(ConfigurationError, match="host"):
        parse_host(text)
    with pytest.raises(ConfigurationError):
        Dialer("here", BrokerSettings(url="amqp://h/", redirect_hosts=(text,)))


@pytest.mark.parametrize(
    ("url", "mechanisms", "user"),
    [
        ("amqp://h/", (), "guest"),
        ("amqp://h/", ("EXTERNAL",), ""),
        ("amqp://carol@h/", ("EXTERNAL",), "carol"),
        ("amqp://carol@h/", ("ANONYMOUS",), ""),
        ("amqp://h/", ("EXTERNAL", "PLAIN"), "guest"),
    ],
)
def test_who_we_are(url: str, mechanisms: tuple[str, ...], user: str) -> None:
    assert url_of(BrokerSettings(url=url, mechanisms=mechanisms)).user == user


def test_plain_follows_only_to_loopback() -> None:
    dialer = Dialer("here", BrokerSettings(url="amqp://localhost/", redirect_hosts=("far.example",)))
    assert dialer.client_config("test").secure
    (far,) = allowed_places(dialer.url, ("far.example",), ("far.example",))
    assert not dialer.client_config("test", far).secure


# ----------------------------------------------------------------------------------------------- passwords


async def test_a_password_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker hears of it on the links that are open, and none of them ends."""
    monkeypatch.setattr(keeper, "FILES_EVERY", 0.02)
    path = tmp_path / "password"
    path.write_text("old\n")
    embedded = EmbeddedSettings(port=0, users=(EmbeddedUser(name="ann", password="old"),))
    broker = EmbeddedBroker(embedded, Limits(close_timeout=0.5))
    await broker.start()
    url = f"amqp://ann@{place(broker)}/?version=0-9-1"
    upstream = Upstream("there", BrokerSettings(url=url, password_file=str(path), reconnect_min=0.01))
    await upstream.start()
    try:
        assert await upstream.wait_up(10), upstream.reason
        before = set(broker.broker.connections)
        broker.broker._passwords["ann"] = "new"
        with caplog.at_level(logging.INFO, "gateway"):
            path.write_text("new\n")
            await until(lambda: [r.getMessage() for r in caplog.records].count("broker.secret_updated") == 3, 5.0)
            assert set(broker.broker.connections) == before
            path.unlink()
            await until(lambda: "broker.password_file" in [r.getMessage() for r in caplog.records], 5.0)
            path.write_text("wrong\n")
            await until(lambda: "broker.secret_refused" in [r.getMessage() for r in caplog.records], 5.0)
        assert "new" not in caplog.text.replace("renew", "")
        path.write_text("new\n")
        await until(lambda: upstream.state is not UpstreamState.UP, 5.0)
    finally:
        await upstream.close()
        await broker.stop()


async def test_links_that_cannot_be_told(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("guest")
    broker = EmbeddedBroker(EmbeddedSettings(port=0), Limits(close_timeout=0.5))
    await broker.start()
    try:
        url = f"amqp://guest@{place(broker)}/?version=0-10"
        dialer = Dialer("there", BrokerSettings(url=url, password_file=str(path)))
        link = await dialer.open("test")
        path.write_text("other")
        await dialer.renew()
        assert link.ended is None
        await link.close()
        await dialer.renew()
    finally:
        await broker.stop()


async def test_nobody_watches_a_password_without_a_file() -> None:
    async with asyncio.timeout(5):  # with a file it watches for ever
        await Dialer("here", BrokerSettings(url="amqp://h/")).watch_files()


# -------------------------------------------------------------------------------------------------- alerts


async def test_an_alert_is_logged_and_remembered(
    brokers: list[EmbeddedBroker], caplog: pytest.LogCaptureFixture
) -> None:
    upstream = Upstream("there", settings(brokers[0], "0-8"))
    await upstream.start()
    try:
        assert await upstream.wait_up(10), upstream.reason
        assert upstream.status().alert == ""
        await upstream.declare_queue("q")
        channels = [
            (connection, number)
            for connection in brokers[0].broker.connections.values()
            for number in connection.channels
        ]
        connection, number = channels[0]
        with caplog.at_level(logging.WARNING, "gateway"):
            connection.send(Alert(number, 313, "careful"), 0.0)
            await until(lambda: upstream.status().alert == "313 NO_CONSUMERS - careful", 5.0)
        assert [record.getMessage() for record in caplog.records] == ["broker.alert"]
        assert upstream.state is UpstreamState.UP
    finally:
        await upstream.close()
