"""Every row can fail: against a server that lets everything pass, and against a gateway without its defenses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import canary
from tests.attack import (
    amqp_frames,
    browsers,
    credentials,
    http_framing,
    http_load,
    json_bodies,
    lab,
    logins,
    outbound,
    paths,
    poison,
    proxies,
    secrets,
    tokens,
)
from tests.attack.client import Client, hang_up
from tests.attack.fake import Fake, faked
from tests.attack.judge import Bounds, Record
from tests.attack.lab import Attack, Row, Running, Target, measure

LAX = (
    credentials.matrix,
    credentials.ended_keys,
    credentials.ack_ids,
    paths.tricks,
    http_framing.framing,
    http_framing.heads,
    http_framing.upgrades,
    browsers.attack,
    outbound.urls,
    outbound.redirects,
    outbound.silent_names,
    proxies.attack,
    http_load.slow,
    http_load.large_bodies,
    logins.mechanisms,
    logins.guesses,
    tokens.attack,
    amqp_frames.silent,
)
"""Attacks that a server which says yes to everything does not stand."""
BROKEN = (credentials.overrides, paths.odd_names, paths.texts, json_bodies.attack, outbound.answers, poison.attack)
"""Attacks that a server which answers 500 does not stand."""


async def attacked(attack: Attack, fake: Fake, folder: Path) -> Record:
    """Carry out the quick form of an attack on a fake."""
    record = Record()
    async with faked(fake, folder) as target:
        await attack(target, record)
        hang_up()
    return record


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for what never comes takes no long time."""
    for module in (http_load, amqp_frames):
        monkeypatch.setattr(module, "SLOW", -4.5)
    monkeypatch.setattr(poison, "WITHIN", 0.1)
    for name in ("AMBIGUOUS", "LINES"):
        monkeypatch.setattr(http_framing, name, dict(list(getattr(http_framing, name).items())[:2]))


@pytest.mark.parametrize("attack", LAX, ids=lambda each: f"{each.__module__.rpartition('.')[2]}.{each.__name__}")
async def test_a_server_that_lets_everything_pass(attack: Attack, tmp_path: Path) -> None:
    assert (await attacked(attack, Fake(), tmp_path)).wrong


@pytest.mark.parametrize("attack", BROKEN, ids=lambda each: f"{each.__module__.rpartition('.')[2]}.{each.__name__}")
async def test_a_server_that_breaks(attack: Attack, tmp_path: Path) -> None:
    assert (await attacked(attack, Fake(500), tmp_path)).wrong


async def test_a_server_that_shows_secrets(tmp_path: Path) -> None:
    record = await attacked(secrets.leaks, Fake(said=canary.CANARY), tmp_path)
    canary.taken()
    assert any("planted" in text or ":" in text for text in record.texts)


# ------------------------------------------------------------------------- a gateway without its defenses


class Planted(lab.Gateway):
    """A gateway of :mod:`tests.attack.planted`."""

    module = "tests.attack.planted"


UNBOUNDED: Any = {
    "http.trusted_proxies": [proxies.PROXY],
    "outbound.allow": ["127.0.0.0/8", "localhost", "*.silent.example"],
    "budgets.shares.lookups": 1.0,
}
"""Settings of such a gateway."""


@pytest.fixture(scope="module", autouse=True)
def shown_on_purpose() -> Iterator[None]:
    """What shows the planted secret here does so on purpose: it is not written down for the suite."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(canary.VARIABLE, raising=False)
        yield


@pytest.fixture(scope="module")
def planted(shown_on_purpose: None) -> Iterator[Running]:
    running = Running("keyed", UNBOUNDED, Planted)
    yield running
    running.close()
    canary.taken()


def asking(path: str, times: int = 1) -> Attack:
    """Return an attack that only asks for a path."""

    async def attack(target: Target, record: Record) -> None:
        for _ in range(times):
            client = Client(target.port)
            await client.ask("GET", path)
            client.close()
            record.check(True)
            await asyncio.sleep(0.05)

    return attack


@pytest.mark.long
@pytest.mark.parametrize(
    ("attack", "fault"),
    [
        (asking("/"), ""),
        (asking("/planted/memory"), "memory grew by"),
        (asking("/planted/stall", 2), "the neighbor waited"),
        (asking("/planted/stand"), "the neighbor stood"),
        (asking("/planted/error"), "the log has an unhandled error"),
        (asking("/planted/secret"), "a planted secret was seen"),
        (http_load.pipelining, "memory grew by"),
        (outbound.urls, "connections"),
        (outbound.silent_names, "the other endpoint"),
        (proxies.attack, "from 127.0.0.22"),
        (asking("/planted/end"), "the gateway ended"),
    ],
    ids=[
        "nothing",
        "memory",
        "stall",
        "stand",
        "error",
        "secret",
        "pipelining",
        "urls",
        "silent names",
        "proxies",
        "end",
    ],
)
async def test_a_gateway_without_its_defenses(
    attack: Attack, fault: str, planted: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab, "CALM", 0.5)
    outcome = await measure(Row("planted", attack, bounds=Bounds(5.0)), planted, full=False)
    print(outcome.waits)
    found: Any = outcome.faults()
    assert any(fault in text for text in found) if fault else not found
    assert outcome.line()[-1] == ("FAILED" if fault else "ok")
    canary.taken()
