"""Failed logins at the embedded broker: they make the next ones wait, are logged and counted, and lock nobody out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from gateway.app import _start_embedded
from gateway.broker import logins
from gateway.broker.logins import DELAY_MAX, FORGET_AFTER, FREE_OF_ADDRESS, FREE_OF_USER, KNOWN_MAX, Logins
from gateway.broker.server import EmbeddedBroker
from gateway.budgets import BudgetBounds, Budgets
from gateway.config import BrokerSettings, EmbeddedSettings, EmbeddedUser
from gateway.errors import AuthenticationFailed, BrokerUnavailable
from gateway.limits import Limits
from gateway.link import Link
from gateway.observing.telemetry import Metrics
from gateway.upstreams.keeper import Dialer
from gateway.versions import VERSION_NAMES

VERSIONS = VERSION_NAMES
USERS = (EmbeddedUser(name="guest", password="guest"), EmbeddedUser(name="carol", password="secret"))


# ------------------------------------------------------------------------------------------- what is counted


def fail(known: Logins, count: int, address: str = "a", user: str = "u", now: float = 0.0) -> None:
    for _ in range(count):
        known.failed(address, user, now)


def test_the_first_failures_cost_nothing() -> None:
    known = Logins()
    fail(known, FREE_OF_ADDRESS - 1)
    assert known.delay("a", "u", 0.0) == 0
    fail(known, 1)
    assert known.delay("a", "u", 0.0) == pytest.approx(0.1)


def test_the_wait_doubles_up_to_a_few_seconds() -> None:
    known = Logins()
    fail(known, FREE_OF_ADDRESS)
    waits = []
    for _ in range(8):
        waits.append(known.delay("a", "u", 0.0))
        fail(known, 1)
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.0, 3.0, 3.0])
    fail(known, 100_000)
    assert known.delay("a", "u", 0.0) == DELAY_MAX


def test_others_do_not_wait() -> None:
    known = Logins()
    fail(known, 1_000, "attacker", "guest")
    assert known.delay("other", "carol", 0.0) == 0
    assert known.delay("attacker", "carol", 0.0) == DELAY_MAX
    assert known.delay("other", "guest", 0.0) == DELAY_MAX


def test_a_user_that_many_addresses_guess_at() -> None:
    known = Logins()
    for number in range(FREE_OF_USER):
        fail(known, 1, f"a{number}", "guest")
    assert known.delay("new", "guest", 0.0) > 0
    assert known.delay("new", "carol", 0.0) == 0


def test_it_is_forgotten() -> None:
    known = Logins()
    fail(known, 100)
    assert known.delay("a", "u", FORGET_AFTER - 1) == DELAY_MAX
    assert known.delay("a", "u", FORGET_AFTER) == 0
    fail(known, 1, now=FORGET_AFTER)
    assert known.delay("a", "u", FORGET_AFTER) == 0


def test_the_tables_are_bounded() -> None:
    known = Logins()
    for number in range(3 * KNOWN_MAX):
        fail(known, 1, f"a{number}", f"u{number}")
    assert len(known._addresses) == len(known._users) == KNOWN_MAX


def test_one_line_a_minute_with_the_count() -> None:
    known = Logins()
    assert known.failed("a", "u", 0.0) == ("a", 1)
    assert [known.failed("a", "u", float(now)) for now in range(1, 60)] == [None] * 59
    assert known.failed("b", "u", 59.0) == ("b", 1)
    assert known.failed("a", "u", 60.0) == ("a", 60)
    assert known.failed("a", "u", 61.0) is None
    assert known.reports(100.0) == []
    assert known.reports(120.0) == [("a", 1)]
    assert known.reports(180.0) == []


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_who_is_one_client(address: str, client: str) -> None:
    assert logins.client_of(address) == client


@pytest.mark.parametrize(
    ("address", "own", "local"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.8.9.1", "127.0.0.1", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True),
        ("192.0.2.7", "192.0.2.7", True),
        ("192.0.2.8", "192.0.2.7", False),
        ("", "192.0.2.7", False),
    ],
)
def test_what_comes_from_this_machine(address: str, own: str, local: bool) -> None:
    assert logins.is_local(address, own) is local


# --------------------------------------------------------------------------------------------- over sockets


@pytest.fixture
async def metrics() -> Metrics:
    return Metrics("test")


@pytest.fixture
async def broker(metrics: Metrics) -> AsyncIterator[EmbeddedBroker]:
    broker = EmbeddedBroker(EmbeddedSettings(port=0, users=USERS), Limits(close_timeout=0.5), metrics=metrics)
    await broker.start()
    yield broker
    await broker.stop()


async def log_in(broker: EmbeddedBroker, version: str, login: str = "guest:guest", **settings: Any) -> Link:
    url = f"amqp://{login}@127.0.0.1:{broker.port}/?version={version}"
    return await Dialer("test", BrokerSettings(url=url, **settings)).open("login")


async def refused(broker: EmbeddedBroker, version: str, login: str) -> float:
    """How long the broker took to say no."""
    begun = time.monotonic()
    with pytest.raises((AuthenticationFailed, BrokerUnavailable)):
        await log_in(broker, version, login)
    return time.monotonic() - begun


def pretend(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Clients come from that address from now on."""
    monkeypatch.setattr("gateway.transports.stream.Stream.address", property(lambda self: address))


