"""Keeping a link: how it is opened, when it is tried again, and how its broker hears of a new password."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.operations import Closed, CloseReason, Opened, UpdateSecret
from gateway.config import BrokerSettings, TlsSettings
from gateway.errors import (
    AccessRefused,
    AuthenticationFailed,
    BrokerUnavailable,
    CertificateRefused,
    ConfigurationError,
    GatewayError,
    LoginCut,
    ProtocolMismatch,
)
from gateway.runtime.clock import clock
from gateway.runtime.ids import ids
from gateway.upstreams import keeper
from gateway.upstreams.keeper import CUTS, Dialer, Keeper, url_of
from tests.upstreams.fake import FakeBroker, Peer, until


def settings(**more: Any) -> BrokerSettings:
    return BrokerSettings(**{"url": "amqp://h/", "reconnect_min": 0.5, "reconnect_max": 20.0, **more})


class Dials:
    """A dialer whose attempts have given outcomes."""

    def __init__(self, *outcomes: Any, **more: Any) -> None:
        self.name = "b"
        self.settings = settings(**more)
        self.on_files: list[Callable[[], None]] = []
        self.outcomes = list(outcomes)
        self.attempts = 0

    async def open(self, purpose: str) -> Any:
        self.attempts += 1
        outcome = self.outcomes.pop(0) if self.outcomes else BrokerUnavailable("away")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class Opens:
    """A link that is open until the test ends it."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.ended: Closed | None = None
        self.on_closed: Callable[[Closed], None] | None = None
        self.closes = 0

    def end(self, text: str) -> None:
        self.ended = Closed(0, CloseReason.EOF, 0, text)
        if self.on_closed is not None:
            self.on_closed(self.ended)

    async def close(self) -> None:
        self.closes += 1


async def fine(link: Any) -> None:
    """Made ready."""


def kept(dialer: Dials, up: Any = fine, down: Any = None) -> Keeper:
    anything: Any = dialer
    return Keeper(anything, "test", up=up, down=down or (lambda reason: None))


async def test_logins_that_are_cut_count_as_a_refusal_after_so_many() -> None:
    cuts = [LoginCut("cut") for _ in range(CUTS + 2)]
    dialer = Dials(*cuts, BrokerUnavailable("away"), LoginCut("cut"), AuthenticationFailed("no"), LoginCut("cut"))
    one = kept(dialer)
    seen = []
    for _ in range(len(dialer.outcomes)):
        await one._once()
        seen.append((one.hopeless, one.code))
    cut, refused = (False, "login_cut"), (True, "login_cut")
    away, failed = (False, "broker_unavailable"), (True, AuthenticationFailed.code)
    assert seen == [*[cut] * (CUTS - 1), *[refused] * 3, away, cut, failed, cut]


async def test_pauses_after_logins_that_are_cut_stay_within_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "fraction", lambda: 1.0)
    link = Opens()
    one = kept(Dials(*[LoginCut("cut") for _ in range(9)], link, reconnect_min=0.25, reconnect_max=500.0))
    pauses = []
    for _ in range(9):
        await one._once()
        pauses.append(one._pause())
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0, 64.0]
    task = asyncio.create_task(one._once())
    await until(lambda: one.link is not None)
    link.end("over")
    await task
    one._backoff.reset()
    assert one._pause() == 0.25


