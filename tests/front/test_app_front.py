"""``gateway serve`` with a front."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gateway.app import running
from gateway.config import BrokerSettings, Config, EmbeddedSettings, FrontSettings, HttpSettings, OpsSettings
from gateway.config.loading import load
from gateway.errors import ConfigurationError, RestartNeeded
from gateway.link import Channel
from gateway.operations import DeclareQueue
from gateway.upstreams.keeper import Dialer
from tests.front.fronts import ADMIN


def configuration(data: Path) -> Config:
    return Config(
        http=HttpSettings(port=0),
        ops=OpsSettings(port=0),
        embedded=EmbeddedSettings(enabled=True, port=0),
        data_dir=str(data),
        fronts={"legacy": FrontSettings(port=0, broker="local-0-10", users=(ADMIN,), versions=("0-9-1",))},
    )


async def test_a_front_is_served(tmp_path: Path) -> None:
    async with running(configuration(tmp_path)) as app:
        port = app.ports.fronts["legacy"]
        assert app.ports.as_dict()["front legacy"] == port
        url = f"amqp://guest:guest@127.0.0.1:{port}/?version=auto"
        link = await Dialer("client", BrokerSettings(url=url)).open("client")
        assert link.session.version.value == "0-9-1"
        channel = link.channel(Channel)
        await channel.open()
        assert (await channel.request(DeclareQueue(channel.number, "q", durable=True))).queue == "q"
        await link.close()


async def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    async with running(configuration(tmp_path)) as app:
        taken = configuration(tmp_path / "other")
        front = msgspec.structs.replace(taken.fronts["legacy"], port=app.ports.fronts["legacy"])
        with pytest.raises(ConfigurationError, match=r"fronts\.legacy\.port"):
            async with running(msgspec.structs.replace(taken, fronts={"legacy": front})):
                pass


def test_a_front_of_a_broker_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    users = '[[fronts.legacy.users]]\nname = "a"\npassword = "b"\n'
    file.write_text(f'[fronts.legacy]\nbroker = "modern"\n{users}')
    with pytest.raises(ConfigurationError, match=r"fronts\.legacy\.broker: there is no broker 'modern'"):
        load(file)
    file.write_text(f"[fronts.legacy]\n{users}")
    with pytest.raises(ConfigurationError, match=r"fronts\.legacy\.broker: give it, or virtual_hosts"):
        load(file)


async def test_a_reload_that_changes_a_front_or_its_broker_takes_a_restart(tmp_path: Path) -> None:
    brokers = {
        "modern": BrokerSettings(url="amqp://guest:guest@127.0.0.1:1/"),
        "other": BrokerSettings(url="amqp://b/"),
    }
    front = FrontSettings(port=0, broker="modern", users=(ADMIN,))
    config = msgspec.structs.replace(configuration(tmp_path), brokers=brokers, fronts={"legacy": front})
    later = config

    async with running(config, read=lambda: later) as app:
        for change, setting in (
            ({"fronts": {"legacy": msgspec.structs.replace(front, prefetch_max=1)}}, "fronts"),
            ({"brokers": {**brokers, "modern": BrokerSettings(url="amqp://elsewhere/")}}, "brokers.modern"),
        ):
            later = msgspec.structs.replace(config, **change)
            with pytest.raises(RestartNeeded, match=setting):
                await app.reloads.reload()
        later = msgspec.structs.replace(config, brokers={"modern": brokers["modern"]})
        assert (await app.reloads.reload()).status == "applied"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('store = "when-down"', "fronts.legacy.store"),
        ('login = "kerberos"', "fronts.legacy.login"),
        ('rules = { transient_queue = "maybe" }', "fronts.legacy.rules"),
        ("port = 70000", "fronts.legacy.port"),
        ('versions = ["1.0"]', "there is no version '1.0'"),
    ],
)
def test_settings_that_do_not_exist_are_refused(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "gateway.toml"
    users = '[[fronts.legacy.users]]\nname = "a"\npassword = "b"\n'
    file.write_text(f'[brokers.modern]\nurl = "amqp://b/"\n[fronts.legacy]\nbroker = "modern"\n{line}\n{users}')
    with pytest.raises(ConfigurationError) as caught:
        load(file)
    assert words in str(caught.value)