@pytest.mark.parametrize("version", VERSIONS)
async def test_guessing_is_slowed_and_nobody_is_locked_out(
    broker: EmbeddedBroker, version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    metrics: Metrics,
) -> None:  # fmt: skip
    pretend(broker, monkeypatch, "192.0.2.66")
    with caplog.at_level(logging.WARNING, "gateway"):
        for _ in range(FREE_OF_ADDRESS):
            assert await refused(broker, version, "carol:wrong") < 5.0
        assert await refused(broker, version, "carol:wrong") >= 0.1
        assert await refused(broker, version, "nobody:wrong") >= 0.2
        begun = time.monotonic()
        link = await log_in(broker, version, "carol:secret")
        assert 0.4 <= time.monotonic() - begun < DELAY_MAX + 10
        await link.close()
    lines = [record for record in caplog.records if record.message == "embedded.login_refused"]
    assert [line.gateway_fields for line in lines] == [  # type: ignore[attr-defined]
        {"address": "192.0.2.66", "failures": 1, "user": "carol", "reason": "wrong credentials"}
    ]
    assert b"amqpgw_embedded_logins_refused_total 5.0" in metrics.render()
    took = []
    for address in ("192.0.2.67", "192.0.2.68", "192.0.2.69"):
        pretend(broker, monkeypatch, address)
        monkeypatch.setattr(broker.logins, "_users", broker.logins._users.__class__())
        begun = time.monotonic()
        await (await log_in(broker, version, "carol:secret")).close()
        took.append(time.monotonic() - begun)
    assert min(took) < 0.8  # what it would be after three failures


async def test_many_at_once_get_no_faster(broker: EmbeddedBroker) -> None:
    """From one address: 60 guesses at once, and again, while a neighbor works on."""
    link = await log_in(broker, "0-9-1")
    slowest = 0.0

    async def watch() -> None:
        nonlocal slowest
        while True:
            begun = time.monotonic()
            await asyncio.sleep(0.005)
            slowest = max(slowest, time.monotonic() - begun)

    watching = asyncio.create_task(watch())
    took = sorted(await asyncio.gather(*(refused(broker, "0-9-1", "carol:wrong") for _ in range(60))))
    assert sum(each >= DELAY_MAX * 0.9 for each in took) >= 45
    watching.cancel()
    assert not link.session.closed
    await link.close()


@pytest.mark.parametrize("version", VERSIONS)
async def test_guest_comes_from_this_machine_only(
    broker: EmbeddedBroker, version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await (await log_in(broker, version)).close()
    pretend(broker, monkeypatch, "192.0.2.66")
    with caplog.at_level(logging.WARNING, "gateway"):
        await refused(broker, version, "guest:guest")
    (line,) = [record for record in caplog.records if record.message == "embedded.login_refused"]
    assert line.gateway_fields["reason"] == "only from this machine"  # type: ignore[attr-defined]
    await (await log_in(broker, version, "carol:secret")).close()


async def test_guest_comes_from_anywhere_where_the_configuration_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = EmbeddedBroker(EmbeddedSettings(port=0, loopback_users=()), Limits(close_timeout=0.5))
    await broker.start()
    pretend(broker, monkeypatch, "192.0.2.66")
    await (await log_in(broker, "0-9-1")).close()
    await broker.stop()


async def test_the_code_of_the_specification(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """ACCESS_REFUSED, as RabbitMQ has it for guest."""
    pretend(broker, monkeypatch, "192.0.2.66")
    with pytest.raises(AuthenticationFailed, match="403"):
        await log_in(broker, "0-9-1", "guest:guest")


async def test_a_client_that_leaves_while_its_answer_waits(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(FREE_OF_ADDRESS + 4):
        broker.logins.failed("127.0.0.1", "carol", asyncio.get_running_loop().time())
    task = asyncio.create_task(refused(broker, "0-9-1", "carol:wrong"))
    await asyncio.sleep(0.3)
    assert not task.done()
    task.cancel()
    async with asyncio.timeout(5):
        while broker.broker.connections:
            await asyncio.sleep(0.01)


async def test_the_start_warns_where_anybody_gets_in(caplog: pytest.LogCaptureFixture) -> None:
    settings = EmbeddedSettings(enabled=True, host="0.0.0.0", port=0, loopback_users=())
    with caplog.at_level(logging.WARNING, "gateway"):
        async with AsyncExitStack() as stack:
            await _start_embedded(settings, Metrics("test"), Budgets(BudgetBounds()), stack)
    (line,) = [record for record in caplog.records if record.message == "embedded.open_to_strangers"]
    assert line.gateway_fields == {  # type: ignore[attr-defined]
        "host": "0.0.0.0", "reason": "user 'guest': its password is its name"
    }  # fmt: skip
