"""``gateway serve`` with a front."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import CliRunner, Result

from gateway.amqp.message import Message
from gateway.amqp.operations import Consume, DeclareQueue, Get, Got, Publish, SelectConfirm
from gateway.app import running
from gateway.broker.server import EmbeddedBroker
from gateway.commands import cli
from gateway.config import (
    BrokerSettings,
    Config,
    EmbeddedSettings,
    EmbeddedUser,
    FrontSettings,
    FrontTls,
    FrontUser,
    HttpSettings,
    OpsSettings,
)
from gateway.config.loading import load
from gateway.errors import AuthenticationFailed, ConfigurationError, GatewayError, RestartNeeded
from gateway.exits import DONE, NOT_FOUND
from gateway.link import Channel, Link
from gateway.upstreams.keeper import Dialer
from tests.front.fronts import ADMIN
from tests.upstreams.fake import until


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


async def test_a_reload_cuts_nobody_off(tmp_path: Path) -> None:
    """Settings of a front and of its broker change, and clients go on; what cannot change is refused."""
    users = (EmbeddedUser(name="guest", password="guest"), EmbeddedUser(name="other", password="other"))
    upstreams = [EmbeddedBroker(EmbeddedSettings(port=0, users=users)) for _ in range(2)]
    for upstream in upstreams:
        await upstream.start()
    first, second = (f"amqp://guest:guest@127.0.0.1:{each.port}/?version=0-9-1" for each in upstreams)
    front = FrontSettings(
        port=0,
        broker="modern",
        users=(ADMIN, FrontUser(name="gone", password="gone"), FrontUser(name="a", password="b")),
    )
    brokers = {"modern": BrokerSettings(url=first, reconnect_min=0.01, reconnect_max=0.05)}
    config = msgspec.structs.replace(configuration(tmp_path), brokers=brokers, fronts={"legacy": front})
    later = config

    def with_front(**settings: Any) -> Config:
        return msgspec.structs.replace(later, fronts={"legacy": msgspec.structs.replace(front, **settings)})

    async with running(config, read=lambda: later) as app:
        port = app.ports.fronts["legacy"]

        async def opened(login: str) -> Link:
            settings = BrokerSettings(url=f"amqp://{login}@127.0.0.1:{port}/?version=0-9-1")
            return await Dialer("client", settings).open("client")

        admin, gone, other = await opened("guest:guest"), await opened("gone:gone"), await opened("a:b")
        channel = admin.channel(Channel)
        await channel.open()
        await channel.request(DeclareQueue(channel.number, "q", durable=True))
        for change, setting in (
            ({"broker": "other"}, r"fronts\.legacy\.broker"),
            ({"port": 1}, r"fronts\.legacy\.port"),
            ({"tls": FrontTls(cert_file="x")}, r"fronts\.legacy\.tls"),
            ({"message_max": 1_024}, r"fronts\.legacy\.message_max"),
        ):
            later = with_front(**change)
            with pytest.raises(RestartNeeded, match=setting):
                await app.reloads.reload()
            later = config
        later = msgspec.structs.replace(config, fronts={**config.fronts, "more": front})
        with pytest.raises(RestartNeeded, match=r"fronts\.more"):
            await app.reloads.reload()
        later = config

        limited = FrontUser(name="a", password="b", scopes=("consume:modern/none",))
        later = with_front(users=(ADMIN, limited), prefetch_max=7, rules={"transient_queue": "on"})
        found = await app.reloads.reload()
        assert [(each.setting, each.change) for each in found.changes] == [("fronts.legacy", "changed")]
        await until(lambda: gone.ended is not None, 5.0)
        with pytest.raises(AuthenticationFailed):
            await opened("gone:gone")
        refused = other.channel(Channel)
        await refused.open()
        with pytest.raises(GatewayError, match="needs the scope"):
            await refused.request(DeclareQueue(refused.number, "new", durable=True))
        await channel.request(DeclareQueue(channel.number, "fleeting"))
        assert upstreams[0].broker.virtual_host("/").queues["fleeting"].durable

        later = msgspec.structs.replace(
            later, brokers={"modern": msgspec.structs.replace(brokers["modern"], url=second)}
        )
        assert (await app.reloads.reload()).status == "applied"
        await channel.request(DeclareQueue(channel.number, "new", durable=True))
        assert "new" in upstreams[1].broker.virtual_host("/").queues
        assert (admin.ended, other.ended) == (None, None)
        for link in (admin, other):
            await link.close()
    for upstream in upstreams:
        await upstream.stop()


async def test_what_clients_publish_has_a_timeline(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    fronts = {"legacy": msgspec.structs.replace(config.fronts["legacy"], record="publish")}
    async with (
        running(msgspec.structs.replace(config, fronts=fronts)) as app,
        httpx.AsyncClient(base_url=app.url) as client,
    ):
        url = f"amqp://guest:guest@127.0.0.1:{app.ports.fronts['legacy']}/?version=0-9-1"
        link = await Dialer("client", BrokerSettings(url=url)).open("client")
        channel = link.channel(Channel)
        await channel.open()
        await channel.request(DeclareQueue(channel.number, "q", durable=True))
        await channel.request(SelectConfirm(channel.number))
        await channel.request(Publish(channel.number, "", "q", Message(b"kept")))
        await channel.request(Publish(channel.number, "", "nowhere", Message(b"returned"), mandatory=True))
        found: list[Any] = []
        async with asyncio.timeout(20):
            while len(found) < 2:
                answer = await client.get("/v1/messages", params={"client": "front:legacy/guest"})
                assert answer.status_code == 200, answer.text
                found = answer.json()["messages"]
        states = {each["routing_key"]: (each["state"], each["origin"]) for each in found}
        assert states == {"q": ("confirmed", "front"), "nowhere": ("unroutable", "front")}
        got = await channel.request(Get(channel.number, "q", no_ack=True))
        assert isinstance(got, Got)
        ids = {each["routing_key"]: each["id"] for each in found}
        assert got.message.properties.headers == {"x-gateway": {"id": ids["q"]}}
        await link.close()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('store = "sometimes"', "fronts.legacy.store"),
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


async def test_fronts_and_their_clients_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATEWAY_URL", raising=False)
    monkeypatch.delenv("GATEWAY_API_KEY", raising=False)

    async with running(configuration(tmp_path)) as app, httpx.AsyncClient(base_url=app.url) as client:

        async def shown(path: str, status: int = 200) -> Any:
            answer = await client.get(f"/v1/fronts{path}")
            assert answer.status_code == status, answer.text
            return answer.json()

        async def verb(*words: str) -> Result:
            arguments = ["fronts", *words, "--url", app.url]
            return await asyncio.to_thread(lambda: CliRunner().invoke(cli, arguments, catch_exceptions=False))

        url = f"amqp://guest:guest@127.0.0.1:{app.ports.fronts['legacy']}/?version=0-9-1"
        links = [await Dialer("client", BrokerSettings(url=url)).open("client") for _ in range(3)]
        channel = links[0].channel(Channel)
        await channel.open()
        await channel.request(DeclareQueue(channel.number, "q", durable=True))
        await channel.request(Consume(channel.number, "q", "tag"))

        (front,) = (await shown(""))["fronts"]
        assert front == await shown("/legacy")
        assert (front["name"], front["clients"], front["login"], front["versions"]) == (
            "legacy",
            3,
            "gateway",
            ["0-9-1"],
        )
        assert front["virtual_hosts"] == {"/": "local-0-10"}
        (connection,) = front["connections"]
        assert (connection["up"], connection["clients"], connection["channels"]) == (True, 3, 1)
        page = await client.get("/v1/fronts/legacy/clients", params={"limit": 2})
        assert [each["user"] for each in page.json()["clients"]] == ["guest", "guest"]
        assert 'rel="next"' in page.headers["link"]
        first, _, last = (await shown("/legacy/clients"))["clients"]
        assert (first["channels"], first["consumers"], first["version"]) == (1, 1, "0-9-1")
        assert (first["address"], last["channels"]) == ("127.0.0.1", 0)

        assert (await shown("/other", 404))["code"] == "no_such_front"
        for wrong in ("99", "x", "\u00b2"):
            answer = await client.delete(f"/v1/fronts/legacy/clients/{wrong}")
            assert (answer.status_code, answer.json()["code"]) == (404, "no_such_front_client")

        assert "3" in (await verb("list")).stdout.splitlines()[1].split()
        assert "local-0-10" in (await verb("show", "legacy")).stdout
        assert len((await verb("clients", "legacy")).stdout.splitlines()) == 4
        assert json.loads((await verb("clients", "legacy", "--json")).stdout)["clients"][0] == first
        assert (await verb("clients", "other")).exit_code == NOT_FOUND
        closed = await verb("close", "legacy", str(last["client"]))
        assert closed.exit_code == DONE, closed.output
        await until(lambda: links[2].ended is not None, 5.0)
        assert links[2].ended is not None
        assert (links[2].ended.code, links[0].ended) == (320, None)
        assert len((await shown("/legacy/clients"))["clients"]) == 2

        metrics = app.gateway.metrics.render().decode()
        assert 'amqpgw_front_clients{front="legacy"} 2.0' in metrics
        assert 'amqpgw_front_up{front="legacy"} 1.0' in metrics
        for link in links[:2]:
            await link.close()