@pytest.mark.parametrize("kind", [AuthenticationFailed, CertificateRefused, ConfigurationError])
async def test_what_waiting_will_not_fix_is_tried_slowly(
    kind: type[GatewayError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ids, "fraction", lambda: 1.0)
    for longest, pause in ((20.0, keeper.SLOW_RETRY), (500.0, 500.0)):
        link = Opens()
        one = kept(Dials(kind("no"), link, reconnect_max=longest))
        assert await one._once() == "no"
        assert one._pause() == pause
        asyncio.get_running_loop().call_soon(link.end, "over")
        link.ended = None
        task = asyncio.create_task(one._once())
        await asyncio.wait([task])
        assert (one.hopeless, one.code) == (False, "")
        assert one._pause() < pause


async def test_a_link_is_there_while_it_is_up_and_is_closed_unless_it_has_ended() -> None:
    seen: list[Any] = []
    link = Opens()
    one = kept(Dials(link))

    async def up(given: Any) -> None:
        seen.append((given, one.link))

    one._up = up
    task = asyncio.create_task(one._once())
    await until(lambda: seen)
    assert seen == [(link, link)]
    link.end("going down")
    assert "going down" in await task
    assert (one.link, link.on_closed, link.closes) == (None, None, 0)


@pytest.mark.parametrize("error", [AccessRefused(403, "no"), ValueError("boom")])
async def test_a_link_that_cannot_be_made_ready_is_closed(error: Exception) -> None:
    async def up(link: Any) -> None:
        raise error

    link = Opens()
    one = kept(Dials(link), up)
    assert str(error) in await one._once()
    assert (one.link, link.on_closed, link.closes) == (None, None, 1)


async def test_a_link_that_ended_as_it_opened_is_not_used() -> None:
    async def up(link: Any) -> None:
        raise AssertionError

    link = Opens()
    link.end("CONNECTION_FORCED")
    assert "CONNECTION_FORCED" in await kept(Dials(link), up)._once()
    assert link.closes == 0


@pytest.mark.parametrize(
    ("lasted", "hopeless", "is_reset"),
    [(9.0, False, False), (10.0, False, False), (10.5, False, True), (99.0, True, False)],
)
async def test_pauses_begin_small_again_after_a_link_that_lasted(
    monkeypatch: pytest.MonkeyPatch, lasted: float, hopeless: bool, is_reset: bool
) -> None:
    now = 0.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    downs: list[str] = []
    one = kept(Dials(), down=downs.append)

    async def once() -> str:
        nonlocal now
        now += lasted
        one.hopeless = hopeless
        return "over"

    one._once = once  # type: ignore[method-assign]
    one._backoff.failures = 3
    task = asyncio.create_task(one.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert downs[0] == "over"
    assert one._backoff.failures == (1 if is_reset else 4)


async def test_a_file_that_changes_hurries_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "fraction", lambda: 1.0)
    dialer = Dials(reconnect_min=30.0, reconnect_max=30.0)
    one = kept(dialer)
    task = asyncio.create_task(one.run())
    for attempts in (1, 2, 3):
        await until(lambda attempts=attempts: dialer.attempts == attempts)  # type: ignore[misc]
        await asyncio.sleep(0.01)
        assert dialer.attempts == attempts
        (hurry,) = dialer.on_files
        hurry()
    await until(lambda: dialer.attempts == 4)
    task.cancel()
    await asyncio.wait([task])


async def test_other_settings_are_used_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "fraction", lambda: 1.0)
    old, new = Dials(reconnect_min=30.0, reconnect_max=30.0), Dials(reconnect_min=3.0, reconnect_max=4.0)
    one = kept(old)
    task = asyncio.create_task(one.run())
    await until(lambda: old.attempts == 1)
    anything: Any = new
    one.use(anything)
    await until(lambda: new.attempts == 1)
    assert old.attempts == 1
    await asyncio.sleep(0.01)
    (hurry,) = new.on_files
    hurry()
    await until(lambda: new.attempts == 2)
    task.cancel()
    await asyncio.wait([task])
    one._backoff.reset()
    assert [one._pause(), one._pause()] == [3.0, 4.0]
    one._cuts = 9
    assert one._pause() == 4.0


# --------------------------------------------------------------------------------------------- the dialer


@pytest.mark.parametrize(
    ("url", "more", "password"),
    [
        ("amqp://ann:url@h/", {}, "url"),
        ("amqp://ann:url@h/", {"password": "set"}, "set"),
        ("amqp://ann@h/", {"password": "set"}, "set"),
    ],
)
def test_which_password_is_used(url: str, more: dict[str, str], password: str) -> None:
    dialer = Dialer("b", settings(url=url, **more))
    assert dialer.client_config("test").password == password


@pytest.mark.parametrize(
    ("url", "more", "dialect"),
    [
        ("amqp://h/", {}, None),
        ("amqp://h/?version=0-10&dialect=transitional", {}, "transitional"),
        ("amqp://h/", {"dialect": "rabbitmq"}, "rabbitmq"),
        ("amqp://h/?version=0-10&dialect=transitional", {"dialect": "rabbitmq"}, "rabbitmq"),
    ],
)
def test_which_dialect_is_used(url: str, more: dict[str, str], dialect: str | None) -> None:
    assert Dialer("b", settings(url=url, **more)).client_config("test").dialect == dialect


@pytest.mark.parametrize(
    ("url", "mechanisms", "user"),
    [
        ("amqp://h/", ("EXTERNAL", "ANONYMOUS"), ""),
        ("amqp://carol@h/", ("EXTERNAL", "ANONYMOUS"), "carol"),
        ("amqp://h/", ("PLAIN",), "guest"),
        ("amqp://carol@h/", (), "carol"),
    ],
)
def test_a_user_that_is_not_named_is_nobody_where_the_broker_asks_for_none(
    url: str, mechanisms: tuple[str, ...], user: str
) -> None:
    assert url_of(settings(url=url, mechanisms=mechanisms)).user == user


@pytest.mark.parametrize(
    ("url", "disabled", "is_told"),
    [("amqps://h/", True, True), ("amqps://h/", False, False), ("amqp://h/", True, False), ("amqp://h/", False, False)],
)
def test_tls_that_is_not_verified_is_told(
    caplog: pytest.LogCaptureFixture, url: str, disabled: bool, is_told: bool
) -> None:
    with caplog.at_level(logging.WARNING, "gateway"):
        Dialer("b", settings(url=url, tls=TlsSettings(dangerous_disable_verification=disabled)))
    assert ([record.getMessage() for record in caplog.records] == ["broker.tls_not_verified"]) is is_told


async def test_every_version_is_tried_once_the_last_one_first(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "client_session", broker.session)
    dialer = Dialer("b", settings(url="amqp://guest:guest@localhost/?version=auto"), broker.dial)
    turned_away: list[Opened] = []

    def answer(peer: Peer, operation: Opened) -> bool:
        turned_away.append(operation)
        if len(turned_away) == 2:
            return False
        supported = "0-8" if len(turned_away) == 1 else None
        peer.send(Closed(0, CloseReason.PROTOCOL_HEADER, 0, "another header", supported=supported))
        return True

    broker.on[Opened] = answer
    link = await dialer.open("test")
    assert dialer.found == "found 0-8 (Fake 1)"
    await link.close()
    with pytest.raises(ProtocolMismatch, match="none of 0-8, 0-9-1, 0-10, 0-9 is spoken there"):
        await dialer.open("test")
    assert len(turned_away) == 2 + 4


@pytest.mark.parametrize(
    ("closed", "error"),
    [
        (Closed(0, CloseReason.AUTHENTICATION, 403, "no"), AuthenticationFailed),
        (Closed(0, CloseReason.PEER, 530, "no virtual host"), BrokerUnavailable),
    ],
)
async def test_another_version_is_not_tried_where_this_one_is_spoken(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, closed: Closed, error: type[GatewayError]
) -> None:
    monkeypatch.setattr(keeper, "client_session", broker.session)
    dialer = Dialer("b", settings(url="amqp://guest:guest@localhost/?version=auto"), broker.dial)

    def refuse(peer: Peer, operation: Opened) -> bool:
        peer.send(closed)
        return True

    broker.on[Opened] = refuse
    with pytest.raises(error):
        await dialer.open("test")
    assert len(broker.sessions) == 1


class Told:
    """A link of which the dialer knows what password it was opened with."""

    def __init__(self, *, can: bool = True, ended: bool = False, closing: bool = False, refuses: bool = False) -> None:
        self.capabilities = SimpleNamespace(update_secret=can)
        self.ended = Closed(0, CloseReason.EOF, 0, "") if ended else None
        self.closing = closing
        self.refuses = refuses
        self.told: list[str] = []

    async def request(self, operation: UpdateSecret) -> None:
        self.told.append(operation.secret)
        if self.refuses:
            raise AccessRefused(530, "no")


async def test_every_open_link_is_told_a_new_password_once() -> None:
    """Those that have ended, or cannot be told, keep it from none of the others."""
    dialer = Dialer("b", settings(url="amqp://ann@h/", password="new"))
    links = [
        Told(ended=True), Told(closing=True), Told(can=False), Told(refuses=True), Told(), Told(),
    ]  # fmt: skip
    for link in links:
        dialer._passwords[link] = "old"  # type: ignore[index]
    dialer._passwords[links[4]] = "new"  # type: ignore[index]  # it was opened with it
    for _ in range(2):
        await dialer.renew()
        assert [link.told for link in links] == [[], [], [], ["new"], [], ["new"]]
